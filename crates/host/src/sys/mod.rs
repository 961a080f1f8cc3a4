//! System calls on processes, memory and probes: the only unsafe code of this crate.

pub mod advice;
pub mod closed;
pub mod launch;
pub mod pages;
pub mod peer;
pub mod probe;
pub mod process;
pub mod signals;
