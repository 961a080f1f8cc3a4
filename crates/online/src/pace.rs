//! The period of a thread that keeps to an overhead. Pure, but for what it is told.
//!
//! `memgauge_live::sample::budget` has the law; this here keeps its windows for one thread.

use memgauge_live::sample::budget::{Window, aim, changed, factor};

/// What a thread's counts are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Samples taken, lost ones included.
    pub(crate) samples: u64,
    /// Nanoseconds of memgauge's own time.
    pub(crate) own_ns: u64,
    /// Nanoseconds that the thread was on a processor.
    pub(crate) observed_ns: u64,
}

/// Windows of a thread.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    before: Spent,
    so_far: Window,
}

impl Pace {
    /// Ends a window; the period that follows from it, not below 1, or `None` where it
    /// stays. `allowed` is the part of the thread's time that may be taken, `cost_ns`
    /// what a sample takes.
    pub(crate) fn next(
        &mut self,
        now: Spent,
        (allowed, cost_ns): (f64, f64),
        period: u64,
    ) -> Option<u64> {
        let samples = now.samples.saturating_sub(self.before.samples);
        let window = Window {
            samples,
            samples_ns: samples as f64 * cost_ns,
            own_ns: now.own_ns.saturating_sub(self.before.own_ns) as f64,
            observed_ns: now.observed_ns.saturating_sub(self.before.observed_ns) as f64,
        };
        self.before = now;
        self.so_far = self.so_far.and(window);
        let factor = factor(aim(allowed, &self.so_far), &window)?;
        Some(changed(period, factor, 1)).filter(|&next| next != period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST_NS: f64 = 5_000.0;
    const OWN_NS: f64 = 1_000.0;
    const WINDOW_NS: u64 = 100_000_000;

    /// Overheads of windows of a thread that is on a processor all the time, sampled by a
    /// timer that begins at this period.
    fn windows(mut period: u64, allowed: f64, count: usize) -> Vec<f64> {
        let (mut pace, mut now) = (Pace::default(), Spent::default());
        let mut overheads = Vec::new();
        for _ in 0..count {
            let samples = WINDOW_NS / period;
            now.samples += samples;
            now.own_ns += (samples as f64 * OWN_NS) as u64;
            now.observed_ns += WINDOW_NS;
            overheads.push(samples as f64 * (COST_NS + OWN_NS) / WINDOW_NS as f64);
            period = pace.next(now, (allowed, COST_NS), period).unwrap_or(period);
        }
        overheads
    }

    #[test]
    fn from_any_period_the_overhead_is_below_twice_the_budget_in_a_second_and_settles_at_it() {
        for begin in [10_000, 100_000, 1_000_000, 100_000_000] {
            let overheads = windows(begin, 0.01, 600);
            // The tenth window ends the first second.
            let late = &overheads[10..];
            assert!(late.iter().all(|&o| o <= 0.02), "{begin}: {overheads:?}");
            // By then what the first windows took too much has been paid back.
            let mean = overheads[500..].iter().sum::<f64>() / 100.0;
            assert!(
                (0.006..=0.012).contains(&mean),
                "{begin}: {mean} {overheads:?}"
            );
        }
    }

    #[test]
    fn a_thread_that_waits_keeps_its_period() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(Spent::default(), (0.01, COST_NS), 1000), None);
    }
}
