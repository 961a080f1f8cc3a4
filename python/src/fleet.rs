//! Datasets of many recordings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use memgauge_fleet::{Dataset, ErrorKind, IndexOptions, Share, Skipped, index};
use pyo3::prelude::*;
use serde_json::json;

use crate::error::{Error, UsageError};
use crate::values::to_python;
use crate::work::interruptible;

/// Adds one of `shares` shares of the recordings below folders and URLs to a dataset. Returns how many
/// were added and how many it had, and messages about others: of those that are not finished, and of those
/// that cannot be read.
#[pyfunction]
pub(crate) fn index_share(
    py: Python<'_>,
    inputs: Vec<PathBuf>,
    to: String,
    labels: BTreeMap<String, String>,
    share: u32,
    shares: u32,
) -> PyResult<Py<PyAny>> {
    let options = IndexOptions {
        labels,
        // The cluster has as many tasks as it has threads.
        threads: 1,
        share: Some(Share {
            index: share,
            count: shares,
        }),
    };
    let indexed = interruptible(py, move || {
        index(&Dataset::open(&to)?, &inputs, &options, &mut |_, _| ())
    })?;
    let indexed = indexed.map_err(|why| match why.kind() {
        ErrorKind::Question => UsageError::new_err(why.to_string()),
        _ => Error::new_err(why.to_string()),
    })?;
    let (unfinished, unreadable): (Vec<&Skipped>, Vec<&Skipped>) = indexed
        .skipped
        .iter()
        .partition(|skipped| matches!(skipped, Skipped::Unfinished(_)));
    let messages = |skipped: Vec<&Skipped>| -> Vec<String> {
        skipped
            .into_iter()
            .map(|skipped| skipped.message().to_owned())
            .collect()
    };
    let result = json!({
        "added": indexed.added,
        "known": indexed.known,
        "unfinished": messages(unfinished),
        "unreadable": messages(unreadable),
    });
    to_python(py, &result)
}
