//! LIRS. The resident HIR objects have a hundredth of the capacity. Stack S holds at most twice
//! the capacity: beyond that, the non-resident objects that were evicted first leave it.

use super::cache::PolicyCache;
use super::lists::{ListId, Lists};
use super::sizes::{Sizes, fits};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    /// In no list, or resident in Q only.
    Hir,
    Lir,
    /// In stack S without being cached.
    NonResident,
}

pub(super) struct Lirs<S> {
    stack: Lists,
    stack_list: ListId,
    /// Resident HIR objects are in Q, non-resident ones in a list by the time of their eviction.
    queues: Lists,
    queue: ListId,
    non_resident: ListId,
    status: Vec<Status>,
    sizes: S,
    stack_used: u64,
    lir_used: u64,
    hir_used: u64,
    lir_capacity: u64,
    hir_capacity: u64,
    capacity: u64,
}

impl<S: Sizes> Lirs<S> {
    pub(super) fn new(objects: u32, capacity: u64) -> Lirs<S> {
        let (stack, [stack_list]) = Lists::new(objects);
        let (queues, [queue, non_resident]) = Lists::new(objects);
        let hir_capacity = ((capacity as f64 * 0.01) as u64).max(1);
        Lirs {
            stack,
            stack_list,
            queues,
            queue,
            non_resident,
            status: vec![Status::Hir; objects as usize],
            sizes: S::new(objects),
            stack_used: 0,
            lir_used: 0,
            hir_used: 0,
            lir_capacity: capacity.saturating_sub(hir_capacity),
            hir_capacity,
            capacity,
        }
    }

    fn push_stack(&mut self, id: u32) {
        if self.stack.holds(id) {
            self.stack.move_to_newest(self.stack_list, id);
        } else {
            self.stack.push_newest(self.stack_list, id);
            self.stack_used += self.sizes.of(id);
        }
    }

    fn leave_stack(&mut self, id: u32) {
        self.stack.unlink(id);
        self.stack_used -= self.sizes.of(id);
        if self.status[id as usize] == Status::NonResident {
            self.queues.unlink(id);
            self.status[id as usize] = Status::Hir;
        }
    }

    fn push_queue(&mut self, id: u32) {
        self.queues.push_newest(self.queue, id);
        self.hir_used += self.sizes.of(id);
    }

    fn leave_queue(&mut self, id: u32) {
        self.queues.unlink(id);
        self.hir_used -= self.sizes.of(id);
    }

    /// Removes objects from the bottom of stack S until a LIR object is there.
    fn prune(&mut self) {
        while let Some(bottom) = self.stack.oldest(self.stack_list) {
            if self.status[bottom as usize] == Status::Lir {
                return;
            }
            self.leave_stack(bottom);
        }
    }

    /// Turns the LIR object at the bottom of stack S into a resident HIR object.
    fn demote_bottom(&mut self) -> bool {
        self.prune();
        let Some(bottom) = self.stack.oldest(self.stack_list) else {
            return false;
        };
        self.leave_stack(bottom);
        self.status[bottom as usize] = Status::Hir;
        self.lir_used -= self.sizes.of(bottom);
        self.push_queue(bottom);
        self.prune();
        true
    }

    fn make_lir(&mut self, id: u32) {
        self.push_stack(id);
        self.status[id as usize] = Status::Lir;
        self.lir_used += self.sizes.of(id);
        while self.lir_used > self.lir_capacity {
            if !self.demote_bottom() {
                break;
            }
        }
        self.prune();
        while self.hir_used > self.hir_capacity {
            if !self.evict() {
                break;
            }
        }
    }

    /// Evicts the oldest resident HIR object.
    fn evict(&mut self) -> bool {
        let Some(oldest) = self.queues.oldest(self.queue) else {
            return false;
        };
        self.leave_queue(oldest);
        if self.stack.holds(oldest) {
            self.status[oldest as usize] = Status::NonResident;
            self.queues.push_newest(self.non_resident, oldest);
        }
        true
    }

    fn limit_stack(&mut self) {
        while self.stack_used > self.capacity.saturating_mul(2) {
            let Some(oldest) = self.queues.oldest(self.non_resident) else {
                return;
            };
            self.leave_stack(oldest);
        }
    }
}

impl<S: Sizes> PolicyCache for Lirs<S> {
    fn holds(&self, id: u32) -> bool {
        match self.status[id as usize] {
            Status::Lir => true,
            Status::NonResident => false,
            Status::Hir => self.queues.holds(id),
        }
    }

    fn refer(&mut self, id: u32, _: u32) -> bool {
        match self.status[id as usize] {
            Status::NonResident => return false,
            Status::Lir => {
                self.push_stack(id);
                self.prune();
            }
            Status::Hir if !self.queues.holds(id) => return false,
            Status::Hir if self.stack.holds(id) => {
                self.leave_queue(id);
                self.make_lir(id);
            }
            Status::Hir => {
                self.push_stack(id);
                self.queues.move_to_newest(self.queue, id);
            }
        }
        self.limit_stack();
        true
    }

    fn insert(&mut self, id: u32, size: u64, _: u32) {
        let was_in_stack = self.status[id as usize] == Status::NonResident;
        if was_in_stack {
            self.leave_stack(id);
        }
        self.sizes.set(id, size);
        let has_room = fits(self.lir_used, size, self.lir_capacity);
        if has_room || (was_in_stack && size <= self.lir_capacity) {
            self.make_lir(id);
        } else if size <= self.hir_capacity {
            while !fits(self.hir_used, size, self.hir_capacity) {
                if !self.evict() {
                    return;
                }
            }
            self.push_stack(id);
            self.push_queue(id);
        }
        self.limit_stack();
    }

    fn remove(&mut self, id: u32) {
        if self.status[id as usize] == Status::Lir {
            self.lir_used -= self.sizes.of(id);
            self.status[id as usize] = Status::Hir;
        } else if self.queues.holds(id) && self.status[id as usize] == Status::Hir {
            self.leave_queue(id);
        }
        if self.stack.holds(id) {
            self.leave_stack(id);
        }
        self.prune();
    }
}
