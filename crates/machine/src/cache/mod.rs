//! A set-associative cache of tags, with exact LRU or tree-PLRU.
//!
//! A line is a 64-bit word:
//!
//! ```text
//!  63            46 45                        2   1   0
//! +----------------+--------------------------+---+---+
//! | address space  | line number, 44 bits     | P | D |
//! +----------------+--------------------------+---+---+
//! ```
//!
//! D: the line is dirty. P: it was prefetched and has not been used. The word without its flags is
//! the *tag*. Example: line 5 in address space 0, dirty, is `0b10101`.
//!
//! Sets of up to 16 ways are [`narrow`] and laid out for speed. The few wider ones (last-level
//! caches of 20 or 48 ways) are [`wide`] and simple.

mod host;
mod ordered;
mod row;
pub(crate) mod tree;
mod wide;

use crate::{CacheConfig, Replacement};
pub use host::fetch_early;
#[cfg(target_arch = "x86_64")]
pub(crate) use host::{Eights, Fours};
pub(crate) use host::{MAX_ROW_WAYS, Portable, RowSearch, SearchWidth};
use ordered::Ordered;
use wide::Wide;

/// The line was written since it was filled.
pub(crate) const DIRTY: u64 = 1;
/// The line was prefetched and has not been used.
pub(crate) const PREFETCHED: u64 = 2;
/// Both flags.
const FLAGS: u64 = DIRTY | PREFETCHED;
/// Offset in lines between consecutive address spaces in the last-level cache. Must equal the value
/// in `engine/src/stream.h`.
pub(crate) const SPACE_STEP: u64 = 0x1_9e37;
/// No line: a tag without flags that no address has.
pub(crate) const EMPTY: u64 = !FLAGS;
/// Bits of a line number. Addresses are taken modulo 2^50, which distinguishes all canonical
/// addresses of 48-bit machines.
pub(crate) const LINE_BITS: u32 = 44;
/// Bits of the line number in a word.
const TAG_MASK: u64 = ((1 << LINE_BITS) - 1) << 2;
/// Position of the address space in a word.
pub(crate) const SPACE_SHIFT: u32 = LINE_BITS + 2;

/// Returns the tag of the line of `addr` in address space 0.
#[inline(always)]
pub(crate) fn tag_of(addr: u64) -> u64 {
    (addr >> 4) & TAG_MASK
}

/// Returns a word without its flags.
#[inline(always)]
pub(crate) fn tag_in(word: u64) -> u64 {
    word & !FLAGS
}

/// Result of a lookup that fills the line.
pub(crate) enum LookupResult {
    /// The line was held. Its previous word.
    Hit(u64),
    /// The line was not held. The evicted word, or [`EMPTY`].
    Miss(u64),
}

/// The evicted lines that a cache reports. Others appear as [`EMPTY`], because the host takes time
/// to put their words together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evicted {
    All,
    Dirty,
}

/// Number of sets, and the mapping of lines to sets.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    count: u64,
    /// `count - 1` if `count` is a power of two.
    mask: Option<u64>,
    /// Number of bits of that.
    shift: u32,
    /// 2^64 / `count`, rounded down, because each miss computes a remainder and division is slow.
    inverse: u64,
}

impl Sets {
    pub(crate) fn new(count: u64) -> Self {
        Sets {
            count,
            mask: count.is_power_of_two().then_some(count - 1),
            shift: count.ilog2(),
            inverse: u64::MAX / count,
        }
    }

    /// Returns true if lines that are equal in enough low bits are in the same set.
    pub(crate) fn is_power_of_two(self) -> bool {
        self.mask.is_some()
    }

    /// Returns the set of a tag without address space: the line number modulo the number of sets.
    #[inline(always)]
    pub(crate) fn of_private(self, tag: u64) -> usize {
        self.of_number(tag >> 2)
    }

    /// Returns the line number of any tag, shifted by an odd step for each address space, so that
    /// programs at equal addresses use different sets.
    #[inline(always)]
    fn number_of(tag: u64) -> u64 {
        ((tag & TAG_MASK) >> 2) + (tag >> SPACE_SHIFT) * SPACE_STEP
    }

    /// Returns the set of any tag.
    #[inline(always)]
    fn of(self, tag: u64) -> usize {
        self.of_number(Self::number_of(tag))
    }

    /// Returns the set of any tag and the quotient of its number and the number of sets.
    #[inline(always)]
    fn divide(self, tag: u64) -> (usize, u64) {
        let number = Self::number_of(tag);
        match self.mask {
            Some(mask) => ((number & mask) as usize, number >> self.shift),
            None => {
                let (quotient, set) = self.quotient_and_remainder(number);
                (set as usize, quotient)
            }
        }
    }

