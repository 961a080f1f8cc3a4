//! Follows the processes and threads of a session: their starts and ends, and the order in which
//! their words are replayed. A [`WordReader`] interprets the words.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use memgauge_trace::LossKind;

use crate::engine::catalogue::{Catalogue, CatalogueEvent};
use crate::engine::session::{EngineSession, NewEntry, ProcessEntry, ThreadRing};
use crate::engine::sync::{Before, MarkDependency};
use crate::engine::wire;
use crate::time::sleep_gate::{
    FurthestBehind, RunningThreads, ThreadActivity, ThreadProgress, TimedWait, WorkTime, is_running,
};
use crate::time::thread_starts::{START_TIMEOUT, StartMark, ThreadStarts};
use memgauge_host::sys::process::Watched;

pub(crate) mod pace;
mod turns;

use turns::Turn;

pub(crate) use turns::words as turn_words;

/// A followed process, from its fork or exec to its end or next exec.
pub(crate) struct EmulatedProcess<P> {
    pub(crate) entry: ProcessEntry,
    /// The reader's data about it.
    pub(crate) state: P,
    watched: Watched,
    /// Number of forked children that have appeared.
    children: u32,
    live_threads: u32,
    /// Time at which it appeared. `None` once one of its threads has.
    without_threads: Option<Instant>,
    ended: bool,
    /// True if it exited or was killed, and did not exec.
    pub(crate) died: bool,
}

/// A followed thread.
pub(crate) struct EmulatedThread<T> {
    pub(crate) ring: ThreadRing,
    /// The reader's data about it.
    pub(crate) state: T,
    /// Mark at which its replay stopped until others have been replayed.
    blocked_at: Option<MarkDependency>,
    /// Number of the last replayed mark.
    passed: u64,
    /// True if its start is known.
    has_begun: bool,
    activity: ThreadActivity,
    /// Number of words in its next turn, at most [`Followed::turn_words`].
    turn_words: usize,
}

impl<T> EmulatedThread<T> {
    /// Returns true if it still runs and all its words have been replayed, so that its next ones
    /// may come at any later virtual time.
    fn awaits_words(&mut self, at: Instant) -> bool {
        self.blocked_at.is_none()
            && self.ring.unread_words() == 0
            && self
                .activity
                .runs(self.ring.calls(), at, || is_running(self.ring.tid))
    }

    /// Returns true if it has an unread mark with a number below `number`.
    fn has_marks_before(&self, number: u64) -> bool {
        self.passed < number && self.passed < self.ring.marked()
    }
}

impl<P> EmulatedProcess<P> {
    /// Returns true if a thread continues on a stack that its process was forked with.
    pub(crate) fn continues_parent_stack(&self, ring: &ThreadRing) -> bool {
        self.entry.parent.is_some() && ring.tid == self.entry.pid
    }

    /// Returns true if its first thread has not appeared.
    fn is_about_to_begin(&self, at: Instant) -> bool {
        let since = self.without_threads.filter(|_| !self.ended);
        since.is_some_and(|since| at.duration_since(since) < START_TIMEOUT)
    }
}

/// Origin of a process.
pub(crate) struct Origin<'a, P> {
    /// Process as it was before its exec. All its words have been replayed.
    pub(crate) before: Option<&'a EmulatedProcess<P>>,
    /// The process it was forked from, and the number of that process's blocks at the fork.
    pub(crate) parent: Option<(&'a EmulatedProcess<P>, u32)>,
}

/// Words of a thread.
pub(crate) struct ThreadWords<'a> {
    pub(crate) all: &'a [AtomicU64],
    /// Index of the first unread word.
    pub(crate) from: usize,
    /// True if no words will be added.
    pub(crate) whole: bool,
    /// Marks of other threads up to this number have been replayed.
    pub(crate) granted: u64,
}

/// Progress of a replay.
pub(crate) struct ReplayProgress {
    /// Index after the last replayed word.
    pub(crate) to: usize,
    /// Number of the last replayed wait mark, or 0.
    pub(crate) passed: u64,
    /// Mark at which others must be replayed first.
    pub(crate) blocked_at: Option<MarkDependency>,
    /// True if lines moved between the thread's core and others.
    pub(crate) contends: bool,
}

