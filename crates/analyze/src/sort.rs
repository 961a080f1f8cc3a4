//! Sorts the tables of a summary by one of their columns.
//!
//! Each table that has the column is sorted by it over all of its rows, so the rows that a limit
//! cuts off are those with the smallest numbers. Tables without the column keep their order. Shares
//! and findings stay those of the table's own order.
//!
//! Sorting a finished summary was preferred to sorting in each analysis, which would need the
//! column in a dozen places. Therefore the summary must be made with [`Options::every_row`].

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;

use memgauge_trace::catalogue;

use crate::assemble::Options;
use crate::code::hotspots::{HotRow, HotTable};
use crate::code::python::{self, PythonRow};
use crate::counts::{Counts, ratio};
use crate::data::regions::{RegionRow, RegionTable};
use crate::data::table::{self, AllocationSite, DataPlace};
use crate::data::types::MAX_TYPES;
use crate::sort_column::{DRAM_BYTES, STALLED_CYCLES, SortColumn};
use crate::summary::Summary;
use crate::threads::{ProcessRow, ThreadRow};

/// A column that no table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownColumn {
    /// The name that was given.
    pub name: String,
    /// Names of the columns that some table has.
    pub known: Vec<String>,
}

impl fmt::Display for UnknownColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "failed to sort by column `{}`: no table of the recording has it; use one of {}",
            self.name,
            self.known.join(", ")
        )
    }
}

impl SortColumn {
    /// The number or text of a row in this column.
    pub fn cell(&self, row: &impl SortRow) -> Option<Cell> {
        row.field(&self.0)
            .or_else(|| of_event(row.counts()?, &self.0).map(Cell::from))
    }

    /// True if some row has the column.
    pub fn is_of<R: SortRow>(&self, rows: &[R]) -> bool {
        rows.iter().any(|row| self.cell(row).is_some())
    }

    fn sort<R: SortRow>(&self, rows: &mut Vec<R>) {
        let mut with_cells: Vec<_> = rows.drain(..).map(|row| (self.cell(&row), row)).collect();
        // Stable, so equal rows keep their order.
        with_cells.sort_by(|(a, _), (b, _)| compare(a.as_ref(), b.as_ref()));
        rows.extend(with_cells.into_iter().map(|(_, row)| row));
    }
}

/// Content of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A number.
    Number(f64),
    /// A name.
    Text(String),
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Cell::Number(number as f64)
    }
}

impl From<&String> for Cell {
    fn from(text: &String) -> Self {
        Cell::Text(text.clone())
    }
}

/// Order of rows: large numbers first, texts in alphabetical order, empty cells last.
fn compare(one: Option<&Cell>, other: Option<&Cell>) -> Ordering {
    match (one, other) {
        (Some(Cell::Number(one)), Some(Cell::Number(other))) => other.total_cmp(one),
        (Some(Cell::Text(one)), Some(Cell::Text(other))) => one.cmp(other),
        (one, other) => one.is_none().cmp(&other.is_none()),
    }
}

/// Count of an event, or of one of the sums that the tables have.
fn of_event(counts: &Counts, name: &str) -> Option<u64> {
    let sum = |is_part: &dyn Fn(&str) -> bool| {
        let parts = counts.iter().filter(|(event, _)| is_part(event));
        parts.map(|(_, n)| *n).reduce(u64::saturating_add)
    };
    match name {
        DRAM_BYTES => sum(&|event| ["dram.read_bytes", "dram.write_bytes"].contains(&event)),
        STALLED_CYCLES => sum(&is_stall),
        name => counts.get(name).copied(),
    }
}

/// True for the parts of the stalled cycles.
fn is_stall(event: &str) -> bool {
    let mut names = catalogue::STALLS.into_iter().filter_map(catalogue::name);
    names.any(|name| name == event)
}

/// A row of a table that can be sorted.
pub trait SortRow {
    /// Keys of its fields.
    const FIELDS: &'static [&'static str];

    /// Value of a field. `None` if the row has no such field, or no value.
    fn field(&self, key: &str) -> Option<Cell>;

    /// Counts by event.
    fn counts(&self) -> Option<&Counts>;
}

impl SortRow for HotRow {
    const FIELDS: &'static [&'static str] = &[
        "function", "module", "file", "value", "share", "samples", "events",
    ];

    fn field(&self, key: &str) -> Option<Cell> {
        match key {
            "function" => Some((&self.function).into()),
            "module" => Some((&self.module).into()),
            "file" => {
                let file = self.file.as_ref()?;
                // Lines of a file in their order.
                let line = self.line.unwrap_or(0);
                Some(Cell::Text(format!("{file}:{line:010}")))
            }
            "value" => Some(self.value.into()),
            "share" => self.share.map(Cell::Number),
            "samples" => self.samples.map(Cell::from),
            // Title of the column in tables of samples.
            "events" => self.samples.map(|_| self.value.into()),
            _ => None,
        }
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }
}

