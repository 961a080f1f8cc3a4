//! `memgauge record -e`: samples of events, precise where the processor has it.
//!
//! ```text
//! attributes  what to ask for, so that as little as possible interrupts (pure)
//! open        events and rings: a ring a processor
//! session     ── round: flush, drain ─► order ─► recorder ─► rows
//! budget      a period for an overhead that the user allows (pure); cost measures
//! ```
//!
//! Rejected: BPF programs on samples (of a PEBS batch they see the last record
//! only), and one ring a thread (memory).

pub mod attached;
mod attributes;
pub mod budget;
mod code;
mod cost;
mod decode;
mod facilities;
mod finish;
mod follow;
pub mod marks;
mod mbm;
mod open;
mod order;
mod process_code;
mod recorder;
mod reference;
mod regions;
mod renew;
mod session;
mod sources;
mod stopped;

use std::collections::BTreeMap;
use std::path::PathBuf;

use memgauge_trace::{CommandEnd, DerivationFacts, Loss, OverheadFacts, OwnCost, PebsFacts};

pub(crate) use attributes::relaxed;
pub use attributes::{
    Built, Facilities, GivenUp, Method, Rate, SampleRequest, StackRequest, attribute,
};
pub use cost::SampleCost;
pub(crate) use facilities::facilities;
pub use session::record;

use super::Unwritten;
use super::events::Event;
use super::target::Target;
use memgauge_perf::abi::{kind, software};

/// Events to sample, and how often.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target.
    pub target: Target,
    /// A program that runs while others are observed, and says when to stop.
    pub while_running: Option<Vec<String>>,
    /// The events, each with its rate.
    pub events: Vec<(Event, Rate)>,
    /// Directory of the recording.
    pub output: PathBuf,
    /// Pages of each ring, a power of two.
    pub ring_pages: usize,
    /// Ask for general registers, and rebuild the data address from them and the
    /// code where a sample has none.
    pub registers: bool,
    /// Write them into the recording, a row each.
    pub keep_registers: bool,
    /// Ask for the physical addresses of data, where that is allowed.
    pub physical: bool,
    /// Record call stacks.
    pub stacks: Option<StackRequest>,
    /// Part of the observed processor time that sampling may take; periods are
    /// changed to keep to it.
    pub overhead: Option<f64>,
    /// Sample whole processors and keep what is the target's: what happens by
    /// itself where the kernel cannot sample a task.
    pub whole_processors: bool,
    /// Keep overflows as times, for bandwidth over time.
    pub tracing: Option<Tracing>,
    /// Keep only samples taken inside these regions of interest; empty: all.
    pub regions: Vec<String>,
    /// Name of the source in the recording.
    pub source: &'static str,
}

/// How overflows are kept as times in blocks, with one in [`crate::OVERFLOWS_PER_SAMPLE`] as a
/// sample.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// Longest step that times may be rounded to, nanoseconds; 1: exact.
    pub resolution_ns: u64,
    /// Bytes that an event stands for.
    pub bytes_per_event: u64,
    /// Counts of memory's controllers from a file in place of this machine's.
    pub counters: Option<PathBuf>,
}

/// The rate of an event that was named without one.
pub fn usual_rate(event: &Event) -> Rate {
    match (event.attr.kind, event.attr.config) {
        (kind::SOFTWARE, software::CPU_CLOCK | software::TASK_CLOCK) => Rate::Period(1_000_000),
        (kind::SOFTWARE | kind::TRACEPOINT | kind::BREAKPOINT, _) => Rate::Period(1),
        // A prime, so that loops are not sampled at one place.
        _ => Rate::Period(20_011),
    }
}

/// Results of an event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventOutcome {
    /// Its name.
    pub name: String,
    /// Samples in the recording.
    pub samples: u64,
    /// Sum of their periods: events they stand for.
    pub periods: u64,
    /// Samples with a data address.
    pub with_address: u64,
    /// Events that its counters counted meanwhile.
    pub counted: u64,
    /// Samples that no ring had room for, by the kernel's count.
    pub lost: u64,
    /// Times the kernel stopped it for being too fast.
    pub throttled: u64,
    /// Times its packets were cut off.
    pub cut: u64,
    /// Samples of the kernel that were not wanted.
    pub dropped_kernel: u64,
    /// Samples of processes that are not the target.
    pub of_others: u64,
    /// The period at the end; 0 where a frequency was asked for.
    pub period: u64,
    /// Cost of a sample to the program, where it was measured.
    pub cost: Option<SampleCost>,
}

/// Results of the run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// How the program ended; `None` where none was started.
    pub end: Option<CommandEnd>,
    /// Event by event, in the order typed.
    pub events: Vec<EventOutcome>,
    /// Samples by how their address was rebuilt, where that was wanted.
    pub derivations: Option<DerivationFacts>,
    /// Data sources in words: samples, and the sum of their latencies in cycles.
    pub sources: BTreeMap<String, (u64, u64)>,
    /// PEBS: what waited in the processor's buffer.
    pub batches: Option<PebsFacts>,
    /// Overhead of sampling, where it was limited.
    pub overhead: Option<OverheadFacts>,
    /// Losses of the run.
    pub losses: Vec<Loss>,
    /// Things to tell the user.
    pub notes: Vec<String>,
    /// Cost of memgauge itself.
    pub cost: OwnCost,
    /// The part that is missing in the recording, where it could not be written in
    /// full.
    pub unwritten: Option<Unwritten>,
}
