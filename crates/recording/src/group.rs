//! A row group being filled.
//!
//! Most columns of most groups have only one value, for example the process, the event, or anything
//! not measured. Others have a few values. The Parquet writer would hash each of their rows. Here a
//! column starts as a single value, becomes a [`Dictionary`] when a second value appears, and is
//! passed to the Parquet writer, with all its rows so far, only if that is full.

use super::columns::{Column, Packing, arrays};
use super::dictionary::{Dictionary, constant_column};
use super::tables::Columns;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow_schema::{DataType, Schema};
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::errors::{ParquetError, Result};
use parquet::file::writer::SerializedFileWriter;
use std::io::Write;
use std::iter::repeat_n;
use std::sync::Arc;
use zstd::bulk::Compressor;

/// State of a column.
enum ColumnState {
    /// No value or one value.
    Same(Option<u64>),
    /// Few values.
    Few(Box<Dictionary>),
    /// Many values, or a type that is always encoded directly.
    Encoded(Box<ArrowColumnWriter>),
}

/// The rows of one group, by column.
pub(super) struct RowGroup {
    columns: Vec<ColumnState>,
    rows: usize,
}

/// Creates groups, and encoders for columns that need one.
pub(super) struct RowGroups {
    schema: Arc<Schema>,
    factory: ArrowRowGroupWriterFactory,
    /// Encoders not used by any column yet.
    spare: Vec<Option<ArrowColumnWriter>>,
    shapes: Vec<Shape>,
    zstd: Compressor<'static>,
}

/// The most compact form to try for a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Encoded,
    Constant,
    Few,
}

impl Shape {
    fn for_column<R: Columns>(column: &Column<R>) -> Shape {
        // The time column needs statistics, which only the encoder writes.
        if !column.is_number() || R::TIME == Some(column.name) {
            return Shape::Encoded;
        }
        match column.packing {
            Packing::Dictionary => Shape::Few,
            Packing::Delta | Packing::Plain => Shape::Constant,
        }
    }
}

impl RowGroups {
    pub(super) fn new<R: Columns>(
        schema: Arc<Schema>,
        factory: ArrowRowGroupWriterFactory,
        zstd: Compressor<'static>,
    ) -> Self {
        RowGroups {
            schema,
            factory,
            spare: Vec::new(),
            shapes: R::COLUMNS.iter().map(Shape::for_column).collect(),
            zstd,
        }
    }

