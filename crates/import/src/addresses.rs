//! Lists of addresses, as programs and tools write them.
//!
//! | Format | |
//! |---|---|
//! | `raw` | 64-bit words, little endian |
//! | `text` | a line each: decimal, or hexadecimal after `0x`; a negative number is the word of that value |
//! | `hex` | a line each: hexadecimal, with or without `0x` |
//! | `lackey` | what `valgrind --tool=lackey --trace-mem=yes` prints: ` L`, ` S` and ` M` lines; instruction fetches (`I`) are left out |
//! | `csv:COLUMN` | a column of a table, as `text`: by its number from 1, or by its name in the heading |
//! | `parquet:COLUMN` | a column of whole numbers of a Parquet file, not from standard input |
//! | `vscsi`, `msr` | block traces ([`crate::cache_trace`]) |
//!
//! Compressed lists are unpacked ([`crate::compression`]). Empty lines and lines that begin with `#` are
//! skipped. Other lines without an address are counted, and the first is named.

use std::io::{BufRead, Read};
use std::path::Path;
use std::str::FromStr;

use memgauge_recording::Numbers;

use crate::cache_trace::{self, ColumnSelector, TraceFormat};
use crate::lackey::{LackeyLine, digits_of};
use crate::table_rows::TableRows;
use crate::{Error, ErrorKind, compression, lackey};

/// Format of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressFormat {
    /// 64-bit words, little endian.
    Raw,
    /// Lines with decimal numbers, or hexadecimal ones after `0x`.
    Text,
    /// Lines with hexadecimal numbers.
    Hex,
    /// Output of valgrind's lackey.
    Lackey,
    /// A column of a table.
    Csv(ColumnSelector),
    /// A column of a Parquet file.
    Parquet(String),
    /// A trace of blocks.
    Trace(TraceFormat),
}

impl FromStr for AddressFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "raw" => Ok(AddressFormat::Raw),
            "text" => Ok(AddressFormat::Text),
            "hex" => Ok(AddressFormat::Hex),
            "lackey" => Ok(AddressFormat::Lackey),
            _ if text.starts_with("csv:") && text.contains('=') => {
                Ok(AddressFormat::Trace(text.parse()?))
            }
            _ => match text.split_once(':') {
                Some(("csv", column)) if !column.is_empty() => {
                    Ok(AddressFormat::Csv(column.parse()?))
                }
                Some(("parquet", column)) if !column.is_empty() => {
                    Ok(AddressFormat::Parquet(column.to_owned()))
                }
                _ => text.parse().map(AddressFormat::Trace).map_err(|_| {
                    "expected raw, text, hex, lackey, csv:COLUMN, parquet:COLUMN, or a cache \
                     trace: oracleGeneral, lcs, vscsi, msr, ibm-cos, twitter, meta, wikipedia or \
                     csv:key=COLUMN,size=COLUMN,…"
                        .to_owned()
                }),
            },
        }
    }
}

/// References in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressBatch {
    /// Address of the first byte of each.
    pub addresses: Vec<u64>,
    /// Sizes of those of more than one byte, with their indices.
    pub sizes: Vec<(usize, u32)>,
}

impl AddressBatch {
    /// Adds an access.
    pub fn push(&mut self, address: u64, bytes: u32) {
        if bytes > 1 {
            self.sizes.push((self.addresses.len(), bytes));
        }
        self.addresses.push(address);
    }

    /// Adds accesses. The sizes of those of more than one byte are listed separately.
    pub fn append(&mut self, addresses: &[u64], sizes: &[(usize, u32)]) {
        let before = self.addresses.len();
        let moved = sizes.iter().map(|&(at, bytes)| (before + at, bytes));
        self.sizes.extend(moved);
        self.addresses.extend_from_slice(addresses);
    }

    /// Removes all accesses and keeps the memory.
    pub fn clear(&mut self) {
        self.addresses.clear();
        self.sizes.clear();
    }
}

