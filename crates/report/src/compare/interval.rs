//! 95 % confidence intervals of differences between two groups.
//!
//! If an interval contains zero, chance alone can explain the difference. Rejected: a bootstrap,
//! which has too few resamples of three runs to reach 95 %.

use distrs::{Normal, StudentsT};
use memgauge_analyze::wilson;

/// Share of the intervals that may miss the true difference.
const MISSES: f64 = 0.05;

/// Lower and upper end of a difference.
pub(crate) type Interval = [f64; 2];

/// Returns true if chance alone can explain the difference.
pub(crate) fn contains_zero([low, high]: Interval) -> bool {
    low <= 0.0 && high >= 0.0
}

/// Returns the mean, exactly if all values are equal. `NaN` without values.
pub(crate) fn mean(values: &[f64]) -> f64 {
    let Some(&first) = values.first() else {
        return f64::NAN;
    };
    let sum: f64 = values.iter().map(|value| value - first).sum();
    first + sum / values.len() as f64
}

/// Number, mean and spread of a group of values. Groups are merged without their values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    count: usize,
    mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl Moments {
    /// Returns those of some values. The mean is exact if all values are equal.
    pub fn of(values: &[f64]) -> Moments {
        if values.is_empty() {
            return Moments::default();
        }
        let mean = mean(values);
        Moments {
            count: values.len(),
            mean,
            squares: values.iter().map(|value| (value - mean).powi(2)).sum(),
        }
    }

    /// Returns those of the values of both groups (T. F. Chan, G. H. Golub and R. J. LeVeque, COMPSTAT
    /// 1982). Subtracting sums of squares instead would lose the digits that large values have in common.
    #[must_use]
    pub fn merged(self, other: Moments) -> Moments {
        let count = self.count + other.count;
        if self.count == 0 || other.count == 0 {
            return if self.count == 0 { other } else { self };
        }
        let share = other.count as f64 / count as f64;
        let distance = other.mean - self.mean;
        Moments {
            count,
            mean: self.mean + distance * share,
            squares: self.squares + other.squares + distance.powi(2) * self.count as f64 * share,
        }
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Mean of the values; 0 without values.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Squared standard error of the mean of at least two values.
    fn squared_error(&self) -> f64 {
        let n = self.count as f64;
        self.squares / (n - 1.0) / n
    }

    /// Returns the interval of the difference of two means, `after` − `self`, for one of `comparisons`
    /// intervals. All of them together hold at 95 % (Bonferroni). `None` if a group has fewer than two values.
    pub fn difference_interval(&self, after: &Moments, comparisons: usize) -> Option<[f64; 2]> {
        if self.count < 2 || after.count < 2 {
            return None;
        }
        let difference = after.mean - self.mean;
        let errors = [self.squared_error(), after.squared_error()];
        let variance = errors[0] + errors[1];
        if variance == 0.0 {
            return Some([difference; 2]);
        }
        let term = |error: f64, n: usize| error.powi(2) / (n as f64 - 1.0);
        let terms = term(errors[0], self.count) + term(errors[1], after.count);
        // At least the degrees of freedom of the smaller group, which are 1 or more.
        let degrees = (variance.powi(2) / terms).max(1.0);
        let misses = MISSES / comparisons.max(1) as f64;
        let half = StudentsT::ppf(1.0 - misses / 2.0, degrees) * variance.sqrt();
        Some([difference - half, difference + half])
    }
}

/// Returns Student's t interval of a mean. `None` if there are fewer than two values, because their
/// spread is unknown.
pub fn mean_interval(values: &[f64]) -> Option<[f64; 2]> {
    if values.len() < 2 {
        return None;
    }
    let moments = Moments::of(values);
    let degrees = values.len() as f64 - 1.0;
    let half = StudentsT::ppf(1.0 - MISSES / 2.0, degrees) * moments.squared_error().sqrt();
    Some([moments.mean - half, moments.mean + half])
}

/// Returns the interval of the difference of two means, after − before (B. L. Welch, Biometrika 34,
/// 1947). `None` if a group has fewer than two values, because its spread is unknown.
pub(crate) fn welch(before: &[f64], after: &[f64]) -> Option<Interval> {
    mean_difference_interval(before, after, 1)
}

/// As `welch`, for one of `comparisons` intervals. All of them together hold at 95 % (Bonferroni).
pub fn mean_difference_interval(
    before: &[f64],
    after: &[f64],
    comparisons: usize,
) -> Option<[f64; 2]> {
    Moments::of(before).difference_interval(&Moments::of(after), comparisons)
}

/// A number, with its interval if it is an estimate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EstimatedNumber {
    pub(crate) value: f64,
    pub(crate) interval: Option<Interval>,
}

