//! Rows of pending samples, ticks of series and times of overflows.

use std::sync::atomic::AtomicU64;

use memgauge_machine::{AccessOutcome, Core};
use memgauge_recording::Writer;
use memgauge_recording::overflows::OverflowTrace;
use memgauge_recording::stacks::Stacks;
use memgauge_trace::{Cpu, Frame, FrameId, Pid, Sample, SeriesRow, Tid, VirtAddr};

use crate::model::calls::{CallPath, PythonCall};
use crate::model::python::{FollowedProcess, PythonPath};
use crate::model::replay::{OverflowSink, ReplayedProgram};
use crate::model::sets::weight_of;
use crate::readers::roi::RegionGate;
use memgauge_host::python_lines::LineAddresses;

/// Converts what a core has pending into rows.
pub(super) struct RowConverter<'a> {
    pub(super) pid: Pid,
    pub(super) tid: Tid,
    pub(super) cpu: Cpu,
    pub(super) writer: &'a mut Writer,
    pub(super) failure: &'a mut Option<memgauge_recording::Error>,
    pub(super) trace: Option<&'a mut OverflowTrace>,
    /// Number of lines that each simulated line stands for.
    pub(super) one_in: u32,
    pub(super) gate: Option<&'a mut RegionGate>,
    /// Calls of the thread and stacks of the recording, if stacks are recorded.
    pub(super) path: Option<&'a mut CallPath>,
    pub(super) stacks: &'a mut Stacks,
    /// Frames of Python of the thread.
    pub(super) python: &'a mut PythonPath,
    pub(super) python_lines: &'a mut LineAddresses,
}

impl RowConverter<'_> {
    /// Keeps the first write error of the recording.
    fn keep_error(&mut self, result: memgauge_recording::Result<()>) {
        if let Err(e) = result {
            self.failure.get_or_insert(e);
        }
    }

    /// Returns the innermost call of a sample.
    fn caller(&mut self, sample: Option<&Sample>) -> Option<FrameId> {
        let process = (self.pid, sample?.time_ns);
        let python = self.python_calls();
        let write = |frame: Frame| self.writer.push(frame);
        let caller = match &mut self.path {
            Some(path) if python.is_empty() => path.caller(self.stacks, process, write),
            Some(path) => path.caller_with_python(&python, self.stacks, process, write),
            None => {
                let calls: Vec<VirtAddr> = python.iter().rev().map(|call| call.ip).collect();
                self.stacks.caller(process, &calls, write)
            }
        };
        match caller {
            Ok(caller) => caller,
            Err(e) => {
                self.failure.get_or_insert(e);
                None
            }
        }
    }

    /// Returns the calls of Python, outermost first.
    fn python_calls(&mut self) -> Vec<PythonCall> {
        let mut rows = Vec::new();
        let write = |row| rows.push(row);
        let calls = self.python.calls(self.pid, self.python_lines, write);
        let written = self.writer.extend(rows);
        self.keep_error(written);
        calls
    }
}

impl OverflowSink for RowConverter<'_> {
    fn take(&mut self, core: &mut Core, ip: VirtAddr) {
        let (pid, tid, cpu) = (self.pid, self.tid, Some(self.cpu));
        let mut samples: Vec<Sample> = Vec::new();
        let (trace, one_in) = (&mut self.trace, self.one_in);
        let gate = &mut self.gate;
        let is_inside = gate.as_ref().is_none_or(|gate| gate.is_inside());
        core.take_overflows(|o| {
            if !is_inside {
                return;
            }
            let period = trace
                .as_mut()
                .map_or(Some(o.period), |t| t.push(o.event, o.period, o.time_ns));
            let Some(period) = period else { return };
            samples.push(Sample {
                time_ns: o.time_ns,
                cpu,
                pid,
                tid,
                event: o.event,
                ip,
                addr: o.addr.map(VirtAddr),
                phys: None,
                kind: o.kind,
                size_bytes: o.size_bytes,
                latency_cycles: o.latency_cycles,
                source: o.source,
                period: period * weight_of(o.event, one_in),
                ..Sample::default()
            });
        });
        let mut rows: Vec<SeriesRow> = Vec::new();
        core.take_ticks(|tick| {
            let deltas = match gate {
                Some(gate) => gate.tick(&tick.deltas),
                None => tick.deltas.of_all_sets(one_in),
            };
            let gained = deltas.iter().filter(|&(_, value)| value > 0);
            rows.extend(gained.map(|(event, value)| SeriesRow {
                time_ns: tick.time_ns,
                cpu,
                pid,
                tid,
                event,
                value,
                interval_ns: tick.interval_ns,
            }));
        });
        let caller = self.caller(samples.first());
        for sample in &mut samples {
            sample.caller = caller;
        }
        let written = self.writer.extend(samples);
        self.keep_error(written);
        let written = self.writer.extend(rows);
        self.keep_error(written);
        self.write_blocks(false);
    }

    fn follow(&mut self, program: &mut ReplayedProgram, words: &[AtomicU64], end: usize) {
        let mut process = FollowedProcess {
            catalogue: &program.catalogue,
            calls: &mut program.calls,
            python: &mut program.python,
            is_outside: program.is_outside,
        };
        let mut path = self.path.as_deref_mut();
        self.python.follow(&mut process, &mut path, words, end);
        if let Some(path) = &mut self.path {
            path.follow(&program.catalogue, &mut program.calls, words, end);
        }
    }

    fn charge_python(&mut self, program: &mut ReplayedProgram, outcome: &AccessOutcome) {
        self.python.charge(&mut program.python, outcome);
    }

    fn charge_python_string(&mut self, program: &mut ReplayedProgram, millicycles: u64) {
        self.python.charge_string(&mut program.python, millicycles);
    }

    fn python_frames(&mut self, program: &mut ReplayedProgram) -> u32 {
        self.python.frames_number(&mut program.python)
    }
}

impl RowConverter<'_> {
    /// Writes full blocks of overflows, or all with `all`.
    pub(super) fn write_blocks(&mut self, all: bool) {
        if let Some(trace) = self.trace.as_mut() {
            let written = trace.write(self.pid, self.tid, all, self.writer);
            self.keep_error(written);
        }
    }
}
