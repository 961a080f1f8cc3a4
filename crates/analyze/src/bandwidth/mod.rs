//! Bandwidth over time from the times of counter overflows.
//!
//! An overflow represents `period` events plus those that its record lost ([`LossModel`]). They
//! happened since the previous overflow and are spread evenly over that time. Counts of the
//! recording's other counters (memory bytes, writebacks, prefetched lines) are summed in the same
//! windows, as a reference and for comparison.
//!
//! Memory is limited by the number of windows ([`MAX_WINDOWS`] in total, a hundredth of that for
//! each thread), not of overflows. An hour at 10 µs is refused with a message that states the width
//! that would fit.

pub(crate) mod dram;
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
pub use read::{TraceExtent, extent, read, work};
pub use shape::{
    Bursts, Drop, Regression, WindowStats, bursts, common_drops, mean_error, regression,
    window_stats,
};

/// Maximum number of windows of one curve, 8 bytes each.
pub const MAX_WINDOWS: u64 = 40_000_000;

/// Window width for comparing curves and finding bursts.
const PLAIN_NS: u64 = 100_000;

/// Selected time of the recording, and how to show it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BandwidthSettings {
    /// Start of the selected time in nanoseconds.
    pub from_ns: u64,
    /// End of the selected time. `None` is the end of the recording.
    pub to_ns: Option<u64>,
    /// Width of the curve's windows in nanoseconds, not 0.
    pub bin_ns: u64,
    /// Maximum number of rows of each table.
    pub rows: usize,
}

/// How overflows were corrected.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Correction {
    /// Not corrected: an overflow represents its period.
    #[default]
    None,
    /// By a loss model, with its origin.
    Model(String, LossModel),
    /// Scaled so that the total equals that of the memory counter over the whole recording.
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
    /// Number of overflows.
    pub overflows: u64,
    /// Corrected bytes.
    pub bytes: f64,
    /// Highest rate in one window of `drops_width_ns`, in bytes per second.
    pub highest: f64,
}

/// Share of a function in the samples in bursts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FunctionPart {
    /// Function, or its module if it has no symbols.
    pub function: String,
    /// Functions that it was inlined into, innermost first.
    pub inlined_into: Vec<Caller>,
    /// Path of the file that contains the code.
    pub module: String,
    /// Share of the samples in bursts, 0..=1.
    pub share: f64,
    /// Samples.
    pub samples: u64,
}

/// The memory counter as a reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reference {
    /// The event.
    pub event: String,
    /// Bytes in the selected time.
    pub bytes: f64,
    /// True if the counter covers the same traffic as the event, but lies outside the interval of
    /// the corrected total. The correction is wrong then.
    pub contradicts: bool,
    /// Regression of memory bytes on bytes of the corrected curve.
    pub regression: Option<Regression>,
    /// Width of the compared windows in nanoseconds.
    pub width_ns: u64,
    /// Number of these windows with traffic.
    pub windows: u64,
    /// Mean absolute difference between the corrected curve and the reference in these windows,
    /// relative to the reference's mean.
    pub mean_error: Option<f64>,
    /// The same error of the reference itself, sampled by overflows of this period. No trace can be
    /// more precise without reference counters.
    pub quantised_error: Option<f64>,
}

/// Irregularities of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Irregular {
    /// Blocks that start before the thread's last overflow.
    pub clock_back: u64,
    /// Pauses that are too long to spread events over them (more than 10 ms and fifty times the
    /// usual gap).
    pub pauses: u64,
    /// Total length of the pauses in nanoseconds.
    pub pauses_ns: u64,
    /// Blocks that could not be unpacked.
    pub unreadable: u64,
}