/// Lines, rows and bytes of an input that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnreadableInput {
    /// Number of lines that are not addresses.
    pub lines: u64,
    /// Number and content of the first such line.
    pub first: Option<(u64, String)>,
    /// Number of bytes after the last complete word.
    pub bytes: usize,
    /// Number of rows of a Parquet file without an address.
    pub gaps: u64,
    /// Notes about a block trace.
    pub trace_notes: Vec<String>,
    /// Whether 64-bit words were read because no format was recognised.
    pub is_guessed_raw: bool,
}

impl UnreadableInput {
    /// Describes the skipped lines, rows or bytes. `None` if nothing was skipped.
    pub fn description(&self) -> Option<String> {
        if !self.trace_notes.is_empty() {
            return Some(self.trace_notes.join("; "));
        }
        if self.bytes > 0 {
            return Some(format!(
                "skipped: {} bytes after the last whole address (8 bytes)",
                self.bytes
            ));
        }
        if self.gaps > 0 {
            return Some(format!("skipped: {} rows without an address", self.gaps));
        }
        let (line, text) = self.first.as_ref()?;
        Some(format!(
            "skipped: {} lines without an address, the first is line {line}: {text}",
            self.lines
        ))
    }
}

/// Number of references in a batch.
const BATCH: usize = 1 << 16;
/// Number of bytes from which the format is guessed.
const GUESSED_FROM: usize = 1 << 12;
/// Number of bytes of a line that are kept. The rest belongs to the line but not to an address.
const LINE_BYTES: u64 = 1 << 12;

/// Reads all references and passes them to `take` in batches.
///
/// # Errors
/// Returns errors of the reader or of `take`, or an error if the table does not have the column.
pub fn read<E: From<Error>>(
    input: impl Read,
    format: Option<&AddressFormat>,
    take: &mut dyn FnMut(&AddressBatch) -> Result<(), E>,
) -> Result<UnreadableInput, E> {
    let unpacked = compression::decompress(input)?;
    let mut take = |accesses: &AddressBatch| take(accesses).map_err(Failure::Taken);
    let read = read_plain(unpacked.content, format, &mut take);
    read.map_err(|failure| match (failure, unpacked.compression) {
        (Failure::Taken(error), _) => error,
        (Failure::Read(error), None) => error.into(),
        (Failure::Read(error), Some(compression)) => {
            let why = format!("it is compressed by {compression}: {}", error.in_full());
            Error::new(error.kind(), why).into()
        }
    })
}

/// Reads a column of a Parquet file.
///
/// # Errors
/// The file cannot be read or lacks the column, or an error of `take`.
pub fn read_parquet<E: From<Error>>(
    path: &Path,
    column: &str,
    take: &mut dyn FnMut(&AddressBatch) -> Result<(), E>,
) -> Result<UnreadableInput, E> {
    let (mut accesses, mut junk) = (AddressBatch::default(), UnreadableInput::default());
    for batch in Numbers::open(path, column).map_err(Error::from)? {
        accesses.clear();
        for number in batch.map_err(Error::from)? {
            match number {
                Some(address) => accesses.push(address, 1),
                None => junk.gaps += 1,
            }
        }
        take(&accesses)?;
    }
    Ok(junk)
}

/// An error of the input, or of whoever takes the addresses.
enum Failure<E> {
    Read(Error),
    Taken(E),
}

impl<E> From<Error> for Failure<E> {
    fn from(error: Error) -> Failure<E> {
        Failure::Read(error)
    }
}

fn bad_input(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadInput, why)
}

fn unreadable(cause: std::io::Error) -> Error {
    Error::system("failed to read the list", cause)
}

