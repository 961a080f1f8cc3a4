//! Several runs, each compared with the first, or two groups of runs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::curves::{self, RunCurves};
use super::rank::has;
use super::text::signed_percent;
use super::{Comparison, Measured, MetricUnit};
use crate::plot::{self, Panel};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};

/// Number of runs whose columns fit a table of 80 characters beside the first run.
const BESIDE: usize = 4;

/// Comparisons of runs with a first one, or of one group with another.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Names of the runs or of both groups, starting with the first.
    pub names: Vec<String>,
    /// Comparison of each further run, or of the second group, with the first.
    pub comparisons: Vec<Comparison>,
    /// Curves of all runs.
    pub curves: Vec<RunCurves>,
}

/// The functions or the lines of a comparison.
type PlacesOf = fn(&Comparison) -> &Vec<super::ChangedPlace>;

/// Row of a table of several runs: name, value of the first run, and values of the others.
pub(super) type RunsRow = (String, String, Vec<String>);

impl Compared {
    /// Compares named runs with the first one. `event` ranks functions and lines. `None` selects
    /// the first of the usual events by which any run changed.
    pub fn of(
        runs: &[(String, Measured)],
        event: Option<&str>,
        curves: Vec<RunCurves>,
    ) -> Compared {
        let (first, others) = runs.split_at(runs.len().min(1));
        let compared = |event: Option<&str>| -> Vec<Comparison> {
            let first: Vec<Measured> = first.iter().map(|run| run.1.clone()).collect();
            let one = |run: &(String, Measured)| {
                Comparison::of(&first, std::slice::from_ref(&run.1), event)
            };
            others.iter().map(one).collect()
        };
        let mut comparisons = compared(event);
        let of_pairs = || comparisons.iter().filter_map(|c| c.ranked_by.clone());
        let known_to_all = |event: &String| runs.iter().all(|run| has(&run.1, event));
        let ranked_by = of_pairs().find(known_to_all).or_else(|| of_pairs().next());
        if event.is_none() && comparisons.len() > 1 && ranked_by.is_some() {
            // The same event for all comparisons, so that they fit one table.
            comparisons = compared(ranked_by.as_deref());
        }
        Compared {
            names: runs.iter().map(|run| run.0.clone()).collect(),
            comparisons,
            curves,
        }
    }

    /// Compares two groups.
    pub fn of_groups(comparison: Comparison, curves: Vec<RunCurves>) -> Compared {
        Compared {
            names: vec!["before".to_owned(), "after".to_owned()],
            comparisons: vec![comparison],
            curves,
        }
    }

    /// Returns true if any number of any run differs from the first run's.
    pub fn changed(&self) -> bool {
        self.comparisons.iter().any(|comparison| comparison.changed)
    }

    /// Iterates over the further runs with their comparisons.
    pub fn runs(&self) -> impl Iterator<Item = (&str, &Comparison)> {
        let names = self.names.iter().skip(1).map(String::as_str);
        names.zip(&self.comparisons)
    }

    /// Returns JSON: the comparison of two runs, or a list of comparisons with the first run.
    pub fn json(&self) -> Value {
        if let [comparison] = self.comparisons.as_slice() {
            return comparison.json();
        }
        let runs = self.runs().map(|(name, comparison)| {
            let mut value = comparison.json();
            value["run"] = json!(name);
            value
        });
        json!({
            "changed": self.changed(),
            "base": self.names.first(),
            "comparisons": runs.collect::<Vec<Value>>(),
        })
    }

    /// Returns the text, with at most `rows` functions, lines and regions.
    pub fn text(&self, rows: usize, style: &Style) -> String {
        style.shown(self.whole_text(rows, &style.at_least(80)))
    }

    fn whole_text(&self, rows: usize, style: &Style) -> String {
        if let [comparison] = self.comparisons.as_slice() {
            let text = comparison.text(rows, style);
            return match self.changed() {
                true => text + &self.plots(style),
                false => text,
            };
        }
        let mut text = self.legend(style);
        if !self.changed() {
            return text + "Nothing changed.\n";
        }
        for (number, comparison) in (1..).zip(&self.comparisons) {
            if let Some(headline) = &comparison.headline {
                let line = format!("{}: {}", letter(number), headline.text(style));
                text += &style.paint_lines(Role::Heading, &style.wrap(&line, 0));
            }
        }
        for (what, event, places) in self.places(style) {
            let title = format!("{what}s that changed, by {event}");
            let shown = &places[..places.len().min(rows)];
            text += &self.tables(&title, &what.to_lowercase(), shown, style);
        }
        text += &self.tables(
            "Metrics that changed, relative to A",
            "metric",
            &self.metrics(style),
            style,
        );
        let unlisted = (1..).zip(&self.comparisons);
        let unlisted = unlisted.filter_map(|(number, comparison)| {
            Some(format!("{}: {}", letter(number), comparison.unlisted()?))
        });
        for line in unlisted {
            text += &format!("\n{}", style.wrap(&line, 0));
        }
        text + &self.plots(style)
    }

