//! Follows threads born later, on kernels that cannot inherit counters that are
//! read with samples (before 6.13).
//!
//! An event that counts nothing can be inherited on any kernel, and tells of each
//! thread that begins. It wakes memgauge at once, which opens counters on the new
//! thread. Counts of a thread before that are missing: some tens of microseconds, more
//! on a busy machine, and all counts of a thread that lives no longer. So where the
//! kernel can inherit, it does.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::Result;
use crate::counters::refusal;
use crate::sys::perf::{self, Ring};
use crate::target::OpenTarget;
use memgauge_perf::abi::{Attr, flag, kind, sample, software};
use memgauge_perf::record::{Layout, Record, Task};
use memgauge_perf::ring::walk;

/// Pages of its rings: each wake-up is for one record.
const PAGES: usize = 4;

/// Tells of threads that begin.
#[derive(Debug)]
pub(super) struct Follower {
    fds: Vec<OwnedFd>,
    rings: Vec<Ring>,
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

impl Follower {
    /// Follows all threads that start in the target's threads, and those that start in
    /// them.
    pub(super) fn open(aimed: &OpenTarget) -> Result<Follower> {
        let attr = attr();
        let mut follower = Follower {
            fds: Vec::new(),
            rings: Vec::new(),
            layout: Layout::of(&attr),
        };
        let mut owners: HashMap<Option<u32>, usize> = HashMap::new();
        for place in aimed.places() {
            let fd = perf::open(&attr, place.scope, place.cpu, None)
                .map_err(|e| refusal("follow new threads", e))?;
            match owners.get(&place.cpu) {
                Some(&owner) => perf::write_into(&fd, &follower.fds[owner]),
                None => Ring::map(&fd, PAGES).map(|ring| {
                    owners.insert(place.cpu, follower.fds.len());
                    follower.rings.push(ring);
                }),
            }
            .map_err(|e| refusal("map a ring for new threads", e))?;
            follower.fds.push(fd);
        }
        Ok(follower)
    }

    /// Descriptors that become ready when a thread begins, or when the followed have
    /// ended.
    pub(super) fn wakers(&self) -> Vec<RawFd> {
        self.fds.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// Threads that began since the last call.
    pub(super) fn born(&mut self) -> Vec<Task> {
        let mut born = Vec::new();
        let layout = self.layout;
        for ring in &mut self.rings {
            ring.drain(|first, second| {
                walk(first, second, &mut Vec::new(), |header, body| {
                    if let Some((Record::Fork(task), _)) = layout.record(header, body) {
                        born.push(task);
                    }
                })
            });
        }
        born.sort_by_key(|task| task.time_ns);
        born
    }
}
