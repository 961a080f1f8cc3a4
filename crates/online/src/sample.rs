//! A sample as readers get it, and its packed form in the ring.

use memgauge_live::sampling::DecodedSample;
use memgauge_trace::{
    self as trace, AccessKind, Cpu, DataSource, Derivation, PhysAddr, Pid, Tid, VirtAddr,
};

use crate::procfs::ThreadIds;
use crate::roi::RegionId;

/// Number of words of a sample in the ring.
pub(crate) const WORDS: usize = 10;

/// A sample of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Time in nanoseconds of `CLOCK_MONOTONIC`. For PEBS and IBS records: of the kernel's own
    /// clock, which can differ. For a modelled machine: of virtual time.
    pub time_ns: u64,
    /// Process ID.
    pub pid: Pid,
    /// Thread ID.
    pub tid: Tid,
    /// CPU.
    pub cpu: Cpu,
    /// Address of the instruction.
    pub ip: VirtAddr,
    /// Data address, if the event reports one or it could be derived.
    pub addr: Option<VirtAddr>,
    /// Physical data address.
    pub phys: Option<PhysAddr>,
    /// Read, write, or both.
    pub kind: AccessKind,
    /// Bytes accessed; 0 if unknown.
    pub size_bytes: u16,
    /// Level that delivered the data.
    pub source: DataSource,
    /// Cycles until the data arrived; 0 if unknown.
    pub latency_cycles: u32,
    /// How the address was derived. `None` if the event reported it or there is none.
    pub derivation: Option<Derivation>,
    /// Whether the sample was taken in the kernel.
    pub in_kernel: bool,
    /// Period when the sample was taken.
    pub period: u64,
    /// Number of events that it stands for. For a timer, the time counted since the previous
    /// sample.
    pub stands_for: u64,
    /// Data source in the kernel's encoding (`perf_mem_data_src`); 0 if unknown.
    pub data_src: u64,
    /// Regions of interest that the thread was in.
    pub region: Option<RegionId>,
}

const HAS_ADDR: u64 = 1;
const HAS_PHYS: u64 = 2;
const IN_KERNEL: u64 = 4;
/// Position of the region in the word with the small fields.
const REGION_SHIFT: u32 = 48;

impl Sample {
    pub(crate) fn from_decoded(sample: &DecodedSample<'_>) -> Sample {
        Sample {
            in_kernel: !sample.user,
            stands_for: sample.stands_for,
            data_src: sample.data_src,
            region: None,
            ..Sample::from_row(sample.row, 0)
        }
    }

    /// Creates a sample from a source whose rows have all fields.
    pub(crate) fn from_row(row: &trace::Sample, region: u16) -> Sample {
        Sample {
            time_ns: row.time_ns,
            pid: row.pid,
            tid: row.tid,
            cpu: row.cpu.unwrap_or_default(),
            ip: row.ip,
            addr: row.addr,
            phys: row.phys,
            kind: row.kind,
            size_bytes: row.size_bytes,
            source: row.source,
            latency_cycles: row.latency_cycles,
            derivation: row.derivation,
            in_kernel: false,
            period: row.period,
            stands_for: row.period,
            data_src: 0,
            region: RegionId::from_number(region),
        }
    }

    /// Sets the region of a packed sample. `region` returns it for the thread and time of the
    /// sample.
    pub(crate) fn set_region(words: &mut [u64; WORDS], region: impl FnOnce(ThreadIds, u64) -> u16) {
        let ids = ThreadIds {
            pid: words[4] as u32,
            tid: (words[4] >> 32) as u32,
        };
        let number = region(ids, words[0]);
        words[8] = words[8] & !(0xffff << REGION_SHIFT) | u64::from(number) << REGION_SHIFT;
    }

    pub(crate) fn packed(&self) -> [u64; WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let set = |on: bool, bit: u64| if on { bit } else { 0 };
        let flags = set(self.addr.is_some(), HAS_ADDR)
            | set(self.phys.is_some(), HAS_PHYS)
            | set(self.in_kernel, IN_KERNEL);
        let derivation = self.derivation.map_or(0, |d| d as u64);
        [
            self.time_ns,
            self.ip.0,
            self.addr.map_or(0, |a| a.0),
            self.phys.map_or(0, |a| a.0),
            pair(self.pid.0, self.tid.0),
            pair(self.cpu.0, self.latency_cycles),
            self.period,
            self.stands_for,
            self.kind as u64
                | (self.source as u64) << 8
                | derivation << 16
                | flags << 24
                | u64::from(self.size_bytes) << 32
                | u64::from(self.region.map_or(0, |region| region.0)) << REGION_SHIFT,
            self.data_src,
        ]
    }

    pub(crate) fn unpacked(words: &[u64; WORDS]) -> Sample {
        let small = words[8];
        let flags = small >> 24 & 0xff;
        let has = |bit| flags & bit != 0;
        Sample {
            time_ns: words[0],
            ip: VirtAddr(words[1]),
            addr: has(HAS_ADDR).then_some(VirtAddr(words[2])),
            phys: has(HAS_PHYS).then_some(PhysAddr(words[3])),
            pid: Pid(words[4] as u32),
            tid: Tid((words[4] >> 32) as u32),
            cpu: Cpu(words[5] as u32),
            latency_cycles: (words[5] >> 32) as u32,
            period: words[6],
            stands_for: words[7],
            kind: AccessKind::from_code(small & 0xff),
            source: DataSource::from_code(small >> 8 & 0xff),
            derivation: Derivation::from_code(small >> 16 & 0xff),
            in_kernel: has(IN_KERNEL),
            size_bytes: (small >> 32) as u16,
            data_src: words[9],
            region: RegionId::from_number((small >> REGION_SHIFT) as u16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_sample_is_unpacked_unchanged() {
        let full = Sample {
            time_ns: u64::MAX - 1,
            pid: Pid(u32::MAX - 2),
            tid: Tid(77),
            cpu: Cpu(511),
            ip: VirtAddr(0xffff_8000_0000_1234),
            addr: Some(VirtAddr(0)),
            phys: Some(PhysAddr(u64::MAX)),
            kind: AccessKind::Modify,
            size_bytes: u16::MAX,
            source: DataSource::RemoteDram,
            latency_cycles: u32::MAX,
            derivation: Some(Derivation::Next),
            in_kernel: true,
            period: 1_000_003,
            stands_for: u64::MAX,
            data_src: 1 << 63 | 5,
            region: Some(RegionId(u16::MAX)),
        };
        for sample in [full, Sample::default()] {
            assert_eq!(Sample::unpacked(&sample.packed()), sample);
        }
        let mut words = full.packed();
        Sample::set_region(&mut words, |ids, time_ns| {
            let expected = ThreadIds {
                pid: u32::MAX - 2,
                tid: 77,
            };
            assert_eq!((ids, time_ns), (expected, u64::MAX - 1));
            7
        });
        let expected = Sample {
            region: Some(RegionId(7)),
            ..full
        };
        assert_eq!(Sample::unpacked(&words), expected);
    }
}
