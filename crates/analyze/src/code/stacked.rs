//! Single samples with named call stacks, for formats that store samples instead of sums.
//!
//! Samples with the same calls share a stack, and stacks with the same code share frames.
//!
//! Memory: 40 bytes for each sample and 12 bytes for each stack. The names of a frame are stored
//! once.

use std::collections::{HashMap, HashSet};

use memgauge_recording::{Recording, Result, Selection};
use memgauge_trace::{EventId, Frame, FrameId, Pid, Sample, Tid};

use crate::code::address_spaces::address_spaces;
use crate::code::address_spaces::{AddressSpaces, CodeLocation, KERNEL};
use crate::code::hotspots::{Name, place_names};
use crate::resolve::Resolve;
use crate::{Analysis, Frames};

/// Columns of the table of samples to read.
const COLUMNS: &[&str] = &["time_ns", "pid", "tid", "event", "ip", "period", "caller"];

/// A code location in a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackFrame {
    /// Function, or the module if it has no symbols.
    pub function: String,
    /// Path of the file that contains the code.
    pub module: String,
    /// Source file.
    pub file: Option<String>,
    /// Line in the source file.
    pub line: Option<u32>,
    /// Byte offset in the module. `None` if the whole module counts as one location.
    pub offset: Option<u64>,
    /// Depth of inlining at this location. 0 for a function that was called.
    pub inline_depth: u32,
}

impl StackFrame {
    /// True for kernel code.
    pub fn is_kernel(&self) -> bool {
        self.module == KERNEL
    }
}

/// A sample with a named call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackedSample {
    /// Nanoseconds since the recording began.
    pub time_ns: u64,
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// The event whose counter overflowed.
    pub event: EventId,
    /// Number of events that the sample represents.
    pub period: u64,
    /// Number of its stack.
    pub stack: u32,
}

/// Samples with their stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackedSamples {
    /// The frames of all stacks.
    pub frames: Vec<StackFrame>,
    /// For each stack: the stack of its caller, which has a smaller number, and the frame.
    pub stacks: Vec<(Option<u32>, u32)>,
    /// By process, thread, event and time.
    pub samples: Vec<StackedSample>,
}

/// Reads all samples, or those of one event, and names their calls. Also returns messages about
/// parts that could not be read.
///
/// # Errors
/// The file system failed.
pub fn stacked_samples(
    recording: &Recording,
    symbols: &mut dyn Resolve,
    event: Option<EventId>,
) -> Result<(StackedSamples, Vec<String>)> {
    let mut problems = Vec::new();
    let all = Selection::all();
    let spaces = address_spaces(recording, &mut problems)?;
    let is_modelled = recording.manifest().machine.is_some();
    let mut calls = Frames::new(&spaces).traced(is_modelled);
    recording.for_each_intact_batch(&all, &mut problems, |rows: &[Frame]| calls.observe(rows))?;
    let mut executed = HashSet::new();
    if calls.needs_executed_mappings() {
        let selection = Selection::all().columns(&["pid", "ip"]);
        recording.for_each_intact_batch(&selection, &mut problems, |rows: &[Sample]| {
            let mapping = |s: &Sample| Some((s.pid, spaces.uncertain_mapping(s.pid, s.ip.0)?));
            executed.extend(rows.iter().filter_map(mapping));
        })?;
    }
    let mut stacking = Stacking {
        executed,
        spaces: &spaces,
        symbols,
        calls,
        stacked: StackedSamples::default(),
        frames: HashMap::new(),
        places: HashMap::new(),
        stacks: HashMap::new(),
        known: HashMap::new(),
    };
    let selection = Selection::all().columns(COLUMNS);
    recording.for_each_intact_batch(&selection, &mut problems, |rows: &[Sample]| {
        let wanted = |sample: &&Sample| event.is_none_or(|event| sample.event == event);
        rows.iter().filter(wanted).for_each(|s| stacking.add(s));
    })?;
    let mut stacked = stacking.stacked;
    let order = |s: &StackedSample| (s.pid, s.tid, s.event, s.time_ns);
    stacked.samples.sort_by_key(order);
    Ok((stacked, problems))
}

struct Stacking<'a> {
    spaces: &'a AddressSpaces,
    symbols: &'a mut dyn Resolve,
    calls: Frames<'a>,
    /// Mappings in which samples ran although nothing else identifies them as code.
    executed: HashSet<(Pid, u64)>,
    stacked: StackedSamples,
    frames: HashMap<StackFrame, u32>,
    /// Frames at a location, outermost of the inlined ones first.
    places: HashMap<CodeLocation, Vec<u32>>,
    stacks: HashMap<(Option<u32>, u32), u32>,
    /// Stacks by innermost call.
    known: HashMap<FrameId, Option<u32>>,
}

impl Stacking<'_> {
    fn add(&mut self, sample: &Sample) {
        let caller = self.add_call(sample.caller);
        let place = self.spaces.code_of(sample);
        // SANITY: every location has a frame, so there is a stack.
        let stack = self.add_functions(caller, place).unwrap_or_default();
        self.stacked.samples.push(StackedSample {
            time_ns: sample.time_ns,
            pid: sample.pid,
            tid: sample.tid,
            event: sample.event,
            period: sample.period,
            stack,
        });
    }

    /// The stack of a call and its callers.
    fn add_call(&mut self, call: Option<FrameId>) -> Option<u32> {
        let mut path = Vec::new();
        let mut at = call;
        let mut stack = None;
        while let Some(frame) = at {
            if let Some(&there) = self.known.get(&frame) {
                stack = there;
                break;
            }
            let Some((caller, place)) = self.calls.call(frame, &self.executed) else {
                break;
            };
            path.push((frame, place));
            at = caller;
        }
        for (frame, place) in path.into_iter().rev() {
            stack = self.add_functions(stack, place);
            self.known.insert(frame, stack);
        }
        stack
    }

    /// The stack of the code at a location, called from `caller`.
    fn add_functions(&mut self, caller: Option<u32>, place: CodeLocation) -> Option<u32> {
        if !self.places.contains_key(&place) {
            let [_, line, instruction] = place_names(self.symbols, self.spaces, place);
            let frames = frames(line, instruction.offset);
            let numbers = frames.into_iter().map(|frame| self.frame(frame)).collect();
            self.places.insert(place, numbers);
        }
        let mut stack = caller;
        for &frame in &self.places[&place] {
            let next = self.stacked.stacks.len() as u32;
            let number = *self.stacks.entry((stack, frame)).or_insert(next);
            if number == next {
                self.stacked.stacks.push((stack, frame));
            }
            stack = Some(number);
        }
        stack
    }

    fn frame(&mut self, frame: StackFrame) -> u32 {
        let next = self.stacked.frames.len() as u32;
        let number = *self.frames.entry(frame.clone()).or_insert(next);
        if number == next {
            self.stacked.frames.push(frame);
        }
        number
    }
}

/// Frames of the functions at a location, outermost of the inlined ones first.
fn frames(name: Name, offset: Option<u64>) -> Vec<StackFrame> {
    let depth = name.inlined_into.len() as u32;
    let outer = name.inlined_into.into_iter().rev();
    let outer = outer.map(|caller| (caller.function, caller.file, caller.line));
    let all = outer.chain([(name.function, name.file, name.line)]);
    let frame = |((function, file, line), inline_depth)| StackFrame {
        function,
        module: name.module.clone(),
        file,
        line,
        offset,
        inline_depth,
    };
    all.zip(0..=depth).map(frame).collect()
}
