//! Samples of a program that a source runs (`memgauge_host::sampled`): the same threads,
//! buffers and counts as of threads that are attached to.
//!
//! The run has a thread of its own, which asks for what is to change between two of its
//! steps. Whoever asks waits until it has been done: then all that was sampled before can
//! be read, and all that is read later was sampled as asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use memgauge_host::sampled::{SampleSink, SampledRun, Sampling, ThreadCounts};
use memgauge_trace::{CommandEnd, Sample as Row};

use crate::control::Control;
use crate::registry::{Registry, SampledThread, State, add};
use crate::ring::{Ring, RingWriter};
use crate::sample::{Sample, WORDS};
use crate::settings::{Settings, WhenFull};
use crate::{Error, ErrorKind, Result};

/// A thread of the program.
struct Running {
    thread: Arc<SampledThread>,
    writer: RingWriter<WORDS>,
    wanted: bool,
    period: u64,
}

/// The program's threads, and what is asked of them.
struct Run {
    settings: Settings,
    period: u64,
    on: bool,
    /// Threads that run, by the run's number.
    running: BTreeMap<u64, Running>,
    /// Processes that were deleted: what they start is not sampled.
    deleted: BTreeSet<u32>,
    next: u64,
    /// Numbers of requests: made, taken by the run, done.
    asked: u64,
    taken: u64,
    done: u64,
    asked_of: BTreeSet<u64>,
    missed: u64,
    trouble: Option<String>,
    end: Option<std::result::Result<CommandEnd, (ErrorKind, String)>>,
    batch: Vec<[u64; WORDS]>,
}

/// What the profiler and the run share.
pub(crate) struct ProgramControl {
    run: Mutex<Run>,
    moved: Condvar,
    /// Whether something is asked: looked at often, and so without the lock.
    asks: AtomicBool,
    over: AtomicBool,
    registry: Arc<Registry>,
}

impl Run {
    fn sampling(&self, running: &Running) -> Sampling {
        Sampling {
            period: running.period,
            on: self.on && running.wanted,
        }
    }

    fn number(&self, what: &str, tid: u32) -> Result<u64> {
        let mut all = self.running.iter();
        let found = all.find(|(_, running)| running.thread.tid() == tid);
        found.map(|(number, _)| *number).ok_or_else(|| {
            let message = format!(
                "failed to {what} thread `{tid}`: the program has no such thread, or it has \
                 ended or was deleted"
            );
            Error::new(ErrorKind::NoSuchTask, message)
        })
    }
}

fn cannot_add(what: &str, id: u32) -> Error {
    Error::usage(format!(
        "failed to add {what} `{id}`: this profiler samples one program, whose threads are \
         added by themselves"
    ))
}

impl ProgramControl {
    pub(crate) fn new(settings: Settings, period: u64, registry: &Arc<Registry>) -> Self {
        ProgramControl {
            run: Mutex::new(Run {
                period: settings.period.unwrap_or(period),
                settings,
                on: true,
                running: BTreeMap::new(),
                deleted: BTreeSet::new(),
                next: 0,
                asked: 0,
                taken: 0,
                done: 0,
                asked_of: BTreeSet::new(),
                missed: 0,
                trouble: None,
                end: None,
                batch: Vec::new(),
            }),
            moved: Condvar::new(),
            asks: AtomicBool::new(false),
            over: AtomicBool::new(false),
            registry: Arc::clone(registry),
        }
    }

