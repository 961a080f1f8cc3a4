//! The manifest: data about a recording as a whole.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::facts::{
    CountingFacts, DeliveryFacts, ImportFacts, SamplingFacts, SetsFacts, TableFacts,
};
use crate::{EventDef, FrameId, Pid, SourceSettings};

/// Contents of `manifest.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Version of the recording format. Readers accept their own and older versions.
    pub format_version: u32,
    /// Program and version that wrote the recording.
    pub recorder: String,
    /// The recorded command line.
    pub command: Vec<String>,
    /// Labels that the user gave the run, by name, for example `service` or `commit`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Wall-clock start, seconds since 1970.
    pub started_unix_s: u64,
    /// The same in nanoseconds; 0 in old recordings.
    pub started_unix_ns: u64,
    /// Clock of the tables' times: `virtual` or `monotonic`.
    pub clock: String,
    /// True if the recorder finished. False while it writes, and after it was killed.
    pub complete: bool,
    /// How the recorded command ended; `None` if the recorder ended first.
    pub end: Option<CommandEnd>,
    /// The source of events.
    pub source: SourceFacts,
    /// The recorded machine.
    pub host: HostFacts,
    /// Geometry of the modelled machine, for modelled sources.
    pub machine: Option<MachineFacts>,
    /// Definitions of all events in the tables.
    pub events: Vec<EventDef>,
    /// Totals of the run by event name, if the source knows them. Exact except for estimated
    /// events.
    pub totals: BTreeMap<String, u64>,
    /// Facts of a sampled run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingFacts>,
    /// Results of `memgauge stat`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counting: Option<CountingFacts>,
    /// Delivery of overflows as records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryFacts>,
    /// Data about a run in which only some cache sets were modelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<SetsFacts>,
    /// Results of the same run on other machines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what_if: Vec<WhatIfFacts>,
    /// Facts of an imported file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<ImportFacts>,
    /// The tables as the recorder completed them, by name; empty while it writes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, TableFacts>,
    /// Cost of recording.
    pub own_cost: OwnCost,
    /// The longest waits of an emulated program for files, by falling length. Their sum, and that of
    /// all others, is in `own_cost`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub file_waits: Vec<FileWait>,
}

impl Manifest {
    /// Removes all numbers about the run, so that only the tables are used.
    pub fn without_numbers(self) -> Manifest {
        Manifest {
            totals: BTreeMap::new(),
            sampling: None,
            counting: None,
            delivery: None,
            sets: None,
            what_if: Vec::new(),
            own_cost: OwnCost::default(),
            file_waits: Vec::new(),
            ..self
        }
    }
}

/// Waits of a process for files on the host, by the calls that led to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileWait {
    /// The process.
    pub pid: Pid,
    /// How the calls use the files.
    pub file_use: FileUse,
    /// The innermost call, or `None` if unknown.
    pub caller: Option<FrameId>,
    /// Seconds for which no thread of the program ran.
    pub wait_s: f64,
}

/// How a system call uses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileUse {
    /// It reads contents or names.
    Read,
    /// It writes, truncates or allocates.
    Write,
    /// fsync, fdatasync, msync and the like.
    Sync,
}

/// Result of a run on another machine. The machine received the same instructions and accesses, in the
/// same order, and its threads waited for as long.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WhatIfFacts {
    /// The change as given on the command line.
    pub name: String,
    /// The machine.
    pub machine: MachineFacts,
    /// Sums over all threads, by event name.
    pub totals: BTreeMap<String, u64>,
    /// With another layout of a type: accesses to its objects that went elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_accesses: Option<u64>,
    /// Misses in lines of these objects by accesses of unknown type. These accesses stayed where
    /// they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses_of_others: Option<u64>,
}

/// How the recorded command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CommandEnd {
    /// Exit status.
    Exited(i32),
    /// Killed by this signal.
    Signalled(i32),
    /// The user interrupted the recording.
    Interrupted,
}

