//! Selects the processes to sample and collects their data for `memgauge top`: from the profiler,
//! `/proc` and the I/O accounting.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::process::Child;
use std::time::{Duration, Instant};

use memgauge_host::memory_counters::NoMemoryCounters;
use memgauge_host::running_program::not_started;
use memgauge_host::stolen_time::StolenTime;
use memgauge_host::sys::held_process::HeldProcess;
use memgauge_host::sys::process::{monotonic_ns, own_usage};
use memgauge_io::{AccountingOptions, IoFilter, Meter};
use memgauge_online::{
    Clean, ErrorKind, Profiler, Reader, Sample, Sharing, Statistics, ThreadState, kept_descriptors,
    raise_open_file_limit,
};
use memgauge_pages::WorkingSets;
use memgauge_trace::{DeviceId, Direction};

use super::model::{
    HISTORY_NS, OwnUsage, ProcessDetail, RecentSamples, SampleCounts, SamplingState, Snapshot,
    TaskLine,
};
use super::places::PlaceNames;
use super::started::{ModelledProgram, ProgramOutput, emulated_name, held};
use super::tasks::{self, TaskCounters, Users};
use crate::sampler::{SamplingRequest, in_words, is_timer};

/// Descriptors used by each thread of a watched process.
const DESCRIPTORS_OF_THREAD: u64 = 3;
/// A process without CPU time for this long is detached to make room for others.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Ended processes are shown for this long.
const SHOW_ENDED_FOR: Duration = Duration::from_secs(60);
/// Time to find the active processes: ten of the kernel's ticks.
const FIRST_READING: Duration = Duration::from_millis(100);
/// Interval at which mappings are read without a request.
const MAPPINGS_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum processor time for reading working sets, as a share of the interval.
const WORKING_SET_SHARE: f64 = 0.05;
/// Maximum processor time for clearing accessed bits before the first interval.
const FIRST_WORKING_SETS: Duration = Duration::from_millis(200);
/// Number of samples per read.
const SAMPLES_PER_READ: usize = 4096;

/// A process that is or was watched.
#[derive(Default)]
struct WatchedProcess {
    task: TaskCounters,
    /// Time at which `task` was read.
    read: Option<Instant>,
    user: String,
    cpu: f64,
    faults_per_s: Option<f64>,
    sums: SampleCounts,
    recent: RecentSamples,
    /// Lost samples of threads that were removed.
    lost: u64,
    /// True if it is or was sampled.
    sampled: bool,
    /// Shortest and longest period of its threads, or the last ones of an ended process.
    periods: Option<(u64, u64)>,
    busy: Option<Instant>,
    ended: Option<Instant>,
}

impl WatchedProcess {
    /// A process known only by its first sample, which may end before the next reading.
    fn from_first_sample(pid: u32, modelled: bool, users: &mut Users) -> WatchedProcess {
        WatchedProcess {
            read: Some(Instant::now()),
            task: task(pid, modelled).unwrap_or_default(),
            user: users.of(pid),
            sampled: true,
            ..WatchedProcess::default()
        }
    }
}

/// Reads a running process.
fn task(pid: u32, modelled: bool) -> Option<TaskCounters> {
    let mut task = tasks::task(pid)?;
    if modelled && let Some(name) = emulated_name(&tasks::words(pid)) {
        // `/proc` shows the name of the engine.
        task.command = name;
    }
    Some(task)
}

/// Requests of the user about sampled processes.
#[derive(Default)]
struct UserRequests {
    stopped: BTreeSet<u32>,
    periods: HashMap<u32, u64>,
}

