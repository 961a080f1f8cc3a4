//! From records to rows: samples of each event, losses by event, and what the
//! samples say of their data.

use std::collections::{BTreeMap, HashMap};

use memgauge_recording::Writer;
use memgauge_trace::{
    Derivation, DerivationFacts, EventId, FrameId, Loss, LossKind, PhysAddr, Pid,
    Sample as SampleRow, SampleRegister, Tid, VirtAddr, catalogue,
};

use super::decode::{Decode, Said, rebuild};
use super::follow::Followed;
use super::open::RequestedEvent;
use super::regions::Regions;
use super::sources::Sources;
use super::stopped::Stopped;
use super::{EventOutcome, Options};
use crate::{Error, Result};
use memgauge_host::unwind::{BROKEN_STACKS, SHORT_STACKS, Unwinder};
use memgauge_perf::abi::sample;
use memgauge_perf::data_src::DataSrc;
use memgauge_perf::derive::NoRecipe;
use memgauge_perf::record::{Header, Layout, Record, Sample, Trailer};
use memgauge_perf::spe::Operation;
use memgauge_recording::overflows::Traces;
use memgauge_recording::stacks::{self, Stacks};

/// An event's id in the recording.
pub(super) fn event_id(number: usize) -> EventId {
    EventId(catalogue::FIRST_FREE.saturating_add(u16::try_from(number).unwrap_or(u16::MAX)))
}

/// How to read an event's samples.
struct Reader {
    decode: Decode,
    /// Periods, and since when.
    periods: Vec<(u64, u64)>,
    /// The data source of the last sample: mostly the next one has the same.
    said: Said,
}

impl Reader {
    /// Events that a sample stands for: the count of its event in this thread since the
    /// previous sample, else the period in the sample, else the period in force at its
    /// time.
    fn period(&self, s: &Sample<'_>, counted: Option<u64>) -> u64 {
        if let Some(counted) = counted {
            return counted;
        }
        if self.decode.layout.has(sample::PERIOD) {
            return s.period;
        }
        let in_force = self.periods.iter().rev().find(|p| p.0 <= s.time_ns);
        in_force.or(self.periods.first()).map_or(0, |p| p.1)
    }
}

/// Writes rows.
pub(super) struct Recorder {
    pub(super) writer: Writer,
    pub(super) followed: Followed,
    readers: Vec<Reader>,
    pub(super) outcomes: Vec<EventOutcome>,
    pub(super) derivations: Option<DerivationFacts>,
    pub(super) sources: Sources,
    lost: BTreeMap<(LossKind, String), u64>,
    keep_registers: bool,
    /// Overflows as times, where they are wanted.
    traces: Option<Traces>,
    pub(super) stopped: Stopped,
    pub(super) regions: Regions,
    stacks: Stacks,
    /// Where stacks are copied, and how many frames of them are wanted.
    unwinder: Option<(Unwinder, u16)>,
    /// Calls of the sample at hand.
    calls: Vec<VirtAddr>,
    /// Records of all kinds that rings had no room for.
    ring_lost: u64,
    /// Values of timers at each thread's last sample, by event id.
    values: HashMap<u32, HashMap<u64, u64>>,
    /// When the last sample was taken, on the events' clock.
    pub(super) latest_ns: u64,
    start_ns: u64,
    /// The first failure to write.
    pub(super) unwritten: Option<Error>,
}

impl Recorder {
    /// Begins without a start time and without periods.
    pub(super) fn new(writer: Writer, requests: &[RequestedEvent], options: &Options) -> Recorder {
        let reader = |request: &RequestedEvent| Reader {
            decode: Decode::of(&request.built),
            periods: Vec::new(),
            said: Said::by(DataSrc(0)),
        };
        let outcome = |request: &RequestedEvent| EventOutcome {
            name: request.name.clone(),
            ..EventOutcome::default()
        };
        Recorder {
            writer,
            followed: Followed::new(),
            readers: requests.iter().map(reader).collect(),
            outcomes: requests.iter().map(outcome).collect(),
            derivations: options.registers.then(DerivationFacts::default),
            sources: Sources::default(),
            lost: BTreeMap::new(),
            keep_registers: options.keep_registers,
            traces: options
                .tracing
                .as_ref()
                .map(|t| Traces::new(t.resolution_ns)),
            stopped: Stopped::default(),
            regions: Regions::default(),
            stacks: Stacks::new(),
            unwinder: options
                .stacks
                .filter(|stacks| stacks.copied_bytes.is_some())
                .map(|stacks| (Unwinder::live(), stacks.frames)),
            calls: Vec::new(),
            ring_lost: 0,
            values: HashMap::new(),
            latest_ns: 0,
            start_ns: 0,
            unwritten: None,
        }
    }

