//! System calls for performance events, and the rings that the kernel writes into.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit, setrlimit};

use memgauge_perf::abi::Attr;
use memgauge_perf::record::Header;
use memgauge_perf::ring::{Walked, walk};

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: u64 = 8;
/// `PERF_FLAG_PID_CGROUP`: the process ID is the descriptor of a control group.
const PID_IS_CGROUP: u64 = 4;

/// `PERF_EVENT_IOC_*`.
const ENABLE: u64 = 0x2400;
const DISABLE: u64 = 0x2401;
const PERIOD: u64 = 0x4008_2404;
const SET_OUTPUT: u64 = 0x2405;
const ID: u64 = 0x8008_2407;
const SET_BPF: u64 = 0x4004_2408;

/// The tasks that an event observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventScope {
    /// A thread; 0 is the calling thread.
    Thread(u32),
    /// All processes, on one CPU.
    AllProcesses,
    /// A control group, by the descriptor of its directory.
    Cgroup(RawFd),
}

/// `kernel.perf_event_paranoid`; `None` if the kernel has no perf events.
pub(crate) fn paranoid_level() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
    text.trim().parse().ok()
}

/// `kernel.perf_event_max_sample_rate`: samples per second above which the kernel throttles an
/// event.
pub(crate) fn max_sample_rate() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").ok()?;
    text.trim().parse().ok()
}

