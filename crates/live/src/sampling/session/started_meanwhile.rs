//! Processes that start, or execute another program, while the recording of running processes
//! begins.
//!
//! The kernel writes no records of forks and mappings for events that are not enabled yet. A child
//! that starts after the events were opened inherits them, so it is sampled as soon as they are
//! enabled, but no record contains its mappings. `/proc` is therefore read again when the events are
//! enabled, for new processes.

use std::collections::BTreeSet;
use std::fs::read_dir;

use memgauge_host::process_tree::descendants;

use crate::target::Target;

/// Descendants of the target's processes, which were running before.
pub(super) fn running_descendants(target: &Target) -> BTreeSet<u32> {
    match target {
        Target::Processes(ids) | Target::Threads(ids) => descendants(ids),
        _ => BTreeSet::new(),
    }
}

/// Processes of the target that may have started, or may execute another program, since the events were opened.
/// Returns the threads that started meanwhile. Threads in `older` were running before and have no events.
pub(super) fn candidates(target: &Target, older: &BTreeSet<u32>) -> BTreeSet<u32> {
    let started = || &running_descendants(target) - older;
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
