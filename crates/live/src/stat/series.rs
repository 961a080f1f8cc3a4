//! Turns ticks of timers into rows of a series. Pure.
//!
//! The values in a tick are what the counters have counted since they were opened, by thread and
//! CPU: a *stream*. A row is the difference to the stream's previous tick. So if a tick is lost,
//! the next row is longer and no count is lost. Counts after a thread's last tick come with its READ
//! records when it ends. The thread that the counters were opened on writes no such
//! records. Its last row is the difference to the totals at the end.

use std::collections::BTreeMap;

use super::Values;
use super::throttling::TimerThrottling;
use memgauge_perf::abi::{Attr, flag};
use memgauge_perf::record::{Layout, Reading, Record, Task, Trailer};

/// One row: the increments of a group's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterRow {
    /// End of the interval.
    pub time_ns: u64,
    /// Time since the previous row of the thread (or CPU).
    pub interval_ns: u64,
    /// Process; 0 in a series by CPU.
    pub pid: u32,
    /// Thread; 0 in a series by CPU.
    pub tid: u32,
    /// CPU, in a series by CPU.
    pub cpu: Option<u32>,
    /// Index of the group.
    pub group: usize,
    /// Increments of the counters. The first is the timer's, in nanoseconds.
    pub values: Values,
}

impl CounterRow {
    /// Identifies the thread or CPU among those of the series.
    fn owner(&self) -> u32 {
        self.cpu.unwrap_or(self.tid)
    }
}

/// A counter, by its ID in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesCounter {
    /// Index of its group.
    pub group: usize,
    /// ID of the group's leader at the same placement.
    pub leader: u64,
    /// Index in the group.
    pub index: usize,
    /// CPU that it counts on.
    pub cpu: u32,
}

/// How long a counter was enabled, and how long it counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterTimes {
    /// Nanoseconds enabled.
    pub enabled_ns: u64,
    /// Nanoseconds of these in which it counted.
    pub running_ns: u64,
}

impl CounterTimes {
    fn from_reading(reading: &Reading<'_>) -> CounterTimes {
        CounterTimes {
            enabled_ns: reading.enabled_ns,
            running_ns: reading.running_ns,
        }
    }
}

/// A record that matters to a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesRecord {
    /// Time on the events' clock.
    pub time_ns: u64,
    /// Kind of the record.
    pub kind: SeriesRecordKind,
}

/// Kinds of [`SeriesRecord`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesRecordKind {
    /// A timer ticked.
    Tick {
        /// ID of the group's leader.
        leader: u64,
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Times of the group.
        times: CounterTimes,
        /// Values of the counters.
        values: Values,
    },
    /// The last value of a counter in a thread that ends.
    LastValue {
        /// ID of the counter.
        id: u64,
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Times of the counter.
        times: CounterTimes,
        /// Its value.
        value: u64,
    },
    /// The kernel stopped a timer because it ticked too fast.
    Throttled,
    /// A thread started.
    Fork(Task),
    /// A thread ended.
    Exit(Task),
    /// A thread got a name.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// True if the thread called `exec`.
        exec: bool,
        /// The name.
        name: String,
    },
}

impl SeriesRecord {
    /// Returns `None` if the record does not matter to a series.
    pub fn from_record(record: &Record<'_>, trailer: &Trailer) -> Option<SeriesRecord> {
        let (time_ns, kind) = match *record {
            Record::Sample(sample) => {
                let reading = sample.reading?;
                let values = 0..reading.len();
                let kind = SeriesRecordKind::Tick {
                    leader: sample.id,
                    pid: sample.pid,
                    tid: sample.tid,
                    times: CounterTimes::from_reading(&reading),
                    values: values.filter_map(|index| reading.value(index)).collect(),
                };
                (sample.time_ns, kind)
            }
            Record::Read { pid, tid, reading } => {
                let kind = SeriesRecordKind::LastValue {
                    id: trailer.id,
                    pid,
                    tid,
                    times: CounterTimes::from_reading(&reading),
                    value: reading.value(0)?,
                };
                (trailer.time_ns, kind)
            }
            Record::Throttle { .. } => (trailer.time_ns, SeriesRecordKind::Throttled),
            Record::Fork(task) => (task.time_ns, SeriesRecordKind::Fork(task)),
            Record::Exit(task) => (task.time_ns, SeriesRecordKind::Exit(task)),
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                let kind = SeriesRecordKind::Comm {
                    pid,
                    tid,
                    exec,
                    name: String::from_utf8_lossy(name).into_owned(),
                };
                (trailer.time_ns, kind)
            }
            _ => return None,
        };
        Some(SeriesRecord { time_ns, kind })
    }
}

