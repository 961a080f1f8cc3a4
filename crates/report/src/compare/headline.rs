//! The change of a run's cycles in one sentence: its size, and the function, cause and line with
//! the largest part of it.

use serde::Serialize;

use super::rank::CYCLES;
use super::{ChangedPlace, ComparedMetric, PlaceKind, RunGroups, mean};
use crate::style::Style;
use crate::units;

/// Causes of stalled cycles and what they wait for. Together with the cycles of work they are all
/// cycles.
const CAUSES: [(&str, &str); 7] = [
    ("stall.l2", "on L2"),
    ("stall.llc", "on the LLC"),
    ("stall.dram", "on DRAM"),
    ("stall.queue", "in the queue to DRAM"),
    ("stall.tlb", "on address translation"),
    ("stall.stores", "on stores"),
    ("stall.sharing", "on other cores' caches"),
];

/// Metric of the time for which a program waited for files.
pub(super) const FILE_WAIT: &str = "file_wait_ns";
const DURATION: &str = "duration_ns";

/// Change of a run's cycles, and its main origin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Headline {
    /// Cycles of all threads before, or the mean over the runs.
    pub before: f64,
    /// Cycles after.
    pub after: f64,
    /// Difference relative to the cycles before.
    pub relative: f64,
    /// Function whose cycles changed most in the same direction.
    pub place: Option<HeadlinePlace>,
    /// Set if waits for files changed by more than the modelled time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_wait: Option<FileWaitChange>,
}

/// Change of the time for which a program waited for files. It is measured, and not part of the
/// modelled time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FileWaitChange {
    /// Nanoseconds before, or the mean over the runs.
    pub before_ns: f64,
    /// Nanoseconds after.
    pub after_ns: f64,
}

impl FileWaitChange {
    fn of(metrics: &[ComparedMetric]) -> Option<FileWaitChange> {
        let metric = |name: &str| metrics.iter().find(|metric| metric.name == name);
        let change =
            |metric: &ComparedMetric| [metric.before, metric.after].map(Option::unwrap_or_default);
        let [before_ns, after_ns] = change(metric(FILE_WAIT)?);
        let [before, after] = metric(DURATION).map(change).unwrap_or_default();
        let is_larger = (after_ns - before_ns).abs() > (after - before).abs();
        is_larger.then_some(FileWaitChange {
            before_ns,
            after_ns,
        })
    }

    fn text(self, style: &Style) -> String {
        let time = |ns: f64| units::nanoseconds(ns.max(0.0).round() as u64, style);
        let difference = time((self.after_ns - self.before_ns).abs());
        let more = match self.after_ns > self.before_ns {
            true => "more",
            false => "less",
        };
        let [before, after] = [self.before_ns, self.after_ns].map(time);
        format!(
            "It waits {difference} {more} for files (measured: {before} before, {after} after)."
        )
    }
}

/// Main origin of a change of cycles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeadlinePlace {
    /// Function with its module's file name.
    pub function: String,
    /// True if only the runs after have it.
    pub is_new: bool,
    /// True if only the runs before have it, perhaps under this name only.
    pub is_gone: bool,
    /// Event of the cause of stalled cycles that changed most there. `None` for work, which is
    /// cycles without a stall.
    pub cause: Option<String>,
    /// Change of that cause's cycles in the function.
    pub difference: f64,
    /// File and line of the function whose cycles changed most. `None` without line tables.
    pub line: Option<String>,
}

