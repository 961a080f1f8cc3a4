//! SIEVE.

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

pub(super) struct Sieve<S> {
    lists: Lists,
    list: ListId,
    visited: Vec<bool>,
    /// The next object to examine. `None` means the oldest.
    hand: Option<u32>,
    sizes: S,
    used: u64,
    capacity: u64,
}

impl<S: Sizes> Sieve<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> Sieve<S> {
        let (lists, [list]) = Lists::new(objects);
        Sieve {
            lists,
            list,
            visited: vec![false; objects as usize],
            hand: None,
            sizes: S::new(objects),
            used: 0,
            capacity,
        }
    }

    fn evict(&mut self) -> bool {
        let mut hand = self.hand.or_else(|| self.lists.oldest(self.list));
        while let Some(id) = hand {
            if !std::mem::take(&mut self.visited[id as usize]) {
                self.hand = Some(id);
                self.remove(id);
                return true;
            }
            hand = self
                .lists
                .newer(id)
                .or_else(|| self.lists.oldest(self.list));
        }
        false
    }
}

impl<S: Sizes> PolicyCache for Sieve<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.lists.holds(id)
    }

    #[inline]
    fn refer(&mut self, id: u32, _: u32) -> bool {
        let hit = self.lists.holds(id);
        if hit {
            self.visited[id as usize] = true;
        }
        hit
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
        self.lists.push_newest(self.list, id);
        self.visited[id as usize] = false;
        self.sizes.set(id, size);
        self.used += size;
    }

    fn remove(&mut self, id: u32) {
        if self.hand == Some(id) {
            self.hand = self.lists.newer(id);
        }
        self.lists.unlink(id);
        self.used -= self.sizes.of(id);
    }
}
