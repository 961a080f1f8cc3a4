//! Ranks of times: the number of blocks whose last eviction is after a given time, which gives the
//! stack distance.
//!
//! Time is a sequence of slots, one bit each. A cache line contains 448 slots and, for each of its
//! words, the number of set slots before that word:
//!
//! ```text
//!  word 0   word 1  …  word 6   word 7
//! ┌────────┬────────┬─┬────────┬───────────────────────────────────────┐
//! │ slots  │ slots  │…│ slots  │ 9 bits each: ones before word 0, 1 … 6 │
//! │ 0–63   │ 64–127 │ │ 384–447│ (word 0's field is always 0)           │
//! └────────┴────────┴─┴────────┴───────────────────────────────────────┘
//! ```
//!
//! There are 512 slot numbers per line; the last 64 are unused. Three levels of counters cover the
//! lines. Each entry is the number of set slots before it within its group: of 2¹⁴ slots (16 bits),
//! of 2¹⁸ slots (32 bits), and of all slots.
//!
//! All slots of a batch are set first, then all references are ranked against the same bits, then
//! the old slots are cleared. Comparing the slots of the batch with each other corrects for those
//! that an earlier reference of the batch would have cleared. Therefore no rank waits for counters
//! that the previous one decremented, and the highest level is visited once per batch.
//!
//! Rejected: a Fenwick tree, because it is a chain of dependent cache misses and needs ten times
//! the memory. Rejected: clearing each slot before the next is ranked, because each rank then
//! depends on counters of every level (this stage, on a thread of its own, took 1.15 times as
//! long).

use super::pages::{Advise, HostLines};
use super::sys::{HostLine, Operations, fetch_early};

/// log2 of the slot numbers per line.
const LINE_SHIFT: u32 = 9;
/// Number of slots per line.
const SLOTS_PER_LINE: u32 = 448;
/// log2 of the slot numbers per group of the two lower levels of counters.
const NEAR_SHIFT: u32 = 14;
const MIDDLE_SHIFT: u32 = 18;

/// For each word, the increment of a line's counts when a slot of that word is set.
const STEPS: [u64; 8] = steps();