/// Bandwidth over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The event that overflowed.
    pub event: String,
    /// Bytes per event: a line, or 1 if the event counts bytes.
    pub bytes_per_event: u64,
    /// Events between two overflows.
    pub period: u64,
    /// Origin of the correction. `None` if uncorrected.
    pub correction: Option<String>,
    /// Resolution of overflow times in nanoseconds. 1 is exact.
    pub resolution_ns: u64,
    /// Start of the selected time in nanoseconds.
    pub from_ns: u64,
    /// End, exclusive.
    pub to_ns: u64,
    /// Overflows in that time.
    pub overflows: u64,
    /// Bytes without correction.
    pub raw_bytes: f64,
    /// Corrected bytes, including those after the last overflow (half a period for each thread if
    /// unknown).
    pub bytes: f64,
    /// Half the width of the 95 % interval of `bytes`. Includes the correction's own error and, if
    /// the end of a thread is unknown, half a period.
    pub error_bytes: f64,
    /// True if the total comes from the memory counter, so that comparing them is meaningless.
    pub from_reference: bool,
    /// Totals of repeated runs.
    pub runs: Option<RepeatedRuns>,
    /// Mean number of events lost with each record, and half the width of its interval.
    pub lost: (f64, f64),
    /// Width of the curve's windows in nanoseconds.
    pub bin_ns: u64,
    /// Bytes per second of one overflow in one window, which is the resolution of the curve if
    /// there are fewer overflows than windows.
    pub quantum: f64,
    /// The curve, corrected: bytes in each window.
    #[serde(skip)]
    pub curve: Option<Grid>,
    /// The same uncorrected, each overflow in its own window.
    #[serde(skip)]
    pub raw_curve: Option<Grid>,
    /// Statistics in windows of 10 µs, 100 µs, 1 ms and 10 ms, as far as they fit.
    pub windows: Vec<WindowStats>,
    /// Ranges of high bandwidth.
    pub bursts: Bursts,
    /// Threads by falling number of bytes.
    pub threads: Vec<ThreadPart>,
    /// Number of threads that are not listed.
    pub more_threads: u64,
    /// Functions whose code ran in bursts.
    pub functions: Vec<FunctionPart>,
    /// Number of samples in bursts.
    pub burst_samples: u64,
    /// Times at which all threads moved less.
    pub drops: Vec<Drop>,
    /// Width of the windows used to find drops, in nanoseconds.
    pub drops_width_ns: u64,
    /// The memory counter.
    pub reference: Option<Reference>,
    /// Bytes written back to memory, counted.
    pub written_bytes: Option<u64>,
    /// Bytes of lines that prefetchers brought into the second level from memory or the last level,
    /// counted.
    pub prefetched_bytes: Option<u64>,
    /// Instructions, counted.
    pub instructions: Option<u64>,
    /// Share of the time spent in records, if known.
    pub overhead: Option<f64>,
    /// Irregularities of the trace.
    pub irregular: Irregular,
    /// Messages about parts that could not be read.
    pub problems: Vec<String>,
}

/// Totals of repeated runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RepeatedRuns {
    /// Bytes of each run.
    pub bytes: Vec<f64>,
    /// Mean of the runs.
    pub mean: f64,
    /// Standard error of the mean.
    pub error: f64,
}

impl RepeatedRuns {
    /// Statistics of the earlier runs and the last one. `None` for a single run.
    pub fn of(before: &[f64], last: f64) -> Option<RepeatedRuns> {
        let bytes: Vec<f64> = before.iter().copied().chain([last]).collect();
        let n = bytes.len() as f64;
        let mean = bytes.iter().sum::<f64>() / n;
        let spread: f64 = bytes.iter().map(|b| (b - mean) * (b - mean)).sum();
        (n > 1.0).then(|| RepeatedRuns {
            mean,
            error: (spread / (n - 1.0) / n).sqrt(),
            bytes,
        })
    }
}

/// Bandwidth by work done: bytes in each of `steps` equal shares of the instructions. A run that
/// its observer slowed down can thus be compared with another one.
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
            // Rounding must not create an empty step.
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
        let runs = RepeatedRuns::of(&[1.0, 2.0], 3.0).unwrap();
        assert!((runs.mean - 2.0).abs() < 1e-12 && (runs.error - 1.0 / 3f64.sqrt()).abs() < 1e-12);
        assert_eq!(RepeatedRuns::of(&[], 3.0), None);
    }

    #[test]
    fn a_stretched_run_lies_over_the_other_by_its_work() {
        let grid = |values: &[f64]| Grid {
            from_ns: 0,
            width_ns: 100,
            values: values.to_vec(),
        };
        // The program is the same, but the second run took twice as long for its first half.
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
