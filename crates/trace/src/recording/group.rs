//! A row group while it is filled.
//!
//! Most columns of most groups have one value only: the process, the event, what was
//! not measured. The Parquet writer hashes each of them, which takes as long as all
//! the rest. Here a column is not encoded before a second value comes; one that has
//! none at the end is written as what a dictionary's encoding would be, in two pages:
//!
//! ```text
//! dictionary page   one value, plain
//! data page         [ definition levels: bytes (4), run of rows, 1 ]   if nullable
//!                   bits of an index (0), run of rows
//! ```
//!
//! A run of n equal values is the number 2n, seven bits a byte, lowest first, and the
//! value in as many bytes as its bits need (none for indices of no bits): 300 rows are
//! `d8 04`. Such a column is not compressed, which Parquet lets each column say.

use super::columns::{Column, arrays};
use super::tables::Columns;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use std::io::Write;
use std::sync::Arc;

/// A column so far.
enum Filling {
    /// Nothing or one value, in so many rows.
    Same(Option<u64>),
    /// Several values, or of a type that is always encoded.
    Encoded(Box<ArrowColumnWriter>),
}

/// Rows of one group, column by column.
pub(super) struct Group {
    columns: Vec<Filling>,
    rows: usize,
}

/// Makes groups, and encoders for columns that need one.
pub(super) struct Groups {
    schema: Arc<Schema>,
    factory: ArrowRowGroupWriterFactory,
    /// Encoders that no column has needed yet.
    spare: Vec<Option<ArrowColumnWriter>>,
    /// Which columns may be of one value: the others are needed in full.
    may_be_same: Vec<bool>,
}

impl Groups {
    pub(super) fn new<R: Columns>(
        schema: Arc<Schema>,
        factory: ArrowRowGroupWriterFactory,
    ) -> Self {
        let columns = R::COLUMNS.iter();
        Groups {
            schema,
            factory,
            spare: Vec::new(),
            // The column that is selected by has statistics, which the encoder makes.
            may_be_same: columns
                .map(|column: &Column<R>| column.is_number() && R::TIME != Some(column.name))
                .collect(),
        }
    }

    pub(super) fn begin(&self) -> Group {
        let columns = self.may_be_same.iter();
        Group {
            columns: columns.map(|_| Filling::Same(None)).collect(),
            rows: 0,
        }
    }

    fn encoder(&mut self, column: usize) -> Result<ArrowColumnWriter> {
        if let Some(spare) = self.spare.get_mut(column).and_then(Option::take) {
            return Ok(spare);
        }
        let all = self.factory.create_column_writers(0)?;
        self.spare = all.into_iter().map(Some).collect();
        let spare = self.spare.get_mut(column).and_then(Option::take);
        spare.ok_or_else(|| ParquetError::General("a table has a nested column".to_owned()))
    }
}

impl Group {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of what is encoded.
    pub(super) fn bytes(&self) -> usize {
        let of = |filling: &Filling| match filling {
            Filling::Same(_) => 0,
            Filling::Encoded(encoder) => encoder.get_estimated_total_bytes(),
        };
        self.columns.iter().map(of).sum()
    }

    /// Adds rows, an array a column.
    pub(super) fn write(&mut self, groups: &mut Groups, arrays: &[ArrayRef]) -> Result<()> {
        for (column, array) in arrays.iter().enumerate() {
            self.write_column(groups, column, array)?;
        }
        self.rows += arrays.first().map_or(0, |array| array.len());
        Ok(())
    }

    fn write_column(&mut self, groups: &mut Groups, column: usize, array: &ArrayRef) -> Result<()> {
        if let Filling::Same(before) = self.columns[column] {
            let value = one_value(array).filter(|_| groups.may_be_same[column]);
            if value.is_some() && before.is_none_or(|before| value == Some(before)) {
                self.columns[column] = Filling::Same(value);
                return Ok(());
            }
            let mut encoder = Box::new(groups.encoder(column)?);
            if let Some(before) = before {
                let same = repeated(before, self.rows, array.data_type());
                encode(&mut encoder, groups, column, &same)?;
            }
            self.columns[column] = Filling::Encoded(encoder);
        }
        match &mut self.columns[column] {
            Filling::Encoded(encoder) => encode(encoder, groups, column, array),
            Filling::Same(_) => Ok(()),
        }
    }

    /// Writes the group into its file.
    pub(super) fn close<W: Write + Send>(self, file: &mut SerializedFileWriter<W>) -> Result<()> {
        let descriptors = file.schema_descr().columns().to_vec();
        let mut group = file.next_row_group()?;
        for (filling, descriptor) in self.columns.into_iter().zip(descriptors) {
            match filling {
                Filling::Encoded(encoder) => encoder.close()?.append_to_row_group(&mut group)?,
                Filling::Same(value) => {
                    let (bytes, closed) = same(descriptor, value.unwrap_or_default(), self.rows)?;
                    group.append_column(&bytes, closed)?;
                }
            }
        }
        group.close().map(drop)
    }
}

