//! The levels below the first: the source of a line, evicted lines, and their cost.
//!
//! A level evicts before it fills: it writes the evicted line to the next level before it requests
//! the new line there. All caches are therefore consistent after every step, and an inclusive
//! last-level cache can recall a line from any level.

use memgauge_trace::{AccessKind, DataSource};

use crate::cache::{DIRTY, EMPTY, LookupResult, PREFETCHED, Portable, SPACE_SHIFT, tag_in};
use crate::clock::Clock;
use crate::coherence::LineUse;
use crate::events::*;
use crate::overlap::{LoadOrder, ProgramOrder};
use crate::software_prefetch::RequestedLine;
use crate::uncore::Recalls;
use crate::{AccessOutcome, Config, Core, LINE_BYTES, SharedLevels};

/// Number of values of [`DataSource`].
const SOURCES: usize = DataSource::OtherCore as usize + 1;
/// Number of lines in a page.
const PAGE_LINES: i64 = 64;
/// Number of lines that come from other cores at the same time if they are near each other. Lines
/// that threads contend for have few neighbours, unlike those of a scan.
const CONTENDED_IN_FLIGHT: u64 = 2;

/// Number of stores that a core can have waiting for their lines: entries of its store buffer (56 on
/// Skylake, 64 on Zen 4).
pub(crate) const STORE_BUFFER: u64 = 56;

/// Costs as integers, computed once.
pub(crate) struct Costs {
    /// Millicycles per instruction.
    pub(crate) instruction: u64,
    /// Largest power of two within `instruction`, as a shift.
    pub(crate) instruction_shift: u32,
    /// Latency in cycles, by source.
    pub(crate) latency: [u32; SOURCES],
    /// Millicycles of stall of a load that misses, by source: irregular, regular.
    pub(crate) stall: [[u64; 2]; SOURCES],
    /// Millicycles for which a store that misses occupies the store buffer's path to the caches, by
    /// source. 0 for lines from memory, which have a path of their own.
    pub(crate) drain: [u64; SOURCES],
    /// Outcome of a first-level hit with a TLB hit.
    pub(crate) plain_hit: AccessOutcome,
    stlb_cycles: u32,
    walk_cycles: u32,
    /// Millicycles of stall per cycle of translation.
    translation_stall: u64,
    /// Millicycles for which a line occupies the core's path to memory. Determined by the memory
    /// bandwidth, or by the misses in flight if they allow less.
    line: u64,
    /// Millicycles of queue that buffers hide from stores and writebacks.
    slack: u64,
    /// Number of instructions that the core has in flight.
    pub(crate) window: u64,
    /// Number of misses that it has in flight.
    pub(crate) in_flight: usize,
    /// Number of lines that each line stands for, in stalls and on the path to memory.
    pub(crate) weight: u32,
}

impl Costs {
    pub(crate) fn new(config: &Config, weight: u32) -> Self {
        let timing = &config.timing;
        let clock = Clock::new(config.frequency_hz);
        let dram = clock.millicycles(u64::from(timing.dram_latency_ns)) / 1000;
        let transfer = clock.millicycles(u64::from(timing.transfer_ns)) / 1000;
        let l1d = config.l1d.latency_cycles;
        let mut latency = [0; SOURCES];
        for (source, cycles) in [
            (DataSource::L1d, l1d),
            (DataSource::L2, config.l2.latency_cycles),
            (DataSource::Llc, config.llc.latency_cycles),
            (DataSource::Dram, dram as u32),
            (DataSource::OtherCore, transfer as u32),
        ] {
            latency[source as usize] = cycles;
        }
        let exposed = u64::from(timing.exposed_percent) * 10;
        let in_flight = u64::from(timing.misses_in_flight);
        let lines = u64::from(weight);
        let mut stall = latency.map(|cycles| {
            let beyond = u64::from(cycles.saturating_sub(l1d));
            [beyond * exposed * lines, beyond * 1000 * lines / in_flight]
        });
        let [irregular, regular] = &mut stall[DataSource::OtherCore as usize];
        *regular = *irregular / CONTENDED_IN_FLIGHT;
        let mut drain = [0; SOURCES];
        for source in [DataSource::L2, DataSource::Llc] {
            let [_, regular] = stall[source as usize];
            drain[source as usize] = regular;
        }
        let instruction = u64::from(timing.cycles_per_1000_instructions);
        let line = clock.transfer_millicycles(u64::from(LINE_BYTES), timing.dram_bytes_per_s);
        let line = line.max(dram * 1000 / in_flight) * lines;
        Costs {
            instruction,
            instruction_shift: instruction.ilog2(),
            latency,
            stall,
            drain,
            plain_hit: AccessOutcome {
                source: DataSource::L1d,
                latency_cycles: l1d,
                ..AccessOutcome::default()
            },
            stlb_cycles: timing.stlb_cycles,
            walk_cycles: timing.walk_cycles,
            translation_stall: exposed,
            line,
            slack: line * in_flight,
            window: u64::from(timing.instructions_in_flight),
            in_flight: timing.misses_in_flight as usize,
            weight,
        }
    }

