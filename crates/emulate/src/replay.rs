//! Runs a thread's words through the modelled machine.
//!
//! This is the hot path of a recording: every block and every access of the program
//! passes here. A word costs one look at the place where the first level last had its
//! line and page, and a sum. On a miss there the first level takes the line in at once.
//! The work below it is noted and completed later, many at a time. The hot loop takes
//! all words alike, so that it has no other branch that depends on them. A loop over
//! blocks and their runs of accesses took two and a half times as long.

use std::sync::atomic::{AtomicU64, Ordering};

use memgauge_machine::{Core, LINE_BYTES, LineBytes, Missed, Outcome, Shared};
use memgauge_trace::{AccessKind, VirtAddr};

use super::address_space::AddressSpace;
use super::ahead::{Event, Events, PendingKind};
use super::catalogue::{AccessRun, Catalogue, Entries, Tally};
use super::costs::{SiteMisses, SiteStalls};
use super::data::{DataMap, HeapMark};
use super::path::ProcessCalls;
use super::sharing::{SharingPlace, ThreadSharing};
use super::wire;
use super::words::{Special, load};

const LINE: u64 = LINE_BYTES as u64;

/// Data that a process's threads share.
#[derive(Default)]
pub(super) struct Program {
    pub(super) catalogue: Catalogue,
    /// One for each access of the catalogue.
    pub(super) sites: Vec<SiteMisses>,
    /// One for each access of the catalogue. Apart from the misses, since most stores that miss
    /// stall nothing: a miss then writes one host line less.
    pub(super) stalls: Vec<SiteStalls>,
    /// The same where some sets are followed.
    pub(super) by_group: sets::GroupedSites,
    /// What runs now is outside of the regions that are recorded: no place in the code
    /// gets a count of it.
    pub(super) is_outside: bool,
    /// Where stacks are recorded.
    pub(super) calls: ProcessCalls,
    /// What is mapped.
    pub(super) space: AddressSpace,
    /// Misses by data, where they are recorded.
    pub(super) data: Option<Box<DataMap>>,
}

impl Program {
    /// Goes on inside or outside of the regions that are recorded.
    pub(super) fn set_outside(&mut self, is_outside: bool) {
        if self.is_outside != is_outside {
            self.is_outside = is_outside;
            self.catalogue.swap_outside();
        }
    }

    /// Forgets what was counted by place in the code, where nobody writes it: these
    /// counters must not overflow.
    pub(super) fn forget_counts(&mut self) {
        self.sites.fill(SiteMisses::default());
        self.stalls.fill(SiteStalls::default());
        self.catalogue.forget_counts();
        if let Some(data) = &mut self.data {
            data.forget_counts();
        }
    }
}

/// State that one thread carries from one slice of words to the next.
#[derive(Default)]
pub(super) struct Cursor {
    /// Where a rep instruction is being repeated, if the last block ended in one.
    repeating: Option<VirtAddr>,
    /// First store of the thread: it lies in its stack.
    pub(super) first_store: Option<u64>,
    /// Words that belong to no block.
    pub(super) stray: u64,
    /// Empty between two slices.
    events: Events,
    /// Where some sets are followed.
    peek: sets::Peek,
    /// Lines that the thread shares with others.
    pub(super) sharing: ThreadSharing,
}

impl Cursor {
    /// Of a thread whose first store is looked for, unless one is given.
    pub(super) fn new(first_store: Option<u64>) -> Cursor {
        Cursor {
            first_store,
            ..Cursor::default()
        }
    }
}

/// Receives overflows and ticks as they fall due.
pub(super) trait OverflowSink {
    /// The core has overflows (of an access at `ip`, or of a block) or ticks to take.
    fn take(&mut self, core: &mut Core, ip: VirtAddr);

    /// The words before `end` have been executed.
    fn follow(&mut self, _program: &mut Program, _words: &[AtomicU64], _end: usize) {}
}

/// Everything a run of words changes.
pub(super) struct Replay<'a, D: OverflowSink> {
    pub(super) core: &'a mut Core,
    pub(super) shared: &'a mut Shared,
    pub(super) program: &'a mut Program,
    pub(super) cursor: &'a mut Cursor,
    pub(super) due: &'a mut D,
    /// The core has been told of the words before this one.
    told: usize,
    /// The words were taken before, by another machine.
    is_again: bool,
}

