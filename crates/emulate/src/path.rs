//! The calls that a thread is in, from the blocks of code that it executes.
//!
//! A call stores its return address in a **slot** of the stack, a return loads it from
//! there. Slots of open calls go down: an open call whose slot lies at or below that of
//! a new call, or of a return, has been left, by its own return or by a jump
//! (longjmp, an exception). So no jump needs to be known. A jump out of a function
//! (a tail call) changes nothing: its target returns in its stead.
//!
//! A thread that goes on in another stack (coroutines, goroutines) leaves its calls open
//! there. They are **parked** until some thread of the process comes back to them. Threads
//! are read a slice at a time: where the one that left a stack is behind, its calls of the
//! moment are taken.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use memgauge_recording::stacks::Stacks;
use memgauge_trace::{Frame, FrameId, Pid, Tid, VirtAddr};

use super::catalogue::{Block, Catalogue, Ends};
use super::wire;
use super::words::load;

/// Calls that are kept; a recursion that is deeper has its outer part.
const MOST_CALLS: usize = 1 << 16;
/// Stacks that are kept while no thread is in them.
const MOST_PARKED: usize = 1 << 14;
/// Handlers of signals within one another.
const MOST_INTERRUPTED: usize = 8;
/// A slot this far below the calls of a stack lies in another one.
const FAR: u64 = 8 << 20;
/// Who comes back to a stack goes on at the last slot, or as far below it as arguments
/// take.
const ARGUMENTS: u64 = 256;
/// The same where a thread is behind that calls its scheduler from there.
const BEHIND: u64 = 1024;

/// The calls of one thread.
#[derive(Debug, Default)]
pub(super) struct CallPath {
    /// Those in the stack where it is. The outermost first.
    open: Vec<OpenCall>,
    /// Those that handlers of signals interrupted that have a stack of their own.
    interrupted: Vec<Vec<OpenCall>>,
    /// Slot of the last call or return.
    last_slot: u64,
    /// Since then the stack pointer got a value that may be another stack's.
    switched: bool,
    /// The call or return that the last block ended in.
    ended: Option<Ended>,
    /// The next word is the address of a piece.
    piece: bool,
    /// Words before it have been taken in.
    at: usize,
}

#[derive(Clone, Debug)]
struct OpenCall {
    returns_to: u64,
    slot: u64,
    /// Its frame in the recording, where one was asked for.
    frame: Option<FrameId>,
}

/// The end of a block that is being executed.
#[derive(Clone, Copy, Debug)]
struct Ended {
    calls: bool,
    returns_to: u64,
    /// Runs to come up to that of the slot.
    runs_to_come: u32,
    /// Of the slot from the address of that run.
    delta: i64,
    /// Known once the access has happened; a fault leaves it unknown.
    slot: Option<u64>,
}

impl Ended {
    /// How this block ends, of whose runs the first has come with the block or none.
    fn of(catalogue: &Catalogue, block: &Block, first: Option<u64>) -> Option<Ended> {
        let calls = match block.ends {
            Ends::Otherwise => return None,
            Ends::Call => true,
            Ends::Return => false,
        };
        // The address behind a call is stored last, and loaded last.
        let access = catalogue.access(block.accesses.clone().last()?);
        if access.run == wire::RUN_VARYING {
            return None;
        }
        let mut ended = Ended {
            calls,
            returns_to: block.end(),
            runs_to_come: u32::from(access.run) + 1,
            delta: access.delta,
            slot: None,
        };
        if let Some(address) = first {
            ended.come(address);
        }
        Some(ended)
    }

    /// A run of the block has come.
    fn come(&mut self, address: u64) {
        if self.runs_to_come > 0 {
            self.runs_to_come -= 1;
            if self.runs_to_come == 0 {
                self.slot = Some(address.wrapping_add(self.delta as u64));
            }
        }
    }
}

/// Calls in the stacks of a process.
#[derive(Debug, Default)]
pub(super) struct ProcessCalls {
    /// Of stacks where no thread is, by the lowest slot of each.
    parked: BTreeMap<u64, Vec<OpenCall>>,
    /// Of threads, while another one is read.
    running: BTreeMap<Tid, Vec<OpenCall>>,
    /// Those of a child whose first thread has not begun.
    is_unborn: bool,
}

/// The calls of a thread at a moment.
#[derive(Debug, Default)]
pub(super) struct CallsThen(Vec<OpenCall>);

impl ProcessCalls {
    /// The calls of a thread now.
    pub(super) fn now(&self, tid: u32) -> CallsThen {
        let calls = self.running.get(&Tid(tid));
        CallsThen(calls.map(|calls| frameless(calls)).unwrap_or_default())
    }

    /// A thread begins. That of a forked child goes on in the calls from which it was
    /// forked; the parent may have been read beyond them meanwhile.
    pub(super) fn begin(&mut self, tid: u32, forked_in: Option<CallsThen>) {
        if let (true, Some(calls)) = (std::mem::take(&mut self.is_unborn), forked_in) {
            self.running = BTreeMap::from([(Tid(tid), calls.0)]);
        }
    }

