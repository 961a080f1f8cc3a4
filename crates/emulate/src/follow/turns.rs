//! In which order the words of several threads are read: those furthest behind in virtual
//! time first, and each for a turn, as threads share the last-level cache.
//!
//! A turn must be short against that cache. Read a block at a time, a thread that goes
//! through 1 MiB again and again did so several times in its turn, and hit what the seven
//! others would have displaced meanwhile: a third of the misses were left.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use super::{Followed, MOST_GO_ON, Reader, Thread, Until};
use crate::session::Session;
use crate::sync::{Before, Waits};
use crate::wire;

/// Changes of line in a turn: 64 KiB of new ones at most.
const RUNS: usize = 1024;
/// Words of a run, where some sets are followed.
const SETS_WORDS: usize = 3;
/// Less than this is not worth a turn.
const LEAST_WORDS: usize = 64;

/// Words of a turn. Where one of so many sets is followed, they stand for as much of the
/// program.
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
    /// Whether lines moved between this thread's core and others.
    pub(super) contends: bool,
}

impl Turn {
    /// Returns the number of words of the thread's next turn, at most `most`.
    ///
    /// A line cannot change its core faster than it moves between caches. The turns of threads that
    /// contend for a line are therefore about as long as such a move. Without contention they double
    /// each time.
    pub(super) fn next_words(&self, last: usize, most_ns: u64, most: usize) -> usize {
        if !self.contends || most_ns == u64::MAX {
            return (last * 2).min(most);
        }
        let words = self.words as u128 * u128::from(most_ns) / u128::from(self.ns.max(1));
        (words as usize).clamp(1, most)
    }
}

/// Threads that have words to read, by time. Those at the same time take turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    threads: BinaryHeap<Reverse<(u64, u64, usize)>>,
    added: u64,
}

impl Turns {
    /// Adds a thread, or adds it again after its turn.
    pub(super) fn add(&mut self, index: usize, now_ns: u64) {
        self.threads.push(Reverse((now_ns, self.added, index)));
        self.added += 1;
    }

    /// Takes the one whose turn it is, and its time.
    pub(super) fn next(&mut self) -> Option<(usize, u64)> {
        let Reverse((now_ns, _, index)) = self.threads.pop()?;
        Some((index, now_ns))
    }

    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }
}

impl<R: Reader> Followed<R> {
    /// Reads at most a block of each thread, in turns; whether there was any. Blocks that
    /// are being filled are looked at where others are full, as those may be ahead of them.
    pub(super) fn take_turns(&mut self, until: Until, reached: Option<u64>) -> bool {
        for index in 0..self.threads.len() {
            match self.threads[index].waits {
                None => self.begin(index),
                Some(waits) => self.begin_if_started(index, waits),
            }
        }
        let mut threads = self.threads.iter();
        let is_full = |t: &Thread<_>| t.ring.unread_words() >= wire::BLOCK_WORDS;
        let is_due = until == Until::Now || threads.any(|t| t.waits.is_none() && is_full(t));
        is_due && self.go_in_turns(1, reached, |_, _| true)
    }

    /// Lets a thread begin if its start mark has been read. It does not wait for marks that other threads
    /// wrote before: on a busy host a short thread ends before the next one starts, and its last marks
    /// are later in virtual time.
    fn begin_if_started(&mut self, index: usize, waits: Waits) {
        if waits.before == Before::Start && self.starts.take_read(waits.number) {
            self.threads[index].waits = None;
            self.begin(index);
        }
    }

    /// How far those have come that are about to begin, and those that are dry: who is
    /// ahead of them is not read on.
    pub(super) fn reached(&mut self, at: Instant) -> u64 {
        let fresh = self.processes.values().filter(|p| p.is_about_to_begin(at));
        let fresh = fresh.map(|p| self.reader.process_now(&p.kept));
        let first = fresh.chain(self.starts.pending_times(at)).min();
        let dry = self.threads.iter().filter(|t| t.is_dry(at));
        let reached = dry.map(|t| self.reader.now(&t.kept)).chain(first).min();
        reached.unwrap_or(u64::MAX)
    }

    /// Reads what the threads that are `wanted` have written, at most so many blocks of each:
    /// those furthest behind in time first, and each for a turn. None is read that is ahead
    /// of `reached`, or of one that is dry by then; with `None`, all are. Whether there was any.
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
            let now = self.reader.now(&self.threads[index].kept);
            if is_wanted(self, index) {
                turns.add(index, now);
            } else if let Some(reached) = &mut reached {
                let thread = &self.threads[index];
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

    /// Reads on the threads that wait, in the order of their marks; whether there were
    /// any.
    pub(super) fn let_go_on(&mut self, session: &mut Session, reached: Option<u64>) -> bool {
        let mut any = false;
        for _ in 0..MOST_GO_ON {
            if self.first_waiting().is_none() || self.many_have_appeared() {
                break;
            }
            self.add_new(session);
            // Reading on may take long, and sleepers must know who began to work.
            self.end_sleeps(session);
            if !self.let_first_go_on(reached) {
                break;
            }
            any = true;
        }
        any
    }

    /// The first mark that a thread waits at, and the thread.
    fn first_waiting(&self) -> Option<(Waits, usize)> {
        let all = self.threads.iter().enumerate();
        all.filter_map(|(index, t)| Some((t.waits?, index))).min()
    }

    /// Reads on the thread that waits at the smallest number. It waited for words that
    /// others wrote before its mark. Such words are there and are read first, so no
    /// thread waits for words still to come. Whether there was one, and all of those could
    /// be read, none of which is ahead of `reached`.
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
        let (Waits { number, .. }, index) = first;
        self.step(index, Until::Now, number, self.threads[index].turn_words);
        true
    }

    /// Whether a thread is to be read before one goes on that waits. Others may write on
    /// meanwhile: who has made no mark since is not read on.
    fn is_before(&self, index: usize, waits: &Waits) -> bool {
        let thread = &self.threads[index];
        let has_ended = || {
            let process = self.processes.get(&thread.ring.process);
            thread.ring.finished() || process.is_none_or(|p| p.watched.ended())
        };
        let is_left = || thread.ring.unread_words() > 0 && has_ended();
        thread.waits.is_none()
            && (thread.has_marks_before(waits.number) || waits.before == Before::Ends && is_left())
    }

    /// Reads each thread as far as it has written, or to where it waits.
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