/// Where the events of a recording come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// Hardware and kernel counters of perf_events.
    Pmu,
    /// Timer samples with reconstructed addresses.
    Clock,
    /// Calls of allocators, from a preloaded library.
    Malloc,
    /// A modelled machine that executes the program.
    Emulate,
    /// Transfers of devices, from BPF programs.
    Io,
    /// Another tool's recording.
    Import,
    /// A source that this version does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

impl SourceKind {
    /// Returns its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::Pmu => "pmu",
            SourceKind::Clock => "clock",
            SourceKind::Malloc => "malloc",
            SourceKind::Emulate => "emulate",
            SourceKind::Io => "io",
            SourceKind::Import => "import",
            SourceKind::Unknown => "unknown",
        }
    }
}

/// Source and settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceFacts {
    /// The source.
    #[serde(rename = "name")]
    pub kind: SourceKind,
    /// Settings in effect.
    pub settings: SourceSettings,
}

impl SourceFacts {
    /// Returns the regions of interest to which the recording is limited. Events outside of them
    /// were not recorded, but the clock continued.
    pub fn only_regions(&self) -> Option<&str> {
        self.settings.regions.as_deref()
    }
}

/// The machine on which the recording was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// Host name.
    pub name: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Logical processors.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// Geometry and speeds of a modelled machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineFacts {
    /// Name of the preset or file, or the processor that it was read from.
    pub name: String,
    /// Clock rate in hertz.
    pub frequency_hz: u64,
    /// First-level data cache.
    pub l1d: CacheGeometry,
    /// Second-level cache.
    pub l2: CacheGeometry,
    /// Last-level cache.
    pub llc: CacheGeometry,
    /// First-level data TLB.
    pub dtlb: TlbGeometry,
    /// Second-level TLB.
    pub stlb: TlbGeometry,
    /// Enabled prefetchers.
    pub prefetchers: Vec<String>,
    /// Memory bandwidth in bytes per second.
    pub dram_bytes_per_s: u64,
    /// All parameters of the model, as in `memgauge list --json` and `--machine FILE`. Missing if
    /// nothing was modelled, and in old recordings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<serde_json::Value>,
    /// True if the name is that of a built-in machine although some parameters differ.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub modified: bool,
}

impl MachineFacts {
    /// Prefix of the processor's name in formats without modelled machines.
    pub const MODELLED: &str = "modelled machine ";

    /// Returns whether there is a level between the first and the last. The model always has three
    /// levels; for machines with two, a level smaller than the first stands in
    /// (docs/machine-model.md).
    pub fn has_l2(&self) -> bool {
        self.l2.size_bytes >= self.l1d.size_bytes
    }
}

/// Geometry of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheGeometry {
    /// Capacity in bytes.
    pub size_bytes: u64,
    /// Lines per set.
    pub ways: u32,
    /// Line size in bytes.
    pub line_bytes: u32,
}

/// Geometry of a TLB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlbGeometry {
    /// Entries.
    pub entries: u32,
    /// Entries per set.
    pub ways: u32,
}

/// Resources used by the recorder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnCost {
    /// Wall-clock seconds of the recorded run.
    pub wall_s: f64,
    /// CPU seconds of the recorder.
    pub cpu_s: f64,
    /// Peak resident memory of the recorder in bytes.
    pub peak_memory_bytes: u64,
    /// CPU seconds of the recorded program and its children (including the emulator, if there is
    /// one).
    pub program_cpu_s: f64,
    /// Minor page faults of the recorded program and its children, the emulator's included; 0 if
    /// unknown.
    pub program_page_faults: u64,
    /// Nanoseconds of processor time of a page fault of anonymous memory, measured on this machine
    /// after a run with many page faults; 0 if not measured.
    pub page_fault_ns: f64,
    /// Seconds for which an emulated program waited for files on the host and no thread of it ran;
    /// 0 if unknown.
    pub program_file_wait_s: f64,
    /// The part of these in writes, truncations and allocations of files.
    pub program_file_write_wait_s: f64,
    /// The part of these in fsync, fdatasync, msync and the like.
    pub program_file_sync_wait_s: f64,
    /// Size of the recording on disk in bytes.
    pub recording_bytes: u64,
}
