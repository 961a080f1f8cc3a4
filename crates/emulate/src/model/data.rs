//! Misses and stalls by the accessed data: heap memory by its allocation site, everything else by
//! address.
//!
//! An **object** is the memory that one call of an allocation function returned
//! (`engine/src/heap.c`). It ends when it is freed. Only accesses that miss or stall are looked up,
//! so hits cost nothing.
//!
//! Lines that lie in an object from end to end have a bit until they are accessed. The first access
//! to a line misses, unless a core holds the line from a time before the allocation. The model
//! reports the first use of such a line ([`Core::report_first_use`]).
//!
//! [`Core::report_first_use`]: memgauge_machine::Core::report_first_use

use std::collections::{BTreeMap, HashMap, btree_map};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use memgauge_host::heap_classes::HeapClasses;
use memgauge_host::heap_peak::{HeapAmount, HeapPeak};
use memgauge_machine::{AccessOutcome, LINE_BYTES, fetch_early};
use memgauge_trace::{AccessKind, HeapClassRow, HeapUseRow, Pid};

use crate::engine::address_space::AddressSpace;
use crate::engine::wire;
use crate::engine::words::{load, mark_field};
use crate::model::costs::SiteStalls;

const PAGE: u64 = wire::PAGE as u64;
/// Minimum alignment of allocated memory.
const GRANULE: u64 = 8;
const GRANULES: usize = (PAGE / GRANULE) as usize;
const LINE: u64 = LINE_BYTES as u64;
const LINES: usize = (PAGE / LINE) as usize;
/// Maximum number of pages of variables with costs by line. Their costs take 32 MiB. Further pages
/// of larger arrays have costs by page.
const MAX_PAGES_BY_LINE: usize = 4096;
/// With at least this many pages, the costs of large arrays are summed by [`PIECE`] instead of by
/// page, so that there are fewer rows to write.
const MANY_PAGES: usize = 1 << 16;
/// Size of a piece in bytes.
const PIECE: u64 = 64 << 10;
/// Size of the table of recently used pages, which is indexed by the low bits of the page number.
const RECENT: usize = 512;
/// Minimum size in bytes of objects that are found by their first byte instead of by granules.
const LARGE: u64 = 16 << 10;
/// Index that stands for no object.
const NONE: u32 = 0;

/// A mark in a thread's words. Allocations and frees of a process are numbered in their order, but
/// marks of different threads may be read in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeapMark {
    Allocated {
        address: u64,
        bytes: u64,
        by: AllocatedBy,
        number: u64,
    },
    Freed {
        address: u64,
        /// Line in the session's file with the function that frees.
        function: u16,
        number: u64,
    },
}

/// Call path and function that allocated an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AllocatedBy {
    /// Line of the allocation function in the session's file.
    pub(crate) function: u16,
    /// Number of the call path, or 0 if unknown.
    pub(crate) path: u64,
    /// Number of the frames of Python ([`PythonProgram::frames`]), or 0 without any.
    ///
    /// [`PythonProgram::frames`]: crate::model::python::PythonProgram::frames
    pub(crate) python: u32,
}

impl HeapMark {
    /// Returns true if a thread frees its most recent allocation, which is at the address `latest`.
    /// Updates `latest`.
    pub(crate) fn frees_temporary(&self, latest: &mut Option<u64>) -> bool {
        match *self {
            HeapMark::Allocated { address, .. } => {
                *latest = Some(address);
                false
            }
            HeapMark::Freed { address, .. } => {
                latest.take_if(|latest| *latest == address).is_some()
            }
        }
    }

    /// Reads the mark at `at` if it is complete. Returns it with its number of words.
    pub(crate) fn at(words: &[AtomicU64], at: usize) -> Option<(HeapMark, usize)> {
        let word = load(words, at)?;
        let field = |n: usize| mark_field(words, at + n);
        match wire::mark(word) {
            wire::MARK_FREED => {
                let mark = HeapMark::Freed {
                    address: field(1)?,
                    function: word as u16,
                    number: field(2)?,
                };
                Some((mark, 3))
            }
            wire::MARK_ALLOCATED => {
                let mark = HeapMark::Allocated {
                    address: field(1)?,
                    bytes: field(2)?,
                    by: AllocatedBy {
                        function: word as u16,
                        path: field(3)?,
                        python: 0,
                    },
                    number: field(4)?,
                };
                Some((mark, 5))
            }
            _ => None,
        }
    }
}

/// Misses and stalls of accesses to the same data. The fields that most misses add to come first, in
/// one line of the host's cache: the sums of a large array rarely stay there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub(crate) struct DataCosts {
    pub(crate) l1d: u64,
    pub(crate) stalls: SiteStalls,
    pub(crate) l2: u64,
    pub(crate) llc: u64,
    pub(crate) dtlb: u64,
    pub(crate) walks: u64,
    pub(crate) dram_read_bytes: u64,
    pub(crate) dram_write_bytes: u64,
    /// 0 unless [`DataMap::counts_accesses`].
    pub(crate) loads: u64,
    pub(crate) stores: u64,
}

impl DataCosts {
    /// Adds the costs of an access. Tests first, since most misses hit in the second level and most
    /// stores do not stall.
    #[inline]
    pub(crate) fn add(&mut self, outcome: &AccessOutcome) {
        self.l1d += u64::from(outcome.l1d_misses);
        if outcome.l2_misses > 0 {
            self.l2 += u64::from(outcome.l2_misses);
            self.llc += u64::from(outcome.llc_misses);
        }
        if outcome.has_traffic() {
            self.dram_read_bytes += u64::from(outcome.dram_read_bytes);
            self.dram_write_bytes += u64::from(outcome.dram_write_bytes);
        }
        if outcome.dtlb_misses > 0 {
            self.dtlb += u64::from(outcome.dtlb_misses);
            self.walks += u64::from(outcome.walks);
        }
        if !outcome.stalled.is_none() {
            self.stalls.add(outcome);
        }
    }

    fn add_all(&mut self, other: &DataCosts) {
        self.l1d += other.l1d;
        self.l2 += other.l2;
        self.llc += other.llc;
        self.dtlb += other.dtlb;
        self.walks += other.walks;
        self.dram_read_bytes += other.dram_read_bytes;
        self.dram_write_bytes += other.dram_write_bytes;
        self.loads += other.loads;
        self.stores += other.stores;
        self.stalls.add_all(&other.stalls);
    }
}

/// Allocations of one site, and accesses to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllocationSums {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
    pub(crate) frees: u64,
    pub(crate) freed_bytes: u64,
    /// Total virtual time from allocation to free of the freed ones.
    pub(crate) lifetime_ns: u64,
    /// Bytes in use now.
    pub(crate) live_bytes: u64,
    /// Bytes in use when the process had most.
    pub(crate) at_peak_bytes: u64,
    /// Allocations that the same thread freed before it allocated again.
    pub(crate) temporary: u64,
    /// Bytes of whole lines in its objects that no access has reached yet.
    pub(crate) untouched_bytes: u64,
    pub(crate) data: DataCosts,
}