    /// Accounts for a line that came from `source` after `waited` cycles in the queue.
    #[inline(always)]
    pub(crate) fn deliver(&self, source: DataSource, waited: u32, out: &mut AccessOutcome) {
        let latency = self.latency[source as usize] + waited;
        out.latency_cycles = out.latency_cycles.max(latency);
        if source as u8 > out.source as u8 {
            out.source = source;
        }
    }
}

/// Time of a load, which may overlap earlier ones.
pub(crate) struct LoadTime<'a, O: LoadOrder> {
    order: &'a mut O,
    /// Millicycles that the core had stalled before the access.
    stalled_before: u64,
    /// Time at which the next step of the load begins: its translation, then its line, then its
    /// use. `None` until it is needed.
    begins: Option<u64>,
}

impl<'a, O: LoadOrder> LoadTime<'a, O> {
    pub(crate) fn new(order: &'a mut O, stalled_before: u64) -> Self {
        LoadTime {
            order,
            stalled_before,
            begins: None,
        }
    }

    fn begins(&mut self, core: &mut Core) -> u64 {
        match self.begins {
            Some(begins) => begins,
            None => core.start_of_load(self.order),
        }
    }

    /// Lets later loads overlap this one, if its time is known.
    pub(crate) fn note(self, core: &mut Core) {
        if let Some((arrives, id)) = self.begins.zip(self.order.id()) {
            core.note_load(id, self.stalled_before, arrives);
        }
    }
}

pub(crate) fn order_of(regular: bool) -> usize {
    match regular {
        true => STALL_REGULAR,
        false => STALL_IRREGULAR,
    }
}

fn is_load(kind: AccessKind) -> bool {
    kind != AccessKind::Store
}

impl Core {
    /// Looks a page up in both TLB levels. Returns the added cycles.
    pub(crate) fn translate(
        &mut self,
        addr: u64,
        kind: AccessKind,
        out: &mut AccessOutcome,
    ) -> u32 {
        let stamp = self.first.next_stamp();
        let page = self.first.page_of(addr);
        if self.first.dtlb.take::<Portable>(page, stamp) {
            return 0;
        }
        let mut order = ProgramOrder;
        let mut load = LoadTime::new(&mut order, self.stalled);
        self.translate_below(addr, kind, &mut load, out)
    }

    /// Looks up a page that missed the first TLB level. Returns the added cycles.
    #[inline(always)]
    pub(crate) fn translate_below(
        &mut self,
        addr: u64,
        kind: AccessKind,
        load: &mut LoadTime<'_, impl LoadOrder>,
        out: &mut AccessOutcome,
    ) -> u32 {
        self.counts[DTLB_MISS] += 1;
        out.dtlb_misses += 1;
        let is_walk = !self.stlb.take(self.first.page_of(addr));
        let cycles = if is_walk {
            self.counts[DTLB_WALK] += 1;
            out.walks += 1;
            self.costs.walk_cycles
        } else {
            self.counts[STLB_HIT] += 1;
            self.costs.stlb_cycles
        };
        if is_load(kind) {
            let time = u64::from(cycles) * self.costs.translation_stall;
            let begins = load.begins(self);
            let translated = match is_walk {
                true => self.page_walks.end_of(begins, time),
                false => begins + time,
            };
            load.begins = Some(translated);
            let stall = translated.saturating_sub(self.now());
            if stall > 0 {
                self.stall(STALL_TLB, stall);
                out.stalled.translation += stall;
            }
        }
        cycles
    }

