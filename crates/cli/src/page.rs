//! Creates the HTML page of a recording.

use std::path::Path;

use anyhow::{Context, bail};
use memgauge_analyze::{
    IoSummary, Limits, Options, Rank, Summary, summarise, summarise_io_over_time,
};
use memgauge_recording::Recording;
use memgauge_report::{NO_FRONT_END, Page, has_front_end};

use crate::outcome::take_in_damage;
use crate::{terminal, whole_file};
use memgauge_symbols::Symbols;

/// Default number of rows in each table of a page.
const ROWS: usize = 100;

/// Contents of a page.
pub(crate) enum Results {
    /// A recording of a run.
    Run(Box<Summary>),
    /// A recording of I/O, and messages about parts that could not be read.
    Io(Box<IoSummary>, Vec<String>),
}

impl Results {
    /// Everything that a page shows of a recording.
    pub(crate) fn of(recording: &Recording, rows: Option<usize>) -> anyhow::Result<Results> {
        Results::ranked(recording, rows, None)
    }

    /// As [`of`](Self::of), with code in this order.
    pub(crate) fn ranked(
        recording: &Recording,
        rows: Option<usize>,
        rank: Option<Rank>,
    ) -> anyhow::Result<Results> {
        if recording.manifest().source.name == "io" {
            let (io, problems) = summarise_io_over_time(recording)?;
            take_in_damage(recording);
            return Ok(Results::Io(Box::new(io), problems));
        }
        let rows = rows.unwrap_or(ROWS);
        let options = Options {
            limits: Limits {
                rows,
                every_order: true,
                ..Limits::default()
            },
            regions: rows,
            timeline: true,
            rank,
            ..Options::default()
        };
        let mut symbols = Symbols::of(recording.path());
        let summary = summarise(recording, &mut symbols, &options)?;
        take_in_damage(recording);
        Ok(Results::Run(Box::new(summary)))
    }

    /// Creates the page.
    pub(crate) fn page(&self, recording: &Recording) -> Page<'_> {
        let command = recording.manifest().command.join(" ");
        let name = recording.path().display().to_string();
        let mut page = Page {
            title: if command.is_empty() { name } else { command },
            ..Page::default()
        };
        match self {
            Results::Run(summary) => page.summary = Some(summary),
            Results::Io(io, problems) => {
                page.io = Some(io);
                page.problems = problems.clone();
            }
        }
        page
    }

    /// Prints what could not be read to standard error.
    pub(crate) fn say_problems(&self) {
        let problems = match self {
            Results::Run(summary) => &summary.problems,
            Results::Io(_, problems) => problems,
        };
        for problem in problems {
            eprintln!("memgauge: {problem}");
        }
    }
}

/// Writes the page of a recording whose text report was just shown.
pub(crate) fn write_recording(recording: &Recording, path: &Path) -> anyhow::Result<()> {
    let results = Results::of(recording, None)?;
    write(&results.page(recording), path)
}

/// Fails early if this memgauge cannot write pages.
pub(crate) fn check() -> anyhow::Result<()> {
    if !has_front_end() {
        bail!("{NO_FRONT_END}");
    }
    Ok(())
}

/// Writes a page and prints its path. `-` is standard output.
pub(crate) fn write(page: &Page, path: &Path) -> anyhow::Result<()> {
    let html = page.html().context(NO_FRONT_END)?;
    if path == Path::new("-") {
        return terminal::print(&html);
    }
    let failed = || format!("failed to write `{}`", path.display());
    whole_file::write(path, html.as_bytes()).with_context(failed)?;
    eprintln!("page: {}", path.display());
    Ok(())
}
