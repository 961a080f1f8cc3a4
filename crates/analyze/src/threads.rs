//! Threads and processes with their event sums from the series.
//!
//! A thread's virtual run time is the total length of its series' intervals. A source may omit
//! intervals without an event, so the event with the longest time counts.
//!
//! Memory: about 600 bytes for each thread. The kernel may reuse a thread ID within a process. Such
//! threads share a row.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memgauge_trace::{EventId, Pid, SeriesRow, Thread, Tid, catalogue};
use serde::{Deserialize, Serialize};

use crate::Analysis;
use crate::counts::{Counts, EventNames, EventSums};
use crate::samples::SampleTotals;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct ThreadEventSums {
    values: EventSums,
    covered_ns: EventSums,
}

impl ThreadEventSums {
    fn run_ns(&self) -> u64 {
        self.covered_ns.iter().map(|e| e.1).max().unwrap_or(0)
    }

    fn add(&mut self, other: &ThreadEventSums) {
        self.values.add_all(&other.values);
        self.covered_ns.add_all(&other.covered_ns);
    }
}

/// Sums series rows by thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ThreadTotals(BTreeMap<(Pid, Tid), ThreadEventSums>);

impl Analysis for ThreadTotals {
    type Row = SeriesRow;
    type Output = ThreadSums;

    fn observe(&mut self, batch: &[SeriesRow]) {
        for row in batch {
            let sums = self.0.entry((row.pid, row.tid)).or_default();
            sums.values.add(row.event, row.value);
            sums.covered_ns.add(row.event, row.interval_ns);
        }
    }

    fn merge(&mut self, other: Self) {
        for (thread, sums) in other.0 {
            self.0.entry(thread).or_default().add(&sums);
        }
    }

    fn finish(self) -> ThreadSums {
        ThreadSums(self.0)
    }
}

/// Event sums of every thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadSums(BTreeMap<(Pid, Tid), ThreadEventSums>);

impl ThreadSums {
    /// Sums of every event over all threads.
    pub fn totals(&self) -> Vec<(EventId, u64)> {
        let mut all = EventSums::default();
        for sums in self.0.values() {
            all.add_all(&sums.values);
        }
        all.iter().collect()
    }
}

/// Program and parent of each thread, sorted by process, thread and start.
#[derive(Clone, Debug, Default)]
pub struct ThreadNames(Vec<Thread>);

impl Analysis for ThreadNames {
    type Row = Thread;
    type Output = Vec<Thread>;

    fn observe(&mut self, batch: &[Thread]) {
        self.0.extend_from_slice(batch);
    }

    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn finish(mut self) -> Vec<Thread> {
        self.0.sort_by_key(|t| (t.pid, t.tid, t.start_ns));
        self.0
    }
}

/// One thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadRow {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Path of the program that it executed last, or empty.
    pub program: String,
    /// First event, nanoseconds since the recording began.
    pub start_ns: Option<u64>,
    /// Last event. `None` if it was still running or unknown.
    pub end_ns: Option<u64>,
    /// Time it ran on the recording's clock, in nanoseconds.
    pub run_ns: u64,
    /// Time from first to last event in which it waited, in nanoseconds. Absent if the source does
    /// not record it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ns: Option<u64>,
    /// Sum of every event by name, in the event's unit. For events that were only sampled, the
    /// events that the samples represent.
    pub counts: Counts,
    /// Samples of all events. 0 on modelled machines.
    pub samples: u64,
}

/// One process, over all its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessRow {
    /// Process.
    pub pid: Pid,
    /// Process that started it, or 0.
    pub parent_pid: Pid,
    /// Path of the program that it executed last, or empty.
    pub program: String,
    /// Number of threads.
    pub threads: u64,
    /// Summed run time of its threads on the recording's clock, in nanoseconds.
    pub run_ns: u64,
    /// Total time in which its threads waited, in nanoseconds. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ns: Option<u64>,
    /// Sum of every event by name, in the event's unit. For events that were only sampled, the
    /// events that the samples represent.
    pub counts: Counts,
    /// Samples of all events. 0 on modelled machines.
    pub samples: u64,
}

