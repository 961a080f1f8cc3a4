//! Marks among a thread's words: its start, whom it lets go on, whom it has waited for, and
//! regions of interest.

use memgauge_trace::{CodeValue, Pid, Tid};

use super::{MOST_STARTS, ModelReader, Process, Running, reading};
use crate::engine::sync::{MarkKind, Sync};
use crate::readers::roi::{self, RegionMark, RegionMarkKind};
use crate::time::waits::Marker;

impl ModelReader {
    /// A thread begins when the one that started it did so.
    pub(super) fn begin_at_birth(&mut self, process: &mut Process, tid: u32, thread: &mut Running) {
        let birth = std::mem::take(&mut thread.birth);
        if birth > 0 && self.with_stacks {
            let calls = self.started_in.remove(&birth);
            process.kept.program.calls.begin(tid, calls);
        }
        if let Some(start_ns) = self.waits.start(birth) {
            thread.start_ns = start_ns;
            self.machine.core_mut(thread.core).0.begin_at(start_ns);
            for what_if in &mut self.what_if {
                what_if.machine.core_mut(thread.core).0.begin_at(start_ns);
            }
        }
    }

    /// Takes a begin or an end of a region, or a value.
    pub(super) fn take_region_mark(
        &mut self,
        process: &Process,
        tid: u32,
        thread: &mut Running,
        mark: &RegionMark,
    ) {
        let core = self.machine.core(thread.core);
        match mark.what {
            RegionMarkKind::Begin => {
                let name = process.kept.regions.get(&mark.name);
                let wanted = name.is_some_and(|name| self.wanted.holds(name));
                thread.regions.begin(mark.name, wanted, reading(core));
            }
            RegionMarkKind::End => thread.regions.end(mark.name, &reading(core)),
            RegionMarkKind::Value(value) => {
                let written = self.writer.push(CodeValue {
                    time_ns: core.time_ns(),
                    pid: Pid(process.entry.pid),
                    tid: Tid(tid),
                    name: roi::name_of(&process.kept.regions, mark.name),
                    value,
                });
                self.note(written);
            }
            RegionMarkKind::Nothing => self.stray += 1,
        }
    }

    /// Takes a release or a wait of a thread.
    pub(super) fn synchronise(
        &mut self,
        process: &Process,
        tid: u32,
        thread: &Running,
        sync: &Sync,
    ) {
        if self.with_stacks && sync.what == MarkKind::Start {
            let calls = process.kept.program.calls.now(tid);
            self.started_in.insert(sync.number, calls);
            if self.started_in.len() > MOST_STARTS {
                self.started_in.pop_first();
            }
        }
        if let MarkKind::Sleep(_, true) = sync.what {
            self.cut_sleeps += 1;
        }
        let (core, _) = self.machine.core_mut(thread.core);
        let by = Marker::now(process.entry.pid, tid, core.time_ns());
        let until_ns = self.waits.take(sync, &by);
        if let Some(until_ns) = until_ns {
            let waited_ns = until_ns.saturating_sub(core.time_ns());
            core.wait_until(until_ns);
            for what_if in &mut self.what_if {
                what_if.wait(thread, waited_ns);
            }
        }
    }
}
