//! A core, which executes the instructions and accesses of a thread.

use memgauge_trace::{AccessKind, EventId, catalogue};

use crate::cache::{Cache, DIRTY, Evicted, Portable, SPACE_SHIFT, tag_in, tag_of};
use crate::clock::Clock;
use crate::coherence::{LineBytes, LineUse, RecentPages, RegainedLine};
use crate::conflicts::Conflicts;
use crate::events::*;
use crate::first_level::FirstLevel;
use crate::hierarchy::{Costs, LoadTime};
use crate::l1d::Reuse;
use crate::overlap::{LoadOrder, LoadsInFlight, PageWalks, ProgramOrder};
use crate::pmu::{CounterSeries, Courier, CourierCore, Delivered, SampledAccess, Sampler};
use crate::software_prefetch::RequestedLines;
use crate::streams::Streams;
use crate::tlb::Stlb;
use crate::write_combining::WriteCombining;
use crate::{
    AccessOutcome, Config, Counts, LINE_BYTES, Missed, PAGE_BYTES, PmuConfig, Prefetch,
    SampledOverflow, SharedLevels, Tick,
};

/// Maximum progress between two checks of the deadlines.
const LONGEST_FUSE: u64 = 1 << 40;
/// Longer than any latency. Only a core that finds no memory bandwidth left stalls for so long.
const LONG_STALL_NS: u64 = 10_000;

/// A core with its private caches, TLBs, clock and counters.
pub struct Core {
    pub(crate) first: FirstLevel,
    retired: Retired,
    /// Progress (instructions + loads + stores, and the equivalent of stalls) that is possible
    /// before any deadline. The deadlines are checked when it is used up.
    fuse: i64,
    /// Number of line lookups beyond one per access.
    extra_lookups: u64,
    /// Number of line lookups that non-temporal stores skipped.
    pub(crate) past_caches: u64,
    /// Start of the core in millicycles since virtual time zero, plus its waits.
    base: u64,
    /// Millicycles that it waited, included in `base`.
    idle: u64,
    /// Millicycles that it stalled for data.
    pub(crate) stalled: u64,
    /// Stalled millicycles by cause, in the order of [`STALLS`].
    stalled_by_cause: [u64; STALLS.len()],
    /// Time at which its path to memory is free again.
    pub(crate) pipe_free: u64,
    /// Time at which all stores that missed have their lines from the caches.
    pub(crate) stores_drained: u64,
    /// Loads that missed, which later ones may overlap.
    pub(crate) in_flight: LoadsInFlight,
    pub(crate) page_walks: PageWalks,
    /// Counts of the events of accesses. The elements of other events stay 0.
    pub(crate) counts: [u64; catalogue::COUNT],
    pub(crate) l2: Cache,
    pub(crate) stlb: Stlb,
    pub(crate) streams: Streams,
    pub(crate) conflicts: Conflicts,
    pub(crate) costs: Costs,
    pub(crate) prefetch: Prefetch,
    pub(crate) write_combining: WriteCombining,
    pub(crate) requested: RequestedLines,
    pub(crate) place: usize,
    /// Its address space, at the position of the address space in a tag.
    pub(crate) space_bits: u64,
    /// Its bit in the coherence directory. 0 if it is not coherent with other cores.
    pub(crate) bit: u64,
    pub(crate) recent_pages: RecentPages,
    /// Lines that it regained in this turn and that are not known to be truly shared.
    pub(crate) regained: Vec<RegainedLine>,
    clock: Clock,
    pub(crate) sampler: Sampler,
    /// Set unless delivery is ideal.
    courier: Option<Box<Courier>>,
    /// True if splits are sampled.
    samples_splits: bool,
    /// True if stalled cycles of any cause are sampled.
    samples_stalls: bool,
    /// True if an event that retires with blocks is sampled.
    samples_retired: bool,
    series: Option<CounterSeries>,
    /// A stall of this many millicycles ends the current interval where it begins.
    long_stall: u64,
}

