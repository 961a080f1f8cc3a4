//! Processes and signals.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

/// The user and group whose rights this process has.
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: neither call can fail or touches memory.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Waits until something can be read from one of these, or its other end was closed; which.
pub fn wait_readable<const N: usize>(descriptors: [BorrowedFd<'_>; N]) -> usize {
    let mut polled = descriptors.map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    loop {
        // SAFETY: N entries are there, and their descriptors stay open as they are borrowed.
        unsafe { libc::poll(polled.as_mut_ptr(), N as libc::nfds_t, -1) };
        if let Some(first) = polled.iter().position(|entry| entry.revents != 0) {
            return first;
        }
    }
}

/// Whether the file carries capabilities that its execution would give.
pub fn has_capabilities(path: &Path) -> bool {
    let Some(path) = c_path(path) else {
        return false;
    };
    let name = c"security.capability";
    // SAFETY: both are strings of C; no room is given, so nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    )
}

/// A process, watched for its end.
#[derive(Debug)]
pub struct Watched {
    pidfd: Option<OwnedFd>,
    /// Its number, where it runs and no descriptor was left for it.
    unopened: Option<i32>,
}

impl Watched {
    /// Watches `pid`; a process that is already gone counts as ended.
    pub fn new(pid: u32) -> Watched {
        // SAFETY: plain system call without pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        let pidfd = (fd >= 0).then(|| {
            // SAFETY: the kernel just made this descriptor for us.
            unsafe { OwnedFd::from_raw_fd(fd as i32) }
        });
        let unopened = (fd < 0 && is_out_of_descriptors(&io::Error::last_os_error()))
            .then_some(pid as libc::pid_t);
        Watched { pidfd, unopened }
    }

    /// A descriptor that becomes readable when the process ends, if there is one.
    pub fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.pidfd.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Whether the process has ended (also as a zombie).
    pub fn ended(&self) -> bool {
        if let Some(pid) = self.unopened {
            // SAFETY: signal 0 is never sent: it only asks whether the process is there.
            return unsafe { libc::kill(pid, 0) } != 0;
        }
        let Some(fd) = &self.pidfd else { return true };
        let mut poll = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd, no wait.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    /// Sends `signal`; a process that is gone is no error.
    pub fn signal(&self, signal: i32) {
        if let Some(pid) = self.unopened {
            // SAFETY: plain system call without pointers.
            unsafe { libc::kill(pid, signal) };
        }
        if let Some(fd) = &self.pidfd {
            // SAFETY: valid descriptor, no siginfo.
            unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    fd.as_raw_fd(),
                    signal,
                    0usize,
                    0,
                )
            };
        }
    }
}

/// Processor time and largest resident memory of this process, or processor
/// time of its ended children.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time.
    pub cpu: Duration,
    /// User time alone.
    pub user: Duration,
    /// Largest resident set in bytes.
    pub peak_memory_bytes: u64,
}

fn usage(who: i32) -> Usage {
    // SAFETY: an all-zero rusage is valid, and the kernel fills it.
    let mut u: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `u` is a valid rusage.
    unsafe { libc::getrusage(who, &mut u) };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    Usage {
        cpu: time(u.ru_utime) + time(u.ru_stime),
        user: time(u.ru_utime),
        peak_memory_bytes: u.ru_maxrss as u64 * 1024,
    }
}

/// Resources that this process has used so far.
pub fn own_usage() -> Usage {
    usage(libc::RUSAGE_SELF)
}

/// Resources that its ended children have used.
pub fn children_usage() -> Usage {
    usage(libc::RUSAGE_CHILDREN)
}

static INTERRUPTS: AtomicU32 = AtomicU32::new(0);
/// The first signal that was one; 0 before.
static INTERRUPTING: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_interrupt(signal: i32) {
    // It fails where another came first.
    let _ = INTERRUPTING.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
    if INTERRUPTS.fetch_add(1, Ordering::SeqCst) >= 1 {
        // SAFETY: _exit may be called from a signal handler.
        unsafe { libc::_exit(128 + signal) };
    }
}

/// Counts SIGINT, SIGTERM and SIGHUP from now on; the second one ends this
/// process at once.
///
/// # Errors
/// The error of `sigaction`.
pub fn catch_interrupts() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: an all-zero sigaction is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_interrupt as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler only touches atomics and calls _exit.
        if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Interrupts received since [`catch_interrupts`].
pub fn interrupts() -> u32 {
    INTERRUPTS.load(Ordering::SeqCst)
}

/// The signal of the first interrupt; SIGINT where none came.
pub fn interrupting_signal() -> i32 {
    match INTERRUPTING.load(Ordering::SeqCst) {
        0 => libc::SIGINT,
        signal => signal,
    }
}

/// CLOCK_MONOTONIC, which programs in the kernel read as well.
pub fn monotonic_ns() -> u64 {
    // SAFETY: an all-zero timespec is valid, and the kernel fills it.
    let mut now: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: `now` is a valid timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Has a command, and what it starts, lie at the same addresses in every run.
///
/// Where the system forbids that (containers may), addresses differ as they would
/// without: nothing but repeatability depends on it.
pub fn without_randomisation(command: &mut Command) {
    let plain = || {
        // SAFETY: both calls change nothing but a flag of this process, a child
        // about to exec, and may be made after a fork.
        unsafe {
            let now = libc::personality(0xffff_ffff);
            libc::personality((now | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong);
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls that may be made after a fork.
    unsafe { command.pre_exec(plain) };
}

/// Whether `path` may be executed by this user.
pub fn may_execute(path: &Path) -> bool {
    let Some(path) = c_path(path) else {
        return false;
    };
    // SAFETY: a NUL-terminated string that lives through the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// Bytes free to this user on the file system holding `path`.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let path = c_path(path)?;
    // SAFETY: an all-zero statvfs is valid, and the kernel fills it.
    let mut s: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: valid string and struct.
    let ok = unsafe { libc::statvfs(path.as_ptr(), &mut s) } == 0;
    ok.then(|| s.f_bavail as u64 * s.f_frsize as u64)
}
