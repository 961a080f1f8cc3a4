//! System calls on processes, memory and probes: the only unsafe code of this crate.

pub mod advice;
pub mod closed_stdout;
pub mod held_process;
pub mod page_faults;
pub mod pages;
pub mod peer;
pub mod probe;
pub mod process;
pub mod scheduling;
pub mod signals;
