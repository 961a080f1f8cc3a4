//! The directory shared with the engine: the control page, and the entries of processes and
//! threads.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::pid_namespace::{ForeignId, local_id, namespace_of};
use crate::engine::sys::{SharedMapping, futex_wake};
use crate::engine::wire::{self, control, entry, process, ring};
use crate::engine::words::begins_block;
use crate::{Allocator, Error, Result};
use memgauge_host::sys::process::free_bytes;
use memgauge_host::{LOCK_FILE, lock_shared_memory, remove_orphans};
use memgauge_machine::Config;

/// Minimum free space in memory-backed file systems. With less, a directory on disk is used.
pub const SHARED_MEMORY_BYTES: u64 = 256 << 20;

/// Maximum time from the numbering of an entry to its contents.
const ENTRY_TIMEOUT: Duration = Duration::from_millis(500);

/// Interval at which skipped entries are checked again, and maximum number of them.
const LATE_CHECK_INTERVAL: Duration = Duration::from_millis(20);
const MAX_LATE_ENTRIES: usize = 256;

/// File with the functions that are regions, a pattern on each line (`engine/src/region.c`).
const FUNCTIONS: &str = "functions";
/// File with the functions that allocate and free, one on each line (`engine/src/heap.c`).
const ALLOCATORS: &str = "allocators";

/// Reason why a thread of the program could not be recorded.
const NO_ROOM: &str = "shared memory is full, or too few descriptors are left (ulimit -n), or files \
                       may not become large (ulimit -f)";
const OUT_OF_REACH: &str =
    "after a change of user, root or mounts, from where the recording is out of reach";

/// The recorder's side of the directory. Dropping it removes the directory.
#[derive(Debug)]
pub(crate) struct EngineSession {
    dir: PathBuf,
    control: SharedMapping,
    /// The control page, locked while the recorder reads. Programs and recorders in another PID
    /// namespace cannot check whether the recorder's process exists.
    _lock: File,
    /// The recorder's PID namespace.
    namespace: u64,
    seen: u32,
    /// Number of entries that existed but could not be mapped.
    unopened: u32,
    /// The entry that is awaited, and since when.
    waiting: Option<(u32, Instant)>,
    /// Skipped entries, and the time when they were last checked.
    late: Vec<u32>,
    late_seen: Instant,
    /// True if only some cache sets are modelled.
    some_sets: bool,
}

/// A new process or thread.
pub(crate) enum NewEntry {
    Process(ProcessEntry),
    Thread(ThreadRing),
}

/// A process's header and catalogue.
#[derive(Debug)]
pub(crate) struct ProcessEntry {
    pub(crate) number: u32,
    pub(crate) pid: u32,
    /// Its PID if it is in another PID namespace.
    pub(crate) foreign_id: Option<ForeignId>,
    /// Entry of the parent process, and its number of blocks at the fork.
    pub(crate) parent: Option<(u32, u32)>,
    /// Number of the start mark of its fork, or 0.
    pub(crate) start_id: u64,
    shared: SharedMapping,
    read: usize,
}

/// A thread's header and ring.
#[derive(Debug)]
pub(crate) struct ThreadRing {
    pub(crate) number: u32,
    pub(crate) process: u32,
    pub(crate) tid: u32,
    /// Its TID if it is in another PID namespace.
    pub(crate) foreign_id: Option<ForeignId>,
    /// Number of its start mark, or 0.
    pub(crate) start_id: u64,
    shared: SharedMapping,
    tail: u32,
    /// Number of words read of the oldest unread block.
    read: usize,
    is_closed: bool,
    some_sets: bool,
}

/// Maximum wait of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeLimit {
    pub(crate) ns: u64,
    /// True if that is the time until a deadline on the host's clock.
    pub(crate) by_deadline: bool,
}

/// A sleep that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldSleep {
    pub(crate) number: u32,
    /// Requested length.
    pub(crate) asked_ns: u64,
}

/// Words of a ring's block that are ready to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// True if the block is complete.
    pub(crate) sealed: bool,
}

/// Maximum number of times that another recorder may remove a new directory before its control page
/// is locked.
const MAX_REMOVALS: usize = 100;

