//! Traces in tables: presets for published ones, and chosen columns for others.

use std::collections::HashMap;
use std::io::BufRead;
use std::str::FromStr;

use super::{RecordSink, RequestOperation, TraceRecord, bad_input};
use crate::Error;
use crate::table_rows::TableRows;

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnSelector {
    /// By its number from 1, as `cut -f` and awk count.
    Number(usize),
    /// By its name in the first row.
    Name(String),
}

impl FromStr for ColumnSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(ColumnSelector::Name(text.to_owned()));
        }
        match text.parse() {
            Ok(number @ 1..) => Ok(ColumnSelector::Number(number)),
            _ => Err("columns are counted from 1".to_owned()),
        }
    }
}

/// Columns of a table by content.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableLayout {
    /// Character between two cells; guessed if not given.
    pub delimiter: Option<u8>,
    /// Whether the first row is a heading; guessed if not given.
    pub has_header: Option<bool>,
    id: ColumnSelector,
    /// Whether keys are text even if they look like numbers.
    text_keys: bool,
    time: Option<ColumnSelector>,
    size: Option<ColumnSelector>,
    operation: Option<ColumnSelector>,
    ttl: Option<ColumnSelector>,
    tenant: Option<ColumnSelector>,
}

impl FromStr for TableLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut id = None;
        let mut text_keys = false;
        let (mut time, mut size, mut operation, mut ttl, mut tenant) =
            (None, None, None, None, None);
        for part in text.split(',') {
            let (role, column) = part.split_once('=').ok_or_else(|| {
                format!("`{part}` is no column: write ROLE=COLUMN, as in csv:id=2,size=4")
            })?;
            let target = match role {
                "id" => &mut id,
                "key" => {
                    text_keys = true;
                    &mut id
                }
                "time" => &mut time,
                "size" => &mut size,
                "op" => &mut operation,
                "ttl" => &mut ttl,
                "tenant" => &mut tenant,
                _ => {
                    return Err(format!(
                        "unknown role `{role}`: use id, key, time, size, op, ttl or tenant"
                    ));
                }
            };
            if target.replace(column.parse()?).is_some() {
                return Err(format!("two columns for `{role}`"));
            }
        }
        Ok(TableLayout {
            delimiter: None,
            has_header: None,
            id: id.ok_or("a column for `id` or `key` is required")?,
            text_keys,
            time,
            size,
            operation,
            ttl,
            tenant,
        })
    }
}

impl TableLayout {
    /// Whether the table has sizes.
    pub fn has_sizes(&self) -> bool {
        self.size.is_some()
    }
}

/// Names that were seen, each with an index.
#[derive(Default)]
pub(super) struct NameIndex {
    indices: HashMap<Vec<u8>, u32>,
    names: Vec<String>,
}

impl NameIndex {
    pub(super) fn index(&mut self, name: &[u8]) -> u32 {
        if let Some(&index) = self.indices.get(name) {
            return index;
        }
        let index = self.names.len() as u32;
        self.indices.insert(name.to_owned(), index);
        let printable = String::from_utf8_lossy(name);
        self.names
            .push(printable.chars().filter(|c| !c.is_control()).collect());
        index
    }

    pub(super) fn into_names(self) -> Vec<String> {
        self.names
    }
}

/// A row that has no request, in words.
type Unusable = &'static str;

fn cell(row: &csv::ByteRecord, at: usize, missing: Unusable) -> Result<&[u8], Unusable> {
    row.get(at)
        .map(<[u8]>::trim_ascii)
        .filter(|cell| !cell.is_empty())
        .ok_or(missing)
}

