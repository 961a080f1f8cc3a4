//! Intervals of a recorder, and how long it sleeps if it finds nothing to read.
//!
//! A busy program is looked at often. Where nothing comes the sleeps grow, as under a
//! program that waits, or one that starts many others and so leaves few words at a time.
//! Polls every 50 µs took an eighth of a processor. Rejected: a call by the program when a
//! block is full, which costs it a system call a block.

use std::time::Duration;

/// Interval at which ended processes are checked.
pub(crate) const REAP_EVERY: Duration = Duration::from_millis(50);
/// Interval at which totals by instruction are written. Parts close at the same interval
/// (docs/format.md).
pub(crate) const FLUSH_EVERY: Duration = Duration::from_secs(2);
/// Interval at which a program that is no longer recorded is checked.
pub(crate) const UNRECORDED_IDLE: Duration = Duration::from_millis(20);

/// First sleep; a ring holds several of these at full speed.
const IDLE: Duration = Duration::from_micros(50);
/// Sleeps without a full block after which blocks being filled are looked at.
/// Looking costs the program: the word looked at is written at every access.
const PATIENCE: u32 = 10;
/// Quiet polls after which the sleeps double, and how often they do. A ring does not fill
/// within the longest.
const DOUBLE_AFTER: u32 = 4;
const DOUBLINGS: u32 = 4;

/// Polls one after the other.
#[derive(Debug, Default)]
pub(crate) struct PollPace {
    /// Polls since the last that looked at all.
    since_eager: u32,
    /// Polls since the last that found something.
    quiet: u32,
}

impl PollPace {
    /// Whether the next poll is to look at blocks being filled.
    pub(crate) fn is_eager(&self) -> bool {
        self.since_eager >= PATIENCE
    }

    /// A thread waits for the next poll: sleeps stay short.
    pub(crate) fn hurry(&mut self, holds: bool) {
        if holds {
            self.quiet = 0;
        }
    }

    /// After a poll: how long to sleep.
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
