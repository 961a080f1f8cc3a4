//! Keeps sleeping threads from waking in virtual time before running threads have caught up.
//!
//! A thread that wakes from a sleep is held until every running thread has reached the same
//! virtual time (`engine/src/time/hold.c` explains why). This module decides which threads count as
//! running, from two numbers that each thread publishes: its count of system calls and its
//! virtual clock.
//!
//! A shared counter of running threads would need two writes to one contended word per system
//! call, and a killed thread would leave it wrong.

use std::time::{Duration, Instant};

use crate::engine::wire;
use crate::time::thread_starts::START_TIMEOUT;

/// A thread that stays in one system call longer than this is waiting.
const WAIT_THRESHOLD: Duration = Duration::from_micros(200);

/// Maximum time that clone, exec and exit count as running.
const HANDOVER_TIMEOUT: Duration = START_TIMEOUT;

/// Time a thread stays awake after the exit it waited for. The kernel reports an exit slightly
/// before the waiter runs.
const WAKE_DELAY: Duration = Duration::from_millis(1);

/// After this time without progress, ask the kernel whether the thread is stopped.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A thread that has been in one system call for longer is checked less and less often, because
/// many threads may wait for long.
const FREQUENT_CHECKS: Duration = Duration::from_millis(20);

/// Share of a call's time so far after which the thread is checked again.
const CHECK_AGAIN_AFTER: u32 = 4;

/// A thread that executes code waits at most this long for a lock of the emulator, because a busy
/// host may leave the holder of the lock without a processor. A thread that waits longer is
/// stopped.
const MAX_LOCK_WAIT: Duration = Duration::from_millis(200);

/// A runnable thread makes progress at least this often, even on a very busy host.
const MAX_SCHEDULING_DELAY: Duration = Duration::from_millis(500);

/// Number of system calls over which a thread's progress is judged. The start of a Go program makes
/// about 200, most of them in a loop over all signals.
const CALLS_PER_CHECK: u32 = 256;

/// Least progress per system call, in nanoseconds. An emulated call takes the host about 1 µs, in
/// which emulated code advances by some 20 ns. A thread that executes less than this between its
/// calls (a `sched_yield` loop) hardly advances, because calls take no virtual time. On a busy host
/// each of its calls may take milliseconds. Sleeping threads must not wait for it.
const MIN_PROGRESS_NS: u64 = 50;

/// With this many unread words, a thread may have executed much that is not accounted for yet.
const MANY_UNREAD_WORDS: usize = 4096;

/// State that a thread published, and how much of its output is still unread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadProgress {
    /// Number of system calls and the current activity, as in `wire.rs`.
    pub calls: u32,
    /// Virtual time spent executing, in nanoseconds.
    pub busy_ns: u64,
    pub unread_words: usize,
}

impl ThreadProgress {
    fn activity(self) -> u32 {
        activity(self.calls)
    }

    fn call_count(self) -> u32 {
        self.calls >> wire::DOES_BITS
    }
}

/// Returns the activity of a thread that publishes `calls`.
fn activity(calls: u32) -> u32 {
    calls & ((1 << wire::DOES_BITS) - 1)
}

/// TimeLimit the kernel whether a thread is running, runnable, or in an uninterruptible wait: for a page,
/// a disk or a lock of the kernel, which take no virtual time. A thread that has ended is neither.
pub(crate) fn is_running(tid: u32) -> bool {
    // The command name comes first and may contain spaces and parentheses.
    std::fs::read_to_string(format!("/proc/{tid}/task/{tid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, fields)| fields.starts_with(['R', 'D']))
    })
}

/// A held sleep of a thread.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// Number of the sleep.
    number: u32,
    since: Instant,
}

/// Activity of a thread, updated each time the recorder looks at it.
#[derive(Debug)]
pub(crate) struct ThreadActivity {
    progress: ThreadProgress,
    called_at: Instant,
    /// Host time at which it last executed something or made a call.
    moved_at: Instant,
    is_stopped: bool,
    /// Host time at which it last had words to read.
    wrote_at: Instant,
    ended_at: Option<Instant>,
    hold: Option<Hold>,
    /// Its progress when the last [`CALLS_PER_CHECK`] calls began.
    check_start: ThreadProgress,
    /// True if it executes hardly anything between its calls.
    only_calls: bool,
    /// Time of the latest check in its current call, and whether it was running then.
    check: Option<(Instant, bool)>,
}