    /// Returns the set of a line or page number.
    #[inline(always)]
    pub(crate) fn of_number(self, line: u64) -> usize {
        match self.mask {
            Some(mask) => (line & mask) as usize,
            None => self.quotient_and_remainder(line).1 as usize,
        }
    }
}

impl Sets {
    /// Returns `number / count` and `number % count`. The product with the inverse is less than two
    /// below the quotient, so its integer part is the quotient or one less.
    #[inline(always)]
    fn quotient_and_remainder(self, number: u64) -> (u64, u64) {
        let quotient = ((u128::from(number) * u128::from(self.inverse)) >> 64) as u64;
        let left = number - quotient * self.count;
        if left < self.count {
            (quotient, left)
        } else {
            (quotient + 1, left - self.count)
        }
    }
}

/// The tags of a cache.
#[expect(
    clippy::large_enum_variant,
    reason = "there are few caches, and their lookups save an indirection"
)]
pub(crate) enum Cache {
    Ordered(Ordered),
    Wide(Wide),
}

impl Cache {
    pub(crate) fn new(config: &CacheConfig, evicted: Evicted) -> Self {
        let (sets, ways) = (config.sets(), config.ways as usize);
        Self::with_shape(sets, ways, config.replacement, evicted)
    }

    pub(crate) fn with_shape(
        sets: u64,
        ways: usize,
        replacement: Replacement,
        evicted: Evicted,
    ) -> Self {
        if ways <= ordered::MAX_ORDERED_WAYS && replacement == Replacement::Lru {
            return Cache::Ordered(Ordered::new(sets, ways, evicted));
        }
        Cache::Wide(Wide::new(sets, ways, replacement))
    }

    /// Makes the line the last used one and fills it if it is absent. Adds `set` to its flags. If
    /// it was held, removes `clear` from them.
    #[inline]
    pub(crate) fn take(&mut self, tag: u64, set: u64, clear: u64) -> LookupResult {
        let wide = match self {
            Cache::Ordered(cache) => match cache.take(tag, set, clear) {
                Some(found) => return found,
                None => cache.to_wide(),
            },
            Cache::Wide(cache) => return cache.take(tag, set, clear),
        };
        *self = Cache::Wide(wide);
        self.take(tag, set, clear)
    }

    /// As [`Cache::take`] for a line that is held and not prefetched: makes it the last used one, adds
    /// `set` to its flags, and returns true. Returns false, without an effect, for other lines, and in
    /// wide caches.
    #[inline(always)]
    pub(crate) fn use_held(&mut self, tag: u64, set: u64) -> bool {
        match self {
            Cache::Ordered(cache) => cache.use_held(tag, set),
            Cache::Wide(_) => false,
        }
    }

    /// Prefetches a tag's set into the host's cache.
    #[inline(always)]
    pub(crate) fn expect(&self, tag: u64) {
        if let Cache::Ordered(cache) = self {
            cache.expect(tag);
        }
    }

    /// Returns true if the line is held.
    pub(crate) fn holds(&self, tag: u64) -> bool {
        match self {
            Cache::Ordered(cache) => cache.holds(tag),
            Cache::Wide(cache) => cache.holds(tag),
        }
    }

    /// Removes the line and returns its word if it was held.
    pub(crate) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        match self {
            Cache::Ordered(cache) => cache.drop_line(tag),
            Cache::Wide(cache) => cache.drop_line(tag),
        }
    }

    /// Removes flags from a line without using it. Returns its previous word if it is held.
    pub(crate) fn clear_flags(&mut self, tag: u64, flags: u64) -> Option<u64> {
        match self {
            Cache::Ordered(cache) => cache.clear_flags(tag, flags),
            Cache::Wide(cache) => cache.clear_flags(tag, flags),
        }
    }

    /// Returns the words of all held lines.
    pub(crate) fn lines(&self) -> Vec<u64> {
        match self {
            Cache::Ordered(cache) => cache.lines().collect(),
            Cache::Wide(cache) => cache.lines().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_found_by_the_remainder() {
        for count in [1, 3, 5, 12, 1000, 40_960, 45_056, (1 << 40) - 1, u64::MAX] {
            let near = [
                0,
                1,
                count - 1,
                count,
                count.wrapping_add(1),
                u64::MAX - 1,
                u64::MAX,
            ];
            let multiples = (1..64).flat_map(|shift| {
                let multiple = (u64::MAX >> shift) / count * count;
                [multiple.wrapping_sub(1), multiple, multiple + 1]
            });
            for number in near.into_iter().chain(multiples) {
                let expected = (number / count, number % count);
                assert_eq!(Sets::new(count).quotient_and_remainder(number), expected);
            }
        }
    }
}
