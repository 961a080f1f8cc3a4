//! Curves of several eviction policies over one trace.
//!
//! Unlike an exact LRU curve, these are known only at the simulated capacities.

use std::fmt::Write as _;

use memgauge_mrc::Policy;
use serde_json::{Value, json};

use super::{LABEL, LISTED, ROWS, printable};
use crate::style::Style;
use crate::units::{bytes, capacity, count, percent};

/// Unit of capacities and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityUnit {
    /// Bytes.
    Bytes,
    /// Objects, all of equal size.
    Objects,
}

impl CapacityUnit {
    fn show(self, size: u64) -> String {
        match self {
            CapacityUnit::Bytes => capacity(size),
            CapacityUnit::Objects => count(size),
        }
    }

    fn show_with_noun(self, size: u64) -> String {
        match self {
            CapacityUnit::Bytes => bytes(size),
            CapacityUnit::Objects => format!("{} objects", count(size)),
        }
    }
}

/// Misses of a cache of one capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyPoint {
    /// Missed references, if every reference was simulated.
    pub misses: Option<u64>,
    /// Missed references per reference.
    pub miss_ratio: f64,
    /// Missed bytes per byte referenced.
    pub byte_miss_ratio: f64,
    /// Half the width of the 95 % interval of the miss ratio, if it is an estimate.
    pub half_band_95: Option<f64>,
    /// The same of the byte miss ratio.
    pub byte_half_band_95: Option<f64>,
}

/// One policy's curve.
#[derive(Clone, Debug)]
pub struct PolicyCurve {
    /// The policy.
    pub policy: Policy,
    /// A point for each capacity of the view. `None` if the sample is too small for it.
    pub points: Vec<Option<PolicyPoint>>,
}

/// Curves of several policies to show.
#[derive(Clone, Debug)]
pub struct PolicyView {
    /// Source of the requests.
    pub title: String,
    /// Peculiarities of the trace, and how it was read.
    pub notes: Vec<String>,
    /// Unit of the capacities.
    pub unit: CapacityUnit,
    /// References that were counted.
    pub references: u64,
    /// Distinct objects, estimated if the curves are.
    pub objects: u64,
    /// Size of all distinct objects.
    pub footprint: u64,
    /// Bytes in a block, if the objects are blocks.
    pub block_bytes: Option<u64>,
    /// True if objects have different sizes, so that there are two miss ratios.
    pub has_sizes: bool,
    /// Share of the objects that the curves were estimated from.
    pub sample_rate: Option<f64>,
    /// True if the requests are samples of a recording. Each of them represents several requests.
    pub is_of_samples: bool,
    /// Simulated capacities, ascending.
    pub capacities: Vec<u64>,
    /// True if the user chose the capacities.
    pub has_chosen_capacities: bool,
    /// The curves. The others are compared with the first.
    pub curves: Vec<PolicyCurve>,
}

/// Memory that two policies need for the same miss ratio.
struct Saving {
    policy: Policy,
    baseline: Policy,
    miss_ratio: f64,
    needed: u64,
    baseline_needed: u64,
}

/// Miss ratios at which policies are compared.
const ROUND_RATIOS: [f64; 16] = [
    0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001,
];
const MARKS: [char; 12] = ['•', '○', '+', '×', '◆', '△', '▪', '□', '*', '#', '@', '%'];
const ASCII_MARKS: [char; 12] = ['*', 'o', '+', 'x', '#', '@', '%', '&', '=', '~', '^', 'v'];

impl PolicyView {
    /// The view as text, ending in a newline.
    pub fn text(&self, style: &Style) -> String {
        let style = style.at_least(80);
        let names: Vec<&str> = self.curves.iter().map(|c| c.policy.name()).collect();
        let how = match self.sample_rate {
            None if self.is_of_samples => "every sample".to_owned(),
            None => "every request".to_owned(),
            Some(rate) => format!("miniature simulation with {} of the objects", percent(rate)),
        };
        let sizes = match (self.block_bytes, self.has_sizes) {
            (Some(block), _) => format!("blocks of {}", capacity(block)),
            (None, true) => "objects with their sizes".to_owned(),
            (None, false) => "objects of equal size".to_owned(),
        };
        let mut text = format!(
            "{}\n  {how}; {sizes}; {}\n",
            printable(&self.title),
            names.join(", ")
        );
        for note in &self.notes {
            let _ = writeln!(text, "  {}", printable(note));
        }
        let footprint = match self.unit {
            CapacityUnit::Bytes => format!(" ({})", bytes(self.footprint)),
            CapacityUnit::Objects => String::new(),
        };
        let noun = match self.block_bytes {
            Some(_) => "blocks",
            None => "objects",
        };
        let _ = writeln!(
            text,
            "  {} references, {} distinct {noun}{footprint}\n",
            count(self.references),
            count(self.objects),
        );
        if self.references == 0 {
            return text + "  no references, so no curve\n";
        }
        text += &self.drawing(&style);
        text.push('\n');
        text += &self.table("miss ratio", |p| (p.miss_ratio, p.half_band_95));
        if self.has_sizes {
            text.push('\n');
            text += &self.table("byte miss ratio", |p| {
                (p.byte_miss_ratio, p.byte_half_band_95)
            });
        }
        let sentences = self.sentences();
        if !sentences.is_empty() {
            text.push('\n');
            for sentence in sentences {
                let _ = writeln!(text, "  {sentence}");
            }
        }
        text
    }

