//! Source `import`: recordings made from other tools' files.
//!
//! [`TextInput`] imports text files of callgrind, cachegrind, lackey or drcachesim. For perf,
//! [`Input`] opens the output of `perf record`, `memgauge_perf::perf_data` parses it, and
//! [`convert`] creates a recording from it.
//!
//! [`addresses`] reads lists of addresses and [`cache_trace`] traces of caches. Neither makes a
//! recording.

#![forbid(unsafe_code)]

mod access_trace;
pub mod addresses;
mod background_writer;
mod batch_queue;
pub mod cache_trace;
pub mod compression;
mod convert;
mod cost_profile;
mod counters;
mod input;
mod lackey;
mod symfs;
mod table_rows;
mod text_format;
mod text_input;
mod threads;
mod unwinding;

pub use convert::{check, convert, import};
pub use input::Input;
pub use memgauge_host::{Error, ErrorKind, Result};
pub use text_input::TextInput;
