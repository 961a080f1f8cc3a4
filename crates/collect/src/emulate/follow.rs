//! Follows every process and thread of a session: who appears and as what, who has
//! ended, whose words are read next. What the words mean is a [`Reader`]'s affair.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use memgauge_trace::LossKind;

use super::catalogue::{Catalogue, Happening};
use super::session::{Entry, ProcessEntry, Ring, Session};
use crate::sys::process::Watched;

/// A followed process, from its birth or exec to its end or next exec.
pub(super) struct Process<P> {
    pub(super) entry: ProcessEntry,
    /// What the reader keeps of it.
    pub(super) kept: P,
    watched: Watched,
    /// Forked children that have appeared.
    children: u32,
    live_threads: u32,
    ended: bool,
}

/// A followed thread.
pub(super) struct Thread<T> {
    pub(super) ring: Ring,
    /// What the reader keeps of it.
    pub(super) kept: T,
}

/// Where a process comes from.
pub(super) struct Origin<'a, P> {
    /// What it was before an exec, read to its end.
    pub(super) before: Option<&'a Process<P>>,
    /// The process it was forked from, and that one's blocks by then.
    pub(super) parent: Option<(&'a Process<P>, u32)>,
}

/// Words of a thread.
pub(super) struct Words<'a> {
    pub(super) all: &'a [AtomicU64],
    /// Where the unread ones begin.
    pub(super) from: usize,
    /// Nothing will be added to them.
    pub(super) whole: bool,
}

/// What is made of the words of those followed.
pub(super) trait Reader {
    type Process;
    type Thread;

    /// The code of a process, which is read ahead of the words that speak of it.
    fn catalogue(kept: &mut Self::Process) -> &mut Catalogue;

    /// What is to be kept of a process that has appeared.
    fn begin_process(
        &mut self,
        entry: &ProcessEntry,
        origin: Origin<'_, Self::Process>,
    ) -> Self::Process;

    /// What is to be kept of a thread that has appeared.
    fn begin_thread(&mut self, process: &Process<Self::Process>) -> Self::Thread;

    /// Something happened in a process that is told beside its code.
    fn happened(&mut self, process: &mut Process<Self::Process>, happening: Happening);

    /// Takes in words of thread `tid`; up to where.
    fn read(
        &mut self,
        process: &mut Process<Self::Process>,
        tid: u32,
        thread: &mut Self::Thread,
        words: &Words<'_>,
    ) -> usize;

    /// A thread has ended and is read to its end.
    fn end_thread(&mut self, process: &mut Process<Self::Process>, thread: Thread<Self::Thread>);

    /// A process has ended, as have its threads, and its forked children have appeared.
    fn end_process(&mut self, process: Process<Self::Process>);

    /// Something was lost, in a process if it is known which.
    fn lose(
        &mut self,
        process: Option<&Process<Self::Process>>,
        kind: LossKind,
        count: u64,
        detail: &str,
    );

    /// Whether nothing more is to be read.
    fn has_enough(&self) -> bool {
        false
    }
}

/// How far to read a thread's words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Whole blocks of the ring.
    Sealed,
    /// What is written by now.
    Now,
    /// The last word: the thread has ended.
    End,
}

/// Everything followed.
pub(super) struct Followed<R: Reader> {
    pub(super) reader: R,
    pub(super) processes: BTreeMap<u32, Process<R::Process>>,
    pub(super) threads: Vec<Thread<R::Thread>>,
    pub(super) born: Born,
}

/// How many have appeared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Born {
    pub(super) processes: u32,
    pub(super) threads: u32,
}

impl<R: Reader> Followed<R> {
    pub(super) fn new(reader: R) -> Followed<R> {
        Followed {
            reader,
            processes: BTreeMap::new(),
            threads: Vec::new(),
            born: Born::default(),
        }
    }

    /// Reads what there is; with `eager`, blocks still being written too. Whether it
    /// found anything.
    pub(super) fn poll(&mut self, session: &mut Session, eager: bool) -> bool {
        let mut busy = self.welcome(session);
        for index in 0..self.threads.len() {
            busy |= self.step(index, if eager { Until::Now } else { Until::Sealed });
        }
        busy
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
        self.born.processes += 1;
        let number = entry.number;
        let before = self.end_by_exec(entry.pid);
        if let Some((owner, _)) = entry.parent {
            self.read_catalogue(owner);
            if let Some(parent) = self.processes.get_mut(&owner) {
                parent.children += 1;
            }
        }
        let known = |number: u32| self.processes.get(&number);
        let parent = entry
            .parent
            .and_then(|(owner, blocks)| Some((known(owner)?, blocks)));
        let origin = Origin {
            before: before.and_then(known),
            parent,
        };
        let process = Process {
            kept: self.reader.begin_process(&entry, origin),
            watched: Watched::new(entry.pid),
            children: 0,
            live_threads: 0,
            ended: false,
            entry,
        };
        self.processes.insert(number, process);
    }