    pub(super) fn begin(&self) -> RowGroup {
        let columns = self.shapes.iter();
        RowGroup {
            columns: columns.map(|_| ColumnState::Same(None)).collect(),
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

impl RowGroup {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Size of the encoded columns in bytes.
    pub(super) fn bytes(&self) -> usize {
        let of = |state: &ColumnState| match state {
            ColumnState::Same(_) => 0,
            ColumnState::Few(dictionary) => dictionary.bytes(),
            ColumnState::Encoded(encoder) => encoder.get_estimated_total_bytes(),
        };
        self.columns.iter().map(of).sum()
    }

    /// Adds rows, given as one array per column.
    pub(super) fn write(&mut self, groups: &mut RowGroups, arrays: &[ArrayRef]) -> Result<()> {
        for (column, array) in arrays.iter().enumerate() {
            self.write_column(groups, column, array)?;
        }
        self.rows += arrays.first().map_or(0, |array| array.len());
        Ok(())
    }

    fn write_column(
        &mut self,
        groups: &mut RowGroups,
        column: usize,
        array: &ArrayRef,
    ) -> Result<()> {
        let shape = groups.shapes[column];
        let is_added = (shape != Shape::Encoded && self.try_add_constant(column, array))
            || (shape == Shape::Few && self.try_add_few(column, array));
        if is_added {
            return Ok(());
        }
        if !matches!(self.columns[column], ColumnState::Encoded(_)) {
            self.begin_encoding(groups, column, array.data_type())?;
        }
        match &mut self.columns[column] {
            ColumnState::Encoded(encoder) => encode(encoder, groups, column, array),
            ColumnState::Same(_) | ColumnState::Few(_) => Ok(()),
        }
    }

    /// Adds rows if the column still has a single value. Returns whether they were added.
    fn try_add_constant(&mut self, column: usize, array: &dyn Array) -> bool {
        let ColumnState::Same(before) = &mut self.columns[column] else {
            return false;
        };
        let value = one_value(array);
        let is_same = value.is_some() && before.is_none_or(|before| value == Some(before));
        if is_same {
            *before = value;
        }
        is_same
    }

    /// Adds rows if the column still has few values. Returns whether they were added.
    fn try_add_few(&mut self, column: usize, array: &dyn Array) -> bool {
        if let ColumnState::Same(before) = self.columns[column]
            && let Some(first) = before.or_else(|| first_value(array))
        {
            let dictionary = Dictionary::new(first, self.rows);
            self.columns[column] = ColumnState::Few(Box::new(dictionary));
        }
        match &mut self.columns[column] {
            ColumnState::Few(dictionary) => add(dictionary, array),
            _ => false,
        }
    }

    /// Passes the rows so far to an encoder.
    fn begin_encoding(
        &mut self,
        groups: &mut RowGroups,
        column: usize,
        of: &DataType,
    ) -> Result<()> {
        let mut encoder = Box::new(groups.encoder(column)?);
        let before = match &self.columns[column] {
            ColumnState::Same(Some(value)) => array(of, repeat_n(*value, self.rows)),
            ColumnState::Few(dictionary) => array(of, dictionary.rows()),
            _ => array(of, std::iter::empty()),
        };
        if !before.is_empty() {
            encode(&mut encoder, groups, column, &before)?;
        }
        self.columns[column] = ColumnState::Encoded(encoder);
        Ok(())
    }

    /// Writes the group to its file.
    pub(super) fn close<W: Write + Send>(
        self,
        groups: &mut RowGroups,
        file: &mut SerializedFileWriter<W>,
    ) -> Result<()> {
        let descriptors = file.schema_descr().columns().to_vec();
        let mut group = file.next_row_group()?;
        for (state, descriptor) in self.columns.into_iter().zip(descriptors) {
            let (bytes, closed) = match state {
                ColumnState::Encoded(encoder) => {
                    encoder.close()?.append_to_row_group(&mut group)?;
                    continue;
                }
                ColumnState::Same(value) => {
                    constant_column(descriptor, value.unwrap_or_default(), self.rows)?
                }
                ColumnState::Few(dictionary) => dictionary.close(descriptor, &mut groups.zstd)?,
            };
            group.append_column(&bytes, closed)?;
        }
        group.close().map(drop)
    }
}

fn encode(
    encoder: &mut ArrowColumnWriter,
    groups: &RowGroups,
    column: usize,
    array: &ArrayRef,
) -> Result<()> {
    let leaves = compute_leaves(groups.schema.field(column), array)?;
    leaves.iter().try_for_each(|leaf| encoder.write(leaf))
}

/// Evaluates `$made` with `$T` as the array type for `$of`, or `$other` if the type is not an
/// unsigned integer.
macro_rules! by_type {
    ($of:expr, $T:ident => $made:expr, $other:expr) => {
        match $of {
            DataType::UInt8 => by_type!(@ $T, U8, $made),
            DataType::UInt16 => by_type!(@ $T, U16, $made),
            DataType::UInt32 => by_type!(@ $T, U32, $made),
            DataType::UInt64 => by_type!(@ $T, U64, $made),
            _ => $other,
        }
    };
    (@ $T:ident, $width:ident, $made:expr) => {{
        type $T = arrays::$width;
        $made
    }};
}

/// Returns the value that all elements have. `None` if they differ or some are missing.
fn one_value(array: &dyn Array) -> Option<u64> {
    fn of<T: ArrowPrimitiveType<Native: Into<u64>>>(array: &dyn Array) -> Option<u64> {
        let values = array.as_primitive::<T>().values();
        let first = *values.first()?;
        // Without an early exit, the loop is vectorised.
        let others = values
            .iter()
            .fold(false, |any, &value| any | (value != first));
        (!others).then(|| first.into())
    }
    if array.null_count() > 0 {
        return None;
    }
    by_type!(array.data_type(), T => of::<T>(array), None)
}

/// Returns the first element. `None` if some are missing.
fn first_value(array: &dyn Array) -> Option<u64> {
    one_value(&array.slice(0, array.len().min(1))).filter(|_| array.null_count() == 0)
}

/// Adds an array's elements to a dictionary. Returns whether they were added.
fn add(dictionary: &mut Dictionary, array: &dyn Array) -> bool {
    fn of<T: ArrowPrimitiveType<Native: Into<u64>>>(
        dictionary: &mut Dictionary,
        array: &dyn Array,
    ) -> bool {
        let values = array.as_primitive::<T>().values().iter();
        dictionary.add(values.map(|&value| value.into()))
    }
    if array.null_count() > 0 {
        return false;
    }
    by_type!(array.data_type(), T => of::<T>(dictionary, array), false)
}

/// Creates an array with these values.
fn array(of: &DataType, values: impl Iterator<Item = u64>) -> ArrayRef {
    by_type!(of, T => {
        Arc::new(PrimitiveArray::<T>::from_iter_values(values.map(|v| v as _)))
    }, arrow_array::new_empty_array(of))
}
