//! A run of `memgauge stat`, from the first counter to the last row.

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use memgauge_trace::{CommandEnd, OwnCost};

use super::open::{Open, Opener, TIMER};
use super::plan::plan;
use super::series::Row;
use super::sink::Sink;
use super::stream::Stream;
use super::{Options, Outcome, SeenThread, Ticks, Update};
use crate::pmu::abi::{kind, software};
use crate::pmu::counters::{Totals, Tried, try_out};
use crate::pmu::events::{Event, Group};
use crate::pmu::target::{Aimed, Target};
use crate::sys::launch::Held;
use crate::sys::perf::{self, Whom};
use crate::sys::process::{Watched, children_usage, interrupts, own_usage};
use crate::{Error, ErrorKind, Result};

/// Longest time between two looks at the rings and at who has ended.
const LOOK_EVERY_MS: u64 = 100;
/// What an interrupted program gets to end by itself.
const GRACE: Duration = Duration::from_secs(2);

/// Counts what the options name, until the program or the processes have ended
/// or the user has had enough.
///
/// # Errors
/// The program cannot run, nothing can be counted, or the recording cannot be
/// written.
pub fn run(options: &Options, tell: &mut dyn FnMut(Update<'_>)) -> Result<Outcome> {
    perf::raise_open_files();
    let program = match (&options.target, &options.while_running) {
        (Target::Command(command), _) | (_, Some(command)) => Some(start(command)?),
        _ => None,
    };
    let aimed = Aimed::at(&options.target, program.as_ref().map(Held::pid))?;
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
    let open = opener.open(&events, &planned)?;
    let session = Session::new(options, opener, events, open, &tried)?;
    tell(Update::Columns(&session.columns()));
    session.run(program, tell)
}

pub(crate) fn start(command: &[String]) -> Result<Held> {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]);
    Held::start(process).map_err(|e| not_started(&command[0], e))
}

/// What the shell would say of a program that does not run.
pub(crate) fn not_started(program: &str, error: std::io::Error) -> Error {
    let (kind, why) = match error.kind() {
        std::io::ErrorKind::NotFound => (ErrorKind::ProgramNotFound, "there is no such program"),
        std::io::ErrorKind::PermissionDenied => {
            (ErrorKind::ProgramNotExecutable, "it may not be executed")
        }
        _ => (
            ErrorKind::ProgramNotExecutable,
            "the system does not execute it",
        ),
    };
    let detail = match kind {
        ErrorKind::ProgramNotFound => String::new(),
        _ => format!(" ({error})"),
    };
    Error::new(kind, format!("failed to run `{program}`: {why}{detail}"))
}

fn usable(options: &Options, aimed: &Aimed) -> Result<Tried> {
    let all: Vec<Event> = options
        .groups
        .iter()
        .flat_map(|g| g.events.clone())
        .collect();
    let whom = if aimed.per_task {
        Whom::Thread(0)
    } else {
        Whom::Everybody
    };
    let tried = try_out(&all, whom);
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
    sums: BTreeMap<String, u64>,
    start_ns: u64,
    outcome: Outcome,
}

