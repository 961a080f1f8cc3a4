//! Memory that running processes use in each of consecutive intervals, for live views.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use memgauge_host::sys::process::own_usage;

use crate::process::{ObservedProcess, tracks_soft_dirty};
use crate::source::{AccessedBitSource, SourceChoice};

/// Memory of a process in the interval between two readings, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// Pages that it used in the interval. A huge page counts with its 2 MiB. `None` in the first
    /// interval, in which its accessed bits were not clear.
    pub used_bytes: Option<u64>,
    /// Pages in memory.
    pub resident_bytes: u64,
}

/// Reads working sets of changing processes.
#[derive(Debug)]
pub struct WorkingSets {
    source: AccessedBitSource,
    flush: bool,
    targets: BTreeMap<u32, ObservedProcess>,
    /// Processes that this user may not observe, or that have no memory of their own.
    refused: BTreeSet<u32>,
    left_out: usize,
}

impl WorkingSets {
    /// Opens the best source of accessed bits. Where the kernel tracks soft-dirty bits, the TLB is
    /// not flushed (docs/mrc.md), so that pages in constant use may be missed.
    pub fn open() -> WorkingSets {
        let source =
            AccessedBitSource::open(SourceChoice::Automatic, false).map(|(source, _)| source);
        WorkingSets {
            source: source.unwrap_or(AccessedBitSource::Rollup),
            flush: !tracks_soft_dirty(),
            targets: BTreeMap::new(),
            refused: BTreeSet::new(),
            left_out: 0,
        }
    }

    /// Ends the interval of each of these processes and begins the next one. Other processes are
    /// forgotten. If reading takes more processor time than `at_most`, the last processes are left
    /// out.
    pub fn read(&mut self, pids: &[u32], at_most: Duration) -> BTreeMap<u32, WorkingSet> {
        let start = own_usage().cpu;
        self.targets.retain(|pid, _| pids.contains(pid));
        self.refused.retain(|pid| pids.contains(pid));
        self.left_out = 0;
        let mut found = BTreeMap::new();
        for &pid in pids {
            if own_usage().cpu - start >= at_most {
                self.left_out += 1;
                // Its accessed bits would cover more than one interval.
                self.targets.remove(&pid);
            } else if let Some(working_set) = self.read_process(pid) {
                found.insert(pid, working_set);
            }
        }
        found
    }

    fn read_process(&mut self, pid: u32) -> Option<WorkingSet> {
        let (mut target, is_cleared) = match self.targets.remove(&pid) {
            Some(target) => (target, true),
            None if self.refused.contains(&pid) => return None,
            None => match ObservedProcess::open(pid) {
                Ok(target) => (target, false),
                Err(_) => {
                    self.refused.insert(pid);
                    return None;
                }
            },
        };
        // Both fail if the process has ended or executed another program.
        let memory = target.read(&self.source).ok()?;
        target.clear(self.flush).ok()?;
        self.targets.insert(pid, target);
        Some(WorkingSet {
            used_bytes: is_cleared.then_some(memory.used_bytes),
            resident_bytes: memory.resident_bytes,
        })
    }

    /// Number of processes in the last reading for which no time was left.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Number of processes in the last reading that cannot be observed: another user's, kernel
    /// threads, and those that another memgauge observes.
    pub fn refused(&self) -> usize {
        self.refused.len()
    }
}