/// Interprets the words of the followed threads.
pub(crate) trait WordReader {
    type Process;
    type Thread;

    /// Reads new code of a process, before the words that refer to it.
    fn catalogue(state: &mut Self::Process) -> &mut Catalogue;

    /// Creates the data for a process that has appeared.
    fn begin_process(
        &mut self,
        entry: &ProcessEntry,
        origin: Origin<'_, Self::Process>,
    ) -> Self::Process;

    /// Creates the data for a thread that has appeared.
    fn begin_thread(
        &mut self,
        process: &EmulatedProcess<Self::Process>,
        ring: &ThreadRing,
    ) -> Self::Thread;

    /// Called once before a thread's first word, when everything before its start has been
    /// replayed.
    fn begin(&mut self, _: &mut EmulatedProcess<Self::Process>, _tid: u32, _: &mut Self::Thread) {}

    /// Returns the starts that were replayed since the last call.
    fn started(&mut self) -> Vec<StartMark> {
        Vec::new()
    }

    /// Returns the time of a process that has no thread yet.
    fn process_now(&self, _: &Self::Process) -> u64 {
        0
    }

    /// Returns true if a thread may have been asleep when its process ended. It ends after the
    /// others, one of which may have ended the process.
    fn sleeps(&self, _tid: u32) -> bool {
        false
    }

    /// Returns the virtual time of a thread. Threads with lower times are replayed first.
    fn now(&self, _: &Self::Thread) -> u64 {
        0
    }

    /// Maximum length of a turn with contention for cache lines, in nanoseconds.
    fn contended_turn_ns(&self) -> u64 {
        u64::MAX
    }

    /// Returns for how long a thread has executed. `None` if time is not modelled.
    fn busy(&self, _: &Self::Thread) -> Option<u64> {
        None
    }

    /// Reads a record of a process other than code, which ends at this byte of its catalogue.
    fn observe(
        &mut self,
        process: &mut EmulatedProcess<Self::Process>,
        catalogue_event: CatalogueEvent,
        bytes: u64,
    );

    /// Replays words of thread `tid`.
    fn read(
        &mut self,
        process: &mut EmulatedProcess<Self::Process>,
        tid: u32,
        thread: &mut Self::Thread,
        words: &ThreadWords<'_>,
    ) -> ReplayProgress;

    /// Handles a thread that has ended and been replayed completely.
    fn end_thread(
        &mut self,
        process: &mut EmulatedProcess<Self::Process>,
        thread: EmulatedThread<Self::Thread>,
    );

    /// Handles a process that has ended with its threads, and whose forked children have appeared.
    fn end_process(&mut self, process: EmulatedProcess<Self::Process>);

    /// Counts a loss, for a process if it is known.
    fn lose(
        &mut self,
        process: Option<&EmulatedProcess<Self::Process>>,
        kind: LossKind,
        count: u64,
        detail: &str,
    );

    /// Returns true if nothing more needs to be read.
    fn has_enough(&self) -> bool {
        false
    }
}

/// Number of times that waiting threads continue before ended threads are checked.
const MAX_CONTINUATIONS: usize = 256;

/// Maximum number of started but unread threads. Others may not start meanwhile.
const MAX_UNREAD_THREADS: usize = 8;

/// Number of new processes after which ended ones are checked, which are kept until then.
const MAX_UNREAPED_PROCESSES: usize = 8;

/// Time for which processes that outlive the command are read. Most end soon, such as the first
/// commands of a pipe.
const OUTLIVING_READ_TIME: Duration = Duration::from_millis(100);

/// Host time after a sleep for which new threads wait until everything before their start has been
/// read. A thread that polls and sleeps is not held while it is awake or asleep on the host, which
/// a busy host prolongs. A program could start and finish all its short threads meanwhile.
const SLEEPER_AWAKE: Duration = Duration::from_millis(100);

