//! The profiler: whom to sample, and how.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use crate::collector::{Common, Core, collect, nobody};
use crate::registry::{Registry, Statistics, wake};
use crate::settings::{Settings, Sharing, check_buffer, check_period};
use crate::{Error, Reader, Result};

/// Which threads to clean up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clean {
    /// Those that have ended or were deleted, and whose samples all readers have read.
    Read,
    /// Those that have ended or were deleted; samples that wait are discarded.
    All,
    /// As `All`, but so many of them stay: the last that were added.
    AllBut(usize),
}

/// Samples threads of this machine while they run.
///
/// All operations may be called from any thread at any time. Dropped, it lets go of
/// everything; readers may read on what was sampled.
pub struct Profiler {
    common: Arc<Common>,
    registry: Arc<Registry>,
    signal: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Profiler {
    /// A profiler that is on, and samples nobody yet.
    ///
    /// # Errors
    /// The settings make no sense, or this machine does not know the event.
    pub fn new(settings: Settings) -> Result<Profiler> {
        let registry = Arc::new(Registry::default());
        let mut settings = settings;
        settings.buffer = check_buffer(settings.buffer)?;
        let common = Arc::new(Common::new(Core::new(settings, &registry)?));
        let failed = |e| Error::system("failed to begin profiling", e);
        let (signal, heard) = UnixStream::pair().map_err(failed)?;
        for end in [&signal, &heard] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        let collected = Arc::clone(&common);
        let thread = std::thread::Builder::new()
            .name("memgauge".to_owned())
            .spawn(move || collect(&collected, heard))
            .map_err(failed)?;
        Ok(Profiler {
            common,
            registry,
            signal,
            thread: Some(thread),
        })
    }

    fn changed<T>(&self, result: T) -> T {
        wake(&self.signal);
        result
    }

    /// Switches all sampling on.
    pub fn on(&self) {
        self.common.core().turn(true);
        self.changed(());
    }

    /// Switches all sampling off; what was sampled stays.
    pub fn off(&self) {
        self.common.core().turn(false);
    }

    /// Adds a thread; its sampling begins at once, where the profiler is on.
    ///
    /// # Errors
    /// There is no such thread, it was added before, this user may not sample it, or the
    /// event cannot be sampled.
    pub fn add_thread(&self, tid: u32) -> Result<()> {
        let added = self.common.core().add_thread(tid);
        self.changed(added)
    }

    /// Adds a process: its threads, and from then on those that it starts, and the
    /// processes that it starts, with theirs. Returns how many threads were added now.
    ///
    /// # Errors
    /// As of a thread; then none of its threads is added.
    pub fn add_process(&self, pid: u32) -> Result<usize> {
        let added = self.common.core().add_process(pid);
        self.changed(added)
    }

    /// Deletes a thread; what was sampled of it can still be read.
    ///
    /// # Errors
    /// It was not added, or has ended.
    pub fn delete_thread(&self, tid: u32) -> Result<()> {
        self.common.core().delete_thread(tid)
    }

    /// Deletes the threads of a process and does not follow it any more. Returns how
    /// many threads were deleted.
    ///
    /// # Errors
    /// None of its threads was added.
    pub fn delete_process(&self, pid: u32) -> Result<usize> {
        self.common.core().delete_process(pid)
    }

    /// Lets a thread's sampling go on.
    ///
    /// # Errors
    /// It was not added, or has ended.
    pub fn start(&self, tid: u32) -> Result<()> {
        let started = self.common.core().want(tid, true);
        self.changed(started)
    }

    /// Stops a thread's sampling; what was sampled until then can be read when this
    /// returns.
    ///
    /// # Errors
    /// It was not added, or has ended.
    pub fn stop(&self, tid: u32) -> Result<()> {
        self.common.core().want(tid, false)
    }

    /// Changes a thread's period. Samples that are taken after this returns are taken at
    /// the new one, and say so. Returns what it became: not below the event's smallest,
    /// and of IBS a multiple of 16.
    ///
    /// # Errors
    /// The thread was not added, or has ended; or no event has such a period.
    pub fn set_period(&self, tid: u32, period: u64) -> Result<u64> {
        self.common.core().set_period(tid, check_period(period)?)
    }

    /// Changes the period of threads that are added later. Returns what it became.
    ///
    /// # Errors
    /// No event has such a period.
    pub fn set_period_of_new(&self, period: u64) -> Result<u64> {
        let mut core = self.common.core();
        core.plan.set_period(check_period(period)?);
        Ok(core.plan.period())
    }

    /// Changes how many samples the buffers of threads hold that are added later.
    ///
    /// # Errors
    /// There is no such buffer.
    pub fn set_buffer_of_new(&self, samples: usize) -> Result<()> {
        self.common.core().settings.buffer = check_buffer(samples)?;
        Ok(())
    }

    /// A reader of all threads, also of those that are added later.
    ///
    /// # Errors
    /// There are too many.
    pub fn reader(&self, sharing: Sharing) -> Result<Reader> {
        Reader::new(&self.registry, None, sharing)
    }

    /// A reader of the thread that has this number, or last had it.
    ///
    /// # Errors
    /// It was not added, or there are too many readers.
    pub fn reader_of(&self, tid: u32, sharing: Sharing) -> Result<Reader> {
        let newest = {
            let seats = self.registry.seats();
            let mut all = seats.threads.iter().rev();
            all.find(|t| t.tid() == tid).map(|t| t.number)
        };
        let number = newest.ok_or_else(|| nobody("read", tid))?;
        Reader::new(&self.registry, Some(number), sharing)
    }

    /// Counts of the thread that has this number, or last had it.
    ///
    /// # Errors
    /// It was not added, or was cleaned up.
    pub fn statistics(&self, tid: u32) -> Result<Statistics> {
        // Nothing is read from the kernel's rings while the counts are.
        let mut core = self.common.core();
        core.look(Some(tid));
        let seats = self.registry.seats();
        let newest = seats.threads.iter().rev().find(|t| t.tid() == tid);
        newest
            .map(|t| t.statistics())
            .ok_or_else(|| nobody("count the samples of", tid))
    }

    /// Counts of all threads that there are or were, in the order in which they were
    /// added. A number may come twice: of a thread that has ended, and of a later one.
    pub fn all_statistics(&self) -> Vec<Statistics> {
        let mut core = self.common.core();
        core.look(None);
        let seats = self.registry.seats();
        seats.threads.iter().map(|t| t.statistics()).collect()
    }

    /// Threads that followed processes started and that were not sampled: they ended
    /// before they could be attached to, or could not be.
    pub fn missed(&self) -> u64 {
        self.common.core().missed
    }

    /// What had to be changed or given up of the settings, and what went wrong with
    /// threads that were to be followed.
    pub fn notes(&self) -> Vec<String> {
        let core = self.common.core();
        let notes = core.plan.notes().into_iter();
        notes.chain(core.trouble.clone()).collect()
    }

    /// Forgets threads that have ended or were deleted. Returns their last counts.
    pub fn clean(&self, which: Clean) -> Vec<Statistics> {
        let _nothing_moves = self.common.core();
        let over = {
            let seats = self.registry.seats();
            seats.threads.iter().filter(|t| t.is_over()).count()
        };
        let mut excess = match which {
            Clean::AllBut(kept) => over.saturating_sub(kept),
            Clean::All => over,
            Clean::Read => 0,
        };
        self.registry.remove(|t| {
            let gone = t.is_over() && (excess > 0 || (which == Clean::Read && t.is_read()));
            excess -= usize::from(gone && excess > 0);
            gone
        })
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.common.over.store(true, Ordering::Release);
        wake(&self.signal);
        if let Some(thread) = self.thread.take() {
            // One that panicked has let go of its lock.
            drop(thread.join());
        }
        self.common.core().let_go();
    }
}
