//! Processes that start, or execute another program, while the recording of running processes begins.
//!
//! The kernel writes no records of forks and mappings for events that are not enabled yet. A child that
//! starts after the events were opened inherits them, so it is sampled as soon as they are enabled, but nothing
//! says what it has mapped. So `/proc` is read again when the events are enabled, for what is new.

use std::collections::BTreeSet;
use std::fs::read_dir;

use super::reopen::{child_processes, threads_of_process};
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

/// Processes of the target that may have started, or may execute another program, since the events were opened.
/// Returns the threads that started meanwhile. Threads in `older` were running before and have no events.
pub(super) fn candidates(target: &Target, older: &BTreeSet<u32>) -> BTreeSet<u32> {
    let started = || &descendants(target) - older;
    match target {
        Target::Command(_) => BTreeSet::new(),
        Target::Processes(ids) => started().into_iter().chain(ids.iter().copied()).collect(),
        Target::Threads(_) => started(),
        Target::AllProcesses(_) | Target::Cgroup(_) => {
            let entries = read_dir("/proc").into_iter().flatten().flatten();
            entries
                .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
                .collect()
        }
    }
}
