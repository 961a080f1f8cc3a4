//! Miss-rate curves: how many misses a least-recently-used memory of any size has.
//!
//! [`Exact`] finds every reference's stack distance; [`Sampled`] finds short ones of
//! every reference and long ones of a sample of the blocks. Both give a [`Curve`], and
//! [`divide`] divides memory by curves.
//!
//! # How it is fast
//!
//! ```text
//!              blocks not at the top          when last         distances
//! addresses ─► top ─────────────────► times ────────────► ranks ────────► histogram
//!              (4 hottest blocks)     (hash table)        (bitmap)
//! ```
//!
//! Every stage but the first touches memory at random, so they work on a batch of 64
//! references at a time. Its cache lines are asked for a stage ahead. `times` holds a
//! block in eight bytes; `ranks` counts the last times after a given one with one
//! population count and six counters; `sys` has the vector instructions, in three
//! variants that do the same.
//!
//! [`Parallel`] does the same in several threads, with a table for each half or quarter
//! of the blocks. A free thread takes the next work there is. Curves of disjoint
//! partitions of the blocks combine in [`join_partitions`], and [`Phases`] joins
//! windows of a run that are alike.
//!
//! No operating system is called but for threads: a caller that can ask for large pages
//! does so in [`Advise`]. Rejected: trees, which are a chain of dependent cache misses
//! for each reference. Rejected: a table of 16-byte entries at half load, which takes
//! twice the memory and keeps fewer of its lines in the caches.

#![deny(unsafe_code)]

mod batch;
mod block_partitions;
mod chunk;
mod curve;
mod distinct;
mod exact;
mod filter;
mod histogram;
mod last_times;
mod memory_division;
#[cfg(test)]
mod oracle;
mod pages;
mod parallel;
mod phases;
mod ranks;
mod sampled;
mod short_distances;
mod stack_top;
#[allow(unsafe_code)]
mod sys;
mod table_part;
#[cfg(test)]
mod tests;
mod workers;

pub use block_partitions::{join_partitions, partition_of};
pub use curve::{Curve, Difference, Knee, sizes};
pub use exact::{Exact, Full, Settings};
pub use histogram::Distances;
pub use memory_division::{Division, Method, divide};
pub use pages::Advise;
pub use parallel::Parallel;
pub use phases::{Monitor, Phase, Phases};
pub use sampled::{Estimate, Sampled, Sampling};
pub use sys::Vectors;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
