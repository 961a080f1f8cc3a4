//! Compares two runs: their metrics, and the functions that changed.
//!
//! A run is compared as [`Measured`], which a recording is reduced to and which a baseline
//! file holds. Exact counts alone are compared by function: differences of samples would
//! need a confidence interval, which two runs do not give.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_analyze::{Summary, file_name};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::style::Style;
use crate::table::{Kind, Table};
use crate::units;

/// Version of the form of [`Measured`].
const VERSION: u32 = 1;

/// Events by which changed functions are ranked: the first that changed by [`NOTABLE`].
const RANKS: [&str; 5] = ["llc.miss", "l2.miss", "l1d.miss", "loads", "instructions"];

/// Part of an event's count that has to change for it to rank functions. The last lines
/// that an added pass evicts elsewhere must not hide the pass.
const NOTABLE: f64 = 0.01;

/// What is compared of a run. In a file it is a baseline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Version of this form.
    pub memgauge_baseline: u32,
    /// The modelled machine's name; `None` where none was modelled.
    pub machine: Option<String>,
    /// File name of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// One in so many cache sets was followed, from which numbers are estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_from: Option<u32>,
    /// Whole-run numbers by name.
    pub metrics: BTreeMap<String, f64>,
    /// Exact counts by function and event. Empty where functions were sampled.
    pub functions: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Measured {
    /// What a summary says of its run. Wall time and memgauge's own cost stay out.
    pub fn of(summary: &Summary) -> Measured {
        let machine = summary.recording.machine.as_ref();
        Measured {
            memgauge_baseline: VERSION,
            machine: machine.map(|machine| machine.name.clone()),
            program: summary
                .recording
                .command
                .first()
                .map(|path| file_name(path).to_owned()),
            estimated_from: summary.estimated().map(|sets| sets.one_in),
            metrics: metrics(summary),
            functions: functions(summary),
        }
    }

    /// Reads a baseline file.
    ///
    /// # Errors
    /// A sentence that says why the text is no baseline.
    pub fn parse(text: &str) -> Result<Measured, String> {
        let measured: Measured = serde_json::from_str(text).map_err(|why| why.to_string())?;
        match measured.memgauge_baseline {
            VERSION => Ok(measured),
            other => Err(format!(
                "its version is {other}, this memgauge reads {VERSION}"
            )),
        }
    }

    /// A baseline file: sorted, ending in a newline.
    pub fn file(&self) -> String {
        format!("{:#}\n", serde_json::json!(self))
    }
}

fn metrics(summary: &Summary) -> BTreeMap<String, f64> {
    let totals = summary.totals.iter();
    let mut metrics: BTreeMap<String, f64> = totals
        .map(|(name, &value)| (name.clone(), value as f64))
        .collect();
    metrics.insert("duration_ns".to_owned(), summary.run.duration_ns as f64);
    for level in &summary.levels {
        let name = serde_json::json!(level.name);
        let name = name.as_str().unwrap_or_default();
        for (what, value) in [("miss_ratio", level.miss_ratio), ("mpki", level.mpki)] {
            metrics.extend(value.map(|value| (format!("{name}.{what}"), value)));
        }
    }
    metrics
}

/// Sums by function and the file name of its module, which is the same on all machines.
fn functions(summary: &Summary) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut functions: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let table = &summary.hot.functions;
    let exact = table.rows.iter().filter(|row| row.samples.is_none());
    for row in exact {
        let name = format!("{} ({})", row.function, file_name(&row.module));
        let counts = functions.entry(name).or_default();
        for (event, &count) in row.counts.iter() {
            *counts.entry(event.clone()).or_default() += count;
        }
    }
    functions
}

/// A run with its program's functions under another program's name: two builds of a
/// program often have names of their own. `None` where the names are the same.
fn renamed(run: &Measured, program: Option<&str>) -> Option<Measured> {
    let (own, other) = (run.program.as_deref()?, program?);
    if own == other {
        return None;
    }
    let (own, other) = (format!(" ({own})"), format!(" ({other})"));
    let name = |name: &String| match name.strip_suffix(&own) {
        Some(function) => format!("{function}{other}"),
        None => name.clone(),
    };
    let functions = run.functions.iter();
    Some(Measured {
        functions: functions
            .map(|(key, counts)| (name(key), counts.clone()))
            .collect(),
        ..run.clone()
    })
}

/// A number of both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// In the first run; `None` where it lacks the number.
    pub before: Option<f64>,
    /// In the second run.
    pub after: Option<f64>,
    /// `after - before`.
    pub difference: Option<f64>,
    /// `difference / before`; `None` where `before` is zero.
    pub relative: Option<f64>,
}

/// A function whose count of the ranking event changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changed {
    /// Its name and its module's file name.
    pub function: String,
    /// Count in the first run.
    pub before: u64,
    /// Count in the second run.
    pub after: u64,
    /// Its part of the sum of all functions' absolute differences.
    pub share: f64,
}

