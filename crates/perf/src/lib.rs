//! Decoders of perf events: bytes in, borrowed views out.
//!
//! - [`abi`], [`record`] and [`ring`]: `perf_event_attr`, the records that the kernel
//!   writes, and the walk over a ring of them.
//! - [`data_src`], [`ibs`] and [`spe`]: where a sample's data came from, as the kernel, AMD and
//!   Arm encode it.
//! - [`perf_data`]: the file that `perf record` writes.
//! - [`mod@derive`]: a sample's data address from its registers and the code around it.
//! - [`builtin`]: the event names that every kernel knows.
//!
//! Everything here is pure: no system call, no clock. No decoder panics on damaged bytes, which fuzz
//! targets check. `memgauge-live` opens events.

#![forbid(unsafe_code)]

pub mod abi;
pub mod builtin;
pub mod data_src;
pub mod derive;
mod error;
mod hash;
pub mod ibs;
pub mod perf_data;
pub mod record;
pub mod ring;
pub mod spe;

pub use error::{Error, Result};
pub use hash::IdMap;

/// Formats bytes as hexadecimal digits, the form of build IDs.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The examples of the README, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
