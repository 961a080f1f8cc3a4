//! Follows every process and thread of a session and writes what the modelled
//! machine makes of them.

use std::collections::BTreeMap;

use memgauge_machine::{Core, CoreId, Counts, Delivered, Machine};
use memgauge_trace::recording::Writer;
use memgauge_trace::{
    Cpu, EventId, Loss, LossKind, Module, Pid, Sample, SeriesRow, SiteCount, Thread as ThreadRow,
    Tid, VirtAddr, catalogue as events,
};

use super::address_space::{AddressSpace, Mapping};
use super::catalogue::Happening;
use super::replay::{Cursor, Due, Program, Replay};
use super::session::{Entry, ProcessEntry, Ring, Session};
use super::wire;
use crate::Result;
use crate::overflows::Trace;
use crate::sys::process::Watched;

/// A recorded process, from its birth or exec to its end or next exec.
struct Process {
    entry: ProcessEntry,
    watched: Watched,
    program: Program,
    space: AddressSpace,
    path: String,
    parent_pid: Pid,
    /// Forked children that have appeared.
    children: u32,
    live_threads: u32,
    stack_named: bool,
    ended: bool,
    /// Runs of accesses that executed blocks have and that did not come.
    missing_runs: i64,
    /// Executions of blocks the catalogue does not have.
    unknown: u64,
    /// Latest time of any of its threads.
    now_ns: u64,
}

struct Thread {
    ring: Ring,
    process: u32,
    core: CoreId,
    cursor: Cursor,
    start_ns: u64,
    trace: Option<Trace>,
}

/// Address spaces the machine tells apart; later processes share numbers.
const ADDRESS_SPACES: u32 = (1 << 18) - 1;

/// How far to read a thread's words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Whole blocks of the ring.
    Sealed,
    /// What is written by now.
    Now,
    /// The last word: the thread has ended.
    End,
}

/// What has been seen so far, for progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) counts: Counts,
    pub(super) virtual_ns: u64,
    pub(super) processes: u32,
    pub(super) threads: u32,
}

pub(super) struct Recorder {
    machine: Machine,
    writer: Writer,
    processes: BTreeMap<u32, Process>,
    threads: Vec<Thread>,
    /// Counts of threads that have ended.
    past: Counts,
    past_ns: u64,
    born: (u32, u32),
    cut: u64,
    stray: u64,
    failure: Option<memgauge_trace::Error>,
    /// Overflows are kept as times, rounded to at most so many nanoseconds.
    traces: Option<u64>,
    delivered: Delivered,
}

/// Turns what falls due at a core into rows.
struct Rows<'a> {
    pid: Pid,
    tid: Tid,
    cpu: Cpu,
    writer: &'a mut Writer,
    failure: &'a mut Option<memgauge_trace::Error>,
    trace: Option<&'a mut Trace>,
}

impl Rows<'_> {
    fn note(&mut self, result: memgauge_trace::Result<()>) {
        if let Err(e) = result {
            self.failure.get_or_insert(e);
        }
    }
}

impl Due for Rows<'_> {
    fn take(&mut self, core: &mut Core, ip: VirtAddr) {
        let (pid, tid, cpu) = (self.pid, self.tid, Some(self.cpu));
        let mut samples: Vec<Sample> = Vec::new();
        let trace = &mut self.trace;
        core.take_overflows(|o| {
            let period = trace
                .as_mut()
                .map_or(Some(o.period), |t| t.note(o.event, o.period, o.time_ns));
            let Some(period) = period else { return };
            samples.push(Sample {
                time_ns: o.time_ns,
                cpu,
                pid,
                tid,
                event: o.event,
                ip,
                addr: o.addr.map(VirtAddr),
                phys: None,
                kind: o.kind,
                size_bytes: o.size_bytes,
                latency_cycles: o.latency_cycles,
                source: o.source,
                period,
                ..Sample::default()
            });
        });
        let mut rows: Vec<SeriesRow> = Vec::new();
        core.take_ticks(|tick| {
            let gained = tick.deltas.iter().filter(|&(_, value)| value > 0);
            rows.extend(gained.map(|(event, value)| SeriesRow {
                time_ns: tick.time_ns,
                cpu,
                pid,
                tid,
                event,
                value,
                interval_ns: tick.interval_ns,
            }));
        });
        let written = self.writer.extend(samples);
        self.note(written);
        let written = self.writer.extend(rows);
        self.note(written);
        self.write_blocks(false);
    }
}

