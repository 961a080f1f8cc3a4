//! Coherence of the private caches: MESI, with a directory at the last-level cache.
//!
//! The directory has an entry for each page that a core has missed a line of, and, where several
//! cores have, which of them may hold each of its lines. A page that a single core uses costs one
//! look at this core's own table, so threads with data of their own pay little.
//!
//! Cores take turns (the front end decides how long), and a hit of the first level tells nobody. So
//! a core that stores to a line that others only read is noticed at the end of its turn
//! ([`Core::end_turn`]). From the first time on that a core loses a line to a store, the line is
//! *watched*: the first level reports every access to it, and everything is exact.
//!
//! Rejected: asking all other cores at every miss of the second level, which costs as much as the
//! miss itself from four cores on. And: a state in each line of the first level, which every store
//! that hits would have to look at.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use memgauge_trace::AccessKind;

use crate::cache::DIRTY;
use crate::events::*;
use crate::outcome::Sharing;
use crate::{Core, LINE_BYTES, Outcome, Shared};

/// Lines in a page.
const LINES: usize = 64;
/// A tag without its line in the page.
const PAGE_SHIFT: u32 = 8;
/// Cores that the directory tells apart. Of more that live at once, the others are not coherent.
const CORES: usize = 64;
/// Pages that a core remembers the entry of.
const RECENT: usize = 1024;
/// Entries before those of pages that no core holds a line of are dropped.
const MOST_PAGES: usize = 1 << 17;
/// Lines that are watched.
const MOST_WATCHED: usize = 1 << 16;

/// A bit for each byte of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineBytes {
    /// Bytes that are loaded.
    pub loaded: u64,
    /// Bytes that are stored.
    pub stored: u64,
}

impl LineBytes {
    /// The bytes of an access in the line of its first byte.
    #[inline]
    pub fn of(addr: u64, size: u32, kind: AccessKind) -> LineBytes {
        let mut bytes = LineBytes::default();
        bytes.add(addr, size, kind);
        bytes
    }

    /// Adds the bytes of an access in the line of its first byte.
    #[inline]
    pub fn add(&mut self, addr: u64, size: u32, kind: AccessKind) {
        let first = addr % u64::from(LINE_BYTES);
        let mask = (u64::MAX >> (64 - u64::from(size.clamp(1, LINE_BYTES)))) << first;
        if kind != AccessKind::Store {
            self.loaded |= mask;
        }
        if kind == AccessKind::Store || kind == AccessKind::Modify {
            self.stored |= mask;
        }
    }
}

/// What an access does to a line.
#[derive(Clone, Copy)]
pub(crate) struct LineUse {
    pub(crate) stores: bool,
    pub(crate) bytes: LineBytes,
}

#[derive(Default)]
pub(crate) struct FibonacciHasher(u64);

impl Hasher for FibonacciHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, n: u64) {
        let product = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

type Map<V> = HashMap<u64, V, BuildHasherDefault<FibonacciHasher>>;

/// A page and the cores, as bits, that use it.
struct PageEntry {
    /// Cores that have missed a line of it.
    users: u64,
    /// Where there are several: the cores that may hold each line. A core that dropped its clean copy
    /// keeps its bit. If there are at least two bits, every copy is clean.
    holders: Option<Box<[u64; LINES]>>,
}

/// A core that lost a watched line to a store of another one.
struct LostCopy {
    /// Its place, which no other core has after it.
    core: usize,
    /// Bytes that others have stored since; `None` where the first of these stores was noticed late.
    stored: Option<u64>,
}

/// A line that a core has again after others stored to it, and of which it has not touched what they
/// stored.
pub(crate) struct RegainedLine {
    line: u64,
    /// Bytes that others stored.
    stored: u64,
}

/// Which cores may hold which lines.
#[derive(Default)]
pub(crate) struct Directory {
    pages: Map<u32>,
    entries: Vec<PageEntry>,
    most_pages: usize,
    /// Places of the cores that the bits stand for.
    cores: Vec<Option<usize>>,
    watched: Map<Vec<LostCopy>>,
    /// Raised when entries move.
    version: u32,
    /// Whether several cores share an address space, or have.
    is_on: bool,
    /// Lines that could not be watched.
    unwatched: u64,
    /// Cores without a bit.
    incoherent: u64,
}

/// Entries of the pages that a core missed last.
pub(crate) struct RecentPages {
    version: u32,
    pages: Box<[RecentPage; RECENT]>,
}

#[derive(Clone, Copy)]
struct RecentPage {
    page: u64,
    entry: u32,
}

impl RecentPages {
    pub(crate) fn new() -> RecentPages {
        let none = RecentPage {
            page: u64::MAX,
            entry: 0,
        };
        RecentPages {
            version: 0,
            pages: Box::new([none; RECENT]),
        }
    }

