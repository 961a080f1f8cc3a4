//! One table while it is written: rows gathered into parts.
//!
//! A part is closed every two seconds, so that little is lost with a killed recorder. While a
//! table has few rows, the part that is closed takes the place of the one before and has its
//! rows as well: a short run has one part of each table.
//!
//! Memory of a table: the rows waiting for the encoder (at most 4 096, or a mebibyte of
//! text), the rows of a small part, and one encoded row group of about 2 MiB with its
//! dictionaries.

use super::part_writer::{OpenPart, PartFailure};
use super::sink::{Create, Out};
use super::tables::Columns;
use crate::error::Cause;
use crate::{Error, ErrorKind, Result, private};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Rows handed to the encoder at once.
const CHUNK_ROWS: usize = 4 * 1024;

/// Text of waiting rows that also sends them to the encoder.
const CHUNK_TEXT_BYTES: usize = 1 << 20;

/// Rows after which a part is closed.
pub(super) const PART_ROWS: usize = 1_000_000;

/// Age of its oldest row at which a part is closed.
const PART_AGE: Duration = Duration::from_secs(2);

/// Rows of the last part that are kept in memory, so that the next part can take its place.
///
/// A program that runs for ten seconds would otherwise have five parts of each table, most of
/// them with a few rows. Larger parts stay as they are. 16 384 samples take 1.8 MiB.
const RETAINED_ROWS: usize = 16 * 1024;

/// Text of these rows.
const RETAINED_TEXT_BYTES: usize = 1 << 20;

/// From when on rows are lost, in words that follow others.
pub(super) fn since(lost_from_ns: Option<u64>) -> String {
    lost_from_ns.map_or(String::new(), |ns| {
        format!(" from {:.2} s on", ns as f64 / 1e9)
    })
}

/// Operations of a table that need no type of row.
pub(super) trait AnyTable {
    fn name(&self) -> &'static str;
    /// Closes the open part; nothing takes its place any more.
    fn close(&mut self) -> Result<()>;
    /// Closes the open part, which may be replaced by one that has its rows and further ones.
    fn close_so_far(&mut self) -> Result<()>;
    fn close_if_due(&mut self) -> Result<()>;
    fn bytes(&self) -> u64;
    fn lost_rows(&self) -> u64;
    /// Time of the last row before the first lost one, where rows have times.
    fn lost_from_ns(&self) -> Option<u64>;
    fn parts(&self) -> u32;
}

/// Rows of the newest part, as long as they are few: all that it has, or nothing.
struct Retained<R> {
    rows: Vec<R>,
    text_bytes: usize,
    /// The closed part with rows in `rows`; `None` where no part was closed with just these.
    replaces: Option<ClosedPart>,
    /// There were too many.
    is_full: bool,
}

#[derive(Clone, Copy)]
struct ClosedPart {
    rows: usize,
    bytes: u64,
}

impl<R: Columns> Retained<R> {
    fn new() -> Self {
        Retained {
            rows: Vec::new(),
            text_bytes: 0,
            replaces: None,
            is_full: false,
        }
    }

    /// Takes in rows of the open part.
    fn extend(&mut self, rows: &[R]) {
        if self.is_full {
            return;
        }
        let text_bytes = rows.iter().map(Columns::text_bytes).sum::<usize>();
        self.text_bytes += text_bytes;
        self.is_full =
            self.rows.len() + rows.len() > RETAINED_ROWS || self.text_bytes > RETAINED_TEXT_BYTES;
        match self.is_full {
            true => self.rows = Vec::new(),
            false => self.rows.extend_from_slice(rows),
        }
    }
}

/// Writer of one table.
pub struct TableWriter<R> {
    dir: PathBuf,
    create: Create,
    waiting: Vec<R>,
    waiting_text_bytes: usize,
    part: Option<OpenPart>,
    /// The part that the next closed one replaces.
    retained: Retained<R>,
    oldest: Option<Instant>,
    closed_parts: u32,
    closed_rows: u64,
    closed_bytes: u64,
    lost_rows: u64,
    /// Times of the newest row, of the newest in a closed part, and of that when the first
    /// rows were lost.
    newest_ns: u64,
    closed_to_ns: u64,
    lost_from_ns: Option<u64>,
    /// Whether another writes the table meanwhile.
    is_away: bool,
}

impl<R: Columns> TableWriter<R> {
    pub(super) fn new(recording: &Path, create: &Create) -> Self {
        TableWriter::empty(recording.join(R::TABLE), create.clone())
    }

