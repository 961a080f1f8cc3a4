//! Creates the HTML page of a recording.

use std::path::Path;

use memgauge_analyze::{Options, Rank, Summary, TableLimits, summarise};
pub(crate) use memgauge_console::page::{check, write};
use memgauge_recording::Recording;
use memgauge_report::Page;
use memgauge_symbols::Symbols;

/// Default number of rows in each table of a page.
const ROWS: usize = 100;

/// Everything that a page shows of a recording, with code ranked by `rank`.
pub(crate) fn summary(
    recording: &Recording,
    rows: Option<usize>,
    rank: Option<Rank>,
) -> anyhow::Result<Summary> {
    let mut symbols = Symbols::of(recording.path());
    summary_with(recording, &mut symbols, rows, rank)
}

/// As [`summary`], with names of code from `symbols`.
pub(crate) fn summary_with(
    recording: &Recording,
    symbols: &mut Symbols,
    rows: Option<usize>,
    rank: Option<Rank>,
) -> anyhow::Result<Summary> {
    let rows = rows.unwrap_or(ROWS);
    let options = Options {
        limits: TableLimits {
            rows,
            every_order: true,
            ..TableLimits::default()
        },
        regions: rows,
        timeline: true,
        rank,
        ..Options::default()
    };
    Ok(summarise(recording, symbols, &options)?)
}

/// The page with a recording's summary. Its title is the recorded command.
pub(crate) fn page<'a>(summary: &'a Summary, recording: &Recording) -> Page<'a> {
    let command = recording.manifest().command.join(" ");
    let name = recording.path().display().to_string();
    Page {
        title: if command.is_empty() { name } else { command },
        summary: Some(summary),
        ..Page::default()
    }
}

/// Writes the page of a recording whose text report was just shown.
pub(crate) fn write_recording(recording: &Recording, path: &Path) -> anyhow::Result<()> {
    let summary = summary(recording, None, None)?;
    write(&page(&summary, recording), path)
}
