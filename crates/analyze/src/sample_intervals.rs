//! Confidence intervals of shares that are estimated from samples.

/// Two-sided 95 % quantile of the normal distribution.
pub(crate) const Z_95: f64 = 1.959_964;

/// Number of samples of equal weight that are as precise as these, whose weights may differ (L.
/// Kish, Survey Sampling, 1965): a timer's sample of a long wait represents many others.
pub(crate) fn effective_samples(samples: u64, events: u64, squares: u128) -> u64 {
    let events = u128::from(events);
    let Some(effective_samples) = events.saturating_mul(events).checked_div(squares) else {
        return samples;
    };
    u64::try_from(effective_samples).map_or(samples, |effective_samples| {
        effective_samples.clamp(1, samples.max(1))
    })
}

/// Wilson's score interval at 95 %.
pub fn wilson_95(proportion: f64, n: u64) -> Option<(f64, f64)> {
    wilson(proportion, n, Z_95)
}

/// Wilson's score interval for a proportion in `n` samples (E. B. Wilson, JASA 22, 1927), with the
/// normal distribution's quantile `z`. It holds for independent samples. Periodic samples come
/// close to that unless the program's own period matches.
pub fn wilson(proportion: f64, n: u64, z: f64) -> Option<(f64, f64)> {
    if n == 0 {
        return None;
    }
    let n = n as f64;
    let z2 = z * z;
    let scale = 1.0 / (1.0 + z2 / n);
    let centre = proportion + z2 / (2.0 * n);
    let spread = proportion * (1.0 - proportion) / n + z2 / (4.0 * n * n);
    let half = z * spread.max(0.0).sqrt();
    let bound = |x: f64| (x * scale).clamp(0.0, 1.0);
    Some((bound(centre - half), bound(centre + half)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_unlike_weights_tell_less() {
        assert_eq!(effective_samples(100, 100 * 7, 100 * 49), 100);
        // One of 99 and 363 of about one.
        assert_eq!(effective_samples(364, 99 + 363, 99 * 99 + 363), 21);
        assert_eq!(
            (effective_samples(0, 0, 0), effective_samples(1, 5, 25)),
            (0, 1)
        );
    }

    /// The value for 5 of 10 was worked by hand from the formula. For 0 and n of n the
    /// bound is the closed form z^2 / (n + z^2) from the other end.
    #[test]
    fn interval_is_wilsons() {
        let (low, high) = wilson_95(0.5, 10).unwrap();
        assert!((low - 0.236_59).abs() < 1e-4 && (high - 0.763_41).abs() < 1e-4);
        let (low, high) = wilson_95(0.0, 20).unwrap();
        assert!(low == 0.0 && (high - 0.161_13).abs() < 1e-4);
        let (low, high) = wilson_95(1.0, 20).unwrap();
        assert!(high == 1.0 && (low - 0.838_87).abs() < 1e-4);
        assert_eq!(wilson_95(0.5, 0), None);
    }
}
