//! Writes the summary's tables, one file each, as CSV (RFC 4180) or Arrow IPC files.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow_ipc::writer::FileWriter;
use arrow_schema::ArrowError;
use csv::Writer;
use memgauge_analyze::{BothWays, Counts, DataKind, HotTable, Summary, TimedSpan};
use memgauge_recording::private;

use super::curves::bin_end;
use super::places::{provenance, unit, values, with_rest};
use super::{Error, NOT_LISTED};

/// Format of the table files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableFormat {
    /// Arrow IPC file, for pandas, polars, R, DuckDB. Numbers are 64-bit integers.
    Arrow,
    /// Comma-separated values with a header.
    Csv,
}

/// Text columns; all others are integers.
const TEXT_COLUMNS: [&str; 16] = [
    "user",
    "cgroup",
    "device",
    "code_region",
    "event",
    "unit",
    "provenance",
    "function",
    "module",
    "file",
    "inlined_into",
    "region",
    "program",
    "kind",
    "detail",
    "meaning",
];

/// A table: header and rows.
type TextTable = Vec<Vec<String>>;

pub(crate) fn write(
    summary: &Summary,
    format: TableFormat,
    folder: &Path,
) -> Result<Vec<String>, Error> {
    check_folder(folder)?;
    let hot = &summary.hot;
    let tables = [
        ("totals", totals(summary)),
        ("functions", code(summary, &hot.functions)),
        ("lines", code(summary, &hot.lines)),
        ("instructions", code(summary, &hot.instructions)),
        ("data", data(summary)),
        ("heap", heap(summary)),
        ("regions", regions(summary)),
        ("code_regions", code_regions(summary)),
        ("region_spans", region_spans(summary)),
        ("io", io(summary)),
        ("io_devices", io_devices(summary)),
        ("threads", threads(summary)),
        ("series", series(summary)),
        ("losses", losses(summary)),
    ];
    let filled: Vec<_> = tables.into_iter().filter(|(_, t)| t.len() > 1).collect();
    if filled.is_empty() {
        return Err(Error::NoTables);
    }
    create_folder(folder).map_err(|why| Error::Write(folder.to_owned(), why))?;
    let mut written = Vec::new();
    for (name, table) in filled {
        let name = match format {
            TableFormat::Arrow => format!("{name}.arrow"),
            TableFormat::Csv => format!("{name}.csv"),
        };
        let path = folder.join(&name);
        let done = match format {
            TableFormat::Arrow => as_arrow(&table, &path),
            TableFormat::Csv => as_csv(&table, &path),
        };
        done.map_err(|why| Error::Write(path, why))?;
        written.push(name);
    }
    Ok(written)
}

fn as_csv(table: &TextTable, path: &Path) -> std::io::Result<()> {
    let mut file = Writer::from_writer(private::create_file(path)?);
    for row in table {
        file.write_record(row).map_err(io_error)?;
    }
    file.flush()
}

/// Returns the I/O error itself. As the cause of another error, its kind would be hidden.
fn io_error(why: csv::Error) -> std::io::Error {
    let text = why.to_string();
    match why.into_kind() {
        csv::ErrorKind::Io(why) => why,
        _ => std::io::Error::other(text),
    }
}

fn as_arrow(table: &TextTable, path: &Path) -> std::io::Result<()> {
    let failed = |why: ArrowError| match why {
        ArrowError::IoError(_, why) => why,
        other => std::io::Error::other(other),
    };
    let Some((header, rows)) = table.split_first() else {
        return Ok(());
    };
    let columns = header.iter().enumerate().map(|(number, name)| {
        let cells = rows
            .iter()
            .map(|row| row.get(number).filter(|cell| !cell.is_empty()));
        let array: ArrayRef = match TEXT_COLUMNS.contains(&name.as_str()) {
            true => Arc::new(cells.collect::<StringArray>()),
            false => {
                let number = |cell: &String| cell.parse::<u64>().ok();
                Arc::new(
                    cells
                        .map(|cell| cell.and_then(number))
                        .collect::<UInt64Array>(),
                )
            }
        };
        (name.as_str(), array, true)
    });
    let batch = RecordBatch::try_from_iter_with_nullable(columns).map_err(failed)?;
    let file = BufWriter::new(private::create_file(path)?);
    let mut writer = FileWriter::try_new(file, &batch.schema()).map_err(failed)?;
    writer.write(&batch).map_err(failed)?;
    writer.finish().map_err(failed)?;
    writer.into_inner().map_err(failed)?.flush()
}

/// Creates the folder with access for its owner only. Parent folders get default permissions.
fn create_folder(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    private::create_dir(folder)
}

