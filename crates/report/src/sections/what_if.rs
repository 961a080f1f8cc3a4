//! What other machines would make of the run.

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
            difference(row.relative),
            part.unwrap_or_else(|| style.none().to_owned()),
            change(row),
        ]);
    }
    table
}

/// `-11.2 %`
pub(crate) fn difference(relative: f64) -> String {
    format!("{:+.1} %", relative * 100.0)
}

/// The change in words.
pub(crate) fn change(row: &WhatIf) -> String {
    match row.name.split_once('=') {
        None if row.name == "huge-pages" => "all memory in pages of 2 MiB".to_owned(),
        None => "next-line and stride prefetchers".to_owned(),
        Some(("machine", machine)) => format!("machine {machine}"),
        Some((cache, times)) => {
            let times = times.trim_end_matches('x');
            format!("{} {times} times as large", cache.to_uppercase())
        }
    }
}
