//! IDs of processes and threads in other PID namespaces.
//!
//! Programs report IDs of their own namespace. The recording, and checks whether a process still
//! runs, need those of memgauge's namespace.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::engine::sync::MarkKind;

/// First ID that memgauge assigns itself, beyond all IDs of the kernel.
const NOBODYS: u32 = 1 << 30;

/// Number of the PID namespace of a process with this folder in `/proc`, or 0 if unknown.
pub(crate) fn space_of(process: &Path) -> u64 {
    fs::metadata(process.join("ns/pid")).map_or(0, |found| found.ino())
}

/// Returns the ID, in memgauge's namespace, of the process or thread with ID `inside` in namespace
/// `space`. `folder` is `/proc` or a process's `task`. If it has ended, returns an unused ID that
/// follows from its `entry`.
pub(crate) fn number_here(folder: &Path, space: u64, inside: u32, entry: u32) -> u32 {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbered = all.filter_map(|found| Some((found.file_name().to_str()?.parse().ok()?, found)));
    let mut same = numbered.filter(|(_, found)| {
        last_number(&found.path()) == Some(inside) && space_of(&found.path()) == space
    });
    same.next()
        .map_or(NOBODYS | (entry % NOBODYS), |(number, _)| number)
}

/// The ID in the innermost namespace.
fn last_number(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// IDs here of processes and threads in other namespaces.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// By namespace and ID there.
    here: HashMap<(u64, u32), u32>,
    /// Namespace of each process by its ID here.
    spaces: HashMap<u32, u64>,
}

impl Elsewhere {
    /// Adds a thread of process `pid` with its ID in another namespace.
    pub(crate) fn know(&mut self, pid: u32, tid: u32, (space, inside): (u64, u32)) {
        self.spaces.insert(pid, space);
        self.here.insert((space, inside), tid);
    }

    /// Converts the IDs in a mark of a process to those here.
    pub(crate) fn translated(&self, pid: u32, what: MarkKind) -> MarkKind {
        let Some(&space) = self.spaces.get(&pid) else {
            return what;
        };
        let here = |number| self.here.get(&(space, number)).copied().unwrap_or(number);
        match what {
            MarkKind::Exit(tid, whole) => MarkKind::Exit(here(tid), whole),
            MarkKind::JoinThread(tid) => MarkKind::JoinThread(here(tid)),
            MarkKind::JoinProcess(pid) => MarkKind::JoinProcess(here(pid)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lives_here_has_one_number_and_who_has_ended_a_number_of_nobody() {
        let (own, space) = (std::process::id(), space_of(Path::new("/proc/self")));
        assert_eq!(number_here(Path::new("/proc"), space, own, 7), own);
        let task = Path::new("/proc/self/task");
        assert_eq!(number_here(task, space, own, 7), own);
        assert_eq!(
            number_here(Path::new("/proc"), space + 1, own, 7),
            NOBODYS | 7
        );
    }

    #[test]
    fn marks_of_another_namespace_have_the_numbers_of_this_one() {
        let mut elsewhere = Elsewhere::default();
        elsewhere.know(500, 501, (9, 2));
        let of = |pid, what| elsewhere.translated(pid, what);
        assert_eq!(of(500, MarkKind::JoinThread(2)), MarkKind::JoinThread(501));
        assert_eq!(of(500, MarkKind::Exit(2, true)), MarkKind::Exit(501, true));
        assert_eq!(of(500, MarkKind::JoinProcess(3)), MarkKind::JoinProcess(3));
        assert_eq!(of(400, MarkKind::JoinThread(2)), MarkKind::JoinThread(2));
    }
}
