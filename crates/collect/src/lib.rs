//! Sources: what turns happenings on a machine into a recording.
//!
//! Everything that needs a kernel, an emulator or a clock is here, and only
//! here. A source knows [`memgauge_trace`] and, where it models, the modelled
//! machine of [`memgauge_machine`]; it never sees an analysis.
//!
//! `unsafe` lives in [`sys`] alone.

#![deny(unsafe_code)]

pub mod clock;
pub mod doctor;
pub mod emulate;
mod error;
pub mod geometry;
pub mod host;
pub mod import;
pub mod io;
mod overflows;
pub mod pmu;
pub mod program;
#[allow(unsafe_code)]
pub mod sys;

pub use error::{Error, ErrorKind, Result};
pub use overflows::SAMPLED;
