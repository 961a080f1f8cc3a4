//! The worst places of a fleet.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use memgauge_analyze::IoSummary;
use memgauge_report::fleet::{FleetRow, FleetTop};
use memgauge_report::mean_interval;

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::measure::STALLED_CYCLES;
use crate::measurement::{PlaceName, Scope};
use crate::query::{Query, facts};
use crate::recording_row::RecordingRow;
use crate::scan::{Rows, Wanted, scan};

/// What [`top`] ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopOptions {
    /// Functions, lines, regions, data, allocations, programs or devices.
    pub scope: Scope,
    /// The metric; `None`: stalled cycles, cycles, or else what most recordings have.
    pub metric: Option<String>,
    /// Maximum number of rows.
    pub rows: usize,
}

/// Metrics that rank if nobody asked for one, before the one that most recordings have.
const USUAL: [&str; 2] = [STALLED_CYCLES, "cycles"];

/// Values of a place by recording.
#[derive(Default)]
struct Sums {
    places: HashMap<PlaceName, Vec<(usize, f64)>>,
    /// Units and provenances that occur.
    units: BTreeSet<String>,
    provenances: BTreeSet<String>,
}

impl Sums {
    fn visit(&mut self, rows: &Rows) {
        // Texts are looked up once for each place of a file, not for each row.
        let mut known: HashMap<[Option<usize>; 3], Vec<(usize, f64)>> = HashMap::new();
        let mut names = HashMap::new();
        for row in rows.iter() {
            let key = row.place_key();
            let values = known.entry(key).or_insert_with(|| {
                names.insert(key, row.place());
                Vec::new()
            });
            if values.is_empty() {
                self.units.insert(row.unit().to_owned());
                self.provenances.insert(row.provenance().to_owned());
            }
            values.push((row.recording, row.value()));
        }
        for (key, values) in known {
            if let Some(place) = names.remove(&key) {
                self.places.entry(place).or_default().extend(values);
            }
        }
    }

    fn merge(&mut self, other: Sums) {
        for (place, values) in other.places {
            self.places.entry(place).or_default().extend(values);
        }
        self.units.extend(other.units);
        self.provenances.extend(other.provenances);
    }
}

/// Ranks places by the sum of a metric over the selected recordings.
///
/// # Errors
/// No recording is selected or has the metric, or the storage fails.
pub fn top(dataset: &Dataset, query: &Query, options: &TopOptions) -> Result<FleetTop> {
    let selected = query.select(dataset.newest_with_recordings()?)?;
    top_of(dataset, &selected, options)
}

/// The same of recordings that were selected.
pub(crate) fn top_of(
    dataset: &Dataset,
    selected: &[RecordingRow],
    options: &TopOptions,
) -> Result<FleetTop> {
    let metric = match (&options.metric, options.scope) {
        (Some(metric), _) => metric.clone(),
        (None, Scope::Allocation) => "heap.peak_bytes".to_owned(),
        (None, Scope::Process | Scope::Device) => IoSummary::BYTES.to_owned(),
        (None, _) => usual_metric(selected)?,
    };
    let wanted = Wanted {
        scopes: vec![options.scope],
        metric: Some(metric.clone()),
    };
    let parts = scan(dataset, selected, &wanted, Sums::default, Sums::visit)?;
    let mut sums = Sums::default();
    parts.into_iter().for_each(|part| sums.merge(part));
    if sums.places.is_empty() {
        return Err(no_such_metric(selected, &metric, options.scope));
    }
    let has_metric: Vec<bool> = selected
        .iter()
        .map(|row| row.metrics.contains(&metric))
        .collect();
    let of_functions = matches!(options.scope, Scope::Function | Scope::Line);
    let mut places: Vec<Place> = (sums.places.into_iter()).map(Place::new).collect();
    places.sort_by(|a, b| {
        b.value
            .total_cmp(&a.value)
            .then_with(|| a.name.cmp(&b.name))
    });
    // Recordings in which the metric was not recorded say nothing about the mean.
    let counted: Vec<bool> = match of_functions {
        true => has_metric,
        false => {
            let mut has = vec![false; selected.len()];
            let values = places.iter().flat_map(|place| &place.values);
            values.for_each(|&(recording, _)| has[recording] = true);
            has
        }
    };
    let recordings = selected
        .iter()
        .zip(&counted)
        .filter(|(_, counted)| **counted);
    let facts = facts(recordings.map(|(row, _)| row));
    let total: f64 = places.iter().map(|place| place.value).sum();
    let others = places.split_off(places.len().min(options.rows));
    let recordings = facts.recordings;
    let row = |place: Place| place.row(recordings as usize, total);
    Ok(FleetTop {
        scope: options.scope.name().to_owned(),
        metric,
        units: sums.units.into_iter().collect(),
        provenances: sums.provenances.into_iter().collect(),
        without_metric: selected.len() as u64 - recordings,
        facts,
        total,
        rows: places.into_iter().map(row).collect(),
        other_rows: others.len() as u64,
        other_value: others.iter().map(|place| place.value).sum(),
    })
}

