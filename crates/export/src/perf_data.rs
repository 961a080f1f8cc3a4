//! A `perf.data` file: the rows of a recording as the records that `perf record` writes.
//!
//! ```text
//! header (104) │ ids │ attributes │ COMM, MMAP2, EXIT …, SAMPLE … │ features
//! ```
//!
//! All events have the same fields of samples, those that any sample of the recording has.
//! An event keeps its name. perf knows no modelled events, so those are of the kind "raw".
//! perf names code by the files on its own machine, not by the recording.

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

/// Bytes of the file's header.
const HEADER: u64 = 104;
/// Bytes of an attribute: those of `PERF_ATTR_SIZE_VER5`, which perf reads since Linux 4.1.
const ATTR: usize = 112;
/// Most calls of a sample: a record's length has 16 bits.
const MOST_CALLS: usize = 8000;
/// Bytes of a program's name, its end included (`TASK_COMM_LEN`).
const COMM: usize = 16;
/// Texts of features are as long as a multiple of this (`NAME_ALIGN`).
const TEXT: usize = 64;
/// `PERF_CONTEXT_KERNEL` and `PERF_CONTEXT_USER`: calls of which mode follow.
const IN_KERNEL: u64 = -128_i64 as u64;
const IN_USER: u64 = -512_i64 as u64;
/// `PROT_READ`, `PROT_EXEC`.
const READABLE: u32 = 1;
const EXECUTABLE: u32 = 4;

/// Flags of all events: mappings and names of programs are told, with times.
const FLAGS: u64 = flag::SAMPLE_ID_ALL
    | flag::MMAP
    | flag::MMAP2
    | flag::MMAP_DATA
    | flag::COMM
    | flag::COMM_EXEC
    | flag::TASK
    | flag::INHERIT;

/// Fields that every sample has.
const ALWAYS: u64 = sample::IDENTIFIER | sample::IP | sample::TID | sample::TIME | sample::PERIOD;

/// Columns that say which fields samples have.
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

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfWritten {
    /// Samples.
    pub samples: u64,
    /// Samples whose outermost calls are left out: a record has no room for more.
    pub cut: u64,
    /// Parts of the recording that could not be read, in words.
    pub problems: Vec<String>,
}

/// Writes a recording's samples as a file of perf; those of one event, where it is named.
///
/// # Errors
/// There is no such sample, or reading or writing failed.
pub fn write_perf<W: Write + Seek>(
    recording: &Recording,
    event: Option<EventId>,
    out: &mut W,
) -> Result<PerfWritten, Error> {
    let mut written = PerfWritten::default();
    let fields = Fields::of(recording, event, &mut written.problems)?;
    if fields.samples.is_empty() {
        return Err(Error::NoSamples);
    }
    let events = events(recording.manifest(), &fields);
    let head = Head::of(&events);
    out.write_all(&head.bytes(0))?;
    records(recording, event, (&fields, &events), out, &mut written)?;
    let end = out.stream_position()?;
    out.write_all(&features(recording.manifest(), &events, end))?;
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&head.bytes(end - head.data_at))?;
    out.seek(SeekFrom::End(0))?;
    Ok(written)
}

/// What samples of a recording have.
#[derive(Default)]
struct Fields {
    sample_type: u64,
    /// Samples by event.
    samples: BTreeMap<EventId, u64>,
    /// Whether any is of the kernel: else perf must not look for the kernel's names.
    in_kernel: bool,
}

impl Fields {
    fn of(
        recording: &Recording,
        event: Option<EventId>,
        problems: &mut Vec<String>,
    ) -> Result<Fields, Error> {
        let selection = Selection::all().columns(COLUMNS);
        let mut fields = Fields {
            sample_type: ALWAYS,
            ..Fields::default()
        };
        recording.each_sound(&selection, problems, |rows: &[Sample]| {
            for row in rows.iter().filter(|row| is_wanted(row, event)) {
                *fields.samples.entry(row.event).or_default() += 1;
                fields.sample_type |= has(row);
                fields.in_kernel |= is_kernels(row.ip.0);
            }
        })?;
        Ok(fields)
    }
}

fn is_wanted(row: &Sample, event: Option<EventId>) -> bool {
    event.is_none_or(|event| row.event == event)
}

/// The fields that a sample has a value for.
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

/// An event of the file; its id is one more than its place.
struct Event {
    attr: Attr,
    name: String,
    of: EventId,
}

