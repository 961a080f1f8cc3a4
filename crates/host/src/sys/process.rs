//! Processes and signals.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};

/// Effective user and group of this process.
pub fn effective_ids() -> (u32, u32) {
    use rustix::process::{getegid, geteuid};
    (geteuid().as_raw(), getegid().as_raw())
}

/// True if a seccomp filter may deny system calls of this process.
pub fn has_seccomp_filter() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut modes = status
        .lines()
        .filter_map(|line| line.strip_prefix("Seccomp:"));
    modes.any(|mode| mode.trim() == "2")
}

/// Stack limit of the first thread in bytes, or `None` without a limit.
pub fn stack_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Stack).current
}

/// Data limit of this process in bytes, or `None` without a limit.
pub fn data_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Data).current
}

/// Waits until one of the descriptors is readable or its other end was closed. Returns its index.
pub fn wait_readable<const N: usize>(descriptors: [BorrowedFd<'_>; N]) -> usize {
    let mut polled = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    loop {
        // A signal ends the wait early. The loop then waits again.
        let _ = poll(&mut polled, None);
        if let Some(first) = polled.iter().position(|entry| !entry.revents().is_empty()) {
            return first;
        }
    }
}

/// True if the file has capabilities, which its execution would grant.
pub fn has_capabilities(path: &Path) -> bool {
    // With an empty buffer, the kernel only returns the required size.
    let nothing: &mut [u8] = &mut [];
    rustix::fs::getxattr(path, c"security.capability", nothing).is_ok_and(|bytes| bytes > 0)
}

fn is_out_of_descriptors(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// Watches a process for its end.
#[derive(Debug)]
pub struct Watched {
    pidfd: Option<OwnedFd>,
    /// The PID if the process runs but no descriptor was available.
    pid_without_fd: Option<Pid>,
}

impl Watched {
    /// Watches `pid`. A process that no longer exists counts as ended.
    pub fn new(pid: u32) -> Watched {
        let pid = Pid::from_raw(pid as i32);
        let opened = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        let (pidfd, pid_without_fd) = match opened {
            Some(Ok(pidfd)) => (Some(pidfd), None),
            Some(Err(error)) if is_out_of_descriptors(error) => (None, pid),
            Some(Err(_)) | None => (None, None),
        };
        Watched {
            pidfd,
            pid_without_fd,
        }
    }

    /// A descriptor that becomes readable when the process ends, if available.
    pub fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.pidfd.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// True if the process has ended, also while it is a zombie.
    pub fn ended(&self) -> bool {
        if let Some(pid) = self.pid_without_fd {
            return test_kill_process(pid).is_err();
        }
        let Some(fd) = &self.pidfd else { return true };
        let now = Timespec::default();
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    /// Sends `signal`. Does nothing if the process has ended.
    pub fn signal(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        if let Some(pid) = self.pid_without_fd {
            let _ = kill_process(pid, signal);
        }
        if let Some(fd) = &self.pidfd {
            let _ = pidfd_send_signal(fd, signal);
        }
    }
}

/// CPU time, peak resident memory and page faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time.
    pub cpu: Duration,
    /// User time alone.
    pub user: Duration,
    /// Largest resident set in bytes.
    pub peak_memory_bytes: u64,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
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
        minor_faults: u.ru_minflt as u64,
    }
}

/// Resources that this process has used.
pub fn own_usage() -> Usage {
    usage(libc::RUSAGE_SELF)
}

/// Resources that its ended children have used.
pub fn children_usage() -> Usage {
    usage(libc::RUSAGE_CHILDREN)
}

/// CLOCK_MONOTONIC in nanoseconds, the clock that BPF programs read as well.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Disables address space randomisation for a command and the processes it starts.
///
/// Containers may forbid this. Addresses then differ between runs, and only repeatability suffers.
pub fn disable_aslr(command: &mut Command) {
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

/// True if a process is in this process's group, to which a terminal sends its signals.
pub fn is_in_own_group(pid: u32) -> bool {
    // SAFETY: neither call touches memory.
    unsafe { libc::getpgid(pid as libc::pid_t) == libc::getpgrp() }
}

/// True if this user may execute `path`.
pub fn may_execute(path: &Path) -> bool {
    rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// True if the file system that contains `path` is mounted noexec.
pub fn is_mounted_noexec(path: &Path) -> bool {
    let flags = rustix::fs::statvfs(path).map(|of| of.f_flag);
    flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// Bytes available to this user on the file system that contains `path`.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let s = rustix::fs::statvfs(path).ok()?;
    Some(s.f_bavail * s.f_frsize)
}
