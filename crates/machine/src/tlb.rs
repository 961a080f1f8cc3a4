//! The two data-TLB levels of a core, exact LRU.
//!
//! The first level is asked at every access, so it has a front: a direct-mapped table
//! by page number whose entry gives the page's slot.
//!
//! ```text
//!  63                              12 11            0
//! +----------------------------------+---------------+
//! | page number                      | slot, 0..512  |
//! +----------------------------------+---------------+
//! ```
//!
//! Entry XOR page address is the slot if the page is the entry's, and otherwise no
//! number below 512: comparing and finding are one operation. A hit writes a growing
//! stamp, with the slot's number in its low bits, to the slot. The least stamp of a set
//! belongs to its least recently used slot. So LRU stays exact although a hit moves
//! nothing, which a set in recency order (or skipping the update) could not give for as
//! little.

use crate::cache::{Cache, Found, Rows, Sets};
use crate::{NO_ACCESS, Replacement, TlbConfig};

/// More slots than the largest first level has entries; the last one belongs to
/// [`NO_ACCESS`].
const SLOTS: usize = 512;
/// Entries of the front; many times the pages of common TLBs, so that few of
/// them share one.
const FRONT: usize = 4096;
/// Bits of an address below its page number.
const PAGE_SHIFT: u32 = 12;
/// Front entry that matches no page: its low bits are no slot.
const NO_ENTRY: u64 = (1 << PAGE_SHIFT) - 1;
/// No page: page numbers have 52 bits.
const NO_PAGE: u64 = u64::MAX;

/// Increment of a stamp; below it is the slot's number.
pub(crate) const STAMP_STEP: u64 = SLOTS as u64;

/// The first level.
pub(crate) struct Dtlb {
    front: [u64; FRONT],
    stamps: [u64; SLOTS],
    /// Page of each slot.
    pages: Vec<u64>,
    /// How many of the pages held share each front entry.
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

    /// The slot of the page that holds `addr`, or a number that is no slot.
    #[inline(always)]
    pub(crate) fn front_slot(&self, addr: u64) -> u64 {
        self.front[(addr >> PAGE_SHIFT) as usize % FRONT] ^ (addr & !NO_ENTRY)
    }

    /// Marks a slot as the latest used; `false` and nothing done if it is none.
    /// `stamp` is greater than any before and a multiple of [`STAMP_STEP`].
    #[inline(always)]
    pub(crate) fn stamp(&mut self, slot: u64, stamp: u64) -> bool {
        let Some(place) = self.stamps.get_mut(slot as usize) else {
            return false;
        };
        // No carry: the same as `|`, in an operation less.
        *place = stamp + slot;
        true
    }

    /// Uses a page, filling it if it is absent; whether it was there.
    #[inline(always)]
    pub(crate) fn take<R: Rows>(&mut self, addr: u64, stamp: u64) -> bool {
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

    /// The slot of a page whose front entry is another's or none.
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

    /// Enters the page of [`NO_ACCESS`] into the front.
    pub(crate) fn show_no_access(&mut self) {
        self.front[(NO_ACCESS >> PAGE_SHIFT) as usize % FRONT] = NO_ACCESS | (SLOTS as u64 - 1);
    }

    fn set_start(&self, page: u64) -> usize {
        self.sets.of_number(page) * self.ways
    }

    #[inline(always)]
    fn fill<R: Rows>(&mut self, page: u64, stamp: u64) {
        let slot = self.coldest::<R>(self.set_start(page));
        let leaving = std::mem::replace(&mut self.pages[slot], page);
        if leaving != NO_PAGE {
            self.forget(leaving, slot);
        }
        self.sharing[page as usize % FRONT] += 1;
        self.enter(page, slot, stamp);
    }

    /// The least recently used slot of a set; empty ones have the least stamps.
    #[inline(always)]
    fn coldest<R: Rows>(&self, start: usize) -> usize {
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

/// The second level: asked only when the first missed, so a plain LRU cache of
/// page numbers.
pub(crate) struct Stlb(Cache);

impl Stlb {
    pub(crate) fn new(config: &TlbConfig) -> Self {
        let (sets, ways) = (u64::from(config.sets()), config.ways as usize);
        Stlb(Cache::with_shape(sets, ways, Replacement::Lru))
    }

    /// Tells the host that a page will be asked for soon.
    #[inline(always)]
    pub(crate) fn expect(&self, addr: u64) {
        self.0.expect(addr >> PAGE_SHIFT << 2);
    }

    /// Uses a page, filling it if it is absent; whether it was there.
    pub(crate) fn take(&mut self, addr: u64) -> bool {
        let page = addr >> PAGE_SHIFT;
        matches!(self.0.take(page << 2, 0, 0), Found::Hit(_))
    }
}
