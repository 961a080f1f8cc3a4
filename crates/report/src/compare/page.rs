//! A comparison as one HTML file that needs nothing else, not even a script.
//!
//! Names are escaped, so they cannot be read as HTML. Each is in an element with a text direction
//! of its own.

use std::fmt::Write as _;

use super::curves::{self, RunCurve, RunCurves};
use super::flames::flames;
use super::html::text;
use super::several::{Compared, RunsRow, letter, value};
use super::text::{BAR, signed_percent};
use super::{ChangedPlace, ChangedShares, ComparedMetric, Comparison, MetricUnit};
use crate::style::Style;
use crate::units;

/// Size of a plot and of its margins, in units of the SVG.
const WIDE: f64 = 720.0;
const HIGH: f64 = 200.0;
const LEFT: f64 = 64.0;
const BELOW: f64 = 28.0;
/// Points of a curve.
const POINTS: usize = 320;
/// Runs that colours and dashes distinguish.
const LOOKS: usize = 6;

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark; --fg: #1b1b1b; --bg: #fff; --line: #8a8a8a; --soft: #5b5b5b;
  --c0: #1b1b1b; --c1: #0064a8; --c2: #b34400; --c3: #00724f; --c4: #93367a; --c5: #7a5c00;
  --more: #b3261e; --less: #00724f; }
