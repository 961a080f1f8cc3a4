//! Parts that the commands of memgauge share: output to the terminal and to files, exit codes, and options
//! that several commands have.
//!
//! Commands use the macros [`eprint!`] and [`eprintln!`] of this crate in place of those of the
//! standard library.
#![forbid(unsafe_code)]

// Must come first, since all other modules use its macros for standard error.
#[macro_use]
pub mod terminal;

pub mod access;
pub mod emulated;
pub mod outcome;
pub mod page;
pub mod progress;
pub mod quantities;
pub mod search;
pub mod target;
pub mod whole_file;

mod source;

pub use source::Source;
