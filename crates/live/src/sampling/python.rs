//! Functions and lines of Python at samples.
//!
//! A BPF program writes the frames of a sample into the sample's ring, ahead of it
//! (`memgauge_interpreters`). [`PythonSampler`] attaches the program and tells it which processes
//! have mapped an interpreter. While the rings are read, it pairs frames with samples. [`PythonRows`] makes calls of them.
//!
//! Events whose PEBS records gather in the processor's buffer have no frames, because the program
//! runs when the buffer is emptied. Tracepoints have none either, because programs on them run
//! at each event and not at each sample.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use memgauge_host::maps;
use memgauge_host::python_lines::{LineAddresses, LineOfFunction, LineTable};
use memgauge_interpreters::{
    Code, FileContent, FrameReader, Interpreter, InterpreterFrame, RingRecord,
};
use memgauge_perf::abi::{Attr, flag, kind, sample, software};
use memgauge_perf::record::{Layout, Mmap, Task};
use memgauge_recording::Writer;
use memgauge_trace::{EventId, Pid, PythonLine, VirtAddr};

use super::open::{OpenEvent, RequestedEvent};
use crate::sys::perf::{self, EventScope, read_memory};

/// Maximum number of nested samples of a thread whose frames wait.
const MAX_NESTED: usize = 16;

/// Reads frames of Python at samples.
pub(super) struct PythonSampler {
    /// `None` if frames cannot be read. `why_not` has the reason.
    reader: Option<FrameReader>,
    why_not: String,
    /// The event through which the program writes, on each CPU.
    outputs: Vec<OwnedFd>,
    output_ids: HashSet<u64>,
    layout: Layout,
    /// Interpreters by the device, inode and modification time of their file.
    files: HashMap<(u64, u64, i64), Option<Rc<Interpreter>>>,
    /// Why interpreters that were mapped are not followed, by their file.
    unsupported: BTreeMap<String, String>,
    /// True if a process has mapped an interpreter.
    is_needed: bool,
    processes: HashMap<u32, PythonProcess>,
    /// By process, and by address and identity of the code object.
    codes: HashMap<u32, HashMap<(u64, u64), Rc<FunctionCode>>>,
    /// Frames of samples that have not been read, by thread.
    waiting: Vec<(u32, Vec<u8>)>,
    /// Number of frames whose code is not known.
    unknown_code: u64,
    /// Number of samples with some of their frames.
    cut: u64,
}

/// A process that has mapped an interpreter.
#[derive(Clone)]
struct PythonProcess {
    python: Rc<Interpreter>,
    bias: u64,
    /// Code that executes frames.
    eval: Rc<[Range<u64>]>,
    /// When it was mapped.
    mapped_ns: u64,
}

/// A function of Python in a process.
struct FunctionCode {
    minor: u32,
    file: String,
    name: String,
    lines: LineTable,
    /// Addresses that stand for its lines.
    addresses: RefCell<HashMap<Option<u32>, VirtAddr>>,
}

impl FunctionCode {
    /// Offset in bytes of the instruction that CPython calls so.
    fn instruction(&self, offset: i32) -> u64 {
        // It is negative in frames that have not begun.
        let offset = u64::try_from(offset).unwrap_or(0);
        // 3.10 counts instructions.
        if self.minor == 10 { 2 * offset } else { offset }
    }
}

/// A call of Python at a sample.
#[derive(Clone)]
pub(super) struct PythonCall {
    code: Rc<FunctionCode>,
    line: Option<u32>,
    /// True if C code called the interpreter to run it.
    is_entry: bool,
}

impl PythonSampler {
    /// A sampler that reads no frames.
    pub(super) fn none() -> PythonSampler {
        PythonSampler {
            reader: None,
            why_not: String::new(),
            outputs: Vec::new(),
            output_ids: HashSet::new(),
            layout: Layout::new(&output_attr()),
            files: HashMap::new(),
            unsupported: BTreeMap::new(),
            is_needed: false,
            processes: HashMap::new(),
            codes: HashMap::new(),
            waiting: Vec::new(),
            unknown_code: 0,
            cut: 0,
        }
    }

    /// Loads the program. Without it there are no frames, and [`note`](Self::note) says why.
    pub(super) fn load() -> PythonSampler {
        let (reader, why_not) = match FrameReader::load() {
            Ok(reader) => (Some(reader), String::new()),
            Err(why) => (None, why),
        };
        PythonSampler {
            reader,
            why_not,
            ..PythonSampler::none()
        }
    }

