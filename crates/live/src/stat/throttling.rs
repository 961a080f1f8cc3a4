//! Time in which the kernel had throttled a series' timer, and what was probably counted in that
//! time. Pure.
//!
//! The kernel stops a timer that is faster than `kernel.perf_event_max_sample_rate` until its own
//! next tick. From Linux 6.16 on (`perf_event_throttle_group`) the whole group stops with it, before
//! that only the timer. The group's running time goes on, but the timer's count does not. The
//! difference is the throttled time:
//!
//! ```text
//! ticks    | | | | |                       | | | | |
//! running  ---------------------------------------->
//! counted  --------- throttled ------------ and so on
//! ```
//!
//! The events of a stop are estimated from the thread's rate around it: from the end of the
//! previous stop to the next tick. A tick takes time in which the program does nothing, and there
//! are no ticks during a stop. So the rate is relative to the time without ticks.
//!
//! Rejected: the times of the THROTTLE and UNTHROTTLE records, since the thread may sleep in
//! between, and one rate for the whole run, since programs have phases.

use std::collections::BTreeMap;

use super::{TickStatistics, Values};

/// Counts older than this count half. It spans several of the kernel's ticks, which are 1 to 10 ms
/// apart (CONFIG_HZ).
const WINDOW_NS: u64 = 20_000_000;

/// Minimum share of the time that counts as the program's own. The cost of a tick is uncertain by 10
/// to 20 %, so the ticks could seem to take all of it.
const MIN_PROGRAM_SHARE: f64 = 0.2;

const SECOND_NS: u64 = 1_000_000_000;

/// True if the kernel may throttle a timer of this interval.
pub(super) fn may_throttle(interval_ns: u64, max_rate: u64) -> bool {
    interval_ns.saturating_mul(max_rate) <= SECOND_NS
}

/// Warning before the start, if the interval is shorter than the kernel allows.
pub(super) fn warning_before_start(interval_ns: u64, max_rate: u64) -> Option<String> {
    let rate = SECOND_NS.div_ceil(interval_ns.max(1));
    let min_interval_us = SECOND_NS.div_ceil(max_rate.max(1)).div_ceil(1000);
    (rate > max_rate).then(|| {
        format!(
            "the kernel allows {max_rate} ticks per second, and one every {} us are {rate}: it will stop \
             timer and counters again and again, and counts of that time are estimated; use \
             -I {min_interval_us}us, or sysctl kernel.perf_event_max_sample_rate={rate}",
            interval_ns as f64 / 1e3,
        )
    })
}

/// Note after a run in which the timer was throttled.
pub(super) fn note_after_run(ticks: &TickStatistics) -> Option<String> {
    let share = 100.0 * ticks.stopped_ns as f64 / ticks.running_ns.max(1) as f64;
    (ticks.stopped_ns > 0).then(|| {
        format!(
            "the kernel stopped timer and counters {} times for too many ticks \
             (kernel.perf_event_max_sample_rate), {:.1} ms or {share:.1} % of the running time: counts \
             of that time are estimated from those around it",
            ticks.throttled,
            ticks.stopped_ns as f64 / 1e6,
        )
    })
}

/// Counts of a group in a thread around the last stop.
#[derive(Debug, Default)]
struct RecentCounts {
    counted_ns: u64,
    ticks: u64,
    values: Values,
}

/// Throttling of all timers.
#[derive(Debug, Default)]
pub(super) struct TimerThrottling {
    /// The kernel throttles the whole group of a timer.
    whole_group: bool,
    /// Cost of a tick to the program.
    tick_ns: f64,
    /// Throttling is expected, so recent counts are kept.
    is_expected: bool,
    /// A timer has been throttled.
    has_occurred: bool,
    /// By thread (or CPU) and group.
    recent: BTreeMap<(u32, usize), RecentCounts>,
    /// Throttled time in nanoseconds, by group.
    throttled_ns: BTreeMap<usize, u64>,
    /// Events estimated for that time, by group and index in the group.
    estimated: BTreeMap<(usize, usize), u64>,
}

