//! Synchronisation marks in a thread's words: releases of other threads, and waits for them. The
//! engine writes them at system calls (`engine/src/time/sync.c`).

use std::sync::atomic::AtomicU64;

use crate::engine::wire;
use crate::engine::words::load;

/// A mark that requires other threads to be read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MarkDependency {
    pub(crate) number: u64,
    pub(crate) before: Before,
}

/// Words of other threads that must be read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Before {
    /// The mark itself, by which the thread was started.
    Start,
    /// Their marks with smaller numbers.
    Marks,
    /// Also everything of threads that have ended, since a killed thread leaves no mark.
    Ends,
    /// Everything that they had written by then.
    Words,
}

/// A mark of a release or of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncMark {
    /// Number of the mark within the session.
    pub(crate) number: u64,
    pub(crate) kind: MarkKind,
}

/// Meaning of a mark. A key identifies an object, a thread or a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// Releases a thread that waits for the key, which continues this many nanoseconds later.
    Release(u64, u64),
    Acquire(u64),
    /// Waited until the last writer of the key closed it.
    AcquireEnd(u64),
    /// Slept for this time. The flag is true if the thread had asked for more.
    Sleep(u64, bool),
    Start,
    /// A thread ends, and with the flag also its process.
    Exit(u32, bool),
    JoinThread(u32),
    JoinProcess(u32),
    /// The last release of the key repeats at this interval in nanoseconds.
    Repeat(u64, u64),
    /// Starts to sleep at a time of the host's clock. Signals of that key may wake it.
    Wait(u64, u64),
    /// The timer of the key expires this many nanoseconds after the start of the sleep.
    Due(u64, u64),
    /// A signal ended the sleep, which took this time on the host's clock.
    Interrupted(u64, u64),
    /// A release: starts to write this many bytes to the pipe of the key.
    Give(u64, u64),
    /// Wrote this many bytes fewer than announced.
    Short(u64, u64),
    /// Wrote to a pipe of this capacity, and may have waited for room.
    Room(u64, u64),
    /// Read bytes from a pipe, and left this many in it.
    Take(u64, u64, u64),
    /// Starts to wait for the key together with others, one of which will release all.
    Arrive(u64),
    /// Releases all threads that have arrived, as the last one to arrive.
    Gather(u64),
    /// The process may write to the key from now on.
    Hold(u64),
    /// A release: the process will no longer write to the key.
    Leave(u64),
    /// The start with that number failed.
    NotStarted(u64),
    /// The objects of the next marks were awaited for this time on the host's clock. It counts if
    /// no thread of the session was the cause.
    Outside(u64),
    /// Waited until the key was ready. The process has the other end, or 0 if unknown.
    Ready(u64, u32),
    /// Mapped or unmapped memory. The catalogue has this many bytes including the record of it.
    Mapped(u64),
    /// A mark of an unknown kind.
    Nothing,
}

impl SyncMark {
    /// Number of words of a mark.
    pub(crate) const WORDS: usize = 3;

    /// Reads the mark at `at` if it is complete.
    pub(crate) fn at(words: &[AtomicU64], at: usize) -> Option<SyncMark> {
        words.get(at..at + SyncMark::WORDS)?;
        let word = load(words, at).filter(|&word| wire::mark(word) == wire::MARK_SYNC)?;
        let [kind, ns] = [(1, wire::MARK_SYNC_KIND), (2, wire::MARK_SYNC_NS)].map(|(n, mark)| {
            load(words, at + n)
                .filter(|&word| wire::mark(word) == mark)
                .map(|word| word & wire::ADDRESS)
        });
        let kind = kind.zip(ns).map_or(MarkKind::Nothing, |(kind, ns)| {
            MarkKind::of(
                kind >> wire::SYNC_KIND_SHIFT,
                kind & ((1 << wire::SYNC_KIND_SHIFT) - 1),
                ns,
            )
        });
        Some(SyncMark {
            number: word & wire::ADDRESS,
            kind,
        })
    }

