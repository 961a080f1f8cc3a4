//! Records a session on the modelled machine: writes what the sink of a [`ModelReader`] receives.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use memgauge_machine::{Core, Counts, Delivered, Machine};
use memgauge_recording::Writer;
use memgauge_recording::stacks::{self, Stacks};
use memgauge_trace::{
    Cpu, FileUse, FileWait, FrameId, Loss, LossKind, Module, Pid, SetsFacts, Thread as ThreadRow,
    Tid, VirtAddr, WhatIfFacts,
};

use super::model_reader::{
    self, ModelReader, ModelSink, ModelledProcess, ModelledThread, NewCore, RunningThread,
    address_space_of,
};
use crate::engine::catalogue::CatalogueEvent;
use crate::engine::session::{EngineSession, ProcessEntry, ThreadRing};
use crate::engine::sync::SyncMark;
use crate::follow::{self, Followed, Origin, ThreadWords, WordReader};
use crate::model::calls::{CallPath, CallsThen};
use crate::model::data::{DataMap, HeapTotals};
use crate::model::python::PythonPath;
use crate::model::replay::sets::{Ran, SetsReplay};
use crate::model::replay::{Cursor, OverflowSink, Replay};
use crate::model::sets::ClassSums;
use crate::readers::roi::{CoreReading, RegionMark, ThreadRegions};
use crate::{Options, Result, known_allocators};
use memgauge_host::program::ProgramFiles;
use memgauge_host::python_lines::LineAddresses;
use memgauge_host::roi::RequestedNames;
use memgauge_recording::overflows::OverflowTrace;

mod mapped;
mod marks;
mod objects;
mod rows;
mod shared_lines;
mod sites;
mod what_if;

use mapped::{Mapped, MappingChange, module, nothing_until};
use rows::RowConverter;
use sites::{Carries, Carry, python_rows, take_blocks, take_counts, take_misses};
pub(crate) use what_if::WhatIfMachine;
use what_if::WhatIfProcess;

type Process = model_reader::ReplayedProcess<RecordingSink>;
type Thread = model_reader::ReplayedThread<RecordingSink>;
type Running<'a> = RunningThread<'a, RecordingSink>;

/// State that is kept for a process.
#[derive(Default)]
pub(crate) struct RecordedProcess {
    /// Call paths to allocation functions by number: return addresses, innermost first.
    paths: HashMap<u64, Box<[u64]>>,
    path: String,
    parent_pid: Pid,
    stack_named: bool,
    mapped: Mapped,
    carries: Carries,
    data_carries: Carries,
    python_carries: Carries,
    sharing_carry: Carry,
    /// State of each of the other machines.
    what_if: Vec<WhatIfProcess>,
}

/// State that is kept for a thread.
pub(crate) struct RecordedThread {
    trace: Option<OverflowTrace>,
    /// Executions of each block that its process already has, with `--sets`.
    counted: Vec<u64>,
    regions: ThreadRegions,
    /// Its current calls, if stacks are recorded.
    path: Option<CallPath>,
    /// Its current frames of Python.
    python: PythonPath,
    /// Its state on each of the other machines.
    what_if: Vec<Cursor>,
}

/// Maximum distance of a thread's first store from the end of its stack, which also holds its
/// thread-local variables and those of the C library. Runtimes such as Go's have stacks within
/// their heap, which must not be named after a stack.
const STACK_TOP_BYTES: u64 = 64 << 10;

/// Counts so far, for progress.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgressCounts {
    pub(crate) counts: Counts,
    pub(crate) virtual_ns: u64,
    /// Sum of the threads' waits.
    pub(crate) idle_ns: u64,
    pub(crate) processes: u32,
    pub(crate) threads: u32,
}

/// A recording in progress.
pub(crate) struct Recorder(Followed<ModelReader<RecordingSink>>);

