//! Counts by place in the code, from what a process's blocks have gathered.

use std::sync::atomic::Ordering;

use memgauge_trace::{EventId, Pid, SiteCount, VirtAddr, catalogue as events};

use super::{Process, Running};
use crate::replay::Program;
use crate::session::Ring;
use crate::wire;

/// Takes in what a thread has counted of executions, where it does that itself.
pub(super) fn take_counts(program: &mut Program, ring: &Ring, thread: &mut Running) {
    let numbers = program.catalogue.numbers();
    let executions = ring.executions(numbers.len());
    thread.counted.resize(executions.len(), 0);
    for ((number, now), before) in numbers.zip(executions).zip(&mut thread.counted) {
        let now = now.load(Ordering::Relaxed);
        let gained = now.wrapping_sub(std::mem::replace(before, now));
        if let Some(block) = program.catalogue.block_mut(number).filter(|_| gained > 0) {
            block.execs = block.execs.wrapping_add(gained);
        }
    }
}

/// Executions: charged to the first instruction of each block. `told` where each says all
/// that was executed.
pub(super) fn take_blocks(process: &mut Process, rows: &mut Vec<SiteCount>, told: bool) {
    let pid = Pid(process.entry.pid);
    let kept = &mut process.kept;
    let catalogue = &mut kept.program.catalogue;
    for further in [wire::FURTHER_LOADS, wire::FURTHER_STORES] {
        kept.missing_runs -= catalogue.entries.take(further as usize) as i64;
    }
    // The hot loop counts these too, and nothing reads them; the counters must not
    // overflow.
    for other_line in [wire::OTHER_LINE_LOADS, wire::OTHER_LINE_STORES] {
        catalogue.entries.take(other_line as usize);
    }
    for number in catalogue.numbers() {
        let plain = catalogue.entries.take(number as usize);
        let Some(block) = catalogue.block_mut(number) else {
            kept.unknown += plain;
            continue;
        };
        let sums = std::mem::take(&mut block.sums);
        let execs = plain + std::mem::take(&mut block.execs);
        if execs == 0 {
            continue;
        }
        let counts = if block.is_special() && !told {
            sums
        } else {
            kept.missing_runs += match told {
                true => 0,
                false => (execs * block.further_runs(number as usize)) as i64,
            };
            [
                block.tally.insns(),
                block.tally.loads(),
                block.tally.stores(),
            ]
            .map(|n| execs * u64::from(n))
        };
        let events = [events::INSTRUCTIONS, events::LOADS, events::STORES];
        let ip = VirtAddr(block.vaddr);
        rows.extend(
            events
                .into_iter()
                .zip(counts)
                .filter(|c| c.1 > 0)
                .map(|(event, count)| SiteCount {
                    pid,
                    ip,
                    event,
                    count,
                }),
        );
    }
}

/// Misses: charged to the very instruction. Each counted stands for `one_in`.
pub(super) fn take_misses(process: &mut Process, rows: &mut Vec<SiteCount>, one_in: u32) {
    let pid = Pid(process.entry.pid);
    let Program {
        catalogue, sites, ..
    } = &mut process.kept.program;
    for number in catalogue.numbers() {
        let Some(block) = catalogue.block(number) else {
            continue;
        };
        for index in block.accesses.clone() {
            let Some(site) = sites.get_mut(index as usize) else {
                break;
            };
            let m = std::mem::take(site);
            let counts: [(EventId, u32); 7] = [
                (events::L1D_MISS, m.l1d),
                (events::L2_MISS, m.l2),
                (events::LLC_MISS, m.llc),
                (events::DTLB_MISS, m.dtlb),
                (events::DTLB_WALK, m.walks),
                (events::DRAM_READ_BYTES, m.dram_read_bytes),
                (events::DRAM_WRITE_BYTES, m.dram_write_bytes),
            ];
            let ip = catalogue.ip(number, index);
            rows.extend(
                counts
                    .iter()
                    .filter(|c| c.1 > 0)
                    .map(|&(event, count)| SiteCount {
                        pid,
                        ip,
                        event,
                        count: u64::from(count) * u64::from(one_in),
                    }),
            );
        }
    }
}
