//! The recording: a directory with Parquet parts and a manifest.
//!
//! ```text
//! NAME.mg/
//! ├── manifest.json             what was run, on what, what the events mean
//! ├── samples/part-000000.parquet
//! │           part-000001.parquet
//! │           .part-000002.parquet.tmp     being written; readers pass over it
//! └── series/ overflows/ overflow_blocks/ sites/ threads/ modules/ losses/ io/ io_owners/ io_devices/
//!     registers/ generated_code/ python_lines/ code_regions/ code_values/ frames/ region_spans/ events/ symbols/
//! ```
//!
//! A [`Writer`] collects rows into parts and renames each part to its final name when it is
//! complete, so every named part is complete, however the writer ends. Nothing is synced to disk:
//! this protects against a killed process, not against a power failure. A [`Recording`] reads
//! batches of rows and reports damaged parts in [`Recording::problems`] instead of failing. [`pack`]
//! writes a recording as one file for upload, which a [`Recording`] reads in place.
//!
//! This crate does not interpret rows and does not append to an existing recording. Rejected: a
//! single file while recording, because a killed writer would leave it without an index. Rejected: a database,
//! because other tools could not read it directly. `docs/format.md` describes the schema.

#![forbid(unsafe_code)]

mod archive;
mod columns;
mod copies;
mod dictionary;
mod error;
mod file_names;
mod file_range;
mod group;
mod manifest_file;
mod numbers;
pub mod overflows;
mod pack;
mod part_reader;
mod part_writer;
pub mod private;
mod reader;
mod row;
pub mod sampled_sharing;
mod selection;
mod sink;
pub mod stacks;
mod storage;
mod table_writer;
mod tables;
mod writer;

pub use archive::is_recording;
pub use copies::{Copies, Copy};
pub use error::{Error, ErrorKind, Result};
pub use file_names::COPIES;
pub use manifest_file::read_manifest;
pub use numbers::Numbers;
pub use pack::pack;
pub use reader::{Batches, Recording, Rows};
pub use row::Row;
pub use selection::{Selection, Share};
pub use writer::{DetachedTable, Writer, add_table, amend};

/// Version of the format that this crate writes. It also reads older versions.
pub const FORMAT_VERSION: u32 = 1;

#[cfg(test)]
mod tests;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
