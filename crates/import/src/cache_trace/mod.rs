//! Traces of cache requests, as storage and cache researchers publish them.
//!
//! [`read`] turns a trace into [`TraceRecord`]s and [`detect`] recognises a format by the first
//! bytes. A *block trace* names ranges of bytes on a device, an *object trace* names objects.
//! Binary formats are in `binary`, tables in `table`. docs/mrc.md says where each format is
//! defined, and which ones were checked against a published trace.
//!
//! A record that cannot be used is skipped and counted, and the first of them is named by its
//! record or line number.

mod binary;
mod detect;
mod table;

use std::fmt;
use std::io::BufRead;
use std::str::FromStr;

pub use detect::detect;
pub use table::{ColumnSelector, TableLayout};

use crate::{Error, ErrorKind};

/// Format of a cache trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceFormat {
    /// libCacheSim's `oracleGeneral`.
    OracleGeneral,
    /// VMware's vSCSI traces, version 1 or 2.
    Vscsi,
    /// libCacheSim's `lcs`, version 1 to 8.
    Lcs,
    /// Block traces of Microsoft Research Cambridge.
    Msr,
    /// Object store traces of IBM Cloud.
    IbmCos,
    /// Twitter's cache clusters.
    Twitter,
    /// Meta's key-value cache traces (CacheLib).
    Meta,
    /// CDN traces of Wikipedia.
    Wikipedia,
    /// A table with chosen columns.
    Table(TableLayout),
}

impl TraceFormat {
    /// All formats but tables.
    const NAMED: [TraceFormat; 8] = [
        TraceFormat::OracleGeneral,
        TraceFormat::Vscsi,
        TraceFormat::Lcs,
        TraceFormat::Msr,
        TraceFormat::IbmCos,
        TraceFormat::Twitter,
        TraceFormat::Meta,
        TraceFormat::Wikipedia,
    ];

    /// Whether requests name ranges of bytes instead of objects.
    pub fn is_of_blocks(&self) -> bool {
        matches!(self, TraceFormat::Vscsi | TraceFormat::Msr)
    }

    /// Whether the reader was checked only against the format's description, because no published
    /// trace was at hand.
    pub fn is_unverified(&self) -> bool {
        matches!(
            self,
            TraceFormat::Msr | TraceFormat::IbmCos | TraceFormat::Wikipedia
        )
    }
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TraceFormat::OracleGeneral => "oracleGeneral",
            TraceFormat::Vscsi => "vscsi",
            TraceFormat::Lcs => "lcs",
            TraceFormat::Msr => "msr",
            TraceFormat::IbmCos => "ibm-cos",
            TraceFormat::Twitter => "twitter",
            TraceFormat::Meta => "meta",
            TraceFormat::Wikipedia => "wikipedia",
            TraceFormat::Table(_) => "csv",
        })
    }
}

impl FromStr for TraceFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = TraceFormat::NAMED
            .into_iter()
            .find(|format| format.to_string().eq_ignore_ascii_case(text));
        match (named, text.strip_prefix("csv:")) {
            (Some(format), _) => Ok(format),
            (None, Some(columns)) => Ok(TraceFormat::Table(columns.parse()?)),
            (None, None) => Err(format!("unknown format `{text}`")),
        }
    }
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOperation {
    /// Reads the object or range.
    Read,
    /// Writes it.
    Write,
    /// Deletes it.
    Delete,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Identifies the object; of a block trace, the first byte.
    pub key: u64,
    /// Size of the object or range in bytes; 1 if the trace has no sizes.
    pub bytes: u64,
    /// Operation of the request.
    pub operation: RequestOperation,
    /// Time in microseconds, 0 if the trace has none. It never decreases: a time before the
    /// previous one is replaced by that one.
    pub time_us: u64,
    /// Lifetime in seconds of what the request inserts, if there is one.
    pub ttl_s: Option<u64>,
    /// Index in [`TraceSummary::tenants`].
    pub tenant: u32,
}

/// Numbers of requests that were read and that were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceSummary {
    /// Records that were used.
    pub records: u64,
    /// Records that could not be used.
    pub skipped: u64,
    /// The first of them, by the number of its record or line, and why.
    pub first_skipped: Option<(u64, String)>,
    /// Requests of size 0, which are not used: they cache nothing.
    pub empty: u64,
    /// Bytes after the last whole record.
    pub cut_bytes: usize,
    /// Records with a time before that of the previous record.
    pub backwards: u64,
    /// The first of them.
    pub first_backwards: Option<u64>,
    /// Keys that were numbers.
    pub number_keys: u64,
    /// Keys that were text and are identified by a 64-bit hash.
    pub text_keys: u64,
    /// Reads, writes and deletions.
    pub operations: [u64; 3],
    /// Names of the tenants.
    pub tenants: Vec<String>,
}

