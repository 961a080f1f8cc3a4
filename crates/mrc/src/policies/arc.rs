//! ARC.

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Nowhere,
    /// `T1`: cached, referenced once.
    Recent,
    /// `T2`: cached, referenced more often.
    Frequent,
    /// `B1`: evicted from `T1`.
    RecentGhost,
    /// `B2`: evicted from `T2`.
    FrequentGhost,
}

pub(super) struct Arc<S> {
    lists: Lists,
    ids: [ListId; 4],
    used: [u64; 4],
    queue_of: Vec<Queue>,
    /// Queue of the object that missed last, before it was removed from it.
    missed_in: Queue,
    /// Target size of `T1`, called `p` in the paper.
    target: f64,
    sizes: S,
    capacity: u64,
}

impl<S: Sizes> Arc<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> Arc<S> {
        let (lists, ids) = Lists::new(objects);
        Arc {
            lists,
            ids,
            used: [0; 4],
            queue_of: vec![Queue::Nowhere; objects as usize],
            missed_in: Queue::Nowhere,
            target: 0.0,
            sizes: S::new(objects),
            capacity,
        }
    }

    fn used(&self, queue: Queue) -> u64 {
        self.used[queue as usize - 1]
    }

    fn oldest(&self, queue: Queue) -> Option<u32> {
        self.lists.oldest(self.ids[queue as usize - 1])
    }

    fn push(&mut self, queue: Queue, id: u32) {
        self.lists.push_newest(self.ids[queue as usize - 1], id);
        self.used[queue as usize - 1] += self.sizes.of(id);
        self.queue_of[id as usize] = queue;
    }

    /// Moves the oldest object of a queue elsewhere. Returns whether there was one.
    fn shift(&mut self, from: Queue, to: Queue) -> bool {
        let Some(id) = self.oldest(from) else {
            return false;
        };
        self.remove(id);
        if to != Queue::Nowhere {
            self.push(to, id);
        }
        true
    }

    /// REPLACE of the paper.
    fn replace(&mut self) -> bool {
        let recent = self.used(Queue::Recent) as f64;
        let exceeds = recent > self.target
            || (recent == self.target && self.missed_in == Queue::FrequentGhost);
        if (recent > 0.0 && exceeds) || self.used(Queue::Frequent) == 0 {
            self.shift(Queue::Recent, Queue::RecentGhost)
        } else {
            self.shift(Queue::Frequent, Queue::FrequentGhost)
        }
    }

    /// Case IV of the paper: the object is in no queue.
    fn evict_for_new(&mut self, size: u64) -> bool {
        let once = self.used(Queue::Recent) + self.used(Queue::RecentGhost);
        if !fits(once, size, self.capacity) {
            if self.shift(Queue::RecentGhost, Queue::Nowhere) {
                return self.replace();
            }
            return self.shift(Queue::Recent, Queue::Nowhere);
        }
        let often = self.used(Queue::Frequent) + self.used(Queue::FrequentGhost);
        if once + often >= self.capacity.saturating_mul(2) {
            self.shift(Queue::FrequentGhost, Queue::Nowhere);
        }
        self.replace()
    }

    /// Step of the target: the ratio of two ghosts, at least 1. In bytes, steps that are multiplied
    /// by the object's size made 2 to 3 % more misses on a Twitter trace.
    fn step(&self, other: Queue, own: Queue) -> f64 {
        let ratio = self.used(other) as f64 / self.used(own) as f64;
        ratio.max(1.0)
    }
}

impl<S: Sizes> PolicyCache for Arc<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        matches!(self.queue_of[id as usize], Queue::Recent | Queue::Frequent)
    }

    fn refer(&mut self, id: u32, _: u32) -> bool {
        let queue = self.queue_of[id as usize];
        self.missed_in = queue;
        match queue {
            Queue::Nowhere => return false,
            Queue::Recent | Queue::Frequent => {
                self.remove(id);
                self.push(Queue::Frequent, id);
                return true;
            }
            Queue::RecentGhost => {
                let step = self.step(Queue::FrequentGhost, Queue::RecentGhost);
                self.target = (self.target + step).min(self.capacity as f64);
            }
            Queue::FrequentGhost => {
                let step = self.step(Queue::RecentGhost, Queue::FrequentGhost);
                self.target = (self.target - step).max(0.0);
            }
        }
        self.remove(id);
        false
    }

    fn insert(&mut self, id: u32, size: u64, _: u32) {
        if size > self.capacity {
            return;
        }
        let is_new = self.missed_in == Queue::Nowhere;
        while !fits(
            self.used(Queue::Recent) + self.used(Queue::Frequent),
            size,
            self.capacity,
        ) {
            let evicted = match is_new {
                true => self.evict_for_new(size),
                false => self.replace(),
            };
            if !evicted {
                return;
            }
        }
        self.sizes.set(id, size);
        let queue = match is_new {
            true => Queue::Recent,
            false => Queue::Frequent,
        };
        self.push(queue, id);
    }

    fn remove(&mut self, id: u32) {
        let queue = std::mem::replace(&mut self.queue_of[id as usize], Queue::Nowhere);
        if queue != Queue::Nowhere {
            self.lists.unlink(id);
            self.used[queue as usize - 1] -= self.sizes.of(id);
        }
    }
}
