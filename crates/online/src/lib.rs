#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod collector;
mod control;
mod descriptors;
mod managed;
mod marks;
mod missed;
mod pace;
mod phases;
mod profiler;
mod program;
mod reader;
mod regions;
mod registry;
mod rest;
pub mod ring;
mod sample;
mod settings;
mod tasks;

/// What the ring is made of: `tests/ring-model` puts loom's in their place.
mod atomic {
    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Raises this process's limit of open files to what it may have; returns it. A thread
/// takes two descriptors, in a followed process three. Some are left to the program
/// ([`kept_descriptors`]).
pub use memgauge_live::sys::perf::raise_open_files;

pub use descriptors::kept_descriptors;

/// The variable that is to name [`Profiler::marks_file`] to programs.
pub use memgauge_live::sample::marks::VARIABLE as MARKS_VARIABLE;

pub use memgauge_host::sampled::SampledRun;
pub use memgauge_host::{Error, ErrorKind, Result};
pub use memgauge_trace::{
    AccessKind, CommandEnd, Cpu, DataSource, Derivation, PhysAddr, Pid, Tid, VirtAddr,
};
pub use profiler::{Clean, Profiler};
pub use reader::Reader;
pub use regions::{Region, RegionId};
pub use registry::{State, Statistics};
pub use ring::Account;
pub use sample::Sample;
pub use settings::{Latency, MOST_BUFFER, Settings, Sharing, Source, WhenFull};
