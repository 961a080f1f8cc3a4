//! Compares runs: their metrics, and the functions, lines and regions that changed.
//!
//! Each of several runs is compared with the first ([`Compared`]), also on the page. A run is
//! reduced to [`Measured`], which a baseline file contains. Differences between groups of repeated
//! runs have a confidence interval. For two single runs, only shares of samples have one, because
//! the spread of other numbers is unknown.

mod checks;
mod curves;
mod estimates;
mod flames;
mod gate;
mod headline;
mod html;
mod interval;
mod matters;
mod measured;
mod metric_intervals;
mod page;
mod rank;
mod several;
mod shares;
mod text;
mod unit;
mod work;

use std::collections::BTreeSet;

use memgauge_analyze::IoSummary;
use serde::Serialize;
use serde_json::Value;

pub use checks::{check_event, check_group};
pub use curves::RunCurves;
pub use gate::{Gate, GateError};
pub use headline::{Headline, HeadlinePlace};
pub use interval::{Moments, mean_difference_interval, mean_interval};
pub use measured::{Measured, Shares};
pub use several::Compared;
pub use shares::{ChangedShare, ChangedShares};
pub use unit::MetricUnit;

use interval::{EstimatedNumber, contains_zero, mean, of_estimates, welch};
use measured::{HEAP_PEAK, PlaceCounts, PlaceIntervals};

/// A number of both groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ComparedMetric {
    /// Name of the number.
    pub name: String,
    /// Value in the first run, or the mean of the first group. `None` if a run lacks the number.
    pub before: Option<f64>,
    /// Value in the second run or group.
    pub after: Option<f64>,
    /// `after - before`.
    pub difference: Option<f64>,
    /// `difference / before`. `None` if `before` is zero.
    pub relative: Option<f64>,
    /// 95 % interval of the difference. `None` for single runs, unless they estimated the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

/// A function or a line whose count of the ranking event changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangedPlace {
    /// Function with its module's file name, or line with its function.
    pub function: String,
    /// `before` or `after` if only runs of that side have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only: Option<&'static str>,
    /// Count in the first run, or the group's mean, rounded.
    pub before: u64,
    /// Count in the second run or group.
    pub after: u64,
    /// Share of the sum of all absolute differences.
    pub share: f64,
    /// 95 % interval of the difference. `None` for single runs, unless they estimated the number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

/// Two runs, or two groups of runs, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// True if any number differs, for groups by more than chance.
    pub changed: bool,
    /// Number of runs before and after.
    pub runs: [usize; 2],
    /// Modelled machines of both.
    pub machines: [Option<String>; 2],
    /// File names of both programs. Functions of the second program are compared with those of the
    /// first and get its name.
    pub programs: [Option<String>; 2],
    /// One in how many cache sets the numbers of each are estimated from.
    pub estimated_from: [Option<u32>; 2],
    /// Warnings about those estimates. Each begins with `before` or `after`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Regions of interest that were recorded, for each. `None` if everything was.
    pub only_regions: [Option<String>; 2],
    /// Seed of the program's random numbers in each. `None` if it was not fixed.
    pub seeds: [Option<String>; 2],
    /// True if parts could not be read, for each. They are not compared.
    pub damaged: [bool; 2],
    /// True if functions have exact counts, for each. They are compared if both do.
    pub functions_known: [bool; 2],
    /// Change of the cycles, if both have cycles by function.
    pub headline: Option<Headline>,
    /// All metrics of both, by name.
    pub metrics: Vec<ComparedMetric>,
    /// Event that functions are ranked by. `None` if no function changed.
    pub ranked_by: Option<String>,
    /// True if the user did not choose that event.
    pub ranked_by_cost: bool,
    /// Functions that changed, by their share of the change.
    pub functions: Vec<ChangedPlace>,
    /// Lines that changed, by the same event.
    pub lines: Vec<ChangedPlace>,
    /// Shares of samples by function, if both were sampled by the same event.
    pub sampled: Option<ChangedShares>,
    /// Shares of samples by region and event.
    pub regions: Vec<ChangedShares>,
    /// Data whose stalled cycles changed, if both recordings have data.
    pub data: Vec<ChangedPlace>,
    /// Allocation sites whose bytes at the peak changed.
    pub heap: Vec<ChangedPlace>,
    /// Programs whose bytes through a device changed, if both recordings account for I/O.
    pub io: Vec<ChangedPlace>,
}

