//! Counts by code location, from the counts of a process's blocks.

use std::sync::atomic::Ordering;

use memgauge_trace::{EventId, Pid, PythonLine, SiteCount, VirtAddr, catalogue as events};

use super::Process;
use crate::engine::catalogue::{Block, Catalogue, ExecutedSums, Tally};
use crate::engine::session::ThreadRing;
use crate::model::costs::{SiteMisses, SiteStalls};
use crate::model::replay::ReplayedProgram;
use crate::model::sets::ClassSums;

/// Converts millicycles of many locations to whole cycles with the same sum: the fraction of a
/// cycle of one location is carried to the next.
#[derive(Debug, Default)]
pub(super) struct Carry {
    millicycles: u64,
}

impl Carry {
    pub(super) fn add(&mut self, millicycles: u64) -> u64 {
        let sum = self.millicycles + millicycles;
        self.millicycles = sum % 1000;
        sum / 1000
    }
}

/// Carries of a process, by event.
#[derive(Debug, Default)]
pub(super) struct Carries {
    pub(super) cycles: Carry,
    /// Cycles of instructions without stalls.
    pub(super) instructions: Carry,
    pub(super) l2: Carry,
    pub(super) llc: Carry,
    pub(super) dram: Carry,
    pub(super) queue: Carry,
    pub(super) tlb: Carry,
    pub(super) stores: Carry,
    pub(super) sharing: Carry,
}

impl Carries {
    fn stalls(&mut self, stalls: &SiteStalls) -> [(EventId, u64); 8] {
        [
            (events::CYCLES, self.cycles.add(stalls.sum())),
            (events::STALL_L2, self.l2.add(stalls.l2)),
            (events::STALL_LLC, self.llc.add(stalls.llc)),
            (events::STALL_DRAM, self.dram.add(stalls.dram)),
            (events::STALL_QUEUE, self.queue.add(stalls.queue)),
            (events::STALL_TLB, self.tlb.add(stalls.tlb)),
            (events::STALL_STORES, self.stores.add(stalls.stores)),
            (events::STALL_SHARING, self.sharing.add(stalls.sharing)),
        ]
    }
}

/// Adds the execution counts that a thread keeps itself.
pub(super) fn take_counts(
    program: &mut ReplayedProgram,
    ring: &ThreadRing,
    counted: &mut Vec<u64>,
) {
    let numbers = program.catalogue.numbers();
    let executions = ring.executions(numbers.len());
    counted.resize(executions.len(), 0);
    for ((number, now), before) in numbers.zip(executions).zip(counted) {
        let now = now.load(Ordering::Relaxed);
        let gained = now.wrapping_sub(std::mem::replace(before, now));
        if let Some(block) = program.catalogue.block_mut(number).filter(|_| gained > 0) {
            block.execs = block.execs.wrapping_add(gained);
        }
    }
}

/// Adds executions. Instructions, and the cycles they take without stalls, are charged to the first
/// instruction of each block, loads and stores to the instruction that makes them. If `sums_are_exact` is
/// set, each execution states what was executed, and cycles by location are unknown.
pub(super) fn take_blocks(
    process: &mut Process,
    rows: &mut Vec<SiteCount>,
    sums_are_exact: bool,
    instruction_millicycles: u64,
) {
    let pid = Pid(process.entry.pid);
    let state = &mut process.state;
    let (catalogue, sink) = (&mut state.program.catalogue, &mut state.sink);
    let (mapped, cycles_carry) = (&sink.mapped, &mut sink.carries.cycles);
    let charge = |catalogue: &Catalogue, block: &Block, execs: u64, sums: ExecutedSums| {
        let code_ns = Some(mapped.code_ns(block.mappings));
        let mut add = |ip, event, count| {
            rows.extend((count > 0).then_some(SiteCount {
                pid,
                ip,
                event,
                count,
                set_group: None,
                code_ns,
            }));
        };
        let plain = |n: u32| execs * u64::from(n);
        let sums = match block.is_special() && !sums_are_exact {
            true => sums,
            false => ExecutedSums {
                instructions: plain(block.tally.insns()),
                loads: plain(block.tally.loads()),
                stores: plain(block.tally.stores()),
                string_millicycles: 0,
            },
        };
        let instructions = sums.instructions;
        add(VirtAddr(block.vaddr), events::INSTRUCTIONS, instructions);
        if !sums_are_exact {
            let work = instructions * instruction_millicycles + sums.string_millicycles;
            add(
                VirtAddr(block.vaddr),
                events::CYCLES,
                cycles_carry.add(work),
            );
        }
        for (ip, [loads, stores]) in accesses(catalogue, block, execs, [sums.loads, sums.stores]) {
            add(ip, events::LOADS, loads);
            add(ip, events::STORES, stores);
        }
    };
    state
        .uncounted
        .take_executions(catalogue, sums_are_exact, charge);
}

