//! Everything a report shows, in one value.

use memgauge_trace::{
    CommandEnd, EventDef, HostFacts, ImportFacts, MachineFacts, Manifest, OwnCost, Provenance,
    SetsFacts, SourceFacts, catalogue,
};
use serde::Serialize;

use crate::cause::Cause;
use crate::code_regions::{CodeRegionRow, CodeValueRow};
use crate::counting::Counting;
use crate::counts::Counts;
use crate::data::{DataTable, HeapUse};
use crate::disassembly::CodeListing;
use crate::dram::{BandwidthCurve, Dram};
use crate::excerpts::Excerpt;
use crate::findings::Finding;
use crate::heat::HeatMap;
use crate::hotspots::HotTables;
use crate::levels::Level;
use crate::losses::LossRow;
use crate::region_times::RegionsOverTime;
use crate::regions::RegionTable;
use crate::samples::Sampling;
use crate::stacks::CallTree;
use crate::threads::{ProcessRow, ThreadRow};
use crate::time_use::TimePart;
use crate::timeline::Timeline;

/// Version of the JSON form of [`Summary`]; grows when a field changes meaning
/// or goes, not when one is added.
pub const SCHEMA_VERSION: u32 = 2;

/// Summary of one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The program and the machine.
    pub recording: RecordingFacts,
    /// How the numbers came to be.
    pub provenance: Provenances,
    /// The run as a whole.
    pub run: RunFacts,
    /// Sums over the whole run by event name, in the event's unit.
    pub totals: Counts,
    /// Where `totals` come from.
    pub totals_from: TotalsFrom,
    /// What the cycles of all threads were spent on; empty if the source does not know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub time: Vec<TimePart>,
    /// Cache and TLB levels.
    pub levels: Vec<Level>,
    /// Memory traffic.
    pub dram: Dram,
    /// Memory traffic over time.
    pub bandwidth: BandwidthCurve,
    /// Results of native counters; `None` where none counted.
    pub counting: Option<Counting>,
    /// Results of sampling; `None` without samples.
    pub sampling: Option<Sampling>,
    /// Functions, source lines and instructions by the events they caused.
    pub hot: HotTables,
    /// The calls that led to samples, by event; empty where none were recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallTree>,
    /// Memory regions, one table for each sampled event.
    pub regions: Vec<RegionTable>,
    /// Data by the cycles that were spent waiting for it; `None` if the source does not see every
    /// access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataTable>,
    /// Memory that the program allocated; `None` if allocations were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapUse>,
    /// Regions of interest, those with most time first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub code_regions: Vec<CodeRegionRow>,
    /// When threads were inside them; `None` where the recording does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions_over_time: Option<RegionsOverTime>,
    /// Values that the program told, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub code_values: Vec<CodeValueRow>,
    /// Where in memory samples of one event fall, and when; `None` if none has a data address.
    pub heat: Option<HeatMap>,
    /// Results over time, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// The source around hot lines, where it was asked for and can be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Excerpt>,
    /// Machine code of the hottest functions, where it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listings: Vec<CodeListing>,
    /// Threads.
    pub threads: Vec<ThreadRow>,
    /// Processes.
    pub processes: Vec<ProcessRow>,
    /// Losses that the recorder counted.
    pub losses: Vec<LossRow>,
    /// Parts of the recording that could not be read, in words.
    pub problems: Vec<String>,
    /// Estimates of all cache sets and their intervals, where some sets were followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<SetsFacts>,
    /// Facts of the imported file.
    pub import: Option<ImportFacts>,
    /// Cost of recording.
    pub own_cost: OwnCost,
    /// Statements that follow from the numbers.
    pub findings: Vec<Finding>,
    /// What limits the run, what matters most first.
    pub causes: Vec<Cause>,
    /// Definitions of the recording's events.
    pub events: Vec<EventDef>,
}

