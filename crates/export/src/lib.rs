//! Writes a [`Summary`] in the formats of other tools.
//!
//! Places in the code carry every event's count in one profile: pprof, callgrind and
//! folded stacks. Totals and curves over time go to OpenMetrics, OpenTelemetry and Perfetto,
//! tables to CSV or Arrow. Samples one by one go to Firefox Profiler and `perf.data`. All counts of an export add up to those of the summary: what the summary did not
//! resolve stands under [`NOT_LISTED`].

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

pub use otlp::{Instrument, Reading, otlp_metrics};
pub use perf_data::{PerfWritten, write_perf};
pub use tables::Tables;

use openmetrics::TextFormat;

/// Name of the place that counts beyond the resolved ones are put under.
pub const NOT_LISTED: &str = "[not listed]";

/// A format that is one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// callgrind's, for `callgrind_annotate` and KCachegrind: each event by source line.
    Callgrind,
    /// Stacks in one line each, for flame graphs: one event by function.
    Folded,
    /// Text of OpenMetrics 1.0, which Prometheus scrapes: totals, levels, losses.
    Openmetrics,
    /// Metrics of OpenTelemetry, as protobuf: totals, curves, levels, losses.
    Otlp,
    /// A trace of Perfetto: each event's rate over time. Needs a timeline.
    Perfetto,
    /// The same in Prometheus' own text format, as node_exporter's textfile collector reads it.
    Prometheus,
    /// A profile of pprof, gzipped: each event by instruction, with inlined functions.
    Pprof,
}

impl Format {
    /// Whether it is text for people or for pipes.
    pub fn is_text(self) -> bool {
        !matches!(self, Format::Otlp | Format::Perfetto | Format::Pprof)
    }
}

/// Why nothing was written.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The recording names no code: it holds counters alone.
    NoCode {
        /// Whether it has a curve over time.
        has_curves: bool,
    },
    /// The recording has no curve over time.
    NoCurves,
    /// The recording has no sample of the event, or none at all.
    NoSamples,
    /// No place in the code has counts of that event; those are the events that have.
    NoEvent(String, Vec<String>),
    /// The event was counted nowhere in the code.
    NoCounts(String),
    /// No table has a row.
    NoTables,
    /// The folder for tables is another kind of file.
    NotAFolder(PathBuf),
    /// The folder for tables holds files.
    NotEmpty(PathBuf),
    /// The recording could not be read.
    Recording(memgauge_recording::Error),
    /// A table's file, or their folder, could not be written.
    Write(PathBuf, io::Error),
    /// Writing failed.
    Io(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoCode { has_curves } => f.write_str(match has_curves {
                true => {
                    "the recording names no code: use another format: arrow, csv, openmetrics or \
                     perfetto"
                }
                false => "the recording names no code: use another format: arrow, csv or openmetrics",
            }),
            Error::NoCurves => f.write_str(
                "the recording has no curve over time: use another format: arrow, csv or openmetrics",
            ),
            Error::NoSamples => f.write_str(
                "the recording has no samples, or none of that event: use another format: arrow, csv \
                 or openmetrics",
            ),
            Error::NoCounts(event) => write!(
                f,
                "`{event}` is zero in all code: name another event with --event"
            ),
            Error::NoTables => f.write_str("the recording has no row for any table"),
            Error::NotAFolder(path) => {
                write!(f, "`{}` is not a folder: name a new one", path.display())
            }
            Error::NotEmpty(path) => write!(
                f,
                "`{}` is not empty, and its tables would be mixed with these: name a new folder",
                path.display()
            ),
            Error::NoEvent(name, known) => {
                write!(
                    f,
                    "no code has counts of `{name}`: take one of {}",
                    known.join(", ")
                )
            }
            Error::Recording(error) => error.fmt(f),
            Error::Write(path, error) => write!(f, "cannot write `{}`: {error}", path.display()),
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

/// Writes a summary to `out`. `event` is the one that folded stacks count; `None` takes
/// the one sampled most where stacks were recorded, else the one that orders the summary's functions. The other formats hold all events.
///
/// # Errors
/// The summary lacks what the format shows, or writing failed.
pub fn write(
    summary: &Summary,
    format: Format,
    event: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    match format {
        Format::Callgrind => callgrind::write(summary, out),
        Format::Folded => folded::write(summary, event, out),
        Format::Openmetrics => openmetrics::write(summary, TextFormat::Openmetrics, out),
        Format::Prometheus => openmetrics::write(summary, TextFormat::Prometheus, out),
        Format::Otlp => otlp::write(summary, out),
        Format::Perfetto => perfetto::write(summary, out),
        Format::Pprof => pprof::write(summary, out),
    }
}

/// Writes a profile of Firefox Profiler: samples by thread and event, all curves, and the
/// values that the program told.
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

/// Writes the summary's tables as files into `folder`; their names.
///
/// # Errors
/// The folder exists and is not empty, no table has a row, or writing failed.
pub fn write_tables(summary: &Summary, form: Tables, folder: &Path) -> Result<Vec<String>, Error> {
    tables::write(summary, form, folder)
}