    /// The entry of a page.
    #[inline(always)]
    fn entry(&mut self, directory: &mut Directory, page: u64) -> usize {
        if self.version != directory.version {
            *self = RecentPages {
                version: directory.version,
                ..RecentPages::new()
            };
        }
        let recent = &mut self.pages[page as usize % RECENT];
        if recent.page != page {
            *recent = RecentPage {
                page,
                entry: directory.entry(page),
            };
        }
        recent.entry as usize
    }
}

/// Whether a line is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    New,
    Known,
    NoRoom,
}

/// Copies that other cores had of a line.
#[derive(Clone, Copy, Default)]
struct OtherCopies {
    /// The cores that had one.
    cores: u64,
    /// Whether one of them was modified.
    is_dirty: bool,
}

impl OtherCopies {
    /// Those that the other cores lost: none if the access only loads.
    fn taken_by(self, stores: bool) -> OtherCopies {
        if stores { self } else { OtherCopies::default() }
    }
}

impl Directory {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(crate) fn unwatched(&self) -> u64 {
        self.unwatched
    }

    pub(crate) fn incoherent(&self) -> u64 {
        self.incoherent
    }

    /// Whether it is time to [rebuild](Self::rebuild) it.
    pub(crate) fn is_full(&self) -> bool {
        self.is_on && self.entries.len() > self.most_pages.max(MOST_PAGES)
    }

    /// The bit of a new core; 0 if there are too many.
    pub(crate) fn add_core(&mut self, place: usize) -> u64 {
        if self.cores.is_empty() {
            self.cores = vec![None; CORES];
        }
        let Some(bit) = self.cores.iter().position(Option::is_none) else {
            self.incoherent += 1;
            return 0;
        };
        self.cores[bit] = Some(place);
        1 << bit
    }

    pub(crate) fn remove_core(&mut self, bit: u64) {
        if bit != 0 {
            self.cores[bit.trailing_zeros() as usize] = None;
        }
    }

    fn entry(&mut self, page: u64) -> u32 {
        let entries = &mut self.entries;
        *self.pages.entry(page).or_insert_with(|| {
            entries.push(PageEntry {
                users: 0,
                holders: None,
            });
            (entries.len() - 1) as u32
        })
    }

    /// Begins, or begins anew, with the pages that the cores hold lines of.
    pub(crate) fn rebuild(&mut self, cores: &[Option<Box<Core>>]) {
        self.is_on = true;
        self.version += 1;
        self.pages.clear();
        self.entries.clear();
        let mut held: Vec<(u64, u64)> = Vec::new();
        for core in cores.iter().flatten().filter(|core| core.bit != 0) {
            held.extend(core.tags_held().map(|tag| (tag, core.bit)));
        }
        for &(tag, bit) in &held {
            let entry = self.entry(tag >> PAGE_SHIFT);
            self.entries[entry as usize].users |= bit;
        }
        for (tag, bit) in held {
            let entry = self.entry(tag >> PAGE_SHIFT);
            let entry = &mut self.entries[entry as usize];
            if !entry.users.is_power_of_two() {
                let holders = entry.holders.get_or_insert_with(|| Box::new([0; LINES]));
                holders[line_in_page(tag)] |= bit;
            }
        }
        self.most_pages = 2 * self.entries.len();
    }

