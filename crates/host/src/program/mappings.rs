//! Mappings by process, so that a forked child has those of its parent.
//!
//! The kernel reports no mapping of a child that was there before it. Most children
//! run another program at once, so a child's inherited rows are written when its first
//! sample or mapping comes.

use std::collections::HashMap;
use std::rc::Rc;

use memgauge_trace::{Module, Pid};

/// Beyond that many mappings, those that a new one covers are kept too.
const MOST_LOOKED_AT: usize = 4096;

/// Mappings of every process, inherited ones included.
#[derive(Clone, Default)]
pub struct Mappings {
    by_process: HashMap<u32, Rc<Vec<Module>>>,
    /// Children whose rows have not been asked for, and when they began.
    unwritten: HashMap<u32, u64>,
}

impl Mappings {
    /// A process mapped something.
    pub fn mapped(&mut self, row: &Module) {
        let rows = Rc::make_mut(self.by_process.entry(row.pid.0).or_default());
        if rows.len() < MOST_LOOKED_AT {
            rows.retain(|old| old.start < row.start || row.end < old.end);
        }
        rows.push(row.clone());
    }

    /// A process has a child; threads of one process are none.
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

    /// A process runs another program.
    pub fn replaced(&mut self, pid: u32) {
        self.by_process.remove(&pid);
        self.unwritten.remove(&pid);
    }

    /// A process has ended.
    pub fn ended(&mut self, pid: u32) {
        self.by_process.remove(&pid);
    }

    /// All that a process has mapped, older mappings first.
    pub fn of(&self, pid: u32) -> &[Module] {
        self.by_process.get(&pid).map_or(&[], |rows| rows)
    }

    /// Mappings that a process inherited, at the first call for it.
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