/// Returns the interval of the difference of two estimates, after − before, from both intervals (G.
/// Y. Zou and A. Donner, Statistics in Medicine 27, 2008; Newcombe's method below is the same for
/// proportions). Errors of doubtful estimates are not random and add up, so such runs differ only
/// if their intervals do not overlap. `None` if neither has an interval.
pub(crate) fn of_estimates(
    before: EstimatedNumber,
    after: EstimatedNumber,
    doubtful: bool,
) -> Option<Interval> {
    if before.interval.is_none() && after.interval.is_none() {
        return None;
    }
    let [[low_before, high_before], [low_after, high_after]] =
        [before, after].map(|of| of.interval.unwrap_or([of.value; 2]));
    let difference = after.value - before.value;
    let both = |a: f64, b: f64| if doubtful { a + b } else { a.hypot(b) };
    let down = both(after.value - low_after, high_before - before.value);
    let up = both(high_after - after.value, before.value - low_before);
    Some([difference - down, difference + up])
}

/// A share of a number of samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proportion {
    pub(crate) share: f64,
    pub(crate) samples: u64,
}

/// Returns the interval of the difference of two proportions, after − before, from Wilson's
/// intervals of both (R. G. Newcombe, Statistics in Medicine 17, 1998, method 10). All of
/// `comparisons` intervals together hold at 95 % (Bonferroni). `None` without samples.
pub(crate) fn newcombe(
    before: Proportion,
    after: Proportion,
    comparisons: usize,
) -> Option<Interval> {
    let misses = MISSES / comparisons.max(1) as f64;
    let z = Normal::ppf(1.0 - misses / 2.0, 0.0, 1.0);
    let (low_before, high_before) = wilson(before.share, before.samples, z)?;
    let (low_after, high_after) = wilson(after.share, after.samples, z)?;
    let difference = after.share - before.share;
    let down = (after.share - low_after).hypot(high_before - before.share);
    let up = (high_after - after.share).hypot(before.share - low_before);
    Some([difference - down, difference + up])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64 with a fixed seed (G. L. Steele and others, OOPSLA 2014).
    struct Random(u64);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }

        /// By the method of Box and Muller.
        fn normal(&mut self, mean: f64, deviation: f64) -> f64 {
            let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
            let angle = std::f64::consts::TAU * self.uniform();
            mean + deviation * radius * angle.cos()
        }

        fn normals(&mut self, n: usize, mean: f64, deviation: f64) -> Vec<f64> {
            (0..n).map(|_| self.normal(mean, deviation)).collect()
        }

        fn proportion(&mut self, samples: u64, share: f64) -> Proportion {
            let hits = (0..samples).filter(|_| self.uniform() < share).count();
            Proportion {
                share: hits as f64 / samples as f64,
                samples,
            }
        }
    }

    fn assert_near(found: Option<Interval>, low: f64, high: f64, tolerance: f64) {
        let [found_low, found_high] = found.expect("an interval");
        let is_near = (found_low - low).abs() < tolerance && (found_high - high).abs() < tolerance;
        assert!(is_near, "[{found_low}, {found_high}]");
    }

    /// Expected ends: quantiles by Simpson's rule over Student's density, in Python.
    #[test]
    fn means_have_welchs_interval() {
        let before = [
            27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7,
            21.4,
        ];
        let after = [
            27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5,
            24.4,
        ];
        assert_near(welch(&before, &after), 0.349_237, 3.984_096, 1e-3);
        let few = welch(&[10.0, 12.0, 11.0], &[14.0, 19.0, 15.0]);
        assert_near(few, -0.740_656, 10.740_656, 0.05);
        assert_eq!(welch(&[1.0], &[2.0, 3.0]), None);
        // For 1, 2, 3: t of two degrees of freedom is 4.302653, the standard error sqrt(1/3).
        assert_near(mean_interval(&[1.0, 2.0, 3.0]), -0.484_138, 4.484_138, 1e-3);
        assert_eq!(mean_interval(&[1.0]), None);
        let [low, high] = mean_difference_interval(&before, &after, 20).unwrap();
        assert!(low < 0.0 && high > 3.984_096);
        // Equal values have no spread, however their sum is rounded.
        assert_eq!(welch(&[0.1; 3], &[0.1; 7]), Some([0.0; 2]));
        assert_eq!(welch(&[0.1; 3], &[0.6; 7]), Some([0.5; 2]));
    }

    #[test]
    fn merged_moments_are_those_of_all_values() {
        let mut random = Random(7);
        for _ in 0..100 {
            let n = 2 + (random.uniform() * 30.0) as usize;
            // The mean is far from zero, where a difference of sums would have no digits left.
            let values = random.normals(n, 1e9, 1.0);
            let cut = (random.uniform() * (n + 1) as f64) as usize;
            let merged = Moments::of(&values[..cut]).merged(Moments::of(&values[cut..]));
            let whole = Moments::of(&values);
            assert_eq!(merged.count, n);
            assert!(
                (merged.mean - whole.mean).abs() < 1e-6,
                "{merged:?} {whole:?}"
            );
            assert!(
                (merged.squares / whole.squares - 1.0).abs() < 1e-6,
                "{merged:?} {whole:?}"
            );
        }
        let equal = Moments::of(&[0.1; 3]).merged(Moments::of(&[0.1; 7]));
        assert_eq!((equal.mean, equal.squares), (0.1, 0.0));
        assert_eq!(Moments::default().merged(equal), equal);
    }

    /// 56 of 70 and 48 of 80 are Newcombe's own example (a), there as first − second.
    #[test]
    fn proportions_have_newcombes_interval() {
        let of = |part: f64, samples: u64| Proportion {
            share: part / samples as f64,
            samples,
        };
        let found = newcombe(of(48.0, 80), of(56.0, 70), 1);
        assert_near(found, 0.0524, 0.3339, 1e-4);
        let [low, high] = newcombe(of(48.0, 80), of(56.0, 70), 100).unwrap();
        assert!(low < 0.0 && high > 0.3339);
        let none = Proportion {
            share: 0.0,
            samples: 0,
        };
        assert!(newcombe(of(1.0, 10), none, 1).is_none());
    }

    /// Share of 20 000 intervals that contain the true difference. Its standard error is 0.15 %.
    fn covered(truth: f64, mut interval: impl FnMut() -> Option<Interval>) -> f64 {
        const TRIALS: u32 = 20_000;
        let hits = (0..TRIALS).filter(|_| {
            let [low, high] = interval().expect("an interval");
            low <= truth && truth <= high
        });
        hits.count() as f64 / f64::from(TRIALS)
    }

    #[test]
    fn intervals_contain_the_true_difference_as_often_as_they_say() {
        let mut random = Random(23);
        let groups = [
            ([3, 3], [1.0, 1.0]),
            ([3, 5], [1.0, 3.0]),
            ([10, 4], [2.0, 1.0]),
        ];
        for (sizes, deviations) in groups {
            let part = covered(1.0, || {
                let before = random.normals(sizes[0], 100.0, deviations[0]);
                welch(&before, &random.normals(sizes[1], 101.0, deviations[1]))
            });
            assert!((0.94..0.98).contains(&part), "{sizes:?}: {part}");
        }
        for (samples, shares) in [([200, 300], [0.1, 0.2]), ([1000, 1000], [0.02, 0.02])] {
            let part = covered(shares[1] - shares[0], || {
                let before = random.proportion(samples[0], shares[0]);
                newcombe(before, random.proportion(samples[1], shares[1]), 1)
            });
            assert!((0.94..0.97).contains(&part), "{samples:?}: {part}");
        }
    }
}
