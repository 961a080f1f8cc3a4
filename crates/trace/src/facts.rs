//! Facts that a source knows about the whole run in addition to its rows: counter totals, losses in
//! the kernel, how data addresses were found.
//!
//! They are part of the manifest, which a recorder completes at the end. Readers use the rows where
//! possible and these facts for the rest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::EventId;

/// Facts about a sampled run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingFacts {
    /// The sampled events, in command line order.
    pub events: Vec<SampledFacts>,
    /// Samples by how their data address was derived, if this was requested.
    pub derivations: Option<DerivationFacts>,
    /// Samples by data source, as reported.
    pub sources: Vec<DataFromFacts>,
    /// PEBS: records found in the processor's buffer.
    pub pebs: Option<PebsFacts>,
    /// Overhead of sampling, if it was limited.
    pub overhead: Option<OverheadFacts>,
    /// Messages about what was dropped, and why.
    pub notes: Vec<String>,
}

/// One sampled event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SampledFacts {
    /// The event.
    pub event: EventId,
    /// Number of its samples: rows of `samples`, or overflows if only their times are kept.
    pub samples: u64,
    /// Samples with a data address.
    pub with_address: u64,
    /// Number of events that the samples stand for: the sum of their periods.
    pub stood_for: u64,
    /// Number of events that the counters counted in the same time; `None` if they were not read.
    pub counted: Option<u64>,
    /// Samples lost for lack of space, as counted by the kernel.
    pub lost: u64,
    /// Number of times the kernel throttled sampling.
    pub throttled: u64,
    /// Period at the end; `None` if a frequency was requested.
    pub last_period: Option<u64>,
    /// Cost of a sample for the program in nanoseconds, if it was measured.
    pub sample_ns: Option<f64>,
    /// True if it was measured with a timer instead of the event.
    pub sample_ns_by_timer: bool,
}

/// Samples by how their data address was derived from registers and code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DerivationFacts {
    /// From an operand of the sampled instruction.
    pub exact: u64,
    /// From an operand of the previous instruction.
    pub previous: u64,
    /// From an operand of a following instruction.
    pub next: u64,
    /// Not derived: no memory operand nearby.
    pub no_operand: u64,
    /// Not derived: registers overwritten or missing in the sample.
    pub no_registers: u64,
    /// Not derived: relative to FS or GS, whose bases are not sampled.
    pub no_base: u64,
    /// Not derived: the code could not be read.
    pub no_code: u64,
}

impl DerivationFacts {
    /// Number of all samples.
    pub fn all(&self) -> u64 {
        self.with_address() + self.no_operand + self.no_registers + self.no_base + self.no_code
    }

    /// Number of samples with a derived address.
    pub fn with_address(&self) -> u64 {
        self.exact + self.previous + self.next
    }
}

/// Samples with data from one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataFromFacts {
    /// Description of the source.
    pub words: String,
    /// Samples.
    pub samples: u64,
    /// Sum of their latencies in cycles.
    pub latency_cycles: u64,
}

/// Records that waited in the processor's own buffer whenever it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PebsFacts {
    /// Number of reads.
    pub looks: u64,
    /// Total number of waiting records.
    pub records: u64,
    /// Maximum number of records waiting at once.
    pub most: u64,
}

/// Share of the program's time used by sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverheadFacts {
    /// Allowed share of the observed time, 0 to 1.
    pub allowed: f64,
    /// Actual share: samples times their measured cost, plus memgauge's own time.
    pub taken: f64,
    /// Observed CPU time in nanoseconds.
    pub observed_ns: u64,
    /// Number of changes of periods.
    pub changes: u64,
}

/// Results of `memgauge stat`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CountingFacts {
    /// True if everything on the CPUs was counted, including idle time.
    pub whole_machine: bool,
    /// Observed time in nanoseconds on the recording's clock.
    pub wall_ns: u64,
    /// The events, in command line order.
    pub counters: Vec<CounterFacts>,
    /// Events that could not be counted.
    pub unsupported: Vec<UnsupportedFacts>,
    /// Events counted in user space only, for lack of permission.
    pub user_only: Vec<String>,
    /// Accuracy of the timer of a series; `None` without a series.
    pub ticks: Option<TickFacts>,
    /// Rows of the series: one per thread or CPU and tick.
    pub rows: u64,
    /// Number of processes and threads.
    pub threads: u64,
    /// Messages about the counting.
    pub notes: Vec<String>,
    /// CPU seconds of memgauge in user mode.
    pub own_user_s: f64,
    /// CPU seconds of memgauge in the kernel.
    pub own_system_s: f64,
}

/// Total of one counter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CounterFacts {
    /// The event. Its rows in `series` have the same ID.
    pub event: EventId,
    /// Its name.
    pub name: String,
    /// The total, scaled up if it was counted for only a part of the time.
    pub value: u64,
    /// Count reported by the kernel.
    pub counted: u64,
    /// Share of the time in which it was counted, 0 to 1.
    pub share_counted: f64,
    /// Value of one count in `unit`.
    pub scale: f64,
    /// Unit of the scaled value, if the PMU specifies one.
    pub unit: String,
    /// True if it counts the whole machine instead of the target.
    pub machine_wide: bool,
}

