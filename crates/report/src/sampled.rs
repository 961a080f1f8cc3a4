//! Main finding of a recording that has only samples, of time or of an event: where most of them are.
//! Only recordings of modelled machines show what limits the program (`causes`).

use memgauge_analyze::{HotRow, PythonRow, RegionTable, Summary, file_name};
use memgauge_trace::event_meaning;

use crate::callers::{callers, own_caller};
use crate::causes::{Statement, mapped, mostly_waited};
use crate::names::{NAMED_SHARE, without_arguments};
use crate::units;

/// Below this share, no function stands out.
const FEW: f64 = 0.1;
/// From this share of the data addresses on, a region is named.
const MOST: f64 = 0.5;

/// Names the function, line and data with most of the samples. `None` without samples of code, and for
/// recordings with exact counts.
pub(crate) fn main_finding(summary: &Summary) -> Option<Statement> {
    let table = &summary.hot.functions;
    let samples = table.samples.filter(|&n| n > 0)?;
    let row = table.rows.first()?;
    let share = row.share?;
    let measure = measure_in_words(&table.rank);
    let interval = interval(row, samples);
    let python = python_line(summary).filter(|_| share >= FEW);
    let mut text = match python {
        _ if share < FEW => format!(
            "No function stands out: the first one, {}, has {} of {measure}{interval}.",
            without_arguments(&row.function),
            units::share(share)
        ),
        Some(line) => format!(
            "{} of {measure} is in {} at {}{} (Python){}.",
            units::share(line.share.unwrap_or(0.0)),
            line.function,
            file_name(&line.file),
            line.line.map_or(String::new(), |line| format!(":{line}")),
            native_part(row)
        ),
        None => format!(
            "{} of {measure} is in {}{}{interval}.",
            units::share(share),
            without_arguments(&row.function),
            hottest_line(row, summary)
        ),
    };
    if let Some(line) = python {
        text += &own_caller(line, summary).unwrap_or_default();
    } else if share >= FEW {
        text += &callers(row, &table.rank, summary).unwrap_or_default();
    }
    text += &data(summary, &table.rank).unwrap_or_default();
    text += &mostly_waited(summary).unwrap_or_default();
    Some(Statement {
        kind: "cause",
        text,
        rule: "the function with most samples".to_owned(),
        next: next_step(&table.rank).to_owned(),
    })
}

/// The sampled event in a sentence.
pub(crate) fn measure_in_words(event: &str) -> String {
    match event_meaning(event) {
        "dram_bytes" => "the bytes between last-level cache and memory".to_owned(),
        "llc.miss" => "the misses of the last-level cache".to_owned(),
        "l1d.miss" => "the misses of the first-level cache".to_owned(),
        "cpu-clock" | "task-clock" => "the processor time".to_owned(),
        "cycles" => "the cycles".to_owned(),
        event => format!("the events {event}"),
    }
}

fn interval(row: &HotRow, samples: u64) -> String {
    match (row.share_low, row.share_high) {
        (Some(low), Some(high)) => format!(
            " (95 % interval {} to {}, n = {})",
            units::share(low),
            units::share(high),
            units::count(samples)
        ),
        _ => String::new(),
    }
}

/// The line of Python with most samples, if it has enough of them.
fn python_line(summary: &Summary) -> Option<&PythonRow> {
    let python = summary.python.as_ref()?;
    let first = python.lines.first()?;
    let is_same = python.rank == summary.hot.functions.rank;
    (is_same && first.share? >= NAMED_SHARE).then_some(first)
}

/// The native function that a line of Python spends its time in, unless it is the interpreter's loop.
fn native_part(row: &HotRow) -> String {
    match row.share {
        Some(share) if share >= NAMED_SHARE && !row.function.starts_with("_PyEval") => format!(
            "; {} of all is in {}",
            units::share(share),
            without_arguments(&row.function)
        ),
        _ => String::new(),
    }
}

/// The line of a function with most samples.
fn hottest_line(function: &HotRow, summary: &Summary) -> String {
    let lines = summary.hot.lines.rows.iter();
    let mut lines =
        lines.filter(|row| (&row.function, &row.module) == (&function.function, &function.module));
    let line = lines.next();
    let line = line.and_then(|row| Some((row.file.as_deref()?, row.line?)));
    line.map_or(String::new(), |(file, line)| {
        format!(", most at {}:{line}", file_name(file))
    })
}

/// The memory that most data addresses are in, if enough samples have one.
fn data(summary: &Summary, event: &str) -> Option<String> {
    let is_reliable = |table: &&RegionTable| {
        table.event == event
            && table.address_gap.is_none()
            && table.samples > table.samples_without_address
    };
    let table = summary.regions.iter().find(is_reliable)?;
    let first = table.rows.first()?;
    let share = first.share.filter(|&share| share >= MOST)?;
    let size = first
        .bytes
        .map_or(String::new(), |bytes| format!(" ({})", units::bytes(bytes)));
    Some(format!(
        " {} of the samples with a data address are in {}{size}.",
        units::share(share),
        mapped(&first.name)
    ))
}

fn next_step(event: &str) -> &'static str {
    if units::is_clock(event) || event_meaning(event) == "cycles" {
        "Time alone does not distinguish computing from waiting for memory. `memgauge -- CMD` models the \
         caches and shows how much of it waits, and for which data."
    } else {
        "`memgauge -- CMD` counts every miss in a modelled machine and shows how much time it costs, \
         and for which data."
    }
}
