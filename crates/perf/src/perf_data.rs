//! Reads `perf.data`: the file that `perf record` writes, or its stream.
//!
//! ```text
//! file    header (104) │ ids │ attributes │ records … │ features
//! stream  magic, 16 │ attributes and features as records, then records …
//! ```
//!
//! No field is trusted. If data is truncated, too large or overlapping, reading ends with a note of how
//! far the file was valid. Memory use depends neither on the file's size nor on sizes in the file.
//!
//! Rejected: the crate linux-perf-data, which drops weights and data sources. A memory profiler needs
//! them.

mod features;
mod tracing;
mod unpack;

use std::io::{self, Read, Seek, SeekFrom};

use crate::abi::{Attr, kind};
use crate::record::{FieldParser, HEADER_BYTES, Header, Layout};
use crate::{Error, IdMap, Result};

pub use features::{Facts, feature};
use unpack::Unpacker;

/// An event of the file.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FileEvent {
    /// As it was opened.
    pub attr: Attr,
    /// Its name; empty if the file does not have it.
    pub name: String,
}

/// The events with their IDs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Events {
    /// In the file's order.
    pub all: Vec<FileEvent>,
    layouts: Vec<Layout>,
    by_id: IdMap<u64, usize>,
    /// Names of tracepoints by their ID, which is the event's `config`.
    tracepoints: IdMap<u64, String>,
}

/// Maximum number of events and IDs, more than any machine has.
const MAX_EVENTS: usize = 1 << 14;
const MAX_IDS: usize = 1 << 22;
/// The file ends before its records do, between two records or within one.
const RECORDS_TRUNCATED: &str = "the records are cut off";
const LAST_RECORD_TRUNCATED: &str = "the last record is cut off";

impl Events {
    /// Adds an event with its IDs. Events and IDs above the maximum are dropped.
    pub fn add(&mut self, attr: Attr, ids: impl Iterator<Item = u64>) {
        if self.all.len() >= MAX_EVENTS {
            return;
        }
        let index = self.all.len();
        let room = MAX_IDS.saturating_sub(self.by_id.len());
        self.by_id.extend(ids.take(room).map(|id| (id, index)));
        self.layouts.push(Layout::new(&attr));
        let name = match attr.kind {
            kind::TRACEPOINT => self.tracepoints.get(&attr.config).cloned(),
            _ => None,
        };
        self.all.push(FileEvent {
            attr,
            name: name.unwrap_or_default(),
        });
    }

    /// Names the events of a tracepoint that have no name yet, including events that are added later.
    fn name_tracepoint(&mut self, id: u64, name: String) {
        let is_of = |event: &&mut FileEvent| {
            event.name.is_empty() && event.attr.kind == kind::TRACEPOINT && event.attr.config == id
        };
        for event in self.all.iter_mut().filter(is_of) {
            event.name.clone_from(&name);
        }
        if self.tracepoints.len() < MAX_EVENTS {
            self.tracepoints.insert(id, name);
        }
    }

    /// Index of the event with this ID.
    pub fn index_of(&self, id: u64) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Index of the event of a sample, and its layout.
    #[inline]
    pub fn event_of_sample(&self, body: &[u8]) -> Option<(usize, &Layout)> {
        let first = self.layouts.first()?;
        if self.layouts.len() == 1 {
            return Some((0, first));
        }
        // perf chooses the fields so that the ID has the same offset in all events.
        let id = FieldParser(body.get(first.id_offset()?..)?).u64()?;
        let number = self.index_of(id)?;
        Some((number, &self.layouts[number]))
    }

    /// Layout of records that are not samples: that of the first event, since perf gives all events the
    /// same trailer.
    pub fn side_band_layout(&self) -> Option<&Layout> {
        self.layouts.first()
    }

    fn set_name(&mut self, id: u64, name: &str) {
        if let Some(number) = self.index_of(id) {
            name.clone_into(&mut self.all[number].name);
        }
    }
}

/// Why reading stopped before the end of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// Problems in words.
    pub problems: Vec<String>,
    /// Number of bytes that were not read.
    pub unread_bytes: u64,
}

/// Receives the records of a file.
pub trait Visit {
    /// Error of the receiver.
    type Error: From<Error>;

    /// Receives a record of the kernel. `events` has all events that this record needs.
    fn record(
        &mut self,
        events: &Events,
        header: Header,
        body: &[u8],
    ) -> std::result::Result<(), Self::Error>;

