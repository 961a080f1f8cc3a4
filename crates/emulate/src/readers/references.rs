//! Converts a thread's words back to references.
//!
//! The modelled machine processes whole runs of accesses. A miss-ratio curve needs every single
//! reference in program order: first accesses come from the words, the others from the catalogue.
//! Malformed words are counted and skipped, as in the recorder.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use memgauge_trace::VirtAddr;

use crate::engine::catalogue::Catalogue;
use crate::engine::sync::{Before, MarkDependency, MarkKind, SyncMark};
use crate::engine::wire;
use crate::engine::words::{Special, load};

/// References of one thread in order.
#[derive(Debug, Default)]
pub(crate) struct ThreadReferences {
    /// Address of each, with the address space in the bits above user space.
    pub(crate) addresses: Vec<u64>,
    /// Indices and sizes of references that cross a multiple of the granule.
    pub(crate) crossing: Vec<(usize, u32)>,
    /// Code blocks and the references from which they apply, if requested.
    pub(crate) blocks: Vec<(usize, u32)>,
    /// Address of the instruction of each reference, if requested.
    pub(crate) ips: Vec<u64>,
    /// Marks of regions of interest.
    pub(crate) marks: Vec<MarkedPlace>,
    /// Marks of mappings and unmappings.
    pub(crate) mapped: Vec<MappedPlace>,
    pub(crate) instructions: u64,
    /// Number of the last synchronisation mark passed, or 0.
    pub(crate) passed: u64,
}

impl ThreadReferences {
    /// Clears the references. The count of instructions continues.
    pub(crate) fn clear(&mut self) {
        self.addresses.clear();
        self.crossing.clear();
        self.blocks.clear();
        self.ips.clear();
        self.marks.clear();
        self.mapped.clear();
        self.passed = 0;
    }
}

/// A mark of a region of interest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkedPlace {
    /// Number of references before it.
    pub(crate) at: usize,
    /// Word of the mark.
    pub(crate) mark: u64,
    /// Number of instructions before it.
    pub(crate) instructions: u64,
}

/// A thread mapped or unmapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedPlace {
    /// Number of references before it.
    pub(crate) at: usize,
    /// Size of the catalogue up to and including its record.
    pub(crate) bytes: u64,
}

/// State of a thread between two slices of words.
#[derive(Debug, Default)]
pub(crate) struct WalkState {
    /// The current block and the number of its next run.
    block: Option<(u32, usize)>,
    /// Position in a repeated rep instruction, if the last block ended in one.
    repeating: Option<VirtAddr>,
    /// Number of expected runs that did not arrive.
    pub(crate) missing: i64,
    /// Number of words that belong to no block.
    pub(crate) stray: u64,
}

/// True if a word is part of a synchronisation mark or a mark of a region of interest.
fn is_apart(word: u64) -> bool {
    let marks = [
        wire::MARK_SYNC,
        wire::MARK_SYNC_KIND,
        wire::MARK_SYNC_NS,
        wire::MARK_REGION,
        wire::MARK_VALUE_HIGH,
        wire::MARK_VALUE_LOW,
    ];
    marks.contains(&wire::mark(word))
}

pub(crate) struct ReferenceWalk<'a> {
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) place: &'a mut WalkState,
    pub(crate) out: &'a mut ThreadReferences,
    /// Bits of the address space, which are set in every address.
    pub(crate) space: u64,
    /// A power of two. References that cross a multiple of it are listed.
    pub(crate) granule: u64,
    /// List the block of each reference.
    pub(crate) by_block: bool,
    /// List the instruction of each reference.
    pub(crate) by_instruction: bool,
    /// Marks of other threads up to this number were read.
    pub(crate) granted: u64,
}

