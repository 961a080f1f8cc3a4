//! The first-level data cache, laid out for fast hits.
//!
//! Each line occupies a slot. The *front* is a direct-mapped table that maps line numbers to slots.
//! A hit needs one comparison with the slot's word, wherever the line is in its set. A stale entry
//! of the front does not match. If two held lines share an entry, it is marked as *crowded*, and a
//! miss in the front then searches the set. Otherwise the line is not held.
//!
//! A slot holds the address of its line. A slot XOR an address in that line is below 64, so the
//! comparison is a single operation.
//!
//! Under LRU, a hit writes an increasing stamp to the slot, and the smallest stamp of a set marks
//! the least recently used line. A hit therefore moves nothing and has no branch that the host
//! could mispredict. Loads and stores have separate stamps. The larger one counts as the last use,
//! and a line with a store stamp is dirty. A hit therefore only writes and need not wait for the
//! previous hit of the same line, as setting a flag in a word would.
//!
//! A miss finds the least recently used line without a search if that line has not been used since it
//! was found ([`L1d::oldest`]).
//!
//! Under tree-PLRU, the front only maps the last used line of each set, because reusing that line
//! changes no bit of the tree. Other hits take the slow path.
//!
//! Rejected: rows in order of use, because each change of line cost a mispredicted branch.

use crate::cache::{DIRTY, EMPTY, MAX_ROW_WAYS, Portable, RowSearch, Sets, tag_in, tree};
use crate::{CacheConfig, NO_ACCESS, Replacement};
use memgauge_trace::LINE_BYTES;

/// Number of entries of the front. It is a multiple of the lines of common first levels, so that
/// few lines share an entry.
const FRONT: usize = 16384;
/// Number of slots, more than the largest first level has lines. The last slot stays empty. The one
/// before it belongs to [`NO_ACCESS`].
const SLOTS: usize = 4096;
/// Largest number of stamps that are in use.
pub(crate) const RENEWED_STAMPS: u64 = 2 * SLOTS as u64;
/// Slot of [`NO_ACCESS`]. It is in no set, so it is never evicted.
const NO_ACCESS_PLACE: L1dPlace = L1dPlace((SLOTS - 2) as u16);
/// Front entry without a line: the empty slot.
const NOBODY: u16 = (SLOTS - 1) as u16;
/// Flag in an entry of the front: lines that it does not name may be held.
const CROWDED: u16 = 1 << 15;
/// Address bits that determine the entry of the front.
const FRONT_BITS: u64 = (FRONT as u64 - 1) * LINE_BYTES;
/// Content of an empty slot. No address of a program has this bit.
const NO_LINE: u64 = 1 << 62;
/// Size in bits of the hashed set of watched lines.
const WATCHED_BITS: usize = 1 << 15;
/// Flag in the slot of a watched line, which makes the front's comparison fail.
const WATCHED: u64 = 1 << 61;
/// Flag in the slot of a line whose next use is reported, with the same effect.
const FRESH: u64 = 1 << 60;
const FLAGS: u64 = WATCHED | FRESH;

pub(crate) struct L1d {
    /// Slot of the line at each entry, and [`CROWDED`].
    front: [u16; FRONT],
    lines: [u64; SLOTS],
    /// Stamp of the last load of each slot, then of the last store. 0 if there was none since the
    /// line was filled.
    stamps: [u32; 2 * SLOTS],
    /// The way of each set that was least recently used when a line was last filled, and its stamp at
    /// that time. It still is if the stamp is the same, because stamps only grow. The next miss then
    /// need not wait for the search.
    oldest: Box<[WayStamp]>,
    sets: Sets,
    ways: usize,
    /// One tree per set, under tree-PLRU.
    trees: Vec<PlruTree>,
    /// True once any line has been watched.
    watches: bool,
    /// One bit per hash of a watched line, whether it is held or not.
    watched: Box<[u64; WATCHED_BITS / 64]>,
    /// Number of slots with [`FRESH`].
    fresh: u64,
    /// One bit per slot whose line other cores may hold. The bit of an evicted line may remain.
    shared: [u64; SLOTS / 64],
    /// One bit per non-zero word of `shared`, because turns may be short and each one is checked.
    shared_words: u64,
}

