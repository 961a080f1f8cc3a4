//! Binary traces. All numbers are little-endian.
//!
//! ```text
//! oracleGeneral, 24 bytes   u32 time (s) | u64 object | u32 bytes | i64 next request
//! lcs 1,         24 bytes   the same, after a header of 8192 bytes
//! lcs 2,         28 bytes   u32 time | u64 object | u32 bytes | u8 op, u24 tenant | i64 next
//! lcs 3 to 8,    36 bytes   u32 time | u64 object | i64 bytes | u8 op, u24 tenant | u32 TTL (s)
//!                           | i64 next, and 0, 1, 2, 4, 8 or 16 features of 4 bytes each
//! vscsi 1,       32 bytes   u32 number | u32 bytes | u32 segments | u16 command | u16 version
//!                           | u64 block of 512 bytes | u64 time (µs)
//! vscsi 2,       40 bytes   u16 command | u16 version | u32 number | u32 bytes | u32 segments
//!                           | u64 block | u64 time (µs) | u64 response time
//! ```
//!
//! For example, the first request of libCacheSim's cloudPhysicsIO.oracleGeneral.bin is
//! `6af75500 091a8f0200000000 00020000 ffffffffffffffff`: at 5 633 898 s, object 42 932 745 of
//! 512 bytes, which is not requested again.

use std::io::{BufRead, ErrorKind};

use super::{RecordSink, RequestOperation, TraceRecord, bad_input, unreadable};
use crate::Error;

pub(super) const ORACLE_GENERAL_BYTES: usize = 24;
pub(super) const LCS_MAGIC: u64 = 0x1234_5678_9abc_def0;
const LCS_HEADER_BYTES: usize = 8192;
/// Bytes of a record by the version of an lcs trace, from 1.
const LCS_RECORD_BYTES: [usize; 8] = [24, 28, 36, 40, 44, 52, 68, 100];
/// Bytes of a vSCSI block.
const SECTOR_BYTES: u64 = 512;
const MICROSECONDS: u64 = 1_000_000;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |b| u16::from_le_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |b| u32::from_le_bytes(*b))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |b| u64::from_le_bytes(*b))
}

/// Fills the buffer as far as the input goes and returns the number of bytes.
fn fill(input: &mut dyn BufRead, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(unreadable(e)),
        }
    }
    Ok(filled)
}

/// Calls `take` with each record of fixed size and its number from 1. Returns the bytes after the
/// last whole one.
fn each_record<E: From<Error>>(
    input: &mut dyn BufRead,
    record_bytes: usize,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let mut buffer = vec![0; record_bytes * 4096];
    let mut number = 0;
    loop {
        let filled = fill(input, &mut buffer)?;
        let records = buffer[..filled].chunks_exact(record_bytes);
        let cut = records.remainder().len();
        for record in records {
            number += 1;
            take(number, record)?;
        }
        if filled < buffer.len() {
            return Ok(cut);
        }
    }
}

pub(super) fn oracle_general<E: From<Error>>(
    input: &mut dyn BufRead,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    let cut = each_record(input, ORACLE_GENERAL_BYTES, |number, record| {
        sink.summary.number_keys += 1;
        sink.push(number, plain_record(record))
    })?;
    sink.summary.cut_bytes = cut;
    Ok(())
}

fn plain_record(record: &[u8]) -> TraceRecord {
    TraceRecord {
        key: u64_at(record, 4),
        bytes: u32_at(record, 12).into(),
        operation: RequestOperation::Read,
        time_us: u64::from(u32_at(record, 0)) * MICROSECONDS,
        ttl_s: None,
        tenant: 0,
    }
}