    /// Returns the legend of the letters that stand for runs, and notes.
    fn legend(&self, style: &Style) -> String {
        let mut text = String::new();
        for (number, name) in self.names.iter().enumerate() {
            let role = if number == 0 {
                "  the others are compared with it"
            } else {
                ""
            };
            text += &format!("{}  {}{role}\n", letter(number), style.name(name));
        }
        for (number, (_, comparison)) in (1..).zip(self.runs()) {
            let notes = comparison.notes(style);
            for line in notes.lines() {
                text += &format!("{}: {line}\n", letter(number));
            }
        }
        text
    }

    /// Returns metrics that changed enough in any run to be listed.
    pub(super) fn metrics(&self, style: &Style) -> Vec<RunsRow> {
        let mut rows: BTreeMap<&str, (String, Vec<String>)> = BTreeMap::new();
        let listed = self.comparisons.iter();
        for metric in listed.flat_map(Comparison::listed_metrics) {
            let row = || (value(&metric.name, metric.before, style), Vec::new());
            rows.entry(&metric.name).or_insert_with(row);
        }
        for (name, (_, cells)) in &mut rows {
            for comparison in &self.comparisons {
                let metric = comparison
                    .metrics
                    .iter()
                    .find(|metric| metric.name == *name);
                cells.push(match metric {
                    None => style.none().to_owned(),
                    Some(metric) if !metric.is_change() => "=".to_owned(),
                    Some(metric) => match metric.relative {
                        Some(relative) => signed_percent(relative),
                        None => value(name, metric.after, style),
                    },
                });
            }
        }
        rows.into_iter()
            .map(|(name, (base, cells))| (name.to_owned(), base, cells))
            .collect()
    }

    /// Returns functions and lines that changed in any run, largest change first.
    pub(super) fn places(&self, style: &Style) -> Vec<(&'static str, String, Vec<RunsRow>)> {
        let event = self.comparisons.iter().find_map(|c| c.ranked_by.clone());
        let Some(event) = event else {
            return Vec::new();
        };
        let all: [(_, PlacesOf); 2] = [("Function", |c| &c.functions), ("Line", |c| &c.lines)];
        let tables =
            all.map(|(what, of)| (what, event.clone(), self.place_rows(of, &event, style)));
        tables
            .into_iter()
            .filter(|table| !table.2.is_empty())
            .collect()
    }

