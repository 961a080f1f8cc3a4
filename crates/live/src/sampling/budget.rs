//! Finds the period that meets an overhead that the user allows. Pure.
//!
//! The cost of a sample is measured (`sample_cost`): a piece of work is timed with and without
//! sampling. The kernel reports the CPU time that memgauge itself uses. Together they give the
//! overhead, and with the rate of samples the period that would just meet the budget:
//!
//! ```text
//! overhead   = (samples × cost of a sample + memgauge's own time) ÷ observed CPU time
//! new period = period × (samples × cost of a sample) ÷ (budget − memgauge's own time)
//! ```
//!
//! Before the first period is found, sampling may take more than the budget. That is paid back:
//! until then the target is below the budget.

/// Maximum factor by which one step changes the period.
const MAX_STEP: f64 = 8.0;
/// The period is kept while the overhead differs from the target by less than this share.
pub const TOLERANCE: f64 = 0.2;
/// Minimum number of samples in a window that justifies a longer period.
const MIN_SAMPLES: u64 = 16;

/// Share of the budget that is left to samples even if memgauge alone uses it up.
const MIN_SHARE_FOR_SAMPLES: f64 = 0.1;

/// Observed time in which the debt is paid back, unless [`MIN_TARGET`] prevents it.
const PAYBACK_TIME_NS: f64 = 1e9;
/// Share of the budget above which there is a debt. It is below 1 because [`TOLERANCE`] lets the
/// target be exceeded a little.
const DEBT_THRESHOLD: f64 = 0.97;
/// Minimum target as a share of the budget. Without it a large debt would end sampling for long.
const MIN_TARGET: f64 = 0.25;

/// Maximum period. No event is that frequent.
const MAX_PERIOD: u64 = 1 << 48;

/// Samples and time in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetWindow {
    /// Number of samples.
    pub samples: u64,
    /// Time that the samples took from the program, in nanoseconds.
    pub samples_ns: f64,
    /// CPU time of memgauge, in nanoseconds.
    pub own_ns: f64,
    /// Observed CPU time, in nanoseconds.
    pub observed_ns: f64,
}

impl BudgetWindow {
    fn taken_ns(&self) -> f64 {
        self.samples_ns + self.own_ns
    }

    /// Returns the sum of both windows.
    pub fn plus(self, next: BudgetWindow) -> BudgetWindow {
        BudgetWindow {
            samples: self.samples + next.samples,
            samples_ns: self.samples_ns + next.samples_ns,
            own_ns: self.own_ns + next.own_ns,
            observed_ns: self.observed_ns + next.observed_ns,
        }
    }

    /// Overhead as a share of the observed time.
    pub fn overhead(&self) -> f64 {
        self.taken_ns() / self.observed_ns.max(1.0)
    }
}

/// Returns the overhead for the next window, so that the overhead of the whole run becomes
/// `allowed`. It is never more than `allowed`: an unused budget is not saved up.
pub fn target_overhead(allowed: f64, so_far: &BudgetWindow) -> f64 {
    let debt_ns = so_far.taken_ns() - DEBT_THRESHOLD * allowed * so_far.observed_ns;
    (allowed - debt_ns / PAYBACK_TIME_NS).clamp(MIN_TARGET * allowed, allowed)
}

/// Returns the factor for the period that meets the target overhead (0.02 is 2 %). `None` if the
/// overhead is within [`TOLERANCE`] of the target or the window has too few samples.
pub fn period_factor(target: f64, window: &BudgetWindow) -> Option<f64> {
    period_factor_within(TOLERANCE, target, window)
}

/// As [`period_factor`], with another tolerance.
pub fn period_factor_within(tolerance: f64, target: f64, window: &BudgetWindow) -> Option<f64> {
    let budget_ns = target * window.observed_ns;
    if budget_ns <= 0.0 {
        return None;
    }
    let for_samples_ns = (budget_ns - window.own_ns).max(budget_ns * MIN_SHARE_FOR_SAMPLES);
    let factor = window.samples_ns / for_samples_ns;
    // A shorter period would also increase memgauge's own time, which already exceeds the budget.
    if factor < 1.0 && window.overhead() > target {
        return None;
    }
    let is_significant = window.samples >= MIN_SAMPLES || factor < 1.0;
    if !is_significant || (factor - 1.0).abs() <= tolerance {
        return None;
    }
    Some(factor.clamp(1.0 / MAX_STEP, MAX_STEP))
}

