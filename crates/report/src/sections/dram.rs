//! Memory traffic in total and over time.

use memgauge_analyze::{Peak, Summary};

use super::levels::{ERROR, error};
use super::{clock, or_none, provenance};
use crate::plot::{self, Panel};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

pub(super) fn traffic(summary: &Summary, style: &Style) -> String {
    let dram = &summary.dram;
    let mut table = Table::new(&[
        ("", ColumnKind::Label),
        ("bytes", ColumnKind::Number),
        ("mean GB/s", ColumnKind::Number),
        ("peak GB/s", ColumnKind::Number),
        ("peak at", ColumnKind::Number),
        (ERROR, ColumnKind::Number),
    ]);
    let mut row = |role, name: &str, bytes, mean, peak| {
        let mut cells = cells(name, bytes, mean, peak, style);
        let event = match name {
            "both" => "dram.bytes".to_owned(),
            one => format!("dram.{one}_bytes"),
        };
        cells.push(error(summary, &event, style));
        table.painted_row(role, cells);
    };
    let (read, write) = (dram.mean_read_bytes_per_s, dram.mean_write_bytes_per_s);
    let sum = dram.read_bytes.zip(dram.write_bytes);
    let mean = read.zip(write);
    row(Role::Read, "read", dram.read_bytes, read, dram.peak_read);
    row(
        Role::Write,
        "write",
        dram.write_bytes,
        write,
        dram.peak_write,
    );
    let both = sum.map(|(r, w)| r.saturating_add(w));
    row(
        Role::Plain,
        "both",
        both,
        mean.map(|(r, w)| r + w),
        dram.peak,
    );
    if summary.estimated().is_none() {
        table = table.without(ERROR);
    }
    style.heading("DRAM traffic", &note(summary, style)) + &table.draw(style)
}

fn note(summary: &Summary, style: &Style) -> String {
    let billion = if style.unicode { "10⁹" } else { "10^9" };
    let unit = format!("1 GB/s = {billion} bytes per second of {}", clock(summary));
    match provenance(summary) {
        none if none.is_empty() => unit,
        words => format!("{words}; {unit}"),
    }
}

fn cells(
    name: &str,
    bytes: Option<u64>,
    mean: Option<f64>,
    peak: Option<Peak>,
    style: &Style,
) -> Vec<String> {
    vec![
        name.to_owned(),
        or_none(bytes, units::bytes, style),
        or_none(mean, units::gigabytes, style),
        or_none(peak.map(|p| p.per_s), units::gigabytes, style),
        or_none(peak, |p| units::nanoseconds(p.start_ns, style), style),
    ]
}

pub(super) fn over_time(summary: &Summary, style: &Style) -> String {
    let curve = &summary.bandwidth;
    let columns = plot::columns(style);
    let scaled = |rates: Vec<f64>| rates.into_iter().map(|r| r / 1e9).collect::<Vec<_>>();
    let read = scaled(curve.read_rates(columns));
    let write = scaled(curve.write_rates(columns));
    let title = format!("GB/s over {}", clock(summary));
    if read.iter().chain(&write).all(|&rate| rate == 0.0) {
        return style.heading(&title, "") + "  no DRAM traffic recorded over time\n";
    }
    let panel = |name, role, values| Panel {
        name,
        role,
        values,
        mark: None,
    };
    let panels = [
        panel("read", Role::Read, &read),
        panel("write", Role::Write, &write),
    ];
    let column_ns = curve.duration_ns / columns as u64;
    let column = units::nanoseconds(column_ns.max(curve.bin_ns), style);
    let bin = units::nanoseconds(curve.bin_ns, style);
    let note = match curve.has_peaks() {
        true => format!("a column is the mean of {column}; peaks are of {bin}"),
        false => format!("the run has less than 4 intervals of {bin}: no peaks"),
    };
    style.heading(&title, &note) + &plot::draw(&panels, curve.duration_ns, style)
}
