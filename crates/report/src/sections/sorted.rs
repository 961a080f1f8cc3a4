//! Tables that are sorted by a column on request.

use memgauge_analyze::{Cell, SortColumn, SortRow, Summary};

use crate::MetricUnit;
use crate::style::Style;
use crate::units;

/// The column by which a table is sorted. `None` if none was requested, or the table lacks it.
pub(super) fn column<'a, R: SortRow>(summary: &'a Summary, rows: &[R]) -> Option<&'a SortColumn> {
    summary
        .sorted_by
        .as_ref()
        .filter(|column| column.is_of(rows))
}

/// The column, unless the table shows it anyway.
pub(super) fn unless_shown<'a>(
    column: Option<&'a SortColumn>,
    shown: &[&str],
) -> Option<&'a SortColumn> {
    column.filter(|column| !shown.contains(&column.key()))
}

/// Display name of a sort order or event.
pub(super) fn rank_name(rank: &str) -> String {
    match rank {
        "dram_bytes" => "DRAM bytes".to_owned(),
        "llc.miss" => "LLC misses".to_owned(),
        "l1d.miss" => "L1D misses".to_owned(),
        other => other.to_owned(),
    }
}

/// Display name of the column.
pub(super) fn name(column: &SortColumn, style: &Style) -> String {
    style.name(&rank_name(column.key()))
}

/// Title of a table, with the column by which it is sorted.
pub(super) fn title(title: &str, column: Option<&SortColumn>, style: &Style) -> String {
    match column {
        Some(column) => format!("{title}, sorted by {}", name(column, style)),
        None => title.to_owned(),
    }
}

/// The column's cell of a row.
pub(super) fn cell(column: &SortColumn, row: &impl SortRow, style: &Style) -> String {
    match column.cell(row) {
        None => String::new(),
        Some(Cell::Text(text)) => style.name(&text),
        Some(Cell::Number(number)) => match column.key() {
            "start" => format!("{:#x}", number as u64),
            "share" => units::share(number),
            "pid" | "tid" => number.to_string(),
            key => MetricUnit::of(key).value(number, style),
        },
    }
}
