//! Miss-rate curves as text, JSON and CSV.
//!
//! Sizes are on a logarithmic scale. The sizes of the machine's caches, or of its memory, are
//! marked below.

mod division;
mod measured;
mod policies;
mod running;

use std::fmt::Write as _;

use memgauge_mrc::{Curve, Difference, Knee, sizes};
use serde_json::{Value, json};

use crate::style::Style;
use crate::units::{bytes, capacity, count, percent};

pub use division::{DivisionView, SharingProgram};
pub use measured::{CollectionCost, CurveUnit, MeasuredCurve, PhaseSpan};
pub use policies::{CapacityUnit, PolicyCurve, PolicyPoint, PolicyView};
pub use running::{ObservationCost, ProcessMemory, RunningView, has_too_many_huge_pages};

/// A curve with its notes.
#[derive(Clone, Debug)]
pub struct CurveView {
    /// Source of the references: a file or a command.
    pub title: String,
    /// Note about the references if they are incomplete.
    pub note: Option<String>,
    /// The curve.
    pub measured: MeasuredCurve,
    /// Unit of the vertical axis.
    pub unit: CurveUnit,
    /// True if first references count as misses.
    pub compulsory: bool,
    /// Memories to mark, by name and size in bytes.
    pub marks: Vec<(String, u64)>,
    /// Sizes in bytes to list. Empty for a default choice.
    pub sizes: Vec<u64>,
    /// A second curve to draw.
    pub against: Option<(String, MeasuredCurve)>,
    /// The part of the run that it describes, if not all.
    pub span: Option<PhaseSpan>,
    /// Number of references that each processed one stands for: for samples, the number of events
    /// between two.
    pub weight: f64,
    /// True if JSON and CSV have every size at which the number of misses changes.
    pub full: bool,
}

/// Number of rows of the drawing.
const ROWS: usize = 10;
/// Number of columns for the labels of the vertical axis.
const LABEL: usize = 10;
/// Number of rows of the table by default.
const LISTED: usize = 12;

impl CurveView {
    fn curve(&self) -> &Curve {
        self.measured.curve()
    }

    fn value(&self, curve: &Curve, bytes: u64) -> f64 {
        self.unit.of(self.misses(curve, bytes), curve.references)
    }

    /// Returns the misses. Compulsory ones are included only if they count.
    fn misses(&self, curve: &Curve, bytes: u64) -> f64 {
        let left_out = if self.compulsory {
            0.0
        } else {
            curve.compulsory
        };
        (curve.misses(bytes / curve.block_bytes) - left_out).max(0.0)
    }

    fn ratio(&self, curve: &Curve, bytes: u64) -> Option<f64> {
        let misses = self.misses(curve, bytes);
        (curve.references > 0.0).then(|| misses / curve.references)
    }

    fn mpki(&self, bytes: u64) -> Option<f64> {
        let mpki = matches!(self.unit, CurveUnit::Mpki(_));
        mpki.then(|| self.value(self.curve(), bytes))
    }

    /// Returns the sizes in bytes that JSON and CSV list.
    fn points(&self) -> Vec<u64> {
        if !self.sizes.is_empty() {
            return self.sizes.clone();
        }
        let curve = self.curve();
        let mut points = match self.full {
            true => curve
                .steps()
                .iter()
                .map(|s| s.0 * curve.block_bytes)
                .collect(),
            false => sizes(curve.block_bytes, self.end(), 8),
        };
        points.retain(|&bytes| self.measured.resolves(bytes));
        points
    }

    /// Returns true if the references are samples, each of which stands for several.
    fn is_of_samples(&self) -> bool {
        self.weight != 1.0
    }

    fn provenance(&self) -> String {
        match self.measured {
            MeasuredCurve::Exact(_) if self.is_of_samples() => "every sample".to_owned(),
            _ => self.measured.provenance(),
        }
    }

    /// Returns the number of distinct blocks.
    fn blocks(&self) -> f64 {
        self.curve().compulsory / self.weight
    }

    /// Returns the knees at sizes for which the curve is known.
    fn knees(&self) -> Vec<Knee> {
        let curve = self.curve();
        let mut knees = curve.knees();
        knees.retain(|knee| self.measured.resolves(knee.blocks * curve.block_bytes));
        knees
    }

    /// Returns the largest size of interest.
    fn end(&self) -> u64 {
        let of = |curve: &Curve| curve.enough_blocks() * curve.block_bytes;
        let own = of(self.curve());
        let other = self.against.as_ref().map_or(0, |(_, m)| of(m.curve()));
        own.max(other).max(16 * self.curve().block_bytes)
    }

