//! A thread's samples on their way to readers: one writer that never waits, many readers.
//!
//! ```text
//!            floor                 published   reserved
//!              │                        │          │
//!   ───────────┼────────────────────────┼──────────┼────────►  numbers of samples
//!   overwritten│       readable         │ in work  │
//!              └──── capacity = reserved − floor ──┘
//! ```
//!
//! The sample of number `n` lies in slot `n % capacity`. The writer raises `reserved`
//! before it touches a slot and `published` after. A reader copies what it wants, then
//! looks at `reserved` again: what lies below the floor by then may be torn, and is
//! counted as overwritten instead of handed out. So readers cost the writer nothing but
//! the cache lines that they look at.
//!
//! Each reader has a *queue*, its place in the ring; several readers may share one. A
//! ring that refuses keeps whatever the queue furthest behind has not read. A queue that
//! *gives way* does not count there while another does not: nobody may ever come back to it.
//!
//! What became of a sample is told twice: for each queue ([`Ring::account`]), and for all
//! readers together ([`Ring::account_of_all`]), where one of them is enough. Readers keep
//! the second under a lock of their own, which the writer never takes. Rejected: a mark in
//! each slot (an atomic operation for each sample that is read).
//!
//! Every word is an atomic, so that a torn copy is not undefined behaviour; ordinary
//! stores and loads come of it. `tests/ring-model` checks this file with loom. Rejected:
//! a sequence number in each slot (a store more for each sample), a lock (the writer
//! would wait).

use super::atomic::{AtomicU64, Mutex, Ordering, fence};
use std::sync::Arc;

/// Queues that a ring has room for.
pub const QUEUES: usize = 16;

/// A queue that nobody reads.
const NOBODY: u64 = u64::MAX;

/// Keeps what one thread writes off the cache line that others write.
#[repr(align(128))]
struct Apart<T>(T);

/// A reader's place.
struct Queue {
    /// Number of the sample to read next.
    next: AtomicU64,
    /// Samples passed over, since they had been overwritten.
    overwritten: AtomicU64,
    /// 1 where it keeps no room from readers of other queues.
    gives_way: AtomicU64,
}

/// A ring of samples of `W` words.
pub struct Ring<const W: usize> {
    slots: Box<[[AtomicU64; W]]>,
    capacity: u64,
    refuses: bool,
    reserved: Apart<AtomicU64>,
    published: Apart<AtomicU64>,
    refused: Apart<AtomicU64>,
    queues: [Apart<Queue>; QUEUES],
    furthest: Apart<Mutex<Furthest>>,
}

/// How far whoever is furthest has read.
#[derive(Default)]
struct Furthest {
    /// Number of the first sample that nobody has passed.
    next: u64,
    /// Samples passed over, since they had been overwritten.
    overwritten: u64,
}

/// What has become of the samples that were published, seen from a queue or from all:
/// `published = delivered + overwritten + waiting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Samples read.
    pub delivered: u64,
    /// Samples overwritten before they were read.
    pub overwritten: u64,
    /// Samples still to be read.
    pub waiting: u64,
}

impl<const W: usize> Ring<W> {
    /// A ring for `capacity` samples, rounded up to a power of two, and its writer.
    /// `refuses`: refuse new samples when it is full, in place of overwriting old ones.
    pub fn new(capacity: usize, refuses: bool) -> (Arc<Ring<W>>, RingWriter<W>) {
        let capacity = capacity.max(1).next_power_of_two();
        let queue = || {
            Apart(Queue {
                next: AtomicU64::new(NOBODY),
                overwritten: AtomicU64::new(0),
                gives_way: AtomicU64::new(0),
            })
        };
        let empty = || std::array::from_fn(|_| AtomicU64::new(0));
        let ring = Arc::new(Ring {
            slots: (0..capacity).map(|_| empty()).collect(),
            capacity: capacity as u64,
            refuses,
            reserved: Apart(AtomicU64::new(0)),
            published: Apart(AtomicU64::new(0)),
            refused: Apart(AtomicU64::new(0)),
            queues: std::array::from_fn(|_| queue()),
            furthest: Apart(Mutex::new(Furthest::default())),
        });
        let writer = RingWriter {
            ring: Arc::clone(&ring),
            head: 0,
            kept_from: 0,
        };
        (ring, writer)
    }