fn number(cell: &[u8]) -> Option<u64> {
    if cell.is_empty() || cell.len() > 20 {
        return None;
    }
    cell.iter().try_fold(0u64, |sum, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Seconds, perhaps with a fraction, as microseconds.
fn seconds(cell: &[u8]) -> Option<u64> {
    if let Some(whole) = number(cell) {
        return whole.checked_mul(1_000_000);
    }
    let seconds: f64 = std::str::from_utf8(cell).ok()?.parse().ok()?;
    (0.0..1e13)
        .contains(&seconds)
        .then_some((seconds * 1e6) as u64)
}

/// Hashes a key to 64 bits.
fn hash(key: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| {
        let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    let (words, rest) = key.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let whole = words.iter().fold(key.len() as u64, |hash, word| {
        mix(hash, u64::from_le_bytes(*word))
    });
    mix(whole, u64::from_le_bytes(last))
}

/// An operation by its name in a published trace.
pub(super) fn operation(name: &[u8]) -> Option<RequestOperation> {
    let name = name.to_ascii_lowercase();
    let is_any = |names: &[&str]| names.iter().any(|n| n.as_bytes() == name);
    if is_any(&[
        "read",
        "r",
        "get",
        "gets",
        "get_lease",
        "rest.get.object",
        "28",
    ]) {
        Some(RequestOperation::Read)
    } else if is_any(&[
        "write",
        "w",
        "set",
        "set_lease",
        "add",
        "replace",
        "cas",
        "append",
        "prepend",
        "incr",
        "decr",
        "put",
        "update",
        "rest.put.object",
        "rest.copy.object",
        "2a",
    ]) {
        Some(RequestOperation::Write)
    } else if is_any(&["delete", "del", "d", "remove", "trim", "rest.delete.object"]) {
        Some(RequestOperation::Delete)
    } else {
        None
    }
}

const NO_KEY: Unusable = "no key";
const NO_TIME: Unusable = "the time is no number";
const NO_SIZE: Unusable = "the size is no number";
const NO_OPERATION: Unusable = "unknown operation";

/// Calls `take` with each row and its line number.
fn each_row<E: From<Error>>(
    input: &mut dyn BufRead,
    delimiter: u8,
    mut take: impl FnMut(u64, &csv::ByteRecord) -> Result<(), E>,
) -> Result<(), E> {
    let mut rows = TableRows::new(input, delimiter);
    while let Some((line, row)) = rows.next_row().map_err(super::unreadable)? {
        take(line, row)?;
    }
    Ok(())
}

/// Reads a preset: `parse` turns a row into a record and the number of times that it occurs.
fn preset<E: From<Error>>(
    input: &mut dyn BufRead,
    delimiter: u8,
    sink: &mut RecordSink<'_, E>,
    is_heading: impl Fn(&csv::ByteRecord) -> bool,
    mut parse: impl FnMut(&csv::ByteRecord) -> Result<(TraceRecord, u64), Unusable>,
) -> Result<(), E> {
    let mut is_first = true;
    each_row(input, delimiter, |line, row| {
        if std::mem::take(&mut is_first) && is_heading(row) {
            return Ok(());
        }
        match parse(row) {
            Ok((record, times)) => {
                sink.summary.text_keys += 1;
                (0..times).try_for_each(|_| sink.push(line, record))
            }
            Err(why) => {
                sink.summary
                    .skip(line, || format!("{why}: {}", shown(row, delimiter)));
                Ok(())
            }
        }
    })
}

/// The beginning of a row. Tabs become spaces.
fn shown(row: &csv::ByteRecord, delimiter: u8) -> String {
    let cells: Vec<_> = row.iter().map(String::from_utf8_lossy).collect();
    let text = match delimiter {
        b'\t' => cells.join(" "),
        _ => cells.join(char::from(delimiter).encode_utf8(&mut [0; 4])),
    };
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

fn no_heading(_: &csv::ByteRecord) -> bool {
    false
}

/// `timestamp,hostname,disk,type,offset,size,response time`, without a heading. The time is in
/// units of 100 ns.
pub(super) fn msr<E: From<Error>>(
    input: &mut dyn BufRead,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    let mut disks = NameIndex::default();
    let mut name = Vec::new();
    preset(input, b',', sink, no_heading, |row| {
        let offset = number(cell(row, 4, NO_KEY)?).ok_or("the offset is no number")?;
        name.clear();
        name.extend_from_slice(cell(row, 1, NO_KEY)?);
        name.push(b'.');
        name.extend_from_slice(cell(row, 2, NO_KEY)?);
        let disk = disks.index(&name);
        // Each disk has an address space of its own.
        if offset >> 48 != 0 || disk >> 16 != 0 {
            return Err("the offset is 2^48 or more");
        }
        let record = TraceRecord {
            key: offset | u64::from(disk) << 48,
            bytes: number(cell(row, 5, NO_SIZE)?).ok_or(NO_SIZE)?,
            operation: operation(cell(row, 3, NO_OPERATION)?).ok_or(NO_OPERATION)?,
            time_us: number(cell(row, 0, NO_TIME)?).ok_or(NO_TIME)? / 10,
            ttl_s: None,
            tenant: disk,
        };
        Ok((record, 1))
    })?;
    // Offsets are numbers.
    sink.summary.number_keys = std::mem::take(&mut sink.summary.text_keys);
    sink.summary.tenants = disks.into_names();
    Ok(())
}

/// `time (ms) operation object [size [first byte, last byte]]`, separated by spaces. Only
/// deletions may lack the size.
pub(super) fn ibm_cos<E: From<Error>>(
    input: &mut dyn BufRead,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    preset(input, b' ', sink, no_heading, |row| {
        let operation = operation(cell(row, 1, NO_OPERATION)?).ok_or(NO_OPERATION)?;
        let bytes = match operation {
            RequestOperation::Delete => 0,
            _ => number(cell(row, 3, NO_SIZE)?).ok_or(NO_SIZE)?,
        };
        let time_ms = number(cell(row, 0, NO_TIME)?).ok_or(NO_TIME)?;
        let record = TraceRecord {
            key: hash(cell(row, 2, NO_KEY)?),
            bytes,
            operation,
            time_us: time_ms.saturating_mul(1000),
            ttl_s: None,
            tenant: 0,
        };
        Ok((record, 1))
    })
}

/// `time (s),key,key size,value size,client,operation,TTL (s)`, without a heading. An object has
/// the size of its key and value.
pub(super) fn twitter<E: From<Error>>(
    input: &mut dyn BufRead,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    let mut clients = NameIndex::default();
    preset(input, b',', sink, no_heading, |row| {
        let size = |at| number(cell(row, at, NO_SIZE)?).ok_or(NO_SIZE);
        let record = TraceRecord {
            key: hash(cell(row, 1, NO_KEY)?),
            bytes: size(2)?.saturating_add(size(3)?),
            operation: operation(cell(row, 5, NO_OPERATION)?).ok_or(NO_OPERATION)?,
            time_us: seconds(cell(row, 0, NO_TIME)?).ok_or(NO_TIME)?,
            ttl_s: row.get(6).and_then(number).filter(|&ttl| ttl > 0),
            tenant: clients.index(cell(row, 4, NO_KEY)?),
        };
        Ok((record, 1))
    })?;
    sink.summary.tenants = clients.into_names();
    Ok(())
}

/// Most requests that a row of Meta's traces may stand for.
const MAX_OPERATIONS: u64 = 1 << 24;

/// Columns by their names: `key`, `key_size`, `op`, `op_count` and `size`, perhaps with `op_time`
/// (s), `ttl` (s) and `usecase`. A row stands for `op_count` requests. An object has the size of
/// its key and value.
pub(super) fn meta<E: From<Error>>(
    input: &mut dyn BufRead,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    let delimiter = b',';
    let mut usecases = NameIndex::default();
    let mut heading: Option<HashMap<Vec<u8>, usize>> = None;
    each_row(input, delimiter, |line, row| {
        let Some(columns) = &heading else {
            let columns: HashMap<Vec<u8>, usize> = row
                .iter()
                .enumerate()
                .map(|(at, name)| (name.trim_ascii().to_owned(), at))
                .collect();
            for name in ["key", "key_size", "op", "op_count", "size"] {
                if !columns.contains_key(name.as_bytes()) {
                    let why = format!(
                        "failed to read meta: the heading has no `{name}`: {}",
                        shown(row, delimiter)
                    );
                    return Err(bad_input(why).into());
                }
            }
            heading = Some(columns);
            return Ok(());
        };
        let at = |name: &str| columns.get(name.as_bytes()).copied().unwrap_or(usize::MAX);
        let parsed: Result<(TraceRecord, _), Unusable> = (|| {
            let of = |name, missing| number(cell(row, at(name), missing)?).ok_or(missing);
            let time = match at("op_time") {
                usize::MAX => 0,
                at => seconds(cell(row, at, NO_TIME)?).ok_or(NO_TIME)?,
            };
            let times = of("op_count", "the number of operations is none")?;
            if times > MAX_OPERATIONS {
                return Err("more than 2^24 operations");
            }
            let record = TraceRecord {
                key: hash(cell(row, at("key"), NO_KEY)?),
                bytes: of("key_size", NO_SIZE)?.saturating_add(of("size", NO_SIZE)?),
                operation: operation(cell(row, at("op"), NO_OPERATION)?).ok_or(NO_OPERATION)?,
                time_us: time,
                ttl_s: row.get(at("ttl")).and_then(number).filter(|&ttl| ttl > 0),
                tenant: row
                    .get(at("usecase"))
                    .map_or(0, |name| usecases.index(name)),
            };
            Ok((record, times))
        })();
        match parsed {
            Ok((record, times)) => {
                sink.summary.text_keys += times;
                (0..times).try_for_each(|_| sink.push(line, record))
            }
            Err(why) => {
                sink.summary
                    .skip(line, || format!("{why}: {}", shown(row, delimiter)));
                Ok(())
            }
        }
    })?;
    sink.summary.tenants = usecases.into_names();
    Ok(())
}

/// `relative_unix`, hash of path and query, perhaps `image_type`, `response_size`,
/// `time_firstbyte`, separated by tabs. The heading may be missing.
pub(super) fn wikipedia<E: From<Error>>(
    input: &mut dyn BufRead,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    let is_heading = |row: &csv::ByteRecord| row.get(0) == Some(b"relative_unix");
    preset(input, b'\t', sink, is_heading, |row| {
        // Traces of images have one more column.
        let size_at = if row.len() >= 5 { 3 } else { 2 };
        let record = TraceRecord {
            key: hash(cell(row, 1, NO_KEY)?),
            bytes: number(cell(row, size_at, NO_SIZE)?).ok_or(NO_SIZE)?,
            operation: RequestOperation::Read,
            time_us: seconds(cell(row, 0, NO_TIME)?).ok_or(NO_TIME)?,
            ttl_s: None,
            tenant: 0,
        };
        Ok((record, 1))
    })
}

/// Positions of a table's columns.
struct Positions {
    id: usize,
    time: Option<usize>,
    size: Option<usize>,
    operation: Option<usize>,
    ttl: Option<usize>,
    tenant: Option<usize>,
}

impl Positions {
    fn new(
        table: &TableLayout,
        first_row: &csv::ByteRecord,
        delimiter: u8,
    ) -> Result<Positions, Error> {
        let has_one_cell = first_row.len() == 1 && table.delimiter.is_none();
        let hint = match has_one_cell {
            true => "; name the delimiter with --delimiter",
            false => "",
        };
        let find = |column: &ColumnSelector| match column {
            ColumnSelector::Number(number) if *number <= first_row.len() => Ok(number - 1),
            ColumnSelector::Number(number) => Err(bad_input(format!(
                "failed to find column {number}: the first row has {} column{}: `{}`{hint}",
                first_row.len(),
                if first_row.len() == 1 { "" } else { "s" },
                shown(first_row, delimiter)
            ))),
            ColumnSelector::Name(name) => first_row
                .iter()
                .position(|cell| cell.trim_ascii() == name.as_bytes())
                .ok_or_else(|| {
                    bad_input(format!(
                        "failed to find column `{name}`: the heading is `{}`{}",
                        shown(first_row, delimiter),
                        match has_one_cell {
                            true => hint,
                            false =>
                                "; a table without a heading has numbered columns, as in \
                                 --format csv:id=1",
                        }
                    ))
                }),
        };
        let maybe = |column: &Option<ColumnSelector>| column.as_ref().map(find).transpose();
        Ok(Positions {
            id: find(&table.id)?,
            time: maybe(&table.time)?,
            size: maybe(&table.size)?,
            operation: maybe(&table.operation)?,
            ttl: maybe(&table.ttl)?,
            tenant: maybe(&table.tenant)?,
        })
    }

    /// A first row is a heading if a column is named, or if a cell that must be a number is not.
    fn is_heading(&self, table: &TableLayout, row: &csv::ByteRecord) -> bool {
        let columns = [
            &table.time,
            &table.size,
            &table.operation,
            &table.ttl,
            &table.tenant,
        ];
        let named = columns.into_iter().flatten().chain([&table.id]);
        let is_named = named
            .into_iter()
            .any(|c| matches!(c, ColumnSelector::Name(_)));
        // A number that is too large or negative is a bad record, not a heading.
        let is_no_number = |at: Option<usize>| {
            let cell = at.and_then(|at| row.get(at)).map(<[u8]>::trim_ascii);
            let digits = cell.map(|cell| cell.strip_prefix(b"-").unwrap_or(cell));
            digits.is_some_and(|digits| !digits.first().is_some_and(u8::is_ascii_digit))
        };
        let is_no_operation = self.operation.is_some_and(|at| {
            row.get(at)
                .is_some_and(|c| operation(c.trim_ascii()).is_none())
        });
        is_named || is_no_number(self.time) || is_no_number(self.size) || is_no_operation
    }
}

pub(super) fn chosen<E: From<Error>>(
    input: &mut dyn BufRead,
    table: &TableLayout,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    let delimiter = match table.delimiter {
        Some(delimiter) => delimiter,
        None => guess_delimiter(input.fill_buf().map_err(super::unreadable)?),
    };
    let mut tenants = NameIndex::default();
    let mut found = None;
    each_row(input, delimiter, |line, row| {
        let positions = match &found {
            Some(positions) => positions,
            None => {
                let positions = Positions::new(table, row, delimiter)?;
                let guess = || positions.is_heading(table, row);
                let is_heading = table.has_header.unwrap_or_else(guess);
                let positions: &Positions = found.insert(positions);
                if is_heading {
                    return Ok(());
                }
                positions
            }
        };
        let parsed: Result<(TraceRecord, _), Unusable> = (|| {
            let key = cell(row, positions.id, NO_KEY)?;
            let as_number = (!table.text_keys).then(|| id_number(key)).flatten();
            let operation = match positions.operation {
                Some(at) => operation(cell(row, at, NO_OPERATION)?).ok_or(NO_OPERATION)?,
                None => RequestOperation::Read,
            };
            let bytes = match positions.size {
                Some(at) if operation == RequestOperation::Delete => {
                    row.get(at).and_then(number).unwrap_or(0)
                }
                Some(at) => number(cell(row, at, NO_SIZE)?).ok_or(NO_SIZE)?,
                None => 1,
            };
            let time_us = match positions.time {
                Some(at) => seconds(cell(row, at, NO_TIME)?).ok_or(NO_TIME)?,
                None => 0,
            };
            let ttl = positions
                .ttl
                .and_then(|at| number(row.get(at)?.trim_ascii()));
            let record = TraceRecord {
                key: as_number.unwrap_or_else(|| hash(key)),
                bytes,
                operation,
                time_us,
                ttl_s: ttl.filter(|&ttl| ttl > 0),
                tenant: positions.tenant.map_or(0, |at| {
                    tenants.index(row.get(at).unwrap_or_default().trim_ascii())
                }),
            };
            Ok((record, as_number.is_some()))
        })();
        match parsed {
            Ok((record, is_number)) => {
                sink.summary.number_keys += u64::from(is_number);
                sink.summary.text_keys += u64::from(!is_number);
                sink.push(line, record)
            }
            Err(why) => {
                sink.summary
                    .skip(line, || format!("{why}: {}", shown(row, delimiter)));
                Ok(())
            }
        }
    })?;
    sink.summary.tenants = tenants.into_names();
    Ok(())
}

/// A key that is a whole number: decimal, perhaps negative, or hexadecimal after `0x`.
fn id_number(key: &[u8]) -> Option<u64> {
    if let Some(plain) = number(key) {
        return Some(plain);
    }
    let text = std::str::from_utf8(key).ok()?;
    if let Some(digits) = text.strip_prefix("0x") {
        let is_plain = digits.starts_with(|c: char| c.is_ascii_hexdigit());
        return is_plain
            .then(|| u64::from_str_radix(digits, 16).ok())
            .flatten();
    }
    let negative = text.strip_prefix('-')?;
    number(negative.as_bytes())?;
    text.parse::<i64>().ok().map(i64::cast_unsigned)
}

/// The most frequent of the usual delimiters in the first line.
fn guess_delimiter(start: &[u8]) -> u8 {
    let line = start
        .split(|&b| b == b'\n')
        .find(|line| !line.starts_with(b"#"));
    let count =
        |delimiter: u8| line.map_or(0, |line| line.iter().filter(|&&b| b == delimiter).count());
    let by_count = [b' ', b'|', b';', b'\t', b',']
        .into_iter()
        .max_by_key(|&d| count(d));
    by_count.filter(|&d| count(d) > 0).unwrap_or(b',')
}
