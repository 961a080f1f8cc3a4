//! Replays the threads of a session on the modelled machine.
//!
//! A [`ModelSink`] receives the results: `recorder` writes the rows of a recording, `sampled` passes
//! samples on while the program runs. The order of threads, their waits in virtual time, and the
//! counts of losses are the same for both.
//!
//! A reader for each was rejected: the second one missed the waits of killed threads and half of the
//! losses.

use std::collections::BTreeMap;

use memgauge_machine::{Core, CoreId, Delivered, Machine};
use memgauge_trace::{LossKind, catalogue as events};

use super::roi::{RegionMark, RegionMarkKind};
use crate::engine::catalogue::{Block, Catalogue, CatalogueEvent, ExecutedSums};
use crate::engine::session::{EngineSession, ProcessEntry, ThreadRing};
use crate::engine::sync::{MarkKind, SyncMark};
use crate::engine::wire;
use crate::follow::{self, Origin, ReplayProgress, ThreadWords, WordReader};
use crate::model::huge_pages::HugePages;
use crate::model::replay::{Cursor, ReplayedProgram};
use crate::time::thread_starts::StartMark;
use crate::time::waits::{MarkOrigin, Waits, host_ns};

pub(crate) type ReplayedProcess<S> =
    follow::EmulatedProcess<ModelledProcess<<S as ModelSink>::Process>>;
pub(crate) type ReplayedThread<S> =
    follow::EmulatedThread<ModelledThread<<S as ModelSink>::Thread>>;

/// State of a process.
#[derive(Default)]
pub(crate) struct ModelledProcess<P> {
    pub(crate) program: ReplayedProgram,
    /// Names of regions of interest by number.
    pub(crate) regions: BTreeMap<u32, String>,
    /// Latest virtual time of its threads.
    pub(crate) now_ns: u64,
    pub(crate) uncounted: Uncounted,
    pub(crate) huge_pages: HugePages,
    /// The sink's data about it.
    pub(crate) sink: P,
}

/// State of a thread.
pub(crate) struct ModelledThread<T> {
    pub(crate) core: CoreId,
    pub(crate) cursor: Cursor,
    pub(crate) start_ns: u64,
    /// Number of its start mark until its first word is replayed.
    start_id: u64,
    /// The sink's data about it.
    pub(crate) sink: T,
}

/// A thread whose words are replayed.
pub(crate) struct RunningThread<'a, S: ModelSink> {
    pub(crate) process: &'a mut ReplayedProcess<S>,
    pub(crate) tid: u32,
    pub(crate) thread: &'a mut ModelledThread<S::Thread>,
}

/// A core that a thread gets.
#[derive(Clone, Copy)]
pub(crate) struct NewCore {
    /// Virtual time at which it starts.
    pub(crate) start_ns: u64,
    /// Number of the address space.
    pub(crate) space: u32,
}

/// Receives what happens on the modelled machine.
pub(crate) trait ModelSink: Sized {
    type Process: Default;
    type Thread;

    /// Adds the sink's data to a process that has appeared.
    fn begin_process(
        &mut self,
        _entry: &ProcessEntry,
        _origin: &Origin<'_, ModelledProcess<Self::Process>>,
        _state: &mut ModelledProcess<Self::Process>,
    ) {
    }

    /// Creates the sink's data for a thread that has appeared, and sets up its core.
    fn begin_thread(
        &mut self,
        process: &ReplayedProcess<Self>,
        ring: &ThreadRing,
        core: &mut Core,
        new: NewCore,
    ) -> Self::Thread;

    /// Handles a thread before its first word. `start_ns` is the virtual time of its start mark.
    fn start_thread(
        &mut self,
        _running: &mut RunningThread<'_, Self>,
        _start_id: u64,
        _start_ns: Option<u64>,
    ) {
    }

    /// Reads a record of a process's catalogue, which ends at this byte, except those of code and
    /// regions.
    fn observe(&mut self, process: &mut ReplayedProcess<Self>, event: CatalogueEvent, bytes: u64);

    /// Handles the name of a region of interest, which a process has from now on.
    fn name_region(&mut self, _name: &str) {}

    /// Handles the start of a turn.
    fn begin_turn(&mut self) {}

