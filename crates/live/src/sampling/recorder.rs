//! Writes the rows of a recording: samples of each event, with their data and call stacks, and
//! losses.

use std::collections::{BTreeMap, HashMap};

use memgauge_recording::Writer;
use memgauge_trace::{
    Derivation, DerivationFacts, EventId, FrameId, Loss, LossKind, PhysAddr, Pid,
    Sample as SampleRow, SampleRegister, Tid, VirtAddr, catalogue,
};

use super::data_sources::DataSourceSums;
use super::decoder::{DecodedDataSource, SampleDecoder, derive_address};
use super::open::RequestedEvent;
use super::process_table::ProcessTable;
use super::python::{PythonCall, PythonRows, PythonSampler};
use super::roi::RoiTracker;
use super::throttling::ThrottledTime;
use super::{EventOutcome, SamplingOptions};
use crate::{Error, Result};
use memgauge_host::unwind::{BROKEN_STACKS, SHORT_STACKS, Unwinder};
use memgauge_perf::abi::sample;
use memgauge_perf::data_src::DataSrc;
use memgauge_perf::derive::NoRecipe;
use memgauge_perf::record::{Header, Layout, Record, Sample, Trailer};
use memgauge_perf::spe::SampledOperation;
use memgauge_recording::overflows::Traces;
use memgauge_recording::sampled_sharing::{self, SampledSharing};
use memgauge_recording::stacks::{self, Stacks};

/// ID of a requested event in the recording, by its index.
pub(super) fn event_id(index: usize) -> EventId {
    EventId(catalogue::FIRST_FREE.saturating_add(u16::try_from(index).unwrap_or(u16::MAX)))
}

/// Decodes the samples of one event.
struct EventDecoder {
    decoder: SampleDecoder,
    periods: Vec<PeriodChange>,
    /// Data source of the previous sample. The next one often has the same.
    data_source: DecodedDataSource,
}

#[derive(Clone, Copy, Debug)]
struct PeriodChange {
    /// Time on the events' clock.
    since_ns: u64,
    period: u64,
}

impl EventDecoder {
    /// The period that was set at this time.
    fn set_period(&self, time_ns: u64) -> u64 {
        let changes = self.periods.iter().rev();
        let latest = changes.clone().find(|change| change.since_ns <= time_ns);
        latest
            .or(self.periods.first())
            .map_or(0, |change| change.period)
    }
}

/// Unwinds copied stacks.
struct StackUnwinder {
    unwinder: Unwinder,
    max_frames: u16,
}

/// Process, thread and time of an AUX trace, from the ring's record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AuxOwner {
    pub(super) time_ns: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
}

/// Writes rows.
pub(super) struct Recorder {
    pub(super) writer: Writer,
    pub(super) processes: ProcessTable,
    decoders: Vec<EventDecoder>,
    pub(super) outcomes: Vec<EventOutcome>,
    pub(super) derivations: Option<DerivationFacts>,
    pub(super) data_sources: DataSourceSums,
    losses: BTreeMap<(LossKind, String), u64>,
    keep_registers: bool,
    /// Present if overflows are recorded as times.
    traces: Option<Traces>,
    pub(super) throttled: ThrottledTime,
    pub(super) rois: RoiTracker,
    stacks: Stacks,
    sharing: SampledSharing,
    unwinder: Option<StackUnwinder>,
    /// Call stack of the current sample.
    calls: Vec<VirtAddr>,
    pub(super) python: PythonSampler,
    python_rows: PythonRows,
    /// Calls of Python of the next sample, innermost first.
    python_calls: Vec<PythonCall>,
    /// Number of records of any kind that were lost because a ring was full.
    lost_records: u64,
    /// Value of each timer at the thread's previous sample, by thread and event ID.
    timer_values: HashMap<u32, HashMap<u64, u64>>,
    /// Time of the latest sample, on the events' clock.
    pub(super) latest_ns: u64,
    start_ns: u64,
    /// The first failed write.
    pub(super) write_error: Option<Error>,
}