impl SortRow for PythonRow {
    const FIELDS: &'static [&'static str] = &["function", "file", "share", STALLED_CYCLES];

    fn field(&self, key: &str) -> Option<Cell> {
        match key {
            "function" => Some((&self.function).into()),
            "file" => {
                let line = self.line.unwrap_or(0);
                Some(Cell::Text(format!("{}:{line:010}", self.file)))
            }
            "share" => self.share.map(Cell::Number),
            STALLED_CYCLES => Some(self.stalled_cycles.into()),
            _ => None,
        }
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }
}

impl SortRow for RegionRow {
    const FIELDS: &'static [&'static str] = &[
        "name", "pid", "start", "bytes", "samples", "events", "share",
    ];

    fn field(&self, key: &str) -> Option<Cell> {
        match key {
            "name" => Some((&self.name).into()),
            "pid" => Some(u64::from(self.pid.0).into()),
            "start" => self.start.map(Cell::from),
            "bytes" => self.bytes.map(Cell::from),
            "samples" => Some(self.samples.into()),
            "events" => Some(self.events.into()),
            "share" => self.share.map(Cell::Number),
            _ => None,
        }
    }

    fn counts(&self) -> Option<&Counts> {
        None
    }
}

impl SortRow for AllocationSite {
    const FIELDS: &'static [&'static str] = &[
        "name",
        "paths",
        "allocations",
        "bytes",
        "frees",
        "at_peak_bytes",
        "live_bytes",
        "untouched_bytes",
        "mean_lifetime_ns",
        "temporary",
    ];

    fn field(&self, key: &str) -> Option<Cell> {
        Some(match key {
            "name" => (&self.name).into(),
            "paths" => self.paths.into(),
            "allocations" => self.allocations.into(),
            "bytes" => self.bytes.into(),
            "frees" => self.frees.into(),
            "at_peak_bytes" => self.at_peak_bytes.into(),
            "live_bytes" => self.live_bytes.into(),
            "untouched_bytes" => self.untouched_bytes?.into(),
            "mean_lifetime_ns" => Cell::Number(self.mean_lifetime_ns?),
            "temporary" => self.temporary.into(),
            _ => return None,
        })
    }

    fn counts(&self) -> Option<&Counts> {
        None
    }
}

impl SortRow for DataPlace {
    const FIELDS: &'static [&'static str] = &[
        "name",
        "share",
        STALLED_CYCLES,
        "allocations",
        "bytes",
        "frees",
        "at_peak_bytes",
        "live_bytes",
        "untouched_bytes",
        "mean_lifetime_ns",
        "temporary",
    ];

    fn field(&self, key: &str) -> Option<Cell> {
        match key {
            "name" => Some((&self.name).into()),
            "share" => self.share.map(Cell::Number),
            // All cycles of data are stalled ones.
            STALLED_CYCLES => self.counts.get("cycles").map(|&cycles| cycles.into()),
            _ => self.allocation.as_ref()?.field(key),
        }
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }
}

impl SortRow for ThreadRow {
    const FIELDS: &'static [&'static str] = &[
        "pid", "tid", "program", "start_ns", "end_ns", "run_ns", "idle_ns", "samples",
    ];

    fn field(&self, key: &str) -> Option<Cell> {
        Some(match key {
            "pid" => u64::from(self.pid.0).into(),
            "tid" => u64::from(self.tid.0).into(),
            "program" => (&self.program).into(),
            "start_ns" => self.start_ns?.into(),
            "end_ns" => self.end_ns?.into(),
            "run_ns" => self.run_ns.into(),
            "idle_ns" => self.idle_ns?.into(),
            "samples" => self.samples.into(),
            _ => return None,
        })
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }
}

impl SortRow for ProcessRow {
    const FIELDS: &'static [&'static str] =
        &["pid", "program", "threads", "run_ns", "idle_ns", "samples"];

    fn field(&self, key: &str) -> Option<Cell> {
        Some(match key {
            "pid" => u64::from(self.pid.0).into(),
            "program" => (&self.program).into(),
            "threads" => self.threads.into(),
            "run_ns" => self.run_ns.into(),
            "idle_ns" => self.idle_ns?.into(),
            "samples" => self.samples.into(),
            _ => return None,
        })
    }

    fn counts(&self) -> Option<&Counts> {
        Some(&self.counts)
    }
}

