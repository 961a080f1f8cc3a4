//! The only unsafe code of this crate: memory mappings, processes, signals,
//! performance events.

pub mod advice;
pub mod launch;
pub mod netns;
pub mod perf;
pub mod pfm;
pub mod probe;
pub mod process;
pub mod shm;
