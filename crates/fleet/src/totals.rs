//! Numbers of whole runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::dataset::Dataset;
use crate::error::Result;
use crate::measurement::Scope;
use crate::recording_row::RecordingRow;
use crate::scan::{MeasurementFilter, SelectedRows, scan};

/// A metric of whole runs.
#[derive(Default)]
pub(crate) struct Total {
    /// Index of each selected recording that has the metric, ascending, and its value.
    pub(crate) values: Vec<(usize, f64)>,
    pub(crate) provenances: BTreeSet<String>,
}

/// By metric.
pub(crate) type MetricTotals = BTreeMap<String, Total>;

/// Reads all metrics of whole runs, or one.
pub(crate) fn totals(
    dataset: &Dataset,
    selected: &[RecordingRow],
    metric: Option<&str>,
) -> Result<MetricTotals> {
    let filter = MeasurementFilter {
        scopes: vec![Scope::Total],
        metric: metric.map(str::to_owned),
    };
    let visit = |totals: &mut MetricTotals, rows: &SelectedRows| {
        for row in rows.iter() {
            if !totals.contains_key(row.metric()) {
                totals.insert(row.metric().to_owned(), Total::default());
            }
            let Some(total) = totals.get_mut(row.metric()) else {
                continue;
            };
            total.values.push((row.recording, row.value()));
            if !total.provenances.contains(row.provenance()) {
                total.provenances.insert(row.provenance().to_owned());
            }
        }
    };
    let mut totals = MetricTotals::new();
    for part in scan(dataset, selected, &filter, MetricTotals::new, visit)? {
        for (metric, total) in part {
            let sum = totals.entry(metric).or_default();
            sum.values.extend(total.values);
            sum.provenances.extend(total.provenances);
        }
    }
    for total in totals.values_mut() {
        // The order of threads must not reach the last bit of a sum.
        total.values.sort_by_key(|value| value.0);
    }
    Ok(totals)
}
