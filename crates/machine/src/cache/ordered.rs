//! LRU sets of up to 48 ways, in order of use.
//!
//! A set is a row of 32-bit words, last used first, in groups of eight:
//!
//! ```text
//! a set of 12 ways:  | last used | … | least recently used | 4 unused words |
//!
//!  31       24 23                                2 1   0
//! +-----------+-----------------------------------+---+---+
//! | region    | quotient, low 22 bits             | P | D |
//! +-----------+-----------------------------------+---+---+
//! ```
//!
//! The *quotient* is the line number divided by the number of sets. Its high bits and the address
//! space are the line's *region*. Regions are numbered when they first occur. A program uses few of
//! them, because a region spans 256 GiB in a cache of 1024 sets. If there are more than 255, the
//! cache becomes [`Wide`].
//!
//! A use compares all words at once and moves the words before the found one by a word, in
//! registers. With up to 16 ways, it reads and writes one cache line of the host.
//!
//! Rejected: a word of the host for each line, with an order of way numbers and a byte of hash for
//! each way. A set of 16 ways took 152 bytes in three cache lines of the host.

use super::host::{self, SearchWidth};
use super::row::{RowBefore, RowUse, WORDS, WordGroup};
use super::wide::Wide;
use crate::Replacement;

use super::{DIRTY, EMPTY, Evicted, FLAGS, LookupResult, SPACE_SHIFT, SPACE_STEP, Sets, TAG_MASK};

/// Maximum number of ways.
pub(super) const MAX_ORDERED_WAYS: usize = 48;
/// Number of bits of the quotient in a word.
const QUOTIENT_BITS: u32 = 22;
/// Position of the region in a word.
const REGION_SHIFT: u32 = QUOTIENT_BITS + 2;
/// Maximum number of regions. The number 255 stays unused, so that no line equals [`NO_LINE`].
const MAX_REGIONS: usize = 255;
/// An unused way.
const NO_LINE: u32 = EMPTY as u32;
/// Number of recently used regions that are found without a search.
const RECENT: usize = 64;

/// The tags of a cache with LRU sets.
#[derive(Clone)]
pub(crate) struct Ordered {
    groups: Vec<WordGroup>,
    /// Number of groups before the first set, so that it begins with a cache line of the host.
    unused: usize,
    /// Number of groups of a set.
    row_groups: usize,
    ways: usize,
    sets: Sets,
    regions: RegionNumbers,
    evicted: Evicted,
    width: SearchWidth,
}

/// Set and word of a line.
#[derive(Clone, Copy)]
struct Position {
    set: usize,
    word: u32,
}

/// A quotient's part above [`QUOTIENT_BITS`] and the address space.
#[derive(Clone, Copy, PartialEq, Eq)]
struct AddressRegion(u64);

impl AddressRegion {
    const NONE: AddressRegion = AddressRegion(u64::MAX);

    fn new(quotient: u64, space: u64) -> AddressRegion {
        AddressRegion(quotient >> QUOTIENT_BITS | space << 32)
    }

    fn quotient(self) -> u64 {
        (self.0 & u64::from(u32::MAX)) << QUOTIENT_BITS
    }

    fn space(self) -> u64 {
        self.0 >> 32
    }

    /// Returns the place among the recent ones, by Fibonacci hashing.
    fn recent_place(self) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % RECENT
    }
}

/// The numbers of regions.
#[derive(Clone)]
struct RegionNumbers {
    /// Recently used regions, and their numbers at the position in a word.
    recent: [(AddressRegion, u32); RECENT],
    by_number: Vec<AddressRegion>,
}

impl RegionNumbers {
    fn new() -> RegionNumbers {
        RegionNumbers {
            recent: [(AddressRegion::NONE, 0); RECENT],
            by_number: Vec::new(),
        }
    }

    /// Returns the number of a region, at its position in a word, if it was used recently.
    #[inline(always)]
    fn find_recent(&self, region: AddressRegion) -> Option<u32> {
        let (recent, number) = self.recent[region.recent_place()];
        (recent == region).then_some(number)
    }

    /// Returns the number of a region, at its position in a word, if it is known.
    #[inline(always)]
    fn find(&self, region: AddressRegion) -> Option<u32> {
        self.find_recent(region).or_else(|| self.search(region))
    }

