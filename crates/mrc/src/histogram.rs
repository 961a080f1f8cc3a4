//! How many references have which stack distance.

use std::collections::BTreeMap;

use super::batch::BATCH;
use super::pages::{Advise, advise_on};
use super::sys::fetch_early;

/// Counts of an engine: references by stack distance.
///
/// A reference of distance `d` has `d` distinct blocks referenced since the last
/// reference to its block. It hits in a least-recently-used memory of `n` blocks
/// exactly if `d < n`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    /// Stack distance in blocks and references of it, ascending, without zeros.
    pub counts: Vec<(u64, u64)>,
    /// References to blocks never referenced before: compulsory misses, in a
    /// memory of any size.
    pub compulsory: u64,
}

impl Distances {
    /// All references.
    pub fn references(&self) -> u64 {
        self.compulsory + self.counts.iter().map(|c| c.1).sum::<u64>()
    }

    /// Adds what another engine counted: of another thread or run with a memory
    /// of its own.
    pub fn merge(&mut self, other: &Distances) {
        let mut sums: BTreeMap<u64, u64> = self.counts.drain(..).collect();
        for &(distance, count) in &other.counts {
            *sums.entry(distance).or_default() += count;
        }
        self.counts = sums.into_iter().collect();
        self.compulsory += other.compulsory;
    }
}

/// Counts by distance, two bytes each: where one overflows, what it holds more
/// is kept apart.
#[derive(Debug)]
pub(super) struct Histogram {
    low: Vec<u16>,
    /// Distance → how often its counter wrapped.
    wrapped: BTreeMap<u32, u64>,
    compulsory: u64,
    /// First references ever: no distance reaches their number.
    blocks: usize,
    advise: Option<Advise>,
}

/// Distances a new histogram has room for.
const FIRST_ROOM: usize = 1 << 12;

impl Histogram {
    pub(super) fn new(advise: Option<Advise>) -> Histogram {
        Histogram {
            low: vec![0; FIRST_ROOM],
            wrapped: BTreeMap::new(),
            compulsory: 0,
            blocks: 0,
            advise,
        }
    }

    /// Makes room for what a batch may add, if it is the first reference to each
    /// of its blocks.
    pub(super) fn make_room(&mut self) {
        let needed = self.blocks + BATCH;
        if needed <= self.low.len() {
            return;
        }
        // Memory is taken where distances are counted, not for all of it.
        let mut larger = vec![0; 2 * needed];
        advise_on(self.advise, &larger);
        larger[..self.low.len()].copy_from_slice(&self.low);
        self.low = larger;
    }

    #[inline(always)]
    pub(super) fn fetch_early(&self, distance: u32) {
        if let Some(count) = self.low.get(distance as usize) {
            fetch_early(count);
        }
    }

    /// Counts first references to blocks.
    #[inline(always)]
    pub(super) fn add_new(&mut self, blocks: usize) {
        self.compulsory += blocks as u64;
        self.add_blocks(blocks);
    }

    /// Knows of blocks whose first references are not counted.
    pub(super) fn add_blocks(&mut self, blocks: usize) {
        self.blocks += blocks;
    }

    #[inline(always)]
    pub(super) fn add(&mut self, distance: u32, references: u32) {
        // At most as many as a batch has.
        let count = &mut self.low[distance as usize];
        let (sum, wraps) = count.overflowing_add(references as u16);
        *count = sum;
        if wraps {
            self.wrap(distance);
        }
    }

    #[cold]
    fn wrap(&mut self, distance: u32) {
        *self.wrapped.entry(distance).or_default() += 1;
    }

    /// Takes the counts, with `hits` at the smallest distances, and starts over.
    pub(super) fn take(&mut self, hits: &[u64]) -> Distances {
        let used = self.used();
        // There may be millions of distances: room for all at once, and no search for each.
        let some = self.low[..used].iter().filter(|&&low| low > 0).count();
        let mut counts = Vec::with_capacity(some + hits.len() + self.wrapped.len());
        let mut wrapped = std::mem::take(&mut self.wrapped).into_iter().peekable();
        for (distance, low) in self.low[..used].iter_mut().enumerate() {
            let mut count = u64::from(std::mem::take(low));
            if distance < hits.len() {
                count += hits[distance];
            }
            if let Some((_, wraps)) = wrapped.next_if(|w| w.0 as usize == distance) {
                count += wraps << u16::BITS;
            }
            if count > 0 {
                counts.push((distance as u64, count));
            }
        }
        Distances {
            counts,
            compulsory: std::mem::take(&mut self.compulsory),
        }
    }

    /// Bytes that may have been written to: the rest of the array takes no memory.
    pub(super) fn bytes(&self) -> usize {
        self.used() * size_of::<u16>()
    }

    /// Counters that a distance may have; one reaches the number of blocks never.
    fn used(&self) -> usize {
        self.low.len().min(self.blocks + FIRST_ROOM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_wraps_loses_nothing() {
        let mut histogram = Histogram::new(None);
        histogram.low[7] = u16::MAX - 1;
        (0..5).for_each(|_| histogram.add(7, 1));
        histogram.add(7, 60);
        let taken = histogram.take(&[0; 4]);
        assert_eq!(taken.counts, [(7, u64::from(u16::MAX) + 64)]);
    }
}