impl ThreadActivity {
    pub(crate) fn new(now: Instant) -> ThreadActivity {
        let progress = ThreadProgress {
            calls: 0,
            busy_ns: 0,
            unread_words: 0,
        };
        ThreadActivity {
            progress,
            called_at: now,
            moved_at: now,
            is_stopped: false,
            wrote_at: now,
            ended_at: None,
            hold: None,
            check_start: progress,
            only_calls: false,
            check: None,
        }
    }

    /// Updates the state with what the thread has published. Returns true if it counts as running.
    ///
    /// A thread with unread words counts as running, because they may contain anything. A busy
    /// host may leave a thread that executes code without a processor for any time, so
    /// `is_running` asks the kernel about one without progress.
    pub(crate) fn update(
        &mut self,
        progress: ThreadProgress,
        now: Instant,
        is_running: impl FnOnce() -> bool,
    ) -> bool {
        let has_called = progress.calls != self.progress.calls;
        let has_moved = has_called || progress.busy_ns != self.progress.busy_ns;
        if has_called {
            self.called_at = now;
            self.check = None;
        }
        if has_moved {
            self.moved_at = now;
            self.is_stopped = false;
        } else if progress.activity() == wire::RUNS
            && now.duration_since(self.moved_at) >= STOP_CHECK_INTERVAL
        {
            self.moved_at = now;
            self.is_stopped = now.duration_since(self.wrote_at) >= MAX_LOCK_WAIT && !is_running();
        }
        if has_moved || progress.unread_words > 0 {
            self.wrote_at = now;
        }
        self.progress = progress;
        self.check_calls();
        let stands_still = match progress.activity() {
            wire::RUNS => self.is_stopped,
            wire::SLEEPS => true,
            wire::HANDS_ON => now.duration_since(self.called_at) >= HANDOVER_TIMEOUT,
            _ => now.duration_since(self.called_at) >= WAIT_THRESHOLD,
        };
        (!stands_still || progress.unread_words > 0) && !self.only_calls
    }

    /// Judges how much the thread executes between its calls.
    fn check_calls(&mut self) {
        let (now, start) = (self.progress, self.check_start);
        let executed_ns = now.busy_ns.saturating_sub(start.busy_ns);
        let calls =
            now.call_count().wrapping_sub(start.call_count()) & (u32::MAX >> wire::DOES_BITS);
        if calls >= CALLS_PER_CHECK {
            let is_little = executed_ns < u64::from(calls) * MIN_PROGRESS_NS;
            self.only_calls = is_little && now.unread_words < MANY_UNREAD_WORDS;
            self.check_start = now;
        } else if executed_ns > u64::from(CALLS_PER_CHECK) * MIN_PROGRESS_NS {
            self.only_calls = false;
        }
    }

    /// Returns true if a thread that publishes `calls` executes more as soon as the host lets it. A
    /// thread that has written nothing for long does not count, because it may have lost the memory
    /// to write to.
    ///
    /// A thread in a recent call may be waiting in it, or only for a host CPU, so `is_running` asks
    /// the kernel. Otherwise, on a busy host, the first thread that a program starts would overtake
    /// the program while it allocates the next thread's stack. A very busy host may leave it without
    /// a processor for tenths of a second.
    pub(crate) fn runs(
        &mut self,
        calls: u32,
        now: Instant,
        is_running: impl FnOnce() -> bool,
    ) -> bool {
        let is_lost = now.saturating_duration_since(self.wrote_at) >= MAX_SCHEDULING_DELAY;
        if self.only_calls || is_lost {
            return false;
        }
        match activity(calls) {
            wire::RUNS => !self.is_stopped,
            wire::SLEEPS => false,
            _ if calls != self.progress.calls => is_running(),
            _ => {
                let since = now.saturating_duration_since(self.called_at);
                let is_recent = |checked_at: Instant| {
                    since >= FREQUENT_CHECKS
                        && now.saturating_duration_since(checked_at) < since / CHECK_AGAIN_AFTER
                };
                match self.check {
                    Some((checked_at, was_running)) if is_recent(checked_at) => was_running,
                    _ => self.check.insert((now, is_running())).1,
                }
            }
        }
    }

    /// Returns the host time since which this sleep has been held. A sleep with a new number is
    /// held from `now` on.
    pub(crate) fn held_since(&mut self, number: u32, now: Instant) -> Instant {
        match self.hold {
            Some(hold) if hold.number == number => hold.since,
            _ => self.hold.insert(Hold { number, since: now }).since,
        }
    }

