//! Waits in virtual time: which thread let which others go on.
//!
//! The engine numbers both throughout the session (`engine/src/sync.c`). A wait ends
//! no earlier than the last release of its key that has a smaller number. Threads are
//! read in any order as far as they do not wait. A waiting thread is read on when
//! everything with a smaller number has been read ([`super::follow`]).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;

use super::wire;
use super::words::load;

/// Releases remembered for each key. The oldest is forgotten first: a wait that came
/// before all that are left then ends at once.
const MOST_RELEASES: usize = 1024;
/// Processes remembered that have written to a key.
const MOST_WRITERS: usize = 16;

/// A mark of a thread that lets others go on, or that has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sync {
    /// Its number in the session.
    pub(super) number: u64,
    pub(super) what: MarkKind,
}

/// Meaning of a mark; a key is an object's, or a thread's or process's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkKind {
    /// A thread that waits for the key goes on so many nanoseconds later.
    Release(u64, u64),
    Acquire(u64),
    /// Waited until the last writer of the key closed it.
    AcquireEnd(u64),
    Sleep(u64),
    Start,
    Exit(u32),
    JoinThread(u32),
    JoinProcess(u32),
    /// A mark of an unknown kind.
    Nothing,
}

impl Sync {
    /// Words a mark takes.
    pub(super) const WORDS: usize = 3;

    /// The mark at `at`, if one is there.
    pub(super) fn at(words: &[AtomicU64], at: usize) -> Option<Sync> {
        let word = load(words, at).filter(|&word| wire::mark(word) == wire::MARK_SYNC)?;
        let [kind, ns] = [(1, wire::MARK_SYNC_KIND), (2, wire::MARK_SYNC_NS)].map(|(n, mark)| {
            load(words, at + n)
                .filter(|&word| wire::mark(word) == mark)
                .map(|word| word & wire::ADDRESS)
        });
        let what = kind.zip(ns).map_or(MarkKind::Nothing, |(kind, ns)| {
            MarkKind::of(
                kind >> wire::SYNC_KIND_SHIFT,
                kind & ((1 << wire::SYNC_KIND_SHIFT) - 1),
                ns,
            )
        });
        Some(Sync {
            number: word & wire::ADDRESS,
            what,
        })
    }

    /// Whether the thread is not to be read on before all smaller numbers have been.
    pub(super) fn waits(&self) -> bool {
        use MarkKind::{Acquire, AcquireEnd, JoinProcess, JoinThread};
        matches!(
            self.what,
            Acquire(_) | AcquireEnd(_) | JoinThread(_) | JoinProcess(_)
        )
    }
}

impl MarkKind {
    fn of(kind: u64, key: u64, ns: u64) -> MarkKind {
        match kind {
            wire::SYNC_RELEASE => MarkKind::Release(key, ns),
            wire::SYNC_ACQUIRE => MarkKind::Acquire(key),
            wire::SYNC_ACQUIRE_END => MarkKind::AcquireEnd(key),
            wire::SYNC_SLEEP => MarkKind::Sleep(ns),
            wire::SYNC_START => MarkKind::Start,
            wire::SYNC_EXIT => MarkKind::Exit(key as u32),
            wire::SYNC_JOIN_THREAD => MarkKind::JoinThread(key as u32),
            wire::SYNC_JOIN_PROCESS => MarkKind::JoinProcess(key as u32),
            _ => MarkKind::Nothing,
        }
    }
}

/// Releases of one key by rising number, and who made them.
#[derive(Debug, Default)]
struct Released {
    /// Number and time at which a waiter goes on.
    at: VecDeque<(u64, u64)>,
    writers: Vec<u32>,
}

impl Released {
    fn add(&mut self, number: u64, ns: u64, pid: u32) {
        let place = self.at.partition_point(|&(other, _)| other < number);
        self.at.insert(place, (number, ns));
        if self.at.len() > MOST_RELEASES {
            self.at.pop_front();
        }
        if !self.writers.contains(&pid) && self.writers.len() < MOST_WRITERS {
            self.writers.push(pid);
        }
    }

    fn last_before(&self, number: u64) -> Option<u64> {
        let place = self.at.partition_point(|&(other, _)| other < number);
        Some(self.at.get(place.checked_sub(1)?)?.1)
    }
}

/// All that has let others go on.
#[derive(Debug, Default)]
pub(super) struct Waits {
    released: HashMap<u64, Released>,
    /// When threads that have ended did.
    threads: HashMap<u32, u64>,
    /// How far each process has come.
    processes: HashMap<u32, u64>,
    starts: HashMap<u64, u64>,
}

