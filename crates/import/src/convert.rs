//! Converts a perf.data file to a recording.

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::path::Path;
use std::time::SystemTime;

use memgauge_recording::Writer;
use memgauge_recording::sampled_sharing::{self, SampledSharing};
use memgauge_recording::stacks::{self, Stacks};
use memgauge_trace::{
    AccessKind, Cpu, DataFromFacts, DataSource, EventDef, EventId, FrameId, ImportFacts, Loss,
    LossKind, Manifest, Module, PhysAddr, Pid, Provenance, Sample as SampleRow, SampleRegister,
    SampledFacts, SamplingFacts, SeriesRow, SourceFacts, SourceKind, Tid, Unit, VirtAddr,
    catalogue,
};

use super::background_writer::BackgroundWriter;
use super::counters::{CounterValue, CounterValues};
use super::input::Input;
use super::symfs::Symfs;
use super::threads::{ThreadChange, Threads};
use super::unwinding::{CodeChange, Unwinding};
use crate::{Error, Result};
use memgauge_host::program::{
    KernelCode, Mappings, RecordedCode, RecordedKernel, hex, is_of_this_machine,
};
use memgauge_host::unwind::{self, BROKEN_STACKS, SHORT_STACKS, Unwinder};
use memgauge_perf::abi::{flag, read, record, sample};
use memgauge_perf::builtin::{self, NamedEvent};
use memgauge_perf::data_src::DataSrc;
use memgauge_perf::perf_data::{Damage, Events, Facts, FileEvent, PerfData, Visit};
use memgauge_perf::record::{Header, Layout, Mmap, Reading, Record, Sample, Trailer};

/// Checks whether an input can be imported, before the recording is created.
///
/// # Errors
/// The input is not perf data.
pub fn check(input: &mut Input) -> Result<()> {
    PerfData::open(&mut input.main)?;
    input.rewind()
}

/// Imports perf data into a recording at `output`.
///
/// # Errors
/// The input is not perf data or cannot be read, or the recording cannot be written.
pub fn import(input: &mut Input, output: &Path) -> Result<()> {
    let mut earliest = EarliestTime::new(!input.further.is_empty());
    let mut head = PerfData::open(&mut input.main)?;
    head.read(&mut earliest)?;
    for (_, records) in &mut input.further {
        head.read_further(records, &mut earliest)?;
    }
    input.rewind()?;
    let last_write = input.last_write;
    let mut file = PerfData::open(&mut input.main)?;
    let mut converter = Converter::new(output, earliest, &file.facts)?;
    converter.last_write = last_write;
    if let Some(folder) = input.symfs.as_ref() {
        converter.read_files_below(folder)?;
    }
    if !input.further.is_empty() {
        converter.threads = Threads::for_unordered_records();
    }
    let mut damage = file.read(&mut converter)?;
    for (path, records) in &mut input.further {
        let found = file.read_further(records, &mut converter)?;
        let named = |why| format!("{}: {why}", path.display());
        damage
            .problems
            .extend(found.problems.into_iter().map(named));
        damage.unread_bytes += found.unread_bytes;
    }
    if let Some(symfs) = &converter.symfs {
        symfs.link(output)?;
    }
    converter.finish(&file, damage)
}

/// Imports a single input that can be read twice.
///
/// # Errors
/// As [`import`].
pub fn convert(source: impl Read + Seek, output: &Path) -> Result<()> {
    let mut source = source;
    let mut earliest = EarliestTime::new(false);
    PerfData::open(&mut source)?.read(&mut earliest)?;
    source
        .rewind()
        .map_err(|e| Error::system("failed to read perf data again", e))?;
    let mut file = PerfData::open(source)?;
    let mut converter = Converter::new(output, earliest, &file.facts)?;
    let damage = file.read(&mut converter)?;
    converter.finish(&file, damage)
}

/// Finds the earliest time in a file. Records are not in time order: they are written ring by ring,
/// in rounds, and the earliest one is in the first two rounds. Several files have no common rounds,
/// so they are read completely. A file with copied stacks is also read completely, for the mappings
/// of code.
struct EarliestTime {
    time_ns: u64,
    rounds: u32,
    whole: bool,
    changes: Option<Vec<(u64, CodeChange)>>,
}