/// Running collection.
pub(super) struct Watch {
    profiler: Profiler,
    reader: Reader,
    source: String,
    timer: bool,
    /// True if samples come from the modelled machine, so that their times are virtual.
    modelled: bool,
    began: Instant,
    /// Start of the current interval.
    interval_began: Instant,
    own_cpu: Duration,
    stolen: StolenTime,
    /// Share of the last interval's CPU time that the hypervisor took.
    stolen_share: Option<f64>,
    /// Processes that the user named. Empty for all.
    named: Vec<u32>,
    /// The started program, for its end.
    program: Option<Child>,
    /// True if memgauge sets the periods, by `--overhead`.
    has_budget: bool,
    on: bool,
    max_descriptors: u64,
    processes: BTreeMap<u32, WatchedProcess>,
    /// CPU times of threads at the previous reading.
    threads: HashMap<(u32, u32), u64>,
    /// Time of that reading.
    counted: Instant,
    thread_sums: HashMap<u32, SampleCounts>,
    /// True if a sample had a data source.
    has_data_sources: bool,
    requests: UserRequests,
    users: Users,
    /// Processes that could not be attached, with their start times.
    refused: HashSet<(u32, u64)>,
    /// Number of active processes without descriptors.
    without_room: usize,
    /// Lost samples of removed processes.
    lost_before: u64,
    io: Result<ProcessIo, String>,
    /// Readers of working sets, if the user wants them.
    working_sets: Option<WorkingSets>,
    places: Option<PlaceNames>,
    /// Last time that mappings were read without a request.
    mapped: Instant,
    batch: Vec<Sample>,
}

/// I/O by process, from the accounting of `memgauge io`.
struct ProcessIo {
    meter: Meter,
    /// Time of the last reading.
    read_at: Instant,
    /// Time between the last two readings.
    interval_s: f64,
    /// Devices without hardware, whose bytes also pass through other devices.
    without_hardware: HashSet<DeviceId>,
    moved: HashMap<u32, [u64; 2]>,
    /// Commands and users of the processes that moved bytes in this interval. They may have ended
    /// before they were seen in `/proc`.
    owners: HashMap<u32, (String, String)>,
}

impl ProcessIo {
    fn start() -> Result<ProcessIo, String> {
        let counters = NoMemoryCounters("top shows bytes alone".to_owned());
        let meter = Meter::start(
            IoFilter::default(),
            AccountingOptions::default(),
            Box::new(counters),
        );
        let meter = meter.map_err(|e| e.to_string())?;
        Ok(ProcessIo {
            meter,
            read_at: Instant::now(),
            interval_s: 1.0,
            without_hardware: HashSet::new(),
            moved: HashMap::new(),
            owners: HashMap::new(),
        })
    }

    /// Reads the bytes moved since the last reading.
    fn read(&mut self) -> Result<(), String> {
        let interval = self.meter.read(false).map_err(|e| e.to_string())?;
        self.interval_s = since(&mut self.read_at);
        for device in &interval.devices {
            match device.is_virtual {
                true => self.without_hardware.insert(device.device),
                false => self.without_hardware.remove(&device.device),
            };
        }
        self.moved.clear();
        self.owners.clear();
        for owner in &interval.owners {
            let names = (owner.command.clone(), owner.user.clone());
            self.owners.insert(owner.owner.pid().0, names);
        }
        for row in &interval.rows {
            if self.without_hardware.contains(&row.device) {
                continue;
            }
            let moved = self.moved.entry(row.owner.pid().0).or_default();
            moved[usize::from(row.direction != Direction::In)] += row.bytes;
        }
        Ok(())
    }
}

/// Seconds since `last`, which is set to now. Each kind of counter has its own time: on a busy
/// machine, seconds pass between two readings in one interval.
fn since(last: &mut Instant) -> f64 {
    let now = Instant::now();
    let seconds = (now - *last).as_secs_f64();
    *last = now;
    seconds.max(1e-3)
}

/// Request for the details of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct DetailRequest {
    pub(super) pid: u32,
    /// Index of the data region, by falling weight, that the heat map shows.
    pub(super) heat_of: usize,
    /// Rows and columns of the heat map.
    pub(super) cells: (usize, usize),
}

/// Processes to watch, and how.
pub(super) struct Plan {
    pub(super) named: Vec<u32>,
    /// Program to start and watch, or empty.
    pub(super) command: Vec<String>,
    /// Destination of its output. Discarded while a screen is shown.
    pub(super) output: ProgramOutput,
    pub(super) request: SamplingRequest,
    /// True to run the program on the modelled machine.
    pub(super) modelled: bool,
    pub(super) io: bool,
    pub(super) working_sets: bool,
}

/// A profiler and its description.
struct Sampling {
    profiler: Profiler,
    /// Source of the samples, for people.
    source: String,
    is_timer: bool,
}

