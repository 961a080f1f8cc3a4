//! A program on the modelled machine whose samples are passed on while it runs instead of being
//! recorded (`memgauge_host::sampled_run`).
//!
//! Only samples are produced, and nothing is written. Changes of the sampling happen between two
//! reads of words, so they are exact: each event counts towards the period that was set when it
//! happened.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memgauge_host::roi::{OpenRegions, RegionEnd};
use memgauge_host::running_program::Program as RunningProgram;
use memgauge_host::sampled_run::{SampleSink, SampledRun, ThreadCounts, ThreadSampling};
use memgauge_machine::{Config, Core, CoreId, Delivery, Machine, PmuConfig, SampleSpec};
use memgauge_trace::{
    CommandEnd, Cpu, EventId, LossKind, Pid, Sample, Tid, VirtAddr, catalogue as events,
};
use rustix::time::{ClockId, clock_gettime};

use crate::engine::catalogue::{Catalogue, CatalogueEvent};
use crate::engine::launch::{Emulator, not_started, resolve};
use crate::engine::session::{ProcessEntry, Ring, Session};
use crate::engine::sync::Sync;
use crate::follow::pace::PollPace;
use crate::follow::{self, Followed, Origin, Reader, Taken, Words};
use crate::model::replay::{Cursor, OverflowSink, Program, Replay};
use crate::readers::roi::{RegionMark, RegionMarkKind};
use crate::time::thread_starts::StartMark;
use crate::time::waits::{Marker, Waits};
use crate::{Error, Result};
use crate::{FLUSH_EVERY, REAP_EVERY, UNRECORDED_IDLE, engine_command, spawn, start};

type Process = follow::Process<Modelled>;
type Thread = follow::Thread<Running>;

/// Number of address spaces that the machine distinguishes. Later processes share numbers.
const ADDRESS_SPACES: u32 = (1 << 18) - 1;

/// Event that is sampled if the caller names none.
pub const DEFAULT_EVENT: &str = "llc.miss";

/// Environment of a program that keeps running when memgauge ends. It has no input, and interrupts
/// of memgauge do not reach it.
#[derive(Debug)]
pub struct Surroundings {
    /// Destination of its output and errors.
    pub output: [Stdio; 2],
    /// Working directory. `None` is memgauge's.
    pub folder: Option<PathBuf>,
    /// Environment variables. `None` are memgauge's.
    pub environment: Option<BTreeMap<String, String>>,
    /// True to keep terminal signals to memgauge away from the program.
    pub own_group: bool,
}

/// The program to run, and its sampling.
#[derive(Clone, Debug)]
pub struct SampledOptions {
    /// Program and arguments.
    pub command: Vec<String>,
    /// The machine to model.
    pub machine: Config,
    /// The event and its default period.
    pub event: SampleSpec,
    /// How overflows become samples.
    pub delivery: Delivery,
}

impl SampledOptions {
    /// Parses an event, as with `memgauge record -e` under emulation, for this processor's caches:
    /// `llc.miss`, or with a delivery, `llc.miss/tagged`.
    ///
    /// # Errors
    /// The model does not have this event or delivery.
    pub fn of(command: &[String], event: &str) -> Result<SampledOptions> {
        let (name, delivery) = event.split_once('/').unwrap_or((event, "ideal"));
        let id = events::by_name(name).ok_or_else(|| {
            let message = format!(
                "failed to sample `{name}`: the modelled machine has no such event: \
                 `memgauge list` has them"
            );
            Error::usage(message)
        })?;
        let delivery = Delivery::by_name(delivery.trim_end_matches('/')).ok_or_else(|| {
            let names = Delivery::NAMED.map(|n| n.0).join(", ");
            let message = format!(
                "failed to sample `{event}`: there is no delivery `{delivery}`: use one of {names}"
            );
            Error::usage(message)
        })?;
        Ok(SampledOptions {
            command: command.to_vec(),
            machine: crate::model::geometry::host(),
            event: SampleSpec {
                event: id,
                period: usual_period(id),
            },
            delivery,
        })
    }
}

/// Default periods. Misses are rarer than retired instructions. Both periods give a few thousand
/// samples per second of emulation.
fn usual_period(event: EventId) -> u64 {
    match event {
        events::LLC_MISS | events::DTLB_WALK => 127,
        events::L1D_MISS
        | events::L1D_LOAD_MISS
        | events::L2_MISS
        | events::L2_HIT
        | events::LLC_HIT
        | events::DTLB_MISS
        | events::STLB_HIT => 4_099,
        _ => 100_003,
    }
}