const fn steps() -> [u64; 8] {
    let mut steps = [0; 8];
    let mut word = 6;
    while word > 0 {
        word -= 1;
        steps[word] = steps[word + 1] | 1 << (9 * (word + 1));
    }
    steps
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct NearCounts([u16; 32]);

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct MiddleCounts([u32; 16]);

/// Returns the number of the `index`-th slot.
pub(super) fn nth_slot(index: u32) -> u32 {
    index / SLOTS_PER_LINE * (1 << LINE_SHIFT) + index % SLOTS_PER_LINE
}

/// Returns the number of the next slot.
#[inline(always)]
pub(super) fn next_slot(slot: u32) -> u32 {
    let skip = (1 << LINE_SHIFT) - SLOTS_PER_LINE;
    slot + 1
        + if slot % (1 << LINE_SHIFT) == SLOTS_PER_LINE - 1 {
            skip
        } else {
            0
        }
}

#[derive(Debug, Default)]
pub(super) struct Ranks {
    lines: HostLines,
    near: Vec<NearCounts>,
    middle: Vec<MiddleCounts>,
    /// Number of set slots before each group of the middle level.
    far: Vec<u32>,
    /// Number of slots in each middle group that the current batch clears.
    cleared: Vec<u32>,
    live: u32,
}

impl Ranks {
    /// Creates ranks for slot numbers in `0..window`. The first `live` slots are set.
    pub(super) fn new(window: u32, live: u32, advise: Option<Advise>) -> Ranks {
        let groups = |shift: u32| (window >> shift) as usize + 1;
        let mut ranks = Ranks {
            lines: HostLines::zeroed((window >> LINE_SHIFT) as usize + 1, advise),
            near: vec![NearCounts([0; 32]); groups(NEAR_SHIFT)],
            middle: vec![MiddleCounts([0; 16]); groups(MIDDLE_SHIFT)],
            far: vec![0; groups(MIDDLE_SHIFT)],
            cleared: vec![0; groups(MIDDLE_SHIFT)],
            live: 0,
        };
        ranks.push(0, live);
        ranks
    }

    /// Number of set slots.
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<HostLine>()
    }

    /// Sets `count` slots from `first` on and returns the next slot. Slots must be set in ascending
    /// order without gaps.
    #[inline(always)]
    pub(super) fn push(&mut self, first: u32, count: u32) -> u32 {
        let (mut slot, mut left) = (first, count);
        while left > 0 {
            if slot.is_multiple_of(1 << LINE_SHIFT) {
                self.begin_line(slot);
            }
            let bits = left.min(64 - slot % 64);
            let line = &mut self.lines.get_mut()[(slot >> LINE_SHIFT) as usize];
            let word = (slot >> 6) as usize % 8;
            line[word] |= (u64::MAX >> (64 - bits)) << (slot % 64);
            line[7] += STEPS[word] * u64::from(bits);
            self.live += bits;
            left -= bits;
            slot = next_slot(slot + bits - 1);
        }
        slot
    }

    /// Initialises the counters that start at the line of this slot.
    fn begin_line(&mut self, slot: u32) {
        let middle = (slot >> MIDDLE_SHIFT) as usize;
        if slot.is_multiple_of(1 << MIDDLE_SHIFT) {
            self.far[middle] = self.live;
        }
        let mut before = self.live - self.far[middle];
        let count = &mut self.middle[middle].0[(slot >> NEAR_SHIFT) as usize % 16];
        if slot.is_multiple_of(1 << NEAR_SHIFT) {
            *count = before;
        }
        before -= *count;
        self.near[(slot >> NEAR_SHIFT) as usize].0[(slot >> LINE_SHIFT) as usize % 32] =
            before as u16;
    }

    /// Prefetches the data that [`Ranks::before`] needs for this slot.
    #[inline(always)]
    pub(super) fn fetch_early(&self, slot: u32) {
        if let Some(line) = self.lines.get().get((slot >> LINE_SHIFT) as usize) {
            fetch_early(line);
            fetch_early(&self.near[(slot >> NEAR_SHIFT) as usize]);
        }
    }

    /// Number of set slots before this one.
    #[inline(always)]
    pub(super) fn before(&self, slot: u32) -> u32 {
        let line = &self.lines.get()[(slot >> LINE_SHIFT) as usize];
        let word = (slot >> 6) as usize % 8;
        let in_word = (line[word] & ((1 << (slot % 64)) - 1)).count_ones();
        let in_line = (line[7] >> (9 * word)) as u32 % (1 << 9);
        let near = self.near[(slot >> NEAR_SHIFT) as usize].0[(slot >> LINE_SHIFT) as usize % 32];
        let middle = (slot >> MIDDLE_SHIFT) as usize;
        let in_middle = self.middle[middle].0[(slot >> NEAR_SHIFT) as usize % 16];
        self.far[middle] + in_middle + u32::from(near) + in_line + in_word
    }

    /// Clears `count` set slots of one word, from `slot` on. The counts are valid again after
    /// [`Ranks::apply_clears`].
    #[inline(always)]
    pub(super) fn clear<O: Operations>(&mut self, slot: u32, count: u32) {
        let line = &mut self.lines.get_mut()[(slot >> LINE_SHIFT) as usize];
        let word = (slot >> 6) as usize % 8;
        line[word] &= !((u64::MAX >> (64 - count)) << (slot % 64));
        line[7] -= STEPS[word] * u64::from(count);
        let entry = |shift: u32, entries: u32| (slot >> shift) as usize % entries as usize + 1;
        let near = &mut self.near[(slot >> NEAR_SHIFT) as usize].0;
        O::subtract_u16(near, entry(LINE_SHIFT, 32), count as u16);
        let middle = (slot >> MIDDLE_SHIFT) as usize;
        O::subtract_u32(&mut self.middle[middle].0, entry(NEAR_SHIFT, 16), count);
        self.cleared[middle] += count;
    }

    /// Decrements the highest level of counters by the cleared slots. All set slots are below
    /// `end`.
    #[inline(always)]
    pub(super) fn apply_clears(&mut self, end: u32) {
        let used = (end >> MIDDLE_SHIFT) as usize + 1;
        let mut before = 0;
        for (count, cleared) in self.far.iter_mut().zip(&mut self.cleared).take(used) {
            *count = count.wrapping_sub(before);
            before += std::mem::take(cleared);
        }
        self.live -= before;
    }
}
