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
const UNUSED_ID: u32 = 1 << 30;

/// Number of the PID namespace of a process with this folder in `/proc`, or 0 if unknown.
pub(crate) fn namespace_of(process: &Path) -> u64 {
    fs::metadata(process.join("ns/pid")).map_or(0, |found| found.ino())
}

/// Returns the ID, in memgauge's namespace, of a process or thread in another one. `folder` is
/// `/proc` or a process's `task`. If it has ended, returns an unused ID that follows from its
/// `entry`.
pub(crate) fn local_id(folder: &Path, foreign_id: ForeignId, entry: u32) -> u32 {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let numbered = all.filter_map(|found| Some((found.file_name().to_str()?.parse().ok()?, found)));
    let mut same = numbered.filter(|(_, found)| {
        innermost_id(&found.path()) == Some(foreign_id.id)
            && namespace_of(&found.path()) == foreign_id.namespace
    });
    same.next()
        .map_or(UNUSED_ID | (entry % UNUSED_ID), |(number, _)| number)
}

/// The ID in the innermost namespace.
fn innermost_id(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// ID of a process or thread in another PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ForeignId {
    pub(crate) namespace: u64,
    pub(crate) id: u32,
}

/// Processes and threads in other namespaces.
#[derive(Debug, Default)]
pub(crate) struct ForeignIds {
    /// ID in memgauge's namespace by foreign ID.
    local_ids: HashMap<ForeignId, u32>,
    /// Namespace of each process by its ID in memgauge's namespace.
    namespaces: HashMap<u32, u64>,
}

impl ForeignIds {
    /// Adds a thread of process `pid` with its ID in another namespace.
    pub(crate) fn add(&mut self, pid: u32, tid: u32, foreign_id: ForeignId) {
        self.namespaces.insert(pid, foreign_id.namespace);
        self.local_ids.insert(foreign_id, tid);
    }

    /// Converts the IDs in a mark of a process to those in memgauge's namespace.
    pub(crate) fn translated(&self, pid: u32, kind: MarkKind) -> MarkKind {
        let Some(&namespace) = self.namespaces.get(&pid) else {
            return kind;
        };
        let local = |id| {
            let foreign_id = ForeignId { namespace, id };
            self.local_ids.get(&foreign_id).copied().unwrap_or(id)
        };
        match kind {
            MarkKind::Exit(tid, whole) => MarkKind::Exit(local(tid), whole),
            MarkKind::JoinThread(tid) => MarkKind::JoinThread(local(tid)),
            MarkKind::JoinProcess(pid) => MarkKind::JoinProcess(local(pid)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_process_gets_an_unused_id() {
        let own = ForeignId {
            namespace: namespace_of(Path::new("/proc/self")),
            id: std::process::id(),
        };
        let ended = ForeignId {
            namespace: own.namespace + 1,
            ..own
        };
        assert_eq!(local_id(Path::new("/proc"), own, 7), own.id);
        assert_eq!(local_id(Path::new("/proc/self/task"), own, 7), own.id);
        assert_eq!(local_id(Path::new("/proc"), ended, 7), UNUSED_ID | 7);
    }

    #[test]
    fn ids_in_marks_of_another_namespace_are_translated() {
        let mut foreign_ids = ForeignIds::default();
        let foreign_id = ForeignId {
            namespace: 9,
            id: 2,
        };
        foreign_ids.add(500, 501, foreign_id);
        let of = |pid, kind| foreign_ids.translated(pid, kind);
        assert_eq!(of(500, MarkKind::JoinThread(2)), MarkKind::JoinThread(501));
        assert_eq!(of(500, MarkKind::Exit(2, true)), MarkKind::Exit(501, true));
        assert_eq!(of(500, MarkKind::JoinProcess(3)), MarkKind::JoinProcess(3));
        assert_eq!(of(400, MarkKind::JoinThread(2)), MarkKind::JoinThread(2));
    }
}
