//! Samples a program that a source runs (`memgauge_host::sampled`), with the same threads, buffers
//! and counts as for attached threads.
//!
//! The run has its own thread and asks for requests between two steps. A caller waits until its
//! request is done. Then all samples taken before can be read, and all later samples are taken as
//! requested.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use memgauge_host::sampled_run::{SampleSink, SampledRun, ThreadCounts, ThreadSampling};
use memgauge_trace::{CommandEnd, LossKind, Sample as Row};

use crate::backend::Backend;
use crate::procfs::ThreadIds;
use crate::registry::{Registry, SampledThread, ThreadState, add};
use crate::ring::{RingWriter, SampleRing};
use crate::sample::{Sample, WORDS};
use crate::settings::{Settings, WhenFull};
use crate::unsampled_threads::UnsampledCounts;
use crate::{Error, ErrorKind, Result};

/// A running thread of the program.
struct RunningThread {
    thread: Arc<SampledThread>,
    writer: RingWriter<WORDS>,
    enabled: bool,
    period: u64,
}

/// The program's threads and the pending requests.
struct ProgramRun {
    settings: Settings,
    period: u64,
    on: bool,
    /// Running threads, by the number that the run gave them.
    running: BTreeMap<u64, RunningThread>,
    /// Deleted processes. Threads and processes that they start are not sampled.
    deleted: BTreeSet<u32>,
    next: u64,
    /// Number of the last request that was made, picked up by the run, and done.
    last_request: u64,
    picked_up: u64,
    done: u64,
    requested_threads: BTreeSet<u64>,
    unsampled: u64,
    last_error: Option<String>,
    losses: BTreeMap<(LossKind, String), u64>,
    end: Option<std::result::Result<CommandEnd, (ErrorKind, String)>>,
    batch: Vec<[u64; WORDS]>,
}

/// State shared by the profiler and the run.
pub(crate) struct ProgramBackend {
    run: Mutex<ProgramRun>,
    changed: Condvar,
    /// Whether there is a request. The run reads this often, so it does not take the lock.
    has_request: AtomicBool,
    is_stopping: AtomicBool,
    registry: Arc<Registry>,
}

impl ProgramRun {
    fn sampling(&self, running: &RunningThread) -> ThreadSampling {
        ThreadSampling {
            period: running.period,
            on: self.on && running.enabled,
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
        "failed to add {what} `{id}`: this profiler samples one program and adds its threads \
         automatically"
    ))
}

impl ProgramBackend {
    pub(crate) fn new(settings: Settings, period: u64, registry: &Arc<Registry>) -> Self {
        ProgramBackend {
            run: Mutex::new(ProgramRun {
                period: settings.period.unwrap_or(period),
                settings,
                on: true,
                running: BTreeMap::new(),
                deleted: BTreeSet::new(),
                next: 0,
                last_request: 0,
                picked_up: 0,
                done: 0,
                requested_threads: BTreeSet::new(),
                unsampled: 0,
                last_error: None,
                losses: BTreeMap::new(),
                end: None,
                batch: Vec::new(),
            }),
            changed: Condvar::new(),
            has_request: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            registry: Arc::clone(registry),
        }
    }

