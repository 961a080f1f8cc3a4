//! Events that overflow records lose, and the correction `v = a·(t + l)`: `v` true events, `a`
//! records, `t` the period, and `l` the events lost with each record.
//!
//! `l` depends on the density of events around an overflow: a loop of missing loads loses most, and
//! pointer chasing almost nothing. `l` is therefore a function of the period and of the time
//! between events, measured at some points by calibration. The time between events comes from the
//! trace: the time since the previous overflow divided by the period.

use serde::{Deserialize, Serialize};

use super::hidden::Mechanism;

/// Losses measured at one period and density.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossPoint {
    /// Name of the loop.
    pub name: String,
    /// Events between two overflows.
    pub period: u64,
    /// Mean time between two records divided by the period, in nanoseconds.
    pub spacing_ns: f64,
    /// Events lost with each record: `v / a − t`.
    pub lost: f64,
    /// Standard error of `lost` over repeated runs.
    pub error: f64,
    /// Instructions for each event.
    #[serde(default)]
    pub instructions: f64,
    /// Part of `lost` that the reference counter did not see, either.
    #[serde(default)]
    pub hidden: f64,
    /// Time of a record in nanoseconds.
    #[serde(default)]
    pub record_ns: f64,
    /// True if its loads are independent of each other.
    #[serde(default)]
    pub dense: bool,
}

/// Losses by period and density.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossModel {
    /// Periods in ascending order, with their points by spacing.
    curves: Vec<(u64, Vec<LossPoint>)>,
}

impl LossModel {
    /// From measured points. Ignores points that are not finite.
    pub fn new(points: impl IntoIterator<Item = LossPoint>) -> Self {
        let mut curves: std::collections::BTreeMap<u64, Vec<LossPoint>> = Default::default();
        for point in points {
            let sound = point.spacing_ns > 0.0 && point.lost.is_finite() && point.period > 0;
            if sound && point.spacing_ns.is_finite() {
                curves.entry(point.period).or_default().push(point);
            }
        }
        for curve in curves.values_mut() {
            curve.sort_by(|a, b| a.spacing_ns.total_cmp(&b.spacing_ns));
        }
        LossModel {
            curves: curves.into_iter().collect(),
        }
    }

    /// The same loss for every period and density.
    pub fn constant(lost: f64) -> Self {
        LossModel::new([LossPoint {
            period: 1,
            spacing_ns: 1.0,
            lost,
            ..LossPoint::default()
        }])
    }

    /// Lines that records hide at one period, for recordings with reference counters.
    pub(super) fn mechanism(&self, period: u64) -> Option<Mechanism> {
        Mechanism::of(&self.curves, period)
    }

    /// The losses at one period.
    pub fn at(&self, period: u64) -> LossCurve {
        let after = self.curves.partition_point(|c| c.0 < period);
        let (Some(high), Some(low)) = (
            self.curves.get(after).or(self.curves.last()),
            self.curves.get(after.saturating_sub(1)),
        ) else {
            return LossCurve::default();
        };
        let span = (high.0 as f64 / low.0 as f64).ln();
        let share = match span > 0.0 {
            true => ((period as f64 / low.0 as f64).ln() / span).clamp(0.0, 1.0),
            false => 1.0,
        };
        LossCurve {
            low: knots(&low.1),
            high: knots(&high.1),
            share,
        }
    }
}

/// Logarithm of the spacing, events lost, and half the width of their interval.
type Knot = (f64, f64, f64);

/// Adds to the error of each point half the difference between the loops that lose most and least.
/// Stores and dependent loads differ by this much from independent loads of the same density.
fn knots(points: &[LossPoint]) -> Vec<Knot> {
    let lost = || points.iter().map(|p| p.lost);
    let (least, most) = lost().fold((f64::MAX, f64::MIN), |a, l| (a.0.min(l), a.1.max(l)));
    let half_width = (most - least).max(0.0) / 2.0;
    points
        .iter()
        .map(|p| (p.spacing_ns.ln(), p.lost, half_width + 1.96 * p.error))
        .collect()
}

/// Losses at one period, by density.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossCurve {
    low: Vec<Knot>,
    high: Vec<Knot>,
    share: f64,
}

