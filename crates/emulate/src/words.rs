//! Words of a thread, as `stream.h` draws them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_trace::{AccessKind, VirtAddr};

use super::catalogue::{Access, Catalogue};
use super::wire;

/// The word at `at`, if there is one.
pub(super) fn load(words: &[AtomicU64], at: usize) -> Option<u64> {
    Some(words.get(at)?.load(Ordering::Relaxed))
}

/// Iterations in a line, besides the first, are no more than its bytes.
const MOST_REPEATS: u32 = memgauge_machine::LINE_BYTES - 1;

/// Whether an execution of a block has ended before a word.
pub(super) fn begins_block(word: u64) -> bool {
    (wire::FIRST_BLOCK..wire::MARKS).contains(&wire::id(word))
        || matches!(
            wire::mark(word),
            wire::MARK_BLOCK | wire::MARK_SYNC | wire::MARK_REGION
        )
}

/// One execution of a special block, one with rep instructions or varying operands:
/// how many accesses it makes its words tell.
pub(super) struct Special<'a> {
    words: &'a [AtomicU64],
    at: usize,
    block: u32,
    starts: VirtAddr,
    begins_rep: bool,
    /// The rep instruction that the block ends in.
    rep: Option<VirtAddr>,
    /// Accesses of the block that may still come.
    to_come: Range<u32>,
    /// The run under way and its address.
    run: Option<(u16, u64)>,
    /// How far from those told the accesses are of the iteration under way, and the next.
    moved: u64,
    step: u64,
    /// Iterations that are left and touch the same lines.
    repeats: u32,
    taken: usize,
}

/// An access of a special block's execution.
pub(super) struct Executed {
    /// Which of the catalogue's accesses it is.
    pub(super) index: u32,
    pub(super) kind: AccessKind,
    pub(super) addr: u64,
    pub(super) size: u32,
    /// It is not among those that each execution of the block makes.
    pub(super) varying: bool,
}

impl<'a> Special<'a> {
    /// An execution of a catalogued block, from the words after its mark: the words up
    /// to the next block, or all with `whole`. `None` where more must come first.
    pub(super) fn of(
        catalogue: &Catalogue,
        number: u32,
        after: &'a [AtomicU64],
        whole: bool,
    ) -> Option<Self> {
        let begins = |word: &AtomicU64| begins_block(word.load(Ordering::Relaxed));
        let next = after.iter().position(begins);
        let length = next.or(whole.then_some(after.len()))?;
        let block = catalogue.block(number)?;
        let last = block.accesses.clone().last();
        let rep = last.filter(|_| block.flags & wire::CODE_ENDS_REP != 0);
        let repeat = after[..length]
            .last()
            .map(|word| word.load(Ordering::Relaxed));
        let repeat = repeat.filter(|&word| wire::mark(word) == wire::MARK_REPEAT);
        let bytes = rep.map_or(0, |index| u64::from(catalogue.access(index).size));
        Some(Special {
            words: &after[..length - usize::from(repeat.is_some())],
            at: 0,
            block: number,
            starts: VirtAddr(block.vaddr),
            begins_rep: block.flags & wire::CODE_BEGINS_REP != 0,
            rep: rep.map(|index| catalogue.ip(number, index)),
            to_come: block.accesses.clone(),
            run: None,
            moved: 0,
            step: match repeat {
                Some(word) if word & wire::REPEAT_DOWN != 0 => bytes.wrapping_neg(),
                _ => bytes,
            },
            repeats: repeat.map_or(0, |word| (word as u32).min(MOST_REPEATS)),
            taken: length,
        })
    }

    /// Turns to the next iteration that touches the lines of the one before; whether there
    /// is one.
    pub(super) fn repeat(&mut self, catalogue: &Catalogue) -> bool {
        let Some(left) = self.repeats.checked_sub(1) else {
            return false;
        };
        self.repeats = left;
        self.moved = self.moved.wrapping_add(self.step);
        self.at = 0;
        self.run = None;
        if let Some(block) = catalogue.block(self.block) {
            self.to_come = block.accesses.clone();
        }
        true
    }

    /// Passes over all iterations that are left; how many.
    pub(super) fn pass_repeats(&mut self) -> u32 {
        std::mem::take(&mut self.repeats)
    }

    /// Whether its first instruction goes on where `repeating` says that the block
    /// before ended in one; it was counted then. Says the same of this block's last.
    pub(super) fn goes_on(&self, repeating: &mut Option<VirtAddr>) -> bool {
        std::mem::replace(repeating, self.rep) == Some(self.starts) && self.begins_rep
    }

    /// The next access. Accesses of a rep instruction with no iterations left, and
    /// those after a fault, do not come.
    pub(super) fn next(&mut self, catalogue: &Catalogue) -> Option<Executed> {
        while !self.to_come.is_empty() {
            let index = self.to_come.start;
            let access = catalogue.access(index);
            if access.run != wire::RUN_VARYING {
                self.to_come.start += 1;
                return self.next_of_run(catalogue, index, &access);
            }
            if let Some((kind, addr, size)) = self.piece(&access) {
                return Some(Executed {
                    index,
                    kind,
                    addr,
                    size,
                    varying: true,
                });
            }
            self.to_come.start += 1;
        }
        None
    }

    fn next_of_run(
        &mut self,
        catalogue: &Catalogue,
        index: u32,
        access: &Access,
    ) -> Option<Executed> {
        if self.run.is_none_or(|(number, _)| number != access.run) {
            self.run = self.next_run().map(|addr| (access.run, addr));
        }
        let Some((_, first)) = self.run else {
            self.to_come = 0..0;
            return None;
        };
        Some(Executed {
            index,
            kind: access.kind,
            addr: first
                .wrapping_add(access.delta as u64)
                .wrapping_add(self.moved),
            size: u32::from(access.size),
            varying: self.rep == Some(catalogue.ip(self.block, index)),
        })
    }

    /// Words it is told by, without its mark.
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    /// Words not taken yet.
    pub(super) fn left(&self) -> u64 {
        (self.words.len() - self.at) as u64
    }

    /// The address of the next run, if it comes next.
    fn next_run(&mut self) -> Option<u64> {
        let word = load(self.words, self.at)?;
        if wire::id(word) >= wire::FIRST_BLOCK {
            return None;
        }
        self.at += 1;
        Some(word & wire::ADDRESS)
    }

    fn peek_piece(&self, insn: u16) -> Option<(AccessKind, u64, u32)> {
        let word = load(self.words, self.at)?;
        let addr = load(self.words, self.at + 1)?;
        let here = wire::mark(word) == wire::MARK_PIECE && word as u16 == insn;
        let size = (word >> wire::PIECE_SIZE_SHIFT) as u32 & 0xff;
        let kind = match (word & wire::PIECE_LOAD != 0, word & wire::PIECE_STORE != 0) {
            (true, true) => AccessKind::Modify,
            (_, true) => AccessKind::Store,
            _ => AccessKind::Load,
        };
        here.then_some((kind, addr & wire::ADDRESS, size))
    }

    /// The next access of a varying instruction: pieces that continue one
    /// another, up to the operand's size, are one access.
    fn piece(&mut self, access: &Access) -> Option<(AccessKind, u64, u32)> {
        let (kind, addr, mut size) = self.peek_piece(access.insn)?;
        self.at += 2;
        while let Some((next_kind, next, more)) = self.peek_piece(access.insn) {
            let continues = next_kind == kind && next == addr.wrapping_add(u64::from(size));
            if !continues || i64::from(size + more) > access.delta {
                break;
            }
            size += more;
            self.at += 2;
        }
        Some((kind, addr, size))
    }
}