impl EarliestTime {
    fn new(whole: bool) -> EarliestTime {
        EarliestTime {
            time_ns: u64::MAX,
            rounds: 0,
            whole,
            changes: None,
        }
    }

    /// Returns the time of a record that is not a sample. Keeps its changes of code.
    fn side_band(&mut self, events: &Events, header: Header, body: &[u8]) -> Option<u64> {
        let layout = events.side_band_layout()?;
        let (record, trailer) = layout.record(header, body)?;
        let copied = |event: &FileEvent| event.attr.sample_type & sample::STACK_USER != 0;
        if self.changes.is_some() || events.all.iter().any(copied) {
            self.whole = true;
            let time_ns = match &record {
                Record::Fork(task) => task.time_ns,
                _ => trailer.time_ns,
            };
            let changes = self.changes.get_or_insert_default();
            changes.extend(CodeChange::from_record(&record).map(|change| (time_ns, change)));
        }
        Some(trailer.time_ns)
    }
}

impl Visit for EarliestTime {
    type Error = Error;

    fn record(&mut self, events: &Events, header: Header, body: &[u8]) -> Result<()> {
        let time_ns = match header.kind {
            record::SAMPLE => events
                .event_of_sample(body)
                .and_then(|(_, l)| l.sample_time(body)),
            _ => self.side_band(events, header, body),
        };
        // Synthesised records for the state before the start have time 0.
        if let Some(time_ns) = time_ns.filter(|&t| t > 0) {
            self.time_ns = self.time_ns.min(time_ns);
        }
        Ok(())
    }

    fn round(&mut self) -> bool {
        self.rounds += 1;
        self.whole || self.rounds < 2 || self.time_ns == u64::MAX
    }
}

struct Converter {
    writer: BackgroundWriter,
    threads: Threads,
    /// Indexed by event number.
    sampled: Vec<SampledFacts>,
    /// Samples and the sum of their latencies in cycles, by data source as text.
    sources: BTreeMap<String, (u64, u64)>,
    /// Number of records of kinds that are newer than this program's list.
    later_kinds: BTreeMap<u32, u64>,
    /// Number of records of any kind lost in rings.
    ring_lost: u64,
    series_rows: u64,
    /// Start of the recording on perf's clock.
    start_ns: u64,
    counters: CounterValues,
    mappings: Mappings,
    stacks: Stacks,
    sharing: SampledSharing,
    /// Present if the file has copied stacks of this processor's architecture.
    unwinding: Option<Unwinding>,
    /// Call chain of the current sample.
    calls: Vec<VirtAddr>,
    /// Kernel addresses of samples and calls, and a kernel symbol with its address.
    kernel: KernelCode,
    kernel_symbol: Option<(String, u64)>,
    /// Names that processes gave to generated code.
    generated: RecordedCode,
    symfs: Option<Symfs>,
    /// Time at which the file was last written to.
    last_write: SystemTime,
    /// Build IDs by path, from the file's header.
    build_ids: BTreeMap<String, String>,
    lost: BTreeMap<(LossKind, &'static str), u64>,
    /// Number of samples with each field of [`NOT_KEPT`].
    not_kept: [u64; NOT_KEPT.len()],
    /// Number of records by kind.
    kinds: [u64; KINDS],
}

/// Fields of samples that are not imported.
const NOT_KEPT: [&str; 4] = [
    "branch stacks",
    "user stacks",
    "raw bytes of samples",
    "registers of user space next to other registers",
];

/// `PERF_RECORD_MISC_LOST_SAMPLES_BPF`: dropped by a filter rather than lost.
const DROPPED_BY_FILTER: u16 = 1 << 15;

/// perf's name for the kernel's code.
const KERNEL: &str = "[kernel.kallsyms]";
/// Upper limit of the kinds of kernel records.
const KINDS: usize = 64;

impl Converter {
    fn new(output: &Path, earliest: EarliestTime, facts: &Facts) -> Result<Converter> {
        let build_ids = facts.build_ids.clone();
        // A pipe's stream reports the architecture later.
        let is_own = facts.arch.is_empty() || facts.arch == std::env::consts::ARCH;
        let is_readable = is_own && unwind::is_possible();
        let changes = earliest.changes.filter(|_| is_readable);
        Ok(Converter {
            writer: BackgroundWriter::new(Writer::create(
                output,
                Manifest {
                    clock: "monotonic".to_owned(),
                    ..Manifest::default()
                },
            )?),
            threads: Threads::default(),
            sampled: Vec::new(),
            sources: BTreeMap::new(),
            later_kinds: BTreeMap::new(),
            ring_lost: 0,
            series_rows: 0,
            start_ns: earliest.time_ns,
            counters: CounterValues::default(),
            mappings: Mappings::default(),
            stacks: Stacks::new(),
            sharing: SampledSharing::default(),
            unwinding: changes.map(|changes| Unwinding::new(changes, &build_ids)),
            calls: Vec::new(),
            kernel: KernelCode::default(),
            kernel_symbol: None,
            generated: RecordedCode::default(),
            symfs: None,
            last_write: SystemTime::now(),
            build_ids,
            lost: BTreeMap::new(),
            not_kept: [0; NOT_KEPT.len()],
            kinds: [0; KINDS],
        })
    }

