//! The first-level data cache, laid out for hits.
//!
//! Every line held stands in a slot. A direct-mapped table by line number, the front,
//! remembers the slot in which a line was last seen. Comparing that slot's word decides
//! a hit without searching the set, wherever in the set the line is. A stale entry of
//! the front only fails to match.
//!
//! Slots hold addresses of lines; one XOR an address in its line is below 64,
//! which makes comparing one operation.
//!
//! Under LRU a hit writes a growing stamp to the slot; the least stamp of a set is its
//! least recently used line. So a hit moves nothing and depends on no branch that the
//! host cannot predict. Rejected: rows in order of use, which cost a mispredicted
//! branch at every change of line. Loads and stores have stamps of their own: the later
//! one is the line's, and a line with a stamp of a store is dirty. So a hit only
//! writes, and waits for no hit of the same line before it, as adding a flag to a word
//! would. Under tree-PLRU the front knows only the line its set used last, as its reuse
//! changes no bit of the tree. Other hits take the slow path.

use crate::cache::{DIRTY, EMPTY, Portable, Rows, Sets, tag_in, tree};
use crate::{CacheConfig, NO_ACCESS, Replacement};
use memgauge_trace::LINE_BYTES;

/// Entries of the front; many times the lines of common first levels, so that
/// few of them share one.
const FRONT: usize = 16384;
/// More slots than the largest first level has lines. The last one stays empty, and the
/// last but one belongs to [`NO_ACCESS`].
const SLOTS: usize = 4096;
/// Where [`NO_ACCESS`] stands: in no set, so that nothing takes its place.
const NO_ACCESS_PLACE: Place = Place((SLOTS - 2) as u16);
/// The place in the front of a line it does not know: the empty slot.
const NOBODY: u16 = (SLOTS - 1) as u16;
/// In an empty slot; no address of a program has this bit.
const NO_LINE: u64 = 1 << 62;
/// Bits by which lines that are watched are told from others, mostly.
const WATCHED_BITS: usize = 1 << 15;
/// In the slot of a line each access to which is to be seen: the front's comparison fails then.
const WATCHED: u64 = 1 << 61;

pub(crate) struct L1d {
    /// Slots.
    front: [u16; FRONT],
    lines: [u64; SLOTS],
    /// Stamps of each slot's last load, then of its last store; 0 where there was none
    /// since the line came.
    stamps: [u64; 2 * SLOTS],
    sets: Sets,
    ways: usize,
    /// Tree-PLRU: one for each set.
    trees: Vec<Tree>,
    /// Whether any line was ever watched.
    watches: bool,
    /// A bit for each hash of a line that is watched, held or not.
    watched: Box<[u64; WATCHED_BITS / 64]>,
    /// A bit for each slot whose line other cores may hold. That of another line may stay behind.
    shared: [u64; SLOTS / 64],
    /// A bit for each word of `shared` that has one: turns may be short, and are looked at each.
    shared_words: u64,
}

/// Result of looking for a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    Absent,
    Held,
    /// It is held and [watched](L1d::watch).
    Watched,
}

/// A slot.
#[derive(Clone, Copy)]
pub(crate) struct Place(u16);

impl Place {
    fn new(slot: usize) -> Self {
        Place(slot as u16)
    }

    #[inline(always)]
    fn slot(self) -> usize {
        usize::from(self.0) % SLOTS
    }

    /// Where the stamp of its last load or store is.
    #[inline(always)]
    fn stamp(self, store: bool) -> usize {
        self.slot() | (usize::from(store) * SLOTS)
    }
}

#[derive(Clone, Copy)]
struct Tree {
    bits: u64,
    /// Tag of the line used last.
    latest: u64,
}

#[inline(always)]
fn front_index(addr: u64) -> usize {
    (addr / LINE_BYTES) as usize % FRONT
}

/// Whether `addr` is in a line.
#[inline(always)]
fn holds(line: u64, addr: u64) -> bool {
    line ^ addr < LINE_BYTES
}

/// The bit of a line among [`WATCHED_BITS`], by a Fibonacci hash.
#[inline(always)]
fn watched_bit(tag: u64) -> usize {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as usize % WATCHED_BITS
}

/// Address of a tag's line.
#[inline(always)]
fn address(tag: u64) -> u64 {
    tag << 4
}

