//! The period of a thread that keeps to an overhead. Pure, but for what it is told.
//!
//! `memgauge_live::sample::budget` has the law; this here keeps its windows for one thread.
//! A window of a tenth of a second tells soon, and roughly, that a period is wrong by a fifth
//! or more. What it leaves is found over seconds, as exactly as the samples until then tell.
//!
//! Where interesting phases get more (`phases`), others get less, and what these leave over
//! is what an interesting one may take more.

use memgauge_live::sample::budget::{NEAR_ENOUGH, Window, aim, changed, factor_beyond};

/// Effort between interesting phases, as a part of the budget.
const SPARING: f64 = 0.5;
/// Effort in an interesting phase, as long as something is left over. An overhead that is a
/// fifth above it is near enough (`budget`), and still below twice the budget.
const GENEROUS: f64 = 1.6;
/// Nanoseconds of a thread's time of which what was left over is kept.
const KEPT_OF_NS: f64 = 20e9;

/// Nanoseconds of a thread's time after which smaller errors are looked for.
const SLOW_NS: f64 = 1e9;
/// Part of the overhead that memgauge's own time in one window counts for.
const MOST_OWN: f64 = 0.5;
/// An overhead is not held more exactly than to this part of it.
const EXACT: f64 = 0.04;

/// How much a thread is worth now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Phases are not told apart.
    Any,
    /// It does what it did before.
    Little,
    /// What it does has just changed.
    Much,
}

/// What a thread's counts are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Samples taken, lost ones included.
    pub(crate) samples: u64,
    /// Nanoseconds of memgauge's own time.
    pub(crate) own_ns: u64,
    /// Nanoseconds that the thread was on a processor.
    pub(crate) observed_ns: u64,
    /// Events that its counter counted.
    pub(crate) events: u64,
}

/// Windows of a thread.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    before: Spent,
    so_far: Window,
    /// Since the period last changed, or what is wanted of it.
    since_change: Window,
    interest: Option<Interest>,
    /// Nanoseconds of the budget that were not used.
    left_ns: f64,
}

impl Pace {
    /// What happened since the last window ended: events, and nanoseconds on a processor.
    pub(crate) fn gained(&self, now: &Spent) -> (f64, f64) {
        let gained = |now: u64, before: u64| now.saturating_sub(before) as f64;
        (
            gained(now.events, self.before.events),
            gained(now.observed_ns, self.before.observed_ns),
        )
    }

    /// Ends a window; the period that follows from it, not below 1, or `None` where it
    /// stays. `allowed` is the part of the thread's time that may be taken, `cost_ns`
    /// what a sample takes.
    pub(crate) fn next(
        &mut self,
        now: Spent,
        (allowed, cost_ns): (f64, f64),
        interest: Interest,
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
        self.left_ns += (allowed - window.overhead()) * window.observed_ns;
        self.left_ns = self.left_ns.min(allowed * KEPT_OF_NS);
        let effort = match interest {
            Interest::Little => SPARING,
            Interest::Much if self.left_ns > 0.0 => GENEROUS,
            Interest::Much | Interest::Any => 1.0,
        };
        if self.interest.replace(interest) != Some(interest) {
            self.since_change = Window::default();
        }
        self.since_change = self.since_change.and(window);
        let aim = effort * aim(allowed, &self.so_far);
        let factor = soon_factor(aim, window, cost_ns);
        let factor = factor.or_else(|| self.slow_factor(aim, cost_ns))?;
        self.since_change = Window::default();
        Some(changed(period, factor, 1)).filter(|&next| next != period)
    }

    /// What all windows since the period last changed tell together.
    fn slow_factor(&self, aim: f64, cost_ns: f64) -> Option<f64> {
        let window = &self.since_change;
        let near = chance(aim, window, cost_ns).max(EXACT);
        let telling = window.observed_ns >= SLOW_NS && near <= 0.5;
        telling.then(|| factor_beyond(near, aim, window)).flatten()
    }
}

/// What one window tells. Memgauge's own time comes in bursts, as where it reads the code of
/// a program: of one window it counts for no more than half of the overhead.
fn soon_factor(aim: f64, window: Window, cost_ns: f64) -> Option<f64> {
    let near = chance(aim, &window, cost_ns).max(NEAR_ENOUGH);
    let without_bursts = Window {
        own_ns: window.own_ns.min(MOST_OWN * aim * window.observed_ns),
        ..window
    };
    factor_beyond(near, aim, &without_bursts)
}

