//! Chooses the period of a thread so that sampling keeps to an overhead. Pure.
//!
//! `memgauge_live::sampling::budget` has the formula; this module applies it to one thread. A window
//! of a tenth of a second quickly shows that a period is wrong by a fifth or more. Smaller errors
//! are corrected over seconds, as precisely as the samples allow.
//!
//! If `phases` are detected, windows without a change use less than the budget. An interesting
//! phase may use what they saved.

use memgauge_live::sampling::budget::{
    BudgetWindow, TOLERANCE, period_factor_within, scaled_period, target_overhead,
};

use crate::phases::WindowEvents;

/// Share of the budget to use between interesting phases.
const UNINTERESTING_EFFORT: f64 = 0.5;
/// Share of the budget to use in an interesting phase, while saved budget is left. `budget`
/// tolerates a fifth more, which still is below twice the budget.
const INTERESTING_EFFORT: f64 = 1.6;
/// CPU time of the thread whose unused budget can be saved, in nanoseconds.
const SAVING_TIME_NS: f64 = 20e9;

/// CPU time of the thread after which small errors are corrected, in nanoseconds.
const MIN_SLOW_WINDOW_NS: f64 = 1e9;
/// Maximum share of the overhead that memgauge's own time counts for in one window.
const MAX_OWN_SHARE: f64 = 0.5;
/// Smallest relative error of the overhead that is corrected.
const MIN_CORRECTION: f64 = 0.04;

/// How informative samples of a thread are at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Phases are not detected.
    Unknown,
    /// The thread does the same as before.
    Low,
    /// The thread's behaviour has just changed.
    High,
}

/// Counts of a thread at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SamplingCounts {
    /// Number of samples, including lost ones.
    pub(crate) samples: u64,
    /// Memgauge's own CPU time in nanoseconds.
    pub(crate) own_ns: u64,
    /// CPU time of the thread in nanoseconds.
    pub(crate) observed_ns: u64,
    /// Number of events counted.
    pub(crate) events: u64,
}

/// Time that sampling a thread may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Budget {
    /// Share of the thread's CPU time, 0.01 for 1 %.
    pub(crate) allowed: f64,
    /// Cost of a sample in nanoseconds.
    pub(crate) cost_ns: f64,
}

/// Period control for a thread.
#[derive(Debug, Default)]
pub(crate) struct PeriodController {
    previous: SamplingCounts,
    so_far: BudgetWindow,
    /// Windows since the period or the effort last changed.
    since_change: BudgetWindow,
    interest: Option<Interest>,
    /// Saved budget in nanoseconds.
    saved_ns: f64,
}

impl PeriodController {
    /// Returns the events and CPU time since the last window ended.
    pub(crate) fn events_since(&self, now: &SamplingCounts) -> WindowEvents {
        let increase = |now: u64, previous: u64| now.saturating_sub(previous) as f64;
        WindowEvents {
            events: increase(now.events, self.previous.events),
            observed_ns: increase(now.observed_ns, self.previous.observed_ns),
        }
    }

    /// Ends a window. Returns the new period (at least 1), or `None` to keep the current one.
    pub(crate) fn end_window(
        &mut self,
        now: SamplingCounts,
        budget: Budget,
        interest: Interest,
        period: u64,
    ) -> Option<u64> {
        let Budget { allowed, cost_ns } = budget;
        let samples = now.samples.saturating_sub(self.previous.samples);
        let window = BudgetWindow {
            samples,
            samples_ns: samples as f64 * cost_ns,
            own_ns: now.own_ns.saturating_sub(self.previous.own_ns) as f64,
            observed_ns: now.observed_ns.saturating_sub(self.previous.observed_ns) as f64,
        };
        self.previous = now;
        self.so_far = self.so_far.plus(window);
        self.saved_ns += (allowed - window.overhead()) * window.observed_ns;
        self.saved_ns = self.saved_ns.min(allowed * SAVING_TIME_NS);
        let effort = match interest {
            Interest::Low => UNINTERESTING_EFFORT,
            Interest::High if self.saved_ns > 0.0 => INTERESTING_EFFORT,
            Interest::High | Interest::Unknown => 1.0,
        };
        if self.interest.replace(interest) != Some(interest) {
            self.since_change = BudgetWindow::default();
        }
        self.since_change = self.since_change.plus(window);
        let target = effort * target_overhead(allowed, &self.so_far);
        let factor = fast_factor(target, window, cost_ns);
        let factor = factor.or_else(|| self.slow_factor(target, cost_ns))?;
        self.since_change = BudgetWindow::default();
        Some(scaled_period(period, factor, 1)).filter(|&next| next != period)
    }