    /// Times are since then.
    pub(super) fn begin(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// The periods that events begin with.
    pub(super) fn begin_periods(&mut self) {
        self.periods_changed(0);
    }

    /// Periods are those of the outcomes from now on.
    pub(super) fn periods_changed(&mut self, now_ns: u64) {
        for (reader, outcome) in self.readers.iter_mut().zip(&self.outcomes) {
            if reader.periods.last().is_none_or(|p| p.1 != outcome.period) {
                reader.periods.push((now_ns, outcome.period));
            }
        }
    }

    /// The layout of an event's samples.
    #[inline]
    pub(super) fn layout(&self, event: usize) -> Option<&Layout> {
        Some(&self.readers.get(event)?.decode.layout)
    }

    /// Whether samples of an event say themselves what they stand for.
    pub(super) fn tells_period(&self, event: usize) -> bool {
        let layout = &self.readers[event].decode.layout;
        layout.has(sample::PERIOD) || layout.has(sample::READ)
    }

    pub(super) fn lose(&mut self, kind: LossKind, what: &str, count: u64) {
        if count > 0 {
            *self.lost.entry((kind, what.to_owned())).or_default() += count;
        }
    }

    /// Keeps the first failure to write. The writer counts what it could not write and
    /// goes on: somebody may have made room.
    pub(super) fn note<E: Into<Error>>(&mut self, written: std::result::Result<(), E>) {
        if let Err(error) = written {
            self.unwritten.get_or_insert(error.into());
        }
    }

    /// Takes a sample of an event in its turn.
    #[inline]
    pub(super) fn take_sample(&mut self, event: usize, header: Header, s: &Sample<'_>) {
        let done = self.sample(event, header, s);
        self.note(done);
    }

    /// Takes another record in its turn. `event` is the one its id names.
    pub(super) fn take(&mut self, record: &Record<'_>, trailer: &Trailer, event: Option<usize>) {
        let time_ns = trailer.time_ns.saturating_sub(self.start_ns);
        self.stopped.take(record, trailer, event);
        let done = match (record, event) {
            (Record::Lost { count, .. } | Record::LostSamples { count }, _) => {
                self.ring_lost += count;
                Ok(())
            }
            (Record::Throttle { .. }, Some(event)) => {
                self.outcomes[event].throttled += 1;
                Ok(())
            }
            (Record::Aux { flags, .. }, Some(event)) if *flags & AUX_TRUNCATED != 0 => {
                self.outcomes[event].cut += 1;
                Ok(())
            }
            (
                Record::Comm {
                    pid, exec: true, ..
                },
                _,
            ) => {
                self.regions.end_thread((*pid, *pid), trailer.time_ns);
                self.stacks.forget(Pid(*pid));
                self.code_changed(*pid);
                self.followed.take(record, time_ns, &mut self.writer)
            }
            (Record::Exit(task), _) => {
                self.values.remove(&task.tid);
                self.regions
                    .end_thread((task.pid, task.tid), trailer.time_ns);
                if task.pid == task.tid {
                    self.stacks.forget(Pid(task.pid));
                    self.code_changed(task.pid);
                }
                self.followed.take(record, time_ns, &mut self.writer)
            }
            (other, _) => {
                match other {
                    Record::Mmap(map) if map.executable => self.code_changed(map.pid),
                    // The number may have been another process's.
                    Record::Fork(task) if task.pid == task.tid => self.code_changed(task.pid),
                    _ => {}
                }
                self.followed.take(other, time_ns, &mut self.writer)
            }
        };
        self.note(done);
    }

    /// Count of the sample's event in this thread since its previous sample; `None`
    /// where samples do not tell.
    fn counted_since(&mut self, s: &Sample<'_>) -> Option<u64> {
        let value = s.reading?.value(0)?;
        let last = self.values.entry(s.tid).or_default();
        // Less than before: of another thread of this number.
        value.checked_sub(last.insert(s.id, value).unwrap_or(0))
    }

    fn sample(&mut self, event: usize, header: Header, s: &Sample<'_>) -> Result<()> {
        let counted = self.counted_since(s);
        if self.readers[event].decode.drop_kernel && !header.is_user() {
            self.outcomes[event].dropped_kernel += 1;
            return Ok(());
        }
        if !self.followed.wants(s.pid) {
            self.outcomes[event].of_others += 1;
            return Ok(());
        }
        self.latest_ns = self.latest_ns.max(s.time_ns);
        let time_ns = s.time_ns.saturating_sub(self.start_ns);
        let thread = (s.pid, s.tid);
        self.followed.sampled(thread, time_ns, &mut self.writer)?;
        let mut row = self.row(event, s, counted);
        row.time_ns = time_ns;
        self.regions.advance(s.time_ns);
        let id = event_id(event);
        if !self.regions.sample(s.pid, s.tid, id, row.period) {
            return Ok(());
        }
        let Some(stands_for) = self.traced(&row)? else {
            let outcome = &mut self.outcomes[event];
            outcome.samples += 1;
            outcome.periods = outcome.periods.saturating_add(row.period);
            return Ok(());
        };
        self.complete((event, header), s, &mut row);
        let outcome = &mut self.outcomes[event];
        outcome.samples += 1;
        outcome.periods = outcome.periods.saturating_add(row.period);
        outcome.with_address += u64::from(row.addr.is_some());
        row.period = stands_for;
        row.caller = self.caller(s, time_ns)?;
        let kernel = &mut self.followed.files.kernel;
        self.calls.iter().for_each(|ip| kernel.note(*ip));
        kernel.note(row.ip);
        self.writer.push(row)?;
        if let Some(registers) = s.intr_regs.filter(|_| self.keep_registers) {
            self.writer
                .extend(registers.all().map(|(register, value)| SampleRegister {
                    time_ns,
                    tid: Tid(s.tid),
                    event: event_id(event),
                    register,
                    value,
                }))?;
        }
        Ok(())
    }

    /// A process has other code from now on.
    fn code_changed(&mut self, pid: u32) {
        if let Some((unwinder, _)) = &mut self.unwinder {
            unwinder.changed(pid);
        }
    }

    /// The call that led to the sample, where stacks are recorded.
    #[inline]
    fn caller(&mut self, s: &Sample<'_>, time_ns: u64) -> Result<Option<FrameId>> {
        self.calls.clear();
        match s.callchain.is_empty() && self.unwinder.is_none() {
            true => Ok(None),
            false => self.found_caller(s, time_ns),
        }
    }

    fn found_caller(&mut self, s: &Sample<'_>, time_ns: u64) -> Result<Option<FrameId>> {
        s.calls(&mut self.calls);
        if let Some((unwinder, most)) = &mut self.unwinder {
            let wanted = (s, usize::from(*most));
            unwinder.calls(self.followed.mappings(), wanted, &mut self.calls);
        }
        if self.calls.is_empty() {
            return Ok(None);
        }
        let write = |frame| self.writer.push(frame);
        let caller = self
            .stacks
            .caller((Pid(s.pid), time_ns), &self.calls, write);
        Ok(caller?)
    }

    /// Keeps an overflow's time, where times are wanted. How many events its sample
    /// stands for, if it is to be one.
    fn traced(&mut self, row: &SampleRow) -> Result<Option<u64>> {
        let Some(traces) = &mut self.traces else {
            return Ok(Some(row.period));
        };
        Ok(traces.push(row, &mut self.writer)?)
    }

    /// Writes the values that the program told so far.
    pub(super) fn write_values(&mut self) {
        let written = self.regions.write_values(&mut self.writer);
        self.note(written);
    }

    /// Writes the times that wait.
    pub(super) fn write_traces(&mut self) -> Result<()> {
        match &mut self.traces {
            Some(traces) => Ok(traces.write(&mut self.writer)?),
            None => Ok(()),
        }
    }

    #[inline]
    fn row(&mut self, event: usize, s: &Sample<'_>, counted: Option<u64>) -> SampleRow {
        let reader = &mut self.readers[event];
        let period = reader.period(s, counted);
        if reader.said.packed.0 != s.data_src {
            reader.said = Said::by(DataSrc(s.data_src));
        }
        reader
            .decode
            .row_with(reader.said, event_id(event), s, period)
    }

    /// Adds data from the source's own registers, or from code and registers.
    fn complete(&mut self, (event, header): (usize, Header), s: &Sample<'_>, row: &mut SampleRow) {
        let decode = &self.readers[event].decode;
        let op = decode.complete(s, row);
        let packed = DataSrc(s.data_src);
        if decode.layout.has(sample::DATA_SRC)
            && (self.sources.is_latest(packed) || packed.is_known())
        {
            self.sources.packed(packed, row.latency_cycles);
        } else if let Some(op) = op {
            self.sources.named(op.source_words(), row.latency_cycles);
        }
        if self.derivations.is_some() && decode.lacks_address(row) {
            let found = rebuild(&mut self.followed.code, decode.moment(header), s, row);
            if let Some(derivations) = &mut self.derivations {
                count(derivations, found);
            }
        }
    }

    /// A sample of ARM's SPE; the ring's record says whose it is.
    pub(super) fn operation(
        &mut self,
        event: usize,
        operation: &Operation,
        (time_ns, pid, tid): (u64, u32, u32),
    ) {
        let time_ns = time_ns.saturating_sub(self.start_ns);
        let latency_cycles = operation.latency_cycles;
        self.sources.worded(operation.words(), latency_cycles);
        let period = self.readers[event].decode.attr.period;
        let outcome = &mut self.outcomes[event];
        outcome.samples += 1;
        outcome.periods = outcome.periods.saturating_add(period);
        outcome.with_address += u64::from(operation.addr.is_some());
        let pushed = self.writer.push(SampleRow {
            time_ns,
            pid: Pid(pid),
            tid: Tid(tid),
            event: event_id(event),
            ip: VirtAddr(operation.ip),
            addr: operation.addr.map(VirtAddr),
            phys: operation.phys.map(PhysAddr),
            kind: operation.kind,
            latency_cycles,
            source: operation.level(),
            period,
            ..SampleRow::default()
        });
        self.note(pushed);
    }

    /// All losses, those of events under their names.
    pub(super) fn losses(&mut self) -> Vec<Loss> {
        let of_events: u64 = self.outcomes.iter().map(|o| o.lost).sum();
        let (what, rest) = match of_events {
            0 => ("samples and other records", self.ring_lost),
            n => (
                "names, mappings and other side records",
                self.ring_lost.saturating_sub(n),
            ),
        };
        self.lose(LossKind::RingFull, what, rest);
        for o in std::mem::take(&mut self.outcomes) {
            let named = |what: &str| format!("{}: {what}", o.name);
            let of_event = [
                (
                    LossKind::RingFull,
                    "samples (a larger --ring keeps more)",
                    o.lost,
                ),
                (LossKind::RingFull, "times packets were cut short", o.cut),
                (
                    LossKind::Throttled,
                    "times sampling was stopped",
                    o.throttled,
                ),
                (LossKind::NotKept, "samples of the kernel", o.dropped_kernel),
                (LossKind::NotKept, "samples of other processes", o.of_others),
            ];
            for (kind, what, count) in of_event {
                self.lose(kind, &named(what), count);
            }
            self.outcomes.push(o);
        }
        let cut = self.stacks.cut;
        self.lose(LossKind::NotKept, stacks::CUT, cut);
        if let Some((unwinder, _)) = &self.unwinder {
            let (short, broken) = (unwinder.short, unwinder.broken);
            self.lose(LossKind::NotKept, SHORT_STACKS, short);
            self.lose(LossKind::NotKept, BROKEN_STACKS, broken);
        }
        let (unmatched, lost) = (self.regions.unmatched, self.regions.lost);
        let refused = self.regions.refused;
        self.lose(LossKind::RegionEnd, "", unmatched);
        self.lose(LossKind::RingFull, "marks of regions", refused);
        self.lose(
            LossKind::NotKept,
            "marks of regions whose thread was killed as it made them",
            lost,
        );
        if let Some(no_code) = self.derivations.map(|d| d.no_code) {
            self.lose(
                LossKind::Undecoded,
                "samples whose code could not be read",
                no_code,
            );
        }
        let loss = |((kind, detail), count): (&(LossKind, String), &u64)| Loss {
            kind: *kind,
            count: *count,
            detail: detail.clone(),
            ..Loss::default()
        };
        self.lost.iter().map(loss).collect()
    }
}

/// `PERF_AUX_FLAG_TRUNCATED`.
const AUX_TRUNCATED: u64 = 1;

fn count(facts: &mut DerivationFacts, found: std::result::Result<Derivation, NoRecipe>) {
    let counter = match found {
        Ok(Derivation::Exact) => &mut facts.exact,
        Ok(Derivation::Previous) => &mut facts.previous,
        Ok(Derivation::Next) => &mut facts.next,
        Err(NoRecipe::NoOperand) => &mut facts.no_operand,
        Err(NoRecipe::NoRegisters) => &mut facts.no_registers,
        Err(NoRecipe::NoBase) => &mut facts.no_base,
        Err(NoRecipe::NoCode) => &mut facts.no_code,
    };
    *counter += 1;
}
