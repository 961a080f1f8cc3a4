//! The rows of a dataset that one recording makes.
//!
//! Names come from the recording alone ([`Symbols::recorded`]). The index opens no other file that a
//! recording names, and two machines make the same rows of it.

use std::collections::BTreeMap;

use memgauge_analyze::{
    BothWays, HotRow, HotTable, IoSummary, Options, Rank, RegionTable, Summary, file_name,
    summarise,
};
use memgauge_recording::Recording;
use memgauge_report::{Measured, MetricUnit};
use memgauge_symbols::Symbols;
use memgauge_trace::{Manifest, Provenance, catalogue};

use crate::measurement::{Measurement, PlaceName, Scope};
use crate::partition::{DatasetPartition, day};
use crate::recording_row::RecordingRow;

/// Sum of all stalled cycles, which reports call `stalled`.
pub(crate) const STALLED_CYCLES: &str = "stalled_cycles";

/// Service of recordings without such a label and without a command.
const UNKNOWN: &str = "unknown";

/// Rows of one recording.
pub(crate) struct RecordingRows {
    pub(crate) recording: RecordingRow,
    pub(crate) measurements: Vec<Measurement>,
    /// Messages about damaged parts; empty for an intact recording.
    pub(crate) problems: Vec<String>,
}

/// Labels of a recording: its own, and `defaults` where it has none of the name.
fn labels(manifest: &Manifest, defaults: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut labels = defaults.clone();
    labels.extend(manifest.labels.clone());
    labels
}

/// Identifies a recording. Copies have the same ID, also if labels or names were added to one.
pub(crate) fn recording_id(manifest: &Manifest) -> String {
    let started_ns = started_unix_ns(manifest);
    let mut hash = crc32fast::Hasher::new();
    let texts = [
        manifest.host.name.as_str(),
        manifest.source.kind.name(),
        &manifest.recorder,
    ];
    let command = manifest.command.iter().map(String::as_str);
    for text in texts.into_iter().chain(command) {
        hash.update(text.as_bytes());
        hash.update(&[0]);
    }
    if manifest.started_unix_ns == 0 {
        // Old recordings only have seconds. Their totals tell them apart.
        for (name, total) in &manifest.totals {
            hash.update(name.as_bytes());
            hash.update(&total.to_le_bytes());
        }
    }
    format!("{started_ns:016x}-{:08x}", hash.finalize())
}

fn started_unix_ns(manifest: &Manifest) -> u64 {
    match manifest.started_unix_ns {
        0 => manifest.started_unix_s.saturating_mul(1_000_000_000),
        ns => ns,
    }
}

/// Service and host of a recording: its labels, or else its program and the machine's name.
pub fn service_and_host(manifest: &Manifest) -> [String; 2] {
    let partition = partition(manifest, &BTreeMap::new());
    [partition.service, partition.host]
}

/// Day, service and host of a recording.
pub(crate) fn partition(
    manifest: &Manifest,
    defaults: &BTreeMap<String, String>,
) -> DatasetPartition {
    let labels = labels(manifest, defaults);
    let program = manifest.command.first().map(|path| file_name(path));
    let label = |name| labels.get(name).map(String::as_str);
    let or_unknown = |text: Option<&str>| {
        let text = text.filter(|text| !text.is_empty()).unwrap_or(UNKNOWN);
        text.to_owned()
    };
    DatasetPartition {
        day: day(started_unix_ns(manifest)),
        service: or_unknown(label("service").or(program)),
        host: or_unknown(label("host").or(Some(&manifest.host.name))),
    }
}

/// All functions, lines and regions. The dataset has no instructions, types and heat maps.
fn options(rank: Option<Rank>) -> Options {
    let mut options = Options::every_place(rank);
    options.limits.instructions = false;
    options.types = false;
    options.heat = false;
    options
}

