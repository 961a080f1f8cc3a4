//! A period for an overhead that the user allows. Pure.
//!
//! What a sample costs is measured (`cost`): a piece of work is timed with the
//! event sampled and without. What memgauge itself uses is what the kernel says it
//! used. From both follows the overhead, and from the rate of samples the period
//! that would just meet the budget:
//!
//! ```text
//! overhead = (samples × cost of one + memgauge's own time) ÷ processor time
//! period'  = period × (samples × cost of one) ÷ (budget − memgauge's own time)
//! ```

/// Parts of the processor time that a step may change the period by, at most.
const LARGEST_STEP: f64 = 8.0;
/// An overhead within this part of the budget needs no new period.
const NEAR_ENOUGH: f64 = 0.2;
/// Fewer samples in a window say too little.
const FEW: u64 = 16;

/// Part of a budget that samples get, even where memgauge alone uses it up.
const LEAST_FOR_SAMPLES: f64 = 0.1;

/// No period is longer: it would be days of anything.
const LARGEST: u64 = 1 << 48;

/// What happened in a window of time.
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
    /// Overhead as a part of the observed time.
    pub fn overhead(&self) -> f64 {
        (self.samples_ns + self.own_ns) / self.observed_ns.max(1.0)
    }
}

/// What periods have to be multiplied with to meet the budget `allowed` (0.02 is
/// 2 %); `None` where it is met, nearly, or the window tells too little.
pub fn factor(allowed: f64, window: &Window) -> Option<f64> {
    let all_ns = allowed * window.observed_ns;
    if all_ns <= 0.0 {
        return None;
    }
    let for_samples_ns = (all_ns - window.own_ns).max(all_ns * LEAST_FOR_SAMPLES);
    let ratio = window.samples_ns / for_samples_ns;
    let telling = window.samples >= FEW || ratio < 1.0;
    if !telling || (ratio - 1.0).abs() <= NEAR_ENOUGH {
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
        assert!(factor(0.02, &with_own(0)).unwrap() < 1.0);
    }
}
