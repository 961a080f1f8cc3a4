//! The profiler: whom to sample, and how.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use memgauge_host::sampled::SampledRun;
use memgauge_trace::CommandEnd;

use crate::collector::{Common, Core, collect, nobody};
use crate::control::Control;
use crate::program::ProgramControl;
use crate::regions::{Region, RegionId};
use crate::registry::{Registry, Statistics};
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
    control: Arc<dyn Control>,
    registry: Arc<Registry>,
    marks_file: Option<PathBuf>,
    /// The program that a source runs.
    program: Option<Arc<ProgramControl>>,
    thread: Option<JoinHandle<()>>,
}

fn not_begun(e: std::io::Error) -> Error {
    Error::system("failed to begin profiling", e)
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
        let core = Core::new(settings, &registry)?;
        let marks_file = core.marks.as_ref().map(|marks| marks.path().to_owned());
        let (signal, heard) = UnixStream::pair().map_err(not_begun)?;
        for end in [&signal, &heard] {
            end.set_nonblocking(true).map_err(not_begun)?;
        }
        let common = Arc::new(Common::new(core, signal));
        let collected = Arc::clone(&common);
        let thread = std::thread::Builder::new()
            .name("memgauge".to_owned())
            .spawn(move || collect(&collected, heard))
            .map_err(not_begun)?;
        Ok(Profiler {
            control: common,
            registry,
            marks_file,
            program: None,
            thread: Some(thread),
        })
    }

    /// A profiler of a program that another source runs, as the modelled machine does. It
    /// is on, and samples all threads from their first instruction on; threads and
    /// processes that the program starts are added by themselves, and no others can be.
    ///
    /// Settings are of [`crate::Source::Program`]; a period wins over the run's own. Times
    /// of samples are the run's. Dropped, it leaves the program to run on by itself.
    ///
    /// # Errors
    /// The settings make no sense of a program.
    pub fn of_program(settings: Settings, run: Box<dyn SampledRun>) -> Result<Profiler> {
        settings.check_program()?;
        let registry = Arc::new(Registry::default());
        let control = Arc::new(ProgramControl::new(settings, run.period(), &registry));
        let followed = Arc::clone(&control);
        std::thread::Builder::new()
            .name("memgauge".to_owned())
            .spawn(move || followed.follow(run))
            .map_err(not_begun)?;
        Ok(Profiler {
            control: Arc::clone(&control) as Arc<dyn Control>,
            registry,
            marks_file: None,
            program: Some(control),
            thread: None,
        })
    }

    /// Waits for the end of the program that a source runs; then all its samples can be
    /// read.
    ///
    /// # Errors
    /// There is no such program, or it did not begin.
    pub fn wait(&self) -> Result<CommandEnd> {
        match &self.program {
            Some(program) => program.wait(),
            None => Err(Error::usage(
                "failed to wait for the program: this profiler attaches to running threads",
            )),
        }
    }

    /// How that program ended; `None` while it runs, and where there is none.
    pub fn ended(&self) -> Option<Result<CommandEnd>> {
        self.program.as_ref().and_then(|program| program.ended())
    }

    /// The file to which programs are to write the marks of their regions of interest;
    /// `None` where the settings ask for no regions.
    pub fn marks_file(&self) -> Option<PathBuf> {
        self.marks_file.clone()
    }

    /// A region that samples are in.
    pub fn region(&self, id: RegionId) -> Option<Region> {
        self.registry.regions().region(id)
    }

    /// Names of the regions that a sample is in, outermost first.
    pub fn region_names(&self, id: Option<RegionId>) -> Vec<String> {
        let (mut names, mut next) = (Vec::new(), id);
        while let Some(region) = next.and_then(|id| self.region(id)) {
            names.push(region.name);
            next = region.outer;
        }
        names.reverse();
        names
    }

    /// Switches all sampling on.
    pub fn on(&self) {
        self.control.turn(true);
    }

    /// Switches all sampling off; what was sampled stays.
    pub fn off(&self) {
        self.control.turn(false);
    }

    /// Adds a thread; its sampling begins at once, where the profiler is on.
    ///
    /// # Errors
    /// There is no such thread, it was added before, this user may not sample it, or the
    /// event cannot be sampled.
    pub fn add_thread(&self, tid: u32) -> Result<()> {
        self.control.add_thread(tid)
    }

    /// Adds a process: its threads, and from then on those that it starts, and the
    /// processes that it starts, with theirs. Returns how many threads were added now.
    ///
    /// # Errors
    /// As of a thread; then none of its threads is added.
    pub fn add_process(&self, pid: u32) -> Result<usize> {
        let added = self.add_processes(&[pid]).pop();
        added.expect("SANITY: one result for each process")
    }

    /// Adds several processes, each as [`Profiler::add_process`] does. Returns one result for
    /// each, in the same order.
    ///
    /// All are attached before the profiler's thread reads the kernel's rings again. On a busy
    /// machine that saves much time: whenever one of the two threads waits for the other, it
    /// waits for all busy programs as well.
    pub fn add_processes(&self, pids: &[u32]) -> Vec<Result<usize>> {
        self.control.add_processes(pids)
    }

    /// Deletes a thread; what was sampled of it can still be read.
    ///
    /// # Errors
    /// It was not added, or has ended.
    pub fn delete_thread(&self, tid: u32) -> Result<()> {
        self.control.delete_thread(tid)
    }

    /// Deletes the threads of a process and does not follow it any more. Returns how
    /// many threads were deleted.
    ///
    /// # Errors
    /// None of its threads was added.
    pub fn delete_process(&self, pid: u32) -> Result<usize> {
        self.control.delete_process(pid)
    }

    /// Lets a thread's sampling go on.
    ///
    /// # Errors
    /// It was not added, or has ended.
    pub fn start(&self, tid: u32) -> Result<()> {
        self.control.want(tid, true)
    }

    /// Stops a thread's sampling; what was sampled until then can be read when this
    /// returns.
    ///
    /// # Errors
    /// It was not added, or has ended.
    pub fn stop(&self, tid: u32) -> Result<()> {
        self.control.want(tid, false)
    }

    /// Changes a thread's period. Samples that are taken after this returns are taken at
    /// the new one, and say so. Returns what it became: not below the event's smallest,
    /// and of IBS a multiple of 16.
    ///
    /// # Errors
    /// The thread was not added, or has ended; or no event has such a period.
    pub fn set_period(&self, tid: u32, period: u64) -> Result<u64> {
        self.control.set_period(tid, check_period(period)?)
    }

    /// The period of threads that are added now: the one that was set, or what the event
    /// took instead.
    pub fn period_of_new(&self) -> u64 {
        self.control.period_of_new()
    }

    /// Changes the period of threads that are added later. Returns what it became.
    ///
    /// # Errors
    /// No event has such a period.
    pub fn set_period_of_new(&self, period: u64) -> Result<u64> {
        Ok(self.control.set_period_of_new(check_period(period)?))
    }

    /// Changes how many samples the buffers of threads hold that are added later.
    ///
    /// # Errors
    /// There is no such buffer.
    pub fn set_buffer_of_new(&self, samples: usize) -> Result<()> {
        self.control.set_buffer_of_new(check_buffer(samples)?);
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
        let mut counts = None;
        self.control.look(Some(tid), &mut || {
            let seats = self.registry.seats();
            let newest = seats.threads.iter().rev().find(|t| t.tid() == tid);
            counts = newest.map(|t| t.statistics());
        });
        counts.ok_or_else(|| nobody("count the samples of", tid))
    }

    /// Counts of all threads that there are or were, in the order in which they were
    /// added. A number may come twice: of a thread that has ended, and of a later one.
    pub fn all_statistics(&self) -> Vec<Statistics> {
        let mut counts = Vec::new();
        self.control.look(None, &mut || {
            let seats = self.registry.seats();
            counts.clone_from(&seats.made_room);
            counts.extend(seats.threads.iter().map(|t| t.statistics()));
        });
        counts
    }

    /// Threads that followed processes started and that were not sampled: they ended
    /// before they could be attached to, or could not be.
    pub fn missed(&self) -> u64 {
        let (ended, alive) = self.control.missed();
        ended + alive
    }

    /// Those of [`Profiler::missed`] that lived and could not be attached to;
    /// [`Profiler::notes`] say why. Each counts once, also where a later try succeeds.
    pub fn missed_alive(&self) -> u64 {
        self.control.missed().1
    }

    /// What had to be changed or given up of the settings, and what went wrong with
    /// threads that were to be followed.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.control.notes();
        let unnumbered = self.registry.regions().unnumbered;
        if unnumbered > 0 {
            notes.push(format!(
                "samples that tell the outer regions of interest alone: {unnumbered}; there are \
                 too many regions"
            ));
        }
        notes
    }

    /// Forgets threads that have ended or were deleted. Returns their last counts.
    pub fn clean(&self, which: Clean) -> Vec<Statistics> {
        let mut gone = Vec::new();
        self.control.hold(&mut || gone = self.registry.clean(which));
        gone
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.control.end();
        if let Some(thread) = self.thread.take() {
            // One that panicked has let go of its lock.
            drop(thread.join());
        }
        self.control.let_go();
    }
}
