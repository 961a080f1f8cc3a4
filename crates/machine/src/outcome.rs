//! Outcome of one access.

use memgauge_trace::DataSource;

/// Millicycles that the core stalled for an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalled {
    /// Latency of the level that delivered the line, or of the farthest one
    /// ([`AccessOutcome::source`]) if the access touched several lines.
    pub latency: u64,
    /// Time in the memory queue beyond that latency.
    pub queue: u64,
    /// Address translation.
    pub translation: u64,
    /// Stores and writebacks that filled the memory queue.
    pub stores: u64,
}

impl Stalled {
    /// Subtracts time that the core did not wait after all: first for lines, then for translation.
    pub(crate) fn take_back(&mut self, mut millicycles: u64) {
        for part in [
            &mut self.latency,
            &mut self.queue,
            &mut self.stores,
            &mut self.translation,
        ] {
            let taken = millicycles.min(*part);
            *part -= taken;
            millicycles -= taken;
        }
    }

    /// Returns the sum.
    #[inline]
    pub fn sum(&self) -> u64 {
        self.latency + self.queue + self.translation + self.stores
    }

    /// Returns true if the core did not stall.
    // Faster than comparing the sum, for which the host waits until narrow stores reach its cache.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.latency == 0 && self.queue == 0 && self.translation == 0 && self.stores == 0
    }
}

/// Interaction of an access with other cores' copies of its line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineSharing(u8);

impl LineSharing {
    /// Another core held the line modified.
    pub const HITM: LineSharing = LineSharing(1);
    /// Other cores lost their copies.
    pub const INVALIDATES: LineSharing = LineSharing(2);
    /// A miss of a line lost to another core's store.
    pub const REGAINS: LineSharing = LineSharing(4);
    /// The first access to bytes that others have stored to a line regained in this turn, possibly
    /// by the access that missed. If there is none by [`Core::end_turn`](crate::Core::end_turn), it
    /// was false sharing.
    pub const TRUE: LineSharing = LineSharing(8);

    pub(crate) fn add(&mut self, other: LineSharing) {
        self.0 |= other.0;
    }

    /// Returns true if it has all of `other`.
    #[inline]
    pub fn has(self, other: LineSharing) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if no other core was involved.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Events that [`Core::access`](crate::Core::access) counted for an access, so that they can be
/// charged to the instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AccessOutcome {
    /// Lines that missed the first level.
    pub l1d_misses: u16,
    /// Lines that missed the second level.
    pub l2_misses: u16,
    /// Lines that came from memory.
    pub llc_misses: u16,
    /// Pages that missed the first-level TLB.
    pub dtlb_misses: u16,
    /// Pages that missed both TLB levels.
    pub walks: u16,
    /// The farthest level that delivered one of the lines.
    pub source: DataSource,
    /// True if counter overflows are pending.
    pub overflow: bool,
    /// Bytes read from memory by the access and by the prefetches that it triggered.
    pub dram_read_bytes: u32,
    /// Bytes of dirty lines written to memory because of it.
    pub dram_write_bytes: u32,
    /// Cycles to the data of the slowest line, including translation and queueing, whether or not
    /// the core waited for them.
    pub latency_cycles: u32,
    /// Time for which the core waited.
    pub stalled: Stalled,
    /// Interaction with other cores.
    pub sharing: LineSharing,
    /// True if a line hit that [`Core::report_first_use`](crate::Core::report_first_use) named.
    pub first_use: bool,
}

impl AccessOutcome {
    /// Returns true if bytes were read from or written to memory.
    #[inline]
    pub fn has_traffic(&self) -> bool {
        self.dram_read_bytes | self.dram_write_bytes != 0
    }

    /// Returns true if it was a plain first-level hit, with nothing to charge or report.
    #[inline]
    pub fn is_plain_hit(&self) -> bool {
        self.l1d_misses == 0 && self.dtlb_misses == 0 && self.sharing.is_none() && !self.first_use
    }
}