/// How far to read a thread's words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Full blocks of the ring.
    Sealed,
    /// Everything that has been written.
    Now,
    /// To the last word, because the thread has ended.
    End,
}

/// All followed processes and threads.
pub(crate) struct Followed<R: WordReader> {
    pub(crate) reader: R,
    pub(crate) processes: BTreeMap<u32, EmulatedProcess<R::Process>>,
    pub(crate) threads: Vec<EmulatedThread<R::Thread>>,
    pub(crate) appeared: AppearedCounts,
    /// True after the end of the command. No thread gets more room then.
    is_over: bool,
    /// True if a thread that slept is held.
    holds: bool,
    /// Host time at which a held thread was last seen.
    held_at: Option<Instant>,
    /// True if the held threads were woken to check for their events and nobody has run since.
    held_were_woken: bool,
    work_time: WorkTime,
    starts: ThreadStarts,
    /// Maximum number of words of a turn.
    turn_words: usize,
    /// Number of processes that have appeared since ended ones were checked.
    unreaped: usize,
}

/// Number of processes and threads that have appeared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AppearedCounts {
    pub(crate) processes: u32,
    pub(crate) threads: u32,
}

impl<R: WordReader> Followed<R> {
    pub(crate) fn new(reader: R, turn_words: usize) -> Followed<R> {
        Followed {
            reader,
            processes: BTreeMap::new(),
            threads: Vec::new(),
            appeared: AppearedCounts::default(),
            is_over: false,
            holds: false,
            held_at: None,
            held_were_woken: false,
            work_time: WorkTime::default(),
            starts: ThreadStarts::default(),
            turn_words,
            unreaped: 0,
        }
    }

    /// Reads what is available. With `eager`, also blocks that are still being written. Returns
    /// true if there was anything.
    pub(crate) fn poll(&mut self, session: &mut EngineSession, eager: bool) -> bool {
        let mut busy = self.add_new(session);
        // A sleep that has just been held ends only when everything before it has been read.
        let is_held = self.threads.iter().any(|t| t.ring.held().is_some());
        let until = match eager || is_held {
            true => Until::Now,
            false => Until::Sealed,
        };
        let limit_ns = match self.is_over {
            true => None,
            false => Some(self.replay_limit_ns(Instant::now())),
        };
        busy |= match self.threads.len() {
            1 => self.step(0, until, 0, wire::BLOCK_WORDS),
            _ => self.take_turns(until, limit_ns),
        };
        busy |= self.continue_waiting_threads(session, limit_ns);
        self.end_sleeps(session);
        if self.must_reap() {
            self.reap(session, false);
        }
        busy
    }

    /// Returns true if so many processes have appeared that ended ones must be checked.
    fn must_reap(&self) -> bool {
        self.unreaped >= MAX_UNREAPED_PROCESSES
    }

    /// Returns true if a thread that slept is held.
    pub(crate) fn holds(&self) -> bool {
        self.holds
    }