/// The layout of the records of a session's counters.
pub(super) fn layout(sample_type: u64, read_format: u64) -> Layout {
    Layout::new(&Attr {
        sample_type,
        read_format,
        flags: flag::SAMPLE_ID_ALL,
        ..Default::default()
    })
}

/// Values of a group at the last tick of a thread on a CPU.
#[derive(Clone, Debug, Default)]
struct CounterStream {
    values: Values,
    times: CounterTimes,
}

/// The last row of a thread that has ended, while its READ records arrive.
#[derive(Debug, Default)]
struct LastRow {
    /// Time that the group ran after the thread's last tick.
    running_ns: u64,
    row: CounterRow,
}

/// Turns records, in the order of time, into rows.
#[derive(Debug, Default)]
pub struct RowBuilder {
    counters: BTreeMap<u64, SeriesCounter>,
    /// By leader and thread (0 in a series by CPU).
    streams: BTreeMap<(u64, u32), CounterStream>,
    /// Time of the last row of a thread (or CPU), or of its start.
    last_row_ns: BTreeMap<u32, u64>,
    /// By thread and group.
    last_rows: BTreeMap<(u32, usize), LastRow>,
    by_cpu: bool,
    /// Groups take turns on the PMU, so rows are scaled up.
    is_multiplexed: bool,
    pub(super) throttling: TimerThrottling,
    start_ns: u64,
    /// Number of records with an unknown counter.
    pub unknown_counters: u64,
}

impl RowBuilder {
    /// A series of these counters that starts at `start_ns`.
    pub fn new(counters: BTreeMap<u64, SeriesCounter>, by_cpu: bool, start_ns: u64) -> RowBuilder {
        RowBuilder {
            counters,
            by_cpu,
            start_ns,
            ..RowBuilder::default()
        }
    }

    /// Adds the counters of a new thread.
    pub(super) fn add_counters(&mut self, counters: Vec<(u64, SeriesCounter)>) {
        self.counters.extend(counters);
    }

    /// Scales up the rows of groups that did not count all the time.
    pub fn scale_multiplexed(&mut self) {
        self.is_multiplexed = true;
    }

    /// Processes the next record and adds the rows that follow from it.
    pub fn observe(&mut self, record: SeriesRecord, rows: &mut Vec<CounterRow>) {
        let time_ns = record.time_ns;
        match record.kind {
            SeriesRecordKind::Tick { .. } => rows.extend(self.tick(record)),
            SeriesRecordKind::LastValue { .. } => self.add_last_value(&record),
            SeriesRecordKind::Throttled => self.throttling.note_throttled(),
            SeriesRecordKind::Fork(task) => {
                self.last_row_ns.insert(task.tid, time_ns);
            }
            SeriesRecordKind::Exit(_) | SeriesRecordKind::Comm { .. } => {}
        }
    }

    /// Returns the row of a tick; `None` if its leader is unknown.
    fn tick(&mut self, record: SeriesRecord) -> Option<CounterRow> {
        let SeriesRecord { time_ns, kind } = record;
        let SeriesRecordKind::Tick {
            leader,
            pid,
            tid,
            times,
            values,
        } = kind
        else {
            return None;
        };
        let Some(&SeriesCounter { group, cpu, .. }) = self.counters.get(&leader) else {
            self.unknown_counters += 1;
            return None;
        };
        let mut row = CounterRow {
            time_ns,
            group,
            ..CounterRow::default()
        };
        match self.by_cpu {
            true => row.cpu = Some(cpu),
            false => (row.pid, row.tid) = (pid, tid),
        }
        let stream = self.streams.entry((leader, row.tid)).or_default();
        row.values = differences(&values, &stream.values);
        let running_ns = times.running_ns.saturating_sub(stream.times.running_ns);
        self.throttling
            .add_estimate(row.owner(), group, running_ns, &mut row.values);
        if self.is_multiplexed {
            scale(&mut row.values, times, stream.times);
        }
        *stream = CounterStream { values, times };
        self.set_interval(&mut row);
        Some(row)
    }

    fn add_last_value(&mut self, record: &SeriesRecord) {
        let SeriesRecordKind::LastValue {
            id,
            pid,
            tid,
            times,
            value,
        } = record.kind
        else {
            return;
        };
        let Some(&counter) = self.counters.get(&id) else {
            self.unknown_counters += 1;
            return;
        };
        let stream = self.streams.entry((counter.leader, tid)).or_default();
        if stream.values.len() <= counter.index {
            stream.values.resize(counter.index + 1, 0);
        }
        let increment = value.saturating_sub(stream.values[counter.index]);
        stream.values[counter.index] = stream.values[counter.index].max(value);
        let last = self.last_rows.entry((tid, counter.group)).or_default();
        if counter.index == 0 {
            last.running_ns += times.running_ns.saturating_sub(stream.times.running_ns);
            stream.times = times;
        }
        let row = &mut last.row;
        if row.values.len() <= counter.index {
            row.values.resize(counter.index + 1, 0);
        }
        row.values[counter.index] += increment;
        row.time_ns = record.time_ns;
        (row.pid, row.tid, row.group) = (pid, tid, counter.group);
    }

