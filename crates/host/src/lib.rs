//! The machine that a recording is made on: its facts, its processes, its capabilities, and the
//! error type of all sources.
//!
//! All sources use this crate, and no source uses another. `unsafe` code is limited to [`sys`].

#![deny(unsafe_code)]

mod access;
pub mod cgroup_memory_limit;
pub mod checks;
mod error;
mod facts;
pub mod heap_classes;
pub mod heap_peak;
mod jit_names;
pub mod maps;
pub mod memory_counters;
pub mod numa;
mod orphaned_memory;
pub mod process_tree;
pub mod program;
pub mod python_lines;
pub mod roi;
pub mod running_program;
pub mod sampled_run;
pub mod stolen_time;
#[allow(unsafe_code)]
pub mod sys;
pub mod unwind;

pub use access::FileAccess;
pub use error::{Error, ErrorKind, Result, without_system_numbers};
pub use facts::{facts, new_manifest, set_labels};
pub use jit_names::{add_jit_names, request_jit_names};
pub use orphaned_memory::{LOCK_FILE, lock_shared_memory, remove_orphans};
