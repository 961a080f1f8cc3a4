//! Hosts that differ from the other hosts of their service.
//!
//! For each metric of whole runs, the recordings of a host are compared with those of all other
//! hosts of the service that were modelled on the same machine and have the same source. Otherwise,
//! a difference of two models would look like one of two hosts. The intervals of all comparisons
//! hold together at 95 %, so a fleet of equal hosts has an outlier in one of twenty runs of this
//! analysis, however many hosts it has.
//!
//! The peers of a host are merged from the moments of the other hosts, so time and memory grow with the
//! number of recordings and not with its product with the number of hosts.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_report::Moments;
use memgauge_report::fleet::{FleetOutlier, FleetOutliers};

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
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for (metric, total) in totals {
        pairs.extend(Pair::all(metric, &total.values, selected));
    }
    let (compared, not): (Vec<Pair<'_>>, Vec<Pair<'_>>) =
        pairs.into_iter().partition(Pair::has_interval);
    let lone: BTreeSet<(ComparableGroup<'_>, &str)> =
        not.iter().map(|pair| (pair.kind, pair.host)).collect();
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ComparableGroup<'a> {
    service: &'a str,
    machine: Option<&'a str>,
    source: &'a str,
}

impl<'a> ComparableGroup<'a> {
    fn of(row: &'a RecordingRow) -> ComparableGroup<'a> {
        ComparableGroup {
            service: &row.partition.service,
            machine: row.machine.as_deref(),
            source: &row.source,
        }
    }
}

/// A host, and the other hosts of its service.
struct Pair<'a> {
    kind: ComparableGroup<'a>,
    host: &'a str,
    metric: &'a str,
    own: Moments,
    peers: Moments,
}

impl<'a> Pair<'a> {
    fn all(
        metric: &'a str,
        values: &[(usize, f64)],
        selected: &'a [RecordingRow],
    ) -> Vec<Pair<'a>> {
        let mut kinds: BTreeMap<ComparableGroup<'a>, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
        for &(recording, value) in values {
            let row = &selected[recording];
            let hosts = kinds.entry(ComparableGroup::of(row)).or_default();
            hosts.entry(&row.partition.host).or_default().push(value);
        }
        let mut pairs = Vec::new();
        for (kind, hosts) in kinds {
            let hosts: Vec<(&str, Moments)> = hosts
                .into_iter()
                .map(|(host, values)| (host, Moments::of(&values)))
                .collect();
            let mut after = vec![Moments::default(); hosts.len() + 1];
            for (at, (_, own)) in hosts.iter().enumerate().rev() {
                after[at] = own.merged(after[at + 1]);
            }
            let mut before = Moments::default();
            for (at, &(host, own)) in hosts.iter().enumerate() {
                pairs.push(Pair {
                    kind,
                    host,
                    metric,
                    own,
                    peers: before.merged(after[at + 1]),
                });
                before = before.merged(own);
            }
        }
        pairs
    }

    fn has_interval(&self) -> bool {
        self.own.count() >= 2 && self.peers.count() >= 2
    }

    fn outlier(&self, comparisons: usize) -> Option<FleetOutlier> {
        let interval = self.peers.difference_interval(&self.own, comparisons)?;
        let [low, high] = interval;
        if low <= 0.0 && high >= 0.0 {
            return None;
        }
        let (own, peers) = (self.own.mean(), self.peers.mean());
        Some(FleetOutlier {
            service: self.kind.service.to_owned(),
            machine: self.kind.machine.map(str::to_owned),
            source: self.kind.source.to_owned(),
            host: self.host.to_owned(),
            metric: self.metric.to_owned(),
            recordings: self.own.count() as u64,
            peer_recordings: self.peers.count() as u64,
            mean: own,
            peer_mean: peers,
            relative: (peers != 0.0).then(|| (own - peers) / peers),
            interval,
        })
    }
}
