//! Outcome of one access.

use memgauge_trace::DataSource;

/// Millicycles that the core stalled for an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalled {
    /// Latency of the level that delivered the line; of the farthest, [`Outcome::source`], if
    /// the access touched several lines.
    pub latency: u64,
    /// Time in the queue to memory beyond that latency.
    pub queue: u64,
    /// Address translation.
    pub translation: u64,
    /// Stores and writebacks that filled the way to memory.
    pub stores: u64,
}

impl Stalled {
    /// Takes back what was not waited for after all: of lines first, then of translation.
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

    /// All of it.
    #[inline]
    pub fn sum(&self) -> u64 {
        self.latency + self.queue + self.translation + self.stores
    }
}

/// What an access met of other cores' copies of its line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing(u8);

impl Sharing {
    /// Another core held the line modified.
    pub const HITM: Sharing = Sharing(1);
    /// Other cores lost their copies.
    pub const INVALIDATES: Sharing = Sharing(2);
    /// A miss of a line lost to another core's store.
    pub const REGAINS: Sharing = Sharing(4);
    /// The first access to bytes that others have stored to a line regained in this turn, maybe by
    /// the access that missed. Without one by [`Core::end_turn`](crate::Core::end_turn), it was false
    /// sharing.
    pub const TRUE: Sharing = Sharing(8);

    pub(crate) fn add(&mut self, other: Sharing) {
        self.0 |= other.0;
    }

    /// Whether it has all of `other`.
    #[inline]
    pub fn has(self, other: Sharing) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether no other core had a part in it.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Events that [`Core::access`](crate::Core::access) counted for one access, so that
/// they can be charged to the instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
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
    /// Whether counter overflows wait to be taken.
    pub overflow: bool,
    /// Bytes read from memory, by the access and the prefetches it set off.
    pub dram_read_bytes: u32,
    /// Bytes of dirty lines written to memory because of it.
    pub dram_write_bytes: u32,
    /// Cycles to the data of the slowest line, translation and queueing
    /// included, whether or not the core waited for them.
    pub latency_cycles: u32,
    /// Time that the core waited for it.
    pub stalled: Stalled,
    /// Other cores' part in it.
    pub sharing: Sharing,
}

impl Outcome {
    /// Whether it was a plain first-level hit, with nothing to charge.
    #[inline]
    pub fn is_plain_hit(&self) -> bool {
        self.l1d_misses == 0 && self.dtlb_misses == 0 && self.sharing.is_none()
    }
}