    fn listed(&self) -> Vec<u64> {
        if !self.sizes.is_empty() {
            return self.sizes.clone();
        }
        let all = sizes(self.curve().block_bytes, self.end(), 1);
        let step = all.len().div_ceil(LISTED).max(1);
        let mut listed: Vec<u64> = all.iter().rev().step_by(step).copied().collect();
        let end = self.end();
        listed.extend(self.marks.iter().map(|m| m.1).filter(|&m| m <= 2 * end));
        listed.retain(|&bytes| self.measured.resolves(bytes));
        listed.sort_unstable();
        listed.dedup();
        listed
    }

    /// Renders the view as text that ends in a newline.
    pub fn text(&self, style: &Style) -> String {
        style.shown(self.whole_text(&style.at_least(80)))
    }

    fn whole_text(&self, style: &Style) -> String {
        let curve = self.curve();
        let mut text = format!("{}\n  {}", printable(&self.title), self.provenance());
        let _ = writeln!(
            text,
            "; blocks of {}, least recently used",
            capacity(curve.block_bytes)
        );
        if let Some(notes) = self.measured.sample_notes() {
            let _ = writeln!(text, "  {notes}");
        }
        if let Some(span) = &self.span {
            let _ = writeln!(text, "  {}", span.sentence());
        }
        if let Some(note) = &self.note {
            let _ = writeln!(text, "  {}", printable(note));
        }
        if curve.references == 0.0 {
            return text + "  no references, so no curve\n";
        }
        let _ = writeln!(
            text,
            "  {} references, {} distinct blocks ({})\n",
            count(curve.references as u64),
            count(self.blocks() as u64),
            bytes((self.blocks() as u64).saturating_mul(curve.block_bytes))
        );
        text += &self.drawing(style);
        text.push('\n');
        text += &self.table();
        text.push('\n');
        text + &self.sentences()
    }

    fn drawing(&self, style: &Style) -> String {
        let columns = style.width - LABEL - 4;
        let (low, high) = (self.curve().block_bytes as f64, self.end() as f64 * 1.05);
        let size = |column: usize| {
            let at = column as f64 / (columns - 1) as f64;
            (low * (high / low).powf(at)).round() as u64
        };
        let mut drawn = vec![vec![' '; columns]; ROWS + 1];
        let curves = [Some(&self.measured), self.against.as_ref().map(|a| &a.1)];
        let value = |measured: &MeasuredCurve, bytes| {
            let value = || self.value(measured.curve(), bytes);
            measured.resolves(bytes).then(value)
        };
        let values: Vec<Vec<Option<f64>>> = curves
            .into_iter()
            .flatten()
            .map(|measured| (0..columns).map(|c| value(measured, size(c))).collect())
            .collect();
        let top = values
            .iter()
            .flatten()
            .flatten()
            .copied()
            .fold(f64::MIN_POSITIVE, f64::max);
        let marks = if style.unicode {
            ['•', '○']
        } else {
            ['*', 'o']
        };
        for (values, mark) in values.iter().zip(marks).rev() {
            plot(&mut drawn, values, top, mark);
        }
        let title = format!("{} by size of memory", self.unit.name());
        let text = chart(&drawn, &title, style, |part| self.unit.show(top * part));
        let column = |bytes: u64| {
            let at = (bytes as f64 / low).ln() / (high / low).ln();
            (at >= 0.0).then(|| (at * (columns - 1) as f64).round() as usize)
        };
        let ends = (self.curve().block_bytes, self.end());
        text + &axis(ends, &self.marks, columns, column)
    }

