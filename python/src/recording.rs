//! Recordings and their summaries.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use memgauge_analyze::{
    Analysis, ByteRange, Curves, HotTable, MismatchedShares, Options, PartialError, PartialSummary,
    Rank, Series, TableLimits, run_totals, summarise, summarise_end,
};
use memgauge_export::{Format, write as export};
use memgauge_fleet::service_and_host;
use memgauge_recording::{Recording as Reader, Selection, Share};
use memgauge_report::{MetricUnit, json_value};
use memgauge_storage::LocalCopy;
use memgauge_symbols::Symbols;
use memgauge_trace::{EventDef, EventId, Sample, SeriesRow, Unit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Map, Value, json};

use crate::batches::Batches;
use crate::error::{UsageError, from_recording};
use crate::table::{Column, Kind, Table};
use crate::values::to_python;
use crate::work::{detached, interruptible};

/// A recording on disk.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct Recording {
    reader: Arc<Reader>,
    copy: Option<Copy>,
}

/// Where a recording was copied from, and the copy.
struct Copy {
    url: String,
    _file: LocalCopy,
}

impl Recording {
    /// A recording that was copied to this machine.
    pub(crate) fn of_copy(reader: Arc<Reader>, url: String, file: LocalCopy) -> Recording {
        let copy = Some(Copy { url, _file: file });
        Recording { reader, copy }
    }

    /// Path, or URL of a recording in a bucket.
    fn name(&self) -> String {
        match &self.copy {
            Some(copy) => copy.url.clone(),
            None => self.reader.path().to_string_lossy().into_owned(),
        }
    }

    /// The event of a name.
    fn event(&self, name: &str, purpose: &str) -> PyResult<EventId> {
        let events = &self.reader.manifest().events;
        let found = events.iter().find(|def| def.name == name);
        found.map(|def| def.id).ok_or_else(|| {
            let known: Vec<&str> = events.iter().map(|def| def.name.as_str()).collect();
            UsageError::new_err(format!(
                "failed to {purpose} of event `{name}`: the recording has no event of this name; it \
                 has {}",
                known.join(", ")
            ))
        })
    }

    /// Refuses an event without samples, if the recorder says which ones it has sampled.
    fn check_sampled(&self, event: &str) -> PyResult<()> {
        let settings = &self.reader.manifest().source.settings;
        let sampled: Vec<&str> = settings.sampled_events().collect();
        if sampled.is_empty() || sampled.contains(&event) {
            return Ok(());
        }
        Err(UsageError::new_err(format!(
            "failed to read samples of event `{event}`: it was counted, but not sampled; the recording has samples \
             of {}",
            sampled.join(", ")
        )))
    }

    pub(crate) fn reader(&self) -> &Arc<Reader> {
        &self.reader
    }

    /// Options of a summary whose functions and lines an event ranks, with tables of `rows`.
    fn options(&self, event: Option<&str>, rows: Option<usize>) -> PyResult<Options> {
        let manifest = self.reader.manifest();
        let rank = event.map(|event| Rank::named(event, manifest)).transpose();
        let rank = rank.map_err(UsageError::new_err)?;
        let all_data = rows.is_none();
        let rows = rows.unwrap_or(usize::MAX);
        Ok(Options {
            all_data,
            limits: TableLimits {
                rows,
                ..TableLimits::default()
            },
            regions: rows,
            rank,
            ..Options::default()
        })
    }

    fn summarised(&self, py: Python<'_>, options: Options) -> PyResult<Summary> {
        let reader = self.reader.clone();
        let rank = options.rank.clone();
        let summary = interruptible(py, move || {
            summarise(&reader, &mut Symbols::of(reader.path()), &options)
        })?;
        let summary = summary.map_err(|error| from_recording(&error))?;
        Summary::ranked(summary, rank)
    }
}