/// An access within a line.
#[derive(Clone, Copy, Debug)]
pub struct LineAccess {
    /// Address of its first byte.
    pub addr: u64,
    /// Number of its bytes.
    pub size: u32,
    /// Kind of access.
    pub kind: AccessKind,
    /// Bytes that it and the accesses that it stands for touch in the line.
    pub bytes: LineBytes,
}

/// Counts that retire with blocks.
#[derive(Clone, Copy, Default)]
struct Retired {
    instructions: u64,
    loads: u64,
    stores: u64,
    modifies: u64,
    /// Millicycles of the elements of string instructions.
    strings: u64,
}

impl Retired {
    #[inline(always)]
    fn add(&mut self, other: Retired) {
        self.instructions += other.instructions;
        self.loads += other.loads;
        self.stores += other.stores;
        self.modifies += other.modifies;
        self.strings += other.strings;
    }

    /// Millicycles that the instructions take without stalls.
    fn work(&self, costs: &Costs) -> u64 {
        self.instructions * costs.instruction + self.strings
    }
}

/// Bytes that a repeated `movs` or `stos` moves per cycle: the speed of `rep movsb` on data in the
/// first level (Intel 64 and IA-32 Architectures Optimization Reference Manual, "Enhanced REP MOVSB
/// and STOSB Operation").
const STRING_BYTES_PER_CYCLE: u64 = 32;

/// Millicycles of each element that a repeated `lods` or `scas` loads. Processors execute these one
/// by one (Agner Fog, Instruction tables: 2 cycles on Haswell, 1.5 to 2.5 on Zen).
const SCANNED_ELEMENT_MILLICYCLES: u64 = 2000;

/// Returns the millicycles of an iteration of a string instruction that stores `stored_bytes`, or
/// loads without storing.
pub fn string_millicycles(stored_bytes: u64) -> u64 {
    match stored_bytes {
        0 => SCANNED_ELEMENT_MILLICYCLES,
        bytes => bytes * 1000 / STRING_BYTES_PER_CYCLE,
    }
}

impl Core {
    pub(crate) fn new(
        config: &Config,
        pmu: &PmuConfig,
        costs: Costs,
        start_ns: u64,
        place: usize,
        space: u32,
    ) -> Self {
        let clock = Clock::new(config.frequency_hz);
        let base = clock.millicycles(start_ns);
        let courier = Courier::new(pmu);
        Core {
            first: FirstLevel::new(config),
            retired: Retired::default(),
            fuse: -1,
            extra_lookups: 0,
            past_caches: 0,
            base,
            idle: 0,
            stalled: 0,
            stalled_by_cause: [0; STALLS.len()],
            pipe_free: 0,
            stores_drained: 0,
            in_flight: LoadsInFlight::default(),
            page_walks: PageWalks::new(config.timing.page_walkers),
            counts: [0; catalogue::COUNT],
            l2: Cache::new(&config.l2, Evicted::Dirty),
            stlb: Stlb::new(&config.stlb),
            streams: Streams::new(costs.weight),
            conflicts: Conflicts::new(&config.l1d),
            costs,
            prefetch: config.prefetch,
            write_combining: WriteCombining::new(config.timing.misses_in_flight),
            requested: RequestedLines::new(),
            place,
            space_bits: u64::from(space) << SPACE_SHIFT,
            bit: 0,
            recent_pages: RecentPages::new(),
            regained: Vec::new(),
            clock,
            sampler: match &courier {
                Some(_) => Sampler::attentive(),
                None => Sampler::new(&pmu.samples),
            },
            courier,
            samples_splits: pmu.samples.iter().any(|s| usize::from(s.event.0) == SPLITS),
            samples_stalls: pmu
                .samples
                .iter()
                .any(|s| STALLS.contains(&usize::from(s.event.0))),
            samples_retired: pmu.samples.iter().any(|s| !is_memory(s.event)),
            series: pmu.interval_ns.map(|ns| CounterSeries::new(ns, start_ns)),
            long_stall: pmu
                .interval_ns
                .map_or(u64::MAX, |ns| clock.millicycles(ns.max(LONG_STALL_NS))),
        }
    }

