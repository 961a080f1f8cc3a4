//! Threads and processes that have been started but have not executed anything yet.
//!
//! Forking, or loading a program, keeps the host busy for milliseconds in which the new thread
//! executes nothing. A sleeping thread must not wake in virtual time before the new thread has
//! caught up, so the scheduler has to know that the thread exists before its first word arrives.
//! The engine writes a start mark for this purpose (`engine/src/time/sync.c`).
//!
//! A shared-memory counter of pending starts would be simpler, but a killed process would leave
//! it wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A thread that has not appeared after this time was killed during its start.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of threads remembered that appeared before their start mark was read.
/// The mark usually follows within one scheduling turn.
const MAX_EARLY_THREADS: usize = 4096;

/// A start mark read from a thread's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartMark {
    Started {
        /// Identifies the start; the new thread reports the same ID.
        start_id: u64,
        /// Virtual time of the parent, in nanoseconds.
        parent_ns: u64,
    },
    Failed {
        start_id: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct PendingStart {
    parent_ns: u64,
    /// Host time at which the mark was read.
    seen_at: Instant,
}

/// Pending starts, keyed by start ID.
#[derive(Debug, Default)]
pub(crate) struct ThreadStarts {
    pending: BTreeMap<u64, PendingStart>,
    /// Threads that appeared before their start mark was read.
    early: BTreeSet<u64>,
    /// Start marks that were read and whose thread has not begun.
    read: BTreeSet<u64>,
}

impl ThreadStarts {
    pub(crate) fn record(&mut self, mark: StartMark, seen_at: Instant) {
        match mark {
            StartMark::Started {
                start_id,
                parent_ns,
            } => {
                self.read.insert(start_id);
                if self.read.len() > MAX_EARLY_THREADS {
                    self.read.pop_first();
                }
                if !self.early.remove(&start_id) {
                    self.pending
                        .insert(start_id, PendingStart { parent_ns, seen_at });
                }
            }
            StartMark::Failed { start_id } => {
                self.pending.remove(&start_id);
            }
        }
    }

    /// Notes that the thread with this start ID has executed its first word. ID 0 means that
    /// the thread was not started by a followed one.
    pub(crate) fn thread_appeared(&mut self, start_id: u64) {
        if start_id == 0 || self.pending.remove(&start_id).is_some() {
            return;
        }
        self.early.insert(start_id);
        if self.early.len() > MAX_EARLY_THREADS {
            self.early.pop_first();
        }
    }

    /// Forgets a start mark that was read. Returns false if it has not been read.
    pub(crate) fn take_read(&mut self, start_id: u64) -> bool {
        self.read.remove(&start_id)
    }

    /// Virtual start times of the threads that have still to appear, in nanoseconds. Forgets
    /// starts older than [`START_TIMEOUT`].
    pub(crate) fn pending_times(&mut self, now: Instant) -> impl Iterator<Item = u64> {
        self.pending
            .retain(|_, start| now.duration_since(start.seen_at) < START_TIMEOUT);
        self.pending.values().map(|start| start.parent_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(start_id: u64) -> StartMark {
        StartMark::Started {
            start_id,
            parent_ns: 100 * start_id,
        }
    }

    fn pending_times(starts: &mut ThreadStarts, now: Instant) -> Vec<u64> {
        starts.pending_times(now).collect()
    }

    #[test]
    fn start_is_pending_until_thread_appears_or_start_fails() {
        let now = Instant::now();
        let mut starts = ThreadStarts::default();
        for start_id in 1..=4 {
            starts.record(started(start_id), now);
        }
        starts.thread_appeared(2);
        starts.record(StartMark::Failed { start_id: 3 }, now);
        assert_eq!(pending_times(&mut starts, now), [100, 400]);
    }

    #[test]
    fn start_is_forgotten_after_timeout() {
        let now = Instant::now();
        let mut starts = ThreadStarts::default();
        starts.record(started(4), now);
        starts.record(started(5), now + START_TIMEOUT / 2);
        assert_eq!(pending_times(&mut starts, now + START_TIMEOUT), [500]);
    }

    #[test]
    fn thread_that_appears_before_its_mark_is_not_pending() {
        let now = Instant::now();
        let mut starts = ThreadStarts::default();
        starts.thread_appeared(7);
        starts.record(started(7), now);
        assert!(pending_times(&mut starts, now).is_empty());
    }
}
