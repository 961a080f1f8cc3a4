//! Mappings of processes, including those that forked children inherit.
//!
//! The kernel does not report a child's inherited mappings. Most children execute another program
//! at once, so the rows of inherited mappings are written only when the child's first sample or
//! mapping arrives.

use std::collections::HashMap;
use std::rc::Rc;

use memgauge_trace::{Module, Pid};

/// With more mappings than this, a new mapping no longer removes the ones it covers.
const MAX_REPLACED_MAPPINGS: usize = 4096;

/// Mappings of all processes.
#[derive(Clone, Default)]
pub struct Mappings {
    by_process: HashMap<u32, Rc<Vec<Module>>>,
    /// Children whose inherited rows were not requested yet, with their start times.
    unwritten: HashMap<u32, u64>,
}

impl Mappings {
    /// Adds a mapping.
    pub fn mapped(&mut self, row: &Module) {
        let rows = Rc::make_mut(self.by_process.entry(row.pid.0).or_default());
        if rows.len() < MAX_REPLACED_MAPPINGS {
            rows.retain(|old| old.start < row.start || row.end < old.end);
        }
        rows.push(row.clone());
    }

    /// A process forked a child. A new thread of the same process is ignored.
    pub fn forked(&mut self, child: u32, parent: u32, time_ns: u64) {
        if child == parent {
            return;
        }
        let Some(rows) = self.by_process.get(&parent).cloned() else {
            return;
        };
        self.by_process.insert(child, rows);
        self.unwritten.insert(child, time_ns);
    }

    /// A process executed another program.
    pub fn replaced(&mut self, pid: u32) {
        self.by_process.remove(&pid);
        self.unwritten.remove(&pid);
    }

    /// A process ended.
    pub fn ended(&mut self, pid: u32) {
        self.by_process.remove(&pid);
    }

    /// All mappings of a process, oldest first.
    pub fn of(&self, pid: u32) -> &[Module] {
        self.by_process.get(&pid).map_or(&[], |rows| rows)
    }

    /// Inherited mappings of a process on the first call, and nothing later.
    pub fn inherited(&mut self, pid: u32) -> Vec<Module> {
        if self.unwritten.is_empty() {
            return Vec::new();
        }
        let Some(time_ns) = self.unwritten.remove(&pid) else {
            return Vec::new();
        };
        let rows = self
            .by_process
            .get(&pid)
            .into_iter()
            .flat_map(|rows| &**rows);
        rows.map(|row| Module {
            pid: Pid(pid),
            time_ns,
            ..row.clone()
        })
        .collect()
    }
}