/// Result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    Absent,
    Held,
    /// The line is held, and the use is to be reported.
    Reported {
        /// The line is [watched](L1d::watch).
        watched: bool,
        /// It is the first use since [`L1d::report_next_use`].
        first: bool,
    },
}

/// Index of a slot.
#[derive(Clone, Copy)]
pub(crate) struct L1dPlace(u16);

impl L1dPlace {
    fn new(slot: usize) -> Self {
        L1dPlace(slot as u16)
    }

    #[inline(always)]
    fn slot(self) -> usize {
        usize::from(self.0) % SLOTS
    }

    /// Index of the stamp of its last load or store.
    #[inline(always)]
    fn stamp(self, store: bool) -> usize {
        self.slot() | (usize::from(store) * SLOTS)
    }
}

/// A stamp, and the number of a way in its low bits, which are 0 in stamps.
#[derive(Clone, Copy)]
struct WayStamp(u32);

impl WayStamp {
    /// Equals no stamp of any way.
    const NONE: WayStamp = WayStamp(u32::MAX);

    #[inline(always)]
    fn way(self) -> usize {
        self.0 as usize % MAX_ROW_WAYS
    }

    #[inline(always)]
    fn stamp(self) -> u32 {
        self.0 & !(MAX_ROW_WAYS as u32 - 1)
    }
}

#[derive(Clone, Copy)]
struct PlruTree {
    bits: u64,
    /// Tag of the last used line.
    latest: u64,
}

#[inline(always)]
fn front_index(addr: u64) -> usize {
    (addr / LINE_BYTES) as usize % FRONT
}

/// Returns true if `addr` is in a line.
#[inline(always)]
fn holds(line: u64, addr: u64) -> bool {
    line ^ addr < LINE_BYTES
}

/// Returns the bit of a line among [`WATCHED_BITS`], by Fibonacci hashing.
#[inline(always)]
fn watched_bit(tag: u64) -> usize {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as usize % WATCHED_BITS
}

/// Returns the address of a tag's line.
#[inline(always)]
fn address(tag: u64) -> u64 {
    tag << 4
}

impl L1d {
    pub(crate) fn new(config: &CacheConfig) -> Self {
        let (sets, ways) = (config.sets() as usize, config.ways as usize);
        let tree = PlruTree {
            bits: 0,
            latest: EMPTY,
        };
        let mut lines = [NO_LINE; SLOTS];
        lines[NO_ACCESS_PLACE.slot()] = NO_ACCESS;
        // Under tree-PLRU, the front names few of the held lines.
        let front = match config.replacement {
            Replacement::Lru => NOBODY,
            Replacement::TreePlru => NOBODY | CROWDED,
        };
        L1d {
            front: [front; FRONT],
            lines,
            stamps: [0; 2 * SLOTS],
            oldest: vec![WayStamp::NONE; sets].into(),
            sets: Sets::new(config.sets()),
            ways,
            trees: match config.replacement {
                Replacement::Lru => Vec::new(),
                Replacement::TreePlru => vec![tree; sets],
            },
            watches: false,
            watched: Box::new([0; WATCHED_BITS / 64]),
            fresh: 0,
            shared: [0; SLOTS / 64],
            shared_words: 0,
        }
    }

    /// Returns the slot of the line of `addr` if the front has it, otherwise any slot.
    #[inline(always)]
    pub(crate) fn front_place(&self, addr: u64) -> L1dPlace {
        L1dPlace(self.front[front_index(addr)])
    }

    /// Returns true if a slot holds the line of `addr`.
    #[inline(always)]
    pub(crate) fn is_at(&self, addr: u64, place: L1dPlace) -> bool {
        holds(self.lines[place.slot()], addr)
    }

    /// Uses the line in a slot. `stamp` must exceed all previous ones.
    #[inline(always)]
    pub(crate) fn use_place(&mut self, place: L1dPlace, store: bool, stamp: u32) {
        self.stamps[place.stamp(store)] = stamp;
    }

    /// Uses a line if it is held.
    #[inline(always)]
    pub(crate) fn reuse<R: RowSearch>(&mut self, tag: u64, store: bool, stamp: u32) -> Reuse {
        let place = self.front_place(address(tag));
        if self.is_at(address(tag), place) {
            self.use_place(place, store, stamp);
            return Reuse::Held;
        }
        self.reuse_behind::<R>(tag, store, stamp)
    }

