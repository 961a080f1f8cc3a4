//! A comparison as text.

use super::rank::CYCLES;
use super::{ChangedPlace, ChangedShares, ComparedMetric, Comparison, MetricUnit};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// Columns of a bar beside its sign.
pub(super) const BAR: usize = 8;

impl Comparison {
    /// Renders the comparison as text with at most `rows` functions, lines and regions.
    pub fn text(&self, rows: usize, style: &Style) -> String {
        let style = &style.at_least(80);
        let mut text = self.notes(style);
        if !self.changed {
            return text + "Nothing changed.\n";
        }
        let mut measured = self.metrics.iter().filter(|m| m.name != "duration_ns");
        if measured.all(|m| m.difference.is_none()) {
            text += "The runs have no metric in common: their sources or events differ.\n";
        }
        if let Some(headline) = &self.headline {
            text += &style.paint_lines(Role::Heading, &style.wrap(&headline.text(style), 0));
        }
        if let Some(event) = &self.ranked_by {
            let functions = self.listed(&self.functions);
            if self.ranked_by_cost && !functions.is_empty() {
                let line = match event.as_str() {
                    CYCLES => "Ranked by cycles; --event ranks by another event.".to_owned(),
                    _ => format!(
                        "Ranked by {event}, whose differences cost the most cycles; --event ranks by \
                         another event."
                    ),
                };
                text += &format!("\n{}", style.wrap(&line, 0));
            }
            let tables = [
                ("Functions", "function", functions),
                ("Lines", "line", self.listed(&self.lines)),
            ];
            for (title, what, places) in tables.into_iter().filter(|(.., p)| !p.is_empty()) {
                text += &heading(&format!("{title} that changed, by {event}"), style);
                text += &counts_table(places, (what, event), rows, style).draw(style);
            }
        }
        for table in self.listed_data() {
            let title = format!("{} that changed, by {}", table.title, table.event);
            text += &heading(&title, style);
            text += &counts_table(table.rows, (table.what, table.event), rows, style).draw(style);
        }
        if let Some(table) = &self.sampled {
            text += &shares("Functions", table, rows, style);
        }
        for table in self.regions.iter().filter(|table| !table.rows.is_empty()) {
            text += &shares("Regions", table, rows, style);
        }
        let metrics = self.listed_metrics();
        if !metrics.is_empty() {
            text += &heading("Metrics that changed", style);
            text += &self.metrics_table(&metrics, style).draw(style);
        }
        text += &self.unchanged(style);
        if let Some(unlisted) = self.unlisted() {
            text += &format!("\n{}", style.wrap(&unlisted, 0));
        }
        text
    }

