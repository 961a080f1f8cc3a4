//! The first level of a core: data cache and data TLB.
//!
//! It depends on no lower level, as long as no inclusive last-level cache evicts its lines. It can
//! therefore run ahead: an access that misses is recorded as a [`Missed`] and
//! [supplied](crate::Core::supply) later, in order. With many misses waiting, the host overlaps its
//! own cache misses.

use std::ops::Range;
use std::sync::Arc;

use memgauge_trace::LINE_BYTES;

use crate::cache::{DIRTY, Portable, RowSearch, SearchWidth, tag_of};
#[cfg(target_arch = "x86_64")]
use crate::cache::{Eights, Fours};
use crate::config::HUGE_SHIFT;
use crate::l1d::{L1d, RENEWED_STAMPS, Reuse};
use crate::tlb::{Dtlb, STAMP_STEP};
use crate::{Config, Core, PAGE_BYTES, SharedLevels};

/// Address in the last page of the user's half, which Linux never maps. Touching it changes
/// nothing. It fills entries that have no access.
pub const NO_ACCESS: u64 = 0x7fff_ffff_f000;

pub(crate) struct FirstLevel {
    pub(crate) l1d: L1d,
    pub(crate) dtlb: Dtlb,
    /// Increases with every use of a line or page. Orders them by last use.
    stamp: u64,
    /// Stamp at the start of the core's turn.
    turn_began: u64,
    /// Number of ways that the host searches at a time.
    width: SearchWidth,
    pages: PageSizes,
}

/// Number of accesses for which the stamps of lines suffice without being renewed: half of them.
const MAX_TOUCHES: u64 = (1 << 31) / STAMP_STEP;

/// Returns the stamp of a line: the low half of a stamp. Lines have more stamps than pages, and the
/// host finds the smallest one twice as fast.
#[inline(always)]
fn line_stamp(stamp: u64) -> u32 {
    stamp as u32
}

/// Distinguishes huge pages among small ones. User addresses have 47 bits.
const HUGE_MARK: u64 = 1 << 47;

/// Sizes of a program's pages.
#[derive(Clone, Debug)]
struct PageSizes {
    /// [`Config::page_shift`]
    shift: u32,
    /// Ranges of addresses in huge pages, in order, on a machine with pages of 4 KiB.
    huge: Arc<[Range<u64>]>,
}

impl PageSizes {
    /// Returns the address by which the TLB knows the page of `addr`.
    #[inline(always)]
    fn address(&self, addr: u64) -> u64 {
        if addr == NO_ACCESS {
            return NO_ACCESS;
        }
        match self.huge.is_empty() {
            true => addr >> self.shift,
            false => self.address_in_mix(addr),
        }
    }

    #[inline(never)]
    fn address_in_mix(&self, addr: u64) -> u64 {
        let after = self.huge.partition_point(|range| range.start <= addr);
        let is_huge = after > 0 && addr < self.huge[after - 1].end;
        match is_huge {
            true => addr >> HUGE_SHIFT | HUGE_MARK,
            false => addr,
        }
    }

    fn are_small(&self) -> bool {
        self.shift == 0 && self.huge.is_empty()
    }
}

/// First-level misses of an access within a line. The first level already holds the line and page.
// Two words, so that functions return it in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The evicted line with its flags. [`Missed::NO_LINE`] if the line hit.
    left: u64,
    flags: u8,
}

impl Missed {
    /// Neither the word of a line nor that of an empty slot.
    const NO_LINE: u64 = u64::MAX;
    /// The page missed.
    const PAGE: u8 = 1;
    /// The access stores.
    const STORES: u8 = 2;
    /// The line hit and other cores must be notified of the access.
    const WATCHED: u8 = 4;
    /// Later accesses to the line depend on what other cores have done.
    const AT_ONCE: u8 = 8;
    /// The line hit, and [`Core::report_first_use`] asked for it.
    const FIRST_USE: u8 = 16;
    /// No miss.
    pub const NOTHING: Missed = Missed {
        left: Missed::NO_LINE,
        flags: 0,
    };

