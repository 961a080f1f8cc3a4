//! The file in shared memory to which native programs write the marks of their regions of
//! interest (`memgauge_region.h`), with times of the monotonic clock. An environment variable
//! has its path.
//!
//! ```text
//! offset    0  "MGREGION"
//!           8  slots
//!          64  marks started so far    written by the program's threads
//!          72  marks without room
//!         128  marks read so far       written by memgauge
//!        4096  slots of 128 bytes:
//!              0 number + 1 of the mark, written last   8 time_ns   16 pid   20 tid
//!             24 value   32 kind: 1 begins, 2 ends, 3 a value   40 name, NUL-padded
//! ```
//!
//! memgauge reads and writes it with file operations, so that it needs no pointer into memory
//! that the program may change.
//!
//! Rejected: uprobes, which need root and cost a microsecond each.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Environment variable with the path of the file.
pub const ENV_VARIABLE: &str = "MEMGAUGE_REGIONS";

const MAGIC: &[u8; 8] = b"MGREGION";
const STARTED: u64 = 64;
const REFUSED: u64 = 72;
const READ: u64 = 128;
const SLOTS_AT: u64 = 4096;
const SLOT_BYTES: u64 = 128;
const NAME_AT: usize = 40;
/// Maximum number of unread marks. A thread writes as many in some milliseconds. 8 MiB.
const SLOTS: u64 = 1 << 16;
/// A mark that is still not written after this time counts as lost: its thread was killed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
const KINDS: [(u32, RoiMarkKind); 3] = [
    (1, RoiMarkKind::Begin),
    (2, RoiMarkKind::End),
    (3, RoiMarkKind::Value),
];

/// Prefix of the file's name.
const FILE_NAME_PREFIX: &str = "memgauge-regions-";

/// True if a mapping of this path is a mark file.
pub(super) fn is_mark_file(path: &str) -> bool {
    let name = path.rsplit('/').next();
    name.is_some_and(|name| name.starts_with(FILE_NAME_PREFIX))
}

/// Kind of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoiMarkKind {
    /// A region begins.
    Begin,
    /// A region ends.
    End,
    /// A value.
    Value,
}

/// A mark of a region of interest, or a value that the program reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoiMark {
    /// Time of `CLOCK_MONOTONIC` in nanoseconds.
    pub time_ns: u64,
    /// Process ID in the PID namespace of the process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The value, for [`RoiMarkKind::Value`].
    pub value: u64,
    /// Kind of the mark.
    pub kind: RoiMarkKind,
    /// Name of the region or value.
    pub name: String,
}

/// The file that programs write to. It is removed when dropped.
#[derive(Debug)]
pub struct MarkFile {
    path: PathBuf,
    /// Locked, so that no other recorder removes it as an orphan.
    file: File,
    /// Number of the next mark to look at.
    next: u64,
    /// Earlier marks that had been started but not written when they were looked at.
    unwritten: Vec<UnwrittenMark>,
}

#[derive(Clone, Copy, Debug)]
struct UnwrittenMark {
    number: u64,
    /// When it was first looked at.
    since: Instant,
}