/// The runs before and after.
type RunGroups<'a> = [&'a [Measured]; 2];

impl Comparison {
    /// Compares groups of runs, none of them empty. `event` ranks functions and lines. `None`
    /// selects the event whose differences cost most cycles.
    pub fn of(before: &[Measured], after: &[Measured], event: Option<&str>) -> Comparison {
        let program = |group: &[Measured]| group.first().and_then(|run| run.program.clone());
        let machine = |group: &[Measured]| group.first().and_then(|run| run.machine.clone());
        let only = |group: &[Measured]| group.first().and_then(|run| run.only_regions.clone());
        let seed = |group: &[Measured]| group.first().and_then(|run| run.seed.clone());
        let part = |group: &[Measured]| group.first().and_then(|run| run.estimated_from);
        let damaged = |group: &[Measured]| group.iter().any(|run| run.is_damaged);
        let know = |group: &[Measured]| group.iter().all(|run| !run.functions.is_empty());
        let programs = [program(before), program(after)];
        let named = |run: &Measured| run.clone().renamed(programs[0].as_deref());
        let [named_before, named_after]: [Vec<Measured>; 2] =
            [before, after].map(|group| group.iter().map(named).collect());
        let groups: RunGroups = [&named_before, &named_after];
        let metrics = metrics(groups);
        // A recording without functions has unknown counts, not zero.
        let functions_known = [know(before), know(after)];
        let is_known = functions_known == [true, true];
        let ranked = is_known.then(|| rank::ranked(groups, event)).flatten();
        let (ranked_by, functions) = ranked.unzip();
        let functions: Vec<ChangedPlace> = functions.unwrap_or_default();
        let have_lines = groups
            .iter()
            .all(|g| g.iter().all(|run| !run.lines.is_empty()));
        let lines = ranked_by.as_deref().filter(|_| have_lines);
        let lines = lines.map(|event| changed(groups, PlaceKind::Lines, event));
        let lines = lines.unwrap_or_default();
        let is_ranked_by_time = ranked_by.as_deref() == Some(rank::CYCLES);
        let headline = is_ranked_by_time
            .then(|| Headline::of(groups, &metrics, &functions, &lines))
            .flatten();
        let functions: Vec<ChangedPlace> = (functions.into_iter())
            .map(|row| row.of_its_own(&programs))
            .collect();
        let sampled = shares::functions(groups);
        let regions = shares::regions(groups);
        let of_data = |of: PlaceKind, event: &str| {
            let has = |group: &&[Measured]| group.iter().all(|run| !of.counts(run).is_empty());
            match groups.iter().all(has) {
                true => changed(groups, of, event),
                false => Vec::new(),
            }
        };
        let data = of_data(PlaceKind::Data, rank::CYCLES);
        let heap = of_data(PlaceKind::Heap, HEAP_PEAK);
        let io = of_data(PlaceKind::Io, IoSummary::BYTES);
        let estimated_from = [part(before), part(after)];
        let is_exact = estimated_from == [None, None];
        let other_counts = match groups {
            [[before], [after]] if is_exact => is_known && before.functions != after.functions,
            _ => false,
        };
        Comparison {
            changed: other_counts
                || !functions.is_empty()
                || !heap.is_empty()
                || !io.is_empty()
                || metrics.iter().any(ComparedMetric::is_change)
                || sampled
                    .iter()
                    .chain(&regions)
                    .any(|table| !table.rows.is_empty()),
            runs: groups.map(<[Measured]>::len),
            machines: [machine(before), machine(after)],
            programs,
            estimated_from,
            warnings: warnings(groups),
            only_regions: [only(before), only(after)],
            seeds: [seed(before), seed(after)],
            damaged: [damaged(before), damaged(after)],
            functions_known,
            headline,
            metrics,
            ranked_by_cost: ranked_by.is_some() && event.is_none(),
            ranked_by,
            functions,
            lines,
            sampled,
            regions,
            data,
            heap,
            io,
        }
    }

    /// Returns the comparison as JSON.
    pub fn json(&self) -> Value {
        serde_json::json!(self)
    }

    /// Returns true if the time of one side is modelled and that of the other measured.
    fn mixes_times(&self) -> bool {
        self.machines[0].is_some() != self.machines[1].is_some()
    }

