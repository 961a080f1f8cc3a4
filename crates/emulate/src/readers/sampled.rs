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
use memgauge_host::running_program::RunningProgram;
use memgauge_host::sampled_run::{SampleSink, SampledRun, ThreadCounts, ThreadSampling};
use memgauge_machine::{Config, Core, Delivery, Machine, PmuConfig, SampleSpec};
use memgauge_trace::{
    CommandEnd, Cpu, EventId, LossKind, Pid, Sample, Tid, VirtAddr, catalogue as events,
};
use rustix::time::{ClockId, clock_gettime};

use super::model_reader::{
    ModelReader, ModelSink, ModelledProcess, ModelledThread, NewCore, RunningThread,
};
use super::roi::{RegionMark, RegionMarkKind};
use crate::engine::catalogue::CatalogueEvent;
use crate::engine::launch::{Emulator, not_started, resolve};
use crate::engine::launch::{engine_command, spawn, start};
use crate::engine::session::{EngineSession, ThreadRing};
use crate::follow::pace::{FLUSH_EVERY, PollPace, REAP_EVERY, UNRECORDED_IDLE};
use crate::follow::{self, Followed, ThreadWords};
use crate::model::replay::{OverflowSink, Replay};
use crate::{Error, Result};

type Process = follow::EmulatedProcess<ModelledProcess<()>>;
type Thread = follow::EmulatedThread<ModelledThread<SampledThread>>;

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
    session: EngineSession,
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
        let session = EngineSession::create(0)?;
        session.publish_caches(&options.machine);
        session.publish_models_time();
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
        let forwarder = SampleForwarder {
            event: self.event.event,
            sink,
            begun: 0,
            pending: Vec::new(),
            turn_began: Duration::ZERO,
        };
        let reader = ModelReader::new(started.machine, forwarder);
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
    followed: Followed<ModelReader<SampleForwarder<'a>>>,
}

impl OnlineRun<'_> {
    fn until_the_end(&mut self, session: &mut EngineSession) -> Result<CommandEnd> {
        let (mut pace, mut reaped, mut forgot) =
            (PollPace::default(), Instant::now(), Instant::now());
        let end = loop {
            let busy = self.followed.poll(session, pace.is_eager());
            pace.hurry(self.followed.holds());
            self.answer_requests();
            if self.followed.reader.sink.sink.is_closed() {
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
            self.followed.reader.report_losses();
            if let Some(end) = self.ended()? {
                break end;
            }
            if forgot.elapsed() > FLUSH_EVERY {
                forgot = Instant::now();
                let all = self.followed.processes.values_mut();
                all.for_each(forget_counts);
            }
        };
        self.read_to_the_end(session);
        // A killed program may not have come this far.
        match self.followed.appeared.processes == 0 && matches!(end, CommandEnd::Exited(_)) {
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
    fn read_to_the_end(&mut self, session: &mut EngineSession) {
        let still_running = self.followed.read_to_the_end(session);
        let reader = &mut self.followed.reader;
        reader.report_last_losses(session, still_running);
        self.answer_requests();
    }

    /// Continues the program without sampling, because nobody needs samples any more.
    fn unsampled(&mut self, session: &mut EngineSession) -> Result<CommandEnd> {
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
        let requests = self.followed.reader.sink.sink.take_requests();
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
            let number = thread.state.sink.number;
            if let Some((_, wanted)) = requests.iter().find(|r| r.0 == number)
                && let Some(process) = processes.get(&thread.ring.process)
            {
                let (core, _) = reader.machine.core_mut(thread.state.core);
                let forwarder = &mut reader.sink;
                forwarder.change(core, process, thread, *wanted);
                counts.push((number, forwarder.counts(core, &thread.state)));
            }
        }
        reader.sink.sink.requests_done(&counts);
    }
}

/// Drops the counts by code, after it has counted what did not happen.
fn forget_counts(process: &mut Process) {
    let state = &mut process.state;
    let catalogue = &mut state.program.catalogue;
    state
        .uncounted
        .take_executions(catalogue, false, |_, _, _, _| ());
    state.program.forget_counts();
}

/// State of a thread.
pub(crate) struct SampledThread {
    number: u64,
    inside: OpenRegions<u32, ()>,
    sampling: ThreadSampling,
    /// Events counted until sampling last resumed, and the core's count at that time.
    counted: u64,
    since: u64,
    own: Duration,
}

/// Passes on the samples of the modelled machine.
struct SampleForwarder<'a> {
    event: EventId,
    sink: &'a mut dyn SampleSink,
    /// Number of threads so far, which is the next one's number.
    begun: u64,
    /// Samples that were not passed on yet.
    pending: Vec<Sample>,
    /// Own CPU time when the turn began.
    turn_began: Duration,
}

