//! `memgauge stat`: totals of counters, and their values at every tick of a timer.
//!
//! For a series, a timer (`cpu-clock`) leads each group of counters. At each tick the kernel writes
//! the values of the whole group into a ring, without a kernel module and without a switch to
//! memgauge:
//!
//! ```text
//! timer ticks ─► sample: id, pid, tid, time, values ─► ring of the CPU
//! memgauge, when a ring is half full ─► order by time ─► differences ─► rows
//! ```
//!
//! Counters of tasks are opened on every CPU. Threads and processes that start later inherit them
//! and write into the ring of their CPU.
//!
//! Rejected: reading the counters every interval (a context switch each time, and short-lived
//! threads are missed), and one ring for each thread (memory).

mod grouping;
mod new_threads;
mod open;
mod recording;
mod series;
mod session;
mod stream;
mod task_cost;
mod throttling;
pub(super) mod tick_cost;
mod ticks;
mod totals;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use memgauge_trace::{CountingFacts, Loss, Manifest, SeriesRow, Thread};
use smallvec::SmallVec;

pub use series::{CounterRow, RowBuilder, SeriesCounter, SeriesRecord, SeriesRecordKind};
pub use session::run;
use ticks::TickStatistics;

use super::Unwritten;
use super::events::EventGroup;
use super::target::Target;

/// Minimum interval of a timer. The kernel raises shorter ones to it
/// (`perf_swevent_init_hrtimer`).
pub const MIN_INTERVAL_NS: u64 = 10_000;

/// Default size of a ring in pages. With its page of pointers it is what an unprivileged user may
/// lock for each CPU (`perf_event_mlock_kb`, 516 KiB).
pub const RING_PAGES: usize = 128;

/// Values of a group's counters, the timer's first. The default events fit without an allocation,
/// since there may be a hundred thousand ticks per second.
pub type Values = SmallVec<[u64; 6]>;

/// Events to count, and settings.
#[derive(Clone, Debug)]
pub struct StatOptions {
    /// The observed target.
    pub target: Target,
    /// A program to run while another target is observed. Counting stops when it ends.
    pub while_running: Option<Vec<String>>,
    /// The events.
    pub groups: Vec<EventGroup>,
    /// Time between two rows. With `None` there are only totals.
    pub interval_ns: Option<u64>,
    /// Directory of the recording.
    pub output: Option<PathBuf>,
    /// Measure the cost of a bare timer at the end.
    pub measure_timer: bool,
    /// Size of each ring in pages, a power of two.
    pub ring_pages: usize,
    /// Let threads inherit counters if the kernel can do so (6.13). Otherwise counters are opened
    /// on each new thread.
    pub inherit: bool,
}

/// A thread that was observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenThread {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Parent process.
    pub parent_pid: u32,
    /// Its latest name.
    pub program: String,
    /// Start, in nanoseconds since the start of the run.
    pub start_ns: u64,
    /// End, in nanoseconds since the start of the run; `None` if it has not ended.
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
pub struct StatOutcome {
    /// The manifest of the recording, also without one: events, end of the program, cost, and the
    /// counts in `counting`.
    pub manifest: Manifest,
    /// Observed threads.
    pub threads: Vec<Thread>,
    /// Losses of the run.
    pub losses: Vec<Loss>,
    /// Missing parts of the recording; `None` if it was written in full.
    pub unwritten: Option<Unwritten>,
}

impl StatOutcome {
    /// The counts.
    pub fn counting(&self) -> &CountingFacts {
        static NOTHING: LazyLock<CountingFacts> = LazyLock::new(CountingFacts::default);
        self.manifest.counting.as_ref().unwrap_or(&NOTHING)
    }
}

/// Share of the time that ticks may take. At shorter intervals the series distorts what it shows,
/// and the user is warned.
pub(crate) const MAX_TICK_SHARE: f64 = 0.2;

/// The interval at which ticks of this cost take `MAX_TICK_SHARE` of the time.
pub fn min_interval_without_warning_ns(tick_ns: f64) -> u64 {
    MIN_INTERVAL_NS.max((tick_ns / MAX_TICK_SHARE).round() as u64)
}

/// Progress of a run.
#[derive(Debug)]
pub enum Update<'a> {
    /// Names of the series' columns, one list for each group, the timer first.
    Columns(&'a [Vec<String>]),
    /// A warning about the interval, before the start.
    Warning(&'a str),
    /// The next rows, by time. Times begin at 0.
    Rows(&'a [CounterRow]),
    /// The same rows as in a recording.
    Series(&'a [SeriesRow]),
    /// Totals so far by event, ten times per second.
    Sums(&'a BTreeMap<String, u64>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_without_warning_leaves_80_percent_to_the_program() {
        assert_eq!(min_interval_without_warning_ns(15_000.0), 75_000);
        assert_eq!(min_interval_without_warning_ns(100.0), MIN_INTERVAL_NS);
    }
}