/// Writes the results of the modelled machine.
pub(crate) struct RecordingSink {
    /// Other machines that replay the same words.
    what_if: Vec<WhatIfMachine>,
    writer: Writer,
    /// Mapped files.
    files: ProgramFiles,
    /// Waits of ended threads in virtual time.
    past_idle_ns: u64,
    /// Counts of ended threads.
    past: Counts,
    past_ns: u64,
    /// Number of sleeps that ended before their time.
    cut_sleeps: u64,
    /// Regions of interest that are recorded. Empty if everything is.
    wanted: RequestedNames,
    /// Names of regions and values in any process.
    names: BTreeSet<String>,
    /// Names of regions that some thread entered.
    entered: BTreeSet<String>,
    failure: Option<memgauge_recording::Error>,
    /// Maximum rounding of overflow times in nanoseconds, if overflows are kept as times.
    traces: Option<u64>,
    notes: Vec<Note>,
    /// Sample of the sets, with `--sets`.
    sets: Option<ClassSums>,
    stacks: Stacks,
    python_lines: LineAddresses,
    /// Nanoseconds of waits for files.
    file_waits: BTreeMap<(Pid, FileUse, Option<FrameId>), u64>,
    with_stacks: bool,
    /// True if misses are charged to data.
    with_data: bool,
    /// True if loads and stores are counted by data.
    counts_accesses: bool,
    /// Allocations of ended processes.
    past_heap: HeapTotals,
    /// Names of allocation functions in the order of the session's file.
    allocators: Vec<String>,
    /// First line of the session's file with a function that the user named.
    first_named: u16,
    /// Lines whose function is in a mapped file.
    found_allocators: BTreeSet<u64>,
    /// Calls of threads when they started another thread or process, by number of the start.
    started_in: BTreeMap<u64, CallsThen>,
}

/// A message for the user besides the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// AddressSanitizer could not search for leaks.
    LeakSearch,
    /// A process was killed by a signal that indicates a crash.
    Crashed { pid: u64, signal: u64 },
    /// A process used this feature, which the engine refused. Many programs work without it.
    Unsupported(String),
    /// Threads or processes ran unrecorded.
    Unrecorded { count: u64, why: &'static str },
}

/// Maximum number of notes, because there may be any number of crashes.
const MAX_NOTES: usize = 5;
/// Maximum number of remembered starts. Some of the started threads never run.
const MAX_STARTS: usize = 4096;

impl Recorder {
    pub(crate) fn new(
        machine: Machine,
        writer: Writer,
        wanted: RequestedNames,
        what_if: Vec<WhatIfMachine>,
        options: &Options,
    ) -> Recorder {
        let (traces, sets) = (options.traces, options.sets);
        let first_level = machine.config().l1d;
        let sink = RecordingSink {
            what_if,
            writer,
            files: ProgramFiles::new(),
            past_idle_ns: 0,
            past: Counts::default(),
            past_ns: 0,
            cut_sleeps: 0,
            wanted,
            names: BTreeSet::new(),
            entered: BTreeSet::new(),
            failure: None,
            traces,
            notes: Vec::new(),
            sets: sets.map(|sets| ClassSums::new(sets, first_level)),
            stacks: Stacks::new(),
            python_lines: LineAddresses::default(),
            file_waits: BTreeMap::new(),
            with_stacks: options.stacks,
            with_data: options.data.is_some() && sets.is_none(),
            counts_accesses: options.counts_accesses,
            past_heap: HeapTotals::default(),
            allocators: match &options.data {
                Some(allocators) => allocators.iter().map(|a| a.name.clone()).collect(),
                None => Vec::new(),
            },
            first_named: known_allocators().len() as u16,
            found_allocators: BTreeSet::new(),
            started_in: BTreeMap::new(),
        };
        Recorder(Followed::new(
            ModelReader::new(machine, sink),
            follow::turn_words(sets.map(|s| s.one_in)),
        ))
    }