    /// Retires a block: its instructions, its loads and stores, and the number of operands that are
    /// both (which count in both). Advances the clock. Returns true if overflows or ticks are
    /// pending, including those of accesses since the last call. It may not return true for them
    /// again.
    #[inline(always)]
    pub fn retire(&mut self, instructions: u32, loads: u32, stores: u32, modifies: u32) -> bool {
        let block = Retired {
            instructions: u64::from(instructions),
            loads: u64::from(loads),
            stores: u64::from(stores),
            modifies: u64::from(modifies),
            strings: 0,
        };
        self.fuse -= (block.instructions + block.loads + block.stores) as i64;
        let pending = self.fuse < 0 && self.look_at_deadlines(block);
        self.retired.add(block);
        pending
    }

    /// Advances the clock by the [time](string_millicycles) of the elements of a string instruction,
    /// which is one instruction however many elements it has. Call it before [`Core::retire`].
    pub fn repeat_string(&mut self, millicycles: u64) {
        self.retired.strings += millicycles;
        self.fuse -= (millicycles >> self.costs.instruction_shift) as i64 + 1;
    }

    /// Returns true if retiring this much may overflow a sampled counter of retired events. Callers
    /// then retire block by block to find the one that overflows.
    #[inline(always)]
    pub fn may_overflow(&self, instructions: u32, loads: u32, stores: u32) -> bool {
        let sum = u64::from(instructions) + u64::from(loads) + u64::from(stores);
        self.samples_retired && self.fuse < sum as i64
    }

    /// Counts a [split](catalogue::SPLITS) of which [both parts hit](crate::Touches::touch_split).
    pub fn count_split(&mut self) {
        self.counts[SPLITS] += 1;
        self.extra_lookups += 1;
        self.fuse -= 1;
    }

    /// Counts a line of an access beyond its first.
    pub(crate) fn count_further(&mut self, second: bool) {
        self.counts[SPLITS] += u64::from(second);
        self.extra_lookups += 1;
        self.fuse -= 1;
    }

    /// Returns true if splits are sampled. Then only [`Core::access`] may handle those that hit.
    pub fn samples_splits(&self) -> bool {
        self.samples_splits
    }

    /// Prefetches the sets that [`Core::supply`] will use into the host's cache.
    // Rejected: prefetching the last level's set only. The model took 2 to 7 % less time for the
    // words of xz, but recordings of sort took 5 % longer. Also rejected: prefetching the last
    // level's set only after a miss of the second level, with sets aligned to the host's cache
    // lines. xz took 1 % longer, gzip 3 % and bzip2 7 %.
    #[inline(always)]
    pub fn expect(&self, shared: &SharedLevels, addr: u64, missed: Missed) {
        if missed.page() {
            self.stlb.expect(self.first.page_of(addr));
        }
        if missed.line().is_some() {
            self.l2.expect(tag_of(addr));
            shared.llc.expect(tag_of(addr) | self.space_bits);
        }
    }

    /// Supplies an access within a line with what it [missed](Missed) in the first level. Time
    /// passes, and counters may overflow.
    // Inlined so that the outcome is written where the caller reads it. Copying it costs the host a
    // tenth of a second-level hit.
    #[inline(always)]
    pub fn supply(
        &mut self,
        shared: &mut SharedLevels,
        missed: Missed,
        addr: u64,
        size: u32,
        kind: AccessKind,
    ) -> AccessOutcome {
        let access = LineAccess {
            addr,
            size,
            kind,
            bytes: LineBytes::of(addr, size, kind),
        };
        let mut out = AccessOutcome::default();
        self.supply_line(shared, missed, &access, &mut ProgramOrder, &mut out);
        out
    }

