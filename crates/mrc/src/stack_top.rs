//! The top of the LRU stack: the most recently referenced blocks, in registers.
//!
//! The position of a block here is its stack distance, so a hit touches no table. Any other
//! block enters the batch and evicts the oldest block here. The time of that eviction is the
//! block's last time in the tables. All blocks here are newer than those in the tables, so a
//! distance found there is [`TOP_BLOCKS`] more than the rank.

use super::batch::{BATCH, Batch};

/// Blocks kept here. Four are enough for a loop over three arrays. Each further one costs a
/// comparison in every reference that misses all of them.
pub(super) const TOP_BLOCKS: usize = 4;

/// A block number and its seat. A block keeps its seat while it moves up and down the stack,
/// so the tables refer to it by seat.
type SeatedBlock = (u64, u8);

#[derive(Debug, Default)]
pub(super) struct StackTop {
    /// Most recently referenced first.
    seated: [SeatedBlock; TOP_BLOCKS],
    taken: usize,
    /// References by stack distance.
    pub(super) hits: [u64; TOP_BLOCKS],
}

impl StackTop {
    /// Consumes addresses until the batch is full and returns their number. Blocks that miss
    /// here enter the batch with the seat that they take over.
    #[inline(always)]
    pub(super) fn fill(&mut self, addresses: &[u64], shift: u32, batch: &mut Batch) -> usize {
        let mut used = 0;
        while self.taken < TOP_BLOCKS {
            let Some(address) = addresses.get(used).filter(|_| batch.len < BATCH) else {
                return used;
            };
            self.first_blocks(address >> shift, batch);
            used += 1;
        }
        used + self.fill_from_full(&addresses[used..], shift, batch)
    }

    /// Returns the blocks here, most recently referenced first.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.seated[..self.taken].iter().map(|place| place.0)
    }

    #[cold]
    fn first_blocks(&mut self, block: u64, batch: &mut Batch) {
        let known = self.seated[..self.taken].iter().position(|p| p.0 == block);
        if let Some(at) = known {
            self.hits[at] += 1;
            self.seated[..=at].rotate_right(1);
            return;
        }
        let seat = self.taken as u8;
        self.seated[self.taken] = (block, seat);
        self.taken += 1;
        self.seated[..self.taken].rotate_right(1);
        batch.push(block, seat);
    }

    #[inline(always)]
    fn fill_from_full(&mut self, addresses: &[u64], shift: u32, batch: &mut Batch) -> usize {
        let [mut a, mut b, mut c, mut d] = self.seated;
        let [mut at_a, mut at_b, mut at_c, mut at_d] = self.hits;
        let mut used = 0;
        let mut len = batch.len;
        for address in addresses {
            if len == BATCH {
                break;
            }
            used += 1;
            let block = address >> shift;
            if block == a.0 {
                at_a += 1;
            } else if block == b.0 {
                at_b += 1;
                (a, b) = (b, a);
            } else if block == c.0 {
                at_c += 1;
                (a, b, c) = (c, a, b);
            } else if block == d.0 {
                at_d += 1;
                (a, b, c, d) = (d, a, b, c);
            } else {
                let seat = d.1;
                (a, b, c, d) = ((block, seat), a, b, c);
                batch.blocks[len] = block;
                batch.seats[len] = seat;
                len += 1;
            }
        }
        batch.len = len;
        self.seated = [a, b, c, d];
        self.hits = [at_a, at_b, at_c, at_d];
        used
    }
}