fn read_plain<E: From<Error>>(
    mut input: impl BufRead,
    format: Option<&AddressFormat>,
    take: &mut dyn FnMut(&AddressBatch) -> Result<(), E>,
) -> Result<UnreadableInput, E> {
    let start = input.fill_buf().map_err(unreadable)?;
    if start.starts_with(b"PAR1") {
        return Err(bad_input(
            "failed to read Parquet: name the column of addresses, as in --format \
             parquet:COLUMN, and a file, not a pipe",
        )
        .into());
    }
    if format.is_none() && (start.starts_with(b"\x7fELF") || start.starts_with(b"#!")) {
        return Err(bad_input("it is a program: `memgauge mrc -- PROGRAM` runs it, and `--format` says how it is read as \
             a list").into());
    }
    let guessed = match cache_trace::detect(start) {
        Some(trace) => AddressFormat::Trace(trace),
        None => guess(start),
    };
    if format.is_none() && guessed == AddressFormat::Raw && !holds_addresses(start) {
        return Err(bad_input(
            "failed to guess the format: it is binary, and most of its 64-bit words are no \
             addresses: name the format, as in --format raw for words of any value, or that of a \
             cache trace",
        )
        .into());
    }
    if format.is_none() && guessed == AddressFormat::Text {
        return read_guessed_text(input, take);
    }
    match format.unwrap_or(&guessed) {
        AddressFormat::Raw => read_raw(input, take).map(|read| UnreadableInput {
            is_guessed_raw: format.is_none(),
            ..read
        }),
        AddressFormat::Csv(column) => read_csv(input, column, take),
        AddressFormat::Text => read_lines(input, |line| number(line).map(|n| (n, 1)).into(), take),
        AddressFormat::Hex => read_lines(input, |line| hex(line).map(|n| (n, 1)).into(), take),
        AddressFormat::Lackey => read_lines(input, lackey_line, take),
        AddressFormat::Trace(trace) => read_block_trace(&mut input, trace, take),
        AddressFormat::Parquet(_) => Err(bad_input(
            "failed to read Parquet: the input is a pipe or not a Parquet file: name a \
                 Parquet file",
        )
        .into()),
    }
}

/// Reads the byte ranges of a block trace.
fn read_block_trace<E: From<Error>>(
    input: &mut dyn BufRead,
    format: &TraceFormat,
    take: &mut dyn FnMut(&AddressBatch) -> Result<(), E>,
) -> Result<UnreadableInput, E> {
    if !format.is_of_blocks() {
        return Err(bad_input(format!(
            "failed to read addresses from a cache trace ({format}): its requests name objects: \
         `memgauge mrc FILE --format {format}` shows its curve, from a file or standard input"
        ))
        .into());
    }
    let mut accesses = AddressBatch::default();
    let mut too_long = 0u64;
    let summary = cache_trace::read(input, format, &mut |record| {
        let Ok(bytes) = u32::try_from(record.bytes) else {
            too_long += 1;
            return Ok(());
        };
        accesses.push(record.key, bytes);
        if accesses.addresses.len() == BATCH {
            take(&accesses)?;
            accesses.clear();
        }
        Ok::<(), E>(())
    })?;
    take(&accesses)?;
    let mut trace_notes = summary.notes(format);
    if too_long > 0 {
        trace_notes.push(format!("skipped: {too_long} requests of 4 GiB or more"));
    }
    Ok(UnreadableInput {
        trace_notes,
        ..UnreadableInput::default()
    })
}

/// Returns true if at least half of the words are addresses that 57-bit paging allows. Records of
/// other widths have few such words.
fn holds_addresses(start: &[u8]) -> bool {
    let (words, _) = start[..start.len().min(GUESSED_FROM)].as_chunks::<8>();
    let is_canonical = |word: &&[u8; 8]| {
        let high = i64::from_le_bytes(**word) >> 56;
        high == 0 || high == -1
    };
    2 * words.iter().filter(is_canonical).count() >= words.len()
}

/// Reads as `text`, unless most lines turn out to be something else. A curve of the few readable
/// lines would look like a curve of all.
fn read_guessed_text<E: From<Error>>(
    input: impl BufRead,
    take: &mut dyn FnMut(&AddressBatch) -> Result<(), E>,
) -> Result<UnreadableInput, E> {
    let mut addresses = 0;
    let junk = read_lines(
        input,
        |line| number(line).map(|n| (n, 1)).into(),
        &mut |accesses| {
            addresses += accesses.addresses.len() as u64;
            take(accesses)
        },
    )?;
    // The caller reports a list without any address.
    let is_wrong = (1..junk.lines).contains(&addresses);
    let Some((line, text)) = junk.first.as_ref().filter(|_| is_wrong) else {
        return Ok(junk);
    };
    let why = format!(
        "failed to guess the format: {} of {} lines are no decimal address, the first is line \
         {line}, `{text}`: name the format, as in --format hex",
        junk.lines,
        junk.lines + addresses
    );
    Err(bad_input(why).into())
}

