//! In which order a modelled run misses, and how much it uses of the lines that come.
//!
//! No source counts regular misses. Yet the model charges a load's miss by its order: the
//! exposed part of its latency, or of a regular one its latency / misses in flight. So the
//! stall tells their share. A stall beyond that of irregular misses alone comes from lines
//! that are stored to, which wait only for the way to memory, in whatever order. How long
//! these can wait is known, too: what is beyond both is the loads'.

use memgauge_trace::MachineFacts;

use crate::counts::Counts;
use crate::hotspots::HotTable;

/// Share of the load misses that are regular, from which on the run goes in order.
const IN_ORDER: f64 = 0.5;
/// Loads and stores a miss, from which on a line is used more than once. Two accesses of
/// 32 bytes use a line to its end; a few other misses among them must not hide it.
const USES: f64 = 1.5;
/// Bytes of a line of any modelled cache.
const LINE_BYTES: f64 = 64.0;

/// How a run comes to the lines that it misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Here and there.
    Scattered,
    /// In order, with several accesses to most lines.
    Stream,
    /// In order, with about one access to a line; or nobody knows how many.
    Stride,
}

/// The order of the misses of a run that stalls for lines for `stalled` of its cycles.
pub(crate) fn order(
    totals: &Counts,
    machine: &MachineFacts,
    stalled: f64,
    functions: &HotTable,
) -> Order {
    let uses_lines = uses_lines(functions);
    match regular_share(totals, machine, stalled) {
        Some(Share::OfLoads(regular)) if regular >= IN_ORDER => match uses_lines {
            true => Order::Stream,
            false => Order::Stride,
        },
        Some(Share::Stores) if uses_lines => Order::Stream,
        _ => Order::Scattered,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    /// So much of the load misses is regular.
    OfLoads(f64),
    /// Loads alone cannot stall for as long: stores fill the way to memory.
    Stores,
}

/// `None` where the recording lacks the model's timing or the misses.
fn regular_share(totals: &Counts, machine: &MachineFacts, stalled: f64) -> Option<Share> {
    let total = |event: &str| totals.get(event).map(|&count| count as f64);
    let model = machine.model.as_ref()?;
    let number = |at: &str| model.pointer(at).and_then(|value| value.as_f64());
    let exposed = number("/timing/exposed_percent")? / 100.0;
    let in_flight = number("/timing/misses_in_flight")?.max(1.0);
    let first = number("/l1d/latency_cycles")?;
    let memory = number("/timing/dram_latency_ns")? * number("/frequency_hz")? / 1e9;
    let beyond = |event: &str, cycles: f64| total(event).unwrap_or(0.0) * (cycles - first).max(0.0);
    let latency = beyond("l2.hit", number("/l2/latency_cycles")?)
        + beyond("llc.hit", number("/llc/latency_cycles")?)
        + beyond("llc.miss", memory);
    let loads = total("l1d.load_miss")? / total("l1d.miss")?.max(1.0);
    let [irregular, regular] = [exposed, 1.0 / in_flight].map(|part| latency * loads * part);
    let observed = stalled * total("cycles")?;
    // A tenth more than the longest is more than rounding.
    let by_loads = match observed > irregular * 1.1 {
        true => {
            let line = LINE_BYTES / (machine.dram_bytes_per_s as f64).max(1.0);
            let line = line * number("/frequency_hz")?;
            let lines = total("llc.miss").unwrap_or(0.0) * (1.0 - loads)
                + total("llc.writeback").unwrap_or(0.0);
            let by_stores = lines * (memory / in_flight).max(line);
            (observed - by_stores).clamp(0.0, irregular)
        }
        false => observed,
    };
    // Stores wait for most of it.
    if by_loads * 2.0 < observed {
        return Some(Share::Stores);
    }
    let share = (irregular - by_loads) / (irregular - regular);
    (irregular > regular).then(|| Share::OfLoads(share.clamp(0.0, 1.0)))
}

/// Whether at least half of the first-level misses are in functions that make several
/// loads and stores for each.
fn uses_lines(functions: &HotTable) -> bool {
    let (mut all, mut used) = (0, 0);
    for row in &functions.rows {
        let of = |event: &str| row.counts.get(event).copied().unwrap_or(0);
        let misses = of("l1d.miss");
        all += misses;
        if (of("loads") + of("stores")) as f64 >= USES * misses as f64 {
            used += misses;
        }
    }
    all > 0 && used * 2 >= all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspots::HotRow;
    use serde_json::json;

    /// Memory is 104 cycles away, 100 beyond the first level: a load's irregular miss
    /// stalls 90 cycles, a regular one 10.
    fn machine() -> MachineFacts {
        MachineFacts {
            model: Some(json!({
                "frequency_hz": 1_000_000_000u64,
                "l1d": {"latency_cycles": 4}, "l2": {"latency_cycles": 14},
                "llc": {"latency_cycles": 44},
                "timing": {"dram_latency_ns": 104, "exposed_percent": 90, "misses_in_flight": 10}
            })),
            dram_bytes_per_s: 64_000_000_000,
            ..MachineFacts::default()
        }
    }

    /// The order of a run of 1000 misses, `loads` of them by loads, that stalls for
    /// `stalled` of 100 000 cycles and makes `accesses` a miss.
    fn found(loads: u64, stalled: f64, accesses: u64) -> Order {
        found_with(loads, 0, stalled, accesses)
    }

    /// The same with so many lines written to memory.
    fn found_with(loads: u64, writebacks: u64, stalled: f64, accesses: u64) -> Order {
        let totals: Counts = [
            ("cycles", 100_000),
            ("l1d.miss", 1000),
            ("l1d.load_miss", loads),
            ("llc.miss", 1000),
            ("llc.writeback", writebacks),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let counts: Counts = [("l1d.miss", 1000), ("loads", 1000 * accesses)]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        let row = HotRow {
            function: "f".to_owned(),
            inlined_into: Vec::new(),
            module: String::new(),
            file: None,
            line: None,
            offset: None,
            counts,
            value: 0,
            value_low: None,
            value_high: None,
            intervals: std::collections::BTreeMap::new(),
            share: None,
            samples: None,
            share_low: None,
            share_high: None,
        };
        let functions = HotTable {
            rows: vec![row],
            ..HotTable::default()
        };
        order(&totals, &machine(), stalled, &functions)
    }

    #[test]
    fn the_stall_of_a_load_miss_tells_its_order() {
        // 1000 loads: 90 000 cycles if all are irregular, 10 000 if all are regular.
        assert_eq!(found(1000, 0.90, 8), Order::Scattered);
        assert_eq!(found(1000, 0.51, 8), Order::Scattered);
        assert_eq!(found(1000, 0.49, 8), Order::Stream);
        assert_eq!(found(1000, 0.10, 8), Order::Stream);
        // Half of them: 45 000 and 5000.
        assert_eq!(found(500, 0.40, 8), Order::Scattered);
        assert_eq!(found(500, 0.20, 8), Order::Stream);
    }

    #[test]
    fn accesses_a_miss_tell_a_stream_from_a_stride() {
        assert_eq!(found(1000, 0.10, 1), Order::Stride);
        assert_eq!(found(1000, 0.10, 2), Order::Stream);
    }

    /// 1000 loads of 64 MiB in no order, after an array was written, with counters beside
    /// them in the same function. The array's lines stall a little more than the loads
    /// alone can; the loads stall for most of it.
    #[test]
    fn scattered_loads_after_stores_are_no_stream() {
        assert_eq!(found_with(730, 270, 0.73, 8), Order::Scattered);
        // The same stall of hardly a load is the stores'.
        assert_eq!(found_with(50, 950, 0.05, 8), Order::Stream);
    }

    #[test]
    fn stores_that_fill_the_way_to_memory_are_told_by_their_use_of_lines() {
        assert_eq!(found(0, 0.50, 8), Order::Stream);
        assert_eq!(found(0, 0.50, 1), Order::Scattered);
    }
}