impl Summary {
    /// The facts of the followed sets, where numbers are estimated from some.
    pub fn estimated(&self) -> Option<&SetsFacts> {
        self.sets.as_ref().filter(|sets| sets.estimates_any())
    }
}

/// The program and the machine: the manifest's facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RecordingFacts {
    /// Program and version that recorded.
    pub recorder: String,
    /// Version of the recording format.
    pub format_version: u32,
    /// Command line recorded.
    pub command: Vec<String>,
    /// Wall-clock start, seconds since 1970.
    pub started_unix_s: u64,
    /// The same in nanoseconds; absent where an older recording has seconds alone.
    #[serde(skip_serializing_if = "is_unknown")]
    pub started_unix_ns: u64,
    /// Clock of every time: `virtual` or `monotonic`.
    pub clock: String,
    /// Whether the recorder ended in order.
    pub complete: bool,
    /// How the command ended; `None` when unknown.
    pub end: Option<CommandEnd>,
    /// Source and its settings.
    pub source: SourceFacts,
    /// Machine it ran on.
    pub host: HostFacts,
    /// Modelled machine, for modelled sources.
    pub machine: Option<MachineFacts>,
}

fn is_unknown(started_unix_ns: &u64) -> bool {
    *started_unix_ns == 0
}

impl RecordingFacts {
    /// The facts of a manifest.
    pub fn of(manifest: &Manifest) -> Self {
        RecordingFacts {
            recorder: manifest.recorder.clone(),
            format_version: manifest.format_version,
            command: manifest.command.clone(),
            started_unix_s: manifest.started_unix_s,
            started_unix_ns: manifest.started_unix_ns,
            clock: manifest.clock.clone(),
            complete: manifest.complete,
            end: manifest.end.clone(),
            source: manifest.source.clone(),
            host: manifest.host.clone(),
            machine: manifest.machine.clone(),
        }
    }
}

/// How the numbers came to be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Provenances {
    /// Totals, levels, traffic, functions, lines and threads: the provenances
    /// the recording's events declare.
    pub counts: Vec<Provenance>,
    /// Regions.
    pub regions: Provenance,
}

impl Provenances {
    /// As the events declare; regions are always of samples.
    pub fn of(events: &[EventDef]) -> Self {
        let mut counts = Vec::new();
        for event in events {
            if !counts.contains(&event.provenance) {
                counts.push(event.provenance);
            }
        }
        Provenances {
            counts,
            regions: Provenance::Sampled,
        }
    }
}

/// Where totals come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TotalsFrom {
    /// The manifest, written when the recorder ended.
    Manifest,
    /// Sums of the tables' rows: the recorder did not end in order, or its
    /// source keeps no totals.
    Tables,
    /// The manifest, and the tables for events it lacks.
    Both,
}

/// The run as a whole. Counts are `None` where the recording lacks the event.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunFacts {
    /// Length of the run on the recording's clock, in nanoseconds: the end of
    /// the last interval, sample or thread.
    pub duration_ns: u64,
    /// Wall-clock seconds the run took while being recorded; `None` where the recorder
    /// was killed.
    pub wall_s: Option<f64>,
    /// Instructions executed.
    pub instructions: Option<u64>,
    /// Loads.
    pub loads: Option<u64>,
    /// Stores.
    pub stores: Option<u64>,
    /// Instructions counted as both a load and a store of one operand.
    pub modifies: Option<u64>,
    /// Loads and stores over two cache lines.
    pub splits: Option<u64>,
}

impl RunFacts {
    /// From totals by event name.
    pub fn of(totals: &Counts, duration_ns: u64, wall_s: f64) -> Self {
        let get = |id| catalogue::name(id).and_then(|name| totals.get(name).copied());
        RunFacts {
            duration_ns,
            wall_s: (wall_s > 0.0).then_some(wall_s),
            instructions: get(catalogue::INSTRUCTIONS),
            loads: get(catalogue::LOADS),
            stores: get(catalogue::STORES),
            modifies: get(catalogue::MODIFIES),
            splits: get(catalogue::SPLITS),
        }
    }
}
