//! A row group while it is filled.
//!
//! Most columns of most groups have one value only: the process, the event, what was
//! not measured; others have a few. The Parquet writer hashes each of their rows. Here
//! a column is a value, then a [`Dictionary`], and only then given to that writer, with
//! the rows that it has so far.

use super::columns::{Column, Packing, arrays};
use super::dictionary::{Dictionary, same};
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

/// A column so far.
enum Filling {
    /// Nothing or one value.
    Same(Option<u64>),
    /// A few values.
    Few(Box<Dictionary>),
    /// Many values, or of a type that is always encoded.
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
    shapes: Vec<Shape>,
    zstd: Compressor<'static>,
}

/// Form that is tried for a column before it is encoded in full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Any,
    One,
    Few,
}

impl Shape {
    fn of<R: Columns>(column: &Column<R>) -> Shape {
        // The column that is selected by has statistics, which the encoder makes.
        if !column.is_number() || R::TIME == Some(column.name) {
            return Shape::Any;
        }
        match column.packing {
            Packing::Dictionary => Shape::Few,
            Packing::Delta | Packing::Plain => Shape::One,
        }
    }
}

impl Groups {
    pub(super) fn new<R: Columns>(
        schema: Arc<Schema>,
        factory: ArrowRowGroupWriterFactory,
        zstd: Compressor<'static>,
    ) -> Self {
        Groups {
            schema,
            factory,
            spare: Vec::new(),
            shapes: R::COLUMNS.iter().map(Shape::of).collect(),
            zstd,
        }
    }

    pub(super) fn begin(&self) -> Group {
        let columns = self.shapes.iter();
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
            Filling::Few(dictionary) => dictionary.bytes(),
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
        let shape = groups.shapes[column];
        let is_added = (shape != Shape::Any && self.is_same(column, array))
            || (shape == Shape::Few && self.is_few(column, array));
        if is_added {
            return Ok(());
        }
        if !matches!(self.columns[column], Filling::Encoded(_)) {
            self.begin_encoding(groups, column, array.data_type())?;
        }
        match &mut self.columns[column] {
            Filling::Encoded(encoder) => encode(encoder, groups, column, array),
            Filling::Same(_) | Filling::Few(_) => Ok(()),
        }
    }

    /// Adds rows where they leave the column with one value.
    fn is_same(&mut self, column: usize, array: &dyn Array) -> bool {
        let Filling::Same(before) = &mut self.columns[column] else {
            return false;
        };
        let value = one_value(array);
        let is_same = value.is_some() && before.is_none_or(|before| value == Some(before));
        if is_same {
            *before = value;
        }
        is_same
    }

    /// Adds rows where they leave the column with a few values.
    fn is_few(&mut self, column: usize, array: &dyn Array) -> bool {
        if let Filling::Same(before) = self.columns[column]
            && let Some(first) = before.or_else(|| first_value(array))
        {
            let dictionary = Dictionary::of(first, self.rows);
            self.columns[column] = Filling::Few(Box::new(dictionary));
        }
        match &mut self.columns[column] {
            Filling::Few(dictionary) => add(dictionary, array),
            _ => false,
        }
    }

    /// Gives the rows so far to an encoder.
    fn begin_encoding(&mut self, groups: &mut Groups, column: usize, of: &DataType) -> Result<()> {
        let mut encoder = Box::new(groups.encoder(column)?);
        let before = match &self.columns[column] {
            Filling::Same(Some(value)) => array(of, repeat_n(*value, self.rows)),
            Filling::Few(dictionary) => array(of, dictionary.rows()),
            _ => array(of, std::iter::empty()),
        };
        if !before.is_empty() {
            encode(&mut encoder, groups, column, &before)?;
        }
        self.columns[column] = Filling::Encoded(encoder);
        Ok(())
    }

    /// Writes the group into its file.
    pub(super) fn close<W: Write + Send>(
        self,
        groups: &mut Groups,
        file: &mut SerializedFileWriter<W>,
    ) -> Result<()> {
        let descriptors = file.schema_descr().columns().to_vec();
        let mut group = file.next_row_group()?;
        for (filling, descriptor) in self.columns.into_iter().zip(descriptors) {
            let (bytes, closed) = match filling {
                Filling::Encoded(encoder) => {
                    encoder.close()?.append_to_row_group(&mut group)?;
                    continue;
                }
                Filling::Same(value) => same(descriptor, value.unwrap_or_default(), self.rows)?,
                Filling::Few(dictionary) => dictionary.close(descriptor, &mut groups.zstd)?,
            };
            group.append_column(&bytes, closed)?;
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

/// An expression of the array type `$T` that holds `$of`; `$other` where that is not
/// one of unsigned numbers.
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
    by_type!(array.data_type(), T => of::<T>(array), None)
}

/// The first element; `None` where some are missing.
fn first_value(array: &dyn Array) -> Option<u64> {
    one_value(&array.slice(0, array.len().min(1))).filter(|_| array.null_count() == 0)
}

/// Adds an array's elements to a dictionary; false where it does not take them.
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

/// An array of these values, of this type.
fn array(of: &DataType, values: impl Iterator<Item = u64>) -> ArrayRef {
    by_type!(of, T => {
        Arc::new(PrimitiveArray::<T>::from_iter_values(values.map(|v| v as _)))
    }, arrow_array::new_empty_array(of))
}