    /// Samples it has room for.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Samples written.
    pub fn published(&self) -> u64 {
        self.published.0.load(Ordering::Acquire)
    }

    /// Samples refused.
    pub fn refused(&self) -> u64 {
        self.refused.0.load(Ordering::Relaxed)
    }

    fn floor(&self) -> u64 {
        let reserved = self.reserved.0.load(Ordering::Relaxed);
        reserved.saturating_sub(self.capacity)
    }

    /// Slots of so many samples from a number on, at most all: those up to the end of the
    /// ring, and those from its begin on. Two stretches, so that no copy asks where the
    /// next slot lies.
    #[inline(always)]
    fn stretches(&self, from: u64, count: usize) -> [&[[AtomicU64; W]]; 2] {
        let at = (from & (self.capacity - 1)) as usize;
        let (begin, end) = self.slots.split_at(at.min(self.slots.len()));
        let first = &end[..count.min(end.len())];
        [first, &begin[..(count - first.len()).min(begin.len())]]
    }

    /// Makes a queue ready for readers, from the oldest sample that there is on; what was
    /// overwritten before counts as overwritten for it.
    pub fn open(&self, queue: usize) {
        let queue = &self.queues[queue].0;
        let from = self.floor();
        queue.overwritten.store(from, Ordering::Relaxed);
        queue.next.store(from, Ordering::Release);
    }

    /// Whether this queue keeps no room from readers of others. What it then misses counts
    /// as overwritten for it.
    pub fn give_way(&self, queue: usize, gives_way: bool) {
        let told = &self.queues[queue].0.gives_way;
        told.store(u64::from(gives_way), Ordering::Release);
    }

    /// The first sample that has to be kept: of the queues that do not give way, else of
    /// all. `None` where no queue is open.
    fn unread(&self) -> Option<u64> {
        let (mut of_all, mut kept) = (NOBODY, NOBODY);
        for queue in self.queues.iter().map(|q| &q.0) {
            let next = queue.next.load(Ordering::Acquire);
            of_all = of_all.min(next);
            if next < kept && queue.gives_way.load(Ordering::Acquire) == 0 {
                kept = next;
            }
        }
        [kept, of_all].into_iter().find(|&next| next != NOBODY)
    }

    /// Nobody reads this queue any more.
    pub fn close(&self, queue: usize) {
        self.queues[queue].0.next.store(NOBODY, Ordering::Release);
    }

    /// Whether a queue has been opened.
    pub fn is_open(&self, queue: usize) -> bool {
        self.queues[queue].0.next.load(Ordering::Acquire) != NOBODY
    }

