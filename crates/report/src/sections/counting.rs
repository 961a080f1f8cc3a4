//! Results of native counters: totals, derived values, and the ticks of a series.

use memgauge_analyze::{CounterCurve, Counting, Derived, EventCounter, Summary};
use memgauge_trace::{CounterFacts, TickFacts, UnsupportedFacts};

use super::or_none;
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// Width of a curve in columns.
const CURVE: usize = 24;

pub(super) fn counters(summary: &Summary, style: &Style) -> String {
    let Some(counting) = &summary.counting else {
        return String::new();
    };
    let seconds = counting.wall_ns as f64 / 1e9;
    let how = if summary.recording.machine.is_some() {
        "modelled"
    } else {
        "counted"
    };
    let note = format!("{how}, in {}", units::seconds(seconds, style));
    let mut text = style.heading("Counters", &note) + &table(counting, seconds, style).draw(style);
    for (names, why) in unsupported(&counting.unsupported) {
        let line = format!("not counted: {}: {}", style.name(&names), style.name(&why));
        text += &style.paint_lines(Role::Warning, &style.wrap(&line, 2));
    }
    text
}

/// Minimum share of the time for an event to count as counted all the time.
pub(super) const WHOLE: f64 = 0.9995;

pub(super) fn derived(summary: &Summary, style: &Style) -> String {
    let figures = summary.counting.iter().flat_map(|c| &c.derived);
    let figures: Vec<&Derived> = figures.collect();
    if figures.is_empty() {
        return String::new();
    }
    let text =
        style.heading("Derived", "from the counts above") + &table_of_figures(&figures, style);
    let totals = summary.counting.iter().flat_map(|c| &c.totals);
    let totals: Vec<&EventCounter> = totals.collect();
    let estimated = figures
        .iter()
        .filter_map(|f| Some((f.name, share_of(f, &totals)?)));
    let estimated: Vec<String> = estimated
        .map(|(name, share)| format!("{name} ({})", units::share(share)))
        .collect();
    if estimated.is_empty() {
        return text;
    }
    let line = format!(
        "estimated, since an event was counted for only part of the time: {}",
        estimated.join(", ")
    );
    text + &style.paint_lines(Role::Warning, &style.wrap(&line, 2))
}

/// Minimum share of the time for which an event of a figure was counted. `None` if all were counted
/// all the time.
fn share_of(figure: &Derived, totals: &[&EventCounter]) -> Option<f64> {
    let words: Vec<&str> = figure.formula.split([' ', '(', ')']).collect();
    let names = totals.iter().map(|t| &t.facts).filter(|facts| {
        let base = facts.name.rsplit_once(':').map_or(&*facts.name, |n| n.0);
        facts.share_counted < WHOLE && words.contains(&base)
    });
    names.map(|facts| facts.share_counted).reduce(f64::min)
}

pub(super) fn notes(summary: &Summary, style: &Style) -> String {
    let Some(counting) = &summary.counting else {
        return String::new();
    };
    let mut notes = counting.notes.clone();
    if !counting.user_only.is_empty() {
        let names = counting.user_only.join(", ");
        notes.push(format!(
            "in user space only, as this user may not count the kernel: {names} (events of the \
            kernel alone, such as context switches, count 0; sysctl kernel.perf_event_paranoid=1)"
        ));
    }
    section("Notes", &notes, style)
}

pub(super) fn ticks(summary: &Summary, style: &Style) -> String {
    let Some(counting) = &summary.counting else {
        return String::new();
    };
    let Some(ticks) = counting.ticks.as_ref().map(|t| &t.facts) else {
        return String::new();
    };
    let us = |ns: Option<u64>| or_none(ns, |ns| interval(ns as f64, style), style);
    let number_of = |n: Option<u64>, word: &str| {
        let ending = if n == Some(1) { "" } else { "s" };
        format!("{} {word}{ending}", or_none(n, |n| n.to_string(), style))
    };
    let expected = ticks.expected.max(1) as f64;
    let every = interval(ticks.interval_ns as f64, style);
    if ticks.seen + ticks.expected == 0 {
        let line = format!("none: no thread ran for {every}, the interval of running time");
        return section("Ticks", &[line], style);
    }
    let mut lines = vec![
        format!(
            "{} seen of {} expected ({:.2} %) every {every} of running time; {} lost in rings, {} late",
            ticks.seen,
            ticks.expected,
            100.0 * ticks.seen as f64 / expected,
            ticks.lost,
            ticks.late,
        ),
        format!(
            "gaps: median {}, 99 % up to {}; {}, {} seen",
            us(ticks.median_gap_ns),
            us(ticks.p99_gap_ns),
            number_of(counting.rows, "row"),
            number_of(counting.threads, "thread"),
        ),
    ];
    lines.extend(slowdown(ticks));
    if let Some(tick_ns) = ticks.bare_tick_ns {
        let share = 100.0 * tick_ns / (ticks.interval_ns as f64).max(1.0);
        lines.push(format!(
            "the bare timer takes {:.2} us a tick here (measured: an event without output), \
             {share:.1} % of the program's time",
            tick_ns / 1e3
        ));
    }
    section("Ticks", &lines, style)
}

