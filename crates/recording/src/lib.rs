//! The recording: a directory of Parquet parts and a manifest.
//!
//! ```text
//! NAME.mg/
//! ├── manifest.json             what was run, on what, what the events mean
//! ├── samples/part-000000.parquet
//! │           part-000001.parquet
//! │           .part-000002.parquet.tmp     being written; readers pass over it
//! └── series/ overflows/ overflow_blocks/ sites/ threads/ modules/ losses/ io/ io_owners/ io_devices/
//!     registers/ generated_code/ code_regions/ code_values/ frames/ region_spans/ events/ symbols/
//! ```
//!
//! A [`Writer`] gathers rows into parts and gives each its name by a rename when it is
//! complete. So the parts with names are whole, however the writer ends. Nothing is
//! forced to the disk: the guarantee is against a killed process, not against a power
//! cut. A [`Recording`] reads batches of rows and reports damaged parts as
//! [`Recording::problems`] instead of refusing the rest.
//!
//! This crate refuses to interpret rows and to append to a recording that
//! exists. A single file was rejected because a killed writer leaves it without
//! its index; a database because nothing else could read it as it is. The
//! schema is in `docs/format.md`.

#![forbid(unsafe_code)]

mod columns;
mod dictionary;
mod error;
mod group;
mod manifest_file;
mod numbers;
pub mod overflows;
mod part_reader;
mod part_writer;
pub mod private;
mod reader;
mod row;
mod selection;
mod sink;
pub mod stacks;
mod table_writer;
mod tables;
mod writer;

pub use error::{Error, ErrorKind, Result};
pub use numbers::Numbers;
pub use reader::{Recording, Rows};
pub use row::Row;
pub use selection::Selection;
pub use writer::{Table, Writer, add_table, amend};

/// Version of the format this crate writes; it reads this and older ones.
pub const FORMAT_VERSION: u32 = 1;

#[cfg(test)]
mod tests;

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
