//! Causes that can limit a run. `causes` detects them.

use serde::Serialize;

/// A limit of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// The run is too short to judge.
    Tiny,
    /// It waits for others most of the time.
    Idle,
    /// It moves nearly as many bytes as memory can, in the whole run or in a part of it.
    BandwidthBound,
    /// It waits for single lines from memory or a distant cache.
    LatencyBound,
    /// It waits for lines that it accesses sequentially, with several accesses to each.
    StreamBound,
    /// It waits for lines that it accesses sequentially, with about one access to each.
    StrideBound,
    /// It waits for lines that repeatedly leave few sets of a cache while the others are idle.
    CacheConflicts,
    /// It waits for address translation.
    TlbBound,
    /// It waits for lines in which other threads have stored other bytes.
    FalseSharing,
    /// It waits for lines in which other threads have stored the same bytes.
    TrueSharing,
    /// The kernel keeps allocating new pages for it.
    PageFaults,
    /// Page faults of an emulated program take long, and the model does not time them.
    UnmodelledFaults,
    /// An emulated program waits for files, and the model does not time that.
    FileWaits,
    /// It misses the last-level cache often.
    CacheMisses,
    /// Many of its accesses cross a cache line, which the model counts and does not time.
    SplitAccesses,
    /// Memory does not limit it: few of its cycles wait.
    L1Bound,
    /// It behaves differently at different times.
    Phases,
    /// There are too few samples for shares.
    FewSamples,
}

/// A cause and its figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cause {
    /// Kind of cause.
    pub kind: CauseKind,
    /// The figure that it follows from, as `statement` in the report describes.
    pub value: f64,
    /// Threshold for `value`.
    pub threshold: f64,
    /// A second figure, if the statement has one.
    pub other: Option<f64>,
}
