//! `memgauge export`: writes a recording in the format of another tool.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use memgauge_analyze::{Options, SortColumn, Summary, stacked_samples};
use memgauge_console::access::OutputDirectory;
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::whole_file::{self, WholeFile};
use memgauge_export::{Error, TableFormat, write, write_firefox, write_perf, write_tables};
use memgauge_recording::{Recording, Selection};
use memgauge_symbols::Symbols;
use memgauge_trace::{CodeValue, EventId};

use crate::fetched::fetch;
use crate::report::sorted_summary;

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Recording, or the URL of a packed one
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    /// Format (docs/export.md)
    #[arg(short, long, value_name = "FORMAT")]
    format: ExportFormat,
    /// File to write, for arrow and csv a folder; `-` is standard output, the default for text
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Event that folded stacks count (default: the one sampled most where stacks were recorded,
    /// else the one that orders the report's functions; heap.peak_bytes, heap.unfreed_bytes,
    /// heap.untouched_bytes, heap.bytes and heap.allocations count allocations by their calls); for firefox and perf, the one event
    /// whose samples are written (default: all)
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// For arrow and csv, sort every table that has this column by it, as `report --sort` does
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
}

/// Formats of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// Tables for pandas, polars, R, DuckDB: a folder of Arrow IPC files
    Arrow,
    /// callgrind_annotate, KCachegrind: all events by source line
    Callgrind,
    /// Tables for spreadsheets, pandas, R: a folder of files
    Csv,
    /// profiler.firefox.com: samples by thread with their stacks, curves, values; JSON
    Firefox,
    /// Flame graphs: one event by function, inlined ones stacked
    Folded,
    /// Prometheus' scrapes: totals, miss ratios, losses
    Openmetrics,
    /// OpenTelemetry collectors: metrics as protobuf
    Otlp,
    /// OpenTelemetry profiles as protobuf, unstable (v1development): all events by instruction
    OtlpProfiles,
    /// perf report, perf script, perf mem: samples as a perf.data file
    Perf,
    /// ui.perfetto.dev: each event's rate over time
    Perfetto,
    /// node_exporter's textfile collector: the same in Prometheus' own text format
    Prometheus,
    /// pprof: all events by instruction
    Pprof,
}

impl ExportFormat {
    fn is_folder(self) -> bool {
        matches!(self, ExportFormat::Arrow | ExportFormat::Csv)
    }

    fn is_text(self) -> bool {
        let is_text = |format| memgauge_export::Format::is_text(format);
        self == ExportFormat::Firefox || self.of_summary().is_some_and(is_text)
    }

    /// True if the format contains single samples.
    fn is_of_samples(self) -> bool {
        matches!(self, ExportFormat::Firefox | ExportFormat::Perf)
    }

    /// The format for [`memgauge_export::write`]. `None` for folders and for formats with samples.
    fn of_summary(self) -> Option<memgauge_export::Format> {
        Some(match self {
            ExportFormat::Callgrind => memgauge_export::Format::Callgrind,
            ExportFormat::Arrow
            | ExportFormat::Csv
            | ExportFormat::Firefox
            | ExportFormat::Perf => return None,
            ExportFormat::Folded => memgauge_export::Format::Folded,
            ExportFormat::Openmetrics => memgauge_export::Format::Openmetrics,
            ExportFormat::Otlp => memgauge_export::Format::Otlp,
            ExportFormat::OtlpProfiles => memgauge_export::Format::OtlpProfiles,
            ExportFormat::Perfetto => memgauge_export::Format::Perfetto,
            ExportFormat::Prometheus => memgauge_export::Format::Prometheus,
            ExportFormat::Pprof => memgauge_export::Format::Pprof,
        })
    }
}

/// Writes the recording in the requested format.
pub(crate) fn export(args: &Export) -> anyhow::Result<Exit> {
    let takes_event = args.format == ExportFormat::Folded || args.format.is_of_samples();
    if args.event.is_some() && !takes_event {
        bail!(usage(
            "--event is for folded stacks, firefox and perf: the other formats hold all events"
        ));
    }
    if args.sort.is_some() && !args.format.is_folder() {
        bail!(usage(
            "--sort is for arrow and csv: the other formats have no order"
        ));
    }
    // Removed when this function returns if it is a copy.
    let fetched;
    let recording = match args.format.is_folder() {
        true => {
            let folder = folder(args)?;
            fetched = fetch(&args.recording)?;
            let recording = Recording::open(fetched.path())?;
            to_folder(args, &recording, folder)?;
            recording
        }
        false => {
            check_output(args)?;
            fetched = fetch(&args.recording)?;
            let recording = Recording::open(fetched.path())?;
            match args.format {
                ExportFormat::Perf => to_perf(args, &recording)?,
                _ => to_file(args, &recording)?,
            }
            recording
        }
    };
    Ok(Exit::after_reading(recording.is_damaged()))
}

/// The output file. `None` is standard output.
fn file(args: &Export) -> Option<&Path> {
    let path = args.output.as_deref();
    path.filter(|path| *path != Path::new("-"))
}