    /// Replays words from `from` to their end, or to a mark. Returns its index.
    fn replay(
        &mut self,
        machine: &mut Machine,
        running: &mut RunningThread<'_, Self>,
        words: &ThreadWords<'_>,
        from: usize,
    ) -> usize;

    /// Handles a mark of a region of interest. Returns true if it ends a region that the thread was
    /// not in.
    fn mark_region(
        &mut self,
        core: &Core,
        running: &mut RunningThread<'_, Self>,
        mark: &RegionMark,
    ) -> bool;

    /// Handles a synchronisation mark, before the thread waits.
    fn synchronise(
        &mut self,
        _core: &Core,
        _running: &mut RunningThread<'_, Self>,
        _sync: &SyncMark,
    ) {
    }

    /// Handles the end of a wait on the thread's core.
    fn waited(&mut self, _thread: &ModelledThread<Self::Thread>, _waited_ns: u64) {}

    /// Handles the end of a turn.
    fn end_turn(&mut self, running: &mut RunningThread<'_, Self>);

    /// Counts what a thread's words do not have, after the last one.
    fn retire_rest(
        &mut self,
        _core: &mut Core,
        _process: &mut ReplayedProcess<Self>,
        _: &mut ReplayedThread<Self>,
    ) {
    }

    /// Handles a thread that has ended. Its core has delivered everything.
    fn end_thread(
        &mut self,
        core: &mut Core,
        process: &mut ReplayedProcess<Self>,
        thread: &mut ReplayedThread<Self>,
    );

    /// Handles a process that has ended with its threads.
    fn end_process(&mut self, machine: &Machine, process: &mut ReplayedProcess<Self>);

    /// Counts a loss, for a process if it is known. `count` is not 0.
    fn lose(
        &mut self,
        process: Option<&ReplayedProcess<Self>>,
        kind: LossKind,
        count: u64,
        detail: &str,
    );
}

/// Executions that cannot be charged to the code of a process.
#[derive(Debug, Default)]
pub(crate) struct Uncounted {
    /// Number of runs of executed blocks without a word, less those that may have none.
    missing_runs: i64,
    /// Number of executions of blocks that are not in the catalogue.
    unknown: u64,
}

impl Uncounted {
    /// Takes the executions of each block since the last call. `each` receives the number of
    /// the block, its executions, and its sums of instructions, loads and stores. With
    /// `sums_are_exact`, the sums also have what was cut off.
    pub(crate) fn take_executions(
        &mut self,
        catalogue: &mut Catalogue,
        sums_are_exact: bool,
        mut each: impl FnMut(&Catalogue, &Block, u64, ExecutedSums),
    ) {
        for further in [wire::FURTHER_LOADS, wire::FURTHER_STORES] {
            self.missing_runs -= catalogue.entries.take(further as usize) as i64;
        }
        // The hot loop also counts these IDs, and nothing reads them. Taking the counts keeps the
        // counters from overflowing.
        for other_line in [wire::OTHER_LINE_LOADS, wire::OTHER_LINE_STORES] {
            catalogue.entries.take(other_line as usize);
        }
        for number in catalogue.numbers() {
            let plain = catalogue.entries.take(number as usize);
            let Some(block) = catalogue.block_mut(number) else {
                self.unknown += plain;
                continue;
            };
            let sums = std::mem::take(&mut block.sums);
            let execs = plain + std::mem::take(&mut block.execs);
            if execs == 0 {
                continue;
            }
            let Some(block) = catalogue.block(number) else {
                continue;
            };
            if !block.is_special() && !sums_are_exact {
                self.missing_runs += (execs * block.further_runs(number as usize)) as i64;
            }
            each(catalogue, block, execs, sums);
        }
    }
}

/// Losses of ended threads and processes.
#[derive(Debug, Default)]
pub(crate) struct ModelLosses {
    /// Runs of accesses that did not happen.
    cut: u64,
    /// Words that belong to no block.
    stray: u64,
    /// Ends of regions that had not begun.
    unmatched: u64,
    still_running: u64,
    delivered: Delivered,
    /// The part of [`totals`](Self::totals) that the sink has received.
    reported: [u64; 7],
}

impl ModelLosses {
    fn totals(&self) -> [(LossKind, u64); 7] {
        let delivered = &self.delivered;
        [
            (LossKind::BlockCut, self.cut),
            (LossKind::StrayAccess, self.stray),
            (LossKind::RegionEnd, self.unmatched),
            (LossKind::StillRunning, self.still_running),
            (LossKind::ActivationDelay, delivered.passed),
            (
                LossKind::MachineClear,
                delivered.cleared_lines + delivered.cleared_pages,
            ),
            (LossKind::BufferFull, delivered.full),
        ]
    }

