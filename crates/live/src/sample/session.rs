//! A run of `memgauge record -e`, from the first event to the last sample.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use memgauge_recording::Writer;
use memgauge_trace::{CommandEnd, LossKind, OverheadFacts, PebsFacts};

use super::Options;
use super::attributes::{Facilities, Method, Rate, SampleRequest, attribute};
use super::budget::{self, Window};
use super::facilities::facilities;
use super::marks::{self, MarkFile};
use super::open::{Open, Opener, RequestedEvent};
use super::order::Order;
use super::recorder::Recorder;
use super::reference::ReferenceCounters;
use super::regions::Regions;
use super::renew::Renewal;
use crate::events::{Event, Pmus};
use crate::run::ObservedRun;
use crate::sys::perf::{self, EventScope, Ring, Said};
use crate::target::{OpenTarget, Target};
use crate::{ErrorKind, Result};
use memgauge_host::regions::RequestedNames;
use memgauge_host::sys::process::{Watched, own_usage};
use memgauge_perf::abi::{Attr, flag, kind, record, sample, software};
use memgauge_perf::record::{Header, Layout, Record};
use memgauge_perf::ring::walk;
use memgauge_perf::spe::Decoder;
use rustix::thread::sched_getcpu;

/// Longest time between two rounds.
const LOOK_EVERY_MS: i32 = 50;
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at the overhead: short at first, since a period may be
/// far too short at the start.
const WINDOW: Duration = Duration::from_millis(100);
const FIRST_WINDOW: Duration = Duration::from_millis(5);
/// Bytes of records that may wait for older ones.
const MOST_WAITING_BYTES: usize = 64 << 20;

/// Samples until the program or the processes have ended or the user has had
/// enough.
///
/// # Errors
/// The program cannot run, an event cannot be sampled, or the recording cannot be
/// written.
pub fn record(options: &Options) -> Result<super::Outcome> {
    perf::raise_open_files();
    let wanted = RequestedNames::new("--region", &options.regions)?;
    let is_started = matches!(options.target, Target::Command(_));
    // Bandwidth's traces have no use for regions.
    let marks = match is_started && options.tracing.is_none() {
        true => Some(MarkFile::create()?),
        false => None,
    };
    let named = marks.as_ref().map(|file| (marks::VARIABLE, file.path()));
    let run = ObservedRun::prepare(&options.target, options.while_running.as_ref(), named)?;
    let aimed = OpenTarget::at(&options.target, run.pid())?;
    let has = facilities(&Pmus::default());
    let opened = opened(options, &aimed, &has)?;
    let mut session = Session::new(options, opened)?;
    session.recorder.regions = Regions::new(marks, wanted);
    if session.opener.wide && aimed.per_task {
        session.recorder.followed.only = Some(pids(&options.target, run.pid()));
    }
    session.run(run)
}

/// Events, what is open for them, and how it was opened.
type GroupOpening<'a> = (Vec<RequestedEvent>, Open, Opener<'a>);

/// Opens everything: of the target's tasks, else, where the kernel samples IBS by
/// processor only (before 6.2), of whole processors.
fn opened<'a>(
    options: &Options,
    aimed: &'a OpenTarget,
    has: &Facilities,
) -> Result<GroupOpening<'a>> {
    let attempt = |wide: bool| -> Result<GroupOpening<'a>> {
        let wanted = |rate| SampleRequest {
            rate,
            registers: options.registers,
            physical: options.physical,
            stacks: options.stacks,
            // A processor's timer counts while it idles, too. Traces keep one period for
            // many overflows.
            timer_values: aimed.per_task && !wide && options.tracing.is_none(),
        };
        let mut requests: Vec<RequestedEvent> = options
            .events
            .iter()
            .map(|(event, rate)| requested(event, wanted(*rate), has))
            .collect();
        let batched = |w: &RequestedEvent| matches!(w.built.method, Method::Pebs | Method::Spe);
        let opener = Opener {
            aimed,
            on_exec: matches!(options.target, Target::Command(_)),
            ring_pages: options.ring_pages,
            monotonic: !requests.iter().any(batched),
            wide,
        };
        let open = opener.open(&mut requests)?;
        Ok((requests, open, opener))
    };
    let first = attempt(options.whole_processors);
    let ibs =
        |(event, _): &(Event, Rate)| super::attributes::method(&event.attr, has) == Method::Ibs;
    let by_processor = aimed.per_task && options.events.iter().any(ibs);
    match first {
        Err(e) if by_processor && e.kind() == ErrorKind::Missing => attempt(true),
        result => result,
    }
}

