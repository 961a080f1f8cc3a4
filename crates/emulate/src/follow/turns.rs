//! Order in which the words of several threads are replayed.
//!
//! Threads share the last-level cache, so replaying one thread far ahead of the others would hide
//! their interference. The thread with the lowest virtual time comes first, for one turn.
//!
//! A turn must be short compared with the last-level cache. When each turn was a whole block of
//! words, a thread that scans 1 MiB did so several times per turn and hit lines that seven other
//! threads would have evicted. Two thirds of the misses were lost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::{EmulatedThread, Followed, MAX_CONTINUATIONS, Until, WordReader};
use crate::engine::session::EngineSession;
use crate::engine::sync::{Before, MarkDependency};
use crate::engine::wire;

/// Maximum number of line changes per turn, which touch at most 64 KiB of new lines.
const MAX_LINE_CHANGES: usize = 1024;
/// Number of words of a run, with `--sets`.
const SETS_WORDS: usize = 3;
/// Minimum length of a turn.
const MIN_WORDS: usize = 64;

/// Returns the maximum number of words of a turn. With `--sets`, each word stands for several of the
/// program.
pub(crate) fn words(one_in: Option<u32>) -> usize {
    match one_in {
        None => MAX_LINE_CHANGES,
        Some(one_in) => (MAX_LINE_CHANGES * SETS_WORDS / one_in.max(1) as usize).max(MIN_WORDS),
    }
}

/// A finished turn of a thread.
pub(super) struct Turn {
    pub(super) words: usize,
    /// Length in virtual time.
    pub(super) ns: u64,
    /// True if lines moved between this thread's core and others.
    pub(super) contends: bool,
}

impl Turn {
    /// Returns the number of words of the thread's next turn, at most `most`.
    ///
    /// A line cannot change its core faster than it moves between caches. The turns of threads that
    /// contend for a line are therefore about as long as such a move. Without contention they
    /// double each time.
    pub(super) fn next_words(&self, last: usize, most_ns: u64, most: usize) -> usize {
        if !self.contends || most_ns == u64::MAX {
            return (last * 2).min(most);
        }
        let words = self.words as u128 * u128::from(most_ns) / u128::from(self.ns.max(1));
        (words as usize).clamp(1, most)
    }
}

/// Threads with words to replay, by time. Threads at the same time alternate.
#[derive(Debug, Default)]
pub(super) struct Turns {
    threads: BinaryHeap<Reverse<(u64, u64, usize)>>,
    added: u64,
}

impl Turns {
    /// Adds a thread, also after its turn.
    pub(super) fn add(&mut self, index: usize, now_ns: u64) {
        self.threads.push(Reverse((now_ns, self.added, index)));
        self.added += 1;
    }

    /// Removes the thread whose turn it is. Returns it with its time.
    pub(super) fn next(&mut self) -> Option<(usize, u64)> {
        let Reverse((now_ns, _, index)) = self.threads.pop()?;
        Some((index, now_ns))
    }

    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }
}

impl<R: WordReader> Followed<R> {
    /// Replays at most one block of words of each thread, in turns. Returns true if there were any.
    /// If some blocks are full, it also replays blocks that are still being filled, because those
    /// may be ahead in time.
    pub(super) fn take_turns(&mut self, until: Until, limit_ns: Option<u64>) -> bool {
        for index in 0..self.threads.len() {
            match self.threads[index].blocked_at {
                None => self.begin(index),
                Some(mark) => self.begin_if_started(index, mark),
            }
        }
        let mut threads = self.threads.iter();
        let is_full = |t: &EmulatedThread<_>| t.ring.unread_words() >= wire::BLOCK_WORDS;
        let is_due = until == Until::Now || threads.any(|t| t.blocked_at.is_none() && is_full(t));
        is_due && self.replay_in_turns(1, limit_ns, |_, _| true)
    }

    /// Starts a thread if its start mark has been replayed. It does not wait for earlier marks of
    /// other threads. On a busy host, a short thread ends before the next one starts, and its last
    /// marks are later in virtual time.
    fn begin_if_started(&mut self, index: usize, mark: MarkDependency) {
        if mark.before == Before::Start && self.starts.take_read(mark.number) {
            self.threads[index].blocked_at = None;
            self.begin(index);
        }
    }

