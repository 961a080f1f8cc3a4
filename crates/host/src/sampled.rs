//! A program that one source runs and samples, for another that hands samples out while
//! it runs.
//!
//! Who has samples (`emulate`) is a [`SampledRun`], who wants them (`online`) gives it a
//! [`SampleSink`]: neither sees the other. The run asks its sink now and then what is to
//! change, so that all of it happens between two of its own steps, and needs no lock.

use memgauge_trace::{CommandEnd, Sample};

use crate::Result;

/// How a thread is to be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Events between two samples; not 0.
    pub period: u64,
    /// Whether it is sampled at all.
    pub on: bool,
}

/// What a run counts of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCounts {
    /// Events while it was sampled.
    pub counted: u64,
    /// Nanoseconds of the run's clock in which it did not wait.
    pub processor_ns: u64,
    /// Nanoseconds of memgauge's own processor time for it.
    pub own_ns: u64,
}

/// Takes what happens in a run. Threads have numbers of the run's, none twice.
pub trait SampleSink {
    /// A thread begins: how it is to be sampled from its first instruction on.
    fn begin(&mut self, thread: u64, pid: u32, tid: u32) -> Sampling;

    /// Samples of a thread, in order, that were taken while it was in these regions of
    /// interest, outermost first.
    fn take(&mut self, thread: u64, samples: &[Sample], regions: &[&str]);

    /// A thread has ended; all its samples have come.
    fn end(&mut self, thread: u64, counts: &ThreadCounts);

    /// Threads of which something is asked since the last call, and how each is to be
    /// sampled from now on.
    fn requests(&mut self) -> Vec<(u64, Sampling)>;

    /// What was asked is done: all samples of before have come, and these are the counts.
    fn answer(&mut self, counts: &[(u64, ThreadCounts)]);

    /// Threads or programs that are not sampled, and why.
    fn miss(&mut self, threads: u64, why: &str);

    /// Whether nobody wants samples any more: the program is to run on without.
    fn is_over(&self) -> bool;
}

/// A program that has been started, and whose threads are sampled once it is run.
pub trait SampledRun: Send {
    /// The event, by its name.
    fn event(&self) -> &str;

    /// The period that threads begin with where nobody wants another.
    fn period(&self) -> u64;

    /// The program's first process.
    fn pid(&self) -> u32;

    /// Follows the program to its end.
    ///
    /// # Errors
    /// The program did not begin, or cannot be waited for.
    fn run(self: Box<Self>, sink: &mut dyn SampleSink) -> Result<CommandEnd>;
}
