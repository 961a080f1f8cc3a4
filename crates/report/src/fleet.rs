//! Answers about many recordings, as text and JSON. `docs/fleet.md` defines the numbers.

mod overview;

use serde::Serialize;
use serde_json::json;

use crate::MetricUnit;
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units::{self, capacity, plural};

pub use overview::{
    FleetChange, FleetHistory, FleetOverview, FleetPoint, FleetRecording, FleetService,
    FleetVersion,
};

/// Version of the JSON form of these answers.
const SCHEMA_VERSION: u32 = 1;

/// Which recordings an answer is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FleetFacts {
    /// Number of recordings.
    pub recordings: u64,
    /// Number of distinct hosts.
    pub hosts: u64,
    /// Number of distinct services.
    pub services: u64,
    /// First and last day, in UTC.
    pub first_day: String,
    /// Last day.
    pub last_day: String,
    /// Recordings whose recorder counted losses.
    pub with_losses: u64,
    /// Names of the modelled machines.
    pub machines: Vec<String>,
}

impl FleetFacts {
    fn text(&self, style: &Style) -> String {
        let days = match self.first_day == self.last_day {
            true => self.first_day.clone(),
            false => format!(
                "{} {} {}",
                self.first_day,
                style.until().trim(),
                self.last_day
            ),
        };
        format!(
            "{} of {} on {}, {days}",
            plural(self.recordings, "recording"),
            plural(self.services, "service"),
            plural(self.hosts, "host")
        )
    }

    fn notes(&self, style: &Style) -> String {
        let mut notes = self.machines_note(style);
        if self.with_losses > 0 {
            let line = format!(
                "{} counted losses; the column `losses` of the dataset's recordings has them.",
                plural(self.with_losses, "recording")
            );
            notes += &style.wrap(&line, 0);
        }
        notes
    }

    /// Note if the recordings were modelled on several machines, because their numbers are not
    /// comparable.
    fn machines_note(&self, style: &Style) -> String {
        match self.machines.as_slice() {
            [] | [_] => String::new(),
            machines => {
                let names = machines.iter().map(|name| style.name(name));
                let line = format!(
                    "Modelled on {} machines ({}); --only machine=NAME chooses one.",
                    machines.len(),
                    names.collect::<Vec<_>>().join(", ")
                );
                style.wrap(&line, 0)
            }
        }
    }
}

/// Places ranked by a metric over many recordings.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetTop {
    /// Kind of the places: `function`, `line`, `region`, `data`, `allocation`, `interest`, `process` or
    /// `device`.
    pub scope: String,
    /// The metric.
    pub metric: String,
    /// Its units. There is only one unless recordings disagree.
    pub units: Vec<String>,
    /// Its provenances.
    pub provenances: Vec<String>,
    /// The recordings that have the metric.
    pub facts: FleetFacts,
    /// Selected recordings that do not have it.
    pub without_metric: u64,
    /// Sum over all places and recordings.
    pub total: f64,
    /// The worst, by falling value.
    pub rows: Vec<FleetRow>,
    /// Number of further places.
    pub other_rows: u64,
    /// Their sum.
    pub other_value: f64,
}

/// A place.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetRow {
    /// Its name. `None` for code without lines in the table of lines.
    pub name: Option<String>,
    /// The function that contains a line.
    pub function: Option<String>,
    /// File name of the module that contains a function or line; device of a program's bytes.
    pub module: Option<String>,
    /// Sum over all recordings.
    pub value: f64,
    /// `value` / the sum over all places, in 0..=1.
    pub share: Option<f64>,
    /// Recordings in which the place has a value.
    pub recordings: u64,
    /// Mean over all recordings that have the metric. Recordings in which the place has no value
    /// count as 0.
    pub mean: f64,
    /// 95 % interval of that mean, by Student's t. `None` of a single recording.
    pub interval: Option<[f64; 2]>,
}

impl FleetTop {
    /// As indented JSON, ending in a newline.
    pub fn json(&self) -> String {
        with_version(json!(self))
    }

    /// As text, ending in a newline.
    pub fn text(&self, style: &Style) -> String {
        let style = &style.at_least(80);
        let metric = style.name(&spoken(&self.metric));
        let provenance = self.provenances.join(", ");
        let heading = style.heading(&format!("Worst {} by {metric}", self.places()), &provenance);
        let mut text = heading + &style.wrap(&format!("{}.", self.facts.text(style)), 0);
        if self.without_metric > 0 {
            let line = format!(
                "{} without {metric} left out.",
                plural(self.without_metric, "selected recording")
            );
            text += &style.wrap(&line, 0);
        }
        text += &self.facts.notes(style);
        text.push('\n');
        text += &self.table(style).draw(style);
        if self.other_rows > 0 {
            let share = (self.total > 0.0).then(|| self.other_value / self.total);
            let share =
                share.map_or_else(String::new, |share| format!(", {}", units::share(share)));
            text += &format!(
                "  {} not listed{share}\n",
                plural(self.other_rows, "further row")
            );
        }
        style.shown(text)
    }

