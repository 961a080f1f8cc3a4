//! Opens a recording of a dataset where it was indexed from.

use std::path::Path;

use memgauge_recording::read_manifest;

use crate::dataset::Dataset;
use crate::error::{Error, ErrorKind, Result};
use crate::find::{Absent, Fetched, named};
use crate::measure::recording_id;

/// A recording of a dataset, on this machine. A copy from a bucket is removed with it.
pub struct IndexedRecording {
    fetched: Fetched,
    name: String,
    service: String,
}

impl IndexedRecording {
    /// Where it can be read.
    pub fn path(&self) -> &Path {
        self.fetched.path()
    }

    /// Path or URL from which it was indexed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its service.
    pub fn service(&self) -> &str {
        &self.service
    }
}

/// Opens the recording with this ID. One in a bucket is copied.
///
/// # Errors
/// The dataset does not have it, it is not where it was, or another one is there.
pub fn open_recording(dataset: &Dataset, id: &str) -> Result<IndexedRecording> {
    let mut rows = dataset.newest_with_recordings()?.recordings.into_iter();
    let row = rows.find(|row| row.id == id).ok_or_else(|| {
        let message = format!("failed to open recording {id}: the dataset does not have it");
        Error::new(ErrorKind::Question, message)
    })?;
    let name = &row.path;
    let moved = |why: &dyn std::fmt::Display| {
        let message = format!(
            "failed to open recording `{name}`: {why}; it was there when it was indexed, so move it \
             back or open it alone with `memgauge view`"
        );
        Error::new(ErrorKind::Question, message)
    };
    let gone = || moved(&"there is no such file, directory or object");
    let fetched = named(name)?.fetch()?.map_err(|absent| match absent {
        Absent::Gone => gone(),
        Absent::Denied(why) => Error::new(ErrorKind::Storage, why),
    })?;
    if !fetched.path().exists() {
        return Err(gone());
    }
    let manifest = read_manifest(fetched.path()).map_err(|why| moved(&why))?;
    match recording_id(&manifest) == id {
        true => Ok(IndexedRecording {
            fetched,
            name: row.path,
            service: row.partition.service,
        }),
        false => Err(moved(&"another recording is there now")),
    }
}
