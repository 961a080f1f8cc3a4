//! Functions and lines of Python that threads execute, for CPython 3.9 to 3.13.
//!
//! The engine marks each change of a thread's current frame in its words and describes the frame's
//! code in the catalogue (`engine/src/python.c`). Between two marks, the interpreter loads the
//! instructions of that code, and the address of such a load is the place in the function. So the
//! line at a sample is exact, although the recorder reads the words long after the program ran.
//!
//! A frame of Python is written as a call whose address stands for a function and a line
//! ([`LineAddresses`]).
//!
//! Instructions, misses and stalls are summed by line while the words are read, so these sums are
//! exact, too.
//!
//! Rejected: a mark for each line, which would slow the program down, and reading the frames when
//! a sample is due, since the program is ahead of its model then.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use memgauge_host::python_lines::LineAddresses;
use memgauge_machine::AccessOutcome;
use memgauge_trace::{GeneratedCode, Pid, VirtAddr};

use crate::engine::catalogue::Catalogue;
use crate::engine::python_code::PythonCode;
use crate::engine::wire;
use crate::engine::words::{load, mark_field, origin};
use crate::model::calls::{CallPath, ProcessCalls, PythonCall};
use crate::model::data::DataCosts;

/// Maximum number of frames. Deeper recursion keeps the outer part.
const MAX_FRAMES: usize = 1 << 16;
/// Number of words of a mark.
pub(crate) const MARK_WORDS: usize = 3;

/// All known code objects of a process, and what its lines cost.
#[derive(Debug, Default)]
pub(crate) struct PythonProgram {
    codes: HashMap<u64, Rc<PythonCode>>,
    sums: Vec<PythonLineCosts>,
    /// Index in `sums` by number of the code and line.
    places: HashMap<(u64, Option<u32>), u32>,
    /// Frames in which memory was allocated. The number of an entry is its index plus 1.
    allocated_in: Vec<Rc<[FrameLine]>>,
    /// Numbers of these frames by the places of their lines plus 1, innermost first.
    allocated_by_places: HashMap<[u32; ALLOCATION_FRAMES], u32>,
}

/// A function of Python and the line that it executes.
pub(crate) type FrameLine = (Rc<PythonCode>, Option<u32>);

/// Maximum number of frames kept for an allocation, the innermost ones. Without a limit, each depth
/// of a recursion would be another allocation site.
const ALLOCATION_FRAMES: usize = 12;

/// Costs of a line since they were last written.
#[derive(Debug)]
pub(crate) struct PythonLineCosts {
    pub(crate) code: Rc<PythonCode>,
    pub(crate) line: Option<u32>,
    pub(crate) instructions: u64,
    /// Millicycles of the elements of string instructions.
    pub(crate) string_millicycles: u64,
    pub(crate) costs: DataCosts,
}

impl PythonProgram {
    pub(crate) fn add(&mut self, number: u64, code: PythonCode) {
        self.codes.insert(number, Rc::new(code));
    }

    /// Code of a forked child.
    pub(crate) fn inherited(&self) -> PythonProgram {
        PythonProgram {
            codes: self.codes.clone(),
            // Memory that the parent allocated keeps its numbers.
            allocated_in: self.allocated_in.clone(),
            ..PythonProgram::default()
        }
    }

    /// Frames in which memory was allocated, innermost first.
    pub(crate) fn frames(&self, number: u32) -> &[FrameLine] {
        let index = (number as usize).checked_sub(1);
        let frames = index.and_then(|index| self.allocated_in.get(index));
        frames.map_or(&[], |frames| frames)
    }

    /// True if the process executes Python.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        !self.codes.is_empty()
    }

    /// Costs of each line, which start at zero again.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = PythonLineCosts> {
        self.sums.iter_mut().map(|sums| PythonLineCosts {
            code: sums.code.clone(),
            line: sums.line,
            instructions: std::mem::take(&mut sums.instructions),
            string_millicycles: std::mem::take(&mut sums.string_millicycles),
            costs: std::mem::take(&mut sums.costs),
        })
    }

    fn place(&mut self, number: u64, code: &Rc<PythonCode>, line: Option<u32>) -> u32 {
        let sums = &mut self.sums;
        *self.places.entry((number, line)).or_insert_with(|| {
            sums.push(PythonLineCosts {
                code: code.clone(),
                line,
                instructions: 0,
                string_millicycles: 0,
                costs: DataCosts::default(),
            });
            sums.len() as u32 - 1
        })
    }
}