/// Returns loads and stores of `execs` executions of a block by instruction. `all` is their sum.
fn accesses(
    catalogue: &Catalogue,
    block: &Block,
    execs: u64,
    all: [u64; 2],
) -> Vec<(VirtAddr, [u64; 2])> {
    let of = |tally: Tally| [tally.loads(), tally.stores()].map(|n| execs * u64::from(n));
    let less = |[a, b]: [u64; 2], [c, d]: [u64; 2]| Some([a.checked_sub(c)?, b.checked_sub(d)?]);
    let start = VirtAddr(block.vaddr);
    let Some(mut varied) = less(all, of(block.tally)) else {
        // Faults cut executions short, and it is unknown which accesses are missing.
        return vec![(start, all)];
    };
    let mut rows: Vec<_> = catalogue
        .tallies(block)
        .map(|(ip, tally, is_plain)| (ip, of(tally), is_plain))
        .collect();
    let varying = rows.iter().filter(|row| !row.2).map(|row| row.1);
    let once_each = varying.fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
    // Accesses of x87 instructions occur once per execution, like plain ones. For repeated and
    // masked instructions the split is unknown: the first one that loads gets all loads, and the
    // first one that stores all stores.
    if once_each != varied {
        for (_, counts, _) in rows.iter_mut().filter(|row| !row.2) {
            for (count, left) in counts.iter_mut().zip(&mut varied) {
                *count = if *count > 0 { std::mem::take(left) } else { 0 };
            }
        }
        rows.push((start, varied, false));
    }
    rows.into_iter()
        .map(|(ip, counts, _)| (ip, counts))
        .collect()
}

/// Charges misses and stalls to the instruction that made the access. With `--sets`, they are kept
/// by group of sets, and each count stands for all sets of which one is simulated.
pub(super) fn take_misses(
    process: &mut Process,
    rows: &mut Vec<SiteCount>,
    sets: Option<&ClassSums>,
) {
    let pid = Pid(process.entry.pid);
    let ReplayedProgram {
        catalogue,
        sites,
        stalls,
        by_group,
        ..
    } = &mut process.state.program;
    let mapped = &process.state.sink.mapped;
    let carries = &mut process.state.sink.carries;
    for number in catalogue.numbers() {
        let Some(block) = catalogue.block(number) else {
            continue;
        };
        let code_ns = mapped.code_ns(block.mappings);
        for index in block.accesses.clone() {
            let place = SitePlace {
                pid,
                ip: catalogue.ip(number, index),
                code_ns,
            };
            match sets {
                Some(sets) => {
                    let one_in = u64::from(sets.sample.one_in);
                    for (set_group, misses) in by_group.take(index, sets.groups()) {
                        add_rows(rows, place, set_group, misses, one_in);
                    }
                }
                None => {
                    let Some(site) = sites.get_mut(index as usize) else {
                        break;
                    };
                    add_rows(rows, place, None, std::mem::take(site), 1);
                    let stalled = std::mem::take(&mut stalls[index as usize]);
                    if stalled.sum() > 0 {
                        add_counts(rows, place, None, &carries.stalls(&stalled));
                    }
                }
            }
        }
    }
}

/// Takes the costs of the lines of Python. The cycles are those of their instructions and stalls.
pub(super) fn python_rows(process: &mut Process, instruction_millicycles: u64) -> Vec<PythonLine> {
    let pid = Pid(process.entry.pid);
    let carries = &mut process.state.sink.python_carries;
    let mut rows = Vec::new();
    for sums in process.state.program.python.take() {
        let (instructions, costs) = (sums.instructions, &sums.costs);
        let own = instructions * instruction_millicycles + sums.string_millicycles;
        let [(_, stalled), stalls @ ..] = carries.stalls(&costs.stalls);
        let counts = [
            (events::INSTRUCTIONS, instructions),
            (events::CYCLES, stalled + carries.instructions.add(own)),
            (events::L1D_MISS, costs.l1d),
            (events::L2_MISS, costs.l2),
            (events::LLC_MISS, costs.llc),
            (events::DTLB_MISS, costs.dtlb),
            (events::DTLB_WALK, costs.walks),
            (events::DRAM_READ_BYTES, costs.dram_read_bytes),
            (events::DRAM_WRITE_BYTES, costs.dram_write_bytes),
        ];
        let counts = counts.into_iter().chain(stalls);
        let counts = counts.filter(|&(_, count)| count > 0);
        rows.extend(counts.map(|(event, count)| PythonLine {
            pid,
            file: sums.code.file.clone(),
            function: sums.code.name.clone(),
            line: sums.line,
            event,
            count,
        }));
    }
    rows
}

/// An instruction of a process, and the time since when its code was mapped.
#[derive(Clone, Copy)]
struct SitePlace {
    pid: Pid,
    ip: VirtAddr,
    code_ns: u64,
}

/// Appends a row for each event that occurred. Each count stands for `weight` events.
fn add_rows(
    rows: &mut Vec<SiteCount>,
    place: SitePlace,
    set_group: Option<u8>,
    misses: SiteMisses,
    weight: u64,
) {
    let counts = [
        (events::L1D_MISS, misses.l1d),
        (events::L2_MISS, misses.l2),
        (events::LLC_MISS, misses.llc),
        (events::DTLB_MISS, misses.dtlb),
        (events::DTLB_WALK, misses.walks),
        (events::DRAM_READ_BYTES, misses.dram_read_bytes),
        (events::DRAM_WRITE_BYTES, misses.dram_write_bytes),
    ];
    let counts = counts.map(|(event, count)| (event, u64::from(count) * weight));
    add_counts(rows, place, set_group, &counts);
}

fn add_counts(
    rows: &mut Vec<SiteCount>,
    place: SitePlace,
    set_group: Option<u8>,
    counts: &[(EventId, u64)],
) {
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    rows.extend(counts.map(|&(event, count)| SiteCount {
        pid: place.pid,
        ip: place.ip,
        event,
        count,
        set_group,
        code_ns: Some(place.code_ns),
    }));
}
