//! Source `import`: recordings made from other tools' files.
//!
//! [`TextInput`] imports text files of callgrind, cachegrind, lackey or drcachesim. For perf,
//! [`Input`] opens the output of `perf record`, `memgauge_perf::perf_data` parses it, and
//! [`convert`] creates a recording from it.

#![forbid(unsafe_code)]

mod access_trace;
mod background_writer;
mod batch_queue;
pub mod cache_trace;
pub mod compression;
mod convert;
mod cost_profile;
mod counters;
mod input;
mod symfs;
mod text_format;
mod text_input;
mod threads;
mod unwinding;

pub use convert::{check, convert, import};
pub use input::Input;
pub use memgauge_host::{Error, ErrorKind, Result};
pub use text_input::TextInput;
