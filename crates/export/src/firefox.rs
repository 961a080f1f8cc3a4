//! Writes the Firefox Profiler's processed profile format as JSON: samples with their stacks, one
//! track per thread and event, a counter track for the curve of each event, and markers for the
//! values that the program reported.
//!
//! Versions of the format are steps of its upgrades (`CHANGELOG-formats.md` of the profiler): newer
//! readers upgrade older files. This is version 62, the first in which a counter describes how it
//! is drawn. Since version 60, all threads share the tables of stacks. Rejected: the crate that
//! writes version 55. Its frames have no lines and no inlined functions, and its weights are
//! limited to 2³¹.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use memgauge_analyze::{StackedSample, StackedSamples, Summary, ThreadRow, TimedSpan, Timeline};
use memgauge_trace::{CodeValue, EventId, Pid, Tid, Unit};
use serde::Serialize;
use serde_json::{Value, json};

use super::Error;
use super::curves::{bin_end, curves};
use super::places::{provenance, unit};

/// Value of `meta.preprocessedProfileVersion`.
const VERSION: u32 = 62;

/// Indices of categories.
const USER: u32 = 0;
const KERNEL: u32 = 1;

/// Phase of a marker with a start and an end (`INTERVAL`).
const INTERVAL: u32 = 1;

/// Phase of a marker at one time (`INSTANT`).
const INSTANT: u32 = 0;

/// Type of a resource that is a library.
const LIBRARY: u32 = 1;

/// Marks a missing library, address or resource.
const NONE: i64 = -1;

#[derive(Serialize)]
struct Profile {
    meta: Value,
    libs: Vec<Value>,
    pages: [(); 0],
    #[serde(rename = "profilerOverhead")]
    overhead: [(); 0],
    counters: Vec<Value>,
    shared: SharedTables,
    threads: Vec<ThreadTrack>,
}

/// Tables that all threads refer to by index.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct SharedTables {
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    resource_table: ResourceTable,
    native_symbols: NativeSymbols,
    sources: Sources,
    string_array: Vec<String>,
}

