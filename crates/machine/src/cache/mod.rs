//! One set-associative cache of tags, exact under LRU and tree-PLRU.
//!
//! A line is one 64-bit word:
//!
//! ```text
//!  63            46 45                        2   1   0
//! +----------------+--------------------------+---+---+
//! | address space  | line number, 44 bits     | P | D |
//! +----------------+--------------------------+---+---+
//! ```
//!
//! D: the line is dirty. P: a prefetcher brought it and nothing used it yet.
//! The word without its flags is a *tag*. Example: line 5, dirty, in address
//! space 0 is `0b10101`.
//!
//! Sets of up to 16 ways are [`narrow`], laid out for speed. The few wider ones
//! (last-level caches of 20 or 48 ways) are [`wide`], laid out for simplicity.

mod host;
pub(crate) mod narrow;
pub(crate) mod tree;
mod wide;

use crate::{CacheConfig, Replacement};
#[cfg(target_arch = "x86_64")]
pub(crate) use host::{Eights, Fours};
pub(crate) use host::{Portable, Rows, Width};
use narrow::Narrow;
use wide::Wide;

/// The line was written since it came.
pub(crate) const DIRTY: u64 = 1;
/// The line was prefetched and not used yet.
pub(crate) const PREFETCHED: u64 = 2;
/// Both flags.
const FLAGS: u64 = DIRTY | PREFETCHED;
/// Each address space's lines are so many further in the last-level cache than those of
/// the one before; `engine/src/stream.h` has the same.
pub(crate) const SPACE_STEP: u64 = 0x1_9e37;
/// No line: a tag no address has, without flags.
pub(crate) const EMPTY: u64 = !FLAGS;
/// Bits of a line number that are kept; addresses are taken modulo 2^50, which
/// tells all canonical addresses of 48-bit machines apart.
pub(crate) const LINE_BITS: u32 = 44;
/// Where the line number stands in a word.
const TAG_MASK: u64 = ((1 << LINE_BITS) - 1) << 2;
/// Where the address space stands in a word.
pub(crate) const SPACE_SHIFT: u32 = LINE_BITS + 2;

/// Tag of the line that holds `addr`, in address space 0.
#[inline(always)]
pub(crate) fn tag_of(addr: u64) -> u64 {
    (addr >> 4) & TAG_MASK
}

/// The word without its flags.
#[inline(always)]
pub(crate) fn tag_in(word: u64) -> u64 {
    word & !FLAGS
}

/// Result of a look-up: the cache's state for the line, which it now holds.
pub(crate) enum Found {
    /// It held the line; the word as it was before.
    Hit(u64),
    /// It did not; the word that left for it, or [`EMPTY`].
    Miss(u64),
}

/// Number of sets, and how a line finds its own.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    count: u64,
    /// `count - 1`, where that is a mask.
    mask: Option<u64>,
    /// 2^64 by `count`, rounded down: what is asked at every miss should not divide.
    inverse: u64,
}

impl Sets {
    pub(crate) fn new(count: u64) -> Self {
        Sets {
            count,
            mask: count.is_power_of_two().then_some(count - 1),
            inverse: u64::MAX / count,
        }
    }

    /// The set of a tag without address space: its line number modulo the number
    /// of sets.
    #[inline(always)]
    pub(crate) fn of_private(self, tag: u64) -> usize {
        self.of_number(tag >> 2)
    }

    /// The set of any tag: as above, moved along by an odd step for each address space.
    /// So programs at equal addresses do not meet in the same sets.
    #[inline(always)]
    fn of(self, tag: u64) -> usize {
        let line = (tag & TAG_MASK) >> 2;
        self.of_number(line + (tag >> SPACE_SHIFT) * SPACE_STEP)
    }

    /// The set of a number of a line, or of a page.
    #[inline(always)]
    pub(crate) fn of_number(self, line: u64) -> usize {
        match self.mask {
            Some(mask) => (line & mask) as usize,
            None => self.remainder(line) as usize,
        }
    }
}

impl Sets {
    /// `number % count`. The product with the inverse is below the quotient by less than
    /// two, so its whole part is the quotient or one less.
    #[inline(always)]
    fn remainder(self, number: u64) -> u64 {
        let quotient = (u128::from(number) * u128::from(self.inverse)) >> 64;
        let left = number - quotient as u64 * self.count;
        if left < self.count {
            left
        } else {
            left - self.count
        }
    }
}

/// Tags of one cache.
pub(crate) enum Cache {
    Narrow(Narrow),
    Wide(Wide),
}

impl Cache {
    pub(crate) fn new(config: &CacheConfig) -> Self {
        Self::with_shape(config.sets(), config.ways as usize, config.replacement)
    }

    pub(crate) fn with_shape(sets: u64, ways: usize, replacement: Replacement) -> Self {
        if ways <= narrow::MOST_WAYS {
            return Cache::Narrow(Narrow::new(sets, ways, replacement));
        }
        Cache::Wide(Wide::new(sets, ways, replacement))
    }

    /// Makes the cache hold the line as its latest used, with `set` added to its
    /// flags and, if it was there, `clear` taken from them.
    #[inline]
    pub(crate) fn take(&mut self, tag: u64, set: u64, clear: u64) -> Found {
        match self {
            Cache::Narrow(cache) => cache.take(tag, set, clear),
            Cache::Wide(cache) => cache.take(tag, set, clear),
        }
    }

    /// Tells the host that a tag will be asked for soon.
    #[inline(always)]
    pub(crate) fn expect(&self, tag: u64) {
        if let Cache::Narrow(cache) = self {
            cache.expect(tag);
        }
    }

    /// Whether the cache holds the line.
    pub(crate) fn holds(&self, tag: u64) -> bool {
        match self {
            Cache::Narrow(cache) => cache.holds(tag),
            Cache::Wide(cache) => cache.holds(tag),
        }
    }

    /// Takes the line out; its word, if it was there.
    pub(crate) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        match self {
            Cache::Narrow(cache) => cache.drop_line(tag),
            Cache::Wide(cache) => cache.drop_line(tag),
        }
    }

    /// Takes flags from a line, whose place in the order of use stays; its word before, if it is
    /// there.
    pub(crate) fn clear_flags(&mut self, tag: u64, flags: u64) -> Option<u64> {
        match self {
            Cache::Narrow(cache) => cache.clear_flags(tag, flags),
            Cache::Wide(cache) => cache.clear_flags(tag, flags),
        }
    }

    /// The words of all lines held.
    pub(crate) fn lines(&self) -> Vec<u64> {
        match self {
            Cache::Narrow(cache) => cache.lines().collect(),
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
                assert_eq!(Sets::new(count).remainder(number), number % count);
            }
        }
    }
}
