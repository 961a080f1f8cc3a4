//! How well the timer kept its promise.

use memgauge_trace::{EventId, TickFacts};

/// Buckets an interval: gaps are resolved to 1/200 of it.
const FINENESS: u64 = 200;
/// Gaps of up to this many intervals are resolved.
const INTERVALS: u64 = 20;

/// Ticks seen, expected and lost, and the gaps between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticks {
    interval_ns: u64,
    /// Ticks that arrived.
    pub(super) seen: u64,
    /// Records the rings had no room for.
    pub(super) lost: u64,
    /// Times the kernel stopped the timer for being too fast.
    pub(super) throttled: u64,
    /// Part of the running time in which they were stopped.
    pub(super) stopped_ns: u64,
    /// Time on processors while the timers were on, from the counters' totals.
    pub(super) running_ns: u64,
    gaps: Vec<u64>,
}

impl Ticks {
    /// The ticks of a timer with this period.
    pub(super) fn new(interval_ns: u64) -> Ticks {
        Ticks {
            interval_ns,
            seen: 0,
            lost: 0,
            throttled: 0,
            stopped_ns: 0,
            running_ns: 0,
            gaps: vec![0; (FINENESS * INTERVALS) as usize + 1],
        }
    }

    /// A tick, `gap_ns` of running time after the previous one.
    pub(super) fn add(&mut self, gap_ns: u64) {
        self.seen += 1;
        // Saturated from gaps of three years on, which are beyond all buckets.
        let bucket = gap_ns.saturating_mul(FINENESS) / self.interval_ns.max(1);
        let last = self.gaps.len() - 1;
        self.gaps[usize::try_from(bucket).unwrap_or(last).min(last)] += 1;
    }

    /// Ticks that the running time has room for.
    pub(super) fn expected(&self) -> u64 {
        self.running_ns / self.interval_ns.max(1)
    }

    /// Ticks that neither came nor were lost in a ring, nor had their time while the
    /// timer was stopped: it was late, or ticked where this user may not look.
    pub(super) fn late(&self) -> u64 {
        let stopped = self.stopped_ns / self.interval_ns.max(1);
        self.expected()
            .saturating_sub(self.seen + self.lost + stopped)
    }

    /// As the manifest has them, without what a tick takes.
    pub(super) fn facts(&self, event: EventId) -> TickFacts {
        TickFacts {
            event,
            interval_ns: self.interval_ns,
            seen: self.seen,
            expected: self.expected(),
            lost: self.lost,
            late: self.late(),
            throttled: self.throttled,
            stopped_ns: self.stopped_ns,
            running_ns: self.running_ns,
            median_gap_ns: self.gap_ns(0.5),
            p99_gap_ns: self.gap_ns(0.99),
            ..TickFacts::default()
        }
    }

    /// The gap that this share of all gaps does not exceed, to 1/200 of an
    /// interval; `None` without ticks, or where it is beyond 20 intervals.
    pub(super) fn gap_ns(&self, share: f64) -> Option<u64> {
        let all: u64 = self.gaps.iter().sum();
        let rank = ((all as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let bucket = self.gaps.iter().position(|n| {
            below += n;
            below >= rank
        })?;
        // The middle of the bucket.
        (bucket + 1 < self.gaps.len()).then(|| {
            let twice = 2 * bucket as u64 + 1;
            twice * self.interval_ns / (2 * FINENESS)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_that_did_not_come_are_counted_by_reason() {
        let mut ticks = Ticks::new(100);
        for _ in 0..90 {
            ticks.add(100);
        }
        ticks.lost = 4;
        ticks.running_ns = 10_000;
        assert_eq!((ticks.expected(), ticks.late()), (100, 6));
        ticks.stopped_ns = 250;
        assert_eq!((ticks.expected(), ticks.late()), (100, 4));
    }

    #[test]
    fn quantiles_of_gaps_are_those_of_the_sorted_gaps() {
        let mut ticks = Ticks::new(100_000);
        let mut gaps: Vec<u64> = (0..1000).map(|i| 90_000 + i * 37 % 20_000).collect();
        gaps.iter().for_each(|&gap| ticks.add(gap));
        gaps.sort_unstable();
        for share in [0.01, 0.5, 0.99, 1.0] {
            let exact = gaps[((1000.0 * share) as usize).max(1) - 1];
            let seen = ticks.gap_ns(share).unwrap();
            assert!(seen.abs_diff(exact) <= 500, "{share}: {seen} for {exact}");
        }
        assert_eq!(Ticks::new(5).gap_ns(0.5), None);
    }

    #[test]
    fn a_gap_beyond_all_buckets_has_no_figure() {
        let mut ticks = Ticks::new(100);
        ticks.add(1_000_000);
        assert_eq!(ticks.gap_ns(0.5), None);
    }
}