    /// Looks up the files that processes map below `folder`.
    fn read_files_below(&mut self, folder: &Path) -> Result<()> {
        let failed = |e| Error::system(format!("failed to find `{}`", folder.display()), e);
        let folder = folder.canonicalize().map_err(failed)?;
        if let Some(unwinding) = &mut self.unwinding {
            unwinding.unwinder = Unwinder::with_root(&folder);
        }
        self.symfs = Some(Symfs::new(folder));
        Ok(())
    }

    /// Returns the time since the start of the recording. Records without a time happened before
    /// it. A record that is older than perf's sort order allows is placed at the start, and
    /// counted.
    #[inline]
    fn time_since_start(&mut self, time_ns: u64) -> u64 {
        if time_ns < self.start_ns && time_ns > 0 {
            self.count_loss(
                LossKind::Unknown,
                "records older than perf's sorting allows",
                1,
            );
        }
        time_ns.saturating_sub(self.start_ns)
    }

    fn count_loss(&mut self, kind: LossKind, what: &'static str, count: u64) {
        if count > 0 {
            *self.lost.entry((kind, what)).or_default() += count;
        }
    }

    #[inline]
    fn sampled_facts(&mut self, number: usize) -> &mut SampledFacts {
        if self.sampled.len() <= number {
            let more = self.sampled.len()..=number;
            self.sampled.extend(more.map(|number| SampledFacts {
                event: event_id(number),
                ..SampledFacts::default()
            }));
        }
        &mut self.sampled[number]
    }

    /// Imports a sample. `default_period` is its weight if the sample has none.
    fn sample(
        &mut self,
        number: usize,
        default_period: u64,
        layout: &Layout,
        s: &Sample<'_>,
    ) -> Result<()> {
        let time_ns = self.time_since_start(s.time_ns);
        self.threads.record_activity(s.pid, s.tid, time_ns);
        self.write_inherited(s.pid)?;
        self.kernel.note(VirtAddr(s.ip));
        let latency_cycles = layout.latency(s);
        let (kind, source) = self.source(layout, DataSrc(s.data_src), latency_cycles);
        let row = SampleRow {
            time_ns,
            cpu: layout.has(sample::CPU).then_some(Cpu(s.cpu)),
            pid: Pid(s.pid),
            tid: Tid(s.tid),
            event: event_id(number),
            ip: VirtAddr(s.ip),
            addr: (s.addr != 0).then_some(VirtAddr(s.addr)),
            phys: (s.phys != 0).then_some(PhysAddr(s.phys)),
            kind,
            latency_cycles,
            source,
            period: if layout.has(sample::PERIOD) {
                s.period
            } else {
                default_period
            },
            caller: self.caller(s, time_ns)?,
            ..SampleRow::default()
        };
        let facts = self.sampled_facts(number);
        facts.samples += 1;
        facts.stood_for = facts.stood_for.saturating_add(row.period);
        facts.with_address += u64::from(row.addr.is_some());
        self.sharing.push(&row);
        self.writer.sample(row)?;
        self.count_not_kept(s);
        self.registers(event_id(number), time_ns, s)
    }

