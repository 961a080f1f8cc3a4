//! Two groups of recordings of a dataset, compared as `memgauge diff --before --after` compares
//! recordings.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use memgauge_analyze::IoSummary;
use memgauge_report::{Comparison, Measured, Shares};

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::measure::STALLED_CYCLES;
use crate::measurement::Scope;
use crate::query::{Query, label};
use crate::recording_row::RecordingRow;
use crate::scan::{MeasurementFilter, MeasurementRow, SelectedRows, scan};

/// Values that a message names.
const MAX_NAMED_VALUES: usize = 5;

/// Measurements of a recording, until all of its rows are read.
#[derive(Default)]
struct CollectedRun {
    run: Measured,
    /// Samples and events by sampled event and function.
    sampled: BTreeMap<String, EventSamples>,
    regions: BTreeMap<String, EventSamples>,
}

#[derive(Default)]
struct EventSamples {
    samples: u64,
    events: BTreeMap<String, f64>,
}

impl EventSamples {
    fn add(&mut self, place: String, samples: u64, events: f64) {
        self.samples += samples;
        *self.events.entry(place).or_default() += events;
    }

    fn shares(self, event: String) -> Shares {
        let all: f64 = self.events.values().sum();
        let share = |(place, events): (String, f64)| (place, events / all.max(1.0));
        Shares {
            event,
            samples: self.samples,
            shares: self.events.into_iter().map(share).collect(),
        }
    }
}

/// Compares recordings with some labels to those with others. `event` ranks functions and lines.
///
/// # Errors
/// A group has fewer than two recordings, a recording is in both, the recordings of a group are of
/// different machines, or the storage fails.
pub fn diff(
    dataset: &Dataset,
    query: &Query,
    groups: [&[(String, String)]; 2],
    event: Option<&str>,
) -> Result<Comparison> {
    let version = dataset.newest_with_recordings()?;
    let mut selected = Vec::new();
    let mut sizes = Vec::new();
    for group in groups {
        let mut of_group = query.clone();
        of_group.labels.extend(group.iter().cloned());
        let rows = of_group.select(version.clone())?;
        check_group(group, &rows)?;
        sizes.push(rows.len());
        selected.extend(rows);
    }
    let ids: BTreeSet<&str> = selected.iter().map(|row| &*row.id).collect();
    if ids.len() < selected.len() {
        return Err(question(format!(
            "failed to compare groups: {} recordings are in both; choose labels that exclude each other",
            selected.len() - ids.len()
        )));
    }
    let mut runs = measured(dataset, &selected, event)?;
    let after = runs.split_off(sizes[0]);
    if let Some(event) = event {
        check_event(event, &[&runs, &after])?;
    }
    Ok(Comparison::of(&runs, &after, event))
}

fn question(message: String) -> Error {
    Error::new(ErrorKind::Question, message)
}

fn check_group(labels: &[(String, String)], rows: &[RecordingRow]) -> Result<()> {
    let labels: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let labels = labels.join(" ");
    if rows.len() < 2 {
        return Err(question(format!(
            "failed to compare groups: {labels} has one recording, which has no spread; index more"
        )));
    }
    for name in ["service", "machine", "source"] {
        let values: BTreeSet<&str> = rows
            .iter()
            .map(|row| label(row, name).unwrap_or("none"))
            .collect();
        if values.len() > 1 {
            return Err(question(format!(
                "failed to compare groups: the recordings of {labels} differ in {name} ({}); choose one \
                 with --only {name}=VALUE",
                first_of(&values)
            )));
        }
    }
    let parts: BTreeSet<_> = rows
        .iter()
        .map(|row| (row.estimated_from, &row.only_regions))
        .collect();
    match parts.len() {
        1 => Ok(()),
        _ => Err(question(format!(
            "failed to compare groups: the recordings of {labels} are of different parts of their cache \
             sets or regions; record them with the same --sets and --region"
        ))),
    }
}

/// The first values, and how many others there are.
fn first_of(values: &BTreeSet<&str>) -> String {
    let first: Vec<&str> = values.iter().take(MAX_NAMED_VALUES).copied().collect();
    let others = values.len() - first.len();
    match others {
        0 => first.join(", "),
        _ => format!("{} and {others} more", first.join(", ")),
    }
}

