//! Regions of interest of a program that runs natively: it writes its marks to a file in
//! shared memory whose path stands in its environment (`memgauge_region.h`), with the
//! time of the monotonic clock. Samples come in order of time, so each finds the regions
//! that its thread was in.
//!
//! ```text
//! offset    0  "MGREGION"
//!           8  slots
//!          64  marks begun so far      written by the program's threads
//!          72  marks without room
//!         128  marks read so far       written here
//!        4096  slots of 128 bytes:
//!              0 number + 1 of the mark, written last   8 time_ns   16 pid   20 tid
//!             24 value   32 kind: 1 begins, 2 ends, 3 a value   40 name, NUL-padded
//! ```
//!
//! The file is read and written as a file: shared memory is one, and so no pointer into
//! what the program may write is needed. Rejected: uprobes, which take root and a
//! microsecond each.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memgauge_host::regions::{End, MOST_SPANS, Open, OpenRegions, RequestedNames, rows};
use memgauge_recording::Writer;
use memgauge_trace::{CodeValue, EventId, Pid, RegionSpans, Tid};

use crate::{Error, Result};

/// The variable that names the file to the program.
pub(crate) const VARIABLE: &str = "MEMGAUGE_REGIONS";

const MAGIC: &[u8; 8] = b"MGREGION";
const BEGUN: u64 = 64;
const REFUSED: u64 = 72;
const READ: u64 = 128;
const SLOTS_AT: u64 = 4096;
const SLOT_BYTES: u64 = 128;
const NAME_AT: usize = 40;
/// Marks that may wait: as many as a thread makes in milliseconds. 8 MiB.
const SLOTS: u64 = 1 << 16;
const KINDS: [(u32, MarkKind); 3] = [
    (1, MarkKind::Begin),
    (2, MarkKind::End),
    (3, MarkKind::Value),
];

/// Begin of the file's name.
const FILE_NAME: &str = "memgauge-regions-";

