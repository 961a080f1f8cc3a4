//! Columns of few distinct values, as Parquet writes them with a dictionary.
//!
//! The Parquet writer hashes each value. That takes a seventh of the time of an import
//! of groups, whose columns are an event's number and small counts. It takes a fifth of
//! that of a series of ticks, whose intervals are thousands of numbers. Here what
//! followed a value the last time is tried first, and is right wherever values come in
//! turn or repeat.
//!
//! ```text
//! dictionary page   the values, plain, in the order they came
//! data page         [ definition levels: bytes (4), run of rows, 1 ]   if nullable
//!                   bits of an index (1), indices
//! indices           one value: run of rows
//!                   else: number of groups of eight indices, packed
//! ```
//!
//! A run of n equal values is the number 2n, seven bits a byte, lowest first. The value
//! follows in as many bytes as its bits need (none for indices of no bits): 300 rows
//! are `d8 04`. Packed indices are the number 2n + 1 of their n groups, then indices of
//! 1, 2, 4, 8 or 16 bits, the first in the lowest. The indices 0 1 2 0 1 2 0 1 are `03
//! 24 49`. Parquet would take the widths between too, but zstd finds repetitions only
//! in whole bytes. With indices of 13 bits a series of ticks is a third larger than
//! with 16.

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk::Compressor;

/// Distinct values that are still few: the dictionary is 256 KiB then.
const MOST: usize = 1 << 15;
/// Places of the table by value, at first. There are always twice as many as values, so
/// that most are where they are looked for first.
const PLACES: usize = 1 << 9;

/// A column's values and which of them each row has.
pub(super) struct Dictionary {
    values: Vec<u64>,
    /// A row's index into `values`.
    indices: Vec<u16>,
    /// The index that came after each, the last time.
    after: Vec<u16>,
    /// Index + 1 by value; 0 is free. A power of two of them.
    places: Vec<u16>,
}

impl Dictionary {
    /// The dictionary of so many rows of one value.
    pub(super) fn of(value: u64, rows: usize) -> Dictionary {
        let mut dictionary = Dictionary {
            values: Vec::new(),
            indices: vec![0; rows],
            after: Vec::new(),
            places: vec![0; PLACES],
        };
        let first = dictionary.find(value);
        debug_assert_eq!(first, Some(0));
        dictionary
    }

    /// Bytes of its indices before they are compressed.
    pub(super) fn bytes(&self) -> usize {
        self.indices.len() * width(self.values.len()) / 8
    }

    /// The values of all rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = u64> {
        self.indices.iter().map(|&i| self.values[usize::from(i)])
    }

    /// Adds rows; adds none, and is false, where there are too many distinct values.
    pub(super) fn add(&mut self, rows: impl ExactSizeIterator<Item = u64>) -> bool {
        let before = self.indices.len();
        self.indices.reserve(rows.len());
        let mut last = self.indices.last().copied().unwrap_or_default();
        for value in rows {
            let guess = self.after[usize::from(last)];
            let index = match self.values[usize::from(guess)] == value {
                true => guess,
                false => match self.find(value) {
                    Some(index) => index,
                    None => {
                        self.indices.truncate(before);
                        return false;
                    }
                },
            };
            self.after[usize::from(last)] = index;
            self.indices.push(index);
            last = index;
        }
        true
    }

    /// The index of a value, a new one if it is new; `None` where there is no room.
    fn find(&mut self, value: u64) -> Option<u16> {
        let place = self.place(value);
        if let Some(index) = self.places[place].checked_sub(1) {
            return Some(index);
        }
        let index = self.values.len();
        if index == MOST {
            return None;
        }
        self.values.push(value);
        self.after.push(0);
        self.places[place] = index as u16 + 1;
        if 2 * self.values.len() > self.places.len() {
            self.grow();
        }
        Some(index as u16)
    }

    /// Where a value is, or would be.
    fn place(&self, value: u64) -> usize {
        let bits = self.places.len().trailing_zeros();
        // The top bits of a product with 2^64 / golden ratio (Knuth, volume 3, 6.4).
        let mut place = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize;
        loop {
            match self.places[place] {
                0 => return place,
                index if self.values[usize::from(index) - 1] == value => return place,
                _ => place = (place + 1) % self.places.len(),
            }
        }
    }

    fn grow(&mut self) {
        self.places = vec![0; 4 * self.places.len()];
        for index in 0..self.values.len() {
            let place = self.place(self.values[index]);
            self.places[place] = index as u16 + 1;
        }
    }

    /// Encoded, and what is to be said of it in the footer.
    pub(super) fn close(
        &self,
        column: ColumnDescPtr,
        zstd: &mut Compressor<'_>,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        let rows = self.indices.len();
        let bits = width(self.values.len());
        let mut data = levels(&column, rows);
        data.push(bits as u8);
        packed(&mut data, bits, &self.indices);
        let dictionary = plain(&column, &self.values);
        let pages = [(dictionary, self.values.len()), (data, rows)];
        let [dictionary, data] =
            pages.map(|(page, values)| Encoded::compressed(page, values, zstd));
        // The level, which the type wants, is nowhere in a file.
        let codec = Compression::ZSTD(ZstdLevel::default());
        written(column, codec, dictionary?, data?)
    }
}

