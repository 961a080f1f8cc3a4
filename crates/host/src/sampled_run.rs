//! Interface between a source that runs and samples a program and another that passes the samples
//! on while it runs.
//!
//! The source with samples (`emulate`) implements [`SampledRun`], and the consumer (`online`)
//! passes a [`SampleSink`]. Neither depends on the other. The run regularly asks its sink for
//! changes. All changes therefore happen between two steps of the run and need no lock.

use memgauge_trace::{CommandEnd, LossKind, Sample};

use crate::Result;

/// Sampling of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSampling {
    /// Number of events between two samples. Not 0.
    pub period: u64,
    /// True if the thread is sampled.
    pub on: bool,
}

/// Counts of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCounts {
    /// Events while it was sampled.
    pub counted: u64,
    /// Nanoseconds of the run's clock in which it executed.
    pub processor_ns: u64,
    /// Nanoseconds of memgauge's own CPU time for this thread.
    pub own_ns: u64,
}

/// Receives the events of a run. The run numbers threads and never reuses a number.
pub trait SampleSink {
    /// A thread starts. Returns how it is sampled from its first instruction on.
    fn thread_started(&mut self, thread: u64, pid: u32, tid: u32) -> ThreadSampling;

    /// Receives samples of a thread in order. They were taken inside these regions of interest,
    /// outermost first.
    fn push_samples(&mut self, thread: u64, samples: &[Sample], regions: &[&str]);

    /// A thread has ended, and all its samples were delivered.
    fn thread_ended(&mut self, thread: u64, counts: &ThreadCounts);

    /// Changes since the last call: threads, and how each is sampled from now on.
    fn take_requests(&mut self) -> Vec<(u64, ThreadSampling)>;

    /// The changes were made. All earlier samples were delivered, and these are the counts.
    fn requests_done(&mut self, counts: &[(u64, ThreadCounts)]);

    /// Threads or programs that are not sampled, and why.
    fn not_sampled(&mut self, threads: u64, why: &str);

    /// Something of the run was lost: how much, of which kind, and details or an empty text.
    fn lost(&mut self, kind: LossKind, count: u64, detail: &str);

    /// True if nobody needs further samples. The program then continues without sampling.
    fn is_closed(&self) -> bool;
}

/// A started program whose threads are sampled when [`run`](Self::run) is called.
pub trait SampledRun: Send {
    /// Name of the event.
    fn event(&self) -> &str;

    /// Default period of new threads.
    fn period(&self) -> u64;

    /// The program's first process.
    fn pid(&self) -> u32;

    /// Runs the program to its end.
    ///
    /// # Errors
    /// The program did not start, or cannot be waited for.
    fn run(self: Box<Self>, sink: &mut dyn SampleSink) -> Result<CommandEnd>;
}
