//! Memory that running processes use, by pages, without a PMU.
//!
//! The processor sets an accessed bit in the page table when it uses a page. [`observe`] clears
//! these bits at the start of an epoch and counts the used pages at ages from 20 ms to the longest
//! one. [`memgauge_mrc::Footprint`] computes page-fault rates from the counts.
//!
//! The bits are cleared by writing to `/proc/PID/clear_refs`. [`AccessedBitSource`] is how they are
//! read: from the page tables by a BPF program, or from `/proc/PID/smaps_rollup` where that does
//! not work. Files read with `read()` do not pass through the page table, so they are not seen. A
//! huge page has one bit for 2 MiB.
//!
//! Rejected: paging out a sample of the pages and waiting for their return (`MADV_PAGEOUT`), because
//! it slows the target and needs swap. Rejected: idle page tracking and DAMON for virtual addresses,
//! because few kernels are built with them.

#![deny(unsafe_code)]

mod check;
mod page_tables;
mod process;
mod rollup;
mod session;
mod source;
#[allow(unsafe_code)]
mod sys;
mod working_set;

pub use check::check;
pub use page_tables::PageTables;
pub use process::{ObservedProcess, pids_of_cgroup};
pub use rollup::MemoryUse;
pub use session::{End, Observation, Observed, Settings, observe};
pub use source::{AccessedBitSource, SourceChoice};
pub use working_set::{WorkingSet, WorkingSets};
