//! Counters' totals as text: what `memgauge stat` prints.

use memgauge_analyze::Derived;

use crate::style::{Role, Style};
use crate::table::{Kind, Table};
use crate::units;

/// Columns of a curve.
const CURVE: usize = 24;

/// One event's line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CounterRow {
    /// Its name.
    pub name: String,
    /// Its total; nanoseconds for clocks.
    pub value: u64,
    /// Unit and scaled value, where its PMU has one.
    pub scaled: Option<(f64, String)>,
    /// Part of the time it was counted, 0 to 1.
    pub share_counted: f64,
    /// Whether it counts the whole machine.
    pub machine_wide: bool,
    /// Rates over equal parts of the time, where there is a series.
    pub curve: Vec<f64>,
}

/// What a run counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// What was observed.
    pub title: String,
    /// How the counts came to be.
    pub provenance: &'static str,
    /// The events.
    pub rows: Vec<CounterRow>,
    /// Events that were not counted, and why.
    pub unsupported: Vec<(String, String)>,
    /// What follows.
    pub derived: Vec<Derived>,
    /// Sentences about the series, the losses and the cost.
    pub closing: Vec<(&'static str, String)>,
    /// Seconds observed.
    pub seconds: f64,
}

/// The text, ending in a newline.
pub fn counted_text(counted: &Counted, style: &Style) -> String {
    let style = style.at_least(80);
    let title = style.clip(&style.name(&counted.title), style.width);
    let mut text = style.paint(Role::Heading, &title) + "\n\n";
    let note = format!(
        "{}, in {}",
        counted.provenance,
        units::seconds(counted.seconds, &style)
    );
    text += &style.heading("Counters", &note);
    text += &counters(counted, &style);
    for (name, why) in &counted.unsupported {
        let line = format!("not counted: {}: {}", style.name(name), style.name(why));
        text += &style.paint_lines(Role::Warning, &style.wrap(&line, 2));
    }
    if !counted.derived.is_empty() {
        text += "\n";
        text += &style.heading("Derived", "from the counts above");
        text += &figures(&counted.derived, &style);
    }
    for (head, sentence) in &counted.closing {
        text += &format!("\n{}\n", style.paint(Role::Heading, head));
        for line in sentence.lines() {
            text += &style.wrap(&style.name(line), 2);
        }
    }
    text
}

fn counters(counted: &Counted, style: &Style) -> String {
    let with_curve = counted.rows.iter().any(|row| !row.curve.is_empty());
    let mut columns = vec![
        ("event", Kind::Label),
        ("count", Kind::Number),
        ("a second", Kind::Number),
    ];
    columns.extend(with_curve.then_some(("over time", Kind::Label)));
    columns.push(("", Kind::Text));
    let mut table = Table::new(&columns);
    for row in &counted.rows {
        let mut cells = vec![
            style.clip(&style.name(&row.name), 40),
            value(row),
            rate(row, counted.seconds, style),
        ];
        cells.extend(with_curve.then(|| curve(&row.curve, style)));
        cells.push(remarks(row, style));
        table.row(cells);
    }
    table.draw(style)
}

/// Counts are exact: digits in threes.
fn value(row: &CounterRow) -> String {
    match &row.scaled {
        Some((value, unit)) => format!("{value:.1} {unit}"),
        None if is_clock(&row.name) => format!("{:.3} ms", row.value as f64 / 1e6),
        None => grouped(row.value),
    }
}

fn is_clock(name: &str) -> bool {
    matches!(name.split(':').next(), Some("cpu-clock" | "task-clock"))
}

fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn rate(row: &CounterRow, seconds: f64, style: &Style) -> String {
    if is_clock(&row.name) || seconds <= 0.0 {
        return String::new();
    }
    match row.value as f64 / seconds {
        r if r >= 1.0 => units::count(r as u64),
        r if r > 0.0 => format!("{r:.2}"),
        _ => style.none().to_owned(),
    }
}