    fn run(&self) -> MutexGuard<'_, Run> {
        // Between two calls everything is in order, also where one of them panicked.
        self.run.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs the program to its end.
    pub(crate) fn follow(&self, run: Box<dyn SampledRun>) {
        /// Also where the run panics, nobody waits for ever.
        struct Ended<'a>(&'a ProgramControl, Option<Result<CommandEnd>>);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                let panicked = || Error::new(ErrorKind::System, "failed to follow the program");
                let end = self.1.take();
                self.0.run_is_over(end.unwrap_or_else(|| Err(panicked())));
            }
        }
        let mut ended = Ended(self, None);
        ended.1 = Some(run.run(&mut Sink(self)));
    }

    fn run_is_over(&self, end: Result<CommandEnd>) {
        let mut run = self.run();
        for running in std::mem::take(&mut run.running).into_values() {
            running.thread.set_state(State::Ended);
        }
        run.end = Some(end.map_err(|e| (e.kind(), e.in_full())));
        drop(run);
        self.moved.notify_all();
        self.registry.changed();
        self.registry.wake(&[]);
    }

    /// Waits for the program's end.
    pub(crate) fn wait(&self) -> Result<CommandEnd> {
        let mut run = self.run();
        loop {
            match &run.end {
                Some(Ok(end)) => return Ok(end.clone()),
                Some(Err((kind, why))) => return Err(Error::new(*kind, why.clone())),
                None => run = self.moved.wait(run).unwrap_or_else(|e| e.into_inner()),
            }
        }
    }

    /// How the program ended, if it has.
    pub(crate) fn ended(&self) -> Option<Result<CommandEnd>> {
        self.run().end.as_ref().map(|end| match end {
            Ok(end) => Ok(end.clone()),
            Err((kind, why)) => Err(Error::new(*kind, why.clone())),
        })
    }

    /// Has the run do what is wanted of these threads, and waits until it has.
    fn ask<'a>(
        &'a self,
        mut run: MutexGuard<'a, Run>,
        of: impl IntoIterator<Item = u64>,
    ) -> MutexGuard<'a, Run> {
        run.asked_of.extend(of);
        if run.asked_of.is_empty() {
            return run;
        }
        run.asked += 1;
        let mine = run.asked;
        self.asks.store(true, Ordering::Release);
        while run.done < mine && run.end.is_none() {
            run = self.moved.wait(run).unwrap_or_else(|e| e.into_inner());
        }
        run
    }

    fn all(run: &Run) -> Vec<u64> {
        run.running.keys().copied().collect()
    }

    /// Stops sampling threads for good.
    fn delete<'a>(&'a self, mut run: MutexGuard<'a, Run>, numbers: &[u64]) -> MutexGuard<'a, Run> {
        for number in numbers {
            if let Some(running) = run.running.get_mut(number) {
                running.wanted = false;
            }
        }
        run = self.ask(run, numbers.iter().copied());
        let mut deleted = Vec::new();
        for number in numbers {
            // One that has ended meanwhile is over already.
            if let Some(running) = run.running.remove(number) {
                running.thread.set_state(State::Deleted);
                deleted.push(running.thread.number);
            }
        }
        self.registry.changed();
        self.registry.wake(&deleted);
        run
    }
}

impl Control for ProgramControl {
    fn turn(&self, on: bool) {
        let mut run = self.run();
        run.on = on;
        let all = Self::all(&run);
        drop(self.ask(run, all));
    }

    fn add_thread(&self, tid: u32) -> Result<()> {
        Err(cannot_add("thread", tid))
    }

    fn add_processes(&self, pids: &[u32]) -> Vec<Result<usize>> {
        let refused = pids.iter().map(|&pid| Err(cannot_add("process", pid)));
        refused.collect()
    }

    fn delete_thread(&self, tid: u32) -> Result<()> {
        let run = self.run();
        let number = run.number("delete", tid)?;
        drop(self.delete(run, &[number]));
        Ok(())
    }

    fn delete_process(&self, pid: u32) -> Result<usize> {
        let mut run = self.run();
        let of = |running: &Running| running.thread.pid() == pid;
        let all = run.running.iter().filter(|r| of(r.1));
        let all: Vec<u64> = all.map(|(number, _)| *number).collect();
        if all.is_empty() {
            return Err(crate::collector::nobody("delete", pid));
        }
        run.deleted.insert(pid);
        drop(self.delete(run, &all));
        Ok(all.len())
    }

    fn want(&self, tid: u32, wanted: bool) -> Result<()> {
        let mut run = self.run();
        let number = run.number(if wanted { "start" } else { "stop" }, tid)?;
        if let Some(running) = run.running.get_mut(&number) {
            running.wanted = wanted;
            running.thread.set_state(match wanted {
                true => State::Started,
                false => State::Stopped,
            });
        }
        drop(self.ask(run, [number]));
        Ok(())
    }

    fn set_period(&self, tid: u32, period: u64) -> Result<u64> {
        let mut run = self.run();
        let number = run.number("change the period of", tid)?;
        if let Some(running) = run.running.get_mut(&number) {
            running.period = period;
        }
        drop(self.ask(run, [number]));
        Ok(period)
    }

    fn period_of_new(&self) -> u64 {
        self.run().period
    }

    fn set_period_of_new(&self, period: u64) -> u64 {
        self.run().period = period;
        period
    }

    fn set_buffer_of_new(&self, samples: usize) {
        self.run().settings.buffer = samples;
    }

