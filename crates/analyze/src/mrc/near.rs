//! Short stack distances, of all references and in bounded memory.
//!
//! An exact engine that forgets, whenever it knows [`KNOWN`] blocks, all but the
//! [`NEAR`] referenced last. A block forgotten is at a distance of at least as many,
//! so shorter ones stay exact.
//!
//! That costs as much for each reference as a curve of all. So after the first
//! [`ALL`] references only one stretch of every [`EVERY`] is looked at, a random one.
//! Distances in the first quarter of a stretch are not counted: before it references
//! were left out. Stretches fall by turns to [`GROUPS`] groups, whose spread tells how
//! sure the rest is.

use super::exact::{Exact, Settings};

/// Distances below this are counted: blocks whose table stays in a second-level cache.
pub(super) const NEAR: usize = 1 << 14;
/// Groups of stretches.
pub(super) const GROUPS: usize = 8;
/// Blocks known before the others are forgotten: forgetting takes time for each.
const KNOWN: u64 = 4 * NEAR as u64;
/// References looked at together.
const CHUNK: usize = NEAR;
/// References that are all looked at.
const ALL: u64 = 1 << 24;
/// References in a stretch.
const STRETCH: u64 = 4 * CHUNK as u64;
/// Of so many stretches one is looked at.
const EVERY: u64 = 8;
/// With stretches in fewer groups, nothing is known of the references behind the first.
const FEWEST_GROUPS: usize = 3;

/// How many references have which short distance.
#[derive(Debug)]
pub(super) struct Near {
    engine: Exact,
    waiting: Vec<u64>,
    references: u64,
    all: u64,
    salt: u64,
    counting: To,
    counted: Counted,
}

/// What was counted.
#[derive(Debug)]
pub(super) struct Counted {
    /// Of the first references, all of which count.
    first: Vec<u64>,
    /// Of the stretches of each group, and their references.
    groups: [(Vec<u64>, u64); GROUPS],
    /// References behind the first.
    pub(super) rest: u64,
}

/// Where the counts of a chunk go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    First,
    Group(usize),
    /// Nowhere: the stack is only being built.
    Settle,
    /// The chunk is not looked at.
    Skip,
}

impl Near {
    /// Looks at the same stretches for the same `salt`.
    pub(super) fn new(block_bytes: u64, salt: u64, settings: Settings) -> Near {
        let settings = Settings {
            memory_bytes: usize::MAX,
            ..settings
        };
        Near {
            engine: Exact::new(block_bytes, settings),
            waiting: Vec::with_capacity(CHUNK),
            references: 0,
            all: ALL,
            salt,
            counting: To::First,
            counted: Counted {
                first: vec![0; NEAR],
                groups: std::array::from_fn(|_| (vec![0; NEAR], 0)),
                rest: 0,
            },
        }
    }

    /// Takes in references, by address.
    pub(super) fn feed(&mut self, addresses: &[u64]) {
        let mut left = addresses;
        while !left.is_empty() {
            let (some, others) = left.split_at(left.len().min(CHUNK - self.waiting.len()));
            self.waiting.extend_from_slice(some);
            left = others;
            if self.waiting.len() == CHUNK {
                self.chunk();
            }
        }
    }

    /// The stretch of each round that is looked at: any, by a hash of the round.
    fn chosen(&self, round: u64) -> u64 {
        let mixed = (round ^ self.salt << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xd134_2543_de82_ef95) >> 61
    }

    /// Where the counts of the next chunk go.
    fn place(&self) -> To {
        let Some(behind) = self.references.checked_sub(self.all) else {
            return To::First;
        };
        let (stretch, within) = (behind / STRETCH, behind % STRETCH);
        let round = stretch / EVERY;
        match (stretch % EVERY == self.chosen(round), within < STRETCH / 4) {
            (false, _) => To::Skip,
            (true, true) => To::Settle,
            (true, false) => To::Group(round as usize % GROUPS),
        }
    }

    fn chunk(&mut self) {
        let count = self.waiting.len() as u64;
        let place = self.place();
        if self.counting != place {
            self.count();
            self.counting = place;
        }
        self.references += count;
        if let To::Group(at) = place {
            self.counted.groups[at].1 += count;
        }
        self.counted.rest += if place == To::First { 0 } else { count };
        if place != To::Skip {
            // It is full only beyond 2³² blocks.
            let fed = self.engine.feed(&self.waiting);
            debug_assert!(fed.is_ok());
            if self.engine.blocks() > KNOWN {
                self.count();
                self.engine.forget(NEAR);
            }
        }
        self.waiting.clear();
    }

