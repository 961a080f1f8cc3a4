//! Writes a `perf.data` file: the rows of a recording as records of `perf record`.
//!
//! ```text
//! header (104) │ ids │ attributes │ COMM, MMAP2, EXIT …, SAMPLE … │ features
//! ```
//!
//! All events have the same sample fields: those that at least one sample of the recording has.
//! Events keep their names. perf has no modelled events, so these get the type "raw". perf resolves
//! code with the files on its own machine, not with the recording.

use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};

use memgauge_perf::abi::{Attr, flag, kind, misc, record, sample};
use memgauge_perf::builtin;
use memgauge_perf::data_src::DataSrc;
use memgauge_perf::perf_data::feature::{
    ARCH, CMDLINE, CPUDESC, EVENT_DESC, HOSTNAME, NRCPUS, OSRELEASE, TOTAL_MEM, VERSION,
};
use memgauge_recording::{Recording, Selection};
use memgauge_trace::{
    AccessKind, DataSource, EventDef, EventId, Frame, FrameId, MachineFacts, Manifest, Module,
    Sample, Thread, VirtAddr,
};

use super::Error;

/// Size of the file's header in bytes.
const HEADER_BYTES: u64 = 104;
/// Size of an attribute in bytes: `PERF_ATTR_SIZE_VER5`, which perf reads since Linux 4.1.
const ATTR_BYTES: usize = 112;
/// Maximum length of a call chain, because the length of a record has 16 bits.
const MAX_CHAIN_WORDS: usize = 8000;
/// Size of a program's name in bytes, including its NUL (`TASK_COMM_LEN`).
const COMM_BYTES: usize = 16;
/// Strings of features are padded to a multiple of this (`NAME_ALIGN`).
const TEXT_ALIGN: usize = 64;
/// `PERF_CONTEXT_KERNEL` and `PERF_CONTEXT_USER`: mode of the following calls.
const KERNEL_CONTEXT: u64 = -128_i64 as u64;
const USER_CONTEXT: u64 = -512_i64 as u64;
/// `PROT_READ`, `PROT_EXEC`.
const PROT_READ: u32 = 1;
const PROT_EXEC: u32 = 4;

/// Flags of all events: mappings and program names are recorded, with times.
const FLAGS: u64 = flag::SAMPLE_ID_ALL
    | flag::MMAP
    | flag::MMAP2
    | flag::MMAP_DATA
    | flag::COMM
    | flag::COMM_EXEC
    | flag::TASK
    | flag::INHERIT;

/// Fields of every sample.
const BASE_FIELDS: u64 =
    sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::PERIOD;

/// Columns that determine the fields of samples.
const COLUMNS: &[&str] = &[
    "event",
    "ip",
    "cpu",
    "addr",
    "phys",
    "kind",
    "source",
    "latency_cycles",
    "caller",
];

/// Result of writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfWritten {
    /// Number of samples.
    pub samples: u64,
    /// Number of samples whose outermost calls did not fit into a record.
    pub truncated: u64,
    /// Parts of the recording that could not be read, as messages.
    pub problems: Vec<String>,
}

/// Writes the samples of a recording, or only those of one event, as a perf.data file.
///
/// # Errors
/// There is no such sample, or reading or writing failed.
pub fn write_perf<W: Write + Seek>(
    recording: &Recording,
    event: Option<EventId>,
    out: &mut W,
) -> Result<PerfWritten, Error> {
    let mut written = PerfWritten::default();
    let fields = SampleFields::scan(recording, event, &mut written.problems)?;
    if fields.samples.is_empty() {
        return Err(Error::NoSamples);
    }
    let events = events(recording.manifest(), &fields);
    let head = FileHead::new(&events);
    out.write_all(&head.bytes(0))?;
    records(recording, event, &fields, &events, out, &mut written)?;
    let end = out.stream_position()?;
    out.write_all(&features(recording.manifest(), &events, end))?;
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&head.bytes(end - head.data_at))?;
    out.seek(SeekFrom::End(0))?;
    Ok(written)
}

/// Fields of the recording's samples.
#[derive(Default)]
struct SampleFields {
    sample_type: u64,
    /// Number of samples by event.
    samples: BTreeMap<EventId, u64>,
    /// Whether there are kernel samples. Otherwise perf must not look for the kernel's symbols.
    in_kernel: bool,
}

