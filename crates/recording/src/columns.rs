//! Maps the fields of a row type to columns and back.
//!
//! A column is a name, a Parquet type and two functions (get, set), so the definition of a table is
//! a readable list. Rejected: derive macros, which would be a crate of their own. Rejected: rows
//! that are Arrow arrays, because every source and analysis would depend on Arrow.

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, PrimitiveArray, StringArray,
};
use arrow_schema::{DataType, Field, Schema};
use std::sync::Arc;

/// Type of a numeric column.
#[derive(Clone, Copy)]
pub enum NumberType {
    Bool,
    U8,
    U16,
    U32,
    U64,
}

/// Arrow's types for the widths, under the same names.
pub(super) mod arrays {
    pub(crate) use arrow_array::types::{
        BooleanType as Bool, UInt8Type as U8, UInt16Type as U16, UInt32Type as U32,
        UInt64Type as U64,
    };
}

/// Parquet encoding of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Differences of consecutive values, bit-packed.
    Delta,
    /// Few distinct values. If there are many after all, as `Delta`.
    Dictionary,
    /// Unencoded, compressed by zstd only.
    Plain,
}

/// How to read and write one field of a row.
pub enum FieldAccess<R> {
    Number {
        width: NumberType,
        /// Converts all rows with one call, to avoid an indirect call per value.
        get: fn(&[R]) -> ArrayRef,
        set: fn(&mut R, u64),
    },
    Text {
        get: fn(&R) -> &str,
        set: fn(&mut R, &str),
    },
    Bytes {
        get: fn(&R) -> &[u8],
        set: fn(&mut R, &[u8]),
    },
}

/// One column of a table.
pub struct Column<R> {
    pub name: &'static str,
    pub nullable: bool,
    pub packing: Packing,
    pub access: FieldAccess<R>,
}

impl<R> Column<R> {
    pub const fn number(
        name: &'static str,
        width: NumberType,
        packing: Packing,
        get: fn(&[R]) -> ArrayRef,
        set: fn(&mut R, u64),
    ) -> Self {
        let access = FieldAccess::Number { width, get, set };
        Column {
            name,
            nullable: false,
            packing,
            access,
        }
    }

    pub const fn text(name: &'static str, get: fn(&R) -> &str, set: fn(&mut R, &str)) -> Self {
        let access = FieldAccess::Text { get, set };
        Column {
            name,
            nullable: false,
            packing: Packing::Dictionary,
            access,
        }
    }

    pub const fn bytes(name: &'static str, get: fn(&R) -> &[u8], set: fn(&mut R, &[u8])) -> Self {
        let access = FieldAccess::Bytes { get, set };
        Column {
            name,
            nullable: false,
            packing: Packing::Plain,
            access,
        }
    }

    pub const fn optional(mut self) -> Self {
        self.nullable = true;
        self
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self.access, FieldAccess::Number { .. })
    }

    fn data_type(&self) -> DataType {
        match self.access {
            FieldAccess::Text { .. } => DataType::Utf8,
            FieldAccess::Bytes { .. } => DataType::Binary,
            FieldAccess::Number { width, .. } => match width {
                NumberType::Bool => DataType::Boolean,
                NumberType::U8 => DataType::UInt8,
                NumberType::U16 => DataType::UInt16,
                NumberType::U32 => DataType::UInt32,
                NumberType::U64 => DataType::UInt64,
            },
        }
    }

    fn encode(&self, rows: &[R]) -> ArrayRef {
        match self.access {
            FieldAccess::Text { get, .. } if self.nullable => {
                let texts = rows
                    .iter()
                    .map(|row| Some(get(row)).filter(|text| !text.is_empty()));
                Arc::new(texts.collect::<StringArray>())
            }
            FieldAccess::Text { get, .. } => {
                Arc::new(StringArray::from_iter_values(rows.iter().map(get)))
            }
            FieldAccess::Bytes { get, .. } => {
                Arc::new(BinaryArray::from_iter_values(rows.iter().map(get)))
            }
            FieldAccess::Number { get, .. } => get(rows),
        }
    }

    /// Fills this column's field of `rows`. Returns false if the array's type or length differs
    /// from the format.
    pub fn decode(&self, array: &dyn Array, rows: &mut [R]) -> bool {
        if array.len() != rows.len() {
            return false;
        }
        let done = match self.access {
            FieldAccess::Text { set, .. } => fill_text(array, rows, set),
            FieldAccess::Bytes { set, .. } => fill_bytes(array, rows, set),
            FieldAccess::Number { width, set, .. } => match width {
                NumberType::Bool => fill_bool(array, rows, set),
                NumberType::U8 => fill::<R, UInt8Type>(array, rows, set),
                NumberType::U16 => fill::<R, UInt16Type>(array, rows, set),
                NumberType::U32 => fill::<R, UInt32Type>(array, rows, set),
                NumberType::U64 => fill::<R, UInt64Type>(array, rows, set),
            },
        };
        done.is_some()
    }
}