    /// Adds what the engine counted to where it belongs.
    fn count(&mut self) {
        let distances = self.engine.take_distances().unwrap_or_default();
        let counts = match self.counting {
            To::First => &mut self.counted.first,
            To::Group(at) => &mut self.counted.groups[at].0,
            To::Settle | To::Skip => return,
        };
        for (distance, references) in distances.counts {
            match counts.get_mut(distance as usize) {
                Some(count) => *count += references,
                None => break,
            }
        }
    }

    /// All references beyond those of short distances are farther, or the first to
    /// their block.
    pub(super) fn finish(mut self) -> Counted {
        self.chunk();
        self.count();
        self.counted
    }
}

impl Counted {
    /// References of each distance below [`NEAR`], as all groups or one of them tell;
    /// all speak for one without a stretch.
    pub(super) fn of(&self, group: Option<usize>) -> Vec<f64> {
        let group = group.filter(|&group| self.groups[group].1 > 0);
        let groups = self.groups.iter().enumerate();
        let groups = groups.filter(|&(at, _)| group.is_none_or(|group| at == group));
        let groups: Vec<&(Vec<u64>, u64)> = groups.map(|group| group.1).collect();
        let counted: u64 = groups.iter().map(|group| group.1).sum();
        let weight = self.rest as f64 / counted.max(1) as f64;
        let first = self.first.iter().enumerate();
        let sum = |(at, &first): (usize, &u64)| {
            let others: u64 = groups.iter().map(|group| group.0[at]).sum();
            first as f64 + weight * others as f64
        };
        first.map(sum).collect()
    }

    /// References of which nothing is known: those behind the first, where too few
    /// stretches tell how they differ.
    pub(super) fn unknown(&self) -> f64 {
        let groups = self.groups.iter().filter(|group| group.1 > 0).count();
        match groups < FEWEST_GROUPS {
            true => self.rest as f64,
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::numbers;
    use super::*;

    fn exact(stream: &[u64]) -> Vec<f64> {
        let mut exact = Exact::new(64, Settings::default());
        exact.feed(stream).unwrap();
        let mut counts = vec![0.0; NEAR];
        for (distance, count) in exact.finish().unwrap().counts {
            if let Some(slot) = counts.get_mut(distance as usize) {
                *slot = count as f64;
            }
        }
        counts
    }

    fn counted(stream: &[u64], all: u64) -> Counted {
        let mut near = Near::new(64, 1, Settings::default());
        near.all = all;
        stream.chunks(10_007).for_each(|part| near.feed(part));
        near.finish()
    }

    fn check(stream: &[u64]) {
        let counted = counted(stream, ALL);
        assert!(counted.of(None) == exact(stream));
        assert!(counted.of(Some(3)) == exact(stream));
    }

    #[test]
    fn short_distances_are_exact_whatever_is_forgotten_in_between() {
        let few = || numbers(1).take(50_000).map(|n| n % 3000);
        let many = || numbers(2).take(400_000).map(|n| n % 300_000);
        let skewed = numbers(3).take(400_000);
        let skewed = skewed.map(|n| (((n >> 11) as f64 / (1u64 << 53) as f64).powi(4) * 2e5) as u64);
        let to_and_fro = (0..150_000).chain((0..150_000).rev());
        let all = few().chain(many()).chain(few()).chain(skewed).chain(to_and_fro).chain(few());
        check(&all.map(|block| 0x7f00_0000_0000 + 64 * block).collect::<Vec<_>>());
    }

    #[test]
    fn the_farthest_short_distance_and_the_next_are_told_apart() {
        for blocks in [NEAR as u64, NEAR as u64 + 1] {
            check(&(0..6 * blocks).map(|n| n % blocks * 64).collect::<Vec<_>>());
        }
        check(&[]);
    }

    #[test]
    fn some_stretches_stand_for_the_rest() {
        // Half to a hundred blocks, half to so many that they are never near.
        let n = 10 * EVERY * STRETCH;
        let block = |i: u64| if i % 2 == 0 { i / 2 % 100 } else { 100 + i / 2 % 100_000 };
        let stream: Vec<u64> = (0..n).map(|i| 64 * block(i)).collect();
        let counted = counted(&stream, 1 << 16);
        for group in [None, Some(0), Some(7)] {
            let near: f64 = counted.of(group).iter().sum();
            assert!((near / n as f64 - 0.5).abs() < 1e-3, "{near}");
        }
        assert_eq!((counted.unknown(), counted.rest), (0.0, n - (1 << 16)));
    }
}
