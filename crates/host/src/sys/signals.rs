//! Signals by which a user ends a run: SIGINT, SIGTERM and SIGHUP. And some that were ignored
//! when memgauge began: the programs that it starts ignore them, too.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::process::monotonic_ns;

/// An interrupt that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// Its signal.
    pub signal: i32,
    /// The terminal sent it, to all processes of its foreground group.
    pub from_terminal: bool,
}

/// Interrupts that are told apart.
pub const MOST: usize = 4;
/// Signals that follow one another faster are one interrupt: `timeout` sends its signal
/// to its child and then to its group, and a key that is held down repeats.
const ONE_INTERRUPT_NS: u64 = 100_000_000;

static COUNT: AtomicU32 = AtomicU32::new(0);
/// The interrupt that ends this process at once.
static LAST: AtomicU32 = AtomicU32::new(2);
/// When the last signal came; 0 before the first.
static CAME_NS: AtomicU64 = AtomicU64::new(0);
/// The signals of the first interrupts, negative where a terminal sent them.
static SIGNALS: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

extern "C" fn on_interrupt(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let now_ns = monotonic_ns();
    let before_ns = CAME_NS.swap(now_ns, Ordering::SeqCst);
    if before_ns != 0 && now_ns.saturating_sub(before_ns) < ONE_INTERRUPT_NS {
        return;
    }
    // SAFETY: SA_SIGINFO is set, so the kernel hands over a valid siginfo.
    let code = unsafe { (*info).si_code };
    let number = COUNT.load(Ordering::SeqCst);
    if let Some(slot) = SIGNALS.get(number as usize) {
        // A process has SI_USER or the like; a terminal's driver is the kernel.
        let sign = if code == SI_KERNEL { -1 } else { 1 };
        slot.store(sign * signal, Ordering::SeqCst);
    }
    COUNT.store(number + 1, Ordering::SeqCst);
    if number + 1 >= LAST.load(Ordering::SeqCst) {
        // SAFETY: _exit may be called from a signal handler.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// `si_code` of what the kernel itself sends (include/uapi/asm-generic/siginfo.h).
const SI_KERNEL: i32 = 0x80;

/// Does nothing: the write that came too far fails with EFBIG then. A handler, unlike an
/// ignored signal, is not passed on to the program.
extern "C" fn on_file_limit(_: i32) {}

/// Counts SIGINT, SIGTERM and SIGHUP from now on; the second one ends this process at
/// once, unless [`ends_at`] says another. A limit of file sizes no longer ends it.
///
/// # Errors
/// The error of `sigaction`.
pub(crate) fn catch() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if signal == libc::SIGHUP && is_ignored(signal) {
            // Under nohup neither this process nor the program shall end by it.
            continue;
        }
        // SAFETY: an all-zero sigaction is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_interrupt as *const () as usize;
        action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
        // SAFETY: the handler only touches atomics, reads the clock and calls _exit.
        if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    outlive_file_limit()
}

/// A write beyond the limit of file sizes (`ulimit -f`) fails from now on. Otherwise the kernel
/// ends this process without a word to the user.
///
/// # Errors
/// The error of `sigaction`.
pub fn outlive_file_limit() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_file_limit as *const () as usize;
    // SAFETY: the handler does nothing.
    match unsafe { libc::sigaction(libc::SIGXFSZ, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Signals whose treatment Rust or memgauge changes; of those that end a run, the program gets
/// its own (it may handle them, and memgauge passes them on). All others stay as they are.
const CHANGED: [i32; 3] = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ];

/// Which of them were ignored when this process began, a bit each.
static IGNORED: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_ignored() {
    let all = CHANGED.iter().filter(|&&signal| is_ignored(signal));
    let bits = all.fold(0, |bits, signal| bits | 1 << signal);
    IGNORED.store(bits, Ordering::Relaxed);
}

// Before main: Rust's own start ignores SIGPIPE.
#[used]
#[allow(unsafe_code)]
// SAFETY: the function has the type of a constructor, and needs nothing that is made later.
#[unsafe(link_section = ".init_array")]
static NOTE_IGNORED: extern "C" fn() = note_ignored;

fn set(signal: i32, handler: libc::sighandler_t) {
    // SAFETY: one of the kernel's own handlers; it may be set after a fork.
    unsafe { libc::signal(signal, handler) };
}

/// Has a command begin with the signals ignored that were when this process began.
pub fn inherit_ignored(command: &mut Command) {
    let bits = IGNORED.load(Ordering::Relaxed);
    let ignore = move || {
        let all = CHANGED.iter().filter(|&signal| bits >> signal & 1 == 1);
        all.for_each(|&signal| set(signal, libc::SIG_IGN));
        Ok(())
    };
    if bits != 0 {
        // SAFETY: the closure only makes system calls that may be made after a fork.
        unsafe { command.pre_exec(ignore) };
    }
}

/// Ended children stay to be waited for, also where they were ignored when this process began.
pub fn wait_for_children() {
    if is_ignored(libc::SIGCHLD) {
        set(libc::SIGCHLD, libc::SIG_DFL);
    }
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and the kernel fills `now`.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// The interrupt of that number, from 1 on, ends this process at once.
pub(crate) fn ends_at(number: u32) {
    LAST.store(number, Ordering::SeqCst);
}

/// Interrupts that came since they are caught.
pub fn interrupts() -> u32 {
    COUNT.load(Ordering::SeqCst)
}

/// The interrupts that came, the first [`MOST`] of them.
pub fn interrupts_so_far() -> impl Iterator<Item = Interrupt> {
    let came = SIGNALS.iter().take(interrupts() as usize);
    came.map(|slot| {
        let signal = slot.load(Ordering::SeqCst);
        Interrupt {
            signal: signal.abs(),
            from_terminal: signal < 0,
        }
    })
}

/// The signal of the first interrupt; SIGINT where none came.
pub fn interrupting_signal() -> i32 {
    interrupts_so_far()
        .next()
        .map_or(libc::SIGINT, |first| first.signal)
}
