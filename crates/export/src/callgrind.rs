//! Writes callgrind's format, version 1: costs by line of each function, and its calls where the
//! recording has call chains.
//!
//! A line's own costs are those of the report. The cost of a call is the sum of the samples with
//! its call chain, so it is known for sampled events only, and a function's inclusive cost is as
//! exact as its samples. A recording does not count calls, but the format requires a number, so it
//! is 0.
//!
//! Inlined code is charged to the innermost function, as everywhere in memgauge. Names of events
//! may only contain letters, digits and `_`, so other characters become `_`.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use memgauge_analyze::{CallNode, HotRow, Summary};

use super::places::{events, values, with_rest};
use super::{Error, NOT_LISTED};

/// Key of a function in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FunctionKey<'a> {
    module: &'a str,
    file: &'a str,
    function: &'a str,
}

#[derive(Default)]
struct FunctionCosts<'a> {
    by_line: BTreeMap<u32, Vec<u64>>,
    calls: BTreeMap<FunctionKey<'a>, Vec<u64>>,
}

const UNKNOWN_FILE: &str = "???";

pub(crate) fn write(summary: &Summary, out: &mut dyn Write) -> Result<(), Error> {
    let table = &summary.hot.lines;
    let events = events(summary, table)?;
    let mut functions: BTreeMap<FunctionKey<'_>, FunctionCosts<'_>> = BTreeMap::new();
    let mut totals = vec![0; events.len()];
    for (row, counts) in with_rest(table) {
        let (key, line) = match row {
            Some(row) => (key_of_row(row), row.line.unwrap_or(0)),
            None => (NOT_LISTED_KEY, 0),
        };
        let counts = values(counts, &events);
        add(&mut totals, &counts);
        let lines = &mut functions.entry(key).or_default().by_line;
        let sums = lines.entry(line).or_insert_with(|| vec![0; events.len()]);
        add(sums, &counts);
    }
    add_calls(summary, &events, &mut functions);
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
    for (key, costs) in functions {
        let [module, file, function] = [key.module, key.file, key.function].map(one_line);
        writeln!(out, "\nob={module}\nfl={file}\nfn={function}")?;
        for (line, counts) in costs.by_line {
            writeln!(out, "{line} {}", joined(&counts))?;
        }
        for (callee, counts) in costs.calls {
            let [module, file, function] =
                [callee.module, callee.file, callee.function].map(one_line);
            writeln!(out, "cob={module}\ncfi={file}\ncfn={function}")?;
            // Neither the line of the call nor that of the callee is known.
            writeln!(out, "calls=0 0\n0 {}", joined(&counts))?;
        }
    }
    writeln!(out, "\ntotals: {}", joined(&totals))?;
    Ok(())
}

const NOT_LISTED_KEY: FunctionKey<'_> = FunctionKey {
    module: NOT_LISTED,
    file: UNKNOWN_FILE,
    function: NOT_LISTED,
};

fn key_of_row(row: &HotRow) -> FunctionKey<'_> {
    FunctionKey {
        module: &row.module,
        file: row.file.as_deref().unwrap_or(UNKNOWN_FILE),
        function: &row.function,
    }
}

fn add_calls<'a>(
    summary: &'a Summary,
    events: &[String],
    functions: &mut BTreeMap<FunctionKey<'a>, FunctionCosts<'a>>,
) {
    // Chains name no source file. The rows are ordered by rank, so the first one of a
    // function names the file with most of it.
    let mut files: HashMap<(&str, &str), &str> = HashMap::new();
    for row in &summary.hot.lines.rows {
        let file = row.file.as_deref().unwrap_or(UNKNOWN_FILE);
        files.entry((&row.module, &row.function)).or_insert(file);
    }
    let key = |node: &'a CallNode| {
        let (module, function) = (node.module.as_str(), node.function.as_str());
        let file = files.get(&(module, function)).copied();
        FunctionKey {
            module,
            file: file.unwrap_or(UNKNOWN_FILE),
            function,
        }
    };
    for tree in &summary.calls {
        let Some(column) = events.iter().position(|event| *event == tree.event) else {
            continue;
        };
        for edge in tree.edges() {
            let calls = &mut functions.entry(key(edge.caller)).or_default().calls;
            let counts = calls
                .entry(key(edge.callee))
                .or_insert_with(|| vec![0; events.len()]);
            counts[column] += edge.callee.events;
        }
    }
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
