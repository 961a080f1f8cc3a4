//! Belady's MIN: evicts the object whose next reference is farthest away.
//!
//! A cached object is known by the position of its next reference in the trace. A set of positions
//! with a fast maximum is a tree of bitmaps with 64 children per node, so an eviction reads one
//! word per level: five for a trace of a billion requests. A heap needs a logarithm of the number
//! of cached objects for each reference.
//!
//! Objects that are never referenced again leave first. Their order does not change the number of
//! misses: the sum of their bytes and the free bytes stays the same.

use super::cache::PolicyCache;
use super::sizes::{Sizes, fits};

/// Position of an object that is not cached.
const ABSENT: u32 = u32::MAX;
/// Position of an object that is never referenced again.
pub(super) const NEVER: u32 = u32::MAX - 1;

/// A set of numbers below a limit.
struct PositionSet {
    /// Level 0 has a bit for each number, each further one a bit for each word below it.
    levels: Vec<Vec<u64>>,
}

impl PositionSet {
    fn new(limit: usize) -> PositionSet {
        let mut levels = Vec::new();
        let mut words = limit.div_ceil(64).max(1);
        loop {
            levels.push(vec![0; words]);
            if words == 1 {
                return PositionSet { levels };
            }
            words = words.div_ceil(64);
        }
    }

    fn insert(&mut self, position: u32) {
        let mut at = position as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
    }

    fn remove(&mut self, position: u32) {
        let mut at = position as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                return;
            }
            at /= 64;
        }
    }

    fn largest(&self) -> Option<u32> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level[at];
            at = at * 64 + 63usize.checked_sub(word.leading_zeros() as usize)?;
        }
        Some(at as u32)
    }
}

pub(super) struct Belady<'a, S> {
    /// Object of each request.
    ids: &'a [u32],
    /// Position of the next reference to the object of each request, or [`NEVER`].
    next: &'a [u32],
    /// Position of the next reference of each object.
    position: Vec<u32>,
    live: PositionSet,
    /// Objects that are never referenced again, including objects removed meanwhile.
    dead: Vec<u32>,
    sizes: S,
    used: u64,
    capacity: u64,
}

impl<'a, S: Sizes> Belady<'a, S> {
    pub(super) fn new(ids: &'a [u32], next: &'a [u32], objects: u32, capacity: u64) -> Self {
        Belady {
            ids,
            next,
            position: vec![ABSENT; objects as usize],
            live: PositionSet::new(ids.len()),
            dead: Vec::new(),
            sizes: S::new(objects),
            used: 0,
            capacity,
        }
    }

    fn set_position(&mut self, id: u32, position: u32) {
        self.position[id as usize] = position;
        match position {
            NEVER => self.dead.push(id),
            position => self.live.insert(position),
        }
    }

    fn evict(&mut self) -> bool {
        while let Some(id) = self.dead.pop() {
            if self.position[id as usize] == NEVER {
                self.remove(id);
                return true;
            }
        }
        let Some(farthest) = self.live.largest() else {
            return false;
        };
        self.remove(self.ids[farthest as usize]);
        true
    }
}

impl<S: Sizes> PolicyCache for Belady<'_, S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.position[id as usize] != ABSENT
    }

    fn refer(&mut self, id: u32, at: u32) -> bool {
        let hit = self.holds(id);
        if hit {
            self.live.remove(at);
            self.set_position(id, self.next[at as usize]);
        }
        hit
    }

    fn insert(&mut self, id: u32, size: u64, at: u32) {
        if size > self.capacity {
            return;
        }
        while !fits(self.used, size, self.capacity) {
            if !self.evict() {
                return;
            }
        }
        self.set_position(id, self.next[at as usize]);
        self.sizes.set(id, size);
        self.used += size;
    }

    fn remove(&mut self, id: u32) {
        let position = std::mem::replace(&mut self.position[id as usize], ABSENT);
        if position < NEVER {
            self.live.remove(position);
        }
        self.used -= self.sizes.of(id);
    }
}
