//! The first level: data cache and data TLB of a core.
//!
//! It depends on nothing below it, as long as no inclusive last-level cache takes
//! lines out of it. So it can be fed ahead: what an access needs from below is
//! noted as a [`Missed`], to be [supplied](crate::Core::supply) later, in order.
//! Feeding many accesses and then supplying what they missed keeps the host busy
//! with several misses at once.

#[cfg(target_arch = "x86_64")]
use crate::cache::{Eights, Fours};
use crate::cache::{Portable, Rows, Width, tag_of};
use crate::l1d::{L1d, Reuse};
use crate::tlb::{Dtlb, STAMP_STEP};
use crate::{Config, Core};

/// An address in the last page of the user's half, which Linux never maps. Touching it
/// changes nothing, so that a feed may have an entry without access.
pub const NO_ACCESS: u64 = 0x7fff_ffff_f000;

pub(crate) struct FirstLevel {
    pub(crate) l1d: L1d,
    pub(crate) dtlb: Dtlb,
    /// Grows with every use of a line or page; orders them by time of use.
    stamp: u64,
    /// How many ways the host searches at a time.
    width: Width,
    /// [`Config::page_shift`]
    page_shift: u32,
}

/// The address by which the TLB knows the page of `addr`.
#[inline(always)]
fn page_address(addr: u64, page_shift: u32) -> u64 {
    match addr {
        NO_ACCESS => NO_ACCESS,
        _ => addr >> page_shift,
    }
}

/// Lines and pages that an access within a line did not find in the first level, which
/// has taken them in already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// The line that left for the access's, with its flags; [`Missed::NO_LINE`]
    /// if the line was there.
    left: u64,
    /// Whether the page was absent.
    page: bool,
    /// Whether the access stores.
    stores: bool,
    /// Whether the line was there and other cores need to know of the access.
    watched: bool,
    /// Whether later accesses to the line depend on what other cores have done.
    at_once: bool,
}

impl Missed {
    /// No line's word and not that of an empty slot.
    const NO_LINE: u64 = u64::MAX;
    /// Nothing.
    pub const NOTHING: Missed = Missed {
        left: Missed::NO_LINE,
        page: false,
        stores: false,
        watched: false,
        at_once: false,
    };

    /// A line that was absent; `left` left for it.
    pub(crate) fn of_line(left: u64) -> Missed {
        Missed {
            left,
            ..Missed::NOTHING
        }
    }

    /// Whether everything was there.
    #[inline(always)]
    pub fn is_nothing(self) -> bool {
        !self.page && !self.watched && self.left == Missed::NO_LINE
    }

    #[inline(always)]
    pub(crate) fn page(self) -> bool {
        self.page
    }

    #[inline(always)]
    pub(crate) fn stores(self) -> bool {
        self.stores
    }

    #[inline(always)]
    pub(crate) fn watched(self) -> bool {
        self.watched
    }

    /// Whether it is to be [supplied](crate::Core::supply) before the next access.
    #[inline(always)]
    pub fn at_once(self) -> bool {
        self.at_once
    }

    /// Whether other cores may need to know which bytes are accessed.
    #[inline(always)]
    pub fn may_be_watched(self) -> bool {
        self.watched || self.at_once
    }

    /// The word that left for the line, if the line was absent.
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
            width: Width::of_this_host(),
            page_shift: config.page_shift(),
        }
    }

    #[inline(always)]
    pub(crate) fn next_stamp(&mut self) -> u64 {
        self.stamp += STAMP_STEP;
        self.stamp
    }

    /// The address by which the TLBs know the page of `addr`.
    #[inline(always)]
    pub(crate) fn page_of(&self, addr: u64) -> u64 {
        page_address(addr, self.page_shift)
    }

    pub(crate) fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// The stamp of the last use.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    #[inline(always)]
    pub(crate) fn touches(&mut self) -> Touches<'_> {
        Touches {
            next: self.stamp + STAMP_STEP,
            l1d: &mut self.l1d,
            dtlb: &mut self.dtlb,
            stamp: &mut self.stamp,
            width: self.width,
            page_shift: self.page_shift,
        }
    }
}

/// Accesses as the first level sees them, one after the other.
///
/// Apart from [`Core`] so that a loop of them keeps its clock in a register.
pub struct Touches<'a> {
    l1d: &'a mut L1d,
    dtlb: &'a mut Dtlb,
    stamp: &'a mut u64,
    /// The stamp of the next one.
    next: u64,
    width: Width,
    page_shift: u32,
}