    /// Uses a line that is not in the front.
    #[inline(always)]
    fn reuse_behind<R: RowSearch>(&mut self, tag: u64, store: bool, stamp: u32) -> Reuse {
        if self.front[front_index(address(tag))] & CROWDED == 0 {
            return Reuse::Absent;
        }
        self.search::<R>(tag, store, stamp)
    }

    /// Uses a line that is in its set but not in the front.
    #[inline(never)]
    fn search<R: RowSearch>(&mut self, tag: u64, store: bool, stamp: u32) -> Reuse {
        let Some(place) = self.find::<R>(tag) else {
            return Reuse::Absent;
        };
        self.show(tag, place);
        self.use_place(place, store, stamp);
        match self.lines[place.slot()] & FLAGS {
            0 => Reuse::Held,
            flags => {
                self.lines[place.slot()] &= !FRESH;
                self.fresh -= flags / FRESH % 2;
                Reuse::Reported {
                    watched: flags & WATCHED != 0,
                    first: flags & FRESH != 0,
                }
            }
        }
    }

    /// Fills a line that is not held. Returns the evicted word in the format of the other levels.
    #[inline(always)]
    pub(crate) fn fill<R: RowSearch>(&mut self, tag: u64, store: bool, stamp: u32) -> u64 {
        let place = self.take_coldest::<R>(self.sets.of_private(tag));
        let left = self.clear(place, address(tag));
        if self.show(tag, place) {
            self.check_crowd(tag, place);
        }
        self.use_place(place, store, stamp);
        left
    }

    /// Clears the mark of a crowded entry whose other lines have been evicted.
    #[inline(never)]
    fn check_crowd(&mut self, tag: u64, place: L1dPlace) {
        // Otherwise lines of several sets share an entry.
        if self.trees.is_empty() && self.sets.is_power_of_two() {
            let start = self.sets.of_private(tag) * self.ways;
            let shares = |slot: &usize| {
                *slot != place.slot() && (self.lines[*slot] ^ address(tag)) & FRONT_BITS == 0
            };
            if !(start..start + self.ways).any(|slot| shares(&slot)) {
                self.front[front_index(address(tag))] &= !CROWDED;
            }
        }
    }

    /// Returns true if a line is held.
    pub(crate) fn has(&self, tag: u64) -> bool {
        self.find::<Portable>(tag).is_some()
    }

