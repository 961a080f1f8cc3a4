//! Who works, and how far in virtual time: until there, sleeps may last.
//!
//! A thread that has slept is held until those that work have come as far
//! (`engine/src/hold.c` says why). Whether a thread works is seen from its count of system
//! calls and its clock, at each look. Rejected: a count of those at work that the threads
//! keep themselves. It costs each system call two writes to a word that all share, and a
//! killed thread leaves it wrong.

use std::time::{Duration, Instant};

use super::wire;

/// A thread that is in the same system call for so long waits.
const WAITS: Duration = Duration::from_micros(200);
/// A thread that starts another one, becomes another program or ends works for so long at
/// most in that call.
const HANDS_ON: Duration = super::thread_starts::PATIENCE;
/// Who waits for the end of a thread or process is awake so long after it: the system shows
/// the end a little earlier.
const WOKEN: Duration = Duration::from_millis(1);
/// A thread that neither executes anything nor calls for so long may be stopped: the system
/// is asked, and again after as long.
const STOPPED: Duration = Duration::from_millis(20);
/// A host that is very busy runs each thread at least as often.
const LOST: Duration = Duration::from_millis(500);
/// Calls over which it is seen whether a thread does anything between them.
const CALLS: u32 = 64;
/// A system call takes a kernel about as long. A thread that executes less between its
/// calls, as one that yields until another has slept, hardly moves on in virtual time, in
/// which calls take none: who waits for it to come as far would wait for long.
const CALL_NS: u64 = 200;
/// From so many words on, a thread may have executed much that is not known yet.
const MANY_UNREAD: usize = 4096;

/// Whether a thread runs or could, as far as the system says.
pub(super) fn is_running(tid: u32) -> bool {
    let told = std::fs::read_to_string(format!("/proc/{tid}/task/{tid}/stat"));
    // The name before it may hold anything.
    told.is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('R'))
    })
}

/// What a thread does, of the word of its calls.
fn does(calls: u32) -> u32 {
    calls & ((1 << wire::DOES_BITS) - 1)
}

/// What is seen of a thread from look to look.
#[derive(Debug)]
pub(super) struct Activity {
    calls: u32,
    busy_ns: u64,
    /// When it made its last call, and when it did anything.
    called: Instant,
    moved: Instant,
    is_stopped: bool,
    /// When something was read of it.
    wrote: Instant,
    ended: Option<Instant>,
    /// The sleep that is held, and since when.
    held: Option<(u32, Instant)>,
    /// Its calls and its time at the last look at what it does between them.
    before: (u32, u64),
    only_calls: bool,
}

impl Activity {
    pub(super) fn new(at: Instant) -> Activity {
        Activity {
            calls: 0,
            busy_ns: 0,
            called: at,
            moved: at,
            is_stopped: false,
            wrote: at,
            ended: None,
            held: None,
            before: (0, 0),
            only_calls: false,
        }
    }

    /// Whether a thread works that shows this word of its calls and has executed for so
    /// long in virtual time, as far as is known: `unread` words of it are still to be read.
    /// One that waits works until they are. A busy host may let it lie for any time:
    /// `is_running` asks the system whether that is so.
    pub(super) fn look(
        &mut self,
        (calls, busy_ns, unread): (u32, u64, usize),
        at: Instant,
        is_running: impl FnOnce() -> bool,
    ) -> bool {
        if calls != self.calls {
            self.called = at;
        }
        if calls != self.calls || busy_ns != self.busy_ns {
            self.moved = at;
            self.is_stopped = false;
        } else if does(calls) == wire::RUNS && at.duration_since(self.moved) >= STOPPED {
            self.moved = at;
            self.is_stopped = !is_running();
        }
        if calls != self.calls || busy_ns != self.busy_ns || unread > 0 {
            self.wrote = at;
        }
        (self.calls, self.busy_ns) = (calls, busy_ns);
        let most = u32::MAX >> wire::DOES_BITS;
        let made = (calls >> wire::DOES_BITS).wrapping_sub(self.before.0) & most;
        if made >= CALLS {
            let executed_ns = busy_ns.saturating_sub(self.before.1);
            let little = executed_ns < u64::from(made) * CALL_NS;
            self.only_calls = little && unread < MANY_UNREAD;
            self.before = (calls >> wire::DOES_BITS, busy_ns);
        } else if busy_ns.saturating_sub(self.before.1) > u64::from(CALLS) * CALL_NS {
            self.only_calls = false;
        }
        let stands_still = match does(calls) {
            wire::RUNS => self.is_stopped,
            wire::SLEEPS => true,
            wire::HANDS_ON => at.duration_since(self.called) >= HANDS_ON,
            _ => at.duration_since(self.called) >= WAITS,
        };
        (!stands_still || unread > 0) && !self.only_calls
    }