impl Recorder {
    /// The caller sets the start time and the periods before the first record.
    pub(super) fn new(
        writer: Writer,
        requests: &[RequestedEvent],
        options: &SamplingOptions,
    ) -> Recorder {
        let decoder = |request: &RequestedEvent| EventDecoder {
            decoder: SampleDecoder::new(&request.sampling),
            periods: Vec::new(),
            data_source: DecodedDataSource::new(DataSrc(0)),
        };
        let outcome = |request: &RequestedEvent| EventOutcome {
            name: request.name.clone(),
            ..EventOutcome::default()
        };
        let tracing = options.tracing.as_ref();
        let copied_stacks = options
            .stacks
            .filter(|stacks| stacks.copied_bytes.is_some());
        Recorder {
            writer,
            processes: ProcessTable::new(),
            decoders: requests.iter().map(decoder).collect(),
            outcomes: requests.iter().map(outcome).collect(),
            derivations: options.registers.then(DerivationFacts::default),
            data_sources: DataSourceSums::default(),
            losses: BTreeMap::new(),
            keep_registers: options.keep_registers,
            traces: tracing.map(|tracing| Traces::new(tracing.resolution_ns)),
            throttled: ThrottledTime::default(),
            rois: RoiTracker::default(),
            stacks: Stacks::new(),
            sharing: SampledSharing::default(),
            unwinder: copied_stacks.map(|stacks| StackUnwinder {
                unwinder: Unwinder::live(),
                max_frames: stacks.max_frames,
            }),
            calls: Vec::new(),
            python: PythonSampler::none(),
            python_rows: PythonRows::default(),
            python_calls: Vec::new(),
            lost_records: 0,
            timer_values: HashMap::new(),
            latest_ns: 0,
            start_ns: 0,
            write_error: None,
        }
    }

    /// Sets the time that the times of all rows are relative to.
    pub(super) fn begin(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
    }

    /// Notes that the periods in `outcomes` are set from this time on.
    pub(super) fn note_periods(&mut self, since_ns: u64) {
        for (decoder, outcome) in self.decoders.iter_mut().zip(&self.outcomes) {
            let period = outcome.period;
            let last = decoder.periods.last();
            if last.is_none_or(|change| change.period != period) {
                decoder.periods.push(PeriodChange { since_ns, period });
            }
        }
    }

    /// The layout of an event's samples.
    #[inline]
    pub(super) fn layout(&self, event: usize) -> Option<&Layout> {
        Some(&self.decoders.get(event)?.decoder.layout)
    }

    /// True if each sample of the event has the number of events that it stands for.
    pub(super) fn has_period(&self, event: usize) -> bool {
        let layout = &self.decoders[event].decoder.layout;
        layout.has(sample::PERIOD) || layout.has(sample::READ)
    }

    pub(super) fn add_loss(&mut self, kind: LossKind, what: &str, count: u64) {
        if count > 0 {
            *self.losses.entry((kind, what.to_owned())).or_default() += count;
        }
    }

    /// Keeps the first failure to write. The writer counts what it could not write and goes on,
    /// since the user may make room.
    pub(super) fn check<E: Into<Error>>(&mut self, written: std::result::Result<(), E>) {
        if let Err(error) = written {
            self.write_error.get_or_insert(error.into());
        }
    }

    /// Records a sample.
    #[inline]
    pub(super) fn record_sample(&mut self, event: usize, header: Header, s: &Sample<'_>) {
        let written = self.write_sample(event, header, s);
        self.python_calls.clear();
        self.check(written);
    }

    /// Processes frames of Python, which belong to the next sample.
    pub(super) fn record_python(&mut self, body: &[u8]) {
        match self.python.calls(body) {
            Some(calls) => self.python_calls = calls,
            None => self.add_loss(LossKind::Unreadable, "frames of Python", 1),
        }
    }