    /// Removes a line and returns its word if it was held.
    pub(crate) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        let place = self.find::<Portable>(tag)?;
        self.oldest[self.sets.of_private(tag)] = WayStamp::NONE;
        Some(self.clear(place, NO_LINE))
    }

    /// Returns true if a line is watched, and for few other lines.
    #[inline(always)]
    pub(crate) fn may_be_watched(&self, tag: u64) -> bool {
        // Check the flag first. Most programs share nothing, and the bits fill a tenth of the
        // host's cache.
        if !self.watches {
            return false;
        }
        let bit = watched_bit(tag);
        self.watched[bit / 64] >> (bit % 64) & 1 != 0
    }

    /// Adds a line to the watched lines.
    pub(crate) fn note_watched(&mut self, tag: u64) {
        let bit = watched_bit(tag);
        self.watched[bit / 64] |= 1 << (bit % 64);
        self.watches = true;
    }

    /// Copies the watched lines of another core.
    pub(crate) fn note_watched_of(&mut self, other: &L1d) {
        self.watched.copy_from_slice(other.watched.as_slice());
        self.watches = other.watches;
    }

    /// Reports each access to a line from now on, if it is held.
    pub(crate) fn watch(&mut self, tag: u64) {
        if let Some(place) = self.find::<Portable>(tag) {
            self.lines[place.slot()] |= WATCHED;
            self.front[front_index(address(tag))] |= CROWDED;
        }
    }

    /// Reports the next use of each of these lines that is held. The next use of another line is a
    /// miss.
    pub(crate) fn report_next_use(&mut self, tag: u64, lines: u64) {
        let (start, bytes) = (address(tag), lines * LINE_BYTES);
        // Searching for each line costs as much as looking at the slots of a set.
        if lines < SLOTS as u64 / 8 {
            for line in 0..lines {
                if let Some(place) = self.find::<Portable>(tag + (line << 2)) {
                    self.set_fresh(place);
                }
            }
        } else {
            for slot in 0..NO_ACCESS_PLACE.slot() {
                if (self.lines[slot] & !FLAGS).wrapping_sub(start) < bytes {
                    self.set_fresh(L1dPlace::new(slot));
                }
            }
        }
    }

    fn set_fresh(&mut self, place: L1dPlace) {
        let line = &mut self.lines[place.slot()];
        self.fresh += u64::from(*line & FRESH == 0);
        *line |= FRESH;
        self.front[front_index(*line & !FLAGS)] |= CROWDED;
    }

    /// Makes a line clean without using it. Returns its previous word if it is held.
    pub(crate) fn clean(&mut self, tag: u64) -> Option<u64> {
        let place = self.find::<Portable>(tag)?;
        let before = self.word(place);
        let stored = std::mem::take(&mut self.stamps[place.stamp(true)]);
        let used = &mut self.stamps[place.stamp(false)];
        *used = stored.max(*used);
        Some(before)
    }

    /// Marks a line as possibly held by other cores.
    pub(crate) fn set_shared(&mut self, tag: u64) {
        if let Some(place) = self.find::<Portable>(tag) {
            let word = place.slot() / 64;
            self.shared[word] |= 1 << (place.slot() % 64);
            self.shared_words |= 1 << word;
        }
    }

    /// Returns the tags of lines that other cores may hold and that were stored to after `stamp`. A
    /// line is returned once.
    pub(crate) fn shared_and_stored_since(&mut self, stamp: u32) -> Vec<u64> {
        let mut found = Vec::new();
        let mut words = self.shared_words;
        while words != 0 {
            let word = words.trailing_zeros() as usize;
            words &= words - 1;
            let bits = &mut self.shared[word];
            let mut left = *bits;
            while left != 0 {
                let bit = left & left.wrapping_neg();
                left ^= bit;
                let place = L1dPlace::new(word * 64 + bit.trailing_zeros() as usize);
                if self.stamps[place.stamp(true)] > stamp {
                    *bits ^= bit;
                    found.push((self.lines[place.slot()] & !FLAGS) >> 4);
                }
            }
            if *bits == 0 {
                self.shared_words &= !(1 << word);
            }
        }
        found
    }

    /// Puts an unused line in a slot. Returns the previous word.
    #[inline(always)]
    fn clear(&mut self, place: L1dPlace, line: u64) -> u64 {
        let slot = place.slot();
        let left = self.word(place);
        self.fresh -= self.lines[slot] / FRESH % 2;
        self.lines[slot] = line;
        for store in [false, true] {
            self.stamps[place.stamp(store)] = 0;
        }
        left
    }

    /// Replaces all stamps by multiples of `step`, in the same order. Returns the stamp that stands for
    /// `began`, to which others are compared.
    pub(crate) fn renew_stamps(&mut self, began: u32, step: u32) -> u32 {
        let used = self.stamps.iter().copied().filter(|&stamp| stamp > 0);
        let mut in_order: Vec<u32> = used.collect();
        in_order.sort_unstable();
        let renewed = |stamp: u32| in_order.partition_point(|&other| other <= stamp) as u32 * step;
        self.oldest.fill(WayStamp::NONE);
        for stamp in self.stamps.iter_mut().filter(|stamp| **stamp > 0) {
            *stamp = renewed(*stamp);
        }
        renewed(began)
    }

    /// Returns the content of a slot in the format of the other levels.
    #[inline(always)]
    fn word(&self, place: L1dPlace) -> u64 {
        let line = self.lines[place.slot()] & !FLAGS;
        if line == NO_LINE {
            return EMPTY;
        }
        let dirty = self.stamps[place.stamp(true)] > 0;
        tag_in(line >> 4) | if dirty { DIRTY } else { 0 }
    }

    /// Adds [`NO_ACCESS`] to the front.
    pub(crate) fn show_no_access(&mut self) {
        self.front[front_index(NO_ACCESS)] = NO_ACCESS_PLACE.0 | CROWDED;
    }

    /// Iterates over the words of all held lines.
    pub(crate) fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        let words = (0..NO_ACCESS_PLACE.slot()).map(|slot| self.word(L1dPlace::new(slot)));
        words.filter(|&word| word != EMPTY)
    }

    #[inline(always)]
    fn find<R: RowSearch>(&self, tag: u64) -> Option<L1dPlace> {
        let start = self.sets.of_private(tag) * self.ways;
        let lines = &self.lines[start..start + self.ways];
        let mut way = R::find(lines, address(tag));
        if self.watches && way.is_none() {
            way = R::find(lines, address(tag) | WATCHED);
        }
        if self.fresh > 0 && way.is_none() {
            let either = [FRESH, FRESH | WATCHED];
            way = either
                .iter()
                .find_map(|flags| R::find(lines, address(tag) | flags));
        }
        Some(L1dPlace::new(start + way?))
    }

    /// Returns the slot to evict from a set for a line that will be used. An empty slot comes first.
    #[inline(always)]
    fn take_coldest<R: RowSearch>(&mut self, set: usize) -> L1dPlace {
        if let Some(tree) = self.trees.get(set) {
            return self.coldest_by_tree(set, tree);
        }
        let start = set * self.ways;
        let (loads, stores) = self.stamps.split_at(SLOTS);
        let (loads, stores) = (&loads[start..][..self.ways], &stores[start..][..self.ways]);
        let oldest = self.oldest[set];
        let last_use = |way: usize| Some(*loads.get(way)?.max(stores.get(way)?));
        let way = match last_use(oldest.way()) == Some(oldest.stamp()) {
            true => oldest.way(),
            false => WayStamp(R::least_of_later(loads, stores, None)).way(),
        };
        self.oldest[set] = WayStamp(R::least_of_later(loads, stores, Some(way)));
        L1dPlace::new(start + way)
    }

    #[inline(never)]
    fn coldest_by_tree(&self, set: usize, tree: &PlruTree) -> L1dPlace {
        let start = set * self.ways;
        let lines = &self.lines[start..start + self.ways];
        let empty = lines.iter().position(|&line| line == NO_LINE);
        let way = empty.unwrap_or_else(|| tree::coldest(tree.bits, self.ways));
        L1dPlace::new(start + way)
    }

    /// Adds a line that is being used to the front. Returns true if its entry is crowded.
    #[inline(always)]
    fn show(&mut self, tag: u64, place: L1dPlace) -> bool {
        if !self.trees.is_empty() {
            self.turn_tree(tag, place);
        }
        let entry = &mut self.front[front_index(address(tag))];
        let named = L1dPlace(*entry);
        let shares = (self.lines[named.slot()] ^ address(tag)) & FRONT_BITS == 0;
        let other = named.slot() != place.slot() && shares;
        *entry = place.0 | (*entry & CROWDED) | if other { CROWDED } else { 0 };
        *entry & CROWDED != 0
    }

    /// Turns the tree of a used line's set, and removes the line used before from the front.
    #[inline(never)]
    fn turn_tree(&mut self, tag: u64, place: L1dPlace) {
        let slot = place.slot();
        if let Some(tree) = self.trees.get_mut(slot / self.ways) {
            tree.bits = tree::pointed_away(tree.bits, self.ways, slot % self.ways);
            let before = std::mem::replace(&mut tree.latest, tag);
            self.front[front_index(address(before))] = NOBODY | CROWDED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_no_line_are_beyond_the_largest_cache() {
        let config = CacheConfig::fitted(crate::config::MAX_L1D_BYTES, 16, 4);
        let lines = config.sets() * u64::from(config.ways);
        assert!(lines <= NO_ACCESS_PLACE.slot() as u64);
        assert!(NO_ACCESS_PLACE.slot() < usize::from(NOBODY));
    }

    #[test]
    fn a_line_hidden_by_another_in_the_front_is_found_in_its_set() {
        let mut cache = L1d::new(&CacheConfig::fitted(32 << 10, 8, 4));
        let (one, other) = (4, 4 + ((FRONT as u64) << 2));
        cache.fill::<Portable>(one, false, 16);
        cache.fill::<Portable>(other, true, 32);
        let at = address(one);
        assert!(!cache.is_at(at, cache.front_place(at)));
        assert!(cache.reuse::<Portable>(one, false, 48) == Reuse::Held);
        assert!(cache.reuse::<Portable>(other, false, 64) == Reuse::Held);
        assert_eq!(cache.drop_line(other), Some(other | DIRTY));
        assert!(cache.reuse::<Portable>(other, false, 80) == Reuse::Absent);
    }
}
