//! Runs a thread's words through the modelled machine.
//!
//! This is the hot loop of a recording: every code block and every access of
//! the program passes here. A block costs one bulk count and, for each run of
//! accesses in one line, one look at the most recent line of its cache set;
//! only what changes the state of a cache or TLB takes the long way.

use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_machine::{Core, Outcome, Shared};
use memgauge_trace::{AccessKind, VirtAddr};

use super::catalogue::{Access, Block, Catalogue, Run, Tally, to_usize};
use super::wire;

/// Instructions after which the core is told even without an access: far from
/// what the counters of a [`Tally`] hold, and a small part of a microsecond.
const MOST_PENDING: u32 = 4096;

/// Line size of the modelled machines, in bytes; the machine refuses others.
const LINE_MASK: u64 = 63;

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
    /// The catalogue must be read up to this byte first.
    Sync(u64),
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

#[inline(always)]
fn load(words: &[AtomicU64], at: usize) -> u64 {
    words[at].load(Ordering::Relaxed)
}

impl<D: Due> Replay<'_, D> {
    /// Runs whole code blocks from `words`; returns how many words it took and
    /// why it stopped. With `whole`, no words will follow the last ones.
    pub(super) fn run(&mut self, words: &[AtomicU64], whole: bool) -> (usize, Stop) {
        let mut at = 0;
        while at < words.len() {
            let word = load(words, at);
            if word & wire::WORD_PIECE != wire::WORD_BLOCK {
                if word & wire::WORD_SYNC == wire::WORD_SYNC {
                    return (at + 1, Stop::Sync(word & !wire::WORD_SYNC));
                }
                self.cursor.stray += 1;
                at += 1;
                continue;
            }
            let id = word as u32;
            let Some(block) = self.program.catalogue.blocks.get_mut(id as usize) else {
                return (at, Stop::UnknownBlock(id));
            };
            if block.special() {
                if block.unknown() {
                    return (at, Stop::UnknownBlock(id));
                }
                match self.special(id, &words[at + 1..], whole) {
                    Some(used) => at += 1 + used,
                    None => return (at, Stop::End),
                }
                continue;
            }
            let Some(leaders) = words.get(at + 1..at + 1 + usize::from(block.leaders)) else {
                if whole {
                    self.cursor.cut += 1;
                    at = words.len();
                }
                return (at, Stop::End);
            };
            block.execs += 1;
            self.cursor.repeating = None;
            self.cursor.pending.add(block.tally);
            if self.cursor.pending.insns() > MOST_PENDING {
                self.settle(id);
            }
            match self.runs(id, leaders) {
                None => at += 1 + leaders.len(),
                Some(read) => {
                    self.cursor.cut += 1;
                    at += 1 + read;
                }
            }
        }
        (at, Stop::End)
    }

    /// Tells the core what has been executed.
    #[inline(never)]
    fn settle(&mut self, id: u32) {
        if self.cursor.settle(self.core) {
            let ip = VirtAddr(self.program.catalogue.blocks[id as usize].vaddr);
            self.due.take(self.core, ip);
        }
    }

    /// Runs the accesses of a block whose address words are `leaders`. Returns
    /// `Some(n)` where the n-th of them is not an address: the block was left
    /// before that access.
    #[inline(always)]
    fn runs(&mut self, id: u32, leaders: &[AtomicU64]) -> Option<usize> {
        let catalogue = &self.program.catalogue;
        let range = to_usize(&catalogue.blocks[id as usize].runs);
        let mut at = range.start;
        while let Some(run) = self.program.catalogue.runs.get(at).filter(|_| at < range.end) {
            let leader = match leaders.get(usize::from(run.leader)) {
                Some(word) => word.load(Ordering::Relaxed) & i64::from(run.leader_mask) as u64,
                None => 0,
            };
            let first = leader.wrapping_add(run.low as u64);
            let one_line = (first & LINE_MASK) + u64::from(run.reach) <= LINE_MASK;
            if !(one_line && self.core.touch(first, run.store)) {
                let run = *run;
                if let Some(word) = self.walk(id, &run, leader) {
                    return Some(word);
                }
            }
            at += 1;
        }
        None
    }

    /// The accesses of a run one by one.
    #[inline(never)]
    fn walk(&mut self, id: u32, run: &Run, leader: u64) -> Option<usize> {
        if leader & wire::WORD_BLOCK != 0 {
            return Some(usize::from(run.leader));
        }
        self.settle(id);
        for index in run.accesses() {
            let access = self.program.catalogue.accesses[index as usize];
            let addr = leader.wrapping_add(access.delta as u64);
            self.access(id, index, &access, addr, u32::from(access.size));
        }
        None
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
        site.dram_write_bytes = site.dram_write_bytes.saturating_add(outcome.dram_write_bytes);
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
        let mut stream = Words { words: &words[..body], at: 0, leaders: Vec::new() };
        for index in to_usize(&block.accesses) {
            let access = self.program.catalogue.accesses[index];
            let index = index as u32;
            let fixed = access.leader != wire::LEADER_VARYING;
            if fixed {
                // A rep instruction with nothing left to do, or a fault.
                let Some(leader) = stream.leader(access.leader) else { break };
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
        let last = block.accesses.end.checked_sub(1).filter(|_| !block.accesses.is_empty())?;
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