/// Size of a cache in the control page, and offset of its ways (`struct mg_cache`). The capacity
/// comes first.
const CACHE_BYTES: usize = 16;
const CACHE_WAYS: usize = 8;

/// Prefix of the directory's name. The recorder's PID follows.
const DIR_PREFIX: &str = "memgauge-";

fn candidate_dirs() -> Vec<PathBuf> {
    let shm = PathBuf::from("/dev/shm");
    let enough = free_bytes(&shm).is_some_and(|free| free >= SHARED_MEMORY_BYTES);
    let mut dirs = vec![std::env::temp_dir()];
    dirs.insert(if enough { 0 } else { 1 }, shm);
    dirs
}

fn make_dir() -> Result<PathBuf> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for base in candidate_dirs() {
        for attempt in 0..100 {
            let dir = base.join(format!("{DIR_PREFIX}{}-{attempt}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => return Ok(dir),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => {
                    last = e;
                    break;
                }
            }
        }
    }
    Err(Error::system(
        "failed to make a directory for shared memory in /dev/shm or TMPDIR",
        last,
    ))
}

/// A new directory with its control page.
struct ControlPage {
    dir: PathBuf,
    shared: SharedMapping,
    lock: File,
}

impl ControlPage {
    fn create() -> Result<ControlPage> {
        for _ in 0..MAX_REMOVALS {
            let dir = make_dir()?;
            match ControlPage::create_in(dir) {
                // Another recorder removed it as an orphan before it was locked.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                created => {
                    return created.map_err(|e| Error::system("failed to make shared memory", e));
                }
            }
        }
        let cause = std::io::ErrorKind::NotFound.into();
        Err(Error::system("failed to make shared memory", cause))
    }

    fn create_in(dir: PathBuf) -> std::io::Result<ControlPage> {
        let path = dir.join(LOCK_FILE);
        // Write the page, so that it is backed by memory. A store into a page without memory would
        // end the process.
        fs::write(&path, [0u8; wire::PAGE])?;
        let lock = File::open(&path)?;
        lock_shared_memory(&lock)?;
        let shared = open_shared(&path, wire::PAGE)?;
        Ok(ControlPage { dir, shared, lock })
    }
}

fn open_shared(path: &Path, bytes: usize) -> std::io::Result<SharedMapping> {
    SharedMapping::map(
        &OpenOptions::new().read(true).write(true).open(path)?,
        bytes,
    )
}

/// Size of the file with a process's shared memory, of which little is used. If the shell's limit
/// were smaller, creating it would kill the program.
const NEEDED_FILE_BYTES: u64 = {
    let (process, sets) = (wire::PAGE + wire::CATALOGUE_BYTES, wire::SETS_BYTES);
    (if process > sets { process } else { sets }) as u64
};

/// Minimum stack. A modelled core passes over the stack when it is created.
const NEEDED_STACK_BYTES: u64 = 1 << 20;

/// Memory that the engine maps for itself before the program starts.
const NEEDED_DATA_BYTES: u64 = 160 << 20;

/// Checks that the limits of this process leave room for shared memory, the engine and the model.
fn check_limits() -> Result<()> {
    use rustix::process::Resource;
    check_limit(
        (Resource::Fsize, NEEDED_FILE_BYTES),
        "make shared memory: the limit of file sizes",
        "ulimit -f unlimited",
    )?;
    check_limit(
        (Resource::Data, NEEDED_DATA_BYTES),
        "start the emulator: the limit of data",
        "ulimit -d unlimited",
    )?;
    check_limit(
        (Resource::Stack, NEEDED_STACK_BYTES),
        "model a processor: the limit of the stack",
        "ulimit -s 8192",
    )
}

fn check_limit(
    (resource, needed): (rustix::process::Resource, u64),
    what: &str,
    remedy: &str,
) -> Result<()> {
    let limit = rustix::process::getrlimit(resource).current;
    if limit.is_none_or(|limit| limit >= needed) {
        return Ok(());
    }
    let mebibytes = needed.div_ceil(1 << 20);
    Err(Error::new(
        crate::ErrorKind::Missing,
        format!("failed to {what} is below {mebibytes} MiB: raise it ({remedy})"),
    ))
}

