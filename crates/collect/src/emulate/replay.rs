//! Runs a thread's words through the modelled machine.
//!
//! This is the hot loop of a recording: every code block and every access of
//! the program passes here. A block costs one bulk count and, for each run of
//! accesses in one line, one look at where the first level last had the line;
//! only what it does not find there takes the long way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_machine::{Core, Outcome, Shared, Touches};
use memgauge_trace::{AccessKind, VirtAddr};

use super::catalogue::{Access, Block, Catalogue, Run, Tally, to_usize};
use super::wire;

/// Instructions after which the core is told even without an access: far from
/// what the counters of a [`Tally`] hold, and a small part of a microsecond.
const MOST_PENDING: u32 = 4096;

/// Line size of the modelled machines, in bytes; the machine refuses others.
const LINE_BYTES: u64 = 64;

/// Misses of one access of the code since they were last written out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SiteMisses {
    pub(super) l1d: u32,
    pub(super) l2: u32,
    pub(super) llc: u32,
    pub(super) dtlb: u32,
    pub(super) walks: u32,
    pub(super) dram_read_bytes: u32,
    pub(super) dram_write_bytes: u32,
}

/// What a process's threads share.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) catalogue: Catalogue,
    /// One for each access of the catalogue.
    pub(super) sites: Vec<SiteMisses>,
    /// Instructions, loads and stores of blocks whose executions differ, since
    /// they were last written out.
    pub(super) special: HashMap<u32, [u64; 3]>,
}

/// What one thread carries from one slice of words to the next.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// Executed, but not yet told the core: it is told before anything that
    /// takes time or changes a cache, so no count or time differs for it.
    pending: Tally,
    /// Where a rep instruction is being repeated, if the last block ended in one.
    repeating: Option<u64>,
    /// First store of the thread: it lies in its stack.
    pub(super) first_store: Option<u64>,
    /// Blocks left in the middle.
    pub(super) cut: u64,
    /// Words that belong to no block.
    pub(super) stray: u64,
}

impl Cursor {
    /// Tells the core what has been executed; whether something fell due.
    pub(super) fn settle(&mut self, core: &mut Core) -> bool {
        let t = std::mem::take(&mut self.pending);
        core.retire(t.insns(), t.loads(), t.stores(), t.modifies())
    }
}

/// Why `replay` stopped before the end of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// All read, or the rest waits for words to come.
    End,
    /// The catalogue must be read first: it has news that belong here.
    Sync,
    /// The catalogue must be read until it has this block.
    UnknownBlock(u32),
}

/// Receives overflows and ticks as they fall due.
pub(super) trait Due {
    /// The core has overflows (of an access at `ip`, or of a block) or ticks to take.
    fn take(&mut self, core: &mut Core, ip: VirtAddr);
}

/// Everything the loop changes.
pub(super) struct Replay<'a, D: Due> {
    pub(super) core: &'a mut Core,
    pub(super) shared: &'a mut Shared,
    pub(super) program: &'a mut Program,
    pub(super) cursor: &'a mut Cursor,
    pub(super) due: &'a mut D,
}

/// Why the hot loop cannot go on by itself.
enum Pause {
    /// No words are left.
    End,
    /// The words end within a block.
    Short,
    /// The word begins no block.
    Other(u64),
    /// The catalogue does not have the block.
    Unknown(u32),
    /// The block has varying accesses, or its record has not come yet.
    Special(u32),
    /// The core must be told of what is pending.
    Full(u32),
    /// Run number `run` of the block is not all hits; it and those after it are
    /// still to be done.
    Slow { id: u32, run: usize },
}

/// Whether the whole run hits where [`Touches::touch`] can tell; then it is done.
#[inline(always)]
fn hits(touches: &mut Touches<'_>, run: &Run, from: u64) -> bool {
    let first = from.wrapping_add(run.low);
    let last = first.wrapping_add(u64::from(run.reach));
    first ^ last < LINE_BYTES && touches.touch(first, run.store)
}

