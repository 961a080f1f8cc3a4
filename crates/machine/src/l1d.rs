//! The first-level data cache, with a front for its latest used lines.
//!
//! The front is a direct-mapped table by line number. The word of a line stands
//! there only while the line is the latest used of its set: seeing it there
//! means that using the line again changes nothing (under tree-PLRU too, whose
//! bits already point away from it). The converse need not hold, so any number
//! of sets works with a table of constant size.

use crate::CacheConfig;
use crate::cache::narrow::Narrow;
use crate::cache::{DIRTY, EMPTY, tag_in, tag_of};

/// Entries of the front; a power of two, no smaller than the sets of any common
/// first level.
const FRONT: usize = 512;

pub(crate) struct L1d {
    front: [u64; FRONT],
    cache: Narrow,
}

#[inline(always)]
fn front_index(tag: u64) -> usize {
    (tag >> 2) as usize & (FRONT - 1)
}

impl L1d {
    pub(crate) fn new(config: &CacheConfig) -> Self {
        let cache = Narrow::new(config.sets(), config.ways as usize, config.replacement);
        L1d {
            front: [EMPTY; FRONT],
            cache,
        }
    }

    /// Whether using the line that holds `addr` would change nothing: it is the
    /// latest used of its set and, for a store, dirty already.
    #[inline(always)]
    pub(crate) fn is_settled(&self, addr: u64, store: bool) -> bool {
        let tag = tag_of(addr);
        (self.front[front_index(tag)] | u64::from(!store)) == (tag | DIRTY)
    }

    /// Uses a line if it is held; whether it is.
    #[inline(always)]
    pub(crate) fn reuse(&mut self, tag: u64, set: u64) -> bool {
        let Some((word, before)) = self.cache.reuse(tag, set) else {
            return false;
        };
        self.front[front_index(before)] = EMPTY;
        self.front[front_index(tag)] = word;
        true
    }

    /// Takes in a line that is not held; the word that left.
    pub(crate) fn fill(&mut self, tag: u64, set: u64) -> u64 {
        let (left, before) = self.cache.fill(tag, set);
        self.front[front_index(before)] = EMPTY;
        self.front[front_index(tag)] = tag | set;
        left
    }

    /// Takes a line out; its word, if it was there.
    pub(crate) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        let slot = &mut self.front[front_index(tag)];
        if tag_in(*slot) == tag {
            *slot = EMPTY;
        }
        self.cache.drop_line(tag)
    }

    /// The words of all lines held.
    pub(crate) fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        self.cache.lines()
    }
}