#[derive(Clone, Copy, Debug, Default)]
struct HeapObject {
    start: u64,
    bytes: u64,
    /// Address of the first byte that is not copied from a reallocated object.
    new_from: u64,
    site: u32,
    /// Number of its allocation.
    number: u64,
    /// True if a forked child inherited it from its parent, so that it is not one of the child's
    /// allocations.
    is_inherited: bool,
    /// True if a function that the user named returned it.
    is_pooled: bool,
    /// True if it contains pooled objects.
    is_arena: bool,
    born_ns: u64,
}

impl HeapObject {
    /// Address after the last byte. An object of size 0 also has an address of its own.
    fn end(&self) -> u64 {
        self.start + self.bytes.max(1)
    }

    fn holds(&self, address: u64) -> bool {
        (self.start..self.end()).contains(&address)
    }

    fn contains(&self, other: &HeapObject) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    fn is_large(&self) -> bool {
        self.bytes >= LARGE
    }

    /// Addresses of the lines that are entirely in its new bytes.
    fn new_lines(&self) -> Range<u64> {
        let start = self.new_from.next_multiple_of(LINE);
        let end = (self.start + self.bytes) / LINE * LINE;
        start..end.max(start)
    }

    /// The same lines within a page, as a bit mask.
    fn new_lines_in(&self, page: u64) -> u64 {
        let lines = self.new_lines();
        let start = lines.start.clamp(page * PAGE, (page + 1) * PAGE) - page * PAGE;
        let end = lines.end.clamp(page * PAGE, (page + 1) * PAGE) - page * PAGE;
        let below = |bytes: u64| match bytes {
            PAGE => u64::MAX,
            _ => (1 << (bytes / LINE)) - 1,
        };
        below(end) & !below(start)
    }
}

/// A page of memory. The fields that a miss needs come first, in one line of the host's cache.
#[derive(Clone, Debug, Default)]
#[repr(C)]
struct DataPage {
    /// Small objects by granule.
    small: Option<Box<[u32; GRANULES]>>,
    /// Costs of data outside objects by line, if there are variables.
    lines: Option<Box<[DataCosts; LINES]>>,
    /// Number of changes of large objects when `has_large` was last looked up.
    changes: u64,
    /// True if a large object was on this page then.
    has_large: bool,
    /// The large object found most recently on this page.
    large: u32,
    /// Bits of lines of objects that no access has reached.
    untouched: u64,
    /// Number of the large object that `untouched` belongs to if it has all lines of the page. Its
    /// other pages would take too long to visit when it is allocated.
    owner: u64,
    /// Costs of data outside objects, if not by line.
    elsewhere: DataCosts,
}

/// Allocations of a site since it was last read.
pub(crate) struct SiteGain {
    pub(crate) site: u32,
    pub(crate) by: AllocatedBy,
    pub(crate) sums: AllocationSums,
    /// True if its bytes at the peak or its untouched bytes have changed since the last call.
    pub(crate) state_changed: bool,
}

/// Allocations of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeapTotals {
    pub(crate) allocations: u64,
    /// Bytes in use now.
    pub(crate) live_bytes: u64,
    /// Maximum number of bytes in use.
    pub(crate) peak_bytes: u64,
    /// Bytes of whole lines in objects that no access has reached.
    pub(crate) untouched_bytes: u64,
    /// Number of frees of memory that is not an object.
    pub(crate) unknown_frees: u64,
    /// Changes of the bytes in use that were read too late for their place in virtual time.
    pub(crate) late_changes: u64,
}

/// An object that has ended although its free has not been read.
#[derive(Clone, Copy, Debug)]
struct EndedObject {
    object: HeapObject,
    /// Virtual time at which its memory was allocated again.
    end_ns: u64,
}

/// Maximum number of frees and objects that wait for each other. Some wait forever.
const MAX_WAITING: usize = 1 << 18;

/// Adds an entry to a map of waiting frees or objects. Returns false if the map is full, or if the
/// entry replaced another one.
fn note<T>(waiting: &mut BTreeMap<(u64, u64), T>, key: (u64, u64), one: T) -> bool {
    waiting.len() < MAX_WAITING && waiting.insert(key, one).is_none()
}

impl HeapTotals {
    /// Sum of several processes, each with its own peak.
    pub(crate) fn add(&mut self, other: &HeapTotals) {
        self.allocations += other.allocations;
        self.live_bytes += other.live_bytes;
        self.peak_bytes += other.peak_bytes;
        self.untouched_bytes += other.untouched_bytes;
        self.unknown_frees += other.unknown_frees;
        self.late_changes += other.late_changes;
    }
}

/// Objects and costs of a process's data.
#[derive(Clone, Debug)]
pub(crate) struct DataMap {
    /// Pages in order of first use, and their index by page number.
    page: Vec<DataPage>,
    places: HashMap<u64, u32>,
    recent: Box<[(u64, u32); RECENT]>,
    by_line: usize,
    /// The first entry is [`NONE`].
    objects: Vec<HeapObject>,
    unused: Vec<u32>,
    large: BTreeMap<u64, u32>,
    /// Objects of `malloc` and the like that a pool hands out in pieces. They are neither in `large`
    /// nor in the granules, which have the pieces.
    arenas: BTreeMap<u64, u32>,
    /// Lines of the session's file from here on are functions that the user named.
    first_named: u16,
    /// True if loads and stores are counted by data, not only misses and stalls.
    pub(crate) counts_accesses: bool,
    /// Times of frees whose allocation has not been read, by address and number.
    early: BTreeMap<(u64, u64), u64>,
    /// Objects that ended because their memory was allocated again, by address and number of the
    /// allocation.
    awaited: BTreeMap<(u64, u64), EndedObject>,
    /// Number of changes of `large`.
    changes: u64,
    sites: Vec<(AllocatedBy, AllocationSums)>,
    by_origin: BTreeMap<AllocatedBy, u32>,
    /// Bytes at the peak and untouched bytes of each site when it was last written.
    written: Vec<(u64, u64)>,
    totals: HeapTotals,
    peak: HeapPeak,
    /// Sizes and lifetimes of ended objects.
    classes: HeapClasses,
    /// Number of the first site. Programs that the process executed earlier have lower numbers.
    first_site: u32,
}

impl Default for DataMap {
    fn default() -> DataMap {
        DataMap {
            page: Vec::new(),
            places: HashMap::new(),
            recent: Box::new([(u64::MAX, 0); RECENT]),
            by_line: 0,
            objects: vec![HeapObject::default()],
            unused: Vec::new(),
            large: BTreeMap::new(),
            arenas: BTreeMap::new(),
            first_named: u16::MAX,
            counts_accesses: false,
            early: BTreeMap::new(),
            awaited: BTreeMap::new(),
            changes: 1,
            sites: Vec::new(),
            by_origin: BTreeMap::new(),
            written: Vec::new(),
            totals: HeapTotals::default(),
            peak: HeapPeak::default(),
            classes: HeapClasses::default(),
            first_site: 0,
        }
    }
}