fn events(manifest: &Manifest, fields: &Fields) -> Vec<Event> {
    let event = |&id: &EventId| {
        let def = manifest.events.iter().find(|def| def.id == id);
        let name = def.map_or_else(|| format!("event-{}", id.0), |def| def.name.clone());
        let named = def
            .filter(|def| is_the_kernels(def))
            .and_then(|def| builtin::find(def.name.split(':').next().unwrap_or_default()));
        let (kind, config) = named.map_or((kind::RAW, id.0.into()), |n| (n.kind, n.config));
        Event {
            attr: Attr {
                size: ATTR as u32,
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

/// Whether an event is one of the machine: `instructions` of a model is another thing.
fn is_the_kernels(def: &EventDef) -> bool {
    def.provenance != memgauge_trace::Provenance::Modelled
}

/// Appends numbers as the file has them.
trait Put {
    fn u16(&mut self, value: u16);
    fn u32(&mut self, value: u32);
    fn u64(&mut self, value: u64);
}

impl Put for Vec<u8> {
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

/// An attribute as the file has it: its first [`ATTR`] bytes.
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
    out.resize(start + ATTR, 0);
}

/// Ids and attributes, and where the records begin.
struct Head {
    ids_and_attrs: Vec<u8>,
    attrs: (u64, u64),
    data_at: u64,
}

impl Head {
    fn of(events: &[Event]) -> Head {
        let mut bytes = Vec::new();
        (1..=events.len() as u64).for_each(|id| bytes.u64(id));
        let attrs_at = HEADER + bytes.len() as u64;
        for (at, event) in (HEADER..).step_by(8).zip(events) {
            put_attr(&mut bytes, &event.attr);
            bytes.u64(at);
            bytes.u64(8);
        }
        let data_at = HEADER + bytes.len() as u64;
        Head {
            ids_and_attrs: bytes,
            attrs: (attrs_at, data_at - attrs_at),
            data_at,
        }
    }

    /// The head of a file with so many bytes of records.
    fn bytes(&self, data: u64) -> Vec<u8> {
        let mut out = b"PERFILE2".to_vec();
        let features = [
            HOSTNAME, OSRELEASE, VERSION, ARCH, NRCPUS, CPUDESC, TOTAL_MEM, CMDLINE, EVENT_DESC,
        ];
        let features = features.iter().fold(0, |bits, feature| bits | 1 << feature);
        let attr_bytes = ATTR as u64 + 16;
        let sections = [self.attrs, (self.data_at, data), (0, 0)];
        out.u64(HEADER);
        out.u64(attr_bytes);
        for (at, bytes) in sections {
            out.u64(at);
            out.u64(bytes);
        }
        [features, 0, 0, 0]
            .into_iter()
            .for_each(|bits| out.u64(bits));
        out.extend(&self.ids_and_attrs);
        out
    }
}

/// The features' places and the features, which begin at `at`.
fn features(manifest: &Manifest, events: &[Event], at: u64) -> Vec<u8> {
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

/// Where the events were counted. perf's format has no word for a model.
fn processor(manifest: &Manifest) -> String {
    match &manifest.machine {
        Some(machine) => format!("{}{}", MachineFacts::MODELLED, machine.name),
        None => manifest.host.cpu.clone(),
    }
}

/// A text with its length, which its padding is part of.
fn text(value: &str) -> Vec<u8> {
    let length = (value.len() + 1).next_multiple_of(TEXT);
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

/// The events' names.
fn descriptions(events: &[Event]) -> Vec<u8> {
    let mut out = Vec::new();
    out.u32(events.len() as u32);
    out.u32(ATTR as u32);
    for (id, event) in (1..).zip(events) {
        put_attr(&mut out, &event.attr);
        out.u32(1);
        out.extend(text(&event.name));
        out.u64(id);
    }
    out
}

/// A record under way: its header, then its body.
struct Body(Vec<u8>);

impl Body {
    fn new(kind: u32, misc: u16) -> Body {
        let mut bytes = Vec::new();
        bytes.u32(kind);
        bytes.u16(misc);
        bytes.u16(0);
        Body(bytes)
    }

    /// A text that ends with zeros, at a multiple of 8 bytes.
    fn text(&mut self, text: &[u8]) {
        // What ends a text early, or is too long for a record, is no path of a file.
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        self.0.extend(&text[..text.len().min(4095)]);
        self.0.push(0);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }

    /// What ends each record that is no sample.
    fn trailer(&mut self, (pid, tid): (u32, u32), time_ns: u64, sample_type: u64) {
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
    (fields, events): (&Fields, &[Event]),
    out: &mut W,
    written: &mut PerfWritten,
) -> Result<(), Error> {
    let all = Selection::all();
    let mut side = Vec::new();
    let sample_type = fields.sample_type;
    recording.each_sound(&all, &mut written.problems, |rows: &[Thread]| {
        rows.iter()
            .for_each(|row| names(row, sample_type, &mut side));
    })?;
    recording.each_sound(&all, &mut written.problems, |rows: &[Module]| {
        // perf's records say only what is mapped.
        let ends = |row: &Module| [Module::EXEC, Module::UNMAPPED].contains(&row.path.as_str());
        let maps = rows.iter().filter(|row| !ends(row));
        side.extend(maps.map(|row| (row.time_ns, mapping(row, sample_type))));
    })?;
    side.sort_by_key(|(time_ns, _)| *time_ns);
    for (_, body) in side {
        body.write(out)?;
    }
    let mut calls = Vec::new();
    recording.each_sound(&all, &mut written.problems, |rows: &[Frame]| {
        for row in rows {
            // Numbers rise by one; where a part is missing, its calls lead nowhere.
            let number = row.id.0 as usize;
            if number >= calls.len() && row.id.0 < memgauge_recording::stacks::MOST_FRAMES {
                calls.resize(number + 1, (None, VirtAddr(0)));
                calls[number] = (row.caller.filter(|caller| caller.0 < row.id.0), row.ip);
            }
        }
    })?;
    let mut failed = Ok(());
    let PerfWritten {
        samples,
        cut,
        problems,
    } = written;
    recording.each_sound(&all, problems, |rows: &[Sample]| {
        for row in rows.iter().filter(|row| is_wanted(row, event)) {
            let id = 1 + events.iter().position(|e| e.of == row.event).unwrap_or(0) as u64;
            let (chain, is_cut) = chain(row, &calls);
            *samples += 1;
            *cut += u64::from(is_cut);
            if failed.is_ok() {
                failed = sampled(row, id, &chain, sample_type).write(out);
            }
        }
    })?;
    failed
}

/// The name of a thread's program, from its start, and its end.
fn names(row: &Thread, sample_type: u64, out: &mut Vec<(u64, Body)>) {
    let task = (row.pid.0, row.tid.0);
    let name = row.program.rsplit('/').next().unwrap_or_default();
    let name = &name.as_bytes()[..name.len().min(COMM - 1)];
    let mut body = Body::new(record::COMM, misc::DATA_OR_EXEC);
    body.0.u32(task.0);
    body.0.u32(task.1);
    body.text(name);
    body.trailer(task, row.start_ns, sample_type);
    out.push((row.start_ns, body));
    if let Some(end_ns) = row.end_ns {
        let mut body = Body::new(record::EXIT, 0);
        for id in [row.pid.0, row.parent_pid.0, row.tid.0, row.parent_pid.0] {
            body.0.u32(id);
        }
        body.0.u64(end_ns);
        body.trailer(task, end_ns, sample_type);
        out.push((end_ns, body));
    }
}

fn mapping(row: &Module, sample_type: u64) -> Body {
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
    // In user space.
    let mut body = Body::new(record::MMAP2, bits | 2);
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
    // Else device, inode and generation, which a recording has not.
    body.0.resize(at + 24, 0);
    body.0.u32(if row.executable {
        READABLE | EXECUTABLE
    } else {
        READABLE
    });
    body.0.u32(0);
    let path = match row.path.as_str() {
        "" | "[anon]" => "//anon",
        path => path,
    };
    body.text(path.as_bytes());
    body.trailer((row.pid.0, row.pid.0), row.time_ns, sample_type);
    body
}

/// A build id of up to 20 bytes.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    let digits = digits.filter(|d| !d.is_empty() && d.len() % 2 == 0 && d.len() <= 40)?;
    Some(digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect())
}

fn is_kernels(address: u64) -> bool {
    address >> 63 == 1
}

/// The call chain as the kernel writes it, and whether it is cut: return addresses, after a
/// mark of the mode that they are of. The first word of a mode is a place, no return address.
fn chain(row: &Sample, calls: &[(Option<FrameId>, VirtAddr)]) -> (Vec<u64>, bool) {
    let mode = |address| {
        if is_kernels(address) {
            IN_KERNEL
        } else {
            IN_USER
        }
    };
    let mut words = vec![mode(row.ip.0), row.ip.0];
    let mut of = is_kernels(row.ip.0);
    let mut at = row.caller;
    while let Some(&(caller, VirtAddr(ip))) = at.and_then(|id| calls.get(id.0 as usize)) {
        if words.len() >= MOST_CALLS {
            return (words, true);
        }
        if is_kernels(ip) == of {
            words.push(ip.saturating_add(1));
        } else {
            of = is_kernels(ip);
            words.extend([mode(ip), ip]);
        }
        at = caller;
    }
    (words, false)
}

fn sampled(row: &Sample, id: u64, chain: &[u64], sample_type: u64) -> Body {
    let in_mode = if is_kernels(row.ip.0) { 1 } else { 2 };
    let mut body = Body::new(record::SAMPLE, in_mode);
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
        out.u64(DataSrc::of(row.kind, row.source).0);
    }
    if has(sample::PHYS_ADDR) {
        out.u64(row.phys.map_or(0, |phys| phys.0));
    }
    body
}