    /// Lets the program write into the ring of a CPU, which this event owns. `is_monotonic` is
    /// true if the ring's events use that clock.
    pub(super) fn add_ring(&mut self, cpu: u32, owner: &OwnedFd, is_monotonic: bool) {
        let Some(reader) = &self.reader else { return };
        let mut attr = output_attr();
        if is_monotonic {
            attr.flags |= flag::USE_CLOCKID;
            attr.clockid = libc::CLOCK_MONOTONIC;
        }
        let opened = perf::open(&attr, EventScope::AllProcesses, Some(cpu), None);
        let opened = opened.and_then(|event| {
            perf::write_into(&event, owner)?;
            reader.set_ring(cpu, &event)?;
            Ok((perf::id(&event)?, event))
        });
        match opened {
            Ok((id, event)) => {
                self.output_ids.insert(id);
                self.outputs.push(event);
            }
            Err(error) => {
                self.reader = None;
                self.why_not = format!("failed to open an event for BPF output: {error}");
            }
        }
    }

    /// Reads frames at the samples of an event, if that is possible.
    pub(super) fn attach(&mut self, event: &OpenEvent, request: &RequestedEvent) {
        let Some(reader) = &self.reader else { return };
        let sampling = &request.sampling;
        if sampling.uses_large_pebs || sampling.attr.kind == kind::TRACEPOINT {
            return;
        }
        if let Err(error) = perf::run_at_samples(&event.fd, reader.program()) {
            self.why_not = format!(
                "the kernel refused the BPF program at `{}`: {error}",
                request.name
            );
        }
    }

    /// True for the ID of records of the program.
    #[inline]
    pub(super) fn is_output(&self, id: Option<u64>) -> bool {
        id.is_some_and(|id| self.output_ids.contains(&id))
    }

    /// Processes an executable mapping.
    pub(super) fn mapped(&mut self, map: &Mmap<'_>, time_ns: u64) {
        let path = String::from_utf8_lossy(map.path);
        if !map.executable || !may_be_interpreter(&path) {
            return;
        }
        let process = self.processes.get(&map.pid);
        if process.is_some_and(|process| process.mapped_ns > time_ns) {
            return;
        }
        let Some(python) = self.interpreter(map.pid, &path) else {
            return;
        };
        self.is_needed = true;
        if let Some(bias) = python.bias(map.start, map.file_offset) {
            let process = PythonProcess {
                eval: python.eval(bias).collect(),
                python,
                bias,
                mapped_ns: time_ns,
            };
            self.add_process(map.pid, process);
        }
    }

    fn add_process(&mut self, pid: u32, process: PythonProcess) {
        if let Some(reader) = &self.reader
            && let Err(error) = reader.add_process(pid, &process.python, process.bias)
        {
            self.why_not = format!("failed to pass process {pid} to the BPF program: {error}");
        }
        self.processes.insert(pid, process);
    }

    /// Processes a fork.
    pub(super) fn forked(&mut self, task: &Task, time_ns: u64) {
        if task.pid == task.parent_pid {
            return;
        }
        // The child may have executed another interpreter meanwhile.
        let is_known = self.processes.get(&task.pid);
        let is_known = is_known.is_some_and(|process| process.mapped_ns > time_ns);
        if !is_known && let Some(parent) = self.processes.get(&task.parent_pid).cloned() {
            self.add_process(
                task.pid,
                PythonProcess {
                    mapped_ns: time_ns,
                    ..parent
                },
            );
        }
    }

    /// Looks for an interpreter in a running process.
    pub(super) fn add_running(&mut self, pid: u32) {
        for line in maps::of_process(pid) {
            let map = Mmap {
                pid,
                tid: pid,
                start: line.start,
                bytes: line.end.saturating_sub(line.start),
                file_offset: line.file_offset,
                executable: line.executable,
                path: line.path.as_bytes(),
                build_id: &[],
            };
            self.mapped(&map, 0);
        }
    }