/// Two runs compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Whether any number differs.
    pub changed: bool,
    /// The modelled machines of both.
    pub machines: [Option<String>; 2],
    /// File names of both programs. The second one's functions are compared with those
    /// of the first, and have its name.
    pub programs: [Option<String>; 2],
    /// Part of the cache sets, one in so many, from which the numbers of each are estimated.
    pub estimated_from: [Option<u32>; 2],
    /// Whether each run has exact counts of functions; they are compared where both have.
    pub functions_known: [bool; 2],
    /// All metrics of both, by name.
    pub metrics: Vec<Metric>,
    /// The event that functions are ranked by; `None` where no function changed.
    pub ranked_by: Option<String>,
    /// Functions that changed, by their share of the change.
    pub functions: Vec<Changed>,
}

impl Comparison {
    /// Compares `after` with `before`.
    pub fn of(before: &Measured, after: &Measured) -> Comparison {
        let programs = [before.program.clone(), after.program.clone()];
        let named = renamed(after, before.program.as_deref());
        let after = named.as_ref().unwrap_or(after);
        let names: BTreeSet<&String> = before.metrics.keys().chain(after.metrics.keys()).collect();
        let get = |run: &Measured, name: &String| run.metrics.get(name).copied();
        let metrics = names.into_iter();
        let metrics: Vec<Metric> = metrics
            .map(|name| Metric::of(name, get(before, name), get(after, name)))
            .collect();
        let by = |notable: f64| {
            RANKS.iter().find_map(|&event| {
                let rows = changed(before, after, event);
                let sum: u64 = rows.iter().map(|row| row.after.abs_diff(row.before)).sum();
                let is_enough = sum > 0 && sum as f64 >= notable * total(before, event);
                is_enough.then(|| (event.to_owned(), rows))
            })
        };
        // A run without functions has not done without them: nothing is known of them.
        let both = !before.functions.is_empty() && !after.functions.is_empty();
        let ranked = both.then(|| by(NOTABLE).or_else(|| by(0.0))).flatten();
        let (ranked_by, functions) = ranked.unzip();
        Comparison {
            functions_known: [!before.functions.is_empty(), !after.functions.is_empty()],
            changed: (both && before.functions != after.functions)
                || metrics.iter().any(|metric| metric.before != metric.after),
            machines: [before.machine.clone(), after.machine.clone()],
            programs,
            estimated_from: [before.estimated_from, after.estimated_from],
            metrics,
            ranked_by,
            functions: functions.unwrap_or_default(),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        serde_json::json!(self)
    }

    /// As text; `rows` functions at most.
    pub fn text(&self, rows: usize, style: &Style) -> String {
        let style = &style.at_least(80);
        let mut text = String::new();
        if self.machines[0] != self.machines[1] {
            let name = |n: &Option<String>| n.clone().unwrap_or_else(|| "none".to_owned());
            let [before, after] = [name(&self.machines[0]), name(&self.machines[1])];
            text += &format!("The modelled machines differ: {before}, {after}.\n");
        }
        if self.estimated_from != [None, None] {
            let of = |part: Option<u32>| match part {
                None => "exact".to_owned(),
                Some(one_in) => format!("1/{one_in} of the sets"),
            };
            let [before, after] = self.estimated_from.map(of);
            text += &format!(
                "Misses, DRAM bytes and time are estimated: {before}, {after}. Differences within \
                 their intervals say nothing (memgauge report).\n"
            );
        }
        if let [Some(before), Some(after)] = &self.programs
            && before != after
        {
            text += &format!("Functions of `{after}` are compared with those of `{before}`.\n");
        }
        if self.functions_known != [true, true] {
            text += "Functions are not compared: only exact counts of both runs are.\n";
        }
        if !self.changed {
            return text + "Nothing changed.\n";
        }
        let mut measured = self.metrics.iter().filter(|m| m.name != "duration_ns");
        if measured.all(|m| m.difference.is_none()) {
            text += "The runs have no metric in common: they come from different sources.\n";
        }
        text += "Metrics that changed\n";
        text += &self.metrics_table().draw(style);
        if let Some(event) = &self.ranked_by {
            text += &format!("\nFunctions that changed, by {event}\n");
            text += &self.functions_table(rows).draw(style);
        }
        text
    }

    fn metrics_table(&self) -> Table {
        let mut table = Table::new(&[
            ("metric", Kind::Text),
            ("before", Kind::Number),
            ("after", Kind::Number),
            ("difference", Kind::Number),
            ("relative", Kind::Number),
        ]);
        let changed = self.metrics.iter().filter(|m| m.before != m.after);
        for metric in changed {
            table.row(vec![
                metric.name.clone(),
                number(metric.before),
                number(metric.after),
                number(metric.difference),
                metric.relative.map_or("–".to_owned(), signed_percent),
            ]);
        }
        table
    }

    fn functions_table(&self, rows: usize) -> Table {
        let mut table = Table::new(&[
            ("share", Kind::Number),
            ("before", Kind::Number),
            ("after", Kind::Number),
            ("function", Kind::Text),
        ]);
        for row in self.functions.iter().take(rows) {
            table.row(vec![
                units::share(row.share),
                units::count(row.before),
                units::count(row.after),
                row.function.clone(),
            ]);
        }
        table
    }
}

impl Metric {
    fn of(name: &str, before: Option<f64>, after: Option<f64>) -> Metric {
        let difference = before.zip(after).map(|(before, after)| after - before);
        let divisor = before.filter(|&before| before != 0.0);
        Metric {
            name: name.to_owned(),
            before,
            after,
            difference,
            relative: difference.zip(divisor).map(|(d, before)| d / before),
        }
    }
}

/// An event's count in all functions.
fn total(run: &Measured, event: &str) -> f64 {
    let counts = run.functions.values();
    let counts = counts.filter_map(|counts| counts.get(event));
    counts.map(|&count| count as f64).sum()
}

fn changed(before: &Measured, after: &Measured, event: &str) -> Vec<Changed> {
    let names: BTreeSet<&String> = before
        .functions
        .keys()
        .chain(after.functions.keys())
        .collect();
    let get = |run: &Measured, name: &String| {
        let counts = run.functions.get(name);
        counts.and_then(|c| c.get(event).copied()).unwrap_or(0)
    };
    let pairs = names
        .into_iter()
        .map(|n| (n, get(before, n), get(after, n)));
    let pairs: Vec<_> = pairs.filter(|(_, before, after)| before != after).collect();
    let sum: f64 = pairs.iter().map(|(_, b, a)| a.abs_diff(*b) as f64).sum();
    let row = |(name, before, after): (&String, u64, u64)| Changed {
        function: name.clone(),
        before,
        after,
        share: after.abs_diff(before) as f64 / sum,
    };
    let mut rows: Vec<Changed> = pairs.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.after.abs_diff(row.before)));
    rows
}