    pub(super) fn notes(&self, style: &Style) -> String {
        let mut text = String::new();
        if self.machines[0] != self.machines[1] {
            let name = |n: &Option<String>| n.clone().unwrap_or_else(|| "none".to_owned());
            let [before, after] = [name(&self.machines[0]), name(&self.machines[1])];
            text += &format!("The modelled machines differ: {before}, {after}.\n");
        }
        if self.machines.iter().all(Option::is_some) && self.seeds[0] != self.seeds[1] {
            let of = |seed: &Option<String>| match seed {
                None => "random".to_owned(),
                Some(seed) => format!("of seed {seed}"),
            };
            let [before, after] = [of(&self.seeds[0]), of(&self.seeds[1])];
            let line = format!(
                "The programs had other random numbers: {before}, {after}. Record both with one \
                 --seed."
            );
            text += &style.wrap(&line, 0);
        }
        if self.mixes_times() && self.has_times() {
            text += "Times are not compared: one is the model's virtual time, the other was measured.\n";
        }
        if self.only_regions[0] != self.only_regions[1] {
            let of = |names: &Option<String>| match names {
                None => "the whole run".to_owned(),
                Some(names) => format!("regions {names} alone"),
            };
            let [before, after] = [of(&self.only_regions[0]), of(&self.only_regions[1])];
            let line =
                format!("The recordings are of different parts of their runs: {before}, {after}.");
            text += &style.wrap(&line, 0);
        }
        if self.estimated_from != [None, None] {
            let of = |part: Option<u32>| match part {
                None => "exact".to_owned(),
                Some(one_in) => format!("1/{one_in} of the sets"),
            };
            let [before, after] = self.estimated_from.map(of);
            let line = format!(
                "Misses, DRAM bytes and time are estimated: {before}, {after}. A number with an \
                 interval changed if the 95 % interval of its difference excludes zero. Others \
                 (cycles, times, writebacks, splits, misses of loads or stores) may differ by chance."
            );
            text += &style.wrap(&line, 0);
        }
        for warning in &self.warnings {
            let lines = style.wrap(&format!("Warning, {warning}."), 0);
            text += &style.paint_lines(Role::Warning, &lines);
        }
        let damaged = match self.damaged {
            [false, false] => None,
            [true, false] => Some("before"),
            [false, true] => Some("after"),
            [true, true] => Some("before and after"),
        };
        if let Some(which) = damaged {
            let line = format!(
                "Damaged recordings ({which}): only what could be read is compared. What differs \
                 may be the damage."
            );
            text += &style.wrap(&line, 0);
        }
        if let [Some(before), Some(after)] = &self.programs
            && before != after
            && (self.functions_known == [true, true] || self.sampled.is_some())
        {
            text += &format!("Functions of `{after}` are compared with those of `{before}`.\n");
        }
        if self.functions_known != [true, true] && self.sampled.is_none() {
            text += "Functions are not compared: the runs have neither exact counts by function \
                     nor samples of a common event.\n";
        }
        if self.is_of_groups() {
            let [before, after] = self.runs;
            let line = format!(
                "Means of {before} runs before and {after} after. A number changed if the 95 % \
                 interval of its difference excludes zero."
            );
            text += &style.wrap(&line, 0);
        }
        text
    }

    fn metrics_table(&self, metrics: &[&ComparedMetric], style: &Style) -> Table {
        // The interval takes the room of the difference.
        let (difference, interval) = match self.has_intervals() {
            true => (None, Some("95 % interval")),
            false => (Some("difference"), None),
        };
        let mut titles = vec![
            ("metric", ColumnKind::Text),
            ("before", ColumnKind::Number),
            ("after", ColumnKind::Number),
        ];
        titles.extend(difference.map(|title| (title, ColumnKind::Number)));
        titles.push(("relative", ColumnKind::Number));
        titles.extend(interval.map(|title| (title, ColumnKind::Number)));
        let size = |metric: &&ComparedMetric| metric.relative.map_or(0.0, f64::abs);
        // Bars are full at a change of 100 %. Otherwise one that grew a thousandfold would hide all
        // others.
        let largest = metrics.iter().map(size).fold(0.0, f64::max).min(1.0);
        titles.push(("", ColumnKind::Bar));
        let mut table = Table::new(&titles);
        for metric in metrics {
            let unit = MetricUnit::of(&metric.name);
            let none = || style.none().to_owned();
            let value = |v: Option<f64>| v.map_or_else(none, |v| unit.value(v, style));
            let mut row = vec![
                metric.name.clone(),
                value(metric.before),
                value(metric.after),
            ];
            row.extend(difference.map(|_| {
                let difference = metric.difference;
                difference.map_or_else(none, |v| unit.difference(v, style))
            }));
            row.push(metric.relative.map_or_else(none, signed_percent));
            row.extend(interval.map(|_| relative_interval(metric, style)));
            row.push((metric.relative).map_or_else(String::new, |relative| {
                style.signed_bar(relative / largest.max(f64::MIN_POSITIVE), BAR)
            }));
            table.row(row);
        }
        table
    }

    /// Names of metrics whose difference may be chance.
    fn unchanged(&self, style: &Style) -> String {
        let same = self
            .metrics
            .iter()
            .filter(|m| m.interval.is_some() && !m.is_change());
        let names: Vec<&str> = same.map(|metric| metric.name.as_str()).collect();
        match names.is_empty() {
            true => String::new(),
            false => style.wrap(&format!("No change: {}.", names.join(", ")), 0),
        }
    }
}

