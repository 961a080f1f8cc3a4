//! The profiler: which threads are sampled, and how.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use memgauge_host::sampled_run::SampledRun;
use memgauge_trace::CommandEnd;

use crate::backend::Backend;
use crate::collector::{Collector, SharedCollector, collect, no_such_task};
use crate::program::ProgramBackend;
use crate::registry::{Registry, Statistics};
use crate::roi::{Region, RegionId};
use crate::settings::{Settings, Sharing, check_buffer, check_period};
use crate::{Error, Reader, Result};

/// Selects the threads to clean up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clean {
    /// Threads that have ended or were deleted, if all their samples were read by all readers.
    Read,
    /// Threads that have ended or were deleted. Unread samples are discarded.
    All,
    /// As `All`, except for this many, the last added ones.
    AllBut(usize),
}

/// Samples running threads.
///
/// All operations can be called from any thread at any time. A dropped profiler detaches from all
/// threads; readers can still read the samples taken before.
pub struct Profiler {
    backend: Arc<dyn Backend>,
    registry: Arc<Registry>,
    marks_file: Option<PathBuf>,
    /// The program, if a source runs one.
    program: Option<Arc<ProgramBackend>>,
    thread: Option<JoinHandle<()>>,
}

fn start_failed(e: std::io::Error) -> Error {
    Error::system("failed to start the profiler", e)
}

impl Profiler {
    /// Creates an enabled profiler without threads.
    ///
    /// # Errors
    /// The settings are invalid, or this machine lacks the event.
    pub fn new(settings: Settings) -> Result<Profiler> {
        let registry = Arc::new(Registry::default());
        let mut settings = settings;
        settings.buffer = check_buffer(settings.buffer)?;
        let collector = Collector::new(settings, &registry)?;
        let marks_file = collector
            .marks
            .as_ref()
            .map(|marks| marks.path().to_owned());
        let (signal, receiver) = UnixStream::pair().map_err(start_failed)?;
        for end in [&signal, &receiver] {
            end.set_nonblocking(true).map_err(start_failed)?;
        }
        let shared = Arc::new(SharedCollector::new(collector, signal));
        let shared_for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("memgauge".to_owned())
            .spawn(move || collect(&shared_for_thread, receiver))
            .map_err(start_failed)?;
        Ok(Profiler {
            backend: shared,
            registry,
            marks_file,
            program: None,
            thread: Some(thread),
        })
    }

    /// Creates a profiler for a program that another source runs, for example on the modelled
    /// machine. It is enabled, and samples all threads from their first instruction. Threads and
    /// processes that the program starts are added automatically; no others can be added.
    ///
    /// The settings must have [`crate::Source::Program`]. A period in the settings overrides that
    /// of the run. The times of samples are those of the run. If the profiler is dropped, the
    /// program continues unsampled.
    ///
    /// # Errors
    /// A setting does not apply to a program.
    pub fn for_program(settings: Settings, run: Box<dyn SampledRun>) -> Result<Profiler> {
        settings.check_program()?;
        let registry = Arc::new(Registry::default());
        let backend = Arc::new(ProgramBackend::new(settings, run.period(), &registry));
        let followed = Arc::clone(&backend);
        std::thread::Builder::new()
            .name("memgauge".to_owned())
            .spawn(move || followed.follow(run))
            .map_err(start_failed)?;
        Ok(Profiler {
            backend: Arc::clone(&backend) as Arc<dyn Backend>,
            registry,
            marks_file: None,
            program: Some(backend),
            thread: None,
        })
    }

    /// Waits until the program that a source runs has ended. All its samples can be read then.
    ///
    /// # Errors
    /// There is no such program, or it failed to start.
    pub fn wait(&self) -> Result<CommandEnd> {
        match &self.program {
            Some(program) => program.wait(),
            None => Err(Error::usage(
                "failed to wait for the program: this profiler samples running threads",
            )),
        }
    }

    /// Returns how that program ended. `None` if it still runs or there is none.
    pub fn ended(&self) -> Option<Result<CommandEnd>> {
        self.program.as_ref().and_then(|program| program.ended())
    }

    /// Path of the file to which programs write the marks of their regions of interest. `None` if
    /// the settings do not ask for regions.
    pub fn marks_file(&self) -> Option<PathBuf> {
        self.marks_file.clone()
    }

    /// Returns a region by its ID.
    pub fn region(&self, id: RegionId) -> Option<Region> {
        self.registry.roi_tree().region(id)
    }

    /// Returns the names of nested regions, outermost first.
    pub fn region_names(&self, id: Option<RegionId>) -> Vec<String> {
        let (mut names, mut next) = (Vec::new(), id);
        while let Some(region) = next.and_then(|id| self.region(id)) {
            names.push(region.name);
            next = region.outer;
        }
        names.reverse();
        names
    }

    /// Enables sampling.
    pub fn on(&self) {
        self.backend.set_enabled(true);
    }

    /// Disables all sampling. Samples taken before can still be read.
    pub fn off(&self) {
        self.backend.set_enabled(false);
    }

    /// Adds a thread. If the profiler is enabled, sampling starts at once.
    ///
    /// # Errors
    /// There is no such thread, it was added before, this user may not sample it, or the event
    /// cannot be sampled.
    pub fn add_thread(&self, tid: u32) -> Result<()> {
        self.backend.add_thread(tid)
    }

    /// Adds the threads of a process. From then on, threads and processes that it starts are added
    /// as well. Returns how many threads were added now.
    ///
    /// # Errors
    /// As [`Profiler::add_thread`]. No thread is added in that case.
    pub fn add_process(&self, pid: u32) -> Result<usize> {
        let added = self.add_processes(&[pid]).pop();
        added.expect("SANITY: one result for each process")
    }

