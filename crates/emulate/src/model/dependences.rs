//! Which loads in flight the address of a load depends on.
//!
//! Whether two loads overlap depends on whether one needs the data of the other. The words of a
//! thread have its path through the code and the addresses of its accesses, and the catalogue has the
//! instructions of each block. The module goes back from a load that missed through the executed
//! instructions, and follows the registers that its address came from, through copies, arithmetic,
//! loads that hit, and values that were stored and loaded again.
//!
//! Rejected: tracking the origin of each register forward. It would cost several operations for
//! each executed block, and only few blocks miss the caches.
//!
//! A mispredicted branch holds loads back like an instruction that computes their address: the core
//! fetches the right instructions only when it knows the condition. This matters to searches that
//! branch at each step. It does not matter where both directions lead to the same load.
//!
//! Simplifications: a branch is predicted to go where it mostly goes, and indirect branches are
//! predicted. Addresses of accesses in blocks whose number of accesses varies are unknown, so values
//! that pass through such memory are not followed.

use std::sync::atomic::AtomicU64;

use memgauge_machine::{LINE_BYTES, LoadId, LoadInFlight, LoadOrder, LoadStart};
use memgauge_trace::AccessKind;

use crate::engine::catalogue::{Block, BlockAccess, Catalogue};
use crate::engine::instructions::{InstructionFlow, Registers, decode};
use crate::engine::wire;
use crate::engine::words::load;

const LINE: u64 = LINE_BYTES as u64;
/// Maximum number of instructions to go back through.
const MAX_INSTRUCTIONS: usize = 1024;
/// Maximum number of places in memory whose values are followed.
const MAX_PLACES: usize = 8;
/// Maximum number of blocks after a branch in which its directions are compared.
const MAX_BLOCKS_AFTER_BRANCH: usize = 8;
/// Number of executions of a branch in a direction until what follows it is known.
const LEARNED_EXECUTIONS: u32 = 64;
/// Number of misses of an access that are examined at first.
const FIRST_ANSWERS: u32 = 32;
/// Of so many later misses one is examined. Examining all of them doubled the time of recordings of
/// bzip2.
const SAMPLED_MISSES: u32 = 64;
/// Number of answers that the other misses repeat in turn.
const KEPT_ANSWERS: usize = 7;

/// What is known about the loads of a process.
#[derive(Default)]
pub(crate) struct Dependences {
    /// Data flow through each block, once it has been needed.
    blocks: Vec<Option<BlockFlow>>,
    /// Latest answers for each access of the catalogue.
    answers: Vec<Answers>,
    /// Executed blocks on the way to the current load, last first.
    path: Vec<PathStep>,
    /// Room for [`NeededValues::computed`].
    computed: Vec<NeededComputation>,
}

/// What the latest misses of an access depended on.
#[derive(Clone, Copy, Default)]
struct Answers {
    /// Indices of the accesses in flight that it needed, plus one. [`Answers::NONE`] if it needed none.
    needed: [u32; KEPT_ANSWERS],
    /// Number of its misses, up to [`FIRST_ANSWERS`] and then modulo [`SAMPLED_MISSES`].
    misses: u32,
}

impl Answers {
    const NONE: u32 = 0;
    const IN_ORDER: u32 = u32::MAX;

    /// Counts a miss. Returns the answer of an earlier one, unless this one must be examined.
    fn assume(&mut self, in_flight: &[LoadInFlight]) -> Option<LoadStart> {
        self.misses += 1;
        let since_first = self.misses.checked_sub(FIRST_ANSWERS)?;
        if since_first == SAMPLED_MISSES {
            self.misses = FIRST_ANSWERS;
            return None;
        }
        let needed = match self.needed[since_first as usize % KEPT_ANSWERS] {
            Answers::NONE => return Some(LoadStart::AtOnce),
            Answers::IN_ORDER => return Some(LoadStart::InOrder),
            index => index - 1,
        };
        let mut loads = in_flight.iter();
        let latest = loads.rposition(|load| access_of(load) == needed);
        Some(latest.map_or(LoadStart::AtOnce, LoadStart::After))
    }

    /// Adds the answer of an examined miss.
    fn add(&mut self, start: LoadStart, in_flight: &[LoadInFlight]) {
        self.needed.rotate_right(1);
        self.needed[0] = match start {
            LoadStart::AtOnce => Answers::NONE,
            LoadStart::InOrder => Answers::IN_ORDER,
            LoadStart::After(needed) => access_of(&in_flight[needed]) + 1,
        };
    }
}

/// A load that missed, and what led to it.
pub(crate) struct MissedLoad<'a> {
    pub(crate) dependences: &'a mut Dependences,
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) words: &'a [AtomicU64],
    /// Index of its word.
    pub(crate) at: usize,
    /// Index of the access in the catalogue.
    pub(crate) index: u32,
}

