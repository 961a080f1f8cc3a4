//! One table being written: collects rows into parts.
//!
//! A part is closed every two seconds, so that a killed recorder loses little. While a table has
//! few rows, each closed part replaces the previous one and contains its rows as well, so a short
//! run has one part per table.
//!
//! Memory per table: the rows waiting for the encoder (at most 4096, or 1 MiB of text), the rows of
//! a small part, and one encoded row group of about 2 MiB with its dictionaries.

use super::file_names::part_name;
use super::part_writer::{OpenPart, PartFailure};
use super::sink::{Create, OutputFile};
use super::tables::Columns;
use crate::error::IoCause;
use crate::{Error, ErrorKind, Result, private};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of rows passed to the encoder at once.
const CHUNK_ROWS: usize = 4 * 1024;

/// Size of the waiting rows' text at which they are passed to the encoder.
const CHUNK_TEXT_BYTES: usize = 1 << 20;

/// Number of rows after which a part is closed.
pub(super) const PART_ROWS: usize = 1_000_000;

/// Age of a part's oldest row at which it is closed.
const PART_AGE: Duration = Duration::from_secs(2);

/// Maximum number of rows of the last part that are kept in memory, so that the next part can
/// replace it.
///
/// Otherwise a program of ten seconds would have five parts per table, most of them with a few
/// rows. Larger parts are final. 16 384 samples need 1.8 MiB.
const RETAINED_ROWS: usize = 16 * 1024;

/// Maximum size of the text of these rows.
const RETAINED_TEXT_BYTES: usize = 1 << 20;

/// Describes the time from which rows are lost, as the end of a message.
pub(super) fn lost_from(lost_from_ns: Option<u64>) -> String {
    lost_from_ns.map_or(String::new(), |ns| {
        format!(" from {:.2} s on", ns as f64 / 1e9)
    })
}

/// Operations on a table that do not depend on the row type.
pub(super) trait AnyTable {
    fn name(&self) -> &'static str;
    /// Closes the open part, which is final.
    fn close(&mut self) -> Result<()>;
    /// Closes the open part. It may be replaced by a part with its rows and further ones.
    fn close_so_far(&mut self) -> Result<()>;
    fn close_if_due(&mut self) -> Result<()>;
    fn bytes(&self) -> u64;
    fn lost_rows(&self) -> u64;
    /// Time of the last row before the first lost one, for rows with times.
    fn lost_from_ns(&self) -> Option<u64>;
    fn parts(&self) -> u32;
}

/// The rows of the newest part if there are few: all of them, or none.
struct Retained<R> {
    rows: Vec<R>,
    text_bytes: usize,
    /// The closed part whose rows are in `rows`, if there is one.
    replaces: Option<ClosedPart>,
    /// Whether there were too many rows.
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

    /// Adds rows of the open part.
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

/// Writes one table.
pub struct TableWriter<R> {
    dir: PathBuf,
    create: Create,
    pending: Vec<R>,
    pending_text_bytes: usize,
    part: Option<OpenPart>,
    /// Rows of the part that the next closed one replaces.
    retained: Retained<R>,
    oldest: Option<Instant>,
    closed_parts: u32,
    closed_rows: u64,
    closed_bytes: u64,
    lost_rows: u64,
    /// Time of the newest row, of the newest row in a closed part, and of the latter when the first
    /// rows were lost.
    newest_ns: u64,
    closed_to_ns: u64,
    lost_from_ns: Option<u64>,
    /// Whether another writer has taken over the table.
    is_taken: bool,
}

impl<R: Columns> TableWriter<R> {
    pub(super) fn new(recording: &Path, create: &Create) -> Self {
        TableWriter::empty(recording.join(R::TABLE), create.clone())
    }

    fn empty(dir: PathBuf, create: Create) -> Self {
        TableWriter {
            dir,
            create,
            pending: Vec::new(),
            pending_text_bytes: 0,
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
            is_taken: false,
        }
    }

    /// Takes the writer out and leaves one that refuses rows.
    pub(super) fn take(&mut self) -> Self {
        let mut placeholder = TableWriter::empty(self.dir.clone(), self.create.clone());
        placeholder.is_taken = true;
        std::mem::replace(self, placeholder)
    }

