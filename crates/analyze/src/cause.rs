//! What can limit a run. `causes` finds it.

use serde::Serialize;

/// What limits a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// Too short to tell.
    Tiny,
    /// Waits for others most of the time.
    Idle,
    /// Moves about as many bytes as memory can.
    BandwidthBound,
    /// Waits for single lines from memory or a far cache.
    LatencyBound,
    /// Waits for lines that it goes through in order and uses more than once each.
    StreamBound,
    /// Waits for lines that it goes through in order, about one access each.
    StrideBound,
    /// Waits for the translation of addresses.
    TlbBound,
    /// The kernel gives it new pages all the time.
    PageFaults,
    /// Misses the last-level cache often.
    CacheMisses,
    /// Memory does not hold it up: the nearest cache has nearly all it asks for.
    L1Bound,
    /// Does different things at different times.
    Phases,
    /// Too few samples to tell shares.
    FewSamples,
}

/// A cause, and what it follows from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// Which.
    pub kind: CauseKind,
    /// The figure it follows from; what it is, `statement` of the report says.
    pub value: f64,
    /// What `value` is held against.
    pub threshold: f64,
    /// A second figure, where the statement has one.
    pub other: Option<f64>,
}
