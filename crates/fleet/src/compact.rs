//! Makes one file of the many files of a partition.
//!
//! The new file is written first. The next version of the table of recordings then names it instead of
//! the old ones, in one step. The old files stay for [`RETENTION`], for readers that began with an older
//! version, and are removed by a later compaction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use crate::curve::curves_of;
use crate::dataset::{Dataset, RETENTION};
use crate::error::Result;
use crate::index::write_files;
use crate::measurement::{Measurement, Scope};
use crate::partition::DatasetPartition;
use crate::recording_row::RecordingRow;
use crate::scan::{MeasurementFilter, SelectedRows, scan};

/// Result of [`compact`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Files of measurements that the dataset no longer uses.
    pub replaced: usize,
    /// Files that took their place.
    pub written: usize,
    /// Files that no version needed any more and that were removed.
    pub removed: usize,
}

/// Writes one file for each partition that has several, and removes files that no version has needed
/// for [`RETENTION`].
///
/// # Errors
/// The storage fails, or a file is damaged.
pub fn compact(dataset: &Dataset) -> Result<Compacted> {
    let mut compacted = Compacted::default();
    let mut partitions: BTreeMap<DatasetPartition, Vec<RecordingRow>> = BTreeMap::new();
    for row in dataset.newest()?.recordings {
        partitions
            .entry(row.partition.clone())
            .or_default()
            .push(row);
    }
    // Old and new file of each recording.
    let mut moved: BTreeMap<String, MovedRecording> = BTreeMap::new();
    for (partition, rows) in partitions {
        let files: BTreeSet<&str> = rows.iter().map(|row| &*row.file).collect();
        if files.len() < 2 {
            continue;
        }
        let (file, curve_file) = rewrite(dataset, &partition, &rows)?;
        compacted.replaced += files.len();
        compacted.written += 1;
        for row in &rows {
            let moved_row = MovedRecording {
                from: row.file.clone(),
                file: file.clone(),
                curve_file: row.curve_file.as_ref().and(curve_file.clone()),
            };
            moved.insert(row.id.clone(), moved_row);
        }
    }
    dataset.commit(|rows| {
        let mut changed = false;
        for row in rows {
            // Another compaction may have moved it meanwhile.
            let moved = moved.get(&row.id).filter(|moved| moved.from == row.file);
            if let Some(moved) = moved {
                row.file.clone_from(&moved.file);
                row.curve_file.clone_from(&moved.curve_file);
                changed = true;
            }
        }
        changed
    })?;
    compacted.removed = remove_unneeded(dataset)?;
    Ok(compacted)
}

struct MovedRecording {
    from: String,
    file: String,
    curve_file: Option<String>,
}

fn rewrite(
    dataset: &Dataset,
    partition: &DatasetPartition,
    rows: &[RecordingRow],
) -> Result<(String, Option<String>)> {
    let filter = MeasurementFilter {
        scopes: Scope::ALL.to_vec(),
        metric: None,
    };
    let copy = |copied: &mut Vec<Measurement>, read: &SelectedRows| {
        copied.extend(read.iter().map(|row| Measurement {
            recording: rows[row.recording].id.clone(),
            scope: row.scope,
            place: row.place(),
            metric: row.metric().to_owned(),
            unit: row.unit().to_owned().into(),
            provenance: row.provenance().to_owned().into(),
            value: row.value(),
            interval: row.interval(),
            samples: row.samples(),
        }));
    };
    let measurements = scan(dataset, rows, &filter, Vec::new, copy)?.concat();
    let mut curve_files: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for row in rows {
        if let Some(path) = row.curves_path() {
            curve_files.entry(path).or_default().insert(&row.id);
        }
    }
    let mut curves = Vec::new();
    for (path, recordings) in &curve_files {
        curves.extend(curves_of(dataset, path, recordings)?);
    }
    write_files(dataset, partition, measurements, &curves)
}

/// Removes files that no version names. Files younger than the retention may be of a version that is
/// still to be committed.
fn remove_unneeded(dataset: &Dataset) -> Result<usize> {
    let mut needed = BTreeSet::new();
    for file in dataset.versions()? {
        for row in dataset.version(file.number)?.unwrap_or_default().recordings {
            needed.extend(row.curves_path());
            needed.insert(row.measurements_path());
        }
    }
    let mut removed = 0;
    for folder in ["measurements", "curves"] {
        for object in dataset.store.list(folder)? {
            let age = SystemTime::now().duration_since(object.modified);
            let is_old = age.is_ok_and(|age| age > RETENTION);
            if is_old && !needed.contains(&object.path) {
                dataset.store.delete(&object.path)?;
                removed += 1;
            }
        }
    }
    Ok(removed)
}
