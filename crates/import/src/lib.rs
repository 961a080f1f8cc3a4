//! Source `import`: recordings that others made.
//!
//! `memgauge_perf::perf_data` reads what `perf record` writes; [`convert`] makes a recording
//! of it.

#![forbid(unsafe_code)]

mod convert;
mod counters;
mod queue;
mod threads;
mod writing;

pub use convert::{Imported, Options, check, convert, import};
pub use memgauge_host::{Error, ErrorKind, Result};
