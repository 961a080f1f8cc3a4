//! The form of I/O over time. `io_time` makes it.

use serde::Serialize;

/// Bytes over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoOverTime {
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// End of the curves, nanoseconds since the recording began.
    pub duration_ns: u64,
    /// What each device moved, in the order of the summary's devices: what it counted,
    /// else what processes have of it.
    pub devices: Vec<IoCurve>,
    /// What each process moved through each device, in the order of the summary's lines.
    pub lines: Vec<IoCurve>,
}

/// One device's, or one line's, bytes by bin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IoCurve {
    /// Which of the summary's devices or lines it is.
    pub index: usize,
    /// Bytes read or received.
    pub in_bytes: Vec<u64>,
    /// Bytes written or sent.
    pub out_bytes: Vec<u64>,
}
