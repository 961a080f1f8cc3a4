//! Facts that a source knows of the whole run besides its rows: counters' totals, the
//! kernel's losses, how data addresses were found.
//!
//! Facts are in the manifest, which a recorder completes when it ends. A reader takes
//! from the rows what they say and from here what they cannot say. Version 0.1 kept
//! some of them under composed names among the totals; those are read into these types
//! when a recording is opened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::EventId;

/// Facts of a sampled run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingFacts {
    /// The sampled events, in the order typed.
    pub events: Vec<SampledFacts>,
    /// Samples by how their data address was rebuilt, where that was wanted.
    pub derivations: Option<DerivationFacts>,
    /// Where data came from, in the source's words.
    pub sources: Vec<DataFromFacts>,
    /// PEBS: what waited in the processor's buffer.
    pub pebs: Option<PebsFacts>,
    /// Overhead of sampling, where it was limited.
    pub overhead: Option<OverheadFacts>,
    /// Sentences about what was given up, and why.
    pub notes: Vec<String>,
}

/// One sampled event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SampledFacts {
    /// The event.
    pub event: EventId,
    /// Its samples: rows of `samples`, or overflows where their times are kept.
    pub samples: u64,
    /// Samples with a data address.
    pub with_address: u64,
    /// Events that the samples stand for: the sum of their periods.
    pub stood_for: u64,
    /// Events that the counters counted meanwhile; `None` where they were not read.
    pub counted: Option<u64>,
    /// Samples lost for want of room, by the kernel's count.
    pub lost: u64,
    /// Times that the kernel stopped sampling for being too fast.
    pub throttled: u64,
    /// The period at the end; `None` where a frequency was asked for.
    pub last_period: Option<u64>,
    /// Nanoseconds that a sample takes from the program, where that was measured.
    pub sample_ns: Option<f64>,
    /// Whether a timer stood in for the event when that was measured.
    pub sample_ns_by_timer: bool,
}

/// Samples by how their data address was rebuilt from registers and code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DerivationFacts {
    /// From an operand of the sampled instruction.
    pub exact: u64,
    /// From an operand of the previous instruction.
    pub previous: u64,
    /// From an operand of an instruction ahead.
    pub next: u64,
    /// Not: no operand in memory near.
    pub no_operand: u64,
    /// Not: registers overwritten, or not in the sample.
    pub no_registers: u64,
    /// Not: relative to FS or GS, whose bases samples lack.
    pub no_base: u64,
    /// Not: the code could not be read.
    pub no_code: u64,
}

impl DerivationFacts {
    /// All samples.
    pub fn all(&self) -> u64 {
        self.with_address() + self.no_operand + self.no_registers + self.no_base + self.no_code
    }

    /// Derivations that found an address.
    pub fn with_address(&self) -> u64 {
        self.exact + self.previous + self.next
    }
}

/// Samples whose data came from one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataFromFacts {
    /// The source in words.
    pub words: String,
    /// Samples.
    pub samples: u64,
    /// Sum of their latencies in cycles.
    pub latency_cycles: u64,
}

/// How many records waited in the processor's own buffer when it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PebsFacts {
    /// Looks.
    pub looks: u64,
    /// Records that waited, all together.
    pub records: u64,
    /// The most that waited at once.
    pub most: u64,
}

/// Share of the program's time that sampling took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverheadFacts {
    /// Part of the observed time that was allowed, 0 to 1.
    pub allowed: f64,
    /// Part that it took: samples times their measured cost, and memgauge's time.
    pub taken: f64,
    /// Processor time observed, in nanoseconds.
    pub observed_ns: u64,
    /// Times that periods were changed.
    pub changes: u64,
}

/// Results of `memgauge stat`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountingFacts {
    /// Whether all that ran on the processors was counted, idle time included.
    pub whole_machine: bool,
    /// Nanoseconds observed, on the recording's clock.
    pub wall_ns: u64,
    /// The events, in the order typed.
    pub counters: Vec<CounterFacts>,
    /// Events that were not counted.
    pub unsupported: Vec<UnsupportedFacts>,
    /// Events counted in user space only, for want of rights.
    pub user_only: Vec<String>,
    /// How the timer of a series did; `None` without a series.
    pub ticks: Option<TickFacts>,
    /// Rows of the series: one for each thread or processor and tick.
    pub rows: u64,
    /// Processes and threads seen.
    pub threads: u64,
    /// Sentences about how it was counted.
    pub notes: Vec<String>,
    /// Seconds that memgauge ran in user mode.
    pub own_user_s: f64,
    /// Seconds that it ran in the kernel.
    pub own_system_s: f64,
}