    /// Cost and losses of delivery in ended threads.
    pub(crate) fn delivered(&self) -> &Delivered {
        &self.delivered
    }
}

/// Replays words on the modelled machine.
pub(crate) struct ModelReader<S: ModelSink> {
    pub(crate) machine: Machine,
    pub(crate) waits: Waits,
    pub(crate) losses: ModelLosses,
    pub(crate) sink: S,
}

/// Returns the number of a process's address space in the machine. Later processes reuse numbers.
pub(crate) fn address_space_of(entry: &ProcessEntry) -> u32 {
    const ADDRESS_SPACES: u32 = (1 << 18) - 1;
    entry.number % ADDRESS_SPACES
}

impl<S: ModelSink> ModelReader<S> {
    pub(crate) fn new(machine: Machine, sink: S) -> ModelReader<S> {
        ModelReader {
            machine,
            waits: Waits::default(),
            losses: ModelLosses::default(),
            sink,
        }
    }

    /// Passes on the losses of ended threads and processes since the last call.
    pub(crate) fn report_losses(&mut self) {
        let totals = self.losses.totals();
        for ((kind, total), reported) in totals.into_iter().zip(&mut self.losses.reported) {
            let new = total - std::mem::replace(reported, total);
            if new > 0 {
                self.sink.lose(None, kind, new, "");
            }
        }
    }

    /// Passes on the losses that are known only at the end.
    pub(crate) fn report_last_losses(&mut self, session: &EngineSession, still_running: u64) {
        for (refused, why) in session.refused() {
            self.lose(None, LossKind::ThreadNotRecorded, refused, why);
        }
        self.losses.still_running = still_running;
        self.report_losses();
        let of_sharing = [
            (
                self.machine.unwatched_lines(),
                "times that a line became shared, of too many lines to tell true sharing from false",
            ),
            (
                self.machine.incoherent_cores(),
                "threads beyond 64 at a time, whose caches are not coherent with those of the others",
            ),
        ];
        for (count, detail) in of_sharing {
            self.lose(None, LossKind::SharingNotAttributed, count, detail);
        }
    }

    fn instructions(&self, core: CoreId) -> u64 {
        let counts = self.machine.core(core).counts();
        counts.get(events::INSTRUCTIONS)
    }

    /// Replays words to their end or to a mark. Returns its index.
    fn replay(
        &mut self,
        running: &mut RunningThread<'_, S>,
        words: &ThreadWords<'_>,
        from: usize,
    ) -> usize {
        let (tid, core) = (running.tid, running.thread.core);
        let huge_pages = running.process.state.huge_pages.ranges();
        self.machine.core_mut(core).0.use_huge_pages(huge_pages);
        let asleep = self.waits.sleeps(tid).then(|| self.instructions(core));
        let at = self.sink.replay(&mut self.machine, running, words, from);
        if asleep.is_some_and(|before| self.instructions(core) > before) {
            self.waits.wake(tid);
        }
        at
    }

    fn mark_region(&mut self, running: &mut RunningThread<'_, S>, mark: &RegionMark) {
        if mark.kind == RegionMarkKind::Nothing {
            self.losses.stray += 1;
            return;
        }
        let core = self.machine.core(running.thread.core);
        let is_unmatched = self.sink.mark_region(core, running, mark);
        self.losses.unmatched += u64::from(is_unmatched);
    }

    /// Handles a release or a wait of a thread.
    fn synchronise(&mut self, running: &mut RunningThread<'_, S>, sync: &SyncMark) {
        if let MarkKind::Mapped(bytes) = sync.kind {
            running.process.state.huge_pages.reach(bytes);
        }
        let (core, _) = self.machine.core_mut(running.thread.core);
        self.sink.synchronise(core, running, sync);
        let by = MarkOrigin::now(running.process.entry.pid, running.tid, core.time_ns());
        if let Some(until_ns) = self.waits.apply(sync, &by) {
            let waited_ns = until_ns.saturating_sub(core.time_ns());
            core.wait_until(until_ns);
            self.sink.waited(running.thread, waited_ns);
        }
    }
}

impl<S: ModelSink> WordReader for ModelReader<S> {
    type Process = ModelledProcess<S::Process>;
    type Thread = ModelledThread<S::Thread>;