#[pymethods]
impl Recording {
    /// Opens the recording at `path`.
    #[new]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Recording> {
        let reader = detached(py, || Reader::open(&path));
        let reader = reader.map_err(|error| from_recording(&error))?;
        Ok(Recording {
            reader: Arc::new(reader),
            copy: None,
        })
    }

    /// Path of the recording.
    #[getter]
    fn path(&self) -> PathBuf {
        self.reader.path().to_owned()
    }

    /// URL of the recording if it was copied from a bucket.
    #[getter]
    fn url(&self) -> Option<String> {
        self.copy.as_ref().map(|copy| copy.url.clone())
    }

    /// Contents of its manifest.
    #[getter]
    fn manifest(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &json!(self.reader.manifest()))
    }

    /// Missing and damaged parts, in words, as far as parts have been read.
    #[getter]
    fn problems(&self) -> Vec<String> {
        let mut problems = self.reader.problems();
        problems.extend(self.reader.skipped_parts());
        problems
    }

    /// Whether a part is missing or damaged, as far as parts have been read.
    #[getter]
    fn is_damaged(&self) -> bool {
        self.reader.is_damaged()
    }

    /// Totals by event name: value and unit.
    fn totals(&self, py: Python<'_>) -> PyResult<BTreeMap<String, (u64, &'static str)>> {
        let reader = self.reader.clone();
        let totals = interruptible(py, move || run_totals(&reader))?;
        let totals = totals.map_err(|error| from_recording(&error))?.totals;
        let events = &self.reader.manifest().events;
        let unit = |name: &str| match events.iter().find(|event| event.name == name) {
            Some(event) => event.unit.name(),
            None if MetricUnit::of(name) == MetricUnit::Bytes => Unit::Bytes.name(),
            None => Unit::Count.name(),
        };
        let totals = totals.into_iter().map(|(name, value)| {
            let unit = unit(&name);
            (name, (value, unit))
        });
        Ok(totals.collect())
    }

    /// Refuses an event that the recording does not have.
    fn check_event(&self, event: &str, purpose: &str) -> PyResult<()> {
        self.event(event, purpose).map(drop)
    }

    /// Losses, without a pass over the large tables.
    fn losses(&self, py: Python<'_>) -> PyResult<Table> {
        let summary = detached(py, || summarise_end(&self.reader));
        let summary = summary.map_err(|error| from_recording(&error))?;
        Table::of_rows(&summary.losses, LOSSES, &[])
    }

    /// All analyses. `event` ranks functions and lines, `rows` limits the tables.
    #[pyo3(signature = (event=None, rows=None))]
    fn summary(
        &self,
        py: Python<'_>,
        event: Option<&str>,
        rows: Option<usize>,
    ) -> PyResult<Summary> {
        self.summarised(py, self.options(event, rows)?)
    }

    /// Sums of one of several shares of the recording, encoded.
    fn share_sums(&self, py: Python<'_>, index: u32, of: u32) -> PyResult<Py<PyBytes>> {
        let reader = self.reader.clone();
        let sums = interruptible(py, move || {
            let bins = Options::default().max_bins;
            PartialSummary::of_share(&reader, Share { index, of }, bins)
        })?;
        let sums = sums.map_err(|error| from_recording(&error))?;
        Ok(PyBytes::new(py, &sums.to_bytes()).unbind())
    }

    /// As `summary`, from the merged sums of all shares.
    #[pyo3(signature = (sums, event=None, rows=None))]
    fn summary_of_sums(
        &self,
        py: Python<'_>,
        sums: &[u8],
        event: Option<&str>,
        rows: Option<usize>,
    ) -> PyResult<Summary> {
        let options = self.options(event, rows)?;
        let sums = PartialSummary::from_bytes(sums).map_err(mismatched)?;
        let reader = self.reader.clone();
        let rank = options.rank.clone();
        let summary = interruptible(py, move || {
            sums.finish(&reader, &mut Symbols::of(reader.path()), &options)
        })?;
        match summary {
            Ok(summary) => Summary::ranked(summary, rank),
            Err(PartialError::Mismatched(error)) => Err(mismatched(error)),
            Err(PartialError::Recording(error)) => Err(from_recording(&error)),
        }
    }

    /// All analyses, with every place under its own name.
    fn export_summary(&self, py: Python<'_>) -> PyResult<Summary> {
        self.summarised(py, Options::for_export())
    }

    /// Samples as record batches, of one event and of times from `start_ns` up to `end_ns`.
    #[pyo3(signature = (event=None, time_ns=None, columns=None))]
    fn samples(
        &self,
        event: Option<&str>,
        time_ns: Option<(u64, u64)>,
        columns: Option<Vec<String>>,
    ) -> PyResult<Batches> {
        let mut selection = Selection::all();
        if let Some(event) = event {
            selection = selection.event(self.event(event, "read samples")?);
            self.check_sampled(event)?;
        }
        if let Some((start, end)) = time_ns {
            selection = selection.time(start..end);
        }
        if let Some(columns) = columns {
            selection = selection.columns(&columns.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let rows = self.reader.batches::<Sample>(&selection);
        let rows = rows.map_err(|error| from_recording(&error))?;
        Batches::new(self.reader.clone(), rows)
    }

    /// An event over time, of all threads together or of each.
    fn series(
        &self,
        py: Python<'_>,
        event: &str,
        per_thread: bool,
        bins: usize,
    ) -> PyResult<Table> {
        let id = self.event(event, "show over time")?;
        let unit = self
            .reader
            .manifest()
            .events
            .iter()
            .find(|def| def.id == id);
        let unit = unit.map_or("", |def| def.unit.name());
        let reader = self.reader.clone();
        let curves: memgauge_recording::Result<Curves> = interruptible(py, move || {
            let series = Series::of_recording(reader.manifest(), bins).only(&[id]);
            let mut series = if per_thread {
                series.per_thread()
            } else {
                series
            };
            let columns = ["time_ns", "pid", "tid", "event", "value", "interval_ns"];
            let selection = Selection::all().columns(&columns);
            let mut problems = Vec::new();
            reader.for_each_intact_batch::<SeriesRow>(&selection, &mut problems, |rows| {
                series.observe(rows);
            })?;
            Ok(series.finish())
        })?;
        let curves = curves.map_err(|error| from_recording(&error))?;
        let mut rows = Vec::new();
        for curve in &curves.curves {
            for (bin, value) in (0..).zip(&curve.values) {
                let start_ns = bin * curve.bin_ns;
                let length_ns = curve.bin_ns.min(curve.duration_ns.saturating_sub(start_ns));
                let thread = curve.thread.map(|(pid, tid)| [pid.0, tid.0]);
                let row = json!({
                    "pid": thread.map(|ids| ids[0]), "tid": thread.map(|ids| ids[1]),
                    "start_ns": start_ns, "length_ns": length_ns, "value": value,
                });
                rows.extend(row.as_object().cloned());
            }
        }
        let mut columns = Vec::new();
        if per_thread {
            columns.extend([count("pid", ""), count("tid", "")]);
        }
        columns.extend([
            count("start_ns", "ns"),
            count("length_ns", "ns"),
            count("value", unit),
        ]);
        Table::of_fields(&rows, &columns, &[])
    }
}

/// Merges the encoded sums of different shares of one recording.
#[pyfunction]
pub(crate) fn merge_sums(py: Python<'_>, left: &[u8], right: &[u8]) -> PyResult<Py<PyBytes>> {
    let merged = detached(py, || {
        let mut left = PartialSummary::from_bytes(left)?;
        left.merge(PartialSummary::from_bytes(right)?)?;
        Ok(left.to_bytes())
    });
    let merged = merged.map_err(mismatched)?;
    Ok(PyBytes::new(py, &merged).unbind())
}

fn mismatched(error: MismatchedShares) -> PyErr {
    UsageError::new_err(error.to_string())
}

/// Results of all analyses of a recording.
#[pyclass(frozen, module = "memgauge._memgauge")]
pub(crate) struct Summary {
    summary: Arc<memgauge_analyze::Summary>,
}

impl Summary {
    /// A summary whose code the caller may have ranked.
    fn ranked(summary: memgauge_analyze::Summary, rank: Option<Rank>) -> PyResult<Summary> {
        if let Some(rank) = rank {
            let checked = summary.check_rank(&rank.name);
            checked.map_err(UsageError::new_err)?;
        }
        Ok(Summary {
            summary: Arc::new(summary),
        })
    }

    fn hot(&self, table: &HotTable, columns: &[Column]) -> PyResult<Table> {
        Table::of_rows(&table.rows, columns, &self.summary.events)
    }
}

#[pymethods]
impl Summary {
    /// Returns the output of `memgauge report --json`.
    fn report(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &json_value(&self.summary))
    }

    /// Name of the event that ranks functions and lines.
    #[getter]
    fn rank(&self) -> String {
        self.summary.hot.functions.rank.clone()
    }

    /// Missing and damaged parts and files without symbols, in words.
    #[getter]
    fn problems(&self) -> Vec<String> {
        self.summary.problems.clone()
    }

    fn functions(&self) -> PyResult<Table> {
        self.hot(&self.summary.hot.functions, FUNCTIONS)
    }

    fn lines(&self) -> PyResult<Table> {
        self.hot(&self.summary.hot.lines, LINES)
    }

    fn instructions(&self) -> PyResult<Table> {
        self.hot(&self.summary.hot.instructions, LINES)
    }

    /// Regions of memory by sampled event, of one event or of all.
    #[pyo3(signature = (event=None))]
    fn regions(&self, event: Option<&str>) -> PyResult<Table> {
        let tables = self.summary.regions.iter();
        if let Some(event) = event
            && !tables.clone().any(|table| table.event == event)
        {
            let known: Vec<&str> = tables.map(|table| table.event.as_str()).collect();
            let known = match known.is_empty() {
                true => "no event".to_owned(),
                false => known.join(", "),
            };
            return Err(UsageError::new_err(format!(
                "failed to show regions of event `{event}`: the recording has no samples of it with \
                 addresses; it has some of {known}"
            )));
        }
        let rows: Vec<Map<String, Value>> = tables
            .filter(|table| event.is_none_or(|event| event == table.event))
            .flat_map(|table| {
                let rows = table.rows.iter().map(|row| (&table.event, json!(row)));
                rows.filter_map(|(event, row)| match row {
                    Value::Object(mut fields) => {
                        fields.insert("event".to_owned(), event.clone().into());
                        Some(fields)
                    }
                    _ => None,
                })
            })
            .collect();
        Table::of_fields(&rows, REGIONS, &self.summary.events)
    }

    /// Allocations, variables and mappings by the cost of accesses to them.
    fn data(&self) -> PyResult<Table> {
        let table = self.summary.data.iter();
        let rows: Vec<_> = table.flat_map(|table| &table.rows).collect();
        Table::of_rows(&rows, DATA, &self.summary.events)
    }

    /// Lines of Python by their cycles.
    fn python_lines(&self) -> PyResult<Table> {
        let table = self.summary.python.iter();
        let rows: Vec<_> = table.flat_map(|table| &table.lines).collect();
        Table::of_rows(&rows, PYTHON_LINES, &self.summary.events)
    }

    /// Members of types by the cost of accesses to them. A type without members is one row.
    fn types(&self) -> PyResult<Table> {
        let table = self.summary.types.iter();
        let rows = table.flat_map(|table| &table.rows).flat_map(|row| {
            let members: Vec<Value> = match row.members.is_empty() {
                true => vec![json!({ "counts": row.counts, "bytes": row.bytes, "offset": 0 })],
                false => row.members.iter().map(|member| json!(member)).collect(),
            };
            members.into_iter().filter_map(|member| match member {
                Value::Object(mut fields) => {
                    let member = fields.remove("name").unwrap_or_default();
                    fields.insert("member".to_owned(), member);
                    fields.insert("type".to_owned(), row.name.clone().into());
                    fields.insert("type_bytes".to_owned(), row.bytes.into());
                    Some(fields)
                }
                _ => None,
            })
        });
        let rows: Vec<Map<String, Value>> = rows.collect();
        Table::of_fields(&rows, TYPES, &self.summary.events)
    }

    /// Allocation sites by their bytes at the peak.
    fn heap(&self) -> PyResult<Table> {
        let heap = self.summary.heap.iter();
        let rows: Vec<_> = heap.flat_map(|heap| &heap.sites).collect();
        Table::of_rows(&rows, ALLOCATION_SITES, &[])
    }

    /// Allocated bytes over time: a row for each bin of all sites, of each site, and of the others.
    fn heap_over_time(&self) -> PyResult<Table> {
        let heap = self.summary.heap.as_ref();
        let Some(history) = heap.and_then(|heap| heap.over_time.as_ref()) else {
            return Table::of_fields(&[], HEAP_OVER_TIME, &[]);
        };
        let sites = history.sites.iter();
        let curves = [(Value::Null, &history.in_use)]
            .into_iter()
            .chain(sites.map(|site| (json!(site.name), &site.bytes)))
            .chain([(json!("other sites"), &history.other_bytes)])
            .chain(
                history
                    .resident
                    .iter()
                    .map(|bytes| (json!("resident"), bytes)),
            );
        let rows: Vec<Map<String, Value>> = curves
            .flat_map(|(name, bytes)| {
                bytes.iter().zip(0u64..).map(move |(&bytes, bin)| {
                    Map::from_iter([
                        ("name".to_owned(), name.clone()),
                        ("time_ns".to_owned(), json!(bin * history.bin_ns)),
                        ("bytes".to_owned(), json!(bytes)),
                    ])
                })
            })
            .collect();
        Table::of_fields(&rows, HEAP_OVER_TIME, &[])
    }

    /// Cache lines that threads share, those that cost most first.
    fn shared_lines(&self) -> PyResult<Table> {
        let sharing = self.summary.sharing.iter();
        let rows: Vec<_> = sharing.flat_map(|sharing| &sharing.lines).collect();
        Table::of_rows(&rows, SHARED_LINES, &[])
    }

    /// The code that accesses each of these lines.
    fn shared_accesses(&self) -> PyResult<Table> {
        let lines = self.summary.sharing.iter();
        let mut rows = Vec::new();
        for line in lines.flat_map(|sharing| &sharing.lines) {
            for access in &line.accesses {
                let Value::Object(mut fields) = json!(access) else {
                    continue;
                };
                fields.insert("address".to_owned(), line.address.into());
                fields.insert("pid".to_owned(), line.pid.0.into());
                fields.insert("loaded".to_owned(), in_words(&access.loaded).into());
                fields.insert("stored".to_owned(), in_words(&access.stored).into());
                rows.push(fields);
            }
        }
        Table::of_fields(&rows, SHARED_ACCESSES, &[])
    }

    /// The run on other machines.
    fn what_if(&self) -> PyResult<Table> {
        let rows: Vec<Map<String, Value>> = (self.summary.what_if.iter())
            .filter_map(|machine| json!(machine).as_object().cloned())
            .collect();
        Table::of_fields(&rows, WHAT_IF, &self.summary.events)
    }

    /// Folded stacks, for flame graphs.
    #[pyo3(signature = (event=None))]
    fn folded(&self, event: Option<&str>) -> PyResult<String> {
        let mut text = Vec::new();
        export(&self.summary, Format::Folded, event, &mut text)
            .map_err(|error| UsageError::new_err(error.to_string()))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Trees of calls, one for each sampled event.
    fn calls(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &json!(self.summary.calls))
    }

    /// Regions of interest.
    fn regions_of_interest(&self) -> PyResult<Table> {
        Table::of_rows(
            &self.summary.code_regions,
            REGIONS_OF_INTEREST,
            &self.summary.events,
        )
    }

    fn threads(&self) -> PyResult<Table> {
        Table::of_rows(&self.summary.threads, THREADS, &self.summary.events)
    }

    fn processes(&self) -> PyResult<Table> {
        Table::of_rows(&self.summary.processes, PROCESSES, &self.summary.events)
    }

    fn levels(&self) -> PyResult<Table> {
        Table::of_rows(&self.summary.levels, LEVELS, &[])
    }
}