    /// Called when perf has read all rings once. No record after the next call is older than the youngest
    /// before this one. Reading stops if it returns false.
    fn round(&mut self) -> bool {
        true
    }
}

/// A file whose header has been read.
#[non_exhaustive]
pub struct PerfData<R> {
    source: R,
    /// The events. In a stream, they come with the records.
    pub events: Events,
    /// Facts about the machine. In a stream, they come with the records.
    pub facts: Facts,
    /// True if it is a stream.
    pub is_stream: bool,
    data: std::ops::Range<u64>,
    damage: Damage,
}

const MAGIC: &[u8; 8] = b"PERFILE2";
/// Version 1, which perf wrote until 2012. The rest of the layout is the same.
const MAGIC_1: &[u8; 8] = b"PERFFILE";
const SWAPPED: [&[u8; 8]; 2] = [b"2ELIFREP", b"ELIFFREP"];
const STREAM_HEADER_BYTES: u64 = 16;
const FILE_HEADER_BYTES: u64 = 104;
/// The header of the oldest files ends before the bits of their features.
const HEADER_BYTES_WITHOUT_FEATURES: u64 = 72;

fn invalid(why: impl Into<String>) -> Error {
    Error::BadInput(why.into())
}

fn unreadable(error: io::Error) -> Error {
    Error::Unreadable(error)
}

#[derive(Clone, Copy, Debug, Default)]
struct Section {
    at: u64,
    bytes: u64,
}

impl Section {
    fn parse(f: &mut FieldParser<'_>) -> Option<Section> {
        Some(Section {
            at: f.u64()?,
            bytes: f.u64()?,
        })
    }
}