impl Watch {
    pub(super) fn start(plan: &Plan) -> anyhow::Result<Watch> {
        raise_open_file_limit();
        // Loading the BPF programs takes seconds. Do it before the program starts and before the
        // first interval.
        let io = match plan.io {
            true => ProcessIo::start(),
            // Without a request for I/O, nothing is missing.
            false => Err(String::new()),
        };
        if plan.modelled {
            let started = ModelledProgram::start(&plan.command, plan.output, &plan.request)?;
            let sampling = Sampling {
                profiler: started.profiler,
                source: started.source,
                is_timer: false,
            };
            let mut watch = Watch::new(plan, sampling, vec![started.pid], io)?;
            watch.begin(true);
            return Ok(watch);
        }
        let (source, profiler) = plan.request.profiler()?;
        let held = held(&plan.command, plan.output, &profiler)?;
        let started = held.iter().map(HeldProcess::pid);
        let named: Vec<u32> = plan.named.iter().copied().chain(started).collect();
        let sampling = Sampling {
            profiler,
            source: in_words(&source),
            is_timer: is_timer(&source),
        };
        let mut watch = Watch::new(plan, sampling, named, io)?;
        for added in watch.profiler.add_processes(&watch.named) {
            added?;
        }
        if let Some(held) = held {
            let name = plan.command.first().map_or("", String::as_str);
            watch.program = Some(held.exec().map_err(|e| not_started(name, &e))?);
        }
        watch.begin(!plan.command.is_empty());
        Ok(watch)
    }

    /// Attaches the processes that run now, before the first interval starts.
    fn begin(&mut self, has_started_program: bool) {
        self.read_tasks(&[]);
        if self.named.is_empty() {
            std::thread::sleep(FIRST_READING);
            self.read_tasks(&[]);
            self.attach();
        }
        if let Some(working_sets) = &mut self.working_sets {
            let attached = self.profiler.all_statistics();
            let mut first: BTreeSet<u32> = attached.iter().map(|s| s.pid).collect();
            first.extend(&self.named);
            // Processes that sleep now may be shown at the end of the interval.
            let others = self.processes.keys().filter(|pid| !first.contains(pid));
            let pids: Vec<u32> = first.iter().chain(others).copied().collect();
            // Only clears the accessed bits, for the first interval.
            working_sets.read(&pids, FIRST_WORKING_SETS);
        }
        if has_started_program {
            // All activity of the started program belongs to the first interval.
            self.interval_began = Instant::now();
            return;
        }
        // Samples that arrived while others were being attached belong to no interval.
        let statistics = self.profiler.all_statistics();
        self.counted = Instant::now();
        let of_thread = |s: &Statistics| ((s.pid, s.tid), s.processor_ns);
        self.threads = statistics.iter().map(of_thread).collect();
        self.read();
        for process in self.processes.values_mut() {
            process.sums = SampleCounts::default();
        }
        self.thread_sums.clear();
        self.read_tasks(&statistics);
        if let Ok(io) = &mut self.io
            && let Err(why) = io.read()
        {
            self.io = Err(why);
        }
        self.own_cpu = own_usage().cpu;
        self.stolen = StolenTime::now();
        self.interval_began = Instant::now();
    }

    fn new(
        plan: &Plan,
        sampling: Sampling,
        named: Vec<u32>,
        io: Result<ProcessIo, String>,
    ) -> anyhow::Result<Watch> {
        let now = Instant::now();
        Ok(Watch {
            reader: sampling.profiler.reader(Sharing::Each)?,
            profiler: sampling.profiler,
            source: sampling.source,
            timer: sampling.is_timer,
            modelled: plan.modelled,
            began: now,
            interval_began: now,
            own_cpu: own_usage().cpu,
            stolen: StolenTime::now(),
            stolen_share: None,
            named,
            program: None,
            has_budget: plan.request.overhead.is_some(),
            on: true,
            max_descriptors: raise_open_file_limit(),
            processes: BTreeMap::new(),
            threads: HashMap::new(),
            counted: now,
            thread_sums: HashMap::new(),
            has_data_sources: false,
            requests: UserRequests::default(),
            users: Users::default(),
            refused: HashSet::new(),
            without_room: 0,
            lost_before: 0,
            io,
            working_sets: plan.working_sets.then(WorkingSets::open),
            places: None,
            mapped: now,
            batch: Vec::new(),
        })
    }

