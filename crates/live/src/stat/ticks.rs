//! How regularly the timer ticked. Pure.

use memgauge_trace::{EventId, TickFacts};

/// Number of buckets for each interval: gaps are resolved to 1/200 of it.
const BUCKETS_PER_INTERVAL: u64 = 200;
/// Gaps up to this number of intervals are resolved.
const MAX_GAP_INTERVALS: u64 = 20;

/// Ticks that were seen, expected and lost, and the gaps between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TickStatistics {
    interval_ns: u64,
    /// Ticks that arrived.
    pub(super) seen: u64,
    /// Records the rings had no room for.
    pub(super) lost: u64,
    /// Number of times the kernel throttled the timer.
    pub(super) throttled: u64,
    /// Part of the running time in which the timers were throttled.
    pub(super) stopped_ns: u64,
    /// CPU time while the timers were enabled, from the counters' totals.
    pub(super) running_ns: u64,
    /// Number of gaps by length.
    gap_histogram: Vec<u64>,
}

impl TickStatistics {
    /// The ticks of a timer with this period.
    pub(super) fn new(interval_ns: u64) -> TickStatistics {
        TickStatistics {
            interval_ns,
            seen: 0,
            lost: 0,
            throttled: 0,
            stopped_ns: 0,
            running_ns: 0,
            gap_histogram: vec![0; (BUCKETS_PER_INTERVAL * MAX_GAP_INTERVALS) as usize + 1],
        }
    }

    /// Adds a tick that came `gap_ns` of running time after the previous one.
    pub(super) fn add(&mut self, gap_ns: u64) {
        self.seen += 1;
        // It saturates only for gaps of years, which are beyond all buckets.
        let bucket = gap_ns.saturating_mul(BUCKETS_PER_INTERVAL) / self.interval_ns.max(1);
        let last = self.gap_histogram.len() - 1;
        self.gap_histogram[usize::try_from(bucket).unwrap_or(last).min(last)] += 1;
    }

    /// Ticks that the running time has room for.
    pub(super) fn expected(&self) -> u64 {
        self.running_ns / self.interval_ns.max(1)
    }

    /// Ticks that are missing without a known reason. The timer was late, or it ticked in the kernel,
    /// which the user may not sample.
    pub(super) fn late(&self) -> u64 {
        let stopped = self.stopped_ns / self.interval_ns.max(1);
        self.expected()
            .saturating_sub(self.seen + self.lost + stopped)
    }

    /// As in the manifest, without costs.
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

    /// The gap that this share of all gaps does not exceed, to 1/200 of an interval. `None` without
    /// ticks, or if the gap is longer than 20 intervals.
    pub(super) fn gap_ns(&self, share: f64) -> Option<u64> {
        let count: u64 = self.gap_histogram.iter().sum();
        let rank = ((count as f64 * share).ceil() as u64).max(1);
        let mut cumulative = 0;
        let bucket = self.gap_histogram.iter().position(|n| {
            cumulative += n;
            cumulative >= rank
        })?;
        // The middle of the bucket.
        (bucket + 1 < self.gap_histogram.len()).then(|| {
            let twice = 2 * bucket as u64 + 1;
            twice * self.interval_ns / (2 * BUCKETS_PER_INTERVAL)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ticks_are_counted_by_reason() {
        let mut ticks = TickStatistics::new(100);
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
    fn quantiles_match_those_of_the_sorted_gaps() {
        let mut ticks = TickStatistics::new(100_000);
        let mut gaps: Vec<u64> = (0..1000).map(|i| 90_000 + i * 37 % 20_000).collect();
        gaps.iter().for_each(|&gap| ticks.add(gap));
        gaps.sort_unstable();
        for share in [0.01, 0.5, 0.99, 1.0] {
            let exact = gaps[((1000.0 * share) as usize).max(1) - 1];
            let seen = ticks.gap_ns(share).unwrap();
            assert!(seen.abs_diff(exact) <= 500, "{share}: {seen} for {exact}");
        }
        assert_eq!(TickStatistics::new(5).gap_ns(0.5), None);
    }

    #[test]
    fn gap_beyond_all_buckets_has_no_quantile() {
        let mut ticks = TickStatistics::new(100);
        ticks.add(1_000_000);
        assert_eq!(ticks.gap_ns(0.5), None);
    }
}
