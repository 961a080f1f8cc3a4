//! Content of the page of a dataset.
//!
//! The page is made for one version of the dataset, one scan of the numbers of whole runs and one of
//! functions, so its parts agree with each other.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_report::fleet::{
    FleetChange, FleetHistory, FleetOverview, FleetPoint, FleetRecording, FleetService,
    FleetVersion,
};
use memgauge_report::{mean_difference_interval, mean_interval};

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::measurement::Scope;
use crate::outliers::outliers_of;
use crate::query::{Query, facts};
use crate::recording_row::RecordingRow;
use crate::top::{TopOptions, top_of, usual_of};
use crate::totals::{MetricTotals, Total, totals};

/// Settings of [`overview`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverviewOptions {
    /// Metric of whole runs; `None`: stalled cycles, cycles, or else what most recordings have.
    pub metric: Option<String>,
    /// Maximum number of functions.
    pub functions: usize,
    /// Maximum number of recordings.
    pub recordings: usize,
}

/// Services whose metric is shown over time.
const MAX_SERVICES: usize = 12;

/// Versions of each service.
const MAX_VERSIONS: usize = 40;

/// Steps of time that a history has at most, unless it is longer than this many months.
const MAX_STEPS: f64 = 32.0;

const NS_PER_S: f64 = 1e9;

/// Steps of time in seconds: 1 and 10 minutes, 1 and 6 hours, a day, a week, 4 weeks.
const STEPS_S: [f64; 7] = [
    60.0,
    600.0,
    3600.0,
    21_600.0,
    86_400.0,
    604_800.0,
    2_419_200.0,
];

/// Summarises the selected recordings.
///
/// # Errors
/// No recording is selected or has the metric, or the storage fails.
pub fn overview(
    dataset: &Dataset,
    query: &Query,
    options: &OverviewOptions,
) -> Result<FleetOverview> {
    let version = dataset.newest_with_recordings()?;
    let services = services(&version.recordings);
    let selected = query.select(version)?;
    let totals = totals(dataset, &selected, None)?;
    let metric = match &options.metric {
        Some(metric) => metric.clone(),
        None => usual_metric(&totals).unwrap_or_default().to_owned(),
    };
    let Some(total) = totals.get(&metric) else {
        return Err(no_such_metric(&metric, &totals));
    };
    let (histories, other_services) = histories(&selected, total);
    let values: BTreeMap<usize, f64> = total.values.iter().copied().collect();
    let (recordings, other_recordings) = recordings(&selected, &values, options.recordings);
    let has_functions = |metric: &String| selected.iter().any(|row| row.metrics.contains(metric));
    let functions = TopOptions {
        scope: Some(Scope::Function),
        metric: Some(metric.clone()).filter(has_functions),
        rows: options.functions,
    };
    let top = match selected.iter().any(|row| !row.metrics.is_empty()) {
        true => Some(top_of(dataset, &selected, &functions)?),
        false => None,
    };
    Ok(FleetOverview {
        dataset: dataset.name().to_owned(),
        facts: facts(selected.iter()),
        services,
        service: query.service.clone(),
        provenances: total.provenances.iter().cloned().collect(),
        metric,
        metrics: totals.keys().cloned().collect(),
        histories,
        other_services,
        top,
        outliers: outliers_of(&totals, &selected),
        recordings,
        other_recordings,
    })
}

fn services(rows: &[RecordingRow]) -> Vec<FleetService> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        *counts.entry(&row.partition.service).or_default() += 1;
    }
    let service = |(name, recordings): (&str, u64)| FleetService {
        name: name.to_owned(),
        recordings,
    };
    counts.into_iter().map(service).collect()
}

fn usual_metric(totals: &MetricTotals) -> Option<&str> {
    let counts = totals.iter();
    let counts = counts.map(|(metric, total)| (metric.as_str(), total.values.len()));
    usual_of(&counts.collect())
}

fn no_such_metric(metric: &str, totals: &MetricTotals) -> Error {
    let known: Vec<&str> = totals.keys().map(String::as_str).collect();
    let message = format!(
        "failed to show `{metric}`: no selected recording has it; use one of {}",
        known.join(", ")
    );
    Error::new(ErrorKind::Question, message)
}

fn started_s(row: &RecordingRow) -> f64 {
    row.started_unix_ns as f64 / NS_PER_S
}

/// A recording's start in seconds, and its value.
#[derive(Clone, Copy)]
struct RunValue<'a> {
    start_s: f64,
    value: f64,
    kind: RunKind<'a>,
}

/// Runs are compared only if both were modelled on the same machine and have the same source.
#[derive(Clone, Copy, PartialEq)]
struct RunKind<'a> {
    machine: Option<&'a str>,
    source: &'a str,
}