impl SampleFields {
    fn scan(
        recording: &Recording,
        event: Option<EventId>,
        problems: &mut Vec<String>,
    ) -> Result<SampleFields, Error> {
        let selection = Selection::all().columns(COLUMNS);
        let mut fields = SampleFields {
            sample_type: BASE_FIELDS,
            ..SampleFields::default()
        };
        recording.for_each_intact_batch(&selection, problems, |rows: &[Sample]| {
            for row in rows.iter().filter(|row| is_wanted(row, event)) {
                *fields.samples.entry(row.event).or_default() += 1;
                fields.sample_type |= has(row);
                fields.in_kernel |= is_kernel_address(row.ip.0);
            }
        })?;
        Ok(fields)
    }
}

fn is_wanted(row: &Sample, event: Option<EventId>) -> bool {
    event.is_none_or(|event| row.event == event)
}

/// Returns the fields for which a sample has a value.
fn has(row: &Sample) -> u64 {
    let knows_access = row.kind != AccessKind::Unknown || row.source != DataSource::Unknown;
    let fields = [
        (row.cpu.is_some(), sample::CPU),
        (row.addr.is_some(), sample::ADDR),
        (row.phys.is_some(), sample::PHYS_ADDR),
        (row.caller.is_some(), sample::CALLCHAIN),
        (row.latency_cycles > 0, sample::WEIGHT),
        (knows_access, sample::DATA_SRC),
    ];
    let known = fields.iter().filter(|(there, _)| *there);
    known.fold(0, |all, (_, field)| all | field)
}

/// An event of the file. Its ID is its index plus one.
struct ExportedEvent {
    attr: Attr,
    name: String,
    of: EventId,
}

fn events(manifest: &Manifest, fields: &SampleFields) -> Vec<ExportedEvent> {
    let event = |&id: &EventId| {
        let def = manifest.events.iter().find(|def| def.id == id);
        let name = def.map_or_else(|| format!("event-{}", id.0), |def| def.name.clone());
        let named = def
            .filter(|def| is_kernel_event(def))
            .and_then(|def| builtin::find(def.name.split(':').next().unwrap_or_default()));
        let (kind, config) = named.map_or((kind::RAW, id.0.into()), |n| (n.kind, n.config));
        ExportedEvent {
            attr: Attr {
                size: ATTR_BYTES as u32,
                period: 1,
                sample_type: fields.sample_type,
                flags: if fields.in_kernel {
                    FLAGS
                } else {
                    FLAGS | flag::EXCLUDE_KERNEL
                },
                ..Attr::new(kind, config)
            },
            name,
            of: id,
        }
    };
    fields.samples.keys().map(event).collect()
}

/// Returns whether the kernel counts this event. `instructions` of a model is a different event.
fn is_kernel_event(def: &EventDef) -> bool {
    def.provenance != memgauge_trace::Provenance::Modelled
}

/// Appends little-endian numbers.
trait PutLittleEndian {
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
}

impl PutLittleEndian for Vec<u8> {
    fn u16(&mut self, value: u16) {
        self.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend(value.to_le_bytes());
    }
}

/// Appends an attribute: its first [`ATTR_BYTES`] bytes.
fn put_attr(out: &mut Vec<u8>, attr: &Attr) {
    let start = out.len();
    out.u32(attr.kind);
    out.u32(attr.size);
    for value in [
        attr.config,
        attr.period,
        attr.sample_type,
        attr.read_format,
        attr.flags,
    ] {
        out.u64(value);
    }
    out.resize(start + ATTR_BYTES, 0);
}

/// A section of the file.
#[derive(Clone, Copy, Debug, Default)]
struct FileSection {
    offset: u64,
    bytes: u64,
}

/// IDs and attributes, and the position of the records.
struct FileHead {
    ids_and_attrs: Vec<u8>,
    attrs: FileSection,
    data_at: u64,
}