    fn empty(dir: PathBuf, create: Create) -> Self {
        TableWriter {
            dir,
            create,
            waiting: Vec::new(),
            waiting_text_bytes: 0,
            part: None,
            retained: Retained::new(),
            oldest: None,
            closed_parts: 0,
            closed_rows: 0,
            closed_bytes: 0,
            lost_rows: 0,
            newest_ns: 0,
            closed_to_ns: 0,
            lost_from_ns: None,
            is_away: false,
        }
    }

    /// Leaves a writer in its place that takes no rows.
    pub(super) fn take(&mut self) -> Self {
        let mut away = TableWriter::empty(self.dir.clone(), self.create.clone());
        away.is_away = true;
        std::mem::replace(self, away)
    }

    /// Puts back what was taken; rows that were refused meanwhile stay counted.
    pub(super) fn put_back(&mut self, taken: Self) {
        let refused = self.lost_rows;
        *self = taken;
        self.lost_rows += refused;
    }

    #[inline]
    pub(super) fn push(&mut self, row: R) -> Result<()> {
        if self.oldest.is_none() {
            self.oldest = Some(Instant::now());
        }
        self.waiting_text_bytes += row.text_bytes();
        self.waiting.push(row);
        if self.waiting.len() >= CHUNK_ROWS.min(self.room())
            || self.waiting_text_bytes >= CHUNK_TEXT_BYTES
        {
            return self.encode();
        }
        Ok(())
    }

    /// Writes many rows without gathering them first; stops at the first error.
    pub(super) fn append(&mut self, rows: &[R]) -> Result<()> {
        for chunk in rows.chunks(CHUNK_ROWS) {
            let fits = self.waiting.len() + chunk.len() < self.room();
            if fits && chunk.iter().all(|row| row.text_bytes() == 0) {
                self.append_chunk(chunk)?;
            } else {
                chunk.iter().cloned().try_for_each(|row| self.push(row))?;
            }
        }
        Ok(())
    }

    fn append_chunk(&mut self, chunk: &[R]) -> Result<()> {
        self.oldest.get_or_insert_with(Instant::now);
        let written = self.write_waiting().and_then(|()| self.write(chunk));
        if written.is_err() {
            self.lost_rows += chunk.len() as u64;
        }
        self.checked(written)?;
        self.close_if_due()
    }

    /// Sends the waiting rows to the encoder, and closes the part if that
    /// fills it or it has grown old.
    fn encode(&mut self) -> Result<()> {
        if self.waiting.len() >= self.room() {
            return self.close_so_far();
        }
        let written = self.write_waiting();
        self.checked(written)?;
        self.close_if_due()
    }

    /// Rows the open part still takes, which is never fewer than are waiting.
    #[inline]
    fn room(&self) -> usize {
        PART_ROWS - self.part.as_ref().map_or(0, OpenPart::rows)
    }

    fn write_waiting(&mut self) -> std::result::Result<(), PartFailure> {
        let waiting = std::mem::take(&mut self.waiting);
        let written = self.write(&waiting);
        self.waiting = waiting;
        written?;
        self.waiting.clear();
        self.waiting_text_bytes = 0;
        Ok(())
    }

    fn write(&mut self, rows: &[R]) -> std::result::Result<(), PartFailure> {
        let Some(last) = rows.last() else {
            return Ok(());
        };
        if self.is_away {
            return Err(io::Error::other("another writer uses this table").into());
        }
        if self.part.is_none() {
            make_dir(&self.dir)?;
            let mut part = OpenPart::create::<R>(self.temporary_path(), &self.create)?;
            if self.retained.replaces.is_some() {
                part.write(&self.retained.rows)?;
            }
            self.part = Some(part);
        }
        if let Some(part) = &mut self.part {
            part.write(rows)?;
            self.retained.extend(rows);
        }
        self.newest_ns = self.newest_ns.max(last.time_ns());
        Ok(())
    }

    fn write_and_close(&mut self) -> std::result::Result<(), PartFailure> {
        self.write_waiting()?;
        let path = self.part_path();
        if let Some(part) = self.part.take() {
            let all_rows = part.rows();
            let replaced = self.retained.replaces;
            let rows = (all_rows - replaced.map_or(0, |part| part.rows)) as u64;
            // The rows count as lost until the part has its name.
            self.lost_rows += rows;
            let bytes = part.close(&path)?;
            self.lost_rows -= rows;
            self.closed_bytes = self.closed_bytes + bytes - replaced.map_or(0, |part| part.bytes);
            self.closed_rows += rows;
            self.closed_parts += u32::from(replaced.is_none());
            self.closed_to_ns = self.newest_ns;
            if self.retained.is_full {
                // A table that fills a part at once has no small ones.
                if replaced.is_some() {
                    self.retained = Retained::new();
                }
            } else {
                let rows = all_rows;
                self.retained.replaces = Some(ClosedPart { rows, bytes });
            }
        }
        self.oldest = None;
        Ok(())
    }