    /// Returns the results of the other machines for ended threads.
    pub(crate) fn what_if(&self) -> Vec<WhatIfFacts> {
        let machines = self.0.reader.sink.what_if.iter();
        machines.map(WhatIfMachine::facts).collect()
    }

    /// Returns the names of regions and values in all processes.
    pub(crate) fn names(&self) -> &BTreeSet<String> {
        &self.0.reader.sink.names
    }

    /// Returns the names of regions that some thread entered.
    pub(crate) fn entered(&self) -> &BTreeSet<String> {
        &self.0.reader.sink.entered
    }

    /// Returns messages for the user, in order.
    pub(crate) fn notes(&self) -> &[Note] {
        &self.0.reader.sink.notes
    }

    /// Returns the longest waits for files, by falling length.
    pub(crate) fn longest_file_waits(&self) -> Vec<FileWait> {
        self.0.reader.sink.longest_file_waits()
    }

    pub(crate) fn writer(&mut self) -> &mut Writer {
        &mut self.0.reader.sink.writer
    }

    pub(crate) fn into_writer(self) -> Writer {
        self.0.reader.sink.writer
    }

    /// Returns the writer, after it has stored names and files in the recording at `output` that
    /// may disappear later, and the bytes of copied files.
    ///
    /// # Errors
    /// The recording could not be written.
    pub(crate) fn into_named(self, output: &std::path::Path) -> Result<(Writer, u64)> {
        let RecordingSink {
            mut writer, files, ..
        } = self.0.reader.sink;
        let copied = files.finish(output, &mut writer)?;
        Ok((writer, copied))
    }

    /// Replays what is available. With `eager`, also blocks that are still being written. Returns
    /// true if there was anything.
    ///
    /// # Errors
    /// The recording could not be written. Earlier rows are kept.
    pub(crate) fn poll(&mut self, session: &mut EngineSession, eager: bool) -> Result<bool> {
        let busy = self.0.poll(session, eager);
        self.0.reader.sink.checked().map(|()| busy)
    }

    /// Returns true if a thread that slept is held.
    pub(crate) fn holds(&self) -> bool {
        self.0.holds()
    }

    /// Handles ended threads and processes. With `all`, all count as ended.
    ///
    /// # Errors
    /// The recording could not be written.
    pub(crate) fn reap(&mut self, session: &mut EngineSession, all: bool) -> Result<()> {
        self.0.reap(session, all);
        self.0.reader.sink.checked()
    }

    /// Writes the counts of each instruction since the last call.
    ///
    /// # Errors
    /// The recording could not be written.
    pub(crate) fn write_all_sites(&mut self) -> Result<()> {
        let Followed {
            reader,
            processes,
            threads,
            ..
        } = &mut self.0;
        let sink = &mut reader.sink;
        for thread in &mut *threads {
            let process = processes.get(&thread.ring.process);
            let pid = Pid(process.map_or(0, |p| p.entry.pid));
            if let Some(trace) = &mut thread.state.sink.trace {
                let tid = Tid(thread.ring.tid);
                let written = trace.write(pid, tid, true, &mut sink.writer);
                sink.keep_error(written);
            }
        }
        for thread in threads {
            if let Some(process) = processes.get_mut(&thread.ring.process) {
                let counted = &mut thread.state.sink.counted;
                take_counts(&mut process.state.program, &thread.ring, counted);
            }
        }
        for process in processes.values_mut() {
            sink.write_sites(&reader.machine, process);
        }
        sink.checked()
    }

    /// Writes the losses that are known only at the end.
    ///
    /// # Errors
    /// The recording could not be written.
    pub(crate) fn write_losses(
        &mut self,
        session: &EngineSession,
        still_running: u64,
    ) -> Result<()> {
        let reader = &mut self.0.reader;
        reader.report_last_losses(session, still_running);
        reader.lose(None, LossKind::NotKept, reader.sink.stacks.cut, stacks::CUT);
        reader.sink.checked()
    }

