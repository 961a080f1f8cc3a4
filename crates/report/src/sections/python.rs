//! Lines of Python by cycles.

use memgauge_analyze::{PythonRow, Summary, file_name};

use super::{or_none, plural, provenance, sorted};
use crate::style::{Role, Style};
use crate::table::{Kind, Table};
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
    let extra = sorted::unless_shown(sort, &KEYS);
    let mut columns = vec![
        ("share", Kind::Number),
        ("cycles", Kind::Number),
        ("stalled", Kind::Number),
        ("L1D miss", Kind::Number),
        ("LLC miss", Kind::Number),
    ];
    let title = extra.map(|column| sorted::name(column, style));
    columns.extend(title.iter().map(|title| (title.as_str(), Kind::Number)));
    columns.extend([("line", Kind::Path), ("function", Kind::Text)]);
    let mut table = Table::new(&columns);
    for row in python.lines.iter().take(style.rows) {
        let get = |event: &str| units::count(row.counts.get(event).copied().unwrap_or(0));
        let mut cells = vec![
            or_none(row.share, units::share, style),
            get("cycles"),
            units::count(row.stalled_cycles),
            get("l1d.miss"),
            get("llc.miss"),
        ];
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
    let note = format!(
        "{}; every event, with the C code that a line ran; {} of the run",
        provenance(summary),
        units::share(share)
    );
    let title = match sort {
        Some(column) => format!("Python lines by {}", sorted::name(column, style)),
        None => "Python lines by cycles".to_owned(),
    };
    style.heading(&title, &note) + &table.draw(style)
}

/// `script.py:12`
fn place(row: &PythonRow) -> String {
    let file = file_name(&row.file);
    row.line
        .map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"))
}