    fn table(&self) -> String {
        let unit = self.unit.name();
        let banded =
            matches!(self.measured, MeasuredCurve::Sampled(_)) && self.unit == CurveUnit::Ratio;
        let mut text = format!("{:>12}  {unit:>12}", "memory");
        if banded {
            text += &format!("  {:>12}", "95 % band");
        }
        if self.against.is_some() {
            text += &format!("  {:>12}", "other");
        }
        text.push('\n');
        for size in self.listed() {
            let shown = |measured: &MeasuredCurve| match measured.resolves(size) {
                true => self.unit.show(self.value(measured.curve(), size)),
                false => "not known".to_owned(),
            };
            let value = shown(&self.measured);
            let _ = write!(text, "{:>12}  {value:>12}", capacity(size));
            if banded {
                let band = match self.measured.half_band(size) {
                    None => "–".to_owned(),
                    Some(0.0) => "exact".to_owned(),
                    Some(band) => format!("± {}", percent(band)),
                };
                let _ = write!(text, "  {band:>12}");
            }
            if let Some((_, other)) = &self.against {
                let _ = write!(text, "  {:>12}", shown(other));
            }
            let name = self
                .marks
                .iter()
                .filter(|m| m.1 == size)
                .map(|m| m.0.as_str());
            let names: Vec<&str> = name.collect();
            let _ = writeln!(text, "  {}", names.join(", "));
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }

    /// Returns the size that has this share of the benefit, or `None` if a sample does not show it.
    fn enough_for(&self, benefit: f64) -> Option<u64> {
        let curve = self.curve();
        let enough = curve.blocks_for(benefit).saturating_mul(curve.block_bytes);
        self.measured.resolves(enough).then_some(enough)
    }

    fn sentences(&self) -> String {
        let curve = self.curve();
        let in_bytes = |blocks: u64| bytes(blocks.saturating_mul(curve.block_bytes));
        let mut text = String::new();
        for knee in self.knees() {
            let _ = writeln!(
                text,
                "  knee at {}: it avoids {} of the avoidable misses",
                in_bytes(knee.blocks),
                percent(knee.benefit)
            );
        }
        if curve.references == curve.compulsory {
            return text + "  every reference is the first to its block: no memory avoids a miss\n";
        }
        let all = in_bytes(curve.enough_blocks());
        let _ = match self.enough_for(0.9) {
            Some(enough) => writeln!(
                text,
                "  {} give 90 % of the benefit, {all} all of it",
                bytes(enough)
            ),
            None => writeln!(text, "  {all} give all of the benefit"),
        };
        let _ = writeln!(
            text,
            "  {} of the references are compulsory misses ({}){}",
            percent(curve.compulsory / curve.references),
            count(curve.compulsory.round() as u64),
            if self.compulsory {
                ""
            } else {
                ", left out above"
            }
        );
        if let Some((name, other)) = &self.against {
            text += &differing(&printable(name), &curve.difference(other.curve()));
        }
        text
    }

    /// Returns the view as a JSON value, described in docs/mrc.md.
    pub fn json(&self) -> Value {
        let curve = self.curve();
        let point = |bytes: u64| {
            let known = self.measured.resolves(bytes);
            json!({
                "bytes": bytes,
                "misses": known.then(|| self.misses(curve, bytes)),
                "miss_ratio": self.ratio(curve, bytes).filter(|_| known),
                "mpki": self.mpki(bytes).filter(|_| known),
                "half_band_95": self.measured.half_band(bytes),
            })
        };
        let knees = self.knees().into_iter().map(
            |knee| json!({ "bytes": knee.blocks * curve.block_bytes, "benefit": knee.benefit }),
        );
        json!({
            "title": self.title,
            "note": self.note,
            "provenance": match self.measured {
                MeasuredCurve::Exact(_) if !self.is_of_samples() => "exact",
                _ => "sampled",
            },
            "sample_rate": match &self.measured { MeasuredCurve::Exact(_) => None, MeasuredCurve::Sampled(e) => Some(e.rate) },
            "counted_up_to_bytes": self.measured.counted_bytes(),
            "weight": self.weight,
            "block_bytes": curve.block_bytes,
            "references": curve.references,
            "compulsory": curve.compulsory,
            "instructions": match self.unit { CurveUnit::Mpki(n) => Some(n), _ => None },
            "compulsory_included": self.compulsory,
            "span": self.span.as_ref().map(span_json),
            "points": self.points().into_iter().map(point).collect::<Vec<_>>(),
            "marks": self.marks.iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect::<Vec<_>>(),
            "knees": knees.collect::<Vec<_>>(),
            "bytes_for_90_percent": self.enough_for(0.9),
            "bytes_for_all": curve.enough_blocks() * curve.block_bytes,
            "against": self.against.as_ref().map(|(name, other)| against_json(name, curve, other)),
        })
    }

    /// Returns the columns of [`CurveView::csv_rows`].
    pub const CSV_HEADING: &str = "curve,block_bytes,bytes,misses,miss_ratio,mpki,half_band_95,\
        against_misses,against_miss_ratio\n";

    /// Returns a row for each size. A cell is empty if its number does not exist.
    pub fn csv_rows(&self) -> String {
        let curve = self.curve();
        let shown = |number: Option<f64>| number.map_or(String::new(), |n| n.to_string());
        let name = self
            .span
            .as_ref()
            .map_or(String::new(), |span| format!(", phase {}", span.number));
        let name = printable(&(self.title.clone() + &name)).replace('"', "\"\"");
        let mut text = String::new();
        for bytes in self.points() {
            let other = self.against.as_ref().map(|against| against.1.curve());
            let known = self.measured.resolves(bytes);
            let other = other.filter(|_| {
                let other = self.against.as_ref().map(|against| &against.1);
                other.is_some_and(|other| other.resolves(bytes))
            });
            let numbers = [
                known.then(|| self.misses(curve, bytes)),
                self.ratio(curve, bytes).filter(|_| known),
                self.mpki(bytes).filter(|_| known),
                self.measured.half_band(bytes),
                other.map(|other| self.misses(other, bytes)),
                other.and_then(|other| self.ratio(other, bytes)),
            ];
            let numbers = numbers.map(shown).join(",");
            let _ = writeln!(text, "\"{name}\",{},{bytes},{numbers}", curve.block_bytes);
        }
        text
    }
}

fn span_json(span: &PhaseSpan) -> Value {
    json!({
        "number": span.number, "of": span.of, "from": span.from, "to": span.to,
        "unit": span.unit, "rate": span.rate, "event": span.event, "collected": span.collected,
    })
}

fn against_json(name: &str, curve: &Curve, other: &MeasuredCurve) -> Value {
    let Difference {
        mean,
        largest,
        largest_at_bytes,
        scale,
        ..
    } = curve.difference(other.curve());
    json!({
        "title": name, "mean_difference": mean, "largest_difference": largest,
        "largest_at_bytes": largest_at_bytes, "scale": scale,
    })
}

fn differing(name: &str, difference: &Difference) -> String {
    let scale = difference.scale.map_or(String::new(), |scale| {
        format!(";\n  {scale:.3} times its misses come nearest")
    });
    format!(
        "  from {name} the miss ratio differs by {} on average and {} at most, at {}{scale}\n",
        percent(difference.mean),
        percent(difference.largest),
        bytes(difference.largest_at_bytes),
    )
}

/// Renders a drawing with its vertical axis. `label` receives a height from 0 to 1.
fn chart(drawn: &[Vec<char>], title: &str, style: &Style, label: impl Fn(f64) -> String) -> String {
    let bar = if style.unicode { '│' } else { '|' };
    let mut text = format!("{:LABEL$}  {title}\n", "");
    for (row, cells) in drawn.iter().enumerate() {
        let label = match row % 2 {
            0 => label((ROWS - row) as f64 / ROWS as f64),
            _ => String::new(),
        };
        let line: String = cells.iter().collect();
        let _ = writeln!(text, "{label:>LABEL$} {bar}{}", line.trim_end());
    }
    text
}

/// Renders the axis below a drawing: sizes between two ends, and marked memories.
fn axis(
    (low, high): (u64, u64),
    marks: &[(String, u64)],
    columns: usize,
    column: impl Fn(u64) -> Option<usize>,
) -> String {
    let mut lines = Vec::new();
    let ticks = sizes(low, high, 1);
    let step = (ticks.len() * 9).div_ceil(columns).max(1);
    let ticks: Vec<(String, u64)> = ticks
        .iter()
        .step_by(step)
        .map(|&b| (capacity(b), b))
        .collect();
    for labels in [&ticks[..], marks] {
        let mut line = vec![' '; columns];
        for (name, bytes) in labels {
            let name = if std::ptr::eq(labels, &ticks[..]) {
                name.clone()
            } else {
                format!("^{name}")
            };
            let width = name.chars().count();
            let Some(at) = column(*bytes).filter(|at| at + width <= columns) else {
                continue;
            };
            let free = line[at.saturating_sub(1)..at + width]
                .iter()
                .all(|&c| c == ' ');
            if free {
                line.splice(at..at + width, name.chars());
            }
        }
        let line: String = line.into_iter().collect();
        if !line.trim().is_empty() {
            lines.push(format!("{:LABEL$}  {}\n", "", line.trim_end()));
        }
    }
    lines.concat()
}

/// Draws values from left to right. Steps of more than a row are connected. Unknown values are left
/// out.
fn plot(drawn: &mut [Vec<char>], values: &[Option<f64>], top: f64, mark: char) {
    let row = |value: f64| ROWS - (value / top * ROWS as f64).round() as usize;
    let mut last = None;
    for (column, value) in values.iter().enumerate() {
        let here = value.map(row);
        if let Some(here) = here {
            let from = last.unwrap_or(here);
            for line in &mut drawn[from.min(here)..=from.max(here)] {
                line[column] = mark;
            }
        }
        last = here;
    }
}

/// Returns the text without control characters, which a terminal would execute.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use memgauge_mrc::Distances;

