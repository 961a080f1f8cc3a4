//! Tests what the kernel allows by trying it.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Head of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`, 64 bytes), which is enough for a test.
#[repr(C)]
#[derive(Default)]
struct PerfAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const _: () = assert!(size_of::<PerfAttr>() == 64);

const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const PRECISE_SHIFT: u32 = 15;

/// Event to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestEvent {
    /// Hardware cycles of this process, user space only.
    Cycles,
    /// The same with precise sampling (PEBS, IBS through the core PMU).
    PreciseCycles,
    /// The kernel's timer event.
    CpuClock,
}

/// Opens the event on this process and closes it again.
///
/// # Errors
/// The error of `perf_event_open`.
pub fn try_open_event(trial: TestEvent) -> io::Result<()> {
    let (kind, config, precise, period) = match trial {
        TestEvent::Cycles => (0, 0, 0, 0),
        TestEvent::PreciseCycles => (0, 0, 2u64, 100_003),
        TestEvent::CpuClock => (1, 0, 0, 1_000_000),
    };
    let attr = PerfAttr {
        kind,
        size: size_of::<PerfAttr>() as u32,
        config,
        sample_period: period,
        flags: 1 | EXCLUDE_KERNEL | EXCLUDE_HV | precise << PRECISE_SHIFT,
        ..PerfAttr::default()
    };
    // SAFETY: `attr` is valid for the call and says its own size.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attr, 0, -1, -1, 8) };
    own(fd).map(drop)
}

/// Creates a BPF array with one element and drops it.
///
/// # Errors
/// The error of `bpf`.
pub fn try_create_bpf_map() -> io::Result<()> {
    // union bpf_attr of BPF_MAP_CREATE: map_type (2, array), key, value, entries.
    let attr: [u32; 4] = [2, 4, 8, 1];
    // SAFETY: `attr` is valid for the call, which gets its size.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, 0, attr.as_ptr(), size_of_val(&attr)) };
    own(fd).map(drop)
}

fn own(fd: i64) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