struct Place {
    name: PlaceName,
    value: f64,
    /// By recording; others have none.
    values: Vec<(usize, f64)>,
}

impl Place {
    fn new((name, mut values): (PlaceName, Vec<(usize, f64)>)) -> Place {
        // The order of threads must not reach the last bit of a sum.
        values.sort_by_key(|value| value.0);
        Place {
            name,
            value: values.iter().map(|value| value.1).sum(),
            values,
        }
    }

    fn row(self, recordings: usize, total: f64) -> FleetRow {
        let mut all: Vec<f64> = self.values.iter().map(|value| value.1).collect();
        let with_value = all.len() as u64;
        all.resize(recordings.max(all.len()), 0.0);
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        FleetRow {
            name: text(self.name.name),
            function: text(self.name.function),
            module: text(self.name.module),
            value: self.value,
            share: (total > 0.0).then(|| self.value / total),
            recordings: with_value,
            mean: self.value / all.len() as f64,
            interval: mean_interval(&all),
        }
    }
}

/// The metric to show of those that have this many values each, if nobody asked for one.
pub(crate) fn usual_of<'a>(counts: &BTreeMap<&'a str, usize>) -> Option<&'a str> {
    if let Some(usual) = USUAL.into_iter().find(|metric| counts.contains_key(metric)) {
        return Some(usual);
    }
    let counts = counts.iter();
    let most = counts.max_by_key(|&(metric, count)| (count, std::cmp::Reverse(metric)));
    most.map(|(metric, _)| *metric)
}

fn usual_metric(selected: &[RecordingRow]) -> Result<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for metric in selected.iter().flat_map(|row| &row.metrics) {
        *counts.entry(metric).or_default() += 1;
    }
    usual_of(&counts).map(str::to_owned).ok_or_else(|| {
        let message = "failed to rank functions: the selected recordings have none; use other recordings \
                       or --regions, --data, --processes, --devices";
        Error::new(ErrorKind::Question, message)
    })
}

fn no_such_metric(selected: &[RecordingRow], metric: &str, scope: Scope) -> Error {
    let metrics = selected.iter().flat_map(|row| &row.metrics);
    let known: std::collections::BTreeSet<&str> = metrics.map(String::as_str).collect();
    let known: Vec<&str> = known.into_iter().collect();
    let known = match known.as_slice() {
        [] => "use --processes or --devices for recordings of `memgauge io`".to_owned(),
        known => format!("functions have {}", known.join(", ")),
    };
    let message = format!(
        "failed to rank by `{metric}`: no {} of the {} selected recordings has it; {known}",
        scope.name(),
        selected.len(),
    );
    Error::new(ErrorKind::Question, message)
}
