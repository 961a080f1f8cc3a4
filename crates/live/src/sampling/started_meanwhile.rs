//! Processes that start, or execute another program, while the recording of running processes begins.
//!
//! The kernel writes no records of forks and mappings for events that are not enabled yet. A child that
//! starts after the events were opened inherits them, so it is sampled as soon as they are enabled, but nothing
//! says what it has mapped. So `/proc` is read again when the events are enabled, for what is new.

use std::collections::BTreeSet;
use std::fs::read_dir;

use super::reopen::{child_processes, threads_of_process};
use super::session::Session;
use crate::Result;
use crate::target::Target;

/// Running descendants of processes.
pub(super) fn descendants(target: &Target) -> BTreeSet<u32> {
    let (Target::Processes(ids) | Target::Threads(ids)) = target else {
        return BTreeSet::new();
    };
    let mut found = BTreeSet::new();
    let mut next = ids.clone();
    while let Some(pid) = next.pop() {
        let children = threads_of_process(pid)
            .into_iter()
            .flat_map(child_processes);
        next.extend(children.filter(|&child| found.insert(child)));
    }
    found
}

impl Session<'_> {
    /// Adds processes that have started, or execute another program, since the events were opened. Those of
    /// `older` were running before and have no events.
    pub(super) fn add_started_meanwhile(&mut self, older: &BTreeSet<u32>) -> Result<()> {
        let target = &self.options.target;
        let pids: BTreeSet<u32> = match target {
            Target::Command(_) => return Ok(()),
            Target::Processes(ids) => {
                let started = &descendants(target) - older;
                started.into_iter().chain(ids.iter().copied()).collect()
            }
            Target::Threads(_) => &descendants(target) - older,
            Target::AllProcesses(_) | Target::Cgroup(_) => {
                let entries = read_dir("/proc").into_iter().flatten().flatten();
                entries
                    .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
                    .collect()
            }
        };
        let recorder = &mut self.recorder;
        for pid in pids {
            if recorder.processes.add_started(pid, &mut recorder.writer)? {
                recorder.python.add_running(pid);
            }
        }
        Ok(())
    }
}
