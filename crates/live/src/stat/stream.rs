//! From the rings of all processors to rows in order of time.
//!
//! Rings are emptied one after the other, so a record read late in a round may be older
//! than one read early. Records older than the beginning of the *previous* round are
//! complete in every ring, and only those are passed on. Memory is bounded by the size
//! of two rounds of full rings.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use memgauge_trace::{Loss, LossKind};

use super::follow::Follower;
use super::open::{Open, Opener, layouts};
use super::series::{Row, Series, SeriesRecord, SeriesRecordKind};
use super::stops::Stops;
use super::{SeenThread, Ticks};
use crate::Result;
use crate::counters::{Totals, refusal};
use crate::events::Event;
use crate::sys::perf::{self, EventScope, Ring, Said};
use memgauge_host::sys::process::Watched;
use memgauge_perf::abi::record;
use memgauge_perf::record::{Header, Layout, Record};
use memgauge_perf::ring::walk;

pub(super) struct Stream {
    pub(super) open: Open,
    pub(super) ticks: Ticks,
    /// Layouts of leaders and of members.
    layouts: (Layout, Layout),
    series: Series,
    per_task: bool,
    pending: Vec<SeriesRecord>,
    scratch: Vec<u8>,
    /// When the last round of reading began.
    round_ns: u64,
    unreadable: u64,
    /// Threads that could not be followed: ended too soon, or files ran out.
    not_followed: u64,
    threads: BTreeMap<u32, SeenThread>,
    ended: Vec<SeenThread>,
}

