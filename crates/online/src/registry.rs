//! Threads as readers see them: buffers, counts, and whom to wake.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::Clean;
use crate::regions::RegionTree;
use crate::ring::{Account, QUEUES, Ring};
use crate::sample::WORDS;
use crate::settings::Settings;

/// The queue that readers share.
pub(crate) const SHARED_QUEUE: usize = 0;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// It is sampled, where the profiler is on.
    Started = 0,
    /// It was told to stop, or not yet to start.
    Stopped = 1,
    /// It has ended; its samples stay until they are read and cleaned up.
    Ended = 2,
    /// It was deleted from the profiler; its samples stay likewise.
    Deleted = 3,
}

impl State {
    fn of(code: u8) -> State {
        match code {
            0 => State::Started,
            1 => State::Stopped,
            2 => State::Ended,
            _ => State::Deleted,
        }
    }
}

/// Counts of a thread. Exactly:
/// `samples + lost = delivered + overwritten + refused + waiting + lost`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The kernel's name of it; empty where nobody could tell.
    pub command: String,
    /// What it does.
    pub state: State,
    /// Samples that were taken, and decoded.
    pub samples: u64,
    /// Those of them that were taken in the kernel.
    pub kernel_samples: u64,
    /// Those of them with a data address.
    pub memory_samples: u64,
    /// Samples that the kernel's ring had no room for.
    pub lost: u64,
    /// Samples refused, since the buffer was full.
    pub refused: u64,
    /// Samples of the kernel that the processor took and nobody wanted; not in `samples`.
    pub unwanted: u64,
    /// Times the kernel stopped sampling for a moment, since it was too fast.
    pub throttled: u64,
    /// Bytes of the kernel's ring that could not be read.
    pub unreadable_bytes: u64,
    /// Sum of what the samples stand for.
    pub stands_for: u64,
    /// Events that the thread's counter counted.
    pub counted: u64,
    /// The period now.
    pub period: u64,
    /// Samples that its buffer holds.
    pub buffer: u64,
    /// Nanoseconds that the thread was on a processor since it was added.
    pub processor_ns: u64,
    /// Nanoseconds of memgauge's own processor time for reading this thread's samples.
    pub own_ns: u64,
    /// Times it was seen to do something else than before, where phases are told apart.
    pub changes: u64,
    /// What became of the samples, for all readers together: one is delivered once any of
    /// them has got it. [`crate::Reader::accounts`] tells what a single one got.
    pub account: Account,
}

impl Statistics {
    /// Samples taken, lost ones included.
    pub fn produced(&self) -> u64 {
        self.samples + self.lost
    }

    /// Whether every sample is accounted for.
    pub fn is_exact(&self) -> bool {
        let a = self.account;
        self.produced() == a.delivered + a.overwritten + a.waiting + self.refused + self.lost
    }
}

/// Counts that the collector writes and everybody reads.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) samples: AtomicU64,
    pub(crate) kernel_samples: AtomicU64,
    pub(crate) memory_samples: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) unwanted: AtomicU64,
    pub(crate) throttled: AtomicU64,
    pub(crate) unreadable_bytes: AtomicU64,
    pub(crate) stands_for: AtomicU64,
    pub(crate) counted: AtomicU64,
    pub(crate) period: AtomicU64,
    pub(crate) processor_ns: AtomicU64,
    pub(crate) own_ns: AtomicU64,
    pub(crate) changes: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// A thread that is or was sampled.
pub(crate) struct SampledThread {
    pub(crate) number: u64,
    pub(crate) pid: AtomicU32,
    pub(crate) tid: AtomicU32,
    command: Mutex<String>,
    state: AtomicU8,
    pub(crate) ring: Arc<Ring<WORDS>>,
    pub(crate) counts: Counts,
}

impl SampledThread {
    pub(crate) fn new(number: u64, (pid, tid): (u32, u32), ring: Arc<Ring<WORDS>>) -> Self {
        SampledThread {
            number,
            pid: AtomicU32::new(pid),
            tid: AtomicU32::new(tid),
            command: Mutex::default(),
            state: AtomicU8::new(State::Stopped as u8),
            ring,
            counts: Counts::default(),
        }
    }

    pub(crate) fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    fn command(&self) -> MutexGuard<'_, String> {
        self.command.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn set_command(&self, name: &str) {
        name.clone_into(&mut self.command());
    }

    pub(crate) fn state(&self) -> State {
        State::of(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Whether nothing is sampled any more.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state(), State::Ended | State::Deleted)
    }

    /// Whether every reader has read everything.
    pub(crate) fn is_read(&self) -> bool {
        let mut open = (0..QUEUES).filter(|&q| self.ring.is_open(q)).peekable();
        match open.peek() {
            // Those who got them have gone.
            None => self.ring.account_of_all().waiting == 0,
            Some(_) => open.all(|q| self.ring.account(q).waiting == 0),
        }
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let c = &self.counts;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            pid: self.pid(),
            tid: self.tid(),
            command: self.command().clone(),
            state: self.state(),
            samples: of(&c.samples),
            kernel_samples: of(&c.kernel_samples),
            memory_samples: of(&c.memory_samples),
            lost: of(&c.lost),
            refused: self.ring.refused(),
            unwanted: of(&c.unwanted),
            throttled: of(&c.throttled),
            unreadable_bytes: of(&c.unreadable_bytes),
            stands_for: of(&c.stands_for),
            counted: of(&c.counted),
            period: of(&c.period),
            buffer: self.ring.capacity(),
            processor_ns: of(&c.processor_ns),
            own_ns: of(&c.own_ns),
            changes: of(&c.changes),
            account: self.ring.account_of_all(),
        }
    }
}

