//! One part while it is written: a temporary file that gets its name when it
//! is complete.

use super::columns::{Column, Packing, encode, schema};
use super::group::{Group, Groups};
use super::sink::{CHECKSUM_KEY, Create, PartSink, UNKNOWN_CHECKSUM};
use super::tables::Columns;
use crate::error::Cause;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;
use std::io;
use std::path::{Path, PathBuf};
use zstd::bulk::Compressor;

/// Rows after which a row group is closed.
const GROUP_ROWS: usize = 128 * 1024;

/// Encoded bytes after which a row group is closed, whatever its rows: what
/// one table may hold in memory.
const GROUP_BYTES: usize = 2 << 20;

/// Bytes of a column's distinct values after which its dictionary is given up.
const DICTIONARY_BYTES: usize = 256 << 10;

/// Level 3 made parts no smaller than level 1 and took 11 MiB more memory
/// with all tables full (`bench/src/bin/size_per_million.rs`, zstd 1.5).
const ZSTD_LEVEL: i32 = 1;

/// Why a part could not be written.
pub(super) struct PartFailure {
    pub(super) cause: Cause,
    pub(super) source: Box<dyn std::error::Error + Send + Sync>,
}

impl PartFailure {
    fn new(source: ParquetError, seen: Option<Cause>) -> Self {
        PartFailure {
            cause: seen.unwrap_or(Cause::OTHER),
            source: source.into(),
        }
    }
}

impl From<io::Error> for PartFailure {
    fn from(source: io::Error) -> Self {
        PartFailure {
            cause: (&source).into(),
            source: source.into(),
        }
    }
}

/// A part not yet complete. Dropping it removes the file.
pub(super) struct OpenPart {
    file: SerializedFileWriter<PartSink>,
    groups: Groups,
    group: Group,
    temporary: PathBuf,
    rows: usize,
    kept: bool,
}

impl OpenPart {
    pub(super) fn create<R: Columns>(
        temporary: PathBuf,
        create: &Create,
    ) -> Result<Self, PartFailure> {
        let schema = schema(R::COLUMNS);
        let options = ArrowWriterOptions::new()
            .with_properties(properties::<R>())
            .with_skip_arrow_metadata(true);
        let sink = PartSink::new(create(&temporary)?);
        let (file, factory) = ArrowWriter::try_new_with_options(sink, schema.clone(), options)
            .and_then(ArrowWriter::into_serialized_writer)
            .map_err(|e| PartFailure::new(e, None))?;
        let groups = Groups::new::<R>(schema, factory, Compressor::new(ZSTD_LEVEL)?);
        Ok(OpenPart {
            file,
            group: groups.begin(),
            groups,
            temporary,
            rows: 0,
            kept: false,
        })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of the row groups closed so far.
    pub(super) fn bytes(&self) -> u64 {
        self.file.bytes_written() as u64
    }

    pub(super) fn write<R: Columns>(&mut self, rows: &[R]) -> Result<(), PartFailure> {
        let arrays = encode(R::COLUMNS, rows);
        let written = self.group.write(&mut self.groups, &arrays);
        self.seen(written)?;
        self.rows += rows.len();
        if self.group.rows() >= GROUP_ROWS || self.group.bytes() >= GROUP_BYTES {
            self.close_group()?;
        }
        Ok(())
    }

    fn close_group(&mut self) -> Result<(), PartFailure> {
        if self.group.rows() == 0 {
            return Ok(());
        }
        let group = std::mem::replace(&mut self.group, self.groups.begin());
        let closed = group.close(&mut self.groups, &mut self.file);
        self.seen(closed)
    }

    /// Completes the file and gives it its name; its size in bytes.
    pub(super) fn close(mut self, path: &Path) -> Result<u64, PartFailure> {
        self.complete()?;
        std::fs::rename(&self.temporary, path)?;
        self.kept = true;
        Ok(self.bytes())
    }

    fn complete(&mut self) -> Result<(), PartFailure> {
        self.close_group()?;
        self.file.flush()?;
        self.file.inner_mut().begin_footer();
        self.file.append_key_value_metadata(KeyValue::new(
            CHECKSUM_KEY.to_owned(),
            UNKNOWN_CHECKSUM.to_owned(),
        ));
        let finished = self.file.finish().map(drop);
        self.seen(finished)?;
        self.file.flush()?;
        Ok(self.file.inner_mut().seal()?)
    }

    fn seen(&self, result: Result<(), ParquetError>) -> Result<(), PartFailure> {
        result.map_err(|e| PartFailure::new(e, self.file.inner().failure()))
    }
}

impl Drop for OpenPart {
    fn drop(&mut self) {
        if !self.kept {
            // Best effort: a reader passes over temporary names anyway.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

fn properties<R: Columns>() -> WriterProperties {
    let level = ZstdLevel::try_new(ZSTD_LEVEL).expect("SANITY: zstd has levels 1 to 22");
    let base = WriterProperties::builder()
        .set_created_by(concat!("memgauge ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_max_row_group_row_count(None);
    R::COLUMNS
        .iter()
        .fold(base, |properties, column| {
            packed(properties, column, R::TIME)
        })
        .build()
}

fn packed<R>(
    properties: WriterPropertiesBuilder,
    column: &Column<R>,
    time: Option<&str>,
) -> WriterPropertiesBuilder {
    let path = || ColumnPath::from(column.name);
    let properties = match column.fallback() {
        Some(encoding) => properties.set_column_encoding(path(), encoding),
        None => properties,
    };
    let dictionary = column.packing == Packing::Dictionary;
    let properties = properties.set_column_dictionary_enabled(path(), dictionary);
    if time == Some(column.name) {
        return properties.set_column_statistics_enabled(path(), EnabledStatistics::Chunk);
    }
    properties
}

impl<R> Column<R> {
    /// Encoding of values that a dictionary does not hold.
    ///
    /// Byte-stream split makes samples 2 to 4 % smaller and overflows 27 %
    /// larger, and fewer readers know it for integers.
    fn fallback(&self) -> Option<Encoding> {
        let numeric = self.is_number();
        (numeric && self.packing != Packing::Plain).then_some(Encoding::DELTA_BINARY_PACKED)
    }
}