pub(super) fn lcs<E: From<Error>>(
    input: &mut dyn BufRead,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    let mut header = vec![0; LCS_HEADER_BYTES];
    let filled = fill(input, &mut header)?;
    let version = u64_at(&header, 8);
    if filled < LCS_HEADER_BYTES
        || u64_at(&header, 0) != LCS_MAGIC
        || u64_at(&header, LCS_HEADER_BYTES - 8) != LCS_MAGIC
    {
        return Err(bad_input("failed to read lcs: the header of 8192 bytes is damaged").into());
    }
    let record_bytes = version
        .checked_sub(1)
        .and_then(|at| LCS_RECORD_BYTES.get(at as usize));
    let Some(&record_bytes) = record_bytes else {
        let why = format!("failed to read lcs: version {version} is not known (1 to 8 are)");
        return Err(bad_input(why).into());
    };
    let mut tenants = super::table::NameIndex::default();
    let cut = each_record(input, record_bytes, |number, bytes| {
        sink.summary.number_keys += 1;
        let mut record = plain_record(bytes);
        if version == 1 {
            return sink.push(number, record);
        }
        let at = if version == 2 { 16 } else { 20 };
        if version > 2 {
            record.bytes = u64_at(bytes, 12);
            record.ttl_s = Some(u32_at(bytes, 24).into()).filter(|&ttl| ttl > 0);
        }
        let Some(operation) = lcs_operation(bytes[at]) else {
            sink.summary
                .skip(number, || format!("operation {}", bytes[at]));
            return Ok(());
        };
        record.operation = operation;
        let tenant = (u32_at(bytes, at) >> 8).to_string();
        record.tenant = tenants.index(tenant.as_bytes());
        sink.push(number, record)
    })?;
    sink.summary.cut_bytes = cut;
    sink.summary.tenants = tenants.into_names();
    Ok(())
}

/// Operations as libCacheSim numbers them.
fn lcs_operation(code: u8) -> Option<RequestOperation> {
    match code {
        // Traces without operations have 0.
        0..=2 | 12 => Some(RequestOperation::Read),
        3..=8 | 10 | 11 | 13 | 14 => Some(RequestOperation::Write),
        9 => Some(RequestOperation::Delete),
        _ => None,
    }
}

/// Where a vSCSI version has its fields.
#[derive(Clone, Copy)]
struct VscsiLayout {
    version: u16,
    record_bytes: usize,
    command_at: usize,
    version_at: usize,
    length_at: usize,
    block_at: usize,
    time_at: usize,
}

const VSCSI_LAYOUTS: [VscsiLayout; 2] = [
    VscsiLayout {
        version: 2,
        record_bytes: 40,
        command_at: 0,
        version_at: 2,
        length_at: 8,
        block_at: 16,
        time_at: 24,
    },
    VscsiLayout {
        version: 1,
        record_bytes: 32,
        command_at: 12,
        version_at: 14,
        length_at: 4,
        block_at: 16,
        time_at: 24,
    },
];

/// The layout whose version number is in each of the first records. One record suffices if there
/// are no more.
fn vscsi_layout(start: &[u8]) -> Option<VscsiLayout> {
    VSCSI_LAYOUTS.into_iter().find(|layout| {
        let mut records = start.chunks_exact(layout.record_bytes).take(64).peekable();
        records.peek().is_some()
            && records.all(|record| {
                u16_at(record, layout.version_at) >> 8 == layout.version
                    && scsi_operation(u16_at(record, layout.command_at)).is_some()
            })
    })
}

pub(super) fn is_vscsi(start: &[u8]) -> bool {
    vscsi_layout(start).is_some()
}

pub(super) fn vscsi<E: From<Error>>(
    input: &mut dyn BufRead,
    sink: &mut RecordSink<'_, E>,
) -> Result<(), E> {
    let start = input.fill_buf().map_err(unreadable)?;
    let Some(layout) = vscsi_layout(start) else {
        if start.is_empty() {
            return Ok(());
        }
        let why = "failed to read vscsi: the first records have neither version 1 nor 2";
        return Err(bad_input(why).into());
    };
    let cut = each_record(input, layout.record_bytes, |number, bytes| {
        let command = u16_at(bytes, layout.command_at);
        let block = u64_at(bytes, layout.block_at);
        let (Some(operation), Some(key)) =
            (scsi_operation(command), block.checked_mul(SECTOR_BYTES))
        else {
            sink.summary
                .skip(number, || format!("command {command:#x} of block {block}"));
            return Ok(());
        };
        sink.summary.number_keys += 1;
        let record = TraceRecord {
            key,
            bytes: u32_at(bytes, layout.length_at).into(),
            operation,
            time_us: u64_at(bytes, layout.time_at),
            ttl_s: None,
            tenant: 0,
        };
        sink.push(number, record)
    })?;
    sink.summary.cut_bytes = cut;
    Ok(())
}

/// READ and WRITE of 6, 10, 12 and 16 bytes.
fn scsi_operation(command: u16) -> Option<RequestOperation> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(RequestOperation::Read),
        0x0a | 0x2a | 0xaa | 0x8a => Some(RequestOperation::Write),
        _ => None,
    }
}
