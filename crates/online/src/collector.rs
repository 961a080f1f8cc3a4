//! The threads being sampled, and the collector thread that reads the kernel's rings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use memgauge_host::process_tree::children_of_thread;
use memgauge_host::sys::scheduling::request_short_slices;
use memgauge_live::sampling::{AttachedThread, ProcessCode, SamplingPlan};
use memgauge_live::sys::perf::{self, PollResult};

use crate::backend::Backend;
use crate::collected_thread::{CollectedThread, RoiLookup, StartedThread};
use crate::descriptors::{self, proc_error};
use crate::idle::IdleDetector;
use crate::marks::{ThreadMarks, create_marks};
use crate::period_control::{Budget, PeriodController};
use crate::procfs::{ProcDirectory, ThreadIds, command, identity, threads};
use crate::registry::{Registry, SampledThread, ThreadState, wake};
use crate::ring::SampleRing;
use crate::settings::{Settings, WhenFull, measure_budget};
use crate::unsampled_threads::{UnsampledCounts, UnsampledThreads};
use crate::{Error, ErrorKind, Result};

/// Interval of the search in `/proc` for threads that no record reported.
const TASK_SEARCH_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the cost of sampling is checked against the budget.
const BUDGET_INTERVAL: Duration = Duration::from_millis(100);
/// Poll timeout while every event that matters wakes the collector.
const IDLE_TIMEOUT_MS: i32 = 1000;
/// Attempts to attach if the number of a thread is reused meanwhile.
const MAX_ATTACH_ATTEMPTS: usize = 4;

/// The sampled threads and their settings.
pub(crate) struct Collector {
    pub(crate) settings: Settings,
    pub(crate) plan: SamplingPlan,
    pub(crate) on: bool,
    threads: BTreeMap<u64, CollectedThread>,
    by_tid: HashMap<u32, u64>,
    /// Processes whose new threads are sampled as well.
    followed: BTreeSet<u32>,
    code: ProcessCode,
    next: u64,
    unsampled: UnsampledThreads,
    /// Reason why the last living thread could not be sampled.
    pub(crate) last_error: Option<String>,
    last_task_search: Instant,
    /// Limit of the overhead, if there is one.
    budget: Option<Budget>,
    last_budget_check: Instant,
    registry: Arc<Registry>,
    /// Marks of regions of interest, if samples contain them.
    pub(crate) marks: Option<ThreadMarks>,
    idle: IdleDetector,
}

impl Collector {
    pub(crate) fn new(settings: Settings, registry: &Arc<Registry>) -> Result<Collector> {
        let mut plan = settings.plan()?;
        check_event(&mut plan)?;
        let budget = settings
            .overhead
            .map(|allowed| measure_budget(&mut plan, allowed));
        let marks = settings.roi.then(|| create_marks(&plan)).transpose()?;
        Ok(Collector {
            plan,
            budget: budget.transpose()?,
            last_budget_check: Instant::now(),
            settings,
            on: true,
            threads: BTreeMap::new(),
            by_tid: HashMap::new(),
            followed: BTreeSet::new(),
            code: ProcessCode::default(),
            next: 0,
            unsampled: UnsampledThreads::default(),
            last_error: None,
            last_task_search: Instant::now(),
            registry: Arc::clone(registry),
            marks,
            idle: IdleDetector::default(),
        })
    }

    /// Adds a thread and starts to sample it.
    pub(crate) fn add_thread(&mut self, tid: u32) -> Result<()> {
        let added = self.try_add(tid, false)?;
        added.map(drop).ok_or_else(|| no_such_task("add", tid))
    }

