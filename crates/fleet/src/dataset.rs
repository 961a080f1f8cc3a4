//! Versions of a dataset, and its Parquet files.
//!
//! A version is a file `recordings/version-NNNNNNNNNN.parquet`, written by put-if-absent under the
//! next free number. If two writers compete, one finds that the number is taken, reads the other's
//! version, and adds its own recordings to it. `PutMode::Update`, which replaces an object if it is
//! unchanged, would only need one file, but folders do not support it.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use bytes::Bytes;
use memgauge_storage::{Store, local_path};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use crate::error::{Error, ErrorKind, Result};
use crate::recording_row::{self, RecordingRow};

/// How long superseded versions and the files that only they need are kept for readers that have
/// begun with them.
pub const RETENTION: Duration = Duration::from_secs(3600);

/// Objects that are requested from a bucket at a time. S3 answers a request in some 50 ms.
pub(crate) const REQUESTS: usize = 16;

const FOLDER: &str = "recordings";

/// A dataset of recordings.
pub struct Dataset {
    pub(crate) store: Store,
}

/// The recordings of a version.
#[derive(Clone, Debug, Default)]
pub(crate) struct DatasetVersion {
    /// 0 before the first one.
    pub(crate) number: u64,
    pub(crate) recordings: Vec<RecordingRow>,
}

fn version_path(number: u64) -> String {
    format!("{FOLDER}/version-{number:010}.parquet")
}

fn version_number(path: &str) -> Option<u64> {
    let name = path.strip_prefix(FOLDER)?.strip_prefix("/version-")?;
    let number = name.strip_suffix(".parquet")?.parse().ok()?;
    (version_path(number) == path).then_some(number)
}

/// A version's file in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionFile {
    pub(crate) number: u64,
    pub(crate) modified: SystemTime,
}

impl Dataset {
    /// Opens a folder or a bucket's prefix. It need not have recordings yet.
    ///
    /// # Errors
    /// The folder does not exist, or the URL cannot be used.
    pub fn open(name: &str) -> Result<Dataset> {
        Ok(Dataset {
            store: Store::open(name)?,
        })
    }

    /// As the user named it.
    pub fn name(&self) -> &str {
        self.store.name()
    }

    /// Returns true if a folder of this machine is a dataset.
    pub fn is_at(folder: &Path) -> bool {
        let names = std::fs::read_dir(folder.join(FOLDER)).into_iter().flatten();
        names.flatten().any(|entry| {
            let name = entry.file_name();
            version_number(&format!("{FOLDER}/{}", name.to_string_lossy())).is_some()
        })
    }

    /// Number of threads that read its files: one for each processor, but more of them wait for a bucket.
    pub(crate) fn readers(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        match local_path(self.name()) {
            Ok(None) => processors.max(REQUESTS),
            _ => processors,
        }
    }

    /// Number of recordings of the newest version.
    ///
    /// # Errors
    /// The dataset has no recordings, or the storage fails.
    pub fn recordings(&self) -> Result<usize> {
        Ok(self.newest_with_recordings()?.recordings.len())
    }

    /// Files of all versions, the oldest first.
    pub(crate) fn versions(&self) -> Result<Vec<VersionFile>> {
        let files = self.store.list(FOLDER)?.into_iter();
        let mut versions: Vec<VersionFile> = files
            .filter_map(|object| {
                Some(VersionFile {
                    number: version_number(&object.path)?,
                    modified: object.modified,
                })
            })
            .collect();
        versions.sort_by_key(|version| version.number);
        Ok(versions)
    }

    /// The newest version; an empty one if there is none.
    pub(crate) fn newest(&self) -> Result<DatasetVersion> {
        loop {
            let Some(newest) = self.versions()?.pop() else {
                return Ok(DatasetVersion::default());
            };
            // Only gone if this reader stalled for longer than the retention.
            if let Some(version) = self.version(newest.number)? {
                return Ok(version);
            }
        }
    }

    /// As [`newest`](Self::newest), for questions.
    ///
    /// # Errors
    /// There are no recordings, so this is no dataset.
    pub(crate) fn newest_with_recordings(&self) -> Result<DatasetVersion> {
        let version = self.newest()?;
        if version.recordings.is_empty() {
            let message = format!(
                "failed to read dataset `{}`: it has no recordings; add some with `memgauge fleet index \
                 DIR --to {}`",
                self.name(),
                self.name()
            );
            return Err(Error::new(ErrorKind::NotADataset, message));
        }
        Ok(version)
    }

    pub(crate) fn version(&self, number: u64) -> Result<Option<DatasetVersion>> {
        let path = version_path(number);
        let Some(bytes) = self.store.get(&path)? else {
            return Ok(None);
        };
        let mut recordings = Vec::new();
        for batch in read(&path, bytes)? {
            let rows = recording_row::rows(&batch);
            recordings.extend(rows.ok_or_else(|| {
                Error::corrupt(
                    &path,
                    "it does not have the columns of a dataset's recordings",
                )
            })?);
        }
        Ok(Some(DatasetVersion { number, recordings }))
    }

