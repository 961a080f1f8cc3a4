//! Hands the references of a running program to whoever wants them, without
//! modelling a machine and without storing anything.
//!
//! Threads are read in turn, up to a block of the ring (some thousand
//! references) of each: the order between threads is theirs only as far as that.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use memgauge_trace::{CommandEnd, LossKind};

use super::catalogue::{Catalogue, Happening};
use super::parts::{Names, Parts, PartsBy};
use super::session::{Entry, ProcessEntry, Ring, Session};
use super::walk::{Place, References, Walk};
use super::{Emulator, GRACE, IDLE, PATIENCE, REAP_EVERY, ending, resolve, spawn};
use crate::sys::process::{Watched, interrupts};
use crate::{Error, Result};

/// References of one thread, in order.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Process, as the kernel numbers it.
    pub pid: u32,
    /// Thread, as the kernel numbers it.
    pub tid: u32,
    /// First byte of each; address spaces of different processes (and of a
    /// process before and after an exec) differ in the bits from 47 on.
    pub addresses: &'a [u64],
    /// Those that cross a multiple of the granule: which, and their bytes.
    pub crossing: &'a [(usize, u32)],
    /// Address of the instruction that makes each; empty if these are not wanted.
    pub ips: &'a [u64],
    /// Instructions of the blocks that they belong to.
    pub instructions: u64,
    /// From which reference on they are of which part; empty if none are wanted.
    pub parts: &'a [(usize, u32)],
    /// What the parts are called, by number.
    pub part_names: &'a [String],
}

/// What is to be said of references.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// References that cross a multiple of so many bytes, a power of two, are marked.
    pub granule: u64,
    /// Which parts of the program they belong to.
    pub parts: Option<PartsBy>,
    /// Which instruction makes each.
    pub ips: bool,
}

/// How a streamed run was.
#[derive(Clone, Debug)]
pub struct Streamed {
    /// How the command ended.
    pub end: CommandEnd,
    /// Instructions executed.
    pub instructions: u64,
    /// References given on.
    pub references: u64,
    /// What is missing, by kind, count and detail.
    pub losses: Vec<(LossKind, u64, String)>,
}

/// Address spaces told apart; later processes share numbers.
const SPACES: u64 = 1 << 10;
/// First bit of an address space's number: user space ends there.
const SPACE_SHIFT: u32 = 47;

struct Process {
    entry: ProcessEntry,
    watched: Watched,
    catalogue: Catalogue,
    parts: Parts,
    children: u32,
    live_threads: u32,
    ended: bool,
}

struct Thread {
    ring: Ring,
    place: Place,
    has_begun: bool,
}

/// Everything followed.
struct Followed {
    processes: BTreeMap<u32, Process>,
    threads: Vec<Thread>,
    born: u32,
    wanted: Wanted,
    references: References,
    /// From which of the references on they are of which part.
    parts: Vec<(usize, u32)>,
    part_names: Names,
    given: u64,
    losses: BTreeMap<(LossKind, String), u64>,
}