impl Waits {
    /// Takes a mark of a thread of process `pid` with the clock at `now_ns`. Returns
    /// the time until which it has waited, if it has.
    pub(super) fn take(&mut self, sync: &Sync, pid: u32, now_ns: u64) -> Option<u64> {
        match sync.what {
            MarkKind::Release(key, delay_ns) => {
                let at_ns = now_ns.saturating_add(delay_ns);
                let released = self.released.entry(key).or_default();
                released.add(sync.number, at_ns, pid);
                None
            }
            MarkKind::Start => {
                self.starts.insert(sync.number, now_ns);
                None
            }
            MarkKind::Exit(tid) => {
                self.threads.insert(tid, now_ns);
                None
            }
            MarkKind::Acquire(key) => self.released.get(&key)?.last_before(sync.number),
            MarkKind::AcquireEnd(key) => self.end_of(key, sync.number),
            MarkKind::Sleep(ns) => Some(now_ns.saturating_add(ns)),
            MarkKind::JoinThread(tid) => self.threads.get(&tid).copied(),
            MarkKind::JoinProcess(pid) => self.processes.get(&pid).copied(),
            MarkKind::Nothing => None,
        }
    }

    /// When the last of those that wrote to `key` had ended or let it go.
    fn end_of(&self, key: u64, number: u64) -> Option<u64> {
        let released = self.released.get(&key)?;
        let ends = released.writers.iter();
        let ends = ends.filter_map(|pid| self.processes.get(pid).filter(|_| self.ended(*pid)));
        ends.copied().chain(released.last_before(number)).max()
    }

    /// Whether a process's first thread has ended.
    fn ended(&self, pid: u32) -> bool {
        self.threads.contains_key(&pid)
    }

    /// A process's clock shows `now_ns`.
    pub(super) fn reach(&mut self, pid: u32, now_ns: u64) {
        self.processes.insert(pid, now_ns);
    }

    /// A process or thread of that number begins: an ended one had it before.
    pub(super) fn begin(&mut self, number: u32) {
        self.threads.remove(&number);
    }

    /// When what was started by the mark of that number was.
    pub(super) fn start(&self, birth: u64) -> Option<u64> {
        self.starts.get(&birth).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(number: u64, what: MarkKind) -> Sync {
        Sync { number, what }
    }

    #[test]
    fn a_wait_ends_with_the_last_release_of_its_key_that_came_before() {
        let mut waits = Waits::default();
        // Read in another order than they were made.
        waits.take(&sync(8, MarkKind::Release(1, 0)), 1, 800);
        waits.take(&sync(3, MarkKind::Release(1, 0)), 2, 300);
        waits.take(&sync(5, MarkKind::Release(2, 40)), 2, 500);
        let mut acquire = |number, key| waits.take(&sync(number, MarkKind::Acquire(key)), 3, 7);
        assert_eq!(acquire(4, 1), Some(300));
        assert_eq!(acquire(9, 1), Some(800));
        assert_eq!(acquire(2, 1), None);
        assert_eq!(acquire(9, 2), Some(540));
        assert_eq!(acquire(9, 3), None);
    }

    #[test]
    fn the_end_of_a_pipe_comes_when_its_writers_have_ended() {
        let mut waits = Waits::default();
        waits.take(&sync(1, MarkKind::Release(9, 0)), 50, 100);
        waits.reach(50, 900);
        let end = sync(5, MarkKind::AcquireEnd(9));
        assert_eq!(waits.take(&end, 7, 0), Some(100));
        waits.take(&sync(2, MarkKind::Exit(50)), 50, 900);
        assert_eq!(waits.take(&end, 7, 0), Some(900));
    }

    #[test]
    fn a_join_knows_only_threads_that_ended() {
        let mut waits = Waits::default();
        let join = sync(4, MarkKind::JoinThread(50));
        assert_eq!(waits.take(&join, 7, 0), None);
        waits.take(&sync(2, MarkKind::Exit(50)), 7, 900);
        assert_eq!(waits.take(&join, 7, 0), Some(900));
        waits.begin(50);
        assert_eq!(waits.take(&join, 7, 0), None);
    }

    #[test]
    fn a_mark_is_three_words_and_a_damaged_one_says_nothing() {
        let words = |all: &[u64]| -> Vec<AtomicU64> {
            all.iter().map(|&word| AtomicU64::new(word)).collect()
        };
        let kind = wire::MARK_SYNC_KIND | wire::SYNC_RELEASE << wire::SYNC_KIND_SHIFT | 77;
        let whole = words(&[5, wire::MARK_SYNC | 12, kind, wire::MARK_SYNC_NS | 30]);
        assert_eq!(Sync::at(&whole, 0), None);
        assert_eq!(
            Sync::at(&whole, 1),
            Some(sync(12, MarkKind::Release(77, 30)))
        );
        let cut = words(&[wire::MARK_SYNC | 12, 5]);
        assert_eq!(Sync::at(&cut, 0), Some(sync(12, MarkKind::Nothing)));
    }
}
