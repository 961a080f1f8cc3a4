//! `memgauge stat`: counters' totals, and their values at every tick of a timer.
//!
//! For a series, a timer (`cpu-clock`) leads each group of counters. At each of its
//! ticks the kernel writes the values of the whole group into a ring, without a kernel
//! module and without a switch to this process:
//!
//! ```text
//! timer ticks ─► sample: id, pid, tid, time, values ─► ring of the processor
//! memgauge, when a ring is half full ─► order by time ─► differences ─► rows
//! ```
//!
//! Counters of tasks are opened on every processor and inherited by the threads
//! and processes born later, which write into the ring of their processor.
//!
//! Rejected: reading counters from here every interval (a switch each time, and
//! short-lived threads are missed), and one ring a thread (memory).

pub(super) mod bare;
mod follow;
mod open;
mod plan;
mod series;
mod session;
mod sink;
mod stops;
mod stream;
mod task_cost;
mod ticks;
mod totals;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use memgauge_trace::{CountingFacts, Loss, Manifest, SeriesRow, Thread};

pub use series::{Counter, Row, Series, SeriesRecord, SeriesRecordKind, Values};
pub use session::run;
use ticks::Ticks;

use super::Unwritten;
use super::events::Group;
use super::target::Target;

/// Shortest interval: below it the kernel takes this one (`perf_swevent_init_hrtimer`).
pub const SHORTEST_INTERVAL_NS: u64 = 10_000;

/// Pages of a ring: with its page of pointers what an ordinary user may lock a
/// processor (`perf_event_mlock_kb`, 516 KiB).
pub const RING_PAGES: usize = 128;

/// Events to count, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target.
    pub target: Target,
    /// A program that runs while others are observed, and says when to stop.
    pub while_running: Option<Vec<String>>,
    /// The events.
    pub groups: Vec<Group>,
    /// Time between two rows; without it there are only totals.
    pub interval_ns: Option<u64>,
    /// Directory of the recording.
    pub output: Option<PathBuf>,
    /// Measure at the end what the timer alone costs.
    pub measure_timer: bool,
    /// Pages of each ring, a power of two.
    pub ring_pages: usize,
    /// Let counters be inherited where the kernel can; otherwise, as on kernels
    /// before 6.13, new threads are followed one by one.
    pub inherit: bool,
}

/// A thread that was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenThread {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Parent process.
    pub parent_pid: u32,
    /// Its last name.
    pub program: String,
    /// Nanoseconds since the start.
    pub start_ns: u64,
    /// Nanoseconds since the start, once it has ended.
    pub end_ns: Option<u64>,
}

impl SeenThread {
    /// True if the thread started during the run. Only the record of a start names the parent.
    fn is_started_in_run(&self) -> bool {
        self.parent_pid != 0
    }
}

/// Results of the run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// As it is in the recording, where there is one: events, end, cost, and in
    /// `counting` what was counted.
    pub manifest: Manifest,
    /// Threads seen.
    pub threads: Vec<Thread>,
    /// Losses of the run.
    pub losses: Vec<Loss>,
    /// The part that is missing in the recording, where it could not be written in
    /// full.
    pub unwritten: Option<Unwritten>,
}

impl Outcome {
    /// Facts of the counting.
    pub fn counting(&self) -> &CountingFacts {
        static NOTHING: LazyLock<CountingFacts> = LazyLock::new(CountingFacts::default);
        self.manifest.counting.as_ref().unwrap_or(&NOTHING)
    }
}

/// Part of the time that ticks may take before a series distorts what it shows: at
/// shorter intervals the user is warned.
pub(crate) const BEARABLE: f64 = 0.2;

/// The interval at which ticks of this cost take the bearable part of the time.
pub fn bearable_interval_ns(tick_ns: f64) -> u64 {
    SHORTEST_INTERVAL_NS.max((tick_ns / BEARABLE).round() as u64)
}

/// News while it runs.
#[derive(Debug)]
pub enum Update<'a> {
    /// Names of the series' columns, a list for each group, the timer first.
    Columns(&'a [Vec<String>]),
    /// Before the start: an interval shorter than the machine bears, in words.
    Warning(&'a str),
    /// The next rows, in order of time; their times begin at 0.
    Rows(&'a [Row]),
    /// The same as rows of a recording's series.
    Series(&'a [SeriesRow]),
    /// Totals so far by event, asked for ten times a second.
    Sums(&'a BTreeMap<String, u64>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bearable_interval_leaves_four_fifths_to_the_program() {
        assert_eq!(bearable_interval_ns(15_000.0), 75_000);
        assert_eq!(bearable_interval_ns(100.0), SHORTEST_INTERVAL_NS);
    }
}
