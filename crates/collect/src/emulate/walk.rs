//! Turns a thread's words back into the references they stand for.
//!
//! The modelled machine looks at whole runs of accesses; whoever wants every
//! single reference, as a miss-rate curve does, gets them here: leaders from the
//! words, the others from the catalogue, in program order. Malformed words are
//! counted and passed over, as the recorder does.

use std::sync::atomic::{AtomicU64, Ordering};

use super::catalogue::{Block, Catalogue, to_usize};
use super::wire;

/// References of one thread, in order.
#[derive(Debug, Default)]
pub(super) struct References {
    /// First byte of each, with the address space in the bits above user space.
    pub(super) addresses: Vec<u64>,
    /// Those that cross a multiple of the granule: which, and their bytes.
    pub(super) crossing: Vec<(usize, u32)>,
    pub(super) instructions: u64,
}

/// What a thread carries from one slice of words to the next.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Where a rep instruction is being repeated, if the last block ended in one.
    repeating: Option<u64>,
    /// Blocks left in the middle.
    pub(super) cut: u64,
    /// Words that belong to no block.
    pub(super) stray: u64,
}

/// Why walking stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// All read, or the rest waits for words to come.
    End,
    /// The catalogue has news that belong here.
    Sync,
    /// The catalogue must be read until it has this block.
    Unknown(u32),
}

pub(super) struct Walk<'a> {
    pub(super) catalogue: &'a Catalogue,
    pub(super) place: &'a mut Place,
    pub(super) out: &'a mut References,
    /// Set in every address.
    pub(super) space: u64,
    /// A power of two; references that cross a multiple of it are noted.
    pub(super) granule: u64,
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn begins_block(word: u64) -> bool {
    word & wire::WORD_PIECE == wire::WORD_BLOCK
}

impl Walk<'_> {
    /// Walks whole code blocks; returns how many words it took and why it
    /// stopped. With `whole`, no words follow the last ones.
    pub(super) fn run(&mut self, words: &[AtomicU64], whole: bool) -> (usize, Stop) {
        let mut at = 0;
        while let Some(word) = words.get(at).map(load) {
            if !begins_block(word) {
                at += 1;
                if word & wire::WORD_SYNC == wire::WORD_SYNC {
                    return (at, Stop::Sync);
                }
                self.place.stray += 1;
                continue;
            }
            let id = word as u32;
            let block = self.catalogue.blocks.get(id as usize);
            let Some(block) = block.filter(|block| !block.unknown()) else {
                return (at, Stop::Unknown(id));
            };
            let body = &words[at + 1..];
            let used = match block.special() {
                true => self.special(block, body, whole),
                false => self.plain(block, body, whole),
            };
            match used {
                Some(used) => at += 1 + used,
                None => return (at, Stop::End),
            }
        }
        (at, Stop::End)
    }

    #[inline(always)]
    fn push(&mut self, address: u64, bytes: u32) {
        let last = address.wrapping_add(u64::from(bytes.max(1)) - 1);
        if (address ^ last) >= self.granule {
            self.out.crossing.push((self.out.addresses.len(), bytes));
        }
        self.out.addresses.push(address ^ self.space);
    }

    /// A block of the same accesses in every execution. Returns the words it
    /// took after its own, or `None` where more must come first.
    #[inline(always)]
    fn plain(&mut self, block: &Block, body: &[AtomicU64], whole: bool) -> Option<usize> {
        let count = usize::from(block.words).saturating_sub(1);
        if body.len() < count && !whole {
            return None;
        }
        self.place.repeating = None;
        self.out.instructions += u64::from(block.tally.insns());
        let leaders = &body[..count.min(body.len())];
        for access in &self.catalogue.accesses[to_usize(&block.accesses)] {
            let leader = match access.leader {
                wire::LEADER_CONSTANT => 0,
                number => match leaders.get(usize::from(number)).map(load) {
                    Some(address) if address & wire::WORD_BLOCK == 0 => address,
                    // Not an address but what follows: this block was left before.
                    _ => {
                        self.place.cut += 1;
                        return Some(before_next(leaders));
                    }
                },
            };
            self.push(
                leader.wrapping_add(access.delta as u64),
                u32::from(access.size),
            );
        }
        Some(leaders.len())
    }

    /// A block with rep instructions or varying operands.
    #[inline(never)]
    fn special(&mut self, block: &Block, body: &[AtomicU64], whole: bool) -> Option<usize> {
        let ends = |w: &AtomicU64| {
            let word = load(w);
            begins_block(word) || word & wire::WORD_SYNC == wire::WORD_SYNC
        };
        let length = body.iter().position(ends).or(whole.then_some(body.len()))?;
        let mut words = Words {
            words: &body[..length],
            at: 0,
            leaders: Vec::new(),
        };
        let again = block.flags & wire::CODE_BEGINS_REP != 0;
        let again = again && self.place.repeating == Some(block.vaddr);
        self.out.instructions += u64::from(block.tally.insns()) - u64::from(again);
        self.place.repeating = self.rep_address(block);
        let catalogue = self.catalogue;
        for access in &catalogue.accesses[to_usize(&block.accesses)] {
            if access.leader == wire::LEADER_VARYING {
                while let Some((address, bytes)) = words.piece(access.insn, access.delta) {
                    self.push(address, bytes);
                }
                continue;
            }
            // A rep instruction with nothing left to do, or a fault.
            let Some(leader) = words.leader(access.leader) else {
                break;
            };
            self.push(
                leader.wrapping_add(access.delta as u64),
                u32::from(access.size),
            );
        }
        self.place.stray += (length - words.at) as u64;
        Some(length)
    }

    fn rep_address(&self, block: &Block) -> Option<u64> {
        let ends = block.flags & wire::CODE_ENDS_REP != 0 && !block.accesses.is_empty();
        ends.then(|| self.catalogue.ip(block, block.accesses.end - 1).0)
    }
}