    /// As [`Core::supply`], for an access that stands for others of its line and begins in this
    /// order. The outcome replaces `out`.
    // A result would be copied, and the host waits until narrow stores reach its cache before it
    // loads them as wide ones. That took a tenth of the time of recordings of gzip.
    #[inline(always)]
    pub fn supply_line(
        &mut self,
        shared: &mut SharedLevels,
        missed: Missed,
        access: &LineAccess,
        order: &mut impl LoadOrder,
        out: &mut AccessOutcome,
    ) {
        let &LineAccess {
            addr,
            size,
            kind,
            bytes,
        } = access;
        *out = self.costs.plain_hit;
        out.first_use = missed.first_use();
        let mut load = LoadTime::new(order, self.stalled);
        let cycles = if missed.page() {
            self.translate_below(addr, kind, &mut load, out)
        } else {
            0
        };
        let stores = missed.stores();
        if let Some(left) = missed.line() {
            let line_use = LineUse { stores, bytes };
            let tag = tag_of(addr);
            self.miss(shared, tag, left, kind, line_use, &mut load, out);
        } else if missed.watched() {
            let line_use = LineUse { stores, bytes };
            self.use_watched(shared, tag_of(addr), line_use, out);
        }
        load.note(self);
        out.latency_cycles += cycles;
        self.sample(addr, size, kind, out);
    }

    /// Performs an access completely: translation, each of its lines, evictions, time and sampling.
    /// An access of 0 bytes counts as one byte, and an unknown kind as a load.
    pub fn access(
        &mut self,
        shared: &mut SharedLevels,
        addr: u64,
        size: u32,
        kind: AccessKind,
    ) -> AccessOutcome {
        if Self::crosses_line(addr, size) {
            return self.access_lines(shared, addr, size, kind);
        }
        let missed = self.touches().take(addr, stores(kind));
        if missed.is_nothing() {
            return self.costs.plain_hit;
        }
        self.supply(shared, missed, addr, size, kind)
    }

    #[inline(never)]
    fn access_lines(
        &mut self,
        shared: &mut SharedLevels,
        addr: u64,
        size: u32,
        kind: AccessKind,
    ) -> AccessOutcome {
        let mut out = self.costs.plain_hit;
        let last = addr.wrapping_add(u64::from(size.max(1) - 1));
        let translation_cycles = self.translate_all(addr, last, kind, &mut out);
        self.take_all(shared, addr, last, kind, &mut out);
        out.latency_cycles += translation_cycles;
        self.sample(addr, size, kind, &mut out);
        out
    }

    pub(crate) fn translate_all(
        &mut self,
        addr: u64,
        last: u64,
        kind: AccessKind,
        out: &mut AccessOutcome,
    ) -> u32 {
        let page_bytes = self.first.page_bytes();
        let pages = (last / page_bytes).wrapping_sub(addr / page_bytes) & (u64::MAX / page_bytes);
        let (mut cycles, mut before) = (0, None);
        for page in 0..=pages {
            let at = addr.wrapping_add(page * page_bytes);
            // Several steps may stay in one huge page.
            let page = self.first.page_of(at) >> PAGE_BYTES.trailing_zeros();
            if before != Some(page) {
                cycles += self.translate(at, kind, out);
                before = Some(page);
            }
        }
        cycles
    }