/// A change of a thread's current frame.
struct FrameMark {
    code: u64,
    frame: u64,
    previous: u64,
}

impl FrameMark {
    fn at(words: &[AtomicU64], at: usize) -> Option<FrameMark> {
        let field = |n: usize| mark_field(words, at + n);
        Some(FrameMark {
            code: load(words, at)? & wire::ADDRESS,
            frame: field(1)?,
            previous: field(2)?,
        })
    }
}

/// A frame that has not returned.
#[derive(Clone, Debug)]
struct PythonFrame {
    address: u64,
    number: u64,
    code: Rc<PythonCode>,
    /// Instructions of the line that it executes, by their offsets.
    piece: Range<u64>,
    /// Index of the line in [`PythonProgram::sums`].
    place: u32,
    /// Line index when its address was last requested, and that address.
    named: Option<(u32, VirtAddr)>,
    /// Slot of the native call in which the interpreter executes the frame, if calls are followed.
    slot: u64,
}

impl PythonFrame {
    fn line(&self) -> Option<u32> {
        self.code.lines.piece(self.piece.start).1
    }
}

/// Frames of Python of one thread, outermost first.
#[derive(Debug, Default)]
pub(crate) struct PythonPath {
    frames: Vec<PythonFrame>,
    at: usize,
    /// Executed machine instructions that are not yet charged to the current line.
    instructions: u64,
}

/// Parts of a process that following a thread's words needs.
pub(crate) struct FollowedProcess<'a> {
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) calls: &'a mut ProcessCalls,
    pub(crate) python: &'a mut PythonProgram,
    /// True outside of the recorded regions of interest. Lines then get no counts.
    pub(crate) is_outside: bool,
}

impl PythonPath {
    /// The next words are those from `at` on.
    pub(crate) fn resume(&mut self, at: usize) {
        self.at = at;
    }

    /// Processes the words before `end`, and follows native calls in `path` to the same words.
    pub(crate) fn follow(
        &mut self,
        process: &mut FollowedProcess<'_>,
        path: &mut Option<&mut CallPath>,
        words: &[AtomicU64],
        end: usize,
    ) {
        if !process.python.is_used() {
            self.at = end;
            return;
        }
        let (mut start, mut bytes) = self.loaded();
        // In a register, since the host takes longer to add to memory than to read a word.
        let mut instructions = 0;
        while self.at < end {
            let at = self.at;
            let word = load(words, at).unwrap_or(0);
            self.at += 1;
            if wire::id(word) < wire::MARKS {
                instructions += u64::from(process.catalogue.entries.tally(word).insns());
                if (word & wire::ADDRESS).wrapping_sub(start) < bytes {
                    self.instructions += std::mem::take(&mut instructions);
                    self.load_instruction(process, words, at);
                }
            } else if wire::mark(word) == wire::MARK_BLOCK {
                let block = process.catalogue.block(word as u32);
                instructions += block.map_or(0, |block| u64::from(block.tally.insns()));
            } else if wire::mark(word) == wire::MARK_PYTHON {
                let slot = path.as_mut().map_or(0, |path| {
                    path.follow(process.catalogue, process.calls, words, at);
                    path.innermost_slot()
                });
                self.instructions += std::mem::take(&mut instructions);
                if let Some(mark) = FrameMark::at(words, at) {
                    self.charge_instructions(process);
                    self.change(process.python, &mark, slot);
                    self.at = at + MARK_WORDS;
                }
                (start, bytes) = self.loaded();
            }
        }
        self.instructions += instructions;
        self.charge_instructions(process);
    }

    /// Charges the cost of an access by the current line.
    pub(crate) fn charge(&self, program: &mut PythonProgram, outcome: &AccessOutcome) {
        if let Some(sums) = self.line_sums(program) {
            sums.costs.add(outcome);
        }
    }

    /// Charges the time of the elements of a string instruction to the current line.
    pub(crate) fn charge_string(&self, program: &mut PythonProgram, millicycles: u64) {
        if let Some(sums) = self.line_sums(program) {
            sums.string_millicycles += millicycles;
        }
    }