    /// Handles everything that the ended command and its children left. Returns the number of
    /// processes that still run.
    ///
    /// # Errors
    /// The recording could not be written.
    pub(crate) fn read_to_the_end(&mut self, session: &mut EngineSession) -> Result<u64> {
        let still_running = self.0.read_to_the_end(session);
        self.0.reader.sink.checked().map(|()| still_running)
    }

    /// Sends `signal` to every live process but `first`.
    pub(crate) fn signal_others(&self, first: u32, signal: i32) {
        self.0.signal_others(first, signal);
    }

    /// Bytes written to memory because ended threads left dirty lines to the shared cache. No
    /// thread counts them.
    pub(crate) fn unattributed_write_bytes(&self) -> u64 {
        let reader = &self.0.reader;
        reader.machine.unattributed_write_bytes() * u64::from(reader.sink.one_in())
    }

    /// Allocations of all processes. `None` if they are not recorded.
    pub(crate) fn heap(&self) -> Option<HeapTotals> {
        let sink = &self.0.reader.sink;
        let mut heap = sink.with_data.then_some(sink.past_heap)?;
        let live = self.0.processes.values();
        live.filter_map(|process| process.state.program.data.as_ref())
            .for_each(|data| heap.add(&data.totals()));
        Some(heap)
    }

    /// Functions that the user named and that no mapped file has.
    pub(crate) fn missing_allocators(&self) -> Vec<String> {
        let sink = &self.0.reader.sink;
        let named = sink.allocators.iter().zip(0u64..);
        let named = named.skip(usize::from(sink.first_named));
        let missing = named.filter(|(_, line)| !sink.found_allocators.contains(line));
        missing.map(|(name, _)| name.clone()).collect()
    }

    /// True if samples have calls of Python.
    pub(crate) fn has_python(&self) -> bool {
        !self.0.reader.sink.python_lines.is_empty()
    }

    /// Number of allocation functions that were found by name.
    pub(crate) fn found_allocators(&self) -> u64 {
        self.0.reader.sink.found_allocators.len() as u64
    }

    /// Number of sleeps that ended before their time, because the threads were held too long.
    pub(crate) fn cut_sleeps(&self) -> u64 {
        self.0.reader.sink.cut_sleeps
    }

    /// Time for which threads waited for events outside of the session.
    pub(crate) fn outside_ns(&self) -> u64 {
        self.0.reader.waits.outside_ns()
    }

    /// Estimates from the simulated sets, with `--sets`.
    pub(crate) fn set_facts(&self) -> Option<SetsFacts> {
        self.0.reader.sink.sets.as_ref().map(ClassSums::facts)
    }

    /// Cost and losses of delivery in ended threads.
    pub(crate) fn delivered(&self) -> &Delivered {
        self.0.reader.losses.delivered()
    }

    /// Totals so far.
    pub(crate) fn counts_so_far(&mut self) -> ProgressCounts {
        let (appeared, reader) = (self.0.appeared, &self.0.reader);
        let mut seen = ProgressCounts {
            counts: reader.sink.past,
            virtual_ns: reader.sink.past_ns,
            idle_ns: reader.sink.past_idle_ns,
            processes: appeared.processes,
            threads: appeared.threads,
        };
        for thread in &self.0.threads {
            let core = reader.machine.core(thread.state.core);
            seen.counts
                .add(&thread.state.sink.regions.recorded(&core.counts()));
            seen.virtual_ns = seen.virtual_ns.max(core.time_ns());
            seen.idle_ns += core.idle_ns();
        }
        seen.counts = seen.counts.of_all_sets(reader.sink.one_in());
        seen
    }
}

impl ModelSink for RecordingSink {
    type Process = RecordedProcess;
    type Thread = RecordedThread;

