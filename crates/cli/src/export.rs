//! `memgauge export`: a recording in the format of another tool.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use memgauge_analyze::{Limits, Options, Summary, summarise};
use memgauge_export::{Error, Tables, write, write_tables};
use memgauge_recording::Recording;
use memgauge_symbols::Symbols;

use crate::outcome::{Exit, take_in_damage, usage};

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Recording
    #[arg(value_name = "DIR")]
    recording: PathBuf,
    /// Format (docs/export.md)
    #[arg(short, long, value_name = "FORMAT")]
    format: Format,
    /// File to write, for arrow and csv a folder; `-` is standard output, the default for text
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Event that folded stacks count (default: the one that orders the report's functions)
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
}

/// Formats of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables for pandas, polars, R, DuckDB: a folder of Arrow IPC files
    Arrow,
    /// callgrind_annotate, KCachegrind: all events by source line
    Callgrind,
    /// Tables for spreadsheets, pandas, R: a folder of files
    Csv,
    /// Flame graphs: one event by function, inlined ones stacked
    Folded,
    /// Prometheus: totals, miss ratios, losses
    Openmetrics,
    /// ui.perfetto.dev: each event's rate over time
    Perfetto,
    /// pprof: all events by instruction
    Pprof,
}

impl Format {
    /// `None` for those that are a folder.
    fn of_file(self) -> Option<memgauge_export::Format> {
        Some(match self {
            Format::Callgrind => memgauge_export::Format::Callgrind,
            Format::Arrow | Format::Csv => return None,
            Format::Folded => memgauge_export::Format::Folded,
            Format::Openmetrics => memgauge_export::Format::Openmetrics,
            Format::Perfetto => memgauge_export::Format::Perfetto,
            Format::Pprof => memgauge_export::Format::Pprof,
        })
    }
}

/// Writes the recording in the format asked for.
pub(crate) fn export(args: &Export) -> anyhow::Result<Exit> {
    if args.event.is_some() && args.format != Format::Folded {
        bail!(usage(
            "--event is for folded stacks: the other formats hold all events"
        ));
    }
    match args.format.of_file() {
        Some(format) => to_file(args, format)?,
        None => to_folder(args)?,
    }
    Ok(Exit::Success)
}

fn to_file(args: &Export, format: memgauge_export::Format) -> anyhow::Result<()> {
    let to_stdout = args
        .output
        .as_deref()
        .is_none_or(|path| path == Path::new("-"));
    if to_stdout && !format.is_text() && std::io::stdout().is_terminal() {
        bail!(usage(
            "the format is not text: name a file with -o, or use a pipe"
        ));
    }
    if args.output.is_none() && !format.is_text() {
        bail!(usage(
            "the format is not text: name a file with -o; -o - is standard output"
        ));
    }
    let summary = summary(&args.recording)?;
    let event = args.event.as_deref();
    // All of it before the file is made: a failure must not leave an empty one.
    let mut text = Vec::new();
    write(&summary, format, event, &mut text).map_err(|why| refused(args, why))?;
    match args.output.as_deref() {
        Some(path) if !to_stdout => {
            let written = File::create(path).map(BufWriter::new).and_then(|mut file| {
                file.write_all(&text)?;
                file.flush()
            });
            written.with_context(|| format!("failed to write `{}`", path.display()))
        }
        _ => crate::terminal::print_bytes(&text),
    }
}

fn to_folder(args: &Export) -> anyhow::Result<()> {
    let Some(folder) = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"))
    else {
        bail!(usage("the format is a folder of tables: name it with -o"));
    };
    let form = match args.format {
        Format::Arrow => Tables::Arrow,
        _ => Tables::Csv,
    };
    let summary = summary(&args.recording)?;
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
        _ => anyhow::anyhow!(message),
    }
}

/// Everything: no row of a table is left out, every place in the code has a name.
fn summary(path: &Path) -> anyhow::Result<Summary> {
    let recording = Recording::open(path)?;
    if recording.manifest().source.name == "io" {
        let name = path.display();
        bail!(usage(format!(
            "failed to export `{name}`: recordings of `memgauge io` have `report --json`"
        )));
    }
    let options = Options {
        limits: Limits {
            rows: usize::MAX,
            resolved_places: usize::MAX,
        },
        regions: usize::MAX,
        timeline: true,
        ..Options::default()
    };
    let summary = summarise(&recording, &mut Symbols::of(path), &options)?;
    take_in_damage(&recording);
    for problem in &summary.problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(summary)
}