    /// The only process that was named or started.
    pub(super) fn only(&self) -> Option<u32> {
        self.named
            .first()
            .copied()
            .filter(|_| self.named.len() == 1)
    }

    /// Reads new samples.
    pub(super) fn read(&mut self) {
        if let Some(program) = &mut self.program {
            // Wait for the program's end, so that it does not stay a zombie.
            let _ = program.try_wait();
        }
        self.read_mappings_of_only();
        loop {
            self.batch.clear();
            let n = self.reader.read(&mut self.batch, SAMPLES_PER_READ);
            if self.modelled {
                let now_ns = monotonic_ns();
                self.batch.iter_mut().for_each(|s| s.time_ns = now_ns);
            }
            for sample in &self.batch {
                let pid = sample.pid.0;
                let from_first_sample =
                    || WatchedProcess::from_first_sample(pid, self.modelled, &mut self.users);
                let process = self.processes.entry(pid).or_insert_with(from_first_sample);
                process.sums.take(sample);
                process.recent.take(sample);
                self.thread_sums
                    .entry(sample.tid.0)
                    .or_default()
                    .take(sample);
                self.has_data_sources |= sample.source != memgauge_online::DataSource::Unknown;
            }
            if n < SAMPLES_PER_READ {
                return;
            }
        }
    }

    /// If a single process is shown in detail from the start, reads its mappings in advance, since
    /// they cannot be read after it has ended.
    fn read_mappings_of_only(&mut self) {
        let Some(pid) = self
            .only()
            .filter(|_| self.mapped.elapsed() >= MAPPINGS_INTERVAL)
        else {
            return;
        };
        self.mapped = Instant::now();
        let other = |places: &PlaceNames| places.pid() != pid;
        match &mut self.places {
            // The user opened another process that it started.
            Some(places) if other(places) => {}
            Some(places) => places.refresh(),
            None => self.places = Some(PlaceNames::of(pid)),
        }
    }

    /// Ends an interval and returns its data, with the details of a process on request.
    pub(super) fn end_interval(&mut self, into: Option<DetailRequest>) -> Snapshot {
        let statistics = self.profiler.all_statistics();
        let counted_s = since(&mut self.counted);
        self.read();
        let interval_s = since(&mut self.interval_began);
        self.read_tasks(&statistics);
        if let Ok(io) = &mut self.io
            && let Err(why) = io.read()
        {
            self.io = Err(why);
        }
        self.add_short_lived();
        self.apply_requests(&statistics);
        let threads = self.thread_lines(&statistics, counted_s);
        let mut processes = self.process_lines(&statistics);
        self.read_working_sets(&mut processes, interval_s);
        let lost = self.lost_before + processes.iter().map(|line| line.lost).sum::<u64>();
        self.remove_old();
        self.attach();
        let detail = into.map(|into| self.detail_of(into));
        let cpu = own_usage().cpu;
        let own = OwnUsage {
            cpu: (cpu - self.own_cpu).as_secs_f64() / interval_s,
            descriptors: tasks::own_descriptors(),
            max_descriptors: self.max_descriptors,
        };
        self.own_cpu = cpu;
        let stolen = StolenTime::now();
        self.stolen_share = stolen.notable_share_since(&self.stolen);
        self.stolen = stolen;
        Snapshot {
            elapsed_s: self.began.elapsed().as_secs_f64(),
            interval_s,
            source: self.source.clone(),
            timer: self.timer,
            with_working_sets: self.working_sets.is_some(),
            has_data_sources: self.has_data_sources,
            on: self.on,
            lost,
            processes,
            threads,
            own,
            notes: self.notes(),
            detail,
        }
    }

