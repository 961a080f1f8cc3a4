//! Bandwidth over time as text, CSV and JSON.

use memgauge_analyze::bandwidth::{Bandwidth, Grid, by_work};
use memgauge_trace::{Manifest, is_page_fault};
use serde_json::{Value, json};

use crate::plot::{self, Panel};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units::{bytes, count, gigabytes, nanoseconds, percent, share};

/// Maximum number of windows of the curve in JSON. More are merged.
const MOST_JSON: usize = 10_000;

/// The report as text.
pub fn text(result: &Bandwidth, manifest: &Manifest, style: &Style) -> String {
    let mut text = style.heading("BANDWIDTH", &source(result, manifest));
    text += &curve(result, style);
    text += &totals(result, style);
    text += &windows(result, style);
    text += &threads(result, style);
    text += &functions(result, style);
    text += &irregularities(result, style);
    text
}

fn source(result: &Bandwidth, manifest: &Manifest) -> String {
    let delivery = manifest.source.settings.delivery.as_deref();
    let delivery = delivery.unwrap_or("ideal");
    let machine = manifest.machine.as_ref();
    let modelled = machine.map_or(String::new(), |m| format!("modelled on {}, ", m.name));
    format!(
        "{modelled}{} every {} events, {delivery}",
        result.event, result.period
    )
}

fn curve(result: &Bandwidth, style: &Style) -> String {
    let Some(grid) = &result.curve else {
        return String::new();
    };
    let columns = plot::columns(style).min(grid.values.len().max(1));
    let values = squeezed(grid, columns);
    let panel = Panel {
        name: "GB/s",
        role: Role::Read,
        values: &values,
        mark: None,
    };
    let length = result.to_ns - result.from_ns;
    let mut text = plot::draw(&[panel], length, style);
    if result.from_ns > 0 {
        let from = nanoseconds(result.from_ns, style);
        text += &format!("  from {from} on\n");
    }
    text + "\n"
}

/// Mean GB/s of equal numbers of windows for each column.
fn squeezed(grid: &Grid, columns: usize) -> Vec<f64> {
    let windows = grid.values.len();
    (0..columns)
        .map(|column| {
            let (from, to) = (column * windows / columns, (column + 1) * windows / columns);
            let sum: f64 = grid.values[from..to].iter().sum();
            sum / ((to - from).max(1) as u64 * grid.width_ns) as f64
        })
        .collect()
}

/// How an event moves bytes: caches read lines, and the kernel allocates pages.
fn moved(event: &str) -> &'static str {
    match is_page_fault(event) {
        true => "faulted in",
        false => "read",
    }
}

fn totals(result: &Bandwidth, style: &Style) -> String {
    let plus_minus = if style.unicode { "±" } else { "+-" };
    let mut lines = vec![(
        moved(&result.event).to_owned(),
        format!(
            "{}{} from {} overflows; {}",
            bytes(result.bytes as u64),
            interval(result, plus_minus),
            count(result.overflows),
            corrected(result)
        ),
    )];
    if let Some(runs) = &result.runs {
        let said = format!(
            "{} {plus_minus} {} on average over {} runs (standard error)",
            bytes(runs.mean as u64),
            bytes(runs.error as u64),
            runs.bytes.len()
        );
        lines.push(("runs".to_owned(), said));
    }
    if let Some(reference) = &result.reference {
        lines.push((reference.event.clone(), reference_line(result, style)));
    }
    if let Some(written) = result.written_bytes {
        lines.push((
            "written back".to_owned(),
            format!("{}, counted", bytes(written)),
        ));
    }
    if let Some(lines_in) = result.prefetched_bytes.filter(|b| *b > 0) {
        let said = format!("{} into the second level, counted", bytes(lines_in));
        lines.push(("prefetched".to_owned(), said));
    }
    let quantum = gigabytes(result.quantum);
    let bin = nanoseconds(result.bin_ns, style);
    lines.push((
        "quantum".to_owned(),
        format!("{quantum} GB/s: one overflow in one window of {bin}"),
    ));
    let rounded = match result.resolution_ns {
        0 | 1 => "exact".to_owned(),
        step => format!("rounded down to at most {step} ns"),
    };
    lines.push(("times".to_owned(), rounded));
    if let Some(overhead) = result.overhead {
        lines.push((
            "overhead".to_owned(),
            format!(
                "{} of the program's time went into records",
                percent(overhead)
            ),
        ));
    }
    let body: String = lines
        .iter()
        .map(|(name, said)| format!("  {name:<16}{said}\n"))
        .collect();
    body + "\n"
}