    fn take_all(
        &mut self,
        shared: &mut SharedLevels,
        addr: u64,
        last: u64,
        kind: AccessKind,
        out: &mut AccessOutcome,
    ) {
        let line_bytes = u64::from(LINE_BYTES);
        let extra = (last / line_bytes).wrapping_sub(addr / line_bytes) & (u64::MAX / line_bytes);
        self.counts[SPLITS] += u64::from(extra > 0);
        self.extra_lookups += extra;
        self.fuse -= extra as i64;
        let store = stores(kind);
        for line in 0..=extra {
            // Address of the access's first byte in this line, and the number of its bytes there.
            let first = addr.max(addr.wrapping_add(line * line_bytes) & !(line_bytes - 1));
            let size = (last.wrapping_sub(first) + 1).min(line_bytes - first % line_bytes);
            let tag = tag_of(first);
            let line_use = LineUse {
                stores: store,
                bytes: LineBytes::of(first, size as u32, kind),
            };
            let stamp = self.first.next_line_stamp();
            match self.first.l1d.reuse::<Portable>(tag, store, stamp) {
                Reuse::Held => {}
                Reuse::Reported { watched, first } => {
                    out.first_use |= first;
                    if watched {
                        self.use_watched(shared, tag, line_use, out);
                    }
                }
                Reuse::Absent => {
                    let left = self.first.l1d.fill::<Portable>(tag, store, stamp);
                    let mut order = ProgramOrder;
                    let mut load = LoadTime::new(&mut order, self.stalled);
                    self.miss(shared, tag, left, kind, line_use, &mut load, out);
                }
            }
        }
    }

    #[inline(always)]
    pub(crate) fn sample(
        &mut self,
        addr: u64,
        size: u32,
        kind: AccessKind,
        out: &mut AccessOutcome,
    ) {
        if self.sampler.is_due(&self.counts) {
            let access = SampledAccess {
                addr,
                size,
                kind,
                latency_cycles: out.latency_cycles,
                source: out.source,
            };
            out.overflow = self.record(&access, out);
        }
    }

    /// Records overflows. Returns true if any are pending.
    #[inline(never)]
    fn record(&mut self, access: &SampledAccess, out: &mut AccessOutcome) -> bool {
        let instructions = self.retired.instructions;
        if let Some(mut courier) = self.courier.take() {
            courier.access(&mut self.courier_core(), instructions, access, out);
            self.courier = Some(courier);
        } else {
            let now_ns = self.time_ns();
            self.sampler.check_access(&self.counts, access, now_ns);
        }
        self.fuse = -1;
        self.sampler.is_pending()
    }