    /// The interpreter in a file that a process has mapped.
    fn interpreter(&mut self, pid: u32, path: &str) -> Option<Rc<Interpreter>> {
        let file = file_of_process(pid, path)?;
        let facts = fs::metadata(&file).ok()?;
        let key = (facts.dev(), facts.ino(), facts.mtime());
        if let Some(known) = self.files.get(&key) {
            return known.clone();
        }
        let found = match Interpreter::find(&file) {
            Ok(FileContent::Interpreter(python)) => Some(Rc::new(python)),
            Ok(FileContent::Unsupported(why)) => {
                self.unsupported.insert(path.to_owned(), why);
                None
            }
            Ok(FileContent::Other) => None,
            Err(error) => {
                self.unsupported.insert(path.to_owned(), error.to_string());
                None
            }
        };
        self.files.insert(key, found.clone());
        found
    }

    /// Processes a record of the program. Frames wait for their sample.
    pub(super) fn read(&mut self, body: &[u8]) -> Option<()> {
        let sample = self.layout.sample(body)?;
        if RingRecord::has_frames(sample.raw) {
            if self.waiting.len() == MAX_NESTED {
                self.waiting.remove(0);
            }
            self.waiting.push((sample.tid, body.to_vec()));
        } else if let RingRecord::Code(code) = RingRecord::parse(sample.raw)? {
            self.add_code(sample.pid, &code);
        }
        Some(())
    }

    /// Returns the frames of a thread's sample that has just been read from the same ring.
    ///
    /// A sample can interrupt the BPF program while it works on another sample. The interrupting
    /// sample then comes first, so the last waiting frames belong to it.
    #[inline]
    pub(super) fn take_waiting(&mut self, layout: &Layout, body: &[u8]) -> Option<Vec<u8>> {
        let (tid, _) = self.waiting.last()?;
        let sample = layout.sample(body)?;
        (*tid == sample.tid)
            .then(|| self.waiting.pop())?
            .map(|(_, body)| body)
    }

    /// Forgets frames whose samples may have been lost.
    pub(super) fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    fn add_code(&mut self, pid: u32, code: &Code) {
        let read = |address: u64, bytes: usize| {
            let mut copy = vec![0; bytes];
            let count = read_memory(pid, address, &mut copy).ok()?;
            (count == bytes).then_some(copy)
        };
        let Some(name) = code.name.decode(read) else {
            return;
        };
        let table = code.line_table(read);
        let lines = table.map_or_else(LineTable::default, |table| {
            LineTable::new(code.minor, code.first_line, &table)
        });
        let function = FunctionCode {
            minor: code.minor,
            file: code.file_name.decode(read).unwrap_or_default(),
            name,
            lines,
            addresses: RefCell::default(),
        };
        let codes = self.codes.entry(pid).or_default();
        codes.insert((code.address, code.identity), Rc::new(function));
    }

    /// The calls of a record with frames, innermost first.
    pub(super) fn calls(&mut self, body: &[u8]) -> Option<Vec<PythonCall>> {
        let sample = self.layout.sample(body)?;
        let RingRecord::Frames { frames, is_cut } = RingRecord::parse(sample.raw)? else {
            return None;
        };
        self.cut += u64::from(is_cut);
        let calls = frames
            .iter()
            .filter_map(|frame| self.call(sample.pid, frame));
        let calls: Vec<PythonCall> = calls.collect();
        self.unknown_code += (frames.len() - calls.len()) as u64;
        Some(calls)
    }

    fn call(&self, pid: u32, frame: &InterpreterFrame) -> Option<PythonCall> {
        let codes = self.codes.get(&pid)?;
        let code = codes.get(&(frame.code, frame.identity))?;
        let (_, line) = code.lines.piece(code.instruction(frame.offset));
        Some(PythonCall {
            code: code.clone(),
            line,
            is_entry: frame.is_entry,
        })
    }

    /// Addresses of the function that executes frames in a process.
    pub(super) fn eval(&self, pid: u32) -> Rc<[Range<u64>]> {
        let process = self.processes.get(&pid);
        process.map_or_else(Rc::default, |process| process.eval.clone())
    }

    /// Forgets a process that has ended.
    pub(super) fn ended(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.codes.remove(&pid);
    }

    /// Why there are no lines of an interpreter that a process had mapped.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.is_needed && !self.why_not.is_empty() {
            notes.push(format!("no lines of Python: {}", self.why_not));
        }
        let unsupported = self.unsupported.iter();
        notes.extend(
            unsupported.map(|(path, why)| format!("no lines of Python of `{path}`: {why}")),
        );
        notes
    }

    /// Losses: samples without their frames, samples with some of their frames, and frames whose
    /// code is not known.
    pub(super) fn losses(&self) -> [u64; 3] {
        let lost = self.reader.as_ref().map(FrameReader::lost);
        let lost = lost.unwrap_or_default();
        [lost.frames, self.cut, self.unknown_code]
    }
}