impl Rows<'_> {
    /// Writes blocks of overflows that are full; with `all`, what there is.
    fn write_blocks(&mut self, all: bool) {
        if let Some(trace) = self.trace.as_mut() {
            let written = trace.write(self.pid, self.tid, all, self.writer);
            self.note(written);
        }
    }
}

impl Recorder {
    pub(super) fn new(machine: Machine, writer: Writer, traces: Option<u64>) -> Recorder {
        Recorder {
            machine,
            writer,
            processes: BTreeMap::new(),
            threads: Vec::new(),
            past: Counts::default(),
            past_ns: 0,
            born: (0, 0),
            cut: 0,
            stray: 0,
            failure: None,
            traces,
            delivered: Delivered::default(),
        }
    }

    pub(super) fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    pub(super) fn into_writer(self) -> Writer {
        self.writer
    }

    /// Reads what there is; with `eager`, blocks still being written too.
    /// Returns whether it found anything.
    ///
    /// # Errors
    /// The recording could not be written; what was written before stays.
    pub(super) fn poll(&mut self, session: &mut Session, eager: bool) -> Result<bool> {
        let mut busy = self.welcome(session);
        for index in 0..self.threads.len() {
            busy |= self.step(index, if eager { Until::Now } else { Until::Sealed });
        }
        match self.failure.take() {
            Some(e) => Err(e.into()),
            None => Ok(busy),
        }
    }

    /// Takes in the processes and threads that have appeared; whether there were any.
    fn welcome(&mut self, session: &mut Session) -> bool {
        let mut any = false;
        while let Some(entry) = session.next_entry() {
            any = true;
            match entry {
                Entry::Process(entry) => self.add_process(entry),
                Entry::Thread(ring) => self.add_thread(ring),
            }
        }
        any
    }

    fn add_process(&mut self, mut entry: ProcessEntry) {
        self.born.0 += 1;
        let number = entry.number;
        let pid = entry.pid;
        let (now_ns, mut parent_pid) = self.end_by_exec(pid).unwrap_or_default();
        if now_ns > 0 {
            let all = Mapping {
                end: u64::MAX,
                file_offset: 0,
                executable: false,
                path: "[exec]".to_owned(),
            };
            let written = self.writer.push(module(pid, now_ns, 0, &all));
            self.note(written);
        }
        let mut process = Process {
            watched: Watched::new(pid),
            program: Program::default(),
            space: AddressSpace::default(),
            path: String::new(),
            parent_pid,
            children: 0,
            live_threads: 0,
            stack_named: false,
            ended: false,
            missing_runs: 0,
            unknown: 0,
            now_ns,
            entry: {
                if let Some((owner, _)) = entry.parent
                    && !self.processes.contains_key(&owner)
                {
                    entry.parent = None;
                }
                entry
            },
        };
        if let Some((owner, first_block)) = process.entry.parent {
            self.read_catalogue(owner);
            if let Some(parent) = self.processes.get_mut(&owner) {
                parent.children += 1;
                parent_pid = Pid(parent.entry.pid);
                process.program.catalogue = parent.program.catalogue.inherited(first_block);
                process.space = parent.space.clone();
                process.path = parent.path.clone();
                process.now_ns = parent.now_ns;
                process.stack_named = true;
                process.parent_pid = parent_pid;
            }
        }
        self.processes.insert(number, process);
        self.write_space(number);
    }

