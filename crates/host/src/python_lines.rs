//! Lines of Python: line tables of code objects, and addresses that stand for lines.
//!
//! Tables list pieces of the code in order, each with its size and the distance of its line from the
//! previous one. The encoding differs between versions of CPython (`Objects/lnotab_notes.txt` and
//! `Objects/locations.md` in its sources).
//!
//! A frame of Python is written as a call whose address stands for a function and a line, not for
//! memory. Addresses start at `FIRST_ADDRESS`, where no program has memory, and each line gets
//! its own. The table of generated code has their names.

use std::collections::HashMap;
use std::ops::Range;

use memgauge_trace::{GeneratedCode, Pid, VirtAddr};

/// First address that stands for a line of Python.
const FIRST_ADDRESS: u64 = 1 << 56;
/// Distance of these addresses.
const ADDRESS_STEP: u64 = 16;

/// Lines of a code object's instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineTable {
    first_line: u32,
    /// Offset and line of each piece, in order. Pieces of the same line are one.
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    /// `None` for instructions without a line, which belong to that before.
    line: Option<u32>,
}

impl LineTable {
    /// Reads the table of CPython 3.`minor`. Stops at the first byte that it cannot read.
    pub fn new(minor: u32, first_line: u32, table: &[u8]) -> LineTable {
        let mut lines = LineTable {
            first_line,
            pieces: Vec::new(),
        };
        match minor {
            ..=9 => lines.read_distances(table),
            10 => lines.read_ranges(table),
            _ => lines.read_locations(table),
        }
        lines
    }

    /// Offsets of the piece with the instruction at `offset`, and its line. `None` if the code has
    /// no lines.
    pub fn piece(&self, offset: u64) -> (Range<u64>, Option<u32>) {
        let after = self.pieces.partition_point(|piece| piece.offset <= offset);
        let piece = self.pieces[..after].last();
        let start = piece.map_or(0, |piece| piece.offset);
        let end = self.pieces.get(after).map_or(u64::MAX, |next| next.offset);
        let line = piece
            .and_then(|piece| piece.line)
            .unwrap_or(self.first_line);
        (start..end, (line > 0).then_some(line))
    }

    fn push(&mut self, offset: u64, line: Option<i64>) {
        let line = line.and_then(|line| u32::try_from(line).ok());
        let last = self.pieces.last_mut();
        match (last, line) {
            (Some(last), None) if last.line.is_some() => {}
            (Some(last), line) if last.line == line => {}
            (Some(last), line) if last.offset == offset => last.line = line,
            (_, line) => self.pieces.push(Piece { offset, line }),
        }
    }

    /// Until 3.9: pairs of unsigned bytes and signed lines. Both are added before the piece begins.
    fn read_distances(&mut self, table: &[u8]) {
        let (mut offset, mut line) = (0, i64::from(self.first_line));
        self.push(offset, Some(line));
        for pair in table.chunks_exact(2) {
            offset += u64::from(pair[0]);
            line += i64::from(pair[1] as i8);
            self.push(offset, Some(line));
        }
    }

    /// Reads the table of 3.10: pairs of an unsigned number of bytes and a signed difference of
    /// lines. The line is changed first, then a piece of this many bytes begins. -128 is a piece
    /// without a line.
    fn read_ranges(&mut self, table: &[u8]) {
        let (mut offset, mut line) = (0, i64::from(self.first_line));
        for pair in table.chunks_exact(2) {
            let distance = i64::from(pair[1] as i8);
            let has_line = distance != -128;
            line += if has_line { distance } else { 0 };
            if pair[0] > 0 {
                self.push(offset, has_line.then_some(line));
            }
            offset += u64::from(pair[0]);
        }
    }

    /// Reads the table since 3.11. A piece begins with a byte of 128 or more, which has four bits
    /// of code and three bits of the number of instructions minus one. The remaining bytes depend
    /// on the code.
    fn read_locations(&mut self, table: &[u8]) {
        let (mut offset, mut line) = (0, i64::from(self.first_line));
        let mut rest = table;
        while let [first, after @ ..] = rest {
            let code = first >> 3 & 15;
            let distance = match code {
                15 => None,
                13 | 14 => Some(signed(after)),
                10..=12 => Some(i64::from(code) - 10),
                _ => Some(0),
            };
            line += distance.unwrap_or(0);
            self.push(offset, distance.map(|_| line));
            offset += 2 * (u64::from(first & 7) + 1);
            let next = after.iter().position(|byte| byte & 0x80 != 0);
            rest = &after[next.unwrap_or(after.len())..];
        }
    }
}

