//! Threads, children and descendants of running processes, from `/proc`.

use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};

/// Returns all threads of the process that a thread belongs to. Empty if it has ended.
pub fn threads(tid: u32) -> Vec<u32> {
    let entries = read_dir(format!("/proc/{tid}/task")).into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// Returns the child processes that a thread has started.
pub fn children_of_thread(tid: u32) -> Vec<u32> {
    let path = format!("/proc/{tid}/task/{tid}/children");
    let children = read_to_string(path).unwrap_or_default();
    let pids = children.split_whitespace();
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns the child processes that the threads of a process have started.
pub fn children(pid: u32) -> Vec<u32> {
    threads(pid)
        .into_iter()
        .flat_map(children_of_thread)
        .collect()
}

/// Returns the children of these processes, their children, and so on.
pub fn descendants(pids: &[u32]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut unvisited = pids.to_vec();
    while let Some(pid) = unvisited.pop() {
        let new = children(pid).into_iter();
        unvisited.extend(new.filter(|&child| found.insert(child)));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn descendants_are_the_children_of_all_threads() {
        let own = std::process::id();
        let mut child = Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("sleep is there");
        // This thread is not the first one of the process.
        assert!(threads(own).len() > 1);
        assert!(children(own).contains(&child.id()));
        assert!(descendants(&[own]).contains(&child.id()));
        assert!(descendants(&[child.id()]).is_empty());
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert!(threads(child.id()).is_empty());
    }
}
