//! Runs a thread's words through the modelled machine.
//!
//! This is the hot path of a recording: every block and every access of the
//! program passes here. A word costs one look at where the first level last had
//! its line and page, and a sum; what is not found there the first level takes in
//! at once, and what that sets off below is noted and completed later, many
//! together. The hot loop takes all words alike, so that it has no branch which
//! depends on them but that one: a loop over blocks and their runs of accesses
//! took two and a half times as long.

use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_machine::{Core, LINE_BYTES, Missed, Outcome, Shared};
use memgauge_trace::{AccessKind, VirtAddr};

use super::ahead::{Event, Events, What};
use super::catalogue::{Catalogue, Entries, Run, Tally};
use super::wire;
use super::words::{Special, load};

const LINE: u64 = LINE_BYTES as u64;

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
#[derive(Default)]
pub(super) struct Program {
    pub(super) catalogue: Catalogue,
    /// One for each access of the catalogue.
    pub(super) sites: Vec<SiteMisses>,
}

/// What one thread carries from one slice of words to the next.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    /// Where a rep instruction is being repeated, if the last block ended in one.
    repeating: Option<VirtAddr>,
    /// First store of the thread: it lies in its stack.
    pub(super) first_store: Option<u64>,
    /// Words that belong to no block.
    pub(super) stray: u64,
    /// Empty between two slices.
    events: Events,
}

/// Receives overflows and ticks as they fall due.
pub(super) trait Due {
    /// The core has overflows (of an access at `ip`, or of a block) or ticks to take.
    fn take(&mut self, core: &mut Core, ip: VirtAddr);
}

/// Everything a run of words changes.
pub(super) struct Replay<'a, D: Due> {
    pub(super) core: &'a mut Core,
    pub(super) shared: &'a mut Shared,
    pub(super) program: &'a mut Program,
    pub(super) cursor: &'a mut Cursor,
    pub(super) due: &'a mut D,
}

/// The hot loop: takes words from `words[at]` on until one is not simply a run
/// within a line or the events are `full`; where it stopped.
#[inline(never)]
fn take_runs(
    core: &mut Core,
    entries: &mut Entries,
    events: &mut Events,
    words: &[AtomicU64],
    mut at: usize,
) -> usize {
    let mut touches = core.touches();
    let mut ran = std::mem::take(&mut events.ran);
    'all: for some in words[at..].chunks(Tally::ROOM) {
        if ran.is_full() {
            events.ran = std::mem::take(&mut ran);
            events.note(at - 1, What::Settle, 0, Missed::NOTHING);
        }
        for (within, word) in some.iter().enumerate() {
            let word = word.load(Ordering::Relaxed);
            let stores = entries.stores(word);
            if word & wire::SEVERAL != 0 {
                at += within;
                break 'all;
            }
            let addr = word & wire::ADDRESS;
            let hit = touches.touch(addr, stores);
            ran.add(entries.execute(word, within));
            if hit {
                continue;
            }
            let missed = touches.take(addr, stores);
            if missed.is_nothing() {
                continue;
            }
            events.ran = std::mem::take(&mut ran);
            events.note(at + within, What::Run, addr, missed);
            if events.is_full() {
                at += within + 1;
                break 'all;
            }
        }
        at += some.len();
    }
    events.ran.add(ran);
    at
}

/// The block and the number of the run whose word, or other line's word, is at `at`.
fn origin(words: &[AtomicU64], at: usize) -> Option<(u32, usize)> {
    let mut further = 0;
    for at in (0..=at).rev() {
        let word = load(words, at)?;
        let id = wire::id(word);
        if wire::mark(word) == wire::MARK_BLOCK {
            return Some((word as u32, usize::checked_sub(further, 1)?));
        } else if id >= wire::FIRST_BLOCK {
            return (id < wire::MARKS).then_some((id as u32, further));
        }
        further += usize::from(!wire::is_other_line(word));
    }
    None
}