fn guess(start: &[u8]) -> AddressFormat {
    let start = &start[..start.len().min(GUESSED_FROM)];
    let is_text = |b: &u8| matches!(b, b'\t' | b'\n' | b'\r' | b' '..=b'~') || *b >= 0x80;
    if !start.iter().all(is_text)
        || std::str::from_utf8(start).is_err_and(|e| e.error_len().is_some())
    {
        return AddressFormat::Raw;
    }
    let text = String::from_utf8_lossy(start);
    let of_lackey = |line: &str| matches!(lackey_line(line), ParsedLine::Access(..));
    if text.lines().any(of_lackey) {
        return AddressFormat::Lackey;
    }
    // The last line may be incomplete. Lines with and without `0x` are both valid text.
    let whole = text.rsplit_once('\n').map_or(&*text, |(whole, _)| whole);
    let lines = whole.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut others = lines.filter(|line| number(line).is_none()).peekable();
    match others.peek().is_some() && others.all(|line| hex(line).is_some()) {
        true => AddressFormat::Hex,
        false => AddressFormat::Text,
    }
}

fn read_raw<E: From<Error>>(
    mut input: impl Read,
    take: &mut dyn FnMut(&AddressBatch) -> Result<(), E>,
) -> Result<UnreadableInput, E> {
    let mut bytes = vec![0; 8 * BATCH];
    let mut accesses = AddressBatch::default();
    let mut held = 0;
    loop {
        let got = match input.read(&mut bytes[held..]) {
            Ok(0) => break,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            got => got.map_err(unreadable)?,
        };
        held += got;
        let (words, rest) = bytes[..held].as_chunks::<8>();
        accesses
            .addresses
            .extend(words.iter().map(|w| u64::from_le_bytes(*w)));
        let (whole, left) = (8 * words.len(), rest.len());
        bytes.copy_within(whole..whole + left, 0);
        held = left;
        take(&accesses)?;
        accesses.clear();
    }
    Ok(UnreadableInput {
        bytes: held,
        ..UnreadableInput::default()
    })
}

/// A parsed line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParsedLine {
    Access(u64, u32),
    Nothing,
    UnreadableInput,
}

impl From<Option<(u64, u32)>> for ParsedLine {
    fn from(access: Option<(u64, u32)>) -> ParsedLine {
        access.map_or(ParsedLine::UnreadableInput, |(address, bytes)| {
            ParsedLine::Access(address, bytes)
        })
    }
}

fn read_lines<E: From<Error>>(
    mut input: impl BufRead,
    parse: impl Fn(&str) -> ParsedLine,
    take: &mut dyn FnMut(&AddressBatch) -> Result<(), E>,
) -> Result<UnreadableInput, E> {
    let mut accesses = AddressBatch::default();
    let mut junk = UnreadableInput::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let mut start = input.by_ref().take(LINE_BYTES);
        if start.read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
            break;
        }
        let is_cut = line.len() as u64 == LINE_BYTES && !line.ends_with(b"\n");
        let is_longer = is_cut && input.skip_until(b'\n').map_err(unreadable)? > 0;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.starts_with('#') || (text.is_empty() && !is_longer) {
            continue;
        }
        let parsed = match is_longer {
            true => ParsedLine::UnreadableInput,
            false => parse(text),
        };
        match parsed {
            ParsedLine::Access(address, bytes) => accesses.push(address, bytes),
            ParsedLine::Nothing => {}
            ParsedLine::UnreadableInput => {
                junk.lines += 1;
                junk.first.get_or_insert_with(|| (number, shown(text)));
            }
        }
        if accesses.addresses.len() == BATCH {
            take(&accesses)?;
            accesses.clear();
        }
    }
    take(&accesses)?;
    Ok(junk)
}