impl MarkFile {
    /// Creates a file with a unique name.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn create() -> Result<MarkFile> {
        let in_memory = Path::new("/dev/shm");
        // It may be full, or mounted read-only.
        MarkFile::create_in(in_memory)
            .or_else(|_| MarkFile::create_in(&std::env::temp_dir()))
            .map_err(|e| Error::system("failed to create shared memory for regions", e))
    }

    fn create_in(folder: &Path) -> std::io::Result<MarkFile> {
        memgauge_host::remove_orphans(folder, FILE_NAME_PREFIX);
        let mut last = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        for attempt in 0..100 {
            let name = format!("{FILE_NAME_PREFIX}{}-{attempt}", std::process::id());
            let path = folder.join(name);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            match options.open(&path) {
                Ok(file) => {
                    if let Err(e) = memgauge_host::lock_shared_memory(&file) {
                        last = e;
                        continue;
                    }
                    let created = MarkFile {
                        path,
                        file,
                        next: 0,
                        unwritten: Vec::new(),
                    };
                    created.initialize()?;
                    return Ok(created);
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn initialize(&self) -> std::io::Result<()> {
        // Writing zeros allocates the memory now. If the file system were full later, a store of
        // the program would end it with SIGBUS.
        let zeros = vec![0; 1 << 20];
        let bytes = SLOTS_AT + SLOTS * SLOT_BYTES;
        let mut at = 0;
        while at < bytes {
            let chunk = (bytes - at).min(zeros.len() as u64);
            self.file.write_all_at(&zeros[..chunk as usize], at)?;
            at += chunk;
        }
        self.file.write_all_at(&SLOTS.to_le_bytes(), 8)?;
        self.file.write_all_at(MAGIC, 0)
    }

    /// The value for [`ENV_VARIABLE`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of marks for which there was no room.
    pub fn refused(&self) -> u64 {
        self.word(REFUSED)
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// Reads the new marks, those of each thread in their order. Returns the number of lost marks,
    /// whose threads were killed between starting and writing them. With `last`, all unwritten
    /// marks are lost.
    pub fn drain(&mut self, last: bool, mut each: impl FnMut(RoiMark)) -> u64 {
        // Read before the slots: a thread that has started one of these marks has written all its
        // earlier ones.
        let started = self.word(STARTED);
        let (now, mut lost) = (Instant::now(), 0);
        let end = started
            .min(self.oldest_unread().saturating_add(SLOTS))
            .max(self.next);
        let new = (self.next..end).map(|number| UnwrittenMark { number, since: now });
        let candidates: Vec<UnwrittenMark> = self.unwritten.drain(..).chain(new).collect();
        for candidate in candidates {
            let UnwrittenMark { number, since } = candidate;
            match self.written(number) {
                Some(Some(mark)) => each(mark),
                Some(None) => lost += 1,
                // Other threads need the slots after a mark that may never be written.
                None if last || now - since >= WRITE_TIMEOUT || end - number > SLOTS / 2 => {
                    lost += 1;
                }
                None => self.unwritten.push(candidate),
            }
        }
        self.next = end;
        let oldest = self.oldest_unread();
        // If it fails, the program finds no room and counts the marks that it refuses.
        let _ = self.file.write_all_at(&oldest.to_le_bytes(), READ);
        lost
    }

    /// Number of the oldest mark that may still be written.
    fn oldest_unread(&self) -> u64 {
        self.unwritten.first().map_or(self.next, |mark| mark.number)
    }

    /// Returns a mark if it has been written; `Some(None)` if its kind is unknown.
    fn written(&self, number: u64) -> Option<Option<RoiMark>> {
        let mut slot = [0; SLOT_BYTES as usize];
        let at = SLOTS_AT + number % SLOTS * SLOT_BYTES;
        let read = self.file.read_exact_at(&mut slot, at);
        (read.is_ok() && slot_word(&slot, 0) == number + 1).then(|| parse_mark(&slot))
    }
}

impl Drop for MarkFile {
    fn drop(&mut self) {
        // A file that stays is removed by the next run.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn slot_word(slot: &[u8], at: usize) -> u64 {
    let bytes = slot.get(at..).and_then(<[u8]>::first_chunk::<8>);
    bytes.map_or(0, |b| u64::from_le_bytes(*b))
}

/// Parses a slot. Returns `None` if the kind of the mark is unknown.
fn parse_mark(slot: &[u8]) -> Option<RoiMark> {
    let kind = slot_word(slot, 32) as u32;
    let (_, kind) = KINDS.into_iter().find(|k| k.0 == kind)?;
    let name = slot.get(NAME_AT..)?;
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    let ids = slot_word(slot, 16);
    Some(RoiMark {
        time_ns: slot_word(slot, 8),
        pid: ids as u32,
        tid: (ids >> 32) as u32,
        value: slot_word(slot, 24),
        kind,
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time_ns: u64, kind: RoiMarkKind, name: &str) -> RoiMark {
        RoiMark {
            time_ns,
            pid: 1,
            tid: 2,
            value: 0,
            kind,
            name: name.to_owned(),
        }
    }

    /// Writes a mark as the header does.
    fn write_mark(file: &MarkFile, number: u64) {
        let mut slot = [0u8; SLOT_BYTES as usize];
        slot[..8].copy_from_slice(&(number + 1).to_le_bytes());
        slot[8..16].copy_from_slice(&(7 + number).to_le_bytes());
        slot[16] = 1;
        slot[20] = 2;
        slot[32] = 1;
        slot[40] = b'a';
        let at = SLOTS_AT + number % SLOTS * SLOT_BYTES;
        file.file.write_all_at(&slot, at).unwrap();
    }

    fn set_started(file: &MarkFile, started: u64) {
        file.file
            .write_all_at(&started.to_le_bytes(), STARTED)
            .unwrap();
    }

    #[test]
    fn marks_are_read_as_they_were_written() {
        let mut file = MarkFile::create().unwrap();
        write_mark(&file, 0);
        set_started(&file, 1);
        let mut seen = Vec::new();
        assert_eq!(file.drain(false, |mark| seen.push(mark)), 0);
        assert_eq!(seen, [at(7, RoiMarkKind::Begin, "a")]);
        assert_eq!(file.word(READ), 1);
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn unwritten_mark_does_not_block_others() {
        let mut file = MarkFile::create().unwrap();
        let mut times = Vec::new();
        write_mark(&file, 0);
        write_mark(&file, 2);
        set_started(&file, 3);
        assert_eq!(file.drain(false, |mark| times.push(mark.time_ns)), 0);
        // Its room is kept, since it may still be written.
        assert_eq!((times.as_slice(), file.word(READ)), (&[7, 9][..], 1));
        write_mark(&file, 1);
        write_mark(&file, 3);
        set_started(&file, 5);
        assert_eq!(file.drain(false, |mark| times.push(mark.time_ns)), 0);
        assert_eq!((times.as_slice(), file.word(READ)), (&[7, 9, 8, 10][..], 4));
        // Once half of the slots are after the unwritten mark, the threads need the room.
        (5..5 + SLOTS / 2).for_each(|number| write_mark(&file, number));
        set_started(&file, 5 + SLOTS / 2);
        assert_eq!(file.drain(false, |mark| times.push(mark.time_ns)), 1);
        assert_eq!(times.len() as u64, 4 + SLOTS / 2);
        assert_eq!(file.word(READ), 5 + SLOTS / 2);
        set_started(&file, 6 + SLOTS / 2);
        assert_eq!(file.drain(true, |_| panic!("it was not written")), 1);
    }
}
