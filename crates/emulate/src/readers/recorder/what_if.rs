//! Other modelled machines that replay the same words (`--what-if`).
//!
//! Each machine has its own cores. Threads run in the order of the recorded machine and wait as long
//! as there. Costs are summed per machine and not charged to code.

use memgauge_machine::{Core, CoreId, Counts, Machine, PmuConfig};
use memgauge_trace::{VirtAddr, WhatIfFacts, catalogue as events};

use super::Process;
use crate::follow::ThreadWords;
use crate::model::dependences::Dependences;
use crate::model::moves::{MovedCode, Moves, MovesOf};
use crate::model::replay::{Cursor, OverflowSink, Replay};
use crate::{Error, OtherMachine, Result};

/// A machine that replays the words of the recorded one.
pub(crate) struct WhatIfMachine {
    name: String,
    pub(super) machine: Machine,
    /// Counts of threads that have ended.
    past: Counts,
    /// Accesses that go elsewhere on this machine.
    moves: Option<Moves>,
}

/// What another machine keeps for a process.
#[derive(Default)]
pub(crate) struct WhatIfProcess {
    /// Accesses that move.
    moved: MovedCode,
    dependences: Dependences,
}

/// Discards samples, because these machines record none.
struct NoSamples;

impl OverflowSink for NoSamples {
    fn take(&mut self, core: &mut Core, _: VirtAddr) {
        core.take_overflows(|_| ());
    }
}

impl WhatIfMachine {
    pub(crate) fn new(other: &OtherMachine) -> Result<WhatIfMachine> {
        let machine = Machine::new(other.config.clone(), PmuConfig::default());
        let mut machine = machine.map_err(|e| Error::usage(e.to_string()))?;
        machine.keep_coherent();
        Ok(WhatIfMachine {
            name: other.name.clone(),
            machine,
            past: Counts::default(),
            moves: other.layout.clone().map(Moves::new),
        })
    }

    /// Replays words from `at` on, after the recorded machine. `state` is that of the process.
    pub(super) fn replay(
        &mut self,
        process: &mut Process,
        state: &mut WhatIfProcess,
        core: CoreId,
        cursor: &mut Cursor,
        words: &ThreadWords<'_>,
        at: usize,
    ) {
        let program = &mut process.state.program;
        let was_outside = program.is_outside;
        // Executions and misses count once, on the recorded machine.
        program.set_outside(true);
        std::mem::swap(&mut program.dependences, &mut state.dependences);
        let (core, shared) = self.machine.core_mut(core);
        core.use_huge_pages(process.state.huge_pages.ranges());
        let mut no_samples = NoSamples;
        let code = &mut state.moved;
        let moves = self.moves.as_mut().map(|moves| MovesOf { moves, code });
        let mut replay = Replay::repeated(core, shared, program, cursor, &mut no_samples, moves);
        replay.run(words.all, at, words.whole);
        core.end_turn(shared);
        let program = &mut process.state.program;
        std::mem::swap(&mut program.dependences, &mut state.dependences);
        program.set_outside(was_outside);
    }

    /// Advances a thread's clock by the wait of the recorded machine.
    pub(super) fn wait(&mut self, core: CoreId, waited_ns: u64) {
        if waited_ns > 0 {
            let (core, _) = self.machine.core_mut(core);
            core.wait_until(core.time_ns() + waited_ns);
        }
    }

    pub(super) fn end_thread(&mut self, core: CoreId) {
        self.past.add(&self.machine.core(core).counts());
        self.machine.remove_core(core);
    }

    /// Returns the sums over all threads that have ended.
    pub(super) fn facts(&self) -> WhatIfFacts {
        let named = self.past.iter();
        let named = named.filter_map(|(id, n)| Some((events::name(id)?.to_owned(), n)));
        WhatIfFacts {
            name: self.name.clone(),
            machine: self.machine.config().to_facts(),
            totals: named.collect(),
            moved_accesses: self.moves.as_ref().map(|moves| moves.moved),
            misses_of_others: self.moves.as_ref().map(|moves| moves.stayed),
        }
    }
}