    /// Whether a thread that shows this word of its calls executes more, as soon as the host
    /// lets it. One that writes nothing for long may have lost its memory for that.
    pub(super) fn runs(&self, calls: u32, at: Instant) -> bool {
        let is_lost = at.saturating_duration_since(self.wrote) >= LOST;
        does(calls) == wire::RUNS && !self.is_stopped && !self.only_calls && !is_lost
    }

    /// Since when the sleep of that number is held.
    pub(super) fn held_since(&mut self, number: u32, at: Instant) -> Instant {
        match self.held {
            Some((held, since)) if held == number => since,
            _ => self.held.insert((number, at)).1,
        }
    }

    /// When it made its last call.
    pub(super) fn called(&self) -> Instant {
        self.called
    }

    /// Whether it has ended, and the host has had time to wake who waited for that.
    pub(super) fn is_over(&mut self, at: Instant, has_ended: impl FnOnce() -> bool) -> bool {
        if does(self.calls) != wire::HANDS_ON {
            return false;
        }
        if self.ended.is_none() && has_ended() {
            self.ended = Some(at);
        }
        self.ended
            .is_some_and(|ended| at.duration_since(ended) >= WOKEN)
    }

    /// Whether it has done anything since it was looked at.
    pub(super) fn has_moved(&self, calls: u32, unread: usize) -> bool {
        (calls != self.calls || unread > 0) && !self.only_calls
    }

    /// Whether a thread that waits may have been woken, and not have been run since.
    pub(super) fn may_be_woken(&self) -> bool {
        does(self.calls) != wire::RUNS && !self.only_calls
    }
}

/// The threads furthest behind in virtual time among those that a sleeper may wait for.
#[derive(Debug, Default)]
pub(super) struct Behind {
    first: Option<(u64, usize)>,
    second: Option<u64>,
}

impl Behind {
    /// Adds the thread of that index, whose clock shows `ns`.
    pub(super) fn add(&mut self, index: usize, ns: u64) {
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

    /// Where the others are; `None` if there are none.
    pub(super) fn others(&self, index: usize) -> Option<u64> {
        match self.first {
            Some((_, first)) if first == index => self.second,
            first => first.map(|(ns, _)| ns),
        }
    }
}

/// A thread that sleeps, or waits no longer than until a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asleep {
    /// Its clock as it began.
    pub(super) now_ns: u64,
    /// The latest end, by its clock.
    pub(super) end_ns: u64,
    /// Since when, if the host's clock ends it.
    pub(super) deadline_since: Option<Instant>,
}

impl Asleep {
    /// Whether a sleep that began at `now_ns` and is held `since` then is to wait for this
    /// one. A sleep that began earlier did so on the host, too, and ends there before. A
    /// thread that sleeps from deadline to deadline has the less left the longer it is
    /// waited for, so the sleep under way counts alone.
    pub(super) fn comes_before(&self, now_ns: u64, since: Instant) -> bool {
        self.now_ns >= now_ns && self.deadline_since.is_none_or(|began| began <= since)
    }
}

/// For how long somebody has been at work, of the host's time: what was found at a look
/// holds for the time since the one before.
#[derive(Debug, Default)]
pub(super) struct Worked {
    looked: Option<Instant>,
    all: Duration,
}