/// Opens an event.
///
/// # Errors
/// The error of `perf_event_open`.
pub fn open(
    attr: &Attr,
    scope: EventScope,
    cpu: Option<u32>,
    group: Option<&OwnedFd>,
) -> io::Result<OwnedFd> {
    let (pid, flags) = match scope {
        EventScope::Thread(tid) => (tid as i32, CLOSE_ON_EXEC),
        EventScope::AllProcesses => (-1, CLOSE_ON_EXEC),
        EventScope::Cgroup(fd) => (fd, CLOSE_ON_EXEC | PID_IS_CGROUP),
    };
    let cpu = cpu.map_or(-1, |c| c as i32);
    let group = group.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: `attr` lives through the call and says its own size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            pid,
            cpu,
            group,
            flags,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn ioctl(fd: &OwnedFd, request: u64, argument: u64) -> io::Result<()> {
    // SAFETY: the requests made here take a number or an address that the
    // caller keeps valid for the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `PERF_IOC_FLAG_GROUP`: the whole group of the event.
const WHOLE_GROUP: u64 = 1;

/// Enables a group.
///
/// # Errors
/// The error of `ioctl`.
pub fn enable(leader: &OwnedFd) -> io::Result<()> {
    ioctl(leader, ENABLE, WHOLE_GROUP)
}

/// Disables a group.
///
/// # Errors
/// The error of `ioctl`.
pub(crate) fn disable(leader: &OwnedFd) -> io::Result<()> {
    ioctl(leader, DISABLE, WHOLE_GROUP)
}

/// Lets an event write into the ring of another event on the same CPU.
///
/// # Errors
/// The error of `ioctl`.
pub(crate) fn write_into(event: &OwnedFd, owner: &OwnedFd) -> io::Result<()> {
    ioctl(event, SET_OUTPUT, owner.as_raw_fd() as u64)
}

/// Runs a BPF program at each sample of the event and of the events that tasks inherit from it.
///
/// # Errors
/// The error of `ioctl`.
pub(crate) fn run_at_samples(event: &OwnedFd, program: &OwnedFd) -> io::Result<()> {
    ioctl(event, SET_BPF, program.as_raw_fd() as u64)
}

/// Changes the period of a running event.
///
/// # Errors
/// The error of `ioctl`.
pub(crate) fn set_period(event: &OwnedFd, period: u64) -> io::Result<()> {
    ioctl(event, PERIOD, std::ptr::from_ref(&period) as u64)
}

/// The ID in the event's records.
///
/// # Errors
/// The error of `ioctl`.
pub fn id(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0u64;
    ioctl(event, ID, std::ptr::from_mut(&mut id) as u64)?;
    Ok(id)
}

/// Reads counters into `words`. Returns the number of bytes read.
///
/// # Errors
/// The error of `read`.
pub(crate) fn read_words(event: &OwnedFd, words: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(event, words)?)
}

/// Size of a page in bytes.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// An event's ring: a page of pointers, then the data.
///
/// The kernel writes at `head` and never beyond `tail + size`. The bytes between `tail` and `head`
/// belong to the reader until it moves `tail`.
#[derive(Debug)]
pub struct KernelRing {
    base: *mut u8,
    page: usize,
    bytes: usize,
    /// Buffer for records that wrap around the end of the ring.
    scratch: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone, and its two pointers shared
// with the kernel are only reached as atomics.
unsafe impl Send for KernelRing {}

impl KernelRing {
    /// Maps `pages` (a power of two) pages of data for the event.
    ///
    /// # Errors
    /// Returns the error of `mmap`. It is EPERM if the ring exceeds what this user may lock.
    pub fn map(event: &OwnedFd, pages: usize) -> io::Result<KernelRing> {
        assert!(pages.is_power_of_two(), "ring of {pages} pages");
        let page = page_bytes();
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page * (pages + 1),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(KernelRing {
            base: base.cast(),
            page,
            bytes: page * pages,
            scratch: Vec::new(),
        })
    }

    /// Size of its data in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn pointer(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page is mapped, the fields are aligned, and both
        // sides use them as atomics.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Number of unread bytes.
    pub fn unread(&self) -> usize {
        let head = self.pointer(DATA_HEAD).load(Ordering::Acquire);
        let tail = self.pointer(DATA_TAIL).load(Ordering::Relaxed);
        (head.wrapping_sub(tail) as usize).min(self.bytes)
    }

    /// Reads all unread records.
    pub fn read_records(&mut self, each: impl FnMut(Header, &[u8])) -> Walked {
        let mut scratch = std::mem::take(&mut self.scratch);
        let walked = self.drain(|first, second| walk(first, second, &mut scratch, each));
        self.scratch = scratch;
        walked
    }

    /// Drops all unread records.
    pub fn discard(&mut self) {
        self.drain(|_, _| {});
    }

    /// Passes the unread bytes to `read`, in two pieces if they wrap around, and then releases
    /// them to the kernel.
    fn drain<T>(&mut self, read: impl FnOnce(&[u8], &[u8]) -> T) -> T {
        let unread = self.unread();
        let tail = self.pointer(DATA_TAIL).load(Ordering::Relaxed);
        let start = (tail % self.bytes as u64) as usize;
        let first = unread.min(self.bytes - start);
        // SAFETY: in the data part; the kernel leaves these bytes alone until
        // the tail moves, which happens below, after the borrow has ended.
        let head_piece =
            unsafe { std::slice::from_raw_parts(self.base.add(self.page + start), first) };
        // SAFETY: as above.
        let tail_piece =
            unsafe { std::slice::from_raw_parts(self.base.add(self.page), unread - first) };
        let result = read(head_piece, tail_piece);
        let tail = tail.wrapping_add(unread as u64);
        self.pointer(DATA_TAIL).store(tail, Ordering::Release);
        result
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        // SAFETY: `map` made exactly this mapping and no borrow outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.page + self.bytes) };
    }
}

/// Offsets in `struct perf_event_mmap_page` of the AUX area and the CPU's time counter.
const CAPABILITIES: usize = 40;
const TIME_SHIFT_AND_MULT: usize = 48;
const TIME_ZERO: usize = 64;
const AUX_HEAD: usize = 1056;
const AUX_TAIL: usize = 1064;
const AUX_OFFSET: usize = 1072;
const AUX_SIZE: usize = 1080;

/// `cap_user_time_zero`: the counter can be converted to the events' time.
const CAN_CONVERT: u64 = 1 << 4;

/// Converts ticks of the CPU's time counter to nanoseconds of the events' clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    zero: u64,
    mult: u64,
    shift: u32,
}

impl Conversion {
    /// The time of a tick (`perf_event.h`, "time_zero").
    pub fn ns(&self, ticks: u64) -> u64 {
        let scaled = (u128::from(ticks) * u128::from(self.mult)) >> self.shift;
        self.zero.wrapping_add(scaled as u64)
    }
}

impl KernelRing {
    /// How to convert the counter's ticks. `None` if the kernel does not provide it.
    pub(crate) fn conversion(&self) -> Option<Conversion> {
        let word = |offset| self.pointer(offset).load(Ordering::Relaxed);
        let both = word(TIME_SHIFT_AND_MULT);
        let shift = (both >> 16 & 0xffff) as u32;
        (word(CAPABILITIES) & CAN_CONVERT != 0 && shift < 64).then(|| Conversion {
            zero: word(TIME_ZERO),
            mult: both >> 32,
            shift,
        })
    }
}

/// The AUX area of an event, into which its PMU writes a trace.
#[derive(Debug)]
pub struct AuxArea {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone; its pointers are in the ring's
// first page, which is only reached as atomics.
unsafe impl Send for AuxArea {}

impl AuxArea {
    /// Maps `pages` (a power of two) after the event's ring.
    ///
    /// # Errors
    /// Returns the error of `mmap`. It is EPERM if the area exceeds what this user may lock.
    pub fn map(event: &OwnedFd, ring: &KernelRing, pages: usize) -> io::Result<AuxArea> {
        let bytes = ring.page * pages;
        let offset = (ring.page + ring.bytes).next_multiple_of(bytes);
        ring.pointer(AUX_OFFSET)
            .store(offset as u64, Ordering::Relaxed);
        ring.pointer(AUX_SIZE)
            .store(bytes as u64, Ordering::Relaxed);
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast();
        Ok(AuxArea { base, bytes })
    }

    /// Passes the unread bytes to `read`, in two pieces if they wrap around, and then releases
    /// them to the kernel.
    pub fn drain<T>(&mut self, ring: &KernelRing, read: impl FnOnce(&[u8], &[u8]) -> T) -> T {
        let head = ring.pointer(AUX_HEAD).load(Ordering::Acquire);
        let tail = ring.pointer(AUX_TAIL).load(Ordering::Relaxed);
        let unread = (head.wrapping_sub(tail) as usize).min(self.bytes);
        let start = (tail % self.bytes as u64) as usize;
        let first = unread.min(self.bytes - start);
        // SAFETY: inside the mapping; the kernel leaves these bytes alone until
        // the tail moves, which happens below, after the borrow has ended.
        let head_piece = unsafe { std::slice::from_raw_parts(self.base.add(start), first) };
        // SAFETY: as above.
        let tail_piece = unsafe { std::slice::from_raw_parts(self.base, unread - first) };
        let result = read(head_piece, tail_piece);
        ring.pointer(AUX_TAIL).store(head, Ordering::Release);
        result
    }
}

impl Drop for AuxArea {
    fn drop(&mut self) {
        // SAFETY: `map` made exactly this mapping and no borrow outlives `self`.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// State of a descriptor after [`wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollResult {
    /// Nothing to read.
    NotReady,
    /// There is something to read. A ring may be empty nevertheless: if it passed its watermark
    /// while it was read, it is still reported.
    Ready,
    /// The task has ended. The descriptor stays ready for ever.
    Ended,
}

/// Waits until an event has reached its watermark or its task has ended, at most `timeout_ms`.
/// Returns the state of each descriptor. Descriptor -1 is skipped.
pub fn wait(events: &[RawFd], timeout_ms: i32) -> Vec<PollResult> {
    let mut polled: Vec<libc::pollfd> = events
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: valid array of that length.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as _, timeout_ms) };
    let state = |p: &libc::pollfd| match p.revents {
        0 => PollResult::NotReady,
        events if events & libc::POLLHUP != 0 => PollResult::Ended,
        _ => PollResult::Ready,
    };
    polled.iter().map(state).collect()
}

/// True if the task that an event observes has ended. Its ring gets no more records.
pub fn task_ended(event: &OwnedFd) -> bool {
    let mut polled = libc::pollfd {
        fd: event.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut polled, 1, 0) };
    polled.revents & libc::POLLHUP != 0
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_time_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: valid timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CPU time of this process with all its threads, in nanoseconds.
pub(crate) fn process_cpu_time_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// ID of the calling thread.
pub(crate) fn own_tid() -> u32 {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .unsigned_abs()
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of events with `use_clockid`.
pub fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Raises this process's limit of open files to its hard limit. Returns the limit.
pub fn raise_open_file_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the kernel refuses, the previous limit applies.
    let _ = setrlimit(Resource::Nofile, limit);
    open_file_limit()
}

/// Maximum number of files that this process may have open.
pub fn open_file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// True if a file could not be opened because too many are open.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Copies from another process's memory. Returns the number of bytes copied.
///
/// # Errors
/// The error of `process_vm_readv`, for example if the user may not trace the process.
pub(crate) fn read_memory(pid: u32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: the local buffer is valid; the remote address is checked by the kernel.
    let n = unsafe { libc::process_vm_readv(pid as i32, &local, 1, &remote, 1, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::Conversion;

    #[test]
    fn ticks_become_nanoseconds_without_overflow() {
        // A counter of 25 MHz: 40 ns a tick, as mult / 2^shift.
        let conversion = Conversion {
            zero: 1000,
            mult: 40 << 20,
            shift: 20,
        };
        assert_eq!(conversion.ns(0), 1000);
        assert_eq!(conversion.ns(25_000_000), 1_000_001_000);
        assert_eq!(conversion.ns(1 << 50), 1000 + (40 << 50));
    }
}