    #[cold]
    fn search(&self, region: AddressRegion) -> Option<u32> {
        let number = self.by_number.iter().position(|&known| known == region);
        number.map(|number| (number as u32) << REGION_SHIFT)
    }

    /// As [`RegionNumbers::find`], and adds an unknown region. `None` if there are too many.
    #[inline(always)]
    fn find_or_add(&mut self, region: AddressRegion) -> Option<u32> {
        match self.find_recent(region) {
            Some(number) => Some(number),
            None => self.add(region),
        }
    }

    #[cold]
    fn add(&mut self, region: AddressRegion) -> Option<u32> {
        let number = match self.search(region) {
            Some(number) => number,
            None if self.by_number.len() == MAX_REGIONS => return None,
            None => {
                self.by_number.push(region);
                (self.by_number.len() as u32 - 1) << REGION_SHIFT
            }
        };
        self.recent[region.recent_place()] = (region, number);
        Some(number)
    }
}

impl Ordered {
    pub(super) fn new(sets: u64, ways: usize, evicted: Evicted) -> Ordered {
        let row_groups = ways.div_ceil(WORDS);
        let groups = vec![WordGroup([NO_LINE; WORDS]); sets as usize * row_groups + 1];
        Ordered {
            unused: (groups.as_ptr() as usize / size_of::<WordGroup>()) % 2,
            groups,
            row_groups,
            ways,
            sets: Sets::new(sets),
            regions: RegionNumbers::new(),
            evicted,
            width: SearchWidth::of_this_host(),
        }
    }

    /// As [`Cache::take`](super::Cache::take). `None`, without an effect, if there are too many
    /// regions.
    #[inline]
    pub(super) fn take(&mut self, tag: u64, set: u64, clear: u64) -> Option<LookupResult> {
        let (set_number, quotient) = self.sets.divide(tag);
        let region = AddressRegion::new(quotient, tag >> SPACE_SHIFT);
        let row_use = RowUse {
            line: self.regions.find_or_add(region)? | low_part(quotient),
            set: set as u32,
            clear: clear as u32,
            ways: self.ways,
        };
        let before = self.use_row(set_number, row_use);
        let flags = u64::from(before.word) & FLAGS;
        Some(match before.held {
            true => LookupResult::Hit(tag | flags),
            false if self.evicted == Evicted::Dirty && flags & DIRTY == 0 => {
                LookupResult::Miss(EMPTY)
            }
            false => LookupResult::Miss(self.word(set_number, before.word)),
        })
    }

    /// As [`Cache::use_held`](super::Cache::use_held).
    #[inline(always)]
    pub(super) fn use_held(&mut self, tag: u64, set: u64) -> bool {
        let (set_number, quotient) = self.sets.divide(tag);
        let region = AddressRegion::new(quotient, tag >> SPACE_SHIFT);
        let Some(region) = self.regions.find_recent(region) else {
            return false;
        };
        let (line, set, width) = (region | low_part(quotient), set as u32, self.width);
        match self.row_mut(set_number) {
            [one] => host::use_held([one], line, set, width),
            [one, two] => host::use_held([one, two], line, set, width),
            _ => false,
        }
    }

    #[inline(always)]
    fn use_row(&mut self, set: usize, row_use: RowUse) -> RowBefore {
        let width = self.width;
        match self.row_mut(set) {
            [one] => host::use_row([one], row_use, width),
            [one, two] => host::use_row([one, two], row_use, width),
            row => use_wide_row(row, row_use, width),
        }
    }

    #[inline(always)]
    fn row_mut(&mut self, set: usize) -> &mut [WordGroup] {
        let first = self.unused + set * self.row_groups;
        &mut self.groups[first..first + self.row_groups]
    }

    /// Prefetches the tag's set into the host's cache.
    #[inline(always)]
    pub(super) fn expect(&self, tag: u64) {
        let first = self.unused + self.sets.of(tag) * self.row_groups;
        for group in self.groups[first..first + self.row_groups]
            .iter()
            .step_by(2)
        {
            host::fetch_early(group);
        }
    }

    pub(super) fn holds(&self, tag: u64) -> bool {
        self.position(tag).is_some_and(|p| self.way(p).is_some())
    }