/// Facts and totals of recordings, a row each.
#[pyfunction]
pub(crate) fn recordings_table(
    py: Python<'_>,
    recordings: Vec<PyRef<'_, Recording>>,
) -> PyResult<Table> {
    let readers = recordings
        .iter()
        .map(|own| (own.reader.clone(), own.name()));
    let readers: Vec<(Arc<Reader>, String)> = readers.collect();
    let mut events: BTreeMap<String, EventDef> = BTreeMap::new();
    for event in readers
        .iter()
        .flat_map(|(reader, _)| &reader.manifest().events)
    {
        events.entry(event.name.clone()).or_insert(event.clone());
    }
    let facts = |(reader, name): &(Arc<Reader>, String)| facts(reader, name);
    let rows = interruptible(py, move || readers.iter().map(facts).collect())?;
    let rows: memgauge_recording::Result<Vec<_>> = rows;
    let rows = rows.map_err(|error| from_recording(&error))?;
    let events: Vec<_> = events.into_values().collect();
    Table::of_fields(&rows, RECORDINGS, &events)
}

/// The row of a recording.
fn facts(reader: &Reader, name: &str) -> memgauge_recording::Result<Map<String, Value>> {
    let manifest = reader.manifest();
    let totals = run_totals(reader)?.totals;
    let [service, host] = service_and_host(manifest);
    let labels = manifest
        .labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let row = json!({
        "path": name,
        "service": service,
        "host": host,
        "commit": manifest.labels.get("commit"),
        "labels": labels.collect::<Vec<_>>(),
        "cpu": manifest.host.cpu,
        "command": manifest.command,
        "started_unix_ns": manifest.started_unix_ns,
        "source": manifest.source.kind.name(),
        "machine": manifest.machine.as_ref().map(|machine| &machine.name),
        "complete": manifest.complete,
        "problems": reader.problems(),
        "totals": totals,
    });
    Ok(row.as_object().cloned().unwrap_or_default())
}

