//! The worst places of a fleet.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use memgauge_analyze::{IoSummary, STARTUP, STARTUP_MATTERS_PERCENT, is_startup_code};
use memgauge_report::fleet::{FleetRow, FleetTop};
use memgauge_report::mean_interval;

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::measure::STALLED_CYCLES;
use crate::measurement::{PlaceName, Scope};
use crate::query::{Query, facts};
use crate::recording_row::RecordingRow;
use crate::scan::{MeasurementFilter, SelectedRows, scan};

/// Settings of [`top`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopOptions {
    /// Functions, lines, regions, data, allocations, programs or devices. `None`: functions, or what the
    /// recordings have if none has functions.
    pub scope: Option<Scope>,
    /// The metric; `None`: stalled cycles, cycles, or else what most recordings have.
    pub metric: Option<String>,
    /// Maximum number of rows.
    pub rows: usize,
}

/// Default metrics. If no recording has one of them, the metric that most recordings have ranks.
const USUAL: [&str; 2] = [STALLED_CYCLES, "cycles"];

/// Values of a place by recording.
#[derive(Default)]
struct PlaceSums {
    places: HashMap<PlaceName, Vec<(usize, f64)>>,
    /// Units and provenances that occur.
    units: BTreeSet<String>,
    provenances: BTreeSet<String>,
}

impl PlaceSums {
    fn visit(&mut self, rows: &SelectedRows) {
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

    fn merge(&mut self, other: PlaceSums) {
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

/// As [`top`], for selected recordings.
pub(crate) fn top_of(
    dataset: &Dataset,
    selected: &[RecordingRow],
    options: &TopOptions,
) -> Result<FleetTop> {
    let has_functions = selected.iter().any(|row| !row.metrics.is_empty());
    let scope = match options.scope {
        Some(scope) => scope,
        None if has_functions || options.metric.is_some() => Scope::Function,
        None => return top_without_functions(dataset, selected, options),
    };
    let metric = match (&options.metric, scope) {
        (Some(metric), _) => metric.clone(),
        (None, Scope::Allocation) => "heap.peak_bytes".to_owned(),
        (None, Scope::Process | Scope::Device) => IoSummary::BYTES.to_owned(),
        (None, _) => usual_metric(selected)?,
    };
    let filter = MeasurementFilter {
        scopes: vec![scope],
        metric: Some(metric.clone()),
    };
    let parts = scan(
        dataset,
        selected,
        &filter,
        PlaceSums::default,
        PlaceSums::visit,
    )?;
    let mut sums = PlaceSums::default();
    parts.into_iter().for_each(|part| sums.merge(part));
    if sums.places.is_empty() {
        return Err(no_such_metric(selected, &metric, scope));
    }
    let has_metric: Vec<bool> = selected
        .iter()
        .map(|row| row.metrics.contains(&metric))
        .collect();
    let of_functions = matches!(scope, Scope::Function | Scope::Line);
    let mut places: Vec<RankedPlace> = (sums.places.into_iter()).map(RankedPlace::new).collect();
    sort(&mut places);
    // Recordings without the metric do not count towards the mean.
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
    if of_functions {
        fold_startup(&mut places, scope, total);
    }
    let others = places.split_off(places.len().min(options.rows));
    let recordings = facts.recordings;
    let row = |place: RankedPlace| place.row(recordings as usize, total);
    Ok(FleetTop {
        scope: scope.name().to_owned(),
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

/// Programs by their bytes, or else allocations.
fn top_without_functions(
    dataset: &Dataset,
    selected: &[RecordingRow],
    options: &TopOptions,
) -> Result<FleetTop> {
    for scope in [Scope::Process, Scope::Allocation] {
        let options = TopOptions {
            scope: Some(scope),
            ..options.clone()
        };
        match top_of(dataset, selected, &options) {
            Err(why) if why.kind() == ErrorKind::Question => {}
            found => return found,
        }
    }
    usual_metric(selected).map(|_| FleetTop::default())
}

fn sort(places: &mut [RankedPlace]) {
    places.sort_by(|a, b| {
        b.value
            .total_cmp(&a.value)
            .then_with(|| a.name.cmp(&b.name))
    });
}

/// Sums the dynamic loader and startup in one place unless they matter, as reports do.
fn fold_startup(places: &mut Vec<RankedPlace>, scope: Scope, total: f64) {
    let is_startup = |place: &RankedPlace| {
        let function = match scope {
            Scope::Line => &place.name.function,
            _ => &place.name.name,
        };
        is_startup_code(&place.name.module, function)
    };
    let startup = places.iter().filter(|place| is_startup(place));
    let value: f64 = startup.map(|place| place.value).sum();
    let limit = total * STARTUP_MATTERS_PERCENT as f64 / 100.0;
    if value >= limit {
        return;
    }
    let (startup, mut rest): (Vec<RankedPlace>, Vec<RankedPlace>) =
        std::mem::take(places).into_iter().partition(is_startup);
    let mut values: BTreeMap<usize, f64> = BTreeMap::new();
    for &(recording, value) in startup.iter().flat_map(|place| &place.values) {
        *values.entry(recording).or_default() += value;
    }
    let name = PlaceName {
        name: STARTUP.to_owned(),
        ..PlaceName::default()
    };
    if !values.is_empty() {
        rest.push(RankedPlace::new((name, values.into_iter().collect())));
    }
    sort(&mut rest);
    *places = rest;
}

struct RankedPlace {
    name: PlaceName,
    value: f64,
    /// Values by recording. Recordings without a value are missing.
    values: Vec<(usize, f64)>,
}

impl RankedPlace {
    fn new((name, mut values): (PlaceName, Vec<(usize, f64)>)) -> RankedPlace {
        // The order of threads must not reach the last bit of a sum.
        values.sort_by_key(|value| value.0);
        RankedPlace {
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

/// The default metric among these, by the number of recordings that have each.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str, module: &str, values: &[(usize, f64)]) -> RankedPlace {
        let name = PlaceName {
            name: name.to_owned(),
            module: module.to_owned(),
            ..PlaceName::default()
        };
        RankedPlace::new((name, values.to_vec()))
    }

    #[test]
    fn startup_has_one_place_below_a_tenth_of_the_sum() {
        let folded = |main: f64| {
            let mut places = vec![
                place("main", "prog", &[(0, main), (1, main)]),
                place(
                    "do_lookup_x",
                    "ld-linux-x86-64.so.2",
                    &[(0, 30.0), (1, 31.0)],
                ),
                place("_start", "prog", &[(1, 9.0)]),
            ];
            let total = places.iter().map(|place| place.value).sum();
            fold_startup(&mut places, Scope::Function, total);
            let row = |place: RankedPlace| (place.name.name, place.value, place.values);
            places.into_iter().map(row).collect::<Vec<_>>()
        };
        let expected = (STARTUP.to_owned(), 70.0, vec![(0, 30.0), (1, 40.0)]);
        assert_eq!(folded(400.0)[1..], [expected]);
        assert_eq!(folded(300.0).len(), 3);
    }
}
