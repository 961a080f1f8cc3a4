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

use super::{EmulatedThread, Followed, MOST_GO_ON, Until, WordReader};
use crate::engine::session::EngineSession;
use crate::engine::sync::{Before, MarkDependency};
use crate::engine::wire;

/// Maximum number of line changes per turn, which touch at most 64 KiB of new lines.
const RUNS: usize = 1024;
/// Number of words of a run, with `--sets`.
const SETS_WORDS: usize = 3;
/// Minimum length of a turn.
const LEAST_WORDS: usize = 64;

/// Returns the words of a turn. With `--sets`, each word stands for several of the program.
pub(crate) fn words(one_in: Option<u32>) -> usize {
    match one_in {
        None => RUNS,
        Some(one_in) => (RUNS * SETS_WORDS / one_in.max(1) as usize).max(LEAST_WORDS),
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
    pub(super) fn take_turns(&mut self, until: Until, reached: Option<u64>) -> bool {
        for index in 0..self.threads.len() {
            match self.threads[index].waits {
                None => self.begin(index),
                Some(waits) => self.begin_if_started(index, waits),
            }
        }
        let mut threads = self.threads.iter();
        let is_full = |t: &EmulatedThread<_>| t.ring.unread_words() >= wire::BLOCK_WORDS;
        let is_due = until == Until::Now || threads.any(|t| t.waits.is_none() && is_full(t));
        is_due && self.go_in_turns(1, reached, |_, _| true)
    }

    /// Starts a thread if its start mark has been replayed. It does not wait for earlier marks of
    /// other threads. On a busy host, a short thread ends before the next one starts, and its last
    /// marks are later in virtual time.
    fn begin_if_started(&mut self, index: usize, waits: MarkDependency) {
        if waits.before == Before::Start && self.starts.take_read(waits.number) {
            self.threads[index].waits = None;
            self.begin(index);
        }
    }

    /// Returns the lowest time of the threads that are about to start or have no words. Threads
    /// beyond it are not replayed further.
    pub(super) fn reached(&mut self, at: Instant) -> u64 {
        let fresh = self.processes.values().filter(|p| p.is_about_to_begin(at));
        let fresh = fresh.map(|p| self.reader.process_now(&p.kept));
        let first = fresh.chain(self.starts.pending_times(at)).min();
        let threads = self.threads.iter_mut();
        let dry = threads.filter_map(|t| t.is_dry(at).then(|| self.reader.now(&t.kept)));
        let reached = dry.chain(first).min();
        reached.unwrap_or(u64::MAX)
    }

    /// Replays at most a number of blocks of each of the `wanted` threads, lowest time first, in
    /// turns. It replays no thread beyond `reached`, or beyond one that runs out of words by then.
    /// With `None`, it replays all of them. Returns true if there were any.
    fn go_in_turns(
        &mut self,
        blocks: usize,
        mut reached: Option<u64>,
        wanted: impl Fn(&Followed<R>, usize) -> bool,
    ) -> bool {
        let at = Instant::now();
        let is_wanted = |all: &Followed<R>, index: usize| {
            let thread = &all.threads[index];
            thread.waits.is_none() && thread.ring.unread_words() > 0 && wanted(all, index)
        };
        let mut turns = Turns::default();
        for (index, thread) in self.threads.iter().enumerate() {
            if is_wanted(self, index) {
                turns.add(index, self.reader.now(&thread.kept));
            }
        }
        let is_alone = turns.len() == 1 && reached.is_none_or(|reached| reached == u64::MAX);
        let mut any = false;
        let mut left = turns.len() * blocks * wire::BLOCK_WORDS;
        while let Some((index, now)) = turns.next().filter(|_| left > 0) {
            if reached.is_some_and(|reached| now > reached) {
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
            if let Some(reached) = &mut reached {
                // The turn may have started a thread, which has not appeared.
                let first = self.starts.pending_times(at).min();
                *reached = first.map_or(*reached, |first| first.min(*reached));
            }
            let now = self.reader.now(&self.threads[index].kept);
            if is_wanted(self, index) {
                turns.add(index, now);
            } else if let Some(reached) = &mut reached {
                let thread = &mut self.threads[index];
                if thread.waits.is_some() {
                    break;
                }
                if thread.is_dry(at) {
                    *reached = now.min(*reached);
                }
            }
        }
        any
    }

    /// Continues the waiting threads in the order of their marks. Returns true if there were any.
    pub(super) fn let_go_on(&mut self, session: &mut EngineSession, reached: Option<u64>) -> bool {
        let mut any = false;
        for _ in 0..MOST_GO_ON {
            if self.first_waiting().is_none() || self.many_have_appeared() {
                break;
            }
            self.add_new(session);
            // This may take long, and sleeping threads must learn who began to run.
            self.end_sleeps(session);
            if !self.let_first_go_on(reached) {
                break;
            }
            any = true;
        }
        any
    }

    /// Returns the first mark that a thread waits at, and the thread.
    fn first_waiting(&self) -> Option<(MarkDependency, usize)> {
        let all = self.threads.iter().enumerate();
        all.filter_map(|(index, t)| Some((t.waits?, index))).min()
    }

    /// Continues the thread that waits at the lowest mark. It waited for words that others wrote
    /// before that mark. These words are there and are replayed first, so no thread waits for words
    /// that are still to come. Returns true if there was a thread and all of those words could be
    /// replayed, none beyond `reached`.
    pub(super) fn let_first_go_on(&mut self, reached: Option<u64>) -> bool {
        let Some(mut first) = self.first_waiting() else {
            return false;
        };
        loop {
            let waits = first.0;
            let all_words = waits.before == Before::Words;
            if all_words {
                self.read_what_is_written();
            } else {
                let is_before = |all: &Followed<R>, index: usize| all.is_before(index, &waits);
                let reached = reached.map(|reached| self.reached_beside(reached, &waits));
                self.go_in_turns(wire::BLOCKS + 1, reached, is_before);
            }
            match self.first_waiting() {
                Some(now) if now.0.number < waits.number => first = now,
                _ if reached.is_none() || all_words => break,
                _ if (0..self.threads.len()).any(|index| self.is_before(index, &waits)) => {
                    return false;
                }
                _ => break,
            }
        }
        let (MarkDependency { number, .. }, index) = first;
        self.step(index, Until::Now, number, self.threads[index].turn_words);
        true
    }

    /// Returns the time up to which threads are replayed before a waiting one continues. Others have
    /// come further since the poll's `reached`, or have words and take no turns now.
    fn reached_beside(&mut self, reached: u64, waits: &MarkDependency) -> u64 {
        let threads = || self.threads.iter().enumerate();
        // Most waits are for a few words, and need no limit.
        let is_long = |t: &EmulatedThread<_>| t.ring.unread_words() > self.turn_words;
        if !threads().any(|(index, t)| is_long(t) && self.is_before(index, waits)) {
            return reached;
        }
        let has_words = |t: &EmulatedThread<_>| t.waits.is_none() && t.ring.unread_words() > 0;
        let beside = threads().filter(|(index, t)| has_words(t) && !self.is_before(*index, waits));
        let beside = beside.map(|(_, t)| self.reader.now(&t.kept)).min();
        let reached = beside.map_or(reached, |beside| beside.min(reached));
        self.reached(Instant::now()).min(reached)
    }

    /// Returns true if a thread must be replayed before a waiting one continues. Others may write
    /// meanwhile, so threads that made no mark since are not replayed further.
    fn is_before(&self, index: usize, waits: &MarkDependency) -> bool {
        let thread = &self.threads[index];
        let has_ended = || {
            let process = self.processes.get(&thread.ring.process);
            thread.ring.finished() || process.is_none_or(|p| p.watched.ended())
        };
        let is_left = || thread.ring.unread_words() > 0 && has_ended();
        thread.waits.is_none()
            && (thread.has_marks_before(waits.number) || waits.before == Before::Ends && is_left())
    }

    /// Replays each thread to the end of its words or to the mark at which it waits.
    pub(super) fn read_what_is_written(&mut self) {
        self.go_in_turns(wire::BLOCKS + 1, None, |_, _| true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_behind_comes_first_and_equals_take_turns() {
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
    fn a_turn_is_as_much_of_the_program_with_some_sets() {
        assert_eq!(
            [None, Some(1), Some(8), Some(64)].map(words),
            [1024, 3072, 384, 64]
        );
    }
}
