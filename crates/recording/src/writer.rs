//! Writes a recording.

use super::row::{Row, Tables};
use super::sink::{Create, file_system};
use super::storage::Storage;
use super::table_writer::{AnyTable, TableWriter, lost_from, reason};
use super::{FORMAT_VERSION, manifest_file, private};
use crate::{Error, ErrorKind, Result};
use memgauge_trace::{EventRow, Loss, LossKind, Manifest, TableFacts};
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Writes a recording, one part at a time.
///
/// A part is closed at a million rows, at an age of two seconds (checked by [`Writer::flush_due`]
/// and whenever rows are encoded), or by [`Writer::flush`]. Rows in memory or in an open part are
/// lost if the process is killed or the writer is dropped without [`Writer::finish`]. Everything
/// written before stays readable.
///
/// Memory: below 64 MiB with all tables except those of I/O full of rows that do not compress
/// (`bench/src/bin/size_per_million.rs` measures 56 MiB). A table holds 4096 rows and an encoded
/// row group of about 2 MiB. A table with small parts also holds the rows of the newest one, at
/// most 16 384.
///
/// The writer can be used after an error. The failed part is dropped and counted in
/// [`Writer::lost_rows`], and the next rows start a new one. [`Writer::finish`] still tries to
/// complete the manifest.
pub struct Writer {
    dir: PathBuf,
    create: Create,
    manifest: Manifest,
    manifest_bytes: u64,
    tables: Tables,
    reserved_space: Option<ReservedSpace>,
}

/// Reserved disk space for the data written last: the manifest and the losses. The file is deleted
/// when this is dropped. A killed recorder leaves it behind, and readers ignore it.
struct ReservedSpace(PathBuf);

impl ReservedSpace {
    const FILE: &str = ".room";
    /// A manifest has about 20 KiB, a part of losses 3 KiB.
    const BYTES: usize = 128 << 10;

    fn create(dir: &Path) -> io::Result<ReservedSpace> {
        // Create the guard first, so that a partly written file is removed if the disk is full.
        let reserved_space = ReservedSpace(dir.join(ReservedSpace::FILE));
        private::create_file(&reserved_space.0)?.write_all(&vec![0; ReservedSpace::BYTES])?;
        Ok(reserved_space)
    }
}

