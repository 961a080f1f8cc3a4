//! Division of the blocks between tables, by the upper bits of their narrow hash.

/// Bits of a block number that [`super::last_times::Narrow`] can hold.
pub(super) const NARROW_BITS: u32 = 51;
/// 2⁶⁴ / golden ratio, odd: spreads neighbours evenly.
pub(super) const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// The same modulo 2⁵¹.
pub(super) const NARROW_MULTIPLIER: u64 = MULTIPLIER >> (64 - NARROW_BITS);
/// A block is mixed with itself shifted right by this many bits, half of its width.
pub(super) const NARROW_MIX_SHIFT: u32 = 26;

/// The blocks of one table: those whose narrow hash begins with `number`, written in `bits`
/// bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct TablePart {
    pub(super) number: u64,
    pub(super) bits: u32,
}

impl TablePart {
    pub(super) const WHOLE: TablePart = TablePart { number: 0, bits: 0 };

    /// Returns all parts in order. `count` is a power of two.
    pub(super) fn all(count: usize) -> impl Iterator<Item = TablePart> {
        let bits = count.trailing_zeros();
        (0..count as u64).map(move |number| TablePart { number, bits })
    }

    /// Returns whether the block belongs to this part.
    #[inline(always)]
    pub(super) fn contains(self, block: u64) -> bool {
        let [multiplier, mask, wanted] = self.constants();
        (block ^ block >> NARROW_MIX_SHIFT).wrapping_mul(multiplier) & mask == wanted
    }

    /// Returns the multiplier, the mask of the product and the value that the masked product
    /// must have, as an array for the vector variants.
    #[inline(always)]
    pub(super) fn constants(self) -> [u64; 3] {
        let wanted = self.number.unbounded_shl(u64::BITS - self.bits);
        let mask = u64::MAX.unbounded_shl(u64::BITS - self.bits);
        [NARROW_MULTIPLIER << (64 - NARROW_BITS), mask, wanted]
    }
}
