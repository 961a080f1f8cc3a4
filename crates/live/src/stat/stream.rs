//! Reads the rings of all CPUs and turns their records into rows, in the order of time.
//!
//! Rings are read one after the other, so a record read late in a round may be older than one read
//! early. Every record older than the beginning of the *previous* round has been read, and only
//! those are processed. At most two rounds of full rings wait in memory.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use memgauge_trace::{Loss, LossKind};

use super::new_threads::NewThreadWatcher;
use super::open::{CounterOpener, OpenCounters, RecordLayouts};
use super::series::{CounterRow, RowBuilder, SeriesRecord, SeriesRecordKind};
use super::throttling::TimerThrottling;
use super::{SeenThread, TickStatistics};
use crate::Result;
use crate::counters::{GroupValues, refusal};
use crate::events::Event;
use crate::sys::perf::{self, EventScope, KernelRing, PollResult};
use crate::target::CounterPlacement;
use memgauge_host::sys::process::Watched;
use memgauge_perf::abi::record;
use memgauge_perf::record::{Header, Layout, Record};

/// After the end of a thread, its READ records arrive within this time.
const MAX_READ_DELAY_NS: u64 = 1_000_000;

pub(super) struct RowStream {
    pub(super) open: OpenCounters,
    pub(super) ticks: TickStatistics,
    layouts: RecordLayouts,
    series: RowBuilder,
    per_task: bool,
    /// Records that wait for older ones.
    waiting: Vec<SeriesRecord>,
    /// Start of the last round of reading.
    round_ns: u64,
    unreadable: u64,
    /// Number of new threads without counters: they ended too soon, or too many files were open.
    threads_not_counted: u64,
    threads: BTreeMap<u32, SeenThread>,
    ended: Vec<SeenThread>,
}