    pub(super) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        let position = self.position(tag)?;
        let way = self.way(position)?;
        let word = *self.word_at(position.set, way);
        for way in way + 1..self.ways {
            *self.word_at(position.set, way - 1) = *self.word_at(position.set, way);
        }
        *self.word_at(position.set, self.ways - 1) = NO_LINE;
        Some(tag | u64::from(word) & FLAGS)
    }

    pub(super) fn clear_flags(&mut self, tag: u64, flags: u64) -> Option<u64> {
        let position = self.position(tag)?;
        let way = self.way(position)?;
        let word = self.word_at(position.set, way);
        let before = *word;
        *word &= !(flags as u32);
        Some(tag | u64::from(before) & FLAGS)
    }

    /// Iterates over the words of all held lines, those of a set from the least recently used one.
    pub(super) fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        let rows = self.groups[self.unused..].chunks_exact(self.row_groups);
        rows.enumerate().flat_map(move |(set, row)| {
            let words = row.iter().rev().flat_map(|group| group.0.iter().rev());
            let held = words.filter(|&&word| word != NO_LINE);
            held.map(move |&word| self.word(set, word))
        })
    }

    /// Returns a cache with the same lines in the same order of use.
    pub(super) fn to_wide(&self) -> Wide {
        let mut wide = Wide::new(self.sets.count, self.ways, Replacement::Lru);
        for word in self.lines() {
            wide.take(word & !FLAGS, word & FLAGS, 0);
        }
        wide
    }

    #[inline(always)]
    fn position(&self, tag: u64) -> Option<Position> {
        let (set, quotient) = self.sets.divide(tag);
        let region = AddressRegion::new(quotient, tag >> SPACE_SHIFT);
        let word = self.regions.find(region)? | low_part(quotient);
        Some(Position { set, word })
    }

    fn way(&self, position: Position) -> Option<usize> {
        let first = self.unused + position.set * self.row_groups;
        let row = &self.groups[first..first + self.row_groups];
        let mut words = row.iter().flat_map(|group| group.0);
        words.position(|word| word & !(FLAGS as u32) == position.word)
    }

    fn word_at(&mut self, set: usize, way: usize) -> &mut u32 {
        &mut self.row_mut(set)[way / WORDS].0[way % WORDS]
    }

    /// Returns a word of a set in the format that all levels share.
    #[inline(always)]
    fn word(&self, set: usize, word: u32) -> u64 {
        let number = (word >> REGION_SHIFT) as usize;
        let Some(region) = self.regions.by_number.get(number) else {
            return EMPTY;
        };
        let low = u64::from(word >> 2) & ((1 << QUOTIENT_BITS) - 1);
        let shifted = (region.quotient() | low) * self.sets.count + set as u64;
        let line = shifted - region.space() * SPACE_STEP;
        line << 2 & TAG_MASK | region.space() << SPACE_SHIFT | u64::from(word) & FLAGS
    }
}

/// Returns the part of a quotient that is in a word, at its position.
#[inline(always)]
fn low_part(quotient: u64) -> u32 {
    ((quotient & ((1 << QUOTIENT_BITS) - 1)) << 2) as u32
}

