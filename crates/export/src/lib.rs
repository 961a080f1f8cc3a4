//! Writes a [`Summary`] in the formats of other tools.
//!
//! Code with the counts of every event is exported to pprof, OpenTelemetry profiles, callgrind and folded stacks. Totals
//! and curves over time are exported to OpenMetrics, OpenTelemetry and Perfetto, tables to CSV or
//! Arrow, and single samples to Firefox Profiler and `perf.data`. The counts of an export add up to
//! those of the summary: whatever the summary did not resolve is under [`NOT_LISTED`].

#![forbid(unsafe_code)]

mod callgrind;
mod curves;
mod firefox;
mod folded;
mod openmetrics;
mod otlp;
mod perf_data;
mod perfetto;
mod places;
mod pprof;
mod tables;

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use memgauge_analyze::{StackedSamples, Summary};
use memgauge_trace::CodeValue;

pub use otlp::{Instrument, InstrumentValue, otlp_metrics};
pub use perf_data::{PerfWritten, write_perf};
pub use tables::TableFormat;

use openmetrics::MetricsFormat;

/// Name for the counts of code that is not in the summary's tables.
pub const NOT_LISTED: &str = "[not listed]";

/// A format that consists of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Format of `callgrind_annotate` and KCachegrind: each event by source line.
    Callgrind,
    /// One stack per line, for flame graphs: one event by function.
    Folded,
    /// OpenMetrics 1.0 text, which Prometheus scrapes: totals, levels, losses.
    Openmetrics,
    /// OpenTelemetry metrics as protobuf: totals, curves, levels, losses.
    Otlp,
    /// OpenTelemetry profiles as protobuf: each event by instruction. Their definition is unstable
    /// (`v1development`).
    OtlpProfiles,
    /// Perfetto trace: the rate of each event over time. Needs a timeline.
    Perfetto,
    /// The same as OpenMetrics in Prometheus' own text format, for node_exporter's textfile
    /// collector.
    Prometheus,
    /// pprof profile, gzipped: each event by instruction, with inlined functions.
    Pprof,
}

impl Format {
    /// Returns whether the format is text rather than binary.
    pub fn is_text(self) -> bool {
        !matches!(
            self,
            Format::Otlp | Format::OtlpProfiles | Format::Perfetto | Format::Pprof
        )
    }
}

/// Reason why nothing was written.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The recording has counters only and no code.
    NoCode {
        /// Whether the recording has curves over time.
        has_curves: bool,
    },
    /// The recording has no curve over time.
    NoCurves,
    /// The recording has no samples, or none of the event.
    NoSamples,
    /// No code has counts of this event. The events with counts follow.
    NoEvent(String, Vec<String>),
    /// All counts of the event are zero.
    NoCounts(String),
    /// All tables are empty.
    NoTables,
    /// The output folder is not a folder.
    NotAFolder(PathBuf),
    /// The output folder is not empty.
    NotEmpty(PathBuf),
    /// The recording could not be read.
    Recording(memgauge_recording::Error),
    /// A table's file or its folder could not be written.
    Write(PathBuf, io::Error),
    /// Writing failed.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoCode { has_curves } => f.write_str(match has_curves {
                true => {
                    "the recording has no code; use another format: arrow, csv, openmetrics or \
                     perfetto"
                }
                false => "the recording has no code; use another format: arrow, csv or openmetrics",
            }),
            Error::NoCurves => f.write_str(
                "the recording has no curve over time; use another format: arrow, csv or openmetrics",
            ),
            Error::NoSamples => f.write_str(
                "the recording has no samples, or none of this event; use another format: arrow, csv \
                 or openmetrics",
            ),
            Error::NoCounts(event) => write!(
                f,
                "`{event}` is zero in all code; use another event with --event"
            ),
            Error::NoTables => f.write_str("all tables are empty"),
            Error::NotAFolder(path) => {
                write!(f, "`{}` is not a folder; use a new one", path.display())
            }
            Error::NotEmpty(path) => write!(
                f,
                "`{}` is not empty, and its files would be mixed with the tables; use a new folder",
                path.display()
            ),
            Error::NoEvent(name, known) => {
                write!(
                    f,
                    "no code has counts of `{name}`; use one of {}",
                    known.join(", ")
                )
            }
            Error::Recording(error) => error.fmt(f),
            Error::Write(path, error) => write!(f, "failed to write `{}`: {error}", path.display()),
            Error::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Recording(error) => Some(error),
            Error::Write(_, error) | Error::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

impl From<memgauge_recording::Error> for Error {
    fn from(error: memgauge_recording::Error) -> Error {
        Error::Recording(error)
    }
}

/// Writes a summary to `out`. `event` selects the event of folded stacks. The default is the
/// most-sampled event if stacks were recorded, otherwise the event that orders the summary's
/// functions. The other formats contain all events.
///
/// # Errors
/// The summary lacks the data for the format, or writing failed.
pub fn write(
    summary: &Summary,
    format: Format,
    event: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    match format {
        Format::Callgrind => callgrind::write(summary, out),
        Format::Folded => folded::write(summary, event, out),
        Format::Openmetrics => openmetrics::write(summary, MetricsFormat::Openmetrics, out),
        Format::Prometheus => openmetrics::write(summary, MetricsFormat::Prometheus, out),
        Format::Otlp => otlp::write(summary, out),
        Format::OtlpProfiles => otlp::write_profiles(summary, out),
        Format::Perfetto => perfetto::write(summary, out),
        Format::Pprof => pprof::write(summary, out),
    }
}

/// Writes a Firefox Profiler profile: samples by thread and event, all curves, and the values that
/// the program reported.
///
/// # Errors
/// There are neither samples nor curves, or writing failed.
pub fn write_firefox(
    summary: &Summary,
    stacked: &StackedSamples,
    values: &[CodeValue],
    out: &mut dyn Write,
) -> Result<(), Error> {
    firefox::write(summary, stacked, values, out)
}

/// Writes the summary's tables as files into `folder` and returns the names of the files.
///
/// # Errors
/// The folder exists and is not empty, all tables are empty, or writing failed.
pub fn write_tables(
    summary: &Summary,
    format: TableFormat,
    folder: &Path,
) -> Result<Vec<String>, Error> {
    tables::write(summary, format, folder)
}
