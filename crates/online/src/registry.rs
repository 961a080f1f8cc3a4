//! Threads as readers see them: buffers, counts, and the readers to wake.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::Clean;
use crate::procfs::ThreadIds;
use crate::ring::{DeliveryAccount, QUEUES, SampleRing};
use crate::roi::RoiTree;
use crate::sample::WORDS;
use crate::settings::Settings;

/// The queue that readers share.
pub(crate) const SHARED_QUEUE: usize = 0;

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ThreadState {
    /// Sampled, if the profiler is enabled.
    Started = 0,
    /// Not sampled: it was stopped.
    Stopped = 1,
    /// Ended. Its samples remain until they are read and cleaned up.
    Ended = 2,
    /// Deleted from the profiler. Its samples remain likewise.
    Deleted = 3,
}

impl ThreadState {
    fn from_code(code: u8) -> ThreadState {
        match code {
            0 => ThreadState::Started,
            1 => ThreadState::Stopped,
            2 => ThreadState::Ended,
            _ => ThreadState::Deleted,
        }
    }
}

/// Counts of a thread. Always exact: `samples + lost = delivered + overwritten + refused + waiting
/// + lost`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Process ID.
    pub pid: u32,
    /// Thread ID.
    pub tid: u32,
    /// Name of the thread; empty if it is unknown.
    pub command: String,
    /// State of the profiler.
    pub state: ThreadState,
    /// Samples taken and decoded.
    pub samples: u64,
    /// Samples among these that were taken in the kernel.
    pub kernel_samples: u64,
    /// Samples among these that have a data address.
    pub memory_samples: u64,
    /// Samples lost because the kernel's ring was full.
    pub lost: u64,
    /// Samples refused because the buffer was full.
    pub refused: u64,
    /// Kernel samples that the processor took although they were not requested. Not in `samples`.
    pub unwanted: u64,
    /// Number of times the kernel throttled sampling.
    pub throttled: u64,
    /// Bytes of the kernel's ring that could not be decoded.
    pub unreadable_bytes: u64,
    /// Sum of the events that the samples stand for.
    pub stands_for: u64,
    /// Events counted by the thread's counter.
    pub counted: u64,
    /// Current period.
    pub period: u64,
    /// Buffer size in samples.
    pub buffer: u64,
    /// CPU time of the thread in nanoseconds since it was added.
    pub processor_ns: u64,
    /// CPU time in nanoseconds that memgauge used to read this thread's samples.
    pub own_ns: u64,
    /// Number of phase changes, if phases are detected.
    pub changes: u64,
    /// State of the samples for all readers together: a sample is delivered when any of them has
    /// read it. [`crate::Reader::accounts`] has the state for one reader.
    pub account: DeliveryAccount,
}

impl Statistics {
    /// Number of samples taken, including lost ones.
    pub fn produced(&self) -> u64 {
        self.samples + self.lost
    }

    /// Returns whether every sample is accounted for.
    pub fn is_exact(&self) -> bool {
        let a = self.account;
        self.produced() == a.delivered + a.overwritten + a.waiting + self.refused + self.lost
    }
}

/// Counts that the collector writes and any thread reads.
#[derive(Default)]
pub(crate) struct SharedCounts {
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
    pub(crate) ring: Arc<SampleRing<WORDS>>,
    pub(crate) counts: SharedCounts,
}

impl SampledThread {
    pub(crate) fn new(number: u64, ids: ThreadIds, ring: Arc<SampleRing<WORDS>>) -> Self {
        SampledThread {
            number,
            pid: AtomicU32::new(ids.pid),
            tid: AtomicU32::new(ids.tid),
            command: Mutex::default(),
            state: AtomicU8::new(ThreadState::Stopped as u8),
            ring,
            counts: SharedCounts::default(),
        }
    }

    pub(crate) fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    pub(crate) fn ids(&self) -> ThreadIds {
        ThreadIds {
            pid: self.pid(),
            tid: self.tid(),
        }
    }

    fn command(&self) -> MutexGuard<'_, String> {
        self.command.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn set_command(&self, name: &str) {
        name.clone_into(&mut self.command());
    }

    pub(crate) fn state(&self) -> ThreadState {
        ThreadState::from_code(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: ThreadState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Returns whether the thread is no longer sampled.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state(), ThreadState::Ended | ThreadState::Deleted)
    }

