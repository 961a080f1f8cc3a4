//! Cycles of a run by use: work, and waiting by level.
//!
//! The model charges each stalled cycle to one reason, so the parts add up to all cycles. This is
//! the memory-bound part of top-down analysis at level 3: *L2*, *LLC* and *DRAM* are Intel's
//! `L2_Bound`, `L3_Bound` and `DRAM_Bound` latency, *queue* is `MEM_Bandwidth`, *stores* is
//! `Store_Bound`, *TLB* is `DTLB_Load`, *sharing* is `Contested_Accesses` and `Data_Sharing`. All else, which top-down divides into retiring, front
//! end, bad speculation and core, is one part here, because the model has no front end and no
//! execution units.

use memgauge_trace::{EventId, catalogue};
use serde::Serialize;

use crate::counts::Counts;

/// Use of cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeUse {
    /// Executing instructions whose data is available.
    Work,
    /// Waiting for the second-level cache.
    L2,
    /// Waiting for the last-level cache.
    Llc,
    /// Waiting for memory.
    Dram,
    /// Waiting in the queue to memory, beyond its latency.
    Queue,
    /// Waiting for address translation.
    Tlb,
    /// Waiting because stores and writebacks fill the path to memory.
    Stores,
    /// Waiting for a line that another core had modified.
    Sharing,
}

/// Cycles of one use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimePart {
    /// Use of the cycles.
    pub on: TimeUse,
    /// Cycles of all threads together.
    pub cycles: u64,
    /// `cycles` / all cycles, in 0..=1.
    pub share: f64,
}

impl TimeUse {
    /// Use of the cycles that one of [`catalogue::STALLS`] counts.
    pub fn of_stall(event: EventId) -> Option<TimeUse> {
        Some(match event {
            catalogue::STALL_L2 => TimeUse::L2,
            catalogue::STALL_LLC => TimeUse::Llc,
            catalogue::STALL_DRAM => TimeUse::Dram,
            catalogue::STALL_QUEUE => TimeUse::Queue,
            catalogue::STALL_TLB => TimeUse::Tlb,
            catalogue::STALL_STORES => TimeUse::Stores,
            catalogue::STALL_SHARING => TimeUse::Sharing,
            _ => return None,
        })
    }
}

/// Splits the cycles of a run, work first. Empty if the source does not record the stalls of each
/// level.
pub(crate) fn time_parts(totals: &Counts) -> Vec<TimePart> {
    let get = |event| totals.get(catalogue::name(event)?).copied();
    let stalls = catalogue::STALLS.map(|event| Some((TimeUse::of_stall(event)?, get(event)?)));
    let (Some(cycles), true) = (get(catalogue::CYCLES), stalls.iter().all(Option::is_some)) else {
        return Vec::new();
    };
    if cycles == 0 {
        return Vec::new();
    }
    let stalled: u64 = stalls.iter().flatten().map(|(_, cycles)| cycles).sum();
    let work = (TimeUse::Work, cycles.saturating_sub(stalled));
    let parts = std::iter::once(work).chain(stalls.into_iter().flatten());
    parts
        .map(|(on, part)| TimePart {
            on,
            cycles: part,
            share: part as f64 / cycles as f64,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(counts: &[(&str, u64)]) -> Counts {
        let counts = counts.iter();
        counts.map(|&(name, n)| (name.to_owned(), n)).collect()
    }

    #[test]
    fn parts_add_up_to_all_cycles() {
        let totals = totals(&[
            ("cycles", 1000),
            ("stall.l2", 50),
            ("stall.llc", 100),
            ("stall.dram", 400),
            ("stall.queue", 0),
            ("stall.tlb", 30),
            ("stall.stores", 20),
            ("stall.sharing", 0),
        ]);
        let parts = time_parts(&totals);
        assert_eq!(parts.iter().map(|part| part.cycles).sum::<u64>(), 1000);
        assert_eq!((parts[0].on, parts[0].cycles), (TimeUse::Work, 400));
        assert_eq!((parts[3].on, parts[3].share), (TimeUse::Dram, 0.4));
    }

    #[test]
    fn cycles_without_their_stalls_are_not_divided() {
        assert_eq!(time_parts(&totals(&[("cycles", 1000)])), []);
    }
}
