//! Miss-rate curves: how many misses a least-recently-used memory of any size has.
//!
//! [`Exact`] finds the stack distance of every reference. [`Sampled`] counts short distances
//! exactly and estimates long ones from a sample of the blocks. Both give a [`Curve`].
//! [`divide`] divides memory between programs by their curves. [`simulate`] counts the misses of
//! other eviction policies, at chosen sizes. [`Footprint`] has the page-fault curve of a running
//! program, and [`divide_by_faults`] divides memory by such curves.
//!
//! # How it is fast
//!
//! ```text
//!              other blocks                  last times         distances
//! addresses ─► stack_top ───────► last_times ───────────► ranks ────────► histogram
//!              (4 newest blocks)  (hash table)            (bitmap)
//! ```
//!
//! Every stage but the first accesses memory at random. The stages therefore work on batches
//! of 64 references and prefetch the cache lines of a batch one stage ahead. `last_times`
//! stores a block in eight bytes. `ranks` counts the blocks referenced after a given time
//! with one population count and six counters. `sys` has the vector instructions, in three
//! variants with equal results.
//!
//! [`Parallel`] spreads the same work over several threads and keeps one table per half or
//! quarter of the blocks. [`join_partitions`] combines the curves of disjoint partitions of
//! the blocks. [`TracePart`] is a part of a stream that is divided by time, which merges with
//! its neighbours, and [`SampledPart`] a sample of such a part. [`Phases`] joins similar windows of a run.
//!
//! The crate makes no system calls except to start and synchronise threads. A caller that can
//! ask for large pages does so in [`Advise`].
//!
//! Rejected: trees, because each reference follows a chain of dependent cache misses.
//! Rejected: a table of 16-byte entries at half load, because it takes twice the memory and
//! fewer of its lines stay in the caches.

#![deny(unsafe_code)]

mod batch;
mod block_partitions;
mod chunk;
mod curve;
mod distinct;
mod exact;
mod fault_division;
mod filter;
mod footprint;
mod histogram;
mod last_times;
mod memory_division;
#[cfg(test)]
mod oracle;
mod page_use;
mod pages;
mod parallel;
mod phases;
mod policies;
mod ranks;
mod sampled;
mod sampled_part;
mod short_distances;
mod stack_top;
#[allow(unsafe_code)]
mod sys;
mod table_part;
#[cfg(test)]
mod tests;
mod trace_part;
mod wide_references;
mod workers;

pub use block_partitions::{join_partitions, partition_of};
pub use curve::{Curve, Difference, Knee, sizes};
pub use exact::{Exact, Full, Settings};
pub use fault_division::{FaultDivision, MemoryShare, TooLittleMemory, divide_by_faults};
pub use footprint::{Epoch, EpochInterval, FaultRate, Footprint, SizeFor, WindowUse};
pub use histogram::Distances;
pub use memory_division::{Division, Method, divide};
pub use page_use::{
    HeatColumn, HeatRow, Mapping, PageHistory, PageUse, RegionUse, SLICES, TableBits, TableUse,
};
pub use pages::Advise;
pub use parallel::Parallel;
pub use phases::{Monitor, Phase, Phases, WindowMisses};
pub use policies::{
    CacheRequest, Estimated, Miniature, Misses, Policy, RequestKind, RequestTrace, TooManyRequests,
    simulate,
};
pub use sampled::{Estimate, Sampled, Sampling};
pub use sampled_part::{SampledPart, SampledPartBuilder};
pub use sys::Vectors;
pub use trace_part::{PartError, TracePart, TracePartBuilder};
pub use wide_references::feed_blocks;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
