//! The file in shared memory to which programs that run natively write their marks of
//! regions of interest (`memgauge_region.h`), with the time of the monotonic clock. Its
//! path stands in their environment.
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

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// The variable that names the file to the program.
pub const VARIABLE: &str = "MEMGAUGE_REGIONS";

const MAGIC: &[u8; 8] = b"MGREGION";
const BEGUN: u64 = 64;
const REFUSED: u64 = 72;
const READ: u64 = 128;
const SLOTS_AT: u64 = 4096;
const SLOT_BYTES: u64 = 128;
const NAME_AT: usize = 40;
/// Marks that may wait: as many as a thread makes in milliseconds. 8 MiB.
const SLOTS: u64 = 1 << 16;
/// A mark that was begun and not written for so long: its thread was killed meanwhile.
const GIVEN_UP: Duration = Duration::from_secs(1);
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

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// A region begins.
    Begin,
    /// A region ends.
    End,
    /// A value.
    Value,
}

/// A mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When it was made, nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Process, as it numbers itself.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The value, of one.
    pub value: u64,
    /// What it says.
    pub kind: MarkKind,
    /// Name of the region or value.
    pub name: String,
}

/// The file that programs write to; removed when dropped.
#[derive(Debug)]
pub struct MarkFile {
    path: PathBuf,
    /// Locked, so that no other recorder removes it.
    file: File,
    read: u64,
    /// Marks before that which were not written yet, by rising number, and since when.
    unwritten: Vec<(u64, Instant)>,
}

impl MarkFile {
    /// Makes a file of a name of its own.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn create() -> Result<MarkFile> {
        let in_memory = Path::new("/dev/shm");
        // There it may be full, or be there to be read only.
        MarkFile::create_in(in_memory)
            .or_else(|_| MarkFile::create_in(&std::env::temp_dir()))
            .map_err(|e| Error::system("failed to make shared memory for regions", e))
    }

    fn create_in(folder: &Path) -> std::io::Result<MarkFile> {
        memgauge_host::remove_orphans(folder, FILE_NAME);
        let mut last = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        for attempt in 0..100 {
            let name = format!("{FILE_NAME}{}-{attempt}", std::process::id());
            let path = folder.join(name);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            match options.open(&path) {
                Ok(file) => {
                    if let Err(e) = memgauge_host::lock_shared_memory(&file) {
                        last = e;
                        continue;
                    }
                    let made = MarkFile {
                        path,
                        file,
                        read: 0,
                        unwritten: Vec::new(),
                    };
                    made.begin()?;
                    return Ok(made);
                }
                Err(e) => last = e,
            }
        }
        Err(last)
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

    /// What [`VARIABLE`] is to say.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Marks for which there was no room.
    pub fn refused(&self) -> u64 {
        self.word(REFUSED)
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// Takes the marks that have come, those of each thread in their order. How many will
    /// not come: their thread was killed between their begin and their end. With `last`,
    /// that is so of all that are not there.
    pub fn take(&mut self, last: bool, mut each: impl FnMut(Mark)) -> u64 {
        // Read first: a thread that began one of these has written all its marks before it.
        let begun = self.word(BEGUN);
        let (now, mut lost) = (Instant::now(), 0);
        let oldest = self.unwritten.first().map_or(self.read, |&(n, _)| n);
        let end = begun.min(oldest.saturating_add(SLOTS)).max(self.read);
        let begun_now = (self.read..end).map(|number| (number, now));
        let looked_at: Vec<_> = self.unwritten.drain(..).chain(begun_now).collect();
        for (number, since) in looked_at {
            match self.written(number) {
                Some(Some(mark)) => each(mark),
                Some(None) => lost += 1,
                // Room that is needed is not kept for one that may never come.
                None if last || now - since >= GIVEN_UP || end - number > SLOTS / 2 => lost += 1,
                None => self.unwritten.push((number, since)),
            }
        }
        self.read = end;
        let oldest = self.unwritten.first().map_or(self.read, |&(n, _)| n);
        // Best effort: without it the program counts what it has no room for.
        let _ = self.file.write_all_at(&oldest.to_le_bytes(), READ);
        lost
    }

    /// The mark of a number, if it was written; `Some(None)` for one of an unknown kind.
    fn written(&self, number: u64) -> Option<Option<Mark>> {
        let mut slot = [0; SLOT_BYTES as usize];
        let at = SLOTS_AT + number % SLOTS * SLOT_BYTES;
        let read = self.file.read_exact_at(&mut slot, at);
        (read.is_ok() && word_of(&slot, 0) == number + 1).then(|| mark(&slot))
    }
}

impl Drop for MarkFile {
    fn drop(&mut self) {
        // Best effort: it takes memory and does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn word_of(slot: &[u8], at: usize) -> u64 {
    let bytes = slot.get(at..).and_then(<[u8]>::first_chunk::<8>);
    bytes.map_or(0, |b| u64::from_le_bytes(*b))
}

/// A mark, if the slot holds one that the header writes.
fn mark(slot: &[u8]) -> Option<Mark> {
    let kind = word_of(slot, 32) as u32;
    let (_, kind) = KINDS.into_iter().find(|k| k.0 == kind)?;
    let name = slot.get(NAME_AT..)?;
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    let ids = word_of(slot, 16);
    Some(Mark {
        time_ns: word_of(slot, 8),
        pid: ids as u32,
        tid: (ids >> 32) as u32,
        value: word_of(slot, 24),
        kind,
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
    })
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

    /// What the header writes for the mark of that number.
    fn put(file: &MarkFile, number: u64) {
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

    fn begin(file: &MarkFile, begun: u64) {
        file.file.write_all_at(&begun.to_le_bytes(), BEGUN).unwrap();
    }

    #[test]
    fn marks_come_out_of_the_file_as_they_were_put_in() {
        let mut file = MarkFile::create().unwrap();
        put(&file, 0);
        begin(&file, 1);
        let mut seen = Vec::new();
        assert_eq!(file.take(false, |mark| seen.push(mark)), 0);
        assert_eq!(seen, [at(7, MarkKind::Begin, "a")]);
        assert_eq!(file.word(READ), 1);
        let path = file.path().to_owned();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_mark_that_is_not_written_holds_up_no_other() {
        let mut file = MarkFile::create().unwrap();
        let mut times = Vec::new();
        put(&file, 0);
        put(&file, 2);
        begin(&file, 3);
        assert_eq!(file.take(false, |mark| times.push(mark.time_ns)), 0);
        // Its room is kept: it may still be written.
        assert_eq!((times.as_slice(), file.word(READ)), (&[7, 9][..], 1));
        put(&file, 1);
        put(&file, 3);
        begin(&file, 5);
        assert_eq!(file.take(false, |mark| times.push(mark.time_ns)), 0);
        assert_eq!((times.as_slice(), file.word(READ)), (&[7, 9, 8, 10][..], 4));
        // Marks far behind it need the room.
        (5..5 + SLOTS / 2).for_each(|number| put(&file, number));
        begin(&file, 5 + SLOTS / 2);
        assert_eq!(file.take(false, |mark| times.push(mark.time_ns)), 1);
        assert_eq!(times.len() as u64, 4 + SLOTS / 2);
        assert_eq!(file.word(READ), 5 + SLOTS / 2);
        begin(&file, 6 + SLOTS / 2);
        assert_eq!(file.take(true, |_| panic!("it was not written")), 1);
    }
}
