//! Vocabulary of memgauge and the recording it is kept in.
//!
//! Everything a source can say about a program's memory is one of the row
//! types here ([`Sample`], [`SeriesRow`], [`Overflow`], [`OverflowBlock`], [`SiteCount`],
//! [`Thread`], [`Module`], [`Loss`]); a [`recording`] is a directory of Parquet
//! parts holding them, with a [`Manifest`] that says what was run, on what, and
//! what the events mean.
//!
//! This crate knows nothing of perf, QEMU or BPF and makes no operating-system
//! call beyond reading and writing files. It does not interpret: conclusions
//! belong to `memgauge-analyze`.

#![forbid(unsafe_code)]

mod address;
mod error;
mod event;
mod facts;
mod ids;
mod io;
mod manifest;
mod packed;
pub mod recording;
mod rows;

pub use address::{Line, ModuleOffset, Page, PhysAddr, VirtAddr};
pub use error::{Error, ErrorKind, Result};
pub use event::{EventDef, EventId, Provenance, Unit, catalogue};
pub use facts::{
    CounterFacts, CountingFacts, DataFromFacts, DeliveryFacts, DerivationFacts, ImportFacts,
    OverheadFacts, PebsFacts, SampledFacts, SamplingFacts, TableFacts, TickFacts, UnsupportedFacts,
};
pub use ids::{Cpu, Pid, Tid};
pub use io::{DeviceId, Direction, IoDevice, IoOwner, IoRow, Owner};
pub use manifest::{
    CacheGeometry, CommandEnd, HostFacts, MachineFacts, Manifest, OwnCost, SourceFacts, TlbGeometry,
};
pub use rows::{
    AccessKind, DataSource, Derivation, GeneratedCode, Loss, LossKind, Module, Overflow,
    OverflowBlock, Sample, SampleRegister, SeriesRow, SiteCount, Thread,
};