fn check_output(args: &Export) -> anyhow::Result<()> {
    if args.format.is_text() {
        return Ok(());
    }
    if args.output.is_none() {
        bail!(usage(
            "the format is not text: name a file with -o; -o - is standard output"
        ));
    }
    if file(args).is_none() && std::io::stdout().is_terminal() {
        bail!(usage(
            "the format is not text: name a file with -o, or use a pipe"
        ));
    }
    Ok(())
}

fn to_file(args: &Export, recording: &Recording) -> anyhow::Result<()> {
    let summary = summary(recording, None)?;
    // Render everything before creating the file, so that a failure leaves no empty one.
    let mut text = Vec::new();
    let done = match args.format.of_summary() {
        Some(format) => write(&summary, format, args.event.as_deref(), &mut text),
        None => firefox(args, recording, &summary, &mut text)?,
    };
    done.map_err(|why| refused(args, why))?;
    match file(args) {
        Some(path) => {
            let written = whole_file::write(path, &text);
            written.with_context(|| format!("failed to write `{}`", path.display()))
        }
        None => crate::terminal::print_bytes(&text),
    }
}

fn firefox(
    args: &Export,
    recording: &Recording,
    summary: &Summary,
    out: &mut Vec<u8>,
) -> anyhow::Result<Result<(), Error>> {
    let event = sampled_event(args, recording)?;
    let mut symbols = Symbols::of(recording.path());
    let (stacked, mut problems) = stacked_samples(recording, &mut symbols, event)?;
    let mut values: Vec<CodeValue> = Vec::new();
    recording.for_each_intact_batch(&Selection::all(), &mut problems, |rows| {
        values.extend_from_slice(rows);
    })?;
    print_new(&problems, &summary.problems);
    Ok(write_firefox(summary, &stacked, &values, out))
}

/// The only event to export samples of, if requested.
fn sampled_event(args: &Export, recording: &Recording) -> anyhow::Result<Option<EventId>> {
    let Some(name) = &args.event else {
        return Ok(None);
    };
    let events = &recording.manifest().events;
    if let Some(def) = events.iter().find(|def| def.name == *name) {
        return Ok(Some(def.id));
    }
    let known: Vec<String> = events.iter().map(|def| def.name.clone()).collect();
    Err(refused(args, Error::NoEvent(name.clone(), known)))
}

/// Prints problems that were not printed yet.
fn print_new(problems: &[String], printed: &[String]) {
    for problem in problems.iter().filter(|problem| !printed.contains(problem)) {
        eprintln!("memgauge: {problem}");
    }
}

/// Writes through a temporary file, since the file's head is written last.
fn to_perf(args: &Export, recording: &Recording) -> anyhow::Result<()> {
    let event = sampled_event(args, recording)?;
    let name = file(args).unwrap_or(Path::new("-")).display().to_string();
    let failed = || format!("failed to write `{name}`");
    let made = file(args).map_or_else(WholeFile::stdout, WholeFile::create);
    let mut made = made.with_context(failed)?;
    let mut out = BufWriter::new(made.file());
    let written = write_perf(recording, event, &mut out).map_err(|why| refused(args, why))?;
    out.flush().with_context(failed)?;
    drop(out);
    let of_parts = recording.problems();
    print_new(&of_parts, &[]);
    print_new(&written.problems, &of_parts);
    if written.truncated > 0 {
        eprintln!(
            "memgauge: {} samples lack their outermost calls: a record of perf has room for 8000",
            written.truncated
        );
    }
    made.finish().with_context(failed)
}

fn folder(args: &Export) -> anyhow::Result<&Path> {
    let folder = file(args);
    folder.ok_or_else(|| usage("the format is a folder of tables: name it with -o"))
}

fn to_folder(args: &Export, recording: &Recording, folder: &Path) -> anyhow::Result<()> {
    let form = match args.format {
        ExportFormat::Arrow => TableFormat::Arrow,
        _ => TableFormat::Csv,
    };
    let column = args.sort.as_deref().map(SortColumn::new);
    let summary = summary(recording, column.as_ref())?;
    let _output = OutputDirectory::new(folder);
    let written = write_tables(&summary, form, folder).map_err(|why| refused(args, why))?;
    eprintln!(
        "memgauge: wrote {} to {}",
        written.join(", "),
        folder.display()
    );
    Ok(())
}

fn refused(args: &Export, why: Error) -> anyhow::Error {
    let name = args.recording.display();
    let format = args.format.to_possible_value();
    let format = format
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default();
    let message = format!("failed to export `{name}` as {format}: {why}");
    match why {
        Error::NoEvent(..) | Error::NoCounts(_) | Error::NotAFolder(_) | Error::NotEmpty(_) => {
            usage(message)
        }
        _ => anyhow::Error::new(why).context(format!("failed to export `{name}` as {format}")),
    }
}

/// Summary with all rows of each table and the names of all code locations.
fn summary(recording: &Recording, sort: Option<&SortColumn>) -> anyhow::Result<Summary> {
    let summary = sorted_summary(recording, &Options::for_export(), sort)?;
    for problem in &summary.problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(summary)
}