/// One counter's total.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CounterFacts {
    /// The event; its rows in `series` have the same id.
    pub event: EventId,
    /// Its name.
    pub name: String,
    /// The total, scaled up where it was counted only a part of the time.
    pub value: u64,
    /// Count as the kernel counted it.
    pub counted: u64,
    /// Part of the time it was counted, 0 to 1.
    pub share_counted: f64,
    /// Value of one count, in `unit`.
    pub scale: f64,
    /// Unit of the scaled value, for PMUs that name one.
    pub unit: String,
    /// Whether it counts the whole machine, not the target.
    pub machine_wide: bool,
}

/// An event that was not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsupportedFacts {
    /// Its name.
    pub name: String,
    /// Why not.
    pub why: String,
}

/// How well the timer of a series kept its promise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TickFacts {
    /// The timer's event in `series`.
    pub event: EventId,
    /// Length of an interval as asked for.
    pub interval_ns: u64,
    /// Ticks that arrived.
    pub seen: u64,
    /// Ticks that the running time has room for.
    pub expected: u64,
    /// Records that rings had no room for.
    pub lost: u64,
    /// Ticks that neither came nor were lost.
    pub late: u64,
    /// Times the kernel stopped the timer for being too fast.
    pub throttled: u64,
    /// Part of the running time in which the kernel had stopped the timer and its counters.
    pub stopped_ns: u64,
    /// Time on processors while the timers were on.
    pub running_ns: u64,
    /// Median of the gaps between ticks.
    pub median_gap_ns: Option<u64>,
    /// The gap that 99 in 100 do not exceed.
    pub p99_gap_ns: Option<u64>,
    /// Time of a tick of the bare timer here, where it was measured.
    pub bare_tick_ns: Option<f64>,
    /// Time of a tick with its record here, measured before the start.
    #[serde(default)]
    pub tick_ns: Option<f64>,
    /// Threads and processes that started during the run and inherited the counters.
    pub tasks_started: u64,
    /// Cost of inheriting the counters, for one thread or process; `None` if the counters are
    /// not inherited or the cost could not be measured.
    pub task_cost: Option<TaskCostFacts>,
}

/// Cost of inherited counters for each thread or process that starts, measured before the run
/// with the run's own counters. In nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskCostFacts {
    /// Time that the counters add to a start and an exit.
    pub added_ns: f64,
    /// Time that a task runs on during its exit after its timers have ended, so that
    /// `running_ns` does not include it.
    pub uncounted_ns: f64,
}

/// Above this share no slowdown is given. The costs are known to about 10 %, so the slowdown
/// could be anything from 5 upwards.
const MAX_SHARE_WITH_SLOWDOWN: f64 = 0.9;

impl TickFacts {
    /// Estimated share of the CPU time that counting took, 0 to 1: ticks, and the counters of
    /// threads and processes that started.
    pub fn share_taken(&self) -> Option<f64> {
        let ticks_ns = self.tick_ns? * (self.seen + self.lost) as f64;
        Some(self.share_of_cpu_time(ticks_ns + self.started_tasks_ns()))
    }

    /// The part of [`share_taken`](Self::share_taken) that inherited counters took; `None` if
    /// no thread or process started, or the cost is unknown.
    pub fn share_of_started_tasks(&self) -> Option<f64> {
        let is_known = self.task_cost.is_some() && self.tasks_started > 0;
        is_known.then(|| self.share_of_cpu_time(self.started_tasks_ns()))
    }

    /// CPU time of the observed programs as a multiple of their CPU time without counting;
    /// `None` if counting took nearly all of it.
    pub fn slowdown(&self) -> Option<f64> {
        let share = self.share_taken()?;
        (share < MAX_SHARE_WITH_SLOWDOWN).then(|| 1.0 / (1.0 - share))
    }

    fn started_tasks_ns(&self) -> f64 {
        self.task_cost
            .map_or(0.0, |cost| cost.added_ns * self.tasks_started as f64)
    }

    fn share_of_cpu_time(&self, ns: f64) -> f64 {
        let uncounted_ns = self.task_cost.map_or(0.0, |cost| cost.uncounted_ns);
        let cpu_ns = self.running_ns as f64 + uncounted_ns * self.tasks_started as f64;
        (ns / cpu_ns.max(1.0)).min(1.0)
    }
}

