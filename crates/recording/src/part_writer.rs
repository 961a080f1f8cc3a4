//! One part being written: a temporary file that is renamed when it is complete.

use super::columns::{Column, Packing, encode, schema};
use super::group::{RowGroup, RowGroups};
use super::sink::{CHECKSUM_KEY, Create, PartSink, UNKNOWN_CHECKSUM};
use super::tables::Columns;
use crate::error::IoCause;
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

/// Number of rows after which a row group is closed.
const GROUP_ROWS: usize = 128 * 1024;

/// Encoded size after which a row group is closed, whatever its number of rows. It limits the
/// memory per table.
const GROUP_BYTES: usize = 2 << 20;

/// Size of a column's distinct values above which its dictionary is dropped.
const DICTIONARY_BYTES: usize = 256 << 10;

/// Level 3 gave parts of the same size as level 1 and used 11 MiB more memory with all tables full
/// (`bench/src/bin/size_per_million.rs`, zstd 1.5).
const ZSTD_LEVEL: i32 = 1;

/// Error of writing a part.
pub(super) struct PartFailure {
    pub(super) cause: IoCause,
    pub(super) source: Box<dyn std::error::Error + Send + Sync>,
}

impl PartFailure {
    fn new(source: ParquetError, sink_failure: Option<IoCause>) -> Self {
        PartFailure {
            cause: sink_failure.unwrap_or(IoCause::OTHER),
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

/// An incomplete part. Dropping it removes the file.
pub(super) struct OpenPart {
    file: SerializedFileWriter<PartSink>,
    groups: RowGroups,
    group: RowGroup,
    temporary: PathBuf,
    rows: usize,
    is_complete: bool,
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
        let groups = RowGroups::new::<R>(schema, factory, Compressor::new(ZSTD_LEVEL)?);
        Ok(OpenPart {
            file,
            group: groups.begin(),
            groups,
            temporary,
            rows: 0,
            is_complete: false,
        })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Size of the closed row groups in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.file.bytes_written() as u64
    }

    pub(super) fn write<R: Columns>(&mut self, rows: &[R]) -> Result<(), PartFailure> {
        let arrays = encode(R::COLUMNS, rows);
        let written = self.group.write(&mut self.groups, &arrays);
        self.check(written)?;
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
        self.check(closed)
    }

    /// Completes the file, renames it, and returns its size in bytes.
    pub(super) fn close(mut self, path: &Path) -> Result<u64, PartFailure> {
        self.complete()?;
        std::fs::rename(&self.temporary, path)?;
        self.is_complete = true;
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
        self.check(finished)?;
        self.file.flush()?;
        Ok(self.file.inner_mut().seal()?)
    }

    fn check(&self, result: Result<(), ParquetError>) -> Result<(), PartFailure> {
        result.map_err(|e| PartFailure::new(e, self.file.inner().failure()))
    }
}

impl Drop for OpenPart {
    fn drop(&mut self) {
        if !self.is_complete {
            // Best effort: readers ignore temporary names.
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
            with_column(properties, column, R::TIME)
        })
        .build()
}

fn with_column<R>(
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
    /// Encoding of values that are not in a dictionary.
    ///
    /// Byte-stream split makes samples 2 to 4 % smaller but overflows 27 % larger, and fewer
    /// readers support it for integers.
    fn fallback(&self) -> Option<Encoding> {
        let numeric = self.is_number();
        (numeric && self.packing != Packing::Plain).then_some(Encoding::DELTA_BINARY_PACKED)
    }
}