    /// Checks which threads run, and ends the sleeps of threads that are not ahead of those. A held
    /// thread that sleeps itself comes before others with later deadlines.
    fn end_sleeps(&mut self, session: &EngineSession) {
        let at = Instant::now();
        let mut running = RunningThreads::Nobody;
        let mut behind = FurthestBehind::default();
        let mut timed_waits: Vec<TimedWait> = Vec::new();
        self.holds = false;
        for (index, thread) in self.threads.iter_mut().enumerate() {
            let Some(busy_ns) = self.reader.busy(&thread.state) else {
                return;
            };
            let now_ns = self.reader.now(&thread.state);
            let (ring, activity) = (&thread.ring, &mut thread.activity);
            let unread = ring.unread_words();
            let progress = ThreadProgress {
                calls: ring.calls(),
                busy_ns,
                unread_words: unread,
            };
            let counts_as_running = activity.update(progress, at, || is_running(ring.tid));
            let process = self.processes.get(&ring.process);
            let has_ended = || ring.finished() || process.is_none_or(|p| p.watched.ended());
            let counts_as_running =
                counts_as_running && (unread > 0 || !activity.is_over(at, has_ended));
            if counts_as_running {
                running.add(index);
            }
            if let Some(held) = thread.ring.held() {
                self.holds = true;
                behind.add(index, now_ns.saturating_add(held.asked_ns));
            } else if counts_as_running {
                behind.add(index, now_ns);
            } else if thread.blocked_at.is_none() {
                timed_waits.extend(thread.ring.time_limit().map(|limit| TimedWait {
                    now_ns,
                    end_ns: now_ns.saturating_add(limit.ns),
                    deadline_since: limit.by_deadline.then(|| thread.activity.called_at()),
                }));
            }
        }
        let fresh = self.processes.values().filter(|p| p.is_about_to_begin(at));
        let fresh = fresh.map(|p| self.reader.process_now(&p.state));
        for ns in fresh.chain(self.starts.pending_times(at)) {
            running = RunningThreads::Several;
            behind.add(usize::MAX, ns);
        }
        if self.holds {
            self.held_at = Some(at);
        }
        let held_lately = |held_at| at.duration_since(held_at) < SLEEPER_AWAKE;
        session.publish_holds(self.held_at.is_some_and(held_lately));
        let (total, more) = self.work_time.update(running, at);
        session.publish_work_time(total);
        if let RunningThreads::Only(index) = running {
            self.threads[index].ring.add_alone(more);
        }
        if !self.holds {
            return;
        }
        if running != RunningThreads::Nobody {
            self.held_were_woken = false;
        } else if self.is_somebody_woken(session) {
            self.held_were_woken = false;
            return;
        } else if !self.held_find_nothing() {
            return;
        }
        for (index, thread) in self.threads.iter_mut().enumerate() {
            let held = thread.ring.held();
            let Some(held) = held.filter(|_| thread.ring.drained() && thread.blocked_at.is_none())
            else {
                continue;
            };
            let now_ns = self.reader.now(&thread.state);
            let since = thread.activity.held_since(held.number, at);
            let earlier = timed_waits
                .iter()
                .filter(|wait| wait.comes_before(now_ns, since));
            let others = behind.others(index).into_iter();
            let others = others.chain(earlier.map(|wait| wait.end_ns)).min();
            let reached_ns = others.map_or(held.asked_ns, |ns| ns.saturating_sub(now_ns));
            thread.ring.report_progress(&held, reached_ns);
        }
    }

    /// Returns true if a thread runs as soon as the host schedules it, or has started to since the
    /// check.
    fn is_somebody_woken(&self, session: &EngineSession) -> bool {
        let mut others = self.threads.iter().filter(|t| t.ring.held().is_none());
        let mut all = self.threads.iter();
        others.any(|t| t.activity.may_be_woken() && is_running(t.ring.tid))
            || all.any(|t| t.activity.has_moved(t.ring.calls(), t.ring.unread_words()))
            || !session.is_caught_up()
    }

    /// Returns true if no held thread finds the event it waits for while nobody else runs.
    ///
    /// A held thread checks for its event only every few milliseconds. Meanwhile, the thread that
    /// woke it may already wait for it in turn, so that nobody seems to run. Ending the sleep with
    /// the earliest deadline would then move an unrelated thread ahead to the end of its timeout.
    /// All held threads are therefore woken to check first, and sleep again if they find nothing.
    fn held_find_nothing(&mut self) -> bool {
        let held = self.threads.iter().filter(|t| t.ring.held().is_some());
        if held.clone().nth(1).is_none() {
            // A single thread checks when its sleep ends.
            return true;
        }
        if !self.held_were_woken {
            held.for_each(|t| t.ring.wake_held());
            self.held_were_woken = true;
            return false;
        }
        !held.clone().any(|t| is_running(t.ring.tid))
    }

