//! Columns with few distinct values, written with a Parquet dictionary.
//!
//! The Parquet writer hashes each value. That takes a seventh of the time of importing counter
//! groups, whose columns are an event number and small counts, and a fifth for a series of ticks,
//! whose intervals have thousands of distinct values. This module first tries the value that
//! followed the previous one last time, which is right whenever values alternate regularly or
//! repeat.
//!
//! ```text
//! dictionary page   the values, plain, in the order they came
//! data page         [ definition levels: bytes (4), run of rows, 1 ]   if nullable
//!                   bits of an index (1), indices
//! indices           one value: run of rows
//!                   else: number of groups of eight indices, packed
//! ```
//!
//! A run of n equal values is the number 2n as a varint (seven bits per byte, lowest first). The
//! value follows in as many bytes as its bits need, none for indices of 0 bits: 300 rows are `d8
//! 04`. Packed indices are the number 2n + 1 for n groups, followed by indices of 1, 2, 4, 8 or 16
//! bits, the first one in the lowest bits. The indices 0 1 2 0 1 2 0 1 are `03 24 49`. Parquet also
//! allows widths in between, but zstd finds repetitions only in whole bytes: with 13 bits, a series
//! of ticks is a third larger than with 16.

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk::Compressor;

/// Maximum number of distinct values. The dictionary has 256 KiB then.
const MAX_VALUES: usize = 1 << 15;
/// Initial size of the hash table. It always has at least twice as many slots as values, so most
/// values are in the first slot that is tried.
const INITIAL_SLOTS: usize = 1 << 9;

/// The distinct values of a column, and the index of each row's value.
pub(super) struct Dictionary {
    values: Vec<u64>,
    /// Index into `values` for each row.
    indices: Vec<u16>,
    /// For each value, the index of the value that followed it last time.
    successor: Vec<u16>,
    /// Hash table of index + 1; 0 is free. The size is a power of two.
    slots: Vec<u16>,
}

impl Dictionary {
    /// Creates a dictionary with `rows` rows of one value.
    pub(super) fn new(value: u64, rows: usize) -> Dictionary {
        let mut dictionary = Dictionary {
            values: Vec::new(),
            indices: vec![0; rows],
            successor: Vec::new(),
            slots: vec![0; INITIAL_SLOTS],
        };
        let first = dictionary.find(value);
        debug_assert_eq!(first, Some(0));
        dictionary
    }

    /// Size of the indices in bytes before compression.
    pub(super) fn bytes(&self) -> usize {
        self.indices.len() * width(self.values.len()) / 8
    }

    /// Returns the values of all rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = u64> {
        self.indices.iter().map(|&i| self.values[usize::from(i)])
    }

    /// Adds rows. If there are too many distinct values, adds none and returns false.
    pub(super) fn add(&mut self, rows: impl ExactSizeIterator<Item = u64>) -> bool {
        let before = self.indices.len();
        self.indices.reserve(rows.len());
        let mut last = self.indices.last().copied().unwrap_or_default();
        for value in rows {
            let guess = self.successor[usize::from(last)];
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
            self.successor[usize::from(last)] = index;
            self.indices.push(index);
            last = index;
        }
        true
    }

    /// Returns the index of a value, and adds new values. `None` if the dictionary is full.
    fn find(&mut self, value: u64) -> Option<u16> {
        let slot = self.slot(value);
        if let Some(index) = self.slots[slot].checked_sub(1) {
            return Some(index);
        }
        let index = self.values.len();
        if index == MAX_VALUES {
            return None;
        }
        self.values.push(value);
        self.successor.push(0);
        self.slots[slot] = index as u16 + 1;
        if 2 * self.values.len() > self.slots.len() {
            self.grow();
        }
        Some(index as u16)
    }

    /// Returns the slot of a value, or the free slot for it.
    fn slot(&self, value: u64) -> usize {
        let bits = self.slots.len().trailing_zeros();
        // The upper bits of a product with 2^64 / golden ratio (Knuth, volume 3, 6.4).
        let mut slot = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize;
        loop {
            match self.slots[slot] {
                0 => return slot,
                index if self.values[usize::from(index) - 1] == value => return slot,
                _ => slot = (slot + 1) % self.slots.len(),
            }
        }
    }

    fn grow(&mut self) {
        self.slots = vec![0; 4 * self.slots.len()];
        for index in 0..self.values.len() {
            let slot = self.slot(self.values[index]);
            self.slots[slot] = index as u16 + 1;
        }
    }

    /// Returns the encoded column and its description for the footer.
    pub(super) fn close(
        &self,
        column: ColumnDescPtr,
        zstd: &mut Compressor<'_>,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        let rows = self.indices.len();
        let bits = width(self.values.len());
        let mut data = levels(&column, rows);
        data.push(bits as u8);
        push_indices(&mut data, bits, &self.indices);
        let dictionary = plain(&column, &self.values);
        let pages = [(dictionary, self.values.len()), (data, rows)];
        let [dictionary, data] =
            pages.map(|(page, values)| EncodedPage::compressed(page, values, zstd));
        // The type requires a level, which is not stored in the file.
        let codec = Compression::ZSTD(ZstdLevel::default());
        write_pages(column, codec, dictionary?, data?)
    }
}

