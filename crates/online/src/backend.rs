//! Operations that a profiler needs from the code that samples. `collector` implements them for
//! running threads, `program` for a program that a source runs.

use crate::Result;
use crate::unsampled_threads::UnsampledCounts;

/// Sampling of a set of threads.
pub(crate) trait Backend: Send + Sync {
    /// Enables or disables all sampling.
    fn set_enabled(&self, on: bool);
    fn add_thread(&self, tid: u32) -> Result<()>;
    /// Adds processes one after the other. Returns the number of threads added of each.
    fn add_processes(&self, pids: &[u32]) -> Vec<Result<usize>>;
    fn delete_thread(&self, tid: u32) -> Result<()>;
    fn delete_process(&self, pid: u32) -> Result<usize>;
    /// Enables or disables sampling of a thread. Samples taken before can be read when this
    /// returns.
    fn set_thread_enabled(&self, tid: u32, wanted: bool) -> Result<()>;
    fn set_period(&self, tid: u32, period: u64) -> Result<u64>;
    /// Period of threads that are added from now on.
    fn default_period(&self) -> u64;
    fn set_default_period(&self, period: u64) -> u64;
    fn set_default_buffer(&self, samples: usize);
    /// Updates the counts of a thread, or of all threads for `None`, and calls `read` before they
    /// change again.
    fn refresh_counts(&self, tid: Option<u32>, read: &mut dyn FnMut());
    /// Calls `read` while no thread is added, removed or read.
    fn with_lock(&self, read: &mut dyn FnMut());
    /// Number of threads that should have been sampled and were not.
    fn unsampled_threads(&self) -> UnsampledCounts;
    fn notes(&self) -> Vec<String>;
    /// Asks the sampling thread to end.
    fn request_stop(&self);
    /// Detaches from all threads. Called after the sampling thread has ended.
    fn detach_all(&self);
}
