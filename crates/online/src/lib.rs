#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod backend;
mod collected_thread;
mod collector;
mod descriptors;
mod idle;
mod marks;
mod period_control;
mod phases;
mod procfs;
mod profiler;
mod program;
mod reader;
mod registry;
pub mod ring;
mod roi;
mod sample;
mod settings;
mod unsampled_threads;

/// Synchronisation types of the ring. `tests/ring-model` replaces them with loom's.
mod atomic {
    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Raises this process's limit of open files to its hard limit and returns it. A thread needs two
/// descriptors, or three if its process is followed. Some descriptors are reserved for the program
/// ([`kept_descriptors`]).
pub use memgauge_live::sys::perf::raise_open_file_limit;

pub use descriptors::kept_descriptors;

/// Name of the environment variable that tells programs the path of [`Profiler::marks_file`].
pub use memgauge_live::sampling::roi_marks::ENV_VARIABLE as MARKS_VARIABLE;

pub use memgauge_host::sampled_run::SampledRun;
pub use memgauge_host::{Error, ErrorKind, Result};
pub use memgauge_trace::{
    AccessKind, CommandEnd, Cpu, DataSource, Derivation, PhysAddr, Pid, Tid, VirtAddr,
};
pub use profiler::{Clean, Profiler};
pub use reader::Reader;
pub use registry::{Statistics, ThreadState};
pub use ring::DeliveryAccount;
pub use roi::{Region, RegionId};
pub use sample::Sample;
pub use settings::{Latency, MAX_BUFFER, Settings, Sharing, Source, WhenFull};