/// Threads by falling DRAM bytes, then instructions, then IDs. `known` must be sorted as in
/// [`ThreadNames`].
///
/// With `samples`, events that no series counted are estimated from the sums of sample periods.
pub fn threads(
    sums: &ThreadSums,
    samples: Option<&SampleTotals>,
    known: &[Thread],
    names: &EventNames,
) -> Vec<ThreadRow> {
    let mut rows: BTreeMap<(Pid, Tid), ThreadRow> = BTreeMap::new();
    for thread in known {
        let row = row_of(&mut rows, thread.pid, thread.tid);
        row.program.clone_from(&thread.program);
        row.start_ns = row.start_ns.or(Some(thread.start_ns));
        row.end_ns = thread.end_ns;
        row.idle_ns = sum(row.idle_ns, thread.idle_ns);
    }
    for (&(pid, tid), sums) in &sums.0 {
        let row = row_of(&mut rows, pid, tid);
        row.run_ns = sums.run_ns();
        row.counts = sums.values.named(names);
    }
    if let Some(samples) = samples {
        add_samples(&mut rows, sums, samples, names);
    }
    let mut rows: Vec<ThreadRow> = rows.into_values().collect();
    rows.sort_by_key(|row| Reverse((weight(&row.counts), row.samples)));
    rows
}

fn add_samples(
    rows: &mut BTreeMap<(Pid, Tid), ThreadRow>,
    sums: &ThreadSums,
    samples: &SampleTotals,
    names: &EventNames,
) {
    let counted: Vec<EventId> = sums.totals().into_iter().map(|(event, _)| event).collect();
    for (&(pid, tid), sampled) in samples.threads() {
        let row = row_of(rows, pid, tid);
        row.samples = sampled.samples;
        let estimated = sampled.events.iter().filter(|e| !counted.contains(&e.0));
        row.counts
            .extend(estimated.map(|(event, n)| (names.name(event), n)));
    }
}

/// Sum of the known values.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.map_or(other, |n| Some(n.saturating_add(other.unwrap_or(0))))
}

fn row_of(rows: &mut BTreeMap<(Pid, Tid), ThreadRow>, pid: Pid, tid: Tid) -> &mut ThreadRow {
    let row = rows.entry((pid, tid)).or_default();
    (row.pid, row.tid) = (pid, tid);
    row
}

/// Processes in the order of [`threads`], summed from its rows.
pub fn processes(threads: &[ThreadRow], known: &[Thread]) -> Vec<ProcessRow> {
    let mut rows: BTreeMap<Pid, ProcessRow> = BTreeMap::new();
    for thread in threads {
        let row = rows.entry(thread.pid).or_default();
        row.pid = thread.pid;
        row.threads += 1;
        row.run_ns = row.run_ns.saturating_add(thread.run_ns);
        row.samples += thread.samples;
        row.idle_ns = sum(row.idle_ns, thread.idle_ns);
        for (event, n) in &thread.counts {
            let sum = row.counts.entry(event.clone()).or_default();
            *sum = sum.saturating_add(*n);
        }
    }
    name_processes(&mut rows, known);
    let mut rows: Vec<ProcessRow> = rows.into_values().collect();
    rows.sort_by_key(|row| Reverse((weight(&row.counts), row.samples)));
    rows
}

/// Names each process after the program started last. Its parent is the process that started its
/// first thread.
fn name_processes(rows: &mut BTreeMap<Pid, ProcessRow>, known: &[Thread]) {
    let mut by_start: Vec<&Thread> = known.iter().collect();
    by_start.sort_by_key(|t| t.start_ns);
    for thread in by_start {
        let Some(row) = rows.get_mut(&thread.pid) else {
            continue;
        };
        row.program.clone_from(&thread.program);
        if row.parent_pid == Pid(0) {
            row.parent_pid = thread.parent_pid;
        }
    }
}