impl<'a, D: Due> Replay<'a, D> {
    pub(super) fn new(
        core: &'a mut Core,
        shared: &'a mut Shared,
        program: &'a mut Program,
        cursor: &'a mut Cursor,
        due: &'a mut D,
    ) -> Self {
        Replay {
            core,
            shared,
            program,
            cursor,
            due,
        }
    }

    /// Takes words from `words[at]` on; those before it have been taken. Returns
    /// where it stopped: at their end, or where more words must come first. With
    /// `whole`, none will.
    pub(super) fn run(&mut self, words: &[AtomicU64], mut at: usize, whole: bool) -> usize {
        let start = at;
        self.cursor.events.set_most(self.shared.recalls());
        while at < words.len() {
            let stopped = self.take_runs(words, at);
            if stopped > at {
                self.cursor.repeating = None;
                at = stopped;
            }
            if self.cursor.events.is_full() {
                self.complete(words);
                continue;
            }
            match load(words, at) {
                Some(word) if wire::id(word) < wire::MARKS => {
                    self.cursor.repeating = None;
                    self.run_in_lines(words, at, word);
                    at += 1;
                }
                Some(mark) => match self.marked(mark, words, at, whole) {
                    Some(taken) => at += taken,
                    None => break,
                },
                None => break,
            }
        }
        if at > start {
            self.complete(words);
            self.settle(words, at - 1);
        }
        at
    }

    fn take_runs(&mut self, words: &[AtomicU64], at: usize) -> usize {
        let entries = &mut self.program.catalogue.entries;
        take_runs(self.core, entries, &mut self.cursor.events, words, at)
    }

    /// Completes what was noted, in order.
    fn complete(&mut self, words: &[AtomicU64]) {
        let mut events = self.cursor.events.take();
        for event in &mut events {
            self.look_up(words, event);
        }
        for event in &events {
            self.tell(words, event.at as usize, event.ran);
            match event.what {
                What::Access(index) => self.supply(words, event, index),
                What::Split => self.core.count_split(),
                What::Run | What::Settle => {}
            }
        }
        self.cursor.events.give_back(events);
    }

    /// Finds which access of the code an event is of, and has fetched early what
    /// supplying it needs. One of no known run stays what it is.
    #[inline(always)]
    fn look_up(&mut self, words: &[AtomicU64], event: &mut Event) {
        self.core.expect(self.shared, event.addr, event.missed);
        if event.what != What::Run {
            return;
        }
        match self.access_at(words, event) {
            Some(index) => event.what = What::Access(index),
            None => self.cursor.stray += 1,
        }
    }

    /// The access that an event of a run is of: the first one of its line, by whose
    /// address the event is known from then on.
    #[inline(always)]
    fn access_at(&self, words: &[AtomicU64], event: &mut Event) -> Option<u32> {
        let at = event.at as usize;
        let (_, run) = self.run_at(words, at)?;
        if !wire::is_other_line(load(words, at)?) {
            return Some(run.accesses().start);
        }
        let first = load(words, at.checked_sub(1)?)? & wire::ADDRESS;
        let address = |index| {
            let delta = self.program.catalogue.access(index).delta;
            first.wrapping_add(delta as u64)
        };
        let mut accesses = run.accesses();
        let index = accesses.find(|&index| address(index) / LINE == event.addr / LINE)?;
        event.addr = address(index);
        Some(index)
    }

    /// The run whose word is at `at`, and its block.
    #[inline(always)]
    fn run_at(&self, words: &[AtomicU64], at: usize) -> Option<(u32, Run)> {
        let (block, number) = origin(words, at)?;
        Some((block, self.program.catalogue.run(block, number)?))
    }