    fn places(&self, mut bits: u64) -> impl Iterator<Item = usize> + '_ {
        std::iter::from_fn(move || {
            let bit = (bits != 0).then(|| bits.trailing_zeros())?;
            bits &= bits - 1;
            Some(self.cores[bit as usize])
        })
        .flatten()
    }

    /// Watches a line from now on, if there is room.
    fn watch(&mut self, line: u64) -> Watch {
        if self.watched.contains_key(&line) {
            return Watch::Known;
        }
        if self.watched.len() >= MOST_WATCHED {
            self.unwatched += 1;
            return Watch::NoRoom;
        }
        self.watched.insert(line, Vec::new());
        Watch::New
    }

    /// Notes bytes of a watched line that a core stores.
    fn note_stored(&mut self, line: u64, core: usize, stored: u64) {
        if let Some(lost) = self.watched.get_mut(&line) {
            for copy in lost.iter_mut().filter(|copy| copy.core != core) {
                copy.stored = copy.stored.map(|before| before | stored);
            }
        }
    }

    /// Notes that cores lost a watched line to a store, of known bytes or not.
    fn lose(&mut self, line: u64, losers: u64, knows_bytes: bool) {
        let places: Vec<usize> = self.places(losers).collect();
        let live = &self.cores;
        let Some(lost) = self.watched.get_mut(&line) else {
            return;
        };
        if lost.len() >= CORES {
            lost.retain(|copy| live.contains(&Some(copy.core)));
        }
        let stored = knows_bytes.then_some(0);
        lost.extend(places.into_iter().map(|core| LostCopy { core, stored }));
    }

    /// A core has a line again. The bytes that were stored since it lost it to a store of another
    /// core, if it did and they are known.
    fn regain(&mut self, line: u64, core: usize) -> Option<u64> {
        let lost = self.watched.get_mut(&line)?;
        let at = lost.iter().position(|copy| copy.core == core)?;
        lost.swap_remove(at).stored
    }
}

fn line_in_page(tag: u64) -> usize {
    (tag >> 2) as usize % LINES
}

impl Shared {
    /// Takes a line out of other cores because another one stores to it.
    fn invalidate(&mut self, cores: u64, tag: u64) -> OtherCopies {
        let mut copies = OtherCopies::default();
        let places: Vec<usize> = self.directory.places(cores).collect();
        for place in places {
            let Some(other) = self.cores[place].as_deref_mut() else {
                continue;
            };
            if let Some(flags) = other.drop_copy(tag) {
                copies.is_dirty |= flags & DIRTY != 0;
                copies.cores |= other.bit;
            }
        }
        copies
    }

    /// Lets another core, the only one that holds a line, share it from now on.
    fn downgrade(&mut self, core: u64, tag: u64) -> OtherCopies {
        let place = self.directory.places(core).next();
        let other = place.and_then(|place| self.cores[place].as_deref_mut());
        let Some(flags) = other.and_then(|other| other.share_copy(tag)) else {
            return OtherCopies::default();
        };
        OtherCopies {
            cores: core,
            is_dirty: flags & DIRTY != 0,
        }
    }
}

impl Core {
    /// Takes a line out of the private caches; its flags, if it was there.
    fn drop_copy(&mut self, tag: u64) -> Option<u64> {
        let (first, second) = (self.first.l1d.drop_line(tag), self.l2.drop_line(tag));
        (first.is_some() || second.is_some()).then(|| first.unwrap_or(0) | second.unwrap_or(0))
    }

    /// Makes a line of the private caches clean, and one that other cores may hold; its flags
    /// before, if it is there.
    fn share_copy(&mut self, tag: u64) -> Option<u64> {
        let (first, second) = (self.first.l1d.clean(tag), self.l2.clear_flags(tag, DIRTY));
        self.first.l1d.set_shared(tag);
        (first.is_some() || second.is_some()).then(|| first.unwrap_or(0) | second.unwrap_or(0))
    }

