//! Rows of the code tables with the counts of all events, for several formats.

use std::collections::BTreeSet;

use memgauge_analyze::{Counts, HotRow, HotTable, Summary};
use memgauge_trace::{EventDef, Provenance, Unit};

use super::Error;

/// Returns the events with counts in the table, sorted by name.
pub(crate) fn events(summary: &Summary, table: &HotTable) -> Result<Vec<String>, Error> {
    let rows = table.rows.iter().map(|row| &row.counts);
    let all = rows.chain([&table.others.counts]);
    let names: BTreeSet<&String> = all.flat_map(Counts::keys).collect();
    match names.is_empty() {
        true => Err(Error::NoCode {
            has_curves: super::curves::curves(summary).is_some(),
        }),
        false => Ok(names.into_iter().cloned().collect()),
    }
}

/// Returns the rows of the table, and the counts that are in none of them.
pub(crate) fn with_rest(table: &HotTable) -> impl Iterator<Item = (Option<&HotRow>, &Counts)> {
    let rows = table.rows.iter().map(|row| (Some(row), &row.counts));
    let rest = (!table.others.counts.is_empty()).then_some((None, &table.others.counts));
    rows.chain(rest)
}

/// Returns the counts of `events` in order; 0 if there is no count.
pub(crate) fn values(counts: &Counts, events: &[String]) -> Vec<u64> {
    let count = |event: &String| counts.get(event).copied().unwrap_or(0);
    events.iter().map(count).collect()
}

fn definition<'a>(summary: &'a Summary, event: &str) -> Option<&'a EventDef> {
    summary.events.iter().find(|def| def.name == event)
}

/// Returns the unit of an event. The kernel counts clock events in nanoseconds. Totals that are not
/// events have their unit in the name.
pub(crate) fn unit(summary: &Summary, event: &str) -> &'static str {
    let clock = event.split([':', '/']).next().unwrap_or(event);
    match definition(summary, event).map(|def| def.unit) {
        Some(Unit::Bytes) => "bytes",
        Some(Unit::Cycles) => "cycles",
        _ if matches!(clock, "cpu-clock" | "task-clock") => "nanoseconds",
        None if event.ends_with("_ns") => "nanoseconds",
        Some(Unit::Count) => "count",
        None => Unit::of_event(event).name(),
    }
}

/// Returns the provenance of an event's counts by code: sampled code has sampled counts, even if
/// the total was counted.
pub(crate) fn code_provenance(summary: &Summary, event: &str) -> &'static str {
    match summary.hot.functions.samples {
        Some(_) => "sampled",
        None => provenance(summary, event),
    }
}

/// Returns the provenance of an event's total and curve.
pub(crate) fn provenance(summary: &Summary, event: &str) -> &'static str {
    match definition(summary, event).map(|def| def.provenance) {
        Some(Provenance::Counted) => "counted",
        Some(Provenance::Sampled) => "sampled",
        Some(Provenance::Modelled) => "modelled",
        None if summary.recording.machine.is_some() && summary.estimated().is_none() => "modelled",
        Some(Provenance::Estimated) | None => "estimated",
    }
}