impl EngineSession {
    /// Writes the functions that are regions. Call it before the program starts.
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn name_functions(&self, patterns: &[String]) -> Result<()> {
        if patterns.is_empty() {
            return Ok(());
        }
        self.write_names(FUNCTIONS, &patterns.join("\n"))
    }

    /// Writes the functions that allocate and free. Call it before the program starts.
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn name_allocators(&self, allocators: &[Allocator]) -> Result<()> {
        if allocators.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = allocators.iter().map(Allocator::to_string).collect();
        self.write_names(ALLOCATORS, &lines.join("\n"))
    }

    fn write_names(&self, file: &str, names: &str) -> Result<()> {
        // The file is next to the shared memory, whose file system may be full.
        fs::write(self.dir.join(file), names)
            .map_err(|e| Error::system("failed to make shared memory", e))
    }

    /// Creates the directory and its control page. `sets` are the classes of lines to model; 0
    /// models all lines without classes.
    pub(crate) fn create(sets: u64) -> Result<EngineSession> {
        check_limits()?;
        candidate_dirs()
            .iter()
            .for_each(|base| remove_orphans(base, DIR_PREFIX));
        let ControlPage { dir, shared, lock } = ControlPage::create()?;
        shared
            .u32(control::VERSION)
            .store(wire::WIRE_VERSION, Ordering::Relaxed);
        shared
            .u32(control::RECORDER_PID)
            .store(std::process::id(), Ordering::Relaxed);
        shared.u64(control::SETS).store(sets, Ordering::Relaxed);
        let namespace = namespace_of(Path::new("/proc/self"));
        shared
            .u64(control::PID_SPACE)
            .store(namespace, Ordering::Relaxed);
        shared
            .u32(control::MAGIC)
            .store(wire::MAGIC, Ordering::Release);
        Ok(EngineSession {
            dir,
            control: shared,
            _lock: lock,
            namespace,
            seen: 0,
            unopened: 0,
            late: Vec::new(),
            late_seen: Instant::now(),
            waiting: None,
            some_sets: sets != 0,
        })
    }

