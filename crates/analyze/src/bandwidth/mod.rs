//! Bandwidth over time from the times of counter overflows.
//!
//! An overflow stands for `period` events and for those that its record lost
//! ([`LossModel`]). They happened since the previous overflow, and are spread evenly
//! over that time. Counts of the recording's other counters (bytes of memory,
//! write-backs, prefetched lines) are summed in the same windows, as a reference and
//! for comparison.
//!
//! Memory is bounded by windows ([`MOST_WINDOWS`] for the whole, a hundredth of that
//! for each thread), not by overflows. An hour at 10 µs is too much and is refused with
//! the width that would fit.

mod functions;
mod grid;
mod hidden;
mod loss;
mod read;
mod shape;

use serde::Serialize;

use crate::Caller;

pub use grid::Grid;
pub use loss::{LossCurve, LossModel, LossPoint, fitted};
pub use read::{Extent, extent, read, work};
pub use shape::{
    Bursts, Drop, Regression, WindowStats, bursts, common_drops, mean_error, regression,
    window_stats,
};

/// Most windows of one curve: 8 bytes each.
pub const MOST_WINDOWS: u64 = 40_000_000;

/// Part of the recording, and how to show it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Only what happened from here, nanoseconds.
    pub from_ns: u64,
    /// And before this; `None`: to the end.
    pub to_ns: Option<u64>,
    /// Width of the curve's windows, nanoseconds; not 0.
    pub bin_ns: u64,
    /// Rows of each table.
    pub rows: usize,
}

/// How overflows were corrected.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Correction {
    /// Not at all: an overflow stands for its period.
    #[default]
    None,
    /// By a model of losses, with the name of where it comes from.
    Model(String, LossModel),
    /// So that the total is that of memory's own counter over the whole recording.
    Reference,
}

/// A thread's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ThreadPart {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Path of the program.
    pub program: String,
    /// Overflows.
    pub overflows: u64,
    /// Bytes, corrected.
    pub bytes: f64,
    /// Highest rate in one window of `drops_width_ns`, bytes a second.
    pub highest: f64,
}

/// A function's part of the samples in bursts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FunctionPart {
    /// Function, or its module where it has no symbols.
    pub function: String,
    /// The functions it was inlined into, innermost first.
    pub inlined_into: Vec<Caller>,
    /// Path of the file the code came from.
    pub module: String,
    /// Share of the samples in bursts, 0..=1.
    pub share: f64,
    /// Samples.
    pub samples: u64,
}

/// Count of memory's own counter, as a reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reference {
    /// The event.
    pub event: String,
    /// Bytes in the time looked at.
    pub bytes: f64,
    /// Whether it counted the same traffic as the event and still lies outside the interval
    /// around the corrected total: then the correction is wrong.
    pub contradicts: bool,
    /// Bytes of memory by bytes of the corrected curve.
    pub regression: Option<Regression>,
    /// Width of the windows compared, nanoseconds.
    pub width_ns: u64,
    /// Such windows in which anything moved.
    pub windows: u64,
    /// Mean absolute difference of the corrected curve in these windows, over the
    /// reference's mean.
    pub mean_error: Option<f64>,
    /// The same of the reference itself, known by overflows of this period alone. No
    /// trace can be nearer without reference counters.
    pub quantised_error: Option<f64>,
}

/// Irregularities of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Irregular {
    /// Blocks that begin before the thread's last overflow.
    pub clock_back: u64,
    /// Pauses in which a thread's events cannot have been spread (over 10 ms and
    /// fifty times the usual).
    pub pauses: u64,
    /// Their length together, nanoseconds.
    pub pauses_ns: u64,
    /// Blocks that could not be unpacked.
    pub unreadable: u64,
}