    /// Handles a first-level miss. The first level already holds the line and has evicted `left`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "each is a part of one access")]
    pub(crate) fn miss(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        left: u64,
        kind: AccessKind,
        line_use: LineUse,
        load: &mut LoadTime<'_, impl LoadOrder>,
        out: &mut AccessOutcome,
    ) {
        self.counts[L1D_MISS] += 1;
        self.counts[if is_load(kind) {
            L1D_LOAD_MISS
        } else {
            L1D_STORE_MISS
        }] += 1;
        out.l1d_misses += 1;
        if left & DIRTY != 0 {
            self.counts[L1D_WRITEBACK] += 1;
            if shared.is_coherent() {
                // A store in this turn may have made it dirty, and the directory does not know yet.
                self.upgrade(shared, tag_in(left), false, &mut AccessOutcome::default());
            }
            self.write_l2(shared, tag_in(left), out);
        }
        let pattern = self.streams.note(tag >> 2);
        self.counts[L1D_CONFLICT] += self.conflicts.add(tag >> 2);
        let is_hitm = shared.is_coherent() && self.claim(shared, tag, line_use, out);
        let (mut source, eager) = self.fetch(shared, tag, out);
        if is_hitm {
            source = DataSource::OtherCore;
        }
        let prefetch = match source == DataSource::L2 && eager {
            true => self.prefetch_of(tag),
            false => None,
        };
        if let Some(prefetch) = prefetch {
            self.use_prefetched(prefetch, kind, pattern.regular, out);
        } else {
            self.use_fetched(shared, source, kind, pattern.regular, load, out);
        }
        if self.prefetch.next_line && eager {
            self.prefetch_line(shared, tag, 1, out);
        }
        if self.prefetch.stride && pattern.stride != 0 {
            self.prefetch_line(shared, tag, pattern.stride, out);
            self.prefetch_line(shared, tag, 2 * pattern.stride, out);
        }
    }

    /// Accounts for the time until a line from `source` arrives.
    #[inline(always)]
    fn use_fetched(
        &mut self,
        shared: &mut SharedLevels,
        source: DataSource,
        kind: AccessKind,
        regular: bool,
        load: &mut LoadTime<'_, impl LoadOrder>,
        out: &mut AccessOutcome,
    ) {
        let may_overlap = match source {
            DataSource::Dram | DataSource::Llc => true,
            // Hits of the second level are too many to look at each, unless their page missed.
            DataSource::L2 => load.begins.is_some(),
            _ => false,
        };
        if is_load(kind) && !regular && may_overlap {
            return self.use_irregular(shared, source, load, out);
        }
        let waited = if source == DataSource::Dram {
            self.transfer(shared).saturating_sub(self.now())
        } else {
            0
        };
        self.costs.deliver(source, (waited / 1000) as u32, out);
        if is_load(kind) {
            let latency = self.costs.stall[source as usize][usize::from(regular)];
            let queue = waited.saturating_sub(latency);
            self.stall_for_load(source, regular, latency, queue, out);
        } else {
            self.stall_for_store(order_of(regular), waited, out);
            self.drain_store(source, order_of(regular), out);
        }
    }

    /// Accounts for the time until the line of an irregular load arrives, which may overlap the time
    /// of earlier ones.
    #[inline(always)]
    fn use_irregular(
        &mut self,
        shared: &mut SharedLevels,
        source: DataSource,
        load: &mut LoadTime<'_, impl LoadOrder>,
        out: &mut AccessOutcome,
    ) {
        let begins = load.begins(self);
        let transferred = match source {
            DataSource::Dram => self.transfer(shared),
            _ => 0,
        };
        let waited = transferred.saturating_sub(begins);
        self.costs.deliver(source, (waited / 1000) as u32, out);
        let latency = self.costs.stall[source as usize][0];
        let arrives = begins + latency.max(waited);
        load.begins = Some(arrives);
        let now = self.now();
        let stall = arrives.saturating_sub(now);
        let of_latency = (begins + latency).saturating_sub(now);
        self.stall_for_load(source, false, of_latency, stall - of_latency, out);
    }

    /// Puts a store that missed in the store buffer, which fetches as many lines at a time as there can
    /// be misses in flight. The core stalls while the buffer is full.
    #[inline(always)]
    fn drain_store(&mut self, source: DataSource, cause: usize, out: &mut AccessOutcome) {
        let drain = self.costs.drain[source as usize];
        if drain == 0 {
            return;
        }
        let now = self.now();
        self.stores_drained = self.stores_drained.max(now) + drain;
        let stall = (self.stores_drained - now).saturating_sub(STORE_BUFFER * drain);
        if stall > 0 {
            self.stall(cause, stall);
            self.divide_stall(STALL_STORES, stall);
            out.stalled.stores += stall;
        }
    }