    fn begin_process(
        &mut self,
        entry: &ProcessEntry,
        origin: &Origin<'_, ModelledProcess<RecordedProcess>>,
        state: &mut ModelledProcess<RecordedProcess>,
    ) {
        let data = || Box::new(DataMap::new(self.first_named, self.counts_accesses));
        state.program.data = self.with_data.then(data);
        if let Some(before) = origin.before {
            let data = before.state.program.data.as_ref();
            state.program.data = data.map(|data| Box::new(data.executed()));
            state.sink.parent_pid = before.state.sink.parent_pid;
            let began_ns = before.state.sink.mapped.end_ns(before.state.now_ns);
            state.sink.mapped = Mapped::since(began_ns);
            self.write_exec(entry.pid, began_ns);
        }
        if let Some((parent, _)) = origin.parent {
            state.sink.parent_pid = Pid(parent.entry.pid);
            state.program.calls = parent.state.program.calls.inherited();
            state.program.python = parent.state.program.python.inherited();
            state.program.space = parent.state.program.space.clone();
            let data = parent.state.program.data.as_ref();
            state.program.data = data.map(|data| Box::new(data.inherited()));
            state.sink.paths = parent.state.sink.paths.clone();
            state.sink.path = parent.state.sink.path.clone();
            let (mapped, now_ns) = (&parent.state.sink.mapped, state.now_ns);
            state.sink.mapped = mapped.inherited(now_ns, &mut state.program.space);
            state.sink.stack_named = true;
        }
        self.write_space(entry.pid, state);
    }

    fn begin_thread(
        &mut self,
        _: &Process,
        _: &ThreadRing,
        _: &mut Core,
        new: NewCore,
    ) -> RecordedThread {
        for what_if in &mut self.what_if {
            what_if.machine.add_core_in(new.start_ns, new.space);
        }
        RecordedThread {
            what_if: self.what_if.iter().map(|_| Cursor::default()).collect(),
            trace: self.traces.map(OverflowTrace::new),
            counted: Vec::new(),
            regions: match self.wanted.is_empty() {
                true => ThreadRegions::default(),
                false => ThreadRegions::gated(),
            },
            path: self.with_stacks.then(CallPath::default),
            python: PythonPath::default(),
        }
    }

    fn start_thread(&mut self, running: &mut Running<'_>, start_id: u64, start_ns: Option<u64>) {
        if start_id > 0 && self.with_stacks {
            let calls = self.started_in.remove(&start_id);
            let process = &mut running.process.state;
            process.program.calls.begin(running.tid, calls);
        }
        if let Some(start_ns) = start_ns {
            for what_if in &mut self.what_if {
                let core = what_if.machine.core_mut(running.thread.core).0;
                core.begin_at(start_ns);
            }
        }
    }

    fn observe(&mut self, process: &mut Process, catalogue_event: CatalogueEvent, bytes: u64) {
        let (pid, state) = (process.entry.pid, &mut process.state);
        match catalogue_event {
            CatalogueEvent::Mapped(start, mapping) => {
                let mut row = module(pid, 0, start, &mapping);
                // Copy it immediately, because the program may delete the file.
                self.files.identify(&mut row);
                let change = MappingChange::Map(start, mapping);
                state.sink.mapped.push(bytes, change, Some(row));
            }
            CatalogueEvent::Unmapped(range) => {
                let nothing = nothing_until(range.end, Module::UNMAPPED);
                let row = module(pid, 0, range.start, &nothing);
                state
                    .sink
                    .mapped
                    .push(bytes, MappingChange::Unmap(range), Some(row));
            }
            CatalogueEvent::Break(at) => {
                let heap = state.program.space.set_break(at);
                let row = heap.map(|(start, heap)| module(pid, 0, start, &heap));
                state.sink.mapped.push(bytes, MappingChange::Break, row);
            }
            // Mapped before the program runs.
            CatalogueEvent::Program(path) => {
                state.sink.path = path;
                self.reach_mapped(process, bytes, 0);
            }
            CatalogueEvent::NotFollowed(what) => {
                self.lose(Some(process), LossKind::ProgramNotFollowed, 1, &what);
            }
            // The reader keeps the names of regions and the huge pages.
            CatalogueEvent::Region(..) | CatalogueEvent::Advised(..) => {}
            CatalogueEvent::Path(number, calls) => {
                state.sink.paths.insert(number, calls);
            }
            CatalogueEvent::Allocator(line) => {
                self.found_allocators.insert(line);
            }
            CatalogueEvent::Python(number, code) => state.program.python.add(number, *code),
            CatalogueEvent::LeakSearch => self.add_note(Note::LeakSearch),
            CatalogueEvent::Crashed { pid, signal } => self.add_note(Note::Crashed { pid, signal }),
            CatalogueEvent::Unsupported(feature) => self.add_note(Note::Unsupported(feature)),
        }
    }

