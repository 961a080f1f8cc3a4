//! Catalogue ids as array indices.

use memgauge_trace::{EventId, catalogue};

macro_rules! indices {
    ($($name:ident)+) => { $( pub(crate) const $name: usize = index(catalogue::$name); )+ };
}

const fn index(event: EventId) -> usize {
    event.0 as usize
}

indices! {
    INSTRUCTIONS CYCLES LOADS STORES SPLITS L1D_HIT L1D_MISS L1D_LOAD_MISS L1D_STORE_MISS L2_HIT
    L2_MISS LLC_HIT LLC_MISS DTLB_MISS STLB_HIT DTLB_WALK L1D_WRITEBACK L2_WRITEBACK LLC_WRITEBACK
    PREFETCHES PREFETCH_HITS DRAM_READ_BYTES DRAM_WRITE_BYTES MODIFIES STALL_IRREGULAR
    STALL_REGULAR STALL_WRITEBACKS STALL_TLB STALL_L2 STALL_LLC STALL_DRAM STALL_QUEUE STALL_STORES
    STALL_SHARING COHERENCE_HITM COHERENCE_UPGRADE COHERENCE_INVALIDATION COHERENCE_TRUE_SHARING
    COHERENCE_FALSE_SHARING L1D_CONFLICT
}

/// Events that count stalled time, consecutive from [`STALL_IRREGULAR`]. They form two groups, and
/// each adds up to the stalled time, except for at most one cycle of rounding per event. By cause:
/// irregular, regular, writebacks and TLB. By what the core waited for: TLB, L2, LLC, DRAM, queue,
/// stores and sharing. The first [`STALL_CAUSES`] are the causes.
pub(crate) const STALLS: [usize; 10] = [
    STALL_IRREGULAR,
    STALL_REGULAR,
    STALL_WRITEBACKS,
    STALL_TLB,
    STALL_L2,
    STALL_LLC,
    STALL_DRAM,
    STALL_QUEUE,
    STALL_STORES,
    STALL_SHARING,
];

/// Number of causes in [`STALLS`]. The last cause is address translation, which is in both groups.
pub(crate) const STALL_CAUSES: usize = 4;

/// Returns true if the event happens at an access, so that its overflow can name the access. Others
/// happen when a block retires.
pub(crate) fn is_memory(event: EventId) -> bool {
    !matches!(
        usize::from(event.0),
        INSTRUCTIONS | CYCLES | LOADS | STORES | MODIFIES | L1D_HIT
    )
}