    /// Returns true if both have a time. Imported costs have none.
    fn has_times(&self) -> bool {
        let has = |time: Option<f64>| time.is_some_and(|ns| ns > 0.0);
        let mut times = self
            .metrics
            .iter()
            .filter(|metric| unit::is_time(&metric.name));
        times.any(|time| has(time.before) && has(time.after))
    }

    fn is_of_groups(&self) -> bool {
        self.runs != [1, 1]
    }

    fn has_intervals(&self) -> bool {
        self.is_of_groups() || self.metrics.iter().any(|metric| metric.interval.is_some())
    }
}

/// Returns true if there are warnings about the estimates of a run.
fn are_doubtful(groups: RunGroups) -> bool {
    let mut runs = groups.iter().copied().flatten();
    runs.any(|run| !run.warnings.is_empty())
}

/// Returns the warnings about the estimates of both sides, each once, with its side.
fn warnings(groups: RunGroups) -> Vec<String> {
    let of = |(which, runs): (&str, &[Measured])| -> BTreeSet<String> {
        let all = runs.iter().flat_map(|run| &run.warnings);
        all.map(|warning| format!("{which}: {warning}")).collect()
    };
    let sides = ["before", "after"].into_iter().zip(groups);
    sides.flat_map(of).collect()
}

/// Returns every metric of any run.
fn metrics(groups: RunGroups) -> Vec<ComparedMetric> {
    let runs = groups.iter().copied().flatten();
    let names: BTreeSet<&String> = runs.flat_map(|run| run.metrics.keys()).collect();
    let values = |group: &[Measured], name: &String| -> Option<Vec<f64>> {
        group
            .iter()
            .map(|run| run.metrics.get(name).copied())
            .collect()
    };
    let is_modelled = |group: &[Measured]| group.iter().any(|run| run.machine.is_some());
    let mixes_times = is_modelled(groups[0]) != is_modelled(groups[1]);
    let metric = |name: &String| {
        let metric =
            ComparedMetric::of(name, groups.map(|group| values(group, name))).of_single(groups);
        match mixes_times && unit::is_time(name) {
            true => metric.without_difference(),
            false => metric,
        }
    };
    names.into_iter().map(metric).collect()
}

impl ComparedMetric {
    fn of(name: &str, [before, after]: [Option<Vec<f64>>; 2]) -> ComparedMetric {
        let interval = before.as_deref().zip(after.as_deref());
        let interval = interval.and_then(|(before, after)| welch(before, after));
        let [before, after] = [before, after].map(|values| values.map(|values| mean(&values)));
        let difference = before.zip(after).map(|(before, after)| after - before);
        let divisor = before.filter(|&before| before != 0.0);
        ComparedMetric {
            name: name.to_owned(),
            before,
            after,
            difference,
            relative: difference.zip(divisor).map(|(d, before)| d / before),
            interval,
        }
    }

    /// Adds the interval of two single runs' estimates.
    fn of_single(self, groups: RunGroups) -> ComparedMetric {
        let ([[before], [after]], Some(values)) = (groups, self.before.zip(self.after)) else {
            return self;
        };
        let estimate = |run: &Measured, value| EstimatedNumber {
            value,
            interval: run.intervals.get(&self.name).copied(),
        };
        let ends = [estimate(before, values.0), estimate(after, values.1)];
        let interval = of_estimates(ends[0], ends[1], are_doubtful(groups));
        ComparedMetric { interval, ..self }
    }

    /// Keeps both values and drops their difference, because they have different meanings.
    fn without_difference(self) -> ComparedMetric {
        ComparedMetric {
            difference: None,
            relative: None,
            interval: None,
            ..self
        }
    }

    /// Returns true if both runs have the number with different meanings.
    pub fn is_incomparable(&self) -> bool {
        self.before.is_some() && self.after.is_some() && self.difference.is_none()
    }

    /// Returns true if the number changed, for groups by more than chance.
    pub fn is_change(&self) -> bool {
        match self.interval {
            Some(interval) => !contains_zero(interval),
            None => self.before != self.after && !self.is_incomparable(),
        }
    }
}

static NO_INTERVALS: PlaceIntervals = PlaceIntervals::new();

