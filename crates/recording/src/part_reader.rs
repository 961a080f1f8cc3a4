//! Reads one part after its checksums have been verified.
//!
//! Verification has two steps, so that opening a long recording is cheap: the footer is checked
//! when the recording is opened, and the data when rows are read, in one pass over pieces of
//! [`PIECE_BYTES`] before anything is decoded.

use super::columns::Column;
use super::file_range::FileRange;
use super::sink::{CHECKSUM_DIGITS, CRC_DIGITS, checksum_position};
use super::storage::FileLocation;
use super::table_writer::PART_ROWS;
use super::tables::Columns;
use crate::error::system_message;
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt16Type, UInt64Type};
use arrow_array::{
    Array, ArrowPrimitiveType, BooleanArray, PrimitiveArray, RecordBatch, RecordBatchOptions,
    new_null_array,
};
use arrow_schema::{Field, Schema};
use arrow_select::filter::filter_record_batch;
use crc32fast::Hasher;
use memgauge_trace::EventId;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::file::statistics::Statistics;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Maximum number of rows in a batch.
pub(super) const BATCH_ROWS: usize = 65_536;

/// Maximum size of a footer. A full part of samples has 7 kB.
const MAX_FOOTER_BYTES: u64 = 64 << 20;

/// Size of the length and magic at the end of a Parquet file.
const TAIL_BYTES: u64 = 8;
const MAGIC: &[u8; 4] = b"PAR1";

const PIECE_BYTES: usize = 256 << 10;

/// Description of the damage of a part.
pub(super) type Damage = String;

/// A part with an intact footer.
pub(super) struct Part {
    file: FileRange,
    metadata: Arc<ParquetMetaData>,
    data_bytes: u64,
    data_crc: u32,
}

impl Part {
    /// Opens the file and verifies its footer.
    pub(super) fn open(location: &FileLocation) -> Result<Part, Damage> {
        let file = location.open().map_err(|e| unreadable(&e))?;
        let (footer, data_bytes) = read_footer(&file)?;
        let data_crc = check_footer(&footer)?;
        let thrift = &footer[..footer.len() - TAIL_BYTES as usize];
        let metadata = catch_decoder_panic(|| ParquetMetaDataReader::decode_metadata(thrift))?;
        check_extent(&metadata, data_bytes)?;
        Ok(Part {
            file,
            metadata: Arc::new(metadata),
            data_bytes,
            data_crc,
        })
    }

    /// Returns the range of times of its rows, for tables with times.
    pub(super) fn times_ns<R: Columns>(&self) -> Option<Range<u64>> {
        let groups = self.metadata.row_groups().iter().map(group_times_ns::<R>);
        groups.reduce(union).flatten()
    }

    /// Verifies the checksum of the data.
    pub(super) fn check_data(&self) -> Result<(), Damage> {
        let mut crc = Hasher::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        while at < self.data_bytes {
            let left = usize::try_from(self.data_bytes - at).unwrap_or(usize::MAX);
            let wanted = piece.len().min(left);
            self.file
                .read_exact_at(&mut piece[..wanted], at)
                .map_err(|e| e.to_string())?;
            crc.update(&piece[..wanted]);
            at += wanted as u64;
        }
        if crc.finalize() != self.data_crc {
            return Err("damaged (its data do not match their checksum)".into());
        }
        Ok(())
    }

