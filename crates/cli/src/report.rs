//! `memgauge report`: shows a recording.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memgauge_analyze::{Options, Rank, SortColumn, Summary, TableLimits, file_name, summarise};
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::{terminal, whole_file};
use memgauge_recording::Recording;
use memgauge_report::{Page, Style, json, text};
use memgauge_symbols::{Symbols, debug_package};
use serde_json::Value;

use crate::args::Report;
use crate::fetched::fetch;
use crate::{diff, page};

/// Default number of rows in each table.
pub(crate) const DEFAULT_ROWS: usize = Style::ROWS;

/// Prints a recording to standard output.
pub(crate) fn report(args: &Report) -> anyhow::Result<Exit> {
    let path = args.input.as_ref().unwrap_or(&args.recording);
    let fetched = fetch(path)?;
    let recording = Recording::open(fetched.path())?;
    if args.html {
        return write_page(&recording, args);
    }
    if let Some(path) = &args.baseline {
        let name = path.display();
        let file = diff::measure(&recording, None)?.file();
        whole_file::write(path, file.as_bytes())
            .with_context(|| format!("failed to write `{name}`"))?;
        return Ok(Exit::after_reading(recording.is_damaged()));
    }
    let file = args
        .output
        .as_deref()
        .filter(|path| *path != Path::new("-"));
    let style = terminal::style(file.is_none() && terminal::stdout_is_terminal());
    let rows = args.rows.unwrap_or(DEFAULT_ROWS);
    let rank = args.event.as_deref().map(|e| ranked_by(&recording, e));
    let contents = TableContents {
        rows,
        rank: rank.transpose()?,
        sort: args.sort.as_deref().map(SortColumn::new),
    };
    let text = render(&recording, style, args.json, contents)?;
    match file {
        Some(path) => whole_file::write(path, text.as_bytes())
            .with_context(|| format!("failed to write `{}`", path.display()))?,
        None => terminal::print(&text)?,
    }
    Ok(Exit::after_reading(recording.is_damaged()))
}

/// Contents of the tables.
pub(crate) struct TableContents {
    pub(crate) rows: usize,
    /// Sort order of code. `None` selects the most suitable one.
    pub(crate) rank: Option<Rank>,
    /// Column by which every table that has it is sorted.
    pub(crate) sort: Option<SortColumn>,
}

/// A summary sorted by a column, if there is one.
pub(crate) fn sorted_summary(
    recording: &Recording,
    options: &Options,
    column: Option<&SortColumn>,
) -> anyhow::Result<Summary> {
    let mut symbols = Symbols::of(recording.path());
    let Some(column) = column else {
        return Ok(summarise(recording, &mut symbols, options)?);
    };
    let mut summary = summarise(recording, &mut symbols, &options.every_row())?;
    let sorted = summary.sort_by(column, options);
    sorted.map_err(|unknown| usage(unknown.to_string()))?;
    Ok(summary)
}

/// Sort order by an event of the recording.
pub(crate) fn ranked_by(recording: &Recording, event: &str) -> anyhow::Result<Rank> {
    Rank::named(event, recording.manifest()).map_err(usage)
}

/// Refuses a sort order by which no code location has counts.
fn check_rank(summary: &Summary, rank: Option<&Rank>) -> anyhow::Result<()> {
    match rank {
        Some(rank) => summary.check_rank(&rank.name).map_err(usage),
        None => Ok(()),
    }
}

/// The report as text or JSON.
pub(crate) fn render(
    recording: &Recording,
    style: Style,
    as_json: bool,
    contents: TableContents,
) -> anyhow::Result<String> {
    let limits = TableLimits {
        rows: contents.rows,
        ..TableLimits::default()
    };
    let options = Options {
        limits,
        regions: contents.rows,
        rank: contents.rank,
        ..Options::default()
    };
    let summary = sorted_summary(recording, &options, contents.sort.as_ref())?;
    check_rank(&summary, options.rank.as_ref())?;
    for problem in &summary.problems {
        eprintln!("memgauge: {problem}");
    }
    if !as_json {
        name_debug_packages(&summary);
    }
    Ok(if as_json {
        json(&summary)
    } else {
        text(
            &summary,
            &Style {
                rows: contents.rows,
                ..style
            },
        )
    })
}

/// Names the packages of this machine that have the symbols of unnamed hot code.
fn name_debug_packages(summary: &Summary) {
    for code in &summary.unnamed {
        if let Some(package) = debug_package(&code.module) {
            eprintln!(
                "memgauge: no symbols for {}: install {package}, or set DEBUGINFOD_URLS when \
                 recording",
                file_name(&code.module)
            );
        }
    }
}

/// `memgauge report --html`.
fn write_page(recording: &Recording, args: &Report) -> anyhow::Result<Exit> {
    page::check()?;
    let curves = args.curves.as_deref().map(curves_of).transpose()?;
    let rank = args.event.as_deref().map(|e| ranked_by(recording, e));
    let rank = rank.transpose()?;
    let summary = page::summary(recording, args.rows, rank.clone())?;
    check_rank(&summary, rank.as_ref())?;
    for problem in &summary.problems {
        eprintln!("memgauge: {problem}");
    }
    let page = Page {
        curves: curves.unwrap_or_default(),
        ..page::page(&summary, recording)
    };
    let path = args.output.clone();
    let path = path.unwrap_or_else(|| beside(recording.path()));
    page::write(&page, &path)?;
    Ok(Exit::after_reading(recording.is_damaged()))
}

/// Default path of a page: the recording's path with another suffix.
fn beside(recording: &Path) -> PathBuf {
    // `.` and `..` have no file name.
    let named = recording.canonicalize().ok();
    let path = named.unwrap_or_else(|| recording.to_owned());
    let name = path.file_stem().map(|stem| stem.to_os_string());
    let mut file = name.unwrap_or_else(|| "memgauge".into());
    file.push(".html");
    match recording
        .parent()
        .filter(|_| recording.file_name().is_some())
    {
        Some(folder) => folder.join(file),
        None => PathBuf::from(file),
    }
}

/// Reads curves from a file written by `mrc --json`.
fn curves_of(path: &Path) -> anyhow::Result<Vec<Value>> {
    let name = path.display();
    let text = std::fs::read(path).with_context(|| format!("failed to read `{name}`"))?;
    let json: Value = serde_json::from_slice(&text).ok().unwrap_or_default();
    let curves = json.get("curves").and_then(Value::as_array);
    let Some(curves) = curves.filter(|all| all.iter().all(|c| c.get("points").is_some())) else {
        bail!("failed to read curves of `{name}`: it is no file of `memgauge mrc --json=FILE`");
    };
    Ok(curves.clone())
}