    /// A line miss that evicted `left`.
    pub(crate) fn of_line(left: u64) -> Missed {
        Missed { left, flags: 0 }
    }

    /// The same, with a missing page.
    pub(crate) fn with_page(self) -> Missed {
        Missed {
            flags: self.flags | Missed::PAGE,
            ..self
        }
    }

    /// Returns true if line and page hit.
    #[inline(always)]
    pub fn is_nothing(self) -> bool {
        self.flags & (Missed::PAGE | Missed::WATCHED | Missed::FIRST_USE) == 0
            && self.left == Missed::NO_LINE
    }

    #[inline(always)]
    pub(crate) fn page(self) -> bool {
        self.flags & Missed::PAGE != 0
    }

    #[inline(always)]
    pub(crate) fn stores(self) -> bool {
        self.flags & Missed::STORES != 0
    }

    #[inline(always)]
    pub(crate) fn watched(self) -> bool {
        self.flags & Missed::WATCHED != 0
    }

    #[inline(always)]
    pub(crate) fn first_use(self) -> bool {
        self.flags & Missed::FIRST_USE != 0
    }

    /// Returns the evicted word if nothing but the line missed.
    #[inline(always)]
    pub(crate) fn line_alone(self) -> Option<u64> {
        let others = Missed::PAGE | Missed::WATCHED | Missed::AT_ONCE | Missed::FIRST_USE;
        self.line().filter(|_| self.flags & others == 0)
    }

    /// The same miss once the evicted line has been written to the second level.
    #[inline(always)]
    pub(crate) fn with_clean_line(self) -> Missed {
        Missed {
            left: self.left & !DIRTY,
            ..self
        }
    }

    /// Returns true if it must be [supplied](crate::Core::supply) before the next access.
    #[inline(always)]
    pub fn at_once(self) -> bool {
        self.flags & Missed::AT_ONCE != 0
    }

    /// Returns true if other cores may need to know which bytes are accessed.
    #[inline(always)]
    pub fn may_be_watched(self) -> bool {
        self.flags & (Missed::WATCHED | Missed::AT_ONCE) != 0
    }

    /// Returns the evicted word if the line missed.
    #[inline(always)]
    pub(crate) fn line(self) -> Option<u64> {
        (self.left != Missed::NO_LINE).then_some(self.left)
    }
}

impl FirstLevel {
    pub(crate) fn new(config: &Config) -> Self {
        FirstLevel {
            l1d: L1d::new(&config.l1d),
            dtlb: Dtlb::new(&config.dtlb),
            stamp: 0,
            turn_began: 0,
            width: SearchWidth::of_this_host(),
            pages: PageSizes {
                shift: config.page_shift(),
                huge: Arc::default(),
            },
        }
    }

    #[inline(always)]
    pub(crate) fn next_stamp(&mut self) -> u64 {
        self.renew_stamps_in_time();
        self.stamp += STAMP_STEP;
        self.stamp
    }

    #[inline(always)]
    pub(crate) fn next_line_stamp(&mut self) -> u32 {
        line_stamp(self.next_stamp())
    }

    /// Returns the address by which the TLBs know the page of `addr`.
    #[inline(always)]
    pub(crate) fn page_of(&self, addr: u64) -> u64 {
        self.pages.address(addr)
    }

    /// Returns the size of the smallest pages.
    pub(crate) fn page_bytes(&self) -> u64 {
        PAGE_BYTES << self.pages.shift
    }

    /// Begins a turn of the core. Returns the line stamp at the start of the turn before.
    pub(crate) fn begin_turn(&mut self) -> u32 {
        self.renew_stamps_in_time();
        line_stamp(std::mem::replace(&mut self.turn_began, self.stamp))
    }

    /// Renews the stamps of lines unless there are [`MAX_TOUCHES`] more.
    #[inline(always)]
    fn renew_stamps_in_time(&mut self) {
        if line_stamp(self.stamp) > u32::MAX - (MAX_TOUCHES * STAMP_STEP) as u32 {
            self.renew_stamps();
        }
    }

