//! A perf.data into a recording.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use memgauge_trace::recording::Writer;
use memgauge_trace::{
    AccessKind, Cpu, DataSource, EventDef, EventId, Loss, LossKind, Manifest, Module, PhysAddr,
    Pid, Provenance, Sample as SampleRow, SampleRegister, SeriesRow, SourceFacts, Tid, Unit,
    VirtAddr, catalogue,
};

use super::counters::Counters;
use super::perf_data::{Damage, Events, FileEvent, PerfData, Visit};
use super::threads::Threads;
use super::writing::Writing;
use crate::pmu::abi::{record, sample};
use crate::pmu::data_src::DataSrc;
use crate::pmu::events::builtin_events;
use crate::pmu::record::{Header, Layout, Mmap, Reading, Record, Sample};
use crate::program::{Mappings, hex};
use crate::{Error, ErrorKind, Result};

/// What to import, and to where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub input: PathBuf,
    /// Directory of the recording.
    pub output: PathBuf,
}

/// What was imported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// Samples by event name.
    pub samples: Vec<(String, u64)>,
    /// Samples with a data address.
    pub with_address: u64,
    /// Rows of counters' values in samples.
    pub series_rows: u64,
    /// Records by kind of the kernel's.
    pub records: BTreeMap<u32, u64>,
    /// Data sources in words: samples, and the sum of their latencies in cycles.
    pub sources: BTreeMap<String, (u64, u64)>,
    /// What was lost or left out.
    pub losses: Vec<Loss>,
    /// What of the file could not be read, in words.
    pub problems: Vec<String>,
    /// Bytes of the recording.
    pub recording_bytes: u64,
}

/// Whether a file can be imported at all, before room is made for the result.
///
/// # Errors
/// It is no perf.data, or cannot be read.
pub fn check(input: &Path) -> Result<()> {
    PerfData::open(open(input)?)
        .map(drop)
        .map_err(|e| about(input, e))
}

/// Opens a file; `-` is standard input.
fn open(input: &Path) -> Result<BufReader<File>> {
    let failed = |e| Error::system(format!("failed to open `{}`", input.display()), e);
    let path = match input.to_str() {
        Some("-") => Path::new("/dev/stdin"),
        _ => input,
    };
    let file = File::open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    let unfit = match (kind.is_file(), kind.is_dir()) {
        (true, _) => return Ok(BufReader::with_capacity(1 << 16, file)),
        (_, true) => "it is a directory; name the perf.data in it",
        // Times begin with the earliest, which is known when all has been read once.
        _ => "it cannot be read twice; write it to a file, and import that",
    };
    Err(about(input, Error::new(ErrorKind::BadInput, unfit)))
}

fn about(input: &Path, error: Error) -> Error {
    error.about(&format!("failed to import `{}`", input.display()))
}

/// Imports a file.
///
/// # Errors
/// It is no perf.data, cannot be read, or the recording cannot be written.
pub fn import(options: &Options) -> Result<Imported> {
    convert(open(&options.input)?, &options.output).map_err(|e| about(&options.input, e))
}

/// Imports from anything that can be read.
///
/// # Errors
/// As of [`import`].
pub fn convert(source: impl Read + Seek, output: &Path) -> Result<Imported> {
    let mut source = source;
    let start_ns = earliest(&mut source)?;
    let mut file = PerfData::open(source)?;
    let mut converter = Converter::new(output, start_ns, file.facts.build_ids.clone())?;
    let damage = file.read(&mut converter)?;
    converter.finish(&file, damage)
}

/// The earliest time in a file. Records lie in it ring by ring, not in order; the
/// earliest is in one of the first two rounds.
fn earliest(source: &mut (impl Read + Seek)) -> Result<u64> {
    let mut earliest = Earliest {
        time_ns: u64::MAX,
        rounds: 0,
    };
    PerfData::open(&mut *source)?.read(&mut earliest)?;
    source
        .rewind()
        .map_err(|e| Error::system("failed to read perf data again", e))?;
    Ok(earliest.time_ns)
}

