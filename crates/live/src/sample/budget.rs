//! A period for an overhead that the user allows. Pure.
//!
//! The cost of a sample is measured (`cost`): a piece of work is timed with the event
//! sampled and without. The kernel reports what memgauge itself uses. From both follows
//! the overhead, and from the rate of samples the period that would just meet the
//! budget:
//!
//! ```text
//! overhead = (samples × cost of one + memgauge's own time) ÷ processor time
//! period'  = period × (samples × cost of one) ÷ (budget − memgauge's own time)
//! ```
//!
//! Time taken above the budget, mostly before the first period was found, is paid back:
//! until then the aim is below the budget.

/// Parts of the processor time that a step may change the period by, at most.
const LARGEST_STEP: f64 = 8.0;
/// An overhead within this part of the budget needs no new period.
pub const NEAR_ENOUGH: f64 = 0.2;
/// Fewer samples in a window say too little.
const FEW: u64 = 16;

/// Part of a budget that samples get, even where memgauge alone uses it up.
const LEAST_FOR_SAMPLES: f64 = 0.1;

/// Observed nanoseconds in which what was taken too much is to be paid back, where a
/// budget allows that.
const PAID_BACK_IN_NS: f64 = 1e9;
/// Share of the budget above which there is a debt. Periods are not changed for a
/// little, so the aim is sometimes exceeded by a little.
const ALL_BUT_A_LITTLE: f64 = 0.97;
/// Part of the budget that stays while that goes on, so that a long debt does not end
/// sampling.
const LEAST_AIM: f64 = 0.25;

/// No period is longer: it would be days of anything.
const LARGEST: u64 = 1 << 48;

/// Samples and time in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Samples taken.
    pub samples: u64,
    /// Nanoseconds that they took from the program.
    pub samples_ns: f64,
    /// Nanoseconds of processor time that memgauge used.
    pub own_ns: f64,
    /// Nanoseconds of processor time that was observed.
    pub observed_ns: f64,
}

impl Window {
    /// Nanoseconds taken in all.
    fn taken_ns(&self) -> f64 {
        self.samples_ns + self.own_ns
    }

    /// With what happened in the next one.
    pub fn and(self, next: Window) -> Window {
        Window {
            samples: self.samples + next.samples,
            samples_ns: self.samples_ns + next.samples_ns,
            own_ns: self.own_ns + next.own_ns,
            observed_ns: self.observed_ns + next.observed_ns,
        }
    }

    /// Overhead as a part of the observed time.
    pub fn overhead(&self) -> f64 {
        self.taken_ns() / self.observed_ns.max(1.0)
    }
}

/// The overhead to aim at, so that with what there was `so_far` it becomes what is
/// `allowed`. Never more than that: a budget that was not used is not saved up.
pub fn aim(allowed: f64, so_far: &Window) -> f64 {
    let debt_ns = so_far.taken_ns() - ALL_BUT_A_LITTLE * allowed * so_far.observed_ns;
    (allowed - debt_ns / PAID_BACK_IN_NS).clamp(LEAST_AIM * allowed, allowed)
}

/// Factor for periods to meet an overhead `allowed` (0.02 is 2 %). `None` where it is
/// met, nearly, or the window tells too little; never below 1 while it is exceeded.
pub fn factor(allowed: f64, window: &Window) -> Option<f64> {
    factor_beyond(NEAR_ENOUGH, allowed, window)
}

/// The same where an overhead within this part of the budget is near enough.
pub fn factor_beyond(near: f64, allowed: f64, window: &Window) -> Option<f64> {
    let all_ns = allowed * window.observed_ns;
    if all_ns <= 0.0 {
        return None;
    }
    let for_samples_ns = (all_ns - window.own_ns).max(all_ns * LEAST_FOR_SAMPLES);
    let ratio = window.samples_ns / for_samples_ns;
    // Own time grows with samples, too: more of them would lead further away.
    if ratio < 1.0 && window.overhead() > allowed {
        return None;
    }
    let telling = window.samples >= FEW || ratio < 1.0;
    if !telling || (ratio - 1.0).abs() <= near {
        return None;
    }
    Some(ratio.clamp(1.0 / LARGEST_STEP, LARGEST_STEP))
}

