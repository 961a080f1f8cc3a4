//! Facts that a recording gives about itself.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::EventDef;
use crate::facts::{
    CountingFacts, DeliveryFacts, ImportFacts, SamplingFacts, SetsFacts, TableFacts,
};

/// Contents of `manifest.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Version of the recording format; readers accept their own and older.
    pub format_version: u32,
    /// Program and version that wrote the recording.
    pub recorder: String,
    /// Command line that was recorded.
    pub command: Vec<String>,
    /// Wall-clock start, seconds since 1970.
    pub started_unix_s: u64,
    /// The same in nanoseconds; 0 in recordings made before there was this field.
    pub started_unix_ns: u64,
    /// Clock of the tables' times: `virtual` or `monotonic`.
    pub clock: String,
    /// Whether the recorder ended in order; `false` while writing and after a kill.
    pub complete: bool,
    /// How the recorded command ended; `None` when the recorder did not live to see it.
    pub end: Option<CommandEnd>,
    /// Where events came from.
    pub source: SourceFacts,
    /// The machine it ran on.
    pub host: HostFacts,
    /// Geometry of the modelled machine, for modelled sources.
    pub machine: Option<MachineFacts>,
    /// Definitions of every event used in the tables.
    pub events: Vec<EventDef>,
    /// Totals of the whole run by event name, where the source knows them: exact, but for
    /// events that are estimated.
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
    /// Facts of a run of which some cache sets were followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<SetsFacts>,
    /// Facts of an imported file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<ImportFacts>,
    /// The tables as the recorder left them, by name; empty while it writes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, TableFacts>,
    /// Cost of recording.
    pub own_cost: OwnCost,
}

impl Manifest {
    /// Takes out every number of the run: what the tables say then stands alone.
    pub fn without_numbers(self) -> Manifest {
        Manifest {
            totals: BTreeMap::new(),
            sampling: None,
            counting: None,
            delivery: None,
            sets: None,
            own_cost: OwnCost::default(),
            ..self
        }
    }
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

/// Source and settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceFacts {
    /// `pmu`, `clock`, `emulate`, `io` or `import`.
    pub name: String,
    /// Settings in effect, by name (for example `qemu`, `period.llc.miss`).
    pub settings: BTreeMap<String, String>,
}

impl SourceFacts {
    /// The setting that names the regions of interest which alone were recorded.
    pub const REGIONS: &'static str = "regions";
    /// The setting that names the functions which are regions of interest.
    pub const FUNCTIONS: &'static str = "functions";

    /// The setting that says how call stacks were recorded: `fp` or `dwarf`.
    pub const CALL_GRAPH: &'static str = "call_graph";

    /// The regions of interest that alone were recorded: events outside of them were not,
    /// but the clock went on.
    pub fn only_regions(&self) -> Option<&str> {
        self.settings.get(Self::REGIONS).map(String::as_str)
    }
}

/// The machine a recording was made on.
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
    /// Preset or file name, or the processor it was read from.
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
    /// Prefetchers switched on.
    pub prefetchers: Vec<String>,
    /// Memory bandwidth in bytes per second.
    pub dram_bytes_per_s: u64,
    /// Every parameter of the model, as `memgauge list --json` and `--machine FILE`
    /// have them. It is absent where nothing was modelled, and in recordings made
    /// before it was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<serde_json::Value>,
    /// The name is a built-in machine's, and the parameters are not all that one's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub modified: bool,
}

impl MachineFacts {
    /// Begin of a processor's name in formats that know no modelled machine.
    pub const MODELLED: &str = "modelled machine ";

    /// Whether there is a level between the first and the last. The model always has three: in
    /// machines of two, one smaller than the first stands in for it (docs/machine-model.md).
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

/// Resources that the recorder itself used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnCost {
    /// Wall-clock seconds of the recorded run.
    pub wall_s: f64,
    /// Processor seconds of the recorder.
    pub cpu_s: f64,
    /// Largest resident memory of the recorder in bytes.
    pub peak_memory_bytes: u64,
    /// Processor seconds of the recorded program and all its children (under the emulator, where one is used).
    pub program_cpu_s: f64,
    /// Bytes the recording takes on disk.
    pub recording_bytes: u64,
}