struct Earliest {
    time_ns: u64,
    rounds: u32,
}

impl Visit for Earliest {
    fn record(&mut self, events: &Events, header: Header, body: &[u8]) -> Result<()> {
        let time_ns = match header.kind {
            record::SAMPLE => events
                .of_sample(body)
                .and_then(|(_, l)| l.sample_time(body)),
            _ => events
                .of_others()
                .and_then(|l| Some(l.trailer(body)?.1.time_ns)),
        };
        // What perf makes up for what was there before has time 0.
        if let Some(time_ns) = time_ns.filter(|&t| t > 0) {
            self.time_ns = self.time_ns.min(time_ns);
        }
        Ok(())
    }

    fn round(&mut self) -> bool {
        self.rounds += 1;
        self.rounds < 2 || self.time_ns == u64::MAX
    }
}

struct Converter {
    writer: Writing,
    threads: Threads,
    imported: Imported,
    by_event: Vec<u64>,
    /// When the recording begins, on perf's clock.
    start_ns: u64,
    counters: Counters,
    mappings: Mappings,
    /// By path, as the file has them.
    build_ids: BTreeMap<String, String>,
    lost: BTreeMap<(LossKind, &'static str), u64>,
    /// Samples with each of [`NOT_KEPT`].
    not_kept: [u64; NOT_KEPT.len()],
    /// Records of the kernel by kind.
    kinds: [u64; KINDS],
}

/// What samples may have that is left out.
const NOT_KEPT: [&str; 5] = [
    "call chains",
    "branch stacks",
    "user stacks",
    "raw bytes of samples",
    "registers of user space beside others",
];

/// The kernel's kinds of records are below that.
const KINDS: usize = 64;

impl Converter {
    fn new(output: &Path, start_ns: u64, build_ids: BTreeMap<String, String>) -> Result<Converter> {
        Ok(Converter {
            writer: Writing::new(Writer::create(
                output,
                Manifest {
                    clock: "monotonic".to_owned(),
                    ..Manifest::default()
                },
            )?),
            threads: Threads::default(),
            imported: Imported::default(),
            by_event: Vec::new(),
            start_ns,
            counters: Counters::default(),
            mappings: Mappings::default(),
            build_ids,
            lost: BTreeMap::new(),
            not_kept: [0; NOT_KEPT.len()],
            kinds: [0; KINDS],
        })
    }

    /// Time since the recording began; what has no time came before. A record that
    /// is older than perf's order allows is there at the beginning, and counted.
    #[inline]
    fn since_start(&mut self, time_ns: u64) -> u64 {
        if time_ns < self.start_ns && time_ns > 0 {
            self.lose(LossKind::Unknown, "records out of the order of rounds", 1);
        }
        time_ns.saturating_sub(self.start_ns)
    }

    fn lose(&mut self, kind: LossKind, what: &'static str, count: u64) {
        if count > 0 {
            *self.lost.entry((kind, what)).or_default() += count;
        }
    }

