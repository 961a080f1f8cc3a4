//! What is attached, and the thread that reads the kernel's rings.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use memgauge_host::sys::scheduling::ask_for_short_slices;
use memgauge_live::sample::attached::{Attached, Plan, ProcessCode};
use memgauge_live::sys::perf::{self, Said};

use crate::control::Control;
use crate::descriptors::{self, not_looked_at};
use crate::managed::{Born, Managed};
use crate::marks::{ThreadMarks, marks_of};
use crate::missed::MissedThreads;
use crate::pace::Pace;
use crate::registry::{Registry, SampledThread, State, wake};
use crate::rest::Rest;
use crate::ring::Ring;
use crate::settings::{Settings, WhenFull, affordable};
use crate::tasks::{Held, children, command, identity, threads};
use crate::{Error, ErrorKind, Result};

/// Time between two looks for threads that no record told of.
const LOOK_FOR_TASKS: Duration = Duration::from_millis(100);
/// Time between two looks at what sampling costs, where that is limited.
const WINDOW: Duration = Duration::from_millis(100);
/// Time between two looks where nothing can happen but what wakes by itself.
const IDLE_MS: i32 = 1000;
/// Numbers that are used again while they are looked at: so often is tried anew.
const ATTEMPTS: usize = 4;

/// Everything that is attached.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(crate) plan: Plan,
    pub(crate) on: bool,
    managed: BTreeMap<u64, Managed>,
    by_tid: HashMap<u32, u64>,
    /// Processes whose new threads are attached to.
    followed: BTreeSet<u32>,
    code: ProcessCode,
    next: u64,
    missed: MissedThreads,
    /// Why the last of them that lived was missed.
    pub(crate) trouble: Option<String>,
    looked: Instant,
    /// Part of threads' time that may be taken, and what a sample takes, nanoseconds.
    budget: Option<(f64, f64)>,
    paced: Instant,
    registry: Arc<Registry>,
    /// Where samples tell regions of interest.
    pub(crate) marks: Option<ThreadMarks>,
    rest: Rest,
}

impl Core {
    pub(crate) fn new(settings: Settings, registry: &Arc<Registry>) -> Result<Core> {
        let mut plan = settings.plan()?;
        check_event(&mut plan)?;
        let budget = settings
            .overhead
            .map(|allowed| affordable(&mut plan, allowed));
        let marks = settings.regions.then(|| marks_of(&plan)).transpose()?;
        Ok(Core {
            plan,
            budget: budget.transpose()?,
            paced: Instant::now(),
            settings,
            on: true,
            managed: BTreeMap::new(),
            by_tid: HashMap::new(),
            followed: BTreeSet::new(),
            code: ProcessCode::default(),
            next: 0,
            missed: MissedThreads::default(),
            trouble: None,
            looked: Instant::now(),
            registry: Arc::clone(registry),
            marks,
            rest: Rest::default(),
        })
    }

    /// Attaches to a thread and lets sampling begin.
    pub(crate) fn add_thread(&mut self, tid: u32) -> Result<()> {
        let added = self.try_add(tid, false)?;
        added.map(drop).ok_or_else(|| nobody("add", tid))
    }

    /// `None` where the thread has ended, or is about to.
    fn try_add(&mut self, tid: u32, follows: bool) -> Result<Option<u64>> {
        if self.by_tid.contains_key(&tid) {
            let message = format!("failed to add thread `{tid}`: it was added before");
            return Err(Error::usage(message));
        }
        self.check_room(tid)?;
        for _ in 0..ATTEMPTS {
            let look = |tid| Ok((identity(tid)?, Held::of(tid)?));
            let looked = look(tid).map_err(|e| not_looked_at(tid, e))?;
            let (Some(before), Some(held)) = looked else {
                return Ok(None);
            };
            // Wakers take no descriptors from threads that are added.
            self.rest.end();
            let attached = self.plan.attach(tid, follows);
            // After it was attached to: from then on the kernel ends the sampling of a
            // program that changes its user.
            let allowed = self.settings.only_user.is_none_or(|u| held.belongs_to(u));
            if identity(tid).map_err(|e| not_looked_at(tid, e))? != Some(before) {
                // It has ended, and another may have its number.
                continue;
            }
            if !allowed {
                return Err(not_own(tid));
            }
            let Some(attached) = attached? else {
                return Ok(None);
            };
            descriptors::check(tid, attached.highest_descriptor())?;
            return Ok(Some(self.attached(attached, before.pid, follows)));
        }
        Ok(None)
    }

