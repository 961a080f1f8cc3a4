//! Selects the blocks of a sample by a hash of their numbers.

/// Keeps the blocks whose hash is below a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filter {
    salt: u64,
    /// Exclusive limit of the kept hashes, out of 2³².
    pub(super) limit: u64,
}

/// Two odd numbers without pattern: 2³² / golden ratio, and one of xxHash's.
const LOW: u64 = 0x9e37_79b1;
pub(super) const HIGH: u64 = 0x85eb_ca77;
/// log2 of the blocks that are neighbours.
pub(super) const NEIGHBOURS: u32 = 12;
/// Number of different hashes.
pub(super) const HASHES: u64 = 1 << 32;

impl Filter {
    /// Returns a filter that keeps this share of the blocks. Filters with different salts keep
    /// independent samples.
    pub(super) fn with_share(salt: u64, share: f64) -> Filter {
        Filter {
            salt: salt.wrapping_mul(0xd134_2543_de82_ef95),
            limit: (share * HASHES as f64).ceil() as u64,
        }
    }

    /// Returns the same filter with another limit.
    pub(super) fn with_limit(self, limit: u64) -> Filter {
        Filter { limit, ..self }
    }

    /// Salt, multiplier and limit, for the vector variants.
    pub(super) fn constants(&self) -> [u64; 3] {
        [self.salt, LOW, self.limit]
    }

    /// Returns a 32-bit hash. Hashes of neighbouring blocks are spread evenly, hashes of distant
    /// blocks look random.
    #[inline(always)]
    pub(super) fn hash(&self, block: u64) -> u64 {
        let salted = block >> NEIGHBOURS ^ self.salt;
        let narrow = (salted ^ salted >> 32) as u32;
        let spread = u64::from(narrow) * LOW;
        let folded = spread ^ spread >> 29;
        let product = u64::from(folded as u32) * LOW;
        (product ^ product >> 32).wrapping_add(u64::from(block as u32) * LOW) % HASHES
    }

    #[inline(always)]
    pub(super) fn keeps(&self, block: u64) -> bool {
        self.hash(block) < self.limit
    }
}
