//! Short stack distances of every reference, in bounded memory.
//!
//! An exact engine that forgets, whenever it knows [`MAX_KNOWN_BLOCKS`] blocks, all but the
//! [`SHORT_LIMIT`] referenced last. A block forgotten is at a distance of at least as many,
//! so shorter ones stay exact.
//!
//! That costs as much for each reference as a curve of all. Rejected: to look at some
//! stretches of the run only. References between two stretches are not known, so
//! distances across are wrong. Where few references go to many blocks, those are most
//! of a stretch.

use super::exact::{Exact, Settings};

/// Distances below this are counted: blocks whose table stays in a second-level cache.
pub(super) const SHORT_LIMIT: usize = 1 << 14;
/// Blocks known before the others are forgotten: forgetting takes time for each.
const MAX_KNOWN_BLOCKS: u64 = 4 * SHORT_LIMIT as u64;
/// References between two looks at how many blocks are known.
const CHECK_INTERVAL: usize = SHORT_LIMIT;

/// How many references have which short distance.
#[derive(Debug)]
pub(super) struct ShortDistances {
    engine: Exact,
    counts: Vec<u64>,
}

impl ShortDistances {
    pub(super) fn new(block_bytes: u64, settings: Settings) -> ShortDistances {
        let settings = Settings {
            memory_bytes: usize::MAX,
            ..settings
        };
        ShortDistances {
            engine: Exact::new(block_bytes, settings),
            counts: vec![0; SHORT_LIMIT],
        }
    }

    /// Takes references, by address.
    pub(super) fn feed(&mut self, addresses: &[u64]) {
        for part in addresses.chunks(CHECK_INTERVAL) {
            // It is full only beyond 2³² blocks.
            let fed = self.engine.feed(part);
            debug_assert!(fed.is_ok());
            if self.engine.blocks() > MAX_KNOWN_BLOCKS {
                self.count();
                self.engine.forget(SHORT_LIMIT);
            }
        }
    }

    fn count(&mut self) {
        let distances = self.engine.take_distances().unwrap_or_default();
        for (distance, references) in distances.counts {
            match self.counts.get_mut(distance as usize) {
                Some(count) => *count += references,
                None => break,
            }
        }
    }

    /// References of each distance below [`SHORT_LIMIT`]. All others are farther, or the
    /// first to their block.
    pub(super) fn finish(mut self) -> Vec<u64> {
        self.count();
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::numbers;
    use super::*;

    fn check(stream: &[u64]) {
        let mut near = ShortDistances::new(64, Settings::default());
        stream.chunks(10_007).for_each(|part| near.feed(part));
        let mut exact = Exact::new(64, Settings::default());
        exact.feed(stream).unwrap();
        let mut expected = vec![0; SHORT_LIMIT];
        for (distance, count) in exact.finish().unwrap().counts {
            if let Some(slot) = expected.get_mut(distance as usize) {
                *slot = count;
            }
        }
        assert!(near.finish() == expected);
    }

    #[test]
    fn short_distances_are_exact_whatever_is_forgotten_in_between() {
        let few = || numbers(1).take(50_000).map(|n| n % 3000);
        let many = || numbers(2).take(400_000).map(|n| n % 300_000);
        let skewed = numbers(3).take(400_000);
        let skewed =
            skewed.map(|n| (((n >> 11) as f64 / (1u64 << 53) as f64).powi(4) * 2e5) as u64);
        let to_and_fro = (0..150_000).chain((0..150_000).rev());
        let all = few()
            .chain(many())
            .chain(few())
            .chain(skewed)
            .chain(to_and_fro)
            .chain(few());
        check(
            &all.map(|block| 0x7f00_0000_0000 + 64 * block)
                .collect::<Vec<_>>(),
        );
    }

    #[test]
    fn the_farthest_short_distance_and_the_next_are_told_apart() {
        for blocks in [SHORT_LIMIT as u64, SHORT_LIMIT as u64 + 1] {
            check(&(0..6 * blocks).map(|n| n % blocks * 64).collect::<Vec<_>>());
        }
        check(&[]);
    }
}