    /// Path of the directory for the engine.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Number of processes and threads without an entry, by reason.
    pub(crate) fn refused(&self) -> [(u64, &'static str); 2] {
        let count = |at| self.control.u32(at).load(Ordering::Relaxed);
        let without_room = count(control::REFUSED) + self.unopened;
        [
            (u64::from(without_room), NO_ROOM),
            (u64::from(count(control::APART)), OUT_OF_REACH),
        ]
    }

    /// Seconds on the host for which the program waited for files and no thread of it ran: in all,
    /// in writes, and in fsync and the like.
    pub(crate) fn file_waits_s(&self) -> [f64; 3] {
        let waits = [
            control::FILE_WAIT_NS,
            control::FILE_WRITE_WAIT_NS,
            control::FILE_SYNC_WAIT_NS,
        ];
        waits.map(|at| self.control.u64(at).load(Ordering::Relaxed) as f64 / 1e9)
    }

    /// Informs all processes that memgauge has stopped reading.
    pub(crate) fn stop(&self) {
        self.control.u32(control::STOP).store(1, Ordering::SeqCst);
    }

    /// Sets the caches that the program sees (`cpuid`). Call it before the program starts.
    pub(crate) fn publish_caches(&self, machine: &Config) {
        let caches = [&machine.l1d, &machine.l2, &machine.llc];
        for (at, cache) in (control::CACHES..).step_by(CACHE_BYTES).zip(caches) {
            let ways = self.control.u32(at + CACHE_WAYS);
            self.control
                .u64(at)
                .store(cache.size_bytes, Ordering::Relaxed);
            ways.store(cache.ways, Ordering::Relaxed);
        }
    }

    /// Informs the program that its threads have virtual clocks, which end their sleeps. Call it
    /// before the program starts.
    pub(crate) fn publish_models_time(&self) {
        let field = self.control.u32(control::MODELS_TIME);
        field.store(1, Ordering::Relaxed);
    }

    /// Publishes for how long some thread has been running.
    pub(crate) fn publish_work_time(&self, worked: Duration) {
        let field = self.control.u64(control::WORKED_NS);
        field.store(worked.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Publishes whether a sleep is held or was lately, for new threads.
    pub(crate) fn publish_holds(&self, holds: bool) {
        let field = self.control.u32(control::HOLDS);
        if field.load(Ordering::Relaxed) != u32::from(holds) {
            field.store(u32::from(holds), Ordering::Relaxed);
        }
    }

    /// Publishes whether many threads have not been read yet. New threads then wait.
    pub(crate) fn publish_crowded(&self, crowded: bool) {
        let field = self.control.u32(control::CROWDED);
        if field.load(Ordering::Relaxed) != u32::from(crowded) {
            field.store(u32::from(crowded), Ordering::Relaxed);
        }
    }

    /// Publishes the number of entries seen so far. New threads that are far ahead wait.
    pub(crate) fn publish_seen(&self) {
        let field = self.control.u32(control::SEEN);
        field.store(self.seen, Ordering::Relaxed);
    }

    /// The next entry, once its owner has filled it in.
    ///
    /// Entries come in the order of their numbers. An unfinished one delays the others only for a
    /// while, and is returned later. It never comes if its file could not be created (the engine
    /// counts it as refused) or its owner was killed.
    pub(crate) fn next_entry(&mut self) -> Option<NewEntry> {
        let entries = self.control.u32(control::ENTRIES).load(Ordering::Acquire);
        // A delayed process comes before its threads, whose entries are newer.
        if let Some(entry) = self.late_entry(self.seen < entries) {
            return Some(entry);
        }
        while self.seen < entries {
            let number = self.seen;
            let head = self.head(number);
            if head.is_none() && self.awaited_since(number).elapsed() < ENTRY_TIMEOUT {
                return None;
            }
            self.seen += 1;
            if head.is_none() && self.is_given_up(number) {
                continue;
            }
            let Some(head) = head else {
                self.late.push(number);
                // The oldest skipped entries never come.
                self.late
                    .drain(..self.late.len().saturating_sub(MAX_LATE_ENTRIES));
                continue;
            };
            let opened = self.open(number, &head);
            if opened.is_some() {
                return opened;
            }
        }
        None
    }

    /// True if there is no further entry.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.seen == self.control.u32(control::ENTRIES).load(Ordering::Acquire)
    }

    /// A skipped entry that is ready now. Checks at intervals, or immediately with `at_once`.
    fn late_entry(&mut self, at_once: bool) -> Option<NewEntry> {
        if self.late.is_empty() || !at_once && self.late_seen.elapsed() < LATE_CHECK_INTERVAL {
            return None;
        }
        self.late_seen = Instant::now();
        let mut ready = self.late.iter().enumerate();
        let (at, head) = ready.find_map(|(at, &number)| Some((at, self.head(number)?)))?;
        let number = self.late.remove(at);
        self.open(number, &head)
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dir.join(format!("e{number:08x}"))
    }

    /// The first page of an entry that is ready.
    fn head(&self, number: u32) -> Option<SharedMapping> {
        let head = open_shared(&self.path(number), wire::PAGE).ok()?;
        (head.u32(entry::READY).load(Ordering::Acquire) == 1).then_some(head)
    }

    /// True if the entry exists but cannot be opened, for example because too many files are open.
    /// Removes its name, so that its owner does not wait for a reader.
    fn is_given_up(&mut self, number: u32) -> bool {
        let path = self.path(number);
        let opened = File::open(&path).map(drop);
        let refused = opened.is_err_and(|e| e.kind() != std::io::ErrorKind::NotFound);
        if refused {
            self.unopened += 1;
            let _ = fs::remove_file(&path);
        }
        refused
    }

    fn open(&mut self, number: u32, head: &SharedMapping) -> Option<NewEntry> {
        let path = self.path(number);
        let opened = open_entry(&path, number, head, self.some_sets, self.namespace);
        self.unopened += u32::from(opened.is_none());
        // The mapping stays, and the name is no longer needed.
        let _ = fs::remove_file(&path);
        opened
    }

    /// Time since which entry `number` has been awaited.
    fn awaited_since(&mut self, number: u32) -> Instant {
        if self.waiting.is_none_or(|(n, _)| n != number) {
            self.waiting = Some((number, Instant::now()));
        }
        self.waiting.map_or_else(Instant::now, |(_, since)| since)
    }
}

fn open_entry(
    path: &Path,
    number: u32,
    head: &SharedMapping,
    some_sets: bool,
    own_namespace: u64,
) -> Option<NewEntry> {
    let field = |offset| head.u32(offset).load(Ordering::Relaxed);
    match field(entry::KIND) {
        entry::PROCESS => {
            let owner = field(entry::OWNER);
            let id = field(entry::PID);
            let namespace = head.u64(process::PID_SPACE).load(Ordering::Relaxed);
            let is_own = namespace == own_namespace || namespace == 0;
            let foreign_id = (!is_own).then_some(ForeignId { namespace, id });
            Some(NewEntry::Process(ProcessEntry {
                number,
                pid: match foreign_id {
                    None => id,
                    Some(foreign_id) => local_id(Path::new("/proc"), foreign_id, number),
                },
                foreign_id,
                start_id: head.u64(process::START_ID).load(Ordering::Relaxed),
                parent: (owner != entry::NONE).then(|| (owner, field(entry::FIRST_BLOCK))),
                shared: open_shared(path, wire::PAGE + wire::CATALOGUE_BYTES).ok()?,
                read: 0,
            }))
        }
        entry::THREAD => {
            let bytes = match some_sets {
                true => wire::SETS_BYTES,
                false => wire::RING_BYTES,
            };
            let shared = open_shared(path, bytes).ok()?;
            // Must be set before the name is removed, so that the thread does not wait for a
            // reader.
            shared
                .u32(ring::TAKEN)
                .store(ring::IS_READ, Ordering::SeqCst);
            Some(NewEntry::Thread(ThreadRing {
                number,
                process: field(entry::OWNER),
                tid: field(entry::TID),
                foreign_id: None,
                start_id: head.u64(ring::START_ID).load(Ordering::Relaxed),
                shared,
                tail: 0,
                read: 0,
                is_closed: false,
                some_sets,
            }))
        }
        _ => None,
    }
}

impl Drop for EngineSession {
    fn drop(&mut self) {
        self.stop();
        // Best effort. The next recording removes orphans.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl ProcessEntry {
    /// Number of forks begun so far.
    pub(crate) fn forks(&self) -> u32 {
        self.shared.u32(process::FORKS).load(Ordering::Acquire)
    }

    /// Number of instructions that the engine could not decode.
    pub(crate) fn undecoded(&self) -> u32 {
        self.shared.u32(process::UNDECODED).load(Ordering::Relaxed)
    }

    /// Number of instructions that ran unrecorded because the catalogue was full.
    pub(crate) fn without_room(&self) -> u32 {
        self.shared
            .u32(process::WITHOUT_ROOM)
            .load(Ordering::Relaxed)
    }

    fn used(&self) -> usize {
        let used = self.shared.u64(process::USED).load(Ordering::Acquire) as usize;
        used.min(wire::CATALOGUE_BYTES) / 8 * 8
    }

    /// Size of the catalogue that was read.
    pub(crate) fn catalogue_bytes(&self) -> u64 {
        self.read as u64
    }

    /// Catalogue records since the last call.
    pub(crate) fn unread(&mut self) -> Vec<u8> {
        let used = self.used();
        if used <= self.read {
            return Vec::new();
        }
        let words = self
            .shared
            .u64s(wire::PAGE + self.read, (used - self.read) / 8);
        let bytes = words
            .iter()
            .flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes())
            .collect();
        self.shared
            .release(wire::PAGE + self.read, used - self.read);
        self.read = used;
        bytes
    }
}

impl ThreadRing {
    /// Translates the thread's TID if its process is in another PID namespace.
    pub(crate) fn translate_tid(&mut self, process: &ProcessEntry) {
        let Some(process_id) = process.foreign_id else {
            return;
        };
        let foreign_id = ForeignId {
            id: self.tid,
            ..process_id
        };
        self.foreign_id = Some(foreign_id);
        self.tid = match foreign_id == process_id {
            true => process.pid,
            false => {
                let folder = PathBuf::from(format!("/proc/{}/task", process.pid));
                local_id(&folder, foreign_id, self.number)
            }
        };
    }

    /// True if the thread ended normally.
    pub(crate) fn finished(&self) -> bool {
        self.shared.u32(entry::FINISHED).load(Ordering::Acquire) == 1
    }

    /// Number of system calls, and current activity, of the thread.
    pub(crate) fn calls(&self) -> u32 {
        self.shared.u32(ring::CALLS).load(Ordering::Acquire)
    }

    /// The current sleep or wait, if it has a time limit.
    pub(crate) fn time_limit(&self) -> Option<TimeLimit> {
        let asks = self.shared.u64(ring::ASKS_NS).load(Ordering::Acquire);
        (asks != 0).then_some(TimeLimit {
            ns: asks & !wire::DEADLINE,
            by_deadline: asks & wire::DEADLINE != 0,
        })
    }

    /// The sleep that is held, if any.
    pub(crate) fn held(&self) -> Option<HeldSleep> {
        let number = self.shared.u32(ring::HELD).load(Ordering::SeqCst);
        (number != 0).then(|| HeldSleep {
            number,
            asked_ns: self.shared.u64(ring::ASKED_NS).load(Ordering::Relaxed),
        })
    }

    /// Reports that the other threads have advanced so far that a held sleep may have lasted for
    /// `reached_ns`. The sleep ends if that is its requested length.
    pub(crate) fn report_progress(&self, held: &HeldSleep, reached_ns: u64) {
        let reached = self.shared.u64(ring::REACHED_NS);
        reached.store(reached_ns, Ordering::SeqCst);
        if reached_ns >= held.asked_ns {
            let let_go = self.shared.u32(ring::LET_GO);
            let_go.store(held.number, Ordering::SeqCst);
            futex_wake(let_go);
        }
    }

    /// Wakes a held thread to check whether its event has happened.
    pub(crate) fn wake_held(&self) {
        futex_wake(self.shared.u32(ring::LET_GO));
    }

    /// Adds time in which only this thread was running.
    pub(crate) fn add_alone(&self, more: Duration) {
        let field = self.shared.u64(ring::ALONE_NS);
        field.fetch_add(more.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Reports to the thread that its start mark was read.
    pub(crate) fn begin(&self) {
        let begun = self.shared.u32(ring::BEGUN);
        begun.store(1, Ordering::SeqCst);
        futex_wake(begun);
    }

    /// Reports to the thread that nobody will read its words.
    pub(crate) fn leave(&self) {
        let taken = self.shared.u32(ring::TAKEN);
        taken.store(ring::IS_LEFT, Ordering::SeqCst);
    }

    /// Frees no further blocks, so the thread's recording ends when the free blocks are full.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Number of words that the engine dropped for lack of room.
    pub(crate) fn dropped(&self) -> u32 {
        self.shared.u32(ring::DROPPED).load(Ordering::Relaxed)
    }

    /// With `--sets`, instructions that the thread executed since its last word.
    pub(crate) fn ran(&self) -> u64 {
        let full = self.shared.u32(ring::FULL).load(Ordering::Relaxed) != 0;
        let ran = self.shared.u64(ring::RAN).load(Ordering::Relaxed);
        ran.wrapping_sub(u64::from(full) << 63)
    }

    /// With `--sets`, number of executions of each of the first `blocks` blocks.
    pub(crate) fn executions(&self, blocks: usize) -> &[AtomicU64] {
        match self.some_sets {
            true => self.shared.u64s(wire::COUNTS_AT, blocks.min(wire::COUNTED)),
            false => &[],
        }
    }

    /// Number of unread words.
    pub(crate) fn unread_words(&self) -> usize {
        let head = self.shared.u32(ring::HEAD).load(Ordering::Acquire);
        let sealed = head.wrapping_sub(self.tail) as usize;
        match sealed {
            0 => self.written().saturating_sub(self.read),
            _ => sealed * wire::BLOCK_WORDS,
        }
    }

    /// Unread words of the oldest block. With `eager`, also those of an unfinished block.
    pub(crate) fn unread(&self, eager: bool) -> Unread {
        let head = self.shared.u32(ring::HEAD).load(Ordering::Acquire);
        let sealed = head != self.tail;
        let words = if sealed {
            let at = self.tail as usize % wire::BLOCKS;
            self.shared.u32(ring::USED + 4 * at).load(Ordering::Relaxed) as usize
        } else if eager {
            self.written()
        } else {
            0
        };
        Unread {
            from: self.read,
            to: words.clamp(self.read, wire::BLOCK_WORDS),
            sealed,
        }
    }

    /// End of a turn of about `most` words: before a code block, but with `--sets` anywhere, since
    /// only the reader knows which words belong together.
    pub(crate) fn end_of_turn(&self, unread: &Unread, most: usize) -> usize {
        let to = unread.from + most;
        if to >= unread.to || self.some_sets {
            return to.min(unread.to);
        }
        let rest = &self.words(unread.to)[to..];
        let begins = |word: &AtomicU64| begins_block(word.load(Ordering::Relaxed));
        rest.iter().position(begins).map_or(unread.to, |n| to + n)
    }

    /// Number of the thread's last synchronisation mark.
    pub(crate) fn marked(&self) -> u64 {
        self.shared.u64(ring::MARKED).load(Ordering::Acquire)
    }

    /// Number of words in the unfinished block.
    fn written(&self) -> usize {
        let w = self.shared.u64(ring::W).load(Ordering::Acquire);
        let data = self.shared.u64(ring::DATA).load(Ordering::Relaxed);
        let block = 8 * wire::BLOCK_WORDS as u64;
        let start = data + u64::from(self.tail) % wire::BLOCKS as u64 * block;
        // While the thread switches to this block, `w` still points into the last one.
        let bytes = w.checked_sub(start).filter(|&bytes| bytes <= block);
        bytes.unwrap_or(0) as usize / 8
    }

    /// The first `to` words of the oldest unread block, including those that were read.
    pub(crate) fn words(&self, to: usize) -> &[AtomicU64] {
        let at = self.tail as usize % wire::BLOCKS;
        self.shared
            .u64s(wire::PAGE + at * 8 * wire::BLOCK_WORDS, to)
    }

    /// Marks the first `to` words of the block as read. With `whole`, frees the block.
    pub(crate) fn consume(&mut self, to: usize, whole: bool) {
        self.read = to;
        if !whole {
            return;
        }
        self.read = 0;
        self.tail = self.tail.wrapping_add(1);
        if self.is_closed {
            return;
        }
        let tail = self.shared.u32(ring::TAIL);
        tail.store(self.tail, Ordering::SeqCst);
        if self.shared.u32(ring::WAITING).load(Ordering::SeqCst) != 0 && self.is_half_read() {
            futex_wake(tail);
        }
    }

    /// True if a waiting thread should be woken, because it can fill several blocks before it has
    /// to wait again.
    fn is_half_read(&self) -> bool {
        let head = self.shared.u32(ring::HEAD).load(Ordering::Acquire);
        head.wrapping_sub(self.tail) as usize <= wire::BLOCKS / 2
    }

    /// True if everything written was read.
    pub(crate) fn drained(&self) -> bool {
        let unread = self.unread(true);
        unread.from == unread.to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills in entry `number` as a thread's engine does.
    fn fill(session: &EngineSession, number: u32) {
        let path = session.path(number);
        let file = File::create_new(&path).unwrap();
        file.set_len(wire::RING_BYTES as u64).unwrap();
        let entry = open_shared(&path, wire::PAGE).unwrap();
        entry
            .u32(entry::KIND)
            .store(entry::THREAD, Ordering::Relaxed);
        entry.u32(entry::READY).store(1, Ordering::Release);
    }

    fn wait_for_entry(session: &mut EngineSession) -> Option<NewEntry> {
        let since = Instant::now();
        while since.elapsed() < 3 * ENTRY_TIMEOUT {
            let entry = session.next_entry();
            if entry.is_some() {
                return entry;
            }
            std::thread::sleep(LATE_CHECK_INTERVAL);
        }
        None
    }

    #[test]
    fn an_entry_that_was_passed_over_still_comes() {
        let mut session = EngineSession::create(0).unwrap();
        session
            .control
            .u32(control::ENTRIES)
            .store(2, Ordering::Release);
        fill(&session, 1);
        assert!(
            session.next_entry().is_none(),
            "the older one is waited for"
        );
        assert!(!session.is_caught_up());
        assert!(wait_for_entry(&mut session).is_some(), "the younger one");
        assert!(session.is_caught_up() && session.next_entry().is_none());
        fill(&session, 0);
        assert!(
            wait_for_entry(&mut session).is_some(),
            "the older one, late"
        );
        assert_eq!(session.refused().map(|(count, _)| count), [0, 0]);
    }
}
