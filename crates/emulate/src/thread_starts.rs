//! Threads and processes that were started and have not been seen yet.
//!
//! A fork takes the host some milliseconds, and so does a program's start, in which nobody
//! executes anything. A sleeper that is not to go on before the child has come as far must
//! know that there will be one. The mark of the start says so (`engine/src/sync.c`).
//! Rejected: a count in shared memory. A killed process leaves it wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Who does not appear for so long is taken for killed on the way.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Who appeared is remembered until its start is read, which comes soon.
const MOST_EARLY: usize = 4096;

/// A mark of a start has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartMark {
    /// Its number, and the time of who starts another.
    Started(u64, u64),
    /// The start of that number failed.
    Failed(u64),
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    /// When it was started in virtual time.
    ns: u64,
    /// Since when it is known.
    since: Instant,
}

/// Starts by the number of their mark.
#[derive(Debug, Default)]
pub(super) struct Births {
    expected: BTreeMap<u64, Expected>,
    /// Those that have appeared before their mark was read.
    early: BTreeSet<u64>,
}

impl Births {
    pub(super) fn take(&mut self, mark: StartMark, since: Instant) {
        match mark {
            StartMark::Started(number, ns) => {
                if !self.early.remove(&number) {
                    self.expected.insert(number, Expected { ns, since });
                }
            }
            StartMark::Failed(number) => {
                self.expected.remove(&number);
            }
        }
    }

    /// Who was started by the mark of that number has appeared.
    pub(super) fn appear(&mut self, number: u64) {
        if number == 0 || self.expected.remove(&number).is_some() {
            return;
        }
        self.early.insert(number);
        if self.early.len() > MOST_EARLY {
            self.early.pop_first();
        }
    }

    /// When those were started that are still to appear.
    pub(super) fn expected(&mut self, at: Instant) -> impl Iterator<Item = u64> {
        self.expected
            .retain(|_, birth| at.duration_since(birth.since) < PATIENCE);
        self.expected.values().map(|birth| birth.ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_started_is_expected_until_it_appears_its_start_failed_or_too_long() {
        let start = Instant::now();
        let births = &mut Births::default();
        let started = |number| StartMark::Started(number, 100 * number);
        for number in 1..=4 {
            births.take(started(number), start);
        }
        births.appear(0);
        births.appear(2);
        births.take(StartMark::Failed(3), start);
        let expected = |births: &mut Births, at| births.expected(at).collect::<Vec<_>>();
        assert_eq!(expected(births, start), [100, 400]);
        births.take(started(5), start + PATIENCE / 2);
        assert_eq!(expected(births, start + PATIENCE), [500]);
    }

    #[test]
    fn who_appears_before_its_start_is_read_is_not_expected() {
        let start = Instant::now();
        let births = &mut Births::default();
        births.appear(7);
        births.take(StartMark::Started(7, 700), start);
        assert_eq!(births.expected(start).count(), 0);
    }
}
