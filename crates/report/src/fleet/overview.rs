//! Content of the page of a dataset: a metric over time by version, the worst functions, hosts that
//! differ, and recordings to open.

use serde::Serialize;

use super::{FleetFacts, FleetOutliers, FleetTop};

/// Contents of the page of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetOverview {
    /// The dataset as the user named it.
    pub dataset: String,
    /// The selected recordings.
    pub facts: FleetFacts,
    /// All services of the dataset by name.
    pub services: Vec<FleetService>,
    /// The selected service. `None`: all.
    pub service: Option<String>,
    /// The metric of whole runs that is shown over time.
    pub metric: String,
    /// Its provenances.
    pub provenances: Vec<String>,
    /// All metrics of whole runs that selected recordings have.
    pub metrics: Vec<String>,
    /// Services with the most recordings first.
    pub histories: Vec<FleetHistory>,
    /// Selected services that have no history here because others have more recordings.
    pub other_services: u64,
    /// The worst functions. `None` if no selected recording has functions.
    pub top: Option<FleetTop>,
    /// Hosts that differ from their peers in any metric.
    pub outliers: FleetOutliers,
    /// The newest recordings, newest first.
    pub recordings: Vec<FleetRecording>,
    /// Number of older ones.
    pub other_recordings: u64,
}

/// A service of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FleetService {
    /// Its name.
    pub name: String,
    /// Its recordings.
    pub recordings: u64,
}

/// A metric of a service over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetHistory {
    /// The service.
    pub service: String,
    /// Recordings that have the metric.
    pub recordings: u64,
    /// Recordings that do not.
    pub without_metric: u64,
    /// Versions by the start of their first recording.
    pub versions: Vec<FleetVersion>,
    /// Number of versions before those.
    pub older_versions: u64,
}

/// Recordings of one version of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetVersion {
    /// The label `commit`.
    pub commit: Option<String>,
    /// Recordings that have the metric.
    pub recordings: u64,
    /// Seconds from 1970 to the start of the first recording.
    pub first_unix_s: f64,
    /// Seconds from 1970 to the start of the last recording.
    pub last_unix_s: f64,
    /// Mean over the recordings.
    pub mean: f64,
    /// Its 95 % interval by Student's t. `None` of a single recording.
    pub interval: Option<[f64; 2]>,
    /// Difference to the version before. `None` of the first one, and if their recordings were modelled on several machines
    /// or have several sources.
    pub change: Option<FleetChange>,
    /// The same by time.
    pub points: Vec<FleetPoint>,
}

/// Difference of a version's mean to that of the version before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FleetChange {
    /// The difference.
    pub difference: f64,
    /// The difference / the mean before. `None` if that is 0.
    pub relative: Option<f64>,
    /// Interval of the difference (Welch). The intervals of all versions hold together at 95 %. `None` if a
    /// version has a single recording.
    pub interval: Option<[f64; 2]>,
}

/// Recordings of a version that started within the same step of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FleetPoint {
    /// Seconds from 1970 to the start of the first recording.
    pub first_unix_s: f64,
    /// Seconds from 1970 to the start of the last recording.
    pub last_unix_s: f64,
    /// Mean of the recordings' starts.
    pub unix_s: f64,
    /// Recordings.
    pub recordings: u64,
    /// Mean over the recordings.
    pub mean: f64,
    /// Its 95 % interval by Student's t. `None` of a single recording.
    pub interval: Option<[f64; 2]>,
}

/// A recording of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetRecording {
    /// Identifies it.
    pub recording: String,
    /// The service.
    pub service: String,
    /// The host.
    pub host: String,
    /// The label `commit`.
    pub commit: Option<String>,
    /// Seconds from 1970 to its start.
    pub started_unix_s: f64,
    /// Length on the recording's clock.
    pub duration_ns: u64,
    /// The metric. `None` if it does not have it.
    pub value: Option<f64>,
    /// Kinds of losses that its recorder counted.
    pub kinds_of_losses: u64,
    /// Where it was indexed from.
    pub path: String,
}