/// Histories of the services with the most recordings, and how many services have none.
fn histories(selected: &[RecordingRow], total: &Total) -> (Vec<FleetHistory>, u64) {
    let step_s = step_s(selected);
    let mut services: BTreeMap<&str, BTreeMap<Option<&str>, Vec<RunValue<'_>>>> = BTreeMap::new();
    for &(at, value) in &total.values {
        let row = &selected[at];
        let versions = services.entry(&row.partition.service).or_default();
        let commit = row.labels.get("commit").map(String::as_str);
        versions.entry(commit).or_default().push(RunValue {
            start_s: started_s(row),
            value,
            kind: RunKind {
                machine: row.machine.as_deref(),
                source: &row.source,
            },
        });
    }
    let names: BTreeSet<&str> = selected.iter().map(|row| &*row.partition.service).collect();
    let all = |name: &str| {
        let of_service = selected.iter().filter(|row| row.partition.service == name);
        of_service.count() as u64
    };
    let mut runs: Vec<_> = services.into_iter().collect();
    let size = |versions: &BTreeMap<Option<&str>, Vec<RunValue<'_>>>| -> usize {
        versions.values().map(Vec::len).sum()
    };
    runs.sort_by_key(|(name, versions)| (std::cmp::Reverse(size(versions)), *name));
    runs.truncate(MAX_SERVICES);
    let mut histories: Vec<FleetHistory> = Vec::new();
    let mut comparisons = Vec::new();
    for (name, versions) in runs {
        let recordings = size(&versions) as u64;
        let mut versions: Vec<(Option<&str>, Vec<RunValue<'_>>)> = versions.into_iter().collect();
        for (_, runs) in &mut versions {
            runs.sort_by(|a, b| {
                (a.start_s.total_cmp(&b.start_s)).then_with(|| a.value.total_cmp(&b.value))
            });
        }
        versions.sort_by(|a, b| {
            (a.1[0].start_s.total_cmp(&b.1[0].start_s)).then_with(|| a.0.cmp(&b.0))
        });
        let older = versions.len().saturating_sub(MAX_VERSIONS);
        let versions = versions.split_off(older);
        histories.push(FleetHistory {
            service: name.to_owned(),
            recordings,
            without_metric: all(name) - recordings,
            versions: (versions.iter())
                .map(|(commit, runs)| fleet_version(*commit, runs, step_s))
                .collect(),
            older_versions: older as u64,
        });
        comparisons.push(versions);
    }
    add_changes(&mut histories, &comparisons);
    let other_services = names.len() - histories.len();
    (histories, other_services as u64)
}

/// The shortest step that divides the time of all recordings into few enough.
fn step_s(selected: &[RecordingRow]) -> f64 {
    let starts = || selected.iter().map(started_s);
    let span = starts().fold(f64::MIN, f64::max) - starts().fold(f64::MAX, f64::min);
    let fits = |step: &f64| span / step <= MAX_STEPS;
    STEPS_S
        .into_iter()
        .find(fits)
        .unwrap_or(STEPS_S[STEPS_S.len() - 1])
}

fn values(runs: &[RunValue<'_>]) -> Vec<f64> {
    runs.iter().map(|run| run.value).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// A version from its runs, of which there is at least one, by start.
fn fleet_version(commit: Option<&str>, runs: &[RunValue<'_>], step_s: f64) -> FleetVersion {
    let point = |runs: &[RunValue<'_>]| {
        let values = values(runs);
        FleetPoint {
            first_unix_s: runs[0].start_s,
            last_unix_s: runs[runs.len() - 1].start_s,
            unix_s: mean(&runs.iter().map(|run| run.start_s).collect::<Vec<_>>()),
            recordings: runs.len() as u64,
            mean: mean(&values),
            interval: mean_interval(&values),
        }
    };
    // Steps begin at whole minutes, hours and days of UTC.
    let step = |run: &RunValue<'_>| (run.start_s / step_s).floor();
    let whole = point(runs);
    FleetVersion {
        commit: commit.map(str::to_owned),
        recordings: whole.recordings,
        first_unix_s: whole.first_unix_s,
        last_unix_s: whole.last_unix_s,
        mean: whole.mean,
        interval: whole.interval,
        change: None,
        points: runs
            .chunk_by(|a, b| step(a) == step(b))
            .map(point)
            .collect(),
    }
}

/// Compares each version with the one before it, if their runs are of one kind. The intervals hold together at 95 %.
fn add_changes(histories: &mut [FleetHistory], runs: &[Vec<(Option<&str>, Vec<RunValue<'_>>)>]) {
    let comparisons: usize = runs
        .iter()
        .map(|versions| versions.len().saturating_sub(1))
        .sum();
    for (history, versions) in histories.iter_mut().zip(runs) {
        for (pair, version) in versions.windows(2).zip(&mut history.versions[1..]) {
            let kind = pair[0].1[0].kind;
            if !pair
                .iter()
                .all(|(_, runs)| runs.iter().all(|run| run.kind == kind))
            {
                continue;
            }
            let [before, after] = [values(&pair[0].1), values(&pair[1].1)];
            let difference = mean(&after) - mean(&before);
            version.change = Some(FleetChange {
                difference,
                relative: (mean(&before) != 0.0).then(|| difference / mean(&before)),
                interval: mean_difference_interval(&before, &after, comparisons),
            });
        }
    }
}

/// The newest recordings, and how many are older.
fn recordings(
    selected: &[RecordingRow],
    values: &BTreeMap<usize, f64>,
    rows: usize,
) -> (Vec<FleetRecording>, u64) {
    let mut order: Vec<usize> = (0..selected.len()).collect();
    order.sort_by(|&a, &b| {
        let key = |at: usize| (selected[at].started_unix_ns, &selected[at].id);
        key(b).cmp(&key(a))
    });
    let recording = |&at: &usize| {
        let row = &selected[at];
        FleetRecording {
            recording: row.id.clone(),
            service: row.partition.service.clone(),
            host: row.partition.host.clone(),
            commit: row.labels.get("commit").cloned(),
            started_unix_s: started_s(row),
            duration_ns: row.duration_ns,
            value: values.get(&at).copied(),
            kinds_of_losses: row.losses.len() as u64,
            path: row.path.clone(),
        }
    };
    let shown = order.iter().take(rows).map(recording).collect();
    (shown, selected.len().saturating_sub(rows) as u64)
}
