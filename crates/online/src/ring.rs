//! Samples of a thread on their way to readers: one writer that never waits, and many readers.
//!
//! ```text
//!            floor                 published   reserved
//!              │                        │          │
//!   ───────────┼────────────────────────┼──────────┼────────►  numbers of samples
//!   overwritten│       readable         │ in work  │
//!              └──── capacity = reserved − floor ──┘
//! ```
//!
//! Sample number `n` is in slot `n % capacity`. The writer raises `reserved` before it writes a
//! slot and `published` after. A reader copies samples and then reads `reserved` again: samples
//! below the floor by then may be torn. They are counted as overwritten and not returned. Readers
//! therefore cost the writer only the cache lines that they read.
//!
//! Each reader has a *queue*, its position in the ring. Several readers can share one. A ring that
//! refuses samples keeps whatever the slowest queue has not read. A *best-effort* queue is ignored
//! there if there are others, because it may never be read again.
//!
//! The state of samples is counted per queue ([`SampleRing::account`]) and for all readers together
//! ([`SampleRing::account_of_all`]), where one delivery suffices. Readers keep the latter under a
//! lock that the writer never takes. Rejected: a mark in each slot, which costs an atomic operation
//! per sample read.
//!
//! Every word is atomic, so that a torn copy is not undefined behaviour. The accesses compile to
//! ordinary loads and stores. `tests/ring-model` checks this file with loom. Rejected: a sequence
//! number in each slot (one more store per sample), and a lock (the writer would wait).

use super::atomic::{AtomicU64, Mutex, Ordering, fence};
use std::sync::Arc;

/// Maximum number of queues.
pub const QUEUES: usize = 16;

/// Position of a closed queue.
const CLOSED: u64 = u64::MAX;

/// Keeps data written by one thread off the cache lines that others write.
#[repr(align(128))]
struct CacheAligned<T>(T);

/// Position of one reader, or of several that share it.
struct ReaderQueue {
    /// Number of the sample to read next.
    next: AtomicU64,
    /// Number of samples skipped because they had been overwritten.
    overwritten: AtomicU64,
    /// 1 if the queue does not hold back a writer that refuses samples.
    is_best_effort: AtomicU64,
}

/// A ring of samples of `W` words.
pub struct SampleRing<const W: usize> {
    slots: Box<[[AtomicU64; W]]>,
    capacity: u64,
    refuses: bool,
    reserved: CacheAligned<AtomicU64>,
    published: CacheAligned<AtomicU64>,
    refused: CacheAligned<AtomicU64>,
    queues: [CacheAligned<ReaderQueue>; QUEUES],
    furthest: CacheAligned<Mutex<FurthestReader>>,
}

/// Position of the reader that is furthest ahead.
#[derive(Default)]
struct FurthestReader {
    /// Number of the first sample that no reader has passed.
    next: u64,
    /// Number of samples skipped because they had been overwritten.
    overwritten: u64,
}

/// Fate of the published samples, for one queue or for all: `published = delivered +
/// overwritten + waiting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryAccount {
    /// Samples that were read.
    pub delivered: u64,
    /// Samples overwritten before they were read.
    pub overwritten: u64,
    /// Samples not yet read.
    pub waiting: u64,
}

impl<const W: usize> SampleRing<W> {
    /// Creates a ring for `capacity` samples, rounded up to a power of two, and its writer. If
    /// `refuses` is true, a full ring refuses new samples instead of overwriting old ones.
    pub fn new(capacity: usize, refuses: bool) -> (Arc<SampleRing<W>>, RingWriter<W>) {
        let capacity = capacity.max(1).next_power_of_two();
        let queue = || {
            CacheAligned(ReaderQueue {
                next: AtomicU64::new(CLOSED),
                overwritten: AtomicU64::new(0),
                is_best_effort: AtomicU64::new(0),
            })
        };
        let empty = || std::array::from_fn(|_| AtomicU64::new(0));
        let ring = Arc::new(SampleRing {
            slots: (0..capacity).map(|_| empty()).collect(),
            capacity: capacity as u64,
            refuses,
            reserved: CacheAligned(AtomicU64::new(0)),
            published: CacheAligned(AtomicU64::new(0)),
            refused: CacheAligned(AtomicU64::new(0)),
            queues: std::array::from_fn(|_| queue()),
            furthest: CacheAligned(Mutex::new(FurthestReader::default())),
        });
        let writer = RingWriter {
            ring: Arc::clone(&ring),
            head: 0,
            kept_from: 0,
        };
        (ring, writer)
    }