    /// Reads the kernel's counters of all processes.
    fn read_tasks(&mut self, statistics: &[Statistics]) {
        let own = std::process::id();
        let mut pids: BTreeSet<u32> = self.processes.keys().copied().collect();
        match self.named.is_empty() {
            true => pids.extend(tasks::all().into_iter().filter(|pid| *pid != own)),
            false => pids.extend(&self.named),
        }
        for pid in pids {
            let (now, read) = (task(pid, self.modelled), Instant::now());
            let process = self.processes.entry(pid).or_default();
            let before = process.read.replace(read);
            let Some(now) = now else {
                (process.cpu, process.faults_per_s) = (0.0, None);
                if process.ended.is_none() {
                    let main_thread = statistics.iter().rev().find(|s| s.tid == pid);
                    process
                        .task
                        .set_final_name(main_thread.map_or("", |s| &s.command));
                }
                process.ended.get_or_insert_with(Instant::now);
                continue;
            };
            if process.task.began != now.began {
                // A new process, or one that reuses the PID of an ended one. A new one may have
                // been sampled before it was seen here.
                let known = std::mem::take(process);
                let known = match known.task.began {
                    0 => known,
                    _ => {
                        self.lost_before += known.lost;
                        WatchedProcess::default()
                    }
                };
                *process = WatchedProcess {
                    task: now,
                    read: Some(read),
                    user: self.users.of(pid),
                    ended: None,
                    ..known
                };
                continue;
            }
            let interval_s = before.map_or(1.0, |before| (read - before).as_secs_f64());
            let gained =
                |now: u64, before: u64| now.saturating_sub(before) as f64 / interval_s.max(1e-3);
            process.cpu = gained(now.cpu_ns, process.task.cpu_ns) / 1e9;
            process.faults_per_s = Some(gained(now.faults, process.task.faults));
            if process.cpu > 0.0 {
                process.busy = Some(Instant::now());
            }
            process.task = now;
        }
    }

    /// Adds processes that moved bytes but started and ended within the interval.
    fn add_short_lived(&mut self) {
        let Some(io) = self.io.as_ref().ok().filter(|_| self.named.is_empty()) else {
            return;
        };
        let own = std::process::id();
        // PID 0 stands for bytes without a process, which `memgauge io` shows.
        for pid in io.moved.keys().filter(|pid| ![0, own].contains(*pid)) {
            let (command, user) = io.owners.get(pid).cloned().unwrap_or_default();
            let task = TaskCounters {
                command,
                ..TaskCounters::default()
            };
            self.processes
                .entry(*pid)
                .or_insert_with(|| WatchedProcess {
                    task,
                    user,
                    ended: Some(Instant::now()),
                    ..WatchedProcess::default()
                });
        }
    }

    /// Attaches active processes, the busiest first, as far as descriptors are available.
    fn attach(&mut self) {
        if !self.named.is_empty() {
            return;
        }
        let attached: HashSet<u32> = self.attached().into_iter().collect();
        let mut wanted: Vec<(f64, u32, u64, u64)> = self
            .processes
            .iter()
            .filter(|(pid, p)| p.ended.is_none() && !p.task.kernel && !attached.contains(pid))
            .filter(|(_, p)| p.cpu > 0.0)
            .filter(|(pid, p)| !self.refused.contains(&(**pid, p.task.began)))
            .map(|(pid, p)| (p.cpu, *pid, p.task.threads, p.task.began))
            .collect();
        wanted.sort_by(|a, b| b.0.total_cmp(&a.0));
        let kept = kept_descriptors(self.max_descriptors);
        let needed: u64 = wanted
            .iter()
            .map(|(_, _, threads, _)| threads * DESCRIPTORS_OF_THREAD)
            .sum();
        let mut used = tasks::own_descriptors() + kept;
        if used + needed > self.max_descriptors {
            self.make_room(&attached);
            used = tasks::own_descriptors() + kept;
        }
        self.without_room = 0;
        let mut fitting = Vec::new();
        for (_, pid, threads, began) in wanted {
            let needed = threads * DESCRIPTORS_OF_THREAD;
            if used + needed > self.max_descriptors {
                self.without_room += 1;
                continue;
            }
            used += needed;
            fitting.push((pid, began));
        }
        let pids: Vec<u32> = fitting.iter().map(|(pid, _)| *pid).collect();
        for ((pid, began), added) in fitting.into_iter().zip(self.profiler.add_processes(&pids)) {
            match added {
                Ok(_) => {}
                // It has ended in the meantime.
                Err(e) if e.kind() == ErrorKind::NoSuchTask && tasks::task(pid).is_none() => {}
                Err(e) if e.kind() == ErrorKind::Exhausted => self.without_room += 1,
                Err(_) => {
                    self.refused.insert((pid, began));
                }
            }
        }
    }