    fn table(&self, style: &Style) -> Table {
        let value = |value: f64| MetricUnit::of(&self.metric).value(value, style);
        let is_line = self.scope == "line";
        let is_code = is_line || self.scope == "function";
        let has_device = self.scope == "process";
        let mut columns = vec![
            ("share", ColumnKind::Number),
            ("sum", ColumnKind::Number),
            ("recordings", ColumnKind::Number),
            ("mean", ColumnKind::Number),
            ("95 % interval", ColumnKind::Number),
            (
                self.scope.as_str(),
                if is_line {
                    ColumnKind::Path
                } else {
                    ColumnKind::Text
                },
            ),
        ];
        match (is_line, is_code) {
            (true, _) => columns.push(("of", ColumnKind::Text)),
            (false, true) => columns.push(("module", ColumnKind::Text)),
            (false, false) if has_device => columns.push(("device", ColumnKind::Text)),
            (false, false) => {}
        }
        let mut table = Table::new(&columns);
        for row in &self.rows {
            let none = || style.none().to_owned();
            let name = |name: &Option<String>| name.as_deref().map_or_else(none, |n| style.name(n));
            let mut cells = vec![
                row.share.map_or_else(none, units::share),
                value(row.value),
                units::things(row.recordings),
                value(row.mean),
                row.interval
                    .map_or_else(none, |ends| ends_text(ends, self.unit(), style)),
                match (&row.name, &row.module) {
                    (None, Some(module)) => style.name(module),
                    (found, _) => name(found),
                },
            ];
            if is_code || has_device {
                cells.push(name(if is_line { &row.function } else { &row.module }));
            }
            table.row(cells);
        }
        table.fit(&[&["module"], &["mean"]], style)
    }

    fn places(&self) -> &str {
        match self.scope.as_str() {
            "function" => "functions",
            "line" => "lines",
            "region" => "memory regions",
            "allocation" => "allocations",
            "process" => "programs",
            "device" => "devices",
            "interest" => "regions of interest",
            other => other,
        }
    }

    fn unit(&self) -> MetricUnit {
        MetricUnit::of(&self.metric)
    }
}

/// The low and high end of an interval. The mean of a count is never below 0.
fn ends_text([low, high]: [f64; 2], unit: MetricUnit, style: &Style) -> String {
    let [low, high] = [low.max(0.0), high].map(|end| unit.value(end, style));
    format!("{low}{}{high}", style.until())
}

/// Name of a metric in a sentence.
fn spoken(metric: &str) -> String {
    match metric {
        "stalled_cycles" => "stalled cycles".to_owned(),
        other => other.to_owned(),
    }
}

/// A miss-ratio curve summed over recordings, each of which has its own memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetCurve {
    /// The recordings that have a curve of this block size.
    pub facts: FleetFacts,
    /// Selected recordings that have none.
    pub without_curve: u64,
    /// Size of a block in bytes.
    pub block_bytes: u64,
    /// References of all recordings, which are their weights.
    pub references: f64,
    /// Ascending sizes.
    pub points: Vec<FleetCurvePoint>,
}

/// Misses if each recorded program has this much memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FleetCurvePoint {
    /// Memory of each program in bytes.
    pub bytes: u64,
    /// Sum of misses.
    pub misses: f64,
    /// `misses` / the curve's references; `None` without references.
    pub miss_ratio: Option<f64>,
    /// Half the width of the ratio's 95 % interval that comes from sampled curves; 0 if all are exact.
    pub half_band: f64,
}

/// Points of a curve in a text.
const LISTED_POINTS: usize = 24;

impl FleetCurve {
    /// Some curves as indented JSON, ending in a newline.
    pub fn all_json(curves: &[FleetCurve]) -> String {
        with_version(json!({ "curves": curves }))
    }