type Sink<'a> = &'a mut dyn FnMut(&Batch<'_>) -> ControlFlow<()>;

/// Runs the command under the emulator and gives its references to `sink`; where
/// that fails, the command is killed.
///
/// # Errors
/// What `sink` said; the program cannot run or the emulator is missing.
pub fn stream<E: From<Error>>(
    command: &[String],
    wanted: Wanted,
    sink: &mut dyn FnMut(&Batch<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<Streamed, E> {
    let mut failure = None;
    let streamed = stream_while(command, wanted, &mut |batch| match sink(batch) {
        Ok(()) => ControlFlow::Continue(()),
        Err(e) => {
            failure = Some(e);
            ControlFlow::Break(())
        }
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(streamed?),
    }
}

fn stream_while(command: &[String], wanted: Wanted, sink: Sink<'_>) -> Result<Streamed> {
    resolve(command)?;
    let emulator = Emulator::find()?;
    let mut session = Session::create()?;
    let mut child = spawn(command, &emulator, &session)?;
    let mut followed = Followed::new(wanted);
    let end = followed.until_the_end(&mut child, &mut session, sink);
    if end.is_err() {
        session.stop();
        let _ = child.kill();
        let _ = child.wait();
    }
    followed.close(&mut session, end?, sink)
}

impl Followed {
    fn new(wanted: Wanted) -> Followed {
        Followed {
            processes: BTreeMap::new(),
            threads: Vec::new(),
            born: 0,
            wanted,
            references: References::default(),
            parts: Vec::new(),
            part_names: Names::default(),
            given: 0,
            losses: BTreeMap::new(),
        }
    }

    fn until_the_end(
        &mut self,
        child: &mut std::process::Child,
        session: &mut Session,
        sink: Sink<'_>,
    ) -> Result<CommandEnd> {
        let (mut idle, mut reaped) = (0, Instant::now());
        let mut asked: Option<Instant> = None;
        loop {
            let eager = idle >= PATIENCE || asked.is_some();
            let Some(busy) = self.poll(session, eager, sink) else {
                child.kill().and_then(|()| child.wait()).ok();
                return Ok(CommandEnd::Interrupted);
            };
            idle = if busy || idle >= PATIENCE {
                0
            } else {
                idle + 1
            };
            if !busy {
                std::thread::sleep(IDLE);
            }
            if reaped.elapsed() < REAP_EVERY {
                continue;
            }
            reaped = Instant::now();
            let _ = self.reap(session, false, sink);
            let status = child
                .try_wait()
                .map_err(|e| Error::system("failed to wait for the program", e))?;
            match status {
                Some(_) if asked.is_some() => return Ok(CommandEnd::Interrupted),
                Some(status) => return Ok(ending(status)),
                None if interrupts() > 0 => self.interrupt(child, &mut asked, GRACE),
                None => {}
            }
        }
    }

    /// The user wants to stop: the program is asked, then made to.
    fn interrupt(
        &self,
        child: &mut std::process::Child,
        asked: &mut Option<Instant>,
        grace: Duration,
    ) {
        let signal_all = |signal| {
            self.processes
                .values()
                .for_each(|p| p.watched.signal(signal))
        };
        match asked {
            None => signal_all(libc::SIGTERM),
            Some(since) if since.elapsed() > grace => {
                signal_all(libc::SIGKILL);
                let _ = child.kill();
            }
            Some(_) => {}
        }
        asked.get_or_insert_with(Instant::now);
    }

    fn close(mut self, session: &mut Session, end: CommandEnd, sink: Sink<'_>) -> Result<Streamed> {
        while self.poll(session, true, sink) == Some(true) {}
        // One that was killed may not have come so far.
        if self.born == 0 && matches!(end, CommandEnd::Exited(_)) {
            return Err(Error::new(
                crate::ErrorKind::Missing,
                "failed to load the QEMU plugin: `memgauge doctor` says why, `make plugin` builds it anew",
            ));
        }
        let _ = self.reap(session, false, sink);
        let running = self.processes.values().filter(|p| !p.ended).count() as u64;
        self.lose(LossKind::StillRunning, running, "");
        session.stop();
        let _ = self.poll(session, true, sink);
        let _ = self.reap(session, true, sink);
        let refused = u64::from(session.refused());
        self.lose(
            LossKind::ThreadNotRecorded,
            refused,
            "no room for shared memory",
        );
        let losses = self.losses.into_iter();
        Ok(Streamed {
            end,
            instructions: self.references.instructions,
            references: self.given,
            losses: losses
                .map(|((kind, detail), count)| (kind, count, detail))
                .collect(),
        })
    }

    fn lose(&mut self, kind: LossKind, count: u64, detail: &str) {
        if count > 0 {
            *self.losses.entry((kind, detail.to_owned())).or_default() += count;
        }
    }

    /// Reads what there is; whether it found anything, or `None` if the sink
    /// wants no more.
    fn poll(&mut self, session: &mut Session, eager: bool, sink: Sink<'_>) -> Option<bool> {
        let mut busy = self.welcome(session);
        for index in 0..self.threads.len() {
            busy |= self.step(index, eager, false, sink)?;
        }
        Some(busy)
    }

    /// Takes in the processes and threads that have appeared; whether there were any.
    fn welcome(&mut self, session: &mut Session) -> bool {
        let mut any = false;
        while let Some(entry) = session.next_entry() {
            any = true;
            match entry {
                Entry::Process(entry) => self.add_process(entry),
                Entry::Thread(ring) => self.add_thread(ring),
            }
        }
        any
    }

    fn add_process(&mut self, entry: ProcessEntry) {
        self.born += 1;
        let pid = entry.pid;
        let same = self.processes.values_mut().rev();
        if let Some(before) = same.into_iter().find(|p| p.entry.pid == pid && !p.ended) {
            before.ended = true; // exec: its threads are read to their end
        }
        let (mut catalogue, mut parts) = (Catalogue::default(), Parts::default());
        if let Some((owner, first_block)) = entry.parent {
            self.read_catalogue(owner);
            if let Some(parent) = self.processes.get_mut(&owner) {
                parent.children += 1;
                catalogue = parent.catalogue.inherited(first_block);
                parts = parent.parts.inherited();
            }
        }
        let process = Process {
            watched: Watched::new(pid),
            catalogue,
            parts,
            children: 0,
            live_threads: 0,
            ended: false,
            entry,
        };
        self.processes.insert(process.entry.number, process);
    }

    fn add_thread(&mut self, ring: Ring) {
        match self.processes.get_mut(&ring.process) {
            Some(process) => {
                process.live_threads += 1;
                self.threads.push(Thread {
                    ring,
                    place: Place::default(),
                    has_begun: false,
                });
            }
            None => self.lose(
                LossKind::ThreadNotRecorded,
                1,
                "its process could not be opened",
            ),
        }
    }

    /// Gives on the next references of a thread; whether there were any words.
    fn step(&mut self, index: usize, eager: bool, last: bool, sink: Sink<'_>) -> Option<bool> {
        let thread = &self.threads[index];
        let (number, unread) = (thread.ring.process, thread.ring.unread(eager || last));
        if unread.from == unread.to && !unread.sealed {
            return Some(false);
        }
        // After the words were seen: what they speak of was written before them.
        self.read_catalogue(number);
        let thread = &mut self.threads[index];
        let Some(process) = self.processes.get_mut(&number) else {
            return Some(false);
        };
        let instructions = self.references.instructions;
        self.references.clear();
        let space = (u64::from(process.entry.number) % SPACES) << SPACE_SHIFT;
        let mut walk = Walk {
            catalogue: &process.catalogue,
            place: &mut thread.place,
            out: &mut self.references,
            space,
            granule: self.wanted.granule,
            by_block: self.wanted.parts == Some(PartsBy::Module),
            by_instruction: self.wanted.ips,
        };
        let words = thread.ring.words(unread.to);
        let at = walk.run(words, unread.from, unread.sealed || last);
        thread.ring.consume(at, unread.sealed);
        let (pid, tid) = (process.entry.pid, thread.ring.tid);
        self.find_parts(index, space);
        let batch = Batch {
            pid,
            tid,
            addresses: &self.references.addresses,
            crossing: &self.references.crossing,
            ips: &self.references.ips,
            instructions: self.references.instructions - instructions,
            parts: &self.parts,
            part_names: &self.part_names.all,
        };
        self.given += batch.addresses.len() as u64;
        if sink(&batch).is_break() {
            return None;
        }
        Some(at > unread.from || unread.sealed)
    }

    /// Finds out which parts the references of a thread belong to, if that is wanted.
    fn find_parts(&mut self, index: usize, space: u64) {
        let (Some(by), thread) = (self.wanted.parts, &mut self.threads[index]) else {
            return;
        };
        let Some(process) = self.processes.get_mut(&thread.ring.process) else {
            return;
        };
        self.parts.clear();
        let addresses = &self.references.addresses;
        if let (false, Some(first)) = (thread.has_begun, addresses.first()) {
            thread.has_begun = true;
            process.parts.name_stack(first ^ space);
        }
        let (names, out) = (&mut self.part_names, &mut self.parts);
        match by {
            PartsBy::Module => {
                let blocks = &self.references.blocks;
                process
                    .parts
                    .of_code(blocks, &process.catalogue, names, out);
            }
            PartsBy::Region => process.parts.of_data(addresses, space, names, out),
        }
    }

    fn read_catalogue(&mut self, number: u32) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let (happenings, bad) = process.entry.read_into(&mut process.catalogue);
        if self.wanted.parts.is_some() {
            happenings.iter().for_each(|h| process.parts.observe(h));
        }
        for happening in happenings {
            if let Happening::NotFollowed(what) = happening {
                self.lose(LossKind::ProgramNotFollowed, 1, &what);
            }
        }
        if let Some(bad) = bad {
            self.lose(LossKind::Undecoded, 1, &bad.to_string());
        }
    }

    /// Notices ended threads and processes. With `all`, everything counts as ended.
    fn reap(&mut self, session: &mut Session, all: bool, sink: Sink<'_>) -> Option<()> {
        for process in self.processes.values_mut() {
            process.ended |= all || process.watched.ended();
        }
        // Order matters: a thread that appeared before its process ended is seen
        // after that, unless an older entry keeps it waiting.
        self.welcome(session);
        let mut index = 0;
        while index < self.threads.len() {
            let ring = &self.threads[index].ring;
            let ended = self.processes.get(&ring.process).is_none_or(|p| p.ended);
            // Order matters: what was written before the end is seen after it.
            if ended || ring.finished() {
                while self.step(index, true, true, sink)? {}
                if self.threads[index].ring.drained() {
                    self.end_thread(index);
                    continue;
                }
            }
            index += 1;
        }
        if all || session.is_caught_up() {
            self.forget_processes();
        }
        Some(())
    }

    fn end_thread(&mut self, index: usize) {
        let thread = self.threads.swap_remove(index);
        let stray = thread.place.stray + u64::from(thread.ring.dropped());
        let missing = thread.place.missing.max(0).unsigned_abs();
        self.lose(LossKind::BlockCut, missing, "");
        self.lose(LossKind::StrayAccess, stray, "");
        if let Some(process) = self.processes.get_mut(&thread.ring.process) {
            process.live_threads -= 1;
        }
    }

    /// Forgets processes that have ended and whose forked children have all
    /// appeared (they copy what the parent knew).
    fn forget_processes(&mut self) {
        let done = |p: &Process| p.ended && p.live_threads == 0 && p.children >= p.entry.forks();
        let undecoded: u32 = self
            .processes
            .values()
            .filter(|p| done(p))
            .map(|p| p.entry.undecoded())
            .sum();
        self.lose(LossKind::Undecoded, u64::from(undecoded), "");
        self.processes.retain(|_, p| !done(p));
    }
}
