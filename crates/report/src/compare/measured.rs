//! The numbers of a run that are compared, which a baseline file contains.

use std::collections::BTreeMap;

use memgauge_analyze::{CauseKind, HotRow, HotTable, IoSummary, RegionTable, Summary, file_name};
use serde::{Deserialize, Serialize};

use super::headline::FILE_WAIT;
use super::metric_intervals;
use crate::sections::set_warnings;

/// Version of the form of [`Measured`].
const VERSION: u32 = 1;

/// Counts by location and event.
pub(crate) type PlaceCounts = BTreeMap<String, BTreeMap<String, u64>>;

/// 95 % intervals of such counts.
pub(crate) type PlaceIntervals = BTreeMap<String, BTreeMap<String, [u64; 2]>>;

/// The numbers of a run that are compared. A baseline file contains them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Version of this structure.
    pub memgauge_baseline: u32,
    /// Name of the modelled machine. `None` if none was modelled.
    pub machine: Option<String>,
    /// File name of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// One in how many cache sets was simulated to estimate the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_from: Option<u32>,
    /// Warnings about those estimates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Regions of interest that were recorded. `None` if the whole run was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_regions: Option<String>,
    /// Seed of the program's random numbers. `None` if it was not fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// Whole-run numbers by name.
    pub metrics: BTreeMap<String, f64>,
    /// Exact counts by function and event. Empty if functions were sampled.
    pub functions: BTreeMap<String, BTreeMap<String, u64>>,
    /// 95 % intervals of metrics that are estimates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<String, [f64; 2]>,
    /// 95 % intervals of the functions' counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub function_intervals: BTreeMap<String, BTreeMap<String, [u64; 2]>>,
    /// Shares of samples by function, if functions were sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Shares>,
    /// Exact counts by source line and event. Baseline files omit them because there are many.
    #[serde(skip)]
    pub lines: BTreeMap<String, BTreeMap<String, u64>>,
    /// 95 % intervals of lines' counts.
    #[serde(skip)]
    pub line_intervals: BTreeMap<String, BTreeMap<String, [u64; 2]>>,
    /// Counts by data and event: allocation sites, variables and files. Anonymous memory is omitted
    /// because its address varies between runs. Baseline files omit them.
    #[serde(skip)]
    pub data: BTreeMap<String, BTreeMap<String, u64>>,
    /// Bytes of allocations at the peak, by allocation site. Baseline files omit them.
    #[serde(skip)]
    pub heap: BTreeMap<String, BTreeMap<String, u64>>,
    /// Bytes that programs moved, by program and device. Baseline files omit them.
    #[serde(skip)]
    pub io: BTreeMap<String, BTreeMap<String, u64>>,
    /// Shares of memory regions, by sampled event. Baseline files omit them.
    #[serde(skip)]
    pub regions: Vec<Shares>,
    /// True if parts of the recording could not be read. A summary does not show that, because
    /// files without names look the same, so the code that has the recording sets it.
    #[serde(skip)]
    pub is_damaged: bool,
}

/// Parts of an event's samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// The event sampled.
    pub event: String,
    /// Its samples.
    pub samples: u64,
    /// Part of its events by place, in 0..=1.
    pub shares: BTreeMap<String, f64>,
}

impl Measured {
    /// Returns the numbers of a summary that are compared. Wall time and memgauge's own cost are left out.
    pub fn of(summary: &Summary) -> Measured {
        let machine = summary.recording.machine.as_ref();
        let program = summary.recording.command.first();
        Measured {
            memgauge_baseline: VERSION,
            machine: machine.map(|machine| machine.name.clone()),
            program: program.map(|path| file_name(path).to_owned()),
            estimated_from: summary.estimated().map(|sets| sets.one_in),
            warnings: (summary.estimated())
                .map(|sets| set_warnings(summary, sets))
                .unwrap_or_default(),
            only_regions: (summary.recording.source.only_regions()).map(str::to_owned),
            seed: (summary.recording.source.settings.seed).map(|seed| seed.to_string()),
            metrics: metrics(summary),
            intervals: metric_intervals::of(summary),
            function_intervals: intervals(&summary.hot.functions, function),
            line_intervals: intervals(&summary.hot.lines, line),
            functions: exact(&summary.hot.functions, function),
            sampled: sampled(&summary.hot.functions),
            lines: exact(&summary.hot.lines, line),
            data: data(summary),
            heap: heap(summary),
            io: io(summary),
            regions: (summary.regions.iter().map(regions))
                .chain(sampled_sharing(summary))
                .collect(),
            is_damaged: false,
        }
    }