    /// Returns `None` if the thread has ended or is exiting.
    fn try_add(&mut self, tid: u32, follows: bool) -> Result<Option<u64>> {
        if self.by_tid.contains_key(&tid) {
            let message = format!("failed to add thread `{tid}`: it is already added");
            return Err(Error::usage(message));
        }
        self.check_room(tid)?;
        for _ in 0..MAX_ATTACH_ATTEMPTS {
            let inspect = |tid| Ok((identity(tid)?, ProcDirectory::open(tid)?));
            let looked = inspect(tid).map_err(|e| proc_error(tid, e))?;
            let (Some(identity_before), Some(directory)) = looked else {
                return Ok(None);
            };
            // Wake events must not take the descriptors that a new thread needs.
            self.idle.resume_polling();
            let attached = self.plan.attach(tid, follows);
            // Check this after attaching: from then on the kernel stops sampling a program that
            // changes its user.
            let allowed = self
                .settings
                .only_user
                .is_none_or(|u| directory.belongs_to(u));
            if identity(tid).map_err(|e| proc_error(tid, e))? != Some(identity_before) {
                // The thread has ended, and its number may have been reused.
                continue;
            }
            if !allowed {
                return Err(not_permitted(tid));
            }
            let Some(attached) = attached? else {
                return Ok(None);
            };
            descriptors::check(tid, attached.highest_descriptor())?;
            return Ok(Some(self.register(attached, identity_before.pid, follows)));
        }
        Ok(None)
    }