    fn line_sums<'a>(&self, program: &'a mut PythonProgram) -> Option<&'a mut PythonLineCosts> {
        let frame = self.frames.last()?;
        program.sums.get_mut(frame.place as usize)
    }

    /// Number of the current frames, of which the innermost [`ALLOCATION_FRAMES`] count.
    pub(crate) fn frames_number(&self, program: &mut PythonProgram) -> u32 {
        if self.frames.is_empty() {
            return 0;
        }
        let innermost = || self.frames.iter().rev().take(ALLOCATION_FRAMES);
        let mut places = [0; ALLOCATION_FRAMES];
        for (place, frame) in places.iter_mut().zip(innermost()) {
            *place = frame.place + 1;
        }
        let allocated_in = &mut program.allocated_in;
        *program
            .allocated_by_places
            .entry(places)
            .or_insert_with(|| {
                let lines = innermost().map(|frame| (frame.code.clone(), frame.line()));
                allocated_in.push(lines.collect());
                allocated_in.len() as u32
            })
    }

    fn charge_instructions(&mut self, process: &mut FollowedProcess<'_>) {
        let instructions = std::mem::take(&mut self.instructions);
        let place = self.frames.last().map(|frame| frame.place as usize);
        if let Some(sums) = place.and_then(|place| process.python.sums.get_mut(place))
            && !process.is_outside
        {
            sums.instructions += instructions;
        }
    }

    /// Address and size of the current frame's instructions.
    fn loaded(&self) -> (u64, u64) {
        let code = self.frames.last().map(|frame| &frame.code);
        code.map_or((0, 0), |code| (code.instructions, code.bytes))
    }

    /// The interpreter loads an instruction of the current frame. A run's last load is that of the
    /// next instruction; earlier ones read what the current instruction has cached.
    fn load_instruction(
        &mut self,
        process: &mut FollowedProcess<'_>,
        words: &[AtomicU64],
        at: usize,
    ) {
        let Some(frame) = self.frames.last() else {
            return;
        };
        let catalogue = process.catalogue;
        let first = load(words, at).unwrap_or(0) & wire::ADDRESS;
        let run = origin(words, at).and_then(|(block, run)| catalogue.run(block, run?));
        let last = run.and_then(|run| run.accesses().last());
        let delta = last.map_or(0, |index| catalogue.access(index).delta);
        let address = first.wrapping_add(delta as u64);
        let offset = address.wrapping_sub(frame.code.instructions);
        if offset >= frame.code.bytes || frame.piece.contains(&offset) {
            return;
        }
        self.charge_instructions(process);
        if let Some(frame) = self.frames.last_mut() {
            let (piece, line) = frame.code.lines.piece(offset);
            frame.piece = piece;
            frame.place = process.python.place(frame.number, &frame.code, line);
        }
    }

    fn change(&mut self, program: &mut PythonProgram, mark: &FrameMark, slot: u64) {
        let position = |address| self.frames.iter().rposition(|f| f.address == address);
        let known = position(mark.frame).filter(|&at| self.frames[at].number == mark.code);
        if let Some(at) = known {
            self.frames.truncate(at + 1);
            return;
        }
        // Frames without a known caller are in another stack, as those of a greenlet.
        let caller = position(mark.previous).map_or(0, |at| at + 1);
        self.frames.truncate(caller);
        let code = program.codes.get(&mark.code).cloned();
        if let Some(code) = code.filter(|_| self.frames.len() < MAX_FRAMES) {
            let (piece, line) = code.lines.piece(0);
            self.frames.push(PythonFrame {
                place: program.place(mark.code, &code, line),
                piece,
                address: mark.frame,
                number: mark.code,
                code,
                named: None,
                slot,
            });
        }
    }

    /// The current calls, outermost first. Rows of new lines are passed to `write`.
    pub(crate) fn calls(
        &mut self,
        pid: Pid,
        addresses: &mut LineAddresses,
        mut write: impl FnMut(GeneratedCode),
    ) -> Vec<PythonCall> {
        let calls = self.frames.iter_mut().map(|frame| {
            let named = frame.named.filter(|&(place, _)| place == frame.place);
            let ip = named.map_or_else(
                || {
                    let line = frame.line();
                    let (ip, row) = addresses.of(frame.code.line_of_function(pid, line));
                    row.into_iter().for_each(&mut write);
                    ip
                },
                |(_, ip)| ip,
            );
            frame.named = Some((frame.place, ip));
            PythonCall {
                ip,
                slot: frame.slot,
            }
        });
        calls.collect()
    }
}

#[cfg(test)]
mod tests;
