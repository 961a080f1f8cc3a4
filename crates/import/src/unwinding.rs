//! Unwinds the stacks that perf copied (`perf record --call-graph dwarf`) during the import, with
//! the files of the program, if they still exist.
//!
//! Records are written ring by ring, so a sample can come before the mapping of its code. Therefore
//! all mappings are collected first, sorted by time, and applied up to each sample's time. A sample
//! that is older than the previous one sees mappings that are slightly too new; they differ only
//! around an exec.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::vec::IntoIter;

use memgauge_host::program::{Mappings, hex};
use memgauge_host::unwind::Unwinder;
use memgauge_perf::record::{Record, Sample};
use memgauge_trace::{Module, Pid, VirtAddr};

/// Maximum number of frames, as in perf (`PERF_MAX_STACK_DEPTH`).
const MAX_FRAMES: usize = 127;

/// A change to the mapped code of a process.
#[derive(Clone, Debug)]
pub(super) enum CodeChange {
    Mapped(Module),
    Replaced(u32),
    Forked { child: u32, parent: u32 },
}

impl CodeChange {
    /// Returns the change that a record reports, if any.
    pub(super) fn from_record(record: &Record<'_>) -> Option<CodeChange> {
        match record {
            Record::Mmap(map) if map.executable => Some(CodeChange::Mapped(Module {
                pid: Pid(map.pid),
                start: VirtAddr(map.start),
                end: VirtAddr(map.start.checked_add(map.bytes)?),
                file_offset: map.file_offset,
                path: String::from_utf8_lossy(map.path).into_owned(),
                executable: true,
                build_id: hex(map.build_id),
                ..Module::default()
            })),
            Record::Comm {
                pid, exec: true, ..
            } => Some(CodeChange::Replaced(*pid)),
            Record::Fork(task) if task.pid != task.parent_pid => Some(CodeChange::Forked {
                child: task.pid,
                parent: task.parent_pid,
            }),
            _ => None,
        }
    }
}

/// All changes in order, and the mappings after those that were applied.
pub(super) struct Unwinding {
    changes: Peekable<IntoIter<(u64, CodeChange)>>,
    mappings: Mappings,
    pub(super) unwinder: Unwinder,
}

impl Unwinding {
    /// Creates it from changes in file order, with their times on perf's clock.
    pub(super) fn new(
        mut changes: Vec<(u64, CodeChange)>,
        build_ids: &BTreeMap<String, String>,
    ) -> Unwinding {
        for (_, change) in &mut changes {
            if let CodeChange::Mapped(row) = change
                && row.build_id.is_empty()
                && let Some(id) = build_ids.get(&row.path)
            {
                row.build_id.clone_from(id);
            }
        }
        changes.sort_by_key(|change| change.0);
        Unwinding {
            changes: changes.into_iter().peekable(),
            mappings: Mappings::default(),
            unwinder: Unwinder::default(),
        }
    }

    /// Appends the call chain of a sample.
    pub(super) fn calls(&mut self, s: &Sample<'_>, calls: &mut Vec<VirtAddr>) {
        while let Some((_, change)) = self.changes.next_if(|change| change.0 <= s.time_ns) {
            self.apply(&change);
        }
        self.unwinder.calls(&self.mappings, s, MAX_FRAMES, calls);
    }

    fn apply(&mut self, change: &CodeChange) {
        let pid = match change {
            CodeChange::Mapped(row) => {
                self.mappings.mapped(row);
                row.pid.0
            }
            CodeChange::Replaced(pid) => {
                self.mappings.replaced(*pid);
                *pid
            }
            CodeChange::Forked { child, parent } => {
                self.mappings.replaced(*child);
                self.mappings.forked(*child, *parent, 0);
                *child
            }
        };
        self.unwinder.forget_process(pid);
    }
}
