//! Replays a thread's words through the modelled machine.
//!
//! This is the hot path of a recording: every block and every access of the program passes here. A
//! word costs a lookup of the slot that last held its line and page, and a sum. If it misses there,
//! the first level fills the line immediately. The work of the lower levels is recorded as a
//! [`PendingEvent`] and completed later, many events at a time. The hot loop treats all words the
//! same way, so it has no other branch that depends on them.
//!
//! Rejected: a loop over blocks and their runs of accesses, which took two and a half times as
//! long.

use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_machine::{
    AccessOutcome, Core, LINE_BYTES, LineAccess, LineBytes, Missed, SharedLevels,
    string_millicycles,
};
use memgauge_trace::{AccessKind, VirtAddr};

use crate::engine::address_space::AddressSpace;
use crate::engine::catalogue::{AccessPath, AccessRun, Catalogue, Entries, Tally};
use crate::engine::wire;
use crate::engine::words::{RunPosition, Special, load, origin};
use crate::model::calls::ProcessCalls;
use crate::model::costs::{SiteMisses, SiteStalls};
use crate::model::data::{DataMap, HeapMark};
use crate::model::dependences::{Dependences, MissedLoad};
use crate::model::file_waits::{self, FileWaitMark, FileWaitSource, FileWaits};
use crate::model::moves::MovesOf;
use crate::model::pending::{PendingEvent, PendingEvents, PendingKind};
use crate::model::python::{self, PythonProgram};
use crate::model::sharing::{SharingPlace, ThreadSharing};

const LINE: u64 = LINE_BYTES as u64;

/// Data that a process's threads share.
#[derive(Default)]
pub(crate) struct ReplayedProgram {
    pub(crate) catalogue: Catalogue,
    /// Misses of each access of the catalogue.
    pub(crate) sites: Vec<SiteMisses>,
    /// Stalls of each access of the catalogue. Separate from the misses, because most stores that
    /// miss do not stall. A miss then writes one cache line of the host less.
    pub(crate) stalls: Vec<SiteStalls>,
    /// Misses and stalls by group of sets, with `--sets`.
    pub(crate) by_group: sets::GroupedSites,
    /// True outside of the recorded regions of interest. Code then gets no counts.
    pub(crate) is_outside: bool,
    /// Call stacks, if they are recorded.
    pub(crate) calls: ProcessCalls,
    /// Code of Python that its threads execute.
    pub(crate) python: PythonProgram,
    /// The mapped memory.
    pub(crate) space: AddressSpace,
    /// Misses by data, if they are recorded.
    pub(crate) data: Option<Box<DataMap>>,
    /// Waits for files.
    pub(crate) file_waits: FileWaits,
    /// Dependences between loads.
    pub(crate) dependences: Dependences,
}

impl ReplayedProgram {
    /// Enters or leaves the recorded regions of interest.
    pub(crate) fn set_outside(&mut self, is_outside: bool) {
        if self.is_outside != is_outside {
            self.is_outside = is_outside;
            self.catalogue.swap_outside();
        }
    }

    /// Drops the counts by code location if nobody writes them, because they must not overflow.
    pub(crate) fn forget_counts(&mut self) {
        self.sites.fill(SiteMisses::default());
        self.stalls.fill(SiteStalls::default());
        self.catalogue.forget_counts();
        if let Some(data) = &mut self.data {
            data.forget_counts();
        }
    }
}

/// State of a thread between two slices of words.
#[derive(Default)]
pub(crate) struct Cursor {
    /// Address of the rep instruction in which the last block ended, if any.
    repeating: Option<VirtAddr>,
    /// Address of the thread's first store, which is in its stack.
    pub(crate) first_store: Option<u64>,
    /// Number of words that belong to no block.
    pub(crate) stray: u64,
    /// Empty between two slices.
    events: PendingEvents,
    /// State of the full passes with `--sets`.
    peek: sets::Peek,
    /// Lines that the thread shares with other threads.
    pub(crate) sharing: ThreadSharing,
    /// Address of the thread's most recent allocation, unless it has freed it.
    latest_allocation: Option<u64>,
    /// Function of the thread's latest free, and the bytes it freed. `realloc` frees and allocates.
    latest_free: Option<(u16, u64)>,
}

impl Cursor {
    /// Creates the state of a thread whose first store is `first_store`, or not known yet.
    pub(crate) fn new(first_store: Option<u64>) -> Cursor {
        Cursor {
            first_store,
            ..Cursor::default()
        }
    }
}

/// Receives overflows and ticks.
pub(crate) trait OverflowSink {
    /// Receives pending overflows (of an access at `ip`, or of a block) and ticks of the core.
    fn take(&mut self, core: &mut Core, ip: VirtAddr);

    /// Called when the words before `end` have been executed.
    fn follow(&mut self, _program: &mut ReplayedProgram, _words: &[AtomicU64], _end: usize) {}

    /// Charges the cost of an access to the line of Python at the words followed so far.
    fn charge_python(&mut self, _program: &mut ReplayedProgram, _outcome: &AccessOutcome) {}

    /// Charges the time of the elements of a string instruction to that line.
    fn charge_python_string(&mut self, _program: &mut ReplayedProgram, _millicycles: u64) {}

    /// Returns the number of the frames of Python at the words followed so far, or 0 without any.
    fn python_frames(&mut self, _program: &mut ReplayedProgram) -> u32 {
        0
    }
}