/// An event that could not be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsupportedFacts {
    /// Name of the event.
    pub name: String,
    /// Reason.
    pub why: String,
}

/// Accuracy of the timer of a series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TickFacts {
    /// The timer's event in `series`.
    pub event: EventId,
    /// Requested length of an interval.
    pub interval_ns: u64,
    /// Number of ticks that arrived.
    pub seen: u64,
    /// Number of ticks that fit into the running time.
    pub expected: u64,
    /// Records lost because rings were full.
    pub lost: u64,
    /// Ticks that neither arrived nor were lost.
    pub late: u64,
    /// Number of times the kernel throttled the timer.
    pub throttled: u64,
    /// Running time in which the kernel had stopped the timer and its counters.
    pub stopped_ns: u64,
    /// CPU time while the timers were enabled.
    pub running_ns: u64,
    /// Median gap between ticks.
    pub median_gap_ns: Option<u64>,
    /// 99th percentile of the gaps between ticks.
    pub p99_gap_ns: Option<u64>,
    /// Time of a tick of a timer without output on this machine, if it was measured.
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

/// Delivery of overflows as records, if only their times are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryFacts {
    /// Events after the last overflow, summed over the counters.
    pub rest: u64,
    /// Records delivered.
    pub records: u64,
    /// Number of times the program was stopped for a record.
    pub stops: u64,
    /// Number of times the buffer was replaced.
    pub swaps: u64,
    /// Cycles that the delivery took on a modelled machine; `None` if unknown.
    pub cycles: Option<u64>,
}

/// Data about a run in which only some cache sets were modelled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetsFacts {
    /// One in this many classes of sets was modelled.
    pub one_in: u32,
    /// Seed of the choice of classes.
    pub seed: u64,
    /// Sums over all sets by event name. `dram.bytes` includes both directions.
    pub estimates: BTreeMap<String, EstimatedFacts>,
    /// First-level misses of all sets during short looks.
    pub looks: LookFacts,
    /// Lines that share few sets of the other levels.
    pub far_crowds: CrowdFacts,
}

/// First-level misses of all sets during short looks, scaled to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LookFacts {
    /// Number of looks.
    pub looks: u64,
    /// Misses in all sets. This is too high, because a look begins without the lines that the cache
    /// has by then.
    pub misses: u64,
    /// Misses in the modelled sets. This is too high to the same degree.
    pub followed: u64,
    /// Half the 95 % interval of `misses - one_in * followed`, from the spread between looks.
    pub error: u64,
}

impl LookFacts {
    /// Number of misses that are missing in the modelled sets times `one_in`. Negative if they have
    /// too many.
    pub fn missing(&self, one_in: u32) -> f64 {
        self.misses as f64 - f64::from(one_in) * self.followed as f64
    }

    /// Ends of the 95 % interval of [`missing`](Self::missing). `None` if the interval contains 0,
    /// because the looks then show no difference between the modelled sets and the others.
    pub fn unlike(&self, one_in: u32) -> Option<(f64, f64)> {
        let (missing, error) = (self.missing(one_in), self.error as f64);
        (missing.abs() > error).then_some((missing - error, missing + error))
    }
}

/// Lines that crowd into few sets, found in looks at all sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CrowdFacts {
    /// Approximate number of touches of these lines.
    pub lines: u64,
    /// Number of these in the modelled sets.
    pub followed: u64,
    /// Maximum error of `lines - one_in * followed` in 95 of 100 runs.
    pub error: u64,
}

impl CrowdFacts {
    /// Returns the minimum and maximum number of touches that an estimate from one in `one_in` sets
    /// misses. Negative if it has too many.
    pub fn missing(&self, one_in: u32) -> (f64, f64) {
        let off = self.lines as f64 - f64::from(one_in) * self.followed as f64;
        let error = self.error as f64;
        (off - error, off + error)
    }
}

impl SetsFacts {
    /// Returns whether numbers of lines are estimates, which is false if all sets were modelled.
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
    /// Upper end of the interval.
    pub high: u64,
    /// Largest share of one class in the seen events, 0 to 1.
    pub largest_share: f64,
}

impl EstimatedFacts {
    /// Returns the distance of the farther end of the interval relative to the value; `None` if the
    /// value is 0.
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
    /// Number of records by type, as numbered by the kernel.
    pub records: BTreeMap<u32, u64>,
    /// Rows with counter values from samples.
    pub series_rows: u64,
    /// Descriptions of the parts of the file that could not be read.
    pub problems: Vec<String>,
    /// Information that files of this format lack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
}

/// State of a completed table, so that a reader notices missing parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableFacts {
    /// Number of parts.
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
        // The ticks take as long as the interval, or were measured as longer, so no time is left.
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
