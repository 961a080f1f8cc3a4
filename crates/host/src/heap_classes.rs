//! Number of a process's allocations by size and lifetime, both in powers of two.

use memgauge_trace::{HeapClassRow, Pid};

/// Sizes of 0 to 64 bits.
const SIZES: usize = 65;
/// Lifetimes of 0 to 64 bits, and that of allocations that were not freed.
const LIFETIMES: usize = 66;
const UNFREED: usize = LIFETIMES - 1;

/// Allocations by size and lifetime. The table of 34 KiB is there from the first allocation on.
#[derive(Clone, Debug, Default)]
pub struct HeapClasses(Vec<f64>);

/// Bits of a number: 0 for 0.
fn bits(number: u64) -> usize {
    (u64::BITS - number.leading_zeros()) as usize
}

impl HeapClasses {
    /// Adds allocations of a size that were freed after `lifetime_ns`, or not at all.
    ///
    /// A sampled allocation stands for several. Sums of exact counts are exact up to 2^53.
    pub fn add(&mut self, bytes: u64, lifetime_ns: Option<u64>, allocations: f64) {
        if self.0.is_empty() {
            self.0.resize(SIZES * LIFETIMES, 0.0);
        }
        self.0[bits(bytes) * LIFETIMES + lifetime_ns.map_or(UNFREED, bits)] += allocations;
    }

    /// Returns the rows by size and lifetime, those that were not freed first.
    pub fn rows(&self, pid: Pid) -> Vec<HeapClassRow> {
        let lifetimes = || [UNFREED].into_iter().chain(0..UNFREED);
        let classes = (0..SIZES).flat_map(|size| lifetimes().map(move |lifetime| (size, lifetime)));
        let row = |(size, lifetime): (usize, usize)| {
            let allocations = self.0.get(size * LIFETIMES + lifetime)?.round() as u64;
            (allocations > 0).then(|| HeapClassRow {
                pid,
                size_bits: size as u8,
                lifetime_bits: (lifetime < UNFREED).then_some(lifetime as u8),
                allocations,
            })
        };
        classes.filter_map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_and_lifetime_has_a_class() {
        let mut classes = HeapClasses::default();
        for (bytes, lifetime_ns) in [
            (0, Some(0)),
            (1, Some(1)),
            (4, Some(8)),
            (7, None),
            (u64::MAX, Some(u64::MAX)),
        ] {
            classes.add(bytes, lifetime_ns, 1.0);
        }
        classes.add(5, None, 1.0);
        let rows = classes.rows(Pid(1));
        let rows: Vec<_> = rows
            .iter()
            .map(|row| (row.size_bits, row.lifetime_bits, row.allocations))
            .collect();
        let expected = [
            (0, Some(0), 1),
            (1, Some(1), 1),
            (3, None, 2),
            (3, Some(4), 1),
            (64, Some(64), 1),
        ];
        assert_eq!(rows, expected);
    }
}
