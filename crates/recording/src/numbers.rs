//! Reads one integer column of any Parquet file.
//!
//! For address lists that other programs store in tables. Negative numbers are returned as their
//! 64-bit pattern. Missing numbers are `None`, to be counted by the caller.

use std::fs::File;
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::part_reader::catch_decoder_panic;
use crate::error::{Error, ErrorKind, Result};

/// Number of rows per batch.
const BATCH_ROWS: usize = 1 << 16;
/// Magic number at the start of a Parquet file.
const MAGIC: &[u8] = b"PAR1";

/// Iterates over the values of a column in batches.
pub struct Numbers {
    path: String,
    reader: ParquetRecordBatchReader,
}

impl Numbers {
    /// Returns whether these are the first bytes of a Parquet file.
    pub fn are_in(start: &[u8]) -> bool {
        start.starts_with(MAGIC)
    }

    /// Opens a file for a column of 32- or 64-bit integers.
    ///
    /// # Errors
    /// The file cannot be read, is not a Parquet file, or has no such column.
    pub fn open(path: &Path, column: &str) -> Result<Numbers> {
        let failed = |why: String| {
            let message = format!(
                "failed to read column `{column}` of `{}`: {why}",
                path.display()
            );
            Error::new(ErrorKind::Corrupt, message)
        };
        let file = File::open(path).map_err(|e| failed(e.to_string()))?;
        let reader = catch_decoder_panic(|| reader(file, column));
        let reader = reader.map_err(failed)?;
        Ok(Numbers {
            path: path.display().to_string(),
            reader,
        })
    }
}

impl Iterator for Numbers {
    type Item = Result<Vec<Option<u64>>>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = catch_decoder_panic(|| self.reader.next().transpose()).transpose()?;
        let failed = |why| {
            let message = format!("failed to read `{}`: {why}", self.path);
            Error::new(ErrorKind::Corrupt, message)
        };
        Some(batch.map(|b| numbers(&b)).map_err(failed))
    }
}

fn reader(file: File, column: &str) -> std::result::Result<ParquetRecordBatchReader, String> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| e.to_string())?;
    let fields = builder.schema().fields();
    let Some((at, field)) = fields.find(column) else {
        let names: Vec<&str> = fields.iter().map(|f| f.name().as_str()).collect();
        return Err(format!("it has the columns {}", names.join(", ")));
    };
    use DataType::{Int32, Int64, UInt32, UInt64};
    if !matches!(field.data_type(), Int32 | Int64 | UInt32 | UInt64) {
        return Err(format!("it holds {}, not whole numbers", field.data_type()));
    }
    let mask = ProjectionMask::roots(builder.parquet_schema(), [at]);
    let builder = builder.with_projection(mask).with_batch_size(BATCH_ROWS);
    builder.build().map_err(|e| e.to_string())
}

fn numbers(batch: &RecordBatch) -> Vec<Option<u64>> {
    let column = batch.column(0);
    match column.data_type() {
        DataType::UInt64 => column.as_primitive::<UInt64Type>().iter().collect(),
        DataType::UInt32 => {
            let values = column.as_primitive::<UInt32Type>().iter();
            values.map(|v| v.map(u64::from)).collect()
        }
        DataType::Int32 => {
            let values = column.as_primitive::<Int32Type>().iter();
            values
                .map(|v| v.map(|v| i64::from(v).cast_unsigned()))
                .collect()
        }
        _ => {
            let values = column.as_primitive::<Int64Type>().iter();
            values.map(|v| v.map(i64::cast_unsigned)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, StringArray, UInt64Array};
    use parquet::arrow::ArrowWriter;
    use parquet::basic::Compression;
    use parquet::file::properties::WriterProperties;

    use super::*;

    fn table(folder: &Path) -> std::path::PathBuf {
        compressed_table(folder, Compression::UNCOMPRESSED)
    }

    fn compressed_table(folder: &Path, compression: Compression) -> std::path::PathBuf {
        let path = folder.join("table.parquet");
        let addresses = UInt64Array::from(vec![Some(64), None, Some(u64::MAX)]);
        let signed = Int64Array::from(vec![7, -1, i64::MAX]);
        let names = StringArray::from(vec!["a", "b", "c"]);
        let columns = [
            ("addr", Arc::new(addresses) as ArrayRef),
            ("signed", Arc::new(signed)),
            ("name", Arc::new(names)),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true)));
        let batch = batch.unwrap();
        let file = File::create(&path).unwrap();
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .build();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        path
    }

    #[test]
    fn numbers_of_other_tables_are_read_with_gaps_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = table(folder.path());
        let read = |column| -> Vec<_> {
            let batches = Numbers::open(&path, column).unwrap();
            batches.flat_map(|batch| batch.unwrap()).collect()
        };
        assert_eq!(read("addr"), [Some(64), None, Some(u64::MAX)]);
        assert_eq!(
            read("signed"),
            [Some(7), Some(u64::MAX), Some(i64::MAX as u64)]
        );
    }

    #[test]
    fn tables_are_read_however_they_are_compressed() {
        let folder = tempfile::tempdir().unwrap();
        for compression in [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(Default::default()),
            Compression::BROTLI(Default::default()),
            Compression::LZ4,
            Compression::LZ4_RAW,
            Compression::ZSTD(Default::default()),
        ] {
            let path = compressed_table(folder.path(), compression);
            let batches = Numbers::open(&path, "addr").unwrap();
            let read: Vec<_> = batches.flat_map(|batch| batch.unwrap()).collect();
            assert_eq!(read, [Some(64), None, Some(u64::MAX)], "{compression}");
        }
    }

    #[test]
    fn missing_or_non_numeric_column_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = table(folder.path());
        let error = |column| Numbers::open(&path, column).err().unwrap().to_string();
        assert!(
            error("address").contains("addr, signed, name"),
            "{}",
            error("address")
        );
        assert!(
            error("name").contains("not whole numbers"),
            "{}",
            error("name")
        );
        std::fs::write(&path, b"PAR1 but no table PAR1").unwrap();
        assert!(error("addr").contains("failed to read column `addr`"));
    }
}