impl Drop for ReservedSpace {
    fn drop(&mut self) {
        // Best effort: a leftover only takes up space.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A table taken out of a [`Writer`], to be written in another thread.
///
/// Encoding many rows takes longer than producing them; this way, two large tables are encoded at
/// the same time. The table must be put back. If it is dropped, only its closed parts are kept.
pub struct DetachedTable<R>(TableWriter<R>);

impl<R: Row> DetachedTable<R> {
    /// As [`Writer::append`].
    ///
    /// # Errors
    /// A part could not be written. The next rows start a new one.
    pub fn append(&mut self, rows: &[R]) -> Result<()> {
        self.0.append(rows)
    }

    /// Closes the open part.
    ///
    /// # Errors
    /// It could not be written.
    pub fn flush(&mut self) -> Result<()> {
        self.0.close()
    }
}

impl Writer {
    /// Creates a recording at `path`, which must not exist or be an empty directory, and writes its
    /// manifest, marked as incomplete. Only the owner can read the files ([`private`]).
    pub fn create(path: &Path, manifest: Manifest) -> Result<Writer> {
        Writer::create_with(path, manifest, file_system())
    }

    pub(super) fn create_with(path: &Path, manifest: Manifest, create: Create) -> Result<Writer> {
        let is_new = !path.exists();
        make_recording_dir(path)?;
        let writer = Writer::start(path, manifest, create);
        if writer.is_err() && is_new {
            // Best effort: an empty directory would block the next attempt.
            let _ = std::fs::remove_dir_all(path);
        }
        writer
    }

    fn start(path: &Path, manifest: Manifest, create: Create) -> Result<Writer> {
        let reserved_space = ReservedSpace::create(path).map_err(|e| cannot_create(path, e))?;
        let mut writer = Writer {
            dir: path.to_owned(),
            manifest,
            manifest_bytes: 0,
            tables: Tables::new(path, &create),
            create,
            reserved_space: Some(reserved_space),
        };
        writer.update_manifest(|manifest| manifest.complete = false)?;
        Ok(writer)
    }

    /// Adds a row to its table.
    #[inline]
    pub fn push<R: Row>(&mut self, row: R) -> Result<()> {
        R::writer(&mut self.tables).push(row)
    }

    /// Adds rows to their table. Stops at the first error.
    pub fn extend<R: Row>(&mut self, rows: impl IntoIterator<Item = R>) -> Result<()> {
        let table = R::writer(&mut self.tables);
        rows.into_iter().try_for_each(|row| table.push(row))
    }

    /// Adds a slice of rows to their table. Stops at the first error.
    pub fn append<R: Row>(&mut self, rows: &[R]) -> Result<()> {
        R::writer(&mut self.tables).append(rows)
    }

    /// Takes a table out. Until it is put back, the writer refuses its rows.
    pub fn take<R: Row>(&mut self) -> DetachedTable<R> {
        DetachedTable(R::writer(&mut self.tables).take())
    }

    /// Puts a table back that was taken from this writer.
    pub fn put_back<R: Row>(&mut self, table: DetachedTable<R>) {
        R::writer(&mut self.tables).put_back(table.0);
    }

    /// Closes parts whose oldest row is at least two seconds old. To be called about once a second.
    pub fn flush_due(&mut self) -> Result<()> {
        self.for_each_table(|table| table.close_if_due())
    }

    /// Closes all open parts.
    ///
    /// Later rows start new parts.
    pub fn flush(&mut self) -> Result<()> {
        self.for_each_table(|table| table.close())
    }

    /// Closes all open parts for now. Later rows are added to small parts.
    pub fn flush_so_far(&mut self) -> Result<()> {
        self.for_each_table(|table| table.close_so_far())
    }

    /// Changes the manifest in memory and on disk. The old file remains until the new one is
    /// complete.
    pub fn update_manifest(&mut self, f: impl FnOnce(&mut Manifest)) -> Result<()> {
        f(&mut self.manifest);
        self.manifest.format_version = FORMAT_VERSION;
        self.manifest_bytes = manifest_file::save(&self.dir, &self.manifest, &self.create)?;
        Ok(())
    }

    /// Size on disk in bytes: the manifest, closed parts, and the written data of open ones. Exact
    /// after [`Writer::flush`].
    pub fn bytes_written(&self) -> u64 {
        let tables: u64 = self
            .tables
            .each_ref()
            .iter()
            .map(|table| table.bytes())
            .sum();
        self.manifest_bytes + tables
    }

    /// Number of rows of all tables that could not be written.
    pub fn lost_rows(&self) -> u64 {
        self.tables
            .each_ref()
            .iter()
            .map(|table| table.lost_rows())
            .sum()
    }

    /// Frees the reserved disk space for the rows that follow, in case the disk is full.
    pub fn free_reserved_space(&mut self) {
        self.reserved_space = None;
    }

    /// Closes all parts and completes the manifest.
    ///
    /// The manifest is marked `complete` only if it contains every row that was added. Rows that
    /// could not be written are listed as losses if there is enough space. `f` is called in any
    /// case.
    pub fn finish(mut self, f: impl FnOnce(&mut Manifest)) -> Result<()> {
        let flushed = self.flush_so_far();
        self.free_reserved_space();
        f(&mut self.manifest);
        let events_written = self.list_events();
        let losses_written = self.write_losses();
        let is_complete = self.lost_rows() == 0;
        let tables = self.table_facts();
        let saved = self.update_manifest(|manifest| {
            manifest.complete = is_complete;
            manifest.tables = tables;
        });
        flushed.and(events_written).and(losses_written).and(saved)
    }

    /// Writes the manifest's events as a table.
    fn list_events(&mut self) -> Result<()> {
        let totals = &self.manifest.totals;
        let events = self.manifest.events.iter().map(|event| EventRow {
            id: event.id,
            name: event.name.clone(),
            unit: event.unit.name().to_owned(),
            provenance: event.provenance.name().to_owned(),
            total: totals.get(&event.name).copied(),
        });
        let events: Vec<EventRow> = events.collect();
        self.extend(events)?;
        self.flush_so_far()
    }

    fn table_facts(&self) -> BTreeMap<String, TableFacts> {
        let tables = self.tables.each_ref().into_iter();
        let filled = tables.filter(|table| table.parts() > 0);
        let facts = |table: &dyn AnyTable| TableFacts {
            parts: table.parts(),
        };
        filled
            .map(|table| (table.name().to_owned(), facts(table)))
            .collect()
    }

    fn write_losses(&mut self) -> Result<()> {
        let lost: Vec<Loss> = self
            .tables
            .each_ref()
            .into_iter()
            .filter_map(lost_rows_of)
            .collect();
        self.extend(lost)?;
        self.flush_so_far()
    }

    fn for_each_table(&mut self, close: fn(&mut dyn AnyTable) -> Result<()>) -> Result<()> {
        self.tables
            .each()
            .into_iter()
            .map(close)
            .fold(Ok(()), Result::and)
    }
}

/// Adds a table to a finished recording that lacks it, for data derived from its rows later.
/// Returns the size of the table in bytes.
///
/// # Errors
/// The recording has such a table, or it cannot be written. The recording is unchanged then.
pub fn add_table<R: Row>(path: &Path, rows: &[R]) -> Result<u64> {
    let (mut manifest, altered) = manifest_file::load(&Storage::open(path)?)?;
    let folder = path.join(R::TABLE);
    if altered.is_some() || folder.exists() {
        let (recording, table) = (path.display(), R::TABLE);
        let why =
            format!("failed to add table `{table}` to `{recording}`: it has one, or is damaged");
        return Err(Error::new(ErrorKind::Io, why));
    }
    let create = file_system();
    let mut table = TableWriter::<R>::new(path, &create);
    let written = table.append(rows).and_then(|()| table.close());
    if written.is_err() {
        // Best effort: a part of the table would be taken for all of it.
        let _ = std::fs::remove_dir_all(&folder);
        return written.map(|()| 0);
    }
    let facts = TableFacts {
        parts: table.parts(),
    };
    if facts.parts > 0 {
        manifest.tables.insert(R::TABLE.to_owned(), facts);
        manifest.own_cost.recording_bytes += table.bytes();
        manifest_file::save(path, &manifest, &create)?;
    }
    Ok(table.bytes())
}

/// Changes the manifest of a finished recording, to add data that its writer did not have. The old
/// file remains until the new one is complete.
///
/// # Errors
/// There is no such recording, or it cannot be written.
pub fn amend(path: &Path, f: impl FnOnce(&mut Manifest)) -> Result<()> {
    let (mut manifest, _) = manifest_file::load(&Storage::open(path)?)?;
    f(&mut manifest);
    manifest_file::save(path, &manifest, &file_system()).map(drop)
}

fn lost_rows_of(table: &dyn AnyTable) -> Option<Loss> {
    (table.lost_rows() > 0).then(|| Loss {
        kind: LossKind::PartNotWritten,
        time_ns: table.lost_from_ns().unwrap_or_default(),
        count: table.lost_rows(),
        detail: format!(
            "rows of table {}{}",
            table.name(),
            lost_from(table.lost_from_ns())
        ),
        ..Loss::default()
    })
}

fn make_recording_dir(path: &Path) -> Result<()> {
    match private::create_dir(path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => check_empty(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(no_parent(path)),
        Err(e) => Err(cannot_create(path, e)),
    }
}

fn check_empty(path: &Path) -> Result<()> {
    if !path.is_dir() {
        return Err(refused(
            path,
            "a file of that name exists; choose another name",
        ));
    }
    let mut entries = std::fs::read_dir(path).map_err(|e| cannot_create(path, e))?;
    if entries.next().is_some() {
        return Err(refused(
            path,
            "the directory is not empty; remove it or choose another name",
        ));
    }
    Ok(())
}

fn no_parent(path: &Path) -> Error {
    let parent = path.parent().unwrap_or(path);
    // `/proc` exists but reports the same error for every new entry.
    if parent.is_dir() {
        let why = "no directory can be made there; choose another place";
        return refused(path, why);
    }
    if parent.as_os_str().is_empty() {
        let why = "the folder that memgauge was started in is gone; go to another one";
        return refused(path, why);
    }
    let parent = parent.display();
    refused(
        path,
        &format!("no directory `{parent}`; create it first (mkdir -p {parent})"),
    )
}

fn cannot_create(path: &Path, error: io::Error) -> Error {
    let (kind, why) = reason((&error).into());
    let message = format!("failed to create recording `{}`: {why}", path.display());
    // The message contains the cause.
    Error::new(kind, message)
}

fn refused(path: &Path, why: &str) -> Error {
    Error::new(
        ErrorKind::Io,
        format!("failed to create recording `{}`: {why}", path.display()),
    )
}