/// Replays words. Holds everything that they change.
pub(crate) struct Replay<'a, D: OverflowSink> {
    pub(crate) core: &'a mut Core,
    pub(crate) shared: &'a mut SharedLevels,
    pub(crate) program: &'a mut ReplayedProgram,
    pub(crate) cursor: &'a mut Cursor,
    pub(crate) sink: &'a mut D,
    /// Index of the first word whose instructions have not retired.
    retired_to: usize,
    /// Index of the first word whose accesses have not been counted by data.
    counted_to: usize,
    /// True if another machine has replayed the words before.
    is_repeated: bool,
    /// Accesses that go elsewhere on this machine.
    moves: Option<MovesOf<'a>>,
}

/// The hot loop. Replays words while each is a run within one line that the fronts of cache and TLB
/// hold, until `ran` is full. Returns the number of replayed words. It may leave the last one.
///
/// It calls no function, so that its variables stay in registers, and replays two words per
/// iteration. The host executes five instructions per cycle here, so each saved instruction counts.
/// For that reason [`wire::SEVERAL`] remains in the address, where it matches no held line.
#[inline(never)]
fn take_hits<const HUGE: bool>(
    core: &mut Core,
    entries: &mut Entries,
    words: &[AtomicU64],
    ran: &mut Tally,
) -> usize {
    let mut touches = core.touches();
    let mut sum = *ran;
    let mut hits = |word: &AtomicU64, turn: usize, sum: &mut Tally| {
        let word = word.load(Ordering::Relaxed);
        let addr = word & (wire::SEVERAL | wire::ADDRESS);
        let hit = touches.touch_with::<HUGE>(addr, entries.stores(word));
        if hit {
            sum.add(entries.execute(word, turn));
        }
        hit
    };
    let mut rest = words;
    while let [one, other, after @ ..] = rest {
        if !hits(one, 0, &mut sum) {
            break;
        }
        if !hits(other, 1, &mut sum) {
            rest = &rest[1..];
            break;
        }
        rest = after;
        if sum.is_full() {
            break;
        }
    }
    *ran = sum;
    words.len() - rest.len()
}

/// Replays words from `words[at]` until one is not a run within a single line, or the events are
/// full. Returns the index of the next word.
fn take_runs(
    core: &mut Core,
    shared: &SharedLevels,
    entries: &mut Entries,
    events: &mut PendingEvents,
    words: &[AtomicU64],
    mut at: usize,
) -> usize {
    loop {
        at += match core.has_huge_pages() {
            true => take_hits::<true>(core, entries, &words[at..], &mut events.ran),
            false => take_hits::<false>(core, entries, &words[at..], &mut events.ran),
        };
        let Some(word) = load(words, at).filter(|word| word & wire::SEVERAL == 0) else {
            return at;
        };
        let (addr, stores) = (word & wire::ADDRESS, entries.stores(word));
        events.add(at, entries.execute(word, at));
        let missed = core.touches().take(addr, stores);
        if !missed.is_nothing() {
            core.expect(shared, addr, missed);
            events.note(at, PendingKind::AccessRun, addr, missed);
        }
        at += 1;
        if events.is_full() {
            return at;
        }
    }
}

/// An access of a word.
#[derive(Clone, Copy)]
struct AccessPlace<'w> {
    words: &'w [AtomicU64],
    /// Index of the word.
    at: usize,
    block: u32,
    /// Index of the access in the catalogue.
    index: u32,
    /// The access goes elsewhere on this machine.
    is_moved: bool,
}

/// Returns true for marks that the caller handles: waits and regions of interest.
fn is_for_caller(mark: u64) -> bool {
    matches!(wire::mark(mark), wire::MARK_SYNC | wire::MARK_REGION)
}

impl<'a, D: OverflowSink> Replay<'a, D> {
    pub(crate) fn new(
        core: &'a mut Core,
        shared: &'a mut SharedLevels,
        program: &'a mut ReplayedProgram,
        cursor: &'a mut Cursor,
        sink: &'a mut D,
    ) -> Self {
        Replay {
            core,
            shared,
            program,
            cursor,
            sink,
            retired_to: 0,
            counted_to: 0,
            is_repeated: false,
            moves: None,
        }
    }

    /// Creates a replay of words that another machine has replayed already, so that their marks have
    /// been handled. With `moves`, some accesses go elsewhere.
    pub(crate) fn repeated(
        core: &'a mut Core,
        shared: &'a mut SharedLevels,
        program: &'a mut ReplayedProgram,
        cursor: &'a mut Cursor,
        sink: &'a mut D,
        moves: Option<MovesOf<'a>>,
    ) -> Self {
        Replay {
            is_repeated: true,
            moves,
            ..Replay::new(core, shared, program, cursor, sink)
        }
    }

