//! Renders a [`Summary`] as text for a terminal and as JSON.
//!
//! Both are pure: a summary and a [`Style`] in, a string out. The text rounds
//! for reading and says of every section how its numbers came to be; the JSON
//! has every number in full. What each number means is in `docs/metrics.md`.
#![forbid(unsafe_code)]

mod grid;
mod heat;
mod io;
mod io_memory;
pub mod mrc;
mod plot;
mod sections;
mod stat;
mod style;
mod table;
mod units;

#[cfg(test)]
mod fixture;

use memgauge_analyze::Summary;

pub use heat::{Share, heat_text};
pub use io::{IoOrder, io_json, io_text};
pub use stat::{CURVE_COLUMNS, Counted, CounterRow, counted_text};
pub use style::Style;

/// The report as text, ending in a newline. Lines fit `style.width` columns,
/// of which 80 are always used, counting a character as one column.
pub fn text(summary: &Summary, style: &Style) -> String {
    let style = style.at_least(80);
    let sections = sections::all(summary, &style);
    let filled = sections.into_iter().filter(|section| !section.is_empty());
    filled.collect::<Vec<_>>().join("\n")
}

/// The summary as indented JSON, ending in a newline; described in
/// `docs/metrics.md`. A number that does not exist is `null`.
pub fn json(summary: &Summary) -> String {
    let text = serde_json::to_string_pretty(summary)
        .expect("SANITY: a summary has string keys and writing to memory cannot fail");
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn plain(width: usize, unicode: bool) -> Style {
        Style {
            width,
            unicode,
            colour: false,
        }
    }

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
        assert_eq!(value["schema_version"], 1);
    }

    #[test]
    fn every_width_fits() {
        for width in 80..200 {
            lines_fit(&text(&fixture::full(), &plain(width, true)), width);
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
