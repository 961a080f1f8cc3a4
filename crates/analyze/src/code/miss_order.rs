//! Order in which a modelled run misses, and how much of each line it uses.
//!
//! The model charges a load miss by its order: the exposed part of its latency, or for a miss close
//! to the previous one, its latency divided by the misses in flight. A store miss costs its wait in
//! a full queue to memory. The stalled cycles of both are counted by the order of the miss. The
//! result is therefore the order of the accesses that cost time, not of the most frequent ones:
//! filling an array sequentially barely stalls, however many lines it brings.
//!
//! Stalls of writebacks are left out. A line leaves the cache long after the access that wrote it,
//! so they reveal nothing about the order.

use crate::code::hotspots::HotTable;
use crate::counts::Counts;

/// Minimum number of loads and stores per miss for which a line counts as reused. Two accesses of
/// 32 bytes use a whole line; a few other misses among them must not hide that.
const ACCESSES_PER_MISS: f64 = 1.5;

/// Order in which a run accesses the lines that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessOrder {
    /// In no order.
    Scattered,
    /// Sequential, with several accesses to most lines.
    Stream,
    /// Sequential, with about one access to a line, or an unknown number.
    Stride,
}

/// Returns the order of the misses that cause most of the stall, or `None` if no miss stalls or the
/// recording does not count stalls by cause.
pub(crate) fn order(totals: &Counts, functions: &HotTable) -> Option<AccessOrder> {
    let stall = |event: &str| totals.get(event).copied();
    let irregular = stall("stall.irregular")?;
    let regular = stall("stall.regular")?;
    match (regular >= irregular, uses_lines(functions)) {
        _ if irregular + regular == 0 => None,
        (false, _) => Some(AccessOrder::Scattered),
        (true, true) => Some(AccessOrder::Stream),
        (true, false) => Some(AccessOrder::Stride),
    }
}

/// True if at least half of the first-level misses are in functions with several loads and stores
/// per miss.
fn uses_lines(functions: &HotTable) -> bool {
    let (mut misses, mut misses_with_use) = (0, 0);
    for row in &functions.rows {
        let count = |event: &str| row.counts.get(event).copied().unwrap_or(0);
        let row_misses = count("l1d.miss");
        misses += row_misses;
        if (count("loads") + count("stores")) as f64 >= ACCESSES_PER_MISS * row_misses as f64 {
            misses_with_use += row_misses;
        }
    }
    misses > 0 && misses_with_use * 2 >= misses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::hotspots::HotRow;

    /// The order of a run with 1000 first-level misses, stalled for these cycles.
    fn found(irregular: u64, regular: u64, accesses_per_miss: u64) -> Option<AccessOrder> {
        let totals: Counts = [
            ("stall.irregular", irregular),
            ("stall.regular", regular),
            ("stall.writebacks", 1_000_000),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let counts: Counts = [("l1d.miss", 1000), ("loads", 1000 * accesses_per_miss)]
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        let row = HotRow {
            function: "f".to_owned(),
            counts,
            ..HotRow::default()
        };
        let functions = HotTable {
            rows: vec![row],
            ..HotTable::default()
        };
        order(&totals, &functions)
    }

    #[test]
    fn the_larger_stall_of_misses_decides_the_order() {
        assert_eq!(found(90_000, 10_000, 8), Some(AccessOrder::Scattered));
        assert_eq!(found(50_001, 50_000, 8), Some(AccessOrder::Scattered));
        assert_eq!(found(50_000, 50_000, 8), Some(AccessOrder::Stream));
        assert_eq!(found(0, 10_000, 2), Some(AccessOrder::Stream));
        assert_eq!(found(0, 10_000, 1), Some(AccessOrder::Stride));
    }

    #[test]
    fn stalls_of_writebacks_alone_have_no_order() {
        assert_eq!(found(0, 0, 8), None);
    }

    #[test]
    fn a_recording_without_stalls_by_cause_has_no_order() {
        assert_eq!(order(&Counts::new(), &HotTable::default()), None);
    }
}