    fn drawing(&self, style: &Style) -> String {
        let columns = style.width - LABEL - 4;
        let (Some(&low), Some(&high)) = (self.capacities.first(), self.capacities.last()) else {
            return String::new();
        };
        let span = (high as f64 / low as f64).ln().max(f64::MIN_POSITIVE);
        let column = |size: u64| {
            let at = (size as f64 / low as f64).ln() / span;
            (at * (columns - 1) as f64).round() as usize
        };
        let ratios = self.curves.iter().flat_map(|curve| &curve.points).flatten();
        let top = ratios
            .map(|p| p.miss_ratio)
            .fold(f64::MIN_POSITIVE, f64::max);
        let marks = if style.unicode { MARKS } else { ASCII_MARKS };
        let mut drawn = vec![vec![' '; columns]; ROWS + 1];
        // The first curve is drawn last, on top of the others.
        for (curve, mark) in self.curves.iter().zip(marks).rev() {
            let known = self.capacities.iter().zip(&curve.points);
            let known: Vec<(usize, f64)> = known
                .filter_map(|(&size, point)| Some((column(size), (*point)?.miss_ratio)))
                .collect();
            for &(at, ratio) in &known {
                let row = ROWS - (ratio / top * ROWS as f64).round() as usize;
                drawn[row.min(ROWS)][at.min(columns - 1)] = mark;
            }
        }
        let legend: Vec<String> = self
            .curves
            .iter()
            .zip(marks)
            .map(|(curve, mark)| format!("{mark} {}", curve.policy.name()))
            .collect();
        let bar = if style.unicode { '│' } else { '|' };
        let mut text = format!(
            "{:LABEL$}  miss ratio by capacity: {}\n",
            "",
            legend.join("  ")
        );
        for (row, cells) in drawn.iter().enumerate() {
            let label = match row % 2 {
                0 => percent(top * (ROWS - row) as f64 / ROWS as f64),
                _ => String::new(),
            };
            let line: String = cells.iter().collect();
            let _ = writeln!(text, "{label:>LABEL$} {bar}{}", line.trim_end());
        }
        let mut axis = vec![' '; columns];
        for &size in &self.listed() {
            let label = self.unit.show(size);
            let (at, width) = (column(size), label.chars().count());
            let is_free = at + width <= columns
                && axis[at.saturating_sub(2)..at + width]
                    .iter()
                    .all(|&c| c == ' ');
            if is_free {
                axis.splice(at..at + width, label.chars());
            }
        }
        let axis: String = axis.into_iter().collect();
        let _ = writeln!(text, "{:LABEL$}  {}", "", axis.trim_end());
        text
    }

    /// Capacities of the table.
    fn listed(&self) -> Vec<u64> {
        if self.has_chosen_capacities {
            return self.capacities.clone();
        }
        let step = self.capacities.len().div_ceil(LISTED).max(1);
        let mut listed: Vec<u64> = self
            .capacities
            .iter()
            .rev()
            .step_by(step)
            .copied()
            .collect();
        listed.reverse();
        listed
    }

    fn table(&self, name: &str, value: impl Fn(&PolicyPoint) -> (f64, Option<f64>)) -> String {
        let width = if self.sample_rate.is_some() { 18 } else { 10 };
        let mut text = format!("{:>12}", "capacity");
        for curve in &self.curves {
            let _ = write!(text, "  {:>width$}", curve.policy.name());
        }
        let _ = writeln!(text, "  ({name})");
        for size in self.listed() {
            let _ = write!(text, "{:>12}", self.unit.show(size));
            let at = self.capacities.iter().position(|&c| c == size);
            for curve in &self.curves {
                let point = at.and_then(|at| curve.points[at]);
                let shown = match point.as_ref().map(&value) {
                    None => "not known".to_owned(),
                    Some((ratio, None)) => percent(ratio),
                    Some((ratio, Some(band))) => format!("{} ± {}", percent(ratio), percent(band)),
                };
                let _ = write!(text, "  {shown:>width$}");
            }
            text.push('\n');
        }
        text
    }

