//! Coherence of the private caches: MESI, with a directory at the last-level cache.
//!
//! The directory has one entry per page that missed the first level. If several cores use a page, its
//! entry lists the possible holders of each line. A page of a single core costs one lookup in that
//! core's own table, so threads with private data pay little.
//!
//! Cores take turns, and the front end decides how long a turn is. A first-level hit does not reach
//! the directory. Therefore a store that hits a line shared by other cores is detected only at the end
//! of the turn ([`Core::end_turn`]). Once a core has lost a line to a store, the line is *watched*: the
//! first level reports every access to it, in order.
//!
//! Rejected: a lookup in all other cores at each second-level miss, because with four cores it costs
//! as much as the miss itself. Also rejected: a coherence state in each first-level line, because
//! every store hit would have to check it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use memgauge_trace::AccessKind;

use crate::cache::DIRTY;
use crate::events::*;
use crate::outcome::LineSharing;
use crate::{AccessOutcome, Core, LINE_BYTES, SharedLevels};

/// Lines in a page.
const LINES: usize = 64;
/// A tag without its line in the page.
const PAGE_SHIFT: u32 = 8;
/// Maximum number of coherent cores, one bit each. Further cores see no other core's stores, and are
/// counted.
const MAX_CORES: usize = 64;
/// Number of directory entries that a core caches.
const RECENT_PAGES: usize = 1024;
/// Number of entries at which the directory is rebuilt from the lines that cores hold.
const MIN_REBUILD_PAGES: usize = 1 << 17;
/// Maximum number of watched lines.
const MAX_WATCHED: usize = 1 << 16;

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

/// Use of a line by an access.
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

/// Cores that use a page, as bits.
struct PageEntry {
    /// Cores that have missed one of its lines.
    users: u64,
    /// Possible holders of each line, if the page has several users. A core that evicts a clean copy
    /// keeps its bit. With two or more bits, every copy is clean.
    holders: Option<Box<[u64; LINES]>>,
}

/// A core that lost a watched line to another core's store.
struct LostCopy {
    /// Index of the core. Indices are not reused.
    core: usize,
    /// Bytes that other cores have stored since. `None` if the first store was detected late, so that
    /// its bytes are unknown.
    stored: Option<u64>,
}

/// A line that a core has missed after other cores stored to it. The core has not accessed the stored
/// bytes yet, so it may be false sharing.
pub(crate) struct RegainedLine {
    line: u64,
    /// Bytes that other cores stored.
    stored: u64,
}

/// Possible holders of lines, and the watched lines.
#[derive(Default)]
pub(crate) struct Directory {
    pages: Map<u32>,
    entries: Vec<PageEntry>,
    most_pages: usize,
    /// Index of the core that each bit stands for.
    cores: Vec<Option<usize>>,
    watched: Map<Vec<LostCopy>>,
    /// Incremented when entries move, so that cores drop their cached entries.
    version: u32,
    /// True once two cores have shared an address space.
    is_on: bool,
    /// Number of lines that were not watched because the table was full.
    unwatched: u64,
    /// Number of cores beyond [`MAX_CORES`] that share an address space.
    incoherent: u64,
}

/// A core's cache of directory entries.
pub(crate) struct RecentPages {
    version: u32,
    pages: Box<[RecentPage; RECENT_PAGES]>,
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
            pages: Box::new([none; RECENT_PAGES]),
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
        let recent = &mut self.pages[page as usize % RECENT_PAGES];
        if recent.page != page {
            *recent = RecentPage {
                page,
                entry: directory.entry(page),
            };
        }
        recent.entry as usize
    }
}

/// Result of a request to watch a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WatchResult {
    New,
    Known,
    NoRoom,
}

/// Copies of a line in other cores.
#[derive(Clone, Copy, Default)]
struct OtherCopies {
    /// Their holders, as bits.
    cores: u64,
    /// Whether one copy was modified.
    is_dirty: bool,
}

impl OtherCopies {
    /// Returns the copies that an access invalidates. A load invalidates nothing.
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

    /// Whether the directory should be [rebuilt](Self::rebuild).
    pub(crate) fn is_full(&self) -> bool {
        self.is_on && self.entries.len() > self.most_pages.max(MIN_REBUILD_PAGES)
    }

