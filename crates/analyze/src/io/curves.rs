//! Bytes of I/O over time. `io_time` computes them.

use serde::Serialize;

/// Bytes over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoOverTime {
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// End of the curves, nanoseconds since the recording began.
    pub duration_ns: u64,
    /// Bytes of each device in the order of the summary's devices: its own count, or else the sum
    /// of its processes.
    pub devices: Vec<IoCurve>,
    /// Bytes of each process through each device, in the order of the summary's lines.
    pub lines: Vec<IoCurve>,
}

/// Bytes of one device or line by bin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoCurve {
    /// Index in the summary's devices or lines.
    pub index: usize,
    /// Bytes read or received.
    pub in_bytes: Vec<u64>,
    /// Bytes written or sent.
    pub out_bytes: Vec<u64>,
}
