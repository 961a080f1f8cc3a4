//! Sums by group of cache sets, and the confidence of estimates from some of the groups.
//!
//! Lines are divided into [`GROUPS`] groups by the lowest six bits of their number. A run that
//! models some of the groups has a sum for each of them. The differences between these sums show
//! how accurate an estimate for all groups is (W. G. Cochran, Sampling Techniques, 1977, chapters 2
//! and 6).

use distrs::StudentsT;

use crate::{LINE_BYTES, VirtAddr};

/// Number of groups of sets.
pub const GROUPS: u32 = 64;

/// Returns the group of an address within its process. The numbering of groups differs between
/// processes.
pub fn group_of(addr: VirtAddr) -> u8 {
    (addr.0 / LINE_BYTES % u64::from(GROUPS)) as u8
}

/// Returns the 97.5 % quantile of Student's distribution for a mean of this many values (of one
/// value as of two, because its spread is unknown).
pub fn student(values: u32) -> f64 {
    StudentsT::ppf(0.975, f64::from(values.max(2) - 1))
}

/// Estimates the variance of the sum over all [`GROUPS`] groups from the sums of some groups: the
/// jackknife for a simple random sample without replacement. `sums` may omit groups with a sum of
/// 0.
///
/// ```text
/// s² = 64² · (1 − n/64) · v / n      v = Σ (x − mean)² / (n − 1)
/// ```
pub fn variance_of_sum(sums: impl IntoIterator<Item = f64>, groups: u32) -> f64 {
    let (n, total_groups) = (f64::from(groups), f64::from(GROUPS));
    let (mut total, mut squared_deviations) = (0.0, 0.0);
    let sums: Vec<f64> = sums.into_iter().collect();
    sums.iter().for_each(|x| total += x);
    let mean = total / n;
    sums.iter()
        .for_each(|x| squared_deviations += (x - mean).powi(2));
    let zero_groups = n - sums.len() as f64;
    squared_deviations += zero_groups.max(0.0) * mean * mean;
    total_groups * total_groups * (1.0 - n / total_groups) * squared_deviations
        / (n - 1.0).max(1.0)
        / n
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All choices of two of four groups that stand for 64: the mean of the estimated
    /// variances is the variance of the estimates.
    #[test]
    fn the_variance_is_that_of_repeated_choices() {
        let total_groups: Vec<f64> = (0..64).map(|i| f64::from(i * i % 37)).collect();
        let (mut estimates, mut variances) = (Vec::new(), Vec::new());
        for a in 0..64 {
            for b in 0..a {
                estimates.push(32.0 * (total_groups[a] + total_groups[b]));
                variances.push(variance_of_sum([total_groups[a], total_groups[b]], 2));
            }
        }
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let middle = mean(&estimates);
        let squared_deviations: Vec<f64> = estimates.iter().map(|e| (e - middle).powi(2)).collect();
        assert!((middle - total_groups.iter().sum::<f64>()).abs() < 1e-6);
        assert!((mean(&squared_deviations) / mean(&variances) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        let tables = [
            (2, 12.706),
            (4, 3.182),
            (8, 2.365),
            (16, 2.131),
            (32, 2.040),
            (64, 1.998),
        ];
        for (values, quantile) in tables {
            assert!((student(values) - quantile).abs() < 0.002, "{values}");
        }
        assert_eq!(student(1), student(2));
    }

    #[test]
    fn groups_that_have_nothing_may_be_left_out() {
        let with = variance_of_sum([3.0, 0.0, 5.0, 0.0], 4);
        assert!((variance_of_sum([5.0, 3.0], 4) - with).abs() < 1e-9);
        assert_eq!(variance_of_sum([], 8), 0.0);
        assert_eq!(variance_of_sum((0..64).map(f64::from), 64), 0.0);
    }
}