    fn name_region(&mut self, name: &str) {
        self.names.insert(name.to_owned());
    }

    fn replay(
        &mut self,
        machine: &mut Machine,
        running: &mut Running<'_>,
        words: &ThreadWords<'_>,
        from: usize,
    ) -> usize {
        let RunningThread {
            process,
            tid,
            thread,
        } = running;
        let tid = *tid;
        let is_outside = thread.sink.regions.is_outside();
        process.state.program.set_outside(is_outside);
        let (core, shared) = machine.core_mut(thread.core);
        thread.sink.python.resume(from);
        if let Some(path) = &mut thread.sink.path {
            path.resume(tid, &mut process.state.program.calls, from);
        }
        let mut converter = RowConverter {
            pid: Pid(process.entry.pid),
            tid: Tid(tid),
            cpu: Cpu(thread.core.0),
            writer: &mut self.writer,
            failure: &mut self.failure,
            trace: thread.sink.trace.as_mut(),
            one_in: self.sets.as_ref().map_or(1, |sets| sets.sample.one_in),
            gate: thread.sink.regions.gate.as_mut(),
            path: thread.sink.path.as_mut(),
            stacks: &mut self.stacks,
            python: &mut thread.sink.python,
            python_lines: &mut self.python_lines,
        };
        let (program, cursor) = (&mut process.state.program, &mut thread.cursor);
        if let Some(sums) = &mut self.sets {
            let mut replay = SetsReplay {
                core,
                shared,
                program,
                cursor,
                sink: &mut converter,
                sums,
                space: address_space_of(&process.entry),
            };
            return replay.run(words.all, from, words.whole);
        }
        let mut replay = Replay::new(core, shared, program, cursor, &mut converter);
        let at = replay.run(words.all, from, words.whole);
        core.end_turn(shared);
        thread.cursor.sharing.end_turn();
        if let Some(path) = &mut thread.sink.path {
            path.suspend(tid, &mut process.state.program.calls);
        }
        let mut cursors = std::mem::take(&mut thread.sink.what_if);
        let mut states = std::mem::take(&mut process.state.sink.what_if);
        states.resize_with(self.what_if.len(), WhatIfProcess::default);
        let of_machines = cursors.iter_mut().zip(&mut states);
        for (what_if, (cursor, state)) in self.what_if.iter_mut().zip(of_machines) {
            what_if.replay(process, state, thread.core, cursor, words, from);
        }
        thread.sink.what_if = cursors;
        process.state.sink.what_if = states;
        at
    }

    fn mark_region(&mut self, core: &Core, running: &mut Running<'_>, mark: &RegionMark) -> bool {
        self.take_region_mark(core, running, mark)
    }

    fn synchronise(&mut self, core: &Core, running: &mut Running<'_>, sync: &SyncMark) {
        self.take_sync_mark(core.time_ns(), running, sync);
    }

    fn waited(&mut self, thread: &ModelledThread<RecordedThread>, waited_ns: u64) {
        for what_if in &mut self.what_if {
            what_if.wait(thread.core, waited_ns);
        }
    }