    /// Adds the last rows of threads that have ended. Called when all their READ records have
    /// been observed.
    pub fn end_threads(&mut self, rows: &mut Vec<CounterRow>) {
        let mut last_rows: Vec<LastRow> =
            std::mem::take(&mut self.last_rows).into_values().collect();
        last_rows.sort_by_key(|LastRow { row, .. }| (row.time_ns, row.tid, row.group));
        for LastRow {
            running_ns,
            mut row,
        } in last_rows
        {
            self.throttling
                .add_estimate(row.tid, row.group, running_ns, &mut row.values);
            self.set_interval(&mut row);
            rows.push(row);
        }
    }

    /// Sets the time since the owner's previous row.
    fn set_interval(&mut self, row: &mut CounterRow) {
        let previous_ns = self.last_row_ns.insert(row.owner(), row.time_ns);
        row.interval_ns = row
            .time_ns
            .saturating_sub(previous_ns.unwrap_or(self.start_ns));
    }

    /// Adds what the counters of `leader` counted beyond all ticks to the last row of the thread
    /// that they were opened on.
    pub fn add_remainder(
        &mut self,
        leader: u64,
        running_ns: u64,
        totals: &[u64],
        row: &mut CounterRow,
    ) {
        let mut remainder: Values = totals.into();
        let mut remaining_ns = running_ns;
        for (_, stream) in self.streams.iter().filter(|(key, _)| key.0 == leader) {
            remaining_ns = remaining_ns.saturating_sub(stream.times.running_ns);
            for (value, in_ticks) in remainder.iter_mut().zip(&stream.values) {
                *value = value.saturating_sub(*in_ticks);
            }
        }
        self.throttling
            .add_estimate(row.owner(), row.group, remaining_ns, &mut remainder);
        row.values.resize(row.values.len().max(remainder.len()), 0);
        for (sum, value) in row.values.iter_mut().zip(remainder) {
            *sum += value;
        }
    }

    /// Adds the last row of a thread or CPU, unless nothing was counted.
    pub fn close(&mut self, mut row: CounterRow, rows: &mut Vec<CounterRow>) {
        if row.values.iter().all(|&v| v == 0) {
            return;
        }
        self.set_interval(&mut row);
        rows.push(row);
    }
}

fn differences(now: &[u64], before: &[u64]) -> Values {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    now.iter()
        .zip(before)
        .map(|(now, before)| now.saturating_sub(before))
        .collect()
}