    /// Returns the selected rows in batches.
    pub(super) fn batches<R: Columns>(
        self,
        columns: &[&'static Column<R>],
        filter: RowFilter,
    ) -> Result<PartBatches<R>, Damage> {
        let mut wanted = columns.to_vec();
        let filtered = [
            filter.time_ns.as_ref().and(R::TIME),
            filter.event.map(|_| EVENT),
        ];
        for name in filtered.into_iter().flatten() {
            if !wanted.iter().any(|column| column.name == name) {
                wanted.extend(R::COLUMNS.iter().find(|column| column.name == name));
            }
        }
        let reader = catch_decoder_panic(|| self.reader::<R>(&wanted, filter.time_ns.as_ref()))?;
        Ok(PartBatches {
            reader,
            columns: columns.to_vec(),
            filter,
        })
    }

    fn reader<R: Columns>(
        self,
        wanted: &[&'static Column<R>],
        time_ns: Option<&Range<u64>>,
    ) -> Result<ParquetRecordBatchReader, Damage> {
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = ArrowReaderMetadata::try_new(self.metadata.clone(), options)
            .map_err(|e| e.to_string())?;
        let mask = projection(&metadata, wanted)?;
        let groups = self.metadata.row_groups().iter().enumerate();
        let groups = groups.filter(|(_, group)| may_overlap::<R>(group, time_ns));
        let groups = groups.map(|(index, _)| index).collect();
        ParquetRecordBatchReaderBuilder::new_with_metadata(self.file, metadata)
            .with_batch_size(BATCH_ROWS)
            .with_projection(mask)
            .with_row_groups(groups)
            .build()
            .map_err(|e| e.to_string())
    }
}

/// Column of events, in tables that have one.
const EVENT: &str = "event";

/// Rows to read.
#[derive(Clone, Debug, Default)]
pub(super) struct RowFilter {
    pub(super) time_ns: Option<Range<u64>>,
    pub(super) event: Option<EventId>,
}

impl RowFilter {
    /// Removes the other rows of a batch.
    fn apply<R: Columns>(&self, batch: RecordBatch) -> Result<RecordBatch, Damage> {
        let mut batch = batch;
        if let Some((range, name)) = self.time_ns.as_ref().zip(R::TIME) {
            let times = numbers::<UInt64Type>(&batch, name)?.values();
            let is_wanted = times.iter().map(|time| Some(range.contains(time)));
            batch = only(&batch, is_wanted.collect())?;
        }
        if let Some(event) = self.event {
            let events = numbers::<UInt16Type>(&batch, EVENT)?.values();
            let is_wanted = events.iter().map(|id| Some(*id == event.0));
            batch = only(&batch, is_wanted.collect())?;
        }
        Ok(batch)
    }
}

fn only(batch: &RecordBatch, rows: BooleanArray) -> Result<RecordBatch, Damage> {
    filter_record_batch(batch, &rows).map_err(|e| e.to_string())
}

fn numbers<'a, T: ArrowPrimitiveType>(
    batch: &'a RecordBatch,
    name: &str,
) -> Result<&'a PrimitiveArray<T>, Damage> {
    let array = batch.column_by_name(name);
    let array = array.and_then(|array| array.as_primitive_opt::<T>());
    array.ok_or_else(|| wrong_type(name))
}

fn wrong_type(column: &str) -> Damage {
    format!("column `{column}` has another type than the format says")
}

/// Iterates over the rows of one part in batches.
pub(super) struct PartBatches<R: 'static> {
    reader: ParquetRecordBatchReader,
    columns: Vec<&'static Column<R>>,
    filter: RowFilter,
}

impl<R: Columns> PartBatches<R> {
    /// Returns the next batch, or `None` at the end. It may lack columns that are null, and have
    /// those that were filtered by.
    pub(super) fn next_batch(&mut self) -> Option<Result<RecordBatch, Damage>> {
        let reader = AssertUnwindSafe(&mut self.reader);
        let next = catch_decoder_panic(|| { reader }.0.next().transpose());
        match next {
            Ok(batch) => batch.map(|batch| self.filter.apply::<R>(batch)),
            Err(damage) => Some(Err(damage)),
        }
    }

    /// The rows of a batch.
    pub(super) fn rows(&self, batch: &RecordBatch) -> Result<Vec<R>, Damage> {
        let mut rows = vec![R::default(); batch.num_rows()];
        for column in &self.columns {
            fill(column, batch, &mut rows)?;
        }
        Ok(rows)
    }

    /// A batch with exactly the selected columns. `schema` is that of the columns.
    pub(super) fn selected(
        &self,
        batch: &RecordBatch,
        schema: &Arc<Schema>,
    ) -> Result<RecordBatch, Damage> {
        let column = |field: &Arc<Field>| match batch.column_by_name(field.name()) {
            Some(array) if array.data_type() == field.data_type() => Ok(array.clone()),
            Some(_) => Err(wrong_type(field.name())),
            None => Ok(new_null_array(field.data_type(), batch.num_rows())),
        };
        let columns = schema.fields().iter().map(column);
        let columns = columns.collect::<Result<Vec<_>, Damage>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options)
            .map_err(|e| e.to_string())
    }
}

fn fill<R>(column: &Column<R>, batch: &RecordBatch, rows: &mut [R]) -> Result<(), Damage> {
    let Some(array) = batch.column_by_name(column.name) else {
        return Ok(());
    };
    if column.decode(array, rows) {
        return Ok(());
    }
    Err(wrong_type(column.name))
}