/// Delivery of overflows as records, where they are kept as times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryFacts {
    /// Events after the last overflow of each counter.
    pub rest: u64,
    /// Records delivered.
    pub records: u64,
    /// Times the program was stopped for one.
    pub stops: u64,
    /// Times the buffer was changed.
    pub swaps: u64,
    /// Cycles that it took, of a modelled machine; `None` where it is not known.
    pub cycles: Option<u64>,
}

/// Facts of a run of which some cache sets were followed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetsFacts {
    /// One class of sets in so many was followed.
    pub one_in: u32,
    /// Number of the choice of classes.
    pub seed: u64,
    /// Sums over all sets, by event name; `dram.bytes` is both directions.
    pub estimates: BTreeMap<String, EstimatedFacts>,
    /// Lines that crowd in few sets of the first level.
    pub crowds: CrowdFacts,
    /// The same of the levels below.
    pub far_crowds: CrowdFacts,
}

/// Lines that crowd in few sets, by looks at all sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CrowdFacts {
    /// About how often they were touched.
    pub lines: u64,
    /// Of these in the followed sets.
    pub followed: u64,
    /// How far `lines - one_in * followed` may be off in 95 of 100 runs.
    pub error: u64,
}

impl CrowdFacts {
    /// How many touches an estimate from one set in so many may lack, at least and at most:
    /// below zero, it may have too many.
    pub fn missing(&self, one_in: u32) -> (f64, f64) {
        let off = self.lines as f64 - f64::from(one_in) * self.followed as f64;
        let error = self.error as f64;
        (off - error, off + error)
    }
}

impl SetsFacts {
    /// Whether numbers of lines are estimates: not where all sets were followed.
    pub fn estimates_any(&self) -> bool {
        self.one_in > 1
    }
}

/// A number estimated from a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EstimatedFacts {
    /// The estimate.
    pub value: u64,
    /// Lower end of the 95 % confidence interval.
    pub low: u64,
    /// Upper end.
    pub high: u64,
    /// Part of what was seen that one class alone has, 0 to 1.
    pub largest_share: f64,
}

impl EstimatedFacts {
    /// How far the farther end of the interval is from the value, as a part of it; `None` of
    /// nothing.
    pub fn relative_error(&self) -> Option<f64> {
        let far = self
            .value
            .abs_diff(self.low)
            .max(self.value.abs_diff(self.high));
        (self.value > 0).then(|| far as f64 / self.value as f64)
    }
}

/// Facts of an imported file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImportFacts {
    /// Records by kind, numbered as the kernel does.
    pub records: BTreeMap<u32, u64>,
    /// Rows of counters' values in samples.
    pub series_rows: u64,
    /// Parts of the file that could not be read, in words.
    pub problems: Vec<String>,
    /// What files of that kind do not have, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
}

/// A table as the recorder left it, so that a reader notices what is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableFacts {
    /// Its parts.
    pub parts: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowdown_is_the_share_of_the_time_that_ticks_took() {
        let of = |tick_ns| TickFacts {
            seen: 90,
            lost: 10,
            running_ns: 10_000_000,
            tick_ns: Some(tick_ns),
            ..TickFacts::default()
        };
        // A hundred ticks of 25 us are a quarter of 10 ms: the rest would take 7.5 ms.
        let quarter = of(25_000.0);
        assert_eq!(quarter.share_taken(), Some(0.25));
        assert!((quarter.slowdown().unwrap() - 10.0 / 7.5).abs() < 1e-9);
        // Ticks as long as the interval, or measured longer: nothing is left over.
        for ticks in [of(100_000.0), of(200_000.0)] {
            assert_eq!((ticks.share_taken(), ticks.slowdown()), (Some(1.0), None));
        }
        assert_eq!(TickFacts::default().slowdown(), None);
    }

    #[test]
    fn slowdown_includes_the_counters_of_started_threads() {
        // 2 ms of ticks and 40 × 50 µs of inherited counters are half of the CPU time:
        // 7 ms that the timers counted, and 40 × 25 µs that they did not.
        let facts = TickFacts {
            seen: 100,
            running_ns: 7_000_000,
            tick_ns: Some(20_000.0),
            tasks_started: 40,
            task_cost: Some(TaskCostFacts {
                added_ns: 50_000.0,
                uncounted_ns: 25_000.0,
            }),
            ..TickFacts::default()
        };
        assert_eq!(facts.share_taken(), Some(0.5));
        assert_eq!(facts.share_of_started_tasks(), Some(0.25));
        assert_eq!(facts.slowdown(), Some(2.0));
    }
}