    fn entry_of(&mut self, shared: &mut Shared, tag: u64) -> usize {
        let page = (tag | self.space_bits) >> PAGE_SHIFT;
        self.recent_pages.entry(&mut shared.directory, page)
    }

    /// The first level has missed a line. Makes the other cores give up or share their copies.
    /// Returns whether one of them had a modified one, which is in the last-level cache now.
    #[inline(always)]
    pub(crate) fn claim(
        &mut self,
        shared: &mut Shared,
        tag: u64,
        line_use: LineUse,
        out: &mut Outcome,
    ) -> bool {
        let entry = self.entry_of(shared, tag);
        if shared.directory.entries[entry].users == self.bit {
            return false;
        }
        self.claim_shared(shared, tag, entry, line_use, out)
    }

    #[inline(never)]
    fn claim_shared(
        &mut self,
        shared: &mut Shared,
        tag: u64,
        entry: usize,
        line_use: LineUse,
        out: &mut Outcome,
    ) -> bool {
        if self.bit == 0 {
            return false;
        }
        let known = &mut shared.directory.entries[entry];
        let users = known.users;
        known.users |= self.bit;
        if users == 0 {
            return false;
        }
        let line = tag | self.space_bits;
        let before = match &known.holders {
            Some(holders) => holders[line_in_page(tag)],
            None => self.begin_sharing(shared, tag, entry, users),
        };
        let others = before & !self.bit;
        let mut copies = OtherCopies::default();
        let mut holders = before | self.bit;
        if line_use.stores {
            copies = shared.invalidate(others, tag);
            holders = self.bit;
        } else if before & self.bit == 0 && others.is_power_of_two() {
            // A single holder may have modified it; several have it clean.
            copies = shared.downgrade(others, tag);
            if copies.cores == 0 {
                holders = self.bit;
            }
        }
        self.set_holders(shared, tag, entry, holders);
        if copies.is_dirty {
            self.counts[COHERENCE_HITM] += 1;
            out.sharing.add(Sharing::HITM);
            // One that stores has the modified line itself from now on.
            let flags = if line_use.stores { 0 } else { DIRTY };
            self.fill_llc(shared, tag, flags, out);
        }
        self.count_invalidated(shared, copies.taken_by(line_use.stores), tag, true, out);
        if let Some(stored) = shared.directory.regain(line, self.place) {
            out.sharing.add(Sharing::REGAINS);
            self.regained.push(RegainedLine { line, stored });
            self.touch_regained(line, line_use.bytes, out);
        }
        if shared.directory.watched.contains_key(&line) {
            self.first.l1d.watch(tag);
            let stored = line_use.bytes.stored;
            shared.directory.note_stored(line, self.place, stored);
        }
        copies.is_dirty
    }

    /// Whether an access touches what others have stored to a line that this core has regained in this
    /// turn: then that was true sharing.
    fn touch_regained(&mut self, line: u64, bytes: LineBytes, out: &mut Outcome) {
        let touched = bytes.loaded | bytes.stored;
        let is_touched =
            |regained: &RegainedLine| regained.line == line && regained.stored & touched != 0;
        if let Some(at) = self.regained.iter().position(is_touched) {
            self.regained.swap_remove(at);
            self.counts[COHERENCE_TRUE_SHARING] += 1;
            out.sharing.add(Sharing::TRUE);
        }
    }

    /// A second core uses a page: which lines the first ones hold. The holders of the line of `tag`.
    fn begin_sharing(&mut self, shared: &mut Shared, tag: u64, entry: usize, users: u64) -> u64 {
        let mut holders = Box::new([0; LINES]);
        let first = tag & !((LINES as u64 - 1) << 2);
        for place in shared.directory.places(users & !self.bit) {
            let Some(other) = shared.cores[place].as_deref() else {
                continue;
            };
            for (line, holders) in holders.iter_mut().enumerate() {
                let tag = first + (line as u64) * 4;
                if other.first.l1d.has(tag) || other.l2.holds(tag) {
                    *holders |= other.bit;
                }
            }
        }
        let of_line = holders[line_in_page(tag)];
        shared.directory.entries[entry].holders = Some(holders);
        of_line
    }