/// The hot loop: runs blocks from `words[at]` on for as long as they hit. Only
/// locals and slices here: everything that could call is left to the caller.
#[inline(never)]
fn run_hits(
    core: &mut Core,
    catalogue: &mut Catalogue,
    pending: &mut Tally,
    words: &[AtomicU64],
    mut at: usize,
) -> (usize, Pause) {
    let mut touches = core.touches();
    let mut tally = *pending;
    let runs = &catalogue.runs[..];
    let blocks = &mut catalogue.blocks[..];
    let pause = 'blocks: loop {
        let Some(word) = words.get(at).map(|w| w.load(Ordering::Relaxed)) else {
            break Pause::End;
        };
        if word & wire::WORD_PIECE != wire::WORD_BLOCK {
            break Pause::Other(word);
        }
        let id = word as u32;
        let Some(block) = blocks.get_mut(id as usize) else {
            break Pause::Unknown(id);
        };
        if block.special() {
            break Pause::Special(id);
        }
        let Some(own) = words.get(at..at + usize::from(block.words)) else {
            break Pause::Short;
        };
        if tally.insns() > MOST_PENDING {
            break Pause::Full(id);
        }
        block.execs += 1;
        tally.add(block.tally);
        let Some(runs) = runs.get(block.run_range()) else {
            break Pause::Unknown(id);
        };
        for (number, run) in runs.iter().enumerate() {
            let from = own
                .get(usize::from(run.word))
                .map(|w| w.load(Ordering::Relaxed));
            if !from.is_some_and(|from| hits(&mut touches, run, from)) {
                break 'blocks Pause::Slow { id, run: number };
            }
        }
        at += own.len();
    };
    *pending = tally;
    (at, pause)
}