    /// Reads a baseline file.
    ///
    /// # Errors
    /// The text is no baseline. The message says why.
    pub fn parse(text: &str) -> Result<Measured, String> {
        let measured: Measured = serde_json::from_str(text).map_err(|why| why.to_string())?;
        match measured.memgauge_baseline {
            VERSION => Ok(measured),
            other => Err(format!(
                "its version is {other}, this memgauge reads {VERSION}"
            )),
        }
    }

    /// A baseline file: sorted, ending in a newline.
    pub fn file(&self) -> String {
        format!("{:#}\n", serde_json::json!(self))
    }

    /// Replaces the program's name in the names of its functions and lines, because two builds of a
    /// program often have different names.
    pub(crate) fn renamed(self, program: Option<&str>) -> Measured {
        let (Some(own), Some(other)) = (self.program.as_deref(), program) else {
            return self;
        };
        if own == other {
            return self;
        }
        let (own, other) = (format!(" ({own})"), format!(" ({other})"));
        let name = |name: String| match name.strip_suffix(&own) {
            Some(place) => format!("{place}{other}"),
            None => name,
        };
        let shares = |shares: Shares| Shares {
            shares: shares
                .shares
                .into_iter()
                .map(|(key, share)| (name(key), share))
                .collect(),
            ..shares
        };
        let (functions, intervals) = (self.functions.into_iter(), self.function_intervals);
        Measured {
            functions: functions.map(|(key, counts)| (name(key), counts)).collect(),
            function_intervals: (intervals.into_iter())
                .map(|(key, intervals)| (name(key), intervals))
                .collect(),
            sampled: self.sampled.map(shares),
            regions: self.regions.into_iter().map(shares).collect(),
            ..self
        }
    }
}

