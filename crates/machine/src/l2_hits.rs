//! A shortcut for second-level hits.
//!
//! Most first-level misses hit in the second level. They need little of what [`Core::supply_line`]
//! does: a line of one level, a fixed latency and a few counts. [`Core::supply_from_l2`] does only that
//! and leaves everything else to `supply_line`, which has the same effect on a second-level hit.

use memgauge_trace::AccessKind;

use crate::cache::{DIRTY, tag_in, tag_of};
use crate::events::*;
use crate::hierarchy::{STORE_BUFFER, order_of};
use crate::{Core, DataSource, Missed, Prefetch, SharedLevels};

impl Core {
    /// Supplies a miss as [`Core::supply`] does, if only its line is missing, the second level holds
    /// the line, and no counter overflows. Returns the millicycles that the core stalls for latency.
    ///
    /// # Errors
    /// Returns the part that is still missing if the second level does not have it. Nothing has
    /// happened, except that the evicted line may have been written to the second level.
    #[inline(always)]
    pub fn supply_from_l2(
        &mut self,
        shared: &SharedLevels,
        missed: Missed,
        addr: u64,
        kind: AccessKind,
    ) -> Result<u64, Missed> {
        let Some(left) = missed.line_alone() else {
            return Err(missed);
        };
        if !self.sampler.ignores_l2_hit()
            || shared.is_coherent()
            || self.prefetch != Prefetch::default()
        {
            return Err(missed);
        }
        let stores_drained = match kind {
            AccessKind::Store => self.drained_without_stall(),
            _ => Some(self.stores_drained),
        };
        let Some(stores_drained) = stores_drained else {
            return Err(missed);
        };
        let mut missed = missed;
        if left & DIRTY != 0 {
            if !self.l2.use_held(tag_in(left), DIRTY) {
                return Err(missed);
            }
            self.counts[L1D_WRITEBACK] += 1;
            missed = missed.with_clean_line();
        }
        let tag = tag_of(addr);
        if !self.l2.use_held(tag, 0) {
            return Err(missed);
        }
        self.sampler.ignore_l2_hit();
        self.counts[L1D_MISS] += 1;
        self.counts[L2_HIT] += 1;
        let pattern = self.streams.note(tag >> 2);
        self.counts[L1D_CONFLICT] += self.conflicts.add(tag >> 2);
        self.stores_drained = stores_drained;
        if kind == AccessKind::Store {
            self.counts[L1D_STORE_MISS] += 1;
            return Ok(0);
        }
        self.counts[L1D_LOAD_MISS] += 1;
        let latency = self.costs.stall[DataSource::L2 as usize][usize::from(pattern.regular)];
        if latency > 0 {
            self.stall(order_of(pattern.regular), latency);
            self.divide_stall(STALL_L2, latency);
        }
        Ok(latency)
    }

    /// Returns the time at which the store buffer is empty again if a line from the second level is
    /// added to it. `None` if the core would stall because it is full.
    #[inline(always)]
    fn drained_without_stall(&self) -> Option<u64> {
        let drain = self.costs.drain[DataSource::L2 as usize];
        if drain == 0 {
            return Some(self.stores_drained);
        }
        let now = self.now();
        let drained = self.stores_drained.max(now) + drain;
        (drained - now <= STORE_BUFFER * drain).then_some(drained)
    }
}
