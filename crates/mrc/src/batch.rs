//! Batches, which travel from one stage of the engine to the next.
//!
//! Every stage accesses memory at random, so it works on a whole batch. The cache lines of a
//! batch are prefetched before the first of them is needed.

/// References in a batch: enough to hide a miss of the host's memory, few
/// enough that two batches' lines fit into its first-level cache.
pub(super) const BATCH: usize = 64;

/// Stands for a missing time: of a block at its first reference, or of an empty seat.
pub(super) const NEVER: u32 = u32::MAX;

/// References to blocks that were not at the top of the stack.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) len: usize,
    pub(super) blocks: [u64; BATCH],
    /// Seat that each block takes at the top of the stack, evicting the block in it.
    pub(super) seats: [u8; BATCH],
    /// Position of each block in the table: line, and place within the line.
    pub(super) lines: [u32; BATCH],
    pub(super) places: [u8; BATCH],
    /// References not found in their home lines, one bit each.
    pub(super) elsewhere: u64,
    /// Time of the block's previous eviction from the top; [`NEVER`] at its first reference.
    pub(super) previous: [u32; BATCH],
    /// Time of eviction that each reference stores in the table.
    pub(super) pushed: [u32; BATCH],
}

/// A batch after the table look-up: the fields that the last stages need.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookedUpBatch {
    pub(super) len: usize,
    /// Time of the block's previous eviction from the top; [`NEVER`] at its first reference.
    pub(super) previous: [u32; BATCH],
    /// Number of references that evict a block from the top, and the time of the first
    /// eviction. These are the last references of the batch. Earlier ones took empty seats.
    pub(super) pushes: usize,
    pub(super) first_pushed: u32,
}

impl LookedUpBatch {
    pub(super) const EMPTY: LookedUpBatch = LookedUpBatch {
        len: 0,
        previous: [0; BATCH],
        pushes: 0,
        first_pushed: 0,
    };
}

/// Returns the positions of the set bits, in ascending order.
#[inline(always)]
pub(super) fn positions(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        at
    })
}

impl Batch {
    pub(super) fn empty() -> Box<Batch> {
        Box::new(Batch {
            len: 0,
            blocks: [0; BATCH],
            seats: [0; BATCH],
            lines: [0; BATCH],
            places: [0; BATCH],
            elsewhere: 0,
            previous: [0; BATCH],
            pushed: [0; BATCH],
        })
    }

    #[inline(always)]
    pub(super) fn push(&mut self, block: u64, seat: u8) {
        self.blocks[self.len] = block;
        self.seats[self.len] = seat;
        self.len += 1;
    }
}
