//! Writes callgrind's format, version 1: costs by line of each function, without calls.
//!
//! Inlined code is charged to the innermost function, as everywhere in memgauge. Names of events
//! may only contain letters, digits and `_`, so other characters become `_`.

use std::collections::BTreeMap;
use std::io::Write;

use memgauge_analyze::Summary;

use super::places::{events, values, with_rest};
use super::{Error, NOT_LISTED};

/// Module, source file and name of a function.
type FunctionKey<'a> = (&'a str, &'a str, &'a str);

pub(crate) fn write(summary: &Summary, out: &mut dyn Write) -> Result<(), Error> {
    let table = &summary.hot.lines;
    let events = events(summary, table)?;
    let mut functions: BTreeMap<FunctionKey<'_>, BTreeMap<u32, Vec<u64>>> = BTreeMap::new();
    let mut totals = vec![0; events.len()];
    for (row, counts) in with_rest(table) {
        let (function, line) = match row {
            Some(row) => {
                let file = row.file.as_deref().unwrap_or("???");
                let line = row.line.unwrap_or(0);
                ((row.module.as_str(), file, row.function.as_str()), line)
            }
            None => ((NOT_LISTED, "???", NOT_LISTED), 0),
        };
        let counts = values(counts, &events);
        add(&mut totals, &counts);
        let lines = functions.entry(function).or_default();
        add(
            lines.entry(line).or_insert_with(|| vec![0; events.len()]),
            &counts,
        );
    }
    let names = event_words(&events);
    writeln!(out, "# callgrind format\nversion: 1\ncreator: memgauge")?;
    writeln!(
        out,
        "cmd: {}",
        one_line(&summary.recording.command.join(" "))
    )?;
    for (event, name) in events.iter().zip(&names) {
        let provenance = super::places::code_provenance(summary, event);
        writeln!(out, "event: {name} : {event} ({provenance})")?;
    }
    writeln!(out, "positions: line\nevents: {}", names.join(" "))?;
    writeln!(out, "summary: {}", joined(&totals))?;
    for ((module, file, function), lines) in functions {
        let [module, file, function] = [module, file, function].map(one_line);
        writeln!(out, "\nob={module}\nfl={file}\nfn={function}")?;
        for (line, counts) in lines {
            writeln!(out, "{line} {}", joined(&counts))?;
        }
    }
    writeln!(out, "\ntotals: {}", joined(&totals))?;
    Ok(())
}

fn add(sums: &mut [u64], counts: &[u64]) {
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum += count;
    }
}

fn joined(counts: &[u64]) -> String {
    counts
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Converts the names of events to distinct words that the format allows: `a.b` and `a-b` become
/// `a_b` and `a_b_2`.
fn event_words(events: &[String]) -> Vec<String> {
    let mut event_words: Vec<String> = Vec::with_capacity(events.len());
    for event in events {
        let mut word = event.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        if !word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            word.insert(0, 'e');
        }
        let numbered = (2..).map(|number| format!("{word}_{number}"));
        let mut candidates = std::iter::once(word.clone()).chain(numbered);
        event_words.extend(candidates.find(|candidate| !event_words.contains(candidate)));
    }
    event_words
}

/// Replaces line breaks in a name.
fn one_line(name: &str) -> String {
    name.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::event_words;

    #[test]
    fn event_names_become_distinct_words() {
        let events = [
            "cpu/a=1/u",
            "llc.miss",
            "llc-miss",
            "llc_miss",
            "llc_miss_2",
            "0x1",
            "",
        ];
        let event_words = event_words(&events.map(str::to_owned));
        let expected = [
            "cpu_a_1_u",
            "llc_miss",
            "llc_miss_2",
            "llc_miss_3",
            "llc_miss_2_2",
            "e0x1",
            "e",
        ];
        assert_eq!(event_words, expected);
    }
}
