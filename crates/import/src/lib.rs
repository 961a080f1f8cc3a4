//! Source `import`: recordings that others made.
//!
//! [`Input`] opens what `perf record` wrote, `memgauge_perf::perf_data` reads it, [`convert`] makes
//! a recording of it.

#![forbid(unsafe_code)]

mod convert;
mod counters;
mod input;
mod queue;
mod threads;
mod unwinding;
mod writing;

pub use convert::{check, convert, import};
pub use input::Input;
pub use memgauge_host::{Error, ErrorKind, Result};