impl Summary {
    /// Sorts each table that has the column by it, and sums the rows beyond the limits of
    /// `options`. The summary must have been made with their [`Options::every_row`].
    ///
    /// # Errors
    /// No table has the column. The summary is then unchanged.
    pub fn sort_by(&mut self, column: &SortColumn, options: &Options) -> Result<(), UnknownColumn> {
        let known = self.columns();
        if !known.contains(column.key()) {
            return Err(UnknownColumn {
                name: column.key().to_owned(),
                known: known.into_iter().collect(),
            });
        }
        let hot = &mut self.hot;
        for table in [&mut hot.functions, &mut hot.lines, &mut hot.instructions] {
            column.sort(&mut table.rows);
            table.cut(options.limits.rows);
        }
        for table in &mut self.regions {
            column.sort(&mut table.rows);
            table.cut(options.regions);
        }
        if let Some(python) = &mut self.python {
            for rows in [&mut python.lines, &mut python.functions] {
                column.sort(rows);
            }
            let limit = options.row_limit(python::MAX_ROWS);
            python.other_lines += cut_off(&mut python.lines, limit).len() as u64;
            python.functions.truncate(limit);
        }
        let data_rows = options.row_limit(table::MAX_ROWS);
        if let Some(data) = &mut self.data {
            column.sort(&mut data.rows);
            for row in cut_off(&mut data.rows, data_rows) {
                data.other_rows += 1;
                add(&mut data.other_counts, &row.counts);
            }
        }
        if let Some(heap) = &mut self.heap {
            column.sort(&mut heap.sites);
            for site in cut_off(&mut heap.sites, data_rows) {
                heap.other_sites += 1;
                heap.other_at_peak_bytes += site.at_peak_bytes;
            }
        }
        // They are ordered by cost, whatever the column is.
        if let Some(types) = &mut self.types {
            for row in cut_off(&mut types.rows, options.row_limit(MAX_TYPES)) {
                types.other_rows += 1;
                add(&mut types.other_counts, &row.counts);
            }
        }
        if let Some(sharing) = &mut self.sharing {
            sharing.cut(options.sharing_limits());
        }
        column.sort(&mut self.threads);
        column.sort(&mut self.processes);
        self.sorted_by = Some(column.clone());
        Ok(())
    }

    /// Names of the columns of all tables.
    fn columns(&self) -> BTreeSet<String> {
        let mut known = BTreeSet::new();
        let hot = &self.hot;
        for table in [&hot.functions, &hot.lines, &hot.instructions] {
            add_columns(&table.rows, &mut known);
        }
        for table in &self.regions {
            add_columns(&table.rows, &mut known);
        }
        if let Some(python) = &self.python {
            add_columns(&python.lines, &mut known);
        }
        if let Some(data) = &self.data {
            add_columns(&data.rows, &mut known);
        }
        if let Some(heap) = &self.heap {
            add_columns(&heap.sites, &mut known);
        }
        add_columns(&self.threads, &mut known);
        add_columns(&self.processes, &mut known);
        known
    }
}

fn add_columns<R: SortRow>(rows: &[R], known: &mut BTreeSet<String>) {
    for row in rows {
        let sums = [DRAM_BYTES, STALLED_CYCLES];
        let events = row
            .counts()
            .into_iter()
            .flat_map(|counts| counts.keys().map(String::as_str));
        for name in R::FIELDS.iter().copied().chain(sums).chain(events) {
            if !known.contains(name) && SortColumn(name.to_owned()).cell(row).is_some() {
                known.insert(name.to_owned());
            }
        }
    }
}

impl HotTable {
    fn cut(&mut self, limit: usize) {
        for row in cut_off(&mut self.rows, limit) {
            self.others.rows += 1;
            self.others.value = self.others.value.saturating_add(row.value);
            add(&mut self.others.counts, &row.counts);
        }
        self.others.share = ratio(self.others.value, self.total);
    }
}

impl RegionTable {
    fn cut(&mut self, limit: usize) {
        for row in cut_off(&mut self.rows, limit) {
            self.other_rows += 1;
            self.other_samples += row.samples;
            self.other_events = self.other_events.saturating_add(row.events);
        }
    }
}

fn cut_off<R>(rows: &mut Vec<R>, limit: usize) -> Vec<R> {
    rows.split_off(limit.min(rows.len()))
}

fn add(sums: &mut Counts, counts: &Counts) {
    for (event, n) in counts {
        let sum = sums.entry(event.clone()).or_default();
        *sum = sum.saturating_add(*n);
    }
}
