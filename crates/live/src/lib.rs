//! Sources that observe programs as they run: `pmu`, events that the kernel and the
//! processor count and sample, through `perf_event_open` alone, and `clock`, data
//! addresses without a PMU.
//!
//! [`events`] turns names into attributes, [`stat`] counts, [`sample`] samples, [`clock`]
//! samples by a timer and derives addresses, [`uncore`] reads the counters outside the
//! cores. Decoding is the part of `memgauge-perf`. `unsafe` lives in [`sys`] alone.

#![deny(unsafe_code)]

mod checks;
pub mod clock;
pub mod counters;
pub mod events;
mod run;
pub mod sample;
pub mod stat;
#[allow(unsafe_code)]
pub mod sys;
pub mod target;
pub mod uncore;

pub use checks::checks;
pub use memgauge_host::{Error, ErrorKind, Result};
pub use memgauge_recording::overflows::OVERFLOWS_PER_SAMPLE;

use memgauge_host as host;

/// Why a recording is not whole.
#[derive(Clone, Debug)]
pub struct Unwritten {
    /// The first failure.
    pub why: String,
    /// Rows, of all tables, that are missing.
    pub lost_rows: u64,
}
