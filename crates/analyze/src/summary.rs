//! The contents of a report as one value.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_trace::{
    CommandEnd, EventDef, HostFacts, ImportFacts, MachineFacts, Manifest, OwnCost, Provenance,
    SetsFacts, SourceFacts, catalogue,
};
use serde::Serialize;

use crate::bandwidth::dram::{BandwidthCurve, Dram};
use crate::cause::Cause;
use crate::code::disassembly::CodeListing;
use crate::code::excerpts::Excerpt;
use crate::code::hotspots::HotTables;
use crate::code::library_calls::LibraryFunction;
use crate::code::python::PythonTable;
use crate::code::roi::{CodeRegionRow, CodeValueRow};
use crate::code::stacks::CallTree;
use crate::code::unnamed::{PythonWithoutLines, UnnamedCode};
use crate::counting::Counting;
use crate::counts::Counts;
use crate::data::heat::HeatMap;
use crate::data::regions::RegionTable;
use crate::data::sharing::SharedLines;
use crate::data::table::{DataTable, HeapUse};
use crate::data::types::TypeTable;
use crate::findings::Finding;
use crate::io::IoSummary;
use crate::levels::Level;
use crate::losses::LossRow;
use crate::samples::SamplingResults;
use crate::sort_column::SortColumn;
use crate::threads::{ProcessRow, ThreadRow};
use crate::time::file_waits::FileWaitPlace;
use crate::time::region_times::RegionsOverTime;
use crate::time::time_use::TimePart;
use crate::time::timeline::Timeline;
use crate::what_if::WhatIf;

/// Version of the JSON form of [`Summary`]. It increases when a field is removed or changes its
/// meaning, not when one is added.
pub const SCHEMA_VERSION: u32 = 2;

/// Summary of one recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Program and machine.
    pub recording: RecordingFacts,
    /// Provenance of the numbers.
    pub provenance: Provenances,
    /// The run as a whole.
    pub run: RunFacts,
    /// Sum of every event over the whole run by name, in the event's unit.
    pub totals: Counts,
    /// Origin of `totals`.
    pub totals_from: TotalsFrom,
    /// Column by which tables were sorted on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sorted_by: Option<SortColumn>,
    /// Cycles of all threads by use. Empty if the source does not record it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub time: Vec<TimePart>,
    /// Cache and TLB levels.
    pub levels: Vec<Level>,
    /// Memory traffic.
    pub dram: Dram,
    /// Memory traffic over time.
    pub bandwidth: BandwidthCurve,
    /// Results of native counters. `None` if nothing was counted.
    pub counting: Option<Counting>,
    /// Results of sampling. `None` without samples.
    pub sampling: Option<SamplingResults>,
    /// Functions, source lines and instructions by the events they caused.
    pub hot: HotTables,
    /// Hot functions of libraries and the user's functions that call them. Empty if there are none, or
    /// calls are not counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub library_functions: Vec<LibraryFunction>,
    /// Hot code without names. Empty if there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unnamed: Vec<UnnamedCode>,
    /// An interpreter of Python whose lines are not known. `None` if it does not matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python_without_lines: Option<PythonWithoutLines>,
    /// Lines of Python. `None` if the program executed none, or the source does not see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonTable>,
    /// Call trees of the sampled events. Empty without recorded stacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallTree>,
    /// Memory regions, a table for each sampled event.
    pub regions: Vec<RegionTable>,
    /// Data by the cycles that were spent waiting for it. `None` if the source does not see every
    /// access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataTable>,
    /// Memory that the program allocated. `None` if allocations were not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heap: Option<HeapUse>,
    /// Results of the run on other machines, if they were modelled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub what_if: Vec<WhatIf>,
    /// Cost of data by type and member; `None` if no type is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub types: Option<TypeTable>,
    /// Lines that threads share; `None` if there are none, or the source does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharedLines>,
    /// Where an emulated program waited for files, by falling length. Empty if it did not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub file_waits: Vec<FileWaitPlace>,
    /// Regions of interest by falling time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub code_regions: Vec<CodeRegionRow>,
    /// Regions of interest over time. `None` if not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub regions_over_time: Option<RegionsOverTime>,
    /// Values that the program reported, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub code_values: Vec<CodeValueRow>,
    /// Samples of one event by address and time. `None` if no sample has a data address.
    pub heat: Option<HeatMap>,
    /// Results over time, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Source around hot lines, if requested and readable.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Excerpt>,
    /// Machine code of the hottest functions, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listings: Vec<CodeListing>,
    /// Bytes that processes moved through disks and networks. `None` if not accounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoSummary>,
    /// Threads.
    pub threads: Vec<ThreadRow>,
    /// Processes.
    pub processes: Vec<ProcessRow>,
    /// Losses that the recorder counted.
    pub losses: Vec<LossRow>,
    /// Messages about parts of the recording that could not be read.
    pub problems: Vec<String>,
    /// Estimates for all cache sets and their intervals with `--sets`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<SetsFacts>,
    /// Facts of the imported file.
    pub import: Option<ImportFacts>,
    /// Overhead of the recording.
    pub own_cost: OwnCost,
    /// Statements about the run.
    pub findings: Vec<Finding>,
    /// Limits of the run, the most important one first.
    pub causes: Vec<Cause>,
    /// Definitions of the recording's events.
    pub events: Vec<EventDef>,
}