fn check_event(event: &str, groups: &[&[Measured]; 2]) -> Result<()> {
    let has = |run: &Measured| {
        let counted = run
            .functions
            .values()
            .any(|counts| counts.contains_key(event));
        counted
            || run
                .sampled
                .as_ref()
                .is_some_and(|shares| shares.event == event)
    };
    match groups.iter().all(|group| group.iter().all(has)) {
        true => Ok(()),
        false => Err(question(format!(
            "failed to rank functions by `{event}`: not all recordings have functions with it"
        ))),
    }
}

/// Reads the compared numbers of each recording, in the order of the selection.
fn measured(
    dataset: &Dataset,
    selected: &[RecordingRow],
    event: Option<&str>,
) -> Result<Vec<Measured>> {
    let filter = MeasurementFilter {
        scopes: Scope::ALL.to_vec(),
        metric: None,
    };
    let visit = |runs: &mut HashMap<usize, CollectedRun>, rows: &SelectedRows| {
        for row in rows.iter() {
            runs.entry(row.recording).or_default().add(&row);
        }
    };
    // All rows of a recording are in one file, which one thread reads.
    let mut runs: HashMap<usize, CollectedRun> = HashMap::new();
    for part in scan(dataset, selected, &filter, HashMap::new, visit)? {
        runs.extend(part);
    }
    let run = |(index, row): (usize, &RecordingRow)| {
        runs.remove(&index).unwrap_or_default().finish(row, event)
    };
    Ok(selected.iter().enumerate().map(run).collect())
}

impl CollectedRun {
    fn add(&mut self, row: &MeasurementRow) {
        let (place, metric) = (row.place(), row.metric());
        let count = || row.value().round() as u64;
        let run = &mut self.run;
        let counts = match row.scope {
            Scope::Total if metric == STALLED_CYCLES => return,
            Scope::Total => {
                run.metrics.insert(metric.to_owned(), row.value());
                return;
            }
            Scope::Function | Scope::Region => {
                let name = match row.scope {
                    Scope::Function => format!("{} ({})", place.name, place.module),
                    _ => place.name,
                };
                if let Some(samples) = row.samples() {
                    let events = match row.scope {
                        Scope::Function => &mut self.sampled,
                        _ => &mut self.regions,
                    };
                    let event = events.entry(metric.to_owned()).or_default();
                    return event.add(name, samples, row.value());
                }
                run.functions.entry(name)
            }
            Scope::Line if place.name.is_empty() || row.samples().is_some() => return,
            Scope::Line => run
                .lines
                .entry(format!("{} {}", place.name, place.function)),
            Scope::Data if place.name == "anon" => return,
            Scope::Data => run.data.entry(place.name),
            Scope::Allocation => run.heap.entry(place.name),
            Scope::Process if metric == IoSummary::BYTES => {
                let name = format!("{} ({})", place.name, place.module);
                run.io.entry(name)
            }
            Scope::Interest | Scope::Process | Scope::Device => return,
        };
        let metric = match row.scope {
            // Cycles of data are stalled cycles.
            Scope::Data if metric == STALLED_CYCLES => "cycles",
            _ => metric,
        };
        *counts.or_default().entry(metric.to_owned()).or_default() += count();
    }

    fn finish(self, row: &RecordingRow, event: Option<&str>) -> Measured {
        let asked = |name: &String| event == Some(name.as_str());
        let most = self
            .sampled
            .into_iter()
            .max_by_key(|(name, event)| (asked(name), event.samples));
        let program = row.command.first();
        Measured {
            machine: row.machine.clone(),
            program: program
                .and_then(|path| path.rsplit('/').next())
                .map(str::to_owned),
            estimated_from: row.estimated_from,
            only_regions: row.only_regions.clone(),
            seed: row.seed.clone(),
            sampled: most.map(|(event, sampled)| sampled.shares(event)),
            regions: (self.regions.into_iter())
                .map(|(event, sampled)| sampled.shares(event))
                .collect(),
            ..self.run
        }
    }
}