impl<'a> Session<'a> {
    fn new(
        options: &'a Options,
        opener: Opener<'a>,
        events: Vec<Event>,
        open: Open,
        tried: &Tried,
    ) -> Result<Session<'a>> {
        let mut outcome = Outcome {
            unsupported: tried.unsupported.clone(),
            user_only: tried.user_only.clone(),
            notes: open.notes.clone(),
            ..Outcome::default()
        };
        if open.timer_user_only {
            outcome.notes.push(
                "timer ticks in the kernel are not seen by this user: their intervals join the \
                 next (sysctl kernel.perf_event_paranoid=1, or CAP_PERFMON)"
                    .to_owned(),
            );
        }
        let sink = match &options.output {
            Some(path) => Some(Sink::create(path, options, &events, &open.groups)?),
            None => None,
        };
        Ok(Session {
            options,
            per_task: opener.aimed.per_task,
            opener,
            events,
            stream: Stream::new(
                open,
                opener.aimed.per_task,
                options.interval_ns.unwrap_or(0),
            ),
            sink,
            sums: BTreeMap::new(),
            start_ns: 0,
            outcome,
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

    fn run(mut self, program: Option<Held>, tell: &mut dyn FnMut(Update<'_>)) -> Result<Outcome> {
        let watched = self.watched(program.as_ref());
        self.start_ns = perf::monotonic_ns();
        self.stream.start(self.start_ns, self.takes_turns());
        let on_exec = matches!(self.options.target, Target::Command(_));
        self.stream.enable(on_exec)?;
        let name = self.program_name();
        let mut child = match program {
            Some(held) => Some(held.go().map_err(|e| not_started(&name, e))?),
            None => None,
        };
        let mut shown = Instant::now();
        while !self.is_over(&mut child, &watched)? {
            self.stream.wait(&watched, self.patience_ms());
            self.stream.follow(&self.opener, &self.events);
            self.collect(false, tell)?;
            if shown.elapsed() >= Duration::from_millis(LOOK_EVERY_MS) {
                shown = Instant::now();
                tell(Update::Sums(&self.sums));
            }
        }
        self.finish(tell)
    }

    fn program_name(&self) -> String {
        let command = match (&self.options.target, &self.options.while_running) {
            (Target::Command(command), _) | (_, Some(command)) => command.first(),
            _ => None,
        };
        command.cloned().unwrap_or_default()
    }

    /// More than one group competes for hardware counters.
    fn takes_turns(&self) -> bool {
        let hardware = |group: &&Vec<usize>| group.iter().any(|&e| !self.events[e].is_software());
        self.stream.open.groups.iter().filter(hardware).count() > 1
    }

    fn watched(&self, program: Option<&Held>) -> Vec<Watched> {
        match (&self.options.target, program) {
            (_, Some(held)) => vec![Watched::new(held.pid())],
            (Target::Processes(ids) | Target::Threads(ids), None) => {
                ids.iter().map(|&id| Watched::new(id)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// A quarter of the time in which the timer fills a ring, so that a ring whose
    /// event can no longer be waited for does not overflow.
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
        let records = (self.options.ring_pages * perf::page_bytes()) as u64 / record;
        let threads = (self.stream.open.counters.len() as u64).max(1);
        (records * interval_ns / 4_000_000 / threads.min(8)).clamp(1, LOOK_EVERY_MS)
    }

    fn is_over(&mut self, child: &mut Option<Child>, watched: &[Watched]) -> Result<bool> {
        if let Some(child) = child {
            let status = child
                .try_wait()
                .map_err(|e| Error::system("failed to wait for the program", e))?;
            if let Some(status) = status {
                self.outcome.end = Some(ending(status));
                return Ok(true);
            }
        }
        if interrupts() > 0 {
            if let Some(child) = child {
                end_program(child)?;
                self.outcome.end = Some(CommandEnd::Interrupted);
            }
            return Ok(true);
        }
        let attached = child.is_none() && !watched.is_empty();
        Ok(attached && watched.iter().all(Watched::ended))
    }

    fn collect(&mut self, all: bool, tell: &mut dyn FnMut(Update<'_>)) -> Result<()> {
        let mut rows = Vec::new();
        self.stream.collect(all, &mut rows);
        self.deliver(rows, tell)
    }

    fn deliver(&mut self, mut rows: Vec<Row>, tell: &mut dyn FnMut(Update<'_>)) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        for row in &mut rows {
            row.time_ns = row.time_ns.saturating_sub(self.start_ns);
            self.add(row);
        }
        self.outcome.rows += rows.len() as u64;
        if let Some(sink) = &mut self.sink {
            sink.write(&rows)?;
        }
        tell(Update::Rows(&rows));
        Ok(())
    }

    fn add(&mut self, row: &Row) {
        let group = &self.stream.open.groups[row.group];
        for (value, &event) in row.values.iter().skip(1).zip(group) {
            let name = &self.events[event].name;
            match self.sums.get_mut(name) {
                Some(sum) => *sum += value,
                None => drop(self.sums.insert(name.clone(), *value)),
            }
        }
    }

    fn finish(mut self, tell: &mut dyn FnMut(Update<'_>)) -> Result<Outcome> {
        let end_ns = perf::monotonic_ns();
        self.stream.disable();
        self.collect(true, tell)?;
        let readings = self.stream.read()?;
        if self.options.interval_ns.is_some() {
            let mut rows = Vec::new();
            self.stream.close(&readings, end_ns, &mut rows);
            self.deliver(rows, tell)?;
        }
        self.outcome.totals = super::totals::totals(
            &self.stream.open,
            &self.events,
            &readings,
            self.per_task && self.options.interval_ns.is_some(),
        );
        self.outcome.wall_ns = end_ns - self.start_ns;
        self.outcome.ticks = self.ticks(&readings);
        self.outcome.losses = self.stream.losses();
        let threads = self.stream.threads(self.start_ns);
        self.outcome.threads = threads.len() as u64;
        self.costs();
        if self.options.measure_timer && self.options.interval_ns.is_some() {
            self.outcome.bare_tick_ns = super::bare::tick_ns();
        }
        self.write_end(&threads)?;
        Ok(self.outcome)
    }

    fn ticks(&self, readings: &[Totals]) -> Option<Ticks> {
        self.options.interval_ns?;
        let groups = readings.iter().zip(&self.stream.open.group_of);
        let timers = groups.filter(|(_, group)| **group == 0);
        let mut ticks = self.stream.ticks.clone();
        ticks.running_ns = timers.filter_map(|(t, _)| t.values.first()).sum();
        Some(ticks)
    }

    fn costs(&mut self) {
        let own = own_usage();
        self.outcome.own_user_s = own.user.as_secs_f64();
        self.outcome.own_system_s = (own.cpu - own.user).as_secs_f64();
        self.outcome.cost = OwnCost {
            wall_s: self.outcome.wall_ns as f64 / 1e9,
            cpu_s: own.cpu.as_secs_f64(),
            peak_memory_bytes: own.peak_memory_bytes,
            program_cpu_s: children_usage().cpu.as_secs_f64(),
            recording_bytes: 0,
        };
    }

    fn write_end(&mut self, threads: &[SeenThread]) -> Result<()> {
        let Some(sink) = self.sink.take() else {
            return Ok(());
        };
        self.outcome.cost.recording_bytes = sink.finish(&self.outcome, threads)?;
        Ok(())
    }
}

/// Asks the program to end, then makes it.
pub(crate) fn end_program(child: &mut Child) -> Result<()> {
    let asked = Instant::now();
    let watched = Watched::new(child.id());
    watched.signal(libc::SIGTERM);
    while !watched.ended() && asked.elapsed() < GRACE {
        std::thread::sleep(Duration::from_millis(10));
    }
    // One that has ended is no error.
    let _ = child.kill();
    child
        .wait()
        .map(drop)
        .map_err(|e| Error::system("failed to wait for the program", e))
}

pub(crate) fn ending(status: std::process::ExitStatus) -> CommandEnd {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => CommandEnd::Exited(code),
        (None, signal) => CommandEnd::Signalled(signal.unwrap_or(0)),
    }
}