    fn set_holders(&mut self, shared: &mut Shared, tag: u64, entry: usize, bits: u64) {
        if let Some(holders) = &mut shared.directory.entries[entry].holders {
            holders[line_in_page(tag)] = bits;
        }
        if bits != self.bit {
            self.first.l1d.set_shared(tag);
        }
    }

    /// This core has taken a line from others.
    fn count_invalidated(
        &mut self,
        shared: &mut Shared,
        copies: OtherCopies,
        tag: u64,
        knows_bytes: bool,
        out: &mut Outcome,
    ) {
        if copies.cores == 0 {
            return;
        }
        self.counts[COHERENCE_INVALIDATION] += u64::from(copies.cores.count_ones());
        out.sharing.add(Sharing::INVALIDATES);
        self.watch_line(shared, tag);
        let line = tag | self.space_bits;
        shared.directory.lose(line, copies.cores, knows_bytes);
    }

    /// Watches a line from now on, here and in the other cores.
    fn watch_line(&mut self, shared: &mut Shared, tag: u64) {
        let watch = shared.directory.watch(tag | self.space_bits);
        if watch == Watch::New {
            self.first.l1d.note_watched(tag);
            for other in shared.cores.iter_mut().flatten() {
                other.first.l1d.note_watched(tag);
                if other.space_bits == self.space_bits {
                    other.first.l1d.watch(tag);
                }
            }
        }
        if watch != Watch::NoRoom {
            self.first.l1d.watch(tag);
        }
    }

    /// An access to a watched line that the first level holds.
    #[inline(never)]
    pub(crate) fn use_watched(
        &mut self,
        shared: &mut Shared,
        tag: u64,
        line_use: LineUse,
        out: &mut Outcome,
    ) {
        let line = tag | self.space_bits;
        self.touch_regained(line, line_use.bytes, out);
        if !line_use.stores {
            return;
        }
        self.upgrade(shared, tag, true, out);
        let stored = line_use.bytes.stored;
        shared.directory.note_stored(line, self.place, stored);
    }

    /// This core holds a line and has stored to it, to known bytes or not: others must not hold it.
    pub(crate) fn upgrade(
        &mut self,
        shared: &mut Shared,
        tag: u64,
        knows_bytes: bool,
        out: &mut Outcome,
    ) {
        if self.bit == 0 {
            return;
        }
        let entry = self.entry_of(shared, tag);
        let Some(holders) = &shared.directory.entries[entry].holders else {
            return;
        };
        let others = holders[line_in_page(tag)] & !self.bit;
        if others == 0 {
            return;
        }
        let copies = shared.invalidate(others, tag);
        self.set_holders(shared, tag, entry, self.bit);
        self.counts[COHERENCE_UPGRADE] += u64::from(copies.cores != 0);
        self.count_invalidated(shared, copies, tag, knows_bytes, out);
    }

    /// How often lines have moved to this core from others, or were taken from them for it.
    pub fn lines_moved(&self) -> u64 {
        self.counts[COHERENCE_HITM] + self.counts[COHERENCE_INVALIDATION]
    }

    /// A new core among others: knows which lines are watched.
    pub(crate) fn join(&mut self, other: &Core) {
        self.first.l1d.note_watched_of(&other.first.l1d);
    }

    /// Ends a turn of this core: other cores may run after it. Lines that it has stored to, and that
    /// others hold, are taken out of those.
    pub fn end_turn(&mut self, shared: &mut Shared) {
        let began = self.turn_began;
        self.turn_began = self.first.stamp();
        if !shared.directory.is_on() {
            return;
        }
        self.counts[COHERENCE_FALSE_SHARING] += self.regained.len() as u64;
        self.regained.clear();
        for tag in self.first.l1d.shared_and_stored_since(began) {
            self.upgrade(shared, tag, false, &mut Outcome::default());
        }
    }
}
