//! A run of `memgauge record -e`, from the first event to the last sample.

mod finish;
mod reopen;
mod started_meanwhile;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use memgauge_recording::Writer;
use memgauge_trace::{CommandEnd, Loss, LossKind, OverheadFacts, PebsFacts};

use self::reopen::Reopening;
use self::started_meanwhile::{candidates, running_descendants};
use super::SamplingOptions;
use super::attributes::{
    IBS_PERIOD_STEP, PmuCapabilities, SampleRequest, SamplingMethod, SamplingRate, is_timer,
    min_period, sampling_method,
};
use super::budget::{self, BudgetWindow};
use super::capabilities::pmu_capabilities;
use super::merger::RecordMerger;
use super::open::{EventOpener, OpenEvents, RequestedEvent, requested_event};
use super::python::PythonSampler;
use super::recorder::Recorder;
use super::reference_counters::ReferenceCounters;
use super::roi::RoiTracker;
use super::roi_marks::{self, MarkFile};
use crate::events::{Event, Pmus};
use crate::run::ObservedRun;
use crate::sys::perf::{self, EventScope, KernelRing, PollResult};
use crate::target::{OpenTarget, Target};
use crate::{ErrorKind, Result};
use memgauge_host::roi::RequestedNames;
use memgauge_host::sys::process::{Watched, own_usage};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};
use memgauge_perf::record::Layout;
use rustix::thread::sched_getcpu;

/// Maximum time between two rounds of reading.
const POLL_TIMEOUT_MS: i32 = 50;
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks of the overhead.
const OVERHEAD_WINDOW: Duration = Duration::from_millis(100);
/// The first window is short, since the initial period may be far too short.
const FIRST_OVERHEAD_WINDOW: Duration = Duration::from_millis(5);

/// Records samples until the program or the processes have ended, or the user interrupts.
///
/// # Errors
/// The program cannot run, an event cannot be sampled, or the recording cannot be written.
pub fn record(options: &SamplingOptions) -> Result<super::SamplingOutcome> {
    perf::raise_open_file_limit();
    let requested_rois = RequestedNames::new("--region", &options.regions)?;
    let is_started = matches!(options.target, Target::Command(_));
    // A trace of overflows does not use regions of interest.
    let marks = match is_started && options.tracing.is_none() {
        true => Some(MarkFile::create()?),
        false => None,
    };
    let environment = marks
        .as_ref()
        .map(|file| (roi_marks::ENV_VARIABLE, file.path()));
    let while_running = options.while_running.as_ref();
    let run = ObservedRun::prepare(&options.target, while_running, environment)?;
    let older = running_descendants(&options.target);
    let target = OpenTarget::open(&options.target, run.pid())?;
    let capabilities = pmu_capabilities(&Pmus::default());
    let opened = open_events(options, &target, &capabilities)?;
    let mut session = SamplingSession::new(options, opened)?;
    session.recorder.rois = RoiTracker::new(marks, requested_rois);
    if session.opener.whole_cpus && target.per_task {
        session.recorder.processes.target_pids = Some(target_pids(&options.target, run.pid()));
    }
    if options.tracing.is_none() {
        session.read_python();
    }
    session.run(run, &older)
}

/// The requested events, the open ones, and the opener, which knows how they were opened.
struct Opened<'a> {
    requests: Vec<RequestedEvent>,
    open: OpenEvents,
    opener: EventOpener<'a>,
}

/// Opens all events in the target's tasks. If that fails because the kernel samples IBS only by
/// CPU (before 6.2), opens them on whole CPUs.
fn open_events<'a>(
    options: &SamplingOptions,
    target: &'a OpenTarget,
    capabilities: &PmuCapabilities,
) -> Result<Opened<'a>> {
    let try_open = |whole_cpus: bool| -> Result<Opened<'a>> {
        let request = |rate| SampleRequest {
            rate,
            registers: options.registers,
            physical_address: options.physical,
            stacks: options.stacks,
            // A timer of a whole CPU counts while the CPU is idle, too. A trace stores one period
            // for many overflows.
            timer_values: target.per_task && !whole_cpus && options.tracing.is_none(),
        };
        let mut requests: Vec<RequestedEvent> = options
            .events
            .iter()
            .map(|(event, rate)| requested_event(event, request(*rate), capabilities))
            .collect();
        let opener = EventOpener {
            target,
            on_exec: matches!(options.target, Target::Command(_)),
            ring_pages: options.ring_pages,
            monotonic: !requests.iter().any(has_own_clock),
            whole_cpus,
        };
        let open = opener.open(&mut requests)?;
        Ok(Opened {
            requests,
            open,
            opener,
        })
    };
    let is_ibs = |(event, _): &(Event, SamplingRate)| {
        sampling_method(&event.attr, capabilities) == SamplingMethod::Ibs
    };
    let may_need_whole_cpus = target.per_task && options.events.iter().any(is_ibs);
    match try_open(options.whole_processors) {
        Err(e) if may_need_whole_cpus && e.kind() == ErrorKind::Missing => try_open(true),
        result => result,
    }
}