impl Surroundings {
    fn give_to(self, engine: &mut Command) {
        let [output, errors] = self.output;
        engine.stdin(Stdio::null()).stdout(output).stderr(errors);
        if let Some(folder) = self.folder {
            engine.current_dir(folder);
        }
        if let Some(environment) = self.environment {
            engine.env_clear().envs(environment);
        }
        if self.own_group {
            engine.process_group(0);
        }
    }
}

/// A program that runs under the engine and waits for its words to be read. Dropping it before it
/// runs kills it.
pub struct SampledProgram {
    event: SampleSpec,
    pid: u32,
    started: Option<Started>,
}

struct Started {
    machine: Machine,
    session: Session,
    program: RunningProgram,
}

impl SampledProgram {
    /// Starts a command under the engine with its own input and output. Until it is
    /// [run](SampledRun::run), it executes as far as its ring buffers have room.
    ///
    /// # Errors
    /// The command cannot be executed, the engine is missing, or the model does not have this
    /// machine.
    pub fn start(options: &SampledOptions) -> Result<SampledProgram> {
        SampledProgram::start_in(options, None)
    }

    /// As [`start`](Self::start), for a program that keeps running when memgauge ends.
    ///
    /// # Errors
    /// As [`SampledProgram::start`].
    pub fn start_apart(
        options: &SampledOptions,
        surroundings: Surroundings,
    ) -> Result<SampledProgram> {
        SampledProgram::start_in(options, Some(surroundings))
    }

    fn start_in(
        options: &SampledOptions,
        surroundings: Option<Surroundings>,
    ) -> Result<SampledProgram> {
        resolve(&options.command)?;
        let emulator = Emulator::find()?;
        let pmu = PmuConfig {
            samples: vec![options.event],
            delivery: options.delivery,
            ..PmuConfig::default()
        };
        let machine =
            Machine::new(options.machine.clone(), pmu).map_err(|e| Error::usage(e.to_string()))?;
        let session = Session::create(0)?;
        session.tell_caches(&options.machine);
        session.tell_models_time();
        let program = match surroundings {
            None => spawn(&options.command, &emulator, &session, None)?,
            Some(surroundings) => {
                let mut engine = engine_command(&options.command, &emulator, &session, None)?;
                surroundings.give_to(&mut engine);
                RunningProgram::detached(start(&mut engine, &emulator)?)
            }
        };
        Ok(SampledProgram {
            event: options.event,
            pid: program.pid(),
            started: Some(Started {
                machine,
                session,
                program,
            }),
        })
    }
}

impl Drop for SampledProgram {
    fn drop(&mut self) {
        if let Some(mut started) = self.started.take() {
            started.session.stop();
            started.program.kill();
        }
    }
}

impl SampledRun for SampledProgram {
    fn event(&self) -> &str {
        events::name(self.event.event).unwrap_or("?")
    }

    fn period(&self) -> u64 {
        self.event.period
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    fn run(mut self: Box<Self>, sink: &mut dyn SampleSink) -> Result<CommandEnd> {
        let Some(mut started) = self.started.take() else {
            return Err(not_started());
        };
        let reader = SampleReader {
            machine: started.machine,
            event: self.event.event,
            sink,
            waits: Waits::default(),
            begun: 0,
            pending: Vec::new(),
        };
        let mut run = OnlineRun {
            program: started.program,
            followed: Followed::new(reader, follow::turn_words(None)),
        };
        run.until_the_end(&mut started.session)
    }
}

/// A run in progress.
struct OnlineRun<'a> {
    program: RunningProgram,
    followed: Followed<SampleReader<'a>>,
}