    /// Returns the host time at which its last call was seen.
    pub(crate) fn called_at(&self) -> Instant {
        self.called_at
    }

    /// Returns true if it has ended and the host has had time to wake the thread that waits for its
    /// end.
    pub(crate) fn is_over(&mut self, now: Instant, has_ended: impl FnOnce() -> bool) -> bool {
        if self.progress.activity() != wire::HANDS_ON {
            return false;
        }
        if self.ended_at.is_none() && has_ended() {
            self.ended_at = Some(now);
        }
        self.ended_at
            .is_some_and(|ended_at| now.duration_since(ended_at) >= WAKE_DELAY)
    }

    /// Returns true if it has made a call or written words since the last update.
    pub(crate) fn has_moved(&self, calls: u32, unread_words: usize) -> bool {
        (calls != self.progress.calls || unread_words > 0) && !self.only_calls
    }

    /// Returns true if it waits in a call. It may have been woken from it and not have run since.
    pub(crate) fn may_be_woken(&self) -> bool {
        self.progress.activity() != wire::RUNS && !self.only_calls
    }
}

/// The threads furthest behind in virtual time among those that a sleeper may wait for.
#[derive(Debug, Default)]
pub(crate) struct FurthestBehind {
    first: Option<(u64, usize)>,
    second: Option<u64>,
}

impl FurthestBehind {
    /// Adds the thread with this index and virtual time.
    pub(crate) fn add(&mut self, index: usize, ns: u64) {
        match self.first {
            Some((first, _)) if first <= ns => {
                self.second = Some(self.second.map_or(ns, |second| second.min(ns)));
            }
            first => {
                self.second = first.map(|(first, _)| first);
                self.first = Some((ns, index));
            }
        }
    }

    /// Returns the lowest time of the threads other than `index`. `None` if there are none.
    pub(crate) fn others(&self, index: usize) -> Option<u64> {
        match self.first {
            Some((_, first)) if first == index => self.second,
            first => first.map(|(ns, _)| ns),
        }
    }
}

/// A thread that sleeps, or that waits with a time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedWait {
    /// Virtual time at which it began.
    pub(crate) now_ns: u64,
    /// Latest virtual time at which it ends.
    pub(crate) end_ns: u64,
    /// Host time at which it began, if it ends at a deadline on the host's clock.
    pub(crate) deadline_since: Option<Instant>,
}

impl TimedWait {
    /// Returns true if a sleep that began at virtual time `now_ns` and has been held `since` then
    /// must wait for this one.
    ///
    /// A sleep that began earlier in virtual time also did so on the host, and ends there first. A
    /// thread that sleeps from deadline to deadline has less time left the longer others wait for
    /// it, so only the sleep that it was in when the hold began counts.
    pub(crate) fn comes_before(&self, now_ns: u64, since: Instant) -> bool {
        self.now_ns >= now_ns && self.deadline_since.is_none_or(|began| began <= since)
    }
}

/// Host time during which some thread was running. The state found by an update counts for all the
/// time since the previous one.
#[derive(Debug, Default)]
pub(crate) struct WorkTime {
    updated_at: Option<Instant>,
    total: Duration,
}

impl WorkTime {
    /// Adds the time since the last update if some thread runs. Returns the total, and the time just
    /// added.
    pub(crate) fn update(&mut self, running: RunningThreads, now: Instant) -> (Duration, Duration) {
        let before = self.updated_at.replace(now).unwrap_or(now);
        let more = match running {
            RunningThreads::Nobody => Duration::ZERO,
            RunningThreads::Only(_) | RunningThreads::Several => now.duration_since(before),
        };
        self.total += more;
        (self.total, more)
    }
}

/// Threads that are running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunningThreads {
    Nobody,
    /// Only the thread with this index.
    Only(usize),
    Several,
}