    /// Capacity in samples.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Number of samples written.
    pub fn published(&self) -> u64 {
        self.published.0.load(Ordering::Acquire)
    }

    /// Number of samples refused.
    pub fn refused(&self) -> u64 {
        self.refused.0.load(Ordering::Relaxed)
    }

    fn floor(&self) -> u64 {
        let reserved = self.reserved.0.load(Ordering::Relaxed);
        reserved.saturating_sub(self.capacity)
    }

    /// Returns the slots of `count` samples starting with number `from`, as two ranges: up to the
    /// end of the ring, and from its start. This way the copy loops need no index arithmetic.
    #[inline(always)]
    fn slot_ranges(&self, from: u64, count: usize) -> [&[[AtomicU64; W]]; 2] {
        let at = (from & (self.capacity - 1)) as usize;
        let (begin, end) = self.slots.split_at(at.min(self.slots.len()));
        let first = &end[..count.min(end.len())];
        [first, &begin[..(count - first.len()).min(begin.len())]]
    }

    /// Opens a queue at the oldest available sample. Earlier samples count as overwritten for it.
    pub fn open(&self, queue: usize) {
        let queue = &self.queues[queue].0;
        let from = self.floor();
        queue.overwritten.store(from, Ordering::Relaxed);
        queue.next.store(from, Ordering::Release);
    }

    /// Sets whether this queue is ignored by a writer that refuses samples. Samples it misses then
    /// count as overwritten for it.
    pub fn set_best_effort(&self, queue: usize, is_best_effort: bool) {
        let flag = &self.queues[queue].0.is_best_effort;
        flag.store(u64::from(is_best_effort), Ordering::Release);
    }

    /// Number of the first sample that must be kept: for queues that are not best-effort or,
    /// without any, for all queues. `None` if no queue is open.
    fn oldest_needed(&self) -> Option<u64> {
        let (mut of_all, mut kept) = (CLOSED, CLOSED);
        for queue in self.queues.iter().map(|q| &q.0) {
            let next = queue.next.load(Ordering::Acquire);
            of_all = of_all.min(next);
            if next < kept && queue.is_best_effort.load(Ordering::Acquire) == 0 {
                kept = next;
            }
        }
        [kept, of_all].into_iter().find(|&next| next != CLOSED)
    }

    /// Closes a queue.
    pub fn close(&self, queue: usize) {
        self.queues[queue].0.next.store(CLOSED, Ordering::Release);
    }

    /// Returns whether a queue is open.
    pub fn is_open(&self, queue: usize) -> bool {
        self.queues[queue].0.next.load(Ordering::Acquire) != CLOSED
    }

    /// Reads the next samples of a queue in order, up to the length of `into`, and returns their
    /// number. Several threads can read one queue; each gets different samples.
    pub fn read(&self, queue: usize, into: &mut [[u64; W]]) -> usize {
        let queue = &self.queues[queue].0;
        // A reader that was overtaken while it copied also skips half of the remaining samples,
        // because the writer would overtake it again.
        let mut overtaken = false;
        loop {
            let next = queue.next.load(Ordering::Acquire);
            let end = self.published();
            let mut from = next.max(self.floor());
            if overtaken {
                from += end.saturating_sub(from) / 2;
            }
            // The position of a closed queue is above every end.
            let most = end.saturating_sub(from).min(into.len() as u64);
            if most == 0 {
                return 0;
            }
            let slots = self.slot_ranges(from, most as usize);
            for (sample, slot) in into.iter_mut().zip(slots.into_iter().flatten()) {
                *sample = std::array::from_fn(|at| slot[at].load(Ordering::Relaxed));
            }
            // If a copied word is from a newer sample, its reservation is visible after this fence.
            fence(Ordering::Acquire);
            let intact_from = from.max(self.floor());
            let until = from + most;
            if intact_from >= until {
                overtaken = true;
                continue;
            }
            let claim =
                queue
                    .next
                    .compare_exchange(next, until, Ordering::AcqRel, Ordering::Relaxed);
            if claim.is_err() {
                continue;
            }
            queue
                .overwritten
                .fetch_add(intact_from - next, Ordering::Relaxed);
            self.record_delivery(intact_from, until);
            let torn = (intact_from - from) as usize;
            into.copy_within(torn..most as usize, 0);
            return most as usize - torn;
        }
    }