/// Bytes of a line: `0-7, 16`.
fn in_words(ranges: &[ByteRange]) -> String {
    let ranges = ranges.iter().map(|range| match range.first == range.last {
        true => range.first.to_string(),
        false => format!("{}-{}", range.first, range.last),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

const fn count(name: &'static str, unit: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Count,
        unit,
    }
}

const fn real(name: &'static str, unit: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Real,
        unit,
    }
}

const fn text(name: &'static str) -> Column {
    Column {
        name,
        kind: Kind::Text,
        unit: "",
    }
}

const CALLERS: Column = Column {
    name: "inlined_into",
    kind: Kind::Functions,
    unit: "",
};

const FUNCTIONS: &[Column] = &[
    text("function"),
    text("module"),
    CALLERS,
    count("value", ""),
    count("value_low", ""),
    count("value_high", ""),
    real("share", "ratio"),
    real("share_low", "ratio"),
    real("share_high", "ratio"),
    count("samples", "count"),
    count("samples_with_address", "count"),
];

const LINES: &[Column] = &[
    text("function"),
    text("file"),
    count("line", ""),
    text("module"),
    count("offset", "bytes"),
    CALLERS,
    count("value", ""),
    count("value_low", ""),
    count("value_high", ""),
    real("share", "ratio"),
    real("share_low", "ratio"),
    real("share_high", "ratio"),
    count("samples", "count"),
    count("samples_with_address", "count"),
];

const REGIONS: &[Column] = &[
    text("event"),
    text("name"),
    count("pid", ""),
    count("start", "bytes"),
    count("bytes", "bytes"),
    count("samples", "count"),
    count("events", ""),
    real("share", "ratio"),
    real("share_low", "ratio"),
    real("share_high", "ratio"),
];

const DATA: &[Column] = &[text("name"), text("kind"), real("share", "ratio")];

const PYTHON_LINES: &[Column] = &[
    text("function"),
    text("file"),
    count("line", ""),
    real("share", "ratio"),
    count("stalled_cycles", "count"),
];

const TYPES: &[Column] = &[
    text("type"),
    count("type_bytes", "bytes"),
    text("member"),
    text("type_name"),
    count("offset", "bytes"),
    count("bytes", "bytes"),
    count("count", "count"),
    real("share", "ratio"),
    real("miss_share", "ratio"),
];

const ALLOCATION_SITES: &[Column] = &[
    text("name"),
    text("function"),
    count("paths", "count"),
    count("allocations", "count"),
    count("bytes", "bytes"),
    count("frees", "count"),
    count("at_peak_bytes", "bytes"),
    count("live_bytes", "bytes"),
    count("untouched_bytes", "bytes"),
    real("mean_lifetime_ns", "ns"),
    count("temporary", "count"),
];

const HEAP_OVER_TIME: &[Column] = &[
    text("name"),
    count("time_ns", "ns"),
    count("bytes", "bytes"),
];

const SHARED_LINES: &[Column] = &[
    text("name"),
    text("kind"),
    count("pid", ""),
    count("address", "bytes"),
    count("threads", "count"),
    count("hitm", "count"),
    count("true_sharing", "count"),
    count("false_sharing", "count"),
    count("invalidating", "count"),
    count("stall_cycles", "cycles"),
    count("samples", "count"),
    count("hitm_samples", "count"),
    count("remote_hitm", "count"),
    count("other_accesses", "count"),
];

const SHARED_ACCESSES: &[Column] = &[
    count("pid", ""),
    count("address", "bytes"),
    text("function"),
    text("file"),
    count("line", ""),
    text("module"),
    text("data"),
    text("member"),
    count("threads", "count"),
    count("tid", ""),
    text("loaded"),
    text("stored"),
    count("hitm", "count"),
    count("true_sharing", "count"),
    count("false_sharing", "count"),
    count("invalidating", "count"),
    count("stall_cycles", "cycles"),
    count("samples", "count"),
    count("hitm_samples", "count"),
    count("remote_hitm", "count"),
];

const WHAT_IF: &[Column] = &[
    text("name"),
    text("change"),
    text("changes"),
    text("machine"),
    real("busy_ns", "ns"),
    real("relative", "ratio"),
    count("moved_accesses", "accesses"),
    count("misses_of_others", "misses"),
];

const RECORDINGS: &[Column] = &[
    text("path"),
    text("service"),
    text("host"),
    text("commit"),
    Column {
        name: "labels",
        kind: Kind::Texts,
        unit: "",
    },
    text("cpu"),
    Column {
        name: "command",
        kind: Kind::Texts,
        unit: "",
    },
    count("started_unix_ns", "ns"),
    text("source"),
    text("machine"),
    Column {
        name: "complete",
        kind: Kind::Flag,
        unit: "",
    },
    Column {
        name: "problems",
        kind: Kind::Texts,
        unit: "",
    },
];

const REGIONS_OF_INTEREST: &[Column] = &[
    text("name"),
    count("entries", "count"),
    count("threads", "count"),
    count("time_ns", "ns"),
];

const THREADS: &[Column] = &[
    count("pid", ""),
    count("tid", ""),
    text("program"),
    count("start_ns", "ns"),
    count("end_ns", "ns"),
    count("run_ns", "ns"),
    count("idle_ns", "ns"),
    count("samples", "count"),
];

const PROCESSES: &[Column] = &[
    count("pid", ""),
    count("parent_pid", ""),
    text("program"),
    count("threads", "count"),
    count("run_ns", "ns"),
    count("idle_ns", "ns"),
    count("samples", "count"),
];

const LEVELS: &[Column] = &[
    text("name"),
    count("lookups", "count"),
    count("hits", "count"),
    count("misses", "count"),
    real("miss_ratio", "ratio"),
    real("mpki", "misses per 1000 instructions"),
];

const LOSSES: &[Column] = &[
    text("kind"),
    text("meaning"),
    text("detail"),
    count("count", "count"),
];