    /// Accounts for the first use of a line that the program has prefetched. A load waits until the
    /// line arrives, but not longer than without the prefetch.
    #[cold]
    fn use_prefetched(
        &mut self,
        prefetch: RequestedLine,
        kind: AccessKind,
        regular: bool,
        out: &mut AccessOutcome,
    ) {
        let left = prefetch.arrives_at.saturating_sub(self.now());
        if left == 0 {
            return self.costs.deliver(DataSource::L2, 0, out);
        }
        let l2_cycles = self.costs.latency[DataSource::L2 as usize];
        out.latency_cycles = out.latency_cycles.max(l2_cycles + (left / 1000) as u32);
        if prefetch.source as u8 > out.source as u8 {
            out.source = prefetch.source;
        }
        if is_load(kind) {
            let whole = self.costs.stall[prefetch.source as usize][usize::from(regular)];
            let latency = whole.min(left * u64::from(self.costs.weight));
            self.stall_for_load(prefetch.source, regular, latency, 0, out);
        }
    }

    /// Stalls for a load that missed: for the latency of its line, and in the queue to memory beyond
    /// that.
    fn stall_for_load(
        &mut self,
        source: DataSource,
        regular: bool,
        latency: u64,
        queue: u64,
        out: &mut AccessOutcome,
    ) {
        if latency + queue == 0 {
            return;
        }
        self.stall(order_of(regular), latency + queue);
        let level = match source {
            DataSource::Dram => STALL_DRAM,
            DataSource::Llc => STALL_LLC,
            DataSource::OtherCore => STALL_SHARING,
            _ => STALL_L2,
        };
        self.divide_stall(level, latency);
        self.divide_stall(STALL_QUEUE, queue);
        out.stalled.latency += latency;
        out.stalled.queue += queue;
    }

    /// Stalls for a store or writeback if the queue is longer than buffers hide.
    fn stall_for_store(&mut self, cause: usize, waited: u64, out: &mut AccessOutcome) {
        if waited > self.costs.slack {
            let stall = waited - self.costs.slack;
            self.stall(cause, stall);
            self.divide_stall(STALL_STORES, stall);
            out.stalled.stores += stall;
        }
    }

    /// Fetches a line into the second level. Returns its source, and whether that triggers a
    /// prefetch of the next line.
    fn fetch(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        out: &mut AccessOutcome,
    ) -> (DataSource, bool) {
        match self.l2.take(tag, 0, PREFETCHED) {
            LookupResult::Hit(word) => {
                self.counts[L2_HIT] += 1;
                let used_first = word & PREFETCHED != 0;
                self.counts[PREFETCH_HITS] += u64::from(used_first);
                (DataSource::L2, used_first)
            }
            LookupResult::Miss(left) => {
                self.counts[L2_MISS] += 1;
                out.l2_misses += 1;
                self.leave_l2(shared, left, out);
                (self.fetch_llc(shared, tag, out), true)
            }
        }
    }

    fn fetch_llc(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        out: &mut AccessOutcome,
    ) -> DataSource {
        if self.fill_llc(shared, tag, 0, out) {
            self.counts[LLC_HIT] += 1;
            return DataSource::Llc;
        }
        self.counts[LLC_MISS] += 1;
        out.llc_misses += 1;
        self.read_dram(out);
        DataSource::Dram
    }

    /// Fills a line in the last-level cache. Returns true if it was held.
    pub(crate) fn fill_llc(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        set: u64,
        out: &mut AccessOutcome,
    ) -> bool {
        match shared.llc.take(tag | self.space_bits, set, 0) {
            LookupResult::Hit(_) => true,
            LookupResult::Miss(left) => {
                if left != EMPTY {
                    self.leave_llc(shared, left, out);
                }
                false
            }
        }
    }

    pub(crate) fn read_dram(&mut self, out: &mut AccessOutcome) {
        self.counts[DRAM_READ_BYTES] += u64::from(LINE_BYTES);
        out.dram_read_bytes += LINE_BYTES;
    }

    /// Writes a dirty first-level line to the second level.
    fn write_l2(&mut self, shared: &mut SharedLevels, tag: u64, out: &mut AccessOutcome) {
        if let LookupResult::Miss(left) = self.l2.take(tag, DIRTY, 0) {
            self.leave_l2(shared, left, out);
        }
    }

