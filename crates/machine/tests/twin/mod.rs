//! A slow machine with the same rules as the fast one. It was written from the rules and uses lists
//! and maps instead of words and fronts.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use memgauge_machine::{AccessKind, CacheConfig, Config, Replacement, TlbConfig};
use memgauge_trace::{EventId, catalogue as c};

const LINES_PER_PAGE: u64 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    number: u64,
    dirty: bool,
    prefetched: bool,
}

/// One set: the lines in its ways, and the order of their last use.
struct Set {
    places: Vec<Option<Line>>,
    /// Ways, least recently used first.
    used: VecDeque<usize>,
    /// For each range of ways, whether its upper half was used last.
    upper_used: HashMap<(usize, usize), bool>,
}

impl Set {
    fn new(ways: usize) -> Self {
        Set {
            places: vec![None; ways],
            used: (0..ways).collect(),
            upper_used: HashMap::new(),
        }
    }

    fn place_of(&self, number: u64) -> Option<usize> {
        self.places
            .iter()
            .position(|p| p.is_some_and(|l| l.number == number))
    }

    fn note_use(&mut self, place: usize) {
        self.used.retain(|&p| p != place);
        self.used.push_back(place);
        let (mut low, mut high) = (0, self.places.len());
        while high - low > 1 {
            let middle = (low + high) / 2;
            self.upper_used.insert((low, high), place >= middle);
            if place >= middle {
                low = middle
            } else {
                high = middle
            }
        }
    }

    fn coldest(&self, replacement: Replacement) -> usize {
        if let Some(empty) = self.places.iter().position(Option::is_none) {
            return empty;
        }
        if replacement == Replacement::Lru {
            return self.used[0];
        }
        let (mut low, mut high) = (0, self.places.len());
        while high - low > 1 {
            let middle = (low + high) / 2;
            // Unused nodes point to the lower half, as if the upper half had been used last.
            let upper = *self.upper_used.get(&(low, high)).unwrap_or(&true);
            if upper { high = middle } else { low = middle }
        }
        low
    }
}

struct Cache {
    sets: Vec<Set>,
    replacement: Replacement,
}

impl Cache {
    fn new(config: &CacheConfig) -> Self {
        let sets = (0..config.sets())
            .map(|_| Set::new(config.ways as usize))
            .collect();
        Cache {
            sets,
            replacement: config.replacement,
        }
    }

    fn set(&mut self, number: u64) -> &mut Set {
        let count = self.sets.len() as u64;
        &mut self.sets[(number % count) as usize]
    }

    fn get(&mut self, number: u64) -> Option<&mut Line> {
        let set = self.set(number);
        let place = set.place_of(number)?;
        set.places[place].as_mut()
    }

    /// Uses a line if it is held.
    fn hit(&mut self, number: u64) -> Option<&mut Line> {
        let set = self.set(number);
        let place = set.place_of(number)?;
        set.note_use(place);
        set.places[place].as_mut()
    }

    /// Fills a line that is not held. Returns the evicted line.
    fn put(&mut self, line: Line) -> Option<Line> {
        let replacement = self.replacement;
        let set = self.set(line.number);
        let place = set.coldest(replacement);
        set.note_use(place);
        set.places[place].replace(line)
    }

    fn remove(&mut self, number: u64) -> Option<Line> {
        let set = self.set(number);
        let place = set.place_of(number)?;
        set.places[place].take()
    }
}

struct Tlb {
    sets: Vec<VecDeque<u64>>,
    ways: usize,
}

impl Tlb {
    fn new(config: &TlbConfig) -> Self {
        let sets = vec![VecDeque::new(); config.sets() as usize];
        Tlb {
            sets,
            ways: config.ways as usize,
        }
    }

    fn take(&mut self, page: u64) -> bool {
        let at = page as usize % self.sets.len();
        let set = &mut self.sets[at];
        let held = set.contains(&page);
        set.retain(|&p| p != page);
        set.push_back(page);
        if set.len() > self.ways {
            set.pop_front();
        }
        held
    }
}

