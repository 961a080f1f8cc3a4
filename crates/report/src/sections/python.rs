//! Lines of Python by cycles, or by the sampled event.

use memgauge_analyze::{PythonRow, Summary, file_name};

use super::{or_none, plural, provenance, sorted};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// With a smaller share of the cycles, a program merely starts Python at times.
const LEAST_SHARE: f64 = 0.1;

/// Keys of the table's columns.
const KEYS: [&str; 7] = [
    "share",
    "cycles",
    "stalled_cycles",
    "l1d.miss",
    "llc.miss",
    "file",
    "function",
];

pub(super) fn lines(summary: &Summary, style: &Style) -> String {
    let Some(python) = &summary.python else {
        return String::new();
    };
    let Some(share) = python.share.filter(|&share| share >= LEAST_SHARE) else {
        return String::new();
    };
    let sort = sorted::column(summary, &python.lines);
    let is_sampled = summary.recording.machine.is_none();
    let shown: Vec<&str> = KEYS.into_iter().chain([&*python.rank]).collect();
    let extra = sorted::unless_shown(sort, &shown);
    let mut columns = vec![
        ("share", ColumnKind::Number),
        (&*python.rank, ColumnKind::Number),
    ];
    if !is_sampled {
        columns.extend([
            ("stalled", ColumnKind::Number),
            ("L1D miss", ColumnKind::Number),
            ("LLC miss", ColumnKind::Number),
        ]);
    }
    let title = extra.map(|column| sorted::name(column, style));
    columns.extend(
        title
            .iter()
            .map(|title| (title.as_str(), ColumnKind::Number)),
    );
    columns.extend([("line", ColumnKind::Path), ("function", ColumnKind::Text)]);
    let mut table = Table::new(&columns);
    for row in python.lines.iter().take(style.rows) {
        let number = |event: &str| row.counts.get(event).copied().unwrap_or(0);
        let get = |event: &str| units::count(number(event));
        let mut cells = vec![or_none(row.share, units::share, style), get(&python.rank)];
        if !is_sampled {
            let stalled = units::count(row.stalled_cycles);
            cells.extend([stalled, get("l1d.miss"), get("llc.miss")]);
        }
        cells.extend(extra.map(|column| sorted::cell(column, row, style)));
        cells.extend([style.name(&place(row)), style.name(&row.function)]);
        table.row(cells);
    }
    let others = python.lines.len().saturating_sub(style.rows) as u64 + python.other_lines;
    if others > 0 {
        let mut cells = vec![String::new(); columns.len() - 2];
        cells.extend([plural(others, "other line"), String::new()]);
        table.painted_row(Role::Quiet, cells);
    }
    let what = match is_sampled {
        true => "samples, with",
        false => "every event, with",
    };
    let note = format!(
        "{}; {what} the C code that a line ran; {} of the run",
        provenance(summary),
        units::share(share)
    );
    let title = match sort {
        Some(column) => format!("Python lines by {}", sorted::name(column, style)),
        None => format!("Python lines by {}", python.rank),
    };
    style.heading(&title, &note) + &table.draw(style)
}

/// `script.py:12`
fn place(row: &PythonRow) -> String {
    let file = file_name(&row.file);
    row.line
        .map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"))
}
