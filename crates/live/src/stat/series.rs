//! Ticks of timers into rows of a series. Pure.
//!
//! A counter's value in a tick is what it has counted since it was opened, by thread
//! and processor: a *stream*. A row is the difference to the stream's last tick, so a
//! tick that was lost makes the next row longer and loses nothing. Counts of a thread
//! after its last tick come with its READ records when it ends. The thread that the
//! counters were opened on writes none: its row is the difference to the counters'
//! totals at the end.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::stops::Stops;
use memgauge_perf::record::{Layout, Record, Task, Trailer};

/// Values of a group's counters, the timer's first. Values of the default events fit in
/// place, so that a tick allocates nothing; there may be a hundred thousand ticks a
/// second.
pub type Values = SmallVec<[u64; 6]>;

/// One row: what a group's counters gained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// End of the interval.
    pub time_ns: u64,
    /// Time since the thread's (or processor's) last row.
    pub interval_ns: u64,
    /// Process; 0 in a series by processor.
    pub pid: u32,
    /// Thread; 0 in a series by processor.
    pub tid: u32,
    /// Processor, in a series by processor.
    pub cpu: Option<u32>,
    /// Number of the group.
    pub group: usize,
    /// Increments of the counters; the first is the timer's nanoseconds.
    pub values: Values,
}

/// A counter, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Number of its group.
    pub group: usize,
    /// Id of the group's leader at the same place.
    pub leader: u64,
    /// Its place in the group.
    pub index: usize,
    /// Processor it counts on.
    pub cpu: u32,
}

/// A record, as a series takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesRecord {
    /// When.
    pub time_ns: u64,
    /// What.
    pub what: SeriesRecordKind,
}

/// Kinds of [`SeriesRecord`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesRecordKind {
    /// A timer ticked.
    Tick {
        /// The leader's id.
        leader: u64,
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Nanoseconds enabled and running.
        times: (u64, u64),
        /// The counters' values.
        values: Values,
    },
    /// A counter's last value in a thread that ends.
    Last {
        /// The counter's id.
        id: u64,
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Nanoseconds enabled and running.
        times: (u64, u64),
        /// Its value.
        value: u64,
    },
    /// The kernel stopped a timer for being too fast.
    Stopped,
    /// A thread began.
    Fork(Task),
    /// A thread ended.
    Exit(Task),
    /// A thread has a name.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// Whether another program began.
        exec: bool,
        /// The name.
        name: String,
    },
}

impl SeriesRecord {
    /// The record as a series takes it, if it matters to one.
    pub fn of(record: &Record<'_>, trailer: &Trailer) -> Option<SeriesRecord> {
        let at = |time_ns, what| Some(SeriesRecord { time_ns, what });
        match *record {
            Record::Sample(s) => {
                let reading = s.reading?;
                let values = (0..reading.len())
                    .filter_map(|i| reading.value(i))
                    .collect();
                let (leader, pid, tid) = (s.id, s.pid, s.tid);
                let times = (reading.enabled_ns, reading.running_ns);
                at(
                    s.time_ns,
                    SeriesRecordKind::Tick {
                        leader,
                        pid,
                        tid,
                        times,
                        values,
                    },
                )
            }
            Record::Read { pid, tid, reading } => {
                let (id, value) = (trailer.id, reading.value(0)?);
                let times = (reading.enabled_ns, reading.running_ns);
                at(
                    trailer.time_ns,
                    SeriesRecordKind::Last {
                        id,
                        pid,
                        tid,
                        times,
                        value,
                    },
                )
            }
            Record::Throttle { .. } => at(trailer.time_ns, SeriesRecordKind::Stopped),
            Record::Fork(task) => at(task.time_ns, SeriesRecordKind::Fork(task)),
            Record::Exit(task) => at(task.time_ns, SeriesRecordKind::Exit(task)),
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                let name = String::from_utf8_lossy(name).into_owned();
                at(
                    trailer.time_ns,
                    SeriesRecordKind::Comm {
                        pid,
                        tid,
                        exec,
                        name,
                    },
                )
            }
            _ => None,
        }
    }
}

/// The layout of every record that a session's counters write.
pub(super) fn layout(sample_type: u64, read_format: u64) -> Layout {
    Layout::of(&memgauge_perf::abi::Attr {
        sample_type,
        read_format,
        flags: memgauge_perf::abi::flag::SAMPLE_ID_ALL,
        ..Default::default()
    })
}

#[derive(Clone, Debug, Default)]
struct Stream {
    values: Values,
    times: (u64, u64),
}

/// Turns happenings, in order of time, into rows.
#[derive(Debug, Default)]
pub struct Series {
    counters: BTreeMap<u64, Counter>,
    /// Values at the last tick, by leader and thread (0 in a series by processor).
    streams: BTreeMap<(u64, u32), Stream>,
    /// When a thread's (or processor's) last row was, or when it began.
    since: BTreeMap<u32, u64>,
    /// Counts of ended threads after their last tick, and the time they ran.
    last: BTreeMap<(u32, usize), (u64, Row)>,
    by_processor: bool,
    /// Groups share the PMU by turns: rows are scaled up.
    scaled: bool,
    pub(super) stops: Stops,
    start_ns: u64,
    /// Samples of unknown leaders, and values that did not fit.
    pub strange: u64,
}