/// An interval or gap. Short ones need tenths of a microsecond.
fn interval(ns: f64, style: &Style) -> String {
    match ns < 1e6 {
        true => format!("{:.1} us", ns / 1e3),
        false => units::nanoseconds(ns as u64, style),
    }
}

/// Slowdown of the observed programs.
fn slowdown(ticks: &TickFacts) -> Option<String> {
    let share = 100.0 * ticks.share_taken()?;
    let times = match ticks.slowdown() {
        Some(times) => format!("{times:.2} times slower"),
        None => "more than 10 times slower".to_owned(),
    };
    let tick_us = ticks.tick_ns.unwrap_or(0.0) / 1e3;
    let (parts, costs) = match (ticks.share_of_started_tasks(), ticks.task_cost) {
        (Some(started), Some(cost)) => {
            let (started, task_us) = (100.0 * started, cost.added_ns / 1e3);
            (
                format!(
                    "ticks took {:.1} % of the CPU time and the counters of {} started threads \
                     {started:.1} %",
                    (share - started).max(0.0),
                    ticks.tasks_started,
                ),
                format!("{tick_us:.1} us a tick, {task_us:.1} us a thread"),
            )
        }
        _ => (
            format!("ticks took {share:.1} % of the CPU time"),
            format!("{tick_us:.1} us a tick"),
        ),
    };
    Some(format!(
        "slowdown estimated: {parts}, so the observed programs ran {times} ({costs}, measured \
         before the start)"
    ))
}

fn section(title: &str, lines: &[String], style: &Style) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let wrapped = lines.iter().map(|line| style.wrap(&style.name(line), 2));
    style.heading(title, "") + &wrapped.collect::<String>()
}

/// Events by reason, one line each, since a machine without a PMU lacks all of them.
fn unsupported(events: &[UnsupportedFacts]) -> Vec<(String, String)> {
    let mut lines: Vec<(String, String)> = Vec::new();
    for event in events {
        match lines.iter_mut().find(|line| line.1 == event.why) {
            Some(line) => line.0 = format!("{}, {}", line.0, event.name),
            None => lines.push((event.name.clone(), event.why.clone())),
        }
    }
    lines
}

/// The timer of a series, shown as a further counter.
fn timer(counting: &Counting) -> Option<EventCounter> {
    let ticks = counting.ticks.as_ref()?;
    Some(EventCounter {
        facts: CounterFacts {
            name: "cpu-clock".to_owned(),
            value: ticks.facts.running_ns,
            share_counted: 1.0,
            ..CounterFacts::default()
        },
        over_time: ticks.over_time.clone(),
    })
}

fn table(counting: &Counting, seconds: f64, style: &Style) -> Table {
    let rows: Vec<EventCounter> = timer(counting)
        .into_iter()
        .chain(counting.totals.iter().cloned())
        .collect();
    let with_curve = rows.iter().any(|row| row.over_time.is_some());
    let mut columns = vec![
        ("event", ColumnKind::Text),
        ("count", ColumnKind::Number),
        ("a second", ColumnKind::Number),
    ];
    columns.extend(with_curve.then_some(("over time", ColumnKind::Label)));
    columns.push(("", ColumnKind::Text));
    let mut table = Table::new(&columns);
    for row in &rows {
        let mut cells = vec![
            style.name(&row.facts.name),
            value(&row.facts, style),
            rate(&row.facts, seconds, style),
        ];
        let rates = row
            .over_time
            .as_ref()
            .map(|c: &CounterCurve| c.rates(CURVE));
        cells.extend(with_curve.then(|| curve(&rates.unwrap_or_default(), style)));
        cells.push(remarks(&row.facts, style));
        table.row(cells);
    }
    table
}