impl DataMap {
    /// Creates the data of a process. Functions from line `first_named` of the session's file on
    /// were named by the user.
    pub(crate) fn new(first_named: u16, counts_accesses: bool) -> DataMap {
        DataMap {
            first_named,
            counts_accesses,
            ..DataMap::default()
        }
    }

    /// Data of the next program after an exec. Its sites have higher numbers.
    pub(crate) fn executed(&self) -> DataMap {
        DataMap {
            first_site: self.first_site + self.sites.len() as u32,
            ..DataMap::new(self.first_named, self.counts_accesses)
        }
    }

    /// Data of a forked child, which has the same objects but no counts.
    pub(crate) fn inherited(&self) -> DataMap {
        let mut child = self.clone();
        for object in &mut child.objects {
            object.is_inherited = true;
        }
        for ended in child.awaited.values_mut() {
            ended.object.is_inherited = true;
        }
        for (_, sums) in &mut child.sites {
            *sums = AllocationSums::default();
        }
        child.forget_elsewhere();
        for page in &mut child.page {
            page.untouched = 0;
        }
        child.totals = HeapTotals::default();
        child.early.clear();
        child.written.clear();
        child.peak = HeapPeak::default();
        child.classes = HeapClasses::default();
        child
    }

    /// Processes an allocation or a free. `is_temporary` comes from [`HeapMark::frees_temporary`].
    /// The first `kept_bytes` of an allocation are those of a reallocated object. Returns the size
    /// of a freed object, otherwise 0.
    pub(crate) fn take(
        &mut self,
        mark: &HeapMark,
        now_ns: u64,
        is_temporary: bool,
        kept_bytes: u64,
    ) -> u64 {
        match *mark {
            HeapMark::Allocated {
                address,
                bytes,
                by,
                number,
            } => {
                let object = HeapObject {
                    start: address,
                    bytes,
                    new_from: address + kept_bytes.min(bytes),
                    site: self.site(by),
                    number,
                    is_inherited: false,
                    is_pooled: by.function >= self.first_named,
                    is_arena: false,
                    born_ns: now_ns,
                };
                self.allocate(object, now_ns);
                0
            }
            HeapMark::Freed {
                address,
                function,
                number,
            } => match self.arena_freed(address, function, number) {
                Some(arena) => {
                    let bytes = self.objects[arena as usize].bytes;
                    self.end_arena(arena, now_ns);
                    bytes
                }
                None => {
                    let freed = self.free(address, number, now_ns);
                    if let Some(object) = freed.filter(|object| !object.is_inherited) {
                        self.sites[object.site as usize].1.temporary += u64::from(is_temporary);
                    }
                    freed.map_or(0, |object| object.bytes)
                }
            },
        }
    }

    fn allocate(&mut self, object: HeapObject, now_ns: u64) {
        let start = object.start;
        let of_start = (start, object.number)..(start, u64::MAX);
        let freed = self.early.range(of_start).next();
        if let Some((&free, &freed_ns)) = freed {
            self.early.remove(&free);
            self.count_past(&object, freed_ns);
            return self.end_at(&object, freed_ns);
        }
        if let Some(again_ns) = self.end_overlapped(&object, now_ns) {
            let end_ns = again_ns.max(object.born_ns);
            note(
                &mut self.awaited,
                (start, object.number),
                EndedObject { object, end_ns },
            );
            self.count_past(&object, end_ns);
            return self.end_at(&object, end_ns);
        }
        let id = match self.unused.pop() {
            Some(id) => {
                self.objects[id as usize] = object;
                id
            }
            None => {
                self.objects.push(object);
                (self.objects.len() - 1) as u32
            }
        };
        if object.is_large() {
            self.large.insert(object.start, id);
            self.changes += 1;
        } else {
            self.set_granules(&object, id);
        }
        self.begin_untouched(&object);
        let bytes = object.bytes;
        let sums = &mut self.sites[object.site as usize].1;
        sums.allocations += 1;
        sums.bytes += bytes;
        sums.live_bytes += bytes;
        self.totals.allocations += 1;
        self.totals.live_bytes += bytes;
        self.peak
            .add(now_ns, object.site, HeapAmount::exact(bytes as i64));
    }

    /// Subtracts an object from the bytes in use at `end_ns`, or at its allocation if that is
    /// later. Clocks of threads that do not wait for each other differ, so a free may seem to be
    /// earlier.
    fn end_at(&mut self, object: &HeapObject, end_ns: u64) {
        let end_ns = end_ns.max(object.born_ns);
        self.peak.add(
            end_ns,
            object.site,
            HeapAmount::exact(-(object.bytes as i64)),
        );
    }

    /// Counts an object that ended before its allocation was read.
    fn count_past(&mut self, object: &HeapObject, end_ns: u64) {
        let bytes = object.bytes as i64;
        self.peak
            .add(object.born_ns, object.site, HeapAmount::exact(bytes));
        self.totals.allocations += 1;
        let sums = &mut self.sites[object.site as usize].1;
        sums.allocations += 1;
        sums.bytes += object.bytes;
        sums.frees += 1;
        sums.freed_bytes += object.bytes;
        let lifetime_ns = end_ns.saturating_sub(object.born_ns);
        sums.lifetime_ns += lifetime_ns;
        self.classes.add(object.bytes, Some(lifetime_ns), 1.0);
    }

    /// Ends older objects that overlap a new one. Their frees have not been read, or an unknown
    /// function freed them. If one of the overlapping objects is newer, nothing ends, and the time
    /// of its allocation is returned. An object of `malloc` in which a pool places the new one
    /// becomes an arena.
    fn end_overlapped(&mut self, new: &HeapObject, now_ns: u64) -> Option<u64> {
        let mut older = self.small_within(new.start, new.end());
        let below = self.large.range(..new.end()).rev();
        let large = below.map(|(_, &id)| id);
        older.extend(large.take_while(|&id| self.objects[id as usize].end() > new.start));
        if !new.is_pooled {
            older.extend(self.arenas_within(new.start, new.end()));
        }
        older.dedup();
        let objects = older.iter().map(|&id| &self.objects[id as usize]);
        let newer = objects.filter(|object| object.number > new.number);
        let again_ns = newer.map(|object| object.born_ns).min();
        if again_ns.is_some() {
            return again_ns;
        }
        for id in older {
            let object = self.objects[id as usize];
            if object.is_arena {
                self.end_arena(id, now_ns);
            } else if new.is_pooled && !object.is_pooled && object.contains(new) {
                self.make_arena(id);
            } else {
                self.end_unfreed(id, now_ns);
            }
        }
        None
    }

