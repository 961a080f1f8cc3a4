//! The hottest memory regions.

use memgauge_analyze::{AddressGap, RegionRow, RegionTable, Summary};

use super::hot::events_title;
use super::sorted::rank_name;
use super::{has_every, of_samples, or_none, plural, sorted, with_provenance};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// Minimum number of samples for the preferred event's table.
const ENOUGH_SAMPLES: u64 = 30;

pub(super) fn regions(summary: &Summary, style: &Style) -> String {
    let title = "Hottest memory regions";
    let Some(regions) = shown(summary) else {
        return style.heading(title, "") + "  no samples\n";
    };
    let event = style.name(&rank_name(&regions.event));
    let note = note(regions, summary);
    let sort = sorted::column(summary, &regions.rows);
    let title = sorted::title(&format!("{title} by {event}"), sort, style);
    let heading = style.heading(&title, &note);
    if regions.rows.is_empty() {
        return heading + "  no samples with a data address\n";
    }
    let gap = regions.address_gap.as_ref().map_or(String::new(), |gap| {
        let sentence = gap_in_words(gap, style);
        style.paint_lines(Role::Warning, &style.wrap(&sentence, 2))
    });
    let shown = RegionColumns {
        every: has_every(summary, &regions.event),
        processes: summary.processes.len() > 1,
        // Only the start has no column.
        start: sort.is_some_and(|column| column.key() == "start"),
    };
    heading + &gap + &table(regions, shown, style).draw(style)
}

/// Describes the samples that the shares rest on.
fn gap_in_words(gap: &AddressGap, style: &Style) -> String {
    let all = format!(
        "shares rest on {} of {} samples, those with a data address",
        units::count(gap.with_address),
        units::count(gap.samples),
    );
    match &gap.function {
        Some(function) => format!(
            "{all}; {} has {} of all events, but only {} of its {} samples have an address",
            style.name(&function.name),
            units::share(function.share),
            units::count(function.with_address),
            units::count(function.samples),
        ),
        None => all,
    }
}

/// The table of the event by which tables are sorted, or else the first one with enough samples, or
/// else the one with the most.
fn shown(summary: &Summary) -> Option<&RegionTable> {
    let tables = &summary.regions;
    if let Some(column) = &summary.sorted_by
        && let Some(table) = tables.iter().find(|table| table.event == column.key())
    {
        return Some(table);
    }
    let enough = tables.iter().find(|t| t.samples >= ENOUGH_SAMPLES);
    enough.or_else(|| tables.iter().rev().max_by_key(|t| t.samples))
}

fn note(regions: &RegionTable, summary: &Summary) -> String {
    let every = has_every(summary, &regions.event);
    let mut note = of_samples(every, regions.samples);
    if regions.samples_without_address > 0 {
        let n = regions.samples_without_address;
        note += &format!(", {n} more without address");
    }
    with_provenance(note, summary, every)
}

/// Columns of a table.
#[derive(Clone, Copy)]
struct RegionColumns {
    /// True if every event was recorded, so that there is no interval and each event is a sample.
    every: bool,
    processes: bool,
    /// True if the regions are sorted by their start.
    start: bool,
}

fn table(regions: &RegionTable, shown: RegionColumns, style: &Style) -> Table {
    let mut columns = vec![("share", ColumnKind::Number)];
    columns.extend((!shown.every).then_some(("95 % interval", ColumnKind::Number)));
    columns.push((events_title(&regions.event), ColumnKind::Number));
    columns.extend((!shown.every).then_some(("n", ColumnKind::Number)));
    columns.push(("size", ColumnKind::Number));
    columns.extend(shown.start.then_some(("start", ColumnKind::Number)));
    columns.extend(shown.processes.then_some(("pid", ColumnKind::Number)));
    columns.push(("region", ColumnKind::Text));
    let mut table = Table::new(&columns);
    for region in regions.rows.iter().take(style.rows) {
        table.row(row(region, &regions.event, shown, style));
    }
    if let Some(cells) = other_rows(regions, shown, style) {
        table.painted_row(Role::Quiet, cells);
    }
    table
}

fn row(region: &RegionRow, event: &str, shown: RegionColumns, style: &Style) -> Vec<String> {
    let mut cells = vec![or_none(region.share, units::share, style)];
    cells.extend((!shown.every).then(|| interval(region, style)));
    cells.push(units::events(event, region.events, style));
    cells.extend((!shown.every).then(|| units::count(region.samples)));
    cells.push(or_none(region.bytes, units::bytes, style));
    let start = || or_none(region.start, |start| format!("{start:#x}"), style);
    cells.extend(shown.start.then(start));
    cells.extend(shown.processes.then(|| region.pid.0.to_string()));
    cells.push(style.name(&region.name));
    cells
}

fn interval(region: &RegionRow, style: &Style) -> String {
    let percent = |ratio: f64| format!("{:.1}", ratio * 100.0);
    match (region.share_low, region.share_high) {
        (Some(low), Some(high)) => {
            format!("{}{}{} %", percent(low), style.dash(), percent(high))
        }
        _ => style.none().to_owned(),
    }
}

fn other_rows(regions: &RegionTable, shown: RegionColumns, style: &Style) -> Option<Vec<String>> {
    let hidden = regions.rows.get(style.rows..).unwrap_or_default();
    let rows = regions.other_rows + hidden.len() as u64;
    let events = regions.other_events + hidden.iter().map(|r| r.events).sum::<u64>();
    let samples = regions.other_samples + hidden.iter().map(|r| r.samples).sum::<u64>();
    let share = (regions.events > 0).then(|| events as f64 / regions.events as f64);
    let mut cells = vec![or_none(share, units::share, style)];
    cells.extend((!shown.every).then(String::new));
    cells.push(units::events(&regions.event, events, style));
    cells.extend((!shown.every).then(|| units::count(samples)));
    cells.push(String::new());
    cells.extend(shown.start.then(String::new));
    cells.extend(shown.processes.then(String::new));
    cells.push(format!("({})", plural(rows, "other region")));
    (rows > 0).then_some(cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use memgauge_analyze::UnaddressedFunction;

    #[test]
    fn a_table_that_lacks_the_hottest_codes_addresses_begins_with_that() {
        let mut summary = fixture::full();
        let gap = AddressGap {
            samples: 2017,
            with_address: 121,
            function: Some(UnaddressedFunction {
                name: "chase\x1b[2J".to_owned(),
                module: "chase".to_owned(),
                share: 0.932,
                samples: 1900,
                with_address: 0,
            }),
        };
        for table in &mut summary.regions {
            table.address_gap = Some(gap.clone());
        }
        let text = regions(&summary, &fixture::plain(200, false));
        let first = text.lines().nth(1).expect("a line after the heading");
        assert!(first.contains("rest on 121 of 2.02k samples"), "{text}");
        assert!(
            first.contains("93.2 %") && first.contains("only 0 of its 1.90k"),
            "{text}"
        );
        assert!(!text.contains('\x1b'));
    }
}
