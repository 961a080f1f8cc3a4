//! Ranks of times: how many of the times that blocks were last pushed at come after a
//! given one, which is the stack distance.
//!
//! Time is a sequence of slots, one bit each. A cache line holds 448 of them and
//! how many are set before each of its words:
//!
//! ```text
//!  word 0   word 1  …  word 6   word 7
//! ┌────────┬────────┬─┬────────┬───────────────────────────────────────┐
//! │ slots  │ slots  │…│ slots  │ 9 bits each: ones before word 0, 1 … 6 │
//! │ 0–63   │ 64–127 │ │ 384–447│ (word 0's field is always 0)           │
//! └────────┴────────┴─┴────────┴───────────────────────────────────────┘
//! ```
//!
//! Slot numbers count 512 a line; the last 64 do not exist. Above the lines are three
//! levels of counters. Each entry is the number of ones before it within its group: of
//! 2¹⁴ slots (16 bits), of 2¹⁸ (32 bits), and of all.
//!
//! A batch's slots are set first, then all ranked against the same bits, then cleared.
//! Slots that the batch itself cleared before a reference are found by comparing its
//! slots with one another. So no rank waits for the counters that the previous one
//! lowered, and the highest level is gone through once a batch.
//!
//! Rejected: a Fenwick tree, a chain of dependent cache misses with ten times the
//! memory. Rejected: clearing each slot before the next is ranked, a chain through
//! every level (1.15 times the time of this stage, where it has a thread of its own).

use super::pages::{Advise, Lines};
use super::sys::{Line, Operations, fetch_early};

/// log2 of the slot numbers in a line.
const LINE: u32 = 9;
/// Slots in a line.
const SLOTS: u32 = 448;
/// log2 of the slot numbers in a group of each level of counters.
const NEAR: u32 = 14;
const MIDDLE: u32 = 18;

/// Increment of a line's counts by a slot of each word.
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
struct Near([u16; 32]);

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Group([u32; 16]);

/// The `number`-th slot's number.
pub(super) fn slot(number: u32) -> u32 {
    number / SLOTS * (1 << LINE) + number % SLOTS
}

/// The slot after one.
#[inline(always)]
pub(super) fn after(slot: u32) -> u32 {
    let skip = (1 << LINE) - SLOTS;
    slot + 1
        + if slot % (1 << LINE) == SLOTS - 1 {
            skip
        } else {
            0
        }
}

#[derive(Debug, Default)]
pub(super) struct Ranks {
    lines: Lines,
    near: Vec<Near>,
    middle: Vec<Group>,
    /// Slots set before each group of the middle level.
    far: Vec<u32>,
    /// Slots of each such group that the current batch clears.
    cleared: Vec<u32>,
    live: u32,
}

impl Ranks {
    /// Slot numbers `0..window`, of which the first `live` slots are set.
    pub(super) fn new(window: u32, live: u32, advise: Option<Advise>) -> Ranks {
        let groups = |shift: u32| (window >> shift) as usize + 1;
        let mut ranks = Ranks {
            lines: Lines::zeroed((window >> LINE) as usize + 1, advise),
            near: vec![Near([0; 32]); groups(NEAR)],
            middle: vec![Group([0; 16]); groups(MIDDLE)],
            far: vec![0; groups(MIDDLE)],
            cleared: vec![0; groups(MIDDLE)],
            live: 0,
        };
        ranks.push(0, live);
        ranks
    }

    /// Slots set.
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Sets so many slots from `first` on; slots are set in their order, none left out.
    /// Returns the slot after them.
    #[inline(always)]
    pub(super) fn push(&mut self, first: u32, count: u32) -> u32 {
        let (mut slot, mut left) = (first, count);
        while left > 0 {
            if slot.is_multiple_of(1 << LINE) {
                self.begin_line(slot);
            }
            let bits = left.min(64 - slot % 64);
            let line = &mut self.lines.get_mut()[(slot >> LINE) as usize];
            let word = (slot >> 6) as usize % 8;
            line[word] |= (u64::MAX >> (64 - bits)) << (slot % 64);
            line[7] += STEPS[word] * u64::from(bits);
            self.live += bits;
            left -= bits;
            slot = after(slot + bits - 1);
        }
        slot
    }

    /// Enters how many are set before a line into the counters it begins.
    fn begin_line(&mut self, slot: u32) {
        let middle = (slot >> MIDDLE) as usize;
        if slot.is_multiple_of(1 << MIDDLE) {
            self.far[middle] = self.live;
        }
        let mut before = self.live - self.far[middle];
        let count = &mut self.middle[middle].0[(slot >> NEAR) as usize % 16];
        if slot.is_multiple_of(1 << NEAR) {
            *count = before;
        }
        before -= *count;
        self.near[(slot >> NEAR) as usize].0[(slot >> LINE) as usize % 32] = before as u16;
    }

    /// Asks for what [`Ranks::before`] this slot will need.
    #[inline(always)]
    pub(super) fn fetch_early(&self, slot: u32) {
        if let Some(line) = self.lines.get().get((slot >> LINE) as usize) {
            fetch_early(line);
            fetch_early(&self.near[(slot >> NEAR) as usize]);
        }
    }

    /// How many slots before this one are set.
    #[inline(always)]
    pub(super) fn before(&self, slot: u32) -> u32 {
        let line = &self.lines.get()[(slot >> LINE) as usize];
        let word = (slot >> 6) as usize % 8;
        let in_word = (line[word] & ((1 << (slot % 64)) - 1)).count_ones();
        let in_line = (line[7] >> (9 * word)) as u32 % (1 << 9);
        let near = self.near[(slot >> NEAR) as usize].0[(slot >> LINE) as usize % 32];
        let middle = (slot >> MIDDLE) as usize;
        let in_middle = self.middle[middle].0[(slot >> NEAR) as usize % 16];
        self.far[middle] + in_middle + u32::from(near) + in_line + in_word
    }

    /// Clears slots that are set, all of one word: so many from this one on. Counts
    /// are right again after [`Ranks::settle`].
    #[inline(always)]
    pub(super) fn clear<O: Operations>(&mut self, slot: u32, count: u32) {
        let line = &mut self.lines.get_mut()[(slot >> LINE) as usize];
        let word = (slot >> 6) as usize % 8;
        line[word] &= !((u64::MAX >> (64 - count)) << (slot % 64));
        line[7] -= STEPS[word] * u64::from(count);
        let entry = |shift: u32, entries: u32| (slot >> shift) as usize % entries as usize + 1;
        let near = &mut self.near[(slot >> NEAR) as usize].0;
        O::less_u16(near, entry(LINE, 32), count as u16);
        let middle = (slot >> MIDDLE) as usize;
        O::less_u32(&mut self.middle[middle].0, entry(NEAR, 16), count);
        self.cleared[middle] += count;
    }

    /// Lowers the counts of all for what was cleared, below the slot `end`.
    #[inline(always)]
    pub(super) fn settle(&mut self, end: u32) {
        let used = (end >> MIDDLE) as usize + 1;
        let mut before = 0;
        for (count, cleared) in self.far.iter_mut().zip(&mut self.cleared).take(used) {
            *count = count.wrapping_sub(before);
            before += std::mem::take(cleared);
        }
        self.live -= before;
    }
}
