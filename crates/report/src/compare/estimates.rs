//! Intervals of numbers that were estimated from a sample of the cache sets.

use std::collections::BTreeMap;

use memgauge_analyze::{LevelName, Summary};
use memgauge_trace::{EstimatedFacts, Unit};

use super::interval::Interval;
use super::measured::{Measured, PlaceIntervals, sampled_sharing_counts};

/// Upper 95 % limit of the number of events if none was seen (B. D. Jovanovic and P. S. Levy, The
/// American Statistician 51, 1997).
const MISSED: f64 = 3.0;

/// Returns the intervals of whole-run numbers, by their names in `Measured::metrics`.
pub(super) fn of_metrics(summary: &Summary) -> BTreeMap<String, Interval> {
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
    (sampled_sharing_counts(summary).into_iter())
        .filter_map(of)
        .collect()
}

/// Of the normal distribution, for 95 %.
const QUANTILE: f64 = 1.96;

/// Returns the interval of a place's count of an event, if the run estimated it. A run may not have
/// seen a place that it lacks.
pub(super) fn of_place(
    run: &Measured,
    places: &PlaceIntervals,
    name: &str,
    event: &str,
    count: f64,
) -> Option<Interval> {
    let known = places.get(name).and_then(|events| events.get(event));
    if let Some(&[low, high]) = known {
        return Some([low as f64, high as f64]);
    }
    let one_in = f64::from(run.estimated_from?);
    let is_estimate = run.intervals.contains_key(event);
    let unit = Unit::of_event(event).step() as f64;
    (is_estimate && count == 0.0).then_some([0.0, MISSED * unit * one_in])
}

#[cfg(test)]
mod tests {
    use super::super::Comparison;
    use super::*;
    use crate::fixture::plain;

    /// A run that counted `misses`, or estimated them within `half`; all in one function.
    fn run(misses: u64, half: Option<u64>) -> Measured {
        let interval = half.map(|half| [misses - half, misses + half]);
        let event = || "llc.miss".to_owned();
        let place = || "sum (p)".to_owned();
        let ends = interval.map(|ends| ends.map(|end| end as f64));
        let of_place = interval.map(|ends| (place(), [(event(), ends)].into()));
        Measured {
            estimated_from: half.map(|_| 8),
            metrics: [(event(), misses as f64)].into(),
            intervals: ends.map(|ends| (event(), ends)).into_iter().collect(),
            functions: [(place(), [(event(), misses)].into())].into(),
            function_intervals: of_place.into_iter().collect(),
            ..Measured::default()
        }
    }

    fn compared(before: &Measured, after: &Measured) -> Comparison {
        Comparison::of(
            std::slice::from_ref(before),
            std::slice::from_ref(after),
            None,
        )
    }

    #[test]
    fn estimates_change_beyond_their_intervals_only() {
        for (before, after, is_change) in [
            (run(1000, None), run(1001, None), true),
            // An estimate beside an exact count.
            (run(1000, None), run(1049, Some(50)), false),
            (run(1000, None), run(1051, Some(50)), true),
            (run(1049, Some(50)), run(1000, None), false),
            // 30 and 40 together are 50.
            (run(1000, Some(30)), run(1049, Some(40)), false),
            (run(1000, Some(30)), run(1051, Some(40)), true),
        ] {
            let compared = compared(&before, &after);
            assert_eq!(compared.changed, is_change, "{compared:?}");
            assert_eq!(compared.metrics[0].is_change(), is_change);
            assert_eq!(compared.functions.len(), usize::from(is_change));
            let text = compared.text(10, &plain(100, true));
            let is_estimate = before.estimated_from.or(after.estimated_from).is_some();
            assert_eq!(text.contains("95 % interval"), is_estimate, "{text}");
            assert_eq!(text.ends_with("Nothing changed.\n"), !is_change, "{text}");
        }
    }

    /// If few sets have most of the misses, one run may have simulated all of them and the other
    /// none.
    #[test]
    fn errors_that_are_no_chance_add_up() {
        let of = |warnings: &[&str]| {
            let warnings = warnings.iter().map(|&warning| warning.to_owned());
            let warned = Measured {
                warnings: warnings.collect(),
                ..run(1000, Some(30))
            };
            compared(&warned, &run(1060, Some(40)))
        };
        assert!(of(&[]).changed && of(&[]).warnings.is_empty());
        let doubtful = of(&["few sets miss"]);
        assert!(!doubtful.changed);
        assert_eq!(doubtful.warnings, ["before: few sets miss"]);
        let text = doubtful.text(10, &plain(100, true));
        assert!(text.contains("Warning, before: few sets miss."), "{text}");
    }

    #[test]
    fn a_function_that_few_sets_did_not_see_may_be_there() {
        let mut with = run(1000, Some(500));
        let mut seen = |name: &str, count, ends| {
            let event = || "llc.miss".to_owned();
            with.functions
                .insert(name.to_owned(), [(event(), count)].into());
            with.function_intervals
                .insert(name.to_owned(), [(event(), ends)].into());
        };
        // Two misses in one set in eight may have been missed by the other run; 20 not.
        seen("few (p)", 16, [2, 60]);
        seen("many (p)", 160, [90, 230]);
        let compared = compared(&run(1000, Some(500)), &with);
        let names: Vec<&str> = compared.functions.iter().map(|f| &*f.function).collect();
        assert_eq!(names, ["many (p)"]);
    }

    #[test]
    fn a_baseline_keeps_the_intervals() {
        let measured = Measured {
            memgauge_baseline: 1,
            ..run(1000, Some(30))
        };
        assert_eq!(Measured::parse(&measured.file()), Ok(measured));
    }
}