impl L1d {
    pub(crate) fn new(config: &CacheConfig) -> Self {
        let (sets, ways) = (config.sets() as usize, config.ways as usize);
        let tree = Tree {
            bits: 0,
            latest: EMPTY,
        };
        let mut lines = [NO_LINE; SLOTS];
        lines[NO_ACCESS_PLACE.slot()] = NO_ACCESS;
        L1d {
            front: [NOBODY; FRONT],
            lines,
            stamps: [0; 2 * SLOTS],
            sets: Sets::new(config.sets()),
            ways,
            trees: match config.replacement {
                Replacement::Lru => Vec::new(),
                Replacement::TreePlru => vec![tree; sets],
            },
            watches: false,
            watched: Box::new([0; WATCHED_BITS / 64]),
            shared: [0; SLOTS / 64],
            shared_words: 0,
        }
    }

    /// Where the line of `addr` is if the front knows it, else some other place.
    #[inline(always)]
    pub(crate) fn front_place(&self, addr: u64) -> Place {
        Place(self.front[front_index(addr)])
    }

    /// Whether the line of `addr` is at a place.
    #[inline(always)]
    pub(crate) fn is_at(&self, addr: u64, place: Place) -> bool {
        holds(self.lines[place.slot()], addr)
    }

    /// Uses the line at a place; `stamp` is greater than any before.
    #[inline(always)]
    pub(crate) fn use_place(&mut self, place: Place, store: bool, stamp: u64) {
        self.stamps[place.stamp(store)] = stamp;
    }

    /// Uses a line if it is held.
    #[inline(always)]
    pub(crate) fn reuse<R: Rows>(&mut self, tag: u64, store: bool, stamp: u64) -> Reuse {
        let place = self.front_place(address(tag));
        if self.is_at(address(tag), place) {
            self.use_place(place, store, stamp);
            return Reuse::Held;
        }
        self.reuse_behind::<R>(tag, store, stamp)
    }

    /// The same for a line the front does not know.
    #[inline(always)]
    fn reuse_behind<R: Rows>(&mut self, tag: u64, store: bool, stamp: u64) -> Reuse {
        let Some(place) = self.find::<R>(tag) else {
            return Reuse::Absent;
        };
        self.show(tag, place);
        self.use_place(place, store, stamp);
        match self.lines[place.slot()] & WATCHED {
            0 => Reuse::Held,
            _ => Reuse::Watched,
        }
    }

    /// Takes a line that is not held. Returns the word that left, as the other levels
    /// write it.
    #[inline(always)]
    pub(crate) fn fill<R: Rows>(&mut self, tag: u64, store: bool, stamp: u64) -> u64 {
        let place = self.coldest::<R>(self.sets.of_private(tag));
        let left = self.clear(place, address(tag));
        self.show(tag, place);
        self.use_place(place, store, stamp);
        left
    }

    /// Whether it has a line.
    pub(crate) fn has(&self, tag: u64) -> bool {
        self.find::<Portable>(tag).is_some()
    }

    /// Takes a line out; its word, if it was there.
    pub(crate) fn drop_line(&mut self, tag: u64) -> Option<u64> {
        let place = self.find::<Portable>(tag)?;
        Some(self.clear(place, NO_LINE))
    }

    /// Whether a line may be watched. Few others are taken for such.
    #[inline(always)]
    pub(crate) fn may_be_watched(&self, tag: u64) -> bool {
        // Asked first: most programs share nothing, and the bits fill a tenth of the host's cache.
        if !self.watches {
            return false;
        }
        let bit = watched_bit(tag);
        self.watched[bit / 64] >> (bit % 64) & 1 != 0
    }

    /// Notes that a line is watched from now on.
    pub(crate) fn note_watched(&mut self, tag: u64) {
        let bit = watched_bit(tag);
        self.watched[bit / 64] |= 1 << (bit % 64);
        self.watches = true;
    }

    /// Notes the same lines as another core.
    pub(crate) fn note_watched_of(&mut self, other: &L1d) {
        self.watched.copy_from_slice(other.watched.as_slice());
        self.watches = other.watches;
    }

    /// Has each access to a line reported that is held.
    pub(crate) fn watch(&mut self, tag: u64) {
        if let Some(place) = self.find::<Portable>(tag) {
            self.lines[place.slot()] |= WATCHED;
        }
    }

