//! Detects new threads, for kernels that cannot inherit counters whose values are in samples
//! (before 6.13).
//!
//! Every kernel can inherit an event that counts nothing. It reports each new thread and wakes
//! memgauge at once, which then opens counters on the thread. Counts before that are
//! missing: some tens of microseconds, more on a busy machine, and everything if the thread ends
//! earlier. So counters are inherited if the kernel can do so.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::Result;
use crate::counters::refusal;
use crate::sys::perf::{self, KernelRing};
use crate::target::OpenTarget;
use memgauge_perf::abi::{Attr, flag, kind, sample, software};
use memgauge_perf::record::{Layout, Record, Task};

/// The rings are small, since each wake-up is for one record.
const RING_PAGES: usize = 4;

/// Reports new threads.
#[derive(Debug)]
pub(super) struct NewThreadWatcher {
    fds: Vec<OwnedFd>,
    rings: Vec<KernelRing>,
    layout: Layout,
}

fn attr() -> Attr {
    let mut attr = Attr::new(kind::SOFTWARE, software::DUMMY);
    attr.sample_type = sample::TID | sample::TIME;
    attr.wakeup = 1;
    attr.flags = flag::INHERIT
        | flag::TASK
        | flag::WATERMARK
        | flag::SAMPLE_ID_ALL
        | flag::EXCLUDE_KERNEL
        | flag::EXCLUDE_HV;
    attr
}

impl NewThreadWatcher {
    /// Watches all threads of the target, and all threads that they start.
    pub(super) fn open(target: &OpenTarget) -> Result<NewThreadWatcher> {
        let attr = attr();
        let mut watcher = NewThreadWatcher {
            fds: Vec::new(),
            rings: Vec::new(),
            layout: Layout::new(&attr),
        };
        let mut owners: HashMap<Option<u32>, usize> = HashMap::new();
        for placement in target.placements() {
            let fd = perf::open(&attr, placement.scope, placement.cpu, None)
                .map_err(|e| refusal("follow new threads", e))?;
            match owners.get(&placement.cpu) {
                Some(&owner) => perf::write_into(&fd, &watcher.fds[owner]),
                None => KernelRing::map(&fd, RING_PAGES).map(|ring| {
                    owners.insert(placement.cpu, watcher.fds.len());
                    watcher.rings.push(ring);
                }),
            }
            .map_err(|e| refusal("map a ring for new threads", e))?;
            watcher.fds.push(fd);
        }
        Ok(watcher)
    }

    /// Descriptors that become ready when a thread starts, or when the watched threads have ended.
    pub(super) fn poll_fds(&self) -> Vec<RawFd> {
        self.fds.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Returns the threads that have started since the last call, by time.
    pub(super) fn new_threads(&mut self) -> Vec<Task> {
        let mut started = Vec::new();
        for ring in &mut self.rings {
            ring.read_records(|header, body| {
                if let Some((Record::Fork(task), _)) = self.layout.record(header, body) {
                    started.push(task);
                }
            });
        }
        started.sort_by_key(|task| task.time_ns);
        started
    }
}