/// Leaders before the next block's word.
fn before_next(leaders: &[AtomicU64]) -> usize {
    let next = leaders.iter().position(|w| load(w) & wire::WORD_BLOCK != 0);
    next.unwrap_or(leaders.len())
}

/// The words of one execution, taken in order.
struct Words<'a> {
    words: &'a [AtomicU64],
    at: usize,
    leaders: Vec<u64>,
}

impl Words<'_> {
    /// The address of a leader, which comes next if it has not come yet.
    fn leader(&mut self, number: u16) -> Option<u64> {
        if number == wire::LEADER_CONSTANT {
            return Some(0);
        }
        if let Some(&known) = self.leaders.get(usize::from(number)) {
            return Some(known);
        }
        let word = load(self.words.get(self.at)?);
        if word & wire::WORD_BLOCK != 0 {
            return None;
        }
        self.at += 1;
        self.leaders.push(word);
        Some(word)
    }

    /// The next access of a varying instruction: pieces that continue one
    /// another, up to the operand's bytes, are one.
    fn piece(&mut self, insn: u16, operand_bytes: i64) -> Option<(u64, u32)> {
        let (kind, address, mut bytes) = self.peek(insn)?;
        self.at += 2;
        while let Some((next_kind, next, more)) = self.peek(insn) {
            let continues = next_kind == kind && next == address.wrapping_add(u64::from(bytes));
            if !continues || i64::from(bytes + more) > operand_bytes {
                break;
            }
            bytes += more;
            self.at += 2;
        }
        Some((address, bytes))
    }

    fn peek(&self, insn: u16) -> Option<(u64, u64, u32)> {
        let word = load(self.words.get(self.at)?);
        let address = load(self.words.get(self.at + 1)?);
        let here = word & wire::WORD_PIECE == wire::WORD_PIECE && word as u16 == insn;
        let kind = word & (wire::PIECE_LOAD | wire::PIECE_STORE);
        here.then_some((
            kind,
            address,
            (word >> wire::PIECE_SIZE_SHIFT) as u32 & 0xff,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::tests::{access, code};
    use super::*;
    use memgauge_trace::AccessKind::{Load, Modify, Store};
    use proptest::prelude::*;

    /// Beside one leader; a constant; `rep movsb`; a varying operand of 32 bytes.
    fn catalogue() -> Catalogue {
        let mut catalogue = Catalogue::default();
        let constant = access(wire::LEADER_CONSTANT, 0x9000, 4, Modify);
        let varying = access(wire::LEADER_VARYING, 32, 0, Load);
        for record in [
            code(
                0,
                0x1000,
                5,
                0,
                &[
                    access(0, 0, 8, Load),
                    access(0, 60, 8, Store),
                    access(1, 8, 8, Load),
                ],
            ),
            code(1, 0x2000, 2, 0, &[constant]),
            code(
                2,
                0x3000,
                1,
                wire::CODE_BEGINS_REP | wire::CODE_ENDS_REP,
                &[access(0, 0, 1, Load), access(1, 0, 1, Store)],
            ),
            code(3, 0x4000, 1, 4, &[varying]),
        ] {
            catalogue.read(&record).unwrap();
        }
        catalogue
    }

    fn walk(words: &[u64], whole: bool) -> (References, Place, usize, Stop) {
        let (mut out, mut place) = (References::default(), Place::default());
        let words: Vec<AtomicU64> = words.iter().map(|&w| AtomicU64::new(w)).collect();
        let mut walk = Walk {
            catalogue: &catalogue(),
            place: &mut place,
            out: &mut out,
            space: 1 << 50,
            granule: 64,
        };
        let (used, stop) = walk.run(&words, whole);
        (out, place, used, stop)
    }

    const BLOCK: u64 = wire::WORD_BLOCK;

    fn addresses(words: &[u64]) -> Vec<u64> {
        let (out, ..) = walk(words, true);
        out.addresses.iter().map(|a| a ^ 1 << 50).collect()
    }

    #[test]
    fn references_follow_from_leaders_and_constants_in_program_order() {
        let words = [BLOCK, 0x100, 0x500, BLOCK | 1, BLOCK, 0x200, 0x600];
        assert_eq!(
            addresses(&words),
            [0x100, 0x13c, 0x508, 0x9000, 0x200, 0x23c, 0x608]
        );
        let (out, place, ..) = walk(&words, true);
        assert_eq!(out.instructions, 12);
        assert_eq!(out.crossing, [(1, 8), (5, 8)]);
        assert_eq!((place.cut, place.stray), (0, 0));
    }

    #[test]
    fn a_repeated_instruction_counts_once_and_refers_each_time() {
        let words = [
            BLOCK | 2,
            0x100,
            0x200,
            BLOCK | 2,
            0x101,
            0x201,
            BLOCK | 2,
            BLOCK | 1,
        ];
        assert_eq!(addresses(&words), [0x100, 0x200, 0x101, 0x201, 0x9000]);
        assert_eq!(walk(&words, true).0.instructions, 1 + 2);
    }

    #[test]
    fn pieces_that_continue_one_another_are_one_reference() {
        let piece =
            |bytes: u64| wire::WORD_PIECE | wire::PIECE_LOAD | bytes << wire::PIECE_SIZE_SHIFT;
        let words = [
            BLOCK | 3,
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
    fn a_block_left_in_the_middle_is_cut_and_one_not_whole_waits() {
        let (out, place, used, _) = walk(&[BLOCK, 0x100, BLOCK | 1], true);
        assert_eq!((out.addresses.len(), place.cut, used), (3, 1, 3));
        let (_, _, used, stop) = walk(&[BLOCK | 1, BLOCK, 0x100], false);
        assert_eq!((used, stop), (1, Stop::End));
        let (_, _, used, stop) = walk(&[BLOCK | 1, wire::WORD_SYNC | 8, BLOCK | 99], true);
        assert_eq!((used, stop), (2, Stop::Sync));
        assert_eq!(walk(&[BLOCK | 99], true).3, Stop::Unknown(99));
    }

    proptest! {
        #[test]
        fn no_words_make_the_walk_panic_or_stand_still(
            words in prop::collection::vec(
                prop_oneof![any::<u64>(), (0u64..5).prop_map(|id| BLOCK | id), 0u64..1 << 47],
                0..60,
            ),
            whole in any::<bool>(),
        ) {
            let (_, _, used, stop) = walk(&words, whole);
            prop_assert!(used <= words.len());
            if whole && stop == Stop::End {
                prop_assert_eq!(used, words.len());
            }
        }
    }
}
