//! The code of processes that are attached to, for addresses rebuilt while they run.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::code::Code;
use super::decode::rebuild;
use memgauge_host::maps;
use memgauge_perf::derive::{Moment, NoRecipe};
use memgauge_perf::record::{Mmap, Record, Sample};
use memgauge_trace::Sample as SampleRow;

/// Rings of two threads are read one after the other: a sample may come before the
/// record of the mapping that it lies in. Then `/proc` is asked, at most so often.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What processes have mapped, and how their instructions access data.
#[derive(Default)]
pub struct ProcessCode {
    code: Code,
    asked: HashMap<u32, Instant>,
}

impl ProcessCode {
    /// Reads what a process has mapped; nothing where it has ended.
    pub fn existing(&mut self, pid: u32) {
        self.asked.insert(pid, Instant::now());
        for line in maps::of(pid).iter().filter(|line| line.executable) {
            let bytes = line.end.saturating_sub(line.start);
            (self.code).mapped(pid, line.start, bytes, line.file_offset, &line.path);
        }
    }

    /// Forgets a process that has ended.
    pub fn ended(&mut self, pid: u32) {
        self.asked.remove(&pid);
        self.code.replaced(pid);
    }

    pub(super) fn take(&mut self, record: &Record<'_>) {
        match record {
            Record::Mmap(map) if map.executable => self.mapped(map),
            Record::Comm {
                pid, exec: true, ..
            } => self.code.replaced(*pid),
            Record::Fork(task) => self.code.forked(task.pid, task.parent_pid),
            _ => {}
        }
    }

    fn mapped(&mut self, map: &Mmap<'_>) {
        let path = String::from_utf8_lossy(map.path);
        self.code
            .mapped(map.pid, map.start, map.bytes, map.file_offset, &path);
    }

    /// Rebuilds the sample's data address, where its code and registers tell it.
    pub(super) fn rebuild(&mut self, moment: Moment, s: &Sample<'_>, row: &mut SampleRow) {
        let found = rebuild(&mut self.code, moment, s, row);
        let asked = self.asked.get(&s.pid);
        if found == Err(NoRecipe::NoCode) && asked.is_none_or(|at| at.elapsed() > ASK_AGAIN) {
            self.existing(s.pid);
            self.code.forget(s.pid, s.ip);
            // Where it still fails, the sample has no address.
            let _ = rebuild(&mut self.code, moment, s, row);
        }
    }
}
