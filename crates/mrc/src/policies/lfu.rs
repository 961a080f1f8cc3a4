//! LFU in constant time per reference: objects with equal counts share a list, and the lists are
//! chained in the order of their counts (K. Shah and others, "An O(1) algorithm for implementing
//! the LFU cache eviction scheme", 2010).

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

const NO_BUCKET: u32 = u32::MAX;
/// The bucket of objects that were referenced once. It exists even if it is empty.
const ONCE: u32 = 0;

struct Bucket {
    references: u64,
    list: ListId,
    higher: u32,
    lower: u32,
}

pub(super) struct Lfu<S> {
    lists: Lists,
    buckets: Vec<Bucket>,
    unused_buckets: Vec<u32>,
    bucket_of: Vec<u32>,
    sizes: S,
    used: u64,
    capacity: u64,
}

impl<S: Sizes> Lfu<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> Lfu<S> {
        let (lists, [list]) = Lists::new(objects);
        let once = Bucket {
            references: 1,
            list,
            higher: NO_BUCKET,
            lower: NO_BUCKET,
        };
        Lfu {
            lists,
            buckets: vec![once],
            unused_buckets: Vec::new(),
            bucket_of: vec![NO_BUCKET; objects as usize],
            sizes: S::new(objects),
            used: 0,
            capacity,
        }
    }

    /// The bucket for one more reference than `bucket` has.
    fn next_bucket(&mut self, bucket: u32) -> u32 {
        let Bucket {
            references, higher, ..
        } = self.buckets[bucket as usize];
        let references = references + 1;
        if higher != NO_BUCKET && self.buckets[higher as usize].references == references {
            return higher;
        }
        let new = match self.unused_buckets.pop() {
            Some(new) => new,
            None => {
                self.buckets.push(Bucket {
                    references,
                    list: self.lists.add_list(),
                    higher: NO_BUCKET,
                    lower: NO_BUCKET,
                });
                self.buckets.len() as u32 - 1
            }
        };
        let added = &mut self.buckets[new as usize];
        (added.references, added.higher, added.lower) = (references, higher, bucket);
        self.buckets[bucket as usize].higher = new;
        if higher != NO_BUCKET {
            self.buckets[higher as usize].lower = new;
        }
        new
    }

    fn unlink(&mut self, id: u32) {
        self.lists.unlink(id);
        let bucket = std::mem::replace(&mut self.bucket_of[id as usize], NO_BUCKET);
        let Bucket {
            list,
            higher,
            lower,
            ..
        } = self.buckets[bucket as usize];
        if bucket == ONCE || !self.lists.is_empty(list) {
            return;
        }
        self.buckets[lower as usize].higher = higher;
        if higher != NO_BUCKET {
            self.buckets[higher as usize].lower = lower;
        }
        self.unused_buckets.push(bucket);
    }

    fn evict(&mut self) -> bool {
        let once = &self.buckets[ONCE as usize];
        let victim = self.lists.oldest(once.list).or_else(|| {
            let lowest = self.buckets.get(once.higher as usize)?;
            self.lists.oldest(lowest.list)
        });
        let Some(victim) = victim else {
            return false;
        };
        self.remove(victim);
        true
    }
}

impl<S: Sizes> PolicyCache for Lfu<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.lists.holds(id)
    }

    fn refer(&mut self, id: u32, _: u32) -> bool {
        let bucket = self.bucket_of[id as usize];
        if bucket == NO_BUCKET {
            return false;
        }
        let next = self.next_bucket(bucket);
        self.unlink(id);
        self.lists.push_newest(self.buckets[next as usize].list, id);
        self.bucket_of[id as usize] = next;
        true
    }

    fn insert(&mut self, id: u32, size: u64, _: u32) {
        if size > self.capacity {
            return;
        }
        while !fits(self.used, size, self.capacity) {
            if !self.evict() {
                return;
            }
        }
        self.lists.push_newest(self.buckets[ONCE as usize].list, id);
        self.bucket_of[id as usize] = ONCE;
        self.sizes.set(id, size);
        self.used += size;
    }

    fn remove(&mut self, id: u32) {
        self.unlink(id);
        self.used -= self.sizes.of(id);
    }
}