/// Private caches and counters of one core.
pub(crate) struct TwinCore {
    l1d: Cache,
    l2: Cache,
    dtlb: Tlb,
    stlb: Tlb,
    /// The page of the last miss at each of 64 places, with the line of that miss, its distance,
    /// and how often this distance has occurred in a row.
    streams: HashMap<u64, (u64, i64, i64, u32)>,
    counts: HashMap<EventId, u64>,
    /// Line numbers of all misses of the first level.
    misses: Vec<u64>,
    config: Config,
    /// Address ranges in huge pages, on a machine with small pages.
    pub(crate) huge: Vec<std::ops::Range<u64>>,
}

/// The shared cache.
pub(crate) struct TwinLlc(Cache);

/// Lines that cores share.
#[derive(Default)]
pub(crate) struct TwinSharing {
    /// Lines that the running core has stored to in its turn. The other cores do not know yet.
    quiet: BTreeSet<u64>,
    /// Lines that were stored to while several cores held them.
    watched: HashSet<u64>,
    /// Bytes that other cores have stored since a core lost a line to a store, by core and line.
    /// `None` if the first store was not seen.
    lost: HashMap<(usize, u64), Option<HashSet<u64>>>,
    /// Lines that the running core has regained in its turn, and the bytes that other cores have
    /// stored to them.
    regained: Vec<(u64, HashSet<u64>)>,
}

/// The other cores, and the state of shared lines. `None` if caches are not coherent.
pub(crate) struct Peers<'a> {
    pub(crate) number: usize,
    pub(crate) others: Vec<(usize, &'a mut TwinCore)>,
    pub(crate) sharing: Option<&'a mut TwinSharing>,
}

impl<'a> Peers<'a> {
    /// Splits a core from the others.
    pub(crate) fn split(
        cores: &'a mut [TwinCore],
        number: usize,
        sharing: Option<&'a mut TwinSharing>,
    ) -> (&'a mut TwinCore, Peers<'a>) {
        let mut all: Vec<_> = cores.iter_mut().enumerate().collect();
        let (_, core) = all.remove(number);
        let peers = Peers {
            number,
            others: all,
            sharing,
        };
        (core, peers)
    }
}

/// An access to one line.
struct LineAccess {
    number: u64,
    bytes: std::ops::RangeInclusive<u64>,
    loads: bool,
    stores: bool,
}

impl TwinLlc {
    pub(crate) fn new(config: &Config) -> Self {
        TwinLlc(Cache::new(&config.llc))
    }
}

impl TwinCore {
    pub(crate) fn new(config: &Config) -> Self {
        TwinCore {
            l1d: Cache::new(&config.l1d),
            l2: Cache::new(&config.l2),
            dtlb: Tlb::new(&config.dtlb),
            stlb: Tlb::new(&config.stlb),
            streams: HashMap::new(),
            counts: HashMap::new(),
            misses: Vec::new(),
            config: config.clone(),
            huge: Vec::new(),
        }
    }

    fn count(&mut self, event: EventId, by: u64) {
        *self.counts.entry(event).or_default() += by;
    }

    /// Value of an event. This machine does not model time.
    pub(crate) fn get(&self, event: EventId) -> u64 {
        if event == c::L1D_CONFLICT {
            return self.conflicts();
        }
        self.counts.get(&event).copied().unwrap_or(0)
    }

    /// Number of conflict misses. A conflict miss is in a narrow stretch that follows a narrow one,
    /// of a line that has missed in such a position before. A stretch of 128 misses is narrow if
    /// three quarters of them are in an eighth of the sets.
    fn conflicts(&self) -> u64 {
        let sets = self.config.l1d.sets();
        let told_apart = match sets {
            0..8 => return 0,
            _ if sets.is_power_of_two() => sets.min(64),
            _ if sets.is_multiple_of(64) => 64,
            _ => return 0,
        };
        let (mut after_narrow, mut known, mut conflicts) = (false, HashSet::new(), 0);
        for stretch in self.misses.chunks(128) {
            let mut by_set = vec![0; told_apart as usize];
            for line in stretch {
                by_set[(line % told_apart) as usize] += 1;
            }
            by_set.sort_unstable();
            let few: usize = by_set.iter().rev().take(by_set.len() / 8).sum();
            let is_narrow = few >= 96 && stretch.len() == 128;
            if after_narrow {
                let repeated = stretch.iter().filter(|&&line| !known.insert(line)).count();
                conflicts += if is_narrow { repeated as u64 } else { 0 };
            }
            after_narrow = is_narrow;
        }
        conflicts
    }