    fn run(&self) -> MutexGuard<'_, ProgramRun> {
        // Every operation leaves a consistent state, even if it panics.
        self.run.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs the program to its end.
    pub(crate) fn follow(&self, run: Box<dyn SampledRun>) {
        // Reports the end even if the run panics, so that no caller waits forever.
        struct Ended<'a>(&'a ProgramBackend, Option<Result<CommandEnd>>);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                let panicked = || {
                    Error::new(
                        ErrorKind::System,
                        "failed to sample the program: its thread panicked",
                    )
                };
                let end = self.1.take();
                self.0.set_ended(end.unwrap_or_else(|| Err(panicked())));
            }
        }
        let mut ended = Ended(self, None);
        ended.1 = Some(run.run(&mut ProgramSink(self)));
    }

    fn set_ended(&self, end: Result<CommandEnd>) {
        let mut run = self.run();
        for running in std::mem::take(&mut run.running).into_values() {
            running.thread.set_state(ThreadState::Ended);
        }
        run.end = Some(end.map_err(|e| (e.kind(), e.in_full())));
        drop(run);
        self.changed.notify_all();
        self.registry.changed();
        self.registry.wake(&[]);
    }

    /// Waits until the program has ended.
    pub(crate) fn wait(&self) -> Result<CommandEnd> {
        let mut run = self.run();
        loop {
            match &run.end {
                Some(Ok(end)) => return Ok(end.clone()),
                Some(Err((kind, why))) => return Err(Error::new(*kind, why.clone())),
                None => run = self.changed.wait(run).unwrap_or_else(|e| e.into_inner()),
            }
        }
    }

    /// Returns how the program ended, or `None` if it still runs.
    pub(crate) fn ended(&self) -> Option<Result<CommandEnd>> {
        self.run().end.as_ref().map(|end| match end {
            Ok(end) => Ok(end.clone()),
            Err((kind, why)) => Err(Error::new(*kind, why.clone())),
        })
    }

    /// Requests that the run applies the settings of these threads, and waits until it has.
    fn request<'a>(
        &'a self,
        mut run: MutexGuard<'a, ProgramRun>,
        of: impl IntoIterator<Item = u64>,
    ) -> MutexGuard<'a, ProgramRun> {
        run.requested_threads.extend(of);
        if run.requested_threads.is_empty() {
            return run;
        }
        run.last_request += 1;
        let request = run.last_request;
        self.has_request.store(true, Ordering::Release);
        while run.done < request && run.end.is_none() {
            run = self.changed.wait(run).unwrap_or_else(|e| e.into_inner());
        }
        run
    }

    fn running_threads(run: &ProgramRun) -> Vec<u64> {
        run.running.keys().copied().collect()
    }

    /// Stops sampling threads permanently.
    fn delete<'a>(
        &'a self,
        mut run: MutexGuard<'a, ProgramRun>,
        numbers: &[u64],
    ) -> MutexGuard<'a, ProgramRun> {
        for number in numbers {
            if let Some(running) = run.running.get_mut(number) {
                running.enabled = false;
            }
        }
        run = self.request(run, numbers.iter().copied());
        let mut deleted = Vec::new();
        for number in numbers {
            // Threads that have ended meanwhile are already removed.
            if let Some(running) = run.running.remove(number) {
                running.thread.set_state(ThreadState::Deleted);
                deleted.push(running.thread.number);
            }
        }
        self.registry.changed();
        self.registry.wake(&deleted);
        run
    }
}

impl Backend for ProgramBackend {
    fn set_enabled(&self, on: bool) {
        let mut run = self.run();
        run.on = on;
        let all = Self::running_threads(&run);
        drop(self.request(run, all));
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
        let of = |running: &RunningThread| running.thread.pid() == pid;
        let all = run.running.iter().filter(|r| of(r.1));
        let all: Vec<u64> = all.map(|(number, _)| *number).collect();
        if all.is_empty() {
            return Err(crate::collector::no_such_task("delete", pid));
        }
        run.deleted.insert(pid);
        drop(self.delete(run, &all));
        Ok(all.len())
    }

    fn set_thread_enabled(&self, tid: u32, enabled: bool) -> Result<()> {
        let mut run = self.run();
        let number = run.number(if enabled { "start" } else { "stop" }, tid)?;
        if let Some(running) = run.running.get_mut(&number) {
            running.enabled = enabled;
            running.thread.set_state(match enabled {
                true => ThreadState::Started,
                false => ThreadState::Stopped,
            });
        }
        drop(self.request(run, [number]));
        Ok(())
    }

    fn set_period(&self, tid: u32, period: u64) -> Result<u64> {
        let mut run = self.run();
        let number = run.number("change the period of", tid)?;
        if let Some(running) = run.running.get_mut(&number) {
            running.period = period;
        }
        drop(self.request(run, [number]));
        Ok(period)
    }

    fn default_period(&self) -> u64 {
        self.run().period
    }

    fn set_default_period(&self, period: u64) -> u64 {
        self.run().period = period;
        period
    }

    fn set_default_buffer(&self, samples: usize) {
        self.run().settings.buffer = samples;
    }

    fn refresh_counts(&self, tid: Option<u32>, read: &mut dyn FnMut()) {
        let run = self.run();
        let of = match tid {
            None => Self::running_threads(&run),
            // The counts of a thread that has ended are final.
            Some(tid) => run.number("count", tid).into_iter().collect(),
        };
        let _guard = self.request(run, of);
        read();
    }

    fn with_lock(&self, read: &mut dyn FnMut()) {
        let _guard = self.run();
        read();
    }

    fn unsampled_threads(&self) -> UnsampledCounts {
        UnsampledCounts {
            ended: 0,
            alive: self.run().unsampled,
        }
    }

    fn notes(&self) -> Vec<String> {
        let run = self.run();
        let losses = run.losses.iter();
        let losses = losses.map(|((kind, detail), count)| loss_note(*kind, *count, detail));
        run.last_error.iter().cloned().chain(losses).collect()
    }

    fn request_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    fn detach_all(&self) {}
}

/// Receives the events of the run.
struct ProgramSink<'a>(&'a ProgramBackend);

