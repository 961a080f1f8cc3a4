//! `memgauge report`.

use memgauge_analyze::{Limits, Options, summarise, summarise_io};
use memgauge_recording::Recording;
use memgauge_report::{IoOrder, Style, io_json, io_text, json, text};

use crate::args::Report;
use crate::outcome::Exit;
use crate::symbols::Symbols;
use crate::{page, terminal};

/// Rows in each table unless asked otherwise.
pub(crate) const DEFAULT_ROWS: usize = 10;

/// Shows a recording on standard output.
pub(crate) fn report(args: &Report) -> anyhow::Result<Exit> {
    let path = args.input.as_ref().unwrap_or(&args.recording);
    let recording = Recording::open(path)?;
    if args.html {
        return page::write_report(&recording, args);
    }
    let style = terminal::style(terminal::stdout_is_terminal());
    let rows = args.rows.unwrap_or(DEFAULT_ROWS);
    terminal::print(&render(&recording, style, args.json, rows)?)?;
    Ok(Exit::Success)
}

/// The report as text or JSON.
pub(crate) fn render(
    recording: &Recording,
    style: Style,
    as_json: bool,
    rows: usize,
) -> anyhow::Result<String> {
    if recording.manifest().source.name == "io" {
        return render_io(recording, style, as_json, rows);
    }
    let limits = Limits {
        rows,
        ..Limits::default()
    };
    let options = Options {
        limits,
        regions: rows,
        ..Options::default()
    };
    let summary = summarise(recording, &mut Symbols::of(recording.path()), &options)?;
    for problem in &summary.problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(if as_json {
        json(&summary)
    } else {
        text(&summary, &style)
    })
}

fn render_io(
    recording: &Recording,
    style: Style,
    as_json: bool,
    rows: usize,
) -> anyhow::Result<String> {
    let (summary, problems) = summarise_io(recording)?;
    for problem in &problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(if as_json {
        io_json(&summary)
    } else {
        io_text(&summary, IoOrder::Total, rows, &style)
    })
}
