//! Times at which a process mapped and unmapped memory.
//!
//! The catalogue announces a change before the thread that made it is replayed to that point. A
//! mark in that thread's words has the time.

use std::collections::VecDeque;
use std::ops::Range;

use memgauge_trace::{Module, Pid, VirtAddr};

use crate::engine::address_space::{ANON, AddressSpace, Mapping};

/// Times of all mappings and unmappings of a process.
pub(super) struct Mapped {
    /// Start time, then the time at which a thread reached each change. Increasing.
    times_ns: Vec<u64>,
    /// Changes that no thread has reached.
    ahead: VecDeque<PendingChange>,
    /// Latest unmapped mappings. A thread that used one may be replayed later.
    gone: VecDeque<(u64, Mapping)>,
}

/// Maximum number of unmapped mappings.
const MAX_UNMAPPED: usize = 1024;

/// A change that no thread has reached.
struct PendingChange {
    /// End of its record in the catalogue, in bytes.
    bytes: u64,
    change: MappingChange,
    /// Row to write.
    row: Option<Module>,
}

/// Kind of change.
pub(super) enum MappingChange {
    Map(u64, Mapping),
    Unmap(Range<u64>),
    /// The end of the heap is known immediately.
    Break,
}

impl MappingChange {
    fn apply(&self, number: u32, space: &mut AddressSpace) {
        match self {
            MappingChange::Map(start, mapping) => space.map(
                *start,
                Mapping {
                    number,
                    ..mapping.clone()
                },
            ),
            MappingChange::Unmap(range) => space.unmap(range),
            MappingChange::Break => {}
        }
    }
}

impl Default for Mapped {
    fn default() -> Mapped {
        Mapped::since(0)
    }
}

impl Mapped {
    /// Creates the mappings of a program that starts at this time.
    pub(super) fn since(began_ns: u64) -> Mapped {
        Mapped {
            times_ns: vec![began_ns],
            ahead: VecDeque::new(),
            gone: VecDeque::new(),
        }
    }

    /// Creates the mappings of a child that was forked at this time with all mappings in `space`,
    /// which is its parent's.
    pub(super) fn inherited(&self, forked_ns: u64, space: &mut AddressSpace) -> Mapped {
        let mut times_ns = self.times_ns.clone();
        let last = self.last_ns();
        for ahead in &self.ahead {
            ahead.change.apply(times_ns.len() as u32, space);
            times_ns.push(forked_ns.max(last));
        }
        Mapped {
            times_ns,
            ahead: VecDeque::new(),
            gone: VecDeque::new(),
        }
    }

    fn last_ns(&self) -> u64 {
        self.times_ns.last().copied().unwrap_or(0)
    }

    /// Returns a time that is after all changes and not before `now_ns`, at which another program
    /// may start.
    pub(super) fn end_ns(&self, now_ns: u64) -> u64 {
        now_ns.max(self.last_ns() + self.ahead.len() as u64 + 1)
    }

    /// Returns the time of the mapping that contains code first executed after this number of
    /// changes. It is a mapping of that time or the next one.
    pub(super) fn code_ns(&self, mappings: u32) -> u64 {
        let known = self.times_ns.get(mappings as usize);
        known.copied().unwrap_or_else(|| self.last_ns())
    }

    /// Adds a change whose record ends at `bytes` of the catalogue.
    pub(super) fn push(&mut self, bytes: u64, change: MappingChange, row: Option<Module>) {
        self.ahead.push_back(PendingChange { bytes, change, row });
    }

    /// Handles a thread that reached the changes in the first `bytes` of the catalogue. Returns
    /// their rows with times. Updates `space`, in which each mapping has its number, starting with
    /// 1.
    pub(super) fn reach(
        &mut self,
        bytes: u64,
        now_ns: u64,
        space: &mut AddressSpace,
    ) -> Vec<Module> {
        let mut rows = Vec::new();
        while self.ahead.front().is_some_and(|next| next.bytes <= bytes) {
            let Some(next) = self.ahead.pop_front() else {
                break;
            };
            if let MappingChange::Unmap(range) = &next.change {
                self.keep_gone(range, space);
            }
            next.change.apply(self.times_ns.len() as u32, space);
            // Must be after earlier uses, even if no time has passed.
            let time_ns = now_ns.max(self.last_ns()) + 1;
            self.times_ns.push(time_ns);
            rows.extend(next.row.map(|row| Module { time_ns, ..row }));
        }
        rows
    }