    /// Ends an object whose free has not been read.
    fn end_unfreed(&mut self, id: u32, now_ns: u64) {
        let object = self.objects[id as usize];
        let end_ns = now_ns.max(object.born_ns);
        let ended = EndedObject { object, end_ns };
        note(&mut self.awaited, (object.start, object.number), ended);
        self.end(id, now_ns);
    }

    /// Makes an object an arena. From then on, its lines count for the objects in it.
    fn make_arena(&mut self, id: u32) {
        let object = self.objects[id as usize];
        self.forget_untouched(&object);
        self.take_away(id);
        let object = &mut self.objects[id as usize];
        object.is_arena = true;
        self.arenas.insert(object.start, id);
    }

    /// Returns the arena that a function frees, if it is the C library's function. The program's
    /// own function would free an object in the arena.
    fn arena_freed(&self, address: u64, function: u16, number: u64) -> Option<u32> {
        let &id = self.arenas.get(&address)?;
        let is_older = self.objects[id as usize].number < number;
        (is_older && function < self.first_named).then_some(id)
    }

    /// Ends an arena and all pooled objects in it.
    fn end_arena(&mut self, id: u32, now_ns: u64) {
        let arena = self.objects[id as usize];
        self.end(id, now_ns);
        let mut within = self.small_within(arena.start, arena.end());
        let large = self.large.range(arena.start..arena.end());
        within.extend(large.map(|(_, &id)| id));
        within.dedup();
        for id in within {
            self.end_unfreed(id, now_ns);
        }
    }

    /// Arenas that overlap a range of addresses. Arenas do not overlap each other.
    fn arenas_within(&self, start: u64, end: u64) -> Vec<u32> {
        let below = self.arenas.range(..end).rev().map(|(_, &id)| id);
        below
            .take_while(|&id| self.objects[id as usize].end() > start)
            .collect()
    }

    /// Small objects that overlap a range of addresses.
    fn small_within(&self, start: u64, end: u64) -> Vec<u32> {
        let mut found = Vec::new();
        let mut at = start;
        while at < end {
            let page_end = (at / PAGE + 1).wrapping_mul(PAGE).min(end);
            while let Some(id) = self.small_between(at, page_end) {
                found.push(id);
                at = self.objects[id as usize].end().max(at + 1).min(page_end);
                if at == page_end {
                    break;
                }
            }
            at = page_end;
        }
        found
    }

    /// First small object that overlaps a range within a page.
    fn small_between(&self, start: u64, end: u64) -> Option<u32> {
        let &page = self.places.get(&(start / PAGE))?;
        let small = self.page[page as usize].small.as_ref()?;
        let first = (start % PAGE / GRANULE) as usize;
        let count = (end - start).div_ceil(GRANULE) as usize;
        let within = &small[first..(first + count).min(GRANULES)];
        within.iter().copied().find(|&id| id != NONE)
    }

    /// Processes a free. Returns the freed object if its allocation has been read.
    fn free(&mut self, address: u64, number: u64, now_ns: u64) -> Option<HeapObject> {
        let id = match self.large.get(&address) {
            Some(&id) => id,
            None => self.small_between(address, address + 1).unwrap_or(NONE),
        };
        let object = self.objects[id as usize];
        if id != NONE && object.start == address && object.number < number {
            self.end(id, now_ns);
            return Some(object);
        }
        let before = self.awaited.range((address, 0)..(address, number)).next();
        match before.map(|(&key, &ended)| (key, ended)) {
            Some((key, ended)) => {
                self.awaited.remove(&key);
                self.end_earlier(&ended, now_ns);
                Some(ended.object)
            }
            None => {
                let waits = note(&mut self.early, (address, number), now_ns);
                self.totals.unknown_frees += u64::from(!waits);
                None
            }
        }
    }

    /// Processes the free of an object that ended when its memory was allocated again. If the free
    /// was earlier in virtual time, corrects the bytes in use between the two.
    fn end_earlier(&mut self, ended: &EndedObject, freed_ns: u64) {
        let object = &ended.object;
        let freed_ns = freed_ns.max(object.born_ns);
        if !object.is_inherited && freed_ns < ended.end_ns {
            self.end_at(object, freed_ns);
            let bytes = object.bytes as i64;
            self.peak
                .add(ended.end_ns, object.site, HeapAmount::exact(bytes));
        }
    }

    /// Removes an object from the lookup by address.
    fn take_away(&mut self, id: u32) {
        let object = self.objects[id as usize];
        if object.is_arena {
            self.arenas.remove(&object.start);
        } else if object.is_large() {
            self.large.remove(&object.start);
            self.changes += 1;
        } else {
            self.set_granules(&object, NONE);
        }
        self.end_untouched(&object);
    }

    /// Calls `change` for each page with new lines of an object. Skips pages that a large object
    /// covers entirely, because there may be many.
    fn each_shared_page(
        &mut self,
        object: &HeapObject,
        mut change: impl FnMut(&mut DataPage, u64),
    ) {
        let lines = object.new_lines();
        let pages = lines.start / PAGE..lines.end.div_ceil(PAGE);
        if lines.is_empty() {
            return;
        }
        let mut visit = |data: &mut DataMap, page: u64| {
            let bits = object.new_lines_in(page);
            if !(object.is_large() && bits == u64::MAX) {
                let place = data.page_of(page * PAGE, || false);
                change(&mut data.page[place as usize], bits);
            }
        };
        if object.is_large() {
            visit(self, pages.start);
            if pages.end - 1 > pages.start {
                visit(self, pages.end - 1);
            }
        } else {
            pages.for_each(|page| visit(self, page));
        }
    }

    /// Marks the new lines of an object as untouched.
    fn begin_untouched(&mut self, object: &HeapObject) {
        let lines = object.new_lines();
        if lines.is_empty() {
            return;
        }
        self.sites[object.site as usize].1.untouched_bytes += lines.end - lines.start;
        self.each_shared_page(object, |page, bits| {
            // These bits belong to a large object that was here before.
            if std::mem::take(&mut page.owner) != 0 {
                page.untouched = 0;
            }
            page.untouched |= bits;
        });
    }

    fn end_untouched(&mut self, object: &HeapObject) {
        self.each_shared_page(object, |page, bits| {
            if page.owner == 0 {
                page.untouched &= !bits;
            }
        });
    }

    /// Subtracts the untouched bytes of an object from its site.
    fn forget_untouched(&mut self, object: &HeapObject) {
        if object.is_inherited {
            return;
        }
        let lines = object.new_lines();
        let mut untouched = 0;
        for page in lines.start / PAGE..lines.end.div_ceil(PAGE) {
            let bits = object.new_lines_in(page);
            let known = self
                .places
                .get(&page)
                .map(|&place| &self.page[place as usize]);
            let left = match known {
                Some(page) if page.owner == object.number => page.untouched & bits,
                Some(page) if bits != u64::MAX || !object.is_large() => page.untouched & bits,
                _ => bits,
            };
            untouched += u64::from(left.count_ones()) * LINE;
        }
        self.sites[object.site as usize].1.untouched_bytes -= untouched;
    }