    /// The least capacity with this miss ratio, interpolated between the simulated ones.
    fn needed(&self, curve: &PolicyCurve, ratio: f64) -> Option<u64> {
        let points = self.capacities.iter().zip(&curve.points);
        let known: Vec<(f64, f64)> = points
            .filter_map(|(&size, point)| Some((size as f64, (*point)?.miss_ratio)))
            .collect();
        let at = known.iter().position(|&(_, found)| found <= ratio)?;
        // A curve that starts below the ratio may have reached it anywhere before.
        let (before, after) = (known[at.checked_sub(1)?], known[at]);
        let share = (before.1 - ratio) / (before.1 - after.1);
        Some((before.0 * (after.0 / before.0).powf(share)).round() as u64)
    }

    /// Compares each policy with the first. The miss ratio is a round number that both curves
    /// reach, as near as possible to the middle of the first curve.
    fn savings(&self) -> Vec<Saving> {
        let Some((baseline, others)) = self.curves.split_first() else {
            return Vec::new();
        };
        let ratios = baseline.points.iter().flatten().map(|p| p.miss_ratio);
        let (least, most) = ratios.fold((1f64, 0f64), |(l, m), r| (l.min(r), m.max(r)));
        let middle = least + (most - least) / 2.0;
        let compare = |curve: &PolicyCurve| {
            let both = ROUND_RATIOS.iter().filter_map(|&ratio| {
                let needed = self.needed(curve, ratio)?;
                Some((ratio, needed, self.needed(baseline, ratio)?))
            });
            let (miss_ratio, needed, baseline_needed) =
                both.min_by(|a, b| (a.0 - middle).abs().total_cmp(&(b.0 - middle).abs()))?;
            Some(Saving {
                policy: curve.policy,
                baseline: baseline.policy,
                miss_ratio,
                needed,
                baseline_needed,
            })
        };
        others.iter().filter_map(compare).collect()
    }

    fn sentences(&self) -> Vec<String> {
        let sentence = |saving: Saving| {
            let change = saving.needed as f64 / saving.baseline_needed as f64 - 1.0;
            let sizes = format!(
                "({} instead of {})",
                self.unit.show_with_noun(saving.needed),
                self.unit.show_with_noun(saving.baseline_needed)
            );
            let amount = match (change.abs() * 100.0).round() {
                0.0 => "as much memory as".to_owned(),
                n if change < 0.0 => format!("{n} % less memory than"),
                n => format!("{n} % more memory than"),
            };
            let bound = match saving.policy {
                Policy::Belady => ", knowing the future",
                _ => "",
            };
            format!(
                "{} needs {amount} {} for a miss ratio of {} {sizes}{bound}",
                saving.policy.name(),
                saving.baseline.name(),
                percent(saving.miss_ratio),
            )
        };
        self.savings().into_iter().map(sentence).collect()
    }

    /// The view as one JSON value; docs/mrc.md describes it.
    pub fn json(&self) -> Value {
        let points = |curve: &PolicyCurve| -> Vec<Value> {
            let point = |(&size, point): (&u64, &Option<PolicyPoint>)| {
                json!({
                    "bytes": size,
                    "misses": point.and_then(|p| p.misses),
                    "miss_ratio": point.map(|p| p.miss_ratio),
                    "byte_miss_ratio": point.map(|p| p.byte_miss_ratio),
                    "mpki": null,
                    "half_band_95": point.and_then(|p| p.half_band_95),
                    "byte_half_band_95": point.and_then(|p| p.byte_half_band_95),
                })
            };
            self.capacities
                .iter()
                .zip(&curve.points)
                .map(point)
                .collect()
        };
        let policy = |curve: &PolicyCurve| {
            json!({
                "policy": curve.policy.id(),
                "name": curve.policy.name(),
                "points": points(curve),
            })
        };
        let saving = |s: Saving| {
            json!({
                "policy": s.policy.id(),
                "baseline": s.baseline.id(),
                "miss_ratio": s.miss_ratio,
                "needed": s.needed,
                "baseline_needed": s.baseline_needed,
            })
        };
        json!({
            "title": self.title,
            "note": (!self.notes.is_empty()).then(|| self.notes.join("; ")),
            "provenance": if self.sample_rate.is_some() || self.is_of_samples { "sampled" } else { "exact" },
            "sample_rate": self.sample_rate,
            "counted_up_to_bytes": null,
            "weight": 1.0,
            "block_bytes": self.block_bytes.unwrap_or(1),
            "references": self.references,
            "compulsory": null,
            "instructions": null,
            "compulsory_included": true,
            "span": null,
            "points": self.curves.first().map_or(Vec::new(), points),
            "marks": [],
            "knees": [],
            "bytes_for_90_percent": null,
            "bytes_for_all": null,
            "against": null,
            "capacity_unit": match self.unit { CapacityUnit::Bytes => "bytes", CapacityUnit::Objects => "objects" },
            "objects": self.objects,
            "footprint": self.footprint,
            "policies": self.curves.iter().map(policy).collect::<Vec<_>>(),
            "savings": self.savings().into_iter().map(saving).collect::<Vec<_>>(),
            "advice": self.sentences(),
        })
    }

