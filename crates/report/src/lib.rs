//! Renders a [`Summary`] as text for a terminal, as JSON and as a page.
//!
//! All three are pure functions of a summary and a [`Style`]. The text rounds numbers and states
//! their provenance in each section. The JSON has all numbers in full precision. `docs/metrics.md`
//! defines each number.
#![forbid(unsafe_code)]

pub mod bandwidth;
mod callers;
mod causes;
mod compare;
pub mod fleet;
mod grid;
mod io;
mod io_memory;
pub mod mrc;
mod names;
mod overview;
mod page;
mod placement;
mod plot;
mod sampled;
mod sections;
mod style;
mod table;
mod units;
mod unnamed;

#[cfg(test)]
mod fixture;

use memgauge_analyze::Summary;
use serde_json::{Value, json as object};

pub use causes::Statement;
pub use compare::{
    ChangedPlace, ChangedShare, ChangedShares, Compared, ComparedMetric, Comparison, Gate,
    GateError, Headline, HeadlinePlace, Measured, MetricUnit, Moments, RunCurves, Shares,
    check_event, check_group, mean_difference_interval, mean_interval,
};
pub use io::{IoOrder, io_json, io_text};
pub use page::{InDataset, NO_FRONT_END, Page, Served, has_front_end};
pub use placement::placement_text;
pub use sections::HeapOrder;
pub use style::Style;
pub use units::{as_typed, capacity};

/// Renders the report as text that ends in a newline. Lines have at most `style.line` columns, but
/// at least 80 are used. A character counts as one column.
pub fn text(summary: &Summary, style: &Style) -> String {
    style.shown(joined(sections::all(summary, &style.at_least(80))))
}

/// Renders the part of the report about where the time goes, what limits the run, and the gain from
/// other machines.
pub fn advice_text(summary: &Summary, style: &Style) -> String {
    style.shown(joined(sections::of_advice(summary, &style.at_least(80))))
}

/// Renders heap memory by at most `sites` allocation sites and by the calls that lead to them,
/// sorted by `order`. `None` if the recording has no allocations.
pub fn heap_text(
    summary: &Summary,
    order: HeapOrder,
    sites: usize,
    style: &Style,
) -> Option<String> {
    let sections = sections::of_heap(summary, order, sites, &style.at_least(80));
    (!sections.is_empty()).then(|| style.shown(joined(sections)))
}

/// Renders the end of a report about counts: the counters, derived values, the timer's ticks,
/// losses and cost.
pub fn counting_text(summary: &Summary, style: &Style) -> String {
    style.shown(joined(sections::of_counting(summary, &style.at_least(80))))
}

/// Renders the end of a report about an import: samples, the origin of their data, and losses.
pub fn import_text(summary: &Summary, style: &Style) -> String {
    style.shown(joined(sections::of_import(summary, &style.at_least(80))))
}

fn joined(sections: Vec<String>) -> String {
    let filled = sections.into_iter().filter(|section| !section.is_empty());
    filled.collect::<Vec<_>>().join("\n")
}

/// Returns sentences about the method and cost of sampling.
pub fn sampling_notes(summary: &Summary) -> Vec<String> {
    let sampling = summary.sampling.as_ref();
    sampling.map_or_else(Vec::new, sections::sampling_notes)
}

/// Returns sentences about the losses.
pub fn loss_sentences(summary: &Summary) -> Vec<String> {
    let sentence = |loss: &memgauge_analyze::LossRow| match loss.detail.as_str() {
        "" => format!("{} {}", loss.count, loss.meaning),
        detail => format!("{} {}: {detail}", loss.count, loss.meaning),
    };
    summary.losses.iter().map(sentence).collect()
}

/// Renders counts with losses, end and cost for runs without a recording: the summary's `counting`
/// as a JSON object on one line.
pub fn counting_json(summary: &Summary) -> String {
    let mut object = match object!(summary.counting) {
        Value::Object(object) => object,
        _ => serde_json::Map::new(),
    };
    object.insert("losses".to_owned(), object!(summary.losses));
    object.insert("end".to_owned(), object!(summary.recording.end));
    object.insert("own_cost".to_owned(), object!(summary.own_cost));
    Value::Object(object).to_string()
}

/// Renders the report that ends an import, as indented JSON that ends in a newline.
pub fn import_json(summary: &Summary) -> String {
    let sampling = summary.sampling.clone().unwrap_or_default();
    let import = summary.import.clone().unwrap_or_default();
    let with_address: u64 = sampling.events.iter().map(|e| e.with_address).sum();
    let value = object!({
        "samples": sampling.events,
        "with_address": with_address,
        "sources": sampling.sources,
        "series_rows": import.series_rows,
        "records": import.records,
        "losses": summary.losses,
        "problems": import.problems,
        "lacks": import.lacks,
        "recording_bytes": summary.own_cost.recording_bytes,
    });
    format!("{value:#}\n")
}