#[inline(never)]
fn use_wide_row(row: &mut [WordGroup], row_use: RowUse, width: SearchWidth) -> RowBefore {
    match row {
        [one, two, three] => host::use_row([one, two, three], row_use, width),
        [one, two, three, four] => host::use_row([one, two, three, four], row_use, width),
        [one, two, three, four, five] => {
            host::use_row([one, two, three, four, five], row_use, width)
        }
        [one, two, three, four, five, six, ..] => {
            host::use_row([one, two, three, four, five, six], row_use, width)
        }
        // Rows have one to six groups.
        _ => RowBefore {
            held: false,
            word: NO_LINE,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::PREFETCHED;

    /// A reproducible sequence of numbers (xorshift).
    fn numbers(seed: u64) -> impl FnMut() -> u64 {
        let mut x = seed | 1;
        move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        }
    }

    fn widths() -> Vec<SearchWidth> {
        let mut widths = vec![SearchWidth::Any];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                widths.push(SearchWidth::Fours);
            }
            if is_x86_feature_detected!("avx512f") {
                widths.push(SearchWidth::Eights);
            }
        }
        widths
    }

    fn same(one: &LookupResult, other: &LookupResult) -> bool {
        match (one, other) {
            (LookupResult::Hit(one), LookupResult::Hit(other)) => one == other,
            (LookupResult::Miss(one), LookupResult::Miss(other)) => one == other,
            _ => false,
        }
    }

    /// Compares an ordered cache with a wide one, which keeps stamps and whole words. `bases` are
    /// the tags of lines that the accessed ones are near.
    fn compare(sets: u64, ways: usize, bases: &[u64], seed: u64) {
        for width in widths() {
            let mut random = numbers(seed);
            let mut ordered = Ordered {
                width,
                ..Ordered::new(sets, ways, Evicted::All)
            };
            let mut wide = Wide::new(sets, ways, Replacement::Lru);
            for turn in 0..20_000 {
                let base = bases[random() as usize % bases.len()];
                let tag = base + ((random() % (2 * sets * ways as u64)) << 2);
                let flags = random() & FLAGS;
                let is_same = match random() % 16 {
                    0 => ordered.drop_line(tag) == wide.drop_line(tag),
                    1 => ordered.clear_flags(tag, flags) == wide.clear_flags(tag, flags),
                    2 => ordered.holds(tag) == wide.holds(tag),
                    _ => {
                        let clear = random() & FLAGS;
                        let found = ordered.take(tag, flags, clear);
                        let found = found.expect("SANITY: there are few regions");
                        same(&found, &wide.take(tag, flags, clear))
                    }
                };
                assert!(
                    is_same,
                    "{sets} sets of {ways} ways, tag {tag:#x}, turn {turn}, seed {seed}"
                );
            }
            let sorted = |mut words: Vec<u64>| {
                words.sort_unstable();
                words
            };
            assert_eq!(
                sorted(ordered.lines().collect()),
                sorted(wide.lines().collect())
            );
        }
    }

    #[test]
    fn ordered_sets_equal_sets_with_stamps() {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = time.expect("SANITY: the clock is past 1970").as_nanos() as u64;
        let bases = [
            0,
            0x5555_5555_0000 >> 4 & !3,
            0x7fff_f7ff_0000 >> 4 & !3,
            7 << SPACE_SHIFT,
            ((1 << 18) - 2) << SPACE_SHIFT | 0x7fff_f7ff_0000 >> 4 & !3,
        ];
        for (sets, ways) in [
            (1, 1),
            (1, 16),
            (64, 8),
            (3, 11),
            (16, 12),
            (1024, 4),
            (40, 17),
            (128, 24),
            (5, 32),
            (12, 48),
        ] {
            compare(sets, ways, &bases, seed);
        }
    }

    #[test]
    fn a_cache_with_too_many_regions_becomes_wide_and_keeps_its_lines() {
        let (sets, ways) = (8, 4);
        let mut cache = super::super::Cache::with_shape(sets, ways, Replacement::Lru, Evicted::All);
        let mut wide = Wide::new(sets, ways, Replacement::Lru);
        let mut random = numbers(20);
        for turn in 0..20_000 {
            // At first few regions, in the end thousands.
            let regions = 1 + turn / 4;
            let line = ((random() % regions) << 30) + random() % 64;
            let set = if random() & 1 == 0 { DIRTY } else { PREFETCHED };
            let found = cache.take(line << 2, set, 0);
            assert!(same(&found, &wide.take(line << 2, set, 0)), "turn {turn}");
        }
        assert!(matches!(cache, super::super::Cache::Wide(_)));
    }

    #[test]
    fn clean_lines_leave_unnoticed_where_only_dirty_ones_matter() {
        let mut cache = Ordered::new(1, 2, Evicted::Dirty);
        let mut take = |line: u64, set| cache.take(line << 2, set, 0);
        assert!(matches!(take(1, DIRTY), Some(LookupResult::Miss(EMPTY))));
        assert!(matches!(take(2, 0), Some(LookupResult::Miss(EMPTY))));
        assert!(matches!(take(3, 0), Some(LookupResult::Miss(word)) if word == 1 << 2 | DIRTY));
        assert!(matches!(take(4, 0), Some(LookupResult::Miss(EMPTY))));
    }

    #[test]
    fn lines_are_listed_from_the_least_recently_used() {
        let mut cache = Ordered::new(1, 4, Evicted::All);
        for line in [1, 2, 3, 1, 4, 5] {
            cache.take(line << 2, 0, 0);
        }
        let lines: Vec<u64> = cache.lines().map(|word| word >> 2).collect();
        assert_eq!(lines, [3, 1, 4, 5]);
    }
}