    /// Ends what a process was before it became another program: when that was, and
    /// who started it. Its threads have stopped, and are read to their end, at which
    /// the next program begins.
    fn end_by_exec(&mut self, pid: u32) -> Option<(u64, Pid)> {
        let mut before = self.processes.iter_mut().rev();
        let (&number, old) = before.find(|(_, p)| p.entry.pid == pid && !p.ended)?;
        old.ended = true;
        let mut index = 0;
        while index < self.threads.len() {
            match self.threads[index].process == number && self.thread_is_read(index) {
                true => self.end_thread(index),
                false => index += 1,
            }
        }
        let old = self.processes.get(&number)?;
        Some((old.now_ns, old.parent_pid))
    }

    /// Writes all mappings of a process, as a forked child has them from the start.
    fn write_space(&mut self, number: u32) {
        let Some(process) = self.processes.get(&number) else {
            return;
        };
        let rows: Vec<Module> = process
            .space
            .iter()
            .map(|(start, m)| module(process.entry.pid, process.now_ns, start, m))
            .collect();
        let written = self.writer.extend(rows);
        self.note(written);
    }

    fn note(&mut self, result: memgauge_trace::Result<()>) {
        if let Err(e) = result {
            self.failure.get_or_insert(e);
        }
    }

    fn add_thread(&mut self, ring: Ring) {
        let number = ring.process;
        let Some(process) = self.processes.get_mut(&number) else {
            let why = "its process could not be opened".to_owned();
            return self.lose(number, LossKind::ThreadNotRecorded, 1, why);
        };
        self.born.1 += 1;
        process.live_threads += 1;
        let start_ns = process.now_ns;
        let core = self
            .machine
            .add_core_in(start_ns, process.entry.number % ADDRESS_SPACES);
        let cursor = Cursor::default();
        self.threads.push(Thread {
            ring,
            process: number,
            core,
            cursor,
            start_ns,
            trace: self.traces.map(Trace::new),
        });
    }

    /// Runs the next words of a thread through its core; whether there were any.
    fn step(&mut self, index: usize, until: Until) -> bool {
        let thread = &self.threads[index];
        let (number, unread) = (thread.process, thread.ring.unread(until != Until::Sealed));
        if unread.from == unread.to && !unread.sealed {
            return false;
        }
        // After the words were seen: what they speak of was written before them.
        self.read_catalogue(number);
        let thread = &mut self.threads[index];
        let Some(process) = self.processes.get_mut(&number) else {
            return false;
        };
        let (core, shared) = self.machine.core_mut(thread.core);
        let mut rows = Rows {
            pid: Pid(process.entry.pid),
            tid: Tid(thread.ring.tid),
            cpu: Cpu(thread.core.0),
            writer: &mut self.writer,
            failure: &mut self.failure,
            trace: thread.trace.as_mut(),
        };
        let (program, cursor) = (&mut process.program, &mut thread.cursor);
        let whole = unread.sealed || until == Until::End;
        let words = thread.ring.words(unread.to);
        let at =
            Replay::new(core, shared, program, cursor, &mut rows).run(words, unread.from, whole);
        process.now_ns = process.now_ns.max(core.time_ns());
        thread.ring.consume(at, unread.sealed);
        self.name_stack(index);
        at > unread.from || unread.sealed
    }