impl<R: Read + Seek> PerfData<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// It is not a perf.data file, it has the other byte order, or it ends within its header.
    pub fn open(mut source: R) -> Result<PerfData<R>> {
        let mut head = [0u8; FILE_HEADER_BYTES as usize];
        let n = read_up_to(&mut source, &mut head).map_err(unreadable)?;
        let mut f = FieldParser(&head[..n]);
        let magic = f
            .bytes(8)
            .ok_or_else(|| invalid("it is too short to be perf data"))?;
        if SWAPPED.iter().any(|swapped| magic == *swapped) {
            return Err(invalid(
                "it was made on a processor of the other byte order, which memgauge does not read",
            ));
        }
        if magic != MAGIC && magic != MAGIC_1 {
            return Err(invalid(
                "it is not perf data: its first bytes are neither PERFILE2 nor PERFFILE",
            ));
        }
        let bytes = f
            .u64()
            .ok_or_else(|| invalid("it is cut off in its header"))?;
        let mut file = PerfData {
            source,
            events: Events::default(),
            facts: Facts::default(),
            is_stream: bytes == STREAM_HEADER_BYTES,
            data: STREAM_HEADER_BYTES..u64::MAX,
            damage: Damage::default(),
        };
        if !file.is_stream {
            file.read_head(bytes, f)
                .ok_or_else(|| invalid("it is cut off or damaged in its header"))?;
        }
        Ok(file)
    }

    fn read_head(&mut self, header_bytes: u64, mut f: FieldParser<'_>) -> Option<()> {
        let entry_bytes = f.u64()?;
        let attributes = Section::parse(&mut f)?;
        let data = Section::parse(&mut f)?;
        let event_types = Section::parse(&mut f)?;
        let mut present = [0u64; 4];
        if header_bytes != HEADER_BYTES_WITHOUT_FEATURES {
            for word in &mut present {
                *word = f.u64()?;
            }
        }
        let end = self.source.seek(SeekFrom::End(0)).ok()?;
        self.read_attributes(attributes, entry_bytes, end)?;
        self.read_event_types(event_types, end);
        // If perf was killed, the length is 0.
        let bytes = if data.bytes == 0 {
            end.saturating_sub(data.at)
        } else {
            data.bytes
        };
        let data_end = data.at.checked_add(bytes)?;
        self.data = data.at.min(end)..data_end.min(end);
        if data_end > end {
            self.damage.problems.push(RECORDS_TRUNCATED.to_owned());
            self.damage.unread_bytes += data_end - end;
        } else {
            self.read_features(data_end, present, end);
        }
        Some(())
    }

    fn section(&mut self, section: Section, most: u64, end: u64) -> Option<Vec<u8>> {
        let inside = section.at.checked_add(section.bytes)? <= end;
        if !inside || section.bytes > most {
            return None;
        }
        self.source.seek(SeekFrom::Start(section.at)).ok()?;
        let mut bytes = vec![0; section.bytes as usize];
        self.source.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn read_attributes(&mut self, all: Section, entry_bytes: u64, end: u64) -> Option<()> {
        const MAX_BYTES: u64 = 1 << 26;
        let ids_at = usize::try_from(entry_bytes).ok()?.checked_sub(16)?;
        let table = self.section(all, MAX_BYTES, end)?;
        for entry in table.chunks_exact(entry_bytes as usize).take(MAX_EVENTS) {
            let (attr, ids) = entry.split_at_checked(ids_at)?;
            let ids = Section::parse(&mut FieldParser(ids))?;
            let ids = self.section(ids, MAX_BYTES, end)?;
            let words = ids
                .chunks_exact(8)
                .filter_map(|word| FieldParser(word).u64());
            self.events.add(Attr::parse(attr)?, words);
        }
        (!self.events.all.is_empty()).then_some(())
    }

    /// Reads names of tracepoints from old files, which have no feature for them.
    fn read_event_types(&mut self, section: Section, end: u64) {
        const MAX_BYTES: u64 = 1 << 22;
        if section.bytes == 0 {
            return;
        }
        match self.section(section, MAX_BYTES, end) {
            Some(bytes) => bytes
                .chunks_exact(EVENT_TYPE_BYTES)
                .for_each(|entry| name_tracepoint(&mut self.events, FieldParser(entry))),
            None => self
                .damage
                .problems
                .push("the names of tracepoints are cut off".to_owned()),
        }
    }

    fn read_features(&mut self, table_at: u64, present: [u64; 4], end: u64) {
        const MAX_BYTES: u64 = 1 << 24;
        let numbers = (0..256u32).filter(|n| present[*n as usize / 64] >> (n % 64) & 1 == 1);
        for (at, number) in numbers.enumerate() {
            let entry = Section {
                at: table_at + 16 * at as u64,
                bytes: 16,
            };
            let place = self.section(entry, 16, end);
            let place = place.and_then(|bytes| Section::parse(&mut FieldParser(&bytes)));
            let Some(place) = place else {
                self.damage
                    .problems
                    .push("the table of features is cut off".to_owned());
                return;
            };
            if !features::is_read(number) {
                continue;
            }
            match self.section(place, MAX_BYTES, end) {
                Some(bytes) => self.facts.read_feature(number, &bytes, &mut self.events),
                None => self
                    .damage
                    .problems
                    .push(format!("feature {number} is cut off")),
            }
        }
    }

    /// Passes every record to `visit` in the file's order, unpacked. Returns what could not be read.
    ///
    /// # Errors
    /// Errors of `visit`, and of the system when it cannot read the file.
    pub fn read<V: Visit>(&mut self, visit: &mut V) -> std::result::Result<Damage, V::Error> {
        let start = SeekFrom::Start(self.data.start);
        self.source.seek(start).map_err(unreadable)?;
        let mut walk = FileWalk::new(self.data.end - self.data.start);
        let mut shared = SharedFacts {
            events: &mut self.events,
            facts: &mut self.facts,
        };
        let result = walk.records(&mut self.source, &mut shared, visit);
        let mut damage = std::mem::take(&mut self.damage);
        walk.damage(result, self.is_stream, &mut damage)?;
        Ok(damage)
    }

    /// Reads a file that has only records. `perf record --threads` writes one for each of its threads,
    /// next to the file with the header.
    ///
    /// # Errors
    /// As of [`PerfData::read`].
    pub fn read_further<V: Visit>(
        &mut self,
        source: &mut impl Read,
        visit: &mut V,
    ) -> std::result::Result<Damage, V::Error> {
        let mut walk = FileWalk::new(u64::MAX);
        let mut shared = SharedFacts {
            events: &mut self.events,
            facts: &mut self.facts,
        };
        let result = walk.records(source, &mut shared, visit);
        let mut damage = Damage::default();
        walk.damage(result, true, &mut damage)?;
        Ok(damage)
    }
}

/// Facts that records give about other records.
struct SharedFacts<'a> {
    events: &'a mut Events,
    facts: &'a mut Facts,
}