/// Known counts of a place.
#[derive(Clone, Copy, Debug)]
enum PlaceKind {
    Functions,
    Lines,
    Data,
    Heap,
    Io,
}

impl PlaceKind {
    fn counts(self, run: &Measured) -> &PlaceCounts {
        match self {
            PlaceKind::Functions => &run.functions,
            PlaceKind::Lines => &run.lines,
            PlaceKind::Data => &run.data,
            PlaceKind::Heap => &run.heap,
            PlaceKind::Io => &run.io,
        }
    }

    fn intervals(self, run: &Measured) -> &PlaceIntervals {
        match self {
            PlaceKind::Functions => &run.function_intervals,
            PlaceKind::Lines => &run.line_intervals,
            // None of these is an estimate.
            PlaceKind::Data | PlaceKind::Heap | PlaceKind::Io => &NO_INTERVALS,
        }
    }
}

/// Returns places whose count changed, largest difference first.
fn changed(groups: RunGroups, of: PlaceKind, event: &str) -> Vec<ChangedPlace> {
    let runs = groups.iter().copied().flatten();
    let names: BTreeSet<&String> = runs.flat_map(|run| of.counts(run).keys()).collect();
    let count = |run: &Measured, name: &String| {
        let counts = of.counts(run).get(name);
        counts.and_then(|c| c.get(event).copied()).unwrap_or(0) as f64
    };
    let estimate = |run: &Measured, name: &String| {
        let value = count(run, name);
        EstimatedNumber {
            value,
            interval: estimates::of_place(run, of.intervals(run), name, event, value),
        }
    };
    let of_single = |name: &String| match groups {
        [[before], [after]] => {
            let ends = [estimate(before, name), estimate(after, name)];
            of_estimates(ends[0], ends[1], are_doubtful(groups))
        }
        _ => None,
    };
    let row = |name: &String| {
        let values = groups.map(|group| group.iter().map(|run| count(run, name)).collect());
        let [before, after]: [Vec<f64>; 2] = values;
        let interval = welch(&before, &after).or_else(|| of_single(name));
        let [before, after] = [before, after].map(|values| mean(&values).round() as u64);
        let is_change = before != after && !interval.is_some_and(contains_zero);
        is_change.then(|| ChangedPlace {
            function: name.clone(),
            only: only(groups, of, name),
            before,
            after,
            share: 0.0,
            interval,
        })
    };
    let mut rows: Vec<ChangedPlace> = names.into_iter().filter_map(row).collect();
    let difference = |row: &ChangedPlace| row.after.abs_diff(row.before);
    let sum = rows.iter().map(|row| difference(row) as f64).sum::<f64>();
    for row in &mut rows {
        row.share = difference(row) as f64 / sum;
    }
    rows.sort_by_key(|row| std::cmp::Reverse(difference(row)));
    rows
}

/// Returns the side if only its runs have a place.
fn only(groups: RunGroups, of: PlaceKind, name: &String) -> Option<&'static str> {
    let has = |group: &[Measured]| group.iter().any(|run| of.counts(run).contains_key(name));
    match groups.map(has) {
        [false, true] => Some("after"),
        [true, false] => Some("before"),
        _ => None,
    }
}

