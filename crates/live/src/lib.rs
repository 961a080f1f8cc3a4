//! Sources that observe running programs through `perf_event_open`: `pmu`, which counts and
//! samples events of the kernel and the processor, and `clock`, which finds data addresses without
//! a PMU.
//!
//! [`events`] resolves names, [`stat`] counts, [`sampling`] samples, [`clock`] samples by a timer
//! and derives addresses, [`uncore`] reads the counters outside the cores. `memgauge-perf` decodes
//! the kernel's records. Only [`sys`] has `unsafe` code.

#![deny(unsafe_code)]

mod checks;
pub mod clock;
pub mod counters;
pub mod events;
mod run;
pub mod sampling;
pub mod stat;
#[allow(unsafe_code)]
pub mod sys;
pub mod target;
pub mod uncore;

pub use checks::checks;
pub use memgauge_host::{Error, ErrorKind, Result};
pub use memgauge_recording::overflows::OVERFLOWS_PER_SAMPLE;

use memgauge_host as host;

/// Why a recording is incomplete.
#[derive(Clone, Debug)]
pub struct Unwritten {
    /// The first failure.
    pub why: String,
    /// Number of missing rows in all tables.
    pub lost_rows: u64,
}
