//! `memgauge stat`: counters' totals, and their values at every tick of a timer.
//!
//! For a series, a timer (`cpu-clock`) leads each group of counters; at each of
//! its ticks the kernel writes the values of the whole group into a ring, without
//! a module and without a switch to this process:
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
mod stream;
mod ticks;
mod totals;

use std::collections::BTreeMap;
use std::path::PathBuf;

use memgauge_trace::{CommandEnd, Loss, OwnCost};

pub use series::{Counter, Happening, Row, Series, Values, What};
pub use session::run;
pub use ticks::Ticks;

use super::counters::Unsupported;
use super::events::Group;
use super::target::Target;

/// Shortest interval: below it the kernel takes this one (`perf_swevent_init_hrtimer`).
pub const SHORTEST_INTERVAL_NS: u64 = 10_000;

/// Pages of a ring: with its page of pointers what an ordinary user may lock a
/// processor (`perf_event_mlock_kb`, 516 KiB).
pub const RING_PAGES: usize = 128;

/// What to count.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whom.
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

/// An event's total.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Total {
    /// Its name.
    pub name: String,
    /// What was counted, as the kernel counted it.
    pub counted: u64,
    /// The same, scaled up where it was counted only a part of the time.
    pub value: u64,
    /// Part of the time it was counted, 0 to 1.
    pub share_counted: f64,
    /// What a count is worth, in `unit`.
    pub scale: f64,
    /// Unit of the scaled value, for PMUs that name one.
    pub unit: String,
    /// Whether it counts the whole machine, not the target.
    pub machine_wide: bool,
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

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How the program ended; `None` where none was started.
    pub end: Option<CommandEnd>,
    /// Totals by event, in the order typed.
    pub totals: Vec<Total>,
    /// Events that were not counted.
    pub unsupported: Vec<Unsupported>,
    /// Events counted in user space only, for want of rights.
    pub user_only: Vec<String>,
    /// How the timer did.
    pub ticks: Option<Ticks>,
    /// Rows written.
    pub rows: u64,
    /// What was lost.
    pub losses: Vec<Loss>,
    /// Nanoseconds observed.
    pub wall_ns: u64,
    /// What it cost.
    pub cost: OwnCost,
    /// Seconds this process ran in user mode and in the kernel.
    pub own_user_s: f64,
    /// Seconds in the kernel.
    pub own_system_s: f64,
    /// Things to tell the user.
    pub notes: Vec<String>,
    /// What a tick of the bare timer takes here, in nanoseconds.
    pub bare_tick_ns: Option<f64>,
    /// How much slower ticks made the observed, estimated.
    pub slowdown: Option<Slowdown>,
    /// Processes and threads seen.
    pub threads: u64,
}

/// Part of the time that ticks may take before a series distorts what it shows: at
/// shorter intervals the user is warned.
pub const BEARABLE: f64 = 0.2;

/// The interval at which ticks of this cost take the bearable part of the time.
pub fn bearable_interval_ns(tick_ns: f64) -> u64 {
    SHORTEST_INTERVAL_NS.max((tick_ns / BEARABLE).round() as u64)
}

/// What a series takes from those that it observes, estimated from the cost of a tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// Nanoseconds that a tick takes here, measured before the start.
    pub tick_ns: f64,
    /// Part of the time on processors that ticks took, 0 to 1.
    pub share: f64,
}

impl Slowdown {
    /// Of so many ticks in so much running time.
    pub fn of(tick_ns: f64, ticks: &Ticks) -> Slowdown {
        let took_ns = tick_ns * (ticks.seen + ticks.lost) as f64;
        let share = took_ns / (ticks.running_ns as f64).max(1.0);
        Slowdown {
            tick_ns,
            share: share.min(1.0),
        }
    }

    /// Running time with ticks as a multiple of that without; `None` where the ticks
    /// took all that can be told apart.
    pub fn times(&self) -> Option<f64> {
        (self.share < MOST_TOLD).then(|| 1.0 / (1.0 - self.share))
    }
}

/// With the ticks' cost known to a tenth, a larger share of theirs tells no multiple.
const MOST_TOLD: f64 = 0.9;

/// What is told while it runs.
#[derive(Debug)]
pub enum Update<'a> {
    /// Names of the series' columns, a list for each group, the timer first.
    Columns(&'a [Vec<String>]),
    /// Before the start: an interval shorter than the machine bears, in words.
    Warning(&'a str),
    /// The next rows, in order of time; their times begin at 0.
    Rows(&'a [Row]),
    /// Totals so far by event, asked for ten times a second.
    Sums(&'a BTreeMap<String, u64>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowdown_is_the_share_of_the_time_that_ticks_took() {
        let mut ticks = Ticks::new(100_000);
        (0..90).for_each(|_| ticks.add(100_000));
        (ticks.lost, ticks.running_ns) = (10, 10_000_000);
        // A hundred ticks of 25 us are a quarter of 10 ms: the rest would take 7.5 ms.
        let slowdown = Slowdown::of(25_000.0, &ticks);
        assert_eq!(slowdown.share, 0.25);
        assert!((slowdown.times().unwrap() - 10.0 / 7.5).abs() < 1e-9);
        // Ticks as long as the interval, or measured longer: nothing is left over.
        for tick_ns in [100_000.0, 200_000.0] {
            let slowdown = Slowdown::of(tick_ns, &ticks);
            assert_eq!((slowdown.share, slowdown.times()), (1.0, None));
        }
    }

    #[test]
    fn the_bearable_interval_leaves_four_fifths_to_the_program() {
        assert_eq!(bearable_interval_ns(15_000.0), 75_000);
        assert_eq!(bearable_interval_ns(100.0), SHORTEST_INTERVAL_NS);
    }
}