    /// Notes that an access has reached a line of an object.
    #[inline]
    fn touch_line(&mut self, place: u32, id: u32, address: u64) {
        let object = &self.objects[id as usize];
        let page = &mut self.page[place as usize];
        if object.is_large() && page.owner != object.number {
            let is_whole = object.new_lines_in(address / PAGE) == u64::MAX;
            if is_whole && !object.is_inherited && !object.is_arena {
                page.owner = object.number;
                page.untouched = u64::MAX;
            }
        }
        let bit = 1 << (address % PAGE / LINE);
        let is_known = page.owner == 0 || page.owner == object.number;
        if is_known && page.untouched & bit != 0 {
            page.untouched ^= bit;
            self.sites[object.site as usize].1.untouched_bytes -= LINE;
        }
    }

    /// Notes an access to these bytes without charging a cost.
    pub(crate) fn touch(&mut self, address: u64, bytes: u64, space: &AddressSpace) {
        let last = address.saturating_add(bytes.max(1) - 1);
        let mut at = address;
        while at <= last {
            let place = self.page_of(at, || space.has_variables(at));
            let id = self.object_at(place, at);
            if id != NONE {
                self.touch_line(place, id, at);
            }
            at = (at / LINE + 1).saturating_mul(LINE);
        }
    }

    fn end(&mut self, id: u32, now_ns: u64) {
        self.take_away(id);
        let object = std::mem::take(&mut self.objects[id as usize]);
        self.unused.push(id);
        if object.is_inherited {
            return;
        }
        self.end_at(&object, now_ns);
        let sums = &mut self.sites[object.site as usize].1;
        sums.frees += 1;
        sums.freed_bytes += object.bytes;
        let lifetime_ns = now_ns.saturating_sub(object.born_ns);
        sums.lifetime_ns += lifetime_ns;
        sums.live_bytes -= object.bytes;
        self.totals.live_bytes -= object.bytes;
        self.classes.add(object.bytes, Some(lifetime_ns), 1.0);
    }

    fn site(&mut self, by: AllocatedBy) -> u32 {
        match self.by_origin.entry(by) {
            btree_map::Entry::Occupied(known) => *known.get(),
            btree_map::Entry::Vacant(new) => {
                self.sites.push((by, AllocationSums::default()));
                *new.insert((self.sites.len() - 1) as u32)
            }
        }
    }

    fn set_granules(&mut self, object: &HeapObject, id: u32) {
        let mut at = object.start;
        while at < object.end() {
            let end = (at / PAGE + 1).wrapping_mul(PAGE).min(object.end());
            let page = self.page_of(at, || false);
            let small = self.page[page as usize]
                .small
                .get_or_insert_with(|| Box::new([NONE; GRANULES]));
            let first = (at % PAGE / GRANULE) as usize;
            let count = (end - at).div_ceil(GRANULE) as usize;
            small[first..(first + count).min(GRANULES)].fill(id);
            at = end;
        }
    }

    /// Returns the index of a page. Calls `has_variables` only for a new page.
    #[inline]
    fn page_of(&mut self, address: u64, has_variables: impl FnOnce() -> bool) -> u32 {
        let number = address / PAGE;
        let recent = &mut self.recent[number as usize % RECENT];
        if recent.0 != number {
            let (page, by_line) = (&mut self.page, &mut self.by_line);
            let place = *self.places.entry(number).or_insert_with(|| {
                let lines = (*by_line < MAX_PAGES_BY_LINE && has_variables())
                    .then(|| Box::new([DataCosts::default(); LINES]));
                *by_line += usize::from(lines.is_some());
                page.push(DataPage {
                    lines,
                    ..DataPage::default()
                });
                (page.len() - 1) as u32
            });
            *recent = (number, place);
        }
        recent.1
    }

    /// Charges accesses to a range by line from now on, because variables were put into memory that
    /// was used for other data before.
    pub(crate) fn add_variables(&mut self, range: Range<u64>) {
        let numbers = range.start / PAGE..range.end.div_ceil(PAGE);
        // A damaged program may claim any size.
        let known: Vec<u32> =
            match numbers.end.saturating_sub(numbers.start) < self.places.len() as u64 {
                true => numbers
                    .filter_map(|n| self.places.get(&n).copied())
                    .collect(),
                false => {
                    let all = self.places.iter();
                    all.filter(|(number, _)| numbers.contains(number))
                        .map(|(_, &place)| place)
                        .collect()
                }
            };
        for place in known {
            let page = &mut self.page[place as usize];
            if page.lines.is_none() && self.by_line < MAX_PAGES_BY_LINE {
                page.lines = Some(Box::new([DataCosts::default(); LINES]));
                self.by_line += 1;
            }
        }
    }

    /// Prefetches the sums that [`Self::charge`] will add to for a variable at `address`.
    #[inline]
    pub(crate) fn prefetch_sums(&self, address: u64) {
        let (number, place) = self.recent[(address / PAGE) as usize % RECENT];
        if number != address / PAGE {
            return;
        }
        if let Some(lines) = &self.page[place as usize].lines {
            fetch_early(&lines[(address % PAGE / LINE) as usize].l1d);
        }
    }

    /// Charges the cost of an access to the data at `address`.
    #[inline]
    pub(crate) fn charge(&mut self, address: u64, outcome: &AccessOutcome, space: &AddressSpace) {
        self.touched_sums(address, space).add(outcome);
    }

    /// Charges an access that missed the first level only and stalled for this long.
    #[inline]
    pub(crate) fn charge_l2_hit(&mut self, address: u64, stalled: u64, space: &AddressSpace) {
        let sums = self.touched_sums(address, space);
        sums.l1d += 1;
        sums.stalls.l2 += stalled;
    }

    /// Notes an access to the line of `address`. Returns the sums of its data.
    #[inline(always)]
    fn touched_sums(&mut self, address: u64, space: &AddressSpace) -> &mut DataCosts {
        let place = self.page_of(address, || space.has_variables(address));
        let id = self.object_at(place, address);
        if id != NONE {
            self.touch_line(place, id, address);
        }
        self.sums_of(id, place, address)
    }

    /// Counts `times` accesses of a kind to the data at `address`.
    pub(crate) fn count(
        &mut self,
        address: u64,
        kind: AccessKind,
        times: u64,
        space: &AddressSpace,
    ) {
        let place = self.page_of(address, || space.has_variables(address));
        let id = self.object_at(place, address);
        let sums = self.sums_of(id, place, address);
        sums.loads += if kind == AccessKind::Store { 0 } else { times };
        sums.stores += if kind == AccessKind::Load { 0 } else { times };
    }

    /// The sums of an object, or of the line or page of an address outside of objects.
    #[inline]
    fn sums_of(&mut self, id: u32, place: u32, address: u64) -> &mut DataCosts {
        if id != NONE {
            let site = self.objects[id as usize].site;
            return &mut self.sites[site as usize].1.data;
        }
        let page = &mut self.page[place as usize];
        match &mut page.lines {
            Some(lines) => &mut lines[(address % PAGE / LINE) as usize],
            None => &mut page.elsewhere,
        }
    }

