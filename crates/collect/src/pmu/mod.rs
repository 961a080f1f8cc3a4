//! Source `pmu`: events the kernel and the processor count, through
//! `perf_event_open` alone.
//!
//! [`events`] turns names into attributes, [`record`] parses what the kernel
//! writes; both are pure.

pub mod abi;
pub(crate) mod checks;
pub mod counters;
pub mod data_src;
pub mod events;
pub mod ibs;
pub mod record;
pub mod ring;
mod run;
pub mod sample;
pub mod spe;
pub mod stat;
pub mod target;
