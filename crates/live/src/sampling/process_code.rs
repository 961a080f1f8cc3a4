//! The code of attached processes, from which data addresses are derived while they run.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::code::CodeReader;
use super::decoder::derive_address;
use memgauge_host::maps;
use memgauge_perf::derive::{IpPosition, NoRecipe};
use memgauge_perf::record::{Mmap, Record, Sample};
use memgauge_trace::Sample as SampleRow;

/// Minimum time between two reads of a process's mappings from `/proc`.
const MIN_RESCAN_INTERVAL: Duration = Duration::from_millis(50);

/// Executable mappings of processes, and how their instructions access data.
#[derive(Default)]
pub struct ProcessCode {
    code: CodeReader,
    scanned_at: HashMap<u32, Instant>,
}

impl ProcessCode {
    /// Reads the mappings of a running process from `/proc`.
    pub fn scan(&mut self, pid: u32) {
        self.scanned_at.insert(pid, Instant::now());
        for line in maps::of_process(pid).iter().filter(|line| line.executable) {
            let bytes = line.end.saturating_sub(line.start);
            (self.code).add_mapping(pid, line.start, bytes, line.file_offset, &line.path);
        }
    }

    /// Forgets a process that has ended.
    pub fn forget_process(&mut self, pid: u32) {
        self.scanned_at.remove(&pid);
        self.code.forget_process(pid);
    }

    /// Keeps the mappings up to date with the kernel's records.
    pub(super) fn observe(&mut self, record: &Record<'_>) {
        match record {
            Record::Mmap(map) if map.executable => self.add_mapping(map),
            Record::Comm {
                pid, exec: true, ..
            } => self.code.forget_process(*pid),
            Record::Fork(task) => self.code.fork(task.pid, task.parent_pid),
            _ => {}
        }
    }

    fn add_mapping(&mut self, map: &Mmap<'_>) {
        let path = String::from_utf8_lossy(map.path);
        self.code
            .add_mapping(map.pid, map.start, map.bytes, map.file_offset, &path);
    }

    /// Derives the sample's data address from its code and registers, if possible.
    pub(super) fn derive_address(
        &mut self,
        position: IpPosition,
        s: &Sample<'_>,
        row: &mut SampleRow,
    ) {
        let derived = derive_address(&mut self.code, position, s, row);
        // The rings of two threads are read one after the other, so a sample may be read before the
        // record of the mapping that contains its instruction.
        let scanned_at = self.scanned_at.get(&s.pid);
        let may_scan = scanned_at.is_none_or(|at| at.elapsed() > MIN_RESCAN_INTERVAL);
        if derived == Err(NoRecipe::NoCode) && may_scan {
            self.scan(s.pid);
            self.code.forget_recipes(s.pid, s.ip);
            // If it fails again, the sample has no address.
            let _ = derive_address(&mut self.code, position, s, row);
        }
    }
}
