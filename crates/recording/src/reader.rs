//! Reads a recording.

use super::columns::{Column, schema};
use super::file_names::part_name;
use super::manifest_file;
use super::part_reader::{Damage, Part, PartBatches, RowFilter, overlap};
use super::row::Row;
use super::selection::Selection;
use super::storage::{FileLocation, Storage};
use super::tables::each_table;
use crate::error::system_message;
use crate::{Error, ErrorKind, Result};
use arrow_array::RecordBatch;
use arrow_schema::Schema;
use memgauge_trace::Manifest;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A recording: a directory, or a file that [`pack`](crate::pack) wrote.
///
/// Opening it reads the manifest and verifies the footers of all parts. Parts that are not intact
/// are reported by [`Recording::problems`] and skipped by [`Recording::rows`].
#[derive(Debug)]
pub struct Recording {
    storage: Storage,
    manifest: Manifest,
    parts: BTreeMap<&'static str, Vec<KnownPart>>,
    problems: Vec<String>,
    /// Number of parts that each table should have.
    expected_parts: BTreeMap<&'static str, usize>,
    /// Parts that were found to be damaged while their rows were read, in words.
    skipped: Mutex<Vec<String>>,
}

/// A part whose footer was intact when the recording was opened.
#[derive(Clone, Debug)]
struct KnownPart {
    location: FileLocation,
    times_ns: Option<Range<u64>>,
}

impl Recording {
    /// Opens the recording at `path`.
    pub fn open(path: &Path) -> Result<Recording> {
        let storage = Storage::open(path)?;
        let (manifest, altered) = manifest_file::load(&storage)?;
        let damage = storage.damage().map(str::to_owned);
        let mut recording = Recording {
            storage,
            manifest,
            parts: BTreeMap::new(),
            problems: damage.into_iter().chain(altered).collect(),
            expected_parts: BTreeMap::new(),
            skipped: Mutex::default(),
        };
        macro_rules! find {
            ($($row:ident in $table:ident, $name:literal;)+) => {
                $( recording.find_parts::<memgauge_trace::$row>(); )+
            };
        }
        each_table!(find);
        Ok(recording)
    }

