//! Bytes of an open file: all of a file in a directory, or a member of an archive.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

/// Bytes of an open file, read by position.
#[derive(Clone, Debug)]
pub(super) struct FileRange {
    file: Arc<File>,
    start: u64,
    bytes: u64,
}

impl FileRange {
    /// All bytes of a regular file.
    pub(super) fn open(path: &Path) -> io::Result<FileRange> {
        // Check before opening: opening a named pipe would wait for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Ok(FileRange {
            file: Arc::new(file),
            start: 0,
            bytes,
        })
    }

    /// A part of these bytes. `None` if it is not within them.
    pub(super) fn part(&self, start: u64, bytes: u64) -> Option<FileRange> {
        let end = start.checked_add(bytes)?;
        (end <= self.bytes).then(|| FileRange {
            file: self.file.clone(),
            start: self.start + start,
            bytes,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills `buffer` with the bytes from `offset`.
    pub(super) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.part(offset, buffer.len() as u64) {
            Some(part) => self.file.read_exact_at(buffer, part.start),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads the bytes from `offset` in order.
    pub(super) fn reader(&self, offset: u64) -> RangeReader {
        RangeReader {
            range: self.clone(),
            offset,
        }
    }
}

/// Reads a range from a position to its end.
pub(super) struct RangeReader {
    range: FileRange,
    offset: u64,
}

impl Read for RangeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.range.bytes.saturating_sub(self.offset);
        let wanted = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let position = self.range.start + self.offset;
        let read = self.range.file.read_at(&mut buffer[..wanted], position)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Length for FileRange {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for FileRange {
    type T = BufReader<RangeReader>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(self.reader(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        if self.part(start, length as u64).is_none() {
            return Err(ParquetError::EOF("a column ends after its file".to_owned()));
        }
        let mut buffer = vec![0; length];
        self.read_exact_at(&mut buffer, start)?;
        Ok(buffer.into())
    }
}