impl Series {
    /// A series of these counters, begun at `start_ns`.
    pub fn new(counters: BTreeMap<u64, Counter>, by_processor: bool, start_ns: u64) -> Series {
        Series {
            counters,
            by_processor,
            start_ns,
            ..Series::default()
        }
    }

    /// More counters, of a thread that has begun.
    pub(super) fn add(&mut self, counters: Vec<(u64, Counter)>) {
        self.counters.extend(counters);
    }

    /// Scales rows of groups that did not count all the time.
    pub fn scale(&mut self) {
        self.scaled = true;
    }

    /// Takes the next record.
    pub fn observe(&mut self, happening: SeriesRecord, rows: &mut Vec<Row>) {
        let time_ns = happening.time_ns;
        match happening.what {
            SeriesRecordKind::Tick {
                leader,
                pid,
                tid,
                times,
                values,
            } => {
                self.tick(time_ns, leader, (pid, tid), times, values, rows);
            }
            SeriesRecordKind::Last {
                id,
                pid,
                tid,
                times,
                value,
            } => self.last_value(time_ns, id, (pid, tid), times, value),
            SeriesRecordKind::Stopped => self.stops.see(),
            SeriesRecordKind::Fork(task) => {
                self.since.insert(task.tid, time_ns);
            }
            SeriesRecordKind::Exit(_) | SeriesRecordKind::Comm { .. } => {}
        }
    }

    fn tick(
        &mut self,
        time_ns: u64,
        leader: u64,
        (pid, tid): (u32, u32),
        times: (u64, u64),
        values: Values,
        rows: &mut Vec<Row>,
    ) {
        let Some(&Counter { group, cpu, .. }) = self.counters.get(&leader) else {
            self.strange += 1;
            return;
        };
        let (pid, tid) = if self.by_processor {
            (0, 0)
        } else {
            (pid, tid)
        };
        let stream = self.streams.entry((leader, tid)).or_default();
        let mut gained = differences(&values, &stream.values);
        let whose = if self.by_processor { cpu } else { tid };
        let running_ns = times.1.saturating_sub(stream.times.1);
        self.stops.fill(whose, group, running_ns, &mut gained);
        if self.scaled {
            scale(&mut gained, times, stream.times);
        }
        *stream = Stream { values, times };
        let since = self.since.insert(whose, time_ns).unwrap_or(self.start_ns);
        rows.push(Row {
            time_ns,
            interval_ns: time_ns.saturating_sub(since),
            pid,
            tid,
            cpu: self.by_processor.then_some(cpu),
            group,
            values: gained,
        });
    }

    fn last_value(
        &mut self,
        time_ns: u64,
        id: u64,
        (pid, tid): (u32, u32),
        times: (u64, u64),
        value: u64,
    ) {
        let Some(&counter) = self.counters.get(&id) else {
            self.strange += 1;
            return;
        };
        let stream = self.streams.entry((counter.leader, tid)).or_default();
        if stream.values.len() <= counter.index {
            stream.values.resize(counter.index + 1, 0);
        }
        let gained = value.saturating_sub(stream.values[counter.index]);
        stream.values[counter.index] = stream.values[counter.index].max(value);
        let (running_ns, row) = self.last.entry((tid, counter.group)).or_default();
        if counter.index == 0 {
            *running_ns += times.1.saturating_sub(stream.times.1);
            stream.times = times;
        }
        if row.values.len() <= counter.index {
            row.values.resize(counter.index + 1, 0);
        }
        row.values[counter.index] += gained;
        (row.time_ns, row.pid, row.tid, row.group) = (time_ns, pid, tid, counter.group);
    }

    /// Rows of threads that have ended, once all their records have been seen.
    pub fn ended(&mut self, rows: &mut Vec<Row>) {
        let mut last: Vec<(u64, Row)> = std::mem::take(&mut self.last).into_values().collect();
        last.sort_by_key(|(_, row)| (row.time_ns, row.tid, row.group));
        for (running_ns, mut row) in last {
            self.stops
                .fill(row.tid, row.group, running_ns, &mut row.values);
            self.since_last(row.tid, &mut row);
            rows.push(row);
        }
    }

    fn since_last(&mut self, whose: u32, row: &mut Row) {
        let since = self
            .since
            .insert(whose, row.time_ns)
            .unwrap_or(self.start_ns);
        row.interval_ns = row.time_ns.saturating_sub(since);
    }

