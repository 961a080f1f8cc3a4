//! Intervals of whole-run numbers that were estimated from a sample.

use std::collections::BTreeMap;

use memgauge_analyze::{LevelName, SharingCounts, Summary};
use memgauge_trace::EstimatedFacts;

use super::interval::Interval;

/// Upper 95 % limit of the number of events if none was seen (B. D. Jovanovic and P. S. Levy, The
/// American Statistician 51, 1997).
pub(super) const MISSED: f64 = 3.0;

/// Returns the intervals of whole-run numbers, by their names in `Measured::metrics`.
pub(super) fn of(summary: &Summary) -> BTreeMap<String, Interval> {
    let Some(sets) = summary.estimated() else {
        return of_sampled_sharing(summary);
    };
    let of = |facts: &EstimatedFacts| [facts.low as f64, facts.high as f64];
    let estimates = sets.estimates.iter();
    let mut intervals: BTreeMap<String, Interval> = estimates
        .map(|(name, facts)| (name.clone(), of(facts)))
        .collect();
    let known = intervals.clone();
    let misses_of = |level: &str| known.get(&format!("{level}.miss")).copied();
    let levels = [
        (LevelName::L1d, "l1d", None),
        (LevelName::L2, "l2", Some("l1d")),
        (LevelName::Llc, "llc", Some("l2")),
    ];
    for (level, name, above) in levels {
        let row = summary.levels.iter().find(|row| row.name == level);
        let (Some(row), Some(misses)) = (row, misses_of(name)) else {
            continue;
        };
        let (Some(value), Some(lookups)) = (row.misses, row.lookups) else {
            continue;
        };
        let value = value as f64;
        // Lookups of the first level are those of the code. Lookups of other levels are misses
        // above.
        let asked = lookups as f64;
        let looked = above.and_then(misses_of).unwrap_or([asked; 2]);
        let hits = [misses[1] - value, value - misses[0]];
        let off = [asked - looked[0], looked[1] - asked];
        let hit = asked - value;
        intervals.insert(
            format!("{name}.hit"),
            [
                (hit - hits[0].hypot(off[0])).max(0.0),
                hit + hits[1].hypot(off[1]),
            ],
        );
        if let Some(mpki) = row.mpki.filter(|_| value > 0.0) {
            let ends = misses.map(|end| mpki * end / value);
            intervals.insert(format!("{name}.mpki"), ends);
        }
        if let Some(ratio) = row.miss_ratio.filter(|_| value > 0.0) {
            let low = (1.0 - misses[0] / value).hypot(looked[1] / asked - 1.0);
            let high = (misses[1] / value - 1.0).hypot(1.0 - looked[0] / asked);
            let ends = [
                ratio * (1.0 - low).max(0.0),
                (ratio * (1.0 + high)).min(1.0),
            ];
            intervals.insert(format!("{name}.miss_ratio"), ends);
        }
    }
    intervals
}

/// Returns the intervals of sharing estimated from samples: the number of samples is taken as
/// Poisson distributed, and each sample stands for the same number of events.
fn of_sampled_sharing(summary: &Summary) -> BTreeMap<String, Interval> {
    let totals = summary.sharing.as_ref().map(|sharing| sharing.totals);
    let of = |(name, count): (&str, u64)| {
        let totals = totals?;
        let weight = totals.hitm as f64 / totals.hitm_samples as f64;
        let samples = count as f64 / weight;
        let half = QUANTILE * samples.sqrt();
        let high = if samples > 0.0 {
            samples + half
        } else {
            MISSED
        };
        let ends = [(samples - half).max(0.0), high];
        Some((name.to_owned(), ends.map(|end| end * weight)))
    };
    (sampled_sharing(summary).into_iter())
        .filter_map(of)
        .collect()
}

/// Quantile of the normal distribution for 95 %.
const QUANTILE: f64 = 1.96;

pub(super) const HITM: &str = "coherence.hitm";

/// Sharing that was estimated from samples, by the names of the modelled events, with the number
/// of samples in each.
pub(super) fn sampled_sharing(summary: &Summary) -> Vec<(&'static str, u64)> {
    let totals = summary.sharing.as_ref().map(|sharing| sharing.totals);
    let Some(totals) = totals.filter(SharingCounts::is_estimate) else {
        return Vec::new();
    };
    vec![
        (HITM, totals.hitm),
        ("coherence.true_sharing", totals.true_sharing),
        ("coherence.false_sharing", totals.false_sharing),
    ]
}