impl FileHead {
    fn new(events: &[ExportedEvent]) -> FileHead {
        let mut bytes = Vec::new();
        (1..=events.len() as u64).for_each(|id| bytes.u64(id));
        let attrs_at = HEADER_BYTES + bytes.len() as u64;
        for (at, event) in (HEADER_BYTES..).step_by(8).zip(events) {
            put_attr(&mut bytes, &event.attr);
            bytes.u64(at);
            bytes.u64(8);
        }
        let data_at = HEADER_BYTES + bytes.len() as u64;
        FileHead {
            ids_and_attrs: bytes,
            attrs: FileSection {
                offset: attrs_at,
                bytes: data_at - attrs_at,
            },
            data_at,
        }
    }

    /// Returns the head of a file with `data` bytes of records.
    fn bytes(&self, data: u64) -> Vec<u8> {
        let mut out = b"PERFILE2".to_vec();
        let features = [
            HOSTNAME, OSRELEASE, VERSION, ARCH, NRCPUS, CPUDESC, TOTAL_MEM, CMDLINE, EVENT_DESC,
        ];
        let features = features.iter().fold(0, |bits, feature| bits | 1 << feature);
        let attr_bytes = ATTR_BYTES as u64 + 16;
        let data = FileSection {
            offset: self.data_at,
            bytes: data,
        };
        let sections = [self.attrs, data, FileSection::default()];
        out.u64(HEADER_BYTES);
        out.u64(attr_bytes);
        for section in sections {
            out.u64(section.offset);
            out.u64(section.bytes);
        }
        [features, 0, 0, 0]
            .into_iter()
            .for_each(|bits| out.u64(bits));
        out.extend(&self.ids_and_attrs);
        out
    }
}

/// Returns the positions and contents of the features. They start at `at`.
fn features(manifest: &Manifest, events: &[ExportedEvent], at: u64) -> Vec<u8> {
    let host = &manifest.host;
    let cpus = host.cpus.max(1);
    let number32 = |numbers: &[u32]| {
        let mut bytes = Vec::new();
        numbers.iter().for_each(|&number| bytes.u32(number));
        bytes
    };
    let contents = [
        text(&host.name),
        text(&host.kernel),
        text(&manifest.recorder),
        text("x86_64"),
        number32(&[cpus, cpus]),
        text(&processor(manifest)),
        (host.memory_bytes / 1024).to_le_bytes().to_vec(),
        command(&manifest.command),
        descriptions(events),
    ];
    let mut place = at + 16 * contents.len() as u64;
    let mut out = Vec::new();
    for content in &contents {
        out.u64(place);
        out.u64(content.len() as u64);
        place += content.len() as u64;
    }
    contents.iter().for_each(|content| out.extend(content));
    out
}

/// Returns the processor of the events. The format has no field for a model.
fn processor(manifest: &Manifest) -> String {
    match &manifest.machine {
        Some(machine) => format!("{}{}", MachineFacts::MODELLED, machine.name),
        None => manifest.host.cpu.clone(),
    }
}

/// Returns a string with its length, which includes the padding.
fn text(value: &str) -> Vec<u8> {
    let length = (value.len() + 1).next_multiple_of(TEXT_ALIGN);
    let mut out = Vec::new();
    out.u32(length as u32);
    out.extend(value.as_bytes());
    out.resize(4 + length, 0);
    out
}

fn command(words: &[String]) -> Vec<u8> {
    let mut out = Vec::new();
    out.u32(words.len() as u32);
    words.iter().for_each(|word| out.extend(text(word)));
    out
}

/// Returns the names of the events.
fn descriptions(events: &[ExportedEvent]) -> Vec<u8> {
    let mut out = Vec::new();
    out.u32(events.len() as u32);
    out.u32(ATTR_BYTES as u32);
    for (id, event) in (1..).zip(events) {
        put_attr(&mut out, &event.attr);
        out.u32(1);
        out.extend(text(&event.name));
        out.u64(id);
    }
    out
}

/// A record being built: header and body.
struct RecordBuilder(Vec<u8>);

impl RecordBuilder {
    fn new(kind: u32, misc: u16) -> RecordBuilder {
        let mut bytes = Vec::new();
        bytes.u32(kind);
        bytes.u16(misc);
        bytes.u16(0);
        RecordBuilder(bytes)
    }