/// A column of one value, encoded, and what is to be said of it in the footer.
pub(super) fn same(
    column: ColumnDescPtr,
    value: u64,
    rows: usize,
) -> Result<(Bytes, ColumnCloseResult)> {
    let mut data = levels(&column, rows);
    data.push(0);
    number(&mut data, rows << 1);
    let dictionary = Encoded::plain(plain(&column, &[value]), 1);
    let data = Encoded::plain(data, rows);
    written(column, Compression::UNCOMPRESSED, dictionary, data)
}

/// A page's bytes as they are written.
struct Encoded {
    values: u32,
    bytes: Bytes,
    unpacked_bytes: usize,
}

impl Encoded {
    fn plain(page: Vec<u8>, values: usize) -> Encoded {
        Encoded {
            values: values as u32,
            unpacked_bytes: page.len(),
            bytes: page.into(),
        }
    }

    fn compressed(page: Vec<u8>, values: usize, zstd: &mut Compressor<'_>) -> Result<Encoded> {
        let packed = zstd.compress(&page);
        let packed = packed.map_err(|e| ParquetError::External(e.into()))?;
        Ok(Encoded {
            bytes: packed.into(),
            ..Encoded::plain(page, values)
        })
    }
}

fn written(
    column: ColumnDescPtr,
    codec: Compression,
    dictionary: Encoded,
    data: Encoded,
) -> Result<(Bytes, ColumnCloseResult)> {
    let dictionary_page = Page::DictionaryPage {
        buf: dictionary.bytes,
        num_values: dictionary.values,
        encoding: Encoding::PLAIN,
        is_sorted: false,
    };
    let data_page = Page::DataPage {
        buf: data.bytes,
        num_values: data.values,
        encoding: Encoding::RLE_DICTIONARY,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    };
    let mut out = TrackedWrite::new(Vec::new());
    let mut pages = SerializedPageWriter::new(&mut out);
    let first = CompressedPage::new(dictionary_page, dictionary.unpacked_bytes);
    let first = pages.write_page(first)?;
    let second = CompressedPage::new(data_page, data.unpacked_bytes);
    let second = pages.write_page(second)?;
    let bytes = Bytes::from(out.into_inner()?);
    let unpacked_bytes = first.uncompressed_size + second.uncompressed_size;
    let metadata = ColumnChunkMetaData::builder(column)
        .set_compression(codec)
        .set_encodings(vec![
            Encoding::PLAIN,
            Encoding::RLE,
            Encoding::RLE_DICTIONARY,
        ])
        .set_total_compressed_size(bytes.len() as i64)
        .set_total_uncompressed_size(unpacked_bytes as i64)
        .set_num_values(data.values.into())
        .set_dictionary_page_offset(Some(first.offset as i64))
        .set_data_page_offset(second.offset as i64)
        .build()?;
    let closed = ColumnCloseResult {
        bytes_written: bytes.len() as u64,
        rows_written: data.values.into(),
        metadata,
        bloom_filter: None,
        column_index: None,
        offset_index: None,
    };
    Ok((bytes, closed))
}

