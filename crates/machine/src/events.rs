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
    STALL_REGULAR STALL_WRITEBACKS STALL_TLB
}

/// Events that divide the stalled time by its cause. Their sum is the stalled time, up to a cycle
/// each for rounding.
pub(crate) const STALLS: [usize; 4] = [STALL_IRREGULAR, STALL_REGULAR, STALL_WRITEBACKS, STALL_TLB];

/// Whether the event happens at an access (rather than when a block retires),
/// so that its overflow can name the access.
pub(crate) fn is_memory(event: EventId) -> bool {
    !matches!(
        usize::from(event.0),
        INSTRUCTIONS | CYCLES | LOADS | STORES | MODIFIES | L1D_HIT
    )
}
