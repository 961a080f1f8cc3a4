//! Which recordings a question is about.

use std::collections::BTreeSet;

use memgauge_report::fleet::FleetFacts;

use crate::dataset::DatasetVersion;
use crate::error::{Error, ErrorKind, Result};
use crate::recording_row::RecordingRow;

/// Selects recordings. Empty fields select all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Only this service.
    pub service: Option<String>,
    /// Only from this day on, as `2026-11-28`.
    pub since: Option<String>,
    /// Only the newest of the others.
    pub last: Option<usize>,
    /// Only with these labels. `service`, `host`, `day`, `machine` and `source` can be used like
    /// labels.
    pub labels: Vec<(String, String)>,
}

impl Query {
    /// The recordings, sorted by ID.
    ///
    /// # Errors
    /// No recording is selected.
    pub(crate) fn select(&self, version: DatasetVersion) -> Result<Vec<RecordingRow>> {
        let all = version.recordings.len();
        let mut rows = version.recordings;
        rows.retain(|row| self.selects(row));
        if let Some(last) = self.last {
            rows.sort_by(|a, b| {
                (a.started_unix_ns, &a.id)
                    .cmp(&(b.started_unix_ns, &b.id))
                    .reverse()
            });
            rows.truncate(last);
        }
        rows.sort_by(|a, b| a.id.cmp(&b.id));
        if rows.is_empty() {
            let message = format!(
                "failed to answer: none of the {all} recordings is {}",
                self.text()
            );
            return Err(Error::new(ErrorKind::Question, message));
        }
        Ok(rows)
    }

    fn selects(&self, row: &RecordingRow) -> bool {
        let service = self.service.as_ref();
        service.is_none_or(|service| *service == row.partition.service)
            && self
                .since
                .as_ref()
                .is_none_or(|since| row.partition.day >= *since)
            && self
                .labels
                .iter()
                .all(|(name, value)| label(row, name) == Some(value))
    }

    fn text(&self) -> String {
        let service = self
            .service
            .iter()
            .map(|service| format!("of service `{service}`"));
        let since = self
            .since
            .iter()
            .map(|since| format!("from {since} or later"));
        let labels = self
            .labels
            .iter()
            .map(|(name, value)| format!("labelled {name}={value}"));
        service
            .chain(since)
            .chain(labels)
            .collect::<Vec<_>>()
            .join(" and ")
    }
}

/// A label, or a fact that can be used like one.
pub(crate) fn label<'a>(row: &'a RecordingRow, name: &str) -> Option<&'a str> {
    match name {
        "service" => Some(&row.partition.service),
        "host" => Some(&row.partition.host),
        "day" => Some(&row.partition.day),
        "machine" => row.machine.as_deref(),
        "source" => Some(&row.source),
        _ => row.labels.get(name).map(String::as_str),
    }
}

/// How many recordings, hosts and services, and from when.
pub(crate) fn facts<'a>(rows: impl Iterator<Item = &'a RecordingRow>) -> FleetFacts {
    let rows: Vec<&RecordingRow> = rows.collect();
    let distinct = |of: fn(&RecordingRow) -> &String| {
        rows.iter()
            .map(|row| of(row))
            .collect::<BTreeSet<_>>()
            .len() as u64
    };
    let days = || rows.iter().map(|row| &row.partition.day);
    FleetFacts {
        recordings: rows.len() as u64,
        hosts: distinct(|row| &row.partition.host),
        services: distinct(|row| &row.partition.service),
        first_day: days().min().cloned().unwrap_or_default(),
        last_day: days().max().cloned().unwrap_or_default(),
        machines: {
            let machines = rows.iter().filter_map(|row| row.machine.clone());
            machines.collect::<BTreeSet<_>>().into_iter().collect()
        },
        with_losses: rows.iter().filter(|row| !row.losses.is_empty()).count() as u64,
    }
}