    /// Reads the next samples of a queue, the oldest first, at most as many as `into`
    /// has room for; returns how many. Several threads may read one queue: each gets
    /// other samples.
    pub fn read(&self, queue: usize, into: &mut [[u64; W]]) -> usize {
        let queue = &self.queues[queue].0;
        // A reader that was lapped while it copied gives up the older half, too: the writer
        // would lap it again.
        let mut lapped = false;
        loop {
            let next = queue.next.load(Ordering::Acquire);
            let end = self.published();
            let mut from = next.max(self.floor());
            if lapped {
                from += end.saturating_sub(from) / 2;
            }
            // A closed queue's place is behind every end.
            let most = end.saturating_sub(from).min(into.len() as u64);
            if most == 0 {
                return 0;
            }
            let slots = self.stretches(from, most as usize);
            for (sample, slot) in into.iter_mut().zip(slots.into_iter().flatten()) {
                *sample = std::array::from_fn(|at| slot[at].load(Ordering::Relaxed));
            }
            // Whoever saw a word of a newer sample now sees what was reserved for it.
            fence(Ordering::Acquire);
            let whole = from.max(self.floor());
            let until = from + most;
            if whole >= until {
                lapped = true;
                continue;
            }
            let taken =
                queue
                    .next
                    .compare_exchange(next, until, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            queue.overwritten.fetch_add(whole - next, Ordering::Relaxed);
            self.passed(whole, until);
            let torn = (whole - from) as usize;
            into.copy_within(torn..most as usize, 0);
            return most as usize - torn;
        }
    }

    /// Some reader got these samples.
    fn passed(&self, from: u64, until: u64) {
        // What a panic leaves behind are counts still.
        let mut furthest = self.furthest.0.lock().unwrap_or_else(|e| e.into_inner());
        if until > furthest.next {
            furthest.overwritten += from.saturating_sub(furthest.next);
            furthest.next = until;
        }
    }

    /// The account of all readers together: a sample is delivered once one of them has got
    /// it, and waits as long as none of them has come to it. One that the furthest had to
    /// pass over counts as overwritten, also where a reader behind it still got it.
    pub fn account_of_all(&self) -> Account {
        let furthest = self.furthest.0.lock().unwrap_or_else(|e| e.into_inner());
        let end = self.published();
        let from = furthest.next.max(self.floor().min(end));
        Account {
            delivered: furthest.next - furthest.overwritten,
            overwritten: furthest.overwritten + (from - furthest.next),
            waiting: end - from,
        }
    }

    /// The account of a queue; of one that nobody opened, as if it had just been. Exact
    /// while neither the writer nor a reader of the queue is at work.
    pub fn account(&self, queue: usize) -> Account {
        let queue = &self.queues[queue].0;
        let (next, end) = (queue.next.load(Ordering::Acquire), self.published());
        let floor = self.floor().min(end);
        if next == NOBODY {
            return Account {
                delivered: 0,
                overwritten: floor,
                waiting: end - floor,
            };
        }
        let passed_over = queue.overwritten.load(Ordering::Relaxed);
        let from = next.max(floor);
        Account {
            delivered: next.saturating_sub(passed_over),
            overwritten: passed_over + (from - next),
            waiting: end.saturating_sub(from),
        }
    }
}

/// The one that writes into a ring.
pub struct RingWriter<const W: usize> {
    ring: Arc<Ring<W>>,
    /// What `published` is.
    head: u64,
    /// The oldest sample that some queue had not read when last looked.
    kept_from: u64,
}

impl<const W: usize> RingWriter<W> {
    /// Writes samples; returns how many were not refused. Never waits.
    pub fn write(&mut self, samples: &[[u64; W]]) -> usize {
        let accepted = match self.ring.refuses {
            true => samples.len().min(self.room(samples.len() as u64)),
            false => samples.len(),
        };
        let refused = (samples.len() - accepted) as u64;
        if refused > 0 {
            self.ring.refused.0.fetch_add(refused, Ordering::Relaxed);
        }
        // What is reserved at once must not overwrite itself, and leaves readers a part.
        let step = (self.ring.capacity / 2).max(1) as usize;
        samples[..accepted]
            .chunks(step)
            .for_each(|c| self.publish(c));
        accepted
    }

    fn publish(&mut self, samples: &[[u64; W]]) {
        let end = self.head + samples.len() as u64;
        self.ring.reserved.0.store(end, Ordering::Relaxed);
        // No word is seen before the reservation.
        fence(Ordering::Release);
        let slots = self.ring.stretches(self.head, samples.len());
        for (sample, slot) in samples.iter().zip(slots.into_iter().flatten()) {
            for (slot, word) in slot.iter().zip(sample) {
                slot.store(*word, Ordering::Relaxed);
            }
        }
        self.ring.published.0.store(end, Ordering::Release);
        self.head = end;
    }

    /// Samples that a ring that refuses has room for; looks at the queues only where what
    /// was seen last does not suffice.
    fn room(&mut self, wanted: u64) -> usize {
        let capacity = self.ring.capacity;
        if self.head - self.kept_from + wanted > capacity {
            // With no queue open all is kept that was.
            self.kept_from = self.ring.unread().unwrap_or(self.kept_from);
        }
        capacity.saturating_sub(self.head - self.kept_from) as usize
    }
}