    /// Charges the cost of a prefetch to the data at `address`, which it does not touch.
    pub(crate) fn charge_prefetch(
        &mut self,
        address: u64,
        outcome: &AccessOutcome,
        space: &AddressSpace,
    ) {
        let place = self.page_of(address, || space.has_variables(address));
        let id = self.object_at(place, address);
        self.sums_of(id, place, address).add(outcome);
    }

    /// Returns the object at an address of a page, or [`NONE`].
    #[inline]
    fn object_at(&mut self, place: u32, address: u64) -> u32 {
        let small = self.page[place as usize].small.as_ref();
        let id = small.map_or(NONE, |small| small[(address % PAGE / GRANULE) as usize]);
        // An object can be smaller than its granule of 8 bytes.
        if self.objects[id as usize].holds(address) {
            return id;
        }
        let id = self.large_at(place, address);
        if id != NONE || self.arenas.is_empty() {
            return id;
        }
        let arenas = self.arenas_within(address, address + 1);
        arenas.first().copied().unwrap_or(NONE)
    }

    /// Returns the large object at an address of a page, or [`NONE`].
    #[inline]
    fn large_at(&mut self, place: u32, address: u64) -> u32 {
        let page = &mut self.page[place as usize];
        let end_of = |id: u32| self.objects[id as usize].end();
        if page.changes != self.changes {
            let page_end = (address / PAGE + 1).wrapping_mul(PAGE);
            let last = self.large.range(..page_end).next_back();
            page.has_large = last.is_some_and(|(_, &id)| end_of(id) > page_end - PAGE);
            page.changes = self.changes;
        }
        if !page.has_large {
            return NONE;
        }
        if !self.objects[page.large as usize].holds(address) {
            let below = self.large.range(..=address).next_back();
            page.large = below.map_or(NONE, |(_, &id)| id);
        }
        match self.objects[page.large as usize].holds(address) {
            true => page.large,
            false => NONE,
        }
    }

    /// Returns the allocation site of the object at an address, if there is one.
    pub(crate) fn site_at(&self, address: u64) -> Option<u32> {
        let small = self.small_between(address, address + 1);
        let below = || self.large.range(..=address).next_back().map(|(_, &id)| id);
        let holds = |&id: &u32| self.objects[id as usize].holds(address);
        let arena = || self.arenas_within(address, address + 1).first().copied();
        let object = small.filter(holds).or_else(|| below().filter(holds));
        let id = object.or_else(arena)?;
        Some(self.first_site + self.objects[id as usize].site)
    }

    /// Allocations by size and lifetime.
    pub(crate) fn classes(&self, pid: Pid) -> Vec<HeapClassRow> {
        let mut classes = self.classes.clone();
        // Entries that are not in use have no address.
        let in_use = self.objects.iter().filter(|object| object.start != 0);
        for object in in_use.filter(|object| !object.is_inherited) {
            classes.add(object.bytes, None, 1.0);
        }
        classes.rows(pid)
    }

    /// Bytes in use over time until the program ended.
    pub(crate) fn history(&self, pid: Pid, end_ns: u64) -> Vec<HeapUseRow> {
        let rows = self.peak.clone().history(pid, end_ns).into_iter();
        rows.map(|row| HeapUseRow {
            site: row.site.map(|site| self.first_site + site),
            ..row
        })
        .collect()
    }

    pub(crate) fn totals(&self) -> HeapTotals {
        HeapTotals {
            peak_bytes: self.peak.bytes(),
            untouched_bytes: self
                .sites
                .iter()
                .map(|(_, sums)| sums.untouched_bytes)
                .sum(),
            unknown_frees: self.totals.unknown_frees + self.early.len() as u64,
            late_changes: self.peak.late(),
            ..self.totals
        }
    }

    /// Returns the allocations of each site since the last call, and its bytes in use.
    pub(crate) fn take_sites(&mut self) -> Vec<SiteGain> {
        let at_peak = self.peak.by_site(self.sites.len()).into_iter();
        let at_peak = at_peak.map(|amount| amount.bytes.max(0).unsigned_abs());
        self.written.resize(self.sites.len(), (0, 0));
        let written = self.written.iter_mut().zip(at_peak);
        let sites = self.sites.iter_mut().zip(self.first_site..);
        sites
            .zip(written)
            .map(|(((by, sums), site), (written, at_peak_bytes))| {
                let gained = std::mem::take(sums);
                sums.live_bytes = gained.live_bytes;
                sums.untouched_bytes = gained.untouched_bytes;
                let state = (at_peak_bytes, gained.untouched_bytes);
                let state_changed = std::mem::replace(written, state) != state;
                SiteGain {
                    site,
                    by: *by,
                    sums: AllocationSums {
                        at_peak_bytes,
                        ..gained
                    },
                    state_changed,
                }
            })
            .collect()
    }

    /// Returns the costs of data outside objects since the last call, by the first address: of
    /// lines or pages if there are variables (of pieces if there are many pages), otherwise of
    /// mappings.
    pub(crate) fn take_elsewhere(&mut self, space: &AddressSpace) -> BTreeMap<u64, DataCosts> {
        let mut all: BTreeMap<u64, DataCosts> = BTreeMap::new();
        // Most lines have no new costs, so their address is computed only when needed.
        let mut add = |sums: &mut DataCosts, first: &dyn Fn() -> u64| {
            let gained = std::mem::take(sums);
            if gained != DataCosts::default() {
                all.entry(first()).or_default().add_all(&gained);
            }
        };
        let piece = match self.page.len() < MANY_PAGES {
            true => PAGE,
            false => PIECE,
        };
        for (number, &place) in &self.places {
            let (page, start) = (&mut self.page[place as usize], number * PAGE);
            add(&mut page.elsewhere, &|| {
                let mapping = space.start_of(start).unwrap_or(start);
                match space.has_variables(start) {
                    true => mapping.max(start / piece * piece),
                    false => mapping,
                }
            });
            let lines = page.lines.iter_mut().flat_map(|lines| lines.iter_mut());
            for (sums, n) in lines.zip(0..) {
                let line = start + n * LINE;
                add(sums, &|| {
                    // Thread-local variables may begin within a line.
                    let last = space.start_of(line + LINE - 1);
                    last.map_or(line, |start| start.max(line))
                });
            }
        }
        all
    }

    /// Clears the counts and keeps the objects.
    pub(crate) fn forget_counts(&mut self) {
        self.take_sites();
        self.forget_elsewhere();
    }

