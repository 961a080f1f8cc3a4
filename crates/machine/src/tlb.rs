//! The two levels of a core's data TLB, with exact LRU.
//!
//! Each access looks up the first level, so it has a *front*: a direct-mapped table by page number
//! that holds the slot of the page.
//!
//! ```text
//!  63                              12 11            0
//! +----------------------------------+---------------+
//! | page number                      | slot, 0..512  |
//! +----------------------------------+---------------+
//! ```
//!
//! An entry XOR a page address is the slot if the entry belongs to the page, and at least 512
//! otherwise. Comparison and lookup are therefore a single operation. A hit writes an increasing
//! stamp to the slot. The low bits of a stamp are the number of its slot, so the smallest stamp of
//! a set names the least recently used slot. LRU is exact although a hit moves nothing.

use crate::cache::{Cache, Evicted, LookupResult, RowSearch, Sets};
use crate::{NO_ACCESS, Replacement, TlbConfig};

/// Number of slots, more than the largest first level has entries. The last one belongs to
/// [`NO_ACCESS`].
const SLOTS: usize = 512;
/// Number of entries of the front. It is a multiple of the pages of common TLBs, so that few pages
/// share an entry.
const FRONT: usize = 4096;
/// Number of address bits below the page number.
const PAGE_SHIFT: u32 = 12;
/// Front entry that matches no page, because its low bits are not a slot.
const NO_ENTRY: u64 = (1 << PAGE_SHIFT) - 1;
/// No page. Page numbers have 52 bits.
const NO_PAGE: u64 = u64::MAX;

/// Increment of stamps. The bits below hold the slot's number.
pub(crate) const STAMP_STEP: u64 = SLOTS as u64;

/// The first level of the TLB.
pub(crate) struct Dtlb {
    front: [u64; FRONT],
    stamps: [u64; SLOTS],
    /// Page in each slot.
    pages: Vec<u64>,
    /// Number of held pages that share each entry of the front.
    sharing: [u16; FRONT],
    ways: usize,
    sets: Sets,
}

impl Dtlb {
    pub(crate) fn new(config: &TlbConfig) -> Self {
        let entries = config.entries as usize;
        let mut sharing = [0; FRONT];
        sharing[(NO_ACCESS >> PAGE_SHIFT) as usize % FRONT] = 1;
        Dtlb {
            front: [NO_ENTRY; FRONT],
            stamps: std::array::from_fn(|slot| slot as u64),
            pages: vec![NO_PAGE; entries],
            sharing,
            ways: config.ways as usize,
            sets: Sets::new(u64::from(config.sets())),
        }
    }

    /// Returns the slot of the page of `addr`, or at least [`SLOTS`] if the front does not have it.
    #[inline(always)]
    pub(crate) fn front_slot(&self, addr: u64) -> u64 {
        self.front[(addr >> PAGE_SHIFT) as usize % FRONT] ^ (addr & !NO_ENTRY)
    }

    /// Returns true for a slot, and false for other results of [`Dtlb::front_slot`].
    #[inline(always)]
    pub(crate) fn is_slot(&self, slot: u64) -> bool {
        (slot as usize) < SLOTS
    }

    /// Marks a slot as last used. Returns false, without an effect, if the number is not a slot.
    /// `stamp` must exceed all previous ones and be a multiple of [`STAMP_STEP`].
    #[inline(always)]
    pub(crate) fn stamp(&mut self, slot: u64, stamp: u64) -> bool {
        let Some(place) = self.stamps.get_mut(slot as usize) else {
            return false;
        };
        // The sum has no carry. It equals `|` and takes one operation less.
        *place = stamp + slot;
        true
    }

    /// Uses a page and fills it if it is absent. Returns true if it was present.
    #[inline(always)]
    pub(crate) fn take<R: RowSearch>(&mut self, addr: u64, stamp: u64) -> bool {
        let slot = self.front_slot(addr);
        if self.stamp(slot, stamp) {
            return true;
        }
        let page = addr >> PAGE_SHIFT;
        match self.find(page) {
            Some(slot) => {
                self.enter(page, slot, stamp);
                true
            }
            None => {
                self.fill::<R>(page, stamp);
                false
            }
        }
    }

    /// Returns the slot of a page that is not in the front.
    fn find(&self, page: u64) -> Option<usize> {
        let at = page as usize % FRONT;
        let shown = u16::from(self.front[at] != NO_ENTRY);
        if self.sharing[at] == shown {
            return None;
        }
        let start = self.set_start(page);
        let set = &self.pages[start..start + self.ways];
        set.iter().position(|&p| p == page).map(|way| start + way)
    }

    /// Adds the page of [`NO_ACCESS`] to the front.
    pub(crate) fn show_no_access(&mut self) {
        self.front[(NO_ACCESS >> PAGE_SHIFT) as usize % FRONT] = NO_ACCESS | (SLOTS as u64 - 1);
    }

    fn set_start(&self, page: u64) -> usize {
        self.sets.of_number(page) * self.ways
    }

    #[inline(always)]
    fn fill<R: RowSearch>(&mut self, page: u64, stamp: u64) {
        let slot = self.coldest::<R>(self.set_start(page));
        let leaving = std::mem::replace(&mut self.pages[slot], page);
        if leaving != NO_PAGE {
            self.forget(leaving, slot);
        }
        self.sharing[page as usize % FRONT] += 1;
        self.enter(page, slot, stamp);
    }

    /// Returns the least recently used slot of a set. Empty slots have the smallest stamps.
    #[inline(always)]
    fn coldest<R: RowSearch>(&self, start: usize) -> usize {
        slot_of(R::least(&self.stamps[start..start + self.ways]))
    }

    fn forget(&mut self, page: u64, slot: usize) {
        let at = page as usize % FRONT;
        self.sharing[at] -= 1;
        if self.front[at] == (page << PAGE_SHIFT | slot as u64) {
            self.front[at] = NO_ENTRY;
        }
    }

    fn enter(&mut self, page: u64, slot: usize, stamp: u64) {
        self.front[page as usize % FRONT] = page << PAGE_SHIFT | slot as u64;
        self.stamp(slot as u64, stamp);
    }
}

#[inline(always)]
fn slot_of(stamp: u64) -> usize {
    (stamp % STAMP_STEP) as usize
}

/// The second level of the TLB: an LRU cache of page numbers, looked up only after a miss of the
/// first.
pub(crate) struct Stlb(Cache);

impl Stlb {
    pub(crate) fn new(config: &TlbConfig) -> Self {
        let (sets, ways) = (u64::from(config.sets()), config.ways as usize);
        let cache = Cache::with_shape(sets, ways, Replacement::Lru, Evicted::Dirty);
        Stlb(cache)
    }

    /// Prefetches the set of a page into the host's cache.
    #[inline(always)]
    pub(crate) fn expect(&self, addr: u64) {
        self.0.expect(addr >> PAGE_SHIFT << 2);
    }

    /// Uses a page and fills it if it is absent. Returns true if it was present.
    pub(crate) fn take(&mut self, addr: u64) -> bool {
        let page = addr >> PAGE_SHIFT;
        matches!(self.0.take(page << 2, 0, 0), LookupResult::Hit(_))
    }
}