/// Reads a recording. The row has no path and no file yet.
///
/// # Errors
/// The file system fails.
pub(crate) fn measure(
    recording: &Recording,
    defaults: &BTreeMap<String, String>,
) -> memgauge_recording::Result<RecordingRows> {
    let manifest = recording.manifest();
    let mut symbols = Symbols::recorded(recording);
    let summary = summarise(recording, &mut symbols, &options(None))?;
    let mut rows = SummedRows::new(&summary, recording_id(manifest));
    rows.add_totals(&summary);
    rows.add_hot(&summary);
    for rank in other_sampled_events(&summary, manifest) {
        // A summary has functions of one sampled event.
        rows.add_hot(&summarise(recording, &mut symbols, &options(Some(rank)))?);
    }
    rows.add_data(&summary);
    rows.add_io(&summary);
    let problems = match recording.is_damaged() {
        true => summary.problems.clone(),
        false => Vec::new(),
    };
    let measurements = rows.finish();
    let mut metrics: Vec<String> = (measurements.iter())
        .filter(|row| row.scope == Scope::Function)
        .map(|row| row.metric.clone())
        .collect();
    metrics.sort_unstable();
    metrics.dedup();
    let mut losses = BTreeMap::new();
    for loss in &summary.losses {
        *losses.entry(loss.kind.clone()).or_default() += loss.count;
    }
    let settings = &manifest.source.settings;
    let recording = RecordingRow {
        id: recording_id(manifest),
        file: String::new(),
        curve_file: None,
        partition: partition(manifest, defaults),
        labels: labels(manifest, defaults),
        command: manifest.command.clone(),
        machine: manifest
            .machine
            .as_ref()
            .map(|machine| machine.name.clone()),
        source: manifest.source.kind.name().to_owned(),
        recorder: manifest.recorder.clone(),
        format_version: manifest.format_version,
        started_unix_ns: started_unix_ns(manifest),
        duration_ns: summary.run.duration_ns,
        wall_s: summary.run.wall_s,
        kernel: manifest.host.kernel.clone(),
        cpu: manifest.host.cpu.clone(),
        cpus: manifest.host.cpus,
        memory_bytes: manifest.host.memory_bytes,
        estimated_from: summary.estimated().map(|sets| sets.one_in),
        only_regions: manifest.source.only_regions().map(str::to_owned),
        seed: settings.seed.map(|seed| seed.to_string()),
        losses,
        metrics,
        path: String::new(),
    };
    Ok(RecordingRows {
        recording,
        measurements,
        problems,
    })
}