fn weight(counts: &Counts) -> (u64, u64) {
    let get = |id| catalogue::name(id).and_then(|name| counts.get(name).copied());
    let bytes = |id| get(id).unwrap_or(0);
    let dram = bytes(catalogue::DRAM_READ_BYTES).saturating_add(bytes(catalogue::DRAM_WRITE_BYTES));
    (dram, get(catalogue::INSTRUCTIONS).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::catalogue::{DRAM_READ_BYTES, INSTRUCTIONS, LLC_MISS};

    fn row(pid: u32, tid: u32, event: EventId, value: u64, interval_ns: u64) -> SeriesRow {
        SeriesRow {
            pid: Pid(pid),
            tid: Tid(tid),
            event,
            value,
            interval_ns,
            ..SeriesRow::default()
        }
    }

    fn thread(pid: u32, tid: u32, program: &str, start_ns: u64, end_ns: Option<u64>) -> Thread {
        Thread {
            pid: Pid(pid),
            tid: Tid(tid),
            parent_pid: Pid(77),
            program: program.to_owned(),
            start_ns,
            end_ns,
            idle_ns: None,
        }
    }

    fn sums() -> ThreadSums {
        let mut totals = ThreadTotals::default();
        totals.observe(&[
            row(1, 1, INSTRUCTIONS, 10, 100),
            row(1, 1, INSTRUCTIONS, 20, 50),
            row(1, 1, LLC_MISS, 5, 100),
            row(1, 2, INSTRUCTIONS, 99, 70),
        ]);
        let mut other = ThreadTotals::default();
        other.observe(&[
            row(2, 2, DRAM_READ_BYTES, 64, 10),
            row(1, 1, LLC_MISS, 1, 0),
        ]);
        totals.merge(other);
        totals.finish()
    }

    #[test]
    fn threads_are_ordered_by_memory_traffic_then_work() {
        let rows = threads(&sums(), None, &[], &EventNames::default());
        let ids: Vec<_> = rows.iter().map(|r| (r.pid.0, r.tid.0)).collect();
        assert_eq!(ids, [(2, 2), (1, 2), (1, 1)]);
        assert_eq!(rows[2].counts["instructions"], 30);
        assert_eq!(rows[2].counts["llc.miss"], 6);
    }

    #[test]
    fn run_time_does_not_count_an_interval_once_per_event() {
        let rows = threads(&sums(), None, &[], &EventNames::default());
        assert_eq!(rows[2].run_ns, 150);
    }

    #[test]
    fn thread_that_execs_is_named_by_its_last_program() {
        let known = [
            thread(1, 1, "/bin/sh", 0, Some(5)),
            thread(1, 1, "/bin/xz", 5, None),
        ];
        let rows = threads(&sums(), None, &known, &EventNames::default());
        assert_eq!(rows[2].program, "/bin/xz");
        assert_eq!((rows[2].start_ns, rows[2].end_ns), (Some(0), None));
    }

    #[test]
    fn process_sums_its_threads() {
        let known = [
            thread(1, 1, "/bin/xz", 0, None),
            thread(1, 2, "/bin/xz", 3, None),
        ];
        let rows = threads(&sums(), None, &known, &EventNames::default());
        let processes = processes(&rows, &known);
        assert_eq!(processes.len(), 2);
        let xz = &processes[1];
        assert_eq!((xz.pid.0, xz.parent_pid.0, xz.threads), (1, 77, 2));
        assert_eq!(xz.counts["instructions"], 129);
        assert_eq!(xz.run_ns, 220);
    }

    #[test]
    fn thread_without_any_row_of_work_is_still_listed() {
        let known = [thread(4, 4, "/bin/true", 9, Some(9))];
        let rows = threads(&ThreadSums::default(), None, &known, &EventNames::default());
        assert_eq!((rows.len(), rows[0].run_ns), (1, 0));
    }
}
