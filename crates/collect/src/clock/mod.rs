//! Source `clock`: data addresses without a PMU.
//!
//! A timer samples the program with its registers; the instruction at the sampled
//! address, or one beside it, is decoded, and its operand's address computed from
//! the registers (`derive`). That works on any Linux and in any virtual
//! machine, on a program that is started and on one that runs.
//!
//! What it says is where the program *spends its time* and which data it handles
//! there, not which accesses missed: a sample stands for time, not for an event
//! of the caches.

mod code;
pub mod derive;
mod record;

pub(crate) use code::Code;
pub use record::{Options, record};
