//! Sections of the report in their order.

mod calls;
mod closing;
mod code_regions;
mod counting;
mod data;
mod dram;
mod headline;
mod heap;
mod heap_history;
mod heat;
mod hot;
mod levels;
mod python;
mod regions;
mod sampling;
mod sets;
mod sharing;
mod sorted;
mod threads;
mod time_use;
mod types;
mod what_if;

pub(crate) use closing::{findings, of_regions};
pub use data::HeapOrder;
pub(crate) use sampling::notes as sampling_notes;
pub(crate) use sets::warnings as set_warnings;
pub(crate) use what_if::cautions as what_if_cautions;

use memgauge_analyze::Summary;
use memgauge_trace::Provenance;

use crate::io::IoOrder;
use crate::style::Style;
use crate::units::plural;

/// Text of every section. Empty for a section without content.
pub(crate) fn all(summary: &Summary, style: &Style) -> Vec<String> {
    let caches = |section: fn(&Summary, &Style) -> String| match is_blind(summary) {
        true => String::new(),
        false => section(summary, style),
    };
    // An imported file without memory traffic. A table of empty marks would only repeat that.
    let traffic = |section: fn(&Summary, &Style) -> String| match has_no_traffic(summary) {
        true => String::new(),
        false => caches(section),
    };
    let places = |section: fn(&Summary, &Style) -> String| match has_no_places(summary) {
        true => String::new(),
        false => section(summary, style),
    };
    vec![
        headline::headline(summary, style),
        closing::main_finding(summary, style),
        headline::run(summary, style),
        io(summary, style),
        time_use::time_use(summary, style),
        time_use::counted(summary, style),
        python::lines(summary, style),
        what_if::what_if(summary, style),
        counting::counters(summary, style),
        counting::derived(summary, style),
        caches(levels::levels),
        traffic(dram::traffic),
        traffic(dram::over_time),
        code_regions::regions(summary, style),
        code_regions::values(summary, style),
        sampling::samples(summary, style),
        sampling::sources(summary, style),
        places(hot::functions),
        places(hot::lines),
        data::data(summary, style),
        data::heap(summary, style),
        heap_history::over_time(summary, style),
        types::types(summary, style),
        sharing::sharing(summary, style),
        calls::callers(summary, style),
        hot::instructions(summary, style),
        sampling::derivations(summary, style),
        // With exact sums by data, samples add nothing.
        match summary.data {
            Some(_) => String::new(),
            None => places(regions::regions),
        },
        heat::heat(summary, style),
        threads::threads(summary, style),
        threads::processes(summary, style),
        counting::notes(summary, style),
        counting::ticks(summary, style),
        closing::losses(summary, style),
        closing::cost(summary, style),
        closing::in_short(summary, style),
    ]
}

/// Bytes by process and device.
fn io(summary: &Summary, style: &Style) -> String {
    let section = |io| crate::io::section(io, IoOrder::Total, style.rows, style);
    summary.io.as_ref().map(section).unwrap_or_default()
}

/// Sections of advice.
pub(crate) fn of_advice(summary: &Summary, style: &Style) -> Vec<String> {
    vec![
        headline::headline(summary, style),
        time_use::time_use(summary, style),
        what_if::what_if(summary, style),
        closing::in_short(summary, style),
    ]
}

/// Sections about allocations. Empty if the recording has none.
pub(crate) fn of_heap(
    summary: &Summary,
    order: HeapOrder,
    sites: usize,
    style: &Style,
) -> Vec<String> {
    let Some(heap) = &summary.heap else {
        return Vec::new();
    };
    vec![
        headline::headline(summary, style),
        heap::heap(summary, order, sites, style),
        heap_history::over_time(summary, style),
        heap_history::histograms(heap, style),
        closing::losses(summary, style),
    ]
}