    /// Appends a string, padded with zeros to a multiple of 8 bytes.
    fn text(&mut self, text: &[u8]) {
        // A path contains no NUL and is shorter than this.
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        self.0.extend(&text[..text.len().min(4095)]);
        self.0.push(0);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    /// Appends the trailer of records other than samples.
    fn trailer(&mut self, pid: u32, tid: u32, time_ns: u64, sample_type: u64) {
        self.0.u32(pid);
        self.0.u32(tid);
        self.0.u64(time_ns);
        if sample_type & sample::CPU != 0 {
            self.0.u64(0);
        }
        self.0.u64(1);
    }

    fn write(mut self, out: &mut dyn Write) -> Result<(), Error> {
        let length = self.0.len() as u16;
        self.0[6..8].copy_from_slice(&length.to_le_bytes());
        out.write_all(&self.0)?;
        Ok(())
    }
}

fn records<W: Write + Seek>(
    recording: &Recording,
    event: Option<EventId>,
    fields: &SampleFields,
    events: &[ExportedEvent],
    out: &mut W,
    written: &mut PerfWritten,
) -> Result<(), Error> {
    let all = Selection::all();
    let mut side = Vec::new();
    let sample_type = fields.sample_type;
    recording.for_each_intact_batch(&all, &mut written.problems, |rows: &[Thread]| {
        rows.iter()
            .for_each(|row| thread_records(row, sample_type, &mut side));
    })?;
    recording.for_each_intact_batch(&all, &mut written.problems, |rows: &[Module]| {
        // perf records only new mappings.
        let ends = |row: &Module| [Module::EXEC, Module::UNMAPPED].contains(&row.path.as_str());
        let is_part = |row: &Module| row.file_offset & Module::THREAD_LOCAL != 0;
        let maps = rows.iter().filter(|row| !ends(row) && !is_part(row));
        side.extend(maps.map(|row| (row.time_ns, mapping(row, sample_type))));
    })?;
    side.sort_by_key(|(time_ns, _)| *time_ns);
    for (_, body) in side {
        body.write(out)?;
    }
    let mut calls = Vec::new();
    recording.for_each_intact_batch(&all, &mut written.problems, |rows: &[Frame]| {
        for row in rows {
            // Frame IDs are consecutive. If a part is missing, its frames have no callers.
            let number = row.id.0 as usize;
            if number >= calls.len() && row.id.0 < memgauge_recording::stacks::MAX_FRAMES {
                calls.resize(number + 1, (None, VirtAddr(0)));
                calls[number] = (row.caller.filter(|caller| caller.0 < row.id.0), row.ip);
            }
        }
    })?;
    let mut failed = Ok(());
    let PerfWritten {
        samples,
        truncated,
        problems,
    } = written;
    recording.for_each_intact_batch(&all, problems, |rows: &[Sample]| {
        for row in rows.iter().filter(|row| is_wanted(row, event)) {
            let id = 1 + events.iter().position(|e| e.of == row.event).unwrap_or(0) as u64;
            let (chain, is_cut) = chain(row, &calls);
            *samples += 1;
            *truncated += u64::from(is_cut);
            if failed.is_ok() {
                failed = sample_record(row, id, &chain, sample_type).write(out);
            }
        }
    })?;
    failed
}

/// Appends records for the name of a thread's program, at its start, and for its end.
fn thread_records(row: &Thread, sample_type: u64, out: &mut Vec<(u64, RecordBuilder)>) {
    let (pid, tid) = (row.pid.0, row.tid.0);
    let name = row.program.rsplit('/').next().unwrap_or_default();
    let name = &name.as_bytes()[..name.len().min(COMM_BYTES - 1)];
    // A further thread only has a name. With the flag, readers would forget the process's mappings.
    let flags = if row.tid.0 == row.pid.0 {
        misc::DATA_OR_EXEC
    } else {
        0
    };
    let mut body = RecordBuilder::new(record::COMM, flags);
    body.0.u32(pid);
    body.0.u32(tid);
    body.text(name);
    body.trailer(pid, tid, row.start_ns, sample_type);
    out.push((row.start_ns, body));
    if let Some(end_ns) = row.end_ns {
        let mut body = RecordBuilder::new(record::EXIT, 0);
        for id in [row.pid.0, row.parent_pid.0, row.tid.0, row.parent_pid.0] {
            body.0.u32(id);
        }
        body.0.u64(end_ns);
        body.trailer(pid, tid, end_ns, sample_type);
        out.push((end_ns, body));
    }
}

fn mapping(row: &Module, sample_type: u64) -> RecordBuilder {
    let build_id = from_hex(&row.build_id);
    let mut bits = if row.executable {
        0
    } else {
        misc::DATA_OR_EXEC
    };
    bits |= if build_id.is_some() {
        misc::MMAP_BUILD_ID
    } else {
        0
    };
    // PERF_RECORD_MISC_USER.
    let mut body = RecordBuilder::new(record::MMAP2, bits | 2);
    body.0.u32(row.pid.0);
    body.0.u32(row.pid.0);
    body.0.u64(row.start.0);
    body.0.u64(row.end.0 - row.start.0.min(row.end.0));
    body.0.u64(row.file_offset);
    let at = body.0.len();
    if let Some(id) = build_id {
        body.0.push(id.len() as u8);
        body.0.extend([0; 3]);
        body.0.extend(id);
    }
    // Otherwise this is device, inode and generation, which a recording lacks.
    body.0.resize(at + 24, 0);
    body.0.u32(if row.executable {
        PROT_READ | PROT_EXEC
    } else {
        PROT_READ
    });
    body.0.u32(0);
    let path = match row.path.as_str() {
        "" | "[anon]" => "//anon",
        path => path,
    };
    body.text(path.as_bytes());
    body.trailer(row.pid.0, row.pid.0, row.time_ns, sample_type);
    body
}

/// Parses a build ID of up to 20 bytes.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    let digits = digits.filter(|d| !d.is_empty() && d.len() % 2 == 0 && d.len() <= 40)?;
    Some(digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect())
}

