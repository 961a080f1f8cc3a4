//! The same run on other machines.

use memgauge_analyze::{Summary, WhatIf};

use super::time_use::words;
use crate::style::Style;
use crate::table::{Kind, Table};
use crate::units;

pub(super) fn what_if(summary: &Summary, style: &Style) -> String {
    if summary.what_if.is_empty() {
        return String::new();
    }
    let note = "modelled: the same instructions and accesses on another machine";
    style.heading("What if", note) + &table(summary, style).draw(style)
}

fn table(summary: &Summary, style: &Style) -> Table {
    let mut table = Table::new(&[
        ("time", Kind::Number),
        ("difference", Kind::Number),
        ("largest part of it", Kind::Text),
        ("change", Kind::Text),
    ]);
    let mut rows: Vec<&WhatIf> = summary.what_if.iter().collect();
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