    fn keep_gone(&mut self, range: &Range<u64>, space: &AddressSpace) {
        self.gone.extend(space.within(range));
        let surplus = self.gone.len().saturating_sub(MAX_UNMAPPED);
        self.gone.drain(..surplus);
    }

    /// Renames the anonymous mapping around `address`, which is at most `within` bytes before its
    /// end, or the latest such mapping that was unmapped. Returns it if found.
    pub(super) fn name_gone(
        &self,
        address: u64,
        within: u64,
        name: &str,
    ) -> Option<(u64, Mapping)> {
        let mut gone = self.gone.iter().rev();
        let (start, mapping) = gone.find(|(start, m)| (*start..m.end).contains(&address))?;
        let is_stack = mapping.path == ANON && mapping.end - address <= within;
        let path = name.to_owned();
        is_stack.then(|| {
            (
                *start,
                Mapping {
                    path,
                    ..mapping.clone()
                },
            )
        })
    }
}

/// Returns the row that ends mappings, as `path` states.
pub(super) fn nothing_until(end: u64, path: &str) -> Mapping {
    Mapping {
        end,
        file_offset: 0,
        executable: false,
        path: path.to_owned(),
        number: 0,
    }
}

pub(super) fn module(pid: u32, time_ns: u64, start: u64, m: &Mapping) -> Module {
    Module {
        pid: Pid(pid),
        time_ns,
        start: VirtAddr(start),
        end: VirtAddr(m.end),
        file_offset: m.file_offset,
        path: m.path.clone(),
        executable: m.executable,
        ..Module::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(rows: &[Module]) -> Vec<u64> {
        rows.iter().map(|row| row.time_ns).collect()
    }

    #[test]
    fn each_has_the_time_at_which_a_thread_comes_to_it() {
        let mut mapped = Mapped::since(5);
        let mut space = AddressSpace::default();
        let starts = |space: &AddressSpace| space.iter().map(|(at, m)| (at, m.number)).collect();
        let starts: &dyn Fn(&AddressSpace) -> Vec<(u64, u32)> = &starts;
        for (bytes, start) in [(100, 0x1000), (200, 0x3000), (300, 0x5000)] {
            let mapping = Mapping::new(start + 0x1000, 0, false, String::new());
            mapped.push(
                bytes,
                MappingChange::Map(start, mapping),
                Some(Module::default()),
            );
        }
        mapped.push(400, MappingChange::Unmap(0x1000..0x2000), None);
        let rows = mapped.reach(250, 1000, &mut space);
        assert_eq!(times(&rows), [1001, 1002]);
        assert_eq!(starts(&space), [(0x1000, 1), (0x3000, 2)]);
        assert_eq!(
            [0, 1, 2, 3].map(|n| mapped.code_ns(n)),
            [5, 1001, 1002, 1002]
        );
        let mut of_child = space.clone();
        let child = mapped.inherited(5000, &mut of_child);
        assert_eq!([2, 3, 4].map(|n| child.code_ns(n)), [1002, 5000, 5000]);
        assert_eq!(starts(&of_child), [(0x3000, 2), (0x5000, 3)]);
        assert_eq!((mapped.end_ns(0), mapped.end_ns(9000)), (1005, 9000));
        let rows = mapped.reach(u64::MAX, 1000, &mut space);
        assert_eq!(times(&rows), [1003]);
        assert_eq!(mapped.code_ns(4), 1004);
        assert_eq!(starts(&space), starts(&of_child));
        // A thread that used the unmapped memory is replayed after the unmapping.
        let named = mapped.name_gone(0x1ff0, 0x100, "[stack 7]");
        let (start, mapping) = named.expect("it was the last there");
        assert_eq!(
            (start, &*mapping.path, mapping.number),
            (0x1000, "[stack 7]", 1)
        );
        assert_eq!(mapped.name_gone(0x1000, 0x100, "[stack 7]"), None);
        assert_eq!(mapped.name_gone(0x3ff0, 0x100, "[stack 7]"), None);
    }
}
