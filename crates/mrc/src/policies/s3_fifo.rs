//! S3-FIFO: a small FIFO with a tenth of the capacity, a main FIFO with reinsertion, and a ghost
//! FIFO that remembers nine tenths of the capacity. An object moves from the small to the main
//! FIFO if it was referenced at least twice after its insertion.

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

/// References after the insertion with which an object moves to the main FIFO.
const MOVE_TO_MAIN: u8 = 2;
/// Largest value of the two-bit counter of references.
const MAX_REFERENCES: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Nowhere,
    Small,
    Main,
    Ghost,
}

#[derive(Clone, Copy)]
struct ObjectState {
    queue: Queue,
    references: u8,
}

pub(super) struct S3Fifo<S> {
    lists: Lists,
    small: ListId,
    main: ListId,
    ghost: ListId,
    states: Vec<ObjectState>,
    was_ghost: bool,
    has_evicted: bool,
    sizes: S,
    small_used: u64,
    main_used: u64,
    ghost_used: u64,
    small_capacity: u64,
    main_capacity: u64,
    ghost_capacity: u64,
    capacity: u64,
}

impl<S: Sizes> S3Fifo<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> S3Fifo<S> {
        let (lists, [small, main, ghost]) = Lists::new(objects);
        let small_capacity = (capacity as f64 * 0.1) as u64;
        S3Fifo {
            lists,
            small,
            main,
            ghost,
            states: vec![
                ObjectState {
                    queue: Queue::Nowhere,
                    references: 0
                };
                objects as usize
            ],
            was_ghost: false,
            has_evicted: false,
            sizes: S::new(objects),
            small_used: 0,
            main_used: 0,
            ghost_used: 0,
            small_capacity,
            main_capacity: capacity - small_capacity,
            ghost_capacity: (capacity as f64 * 0.9) as u64,
            capacity,
        }
    }

    fn push(&mut self, queue: Queue, id: u32) {
        let size = self.sizes.of(id);
        let (list, used) = match queue {
            Queue::Small => (self.small, &mut self.small_used),
            Queue::Main => (self.main, &mut self.main_used),
            Queue::Ghost => (self.ghost, &mut self.ghost_used),
            Queue::Nowhere => return,
        };
        *used += size;
        self.lists.push_newest(list, id);
        self.states[id as usize] = ObjectState {
            queue,
            references: 0,
        };
    }

    fn evict(&mut self) -> bool {
        self.has_evicted = true;
        if self.main_used > self.main_capacity || self.small_used == 0 {
            self.evict_main()
        } else {
            self.evict_small()
        }
    }

    /// Moves objects to the main FIFO until one leaves. Returns whether the FIFO had any.
    fn evict_small(&mut self) -> bool {
        let mut moved = false;
        while let Some(id) = self.lists.oldest(self.small) {
            let references = self.states[id as usize].references;
            self.remove(id);
            if references < MOVE_TO_MAIN {
                self.remember(id);
                return true;
            }
            self.push(Queue::Main, id);
            moved = true;
        }
        moved
    }

    fn evict_main(&mut self) -> bool {
        while let Some(id) = self.lists.oldest(self.main) {
            let references = self.states[id as usize].references;
            if references == 0 {
                self.remove(id);
                return true;
            }
            self.lists.move_to_newest(self.main, id);
            self.states[id as usize].references = references - 1;
        }
        false
    }

    fn remember(&mut self, id: u32) {
        let size = self.sizes.of(id);
        if size > self.ghost_capacity {
            return;
        }
        while !fits(self.ghost_used, size, self.ghost_capacity) {
            let Some(oldest) = self.lists.oldest(self.ghost) else {
                return;
            };
            self.remove(oldest);
        }
        self.push(Queue::Ghost, id);
    }
}

impl<S: Sizes> PolicyCache for S3Fifo<S> {
    #[inline]
    fn holds(&self, id: u32) -> bool {
        matches!(self.states[id as usize].queue, Queue::Small | Queue::Main)
    }

    #[inline]
    fn refer(&mut self, id: u32, _: u32) -> bool {
        let state = &mut self.states[id as usize];
        match state.queue {
            Queue::Small | Queue::Main => {
                state.references = (state.references + 1).min(MAX_REFERENCES);
                self.was_ghost = false;
                true
            }
            Queue::Ghost => {
                self.remove(id);
                self.was_ghost = true;
                false
            }
            Queue::Nowhere => {
                self.was_ghost = false;
                false
            }
        }
    }

    fn insert(&mut self, id: u32, size: u64, _: u32) {
        if size > self.small_capacity {
            return;
        }
        while !fits(self.small_used + self.main_used, size, self.capacity) {
            if !self.evict() {
                return;
            }
        }
        self.sizes.set(id, size);
        if self.was_ghost {
            self.push(Queue::Main, id);
            return;
        }
        // An object as large as the small FIFO would push all others out of it.
        if size == self.small_capacity {
            return;
        }
        let fills_main = !self.has_evicted && self.small_used >= self.small_capacity;
        let queue = match fills_main {
            true => Queue::Main,
            false => Queue::Small,
        };
        self.push(queue, id);
    }

    fn remove(&mut self, id: u32) {
        let size = self.sizes.of(id);
        let state = &mut self.states[id as usize];
        match std::mem::replace(&mut state.queue, Queue::Nowhere) {
            Queue::Small => self.small_used -= size,
            Queue::Main => self.main_used -= size,
            Queue::Ghost => self.ghost_used -= size,
            Queue::Nowhere => return,
        }
        self.lists.unlink(id);
    }
}
