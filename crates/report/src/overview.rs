//! Overview of a recording in plain sentences: what limits the program, by which figure and
//! threshold, and what to do next.

use memgauge_analyze::{IoSummary, Summary};
use serde_json::Value;

use crate::causes::{FINDINGS, Statement, of_cause};
use crate::style::Style;
use crate::unnamed::hints;
use crate::{sampled, sections, units};

fn fact(text: String) -> Statement {
    Statement {
        kind: "fact",
        text,
        rule: String::new(),
        next: String::new(),
    }
}

/// Next step if nothing stands out.
const NEXT: &str = "Look at the plots for stretches that differ and select one. `memgauge -- CMD` shows \
                    which code and data miss the caches, `memgauge mrc -- CMD` how much cache it needs.";

/// Overview of a run, the most important sentence first.
pub(crate) fn of_run(summary: &Summary, style: &Style) -> Vec<Statement> {
    let mut said: Vec<Statement> = summary
        .causes
        .iter()
        .take(FINDINGS)
        .map(|c| of_cause(c, summary))
        .collect();
    let of_samples = match said.is_empty() {
        true => sampled::main_finding(summary),
        false => None,
    };
    let has_finding = !said.is_empty() || of_samples.is_some();
    said.extend(of_samples);
    said.extend(hints(summary).into_iter().map(|hint| Statement {
        kind: "caution",
        text: hint.text,
        rule: String::new(),
        next: hint.next,
    }));
    said.extend(summary.io.iter().flat_map(of_io));
    let regions = summary.recording.source.only_regions();
    if let Some(names) = regions {
        said.push(Statement {
            kind: "caution",
            ..fact(sections::of_regions(names, style))
        });
    }
    if let Some(sets) = summary.estimated() {
        said.push(fact(format!(
            "Misses, DRAM bytes and time are estimated from 1/{} of the cache sets.",
            sets.one_in
        )));
        let warnings = sections::set_warnings(summary, sets).into_iter();
        said.extend(warnings.map(|warning| Statement {
            kind: "caution",
            ..fact(format!("Caution: {warning}."))
        }));
    }
    if !summary.causes.is_empty() {
        said.extend(hottest(summary));
    }
    said.extend(sections::findings(summary, style).into_iter().map(fact));
    if !has_finding && regions.is_none() && summary.io.is_none() {
        said.push(Statement {
            next: NEXT.to_owned(),
            ..fact(
                "No figure of this recording crosses a threshold that memgauge knows.".to_owned(),
            )
        });
    }
    said
}

/// Where to start.
fn hottest(summary: &Summary) -> Option<Statement> {
    let table = &summary.hot.functions;
    // The page already lists functions by cycles. A function that computes needs no advice.
    if table.rank == "cycles" {
        return None;
    }
    let row = table.rows.first()?;
    let share = row.share.filter(|&s| s >= 0.1)?;
    let interval = match (row.share_low, row.share_high, table.samples) {
        (Some(low), Some(high), Some(n)) => format!(
            " (95 % interval {}–{}, n = {})",
            units::share(low),
            units::share(high),
            units::count(n)
        ),
        _ => String::new(),
    };
    Some(fact(format!(
        "Look first at {}: {} of {}{interval}.",
        row.function,
        units::share(share),
        sampled::measure_in_words(&table.rank)
    )))
}

/// Conclusions about the memory of running processes in its JSON form.
pub(crate) fn of_memory(memory: &Value) -> Vec<Statement> {
    let advice = memory["advice"].as_array();
    let sentences = advice.into_iter().flatten().filter_map(Value::as_str);
    let statement = |text: &str| Statement {
        kind: "fact",
        text: format!("{}.", text.trim_end_matches('.')),
        rule: String::new(),
        next: String::new(),
    };
    sentences.map(statement).collect()
}

/// Overview of a miss-ratio curve in its JSON form.
pub(crate) fn of_curve(curve: &Value) -> Option<Statement> {
    let title = curve.get("title")?.as_str()?;
    // Curves of policies are known only at some sizes, so the sizes at which the curve falls cannot
    // be determined.
    if let Some(policies) = curve.get("policies").and_then(Value::as_array) {
        let advice = curve.get("advice").and_then(Value::as_array);
        let sentences = advice.into_iter().flatten().filter_map(Value::as_str);
        let sentences: Vec<&str> = sentences.collect();
        let text = match sentences.is_empty() {
            true => format!("{title}: {} policies simulated", policies.len()),
            false => format!("{title}: {}", sentences.join(". ")),
        };
        return Some(Statement {
            kind: "fact",
            text: text + ".",
            rule: String::new(),
            next: "Compare at the miss ratio that you can afford: hover over the curves."
                .to_owned(),
        });
    }
    let enough = match curve.get("bytes_for_90_percent")?.as_u64() {
        Some(enough) => format!(
            "{} have 90 % of what any memory could save",
            units::bytes(enough)
        ),
        None => {
            "the sample does not tell which size has 90 % of what any memory could save".to_owned()
        }
    };
    let points = curve.get("points")?.as_array()?;
    let ratio = |bytes: u64| {
        let known = points.iter().filter(|p| p["bytes"].as_u64() <= Some(bytes));
        known.filter_map(|p| p["miss_ratio"].as_f64()).next_back()
    };
    let marks = curve.get("marks").and_then(Value::as_array);
    let at = marks.into_iter().flatten().filter_map(|mark| {
        let bytes = mark["bytes"].as_u64()?;
        let misses = units::share(ratio(bytes)?);
        let name = mark["name"].as_str()?;
        Some(format!("{misses} with {name} ({})", units::capacity(bytes)))
    });
    let at: Vec<String> = at.collect();
    let references = match at.is_empty() {
        true => String::new(),
        false => format!(" Of its references miss: {}.", at.join(", ")),
    };
    Some(Statement {
        kind: "fact",
        text: format!("{title}: {enough}.{references}"),
        rule: String::new(),
        next: "Where the curve falls steeply just beyond a cache, a smaller working set pays most."
            .to_owned(),
    })
}

/// Sentences about accounted I/O.
fn of_io(io: &IoSummary) -> Vec<Statement> {
    let mut said = Vec::new();
    let hardware = io.devices.iter().filter(|d| !d.is_virtual);
    let all: u64 = hardware.map(|d| d.counted.bytes()).sum();
    let total: u64 = io.lines.iter().map(|l| l.moved.bytes()).sum();
    match io.lines.first().filter(|line| line.moved.bytes() > 0) {
        None => said.push(fact("No process moved bytes through a device.".to_owned())),
        Some(line) => said.push(Statement {
            kind: "cause",
            text: format!(
                "{} (process {}) moved the most: {} through {}, {} of what processes moved.",
                line.command,
                line.pid,
                units::bytes(line.moved.bytes()),
                line.device,
                units::share(line.moved.bytes() as f64 / total as f64)
            ),
            rule: "most bytes in and out together".to_owned(),
            next: "Select a stretch of time in the plot to see who moved bytes just then."
                .to_owned(),
        }),
    }
    let rest: u64 = io
        .devices
        .iter()
        .filter(|d| !d.is_virtual)
        .map(|d| d.unattributed_in_bytes + d.unattributed_out_bytes)
        .sum();
    if rest > 0 && all > 0 {
        let whose = if io.filtered {
            "others"
        } else {
            "no known process"
        };
        said.push(fact(format!(
            "{} ({} of what devices counted) belongs to {whose}.",
            units::bytes(rest),
            units::share(rest as f64 / all as f64)
        )));
    }
    said
}
