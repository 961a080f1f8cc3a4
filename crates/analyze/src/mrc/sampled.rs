//! Spatial sampling.

/// Which blocks are kept: those whose hash is below a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    salt: u64,
    limit: u64,
}

const LOW: u64 = 0x9e37_79b1;
const HIGH: u64 = 0x85eb_ca77;

impl Filter {
    pub(super) fn constants(&self) -> [u64; 4] {
        [self.salt, LOW, HIGH, self.limit]
    }
    pub(super) fn hash(&self, block: u64) -> u64 {
        let salted = block ^ self.salt;
        let low = salted as u32 as u64;
        let sum = (low * LOW).wrapping_add((salted >> 32) * HIGH);
        let folded = sum ^ sum >> 29;
        (folded as u32 as u64) * LOW >> 32
    }
    #[inline(always)]
    pub(super) fn keeps(&self, block: u64) -> bool {
        self.hash(block) < self.limit
    }
}