    /// Ends what a process was before it became another program; its number. Its
    /// threads have stopped, and are read to their end, at which the next program
    /// begins.
    fn end_by_exec(&mut self, pid: u32) -> Option<u32> {
        let mut before = self.processes.iter_mut().rev();
        let (&number, old) = before.find(|(_, p)| p.entry.pid == pid && !p.ended)?;
        old.ended = true;
        self.end_threads(|ring, _| ring.process == number);
        Some(number)
    }

    fn add_thread(&mut self, ring: Ring) {
        let Some(process) = self.processes.get_mut(&ring.process) else {
            let why = "its process could not be opened";
            ring.leave();
            return self.reader.lose(None, LossKind::ThreadNotRecorded, 1, why);
        };
        self.born.threads += 1;
        process.live_threads += 1;
        let kept = self.reader.begin_thread(process);
        self.threads.push(Thread { ring, kept });
    }

    /// Gives the reader the next words of a thread; whether there were any.
    fn step(&mut self, index: usize, until: Until) -> bool {
        let thread = &self.threads[index];
        let (number, unread) = (
            thread.ring.process,
            thread.ring.unread(until != Until::Sealed),
        );
        if unread.from == unread.to && !unread.sealed || self.reader.has_enough() {
            return false;
        }
        // After the words were seen: what they speak of was written before them.
        self.read_catalogue(number);
        let thread = &mut self.threads[index];
        let Some(process) = self.processes.get_mut(&number) else {
            return false;
        };
        let words = Words {
            all: thread.ring.words(unread.to),
            from: unread.from,
            whole: unread.sealed || until == Until::End,
        };
        let at = self
            .reader
            .read(process, thread.ring.tid, &mut thread.kept, &words);
        thread.ring.consume(at, unread.sealed);
        at > unread.from || unread.sealed
    }

    fn read_catalogue(&mut self, number: u32) {
        let Some(process) = self.processes.get_mut(&number) else {
            return;
        };
        let (happenings, bad) = process.entry.read_into(R::catalogue(&mut process.kept));
        for happening in happenings {
            self.reader.happened(process, happening);
        }
        if let Some(bad) = bad {
            let bad = bad.to_string();
            self.reader
                .lose(Some(process), LossKind::Undecoded, 1, &bad);
        }
    }

    /// Notices ended threads and processes. With `all`, everything counts as ended.
    pub(super) fn reap(&mut self, session: &mut Session, all: bool) {
        for process in self.processes.values_mut() {
            process.ended |= all || process.watched.ended();
        }
        // Order matters: a thread that appeared before its process ended is seen
        // after that, unless an older entry keeps it waiting.
        self.welcome(session);
        // And: what was written before the end is seen after it.
        self.end_threads(|ring, process_ended| process_ended || ring.finished());
        if all || session.is_caught_up() {
            self.end_processes();
        }
    }

    /// Ends the threads that say so, by their ring and whether their process has
    /// ended, and that have no words left.
    fn end_threads(&mut self, has_ended: impl Fn(&Ring, bool) -> bool) {
        let mut index = 0;
        while index < self.threads.len() {
            let ring = &self.threads[index].ring;
            let process_ended = self.processes.get(&ring.process).is_none_or(|p| p.ended);
            if has_ended(ring, process_ended) && self.is_read(index) {
                self.end_thread(index);
            } else {
                index += 1;
            }
        }
    }

    /// Reads what an ended thread left; whether that was all.
    fn is_read(&mut self, index: usize) -> bool {
        while self.step(index, Until::End) {}
        self.threads[index].ring.drained()
    }

    fn end_thread(&mut self, index: usize) {
        let thread = self.threads.swap_remove(index);
        if let Some(process) = self.processes.get_mut(&thread.ring.process) {
            process.live_threads -= 1;
            self.reader.end_thread(process, thread);
        }
    }

    /// Forgets processes that have ended and whose forked children have all appeared
    /// (they copy what the parent knew).
    fn end_processes(&mut self) {
        let is_done =
            |p: &Process<_>| p.ended && p.live_threads == 0 && p.children >= p.entry.forks();
        let all = self.processes.iter();
        let done: Vec<u32> = all.filter(|(_, p)| is_done(p)).map(|(&n, _)| n).collect();
        for number in done {
            // What it said after its last words, of a program it became, too.
            self.read_catalogue(number);
            if let Some(process) = self.processes.remove(&number) {
                self.reader.end_process(process);
            }
        }
    }

    /// Processes that have not ended.
    pub(super) fn live_processes(&self) -> u64 {
        let all = self.processes.values();
        all.filter(|p| !p.ended && !p.watched.ended()).count() as u64
    }

    /// Sends `signal` to every live process.
    pub(super) fn signal_all(&self, signal: i32) {
        let all = self.processes.values();
        all.for_each(|p| p.watched.signal(signal));
    }
}