impl TraceSummary {
    /// Notes for readers of the result, in sentences.
    pub fn notes(&self, format: &TraceFormat) -> Vec<String> {
        let unit = match format {
            TraceFormat::OracleGeneral | TraceFormat::Vscsi | TraceFormat::Lcs => "record",
            _ => "line",
        };
        let mut notes = Vec::new();
        if format.is_unverified() {
            notes.push(format!(
                "format {format}: unverified, read by its description without a published trace \
                 to check against"
            ));
        }
        if let Some((number, why)) = &self.first_skipped {
            notes.push(format!(
                "skipped: {} {unit}s, the first is {unit} {number}: {why}",
                self.skipped
            ));
        }
        if self.cut_bytes > 0 {
            notes.push(format!(
                "truncated: {} bytes after the last whole record were skipped",
                self.cut_bytes
            ));
        }
        if self.empty > 0 {
            notes.push(format!("skipped: {} requests of size 0", self.empty));
        }
        if let Some(first) = self.first_backwards {
            notes.push(format!(
                "time goes back at {} {unit}s, first at {unit} {first}; the latest time so far is \
                 used there",
                self.backwards
            ));
        }
        match (self.number_keys, self.text_keys) {
            (_, 0) => {}
            (0, _) => notes.push("keys are identified by 64-bit hashes".to_owned()),
            (numbers, texts) => notes.push(format!(
                "keys are mixed: {numbers} are numbers, {texts} are text and identified by 64-bit \
                 hashes"
            )),
        }
        notes
    }

    fn skip(&mut self, number: u64, why: impl FnOnce() -> String) {
        self.skipped += 1;
        self.first_skipped.get_or_insert_with(|| (number, why()));
    }
}

/// Takes records one by one and counts what is special about them.
struct RecordSink<'a, E> {
    take: &'a mut dyn FnMut(&TraceRecord) -> Result<(), E>,
    summary: TraceSummary,
    time_us: u64,
}

impl<E> RecordSink<'_, E> {
    fn push(&mut self, number: u64, mut record: TraceRecord) -> Result<(), E> {
        if record.time_us < self.time_us {
            self.summary.backwards += 1;
            self.summary.first_backwards.get_or_insert(number);
            record.time_us = self.time_us;
        }
        self.time_us = record.time_us;
        if record.bytes == 0 && record.operation != RequestOperation::Delete {
            self.summary.empty += 1;
            return Ok(());
        }
        self.summary.records += 1;
        self.summary.operations[record.operation as usize] += 1;
        (self.take)(&record)
    }
}

/// Reads a trace that is not compressed.
///
/// # Errors
/// The input cannot be read or has another format, or an error of `take`.
pub fn read<E: From<Error>>(
    input: &mut dyn BufRead,
    format: &TraceFormat,
    take: &mut dyn FnMut(&TraceRecord) -> Result<(), E>,
) -> Result<TraceSummary, E> {
    let mut sink = RecordSink {
        take,
        summary: TraceSummary::default(),
        time_us: 0,
    };
    match format {
        TraceFormat::OracleGeneral => binary::oracle_general(input, &mut sink)?,
        TraceFormat::Vscsi => binary::vscsi(input, &mut sink)?,
        TraceFormat::Lcs => binary::lcs(input, &mut sink)?,
        TraceFormat::Msr => table::msr(input, &mut sink)?,
        TraceFormat::IbmCos => table::ibm_cos(input, &mut sink)?,
        TraceFormat::Twitter => table::twitter(input, &mut sink)?,
        TraceFormat::Meta => table::meta(input, &mut sink)?,
        TraceFormat::Wikipedia => table::wikipedia(input, &mut sink)?,
        TraceFormat::Table(table) => table::chosen(input, table, &mut sink)?,
    }
    Ok(sink.summary)
}

fn bad_input(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadInput, why)
}

fn unreadable(cause: std::io::Error) -> Error {
    Error::system("failed to read the trace", cause)
}

#[cfg(test)]
mod tests;
