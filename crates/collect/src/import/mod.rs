//! Source `import`: recordings that others made.
//!
//! [`Input`] opens what `perf record` wrote, [`perf_data`] reads it, [`convert`] makes
//! a recording of it.

mod convert;
mod counters;
mod hash;
mod input;
pub mod perf_data;
mod queue;
mod threads;
mod writing;

pub use convert::{check, convert, import};
pub use input::Input;