    /// `usual` is what a sample stands for where it does not say.
    fn sample(
        &mut self,
        (number, usual): (usize, u64),
        layout: &Layout,
        s: &Sample<'_>,
    ) -> Result<()> {
        let time_ns = self.since_start(s.time_ns);
        if self.by_event.len() <= number {
            self.by_event.resize(number + 1, 0);
        }
        self.by_event[number] += 1;
        self.threads.seen(s.pid, s.tid, time_ns);
        self.inherited(s.pid)?;
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
                usual
            },
            ..SampleRow::default()
        };
        self.imported.with_address += u64::from(row.addr.is_some());
        self.writer.sample(row)?;
        self.not_kept(s);
        self.registers(event_id(number), time_ns, s)
    }

    /// Those at the interrupt; where there are none, those of user space.
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

    /// What kind of access it was and where the data came from, noted in words.
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
            let seen = self.imported.sources.entry(source.words()).or_default();
            seen.0 += 1;
            seen.1 += u64::from(latency_cycles);
        }
        (source.kind(), source.level())
    }

    #[inline]
    fn not_kept(&mut self, s: &Sample<'_>) {
        let left_out = [
            !s.callchain.is_empty(),
            s.branches > 0,
            !s.stack.is_empty(),
            !s.raw.is_empty(),
            s.user_regs.is_some() && s.intr_regs.is_some(),
        ];
        for (sum, has) in self.not_kept.iter_mut().zip(left_out) {
            *sum += u64::from(has);
        }
    }

    /// What the members of a group gained since the group's last sample there.
    fn readings(&mut self, events: &Events, s: &Sample<'_>, reading: &Reading<'_>) -> Result<()> {
        let time_ns = self.since_start(s.time_ns);
        for index in 0..reading.len() {
            let (Some(id), Some(value)) = (reading.id(index), reading.value(index)) else {
                continue;
            };
            let read = self
                .counters
                .read(events, index, (id, s.tid), (value, time_ns));
            let Some(gain) = read else {
                self.lose(LossKind::Unreadable, "values of counters of unknown id", 1);
                continue;
            };
            self.imported.series_rows += 1;
            self.writer.series(SeriesRow {
                time_ns,
                cpu: Some(Cpu(s.cpu)),
                pid: Pid(s.pid),
                tid: Tid(s.tid),
                event: event_id(gain.event),
                value: gain.value,
                interval_ns: gain.interval_ns,
            })?;
        }
        Ok(())
    }

    fn mapping(&mut self, map: &Mmap<'_>, time_ns: u64) -> Result<()> {
        let Some(end) = map.start.checked_add(map.bytes) else {
            self.lose(LossKind::Unreadable, "mappings that end nowhere", 1);
            return Ok(());
        };
        let path = String::from_utf8_lossy(map.path);
        let path = if path == "//anon" {
            "[anon]".into()
        } else {
            path
        };
        let build_id = match map.build_id {
            [] => self.build_ids.get(&*path).cloned().unwrap_or_default(),
            id => hex(id),
        };
        let row = Module {
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
        self.inherited(map.pid)?;
        self.mappings.mapped(&row);
        self.writer.module(row)
    }

    /// Writes what a child has mapped since before its fork, when it is first needed.
    fn inherited(&mut self, pid: u32) -> Result<()> {
        let mut rows = self.mappings.inherited(pid).into_iter();
        rows.try_for_each(|row| self.writer.module(row))
    }

    fn other(&mut self, record: &Record<'_>, time_ns: u64) -> Result<()> {
        match record {
            Record::Mmap(map) => self.mapping(map, time_ns)?,
            Record::Comm {
                pid,
                tid,
                exec,
                name,
            } => {
                let name = String::from_utf8_lossy(name);
                self.threads.named(*pid, *tid, *exec, &name, time_ns);
                if *exec {
                    self.mappings.replaced(*pid);
                    let pid = Pid(*pid);
                    let path = "[exec]".to_owned();
                    self.writer.module(Module {
                        pid,
                        time_ns,
                        path,
                        ..Module::default()
                    })?;
                }
            }
            Record::Fork(task) => {
                self.threads.forked(task, time_ns);
                self.mappings.forked(task.pid, task.parent_pid, time_ns);
            }
            Record::Exit(task) => {
                self.threads.ended(task, time_ns);
                if task.pid == task.tid {
                    self.mappings.ended(task.pid);
                }
            }
            Record::Lost { count, .. } => {
                self.lose(LossKind::RingFull, "records lost in perf's rings", *count)
            }
            Record::LostSamples { count } => {
                self.lose(
                    LossKind::RingFull,
                    "samples lost in hardware buffers",
                    *count,
                );
            }
            Record::Throttle { .. } => {
                self.lose(LossKind::Throttled, "times sampling was stopped", 1)
            }
            Record::Aux { bytes, .. } => {
                self.lose(LossKind::NotKept, "bytes of AUX traces", *bytes)
            }
            _ => {}
        }
        Ok(())
    }

    fn finish<R: Read + Seek>(mut self, file: &PerfData<R>, damage: Damage) -> Result<Imported> {
        for (what, count) in NOT_KEPT.into_iter().zip(self.not_kept) {
            self.lose(LossKind::NotKept, what, count);
        }
        let kinds = (0..).zip(self.kinds).filter(|(_, count)| *count > 0);
        self.imported.records.extend(kinds);
        self.lose(
            LossKind::Unreadable,
            "bytes of the file",
            damage.unread_bytes,
        );
        self.lose(
            LossKind::NotKept,
            "bytes of AUX traces",
            file.facts.trace_bytes,
        );
        let named = |number: usize| event_name(&file.events.all[number], number);
        let counted = self.by_event.iter().enumerate();
        self.imported.samples = counted.map(|(n, &count)| (named(n), count)).collect();
        self.imported.problems = damage.problems;
        self.imported.losses = losses(self.lost);
        let mut writer = self.writer.finish()?;
        writer.extend(self.threads.rows())?;
        writer.extend(self.imported.losses.iter().cloned())?;
        writer.flush()?;
        self.imported.recording_bytes = writer.bytes_written();
        let whole = self.imported.problems.is_empty();
        let definitions = file
            .events
            .all
            .iter()
            .enumerate()
            .map(|(n, e)| definition(e, n))
            .collect();
        writer.finish(|manifest| {
            manifest.recorder = recorder(&file.facts.version);
            manifest.command.clone_from(&file.facts.command);
            manifest.host = file.facts.host.clone();
            manifest.events = definitions;
            manifest.source = SourceFacts {
                name: "import".to_owned(),
                settings: settings(&file.events, whole),
            };
        })?;
        Ok(self.imported)
    }

    /// Passes over a sample or another record that makes no sense, and counts it.
    fn unreadable(&mut self, what: &'static str) -> Result<()> {
        self.lose(LossKind::Unreadable, what, 1);
        Ok(())
    }
}