/// Half the width of the total's interval, or a remark that it is unknown.
fn interval(result: &Bandwidth, plus_minus: &str) -> String {
    match result.error_bytes > 0.0 {
        true => format!(
            " {plus_minus} {} (95 %)",
            bytes(result.error_bytes.ceil() as u64)
        ),
        false => String::new(),
    }
}

fn corrected(result: &Bandwidth) -> String {
    match &result.correction {
        None => "not corrected for lost events".to_owned(),
        Some(name) => format!(
            "{} uncorrected, {:.1} events lost with each record by {name}",
            bytes(result.raw_bytes as u64),
            result.lost.0
        ),
    }
}

fn reference_line(result: &Bandwidth, style: &Style) -> String {
    let Some(reference) = &result.reference else {
        return String::new();
    };
    let counted = bytes(reference.bytes as u64);
    let whole = result.bytes / reference.bytes - 1.0;
    let mut said = match result.from_reference {
        true => format!(
            "{counted} by the reference counter; the total was taken from it, so this is no check \
             (`memgauge calibrate` makes a correction of its own)"
        ),
        false => format!(
            "{counted} by the reference counter; the curve differs by {:+.2} %",
            whole * 100.0
        ),
    };
    if reference.contradicts {
        said += ", which is outside the interval: the correction is wrong for this program, so \
                 use the counter's total (--correct reference scales the curve to it)";
    }
    if let Some(error) = reference.mean_error {
        let width = nanoseconds(reference.width_ns, style);
        said += &format!(", {:.1} % on average in windows of {width}", error * 100.0);
    }
    if let Some(least) = reference.quantised_error {
        said += &format!(" (overflows alone, none lost: {:.1} %)", least * 100.0);
    }
    if let Some(line) = reference.regression {
        said += &format!(
            "; r2 {:.4}, slope {:.3}, offset {}{}",
            line.r2,
            line.slope,
            if line.offset < 0.0 { "-" } else { "" },
            bytes(line.offset.abs() as u64)
        );
    }
    said
}

fn windows(result: &Bandwidth, style: &Style) -> String {
    let columns = [
        "windows of",
        "GB/s mean",
        "p50",
        "p90",
        "p99",
        "highest",
        "at",
    ];
    let kinds = columns.map(|c| (c, ColumnKind::Number));
    let mut table = Table::new(&kinds);
    for w in &result.windows {
        let rates = [w.mean, w.p50, w.p90, w.p99, w.highest].map(gigabytes);
        let mut cells = vec![nanoseconds(w.width_ns, style)];
        cells.extend(rates);
        cells.push(nanoseconds(w.highest_ns, style));
        table.row(cells);
    }
    let b = &result.bursts;
    let bursts = format!(
        "  bursts: {} from {} GB/s on in windows of {}; duty {}, longest {} at {}\n\n",
        count(b.count),
        gigabytes(b.threshold),
        nanoseconds(b.width_ns, style),
        percent(b.duty),
        nanoseconds(b.longest_ns, style),
        nanoseconds(b.longest_at_ns, style)
    );
    table.draw(style) + &bursts
}

fn threads(result: &Bandwidth, style: &Style) -> String {
    let columns = [
        ("thread", ColumnKind::Number),
        ("program", ColumnKind::Path),
        (moved(&result.event), ColumnKind::Number),
        ("share", ColumnKind::Number),
        ("GB/s highest", ColumnKind::Number),
    ];
    let mut table = Table::new(&columns);
    let whole: f64 = result.threads.iter().map(|t| t.bytes).sum();
    for thread in &result.threads {
        table.row(vec![
            thread.tid.to_string(),
            thread.program.clone(),
            bytes(thread.bytes as u64),
            share(thread.bytes / whole.max(1.0)),
            gigabytes(thread.highest),
        ]);
    }
    let more = match result.more_threads {
        0 => String::new(),
        n => format!("  and {n} more threads\n"),
    };
    table.draw(style) + &more + "\n"
}

fn functions(result: &Bandwidth, style: &Style) -> String {
    if result.functions.is_empty() {
        return String::new();
    }
    let columns = [
        ("in bursts", ColumnKind::Number),
        ("n", ColumnKind::Number),
        ("function", ColumnKind::Text),
        ("module", ColumnKind::Path),
    ];
    let mut table = Table::new(&columns);
    for f in &result.functions {
        table.row(vec![
            share(f.share),
            f.samples.to_string(),
            crate::names::chain(&f.function, &f.inlined_into),
            f.module.clone(),
        ]);
    }
    let note = format!(
        "  shares of {} samples taken in bursts\n",
        count(result.burst_samples)
    );
    table.draw(style) + &note
}