    fn place_rows(&self, of: PlacesOf, event: &str, style: &Style) -> Vec<RunsRow> {
        let count = |count: u64| value(event, Some(count as f64), style);
        // The largest change, the first run's count, and the count of each run.
        let mut rows: BTreeMap<&str, (u64, u64, Vec<String>)> = BTreeMap::new();
        let all = self.comparisons.iter();
        for place in all.flat_map(|comparison| comparison.listed(of(comparison))) {
            let row = rows.entry(&place.function).or_default();
            row.0 = row.0.max(place.after.abs_diff(place.before));
            row.1 = place.before;
        }
        for (name, (_, _, cells)) in &mut rows {
            for comparison in &self.comparisons {
                let place = of(comparison).iter().find(|place| place.function == *name);
                cells.push(place.map_or("=".to_owned(), |place| count(place.after)));
            }
        }
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|(_, (change, _, _))| std::cmp::Reverse(*change));
        let row = |(name, (_, base, cells)): (&str, (u64, u64, Vec<String>))| {
            (name.to_owned(), count(base), cells)
        };
        rows.into_iter().map(row).collect()
    }

    /// Returns as many tables as all runs need.
    fn tables(&self, title: &str, what: &str, rows: &[RunsRow], style: &Style) -> String {
        let mut text = String::new();
        let runs = self.comparisons.len();
        for first in (0..runs).step_by(BESIDE).filter(|_| !rows.is_empty()) {
            let beside = first..(first + BESIDE).min(runs);
            let letters: Vec<String> = beside.clone().map(|number| letter(number + 1)).collect();
            let mut titles = vec![(what, ColumnKind::Text), ("A", ColumnKind::Number)];
            titles.extend(
                letters
                    .iter()
                    .map(|letter| (letter.as_str(), ColumnKind::Number)),
            );
            let mut table = Table::new(&titles);
            for (name, base, cells) in rows {
                let cells = cells[beside.clone()].iter().cloned();
                let row = [style.name(name), base.clone()].into_iter().chain(cells);
                table.row(row.collect());
            }
            let title = style.paint(Role::Heading, title);
            text += &format!("\n{title}\n{}", table.draw(style));
        }
        text
    }

    /// Draws the runs' traffic with common axes.
    fn plots(&self, style: &Style) -> String {
        let mut text = String::new();
        let columns = plot::columns(style);
        let known = curves::names(&self.curves).into_iter();
        for (name, over_ns) in known.filter(|known| known.0.starts_with("dram.")) {
            let labels: Vec<String> = (0..self.curves.len()).map(|run| self.label(run)).collect();
            let mut panels: Vec<(&str, Vec<f64>)> = Vec::new();
            let known = self.curves.iter().zip(&labels);
            for (run, label) in known.filter(|(run, _)| run.is_known) {
                let rates = run.curve(name).map(|curve| curve.rates(columns, over_ns));
                let rates = rates.unwrap_or_else(|| vec![0.0; columns]);
                panels.push((label, rates.iter().map(|rate| rate / 1e9).collect()));
            }
            let drawn: Vec<Panel> = (panels.iter())
                .map(|(name, values)| Panel {
                    name,
                    role: if *name == labels[0] {
                        Role::Read
                    } else {
                        Role::Write
                    },
                    values,
                    mark: None,
                })
                .collect();
            let drawn = plot::draw(&drawn, over_ns, style);
            text += &format!("\n{name} over time, GB/s, all runs with one scale\n{drawn}");
        }
        text
    }

    /// Shortens the name of a run to seven characters.
    fn label(&self, run: usize) -> String {
        let of_two = self.comparisons.len() == 1;
        match (of_two, self.curves[run].group, self.curves.len() > 2) {
            (true, 0, false) => "before".to_owned(),
            (true, _, false) => "after".to_owned(),
            (true, group, true) => {
                let first = self
                    .curves
                    .iter()
                    .position(|c| c.group == group)
                    .unwrap_or(0);
                let number = run - first + 1;
                match group {
                    0 => format!("bef. {number}"),
                    _ => format!("aft. {number}"),
                }
            }
            (false, _, _) => letter(run),
        }
    }
}

/// Returns a metric's value with its unit.
pub(super) fn value(name: &str, value: Option<f64>, style: &Style) -> String {
    let unit = MetricUnit::of(name);
    value.map_or_else(|| style.none().to_owned(), |value| unit.value(value, style))
}