    use super::*;

    fn view(counts: &[(u64, u64)], compulsory: u64) -> CurveView {
        let counts = counts.to_vec();
        let curve = Curve::exact(&Distances { counts, compulsory }, 64);
        CurveView {
            title: "two arrays".to_owned(),
            note: None,
            measured: MeasuredCurve::Exact(curve),
            unit: CurveUnit::Ratio,
            compulsory: true,
            marks: vec![("L1D".to_owned(), 32 << 10), ("L2".to_owned(), 1 << 20)],
            sizes: vec![],
            against: None,
            span: None,
            weight: 1.0,
            full: false,
        }
    }

    fn plain(width: usize, unicode: bool) -> Style {
        Style {
            width,
            line: width,
            unicode,
            colour: false,
            rows: Style::ROWS,
        }
    }

    #[test]
    fn two_working_sets_are_drawn_with_their_knees() {
        insta::assert_snapshot!(
            view(&[(99, 60_000), (9_999, 40_000)], 5_000).text(&plain(80, true))
        );
    }

    #[test]
    fn two_curves_are_drawn_beside_one_another() {
        let mut view = view(&[(99, 60_000), (9_999, 40_000)], 5_000);
        let other = self::view(&[(49, 60_000), (9_999, 40_000)], 5_000).measured;
        view.against = Some(("other\x1b[2J".to_owned(), other));
        let text = view.text(&plain(80, false));
        assert!(text.is_ascii() && !text.contains('\x1b'), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn every_line_fits_and_nothing_is_sensible() {
        for width in 80..140 {
            let text = view(&[(5, 10), (70_000, 9)], 70_000).text(&plain(width, true));
            assert!(text.lines().all(|l| l.chars().count() <= width), "{text}");
        }
        let nothing = view(&[], 0).text(&plain(80, true));
        assert!(nothing.contains("no references"), "{nothing}");
        assert!(!view(&[(0, 7)], 1).text(&plain(80, true)).contains("NaN"));
    }

    #[test]
    fn json_and_csv_have_the_curve_in_full() {
        let mut view = view(&[(99, 60), (999, 40)], 100);
        view.sizes = vec![64, 6400, 64_000];
        let misses: Vec<f64> = view.json()["points"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["misses"].as_f64().unwrap())
            .collect();
        assert_eq!(misses, [200.0, 140.0, 100.0]);
        assert!(view.csv_rows().ends_with(
            "\"two arrays\",64,6400,140,0.7,,,,\n\"two arrays\",64,64000,100,0.5,,,,\n"
        ));
    }

    #[test]
    fn compulsory_misses_are_left_out_everywhere() {
        let mut view = view(&[(99, 60), (999, 40)], 100);
        view.compulsory = false;
        view.sizes = vec![6400];
        view.unit = CurveUnit::Mpki(1000.0);
        view.against = Some(("other".to_owned(), view.measured.clone()));
        let point = &view.json()["points"][0];
        assert_eq!(
            (point["misses"].as_f64(), point["mpki"].as_f64()),
            (Some(40.0), Some(40.0))
        );
        assert_eq!(
            view.csv_rows(),
            "\"two arrays\",64,6400,40,0.2,40,,40,0.2\n"
        );
        assert_eq!(view.json()["compulsory_included"], false);
    }

    #[test]
    fn a_phase_says_of_which_part_it_is_and_what_its_curve_cost() {
        let mut view = view(&[(99, 60)], 4);
        let span = PhaseSpan {
            number: 2,
            of: 3,
            from: 1_000_000,
            to: 3_000_000,
            unit: "instructions",
            rate: 4.5,
            event: "misses of 256 KiB per 1000 instructions".to_owned(),
            collected: 0.25,
        };
        view.span = Some(span);
        let text = view.text(&plain(80, true));
        assert!(
            text.contains("phase 2 of 3: instructions from 1.00M to 3.00M, 4.50 misses"),
            "{text}"
        );
        assert!(view.csv_rows().starts_with("\"two arrays, phase 2\","));
        let collection = CollectionCost {
            references: 1000,
            collected: 100,
            collecting_s: 2.0,
            monitoring_s: 1.0,
        };
        assert_eq!(collection.full_s(), 20.0);
        assert!(collection.text().contains("15.0"), "{}", collection.text());
    }
}
