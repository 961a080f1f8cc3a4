//! Packed recordings in a bucket. They are copied to private temporary files, and read there.

use std::sync::Arc;

use memgauge_recording::Recording as Reader;
use memgauge_storage::Store;
use pyo3::prelude::*;

use crate::error::{Error, NotARecordingError, from_copy};
use crate::recording::Recording;
use crate::work::{detached, interruptible};

/// A bucket's prefix, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct Bucket {
    store: Store,
}

#[pymethods]
impl Bucket {
    /// Opens a prefix. The bucket is not asked yet.
    #[new]
    fn open(url: &str) -> PyResult<Bucket> {
        let store = Store::open(url).map_err(|why| Error::new_err(why.to_string()))?;
        Ok(Bucket { store })
    }

    /// Paths of all objects below the prefix, in order.
    fn objects(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let store = self.store.clone();
        let listed = interruptible(py, move || store.list(""))?;
        let listed = listed.map_err(|why| Error::new_err(why.to_string()))?;
        Ok(listed.into_iter().map(|object| object.path).collect())
    }

    /// Copies a packed recording, and opens the copy. It is removed with the recording.
    fn recording(&self, py: Python<'_>, path: String) -> PyResult<Recording> {
        let url = self.store.name_of(&path);
        let store = self.store.clone();
        let copied = interruptible(py, move || store.download(&path, None))?;
        let copy = copied
            .map_err(|why| Error::new_err(why.to_string()))?
            .ok_or_else(|| {
                NotARecordingError::new_err(format!(
                    "failed to open recording `{url}`: there is no such object"
                ))
            })?;
        let reader = detached(py, || Reader::open(copy.path()));
        let reader = reader.map_err(|error| from_copy(&error, copy.path(), &url))?;
        Ok(Recording::of_copy(Arc::new(reader), url, copy))
    }
}