impl LossCurve {
    /// Returns the curve of a mixture in which the share `loads` of the events are loads. Loads
    /// lose by their density. Stores lose as much as the sparsest loop, because no store is
    /// aborted.
    pub fn mixed(mut self, loads: f64) -> LossCurve {
        for knots in [&mut self.low, &mut self.high] {
            let sparsest = knots.last().copied().unwrap_or_default();
            for knot in knots {
                knot.1 = sparsest.1 + (knot.1 - sparsest.1) * loads;
            }
        }
        self
    }

    /// Events lost with each record and half the width of their interval, for events that are
    /// `spacing_ns` apart. Outside the measured points, the nearest one applies.
    pub fn lost(&self, spacing_ns: f64) -> (f64, f64) {
        // A single point applies everywhere. Avoid a logarithm for each overflow.
        let at = match self.low.len().max(self.high.len()) {
            0 | 1 => 0.0,
            _ => spacing_ns.max(f64::MIN_POSITIVE).ln(),
        };
        let (low, high) = (between(&self.low, at), between(&self.high, at));
        let mixed = |a: f64, b: f64| a + (b - a) * self.share;
        (mixed(low.0, high.0), mixed(low.1, high.1))
    }
}

fn between(knots: &[Knot], at: f64) -> (f64, f64) {
    let after = knots.partition_point(|k| k.0 < at);
    let (Some(high), Some(low)) = (
        knots.get(after).or(knots.last()),
        knots.get(after.saturating_sub(1)),
    ) else {
        return (0.0, 0.0);
    };
    let span = high.0 - low.0;
    let share = match span > 0.0 {
        true => ((at - low.0) / span).clamp(0.0, 1.0),
        false => 1.0,
    };
    let mixed = |a: f64, b: f64| a + (b - a) * share;
    (mixed(low.1, high.1), mixed(low.2, high.2))
}

/// Events lost with each record from repeated runs of known volume: mean and standard error. Each
/// run has its true events and its records.
pub fn fitted(period: u64, runs: &[(f64, f64)]) -> Option<(f64, f64)> {
    let losses = runs.iter().filter(|r| r.1 > 0.0);
    let losses: Vec<f64> = losses.map(|(v, a)| v / a - period as f64).collect();
    let n = losses.len() as f64;
    let mean = losses.iter().sum::<f64>() / n;
    let spread: f64 = losses.iter().map(|l| (l - mean) * (l - mean)).sum();
    let error = if n > 1.0 {
        (spread / (n - 1.0) / n).sqrt()
    } else {
        0.0
    };
    (n > 0.0).then_some((mean, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(period: u64, spacing_ns: f64, lost: f64) -> LossPoint {
        LossPoint {
            period,
            spacing_ns,
            lost,
            error: lost / 10.0,
            ..LossPoint::default()
        }
    }

    #[test]
    fn losses_lie_between_the_points_measured() {
        let model = LossModel::new([
            point(100, 64.0, 1.0),
            point(100, 4.0, 21.0),
            point(10_000, 4.0, 41.0),
            point(10_000, 64.0, 1.0),
        ]);
        let check = |period, spacing, lost: f64| {
            let got = model.at(period).lost(spacing).0;
            assert!((got - lost).abs() < 1e-9, "{got} {lost}");
        };
        check(100, 4.0, 21.0);
        check(100, 16.0, 11.0);
        check(1_000, 4.0, 31.0);
        check(1_000, 64.0, 1.0);
        check(10, 1.0, 21.0);
        check(100_000, 1e9, 1.0);
        assert_eq!(LossModel::default().at(10).lost(5.0), (0.0, 0.0));
        assert_eq!(LossModel::constant(35.0).at(10).lost(5.0).0, 35.0);
    }

    #[test]
    fn a_fit_of_repeated_runs_has_their_mean_and_error() {
        let runs = [(1_030.0, 10.0), (1_050.0, 10.0), (1_040.0, 10.0)];
        let (lost, error) = fitted(100, &runs).unwrap();
        assert!((lost - 4.0).abs() < 1e-9 && (error - 1.0 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(fitted(100, &[(5.0, 0.0)]), None);
    }
}
