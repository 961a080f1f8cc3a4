//! Maps keyed by IDs of counters and threads. Each sample needs a lookup, and the standard
//! library's hash would take longer than all other work on a sample.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map whose keys are one or two numbers.
pub type IdMap<K, V> = HashMap<K, V, Ids>;

/// Creates hashes that differ between runs, so that nobody can build a file with colliding IDs.
#[derive(Clone, Debug)]
pub struct Ids(u64);

impl Default for Ids {
    fn default() -> Ids {
        Ids(RandomState::new().hash_one(0u8))
    }
}

impl BuildHasher for Ids {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

/// Multiplies each number with a constant, and joins both halves of the product.
pub struct Folded(u64);

impl Folded {
    /// The golden ratio's digits, odd: any bit of a number moves many of the
    /// product.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
}

impl Hasher for Folded {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * u128::from(Folded::FACTOR);
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