impl SampleSink for ProgramSink<'_> {
    fn thread_started(&mut self, number: u64, pid: u32, tid: u32) -> ThreadSampling {
        let registry = &self.0.registry;
        let mut run = self.0.run();
        let off = ThreadSampling {
            period: run.period,
            on: false,
        };
        if run.deleted.contains(&pid) {
            return off;
        }
        if !registry.has_room(&run.settings) {
            run.unsampled += 1;
            return off;
        }
        let refuses = run.settings.when_full == WhenFull::RefuseNewest;
        let (ring, writer) = SampleRing::new(run.settings.buffer, refuses);
        let thread = Arc::new(SampledThread::new(run.next, ThreadIds { pid, tid }, ring));
        run.next += 1;
        thread.set_state(ThreadState::Started);
        let period = run.period;
        thread.counts.period.store(period, Ordering::Relaxed);
        registry.add(&thread);
        let running = RunningThread {
            thread,
            writer,
            enabled: true,
            period,
        };
        let sampling = run.sampling(&running);
        run.running.insert(number, running);
        sampling
    }

    fn push_samples(&mut self, number: u64, samples: &[Row], regions: &[&str]) {
        let registry = &self.0.registry;
        let region = match regions.is_empty() {
            true => 0,
            false => registry.roi_tree().number(regions.iter().copied()),
        };
        let mut run = self.0.run();
        let mut batch = std::mem::take(&mut run.batch);
        if let Some(running) = run.running.get_mut(&number) {
            let with_address = samples.iter().filter(|row| row.addr.is_some()).count();
            let stands_for = samples.iter().map(|row| row.period).sum();
            let all = samples.iter().map(|row| Sample::from_row(row, region));
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

    fn thread_ended(&mut self, number: u64, counts: &ThreadCounts) {
        let mut run = self.0.run();
        let Some(running) = run.running.remove(&number) else {
            return;
        };
        set_counts(&running, counts);
        running.thread.set_state(ThreadState::Ended);
        let thread = running.thread.number;
        drop(run);
        self.0.registry.changed();
        self.0.registry.wake(&[thread]);
    }

    fn take_requests(&mut self) -> Vec<(u64, ThreadSampling)> {
        if !self.0.has_request.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let mut run = self.0.run();
        run.picked_up = run.last_request;
        let of = std::mem::take(&mut run.requested_threads);
        let requests = of.iter().filter_map(|number| {
            let running = run.running.get(number)?;
            Some((*number, run.sampling(running)))
        });
        let requests: Vec<_> = requests.collect();
        if requests.is_empty() {
            // All of these threads have ended meanwhile.
            run.done = run.picked_up;
            self.0.changed.notify_all();
        }
        requests
    }

    fn requests_done(&mut self, counts: &[(u64, ThreadCounts)]) {
        let mut run = self.0.run();
        for (number, counts) in counts {
            if let Some(running) = run.running.get(number) {
                set_counts(running, counts);
            }
        }
        run.done = run.picked_up;
        self.0.changed.notify_all();
    }

    fn not_sampled(&mut self, threads: u64, why: &str) {
        let mut run = self.0.run();
        run.unsampled += threads;
        run.last_error = Some(why.to_owned());
    }

    fn lost(&mut self, kind: LossKind, count: u64, detail: &str) {
        let mut run = self.0.run();
        *run.losses.entry((kind, detail.to_owned())).or_default() += count;
    }

    fn is_closed(&self) -> bool {
        self.0.is_stopping.load(Ordering::Acquire)
    }
}

/// A sentence about a loss of a run.
fn loss_note(kind: LossKind, count: u64, detail: &str) -> String {
    let meaning = match kind {
        LossKind::BlockCut => "runs of accesses that a fault prevented",
        LossKind::Undecoded => "undecoded accesses",
        LossKind::StrayAccess => "accesses without their instruction",
        LossKind::RegionEnd => "ends of regions of interest that had not begun in their thread",
        LossKind::StillRunning => "processes still running when the program ended",
        LossKind::ActivationDelay => "events between an overflow and its record",
        LossKind::MachineClear => "misses that no counter saw, because records aborted their loads",
        LossKind::BufferFull => "records dropped because the processor's buffer was full",
        _ => "losses of another kind",
    };
    match detail {
        "" => format!("lost: {count} {meaning}"),
        detail => format!("lost: {count} {meaning}: {detail}"),
    }
}

fn set_counts(running: &RunningThread, now: &ThreadCounts) {
    let counts = &running.thread.counts;
    counts.counted.store(now.counted, Ordering::Relaxed);
    counts
        .processor_ns
        .store(now.processor_ns, Ordering::Relaxed);
    counts.own_ns.store(now.own_ns, Ordering::Relaxed);
    counts.period.store(running.period, Ordering::Relaxed);
}