    fn catalogue(state: &mut Self::Process) -> &mut Catalogue {
        &mut state.program.catalogue
    }

    fn begin_process(
        &mut self,
        entry: &ProcessEntry,
        origin: Origin<'_, Self::Process>,
    ) -> Self::Process {
        let mut state = Self::Process::default();
        if let Some(before) = origin.before {
            state.now_ns = before.state.now_ns;
        }
        if let Some((parent, blocks)) = origin.parent {
            state.program.catalogue = parent.state.program.catalogue.inherited(blocks);
            state.regions = parent.state.regions.clone();
            state.huge_pages = parent.state.huge_pages.inherited();
            let forked_ns = self.waits.start_ns(entry.start_id);
            state.now_ns = forked_ns.unwrap_or(parent.state.now_ns);
        }
        self.sink.begin_process(entry, &origin, &mut state);
        state
    }

    fn begin_thread(&mut self, process: &ReplayedProcess<S>, ring: &ThreadRing) -> Self::Thread {
        let start_ns = process.state.now_ns;
        self.waits
            .begin_thread(process.entry.pid, ring.tid, ring.foreign_id);
        let space = address_space_of(&process.entry);
        let id = self.machine.add_core_in(start_ns, space);
        let (core, _) = self.machine.core_mut(id);
        let new = NewCore { start_ns, space };
        ModelledThread {
            core: id,
            // A stack that grows keeps its name.
            cursor: Cursor::new(process.continues_parent_stack(ring).then_some(0)),
            start_ns,
            start_id: ring.start_id,
            sink: self.sink.begin_thread(process, ring, core, new),
        }
    }

    /// Starts a thread at the virtual time at which its creator reached the start mark.
    fn begin(&mut self, process: &mut ReplayedProcess<S>, tid: u32, thread: &mut Self::Thread) {
        let start_id = std::mem::take(&mut thread.start_id);
        let start_ns = self.waits.start_ns(start_id);
        if let Some(start_ns) = start_ns {
            thread.start_ns = start_ns;
            self.machine.core_mut(thread.core).0.begin_at(start_ns);
        }
        let mut running = RunningThread {
            process,
            tid,
            thread,
        };
        self.sink.start_thread(&mut running, start_id, start_ns);
    }

    fn started(&mut self) -> Vec<StartMark> {
        self.waits.take_started()
    }

    fn process_now(&self, state: &Self::Process) -> u64 {
        state.now_ns
    }

    fn now(&self, thread: &Self::Thread) -> u64 {
        self.machine.core(thread.core).time_ns()
    }

    fn contended_turn_ns(&self) -> u64 {
        self.machine.contended_turn_ns()
    }

    fn busy(&self, thread: &Self::Thread) -> Option<u64> {
        let core = self.machine.core(thread.core);
        Some(core.time_ns().saturating_sub(core.idle_ns()))
    }

    fn sleeps(&self, tid: u32) -> bool {
        self.waits.sleeps(tid)
    }

    fn observe(&mut self, process: &mut ReplayedProcess<S>, event: CatalogueEvent, bytes: u64) {
        process.state.huge_pages.observe(&event, bytes);
        match event {
            CatalogueEvent::Region(number, name) => {
                self.sink.name_region(&name);
                process.state.regions.insert(number, name);
            }
            event => self.sink.observe(process, event, bytes),
        }
    }