impl SampleForwarder<'_> {
    fn counts(&self, core: &Core, thread: &ModelledThread<SampledThread>) -> ThreadCounts {
        let sampled = &thread.sink;
        let gained = match sampled.sampling.on {
            true => core.counts().get(self.event) - sampled.since,
            false => 0,
        };
        ThreadCounts {
            counted: sampled.counted + gained,
            processor_ns: (core.time_ns() - thread.start_ns).saturating_sub(core.idle_ns()),
            own_ns: sampled.own.as_nanos() as u64,
        }
    }

    /// Changes the sampling of a thread from here on.
    fn change(
        &mut self,
        core: &mut Core,
        process: &Process,
        thread: &mut Thread,
        wanted: ThreadSampling,
    ) {
        let (now, state) = (core.counts().get(self.event), &mut thread.state);
        let before = state.sink.sampling;
        if before.on && !wanted.on {
            state.sink.counted += now - state.sink.since;
            core.pause_sampling(true);
        }
        if before.period != wanted.period {
            core.set_period(self.event, wanted.period);
        }
        if !before.on && wanted.on {
            state.sink.since = now;
            core.pause_sampling(false);
        }
        state.sink.sampling = wanted;
        let mut collector = SampleCollector {
            ids: (Pid(process.entry.pid), Tid(thread.ring.tid)),
            cpu: Cpu(state.core.0),
            into: &mut self.pending,
        };
        collector.take(core, VirtAddr(0));
        self.hand_on(process, &state.sink);
    }

    /// Passes a thread's samples since its regions last changed to the sink.
    fn hand_on(&mut self, process: &Process, thread: &SampledThread) {
        if self.pending.is_empty() {
            return;
        }
        let name = |number: &u32| process.state.regions.get(number).map(String::as_str);
        let inside = thread.inside.iter();
        let regions: Vec<&str> = inside
            .map(|open| name(&open.name).unwrap_or("(unknown)"))
            .collect();
        self.sink
            .push_samples(thread.number, &self.pending, &regions);
        self.pending.clear();
    }
}

fn own_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Collects the samples of a core.
struct SampleCollector<'a> {
    ids: (Pid, Tid),
    cpu: Cpu,
    into: &'a mut Vec<Sample>,
}

impl OverflowSink for SampleCollector<'_> {
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

impl ModelSink for SampleForwarder<'_> {
    type Process = ();
    type Thread = SampledThread;

    fn begin_thread(
        &mut self,
        process: &Process,
        ring: &ThreadRing,
        core: &mut Core,
        _: NewCore,
    ) -> SampledThread {
        let number = self.begun;
        self.begun += 1;
        let sampling = self
            .sink
            .thread_started(number, process.entry.pid, ring.tid);
        core.set_period(self.event, sampling.period);
        core.pause_sampling(!sampling.on);
        SampledThread {
            number,
            inside: OpenRegions::default(),
            sampling,
            counted: 0,
            since: 0,
            own: Duration::ZERO,
        }
    }

    fn observe(&mut self, _: &mut Process, catalogue_event: CatalogueEvent, _: u64) {
        if let CatalogueEvent::NotFollowed(what) = catalogue_event {
            let why = format!("a program was not followed: {what}");
            self.sink.not_sampled(1, &why);
        }
    }

    fn begin_turn(&mut self) {
        self.turn_began = own_time();
    }

    fn replay(
        &mut self,
        machine: &mut Machine,
        running: &mut RunningThread<'_, Self>,
        words: &ThreadWords<'_>,
        from: usize,
    ) -> usize {
        let RunningThread {
            process,
            tid,
            thread,
        } = running;
        let (core, shared) = machine.core_mut(thread.core);
        let mut collector = SampleCollector {
            ids: (Pid(process.entry.pid), Tid(*tid)),
            cpu: Cpu(thread.core.0),
            into: &mut self.pending,
        };
        let program = &mut process.state.program;
        let mut replay = Replay::new(core, shared, program, &mut thread.cursor, &mut collector);
        replay.run(words.all, from, words.whole)
    }

    fn mark_region(
        &mut self,
        _: &Core,
        running: &mut RunningThread<'_, Self>,
        mark: &RegionMark,
    ) -> bool {
        let thread = &mut running.thread.sink;
        self.hand_on(running.process, thread);
        match mark.kind {
            RegionMarkKind::Begin => drop(thread.inside.begin(mark.name, ())),
            RegionMarkKind::End => {
                return matches!(thread.inside.end(&mark.name), RegionEnd::Unmatched);
            }
            RegionMarkKind::Value(_) | RegionMarkKind::Nothing => {}
        }
        false
    }

    fn end_turn(&mut self, running: &mut RunningThread<'_, Self>) {
        let thread = &mut running.thread.sink;
        self.hand_on(running.process, thread);
        thread.own += own_time().saturating_sub(self.turn_began);
    }

    fn end_thread(&mut self, core: &mut Core, process: &mut Process, thread: &mut Thread) {
        // Delivers what retired last.
        let unchanged = thread.state.sink.sampling;
        self.change(core, process, thread, unchanged);
        let counts = self.counts(core, &thread.state);
        self.sink.thread_ended(thread.state.sink.number, &counts);
    }

    fn end_process(&mut self, _: &Machine, process: &mut Process) {
        forget_counts(process);
    }

    fn lose(&mut self, _: Option<&Process>, kind: LossKind, count: u64, detail: &str) {
        match kind {
            LossKind::ThreadNotRecorded => {
                let why = format!("threads were not sampled: {detail}");
                self.sink.not_sampled(count, &why);
            }
            kind => self.sink.lost(kind, count, detail),
        }
    }
}