    fn look(&self, tid: Option<u32>, read: &mut dyn FnMut()) {
        let run = self.run();
        let of = match tid {
            None => Self::all(&run),
            // Of one that has ended the counts are there.
            Some(tid) => run.number("count", tid).into_iter().collect(),
        };
        let _nothing_moves = self.ask(run, of);
        read();
    }

    fn hold(&self, read: &mut dyn FnMut()) {
        let _nothing_moves = self.run();
        read();
    }

    fn missed(&self) -> (u64, u64) {
        // Each lives, and is not followed.
        (0, self.run().missed)
    }

    fn notes(&self) -> Vec<String> {
        self.run().trouble.iter().cloned().collect()
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    fn let_go(&self) {}
}

/// What the run sees.
struct Sink<'a>(&'a ProgramControl);

impl SampleSink for Sink<'_> {
    fn begin(&mut self, number: u64, pid: u32, tid: u32) -> Sampling {
        let registry = &self.0.registry;
        let mut run = self.0.run();
        let off = Sampling {
            period: run.period,
            on: false,
        };
        if run.deleted.contains(&pid) {
            return off;
        }
        if !registry.has_room(&run.settings) {
            run.missed += 1;
            return off;
        }
        let refuses = run.settings.when_full == WhenFull::RefuseNewest;
        let (ring, writer) = Ring::new(run.settings.buffer, refuses);
        let thread = Arc::new(SampledThread::new(run.next, (pid, tid), ring));
        run.next += 1;
        thread.set_state(State::Started);
        let period = run.period;
        thread.counts.period.store(period, Ordering::Relaxed);
        registry.add(&thread);
        let running = Running {
            thread,
            writer,
            wanted: true,
            period,
        };
        let sampling = run.sampling(&running);
        run.running.insert(number, running);
        sampling
    }

    fn take(&mut self, number: u64, samples: &[Row], regions: &[&str]) {
        let registry = &self.0.registry;
        let region = match regions.is_empty() {
            true => 0,
            false => registry.regions().number(regions.iter().copied()),
        };
        let mut run = self.0.run();
        let mut batch = std::mem::take(&mut run.batch);
        if let Some(running) = run.running.get_mut(&number) {
            let with_address = samples.iter().filter(|row| row.addr.is_some()).count();
            let stands_for = samples.iter().map(|row| row.period).sum();
            let all = samples.iter().map(|row| Sample::of_row(row, region));
            batch.extend(all.map(|sample| sample.packed()));
            let counts = &running.thread.counts;
            add(&counts.samples, samples.len() as u64);
            add(&counts.memory_samples, with_address as u64);
            add(&counts.stands_for, stands_for);
            running.writer.write(&batch);
            let thread = running.thread.number;
            batch.clear();
            registry.wake(&[thread]);
        }
        run.batch = batch;
    }

    fn end(&mut self, number: u64, counts: &ThreadCounts) {
        let mut run = self.0.run();
        let Some(running) = run.running.remove(&number) else {
            return;
        };
        set(&running, counts);
        running.thread.set_state(State::Ended);
        let thread = running.thread.number;
        drop(run);
        self.0.registry.changed();
        self.0.registry.wake(&[thread]);
    }

    fn requests(&mut self) -> Vec<(u64, Sampling)> {
        if !self.0.asks.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let mut run = self.0.run();
        run.taken = run.asked;
        let of = std::mem::take(&mut run.asked_of);
        let wanted = of.iter().filter_map(|number| {
            let running = run.running.get(number)?;
            Some((*number, run.sampling(running)))
        });
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() {
            // They have ended meanwhile.
            run.done = run.taken;
            self.0.moved.notify_all();
        }
        wanted
    }

    fn answer(&mut self, counts: &[(u64, ThreadCounts)]) {
        let mut run = self.0.run();
        for (number, counts) in counts {
            if let Some(running) = run.running.get(number) {
                set(running, counts);
            }
        }
        run.done = run.taken;
        self.0.moved.notify_all();
    }

    fn miss(&mut self, threads: u64, why: &str) {
        let mut run = self.0.run();
        run.missed += threads;
        run.trouble = Some(why.to_owned());
    }

    fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }
}

fn set(running: &Running, now: &ThreadCounts) {
    let counts = &running.thread.counts;
    counts.counted.store(now.counted, Ordering::Relaxed);
    counts
        .processor_ns
        .store(now.processor_ns, Ordering::Relaxed);
    counts.own_ns.store(now.own_ns, Ordering::Relaxed);
    counts.period.store(running.period, Ordering::Relaxed);
}