    /// Returns the words of other threads that must be read before this thread continues, unless
    /// marks up to number `granted` were read.
    pub(crate) fn dependency(&self, granted: u64) -> Option<MarkDependency> {
        let before = match self.kind {
            MarkKind::Acquire(_)
            | MarkKind::Gather(_)
            | MarkKind::Room(..)
            | MarkKind::Take(..) => Before::Marks,
            MarkKind::AcquireEnd(_)
            | MarkKind::JoinThread(_)
            | MarkKind::JoinProcess(_)
            | MarkKind::Interrupted(..)
            | MarkKind::Ready(..) => Before::Ends,
            _ => return None,
        };
        let number = self.number;
        (number > granted).then_some(MarkDependency { number, before })
    }
}

impl MarkKind {
    fn of(kind: u64, key: u64, ns: u64) -> MarkKind {
        match kind {
            wire::SYNC_RELEASE => MarkKind::Release(key, ns),
            wire::SYNC_ACQUIRE => MarkKind::Acquire(key),
            wire::SYNC_ACQUIRE_END => MarkKind::AcquireEnd(key),
            wire::SYNC_SLEEP => MarkKind::Sleep(ns, key > 0),
            wire::SYNC_START => MarkKind::Start,
            wire::SYNC_EXIT => MarkKind::Exit(key as u32, ns > 0),
            wire::SYNC_JOIN_THREAD => MarkKind::JoinThread(key as u32),
            wire::SYNC_JOIN_PROCESS => MarkKind::JoinProcess(key as u32),
            wire::SYNC_REPEAT => MarkKind::Repeat(key, ns),
            wire::SYNC_WAIT => MarkKind::Wait(key, ns),
            wire::SYNC_DUE => MarkKind::Due(key, ns),
            wire::SYNC_INTERRUPTED => MarkKind::Interrupted(key, ns),
            wire::SYNC_GIVE => MarkKind::Give(key, ns),
            wire::SYNC_SHORT => MarkKind::Short(key, ns),
            wire::SYNC_ROOM => MarkKind::Room(key, ns),
            wire::SYNC_TAKE => MarkKind::Take(key, ns >> wire::TAKEN_SHIFT, ns & wire::TAKEN_BYTES),
            wire::SYNC_ARRIVE => MarkKind::Arrive(key),
            wire::SYNC_GATHER => MarkKind::Gather(key),
            wire::SYNC_HOLD => MarkKind::Hold(key),
            wire::SYNC_LEAVE => MarkKind::Leave(key),
            wire::SYNC_NOT_STARTED => MarkKind::NotStarted(ns),
            wire::SYNC_OUTSIDE => MarkKind::Outside(ns),
            wire::SYNC_READY => MarkKind::Ready(key, ns as u32),
            wire::SYNC_MAPPED => MarkKind::Mapped(ns),
            _ => MarkKind::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(number: u64, kind: MarkKind) -> SyncMark {
        SyncMark { number, kind }
    }

    #[test]
    fn a_mark_is_three_words_and_a_damaged_one_says_nothing() {
        let words = |all: &[u64]| -> Vec<AtomicU64> {
            all.iter().map(|&word| AtomicU64::new(word)).collect()
        };
        let kind = wire::MARK_SYNC_KIND | wire::SYNC_RELEASE << wire::SYNC_KIND_SHIFT | 77;
        let whole = words(&[5, wire::MARK_SYNC | 12, kind, wire::MARK_SYNC_NS | 30]);
        assert_eq!(SyncMark::at(&whole, 0), None);
        assert_eq!(
            SyncMark::at(&whole, 1),
            Some(sync(12, MarkKind::Release(77, 30)))
        );
        let damaged = words(&[wire::MARK_SYNC | 12, 5, 5]);
        assert_eq!(SyncMark::at(&damaged, 0), Some(sync(12, MarkKind::Nothing)));
        assert_eq!(SyncMark::at(&damaged[..2], 0), None, "the rest is to come");
    }
}