impl OnlineRun<'_> {
    fn until_the_end(&mut self, session: &mut Session) -> Result<CommandEnd> {
        let (mut pace, mut reaped, mut forgot) =
            (PollPace::default(), Instant::now(), Instant::now());
        let end = loop {
            let busy = self.followed.poll(session, pace.is_eager());
            pace.hurry(self.followed.holds());
            self.answer_requests();
            if self.followed.reader.sink.is_closed() {
                return self.unsampled(session);
            }
            if let Some(sleep) = pace.after(busy) {
                std::thread::sleep(sleep);
            }
            if reaped.elapsed() < REAP_EVERY {
                continue;
            }
            reaped = Instant::now();
            self.followed.reap(session, false);
            if let Some(end) = self.ended()? {
                break end;
            }
            if forgot.elapsed() > FLUSH_EVERY {
                forgot = Instant::now();
                let all = self.followed.processes.values_mut();
                all.for_each(|process| process.kept.program.forget_counts());
            }
        };
        self.read_to_the_end(session);
        // A killed program may not have come this far.
        match self.followed.born.processes == 0 && matches!(end, CommandEnd::Exited(_)) {
            true => Err(not_started()),
            false => Ok(end),
        }
    }

    fn ended(&mut self) -> Result<Option<CommandEnd>> {
        let (program, followed) = (&mut self.program, &self.followed);
        let first = program.pid();
        program.ended_with(&mut |signal| followed.signal_others(first, signal))
    }

    /// Reads the remaining words of the ended command and its children.
    fn read_to_the_end(&mut self, session: &mut Session) {
        let still_running = self.followed.read_to_the_end(session);
        let reader = &mut self.followed.reader;
        for (refused, why) in session.refused() {
            reader.lose(None, LossKind::ThreadNotRecorded, refused, why);
        }
        reader.lose(None, LossKind::StillRunning, still_running, "");
        self.answer_requests();
    }

    /// Nobody needs samples any more. The program continues without sampling.
    fn unsampled(&mut self, session: &mut Session) -> Result<CommandEnd> {
        session.stop();
        loop {
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            std::thread::sleep(UNRECORDED_IDLE);
        }
    }

    /// Applies the requested changes to threads.
    fn answer_requests(&mut self) {
        let requests = self.followed.reader.sink.take_requests();
        if requests.is_empty() {
            return;
        }
        let Followed {
            reader,
            threads,
            processes,
            ..
        } = &mut self.followed;
        let mut counts = Vec::new();
        for thread in threads {
            let number = thread.kept.number;
            if let Some((_, wanted)) = requests.iter().find(|r| r.0 == number)
                && let Some(process) = processes.get(&thread.ring.process)
            {
                reader.change(process, thread, *wanted);
                counts.push((number, reader.counts(&thread.kept)));
            }
        }
        reader.sink.requests_done(&counts);
    }
}

/// State of a process.
#[derive(Default)]
struct Modelled {
    program: Program,
    /// Names of regions of interest by number.
    regions: BTreeMap<u32, String>,
    /// Latest virtual time of its threads.
    now_ns: u64,
}

/// State of a thread.
struct Running {
    number: u64,
    core: CoreId,
    cursor: Cursor,
    /// Number of its start mark, until its first word is read.
    birth: u64,
    start_ns: u64,
    inside: OpenRegions<u32, ()>,
    sampling: ThreadSampling,
    /// Events counted until sampling last resumed, and the core's count at that time.
    counted: u64,
    since: u64,
    own: Duration,
}

/// Runs words through the modelled machine and passes on its samples.
struct SampleReader<'a> {
    machine: Machine,
    event: EventId,
    sink: &'a mut dyn SampleSink,
    waits: Waits,
    /// Number of threads so far, which is the next one's number.
    begun: u64,
    /// Samples that were not passed on yet.
    pending: Vec<Sample>,
}