fn word_of(load: &LoadInFlight) -> usize {
    (load.id.number >> 32) as usize
}

fn access_of(load: &LoadInFlight) -> u32 {
    load.id.number as u32
}

impl LoadOrder for MissedLoad<'_> {
    fn id(&self) -> Option<LoadId> {
        // The program's address, not one to which a changed layout moves the access.
        let first = load(self.words, self.at).unwrap_or(0) & wire::ADDRESS;
        let delta = self.catalogue.access(self.index).delta;
        Some(LoadId {
            number: (self.at as u64) << 32 | u64::from(self.index),
            line: first.wrapping_add(delta as u64) / LINE,
        })
    }

    fn start(&mut self, in_flight: &[LoadInFlight]) -> LoadStart {
        let all = &mut self.dependences.answers;
        if self.index as usize >= all.len() {
            all.resize(self.catalogue.access_count(), Answers::default());
        }
        if let Some(start) = all[self.index as usize].assume(in_flight) {
            return start;
        }
        let start = self.look_back(in_flight);
        self.dependences.answers[self.index as usize].add(start, in_flight);
        start
    }
}

/// An execution of a block.
struct BlockExecution<'a> {
    number: u32,
    block: &'a Block,
    /// Index of its first word.
    first: usize,
    /// True if its first word is a mark and no run.
    is_marked: bool,
}

impl BlockExecution<'_> {
    /// Returns the execution that the word at `at` belongs to. `None` if it is not known.
    fn at<'a>(
        catalogue: &'a Catalogue,
        words: &[AtomicU64],
        mut at: usize,
    ) -> Option<BlockExecution<'a>> {
        loop {
            let word = load(words, at)?;
            let id = wire::id(word);
            let number = if id < wire::FIRST_BLOCK {
                at = at.checked_sub(1)?;
                continue;
            } else if id < wire::MARKS {
                id as u32
            } else {
                match wire::mark(word) {
                    wire::MARK_BLOCK => word as u32,
                    // The kernel has run.
                    wire::MARK_SYNC => return None,
                    _ => {
                        at = at.checked_sub(1)?;
                        continue;
                    }
                }
            };
            return Some(BlockExecution {
                number,
                block: catalogue.block(number)?,
                first: at,
                is_marked: id >= wire::MARKS,
            });
        }
    }

    /// Returns the index of an access's word and its address. `None` if the words do not have it.
    fn place_of(&self, words: &[AtomicU64], access: &BlockAccess) -> Option<(usize, u64)> {
        if self.block.is_special() {
            return None;
        }
        let at = self.first + usize::from(access.run) + usize::from(self.is_marked);
        let word = load(words, at)?;
        let is_run = at == self.first || wire::id(word) < wire::FIRST_BLOCK;
        is_run.then(|| (at, (word & wire::ADDRESS).wrapping_add(access.delta as u64)))
    }
}

/// Returns the index of the load in flight of a word and a line.
fn find(in_flight: &[LoadInFlight], at: usize, line: u64) -> Option<usize> {
    let first = in_flight.partition_point(|load| word_of(load) < at);
    let mut of_word = in_flight[first..]
        .iter()
        .take_while(|load| word_of(load) == at);
    let place = of_word.position(|load| load.id.line == line)?;
    Some(first + place)
}

/// Values that the address of the load was computed from, before some instruction.
struct NeededValues {
    registers: Registers,
    /// Places in memory: address and size.
    places: [(u64, u64); MAX_PLACES],
    place_count: usize,
    /// Instructions that computed a needed value, last first, and the load itself.
    computed: Vec<NeededComputation>,
    /// Number of blocks between the current one and the load.
    step: u32,
}

/// An instruction that computed a needed value.
#[derive(Clone, Copy)]
struct NeededComputation {
    /// Number of blocks between it and the load.
    step: u32,
    /// Its [`InstructionFlow::hash`].
    hash: u32,
}

impl NeededValues {
    fn is_empty(&self) -> bool {
        self.registers == 0 && self.place_count == 0
    }

    /// Adds a place in memory. Those beyond the maximum count as old values.
    fn add_place(&mut self, addr: u64, size: u8) {
        if let Some(place) = self.places.get_mut(self.place_count) {
            *place = (addr, u64::from(size));
            self.place_count += 1;
        }
    }

    /// Returns true if a place begins in this line.
    fn has_line(&self, line: u64) -> bool {
        let mut places = self.places[..self.place_count].iter();
        places.any(|&(addr, _)| addr / LINE == line)
    }