    pub(crate) fn retire(&mut self, instructions: u32) {
        self.count(c::INSTRUCTIONS, u64::from(instructions));
    }

    /// Ends the turn: takes the lines that it stored to from the other cores.
    pub(crate) fn end_turn(&mut self, peers: &mut Peers) {
        let Some(sharing) = &mut peers.sharing else {
            return;
        };
        let untouched = std::mem::take(&mut sharing.regained).len();
        self.count(c::COHERENCE_FALSE_SHARING, untouched as u64);
        for number in std::mem::take(&mut sharing.quiet) {
            self.upgrade(number, peers, false);
        }
    }

    fn drop_copy(&mut self, number: u64) -> Option<bool> {
        let lines = [self.l1d.remove(number), self.l2.remove(number)];
        let held: Vec<bool> = lines.into_iter().flatten().map(|line| line.dirty).collect();
        (!held.is_empty()).then(|| held.contains(&true))
    }

    fn clean(&mut self, number: u64) -> bool {
        let lines = [self.l1d.get(number), self.l2.get(number)];
        let mut was_dirty = false;
        for line in lines.into_iter().flatten() {
            was_dirty |= std::mem::take(&mut line.dirty);
        }
        was_dirty
    }

    /// Takes a line from the other cores. Returns whether any of them held it, and whether a copy
    /// was dirty.
    fn invalidate(&mut self, number: u64, peers: &mut Peers, is_seen: bool) -> (bool, bool) {
        let Some(sharing) = &mut peers.sharing else {
            return (false, false);
        };
        let (mut any, mut dirty) = (false, false);
        for (other, core) in &mut peers.others {
            if let Some(was_dirty) = core.drop_copy(number) {
                any = true;
                dirty |= was_dirty;
                self.count(c::COHERENCE_INVALIDATION, 1);
                let stored = is_seen.then(HashSet::new);
                sharing.lost.insert((*other, number), stored);
                sharing.watched.insert(number);
            }
        }
        (any, dirty)
    }

    fn upgrade(&mut self, number: u64, peers: &mut Peers, is_seen: bool) {
        let (any, _) = self.invalidate(number, peers, is_seen);
        self.count(c::COHERENCE_UPGRADE, u64::from(any));
    }

    /// Notes the bytes that an access stores to a line.
    fn note_stored(&self, access: &LineAccess, peers: &mut Peers) {
        let Some(sharing) = &mut peers.sharing else {
            return;
        };
        for ((core, number), bytes) in &mut sharing.lost {
            if *core != peers.number && *number == access.number && access.stores {
                bytes
                    .iter_mut()
                    .for_each(|bytes| bytes.extend(access.bytes.clone()));
            }
        }
    }

    /// Counts true sharing if an access touches bytes that others have stored to a line regained in
    /// this turn.
    fn touch(&mut self, access: &LineAccess, peers: &mut Peers) {
        let Some(sharing) = &mut peers.sharing else {
            return;
        };
        let before = sharing.regained.len();
        sharing.regained.retain(|(number, stored)| {
            *number != access.number || !access.bytes.clone().any(|byte| stored.contains(&byte))
        });
        let touched = before - sharing.regained.len();
        self.count(c::COHERENCE_TRUE_SHARING, touched as u64);
    }