    /// Processes a side-band record. `event` is the index of the event that wrote it.
    pub(super) fn observe(&mut self, record: &Record<'_>, trailer: &Trailer, event: Option<usize>) {
        let time_ns = trailer.time_ns.saturating_sub(self.start_ns);
        self.throttled.observe(record, trailer, event);
        match (record, event) {
            (Record::Lost { count, .. } | Record::LostSamples { count }, _) => {
                self.lost_records += count;
                return;
            }
            (Record::Throttle { .. }, Some(event)) => {
                self.outcomes[event].throttled += 1;
                return;
            }
            (Record::Aux { flags, .. }, Some(event)) if *flags & AUX_TRUNCATED != 0 => {
                self.outcomes[event].truncated += 1;
                return;
            }
            (
                Record::Comm {
                    pid, exec: true, ..
                },
                _,
            ) => {
                self.rois.end_thread((*pid, *pid), trailer.time_ns);
                self.stacks.forget(Pid(*pid));
                self.code_changed(*pid);
            }
            (Record::Exit(task), _) => {
                self.timer_values.remove(&task.tid);
                self.rois.end_thread((task.pid, task.tid), trailer.time_ns);
                if task.pid == task.tid {
                    self.stacks.forget(Pid(task.pid));
                    self.code_changed(task.pid);
                    self.python.ended(task.pid);
                }
            }
            (Record::Mmap(map), _) if map.executable => self.code_changed(map.pid),
            // Another process may have had this ID before.
            (Record::Fork(task), _) if task.pid == task.tid => self.code_changed(task.pid),
            _ => {}
        }
        let written = self.processes.observe(record, time_ns, &mut self.writer);
        self.check(written);
    }

    /// Count of the sample's event in this thread since the previous sample; `None` if
    /// samples do not have the count.
    fn counted_since_previous(&mut self, s: &Sample<'_>) -> Option<u64> {
        let value = s.reading?.value(0)?;
        let values = self.timer_values.entry(s.tid).or_default();
        // If the value is lower than before, it is that of another thread with the same ID.
        value.checked_sub(values.insert(s.id, value).unwrap_or(0))
    }

    fn write_sample(&mut self, event: usize, header: Header, s: &Sample<'_>) -> Result<()> {
        // Must come before any sample is dropped, because the next sample represents the events
        // counted from here on.
        let counted = self.counted_since_previous(s);
        if self.decoders[event].decoder.is_unwanted(header) {
            self.outcomes[event].dropped_kernel += 1;
            return Ok(());
        }
        if !self.processes.is_target(s.pid) {
            self.outcomes[event].of_others += 1;
            return Ok(());
        }
        self.latest_ns = self.latest_ns.max(s.time_ns);
        let time_ns = s.time_ns.saturating_sub(self.start_ns);
        let thread = (s.pid, s.tid);
        self.processes
            .observe_sample(thread, time_ns, &mut self.writer)?;
        let mut row = self.decode(event, s, counted);
        row.time_ns = time_ns;
        self.rois.advance(s.time_ns);
        let id = event_id(event);
        if !self.rois.count_sample(s.pid, s.tid, id, row.period) {
            return Ok(());
        }
        let Some(stands_for) = self.trace(&row)? else {
            let outcome = &mut self.outcomes[event];
            outcome.samples += 1;
            outcome.periods = outcome.periods.saturating_add(row.period);
            return Ok(());
        };
        self.add_data(event, header, s, &mut row);
        let outcome = &mut self.outcomes[event];
        outcome.samples += 1;
        outcome.periods = outcome.periods.saturating_add(row.period);
        outcome.with_address += u64::from(row.addr.is_some());
        row.period = stands_for;
        row.caller = self.caller(s, time_ns, (id, row.period))?;
        let kernel = &mut self.processes.files.kernel;
        self.calls.iter().for_each(|ip| kernel.note(*ip));
        kernel.note(row.ip);
        self.sharing.push(&row);
        self.writer.push(row)?;
        if let Some(registers) = s.intr_regs.filter(|_| self.keep_registers) {
            self.writer
                .extend(registers.all().map(|(register, value)| SampleRegister {
                    time_ns,
                    tid: Tid(s.tid),
                    event: id,
                    register,
                    value,
                }))?;
        }
        Ok(())
    }

    fn code_changed(&mut self, pid: u32) {
        if let Some(stacks) = &mut self.unwinder {
            stacks.unwinder.forget_process(pid);
        }
    }