    fn end_turn(&mut self, running: &mut Running<'_>) {
        self.name_stack(running);
    }

    fn retire_rest(&mut self, core: &mut Core, process: &mut Process, thread: &mut Thread) {
        if self.sets.is_some() {
            Ran(thread.ring.ran()).retire(core);
            let counted = &mut thread.state.sink.counted;
            take_counts(&mut process.state.program, &thread.ring, counted);
        }
    }

    fn end_thread(&mut self, core: &mut Core, process: &mut Process, thread: &mut Thread) {
        let (tid, state) = (Tid(thread.ring.tid), &mut thread.state);
        let mut converter = RowConverter {
            pid: Pid(process.entry.pid),
            tid,
            cpu: Cpu(state.core.0),
            writer: &mut self.writer,
            failure: &mut self.failure,
            trace: state.sink.trace.as_mut(),
            one_in: self.sets.as_ref().map_or(1, |sets| sets.sample.one_in),
            gate: state.sink.regions.gate.as_mut(),
            path: state.sink.path.as_mut(),
            stacks: &mut self.stacks,
            python: &mut state.sink.python,
            python_lines: &mut self.python_lines,
        };
        converter.take(core, VirtAddr(0));
        converter.write_blocks(true);
        process.state.program.calls.end(tid.0);
        self.write_sharing(process, tid, state);
        let (end_ns, idle_ns) = (core.time_ns(), core.idle_ns());
        state.sink.regions.end_all(&reading(core));
        let pid = Pid(process.entry.pid);
        let regions = state.sink.regions.rows(&process.state.regions, pid, tid);
        let spans = state.sink.regions.spans(&process.state.regions, pid, tid);
        for row in regions.iter().filter(|row| row.entries > 0) {
            if !self.entered.contains(&row.name) {
                self.entered.insert(row.name.clone());
            }
        }
        let written = self.writer.extend(regions);
        self.keep_error(written);
        let written = self.writer.extend(spans);
        self.keep_error(written);
        self.past_idle_ns += idle_ns;
        self.past.add(&state.sink.regions.recorded(&core.counts()));
        self.past_ns = self.past_ns.max(end_ns);
        for what_if in &mut self.what_if {
            what_if.end_thread(state.core);
        }
        let written = self.writer.push(ThreadRow {
            pid: Pid(process.entry.pid),
            tid,
            parent_pid: process.state.sink.parent_pid,
            program: process.state.sink.path.clone(),
            start_ns: state.start_ns,
            end_ns: Some(end_ns),
            idle_ns: Some(idle_ns),
        });
        self.keep_error(written);
    }

    fn end_process(&mut self, machine: &Machine, process: &mut Process) {
        self.stacks.forget(Pid(process.entry.pid));
        self.reach_mapped(process, u64::MAX, 0);
        self.write_sites(machine, process);
        self.write_heap_history(process);
        if let Some(data) = &process.state.program.data {
            self.past_heap.add(&data.totals());
        }
    }

    fn lose(&mut self, process: Option<&Process>, kind: LossKind, count: u64, detail: &str) {
        let written = self.writer.push(Loss {
            time_ns: process.map_or(0, |p| p.state.now_ns),
            pid: Pid(process.map_or(0, |p| p.entry.pid)),
            kind,
            count,
            detail: detail.to_owned(),
        });
        self.keep_error(written);
    }
}

impl RecordingSink {
    /// Returns the number of lines that each simulated line stands for.
    fn one_in(&self) -> u32 {
        self.sets.as_ref().map_or(1, |sets| sets.sample.one_in)
    }

