//! Regions of interest, and values that the program reported.

use std::collections::BTreeSet;

use memgauge_analyze::{CodeRegionRow, Summary};

use super::provenance;
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

pub(super) fn regions(summary: &Summary, style: &Style) -> String {
    let regions = &summary.code_regions;
    if regions.is_empty() {
        return String::new();
    }
    let is_modelled = summary.recording.machine.is_some();
    let columns = match is_modelled {
        true => modelled_columns(),
        false => sampled_columns(regions, style),
    };
    let mut titles = vec![
        ("region", ColumnKind::Text),
        ("entries", ColumnKind::Number),
        ("time", ColumnKind::Number),
    ];
    titles.extend(
        columns
            .iter()
            .map(|c| (c.title.as_str(), ColumnKind::Number)),
    );
    let mut table = Table::new(&titles);
    for region in regions.iter().take(style.rows) {
        let mut cells = vec![
            style.name(&region.name),
            units::count(region.entries),
            units::nanoseconds(region.time_ns, style),
        ];
        cells.extend(columns.iter().map(|column| (column.cell)(region, style)));
        table.row(cells);
    }
    let hidden = regions.len().saturating_sub(style.rows);
    if hidden > 0 {
        let mut cells = vec![format!("({hidden} more)")];
        cells.resize(columns.len() + 3, String::new());
        table.painted_row(Role::Quiet, cells);
    }
    let note = match is_modelled {
        true => format!(
            "{}; MPKI: LLC misses per 1000 instructions",
            provenance(summary)
        ),
        false => "entries and time counted; events estimated from samples".to_owned(),
    };
    let heading = style.heading("Regions of interest", note.trim_start_matches("; "));
    heading + &table.draw(style) + &over_time(summary, style)
}

/// Text of a region's cell.
type CellText = dyn Fn(&CodeRegionRow, &Style) -> String;

/// A column of events.
struct EventColumn {
    title: String,
    cell: Box<CellText>,
}

fn count_of(region: &CodeRegionRow, event: &str) -> u64 {
    region.counts.get(event).copied().unwrap_or(0)
}

fn modelled_columns() -> Vec<EventColumn> {
    let column = |title: &str, cell: fn(&CodeRegionRow, &Style) -> String| EventColumn {
        title: title.to_owned(),
        cell: Box::new(cell),
    };
    vec![
        column("instr.", |r, _| units::count(count_of(r, "instructions"))),
        column("L1D miss", |r, _| units::count(count_of(r, "l1d.miss"))),
        column("LLC miss", |r, _| units::count(count_of(r, "llc.miss"))),
        column("MPKI", mpki),
        column("DRAM", |r, _| {
            let [read, written] =
                ["dram.read_bytes", "dram.write_bytes"].map(|event| count_of(r, event));
            units::bytes(read.saturating_add(written))
        }),
    ]
}

fn mpki(region: &CodeRegionRow, style: &Style) -> String {
    let [instructions, misses] = ["instructions", "llc.miss"].map(|e| count_of(region, e));
    let mpki = (instructions > 0).then(|| misses as f64 * 1000.0 / instructions as f64);
    super::or_none(mpki, units::rate, style)
}

/// Events that were sampled inside regions.
fn sampled_columns(regions: &[CodeRegionRow], style: &Style) -> Vec<EventColumn> {
    let events: BTreeSet<&String> = regions.iter().flat_map(|r| r.counts.keys()).collect();
    let column = |event: &String| EventColumn {
        title: super::event_title(event, style),
        cell: {
            let event = event.clone();
            Box::new(move |region, style| units::events(&event, count_of(region, &event), style))
        },
    };
    events.into_iter().map(column).collect()
}

/// One line for each region. Darker cells mean more time inside.
fn over_time(summary: &Summary, style: &Style) -> String {
    let Some(times) = &summary.regions_over_time else {
        return String::new();
    };
    let rows = || times.rows.iter().take(style.rows);
    let columns = times.rows.first().map_or(0, |row| row.inside_ns.len());
    let width = rows().map(|row| row.name.chars().count()).max();
    // Lines of a heat map do not wrap, so shorten the name instead.
    let room = style.width.saturating_sub(columns + 4).max(8);
    let width = width.unwrap_or(0).min(room);
    let run_ns = times.bin_ns.saturating_mul(columns as u64);
    let note = format!(
        "over {}; a column is {}; darker: a thread was inside for more of it",
        units::nanoseconds(run_ns, style),
        units::nanoseconds(times.bin_ns, style)
    );
    let mut text = style.paint(Role::Quiet, &format!("  {note}")) + "\n";
    for row in rows() {
        let name = style.clip(&style.name(&row.name), width);
        let cells: String = row
            .inside_ns
            .iter()
            .map(|&ns| cell(ns, times.bin_ns, style))
            .collect();
        text += format!("  {name:width$}  {cells}").trim_end();
        text.push('\n');
    }
    text
}

fn cell(inside_ns: u64, bin_ns: u64, style: &Style) -> char {
    let share = inside_ns as f64 / bin_ns.max(1) as f64;
    style.shades()[((share * 4.0).ceil() as usize).min(4)]
}

pub(super) fn values(summary: &Summary, style: &Style) -> String {
    if summary.code_values.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("value", ColumnKind::Text),
        ("n", ColumnKind::Number),
        ("min", ColumnKind::Number),
        ("mean", ColumnKind::Number),
        ("max", ColumnKind::Number),
    ]);
    for value in summary.code_values.iter().take(style.rows) {
        table.row(vec![
            style.name(&value.name),
            units::count(value.n),
            value.min.to_string(),
            format!("{:.1}", value.mean),
            value.max.to_string(),
        ]);
    }
    let hidden = summary.code_values.len().saturating_sub(style.rows);
    if hidden > 0 {
        let mut cells = vec![format!("({hidden} more)")];
        cells.resize(5, String::new());
        table.painted_row(Role::Quiet, cells);
    }
    style.heading("Values of the program", "as reported by it") + &table.draw(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_analyze::{RegionOverTime, RegionsOverTime};

    #[test]
    fn a_line_over_time_is_as_dark_as_threads_were_inside() {
        let row = |name: &str, inside_ns: &[u64]| RegionOverTime {
            name: name.to_owned(),
            inside_ns: inside_ns.to_vec(),
        };
        let mut summary = crate::fixture::empty();
        summary.regions_over_time = Some(RegionsOverTime {
            bin_ns: 100,
            rows: vec![
                row("all", &[100, 100, 250, 100]),
                row(
                    "a_name_that_is_longer_than_there_is_room_for",
                    &[1, 50, 0, 0],
                ),
            ],
        });
        let text = over_time(&summary, &crate::fixture::plain(24, true));
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].contains("over 400 ns; a column is 100 ns"),
            "{text}"
        );
        assert_eq!(lines[1], "  all               ████");
        assert_eq!(lines[2], "  a_name_that_is_…  ░▒");
        assert!(over_time(&summary, &crate::fixture::plain(24, false)).is_ascii());
    }
}