    /// As text, ending in a newline.
    pub fn text(&self, style: &Style) -> String {
        let style = &style.at_least(80);
        let title = format!("Miss-ratio curve, blocks of {}", capacity(self.block_bytes));
        let mut text = style.heading(&title, "least recently used");
        let references = units::count(self.references as u64);
        let line = format!("{}; {references} references.", self.facts.text(style));
        text += &style.wrap(&line, 0);
        if self.without_curve > 0 {
            let line = format!(
                "{} without a curve left out.",
                plural(self.without_curve, "selected recording")
            );
            text += &style.wrap(&line, 0);
        }
        // A memory smaller than a block holds nothing.
        let first = self
            .points
            .partition_point(|point| point.bytes < self.block_bytes);
        let points = &self.points[first..];
        let banded = points.iter().any(|point| point.half_band > 0.0);
        let mut table = Table::new(&[
            ("memory", ColumnKind::Number),
            ("misses", ColumnKind::Number),
            ("miss ratio", ColumnKind::Number),
            ("95 % band", ColumnKind::Number),
        ]);
        let step = points.len().div_ceil(LISTED_POINTS).max(1);
        // From the end, so that the size from which on the curve is flat is listed.
        let mut listed: Vec<&FleetCurvePoint> = points.iter().rev().step_by(step).collect();
        listed.reverse();
        for point in listed {
            table.row(vec![
                capacity(point.bytes),
                units::count(point.misses.round() as u64),
                point
                    .miss_ratio
                    .map_or_else(|| style.none().to_owned(), units::percent),
                format!("± {}", units::percent(point.half_band)),
            ]);
        }
        let table = match banded {
            true => table,
            false => table.without("95 % band"),
        };
        style.shown(text + "\n" + &table.draw(style))
    }
}

/// Hosts that differ from the other hosts of their service.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetOutliers {
    /// The recordings.
    pub facts: FleetFacts,
    /// Comparisons of a host with its peers, which all hold together at 95 %.
    pub comparisons: u64,
    /// Hosts without peers, or with fewer than two recordings, which have no interval.
    pub not_compared: u64,
    /// Differences whose interval excludes zero, by falling size of the relative difference.
    pub rows: Vec<FleetOutlier>,
}

/// A host that differs from its peers in a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FleetOutlier {
    /// The service.
    pub service: String,
    /// The host.
    pub host: String,
    /// Modelled machine of the compared recordings.
    pub machine: Option<String>,
    /// Their source.
    pub source: String,
    /// The metric, of whole runs.
    pub metric: String,
    /// Recordings of the host.
    pub recordings: u64,
    /// Recordings of the service's other hosts.
    pub peer_recordings: u64,
    /// Mean over the host's recordings.
    pub mean: f64,
    /// Mean over the peers' recordings.
    pub peer_mean: f64,
    /// (`mean` − `peer_mean`) / `peer_mean`; `None` if that is 0.
    pub relative: Option<f64>,
    /// Interval of `mean` − `peer_mean` (Welch, Bonferroni).
    pub interval: [f64; 2],
}

impl FleetOutliers {
    /// As indented JSON, ending in a newline.
    pub fn json(&self) -> String {
        with_version(json!(self))
    }

    /// As text of at most `rows` rows, ending in a newline.
    pub fn text(&self, rows: usize, style: &Style) -> String {
        let style = &style.at_least(80);
        let mut text = style.heading(
            "Hosts that differ from the other hosts of their service",
            "",
        );
        text += &style.wrap(&format!("{}.", self.facts.text(style)), 0);
        if self.not_compared > 0 {
            let line = format!(
                "{} without peers, or with fewer than two recordings, not compared.",
                plural(self.not_compared, "host")
            );
            text += &style.wrap(&line, 0);
        }
        text += &self.facts.notes(style);
        if self.rows.is_empty() {
            let line = match self.comparisons {
                0 => "No two hosts of a service have two recordings each of one modelled machine and source."
                    .to_owned(),
                n => format!("No host differs by more than chance in {}.", plural(n, "comparison")),
            };
            return style.shown(text + &style.wrap(&line, 0));
        }
        text.push('\n');
        let mut table = Table::new(&[
            ("difference", ColumnKind::Number),
            ("mean", ColumnKind::Number),
            ("peers", ColumnKind::Number),
            ("95 % interval", ColumnKind::Number),
            ("metric", ColumnKind::Text),
            ("host", ColumnKind::Text),
            ("service", ColumnKind::Text),
        ]);
        for row in self.rows.iter().take(rows) {
            let unit = MetricUnit::of(&row.metric);
            let relative = row.relative.map(|part| format!("{:+.1} %", part * 100.0));
            let [low, high] = row.interval.map(|end| unit.difference(end, style));
            table.painted_row(
                if row.mean > row.peer_mean {
                    Role::More
                } else {
                    Role::Less
                },
                vec![
                    relative.unwrap_or_else(|| style.none().to_owned()),
                    unit.value(row.mean, style),
                    unit.value(row.peer_mean, style),
                    format!("{low}{}{high}", style.until()),
                    style.name(&row.metric),
                    style.name(&row.host),
                    style.name(&row.service),
                ],
            );
        }
        text += &table.draw(style);
        let more = self.rows.len().saturating_sub(rows) as u64;
        if more > 0 {
            text += &format!("  {} not listed\n", plural(more, "further row"));
        }
        style.shown(text)
    }
}

fn with_version(answer: serde_json::Value) -> String {
    let mut answer = answer;
    answer["schema_version"] = json!(SCHEMA_VERSION);
    format!("{answer:#}\n")
}