    fn courier_core(&mut self) -> CourierCore<'_> {
        CourierCore {
            moving: self.retired.work(&self.costs),
            base: &mut self.base,
            counts: &mut self.counts,
            stalled: &mut self.stalled,
            stalled_by_cause: &mut self.stalled_by_cause,
            pipe_free: &mut self.pipe_free,
            clock: self.clock,
            pending: self.sampler.pending_mut(),
        }
    }

    /// Returns the cost and losses of delivery, unless it is ideal.
    pub fn delivered(&self) -> Option<Delivered> {
        self.courier.as_ref().map(|courier| courier.done())
    }

    /// Number of instructions so far.
    pub(crate) fn instructions_retired(&self) -> u64 {
        self.retired.instructions
    }

    /// Returns the time in millicycles since virtual time zero.
    pub(crate) fn now(&self) -> u64 {
        self.time_after(&self.retired)
    }

    fn time_after(&self, retired: &Retired) -> u64 {
        self.base + retired.work(&self.costs) + self.stalled
    }

    /// Returns the virtual time in nanoseconds.
    pub fn time_ns(&self) -> u64 {
        self.clock.ns(self.now())
    }

    /// Advances the clock to `time_ns` without counting cycles, as for a thread that waits. A time
    /// in the past has no effect. A [`Tick`] spans the wait only if it ends in the interval in
    /// which it begins.
    pub fn wait_until(&mut self, time_ns: u64) {
        let (now_ns, counts) = (self.time_ns(), self.counts());
        if let Some(series) = &mut self.series
            && time_ns > now_ns
        {
            series.wait(now_ns, time_ns, &counts);
        }
        let wait = self.clock.millicycles(time_ns).saturating_sub(self.now());
        self.base += wait;
        self.idle += wait;
        if wait > 0 {
            self.end_loads();
        }
        self.fuse = -1;
    }

    /// Sets the clock of a core that has not executed anything.
    pub fn begin_at(&mut self, time_ns: u64) {
        self.base = self.clock.millicycles(time_ns);
        if let Some(series) = &mut self.series {
            series.begin_at(time_ns);
        }
    }

    /// Returns the nanoseconds for which it [waited](Self::wait_until).
    pub fn idle_ns(&self) -> u64 {
        self.clock.ns(self.idle)
    }

    /// Returns the current counts of all events.
    pub fn counts(&self) -> Counts {
        self.counts_after(&self.retired)
    }

    fn counts_after(&self, retired: &Retired) -> Counts {
        let mut counts = self.counts;
        counts[INSTRUCTIONS] = retired.instructions;
        counts[CYCLES] = (self.time_after(retired) - self.base) / 1000;
        counts[LOADS] = retired.loads;
        counts[STORES] = retired.stores;
        counts[MODIFIES] = retired.modifies;
        for (event, millicycles) in STALLS.into_iter().zip(self.stalled_by_cause) {
            counts[event] = millicycles / 1000;
        }
        let lookups = retired.loads + retired.stores + self.extra_lookups;
        let others = retired.modifies + self.past_caches + counts[L1D_MISS];
        counts[L1D_HIT] = lookups.saturating_sub(others);
        Counts(counts)
    }

    /// Records what is due after `block` has retired. Returns true if anything is pending.
    ///
    /// Hits and series are read before the block is added. A block's accesses may be performed
    /// before or after it retires, and this order keeps both from running ahead of the accesses.
    #[cold]
    #[inline(never)]
    fn look_at_deadlines(&mut self, block: Retired) -> bool {
        let before = self.counts();
        let mut retired = self.retired;
        retired.add(block);
        let now = self.time_after(&retired);
        let now_ns = self.clock.ns(now);
        if let Some(series) = &mut self.series {
            series.check(now_ns, &before);
        }
        let mut after = self.counts_after(&retired);
        after.0[L1D_HIT] = before.0[L1D_HIT];
        self.sampler.check_block(&after, now_ns);
        let now = now + self.deliver_sums(&after, now);
        let pending = self.is_pending();
        self.fuse = if pending {
            -1
        } else {
            self.fuse_from(now, &after, block.loads + block.stores)
        };
        pending
    }

    /// Shows a courier what has retired by `now`. Returns the millicycles that it took.
    fn deliver_sums(&mut self, after: &Counts, now: u64) -> u64 {
        let Some(mut courier) = self.courier.take() else {
            return 0;
        };
        let base = self.base;
        let moving = now - base - self.stalled;
        let mut core = self.courier_core();
        core.moving = moving;
        courier.sums(&mut core, after);
        self.courier = Some(courier);
        self.base - base
    }

    /// Returns the progress that is possible before the nearest deadline. `unseen` accesses have
    /// retired but are not yet in the hits of `after`.
    fn fuse_from(&self, now: u64, after: &Counts, unseen: u64) -> i64 {
        let distance = |(event, distance): (EventId, u64)| match usize::from(event.0) {
            CYCLES => distance.saturating_sub(1).saturating_mul(1000) / self.costs.instruction,
            L1D_HIT => distance.saturating_sub(unseen),
            _ => distance,
        };
        let delivered = self.courier.iter().flat_map(|c| c.distances());
        let sampled = self.sampler.block_distances(after).chain(delivered);
        let sampled = sampled.map(distance).min();
        let tick = self.series.as_ref().map(|series| {
            let deadline = self.clock.millicycles(series.deadline_ns());
            deadline.saturating_sub(now) / self.costs.instruction
        });
        let nearest = sampled
            .into_iter()
            .chain(tick)
            .min()
            .unwrap_or(LONGEST_FUSE);
        nearest.min(LONGEST_FUSE) as i64 - 1
    }

    /// Stalls for `millicycles` because of `cause`, one of the first four [`STALLS`].
    pub(crate) fn stall(&mut self, cause: usize, millicycles: u64) {
        if millicycles >= self.long_stall {
            self.end_interval_before_stall();
        }
        self.stalled += millicycles;
        self.divide_stall(cause, millicycles);
        // At least as much as instructions that take this long.
        self.fuse -= (millicycles >> self.costs.instruction_shift) as i64 + 1;
    }

    /// Counts stalled time as `event`, one of [`STALLS`].
    pub(crate) fn divide_stall(&mut self, event: usize, millicycles: u64) {
        let sum = &mut self.stalled_by_cause[event - STALL_IRREGULAR];
        *sum += millicycles;
        // Otherwise they are computed when the counters are read.
        if self.samples_stalls {
            self.counts[event] = *sum / 1000;
        }
    }

    /// A core that comes late to a time at which other cores have used all memory bandwidth stalls
    /// until there is room. A tick across that stall would spread earlier counts over it.
    #[cold]
    fn end_interval_before_stall(&mut self) {
        let (now_ns, counts) = (self.time_ns(), self.counts());
        if let Some(series) = &mut self.series {
            series.stall(now_ns, &counts);
        }
    }

    fn is_pending(&self) -> bool {
        self.sampler.is_pending() || self.series.as_ref().is_some_and(CounterSeries::is_pending)
    }

    /// Changes the period of a sampled event. The next overflow is one new period away. Pending
    /// overflows keep their period. All accesses of retired blocks must have been performed.
    ///
    /// # Panics
    /// If the period is 0.
    pub fn set_period(&mut self, event: EventId, period: u64) {
        assert!(period > 0, "a period of 0 has no end");
        let counts = self.seen_until_now();
        match &mut self.courier {
            Some(courier) => courier.set_period(event, period),
            None => self.sampler.set_period(event, period, &counts),
        }
    }

    /// Pauses or resumes sampling. The remainder of a period is kept, counting continues, and
    /// earlier overflows stay pending. Unless delivery is ideal, a record in flight is lost. As for
    /// [`Core::set_period`], all accesses of retired blocks must have been performed.
    pub fn pause_sampling(&mut self, paused: bool) {
        let counts = self.seen_until_now();
        match &mut self.courier {
            Some(courier) => courier.pause(paused),
            None => self.sampler.pause(paused, &counts),
        }
    }

    /// Samples everything so far and returns the counts of all events.
    fn seen_until_now(&mut self) -> Counts {
        self.look_at_deadlines(Retired::default());
        self.fuse = -1;
        self.counts()
    }

    /// Removes and returns overflows, oldest first.
    pub fn take_overflows(&mut self, f: impl FnMut(SampledOverflow)) {
        self.sampler.take(f);
    }

    /// Removes and returns ticks, oldest first.
    pub fn take_ticks(&mut self, f: impl FnMut(Tick)) {
        if let Some(series) = &mut self.series {
            series.take(f);
        }
    }

    /// Records what is due and ends the current interval, so that the ticks add up to the counts.
    pub(crate) fn finish(&mut self) {
        self.look_at_deadlines(Retired::default());
        let (now_ns, counts) = (self.time_ns(), self.counts());
        if let Some(series) = &mut self.series {
            series.finish(now_ns, &counts);
        }
    }

    /// Returns the tags of all lines of the private caches as the shared cache has them. A line in
    /// both levels appears twice.
    pub(crate) fn tags_held(&self) -> impl Iterator<Item = u64> + '_ {
        let held = self.first.l1d.lines().chain(self.l2.lines());
        held.map(|word| tag_in(word) | self.space_bits)
    }

    /// Returns the tags of all dirty lines of the private caches as the shared cache has them. A
    /// line that is dirty in both levels appears twice.
    pub(crate) fn dirty_tags(&self) -> impl Iterator<Item = u64> + '_ {
        let dirty = self
            .first
            .l1d
            .lines()
            .chain(self.l2.lines())
            .filter(|w| w & DIRTY != 0);
        dirty.map(|word| tag_in(word) | self.space_bits)
    }
}

/// Returns true if an access of this kind makes its lines dirty.
#[inline(always)]
fn stores(kind: AccessKind) -> bool {
    matches!(kind, AccessKind::Store | AccessKind::Modify)
}