    /// Returns the bit of a new core, or 0 beyond [`MAX_CORES`].
    pub(crate) fn add_core(&mut self, place: usize) -> u64 {
        if self.cores.is_empty() {
            self.cores = vec![None; MAX_CORES];
        }
        let Some(bit) = self.cores.iter().position(Option::is_none) else {
            return 0;
        };
        self.cores[bit] = Some(place);
        1 << bit
    }

    /// Counts a core without a bit that shares an address space.
    pub(crate) fn note_incoherent(&mut self) {
        self.incoherent += 1;
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

    /// Fills the directory from the lines that the cores hold.
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

    /// Starts watching a line, if there is room.
    fn watch(&mut self, line: u64) -> WatchResult {
        if self.watched.contains_key(&line) {
            return WatchResult::Known;
        }
        if self.watched.len() >= MAX_WATCHED {
            self.unwatched += 1;
            return WatchResult::NoRoom;
        }
        self.watched.insert(line, Vec::new());
        WatchResult::New
    }

    /// Adds bytes that a core stores to the copies that others have lost. Returns whether the line is
    /// watched.
    fn note_stored(&mut self, line: u64, core: usize, stored: u64) -> bool {
        let Some(lost) = self.watched.get_mut(&line) else {
            return false;
        };
        for copy in lost.iter_mut().filter(|copy| copy.core != core) {
            copy.stored = copy.stored.map(|before| before | stored);
        }
        true
    }

    /// Records that cores lost a watched line to a store. `knows_bytes`: the stored bytes will be
    /// reported.
    fn lose(&mut self, line: u64, losers: u64, knows_bytes: bool) {
        let places: Vec<usize> = self.places(losers).collect();
        let live = &self.cores;
        let Some(lost) = self.watched.get_mut(&line) else {
            return;
        };
        if lost.len() >= MAX_CORES {
            lost.retain(|copy| live.contains(&Some(copy.core)));
        }
        let stored = knows_bytes.then_some(0);
        lost.extend(places.into_iter().map(|core| LostCopy { core, stored }));
    }

    /// Removes the record of a core that has a line again. Returns the bytes stored since it lost the
    /// line, if they are known.
    fn regain(&mut self, line: u64, core: usize) -> Option<u64> {
        let lost = self.watched.get_mut(&line)?;
        let at = lost.iter().position(|copy| copy.core == core)?;
        lost.swap_remove(at).stored
    }
}

fn line_in_page(tag: u64) -> usize {
    (tag >> 2) as usize % LINES
}

impl SharedLevels {
    /// Invalidates the copies of other cores, because a core stores to the line.
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

    /// Downgrades the copy of a line's single holder to shared.
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
    /// Removes a line from the private caches. Returns its flags, if it was there.
    fn drop_copy(&mut self, tag: u64) -> Option<u64> {
        let (first, second) = (self.first.l1d.drop_line(tag), self.l2.drop_line(tag));
        (first.is_some() || second.is_some()).then(|| first.unwrap_or(0) | second.unwrap_or(0))
    }

    /// Cleans a line in the private caches and marks it as shared. Returns its previous flags, if it
    /// was there.
    fn share_copy(&mut self, tag: u64) -> Option<u64> {
        let (first, second) = (self.first.l1d.clean(tag), self.l2.clear_flags(tag, DIRTY));
        self.first.l1d.set_shared(tag);
        (first.is_some() || second.is_some()).then(|| first.unwrap_or(0) | second.unwrap_or(0))
    }

    fn entry_of(&mut self, shared: &mut SharedLevels, tag: u64) -> usize {
        let page = (tag | self.space_bits) >> PAGE_SHIFT;
        self.recent_pages.entry(&mut shared.directory, page)
    }

    /// Invalidates or downgrades other cores' copies of a line that missed the first level. Returns
    /// true if one of them was modified. The last-level cache then holds the line.
    #[inline(always)]
    pub(crate) fn claim(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        line_use: LineUse,
        out: &mut AccessOutcome,
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
        shared: &mut SharedLevels,
        tag: u64,
        entry: usize,
        line_use: LineUse,
        out: &mut AccessOutcome,
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
            out.sharing.add(LineSharing::HITM);
            // After a store, this core holds the modified line, and the copy below stays clean.
            let flags = if line_use.stores { 0 } else { DIRTY };
            self.fill_llc(shared, tag, flags, out);
        }
        self.count_invalidated(shared, copies.taken_by(line_use.stores), tag, true, out);
        if let Some(stored) = shared.directory.regain(line, self.place) {
            out.sharing.add(LineSharing::REGAINS);
            self.regained.push(RegainedLine { line, stored });
            self.touch_regained(line, line_use.bytes, out);
        }
        let stored = line_use.bytes.stored;
        if shared.directory.note_stored(line, self.place, stored) {
            self.first.l1d.watch(tag);
        }
        copies.is_dirty
    }

