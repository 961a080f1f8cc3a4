//! Number of distinct blocks of a stream, in bounded memory.
//!
//! Keeps the set of hashes below a limit and halves the limit when the set reaches
//! [`MAX_HASHES`]. The count is exact below [`MAX_HASHES`] blocks. Beyond that the standard
//! error is 0.3 to 0.6 %: at most 1 / √n for a set of n hashes, between half and all of
//! [`MAX_HASHES`].
//!
//! Rejected: HyperLogLog. It takes less memory for the same error but must process every
//! reference. Here references whose hash is above the limit are skipped.

/// Maximum number of hashes kept; a power of two.
const MAX_HASHES: usize = 1 << 16;
/// Slots of the table.
const SLOTS: usize = 2 * MAX_HASHES;
/// Marks an empty slot. Slots store a 32-bit hash plus one.
const FREE: u32 = 0;

/// A set of 32-bit hashes below a limit.
#[derive(Clone, Debug)]
pub(super) struct Distinct {
    slots: Vec<u32>,
    held: usize,
    limit: u64,
}

impl Distinct {
    pub(super) fn new() -> Distinct {
        Distinct {
            slots: vec![FREE; SLOTS],
            held: 0,
            limit: 1 << 32,
        }
    }

    /// Hashes from this value on, out of 2³², are not counted.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    #[inline(always)]
    pub(super) fn observe(&mut self, hash: u64) {
        if hash < self.limit {
            // The highest hash wraps to 0 and is stored as hash 0: an error of one in 2³².
            self.insert((hash as u32).wrapping_add(1).max(1));
        }
    }

    #[inline(always)]
    fn insert(&mut self, value: u32) {
        let mut at = value.wrapping_mul(0x9e37_79b1) as usize >> 15;
        loop {
            match self.slots[at % SLOTS] {
                FREE => break,
                held if held == value => return,
                _ => at += 1,
            }
        }
        self.slots[at % SLOTS] = value;
        self.held += 1;
        if self.held == MAX_HASHES {
            self.halve();
        }
    }

    #[cold]
    fn halve(&mut self) {
        self.limit /= 2;
        let all = std::mem::replace(&mut self.slots, vec![FREE; SLOTS]);
        self.held = 0;
        let low = |value: &u32| *value != FREE && u64::from(*value) <= self.limit;
        let values: Vec<u32> = all.into_iter().filter(low).collect();
        values.into_iter().for_each(|value| self.insert(value));
    }

    /// Adds the hashes of another set. The result is that of observing both streams.
    pub(super) fn merge(&mut self, other: &Distinct) {
        while self.limit > other.limit {
            self.halve();
        }
        for hash in other.hashes() {
            self.observe(u64::from(hash));
        }
    }

    /// The kept hashes in ascending order.
    pub(super) fn hashes(&self) -> Vec<u32> {
        let kept = self.slots.iter().filter(|&&value| value != FREE);
        let mut hashes: Vec<u32> = kept.map(|value| value - 1).collect();
        hashes.sort_unstable();
        hashes
    }

    /// A set of hashes below a limit. `None` if no stream gives it.
    pub(super) fn from_hashes(limit: u64, hashes: &[u64]) -> Option<Distinct> {
        let is_ascending = hashes.is_sorted_by(|one, other| one < other);
        let is_below = hashes.last().is_none_or(|&last| last < limit);
        let is_limit = limit.is_power_of_two() && limit <= 1 << 32;
        if !(is_limit && is_below && is_ascending && hashes.len() < MAX_HASHES) {
            return None;
        }
        let mut set = Distinct {
            limit,
            ..Distinct::new()
        };
        hashes.iter().for_each(|&hash| set.observe(hash));
        Some(set)
    }

    /// Relative variance of the estimate.
    pub(super) fn variance(&self) -> f64 {
        let sampled_share = self.limit as f64 / (1u64 << 32) as f64;
        (1.0 - sampled_share) / self.held.max(1) as f64
    }

    /// Returns the estimated number of distinct blocks of the stream.
    pub(super) fn estimate(&self) -> f64 {
        self.held as f64 * ((1u64 << 32) as f64 / self.limit as f64)
    }
}

impl PartialEq for Distinct {
    fn eq(&self, other: &Distinct) -> bool {
        self.limit == other.limit && self.hashes() == other.hashes()
    }
}

impl Eq for Distinct {}

#[cfg(test)]
mod tests {
    use super::super::tests::numbers;
    use super::*;

    #[test]
    fn small_counts_are_exact_and_large_ones_within_one_per_cent() {
        let count = |n: usize| {
            let mut distinct = Distinct::new();
            let hashes = || numbers(9).take(n).map(|n| n >> 32);
            hashes().chain(hashes()).for_each(|h| distinct.observe(h));
            distinct.estimate()
        };
        assert_eq!(count(5000), 5000.0);
        let many = count(2_000_000);
        assert!((many / 2e6 - 1.0).abs() < 0.01, "{many}");
    }
}
