//! Rows of allocations, of misses by data, and waits for files by the calls that led to them.

use memgauge_recording::Writer;
use memgauge_recording::stacks::Stacks;
use memgauge_trace::{AllocationRow, DataRow, FileWait, FrameId, Pid, VirtAddr};

use super::sites::Carries;
use super::{ModelledProcess, Process, RecordedProcess, RecordingSink};
use crate::model::data::{DataCosts, SiteGain};

/// Maximum number of call paths with waits for files in a recording.
const MAX_FILE_WAITS: usize = 64;

impl RecordingSink {
    /// Writes what data has gained since the last time.
    pub(super) fn write_data(&mut self, process: &mut Process) {
        let pid = Pid(process.entry.pid);
        let Some(mut data) = process.state.program.data.take() else {
            return;
        };
        let mut rows = DataRows {
            pid,
            time_ns: process.state.now_ns,
            carries: std::mem::take(&mut process.state.sink.data_carries),
            counts_accesses: data.counts_accesses,
            rows: Vec::new(),
        };
        let gains = data.take_sites();
        for gain in gains {
            let SiteGain { site, by, sums, .. } = gain;
            rows.add(Some(site), None, &sums.data);
            // A forked child has most sites from its parent, without counts of its own.
            let has_counts = sums.allocations + sums.frees > 0 || sums.data != DataCosts::default();
            if !has_counts && !gain.state_changed {
                continue;
            }
            let caller = self.frame(pid, &process.state, by.path, by.python);
            let name = self.allocators.get(usize::from(by.function));
            let written = self.writer.push(AllocationRow {
                pid,
                site,
                function: name.cloned().unwrap_or_default(),
                caller,
                allocations: sums.allocations,
                bytes: sums.bytes,
                frees: sums.frees,
                freed_bytes: sums.freed_bytes,
                lifetime_ns: sums.lifetime_ns,
                live_bytes: sums.live_bytes,
                at_peak_bytes: sums.at_peak_bytes,
                temporary: sums.temporary,
                untouched_bytes: Some(sums.untouched_bytes),
                ..AllocationRow::default()
            });
            self.keep_error(written);
        }
        for (address, sums) in data.take_elsewhere(&process.state.program.space) {
            rows.add(None, Some(VirtAddr(address)), &sums);
        }
        process.state.sink.data_carries = rows.carries;
        let written = self.writer.extend(rows.rows);
        self.keep_error(written);
        process.state.program.data = Some(data);
    }

    /// Keeps the waits of a process for files since the last time.
    pub(super) fn keep_file_waits(&mut self, process: &mut Process) {
        let pid = Pid(process.entry.pid);
        for (source, ns) in std::mem::take(&mut process.state.program.file_waits) {
            let caller = self.frame(pid, &process.state, source.path, source.python);
            let key = (pid, source.file_use, caller);
            *self.file_waits.entry(key).or_default() += ns;
        }
    }

    /// The longest waits for files.
    pub(super) fn longest_file_waits(&self) -> Vec<FileWait> {
        let waits = self.file_waits.iter();
        let mut waits: Vec<FileWait> = waits
            .map(|(&(pid, file_use, caller), &ns)| FileWait {
                pid,
                file_use,
                caller,
                wait_s: ns as f64 / 1e9,
            })
            .collect();
        waits.sort_by(|a, b| b.wait_s.total_cmp(&a.wait_s));
        waits.truncate(MAX_FILE_WAITS);
        waits
    }

    /// Writes the history of the heap of a program that has ended.
    pub(super) fn write_heap_history(&mut self, process: &Process) {
        let pid = Pid(process.entry.pid);
        if let Some(data) = &process.state.program.data {
            let written = self.writer.extend(data.history(pid, process.state.now_ns));
            self.keep_error(written);
            let written = self.writer.extend(data.classes(pid));
            self.keep_error(written);
        }
    }

    /// The innermost call of a path: native calls, then the frames of Python that led to them.
    fn frame(
        &mut self,
        pid: Pid,
        state: &ModelledProcess<RecordedProcess>,
        path: u64,
        python: u32,
    ) -> Option<FrameId> {
        let native = state.sink.paths.get(&path).into_iter().flatten();
        let mut calls: Vec<_> = native.map(|at| VirtAddr(at.wrapping_sub(1))).collect();
        let mut new = Vec::new();
        for (code, line) in state.program.python.frames(python) {
            let (ip, row) = self.python_lines.of(code.line_of_function(pid, *line));
            calls.push(ip);
            new.extend(row);
        }
        let written = self.writer.extend(new);
        self.keep_error(written);
        let RecordingSink { stacks, writer, .. } = self;
        let found = caller(stacks, writer, (pid, state.now_ns), &calls);
        found.unwrap_or_else(|e| {
            self.failure.get_or_insert(e);
            None
        })
    }
}

fn caller(
    stacks: &mut Stacks,
    writer: &mut Writer,
    process: (Pid, u64),
    calls: &[VirtAddr],
) -> memgauge_recording::Result<Option<FrameId>> {
    stacks.caller(process, calls, |frame| writer.push(frame))
}

struct DataRows {
    pid: Pid,
    time_ns: u64,
    carries: Carries,
    counts_accesses: bool,
    rows: Vec<DataRow>,
}

impl DataRows {
    fn add(&mut self, site: Option<u32>, addr: Option<VirtAddr>, sums: &DataCosts) {
        if *sums == DataCosts::default() {
            return;
        }
        let (stalls, carries) = (&sums.stalls, &mut self.carries);
        let counted = |accesses| self.counts_accesses.then_some(accesses);
        self.rows.push(DataRow {
            pid: self.pid,
            site,
            addr,
            time_ns: self.time_ns,
            l1d_misses: sums.l1d,
            l2_misses: sums.l2,
            llc_misses: sums.llc,
            dtlb_misses: sums.dtlb,
            dtlb_walks: sums.walks,
            dram_read_bytes: sums.dram_read_bytes,
            dram_write_bytes: sums.dram_write_bytes,
            stall_l2: carries.l2.add(stalls.l2),
            stall_llc: carries.llc.add(stalls.llc),
            stall_dram: carries.dram.add(stalls.dram),
            stall_queue: carries.queue.add(stalls.queue),
            stall_tlb: carries.tlb.add(stalls.tlb),
            stall_stores: carries.stores.add(stalls.stores),
            stall_sharing: carries.sharing.add(stalls.sharing),
            loads: counted(sums.loads),
            stores: counted(sums.stores),
        });
    }
}