    /// Records that some reader got these samples.
    fn record_delivery(&self, from: u64, until: u64) {
        // A panic leaves the counts usable.
        let mut furthest = self.furthest.0.lock().unwrap_or_else(|e| e.into_inner());
        if until > furthest.next {
            furthest.overwritten += from.saturating_sub(furthest.next);
            furthest.next = until;
        }
    }

    /// Returns the state for all readers together: a sample is delivered when one reader has got
    /// it, and waits until a reader comes to it. A sample that the furthest reader had to skip
    /// counts as overwritten, even if a slower reader got it.
    pub fn account_of_all(&self) -> DeliveryAccount {
        let furthest = self.furthest.0.lock().unwrap_or_else(|e| e.into_inner());
        let end = self.published();
        let from = furthest.next.max(self.floor().min(end));
        DeliveryAccount {
            delivered: furthest.next - furthest.overwritten,
            overwritten: furthest.overwritten + (from - furthest.next),
            waiting: end - from,
        }
    }

    /// Returns the state for a queue. For a closed queue it is as if it had just been opened. Exact
    /// while neither the writer nor a reader of the queue is active.
    pub fn account(&self, queue: usize) -> DeliveryAccount {
        let queue = &self.queues[queue].0;
        let (next, end) = (queue.next.load(Ordering::Acquire), self.published());
        let floor = self.floor().min(end);
        if next == CLOSED {
            return DeliveryAccount {
                delivered: 0,
                overwritten: floor,
                waiting: end - floor,
            };
        }
        let skipped = queue.overwritten.load(Ordering::Relaxed);
        let from = next.max(floor);
        DeliveryAccount {
            delivered: next.saturating_sub(skipped),
            overwritten: skipped + (from - next),
            waiting: end.saturating_sub(from),
        }
    }
}

/// Writes into a ring.
pub struct RingWriter<const W: usize> {
    ring: Arc<SampleRing<W>>,
    /// Copy of `published`.
    head: u64,
    /// Oldest sample that a queue had not read at the last check.
    kept_from: u64,
}

impl<const W: usize> RingWriter<W> {
    /// Writes samples and returns how many were not refused. Never waits.
    pub fn write(&mut self, samples: &[[u64; W]]) -> usize {
        let accepted = match self.ring.refuses {
            true => samples.len().min(self.room(samples.len() as u64)),
            false => samples.len(),
        };
        let refused = (samples.len() - accepted) as u64;
        if refused > 0 {
            self.ring.refused.0.fetch_add(refused, Ordering::Relaxed);
        }
        // A reservation must not overwrite itself, and must leave readers a part of the ring.
        let step = (self.ring.capacity / 2).max(1) as usize;
        samples[..accepted]
            .chunks(step)
            .for_each(|c| self.publish(c));
        accepted
    }

    fn publish(&mut self, samples: &[[u64; W]]) {
        let end = self.head + samples.len() as u64;
        self.ring.reserved.0.store(end, Ordering::Relaxed);
        // The reservation must be visible before any word.
        fence(Ordering::Release);
        let slots = self.ring.slot_ranges(self.head, samples.len());
        for (sample, slot) in samples.iter().zip(slots.into_iter().flatten()) {
            for (slot, word) in slot.iter().zip(sample) {
                slot.store(*word, Ordering::Relaxed);
            }
        }
        self.ring.published.0.store(end, Ordering::Release);
        self.head = end;
    }

    /// Number of samples that a refusing ring has room for. Reads the positions of the queues only
    /// if the last known ones do not suffice.
    fn room(&mut self, wanted: u64) -> usize {
        let capacity = self.ring.capacity;
        if self.head - self.kept_from + wanted > capacity {
            // With no open queue, keep the same samples as before.
            self.kept_from = self.ring.oldest_needed().unwrap_or(self.kept_from);
        }
        capacity.saturating_sub(self.head - self.kept_from) as usize
    }
}
