//! Which of the times that blocks were pushed at are still their last, and how
//! many of those come after a given one: the stack distance.
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
//! Slot numbers count 512 a line; the last 64 do not exist. Above the lines are
//! four levels of counters, each entry the number of ones before it within its
//! group; clearing a slot lowers all later entries of its groups, one vector
//! operation a level. Levels above cover 2¹⁴ (16 bits), 2¹⁸, 2²² and 2²⁶ slots
//! (32 bits), and beyond there is one counter for each 2²⁶.
//!
//! Rejected: a Fenwick tree, a chain of dependent cache misses with ten times the
//! memory. Not tried: ranking a batch against the bits before it, with corrections
//! within the batch.

use super::pages::{Advise, Lines};
use super::sys::{Line, Operations, fetch_early};

/// log2 of the slot numbers in a line.
const LINE: u32 = 9;
/// Slots in a line.
const SLOTS: u32 = 448;
/// log2 of the slot numbers under an entry of each level of counters.
const NEAR: u32 = 14;
const MIDDLE: u32 = 18;
const FAR: u32 = 22;
const FARTHEST: u32 = 26;

/// What a slot of each word adds to the counts of a line.
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
    far: Vec<Group>,
    farthest: Vec<Group>,
    beyond: Vec<u32>,
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
            far: vec![Group([0; 16]); groups(FAR)],
            farthest: vec![Group([0; 16]); groups(FARTHEST)],
            beyond: vec![0; groups(FARTHEST)],
            live: 0,
        };
        (0..live).for_each(|number| ranks.push(slot(number)));
        ranks
    }

    /// Slots set.
    pub(super) fn live(&self) -> u32 {
        self.live
    }

    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// Sets a slot; slots are set in their order, none left out.
    #[inline(always)]
    pub(super) fn push(&mut self, slot: u32) {
        if slot.is_multiple_of(1 << LINE) {
            self.begin_line(slot);
        }
        let line = &mut self.lines.get_mut()[(slot >> LINE) as usize];
        let word = (slot >> 6) as usize % 8;
        line[word] |= 1 << (slot % 64);
        line[7] += STEPS[word];
        self.live += 1;
    }

    /// Enters how many are set before a line into the counters it begins.
    fn begin_line(&mut self, slot: u32) {
        let beyond = (slot >> FARTHEST) as usize;
        if slot.is_multiple_of(1 << FARTHEST) {
            self.beyond[beyond] = self.live;
        }
        let mut before = self.live - self.beyond[beyond];
        let levels = [
            (&mut self.farthest, FAR, FARTHEST),
            (&mut self.far, MIDDLE, FAR),
            (&mut self.middle, NEAR, MIDDLE),
        ];
        for (groups, entry, group) in levels {
            let count = &mut groups[(slot >> group) as usize].0[(slot >> entry) as usize % 16];
            if slot.is_multiple_of(1 << entry) {
                *count = before;
            }
            before -= *count;
        }
        self.near[(slot >> NEAR) as usize].0[(slot >> LINE) as usize % 32] = before as u16;
    }

    /// Asks for what [`Ranks::take`] of this slot will need.
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
        let group = |groups: &[Group], entry: u32, group: u32| {
            groups[(slot >> group) as usize].0[(slot >> entry) as usize % 16]
        };
        let near = self.near[(slot >> NEAR) as usize].0[(slot >> LINE) as usize % 32];
        let above = group(&self.middle, NEAR, MIDDLE)
            + group(&self.far, MIDDLE, FAR)
            + group(&self.farthest, FAR, FARTHEST);
        self.beyond[(slot >> FARTHEST) as usize] + above + u32::from(near) + in_line + in_word
    }

    /// Clears a slot that is set; returns how many after it are.
    #[inline(always)]
    pub(super) fn take<O: Operations>(&mut self, slot: u32) -> u32 {
        let after = self.live - self.before(slot) - 1;
        self.live -= 1;
        let line = &mut self.lines.get_mut()[(slot >> LINE) as usize];
        let word = (slot >> 6) as usize % 8;
        line[word] &= !(1 << (slot % 64));
        line[7] -= STEPS[word];
        let entry = |shift: u32, entries: u32| (slot >> shift) as usize % entries as usize + 1;
        let near = &mut self.near[(slot >> NEAR) as usize].0;
        O::less_one_u16(near, entry(LINE, 32));
        let middle = &mut self.middle[(slot >> MIDDLE) as usize].0;
        O::less_one_u32(middle, entry(NEAR, 16));
        let far = &mut self.far[(slot >> FAR) as usize].0;
        O::less_one_u32(far, entry(MIDDLE, 16));
        let farthest = &mut self.farthest[(slot >> FARTHEST) as usize].0;
        O::less_one_u32(farthest, entry(FAR, 16));
        for count in &mut self.beyond[(slot >> FARTHEST) as usize + 1..] {
            *count = count.wrapping_sub(1);
        }
        after
    }
}
