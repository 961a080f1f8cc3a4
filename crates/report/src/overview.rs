//! What a recording says in plain sentences: what limits the program, by which figure
//! against which threshold, and what to do next.

use memgauge_analyze::{Cause, CauseKind, IoSummary, Summary};
use serde::Serialize;

use crate::style::Style;
use crate::{sections, units};

/// A sentence of the overview.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// `cause`, `caution` or `fact`.
    pub kind: &'static str,
    /// What is so.
    pub text: String,
    /// By which rule; empty for facts.
    pub rule: String,
    /// What to do next; may be empty.
    pub next: String,
}

fn fact(text: String) -> Statement {
    Statement {
        kind: "fact",
        text,
        rule: String::new(),
        next: String::new(),
    }
}

/// What to do where nothing stands out.
const NEXT: &str = "Look at the plots for stretches that differ and select one. `memgauge -- CMD` shows \
                    which code and data miss the caches, `memgauge mrc -- CMD` how much cache it needs.";

/// The overview of a run, the most important sentence first.
pub(crate) fn of_run(summary: &Summary, style: &Style) -> Vec<Statement> {
    let mut said: Vec<Statement> = summary
        .causes
        .iter()
        .map(|c| of_cause(c, summary))
        .collect();
    said.extend(hottest(summary));
    said.extend(sections::findings(summary, style).into_iter().map(fact));
    if !summary.causes.iter().any(|c| c.kind != CauseKind::Phases) {
        said.push(Statement {
            next: NEXT.to_owned(),
            ..fact(
                "No figure of this recording crosses a threshold that memgauge knows.".to_owned(),
            )
        });
    }
    said
}

fn of_cause(cause: &Cause, summary: &Summary) -> Statement {
    let percent = units::share;
    let value = cause.value;
    let other = cause.other.unwrap_or(0.0);
    let threshold = match cause.kind {
        CauseKind::Tiny if value < 1.0 => format!("{:.0} ms", cause.threshold * 1e3),
        CauseKind::Tiny | CauseKind::FewSamples => units::count(cause.threshold as u64),
        CauseKind::PageFaults | CauseKind::CacheMisses => units::rate(cause.threshold),
        _ => format!("{:.0} %", cause.threshold * 100.0),
    };
    let limit = summary.recording.machine.as_ref();
    let limit = limit.map_or(0.0, |m| m.dram_bytes_per_s as f64);
    let limit = units::few_gigabytes(limit);
    let is_caution = matches!(cause.kind, CauseKind::Tiny | CauseKind::FewSamples);
    let (text, rule, next) = match cause.kind {
        CauseKind::Tiny if value < 1.0 => (
            format!("The run is too short to judge: {:.1} ms.", value * 1e3),
            format!("shorter than {threshold}"),
            "Record a longer run: a larger input, or more repetitions.",
        ),
        CauseKind::Tiny => (
            format!(
                "The run is too short to judge: {} instructions, most of them its start.",
                units::count(value as u64)
            ),
            format!("fewer than {threshold} instructions"),
            "Record a longer run: a larger input, or more repetitions.",
        ),
        CauseKind::FewSamples => (
            format!(
                "Only {} samples: shares are rough.",
                units::count(value as u64)
            ),
            format!("fewer than {threshold} samples"),
            "Record with a shorter period (-c), a higher frequency (-F), or for longer.",
        ),
        CauseKind::Idle => (
            format!(
                "It mostly waits: its threads wait for {} of their time.",
                percent(value)
            ),
            format!("at least {threshold} of the time waited"),
            "Find what it waits for: `memgauge io -- CMD` shows disks and networks; the table \
             of threads shows who waits.",
        ),
        CauseKind::BandwidthBound => (
            format!(
                "Memory bandwidth limits it: it moves {} of the {limit} GB/s that memory can.",
                percent(value)
            ),
            format!("at least {threshold} of the bandwidth on average"),
            "Move fewer bytes: work in blocks that fit a cache, use smaller types, join loops \
             that pass over the same data. Start with the hottest functions.",
        ),
        CauseKind::LatencyBound => (
            format!(
                "It waits for single cache lines: caches and memory hold it up for {} of its \
                 cycles, yet it moves only {} of the {limit} GB/s that memory can.",
                percent(value),
                percent(other)
            ),
            format!("at least {threshold} of the cycles stalled, below 60 % of the bandwidth"),
            "Shorten chains of loads that depend on each other (lists, trees, hash chains): \
             lay data out in the order of its use, or make it fit a cache. The regions below \
             say which data.",
        ),
        CauseKind::TlbBound => (
            format!(
                "Translation of addresses holds it up for {} of its cycles.",
                percent(value)
            ),
            format!("at least {threshold} of the cycles"),
            "Use huge pages (madvise with MADV_HUGEPAGE), or touch fewer pages at a time.",
        ),
        CauseKind::PageFaults => (
            format!(
                "Page faults hold it up: {} a second of processor time, about {} of it at \
                 0.5 µs each.",
                units::rate(value),
                percent(other)
            ),
            format!("at least {threshold} a second of processor time"),
            "Keep memory and use it again instead of returning it; use huge pages for large \
             arrays. `memgauge record -e page-faults -c 1 -- CMD` shows where they happen.",
        ),
        CauseKind::CacheMisses => (
            format!(
                "It misses the last-level cache {} times in 1000 instructions.",
                units::rate(value)
            ),
            format!("at least {threshold} in 1000 instructions"),
            "`memgauge mrc -- CMD` shows how much cache it needs, `memgauge -- CMD` which code \
             and data miss.",
        ),
        CauseKind::L1Bound => (
            format!(
                "Memory does not hold it up: the first-level cache answers {} of its look-ups, \
                 at {other:.2} accesses an instruction.",
                percent(value)
            ),
            format!("at least {threshold} answered, few stalls"),
            "Look for fewer instructions and accesses (algorithm, registers, vectors), not \
             for a better layout of data.",
        ),
        CauseKind::Phases => (
            format!(
                "Its memory traffic comes in phases: the busiest tenth of the time carries {}.",
                percent(value)
            ),
            format!("at least {threshold} in a tenth of the time"),
            "Select the busy stretch in the plot of bandwidth: the tables then show it alone.",
        ),
    };
    Statement {
        kind: if is_caution { "caution" } else { "cause" },
        text,
        rule,
        next: next.to_owned(),
    }
}

/// Where to look first.
fn hottest(summary: &Summary) -> Option<Statement> {
    let table = &summary.hot.functions;
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
        events_in_words(&table.rank)
    )))
}

fn events_in_words(rank: &str) -> String {
    match rank {
        "dram_bytes" => "the bytes between last-level cache and memory".to_owned(),
        "llc.miss" => "the misses of the last-level cache".to_owned(),
        "l1d.miss" => "the misses of the first-level cache".to_owned(),
        "cpu-clock" | "task-clock" => "the processor time".to_owned(),
        event => format!("the events {event}"),
    }
}

/// The overview of accounted I/O.
pub(crate) fn of_io(io: &IoSummary) -> Vec<Statement> {
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
        .map(|d| d.rest_in_bytes + d.rest_out_bytes)
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
