//! The only unsafe code of this crate: memory mappings, processes, signals.

pub mod advice;
pub mod probe;
pub mod process;
pub mod shm;