    /// The columns of [`PolicyView::csv_rows`].
    pub const CSV_HEADING: &str = "curve,policy,capacity_unit,capacity,misses,miss_ratio,\
        half_band_95,byte_miss_ratio,byte_half_band_95\n";

    /// A row for each policy and capacity. Missing numbers are empty.
    pub fn csv_rows(&self) -> String {
        let shown = |number: Option<f64>| number.map_or(String::new(), |n| n.to_string());
        let title = printable(&self.title).replace('"', "\"\"");
        let unit = match self.unit {
            CapacityUnit::Bytes => "bytes",
            CapacityUnit::Objects => "objects",
        };
        let mut text = String::new();
        for curve in &self.curves {
            for (size, point) in self.capacities.iter().zip(&curve.points) {
                let numbers = [
                    point.and_then(|p| p.misses).map(|misses| misses as f64),
                    point.map(|p| p.miss_ratio),
                    point.and_then(|p| p.half_band_95),
                    point.map(|p| p.byte_miss_ratio),
                    point.and_then(|p| p.byte_half_band_95),
                ];
                let numbers = numbers.map(shown).join(",");
                let policy = curve.policy.id();
                let _ = writeln!(text, "\"{title}\",{policy},{unit},{size},{numbers}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(miss_ratio: f64) -> Option<PolicyPoint> {
        Some(PolicyPoint {
            misses: Some((miss_ratio * 1000.0) as u64),
            miss_ratio,
            byte_miss_ratio: miss_ratio,
            half_band_95: None,
            byte_half_band_95: None,
        })
    }

    fn view(curves: &[(Policy, [f64; 4])]) -> PolicyView {
        let curve = |&(policy, ratios): &(Policy, [f64; 4])| PolicyCurve {
            policy,
            points: ratios.map(point).to_vec(),
        };
        PolicyView {
            title: "trace".to_owned(),
            notes: Vec::new(),
            unit: CapacityUnit::Bytes,
            references: 1000,
            objects: 100,
            footprint: 8 << 20,
            block_bytes: None,
            has_sizes: true,
            sample_rate: None,
            is_of_samples: false,
            capacities: vec![1 << 20, 2 << 20, 4 << 20, 8 << 20],
            has_chosen_capacities: false,
            curves: curves.iter().map(curve).collect(),
        }
    }

    #[test]
    fn a_better_policy_is_worth_the_memory_it_saves() {
        let lru = (Policy::Lru, [0.9, 0.7, 0.5, 0.1]);
        let view = view(&[
            lru,
            (Policy::S3Fifo, [0.7, 0.5, 0.3, 0.1]),
            (Policy::Fifo, lru.1),
        ]);
        let text = view.text(&Style {
            width: 80,
            line: 80,
            unicode: false,
            colour: false,
            rows: Style::ROWS,
        });
        let expected = "S3-FIFO needs 50 % less memory than LRU for a miss ratio of 50.00 % \
            (2.00 MiB instead of 4.00 MiB)";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("FIFO needs as much memory as LRU"), "{text}");
        assert!(
            text.is_ascii() && text.contains("(byte miss ratio)"),
            "{text}"
        );
        assert_eq!(view.json()["savings"][0]["needed"], 2 << 20);
        let overview = crate::overview::of_curve(&view.json()).unwrap().text;
        assert!(
            overview.contains(expected) && !overview.contains("sample"),
            "{overview}"
        );
    }

    #[test]
    fn a_ratio_that_a_curve_never_crosses_is_not_compared() {
        let flat = view(&[
            (Policy::Lru, [0.9, 0.9, 0.9, 0.9]),
            (Policy::Sieve, [0.2, 0.1, 0.1, 0.1]),
        ]);
        assert_eq!(flat.json()["savings"].as_array().map(Vec::len), Some(0));
    }
}
