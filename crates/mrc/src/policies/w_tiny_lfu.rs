//! W-TinyLFU: an LRU window with a hundredth of the capacity in front of a segmented LRU of which
//! four fifths are protected. An object that leaves the window enters the main cache only if it
//! was referenced more often than each object that would have to leave.
//!
//! The reference counts are exact, one per object with a maximum of 15, instead of a sketch with
//! collisions. All are halved after ten references per cached object. A count is halved only when
//! it is read, or a small cache would spend its time halving.

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

const MAX_COUNT: u32 = 15;
/// References per cached object after which counts are halved.
const SAMPLE_FACTOR: u64 = 10;

/// References to an object, halved up to the period in which they were last read.
#[derive(Clone, Copy, Default)]
struct Count {
    references: u8,
    period: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Nowhere,
    Window,
    Probation,
    Protected,
}

pub(super) struct WTinyLfu<S> {
    lists: Lists,
    ids: [ListId; 3],
    used: [u64; 3],
    queue_of: Vec<Queue>,
    counts: Vec<Count>,
    /// Number of times that all counts were halved.
    period: u32,
    /// References in this period and half of those in the previous one.
    counted: u64,
    cached: u64,
    sizes: S,
    window_capacity: u64,
    main_capacity: u64,
    protected_capacity: u64,
}

impl<S: Sizes> WTinyLfu<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> WTinyLfu<S> {
        let (lists, ids) = Lists::new(objects);
        let window_capacity = (capacity / 100).max(1);
        let main_capacity = capacity - window_capacity;
        WTinyLfu {
            lists,
            ids,
            used: [0; 3],
            queue_of: vec![Queue::Nowhere; objects as usize],
            counts: vec![Count::default(); objects as usize],
            period: 0,
            counted: 0,
            cached: 0,
            sizes: S::new(objects),
            window_capacity,
            main_capacity,
            protected_capacity: (main_capacity as f64 * 0.8) as u64,
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
        self.cached += 1;
    }

    fn references(&self, id: u32) -> u32 {
        let count = self.counts[id as usize];
        let halvings = self.period.wrapping_sub(count.period);
        u32::from(count.references)
            .checked_shr(halvings)
            .unwrap_or(0)
    }

    fn count(&mut self, id: u32) {
        self.counts[id as usize] = Count {
            references: (self.references(id) + 1).min(MAX_COUNT) as u8,
            period: self.period,
        };
        self.counted += 1;
        if self.counted >= SAMPLE_FACTOR * self.cached.max(1) {
            self.period = self.period.wrapping_add(1);
            self.counted /= 2;
        }
    }

    /// Moves an object that left the window to the main cache, or drops it.
    fn admit(&mut self, candidate: u32) {
        let size = self.sizes.of(candidate);
        if size > self.main_capacity {
            return;
        }
        while !fits(
            self.used(Queue::Probation) + self.used(Queue::Protected),
            size,
            self.main_capacity,
        ) {
            let victim = self.oldest(Queue::Probation);
            let Some(victim) = victim.or_else(|| self.oldest(Queue::Protected)) else {
                return;
            };
            if self.references(candidate) <= self.references(victim) {
                return;
            }
            self.remove(victim);
        }
        self.push(Queue::Probation, candidate);
    }
}

impl<S: Sizes> PolicyCache for WTinyLfu<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.queue_of[id as usize] != Queue::Nowhere
    }

    fn refer(&mut self, id: u32, _: u32) -> bool {
        self.count(id);
        let queue = self.queue_of[id as usize];
        match queue {
            Queue::Nowhere => return false,
            Queue::Window | Queue::Protected => {
                self.lists.move_to_newest(self.ids[queue as usize - 1], id);
            }
            Queue::Probation => {
                self.remove(id);
                self.push(Queue::Protected, id);
                while self.used(Queue::Protected) > self.protected_capacity {
                    let Some(oldest) = self.oldest(Queue::Protected) else {
                        break;
                    };
                    self.remove(oldest);
                    self.push(Queue::Probation, oldest);
                }
            }
        }
        true
    }

    fn insert(&mut self, id: u32, size: u64, _: u32) {
        self.sizes.set(id, size);
        if size > self.window_capacity {
            self.admit(id);
            return;
        }
        self.push(Queue::Window, id);
        while self.used(Queue::Window) > self.window_capacity {
            let Some(oldest) = self.oldest(Queue::Window) else {
                return;
            };
            self.remove(oldest);
            self.admit(oldest);
        }
    }

    fn remove(&mut self, id: u32) {
        let queue = std::mem::replace(&mut self.queue_of[id as usize], Queue::Nowhere);
        if queue != Queue::Nowhere {
            self.lists.unlink(id);
            self.used[queue as usize - 1] -= self.sizes.of(id);
            self.cached -= 1;
        }
    }
}
