//! Replays the words of a thread with `--sets`. The engine has counted the executions and sends
//! only the runs that touch a line of the simulated sets.

use std::sync::atomic::AtomicU64;

use memgauge_machine::{AccessOutcome, Core, Missed, SharedLevels, class_of};
use memgauge_trace::{AccessKind, VirtAddr};

use super::{Cursor, LINE, OverflowSink, ReplayedProgram};
use crate::engine::catalogue::{AccessPath, Block, BlockAccess};
use crate::engine::wire;
use crate::engine::words::load;
use crate::model::costs::SiteMisses;
use crate::model::sets::{ClassMask, ClassSums, Look, ratio};

/// Replays words. Holds everything that they change.
pub(crate) struct SetsReplay<'a, D: OverflowSink> {
    pub(crate) core: &'a mut Core,
    pub(crate) shared: &'a mut SharedLevels,
    pub(crate) program: &'a mut ReplayedProgram,
    pub(crate) cursor: &'a mut Cursor,
    pub(crate) sink: &'a mut D,
    pub(crate) sums: &'a mut ClassSums,
    /// The process's address space in the last-level cache.
    pub(crate) space: u32,
}

/// Misses of accesses by group of sets, for accesses that missed.
#[derive(Default)]
pub(crate) struct GroupedSites {
    /// Index of the sums of each access plus one. 0 if it never missed.
    places: Vec<u32>,
    /// Sums, one per group for each access.
    sums: Vec<SiteMisses>,
}

impl GroupedSites {
    #[inline(always)]
    fn charge(&mut self, index: u32, groups: ClassMask, class: u32, outcome: &AccessOutcome) {
        let index = index as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        if self.places[index] == 0 {
            self.places[index] = 1 + self.sums.len() as u32;
            let more = self.sums.len() + groups.count();
            self.sums.resize(more, SiteMisses::default());
        }
        let at = (self.places[index] - 1) as usize + groups.sum_of(class);
        if let Some(sums) = self.sums.get_mut(at) {
            sums.add(outcome);
        }
    }

    /// Returns the sums of an access since the last call, with their groups.
    pub(crate) fn take(
        &mut self,
        index: u32,
        groups: ClassMask,
    ) -> impl Iterator<Item = (Option<u8>, SiteMisses)> + '_ {
        let place = self.places.get(index as usize).copied().unwrap_or(0) as usize;
        let end = if place > 0 { groups.count() } else { 0 };
        let from = place.saturating_sub(1);
        let sums = self.sums.get_mut(from..from + end).unwrap_or_default();
        groups.classes().zip(sums.iter_mut().map(std::mem::take))
    }
}

/// Full passes of a thread, which simulate all sets.
#[derive(Default)]
pub(crate) struct Peek {
    /// Instructions since the last mark.
    executed: u64,
    /// Instructions from the last full pass to this one.
    before: u64,
    /// True during a full pass.
    looks: bool,
    look: Look,
}

/// Sums of the engine over executions.
#[derive(Clone, Copy)]
pub(crate) struct Ran(pub(crate) u64);

impl Ran {
    fn field(self, number: u32) -> u32 {
        (self.0 >> (16 * number)) as u32 & 0xffff
    }

    /// Retires the sums on a core. Returns true if anything is pending.
    pub(crate) fn retire(self, core: &mut Core) -> bool {
        core.retire(self.field(3), self.field(2), self.field(1), self.field(0))
    }
}