/// A reader, as the profiler knows it.
pub(crate) struct Seat {
    pub(crate) number: u64,
    pub(crate) queue: usize,
    /// It reads on, other than a batch.
    pub(crate) lasts: bool,
    /// The thread it reads; `None`: all.
    pub(crate) only: Option<u64>,
    pub(crate) wake: UnixStream,
}

/// All threads, and who reads them.
#[derive(Default)]
pub(crate) struct Registry {
    inner: Mutex<Seats>,
    /// Raised with each thread that comes or goes.
    pub(crate) generation: AtomicU64,
    regions: Mutex<RegionTree>,
}

#[derive(Default)]
pub(crate) struct Seats {
    pub(crate) threads: Vec<Arc<SampledThread>>,
    pub(crate) readers: Vec<Seat>,
    pub(crate) next_reader: u64,
    /// Last counts of threads that were forgotten for others, until somebody cleans up.
    pub(crate) made_room: Vec<Statistics>,
    /// Whether somebody has begun to read the shared queue.
    pub(crate) shared: bool,
}

impl Seats {
    /// Whether somebody reads the shared queue on and on.
    fn shared_lasts(&self) -> bool {
        let mut readers = self.readers.iter();
        readers.any(|seat| seat.queue == SHARED_QUEUE && seat.lasts)
    }

    fn forget(&mut self, which: Clean) -> Vec<Statistics> {
        let over = self.threads.iter().filter(|t| t.is_over()).count();
        let mut excess = match which {
            Clean::AllBut(kept) => over.saturating_sub(kept),
            Clean::All => over,
            Clean::Read => 0,
        };
        self.remove(|t| {
            let gone = t.is_over() && (excess > 0 || (which == Clean::Read && t.is_read()));
            excess -= usize::from(gone && excess > 0);
            gone
        })
    }

    fn remove(&mut self, mut gone: impl FnMut(&SampledThread) -> bool) -> Vec<Statistics> {
        let (out, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.threads)
            .into_iter()
            .partition(|thread| gone(thread));
        self.threads = kept;
        out.iter().map(|thread| thread.statistics()).collect()
    }

    /// The place of the shared queue stays when its readers go. Where nobody reads it on
    /// it must not take the room of those who read.
    pub(crate) fn settle_shared(&self) {
        let lasts = self.shared_lasts();
        for thread in &self.threads {
            thread.ring.give_way(SHARED_QUEUE, !lasts);
        }
    }
}

impl Registry {
    pub(crate) fn seats(&self) -> MutexGuard<'_, Seats> {
        // What a panic leaves behind is a list still.
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The regions that samples are in.
    pub(crate) fn regions(&self) -> MutexGuard<'_, RegionTree> {
        self.regions.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// A thread came: those who read all threads read it from its first sample on.
    pub(crate) fn add(&self, thread: &Arc<SampledThread>) {
        let mut seats = self.seats();
        if seats.shared {
            thread.ring.give_way(SHARED_QUEUE, !seats.shared_lasts());
            thread.ring.open(SHARED_QUEUE);
        }
        let all = seats.readers.iter().filter(|seat| seat.only.is_none());
        for seat in all.filter(|seat| seat.queue != SHARED_QUEUE) {
            thread.ring.open(seat.queue);
        }
        seats.threads.push(Arc::clone(thread));
        drop(seats);
        self.changed();
    }

    /// Whether another thread may come. Where there are `most`, some that have ended make room.
    pub(crate) fn has_room(&self, settings: &Settings) -> bool {
        let most = settings.most_threads;
        let unread = settings.ended_make_room.then_some(Clean::AllBut(most / 2));
        let mut seats = self.seats();
        for which in [Some(Clean::Read), unread].into_iter().flatten() {
            if seats.threads.len() >= most {
                let gone = seats.forget(which);
                seats.made_room.extend(gone);
                self.changed();
            }
        }
        seats.threads.len() < most
    }

    /// Forgets threads that have ended or were deleted; the last counts of those and of
    /// the ones that made room.
    pub(crate) fn clean(&self, which: Clean) -> Vec<Statistics> {
        let mut seats = self.seats();
        let mut gone = std::mem::take(&mut seats.made_room);
        gone.extend(seats.forget(which));
        self.changed();
        gone
    }

    /// Threads are forgotten.
    pub(crate) fn remove(&self, gone: impl FnMut(&SampledThread) -> bool) {
        self.seats().remove(gone);
        self.changed();
    }

    /// Wakes those who read any of the threads.
    pub(crate) fn wake(&self, threads: &[u64]) {
        for seat in &self.seats().readers {
            if seat.only.is_none_or(|number| threads.contains(&number)) {
                wake(&seat.wake);
            }
        }
    }
}

/// Makes a descriptor readable. One that is full is readable already.
pub(crate) fn wake(mut stream: &UnixStream) {
    drop(stream.write(&[1]));
}
