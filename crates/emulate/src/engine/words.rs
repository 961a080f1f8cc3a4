//! Words of a thread, in the encoding of `stream.h`.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_trace::{AccessKind, VirtAddr};

use crate::engine::catalogue::{BlockAccess, Catalogue};
use crate::engine::wire;

/// The word at `at`, if it exists.
pub(crate) fn load(words: &[AtomicU64], at: usize) -> Option<u64> {
    Some(words.get(at)?.load(Ordering::Relaxed))
}

/// Returns the value of the field at `at`, which follows a mark. `None` for another word.
pub(crate) fn mark_field(words: &[AtomicU64], at: usize) -> Option<u64> {
    let word = load(words, at)?;
    (wire::mark(word) == wire::MARK_FIELD).then_some(word & wire::ADDRESS)
}

/// Returns the block of the word at `at`, and the index of the run that the word stands for, if
/// any. The word may be that of a run's second line.
pub(crate) fn origin(words: &[AtomicU64], at: usize) -> Option<(u32, Option<usize>)> {
    let (mut further, mut at) = (0usize, at);
    loop {
        let word = load(words, at)?;
        let id = wire::id(word);
        if (wire::FIRST_BLOCK..wire::MARKS).contains(&id) {
            return Some((id as u32, Some(further)));
        } else if wire::mark(word) == wire::MARK_BLOCK {
            return Some((word as u32, further.checked_sub(1)));
        }
        further += usize::from(!wire::is_other_line(word));
        at = at.checked_sub(1)?;
    }
}

/// Finds the block and the run of successive words.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunPosition {
    block: u32,
    /// Index of the next further run in the block.
    next: usize,
}

impl RunPosition {
    /// Starts with the words before `words[at]`.
    pub(crate) fn before(words: &[AtomicU64], at: usize) -> RunPosition {
        let origin = at.checked_sub(1).and_then(|last| origin(words, last));
        origin.map_or(RunPosition::default(), |(block, run)| RunPosition {
            block,
            next: run.map_or(0, |run| run + 1),
        })
    }

    /// Goes on to a word. Returns its block and the index of its run, if it is the only word of a
    /// run.
    pub(crate) fn step(&mut self, word: u64) -> Option<(u32, usize)> {
        let id = wire::id(word);
        if wire::mark(word) == wire::MARK_BLOCK {
            (self.block, self.next) = (word as u32, 0);
        } else if (wire::FIRST_BLOCK..wire::MARKS).contains(&id) {
            (self.block, self.next) = (id as u32, 1);
            return Some((self.block, 0));
        } else if id < wire::FIRST_BLOCK && !wire::is_other_line(word) {
            self.next += 1;
            return Some((self.block, self.next - 1));
        }
        None
    }
}

/// Maximum number of repeated iterations within a line: its number of bytes.
const MAX_REPEATS: u32 = memgauge_machine::LINE_BYTES - 1;

/// True if the execution of a block has ended before a word.
pub(crate) fn begins_block(word: u64) -> bool {
    (wire::FIRST_BLOCK..wire::MARKS).contains(&wire::id(word))
        || matches!(
            wire::mark(word),
            wire::MARK_BLOCK
                | wire::MARK_SYNC
                | wire::MARK_REGION
                | wire::MARK_ALLOCATED
                | wire::MARK_FREED
                | wire::MARK_PYTHON
                | wire::MARK_FILE_WAIT
        )
}

/// One execution of a special block, which has rep instructions or varying operands. Its words
/// determine its accesses.
pub(crate) struct Special<'a> {
    words: &'a [AtomicU64],
    at: usize,
    block: u32,
    starts: VirtAddr,
    begins_rep: bool,
    /// The rep instruction at the end of the block.
    rep: Option<VirtAddr>,
    /// Accesses of the block that may follow.
    to_come: Range<u32>,
    /// The current run and its address.
    run: Option<(u16, u64)>,
    /// Offsets of the current iteration's accesses from the recorded ones, and of the next
    /// iteration's.
    moved: u64,
    step: u64,
    /// Number of remaining iterations that touch the same lines.
    repeats: u32,
    taken: usize,
}

/// An access in the execution of a special block.
pub(crate) struct Executed {
    /// Index in the catalogue's accesses.
    pub(crate) index: u32,
    pub(crate) kind: AccessKind,
    pub(crate) addr: u64,
    pub(crate) size: u32,
    /// True if not every execution of the block performs it.
    pub(crate) varying: bool,
    /// True if it is by an instruction that repeats.
    pub(crate) repeats: bool,
}

impl<'a> Special<'a> {
    /// Reads an execution of a catalogued block from the words after its mark, up to the next
    /// block, or all words with `whole`. `None` if further words are needed.
    pub(crate) fn of(
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
            repeats: repeat.map_or(0, |word| (word as u32).min(MAX_REPEATS)),
            taken: length,
        })
    }

    /// Advances to the next iteration that touches the lines of the previous one. Returns false if
    /// there is none.
    pub(crate) fn repeat(&mut self, catalogue: &Catalogue) -> bool {
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

    /// Skips all remaining iterations and returns their number.
    pub(crate) fn pass_repeats(&mut self) -> u32 {
        std::mem::take(&mut self.repeats)
    }

    /// True if its first instruction continues the rep instruction at the end of the previous
    /// block, in `repeating`, which already counted it. Stores this block's last instruction there.
    pub(crate) fn goes_on(&self, repeating: &mut Option<VirtAddr>) -> bool {
        std::mem::replace(repeating, self.rep) == Some(self.starts) && self.begins_rep
    }

    /// The next access. Accesses of a rep instruction without remaining iterations, and those after
    /// a fault, do not occur.
    pub(crate) fn next(&mut self, catalogue: &Catalogue) -> Option<Executed> {
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
                    // A comparison of strings has two loads in each iteration.
                    repeats: self.rep == Some(catalogue.ip(self.block, index)),
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
        access: &BlockAccess,
    ) -> Option<Executed> {
        if self.run.is_none_or(|(number, _)| number != access.run) {
            self.run = self.next_run().map(|addr| (access.run, addr));
        }
        let Some((_, first)) = self.run else {
            self.to_come = 0..0;
            return None;
        };
        let repeats = self.rep == Some(catalogue.ip(self.block, index));
        Some(Executed {
            index,
            kind: access.kind,
            addr: first
                .wrapping_add(access.delta as u64)
                .wrapping_add(self.moved),
            size: u32::from(access.size),
            varying: repeats,
            repeats,
        })
    }

    /// Number of its words without the mark.
    pub(crate) fn len(&self) -> usize {
        self.taken
    }

    /// Words that were not used yet.
    pub(crate) fn left(&self) -> u64 {
        (self.words.len() - self.at) as u64
    }

    /// Address of the next run, if it is next.
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

    /// The next access of a varying instruction. Consecutive pieces, up to the operand's size, are
    /// one access.
    fn piece(&mut self, access: &BlockAccess) -> Option<(AccessKind, u64, u32)> {
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