pub(super) fn requested(event: &Event, wanted: SampleRequest, has: &Facilities) -> RequestedEvent {
    let mut event = event.clone();
    if event.modifiers.most_precise {
        let precise = crate::counters::most_precise(&event, EventScope::Thread(0), None);
        event.attr.flags |= precise << flag::PRECISE_SHIFT;
    }
    let modes = event.modifiers.modes;
    RequestedEvent {
        built: attribute(&event, &wanted, has),
        leader: leader(&event),
        modes_chosen: modes.user || modes.kernel || modes.hypervisor,
        name: event.name,
        given_up: Vec::new(),
    }
}

/// From Sapphire Rapids on, loads are sampled only in a group led by another event,
/// which the kernel lists.
fn leader(event: &Event) -> Option<Attr> {
    let (pmu, terms) = event.name.split_once('/')?;
    if !terms.starts_with("mem-loads") || terms.starts_with("mem-loads-aux") {
        return None;
    }
    let pmus = Pmus::default();
    let list = format!("{pmu}/mem-loads-aux/");
    let groups = crate::events::parse(&list, &pmus).ok()?;
    let mut attr = groups.first()?.events.first()?.attr;
    attr.flags |= flag::DISABLED;
    Some(attr)
}

fn pids(target: &Target, program: Option<u32>) -> HashSet<u32> {
    match target {
        Target::Processes(ids) | Target::Threads(ids) => ids.iter().copied().collect(),
        _ => program.into_iter().collect(),
    }
}

/// How far the events' own clock is behind the monotonic one, by a timer's sample
/// on this thread; to within that sample's delay.
fn clock_behind_ns() -> u64 {
    let mut attr = Attr::new(kind::SOFTWARE, software::CPU_CLOCK);
    attr.period = 50_000;
    attr.sample_type = sample::TIME;
    attr.flags = flag::EXCLUDE_KERNEL | flag::EXCLUDE_HV;
    let Ok(event) = perf::open(&attr, EventScope::Thread(0), None, None) else {
        return 0;
    };
    let Ok(mut ring) = Ring::map(&event, 1) else {
        return 0;
    };
    let began = Instant::now();
    while ring.unread() == 0 && began.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
    let now = perf::monotonic_ns();
    let layout = Layout::of(&attr);
    let mut time = None;
    ring.drain(|a, b| {
        walk(a, b, &mut Vec::new(), |_, body| {
            time = layout.sample(body).map(|s| s.time_ns);
        })
    });
    time.map_or(0, |time| now.saturating_sub(time))
}

pub(super) struct Session<'a> {
    pub(super) options: &'a Options,
    pub(super) opener: Opener<'a>,
    pub(super) open: Open,
    /// Threads with events that they did not inherit.
    pub(super) own_events: BTreeSet<u32>,
    /// Ids of events that were last replaced: rings may still hold their records.
    pub(super) retired: Vec<u64>,
    pub(super) requests: Vec<RequestedEvent>,
    pub(super) recorder: Recorder,
    order: Order,
    /// Id of the last sample, and the number of its event. Ids are not used again.
    latest_id: Option<(u64, usize)>,
    side_band: Layout,
    decoders: Vec<Decoder>,
    /// The events' clock is so far behind the monotonic one.
    behind_ns: u64,
    pub(super) start_ns: u64,
    round_ns: u64,
    pub(super) batches: PebsFacts,
    pub(super) overhead: Option<OverheadFacts>,
    /// Samples, own and observed nanoseconds when the window began.
    window: (Vec<u64>, u64, u64),
    /// All windows.
    so_far: Window,
    /// Memory's own counters, where overflows are traced.
    pub(super) reference: Option<ReferenceCounters>,
    /// When periods were last changed.
    changed_ns: u64,
    /// Own processor time when sampling began.
    pub(super) own_before_ns: u64,
    scratch: Vec<u8>,
}