    /// Removes the places that a store of `size` bytes wrote. Returns true if there are any.
    fn take_places(&mut self, addr: u64, size: u8) -> bool {
        let before = self.place_count;
        let mut at = 0;
        while at < self.place_count {
            let (place, bytes) = self.places[at];
            if addr < place.saturating_add(bytes) && place < addr.saturating_add(u64::from(size)) {
                self.place_count -= 1;
                self.places[at] = self.places[self.place_count];
            } else {
                at += 1;
            }
        }
        self.place_count < before
    }
}

impl MissedLoad<'_> {
    /// Goes back from the load to the oldest one in flight.
    fn look_back(&mut self, in_flight: &[LoadInFlight]) -> LoadStart {
        let (catalogue, words) = (self.catalogue, self.words);
        let Some(mut execution) = BlockExecution::at(catalogue, words, self.at) else {
            return LoadStart::InOrder;
        };
        let own = catalogue.access(self.index);
        let flow = self.dependences.of_block(catalogue, &execution);
        let own_flow = flow.instructions.get(usize::from(own.insn));
        let Some(own_flow) = own_flow.filter(|flow| !flow.is_ordered) else {
            return LoadStart::InOrder;
        };
        let own_hash = own_flow.hash;
        let mut needed = NeededValues {
            registers: own_flow.addresses,
            places: [(0, 0); MAX_PLACES],
            place_count: 0,
            computed: std::mem::take(&mut self.dependences.computed),
            step: 0,
        };
        needed.computed.clear();
        needed.computed.push(NeededComputation {
            step: 0,
            hash: own_hash,
        });
        let oldest = in_flight.first().map_or(self.at, word_of);
        let mut path = std::mem::take(&mut self.dependences.path);
        path.clear();
        // The first instruction and the first word after those that are left.
        let (mut end, mut end_word) = (usize::from(own.insn), self.at + 1);
        let mut left = MAX_INSTRUCTIONS;
        let start = loop {
            let dependences = &mut *self.dependences;
            if let Some(branch) = dependences.reach(catalogue, &execution, &path, &needed) {
                needed.registers |= branch.reads;
            }
            needed.step = path.len() as u32;
            let flow = dependences.of_block(catalogue, &execution);
            let part = BlockPart {
                execution: &execution,
                flow,
                words,
                end_word,
            };
            let accesses = catalogue.accesses(execution.block.accesses.clone());
            if let Some(start) = part.look_back(accesses, end, &mut needed, in_flight) {
                break start;
            }
            left = left.saturating_sub(end.clamp(1, flow.instructions.len().max(1)));
            if left == 0 || execution.first <= oldest {
                break LoadStart::AtOnce;
            }
            path.push(PathStep {
                number: execution.number,
                vaddr: execution.block.vaddr,
            });
            end_word = execution.first;
            let Some(before) = BlockExecution::at(catalogue, words, execution.first - 1) else {
                break LoadStart::AtOnce;
            };
            execution = before;
            end = usize::MAX;
        };
        self.dependences.path = path;
        self.dependences.computed = needed.computed;
        start
    }
}

/// An executed block on the way to a load.
#[derive(Clone, Copy)]
struct PathStep {
    number: u32,
    vaddr: u64,
}

/// Data flow through a block.
struct BlockFlow {
    instructions: Box<[InstructionFlow]>,
    /// True if one of them is ordered.
    has_ordered: bool,
    /// Directions of the conditional branch at its end: not taken, taken.
    directions: [BranchDirection; 2],
}

/// What followed a branch in one direction.
#[derive(Default)]
struct BranchDirection {
    count: u32,
    /// Blocks that were executed after it and up to its next execution.
    blocks: Vec<u32>,
}

/// The part of an executed block before a load.
struct BlockPart<'a> {
    execution: &'a BlockExecution<'a>,
    flow: &'a BlockFlow,
    words: &'a [AtomicU64],
    /// Index after its last word.
    end_word: usize,
}