@media (prefers-color-scheme: dark) { :root { --fg: #ececec; --bg: #161616; --line: #7d7d7d;
  --soft: #b4b4b4; --c0: #ececec; --c1: #6cb8f0; --c2: #ff9b5e; --c3: #4cc9a0; --c4: #e29bcb;
  --c5: #e6c34c; --more: #ff8a80; --less: #4cc9a0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg);
  max-width: 62rem; margin: 0 auto; padding: 1rem; }
body { overflow-wrap: anywhere; } h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; white-space: nowrap; }
th { border-bottom: 1px solid var(--line); color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.bar { text-align: left; font-family: monospace; } .more { color: var(--more); } .less { color: var(--less); }
figure { margin: 1rem 0; } figcaption { color: var(--soft); }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.axis { stroke: var(--line); fill: none; } .curve { fill: none; stroke-width: 1.6; }
.r0 { stroke: var(--c0); } .r1 { stroke: var(--c1); stroke-dasharray: 6 3; }
.r2 { stroke: var(--c2); stroke-dasharray: 2 2; } .r3 { stroke: var(--c3); stroke-dasharray: 9 3 2 3; }
.r4 { stroke: var(--c4); stroke-dasharray: 4 4; } .r5 { stroke: var(--c5); stroke-dasharray: 12 4; }
.flames svg { background: none; } .flames svg text { fill: #1b1b1b; font-size: 12px; pointer-events: none; }
.flames rect { fill: #e3e3e3; } .flames rect.more { fill: #e0653f; } .flames rect.less { fill: #4b94d1; }
.flames .s1 { fill-opacity: .3; } .flames .s2 { fill-opacity: .45; } .flames .s3 { fill-opacity: .6; }
.flames .s4 { fill-opacity: .8; } .flames g:hover rect { stroke: var(--fg); }
@media (prefers-color-scheme: dark) { .flames rect { fill: #8f8f8f; } .flames svg text { fill: #000; } .flames svg { background: #ddd; } }
.key { display: inline-block; margin-right: 1.2rem; } .key svg { width: 36px; height: 10px; }
@media print { body { max-width: none; } }
</style>
"#;

impl Compared {
    /// Renders the comparison as a page with at most `rows` functions, lines and regions.
    pub fn html(&self, rows: usize) -> String {
        let (first, others) = self
            .names
            .split_first()
            .map_or(("", &[][..]), |(first, others)| (first.as_str(), others));
        let title = format!("{} compared with {first}", others.join(", "));
        let mut page = HEAD.to_owned();
        let _ = writeln!(
            page,
            "<title>{}</title>\n</head>\n<body>\n<main>",
            text(&title)
        );
        let _ = writeln!(page, "<h1>{}</h1>", name(&title));
        match self.comparisons.as_slice() {
            [comparison] => page += &of_two(comparison, rows),
            _ => page += &self.of_several(rows),
        }
        page += &flames(&self.curves);
        page += &self.figures();
        page + "</main>\n</body>\n</html>\n"
    }

    fn of_several(&self, rows: usize) -> String {
        let mut page = String::from("<ul>\n");
        for (number, name_of) in self.names.iter().enumerate() {
            let _ = writeln!(page, "<li><b>{}</b> {}</li>", letter(number), name(name_of));
        }
        page += "</ul>\n";
        for (number, (_, comparison)) in (1..).zip(self.runs()) {
            for line in comparison.notes(&unwrapped()).lines() {
                let _ = writeln!(page, "<p>{}: {}</p>", letter(number), text(line));
            }
        }
        if !self.changed() {
            return page + "<p>Nothing changed.</p>\n";
        }
        let style = unwrapped();
        for (number, comparison) in (1..).zip(&self.comparisons) {
            if let Some(headline) = &comparison.headline {
                let line = format!("{}: {}", letter(number), headline.text(&style));
                let _ = writeln!(page, "<p><b>{}</b></p>", text(&line));
            }
        }
        let letters: Vec<String> = (0..self.names.len()).map(letter).collect();
        let titled = |what| -> Vec<&str> {
            let letters = letters.iter().map(String::as_str);
            [what].into_iter().chain(letters).collect()
        };
        let cells = |row: &RunsRow| {
            let (name_of, base, cells) = row;
            let first = [name_of.clone(), base.clone()].into_iter();
            first.chain(cells.iter().cloned()).collect()
        };
        for (what, event, places) in self.places(&style) {
            let titles = titled(if what == "Line" { "line" } else { "function" });
            let title = format!("{what}s that changed, by {event}");
            page += &table(
                &title,
                &titles,
                places.iter().take(rows).map(cells).collect(),
            );
        }
        let metrics = self.metrics(&style).iter().map(cells).collect();
        page += &table(
            "Metrics that changed, relative to A",
            &titled("metric"),
            metrics,
        );
        for (number, comparison) in (1..).zip(&self.comparisons) {
            if let Some(unlisted) = comparison.unlisted() {
                let _ = writeln!(page, "<p>{}: {}</p>", letter(number), text(&unlisted));
            }
        }
        page
    }

    /// A plot for each event that any run has over time.
    fn figures(&self) -> String {
        let mut page = String::new();
        for (event, over_ns) in curves::names(&self.curves) {
            if page.is_empty() {
                page += "<h2>Over time</h2>\n";
            }
            page += &plot(&self.curves, event, over_ns, self.comparisons.len() == 1);
        }
        page
    }
}

/// A style without a maximum line width, because a page wraps lines itself.
fn unwrapped() -> Style {
    Style {
        width: usize::MAX / 2,
        line: usize::MAX / 2,
        colour: false,
        unicode: true,
        rows: Style::ROWS,
    }
}

fn of_two(comparison: &Comparison, rows: usize) -> String {
    let mut page = String::new();
    for line in comparison.notes(&unwrapped()).lines() {
        let _ = writeln!(page, "<p>{}</p>", text(line));
    }
    if !comparison.changed {
        return page + "<p>Nothing changed.</p>\n";
    }
    if let Some(headline) = &comparison.headline {
        let _ = writeln!(page, "<p><b>{}</b></p>", text(&headline.text(&unwrapped())));
    }
    if let Some(event) = &comparison.ranked_by {
        let tables = [
            ("function", "Functions", &comparison.functions),
            ("line", "Lines", &comparison.lines),
        ];
        for (what, title, places) in tables {
            let places = comparison.listed(places);
            page += &counts((what, title), event, &places[..places.len().min(rows)]);
        }
    }
    for table in comparison.listed_data() {
        let shown = &table.rows[..table.rows.len().min(rows)];
        page += &counts((table.what, table.title), table.event, shown);
    }
    if let Some(sampled) = &comparison.sampled {
        page += &shares("function", "Functions", sampled, rows);
    }
    for regions in &comparison.regions {
        page += &shares("region", "Regions", regions, rows);
    }
    page += &metrics(comparison);
    if let Some(unlisted) = comparison.unlisted() {
        let _ = writeln!(page, "<p>{}</p>", text(&unlisted));
    }
    page
}

/// The interval of a difference, or a dash if there is none.
fn interval_of(interval: Option<[f64; 2]>, words: impl Fn(f64) -> String) -> String {
    interval.map_or("–".to_owned(), |[low, high]| {
        format!("{} … {}", words(low), words(high))
    })
}

/// A bar for a difference. Its length is relative to the largest difference.
fn bar(difference: f64, largest: f64) -> String {
    match difference == 0.0 {
        true => "–".to_owned(),
        false => unwrapped().signed_bar(difference / largest.max(f64::MIN_POSITIVE), BAR),
    }
}

fn metrics(comparison: &Comparison) -> String {
    let style = &unwrapped();
    let listed = comparison.listed_metrics();
    let sizes = listed.iter().filter_map(|metric| metric.relative);
    let largest = sizes.map(f64::abs).fold(0.0, f64::max).min(1.0);
    let difference = |metric: &ComparedMetric, value: Option<f64>| {
        let unit = MetricUnit::of(&metric.name);
        value.map_or("–".to_owned(), |value| unit.difference(value, style))
    };
    let row = |metric: &ComparedMetric| {
        vec![
            metric.name.clone(),
            value(&metric.name, metric.before, style),
            value(&metric.name, metric.after, style),
            difference(metric, metric.difference),
            metric.relative.map_or("–".to_owned(), signed_percent),
            interval_of(metric.interval, |end| difference(metric, Some(end))),
            bar(metric.relative.unwrap_or(0.0), largest),
        ]
    };
    let titles = [
        "metric",
        "before",
        "after",
        "difference",
        "relative",
        "95 % interval",
        "change",
    ];
    let rows = listed.iter().map(|metric| row(metric)).collect();
    table("Metrics that changed", &titles, rows)
}

fn counts((what, title): (&str, &str), event: &str, places: &[ChangedPlace]) -> String {
    let style = &unwrapped();
    let count = |count: f64| value(event, Some(count), style);
    let largest = places.first().map_or(0.0, |place| place.difference().abs());
    let row = |place: &ChangedPlace| {
        vec![
            place.named(),
            units::share(place.share),
            count(place.before as f64),
            count(place.after as f64),
            interval_of(place.interval, |end| count(end.round())),
            bar(place.difference(), largest),
        ]
    };
    let titles = [
        what,
        "share of the change",
        "before",
        "after",
        "95 % interval",
        "change",
    ];
    let title = format!("{title} that changed, by {event}");
    table(&title, &titles, places.iter().map(row).collect())
}

fn shares(what: &str, title: &str, changed: &ChangedShares, rows: usize) -> String {
    let points = |end: f64| format!("{:+.1}", end * 100.0);
    let sizes = changed.rows.iter().map(|row| row.difference.abs());
    let largest = sizes.fold(0.0, f64::max);
    let rows = changed.rows.iter().take(rows).map(|row| {
        vec![
            row.name.clone(),
            units::share(row.before),
            units::share(row.after),
            format!("{} points", interval_of(Some(row.interval), points)),
            bar(row.difference, largest),
        ]
    });
    let [before, after] = changed.samples.map(units::things);
    let title = format!(
        "{title} whose share changed, by {} ({before} and {after} samples)",
        changed.event
    );
    table(
        &title,
        &[what, "before", "after", "95 % interval", "change"],
        rows.collect(),
    )
}

/// A table with a heading. Empty without rows. The first column has names. Columns without any
/// value are omitted. A bar begins with its sign, which determines its colour.
fn table(title: &str, titles: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let is_told = |&column: &usize| rows.iter().any(|row| row[column] != "–");
    let columns: Vec<usize> = (0..titles.len()).filter(is_told).collect();
    let mut page = format!(
        "<h2>{}</h2>\n<div class=\"table\" tabindex=\"0\" role=\"region\" ",
        text(title)
    );
    let _ = write!(page, "aria-label=\"{}\"><table>\n<thead><tr>", text(title));
    for &column in &columns {
        let _ = write!(page, "<th scope=\"col\">{}</th>", text(titles[column]));
    }
    page += "</tr></thead>\n<tbody>\n";
    for row in &rows {
        page += "<tr>";
        for &column in &columns {
            let cell = &row[column];
            let _ = match (column, titles[column], cell.starts_with('-')) {
                (0, ..) => write!(page, "<td>{}</td>", name(cell)),
                (_, "change", is_less) => {
                    let look = if is_less { "less" } else { "more" };
                    let cell = text(cell);
                    write!(
                        page,
                        "<td class=\"bar {look}\" aria-hidden=\"true\">{cell}</td>"
                    )
                }
                _ => write!(page, "<td>{}</td>", text(cell)),
            };
        }
        page += "</tr>\n";
    }
    page + "</tbody>\n</table></div>\n"
}

/// A run's number, the run, and its curve.
type DrawnCurve<'a> = (usize, &'a RunCurves, &'a RunCurve);

/// All runs' curves of an event, one over the other.
fn plot(runs: &[RunCurves], event: &str, over_ns: u64, of_two: bool) -> String {
    let known = runs.iter().enumerate();
    let known = known.filter_map(|(number, run)| Some((number, run, run.curve(event)?)));
    let known: Vec<DrawnCurve> = known.collect();
    let rates = known.iter().map(|drawn| drawn.2.rates(POINTS, over_ns));
    let rates: Vec<Vec<f64>> = rates.collect();
    let highest = rates.iter().flatten().copied().fold(0.0, f64::max);
    let top = match known.iter().any(|drawn| drawn.2.is_bytes) {
        true => format!("{} GB/s", units::gigabytes(highest)),
        false => format!("{}/s", units::rate(highest)),
    };
    let end = units::nanoseconds(over_ns, &unwrapped());
    let label = format!(
        "{event} over time, {} runs, up to {top}, {end}",
        known.len()
    );
    let mut page = format!(
        "<figure>\n<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}",
        LEFT + WIDE + 8.0,
        HIGH + BELOW + 12.0,
        text(&label),
        axes(&top, &end)
    );
    let look = |drawn: &DrawnCurve| {
        if of_two {
            drawn.1.group
        } else {
            drawn.0 % LOOKS
        }
    };
    for (drawn, rates) in known.iter().zip(&rates) {
        let path = path(rates, highest, drawn.2.duration_ns as f64 / over_ns as f64);
        let _ = writeln!(
            page,
            "<path class=\"curve r{}\" d=\"{path}\"/>",
            look(drawn)
        );
    }
    let note = "mean rates; each run begins at 0";
    let _ = writeln!(page, "</svg>\n<figcaption>{} ({note})<br>", text(event));
    for drawn in &known {
        let _ = writeln!(
            page,
            "<span class=\"key\"><svg viewBox=\"0 0 36 10\" aria-hidden=\"true\">\
             <path class=\"curve r{}\" d=\"M0 5H36\"/></svg> {}</span>",
            look(drawn),
            name(&drawn.1.name)
        );
    }
    page + "</figcaption>\n</figure>\n"
}

/// Both axes, from 0 to the highest rate and to the end of the longest run.
fn axes(top: &str, end: &str) -> String {
    let (right, bottom) = (LEFT + WIDE, HIGH + 10.0);
    let at = |x: f64, y: f64, anchor: &str, words: &str| {
        format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>\n",
            text(words)
        )
    };
    format!("<path class=\"axis\" d=\"M{LEFT} 10V{bottom}H{right}\"/>\n")
        + &at(LEFT - 6.0, 18.0, "end", top)
        + &at(LEFT - 6.0, bottom, "end", "0")
        + &at(LEFT, bottom + 16.0, "middle", "0")
        + &at(right, bottom + 16.0, "end", end)
}

/// A curve up to the end of its run. `lasts` is the length of the run as a share of the plot.
fn path(rates: &[f64], highest: f64, lasts: f64) -> String {
    let shown = ((lasts * POINTS as f64).ceil() as usize).clamp(1, rates.len().max(1));
    let mut path = String::new();
    for (number, rate) in rates.iter().take(shown).enumerate() {
        let x = LEFT + (number as f64 + 0.5) / POINTS as f64 * WIDE;
        let y = 10.0 + HIGH * (1.0 - rate / highest.max(f64::MIN_POSITIVE));
        let _ = write!(path, "{}{x:.1} {y:.1}", if number == 0 { "M" } else { "L" });
    }
    path
}

/// A name in an element with a text direction of its own.
fn name(words: &str) -> String {
    format!("<bdi>{}</bdi>", text(words))
}