/// Sampled events beside the one whose functions the summary has.
fn other_sampled_events(summary: &Summary, manifest: &Manifest) -> Vec<Rank> {
    if summary.hot.functions.samples.is_none() {
        return Vec::new();
    }
    let events = summary
        .sampling
        .iter()
        .flat_map(|sampling| &sampling.events);
    let others =
        events.filter(|event| event.samples > 0 && event.event != summary.hot.functions.rank);
    others
        .filter_map(|event| Rank::named(&event.event, manifest).ok())
        .collect()
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SumKey {
    scope: Scope,
    place: PlaceName,
    metric: String,
}

/// Sum of the rows of one key, with the distances to the ends of its interval, which add up as if
/// the rows were independent.
#[derive(Clone, Copy, Debug, Default)]
struct IntervalSum {
    value: f64,
    down: f64,
    up: f64,
    has_interval: bool,
    samples: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct MetricFacts {
    unit: &'static str,
    provenance: &'static str,
}

/// Rows of a recording, summed by name: two processes that run the same program have one row.
struct SummedRows {
    recording: String,
    metrics: BTreeMap<String, MetricFacts>,
    /// Provenance of numbers that are no event's.
    provenance: &'static str,
    sums: BTreeMap<SumKey, IntervalSum>,
}

const NS: &str = "ns";

impl SummedRows {
    fn new(summary: &Summary, recording: String) -> SummedRows {
        let facts = summary.events.iter().map(|event| {
            let facts = MetricFacts {
                unit: event.unit.name(),
                provenance: event.provenance.name(),
            };
            (event.name.clone(), facts)
        });
        let is_modelled = summary.recording.machine.is_some();
        let provenance = match is_modelled {
            true => Provenance::Modelled,
            false => Provenance::Counted,
        };
        SummedRows {
            recording,
            metrics: facts.collect(),
            provenance: provenance.name(),
            sums: BTreeMap::new(),
        }
    }

    fn facts(&self, metric: &str) -> MetricFacts {
        if let Some(facts) = self.metrics.get(metric) {
            return *facts;
        }
        let of_level = metric
            .split_once('.')
            .map(|(level, _)| format!("{level}.miss"));
        let of_level = of_level.and_then(|miss| self.metrics.get(&miss));
        let provenance = of_level.map_or(self.provenance, |facts| facts.provenance);
        let unit = match metric {
            STALLED_CYCLES => "cycles",
            _ => match MetricUnit::of(metric) {
                MetricUnit::Count => "count",
                MetricUnit::Bytes => "bytes",
                MetricUnit::Nanoseconds => NS,
                MetricUnit::Ratio => "ratio",
                MetricUnit::PerThousand => "per 1000 instructions",
            },
        };
        MetricFacts { unit, provenance }
    }

    fn sum(&mut self, scope: Scope, place: &PlaceName, metric: &str) -> &mut IntervalSum {
        let key = SumKey {
            scope,
            place: place.clone(),
            metric: metric.to_owned(),
        };
        self.sums.entry(key).or_default()
    }

    fn add(&mut self, scope: Scope, place: &PlaceName, metric: &str, value: f64) {
        self.sum(scope, place, metric).value += value;
    }

    /// Counts by event, and their stalled cycles.
    fn add_counts(&mut self, scope: Scope, place: &PlaceName, counts: &BTreeMap<String, u64>) {
        for (metric, &count) in counts.iter().filter(|(_, count)| **count > 0) {
            self.add(scope, place, metric, count as f64);
        }
        let stalled = stalled_cycles(counts);
        if stalled > 0 {
            self.add(scope, place, STALLED_CYCLES, stalled as f64);
        }
    }

    fn add_totals(&mut self, summary: &Summary) {
        let place = PlaceName::default();
        let measured = Measured::of(summary);
        for (metric, &value) in &measured.metrics {
            let sum = self.sum(Scope::Total, &place, metric);
            sum.value = value;
            if let Some([low, high]) = measured.intervals.get(metric) {
                sum.has_interval = true;
                (sum.down, sum.up) = (value - low, high - value);
            }
        }
        let stalled = stalled_cycles(&summary.totals);
        if stalled > 0 {
            self.add(Scope::Total, &place, STALLED_CYCLES, stalled as f64);
        }
    }

    fn add_hot(&mut self, summary: &Summary) {
        self.add_hot_table(Scope::Function, &summary.hot.functions, function_name);
        self.add_hot_table(Scope::Line, &summary.hot.lines, line_name);
    }

    fn add_hot_table(&mut self, scope: Scope, table: &HotTable, name: fn(&HotRow) -> PlaceName) {
        for row in &table.rows {
            let place = name(row);
            self.add_counts(scope, &place, &row.counts);
            for (metric, interval) in &row.intervals {
                let count = row.counts.get(metric).copied().unwrap_or(0);
                if count > 0 {
                    let down = count as f64 - interval.low as f64;
                    let up = interval.high as f64 - count as f64;
                    self.sum(scope, &place, metric).widen(down, up);
                }
            }
            let Some(samples) = row.samples else {
                continue;
            };
            let sum = self.sum(scope, &place, &table.rank);
            *sum.samples.get_or_insert(0) += samples;
            if let (Some(low), Some(high)) = (row.share_low, row.share_high) {
                let total = table.total as f64;
                let value = row.value as f64;
                sum.widen(value - low * total, high * total - value);
            }
        }
    }

    fn add_data(&mut self, summary: &Summary) {
        for table in &summary.regions {
            self.add_regions(table);
        }
        for row in summary.data.iter().flat_map(|table| &table.rows) {
            let place = named(known_name(&row.name));
            let mut counts = row.counts.clone();
            // Cycles of data are stalled cycles.
            counts.remove("cycles");
            self.add_counts(Scope::Data, &place, &counts);
        }
        for site in summary.heap.iter().flat_map(|heap| &heap.sites) {
            let place = named(&site.name);
            let sums = [
                ("heap.peak_bytes", site.at_peak_bytes),
                ("heap.allocated_bytes", site.bytes),
                ("heap.allocations", site.allocations),
            ];
            for (metric, value) in sums.into_iter().filter(|(_, value)| *value > 0) {
                self.add(Scope::Allocation, &place, metric, value as f64);
            }
        }
        for region in &summary.code_regions {
            let place = named(&region.name);
            self.add_counts(Scope::Interest, &place, &region.counts);
            self.add(Scope::Interest, &place, "time_ns", region.time_ns as f64);
            self.add(Scope::Interest, &place, "entries", region.entries as f64);
        }
    }

    /// Bytes of programs at each device, and of devices by their own count.
    fn add_io(&mut self, summary: &Summary) {
        let Some(io) = &summary.io else {
            return;
        };
        for line in &io.lines {
            let place = PlaceName {
                module: line.device.clone(),
                ..named(&line.command)
            };
            self.add_moved(Scope::Process, &place, &line.moved);
        }
        for device in &io.devices {
            let place = named(&device.name);
            self.add_moved(Scope::Device, &place, &device.counted);
            let unattributed = device.unattributed_in_bytes + device.unattributed_out_bytes;
            self.add_bytes(
                Scope::Device,
                &place,
                IoSummary::UNATTRIBUTED_BYTES,
                unattributed,
            );
        }
    }

    fn add_moved(&mut self, scope: Scope, place: &PlaceName, moved: &BothWays) {
        self.add_bytes(scope, place, IoSummary::BYTES, moved.bytes());
        self.add_bytes(scope, place, IoSummary::IN_BYTES, moved.r#in.bytes);
        self.add_bytes(scope, place, IoSummary::OUT_BYTES, moved.out.bytes);
    }

    fn add_bytes(&mut self, scope: Scope, place: &PlaceName, metric: &str, bytes: u64) {
        if bytes > 0 {
            self.add(scope, place, metric, bytes as f64);
        }
    }

    fn add_regions(&mut self, table: &RegionTable) {
        for row in &table.rows {
            let sum = self.sum(Scope::Region, &named(known_name(&row.name)), &table.event);
            sum.value += row.events as f64;
            *sum.samples.get_or_insert(0) += row.samples;
            if let (Some(low), Some(high)) = (row.share_low, row.share_high) {
                let (total, value) = (table.events as f64, row.events as f64);
                sum.widen(value - low * total, high * total - value);
            }
        }
    }

    fn finish(self) -> Vec<Measurement> {
        let facts: BTreeMap<String, MetricFacts> = (self.sums.keys())
            .map(|key| (key.metric.clone(), self.facts(&key.metric)))
            .collect();
        let row = |(key, sum): (SumKey, IntervalSum)| {
            let facts = facts.get(&key.metric).copied();
            let facts = facts.expect("SANITY: facts has the metrics of all keys");
            let ends = [(sum.value - sum.down).max(0.0), sum.value + sum.up];
            Measurement {
                recording: self.recording.clone(),
                scope: key.scope,
                place: key.place,
                metric: key.metric,
                unit: facts.unit.into(),
                provenance: match sum.samples {
                    Some(_) => Provenance::Sampled.name().into(),
                    None => facts.provenance.into(),
                },
                value: sum.value,
                interval: sum.has_interval.then_some(ends),
                samples: sum.samples,
            }
        };
        self.sums.into_iter().map(row).collect()
    }
}

impl IntervalSum {
    fn widen(&mut self, down: f64, up: f64) {
        self.has_interval = true;
        self.down = self.down.hypot(down);
        self.up = self.up.hypot(up);
    }
}

fn stalled_cycles(counts: &BTreeMap<String, u64>) -> u64 {
    let names = catalogue::STALLS
        .iter()
        .filter_map(|&id| catalogue::name(id));
    names.filter_map(|name| counts.get(name)).sum()
}

fn named(name: &str) -> PlaceName {
    PlaceName {
        name: name.to_owned(),
        ..PlaceName::default()
    }
}

/// Addresses of nameless memory differ from run to run, and would make a name for each.
fn known_name(name: &str) -> &str {
    match name.starts_with("anon 0x") {
        true => "anon",
        false => name,
    }
}

/// Paths differ between machines, file names do not. A function without a symbol is named by its
/// module.
fn function_name(row: &HotRow) -> PlaceName {
    let has_symbol = row.function != row.module;
    let name = match has_symbol {
        true => &row.function,
        false => file_name(&row.module),
    };
    PlaceName {
        name: name.to_owned(),
        function: String::new(),
        module: file_name(&row.module).to_owned(),
    }
}

/// Instructions without a line have one row for each function, since their offsets would be too
/// many names.
fn line_name(row: &HotRow) -> PlaceName {
    let function = function_name(row);
    let name = match (&row.file, row.line) {
        (Some(file), Some(line)) => format!("{}:{line}", file_name(file)),
        _ => String::new(),
    };
    PlaceName {
        name,
        function: function.name,
        module: function.module,
    }
}
