//! Rows of tables, each in a line of its own.
//!
//! Keys of traces contain stray quotes. A reader of RFC 4180 treats everything from such a quote to
//! the next one as a cell. It loses these rows and keeps them in memory. Here a quoted cell ends
//! within its line, and quotes of a line with an odd number of them belong to the cells.

use std::io::{self, BufRead, Read as _};

use csv::{ByteRecord, ReaderBuilder};

/// Maximum length of a line. The rest of a longer one is dropped.
const MAX_LINE_BYTES: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Rows of a table with any delimiter. Blank lines and lines that begin with `#` are left out.
pub(crate) struct TableRows<R> {
    input: R,
    delimiter: u8,
    line: Vec<u8>,
    number: u64,
    row: ByteRecord,
}

impl<R: BufRead> TableRows<R> {
    pub(crate) fn new(input: R, delimiter: u8) -> TableRows<R> {
        TableRows {
            input,
            delimiter,
            line: Vec::new(),
            number: 0,
            row: ByteRecord::new(),
        }
    }

    /// Returns the next row with the number of its line, or `None` at the end.
    ///
    /// # Errors
    /// The input cannot be read.
    pub(crate) fn next_row(&mut self) -> io::Result<Option<(u64, &ByteRecord)>> {
        loop {
            self.line.clear();
            let mut start = self.input.by_ref().take(MAX_LINE_BYTES as u64);
            if start.read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            if self.line.len() == MAX_LINE_BYTES && self.line.last() != Some(&b'\n') {
                self.input.skip_until(b'\n')?;
            }
            self.number += 1;
            let line = &self.line[..];
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = match self.number {
                1 => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line),
                _ => line,
            };
            if line.starts_with(b"#") || line.trim_ascii().is_empty() {
                continue;
            }
            self.row.clear();
            if line.contains(&b'"') {
                let quotes = line.iter().filter(|&&byte| byte == b'"').count();
                let mut reader = ReaderBuilder::new()
                    .has_headers(false)
                    .delimiter(self.delimiter)
                    .quoting(quotes % 2 == 0)
                    .buffer_capacity(line.len())
                    .from_reader(line);
                let read = reader.read_byte_record(&mut self.row);
                read.map_err(io::Error::from)?;
            } else {
                let delimiter = self.delimiter;
                let cells = line.split(|&byte| byte == delimiter);
                cells.for_each(|cell| self.row.push_field(cell));
            }
            return Ok(Some((self.number, &self.row)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &[u8], delimiter: u8) -> Vec<(u64, Vec<String>)> {
        let mut rows = TableRows::new(text, delimiter);
        let mut found = Vec::new();
        while let Some((line, row)) = rows.next_row().unwrap() {
            let cells = row.iter().map(|cell| String::from_utf8_lossy(cell).into());
            found.push((line, cells.collect()));
        }
        found
    }

    #[test]
    fn stray_quote_stays_in_its_line() {
        let found = rows(b"1,\"a\n2,b\"\n3,\"c,d\"\n4,\"e\"\"f\",g\n5,\"h", b',');
        let expected: [(u64, &[&str]); 5] = [
            (1, &["1", "\"a"]),
            (2, &["2", "b\""]),
            (3, &["3", "c,d"]),
            (4, &["4", "e\"f", "g"]),
            (5, &["5", "\"h"]),
        ];
        assert_eq!(found.len(), expected.len());
        for ((line, cells), (expected_line, expected_cells)) in found.iter().zip(expected) {
            assert_eq!(*line, expected_line);
            assert_eq!(cells, expected_cells);
        }
    }

    #[test]
    fn comments_and_blank_lines_are_left_out_and_counted() {
        let found = rows(b"\xef\xbb\xbfa;b\r\n\r\n# c;d\n \ne;;f", b';');
        let cells = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect();
        assert_eq!(
            found,
            [(1, cells(&["a", "b"])), (5, cells(&["e", "", "f"]))]
        );
    }

    #[test]
    fn rest_of_a_very_long_line_is_dropped() {
        let mut text = vec![b'x'; 3 * MAX_LINE_BYTES];
        text.extend_from_slice(b"\n1,2\n");
        let found = rows(&text, b',');
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].1[0].len(), MAX_LINE_BYTES);
        assert_eq!(found[1], (2, vec!["1".to_owned(), "2".to_owned()]));
    }
}