    /// Reads what the ended command and its children left. Returns the number of processes that
    /// still run. Words that they write later are not read. Otherwise a fast writer could keep the
    /// recorder here forever.
    pub(crate) fn read_to_the_end(&mut self, session: &mut EngineSession) -> u64 {
        let ended = Instant::now();
        while self.poll(session, true)
            && (ended.elapsed() < OUTLIVING_READ_TIME || self.live_processes() == 0)
        {}
        self.reap(session, false);
        let still_running = self.live_processes();
        session.stop();
        self.is_over = true;
        self.threads.iter_mut().for_each(|t| t.ring.close());
        self.poll(session, true);
        self.reap(session, true);
        still_running
    }

    /// Returns true if a process has died whose threads have not ended.
    fn has_dead_threads(&self) -> bool {
        let mut processes = self.processes.values();
        processes.any(|p| p.died && p.live_threads > 0)
    }

    /// Adds the processes and threads that have appeared. Returns true if there were any.
    fn add_new(&mut self, session: &mut EngineSession) -> bool {
        let mut any = false;
        while let Some(entry) = session.next_entry() {
            any = true;
            match entry {
                NewEntry::Process(entry) => self.add_process(entry),
                NewEntry::Thread(ring) => self.add_thread(ring),
            }
        }
        let new = self.threads.iter().filter(|t| !t.has_begun).count();
        session.publish_crowded(new >= MAX_UNREAD_THREADS);
        session.publish_seen();
        any
    }

    fn add_process(&mut self, entry: ProcessEntry) {
        self.appeared.processes += 1;
        self.unreaped += 1;
        let number = entry.number;
        self.starts.thread_appeared(entry.start_id);
        let before = self.end_by_exec(entry.pid);
        if let Some((owner, _)) = entry.parent {
            self.read_catalogue(owner);
            if let Some(parent) = self.processes.get_mut(&owner) {
                parent.children += 1;
            }
        }
        let known = |number: u32| self.processes.get(&number);
        let parent = entry
            .parent
            .and_then(|(owner, blocks)| Some((known(owner)?, blocks)));
        let origin = Origin {
            before: before.and_then(known),
            parent,
        };
        let process = EmulatedProcess {
            state: self.reader.begin_process(&entry, origin),
            watched: Watched::new(entry.pid),
            children: 0,
            live_threads: 0,
            without_threads: Some(Instant::now()),
            ended: false,
            died: false,
            entry,
        };
        self.processes.insert(number, process);
    }

    /// Ends a process that becomes another program by exec. Returns its number. Its threads have
    /// stopped and are read to their ends, where the next program begins.
    fn end_by_exec(&mut self, pid: u32) -> Option<u32> {
        let mut before = self.processes.iter_mut().rev();
        let (&number, old) = before.find(|(_, p)| p.entry.pid == pid && !p.ended)?;
        old.ended = true;
        self.read_what_is_written();
        while self.is_any_blocked_in(number) {
            self.continue_first_waiting_thread(None);
        }
        self.end_threads(true, |ring, _| ring.process == number);
        Some(number)
    }

    /// Returns true if a thread of a process waits for others to be replayed.
    fn is_any_blocked_in(&self, number: u32) -> bool {
        let mut threads = self.threads.iter();
        threads.any(|t| t.ring.process == number && t.blocked_at.is_some())
    }

    fn add_thread(&mut self, mut ring: ThreadRing) {
        if self.is_over {
            ring.close();
        }
        let Some(process) = self.processes.get_mut(&ring.process) else {
            let why = "its process could not be opened";
            ring.leave();
            return self.reader.lose(None, LossKind::ThreadNotRecorded, 1, why);
        };
        ring.translate_tid(&process.entry);
        self.appeared.threads += 1;
        process.live_threads += 1;
        process.without_threads = None;
        if ring.start_id != process.entry.start_id {
            self.starts.thread_appeared(ring.start_id);
        }
        let state = self.reader.begin_thread(process, &ring);
        // A forked process copies its parent's state, so the parent must have been read first.
        let before = match ring.start_id == process.entry.start_id {
            true => Before::Marks,
            false => Before::Start,
        };
        let blocked_at = (ring.start_id > 0).then_some(MarkDependency {
            number: ring.start_id,
            before,
        });
        self.threads.push(EmulatedThread {
            has_begun: false,
            ring,
            state,
            blocked_at,
            passed: 0,
            activity: ThreadActivity::new(Instant::now()),
            turn_words: self.turn_words,
        });
    }

