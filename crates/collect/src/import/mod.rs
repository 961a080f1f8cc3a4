//! Source `import`: recordings that others made.
//!
//! [`perf_data`] reads what `perf record` writes; [`convert`] makes a recording
//! of it.

mod convert;
mod counters;
mod hash;
pub mod perf_data;
mod queue;
mod threads;
mod writing;

pub use convert::{Imported, Options, check, convert, import};