    /// Gives all lines the smallest possible stamps in the same order, and goes on at the next stamp
    /// whose low bits exceed them.
    #[cold]
    fn renew_stamps(&mut self) {
        let began = self
            .l1d
            .renew_stamps(line_stamp(self.turn_began), STAMP_STEP as u32);
        let epoch = ((self.stamp >> 32) + 1) << 32;
        self.turn_began = epoch + u64::from(began);
        self.stamp = epoch + RENEWED_STAMPS * STAMP_STEP;
    }

    #[inline(always)]
    pub(crate) fn touches(&mut self) -> Touches<'_> {
        self.renew_stamps_in_time();
        Touches {
            next: self.stamp + STAMP_STEP,
            l1d: &mut self.l1d,
            dtlb: &mut self.dtlb,
            stamp: &mut self.stamp,
            width: self.width,
            pages: &self.pages,
        }
    }
}

/// A sequence of first-level accesses, four million at most.
///
/// Separate from [`Core`] so that a loop of accesses keeps its stamp in a register.
pub struct Touches<'a> {
    l1d: &'a mut L1d,
    dtlb: &'a mut Dtlb,
    stamp: &'a mut u64,
    /// Stamp of the next access.
    next: u64,
    width: SearchWidth,
    pages: &'a PageSizes,
}

impl Touches<'_> {
    /// Performs the access if the fronts of cache and TLB find its line and page. A hit is then
    /// completely accounted for. Otherwise nothing changes, and the access must go to
    /// [`Touches::take`] or [`Core::access`], whether it hits there or not.
    ///
    /// All bytes must lie in the line of `addr` (see [`Core::crosses_line`]). A read-modify-write
    /// counts as a store. One call stands for any number of consecutive accesses to one line, as a
    /// store if any of them stores.
    #[inline(always)]
    pub fn touch(&mut self, addr: u64, store: bool) -> bool {
        self.touch_in(self.pages.address(addr), addr, store)
    }

    /// As [`Touches::touch`]. Without `HUGE`, all pages have 4 KiB.
    // The loop over hits then has nothing to do for pages.
    #[inline(always)]
    pub fn touch_with<const HUGE: bool>(&mut self, addr: u64, store: bool) -> bool {
        match HUGE {
            true => self.touch(addr, store),
            false => self.touch_in(addr, addr, store),
        }
    }

    #[inline(always)]
    fn touch_in(&mut self, page: u64, addr: u64, store: bool) -> bool {
        let (page, line) = (self.dtlb.front_slot(page), self.l1d.front_place(addr));
        if !self.l1d.is_at(addr, line) || !self.dtlb.stamp(page, self.next) {
            return false;
        }
        self.l1d.use_place(line, store, line_stamp(self.next));
        self.next += STAMP_STEP;
        true
    }

    /// As [`Touches::touch`] for accesses to two lines, `first` before `second`. Both must hit.
    #[inline(always)]
    pub fn touch_both(
        &mut self,
        first: u64,
        stores: bool,
        second: u64,
        second_stores: bool,
    ) -> bool {
        let page = self.dtlb.front_slot(self.pages.address(first));
        let second_page = self.dtlb.front_slot(self.pages.address(second));
        let (line, second_line) = (self.l1d.front_place(first), self.l1d.front_place(second));
        let hit = self.l1d.is_at(first, line)
            && self.l1d.is_at(second, second_line)
            && self.dtlb.is_slot(page)
            && self.dtlb.is_slot(second_page);
        if hit {
            self.dtlb.stamp(page, self.next);
            self.l1d.use_place(line, stores, line_stamp(self.next));
            self.next += STAMP_STEP;
            self.dtlb.stamp(second_page, self.next);
            let stamp = line_stamp(self.next);
            self.l1d.use_place(second_line, second_stores, stamp);
            self.next += STAMP_STEP;
        }
        hit
    }

    /// As [`Touches::touch`] for an access that reaches into the next line. Both lines must hit.
    #[inline(always)]
    pub fn touch_split(&mut self, addr: u64, size: u32, store: bool) -> bool {
        let last = addr.wrapping_add(u64::from(size) - 1);
        self.touch(addr, store) && self.touch(last, store)
    }

    /// Performs any access within a line and returns its misses. [`NO_ACCESS`] never misses.
    #[inline(always)]
    pub fn take(&mut self, addr: u64, store: bool) -> Missed {
        let now = self.next;
        self.next += STAMP_STEP;
        if addr == NO_ACCESS {
            self.show_no_access();
            return Missed::NOTHING;
        }
        let page = self.pages.address(addr);
        let has_page = self.dtlb.stamp(self.dtlb.front_slot(page), now)
            || take_page(self.width, self.dtlb, page, now);
        let missed = take_line(self.width, self.l1d, addr, store, line_stamp(now));
        if has_page { missed } else { missed.with_page() }
    }

    #[cold]
    fn show_no_access(&mut self) {
        self.l1d.show_no_access();
        self.dtlb.show_no_access();
    }
}