    fn add_note(&mut self, note: Note) {
        if self.notes.len() < MAX_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Keeps the first write error for [`checked`](Self::checked).
    fn keep_error(&mut self, result: memgauge_recording::Result<()>) {
        if let Err(e) = result {
            self.failure.get_or_insert(e);
        }
    }

    /// Returns the write error once, if any.
    fn checked(&mut self) -> Result<()> {
        match self.failure.take() {
            Some(e) => Err(e.into()),
            None => Ok(()),
        }
    }

    fn write_module(&mut self, mut row: Module) {
        self.files.identify(&mut row);
        let written = self.writer.push(row);
        self.keep_error(written);
    }

    /// Handles exec: the process has none of its mappings any more.
    fn write_exec(&mut self, pid: u32, now_ns: u64) {
        let nothing = nothing_until(u64::MAX, Module::EXEC);
        self.write_module(module(pid, now_ns, 0, &nothing));
    }

    /// Handles a thread that reached mappings and unmappings of its process, which are in the first
    /// bytes of the catalogue.
    fn reach_mapped(&mut self, process: &mut Process, bytes: u64, now_ns: u64) {
        let state = &mut process.state;
        let mapped = &mut state.sink.mapped;
        let rows = mapped.reach(bytes, now_ns, &mut state.program.space);
        if let Some(data) = &mut state.program.data {
            let of_threads = rows
                .iter()
                .filter(|row| row.file_offset & Module::THREAD_LOCAL != 0);
            of_threads.for_each(|row| data.add_variables(row.start.0..row.end.0));
        }
        let written = self.writer.extend(rows);
        self.keep_error(written);
    }

    /// Writes all mappings of a process, which a forked child has from the start.
    fn write_space(&mut self, pid: u32, state: &ModelledProcess<RecordedProcess>) {
        let all = state.program.space.iter();
        let mut rows: Vec<Module> = all
            .map(|(start, m)| module(pid, state.now_ns, start, m))
            .collect();
        rows.iter_mut().for_each(|row| self.files.identify(row));
        let written = self.writer.extend(rows);
        self.keep_error(written);
    }

    /// Names the mapping of a thread's stack, where its first store is.
    fn name_stack(&mut self, running: &mut Running<'_>) {
        let (process, tid, thread) = (&mut *running.process, running.tid, &mut *running.thread);
        let Some(address) = thread.cursor.first_store.filter(|&a| a != 0) else {
            return;
        };
        thread.cursor.first_store = Some(0);
        let state = &mut process.state;
        let (name, within) = match std::mem::replace(&mut state.sink.stack_named, true) {
            false => ("[stack]".to_owned(), u64::MAX),
            true => (format!("[stack {tid}]"), STACK_TOP_BYTES),
        };
        let named = match state.program.space.left_from(address) {
            Some(bytes) if bytes > within => None,
            Some(_) => state.program.space.name_around(address, &name),
            None => state.sink.mapped.name_gone(address, within, &name),
        };
        if let Some((start, mapping)) = named {
            // As early as possible, because the thread has used it since its start.
            let named_ns = thread
                .start_ns
                .max(state.sink.mapped.code_ns(mapping.number))
                + 1;
            self.write_module(module(process.entry.pid, named_ns, start, &mapping));
        }
    }

    fn write_sites(&mut self, machine: &Machine, process: &mut Process) {
        process.state.program.set_outside(false);
        process.state.program.catalogue.clear_outside();
        let mut rows = Vec::new();
        let timing = &machine.config().timing;
        let instruction_millicycles = u64::from(timing.cycles_per_1000_instructions);
        take_blocks(
            process,
            &mut rows,
            self.sets.is_some(),
            instruction_millicycles,
        );
        take_misses(process, &mut rows, self.sets.as_ref());
        let written = self.writer.extend(rows);
        self.keep_error(written);
        let written = self
            .writer
            .extend(python_rows(process, instruction_millicycles));
        self.keep_error(written);
        self.write_data(process);
        self.keep_file_waits(process);
    }
}

fn reading(core: &Core) -> CoreReading {
    CoreReading {
        counts: core.counts(),
        time_ns: core.time_ns(),
    }
}
