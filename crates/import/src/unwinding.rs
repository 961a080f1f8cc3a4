//! Stacks that perf copied (`perf record --call-graph dwarf`), unwound while they are
//! imported: with the files that the program ran, as long as they are still there.
//!
//! Records lie in a file ring by ring. A sample may come before the record of the mapping
//! that its code lies in. So what processes map is collected first, in order of time, and
//! applied up to each sample's time. A sample that is older than its predecessor sees
//! mappings that came a little later, which differ only around exec.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::vec::IntoIter;

use memgauge_host::program::{Mappings, hex};
use memgauge_host::unwind::Unwinder;
use memgauge_perf::record::{Record, Sample};
use memgauge_trace::{Module, Pid, VirtAddr};

/// Frames of a stack at most, as perf has it (`PERF_MAX_STACK_DEPTH`).
const MOST_FRAMES: usize = 127;

/// A change of the code that a process has mapped.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Mapped(Module),
    Replaced(u32),
    Forked { child: u32, parent: u32 },
}

impl Change {
    /// The change that a record tells, if any.
    pub(super) fn of(record: &Record<'_>) -> Option<Change> {
        match record {
            Record::Mmap(map) if map.executable => Some(Change::Mapped(Module {
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
            } => Some(Change::Replaced(*pid)),
            Record::Fork(task) if task.pid != task.parent_pid => Some(Change::Forked {
                child: task.pid,
                parent: task.parent_pid,
            }),
            _ => None,
        }
    }
}

/// All changes in order, and how far they were applied.
pub(super) struct Unwinding {
    changes: Peekable<IntoIter<(u64, Change)>>,
    mappings: Mappings,
    pub(super) unwinder: Unwinder,
}

impl Unwinding {
    /// From changes with their times in perf's clock, in the file's order.
    pub(super) fn new(
        mut changes: Vec<(u64, Change)>,
        build_ids: &BTreeMap<String, String>,
    ) -> Unwinding {
        for (_, change) in &mut changes {
            if let Change::Mapped(row) = change
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

    /// Appends the calls that led to the sample.
    pub(super) fn calls(&mut self, s: &Sample<'_>, calls: &mut Vec<VirtAddr>) {
        while let Some((_, change)) = self.changes.next_if(|change| change.0 <= s.time_ns) {
            self.apply(&change);
        }
        self.unwinder.calls(&self.mappings, (s, MOST_FRAMES), calls);
    }

    fn apply(&mut self, change: &Change) {
        let pid = match change {
            Change::Mapped(row) => {
                self.mappings.mapped(row);
                row.pid.0
            }
            Change::Replaced(pid) => {
                self.mappings.replaced(*pid);
                *pid
            }
            Change::Forked { child, parent } => {
                self.mappings.replaced(*child);
                self.mappings.forked(*child, *parent, 0);
                *child
            }
        };
        self.unwinder.changed(pid);
    }
}
