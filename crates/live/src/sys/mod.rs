//! System calls of performance events, and libpfm4: the only unsafe code of this crate.

pub mod perf;
pub mod pfm;