    fn check_room(&self, tid: u32) -> Result<()> {
        if self.registry.has_room(&self.settings) {
            return Ok(());
        }
        let most = self.settings.most_threads;
        let message = format!(
            "failed to add thread `{tid}`: this profiler has {most} threads, the most it may \
             have: delete some, or clean up those that have ended"
        );
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    fn attached(&mut self, attached: Attached, pid: u32, follows: bool) -> u64 {
        let refuses = self.settings.when_full == WhenFull::RefuseNewest;
        let (ring, writer) = Ring::new(self.settings.buffer, refuses);
        let (number, tid) = (self.next, attached.tid());
        self.next += 1;
        let thread = Arc::new(SampledThread::new(number, (pid, tid), ring));
        thread.set_command(&command(tid));
        thread.set_state(State::Started);
        self.registry.add(&thread);
        if !self.managed.values().any(|m| m.thread.pid() == pid) {
            self.code.existing(pid);
        }
        let managed = Managed {
            thread,
            attached,
            writer,
            follows,
            wanted: true,
            batch: Vec::new(),
            pace: Pace::default(),
            phases: self.settings.phases.then(Default::default),
        };
        if self.on {
            managed.attached.start();
        }
        managed.look();
        self.managed.insert(number, managed);
        self.by_tid.insert(tid, number);
        number
    }

    /// Attaches to all threads of a process, and follows it.
    pub(crate) fn add_process(&mut self, pid: u32) -> Result<usize> {
        let mut added = Vec::new();
        if let Err(e) = self.add_threads(pid, &mut added) {
            // All or nothing.
            added.iter().for_each(|&n| self.finish(n, State::Deleted));
            self.registry.remove(|t| added.contains(&t.number));
            return Err(e);
        }
        if added.is_empty() && !self.by_tid.contains_key(&pid) {
            return Err(nobody("add", pid));
        }
        self.followed.insert(pid);
        for managed in self.managed.values_mut() {
            managed.follows |= managed.thread.pid() == pid;
        }
        Ok(added.len())
    }

    /// Attaches to all threads of a process, also those that it starts meanwhile.
    fn add_threads(&mut self, pid: u32, added: &mut Vec<u64>) -> Result<()> {
        for _ in 0..ATTEMPTS {
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
        let mut all = threads(pid).map_err(|e| not_looked_at(pid, e))?;
        all.retain(|tid| !self.by_tid.contains_key(tid));
        Ok(all)
    }

    fn number(&self, what: &str, tid: u32) -> Result<u64> {
        let number = self.by_tid.get(&tid).copied();
        number.ok_or_else(|| {
            let message = format!(
                "failed to {what} thread `{tid}`: it was not added, or it has ended or was deleted"
            );
            Error::new(ErrorKind::NoSuchTask, message)
        })
    }

    /// Lets a thread's sampling begin or end; what was sampled stays.
    pub(crate) fn want(&mut self, tid: u32, wanted: bool) -> Result<()> {
        let number = self.number(if wanted { "start" } else { "stop" }, tid)?;
        if let Some(managed) = self.managed.get_mut(&number) {
            managed.wanted = wanted;
            managed.thread.set_state(managed.state());
        }
        self.switch(number);
        Ok(())
    }

    /// Switches a thread's event on or off, as it is wanted; off: reads what it left.
    fn switch(&mut self, number: u64) {
        let Some(managed) = self.managed.get(&number) else {
            return;
        };
        match self.on && managed.wanted {
            true => managed.attached.start(),
            false => {
                managed.attached.stop();
                self.drain(&[number]);
            }
        }
    }

    pub(crate) fn turn(&mut self, on: bool) {
        self.on = on;
        let all: Vec<u64> = self.managed.keys().copied().collect();
        all.into_iter().for_each(|number| self.switch(number));
    }

    /// Changes a thread's period between two samples.
    pub(crate) fn set_period(&mut self, tid: u32, period: u64) -> Result<u64> {
        let number = self.number("change the period of", tid)?;
        self.change_period(number, period)
    }

    fn change_period(&mut self, number: u64, period: u64) -> Result<u64> {
        let period = self.plan.possible_period(period);
        if let Some(managed) = self.managed.get(&number) {
            managed.attached.stop();
        }
        // All that is read until here was taken at the period before.
        self.drain(&[number]);
        let Some(managed) = self.managed.get_mut(&number) else {
            // It has ended meanwhile.
            return Ok(period);
        };
        let changed = managed.attached.set_period(period);
        if self.on && managed.wanted {
            managed.attached.start();
        }
        managed.look();
        changed.map(|()| period)
    }

    pub(crate) fn delete_thread(&mut self, tid: u32) -> Result<()> {
        let number = self.number("delete", tid)?;
        self.finish(number, State::Deleted);
        Ok(())
    }

    pub(crate) fn delete_process(&mut self, pid: u32) -> Result<usize> {
        // What they have started so far is followed, or deleted with them.
        self.drain(&self.threads_of(pid));
        let was_followed = self.followed.remove(&pid);
        let all = self.threads_of(pid);
        if all.is_empty() && !was_followed {
            return Err(nobody("delete", pid));
        }
        let deleted = all.len();
        all.into_iter().for_each(|n| self.finish(n, State::Deleted));
        Ok(deleted)
    }

    fn threads_of(&self, pid: u32) -> Vec<u64> {
        let all = self.managed.iter();
        let of = all.filter(|(_, managed)| managed.thread.pid() == pid);
        of.map(|(number, _)| *number).collect()
    }

    /// Reads the last samples of a thread and lets go of it. What a deleted one started since
    /// it was last read is not followed.
    fn finish(&mut self, number: u64, state: State) {
        if let Some(managed) = self.managed.get_mut(&number) {
            managed.attached.stop();
            managed.follows &= state != State::Deleted;
        }
        self.drain(&[number]);
        let Some(managed) = self.managed.remove(&number) else {
            return;
        };
        managed.look();
        managed.thread.set_state(state);
        let (pid, tid) = (managed.thread.pid(), managed.thread.tid());
        if self.by_tid.get(&tid) == Some(&number) {
            self.by_tid.remove(&tid);
        }
        if let Some(marks) = self.marks.as_mut().filter(|_| state == State::Ended) {
            marks.forget((pid, tid));
        }
        if !self.managed.values().any(|m| m.thread.pid() == pid) {
            self.code.ended(pid);
            self.followed.remove(&pid);
        }
        self.registry.changed();
        self.registry.wake(&[number]);
    }

    /// Reads everybody's last samples and lets go of all.
    pub(crate) fn let_go(&mut self) {
        let all: Vec<u64> = self.managed.keys().copied().collect();
        all.into_iter().for_each(|n| self.finish(n, State::Deleted));
    }

    /// Brings a thread's counts up to date; all threads' for `None`.
    pub(crate) fn look(&mut self, tid: Option<u32>) {
        let one = tid.map(|tid| self.by_tid.get(&tid).copied());
        let numbers: Vec<u64> = match one {
            Some(number) => number.into_iter().collect(),
            None => self.managed.keys().copied().collect(),
        };
        self.drain(&numbers);
        let all = numbers.iter().filter_map(|n| self.managed.get(n));
        all.for_each(Managed::look);
    }

    /// Reads the rings of these threads, and attaches to what they started; whether there
    /// were samples.
    fn drain(&mut self, numbers: &[u64]) -> bool {
        let (mut born, mut told) = (Vec::new(), Vec::new());
        for number in numbers {
            let Some(managed) = self.managed.get_mut(number) else {
                continue;
            };
            let marks = (&mut self.marks, &*self.registry);
            let drained = managed.drain(&mut self.code, marks, &mut born);
            if drained.samples {
                told.push(*number);
            }
            if let Some((pid, tid)) = drained.replaced {
                self.replaced(*number, pid, tid);
            }
        }
        if !told.is_empty() {
            self.registry.wake(&told);
        }
        for Born { pid, tid } in born {
            self.follow(pid, tid);
        }
        !told.is_empty()
    }

    /// By exec a thread gets its process's number.
    fn replaced(&mut self, number: u64, pid: u32, tid: u32) {
        let Some(managed) = self.managed.get(&number) else {
            return;
        };
        let before = managed.thread.tid();
        managed.thread.pid.store(pid, Ordering::Relaxed);
        managed.thread.tid.store(tid, Ordering::Relaxed);
        if self.by_tid.get(&before) == Some(&number) {
            self.by_tid.remove(&before);
        }
        self.by_tid.insert(tid, number);
    }

    /// A thread or process was started by one that is followed. False where it lives and
    /// could not be attached to.
    fn follow(&mut self, pid: u32, tid: u32) -> bool {
        if self.by_tid.contains_key(&tid) {
            return true;
        }
        match self.try_add(tid, true) {
            Ok(Some(_)) => {}
            missed => return self.miss(tid, missed.err()),
        }
        self.followed.insert(pid);
        // What it started before it was attached to.
        for child in children(pid, tid) {
            self.follow(child, child);
        }
        true
    }

    /// Counts a thread that is not sampled, once: it is tried again at each look. `why` it
    /// could not be attached to; `None`: it has ended, which is returned.
    fn miss(&mut self, tid: u32, why: Option<Error>) -> bool {
        let ended = why.is_none();
        self.missed.note(tid, ended);
        self.trouble = why.map(|e| e.to_string()).or(self.trouble.take());
        ended
    }

    /// Threads of followed processes that no record told of: those that a thread started
    /// before it was attached to.
    fn look_for_tasks(&mut self) {
        if self.looked.elapsed() < LOOK_FOR_TASKS {
            return;
        }
        self.looked = Instant::now();
        let (mut there, mut goes_on) = (BTreeSet::new(), true);
        for pid in self.followed.clone() {
            let Ok(new) = self.not_attached(pid) else {
                // The next look will tell.
                return;
            };
            for tid in new {
                there.insert(tid);
                // What one was refused, others that were refused would be, too.
                if goes_on || !self.missed.has(tid) {
                    goes_on &= self.follow(pid, tid);
                }
            }
        }
        self.missed.keep(&there);
    }

    /// Gives threads that cost too much, or that may cost more, another period.
    fn keep_to_budget(&mut self) {
        let Some(budget) = self.budget.filter(|_| self.paced.elapsed() >= WINDOW) else {
            return;
        };
        self.paced = Instant::now();
        let mut next = Vec::new();
        for (number, managed) in self.managed.iter_mut().filter(|m| self.on && m.1.wanted) {
            next.extend(managed.end_window(budget).map(|period| (*number, period)));
        }
        for (number, period) in next {
            if let Err(e) = self.change_period(number, period) {
                self.trouble = Some(e.to_string());
            }
        }
    }

    /// One look at everything. `ready`: threads whose descriptor said something.
    fn round(&mut self, ready: &[u64]) {
        let ended = |n: &&u64| self.managed.get(n).is_some_and(|m| m.attached.has_ended());
        let ended: Vec<u64> = ready.iter().filter(ended).copied().collect();
        let all: Vec<u64> = self.managed.keys().copied().collect();
        let told = self.drain(&all);
        ended.into_iter().for_each(|n| self.finish(n, State::Ended));
        if let Some(marks) = &mut self.marks {
            // Also where nobody is sampled: programs must find room for theirs.
            marks.read();
        }
        self.look_for_tasks();
        self.keep_to_budget();
        match told || !ready.is_empty() || self.marks.is_some() {
            true => self.rest.end(),
            false => self.may_rest(),
        }
    }

    /// Where all threads that are sampled sleep, their rings are not looked at until one
    /// of them runs again.
    fn may_rest(&mut self) {
        let on = self.on;
        let sampled = self.managed.iter().filter(|m| on && m.1.wanted);
        self.rest
            .look(sampled.map(|(n, m)| (*n, &m.attached)), &self.plan);
    }

    /// What to wait for, and how long.
    fn awaited(&self) -> (Vec<u64>, Vec<RawFd>, i32) {
        let (mut numbers, mut fds): (Vec<u64>, Vec<RawFd>) = self
            .managed
            .iter()
            .flat_map(|(number, m)| {
                let both = m.attached.herald().into_iter().chain([m.attached.as_fd()]);
                both.map(|fd| (*number, fd.as_raw_fd()))
            })
            .unzip();
        let sampled = |m: &Managed| self.on && m.wanted;
        let looks = !self.rest.is_deep() && self.managed.values().any(sampled);
        let timeout_ms = match self.marks.is_some() || looks {
            true => self.settings.latency.look_every_ms(),
            // Threads that are followed tell of what they start.
            false => IDLE_MS,
        };
        for (number, fd) in self.rest.wakers() {
            numbers.push(number);
            fds.push(fd);
        }
        (numbers, fds, timeout_ms)
    }
}

/// An event that this machine lacks is refused before there is a thread to sample.
fn check_event(plan: &mut Plan) -> Result<()> {
    /// The calling thread, for the kernel.
    const OWN: u32 = 0;
    match plan.attach(OWN, false) {
        Err(e) if e.kind() == ErrorKind::Missing => Err(e),
        // What rights and limits allow depends on the thread, and may change.
        _ => Ok(()),
    }
}

pub(crate) fn nobody(what: &str, id: u32) -> Error {
    let message = format!("failed to {what} `{id}`: no such process or thread");
    Error::new(ErrorKind::NoSuchTask, message)
}

fn not_own(tid: u32) -> Error {
    let message = format!(
        "failed to add `{tid}`: not allowed to this user: its process belongs to another user, \
         or is guarded as set-uid programs are"
    );
    Error::new(ErrorKind::Refused, message)
}

/// What the profiler and its thread share.
pub(crate) struct Common {
    core: Mutex<Core>,
    over: AtomicBool,
    /// Tells the thread that something was changed.
    signal: UnixStream,
}

impl Common {
    pub(crate) fn new(core: Core, signal: UnixStream) -> Common {
        Common {
            core: Mutex::new(core),
            over: AtomicBool::new(false),
            signal,
        }
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        // Between two calls everything is in order, also where one of them panicked.
        self.core.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Does what makes more to wait for.
    fn change<T>(&self, what: impl FnOnce(&mut Core) -> T) -> T {
        let result = what(&mut self.core());
        wake(&self.signal);
        result
    }
}

impl Control for Common {
    fn turn(&self, on: bool) {
        self.change(|core| core.turn(on));
    }

    fn add_thread(&self, tid: u32) -> Result<()> {
        self.change(|core| core.add_thread(tid))
    }

    fn add_processes(&self, pids: &[u32]) -> Vec<Result<usize>> {
        self.change(|core| pids.iter().map(|&pid| core.add_process(pid)).collect())
    }

    fn delete_thread(&self, tid: u32) -> Result<()> {
        self.core().delete_thread(tid)
    }

    fn delete_process(&self, pid: u32) -> Result<usize> {
        self.core().delete_process(pid)
    }

    fn want(&self, tid: u32, wanted: bool) -> Result<()> {
        self.change(|core| core.want(tid, wanted))
    }

    fn set_period(&self, tid: u32, period: u64) -> Result<u64> {
        self.core().set_period(tid, period)
    }

    fn period_of_new(&self) -> u64 {
        self.core().plan.period()
    }

    fn set_period_of_new(&self, period: u64) -> u64 {
        let mut core = self.core();
        core.plan.set_period(period);
        core.plan.period()
    }

    fn set_buffer_of_new(&self, samples: usize) {
        self.core().settings.buffer = samples;
    }

    fn look(&self, tid: Option<u32>, read: &mut dyn FnMut()) {
        let mut core = self.core();
        core.look(tid);
        read();
    }

    fn hold(&self, read: &mut dyn FnMut()) {
        let _nothing_moves = self.core();
        read();
    }

    fn missed(&self) -> (u64, u64) {
        let core = self.core();
        (core.missed.ended, core.missed.alive)
    }

    fn notes(&self) -> Vec<String> {
        let core = self.core();
        let notes = core.plan.notes().into_iter();
        let lost = core.marks.as_ref().map_or(0, ThreadMarks::lost);
        let lost = (lost > 0).then(|| format!("marks of regions of interest lost: {lost}"));
        notes.chain(core.trouble.clone()).chain(lost).collect()
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
        wake(&self.signal);
    }

    fn let_go(&self) {
        self.core().let_go();
    }
}

/// Reads the kernel's rings until the profiler is dropped. `signal` is readable when
/// something was changed.
pub(crate) fn collect(common: &Common, mut signal: UnixStream) {
    // Where all processors are busy: else others that woke up before it go first.
    ask_for_short_slices();
    let mut ready = Vec::new();
    while !common.over.load(Ordering::Acquire) {
        let (numbers, mut fds, timeout_ms) = {
            let mut core = common.core();
            core.round(&ready);
            core.awaited()
        };
        fds.push(signal.as_raw_fd());
        let said = perf::wait(&fds, timeout_ms);
        ready.clear();
        let ready_ones = numbers.iter().zip(&said).filter(|n| *n.1 != Said::Nothing);
        ready.extend(ready_ones.map(|n| *n.0));
        if said.last().is_some_and(|&said| said != Said::Nothing) {
            while matches!(signal.read(&mut [0; 64]), Ok(64)) {}
            common.core().rest.end();
        }
    }
}