    /// Returns the innermost frame of the sample's call chain.
    #[inline]
    fn caller(&mut self, s: &Sample<'_>, time_ns: u64) -> Result<Option<FrameId>> {
        self.calls.clear();
        s.calls(&mut self.calls);
        if let Some(unwinding) = self.unwinding.as_mut().filter(|_| !s.stack.is_empty()) {
            unwinding.calls(s, &mut self.calls);
        }
        if self.calls.is_empty() {
            return Ok(None);
        }
        for call in &self.calls {
            self.kernel.note(*call);
        }
        let write = |frame| self.writer.frame(frame);
        let process = (Pid(s.pid), time_ns);
        self.stacks.caller(process, &self.calls, write)
    }

    /// Imports the registers at the interrupt or, without them, those of user space.
    fn registers(&mut self, event: EventId, time_ns: u64, s: &Sample<'_>) -> Result<()> {
        let Some(registers) = s.intr_regs.or(s.user_regs) else {
            return Ok(());
        };
        let tid = Tid(s.tid);
        let row = |(register, value)| SampleRegister {
            time_ns,
            tid,
            event,
            register,
            value,
        };
        self.writer.registers(registers.all().map(row))
    }

    /// Returns the kind of access and the source of the data. Counts the source as text.
    #[inline]
    fn source(
        &mut self,
        layout: &Layout,
        source: DataSrc,
        latency_cycles: u32,
    ) -> (AccessKind, DataSource) {
        if !layout.has(sample::DATA_SRC) {
            return Default::default();
        }
        if source.is_known() {
            let totals = self.sources.entry(source.words()).or_default();
            totals.0 += 1;
            totals.1 += u64::from(latency_cycles);
        }
        (source.kind(), source.level())
    }

    #[inline]
    fn count_not_kept(&mut self, s: &Sample<'_>) {
        let left_out = [
            s.branches > 0,
            !s.stack.is_empty() && self.unwinding.is_none(),
            !s.raw.is_empty(),
            s.user_regs.is_some() && s.intr_regs.is_some(),
        ];
        for (sum, has) in self.not_kept.iter_mut().zip(left_out) {
            *sum += u64::from(has);
        }
    }

    /// Imports the increments of a group's counters since its last sample in the same thread.
    fn readings(&mut self, events: &Events, s: &Sample<'_>, reading: &Reading<'_>) -> Result<()> {
        let time_ns = self.time_since_start(s.time_ns);
        for index in 0..reading.len() {
            let (Some(id), Some(value)) = (reading.id(index), reading.value(index)) else {
                continue;
            };
            let read = self.counters.read(
                events,
                index,
                CounterValue {
                    id,
                    tid: s.tid,
                    value,
                    time_ns,
                },
            );
            let Some(increment) = read else {
                self.count_loss(LossKind::Unreadable, "values of counters of unknown id", 1);
                continue;
            };
            self.series_rows += 1;
            self.writer.series(SeriesRow {
                time_ns,
                cpu: Some(Cpu(s.cpu)),
                pid: Pid(s.pid),
                tid: Tid(s.tid),
                event: event_id(increment.event),
                value: increment.value,
                interval_ns: increment.interval_ns,
            })?;
        }
        Ok(())
    }