impl BlockPart<'_> {
    /// Goes back through the instructions before number `end`. Returns when the load can begin once
    /// that is known.
    fn look_back(
        &self,
        accesses: &[BlockAccess],
        end: usize,
        needed: &mut NeededValues,
        in_flight: &[LoadInFlight],
    ) -> Option<LoadStart> {
        let instructions = &self.flow.instructions;
        let instructions = &instructions[..end.min(instructions.len())];
        let mut rest = accesses;
        for (number, flow) in instructions.iter().enumerate().rev() {
            if needed.is_empty() && !self.flow.has_ordered {
                return None;
            }
            let end = rest.partition_point(|access| usize::from(access.insn) <= number);
            let begin = rest[..end].partition_point(|access| usize::from(access.insn) < number);
            let own = &rest[begin..end];
            rest = &rest[..begin];
            let limit = self.execution.block.accesses.start + end as u32;
            if flow.is_ordered {
                let latest = in_flight
                    .iter()
                    .rposition(|load| self.has_before(load, limit));
                return Some(latest.map_or(LoadStart::AtOnce, LoadStart::After));
            }
            let is_stored = needed.place_count > 0 && self.take_stored(own, needed);
            if is_stored {
                needed.registers |= flow.stored;
            }
            let is_needed = flow.writes & needed.registers != 0 || is_stored;
            if is_needed {
                needed.registers = needed.registers & !flow.replaces | flow.reads;
                needed.computed.push(NeededComputation {
                    step: needed.step,
                    hash: flow.hash,
                });
            }
            if !is_needed && needed.place_count == 0 {
                continue;
            }
            for load in own.iter().filter(|access| access.kind != AccessKind::Store) {
                let Some((at, addr)) = self.execution.place_of(self.words, load) else {
                    continue;
                };
                // A later load may use the line while this one waits for it.
                if (is_needed || needed.has_line(addr / LINE))
                    && let Some(load) = find(in_flight, at, addr / LINE)
                {
                    return Some(LoadStart::After(load));
                }
                if is_needed {
                    needed.add_place(addr, load.size);
                }
            }
        }
        None
    }

    /// Returns true if a load in flight is an access before the one with index `limit` in this
    /// execution, or before this execution.
    fn has_before(&self, load: &LoadInFlight, limit: u32) -> bool {
        let word = word_of(load);
        word < self.execution.first || word < self.end_word && access_of(load) < limit
    }

    /// Removes the needed places that stores of an instruction wrote. Returns true if there are any.
    fn take_stored(&self, own: &[BlockAccess], needed: &mut NeededValues) -> bool {
        let mut is_stored = false;
        for store in own.iter().filter(|access| access.kind != AccessKind::Load) {
            if let Some((_, addr)) = self.execution.place_of(self.words, store) {
                is_stored |= needed.take_places(addr, store.size);
            }
        }
        is_stored
    }
}

impl Dependences {
    /// Notes how the branch at the end of a block went. `path` has the later blocks, last first.
    /// Returns the branch if its condition must be known before the load can begin: it was
    /// mispredicted, and the core fetches the load or computes a needed value in the right direction
    /// only.
    ///
    /// A branch counts as mispredicted if it goes in the direction that it takes less often.
    fn reach(
        &mut self,
        catalogue: &Catalogue,
        execution: &BlockExecution<'_>,
        path: &[PathStep],
        needed: &NeededValues,
    ) -> Option<InstructionFlow> {
        let flow = self.of_block(catalogue, execution);
        let branch = *flow
            .instructions
            .last()
            .filter(|last| last.is_conditional)?;
        let is_taken = path.last()?.vaddr != execution.block.end();
        let after = path.iter().rev().take(MAX_BLOCKS_AFTER_BRANCH);
        let after = after.take_while(|step| step.number != execution.number);
        let direction = &mut flow.directions[usize::from(is_taken)];
        direction.count = direction.count.saturating_add(1);
        let mut steps = 0;
        for step in after {
            steps += 1;
            let is_learning = direction.count <= LEARNED_EXECUTIONS;
            if is_learning && !direction.blocks.contains(&step.number) {
                direction.blocks.push(step.number);
            }
        }
        let count = direction.count;
        let known = |number: u32| self.blocks.get(number as usize).and_then(Option::as_ref);
        let other = &known(execution.number)?.directions[usize::from(!is_taken)];
        if count >= other.count {
            return None;
        }
        let first_step = path.len() - steps;
        let computed = needed.computed.iter().rev();
        let mut computed = computed.take_while(|computed| computed.step as usize >= first_step);
        let is_held = computed.any(|computed| {
            !other.blocks.iter().any(|&number| {
                known(number).is_some_and(|flow| {
                    let mut instructions = flow.instructions.iter();
                    instructions.any(|instruction| instruction.hash == computed.hash)
                })
            })
        });
        is_held.then_some(branch)
    }

    fn of_block(
        &mut self,
        catalogue: &Catalogue,
        execution: &BlockExecution<'_>,
    ) -> &mut BlockFlow {
        let number = execution.number as usize;
        if number >= self.blocks.len() {
            self.blocks.resize_with(number + 1, || None);
        }
        self.blocks[number].get_or_insert_with(|| {
            let code = catalogue.instructions(execution.block);
            let instructions = decode(code, execution.block.vaddr);
            let has_ordered = instructions.iter().any(|flow| flow.is_ordered);
            BlockFlow {
                instructions,
                has_ordered,
                directions: Default::default(),
            }
        })
    }
}

#[cfg(test)]
mod tests;