/// Reads a number with six bits per byte, lowest first. Bit 64 means that another byte follows. The
/// lowest bit of the number is the sign.
fn signed(bytes: &[u8]) -> i64 {
    let mut value = 0u64;
    for (place, byte) in (0..).step_by(6).zip(bytes).take(6) {
        value |= u64::from(byte & 63) << place;
        if byte & 64 == 0 {
            break;
        }
    }
    let size = (value >> 1) as i64;
    if value & 1 == 0 { size } else { -size }
}

/// A line of a function in a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LineOfFunction {
    /// Process.
    pub pid: Pid,
    /// Source file, as the interpreter names it.
    pub file: String,
    /// Name of the function.
    pub function: String,
    /// `None` for code without lines.
    pub line: Option<u32>,
}

/// Addresses that stand for lines.
#[derive(Debug, Default)]
pub struct LineAddresses(HashMap<LineOfFunction, VirtAddr>);

impl LineAddresses {
    /// True if no line has an address.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Address of a line, and its row if it is new.
    pub fn of(&mut self, line: LineOfFunction) -> (VirtAddr, Option<GeneratedCode>) {
        if let Some(&known) = self.0.get(&line) {
            return (known, None);
        }
        let start = VirtAddr(FIRST_ADDRESS + ADDRESS_STEP * self.0.len() as u64);
        let row = GeneratedCode {
            pid: line.pid,
            start,
            bytes: ADDRESS_STEP,
            name: line.function.clone(),
            module: GeneratedCode::PYTHON.to_owned(),
            file: line.file.clone(),
            line: line.line,
        };
        self.0.insert(line, start);
        (start, Some(row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(minor: u32, first: u32, table: &[u8], offsets: &[u64]) -> Vec<u32> {
        let table = LineTable::new(minor, first, table);
        let lines = offsets.iter().map(|&at| table.piece(at).1);
        lines.map(|line| line.unwrap_or(0)).collect()
    }

    // Each table is that of this function, at line 3, in the version of CPython:
    //
    //     def f(x):
    //         y = 0
    //         for i in range(x):
    //             y += i
    //         return y

    #[test]
    fn tables_of_cpython_3_9_have_distances() {
        let table = [0, 1, 4, 1, 12, 1, 10, 1];
        let found = lines(9, 3, &table, &[0, 2, 4, 14, 16, 24, 26, 28]);
        assert_eq!(found, [4, 4, 5, 5, 6, 6, 7, 7]);
    }

    #[test]
    fn tables_of_cpython_3_10_have_ranges() {
        let table = [4, 1, 12, 1, 8, 1, 2, 255, 4, 2];
        let found = lines(10, 3, &table, &[0, 2, 4, 14, 16, 22, 24, 26, 28]);
        assert_eq!(found, [4, 4, 5, 5, 6, 6, 5, 7, 7]);
    }

    #[test]
    fn instructions_without_a_line_belong_to_the_line_before() {
        assert_eq!(lines(10, 3, &[4, 1, 2, 128, 2, 1], &[0, 4, 6]), [4, 4, 5]);
        // A piece without a line (code 15), in the middle and at the start.
        assert_eq!(
            lines(11, 3, &[0xd8, 0, 0xf8, 0xd8, 0], &[0, 2, 4]),
            [4, 4, 5]
        );
        assert_eq!(lines(11, 3, &[0xf8, 0xd8, 0], &[0, 2]), [3, 4]);
    }

    #[test]
    fn lines_may_fall_and_be_far_apart() {
        // Code 13: a signed distance of 100, and one of -99.
        let table = [0xe8, 0x48, 0x03, 0xe8, 0x47, 0x03];
        assert_eq!(lines(12, 3, &table, &[0, 2]), [103, 4]);
    }

    #[test]
    fn truncated_tables_have_the_lines_before() {
        assert_eq!(lines(11, 3, &[0xd8, 0, 0xe8], &[0, 2]), [4, 4]);
        assert_eq!(lines(9, 3, &[0, 1, 4], &[0, 8]), [4, 4]);
        assert_eq!(lines(13, 3, &[], &[0, 8]), [3, 3]);
    }
}