impl ReferenceWalk<'_> {
    /// Processes words from `words[at]` on. Returns the position where it stopped: at the end,
    /// where further words are needed, or at the returned mark, before which other threads must be
    /// read. With `whole`, no further words will arrive.
    pub(crate) fn run(
        &mut self,
        words: &[AtomicU64],
        mut at: usize,
        whole: bool,
    ) -> (usize, Option<MarkDependency>) {
        while let Some(word) = load(words, at) {
            let id = wire::id(word);
            let taken = if wire::is_other_line(word) {
                1 // the run's first word stands for all its accesses
            } else if id < wire::FIRST_BLOCK {
                self.further(word)
            } else if id < wire::MARKS {
                self.begin(id as u32, true);
                self.run_of_block(word)
            } else if is_apart(word) {
                if let Some(waits) = self.pass_mark(word, words, at) {
                    return (at, Some(waits));
                }
                1 // neither changes a reference
            } else {
                let Some(taken) = self.marked(word, &words[at + 1..], whole) else {
                    break;
                };
                taken
            };
            at += taken;
        }
        (at, None)
    }

    /// Processes a mark. Returns it if other threads must be read first: the threads that it waited
    /// for, or, if it maps memory, the threads that may have unmapped it.
    #[cold]
    fn pass_mark(
        &mut self,
        mark: u64,
        words: &[AtomicU64],
        place: usize,
    ) -> Option<MarkDependency> {
        let at = self.out.addresses.len();
        if wire::mark(mark) == wire::MARK_REGION {
            let instructions = self.out.instructions;
            self.out.marks.push(MarkedPlace {
                at,
                mark,
                instructions,
            });
        }
        let sync = SyncMark::at(words, place)?;
        let mapped = match sync.kind {
            MarkKind::Mapped(bytes) => Some(MappedPlace { at, bytes }),
            _ => None,
        };
        let blocked_at = match mapped.filter(|_| sync.number > self.granted) {
            Some(_) => Some(MarkDependency {
                number: sync.number,
                before: Before::Words,
            }),
            None => sync.dependency(self.granted),
        };
        if blocked_at.is_none() {
            self.out.mapped.extend(mapped);
            self.out.passed = sync.number;
        }
        blocked_at
    }

    #[inline(always)]
    fn push(&mut self, address: u64, bytes: u32) {
        let last = address.wrapping_add(u64::from(bytes.max(1)) - 1);
        if (address ^ last) >= self.granule {
            self.out.crossing.push((self.out.addresses.len(), bytes));
        }
        self.out.addresses.push(address ^ self.space);
    }

    fn push_all(&mut self, block: u32, accesses: Range<u32>, first: u64) {
        let catalogue = self.catalogue;
        if catalogue.is_prefetch(accesses.start) {
            return;
        }
        if self.by_instruction {
            self.note_instructions(block, accesses.clone());
        }
        for access in catalogue.accesses(accesses) {
            let address = first.wrapping_add(access.delta as u64);
            self.push(address, u32::from(access.size));
        }
    }

    #[cold]
    fn note_instructions(&mut self, block: u32, accesses: Range<u32>) {
        let ips = accesses.map(|index| self.catalogue.ip(block, index).0);
        self.out.ips.extend(ips);
    }

    /// Starts a block's execution. `first` is true if its first run comes with it.
    #[inline(always)]
    fn begin(&mut self, number: u32, first: bool) {
        self.place.repeating = None;
        self.place.block = Some((number, 0));
        match self.catalogue.block(number) {
            Some(block) => {
                self.out.instructions += u64::from(block.tally.insns());
                self.place.missing += block.further_runs(number as usize) as i64;
            }
            None if !first => self.place.stray += 1,
            None => {}
        }
    }

    #[cold]
    fn note_block(&mut self, number: u32) {
        let blocks = &mut self.out.blocks;
        if blocks.last().is_none_or(|last| last.1 != number) {
            blocks.push((self.out.addresses.len(), number));
        }
    }

    fn further(&mut self, word: u64) -> usize {
        self.place.missing -= 1;
        self.run_of_block(word)
    }

    /// Processes the next run of the current block. Returns the number of words used.
    #[inline(always)]
    fn run_of_block(&mut self, word: u64) -> usize {
        let address = word & wire::ADDRESS;
        if address == wire::NO_ACCESS {
            return 1;
        }
        let place = self.place.block.as_mut();
        let run = place.and_then(|(number, next)| {
            let run = self.catalogue.run(*number, *next);
            *next += 1;
            run
        });
        match run {
            Some(run) => {
                let number = self.place.block.map_or(0, |(number, _)| number);
                if self.by_block {
                    self.note_block(number);
                }
                self.push_all(number, run.accesses(), address);
            }
            None => self.place.stray += 1,
        }
        1
    }

    /// Processes a mark. Returns the number of words used, or `None` if further words are needed.
    fn marked(&mut self, word: u64, after: &[AtomicU64], whole: bool) -> Option<usize> {
        let number = word as u32;
        let block = self.catalogue.block(number);
        match block.filter(|_| wire::mark(word) == wire::MARK_BLOCK) {
            Some(block) if block.is_special() => self.special(number, after, whole),
            Some(_) => {
                self.begin(number, false);
                Some(1)
            }
            None => {
                self.place.stray += 1;
                Some(1)
            }
        }
    }

    /// Processes a block with rep instructions or varying operands.
    #[inline(never)]
    fn special(&mut self, number: u32, after: &[AtomicU64], whole: bool) -> Option<usize> {
        let catalogue = self.catalogue;
        let mut special = Special::of(catalogue, number, after, whole)?;
        if self.by_block {
            self.note_block(number);
        }
        let again = special.goes_on(&mut self.place.repeating);
        let insns = catalogue.block(number)?.tally.insns();
        self.out.instructions += u64::from(insns) - u64::from(again);
        loop {
            while let Some(access) = special.next(catalogue) {
                if catalogue.is_prefetch(access.index) {
                    continue;
                }
                if self.by_instruction {
                    self.note_instructions(number, access.index..access.index + 1);
                }
                self.push(access.addr, access.size);
            }
            if !special.repeat(catalogue) {
                break;
            }
        }
        self.place.stray += special.left();
        self.place.block = None;
        Some(1 + special.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::catalogue::tests::{access, code};
    use memgauge_trace::AccessKind::{Load, Modify, Store};
    use proptest::prelude::*;

    const TWO_RUNS: u64 = 4;
    const MODIFY: u64 = 5;
    const REP_MOVSB: u64 = 6;
    const VARYING: u64 = 7;
    const NOTHING: u64 = 8;

    fn catalogue() -> Catalogue {
        let mut catalogue = Catalogue::default();
        let two = [
            access(0, 0, 8, Load),
            access(0, 60, 8, Store),
            access(1, 0, 8, Load),
        ];
        let movsb = [access(0, 0, 1, Load), access(1, 0, 1, Store)];
        let rep = wire::CODE_BEGINS_REP | wire::CODE_ENDS_REP;
        for record in [
            code(TWO_RUNS as u32, 0x1000, 5, 0, &two),
            code(MODIFY as u32, 0x2000, 2, 0, &[access(0, 0, 4, Modify)]),
            code(REP_MOVSB as u32, 0x3000, 1, rep, &movsb),
            code(
                VARYING as u32,
                0x4000,
                1,
                4,
                &[access(wire::RUN_VARYING, 32, 0, Load)],
            ),
            code(NOTHING as u32, 0x5000, 7, 0, &[]),
        ] {
            catalogue.read(&record).unwrap();
        }
        catalogue
    }

    fn walk(words: &[u64], whole: bool) -> (ThreadReferences, WalkState, usize) {
        let (mut out, mut place) = (ThreadReferences::default(), WalkState::default());
        let words: Vec<AtomicU64> = words.iter().map(|&w| AtomicU64::new(w)).collect();
        let mut walk = ReferenceWalk {
            catalogue: &catalogue(),
            place: &mut place,
            out: &mut out,
            space: 1 << 50,
            granule: 64,
            by_block: true,
            by_instruction: true,
            granted: 0,
        };
        let (at, _) = walk.run(&words, 0, whole);
        (out, place, at)
    }

    fn block(number: u64, address: u64) -> u64 {
        number << wire::ID_SHIFT | address
    }

    fn marked(number: u64) -> u64 {
        wire::MARK_BLOCK | number
    }

    fn addresses(words: &[u64]) -> Vec<u64> {
        let (out, ..) = walk(words, true);
        out.addresses.iter().map(|a| a ^ 1 << 50).collect()
    }

    #[test]
    fn references_follow_from_the_first_of_each_run_in_program_order() {
        let words = [
            block(TWO_RUNS, 0x100),
            0x500,
            block(NOTHING, wire::NO_ACCESS),
            block(MODIFY, 0x9000),
            wire::SEVERAL | block(TWO_RUNS, 0x200),
            block(wire::OTHER_LINE_LOADS, 0x240),
            0x600,
        ];
        assert_eq!(
            addresses(&words),
            [0x100, 0x13c, 0x500, 0x9000, 0x200, 0x23c, 0x600]
        );
        let (out, place, _) = walk(&words, true);
        assert_eq!(out.instructions, 5 + 7 + 2 + 5);
        assert_eq!(out.crossing, [(1, 8), (5, 8)]);
        let (two, modify) = (TWO_RUNS as u32, MODIFY as u32);
        assert_eq!(out.blocks, [(0, two), (3, modify), (4, two)]);
        assert_eq!((place.missing, place.stray), (0, 0));
    }

    #[test]
    fn a_repeated_instruction_counts_once_and_refers_each_time() {
        let words = [
            marked(REP_MOVSB),
            0x100,
            0x200,
            marked(REP_MOVSB),
            0x101,
            0x201,
            marked(REP_MOVSB),
            block(MODIFY, 0x9000),
        ];
        assert_eq!(addresses(&words), [0x100, 0x200, 0x101, 0x201, 0x9000]);
        assert_eq!(walk(&words, true).0.instructions, 1 + 2);
    }

    /// Iterations are reported one by one, or counted after the first.
    #[test]
    fn iterations_that_are_counted_refer_as_those_that_are_told() {
        let up = [marked(REP_MOVSB), 0x13d, 0x200, wire::MARK_REPEAT | 2];
        assert_eq!(
            addresses(&[&up[..], &[block(MODIFY, 0x9000)]].concat()),
            [0x13d, 0x200, 0x13e, 0x201, 0x13f, 0x202, 0x9000]
        );
        let down = [
            marked(REP_MOVSB),
            0x102,
            0x208,
            wire::MARK_REPEAT | wire::REPEAT_DOWN | 1,
        ];
        assert_eq!(addresses(&down), [0x102, 0x208, 0x101, 0x207]);
        let (out, place, _) = walk(&[&up[..], &down[..]].concat(), true);
        assert_eq!((out.instructions, place.stray), (1, 0));
        // No line has so many elements.
        let damaged = [marked(REP_MOVSB), 0x100, 0x200, wire::MARK_REPEAT | 1 << 31];
        assert_eq!(addresses(&damaged).len(), 2 * 64);
    }

    #[test]
    fn pieces_that_continue_one_another_are_one_reference() {
        let piece =
            |bytes: u64| wire::MARK_PIECE | wire::PIECE_LOAD | bytes << wire::PIECE_SIZE_SHIFT;
        let words = [
            marked(VARYING),
            piece(16),
            0x130,
            piece(16),
            0x140,
            piece(8),
            0x800,
        ];
        let (out, ..) = walk(&words, true);
        assert_eq!(out.addresses, [0x130, 0x800].map(|a| a | 1 << 50));
        assert_eq!(out.crossing, [(0, 32)]);
    }

    #[test]
    fn runs_that_do_not_come_are_missing_and_a_special_block_waits_for_the_next() {
        let (out, place, at) = walk(&[block(TWO_RUNS, 0x100), block(MODIFY, 0x200)], true);
        assert_eq!((out.addresses.len(), place.missing, at), (3, 1, 2));
        let (.., at) = walk(&[block(MODIFY, 0x100), marked(REP_MOVSB), 0x100], false);
        assert_eq!(at, 1);
        let (_, place, _) = walk(&[0x100, marked(99)], true);
        assert_eq!(place.stray, 2);
    }

    proptest! {
        #[test]
        fn no_words_make_the_walk_panic_or_stand_still(
            words in prop::collection::vec(
                prop_oneof![any::<u64>(), (0u64..10).prop_map(marked), 0u64..1 << 50],
                0..60,
            ),
        ) {
            prop_assert_eq!(walk(&words, true).2, words.len());
        }
    }
}
