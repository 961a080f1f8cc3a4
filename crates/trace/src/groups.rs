//! Sums by group of cache sets, and what their spread says of the sum over all groups.
//!
//! Lines fall into [`GROUPS`] groups by the lowest six bits of their number. A run that
//! follows some groups knows each one's sum. How much these differ from one another says
//! how far off an estimate from them may be (W. G. Cochran, Sampling Techniques, 1977,
//! chapters 2 and 6).

use crate::{LINE_BYTES, VirtAddr};

/// Groups of sets that lines fall into.
pub const GROUPS: u32 = 64;

/// The group of an address within its process. Processes count their groups from
/// different places.
pub fn group_of(addr: VirtAddr) -> u8 {
    (addr.0 / LINE_BYTES % u64::from(GROUPS)) as u8
}

/// The 97.5 % point of Student's distribution with one degree of freedom less than there
/// are groups (tables; 1.96 beyond).
pub fn student(groups: u32) -> f64 {
    match groups {
        ..=4 => 3.182,
        5..=8 => 2.365,
        9..=16 => 2.131,
        17..=32 => 2.040,
        33.. => 1.96,
    }
}

/// Variance of the sum over all [`GROUPS`] groups as estimated from the sums of some: the
/// jackknife's, for a simple random sample without replacement. `sums` may leave out
/// groups that have nothing.
///
/// ```text
/// s² = 64² · (1 − n/64) · v / n      v = Σ (x − mean)² / (n − 1)
/// ```
pub fn variance_of_sum(sums: impl IntoIterator<Item = f64>, groups: u32) -> f64 {
    let (n, all) = (f64::from(groups), f64::from(GROUPS));
    let (mut sum, mut squares) = (0.0, 0.0);
    let sums: Vec<f64> = sums.into_iter().collect();
    sums.iter().for_each(|x| sum += x);
    let mean = sum / n;
    sums.iter().for_each(|x| squares += (x - mean).powi(2));
    let nothing = n - sums.len() as f64;
    squares += nothing.max(0.0) * mean * mean;
    all * all * (1.0 - n / all) * squares / (n - 1.0).max(1.0) / n
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All choices of two of four groups that stand for 64: the mean of the estimated
    /// variances is the variance of the estimates.
    #[test]
    fn the_variance_is_that_of_repeated_choices() {
        let all: Vec<f64> = (0..64).map(|i| f64::from(i * i % 37)).collect();
        let (mut estimates, mut variances) = (Vec::new(), Vec::new());
        for a in 0..64 {
            for b in 0..a {
                estimates.push(32.0 * (all[a] + all[b]));
                variances.push(variance_of_sum([all[a], all[b]], 2));
            }
        }
        let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
        let middle = mean(&estimates);
        let squares: Vec<f64> = estimates.iter().map(|e| (e - middle).powi(2)).collect();
        assert!((middle - all.iter().sum::<f64>()).abs() < 1e-6);
        assert!((mean(&squares) / mean(&variances) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn groups_that_have_nothing_may_be_left_out() {
        let with = variance_of_sum([3.0, 0.0, 5.0, 0.0], 4);
        assert!((variance_of_sum([5.0, 3.0], 4) - with).abs() < 1e-9);
        assert_eq!(variance_of_sum([], 8), 0.0);
        assert_eq!(variance_of_sum((0..64).map(f64::from), 64), 0.0);
    }
}
