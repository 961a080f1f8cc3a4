//! Lines of Python by the cycles that they and the native code they called took.
//!
//! Under emulation the sums are exact: the source sees every instruction. Native samples have the
//! events that the samples stand for, and the lines are sorted by the sampled event. Equal lines of
//! several processes are one row.
//!
//! Memory: 300 bytes for each line that was executed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memgauge_trace::catalogue::{CYCLES, STALLS};
use memgauge_trace::{EventId, PythonLine};
use serde::Serialize;

use crate::Analysis;
use crate::counts::{Counts, EventNames, EventSums, ratio};

/// Default maximum number of rows.
pub(crate) const MAX_ROWS: usize = 1000;

/// A line, or a function without a line, and what it cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PythonRow {
    /// Qualified name of the function.
    pub function: String,
    /// Source file.
    pub file: String,
    /// Line in the source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Value of the table's sort order of the line / of the run, in 0..=1. `None` if the run has
    /// none.
    pub share: Option<f64>,
    /// Cycles in which a core waited for memory.
    pub stalled_cycles: u64,
    /// Counts by event name.
    pub counts: Counts,
}

/// Lines and functions of Python, by falling cycles, or by falling events that the samples stand
/// for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PythonTable {
    /// Name of the sort order: `cycles`, or the sampled event.
    pub rank: String,
    /// Value of the sort order of all Python / of the run, in 0..=1. `None` if the run has none.
    pub share: Option<f64>,
    /// First lines of the sort order.
    pub lines: Vec<PythonRow>,
    /// Number of lines that are not listed.
    pub other_lines: u64,
    /// First functions of the sort order, by events in them and in the native code that they called, but not in
    /// other functions of Python.
    pub functions: Vec<PythonRow>,
}

/// File, function, and line.
type PythonLocation = (String, String, Option<u32>);

/// Sums by line.
#[derive(Clone, Debug, Default)]
pub struct PythonSums(BTreeMap<PythonLocation, EventSums>);

impl Analysis for PythonSums {
    type Row = PythonLine;
    type Output = PythonSums;

    fn observe(&mut self, batch: &[PythonLine]) {
        for row in batch {
            let place = (row.file.clone(), row.function.clone(), row.line);
            self.0.entry(place).or_default().add(row.event, row.count);
        }
    }

    fn merge(&mut self, other: Self) {
        for (place, tally) in other.0 {
            self.0.entry(place).or_default().add_all(&tally);
        }
    }

    fn finish(self) -> PythonSums {
        self
    }
}

impl PythonSums {
    /// True if lines have cycles of a modelled machine.
    pub(crate) fn has_cycles(&self) -> bool {
        self.0.values().any(|tally| tally.get(CYCLES) > 0)
    }

    /// The table by an event, of which the run has `total`. `None` without Python.
    pub(crate) fn table(
        self,
        (event, total): (EventId, u64),
        names: &EventNames,
        max_rows: usize,
    ) -> Option<PythonTable> {
        if self.0.is_empty() {
            return None;
        }
        let mut functions: BTreeMap<PythonLocation, EventSums> = BTreeMap::new();
        let mut all = 0u64;
        for ((file, function, _), tally) in &self.0 {
            let place = (file.clone(), function.clone(), None);
            functions.entry(place).or_default().add_all(tally);
            all = all.saturating_add(tally.get(event));
        }
        let other_lines = self.0.len().saturating_sub(max_rows) as u64;
        Some(PythonTable {
            rank: names.name(event),
            share: ratio(all, total),
            lines: rows(self.0, (event, total), names, max_rows),
            other_lines,
            functions: rows(functions, (event, total), names, max_rows),
        })
    }
}

fn rows(
    sums: BTreeMap<PythonLocation, EventSums>,
    (event, total): (EventId, u64),
    names: &EventNames,
    max_rows: usize,
) -> Vec<PythonRow> {
    let mut sums: Vec<_> = sums.into_iter().collect();
    // Stable, so equal lines stay in the order of their names.
    sums.sort_by_key(|(_, tally)| Reverse(tally.get(event)));
    sums.truncate(max_rows);
    let stalls: Vec<EventId> = STALLS.to_vec();
    let rows = sums.into_iter();
    rows.map(|((file, function, line), tally)| PythonRow {
        function,
        file,
        line,
        share: ratio(tally.get(event), total),
        stalled_cycles: tally.sum(&stalls),
        counts: tally.named(names),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use memgauge_trace::Pid;
    use memgauge_trace::catalogue::{L1D_MISS, STALL_DRAM, STALL_L2};

    use super::*;

    fn row(pid: u32, function: &str, line: u32, event: EventId, count: u64) -> PythonLine {
        PythonLine {
            pid: Pid(pid),
            file: "/x/p.py".to_owned(),
            function: function.to_owned(),
            line: Some(line),
            event,
            count,
        }
    }

    #[test]
    fn lines_of_all_processes_are_summed_and_functions_have_all_their_lines() {
        let rows = [
            row(1, "f", 2, CYCLES, 10),
            row(1, "f", 3, CYCLES, 30),
            row(1, "f", 3, STALL_DRAM, 7),
            row(1, "f", 3, STALL_L2, 5),
            row(1, "g", 9, CYCLES, 35),
            row(1, "g", 9, L1D_MISS, 4),
        ];
        let mut sums = PythonSums::default();
        sums.observe(&rows);
        let mut other = PythonSums::default();
        other.observe(&[row(2, "f", 2, CYCLES, 25)]);
        sums.merge(other);
        let table = sums
            .table((CYCLES, 200), &EventNames::default(), MAX_ROWS)
            .unwrap();
        assert_eq!(table.share, Some(0.5));
        let found: Vec<_> = table.lines.iter().map(|r| (r.line, r.share)).collect();
        let expected = [(Some(2), 0.175), (Some(9), 0.175), (Some(3), 0.15)];
        assert_eq!(found, expected.map(|(line, share)| (line, Some(share))));
        assert_eq!(table.lines[2].stalled_cycles, 12);
        assert_eq!(table.lines[1].counts["l1d.miss"], 4);
        let found = table
            .functions
            .iter()
            .map(|r| (&*r.function, r.counts["cycles"]));
        assert_eq!(found.collect::<Vec<_>>(), [("f", 65), ("g", 35)]);
    }

    #[test]
    fn run_without_python_has_no_table() {
        assert_eq!(
            PythonSums::default().table((CYCLES, 7), &EventNames::default(), MAX_ROWS),
            None
        );
    }
}