    /// Detaches processes that have been idle.
    fn make_room(&mut self, attached: &HashSet<u32>) {
        for pid in attached {
            let busy = self.processes.get(pid).and_then(|p| p.busy);
            if busy.is_none_or(|busy| busy.elapsed() >= IDLE_TIMEOUT) {
                // A process that has ended was detached already.
                let _ = self.profiler.delete_process(*pid);
            }
        }
    }

    /// Processes with attached threads.
    fn attached(&self) -> BTreeSet<u32> {
        let all = self.profiler.all_statistics();
        let live = all.iter().filter(|s| is_live(s));
        live.map(|s| s.pid).collect()
    }

    /// Applies stops, starts and periods to threads that appeared after the key was pressed.
    fn apply_requests(&mut self, statistics: &[Statistics]) {
        for s in statistics.iter().filter(|s| is_live(s)) {
            // A thread that has ended needs neither.
            let stopped = self.requests.stopped.contains(&s.pid);
            match (stopped, s.state) {
                (true, ThreadState::Started) => drop(self.profiler.stop(s.tid)),
                (false, ThreadState::Stopped) => drop(self.profiler.start(s.tid)),
                _ => {}
            }
            if let Some(&period) = self.requests.periods.get(&s.pid)
                && period != s.period
            {
                let _ = self.profiler.set_period(s.tid, period);
            }
        }
    }

    fn thread_lines(&mut self, statistics: &[Statistics], counted_s: f64) -> Vec<TaskLine> {
        let sums = std::mem::take(&mut self.thread_sums);
        let before = std::mem::take(&mut self.threads);
        let mut lines = Vec::new();
        for s in statistics {
            let key = (s.pid, s.tid);
            // Counting started when the thread was attached.
            let last_ns = before.get(&key).copied().unwrap_or(0);
            let gained_ns = s.processor_ns.saturating_sub(last_ns);
            self.threads.insert(key, s.processor_ns);
            let process = self.processes.get(&s.pid);
            let user = process.map(|p| p.user.clone());
            let name = match self.modelled {
                true => None,
                false => tasks::thread_name(s.pid, s.tid),
            };
            let name = name.or_else(|| Some(process?.task.command.clone()));
            lines.push(TaskLine {
                pid: s.pid,
                tid: Some(s.tid),
                user: user.unwrap_or_default(),
                command: name.unwrap_or_default(),
                sampling: sampling(s.state),
                sums: sums.get(&s.tid).copied().unwrap_or_default(),
                cpu: gained_ns as f64 / 1e9 / counted_s,
                faults_per_s: None,
                io_per_s: None,
                working_set: None,
                threads: 1,
                period: Some(s.period),
                periods_differ: false,
                lost: lost(s),
            });
        }
        lines
    }

    fn process_lines(&mut self, statistics: &[Statistics]) -> Vec<TaskLine> {
        let mut by_pid: HashMap<u32, Vec<&Statistics>> = HashMap::new();
        for s in statistics {
            by_pid.entry(s.pid).or_default().push(s);
        }
        let mut lines = Vec::new();
        for (&pid, process) in &mut self.processes {
            let of = by_pid.get(&pid).map_or(&[][..], Vec::as_slice);
            let live: Vec<&&Statistics> = of.iter().filter(|s| is_live(s)).collect();
            process.sampled |= !live.is_empty();
            let periods = live.iter().map(|s| s.period);
            let shortest_and_longest = periods.clone().min().zip(periods.max());
            process.periods = shortest_and_longest.or(process.periods);
            let same = process
                .periods
                .filter(|(shortest, longest)| shortest == longest);
            let io = self.io.as_ref().ok();
            let io_per_s = io.map(|io| {
                let moved = io.moved.get(&pid).copied().unwrap_or_default();
                moved.map(|bytes| bytes as f64 / io.interval_s)
            });
            let lost_now: u64 = of.iter().map(|s| lost(s)).sum();
            lines.push(TaskLine {
                pid,
                tid: None,
                user: process.user.clone(),
                command: process.task.command.clone(),
                sampling: match (process.ended, live.is_empty()) {
                    (Some(_), _) => SamplingState::Ended,
                    (None, true) => SamplingState::Not,
                    (None, false) if self.requests.stopped.contains(&pid) => SamplingState::Stopped,
                    (None, false) => SamplingState::On,
                },
                sums: std::mem::take(&mut process.sums),
                cpu: process.cpu,
                faults_per_s: process.faults_per_s,
                io_per_s,
                working_set: None,
                threads: live.len(),
                period: same.map(|(period, _)| period),
                periods_differ: process.periods.is_some() && same.is_none(),
                lost: process.lost + lost_now,
            });
        }
        // Omit idle processes that were never sampled, unless the user named them.
        let named = &self.named;
        let processes = &self.processes;
        lines.retain(|line| {
            let sampled = processes.get(&line.pid).is_some_and(|p| p.sampled);
            let moves = line.io_per_s.is_some_and(|[i, o]| i + o > 0.0);
            sampled || named.contains(&line.pid) || line.cpu > 0.0 || moves
        });
        lines
    }