impl ChangedPlace {
    /// A function that only the second program has keeps that program's name. Its other functions
    /// have the first program's name.
    fn of_its_own(self, programs: &[Option<String>; 2]) -> ChangedPlace {
        let [Some(before), Some(after)] = programs else {
            return self;
        };
        let place = self.function.strip_suffix(&format!(" ({before})"));
        match (self.only, place) {
            (Some("after"), Some(place)) => ChangedPlace {
                function: format!("{place} ({after})"),
                ..self
            },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::plain;
    use std::collections::BTreeMap;

    fn of(before: Measured, after: Measured) -> Comparison {
        Comparison::of(&[before], &[after], None)
    }

    fn run(program: &str, misses: u64) -> Measured {
        let counts = |n| BTreeMap::from([("llc.miss".to_owned(), n)]);
        Measured {
            program: Some(program.to_owned()),
            functions: BTreeMap::from([
                (format!("sum ({program})"), counts(misses)),
                ("memset (libc.so.6)".to_owned(), counts(7)),
            ]),
            metrics: BTreeMap::from([("llc.miss".to_owned(), (misses + 7) as f64)]),
            ..Measured::default()
        }
    }

    #[test]
    fn functions_of_programs_with_two_names_are_compared_with_each_other() {
        let compared = of(run("old", 100), run("new", 40));
        let functions: Vec<_> = compared.functions.iter().collect();
        assert_eq!(functions.len(), 1, "{functions:?}");
        assert_eq!(functions[0].function, "sum (old)");
        assert_eq!((functions[0].before, functions[0].after), (100, 40));
        let text = compared.text(10, &plain(80, false));
        assert!(
            text.contains("Functions of `new` are compared with those of `old`."),
            "{text}"
        );
        assert!(!of(run("old", 9), run("new", 9)).changed);
    }

    #[test]
    fn a_function_that_was_added_has_its_own_programs_name() {
        let mut new = run("new", 100);
        let counts = BTreeMap::from([("llc.miss".to_owned(), 500)]);
        new.functions.insert("added (new)".to_owned(), counts);
        let compared = of(run("old", 90), new);
        let rows: Vec<_> = compared
            .functions
            .iter()
            .map(|row| (row.function.as_str(), row.only))
            .collect();
        assert_eq!(rows, [("added (new)", Some("after")), ("sum (old)", None)]);
        let text = compared.text(10, &plain(80, false));
        assert!(text.contains("added (new), new"), "{text}");
    }

    #[test]
    fn functions_that_one_run_does_not_know_are_not_gone() {
        let sampled = Measured {
            functions: BTreeMap::new(),
            ..run("old", 100)
        };
        let compared = of(run("old", 100), sampled);
        assert_eq!((compared.functions.len(), compared.changed), (0, false));
        let text = compared.text(10, &plain(80, false));
        assert!(text.contains("Functions are not compared"), "{text}");
    }

    #[test]
    fn data_and_allocations_are_compared_by_name() {
        let of = |cycles: u64, peak: u64| Measured {
            data: [("main at d.c:9 (malloc)", "cycles", cycles)]
                .map(counted)
                .into(),
            heap: [("main at d.c:9 (malloc)", HEAP_PEAK, peak)]
                .map(counted)
                .into(),
            metrics: [("cycles", 2.0 * cycles as f64), (HEAP_PEAK, peak as f64)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            ..run("prog", 100)
        };
        let compared = Comparison::of(&[of(1_000_000, 4096)], &[of(3_000_000, 8192)], None);
        let text = compared.text(10, &plain(200, true));
        assert!(text.contains("Data that changed, by cycles"), "{text}");
        assert!(
            text.contains("Allocations that changed, by heap.peak_bytes"),
            "{text}"
        );
        assert!(text.contains("main at d.c:9 (malloc)"), "{text}");
        assert_eq!(compared.heap[0].after, 8192);
        // A recording without data has unknown counts, not zero.
        let compared = Comparison::of(&[of(1_000_000, 4096)], &[run("prog", 100)], None);
        assert!(compared.data.is_empty() && compared.heap.is_empty());
    }

    fn counted((name, event, count): (&str, &str, u64)) -> (String, BTreeMap<String, u64>) {
        let counts = BTreeMap::from([(event.to_owned(), count)]);
        (name.to_owned(), counts)
    }

    #[test]
    fn runs_without_a_metric_in_common_say_so() {
        let counted = |name: &str| Measured {
            metrics: BTreeMap::from([(name.to_owned(), 1.0), ("duration_ns".to_owned(), 2.0)]),
            ..Measured::default()
        };
        let text = |a, b| of(counted(a), counted(b)).text(10, &plain(80, false));
        assert!(text("loads", "cpu-clock").contains("no metric in common"));
        assert!(!text("loads", "loads").contains("no metric in common"));
    }

    #[test]
    fn virtual_time_is_not_compared_with_measured_time() {
        let run = |machine: Option<&str>, ns| Measured {
            machine: machine.map(str::to_owned),
            metrics: BTreeMap::from([("duration_ns".to_owned(), ns)]),
            ..Measured::default()
        };
        let compared = of(run(None, 16.6e6), run(Some("zen4"), 102e6));
        let length = &compared.metrics[0];
        assert_eq!((length.before, length.after), (Some(16.6e6), Some(102e6)));
        assert_eq!((length.difference, length.is_change()), (None, false));
        let text = compared.text(10, &plain(80, false));
        assert!(text.contains("Times are not compared"), "{text}");
        let compared = of(run(None, 0.0), run(Some("zen4"), 102e6));
        let text = compared.text(10, &plain(80, false));
        assert!(!text.contains("Times are not compared"), "{text}");
        let compared = of(run(Some("zen4"), 16.6e6), run(Some("zen4"), 102e6));
        assert!(compared.metrics[0].is_change());
    }

    #[test]
    fn a_run_of_some_regions_is_told_from_a_whole_one() {
        let inside = Measured {
            only_regions: Some("sort".to_owned()),
            ..run("p", 7)
        };
        let text = |a, b| {
            let lines = of(a, b).text(10, &plain(80, false));
            lines.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let mixed = text(run("p", 9), inside.clone());
        assert!(
            mixed.contains("the whole run, regions sort alone"),
            "{mixed}"
        );
        assert!(!text(inside.clone(), inside).contains("alone"));
    }

    #[test]
    fn the_event_whose_differences_cost_most_cycles_ranks() {
        let run = |l1d: u64, l2: u64, instructions: u64| Measured {
            functions: BTreeMap::from([(
                "mul (m)".to_owned(),
                BTreeMap::from([
                    ("l1d.miss".to_owned(), l1d),
                    ("l2.miss".to_owned(), l2),
                    ("instructions".to_owned(), instructions),
                ]),
            )]),
            ..Measured::default()
        };
        let ranked = |a, b| Comparison::of(&[a], &[b], None).ranked_by.unwrap();
        // A matrix product after its loops were swapped. It has a few more misses of the second
        // level.
        let (old, new) = (
            run(16_900_000, 14_400, 60_000_000),
            run(2_100_000, 16_300, 60_000_000),
        );
        assert_eq!(ranked(old.clone(), new.clone()), "l1d.miss");
        assert_eq!(
            ranked(run(100, 10, 5_000_000), run(101, 11, 9_000_000)),
            "instructions"
        );
        assert_eq!(ranked(run(100, 10, 1000), run(90, 60, 1100)), "l2.miss");
        let text = of(old.clone(), new.clone()).text(10, &plain(80, false));
        assert!(text.contains("--event"), "{text}");
        let asked = Comparison::of(&[old], &[new], Some("l2.miss"));
        assert!(!asked.text(10, &plain(80, false)).contains("--event"));
    }

    /// A run of 10 million instructions whose function `parse` stalls on DRAM at one of its lines.
    fn parsed(stalled: u64) -> Measured {
        let counts = |cycles: u64, stalled: u64| -> BTreeMap<String, u64> {
            let counts = [("cycles", cycles), ("stall.dram", stalled), ("stall.l2", 7)];
            counts.map(|(event, n)| (event.to_owned(), n)).into()
        };
        let whole = |n: u64| n as f64;
        Measured {
            machine: Some("zen4".to_owned()),
            program: Some("p".to_owned()),
            metrics: [
                ("cycles", whole(20_000_000 + stalled)),
                ("instructions", 10_000_000.0),
                ("llc.miss", whole(stalled / 200)),
                ("stlb.hit", whole(stalled % 10)),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            functions: [
                ("parse (p)".to_owned(), counts(5_000_000 + stalled, stalled)),
                ("tiny (p)".to_owned(), counts(100 + stalled % 10, 0)),
            ]
            .into(),
            lines: [
                ("parse.c:80 parse".to_owned(), counts(4_000_000, 0)),
                (
                    "parse.c:88 parse".to_owned(),
                    counts(1_000_000 + stalled, stalled),
                ),
            ]
            .into(),
            ..Measured::default()
        }
    }

    #[test]
    fn the_headline_names_function_cause_and_line() {
        let compared = of(parsed(1_000_000), parsed(4_100_003));
        let text = compared.text(10, &plain(200, false));
        let first = text.lines().next().expect("a line");
        assert_eq!(
            first,
            "14.8 % slower: `parse` stalls 3.10M more cycles on DRAM at parse.c:88 (21.0M cycles \
             before, 24.1M after)."
        );
        let compared = of(parsed(4_100_003), parsed(1_000_000));
        let text = compared.text(10, &plain(200, false));
        assert!(
            text.starts_with("12.9 % fewer cycles: `parse` stalls 3.10M fewer"),
            "{text}"
        );
        assert!(text.contains(" at parse.c:88 "), "{text}");
    }

    #[test]
    fn small_differences_are_counted_and_not_listed() {
        let compared = of(parsed(1_000_000), parsed(4_100_003));
        let text = compared.text(10, &plain(200, false));
        // Names come before the numbers, and functions before metrics.
        let row = |name: &str| {
            text.lines()
                .position(|line| line.trim_start().starts_with(name))
        };
        assert!(
            row("parse (p)").expect("a row") < row("llc.miss").expect("a row"),
            "{text}"
        );
        for small in ["tiny (p)", "stlb.hit", "parse.c:80"] {
            assert_eq!(row(small), None, "{text}");
        }
        assert!(
            text.contains("Not listed: 1 metric and 1 function with smaller"),
            "{text}"
        );
        let bar = text.lines().find(|line| line.contains("parse (p)"));
        assert!(
            bar.is_some_and(|line| line.ends_with("+########")),
            "{text}"
        );

        let compared = of(parsed(1_000_000), parsed(1_005_003));
        let text = compared.text(10, &plain(200, false));
        assert!(
            compared.changed && text.starts_with("<0.1 % slower"),
            "{text}"
        );
        assert!(!text.contains("that changed"), "{text}");
        assert_eq!(compared.json()["metrics"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn time_by_function_ranks_and_opens_the_comparison() {
        let run = |cycles: u64, misses: u64| {
            let counts = [("cycles", cycles), ("llc.miss", misses)];
            let counts = counts.map(|(event, n)| (event.to_owned(), n));
            Measured {
                metrics: [("cycles".to_owned(), cycles as f64)].into(),
                functions: [("sum (sums)".to_owned(), counts.into())].into(),
                ..Measured::default()
            }
        };
        let compared = of(run(2000, 1_000_000), run(500, 10));
        assert_eq!(compared.ranked_by.as_deref(), Some("cycles"));
        let text = compared.text(10, &plain(200, false));
        let first = text.lines().next().expect("a line");
        assert_eq!(
            first,
            "75.0 % fewer cycles: `sum` works 1.50k fewer cycles (2.00k cycles before, 500 after)."
        );
    }

    /// As a run with `--sets` and one without: no TLB is modelled in the first.
    #[test]
    fn an_event_that_one_run_does_not_know_ranks_nothing() {
        let run = |counts: &[(&str, u64)]| {
            let counts = counts.iter().map(|&(event, n)| (event.to_owned(), n));
            let counts: BTreeMap<String, u64> = counts.collect();
            Measured {
                metrics: counts.iter().map(|(e, &n)| (e.clone(), n as f64)).collect(),
                functions: BTreeMap::from([("chase (p)".to_owned(), counts)]),
                ..Measured::default()
            }
        };
        let full = run(&[("dtlb.walk", 1_260_000), ("llc.miss", 1000)]);
        let sets = run(&[("llc.miss", 1010)]);
        for (before, after) in [(&full, &sets), (&sets, &full)] {
            let found = of(before.clone(), after.clone());
            assert_eq!(found.ranked_by.as_deref(), Some("llc.miss"));
            assert_eq!(found.functions[0].before + found.functions[0].after, 2010);
        }
        let only_walks = of(full.clone(), run(&[("llc.miss", 1000)]));
        assert_eq!(only_walks.ranked_by, None);
    }

    #[test]
    fn numbers_are_in_their_units() {
        let run = |factor: f64| Measured {
            metrics: [
                ("duration_ns", 102e6),
                ("dram.read_bytes", 3.0 * 1_048_576.0),
                ("l1d.miss", 8_489_433.0),
                ("llc.mpki", 71.382_492),
                ("llc.miss_ratio", 0.25),
            ]
            .map(|(name, value)| (name.to_owned(), value * factor))
            .into(),
            ..Measured::default()
        };
        let text = of(run(1.0), run(0.5)).text(10, &plain(80, true));
        for row in [
            "dram.read_bytes  3.00 MiB  1.50 MiB    -1.50 MiB  -50.00 %",
            "duration_ns        102 ms   51.0 ms     -51.0 ms  -50.00 %",
            "l1d.miss            8.49M     4.24M       -4.24M  -50.00 %",
            "llc.miss_ratio    25.00 %   12.50 %  -12.50 points  -50.00 %",
            "llc.mpki            71.38     35.69       -35.69  -50.00 %",
        ] {
            let row = format!("{row} -████████");
            let words: Vec<&str> = row.split_whitespace().collect();
            let has = |line: &str| line.split_whitespace().collect::<Vec<_>>() == words;
            assert!(text.lines().any(has), "{row}: {text}");
        }
    }

    /// Runs that sampled `parts` of 1000, in functions `f0`, `f1`, …
    fn sampled(parts: &[u64]) -> Measured {
        let share = |(i, &part): (usize, &u64)| (format!("f{i} (p)"), part as f64 / 1000.0);
        Measured {
            sampled: Some(Shares {
                event: "cpu-clock".to_owned(),
                samples: 1000,
                shares: parts.iter().enumerate().map(share).collect(),
            }),
            ..Measured::default()
        }
    }

    #[test]
    fn sampled_functions_change_beyond_chance_only() {
        let compared = of(sampled(&[500, 300, 200]), sampled(&[510, 290, 200]));
        assert!(!compared.changed, "{compared:?}");
        let compared = of(sampled(&[500, 300, 200]), sampled(&[300, 300, 400]));
        let rows = compared.sampled.as_ref().map(|table| table.rows.as_slice());
        let names: Vec<&str> = rows.unwrap().iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(!names.contains(&"f1 (p)"));
        let text = compared.text(10, &plain(80, false));
        assert!(
            text.contains("by cpu-clock (1000 and 1000 samples)"),
            "{text}"
        );
        // Runs that differ by more than the chance of their samples: no conclusion.
        let runs = |parts: [u64; 3]| parts.map(|part| sampled(&[part, 1000 - part]));
        let compared = Comparison::of(&runs([300, 500, 700]), &runs([450, 650, 800]), None);
        assert!(!compared.changed, "{compared:?}");
    }

    #[test]
    fn what_could_not_be_read_is_said_not_to_be_compared() {
        let damaged = Measured {
            is_damaged: true,
            ..run("p", 1)
        };
        let compared = Comparison::of(&[run("p", 1)], &[damaged], None);
        assert_eq!(compared.damaged, [false, true]);
        let text = compared.text(10, &plain(80, false));
        assert!(text.starts_with("Damaged recordings (after): "), "{text}");
        assert!(text.ends_with("Nothing changed.\n"), "{text}");
    }

    #[test]
    fn groups_change_where_the_interval_excludes_zero() {
        let group = |misses: [u64; 3]| misses.map(|misses| run("p", misses));
        let compared = Comparison::of(&group([100, 104, 102]), &group([101, 105, 103]), None);
        assert!(!compared.changed, "{compared:?}");
        let metric = &compared.metrics[0];
        assert_eq!((metric.before, metric.after), (Some(109.0), Some(110.0)));
        let text = compared.text(10, &plain(80, false));
        assert!(text.ends_with("Nothing changed.\n"), "{text}");
        let compared = Comparison::of(&group([100, 104, 102]), &group([201, 205, 203]), None);
        assert!(compared.changed && compared.functions.len() == 1);
        assert_eq!(compared.functions[0].function, "sum (p)");
        let [low, high] = compared.functions[0].interval.unwrap();
        assert!(low > 90.0 && low < 101.0 && high > 101.0 && high < 112.0);
        // Equal deterministic runs, and deterministic runs that differ by one.
        assert!(!Comparison::of(&group([7; 3]), &group([7; 3]), None).changed);
        assert!(Comparison::of(&group([7; 3]), &group([8; 3]), None).changed);
    }

    #[test]
    fn functions_are_ranked_by_the_event_asked_for() {
        let counts = |llc: u64, loads: u64| {
            BTreeMap::from([("llc.miss".to_owned(), llc), ("loads".to_owned(), loads)])
        };
        let run = |a, b| Measured {
            functions: BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]),
            ..Measured::default()
        };
        let before = [run(counts(10, 10), counts(10, 10))];
        let after = [run(counts(90, 20), counts(20, 900))];
        let first = |event| {
            Comparison::of(&before, &after, event).functions[0]
                .function
                .clone()
        };
        assert_eq!(first(None), "a");
        assert_eq!(first(Some("loads")), "b");
    }
}
