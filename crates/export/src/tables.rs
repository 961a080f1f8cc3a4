//! The summary's tables as CSV (RFC 4180), a file each.

use std::path::Path;

use csv::Writer;
use memgauge_analyze::{HotTable, Summary};

use super::curves::bin_end;
use super::places::{provenance, unit, values, with_rest};
use super::{Error, NOT_LISTED};

/// A table: its header and its rows.
type Table = Vec<Vec<String>>;

pub(crate) fn write(summary: &Summary, folder: &Path) -> Result<Vec<&'static str>, Error> {
    check(folder)?;
    let hot = &summary.hot;
    let tables = [
        ("totals.csv", totals(summary)),
        ("functions.csv", code(summary, &hot.functions)),
        ("lines.csv", code(summary, &hot.lines)),
        ("instructions.csv", code(summary, &hot.instructions)),
        ("regions.csv", regions(summary)),
        ("threads.csv", threads(summary)),
        ("series.csv", series(summary)),
        ("losses.csv", losses(summary)),
    ];
    let filled: Vec<_> = tables.into_iter().filter(|(_, t)| t.len() > 1).collect();
    if filled.is_empty() {
        return Err(Error::NoTables);
    }
    std::fs::create_dir_all(folder)?;
    let mut written = Vec::new();
    for (name, table) in filled {
        let mut file = Writer::from_path(folder.join(name)).map_err(failed)?;
        for row in table {
            file.write_record(row).map_err(failed)?;
        }
        file.flush()?;
        written.push(name);
    }
    Ok(written)
}

/// A folder with files is refused: tables of an earlier export would stay in it.
fn check(folder: &Path) -> Result<(), Error> {
    if folder.exists() && !folder.is_dir() {
        return Err(Error::NotAFolder(folder.to_owned()));
    }
    let files = std::fs::read_dir(folder);
    match files.is_ok_and(|mut files| files.next().is_some()) {
        true => Err(Error::NotEmpty(folder.to_owned())),
        false => Ok(()),
    }
}

fn failed(error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Error::Io(error),
        other => Error::Io(std::io::Error::other(format!("{other:?}"))),
    }
}

fn strings<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// An absent number is an empty cell.
fn cell<T: ToString>(value: Option<T>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

fn totals(summary: &Summary) -> Table {
    let rows = summary.totals.iter().map(|(event, count)| {
        let [unit, provenance] = [unit(summary, event), provenance(summary, event)];
        strings([event, &count.to_string(), unit, provenance])
    });
    let header = strings(["event", "count", "unit", "provenance"]);
    [header].into_iter().chain(rows).collect()
}

fn code(summary: &Summary, table: &HotTable) -> Table {
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

fn regions(summary: &Summary) -> Table {
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

fn threads(summary: &Summary) -> Table {
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

fn series(summary: &Summary) -> Table {
    let Some(timeline) = &summary.timeline else {
        return Table::new();
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

fn losses(summary: &Summary) -> Table {
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