    /// Gives the reader the next words of a thread, about `most`. Returns true if there were any. A
    /// thread that waits continues only at the mark `granted`.
    fn step(&mut self, index: usize, until: Until, granted: u64, most: usize) -> bool {
        let thread = &mut self.threads[index];
        if thread.blocked_at.is_some_and(|mark| mark.number != granted) {
            return false;
        }
        thread.blocked_at = None;
        self.begin(index);
        let thread = &self.threads[index];
        let (number, unread) = (
            thread.ring.process,
            thread.ring.unread(until != Until::Sealed),
        );
        if unread.from == unread.to && !unread.sealed || self.reader.has_enough() {
            return false;
        }
        // Read after the words, because the code they refer to was written before them.
        self.read_catalogue(number);
        let thread = &mut self.threads[index];
        let Some(process) = self.processes.get_mut(&number) else {
            return false;
        };
        let to = thread.ring.end_of_turn(&unread, most);
        let is_last = to == unread.to;
        let words = ThreadWords {
            all: thread.ring.words(to),
            from: unread.from,
            whole: is_last && (unread.sealed || until == Until::End),
            granted,
        };
        let before_ns = self.reader.now(&thread.state);
        let progress = self
            .reader
            .read(process, thread.ring.tid, &mut thread.state, &words);
        for mark in self.reader.started() {
            self.starts.record(mark, Instant::now());
        }
        if progress.to == unread.from && progress.blocked_at.is_none() && !is_last {
            // The remaining words form a group with later ones.
            return self.step(index, until, granted, wire::BLOCK_WORDS);
        }
        let turn = Turn {
            words: progress.to - unread.from,
            ns: self.reader.now(&thread.state) - before_ns,
            contends: progress.contends,
        };
        let most_ns = self.reader.contended_turn_ns();
        thread.turn_words = turn.next_words(thread.turn_words, most_ns, self.turn_words);
        thread.blocked_at = progress.blocked_at;
        thread.passed = thread.passed.max(progress.passed);
        let whole = is_last && unread.sealed && progress.blocked_at.is_none();
        thread.ring.consume(progress.to, whole);
        progress.to > unread.from || whole
    }

    /// Starts a thread, because everything before its start has been replayed.
    fn begin(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        if let (false, Some(process)) = (
            thread.has_begun,
            self.processes.get_mut(&thread.ring.process),
        ) {
            thread.has_begun = true;
            self.reader
                .begin(process, thread.ring.tid, &mut thread.state);
            thread.ring.begin();
        }
    }