    fn forget_elsewhere(&mut self) {
        for page in &mut self.page {
            page.elsewhere = DataCosts::default();
            page.lines
                .iter_mut()
                .for_each(|lines| lines.fill(DataCosts::default()));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Allocate {
            slot: u64,
            bytes: u64,
            function: u16,
        },
        Free {
            slot: u64,
        },
        Access {
            slot: u64,
            offset: u64,
        },
    }

    /// Objects begin at multiples of 16 bytes. Some overlap earlier ones.
    const SLOT: u64 = 16;
    const BASE: u64 = 0x10_0000;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let slot = 0u64..3000;
        let bytes = prop_oneof![0u64..200, 4000u64..9000, LARGE - 8..LARGE + 20_000];
        let step = prop_oneof![
            (slot.clone(), bytes, 0u16..4).prop_map(|(slot, bytes, function)| Step::Allocate {
                slot,
                bytes,
                function
            }),
            slot.clone().prop_map(|slot| Step::Free { slot }),
            (slot, 0u64..SLOT).prop_map(|(slot, offset)| Step::Access { slot, offset }),
        ];
        proptest::collection::vec(step, 0..300)
    }

    /// Reference implementation that looks at every object.
    #[derive(Default)]
    struct Plain {
        objects: Vec<(u64, u64, u16)>,
        /// First addresses of lines that were accessed since they became part of an object.
        touched: std::collections::BTreeSet<u64>,
        sums: BTreeMap<u16, [u64; 7]>,
        elsewhere: u64,
        unknown: u64,
        /// First addresses of objects that ended because their memory was allocated again.
        replaced: Vec<u64>,
        peak: u64,
    }

    /// Places in the sums of a function.
    const ALLOCATIONS: usize = 0;
    const BYTES: usize = 1;
    const FREES: usize = 2;
    const LIVE: usize = 3;
    const AT_PEAK: usize = 4;
    const MISSES: usize = 5;
    const UNTOUCHED: usize = 6;

    /// Lines that are entirely in an object.
    fn whole_lines(start: u64, bytes: u64) -> Vec<u64> {
        let lines = (start / LINE..=(start + bytes) / LINE).map(|line| line * LINE);
        lines
            .filter(|line| *line >= start && line + LINE <= start + bytes)
            .collect()
    }