    /// Replays words from `words[at]`. Returns the index at which it stopped: their end, a wait, a
    /// region of interest, or an incomplete group of words. With `whole`, no further words will
    /// come.
    pub(crate) fn run(&mut self, words: &[AtomicU64], mut at: usize, whole: bool) -> usize {
        let start = at;
        self.retired_to = start;
        self.counted_to = start;
        self.cursor.events.set_limit(self.shared.recalls());
        if at == 0 {
            // Words of the previous slice are gone.
            self.core.end_loads();
        }
        while at < words.len() {
            let stopped = match self.moves {
                None => self.take_runs(words, at),
                Some(_) => self.take_moved_runs(words, at),
            };
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
                Some(mark) if is_for_caller(mark) => break,
                Some(mark) => match self.handle_mark(mark, words, at, whole) {
                    Some(taken) => at += taken,
                    None => break,
                },
                None => break,
            }
        }
        if at > start {
            self.complete(words);
            self.settle(words, at - 1);
            self.count_accesses(words, at);
            self.sink.follow(self.program, words, at);
        }
        at
    }

    fn take_runs(&mut self, words: &[AtomicU64], at: usize) -> usize {
        let entries = &mut self.program.catalogue.entries;
        take_runs(
            self.core,
            self.shared,
            entries,
            &mut self.cursor.events,
            words,
            at,
        )
    }

    /// The same as [`Self::take_runs`], with some accesses elsewhere.
    fn take_moved_runs(&mut self, words: &[AtomicU64], mut at: usize) -> usize {
        while let Some(word) = load(words, at).filter(|word| word & wire::SEVERAL == 0) {
            let block = origin(words, at).map(|(block, _)| block);
            let moves = self.moves.as_mut();
            let is_moved = block.zip(moves).is_some_and(|(block, moves)| {
                let program = &self.program;
                moves.concerns_run(block, words, at, &program.catalogue, &program.space)
            });
            match is_moved {
                // The word of the first line has all accesses of the run.
                true if wire::is_other_line(word) => {}
                true => self.run_in_lines(words, at, word),
                false => self.take_run(at, word),
            }
            at += 1;
            if self.cursor.events.is_full() {
                break;
            }
        }
        at
    }

    /// Replays a run within a line whose accesses stay.
    fn take_run(&mut self, at: usize, word: u64) {
        let entries = &mut self.program.catalogue.entries;
        let (addr, stores) = (word & wire::ADDRESS, entries.stores(word));
        self.cursor.events.add(at, entries.execute(word, at));
        let missed = self.core.touches().take(addr, stores);
        if !missed.is_nothing() {
            self.core.expect(self.shared, addr, missed);
            let events = &mut self.cursor.events;
            events.note(at, PendingKind::AccessRun, addr, missed);
            self.note_stayed(false, addr);
        }
    }

    /// Returns the address to which the access with this index goes instead of `addr`, and whether
    /// it moved.
    fn moved(&mut self, index: u32, addr: u64) -> (u64, bool) {
        let moves = self.moves.as_mut();
        match moves.and_then(|moves| moves.place(index, addr)) {
            Some(moved) => (moved, true),
            None => (addr, false),
        }
    }

    /// Looks up which accesses of a block move.
    fn look_up_moves(&mut self, block: u32) {
        if let Some(moves) = &mut self.moves {
            moves.concerns(block, &self.program.catalogue, &self.program.space);
        }
    }

    /// Notes a miss of an access that no layout moved.
    fn note_stayed(&mut self, is_moved: bool, addr: u64) {
        if let Some(moves) = self.moves.as_mut().filter(|_| !is_moved) {
            moves.moves.note_miss(addr);
        }
    }

    /// Counts the loads and stores of the words before `end` by data, if that is wanted. Special
    /// blocks count their own.
    ///
    /// This is a separate pass, so that the hot loop has nothing to do for it.
    fn count_accesses(&mut self, words: &[AtomicU64], end: usize) {
        let from = std::mem::replace(&mut self.counted_to, end);
        let Some((data, catalogue, space)) = self.counted_data() else {
            return;
        };
        let mut position = RunPosition::before(words, from);
        for word in (from..end).filter_map(|at| load(words, at)) {
            let Some((block, number)) = position.step(word) else {
                continue;
            };
            let is_special = catalogue
                .block(block)
                .is_none_or(|block| block.is_special());
            let Some(run) = catalogue.run(block, number).filter(|_| !is_special) else {
                continue;
            };
            let first = word & wire::ADDRESS;
            for index in run.accesses() {
                let access = catalogue.access(index);
                if access.path != AccessPath::Prefetch {
                    let addr = first.wrapping_add(access.delta as u64);
                    data.count(addr, access.kind, 1, space);
                }
            }
        }
    }

    /// Returns the data by which accesses are counted, with the code and mappings that identify
    /// them. `None` if they are not counted now.
    fn counted_data(&mut self) -> Option<(&mut DataMap, &Catalogue, &AddressSpace)> {
        let is_counted = !self.is_repeated && !self.program.is_outside;
        let ReplayedProgram {
            data,
            catalogue,
            space,
            ..
        } = &mut *self.program;
        let data = data.as_deref_mut();
        let data = data.filter(|data| is_counted && data.counts_accesses)?;
        Some((data, catalogue, space))
    }

    /// Completes all recorded events in order.
    fn complete(&mut self, words: &[AtomicU64]) {
        let mut events = self.cursor.events.take();
        for event in &mut events {
            self.look_up(words, event);
        }
        let is_simple = self.charges_only_code_and_data();
        for event in &events {
            self.retire_until(words, event.at as usize, event.ran);
            match event.kind {
                PendingKind::Access(index) => self.supply(words, event, index, is_simple),
                PendingKind::Prefetch(index) => self.prefetch(words, event, index),
                PendingKind::Split => self.core.count_split(),
                PendingKind::AccessRun | PendingKind::Settle => {}
            }
        }
        self.cursor.events.give_back(events);
    }

    /// Finds the access of an event. Without a known run, the event remains unchanged.
    #[inline(always)]
    fn look_up(&mut self, words: &[AtomicU64], event: &mut PendingEvent) {
        if event.kind != PendingKind::AccessRun {
            return;
        }
        match self.access_at(words, event) {
            Some(index) => {
                event.kind = PendingKind::Access(index);
                if let Some(data) = &self.program.data {
                    data.prefetch_sums(event.addr);
                }
            }
            None => self.cursor.stray += 1,
        }
    }

    /// Returns the access of a run that an event belongs to: the first one in its line. The event
    /// gets its address.
    #[inline(always)]
    fn access_at(&self, words: &[AtomicU64], event: &mut PendingEvent) -> Option<u32> {
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

    /// Returns the run whose word is at `at`, and its block.
    #[inline(always)]
    fn run_at(&self, words: &[AtomicU64], at: usize) -> Option<(u32, AccessRun)> {
        let (block, number) = origin(words, at)?;
        Some((block, self.program.catalogue.run(block, number?)?))
    }

    /// Supplies an access with what it missed. `charges_only_code_and_data` is the result of the
    /// function of that name.
    #[inline(always)]
    fn supply(
        &mut self,
        words: &[AtomicU64],
        event: &PendingEvent,
        index: u32,
        charges_only_code_and_data: bool,
    ) {
        let access = self.program.catalogue.access(index);
        let (addr, size) = (event.addr, u32::from(access.size));
        self.note_store(access.kind, addr);
        let mut missed = event.missed;
        if charges_only_code_and_data {
            match self
                .core
                .supply_from_l2(self.shared, missed, addr, access.kind)
            {
                Ok(stalled) => return self.charge_l2_hit(index, addr, stalled),
                Err(left) => missed = left,
            }
        }
        let bytes = if event.missed.may_be_watched() {
            self.bytes_in_line(words, event, index)
        } else if self.shared.is_coherent() {
            LineBytes::of(addr, size, access.kind)
        } else {
            LineBytes::default()
        };
        let line_access = LineAccess {
            addr,
            size,
            kind: access.kind,
            bytes,
        };
        let (core, mut outcome) = (&mut self.core, AccessOutcome::default());
        let mut order = MissedLoad {
            dependences: &mut self.program.dependences,
            catalogue: &self.program.catalogue,
            words,
            at: event.at as usize,
            index,
        };
        core.supply_line(self.shared, missed, &line_access, &mut order, &mut outcome);
        self.charge(index, addr, &outcome);
        self.charge_python(words, event.at as usize, &outcome);
        if !outcome.sharing.is_none() {
            let block = origin(words, event.at as usize).map_or(0, |(block, _)| block);
            self.charge_sharing(
                SharingPlace {
                    line: addr,
                    block,
                    index,
                },
                bytes,
                &outcome,
            );
        }
        if outcome.overflow {
            let block = origin(words, event.at as usize).map_or(0, |(block, _)| block);
            self.pass_access_overflows(words, event.at as usize, block, index);
        }
    }

    /// Returns the bytes of a line that the accesses of a run touch.
    fn bytes_in_line(&self, words: &[AtomicU64], event: &PendingEvent, index: u32) -> LineBytes {
        let catalogue = &self.program.catalogue;
        let mut bytes = LineBytes::default();
        let mut add = |index: u32, addr: u64| {
            if addr / LINE == event.addr / LINE {
                let access = catalogue.access(index);
                bytes.add(addr, u32::from(access.size), access.kind);
            }
        };
        // Accesses that moved have no common first address.
        let run = match self.moves {
            None => self.run_at(words, event.at as usize),
            Some(_) => None,
        };
        match run.filter(|(_, run)| run.accesses().contains(&index)) {
            Some((_, run)) => {
                // The address of one access determines those of the others.
                let first = event
                    .addr
                    .wrapping_sub(catalogue.access(index).delta as u64);
                for other in run.accesses() {
                    add(
                        other,
                        first.wrapping_add(catalogue.access(other).delta as u64),
                    );
                }
            }
            None => add(index, event.addr),
        }
        bytes
    }

    #[cold]
    fn charge_sharing(&mut self, place: SharingPlace, bytes: LineBytes, outcome: &AccessOutcome) {
        if !self.program.is_outside {
            let data = self.program.data.as_deref();
            self.cursor.sharing.add(place, bytes, outcome, data);
        }
    }

    fn note_store(&mut self, kind: AccessKind, addr: u64) {
        if kind == AccessKind::Store && self.cursor.first_store.is_none() {
            self.cursor.first_store = Some(addr);
        }
    }

    #[cold]
    fn pass_access_overflows(&mut self, words: &[AtomicU64], at: usize, block: u32, index: u32) {
        self.sink.follow(self.program, words, at + 1);
        let ip = self.program.catalogue.ip(block, index);
        self.sink.take(self.core, ip);
    }

    /// Retires what was executed up to the word at `at`.
    fn settle(&mut self, words: &[AtomicU64], at: usize) {
        let ran = std::mem::take(&mut self.cursor.events.ran);
        self.retire_until(words, at, ran);
    }

    #[inline(always)]
    fn retire_until(&mut self, words: &[AtomicU64], at: usize, ran: Tally) {
        let (insns, loads, stores) = (ran.insns(), ran.loads(), ran.stores());
        if self.core.may_overflow(insns, loads, stores) {
            self.retire_each(words, at, ran);
        } else if self.core.retire(insns, loads, stores, ran.modifies()) {
            self.pass_block_overflows(words, at);
        }
        self.retired_to = at + 1;
    }

    /// Retires word by word, so that an overflow belongs to the block that causes it and not to the
    /// next one that misses.
    #[cold]
    fn retire_each(&mut self, words: &[AtomicU64], at: usize, ran: Tally) {
        let mut left = ran;
        for place in self.retired_to..at {
            let part = self.tally_at(words, place);
            if !left.holds(part) {
                break;
            }
            left.take_off(part);
            self.retire(words, place, part);
        }
        self.retire(words, at, left);
    }

    fn tally_at(&self, words: &[AtomicU64], at: usize) -> Tally {
        let catalogue = &self.program.catalogue;
        match load(words, at) {
            Some(word) if wire::id(word) < wire::MARKS => catalogue.entries.tally(word),
            Some(word) if wire::mark(word) == wire::MARK_BLOCK => {
                let block = catalogue.block(word as u32);
                block.map_or_else(Tally::default, |block| block.tally)
            }
            _ => Tally::default(),
        }
    }

    fn retire(&mut self, words: &[AtomicU64], at: usize, ran: Tally) {
        let (insns, loads) = (ran.insns(), ran.loads());
        if self.core.retire(insns, loads, ran.stores(), ran.modifies()) {
            self.pass_block_overflows(words, at);
        }
    }

    #[cold]
    fn pass_block_overflows(&mut self, words: &[AtomicU64], at: usize) {
        let block = origin(words, at).and_then(|(number, _)| self.program.catalogue.block(number));
        let ip = VirtAddr(block.map_or(0, |block| block.vaddr));
        self.sink.follow(self.program, words, at + 1);
        self.sink.take(self.core, ip);
    }

    /// Handles the mark at `at`. Returns the number of words it takes, or `None` if some are
    /// missing.
    #[inline(never)]
    fn handle_mark(
        &mut self,
        word: u64,
        words: &[AtomicU64],
        at: usize,
        whole: bool,
    ) -> Option<usize> {
        let number = word as u32;
        let counts = u64::from(!self.program.is_outside);
        let block = self.program.catalogue.block_mut(number);
        match block.filter(|_| wire::mark(word) == wire::MARK_BLOCK) {
            Some(block) if block.is_special() => self.replay_special(number, words, at, whole),
            Some(block) => {
                block.execs += counts;
                self.cursor.events.add(at, block.tally);
                self.cursor.repeating = None;
                Some(1)
            }
            // Only stacks need it, which follow the words themselves.
            None if wire::mark(word) == wire::MARK_PYTHON => {
                (words.len() - at >= python::MARK_WORDS).then_some(python::MARK_WORDS)
            }
            None if wire::mark(word) == wire::MARK_FILE_WAIT => self.file_wait(words, at, whole),
            None => self.heap_mark(words, at, whole),
        }
    }

    /// Handles a wait for a file. Returns the number of its words, or `None` if some are missing.
    fn file_wait(&mut self, words: &[AtomicU64], at: usize, whole: bool) -> Option<usize> {
        let Some(wait) = FileWaitMark::at(words, at) else {
            if !whole && words.len() - at < file_waits::MARK_WORDS {
                return None;
            }
            self.cursor.stray += 1;
            return Some(1);
        };
        if !self.is_repeated {
            let source = FileWaitSource {
                file_use: wait.file_use,
                path: wait.path,
                python: self.python_frames(words, at),
            };
            *self.program.file_waits.entry(source).or_default() += wait.ns;
        }
        Some(file_waits::MARK_WORDS)
    }

    /// Number of the thread's frames of Python before `at`, or 0 without any.
    fn python_frames(&mut self, words: &[AtomicU64], at: usize) -> u32 {
        if !self.program.python.is_used() {
            return 0;
        }
        self.sink.follow(self.program, words, at);
        self.sink.python_frames(self.program)
    }

    /// Handles an allocation or a free. Returns the number of its words, or `None` if some are
    /// missing.
    fn heap_mark(&mut self, words: &[AtomicU64], at: usize, whole: bool) -> Option<usize> {
        let is_first = matches!(
            wire::mark(load(words, at)?),
            wire::MARK_ALLOCATED | wire::MARK_FREED
        );
        let Some((mut mark, length)) = HeapMark::at(words, at) else {
            if is_first && !whole {
                return None;
            }
            self.cursor.stray += 1;
            return Some(1);
        };
        // Earlier accesses belong to the objects of that time.
        self.complete(words);
        self.count_accesses(words, at);
        // The time includes instructions since the last miss, wherever the batch of words began.
        if let Some(before) = at.checked_sub(1) {
            self.settle(words, before);
        }
        let now_ns = self.core.time_ns();
        if let HeapMark::Allocated { by, .. } = &mut mark
            && !self.is_repeated
        {
            by.python = self.python_frames(words, at);
        }
        if let Some(data) = self.program.data.as_mut().filter(|_| !self.is_repeated) {
            let is_temporary = mark.frees_temporary(&mut self.cursor.latest_allocation);
            let latest_free = self.cursor.latest_free.take();
            let kept_bytes = match (&mark, latest_free) {
                (HeapMark::Allocated { by, .. }, Some((function, bytes)))
                    if by.function == function =>
                {
                    bytes
                }
                _ => 0,
            };
            let freed_bytes = data.take(&mark, now_ns, is_temporary, kept_bytes);
            match mark {
                HeapMark::Freed { function, .. } => {
                    self.cursor.latest_free = Some((function, freed_bytes));
                }
                HeapMark::Allocated { address, bytes, .. } => {
                    let lines = address.next_multiple_of(LINE)..(address + bytes) / LINE * LINE;
                    self.core.report_first_use(self.shared, lines);
                }
            }
        }
        Some(length)
    }

    /// Replays a run in two lines, access by access.
    #[inline(never)]
    fn run_in_lines(&mut self, words: &[AtomicU64], at: usize, word: u64) {
        let ran = self.program.catalogue.entries.execute(word, at);
        self.cursor.events.add(at, ran);
        let run = origin(words, at).and_then(|(block, number)| Some((block, number?)));
        let catalogue = &mut self.program.catalogue;
        if let Some((block, number)) = run
            && self.moves.is_none()
            && let Some(lines) = catalogue.two_lines(block, number, word & wire::ADDRESS)
            && lines.touch(&mut self.core.touches(), word & wire::ADDRESS)
        {
            return;
        }
        let run = run.and_then(|(block, number)| Some((block, catalogue.run(block, number)?)));
        let Some((block, run)) = run else {
            self.cursor.stray += 1;
            return;
        };
        // All runs of a block may be in several lines.
        self.look_up_moves(block);
        let first = word & wire::ADDRESS;
        let mut before = Touched::default();
        for index in run.accesses() {
            let delta = self.program.catalogue.access(index).delta;
            let (addr, is_moved) = self.moved(index, first.wrapping_add(delta as u64));
            let access = self.program.catalogue.access(index);
            let place = AccessPlace {
                words,
                at,
                block,
                index,
                is_moved,
            };
            match access.path {
                AccessPath::NonTemporal => {
                    self.complete(words);
                    self.settle(words, at);
                    self.store_non_temporal(place, addr, u32::from(access.size));
                }
                AccessPath::Prefetch => {
                    let requested = first.wrapping_add(delta as u64);
                    self.prefetch_ahead(place, requested, addr);
                }
                AccessPath::Cached => {
                    if !before.covers(addr, u32::from(access.size), access.kind) {
                        self.access_ahead(place, addr);
                    }
                }
            }
        }
    }

    /// Replays an access of a run.
    fn access_ahead(&mut self, place: AccessPlace<'_>, addr: u64) {
        let AccessPlace {
            words, at, index, ..
        } = place;
        let access = self.program.catalogue.access(index);
        let (kind, size) = (access.kind, u32::from(access.size));
        let noted = if Core::crosses_line(addr, size) {
            self.note_split(at, addr, size, kind)
        } else {
            self.note_access(place, addr, kind);
            true
        };
        if !noted || self.cursor.events.is_full() {
            self.complete(words);
        }
        if !noted {
            self.settle(words, at);
            self.access(place, (kind, addr, size));
        }
    }

    /// Looks up a prefetch of `addr` in the first level and notes it if anything is missing. It does
    /// nothing if the program has no memory at the `requested` address.
    fn prefetch_ahead(&mut self, place: AccessPlace<'_>, requested: u64, addr: u64) {
        if self.program.space.left_from(requested).is_none() {
            return;
        }
        let missed = self.core.look_up_prefetch(addr);
        if missed.is_nothing() {
            return;
        }
        self.core.expect(self.shared, addr, missed);
        self.note_stayed(place.is_moved, addr);
        let events = &mut self.cursor.events;
        events.note(place.at, PendingKind::Prefetch(place.index), addr, missed);
        if events.is_full() {
            self.complete(place.words);
        }
    }

    /// Performs a prefetch that the first level lacked a part of.
    fn prefetch(&mut self, words: &[AtomicU64], event: &PendingEvent, index: u32) {
        let outcome = self.core.prefetch(self.shared, event.missed, event.addr);
        if !self.program.is_outside {
            charge(self.program, index, &outcome);
            let ReplayedProgram { data, space, .. } = &mut *self.program;
            if let Some(data) = data.as_mut().filter(|_| !self.is_repeated) {
                data.charge_prefetch(event.addr, &outcome, space);
            }
        }
        let at = event.at as usize;
        self.charge_python(words, at, &outcome);
        if outcome.overflow {
            let block = origin(words, at).map_or(0, |(block, _)| block);
            self.pass_access_overflows(words, at, block, index);
        }
    }

    fn note_access(&mut self, place: AccessPlace<'_>, addr: u64, kind: AccessKind) {
        let store = kind != AccessKind::Load;
        if self.core.touch(addr, store) {
            return;
        }
        let missed = self.core.touches().take(addr, store);
        if !missed.is_nothing() {
            self.core.expect(self.shared, addr, missed);
            let events = &mut self.cursor.events;
            events.note(place.at, PendingKind::Access(place.index), addr, missed);
            self.note_stayed(place.is_moved, addr);
        }
    }

    /// Records a split that hits. Returns false, without an effect, if it does not.
    fn note_split(&mut self, at: usize, addr: u64, size: u32, kind: AccessKind) -> bool {
        let store = kind != AccessKind::Load;
        let hit = !self.core.samples_splits() && self.core.touches().touch_split(addr, size, store);
        if hit {
            let events = &mut self.cursor.events;
            events.note(at, PendingKind::Split, addr, Missed::NOTHING);
        }
        hit
    }

    /// Performs an access. Returns true for a plain hit.
    #[inline(always)]
    fn access(
        &mut self,
        place: AccessPlace<'_>,
        (kind, addr, size): (AccessKind, u64, u32),
    ) -> bool {
        self.note_store(kind, addr);
        let outcome = self.core.access(self.shared, addr, size, kind);
        if outcome.is_plain_hit() && !outcome.overflow {
            return true;
        }
        if outcome.l1d_misses > 0 {
            self.note_stayed(place.is_moved, addr);
        }
        let bytes = LineBytes::of(addr, size, kind);
        self.charge_all(place, (addr, size), bytes, &outcome);
        false
    }

    /// Performs a store that bypasses the caches.
    #[cold]
    fn store_non_temporal(&mut self, place: AccessPlace<'_>, addr: u64, size: u32) {
        self.note_store(AccessKind::Store, addr);
        let outcome = self.core.store_non_temporal(self.shared, addr, size);
        let bytes = LineBytes::of(addr, size, AccessKind::Store);
        self.charge_all(place, (addr, size), bytes, &outcome);
    }

    /// Charges an access that did not simply hit.
    #[inline(always)]
    fn charge_all(
        &mut self,
        place: AccessPlace<'_>,
        (addr, size): (u64, u32),
        bytes: LineBytes,
        outcome: &AccessOutcome,
    ) {
        self.charge(place.index, addr, outcome);
        if Core::crosses_line(addr, size)
            && !self.is_repeated
            && let Some(data) = &mut self.program.data
        {
            data.touch(addr, u64::from(size), &self.program.space);
        }
        self.charge_python(place.words, place.at, outcome);
        if !outcome.sharing.is_none() {
            self.charge_sharing(
                SharingPlace {
                    line: addr,
                    block: place.block,
                    index: place.index,
                },
                bytes,
                outcome,
            );
        }
        if outcome.overflow {
            self.pass_access_overflows(place.words, place.at, place.block, place.index);
        }
    }

    /// Returns true if accesses are charged to their code and data, and to nothing else.
    fn charges_only_code_and_data(&self) -> bool {
        !self.program.is_outside && !self.program.python.is_used()
    }

    /// Charges an access that hit in the second level.
    #[inline(always)]
    fn charge_l2_hit(&mut self, index: u32, addr: u64, stalled: u64) {
        let program = &mut *self.program;
        make_room(program, index);
        program.sites[index as usize].l1d += 1;
        if stalled > 0 {
            program.stalls[index as usize].l2 += stalled;
        }
        if let Some(data) = program.data.as_mut().filter(|_| !self.is_repeated) {
            data.charge_l2_hit(addr, stalled, &program.space);
        }
    }

    #[inline(always)]
    fn charge(&mut self, index: u32, addr: u64, outcome: &AccessOutcome) {
        let is_outside = self.program.is_outside;
        if !is_outside {
            charge(self.program, index, outcome);
        }
        let ReplayedProgram { data, space, .. } = &mut *self.program;
        match data {
            // A repeated word is older than the latest allocations.
            _ if self.is_repeated => {}
            Some(data) if is_outside => data.touch(addr, 1, space),
            Some(data) => data.charge(addr, outcome, space),
            None => {}
        }
    }

    /// Charges an access of the word at `at` to the line of Python that makes it.
    #[inline(always)]
    fn charge_python(&mut self, words: &[AtomicU64], at: usize, outcome: &AccessOutcome) {
        if self.program.python.is_used() && !self.program.is_outside {
            self.sink.follow(self.program, words, at + 1);
            self.sink.charge_python(self.program, outcome);
        }
    }

    /// Replays a block whose number of accesses varies between executions: rep instructions and
    /// varying operands. Returns the number of its words, or `None` if some are missing.
    fn replay_special(
        &mut self,
        number: u32,
        words: &[AtomicU64],
        at: usize,
        whole: bool,
    ) -> Option<usize> {
        let catalogue = &self.program.catalogue;
        let mut special = Special::of(catalogue, number, &words[at + 1..], whole)?;
        let mut sum = SpecialBlockCounts::new(catalogue.block(number)?.tally);
        self.complete(words);
        self.settle(words, at);
        sum.insns -= u32::from(special.goes_on(&mut self.cursor.repeating));
        self.look_up_moves(number);
        let mut times = 1;
        // Accesses of an iteration, if they are counted by data.
        let mut accesses: Vec<(u64, AccessKind)> = Vec::new();
        let counts_accesses = self.counted_data().is_some();
        loop {
            let mut hits = true;
            let mut string = StringElement::default();
            while let Some(access) = special.next(&self.program.catalogue) {
                if access.repeats {
                    string.add(access.kind, access.size);
                }
                // An instruction that repeats passes through the members of an object.
                let (addr, is_moved) = match access.varying {
                    true => (access.addr, false),
                    false => self.moved(access.index, access.addr),
                };
                if access.varying {
                    sum.access(access.kind);
                }
                let place = AccessPlace {
                    words,
                    at,
                    block: number,
                    index: access.index,
                    is_moved,
                };
                let path = self.program.catalogue.access(access.index).path;
                if counts_accesses && path != AccessPath::Prefetch {
                    accesses.push((access.addr, access.kind));
                }
                match path {
                    AccessPath::NonTemporal => {
                        self.store_non_temporal(place, addr, access.size);
                        hits = false;
                    }
                    AccessPath::Prefetch => {
                        self.prefetch_ahead(place, access.addr, addr);
                        self.complete(words);
                    }
                    AccessPath::Cached => {
                        hits &= self.access(place, (access.kind, addr, access.size));
                    }
                }
            }
            self.cursor.stray += special.left();
            // Repeated accesses that all hit in their lines hit again and change nothing.
            times += if hits { special.pass_repeats() } else { 0 };
            if let Some((data, _, space)) = self.counted_data() {
                for (addr, kind) in accesses.drain(..) {
                    data.count(addr, kind, u64::from(times), space);
                }
            }
            sum.string_millicycles = string.millicycles();
            self.count_special(number, sum, times, words, at);
            if !special.repeat(&self.program.catalogue) {
                break;
            }
            (sum, times) = (SpecialBlockCounts::default(), 1);
        }
        let taken = 1 + special.len();
        self.retired_to = at + taken;
        Some(taken)
    }

    /// Counts an execution that repeats its accesses `times` times.
    fn count_special(
        &mut self,
        number: u32,
        once: SpecialBlockCounts,
        times: u32,
        words: &[AtomicU64],
        at: usize,
    ) {
        let sum = once.times(times);
        let is_inside = !self.program.is_outside;
        let block = self.program.catalogue.block_mut(number);
        if let Some(block) = block.filter(|_| is_inside) {
            block.execs += u64::from(times);
            block.sums.instructions += u64::from(sum.insns);
            block.sums.loads += u64::from(sum.loads);
            block.sums.stores += u64::from(sum.stores);
            block.sums.string_millicycles += sum.string_millicycles;
        }
        if sum.string_millicycles > 0 && is_inside && self.program.python.is_used() {
            self.sink.follow(self.program, words, at + 1);
            self.sink
                .charge_python_string(self.program, sum.string_millicycles);
        }
        // A sample belongs to the iteration that overflows.
        if self.core.may_overflow(sum.insns, sum.loads, sum.stores) {
            self.retire_sum(once, words, at);
            (1..times).for_each(|_| self.retire_sum(once.again(), words, at));
        } else {
            self.retire_sum(sum, words, at);
        }
    }

    fn retire_sum(&mut self, sum: SpecialBlockCounts, words: &[AtomicU64], at: usize) {
        let (insns, loads) = (sum.insns, sum.loads);
        if sum.string_millicycles > 0 {
            self.core.repeat_string(sum.string_millicycles);
        }
        if self.core.retire(insns, loads, sum.stores, sum.modifies) {
            self.pass_block_overflows(words, at);
        }
    }
}

