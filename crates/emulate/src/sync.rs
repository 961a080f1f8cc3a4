//! Marks among a thread's words: whom it lets go on, and what it has waited for. The engine
//! makes them at system calls (`engine/src/sync.c`).

use std::sync::atomic::AtomicU64;

use super::wire;
use super::words::load;

/// A mark before which others are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waits {
    pub(super) number: u64,
    pub(super) before: Before,
}

/// What is to be read of others.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Before {
    /// Their marks of smaller numbers.
    Marks,
    /// And all of those that have ended: a killed one has made no mark of that.
    Ends,
    /// All that they have written by then.
    Words,
}

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
    /// Slept for so long; and whether it asked for more.
    Sleep(u64, bool),
    Start,
    /// A thread ends; with it its process, if so said.
    Exit(u32, bool),
    JoinThread(u32),
    JoinProcess(u32),
    /// The last release of the key comes again each time that so many nanoseconds pass.
    Repeat(u64, u64),
    /// Begins to sleep at a time of the host's clock; signals of that key may wake it.
    Wait(u64, u64),
    /// The timer of the key is due so many nanoseconds after the sleep began.
    Due(u64, u64),
    /// A signal ended the sleep, which took so long by the host's clock.
    Interrupted(u64, u64),
    /// A release: begins to write so many bytes to the pipe of the key.
    Give(u64, u64),
    /// Has written so many bytes less than it said.
    Short(u64, u64),
    /// Has written to a pipe that holds so many bytes, and may have waited for room.
    Room(u64, u64),
    /// Has read so many bytes from a pipe, in which so many were left.
    Take(u64, u64, u64),
    /// Begins to wait for the key as others do, one of which lets all go on.
    Arrive(u64),
    /// Lets all go on that have arrived, and is the last to come.
    Gather(u64),
    /// The process may write to the key from now on.
    Hold(u64),
    /// A release: it will not write to the key any more.
    Leave(u64),
    /// The start of that number has failed.
    NotStarted(u64),
    /// The next marks show what was waited for so long by the host's clock, if nobody of the
    /// session was the cause.
    Outside(u64),
    /// Waited until the key was ready, of which that process has the other end; 0: it is not
    /// known.
    Ready(u64, u32),
    /// Has mapped or unmapped memory: the catalogue has so many bytes with the record of it.
    Mapped(u64),
    /// A mark of an unknown kind.
    Nothing,
}

impl Sync {
    /// Words a mark takes.
    pub(super) const WORDS: usize = 3;

    /// The mark at `at`, if all of one is there.
    pub(super) fn at(words: &[AtomicU64], at: usize) -> Option<Sync> {
        words.get(at..at + Sync::WORDS)?;
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

    /// What is to be read of others before the thread is read on, where marks up to the
    /// number `granted` have been read.
    pub(super) fn waits(&self, granted: u64) -> Option<Waits> {
        let before = match self.what {
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
        (number > granted).then_some(Waits { number, before })
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

    fn sync(number: u64, what: MarkKind) -> Sync {
        Sync { number, what }
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
        let damaged = words(&[wire::MARK_SYNC | 12, 5, 5]);
        assert_eq!(Sync::at(&damaged, 0), Some(sync(12, MarkKind::Nothing)));
        assert_eq!(Sync::at(&damaged[..2], 0), None, "the rest is to come");
    }
}