    impl Plain {
        fn end(&mut self, index: usize) {
            let (_, bytes, function) = self.objects.remove(index);
            let sums = self.sums.entry(function).or_default();
            sums[FREES] += 1;
            sums[LIVE] -= bytes;
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Allocate {
                    slot,
                    bytes,
                    function,
                } => {
                    let start = BASE + slot * SLOT;
                    let overlaps = |&(other, length, _): &(u64, u64, u16)| {
                        other < start + bytes.max(1) && start < other + length.max(1)
                    };
                    while let Some(index) = self.objects.iter().position(overlaps) {
                        self.replaced.push(self.objects[index].0);
                        self.end(index);
                    }
                    self.objects.push((start, bytes, function));
                    for line in whole_lines(start, bytes) {
                        self.touched.remove(&line);
                        self.sums.entry(function).or_default()[UNTOUCHED] += LINE;
                    }
                    let sums = self.sums.entry(function).or_default();
                    sums[ALLOCATIONS] += 1;
                    sums[BYTES] += bytes;
                    sums[LIVE] += bytes;
                    let live = self.sums.values().map(|sums| sums[LIVE]).sum();
                    if live > self.peak {
                        self.peak = live;
                        for sums in self.sums.values_mut() {
                            sums[AT_PEAK] = sums[LIVE];
                        }
                    }
                }
                Step::Free { slot } => {
                    let start = BASE + slot * SLOT;
                    match self.objects.iter().position(|object| object.0 == start) {
                        Some(index) => self.end(index),
                        None => match self.replaced.iter().position(|&at| at == start) {
                            Some(index) => {
                                self.replaced.remove(index);
                            }
                            None => self.unknown += 1,
                        },
                    }
                }
                Step::Access { slot, offset } => {
                    let address = BASE + slot * SLOT + offset;
                    let holds = |&&(start, bytes, _): &&(u64, u64, u16)| {
                        (start..start + bytes.max(1)).contains(&address)
                    };
                    match self.objects.iter().find(holds) {
                        Some(&(start, bytes, function)) => {
                            let sums = self.sums.entry(function).or_default();
                            sums[MISSES] += 1;
                            let line = address / LINE * LINE;
                            let is_whole = whole_lines(start, bytes).contains(&line);
                            sums[UNTOUCHED] -= match is_whole && self.touched.insert(line) {
                                true => LINE,
                                false => 0,
                            };
                        }
                        None => self.elsewhere += 1,
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn objects_and_their_misses_are_those_of_a_list_of_objects(steps in steps()) {
            let (mut data, mut plain) = (DataMap::default(), Plain::default());
            let (space, mut miss) = (AddressSpace::default(), AccessOutcome::default());
            miss.l1d_misses = 1;
            for (&step, now_ns) in steps.iter().zip(0..) {
                plain.step(step);
                match step {
                    Step::Allocate { slot, bytes, function } => {
                        let address = BASE + slot * SLOT;
                        let by = AllocatedBy { function, path: 0, python: 0 };
                        let number = now_ns + 1;
                        data.take(&HeapMark::Allocated { address, bytes, by, number }, now_ns, false, 0);
                    }
                    Step::Free { slot } => {
                        let (address, number) = (BASE + slot * SLOT, now_ns + 1);
                        data.take(&HeapMark::Freed { address, function: 0, number }, now_ns, false, 0);
                    }
                    Step::Access { slot, offset } => {
                        data.charge(BASE + slot * SLOT + offset, &miss, &space);
                    }
                }
            }
            let sites = data.take_sites().into_iter().map(|SiteGain { by, sums, .. }| {
                let all = [
                    sums.allocations,
                    sums.bytes,
                    sums.frees,
                    sums.live_bytes,
                    sums.at_peak_bytes,
                    sums.data.l1d,
                    sums.untouched_bytes,
                ];
                (by.function, all)
            });
            prop_assert_eq!(sites.collect::<BTreeMap<_, _>>(), plain.sums);
            let elsewhere = data.take_elsewhere(&space);
            prop_assert_eq!(elsewhere.values().map(|sums| sums.l1d).sum::<u64>(), plain.elsewhere);
            prop_assert_eq!(data.totals().unknown_frees, plain.unknown);
        }
    }

    proptest! {
        /// One thread allocates, another one frees, and memory is reused. Whatever the order in
        /// which their marks are read, each allocation meets its own free, and the peak is computed
        /// in virtual time.
        #[test]
        fn the_order_in_which_threads_are_read_changes_neither_counts_nor_the_peak(
            lives in proptest::collection::vec((0u64..4, 1u64..40), 1..60),
            picks in proptest::collection::vec(any::<bool>(), 120),
            unfreed in 0usize..4,
        ) {
            let by = AllocatedBy { function: 0, path: 0, python: 0 };
            let (mut allocations, mut frees, mut number) = (Vec::new(), Vec::new(), 0);
            let mut in_use: BTreeMap<u64, u64> = BTreeMap::new();
            let mut peak = 0;
            for (slot, bytes) in &lives {
                let address = BASE + slot * 64;
                if in_use.remove(&address).is_some() {
                    number += 1;
                    frees.push(HeapMark::Freed { address, function: 0, number });
                }
                number += 1;
                allocations.push(HeapMark::Allocated { address, bytes: *bytes, by, number });
                in_use.insert(address, *bytes);
                peak = peak.max(in_use.values().sum::<u64>());
            }
            while in_use.len() > unfreed {
                let (address, _) = in_use.pop_first().expect("one is in use");
                number += 1;
                frees.push(HeapMark::Freed { address, function: 0, number });
            }
            let (mut allocations, mut frees) = (allocations.into_iter(), frees.into_iter());
            let mut data = DataMap::default();
            for frees_first in picks {
                let next = match frees_first {
                    true => frees.next().or_else(|| allocations.next()),
                    false => allocations.next().or_else(|| frees.next()),
                };
                if let Some(mark) = next {
                    let (HeapMark::Allocated { number, .. } | HeapMark::Freed { number, .. }) = mark;
                    data.take(&mark, 10 * number, false, 0);
                }
            }
            let totals = data.totals();
            prop_assert_eq!(totals.peak_bytes, peak);
            prop_assert_eq!(data.peak.by_site(1)[0], HeapAmount::exact(peak as i64));
            prop_assert_eq!(totals.allocations, lives.len() as u64);
            prop_assert_eq!(totals.live_bytes, in_use.values().sum::<u64>());
            prop_assert_eq!(totals.unknown_frees, 0);
        }
    }

    /// Functions 0 and 1 are `malloc` and `free`. Functions 2 and 3 are those of a pool.
    #[test]
    fn a_pool_in_malloced_memory_keeps_the_arena_and_owns_its_pieces() {
        for (arena_bytes, piece_bytes) in [(1 << 20, 4000), (1 << 20, LARGE), (8 << 10, 96)] {
            let mut data = DataMap::new(2, false);
            let mut number = 0;
            let mut allocated = |data: &mut DataMap, address, bytes, function| {
                number += 1;
                let by = AllocatedBy {
                    function,
                    path: 0,
                    python: 0,
                };
                let mark = HeapMark::Allocated {
                    address,
                    bytes,
                    by,
                    number,
                };
                data.take(&mark, number, false, 0);
                number
            };
            allocated(&mut data, BASE, arena_bytes, 0);
            let mut last = 0;
            for n in 0..3 {
                last = allocated(&mut data, BASE + n * piece_bytes, piece_bytes, 2);
            }
            let space = AddressSpace::default();
            let mut miss = AccessOutcome::default();
            miss.l1d_misses = 1;
            for address in [BASE, BASE + 2 * piece_bytes, BASE + arena_bytes - 8] {
                data.charge(address, &miss, &space);
            }
            let site_at = |address| data.site_at(address).map(|site| site - data.first_site);
            assert_eq!(site_at(BASE), Some(1));
            assert_eq!(site_at(BASE + arena_bytes - 8), Some(0));
            assert_eq!(site_at(BASE + arena_bytes), None);
            let freed = |address, function, number| HeapMark::Freed {
                address,
                function,
                number,
            };
            data.take(&freed(BASE, 3, last + 1), 50, false, 0);
            data.charge(BASE, &miss, &space);
            assert_eq!(data.totals().live_bytes, arena_bytes + 2 * piece_bytes);
            data.take(&freed(BASE, 1, last + 2), 60, false, 0);
            assert_eq!(data.totals().live_bytes, 0);
            let sites = data.take_sites();
            let at_peak: Vec<u64> = sites.iter().map(|s| s.sums.at_peak_bytes).collect();
            assert_eq!(at_peak, [arena_bytes, 3 * piece_bytes]);
            let misses: Vec<u64> = sites.iter().map(|s| s.sums.data.l1d).collect();
            assert_eq!(misses, [2, 2]);
            let frees: Vec<u64> = sites.iter().map(|s| s.sums.frees).collect();
            assert_eq!(frees, [1, 3]);
            assert_eq!(data.totals().unknown_frees, 0);
        }
    }

    #[test]
    fn memory_kept_by_realloc_or_a_pool_is_not_counted_twice() {
        for arena_bytes in [4 * LARGE + 64, 100 * LARGE] {
            let mut data = DataMap::new(2, false);
            let space = AddressSpace::default();
            let mut miss = AccessOutcome::default();
            miss.l1d_misses = 1;
            let mark = |address, bytes, function, number| {
                let by = AllocatedBy {
                    function,
                    path: 0,
                    python: 0,
                };
                HeapMark::Allocated {
                    address,
                    bytes,
                    by,
                    number,
                }
            };
            let piece = BASE + (arena_bytes / 4).next_multiple_of(LINE);
            let untouched = |data: &DataMap| data.totals().untouched_bytes;
            data.take(&mark(BASE, arena_bytes, 0, 1), 1, false, arena_bytes / 2);
            let new = arena_bytes - (arena_bytes / 2).next_multiple_of(LINE);
            assert_eq!(untouched(&data), new);
            for address in [BASE, BASE + arena_bytes / 2 + LINE, BASE + arena_bytes - 1] {
                for _ in 0..2 {
                    data.charge(address, &miss, &space);
                }
            }
            assert_eq!(untouched(&data), new - 2 * LINE);
            data.take(&mark(piece, 10 * LINE, 3, 2), 2, false, 0);
            assert_eq!(untouched(&data), 10 * LINE);
            data.touch(piece + 60, 8, &space);
            assert_eq!(untouched(&data), 8 * LINE);
            let mut child = data.inherited();
            child.charge(piece + 3 * LINE, &miss, &space);
            assert_eq!(untouched(&child), 0);
        }
    }

    #[test]
    fn a_forked_child_has_the_objects_and_none_of_the_counts() {
        let mut parent = DataMap::default();
        let by = AllocatedBy {
            function: 0,
            path: 0,
            python: 0,
        };
        for address in [BASE, BASE + 64] {
            let (bytes, number) = (48, 1);
            let mark = HeapMark::Allocated {
                address,
                bytes,
                by,
                number,
            };
            parent.take(&mark, 1, false, 0);
        }
        let mut child = parent.inherited();
        let (address, number) = (BASE, 3);
        let function = 0;
        let mark = HeapMark::Freed {
            address,
            function,
            number,
        };
        child.take(&mark, 2, false, 0);
        assert_eq!(child.totals(), HeapTotals::default());
        let (space, mut miss) = (AddressSpace::default(), AccessOutcome::default());
        miss.l1d_misses = 1;
        child.charge(BASE + 70, &miss, &space);
        child.charge(BASE, &miss, &space);
        let of_child = child.take_sites()[0].sums;
        assert_eq!((of_child.allocations, of_child.frees), (0, 0));
        assert_eq!(of_child.data.l1d, 1);
        let of_parent = parent.take_sites()[0].sums;
        assert_eq!((of_parent.frees, of_parent.live_bytes), (0, 96));
    }
}