impl Stream {
    pub(super) fn new(open: Open, per_task: bool, interval_ns: u64) -> Stream {
        Stream {
            open,
            ticks: Ticks::new(interval_ns),
            layouts: layouts(),
            series: Series::default(),
            per_task,
            pending: Vec::new(),
            scratch: Vec::new(),
            round_ns: 0,
            unreadable: 0,
            not_followed: 0,
            threads: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    pub(super) fn start(&mut self, start_ns: u64, scaled: bool, stops: Stops) {
        self.series = Series::new(self.open.ids.clone(), !self.per_task, start_ns);
        self.series.stops = stops;
        if scaled {
            self.series.scale();
        }
    }

    /// Switches on what does not wait for exec.
    pub(super) fn enable(&self, on_exec: bool) -> Result<()> {
        let waits = |scope: EventScope| on_exec && matches!(scope, EventScope::Thread(_));
        let mut now = self.open.counters.iter().filter(|c| !waits(c.place.scope));
        now.try_for_each(|c| perf::enable(c.leader()))
            .map_err(|e| refusal("switch counters on", e))
    }

    pub(super) fn disable(&self) {
        for counters in &self.open.counters {
            // Counters of a task that has ended are off already.
            let _ = perf::disable(counters.leader());
        }
    }

    /// Waits for a ring to fill, a process to end, or the time to pass.
    pub(super) fn wait(&mut self, watched: &[Watched], timeout_ms: u64) {
        let wakers = self.open.wakers.len();
        let mut all: Vec<RawFd> = self.open.wakers.clone();
        all.extend(watched.iter().filter_map(Watched::descriptor));
        if let Some(follower) = &self.open.follower {
            all.extend(follower.wakers());
        }
        let said = perf::wait(&all, timeout_ms as i32);
        for (waker, said) in self.open.wakers.iter_mut().zip(said).take(wakers) {
            if said == Said::Ended {
                *waker = -1;
            }
        }
    }

    /// Opens counters on threads that have begun, where they are not inherited.
    pub(super) fn follow(&mut self, opener: &Opener<'_>, events: &[Event]) {
        let born = self
            .open
            .follower
            .as_mut()
            .map_or(Vec::new(), Follower::born);
        for task in born {
            match opener.open_thread(&mut self.open, events, task.tid) {
                Ok(ids) if ids.is_empty() => self.not_followed += 1,
                Ok(ids) => self.series.add(ids),
                Err(_) => self.not_followed += 1,
            }
        }
    }

    /// Reads all rings. Passes on what is certainly in order, or `all` there is.
    pub(super) fn collect(&mut self, all: bool, rows: &mut Vec<Row>) {
        let began = perf::monotonic_ns();
        let mut rings = std::mem::take(&mut self.open.rings);
        for ring in &mut rings {
            self.read_ring(ring);
        }
        self.open.rings = rings;
        self.pending.sort_by_key(|h| h.time_ns);
        let horizon = if all { u64::MAX } else { self.round_ns };
        self.round_ns = began;
        let ready = self.pending.partition_point(|h| h.time_ns < horizon);
        let mut pending = std::mem::take(&mut self.pending);
        for happening in pending.drain(..ready) {
            self.pass_on(happening, rows);
        }
        self.pending = pending;
        self.series.ended(rows);
    }

    fn read_ring(&mut self, ring: &mut Ring) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let walked = ring.drain(|first, second| {
            walk(first, second, &mut scratch, |header, body| {
                self.record(header, body)
            })
        });
        self.unreadable += walked.unreadable_bytes;
        self.scratch = scratch;
    }

    /// Only last values differ: they are a reading of the counter alone.
    fn layout(&self, header: Header, body: &[u8]) -> Layout {
        let (leader, member) = self.layouts;
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

    fn record(&mut self, header: Header, body: &[u8]) {
        let Some((record, trailer)) = self.layout(header, body).record(header, body) else {
            self.unreadable += 1;
            return;
        };
        match record {
            Record::Lost { count, .. } | Record::LostSamples { count } => self.ticks.lost += count,
            _ => self.pending.extend(SeriesRecord::of(&record, &trailer)),
        }
    }

    fn pass_on(&mut self, happening: SeriesRecord, rows: &mut Vec<Row>) {
        self.note_thread(&happening);
        self.ticks.throttled += u64::from(happening.what == SeriesRecordKind::Stopped);
        let is_tick = matches!(happening.what, SeriesRecordKind::Tick { .. });
        self.series.observe(happening, rows);
        if let Some(row) = rows.last().filter(|row| is_tick && row.group == 0) {
            let gap_ns = row.values.first().copied().unwrap_or(0);
            self.ticks.add(gap_ns);
        }
    }

    fn note_thread(&mut self, happening: &SeriesRecord) {
        let time_ns = happening.time_ns;
        match &happening.what {
            SeriesRecordKind::Tick { pid, tid, .. } | SeriesRecordKind::Last { pid, tid, .. }
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
        let new = || SeenThread {
            pid,
            tid,
            start_ns: time_ns,
            ..SeenThread::default()
        };
        let thread = self.threads.entry(tid).or_insert_with(new);
        // A number used again, except for the last values, which come after the end.
        if thread.end_ns.is_some_and(|end| end + 1_000_000 < time_ns) {
            self.ended.push(std::mem::replace(thread, new()));
        }
        thread
    }

    /// Threads seen, their times beginning at `start_ns`.
    pub(super) fn threads(&mut self, start_ns: u64) -> Vec<SeenThread> {
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

    pub(super) fn read(&self) -> Result<Vec<Totals>> {
        self.open
            .counters
            .iter()
            .map(|c| c.read().map_err(|e| refusal("read counters", e)))
            .collect()
    }

    /// The last rows, of the threads and processors that counters were opened on.
    pub(super) fn close(&mut self, readings: &[Totals], end_ns: u64, rows: &mut Vec<Row>) {
        let mut last: BTreeMap<(u32, usize), Row> = BTreeMap::new();
        for ((counters, reading), &group) in self
            .open
            .counters
            .iter()
            .zip(readings)
            .zip(&self.open.group_of)
        {
            let Ok(ids) = counters.ids() else { continue };
            let (whose, mut row) = self.last_row(counters.place, end_ns);
            row.group = group;
            let row = last.entry((whose, group)).or_insert(row);
            self.series
                .rest(ids[0], reading.running_ns, &reading.values, row);
        }
        for (_, row) in last {
            self.series.close(row, rows);
        }
    }

    fn last_row(&self, place: crate::target::Place, end_ns: u64) -> (u32, Row) {
        let row = Row {
            time_ns: end_ns,
            ..Row::default()
        };
        match place.scope {
            EventScope::Thread(tid) if self.per_task => {
                let thread = self.threads.get(&tid);
                let pid = thread.map_or(tid, |t| t.pid);
                let time_ns = thread.and_then(|t| t.end_ns).unwrap_or(end_ns);
                (
                    tid,
                    Row {
                        time_ns,
                        pid,
                        tid,
                        ..row
                    },
                )
            }
            _ => {
                let cpu = place.cpu.unwrap_or(0);
                (
                    cpu,
                    Row {
                        cpu: Some(cpu),
                        ..row
                    },
                )
            }
        }
    }

    /// Stops of the timers.
    pub(super) fn stops(&self) -> &Stops {
        &self.series.stops
    }

    /// Losses of the rings.
    pub(super) fn losses(&self) -> Vec<Loss> {
        let unreadable = self.unreadable + self.series.strange;
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
                self.stops().all_ns(),
                "counts of that time are estimated",
            ),
            (
                LossKind::Unreadable,
                unreadable,
                "records or bytes of a ring",
            ),
            (
                LossKind::ThreadNotRecorded,
                self.not_followed,
                "threads that ended before counters were open on them, or open files ran out",
            ),
        ];
        let lost = all.into_iter().filter(|(_, count, _)| *count > 0);
        lost.map(|(kind, count, detail)| Loss {
            kind,
            count,
            detail: detail.to_owned(),
            ..Loss::default()
        })
        .collect()
    }
}
