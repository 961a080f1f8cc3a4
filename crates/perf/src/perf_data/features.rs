//! What a perf.data says about the machine and the recording: its *features*,
//! each a number and some bytes
//! (`tools/perf/Documentation/perf.data-file-format.txt`).

use memgauge_trace::HostFacts;

use super::Events;
use crate::record::Fields;

/// Facts of a file.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Bytes of AUX traces passed over.
    pub trace_bytes: u64,
}

const HOSTNAME: u32 = 3;
const OSRELEASE: u32 = 4;
const VERSION: u32 = 5;
const ARCH: u32 = 6;
const NRCPUS: u32 = 7;
const CPUDESC: u32 = 8;
const TOTAL_MEM: u32 = 10;
const CMDLINE: u32 = 11;
const EVENT_DESC: u32 = 12;
const SAMPLE_TIME: u32 = 21;

/// Whether this version has a use for the feature.
pub(super) fn is_read(number: u32) -> bool {
    matches!(number, HOSTNAME..=CPUDESC | TOTAL_MEM..=EVENT_DESC | SAMPLE_TIME)
}

/// A text up to its NUL; bytes that are no UTF-8 are replaced.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A text behind its length.
fn counted_text(f: &mut Fields<'_>) -> Option<String> {
    let bytes = f.u32()?;
    f.bytes(bytes as usize).map(text)
}

impl Facts {
    /// Takes a feature in; one that does not fit its form is left out.
    pub(super) fn take(&mut self, number: u32, bytes: &[u8], events: &mut Events) {
        let mut f = Fields(bytes);
        let text = |f: &mut Fields<'_>| counted_text(f).unwrap_or_default();
        match number {
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

fn words(mut f: Fields<'_>) -> Option<Vec<String>> {
    const MOST: u32 = 1 << 16;
    let n = f.u32()?.min(MOST);
    Some((0..n).map_while(|_| counted_text(&mut f)).collect())
}

/// Number of events, bytes of an attribute, then for each: attribute, number of
/// ids, name, ids.
fn names(mut f: Fields<'_>, events: &mut Events) -> Option<()> {
    let n = f.u32()?;
    let attr_bytes = f.u32()?;
    for number in 0..n as usize {
        f.bytes(attr_bytes as usize)?;
        let ids = f.u32()?;
        let name = counted_text(&mut f)?;
        f.bytes((ids as usize).checked_mul(8)?)?;
        // The same order as the attributes.
        events.all.get_mut(number)?.name = name;
    }
    Some(())
}