    /// Takes or cleans the copies of other cores, before a missed line comes from a lower level.
    /// Counts a HITM if a copy was modified.
    fn claim(&mut self, llc: &mut TwinLlc, access: &LineAccess, peers: &mut Peers) {
        let number = access.number;
        if peers.sharing.is_none() {
            return;
        }
        let mut modified = false;
        if access.stores {
            modified = self.invalidate(number, peers, true).1;
        } else {
            for (_, core) in &mut peers.others {
                modified |= core.clean(number);
            }
        }
        if modified {
            self.count(c::COHERENCE_HITM, 1);
            self.fill_llc(llc, number, !access.stores);
        }
        let Some(sharing) = &mut peers.sharing else {
            return;
        };
        if let Some(stored) = sharing.lost.remove(&(peers.number, number)).flatten() {
            sharing.regained.push((number, stored));
            self.touch(access, peers);
        }
        self.note_stored(access, peers);
    }

    pub(crate) fn access(
        &mut self,
        llc: &mut TwinLlc,
        addr: u64,
        size: u32,
        kind: AccessKind,
        peers: &mut Peers,
    ) {
        let stores = matches!(kind, AccessKind::Store | AccessKind::Modify);
        let loads = kind != AccessKind::Store;
        self.count(c::LOADS, u64::from(loads));
        self.count(c::STORES, u64::from(stores));
        self.count(c::MODIFIES, u64::from(kind == AccessKind::Modify));
        let last = addr + u64::from(size.max(1)) - 1;
        self.count(c::SPLITS, u64::from(addr / 64 != last / 64));
        let mut pages: Vec<u64> = (addr >> 12..=last >> 12)
            .map(|small| self.page_of(small))
            .collect();
        pages.dedup();
        for page in pages {
            self.translate(page);
        }
        for number in addr / 64..=last / 64 {
            let first = addr.max(number * 64);
            let access = LineAccess {
                number,
                bytes: first % 64..=(last.min(number * 64 + 63)) % 64,
                loads,
                stores,
            };
            self.line(llc, &access, peers);
        }
    }

    /// Executes a prefetch of the program.
    pub(crate) fn prefetch(&mut self, llc: &mut TwinLlc, addr: u64) {
        let page = self.page_of(addr >> 12);
        if !self.dtlb.take(page) {
            self.stlb.take(page);
        }
        if self.l1d.get(addr / 64).is_none() && self.l2.get(addr / 64).is_none() {
            self.request(llc, addr / 64);
        }
    }

    /// Number of the page that contains this page of 4 KiB.
    fn page_of(&self, small: u64) -> u64 {
        let is_huge = self.huge.iter().any(|huge| huge.contains(&(small << 12)));
        match self.config.huge_pages {
            true => small >> 9,
            // Numbers of huge pages have an additional bit if there are also small pages.
            false if is_huge => small >> 9 | 1 << 35,
            false => small,
        }
    }

    fn translate(&mut self, page: u64) {
        if !self.dtlb.take(page) {
            self.count(c::DTLB_MISS, 1);
            let event = if self.stlb.take(page) {
                c::STLB_HIT
            } else {
                c::DTLB_WALK
            };
            self.count(event, 1);
        }
    }

    fn line(&mut self, llc: &mut TwinLlc, access: &LineAccess, peers: &mut Peers) {
        let LineAccess {
            number,
            loads,
            stores,
            ..
        } = *access;
        if let Some(line) = self.l1d.hit(number) {
            line.dirty |= stores;
            self.touch(access, peers);
            if let Some(sharing) = peers.sharing.as_mut().filter(|_| stores) {
                if sharing.watched.contains(&number) {
                    self.upgrade(number, peers, true);
                    self.note_stored(access, peers);
                } else {
                    sharing.quiet.insert(number);
                }
            }
            return self.count(c::L1D_HIT, 1);
        }
        self.count(c::L1D_MISS, 1);
        self.count(
            if loads {
                c::L1D_LOAD_MISS
            } else {
                c::L1D_STORE_MISS
            },
            1,
        );
        let left = self.l1d.put(Line {
            number,
            dirty: stores,
            prefetched: false,
        });
        if let Some(left) = left.filter(|l| l.dirty) {
            self.count(c::L1D_WRITEBACK, 1);
            self.upgrade(left.number, peers, false);
            self.write_l2(llc, left.number);
        }
        let stride = self.stride(number);
        self.misses.push(number);
        self.claim(llc, access, peers);
        let eager = self.fetch(llc, number);
        if self.config.prefetch.next_line && eager {
            self.prefetch_near(llc, number, 1);
        }
        if self.config.prefetch.stride && stride != 0 {
            self.prefetch_near(llc, number, stride);
            self.prefetch_near(llc, number, 2 * stride);
        }
    }