/// A summary with data that only reports have.
#[derive(serde::Serialize)]
struct JsonSummary<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    /// Warning about estimates from some cache sets.
    warnings: Vec<String>,
}

impl JsonSummary<'_> {
    fn new(summary: &Summary) -> JsonSummary<'_> {
        let estimated = summary.estimated();
        let warnings = estimated.map(|sets| sections::set_warnings(summary, sets));
        JsonSummary {
            summary,
            warnings: warnings.unwrap_or_default(),
        }
    }
}

/// Renders the summary as indented JSON that ends in a newline. `docs/metrics.md` describes it. A
/// number that does not exist is `null`.
pub fn json(summary: &Summary) -> String {
    let text = serde_json::to_string_pretty(&JsonSummary::new(summary))
        .expect("SANITY: a summary has string keys and writing to memory cannot fail");
    text + "\n"
}

/// Returns the JSON as a value.
pub fn json_value(summary: &Summary) -> Value {
    object!(JsonSummary::new(summary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, plain};

    fn lines_fit(text: &str, width: usize) {
        for line in text.lines() {
            assert!(
                line.chars().count() <= width,
                "too wide for {width}: {line}"
            );
        }
    }

    #[test]
    fn full_report_in_80_columns() {
        let text = text(&fixture::full(), &plain(80, true));
        lines_fit(&text, 80);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn full_report_in_120_columns() {
        let text = text(&fixture::full(), &plain(120, true));
        lines_fit(&text, 120);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn full_report_in_ascii() {
        let text = text(&fixture::full(), &plain(80, false));
        assert!(text.is_ascii());
        insta::assert_snapshot!(text);
    }

    #[test]
    fn report_of_a_killed_recorder_says_what_is_missing() {
        let text = text(&fixture::killed(), &plain(80, true));
        lines_fit(&text, 80);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn report_of_nothing_is_sensible() {
        let text = text(&fixture::empty(), &plain(80, true));
        lines_fit(&text, 80);
        assert!(!text.contains("NaN") && !text.contains("inf"));
        insta::assert_snapshot!(text);
    }

    #[test]
    fn json_has_every_number() {
        insta::assert_snapshot!(json(&fixture::full()));
    }

    #[test]
    fn json_of_nothing_uses_null() {
        let json = json(&fixture::empty());
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(value["dram"]["mean_read_bytes_per_s"].is_null());
        assert!(value["levels"][0]["miss_ratio"].is_null());
        assert_eq!(value["schema_version"], 2);
    }

    #[test]
    fn every_width_fits() {
        for width in 80..200 {
            lines_fit(&text(&fixture::full(), &plain(width, true)), width);
        }
    }

    #[test]
    fn many_processes_that_waited_fit() {
        let mut summary = fixture::full();
        for process in &mut summary.processes {
            (process.pid.0, process.run_ns) = (4_194_304, 31_800_000);
            process.idle_ns = Some(123_800_000);
        }
        for thread in &mut summary.threads {
            (thread.pid.0, thread.tid.0, thread.idle_ns) = (4_194_303, 4_194_304, Some(8_810_000));
        }
        let (process, thread) = (summary.processes[0].clone(), summary.threads[0].clone());
        summary.processes.extend(vec![process; 20]);
        summary.threads.extend(vec![thread; 20]);
        for width in 80..120 {
            lines_fit(&text(&summary, &plain(width, true)), width);
        }
    }

    #[test]
    fn colour_changes_nothing_but_colour() {
        let mut style = plain(100, true);
        let plain = text(&fixture::full(), &style);
        style.colour = true;
        let coloured = text(&fixture::full(), &style);
        assert!(coloured.contains("\x1b["));
        assert_eq!(fixture::without_escapes(&coloured), plain);
    }

    #[test]
    fn names_cannot_smuggle_terminal_escapes() {
        let mut summary = fixture::full();
        summary.recording.command = vec!["evil\x1b[2J\n".to_owned()];
        summary.hot.functions.rows[0].function = "f\x1b]0;x\x07".to_owned();
        summary.losses[0].detail = "a\u{9b}2Jb".to_owned();
        let text = text(&summary, &plain(80, true));
        assert!(!text.contains('\x1b') && !text.contains('\x07') && !text.contains('\u{9b}'));
    }
}