impl<D: OverflowSink> SetsReplay<'_, D> {
    /// Replays words from `words[at]`. Returns the index at which it stopped: their end, a wait, or
    /// an incomplete group of words. With `whole`, the missing words will not come, which means
    /// damage.
    pub(crate) fn run(&mut self, words: &[AtomicU64], mut at: usize, whole: bool) -> usize {
        while let Some(word) = load(words, at) {
            let length = match wire::mark(word) {
                wire::MARK_SYNC => break,
                wire::MARK_SUM | wire::MARK_PEEK => 2,
                _ => 3,
            };
            let Some(ran) = load(words, at + 1).filter(|_| at + length <= words.len()) else {
                if whole {
                    self.cursor.stray += (words.len() - at) as u64;
                    return words.len();
                }
                break;
            };
            let kept = load(words, at + 2).filter(|_| length == 3);
            self.retire(Ran(ran), kept.map(|kept| kept as u32));
            self.cursor.peek.executed += u64::from(Ran(ran).field(3));
            if let Some(kept) = kept {
                self.kept(word, kept);
            } else if wire::mark(word) == wire::MARK_PEEK {
                self.peek(word & wire::ADDRESS != 0);
            }
            at += length;
        }
        at
    }

    fn retire(&mut self, ran: Ran, block: Option<u32>) {
        if ran.retire(self.core) {
            let catalogue = &self.program.catalogue;
            let block = block.and_then(|number| catalogue.block(number));
            self.sink
                .take(self.core, VirtAddr(block.map_or(0, |b| b.vaddr)));
        }
    }

    /// Begins or ends a full pass.
    #[cold]
    fn peek(&mut self, begins: bool) {
        let peek = &mut self.cursor.peek;
        let executed = std::mem::take(&mut peek.executed);
        if begins {
            (peek.before, peek.looks) = (peek.before + executed, true);
            return;
        }
        let before = std::mem::take(&mut peek.before);
        let weight = ratio(before + executed, executed);
        peek.looks = false;
        self.sums.looks.add(&peek.look.end(), weight);
    }

    /// Replays a run that touches a line of the simulated sets, or an access that is a block of its
    /// own.
    fn kept(&mut self, word: u64, kept: u64) {
        if self.cursor.peek.looks {
            // A run that reaches into a second line counts for the first.
            let addr = word & wire::ADDRESS;
            let class = class_of(addr, self.space);
            let look = &mut self.cursor.peek.look;
            look.read(&self.sums.first_level, class, addr / LINE);
        }
        let is_apart = kept & (wire::KEPT_PIECE | wire::KEPT_APART) != 0;
        let is_plain = word & wire::SEVERAL == 0 && !is_apart;
        if is_plain && self.cursor.first_store.is_some() {
            self.plain(word, kept);
        } else {
            self.any(word, kept as u32);
        }
    }

    /// Replays a run within a line. Most runs hit and need nothing from the catalogue.
    #[inline(always)]
    fn plain(&mut self, word: u64, kept: u64) {
        let addr = word & wire::ADDRESS;
        if !self.follows(addr) {
            return;
        }
        let missed = self.core.take_line(addr, kept & wire::KEPT_STORES != 0);
        if missed.is_nothing() {
            return;
        }
        let catalogue = &self.program.catalogue;
        match catalogue.run(kept as u32, wire::id(word) as usize) {
            Some(run) => self.supply(kept as u32, run.accesses().start, addr, missed),
            None => self.cursor.stray += 1,
        }
    }

    fn any(&mut self, word: u64, number: u32) {
        let (first, run) = (word & wire::ADDRESS, wire::id(word) as usize);
        let catalogue = &self.program.catalogue;
        let Some(block) = catalogue.block(number) else {
            self.cursor.stray += 1;
            return;
        };
        if block.flags & wire::CODE_PIECE != 0 {
            let index = block.accesses.start;
            return self.piece(number, index, first, run);
        }
        let Some(run) = self.run_of(block, number, run) else {
            self.cursor.stray += 1;
            return;
        };
        self.note_store(first, run.accesses());
        let index = run.accesses().start;
        match self.program.catalogue.access(index).path {
            AccessPath::Prefetch => return self.prefetch(number, index, first),
            AccessPath::Cached if word & wire::SEVERAL == 0 => {
                return self.line(number, index, first, run.stores);
            }
            _ => {}
        }
        for index in run.accesses() {
            let access = self.program.catalogue.access(index);
            self.access(
                number,
                index,
                first.wrapping_add(access.delta as u64),
                &access,
            );
        }
    }

    fn run_of(
        &self,
        block: &Block,
        number: u32,
        run: usize,
    ) -> Option<crate::engine::catalogue::AccessRun> {
        (!block.accesses.is_empty())
            .then(|| self.program.catalogue.run(number, run))
            .flatten()
    }

    /// The thread's first store is in its stack. Every run before it is sent.
    fn note_store(&mut self, first: u64, accesses: std::ops::Range<u32>) {
        if self.cursor.first_store.is_some() {
            return;
        }
        let catalogue = &self.program.catalogue;
        let mut all = accesses.map(|index| catalogue.access(index));
        if let Some(store) = all.find(|access| access.kind == AccessKind::Store) {
            self.cursor.first_store = Some(first.wrapping_add(store.delta as u64));
        }
    }

    /// Replays an access that may be in several lines.
    fn access(&mut self, block: u32, index: u32, addr: u64, access: &BlockAccess) {
        let stores = access.kind != AccessKind::Load;
        let last = addr.wrapping_add(u64::from(access.size.max(1)) - 1);
        let lines = (last / LINE).wrapping_sub(addr / LINE) & (u64::MAX / LINE);
        if access.path == AccessPath::NonTemporal {
            for part in 0..=lines {
                let first = (addr / LINE)
                    .wrapping_add(part)
                    .wrapping_mul(LINE)
                    .max(addr);
                self.store_non_temporal(block, index, first, last);
            }
            return;
        }
        self.line(block, index, addr, stores);
        for further in 1..=lines {
            let addr = (addr / LINE).wrapping_add(further).wrapping_mul(LINE);
            if self.follows(addr) {
                self.core.count_further_line(further == 1);
            }
            self.line(block, index, addr, stores);
        }
    }

    /// Replays a line of an access of a rep instruction or of a varying access.
    fn piece(&mut self, block: u32, index: u32, addr: u64, code: usize) {
        let access = self.program.catalogue.access(index);
        if access.kind == AccessKind::Store && self.cursor.first_store.is_none() {
            self.cursor.first_store = Some(addr);
        }
        if code != wire::PIECE_BEGINS && self.follows(addr) {
            self.core
                .count_further_line(code == wire::PIECE_SECOND_LINE);
        }
        let stores = access.kind != AccessKind::Load;
        self.line(block, index, addr, stores);
    }

    fn follows(&self, addr: u64) -> bool {
        self.sums.follows(class_of(addr, self.space))
    }

    /// Looks a line up if its set is simulated.
    fn line(&mut self, block: u32, index: u32, addr: u64, stores: bool) {
        if !self.follows(addr) {
            return;
        }
        let missed = self.core.take_line(addr, stores);
        if !missed.is_nothing() {
            self.supply(block, index, addr, missed);
        }
    }

    fn supply(&mut self, block: u32, index: u32, addr: u64, missed: Missed) {
        let access = self.program.catalogue.access(index);
        let (size, kind) = (u32::from(access.size), access.kind);
        let outcome: AccessOutcome = self.core.supply(self.shared, missed, addr, size, kind);
        self.charge(block, index, addr, &outcome);
    }

    /// Prefetches a line if its set is simulated.
    fn prefetch(&mut self, block: u32, index: u32, addr: u64) {
        if !self.follows(addr) || self.program.space.left_from(addr).is_none() {
            return;
        }
        let missed = self.core.look_up_prefetch_line(addr);
        if !missed.is_nothing() {
            let outcome = self.core.prefetch(self.shared, missed, addr);
            self.charge(block, index, addr, &outcome);
        }
    }

    /// Performs the part of a non-temporal store from `addr` to `last` that is in the line of
    /// `addr`, if its set is simulated.
    fn store_non_temporal(&mut self, block: u32, index: u32, addr: u64, last: u64) {
        if self.follows(addr) {
            let size = (last.wrapping_sub(addr) + 1).min(LINE) as u32;
            let outcome = self.core.store_line_non_temporal(self.shared, addr, size);
            self.charge(block, index, addr, &outcome);
        }
    }

    fn charge(&mut self, block: u32, index: u32, addr: u64, outcome: &AccessOutcome) {
        let class = class_of(addr, self.space);
        let groups = self.sums.groups();
        self.program.by_group.charge(index, groups, class, outcome);
        self.sums.add(class, outcome);
        if outcome.overflow {
            let ip = self.program.catalogue.ip(block, index);
            self.sink.take(self.core, ip);
        }
    }
}