/// Returns the period times the factor, at least the minimum of the event.
pub fn scaled_period(period: u64, factor: f64, min_period: u64) -> u64 {
    ((period as f64 * factor).round() as u64).clamp(min_period.max(1), MAX_PERIOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: f64 = 1e9;
    const MIN_PERIOD: u64 = 10;

    /// One second of a program with this many events. A sample costs 10 us.
    fn window(events: u64, period: u64) -> BudgetWindow {
        BudgetWindow {
            samples: events / period,
            samples_ns: (events / period) as f64 * 10_000.0,
            own_ns: 0.0,
            observed_ns: SECOND,
        }
    }

    fn settle(events: u64, mut period: u64) -> u64 {
        for _ in 0..40 {
            let Some(factor) = period_factor(0.02, &window(events, period)) else {
                break;
            };
            period = scaled_period(period, factor, MIN_PERIOD);
        }
        period
    }

    #[test]
    fn period_settles_at_the_allowed_overhead() {
        // 2 % of a second at 10 us each are 2000 samples: one every 500 events.
        for start in [10, 500, 100_000] {
            let period = settle(1_000_000, start);
            let overhead = window(1_000_000, period).overhead();
            assert!((0.015..=0.025).contains(&overhead), "{start}: {overhead}");
        }
    }

    #[test]
    fn excess_of_the_first_windows_is_paid_back() {
        // In windows of a tenth of a second, with a million events per second, a sample of each
        // event would take ten times as long as the program.
        let (mut period, mut so_far) = (1, BudgetWindow::default());
        let mut after = Vec::new();
        for _ in 0..200 {
            let next = BudgetWindow {
                samples: 100_000 / period,
                samples_ns: (100_000 / period) as f64 * 1000.0,
                own_ns: 100_000.0,
                observed_ns: SECOND / 10.0,
            };
            so_far = so_far.plus(next);
            after.push(so_far.overhead());
            if let Some(factor) = period_factor(target_overhead(0.02, &so_far), &next) {
                period = scaled_period(period, factor, 1);
            }
        }
        assert!(after[0] > 0.9, "{}", after[0]);
        assert!(after[199] <= 0.02, "{}", after[199]);
        assert!(after[199] > 0.015, "{}", after[199]);
    }

    #[test]
    fn target_is_the_budget_without_debt_and_never_zero() {
        let of = |taken_ns| {
            let so_far = BudgetWindow {
                samples_ns: taken_ns,
                observed_ns: SECOND,
                ..BudgetWindow::default()
            };
            target_overhead(0.02, &so_far)
        };
        assert_eq!(of(0.0), 0.02);
        assert_eq!(of(19e6), 0.02);
        assert!((of(24.4e6) - 0.015).abs() < 1e-9);
        assert_eq!(of(900e6), 0.005);
    }

    #[test]
    fn rare_event_gets_its_minimum_period() {
        assert_eq!(settle(100, 100_000), MIN_PERIOD);
    }

    #[test]
    fn steps_are_bounded() {
        let costly = BudgetWindow {
            samples: 100,
            samples_ns: 500e6,
            own_ns: 1e6,
            observed_ns: SECOND,
        };
        assert!((costly.overhead() - 0.501).abs() < 1e-9);
        assert_eq!(period_factor(0.02, &costly), Some(8.0));
        assert_eq!(scaled_period(1000, 8.0, MIN_PERIOD), 8000);
        assert_eq!(scaled_period(20, 0.25, MIN_PERIOD), MIN_PERIOD);
    }

    #[test]
    fn few_samples_do_not_change_the_period() {
        assert_eq!(period_factor(0.02, &BudgetWindow::default()), None);
        let few = BudgetWindow {
            samples: 3,
            samples_ns: 30_000.0,
            own_ns: 0.0,
            observed_ns: 100_000.0,
        };
        assert_eq!(period_factor(0.02, &few), None);
    }

    #[test]
    fn own_time_does_not_raise_the_period_forever() {
        let with_own = |samples: u64| BudgetWindow {
            samples,
            samples_ns: samples as f64 * 10_000.0,
            own_ns: 500e6,
            observed_ns: SECOND,
        };
        assert_eq!(
            period_factor(0.02, &with_own(200)),
            None,
            "a tenth of the budget"
        );
        assert!(period_factor(0.02, &with_own(2000)).unwrap() > 1.0);
        assert_eq!(
            period_factor(0.02, &with_own(0)),
            None,
            "over the limit: not lowered"
        );
    }
}