    /// Turns a failure into an error, after dropping the part it happened in.
    fn checked(&mut self, result: std::result::Result<(), PartFailure>) -> Result<()> {
        let Err(failure) = result else { return Ok(()) };
        let path = self.part_path();
        let of_closed_part = self.retained.replaces.map_or(0, |part| part.rows);
        let open = self
            .part
            .take()
            .map_or(0, |part| part.rows() - of_closed_part);
        let open = open + self.waiting.len();
        self.retained = Retained::new();
        self.lost_rows += open as u64;
        self.lost_from_ns.get_or_insert(self.closed_to_ns);
        self.waiting.clear();
        self.waiting_text_bytes = 0;
        self.oldest = None;
        Err(self.error(&path, failure))
    }

    fn error(&self, path: &Path, failure: PartFailure) -> Error {
        let (kind, why) = reason(failure.cause);
        let message = format!(
            "failed to write part `{}`: {why}; the {} rows of table `{}` written before are kept, {} \
             are lost{}",
            path.display(),
            self.closed_rows,
            R::TABLE,
            self.lost_rows,
            since(self.lost_from_ns()),
        );
        let error = Error::new(kind, message);
        match failure.cause.kind {
            io::ErrorKind::Other => error.caused_by(failure.source),
            // The message says it.
            _ => error,
        }
    }

    /// Number of the open part: that of the part that it replaces, or the next one.
    fn part_number(&self) -> u32 {
        self.closed_parts - u32::from(self.retained.replaces.is_some())
    }

    fn part_path(&self) -> PathBuf {
        self.dir.join(part_name(self.part_number()))
    }

    fn temporary_path(&self) -> PathBuf {
        self.dir
            .join(format!(".{}.tmp", part_name(self.part_number())))
    }
}

impl<R: Columns> AnyTable for TableWriter<R> {
    fn name(&self) -> &'static str {
        R::TABLE
    }

    fn close(&mut self) -> Result<()> {
        let closed = self.close_so_far();
        self.retained = Retained::new();
        closed
    }

    fn close_so_far(&mut self) -> Result<()> {
        let closed = self.write_and_close();
        self.checked(closed)
    }

    fn close_if_due(&mut self) -> Result<()> {
        match self.oldest {
            Some(oldest) if oldest.elapsed() >= PART_AGE => self.close_so_far(),
            _ => Ok(()),
        }
    }

    fn bytes(&self) -> u64 {
        self.closed_bytes + self.part.as_ref().map_or(0, OpenPart::bytes)
    }

    fn lost_rows(&self) -> u64 {
        self.lost_rows
    }

    fn lost_from_ns(&self) -> Option<u64> {
        self.lost_from_ns.filter(|_| R::TIME.is_some())
    }

    fn parts(&self) -> u32 {
        self.closed_parts
    }
}

/// File name of a part.
pub(super) fn part_name(number: u32) -> String {
    format!("part-{number:06}.parquet")
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match private::create_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The meaning of a file system's error, and the fix.
pub(super) fn reason(cause: Cause) -> (ErrorKind, String) {
    match cause.kind {
        io::ErrorKind::StorageFull => (
            ErrorKind::DiskFull,
            "no space left; free some or record to another disk".into(),
        ),
        io::ErrorKind::QuotaExceeded => (
            ErrorKind::DiskFull,
            "disk quota exceeded; free some space or record elsewhere".into(),
        ),
        io::ErrorKind::FileTooLarge => (
            ErrorKind::DiskFull,
            "the file would be larger than the shell's limit: raise it (ulimit -f)".into(),
        ),
        io::ErrorKind::PermissionDenied => (
            ErrorKind::Io,
            "permission denied; choose a directory you may write to".into(),
        ),
        io::ErrorKind::ReadOnlyFilesystem => (
            ErrorKind::Io,
            "the file system is read-only; record to another directory".into(),
        ),
        _ if cause.lacks_descriptors() => (
            ErrorKind::Io,
            "too many open files; allow more (ulimit -n)".into(),
        ),
        _ => (ErrorKind::Io, cause.in_words()),
    }
}

/// Writes a whole file under a temporary name, then gives it its own.
pub(super) fn replace_file(
    path: &Path,
    temporary: &Path,
    create: &Create,
    bytes: &[u8],
) -> io::Result<()> {
    let write = |mut out: Out| out.write_all(bytes).and_then(|()| out.flush());
    let written = create(temporary)
        .and_then(write)
        .and_then(|()| std::fs::rename(temporary, path));
    if written.is_err() {
        // Best effort: a leftover would only take space.
        let _ = std::fs::remove_file(temporary);
    }
    written
}
