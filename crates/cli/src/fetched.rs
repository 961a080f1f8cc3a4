//! Recordings that are named by a path or by the URL of a packed one in a bucket.

use std::path::{Path, PathBuf};

use memgauge_storage::{LocalCopy, is_url, local_path};

/// A recording on this machine.
pub(crate) enum LocalRecording {
    Local(PathBuf),
    /// A private copy of one in a bucket, which is removed when this is dropped.
    Copy(LocalCopy),
}

impl LocalRecording {
    pub(crate) fn path(&self) -> &Path {
        match self {
            LocalRecording::Local(path) => path,
            LocalRecording::Copy(copy) => copy.path(),
        }
    }
}

/// Copies a recording if it is in a bucket. Does not check whether a path has a recording.
pub(crate) fn fetch(recording: &Path) -> anyhow::Result<LocalRecording> {
    let name = recording.to_string_lossy();
    if !is_url(&name) {
        return Ok(LocalRecording::Local(recording.to_owned()));
    }
    Ok(match local_path(&name)? {
        Some(path) => LocalRecording::Local(path),
        None => LocalRecording::Copy(memgauge_storage::fetch(&name)?),
    })
}

/// Returns true if this is the URL of a packed recording, not that of a dataset.
pub(crate) fn is_packed_url(name: &str) -> bool {
    is_url(name) && name.ends_with(".mg.tar")
}