    /// Writes the sample's call stack, which stands for this number of events. Returns its
    /// innermost frame, or `None` without a stack.
    #[inline]
    fn caller(
        &mut self,
        s: &Sample<'_>,
        time_ns: u64,
        events: (EventId, u64),
    ) -> Result<Option<FrameId>> {
        self.calls.clear();
        if !s.callchain.is_empty() || self.unwinder.is_some() {
            self.native_calls(s);
        }
        if !self.python_calls.is_empty() {
            let eval = self.python.eval(s.pid);
            let native = (VirtAddr(s.ip), &mut self.calls);
            let python = (Pid(s.pid), &*self.python_calls);
            self.python_rows
                .add(python, native, &eval, events, &mut self.writer)?;
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

    fn native_calls(&mut self, s: &Sample<'_>) {
        s.calls(&mut self.calls);
        if let Some(stacks) = &mut self.unwinder {
            let mappings = self.processes.mappings();
            let max_calls = usize::from(stacks.max_frames);
            stacks
                .unwinder
                .calls(mappings, s, max_calls, &mut self.calls);
        }
    }

    /// Records an overflow's time, if times are recorded. Returns the number of events that the
    /// sample stands for, or `None` if this overflow is not recorded as a sample.
    fn trace(&mut self, row: &SampleRow) -> Result<Option<u64>> {
        let Some(traces) = &mut self.traces else {
            return Ok(Some(row.period));
        };
        Ok(traces.push(row, &mut self.writer)?)
    }

    /// Writes the values that the program has marked so far, and the events by line of Python.
    pub(super) fn write_values(&mut self) {
        let written = self.rois.write_values(&mut self.writer);
        self.check(written);
        let written = self.python_rows.write(&mut self.writer);
        self.check(written);
    }

    /// Writes the times of overflows so far.
    pub(super) fn write_traces(&mut self) {
        if let Some(traces) = &mut self.traces {
            let written = traces.write(&mut self.writer);
            self.check(written);
        }
    }

    #[inline]
    fn decode(&mut self, event: usize, s: &Sample<'_>, counted: Option<u64>) -> SampleRow {
        let decoder = &mut self.decoders[event];
        let period = decoder
            .decoder
            .stands_for(s, counted, || decoder.set_period(s.time_ns));
        if decoder.data_source.packed.0 != s.data_src {
            decoder.data_source = DecodedDataSource::new(DataSrc(s.data_src));
        }
        decoder
            .decoder
            .row_from(decoder.data_source, event_id(event), s, period)
    }

    /// Adds data from IBS registers, or from the code and the sampled registers.
    fn add_data(&mut self, event: usize, header: Header, s: &Sample<'_>, row: &mut SampleRow) {
        let decoder = &self.decoders[event].decoder;
        let op = decoder.add_ibs_fields(s, row);
        let code = DataSrc(s.data_src);
        if decoder.layout.has(sample::DATA_SRC)
            && (self.data_sources.is_latest(code) || code.is_known())
        {
            self.data_sources.add_code(code, row.latency_cycles);
        } else if let Some(op) = op {
            self.data_sources
                .add_static_name(op.source_words(), row.latency_cycles);
        }
        if let Some(derivations) = &mut self.derivations
            && decoder.needs_derived_address(row)
        {
            let position = decoder.ip_position(header);
            let derived = derive_address(&mut self.processes.code, position, s, row);
            count_derivation(derivations, derived);
        }
    }

    /// Records a sample of ARM's SPE. `owner` is the process and thread in the ring's record.
    pub(super) fn record_operation(
        &mut self,
        event: usize,
        operation: &SampledOperation,
        owner: AuxOwner,
    ) {
        let latency_cycles = operation.latency_cycles;
        self.data_sources
            .add_name(operation.words(), latency_cycles);
        let period = self.decoders[event].decoder.attr.period;
        let outcome = &mut self.outcomes[event];
        outcome.samples += 1;
        outcome.periods = outcome.periods.saturating_add(period);
        outcome.with_address += u64::from(operation.addr.is_some());
        let row = SampleRow {
            time_ns: owner.time_ns.saturating_sub(self.start_ns),
            pid: Pid(owner.pid),
            tid: Tid(owner.tid),
            event: event_id(event),
            ip: VirtAddr(operation.ip),
            addr: operation.addr.map(VirtAddr),
            phys: operation.phys.map(PhysAddr),
            kind: operation.kind,
            latency_cycles,
            source: operation.level(),
            period,
            ..SampleRow::default()
        };
        self.sharing.push(&row);
        let written = self.writer.push(row);
        self.check(written);
    }

    /// Writes the cache lines that samples saw threads share.
    pub(super) fn write_sharing(&mut self) {
        let (rows, dropped) = std::mem::take(&mut self.sharing).finish();
        let kind = LossKind::SharingNotAttributed;
        self.add_loss(kind, sampled_sharing::DROPPED, dropped);
        let written = self.writer.extend(rows);
        self.check(written);
    }

    /// Returns all losses. Losses of an event have its name.
    pub(super) fn losses(&mut self) -> Vec<Loss> {
        self.add_lost_records();
        self.add_losses_of_events();
        self.add_losses_of_stacks_and_rois();
        self.add_losses_of_python();
        let loss = |((kind, detail), count): (&(LossKind, String), &u64)| Loss {
            kind: *kind,
            count: *count,
            detail: detail.clone(),
            ..Loss::default()
        };
        self.losses.iter().map(loss).collect()
    }

    /// Lost records that are not among the lost samples of an event. Kernels before 6.0 do not
    /// count lost samples by event.
    fn add_lost_records(&mut self) {
        let lost_samples: u64 = self.outcomes.iter().map(|outcome| outcome.lost).sum();
        let (what, count) = match lost_samples {
            0 => ("samples and other records", self.lost_records),
            n => (
                "names, mappings and other side records",
                self.lost_records.saturating_sub(n),
            ),
        };
        self.add_loss(LossKind::RingFull, what, count);
    }

    fn add_losses_of_events(&mut self) {
        for outcome in std::mem::take(&mut self.outcomes) {
            let of_event = [
                (
                    LossKind::RingFull,
                    "samples (a larger --ring keeps more)",
                    outcome.lost,
                ),
                (
                    LossKind::RingFull,
                    "times packets were cut short",
                    outcome.truncated,
                ),
                (
                    LossKind::Throttled,
                    "times sampling was stopped",
                    outcome.throttled,
                ),
                (
                    LossKind::NotKept,
                    "samples of the kernel",
                    outcome.dropped_kernel,
                ),
                (
                    LossKind::NotKept,
                    "samples of other processes",
                    outcome.of_others,
                ),
            ];
            for (kind, what, count) in of_event {
                self.add_loss(kind, &format!("{}: {what}", outcome.name), count);
            }
            self.outcomes.push(outcome);
        }
    }

    fn add_losses_of_python(&mut self) {
        let [unwritten, cut, unknown_code] = self.python.losses();
        self.add_loss(
            LossKind::RingFull,
            "samples without lines of Python",
            unwritten,
        );
        self.add_loss(
            LossKind::NotKept,
            "samples with some of their calls of Python: more than 128, or unreadable",
            cut,
        );
        let what = "calls of Python whose function could not be read";
        self.add_loss(LossKind::Undecoded, what, unknown_code);
    }

    fn add_losses_of_stacks_and_rois(&mut self) {
        self.add_loss(LossKind::NotKept, stacks::CUT, self.stacks.cut);
        if let Some(stacks) = &self.unwinder {
            let (short, broken) = (stacks.unwinder.truncated, stacks.unwinder.broken);
            self.add_loss(LossKind::NotKept, SHORT_STACKS, short);
            self.add_loss(LossKind::NotKept, BROKEN_STACKS, broken);
        }
        self.add_loss(LossKind::RegionEnd, "", self.rois.unmatched_ends);
        let refused = self.rois.refused_marks;
        self.add_loss(LossKind::RingFull, "marks of regions", refused);
        self.add_loss(
            LossKind::NotKept,
            "marks of regions whose thread was killed as it made them",
            self.rois.lost_marks,
        );
        if let Some(derivations) = self.derivations {
            self.add_loss(
                LossKind::Undecoded,
                "samples whose code could not be read",
                derivations.no_code,
            );
        }
    }
}

/// `PERF_AUX_FLAG_TRUNCATED`.
const AUX_TRUNCATED: u64 = 1;

fn count_derivation(
    facts: &mut DerivationFacts,
    derived: std::result::Result<Derivation, NoRecipe>,
) {
    let counter = match derived {
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