impl Headline {
    /// Returns `None` if neither cycles nor waits for files changed.
    pub(super) fn of(
        groups: RunGroups,
        metrics: &[ComparedMetric],
        functions: &[ChangedPlace],
        lines: &[ChangedPlace],
    ) -> Option<Headline> {
        let cycles = metrics.iter().find(|metric| metric.name == CYCLES)?;
        let file_wait = FileWaitChange::of(metrics);
        let Some(relative) = cycles.relative.filter(|_| cycles.is_change()) else {
            return file_wait.map(|_| Headline {
                before: cycles.before.unwrap_or_default(),
                after: cycles.after.unwrap_or_default(),
                relative: 0.0,
                place: None,
                file_wait,
            });
        };
        let goes_along = |row: &&ChangedPlace| (row.after > row.before) == (relative > 0.0);
        let function = functions.iter().find(goes_along);
        let place = function.map(|row| {
            let (cause, difference) = cause(groups, &row.function, relative);
            let name = bare(&row.function);
            let of_function = |row: &&ChangedPlace| {
                let parts = row.function.split_once(' ');
                parts.is_some_and(|(_, function)| function == name) && goes_along(row)
            };
            let line = lines.iter().find(of_function);
            let line = line.and_then(|row| row.function.split_once(' '));
            HeadlinePlace {
                function: row.function.clone(),
                is_new: row.only == Some("after"),
                is_gone: row.only == Some("before"),
                cause: cause.map(str::to_owned),
                difference,
                line: line.map(|(line, _)| line.to_owned()),
            }
        });
        Some(Headline {
            before: cycles.before?,
            after: cycles.after?,
            relative,
            place,
            file_wait,
        })
    }

    /// Returns the sentence.
    pub(super) fn text(&self, style: &Style) -> String {
        match &self.file_wait {
            None => self.cycles(style),
            Some(waits) if self.relative == 0.0 => waits.text(style),
            Some(waits) => format!("{} Modelled: {}", waits.text(style), self.cycles(style)),
        }
    }

    fn cycles(&self, style: &Style) -> String {
        let size = units::share(self.relative.abs());
        let change = match self.relative > 0.0 {
            true => format!("{size} slower"),
            false => format!("{size} fewer cycles"),
        };
        let cycles = |cycles: f64| units::count(cycles.round() as u64);
        let [before, after] = [self.before, self.after].map(cycles);
        let whole = format!("{before} cycles before, {after} after");
        match &self.place {
            None => format!("{change}: {whole}."),
            Some(place) => format!("{change}: {} ({whole}).", place.text(style)),
        }
    }
}

impl HeadlinePlace {
    fn text(&self, style: &Style) -> String {
        let function = style.name(bare(&self.function));
        let cycles = units::count(self.difference.abs().round() as u64);
        let cause = CAUSES.iter().find(|c| Some(c.0) == self.cause.as_deref());
        let on = cause.map_or(String::new(), |(_, on)| format!(" {on}"));
        let [stalls, stalled] = match cause {
            Some(_) => ["stalls", "stalled"],
            None => ["works", "worked"],
        };
        let does = match self.difference < 0.0 {
            _ if self.is_new => format!(", a new function, {stalls} {cycles} cycles{on}"),
            _ if self.is_gone => {
                format!(", a function of the old run alone, {stalled} {cycles} cycles{on}")
            }
            true => format!(" {stalls} {cycles} fewer cycles{on}"),
            false => format!(" {stalls} {cycles} more cycles{on}"),
        };
        let line = self.line.as_ref().map(|line| style.name(line));
        let line = line.map_or(String::new(), |line| format!(" at {line}"));
        format!("`{function}`{does}{line}")
    }
}

/// Returns the name of a function without its module.
fn bare(function: &str) -> &str {
    function.rsplit_once(" (").map_or(function, |parts| parts.0)
}

/// Returns the cause whose cycles in a function changed most in the direction of `relative`, and
/// the change. `None` stands for work.
fn cause(groups: RunGroups, function: &str, relative: f64) -> (Option<&'static str>, f64) {
    let difference = |event: &str| {
        let [before, after] = groups.map(|group| {
            let counts = group.iter().map(|run| {
                let counts = PlaceKind::Functions.counts(run).get(function);
                counts.and_then(|c| c.get(event).copied()).unwrap_or(0) as f64
            });
            mean(&counts.collect::<Vec<f64>>())
        });
        after - before
    };
    let stalls = CAUSES.map(|(event, _)| (Some(event), difference(event)));
    let stalled: f64 = stalls.iter().map(|stall| stall.1).sum();
    let work = (None, difference(CYCLES) - stalled);
    let towards = |cause: &(Option<&'static str>, f64)| cause.1 * relative.signum();
    let causes = stalls.into_iter().chain([work]);
    causes
        .max_by(|a, b| towards(a).total_cmp(&towards(b)))
        .unwrap_or(work)
}
