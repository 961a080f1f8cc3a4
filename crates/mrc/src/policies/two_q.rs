//! 2Q, full version: `A1in` has a quarter of the capacity, `A1out` remembers half of it.

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Nowhere,
    /// `A1in`: objects referenced for the first time, a FIFO.
    New,
    /// `A1out`: ids of objects that left `A1in`.
    Remembered,
    /// `Am`: objects referenced while remembered, an LRU list.
    Frequent,
}

pub(super) struct TwoQ<S> {
    lists: Lists,
    new: ListId,
    remembered: ListId,
    frequent: ListId,
    queue_of: Vec<Queue>,
    was_remembered: bool,
    sizes: S,
    new_used: u64,
    remembered_used: u64,
    frequent_used: u64,
    new_capacity: u64,
    remembered_capacity: u64,
    capacity: u64,
}

impl<S: Sizes> TwoQ<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> TwoQ<S> {
        let (lists, [new, remembered, frequent]) = Lists::new(objects);
        TwoQ {
            lists,
            new,
            remembered,
            frequent,
            queue_of: vec![Queue::Nowhere; objects as usize],
            was_remembered: false,
            sizes: S::new(objects),
            new_used: 0,
            remembered_used: 0,
            frequent_used: 0,
            // At least one object, or a small cache would hold nothing.
            new_capacity: (capacity / 4).max(1),
            remembered_capacity: capacity / 2,
            capacity,
        }
    }

    fn evict(&mut self) -> bool {
        if self.frequent_used > 0 && self.new_used <= self.new_capacity {
            return self.evict_frequent();
        }
        let Some(oldest) = self.lists.oldest(self.new) else {
            return self.evict_frequent();
        };
        self.remove(oldest);
        self.remember(oldest);
        true
    }

    fn evict_frequent(&mut self) -> bool {
        let oldest = self.lists.oldest(self.frequent);
        oldest.inspect(|&id| self.remove(id)).is_some()
    }

    fn remember(&mut self, id: u32) {
        let size = self.sizes.of(id);
        if size > self.remembered_capacity {
            return;
        }
        while !fits(self.remembered_used, size, self.remembered_capacity) {
            let Some(oldest) = self.lists.oldest(self.remembered) else {
                return;
            };
            self.forget(oldest);
        }
        self.lists.push_newest(self.remembered, id);
        self.queue_of[id as usize] = Queue::Remembered;
        self.remembered_used += size;
    }

    fn forget(&mut self, id: u32) {
        self.lists.unlink(id);
        self.queue_of[id as usize] = Queue::Nowhere;
        self.remembered_used -= self.sizes.of(id);
    }
}

impl<S: Sizes> PolicyCache for TwoQ<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        matches!(self.queue_of[id as usize], Queue::New | Queue::Frequent)
    }

    fn refer(&mut self, id: u32, _: u32) -> bool {
        let queue = self.queue_of[id as usize];
        self.was_remembered = queue == Queue::Remembered;
        match queue {
            Queue::Nowhere => false,
            Queue::New => true,
            Queue::Remembered => {
                self.forget(id);
                false
            }
            Queue::Frequent => {
                self.lists.move_to_newest(self.frequent, id);
                true
            }
        }
    }

    fn insert(&mut self, id: u32, size: u64, _: u32) {
        if size > self.new_capacity {
            return;
        }
        while !fits(self.new_used + self.frequent_used, size, self.capacity) {
            if !self.evict() {
                return;
            }
        }
        self.sizes.set(id, size);
        if self.was_remembered {
            while !fits(
                self.frequent_used,
                size,
                self.capacity - self.new_capacity.min(self.capacity),
            ) {
                if !self.evict_frequent() {
                    return;
                }
            }
            self.lists.push_newest(self.frequent, id);
            self.queue_of[id as usize] = Queue::Frequent;
            self.frequent_used += size;
        } else {
            self.lists.push_newest(self.new, id);
            self.queue_of[id as usize] = Queue::New;
            self.new_used += size;
        }
    }

    fn remove(&mut self, id: u32) {
        let size = self.sizes.of(id);
        match std::mem::replace(&mut self.queue_of[id as usize], Queue::Nowhere) {
            Queue::New => self.new_used -= size,
            Queue::Frequent => self.frequent_used -= size,
            Queue::Remembered => self.remembered_used -= size,
            Queue::Nowhere => return,
        }
        self.lists.unlink(id);
    }
}