impl RunningThreads {
    /// Adds the thread with this index.
    pub(crate) fn add(&mut self, index: usize) {
        *self = match self {
            RunningThreads::Nobody => RunningThreads::Only(index),
            RunningThreads::Only(_) | RunningThreads::Several => RunningThreads::Several,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: u32 = 1;

    fn running() -> bool {
        true
    }

    fn progress(calls: u32, busy_ns: u64, unread_words: usize) -> ThreadProgress {
        ThreadProgress {
            calls,
            busy_ns,
            unread_words,
        }
    }

    /// The published word after `made` calls.
    fn word(made: u32, does: u32) -> u32 {
        made << wire::DOES_BITS | does
    }

    #[test]
    fn thread_is_running_until_it_stays_in_a_call() {
        let start = Instant::now();
        let after = |us| start + Duration::from_micros(us);
        let mut activity = ThreadActivity::new(start);
        assert!(activity.update(progress(word(0, wire::RUNS), 0, 0), after(0), running));
        assert!(activity.update(progress(word(1, CALL), 500, 0), after(100), running));
        assert!(activity.update(progress(word(1, CALL), 500, 0), after(299), running));
        assert!(!activity.update(progress(word(1, CALL), 500, 0), after(300), running));
        // It has made another call, although it is in a call again.
        assert!(activity.update(progress(word(2, CALL), 500, 0), after(400), running));
        assert!(activity.update(progress(word(2, wire::RUNS), 500, 0), after(1_000), running));
        // Words that were read late show that it ran.
        assert!(activity.update(
            progress(word(2, wire::RUNS), 900, 0),
            after(100_000),
            running
        ));
        // It waited for a lock or for a processor, or it was stopped, and continues.
        let stopped = || false;
        assert!(activity.update(
            progress(word(2, wire::RUNS), 900, 0),
            after(140_000),
            stopped
        ));
        assert!(activity.update(
            progress(word(2, wire::RUNS), 900, 0),
            after(350_000),
            running
        ));
        assert!(activity.update(
            progress(word(2, wire::RUNS), 900, 0),
            after(360_000),
            stopped
        ));
        assert!(!activity.update(
            progress(word(2, wire::RUNS), 900, 0),
            after(370_000),
            stopped
        ));
        assert!(!activity.update(
            progress(word(2, wire::RUNS), 900, 0),
            after(380_000),
            running
        ));
        assert!(activity.update(
            progress(word(2, wire::RUNS), 900, 0),
            after(390_000),
            running
        ));
        assert!(activity.update(
            progress(word(2, wire::RUNS), 901, 0),
            after(500_000),
            stopped
        ));
        // Words that it wrote before it waited are still to be read.
        assert!(activity.update(progress(word(3, CALL), 901, 0), after(500_000), running));
        assert!(activity.update(progress(word(3, CALL), 901, 1), after(600_000), running));
        assert!(!activity.update(progress(word(3, CALL), 901, 0), after(600_001), running));
        // A sleep is certain at the first look.
        assert!(!activity.update(
            progress(word(4, wire::SLEEPS), 901, 0),
            after(600_002),
            running
        ));
        assert!(activity.update(
            progress(word(4, wire::RUNS), 901, 0),
            after(600_003),
            running
        ));
    }

    #[test]
    fn a_thread_in_a_call_is_checked_less_often_the_longer_it_takes() {
        let start = Instant::now();
        let mut activity = ThreadActivity::new(start);
        activity.update(progress(word(1, CALL), 500, 0), start, running);
        let mut checks = 0;
        for ms in 0..MAX_SCHEDULING_DELAY.as_millis() as u64 {
            let at = start + Duration::from_millis(ms);
            let runs = activity.runs(word(1, CALL), at, || {
                checks += 1;
                true
            });
            assert!(runs, "after {ms} ms");
        }
        assert!((20..50).contains(&checks), "{checks} checks");
        assert!(!activity.runs(word(1, CALL), start + MAX_SCHEDULING_DELAY, running));
        // Another call is checked at once.
        activity.update(progress(word(2, CALL), 500, 0), start, running);
        assert!(!activity.runs(word(2, CALL), start, || false));
        assert!(activity.runs(word(3, CALL), start, running));
    }

    #[test]
    fn held_sleep_waits_for_later_sleeps_except_new_deadlines() {
        let held = Instant::now();
        let asleep = |now_ns, deadline_since| TimedWait {
            now_ns,
            end_ns: now_ns + 10,
            deadline_since,
        };
        let comes_before = |a: TimedWait| a.comes_before(500, held);
        assert!(!comes_before(asleep(499, None)) && comes_before(asleep(500, None)));
        assert!(comes_before(asleep(500, Some(held))));
        let next = held + Duration::from_millis(1);
        assert!(!comes_before(asleep(500, Some(next))));
        let mut activity = ThreadActivity::new(held);
        assert_eq!(activity.held_since(3, held), held);
        assert_eq!(activity.held_since(3, next), held);
        assert_eq!(activity.held_since(4, next), next);
    }

    #[test]
    fn clone_and_exit_count_as_running_for_a_second() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut activity = ThreadActivity::new(start);
        let calls = word(1, wire::HANDS_ON);
        assert!(activity.update(progress(calls, 500, 0), after(1), running));
        assert!(activity.update(progress(calls, 500, 0), after(1000), running));
        assert!(!activity.update(progress(calls, 500, 0), after(1001), running));
        let ended = || true;
        assert!(!activity.is_over(after(2000), || false));
        assert!(!activity.is_over(after(2000), ended) && !activity.is_over(after(2000), ended));
        assert!(activity.is_over(after(2001), || false));
        assert!(!ThreadActivity::new(start).is_over(start, ended));
        assert!(!activity.has_moved(calls, 0) && activity.has_moved(calls, 1));
        assert!(activity.has_moved(word(1, wire::RUNS), 0));
    }

    #[test]
    fn thread_that_only_makes_calls_is_not_running() {
        let start = Instant::now();
        let mut activity = ThreadActivity::new(start);
        // It executes 49 ns per call.
        let works = (1..=1024_u32).map(|n| {
            let calls = word(n, wire::RUNS);
            activity.update(progress(calls, u64::from(n) * 49, 0), start, running)
        });
        let works: Vec<bool> = works.collect();
        assert!(works[..255].iter().all(|&works| works));
        assert!(works[255..].iter().all(|&works| !works));
        // The unread words may contain any amount of work.
        let mut lags = ThreadActivity::new(start);
        let unread = progress(word(300, wire::RUNS), 0, MANY_UNREAD_WORDS);
        assert!(lags.update(unread, start, running));
        // It executes 256 times 50 ns without a call.
        let executed = |ns: u64| progress(word(1024, wire::RUNS), 1024 * 49 + ns, 0);
        assert!(!activity.update(executed(12_800), start, running));
        assert!(activity.update(executed(12_801), start, running));
        // It executes 51 ns per call.
        for n in 1..=1024_u32 {
            let calls = word(1024 + n, wire::RUNS);
            let progress = progress(calls, 62_977 + u64::from(n) * 51, 0);
            assert!(activity.update(progress, start, running), "{n}");
        }
    }

    #[test]
    fn count_of_calls_may_overflow() {
        let start = Instant::now();
        let mut activity = ThreadActivity::new(start);
        let last = u32::MAX >> wire::DOES_BITS;
        activity.update(
            progress(word(last, wire::RUNS), 1_000_000_000_000, 0),
            start,
            running,
        );
        assert!(activity.update(
            progress(word(0, wire::RUNS), 1_000_000_000_001, 0),
            start,
            running
        ));
        assert!(!activity.update(
            progress(word(255, wire::RUNS), 1_000_000_000_001, 0),
            start,
            running
        ));
    }

    #[test]
    fn lowest_time_of_others_leaves_out_the_thread_itself() {
        let mut behind = FurthestBehind::default();
        assert_eq!(behind.others(0), None);
        behind.add(4, 70);
        assert_eq!((behind.others(4), behind.others(0)), (None, Some(70)));
        for (index, ns) in [(1, 90), (2, 50), (3, 60), (5, 50)] {
            behind.add(index, ns);
        }
        assert_eq!((behind.others(2), behind.others(1)), (Some(50), Some(50)));
        behind.add(6, 40);
        assert_eq!((behind.others(6), behind.others(2)), (Some(50), Some(40)));
    }

    #[test]
    fn single_running_thread_is_known() {
        let mut running_threads = RunningThreads::Nobody;
        running_threads.add(7);
        assert_eq!(running_threads, RunningThreads::Only(7));
        running_threads.add(0);
        assert_eq!(running_threads, RunningThreads::Several);
    }

    #[test]
    fn work_time_counts_only_while_a_thread_runs() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let (nobody, one) = (RunningThreads::Nobody, RunningThreads::Only(3));
        let mut work_time = WorkTime::default();
        assert_eq!(work_time.update(one, start), (ms(0), ms(0)));
        assert_eq!(work_time.update(one, start + ms(2)), (ms(2), ms(2)));
        assert_eq!(work_time.update(nobody, start + ms(9)), (ms(2), ms(0)));
        assert_eq!(work_time.update(one, start + ms(10)), (ms(3), ms(1)));
    }
}