fn is_kernel_address(address: u64) -> bool {
    address >> 63 == 1
}

/// Returns the call chain in the kernel's format, and whether it is truncated: return addresses
/// after a mark of their mode. The first address of a mode is an exact address.
fn chain(row: &Sample, calls: &[(Option<FrameId>, VirtAddr)]) -> (Vec<u64>, bool) {
    let mode = |address| {
        if is_kernel_address(address) {
            KERNEL_CONTEXT
        } else {
            USER_CONTEXT
        }
    };
    let mut words = vec![mode(row.ip.0), row.ip.0];
    let mut of = is_kernel_address(row.ip.0);
    let mut at = row.caller;
    while let Some(&(caller, VirtAddr(ip))) = at.and_then(|id| calls.get(id.0 as usize)) {
        if words.len() >= MAX_CHAIN_WORDS {
            return (words, true);
        }
        if is_kernel_address(ip) == of {
            words.push(ip.saturating_add(1));
        } else {
            of = is_kernel_address(ip);
            words.extend([mode(ip), ip]);
        }
        at = caller;
    }
    (words, false)
}

fn sample_record(row: &Sample, id: u64, chain: &[u64], sample_type: u64) -> RecordBuilder {
    let in_mode = if is_kernel_address(row.ip.0) { 1 } else { 2 };
    let mut body = RecordBuilder::new(record::SAMPLE, in_mode);
    let out = &mut body.0;
    let has = |field| sample_type & field != 0;
    out.u64(id);
    out.u64(row.ip.0);
    out.u32(row.pid.0);
    out.u32(row.tid.0);
    out.u64(row.time_ns);
    if has(sample::ADDR) {
        out.u64(row.addr.map_or(0, |addr| addr.0));
    }
    if has(sample::CPU) {
        out.u64(row.cpu.map_or(0, |cpu| cpu.0.into()));
    }
    out.u64(row.period);
    if has(sample::CALLCHAIN) {
        out.u64(chain.len() as u64);
        chain.iter().for_each(|&word| out.u64(word));
    }
    if has(sample::WEIGHT) {
        out.u64(row.latency_cycles.into());
    }
    if has(sample::DATA_SRC) {
        out.u64(DataSrc::new(row.kind, row.source).0);
    }
    if has(sample::PHYS_ADDR) {
        out.u64(row.phys.map_or(0, |phys| phys.0));
    }
    body
}
