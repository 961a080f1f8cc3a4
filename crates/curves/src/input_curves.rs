//! Curves of one input.

use memgauge_report::mrc::MeasuredCurve;

/// Curves of an input, one for each block size, with notes.
pub(super) struct InputCurves {
    pub(super) curves: Vec<MeasuredCurve>,
    pub(super) note: Option<String>,
    /// Number of references that each one stands for: for samples, the number of events between
    /// two.
    pub(super) weight: f64,
    /// Number of instructions of the references, if known.
    pub(super) instructions: Option<u64>,
    /// True if a part of the input could not be read.
    pub(super) is_damaged: bool,
}

impl InputCurves {
    /// Adds the curves of an input with a memory of its own.
    pub(super) fn merge(&mut self, other: InputCurves) {
        let seen = |made: &InputCurves| {
            let compulsory = made.curves.first().map_or(0.0, |c| c.curve().compulsory);
            compulsory / made.weight
        };
        let blocks = seen(self) + seen(&other);
        for (mine, others) in self.curves.iter_mut().zip(&other.curves) {
            mine.merge(others);
        }
        if blocks > 0.0 {
            // Blocks of different inputs are then different.
            self.weight = self.curves[0].curve().compulsory / blocks;
        }
        self.is_damaged |= other.is_damaged;
        let notes: Vec<String> = self.note.take().into_iter().chain(other.note).collect();
        self.note = (!notes.is_empty()).then(|| notes.join("; "));
    }
}