fn encode(
    encoder: &mut ArrowColumnWriter,
    groups: &Groups,
    column: usize,
    array: &ArrayRef,
) -> Result<()> {
    let leaves = compute_leaves(groups.schema.field(column), array)?;
    leaves.iter().try_for_each(|leaf| encoder.write(leaf))
}

/// The value of all of an array's elements; `None` where there are several, or some
/// are missing.
fn one_value(array: &dyn Array) -> Option<u64> {
    fn of<T: ArrowPrimitiveType<Native: Into<u64>>>(array: &dyn Array) -> Option<u64> {
        let values = array.as_primitive::<T>().values();
        let first = *values.first()?;
        // Without a way out of the loop, which is several values at a time then.
        let others = values
            .iter()
            .fold(false, |any, &value| any | (value != first));
        (!others).then(|| first.into())
    }
    if array.null_count() > 0 {
        return None;
    }
    match array.data_type() {
        DataType::UInt8 => of::<arrays::U8>(array),
        DataType::UInt16 => of::<arrays::U16>(array),
        DataType::UInt32 => of::<arrays::U32>(array),
        DataType::UInt64 => of::<arrays::U64>(array),
        _ => None,
    }
}

/// An array of one value, which came from an array of this type.
fn repeated(value: u64, rows: usize, of: &DataType) -> ArrayRef {
    match of {
        DataType::UInt8 => Arc::new(PrimitiveArray::<arrays::U8>::from_value(value as _, rows)),
        DataType::UInt16 => Arc::new(PrimitiveArray::<arrays::U16>::from_value(value as _, rows)),
        DataType::UInt32 => Arc::new(PrimitiveArray::<arrays::U32>::from_value(value as _, rows)),
        _ => Arc::new(PrimitiveArray::<arrays::U64>::from_value(value, rows)),
    }
}

/// A column of one value, encoded, and what is to be said of it in the footer.
fn same(column: ColumnDescPtr, value: u64, rows: usize) -> Result<(Bytes, ColumnCloseResult)> {
    let mut out = TrackedWrite::new(Vec::new());
    let mut pages = SerializedPageWriter::new(&mut out);
    let dictionary = pages.write_page(dictionary_page(&column, value))?;
    let data = pages.write_page(data_page(&column, rows))?;
    let bytes = Bytes::from(out.into_inner()?);
    let metadata = ColumnChunkMetaData::builder(column)
        .set_compression(Compression::UNCOMPRESSED)
        .set_encodings(vec![
            Encoding::PLAIN,
            Encoding::RLE,
            Encoding::RLE_DICTIONARY,
        ])
        .set_total_compressed_size(bytes.len() as i64)
        .set_total_uncompressed_size(bytes.len() as i64)
        .set_num_values(rows as i64)
        .set_dictionary_page_offset(Some(dictionary.offset as i64))
        .set_data_page_offset(data.offset as i64)
        .build()?;
    let closed = ColumnCloseResult {
        bytes_written: bytes.len() as u64,
        rows_written: rows as u64,
        metadata,
        bloom_filter: None,
        column_index: None,
        offset_index: None,
    };
    Ok((bytes, closed))
}

fn dictionary_page(column: &ColumnDescPtr, value: u64) -> CompressedPage {
    let mut buf = value.to_le_bytes().to_vec();
    if column.physical_type() == Type::INT32 {
        buf.truncate(4);
    }
    let bytes = buf.len();
    let page = Page::DictionaryPage {
        buf: buf.into(),
        num_values: 1,
        encoding: Encoding::PLAIN,
        is_sorted: false,
    };
    CompressedPage::new(page, bytes)
}

fn data_page(column: &ColumnDescPtr, rows: usize) -> CompressedPage {
    let mut buf = Vec::new();
    if column.max_def_level() > 0 {
        let mut levels = Vec::new();
        run(&mut levels, rows);
        levels.push(1);
        buf.extend((levels.len() as u32).to_le_bytes());
        buf.extend(levels);
    }
    buf.push(0);
    run(&mut buf, rows);
    let bytes = buf.len();
    let page = Page::DataPage {
        buf: buf.into(),
        num_values: rows as u32,
        encoding: Encoding::RLE_DICTIONARY,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    };
    CompressedPage::new(page, bytes)
}

/// The head of a run of equal values.
fn run(out: &mut Vec<u8>, rows: usize) {
    let mut left = (rows as u64) << 1;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_its_length_doubled_seven_bits_a_byte() {
        let of = |rows| {
            let mut out = Vec::new();
            run(&mut out, rows);
            out
        };
        assert_eq!(of(300), [0xd8, 0x04]);
        assert_eq!(of(1), [2]);
        assert_eq!(of(64), [0x80, 0x01]);
    }
}