    fn read_catalogue(&mut self, number: u32) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let (happenings, bad) = process.entry.read_into(&mut process.program.catalogue);
        if let Some(bad) = bad {
            self.lose(number, LossKind::Undecoded, 1, bad.to_string());
        }
        for happening in happenings {
            self.happened(number, happening);
        }
    }

    fn happened(&mut self, number: u32, happening: Happening) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        match happening {
            Happening::Mapped(start, mapping) => {
                let row = module(process.entry.pid, process.now_ns, start, &mapping);
                process.space.map(start, mapping);
                let written = self.writer.push(row);
                self.note(written);
            }
            Happening::Unmapped(range) => process.space.unmap(&range),
            Happening::Break(at) => {
                if let Some((start, heap)) = process.space.set_break(at) {
                    let row = module(process.entry.pid, process.now_ns, start, &heap);
                    let written = self.writer.push(row);
                    self.note(written);
                }
            }
            Happening::Program(path) => process.path = path,
            Happening::NotFollowed(what) => {
                self.lose(number, LossKind::ProgramNotFollowed, 1, what);
            }
        }
    }

    fn lose(&mut self, number: u32, kind: LossKind, count: u64, detail: String) {
        let process = self.processes.get(&number);
        let row = Loss {
            time_ns: process.map_or(0, |p| p.now_ns),
            pid: Pid(process.map_or(0, |p| p.entry.pid)),
            kind,
            count,
            detail,
        };
        let written = self.writer.push(row);
        self.note(written);
    }

    /// A thread's first store lies in its stack: a name for that mapping.
    fn name_stack(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        let Some(address) = thread.cursor.first_store.filter(|&a| a != 0) else {
            return;
        };
        thread.cursor.first_store = Some(0);
        let tid = thread.ring.tid;
        let Some(process) = self.processes.get_mut(&thread.process) else {
            return;
        };
        let name = match std::mem::replace(&mut process.stack_named, true) {
            false => "[stack]".to_owned(),
            true => format!("[stack {tid}]"),
        };
        if let Some((start, mapping)) = process.space.name_around(address, &name) {
            let row = module(process.entry.pid, process.now_ns, start, &mapping);
            let written = self.writer.push(row);
            self.note(written);
        }
    }

    /// Notices ended threads and processes. With `all`, everything counts as ended.
    ///
    /// # Errors
    /// The recording could not be written.
    pub(super) fn reap(&mut self, session: &mut Session, all: bool) -> Result<()> {
        for process in self.processes.values_mut() {
            process.ended |= all || process.watched.ended();
        }
        // Order matters: a thread that appeared before its process ended is seen
        // after that, unless an older entry keeps it waiting.
        self.welcome(session);
        let mut index = 0;
        while index < self.threads.len() {
            let thread = &self.threads[index];
            let ended = self.processes.get(&thread.process).is_none_or(|p| p.ended);
            // Order matters: what was written before the end is seen after it.
            if (ended || thread.ring.finished()) && self.thread_is_read(index) {
                self.end_thread(index);
            } else {
                index += 1;
            }
        }
        if all || session.is_caught_up() {
            self.end_processes();
        }
        match self.failure.take() {
            Some(e) => Err(e.into()),
            None => Ok(()),
        }
    }

    /// Reads what an ended thread left; whether that was all.
    fn thread_is_read(&mut self, index: usize) -> bool {
        while self.step(index, Until::End) {}
        self.threads[index].ring.drained()
    }

    fn end_thread(&mut self, index: usize) {
        let mut thread = self.threads.swap_remove(index);
        let number = thread.process;
        self.machine.finish_core(thread.core);
        let (core, _) = self.machine.core_mut(thread.core);
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let mut rows = Rows {
            pid: Pid(process.entry.pid),
            tid: Tid(thread.ring.tid),
            cpu: Cpu(thread.core.0),
            writer: &mut self.writer,
            failure: &mut self.failure,
            trace: thread.trace.as_mut(),
        };
        rows.take(core, VirtAddr(0));
        rows.write_blocks(true);
        if let Some(delivered) = core.delivered() {
            self.delivered.add(&delivered);
        }
        let end_ns = core.time_ns();
        self.past.add(&core.counts());
        self.past_ns = self.past_ns.max(end_ns);
        self.stray += thread.cursor.stray + u64::from(thread.ring.dropped());
        let row = ThreadRow {
            pid: Pid(process.entry.pid),
            tid: Tid(thread.ring.tid),
            parent_pid: process.parent_pid,
            program: process.path.clone(),
            start_ns: thread.start_ns,
            end_ns: Some(end_ns),
        };
        process.live_threads -= 1;
        process.now_ns = process.now_ns.max(end_ns);
        self.machine.remove_core(thread.core);
        let written = self.writer.push(row);
        self.note(written);
    }

    /// Writes out and forgets processes that have ended and whose forked
    /// children have all appeared (they copy what the parent knew).
    fn end_processes(&mut self) {
        let done: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, p)| p.ended && p.live_threads == 0 && p.children >= p.entry.forks())
            .map(|(&number, _)| number)
            .collect();
        for number in done {
            // What it said after its last words, of a program it became, too.
            self.read_catalogue(number);
            self.write_sites(number);
            self.write_undecoded(number);
            if let Some(process) = self.processes.remove(&number) {
                self.cut += process.missing_runs.max(0).unsigned_abs();
                self.stray += process.unknown;
            }
        }
    }

    fn write_undecoded(&mut self, number: u32) {
        let undecoded = self
            .processes
            .get(&number)
            .map_or(0, |p| p.entry.undecoded());
        if undecoded > 0 {
            let detail = "instructions whose accesses are not seen".to_owned();
            self.lose(number, LossKind::Undecoded, u64::from(undecoded), detail);
        }
    }

    /// Writes what each instruction has gained since the last time.
    ///
    /// # Errors
    /// The recording could not be written.
    pub(super) fn write_all_sites(&mut self) -> Result<()> {
        self.write_traces();
        let numbers: Vec<u32> = self.processes.keys().copied().collect();
        for number in numbers {
            self.write_sites(number);
        }
        match self.failure.take() {
            Some(e) => Err(e.into()),
            None => Ok(()),
        }
    }

    fn write_traces(&mut self) {
        for thread in &mut self.threads {
            let pid = self
                .processes
                .get(&thread.process)
                .map_or(0, |p| p.entry.pid);
            if let Some(trace) = &mut thread.trace {
                let tid = Tid(thread.ring.tid);
                let written = trace.write(Pid(pid), tid, true, &mut self.writer);
                if let Err(e) = written {
                    self.failure.get_or_insert(e);
                }
            }
        }
    }

    fn write_sites(&mut self, number: u32) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let mut rows = Vec::new();
        take_blocks(process, &mut rows);
        take_misses(process, &mut rows);
        let written = self.writer.extend(rows);
        self.note(written);
    }

    /// Writes the losses known only at the end.
    ///
    /// # Errors
    /// The recording could not be written.
    pub(super) fn write_losses(&mut self, session: &Session, still_running: u64) -> Result<()> {
        let refused = u64::from(session.refused());
        let losses = [
            (
                LossKind::ThreadNotRecorded,
                refused,
                "no room for shared memory",
            ),
            (LossKind::BlockCut, self.cut, ""),
            (LossKind::StrayAccess, self.stray, ""),
            (LossKind::StillRunning, still_running, ""),
            (LossKind::ActivationDelay, self.delivered.passed, ""),
            (
                LossKind::MachineClear,
                self.delivered.cleared_lines + self.delivered.cleared_pages,
                "",
            ),
            (LossKind::BufferFull, self.delivered.full, ""),
        ];
        for (kind, count, detail) in losses {
            if count > 0 {
                self.lose(u32::MAX, kind, count, detail.to_owned());
            }
        }
        match self.failure.take() {
            Some(e) => Err(e.into()),
            None => Ok(()),
        }
    }

    /// Processes that have not ended.
    pub(super) fn live_processes(&self) -> u64 {
        self.processes
            .values()
            .filter(|p| !p.ended && !p.watched.ended())
            .count() as u64
    }

    /// Sends `signal` to every live process.
    pub(super) fn signal_all(&self, signal: i32) {
        self.processes
            .values()
            .for_each(|p| p.watched.signal(signal));
    }

    /// Bytes of dirty lines that ended threads left to the shared cache and that
    /// went to memory on the way; no thread's counts have them.
    pub(super) fn unattributed_write_bytes(&self) -> u64 {
        self.machine.unattributed_write_bytes()
    }

    /// What delivery cost and lost in threads that have ended.
    pub(super) fn delivered(&self) -> &Delivered {
        &self.delivered
    }

    /// Totals so far.
    pub(super) fn seen(&mut self) -> Seen {
        let mut seen = Seen {
            counts: self.past,
            virtual_ns: self.past_ns,
            processes: self.born.0,
            threads: self.born.1,
        };
        for thread in &self.threads {
            let (core, _) = self.machine.core_mut(thread.core);
            seen.counts.add(&core.counts());
            seen.virtual_ns = seen.virtual_ns.max(core.time_ns());
        }
        seen
    }
}

