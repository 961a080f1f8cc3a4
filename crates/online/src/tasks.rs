//! Threads and processes, by `/proc`.

use std::fs::{read_dir, read_to_string};

/// What tells a thread from another that gets its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// When it began, in the kernel's ticks.
    started: u64,
}

/// Who has this number now; `None` where nobody has, or one that has ended and that its
/// parent has not asked after.
pub(crate) fn identity(tid: u32) -> Option<Identity> {
    // A thread of this number is found below its own process only by its `status`.
    let status = read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    let pid = line.trim().parse().ok()?;
    let stat = read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    started(&stat).map(|started| Identity { pid, started })
}

/// The 22nd field, where the third does not say that the thread has ended; the second is
/// a name in parentheses that may hold anything.
fn started(stat: &str) -> Option<u64> {
    let mut behind = stat.rsplit_once(')')?.1.split_whitespace();
    let state = behind.next()?;
    let started = behind.nth(18)?.parse().ok();
    started.filter(|_| !matches!(state, "Z" | "X"))
}

/// Threads of a process, in the order of their numbers.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    let entries = read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let names = entries.flatten().map(|e| e.file_name());
    let mut all: Vec<u32> = names.filter_map(|n| n.to_str()?.parse().ok()).collect();
    all.sort_unstable();
    all
}

/// Processes that a thread has started.
pub(crate) fn children(pid: u32, tid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{tid}/children");
    let all = read_to_string(path).unwrap_or_default();
    let numbers = all.split_whitespace().filter_map(|pid| pid.parse().ok());
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_start() {
        let stat = "12 (a) (b c) S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8765 1 2";
        assert_eq!(started(stat), Some(8765));
        assert_eq!(started(&stat.replace(" S ", " Z ")), None, "it has ended");
        assert_eq!(started("nonsense"), None);
    }

    #[test]
    fn this_process_is_the_same_twice_and_nobody_is_nobody() {
        let own = std::process::id();
        assert!(identity(own).is_some());
        assert_eq!(identity(own), identity(own));
        assert!(threads(own).contains(&own));
        assert_eq!(identity(u32::MAX / 2), None);
    }
}