    /// Counts of the counters of `leader` beyond all ticks, added to the row of the
    /// thread they were opened on.
    pub fn rest(&mut self, leader: u64, running_ns: u64, totals: &[u64], row: &mut Row) {
        let mut rest: Values = totals.into();
        let mut rest_ns = running_ns;
        for (_, stream) in self.streams.iter().filter(|(key, _)| key.0 == leader) {
            rest_ns = rest_ns.saturating_sub(stream.times.1);
            for (rest, seen) in rest.iter_mut().zip(&stream.values) {
                *rest = rest.saturating_sub(*seen);
            }
        }
        let whose = row.cpu.unwrap_or(row.tid);
        self.stops.fill(whose, row.group, rest_ns, &mut rest);
        row.values.resize(row.values.len().max(rest.len()), 0);
        for (sum, rest) in row.values.iter_mut().zip(rest) {
            *sum += rest;
        }
    }

    /// Completes the last row of a thread or processor.
    pub fn close(&mut self, mut row: Row, rows: &mut Vec<Row>) {
        if row.values.iter().all(|&v| v == 0) {
            return;
        }
        let whose = row.cpu.unwrap_or(row.tid);
        self.since_last(whose, &mut row);
        rows.push(row);
    }
}

fn differences(now: &[u64], before: &[u64]) -> Values {
    let before = before.iter().copied().chain(std::iter::repeat(0));
    now.iter()
        .zip(before)
        .map(|(n, b)| n.saturating_sub(b))
        .collect()
}

/// Scales what was counted in `running` up to `enabled`, the timer excepted: it
/// ticks only while its group counts, and says for how long.
fn scale(gained: &mut [u64], now: (u64, u64), before: (u64, u64)) {
    let enabled = now.0.saturating_sub(before.0);
    let running = now.1.saturating_sub(before.1);
    if running == 0 || running >= enabled {
        return;
    }
    for value in gained.iter_mut().skip(1) {
        let scaled = u128::from(*value) * u128::from(enabled) / u128::from(running);
        *value = u64::try_from(scaled).unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processors, a group of a timer (ids 10, 20) and a counter (11, 21).
    fn series() -> Series {
        let counter = |leader, index, cpu| Counter {
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
        Series::new(counters, false, 1000)
    }

    fn tick(time_ns: u64, leader: u64, tid: u32, values: &[u64]) -> SeriesRecord {
        let what = SeriesRecordKind::Tick {
            leader,
            pid: 7,
            tid,
            times: (0, 0),
            values: values.into(),
        };
        SeriesRecord { time_ns, what }
    }

    fn last(time_ns: u64, id: u64, tid: u32, value: u64) -> SeriesRecord {
        SeriesRecord {
            time_ns,
            what: SeriesRecordKind::Last {
                id,
                pid: 7,
                tid,
                times: (0, 0),
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
            what: SeriesRecordKind::Fork(task),
        }
    }

    fn run(series: &mut Series, happenings: Vec<SeriesRecord>) -> Vec<(u64, u64, u32, Vec<u64>)> {
        let mut rows = Vec::new();
        for happening in happenings {
            series.observe(happening, &mut rows);
        }
        series.ended(&mut rows);
        rows.into_iter()
            .map(|r| (r.time_ns, r.interval_ns, r.tid, r.values.to_vec()))
            .collect()
    }

    #[test]
    fn rows_are_differences_to_the_streams_last_tick() {
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
    fn a_lost_tick_makes_the_next_row_longer_and_loses_nothing() {
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
    fn a_thread_too_short_for_a_tick_has_its_one_row() {
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
    fn what_comes_after_a_threads_last_tick_is_in_its_last_row() {
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
    fn rows_and_rest_sum_to_the_totals() {
        let mut series = series();
        let mut rows = Vec::new();
        for h in [
            tick(1100, 10, 7, &[100, 5]),
            tick(1150, 10, 8, &[50, 1]),
            last(1160, 11, 8, 3),
        ] {
            series.observe(h, &mut rows);
        }
        series.ended(&mut rows);
        let mut row = Row {
            time_ns: 1200,
            tid: 7,
            ..Row::default()
        };
        // Thread 7 went on to 130 and 6, thread 8 ended at 50 and 3.
        series.rest(10, 0, &[180, 9], &mut row);
        series.rest(20, 0, &[4, 1], &mut row);
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
    fn groups_that_take_turns_are_scaled_by_their_share() {
        let mut series = series();
        series.scale();
        let mut rows = Vec::new();
        let mut h = tick(1100, 10, 7, &[50, 5]);
        if let SeriesRecordKind::Tick { times, .. } = &mut h.what {
            *times = (200, 50);
        }
        series.observe(h, &mut rows);
        assert_eq!(rows[0].values[..], [50, 20]);
    }

    #[test]
    fn ticks_of_nobody_are_counted() {
        let mut series = series();
        let rows = run(
            &mut series,
            vec![tick(1100, 99, 7, &[1]), last(1100, 98, 7, 1)],
        );
        assert!(rows.is_empty());
        assert_eq!(series.strange, 2);
    }
}