/// Uses a page that the front does not have. Returns true if the TLB holds it.
#[inline(always)]
fn take_page(width: SearchWidth, dtlb: &mut Dtlb, page: u64, now: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    fn fours(dtlb: &mut Dtlb, page: u64, now: u64) -> bool {
        dtlb.take::<Fours>(page, now)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx512f")]
    fn eights(dtlb: &mut Dtlb, page: u64, now: u64) -> bool {
        dtlb.take::<Eights>(page, now)
    }
    #[inline(never)]
    fn portably(dtlb: &mut Dtlb, page: u64, now: u64) -> bool {
        dtlb.take::<Portable>(page, now)
    }
    #[allow(unsafe_code)]
    match width {
        SearchWidth::Any => portably(dtlb, page, now),
        // SAFETY: `width` is `Fours` only if the host has AVX2.
        #[cfg(target_arch = "x86_64")]
        SearchWidth::Fours => unsafe { fours(dtlb, page, now) },
        // SAFETY: `width` is `Eights` only if the host has AVX-512F.
        #[cfg(target_arch = "x86_64")]
        SearchWidth::Eights => unsafe { eights(dtlb, page, now) },
    }
}

/// Uses a line and returns what it misses.
#[inline(always)]
fn take_line(width: SearchWidth, l1d: &mut L1d, addr: u64, store: bool, now: u32) -> Missed {
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    fn fours(l1d: &mut L1d, addr: u64, store: bool, now: u32) -> Missed {
        take_line_by::<Fours>(l1d, addr, store, now)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(never)]
    #[target_feature(enable = "avx512f")]
    fn eights(l1d: &mut L1d, addr: u64, store: bool, now: u32) -> Missed {
        take_line_by::<Eights>(l1d, addr, store, now)
    }
    #[inline(never)]
    fn portably(l1d: &mut L1d, addr: u64, store: bool, now: u32) -> Missed {
        take_line_by::<Portable>(l1d, addr, store, now)
    }
    #[allow(unsafe_code)]
    match width {
        SearchWidth::Any => portably(l1d, addr, store, now),
        // SAFETY: `width` is `Fours` only if the host has AVX2.
        #[cfg(target_arch = "x86_64")]
        SearchWidth::Fours => unsafe { fours(l1d, addr, store, now) },
        // SAFETY: `width` is `Eights` only if the host has AVX-512F.
        #[cfg(target_arch = "x86_64")]
        SearchWidth::Eights => unsafe { eights(l1d, addr, store, now) },
    }
}

#[inline(always)]
fn take_line_by<R: RowSearch>(l1d: &mut L1d, addr: u64, store: bool, now: u32) -> Missed {
    let mut missed = Missed::NOTHING;
    if store {
        missed.flags |= Missed::STORES;
    }
    let tag = tag_of(addr);
    match l1d.reuse::<R>(tag, store, now) {
        Reuse::Held => {}
        Reuse::Reported { watched, first } => {
            missed.flags |= if watched { Missed::WATCHED } else { 0 };
            missed.flags |= if first { Missed::FIRST_USE } else { 0 };
        }
        Reuse::Absent => {
            missed.left = l1d.fill::<R>(tag, store, now);
            if l1d.may_be_watched(tag) {
                missed.flags |= Missed::AT_ONCE;
            }
        }
    }
    missed
}

impl Drop for Touches<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.stamp = self.next - STAMP_STEP;
    }
}

