//! Number of references at each stack distance.

use std::collections::BTreeMap;

use super::batch::BATCH;
use super::pages::{Advise, advise_on};
use super::sys::fetch_early;

/// Number of references at each stack distance.
///
/// A reference has distance `d` if `d` distinct blocks were referenced since the previous reference
/// to its block. It hits in a least-recently-used memory of `n` blocks exactly if `d < n`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distances {
    /// Stack distance in blocks and its number of references. Ascending, without zero counts.
    pub counts: Vec<(u64, u64)>,
    /// First references to a block: compulsory misses in a memory of any size.
    pub compulsory: u64,
}

impl Distances {
    /// Number of all references.
    pub fn references(&self) -> u64 {
        self.compulsory + self.counts.iter().map(|c| c.1).sum::<u64>()
    }

    /// Adds the counts of another engine, for example of a thread or run with its own memory.
    pub fn merge(&mut self, other: &Distances) {
        let mut sums: BTreeMap<u64, u64> = self.counts.drain(..).collect();
        for &(distance, count) in &other.counts {
            *sums.entry(distance).or_default() += count;
        }
        self.counts = sums.into_iter().collect();
        self.compulsory += other.compulsory;
    }
}

/// Counts by distance in two bytes each. Overflows are counted separately, since few distances have
/// many references.
#[derive(Debug)]
pub(super) struct Histogram {
    low: Vec<u16>,
    /// Number of overflows by distance.
    wrapped: BTreeMap<u32, u64>,
    compulsory: u64,
    /// Number of known blocks. Every distance is below it.
    blocks: usize,
    advise: Option<Advise>,
}

/// Number of distances in a new histogram.
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

    /// Makes room for the distances of one more batch, even if all its blocks are new.
    pub(super) fn make_room(&mut self) {
        let needed = self.blocks + BATCH;
        if needed <= self.low.len() {
            return;
        }
        // The system supplies memory for pages that are written, so unused counters cost nothing.
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

    /// Adds known blocks whose first references are not counted.
    pub(super) fn add_blocks(&mut self, blocks: usize) {
        self.blocks += blocks;
    }

    #[inline(always)]
    pub(super) fn add(&mut self, distance: u32, references: u32) {
        // A batch has at most 64 references, which fit.
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

    /// Returns the counts and resets them. `hits` are added at the shortest distances.
    pub(super) fn take_distances(&mut self, hits: &[u64]) -> Distances {
        let counters_in_use = self.counters_in_use();
        // There can be millions of distances. Allocate once, and merge the overflows in order
        // instead of searching for each.
        let nonzero = self.low[..counters_in_use]
            .iter()
            .filter(|&&low| low > 0)
            .count();
        let mut counts = Vec::with_capacity(nonzero + hits.len() + self.wrapped.len());
        let mut wrapped = std::mem::take(&mut self.wrapped).into_iter().peekable();
        for (distance, low) in self.low[..counters_in_use].iter_mut().enumerate() {
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

    /// Bytes of the counters that may have been written.
    pub(super) fn bytes(&self) -> usize {
        self.counters_in_use() * size_of::<u16>()
    }

    /// Number of counters that may have been written.
    fn counters_in_use(&self) -> usize {
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
        let taken = histogram.take_distances(&[0; 4]);
        assert_eq!(taken.counts, [(7, u64::from(u16::MAX) + 64)]);
    }
}