impl<D: Due> Replay<'_, D> {
    /// Runs whole code blocks from `words`; returns how many words it took and
    /// why it stopped. With `whole`, no words will follow the last ones.
    pub(super) fn run(&mut self, words: &[AtomicU64], whole: bool) -> (usize, Stop) {
        let mut at = 0;
        loop {
            let from = at;
            let pause;
            (at, pause) = run_hits(
                self.core,
                &mut self.program.catalogue,
                &mut self.cursor.pending,
                words,
                at,
            );
            if at != from || matches!(pause, Pause::Slow { .. }) {
                self.cursor.repeating = None;
            }
            match pause {
                Pause::End => return (at, Stop::End),
                Pause::Short if whole => {
                    self.cursor.cut += 1;
                    return (words.len(), Stop::End);
                }
                Pause::Short => return (at, Stop::End),
                Pause::Other(word) if word & wire::WORD_SYNC == wire::WORD_SYNC => {
                    return (at + 1, Stop::Sync);
                }
                Pause::Other(_) => {
                    self.cursor.stray += 1;
                    at += 1;
                }
                Pause::Unknown(id) => return (at, Stop::UnknownBlock(id)),
                Pause::Special(id) if self.program.catalogue.blocks[id as usize].unknown() => {
                    return (at, Stop::UnknownBlock(id));
                }
                Pause::Special(id) => match self.special(id, &words[at + 1..], whole) {
                    Some(used) => at += 1 + used,
                    None => return (at, Stop::End),
                },
                Pause::Full(id) => self.settle(id),
                Pause::Slow { id, run } => at += self.rest_of_block(id, run, &words[at..]),
            }
        }
    }

    /// Runs a block from its run number `from` on, hit or not. Returns how many
    /// words it had.
    #[inline(never)]
    fn rest_of_block(&mut self, id: u32, from: usize, words: &[AtomicU64]) -> usize {
        self.settle(id);
        let block = &self.program.catalogue.blocks[id as usize];
        let (count, runs) = (usize::from(block.words), block.run_range());
        for at in runs.start + from..runs.end {
            let run = self.program.catalogue.runs[at];
            let value = words[usize::from(run.word)].load(Ordering::Relaxed);
            if run.word > 0 && value & wire::WORD_BLOCK != 0 {
                // Not an address but the next block: this one was left before.
                self.cursor.cut += 1;
                return usize::from(run.word);
            }
            if !hits(&mut self.core.touches(), &run, value) {
                self.walk(id, &run, if run.word > 0 { value } else { 0 });
            }
        }
        count
    }

    /// Tells the core what has been executed.
    #[inline(never)]
    fn settle(&mut self, id: u32) {
        if self.cursor.settle(self.core) {
            let ip = VirtAddr(self.program.catalogue.blocks[id as usize].vaddr);
            self.due.take(self.core, ip);
        }
    }

    /// The accesses of a run one by one.
    #[inline(always)]
    fn walk(&mut self, id: u32, run: &Run, leader: u64) {
        for index in run.accesses() {
            let access = self.program.catalogue.accesses[index as usize];
            let addr = leader.wrapping_add(access.delta as u64);
            self.access(id, index, &access, addr, u32::from(access.size));
        }
    }

    #[inline(always)]
    fn access(&mut self, id: u32, index: u32, access: &Access, addr: u64, size: u32) {
        if access.kind == AccessKind::Store && self.cursor.first_store.is_none() {
            self.cursor.first_store = Some(addr);
        }
        let outcome = self.core.access(self.shared, addr, size, access.kind);
        if outcome.is_plain_hit() && !outcome.overflow {
            return;
        }
        self.charge(index, outcome);
        if outcome.overflow {
            let block = &self.program.catalogue.blocks[id as usize];
            let ip = self.program.catalogue.ip(block, index);
            self.due.take(self.core, ip);
        }
    }

    fn charge(&mut self, index: u32, outcome: Outcome) {
        let sites = &mut self.program.sites;
        if index as usize >= sites.len() {
            sites.resize(self.program.catalogue.accesses.len(), SiteMisses::default());
        }
        let site = &mut sites[index as usize];
        site.l1d += u32::from(outcome.l1d_misses);
        site.l2 += u32::from(outcome.l2_misses);
        site.llc += u32::from(outcome.llc_misses);
        site.dtlb += u32::from(outcome.dtlb_misses);
        site.walks += u32::from(outcome.walks);
        site.dram_read_bytes = site.dram_read_bytes.saturating_add(outcome.dram_read_bytes);
        site.dram_write_bytes = site
            .dram_write_bytes
            .saturating_add(outcome.dram_write_bytes);
    }

    /// A block whose number of accesses differs between executions: rep
    /// instructions and varying operands. Returns the words it took after its
    /// own, or `None` where more words must come first.
    #[inline(never)]
    fn special(&mut self, id: u32, words: &[AtomicU64], whole: bool) -> Option<usize> {
        let body = words
            .iter()
            .position(|w| {
                let word = w.load(Ordering::Relaxed);
                word & wire::WORD_PIECE == wire::WORD_BLOCK
                    || word & wire::WORD_SYNC == wire::WORD_SYNC
            })
            .or(whole.then_some(words.len()))?;
        let block = self.program.catalogue.blocks[id as usize].clone();
        self.program.catalogue.blocks[id as usize].execs += 1;
        let mut tally = block.tally;
        if block.flags & wire::CODE_BEGINS_REP != 0 && self.cursor.repeating == Some(block.vaddr) {
            tally.insns_loads -= 1; // the next iteration of an instruction counted before
        }
        self.cursor.repeating = self.rep_ip(&block);
        self.settle(id);
        let mut stream = Words {
            words: &words[..body],
            at: 0,
            leaders: Vec::new(),
        };
        for index in to_usize(&block.accesses) {
            let access = self.program.catalogue.accesses[index];
            let index = index as u32;
            let fixed = access.leader != wire::LEADER_VARYING;
            if fixed {
                // A rep instruction with nothing left to do, or a fault.
                let Some(leader) = stream.leader(access.leader) else {
                    break;
                };
                let addr = leader.wrapping_add(access.delta as u64);
                if self.of_rep(&block, index) {
                    tally.access(access.kind);
                }
                self.access(id, index, &access, addr, u32::from(access.size));
            }
            while let Some((kind, addr, size)) = (!fixed).then(|| stream.piece(&access)).flatten() {
                tally.access(kind);
                self.access(id, index, &Access { kind, ..access }, addr, size);
            }
        }
        self.cursor.stray += (body - stream.at) as u64;
        self.cursor.pending.add(tally);
        self.settle(id);
        let sums = self.program.special.entry(id).or_default();
        for (sum, n) in sums
            .iter_mut()
            .zip([tally.insns(), tally.loads(), tally.stores()])
        {
            *sum += u64::from(n);
        }
        Some(body)
    }

    /// Whether an access belongs to the rep instruction that ends the block.
    fn of_rep(&self, block: &Block, index: u32) -> bool {
        let offset = u64::from(self.program.catalogue.accesses[index as usize].offset);
        self.rep_ip(block) == Some(block.vaddr + offset)
    }

    /// Address of the rep instruction that ends the block.
    fn rep_ip(&self, block: &Block) -> Option<u64> {
        if block.flags & wire::CODE_ENDS_REP == 0 {
            return None;
        }
        let last = block
            .accesses
            .end
            .checked_sub(1)
            .filter(|_| !block.accesses.is_empty())?;
        Some(self.program.catalogue.ip(block, last).0)
    }
}

