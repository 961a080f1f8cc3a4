//! Marks among a thread's words: starts of threads, mappings, sleeps, and regions of interest.

use memgauge_machine::Core;
use memgauge_trace::{CodeValue, Pid, Tid};

use super::{MAX_STARTS, RecordingSink, Running, reading};
use crate::engine::sync::{MarkKind, SyncMark};
use crate::readers::roi::{self, RegionMark, RegionMarkKind};

impl RecordingSink {
    /// Handles a begin or an end of a region, or a value. Returns true for an end without a begin.
    pub(super) fn take_region_mark(
        &mut self,
        core: &Core,
        running: &mut Running<'_>,
        mark: &RegionMark,
    ) -> bool {
        let (process, thread) = (&running.process, &mut running.thread);
        match mark.kind {
            RegionMarkKind::Begin => {
                let name = process.state.regions.get(&mark.name);
                let wanted = name.is_some_and(|name| self.wanted.holds(name));
                thread.sink.regions.begin(mark.name, wanted, reading(core));
            }
            RegionMarkKind::End => return !thread.sink.regions.end(mark.name, &reading(core)),
            RegionMarkKind::Value(value) => {
                let written = self.writer.push(CodeValue {
                    time_ns: core.time_ns(),
                    pid: Pid(process.entry.pid),
                    tid: Tid(running.tid),
                    name: roi::name_of(&process.state.regions, mark.name),
                    value,
                });
                self.keep_error(written);
            }
            RegionMarkKind::Nothing => {}
        }
        false
    }

    /// Handles a mark of a thread before it waits.
    pub(super) fn take_sync_mark(
        &mut self,
        now_ns: u64,
        running: &mut Running<'_>,
        sync: &SyncMark,
    ) {
        match sync.kind {
            MarkKind::Mapped(bytes) => self.reach_mapped(running.process, bytes, now_ns),
            MarkKind::Start if self.with_stacks => {
                let calls = running.process.state.program.calls.now(running.tid);
                self.started_in.insert(sync.number, calls);
                if self.started_in.len() > MAX_STARTS {
                    self.started_in.pop_first();
                }
            }
            MarkKind::Sleep(_, true) => self.cut_sleeps += 1,
            _ => {}
        }
    }
}
