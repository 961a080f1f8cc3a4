//! What a profiler asks of whoever samples: what is attached to running threads
//! (`collector`), or a program that a source runs (`program`).

use crate::Result;

/// The operations of a profiler.
pub(crate) trait Control: Send + Sync {
    /// Switches all sampling on or off.
    fn turn(&self, on: bool);
    fn add_thread(&self, tid: u32) -> Result<()>;
    /// Adds processes, one after the other. Returns the number of threads added of each.
    fn add_processes(&self, pids: &[u32]) -> Vec<Result<usize>>;
    fn delete_thread(&self, tid: u32) -> Result<()>;
    fn delete_process(&self, pid: u32) -> Result<usize>;
    /// Lets a thread's sampling begin or end; what was sampled can be read when this
    /// returns.
    fn want(&self, tid: u32, wanted: bool) -> Result<()>;
    fn set_period(&self, tid: u32, period: u64) -> Result<u64>;
    /// The period of threads that are added now.
    fn period_of_new(&self) -> u64;
    fn set_period_of_new(&self, period: u64) -> u64;
    fn set_buffer_of_new(&self, samples: usize);
    /// Brings the counts of a thread, or of all, up to date, and calls `read` while
    /// nothing moves them.
    fn look(&self, tid: Option<u32>, read: &mut dyn FnMut());
    /// Calls `read` while nothing is sampled.
    fn hold(&self, read: &mut dyn FnMut());
    /// Threads that were not sampled: those that ended first, and those that lived.
    fn missed(&self) -> (u64, u64);
    fn notes(&self) -> Vec<String>;
    /// Nobody asks any more: the thread that samples is to end.
    fn end(&self);
    /// It has ended: lets go of everybody.
    fn let_go(&self);
}
