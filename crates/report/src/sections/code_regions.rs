//! Regions of interest, and values that the program told.

use memgauge_analyze::{CodeRegionRow, Summary};

use super::{SHOWN, provenance};
use crate::style::{Role, Style};
use crate::table::{Kind, Table};
use crate::units;

pub(super) fn regions(summary: &Summary, style: &Style) -> String {
    if summary.code_regions.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("region", Kind::Text),
        ("entries", Kind::Number),
        ("time", Kind::Number),
        ("instr.", Kind::Number),
        ("L1D miss", Kind::Number),
        ("LLC miss", Kind::Number),
        ("MPKI", Kind::Number),
        ("DRAM", Kind::Number),
    ]);
    for region in summary.code_regions.iter().take(SHOWN) {
        table.row(row(region, style));
    }
    let hidden = summary.code_regions.len().saturating_sub(SHOWN);
    if hidden > 0 {
        let mut cells = vec![format!("({hidden} more)")];
        cells.resize(8, String::new());
        table.painted_row(Role::Quiet, cells);
    }
    let note = format!(
        "{}; MPKI: LLC misses per 1000 instructions",
        provenance(summary)
    );
    style.heading("Regions of interest", note.trim_start_matches("; ")) + &table.draw(style)
}

fn row(region: &CodeRegionRow, style: &Style) -> Vec<String> {
    let get = |name: &str| region.counts.get(name).copied();
    let dram = get("dram.read_bytes")
        .unwrap_or(0)
        .saturating_add(get("dram.write_bytes").unwrap_or(0));
    let (instructions, misses) = (
        get("instructions").unwrap_or(0),
        get("llc.miss").unwrap_or(0),
    );
    let mpki = (instructions > 0).then(|| misses as f64 * 1000.0 / instructions as f64);
    vec![
        style.name(&region.name),
        units::count(region.entries),
        units::nanoseconds(region.time_ns, style),
        units::count(instructions),
        units::count(get("l1d.miss").unwrap_or(0)),
        units::count(misses),
        super::or_none(mpki, units::rate, style),
        units::bytes(dram),
    ]
}

pub(super) fn values(summary: &Summary, style: &Style) -> String {
    if summary.code_values.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("value", Kind::Text),
        ("n", Kind::Number),
        ("min", Kind::Number),
        ("mean", Kind::Number),
        ("max", Kind::Number),
    ]);
    for value in summary.code_values.iter().take(SHOWN) {
        table.row(vec![
            style.name(&value.name),
            units::count(value.n),
            value.min.to_string(),
            format!("{:.1}", value.mean),
            value.max.to_string(),
        ]);
    }
    let hidden = summary.code_values.len().saturating_sub(SHOWN);
    if hidden > 0 {
        let mut cells = vec![format!("({hidden} more)")];
        cells.resize(5, String::new());
        table.painted_row(Role::Quiet, cells);
    }
    style.heading("Values of the program", "as it told them") + &table.draw(style)
}