/// True if records are written by hardware, which does not know `CLOCK_MONOTONIC`.
fn has_own_clock(request: &RequestedEvent) -> bool {
    matches!(
        request.sampling.method,
        SamplingMethod::Pebs | SamplingMethod::Spe
    )
}

fn target_pids(target: &Target, program: Option<u32>) -> HashSet<u32> {
    match target {
        Target::Processes(ids) | Target::Threads(ids) => ids.iter().copied().collect(),
        _ => program.into_iter().collect(),
    }
}

/// Measures how far the events' own clock is behind `CLOCK_MONOTONIC`, with a timer sample on
/// this thread. The error is the delay of that sample.
fn measure_clock_offset_ns() -> u64 {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = 50_000;
    attr.sample_type = sample::TIME;
    attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    let Ok(event) = perf::open(&attr, EventScope::Thread(0), None, None) else {
        return 0;
    };
    let Ok(mut ring) = KernelRing::map(&event, 1) else {
        return 0;
    };
    let began = Instant::now();
    while ring.unread() == 0 && began.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let now_ns = perf::monotonic_ns();
    let layout = Layout::new(&attr);
    let mut sample_ns = None;
    ring.read_records(|_, body| sample_ns = layout.sample(body).map(|sample| sample.time_ns));
    sample_ns.map_or(0, |sample_ns| now_ns.saturating_sub(sample_ns))
}

/// Totals at the start of a window of the overhead.
struct WindowStart {
    /// Number of samples by event.
    samples: Vec<u64>,
    /// CPU time of memgauge.
    own_ns: u64,
    /// Observed CPU time.
    observed_ns: u64,
}

pub(super) struct SamplingSession<'a> {
    pub(super) options: &'a SamplingOptions,
    pub(super) opener: EventOpener<'a>,
    pub(super) open: OpenEvents,
    /// Threads with events that they did not inherit.
    pub(super) threads_with_own_events: BTreeSet<u32>,
    /// IDs of the events that were replaced last. Rings may still have their records.
    pub(super) replaced_ids: Vec<u64>,
    pub(super) requests: Vec<RequestedEvent>,
    pub(super) recorder: Recorder,
    merger: RecordMerger,
    /// How far the events' clock is behind `CLOCK_MONOTONIC`.
    clock_offset_ns: u64,
    pub(super) start_ns: u64,
    /// Start of the last round of reading.
    round_ns: u64,
    pub(super) pebs: PebsFacts,
    pub(super) overhead: Option<OverheadFacts>,
    window_start: WindowStart,
    /// Sum of all windows.
    so_far: BudgetWindow,
    /// The memory controllers' counters, if overflows are traced.
    pub(super) reference: Option<ReferenceCounters>,
    /// Time of the last change of periods.
    changed_ns: u64,
    /// CPU time of memgauge before sampling.
    pub(super) own_before_ns: u64,
    /// When sampling ended, on `CLOCK_MONOTONIC`.
    pub(super) end_ns: u64,
    /// Losses between the previous interval and this one.
    pub(super) losses_before: Vec<Loss>,
}