/// The words of one execution, taken in order.
struct Words<'a> {
    words: &'a [AtomicU64],
    at: usize,
    leaders: Vec<u64>,
}

impl Words<'_> {
    /// The address of leader `number`, which comes next if it has not come yet.
    fn leader(&mut self, number: u16) -> Option<u64> {
        if number == wire::LEADER_CONSTANT {
            return Some(0);
        }
        if let Some(&known) = self.leaders.get(usize::from(number)) {
            return Some(known);
        }
        let word = self.words.get(self.at)?.load(Ordering::Relaxed);
        if word & wire::WORD_BLOCK != 0 {
            return None;
        }
        self.at += 1;
        self.leaders.push(word);
        Some(word)
    }

    fn peek_piece(&self, insn: u16) -> Option<(AccessKind, u64, u32)> {
        let word = self.words.get(self.at)?.load(Ordering::Relaxed);
        let addr = self.words.get(self.at + 1)?.load(Ordering::Relaxed);
        let here = word & wire::WORD_PIECE == wire::WORD_PIECE && word as u16 == insn;
        let size = (word >> wire::PIECE_SIZE_SHIFT) as u32 & 0xff;
        let kind = match (word & wire::PIECE_LOAD != 0, word & wire::PIECE_STORE != 0) {
            (true, true) => AccessKind::Modify,
            (_, true) => AccessKind::Store,
            _ => AccessKind::Load,
        };
        here.then_some((kind, addr, size))
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

#[cfg(test)]
mod tests {
    use super::super::catalogue::tests::{access, code};
    use super::*;
    use AccessKind::{Load, Modify, Store};
    use memgauge_machine::{Config, Counts, Machine, PmuConfig};
    use memgauge_trace::catalogue as events;
    use proptest::prelude::*;

    struct Ignore;

    impl Due for Ignore {
        fn take(&mut self, core: &mut Core, _ip: VirtAddr) {
            core.take_overflows(|_| {});
            core.take_ticks(|_| {});
        }
    }

    /// A block that loads and stores beside one leader, one that loads a
    /// constant, a `rep movsb`, and one instruction with a varying operand.
    fn program() -> Program {
        let mut program = Program::default();
        let blocks = [
            code(
                0,
                0x1000,
                5,
                0,
                &[access(0, 0, 8, Load), access(0, 8, 8, Store)],
            ),
            code(
                1,
                0x2000,
                2,
                0,
                &[access(wire::LEADER_CONSTANT, 0x9000, 4, Modify)],
            ),
            code(
                2,
                0x3000,
                1,
                wire::CODE_BEGINS_REP | wire::CODE_ENDS_REP,
                &[access(0, 0, 1, Load), access(1, 0, 1, Store)],
            ),
            code(
                3,
                0x4000,
                3,
                4,
                &[access(wire::LEADER_VARYING, 16, 0, Load)],
            ),
        ];
        for block in &blocks {
            program.catalogue.read(block).unwrap();
        }
        program
    }

    fn block(id: u64) -> u64 {
        wire::WORD_BLOCK | id
    }

    fn piece(size: u64) -> u64 {
        wire::WORD_PIECE | wire::PIECE_LOAD | size << wire::PIECE_SIZE_SHIFT
    }

    struct Ran {
        counts: Counts,
        cursor: Cursor,
        program: Program,
        used: usize,
        stop: Stop,
    }

    fn run(words: &[u64], whole: bool) -> Ran {
        let config = Config::preset("skylake-sp").unwrap();
        let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
        let id = machine.add_core(0);
        let (core, shared) = machine.core_mut(id);
        let (mut program, mut cursor) = (program(), Cursor::default());
        let words: Vec<AtomicU64> = words.iter().map(|&w| AtomicU64::new(w)).collect();
        let mut replay = Replay {
            core,
            shared,
            program: &mut program,
            cursor: &mut cursor,
            due: &mut Ignore,
        };
        let (used, stop) = replay.run(&words, whole);
        cursor.settle(core);
        Ran {
            counts: core.counts(),
            cursor,
            program,
            used,
            stop,
        }
    }

    fn check(words: &[u64], expected: &[(memgauge_trace::EventId, u64)]) -> Ran {
        let ran = run(words, true);
        assert_eq!((ran.used, ran.stop), (words.len(), Stop::End));
        for &(event, value) in expected {
            assert_eq!(ran.counts.get(event), value, "{:?}", events::name(event));
        }
        ran
    }

    #[test]
    fn a_block_counts_its_instructions_and_what_follows_from_its_leader() {
        let ran = check(
            &[block(0), 0x10_0000, block(0), 0x10_0038, block(1)],
            &[
                (events::INSTRUCTIONS, 12),
                (events::LOADS, 3),
                (events::STORES, 3),
                (events::MODIFIES, 1),
                (events::SPLITS, 0),
                (events::L1D_MISS, 3), // 0x100000, 0x100040, 0x9000
                (events::DTLB_WALK, 2),
            ],
        );
        assert_eq!(ran.program.catalogue.blocks[0].execs, 2);
        assert_eq!(ran.program.sites[0].l1d, 1);
    }

    #[test]
    fn a_repeated_string_instruction_is_one_instruction() {
        let rep = [block(2), 0x10_0000, 0x20_0000];
        let words = [
            &rep[..],
            &rep[..],
            &[block(2)],
            &[block(1)],
            &rep[..],
            &[block(2)],
        ]
        .concat();
        check(
            &words,
            &[
                (events::INSTRUCTIONS, 1 + 2 + 1),
                (events::LOADS, 4),
                (events::STORES, 4),
            ],
        );
    }

    #[test]
    fn pieces_that_continue_one_another_are_one_access() {
        let words = [
            block(3),
            piece(8),
            0x5000,
            piece(8),
            0x5008,
            piece(8),
            0x6000,
        ];
        check(
            &words,
            &[
                (events::INSTRUCTIONS, 3),
                (events::LOADS, 2),
                (events::DTLB_WALK, 2),
            ],
        );
    }

    #[test]
    fn a_block_left_before_its_leader_is_counted_as_cut() {
        let ran = check(
            &[block(0), block(1)],
            &[(events::INSTRUCTIONS, 7), (events::L1D_MISS, 1)],
        );
        assert_eq!((ran.cursor.cut, ran.cursor.stray), (1, 0));
    }

    #[test]
    fn an_address_without_a_block_is_counted_as_stray() {
        let ran = check(&[0x1234, block(1)], &[(events::INSTRUCTIONS, 2)]);
        assert_eq!((ran.cursor.cut, ran.cursor.stray), (0, 1));
    }

    #[test]
    fn an_unfinished_block_waits_for_its_words() {
        for words in [&[block(1), block(0)][..], &[block(1), block(2), 0x1000]] {
            let ran = run(words, false);
            assert_eq!((ran.used, ran.stop), (1, Stop::End));
            assert_eq!(ran.counts.get(events::INSTRUCTIONS), 2);
        }
    }

    #[test]
    fn a_mark_and_an_unknown_block_stop_the_loop() {
        assert_eq!(
            run(&[block(1), wire::WORD_SYNC | 64], false).stop,
            Stop::Sync
        );
        let ran = run(&[block(1), block(77)], false);
        assert_eq!((ran.used, ran.stop), (1, Stop::UnknownBlock(77)));
    }

    fn any_word() -> impl Strategy<Value = u64> {
        prop_oneof![
            (0u64..5).prop_map(block),
            0u64..1 << 47,
            any::<u64>(),
            (0u64..64).prop_map(piece),
        ]
    }

    proptest! {
        #[test]
        fn no_words_make_the_loop_panic_or_stand_still(
            words in prop::collection::vec(any_word(), 0..100),
        ) {
            let ran = run(&words, true);
            prop_assert!(ran.used == words.len() || ran.stop != Stop::End);
        }

        #[test]
        fn slicing_the_words_changes_nothing(
            addrs in prop::collection::vec(0u64..1 << 20, 1..50),
            cut in 0usize..100,
        ) {
            let words: Vec<u64> = addrs.iter().flat_map(|&a| [block(0), a]).collect();
            let once = run(&words, true);
            let first = run(&words[..cut.min(words.len())], false);
            prop_assert_eq!(once.used, words.len());
            prop_assert_eq!(first.used, cut.min(words.len()) / 2 * 2);
        }
    }
}
