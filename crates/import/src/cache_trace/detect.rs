//! Recognises a trace by its first bytes.

use super::TraceFormat;
use super::binary::{LCS_MAGIC, ORACLE_GENERAL_BYTES, is_vscsi, u64_at};

/// Minimum number of records that make an `oracleGeneral` trace recognisable.
const MIN_RECORDS: usize = 4;
/// Number of records that are looked at.
const MAX_RECORDS: usize = 2048;
/// Largest step in seconds between two requests of an `oracleGeneral` trace that is recognised.
const MAX_STEP_S: u32 = 7 * 86_400;

/// Returns the format of a trace that starts with these bytes, if it is one that can be
/// recognised. Tables with chosen columns cannot.
pub fn detect(start: &[u8]) -> Option<TraceFormat> {
    if start.len() >= 16 && u64_at(start, 0) == LCS_MAGIC {
        return Some(TraceFormat::Lcs);
    }
    if is_vscsi(start) {
        return Some(TraceFormat::Vscsi);
    }
    if is_oracle_general(start) {
        return Some(TraceFormat::OracleGeneral);
    }
    let text = std::str::from_utf8(&start[..start.len().min(4096)]).ok();
    let line = text.and_then(|text| text.lines().find(|line| !line.starts_with('#')))?;
    detect_table(line)
}

/// Minimum number of records by which an `oracleGeneral` trace is recognised if no record names
/// another one.
const MIN_UNCONFIRMED: usize = 16;
/// Above the number of requests of any trace, and below the addresses of stacks, shared libraries
/// and position-independent programs.
const MAX_REQUESTS: i64 = 1 << 40;
/// Smallest object that cannot be the upper half of an address below [`MAX_REQUESTS`].
const MIN_OBJECT_BYTES: u32 = (MAX_REQUESTS >> 32) as u32;
/// Upper halves of the addresses of stacks, shared libraries and position-independent programs.
const HIGH_HALVES: std::ops::RangeInclusive<u32> = 0x5500..=0x7fff;

/// Times never decrease and steps are small. The next request of an object is later in the trace;
/// where it is among these bytes, it is of the same object. A list of ascending addresses has such
/// times, so at least one record must also say that there is no next request, or name one that is
/// found here. A trace that begins with a long scan has no such record. Its next requests and sizes
/// must then be plausible ([`is_plausible`]).
fn is_oracle_general(start: &[u8]) -> bool {
    let records: Vec<&[u8]> = start
        .chunks_exact(ORACLE_GENERAL_BYTES)
        .take(MAX_RECORDS)
        .collect();
    let time = |record: &[u8]| u64_at(record, 0) as u32;
    let key = |record: &[u8]| u64_at(record, 4);
    let in_order = records.windows(2).all(|pair| {
        let step = time(pair[1]).checked_sub(time(pair[0]));
        step.is_some_and(|step| step <= MAX_STEP_S)
    });
    let mut confirmed = 0;
    for (at, record) in records.iter().enumerate() {
        let next = u64_at(record, 16).cast_signed();
        if next == -1 || next == i64::MAX {
            confirmed += 1;
            continue;
        }
        if next <= at as i64 {
            return false;
        }
        // Requests are counted from 0 or from 1, so the record is one of two.
        let candidates = [next - 1, next].map(|n| records.get(usize::try_from(n).ok()?));
        match candidates
            .into_iter()
            .flatten()
            .any(|r| key(r) == key(record))
        {
            true => confirmed += 1,
            false if candidates[1].is_some() => return false,
            false => {}
        }
    }
    records.len() >= MIN_RECORDS && in_order && (confirmed > 0 || is_plausible(&records))
}

/// True if records that name no other record here cannot be a list of addresses. Every request is
/// the next one of at most one other. In a list of addresses, the size is the upper half of one
/// address and the next request is another address. Both would have to be in different places: a
/// large size in a high mapping, a small number in a low one.
fn is_plausible(records: &[&[u8]]) -> bool {
    let size = |record: &[u8]| (u64_at(record, 8) >> 32) as u32;
    let next = |record: &[u8]| u64_at(record, 16).cast_signed();
    let mut all_next: Vec<i64> = records.iter().map(|r| next(r)).collect();
    all_next.sort_unstable();
    all_next.dedup();
    let large = records.iter().filter(|r| size(r) >= MIN_OBJECT_BYTES);
    let first = records.first().map_or(0, |r| size(r));
    let is_one_mapping = HIGH_HALVES.contains(&first) && records.iter().all(|r| size(r) == first);
    records.len() >= MIN_UNCONFIRMED
        && all_next.len() == records.len()
        && all_next.last().is_some_and(|&last| last < MAX_REQUESTS)
        && 2 * large.count() >= records.len()
        && !is_one_mapping
}

fn detect_table(line: &str) -> Option<TraceFormat> {
    let has = |separator: char, names: &[&str]| {
        let fields: Vec<&str> = line.split(separator).map(str::trim).collect();
        names.iter().all(|name| fields.contains(name))
    };
    if has(',', &["key", "op", "size", "op_count", "key_size"]) {
        return Some(TraceFormat::Meta);
    }
    if line.contains("relative_unix") && line.contains("response_size") {
        return Some(TraceFormat::Wikipedia);
    }
    let fields: Vec<&str> = line.split(',').collect();
    let is_number = |at: usize| {
        fields
            .get(at)
            .is_some_and(|f: &&str| !f.is_empty() && f.bytes().all(|b| b.is_ascii_digit()))
    };
    match fields[..] {
        [_, _, _, "Read" | "Write", _, _, _] if [0, 2, 4, 5].into_iter().all(is_number) => {
            return Some(TraceFormat::Msr);
        }
        [_, _, _, _, _, operation, _]
            if [0, 2, 3, 6].into_iter().all(is_number)
                && super::table::operation(operation.as_bytes()).is_some() =>
        {
            return Some(TraceFormat::Twitter);
        }
        _ => {}
    }
    let is_of_store = line.split([' ', ',']).nth(1)?.starts_with("REST.");
    is_of_store.then_some(TraceFormat::IbmCos)
}
