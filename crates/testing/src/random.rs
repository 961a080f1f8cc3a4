//! Inputs that differ between runs of a test, and can be had again.

use std::env;
use std::hash::{DefaultHasher, Hash, Hasher, RandomState};
use std::{hash::BuildHasher, thread};

/// Environment variable with the seed. Without it, each test draws its own.
const SEED: &str = "MEMGAUGE_TEST_SEED";

/// Random numbers of a test (xorshift64*; Vigna, "An experimental exploration of Marsaglia's
/// xorshift generators, scrambled", 2016).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Numbers of the running test, which differ between runs unless `MEMGAUGE_TEST_SEED` is set.
    /// Prints how to repeat them. `name` tells several uses in one test apart.
    ///
    /// # Panics
    /// `MEMGAUGE_TEST_SEED` is not a number.
    pub fn of_test(name: &str) -> Random {
        let given = env::var(SEED).ok();
        let given = given.map(|text| text.parse().expect("MEMGAUGE_TEST_SEED is a number"));
        let seed: u64 = given.unwrap_or_else(|| RandomState::new().hash_one(name) >> 32);
        println!("inputs of this test: {SEED}={seed}");
        let mut hasher = DefaultHasher::new();
        (seed, thread::current().name(), name).hash(&mut hasher);
        Random::from_seed(hasher.finish())
    }

    /// The same numbers each time.
    pub fn from_seed(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next_u64() >> 11) % limit
    }

    /// An index of a list that is not empty.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number in `low..high`, spread evenly by logarithm.
    pub fn between(&mut self, low: f64, high: f64) -> u64 {
        let share = (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        (low * (high / low).powf(share)) as u64
    }

    /// One of a list that is not empty.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }
}
