//! Types of the data that memgauge records.
//!
//! Everything that a source reports about a program's memory is a row of one of the types here
//! ([`Sample`], [`SeriesRow`], [`Overflow`], [`OverflowBlock`], [`SiteCount`], [`Thread`],
//! [`Module`], [`Loss`], …). A [`Manifest`] states what was run, on which machine, and what the
//! events mean. `memgauge-recording` stores both on disk.
//!
//! This crate does not depend on perf, QEMU, BPF or Parquet, makes no system calls, and draws no
//! conclusions: these are in `memgauge-analyze`.

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
mod source_settings;
mod spans;

pub use address::{LINE_BYTES, Line, ModuleOffset, Page, PhysAddr, VirtAddr};
pub use event::{EventDef, EventId, Provenance, Unit, catalogue, event_meaning, is_page_fault};
pub use facts::{
    CounterFacts, CountingFacts, CrowdFacts, DataFromFacts, DeliveryFacts, DerivationFacts,
    EstimatedFacts, ImportFacts, LookFacts, OverheadFacts, PebsFacts, SampledFacts, SamplingFacts,
    SetsFacts, TableFacts, TaskCostFacts, TickFacts, UnsupportedFacts,
};
pub use ids::{Cpu, FrameId, Pid, Tid};
pub use io::{DeviceId, Direction, IoDevice, IoOwner, IoRow, Owner};
pub use manifest::{
    CacheGeometry, CommandEnd, FileUse, FileWait, HostFacts, MachineFacts, Manifest, OwnCost,
    SourceFacts, SourceKind, TlbGeometry, WhatIfFacts,
};
pub use rows::{
    AccessKind, AllocationRow, CodeRegion, CodeValue, DataRow, DataSource, Derivation, EventRow,
    Frame, GeneratedCode, HeapClassRow, HeapUseRow, Loss, LossKind, Module, Overflow,
    OverflowBlock, PythonLine, RegionSpan, Sample, SampleRegister, SeriesRow, SharingRow,
    SiteCount, SymbolRow, Thread,
};
pub use source_settings::{CallGraph, SourceSettings};
pub use spans::RegionSpans;
