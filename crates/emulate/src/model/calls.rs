//! The open calls of a thread, from the code blocks that it executes.
//!
//! A call stores its return address in a **slot** of the stack, and a return loads it from there.
//! Slots of nested calls have falling addresses. An open call with a slot at or below that of a new
//! call or return has been left, by its own return or by a jump (longjmp, an exception), so jumps
//! need no handling. A jump out of a function (a tail call) changes nothing, since its target
//! returns in its place.
//!
//! A thread that switches to another stack (coroutines, goroutines) leaves its calls open. They are
//! **parked** until a thread of the process returns to them. Threads are read in slices, so the
//! thread that left a stack may not have been read that far. In this case, its current calls are
//! used.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use memgauge_recording::stacks::Stacks;
use memgauge_trace::{Frame, FrameId, Pid, Tid, VirtAddr};

use crate::engine::catalogue::{Block, Catalogue, Ends};
use crate::engine::wire;
use crate::engine::words::load;

/// Maximum number of calls. Deeper recursion keeps the outer part.
const MAX_CALL_DEPTH: usize = 1 << 16;
/// Maximum number of stacks without a thread.
const MAX_PARKED_STACKS: usize = 1 << 14;
/// Maximum number of nested signal handlers.
const MAX_NESTED_HANDLERS: usize = 8;
/// A slot this far below the calls of a stack is in another stack.
const STACK_SWITCH_DISTANCE: u64 = 8 << 20;
/// A thread that returns to a stack continues at the last slot, or at most this far below it for
/// arguments.
const ARGUMENT_BYTES: u64 = 256;
/// The same distance for a return to a stack that another thread has not left yet, as far as it has
/// been read. That thread calls its scheduler first, which uses more of the stack.
const SCHEDULER_BYTES: u64 = 1024;

/// A call of Python in a sample's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PythonCall {
    pub(crate) ip: VirtAddr,
    /// Slot of the native call within which it runs.
    pub(crate) slot: u64,
}

/// Open calls of one thread.
#[derive(Debug, Default)]
pub(crate) struct CallPath {
    /// Calls in the current stack, outermost first.
    open: Vec<OpenCall>,
    /// Calls interrupted by signal handlers that have stacks of their own.
    interrupted: Vec<Vec<OpenCall>>,
    /// Slot of the last call or return.
    last_slot: u64,
    /// True if the stack pointer was set since then and may be in another stack.
    switched: bool,
    /// The call or return at the end of the last block.
    block_end: Option<BlockEnd>,
    /// True if the next word is the address of a piece.
    piece: bool,
    /// Words before it were processed.
    at: usize,
}

#[derive(Clone, Debug)]
struct OpenCall {
    returns_to: u64,
    slot: u64,
    /// Its frame in the recording, if requested.
    frame: Option<FrameId>,
}

/// The end of the block that is being executed.
#[derive(Clone, Copy, Debug)]
struct BlockEnd {
    calls: bool,
    returns_to: u64,
    /// Number of runs until that of the slot.
    runs_to_come: u32,
    /// Offset of the slot from the address of that run.
    delta: i64,
    /// Known after the access. Unknown after a fault.
    slot: Option<u64>,
}

impl BlockEnd {
    /// The end of this block, if its first run came with the block or it has none.
    fn of(catalogue: &Catalogue, block: &Block, first: Option<u64>) -> Option<BlockEnd> {
        let calls = match block.ends {
            Ends::Otherwise => return None,
            Ends::Call => true,
            Ends::Return => false,
        };
        // The return address is the last store of a call and the last load of a return.
        let access = catalogue.access(block.accesses.clone().last()?);
        if access.run == wire::RUN_VARYING {
            return None;
        }
        let mut end = BlockEnd {
            calls,
            returns_to: block.end(),
            runs_to_come: u32::from(access.run) + 1,
            delta: access.delta,
            slot: None,
        };
        if let Some(address) = first {
            end.come(address);
        }
        Some(end)
    }

    /// Processes a run of the block.
    fn come(&mut self, address: u64) {
        if self.runs_to_come > 0 {
            self.runs_to_come -= 1;
            if self.runs_to_come == 0 {
                self.slot = Some(address.wrapping_add(self.delta as u64));
            }
        }
    }
}

/// Open calls in the stacks of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessCalls {
    /// Stacks without a thread, by their lowest slot.
    parked: BTreeMap<u64, Vec<OpenCall>>,
    /// Calls of threads while another one is read.
    running: BTreeMap<Tid, Vec<OpenCall>>,
    /// Calls of a forked child whose first thread has not started.
    is_unborn: bool,
}

/// Open calls of a thread at one time.
#[derive(Debug, Default)]
pub(crate) struct CallsThen(Vec<OpenCall>);

impl ProcessCalls {
    /// The current calls of a thread.
    pub(crate) fn now(&self, tid: u32) -> CallsThen {
        let calls = self.running.get(&Tid(tid));
        CallsThen(calls.map(|calls| frameless(calls)).unwrap_or_default())
    }

