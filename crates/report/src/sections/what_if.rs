//! The same run on other machines.

use memgauge_analyze::{Changed, Summary, WhatIf};

use super::time_use::words;
use crate::style::Style;
use crate::table::{ColumnKind, Table};
use crate::units;

pub(super) fn what_if(summary: &Summary, style: &Style) -> String {
    if summary.what_if.is_empty() {
        return String::new();
    }
    let mut text = style.heading("What if", "modelled: the same instructions and accesses");
    let tables = [
        (Changed::Program, "change of the program"),
        (Changed::Machine, "other machine"),
    ];
    for (changes, title) in tables {
        let rows = summary.what_if.iter().filter(|row| row.changes == changes);
        let rows: Vec<&WhatIf> = rows.collect();
        if !rows.is_empty() {
            text += &table(rows, title, summary, style).draw(style);
        }
    }
    for caution in cautions(summary) {
        text += &style.wrap(&caution, 2);
    }
    text
}

/// Limits of the results with other layouts, in sentences.
pub(crate) fn cautions(summary: &Summary) -> Vec<String> {
    summary.what_if.iter().filter_map(caution).collect()
}

/// Smallest share of a machine's misses that makes its result doubtful.
const DOUBTFUL_SHARE: f64 = 0.02;

/// Limits of one result.
fn caution(row: &WhatIf) -> Option<String> {
    let (moved, stayed) = (row.moved_accesses?, row.misses_of_others.unwrap_or(0));
    if moved == 0 {
        return Some(format!(
            "{}: no access is known to be one to this type, so nothing moved.",
            row.change
        ));
    }
    let misses = row.totals.get("l1d.miss").copied().unwrap_or(0);
    (stayed as f64 > misses as f64 * DOUBTFUL_SHARE).then(|| {
        format!(
            "{}: {} of the misses are in these objects, but by code of unknown type, whose accesses \
             stayed at the old places. The change may gain more than the difference, or less.",
            row.change,
            units::share(stayed as f64 / misses as f64)
        )
    })
}

/// Changes by falling gain.
fn table(mut rows: Vec<&WhatIf>, title: &str, summary: &Summary, style: &Style) -> Table {
    let mut table = Table::new(&[
        ("time", ColumnKind::Number),
        ("difference", ColumnKind::Number),
        ("largest part of it", ColumnKind::Text),
        (title, ColumnKind::Text),
    ]);
    rows.sort_by(|a, b| a.relative.total_cmp(&b.relative));
    let hz = summary.recording.machine.as_ref();
    let hz = hz.map_or(1.0, |machine| machine.frequency_hz as f64);
    for row in rows {
        let part = row.largest_change(&summary.time, hz);
        let part = part.filter(|(_, ns)| ns.abs() >= 1.0);
        let part = part.map(|(on, ns)| {
            let sign = if ns < 0.0 { "-" } else { "+" };
            let time = units::nanoseconds(ns.abs() as u64, style);
            format!("{sign}{time} {}", words(on))
        });
        table.row(vec![
            units::nanoseconds(row.busy_ns as u64, style),
            units::signed_percent(row.relative),
            part.unwrap_or_else(|| style.none().to_owned()),
            row.change.clone(),
        ]);
    }
    table
}