    /// Makes a line clean, whose place in the order of use stays; its word before, if it is held.
    pub(crate) fn clean(&mut self, tag: u64) -> Option<u64> {
        let place = self.find::<Portable>(tag)?;
        let before = self.word(place);
        let stored = std::mem::take(&mut self.stamps[place.stamp(true)]);
        let used = &mut self.stamps[place.stamp(false)];
        *used = stored.max(*used);
        Some(before)
    }

    /// Notes that other cores may hold a line.
    pub(crate) fn set_shared(&mut self, tag: u64) {
        if let Some(place) = self.find::<Portable>(tag) {
            let word = place.slot() / 64;
            self.shared[word] |= 1 << (place.slot() % 64);
            self.shared_words |= 1 << word;
        }
    }

    /// Tags of the lines that other cores may hold and that were stored to after `stamp`. They are
    /// not returned again.
    pub(crate) fn shared_and_stored_since(&mut self, stamp: u64) -> Vec<u64> {
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
                let place = Place::new(word * 64 + bit.trailing_zeros() as usize);
                if self.stamps[place.stamp(true)] > stamp {
                    *bits ^= bit;
                    found.push((self.lines[place.slot()] & !WATCHED) >> 4);
                }
            }
            if *bits == 0 {
                self.shared_words &= !(1 << word);
            }
        }
        found
    }

    /// Puts another line, not used yet, at a place; the word that was there.
    #[inline(always)]
    fn clear(&mut self, place: Place, line: u64) -> u64 {
        let slot = place.slot();
        let left = self.word(place);
        self.lines[slot] = line;
        for store in [false, true] {
            self.stamps[place.stamp(store)] = 0;
        }
        left
    }

    /// The content of a slot, as the other levels write it.
    #[inline(always)]
    fn word(&self, place: Place) -> u64 {
        let line = self.lines[place.slot()] & !WATCHED;
        if line == NO_LINE {
            return EMPTY;
        }
        let dirty = self.stamps[place.stamp(true)] > 0;
        tag_in(line >> 4) | if dirty { DIRTY } else { 0 }
    }

    /// Enters [`NO_ACCESS`] into the front.
    pub(crate) fn show_no_access(&mut self) {
        self.front[front_index(NO_ACCESS)] = NO_ACCESS_PLACE.0;
    }

    /// The words of all lines held.
    pub(crate) fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        let words = (0..NO_ACCESS_PLACE.slot()).map(|slot| self.word(Place::new(slot)));
        words.filter(|&word| word != EMPTY)
    }

    #[inline(always)]
    fn find<R: Rows>(&self, tag: u64) -> Option<Place> {
        let start = self.sets.of_private(tag) * self.ways;
        let lines = &self.lines[start..start + self.ways];
        let mut way = R::find(lines, address(tag));
        if self.watches && way.is_none() {
            way = R::find(lines, address(tag) | WATCHED);
        }
        Some(Place::new(start + way?))
    }

    /// The place in a set whose line is to leave: an empty one if there is one.
    #[inline(always)]
    fn coldest<R: Rows>(&self, set: usize) -> Place {
        let start = set * self.ways;
        let Some(tree) = self.trees.get(set) else {
            let (loads, stores) = self.stamps.split_at(SLOTS);
            let set = start..start + self.ways;
            let way = R::least_of_later(&loads[set.clone()], &stores[set]);
            return Place::new(start + way);
        };
        let lines = &self.lines[start..start + self.ways];
        let empty = lines.iter().position(|&line| line == NO_LINE);
        let way = empty.unwrap_or_else(|| tree::coldest(tree.bits, self.ways));
        Place::new(start + way)
    }

    /// Enters a line that is being used into the front.
    fn show(&mut self, tag: u64, place: Place) {
        let slot = place.slot();
        // Asked first: finding the set takes a division.
        if !self.trees.is_empty()
            && let Some(tree) = self.trees.get_mut(slot / self.ways)
        {
            tree.bits = tree::pointed_away(tree.bits, self.ways, slot % self.ways);
            let before = std::mem::replace(&mut tree.latest, tag);
            self.front[front_index(address(before))] = NOBODY;
        }
        self.front[front_index(address(tag))] = place.0;
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
