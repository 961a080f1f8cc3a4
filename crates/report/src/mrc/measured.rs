//! A measured curve, the unit in which it is shown, and the part of the run that it covers.

use std::fmt::Write as _;

use memgauge_mrc::{Curve, Estimate};
use serde_json::{Value, json};

use crate::units::{bytes, capacity, count, percent};

/// A curve and its precision.
#[derive(Clone, Debug)]
pub enum MeasuredCurve {
    /// From all references.
    Exact(Curve),
    /// From a sample of the blocks.
    Sampled(Estimate),
}

impl MeasuredCurve {
    /// The curve.
    pub fn curve(&self) -> &Curve {
        match self {
            MeasuredCurve::Exact(curve) => curve,
            MeasuredCurve::Sampled(estimate) => &estimate.curve,
        }
    }

    /// Adds the curve of another run. Each run has a memory of its own.
    pub fn merge(&mut self, other: &MeasuredCurve) {
        match (self, other) {
            (MeasuredCurve::Sampled(mine), MeasuredCurve::Sampled(other)) => mine.merge(other),
            (MeasuredCurve::Exact(mine), other) => mine.merge(other.curve()),
            (MeasuredCurve::Sampled(mine), MeasuredCurve::Exact(other)) => mine.merge_exact(other),
        }
    }

    /// Multiplies the number of references, because each one represents `weight` references. For
    /// samples, that is the number of events between two.
    pub fn scale(&mut self, weight: f64) {
        match self {
            MeasuredCurve::Exact(curve) => curve.scale(weight),
            MeasuredCurve::Sampled(estimate) => estimate.scale(weight),
        }
    }

    /// Returns true if the curve is precise enough for a memory of this size.
    pub(super) fn resolves(&self, bytes: u64) -> bool {
        match self {
            MeasuredCurve::Exact(_) => true,
            MeasuredCurve::Sampled(estimate) => estimate.resolves(bytes),
        }
    }

    /// Maximum memory in bytes up to which distances were counted. `None` if there is no limit.
    pub(super) fn counted_bytes(&self) -> Option<u64> {
        match self {
            MeasuredCurve::Exact(_) => None,
            MeasuredCurve::Sampled(e) => e.counted_blocks.checked_mul(e.curve.block_bytes),
        }
    }

    pub(super) fn half_band(&self, bytes: u64) -> Option<f64> {
        match self {
            MeasuredCurve::Exact(_) => None,
            MeasuredCurve::Sampled(estimate) => estimate.half_band(bytes),
        }
    }

    pub(super) fn provenance(&self) -> String {
        match self {
            MeasuredCurve::Exact(_) => "every reference".to_owned(),
            MeasuredCurve::Sampled(e) => format!(
                "sampled, n = {} of about {} blocks ({})",
                count(e.sampled_blocks),
                count(e.curve.compulsory as u64),
                percent(e.rate)
            ),
        }
    }

    /// Sizes at which the curve does not come from the sample, and sizes at which it is unknown.
    pub(super) fn sample_notes(&self) -> Option<String> {
        let MeasuredCurve::Sampled(e) = self else {
            return None;
        };
        let Some(counted) = self.counted_bytes() else {
            return Some("all sizes from every reference: the sample is not needed".to_owned());
        };
        let mut text = match counted {
            0 => "all sizes from the sample".to_owned(),
            _ => format!("up to {} from every reference", capacity(counted)),
        };
        if e.resolved_blocks > e.counted_blocks {
            let from = e.resolved_blocks.saturating_mul(e.curve.block_bytes);
            let _ = write!(
                text,
                "; not known from {} to {}: the sample has too few blocks",
                bytes(counted),
                bytes(from)
            );
        }
        Some(text)
    }
}

/// Unit of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CurveUnit {
    /// Misses.
    Misses,
    /// Misses / references, 0..=1.
    Ratio,
    /// Misses per 1000 instructions. The value is the number of instructions.
    Mpki(f64),
}

impl CurveUnit {
    pub(super) fn name(self) -> &'static str {
        match self {
            CurveUnit::Misses => "misses",
            CurveUnit::Ratio => "miss ratio",
            CurveUnit::Mpki(_) => "MPKI",
        }
    }

    pub(super) fn of(self, misses: f64, references: f64) -> f64 {
        match self {
            CurveUnit::Misses => misses,
            CurveUnit::Ratio => misses / references.max(1.0),
            CurveUnit::Mpki(instructions) => 1000.0 * misses / instructions.max(1.0),
        }
    }

    pub(super) fn show(self, value: f64) -> String {
        match self {
            CurveUnit::Misses => count(value.round() as u64),
            CurveUnit::Ratio => percent(value),
            CurveUnit::Mpki(_) => format!("{value:.2}"),
        }
    }
}

/// A phase of a run.
#[derive(Clone, Debug)]
pub struct PhaseSpan {
    /// Number of the phase, starting with 1.
    pub number: usize,
    /// Number of phases.
    pub of: usize,
    /// Start of the phase, in `unit`.
    pub from: u64,
    /// End of the phase, exclusive.
    pub to: u64,
    /// `instructions` or `references`.
    pub unit: &'static str,
    /// Mean rate of `event` in its windows.
    pub rate: f64,
    /// Event whose changes separate the phases.
    pub event: String,
    /// Share of its references that the curve covers, 0..=1.
    pub collected: f64,
}

impl PhaseSpan {
    pub(super) fn sentence(&self) -> String {
        format!(
            "phase {} of {}: {} from {} to {}, {:.2} {}, curve of {} of its references",
            self.number,
            self.of,
            self.unit,
            count(self.from),
            count(self.to),
            self.rate,
            self.event,
            percent(self.collected)
        )
    }
}

/// Cost of the curves of phases, in references and seconds of engines.
#[derive(Clone, Copy, Debug)]
pub struct CollectionCost {
    /// All references.
    pub references: u64,
    /// References that went into curves.
    pub collected: u64,
    /// Time of the engines of curves.
    pub collecting_s: f64,
    /// Time for detecting phases, if it is measured separately.
    pub monitoring_s: f64,
}

impl CollectionCost {
    /// Estimated seconds for curves of all references, from the seconds per collected reference.
    pub(crate) fn full_s(&self) -> f64 {
        self.collecting_s * self.references as f64 / self.collected.max(1) as f64
    }

    /// Two lines.
    pub fn text(&self) -> String {
        let share = self.collected as f64 / self.references.max(1) as f64;
        let mut text = format!(
            "curves of {} of the references took {:.2} s",
            percent(share),
            self.collecting_s
        );
        if self.collected < self.references {
            let own = self.collecting_s + self.monitoring_s;
            let _ = write!(
                text,
                ", watching for changes {:.2} s;\n{} of the about {:.2} s that curves of all take",
                self.monitoring_s,
                percent(own / self.full_s().max(f64::MIN_POSITIVE)),
                self.full_s()
            );
        }
        text + "\n"
    }

    /// As JSON; docs/mrc.md describes it.
    pub fn json(&self) -> Value {
        json!({
            "references": self.references, "collected": self.collected,
            "collecting_s": self.collecting_s, "monitoring_s": self.monitoring_s,
            "full_s_estimated": self.full_s(),
        })
    }
}