impl RowStream {
    pub(super) fn new(open: OpenCounters, per_task: bool, interval_ns: u64) -> RowStream {
        RowStream {
            open,
            ticks: TickStatistics::new(interval_ns),
            layouts: RecordLayouts::new(),
            series: RowBuilder::default(),
            per_task,
            waiting: Vec::new(),
            round_ns: 0,
            unreadable: 0,
            threads_not_counted: 0,
            threads: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    pub(super) fn start(
        &mut self,
        start_ns: u64,
        is_multiplexed: bool,
        throttling: TimerThrottling,
    ) {
        self.series = RowBuilder::new(self.open.ids.clone(), !self.per_task, start_ns);
        self.series.throttling = throttling;
        if is_multiplexed {
            self.series.scale_multiplexed();
        }
    }

    /// Enables the counters that do not wait for `exec`.
    pub(super) fn enable(&self, on_exec: bool) -> Result<()> {
        let waits_for_exec = |scope: EventScope| on_exec && matches!(scope, EventScope::Thread(_));
        let mut now = self
            .open
            .counters
            .iter()
            .filter(|c| !waits_for_exec(c.placement.scope));
        now.try_for_each(|c| perf::enable(c.leader()))
            .map_err(|e| refusal("switch counters on", e))
    }

    pub(super) fn disable(&self) {
        for counters in &self.open.counters {
            // It fails only if the task has ended.
            let _ = perf::disable(counters.leader());
        }
    }

    /// Waits until a ring is half full, a thread starts or a process ends, at most `timeout_ms`.
    pub(super) fn wait(&mut self, watched: &[Watched], timeout_ms: u64) {
        let rings = self.open.poll_fds.len();
        let mut fds: Vec<RawFd> = self.open.poll_fds.clone();
        fds.extend(watched.iter().filter_map(Watched::descriptor));
        if let Some(new_threads) = &self.open.new_threads {
            fds.extend(new_threads.poll_fds());
        }
        let results = perf::wait(&fds, timeout_ms as i32);
        for (fd, result) in self.open.poll_fds.iter_mut().zip(results).take(rings) {
            if result == PollResult::Ended {
                *fd = -1;
            }
        }
    }

    /// Opens counters on new threads, if they are not inherited.
    pub(super) fn open_new_threads(&mut self, opener: &CounterOpener<'_>, events: &[Event]) {
        let new_threads = self.open.new_threads.as_mut();
        for task in new_threads.map_or(Vec::new(), NewThreadWatcher::new_threads) {
            match opener.open_thread(&mut self.open, events, task.tid) {
                Ok(ids) if ids.is_empty() => self.threads_not_counted += 1,
                Ok(ids) => self.series.add_counters(ids),
                Err(_) => self.threads_not_counted += 1,
            }
        }
    }

    /// Reads all rings, and adds the rows of all records that no ring can have older ones than.
    /// With `all`, processes all records.
    pub(super) fn collect(&mut self, all: bool, rows: &mut Vec<CounterRow>) {
        let began_ns = perf::monotonic_ns();
        let mut rings = std::mem::take(&mut self.open.rings);
        for ring in &mut rings {
            self.read_ring(ring);
        }
        self.open.rings = rings;
        self.waiting.sort_by_key(|record| record.time_ns);
        let horizon_ns = if all { u64::MAX } else { self.round_ns };
        self.round_ns = began_ns;
        let ready = self
            .waiting
            .partition_point(|record| record.time_ns < horizon_ns);
        let mut waiting = std::mem::take(&mut self.waiting);
        for record in waiting.drain(..ready) {
            self.process_record(record, rows);
        }
        self.waiting = waiting;
        self.series.end_threads(rows);
    }

    fn read_ring(&mut self, ring: &mut KernelRing) {
        let walked = ring.read_records(|header, body| self.queue_record(header, body));
        self.unreadable += walked.unreadable_bytes;
    }

    /// Only the READ records of members differ: they have the value of one counter, not of a group.
    fn layout(&self, header: Header, body: &[u8]) -> Layout {
        let RecordLayouts { leader, member } = self.layouts;
        if header.kind != record::READ {
            return leader;
        }
        let id = leader.trailer(body).map(|(_, trailer)| trailer.id);
        let counter = id.and_then(|id| self.open.ids.get(&id));
        if counter.is_some_and(|c| c.index > 0) {
            member
        } else {
            leader
        }
    }

    fn queue_record(&mut self, header: Header, body: &[u8]) {
        let Some((record, trailer)) = self.layout(header, body).record(header, body) else {
            self.unreadable += 1;
            return;
        };
        match record {
            Record::Lost { count, .. } | Record::LostSamples { count } => self.ticks.lost += count,
            _ => self
                .waiting
                .extend(SeriesRecord::from_record(&record, &trailer)),
        }
    }

    fn process_record(&mut self, record: SeriesRecord, rows: &mut Vec<CounterRow>) {
        self.note_thread(&record);
        self.ticks.throttled += u64::from(record.kind == SeriesRecordKind::Throttled);
        let is_tick = matches!(record.kind, SeriesRecordKind::Tick { .. });
        self.series.observe(record, rows);
        if let Some(row) = rows.last().filter(|row| is_tick && row.group == 0) {
            let gap_ns = row.values.first().copied().unwrap_or(0);
            self.ticks.add(gap_ns);
        }
    }

    fn note_thread(&mut self, record: &SeriesRecord) {
        let time_ns = record.time_ns;
        match &record.kind {
            SeriesRecordKind::Tick { pid, tid, .. }
            | SeriesRecordKind::LastValue { pid, tid, .. }
                if self.per_task =>
            {
                self.thread(*pid, *tid, time_ns);
            }
            SeriesRecordKind::Fork(task) => {
                self.thread(task.pid, task.tid, time_ns).parent_pid = task.parent_pid;
            }
            SeriesRecordKind::Comm { pid, tid, name, .. } => {
                self.thread(*pid, *tid, time_ns).program.clone_from(name);
            }
            SeriesRecordKind::Exit(task) => {
                self.thread(task.pid, task.tid, time_ns).end_ns = Some(time_ns);
            }
            _ => {}
        }
    }

    fn thread(&mut self, pid: u32, tid: u32, time_ns: u64) -> &mut SeenThread {
        let new_thread = || SeenThread {
            pid,
            tid,
            start_ns: time_ns,
            ..SeenThread::default()
        };
        let thread = self.threads.entry(tid).or_insert_with(new_thread);
        // The ID is used again, unless this is a READ record, which comes just after the end.
        if thread
            .end_ns
            .is_some_and(|end| end + MAX_READ_DELAY_NS < time_ns)
        {
            self.ended.push(std::mem::replace(thread, new_thread()));
        }
        thread
    }

    /// Returns the observed threads by start time. Their times are relative to `start_ns`.
    pub(super) fn take_threads(&mut self, start_ns: u64) -> Vec<SeenThread> {
        let running = std::mem::take(&mut self.threads).into_values();
        let mut all: Vec<SeenThread> = std::mem::take(&mut self.ended)
            .into_iter()
            .chain(running)
            .collect();
        for thread in &mut all {
            thread.start_ns = thread.start_ns.saturating_sub(start_ns);
            thread.end_ns = thread.end_ns.map(|end| end.saturating_sub(start_ns));
        }
        all.sort_by_key(|thread| (thread.start_ns, thread.tid));
        all
    }

    pub(super) fn read(&self) -> Result<Vec<GroupValues>> {
        self.open
            .counters
            .iter()
            .map(|c| c.read().map_err(|e| refusal("read counters", e)))
            .collect()
    }

    /// Adds the last rows of the threads and CPUs that counters were opened on.
    pub(super) fn close(
        &mut self,
        readings: &[GroupValues],
        end_ns: u64,
        rows: &mut Vec<CounterRow>,
    ) {
        let mut last: BTreeMap<(u32, usize), CounterRow> = BTreeMap::new();
        for ((counters, reading), &group) in self
            .open
            .counters
            .iter()
            .zip(readings)
            .zip(&self.open.group_of)
        {
            let Ok(ids) = counters.ids() else { continue };
            let mut row = self.last_row(counters.placement, end_ns);
            let owner = row.cpu.unwrap_or(row.tid);
            row.group = group;
            let row = last.entry((owner, group)).or_insert(row);
            self.series
                .add_remainder(ids[0], reading.running_ns, &reading.values, row);
        }
        for (_, row) in last {
            self.series.close(row, rows);
        }
    }

    fn last_row(&self, placement: CounterPlacement, end_ns: u64) -> CounterRow {
        match placement.scope {
            EventScope::Thread(tid) if self.per_task => {
                let thread = self.threads.get(&tid);
                CounterRow {
                    time_ns: thread.and_then(|thread| thread.end_ns).unwrap_or(end_ns),
                    pid: thread.map_or(tid, |thread| thread.pid),
                    tid,
                    ..CounterRow::default()
                }
            }
            _ => CounterRow {
                time_ns: end_ns,
                cpu: Some(placement.cpu.unwrap_or(0)),
                ..CounterRow::default()
            },
        }
    }

    pub(super) fn throttling(&self) -> &TimerThrottling {
        &self.series.throttling
    }

    /// Losses of the run.
    pub(super) fn losses(&self) -> Vec<Loss> {
        let unreadable = self.unreadable + self.series.unknown_counters;
        let all = [
            (
                LossKind::RingFull,
                self.ticks.lost,
                "ticks; their counts are in the next row",
            ),
            (
                LossKind::Throttled,
                self.ticks.throttled,
                "times the timer was stopped",
            ),
            (
                LossKind::StoppedTime,
                self.throttling().total_ns(),
                "counts of that time are estimated",
            ),
            (
                LossKind::Unreadable,
                unreadable,
                "records or bytes of a ring",
            ),
            (
                LossKind::ThreadNotRecorded,
                self.threads_not_counted,
                "threads that ended before counters were open on them, or open files ran out",
            ),
        ];
        let losses = all.into_iter().filter(|(_, count, _)| *count > 0);
        losses
            .map(|(kind, count, detail)| Loss {
                kind,
                count,
                detail: detail.to_owned(),
                ..Loss::default()
            })
            .collect()
    }
}