/// Formats an exact count with digits in groups of three.
fn value(row: &CounterFacts, style: &Style) -> String {
    if !row.unit.is_empty() {
        let scaled = row.value as f64 * row.scale;
        return format!("{scaled:.1} {}", style.name(&row.unit));
    }
    match units::is_clock(&row.name) {
        true => format!("{:.3} ms", row.value as f64 / 1e6),
        false => grouped(row.value),
    }
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

fn rate(row: &CounterFacts, seconds: f64, style: &Style) -> String {
    if units::is_clock(&row.name) || seconds <= 0.0 {
        return String::new();
    }
    match row.value as f64 / seconds {
        r if r >= 1.0 => units::count(r as u64),
        r if r > 0.0 => format!("{r:.2}"),
        _ => style.none().to_owned(),
    }
}

fn remarks(row: &CounterFacts, style: &Style) -> String {
    let mut remarks = Vec::new();
    if row.share_counted < WHOLE && row.share_counted > 0.0 {
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
        // Any activity at all shows at least the lowest mark.
        true => marks[(v / most * steps).ceil().clamp(0.0, steps) as usize],
        false => ' ',
    };
    values.iter().take(CURVE).map(mark).collect()
}

fn table_of_figures(derived: &[&Derived], style: &Style) -> String {
    let mut table = Table::new(&[
        ("figure", ColumnKind::Label),
        ("value", ColumnKind::Number),
        ("unit", ColumnKind::Label),
        ("from", ColumnKind::Text),
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
    use crate::fixture::{self, plain};
    use memgauge_analyze::Ticking;

    fn counter(name: &str, value: u64) -> EventCounter {
        EventCounter {
            facts: CounterFacts {
                name: name.to_owned(),
                value,
                share_counted: 1.0,
                scale: 1.0,
                ..CounterFacts::default()
            },
            over_time: None,
        }
    }

    fn example() -> Summary {
        let mut scaled = counter("imc/read/", 204_800);
        scaled.facts.unit = "MiB".to_owned();
        scaled.facts.scale = 12.5 / 204_800.0;
        scaled.facts.machine_wide = true;
        let mut shared = counter("instructions", 999);
        shared.facts.share_counted = 0.25;
        let unsupported = |name: &str| UnsupportedFacts {
            name: name.to_owned(),
            why: "this machine has no PMU".to_owned(),
        };
        Summary {
            counting: Some(Counting {
                wall_ns: 2_000_000_000,
                totals: vec![counter("page-faults", 1_234_567), shared, scaled],
                derived: memgauge_analyze::derived(&[("cpu-clock".to_owned(), 1.5e9)], 2.0, false),
                unsupported: vec![unsupported("cycles"), unsupported("branches")],
                ticks: Some(Ticking {
                    facts: TickFacts {
                        interval_ns: 100_000,
                        seen: 90,
                        expected: 100,
                        running_ns: 1_500_000_000,
                        median_gap_ns: Some(99_800),
                        ..TickFacts::default()
                    },
                    over_time: Some(CounterCurve {
                        bin_ns: 1000,
                        duration_ns: 2000,
                        values: vec![1000, 500],
                    }),
                    ..Ticking::default()
                }),
                notes: vec!["a remark".to_owned()],
                ..Counting::default()
            }),
            ..fixture::empty()
        }
    }

    fn all(style: &Style) -> String {
        let summary = example();
        let sections = [counters, derived, notes, ticks];
        sections.map(|section| section(&summary, style)).concat()
    }

    #[test]
    fn figures_of_scaled_events_are_called_estimated() {
        let mut summary = example();
        let counting = summary.counting.as_mut().expect("counters");
        counting.totals.push(counter("cycles", 500));
        let pairs = [
            ("instructions", 999.0),
            ("cycles", 500.0),
            ("cpu-clock", 1e9),
        ];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value));
        counting.derived = memgauge_analyze::derived(&pairs, 2.0, false);
        let text = derived(&summary, &plain(80, false));
        let estimated = text.split("estimated").nth(1).expect("the remark");
        assert!(estimated.contains("IPC (25.0 %)"), "{text}");
        assert!(!estimated.contains("processors used"), "{text}");
    }

    #[test]
    fn counters_in_80_columns() {
        let text = all(&plain(80, true));
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
            "not counted: cycles, branches: this machine has no PMU",
            "processors used  0.750",
            "90 seen of 100 expected (90.00 %) every 100.0 us",
            "median 99.8 us, 99 % up to –",
            "a remark",
        ] {
            assert!(text.contains(words), "`{words}` is not in {text}");
        }
    }

    #[test]
    fn long_intervals_are_not_told_in_microseconds() {
        let style = plain(80, true);
        assert_eq!(interval(99_800.0, &style), "99.8 us");
        assert_eq!(interval(500e6, &style), "500 ms");
        assert_eq!(interval(1_002.5e6, &style), "1.00 s");
    }

    #[test]
    fn anything_at_all_shows_in_a_curve() {
        let style = plain(80, true);
        assert_eq!(curve(&[0.0, 8.0, 0.001], &style), " █▁");
        assert_eq!(curve(&[0.0, 0.0], &style), "  ");
    }

    #[test]
    fn without_unicode_all_is_ascii() {
        assert!(all(&plain(80, false)).is_ascii());
    }

    #[test]
    fn counts_have_all_their_digits() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