    /// Handles a line that was evicted from the second level. A dirty one is written to the
    /// last-level cache.
    pub(crate) fn leave_l2(
        &mut self,
        shared: &mut SharedLevels,
        left: u64,
        out: &mut AccessOutcome,
    ) {
        if left & DIRTY != 0 {
            self.counts[L2_WRITEBACK] += 1;
            self.fill_llc(shared, tag_in(left), DIRTY, out);
        }
    }

    /// Handles a line that was evicted from the last-level cache. A dirty one is written to memory.
    fn leave_llc(&mut self, shared: &mut SharedLevels, left: u64, out: &mut AccessOutcome) {
        let mut flags = left;
        if shared.inclusive {
            shared.recall(self.place, tag_in(left));
            if left >> SPACE_SHIFT == self.space_bits >> SPACE_SHIFT {
                flags |= self.give_up(tag_in(left) ^ self.space_bits);
            }
        }
        if flags & DIRTY != 0 {
            self.write_dram(shared, out);
        }
    }

    /// Removes a line from the private caches and returns its flags.
    pub(crate) fn give_up(&mut self, tag: u64) -> u64 {
        self.first.l1d.drop_line(tag).unwrap_or(0) | self.l2.drop_line(tag).unwrap_or(0)
    }

    pub(crate) fn write_dram(&mut self, shared: &mut SharedLevels, out: &mut AccessOutcome) {
        self.counts[LLC_WRITEBACK] += 1;
        self.counts[DRAM_WRITE_BYTES] += u64::from(LINE_BYTES);
        out.dram_write_bytes += LINE_BYTES;
        self.transfer_posted(shared, out);
    }

    /// Reserves a transfer to or from memory. Returns the time at which it can start.
    fn transfer(&mut self, shared: &mut SharedLevels) -> u64 {
        let requested = self.dispatched();
        let start = shared.dram.reserve(self.pipe_free.max(requested));
        self.pipe_free = start + self.costs.line;
        start
    }

    /// Reserves a transfer that nothing waits for, unless the queue is too long.
    pub(crate) fn transfer_posted(&mut self, shared: &mut SharedLevels, out: &mut AccessOutcome) {
        let waited = self.transfer(shared).saturating_sub(self.now());
        self.stall_for_store(STALL_WRITEBACKS, waited, out);
    }

    /// Reserves the transfer of a prefetched line. Nothing waits for it, unless the queue is too long.
    /// Returns the millicycles until it can start.
    pub(crate) fn transfer_prefetched(
        &mut self,
        shared: &mut SharedLevels,
        out: &mut AccessOutcome,
    ) -> u64 {
        let waited = self.transfer(shared).saturating_sub(self.now());
        if waited > self.costs.slack {
            let stall = waited - self.costs.slack;
            self.stall(STALL_REGULAR, stall);
            self.divide_stall(STALL_QUEUE, stall);
            out.stalled.queue += stall;
        }
        waited
    }

    /// Prefetches the line at `distance` lines if it is in the same page and not in the second
    /// level.
    fn prefetch_line(
        &mut self,
        shared: &mut SharedLevels,
        tag: u64,
        distance: i64,
        out: &mut AccessOutcome,
    ) {
        let within = (tag >> 2) as i64 % PAGE_LINES + distance;
        let wanted = tag.wrapping_add_signed(distance * 4);
        if !(0..PAGE_LINES).contains(&within) || self.l2.holds(wanted) {
            return;
        }
        self.counts[PREFETCHES] += 1;
        if let LookupResult::Miss(left) = self.l2.take(wanted, PREFETCHED, 0) {
            self.leave_l2(shared, left, out);
        }
        if !self.fill_llc(shared, wanted, 0, out) {
            self.read_dram(out);
            self.transfer_prefetched(shared, out);
        }
    }

    /// Removes lines that an inclusive last-level cache evicted while other cores ran, unless it
    /// holds them again.
    pub(crate) fn apply_recalls(&mut self, shared: &mut SharedLevels) {
        let recalls = shared.take_recalls(self.place);
        if recalls.is_empty() {
            return;
        }
        let tags: Vec<u64> = match recalls {
            Recalls::These(tags) => tags.iter().map(|tag| tag ^ self.space_bits).collect(),
            Recalls::Unlisted => self
                .first
                .l1d
                .lines()
                .chain(self.l2.lines())
                .map(tag_in)
                .collect(),
        };
        let mut out = AccessOutcome::default();
        for tag in tags {
            if !shared.llc.holds(tag | self.space_bits) && self.give_up(tag) & DIRTY != 0 {
                self.write_dram(shared, &mut out);
            }
        }
    }
}