impl ChangedPlace {
    pub(super) fn difference(&self) -> f64 {
        self.after as f64 - self.before as f64
    }

    /// The name, and whether only one side has the place.
    pub(super) fn named(&self) -> String {
        match self.only {
            Some("after") => format!("{}, new", self.function),
            Some(_) => format!("{}, gone", self.function),
            None => self.function.clone(),
        }
    }
}

/// The interval in parts of the value before, else in the metric's unit.
fn relative_interval(metric: &ComparedMetric, style: &Style) -> String {
    let Some([low, high]) = metric.interval else {
        return style.none().to_owned();
    };
    let unit = MetricUnit::of(&metric.name);
    match metric.before.filter(|&before| before != 0.0) {
        Some(before) => {
            let [low, high] = [low / before, high / before].map(signed_percent);
            format!("{low} {} {high}", style.until())
        }
        None => {
            let [low, high] = [low, high].map(|end| unit.difference(end, style));
            format!("{low} {} {high}", style.until())
        }
    }
}

fn counts_table(
    places: &[ChangedPlace],
    (what, event): (&str, &str),
    rows: usize,
    style: &Style,
) -> Table {
    let unit = MetricUnit::of(event);
    let value = |value: u64| unit.value(value as f64, style);
    let has_intervals = places.iter().any(|row| row.interval.is_some());
    let titles = [
        (what, ColumnKind::Text),
        ("before", ColumnKind::Number),
        ("after", ColumnKind::Number),
        // The interval takes the room of the difference.
        match has_intervals {
            true => ("95 % interval", ColumnKind::Number),
            false => ("difference", ColumnKind::Number),
        },
        ("", ColumnKind::Bar),
    ];
    let mut table = Table::new(&titles);
    let largest = places.first().map_or(0.0, |row| row.difference().abs());
    for row in places.iter().take(rows) {
        let difference = match (has_intervals, row.interval) {
            (false, _) => unit.difference(row.difference(), style),
            (true, None) => style.none().to_owned(),
            (true, Some(ends)) => {
                let [low, high] = ends.map(|end| unit.value(end.round(), style));
                format!("{low} {} {high}", style.until())
            }
        };
        let part = row.difference() / largest.max(f64::MIN_POSITIVE);
        table.row(vec![
            style.name(&row.named()),
            value(row.before),
            value(row.after),
            difference,
            style.signed_bar(part, BAR),
        ]);
    }
    table
}

fn shares(what: &str, changed: &ChangedShares, rows: usize, style: &Style) -> String {
    let [before, after] = changed.samples.map(units::things);
    let of = format!("by {} ({before} and {after} samples)", changed.event);
    if changed.rows.is_empty() {
        return format!(
            "\nNo function's share changed, {of}: {} compared\n",
            changed.compared
        );
    }
    let mut table = Table::new(&[
        (
            if what == "Regions" {
                "region"
            } else {
                "function"
            },
            ColumnKind::Text,
        ),
        ("before", ColumnKind::Number),
        ("after", ColumnKind::Number),
        ("95 % interval", ColumnKind::Number),
        ("", ColumnKind::Bar),
    ]);
    let differences = changed.rows.iter().map(|row| row.difference.abs());
    let largest = differences.fold(f64::MIN_POSITIVE, f64::max);
    for row in changed.rows.iter().take(rows) {
        let [low, high] = row.interval.map(|end| format!("{:+.1}", end * 100.0));
        table.row(vec![
            style.name(&row.name),
            units::share(row.before),
            units::share(row.after),
            format!("{low} {} {high} points", style.until()),
            style.signed_bar(row.difference / largest, BAR),
        ]);
    }
    heading(&format!("{what} whose share changed, {of}"), style) + &table.draw(style)
}

fn heading(title: &str, style: &Style) -> String {
    format!("\n{}\n", style.paint(Role::Heading, title))
}

pub(super) fn signed_percent(ratio: f64) -> String {
    format!("{:+.2} %", ratio * 100.0)
}