    /// Counts true sharing if an access touches bytes that other cores stored to a line that this core
    /// has missed in this turn.
    fn touch_regained(&mut self, line: u64, bytes: LineBytes, out: &mut AccessOutcome) {
        let touched = bytes.loaded | bytes.stored;
        let is_touched =
            |regained: &RegainedLine| regained.line == line && regained.stored & touched != 0;
        if let Some(at) = self.regained.iter().position(is_touched) {
            self.regained.swap_remove(at);
            self.counts[COHERENCE_TRUE_SHARING] += 1;
            out.sharing.add(LineSharing::TRUE);
        }
    }

    /// Lists the holders of each line of a page that gets its second user. Returns the holders of the
    /// line of `tag`.
    fn begin_sharing(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        entry: usize,
        users: u64,
    ) -> u64 {
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

    fn set_holders(&mut self, shared: &mut SharedLevels, tag: u64, entry: usize, bits: u64) {
        if let Some(holders) = &mut shared.directory.entries[entry].holders {
            holders[line_in_page(tag)] = bits;
        }
        if bits != self.bit {
            self.first.l1d.set_shared(tag);
        }
    }

    /// Counts the copies that this core has invalidated, and watches the line.
    fn count_invalidated(
        &mut self,
        shared: &mut SharedLevels,
        copies: OtherCopies,
        tag: u64,
        knows_bytes: bool,
        out: &mut AccessOutcome,
    ) {
        if copies.cores == 0 {
            return;
        }
        self.counts[COHERENCE_INVALIDATION] += u64::from(copies.cores.count_ones());
        out.sharing.add(LineSharing::INVALIDATES);
        self.watch_line(shared, tag);
        let line = tag | self.space_bits;
        shared.directory.lose(line, copies.cores, knows_bytes);
    }

    /// Starts watching a line, in this and all other cores.
    fn watch_line(&mut self, shared: &mut SharedLevels, tag: u64) {
        let watch = shared.directory.watch(tag | self.space_bits);
        if watch == WatchResult::New {
            self.first.l1d.note_watched(tag);
            for other in shared.cores.iter_mut().flatten() {
                other.first.l1d.note_watched(tag);
                if other.space_bits == self.space_bits {
                    other.first.l1d.watch(tag);
                }
            }
        }
        if watch != WatchResult::NoRoom {
            self.first.l1d.watch(tag);
        }
    }

    /// Handles a first-level hit on a watched line.
    #[inline(never)]
    pub(crate) fn use_watched(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        line_use: LineUse,
        out: &mut AccessOutcome,
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

    /// Invalidates other cores' copies of a line that this core holds and has stored to.
    pub(crate) fn upgrade(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        knows_bytes: bool,
        out: &mut AccessOutcome,
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

    /// Number of modified lines that this core has received, and of copies that it has invalidated.
    pub fn lines_moved(&self) -> u64 {
        self.counts[COHERENCE_HITM] + self.counts[COHERENCE_INVALIDATION]
    }

    /// Copies the set of watched lines from another core.
    pub(crate) fn join(&mut self, other: &Core) {
        self.first.l1d.note_watched_of(&other.first.l1d);
    }

    /// Ends a turn of this core, before another core runs. Invalidates other cores' copies of lines
    /// that it has stored to.
    pub fn end_turn(&mut self, shared: &mut SharedLevels) {
        let began = self.first.begin_turn();
        if !shared.directory.is_on() {
            return;
        }
        self.counts[COHERENCE_FALSE_SHARING] += self.regained.len() as u64;
        self.regained.clear();
        for tag in self.first.l1d.shared_and_stored_since(began) {
            self.upgrade(shared, tag, false, &mut AccessOutcome::default());
        }
    }
}
