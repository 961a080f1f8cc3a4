//! Samples of events, precise where the processor supports it.
//!
//! ```text
//! attributes       which kernel attributes cause the fewest interrupts (pure)
//! open             events and rings of a recording: one ring for each CPU
//! session          polls: flush, drain ─► time_order ─► recorder ─► rows
//! attached_thread  one event in one running thread, with a ring of its own
//! decoder          from a record to a sample, for both
//! python           frames of Python, which a BPF program reads at each sample
//! budget           the period that meets an allowed overhead (pure); sample_cost measures
//! ```
//!
//! [`record`] samples a program from start to end, for `memgauge record -e`. Its events are
//! inherited, so it misses no thread's first instructions. [`AttachedThread`] gives its caller
//! control of each thread, for `memgauge top` and the library.
//!
//! Rejected: BPF programs that write the samples (of a PEBS batch they see only the last record), and
//! for recordings one ring for each thread (memory).

mod attached_thread;
mod attributes;
pub mod budget;
mod capabilities;
mod code;
mod data_sources;
mod decoder;
mod merger;
mod open;
mod process_code;
mod process_table;
mod python;
mod recorder;
mod reference_counters;
mod resctrl;
mod roi;
pub mod roi_marks;
mod sample_cost;
mod session;
mod throttling;
mod time_order;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use memgauge_trace::{
    CommandEnd, DerivationFacts, Loss, OverheadFacts, OwnCost, PebsFacts, SourceKind,
};

pub use attached_thread::{
    AttachedThread, DecodedSample, PlanOptions, SampleEvent, SamplingPlan, WakeEvent, WakeupPolicy,
};
pub(crate) use attributes::drop_one_feature;
pub use attributes::{
    DroppedFeature, PmuCapabilities, SampleRequest, SamplingAttr, SamplingMethod, SamplingRate,
    StackRequest, sampling_attr,
};
pub(crate) use capabilities::pmu_capabilities;
pub use data_sources::DataSourceSum;
pub use process_code::ProcessCode;
pub use sample_cost::SampleCost;
pub use session::record;

use super::Unwritten;
use super::events::Event;
use super::target::Target;
use memgauge_perf::abi::{kind, software};

/// Events to sample with [`record`], the programs to observe, and the output.
#[derive(Clone, Debug)]
pub struct SamplingOptions {
    /// The observed target.
    pub target: Target,
    /// A program to run while another target is observed. Recording stops when it ends.
    pub while_running: Option<Vec<String>>,
    /// The events, each with its rate.
    pub events: Vec<(Event, SamplingRate)>,
    /// Directory of the recording.
    pub output: PathBuf,
    /// Pages of each ring, a power of two.
    pub ring_pages: usize,
    /// Sample the general registers. If a sample has no data address, derive it from them and
    /// the code.
    pub registers: bool,
    /// Write the registers into the recording, one row each.
    pub keep_registers: bool,
    /// Sample the physical addresses of data if the user is allowed to.
    pub physical: bool,
    /// Record call stacks.
    pub stacks: Option<StackRequest>,
    /// Share of the observed CPU time that sampling may take, 0 to 1. Periods are adjusted to
    /// stay below it.
    pub overhead: Option<f64>,
    /// Sample whole CPUs and keep only the target's samples. This is also the fallback if the
    /// kernel cannot sample a single task.
    pub whole_processors: bool,
    /// Record overflows as times, for bandwidth over time.
    pub tracing: Option<Tracing>,
    /// Keep only samples taken inside these regions of interest. Empty keeps all.
    pub regions: Vec<String>,
    /// Name of the source in the recording.
    pub source: SourceKind,
    /// Facts about the run if it is one interval of a continuous collection.
    pub interval: Option<RunInterval>,
}

/// One of several runs that follow each other.
#[derive(Clone, Debug, Default)]
pub struct RunInterval {
    /// The run ends after this time, if nothing else ends it.
    pub length: Duration,
    /// [`SamplingOutcome::end_ns`] of the previous run.
    pub previous_end_ns: Option<u64>,
    /// A process that ends the run when it ends.
    pub ends_with: Option<u32>,
    /// Losses between the runs, which this recording states.
    pub losses: Vec<Loss>,
}

/// How overflows are recorded as blocks of times. One in [`crate::OVERFLOWS_PER_SAMPLE`] is also recorded
/// as a sample.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// Times may be rounded to multiples of this many nanoseconds; 1 keeps them exact.
    pub resolution_ns: u64,
    /// Bytes that an event stands for.
    pub bytes_per_event: u64,
    /// File with the counts of memory controllers, instead of this machine's counters.
    pub counters: Option<PathBuf>,
}

/// Default rate of an event.
pub fn default_rate(event: &Event) -> SamplingRate {
    match (event.attr.kind, event.attr.config) {
        (kind::SOFTWARE, software::CPU_CLOCK | software::TASK_CLOCK) => {
            SamplingRate::Period(1_000_000)
        }
        (kind::SOFTWARE | kind::TRACEPOINT | kind::BREAKPOINT, _) => SamplingRate::Period(1),
        // A prime, so that a loop is not always sampled at the same instruction.
        _ => SamplingRate::Period(20_011),
    }
}

/// Results for one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventOutcome {
    /// Its name.
    pub name: String,
    /// Samples in the recording.
    pub samples: u64,
    /// Number of events that the samples stand for: the sum of their periods.
    pub periods: u64,
    /// Samples with a data address.
    pub with_address: u64,
    /// Number of events that its counters counted.
    pub counted: u64,
    /// Number of samples lost because a ring was full, as counted by the kernel.
    pub lost: u64,
    /// Number of times the kernel stopped the event because it took too many samples.
    pub throttled: u64,
    /// Number of times its AUX packets were truncated.
    pub truncated: u64,
    /// Number of kernel samples that were dropped because only user space was requested.
    pub dropped_kernel: u64,
    /// Number of samples of other processes.
    pub of_others: u64,
    /// The period at the end of the run; 0 if the user set a frequency.
    pub period: u64,
    /// Cost of a sample to the program, if it was measured.
    pub cost: Option<SampleCost>,
}

/// Results of a run of [`record`].
#[derive(Clone, Debug, Default)]
pub struct SamplingOutcome {
    /// How the program ended; `None` if memgauge started none.
    pub end: Option<CommandEnd>,
    /// Results by event, in the order of [`SamplingOptions::events`].
    pub events: Vec<EventOutcome>,
    /// Number of samples by how their data address was derived; `None` without
    /// [`SamplingOptions::registers`].
    pub derivations: Option<DerivationFacts>,
    /// Samples by the name of their data source.
    pub data_sources: BTreeMap<String, DataSourceSum>,
    /// Fill level of the processor's PEBS buffer; `None` if no event uses it.
    pub pebs: Option<PebsFacts>,
    /// Overhead of sampling; `None` without [`SamplingOptions::overhead`].
    pub overhead: Option<OverheadFacts>,
    /// When sampling ended, on `CLOCK_MONOTONIC`.
    pub end_ns: u64,
    /// Losses of the run.
    pub losses: Vec<Loss>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Cost of memgauge itself.
    pub cost: OwnCost,
    /// Missing parts of the recording; `None` if it was written in full.
    pub unwritten: Option<Unwritten>,
}