    /// Adds several processes, each as [`Profiler::add_process`] does. Returns one result for
    /// each, in the same order.
    ///
    /// All are attached before the profiler's thread reads the kernel's rings again. On a busy
    /// machine this saves much time: whenever one of the two threads waits for the other, it waits
    /// for all busy programs as well.
    pub fn add_processes(&self, pids: &[u32]) -> Vec<Result<usize>> {
        self.backend.add_processes(pids)
    }

    /// Deletes a thread. Its samples can still be read.
    ///
    /// # Errors
    /// The thread was not added or has ended.
    pub fn delete_thread(&self, tid: u32) -> Result<()> {
        self.backend.delete_thread(tid)
    }

    /// Deletes the threads of a process and stops following it. Returns how many threads were
    /// deleted.
    ///
    /// # Errors
    /// No thread of the process was added.
    pub fn delete_process(&self, pid: u32) -> Result<usize> {
        self.backend.delete_process(pid)
    }

    /// Resumes sampling of a thread.
    ///
    /// # Errors
    /// The thread was not added or has ended.
    pub fn start(&self, tid: u32) -> Result<()> {
        self.backend.set_thread_enabled(tid, true)
    }

    /// Stops sampling of a thread. All its samples can be read when this returns.
    ///
    /// # Errors
    /// The thread was not added or has ended.
    pub fn stop(&self, tid: u32) -> Result<()> {
        self.backend.set_thread_enabled(tid, false)
    }

    /// Changes the period of a thread. Samples taken after this returns have the new period.
    /// Returns the period in force, which can be higher: events have a minimum period, and that of
    /// IBS is a multiple of 16.
    ///
    /// # Errors
    /// The thread was not added or has ended, or the period is out of range.
    pub fn set_period(&self, tid: u32, period: u64) -> Result<u64> {
        self.backend.set_period(tid, check_period(period)?)
    }

    /// Period of threads that are added from now on. The event may have raised it.
    pub fn default_period(&self) -> u64 {
        self.backend.default_period()
    }

    /// Changes the period of threads that are added later. Returns the period in force.
    ///
    /// # Errors
    /// The period is out of range.
    pub fn set_default_period(&self, period: u64) -> Result<u64> {
        Ok(self.backend.set_default_period(check_period(period)?))
    }

    /// Changes the buffer size, in samples, of threads that are added later.
    ///
    /// # Errors
    /// The size is out of range.
    pub fn set_default_buffer(&self, samples: usize) -> Result<()> {
        self.backend.set_default_buffer(check_buffer(samples)?);
        Ok(())
    }

    /// Creates a reader of all threads, including those added later.
    ///
    /// # Errors
    /// There are too many readers.
    pub fn reader(&self, sharing: Sharing) -> Result<Reader> {
        Reader::new(&self.registry, None, sharing)
    }

    /// Creates a reader of the thread that has this number, or of the last one that had it.
    ///
    /// # Errors
    /// No such thread was added, or there are too many readers.
    pub fn reader_of_thread(&self, tid: u32, sharing: Sharing) -> Result<Reader> {
        let newest = {
            let state = self.registry.lock();
            let mut all = state.threads.iter().rev();
            all.find(|t| t.tid() == tid).map(|t| t.number)
        };
        let number = newest.ok_or_else(|| no_such_task("read", tid))?;
        Reader::new(&self.registry, Some(number), sharing)
    }

    /// Returns the counts of the thread that has this number, or of the last one that had it.
    ///
    /// # Errors
    /// No such thread was added, or it was cleaned up.
    pub fn statistics(&self, tid: u32) -> Result<Statistics> {
        let mut counts = None;
        self.backend.refresh_counts(Some(tid), &mut || {
            let state = self.registry.lock();
            let newest = state.threads.iter().rev().find(|t| t.tid() == tid);
            counts = newest.map(|t| t.statistics());
        });
        counts.ok_or_else(|| no_such_task("count the samples of", tid))
    }

    /// Returns the counts of all threads in the order in which they were added. A number can occur
    /// twice: for a thread that has ended and for a later one.
    pub fn all_statistics(&self) -> Vec<Statistics> {
        let mut counts = Vec::new();
        self.backend.refresh_counts(None, &mut || {
            let state = self.registry.lock();
            counts.clone_from(&state.evicted);
            counts.extend(state.threads.iter().map(|t| t.statistics()));
        });
        counts
    }

    /// Number of threads that followed processes started and that were not sampled. They ended too
    /// soon or could not be attached to.
    pub fn missed(&self) -> u64 {
        let unsampled = self.backend.unsampled_threads();
        unsampled.ended + unsampled.alive
    }

    /// Number of those threads of [`Profiler::missed`] that were alive; [`Profiler::notes`] has the
    /// reasons. A thread stays counted if a later attempt succeeds.
    pub fn missed_alive(&self) -> u64 {
        self.backend.unsampled_threads().alive
    }

    /// Settings that had to be changed or dropped, and problems with followed threads.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.backend.notes();
        let unnumbered = self.registry.roi_tree().unnumbered;
        if unnumbered > 0 {
            notes.push(format!(
                "samples with only an outer region of interest: {unnumbered}, because there are \
                 too many regions"
            ));
        }
        notes
    }

    /// Forgets threads that have ended or were deleted, and returns their last counts.
    pub fn clean(&self, which: Clean) -> Vec<Statistics> {
        let mut removed = Vec::new();
        self.backend
            .with_lock(&mut || removed = self.registry.clean(which));
        removed
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.backend.request_stop();
        if let Some(thread) = self.thread.take() {
            // A collector that panicked has released its lock.
            drop(thread.join());
        }
        self.backend.detach_all();
    }
}
