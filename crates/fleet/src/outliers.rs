//! Hosts that differ from the other hosts of their service.
//!
//! For each metric of whole runs, the recordings of a host are compared with those of all other
//! hosts of the service that were modelled on the same machine and have the same source. Otherwise,
//! a difference of two models would look like one of two hosts. The intervals of all comparisons
//! hold together at 95 %, so a fleet of equal hosts has an outlier in one of twenty runs of this
//! analysis, however many hosts it has.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_report::fleet::{FleetOutlier, FleetOutliers};
use memgauge_report::mean_difference_interval;

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::query::{Query, facts};
use crate::recording_row::RecordingRow;
use crate::totals::{MetricTotals, totals};

/// Compares hosts in all metrics of whole runs, or in one.
///
/// # Errors
/// No recording is selected or has the metric, or the storage fails.
pub fn outliers(dataset: &Dataset, query: &Query, metric: Option<&str>) -> Result<FleetOutliers> {
    let selected = query.select(dataset.newest_with_recordings()?)?;
    let totals = totals(dataset, &selected, metric)?;
    if totals.is_empty() {
        let metric = metric.unwrap_or_default();
        let message =
            format!("failed to compare hosts by `{metric}`: no selected recording has it");
        return Err(Error::new(ErrorKind::Question, message));
    }
    Ok(outliers_of(&totals, &selected))
}

/// As [`outliers`], for numbers that were already read.
pub(crate) fn outliers_of(totals: &MetricTotals, selected: &[RecordingRow]) -> FleetOutliers {
    let mut pairs: Vec<Pair> = Vec::new();
    for (metric, total) in totals {
        pairs.extend(Pair::all(metric, &total.values, selected));
    }
    let (compared, not): (Vec<Pair>, Vec<Pair>) = pairs.into_iter().partition(Pair::has_interval);
    let lone: BTreeSet<(&ComparableGroup, &str)> =
        not.iter().map(|pair| (&pair.kind, &*pair.host)).collect();
    let mut rows: Vec<FleetOutlier> = compared
        .iter()
        .filter_map(|pair| pair.outlier(compared.len()))
        .collect();
    let size = |row: &FleetOutlier| row.relative.map_or(f64::INFINITY, f64::abs);
    rows.sort_by(|a, b| {
        let names =
            |row: &FleetOutlier| (row.service.clone(), row.host.clone(), row.metric.clone());
        size(b)
            .total_cmp(&size(a))
            .then_with(|| names(a).cmp(&names(b)))
    });
    FleetOutliers {
        facts: facts(selected.iter()),
        comparisons: compared.len() as u64,
        not_compared: lone.len() as u64,
        rows,
    }
}

/// Recordings with comparable numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ComparableGroup {
    service: String,
    machine: Option<String>,
    source: String,
}

impl ComparableGroup {
    fn of(row: &RecordingRow) -> ComparableGroup {
        ComparableGroup {
            service: row.partition.service.clone(),
            machine: row.machine.clone(),
            source: row.source.clone(),
        }
    }
}

/// A host, and the other hosts of its service.
struct Pair {
    kind: ComparableGroup,
    host: String,
    metric: String,
    own: Vec<f64>,
    peers: Vec<f64>,
}

impl Pair {
    fn all(metric: &str, values: &[(usize, f64)], selected: &[RecordingRow]) -> Vec<Pair> {
        let mut kinds: BTreeMap<ComparableGroup, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
        for &(recording, value) in values {
            let row = &selected[recording];
            let hosts = kinds.entry(ComparableGroup::of(row)).or_default();
            hosts.entry(&row.partition.host).or_default().push(value);
        }
        let mut pairs = Vec::new();
        for (kind, hosts) in &kinds {
            for (&host, own) in hosts {
                let peers = hosts.iter().filter(|(peer, _)| **peer != host);
                pairs.push(Pair {
                    kind: kind.clone(),
                    host: host.to_owned(),
                    metric: metric.to_owned(),
                    own: own.clone(),
                    peers: peers.flat_map(|(_, values)| values).copied().collect(),
                });
            }
        }
        pairs
    }

    fn has_interval(&self) -> bool {
        self.own.len() >= 2 && self.peers.len() >= 2
    }

    fn outlier(&self, comparisons: usize) -> Option<FleetOutlier> {
        let interval = mean_difference_interval(&self.peers, &self.own, comparisons)?;
        let [low, high] = interval;
        if low <= 0.0 && high >= 0.0 {
            return None;
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (own, peers) = (mean(&self.own), mean(&self.peers));
        Some(FleetOutlier {
            service: self.kind.service.clone(),
            machine: self.kind.machine.clone(),
            source: self.kind.source.clone(),
            host: self.host.clone(),
            metric: self.metric.clone(),
            recordings: self.own.len() as u64,
            peer_recordings: self.peers.len() as u64,
            mean: own,
            peer_mean: peers,
            relative: (peers != 0.0).then(|| (own - peers) / peers),
            interval,
        })
    }
}