impl SampleReader<'_> {
    fn count(&self, thread: &Running) -> u64 {
        self.machine.core(thread.core).counts().get(self.event)
    }

    fn counts(&self, thread: &Running) -> ThreadCounts {
        let core = self.machine.core(thread.core);
        let gained = match thread.sampling.on {
            true => self.count(thread) - thread.since,
            false => 0,
        };
        ThreadCounts {
            counted: thread.counted + gained,
            processor_ns: (core.time_ns() - thread.start_ns).saturating_sub(core.idle_ns()),
            own_ns: thread.own.as_nanos() as u64,
        }
    }

    /// Changes the sampling of a thread from here on.
    fn change(&mut self, process: &Process, thread: &mut Thread, wanted: ThreadSampling) {
        let (now, kept) = (self.count(&thread.kept), &mut thread.kept);
        let (before, core) = (kept.sampling, self.machine.core_mut(kept.core).0);
        if before.on && !wanted.on {
            kept.counted += now - kept.since;
            core.pause_sampling(true);
        }
        if before.period != wanted.period {
            core.set_period(self.event, wanted.period);
        }
        if !before.on && wanted.on {
            kept.since = now;
            core.pause_sampling(false);
        }
        kept.sampling = wanted;
        let mut due = Due {
            ids: (Pid(process.entry.pid), Tid(thread.ring.tid)),
            cpu: Cpu(kept.core.0),
            into: &mut self.pending,
        };
        due.take(core, VirtAddr(0));
        self.hand_on(process, kept);
    }

    /// Passes a thread's samples since its regions last changed to the sink.
    fn hand_on(&mut self, process: &Process, thread: &Running) {
        if self.pending.is_empty() {
            return;
        }
        let name = |number: &u32| process.kept.regions.get(number).map(String::as_str);
        let inside = thread.inside.iter();
        let regions: Vec<&str> = inside
            .map(|open| name(&open.name).unwrap_or("(unknown)"))
            .collect();
        self.sink
            .push_samples(thread.number, &self.pending, &regions);
        self.pending.clear();
    }

    fn begin_at_birth(&mut self, thread: &mut Running) {
        let birth = std::mem::take(&mut thread.birth);
        if let Some(start_ns) = self.waits.start(birth) {
            thread.start_ns = start_ns;
            self.machine.core_mut(thread.core).0.begin_at(start_ns);
        }
    }

    fn replay(
        &mut self,
        process: &mut Process,
        tid: u32,
        thread: &mut Running,
        (words, at): (&Words<'_>, usize),
    ) -> usize {
        let (core, shared) = self.machine.core_mut(thread.core);
        let mut due = Due {
            ids: (Pid(process.entry.pid), Tid(tid)),
            cpu: Cpu(thread.core.0),
            into: &mut self.pending,
        };
        let program = &mut process.kept.program;
        let mut replay = Replay::new(core, shared, program, &mut thread.cursor, &mut due);
        replay.run(words.all, at, words.whole)
    }

    fn mark(&mut self, process: &Process, thread: &mut Running, mark: &RegionMark) {
        self.hand_on(process, thread);
        match mark.what {
            RegionMarkKind::Begin => drop(thread.inside.begin(mark.name, ())),
            RegionMarkKind::End => {
                if let RegionEnd::Unmatched = thread.inside.end(&mark.name) {
                    self.lose(Some(process), LossKind::RegionEnd, 1, "");
                }
            }
            RegionMarkKind::Value(_) | RegionMarkKind::Nothing => {}
        }
    }
}

fn own_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Collects what becomes due at a core.
struct Due<'a> {
    ids: (Pid, Tid),
    cpu: Cpu,
    into: &'a mut Vec<Sample>,
}

impl OverflowSink for Due<'_> {
    fn take(&mut self, core: &mut Core, ip: VirtAddr) {
        core.take_overflows(|o| {
            self.into.push(Sample {
                time_ns: o.time_ns,
                cpu: Some(self.cpu),
                pid: self.ids.0,
                tid: self.ids.1,
                event: o.event,
                ip,
                addr: o.addr.map(VirtAddr),
                kind: o.kind,
                size_bytes: o.size_bytes,
                latency_cycles: o.latency_cycles,
                source: o.source,
                period: o.period,
                ..Sample::default()
            });
        });
    }
}

