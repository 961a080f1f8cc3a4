//! A run of `memgauge stat`, from the first counter to the last row.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memgauge_trace::{
    CountingFacts, Manifest, OwnCost, Pid, SeriesRow, TaskCostFacts, Thread, TickFacts, Tid,
    UnsupportedFacts,
};

use super::grouping::plan_groups;
use super::open::{CounterOpener, OpenCounters, TIMER};
use super::recording::{self, EventIds, RecordingWriter, TIMER_ID};
use super::series::CounterRow;
use super::stream::RowStream;
use super::throttling::{self, TimerThrottling};
use super::{SeenThread, StatOptions, StatOutcome, TickStatistics, Update};
use crate::counters::{EventSupport, GroupValues, UnsupportedEvent, check_support};
use crate::events::{Event, EventGroup};
use crate::run::ObservedRun;
use crate::sys::perf::{self, EventScope, KernelRing};
use crate::target::{OpenTarget, Target};
use crate::{Error, ErrorKind, Result};
use memgauge_host::stolen_time::StolenTime;
use memgauge_host::sys::page_faults::page_fault_ns_after;
use memgauge_host::sys::process::{children_usage, own_usage};
use memgauge_perf::abi::{kind, software};

/// Maximum time between two rounds of reading.
const POLL_TIMEOUT_MS: u64 = 100;

/// Counts until the program or the processes have ended, or the user interrupts.
///
/// # Errors
/// The program cannot run, nothing can be counted, or the recording cannot be written.
pub fn run(options: &StatOptions, on_update: &mut dyn FnMut(Update<'_>)) -> Result<StatOutcome> {
    check_group_modifiers(options)?;
    perf::raise_open_file_limit();
    let run = ObservedRun::prepare(&options.target, options.while_running.as_ref(), None)?;
    let target = OpenTarget::open(&options.target, run.pid())?;
    let support = check_events(options, &target)?;
    let groups = countable_groups(
        &options.groups,
        &support.usable,
        options.interval_ns.is_some(),
    );
    let (events, planned) = plan_groups(&groups, options.interval_ns.is_some());
    let opener = CounterOpener {
        target: &target,
        interval_ns: options.interval_ns,
        ring_pages: options.ring_pages,
        on_exec: matches!(options.target, Target::Command(_)),
        inherit: options.inherit,
    };
    let open = opener.open(&events, &planned)?;
    // After opening: a process that is attached to may end while the cost is measured.
    let task_cost = super::task_cost::measure(&opener, &events, &planned);
    let mut session = StatSession::new(options, opener, events, open, &support)?;
    session.task_cost = task_cost;
    on_update(Update::Columns(&session.columns()));
    session.warn_about_tick_cost(on_update);
    session.run(run, on_update)
}

/// The kernel supports `:D` and `:e` only for the first event of a group, which in a series is the
/// timer.
fn check_group_modifiers(options: &StatOptions) -> Result<()> {
    let series = options.interval_ns.is_some();
    for group in &options.groups {
        let members = group.events.iter().skip(usize::from(!series));
        let mut unsupported = members.filter(|e| e.modifiers.pinned || e.modifiers.exclusive);
        if let Some(event) = unsupported.next() {
            let first = match series {
                true => "with -I that is the timer",
                false => "in braces that is the one named first",
            };
            return Err(Error::usage(format!(
                "failed to count `{}`: only the first event of a group can have :D or :e, and \
                 {first}; leave them out",
                event.name
            )));
        }
    }
    Ok(())
}

fn check_events(options: &StatOptions, target: &OpenTarget) -> Result<EventSupport> {
    let all: Vec<Event> = options
        .groups
        .iter()
        .flat_map(|g| g.events.clone())
        .collect();
    let scope = if target.per_task {
        EventScope::Thread(0)
    } else {
        EventScope::AllProcesses
    };
    let support = check_support(&all, scope);
    match (support.usable.is_empty(), support.unsupported.first()) {
        (true, Some(first)) => Err(Error::new(
            ErrorKind::Missing,
            format!("failed to count `{}`: {}", first.name, first.why),
        )),
        _ => Ok(support),
    }
}

/// The groups without events that cannot be counted. In a series also without `cpu-clock`, which
/// the timer counts anyway.
fn countable_groups(groups: &[EventGroup], usable: &[Event], series: bool) -> Vec<EventGroup> {
    let is_timer = |event: &Event| {
        let attr = &event.attr;
        series && (attr.kind, attr.config) == (kind::SOFTWARE, software::CPU_CLOCK)
    };
    let countable = |event: &Event| {
        let found = usable.iter().find(|u| u.name == event.name);
        found.filter(|_| !is_timer(event)).cloned()
    };
    let groups = groups.iter().map(|group| EventGroup {
        events: group.events.iter().filter_map(countable).collect(),
        braces: group.braces,
    });
    groups.filter(|group| !group.events.is_empty()).collect()
}

struct StatSession<'a> {
    options: &'a StatOptions,
    opener: CounterOpener<'a>,
    per_task: bool,
    events: Vec<Event>,
    stream: RowStream,
    recording: Option<RecordingWriter>,
    /// Counts so far, in the order of `events`.
    sums: Vec<u64>,
    start_ns: u64,
    stolen: StolenTime,
    /// Cost of a tick on this machine.
    tick_ns: Option<f64>,
    task_cost: Option<TaskCostFacts>,
    /// The interval is shorter than the kernel allows.
    too_fast: bool,
    /// Rows of one round. Kept for its capacity.
    rows: Vec<CounterRow>,
    ids: EventIds,
    /// The same rows as in a recording.
    series: Vec<SeriesRow>,
    manifest: Manifest,
    facts: CountingFacts,
}

