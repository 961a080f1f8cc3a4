//! Exact counts of short stack distances, in bounded memory.
//!
//! An [`Exact`] engine sees every reference. When it knows more than [`MAX_KNOWN_BLOCKS`]
//! blocks, it forgets all but the [`SHORT_LIMIT`] most recently referenced. A forgotten block
//! has a distance of at least [`SHORT_LIMIT`], so distances below that stay exact.
//!
//! Each reference costs as much as in a complete curve. Rejected: to look at some stretches of
//! the run only. The references between two stretches are unknown, so distances that span
//! the gap are wrong, and where few references go to many blocks, most distances span it.

use super::exact::{Exact, Settings};

/// Distances below this many blocks are counted. The table of this many blocks fits into a
/// second-level cache.
pub(super) const SHORT_LIMIT: usize = 1 << 14;
/// Number of known blocks above which the engine forgets. Forgetting visits every known block,
/// so it must be rare.
const MAX_KNOWN_BLOCKS: u64 = 4 * SHORT_LIMIT as u64;
/// References between two checks of the number of known blocks.
const CHECK_INTERVAL: usize = SHORT_LIMIT;

/// Counts references by stack distance, for distances below [`SHORT_LIMIT`].
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

    /// Adds references, given by address.
    pub(super) fn feed(&mut self, addresses: &[u64]) {
        for part in addresses.chunks(CHECK_INTERVAL) {
            // Fails only beyond 2³² blocks, and forgetting keeps far fewer.
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

    /// Returns the number of references at each distance below [`SHORT_LIMIT`]. All other
    /// references have longer distances or are the first to their block.
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
    fn forgetting_keeps_short_distances_exact() {
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
    fn distance_at_the_limit_is_not_counted() {
        for blocks in [SHORT_LIMIT as u64, SHORT_LIMIT as u64 + 1] {
            check(&(0..6 * blocks).map(|n| n % blocks * 64).collect::<Vec<_>>());
        }
        check(&[]);
    }
}
