//! Sets of up to 16 ways.
//!
//! ```text
//! | order | 16 hashes of a byte | line 0 | line 1 | … | line 15 |
//! ```
//!
//! All hashes of a set are compared at once. A hit therefore reads one line, and a miss usually
//! none. The time does not depend on the line's position in the set, which the host could not
//! predict. LRU order is a list of 4-bit way numbers, last used first:
//!
//! ```text
//! order of a 4-way set after uses of ways 0, 1, 2, 3, 1:  0xffff_ffff_ffff_0231
//! ```
//!
//! Rejected: rows in order of use, shifted at every use. They were slower on random hits, and
//! slower with more ways. Also rejected: tags of 32 bits, all in one cache line of the host and
//! compared at once. They were no faster (80 instead of 152 bytes per set, but with a table of
//! address regions beside them).

use super::host::{equal_bytes, fetch_early};
use super::{EMPTY, Found, Sets, tag_in, tree};
use crate::Replacement;

/// Maximum number of ways of a narrow set.
pub(crate) const MOST_WAYS: usize = 16;
/// The lowest bit of each nibble.
const NIBBLES: u64 = 0x1111_1111_1111_1111;

#[derive(Clone)]
struct Set {
    /// LRU: way numbers, last used first. Tree-PLRU: the bits of the tree.
    order: u64,
    hashes: [u64; 2],
    lines: [u64; MOST_WAYS],
}

/// The tags of a cache with narrow sets.
pub(crate) struct Narrow {
    rows: Vec<Set>,
    ways: usize,
    tree: bool,
    sets: Sets,
}

impl Narrow {
    pub(crate) fn new(sets: u64, ways: usize, replacement: Replacement) -> Self {
        let tree = replacement == Replacement::TreePlru;
        let order = if tree { 0 } else { first_order(ways) };
        let row = Set {
            order,
            hashes: [0; 2],
            lines: [EMPTY; MOST_WAYS],
        };
        Narrow {
            rows: vec![row; sets as usize],
            ways,
            tree,
            sets: Sets::new(sets),
        }
    }

    #[inline(never)]
    pub(crate) fn take(&mut self, tag: u64, set: u64, clear: u64) -> Found {
        let row = &mut self.rows[self.sets.of(tag)];
        if let Some(way) = row.find(tag) {
            let before = row.lines[way];
            row.lines[way] = (before & !clear) | set;
            row.use_way(way, self.ways, self.tree);
            return Found::Hit(before);
        }
        Found::Miss(row.fill(tag, set, self.ways, self.tree))
    }

    /// Prefetches the tag's set into the host's cache.
    #[inline(always)]
    pub(crate) fn expect(&self, tag: u64) {
        fetch_early(&self.rows[self.sets.of(tag)]);
    }

    pub(crate) fn holds(&self, tag: u64) -> bool {
        self.rows[self.sets.of(tag)].find(tag).is_some()
    }

    pub(crate) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        let row = &mut self.rows[self.sets.of(tag)];
        let way = row.find(tag)?;
        if !self.tree {
            row.order = moved_last(row.order, way, self.ways);
        }
        Some(std::mem::replace(&mut row.lines[way], EMPTY))
    }

    /// Removes flags from a line and returns its previous word if it is held.
    pub(crate) fn clear_flags(&mut self, tag: u64, flags: u64) -> Option<u64> {
        let row = &mut self.rows[self.sets.of(tag)];
        let way = row.find(tag)?;
        let before = row.lines[way];
        row.lines[way] = before & !flags;
        Some(before)
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        self.rows
            .iter()
            .flat_map(|row| row.lines)
            .filter(|&word| word != EMPTY)
    }
}

impl Set {
    /// Returns the way that holds a tag.
    #[inline(always)]
    fn find(&self, tag: u64) -> Option<usize> {
        let mut likely = equal_bytes(self.hashes, hash(tag));
        while likely != 0 {
            let way = likely.trailing_zeros() as usize % MOST_WAYS;
            if tag_in(self.lines[way]) == tag {
                return Some(way);
            }
            likely &= likely - 1;
        }
        None
    }

    /// Replaces the next victim by a line. Returns the evicted word.
    #[inline(always)]
    fn fill(&mut self, tag: u64, set: u64, ways: usize, tree: bool) -> u64 {
        let way = if tree {
            self.coldest_leaf(ways)
        } else {
            (self.order >> (4 * (ways - 1))) as usize
        } % MOST_WAYS;
        let shift = 8 * (way % 8);
        let hashes = &mut self.hashes[way / 8];
        *hashes = (*hashes & !(0xff << shift)) | (u64::from(hash(tag)) << shift);
        self.use_way(way, ways, tree);
        std::mem::replace(&mut self.lines[way], tag | set)
    }

    fn coldest_leaf(&self, ways: usize) -> usize {
        let empty = self.lines[..ways].iter().position(|&word| word == EMPTY);
        empty.unwrap_or_else(|| tree::coldest(self.order, ways))
    }

    #[inline(always)]
    fn use_way(&mut self, way: usize, ways: usize, tree: bool) {
        self.order = if tree {
            tree::pointed_away(self.order, ways, way)
        } else {
            moved_first(self.order, way)
        };
    }
}

/// Returns a byte that distinguishes most tags of a set: the top of a Fibonacci hash.
#[inline(always)]
fn hash(tag: u64) -> u8 {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Returns the initial order. Nibbles beyond `ways` are all ones.
fn first_order(ways: usize) -> u64 {
    let all = 0xfedc_ba98_7654_3210;
    if ways == MOST_WAYS {
        all
    } else {
        all | (u64::MAX << (4 * ways))
    }
}

/// Returns the bit position of a way in an order.
#[inline(always)]
fn shift_of(order: u64, way: usize) -> u32 {
    let x = order ^ (way as u64 * NIBBLES);
    // The lowest match is real. Higher ones may be caused by a borrow.
    let zero = x.wrapping_sub(NIBBLES) & !x & (NIBBLES << 3);
    zero.trailing_zeros() & 0x3c
}

/// Returns the order with a way moved to the front.
#[inline(always)]
fn moved_first(order: u64, way: usize) -> u64 {
    let below = (1 << shift_of(order, way)) - 1;
    (order & !(below << 4 | 15)) | (order & below) << 4 | way as u64
}

/// Returns the order with a way moved to the end of its `ways` nibbles.
fn moved_last(order: u64, way: usize, ways: usize) -> u64 {
    let below = (1u64 << shift_of(order, way)) - 1;
    let end = 4 * (ways as u32 - 1);
    let places = u64::MAX >> (60 - end);
    let closed = (order & below) | ((order & places) >> 4 & !below);
    (order & !places) | closed | (way as u64) << end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_follows_the_example() {
        let used = [0, 1, 2, 3, 1]
            .into_iter()
            .fold(first_order(4), moved_first);
        assert_eq!(used, 0xffff_ffff_ffff_0231);
        assert_eq!(moved_last(used, 3, 4), 0xffff_ffff_ffff_3021);
        assert_eq!(moved_last(first_order(16), 0, 16), 0x0fed_cba9_8765_4321);
    }
}