impl Visit for Converter {
    fn record(&mut self, events: &Events, header: Header, body: &[u8]) -> Result<()> {
        match self.kinds.get_mut(header.kind as usize) {
            Some(sum) => *sum += 1,
            None => *self.imported.records.entry(header.kind).or_default() += 1,
        }
        if header.kind == record::SAMPLE {
            let known = events.of_sample(body).filter(|(_, l)| !l.is_unknown());
            let Some((number, layout)) = known else {
                return self.unreadable("samples");
            };
            let Some(sample) = layout.sample(body) else {
                return self.unreadable("samples");
            };
            let usual = events.all[number].attr.period;
            self.sample((number, usual), layout, &sample)?;
            return match &sample.reading {
                Some(reading) => self.readings(events, &sample, reading),
                None => Ok(()),
            };
        }
        let Some((record, trailer)) = events.of_others().and_then(|l| l.record(header, body))
        else {
            return self.unreadable("records");
        };
        let time_ns = match &record {
            Record::Fork(task) | Record::Exit(task) => task.time_ns,
            _ => trailer.time_ns,
        };
        let time_ns = self.since_start(time_ns);
        self.other(&record, time_ns)
    }
}

fn event_id(number: usize) -> EventId {
    EventId(catalogue::FIRST_FREE.saturating_add(u16::try_from(number).unwrap_or(u16::MAX)))
}

/// The name in the file; where it has none, the name of the encoding.
fn event_name(event: &FileEvent, number: usize) -> String {
    if !event.name.is_empty() {
        return event.name.clone();
    }
    let attr = &event.attr;
    let same =
        |named: &crate::pmu::events::Named| (named.kind, named.config) == (attr.kind, attr.config);
    let named = builtin_events().into_iter().find(same);
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
        let what = if attr.has(crate::pmu::abi::flag::FREQ) {
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