    fn read_catalogue(&mut self, number: u32) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let records = process.entry.unread();
        let end = process.entry.catalogue_bytes();
        let mut rest = &records[..];
        while !rest.is_empty() {
            match R::catalogue(&mut process.state).read(rest) {
                Ok((length, catalogue_event)) => {
                    rest = &rest[length..];
                    if let Some(catalogue_event) = catalogue_event {
                        let bytes = end - rest.len() as u64;
                        self.reader.observe(process, catalogue_event, bytes);
                    }
                }
                // Nothing after it is readable.
                Err(bad) => {
                    let bad = bad.to_string();
                    self.reader
                        .lose(Some(process), LossKind::Undecoded, 1, &bad);
                    break;
                }
            }
        }
    }

    /// Handles ended threads and processes. With `all`, all count as ended.
    pub(crate) fn reap(&mut self, session: &mut EngineSession, all: bool) {
        self.unreaped = 0;
        for process in self.processes.values_mut() {
            process.died |= !process.ended && process.watched.ended();
            process.ended |= all || process.died;
        }
        // Order matters. Every thread appears before its process ends, so looking for new threads
        // after the end finds all of them, unless an older entry delays one.
        self.add_new(session);
        if self.has_dead_threads() {
            // The process that killed them wrote its words before, and they may be unread.
            self.read_what_is_written();
            self.continue_waiting_threads(session, None);
        }
        // Words that were written before the end are visible after it.
        loop {
            self.end_threads(all, |ring, process_ended| process_ended || ring.finished());
            if !all || !self.continue_waiting_threads(session, None) {
                break;
            }
        }
        if all {
            // Threads that still sleep have nobody to wait for.
            let mut index = 0;
            while index < self.threads.len() {
                match self.is_read(index) {
                    true => self.end_thread(index),
                    false => index += 1,
                }
            }
        }
        if all || session.is_caught_up() {
            self.end_processes();
        }
    }

    /// Ends the threads that have ended by the state of their ring and process and have no words
    /// left. Without `all`, threads that are ahead of others remain, to be replayed in turns.
    fn end_threads(&mut self, all: bool, has_ended: impl Fn(&ThreadRing, bool) -> bool) {
        let at = Instant::now();
        for asleep in [false, true] {
            let mut index = 0;
            while index < self.threads.len() {
                let ring = &self.threads[index].ring;
                let process_ended = self.processes.get(&ring.process).is_none_or(|p| p.ended);
                if has_ended(ring, process_ended)
                    && (all || !self.is_ahead(index, at))
                    && self.is_read(index)
                    && self.is_last(index, asleep)
                {
                    self.end_thread(index);
                } else {
                    index += 1;
                }
            }
        }
    }

    /// Returns true if a thread has more words than a turn, and another thread comes first, which
    /// may not have appeared.
    fn is_ahead(&mut self, index: usize, at: Instant) -> bool {
        let thread = &self.threads[index];
        if thread.ring.unread_words() <= self.turn_words {
            return false;
        }
        let now = self.reader.now(&thread.state);
        let has_words = |t: &EmulatedThread<_>| t.blocked_at.is_none() && t.ring.unread_words() > 0;
        let mut others = self.threads.iter();
        others.any(|t| self.reader.now(&t.state) < now && has_words(t))
            || self.replay_limit_ns(at) < now
    }

    /// Returns true if a thread is awake, or only sleeping threads remain of its process.
    fn is_last(&self, index: usize, asleep: bool) -> bool {
        let sleeps = |t: &EmulatedThread<_>| self.reader.sleeps(t.ring.tid);
        let ring = &self.threads[index].ring;
        let mut others = self
            .threads
            .iter()
            .filter(|t| t.ring.process == ring.process);
        !sleeps(&self.threads[index]) || asleep && others.all(sleeps)
    }

    /// Replays the remaining words of an ended thread. Returns true if that was all.
    fn is_read(&mut self, index: usize) -> bool {
        while self.step(index, Until::End, 0, wire::BLOCK_WORDS) {}
        self.threads[index].ring.drained()
    }

    fn end_thread(&mut self, index: usize) {
        let thread = self.threads.swap_remove(index);
        if let Some(process) = self.processes.get_mut(&thread.ring.process) {
            process.live_threads -= 1;
            self.reader.end_thread(process, thread);
        }
    }

    /// Removes processes that have ended and whose forked children, which copy the parent's state,
    /// have all appeared.
    fn end_processes(&mut self) {
        let is_done = |p: &EmulatedProcess<_>| {
            p.ended && p.live_threads == 0 && p.children >= p.entry.forks()
        };
        let all = self.processes.iter();
        let done: Vec<u32> = all.filter(|(_, p)| is_done(p)).map(|(&n, _)| n).collect();
        for number in done {
            // The catalogue may have grown after its last words, also by a program that it became.
            self.read_catalogue(number);
            if let Some(process) = self.processes.remove(&number) {
                self.reader.end_process(process);
            }
        }
    }

    /// Returns the processes that have not ended.
    pub(crate) fn live_processes(&self) -> u64 {
        let all = self.processes.values();
        all.filter(|p| !p.ended && !p.watched.ended()).count() as u64
    }

    /// Sends `signal` to every live process but `first`.
    pub(crate) fn signal_others(&self, first: u32, signal: i32) {
        let others = self.processes.values().filter(|p| p.entry.pid != first);
        others.for_each(|p| p.watched.signal(signal));
    }
}