fn projection<R>(
    metadata: &ArrowReaderMetadata,
    wanted: &[&'static Column<R>],
) -> Result<ProjectionMask, Damage> {
    let mut roots = Vec::new();
    for column in wanted {
        match metadata.schema().index_of(column.name) {
            Ok(root) => roots.push(root),
            Err(_) if column.nullable => {}
            Err(_) => return Err(format!("it has no column `{}`", column.name)),
        }
    }
    Ok(ProjectionMask::roots(metadata.parquet_schema(), roots))
}

fn may_overlap<R: Columns>(group: &RowGroupMetaData, time_ns: Option<&Range<u64>>) -> bool {
    match (time_ns, group_times_ns::<R>(group)) {
        (Some(wanted), Some(actual)) => overlap(wanted, &actual),
        _ => true,
    }
}

/// Returns whether two ranges overlap.
pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Returns the range of times of a row group, from its statistics.
fn group_times_ns<R: Columns>(group: &RowGroupMetaData) -> Option<Range<u64>> {
    let time = R::TIME?;
    let column = group
        .columns()
        .iter()
        .find(|c| c.column_path().string() == time)?;
    let Some(Statistics::Int64(statistics)) = column.statistics() else {
        return None;
    };
    let (first, last) = (*statistics.min_opt()? as u64, *statistics.max_opt()? as u64);
    // The range of a row at the last representable nanosecond has no end.
    (first <= last).then_some(first..last.checked_add(1)?)
}

fn union(a: Option<Range<u64>>, b: Option<Range<u64>>) -> Option<Range<u64>> {
    let (a, b) = (a?, b?);
    Some(a.start.min(b.start)..a.end.max(b.end))
}

fn unreadable(error: &std::io::Error) -> String {
    format!("cannot be read ({})", system_message(error))
}

/// Returns the footer, including its length and magic, and the size of the data before it.
fn read_footer(file: &FileRange) -> Result<(Vec<u8>, u64), Damage> {
    let io = |e: std::io::Error| unreadable(&e);
    let bytes = file.bytes();
    let truncated = || "truncated (no Parquet footer at its end)".to_owned();
    let tail_at = bytes.checked_sub(TAIL_BYTES).ok_or_else(truncated)?;
    let mut tail = [0; TAIL_BYTES as usize];
    file.read_exact_at(&mut tail, tail_at).map_err(io)?;
    let [a, b, c, d, magic @ ..] = tail;
    let thrift_bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
    if magic != *MAGIC {
        return Err(truncated());
    }
    if thrift_bytes > tail_at || thrift_bytes > MAX_FOOTER_BYTES {
        return Err("damaged (its footer is longer than the file allows)".into());
    }
    let data_bytes = tail_at - thrift_bytes;
    let mut footer = vec![0; (thrift_bytes + TAIL_BYTES) as usize];
    file.read_exact_at(&mut footer, data_bytes).map_err(io)?;
    Ok((footer, data_bytes))
}

/// Verifies the footer's checksum and returns the checksum of the data.
fn check_footer(footer: &[u8]) -> Result<u32, Damage> {
    let at = checksum_position(footer)
        .ok_or("not as memgauge wrote it (its footer holds no memgauge.checksum)")?;
    let own = at + CRC_DIGITS..at + CHECKSUM_DIGITS;
    let damaged = "damaged (its footer does not match its checksum)";
    let expected = digits(&footer[own.clone()]).ok_or(damaged)?;
    let mut blank = footer.to_vec();
    blank[own].fill(b'0');
    if crc32fast::hash(&blank) != expected {
        return Err(damaged.into());
    }
    digits(&footer[at..at + CRC_DIGITS]).ok_or_else(|| damaged.into())
}

/// Checks that the numbers of rows and bytes in the footer are possible for a part.
fn check_extent(metadata: &ParquetMetaData, data_bytes: u64) -> Result<(), Damage> {
    let mut rows = 0u64;
    for group in metadata.row_groups() {
        // A negative number becomes a number that is too large.
        rows = rows.saturating_add(group.num_rows() as u64);
        if !group
            .columns()
            .iter()
            .all(|column| lies_within(column, data_bytes))
        {
            return Err("damaged (a column lies outside the file)".into());
        }
    }
    if rows > PART_ROWS as u64 {
        return Err(format!(
            "damaged (it claims {rows} rows, a part has at most {PART_ROWS})"
        ));
    }
    Ok(())
}

fn lies_within(column: &ColumnChunkMetaData, data_bytes: u64) -> bool {
    let start = column
        .dictionary_page_offset()
        .unwrap_or(column.data_page_offset());
    let end = (start as u64).checked_add(column.compressed_size() as u64);
    start >= 0 && column.compressed_size() >= 0 && end.is_some_and(|end| end <= data_bytes)
}

/// Parses exactly what the writer writes: lower-case digits without a sign.
fn digits(bytes: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(bytes).ok()?;
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    plain.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

/// Runs the Parquet decoder and converts panics to damage.
///
/// The checksums protect it from accidental damage; this protects from parts that were forged with
/// matching checksums. The panic message still goes to standard error, because a library must not
/// change the panic hook of its process.
pub(super) fn catch_decoder_panic<T, E: ToString>(
    decode: impl FnOnce() -> Result<T, E>,
) -> Result<T, Damage> {
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("damaged (its content makes no sense)".into()),
    }
}