/// Refuses a folder with files, because they could be mistaken for tables of this export.
fn check_folder(folder: &Path) -> Result<(), Error> {
    if folder.exists() && !folder.is_dir() {
        return Err(Error::NotAFolder(folder.to_owned()));
    }
    let files = std::fs::read_dir(folder);
    match files.is_ok_and(|mut files| files.next().is_some()) {
        true => Err(Error::NotEmpty(folder.to_owned())),
        false => Ok(()),
    }
}

fn strings<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Formats a number. A missing one is an empty cell.
fn cell<T: ToString>(value: Option<T>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

fn totals(summary: &Summary) -> TextTable {
    let rows = summary.totals.iter().map(|(event, count)| {
        let [unit, provenance] = [unit(summary, event), provenance(summary, event)];
        strings([event, &count.to_string(), unit, provenance])
    });
    let header = strings(["event", "count", "unit", "provenance"]);
    [header].into_iter().chain(rows).collect()
}

fn code(summary: &Summary, table: &HotTable) -> TextTable {
    let events = super::places::events(summary, table).unwrap_or_default();
    let mut header = strings([
        "function",
        "module",
        "file",
        "line",
        "offset",
        "inlined_into",
        "samples",
    ]);
    header.extend(events.iter().cloned());
    let rows = with_rest(table).map(|(row, counts)| {
        let mut cells = match row {
            None => strings([NOT_LISTED, "", "", "", "", "", ""]),
            Some(row) => {
                let outer = row
                    .inlined_into
                    .iter()
                    .map(|caller| caller.function.as_str());
                vec![
                    row.function.clone(),
                    row.module.clone(),
                    row.file.clone().unwrap_or_default(),
                    cell(row.line),
                    cell(row.offset),
                    outer.collect::<Vec<_>>().join(" < "),
                    cell(row.samples),
                ]
            }
        };
        cells.extend(values(counts, &events).iter().map(u64::to_string));
        cells
    });
    [header].into_iter().chain(rows).collect()
}

/// Counts by data: allocations by where they were made, variables, mappings.
fn data(summary: &Summary) -> TextTable {
    let Some(table) = &summary.data else {
        return TextTable::new();
    };
    let events: Vec<&String> = table.totals.keys().collect();
    let mut header = strings(["data", "kind"]);
    header.extend(events.iter().map(|&event| event.clone()));
    let cells = |name: &str, kind: &str, counts: &Counts| {
        let mut cells = strings([name, kind]);
        let count = |event: &&String| counts.get(*event).copied().unwrap_or(0).to_string();
        cells.extend(events.iter().map(count));
        cells
    };
    let rows = table.rows.iter().map(|row| {
        let kind = match row.kind {
            DataKind::Allocated => "allocated",
            DataKind::Mapped => "mapped",
        };
        cells(&row.name, kind, &row.counts)
    });
    let others = (table.other_rows > 0).then(|| cells(NOT_LISTED, "", &table.other_counts));
    [header].into_iter().chain(rows).chain(others).collect()
}

/// Allocations by where they were made.
fn heap(summary: &Summary) -> TextTable {
    let header = strings([
        "allocated_by",
        "at_peak_bytes",
        "unfreed_bytes",
        "allocations",
        "bytes",
        "frees",
        "mean_lifetime_ns",
        "untouched_bytes",
    ]);
    let sites = summary.heap.iter().flat_map(|heap| &heap.sites);
    let rows = sites.map(|site| {
        let numbers = [
            site.at_peak_bytes,
            site.live_bytes,
            site.allocations,
            site.bytes,
            site.frees,
        ];
        let mut cells = vec![site.name.clone()];
        cells.extend(numbers.map(|n| n.to_string()));
        cells.push(cell(site.mean_lifetime_ns.map(|ns| ns as u64)));
        cells.push(cell(site.untouched_bytes));
        cells
    });
    [header].into_iter().chain(rows).collect()
}

fn regions(summary: &Summary) -> TextTable {
    let header = strings([
        "event", "region", "pid", "start", "bytes", "samples", "events",
    ]);
    let mut table = vec![header];
    for of_event in &summary.regions {
        table.extend(of_event.rows.iter().map(|row| {
            vec![
                of_event.event.clone(),
                row.name.clone(),
                row.pid.0.to_string(),
                cell(row.start),
                cell(row.bytes),
                row.samples.to_string(),
                row.events.to_string(),
            ]
        }));
    }
    table
}

fn code_regions(summary: &Summary) -> TextTable {
    let regions = &summary.code_regions;
    let counts = regions.iter().flat_map(|row| row.counts.keys());
    let events: std::collections::BTreeSet<&String> = counts.collect();
    let mut header = strings(["code_region", "entries", "threads", "time_ns"]);
    header.extend(events.iter().map(|&event| event.clone()));
    let rows = regions.iter().map(|row| {
        let sums = [row.entries, row.threads, row.time_ns].map(|n| n.to_string());
        let mut cells = vec![row.name.clone()];
        cells.extend(sums);
        cells.extend(events.iter().map(|&event| cell(row.counts.get(event))));
        cells
    });
    [header].into_iter().chain(rows).collect()
}

fn region_spans(summary: &Summary) -> TextTable {
    let header = strings([
        "code_region",
        "pid",
        "tid",
        "start_ns",
        "end_ns",
        "inside_ns",
        "entries",
    ]);
    let regions = summary.timeline.iter().flat_map(|t| &t.code_regions);
    let rows = regions.flat_map(|region| {
        let cells = |&TimedSpan(start, duration, inside, entries, pid, tid): &TimedSpan| {
            let ids = [pid.0, tid.0].map(|id| id.to_string());
            let numbers = [start, start.saturating_add(duration), inside, entries];
            let mut cells = vec![region.name.clone()];
            cells.extend(ids);
            cells.extend(numbers.map(|n| n.to_string()));
            cells
        };
        region.spans.iter().map(cells)
    });
    [header].into_iter().chain(rows).collect()
}

/// Bytes by process and device.
fn io(summary: &Summary) -> TextTable {
    let header = strings([
        "pid",
        "program",
        "user",
        "cgroup",
        "device",
        "in_bytes",
        "out_bytes",
        "in_operations",
        "out_operations",
    ]);
    let lines = summary.io.iter().flat_map(|io| &io.lines);
    let rows = lines.map(|line| {
        let texts = [&line.command, &line.user, &line.cgroup, &line.device];
        let mut cells = vec![line.pid.to_string()];
        cells.extend(texts.map(String::clone));
        cells.extend(bytes_and_operations(&line.moved));
        cells
    });
    [header].into_iter().chain(rows).collect()
}

/// Bytes that devices counted, and the part of no known process.
fn io_devices(summary: &Summary) -> TextTable {
    let header = strings([
        "device",
        "kind",
        "in_bytes",
        "out_bytes",
        "in_operations",
        "out_operations",
        "unattributed_in_bytes",
        "unattributed_out_bytes",
    ]);
    let devices = summary.io.iter().flat_map(|io| &io.devices);
    let rows = devices.map(|device| {
        let unattributed = [device.unattributed_in_bytes, device.unattributed_out_bytes];
        let mut cells = vec![device.name.clone(), device.kind.clone()];
        cells.extend(bytes_and_operations(&device.counted));
        cells.extend(unattributed.map(|bytes| bytes.to_string()));
        cells
    });
    [header].into_iter().chain(rows).collect()
}

fn bytes_and_operations(moved: &BothWays) -> [String; 4] {
    [
        moved.r#in.bytes,
        moved.out.bytes,
        moved.r#in.operations,
        moved.out.operations,
    ]
    .map(|count| count.to_string())
}

fn threads(summary: &Summary) -> TextTable {
    let counts = summary.threads.iter().flat_map(|row| row.counts.keys());
    let events: std::collections::BTreeSet<&String> = counts.collect();
    let mut header = strings([
        "pid", "tid", "program", "start_ns", "end_ns", "run_ns", "samples",
    ]);
    header.extend(events.iter().map(|&event| event.clone()));
    let rows = summary.threads.iter().map(|row| {
        let mut cells = vec![
            row.pid.0.to_string(),
            row.tid.0.to_string(),
            row.program.clone(),
            cell(row.start_ns),
            cell(row.end_ns),
            row.run_ns.to_string(),
            row.samples.to_string(),
        ];
        cells.extend(events.iter().map(|&event| cell(row.counts.get(event))));
        cells
    });
    [header].into_iter().chain(rows).collect()
}

fn series(summary: &Summary) -> TextTable {
    let Some(timeline) = &summary.timeline else {
        return TextTable::new();
    };
    let mut header = strings(["start_ns", "end_ns"]);
    header.extend(timeline.curves.iter().map(|curve| curve.event.clone()));
    let bins = timeline.curves.iter().map(|curve| curve.values.len()).max();
    let rows = (0..bins.unwrap_or(0)).map(|bin| {
        let start = timeline.start_ns + bin as u64 * timeline.bin_ns;
        let mut cells = vec![start.to_string(), bin_end(timeline, start).to_string()];
        let values = timeline
            .curves
            .iter()
            .map(|curve| cell(curve.values.get(bin)));
        cells.extend(values);
        cells
    });
    [header].into_iter().chain(rows).collect()
}

fn losses(summary: &Summary) -> TextTable {
    let header = strings(["kind", "detail", "count", "meaning"]);
    let rows = summary.losses.iter().map(|loss| {
        strings([
            &loss.kind,
            &loss.detail,
            &loss.count.to_string(),
            &loss.meaning,
        ])
    });
    [header].into_iter().chain(rows).collect()
}