    fn mapping(&mut self, map: &Mmap<'_>, time_ns: u64) -> Result<()> {
        let Some(end) = map.start.checked_add(map.bytes) else {
            self.count_loss(
                LossKind::Unreadable,
                "mappings beyond the end of the address space",
                1,
            );
            return Ok(());
        };
        let path = String::from_utf8_lossy(map.path);
        // The file offset is the address of the symbol at the end of the name.
        if let Some(symbol) = path.strip_prefix(KERNEL) {
            self.kernel_symbol = Some((symbol.to_owned(), map.file_offset));
        }
        let path = if path == "//anon" {
            "[anon]".into()
        } else {
            path
        };
        let build_id = match map.build_id {
            [] => self.build_ids.get(&*path).cloned().unwrap_or_default(),
            id => hex(id),
        };
        let mut row = Module {
            pid: Pid(map.pid),
            time_ns,
            start: VirtAddr(map.start),
            end: VirtAddr(end),
            file_offset: map.file_offset,
            path: path.into_owned(),
            executable: map.executable,
            build_id,
            ..Module::default()
        };
        if let Some(symfs) = &mut self.symfs {
            symfs.identify(&mut row);
        }
        self.write_inherited(map.pid)?;
        self.mappings.mapped(&row);
        self.generated.mapped(&row);
        self.writer.module(row)
    }

    /// Writes the mappings that a child inherited, when they are first needed.
    fn write_inherited(&mut self, pid: u32) -> Result<()> {
        let mut rows = self.mappings.inherited(pid).into_iter();
        rows.try_for_each(|row| self.writer.module(row))
    }