/// The hot loop: takes words while each is a run within a line that the fronts of cache
/// and TLB know, and until `ran` is full. Returns how many it took. The last one may be
/// left.
///
/// It calls nothing, so that its variables stay in registers, and takes two words a
/// turn. The host runs it at five instructions a cycle, so each instruction less is
/// felt. So [`wire::SEVERAL`] stays in the address: no line held has it.
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

/// Takes words from `words[at]` on until one is not simply a run within a line or the
/// events are full; where it stopped.
fn take_runs(
    core: &mut Core,
    shared: &Shared,
    entries: &mut Entries,
    events: &mut Events,
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

/// Whether a mark is none of the machine's business: of who waits, or of a region.
fn is_apart(mark: u64) -> bool {
    matches!(wire::mark(mark), wire::MARK_SYNC | wire::MARK_REGION)
}

/// The block that the word at `at` belongs to, and the number of the run that the word,
/// or its second line's word, stands for, if any.
fn origin(words: &[AtomicU64], at: usize) -> Option<(u32, Option<usize>)> {
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

impl<'a, D: OverflowSink> Replay<'a, D> {
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
            told: 0,
            is_again: false,
        }
    }

    /// For words that another machine has taken: what they say of the program is known.
    pub(super) fn again(
        core: &'a mut Core,
        shared: &'a mut Shared,
        program: &'a mut Program,
        cursor: &'a mut Cursor,
        due: &'a mut D,
    ) -> Self {
        Replay {
            is_again: true,
            ..Replay::new(core, shared, program, cursor, due)
        }
    }

    /// Takes words from `words[at]` on; those before it have been taken. Returns
    /// where it stopped: at their end, at a mark of who waits or of a region, or where
    /// more words must come first. With `whole`, none will.
    pub(super) fn run(&mut self, words: &[AtomicU64], mut at: usize, whole: bool) -> usize {
        let start = at;
        self.told = start;
        self.cursor.events.set_limit(self.shared.recalls());
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
                Some(mark) if is_apart(mark) => break,
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
            self.due.follow(self.program, words, at);
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

    /// Completes what was noted, in order.
    fn complete(&mut self, words: &[AtomicU64]) {
        let mut events = self.cursor.events.take();
        for event in &mut events {
            self.look_up(words, event);
        }
        for event in &events {
            self.tell(words, event.at as usize, event.ran);
            match event.what {
                PendingKind::Access(index) => self.supply(words, event, index),
                PendingKind::Split => self.core.count_split(),
                PendingKind::AccessRun | PendingKind::Settle => {}
            }
        }
        self.cursor.events.give_back(events);
    }

    /// Finds which access of the code an event is of. One of no known run stays what
    /// it is.
    #[inline(always)]
    fn look_up(&mut self, words: &[AtomicU64], event: &mut Event) {
        if event.what != PendingKind::AccessRun {
            return;
        }
        match self.access_at(words, event) {
            Some(index) => event.what = PendingKind::Access(index),
            None => self.cursor.stray += 1,
        }
    }

    /// The access of a run that an event belongs to: the first one in its line, whose
    /// address stands for the event from then on.
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
    fn run_at(&self, words: &[AtomicU64], at: usize) -> Option<(u32, AccessRun)> {
        let (block, number) = origin(words, at)?;
        Some((block, self.program.catalogue.run(block, number?)?))
    }

    fn supply(&mut self, words: &[AtomicU64], event: &Event, index: u32) {
        let access = self.program.catalogue.access(index);
        let (addr, size) = (event.addr, u32::from(access.size));
        self.note_store(access.kind, addr);
        let bytes = if event.missed.may_be_watched() {
            self.bytes_in_line(words, event, index)
        } else if self.shared.is_coherent() {
            LineBytes::of(addr, size, access.kind)
        } else {
            LineBytes::default()
        };
        let core = &mut self.core;
        let outcome = core.supply_bytes(self.shared, event.missed, addr, size, access.kind, bytes);
        self.charge(index, addr, &outcome);
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
            self.take_overflow(words, event.at as usize, (block, index));
        }
    }

    /// The bytes that an access and the others of its run touch in its line.
    fn bytes_in_line(&self, words: &[AtomicU64], event: &Event, index: u32) -> LineBytes {
        let catalogue = &self.program.catalogue;
        let mut bytes = LineBytes::default();
        let mut add = |index: u32, addr: u64| {
            if addr / LINE == event.addr / LINE {
                let access = catalogue.access(index);
                bytes.add(addr, u32::from(access.size), access.kind);
            }
        };
        let run = self.run_at(words, event.at as usize);
        match run.filter(|(_, run)| run.accesses().contains(&index)) {
            Some((_, run)) => {
                // The address of one access gives those of the others.
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
    fn charge_sharing(&mut self, place: SharingPlace, bytes: LineBytes, outcome: &Outcome) {
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
    fn take_overflow(&mut self, words: &[AtomicU64], at: usize, (block, index): (u32, u32)) {
        self.due.follow(self.program, words, at + 1);
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
        let (insns, loads, stores) = (ran.insns(), ran.loads(), ran.stores());
        if self.core.may_overflow(insns, loads, stores) {
            self.tell_each(words, at, ran);
        } else if self.core.retire(insns, loads, stores, ran.modifies()) {
            self.take_due(words, at);
        }
        self.told = at + 1;
    }

    /// Tells word by word, so that an overflow is of the block that makes it and not of the
    /// next one that misses.
    #[cold]
    fn tell_each(&mut self, words: &[AtomicU64], at: usize, ran: Tally) {
        let mut left = ran;
        for place in self.told..at {
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
            self.take_due(words, at);
        }
    }

    #[cold]
    fn take_due(&mut self, words: &[AtomicU64], at: usize) {
        let block = origin(words, at).and_then(|(number, _)| self.program.catalogue.block(number));
        let ip = VirtAddr(block.map_or(0, |block| block.vaddr));
        self.due.follow(self.program, words, at + 1);
        self.due.take(self.core, ip);
    }

    /// The mark at `at`; how many words were taken with it, or `None` where more
    /// must come first.
    #[inline(never)]
    fn marked(&mut self, word: u64, words: &[AtomicU64], at: usize, whole: bool) -> Option<usize> {
        let number = word as u32;
        let counts = u64::from(!self.program.is_outside);
        let block = self.program.catalogue.block_mut(number);
        match block.filter(|_| wire::mark(word) == wire::MARK_BLOCK) {
            Some(block) if block.is_special() => self.special(number, words, at, whole),
            Some(block) => {
                block.execs += counts;
                self.cursor.events.add(at, block.tally);
                self.cursor.repeating = None;
                Some(1)
            }
            None => self.heap_mark(words, at, whole),
        }
    }

    /// Memory was allocated or freed; how many words say so.
    fn heap_mark(&mut self, words: &[AtomicU64], at: usize, whole: bool) -> Option<usize> {
        let is_first = matches!(
            wire::mark(load(words, at)?),
            wire::MARK_ALLOCATED | wire::MARK_FREED
        );
        let Some((mark, length)) = HeapMark::at(words, at) else {
            if is_first && !whole {
                return None;
            }
            self.cursor.stray += 1;
            return Some(1);
        };
        // What was accessed before is charged to the objects of that time.
        self.complete(words);
        let now_ns = self.core.time_ns();
        if let Some(data) = self.program.data.as_mut().filter(|_| !self.is_again) {
            data.take(&mark, now_ns);
        }
        Some(length)
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
        let mut before = Touched::default();
        for index in run.accesses() {
            let access = self.program.catalogue.access(index);
            let addr = first.wrapping_add(access.delta as u64);
            if !before.covers(addr, u32::from(access.size), access.kind) {
                self.access_ahead(words, at, first, block, index);
            }
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
            self.access((words, at), (block, index), (kind, addr, size));
        }
    }

    fn note_access(&mut self, at: usize, index: u32, addr: u64, kind: AccessKind) {
        let store = kind != AccessKind::Load;
        if self.core.touch(addr, store) {
            return;
        }
        let missed = self.core.touches().take(addr, store);
        if !missed.is_nothing() {
            self.core.expect(self.shared, addr, missed);
            let events = &mut self.cursor.events;
            events.note(at, PendingKind::Access(index), addr, missed);
        }
    }

    /// Whether a split hits, and is noted; if not, nothing was done.
    fn note_split(&mut self, at: usize, addr: u64, size: u32, kind: AccessKind) -> bool {
        let store = kind != AccessKind::Load;
        let hit = !self.core.samples_splits() && self.core.touches().touch_split(addr, size, store);
        if hit {
            let events = &mut self.cursor.events;
            events.note(at, PendingKind::Split, addr, Missed::NOTHING);
        }
        hit
    }

    /// Whether the access hit, and nothing more.
    #[inline(always)]
    fn access(
        &mut self,
        (words, at): (&[AtomicU64], usize),
        (block, index): (u32, u32),
        (kind, addr, size): (AccessKind, u64, u32),
    ) -> bool {
        self.note_store(kind, addr);
        let outcome = self.core.access(self.shared, addr, size, kind);
        if outcome.is_plain_hit() && !outcome.overflow {
            return true;
        }
        self.charge(index, addr, &outcome);
        if !outcome.sharing.is_none() {
            let bytes = LineBytes::of(addr, size, kind);
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
            self.take_overflow(words, at, (block, index));
        }
        false
    }

    #[inline(always)]
    fn charge(&mut self, index: u32, addr: u64, outcome: &Outcome) {
        if self.program.is_outside {
            return;
        }
        charge(self.program, index, outcome);
        if let Some(data) = &mut self.program.data {
            data.charge(addr, outcome, &self.program.space);
        }
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
        let mut times = 1;
        loop {
            let mut hits = true;
            while let Some(access) = special.next(&self.program.catalogue) {
                if access.varying {
                    sum.access(access.kind);
                }
                let what = (access.kind, access.addr, access.size);
                hits &= self.access((words, at), (number, access.index), what);
            }
            self.cursor.stray += special.left();
            // What hit in its lines hits in them again, and changes nothing.
            times += if hits { special.pass_repeats() } else { 0 };
            self.count_special(number, sum, times, words, at);
            if !special.repeat(&self.program.catalogue) {
                break;
            }
            (sum, times) = (Sum::default(), 1);
        }
        let taken = 1 + special.len();
        self.told = at + taken;
        Some(taken)
    }

    /// Counts an execution whose accesses came so many times.
    fn count_special(
        &mut self,
        number: u32,
        once: Sum,
        times: u32,
        words: &[AtomicU64],
        at: usize,
    ) {
        let sum = once.times(times);
        let is_inside = !self.program.is_outside;
        let block = self.program.catalogue.block_mut(number);
        if let Some(block) = block.filter(|_| is_inside) {
            block.execs += u64::from(times);
            let all = block
                .sums
                .iter_mut()
                .zip([sum.insns, sum.loads, sum.stores]);
            all.for_each(|(all, n)| *all += u64::from(n));
        }
        // Samples are of the iteration that overflows.
        if self.core.may_overflow(sum.insns, sum.loads, sum.stores) {
            self.retire_sum(once, words, at);
            (1..times).for_each(|_| self.retire_sum(once.again(), words, at));
        } else {
            self.retire_sum(sum, words, at);
        }
    }

    fn retire_sum(&mut self, sum: Sum, words: &[AtomicU64], at: usize) {
        let (insns, loads) = (sum.insns, sum.loads);
        if self.core.retire(insns, loads, sum.stores, sum.modifies) {
            self.take_due(words, at);
        }
    }
}

/// Charges an access's misses to it.
#[inline(always)]
fn charge(program: &mut Program, index: u32, outcome: &Outcome) {
    let sites = &mut program.sites;
    if index as usize >= sites.len() {
        let accesses = program.catalogue.access_count();
        sites.resize(accesses, SiteMisses::default());
        program.stalls.resize(accesses, SiteStalls::default());
    }
    sites[index as usize].add(outcome);
    if outcome.stalled.sum() > 0 {
        program.stalls[index as usize].add(outcome);
    }
}

/// The line that an access of a run touched last: the next one of the same line, if it
/// makes nothing dirty, leaves the model as it is.
#[derive(Default)]
struct Touched {
    /// Beyond the last byte of the line; 0 of none.
    end: u64,
    stored: bool,
}

impl Touched {
    /// Whether the access changes nothing; remembers it where it does.
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

/// Counts that one execution of a special block adds.
#[derive(Clone, Copy, Default)]
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

    /// Of an iteration after the first, which is no instruction of its own.
    fn again(self) -> Sum {
        Sum { insns: 0, ..self }
    }

    fn times(self, times: u32) -> Sum {
        Sum {
            insns: self.insns,
            loads: self.loads * times,
            stores: self.stores * times,
            modifies: self.modifies * times,
        }
    }

    fn access(&mut self, kind: AccessKind) {
        self.loads += u32::from(kind != AccessKind::Store);
        self.stores += u32::from(kind != AccessKind::Load);
        self.modifies += u32::from(kind == AccessKind::Modify);
    }
}

pub(super) mod sets;
#[cfg(test)]
mod tests;
