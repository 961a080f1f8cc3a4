//! A run of `memgauge stat`, from the first counter to the last row.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memgauge_trace::{
    CountingFacts, Manifest, OwnCost, Pid, SeriesRow, TaskCostFacts, Thread, TickFacts, Tid,
    UnsupportedFacts,
};

use super::open::{Open, Opener, TIMER};
use super::plan::plan;
use super::series::Row;
use super::sink::{self, Ids, Sink, TIMER_ID};
use super::stops::{self, Stops};
use super::stream::Stream;
use super::{Options, Outcome, SeenThread, Ticks, Update};
use crate::counters::{EventSupport, Totals, Unsupported, try_out};
use crate::events::{Event, Group};
use crate::run::ObservedRun;
use crate::sys::perf::{self, EventScope, Ring};
use crate::target::{OpenTarget, Target};
use crate::{Error, ErrorKind, Result};
use memgauge_host::stolen::StolenTime;
use memgauge_host::sys::process::{children_usage, own_usage};
use memgauge_perf::abi::{kind, software};

/// Longest time between two looks at the rings and at who has ended.
const LOOK_EVERY_MS: u64 = 100;

/// Counts what the options name, until the program or the processes have ended
/// or the user has had enough.
///
/// # Errors
/// The program cannot run, nothing can be counted, or the recording cannot be
/// written.
pub fn run(options: &Options, tell: &mut dyn FnMut(Update<'_>)) -> Result<Outcome> {
    check_firsts(options)?;
    perf::raise_open_files();
    let run = ObservedRun::prepare(&options.target, options.while_running.as_ref(), None)?;
    let aimed = OpenTarget::at(&options.target, run.pid())?;
    let tried = usable(options, &aimed)?;
    let groups = keep(
        &options.groups,
        &tried.usable,
        options.interval_ns.is_some(),
    );
    let (events, planned) = plan(&groups, options.interval_ns.is_some());
    let opener = Opener {
        aimed: &aimed,
        interval_ns: options.interval_ns,
        ring_pages: options.ring_pages,
        on_exec: matches!(options.target, Target::Command(_)),
        inherit: options.inherit,
    };
    let task_cost = super::task_cost::measure(&opener, &events, &planned);
    let open = opener.open(&events, &planned)?;
    let mut session = Session::new(options, opener, events, open, &tried)?;
    session.task_cost = task_cost;
    tell(Update::Columns(&session.columns()));
    session.look_ahead(tell);
    session.run(run, tell)
}

/// The kernel takes `:D` and `:e` of the first event of a group only, which in a series
/// is the timer.
fn check_firsts(options: &Options) -> Result<()> {
    let series = options.interval_ns.is_some();
    for group in &options.groups {
        let others = group.events.iter().skip(usize::from(!series));
        let mut of_firsts = others.filter(|e| e.modifiers.pinned || e.modifiers.exclusive);
        if let Some(event) = of_firsts.next() {
            let first = if series {
                "with -I that is the timer"
            } else {
                "in braces that is the one named first"
            };
            return Err(Error::usage(format!(
                "failed to count `{}`: only the first event of a group can have :D or :e, and \
                 {first}: leave them out",
                event.name
            )));
        }
    }
    Ok(())
}

fn usable(options: &Options, aimed: &OpenTarget) -> Result<EventSupport> {
    let all: Vec<Event> = options
        .groups
        .iter()
        .flat_map(|g| g.events.clone())
        .collect();
    let scope = if aimed.per_task {
        EventScope::Thread(0)
    } else {
        EventScope::Everybody
    };
    let tried = try_out(&all, scope);
    match (tried.usable.is_empty(), tried.unsupported.first()) {
        (true, Some(first)) => Err(Error::new(
            ErrorKind::Missing,
            format!("failed to count `{}`: {}", first.name, first.why),
        )),
        _ => Ok(tried),
    }
}

/// The groups without what cannot be counted and, in a series, without the event
/// that is the timer anyway.
fn keep(groups: &[Group], usable: &[Event], series: bool) -> Vec<Group> {
    let is_timer = |event: &Event| {
        let attr = &event.attr;
        series && (attr.kind, attr.config) == (kind::SOFTWARE, software::CPU_CLOCK)
    };
    let kept = |event: &Event| {
        let found = usable.iter().find(|u| u.name == event.name);
        found.filter(|_| !is_timer(event)).cloned()
    };
    let groups = groups.iter().map(|group| Group {
        events: group.events.iter().filter_map(kept).collect(),
        braces: group.braces,
    });
    groups.filter(|group| !group.events.is_empty()).collect()
}

struct Session<'a> {
    options: &'a Options,
    opener: Opener<'a>,
    per_task: bool,
    events: Vec<Event>,
    stream: Stream,
    sink: Option<Sink>,
    /// Counts of each event so far, in the order of `events`.
    sums: Vec<u64>,
    start_ns: u64,
    stolen: StolenTime,
    /// Time of a tick here, in nanoseconds.
    tick_ns: Option<f64>,
    task_cost: Option<TaskCostFacts>,
    /// The kernel allows fewer ticks a second than the interval asks for.
    too_fast: bool,
    /// Rows of a round; the memory stays for the next.
    rows: Vec<Row>,
    ids: Ids,
    /// The same as rows of a series.
    series: Vec<SeriesRow>,
    manifest: Manifest,
    facts: CountingFacts,
}

