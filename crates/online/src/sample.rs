//! A sample as readers get it, and as the ring holds it.

use memgauge_live::sample::attached::Taken;
use memgauge_trace::{
    self as trace, AccessKind, Cpu, DataSource, Derivation, PhysAddr, Pid, Tid, VirtAddr,
};

use crate::regions::RegionId;

/// Words of a sample in the ring.
pub(crate) const WORDS: usize = 10;

/// A sample of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When it was taken, nanoseconds of `CLOCK_MONOTONIC` (of events that the processor
    /// writes down by itself: of the kernel's own clock, which may lie apart; of a modelled
    /// machine: of virtual time).
    pub time_ns: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Processor.
    pub cpu: Cpu,
    /// Instruction.
    pub ip: VirtAddr,
    /// Data address, where the event told it or it could be rebuilt.
    pub addr: Option<VirtAddr>,
    /// Physical data address.
    pub phys: Option<PhysAddr>,
    /// Read, written, or both.
    pub kind: AccessKind,
    /// Bytes accessed; 0 where unknown.
    pub size_bytes: u16,
    /// Level that delivered the data.
    pub source: DataSource,
    /// Cycles until the data arrived; 0 where unknown.
    pub latency_cycles: u32,
    /// How the address was found; `None` where the event told it or there is none.
    pub derivation: Option<Derivation>,
    /// Whether it was taken in the kernel.
    pub in_kernel: bool,
    /// The period that was set when it was taken.
    pub period: u64,
    /// Events that it stands for: of a timer what it really counted since the sample
    /// before.
    pub stands_for: u64,
    /// Data source as the kernel packs it (`perf_mem_data_src`); 0 where not told.
    pub data_src: u64,
    /// Regions of interest that the thread was in.
    pub region: Option<RegionId>,
}

const HAS_ADDR: u64 = 1;
const HAS_PHYS: u64 = 2;
const IN_KERNEL: u64 = 4;
/// Of the word that holds the small fields.
const REGION_SHIFT: u32 = 48;

impl Sample {
    pub(crate) fn of(taken: &Taken<'_>) -> Sample {
        Sample {
            in_kernel: !taken.user,
            stands_for: taken.stands_for,
            data_src: taken.data_src,
            region: None,
            ..Sample::of_row(taken.row, 0)
        }
    }

    /// Of a source whose rows say all.
    pub(crate) fn of_row(row: &trace::Sample, region: u16) -> Sample {
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
            region: RegionId::of(region),
        }
    }

    /// Gives a sample that is packed already its regions, by what tells when and in
    /// which thread it was taken.
    pub(crate) fn set_region(
        words: &mut [u64; WORDS],
        region: impl FnOnce((u32, u32), u64) -> u16,
    ) {
        let ids = (words[4] as u32, (words[4] >> 32) as u32);
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
            region: RegionId::of((small >> REGION_SHIFT) as u16),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_comes_out_of_the_ring_as_it_went_in() {
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
        Sample::set_region(&mut words, |(pid, tid), time_ns| {
            assert_eq!((pid, tid, time_ns), (u32::MAX - 2, 77, u64::MAX - 1));
            7
        });
        let expected = Sample {
            region: Some(RegionId(7)),
            ..full
        };
        assert_eq!(Sample::unpacked(&words), expected);
    }
}