    fn check_room(&self, tid: u32) -> Result<()> {
        if self.registry.has_room(&self.settings) {
            return Ok(());
        }
        let limit = self.settings.max_threads;
        let message = format!(
            "failed to add thread `{tid}`: the limit of {limit} threads is reached; delete \
             threads, or clean up those that have ended"
        );
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    fn register(&mut self, attached: AttachedThread, pid: u32, follows: bool) -> u64 {
        let refuses = self.settings.when_full == WhenFull::RefuseNewest;
        let (ring, writer) = SampleRing::new(self.settings.buffer, refuses);
        let (number, tid) = (self.next, attached.tid());
        self.next += 1;
        let thread = Arc::new(SampledThread::new(number, ThreadIds { pid, tid }, ring));
        thread.set_command(&command(tid));
        thread.set_state(ThreadState::Started);
        self.registry.add(&thread);
        if !self.threads.values().any(|m| m.registered.pid() == pid) {
            self.code.scan(pid);
        }
        let thread = CollectedThread {
            registered: thread,
            attached,
            writer,
            follows,
            enabled: true,
            batch: Vec::new(),
            period_controller: PeriodController::default(),
            phases: self.settings.phases.then(Default::default),
        };
        if self.on {
            thread.attached.start();
        }
        thread.refresh_counts();
        self.threads.insert(number, thread);
        self.by_tid.insert(tid, number);
        number
    }

    /// Adds all threads of a process, and follows it.
    pub(crate) fn add_process(&mut self, pid: u32) -> Result<usize> {
        let mut added = Vec::new();
        if let Err(e) = self.add_threads(pid, &mut added) {
            // Add all threads or none.
            added
                .iter()
                .for_each(|&n| self.finish(n, ThreadState::Deleted));
            self.registry.remove(|t| added.contains(&t.number));
            return Err(e);
        }
        if added.is_empty() && !self.by_tid.contains_key(&pid) {
            return Err(no_such_task("add", pid));
        }
        self.followed.insert(pid);
        for thread in self.threads.values_mut() {
            thread.follows |= thread.registered.pid() == pid;
        }
        Ok(added.len())
    }

    /// Adds all threads of a process, including those that it starts meanwhile.
    fn add_threads(&mut self, pid: u32, added: &mut Vec<u64>) -> Result<()> {
        for _ in 0..MAX_ATTACH_ATTEMPTS {
            let new = self.not_attached(pid)?;
            if new.is_empty() {
                break;
            }
            for tid in new {
                added.extend(self.try_add(tid, true)?);
            }
        }
        Ok(())
    }

    fn not_attached(&self, pid: u32) -> Result<Vec<u32>> {
        let mut all = threads(pid).map_err(|e| proc_error(pid, e))?;
        all.retain(|tid| !self.by_tid.contains_key(tid));
        Ok(all)
    }

    fn number(&self, what: &str, tid: u32) -> Result<u64> {
        let number = self.by_tid.get(&tid).copied();
        number.ok_or_else(|| {
            let message = format!(
                "failed to {what} thread `{tid}`: it was not added, has ended, or was deleted"
            );
            Error::new(ErrorKind::NoSuchTask, message)
        })
    }

    /// Enables or disables sampling of a thread. Samples taken before can be read.
    pub(crate) fn set_thread_enabled(&mut self, tid: u32, enabled: bool) -> Result<()> {
        let number = self.number(if enabled { "start" } else { "stop" }, tid)?;
        if let Some(thread) = self.threads.get_mut(&number) {
            thread.enabled = enabled;
            thread.registered.set_state(thread.state());
        }
        self.apply_switch(number);
        Ok(())
    }

    /// Switches a thread's event on or off. When it is switched off, reads the remaining samples.
    fn apply_switch(&mut self, number: u64) {
        let Some(thread) = self.threads.get(&number) else {
            return;
        };
        match self.on && thread.enabled {
            true => thread.attached.start(),
            false => {
                thread.attached.stop();
                self.drain(&[number]);
            }
        }
    }

    pub(crate) fn set_enabled(&mut self, on: bool) {
        self.on = on;
        let all: Vec<u64> = self.threads.keys().copied().collect();
        all.into_iter().for_each(|number| self.apply_switch(number));
    }

    /// Changes the period of a thread.
    pub(crate) fn set_period(&mut self, tid: u32, period: u64) -> Result<u64> {
        let number = self.number("change the period of", tid)?;
        self.change_period(number, period)
    }

    fn change_period(&mut self, number: u64, period: u64) -> Result<u64> {
        let period = self.plan.possible_period(period);
        if let Some(thread) = self.threads.get(&number) {
            thread.attached.stop();
        }
        // All samples read up to here have the previous period.
        self.drain(&[number]);
        let Some(thread) = self.threads.get_mut(&number) else {
            // The thread has ended meanwhile.
            return Ok(period);
        };
        let changed = thread.attached.set_period(period);
        if self.on && thread.enabled {
            thread.attached.start();
        }
        thread.refresh_counts();
        changed.map(|()| period)
    }

    pub(crate) fn delete_thread(&mut self, tid: u32) -> Result<()> {
        let number = self.number("delete", tid)?;
        self.finish(number, ThreadState::Deleted);
        Ok(())
    }

    pub(crate) fn delete_process(&mut self, pid: u32) -> Result<usize> {
        // Threads that were started before now are either followed or deleted as well.
        self.drain(&self.threads_of(pid));
        let was_followed = self.followed.remove(&pid);
        let all = self.threads_of(pid);
        if all.is_empty() && !was_followed {
            return Err(no_such_task("delete", pid));
        }
        let deleted = all.len();
        all.into_iter()
            .for_each(|n| self.finish(n, ThreadState::Deleted));
        Ok(deleted)
    }

    fn threads_of(&self, pid: u32) -> Vec<u64> {
        let all = self.threads.iter();
        let of = all.filter(|(_, thread)| thread.registered.pid() == pid);
        of.map(|(number, _)| *number).collect()
    }

    /// Reads the last samples of a thread and detaches from it. Threads that a deleted thread has
    /// started since its ring was last read are not followed.
    fn finish(&mut self, number: u64, state: ThreadState) {
        if let Some(thread) = self.threads.get_mut(&number) {
            thread.attached.stop();
            thread.follows &= state != ThreadState::Deleted;
        }
        self.drain(&[number]);
        let Some(thread) = self.threads.remove(&number) else {
            return;
        };
        thread.refresh_counts();
        thread.registered.set_state(state);
        let ids = thread.registered.ids();
        let ThreadIds { pid, tid } = ids;
        if self.by_tid.get(&tid) == Some(&number) {
            self.by_tid.remove(&tid);
        }
        if let Some(marks) = self.marks.as_mut().filter(|_| state == ThreadState::Ended) {
            marks.forget(ids);
        }
        if !self.threads.values().any(|m| m.registered.pid() == pid) {
            self.code.forget_process(pid);
            self.followed.remove(&pid);
        }
        self.registry.changed();
        self.registry.wake(&[number]);
    }

    /// Reads the last samples of all threads and detaches.
    pub(crate) fn detach_all(&mut self) {
        let all: Vec<u64> = self.threads.keys().copied().collect();
        all.into_iter()
            .for_each(|n| self.finish(n, ThreadState::Deleted));
    }

    /// Updates the counts of a thread, or of all threads for `None`.
    pub(crate) fn refresh_counts(&mut self, tid: Option<u32>) {
        let one = tid.map(|tid| self.by_tid.get(&tid).copied());
        let numbers: Vec<u64> = match one {
            Some(number) => number.into_iter().collect(),
            None => self.threads.keys().copied().collect(),
        };
        self.drain(&numbers);
        let all = numbers.iter().filter_map(|n| self.threads.get(n));
        all.for_each(CollectedThread::refresh_counts);
    }

    /// Reads the rings of these threads and attaches to threads that they started. Returns whether
    /// there were samples.
    fn drain(&mut self, numbers: &[u64]) -> bool {
        let (mut started, mut with_samples) = (Vec::new(), Vec::new());
        for number in numbers {
            let Some(thread) = self.threads.get_mut(number) else {
                continue;
            };
            let roi = RoiLookup {
                marks: self.marks.as_mut(),
                registry: &self.registry,
            };
            let drained = thread.drain(&mut self.code, roi, &mut started);
            if drained.has_samples {
                with_samples.push(*number);
            }
            if let Some(ids) = drained.new_ids {
                self.set_ids(*number, ids);
            }
        }
        if !with_samples.is_empty() {
            self.registry.wake(&with_samples);
        }
        for StartedThread { pid, tid } in started {
            self.follow_thread(pid, tid);
        }
        !with_samples.is_empty()
    }

    /// Exec gives the calling thread the number of its process.
    fn set_ids(&mut self, number: u64, ids: ThreadIds) {
        let Some(thread) = self.threads.get(&number) else {
            return;
        };
        let previous_tid = thread.registered.tid();
        thread.registered.pid.store(ids.pid, Ordering::Relaxed);
        thread.registered.tid.store(ids.tid, Ordering::Relaxed);
        if self.by_tid.get(&previous_tid) == Some(&number) {
            self.by_tid.remove(&previous_tid);
        }
        self.by_tid.insert(ids.tid, number);
    }

    /// Adds a thread that was started by a followed one. Returns false if it is alive and could not
    /// be added.
    fn follow_thread(&mut self, pid: u32, tid: u32) -> bool {
        if self.by_tid.contains_key(&tid) {
            return true;
        }
        match self.try_add(tid, true) {
            Ok(Some(_)) => {}
            not_added => return self.count_unsampled(tid, not_added.err()),
        }
        self.followed.insert(pid);
        // Processes that it started before it was added.
        for child in children_of_thread(tid) {
            self.follow_thread(child, child);
        }
        true
    }

    /// Counts a thread that cannot be sampled, once, although attaching is retried. `error` is the
    /// reason, or `None` if the thread has ended. Returns whether it has ended.
    fn count_unsampled(&mut self, tid: u32, error: Option<Error>) -> bool {
        let ended = error.is_none();
        self.unsampled.record(tid, ended);
        self.last_error = error.map(|e| e.to_string()).or(self.last_error.take());
        ended
    }

    /// Finds threads of followed processes that no record reported, because they were started
    /// before their parent was added.
    fn find_unreported_tasks(&mut self) {
        if self.last_task_search.elapsed() < TASK_SEARCH_INTERVAL {
            return;
        }
        self.last_task_search = Instant::now();
        let (mut running, mut retry_counted) = (BTreeSet::new(), true);
        for pid in self.followed.clone() {
            let Ok(new) = self.not_attached(pid) else {
                // Try again at the next search.
                return;
            };
            for tid in new {
                running.insert(tid);
                // The same error would affect the others, so try only new threads after it.
                if retry_counted || !self.unsampled.contains(tid) {
                    retry_counted &= self.follow_thread(pid, tid);
                }
            }
        }
        self.unsampled.retain(&running);
    }

    /// Adjusts the period of threads whose overhead differs from the budget.
    fn adjust_periods(&mut self) {
        let Some(budget) = self
            .budget
            .filter(|_| self.last_budget_check.elapsed() >= BUDGET_INTERVAL)
        else {
            return;
        };
        self.last_budget_check = Instant::now();
        let mut next = Vec::new();
        for (number, thread) in self.threads.iter_mut().filter(|m| self.on && m.1.enabled) {
            next.extend(thread.end_window(budget).map(|period| (*number, period)));
        }
        for (number, period) in next {
            if let Err(e) = self.change_period(number, period) {
                self.last_error = Some(e.to_string());
            }
        }
    }

    /// Processes all rings once. `ready`: threads with a readable descriptor.
    fn process_rings(&mut self, ready: &[u64]) {
        let ended = |n: &&u64| self.threads.get(n).is_some_and(|m| m.attached.has_ended());
        let ended: Vec<u64> = ready.iter().filter(ended).copied().collect();
        let all: Vec<u64> = self.threads.keys().copied().collect();
        let with_samples = self.drain(&all);
        ended
            .into_iter()
            .for_each(|n| self.finish(n, ThreadState::Ended));
        if let Some(marks) = &mut self.marks {
            // Even if no thread is sampled: programs need room to write marks.
            marks.read();
        }
        self.find_unreported_tasks();
        self.adjust_periods();
        match with_samples || !ready.is_empty() || self.marks.is_some() {
            true => self.idle.resume_polling(),
            false => self.check_idle(),
        }
    }

    /// Checks whether all sampled threads sleep, so that their rings need no polling.
    fn check_idle(&mut self) {
        let on = self.on;
        let sampled = self.threads.iter().filter(|m| on && m.1.enabled);
        self.idle
            .check(sampled.map(|(n, m)| (*n, &m.attached)), &self.plan);
    }

    /// Returns the descriptors to wait for, and the timeout.
    fn wait_targets(&self) -> (Vec<u64>, Vec<RawFd>, i32) {
        let (mut numbers, mut fds): (Vec<u64>, Vec<RawFd>) = self
            .threads
            .iter()
            .flat_map(|(number, m)| {
                let both = m
                    .attached
                    .task_event_fd()
                    .into_iter()
                    .chain([m.attached.as_fd()]);
                both.map(|fd| (*number, fd.as_raw_fd()))
            })
            .unzip();
        let sampled = |m: &CollectedThread| self.on && m.enabled;
        let must_poll = !self.idle.is_idle() && self.threads.values().any(sampled);
        let timeout_ms = match self.marks.is_some() || must_poll {
            true => self.settings.latency.poll_interval_ms(),
            // Followed threads wake the collector when they start another.
            false => IDLE_TIMEOUT_MS,
        };
        for (number, fd) in self.idle.wake_fds() {
            numbers.push(number);
            fds.push(fd);
        }
        (numbers, fds, timeout_ms)
    }
}

/// Refuses an event that this machine lacks, before there is a thread to sample.
fn check_event(plan: &mut SamplingPlan) -> Result<()> {
    // The kernel takes 0 for the calling thread.
    const CALLING_THREAD: u32 = 0;
    match plan.attach(CALLING_THREAD, false) {
        Err(e) if e.kind() == ErrorKind::Missing => Err(e),
        // Permissions and limits depend on the thread and can change.
        _ => Ok(()),
    }
}

pub(crate) fn no_such_task(what: &str, id: u32) -> Error {
    let message = format!("failed to {what} `{id}`: no such process or thread");
    Error::new(ErrorKind::NoSuchTask, message)
}

fn not_permitted(tid: u32) -> Error {
    let message = format!(
        "failed to add `{tid}`: permission denied: its process belongs to another user, or is \
         protected like a set-uid program"
    );
    Error::new(ErrorKind::Refused, message)
}

/// State shared by the profiler and the collector thread.
pub(crate) struct SharedCollector {
    collector: Mutex<Collector>,
    is_stopping: AtomicBool,
    /// Wakes the collector thread after a change.
    signal: UnixStream,
}

impl SharedCollector {
    pub(crate) fn new(collector: Collector, signal: UnixStream) -> SharedCollector {
        SharedCollector {
            collector: Mutex::new(collector),
            is_stopping: AtomicBool::new(false),
            signal,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Collector> {
        // Every operation leaves a consistent state, even if it panics.
        self.collector.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Runs an operation and wakes the collector thread, which may have more to wait for.
    fn change_and_wake<T>(&self, what: impl FnOnce(&mut Collector) -> T) -> T {
        let result = what(&mut self.lock());
        wake(&self.signal);
        result
    }
}

impl Backend for SharedCollector {
    fn set_enabled(&self, on: bool) {
        self.change_and_wake(|collector| collector.set_enabled(on));
    }

    fn add_thread(&self, tid: u32) -> Result<()> {
        self.change_and_wake(|collector| collector.add_thread(tid))
    }

    fn add_processes(&self, pids: &[u32]) -> Vec<Result<usize>> {
        self.change_and_wake(|collector| {
            let added = pids.iter().map(|&pid| collector.add_process(pid));
            added.collect()
        })
    }

    fn delete_thread(&self, tid: u32) -> Result<()> {
        self.lock().delete_thread(tid)
    }

    fn delete_process(&self, pid: u32) -> Result<usize> {
        self.lock().delete_process(pid)
    }

    fn set_thread_enabled(&self, tid: u32, enabled: bool) -> Result<()> {
        self.change_and_wake(|collector| collector.set_thread_enabled(tid, enabled))
    }

    fn set_period(&self, tid: u32, period: u64) -> Result<u64> {
        self.lock().set_period(tid, period)
    }

    fn default_period(&self) -> u64 {
        self.lock().plan.period()
    }

    fn set_default_period(&self, period: u64) -> u64 {
        let mut collector = self.lock();
        collector.plan.set_period(period);
        collector.plan.period()
    }

    fn set_default_buffer(&self, samples: usize) {
        self.lock().settings.buffer = samples;
    }

    fn refresh_counts(&self, tid: Option<u32>, read: &mut dyn FnMut()) {
        let mut collector = self.lock();
        collector.refresh_counts(tid);
        read();
    }

    fn with_lock(&self, read: &mut dyn FnMut()) {
        let _guard = self.lock();
        read();
    }

    fn unsampled_threads(&self) -> UnsampledCounts {
        self.lock().unsampled.counts
    }

    fn notes(&self) -> Vec<String> {
        let collector = self.lock();
        let notes = collector.plan.notes().into_iter();
        let lost = collector.marks.as_ref().map_or(0, ThreadMarks::lost);
        let lost = (lost > 0).then(|| format!("marks of regions of interest lost: {lost}"));
        notes
            .chain(collector.last_error.clone())
            .chain(lost)
            .collect()
    }

    fn request_stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        wake(&self.signal);
    }

    fn detach_all(&self) {
        self.lock().detach_all();
    }
}

/// Reads the kernel's rings until the profiler is dropped. `signal` is readable after a change.
pub(crate) fn collect(shared: &SharedCollector, mut signal: UnixStream) {
    // A short time slice lets this thread run before others that woke earlier, if all CPUs are
    // busy.
    request_short_slices();
    let mut ready = Vec::new();
    while !shared.is_stopping.load(Ordering::Acquire) {
        let (numbers, mut fds, timeout_ms) = {
            let mut collector = shared.lock();
            collector.process_rings(&ready);
            collector.wait_targets()
        };
        fds.push(signal.as_raw_fd());
        let wait_results = perf::wait(&fds, timeout_ms);
        ready.clear();
        let ready_ones = numbers
            .iter()
            .zip(&wait_results)
            .filter(|n| *n.1 != PollResult::NotReady);
        ready.extend(ready_ones.map(|n| *n.0));
        if wait_results
            .last()
            .is_some_and(|&result| result != PollResult::NotReady)
        {
            while matches!(signal.read(&mut [0; 64]), Ok(64)) {}
            shared.lock().idle.resume_polling();
        }
    }
}
