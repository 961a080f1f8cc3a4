//! Intervals of a recorder, and how long it sleeps if it finds nothing to read.
//!
//! A busy program is polled often. If nothing arrives, the sleeps become longer. That is the case
//! while the program waits, and while it starts many others and so leaves few words at a time.
//! Polling every 50 µs took an eighth of a processor.
//!
//! Rejected: letting the program wake the recorder when a block is full, which costs the program a
//! system call per block.

use std::time::Duration;

/// Interval at which ended processes are checked.
pub(crate) const REAP_EVERY: Duration = Duration::from_millis(50);
/// Interval at which totals by instruction are written. Parts close at the same interval
/// (docs/format.md).
pub(crate) const FLUSH_EVERY: Duration = Duration::from_secs(2);
/// Interval at which a program that is no longer recorded is checked.
pub(crate) const UNRECORDED_IDLE: Duration = Duration::from_millis(20);

/// First sleep. A ring holds the words of several such sleeps at full speed.
const IDLE: Duration = Duration::from_micros(50);
/// Number of sleeps without a full block after which the recorder also reads unfinished blocks.
/// That slows the program down, because it writes the same position with every access.
const QUIET_POLLS_BEFORE_EAGER: u32 = 10;
/// Number of quiet polls after which the sleep doubles, and maximum number of doublings. A ring
/// does not fill up within the longest sleep.
const DOUBLE_AFTER: u32 = 4;
const DOUBLINGS: u32 = 4;

/// Sleeps between successive polls.
#[derive(Debug, Default)]
pub(crate) struct PollPace {
    /// Number of polls without a result since unfinished blocks were last read.
    since_eager: u32,
    /// Number of polls since one last found something.
    quiet: u32,
}

impl PollPace {
    /// Returns true if the next poll should also read unfinished blocks.
    pub(crate) fn is_eager(&self) -> bool {
        self.since_eager >= QUIET_POLLS_BEFORE_EAGER
    }

    /// Keeps sleeps short if `holds`, because a held thread waits for the next poll.
    pub(crate) fn hurry(&mut self, holds: bool) {
        if holds {
            self.quiet = 0;
        }
    }

    /// Returns how long to sleep after a poll, or `None` if it found something.
    pub(crate) fn after(&mut self, found: bool) -> Option<Duration> {
        if found {
            *self = PollPace::default();
            return None;
        }
        self.since_eager = match self.is_eager() {
            true => 0,
            false => self.since_eager + 1,
        };
        self.quiet = self.quiet.saturating_add(1);
        Some(IDLE * 2u32.pow((self.quiet / DOUBLE_AFTER).min(DOUBLINGS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_while_nothing_comes_and_begin_anew() {
        let mut pace = PollPace::default();
        assert_eq!(pace.after(true), None);
        let sleeps: Vec<Duration> = (0..60).filter_map(|_| pace.after(false)).collect();
        assert_eq!(sleeps[0], Duration::from_micros(50));
        assert_eq!(sleeps[2], Duration::from_micros(50));
        assert_eq!(sleeps[3], Duration::from_micros(100));
        assert_eq!(sleeps[59], Duration::from_micros(800));
        assert_eq!(pace.after(true), None);
        assert_eq!(pace.after(false), Some(Duration::from_micros(50)));
    }

    #[test]
    fn sleeps_stay_short_while_a_thread_waits() {
        let mut pace = PollPace::default();
        for poll in 0..60 {
            pace.hurry(poll >= 30);
            let slept = pace.after(false);
            assert!(
                poll < 30 || slept == Some(Duration::from_micros(50)),
                "{poll}"
            );
        }
    }

    #[test]
    fn one_poll_in_eleven_of_the_quiet_ones_is_eager() {
        let mut pace = PollPace::default();
        let mut eager = Vec::new();
        for poll in 0..33 {
            if pace.is_eager() {
                eager.push(poll);
            }
            pace.after(false);
        }
        assert_eq!(eager, [10, 21, 32]);
    }
}
