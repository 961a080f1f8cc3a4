//! Words of a thread, as `stream.h` draws them.

use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_trace::AccessKind;

use super::catalogue::Access;
use super::wire;

/// The word at `at`, if there is one.
pub(super) fn load(words: &[AtomicU64], at: usize) -> Option<u64> {
    Some(words.get(at)?.load(Ordering::Relaxed))
}

/// Whether an execution of a block begins with a word.
pub(super) fn begins_block(word: u64) -> bool {
    (wire::FIRST_BLOCK..wire::MARKS).contains(&wire::id(word))
        || wire::mark(word) == wire::MARK_BLOCK
}

/// The words of one execution of a special block, taken in order.
pub(super) struct Words<'a> {
    words: &'a [AtomicU64],
    at: usize,
}

impl<'a> Words<'a> {
    /// Those after the mark of a special block up to where the next one begins,
    /// or all with `whole`; `None` where more must come first.
    pub(super) fn of_special(after: &'a [AtomicU64], whole: bool) -> Option<Self> {
        let next = after
            .iter()
            .position(|w| begins_block(w.load(Ordering::Relaxed)));
        let length = next.or(whole.then_some(after.len()))?;
        Some(Words {
            words: &after[..length],
            at: 0,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Words not taken yet.
    pub(super) fn left(&self) -> u64 {
        (self.words.len() - self.at) as u64
    }

    /// The address of the next run, if it comes next.
    pub(super) fn run(&mut self) -> Option<u64> {
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
    pub(super) fn piece(&mut self, access: &Access) -> Option<(AccessKind, u64, u32)> {
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