/// Converts values of a width to an array. Monomorphised for each column with its field access.
pub(super) trait ToArray {
    fn array<R>(rows: &[R], get: impl Fn(&R) -> Option<u64>) -> ArrayRef;
}

macro_rules! to_array {
    ($($width:ident)+) => {
        $( impl ToArray for arrays::$width {
            #[inline]
            fn array<R>(rows: &[R], get: impl Fn(&R) -> Option<u64>) -> ArrayRef {
                numbers::<R, arrays::$width>(rows, |row| get(row).map(|v| v as _))
            }
        } )+
    };
}

to_array!(U8 U16 U32 U64);

#[inline]
fn numbers<R, T: ArrowPrimitiveType>(
    rows: &[R],
    get: impl Fn(&R) -> Option<T::Native>,
) -> ArrayRef {
    let missing = rows.iter().filter(|row| get(row).is_none()).count();
    if missing == 0 {
        let values = rows.iter().map(|row| get(row).unwrap_or_default());
        return Arc::new(PrimitiveArray::<T>::from_iter_values(values));
    }
    if missing == rows.len() {
        return Arc::new(PrimitiveArray::<T>::new_null(missing));
    }
    Arc::new(rows.iter().map(get).collect::<PrimitiveArray<T>>())
}

impl ToArray for arrays::Bool {
    fn array<R>(rows: &[R], get: impl Fn(&R) -> Option<u64>) -> ArrayRef {
        let values = rows.iter().map(|row| get(row).map(|v| v != 0));
        Arc::new(values.collect::<BooleanArray>())
    }
}

fn fill<R, T: ArrowPrimitiveType>(
    array: &dyn Array,
    rows: &mut [R],
    set: fn(&mut R, u64),
) -> Option<()>
where
    T::Native: Into<u64>,
{
    let array = array.as_primitive_opt::<T>()?;
    if array.null_count() == 0 {
        rows.iter_mut()
            .zip(array.values())
            .for_each(|(row, &value)| set(row, value.into()));
        return Some(());
    }
    for (row, value) in rows.iter_mut().zip(array.iter()) {
        if let Some(value) = value {
            set(row, value.into());
        }
    }
    Some(())
}

fn fill_bool<R>(array: &dyn Array, rows: &mut [R], set: fn(&mut R, u64)) -> Option<()> {
    for (row, value) in rows.iter_mut().zip(array.as_boolean_opt()?.iter()) {
        set(row, value.unwrap_or_default().into());
    }
    Some(())
}

fn fill_text<R>(array: &dyn Array, rows: &mut [R], set: fn(&mut R, &str)) -> Option<()> {
    for (row, value) in rows.iter_mut().zip(array.as_string_opt::<i32>()?.iter()) {
        set(row, value.unwrap_or_default());
    }
    Some(())
}

fn fill_bytes<R>(array: &dyn Array, rows: &mut [R], set: fn(&mut R, &[u8])) -> Option<()> {
    for (row, value) in rows.iter_mut().zip(array.as_binary_opt::<i32>()?.iter()) {
        set(row, value.unwrap_or_default());
    }
    Some(())
}

/// Returns Arrow's schema of columns.
pub(super) fn schema<'a, R: 'a>(columns: impl IntoIterator<Item = &'a Column<R>>) -> Arc<Schema> {
    let field = |c: &Column<R>| Field::new(c.name, c.data_type(), c.nullable);
    Arc::new(Schema::new(
        columns.into_iter().map(field).collect::<Vec<_>>(),
    ))
}

/// Converts rows to columns.
pub(super) fn encode<R>(columns: &[Column<R>], rows: &[R]) -> Vec<ArrayRef> {
    columns.iter().map(|c| c.encode(rows)).collect()
}