fn module(pid: u32, time_ns: u64, start: u64, m: &Mapping) -> Module {
    Module {
        pid: Pid(pid),
        time_ns,
        start: VirtAddr(start),
        end: VirtAddr(m.end),
        file_offset: m.file_offset,
        path: m.path.clone(),
        executable: m.executable,
    }
}

/// Executions: charged to the first instruction of each block.
fn take_blocks(process: &mut Process, rows: &mut Vec<SiteCount>) {
    let pid = Pid(process.entry.pid);
    let catalogue = &mut process.program.catalogue;
    for further in [wire::FURTHER_LOADS, wire::FURTHER_STORES] {
        process.missing_runs -= catalogue.entries.take(further as usize) as i64;
    }
    for number in catalogue.numbers() {
        let plain = catalogue.entries.take(number as usize);
        let Some(block) = catalogue.block_mut(number) else {
            process.unknown += plain;
            continue;
        };
        let sums = std::mem::take(&mut block.sums);
        let execs = plain + std::mem::take(&mut block.execs);
        if execs == 0 {
            continue;
        }
        let counts = if block.is_special() {
            sums
        } else {
            process.missing_runs += (execs * block.further_runs(number as usize)) as i64;
            [
                block.tally.insns(),
                block.tally.loads(),
                block.tally.stores(),
            ]
            .map(|n| execs * u64::from(n))
        };
        let events = [events::INSTRUCTIONS, events::LOADS, events::STORES];
        let ip = VirtAddr(block.vaddr);
        rows.extend(
            events
                .into_iter()
                .zip(counts)
                .filter(|c| c.1 > 0)
                .map(|(event, count)| SiteCount {
                    pid,
                    ip,
                    event,
                    count,
                }),
        );
    }
}

/// Misses: charged to the very instruction.
fn take_misses(process: &mut Process, rows: &mut Vec<SiteCount>) {
    let pid = Pid(process.entry.pid);
    let Program {
        catalogue, sites, ..
    } = &mut process.program;
    for number in catalogue.numbers() {
        let Some(block) = catalogue.block(number) else {
            continue;
        };
        for index in block.accesses.clone() {
            let Some(site) = sites.get_mut(index as usize) else {
                break;
            };
            let m = std::mem::take(site);
            let counts: [(EventId, u32); 7] = [
                (events::L1D_MISS, m.l1d),
                (events::L2_MISS, m.l2),
                (events::LLC_MISS, m.llc),
                (events::DTLB_MISS, m.dtlb),
                (events::DTLB_WALK, m.walks),
                (events::DRAM_READ_BYTES, m.dram_read_bytes),
                (events::DRAM_WRITE_BYTES, m.dram_write_bytes),
            ];
            let ip = catalogue.ip(number, index);
            rows.extend(
                counts
                    .iter()
                    .filter(|c| c.1 > 0)
                    .map(|&(event, count)| SiteCount {
                        pid,
                        ip,
                        event,
                        count: u64::from(count),
                    }),
            );
        }
    }
}