fn remarks(row: &CounterRow, style: &Style) -> String {
    let mut remarks = Vec::new();
    if row.share_counted < 0.9995 && row.share_counted > 0.0 {
        remarks.push(format!("scaled, {}", units::share(row.share_counted)));
    }
    if row.share_counted == 0.0 {
        remarks.push("never counted".to_owned());
    }
    if row.machine_wide {
        remarks.push("whole machine".to_owned());
    }
    style.name(&remarks.join("; "))
}

fn curve(values: &[f64], style: &Style) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const ASCII: [char; 5] = [' ', '.', ':', '+', '#'];
    let marks: &[char] = if style.unicode { &BLOCKS } else { &ASCII };
    let most = values.iter().copied().fold(0.0, f64::max);
    let steps = (marks.len() - 1) as f64;
    let mark = |v: &f64| match most > 0.0 {
        // Anything at all shows the lowest mark.
        true => marks[(v / most * steps).ceil().clamp(0.0, steps) as usize],
        false => ' ',
    };
    values.iter().take(CURVE).map(mark).collect()
}

/// Columns that curves have.
pub const CURVE_COLUMNS: usize = CURVE;

fn figures(derived: &[Derived], style: &Style) -> String {
    let mut table = Table::new(&[
        ("figure", Kind::Label),
        ("value", Kind::Number),
        ("unit", Kind::Label),
        ("from", Kind::Text),
    ]);
    for figure in derived {
        let formula = match style.unicode {
            true => figure.formula.to_owned(),
            false => figure.formula.replace('×', "x"),
        };
        let value = match figure.value {
            v if v >= 1000.0 => units::count(v as u64),
            v if v >= 0.01 || v == 0.0 => format!("{v:.3}"),
            v => format!("{v:.2e}"),
        };
        table.row(vec![
            figure.name.to_owned(),
            value,
            figure.unit.to_owned(),
            formula,
        ]);
    }
    table.draw(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(unicode: bool) -> Style {
        Style {
            width: 80,
            colour: false,
            unicode,
        }
    }

    fn example() -> Counted {
        let row = |name: &str, value, curve: &[f64]| CounterRow {
            name: name.to_owned(),
            value,
            share_counted: 1.0,
            curve: curve.to_vec(),
            ..CounterRow::default()
        };
        Counted {
            title: "./program with arguments".to_owned(),
            provenance: "counted",
            rows: vec![
                row("cpu-clock", 1_500_000_000, &[1.0, 1.0, 0.5]),
                row("page-faults", 1_234_567, &[0.0, 8.0, 0.001]),
                CounterRow {
                    share_counted: 0.25,
                    ..row("instructions", 999, &[])
                },
                CounterRow {
                    scaled: Some((12.5, "MiB".to_owned())),
                    machine_wide: true,
                    ..row("imc/read/", 204_800, &[])
                },
            ],
            unsupported: vec![("cycles".to_owned(), "this machine has no PMU".to_owned())],
            derived: memgauge_analyze::derived(
                &[
                    ("page-faults".to_owned(), 3.0),
                    ("cpu-clock".to_owned(), 1.5e9),
                ],
                2.0,
            ),
            closing: vec![("Losses: none", String::new())],
            seconds: 2.0,
        }
    }

    #[test]
    fn counters_in_80_columns() {
        let text = counted_text(&example(), &style(true));
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "too wide: {line}");
        }
        for words in [
            "cpu-clock     1500.000 ms",
            "1,234,567",
            "617k",
            "scaled, 25.0 %",
            "12.5 MiB",
            "whole machine",
            "not counted: cycles: this machine has no PMU",
            "processors used  0.750",
        ] {
            assert!(text.contains(words), "`{words}` is not in {text}");
        }
    }

    #[test]
    fn anything_at_all_shows_in_a_curve() {
        assert_eq!(curve(&[0.0, 8.0, 0.001], &style(true)), " █▁");
        assert_eq!(curve(&[0.0, 0.0], &style(true)), "  ");
    }

    #[test]
    fn without_unicode_all_is_ascii() {
        assert!(counted_text(&example(), &style(false)).is_ascii());
    }

    #[test]
    fn counts_have_all_their_digits() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