    /// Ends the interval of the working sets of the shown processes, those with most processor time
    /// first.
    fn read_working_sets(&mut self, lines: &mut [TaskLine], interval_s: f64) {
        let Some(working_sets) = &mut self.working_sets else {
            return;
        };
        let mut busiest: Vec<(f64, u32)> = lines
            .iter()
            .filter(|line| line.sampling != SamplingState::Ended)
            .map(|line| (line.cpu, line.pid))
            .collect();
        busiest.sort_by(|a, b| b.0.total_cmp(&a.0));
        let pids: Vec<u32> = busiest.into_iter().map(|(_, pid)| pid).collect();
        let at_most = Duration::from_secs_f64(interval_s * WORKING_SET_SHARE);
        let found = working_sets.read(&pids, at_most);
        for line in lines {
            line.working_set = found.get(&line.pid).copied();
        }
    }

    /// Removes threads whose samples were all read, and old samples and processes.
    fn remove_old(&mut self) {
        for gone in self.profiler.clean(Clean::Read) {
            match self.processes.get_mut(&gone.pid) {
                Some(process) => process.lost += lost(&gone),
                None => self.lost_before += lost(&gone),
            }
        }
        let minute_ago = monotonic_ns().saturating_sub(HISTORY_NS);
        for process in self.processes.values_mut() {
            process.recent.remove_before(minute_ago);
        }
        let open = self.places.as_ref().map(PlaceNames::pid);
        let named = &self.named;
        let lost_before = &mut self.lost_before;
        self.processes.retain(|pid, p| {
            let shown = if p.sampled {
                SHOW_ENDED_FOR
            } else {
                Duration::ZERO
            };
            let over = p.ended.is_some_and(|ended| ended.elapsed() >= shown);
            let kept = !over || named.contains(pid) || open == Some(*pid);
            *lost_before += if kept { 0 } else { p.lost };
            kept
        });
        let alive = &self.processes;
        self.refused.retain(|(pid, _)| alive.contains_key(pid));
    }