    /// A thread starts. The thread of a forked child continues in the calls from which it was
    /// forked, although the parent may have been read beyond them.
    pub(crate) fn begin(&mut self, tid: u32, forked_in: Option<CallsThen>) {
        if let (true, Some(calls)) = (std::mem::take(&mut self.is_unborn), forked_in) {
            self.running = BTreeMap::from([(Tid(tid), calls.0)]);
        }
    }

    /// Calls of a forked child, with frames of its own.
    pub(crate) fn inherited(&self) -> ProcessCalls {
        let own = |calls: &Vec<OpenCall>| frameless(calls);
        ProcessCalls {
            is_unborn: true,
            parked: self
                .parked
                .iter()
                .map(|(&at, calls)| (at, own(calls)))
                .collect(),
            running: self
                .running
                .iter()
                .map(|(&tid, calls)| (tid, own(calls)))
                .collect(),
        }
    }

    /// Calls of the stack that contains the slot of a call or return.
    fn take(&mut self, slot: u64, is_call: bool) -> Option<Vec<OpenCall>> {
        let around = self.parked.range(..=slot).next_back();
        let around = around.filter(|(_, calls)| reaches(calls, slot, 0));
        let above = || self.parked.range(slot..).next();
        let above = || above().filter(|(_, calls)| reaches(calls, slot, ARGUMENT_BYTES));
        if let Some((&lowest, _)) = around.or_else(above) {
            return self.parked.remove(&lowest);
        }
        let below = if is_call {
            ARGUMENT_BYTES
        } else {
            SCHEDULER_BYTES
        };
        let mut running = self.running.values();
        running.find(|calls| reaches(calls, slot, below)).cloned()
    }

    /// A thread has ended.
    pub(crate) fn end(&mut self, tid: u32) {
        self.running.remove(&Tid(tid));
    }

    fn park(&mut self, calls: Vec<OpenCall>) {
        let (Some(highest), Some(lowest)) = (calls.first(), calls.last()) else {
            return;
        };
        // Calls at these addresses are over, since stacks do not overlap.
        while let Some((&old, calls)) = self.parked.range(..=highest.slot).next_back()
            && calls.first().is_some_and(|call| call.slot >= lowest.slot)
        {
            self.parked.remove(&old);
        }
        if self.parked.len() == MAX_PARKED_STACKS {
            self.parked.pop_first();
        }
        self.parked.insert(lowest.slot, calls);
    }
}

fn frameless(calls: &[OpenCall]) -> Vec<OpenCall> {
    let calls = calls.iter().map(|call| OpenCall {
        frame: None,
        ..call.clone()
    });
    calls.collect()
}

/// True if a slot is in the stack of these calls, or this far below.
fn reaches(calls: &[OpenCall], slot: u64, below: u64) -> bool {
    let (Some(highest), Some(lowest)) = (calls.first(), calls.last()) else {
        return false;
    };
    (lowest.slot.saturating_sub(below)..=highest.slot).contains(&slot)
}

impl CallPath {
    /// Continues with the thread's words from `at` on.
    pub(crate) fn resume(&mut self, tid: u32, all: &mut ProcessCalls, at: usize) {
        self.open = all.running.remove(&Tid(tid)).unwrap_or_default();
        self.at = at;
    }

    /// Puts the thread's calls where other threads of the process find them, until it resumes.
    pub(crate) fn suspend(&mut self, tid: u32, all: &mut ProcessCalls) {
        all.running.insert(Tid(tid), std::mem::take(&mut self.open));
    }

    /// Processes the words before `end`. `all` are the calls of the process.
    pub(crate) fn follow(
        &mut self,
        catalogue: &Catalogue,
        all: &mut ProcessCalls,
        words: &[AtomicU64],
        end: usize,
    ) {
        while self.at < end {
            let word = load(words, self.at).unwrap_or(0);
            self.at += 1;
            if std::mem::take(&mut self.piece) {
                continue;
            }
            let (id, address) = (wire::id(word), word & wire::ADDRESS);
            if id == wire::FURTHER_LOADS || id == wire::FURTHER_STORES {
                if let Some(end) = &mut self.block_end {
                    end.come(address);
                }
            } else if (wire::FIRST_BLOCK..wire::MARKS).contains(&id) {
                let first = Some(address).filter(|&address| address != wire::NO_ACCESS);
                self.begin(catalogue, all, (id as u32, first));
            } else if wire::mark(word) == wire::MARK_BLOCK {
                self.begin(catalogue, all, (word as u32, None));
            } else {
                self.piece = wire::mark(word) == wire::MARK_PIECE;
            }
        }
    }