/// Scales what was counted while the group ran up to the time that it was enabled. The timer is
/// not scaled: it ticks only while its group counts, and its value says for how long.
fn scale(values: &mut [u64], now: CounterTimes, before: CounterTimes) {
    let enabled_ns = now.enabled_ns.saturating_sub(before.enabled_ns);
    let running_ns = now.running_ns.saturating_sub(before.running_ns);
    if running_ns == 0 || running_ns >= enabled_ns {
        return;
    }
    for value in values.iter_mut().skip(1) {
        let scaled = u128::from(*value) * u128::from(enabled_ns) / u128::from(running_ns);
        *value = u64::try_from(scaled).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two CPUs, with a group of a timer (IDs 10, 20) and a counter (11, 21) on each.
    fn series() -> RowBuilder {
        let counter = |leader, index, cpu| SeriesCounter {
            group: 0,
            leader,
            index,
            cpu,
        };
        let counters = BTreeMap::from([
            (10, counter(10, 0, 0)),
            (11, counter(10, 1, 0)),
            (20, counter(20, 0, 1)),
            (21, counter(20, 1, 1)),
        ]);
        RowBuilder::new(counters, false, 1000)
    }

    fn tick(time_ns: u64, leader: u64, tid: u32, values: &[u64]) -> SeriesRecord {
        let kind = SeriesRecordKind::Tick {
            leader,
            pid: 7,
            tid,
            times: CounterTimes::default(),
            values: values.into(),
        };
        SeriesRecord { time_ns, kind }
    }

    fn last(time_ns: u64, id: u64, tid: u32, value: u64) -> SeriesRecord {
        SeriesRecord {
            time_ns,
            kind: SeriesRecordKind::LastValue {
                id,
                pid: 7,
                tid,
                times: CounterTimes::default(),
                value,
            },
        }
    }

    fn fork(time_ns: u64, tid: u32) -> SeriesRecord {
        let task = Task {
            pid: 7,
            tid,
            time_ns,
            ..Task::default()
        };
        SeriesRecord {
            time_ns,
            kind: SeriesRecordKind::Fork(task),
        }
    }

    fn run(series: &mut RowBuilder, records: Vec<SeriesRecord>) -> Vec<(u64, u64, u32, Vec<u64>)> {
        let mut rows = Vec::new();
        for record in records {
            series.observe(record, &mut rows);
        }
        series.end_threads(&mut rows);
        rows.into_iter()
            .map(|r| (r.time_ns, r.interval_ns, r.tid, r.values.to_vec()))
            .collect()
    }

    #[test]
    fn rows_are_differences_to_the_previous_tick_of_the_stream() {
        let rows = run(
            &mut series(),
            vec![
                tick(1100, 10, 7, &[100, 5]),
                tick(1200, 20, 7, &[90, 50]),
                tick(1300, 10, 7, &[200, 6]),
            ],
        );
        let expected = [
            (1100, 100, 7, vec![100, 5]),
            (1200, 100, 7, vec![90, 50]),
            (1300, 100, 7, vec![100, 1]),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn lost_tick_makes_the_next_row_longer_and_loses_no_count() {
        let all = run(
            &mut series(),
            vec![
                tick(1100, 10, 7, &[100, 5]),
                tick(1200, 10, 7, &[200, 9]),
                tick(1300, 10, 7, &[300, 9]),
            ],
        );
        let one_lost = run(
            &mut series(),
            vec![tick(1100, 10, 7, &[100, 5]), tick(1300, 10, 7, &[300, 9])],
        );
        let sum = |rows: &[(u64, u64, u32, Vec<u64>)]| {
            rows.iter()
                .map(|r| (r.1, r.3[0], r.3[1]))
                .fold((0, 0, 0), |a, r| (a.0 + r.0, a.1 + r.1, a.2 + r.2))
        };
        assert_eq!(sum(&all), sum(&one_lost));
        assert_eq!(one_lost[1].1, 200);
    }

    #[test]
    fn thread_without_a_tick_has_one_row() {
        let rows = run(
            &mut series(),
            vec![
                fork(1040, 8),
                last(1070, 10, 8, 30),
                last(1070, 11, 8, 4),
                last(1071, 21, 8, 2),
            ],
        );
        assert_eq!(rows, [(1071, 31, 8, vec![30, 6])]);
    }

    #[test]
    fn counts_after_the_last_tick_are_in_the_last_row() {
        let rows = run(
            &mut series(),
            vec![
                fork(1000, 8),
                tick(1100, 10, 8, &[100, 5]),
                last(1150, 10, 8, 140),
                last(1150, 11, 8, 7),
            ],
        );
        assert_eq!(rows[1], (1150, 50, 8, vec![40, 2]));
    }

    #[test]
    fn rows_sum_to_the_totals() {
        let mut series = series();
        let mut rows = Vec::new();
        for h in [
            tick(1100, 10, 7, &[100, 5]),
            tick(1150, 10, 8, &[50, 1]),
            last(1160, 11, 8, 3),
        ] {
            series.observe(h, &mut rows);
        }
        series.end_threads(&mut rows);
        let mut row = CounterRow {
            time_ns: 1200,
            tid: 7,
            ..CounterRow::default()
        };
        // Thread 7 went on to 130 and 6, thread 8 ended at 50 and 3.
        series.add_remainder(10, 0, &[180, 9], &mut row);
        series.add_remainder(20, 0, &[4, 1], &mut row);
        series.close(row, &mut rows);
        let sum = |i: usize| {
            rows.iter()
                .map(|r| r.values.get(i).unwrap_or(&0))
                .sum::<u64>()
        };
        assert_eq!((sum(0), sum(1)), (184, 10));
        assert_eq!(rows.last().unwrap().values[..], [34, 2]);
        assert_eq!(rows.last().unwrap().interval_ns, 100);
    }

    #[test]
    fn multiplexed_groups_are_scaled_up() {
        let mut series = series();
        series.scale_multiplexed();
        let mut rows = Vec::new();
        let mut h = tick(1100, 10, 7, &[50, 5]);
        if let SeriesRecordKind::Tick { times, .. } = &mut h.kind {
            *times = CounterTimes {
                enabled_ns: 200,
                running_ns: 50,
            };
        }
        series.observe(h, &mut rows);
        assert_eq!(rows[0].values[..], [50, 20]);
    }

    #[test]
    fn records_of_unknown_counters_are_counted() {
        let mut series = series();
        let rows = run(
            &mut series,
            vec![tick(1100, 99, 7, &[1]), last(1100, 98, 7, 1)],
        );
        assert!(rows.is_empty());
        assert_eq!(series.unknown_counters, 2);
    }
}