impl<'a> StatSession<'a> {
    fn new(
        options: &'a StatOptions,
        opener: CounterOpener<'a>,
        events: Vec<Event>,
        open: OpenCounters,
        support: &EventSupport,
    ) -> Result<StatSession<'a>> {
        let mut facts = CountingFacts {
            whole_machine: matches!(options.target, Target::AllProcesses(_)),
            unsupported: support.unsupported.iter().map(unsupported_facts).collect(),
            user_only: support.user_only.clone(),
            notes: open.notes.clone(),
            ..CountingFacts::default()
        };
        if open.timer_user_only {
            facts.notes.push(
                "this user cannot see timer ticks in the kernel: their intervals are joined to the \
                 next (sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON)"
                    .to_owned(),
            );
        }
        let manifest = recording::manifest(options, &events);
        let recording = match &options.output {
            Some(path) => Some(RecordingWriter::create(path, &manifest)?),
            None => None,
        };
        Ok(StatSession {
            options,
            per_task: opener.target.per_task,
            opener,
            sums: vec![0; events.len()],
            stolen: StolenTime::now(),
            ids: EventIds::new(&events, &open.groups),
            events,
            stream: RowStream::new(
                open,
                opener.target.per_task,
                options.interval_ns.unwrap_or(0),
            ),
            recording,
            start_ns: 0,
            tick_ns: None,
            task_cost: None,
            too_fast: false,
            rows: Vec::new(),
            series: Vec::new(),
            manifest,
            facts,
        })
    }

    fn columns(&self) -> Vec<Vec<String>> {
        let name = |&event: &usize| self.events[event].name.clone();
        let timer = || std::iter::once(TIMER.to_owned());
        let groups = self.stream.open.groups.iter();
        groups
            .map(|group| timer().chain(group.iter().map(name)).collect())
            .collect()
    }

    /// Measures the cost of a tick, and warns if the interval is too short.
    fn warn_about_tick_cost(&mut self, on_update: &mut dyn FnMut(Update<'_>)) {
        let Some(interval_ns) = self.options.interval_ns else {
            return;
        };
        if let Some(rate) = perf::max_sample_rate() {
            self.too_fast = throttling::may_throttle(interval_ns, rate);
            if let Some(warning) = throttling::warning_before_start(interval_ns, rate) {
                on_update(Update::Warning(&warning));
                self.facts.notes.push(warning);
            }
        }
        self.tick_ns = super::tick_cost::sampled_tick_ns();
        let Some(tick_ns) = self.tick_ns else { return };
        let min_interval_ns = super::min_interval_without_warning_ns(tick_ns);
        if interval_ns < min_interval_ns {
            let warning = format!(
                "a tick takes about {:.0} us here, and one every {} us would slow the program down a lot; \
                 from -I {}us on, ticks take less than {:.0} % of its time",
                tick_ns / 1e3,
                interval_ns / 1000,
                min_interval_ns.div_ceil(1000),
                100.0 * super::MAX_TICK_SHARE,
            );
            on_update(Update::Warning(&warning));
            self.facts.notes.push(warning);
        }
    }

    fn run(
        mut self,
        mut run: ObservedRun,
        on_update: &mut dyn FnMut(Update<'_>),
    ) -> Result<StatOutcome> {
        self.start_ns = perf::monotonic_ns();
        let whole_group = super::tick_cost::throttles_whole_group(self.too_fast);
        let throttling =
            TimerThrottling::new(whole_group, self.too_fast, self.tick_ns.unwrap_or(0.0));
        self.stream
            .start(self.start_ns, self.is_multiplexed(), throttling);
        let on_exec = matches!(self.options.target, Target::Command(_));
        self.stream.enable(on_exec)?;
        run.start()?;
        let mut updated = Instant::now();
        self.manifest.end = loop {
            if let Some(end) = run.poll_end()? {
                break end;
            }
            self.stream.wait(&run.watched, self.poll_timeout_ms());
            self.stream.open_new_threads(&self.opener, &self.events);
            self.collect(false, on_update)?;
            if updated.elapsed() >= Duration::from_millis(POLL_TIMEOUT_MS) {
                updated = Instant::now();
                on_update(Update::Sums(&self.sums_by_name()));
            }
        };
        self.finish(on_update)
    }

    /// True if more than one group competes for hardware counters.
    fn is_multiplexed(&self) -> bool {
        let uses_hardware =
            |group: &&Vec<usize>| group.iter().any(|&e| !self.events[e].is_software());
        self.stream.open.groups.iter().filter(uses_hardware).count() > 1
    }

    /// A quarter of the time in which the timers fill a ring. So a ring does not overflow even if its
    /// event has ended and can no longer be polled.
    fn poll_timeout_ms(&self) -> u64 {
        let Some(interval_ns) = self.options.interval_ns else {
            return POLL_TIMEOUT_MS;
        };
        let max_events = self
            .stream
            .open
            .groups
            .iter()
            .map(Vec::len)
            .max()
            .unwrap_or(0);
        let record_bytes = 64 + 8 * (max_events as u64 + 1);
        let bytes = self.stream.open.rings.iter().map(KernelRing::bytes).min();
        let records = bytes.unwrap_or(0) as u64 / record_bytes;
        // On each CPU one thread runs at a time, with a timer for each group.
        let timers = (self.stream.open.groups.len() as u64).max(1);
        (records * interval_ns / 4_000_000 / timers).clamp(1, POLL_TIMEOUT_MS)
    }

    fn collect(&mut self, all: bool, on_update: &mut dyn FnMut(Update<'_>)) -> Result<()> {
        let mut rows = std::mem::take(&mut self.rows);
        self.stream.collect(all, &mut rows);
        self.deliver(&mut rows, on_update)?;
        rows.clear();
        self.rows = rows;
        Ok(())
    }

    fn deliver(
        &mut self,
        rows: &mut [CounterRow],
        on_update: &mut dyn FnMut(Update<'_>),
    ) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        for row in rows.iter_mut() {
            row.time_ns = row.time_ns.saturating_sub(self.start_ns);
            self.add_to_sums(row);
        }
        self.facts.rows += rows.len() as u64;
        self.ids.convert(rows, &mut self.series);
        if let Some(recording) = &mut self.recording {
            recording.write(&self.series);
        }
        on_update(Update::Rows(rows));
        on_update(Update::Series(&self.series));
        Ok(())
    }

    fn add_to_sums(&mut self, row: &CounterRow) {
        let group = &self.stream.open.groups[row.group];
        for (value, &event) in row.values.iter().skip(1).zip(group) {
            self.sums[event] += value;
        }
    }

    fn sums_by_name(&self) -> BTreeMap<String, u64> {
        let mut by_name = BTreeMap::new();
        for (event, sum) in self.events.iter().zip(&self.sums) {
            *by_name.entry(event.name.clone()).or_default() += sum;
        }
        by_name
    }

    fn finish(mut self, on_update: &mut dyn FnMut(Update<'_>)) -> Result<StatOutcome> {
        let end_ns = perf::monotonic_ns();
        self.stream.disable();
        self.collect(true, on_update)?;
        let readings = self.stream.read()?;
        if self.options.interval_ns.is_some() {
            let mut rows = Vec::new();
            self.stream.close(&readings, end_ns, &mut rows);
            self.deliver(&mut rows, on_update)?;
        }
        self.facts.counters = super::totals::totals(
            &self.stream.open,
            &self.events,
            &readings,
            self.per_task && self.options.interval_ns.is_some(),
            self.stream.throttling(),
        );
        self.facts.wall_ns = end_ns - self.start_ns;
        if let Some(share) = StolenTime::now().notable_share_since(&self.stolen) {
            self.facts.notes.push(format!(
                "the hypervisor gave {:.0} % of the requested CPU time to others (steal): cpu-clock, \
                 task-clock and figures derived from them count it as the program's, /proc does not",
                share * 100.0
            ));
        }
        let threads = self.stream.take_threads(self.start_ns);
        self.facts.threads = threads.len() as u64;
        self.add_costs();
        let measures_timer = self.options.measure_timer && self.options.interval_ns.is_some();
        let bare_tick_ns = measures_timer
            .then(super::tick_cost::bare_tick_ns)
            .flatten();
        let ticks = self.ticks(&readings);
        self.facts
            .notes
            .extend(ticks.as_ref().and_then(throttling::note_after_run));
        self.facts.ticks = ticks.map(|ticks| TickFacts {
            bare_tick_ns,
            tick_ns: self.tick_ns,
            tasks_started: threads.iter().filter(|t| t.is_started_in_run()).count() as u64,
            task_cost: self.task_cost,
            ..ticks.facts(TIMER_ID)
        });
        self.into_outcome(&threads)
    }

    fn ticks(&self, readings: &[GroupValues]) -> Option<TickStatistics> {
        self.options.interval_ns?;
        let groups = readings.iter().zip(&self.stream.open.group_of);
        let timers = groups.filter(|(_, group)| **group == 0);
        let mut ticks = self.stream.ticks.clone();
        let counted_ns: u64 = timers.filter_map(|(t, _)| t.values.first()).sum();
        ticks.stopped_ns = self.stream.throttling().of_group_ns(0);
        ticks.running_ns = counted_ns + ticks.stopped_ns;
        Some(ticks)
    }

    fn add_costs(&mut self) {
        let (own, program) = (own_usage(), children_usage());
        self.facts.own_user_s = own.user.as_secs_f64();
        self.facts.own_system_s = (own.cpu - own.user).as_secs_f64();
        self.manifest.own_cost = OwnCost {
            wall_s: self.facts.wall_ns as f64 / 1e9,
            cpu_s: own.cpu.as_secs_f64(),
            peak_memory_bytes: own.peak_memory_bytes,
            program_cpu_s: program.cpu.as_secs_f64(),
            program_page_faults: program.minor_faults,
            page_fault_ns: page_fault_ns_after(program.minor_faults),
            recording_bytes: 0,
            ..OwnCost::default()
        };
    }

    /// Returns the outcome, after writing it into the recording if there is one.
    fn into_outcome(self, threads: &[SeenThread]) -> Result<StatOutcome> {
        let ticks = self.facts.ticks.iter();
        let timer = ticks.map(|t| (TIMER.to_owned(), t.running_ns));
        let counters = self.facts.counters.iter();
        let counted = counters.map(|c| (c.name.clone(), c.value));
        let mut outcome = StatOutcome {
            losses: self.stream.losses(),
            threads: threads.iter().map(thread_row).collect(),
            manifest: Manifest {
                totals: counted.chain(timer).collect(),
                counting: Some(self.facts),
                complete: true,
                ..self.manifest
            },
            unwritten: None,
        };
        if let Some(recording) = self.recording {
            recording.finish(&mut outcome);
        }
        Ok(outcome)
    }
}

fn thread_row(seen: &SeenThread) -> Thread {
    Thread {
        pid: Pid(seen.pid),
        tid: Tid(seen.tid),
        parent_pid: Pid(seen.parent_pid),
        program: seen.program.clone(),
        start_ns: seen.start_ns,
        end_ns: seen.end_ns,
        idle_ns: None,
    }
}

fn unsupported_facts(event: &UnsupportedEvent) -> UnsupportedFacts {
    UnsupportedFacts {
        name: event.name.clone(),
        why: event.why.clone(),
    }
}