impl<'a> Session<'a> {
    fn new(
        options: &'a Options,
        (requests, open, opener): GroupOpening<'a>,
    ) -> Result<Session<'a>> {
        let writer = Writer::create(&options.output, super::finish::manifest(options, &requests))?;
        let mut recorder = Recorder::new(writer, &requests, options);
        let reference = options.tracing.as_ref();
        let reference = reference.map(|t| ReferenceCounters::start(t.counters.as_deref()));
        let overhead = options.overhead.map(|allowed| OverheadFacts {
            allowed,
            ..OverheadFacts::default()
        });
        for (request, outcome) in requests.iter().zip(&mut recorder.outcomes) {
            outcome.period = match request.built.attr.has(flag::FREQ) {
                true => 0,
                false => request.built.attr.period,
            };
            outcome.cost = overhead.and_then(|_| super::cost::measure(request));
        }
        recorder.begin_periods();
        let batched = |w: &RequestedEvent| matches!(w.built.method, Method::Pebs | Method::Spe);
        let behind_ns = match requests.iter().any(batched) {
            true => clock_behind_ns(),
            false => 0,
        };
        Ok(Session {
            own_events: opener.aimed.threads(),
            opener,
            retired: Vec::new(),
            decoders: open.buffers.iter().map(|_| Decoder::default()).collect(),
            options,
            open,
            window: (vec![0; requests.len()], 0, 0),
            so_far: Window::default(),
            requests,
            recorder,
            order: Order::new(MOST_WAITING_BYTES),
            latest_id: None,
            side_band: Layout::of(&Open::side_band_attr()),
            behind_ns,
            start_ns: 0,
            round_ns: 0,
            batches: PebsFacts::default(),
            overhead,
            own_before_ns: 0,
            reference: reference.transpose()?,
            changed_ns: 0,
            scratch: Vec::new(),
        })
    }

    /// When sampling began, on the monotonic clock.
    pub(super) fn began_ns(&self) -> u64 {
        self.start_ns + self.behind_ns
    }

    pub(super) fn now_ns(&self) -> u64 {
        perf::monotonic_ns().saturating_sub(self.behind_ns)
    }

    fn run(mut self, mut run: ObservedRun) -> Result<super::Outcome> {
        self.start_ns = self.now_ns();
        self.round_ns = self.start_ns;
        self.recorder.begin(self.start_ns);
        self.recorder.regions.begin(self.start_ns, self.behind_ns);
        self.own_before_ns = own_usage().cpu.as_nanos() as u64;
        self.window.1 = self.own_before_ns;
        self.existing()?;
        if let Some(reference) = &mut self.reference {
            reference.begin();
        }
        self.begin_within_budget();
        let by_exec = matches!(self.options.target, Target::Command(_));
        if !by_exec || self.recorder.followed.only.is_some() {
            self.open.enable()?;
        }
        run.go()?;
        let end = self.until_the_end(&mut run)?;
        self.open.disable();
        self.round(true);
        self.count_reference();
        self.write_traces();
        Ok(self.finish(end))
    }

    /// Records the programs that run already, and their mappings.
    fn existing(&mut self) -> Result<()> {
        let recorder = &mut self.recorder;
        match &self.options.target {
            Target::Command(_) => Ok(()),
            Target::Processes(ids) | Target::Threads(ids) => {
                let mut ids = ids.iter();
                ids.try_for_each(|&id| recorder.followed.existing(id, &mut recorder.writer))
            }
            _ => recorder.followed.everybody(&mut recorder.writer),
        }
    }

    fn until_the_end(&mut self, run: &mut ObservedRun) -> Result<Option<CommandEnd>> {
        let (mut flushed, mut looked) = (Instant::now(), Instant::now());
        let mut window = FIRST_WINDOW;
        loop {
            if let Some(end) = run.over()? {
                return Ok(end);
            }
            self.wait(&run.watched);
            self.round(false);
            self.count_reference();
            if flushed.elapsed() > FLUSH_EVERY {
                flushed = Instant::now();
                self.write_traces();
                self.recorder.write_values();
                let flushed = self.recorder.writer.flush_due();
                self.recorder.note(flushed);
            }
            if self.overhead.is_some() && looked.elapsed() > window {
                looked = Instant::now();
                window = WINDOW.min(2 * window);
                self.keep_to_budget();
            }
        }
    }

    /// Asks memory's own counters.
    fn count_reference(&mut self) {
        let now_ns = self.now_ns().saturating_sub(self.start_ns);
        if let Some(reference) = &mut self.reference {
            let written = reference.take(now_ns, &mut self.recorder.writer);
            self.recorder.note(written);
        }
    }

    fn write_traces(&mut self) {
        let written = self.recorder.write_traces();
        self.recorder.note(written);
    }

    fn wait(&mut self, watched: &[Watched]) {
        let mut all: Vec<RawFd> = self.open.buffers.iter().map(|b| b.waker).collect();
        all.extend(watched.iter().filter_map(Watched::descriptor));
        let said = perf::wait(&all, LOOK_EVERY_MS);
        for (buffer, said) in self.open.buffers.iter_mut().zip(said) {
            if said == Said::Ended {
                buffer.waker = -1;
            }
        }
    }

    /// Reads all rings; hands on what no ring can have older records than.
    fn round(&mut self, last: bool) {
        let began_ns = self.now_ns();
        // Samples handed on below are older than this moment, as are all marks read.
        self.recorder.regions.read(last);
        self.flush_hardware();
        for at in 0..self.open.buffers.len() {
            self.drain(at);
        }
        let horizon_ns = if last { u64::MAX } else { self.round_ns };
        self.round_ns = began_ns;
        let mut order = std::mem::take(&mut self.order);
        order.release(horizon_ns, |header, body| self.pass_on(header, body));
        self.order = order;
        if last {
            let late = self.order.late;
            self.recorder
                .lose(LossKind::Unknown, "records out of time order", late);
        }
    }

    /// Reading an event's counter brings what waits in the processor's buffer into
    /// the ring: that is a look at how many records gather. It only tells something
    /// while the event counts: the kernel empties the buffer when a thread leaves its
    /// processor, and one that shares it with memgauge has just done so.
    fn flush_hardware(&mut self) {
        for source in &self.open.sources {
            // Of other events, records that come meanwhile would be taken for waiting ones.
            if !self.requests[source.event].built.gathers {
                continue;
            }
            let unread = || -> usize { self.open.buffers.iter().map(|b| b.ring.unread()).sum() };
            let before = unread();
            let Some(counted) = first_word(&source.fd) else {
                continue;
            };
            // Read before the second count, which would flush again.
            let flushed = unread();
            if source.cpu == Some(sched_getcpu() as u32) {
                continue;
            }
            if first_word(&source.fd).is_some_and(|now| now > counted) {
                let bytes = flushed.saturating_sub(before) as u64;
                let layout = self.recorder.layout(source.event);
                let record = layout.map_or(1, |l| l.least_sample_bytes() as u64);
                let (waiting, pebs) = (bytes / record, &mut self.batches);
                pebs.looks += 1;
                pebs.records += waiting;
                pebs.most = pebs.most.max(waiting);
            }
        }
    }

    fn drain(&mut self, at: usize) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut buffers = std::mem::take(&mut self.open.buffers);
        let buffer = &mut buffers[at];
        let mut owner = (0, 0, 0);
        let walked = buffer.ring.drain(|first, second| {
            walk(first, second, &mut scratch, |header, body| {
                self.arrived(header, body, &mut owner)
            })
        });
        if let Some((area, event)) = &mut buffer.area {
            let conversion = buffer.ring.conversion();
            let mut decoder = std::mem::take(&mut self.decoders[at]);
            area.drain(&buffer.ring, |first, second| {
                for piece in [first, second] {
                    decoder.feed(piece, |operation| {
                        let ticks = operation.timestamp.zip(conversion);
                        let time_ns = ticks.map_or(owner.0, |(ticks, c)| c.ns(ticks));
                        // The kernel writes thread ids into the context register if
                        // so configured.
                        let tid = operation.context.map_or(owner.2, |c| c as u32);
                        let whose = (time_ns, owner.1, tid);
                        self.recorder.operation(*event, operation, whose);
                    });
                }
            });
            let unreadable = std::mem::take(&mut decoder.unreadable_bytes);
            self.decoders[at] = decoder;
            self.recorder
                .lose(LossKind::Unreadable, "bytes of packets", unreadable);
        }
        self.open.buffers = buffers;
        self.scratch = scratch;
        let what = "bytes of a ring";
        self.recorder
            .lose(LossKind::Unreadable, what, walked.unreadable_bytes);
    }

    /// A record came: it waits for its turn. `owner` is the one that the last AUX
    /// record names: time, process, thread.
    fn arrived(&mut self, header: Header, body: &[u8], owner: &mut (u64, u32, u32)) {
        // Of a sample nothing but the time is needed yet.
        let time_ns = match header.kind {
            record::SAMPLE => {
                let event = self.of_event(body);
                event.and_then(|event| self.recorder.layout(event)?.sample_time(body))
            }
            _ => self
                .side_band
                .record(header, body)
                .map(|(record, trailer)| {
                    if matches!(record, Record::Aux { .. }) {
                        *owner = (trailer.time_ns, trailer.pid, trailer.tid);
                    }
                    trailer.time_ns
                }),
        };
        match time_ns {
            Some(time_ns) => self.order.add(time_ns, header, body),
            None => self.unreadable(),
        }
    }

    fn unreadable(&mut self) {
        let what = "records of a ring";
        self.recorder.lose(LossKind::Unreadable, what, 1);
    }

    fn pass_on(&mut self, header: Header, body: &[u8]) {
        if header.kind != record::SAMPLE {
            if let Some((record, trailer)) = self.side_band.record(header, body) {
                let event = self.open.ids.get(&trailer.id).copied();
                self.recorder.take(&record, &trailer, event);
            }
            return;
        }
        // An event that is gone since the record came was replaced.
        let Some(event) = self.of_event(body) else {
            return;
        };
        // Borrows nothing of the session: the body is the order's.
        let layout = self.recorder.layout(event);
        match layout.and_then(|layout| layout.sample(body)) {
            Some(sample) => self.recorder.take_sample(event, header, &sample),
            None => self.unreadable(),
        }
    }

    /// The event of a sample, by its id. Mostly it is that of the sample before.
    #[inline]
    fn of_event(&mut self, body: &[u8]) -> Option<usize> {
        let id = u64::from_le_bytes(*body.first_chunk::<8>()?);
        if let Some((known, event)) = self.latest_id
            && known == id
        {
            return Some(event);
        }
        let event = self.open.ids.get(&id).copied()?;
        self.latest_id = Some((id, event));
        Some(event)
    }

    /// Sets periods by the time that samples and memgauge took since the last window.
    fn keep_to_budget(&mut self) {
        let Some(mut overhead) = self.overhead else {
            return;
        };
        let own_ns = own_usage().cpu.as_nanos() as u64;
        let observed_ns = self.open.observed_ns();
        let samples: Vec<u64> = self.recorder.outcomes.iter().map(|o| o.samples).collect();
        let (before, own_before, observed_before) = &self.window;
        let gained = samples.iter().zip(before).map(|(now, before)| now - before);
        let costs = self
            .recorder
            .outcomes
            .iter()
            .map(|o| o.cost.map_or(0.0, |c| c.ns));
        let taken_ns: f64 = gained.clone().zip(costs).map(|(n, ns)| n as f64 * ns).sum();
        let window = Window {
            samples: gained.sum(),
            samples_ns: taken_ns,
            own_ns: own_ns.saturating_sub(*own_before) as f64,
            observed_ns: observed_ns.saturating_sub(*observed_before) as f64,
        };
        self.window = (samples, own_ns, observed_ns);
        self.so_far = self.so_far.and(window);
        // Samples from before the last change say nothing of the period since.
        if window.samples > 0 && self.recorder.latest_ns < self.changed_ns {
            return;
        }
        let aim = budget::aim(overhead.allowed, &self.so_far);
        let factor = budget::factor(aim, &window);
        if factor.is_some_and(|factor| self.change_periods(factor)) {
            overhead.changes += 1;
            self.changed_ns = self.now_ns();
        }
        self.overhead = Some(overhead);
    }

    fn change_periods(&mut self, factor: f64) -> bool {
        let numbers = 0..self.requests.len();
        let mut periods: BTreeMap<usize, u64> = numbers
            .filter_map(|event| Some((event, self.next_period(event, factor)?)))
            .collect();
        let since_ns = match self.renewed(&periods) {
            Renewal::Done(since_ns) => since_ns,
            Renewal::Needless => {
                periods.retain(|&event, &mut period| self.set_period(event, period));
                self.now_ns()
            }
            Renewal::Failed => {
                // Samples that do not say what they stand for keep one period for all
                // tasks: it could not be changed for those that inherited theirs.
                periods.retain(|&event, &mut period| {
                    self.recorder.tells_period(event) && self.set_period(event, period)
                });
                self.now_ns()
            }
        };
        for (&event, &period) in &periods {
            self.recorder.outcomes[event].period = period;
        }
        if !periods.is_empty() {
            self.recorder.periods_changed(since_ns);
        }
        !periods.is_empty()
    }

    /// The period that an event's becomes; `None` where it stays.
    fn next_period(&self, event: usize, factor: f64) -> Option<u64> {
        let (built, before) = (
            &self.requests[event].built,
            self.recorder.outcomes[event].period,
        );
        let floor = super::attributes::floor(&built.attr, built.method);
        let mut period = budget::changed(before, factor, floor);
        if built.method == Method::Ibs {
            period = period.next_multiple_of(super::attributes::IBS_STEP);
        }
        (before != 0 && period != before).then_some(period)
    }

    fn set_period(&self, event: usize, period: u64) -> bool {
        let sources = self.open.sources.iter().filter(|s| s.event == event);
        // An event whose task has ended keeps its period.
        let set = sources.filter(|s| perf::set_period(&s.fd, period).is_ok());
        set.count() > 0
    }

    /// A timer's cost tells at once which period the budget allows.
    fn begin_within_budget(&mut self) {
        let Some(overhead) = self.overhead else {
            return;
        };
        let costs = self.recorder.outcomes.iter().map(|o| o.cost);
        let timers = costs.zip(&self.requests);
        let timers = timers.filter(|(_, request)| super::attributes::is_timer(&request.built.attr));
        let needed = timers.filter_map(|(cost, request)| {
            let period_ns = cost?.ns / overhead.allowed;
            Some(period_ns / request.built.attr.period as f64)
        });
        let factor = needed.fold(1.0, f64::max);
        if factor > 1.0 {
            self.change_periods(factor);
        }
    }
}

/// An event's count.
fn first_word(event: &OwnedFd) -> Option<u64> {
    let mut words = [0u8; 16];
    let n = perf::read_words(event, &mut words).ok()?;
    let word = words.first_chunk::<8>().filter(|_| n >= 8)?;
    Some(u64::from_le_bytes(*word))
}