/// Attributes of the events through which the program writes.
fn output_attr() -> Attr {
    let mut attr = Attr::new(kind::SOFTWARE, software::BPF_OUTPUT);
    attr.period = 1;
    attr.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME | sample::RAW;
    attr
}

/// True for names such as `python3.12`, `libpython3.12.so.1.0` and `python`.
fn may_be_interpreter(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.strip_prefix("lib")
        .unwrap_or(name)
        .starts_with("python")
}

/// A path at which this process finds a file that another one has mapped.
fn file_of_process(pid: u32, path: &str) -> Option<PathBuf> {
    // The process may have another root, or may have ended.
    let inside = PathBuf::from(format!("/proc/{pid}/root{path}"));
    let paths = [inside, Path::new(path).to_owned()];
    paths.into_iter().find(|path| path.is_file())
}

/// Calls of Python in the recording.
#[derive(Default)]
pub(super) struct PythonRows {
    addresses: LineAddresses,
    /// Events by address of the line and event since they were last written.
    sums: HashMap<(VirtAddr, EventId), u64>,
    lines: HashMap<VirtAddr, LineOfFunction>,
}

impl PythonRows {
    /// Address of a call's line. Writes the line's name if it is new.
    fn address(
        &mut self,
        pid: Pid,
        call: &PythonCall,
        writer: &mut Writer,
    ) -> memgauge_recording::Result<VirtAddr> {
        if let Some(&known) = call.code.addresses.borrow().get(&call.line) {
            return Ok(known);
        }
        let line = LineOfFunction {
            pid,
            file: call.code.file.clone(),
            function: call.code.name.clone(),
            line: call.line,
        };
        let (address, row) = self.addresses.of(line.clone());
        let mut addresses = call.code.addresses.borrow_mut();
        addresses.insert(call.line, address);
        if let Some(row) = row {
            self.lines.insert(address, line);
            writer.push(row)?;
        }
        Ok(address)
    }

    /// Adds the calls of Python to the native ones, both innermost first. The calls of Python that
    /// one call of the interpreter executes follow the interpreter's function. `ip` is the sampled
    /// instruction, and `count` is the number of events that the sample represents.
    pub(super) fn add(
        &mut self,
        (pid, python): (Pid, &[PythonCall]),
        (ip, calls): (VirtAddr, &mut Vec<VirtAddr>),
        eval: &[Range<u64>],
        (event, count): (EventId, u64),
        writer: &mut Writer,
    ) -> memgauge_recording::Result<()> {
        let mut runs: Vec<Vec<VirtAddr>> = vec![Vec::new()];
        for call in python {
            let address = self.address(pid, call, writer)?;
            if let Some(run) = runs.last_mut() {
                run.push(address);
            }
            if call.is_entry {
                runs.push(Vec::new());
            }
        }
        if let Some(&line) = runs.iter().flatten().next() {
            *self.sums.entry((line, event)).or_default() += count;
        }
        let native = std::mem::take(calls);
        let is_eval = |ip: VirtAddr| eval.iter().any(|range| range.contains(&ip.0));
        let mut runs = runs.into_iter();
        if is_eval(ip) {
            calls.extend(runs.next().into_iter().flatten());
        }
        for call in native {
            calls.push(call);
            if is_eval(call) {
                calls.extend(runs.next().into_iter().flatten());
            }
        }
        // The stack was cut before it reached the calls that run these.
        calls.extend(runs.flatten());
        Ok(())
    }

    /// Writes the events by line since the last time.
    pub(super) fn write(&mut self, writer: &mut Writer) -> memgauge_recording::Result<()> {
        let mut sums: Vec<_> = self.sums.drain().collect();
        sums.sort_unstable();
        let rows = sums.into_iter().filter_map(|((address, event), count)| {
            let line = self.lines.get(&address)?;
            Some(PythonLine {
                pid: line.pid,
                file: line.file.clone(),
                function: line.function.clone(),
                line: line.line,
                event,
                count,
            })
        });
        writer.extend(rows)
    }
}
