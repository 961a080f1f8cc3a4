//! Facts of a perf.data about the machine and the recording: its *features*, each a
//! number and some bytes (`tools/perf/Documentation/perf.data-file-format.txt`).

use std::collections::BTreeMap;

use memgauge_trace::HostFacts;

use super::{Events, tracing};
use crate::hex;
use crate::record::FieldParser;

/// Facts of a file.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Facts {
    /// The machine.
    pub host: HostFacts,
    /// The command line of perf.
    pub command: Vec<String>,
    /// Version of perf.
    pub version: String,
    /// Architecture.
    pub arch: String,
    /// Times of the first and last sample.
    pub sample_times: Option<(u64, u64)>,
    /// Build ids in hexadecimal, by path.
    pub build_ids: BTreeMap<String, String>,
    /// Number of bytes of AUX traces that were skipped.
    pub trace_bytes: u64,
}

/// Numbers of the sections after the data, as in perf's `header.h`.
pub mod feature {
    /// Descriptions of tracepoints.
    pub const TRACING_DATA: u32 = 1;
    /// Build ids of the files that were mapped.
    pub const BUILD_ID: u32 = 2;
    /// The machine's name.
    pub const HOSTNAME: u32 = 3;
    /// The kernel's release.
    pub const OSRELEASE: u32 = 4;
    /// The version of the recorder.
    pub const VERSION: u32 = 5;
    /// The machine's architecture.
    pub const ARCH: u32 = 6;
    /// Processors.
    pub const NRCPUS: u32 = 7;
    /// The processor's name.
    pub const CPUDESC: u32 = 8;
    /// KiB of memory.
    pub const TOTAL_MEM: u32 = 10;
    /// The recorder's command line.
    pub const CMDLINE: u32 = 11;
    /// Attributes, names and ids of the events.
    pub const EVENT_DESC: u32 = 12;
    /// Times of the first and the last sample.
    pub const SAMPLE_TIME: u32 = 21;
}

use feature::{
    ARCH, BUILD_ID, CMDLINE, CPUDESC, EVENT_DESC, HOSTNAME, NRCPUS, OSRELEASE, SAMPLE_TIME,
    TOTAL_MEM, TRACING_DATA, VERSION,
};

/// True if memgauge uses the feature.
pub(super) fn is_read(number: u32) -> bool {
    matches!(number, TRACING_DATA..=CPUDESC | TOTAL_MEM..=EVENT_DESC | SAMPLE_TIME)
}

/// A text up to its NUL. Invalid UTF-8 is replaced.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A text after its length.
fn counted_text(f: &mut FieldParser<'_>) -> Option<String> {
    let bytes = f.u32()?;
    f.bytes(bytes as usize).map(text)
}

impl Facts {
    /// Reads a feature. A malformed feature is ignored.
    pub(super) fn read_feature(&mut self, number: u32, bytes: &[u8], events: &mut Events) {
        let mut f = FieldParser(bytes);
        let text = |f: &mut FieldParser<'_>| counted_text(f).unwrap_or_default();
        match number {
            TRACING_DATA => drop(tracing::tracepoints(bytes, &mut |id, name| {
                events.name_tracepoint(id, name);
            })),
            BUILD_ID => self.read_build_ids(bytes),
            HOSTNAME => self.host.name = text(&mut f),
            OSRELEASE => self.host.kernel = text(&mut f),
            VERSION => self.version = text(&mut f),
            ARCH => self.arch = text(&mut f),
            CPUDESC => self.host.cpu = text(&mut f),
            NRCPUS => self.host.cpus = f.u32().unwrap_or(0),
            TOTAL_MEM => self.host.memory_bytes = f.u64().unwrap_or(0).saturating_mul(1024),
            CMDLINE => self.command = words(f).unwrap_or_default(),
            EVENT_DESC => drop(names(f, events)),
            SAMPLE_TIME => self.sample_times = f.u64().zip(f.u64()),
            _ => {}
        }
    }
}

/// Bytes of a build id in the file, with its length and padding.
const BUILD_ID_BYTES: usize = 24;
/// Bytes of a build id without a length: SHA-1.
const SHA1_BYTES: usize = 20;
/// `PERF_RECORD_MISC_BUILD_ID_SIZE`.
const HAS_LENGTH: u16 = 1 << 15;

impl Facts {
    /// A header of 8 bytes, then [`Facts::read_build_id`]'s body, for each file.
    fn read_build_ids(&mut self, mut bytes: &[u8]) {
        while let Some(header) = bytes.first_chunk::<8>() {
            let misc = u16::from_le_bytes([header[4], header[5]]);
            let length = usize::from(u16::from_le_bytes([header[6], header[7]]));
            let Some(record) = bytes.get(8..length) else {
                return;
            };
            self.read_build_id(misc, record);
            bytes = &bytes[length..];
        }
    }

    /// Process (4 bytes), build id (24), path.
    pub(super) fn read_build_id(&mut self, misc: u16, body: &[u8]) {
        let Some((id, path)) = body
            .get(4..)
            .and_then(|b| b.split_at_checked(BUILD_ID_BYTES))
        else {
            return;
        };
        let length = match misc & HAS_LENGTH {
            0 => SHA1_BYTES,
            _ => usize::from(id[SHA1_BYTES]).min(SHA1_BYTES),
        };
        self.build_ids.insert(text(path), hex(&id[..length]));
    }
}

fn words(mut f: FieldParser<'_>) -> Option<Vec<String>> {
    const MAX_WORDS: u32 = 1 << 16;
    let n = f.u32()?.min(MAX_WORDS);
    Some((0..n).map_while(|_| counted_text(&mut f)).collect())
}

/// Number of events, bytes of an attribute, then for each: attribute, number of
/// ids, name, ids.
fn names(mut f: FieldParser<'_>, events: &mut Events) -> Option<()> {
    let n = f.u32()?;
    let attr_bytes = f.u32()?;
    for number in 0..n as usize {
        f.bytes(attr_bytes as usize)?;
        let ids = f.u32()?;
        let name = counted_text(&mut f)?;
        f.bytes((ids as usize).checked_mul(8)?)?;
        // They have the same order as the attributes.
        events.all.get_mut(number)?.name = name;
    }
    Some(())
}