    /// Those of a child that was forked. Its frames are its own.
    pub(super) fn inherited(&self) -> ProcessCalls {
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

    /// The calls of the stack that the slot of a call, or of a return, lies in.
    fn take(&mut self, slot: u64, is_call: bool) -> Option<Vec<OpenCall>> {
        let around = self.parked.range(..=slot).next_back();
        let around = around.filter(|(_, calls)| reaches(calls, slot, 0));
        let above = || self.parked.range(slot..).next();
        let above = || above().filter(|(_, calls)| reaches(calls, slot, ARGUMENTS));
        if let Some((&lowest, _)) = around.or_else(above) {
            return self.parked.remove(&lowest);
        }
        let below = if is_call { ARGUMENTS } else { BEHIND };
        let mut running = self.running.values();
        running.find(|calls| reaches(calls, slot, below)).cloned()
    }

    /// A thread has ended.
    pub(super) fn end(&mut self, tid: u32) {
        self.running.remove(&Tid(tid));
    }

    fn park(&mut self, calls: Vec<OpenCall>) {
        let (Some(highest), Some(lowest)) = (calls.first(), calls.last()) else {
            return;
        };
        // Calls that lay there are over: stacks do not overlap.
        while let Some((&old, calls)) = self.parked.range(..=highest.slot).next_back()
            && calls.first().is_some_and(|call| call.slot >= lowest.slot)
        {
            self.parked.remove(&old);
        }
        if self.parked.len() == MOST_PARKED {
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

/// Whether a slot lies in the stack of these calls, or so far below.
fn reaches(calls: &[OpenCall], slot: u64, below: u64) -> bool {
    let (Some(highest), Some(lowest)) = (calls.first(), calls.last()) else {
        return false;
    };
    (lowest.slot.saturating_sub(below)..=highest.slot).contains(&slot)
}

impl CallPath {
    /// The next words to come are those from `at` on.
    pub(super) fn go_on(&mut self, tid: u32, all: &mut ProcessCalls, at: usize) {
        self.open = all.running.remove(&Tid(tid)).unwrap_or_default();
        self.at = at;
    }

    /// Another thread is read next.
    pub(super) fn rest(&mut self, tid: u32, all: &mut ProcessCalls) {
        all.running.insert(Tid(tid), std::mem::take(&mut self.open));
    }

    /// Takes in the words before `end`. `all` are the process's.
    pub(super) fn follow(
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
                if let Some(ended) = &mut self.ended {
                    ended.come(address);
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

    /// A block is executed, perhaps with the address of its first run.
    fn begin(
        &mut self,
        catalogue: &Catalogue,
        all: &mut ProcessCalls,
        (number, first): (u32, Option<u64>),
    ) {
        let block = catalogue.block(number);
        let vaddr = block.map(|block| block.vaddr);
        if let Some((ended, slot)) = self.ended.take().and_then(|e| Some((e, e.slot?))) {
            self.arrive(all, slot, ended.calls);
            self.leave_up_to(slot);
            // A call of what follows it only asks where the code lies.
            if ended.calls && vaddr != Some(ended.returns_to) {
                self.open(ended.returns_to, slot);
            }
        }
        if let Some(block) = block {
            self.switched |= block.switches_stack;
            self.ended = Ended::of(catalogue, block, first);
        }
    }

    /// Goes to the stack that the slot of a call, or of a return, lies in.
    fn arrive(&mut self, all: &mut ProcessCalls, slot: u64, is_call: bool) {
        let switched = std::mem::take(&mut self.switched);
        if !self.is_here(slot, switched) {
            self.change_stack(all, (slot, is_call), switched);
        }
        self.last_slot = slot;
    }

    fn change_stack(&mut self, all: &mut ProcessCalls, to: (u64, bool), switched: bool) {
        let below = if switched { ARGUMENTS } else { FAR };
        let back = |calls: &mut Vec<OpenCall>| reaches(calls, to.0, below);
        if let Some(calls) = self.interrupted.pop_if(back) {
            self.open = calls;
            return;
        }
        let calls = all.take(to.0, to.1).unwrap_or_default();
        let before = std::mem::replace(&mut self.open, calls);
        // Only the kernel changes stacks unseen, and comes back.
        if switched || self.interrupted.len() == MOST_INTERRUPTED {
            all.park(before);
        } else if !before.is_empty() {
            self.interrupted.push(before);
        }
    }

    /// Whether `slot` lies in the stack where the thread was.
    fn is_here(&self, slot: u64, switched: bool) -> bool {
        let Some(lowest) = self.open.last().map(|call| call.slot) else {
            return false;
        };
        // Below the last one if a function gives memory back that it took from the stack.
        let deeper = slot < lowest && slot.saturating_add(ARGUMENTS) >= self.last_slot;
        reaches(&self.open, slot, if switched { 0 } else { FAR }) || switched && deeper
    }

    /// Calls whose slots lie there or below are over.
    fn leave_up_to(&mut self, slot: u64) {
        while self.open.last().is_some_and(|call| call.slot <= slot) {
            self.open.pop();
        }
    }

    fn open(&mut self, returns_to: u64, slot: u64) {
        if self.open.len() < MOST_CALLS {
            self.open.push(OpenCall {
                returns_to,
                slot,
                frame: None,
            });
        }
    }

    /// The frame of the innermost call; new frames are handed to `write`.
    ///
    /// # Errors
    /// As of `write`.
    pub(super) fn caller<E>(
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