/// Returns the beginning of a line without control characters.
fn shown(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).take(40).collect()
}

/// A negative number is the 64-bit word with its bits, because hashes and identifiers are often
/// signed.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some(digits) = text.strip_prefix('-') {
        let is_number = digits_of(digits, 10).is_some();
        return text
            .parse::<i64>()
            .ok()
            .filter(|_| is_number)
            .map(i64::cast_unsigned);
    }
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => digits_of(digits, 16),
        None => digits_of(text, 10),
    }
}

fn hex(text: &str) -> Option<u64> {
    let text = text.trim();
    digits_of(
        text.strip_prefix("0x")
            .or_else(|| text.strip_prefix("0X"))
            .unwrap_or(text),
        16,
    )
}

fn lackey_line(line: &str) -> ParsedLine {
    match lackey::parse(line) {
        _ if line.starts_with("==") => ParsedLine::Nothing,
        Some(LackeyLine::Instruction { .. }) => ParsedLine::Nothing,
        Some(LackeyLine::Access { address, bytes, .. }) if (1..=4096).contains(&bytes) => {
            ParsedLine::Access(address, bytes.into())
        }
        _ => ParsedLine::UnreadableInput,
    }
}

/// Reads the numbers of a column. A first row is a heading if its cell in that column is not a
/// number.
fn read_csv<E: From<Error>>(
    input: impl BufRead,
    column: &ColumnSelector,
    take: &mut dyn FnMut(&AddressBatch) -> Result<(), E>,
) -> Result<UnreadableInput, E> {
    let mut rows = TableRows::new(input, b',');
    let mut accesses = AddressBatch::default();
    let mut junk = UnreadableInput::default();
    let mut position = None;
    while let Some((line, record)) = rows.next_row().map_err(unreadable)? {
        let is_first = position.is_none();
        let at = match position {
            Some(at) => at,
            None => *position.insert(column_position(record, column)?),
        };
        let cell = record
            .get(at)
            .and_then(|cell| std::str::from_utf8(cell).ok());
        match cell.and_then(number) {
            Some(address) => accesses.push(address, 1),
            None if is_first => {}
            None => {
                junk.lines += 1;
                junk.first
                    .get_or_insert_with(|| (line, shown(&joined(record))));
            }
        }
        if accesses.addresses.len() == BATCH {
            take(&accesses)?;
            accesses.clear();
        }
    }
    take(&accesses)?;
    Ok(junk)
}

/// Returns the position of a column in the rows of a table, by its first row.
fn column_position(first_row: &csv::ByteRecord, column: &ColumnSelector) -> crate::Result<usize> {
    match column {
        ColumnSelector::Number(number) => {
            if *number > first_row.len() {
                return Err(bad_input(format!(
                    "failed to find column {number}: the first row has {} columns: `{}`",
                    first_row.len(),
                    shown(&joined(first_row))
                )));
            }
            Ok(number - 1)
        }
        ColumnSelector::Name(name) => {
            let found = first_row
                .iter()
                .position(|cell| cell.trim_ascii() == name.as_bytes());
            found.ok_or_else(|| {
                bad_input(format!(
                    "failed to find column `{name}`: the heading is `{}`; a table without a heading \
                     has numbered columns, as in --format csv:1",
                    shown(&joined(first_row))
                ))
            })
        }
    }
}