impl Touches<'_> {
    /// Performs the access if it hits where the fronts of cache and TLB know its
    /// line and page: then it is completely accounted for. If not, nothing was
    /// done and it must go to [`Touches::take`] or [`Core::access`], hit or not.
    ///
    /// All bytes must lie in the line of `addr` (see [`Core::crosses_line`]); a
    /// read-modify-write is a store here. One call serves any number of accesses
    /// in a row to one line, as a store if one of them is.
    #[inline(always)]
    pub fn touch(&mut self, addr: u64, store: bool) -> bool {
        self.touch_in(page_address(addr, self.page_shift), addr, store)
    }

    /// The same on a core that has huge pages or not.
    // A constant, so that the loop over hits of a core without them does not shift.
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
        self.l1d.use_place(line, store, self.next);
        self.next += STAMP_STEP;
        true
    }

    /// The same for an access that reaches into the next line: both must hit so.
    #[inline(always)]
    pub fn touch_split(&mut self, addr: u64, size: u32, store: bool) -> bool {
        let last = addr.wrapping_add(u64::from(size) - 1);
        self.touch(addr, store) && self.touch(last, store)
    }

    /// Performs any access within a line; what it missed. For [`NO_ACCESS`] the result
    /// is empty.
    #[inline(always)]
    pub fn take(&mut self, addr: u64, store: bool) -> Missed {
        let now = self.next;
        self.next += STAMP_STEP;
        let (l1d, dtlb) = (&mut *self.l1d, &mut *self.dtlb);
        let page = page_address(addr, self.page_shift);
        #[allow(unsafe_code)]
        match self.width {
            Width::Any => take_portably(l1d, dtlb, page, addr, store, now),
            // SAFETY: `width` says so only where the host has AVX2.
            #[cfg(target_arch = "x86_64")]
            Width::Fours => unsafe { take_fours(l1d, dtlb, page, addr, store, now) },
            // SAFETY: the same, of AVX-512F.
            #[cfg(target_arch = "x86_64")]
            Width::Eights => unsafe { take_eights(l1d, dtlb, page, addr, store, now) },
        }
    }
}

// These are apart from `Touches`, whose clock then need not be in memory.

#[inline(never)]
fn take_portably(
    l1d: &mut L1d,
    dtlb: &mut Dtlb,
    page: u64,
    addr: u64,
    store: bool,
    now: u64,
) -> Missed {
    take::<Portable>(l1d, dtlb, page, addr, store, now)
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx2")]
fn take_fours(
    l1d: &mut L1d,
    dtlb: &mut Dtlb,
    page: u64,
    addr: u64,
    store: bool,
    now: u64,
) -> Missed {
    take::<Fours>(l1d, dtlb, page, addr, store, now)
}

#[cfg(target_arch = "x86_64")]
#[inline(never)]
#[target_feature(enable = "avx512f")]
fn take_eights(
    l1d: &mut L1d,
    dtlb: &mut Dtlb,
    page: u64,
    addr: u64,
    store: bool,
    now: u64,
) -> Missed {
    take::<Eights>(l1d, dtlb, page, addr, store, now)
}

#[inline(always)]
fn take<R: Rows>(
    l1d: &mut L1d,
    dtlb: &mut Dtlb,
    page: u64,
    addr: u64,
    store: bool,
    now: u64,
) -> Missed {
    if addr == NO_ACCESS {
        l1d.show_no_access();
        dtlb.show_no_access();
        return Missed::NOTHING;
    }
    let page = !dtlb.take::<R>(page, now);
    let tag = tag_of(addr);
    let reuse = l1d.reuse::<R>(tag, store, now);
    let left = match reuse {
        Reuse::Absent => l1d.fill::<R>(tag, store, now),
        Reuse::Held | Reuse::Watched => Missed::NO_LINE,
    };
    Missed {
        left,
        page,
        stores: store,
        watched: reuse == Reuse::Watched,
        at_once: reuse == Reuse::Absent && l1d.may_be_watched(tag),
    }
}

impl Drop for Touches<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.stamp = self.next - STAMP_STEP;
    }
}

impl Core {
    /// The first level, to be fed. A [miss](Missed) there must be
    /// [supplied](Core::supply) before the core is told anything else, and at once
    /// where [`Missed::at_once`] or [`Shared::recalls`](crate::Shared::recalls) says so.
    #[inline(always)]
    pub fn touches(&mut self) -> Touches<'_> {
        self.first.touches()
    }

    /// One [`Touches::touch`].
    #[inline(always)]
    pub fn touch(&mut self, addr: u64, store: bool) -> bool {
        self.touches().touch(addr, store)
    }

    /// Whether it has huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.first.page_shift > 0
    }

    /// Whether an access of `size` bytes reaches beyond the line of `addr`.
    #[inline(always)]
    pub fn crosses_line(addr: u64, size: u32) -> bool {
        (addr % u64::from(crate::LINE_BYTES)) + u64::from(size) > u64::from(crate::LINE_BYTES)
    }
}