/// Charges an access's misses to its code location.
#[inline(always)]
fn charge(program: &mut ReplayedProgram, index: u32, outcome: &AccessOutcome) {
    make_room(program, index);
    program.sites[index as usize].add(outcome);
    if !outcome.stalled.is_none() {
        program.stalls[index as usize].add(outcome);
    }
}

/// Makes room for the costs of an access of the catalogue.
#[inline(always)]
fn make_room(program: &mut ReplayedProgram, index: u32) {
    if index as usize >= program.sites.len() {
        let accesses = program.catalogue.access_count();
        program.sites.resize(accesses, SiteMisses::default());
        program.stalls.resize(accesses, SiteStalls::default());
    }
}

/// Line of the previous access in a run. The next access to the same line changes nothing in the
/// model, unless it is the first to store.
#[derive(Default)]
struct Touched {
    /// End of the line, or 0.
    end: u64,
    stored: bool,
}

impl Touched {
    /// Returns true if the access changes nothing. Otherwise remembers it.
    #[inline(always)]
    fn covers(&mut self, addr: u64, size: u32, kind: AccessKind) -> bool {
        let stores = kind != AccessKind::Load;
        let end = (addr / LINE + 1).wrapping_mul(LINE);
        let crosses = Core::crosses_line(addr, size);
        if !crosses && end == self.end && (self.stored || !stores) {
            return true;
        }
        *self = match crosses {
            true => Touched::default(),
            false => Touched {
                end,
                stored: stores || end == self.end && self.stored,
            },
        };
        false
    }
}