impl TimerThrottling {
    /// `tick_ns` is the cost of a tick. If throttling `is_expected`, recent counts are kept from the
    /// start, otherwise from the first stop on.
    pub(super) fn new(whole_group: bool, is_expected: bool, tick_ns: f64) -> TimerThrottling {
        TimerThrottling {
            whole_group,
            is_expected,
            tick_ns,
            ..TimerThrottling::default()
        }
    }

    /// Notes that a timer was throttled.
    pub(super) fn note_throttled(&mut self) {
        (self.is_expected, self.has_occurred) = (true, true);
    }

    /// Adds what was probably counted while the group was throttled to its increments in
    /// `running_ns`. `owner` is the thread or CPU.
    pub(super) fn add_estimate(
        &mut self,
        owner: u32,
        group: usize,
        running_ns: u64,
        increments: &mut [u64],
    ) {
        let Some(&counted_ns) = increments.first() else {
            return;
        };
        if !self.whole_group || !self.is_expected {
            return;
        }
        let recent = self.recent.entry((owner, group)).or_default();
        recent.add(counted_ns, increments);
        let throttled_ns = running_ns.saturating_sub(counted_ns);
        if !self.has_occurred || throttled_ns == 0 {
            return;
        }
        *self.throttled_ns.entry(group).or_default() += throttled_ns;
        let mut next = RecentCounts::default();
        next.add(counted_ns, increments);
        increments[0] += throttled_ns;
        for (index, value) in increments.iter_mut().enumerate().skip(1) {
            let estimate = recent.estimate(index, throttled_ns, self.tick_ns);
            *value = value.saturating_add(estimate);
            *self.estimated.entry((group, index)).or_default() += estimate;
        }
        // The two clocks differ by some nanoseconds at each tick, which is no stop.
        if throttled_ns > counted_ns / 10 {
            *recent = next;
        }
    }

    /// Throttled time of a group in all threads, in nanoseconds.
    pub(super) fn of_group_ns(&self, group: usize) -> u64 {
        self.throttled_ns.get(&group).copied().unwrap_or(0)
    }

    /// Throttled time of all groups, in nanoseconds.
    pub(super) fn total_ns(&self) -> u64 {
        self.throttled_ns.values().sum()
    }

    /// Number of events that were estimated for a counter.
    pub(super) fn estimated_events(&self, group: usize, index: usize) -> u64 {
        self.estimated.get(&(group, index)).copied().unwrap_or(0)
    }
}

impl RecentCounts {
    fn add(&mut self, counted_ns: u64, increments: &[u64]) {
        if self.counted_ns > WINDOW_NS {
            self.counted_ns /= 2;
            self.ticks /= 2;
            self.values.iter_mut().for_each(|value| *value /= 2);
        }
        self.counted_ns += counted_ns;
        self.ticks += 1;
        let len = self.values.len().max(increments.len());
        self.values.resize(len, 0);
        for (sum, value) in self.values.iter_mut().zip(increments) {
            *sum += value;
        }
    }