/// Values one after the other, as wide as the column's are.
fn plain(column: &ColumnDescPtr, values: &[u64]) -> Vec<u8> {
    let bytes = match column.physical_type() {
        Type::INT32 => 4,
        _ => 8,
    };
    let values = values.iter().map(|value| value.to_le_bytes());
    values.flat_map(|v| v.into_iter().take(bytes)).collect()
}

/// The head of a data page: that no value is missing, where some might be.
fn levels(column: &ColumnDescPtr, rows: usize) -> Vec<u8> {
    let mut head = Vec::new();
    if column.max_def_level() > 0 {
        let mut levels = Vec::new();
        number(&mut levels, rows << 1);
        levels.push(1);
        head.extend((levels.len() as u32).to_le_bytes());
        head.extend(levels);
    }
    head
}

/// Bits of an index into so many values.
fn width(values: usize) -> usize {
    match values {
        0..=2 => 1,
        3..=4 => 2,
        5..=16 => 4,
        17..=256 => 8,
        _ => 16,
    }
}

/// Indices of so many bits (1, 2, 4, 8 or 16), with 0 for those that the last eight lack.
fn packed(out: &mut Vec<u8>, bits: usize, indices: &[u16]) {
    let groups = indices.len().div_ceil(8);
    number(out, groups << 1 | 1);
    let end = out.len() + groups * bits;
    match bits {
        16 => indices
            .iter()
            .for_each(|index| out.extend_from_slice(&index.to_le_bytes())),
        8 => out.extend(indices.iter().map(|&index| index as u8)),
        _ => out.extend(indices.chunks(8 / bits).map(|few| in_a_byte(bits, few))),
    }
    out.resize(end, 0);
}

fn in_a_byte(bits: usize, indices: &[u16]) -> u8 {
    let from_the_last = indices.iter().rev();
    from_the_last.fold(0, |byte, &index| byte << bits | index as u8)
}

/// A number, seven bits a byte.
fn number(out: &mut Vec<u8>, number: usize) {
    let mut left = number;
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
        let of = |rows: usize| {
            let mut out = Vec::new();
            number(&mut out, rows << 1);
            out
        };
        assert_eq!(of(300), [0xd8, 0x04]);
        assert_eq!(of(1), [2]);
        assert_eq!(of(64), [0x80, 0x01]);
    }

    #[test]
    fn indices_are_packed_from_the_lowest_bit_to_whole_groups_of_eight() {
        let of = |bits, indices: &[u16]| {
            let mut out = Vec::new();
            packed(&mut out, bits, indices);
            out
        };
        assert_eq!(of(2, &[0, 1, 2, 0, 1, 2, 0, 1]), [3, 0x24, 0x49]);
        assert_eq!(of(1, &[1, 1, 0, 1]), [3, 0b1011]);
        assert_eq!(of(4, &[15, 1, 7]), [3, 0x1f, 0x07, 0, 0]);
        assert_eq!(
            of(8, &[200, 1, 2, 3, 4, 5, 6, 7, 9]),
            [5, 200, 1, 2, 3, 4, 5, 6, 7, 9, 0, 0, 0, 0, 0, 0, 0]
        );
        let mut words = vec![3, 0x34, 0x12, 1];
        words.resize(1 + 16, 0);
        assert_eq!(of(16, &[0x1234, 1]), words);
    }

    #[test]
    fn rows_come_back_and_a_value_too_many_adds_none_of_its_rows() {
        let mut dictionary = Dictionary::of(7, 3);
        let (others, apart) = (MOST as u64 - 1, u64::MAX / MOST as u64);
        let cycle: Vec<u64> = (0..3 * others).map(|i| i % others * apart).collect();
        let expected: Vec<u64> = [7, 7, 7].into_iter().chain(cycle.clone()).collect();
        assert!(dictionary.add(cycle.into_iter()));
        assert!(!dictionary.add([7, 0, 1].into_iter()));
        assert!(dictionary.rows().eq(expected.iter().copied()));
        // As before: what fits still does.
        assert!(dictionary.add([0, 7].into_iter()));
        assert_eq!(dictionary.rows().count(), expected.len() + 2);
    }
}
