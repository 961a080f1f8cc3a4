//! Random eviction, with a seed.

use super::cache::PolicyCache;
use super::sizes::{Sizes, fits};

const ABSENT: u32 = u32::MAX;

pub(super) struct Random<S> {
    cached: Vec<u32>,
    /// Where each object is in `cached`.
    position: Vec<u32>,
    state: u64,
    sizes: S,
    used: u64,
    capacity: u64,
}

impl<S: Sizes> Random<S> {
    pub(super) fn new(objects: u32, capacity: u64, seed: u64) -> Random<S> {
        Random {
            cached: Vec::new(),
            position: vec![ABSENT; objects as usize],
            state: seed,
            sizes: S::new(objects),
            used: 0,
            capacity,
        }
    }

    fn evict(&mut self) -> bool {
        self.state = self.state.wrapping_add(1);
        let random = u128::from(super::requests::mix(self.state));
        let at = ((random * self.cached.len() as u128) >> 64) as usize;
        let Some(&id) = self.cached.get(at) else {
            return false;
        };
        self.remove(id);
        true
    }
}

impl<S: Sizes> PolicyCache for Random<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.position[id as usize] != ABSENT
    }

    #[inline]
    fn refer(&mut self, id: u32, _: u32) -> bool {
        self.holds(id)
    }

    #[inline]
    fn insert(&mut self, id: u32, size: u64, _: u32) {
        if size > self.capacity {
            return;
        }
        while !fits(self.used, size, self.capacity) {
            if !self.evict() {
                return;
            }
        }
        self.position[id as usize] = self.cached.len() as u32;
        self.cached.push(id);
        self.sizes.set(id, size);
        self.used += size;
    }

    fn remove(&mut self, id: u32) {
        let at = std::mem::replace(&mut self.position[id as usize], ABSENT);
        self.cached.swap_remove(at as usize);
        if let Some(&moved) = self.cached.get(at as usize) {
            self.position[moved as usize] = at;
        }
        self.used -= self.sizes.of(id);
    }
}
