//! CLOCK with one reference bit, as a list whose oldest end is the hand.

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

pub(super) struct Clock<S> {
    lists: Lists,
    list: ListId,
    referenced: Vec<bool>,
    sizes: S,
    used: u64,
    capacity: u64,
}

impl<S: Sizes> Clock<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> Clock<S> {
        let (lists, [list]) = Lists::new(objects);
        Clock {
            lists,
            list,
            referenced: vec![false; objects as usize],
            sizes: S::new(objects),
            used: 0,
            capacity,
        }
    }

    fn evict(&mut self) -> bool {
        while let Some(oldest) = self.lists.oldest(self.list) {
            if !std::mem::take(&mut self.referenced[oldest as usize]) {
                self.remove(oldest);
                return true;
            }
            self.lists.move_to_newest(self.list, oldest);
        }
        false
    }
}

impl<S: Sizes> PolicyCache for Clock<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.lists.holds(id)
    }

    #[inline]
    fn refer(&mut self, id: u32, _: u32) -> bool {
        let hit = self.lists.holds(id);
        if hit {
            self.referenced[id as usize] = true;
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
        self.referenced[id as usize] = false;
        self.sizes.set(id, size);
        self.used += size;
    }

    fn remove(&mut self, id: u32) {
        self.lists.unlink(id);
        self.used -= self.sizes.of(id);
    }
}
