//! The report's sections, in order.

mod closing;
mod dram;
mod headline;
mod hot;
mod levels;
mod regions;
mod threads;

pub(crate) use hot::chain;

use memgauge_analyze::Summary;
use memgauge_trace::Provenance;

use crate::style::Style;

/// Rows a table shows; the others are summed below it.
const SHOWN: usize = 10;

/// Every section's text; empty where it has nothing to say.
pub(crate) fn all(summary: &Summary, style: &Style) -> Vec<String> {
    let caches = |section: fn(&Summary, &Style) -> String| match is_blind(summary) {
        true => String::new(),
        false => section(summary, style),
    };
    vec![
        headline::headline(summary, style),
        headline::run(summary, style),
        caches(levels::levels),
        caches(dram::traffic),
        caches(dram::over_time),
        caches(hot::functions),
        caches(hot::lines),
        regions::regions(summary, style),
        threads::threads(summary, style),
        threads::processes(summary, style),
        closing::losses(summary, style),
        closing::cost(summary, style),
        closing::in_short(summary, style),
    ]
}

/// Whether nothing was recorded of caches and memory on a real machine: sections
/// about them would be full of marks for "no such number".
fn is_blind(summary: &Summary) -> bool {
    let measured = summary.recording.clock == "monotonic" && summary.recording.machine.is_none();
    let seen = summary.levels.iter().any(|level| level.lookups.is_some());
    measured && !seen && summary.dram.read_bytes.is_none() && summary.hot.functions.rows.is_empty()
}

/// How the recording's counts came to be, in words.
fn provenance(summary: &Summary) -> String {
    let words: Vec<&str> = summary.provenance.counts.iter().map(|&p| word(p)).collect();
    words.join(", ")
}

fn word(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Counted => "counted",
        Provenance::Sampled => "sampled",
        Provenance::Estimated => "estimated",
        Provenance::Modelled => "modelled",
    }
}

/// What the recording's clock is called.
fn clock(summary: &Summary) -> &str {
    match summary.recording.clock.as_str() {
        "virtual" => "virtual time",
        _ => "time",
    }
}

/// A number, or the mark for none.
fn or_none<T>(value: Option<T>, format: impl Fn(T) -> String, style: &Style) -> String {
    value.map_or_else(|| style.none().to_owned(), format)
}

/// The last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// `1 word` or `2 words`.
fn plural(n: u64, word: &str) -> String {
    let ending = if n == 1 { "" } else { "s" };
    format!("{} {word}{ending}", crate::units::count(n))
}
