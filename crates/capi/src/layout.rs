//! Structures of the C header.

use std::ffi::{c_char, c_int};

use super::{Sample, Statistics, ThreadState};

/// `struct memgauge_settings`.
#[repr(C)]
pub struct CSettings {
    /// Size of this structure.
    pub size: usize,
    /// The event; NULL for source clock.
    pub event: *const c_char,
    /// Period; 0 for the default.
    pub period: u64,
    /// Buffer size per thread in samples.
    pub buffer: u64,
    /// 1 to sample the kernel as well.
    pub kernel: c_int,
    /// 1 to record physical addresses.
    pub physical: c_int,
    /// 0 overwrites the oldest sample, 1 refuses the newest.
    pub when_full: c_int,
    /// 10 or 1 ms.
    pub latency_ms: c_int,
    /// 1 to record regions of interest.
    pub regions: c_int,
    /// 1 to detect phases.
    pub phases: c_int,
    /// Maximum share of a thread's CPU time that sampling may take; 0 for no limit.
    pub overhead: f64,
}

impl CSettings {
    pub(crate) fn new() -> CSettings {
        CSettings {
            size: size_of::<CSettings>(),
            event: std::ptr::null(),
            period: 0,
            buffer: 4096,
            kernel: 0,
            physical: 0,
            when_full: 0,
            latency_ms: 10,
            regions: 0,
            phases: 0,
            overhead: 0.0,
        }
    }
}

/// `struct memgauge_sample`.
#[repr(C)]
pub struct CSample {
    time_ns: u64,
    ip: u64,
    addr: u64,
    phys: u64,
    period: u64,
    stands_for: u64,
    data_src: u64,
    pid: u32,
    tid: u32,
    cpu: u32,
    latency_cycles: u32,
    size_bytes: u16,
    kind: u8,
    source: u8,
    derivation: u8,
    has_addr: u8,
    has_phys: u8,
    in_kernel: u8,
    region: u32,
    reserved: u32,
}

impl From<&Sample> for CSample {
    fn from(s: &Sample) -> CSample {
        CSample {
            time_ns: s.time_ns,
            ip: s.ip.0,
            addr: s.addr.map_or(0, |a| a.0),
            phys: s.phys.map_or(0, |a| a.0),
            period: s.period,
            stands_for: s.stands_for,
            data_src: s.data_src,
            pid: s.pid.0,
            tid: s.tid.0,
            cpu: s.cpu.0,
            latency_cycles: s.latency_cycles,
            size_bytes: s.size_bytes,
            kind: s.kind as u8,
            source: s.source as u8,
            derivation: s.derivation.map_or(0, |d| d as u8),
            has_addr: s.addr.is_some().into(),
            has_phys: s.phys.is_some().into(),
            in_kernel: s.in_kernel.into(),
            region: s.region.map_or(0, |region| region.0.into()),
            reserved: 0,
        }
    }
}

/// `struct memgauge_statistics`.
#[repr(C)]
pub struct CStatistics {
    pid: u32,
    tid: u32,
    state: u32,
    reserved: u32,
    samples: u64,
    kernel_samples: u64,
    memory_samples: u64,
    delivered: u64,
    waiting: u64,
    overwritten: u64,
    refused: u64,
    lost: u64,
    unwanted: u64,
    throttled: u64,
    stands_for: u64,
    counted: u64,
    period: u64,
    buffer: u64,
    processor_ns: u64,
    own_ns: u64,
    changes: u64,
}

impl From<&Statistics> for CStatistics {
    fn from(s: &Statistics) -> CStatistics {
        CStatistics {
            pid: s.pid,
            tid: s.tid,
            state: match s.state {
                ThreadState::Started => 0,
                ThreadState::Stopped => 1,
                ThreadState::Ended => 2,
                ThreadState::Deleted => 3,
            },
            reserved: 0,
            samples: s.samples,
            kernel_samples: s.kernel_samples,
            memory_samples: s.memory_samples,
            delivered: s.account.delivered,
            waiting: s.account.waiting,
            overwritten: s.account.overwritten,
            refused: s.refused,
            lost: s.lost,
            unwanted: s.unwanted,
            throttled: s.throttled,
            stands_for: s.stands_for,
            counted: s.counted,
            period: s.period,
            buffer: s.buffer,
            processor_ns: s.processor_ns,
            own_ns: s.own_ns,
            changes: s.changes,
        }
    }
}

// `tests/examples.rs` checks the same with a C compiler.
const _: () = assert!(size_of::<CSettings>() == 64);
const _: () = assert!(size_of::<CSample>() == 88);
const _: () = assert!(std::mem::offset_of!(CSample, in_kernel) == 79);
const _: () = assert!(size_of::<CStatistics>() == 152);