/// Bandwidth over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The event that overflowed.
    pub event: String,
    /// Bytes an event stands for: a line, or 1 where the event counts bytes.
    pub bytes_per_event: u64,
    /// Events between two overflows.
    pub period: u64,
    /// Where the correction comes from; `None`: uncorrected.
    pub correction: Option<String>,
    /// Longest step that overflow times were rounded down to, nanoseconds; 1: exact.
    pub resolution_ns: u64,
    /// First moment looked at, nanoseconds.
    pub from_ns: u64,
    /// End, exclusive.
    pub to_ns: u64,
    /// Overflows in that time.
    pub overflows: u64,
    /// Bytes the overflows stand for without correction.
    pub raw_bytes: f64,
    /// Bytes with it, and the counts after the last overflow (where they are not known:
    /// half a period for each thread).
    pub bytes: f64,
    /// Half of the interval around `bytes` that holds the truth 19 times in 20. It
    /// includes the correction's own error and, where a thread's end is not known, half
    /// a period.
    pub error_bytes: f64,
    /// Whether the total was taken from memory's own counter, so that comparing them
    /// says nothing.
    pub from_reference: bool,
    /// Total over repeated runs, where the program ran more than once.
    pub runs: Option<Runs>,
    /// Events lost with each record, on average, and half of the interval around that.
    pub lost: (f64, f64),
    /// Width of the curve's windows, nanoseconds.
    pub bin_ns: u64,
    /// One overflow in one window, bytes a second: what the curve is quantised to
    /// where overflows are fewer than windows.
    pub quantum: f64,
    /// The curve, corrected: bytes in each window.
    #[serde(skip)]
    pub curve: Option<Grid>,
    /// The same uncorrected, each overflow in its own window.
    #[serde(skip)]
    pub raw_curve: Option<Grid>,
    /// Statistics in windows of 10 µs, 100 µs, 1 ms and 10 ms, as far as they fit.
    pub windows: Vec<WindowStats>,
    /// Stretches of high bandwidth.
    pub bursts: Bursts,
    /// Who moved the data, most first.
    pub threads: Vec<ThreadPart>,
    /// Threads not listed.
    pub more_threads: u64,
    /// Functions whose code ran in bursts.
    pub functions: Vec<FunctionPart>,
    /// Samples in bursts that the functions are shares of.
    pub burst_samples: u64,
    /// Moments at which all threads moved less.
    pub drops: Vec<Drop>,
    /// Width of the windows in which drops were looked for, nanoseconds.
    pub drops_width_ns: u64,
    /// Memory's own counter.
    pub reference: Option<Reference>,
    /// Bytes written back to memory, counted.
    pub written_bytes: Option<u64>,
    /// Bytes of lines that prefetchers brought into the second level, from memory
    /// or the last-level cache, counted.
    pub prefetched_bytes: Option<u64>,
    /// Instructions, counted.
    pub instructions: Option<u64>,
    /// Share of the time that records took, where the source says.
    pub overhead: Option<f64>,
    /// Irregularities of the trace.
    pub irregular: Irregular,
    /// Parts that could not be read, in words.
    pub problems: Vec<String>,
}

/// Totals of repeated runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Runs {
    /// Bytes of each.
    pub bytes: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Standard error of the mean.
    pub error: f64,
}

impl Runs {
    /// Statistics of the previous runs and the last one; `None` where that is the only
    /// one.
    pub fn of(before: &[f64], last: f64) -> Option<Runs> {
        let bytes: Vec<f64> = before.iter().copied().chain([last]).collect();
        let n = bytes.len() as f64;
        let mean = bytes.iter().sum::<f64>() / n;
        let spread: f64 = bytes.iter().map(|b| (b - mean) * (b - mean)).sum();
        (n > 1.0).then(|| Runs {
            mean,
            error: (spread / (n - 1.0) / n).sqrt(),
            bytes,
        })
    }
}

/// Bandwidth by work done: bytes for each of `steps` equal shares of the instructions.
/// So a run that its observer slowed down can be laid over another one.
///
/// `work` holds instructions in the windows of `bytes`.
pub fn by_work(bytes: &Grid, work: &Grid, steps: usize) -> Vec<f64> {
    let total = work.total();
    let mut shares = vec![0.0; steps];
    let mut done = 0.0;
    for (amount, worked) in bytes.values.iter().zip(&work.values) {
        let mut left = *worked;
        while left > 0.0 && total > 0.0 {
            let step = ((done / total * steps as f64) as usize).min(steps - 1);
            let end = (step + 1) as f64 / steps as f64 * total;
            // Rounding must not make a step that ends where it begins.
            let some = match step + 1 < steps && end > done {
                true => left.min(end - done),
                false => left,
            };
            shares[step] += amount * some / worked;
            done += some;
            left -= some;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_runs_have_a_mean_and_its_standard_error() {
        let runs = Runs::of(&[1.0, 2.0], 3.0).unwrap();
        assert!((runs.mean - 2.0).abs() < 1e-12 && (runs.error - 1.0 / 3f64.sqrt()).abs() < 1e-12);
        assert_eq!(Runs::of(&[], 3.0), None);
    }

    #[test]
    fn a_stretched_run_lies_over_the_other_by_its_work() {
        let grid = |values: &[f64]| Grid {
            from_ns: 0,
            width_ns: 100,
            values: values.to_vec(),
        };
        // The same program; the second took twice as long in its first half.
        let plain = by_work(&grid(&[8.0, 8.0, 2.0, 2.0]), &grid(&[10.0; 4]), 8);
        let slow = by_work(
            &grid(&[4.0, 4.0, 4.0, 4.0, 2.0, 2.0]),
            &grid(&[5.0, 5.0, 5.0, 5.0, 10.0, 10.0]),
            8,
        );
        assert_eq!(plain, [4.0, 4.0, 4.0, 4.0, 1.0, 1.0, 1.0, 1.0]);
        for (a, b) in plain.iter().zip(&slow) {
            assert!((a - b).abs() < 1e-9, "{plain:?} {slow:?}");
        }
        assert_eq!(by_work(&grid(&[1.0]), &grid(&[0.0]), 2), [0.0, 0.0]);
    }
}
