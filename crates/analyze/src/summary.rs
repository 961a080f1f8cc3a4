//! Everything a report shows, in one value.

use memgauge_trace::{
    CommandEnd, EventDef, EventId, HostFacts, ImportFacts, MachineFacts, Manifest, OwnCost,
    Provenance, SourceFacts, catalogue,
};
use serde::Serialize;

use crate::cause::Cause;
use crate::counting::Counting;
use crate::counts::Counts;
use crate::excerpts::Excerpt;
use crate::findings::Finding;
use crate::heat::HeatMap;
use crate::hotspots::HotTables;
use crate::levels::Level;
use crate::losses::LossRow;
use crate::regions::RegionTable;
use crate::samples::Sampling;
use crate::series::{Curve, Curves, Peak};
use crate::threads::{ProcessRow, ThreadRow};
use crate::timeline::Timeline;

/// Version of the JSON form of [`Summary`]; grows when a field changes meaning
/// or goes, not when one is added.
pub const SCHEMA_VERSION: u32 = 1;

const NS_PER_S: f64 = 1e9;

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
    /// Memory regions, one table for each sampled event.
    pub regions: Vec<RegionTable>,
    /// Where in memory samples fall, and when; `None` where none has a data address,
    /// and of modelled machines.
    pub heat: Option<HeatMap>,
    /// Results over time, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// The source around hot lines, where it was asked for and can be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Excerpt>,
    /// Threads.
    pub threads: Vec<ThreadRow>,
    /// Processes.
    pub processes: Vec<ProcessRow>,
    /// Losses that the recorder counted.
    pub losses: Vec<LossRow>,
    /// Parts of the recording that could not be read, in words.
    pub problems: Vec<String>,
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

/// Traffic between the last-level cache and memory. `None` where the recording
/// lacks the event or has no length.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Dram {
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Bytes written.
    pub write_bytes: Option<u64>,
    /// `read_bytes` / the run's length, bytes per second.
    pub mean_read_bytes_per_s: Option<f64>,
    /// `write_bytes` / the run's length, bytes per second.
    pub mean_write_bytes_per_s: Option<f64>,
    /// Bin with the most bytes read per second.
    pub peak_read: Option<Peak>,
    /// Bin with the most bytes written per second.
    pub peak_write: Option<Peak>,
    /// Bin with the most bytes per second both ways.
    pub peak: Option<Peak>,
}

impl Dram {
    /// From totals by event name, the run's length and traffic over time.
    pub fn of(totals: &Counts, duration_ns: u64, curve: &BandwidthCurve) -> Self {
        let get = |id| catalogue::name(id).and_then(|name| totals.get(name).copied());
        let read_bytes = get(catalogue::DRAM_READ_BYTES);
        let write_bytes = get(catalogue::DRAM_WRITE_BYTES);
        let mean =
            |bytes: u64| (duration_ns > 0).then(|| bytes as f64 * NS_PER_S / duration_ns as f64);
        let peak = |values: Vec<u64>| curve.curve(values).peak().filter(|p| p.per_s > 0.0);
        // A direction that was not recorded adds nothing to the peak of both.
        let known = curve.read_bytes.as_ref().or(curve.write_bytes.as_ref());
        let none = vec![0; known.map_or(0, Vec::len)];
        let read = curve.read_bytes.as_ref().unwrap_or(&none);
        let write = curve.write_bytes.as_ref().unwrap_or(&none);
        let pairs = read.iter().zip(write);
        Dram {
            read_bytes,
            write_bytes,
            mean_read_bytes_per_s: read_bytes.and_then(mean),
            mean_write_bytes_per_s: write_bytes.and_then(mean),
            peak_read: peak(read.clone()),
            peak_write: peak(write.clone()),
            peak: peak(pairs.map(|(r, w)| r.saturating_add(*w)).collect()),
        }
    }
}

/// Memory traffic over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BandwidthCurve {
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// End of the curve, nanoseconds since the recording began; the last bin
    /// may reach past it.
    pub duration_ns: u64,
    /// Bytes read in each bin; `None` where the recording lacks the event.
    pub read_bytes: Option<Vec<u64>>,
    /// Bytes written in each bin; `None` as for `read_bytes`.
    pub write_bytes: Option<Vec<u64>>,
}

impl BandwidthCurve {
    /// The traffic among some curves. An event that has a total but no row happened
    /// at no time that was recorded.
    pub fn of(curves: &Curves, totals: &Counts) -> Self {
        let values = |event: EventId| {
            let name = catalogue::name(event).unwrap_or_default();
            let known = curves.has(event) || totals.contains_key(name);
            known.then(|| curves.event(event).values)
        };
        BandwidthCurve {
            bin_ns: curves.bin_ns,
            duration_ns: curves.duration_ns,
            read_bytes: values(catalogue::DRAM_READ_BYTES),
            write_bytes: values(catalogue::DRAM_WRITE_BYTES),
        }
    }

    /// Mean bytes read per second in each of `columns` equal parts of the time.
    pub fn read_rates(&self, columns: usize) -> Vec<f64> {
        self.curve(self.read_bytes.clone().unwrap_or_default())
            .rates(columns)
    }

    /// Mean bytes written per second in each of `columns` equal parts.
    pub fn write_rates(&self, columns: usize) -> Vec<f64> {
        self.curve(self.write_bytes.clone().unwrap_or_default())
            .rates(columns)
    }

    fn curve(&self, values: Vec<u64>) -> Curve {
        Curve {
            event: catalogue::DRAM_READ_BYTES,
            thread: None,
            bin_ns: self.bin_ns,
            duration_ns: self.duration_ns,
            values,
        }
    }
}
