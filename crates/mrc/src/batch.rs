//! Batches, which travel from one stage of the engine to the next.
//!
//! Every stage touches memory at random, so each takes a whole batch. The cache lines
//! of a batch are asked for before the first of them is needed.

/// References in a batch: enough to hide a miss of the host's memory, few
/// enough that two batches' lines fit into its first-level cache.
pub(super) const BATCH: usize = 64;

/// No time: a block that was never referenced before, or a seat that was empty.
pub(super) const NEVER: u32 = u32::MAX;

/// References to blocks that were not at the top of the stack.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) len: usize,
    pub(super) blocks: [u64; BATCH],
    /// The seat each takes at the top of the stack, and whose holder it pushes out.
    pub(super) seats: [u8; BATCH],
    /// Where the table has the block: line and place.
    pub(super) lines: [u32; BATCH],
    pub(super) places: [u8; BATCH],
    /// References not found in their home lines, one bit each.
    pub(super) elsewhere: u64,
    /// When the block was pushed out before; [`NEVER`] at its first reference.
    pub(super) previous: [u32; BATCH],
    /// The time that a reference makes its table note.
    pub(super) pushed: [u32; BATCH],
}

/// All that the last stages need of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookedUpBatch {
    pub(super) len: usize,
    /// When the block was pushed out before; [`NEVER`] at its first reference.
    pub(super) previous: [u32; BATCH],
    /// References that push a block out of the top, and when the first of them does.
    /// They are the last ones: those before took empty seats.
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

/// Positions in a batch, by one bit each, in order.
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