    /// Number of events of a counter in `ns` nanoseconds, at the recent rate.
    fn estimate(&self, index: usize, ns: u64, tick_ns: f64) -> u64 {
        let value = self.values.get(index).copied().unwrap_or(0) as f64;
        let counted_ns = self.counted_ns.max(1) as f64;
        let own_ns = counted_ns - tick_ns * self.ticks as f64;
        (value * ns as f64 / own_ns.max(MIN_PROGRAM_SHARE * counted_ns)).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the estimate to one row of a group of a timer and a counter.
    fn with_estimate(
        throttling: &mut TimerThrottling,
        running_ns: u64,
        counted: [u64; 2],
    ) -> [u64; 2] {
        let mut increments = counted;
        throttling.add_estimate(7, 0, running_ns, &mut increments);
        increments
    }

    #[test]
    fn stop_has_the_rate_since_the_previous_stop() {
        let mut throttling = TimerThrottling::new(true, true, 0.0);
        assert_eq!(with_estimate(&mut throttling, 100, [100, 10]), [100, 10]);
        throttling.note_throttled();
        assert_eq!(with_estimate(&mut throttling, 100, [100, 20]), [100, 20]);
        // 30 more in 100 ns, then stopped for 600: 60 events in 300 ns.
        assert_eq!(with_estimate(&mut throttling, 700, [100, 30]), [700, 150]);
        // The next rate begins after that stop: 30 and 10 events in 200 ns.
        assert_eq!(
            with_estimate(&mut throttling, 300, [100, 10]),
            [300, 10 + 40]
        );
        assert_eq!(
            (throttling.of_group_ns(0), throttling.total_ns()),
            (800, 800)
        );
        assert_eq!(throttling.estimated_events(0, 1), 160);
    }

    #[test]
    fn small_difference_of_the_clocks_is_no_stop() {
        let mut throttling = TimerThrottling::new(true, true, 0.0);
        throttling.note_throttled();
        assert_eq!(with_estimate(&mut throttling, 101, [100, 0]), [101, 0]);
        assert_eq!(with_estimate(&mut throttling, 101, [100, 60]), [101, 60]);
        assert_eq!(
            with_estimate(&mut throttling, 700, [100, 30]),
            [700, 30 + 180]
        );
    }

    #[test]
    fn counts_are_kept_if_only_the_timer_is_throttled() {
        let mut throttling = TimerThrottling::new(false, true, 0.0);
        throttling.note_throttled();
        assert_eq!(with_estimate(&mut throttling, 700, [100, 30]), [100, 30]);
        assert_eq!(
            (throttling.total_ns(), throttling.estimated_events(0, 1)),
            (0, 0)
        );
    }

    #[test]
    fn difference_of_the_clocks_without_throttling_is_ignored() {
        let mut throttling = TimerThrottling::new(true, true, 0.0);
        assert_eq!(with_estimate(&mut throttling, 101, [100, 30]), [100, 30]);
        assert_eq!(throttling.total_ns(), 0);
    }

    #[test]
    fn group_without_counts_has_no_rate() {
        let mut throttling = TimerThrottling::new(true, false, 0.0);
        throttling.note_throttled();
        assert_eq!(with_estimate(&mut throttling, 700, [0, 0]), [700, 0]);
        assert_eq!(throttling.of_group_ns(0), 700);
    }

    #[test]
    fn interval_that_the_kernel_throttles_causes_a_warning() {
        assert!(!may_throttle(100_001, 10_000));
        assert!(may_throttle(100_000, 10_000));
        assert_eq!(warning_before_start(100_000, 10_000), None);
        let warning = warning_before_start(20_000, 24_000).expect("a warning");
        for words in ["allows 24000 ticks", "every 20 us are 50000", "-I 42us"] {
            assert!(warning.contains(words), "`{words}` is not in {warning}");
        }
        assert!(warning_before_start(0, 0).is_some());
    }

    #[test]
    fn rate_of_a_stop_excludes_the_cost_of_ticks() {
        let mut throttling = TimerThrottling::new(true, true, 50.0);
        throttling.note_throttled();
        // 30 events in the 50 ns that the tick leaves of 100.
        assert_eq!(
            with_estimate(&mut throttling, 200, [100, 30]),
            [200, 30 + 60]
        );
        let mut throttling = TimerThrottling::new(true, true, 99.0);
        throttling.note_throttled();
        assert_eq!(
            with_estimate(&mut throttling, 200, [100, 30]),
            [200, 30 + 150]
        );
    }

    #[test]
    fn threads_have_separate_rates() {
        let mut throttling = TimerThrottling::new(true, true, 0.0);
        throttling.note_throttled();
        let mut other = [100, 1000];
        throttling.add_estimate(8, 0, 100, &mut other);
        assert_eq!(with_estimate(&mut throttling, 200, [100, 10]), [200, 20]);
    }
}