    fn supply(&mut self, words: &[AtomicU64], event: &Event, index: u32) {
        let access = self.program.catalogue.access(index);
        let (addr, size) = (event.addr, u32::from(access.size));
        self.note_store(access.kind, addr);
        let outcome = self
            .core
            .supply(self.shared, event.missed, addr, size, access.kind);
        self.charge(index, &outcome);
        if outcome.overflow {
            let block = origin(words, event.at as usize).map_or(0, |(block, _)| block);
            self.take_overflow(block, index);
        }
    }

    fn note_store(&mut self, kind: AccessKind, addr: u64) {
        if kind == AccessKind::Store && self.cursor.first_store.is_none() {
            self.cursor.first_store = Some(addr);
        }
    }

    #[cold]
    fn take_overflow(&mut self, block: u32, index: u32) {
        let ip = self.program.catalogue.ip(block, index);
        self.due.take(self.core, ip);
    }

    /// Tells the core what has been executed up to the word at `at`.
    fn settle(&mut self, words: &[AtomicU64], at: usize) {
        let ran = std::mem::take(&mut self.cursor.events.ran);
        self.tell(words, at, ran);
    }

    #[inline(always)]
    fn tell(&mut self, words: &[AtomicU64], at: usize, ran: Tally) {
        let (insns, loads) = (ran.insns(), ran.loads());
        if self.core.retire(insns, loads, ran.stores(), ran.modifies()) {
            self.take_due(words, at);
        }
    }

    #[cold]
    fn take_due(&mut self, words: &[AtomicU64], at: usize) {
        let block = origin(words, at).and_then(|(number, _)| self.program.catalogue.block(number));
        let ip = VirtAddr(block.map_or(0, |block| block.vaddr));
        self.due.take(self.core, ip);
    }

    /// The mark at `at`; how many words were taken with it, or `None` where more
    /// must come first.
    #[inline(never)]
    fn marked(&mut self, word: u64, words: &[AtomicU64], at: usize, whole: bool) -> Option<usize> {
        let number = word as u32;
        let block = self.program.catalogue.block_mut(number);
        match block.filter(|_| wire::mark(word) == wire::MARK_BLOCK) {
            Some(block) if block.is_special() => self.special(number, words, at, whole),
            Some(block) => {
                block.execs += 1;
                self.cursor.events.add(at, block.tally);
                self.cursor.repeating = None;
                Some(1)
            }
            None => {
                self.cursor.stray += 1;
                Some(1)
            }
        }
    }

    /// A run that lies in two lines, access by access.
    #[inline(never)]
    fn run_in_lines(&mut self, words: &[AtomicU64], at: usize, word: u64) {
        let ran = self.program.catalogue.entries.execute(word, at);
        self.cursor.events.add(at, ran);
        let Some((block, run)) = self.run_at(words, at) else {
            self.cursor.stray += 1;
            return;
        };
        let first = word & wire::ADDRESS;
        for index in run.accesses() {
            self.access_ahead(words, at, first, block, index);
        }
    }

    /// Access `index` of a run that began at `first`.
    fn access_ahead(&mut self, words: &[AtomicU64], at: usize, first: u64, block: u32, index: u32) {
        let access = self.program.catalogue.access(index);
        let addr = first.wrapping_add(access.delta as u64);
        let (kind, size) = (access.kind, u32::from(access.size));
        let noted = if Core::crosses_line(addr, size) {
            self.note_split(at, addr, size, kind)
        } else {
            self.note_access(at, index, addr, kind);
            true
        };
        if !noted || self.cursor.events.is_full() {
            self.complete(words);
        }
        if !noted {
            self.settle(words, at);
            self.access(block, index, kind, addr, size);
        }
    }

    fn note_access(&mut self, at: usize, index: u32, addr: u64, kind: AccessKind) {
        let (mut touches, store) = (self.core.touches(), kind != AccessKind::Load);
        if !touches.touch(addr, store) {
            let missed = touches.take(addr, store);
            if !missed.is_nothing() {
                let events = &mut self.cursor.events;
                events.note(at, What::Access(index), addr, missed);
            }
        }
    }

