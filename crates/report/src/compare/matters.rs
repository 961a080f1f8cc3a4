//! Selects the differences that the text and the page list. JSON has all.
//!
//! Two runs of one program on one machine differ in dozens of numbers as soon as they differ by a
//! few instructions. A metric is listed if it changed by at least 1 % and the difference is not
//! tiny relative to the program: 3 misses more than 10 do not matter in a million instructions. A
//! function or line is listed if it changed by at least 0.1 % of the run's events, so that the rows
//! explain the headline.

use memgauge_analyze::IoSummary;

use super::measured::HEAP_PEAK;
use super::rank::CYCLES;
use super::{ChangedPlace, ComparedMetric, Comparison, MetricUnit};

/// Minimum relative difference of a listed metric.
const LEAST_RELATIVE: f64 = 0.01;
/// Minimum difference of a count in events per instruction: 1 in 10 000.
const LEAST_PER_INSTRUCTION: f64 = 1e-4;
/// Minimum difference of a ratio: one percentage point.
const LEAST_RATIO: f64 = 0.01;
/// Minimum difference of a function or line as a share of the run's events.
const LEAST_PART: f64 = 0.001;
/// Bytes that one miss moves.
const LINE_BYTES: f64 = 64.0;

/// A table of data that changed.
pub(super) struct ListedData<'a> {
    pub(super) title: &'static str,
    /// Title of the column of names.
    pub(super) what: &'static str,
    pub(super) event: &'static str,
    pub(super) rows: &'a [ChangedPlace],
}

impl Comparison {
    /// Returns the metrics that changed enough to be listed.
    pub(super) fn listed_metrics(&self) -> Vec<&ComparedMetric> {
        let all = self.metrics.iter();
        all.filter(|metric| self.is_listed(metric)).collect()
    }

    pub(super) fn is_listed(&self, metric: &ComparedMetric) -> bool {
        if !metric.is_change() {
            return false;
        }
        let Some(difference) = metric.difference.map(f64::abs) else {
            return true; // only one run has it
        };
        let instructions = self.larger("instructions").unwrap_or(0.0);
        let least = match MetricUnit::of(&metric.name) {
            MetricUnit::Count => instructions * LEAST_PER_INSTRUCTION,
            MetricUnit::Bytes => instructions * LEAST_PER_INSTRUCTION * LINE_BYTES,
            MetricUnit::Ratio => LEAST_RATIO,
            MetricUnit::PerThousand => 1000.0 * LEAST_PER_INSTRUCTION,
            MetricUnit::Nanoseconds => 0.0,
        };
        let relative = metric.relative.map_or(f64::INFINITY, f64::abs);
        relative >= LEAST_RELATIVE && difference >= least
    }

    /// Returns the ranked places that changed enough to be listed.
    pub(super) fn listed<'a>(&self, places: &'a [ChangedPlace]) -> &'a [ChangedPlace] {
        self.listed_by(places, self.ranked_by.as_deref().unwrap_or_default())
    }

    /// Returns the tables of data, heap and I/O: title, column title, event and rows.
    pub(super) fn listed_data(&self) -> impl Iterator<Item = ListedData<'_>> {
        let data = ListedData {
            title: "Data",
            what: "data",
            event: CYCLES,
            rows: self.listed_by(&self.data, CYCLES),
        };
        let heap = ListedData {
            title: "Allocations",
            what: "allocated by",
            event: HEAP_PEAK,
            rows: self.listed_by(&self.heap, HEAP_PEAK),
        };
        let io = ListedData {
            title: "I/O",
            what: "program (device)",
            event: IoSummary::BYTES,
            rows: self.listed_by(&self.io, IoSummary::BYTES),
        };
        [data, heap, io]
            .into_iter()
            .filter(|table| !table.rows.is_empty())
    }

    fn listed_by<'a>(&self, places: &'a [ChangedPlace], event: &str) -> &'a [ChangedPlace] {
        let least = self.larger(event).unwrap_or(0.0) * LEAST_PART;
        let is_small = |row: &ChangedPlace| (row.after.abs_diff(row.before) as f64) < least;
        let listed = places.iter().position(is_small);
        &places[..listed.unwrap_or(places.len())]
    }

    /// Returns the larger value of a metric.
    fn larger(&self, name: &str) -> Option<f64> {
        let metric = self.metrics.iter().find(|metric| metric.name == name)?;
        let values = metric.before.into_iter().chain(metric.after);
        values.reduce(f64::max)
    }

    /// Returns a phrase with the number of changed metrics and functions that are not listed.
    pub(super) fn unlisted(&self) -> Option<String> {
        let changed = self.metrics.iter().filter(|metric| metric.is_change());
        let metrics = changed.count() - self.listed_metrics().len();
        let functions = self.functions.len() - self.listed(&self.functions).len();
        if metrics + functions == 0 {
            return None;
        }
        let named = |count: usize, name: &str| {
            let ending = if count == 1 { "" } else { "s" };
            (count > 0).then(|| format!("{count} {name}{ending}"))
        };
        let both = [named(metrics, "metric"), named(functions, "function")];
        let both: Vec<String> = both.into_iter().flatten().collect();
        Some(format!(
            "Not listed: {} with smaller differences (metrics below 1 % or one event in 10 000 \
             instructions, functions below 0.1 % of the run); `--json` has them.",
            both.join(" and ")
        ))
    }
}