fn read_up_to(source: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < into.len() {
        match source.read(&mut into[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

/// Records that perf itself adds (`tools/lib/perf/include/perf/event.h`).
mod user {
    pub(super) const FIRST: u32 = 64;
    pub(super) const ATTR: u32 = 64;
    pub(super) const EVENT_TYPE: u32 = 65;
    pub(super) const TRACING_DATA: u32 = 66;
    pub(super) const FINISHED_ROUND: u32 = 68;
    pub(super) const AUXTRACE: u32 = 71;
    pub(super) const EVENT_UPDATE: u32 = 78;
    pub(super) const FEATURE: u32 = 80;
    pub(super) const COMPRESSED: u32 = 81;
    pub(super) const COMPRESSED_2: u32 = 83;
    /// Records of later versions are ignored below this number.
    pub(super) const PLAUSIBLE: u32 = 256;
}

/// Number of bytes that are read at a time. A record has at most 64 KiB. The buffer fits into the L2
/// cache, so it is parsed from there.
const BUFFER_BYTES: usize = 1 << 18;

enum WalkEnd<E> {
    Damaged(String),
    Failed(E),
    /// The receiver wants no more records.
    Enough,
}

impl<E> From<E> for WalkEnd<E> {
    fn from(e: E) -> WalkEnd<E> {
        WalkEnd::Failed(e)
    }
}

struct FileWalk {
    buffer: Vec<u8>,
    filled: std::ops::Range<usize>,
    /// Bytes of the data that are not in the buffer yet.
    left: u64,
    unpacker: Unpacker,
}

type WalkResult<T, E> = std::result::Result<T, WalkEnd<E>>;

impl FileWalk {
    /// Makes `bytes` bytes available. Returns false at the end of the data.
    fn fill<E: From<Error>>(
        &mut self,
        source: &mut impl Read,
        bytes: usize,
    ) -> WalkResult<bool, E> {
        if self.filled.len() >= bytes {
            return Ok(true);
        }
        self.buffer.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        let room = (self.buffer.len() - self.filled.end) as u64;
        let wanted = room.min(self.left) as usize;
        let into = &mut self.buffer[self.filled.end..self.filled.end + wanted];
        let n = read_up_to(source, into).map_err(|e| WalkEnd::Failed(unreadable(e).into()))?;
        self.filled.end += n;
        self.left = if n < wanted { 0 } else { self.left - n as u64 };
        Ok(self.filled.len() >= bytes)
    }

    fn new(bytes: u64) -> FileWalk {
        FileWalk {
            buffer: vec![0; BUFFER_BYTES],
            filled: 0..0,
            left: bytes,
            unpacker: Unpacker::default(),
        }
    }

    /// Returns why it ended. If the source's length is unknown, only the bytes already read are counted as
    /// lost.
    fn damage<E>(
        &self,
        result: WalkResult<(), E>,
        endless: bool,
        damage: &mut Damage,
    ) -> std::result::Result<(), E> {
        match result {
            Ok(()) | Err(WalkEnd::Enough) => Ok(()),
            Err(WalkEnd::Failed(e)) => Err(e),
            Err(WalkEnd::Damaged(why)) => {
                let was_told = why == LAST_RECORD_TRUNCATED
                    && damage.problems.iter().any(|p| p == RECORDS_TRUNCATED);
                damage.problems.extend((!was_told).then_some(why));
                let behind = if endless { 0 } else { self.left.min(1 << 62) };
                damage.unread_bytes += behind + self.filled.len() as u64;
                Ok(())
            }
        }
    }

    fn records<V: Visit>(
        &mut self,
        source: &mut impl Read,
        shared: &mut SharedFacts<'_>,
        visit: &mut V,
    ) -> WalkResult<(), V::Error> {
        loop {
            if !self.fill(source, HEADER_BYTES)? {
                return match self.filled.is_empty() {
                    true => Ok(()),
                    false => Err(WalkEnd::Damaged(LAST_RECORD_TRUNCATED.to_owned())),
                };
            }
            let header = Header::parse(&self.buffer[self.filled.clone()])
                .expect("SANITY: as many bytes were just made available");
            let size = usize::from(header.size);
            if size < HEADER_BYTES || header.kind == 0 || header.kind > user::PLAUSIBLE {
                return Err(WalkEnd::Damaged(format!(
                    "there is no record of kind {} and {} bytes",
                    header.kind, header.size
                )));
            }
            if !self.fill(source, size)? {
                return Err(WalkEnd::Damaged(LAST_RECORD_TRUNCATED.to_owned()));
            }
            let start = self.filled.start;
            self.filled.start += size;
            let record = start + HEADER_BYTES..start + size;
            if header.kind < user::FIRST {
                visit.record(shared.events, header, &self.buffer[record])?;
            } else {
                self.read_synthetic_record((source, shared), header, record, visit)?;
            }
        }
    }

    /// Reads a record that perf wrote itself, not the kernel.
    fn read_synthetic_record<V: Visit>(
        &mut self,
        (source, shared): (&mut impl Read, &mut SharedFacts<'_>),
        header: Header,
        record: std::ops::Range<usize>,
        visit: &mut V,
    ) -> WalkResult<(), V::Error> {
        let mut body = FieldParser(&self.buffer[record]);
        let cut = || WalkEnd::Damaged(format!("a record of kind {} is cut off", header.kind));
        match header.kind {
            user::ATTR => attribute(shared.events, body).ok_or_else(cut)?,
            user::EVENT_TYPE => name_tracepoint(shared.events, body),
            user::EVENT_UPDATE => name_event(shared.events, body),
            user::FEATURE => {
                let number = body.u64().ok_or_else(cut)?;
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                shared.facts.read_feature(number, body.0, shared.events);
            }
            user::TRACING_DATA => {
                let bytes = body.u32().ok_or_else(cut)?;
                let padded = u64::from(bytes).next_multiple_of(8);
                let data = self.bytes_between_records(source, padded)?;
                shared
                    .facts
                    .read_feature(feature::TRACING_DATA, &data, shared.events);
            }
            user::FINISHED_ROUND if !visit.round() => return Err(WalkEnd::Enough),
            user::AUXTRACE => {
                let bytes = body.u64().ok_or_else(cut)?;
                shared.facts.trace_bytes = shared.facts.trace_bytes.saturating_add(bytes);
                self.skip(source, bytes)?;
            }
            user::COMPRESSED | user::COMPRESSED_2 => {
                if header.kind == user::COMPRESSED_2 {
                    let bytes = body.u64().ok_or_else(cut)?;
                    body.0 = body.0.get(..bytes as usize).ok_or_else(cut)?;
                }
                let (events, packed) = (&*shared.events, body.0);
                self.unpacker.unpack(packed, &mut |header, body| {
                    visit.record(events, header, body)
                })?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Skips bytes between records.
    fn skip<E: From<Error>>(&mut self, source: &mut impl Read, bytes: u64) -> WalkResult<(), E> {
        self.between_records(source, bytes, &mut |_| ())
    }

    /// Reads bytes between records, at most 16 MiB of them.
    fn bytes_between_records<E: From<Error>>(
        &mut self,
        source: &mut impl Read,
        bytes: u64,
    ) -> WalkResult<Vec<u8>, E> {
        const MAX_BYTES: usize = 1 << 24;
        let mut all = Vec::new();
        self.between_records(source, bytes, &mut |piece| {
            let room = MAX_BYTES - all.len();
            all.extend_from_slice(&piece[..piece.len().min(room)]);
        })?;
        Ok(all)
    }

    fn between_records<E: From<Error>>(
        &mut self,
        source: &mut impl Read,
        bytes: u64,
        each: &mut dyn FnMut(&[u8]),
    ) -> WalkResult<(), E> {
        let mut rest = bytes;
        while rest > 0 {
            if !self.fill(source, 1)? {
                return Err(WalkEnd::Damaged("a trace is cut off".to_owned()));
            }
            let step = rest.min(self.filled.len() as u64) as usize;
            each(&self.buffer[self.filled.start..self.filled.start + step]);
            self.filled.start += step;
            rest -= step as u64;
        }
        Ok(())
    }
}

/// Parses an attribute in a stream. It contains its own size; IDs follow.
fn attribute(events: &mut Events, body: FieldParser<'_>) -> Option<()> {
    let bytes = FieldParser(body.0.get(4..)?).u32()? as usize;
    let (attr, ids) = body.0.split_at_checked(bytes)?;
    let ids = ids
        .chunks_exact(8)
        .filter_map(|word| FieldParser(word).u64());
    events.add(Attr::parse(attr)?, ids);
    Some(())
}

/// Size of an entry that names a tracepoint (`struct perf_trace_event_type`): ID, text.
const EVENT_TYPE_BYTES: usize = 72;

fn name_tracepoint(events: &mut Events, mut entry: FieldParser<'_>) {
    if let Some(id) = entry.u64() {
        events.name_tracepoint(id, features::text(entry.0));
    }
}

/// `PERF_EVENT_UPDATE__NAME`: type, id, text.
fn name_event(events: &mut Events, mut body: FieldParser<'_>) {
    const NAME: u64 = 2;
    if body.u64() != Some(NAME) {
        return;
    }
    if let Some(id) = body.u64() {
        events.set_name(id, &features::text(body.0));
    }
}