/// Returns A, B, C, …, Z, 27, 28, …
pub(super) fn letter(number: usize) -> String {
    match u8::try_from(number) {
        Ok(number @ 0..26) => char::from(b'A' + number).to_string(),
        _ => (number + 1).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::curves::tests::run as curve;
    use super::*;
    use crate::fixture::plain;
    use std::collections::BTreeMap;

    fn run(name: &str, misses: &[(&str, u64)]) -> (String, Measured) {
        let counts = |n| BTreeMap::from([("llc.miss".to_owned(), n)]);
        let functions = misses
            .iter()
            .map(|&(function, n)| (format!("{function} (p)"), counts(n)));
        let sum: u64 = misses.iter().map(|one| one.1).sum();
        let measured = Measured {
            program: Some("p".to_owned()),
            functions: functions.collect(),
            metrics: BTreeMap::from([("llc.miss".to_owned(), sum as f64)]),
            ..Measured::default()
        };
        (name.to_owned(), measured)
    }

    fn three() -> Compared {
        let runs = [
            run("base.mg", &[("sum", 100), ("fill", 50)]),
            run("same.mg", &[("sum", 100), ("fill", 50)]),
            run(
                "<b>new</b>.mg",
                &[("sum", 100), ("fill", 20), ("added", 330)],
            ),
        ];
        let curves = vec![
            curve("base.mg", 0, &[1000, 2000]),
            curve("same.mg", 1, &[1000, 2000]),
            curve("<b>new</b>.mg", 2, &[4000, 0, 4000]),
        ];
        Compared::of(&runs, None, curves)
    }

    /// The third run knows nothing of TLBs, which is not a count of zero.
    #[test]
    fn all_runs_have_the_event_that_ranks() {
        let with_walks = |name: &str, walks: u64| {
            let (name, mut measured) = run(name, &[("sum", 100 + walks)]);
            for counts in measured.functions.values_mut() {
                counts.insert("dtlb.walk".to_owned(), 1000 * walks);
            }
            let metric = ("dtlb.walk".to_owned(), 1000.0 * walks as f64);
            measured.metrics.extend([metric]);
            (name, measured)
        };
        let runs = |last| [with_walks("a.mg", 0), with_walks("b.mg", 9), last];
        let event = |last| {
            Compared::of(&runs(last), None, Vec::new()).comparisons[0]
                .ranked_by
                .clone()
        };
        assert_eq!(event(with_walks("c.mg", 5)).as_deref(), Some("dtlb.walk"));
        assert_eq!(
            event(run("c.mg", &[("sum", 130)])).as_deref(),
            Some("llc.miss")
        );
    }

    #[test]
    fn each_run_has_a_column_beside_the_first() {
        let text = three().text(10, &plain(80, false));
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        for row in [
            ["llc.miss", "150", "=", "+200.00", "%"].as_slice(),
            &["added", "(p)", "0", "=", "330"],
            &["fill", "(p)", "50", "=", "20"],
        ] {
            assert!(rows.iter().any(|found| found == row), "{row:?} in {text}");
        }
        assert!(!text.contains("sum (p)"), "{text}");
        // The one with the largest change first.
        assert!(text.find("added (p)") < text.find("fill (p)"), "{text}");
        assert!(text.find("fill (p)") < text.find("llc.miss  "), "{text}");
        assert!(text.contains("dram.read_bytes over time, GB/s"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn json_has_each_run_compared_with_the_first() {
        let json = three().json();
        assert_eq!(
            (&json["base"], &json["changed"]),
            (&json!("base.mg"), &json!(true))
        );
        let runs = json["comparisons"].as_array().unwrap();
        let changed: Vec<&Value> = runs.iter().map(|run| &run["changed"]).collect();
        assert_eq!(changed, [false, true]);
        assert_eq!(runs[1]["functions"][0]["after"], 330);
    }

    #[test]
    fn more_runs_than_fit_have_further_tables() {
        let runs: Vec<_> = (0..9)
            .map(|n| run(&format!("{n}.mg"), &[("sum", 100 + n)]))
            .collect();
        let text = Compared::of(&runs, None, Vec::new()).text(10, &plain(80, false));
        assert_eq!(text.matches("Metrics that changed").count(), 2, "{text}");
        for letter in "ABCDEFGHI".chars() {
            let head = |line: &&str| {
                line.split_whitespace()
                    .any(|word| word == letter.to_string())
            };
            assert!(text.lines().any(|line| head(&line)), "{letter} in {text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn equal_runs_have_not_changed() {
        let runs = ["a", "b", "c"].map(|name| run(name, &[("sum", 7)]));
        let compared = Compared::of(&runs, None, vec![curve("a", 0, &[1])]);
        assert!(!compared.changed());
        assert!(
            compared
                .text(10, &plain(80, false))
                .ends_with("Nothing changed.\n")
        );
        assert!(compared.html(10).contains("Nothing changed."));
    }

    /// Nothing of a name is HTML, and nothing is fetched.
    #[test]
    fn a_page_holds_tables_and_all_curves_and_no_foreign_html() {
        let page = three().html(10);
        assert!(
            page.contains("&lt;b&gt;new&lt;/b&gt;.mg") && !page.contains("<b>new"),
            "{page}"
        );
        for look in ["r0", "r1", "r2"] {
            let curve = format!("<path class=\"curve {look}\" d=\"M");
            assert_eq!(
                page.matches(&curve).count(),
                2,
                "{look}: its curve and its key"
            );
        }
        assert!(page.contains("<bdi>added (p)</bdi>") && page.contains("+200.00 %"));
        for foreign in ["<script", "http:", "https:", "url(", "src="] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        for tag in ["table", "figure", "svg", "tr", "main", "body", "html"] {
            let (opened, closed) = (format!("<{tag}"), format!("</{tag}>"));
            let opened = page.matches(&format!("{opened}>")).count()
                + page.matches(&format!("{opened} ")).count();
            assert_eq!(opened, page.matches(&closed).count(), "{tag}");
        }
    }
}