/// Whether a program that has mapped this path writes its marks there.
pub(super) fn is_mark_file(path: &str) -> bool {
    let name = path.rsplit('/').next();
    name.is_some_and(|name| name.starts_with(FILE_NAME))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MarkKind {
    Begin,
    End,
    Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    time_ns: u64,
    pid: u32,
    tid: u32,
    value: u64,
    kind: MarkKind,
    name: String,
}

/// The file that programs write to; removed when dropped.
#[derive(Debug)]
pub(crate) struct MarkFile {
    path: PathBuf,
    file: File,
    read: u64,
}

impl MarkFile {
    /// Makes a file of a name of its own.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn create() -> Result<MarkFile> {
        let fail = |e| Error::system("failed to make shared memory for regions", e);
        let in_memory = Path::new("/dev/shm");
        let folder = match in_memory.is_dir() {
            true => in_memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let mut last = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        for attempt in 0..100 {
            let name = format!("{FILE_NAME}{}-{attempt}", std::process::id());
            let path = folder.join(name);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            match options.open(&path) {
                Ok(file) => {
                    let made = MarkFile {
                        path,
                        file,
                        read: 0,
                    };
                    made.begin().map_err(fail)?;
                    return Ok(made);
                }
                Err(e) => last = e,
            }
        }
        Err(fail(last))
    }

    fn begin(&self) -> std::io::Result<()> {
        // Written, so that it has memory: a store into a page without memory would end
        // the program.
        let zeros = vec![0; 1 << 20];
        let bytes = SLOTS_AT + SLOTS * SLOT_BYTES;
        let mut at = 0;
        while at < bytes {
            let some = (bytes - at).min(zeros.len() as u64);
            self.file.write_all_at(&zeros[..some as usize], at)?;
            at += some;
        }
        self.file.write_all_at(&SLOTS.to_le_bytes(), 8)?;
        self.file.write_all_at(MAGIC, 0)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// Takes the marks that have come; with `last`, passes over those that were begun
    /// and never written, and counts them.
    fn take(&mut self, last: bool, mut each: impl FnMut(Mark)) -> u64 {
        let begun = self.word(BEGUN).min(self.read.saturating_add(SLOTS));
        let mut lost = 0;
        while self.read < begun {
            let at = SLOTS_AT + self.read % SLOTS * SLOT_BYTES;
            let mut slot = [0; SLOT_BYTES as usize];
            let is_there =
                self.file.read_exact_at(&mut slot, at).is_ok() && number(&slot, 0) == self.read + 1;
            // One that is long behind was begun by a thread that was killed meanwhile.
            if !is_there && !last && begun - self.read < SLOTS / 2 {
                break;
            }
            match mark(&slot).filter(|_| is_there) {
                Some(mark) => each(mark),
                None => lost += 1,
            }
            self.read += 1;
        }
        // Best effort: without it the program counts what it has no room for.
        let _ = self.file.write_all_at(&self.read.to_le_bytes(), READ);
        lost
    }
}

impl Drop for MarkFile {
    fn drop(&mut self) {
        // Best effort: it takes memory and does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn number(slot: &[u8], at: usize) -> u64 {
    let bytes = slot.get(at..).and_then(<[u8]>::first_chunk::<8>);
    bytes.map_or(0, |b| u64::from_le_bytes(*b))
}

/// A mark, if the slot holds one that the header writes.
fn mark(slot: &[u8]) -> Option<Mark> {
    let kind = number(slot, 32) as u32;
    let (_, kind) = KINDS.into_iter().find(|k| k.0 == kind)?;
    let name = slot.get(NAME_AT..)?;
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    let ids = number(slot, 16);
    Some(Mark {
        time_ns: number(slot, 8),
        pid: ids as u32,
        tid: (ids >> 32) as u32,
        value: number(slot, 24),
        kind,
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
    })
}

#[derive(Debug, Default)]
struct Sums {
    entries: u64,
    time_ns: u64,
    events: BTreeMap<EventId, u64>,
}

/// Who was in which region when.
#[derive(Debug, Default)]
pub(super) struct Regions {
    file: Option<MarkFile>,
    /// The events' clock is so far behind the marks'.
    behind_ns: u64,
    start_ns: u64,
    /// Only samples in these are recorded; empty: all.
    wanted: RequestedNames,
    waiting: VecDeque<Mark>,
    /// Which each thread is in, and since when.
    inside: HashMap<(u32, u32), OpenRegions<String, u64>>,
    sums: BTreeMap<(Pid, Tid, String), Sums>,
    spans: BTreeMap<(Pid, Tid), RegionSpans<String>>,
    /// Names of all regions that a thread has been in.
    entered: BTreeSet<String>,
    values: Vec<CodeValue>,
    /// Ends of regions that had not begun, marks that were lost, samples outside of what
    /// is wanted.
    pub(super) unmatched: u64,
    pub(super) lost: u64,
    pub(super) outside: u64,
    latest_ns: u64,
}

impl Regions {
    pub(super) fn new(file: Option<MarkFile>, wanted: RequestedNames) -> Regions {
        Regions {
            file,
            wanted,
            ..Regions::default()
        }
    }

    /// Names that were asked for and that no thread has been in.
    pub(super) fn absent(&self) -> Vec<String> {
        self.wanted.absent(self.entered.iter().map(String::as_str))
    }

    /// Recording began, on the events' clock.
    pub(super) fn begin(&mut self, start_ns: u64, behind_ns: u64) {
        (self.start_ns, self.behind_ns) = (start_ns, behind_ns);
    }

    /// Reads the marks that programs have written.
    pub(super) fn read(&mut self, last: bool) {
        let Some(file) = &mut self.file else {
            return;
        };
        let waiting = &mut self.waiting;
        self.lost += file.take(last, |mark| waiting.push_back(mark));
        if last {
            self.lost += file.word(REFUSED);
        }
        // Threads take a number before they read the clock.
        let sorted = self.waiting.make_contiguous();
        sorted.sort_by_key(|mark| mark.time_ns);
    }

    /// Takes the marks up to a time of the events' clock.
    pub(super) fn advance(&mut self, to_ns: u64) {
        let behind_ns = self.behind_ns;
        let is_due = |mark: &Mark| mark.time_ns.saturating_sub(behind_ns) <= to_ns;
        while self.waiting.front().is_some_and(is_due) {
            if let Some(mark) = self.waiting.pop_front() {
                self.take(mark);
            }
        }
    }

    fn take(&mut self, mark: Mark) {
        let at_ns = mark.time_ns.saturating_sub(self.behind_ns + self.start_ns);
        self.latest_ns = self.latest_ns.max(at_ns);
        let ids = (Pid(mark.pid), Tid(mark.tid));
        let inside = self.inside.entry((mark.pid, mark.tid)).or_default();
        match mark.kind {
            MarkKind::Value => self.values.push(CodeValue {
                time_ns: at_ns,
                pid: ids.0,
                tid: ids.1,
                name: mark.name,
                value: mark.value,
            }),
            MarkKind::Begin => {
                if inside.begin(mark.name.clone(), at_ns) {
                    if !self.entered.contains(&mark.name) {
                        self.entered.insert(mark.name.clone());
                    }
                    let key = (ids.0, ids.1, mark.name);
                    self.sums.entry(key).or_default().entries += 1;
                }
            }
            MarkKind::End => match inside.end(&mark.name) {
                End::Left(left) => self.leave(ids, left, at_ns),
                End::Within => {}
                End::Unmatched => self.unmatched += 1,
            },
        }
    }

    fn leave(&mut self, (pid, tid): (Pid, Tid), left: Open<String, u64>, at_ns: u64) {
        let spans = self.spans.entry((pid, tid));
        let spans = spans.or_insert_with(|| RegionSpans::at_most(MOST_SPANS));
        spans.add(left.name.clone(), left.since, at_ns);
        let sums = self.sums.entry((pid, tid, left.name)).or_default();
        sums.time_ns += at_ns.saturating_sub(left.since);
    }

    /// Counts a sample at a thread's regions; whether it is to be recorded.
    pub(super) fn sample(&mut self, pid: u32, tid: u32, event: EventId, period: u64) -> bool {
        if self.inside.is_empty() && self.wanted.is_empty() {
            return true;
        }
        let inside = self.inside.get(&(pid, tid));
        let mut open = inside.into_iter().flat_map(OpenRegions::iter);
        if !self.wanted.is_empty() && !open.any(|open| self.wanted.holds(&open.name)) {
            self.outside += 1;
            return false;
        }
        for open in inside.into_iter().flat_map(OpenRegions::iter) {
            let key = (Pid(pid), Tid(tid), open.name.clone());
            let sums = self.sums.entry(key).or_default();
            let sum = sums.events.entry(event).or_default();
            *sum = sum.saturating_add(period);
        }
        true
    }

    /// Writes the values so far.
    pub(super) fn write_values(&mut self, writer: &mut Writer) -> Result<()> {
        Ok(writer.extend(self.values.drain(..))?)
    }

    /// Ends what is open and writes the sums.
    pub(super) fn finish(&mut self, end_ns: u64, writer: &mut Writer) -> Result<()> {
        self.advance(u64::MAX);
        let end_ns = end_ns.max(self.latest_ns);
        for ((pid, tid), mut all) in std::mem::take(&mut self.inside) {
            for left in all.end_all() {
                self.leave((Pid(pid), Tid(tid)), left, end_ns);
            }
        }
        self.write_values(writer)?;
        for ((pid, tid, name), sums) in std::mem::take(&mut self.sums) {
            let entered = (sums.entries, sums.time_ns);
            writer.extend(rows((pid, tid), name, entered, sums.events))?;
        }
        for ((pid, tid), spans) in std::mem::take(&mut self.spans) {
            writer.extend(spans.rows(|name| (name.clone(), pid, tid)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time_ns: u64, kind: MarkKind, name: &str) -> Mark {
        Mark {
            time_ns,
            pid: 1,
            tid: 2,
            value: 0,
            kind,
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_sample_belongs_to_the_regions_of_its_thread_at_its_time() {
        use MarkKind::{Begin, End};
        let mut regions = Regions::new(
            None,
            RequestedNames::new("--region", &["a".to_owned()]).unwrap(),
        );
        regions.begin(100, 0);
        regions.waiting.extend([
            at(110, Begin, "a"),
            at(120, Begin, "b"),
            at(130, End, "a"),
            at(140, End, "b"),
            at(150, End, "b"),
        ]);
        let event = EventId(7);
        let mut sampled = |time_ns: u64, tid| {
            regions.advance(time_ns);
            regions.sample(1, tid, event, 10)
        };
        assert!(!sampled(105, 2));
        assert!(sampled(115, 2) && !sampled(115, 3));
        assert!(sampled(125, 2));
        assert!(!sampled(135, 2));
        regions.advance(u64::MAX);
        assert_eq!((regions.unmatched, regions.outside), (1, 3));
        let sums = regions.sums.iter().map(|((_, _, name), s)| {
            (
                name.as_str(),
                s.entries,
                s.time_ns,
                s.events.get(&event).copied(),
            )
        });
        let sums: Vec<_> = sums.collect();
        assert_eq!(sums, [("a", 1, 20, Some(20)), ("b", 1, 20, Some(10))]);
    }

    #[test]
    fn marks_come_out_of_the_file_as_they_were_put_in_and_a_gap_waits_for_the_end() {
        let mut file = MarkFile::create().unwrap();
        let slot = |number: u64| {
            let mut slot = [0u8; SLOT_BYTES as usize];
            slot[..8].copy_from_slice(&(number + 1).to_le_bytes());
            slot[8..16].copy_from_slice(&(7 + number).to_le_bytes());
            slot[16] = 1;
            slot[20] = 2;
            slot[32] = 1;
            slot[40] = b'a';
            slot
        };
        let put = |file: &MarkFile, n: u64| {
            let at = SLOTS_AT + n * SLOT_BYTES;
            file.file.write_all_at(&slot(n), at).unwrap();
        };
        put(&file, 0);
        put(&file, 2);
        file.file.write_all_at(&3u64.to_le_bytes(), BEGUN).unwrap();
        let mut seen = Vec::new();
        assert_eq!(file.take(false, |mark| seen.push(mark)), 0);
        assert_eq!(seen, [at(7, MarkKind::Begin, "a")]);
        assert_eq!(file.take(true, |mark| seen.push(mark)), 1);
        assert_eq!(seen.len(), 2);
        assert_eq!(file.word(READ), 3);
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
    }
}