/// A period so changed, not below the smallest that the event has.
pub fn changed(period: u64, factor: f64, floor: u64) -> u64 {
    ((period as f64 * factor).round() as u64).clamp(floor.max(1), LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: f64 = 1e9;
    const FLOOR: u64 = 10;

    /// A second of a program with so many events, sampled at this period for
    /// 10 us each.
    fn window(events: u64, period: u64) -> Window {
        Window {
            samples: events / period,
            samples_ns: (events / period) as f64 * 10_000.0,
            own_ns: 0.0,
            observed_ns: SECOND,
        }
    }

    fn settle(events: u64, mut period: u64) -> u64 {
        for _ in 0..40 {
            let Some(factor) = factor(0.02, &window(events, period)) else {
                break;
            };
            period = changed(period, factor, FLOOR);
        }
        period
    }

    #[test]
    fn the_period_settles_where_the_overhead_is_allowed() {
        // 2 % of a second at 10 us each are 2000 samples: one every 500 events.
        for start in [10, 500, 100_000] {
            let period = settle(1_000_000, start);
            let overhead = window(1_000_000, period).overhead();
            assert!((0.015..=0.025).contains(&overhead), "{start}: {overhead}");
        }
    }

    #[test]
    fn what_was_taken_too_much_at_first_is_paid_back() {
        // Windows of a tenth of a second with a million events a second. A sample of
        // each event would take ten times as long as the program.
        let (mut period, mut so_far) = (1, Window::default());
        let mut after = Vec::new();
        for _ in 0..200 {
            let next = Window {
                samples: 100_000 / period,
                samples_ns: (100_000 / period) as f64 * 1000.0,
                own_ns: 100_000.0,
                observed_ns: SECOND / 10.0,
            };
            so_far = so_far.and(next);
            after.push(so_far.overhead());
            if let Some(factor) = factor(aim(0.02, &so_far), &next) {
                period = changed(period, factor, 1);
            }
        }
        assert!(after[0] > 0.9, "{}", after[0]);
        assert!(after[199] <= 0.02, "{}", after[199]);
        assert!(after[199] > 0.015, "{}", after[199]);
    }

    #[test]
    fn the_aim_is_the_budget_where_nothing_is_owed_and_never_nothing() {
        let of = |taken_ns| {
            let so_far = Window {
                samples_ns: taken_ns,
                observed_ns: SECOND,
                ..Window::default()
            };
            aim(0.02, &so_far)
        };
        assert_eq!(of(0.0), 0.02);
        assert_eq!(of(19e6), 0.02);
        assert!((of(24.4e6) - 0.015).abs() < 1e-9);
        assert_eq!(of(900e6), 0.005);
    }

    #[test]
    fn a_rare_event_is_sampled_at_its_floor() {
        assert_eq!(settle(100, 100_000), FLOOR);
    }

    #[test]
    fn steps_are_bounded() {
        let costly = Window {
            samples: 100,
            samples_ns: 500e6,
            own_ns: 1e6,
            observed_ns: SECOND,
        };
        assert!((costly.overhead() - 0.501).abs() < 1e-9);
        assert_eq!(factor(0.02, &costly), Some(8.0));
        assert_eq!(changed(1000, 8.0, FLOOR), 8000);
        assert_eq!(changed(20, 0.25, FLOOR), FLOOR);
    }

    #[test]
    fn too_little_says_nothing() {
        assert_eq!(factor(0.02, &Window::default()), None);
        let few = Window {
            samples: 3,
            samples_ns: 30_000.0,
            own_ns: 0.0,
            observed_ns: 100_000.0,
        };
        assert_eq!(factor(0.02, &few), None);
    }

    #[test]
    fn what_memgauge_itself_uses_does_not_drive_periods_up_for_ever() {
        let with_own = |samples: u64| Window {
            samples,
            samples_ns: samples as f64 * 10_000.0,
            own_ns: 500e6,
            observed_ns: SECOND,
        };
        assert_eq!(factor(0.02, &with_own(200)), None, "a tenth of the budget");
        assert!(factor(0.02, &with_own(2000)).unwrap() > 1.0);
        assert_eq!(
            factor(0.02, &with_own(0)),
            None,
            "over the limit: not lowered"
        );
    }
}
