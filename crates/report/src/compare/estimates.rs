//! Intervals of numbers that were estimated from a sample of the cache sets.

use memgauge_trace::Unit;

use super::interval::Interval;
use super::measured::{Measured, PlaceIntervals};
use super::metric_intervals::MISSED;

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

    /// A run that counted `misses`, or estimated them within `half`, all in one function.
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
        // The other run may have missed two misses in one set of eight, but not 20.
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