/// Part by which a count of random samples differs by chance from one that the overhead
/// affords: two deviations.
fn chance(aim: f64, window: &Window, cost_ns: f64) -> f64 {
    let affordable = aim * window.observed_ns / cost_ns.max(1.0);
    2.0 / affordable.max(window.samples as f64).max(1.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phases::{Activity, Phases};

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
            let next = pace.next(now, (allowed, COST_NS), Interest::Any, period);
            period = next.unwrap_or(period);
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
            let mean = overheads[300..].iter().sum::<f64>() / 300.0;
            assert!(
                (0.009..=0.0105).contains(&mean),
                "{begin}: {mean} {overheads:?}"
            );
        }
    }

    #[test]
    fn chance_in_samples_moves_no_period_and_a_tenth_too_few_is_made_up() {
        let (mut pace, mut now, mut random) = (Pace::default(), Spent::default(), 7u64);
        // 150 samples a second afford 0.9 %: windows have 15 of them, give or take 4.
        let (mut period, mut changes, mut taken) = (6_666_667u64, 0, 0.0);
        for window in 0..1200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005) | 1;
            let chance = (random >> 61) + (random >> 58 & 7);
            let samples = (WINDOW_NS / period + chance).saturating_sub(7);
            now.samples += samples;
            now.own_ns += (samples as f64 * OWN_NS) as u64;
            now.observed_ns += WINDOW_NS;
            if window >= 600 {
                taken += samples as f64 * (59_000.0 + OWN_NS);
            }
            let next = pace.next(now, (0.01, 59_000.0), Interest::Any, period);
            changes += u32::from(next.is_some());
            period = next.unwrap_or(period);
        }
        let mean = taken / (600.0 * WINDOW_NS as f64);
        assert!((0.009..=0.0105).contains(&mean), "{mean}");
        assert!(changes < 60, "{changes} changes in two minutes");
    }

    /// A thread whose samples fall elsewhere every ten seconds, for five minutes: samples of
    /// each window, and its overhead.
    fn changing(allowed: f64) -> Vec<(u64, f64)> {
        let (mut pace, mut now) = (Pace::default(), Spent::default());
        let (mut phases, mut random, mut period) = (Phases::default(), 1u64, 1_000_000);
        let mut windows = Vec::new();
        for window in 0..3000u64 {
            let samples = WINDOW_NS / period;
            let mut activity = Activity::default();
            for _ in 0..samples {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                activity.note(4096, Some(((window / 100) << 30) + (random >> 48)));
            }
            now.samples += samples;
            now.own_ns += (samples as f64 * OWN_NS) as u64;
            now.observed_ns += WINDOW_NS;
            now.events = now.observed_ns;
            let overhead = samples as f64 * (COST_NS + OWN_NS) / WINDOW_NS as f64;
            windows.push((samples, overhead));
            let interest = match phases.end(&activity, pace.gained(&now)) {
                true => Interest::Much,
                false => Interest::Little,
            };
            let next = pace.next(now, (allowed, COST_NS), interest, period);
            period = next.unwrap_or(period);
        }
        windows
    }

    #[test]
    fn what_changes_gets_more_samples_and_the_whole_stays_within_the_budget() {
        let windows = changing(0.01);
        // The first minute finds the period.
        let late = &windows[600..];
        let mean = late.iter().map(|w| w.1).sum::<f64>() / late.len() as f64;
        assert!((0.004..=0.01).contains(&mean), "{mean}");
        assert!(late.iter().all(|w| w.1 <= 0.02), "never twice the budget");
        let of = |from: usize, to: usize| {
            let part = |phase: &[(u64, f64)]| phase[from..to].iter().map(|w| w.0).sum::<u64>();
            late.chunks(100).map(part).sum::<u64>() as f64 / (to - from) as f64
        };
        // A change is seen at the end of its first window, and lasts for ten.
        let (new, old) = (of(2, 10), of(40, 100));
        assert!(new > 2.0 * old, "{new} against {old}");
    }

    /// Overheads of windows of a thread that gets a third of a processor; in one of them
    /// memgauge took a hundred times as long as in others.
    #[test]
    fn a_burst_of_own_time_moves_no_period_and_a_slow_start_is_soon_over() {
        const SHORT_NS: u64 = WINDOW_NS / 3;
        let (mut pace, mut now, mut period) = (Pace::default(), Spent::default(), 100_000_000);
        let (mut left, mut periods) = (0, Vec::new());
        for window in 0..200u64 {
            let samples = (SHORT_NS + left) / period;
            left = (SHORT_NS + left) % period;
            now.samples += samples;
            now.own_ns += samples * 1000 + if window == 100 { 3_000_000 } else { 0 };
            now.observed_ns += SHORT_NS;
            let next = pace.next(now, (0.01, 20_000.0), Interest::Any, period);
            period = next.unwrap_or(period);
            periods.push(period);
        }
        // 1 % is a sample of 21 us every 2.1 ms.
        let settled = 1_800_000..2_600_000;
        assert!(
            periods[30..100].iter().all(|p| settled.contains(p)),
            "{periods:?}"
        );
        // The burst of 3 ms is paid back: it is what 9 windows may take.
        assert!(periods[100..].iter().all(|&p| p < 9_000_000), "{periods:?}");
        assert!(settled.contains(&periods[199]), "{periods:?}");
    }

    #[test]
    fn a_thread_that_waits_keeps_its_period() {
        let mut pace = Pace::default();
        let next = pace.next(Spent::default(), (0.01, COST_NS), Interest::Any, 1000);
        assert_eq!(next, None);
    }
}