/// A whole number in full up to seven digits, in other cases a rounded one.
fn number(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(v) if v.fract() == 0.0 && v.abs() < 1e7 => format!("{v}"),
        Some(v) if v.abs() >= 1000.0 => {
            let sign = if v < 0.0 { "-" } else { "" };
            format!("{sign}{}", units::count(v.abs() as u64))
        }
        Some(v) => format!("{v:.6}"),
    }
}

fn signed_percent(ratio: f64) -> String {
    format!("{:+.2} %", ratio * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::plain;

    fn run(program: &str, misses: u64) -> Measured {
        let counts = |n| BTreeMap::from([("llc.miss".to_owned(), n)]);
        Measured {
            program: Some(program.to_owned()),
            functions: BTreeMap::from([
                (format!("sum ({program})"), counts(misses)),
                ("memset (libc.so.6)".to_owned(), counts(7)),
            ]),
            metrics: BTreeMap::from([("llc.miss".to_owned(), (misses + 7) as f64)]),
            ..Measured::default()
        }
    }

    #[test]
    fn functions_of_programs_with_two_names_are_compared_with_each_other() {
        let compared = Comparison::of(&run("old", 100), &run("new", 40));
        let functions: Vec<_> = compared.functions.iter().collect();
        assert_eq!(functions.len(), 1, "{functions:?}");
        assert_eq!(functions[0].function, "sum (old)");
        assert_eq!((functions[0].before, functions[0].after), (100, 40));
        let text = compared.text(10, &plain(80, false));
        assert!(
            text.contains("Functions of `new` are compared with those of `old`."),
            "{text}"
        );
        assert!(!Comparison::of(&run("old", 9), &run("new", 9)).changed);
    }

    #[test]
    fn functions_that_one_run_does_not_know_are_not_gone() {
        let sampled = Measured {
            functions: BTreeMap::new(),
            ..run("old", 100)
        };
        let compared = Comparison::of(&run("old", 100), &sampled);
        assert_eq!((compared.functions.len(), compared.changed), (0, false));
        let text = compared.text(10, &plain(80, false));
        assert!(text.contains("Functions are not compared"), "{text}");
    }

    #[test]
    fn runs_without_a_metric_in_common_say_so() {
        let counted = |name: &str| Measured {
            metrics: BTreeMap::from([(name.to_owned(), 1.0), ("duration_ns".to_owned(), 2.0)]),
            ..Measured::default()
        };
        let text = |a, b| Comparison::of(&counted(a), &counted(b)).text(10, &plain(80, false));
        assert!(text("loads", "cpu-clock").contains("no metric in common"));
        assert!(!text("loads", "loads").contains("no metric in common"));
    }
}