    /// Puts a taken writer back. Rows refused meanwhile remain counted as lost.
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
        self.pending_text_bytes += row.text_bytes();
        self.pending.push(row);
        if self.pending.len() >= CHUNK_ROWS.min(self.room())
            || self.pending_text_bytes >= CHUNK_TEXT_BYTES
        {
            return self.encode();
        }
        Ok(())
    }

    /// Writes rows without collecting them first. Stops at the first error.
    pub(super) fn append(&mut self, rows: &[R]) -> Result<()> {
        for chunk in rows.chunks(CHUNK_ROWS) {
            let fits = self.pending.len() + chunk.len() < self.room();
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
        let written = self.write_pending().and_then(|()| self.write(chunk));
        if written.is_err() {
            self.lost_rows += chunk.len() as u64;
        }
        self.check(written)?;
        self.close_if_due()
    }

    /// Passes the waiting rows to the encoder, and closes the part if it is full or old.
    fn encode(&mut self) -> Result<()> {
        if self.pending.len() >= self.room() {
            return self.close_so_far();
        }
        let written = self.write_pending();
        self.check(written)?;
        self.close_if_due()
    }

    /// Number of rows that the open part still accepts, at least the number of waiting rows.
    #[inline]
    fn room(&self) -> usize {
        PART_ROWS - self.part.as_ref().map_or(0, OpenPart::rows)
    }

    fn write_pending(&mut self) -> std::result::Result<(), PartFailure> {
        let pending = std::mem::take(&mut self.pending);
        let written = self.write(&pending);
        self.pending = pending;
        written?;
        self.pending.clear();
        self.pending_text_bytes = 0;
        Ok(())
    }

    fn write(&mut self, rows: &[R]) -> std::result::Result<(), PartFailure> {
        let Some(last) = rows.last() else {
            return Ok(());
        };
        if self.is_taken {
            return Err(io::Error::other("another writer uses this table").into());
        }
        if self.part.is_none() {
            create_dir(&self.dir)?;
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
        self.write_pending()?;
        let path = self.part_path();
        if let Some(part) = self.part.take() {
            let all_rows = part.rows();
            let replaced = self.retained.replaces;
            let rows = (all_rows - replaced.map_or(0, |part| part.rows)) as u64;
            // The rows count as lost until the part has its final name.
            self.lost_rows += rows;
            let bytes = part.close(&path)?;
            self.lost_rows -= rows;
            self.closed_bytes = self.closed_bytes + bytes - replaced.map_or(0, |part| part.bytes);
            self.closed_rows += rows;
            self.closed_parts += u32::from(replaced.is_none());
            self.closed_to_ns = self.newest_ns;
            if self.retained.is_full {
                // After a table fills a part at once, do not merge further parts.
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

    /// Converts a failure to an error and drops the part.
    fn check(&mut self, result: std::result::Result<(), PartFailure>) -> Result<()> {
        let Err(failure) = result else { return Ok(()) };
        let path = self.part_path();
        let of_closed_part = self.retained.replaces.map_or(0, |part| part.rows);
        let open = self
            .part
            .take()
            .map_or(0, |part| part.rows() - of_closed_part);
        let open = open + self.pending.len();
        self.retained = Retained::new();
        self.lost_rows += open as u64;
        self.lost_from_ns.get_or_insert(self.closed_to_ns);
        self.pending.clear();
        self.pending_text_bytes = 0;
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
            lost_from(self.lost_from_ns()),
        );
        let error = Error::new(kind, message);
        match failure.cause.kind {
            io::ErrorKind::Other => error.caused_by(failure.source),
            // The message contains the cause.
            _ => error,
        }
    }

    /// Number of the open part: that of the part it replaces, or the next one.
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
        self.check(closed)
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

fn create_dir(dir: &Path) -> io::Result<()> {
    match private::create_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Returns the kind of a file system's error, and a message with the remedy.
pub(super) fn reason(cause: IoCause) -> (ErrorKind, String) {
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
        _ => (ErrorKind::Io, cause.system_message()),
    }
}

/// Writes a whole file under a temporary name and renames it.
pub(super) fn replace_file(
    path: &Path,
    temporary: &Path,
    create: &Create,
    bytes: &[u8],
) -> io::Result<()> {
    let write = |mut out: OutputFile| out.write_all(bytes).and_then(|()| out.flush());
    let written = create(temporary)
        .and_then(write)
        .and_then(|()| std::fs::rename(temporary, path));
    if written.is_err() {
        // Best effort: a leftover only takes up space.
        let _ = std::fs::remove_file(temporary);
    }
    written
}
