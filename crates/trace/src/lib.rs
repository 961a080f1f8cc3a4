//! The vocabulary of memgauge.
//!
//! Everything a source can say about a program's memory is one of the row
//! types here ([`Sample`], [`SeriesRow`], [`Overflow`], [`OverflowBlock`], [`SiteCount`],
//! [`Thread`], [`Module`], [`Loss`]). A [`Manifest`] says what was run, on what, and
//! what the events mean. `memgauge-recording` keeps both on disk.
//!
//! This crate knows nothing of perf, QEMU, BPF or Parquet and makes no operating-system
//! call. It does not interpret: conclusions belong to `memgauge-analyze`.

#![forbid(unsafe_code)]

mod address;
mod event;
mod facts;
pub mod groups;
mod ids;
mod io;
mod manifest;
mod packed;
mod rows;
mod spans;

pub use address::{LINE_BYTES, Line, ModuleOffset, Page, PhysAddr, VirtAddr};
pub use event::{EventDef, EventId, Provenance, Unit, catalogue};
pub use facts::{
    CounterFacts, CountingFacts, CrowdFacts, DataFromFacts, DeliveryFacts, DerivationFacts,
    EstimatedFacts, ImportFacts, OverheadFacts, PebsFacts, SampledFacts, SamplingFacts, SetsFacts,
    TableFacts, TaskCostFacts, TickFacts, UnsupportedFacts,
};
pub use ids::{Cpu, FrameId, Pid, Tid};
pub use io::{DeviceId, Direction, IoDevice, IoOwner, IoRow, Owner};
pub use manifest::{
    CacheGeometry, CommandEnd, HostFacts, MachineFacts, Manifest, OwnCost, SourceFacts, TlbGeometry,
};
pub use rows::{
    AccessKind, CodeRegion, CodeValue, DataSource, Derivation, EventRow, Frame, GeneratedCode,
    Loss, LossKind, Module, Overflow, OverflowBlock, RegionSpan, Sample, SampleRegister, SeriesRow,
    SiteCount, SymbolRow, Thread,
};
pub use spans::RegionSpans;