    /// Returns the virtual time beyond which no thread is replayed now: the lowest time of the
    /// threads that are about to start or have no words.
    pub(super) fn replay_limit_ns(&mut self, at: Instant) -> u64 {
        let fresh = self.processes.values().filter(|p| p.is_about_to_begin(at));
        let fresh = fresh.map(|p| self.reader.process_now(&p.state));
        let first = fresh.chain(self.starts.pending_times(at)).min();
        let threads = self.threads.iter_mut();
        let without_words =
            threads.filter_map(|t| t.awaits_words(at).then(|| self.reader.now(&t.state)));
        let limit_ns = without_words.chain(first).min();
        limit_ns.unwrap_or(u64::MAX)
    }

    /// Replays at most a number of blocks of each of the `wanted` threads, lowest time first, in
    /// turns. It replays no thread beyond `limit_ns`, or beyond one that runs out of words by then.
    /// With `None`, it replays all of them. Returns true if there were any.
    fn replay_in_turns(
        &mut self,
        blocks: usize,
        mut limit_ns: Option<u64>,
        wanted: impl Fn(&Followed<R>, usize) -> bool,
    ) -> bool {
        let at = Instant::now();
        let is_wanted = |all: &Followed<R>, index: usize| {
            let thread = &all.threads[index];
            thread.blocked_at.is_none() && thread.ring.unread_words() > 0 && wanted(all, index)
        };
        let mut turns = Turns::default();
        for (index, thread) in self.threads.iter().enumerate() {
            if is_wanted(self, index) {
                turns.add(index, self.reader.now(&thread.state));
            }
        }
        let is_alone = turns.len() == 1 && limit_ns.is_none_or(|limit| limit == u64::MAX);
        let mut any = false;
        let mut left = turns.len() * blocks * wire::BLOCK_WORDS;
        while let Some((index, now)) = turns.next().filter(|_| left > 0) {
            if limit_ns.is_some_and(|limit| now > limit) {
                break;
            }
            let most = match is_alone {
                true => wire::BLOCK_WORDS,
                false => self.threads[index].turn_words,
            };
            left = left.saturating_sub(most);
            if !self.step(index, Until::Now, 0, most) {
                continue;
            }
            any = true;
            if let Some(limit_ns) = &mut limit_ns {
                // The turn may have started a thread, which has not appeared.
                let first = self.starts.pending_times(at).min();
                *limit_ns = first.map_or(*limit_ns, |first| first.min(*limit_ns));
            }
            let now = self.reader.now(&self.threads[index].state);
            if is_wanted(self, index) {
                turns.add(index, now);
            } else if let Some(limit_ns) = &mut limit_ns {
                let thread = &mut self.threads[index];
                if thread.blocked_at.is_some() {
                    break;
                }
                if thread.awaits_words(at) {
                    *limit_ns = now.min(*limit_ns);
                }
            }
        }
        any
    }

    /// Continues the waiting threads in the order of their marks. Returns true if there were any.
    pub(super) fn continue_waiting_threads(
        &mut self,
        session: &mut EngineSession,
        limit_ns: Option<u64>,
    ) -> bool {
        let mut any = false;
        for _ in 0..MAX_CONTINUATIONS {
            if self.first_blocked().is_none() || self.must_reap() {
                break;
            }
            self.add_new(session);
            // This may take long, and sleeping threads must learn who began to run.
            self.end_sleeps(session);
            if !self.continue_first_waiting_thread(limit_ns) {
                break;
            }
            any = true;
        }
        any
    }

    /// Returns the first mark that a thread is blocked at, and the thread.
    fn first_blocked(&self) -> Option<(MarkDependency, usize)> {
        let all = self.threads.iter().enumerate();
        all.filter_map(|(index, t)| Some((t.blocked_at?, index)))
            .min()
    }