    /// The recording's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.storage.path()
    }

    /// Returns the number of parts of a table whose footers were intact when it was opened.
    pub fn part_count<R: Row>(&self) -> usize {
        self.parts.get(R::TABLE).map_or(0, Vec::len)
    }

    /// Returns whether a table has parts but each of them is missing or damaged, as far as it was
    /// found when the recording was opened.
    pub fn has_lost<R: Row>(&self) -> bool {
        let expected = self.expected_parts.get(R::TABLE);
        self.part_count::<R>() == 0 && expected.is_some_and(|&expected| expected > 0)
    }

    /// Returns the rows of a table in batches of at most 65 536, in the order of parts.
    ///
    /// Memory is limited to one batch. A part whose data is damaged yields one error and none of
    /// its untrusted rows; the following parts are still read.
    pub fn rows<R: Row>(&self, selection: &Selection) -> Rows<R> {
        Rows(self.parts_of(selection))
    }

    /// Returns the rows of a table as Arrow record batches, otherwise as [`Recording::rows`]. Every
    /// batch has exactly the selected columns in the table's order.
    ///
    /// # Errors
    /// The selection contains an unknown column.
    pub fn batches<R: Row>(&self, selection: &Selection) -> Result<Batches<R>> {
        let columns = selection.columns_for::<R>()?;
        Ok(Batches {
            schema: schema(columns),
            parts: self.parts_of(selection),
        })
    }

    fn parts_of<R: Row>(&self, selection: &Selection) -> PartsInOrder<R> {
        let filter = selection.filter_for::<R>();
        let wanted = |part: &&KnownPart| match (&filter.time_ns, &part.times_ns) {
            (Some(wanted), Some(actual)) => overlap(wanted, actual),
            _ => true,
        };
        let parts = self
            .parts
            .get(R::TABLE)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let parts: Vec<FileLocation> = parts[selection.range_of_parts(parts.len())]
            .iter()
            .filter(wanted)
            .map(|part| part.location.clone())
            .collect();
        PartsInOrder::new(parts, selection.columns_for::<R>(), filter)
    }

    /// Calls `visit` with the rows of a table, as [`Recording::rows`], and skips damaged parts,
    /// which are added to `problems`.
    ///
    /// Results are computed from a recording in this way: from the intact parts, with the damaged
    /// ones listed.
    ///
    /// # Errors
    /// The file system fails, or the selection contains an unknown column.
    pub fn for_each_intact_batch<R: Row>(
        &self,
        selection: &Selection,
        problems: &mut Vec<String>,
        mut visit: impl FnMut(&[R]),
    ) -> Result<()> {
        for batch in self.rows::<R>(selection) {
            match batch {
                Ok(rows) => visit(&rows),
                Err(e) if e.kind() == ErrorKind::Corrupt => {
                    let problem = self.skip(&e);
                    // A table can be read more than once.
                    if !problems.contains(&problem) {
                        problems.push(problem);
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Descriptions of missing and damaged parts that were found when the recording was opened;
    /// empty for an intact recording.
    pub fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }

    /// Notes a damaged part that a reader of [`Recording::rows`] or [`Recording::batches`] skips.
    /// Returns its description.
    pub fn skip(&self, damaged: &Error) -> String {
        let problem = damaged.to_string();
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        if !skipped.contains(&problem) {
            skipped.push(problem.clone());
        }
        problem
    }

    /// Descriptions of the parts that were found to be damaged while their rows were read.
    pub fn skipped_parts(&self) -> Vec<String> {
        let skipped = self.skipped.lock();
        skipped.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether a part is missing or damaged: [`Recording::problems`], and
    /// [`Recording::skipped_parts`] so far. A recording of a killed writer is not damaged, only
    /// shorter.
    pub fn is_damaged(&self) -> bool {
        !self.problems.is_empty() || !self.skipped_parts().is_empty()
    }

    fn find_parts<R: Row>(&mut self) {
        let numbers = match self.storage.part_numbers(R::TABLE) {
            Ok(numbers) => numbers,
            Err(e) => {
                return self.problems.push(format!(
                    "{}: cannot be read ({})",
                    R::TABLE,
                    system_message(&e)
                ));
            }
        };
        let written = match self.storage.damage() {
            None => self.manifest.tables.get(R::TABLE).map_or(0, |t| t.parts),
            // A single problem says that the archive is truncated.
            Some(_) => 0,
        };
        self.problems.extend(
            gaps(&numbers, written)
                .iter()
                .map(|gap| format!("{}: {gap}", R::TABLE)),
        );
        let listed = self.manifest.tables.get(R::TABLE);
        let listed = listed.map_or(0, |table| table.parts as usize);
        self.expected_parts
            .insert(R::TABLE, listed.max(numbers.len()));
        for number in numbers {
            self.check_part::<R>(number);
        }
    }

    fn check_part<R: Row>(&mut self, number: u32) {
        let name = part_name(number);
        let location = self.storage.part(R::TABLE, number);
        match Part::open(&location) {
            Ok(part) => {
                let times_ns = part.times_ns::<R>();
                self.parts
                    .entry(R::TABLE)
                    .or_default()
                    .push(KnownPart { location, times_ns });
            }
            Err(damage) => self.problems.push(format!("{}/{name}: {damage}", R::TABLE)),
        }
    }
}

/// Describes the gaps in part numbers, which should start at 0 and be at least `written` in number.
fn gaps(numbers: &[u32], written: u32) -> Vec<String> {
    let mut expected = 0;
    let mut gaps = Vec::new();
    let mut gap = |first: u32, end: u32| match end.saturating_sub(first) {
        0 => {}
        1 => gaps.push(format!("{} is missing", part_name(first))),
        _ => gaps.push(format!(
            "{} to {} are missing",
            part_name(first),
            part_name(end - 1)
        )),
    };
    for &number in numbers {
        gap(expected, number);
        expected = number.saturating_add(1);
    }
    gap(expected, written);
    gaps
}

/// Iterates over the rows of a table in batches.
pub struct Rows<R: Row>(PartsInOrder<R>);

impl<R: Row> Iterator for Rows<R> {
    type Item = Result<Vec<R>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next(|part, batch| part.rows(batch))
    }
}

/// Iterates over the rows of a table as Arrow record batches.
pub struct Batches<R: Row> {
    schema: Arc<Schema>,
    parts: PartsInOrder<R>,
}

impl<R: Row> Batches<R> {
    /// Returns the number of parts that have not been read yet.
    pub fn remaining_parts(&self) -> usize {
        self.parts.parts.len()
    }

    /// Returns the schema of all batches.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }
}

impl<R: Row> Iterator for Batches<R> {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let schema = &self.schema;
        self.parts.next(|part, batch| part.selected(batch, schema))
    }
}

/// The parts of a table that a selection needs, one after the other.
struct PartsInOrder<R: Row> {
    parts: std::vec::IntoIter<FileLocation>,
    columns: Vec<&'static Column<R>>,
    filter: RowFilter,
    current: Option<(FileLocation, PartBatches<R>)>,
    selection_error: Option<Error>,
}

impl<R: Row> PartsInOrder<R> {
    fn new(
        parts: Vec<FileLocation>,
        columns: Result<Vec<&'static Column<R>>>,
        filter: RowFilter,
    ) -> Self {
        let (parts, columns, selection_error) = match columns {
            Ok(columns) => (parts, columns, None),
            Err(error) => (Vec::new(), Vec::new(), Some(error)),
        };
        PartsInOrder {
            parts: parts.into_iter(),
            columns,
            filter,
            current: None,
            selection_error,
        }
    }

    fn open(&self, location: &FileLocation) -> std::result::Result<PartBatches<R>, Damage> {
        let part = Part::open(location)?;
        part.check_data()?;
        part.batches(&self.columns, self.filter.clone())
    }

    /// Moves to the next part. Returns false after the last one.
    fn advance(&mut self) -> Result<bool> {
        self.current = None;
        let Some(location) = self.parts.next() else {
            return Ok(false);
        };
        let batches = self.open(&location);
        let batches = batches.map_err(|damage| corrupt(location.path(), &damage))?;
        self.current = Some((location, batches));
        Ok(true)
    }

    /// The next batch of the current part that has rows.
    fn next_of_part<T>(
        &mut self,
        convert: &impl Fn(&PartBatches<R>, &RecordBatch) -> std::result::Result<T, Damage>,
    ) -> Option<Result<T>> {
        let (location, part) = self.current.as_mut()?;
        loop {
            let batch = part.next_batch()?.and_then(|batch| match batch.num_rows() {
                0 => Ok(None),
                _ => convert(part, &batch).map(Some),
            });
            match batch {
                Ok(None) => {}
                Ok(Some(batch)) => return Some(Ok(batch)),
                Err(damage) => {
                    let error = corrupt(location.path(), &damage);
                    self.current = None;
                    return Some(Err(error));
                }
            }
        }
    }

    fn next<T>(
        &mut self,
        convert: impl Fn(&PartBatches<R>, &RecordBatch) -> std::result::Result<T, Damage>,
    ) -> Option<Result<T>> {
        if let Some(error) = self.selection_error.take() {
            return Some(Err(error));
        }
        loop {
            match self.next_of_part(&convert) {
                Some(batch) => return Some(batch),
                None => match self.advance() {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }
}

fn corrupt(path: &Path, damage: &str) -> Error {
    let message = format!(
        "failed to read part `{}`: {damage}; the other parts can be read",
        path.display()
    );
    Error::new(ErrorKind::Corrupt, message)
}