impl Reader for SampleReader<'_> {
    type Process = Modelled;
    type Thread = Running;

    fn catalogue(kept: &mut Modelled) -> &mut Catalogue {
        &mut kept.program.catalogue
    }

    fn begin_process(&mut self, entry: &ProcessEntry, origin: Origin<'_, Modelled>) -> Modelled {
        let mut kept = Modelled::default();
        if let Some(before) = origin.before {
            kept.now_ns = before.kept.now_ns;
        }
        if let Some((parent, blocks)) = origin.parent {
            kept.program.catalogue = parent.kept.program.catalogue.inherited(blocks);
            kept.regions = parent.kept.regions.clone();
            let forked_ns = self.waits.start(entry.birth);
            kept.now_ns = forked_ns.unwrap_or(parent.kept.now_ns);
        }
        kept
    }

    fn begin_thread(&mut self, process: &Process, ring: &Ring) -> Running {
        let start_ns = process.kept.now_ns;
        self.waits.begin(process.entry.pid, ring.numbers());
        let space = process.entry.number % ADDRESS_SPACES;
        let core = self.machine.add_core_in(start_ns, space);
        let number = self.begun;
        self.begun += 1;
        let sampling = self
            .sink
            .thread_started(number, process.entry.pid, ring.tid);
        let fresh = self.machine.core_mut(core).0;
        fresh.set_period(self.event, sampling.period);
        fresh.pause_sampling(!sampling.on);
        Running {
            number,
            core,
            cursor: Cursor::default(),
            birth: ring.birth,
            start_ns,
            inside: OpenRegions::default(),
            sampling,
            counted: 0,
            since: 0,
            own: Duration::ZERO,
        }
    }

    fn birth_of(&self, ring: &Ring) -> Option<u64> {
        (ring.birth > 0).then_some(ring.birth)
    }

    fn begin(&mut self, _: &mut Process, _: u32, thread: &mut Running) {
        self.begin_at_birth(thread);
    }

    fn started(&mut self) -> Vec<StartMark> {
        self.waits.take_started()
    }

    fn process_now(&self, kept: &Modelled) -> u64 {
        kept.now_ns
    }

    fn now(&self, thread: &Running) -> u64 {
        self.machine.core(thread.core).time_ns()
    }

    fn busy(&self, thread: &Running) -> Option<u64> {
        let core = self.machine.core(thread.core);
        Some(core.time_ns().saturating_sub(core.idle_ns()))
    }

    fn observe(&mut self, process: &mut Process, catalogue_event: CatalogueEvent, _: u64) {
        match catalogue_event {
            CatalogueEvent::NotFollowed(what) => {
                let why = format!("a program was not followed: {what}");
                self.sink.not_sampled(1, &why);
            }
            CatalogueEvent::Region(number, name) => {
                process.kept.regions.insert(number, name);
            }
            _ => {}
        }
    }

    fn read(
        &mut self,
        process: &mut Process,
        tid: u32,
        thread: &mut Running,
        words: &Words<'_>,
    ) -> Taken {
        let began = own_time();
        let (mut at, mut passed) = (words.from, 0);
        let waits = loop {
            at = self.replay(process, tid, thread, (words, at));
            if let Some((mark, length)) = RegionMark::at(words.all, at) {
                self.mark(process, thread, &mark);
                at += length;
                continue;
            }
            let Some(sync) = Sync::at(words.all, at) else {
                break None;
            };
            if let Some(waits) = sync.waits(words.granted) {
                break Some(waits);
            }
            let (core, _) = self.machine.core_mut(thread.core);
            let by = Marker::now(process.entry.pid, tid, core.time_ns());
            let until_ns = self.waits.take(&sync, &by);
            if let Some(until_ns) = until_ns {
                core.wait_until(until_ns);
            }
            passed = sync.number;
            at += Sync::WORDS;
        };
        self.hand_on(process, thread);
        let now_ns = self.now(thread);
        process.kept.now_ns = process.kept.now_ns.max(now_ns);
        self.waits.reach(process.entry.pid, process.kept.now_ns);
        thread.own += own_time().saturating_sub(began);
        Taken {
            to: at.min(words.all.len()),
            passed,
            waits,
            contends: false,
        }
    }

    fn end_thread(&mut self, process: &mut Process, mut thread: Thread) {
        // Deliver pending records before the end, and what retired last.
        self.machine.finish_core(thread.kept.core);
        let unchanged = thread.kept.sampling;
        self.change(process, &mut thread, unchanged);
        let counts = self.counts(&thread.kept);
        let core = self.machine.core(thread.kept.core);
        let delivered = core.delivered().unwrap_or_default();
        let stray = thread.kept.cursor.stray + u64::from(thread.ring.dropped());
        let cleared = delivered.cleared_lines + delivered.cleared_pages;
        self.lose(Some(process), LossKind::StrayAccess, stray, "");
        self.lose(
            Some(process),
            LossKind::ActivationDelay,
            delivered.passed,
            "",
        );
        self.lose(Some(process), LossKind::MachineClear, cleared, "");
        self.lose(Some(process), LossKind::BufferFull, delivered.full, "");
        self.sink.thread_ended(thread.kept.number, &counts);
        self.waits.runs(thread.ring.tid);
        process.kept.now_ns = process.kept.now_ns.max(self.now(&thread.kept));
        self.machine.remove_core(thread.kept.core);
    }

    // Cut blocks are not known: finding them needs the counts of all blocks, and a run that only
    // passes samples on forgets these counts to bound its memory.
    fn end_process(&mut self, process: Process) {
        let undecoded = process.entry.undecoded();
        self.lose(Some(&process), LossKind::Undecoded, undecoded.into(), "");
        let without_room = process.entry.without_room();
        let detail = LossKind::NO_ROOM;
        self.lose(
            Some(&process),
            LossKind::Undecoded,
            without_room.into(),
            detail,
        );
    }

    fn lose(&mut self, _: Option<&Process>, kind: LossKind, count: u64, detail: &str) {
        match kind {
            _ if count == 0 => {}
            LossKind::ThreadNotRecorded => {
                let why = format!("threads were not sampled: {detail}");
                self.sink.not_sampled(count, &why);
            }
            kind => self.sink.lost(kind, count, detail),
        }
    }
}