    /// Whether a split hits, and is noted; if not, nothing was done.
    fn note_split(&mut self, at: usize, addr: u64, size: u32, kind: AccessKind) -> bool {
        let store = kind != AccessKind::Load;
        let hit = !self.core.samples_splits() && self.core.touches().touch_split(addr, size, store);
        if hit {
            let events = &mut self.cursor.events;
            events.note(at, What::Split, addr, Missed::NOTHING);
        }
        hit
    }

    #[inline(always)]
    fn access(&mut self, block: u32, index: u32, kind: AccessKind, addr: u64, size: u32) {
        self.note_store(kind, addr);
        let outcome = self.core.access(self.shared, addr, size, kind);
        if outcome.is_plain_hit() && !outcome.overflow {
            return;
        }
        self.charge(index, &outcome);
        if outcome.overflow {
            self.take_overflow(block, index);
        }
    }

    #[inline(always)]
    fn charge(&mut self, index: u32, outcome: &Outcome) {
        let sites = &mut self.program.sites;
        if index as usize >= sites.len() {
            sites.resize(self.program.catalogue.access_count(), SiteMisses::default());
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
    /// instructions and varying operands. Returns the words it took, or `None`
    /// where more must come first.
    fn special(
        &mut self,
        number: u32,
        words: &[AtomicU64],
        at: usize,
        whole: bool,
    ) -> Option<usize> {
        let catalogue = &self.program.catalogue;
        let mut special = Special::of(catalogue, number, &words[at + 1..], whole)?;
        let mut sum = Sum::new(catalogue.block(number)?.tally);
        self.complete(words);
        self.settle(words, at);
        sum.insns -= u32::from(special.goes_on(&mut self.cursor.repeating));
        while let Some(access) = special.next(&self.program.catalogue) {
            if access.varying {
                sum.access(access.kind);
            }
            self.access(number, access.index, access.kind, access.addr, access.size);
        }
        self.cursor.stray += special.left();
        self.count_special(number, sum, words, at);
        Some(1 + special.len())
    }

    fn count_special(&mut self, number: u32, sum: Sum, words: &[AtomicU64], at: usize) {
        if let Some(block) = self.program.catalogue.block_mut(number) {
            block.execs += 1;
            let all = block
                .sums
                .iter_mut()
                .zip([sum.insns, sum.loads, sum.stores]);
            all.for_each(|(all, n)| *all += u64::from(n));
        }
        if self
            .core
            .retire(sum.insns, sum.loads, sum.stores, sum.modifies)
        {
            self.take_due(words, at);
        }
    }
}

/// What one execution of a special block adds.
struct Sum {
    insns: u32,
    loads: u32,
    stores: u32,
    modifies: u32,
}

impl Sum {
    fn new(tally: Tally) -> Sum {
        Sum {
            insns: tally.insns(),
            loads: tally.loads(),
            stores: tally.stores(),
            modifies: tally.modifies(),
        }
    }

    fn access(&mut self, kind: AccessKind) {
        self.loads += u32::from(kind != AccessKind::Store);
        self.stores += u32::from(kind != AccessKind::Load);
        self.modifies += u32::from(kind == AccessKind::Modify);
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

    const LOAD_AND_STORE: u64 = 4;
    const MODIFY: u64 = 5;
    const REP_MOVSB: u64 = 6;
    const VARYING: u64 = 7;
    const NOTHING: u64 = 8;
    const TWO_RUNS: u64 = 9;
    /// Beyond those that have ids.
    const FAR: u64 = 0xff10;
    const THERE_AND_BACK: u64 = 10;
    const TWO_LINES: u64 = 11;

    fn program() -> Program {
        let mut program = Program::default();
        let rep = wire::CODE_BEGINS_REP | wire::CODE_ENDS_REP;
        let blocks = [
            (
                LOAD_AND_STORE,
                5,
                0,
                vec![access(0, 0, 8, Load), access(0, 8, 8, Store)],
            ),
            (MODIFY, 2, 0, vec![access(0, 0, 4, Modify)]),
            (
                REP_MOVSB,
                1,
                rep,
                vec![access(0, 0, 1, Load), access(1, 0, 1, Store)],
            ),
            (VARYING, 3, 4, vec![access(wire::RUN_VARYING, 16, 0, Load)]),
            (NOTHING, 7, 0, vec![]),
            (
                TWO_RUNS,
                4,
                0,
                vec![access(0, 0, 8, Load), access(1, 0, 8, Store)],
            ),
            (FAR, 4, 0, vec![access(0, 0, 8, Store)]),
            (
                THERE_AND_BACK,
                3,
                0,
                vec![
                    access(0, 0, 8, Load),
                    access(0, 8, 8, Load),
                    access(0, 0, 8, Load),
                ],
            ),
            (
                TWO_LINES,
                5,
                0,
                [0, 8, 16, 24].map(|at| access(0, at, 8, Load)).to_vec(),
            ),
        ];
        for (number, insns, flags, accesses) in blocks {
            let bytes = code(number as u32, 0x1000 * number, insns, flags, &accesses);
            program.catalogue.read(&bytes).unwrap();
        }
        program
    }

    fn block(number: u64, addr: u64) -> u64 {
        number << wire::ID_SHIFT | addr
    }

    fn marked(number: u64) -> u64 {
        wire::MARK_BLOCK | number
    }

    fn further(addr: u64) -> u64 {
        block(wire::FURTHER_STORES, addr)
    }

    fn other_line(addr: u64) -> u64 {
        block(wire::OTHER_LINE_LOADS, addr)
    }

    fn piece(size: u64) -> u64 {
        wire::MARK_PIECE | wire::PIECE_LOAD | size << wire::PIECE_SIZE_SHIFT
    }

    struct Model {
        machine: Machine,
        id: memgauge_machine::CoreId,
    }

    impl Model {
        fn new() -> Model {
            let config = Config::preset("skylake-sp").unwrap();
            let mut machine = Machine::new(config, PmuConfig::default()).unwrap();
            let id = machine.add_core(0);
            Model { machine, id }
        }

        fn access(&mut self, addr: u64, size: u8, kind: AccessKind) {
            let (core, shared) = self.machine.core_mut(self.id);
            core.access(shared, addr, u32::from(size), kind);
            let (loads, stores) = (kind != Store, kind != Load);
            core.retire(0, loads.into(), stores.into(), (loads && stores).into());
        }

        fn counts(&mut self) -> Counts {
            self.machine.core_mut(self.id).0.counts()
        }
    }

    struct Ran {
        counts: Counts,
        cursor: Cursor,
        program: Program,
        /// Where it stopped.
        at: usize,
    }

    /// Takes the words up to each of `ends` in turn.
    fn run_in_slices(words: &[u64], ends: &[usize], whole: bool) -> Ran {
        let mut model = Model::new();
        let (core, shared) = model.machine.core_mut(model.id);
        let (mut program, mut cursor) = (program(), Cursor::default());
        let words: Vec<AtomicU64> = words.iter().map(|&w| AtomicU64::new(w)).collect();
        let mut at = 0;
        for &end in ends {
            let last = end == words.len();
            at = Replay::new(core, shared, &mut program, &mut cursor, &mut Ignore).run(
                &words[..end],
                at,
                whole && last,
            );
        }
        Ran {
            counts: core.counts(),
            cursor,
            program,
            at,
        }
    }

    fn check(words: &[u64], expected: &[(memgauge_trace::EventId, u64)]) -> Ran {
        let ran = run_in_slices(words, &[words.len()], true);
        assert_eq!(ran.at, words.len());
        for &(event, value) in expected {
            assert_eq!(ran.counts.get(event), value, "{:?}", events::name(event));
        }
        ran
    }

    #[test]
    fn a_word_stands_for_its_block_and_a_run_of_accesses() {
        let far = wire::SEVERAL;
        let mut ran = check(
            &[
                block(LOAD_AND_STORE, 0x10_0000),
                far | block(LOAD_AND_STORE, 0x10_0038),
                block(MODIFY, 0x9000),
                block(NOTHING, wire::NO_ACCESS),
            ],
            &[
                (events::INSTRUCTIONS, 5 + 5 + 2 + 7),
                (events::LOADS, 3),
                (events::STORES, 3),
                (events::MODIFIES, 1),
                (events::SPLITS, 0),
                (events::L1D_MISS, 3), // 0x100000, 0x100040, 0x9000
                (events::DTLB_WALK, 2),
            ],
        );
        assert_eq!(
            ran.program.catalogue.entries.take(LOAD_AND_STORE as usize),
            2
        );
        assert_eq!((ran.program.sites[0].l1d, ran.program.sites[1].l1d), (1, 1));
        assert_eq!(ran.cursor.stray, 0);
    }

    #[test]
    fn a_further_run_belongs_to_the_block_before_it() {
        let words = [block(TWO_RUNS, 0x10_0000), further(0x20_0000)];
        let ran = check(
            &words,
            &[(events::INSTRUCTIONS, 4), (events::L1D_STORE_MISS, 1)],
        );
        let store = ran
            .program
            .catalogue
            .block(TWO_RUNS as u32)
            .unwrap()
            .accesses
            .end
            - 1;
        assert_eq!(ran.program.sites[store as usize].l1d, 1);
    }

    #[test]
    fn a_block_without_an_id_comes_as_a_mark() {
        let words = [
            marked(FAR),
            further(0x10_0000),
            marked(FAR),
            further(0x10_0000),
        ];
        let mut ran = check(
            &words,
            &[
                (events::INSTRUCTIONS, 8),
                (events::STORES, 2),
                (events::L1D_MISS, 1),
            ],
        );
        let block = ran.program.catalogue.block_mut(FAR as u32).unwrap();
        assert_eq!((block.execs, block.further_runs(FAR as usize)), (2, 1));
    }

    #[test]
    fn a_split_that_hits_is_counted_once() {
        let split = wire::SEVERAL | block(MODIFY, 0x10_003e);
        let warm = [block(MODIFY, 0x10_0000), block(MODIFY, 0x10_0040)];
        check(
            &[warm[0], warm[1], split, split],
            &[
                (events::SPLITS, 2),
                (events::L1D_MISS, 2),
                (events::L1D_HIT, 4),
            ],
        );
    }

    #[test]
    fn a_run_that_returns_to_its_first_line_looks_up_the_other_one_too() {
        let run = wire::SEVERAL | block(THERE_AND_BACK, 0x10_0038);
        let others = (1..9).map(|page| block(MODIFY, 0x10_0040 + (page << 12)));
        let words: Vec<u64> = [run].into_iter().chain(others).chain([run]).collect();
        check(
            &words,
            &[
                (events::LOADS, 3 + 8 + 3),
                (events::L1D_MISS, 2 + 8 + 1),
                (events::SPLITS, 0),
            ],
        );
    }

    #[test]
    fn a_run_s_other_line_is_charged_to_its_first_access_there() {
        let words = [
            block(TWO_LINES, 0x10_0030),
            other_line(0x10_0048),
            block(TWO_RUNS, 0x10_0000),
            further(0x20_0000),
        ];
        let ran = check(
            &words,
            &[
                (events::LOADS, 4 + 1),
                (events::L1D_MISS, 3),
                (events::SPLITS, 0),
            ],
        );
        let first = ran
            .program
            .catalogue
            .block(TWO_LINES as u32)
            .unwrap()
            .accesses
            .start;
        let misses: Vec<u32> = ran.program.sites[first as usize..][..4]
            .iter()
            .map(|site| site.l1d)
            .collect();
        assert_eq!(misses, [1, 0, 1, 0]);
        let stray = run_in_slices(&[other_line(0x10_0048)], &[1], true);
        assert_eq!(stray.cursor.stray, 1);
    }

    #[test]
    fn a_repeated_string_instruction_is_one_instruction() {
        let rep = [marked(REP_MOVSB), block(0, 0x10_0000), further(0x20_0000)];
        let words = [
            &rep[..],
            &rep[..],
            &[marked(REP_MOVSB)],
            &[block(MODIFY, 0x9000)],
            &rep[..],
            &[marked(REP_MOVSB)],
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
            marked(VARYING),
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
    fn words_of_no_block_are_counted_as_stray() {
        let ran = check(
            &[
                further(0x1234),
                block(MODIFY, 0x9000),
                marked(77),
                block(77, 0x9000),
            ],
            &[(events::INSTRUCTIONS, 2)],
        );
        assert_eq!(ran.cursor.stray, 2);
        let mut entries = ran.program.catalogue.entries;
        assert_eq!(entries.take(77), 1, "seen when the block turns out unknown");
    }

    #[test]
    fn a_special_block_waits_for_the_next_one() {
        let words = [
            block(NOTHING, wire::NO_ACCESS),
            marked(REP_MOVSB),
            block(0, 0x1000),
        ];
        let ran = run_in_slices(&words, &[words.len()], false);
        assert_eq!((ran.at, ran.counts.get(events::INSTRUCTIONS)), (1, 7));
    }

    fn any_word() -> impl Strategy<Value = u64> {
        prop_oneof![
            (0u64..12, 0u64..1 << 30).prop_map(|(id, addr)| block(id, addr)),
            (0u64..12, 0u64..1 << 30).prop_map(|(id, addr)| wire::SEVERAL | block(id, addr)),
            (0u64..12).prop_map(marked),
            any::<u64>(),
            (0u64..64).prop_map(piece),
        ]
    }

    /// Accesses of a run, by their distance from the start of 64 bytes.
    type AnyRun = Vec<(i64, u8, AccessKind)>;

    fn any_run() -> impl Strategy<Value = AnyRun> {
        let kind = prop::sample::select(vec![Load, Store, Modify]);
        let size = prop::sample::select(vec![1u8, 4, 8, 8, 8, 16]);
        let mixed = (0..64i64, size.clone(), kind.clone());
        let mixed = prop::collection::vec(mixed, 1..5);
        let even = (prop::collection::vec(0..64i64, 1..5), size, kind);
        let even = even.prop_map(|(all, size, kind)| {
            let multiple = |at: i64| at / i64::from(size) * i64::from(size);
            all.into_iter()
                .map(|at| (multiple(at), size, kind))
                .collect()
        });
        let within = |(at, size, kind): (i64, u8, _)| (at.min(64 - i64::from(size)), size, kind);
        prop_oneof![mixed, even].prop_map(move |run: AnyRun| run.into_iter().map(within).collect())
    }

    /// The words of a run that begins at `first`, whose first one has this id.
    fn words_of(run: &AnyRun, id: u64, first: u64) -> Vec<u64> {
        let &(start, size, kind) = &run[0];
        let bytes = |&(at, size, _): &(i64, u8, _)| {
            let addr = first.wrapping_add_signed(at - start);
            (addr, addr + u64::from(size) - 1)
        };
        let other = |addr: u64| addr / LINE != first / LINE;
        let mut all = run.iter().map(bytes);
        if !all.clone().any(|(addr, last)| other(addr) || other(last)) {
            return vec![block(id, first)];
        }
        let alike = run.iter().all(|&(_, s, k)| (s, k) == (size, kind));
        let whole = all.clone().all(|(addr, last)| addr / LINE == last / LINE);
        let last = all.next_back().map_or(first, |(addr, _)| addr);
        if !(alike && whole && other(last)) {
            return vec![wire::SEVERAL | block(id, first)];
        }
        let id_of_last = if kind == Load {
            wire::OTHER_LINE_LOADS
        } else {
            wire::OTHER_LINE_STORES
        };
        vec![block(id, first), block(id_of_last, last)]
    }

    proptest! {
        #[test]
        fn runs_leave_what_their_accesses_one_by_one_leave(
            blocks in prop::collection::vec(prop::collection::vec(any_run(), 1..4), 1..4),
            steps in prop::collection::vec((0usize..4, [0u64..12, 0..12, 0..12], 0u64..256), 1..400),
        ) {
            let (mut ran, mut one_by_one) = (Model::new(), Model::new());
            let (mut program, mut cursor) = (Program::default(), Cursor::default());
            for (number, runs) in (wire::FIRST_BLOCK..).zip(&blocks) {
                let accesses = (0u16..).zip(runs).flat_map(|(n, run)| {
                    run.iter().map(move |&(at, size, kind)| access(n, at - run[0].0, size, kind))
                });
                let accesses: Vec<_> = accesses.collect();
                let bytes = code(number as u32, 0x1000 * number, 1, 0, &accesses);
                program.catalogue.read(&bytes).unwrap();
            }
            let mut words = Vec::new();
            for (which, pages, within) in &steps {
                let which = which % blocks.len();
                for (n, (run, page)) in blocks[which].iter().zip(pages).enumerate() {
                    let id = match n {
                        0 => wire::FIRST_BLOCK + which as u64,
                        _ if run.iter().any(|a| a.2 != Load) => wire::FURTHER_STORES,
                        _ => wire::FURTHER_LOADS,
                    };
                    // Pages and lines of one set each, in the first level and beyond.
                    let first = 0x1000_0000 + (page << 16) + within;
                    words.extend(words_of(run, id, first).into_iter().map(AtomicU64::new));
                    for &(at, size, kind) in run {
                        let addr = first.wrapping_add_signed(at - run[0].0);
                        one_by_one.access(addr, size, kind);
                    }
                }
            }
            let (core, shared) = ran.machine.core_mut(ran.id);
            let mut due = Ignore;
            let mut replay = Replay::new(core, shared, &mut program, &mut cursor, &mut due);
            prop_assert_eq!(replay.run(&words, 0, true), words.len());
            let (ran, expected) = (ran.counts(), one_by_one.counts());
            for event in [
                events::LOADS, events::STORES, events::MODIFIES, events::SPLITS, events::L1D_HIT,
                events::L1D_MISS, events::L1D_LOAD_MISS, events::L1D_STORE_MISS,
                events::L1D_WRITEBACK, events::L2_HIT, events::L2_MISS, events::LLC_MISS,
                events::DTLB_MISS, events::DTLB_WALK,
            ] {
                prop_assert_eq!(ran.get(event), expected.get(event), "{:?}", events::name(event));
            }
            prop_assert_eq!(cursor.stray, 0);
        }

        #[test]
        fn no_words_make_the_loop_panic_or_stand_still(
            words in prop::collection::vec(any_word(), 0..100),
        ) {
            prop_assert_eq!(run_in_slices(&words, &[words.len()], true).at, words.len());
        }

        #[test]
        fn slicing_the_words_changes_nothing(
            words in prop::collection::vec(any_word(), 1..100),
            cut in 0usize..100,
        ) {
            let once = run_in_slices(&words, &[words.len()], true);
            let twice = run_in_slices(&words, &[cut.min(words.len()), words.len()], true);
            prop_assert_eq!(once.counts, twice.counts);
            prop_assert_eq!(once.cursor.stray, twice.cursor.stray);
        }
    }
}