    fn read(
        &mut self,
        process: &mut ReplayedProcess<S>,
        tid: u32,
        thread: &mut Self::Thread,
        words: &ThreadWords<'_>,
    ) -> ReplayProgress {
        let core = thread.core;
        let mut running = RunningThread {
            process,
            tid,
            thread,
        };
        let (mut at, mut passed) = (words.from, 0);
        let moved = self.machine.core(core).lines_moved();
        self.sink.begin_turn();
        let blocked_at = loop {
            at = self.replay(&mut running, words, at);
            if let Some((mark, length)) = RegionMark::at(words.all, at) {
                self.mark_region(&mut running, &mark);
                at += length;
                continue;
            }
            let Some(sync) = SyncMark::at(words.all, at) else {
                break None;
            };
            if let Some(mark) = sync.dependency(words.granted) {
                break Some(mark);
            }
            self.synchronise(&mut running, &sync);
            passed = sync.number;
            at += SyncMark::WORDS;
        };
        let now_ns = self.machine.core(core).time_ns();
        let process = &mut running.process;
        process.state.now_ns = process.state.now_ns.max(now_ns);
        self.waits
            .set_process_time(process.entry.pid, process.state.now_ns);
        self.sink.end_turn(&mut running);
        ReplayProgress {
            to: at.min(words.all.len()),
            passed,
            blocked_at,
            contends: self.machine.core(core).lines_moved() > moved,
        }
    }

    fn end_thread(&mut self, process: &mut ReplayedProcess<S>, mut thread: ReplayedThread<S>) {
        let (tid, id) = (thread.ring.tid, thread.state.core);
        let (core, _) = self.machine.core_mut(id);
        self.sink.retire_rest(core, process, &mut thread);
        if !process.died {
            self.waits.wake(tid);
        }
        if let Some(died_ns) = self.waits.died(tid, host_ns()) {
            let (core, _) = self.machine.core_mut(id);
            core.wait_until(died_ns);
        }
        self.machine.finish_core(id);
        let (core, _) = self.machine.core_mut(id);
        self.sink.end_thread(core, process, &mut thread);
        if let Some(delivered) = core.delivered() {
            self.losses.delivered.add(&delivered);
        }
        self.losses.stray += thread.state.cursor.stray + u64::from(thread.ring.dropped());
        process.state.now_ns = process.state.now_ns.max(core.time_ns());
        self.waits
            .set_process_time(process.entry.pid, process.state.now_ns);
        self.machine.remove_core(id);
    }

    fn end_process(&mut self, mut process: ReplayedProcess<S>) {
        self.sink.end_process(&self.machine, &mut process);
        let uncounted = [
            (
                process.entry.undecoded(),
                "accesses that the engine does not see",
            ),
            (process.entry.without_room(), LossKind::NO_ROOM),
        ];
        for (count, detail) in uncounted {
            self.lose(Some(&process), LossKind::Undecoded, count.into(), detail);
        }
        let Uncounted {
            missing_runs,
            unknown,
        } = process.state.uncounted;
        self.losses.cut += missing_runs.max(0).unsigned_abs();
        self.losses.stray += unknown;
    }

    fn lose(
        &mut self,
        process: Option<&ReplayedProcess<S>>,
        kind: LossKind,
        count: u64,
        detail: &str,
    ) {
        if count > 0 {
            self.sink.lose(process, kind, count, detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::catalogue::tests::{access, code};
    use memgauge_trace::AccessKind::{Load, Store};
    use proptest::prelude::*;

    proptest! {
        /// Block 6 has a run with the word of the block and one more. Block 5 never arrives.
        #[test]
        fn executions_without_code_or_words_are_counted(
            known in 0u64..50,
            unknown in 0u64..50,
            missing in 0u64..50,
        ) {
            let accesses = [access(0, 0, 8, Store), access(1, 0, 8, Load)];
            let mut catalogue = Catalogue::default();
            catalogue.read(&code(6, 0x1000, 2, 0, &accesses)).unwrap();
            let mut execute = |id: u64, times: u64| {
                for _ in 0..times {
                    catalogue.entries.execute(id << wire::ID_SHIFT, 0);
                }
            };
            execute(6, known);
            execute(5, unknown);
            execute(wire::FURTHER_LOADS, known.saturating_sub(missing));
            let (mut uncounted, mut executed) = (Uncounted::default(), Vec::new());
            for _ in 0..2 {
                uncounted.take_executions(&mut catalogue, false, |_, block, execs, _| {
                    executed.push((block.vaddr, execs));
                });
            }
            let expected = (known > 0).then_some((0x1000, known));
            prop_assert_eq!(executed, Vec::from_iter(expected));
            prop_assert_eq!(uncounted.unknown, unknown);
            prop_assert_eq!(uncounted.missing_runs, missing.min(known) as i64);
        }
    }
}
