//! Cache and TLB levels.

use memgauge_analyze::{Level, LevelName, Summary};
use memgauge_trace::{CacheGeometry, EstimatedFacts, MachineFacts, TlbGeometry, Unit};

use super::{or_none, provenance};
use crate::style::Style;
use crate::table::{ColumnKind, Table};
use crate::units;

pub(super) fn levels(summary: &Summary, style: &Style) -> String {
    let mut table = Table::new(&[
        ("", ColumnKind::Label),
        ("size", ColumnKind::Number),
        ("ways", ColumnKind::Number),
        ("look-ups", ColumnKind::Number),
        ("misses", ColumnKind::Number),
        ("miss ratio", ColumnKind::Number),
        ("MPKI", ColumnKind::Number),
        (ERROR, ColumnKind::Number),
    ]);
    for level in &summary.levels {
        let mut cells = row(level, summary.recording.machine.as_ref(), style);
        cells.push(error(summary, misses_of(level.name), style));
        table.row(cells);
    }
    if summary.estimated().is_none() {
        table = table.without(ERROR);
    }
    let note = format!(
        "{}; MPKI: misses per 1000 instructions",
        provenance(summary)
    );
    let note = note.trim_start_matches("; ");
    style.heading("Caches and TLBs", note) + &table.draw(style) + &prefetched(summary, style)
}

/// Lines that the machine's prefetchers and the program's prefetch instructions brought in.
fn prefetched(summary: &Summary, style: &Style) -> String {
    let total = |event| {
        summary
            .totals
            .get(event)
            .copied()
            .filter(|&count| count > 0)
    };
    let Some(lines) = total("prefetches") else {
        return String::new();
    };
    let used = total("prefetch.hits").unwrap_or(0) as f64 / lines as f64;
    let text = format!(
        "{} lines were prefetched, and {} of them were used.",
        units::count(lines),
        units::share(used)
    );
    style.wrap(&text, 2)
}

fn row(level: &Level, machine: Option<&MachineFacts>, style: &Style) -> Vec<String> {
    let (size, ways) = geometry(level.name, machine, style);
    vec![
        title(level.name).to_owned(),
        size,
        ways,
        or_none(level.lookups, units::count, style),
        or_none(level.misses, units::count, style),
        or_none(level.miss_ratio, units::percent, style),
        or_none(level.mpki, units::rate, style),
    ]
}

/// Title of the column with the intervals of estimates.
pub(super) const ERROR: &str = "±";

fn misses_of(level: LevelName) -> &'static str {
    match level {
        LevelName::L1d => "l1d.miss",
        LevelName::L2 => "l2.miss",
        LevelName::Llc => "llc.miss",
        LevelName::Dtlb => "dtlb.miss",
        LevelName::Stlb => "dtlb.walk",
    }
}

/// Distance to the farther end of an estimate's interval, in per cent of the estimate. For an
/// estimate of zero that may be wrong, the interval's upper end.
pub(super) fn error(summary: &Summary, event: &str, style: &Style) -> String {
    let estimate = summary.estimated().and_then(|s| s.estimates.get(event));
    if let Some(EstimatedFacts { value: 0, high, .. }) = estimate {
        let unit = match Unit::of_event(event) {
            Unit::Bytes => units::bytes,
            Unit::Count | Unit::Cycles => units::count,
        };
        return format!("{} {}", if style.unicode { "≤" } else { "<=" }, unit(*high));
    }
    let relative = estimate.and_then(EstimatedFacts::relative_error);
    or_none(relative, units::percent, style)
}

pub(super) fn title(name: LevelName) -> &'static str {
    match name {
        LevelName::L1d => "L1D",
        LevelName::L2 => "L2",
        LevelName::Llc => "LLC",
        LevelName::Dtlb => "DTLB",
        LevelName::Stlb => "STLB",
    }
}

fn geometry(name: LevelName, machine: Option<&MachineFacts>, style: &Style) -> (String, String) {
    let Some(machine) = machine else {
        return (style.none().to_owned(), style.none().to_owned());
    };
    match name {
        LevelName::L1d => cache(&machine.l1d),
        LevelName::L2 => cache(&machine.l2),
        LevelName::Llc => cache(&machine.llc),
        LevelName::Dtlb => tlb(&machine.dtlb),
        LevelName::Stlb => tlb(&machine.stlb),
    }
}

fn cache(cache: &CacheGeometry) -> (String, String) {
    (units::capacity(cache.size_bytes), cache.ways.to_string())
}

fn tlb(tlb: &TlbGeometry) -> (String, String) {
    (format!("{} entries", tlb.entries), tlb.ways.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{full, plain};
    use memgauge_trace::SetsFacts;

    #[test]
    fn an_estimate_of_nothing_has_an_upper_end() {
        let estimate = |low, value, high| EstimatedFacts {
            value,
            low,
            high,
            ..EstimatedFacts::default()
        };
        let estimates = [
            ("dram.write_bytes", estimate(0, 0, 1_205_862)),
            ("llc.miss", estimate(0, 0, 24)),
            ("l2.miss", estimate(950, 1000, 1100)),
            ("l1d.miss", estimate(125, 1000, 1100)),
        ];
        let summary = Summary {
            sets: Some(SetsFacts {
                one_in: 8,
                estimates: estimates.map(|(name, of)| (name.to_owned(), of)).into(),
                ..SetsFacts::default()
            }),
            ..full()
        };
        let cell = |event, unicode| error(&summary, event, &plain(80, unicode));
        assert_eq!(cell("dram.write_bytes", true), "≤ 1.15 MiB");
        assert_eq!(cell("llc.miss", false), "<= 24");
        assert_eq!(cell("l2.miss", true), "10.00 %");
        assert_eq!(cell("l1d.miss", true), "87.50 %");
        assert_eq!(cell("dtlb.miss", true), "–");
    }
}