impl<'a> Session<'a> {
    fn new(
        options: &'a Options,
        opener: Opener<'a>,
        events: Vec<Event>,
        open: Open,
        tried: &EventSupport,
    ) -> Result<Session<'a>> {
        let mut facts = CountingFacts {
            whole_machine: matches!(options.target, Target::Everybody(_)),
            unsupported: tried.unsupported.iter().map(unsupported).collect(),
            user_only: tried.user_only.clone(),
            notes: open.notes.clone(),
            ..CountingFacts::default()
        };
        if open.timer_user_only {
            facts.notes.push(
                "this user cannot see timer ticks in the kernel: their intervals are joined to \
                the next (sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON)"
                    .to_owned(),
            );
        }
        let manifest = sink::manifest(options, &events);
        let sink = match &options.output {
            Some(path) => Some(Sink::create(path, &manifest)?),
            None => None,
        };
        Ok(Session {
            options,
            per_task: opener.aimed.per_task,
            opener,
            sums: vec![0; events.len()],
            stolen: StolenTime::now(),
            ids: Ids::of(&events, &open.groups),
            events,
            stream: Stream::new(
                open,
                opener.aimed.per_task,
                options.interval_ns.unwrap_or(0),
            ),
            sink,
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

    /// Measures what a tick takes here, and warns where that is too much.
    fn look_ahead(&mut self, tell: &mut dyn FnMut(Update<'_>)) {
        let Some(interval_ns) = self.options.interval_ns else {
            return;
        };
        if let Some(rate) = perf::most_samples_a_second() {
            self.too_fast = stops::may_stop(interval_ns, rate);
            if let Some(warning) = stops::ahead(interval_ns, rate) {
                tell(Update::Warning(&warning));
                self.facts.notes.push(warning);
            }
        }
        self.tick_ns = super::bare::sampled_tick_ns();
        let Some(tick_ns) = self.tick_ns else { return };
        let bearable_ns = super::bearable_interval_ns(tick_ns);
        if interval_ns < bearable_ns {
            let warning = format!(
                "a tick takes about {:.0} us here: one every {} us would slow the program down a \
                lot (from -I {}us on, ticks take less than {:.0} % of its time)",
                tick_ns / 1e3,
                interval_ns / 1000,
                bearable_ns.div_ceil(1000),
                100.0 * super::BEARABLE,
            );
            tell(Update::Warning(&warning));
            self.facts.notes.push(warning);
        }
    }

    fn run(mut self, mut run: ObservedRun, tell: &mut dyn FnMut(Update<'_>)) -> Result<Outcome> {
        self.start_ns = perf::monotonic_ns();
        let with_group = super::bare::stops_with_group(self.too_fast);
        let stops = Stops::new(with_group, self.too_fast, self.tick_ns.unwrap_or(0.0));
        self.stream.start(self.start_ns, self.takes_turns(), stops);
        let on_exec = matches!(self.options.target, Target::Command(_));
        self.stream.enable(on_exec)?;
        run.go()?;
        let mut shown = Instant::now();
        self.manifest.end = loop {
            if let Some(end) = run.over()? {
                break end;
            }
            self.stream.wait(&run.watched, self.patience_ms());
            self.stream.follow(&self.opener, &self.events);
            self.collect(false, tell)?;
            if shown.elapsed() >= Duration::from_millis(LOOK_EVERY_MS) {
                shown = Instant::now();
                tell(Update::Sums(&self.sums_by_name()));
            }
        };
        self.finish(tell)
    }

    /// More than one group competes for hardware counters.
    fn takes_turns(&self) -> bool {
        let hardware = |group: &&Vec<usize>| group.iter().any(|&e| !self.events[e].is_software());
        self.stream.open.groups.iter().filter(hardware).count() > 1
    }

    /// A quarter of the time in which the timer fills a ring. So a ring whose event can
    /// no longer be waited for does not overflow.
    fn patience_ms(&self) -> u64 {
        let Some(interval_ns) = self.options.interval_ns else {
            return LOOK_EVERY_MS;
        };
        let widest = self
            .stream
            .open
            .groups
            .iter()
            .map(Vec::len)
            .max()
            .unwrap_or(0);
        let record = 64 + 8 * (widest as u64 + 1);
        let bytes = self.stream.open.rings.iter().map(Ring::bytes).min();
        let records = bytes.unwrap_or(0) as u64 / record;
        // On each processor one thread runs at a time, with a timer for each group.
        let timers = (self.stream.open.groups.len() as u64).max(1);
        (records * interval_ns / 4_000_000 / timers).clamp(1, LOOK_EVERY_MS)
    }

    fn collect(&mut self, all: bool, tell: &mut dyn FnMut(Update<'_>)) -> Result<()> {
        let mut rows = std::mem::take(&mut self.rows);
        self.stream.collect(all, &mut rows);
        self.deliver(&mut rows, tell)?;
        rows.clear();
        self.rows = rows;
        Ok(())
    }

    fn deliver(&mut self, rows: &mut [Row], tell: &mut dyn FnMut(Update<'_>)) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        for row in rows.iter_mut() {
            row.time_ns = row.time_ns.saturating_sub(self.start_ns);
            self.add(row);
        }
        self.facts.rows += rows.len() as u64;
        self.ids.series(rows, &mut self.series);
        if let Some(sink) = &mut self.sink {
            sink.write(&self.series);
        }
        tell(Update::Rows(rows));
        tell(Update::Series(&self.series));
        Ok(())
    }

    fn add(&mut self, row: &Row) {
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

    fn finish(mut self, tell: &mut dyn FnMut(Update<'_>)) -> Result<Outcome> {
        let end_ns = perf::monotonic_ns();
        self.stream.disable();
        self.collect(true, tell)?;
        let readings = self.stream.read()?;
        if self.options.interval_ns.is_some() {
            let mut rows = Vec::new();
            self.stream.close(&readings, end_ns, &mut rows);
            self.deliver(&mut rows, tell)?;
        }
        self.facts.counters = super::totals::totals(
            &self.stream.open,
            &self.events,
            &readings,
            self.per_task && self.options.interval_ns.is_some(),
            self.stream.stops(),
        );
        self.facts.wall_ns = end_ns - self.start_ns;
        if let Some(share) = StolenTime::now().notable_share_since(&self.stolen) {
            self.facts.notes.push(format!(
                "the hypervisor gave {:.0} % of the wanted processor time to others (steal): cpu-clock, \
                 task-clock and what follows from them count it as the program's, /proc does not",
                share * 100.0
            ));
        }
        let threads = self.stream.threads(self.start_ns);
        self.facts.threads = threads.len() as u64;
        self.costs();
        let measure = self.options.measure_timer && self.options.interval_ns.is_some();
        let bare_tick_ns = measure.then(super::bare::tick_ns).flatten();
        let ticks = self.ticks(&readings);
        self.facts
            .notes
            .extend(ticks.as_ref().and_then(stops::afterwards));
        self.facts.ticks = ticks.map(|t| TickFacts {
            bare_tick_ns,
            tick_ns: self.tick_ns,
            tasks_started: threads.iter().filter(|t| t.is_started_in_run()).count() as u64,
            task_cost: self.task_cost,
            ..t.facts(TIMER_ID)
        });
        self.end(&threads)
    }

    fn ticks(&self, readings: &[Totals]) -> Option<Ticks> {
        self.options.interval_ns?;
        let groups = readings.iter().zip(&self.stream.open.group_of);
        let timers = groups.filter(|(_, group)| **group == 0);
        let mut ticks = self.stream.ticks.clone();
        let counted_ns: u64 = timers.filter_map(|(t, _)| t.values.first()).sum();
        ticks.stopped_ns = self.stream.stops().ns(0);
        ticks.running_ns = counted_ns + ticks.stopped_ns;
        Some(ticks)
    }

    fn costs(&mut self) {
        let own = own_usage();
        self.facts.own_user_s = own.user.as_secs_f64();
        self.facts.own_system_s = (own.cpu - own.user).as_secs_f64();
        self.manifest.own_cost = OwnCost {
            wall_s: self.facts.wall_ns as f64 / 1e9,
            cpu_s: own.cpu.as_secs_f64(),
            peak_memory_bytes: own.peak_memory_bytes,
            program_cpu_s: children_usage().cpu.as_secs_f64(),
            recording_bytes: 0,
        };
    }

    /// The outcome, which goes to the recording where there is one.
    fn end(self, threads: &[SeenThread]) -> Result<Outcome> {
        let ticks = self.facts.ticks.iter();
        let timer = ticks.map(|t| (TIMER.to_owned(), t.running_ns));
        let counters = self.facts.counters.iter();
        let counted = counters.map(|c| (c.name.clone(), c.value));
        let mut outcome = Outcome {
            losses: self.stream.losses(),
            threads: threads.iter().map(thread).collect(),
            manifest: Manifest {
                totals: counted.chain(timer).collect(),
                counting: Some(self.facts),
                complete: true,
                ..self.manifest
            },
            unwritten: None,
        };
        if let Some(sink) = self.sink {
            sink.finish(&mut outcome);
        }
        Ok(outcome)
    }
}

fn thread(seen: &SeenThread) -> Thread {
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

fn unsupported(event: &Unsupported) -> UnsupportedFacts {
    UnsupportedFacts {
        name: event.name.clone(),
        why: event.why.clone(),
    }
}