    /// A block executes, possibly with the address of its first run.
    fn begin(
        &mut self,
        catalogue: &Catalogue,
        all: &mut ProcessCalls,
        (number, first): (u32, Option<u64>),
    ) {
        let block = catalogue.block(number);
        let vaddr = block.map(|block| block.vaddr);
        if let Some((end, slot)) = self.block_end.take().and_then(|e| Some((e, e.slot?))) {
            self.arrive(all, slot, end.calls);
            self.leave_up_to(slot);
            // A call of the next instruction only reads the instruction pointer. It never returns.
            if end.calls && vaddr != Some(end.returns_to) {
                self.open(end.returns_to, slot);
            }
        }
        if let Some(block) = block {
            self.switched |= block.switches_stack;
            self.block_end = BlockEnd::of(catalogue, block, first);
        }
    }

    /// Switches to the stack that contains the slot of a call or return.
    fn arrive(&mut self, all: &mut ProcessCalls, slot: u64, is_call: bool) {
        let switched = std::mem::take(&mut self.switched);
        if !self.is_here(slot, switched) {
            self.change_stack(all, (slot, is_call), switched);
        }
        self.last_slot = slot;
    }

    fn change_stack(&mut self, all: &mut ProcessCalls, to: (u64, bool), switched: bool) {
        let below = if switched {
            ARGUMENT_BYTES
        } else {
            STACK_SWITCH_DISTANCE
        };
        let back = |calls: &mut Vec<OpenCall>| reaches(calls, to.0, below);
        if let Some(calls) = self.interrupted.pop_if(back) {
            self.open = calls;
            return;
        }
        let calls = all.take(to.0, to.1).unwrap_or_default();
        let before = std::mem::replace(&mut self.open, calls);
        // Without an instruction that sets the stack pointer, the kernel has switched to the stack
        // of a signal handler, and will switch back.
        if switched || self.interrupted.len() == MAX_NESTED_HANDLERS {
            all.park(before);
        } else if !before.is_empty() {
            self.interrupted.push(before);
        }
    }

    /// True if `slot` is in the stack where the thread was.
    fn is_here(&self, slot: u64, switched: bool) -> bool {
        let Some(lowest) = self.open.last().map(|call| call.slot) else {
            return false;
        };
        // A slot below the innermost call is in this stack if it is at most a little below the last
        // slot. A function that releases memory from `alloca` calls from above that slot.
        let deeper = slot < lowest && slot.saturating_add(ARGUMENT_BYTES) >= self.last_slot;
        reaches(
            &self.open,
            slot,
            if switched { 0 } else { STACK_SWITCH_DISTANCE },
        ) || switched && deeper
    }

    /// Removes the calls with slots at or below an address. They are over.
    fn leave_up_to(&mut self, slot: u64) {
        while self.open.last().is_some_and(|call| call.slot <= slot) {
            self.open.pop();
        }
    }

    fn open(&mut self, returns_to: u64, slot: u64) {
        if self.open.len() < MAX_CALL_DEPTH {
            self.open.push(OpenCall {
                returns_to,
                slot,
                frame: None,
            });
        }
    }

    /// Slot of the innermost call, or 0.
    pub(crate) fn innermost_slot(&self) -> u64 {
        self.open.last().map_or(0, |call| call.slot)
    }

    /// Frame of the innermost call of a stack in which calls of Python are between native ones:
    /// each after the native call that it runs in.
    ///
    /// # Errors
    /// Returns errors of `write`.
    pub(crate) fn caller_with_python<E>(
        &self,
        python: &[PythonCall],
        stacks: &mut Stacks,
        process: (Pid, u64),
        write: impl FnMut(Frame) -> Result<(), E>,
    ) -> Result<Option<FrameId>, E> {
        let mut rest = python;
        let mut calls = Vec::with_capacity(self.open.len() + python.len());
        for call in &self.open {
            calls.push(VirtAddr(call.returns_to.wrapping_sub(1)));
            let here = rest
                .iter()
                .take_while(|inner| inner.slot >= call.slot)
                .count();
            let (inner, after) = rest.split_at(here);
            calls.extend(inner.iter().map(|call| call.ip));
            rest = after;
        }
        calls.extend(rest.iter().map(|call| call.ip));
        calls.reverse();
        stacks.caller(process, &calls, write)
    }

    /// Frame of the innermost call. New frames are passed to `write`.
    ///
    /// # Errors
    /// Returns errors of `write`.
    pub(crate) fn caller<E>(
        &mut self,
        stacks: &mut Stacks,
        process: (Pid, u64),
        mut write: impl FnMut(Frame) -> Result<(), E>,
    ) -> Result<Option<FrameId>, E> {
        let known = self.open.iter().rposition(|call| call.frame.is_some());
        let mut caller = known.and_then(|at| self.open[at].frame);
        for call in &mut self.open[known.map_or(0, |at| at + 1)..] {
            let ip = VirtAddr(call.returns_to.wrapping_sub(1));
            call.frame = stacks.frame(process, caller, ip, &mut write)?;
            if call.frame.is_none() {
                break;
            }
            caller = call.frame;
        }
        Ok(caller)
    }
}

#[cfg(test)]
mod tests;