impl<'a> SamplingSession<'a> {
    fn new(options: &'a SamplingOptions, opened: Opened<'a>) -> Result<SamplingSession<'a>> {
        let Opened {
            requests,
            open,
            opener,
        } = opened;
        let writer = Writer::create(&options.output, finish::manifest(options, &requests))?;
        let mut recorder = Recorder::new(writer, &requests, options);
        let reference = options.tracing.as_ref();
        let reference =
            reference.map(|tracing| ReferenceCounters::open(tracing.counters.as_deref()));
        let overhead = options.overhead.map(|allowed| OverheadFacts {
            allowed,
            ..OverheadFacts::default()
        });
        for (request, outcome) in requests.iter().zip(&mut recorder.outcomes) {
            outcome.period = match request.sampling.attr.has(flag::FREQ) {
                true => 0,
                false => request.sampling.attr.period,
            };
            outcome.cost = overhead.and_then(|_| super::sample_cost::measure(request));
        }
        recorder.note_periods(0);
        let clock_offset_ns = match requests.iter().any(has_own_clock) {
            true => measure_clock_offset_ns(),
            false => 0,
        };
        Ok(SamplingSession {
            threads_with_own_events: opener.target.threads(),
            opener,
            replaced_ids: Vec::new(),
            merger: RecordMerger::new(open.rings.len()),
            options,
            open,
            window_start: WindowStart {
                samples: vec![0; requests.len()],
                own_ns: 0,
                observed_ns: 0,
            },
            so_far: BudgetWindow::default(),
            requests,
            recorder,
            clock_offset_ns,
            start_ns: 0,
            round_ns: 0,
            pebs: PebsFacts::default(),
            overhead,
            own_before_ns: 0,
            end_ns: 0,
            losses_before: Vec::new(),
            reference: reference.transpose()?,
            changed_ns: 0,
        })
    }

    /// Reads frames of Python at samples. Must come before the program starts, since its threads and
    /// children inherit events as they are then.
    fn read_python(&mut self) {
        let mut python = PythonSampler::load();
        for (cpu, owner) in self.open.ring_owners() {
            python.add_ring(cpu, owner, self.opener.monotonic);
        }
        for event in &self.open.events {
            python.attach(event, &self.requests[event.event]);
        }
        self.recorder.python = python;
    }

    /// Start of sampling on `CLOCK_MONOTONIC`.
    pub(super) fn monotonic_start_ns(&self) -> u64 {
        self.start_ns + self.clock_offset_ns
    }

    /// Current time on the events' clock.
    pub(super) fn now_ns(&self) -> u64 {
        perf::monotonic_ns().saturating_sub(self.clock_offset_ns)
    }

    fn run(
        mut self,
        mut run: ObservedRun,
        older: &BTreeSet<u32>,
    ) -> Result<super::SamplingOutcome> {
        self.start_ns = self.now_ns();
        self.round_ns = self.start_ns;
        self.recorder.begin(self.start_ns);
        self.recorder
            .rois
            .begin(self.start_ns, self.clock_offset_ns);
        self.own_before_ns = own_usage().cpu.as_nanos() as u64;
        self.window_start.own_ns = self.own_before_ns;
        self.add_running_processes()?;
        if let Some(reference) = &mut self.reference {
            reference.start();
        }
        self.start_within_budget();
        let begins_on_exec = matches!(self.options.target, Target::Command(_));
        if !begins_on_exec || self.recorder.processes.target_pids.is_some() {
            self.open.enable()?;
        }
        self.add_started_meanwhile(older)?;
        self.note_time_before();
        if let Some(interval) = &self.options.interval {
            run.end_after(interval.length, interval.ends_with);
        }
        run.start()?;
        let end = self.record_until_end(&mut run)?;
        self.end_ns = perf::monotonic_ns();
        self.open.disable();
        self.read_round(true);
        self.write_reference();
        self.recorder.write_traces();
        Ok(self.finish(end))
    }

    /// States what was not observed between the previous interval and this one.
    fn note_time_before(&mut self) {
        let Some(interval) = &self.options.interval else {
            return;
        };
        self.losses_before.clone_from(&interval.losses);
        if let Some(previous_end_ns) = interval.previous_end_ns {
            self.losses_before.push(Loss {
                kind: LossKind::NotObserved,
                count: perf::monotonic_ns().saturating_sub(previous_end_ns),
                ..Loss::default()
            });
        }
    }

    /// Records the processes that are already running, with their mappings.
    fn add_running_processes(&mut self) -> Result<()> {
        let recorder = &mut self.recorder;
        match &self.options.target {
            Target::Command(_) => Ok(()),
            Target::Processes(ids) | Target::Threads(ids) => {
                let mut ids = ids.iter();
                ids.clone().for_each(|&id| recorder.python.add_running(id));
                ids.try_for_each(|&id| recorder.processes.add_running(id, &mut recorder.writer))
            }
            _ => recorder.processes.add_all_running(&mut recorder.writer),
        }
    }

    /// Adds processes that have started, or execute another program, since the events were opened.
    fn add_started_meanwhile(&mut self, older: &BTreeSet<u32>) -> Result<()> {
        let recorder = &mut self.recorder;
        for pid in candidates(&self.options.target, older) {
            if recorder.processes.add_started(pid, &mut recorder.writer)? {
                recorder.python.add_running(pid);
            }
        }
        Ok(())
    }

    fn record_until_end(&mut self, run: &mut ObservedRun) -> Result<Option<CommandEnd>> {
        let (mut flushed, mut checked) = (Instant::now(), Instant::now());
        let mut window = FIRST_OVERHEAD_WINDOW;
        loop {
            if let Some(end) = run.poll_end()? {
                return Ok(end);
            }
            self.wait(&run.watched);
            self.read_round(false);
            self.write_reference();
            if flushed.elapsed() > FLUSH_INTERVAL {
                flushed = Instant::now();
                self.recorder.write_traces();
                self.recorder.write_values();
                let flushed = self.recorder.writer.flush_due();
                self.recorder.check(flushed);
            }
            if self.overhead.is_some() && checked.elapsed() > window {
                checked = Instant::now();
                window = OVERHEAD_WINDOW.min(2 * window);
                self.adjust_periods();
            }
        }
    }

    fn write_reference(&mut self) {
        let now_ns = self.now_ns().saturating_sub(self.start_ns);
        if let Some(reference) = &mut self.reference {
            let written = reference.write_increments(now_ns, &mut self.recorder.writer);
            self.recorder.check(written);
        }
    }

    /// Waits until a ring is half full or a watched process has ended.
    fn wait(&mut self, watched: &[Watched]) {
        let mut fds: Vec<RawFd> = self.open.rings.iter().map(|ring| ring.poll_fd).collect();
        fds.extend(watched.iter().filter_map(Watched::descriptor));
        let results = perf::wait(&fds, POLL_TIMEOUT_MS);
        for (ring, result) in self.open.rings.iter_mut().zip(results) {
            if result == PollResult::Ended {
                ring.poll_fd = -1;
            }
        }
    }

    /// Reads all rings, and passes on the records that can no longer be preceded by others.
    fn read_round(&mut self, last: bool) {
        let began_ns = self.now_ns();
        // The samples that are released below are older than this moment, and so are their marks.
        self.recorder.rois.read(last);
        self.flush_pebs_buffers();
        self.merger.read_rings(&mut self.open, &mut self.recorder);
        let horizon_ns = if last { u64::MAX } else { self.round_ns };
        self.round_ns = began_ns;
        self.merger
            .release(horizon_ns, &self.open.event_by_id, &mut self.recorder);
        if last {
            let late = self.merger.late_records();
            self.recorder
                .add_loss(LossKind::Unknown, "records out of time order", late);
        }
    }

    /// Moves the records in the processor's PEBS buffers into the rings, which the kernel does
    /// when an event's counter is read. Counts how many there were.
    ///
    /// The number means something only while the event counts: the kernel empties the buffer when
    /// a thread leaves its CPU, and a thread that shares the CPU with memgauge has just done so.
    fn flush_pebs_buffers(&mut self) {
        for event in &self.open.events {
            // For other events, new records would be mistaken for flushed ones.
            if !self.requests[event.event].sampling.uses_large_pebs {
                continue;
            }
            let unread_bytes =
                || -> usize { self.open.rings.iter().map(|ring| ring.ring.unread()).sum() };
            let before = unread_bytes();
            let Some(count) = read_count(&event.fd) else {
                continue;
            };
            // Before the second read of the counter, which would flush again.
            let after = unread_bytes();
            if event.cpu == Some(sched_getcpu() as u32) {
                continue;
            }
            if read_count(&event.fd).is_some_and(|later| later > count) {
                let bytes = after.saturating_sub(before) as u64;
                let layout = self.recorder.layout(event.event);
                let record_bytes = layout.map_or(1, |layout| layout.min_sample_bytes() as u64);
                let waiting = bytes / record_bytes;
                self.pebs.looks += 1;
                self.pebs.records += waiting;
                self.pebs.most = self.pebs.most.max(waiting);
            }
        }
    }

    /// Adjusts the periods by the time that samples and memgauge took since the last window.
    fn adjust_periods(&mut self) {
        let Some(mut overhead) = self.overhead else {
            return;
        };
        let window = self.end_window();
        self.so_far = self.so_far.plus(window);
        // Samples from before the last change do not reflect the current period.
        if window.samples > 0 && self.recorder.latest_ns < self.changed_ns {
            return;
        }
        let target = budget::target_overhead(overhead.allowed, &self.so_far);
        let factor = budget::period_factor(target, &window);
        if factor.is_some_and(|factor| self.change_periods(factor)) {
            overhead.changes += 1;
            self.changed_ns = self.now_ns();
        }
        self.overhead = Some(overhead);
    }

    fn end_window(&mut self) -> BudgetWindow {
        let outcomes = &self.recorder.outcomes;
        let end = WindowStart {
            samples: outcomes.iter().map(|outcome| outcome.samples).collect(),
            own_ns: own_usage().cpu.as_nanos() as u64,
            observed_ns: self.open.observed_ns(),
        };
        let start = std::mem::replace(&mut self.window_start, end);
        let end = &self.window_start;
        let mut window = BudgetWindow {
            own_ns: end.own_ns.saturating_sub(start.own_ns) as f64,
            observed_ns: end.observed_ns.saturating_sub(start.observed_ns) as f64,
            ..BudgetWindow::default()
        };
        for ((after, before), outcome) in end.samples.iter().zip(start.samples).zip(outcomes) {
            let samples = after - before;
            window.samples += samples;
            window.samples_ns += samples as f64 * outcome.cost.map_or(0.0, |cost| cost.ns);
        }
        window
    }

    /// Multiplies all periods by the factor. Returns false if none changed.
    fn change_periods(&mut self, factor: f64) -> bool {
        let mut periods: BTreeMap<usize, u64> = (0..self.requests.len())
            .filter_map(|event| Some((event, self.next_period(event, factor)?)))
            .collect();
        let since_ns = match self.reopen_events(&periods) {
            Reopening::Reopened { since_ns } => since_ns,
            Reopening::NotNeeded => {
                periods.retain(|&event, &mut period| self.set_period(event, period));
                self.now_ns()
            }
            Reopening::Failed => {
                // Tasks that inherited an event keep its old period. If samples do not have their
                // period, all tasks must have the same one.
                periods.retain(|&event, &mut period| {
                    self.recorder.has_period(event) && self.set_period(event, period)
                });
                self.now_ns()
            }
        };
        for (&event, &period) in &periods {
            self.recorder.outcomes[event].period = period;
        }
        if !periods.is_empty() {
            self.recorder.note_periods(since_ns);
        }
        !periods.is_empty()
    }

    /// Returns an event's next period, or `None` if it does not change.
    fn next_period(&self, event: usize, factor: f64) -> Option<u64> {
        let sampling = &self.requests[event].sampling;
        let current = self.recorder.outcomes[event].period;
        let min_period = min_period(&sampling.attr, sampling.method);
        let mut period = budget::scaled_period(current, factor, min_period);
        if sampling.method == SamplingMethod::Ibs {
            period = period.next_multiple_of(IBS_PERIOD_STEP);
        }
        (current != 0 && period != current).then_some(period)
    }

    fn set_period(&self, event: usize, period: u64) -> bool {
        let open_events = self.open.events.iter().filter(|open| open.event == event);
        // It fails for a task that has ended.
        let changed = open_events.filter(|open| perf::set_period(&open.fd, period).is_ok());
        changed.count() > 0
    }

    /// Raises the initial periods of timers to what the budget allows. The rate of other events
    /// is not known yet.
    fn start_within_budget(&mut self) {
        let Some(overhead) = self.overhead else {
            return;
        };
        let costs = self.recorder.outcomes.iter().map(|outcome| outcome.cost);
        let timers = costs
            .zip(&self.requests)
            .filter(|(_, request)| is_timer(&request.sampling.attr));
        let factors = timers.filter_map(|(cost, request)| {
            let period_ns = cost?.ns / overhead.allowed;
            Some(period_ns / request.sampling.attr.period as f64)
        });
        let factor = factors.fold(1.0, f64::max);
        if factor > 1.0 {
            self.change_periods(factor);
        }
    }
}

/// Reads an event's counter.
fn read_count(event: &OwnedFd) -> Option<u64> {
    let mut words = [0u8; 16];
    let n = perf::read_words(event, &mut words).ok()?;
    let count = words.first_chunk::<8>().filter(|_| n >= 8)?;
    Some(u64::from_le_bytes(*count))
}