    fn fetch(&mut self, llc: &mut TwinLlc, number: u64) -> bool {
        if let Some(line) = self.l2.hit(number) {
            let first_use = std::mem::take(&mut line.prefetched);
            self.count(c::L2_HIT, 1);
            self.count(c::PREFETCH_HITS, u64::from(first_use));
            return first_use;
        }
        self.count(c::L2_MISS, 1);
        let left = self.l2.put(Line {
            number,
            ..Line::default()
        });
        self.leave_l2(llc, left);
        let held = self.fill_llc(llc, number, false);
        self.count(if held { c::LLC_HIT } else { c::LLC_MISS }, 1);
        self.count(c::DRAM_READ_BYTES, if held { 0 } else { 64 });
        true
    }

    fn write_l2(&mut self, llc: &mut TwinLlc, number: u64) {
        match self.l2.hit(number) {
            Some(line) => line.dirty = true,
            None => {
                let left = self.l2.put(Line {
                    number,
                    dirty: true,
                    prefetched: false,
                });
                self.leave_l2(llc, left);
            }
        }
    }

    fn leave_l2(&mut self, llc: &mut TwinLlc, left: Option<Line>) {
        if let Some(left) = left.filter(|l| l.dirty) {
            self.count(c::L2_WRITEBACK, 1);
            self.fill_llc(llc, left.number, true);
        }
    }

    fn fill_llc(&mut self, llc: &mut TwinLlc, number: u64, dirty: bool) -> bool {
        if let Some(line) = llc.0.hit(number) {
            line.dirty |= dirty;
            return true;
        }
        if let Some(left) = llc.0.put(Line {
            number,
            dirty,
            prefetched: false,
        }) {
            let mut dirty = left.dirty;
            if self.config.inclusive_llc {
                dirty |= self.l1d.remove(left.number).is_some_and(|l| l.dirty);
                dirty |= self.l2.remove(left.number).is_some_and(|l| l.dirty);
            }
            self.count(c::LLC_WRITEBACK, u64::from(dirty));
            self.count(c::DRAM_WRITE_BYTES, if dirty { 64 } else { 0 });
        }
        false
    }

    /// Returns the distance in lines that occurred at least twice in a row in the page, otherwise
    /// 0.
    fn stride(&mut self, number: u64) -> i64 {
        let at = (number % LINES_PER_PAGE) as i64;
        let page = number / LINES_PER_PAGE;
        // The top six bits of a Fibonacci hash, as in the model.
        let place = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        let known = self.streams.get(&place).filter(|s| s.0 == page).copied();
        let Some((_, last, stride, times)) = known else {
            self.streams.insert(place, (page, at, 0, 0));
            return 0;
        };
        let now = at - last;
        let times = if now == stride { times + 1 } else { 1 };
        self.streams.insert(place, (page, at, now, times));
        if times >= 2 { now } else { 0 }
    }

    fn prefetch_near(&mut self, llc: &mut TwinLlc, number: u64, distance: i64) {
        let wanted = number.wrapping_add_signed(distance);
        if wanted / LINES_PER_PAGE != number / LINES_PER_PAGE || self.l2.get(wanted).is_some() {
            return;
        }
        self.request(llc, wanted);
    }

    fn request(&mut self, llc: &mut TwinLlc, wanted: u64) {
        self.count(c::PREFETCHES, 1);
        let left = self.l2.put(Line {
            number: wanted,
            dirty: false,
            prefetched: true,
        });
        self.leave_l2(llc, left);
        if !self.fill_llc(llc, wanted, false) {
            self.count(c::DRAM_READ_BYTES, 64);
        }
    }
}