    fn other(&mut self, events: &Events, record: &Record<'_>, time_ns: u64) -> Result<()> {
        match record {
            Record::Mmap(map) => self.mapping(map, time_ns)?,
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                let name = String::from_utf8_lossy(name);
                let change = ThreadChange::Named {
                    pid: *pid,
                    tid: *tid,
                    exec: *exec,
                    name: name.into_owned(),
                };
                self.threads.change(change, time_ns);
                if *exec {
                    self.stacks.forget(Pid(*pid));
                    self.mappings.replaced(*pid);
                    let pid = Pid(*pid);
                    let path = Module::EXEC.to_owned();
                    self.writer.module(Module {
                        pid,
                        time_ns,
                        path,
                        ..Module::default()
                    })?;
                }
            }
            Record::Fork(task) => {
                self.threads.change(ThreadChange::Forked(*task), time_ns);
                self.mappings.forked(task.pid, task.parent_pid, time_ns);
            }
            Record::Exit(task) => {
                self.threads.change(ThreadChange::Ended(*task), time_ns);
                if task.pid == task.tid {
                    self.stacks.forget(Pid(task.pid));
                    self.mappings.ended(task.pid);
                }
            }
            Record::Lost { count, .. } => self.ring_lost += count,
            Record::Throttle { id } => {
                if let Some(number) = events.index_of(*id) {
                    self.sampled_facts(number).throttled += 1;
                }
                self.count_loss(LossKind::Throttled, "times sampling was stopped", 1);
            }
            Record::Aux { bytes, .. } => {
                self.count_loss(LossKind::NotKept, "bytes of AUX traces", *bytes)
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts lost samples. perf adds such records at the end, with the kernel's count for each
    /// event; these samples are already included in the records lost in its rings. Records of the
    /// kernel itself are about hardware buffers.
    fn lost_samples(&mut self, events: &Events, header: Header, trailer: &Trailer, count: u64) {
        if header.misc & DROPPED_BY_FILTER != 0 {
            return self.count_loss(
                LossKind::NotKept,
                "samples that a filter of perf left out",
                count,
            );
        }
        let only = (events.all.len() == 1).then_some(0);
        let number = events.index_of(trailer.id).or(only);
        let attr = number.map(|n| events.all[n].attr).unwrap_or_default();
        let is_timed = attr.sample_type & sample::TIME != 0 && attr.has(flag::SAMPLE_ID_ALL);
        let by_perf = match is_timed {
            true => trailer.time_ns == 0,
            false => attr.read_format & read::LOST != 0,
        };
        match number.filter(|_| by_perf) {
            Some(number) => self.sampled_facts(number).lost += count,
            None => self.count_loss(
                LossKind::RingFull,
                "samples lost in hardware buffers",
                count,
            ),
        }
    }

    /// Returns the losses in perf's rings, without counting samples twice.
    fn ring_losses(&mut self, events: &Events) -> Vec<Loss> {
        let of_events: u64 = self.sampled.iter().map(|s| s.lost).sum();
        let (what, rest) = match of_events {
            0 => ("records lost in perf's rings", self.ring_lost),
            n => (
                "records other than samples lost in perf's rings",
                self.ring_lost.saturating_sub(n),
            ),
        };
        self.count_loss(LossKind::RingFull, what, rest);
        let numbered = self.sampled.iter().enumerate();
        let lossy = numbered.filter(|(_, s)| s.lost > 0);
        let loss = |(number, s): (usize, &SampledFacts)| Loss {
            kind: LossKind::RingFull,
            count: s.lost,
            detail: format!(
                "{}: samples lost in perf's rings",
                event_name(&events.all[number], number)
            ),
            ..Loss::default()
        };
        lossy.map(loss).collect()
    }

    fn finish<R: Read + Seek>(mut self, file: &PerfData<R>, damage: Damage) -> Result<()> {
        for (what, count) in NOT_KEPT.into_iter().zip(self.not_kept) {
            self.count_loss(LossKind::NotKept, what, count);
        }
        let cut = self.stacks.cut;
        self.count_loss(LossKind::NotKept, stacks::CUT, cut);
        if let Some(unwinding) = &self.unwinding {
            let (short, broken) = (unwinding.unwinder.truncated, unwinding.unwinder.broken);
            self.count_loss(LossKind::NotKept, SHORT_STACKS, short);
            self.count_loss(LossKind::NotKept, BROKEN_STACKS, broken);
        }
        self.count_loss(
            LossKind::Unreadable,
            "bytes of the file",
            damage.unread_bytes,
        );
        self.count_loss(
            LossKind::NotKept,
            "bytes of AUX traces",
            file.facts.trace_bytes,
        );
        let (shared_lines, dropped) = std::mem::take(&mut self.sharing).finish();
        self.count_loss(
            LossKind::SharingNotAttributed,
            sampled_sharing::DROPPED,
            dropped,
        );
        let in_rings = self.ring_losses(&file.events);
        let sampling = self.sampling();
        let import = self.facts(damage);
        let kernel = self.kernel_symbol.as_ref().map(|(symbol, address)| {
            self.kernel.named_if_same_kernel(&RecordedKernel {
                symbol,
                address: *address,
                release: &file.facts.host.kernel,
                build_id: self.build_ids.get(KERNEL).map_or("", String::as_str),
            })
        });
        let mut writer = self.writer.finish()?;
        writer.extend(kernel.unwrap_or_default())?;
        let threads = self.threads.rows();
        if is_of_this_machine(&file.facts.host.name) {
            let processes = threads.iter().map(|thread| thread.pid.0);
            writer.extend(self.generated.named(processes, self.last_write))?;
        }
        writer.extend(threads)?;
        writer.extend(shared_lines)?;
        writer.extend(losses(self.lost).into_iter().chain(in_rings))?;
        writer.flush_so_far()?;
        let numbered = file.events.all.iter().enumerate();
        let definitions = numbered.map(|(n, e)| definition(e, n)).collect();
        let recording_bytes = writer.bytes_written();
        writer.finish(|manifest| {
            manifest.recorder = recorder(&file.facts.version);
            manifest.command.clone_from(&file.facts.command);
            manifest.host = file.facts.host.clone();
            manifest.events = definitions;
            manifest.source = SourceFacts {
                kind: SourceKind::Import,
                settings: settings(&file.events, import.problems.is_empty()).into(),
            };
            manifest.sampling = Some(sampling);
            manifest.import = Some(import);
            manifest.own_cost.recording_bytes = recording_bytes;
        })?;
        Ok(())
    }

    fn sampling(&mut self) -> SamplingFacts {
        let sources = std::mem::take(&mut self.sources).into_iter();
        SamplingFacts {
            events: std::mem::take(&mut self.sampled),
            sources: sources
                .map(|(words, (samples, latency_cycles))| DataFromFacts {
                    words,
                    samples,
                    latency_cycles,
                })
                .collect(),
            ..SamplingFacts::default()
        }
    }

    fn facts(&mut self, damage: Damage) -> ImportFacts {
        let kinds = (0..).zip(self.kinds).filter(|(_, count)| *count > 0);
        let mut records = std::mem::take(&mut self.later_kinds);
        records.extend(kinds);
        ImportFacts {
            records,
            series_rows: self.series_rows,
            problems: damage.problems,
            lacks: Vec::new(),
        }
    }

    /// Skips and counts an invalid record.
    fn unreadable(&mut self, what: &'static str) -> Result<()> {
        self.count_loss(LossKind::Unreadable, what, 1);
        Ok(())
    }
}

impl Visit for Converter {
    type Error = Error;

    fn record(&mut self, events: &Events, header: Header, body: &[u8]) -> Result<()> {
        match self.kinds.get_mut(header.kind as usize) {
            Some(sum) => *sum += 1,
            None => *self.later_kinds.entry(header.kind).or_default() += 1,
        }
        if header.kind == record::SAMPLE {
            let known = events
                .event_of_sample(body)
                .filter(|(_, l)| !l.is_unknown());
            let Some((number, layout)) = known else {
                return self.unreadable("samples");
            };
            let Some(sample) = layout.sample(body) else {
                return self.unreadable("samples");
            };
            let default_period = events.all[number].attr.period;
            self.sample(number, default_period, layout, &sample)?;
            return match &sample.reading {
                Some(reading) => self.readings(events, &sample, reading),
                None => Ok(()),
            };
        }
        let Some((record, trailer)) = events
            .side_band_layout()
            .and_then(|l| l.record(header, body))
        else {
            return self.unreadable("records");
        };
        if let Record::LostSamples { count } = record {
            self.lost_samples(events, header, &trailer, count);
            return Ok(());
        }
        let time_ns = match &record {
            Record::Fork(task) | Record::Exit(task) => task.time_ns,
            _ => trailer.time_ns,
        };
        let time_ns = self.time_since_start(time_ns);
        self.other(events, &record, time_ns)
    }
}

fn event_id(number: usize) -> EventId {
    EventId(catalogue::FIRST_FREE.saturating_add(u16::try_from(number).unwrap_or(u16::MAX)))
}

/// Returns the name in the file or, without one, a name for the encoding.
fn event_name(event: &FileEvent, number: usize) -> String {
    if !event.name.is_empty() {
        return event.name.clone();
    }
    let attr = &event.attr;
    let same = |named: &NamedEvent| (named.kind, named.config) == (attr.kind, attr.config);
    let named = builtin::all().into_iter().find(same);
    named.map_or_else(
        || {
            format!(
                "event{number}/type={},config={:#x}/",
                attr.kind, attr.config
            )
        },
        |named| named.name,
    )
}

fn definition(event: &FileEvent, number: usize) -> EventDef {
    let attr = &event.attr;
    EventDef {
        id: event_id(number),
        name: event_name(event, number),
        unit: Unit::Count,
        provenance: Provenance::Sampled,
        description: format!(
            "Sampled by perf: type {}, config {:#x}, config1 {:#x}, precision {}",
            attr.kind,
            attr.config,
            attr.config1,
            attr.precise_ip()
        ),
    }
}

fn recorder(version: &str) -> String {
    let own = concat!("memgauge ", env!("CARGO_PKG_VERSION"));
    match version {
        "" => format!("{own}, from perf"),
        version => format!("{own}, from perf {version}"),
    }
}

fn settings(events: &Events, whole: bool) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::from([("format".to_owned(), "perf.data".to_owned())]);
    if !whole {
        settings.insert("damaged".to_owned(), "read as far as possible".to_owned());
    }
    for (number, event) in events.all.iter().enumerate() {
        let attr = &event.attr;
        let what = if attr.has(memgauge_perf::abi::flag::FREQ) {
            "frequency"
        } else {
            "period"
        };
        settings.insert(
            format!("{what}.{}", event_name(event, number)),
            attr.period.to_string(),
        );
    }
    settings
}

fn losses(lost: BTreeMap<(LossKind, &'static str), u64>) -> Vec<Loss> {
    let loss = |((kind, detail), count): ((LossKind, &str), u64)| Loss {
        kind,
        count,
        detail: detail.to_owned(),
        ..Loss::default()
    };
    lost.into_iter().map(loss).collect()
}