/// Drops, pauses and other notes on the trace.
fn irregularities(result: &Bandwidth, style: &Style) -> String {
    let mut said = Vec::new();
    if !result.drops.is_empty() {
        let width = nanoseconds(result.drops_width_ns, style);
        let times: Vec<String> = result
            .drops
            .iter()
            .map(|d| nanoseconds(d.time_ns, style))
            .collect();
        said.push(format!(
            "all threads dropped together at {} (windows of {width})",
            times.join(", ")
        ));
    }
    let odd = &result.irregular;
    if odd.pauses > 0 {
        let length = nanoseconds(odd.pauses_ns, style);
        said.push(format!(
            "{} pauses of {length} in all: no events are shown in them",
            odd.pauses
        ));
    }
    if odd.clock_back > 0 {
        said.push(format!("the clock went back {} times", odd.clock_back));
    }
    if odd.unreadable > 0 {
        said.push(format!(
            "{} blocks of overflows could not be unpacked",
            odd.unreadable
        ));
    }
    said.iter()
        .map(|line| style.wrap(&format!("note: {line}"), 2))
        .collect()
}

/// The curve with one line for each window.
pub fn csv(result: &Bandwidth) -> String {
    let mut text = String::from("time_ns,bytes,bytes_per_s,uncorrected_bytes\n");
    let Some(curve) = &result.curve else {
        return text;
    };
    let raw = result.raw_curve.as_ref();
    for (at, (value, rate)) in curve.values.iter().zip(curve.rates()).enumerate() {
        let time = curve.from_ns + at as u64 * curve.width_ns;
        let raw = raw.and_then(|r| r.values.get(at)).copied().unwrap_or(0.0);
        text += &format!("{time},{value:.0},{rate:.0},{raw:.0}\n");
    }
    text
}

/// All results, with the curve in at most 10 000 windows.
pub fn json(result: &Bandwidth) -> String {
    let mut value = serde_json::to_value(result).unwrap_or_default();
    value["schema_version"] = json!(1);
    if let Some(curve) = &result.curve {
        let shown = curve.coarser(curve.values.len().div_ceil(MOST_JSON).max(1));
        value["curve"] = curve_value(&shown);
    }
    format!("{value:#}\n")
}

fn curve_value(grid: &Grid) -> Value {
    json!({ "from_ns": grid.from_ns, "width_ns": grid.width_ns, "bytes": grid.values })
}

/// Name of a recording, its bandwidth, and its instructions in the same windows.
pub type NamedBandwidth = (String, Bandwidth, Grid);

/// Compares two runs: bytes in equal shares of the work done.
pub fn against_text(both: &[NamedBandwidth; 2], as_json: bool, style: &Style) -> String {
    let steps = plot::columns(style);
    let curves = both.each_ref().map(|(_, result, work)| {
        let curve = result.curve.as_ref();
        curve.map_or_else(Vec::new, |curve| by_work(curve, work, steps))
    });
    let sum = |c: &[f64]| c.iter().sum::<f64>();
    let apart: f64 = curves[0]
        .iter()
        .zip(&curves[1])
        .map(|(a, b)| (a - b).abs())
        .sum();
    let apart = apart / sum(&curves[1]).max(1.0);
    if as_json {
        let sides = both.each_ref().map(|(name, result, work)| {
            json!({ "recording": name, "bytes": result.bytes, "instructions": work.total(),
                    "length_ns": result.to_ns - result.from_ns })
        });
        let value = json!({ "schema_version": 1, "sides": sides, "bytes_by_work": curves,
                            "mean_difference": apart });
        return format!("{value:#}\n");
    }
    let mut text = style.heading(
        "BANDWIDTH BY WORK",
        "MiB for each equal share of the instructions",
    );
    for ((name, result, work), curve) in both.iter().zip(&curves) {
        let values: Vec<f64> = curve.iter().map(|b| b / f64::from(1 << 20)).collect();
        let panel = Panel {
            name: "MiB",
            role: Role::Read,
            values: &values,
            mark: None,
        };
        let length = result.to_ns - result.from_ns;
        text += &format!(
            "  {name}: {}, {} instructions in {}\n",
            bytes(result.bytes as u64),
            count(work.total() as u64),
            nanoseconds(length, style)
        );
        text += &plot::draw(&[panel], length, style);
    }
    text + &format!("\n  they differ by {} on average\n", percent(apart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_the_kernel_hands_out_are_not_called_read() {
        for event in ["page-faults", "page-faults:u", "minor-faults"] {
            assert_eq!(moved(event), "faulted in", "{event}");
        }
        assert_eq!(moved("llc.miss"), "read");
    }
}
