//! Counts the signals by which a user ends a run: SIGINT, SIGTERM and SIGHUP. Also remembers which
//! signals were ignored when memgauge started, so that started programs ignore them, too.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use super::process::monotonic_ns;

/// An interrupt by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserInterrupt {
    /// The signal.
    pub signal: i32,
    /// True if the terminal sent it to its whole foreground process group.
    pub from_terminal: bool,
}

/// Maximum number of interrupts with a recorded signal.
pub const MAX_RECORDED: usize = 4;
/// Signals within this time count as one interrupt: `timeout` signals its child and then its group,
/// and a key that is held down repeats.
const ONE_INTERRUPT_NS: u64 = 100_000_000;

static COUNT: AtomicU32 = AtomicU32::new(0);
/// Number of the interrupt that ends this process at once.
static FATAL_INTERRUPT: AtomicU32 = AtomicU32::new(2);
/// Time of the last signal, or 0.
static LAST_SIGNAL_NS: AtomicU64 = AtomicU64::new(0);
/// Signals of the first interrupts. Negative if a terminal sent them.
static SIGNALS: [AtomicI32; MAX_RECORDED] = [const { AtomicI32::new(0) }; MAX_RECORDED];

extern "C" fn on_interrupt(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let now_ns = monotonic_ns();
    let before_ns = LAST_SIGNAL_NS.swap(now_ns, Ordering::SeqCst);
    if before_ns != 0 && now_ns.saturating_sub(before_ns) < ONE_INTERRUPT_NS {
        return;
    }
    // SAFETY: SA_SIGINFO is set, so the kernel hands over a valid siginfo.
    let code = unsafe { (*info).si_code };
    let number = COUNT.load(Ordering::SeqCst);
    // The Python package passes on its interrupts and cannot know which of them a terminal has sent
    // to memgauge, too. It therefore sends the number of each.
    let is_known = code == libc::SI_QUEUE && {
        // SAFETY: a queued signal has a value.
        let sent = unsafe { (*info).si_value() }.sival_ptr as usize;
        (1..=number as usize).contains(&sent)
    };
    if is_known {
        return;
    }
    if let Some(slot) = SIGNALS.get(number as usize) {
        // Processes send with SI_USER or similar. A terminal's driver is part of the kernel.
        let sign = if code == SI_KERNEL { -1 } else { 1 };
        slot.store(sign * signal, Ordering::SeqCst);
    }
    COUNT.store(number + 1, Ordering::SeqCst);
    if number + 1 >= FATAL_INTERRUPT.load(Ordering::SeqCst) {
        // SAFETY: _exit may be called from a signal handler.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// `si_code` of signals from the kernel (include/uapi/asm-generic/siginfo.h).
const SI_KERNEL: i32 = 0x80;

/// Does nothing, so that the write beyond the limit fails with EFBIG. Unlike an ignored signal, a
/// handler is not inherited by the program.
extern "C" fn on_file_limit(_: i32) {}

/// Counts SIGINT, SIGTERM and SIGHUP from now on. The second one ends this process at once, unless
/// [`set_fatal_interrupt`] changes the number. Exceeding the file size limit no longer ends the
/// process.
///
/// # Errors
/// The error of `sigaction`.
pub(crate) fn catch() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if signal == libc::SIGHUP && is_ignored(signal) {
            // Under nohup, SIGHUP must end neither this process nor the program.
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

/// Makes writes beyond the file size limit (`ulimit -f`) fail. Otherwise the kernel ends this
/// process without a message.
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

/// Signals whose handling Rust or memgauge changes and that the program must inherit unchanged. The
/// interrupt signals are missing because memgauge passes them on.
const RESTORED_SIGNALS: [i32; 3] = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ];

/// Bit mask of those signals that were ignored when this process started.
static IGNORED: AtomicU32 = AtomicU32::new(0);

extern "C" fn record_ignored() {
    let all = RESTORED_SIGNALS
        .iter()
        .filter(|&&signal| is_ignored(signal));
    let bits = all.fold(0, |bits, signal| bits | 1 << signal);
    IGNORED.store(bits, Ordering::Relaxed);
}

// Runs before main, since Rust's startup ignores SIGPIPE.
#[used]
#[allow(unsafe_code)]
// SAFETY: the function has the type of a constructor and needs nothing that is initialised later.
#[unsafe(link_section = ".init_array")]
static RECORD_IGNORED: extern "C" fn() = record_ignored;

fn set(signal: i32, handler: libc::sighandler_t) {
    // SAFETY: one of the kernel's own handlers; it may be set after a fork.
    unsafe { libc::signal(signal, handler) };
}

/// Makes a command ignore the signals that were ignored when this process started.
pub fn inherit_ignored(command: &mut Command) {
    let bits = IGNORED.load(Ordering::Relaxed);
    let ignore = move || {
        let all = RESTORED_SIGNALS
            .iter()
            .filter(|&signal| bits >> signal & 1 == 1);
        all.for_each(|&signal| set(signal, libc::SIG_IGN));
        Ok(())
    };
    if bits != 0 {
        // SAFETY: the closure only makes system calls that may be made after a fork.
        unsafe { command.pre_exec(ignore) };
    }
}

/// Keeps ended children until they are waited for, even if SIGCHLD was ignored when this process
/// started.
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

/// Sets the number of the interrupt, from 1, that ends this process at once.
pub(crate) fn set_fatal_interrupt(number: u32) {
    FATAL_INTERRUPT.store(number, Ordering::SeqCst);
}

/// Number of interrupts so far.
pub fn interrupts() -> u32 {
    COUNT.load(Ordering::SeqCst)
}

/// The interrupts so far, at most [`MAX_RECORDED`].
pub fn interrupts_so_far() -> impl Iterator<Item = UserInterrupt> {
    let interrupts = SIGNALS.iter().take(interrupts() as usize);
    interrupts.map(|slot| {
        let signal = slot.load(Ordering::SeqCst);
        UserInterrupt {
            signal: signal.abs(),
            from_terminal: signal < 0,
        }
    })
}

/// The signal of the first interrupt, or SIGINT without one.
pub fn interrupting_signal() -> i32 {
    interrupts_so_far()
        .next()
        .map_or(libc::SIGINT, |first| first.signal)
}