    /// Details of the last minute of one process.
    pub(super) fn detail_of(&mut self, into: DetailRequest) -> ProcessDetail {
        let DetailRequest {
            pid,
            heat_of,
            cells,
        } = into;
        let places = match self.places.take() {
            Some(mut places) if places.pid() == pid => {
                places.refresh();
                places
            }
            _ => PlaceNames::of(pid),
        };
        let places = self.places.insert(places);
        let live: u64 = self
            .profiler
            .all_statistics()
            .iter()
            .filter(|s| s.pid == pid)
            .map(lost)
            .sum();
        let lost = live + self.processes.get(&pid).map_or(0, |process| process.lost);
        match self.processes.get(&pid) {
            Some(process) => {
                let detail = places.detail(&process.recent, (monotonic_ns(), heat_of, cells));
                let names = |id| self.profiler.region_names(Some(id)).join("/");
                ProcessDetail {
                    regions: process.recent.regions(names),
                    lost,
                    ..detail
                }
            }
            None => ProcessDetail {
                pid,
                ..ProcessDetail::default()
            },
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Err(why) = &self.io
            && !why.is_empty()
        {
            notes.push(format!("no I/O bytes: {why}"));
        }
        if let Some(share) = self.stolen_share {
            notes.push(format!(
                "the hypervisor took {:.0} % of processor time (steal): CPU% of threads counts it, \
                 of processes does not",
                share * 100.0
            ));
        }
        if let Some(working_sets) = &self.working_sets {
            if working_sets.left_out() > 0 {
                notes.push(format!(
                    "no working set of {} processes: a longer --delay gives them time (reading \
                     all takes more than {:.0} % of a processor)",
                    working_sets.left_out(),
                    WORKING_SET_SHARE * 100.0
                ));
            }
            if working_sets.refused() > 0 {
                notes.push(format!(
                    "no working set of {} processes: kernel threads, other users', or watched by \
                     another memgauge",
                    working_sets.refused()
                ));
            }
        }
        if self.without_room > 0 {
            notes.push(format!(
                "processes not sampled: {}; descriptors are used up (ulimit -n)",
                self.without_room
            ));
        }
        if !self.refused.is_empty() {
            notes.push(format!(
                "processes not sampled: {}; this user may not, or they cannot be",
                self.refused.len()
            ));
        }
        let alive = self.profiler.missed_alive();
        let missed = [
            (
                "that ended before they were sampled",
                self.profiler.missed() - alive,
            ),
            ("not sampled", alive),
        ];
        let missed = missed.iter().filter(|(_, count)| *count > 0);
        notes.extend(missed.map(|(which, count)| format!("threads {which}: {count}")));
        notes.extend(self.profiler.notes());
        notes
    }

    /// Error if a process can no longer be sampled.
    fn check_alive(&self, pid: u32) -> Result<(), String> {
        match self.processes.get(&pid).and_then(|p| p.ended) {
            Some(_) => Err(format!("process {pid} has ended")),
            None => Ok(()),
        }
    }

    /// Stops or starts the sampling of a process. Returns whether it is sampled now, or why the
    /// change failed.
    pub(super) fn turn_process(&mut self, pid: u32) -> Result<bool, String> {
        self.check_alive(pid)?;
        let on = self.requests.stopped.remove(&pid);
        if !on {
            self.requests.stopped.insert(pid);
        }
        let statistics = self.profiler.all_statistics();
        self.apply_requests(&statistics);
        Ok(on)
    }

    /// Stops or starts all sampling.
    pub(super) fn turn_all(&mut self) {
        self.on = !self.on;
        match self.on {
            true => self.profiler.on(),
            false => self.profiler.off(),
        }
    }

    /// Multiplies the period of a process's threads. Returns the new period, or why the change
    /// failed.
    pub(super) fn change_period(&mut self, pid: u32, factor: f64) -> Result<u64, String> {
        if self.has_budget {
            return Err("periods are set by --overhead".to_owned());
        }
        self.check_alive(pid)?;
        let statistics = self.profiler.all_statistics();
        let of = statistics.iter().filter(|s| s.pid == pid && is_live(s));
        let period = of.map(|s| s.period).min();
        let period = period.ok_or_else(|| format!("process {pid} is not sampled"))?;
        let period = ((period as f64 * factor) as u64).max(1);
        // The actual period may be larger, since events have a minimum.
        let mut became = period;
        for s in statistics.iter().filter(|s| s.pid == pid && is_live(s)) {
            became = self
                .profiler
                .set_period(s.tid, period)
                .map_err(|e| e.to_string())?;
        }
        self.requests.periods.insert(pid, became);
        Ok(became)
    }
}

fn is_live(s: &Statistics) -> bool {
    matches!(s.state, ThreadState::Started | ThreadState::Stopped)
}

fn sampling(state: ThreadState) -> SamplingState {
    match state {
        ThreadState::Started => SamplingState::On,
        ThreadState::Stopped => SamplingState::Stopped,
        ThreadState::Ended => SamplingState::Ended,
        ThreadState::Deleted => SamplingState::Not,
    }
}

/// Samples that were taken but that no reader received.
fn lost(s: &Statistics) -> u64 {
    s.lost + s.account.overwritten + s.refused
}