    /// Continues the thread that waits at the lowest mark. It waited for words that others wrote
    /// before that mark. These words are there and are replayed first, so no thread waits for words
    /// that are still to come. Returns true if there was a thread and all of those words could be
    /// replayed, none beyond `limit_ns`.
    pub(super) fn continue_first_waiting_thread(&mut self, limit_ns: Option<u64>) -> bool {
        let Some(mut first) = self.first_blocked() else {
            return false;
        };
        loop {
            let mark = first.0;
            let all_words = mark.before == Before::Words;
            if all_words {
                self.read_what_is_written();
            } else {
                let is_before = |all: &Followed<R>, index: usize| all.is_before(index, &mark);
                let limit_ns = limit_ns.map(|limit| self.replay_limit_before_ns(limit, &mark));
                self.replay_in_turns(wire::BLOCKS + 1, limit_ns, is_before);
            }
            match self.first_blocked() {
                Some(now) if now.0.number < mark.number => first = now,
                _ if limit_ns.is_none() || all_words => break,
                _ if (0..self.threads.len()).any(|index| self.is_before(index, &mark)) => {
                    return false;
                }
                _ => break,
            }
        }
        let (MarkDependency { number, .. }, index) = first;
        self.step(index, Until::Now, number, self.threads[index].turn_words);
        true
    }

    /// Returns the time up to which threads are replayed before the one blocked at `mark`
    /// continues. Other threads have advanced since the poll's `limit_ns`, or have words and take no
    /// turns now.
    fn replay_limit_before_ns(&mut self, limit_ns: u64, mark: &MarkDependency) -> u64 {
        let threads = || self.threads.iter().enumerate();
        // Most waits are for a few words, and need no limit.
        let is_long = |t: &EmulatedThread<_>| t.ring.unread_words() > self.turn_words;
        if !threads().any(|(index, t)| is_long(t) && self.is_before(index, mark)) {
            return limit_ns;
        }
        let has_words = |t: &EmulatedThread<_>| t.blocked_at.is_none() && t.ring.unread_words() > 0;
        let beside = threads().filter(|(index, t)| has_words(t) && !self.is_before(*index, mark));
        let beside = beside.map(|(_, t)| self.reader.now(&t.state)).min();
        let limit_ns = beside.map_or(limit_ns, |beside| beside.min(limit_ns));
        self.replay_limit_ns(Instant::now()).min(limit_ns)
    }

    /// Returns true if a thread must be replayed before the one blocked at `mark` continues. Others
    /// may write meanwhile, so threads that made no mark since are not replayed further.
    fn is_before(&self, index: usize, mark: &MarkDependency) -> bool {
        let thread = &self.threads[index];
        let has_ended = || {
            let process = self.processes.get(&thread.ring.process);
            thread.ring.finished() || process.is_none_or(|p| p.watched.ended())
        };
        let is_left = || thread.ring.unread_words() > 0 && has_ended();
        thread.blocked_at.is_none()
            && (thread.has_marks_before(mark.number) || mark.before == Before::Ends && is_left())
    }

    /// Replays each thread to the end of its words or to the mark at which it waits.
    pub(super) fn read_what_is_written(&mut self) {
        self.replay_in_turns(wire::BLOCKS + 1, None, |_, _| true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_with_lowest_time_comes_first_and_equal_ones_alternate() {
        let mut turns = Turns::default();
        for (index, now_ns) in [(0, 7), (1, 5), (2, 7), (3, 9)] {
            turns.add(index, now_ns);
        }
        let mut order = Vec::new();
        for _ in 0..8 {
            let (index, now_ns) = turns.next().unwrap();
            order.push(index);
            turns.add(index, now_ns + if index == 1 { 1 } else { 2 });
        }
        // Times: 5 6 | 7 7 7 | 8 9 9 9.
        assert_eq!(order, [1, 1, 0, 2, 1, 1, 3, 0]);
    }

    #[test]
    fn turns_of_threads_that_contend_are_as_long_as_a_transfer() {
        let turn = |words, ns, contends| Turn {
            words,
            ns,
            contends,
        };
        assert_eq!(turn(1024, 2048, true).next_words(1024, 50, 1024), 25);
        assert_eq!(turn(3, 900, true).next_words(3, 50, 1024), 1);
        assert_eq!(turn(25, 30, false).next_words(25, 50, 1024), 50);
        assert_eq!(turn(800, 900, false).next_words(800, 50, 1024), 1024);
    }

    #[test]
    fn with_sets_a_turn_covers_as_much_of_the_program() {
        assert_eq!(
            [None, Some(1), Some(8), Some(64)].map(words),
            [1024, 3072, 384, 64]
        );
    }
}