impl Summary {
    /// Checks that code can be ranked by an event that the caller chose: some are counted, but not
    /// by code location.
    ///
    /// # Errors
    /// The event occurred, but no code location has counts of it. The message lists the events
    /// with such counts.
    pub fn check_rank(&self, event: &str) -> Result<(), String> {
        let table = &self.hot.functions;
        if table.total > 0 || self.totals.get(event).is_none_or(|&total| total == 0) {
            return Ok(());
        }
        let counts = table.rows.iter().map(|row| &row.counts);
        let counts = counts.chain([&table.others.counts]);
        let known: BTreeSet<&str> = counts
            .flat_map(|counts| counts.keys().map(String::as_str))
            .collect();
        let fix = match known.is_empty() {
            true => "the recording has no counts by code location".to_owned(),
            false => {
                let known: Vec<&str> = known.into_iter().collect();
                format!("use one of {}", known.join(", "))
            }
        };
        Err(format!(
            "failed to rank by event `{event}`: it is counted, but not by code location; {fix}"
        ))
    }
}

impl Summary {
    /// Facts about the modelled sets if numbers are estimated from some of them.
    pub fn estimated(&self) -> Option<&SetsFacts> {
        self.sets.as_ref().filter(|sets| sets.estimates_any())
    }
}

/// Program and machine, from the manifest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RecordingFacts {
    /// Program and version that recorded.
    pub recorder: String,
    /// Version of the recording format.
    pub format_version: u32,
    /// Recorded command line.
    pub command: Vec<String>,
    /// Labels that the user gave the run, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Wall-clock start, seconds since 1970.
    pub started_unix_s: u64,
    /// Start in nanoseconds. Absent in older recordings, which only have seconds.
    #[serde(skip_serializing_if = "is_unknown")]
    pub started_unix_ns: u64,
    /// Clock of all times: `virtual` or `monotonic`.
    pub clock: String,
    /// True if the recorder ended normally.
    pub complete: bool,
    /// How the command ended. `None` if unknown.
    pub end: Option<CommandEnd>,
    /// Source and its settings.
    pub source: SourceFacts,
    /// Machine on which it ran.
    pub host: HostFacts,
    /// Modelled machine, for modelled sources.
    pub machine: Option<MachineFacts>,
}

fn is_unknown(started_unix_ns: &u64) -> bool {
    *started_unix_ns == 0
}

impl RecordingFacts {
    /// Facts of a manifest.
    pub fn of(manifest: &Manifest) -> Self {
        RecordingFacts {
            recorder: manifest.recorder.clone(),
            format_version: manifest.format_version,
            command: manifest.command.clone(),
            labels: manifest.labels.clone(),
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

/// Provenance of the numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Provenances {
    /// Provenances of totals, levels, traffic, functions, lines and threads, as the recording's
    /// events declare them.
    pub counts: Vec<Provenance>,
    /// Provenances of regions.
    pub regions: Provenance,
}

impl Provenances {
    /// From the events' declarations. Regions always come from samples.
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

/// Origin of the totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TotalsFrom {
    /// The manifest, which is written when the recorder ends.
    Manifest,
    /// Sums of the tables' rows, since the recorder did not end normally or its source has no
    /// totals.
    Tables,
    /// The manifest, and the tables for events that it lacks.
    Both,
}

/// The run as a whole. Counts are `None` if the recording lacks the event.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunFacts {
    /// Length of the run on the recording's clock in nanoseconds: the end of the last interval,
    /// sample or thread.
    pub duration_ns: u64,
    /// Duration of the recording in wall-clock seconds. `None` if the recorder was killed.
    pub wall_s: Option<f64>,
    /// Instructions executed.
    pub instructions: Option<u64>,
    /// Loads.
    pub loads: Option<u64>,
    /// Stores.
    pub stores: Option<u64>,
    /// Instructions that count as both a load and a store of one operand.
    pub modifies: Option<u64>,
    /// Loads and stores across two cache lines.
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