fn joined(record: &csv::ByteRecord) -> String {
    let fields: Vec<_> = record.iter().map(String::from_utf8_lossy).collect();
    fields.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &[u8], format: Option<&str>) -> (AddressBatch, UnreadableInput) {
        let format = format.map(|f| f.parse().unwrap());
        let mut all = AddressBatch::default();
        let junk = read(input, format.as_ref(), &mut |batch| {
            let before = all.addresses.len();
            all.addresses.extend(&batch.addresses);
            all.sizes
                .extend(batch.sizes.iter().map(|&(at, n)| (at + before, n)));
            Ok::<_, Error>(())
        });
        (all, junk.unwrap())
    }

    #[test]
    fn raw_words_are_recognised_and_a_cut_one_is_counted() {
        let mut bytes: Vec<u8> = [0u64, 0x7f00_0000_1000, u64::MAX]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        bytes.extend([1, 2, 3]);
        let (all, junk) = parse(&bytes, None);
        assert_eq!(all.addresses, [0, 0x7f00_0000_1000, u64::MAX]);
        assert_eq!(junk.bytes, 3);
    }

    #[test]
    fn a_program_is_no_list_unless_its_format_is_named() {
        for start in [&b"\x7fELF\x02\x01\x01\0"[..], b"#!/bin/sh\n12\n"] {
            let error = read(start, None, &mut |_| Ok::<_, Error>(()))
                .unwrap_err()
                .to_string();
            assert!(error.contains("`memgauge mrc -- PROGRAM`"), "{error}");
        }
        assert_eq!(
            parse(b"\x7fELF\x02\x01\x01\0", Some("raw"))
                .0
                .addresses
                .len(),
            1
        );
        assert_eq!(parse(b"#!/bin/sh\n12\n", Some("text")).0.addresses, [12]);
    }

    #[test]
    fn binary_records_that_are_not_addresses_are_refused() {
        // Records of 24 bytes: a time, a hashed key across two words, a size.
        let record = |n: u64| {
            let key = noise(n).next().unwrap_or_default();
            [&(n as u32).to_le_bytes()[..], &key.to_le_bytes(), &[9; 12]].concat()
        };
        let records: Vec<u8> = (0..500).flat_map(record).collect();
        let error = read(&records[..], None, &mut |_| Ok::<_, Error>(())).unwrap_err();
        assert!(error.to_string().contains("--format raw"), "{error}");
        assert_eq!(parse(&records, Some("raw")).0.addresses.len(), 1500);
    }

    #[test]
    fn traces_of_objects_are_recognised_and_not_read_as_addresses() {
        let record = |n: u64| {
            let time = (n / 10) as u32;
            [
                &time.to_le_bytes()[..],
                &(n * 7).to_le_bytes(),
                &512u32.to_le_bytes(),
                &[0xff; 8],
            ]
            .concat()
        };
        let trace: Vec<u8> = (0..300).flat_map(record).collect();
        let error = read(&trace[..], None, &mut |_| Ok::<_, Error>(())).unwrap_err();
        assert!(error.to_string().contains("oracleGeneral"), "{error}");
    }

    #[test]
    fn ranges_of_block_traces_are_accesses() {
        let table = "128166372003061629,hm,1,Read,4096,8192,100\n\
                     128166372016382155,hm,1,Write,512,512,100\n";
        let (all, notes) = parse(table.as_bytes(), None);
        assert_eq!(all.addresses, [4096, 512]);
        assert_eq!(all.sizes, [(0, 8192), (1, 512)]);
        assert!(notes.trace_notes[0].contains("unverified"), "{notes:?}");
    }

    #[test]
    fn text_is_decimal_or_hexadecimal_and_junk_is_named() {
        let (all, junk) = parse(
            b"# list\n10\n0x10\r\n\nnonsense\n18446744073709551615\n--1\n+5\n0x\n",
            Some("text"),
        );
        assert_eq!(all.addresses, [10, 16, u64::MAX]);
        assert_eq!(junk.lines, 4);
        assert_eq!(junk.first, Some((5, "nonsense".to_owned())));
        assert_eq!(parse(b"ff\n0x10\n", Some("hex")).0.addresses, [255, 16]);
    }

    #[test]
    fn lists_of_hexadecimal_lines_are_recognised_or_refused() {
        let list = |addresses: &[u64]| -> Vec<u8> {
            let lines = addresses.iter().map(|address| format!("{address:x}\n"));
            lines.collect::<String>().into_bytes()
        };
        let addresses = [0, 0x40, 0x80, 0xc0, 0x100];
        let (all, junk) = parse(&list(&addresses), None);
        assert_eq!((all.addresses.as_slice(), junk.lines), (&addresses[..], 0));
        // A decimal list with an unreadable line stays decimal.
        let (all, junk) = parse(b"10\n20\nabc no number\n30\n", None);
        assert_eq!((all.addresses, junk.lines), (vec![10, 20, 30], 1));
        // Letters only occur after the part that is used for detection.
        let mut late = list(&[0x40; 2000]);
        late.extend(list(&[0xc0; 3000]));
        let error = read(&late[..], None, &mut |_| Ok::<_, Error>(()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("3000 of 5000 lines") && error.contains("--format hex"),
            "{error}"
        );
        assert_eq!(parse(&late, Some("text")).1.lines, 3000);
    }

    #[test]
    fn lackey_output_gives_loads_and_stores_with_their_sizes() {
        let text =
            b"==1== Lackey\nI  04001000,3\n L 1ffeffff,8\n S 04025310,4\n M 0421c7cc,1\n L bad\n";
        let (all, junk) = parse(text, None);
        assert_eq!(all.addresses, [0x1ffe_ffff, 0x0402_5310, 0x0421_c7cc]);
        assert_eq!(all.sizes, [(0, 8), (1, 4)]);
        assert_eq!(junk.lines, 1);
    }

    #[test]
    fn a_column_of_a_table_is_read_and_a_missing_one_is_named() {
        let (all, junk) = parse(b"time,\"addr\",x\n1,0x40,2\n2,128,3\n3\n", Some("csv:addr"));
        assert_eq!(all.addresses, [64, 128]);
        assert_eq!(junk.lines, 1);
        assert_eq!(junk.first, Some((4, "3".to_owned())));
        let format = "csv:address".parse().unwrap();
        let error = read(&b"a,b\n1,2\n"[..], Some(&format), &mut |_| {
            Ok::<_, Error>(())
        })
        .unwrap_err();
        assert!(error.to_string().contains("`address`"), "{error}");
    }

    #[test]
    fn a_comma_in_quotes_does_not_begin_another_column() {
        let table = b"# made by hand\r\nname,\"at, hex\",n\r\n\"a,b\",0x40,1\r\n\r\n  \r\nc,\" 0x80\",2\r\n";
        let (all, junk) = parse(table, Some("csv:at, hex"));
        assert_eq!(all.addresses, [0x40, 0x80]);
        assert_eq!(junk, UnreadableInput::default());
    }

    #[test]
    fn compressed_lists_are_unpacked_and_cut_ones_are_refused() {
        let words: Vec<u8> = (0..50_000u64)
            .flat_map(|n| (n * 64).to_le_bytes())
            .collect();
        let text: Vec<u8> = (0..500)
            .flat_map(|n| format!("{n}\n").into_bytes())
            .collect();
        for list in [&words, &text] {
            let packed = zstd::encode_all(&list[..], 1).unwrap();
            let expected = parse(list, None);
            assert_eq!(parse(&packed, None), expected);
            // As `pzstd` writes it.
            let skippable = [0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4];
            let with_frame = [&skippable, &packed[..]].concat();
            assert_eq!(parse(&with_frame, None), expected);
            let cut = &packed[..packed.len() / 2];
            let error = read(cut, None, &mut |_| Ok::<_, Error>(())).unwrap_err();
            assert!(format!("{error:#}").contains("compress"), "{error:#}");
        }
        let error = read(&b"\x04\x22\x4d\x18..."[..], None, &mut |_| {
            Ok::<_, Error>(())
        })
        .unwrap_err();
        assert!(error.to_string().contains("lz4 -dc"), "{error}");
    }

    #[test]
    fn the_rest_of_a_long_line_is_no_line_of_its_own() {
        let most = usize::try_from(LINE_BYTES).unwrap();
        let digits = "7".repeat(most - 3);
        for (line, unreadable) in [
            (format!("# {}12345", "c".repeat(most - 2)), 0),
            (format!("{digits}12345"), 1),
            (format!("{}12345", " ".repeat(most)), 1),
            // The comment is just as long as the kept part of a line, with and without the end of
            // the line.
            (format!("#{}", "c".repeat(most - 1)), 0),
            (format!("#{}", "c".repeat(most - 2)), 0),
        ] {
            for end in ["\n", "\r\n"] {
                let list = format!("5{end}{line}{end}6{end}");
                let (all, junk) = parse(list.as_bytes(), Some("text"));
                assert_eq!((&all.addresses[..], junk.lines), (&[5, 6][..], unreadable));
                assert!(junk.first.is_none_or(|(line, _)| line == 2));
            }
            let (all, junk) = parse(line.as_bytes(), Some("text"));
            assert_eq!((all.addresses.len(), junk.lines), (0, unreadable));
        }
    }

    #[test]
    fn a_column_with_a_number_is_chosen_by_position() {
        let column = |table: &str, format: &str| {
            let (all, junk) = parse(table.as_bytes(), Some(format));
            (all.addresses, junk.lines)
        };
        let headless = "10,hm,1,Read\n11,hm,1,Write\n12,hm,2,Read\n";
        assert_eq!(column(headless, "csv:1"), (vec![10, 11, 12], 0));
        assert_eq!(column(headless, "csv:3"), (vec![1, 1, 2], 0));
        // The heading is a first row without a number in the column.
        let headed = "time,3,1\n5,6,7\n8,9,x\n";
        assert_eq!(column(headed, "csv:1"), (vec![5, 8], 0));
        assert_eq!(column(headed, "csv:2"), (vec![3, 6, 9], 0));
        assert_eq!(column(headed, "csv:3"), (vec![1, 7], 1));
        assert_eq!(column(headed, "csv:time"), (vec![5, 8], 0));
        assert_eq!(column("# a, b\n\n1,2\n3,4\n", "csv:2"), (vec![2, 4], 0));
        assert!("csv:0".parse::<AddressFormat>().is_err());
        let format = "csv:5".parse().unwrap();
        let error = read(headless.as_bytes(), Some(&format), &mut |_| {
            Ok::<_, Error>(())
        })
        .unwrap_err();
        assert!(error.to_string().contains("has 4 columns"), "{error}");
    }

    #[test]
    fn negative_numbers_are_words() {
        let list = format!("-1\n{}\n-0\n-9223372036854775809\n-0x1\n-+1\n", i64::MIN);
        let (all, junk) = parse(list.as_bytes(), None);
        assert_eq!(all.addresses, [u64::MAX, 1 << 63, 0]);
        assert_eq!(junk.lines, 3);
        let table = b"id,n\n-2,1\n3,1\n";
        assert_eq!(parse(table, Some("csv:id")).0.addresses, [u64::MAX - 1, 3]);
        assert_eq!(parse(b"-5,1\n", Some("csv:1")).0.addresses, [u64::MAX - 4]);
    }

    /// Numbers that look random (splitmix64).
    fn noise(seed: u64) -> impl Iterator<Item = u64> {
        (1u64..).map(move |n| {
            let z = seed.wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z ^ z >> 31
        })
    }

    #[test]
    fn no_bytes_make_the_readers_panic() {
        let pieces: [&[u8]; 12] = [
            b" L ",
            b"I  ",
            b"0x",
            b"1",
            b"f",
            b",",
            b"\n",
            b"\xff",
            b"==",
            b"\xc3",
            b"a,b",
            b"999999999999999999999",
        ];
        for seed in 0..4000 {
            let picks: Vec<u64> = noise(seed).take(40).collect();
            let bytes: Vec<u8> = picks
                .iter()
                .flat_map(|n| pieces[*n as usize % 12].to_vec())
                .collect();
            for format in [
                None,
                Some("raw"),
                Some("text"),
                Some("hex"),
                Some("lackey"),
                Some("csv:a"),
                Some("parquet:a"),
            ] {
                let format = format.map(|f| f.parse().unwrap());
                let _ = read(&bytes[..], format.as_ref(), &mut |_| Ok::<_, Error>(()));
            }
        }
    }
}