#[derive(Default, Serialize)]
struct StackTable {
    length: usize,
    prefix: Vec<Option<u32>>,
    frame: Vec<u32>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FrameTable {
    length: usize,
    address: Vec<i64>,
    inline_depth: Vec<u32>,
    category: Vec<u32>,
    subcategory: Vec<u32>,
    func: Vec<u32>,
    native_symbol: Vec<Option<u32>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FuncTable {
    length: usize,
    name: Vec<u32>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    resource: Vec<i64>,
    source: Vec<Option<u32>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
}

#[derive(Default, Serialize)]
struct ResourceTable {
    length: usize,
    lib: Vec<u32>,
    name: Vec<u32>,
    host: Vec<Option<u32>>,
    #[serde(rename = "type")]
    kind: Vec<u32>,
}

/// Always empty: all names are resolved already.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    length: usize,
    lib_index: [u32; 0],
    address: [u32; 0],
    name: [u32; 0],
    function_size: [u32; 0],
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sources {
    length: usize,
    id: Vec<Option<u32>>,
    filename: Vec<u32>,
    start_line: Vec<u32>,
    start_column: Vec<u32>,
    #[serde(rename = "sourceMapURL")]
    source_map_url: Vec<Option<u32>>,
}

/// A track: the samples of one event in one thread of the program.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThreadTrack {
    name: String,
    is_main_thread: bool,
    process_type: &'static str,
    process_name: String,
    process_startup_time: f64,
    process_shutdown_time: Option<f64>,
    register_time: f64,
    unregister_time: Option<f64>,
    paused_ranges: [(); 0],
    pid: String,
    tid: String,
    samples: Samples,
    markers: Markers,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Samples {
    length: usize,
    weight_type: &'static str,
    weight: Vec<u64>,
    stack: Vec<u32>,
    time: Vec<f64>,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Markers {
    length: usize,
    category: Vec<u32>,
    data: Vec<Value>,
    start_time: Vec<f64>,
    end_time: Vec<Option<f64>>,
    name: Vec<u32>,
    phase: Vec<u32>,
}

/// Values and regions belong to a thread rather than an event, so the first track of the thread
/// shows them.
type MarkersByThread<'a> = BTreeMap<(Pid, Tid), Vec<Marker<'a>>>;

/// A marker of a thread.
#[derive(Clone, Copy)]
enum Marker<'a> {
    Value(&'a CodeValue),
    /// A span inside the region with this name.
    Region(&'a str, &'a TimedSpan),
}

/// Writes a profile. `values` are the values that the program reported.
///
/// # Errors
/// There are neither samples nor curves, or writing failed.
pub(crate) fn write(
    summary: &Summary,
    stacked: &StackedSamples,
    values: &[CodeValue],
    out: &mut dyn Write,
) -> Result<(), Error> {
    let timeline = curves(summary);
    if stacked.samples.is_empty() && timeline.is_none() {
        return Err(Error::NoSamples);
    }
    let mut builder = TableBuilder::default();
    builder.stacks(stacked);
    let mut by_thread: MarkersByThread<'_> = BTreeMap::new();
    for value in values {
        let markers_of_thread = by_thread.entry((value.pid, value.tid)).or_default();
        markers_of_thread.push(Marker::Value(value));
    }
    let regions = summary.timeline.iter().flat_map(|t| &t.code_regions);
    for region in regions {
        for span in &region.spans {
            let markers_of_thread = by_thread.entry((span.4, span.5)).or_default();
            markers_of_thread.push(Marker::Region(&region.name, span));
        }
    }
    let threads = threads(summary, stacked, &mut by_thread, &mut builder);
    let counted = timeline.map(|timeline| counters(summary, timeline, &threads));
    let profile = Profile {
        meta: meta(summary, stacked),
        libs: builder.libs,
        pages: [],
        overhead: [],
        counters: counted.unwrap_or_default(),
        shared: builder.shared,
        threads,
    };
    serde_json::to_writer(out, &profile).map_err(|e| Error::Io(e.into()))
}

fn millis(time_ns: u64) -> f64 {
    time_ns as f64 / 1e6
}

fn meta(summary: &Summary, stacked: &StackedSamples) -> Value {
    let recording = &summary.recording;
    let tracks = track_lengths(stacked).into_iter().max().unwrap_or(0);
    // Average distance of a track's samples; the profiler draws each sample this wide.
    let interval_ns = summary.run.duration_ns / (tracks as u64).max(1);
    json!({
        "preprocessedProfileVersion": VERSION,
        // Version of the unprocessed format, which readers of this one ignore.
        "version": 24,
        "product": recording.command.first().map_or("memgauge", |c| c.as_str()),
        "importedFrom": recording.recorder,
        "arguments": recording.command.join(" "),
        "oscpu": format!("Linux {}", recording.host.kernel),
        "CPUName": recording.host.cpu,
        "logicalCPUs": recording.host.cpus,
        "mainMemory": recording.host.memory_bytes,
        "startTime": recording.started_unix_ns as f64 / 1e6,
        "profilingStartTime": 0.0,
        "profilingEndTime": millis(summary.run.duration_ns),
        "interval": millis(interval_ns.max(1)),
        "processType": 0,
        "stackwalk": 1,
        "debug": false,
        "symbolicated": true,
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "doesNotUseFrameImplementation": true,
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
        "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
        "categories": [
            {"name": "User", "color": "yellow", "subcategories": ["Other"]},
            {"name": "Kernel", "color": "orange", "subcategories": ["Other"]},
        ],
        "markerSchema": [{
            "name": "value",
            "description": "A number that the program reported",
            "display": ["marker-chart", "marker-table", "timeline-overview"],
            "chartLabel": "{marker.data.value}",
            "tableLabel": "{marker.name} = {marker.data.value}",
            "tooltipLabel": "{marker.name} = {marker.data.value}",
            "fields": [{"key": "value", "label": "Value", "format": "integer"}],
        }, {
            "name": "region",
            "description": "Time in a region of interest, or several short times close together",
            "display": ["marker-chart", "marker-table", "timeline-overview"],
            "chartLabel": "{marker.name}",
            "tableLabel": "{marker.name}: {marker.data.entries} entries",
            "tooltipLabel": "{marker.name}",
            "fields": [
                {"key": "entries", "label": "Entries", "format": "integer"},
                {"key": "inside", "label": "Time inside", "format": "duration"},
            ],
        }],
        "extra": extra(summary),
    })
}

/// Data without a time: totals, regions of interest, losses.
fn extra(summary: &Summary) -> Vec<Value> {
    let entry =
        |label: String, value: String| json!({"label": label, "format": "string", "value": value});
    let event = |(name, count): (&String, &u64)| {
        let how = provenance(summary, name);
        entry(
            name.clone(),
            format!("{count} {} ({how})", unit(summary, name)),
        )
    };
    let totals: Vec<Value> = summary.totals.iter().map(event).collect();
    let regions = summary.code_regions.iter().map(|region| {
        let counts = region.counts.iter().map(|(name, n)| format!("{name} {n}"));
        let counts: Vec<String> = counts.collect();
        let times = format!("{} entries, {} ms", region.entries, millis(region.time_ns));
        let all = [vec![times], counts].concat();
        entry(region.name.clone(), all.join(", "))
    });
    let losses = summary.losses.iter();
    let losses = losses.map(|loss| {
        entry(
            loss.meaning.clone(),
            format!("{} {}", loss.count, loss.detail),
        )
    });
    let clock = entry("clock".to_owned(), summary.recording.clock.clone());
    let section = |label: &str, entries: Vec<Value>| json!({"label": label, "entries": entries});
    let all = [
        section("memgauge", vec![clock]),
        section("Totals", totals),
        section("Regions of interest", regions.collect()),
        section("Losses", losses.collect()),
    ];
    let is_filled = |section: &Value| section["entries"] != json!([]);
    all.into_iter().filter(is_filled).collect()
}

/// Splits the samples by thread and event. They are sorted by both.
fn tracks(stacked: &StackedSamples) -> impl Iterator<Item = &[StackedSample]> {
    let same =
        |a: &StackedSample, b: &StackedSample| (a.pid, a.tid, a.event) == (b.pid, b.tid, b.event);
    stacked.samples.chunk_by(same)
}

fn track_lengths(stacked: &StackedSamples) -> Vec<usize> {
    tracks(stacked).map(<[StackedSample]>::len).collect()
}

fn threads(
    summary: &Summary,
    stacked: &StackedSamples,
    values: &mut MarkersByThread<'_>,
    builder: &mut TableBuilder,
) -> Vec<ThreadTrack> {
    let mut threads: Vec<ThreadTrack> = Vec::new();
    let mut numbers: HashMap<(Pid, Tid), u32> = HashMap::new();
    for samples in tracks(stacked) {
        let StackedSample {
            pid, tid, event, ..
        } = samples[0];
        let number = numbers.entry((pid, tid)).or_default();
        let mut track = thread(summary, pid, tid, Some((event, *number)));
        *number += 1;
        track.samples.length = samples.len();
        track.samples.weight = samples.iter().map(|s| s.period).collect();
        track.samples.stack = samples.iter().map(|s| s.stack).collect();
        track.samples.time = samples.iter().map(|s| millis(s.time_ns)).collect();
        track.markers = builder.markers(values.remove(&(pid, tid)).unwrap_or_default());
        threads.push(track);
    }
    let mut without_samples: Vec<(Pid, Tid)> = values.keys().copied().collect();
    if threads.is_empty() && without_samples.is_empty() {
        // The profiler shows counter tracks only next to a thread.
        let first = summary.threads.first();
        without_samples.push(first.map_or_else(Default::default, |t| (t.pid, t.tid)));
    }
    for (pid, tid) in without_samples {
        let mut track = thread(summary, pid, tid, None);
        track.markers = builder.markers(values.remove(&(pid, tid)).unwrap_or_default());
        threads.push(track);
    }
    threads
}

/// Creates a thread's track for an event, which is the `number`-th event of the thread.
fn thread(summary: &Summary, pid: Pid, tid: Tid, event: Option<(EventId, u32)>) -> ThreadTrack {
    let is_thread = |row: &&ThreadRow| (row.pid, row.tid) == (pid, tid);
    let row = summary.threads.iter().find(is_thread);
    let program = row.map_or("", |row| file_name(&row.program));
    let def = event.and_then(|(id, _)| summary.events.iter().find(|def| def.id == id));
    let name = match def {
        Some(def) => format!("{program} {tid}: {}", def.name, tid = tid.0),
        None => format!("{program} {}", tid.0),
    };
    let is_bytes = def.is_some_and(|def| def.unit == Unit::Bytes);
    ThreadTrack {
        name,
        is_main_thread: pid.0 == tid.0,
        process_type: "default",
        process_name: program.to_owned(),
        process_startup_time: 0.0,
        process_shutdown_time: None,
        register_time: millis(row.and_then(|row| row.start_ns).unwrap_or(0)),
        unregister_time: row.and_then(|row| row.end_ns).map(millis),
        paused_ranges: [],
        pid: pid.0.to_string(),
        tid: match event {
            None | Some((_, 0)) => tid.0.to_string(),
            Some((_, number)) => format!("{}.{number}", tid.0),
        },
        samples: Samples {
            weight_type: if is_bytes { "bytes" } else { "samples" },
            ..Samples::default()
        },
        markers: Markers::default(),
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Creates a counter track for each curve. A value is the increase since the previous one.
fn counters(summary: &Summary, timeline: &Timeline, threads: &[ThreadTrack]) -> Vec<Value> {
    let is_main = |thread: &ThreadTrack| thread.is_main_thread;
    let main = threads.iter().position(is_main).unwrap_or(0);
    let pid = threads.get(main).map_or("0", |thread| thread.pid.as_str());
    let counter = |(number, curve): (usize, &memgauge_analyze::TimedCurve)| {
        let mut at = timeline.start_ns;
        let mut times = vec![millis(at)];
        for _ in &curve.values {
            at = bin_end(timeline, at);
            times.push(millis(at));
        }
        let increments: Vec<u64> = [0]
            .into_iter()
            .chain(curve.values.iter().copied())
            .collect();
        let is_bytes = unit(summary, &curve.event) == "bytes";
        let how = provenance(summary, &curve.event);
        json!({
            "name": curve.event,
            // A counter of category Bandwidth has the words of network traffic, and emissions.
            "category": "Counter",
            "description": format!("{} ({how})", curve.event),
            "pid": pid,
            "mainThreadIndex": main,
            "samples": {
                "length": increments.len(),
                "time": times,
                "number": vec![0; increments.len()],
                "count": increments,
            },
            "display": {
                "graphType": "line-rate",
                "unit": if is_bytes { "bytes" } else { "" },
                "color": if is_bytes { "blue" } else { "grey" },
                "markerSchemaLocation": null,
                "sortWeight": if is_bytes { 10 } else { 50 + number },
                "label": format!("{} ({how})", curve.event),
                "tooltipRows": tooltip(&curve.event, is_bytes),
            },
        })
    };
    timeline.curves.iter().enumerate().map(counter).collect()
}

/// Tooltip of a counter track. Version 63 of the format lets a counter define it, and the page
/// keeps it when it upgrades an older version.
fn tooltip(event: &str, is_bytes: bool) -> Value {
    let row = |source: &str, unit: &str, label: String| json!({"type": "value", "source": source, "format": {"unit": unit}, "label": label});
    match is_bytes {
        false => json!([row("count", "number", event.to_owned())]),
        true => json!([
            row("rate", "bytes-per-second", format!("{event} per second")),
            row("accumulated", "bytes", format!("{event} up to this time")),
            row(
                "count-range",
                "bytes",
                format!("{event} in the visible range")
            ),
        ]),
    }
}

/// Builds the shared tables.
#[derive(Default)]
struct TableBuilder {
    shared: SharedTables,
    strings: HashMap<String, u32>,
    functions: HashMap<(u32, i64, Option<u32>), u32>,
    sources: HashMap<u32, u32>,
    resources: HashMap<String, i64>,
    libs: Vec<Value>,
}

impl TableBuilder {
    fn string(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let id = self.shared.string_array.len() as u32;
        self.shared.string_array.push(text.to_owned());
        self.strings.insert(text.to_owned(), id);
        id
    }

    fn stacks(&mut self, stacked: &StackedSamples) {
        for frame in &stacked.frames {
            let function = self.function(frame);
            let table = &mut self.shared.frame_table;
            // The profiler supports addresses below 2³².
            let offset = frame.offset.and_then(|offset| u32::try_from(offset).ok());
            table.length += 1;
            table.address.push(offset.map_or(NONE, i64::from));
            table.inline_depth.push(frame.inline_depth);
            table
                .category
                .push(if frame.is_kernel() { KERNEL } else { USER });
            table.subcategory.push(0);
            table.func.push(function);
            table.native_symbol.push(None);
            table.inner_window_id.push(0);
            table.line.push(frame.line);
            table.column.push(None);
        }
        let table = &mut self.shared.stack_table;
        table.length = stacked.stacks.len();
        table.prefix = stacked.stacks.iter().map(|stack| stack.0).collect();
        table.frame = stacked.stacks.iter().map(|stack| stack.1).collect();
    }

    fn function(&mut self, frame: &memgauge_analyze::StackFrame) -> u32 {
        let name = self.string(&frame.function);
        let resource = self.resource(&frame.module);
        let source = frame.file.as_deref().map(|file| self.source(file));
        let key = (name, resource, source);
        if let Some(&known) = self.functions.get(&key) {
            return known;
        }
        let table = &mut self.shared.func_table;
        let id = table.length as u32;
        table.length += 1;
        table.name.push(name);
        table.is_js.push(false);
        table.relevant_for_js.push(false);
        table.resource.push(resource);
        table.source.push(source);
        table.line_number.push(None);
        table.column_number.push(None);
        self.functions.insert(key, id);
        id
    }

    fn source(&mut self, file: &str) -> u32 {
        let filename = self.string(file);
        let table = &mut self.shared.sources;
        *self.sources.entry(filename).or_insert_with(|| {
            let id = table.length as u32;
            table.length += 1;
            table.id.push(None);
            table.filename.push(filename);
            table.start_line.push(1);
            table.start_column.push(1);
            table.source_map_url.push(None);
            id
        })
    }

    /// Returns the library of a module; `NONE` for code that belongs to no file.
    fn resource(&mut self, module: &str) -> i64 {
        if !module.starts_with('/') {
            return NONE;
        }
        if let Some(&known) = self.resources.get(module) {
            return known;
        }
        let short = file_name(module);
        let name = self.string(short);
        let library = self.libs.len() as u32;
        self.libs.push(json!({
            "name": short, "debugName": short, "path": module, "debugPath": module,
            "breakpadId": "", "codeId": null, "arch": null,
        }));
        let table = &mut self.shared.resource_table;
        let id = table.length as i64;
        table.length += 1;
        table.lib.push(library);
        table.name.push(name);
        table.host.push(None);
        table.kind.push(LIBRARY);
        self.resources.insert(module.to_owned(), id);
        id
    }

    fn markers(&mut self, markers_of_thread: Vec<Marker<'_>>) -> Markers {
        let mut markers = Markers::default();
        for marker in markers_of_thread {
            let (name, start_ns, end, phase, data) = match marker {
                Marker::Value(value) => {
                    let data = json!({"type": "value", "value": value.value});
                    (value.name.as_str(), value.time_ns, None, INSTANT, data)
                }
                Marker::Region(name, &TimedSpan(start, duration, inside, entries, ..)) => {
                    let end = Some(millis(start.saturating_add(duration)));
                    let inside = millis(inside);
                    let data = json!({"type": "region", "entries": entries, "inside": inside});
                    (name, start, end, INTERVAL, data)
                }
            };
            markers.length += 1;
            markers.category.push(USER);
            markers.data.push(data);
            markers.start_time.push(millis(start_ns));
            markers.end_time.push(end);
            markers.name.push(self.string(name));
            markers.phase.push(phase);
        }
        markers
    }
}