    /// Factor for the period from all windows since it last changed.
    fn slow_factor(&self, target: f64, cost_ns: f64) -> Option<f64> {
        let window = &self.since_change;
        let tolerance = relative_error(target, window, cost_ns).max(MIN_CORRECTION);
        let is_significant = window.observed_ns >= MIN_SLOW_WINDOW_NS && tolerance <= 0.5;
        is_significant
            .then(|| period_factor_within(tolerance, target, window))
            .flatten()
    }
}

/// Factor for the period from one window. Memgauge's own time comes in bursts, for example when it
/// reads the code of a program, so in one window it counts for at most half of the overhead.
fn fast_factor(target: f64, window: BudgetWindow, cost_ns: f64) -> Option<f64> {
    let tolerance = relative_error(target, &window, cost_ns).max(TOLERANCE);
    let without_bursts = BudgetWindow {
        own_ns: window
            .own_ns
            .min(MAX_OWN_SHARE * target * window.observed_ns),
        ..window
    };
    period_factor_within(tolerance, target, &without_bursts)
}

/// Relative error of the number of random samples compared with the affordable number: two standard
/// deviations.
fn relative_error(target: f64, window: &BudgetWindow, cost_ns: f64) -> f64 {
    let affordable = target * window.observed_ns / cost_ns.max(1.0);
    2.0 / affordable.max(window.samples as f64).max(1.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::{PhaseDetector, WindowActivity};

    const COST_NS: f64 = 5_000.0;
    const OWN_NS: f64 = 1_000.0;
    const WINDOW_NS: u64 = 100_000_000;

    fn budget(allowed: f64, cost_ns: f64) -> Budget {
        Budget { allowed, cost_ns }
    }

    /// Overheads of the windows of a thread that uses a CPU all the time, sampled by a timer that
    /// starts with this period.
    fn windows(mut period: u64, allowed: f64, count: usize) -> Vec<f64> {
        let (mut pace, mut now) = (PeriodController::default(), SamplingCounts::default());
        let mut overheads = Vec::new();
        for _ in 0..count {
            let samples = WINDOW_NS / period;
            now.samples += samples;
            now.own_ns += (samples as f64 * OWN_NS) as u64;
            now.observed_ns += WINDOW_NS;
            overheads.push(samples as f64 * (COST_NS + OWN_NS) / WINDOW_NS as f64);
            let next = pace.end_window(now, budget(allowed, COST_NS), Interest::Unknown, period);
            period = next.unwrap_or(period);
        }
        overheads
    }

    #[test]
    fn overhead_is_below_twice_the_budget_after_a_second_and_settles_at_the_budget() {
        for begin in [10_000, 100_000, 1_000_000, 100_000_000] {
            let overheads = windows(begin, 0.01, 600);
            // The tenth window ends the first second.
            let late = &overheads[10..];
            assert!(late.iter().all(|&o| o <= 0.02), "{begin}: {overheads:?}");
            // The excess of the first windows has been paid back by then.
            let mean = overheads[300..].iter().sum::<f64>() / 300.0;
            assert!(
                (0.009..=0.0105).contains(&mean),
                "{begin}: {mean} {overheads:?}"
            );
        }
    }

    #[test]
    fn noise_does_not_change_the_period_and_small_errors_are_corrected() {
        let (mut pace, mut now, mut random) =
            (PeriodController::default(), SamplingCounts::default(), 7u64);
        // 150 samples per second are 0.9 %: 15 ± 4 samples per window.
        let (mut period, mut changes, mut overhead_ns) = (6_666_667u64, 0, 0.0);
        for window in 0..1200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005) | 1;
            let noise = (random >> 61) + (random >> 58 & 7);
            let samples = (WINDOW_NS / period + noise).saturating_sub(7);
            now.samples += samples;
            now.own_ns += (samples as f64 * OWN_NS) as u64;
            now.observed_ns += WINDOW_NS;
            if window >= 600 {
                overhead_ns += samples as f64 * (59_000.0 + OWN_NS);
            }
            let next = pace.end_window(now, budget(0.01, 59_000.0), Interest::Unknown, period);
            changes += u32::from(next.is_some());
            period = next.unwrap_or(period);
        }
        let mean = overhead_ns / (600.0 * WINDOW_NS as f64);
        assert!((0.009..=0.0105).contains(&mean), "{mean}");
        assert!(changes < 60, "{changes} changes in two minutes");
    }

    /// Samples and overhead of each window, for a thread that changes its addresses every ten
    /// seconds for five minutes.
    fn changing(allowed: f64) -> Vec<(u64, f64)> {
        let (mut pace, mut now) = (PeriodController::default(), SamplingCounts::default());
        let (mut phases, mut random, mut period) = (PhaseDetector::default(), 1u64, 1_000_000);
        let mut windows = Vec::new();
        for window in 0..3000u64 {
            let samples = WINDOW_NS / period;
            let mut activity = WindowActivity::default();
            for _ in 0..samples {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                activity.push(4096, Some(((window / 100) << 30) + (random >> 48)));
            }
            now.samples += samples;
            now.own_ns += (samples as f64 * OWN_NS) as u64;
            now.observed_ns += WINDOW_NS;
            now.events = now.observed_ns;
            let overhead = samples as f64 * (COST_NS + OWN_NS) / WINDOW_NS as f64;
            windows.push((samples, overhead));
            let interest = match phases.end_window(&activity, pace.events_since(&now)) {
                true => Interest::High,
                false => Interest::Low,
            };
            let next = pace.end_window(now, budget(allowed, COST_NS), interest, period);
            period = next.unwrap_or(period);
        }
        windows
    }

    #[test]
    fn changing_thread_gets_more_samples_within_the_budget() {
        let windows = changing(0.01);
        // The period settles in the first minute.
        let late = &windows[600..];
        let mean = late.iter().map(|w| w.1).sum::<f64>() / late.len() as f64;
        assert!((0.004..=0.01).contains(&mean), "{mean}");
        assert!(late.iter().all(|w| w.1 <= 0.02), "never twice the budget");
        let of = |from: usize, to: usize| {
            let part = |phase: &[(u64, f64)]| phase[from..to].iter().map(|w| w.0).sum::<u64>();
            late.chunks(100).map(part).sum::<u64>() as f64 / (to - from) as f64
        };
        // A change is detected at the end of its first window and is interesting for ten windows.
        let (new, old) = (of(2, 10), of(40, 100));
        assert!(new > 2.0 * old, "{new} against {old}");
    }

    /// A thread that gets a third of a CPU. In one window memgauge uses a hundred times as much
    /// time as in others.
    #[test]
    fn burst_of_own_time_does_not_change_the_period() {
        const SHORT_NS: u64 = WINDOW_NS / 3;
        let (mut pace, mut now, mut period) = (
            PeriodController::default(),
            SamplingCounts::default(),
            100_000_000,
        );
        let (mut left, mut periods) = (0, Vec::new());
        for window in 0..200u64 {
            let samples = (SHORT_NS + left) / period;
            left = (SHORT_NS + left) % period;
            now.samples += samples;
            now.own_ns += samples * 1000 + if window == 100 { 3_000_000 } else { 0 };
            now.observed_ns += SHORT_NS;
            let next = pace.end_window(now, budget(0.01, 20_000.0), Interest::Unknown, period);
            period = next.unwrap_or(period);
            periods.push(period);
        }
        // 1 % is one sample of 21 µs every 2.1 ms.
        let settled = 1_800_000..2_600_000;
        assert!(
            periods[30..100].iter().all(|p| settled.contains(p)),
            "{periods:?}"
        );
        // The burst of 3 ms, the budget of nine windows, is paid back.
        assert!(periods[100..].iter().all(|&p| p < 9_000_000), "{periods:?}");
        assert!(settled.contains(&periods[199]), "{periods:?}");
    }

    #[test]
    fn waiting_thread_keeps_its_period() {
        let mut pace = PeriodController::default();
        let next = pace.end_window(
            SamplingCounts::default(),
            budget(0.01, COST_NS),
            Interest::Unknown,
            1000,
        );
        assert_eq!(next, None);
    }
}