/// Returns an encoded column with a single value, and its description for the footer.
pub(super) fn constant_column(
    column: ColumnDescPtr,
    value: u64,
    rows: usize,
) -> Result<(Bytes, ColumnCloseResult)> {
    let mut data = levels(&column, rows);
    data.push(0);
    push_varint(&mut data, rows << 1);
    let dictionary = EncodedPage::plain(plain(&column, &[value]), 1);
    let data = EncodedPage::plain(data, rows);
    write_pages(column, Compression::UNCOMPRESSED, dictionary, data)
}

/// The bytes of a page as written.
struct EncodedPage {
    values: u32,
    bytes: Bytes,
    unpacked_bytes: usize,
}

impl EncodedPage {
    fn plain(page: Vec<u8>, values: usize) -> EncodedPage {
        EncodedPage {
            values: values as u32,
            unpacked_bytes: page.len(),
            bytes: page.into(),
        }
    }

    fn compressed(page: Vec<u8>, values: usize, zstd: &mut Compressor<'_>) -> Result<EncodedPage> {
        let packed = zstd.compress(&page);
        let packed = packed.map_err(|e| ParquetError::External(e.into()))?;
        Ok(EncodedPage {
            bytes: packed.into(),
            ..EncodedPage::plain(page, values)
        })
    }
}

fn write_pages(
    column: ColumnDescPtr,
    codec: Compression,
    dictionary: EncodedPage,
    data: EncodedPage,
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

/// Returns the values in Parquet's PLAIN encoding.
fn plain(column: &ColumnDescPtr, values: &[u64]) -> Vec<u8> {
    let bytes = match column.physical_type() {
        Type::INT32 => 4,
        _ => 8,
    };
    let values = values.iter().map(|value| value.to_le_bytes());
    values.flat_map(|v| v.into_iter().take(bytes)).collect()
}

/// Returns the start of a data page: for nullable columns, that no value is missing.
fn levels(column: &ColumnDescPtr, rows: usize) -> Vec<u8> {
    let mut head = Vec::new();
    if column.max_def_level() > 0 {
        let mut levels = Vec::new();
        push_varint(&mut levels, rows << 1);
        levels.push(1);
        head.extend((levels.len() as u32).to_le_bytes());
        head.extend(levels);
    }
    head
}

/// Bits per index for this number of values.
fn width(values: usize) -> usize {
    match values {
        0..=2 => 1,
        3..=4 => 2,
        5..=16 => 4,
        17..=256 => 8,
        _ => 16,
    }
}

/// Appends indices of 1, 2, 4, 8 or 16 bits, padded with 0 to a multiple of eight.
fn push_indices(out: &mut Vec<u8>, bits: usize, indices: &[u16]) {
    let groups = indices.len().div_ceil(8);
    push_varint(out, groups << 1 | 1);
    let end = out.len() + groups * bits;
    match bits {
        16 => indices
            .iter()
            .for_each(|index| out.extend_from_slice(&index.to_le_bytes())),
        8 => out.extend(indices.iter().map(|&index| index as u8)),
        _ => out.extend(indices.chunks(8 / bits).map(|few| pack_byte(bits, few))),
    }
    out.resize(end, 0);
}

fn pack_byte(bits: usize, indices: &[u16]) -> u8 {
    let from_the_last = indices.iter().rev();
    from_the_last.fold(0, |byte, &index| byte << bits | index as u8)
}

/// Appends a varint.
fn push_varint(out: &mut Vec<u8>, number: usize) {
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
    fn run_length_is_doubled_and_written_as_varint() {
        let of = |rows: usize| {
            let mut out = Vec::new();
            push_varint(&mut out, rows << 1);
            out
        };
        assert_eq!(of(300), [0xd8, 0x04]);
        assert_eq!(of(1), [2]);
        assert_eq!(of(64), [0x80, 0x01]);
    }

    #[test]
    fn indices_are_packed_from_the_lowest_bit_in_groups_of_eight() {
        let of = |bits, indices: &[u16]| {
            let mut out = Vec::new();
            push_indices(&mut out, bits, indices);
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
    fn rows_are_restored_and_a_rejected_batch_adds_nothing() {
        let mut dictionary = Dictionary::new(7, 3);
        let (others, apart) = (MAX_VALUES as u64 - 1, u64::MAX / MAX_VALUES as u64);
        let cycle: Vec<u64> = (0..3 * others).map(|i| i % others * apart).collect();
        let expected: Vec<u64> = [7, 7, 7].into_iter().chain(cycle.clone()).collect();
        assert!(dictionary.add(cycle.into_iter()));
        assert!(!dictionary.add([7, 0, 1].into_iter()));
        assert!(dictionary.rows().eq(expected.iter().copied()));
        // A rejected batch leaves the dictionary usable.
        assert!(dictionary.add([0, 7].into_iter()));
        assert_eq!(dictionary.rows().count(), expected.len() + 2);
    }
}