/// Sections of a `stat` report.
pub(crate) fn of_counting(summary: &Summary, style: &Style) -> Vec<String> {
    vec![
        headline::headline(summary, style),
        time_use::time_use(summary, style),
        time_use::counted(summary, style),
        counting::counters(summary, style),
        counting::derived(summary, style),
        counting::notes(summary, style),
        counting::ticks(summary, style),
        closing::losses(summary, style),
        closing::cost(summary, style),
    ]
}

/// Last sections of an import's report.
pub(crate) fn of_import(summary: &Summary, style: &Style) -> Vec<String> {
    vec![
        sampling::samples(summary, style),
        sampling::sources(summary, style),
        closing::losses(summary, style),
    ]
}

fn is_measured(summary: &Summary) -> bool {
    summary.recording.clock == "monotonic" && summary.recording.machine.is_none()
}

/// True if a real machine's recording has no data about caches and memory. Sections about them
/// would be full of marks for missing numbers.
fn is_blind(summary: &Summary) -> bool {
    let seen = summary.levels.iter().any(|level| level.lookups.is_some());
    let may_be = is_measured(summary) || lacks_anything(summary);
    may_be && !seen && summary.dram.read_bytes.is_none()
}

fn has_no_traffic(summary: &Summary) -> bool {
    lacks_anything(summary) && summary.dram.read_bytes.is_none()
}

/// True if an imported file's tool does not record everything.
fn lacks_anything(summary: &Summary) -> bool {
    let lacks = |import: &memgauge_trace::ImportFacts| !import.lacks.is_empty();
    summary.import.as_ref().is_some_and(lacks)
}

/// True if a real machine's recording has neither samples nor sums by code location.
fn has_no_places(summary: &Summary) -> bool {
    let hot = &summary.hot.functions;
    is_measured(summary) && hot.rows.is_empty() && hot.total == 0 && summary.regions.is_empty()
}

/// Provenance of the recording's counts.
fn provenance(summary: &Summary) -> String {
    let words: Vec<&str> = summary.provenance.counts.iter().map(|&p| word(p)).collect();
    words.join(", ")
}

/// True if each event of this name has a sample, so that sums are counts.
fn has_every(summary: &Summary, event: &str) -> bool {
    let sampling = summary.sampling.as_ref();
    sampling.is_some_and(|sampling| sampling.has_every(event))
}

/// True if each sampled event has a sample.
fn has_all(summary: &Summary) -> bool {
    let sampling = summary.sampling.as_ref();
    sampling.is_some_and(memgauge_analyze::SamplingResults::has_all)
}

/// Number of samples behind a table, and provenance of its numbers.
fn samples_note(summary: &Summary, every_event: bool, n: u64) -> String {
    with_provenance(of_samples(every_event, n), summary, every_event)
}

fn with_provenance(note: String, summary: &Summary, every_event: bool) -> String {
    match provenance(summary) {
        words if words.is_empty() => note,
        words if every_event => format!("{note}; {}", words.replace("sampled", "counted")),
        words => format!("{note}; {words}"),
    }
}

/// Number of samples behind a table.
fn of_samples(every_event: bool, n: u64) -> String {
    match every_event {
        true => format!("every event, n = {n}"),
        false => format!("sampled, n = {n}"),
    }
}

fn word(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Counted => "counted",
        Provenance::Sampled => "sampled",
        Provenance::Estimated => "estimated",
        Provenance::Modelled => "modelled",
    }
}

/// Display name of the recording's clock.
fn clock(summary: &Summary) -> &str {
    match summary.recording.clock.as_str() {
        "virtual" => "virtual time",
        _ => "time",
    }
}

/// Formats a number, or the mark for a missing one.
fn or_none<T>(value: Option<T>, format: impl Fn(T) -> String, style: &Style) -> String {
    value.map_or_else(|| style.none().to_owned(), format)
}

/// Name of an event as a column title. Shortened if lines must fit the screen.
fn event_title(name: &str, style: &Style) -> String {
    style.clip(&style.name(name), style.line / 4)
}