    /// Returns whether every reader has read all samples.
    pub(crate) fn is_read(&self) -> bool {
        let mut open = (0..QUEUES).filter(|&q| self.ring.is_open(q)).peekable();
        match open.peek() {
            // The readers that read them are closed.
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

/// A reader as the profiler knows it.
pub(crate) struct ReaderEntry {
    pub(crate) number: u64,
    pub(crate) queue: usize,
    /// False for [`crate::Sharing::Batch`], which reads only for a moment.
    pub(crate) is_permanent: bool,
    /// The number of the thread that it reads; `None` for all threads.
    pub(crate) thread_number: Option<u64>,
    pub(crate) wake: UnixStream,
}

/// All threads and readers.
#[derive(Default)]
pub(crate) struct Registry {
    inner: Mutex<RegistryState>,
    /// Incremented whenever a thread is added or removed.
    pub(crate) generation: AtomicU64,
    roi_tree: Mutex<RoiTree>,
}

#[derive(Default)]
pub(crate) struct RegistryState {
    pub(crate) threads: Vec<Arc<SampledThread>>,
    pub(crate) readers: Vec<ReaderEntry>,
    pub(crate) next_reader: u64,
    /// Last counts of threads that were removed to make room, until the next clean-up.
    pub(crate) evicted: Vec<Statistics>,
    /// Whether the shared queue has ever had a reader.
    pub(crate) shared: bool,
}

impl RegistryState {
    /// Returns whether the shared queue has a permanent reader.
    fn shared_is_permanent(&self) -> bool {
        let mut readers = self.readers.iter();
        readers.any(|reader| reader.queue == SHARED_QUEUE && reader.is_permanent)
    }

    fn forget(&mut self, which: Clean) -> Vec<Statistics> {
        let over = self.threads.iter().filter(|t| t.is_over()).count();
        let mut excess = match which {
            Clean::AllBut(kept) => over.saturating_sub(kept),
            Clean::All => over,
            Clean::Read => 0,
        };
        self.remove(|t| {
            let removed = t.is_over() && (excess > 0 || (which == Clean::Read && t.is_read()));
            excess -= usize::from(removed && excess > 0);
            removed
        })
    }

    fn remove(&mut self, mut removed: impl FnMut(&SampledThread) -> bool) -> Vec<Statistics> {
        let (out, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.threads)
            .into_iter()
            .partition(|thread| removed(thread));
        self.threads = kept;
        out.iter().map(|thread| thread.statistics()).collect()
    }

    /// The shared queue keeps its position when its readers are closed. Without a permanent reader
    /// it must not hold back the writer for readers of other queues.
    pub(crate) fn update_shared_queue(&self) {
        let is_permanent = self.shared_is_permanent();
        for thread in &self.threads {
            thread.ring.set_best_effort(SHARED_QUEUE, !is_permanent);
        }
    }
}

impl Registry {
    pub(crate) fn lock(&self) -> MutexGuard<'_, RegistryState> {
        // A panic leaves the lists usable.
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The regions of interest that samples refer to.
    pub(crate) fn roi_tree(&self) -> MutexGuard<'_, RoiTree> {
        self.roi_tree.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Adds a thread. Readers of all threads read it from its first sample on.
    pub(crate) fn add(&self, thread: &Arc<SampledThread>) {
        let mut state = self.lock();
        if state.shared {
            thread
                .ring
                .set_best_effort(SHARED_QUEUE, !state.shared_is_permanent());
            thread.ring.open(SHARED_QUEUE);
        }
        let all = state
            .readers
            .iter()
            .filter(|reader| reader.thread_number.is_none());
        for reader in all.filter(|reader| reader.queue != SHARED_QUEUE) {
            thread.ring.open(reader.queue);
        }
        state.threads.push(Arc::clone(thread));
        drop(state);
        self.changed();
    }

    /// Returns whether another thread can be added. If the limit is reached, removes threads that
    /// have ended.
    pub(crate) fn has_room(&self, settings: &Settings) -> bool {
        let limit = settings.max_threads;
        let unread = settings.ended_make_room.then_some(Clean::AllBut(limit / 2));
        let mut state = self.lock();
        for which in [Some(Clean::Read), unread].into_iter().flatten() {
            if state.threads.len() >= limit {
                let removed = state.forget(which);
                state.evicted.extend(removed);
                self.changed();
            }
        }
        state.threads.len() < limit
    }

    /// Forgets threads that have ended or were deleted. Returns their last counts, and those of
    /// threads that were removed to make room.
    pub(crate) fn clean(&self, which: Clean) -> Vec<Statistics> {
        let mut state = self.lock();
        let mut removed = std::mem::take(&mut state.evicted);
        removed.extend(state.forget(which));
        self.changed();
        removed
    }

    /// Removes threads.
    pub(crate) fn remove(&self, removed: impl FnMut(&SampledThread) -> bool) {
        self.lock().remove(removed);
        self.changed();
    }

    /// Wakes the readers of any of these threads.
    pub(crate) fn wake(&self, threads: &[u64]) {
        for reader in &self.lock().readers {
            if reader
                .thread_number
                .is_none_or(|number| threads.contains(&number))
            {
                wake(&reader.wake);
            }
        }
    }
}

/// Makes a descriptor readable. If the socket is full, it is readable already.
pub(crate) fn wake(mut stream: &UnixStream) {
    drop(stream.write(&[1]));
}
