//! Parts of all blocks, by the upper bits of the hash that tables have of them.

/// Bits of a block number that [`super::last_times::Narrow`] can hold.
pub(super) const NARROW_BITS: u32 = 51;
/// 2⁶⁴ / golden ratio, odd: spreads neighbours evenly.
pub(super) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// The same modulo 2⁵¹.
pub(super) const NARROW_MULTIPLIER: u64 = MULTIPLIER >> (64 - NARROW_BITS);
/// Bits that a block is shifted by and mixed with itself, half of those it has.
pub(super) const NARROW_MIX_SHIFT: u32 = 26;

/// Which blocks a table is for: those whose narrow hash begins with the `bits` bits
/// of `number`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TablePart {
    pub(super) number: u64,
    pub(super) bits: u32,
}

impl TablePart {
    pub(super) const WHOLE: TablePart = TablePart { number: 0, bits: 0 };

    /// All of them, in order, for a power of two.
    pub(super) fn all(count: usize) -> impl Iterator<Item = TablePart> {
        let bits = count.trailing_zeros();
        (0..count as u64).map(move |number| TablePart { number, bits })
    }

    /// Whether a block is one of them.
    #[inline(always)]
    pub(super) fn contains(self, block: u64) -> bool {
        let [multiplier, mask, wanted] = self.constants();
        (block ^ block >> NARROW_MIX_SHIFT).wrapping_mul(multiplier) & mask == wanted
    }

    /// Multiplier of a block mixed with itself, and the bits of the product that are
    /// compared with the last number.
    #[inline(always)]
    pub(super) fn constants(self) -> [u64; 3] {
        let wanted = self.number.unbounded_shl(u64::BITS - self.bits);
        let mask = u64::MAX.unbounded_shl(u64::BITS - self.bits);
        [NARROW_MULTIPLIER << (64 - NARROW_BITS), mask, wanted]
    }
}
