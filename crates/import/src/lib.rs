//! Source `import`: recordings that others made.
//!
//! [`TextInput`] is a text file of callgrind, cachegrind, lackey or drcachesim. Of perf:
//!
//! [`Input`] opens what `perf record` wrote, `memgauge_perf::perf_data` reads it, [`convert`] makes
//! a recording of it.

#![forbid(unsafe_code)]

mod accesses;
pub mod compression;
mod convert;
mod costs;
mod counters;
mod foreign;
mod input;
mod queue;
mod symfs;
mod text;
mod threads;
mod unwinding;
mod writing;

pub use convert::{check, convert, import};
pub use foreign::TextInput;
pub use input::Input;
pub use memgauge_host::{Error, ErrorKind, Result};