impl Worked {
    /// Adds the time since the last look, if somebody works. All of it, and what was added.
    pub(super) fn look(&mut self, at_work: &AtWork, at: Instant) -> (Duration, Duration) {
        let before = self.looked.replace(at).unwrap_or(at);
        let more = match at_work.word() {
            wire::NOBODY => Duration::ZERO,
            _ => at.duration_since(before),
        };
        self.all += more;
        (self.all, more)
    }
}

/// Which rings are of threads at work, as the control page tells.
#[derive(Debug, Default)]
pub(super) struct AtWork(u32);

impl AtWork {
    pub(super) fn add(&mut self, ring: u32) {
        self.0 = match self.0 {
            wire::NOBODY => ring.saturating_add(1),
            _ => wire::SEVERAL_WORK,
        };
    }

    pub(super) fn word(&self) -> u32 {
        self.0
    }

    /// The ring of the only one.
    pub(super) fn only(&self) -> Option<u32> {
        match self.0 {
            wire::NOBODY | wire::SEVERAL_WORK => None,
            word => Some(word - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: u32 = 1;

    fn running() -> bool {
        true
    }

    /// A word of `made` calls.
    fn word(made: u32, does: u32) -> u32 {
        made << wire::DOES_BITS | does
    }

    #[test]
    fn a_thread_works_until_it_stays_in_a_call_or_does_nothing() {
        let start = Instant::now();
        let after = |us| start + Duration::from_micros(us);
        let mut activity = Activity::new(start);
        assert!(activity.look((word(0, wire::RUNS), 0, 0), after(0), running));
        assert!(activity.look((word(1, CALL), 500, 0), after(100), running));
        assert!(activity.look((word(1, CALL), 500, 0), after(299), running));
        assert!(!activity.look((word(1, CALL), 500, 0), after(300), running));
        // Another call, though it is in one again.
        assert!(activity.look((word(2, CALL), 500, 0), after(400), running));
        assert!(activity.look((word(2, wire::RUNS), 500, 0), after(1_000), running));
        // Words that are read late show that it runs.
        assert!(activity.look((word(2, wire::RUNS), 900, 0), after(100_000), running));
        // The host runs others, or it is stopped and goes on.
        let stopped = || false;
        assert!(activity.look((word(2, wire::RUNS), 900, 0), after(119_999), stopped));
        assert!(activity.look((word(2, wire::RUNS), 900, 0), after(150_000), running));
        assert!(activity.look((word(2, wire::RUNS), 900, 0), after(160_000), stopped));
        assert!(!activity.look((word(2, wire::RUNS), 900, 0), after(170_000), stopped));
        assert!(!activity.look((word(2, wire::RUNS), 900, 0), after(180_000), running));
        assert!(activity.look((word(2, wire::RUNS), 900, 0), after(190_000), running));
        assert!(activity.look((word(2, wire::RUNS), 901, 0), after(300_000), stopped));
        // What it wrote before it waited is still to be read.
        assert!(activity.look((word(3, CALL), 901, 0), after(300_000), running));
        assert!(activity.look((word(3, CALL), 901, 1), after(400_000), running));
        assert!(!activity.look((word(3, CALL), 901, 0), after(400_001), running));
        // A sleep needs no second look.
        assert!(!activity.look((word(4, wire::SLEEPS), 901, 0), after(400_002), running));
        assert!(activity.look((word(4, wire::RUNS), 901, 0), after(400_003), running));
    }

    #[test]
    fn a_held_sleep_waits_for_later_ones_and_of_deadlines_for_those_under_way() {
        let held = Instant::now();
        let asleep = |now_ns, deadline_since| Asleep {
            now_ns,
            end_ns: now_ns + 10,
            deadline_since,
        };
        let comes_before = |a: Asleep| a.comes_before(500, held);
        assert!(!comes_before(asleep(499, None)) && comes_before(asleep(500, None)));
        assert!(comes_before(asleep(500, Some(held))));
        let next = held + Duration::from_millis(1);
        assert!(!comes_before(asleep(500, Some(next))));
        let mut activity = Activity::new(held);
        assert_eq!(activity.held_since(3, held), held);
        assert_eq!(activity.held_since(3, next), held);
        assert_eq!(activity.held_since(4, next), next);
    }

    #[test]
    fn who_starts_another_or_ends_works_in_that_call_for_a_second() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut activity = Activity::new(start);
        let calls = word(1, wire::HANDS_ON);
        assert!(activity.look((calls, 500, 0), after(1), running));
        assert!(activity.look((calls, 500, 0), after(1000), running));
        assert!(!activity.look((calls, 500, 0), after(1001), running));
        let ended = || true;
        assert!(!activity.is_over(after(2000), || false));
        assert!(!activity.is_over(after(2000), ended) && !activity.is_over(after(2000), ended));
        assert!(activity.is_over(after(2001), || false));
        assert!(!Activity::new(start).is_over(start, ended));
        assert!(!activity.has_moved(calls, 0) && activity.has_moved(calls, 1));
        assert!(activity.has_moved(word(1, wire::RUNS), 0));
    }

    #[test]
    fn who_only_calls_does_not_count_as_at_work_until_it_computes() {
        let start = Instant::now();
        let mut activity = Activity::new(start);
        // 100 ns of execution for each call.
        let works = (1..=640)
            .map(|n| activity.look((word(n, wire::RUNS), u64::from(n) * 100, 0), start, running));
        let works: Vec<bool> = works.collect();
        assert!(works[..63].iter().all(|&works| works));
        assert!(works[63..].iter().all(|&works| !works));
        // Nobody knows what it did.
        let mut lags = Activity::new(start);
        assert!(lags.look((word(100, wire::RUNS), 0, MANY_UNREAD), start, running));
        // 64 times 200 ns without a call.
        assert!(!activity.look((word(640, wire::RUNS), 64_000 + 12_800, 0), start, running));
        assert!(activity.look((word(640, wire::RUNS), 64_000 + 12_801, 0), start, running));
        // 300 ns for each call.
        for n in 1..=640 {
            let busy_ns = 76_801 + u64::from(n) * 300;
            assert!(
                activity.look((word(640 + n, wire::RUNS), busy_ns, 0), start, running),
                "{n}"
            );
        }
    }

    #[test]
    fn the_count_of_calls_may_overflow() {
        let start = Instant::now();
        let mut activity = Activity::new(start);
        let last = u32::MAX >> wire::DOES_BITS;
        activity.look(
            (word(last, wire::RUNS), 1_000_000_000_000, 0),
            start,
            running,
        );
        assert!(activity.look((word(0, wire::RUNS), 1_000_000_000_001, 0), start, running));
        assert!(!activity.look((word(63, wire::RUNS), 1_000_000_000_001, 0), start, running));
    }

    #[test]
    fn others_are_where_the_one_furthest_behind_is() {
        let mut behind = Behind::default();
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
    fn the_only_one_at_work_is_named() {
        let mut at_work = AtWork::default();
        assert_eq!((at_work.word(), at_work.only()), (wire::NOBODY, None));
        at_work.add(7);
        assert_eq!((at_work.word(), at_work.only()), (8, Some(7)));
        at_work.add(0);
        assert_eq!((at_work.word(), at_work.only()), (wire::SEVERAL_WORK, None));
    }

    #[test]
    fn time_counts_as_worked_in_which_somebody_was_at_work() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let (nobody, mut one) = (AtWork::default(), AtWork::default());
        one.add(3);
        let mut worked = Worked::default();
        assert_eq!(worked.look(&one, start), (ms(0), ms(0)));
        assert_eq!(worked.look(&one, start + ms(2)), (ms(2), ms(2)));
        assert_eq!(worked.look(&nobody, start + ms(9)), (ms(2), ms(0)));
        assert_eq!(worked.look(&one, start + ms(10)), (ms(3), ms(1)));
    }
}
