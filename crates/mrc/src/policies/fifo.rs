//! FIFO.

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

pub(super) struct Fifo<S> {
    lists: Lists,
    list: ListId,
    sizes: S,
    used: u64,
    capacity: u64,
}

impl<S: Sizes> Fifo<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> Fifo<S> {
        let (lists, [list]) = Lists::new(objects);
        Fifo {
            lists,
            list,
            sizes: S::new(objects),
            used: 0,
            capacity,
        }
    }
}

impl<S: Sizes> PolicyCache for Fifo<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.lists.holds(id)
    }

    #[inline]
    fn refer(&mut self, id: u32, _: u32) -> bool {
        self.lists.holds(id)
    }

    #[inline]
    fn insert(&mut self, id: u32, size: u64, _: u32) {
        if size > self.capacity {
            return;
        }
        while !fits(self.used, size, self.capacity) {
            let Some(oldest) = self.lists.oldest(self.list) else {
                return;
            };
            self.remove(oldest);
        }
        self.lists.push_newest(self.list, id);
        self.sizes.set(id, size);
        self.used += size;
    }

    fn remove(&mut self, id: u32) {
        self.lists.unlink(id);
        self.used -= self.sizes.of(id);
    }
}