    /// Writes the next version. `change` gets the newest recordings, again for each attempt, and
    /// returns false if there is nothing to change.
    pub(crate) fn commit(
        &self,
        mut change: impl FnMut(&mut Vec<RecordingRow>) -> bool,
    ) -> Result<()> {
        loop {
            let begun = Instant::now();
            let mut version = self.newest()?;
            if !change(&mut version.recordings) {
                return Ok(());
            }
            version.recordings.sort_by(|a, b| a.id.cmp(&b.id));
            let number = version.number + 1;
            let batch = recording_row::batch(&version.recordings, number)?;
            let bytes = encode(&batch)?;
            // While this writer stalled, others may have used the number and removed its file
            // after the retention. To write it then would not add anything that readers see.
            if begun.elapsed() > RETENTION / 2 {
                continue;
            }
            if self.store.put_if_absent(&version_path(number), bytes)? {
                return self.remove_old_versions();
            }
        }
    }

    /// Removes versions that were superseded for longer than the retention.
    fn remove_old_versions(&self) -> Result<()> {
        let versions = self.versions()?;
        for pair in versions.windows(2) {
            let age = pair[1].modified.elapsed().unwrap_or_default();
            if age > RETENTION {
                self.store.delete(&version_path(pair[0].number))?;
            }
        }
        Ok(())
    }
}

/// A column with at most as many runs of equal texts, or as many numbers, is stored uncompressed. Dictionary
/// indices and nulls are run-length encoded, so Zstandard saves nothing there. But readers initialise a context of
/// it for each compressed column of each file, which took half of the time of `fleet top` with 5000 files of 1100 rows.
const MAX_UNCOMPRESSED_RUNS: usize = 32;

fn needs_compression(column: &dyn Array) -> bool {
    let runs = match column.as_string_opt::<i32>() {
        Some(texts) => {
            let neighbours = texts.iter().zip(texts.iter().skip(1));
            1 + neighbours.filter(|(text, next)| text != next).count()
        }
        None => column.len() - column.null_count(),
    };
    runs > MAX_UNCOMPRESSED_RUNS
}

/// A batch as a Parquet file.
pub(crate) fn encode(batch: &RecordBatch) -> Result<Vec<u8>> {
    let failed = |why: parquet::errors::ParquetError| {
        Error::new(ErrorKind::Storage, format!("failed to encode rows: {why}"))
    };
    let level = ZstdLevel::try_new(1).map_err(failed)?;
    let mut properties = WriterProperties::builder().set_compression(Compression::ZSTD(level));
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if !needs_compression(column) {
            let path = ColumnPath::from(field.name().as_str());
            properties = properties.set_column_compression(path, Compression::UNCOMPRESSED);
        }
    }
    let properties = properties.build();
    let mut bytes = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).map_err(failed)?;
    writer.write(batch).map_err(failed)?;
    writer.close().map_err(failed)?;
    Ok(bytes)
}

/// All batches of a Parquet file.
pub(crate) fn read(path: &str, bytes: Bytes) -> Result<Vec<RecordBatch>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)
        .and_then(ParquetRecordBatchReaderBuilder::build)
        .map_err(|why| Error::corrupt(path, why))?;
    reader
        .map(|batch| batch.map_err(|why| Error::corrupt(path, why)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Float64Array, StringArray};

    use super::*;

    #[test]
    fn columns_that_compression_does_not_shorten_are_stored_without() {
        let texts = |of: fn(i32) -> String| -> ArrayRef {
            Arc::new(StringArray::from_iter_values((0..1000).map(of)))
        };
        let numbers = |of: fn(i32) -> Option<f64>| -> ArrayRef {
            Arc::new((0..1000).map(of).collect::<Float64Array>())
        };
        let batch = RecordBatch::try_from_iter([
            ("same", texts(|_| "same".to_owned())),
            ("runs", texts(|row| format!("run-{}", row / 40))),
            ("names", texts(|row| format!("name-{row}"))),
            ("few", numbers(|row| (row % 100 == 0).then_some(1.0))),
            ("values", numbers(|row| Some(f64::from(row)))),
        ])
        .unwrap();
        let bytes = Bytes::from(encode(&batch).unwrap());
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes.clone()).unwrap();
        let columns = reader.metadata().row_group(0).columns();
        let is_compressed = columns
            .iter()
            .map(|column| column.compression() != Compression::UNCOMPRESSED);
        assert_eq!(
            is_compressed.collect::<Vec<_>>(),
            [false, false, true, false, true]
        );
        assert_eq!(read("file", bytes).unwrap(), [batch]);
    }
}