impl Core {
    /// Returns the first level to perform accesses. Each [miss](Missed) must be
    /// [supplied](Core::supply) before any other call on the core, and before the next access if
    /// [`Missed::at_once`] or [`SharedLevels::recalls`](crate::SharedLevels::recalls) requires it.
    #[inline(always)]
    pub fn touches(&mut self) -> Touches<'_> {
        self.first.touches()
    }

    /// Reports the next use of each line in a range of addresses that begins and ends with a line:
    /// as a miss if this core, or another one with the same address space, does not hold the line,
    /// and otherwise as [`AccessOutcome::first_use`](crate::AccessOutcome::first_use).
    pub fn report_first_use(&mut self, shared: &mut SharedLevels, range: Range<u64>) {
        let lines = range.end.saturating_sub(range.start) / LINE_BYTES;
        let tag = tag_of(range.start);
        self.first.l1d.report_next_use(tag, lines);
        for other in shared.cores.iter_mut().flatten() {
            if other.space_bits == self.space_bits {
                other.first.l1d.report_next_use(tag, lines);
            }
        }
    }

    /// Performs one [`Touches::touch`].
    #[inline(always)]
    pub fn touch(&mut self, addr: u64, store: bool) -> bool {
        self.touches().touch(addr, store)
    }

    /// Returns true if memory is in huge pages, all or some.
    pub fn has_huge_pages(&self) -> bool {
        !self.first.pages.are_small()
    }

    /// Places these ranges of addresses in huge pages, and all others in pages of 4 KiB. They are in
    /// order, do not overlap, and begin and end with a huge page. Nothing changes on a machine
    /// that has all memory in [huge pages](Config::huge_pages).
    pub fn use_huge_pages(&mut self, ranges: &Arc<[Range<u64>]>) {
        let pages = &mut self.first.pages;
        if pages.shift == 0 && !Arc::ptr_eq(&pages.huge, ranges) {
            pages.huge = Arc::clone(ranges);
        }
    }

    /// Returns true if an access of `size` bytes reaches beyond the line of `addr`.
    #[inline(always)]
    pub fn crosses_line(addr: u64, size: u32) -> bool {
        (addr % u64::from(crate::LINE_BYTES)) + u64::from(size) > u64::from(crate::LINE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random accesses to more lines than the first level holds, with turns that end now and then.
    fn misses(config: &Config, mut first: FirstLevel, seed: u64) -> Vec<(Missed, Vec<u64>)> {
        let mut x = seed | 1;
        let mut random = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        let lines = 2 * config.l1d.size_bytes / LINE_BYTES;
        let mut missed = Vec::new();
        for _ in 0..20_000 {
            let (addr, store) = (random() % lines * LINE_BYTES, random() % 4 == 0);
            let mut touches = first.touches();
            let hit = touches.touch(addr, store);
            let outcome = if hit {
                Missed::NOTHING
            } else {
                touches.take(addr, store)
            };
            drop(touches);
            first.l1d.set_shared(tag_of(addr));
            let stored = match random() % 50 {
                0 => {
                    let began = first.begin_turn();
                    first.l1d.shared_and_stored_since(began)
                }
                1 => first.l1d.drop_line(tag_of(addr)).into_iter().collect(),
                _ => Vec::new(),
            };
            missed.push((outcome, stored));
        }
        missed
    }

    #[test]
    fn renewed_stamps_keep_the_order_of_lines() {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = time.expect("SANITY: the clock is past 1970").as_nanos() as u64;
        for name in ["i5-6600k", "skylake-sp", "zen5"] {
            let config = Config::preset(name).unwrap();
            let expected = misses(&config, FirstLevel::new(&config), seed);
            let mut soon = FirstLevel::new(&config);
            soon.stamp = (1 << 31) - 5000 * STAMP_STEP;
            soon.turn_began = soon.stamp;
            let renewed = misses(&config, soon, seed);
            assert!(expected == renewed, "{name}, seed {seed}");
        }
    }
}