/// Counts that an execution of a special block adds.
#[derive(Clone, Copy, Default)]
struct SpecialBlockCounts {
    insns: u32,
    loads: u32,
    stores: u32,
    modifies: u32,
    /// Time of the elements of a string instruction.
    string_millicycles: u64,
}

/// Accesses of an iteration of a string instruction.
#[derive(Default)]
struct StringElement {
    accesses: u32,
    stored_bytes: u32,
}

impl StringElement {
    fn add(&mut self, kind: AccessKind, bytes: u32) {
        self.accesses += 1;
        if kind != AccessKind::Load {
            self.stored_bytes += bytes;
        }
    }

    fn millicycles(&self) -> u64 {
        match self.accesses {
            0 => 0,
            _ => string_millicycles(u64::from(self.stored_bytes)),
        }
    }
}

impl SpecialBlockCounts {
    fn new(tally: Tally) -> SpecialBlockCounts {
        SpecialBlockCounts {
            insns: tally.insns(),
            loads: tally.loads(),
            stores: tally.stores(),
            modifies: tally.modifies(),
            string_millicycles: 0,
        }
    }

    /// Counts of a repetition, which is not an instruction of its own.
    fn again(self) -> SpecialBlockCounts {
        SpecialBlockCounts { insns: 0, ..self }
    }

    fn times(self, times: u32) -> SpecialBlockCounts {
        SpecialBlockCounts {
            insns: self.insns,
            loads: self.loads * times,
            stores: self.stores * times,
            modifies: self.modifies * times,
            string_millicycles: self.string_millicycles * u64::from(times),
        }
    }

    fn access(&mut self, kind: AccessKind) {
        self.loads += u32::from(kind != AccessKind::Store);
        self.stores += u32::from(kind != AccessKind::Load);
        self.modifies += u32::from(kind == AccessKind::Modify);
    }
}

pub(crate) mod sets;
#[cfg(test)]
mod tests;