fn metrics(summary: &Summary) -> BTreeMap<String, f64> {
    let totals = summary.totals.iter();
    let mut metrics: BTreeMap<String, f64> = totals
        .map(|(name, &value)| (name.clone(), value as f64))
        .collect();
    metrics.insert("duration_ns".to_owned(), summary.run.duration_ns as f64);
    if summary.recording.machine.is_some() {
        // Shorter waits are noise of any run.
        let has_finding = summary
            .causes
            .iter()
            .any(|cause| cause.kind == CauseKind::FileWaits);
        let waited_ns = match has_finding {
            true => summary.own_cost.program_file_wait_s * 1e9,
            false => 0.0,
        };
        metrics.insert(FILE_WAIT.to_owned(), waited_ns.round());
    }
    for level in &summary.levels {
        let name = serde_json::json!(level.name);
        let name = name.as_str().unwrap_or_default();
        for (what, value) in [("miss_ratio", level.miss_ratio), ("mpki", level.mpki)] {
            metrics.extend(value.map(|value| (format!("{name}.{what}"), value)));
        }
    }
    for (name, count) in metric_intervals::sampled_sharing(summary) {
        metrics.entry(name.to_owned()).or_insert(count as f64);
    }
    for device in summary.io.iter().flat_map(|io| &io.devices) {
        for (way, bytes) in [
            ("in_bytes", device.counted.r#in.bytes),
            ("out_bytes", device.counted.out.bytes),
        ] {
            let sum = metrics.entry(format!("io.{}.{way}", device.name));
            *sum.or_default() += bytes as f64;
        }
    }
    metrics
}

/// Sampled HITMs by line. Lines without a variable or allocation differ between runs.
fn sampled_sharing(summary: &Summary) -> Option<Shares> {
    let sharing = summary.sharing.as_ref();
    let sharing = sharing.filter(|sharing| sharing.totals.is_estimate())?;
    let mut shares = BTreeMap::new();
    for line in sharing
        .lines
        .iter()
        .filter(|line| !line.name.starts_with(NAMELESS))
    {
        let share = line.counts.hitm as f64 / sharing.totals.hitm.max(1) as f64;
        *shares.entry(line.name.clone()).or_default() += share;
    }
    Some(Shares {
        event: metric_intervals::HITM.to_owned(),
        samples: sharing.totals.hitm_samples,
        shares,
    })
}

/// A function with the file name of its module, which is the same on all machines.
fn function(row: &HotRow) -> Option<String> {
    Some(format!("{} ({})", row.function, file_name(&row.module)))
}

/// A source line with its function. `None` if the line is unknown.
fn line(row: &HotRow) -> Option<String> {
    let file = file_name(row.file.as_deref()?);
    Some(format!("{file}:{} {}", row.line?, row.function))
}

/// Sums by name of the rows that were counted.
fn exact(table: &HotTable, name: fn(&HotRow) -> Option<String>) -> PlaceCounts {
    let mut places = PlaceCounts::new();
    let rows = table.rows.iter().filter(|row| row.samples.is_none());
    for (row, name) in rows.filter_map(|row| Some((row, name(row)?))) {
        let counts = places.entry(name).or_default();
        for (event, &count) in &row.counts {
            *counts.entry(event.clone()).or_default() += count;
        }
    }
    places
}

/// Intervals by name of the rows that were estimated. Intervals of rows with the same name are
/// added up as if they were independent.
fn intervals(table: &HotTable, name: fn(&HotRow) -> Option<String>) -> PlaceIntervals {
    let mut sums: BTreeMap<String, BTreeMap<String, [f64; 3]>> = BTreeMap::new();
    for (row, name) in table.rows.iter().filter_map(|row| Some((row, name(row)?))) {
        for (event, interval) in &row.intervals {
            let count = row.counts.get(event).copied().unwrap_or(0) as f64;
            let of_place = sums.entry(name.clone()).or_default();
            let [value, down, up] = of_place.entry(event.clone()).or_default();
            *value += count;
            *down = down.hypot(count - interval.low as f64);
            *up = up.hypot(interval.high as f64 - count);
        }
    }
    let ends = |[value, down, up]: [f64; 3]| [(value - down).max(0.0), value + up];
    let ends = |of: [f64; 3]| ends(of).map(|end| end.round() as u64);
    let of_place = |events: BTreeMap<String, [f64; 3]>| {
        events.into_iter().map(|(event, of)| (event, ends(of)))
    };
    (sums.into_iter())
        .map(|(name, events)| (name, of_place(events).collect()))
        .collect()
}

fn data(summary: &Summary) -> PlaceCounts {
    let mut places = PlaceCounts::new();
    let rows = summary.data.iter().flat_map(|table| &table.rows);
    for row in rows.filter(|row| !row.name.starts_with(NAMELESS)) {
        let counts = places.entry(row.name.clone()).or_default();
        for (event, &count) in &row.counts {
            *counts.entry(event.clone()).or_default() += count;
        }
    }
    places
}

/// Begin of the names of memory that has only an address.
const NAMELESS: &str = "anon 0x";

fn heap(summary: &Summary) -> PlaceCounts {
    let mut places = PlaceCounts::new();
    for site in summary.heap.iter().flat_map(|heap| &heap.sites) {
        let counts = places.entry(site.name.clone()).or_default();
        *counts.entry(HEAP_PEAK.to_owned()).or_default() += site.at_peak_bytes;
    }
    places
}

/// Bytes by program and device. Process IDs differ between runs.
fn io(summary: &Summary) -> PlaceCounts {
    let mut places = PlaceCounts::new();
    for line in summary.io.iter().flat_map(|io| &io.lines) {
        let counts = places.entry(format!("{} ({})", line.command, line.device));
        let sum = counts.or_default().entry(IoSummary::BYTES.to_owned());
        *sum.or_default() += line.moved.bytes();
    }
    places
}

/// The event by which the heap is compared.
pub(crate) const HEAP_PEAK: &str = "heap.peak_bytes";

fn sampled(table: &HotTable) -> Option<Shares> {
    let mut shares = BTreeMap::new();
    for row in &table.rows {
        *shares.entry(function(row)?).or_default() += row.share.unwrap_or(0.0);
    }
    Some(Shares {
        event: table.rank.clone(),
        samples: table.samples?,
        shares,
    })
}

/// Regions by name, in all processes.
fn regions(table: &RegionTable) -> Shares {
    let mut shares = BTreeMap::new();
    for row in &table.rows {
        *shares.entry(row.name.clone()).or_default() += row.share.unwrap_or(0.0);
    }
    Shares {
        event: table.event.clone(),
        samples: table.samples,
        shares,
    }
}
