//! The machine that a recording is made on: facts about it, its processes, what it
//! offers, and the one error of all sources.
//!
//! Every source uses this crate; no source sees another. `unsafe` lives in [`sys`] alone.

#![deny(unsafe_code)]

mod access;
pub mod check;
mod error;
mod facts;
pub mod maps;
pub mod memory_counters;
pub mod nodes;
mod orphans;
pub mod program;
pub mod regions;
pub mod run;
pub mod sampled;
pub mod stolen;
#[allow(unsafe_code)]
pub mod sys;
pub mod unwind;

pub use access::Access;
pub use error::{Error, ErrorKind, Result, without_system_numbers};
pub use facts::{beginning, facts};
pub use orphans::{LOCK_FILE, lock_shared_memory, remove_orphans};
