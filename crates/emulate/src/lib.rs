//! Source `emulate`: the program runs under memgauge's engine (QEMU user mode with a recorder in
//! it), which streams executed blocks and accesses, and a modelled machine turns them into events.
//!
//! It needs no PMU and runs on x86-64 Linux. All results are *modelled*: exact for the modelled
//! machine, but not a measurement of this one.
//!
//! Rejected designs: the model inside the emulator (it would take the emulated thread's time
//! although a second CPU is idle, and a crash would kill the program); writing accesses to disk (10
//! GB per second); the lower cache levels in a thread of their own (with two CPUs the program needs
//! one, and passing on misses cost more time than the second thread saved).

#![deny(unsafe_code)]

pub mod checks;
mod engine;
mod facts;
mod follow;
mod model;
mod readers;
mod run;
mod time;

use std::path::PathBuf;
use std::time::Duration;

use memgauge_machine::{Config, PmuConfig};
use memgauge_trace::CommandEnd;

pub use engine::allocators::{Allocator, AllocatorEffect, known_allocators};
pub use engine::launch::{Emulator, resolve, would_gain_rights};
pub use engine::session::SHARED_MEMORY_BYTES;
pub use memgauge_host::{Error, ErrorKind, Result};
pub use model::geometry;
pub use model::moves::{MoveAccesses, MovedPart, MovedVariable, ObjectAccess, SharedLayout};
pub use model::sets::SetSample;
pub use readers::parts::PartsBy;
pub use readers::sampled;
pub use readers::stream::{ReferenceBatch, StreamOptions, Streamed, stream};
pub use run::record;

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct Options {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Directory of the recording.
    pub output: PathBuf,
    /// Whether the program's standard output goes nowhere.
    pub discards_output: bool,
    /// The machine to model.
    pub machine: Config,
    /// Samples and ticks of its PMU.
    pub pmu: PmuConfig,
    /// Store overflows as times in blocks, rounded to at most this many nanoseconds (1 is exact),
    /// with one in [`memgauge_recording::overflows::OVERFLOWS_PER_SAMPLE`] as a sample. `None`
    /// stores all as samples.
    pub traces: Option<u64>,
    /// Model only some cache sets and estimate all from them.
    pub sets: Option<SetSample>,
    /// Other machines that are fed the same instructions and accesses. Not with `sets`, `regions`
    /// and `functions`.
    pub what_if: Vec<OtherMachine>,
    /// Seed of the program's random numbers. With `None` they differ between runs.
    pub seed: Option<u64>,
    /// Record the call stack of each sample.
    pub stacks: bool,
    /// Charge misses to data, too: to what these functions allocate, and to variables and
    /// mappings. Not with `sets`. The functions of [`known_allocators`] come first, then the ones
    /// that the user named.
    pub data: Option<Vec<Allocator>>,
    /// Count loads and stores by data, too. Only with `data`.
    pub counts_accesses: bool,
    /// Functions that are regions of interest: names of symbols, or patterns with `*`, `?` and
    /// `[…]`.
    pub functions: Vec<String>,
    /// Limit samples, series, counts and totals to these regions by name. Empty for the whole run.
    /// Caches and time also advance outside.
    pub regions: Vec<String>,
}

/// Another machine that is fed the recorded program.
#[derive(Clone, Debug)]
pub struct OtherMachine {
    /// The change, as the user gave it.
    pub name: String,
    /// The machine.
    pub config: Config,
    /// Layout of a type on this machine.
    pub layout: Option<SharedLayout>,
}

/// Result of a recording.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How the command ended.
    pub end: CommandEnd,
    /// Messages that the user should see at once.
    pub notes: Vec<String>,
    /// Requested regions and functions that no process had.
    pub missing: MissingNames,
}

/// Requested names that no process of a run had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingNames {
    /// Names of regions.
    pub regions: Vec<String>,
    /// Names of functions.
    pub functions: Vec<String>,
    /// Names of functions that exist but that no thread called.
    pub not_called: Vec<String>,
    /// Lines of functions that allocate or free.
    pub allocators: Vec<String>,
    /// Names of regions that there were.
    pub seen: Vec<String>,
}

/// Progress of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Wall time since the start.
    pub elapsed: Duration,
    /// Number of executed instructions.
    pub instructions: u64,
    /// Number of loads and stores.
    pub accesses: u64,
    /// Bytes to and from modelled memory.
    pub dram_bytes: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Number of processes so far.
    pub processes: u32,
    /// Number of threads so far.
    pub threads: u32,
}
