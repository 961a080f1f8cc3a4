//! One core: what a thread's instructions and accesses are fed to.

use memgauge_trace::{AccessKind, EventId, catalogue};

use crate::cache::{Cache, DIRTY, Portable, SPACE_SHIFT, tag_in, tag_of};
use crate::clock::Clock;
use crate::coherence::{LineBytes, LineUse, RecentPages, RegainedLine};
use crate::conflicts::Conflicts;
use crate::events::*;
use crate::first_level::FirstLevel;
use crate::hierarchy::Costs;
use crate::l1d::Reuse;
use crate::pmu::{Access, Courier, Delivered, Sampler, Series, Stage};
use crate::streams::Streams;
use crate::tlb::Stlb;
use crate::{
    Config, Counts, LINE_BYTES, Missed, Outcome, Overflow, PAGE_BYTES, PmuConfig, Prefetch, Shared,
    Tick,
};

/// The longest stretch of progress between two looks at the deadlines.
const LONGEST_FUSE: u64 = 1 << 40;
/// No latency is as long: only who finds memory full stalls for this long.
const LONG_STALL_NS: u64 = 10_000;

/// A core with its private caches, TLBs, clock and counters.
pub struct Core {
    pub(crate) first: FirstLevel,
    retired: Retired,
    /// Progress (instructions + loads + stores, and the equivalent of stalls) that can
    /// surely be made before any deadline; looked at when used up.
    fuse: i64,
    /// Line look-ups beyond one an access.
    extra_lookups: u64,
    /// Millicycles since virtual time zero at which it started, and waits.
    base: u64,
    /// Millicycles it waited; part of `base`.
    idle: u64,
    /// Millicycles it stood still for data.
    pub(crate) stalled: u64,
    /// The same by cause, in the order of [`STALLS`].
    stalled_by_cause: [u64; STALLS.len()],
    /// When its way to memory is free again.
    pub(crate) pipe_free: u64,
    /// Events counted at accesses; the others' places stay 0.
    pub(crate) counts: [u64; catalogue::COUNT],
    pub(crate) l2: Cache,
    pub(crate) stlb: Stlb,
    pub(crate) streams: Streams,
    pub(crate) conflicts: Conflicts,
    pub(crate) costs: Costs,
    pub(crate) prefetch: Prefetch,
    pub(crate) place: usize,
    /// Its address space, where a tag holds it.
    pub(crate) space_bits: u64,
    /// Its bit in the directory of coherence; 0 if it is not coherent with others.
    pub(crate) bit: u64,
    pub(crate) recent_pages: RecentPages,
    /// The stamp at which its turn began.
    pub(crate) turn_began: u64,
    /// Lines that it has regained in this turn and whose sharing is not known to be true.
    pub(crate) regained: Vec<RegainedLine>,
    clock: Clock,
    sampler: Sampler,
    /// Where delivery is not ideal.
    courier: Option<Box<Courier>>,
    /// Whether a split may be an overflow.
    samples_splits: bool,
    /// Whether stalled cycles of some cause are sampled.
    samples_stalls: bool,
    /// Some event that is counted as blocks retire is sampled.
    samples_retired: bool,
    series: Option<Series>,
    /// A stall this long, in millicycles, ends the interval under way where it begins.
    long_stall: u64,
}

/// Counts that blocks bring.
#[derive(Clone, Copy, Default)]
struct Retired {
    instructions: u64,
    loads: u64,
    stores: u64,
    modifies: u64,
}

impl Retired {
    #[inline(always)]
    fn add(&mut self, other: Retired) {
        self.instructions += other.instructions;
        self.loads += other.loads;
        self.stores += other.stores;
        self.modifies += other.modifies;
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
            base,
            idle: 0,
            stalled: 0,
            stalled_by_cause: [0; STALLS.len()],
            pipe_free: 0,
            counts: [0; catalogue::COUNT],
            l2: Cache::new(&config.l2),
            stlb: Stlb::new(&config.stlb),
            streams: Streams::new(costs.weight),
            conflicts: Conflicts::new(&config.l1d),
            costs,
            prefetch: config.prefetch,
            place,
            space_bits: u64::from(space) << SPACE_SHIFT,
            bit: 0,
            recent_pages: RecentPages::new(),
            turn_began: 0,
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
            series: pmu.interval_ns.map(|ns| Series::new(ns, start_ns)),
            long_stall: pmu
                .interval_ns
                .map_or(u64::MAX, |ns| clock.millicycles(ns.max(LONG_STALL_NS))),
        }
    }

    /// Counts a block: its instructions, the operands they load and store, and how many
    /// of those are one operand both loaded and stored (counted in both too). Moves the
    /// clock. `true` if overflows or ticks wait to be taken, those of accesses since
    /// the last call included; it may not be said again.
    #[inline(always)]
    pub fn retire(&mut self, instructions: u32, loads: u32, stores: u32, modifies: u32) -> bool {
        let block = Retired {
            instructions: u64::from(instructions),
            loads: u64::from(loads),
            stores: u64::from(stores),
            modifies: u64::from(modifies),
        };
        self.fuse -= (block.instructions + block.loads + block.stores) as i64;
        let pending = self.fuse < 0 && self.look_at_deadlines(block);
        self.retired.add(block);
        pending
    }

    /// Whether retiring so much may overflow a sampled counter of what retires. Who does
    /// so block by block then learns at which one.
    #[inline(always)]
    pub fn may_overflow(&self, instructions: u32, loads: u32, stores: u32) -> bool {
        let sum = u64::from(instructions) + u64::from(loads) + u64::from(stores);
        self.samples_retired && self.fuse < sum as i64
    }

    /// Counts a [split](catalogue::SPLITS) whose [both parts
    /// hit](crate::Touches::touch_split).
    pub fn count_split(&mut self) {
        self.counts[SPLITS] += 1;
        self.extra_lookups += 1;
        self.fuse -= 1;
    }

    /// Counts a line of an access besides its first.
    pub(crate) fn count_further(&mut self, second: bool) {
        self.counts[SPLITS] += u64::from(second);
        self.extra_lookups += 1;
        self.fuse -= 1;
    }

    /// Whether a split that hits may be an overflow, so that it is one only of
    /// [`Core::access`].
    pub fn samples_splits(&self) -> bool {
        self.samples_splits
    }

    /// Tells the host that [`Core::supply`] will soon be called with this.
    // Rejected: asking for the last level's set only. The model took 2 to 7 % less time
    // for xz's words, but recording sort took 5 % longer. And: asking for the last level's
    // only where the second lacks the line, just before the supply, with sets that begin at
    // a line of the host: xz took 1 % longer, gzip 3 %, bzip2 7 %.
    #[inline(always)]
    pub fn expect(&self, shared: &Shared, addr: u64, missed: Missed) {
        if missed.page() {
            self.stlb.expect(self.first.page_of(addr));
        }
        if missed.line().is_some() {
            self.l2.expect(tag_of(addr));
            shared.llc.expect(tag_of(addr) | self.space_bits);
        }
    }

    /// The rest of an access within a line: what the first level [missed](Missed)
    /// is supplied from below; time passes and counters may overflow.
    // Inlined so that the outcome is written where the caller reads it: copying
    // it costs the host a tenth of a second-level hit.
    #[inline(always)]
    pub fn supply(
        &mut self,
        shared: &mut Shared,
        missed: Missed,
        addr: u64,
        size: u32,
        kind: AccessKind,
    ) -> Outcome {
        let bytes = LineBytes::of(addr, size, kind);
        self.supply_bytes(shared, missed, addr, size, kind, bytes)
    }

    /// The same where the access stands for others of its line too, all of whose bytes are given.
    #[inline(always)]
    pub fn supply_bytes(
        &mut self,
        shared: &mut Shared,
        missed: Missed,
        addr: u64,
        size: u32,
        kind: AccessKind,
        bytes: LineBytes,
    ) -> Outcome {
        let mut out = self.costs.plain_hit;
        let cycles = if missed.page() {
            self.translate_below(addr, kind, &mut out)
        } else {
            0
        };
        let stores = missed.stores();
        if let Some(left) = missed.line() {
            let line_use = LineUse { stores, bytes };
            self.miss(shared, tag_of(addr), left, kind, line_use, &mut out);
        } else if missed.watched() {
            let line_use = LineUse { stores, bytes };
            self.use_watched(shared, tag_of(addr), line_use, &mut out);
        }
        out.latency_cycles += cycles;
        self.sample(addr, size, kind, &mut out);
        out
    }

    /// One access, in full: translation, every line, what leaves the caches for
    /// it, time and sampling. An access of 0 bytes counts as one of 1; an unknown
    /// kind as a load.
    pub fn access(
        &mut self,
        shared: &mut Shared,
        addr: u64,
        size: u32,
        kind: AccessKind,
    ) -> Outcome {
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
        shared: &mut Shared,
        addr: u64,
        size: u32,
        kind: AccessKind,
    ) -> Outcome {
        let mut out = self.costs.plain_hit;
        let last = addr.wrapping_add(u64::from(size.max(1) - 1));
        let translation_cycles = self.translate_all(addr, last, kind, &mut out);
        self.take_all(shared, addr, last, kind, &mut out);
        out.latency_cycles += translation_cycles;
        self.sample(addr, size, kind, &mut out);
        out
    }

    fn translate_all(&mut self, addr: u64, last: u64, kind: AccessKind, out: &mut Outcome) -> u32 {
        let page_bytes = PAGE_BYTES << self.first.page_shift();
        let pages = (last / page_bytes).wrapping_sub(addr / page_bytes) & (u64::MAX / page_bytes);
        let mut cycles = 0;
        for page in 0..=pages {
            cycles += self.translate(addr.wrapping_add(page * page_bytes), kind, out);
        }
        cycles
    }

    fn take_all(
        &mut self,
        shared: &mut Shared,
        addr: u64,
        last: u64,
        kind: AccessKind,
        out: &mut Outcome,
    ) {
        let line_bytes = u64::from(LINE_BYTES);
        let extra = (last / line_bytes).wrapping_sub(addr / line_bytes) & (u64::MAX / line_bytes);
        self.counts[SPLITS] += u64::from(extra > 0);
        self.extra_lookups += extra;
        self.fuse -= extra as i64;
        let store = stores(kind);
        for line in 0..=extra {
            // The first byte of the access in this line, and the bytes from there to its last one.
            let first = addr.max(addr.wrapping_add(line * line_bytes) & !(line_bytes - 1));
            let size = (last.wrapping_sub(first) + 1).min(line_bytes - first % line_bytes);
            let tag = tag_of(first);
            let line_use = LineUse {
                stores: store,
                bytes: LineBytes::of(first, size as u32, kind),
            };
            let stamp = self.first.next_stamp();
            match self.first.l1d.reuse::<Portable>(tag, store, stamp) {
                Reuse::Held => {}
                Reuse::Watched => self.use_watched(shared, tag, line_use, out),
                Reuse::Absent => {
                    let left = self.first.l1d.fill::<Portable>(tag, store, stamp);
                    self.miss(shared, tag, left, kind, line_use, out);
                }
            }
        }
    }

    #[inline(always)]
    fn sample(&mut self, addr: u64, size: u32, kind: AccessKind, out: &mut Outcome) {
        if self.sampler.is_due(&self.counts) {
            let access = Access {
                addr,
                size,
                kind,
                latency_cycles: out.latency_cycles,
                source: out.source,
            };
            out.overflow = self.record(&access, out);
        }
    }

    /// Records overflows; whether any wait to be taken.
    #[inline(never)]
    fn record(&mut self, access: &Access, out: &mut Outcome) -> bool {
        let instructions = self.retired.instructions;
        if let Some(mut courier) = self.courier.take() {
            courier.access(&mut self.stage(), instructions, access, out);
            self.courier = Some(courier);
        } else {
            let now_ns = self.time_ns();
            self.sampler.check_access(&self.counts, access, now_ns);
        }
        self.fuse = -1;
        self.sampler.is_pending()
    }

    fn stage(&mut self) -> Stage<'_> {
        Stage {
            moving: self.retired.instructions * self.costs.instruction,
            base: &mut self.base,
            counts: &mut self.counts,
            stalled: &mut self.stalled,
            stalled_by_cause: &mut self.stalled_by_cause,
            pipe_free: &mut self.pipe_free,
            clock: self.clock,
            pending: self.sampler.pending_mut(),
        }
    }

    /// Cost and losses of delivery, where it is not ideal.
    pub fn delivered(&self) -> Option<Delivered> {
        self.courier.as_ref().map(|courier| courier.done())
    }

    /// Millicycles since virtual time zero.
    pub(crate) fn now(&self) -> u64 {
        self.time_after(&self.retired)
    }

    fn time_after(&self, retired: &Retired) -> u64 {
        self.base + retired.instructions * self.costs.instruction + self.stalled
    }

    /// Virtual time in nanoseconds.
    pub fn time_ns(&self) -> u64 {
        self.clock.ns(self.now())
    }

    /// Moves the clock on to `time_ns` without counting cycles, as for a thread
    /// that waits; a time that has passed changes nothing. No [`Tick`] spans the wait if
    /// it does not end in the interval it begins in.
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
        self.fuse = -1;
    }

    /// Sets the clock of a core to which nothing has been fed yet.
    pub fn begin_at(&mut self, time_ns: u64) {
        self.base = self.clock.millicycles(time_ns);
        if let Some(series) = &mut self.series {
            series.begin_at(time_ns);
        }
    }

    /// Nanoseconds it [waited](Self::wait_until).
    pub fn idle_ns(&self) -> u64 {
        self.clock.ns(self.idle)
    }

    /// All counters now.
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
        counts[L1D_HIT] = lookups.saturating_sub(retired.modifies + counts[L1D_MISS]);
        Counts(counts)
    }

    /// Takes what is due once `block` has retired; whether anything waits.
    ///
    /// Hits and series are read before the block is added. The block's accesses may be
    /// fed before or after it, and only so can neither run ahead of them.
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

    /// Lets a courier see what has retired by `now`; millicycles that took.
    fn deliver_sums(&mut self, after: &Counts, now: u64) -> u64 {
        let Some(mut courier) = self.courier.take() else {
            return 0;
        };
        let base = self.base;
        let moving = now - base - self.stalled;
        let mut stage = self.stage();
        stage.moving = moving;
        courier.sums(&mut stage, after);
        self.courier = Some(courier);
        self.base - base
    }

    /// Progress that can be made before the nearest deadline. `unseen` accesses
    /// are retired but not yet in the hits of `after`.
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
        // At least as much as the instructions that would have taken this long.
        self.fuse -= (millicycles >> self.costs.instruction_shift) as i64 + 1;
    }

    /// Counts stalled time as `event`, one of [`STALLS`].
    pub(crate) fn divide_stall(&mut self, event: usize, millicycles: u64) {
        let sum = &mut self.stalled_by_cause[event - STALL_IRREGULAR];
        *sum += millicycles;
        // Otherwise they are worked out when the counters are read.
        if self.samples_stalls {
            self.counts[event] = *sum / 1000;
        }
    }

    /// A core that comes late to a time in which others have used all that memory can move
    /// stalls until there is room. A tick over that would spread over it what was counted before.
    #[cold]
    fn end_interval_before_stall(&mut self) {
        let (now_ns, counts) = (self.time_ns(), self.counts());
        if let Some(series) = &mut self.series {
            series.stall(now_ns, &counts);
        }
    }

    fn is_pending(&self) -> bool {
        self.sampler.is_pending() || self.series.as_ref().is_some_and(Series::is_pending)
    }

    /// Gives a sampled event another period. The next overflow is a whole one away from
    /// here; those that wait to be taken keep theirs, and are to be taken. All that has
    /// retired has to be fed, with its accesses.
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

    /// Lets sampling rest, or go on: what is left of a period stays. Counts go on, and
    /// overflows from before are to be taken. Where delivery is not ideal, a record that is
    /// on its way is lost. As for [`Core::set_period`], all has to be fed.
    pub fn pause_sampling(&mut self, paused: bool) {
        let counts = self.seen_until_now();
        match &mut self.courier {
            Some(courier) => courier.pause(paused),
            None => self.sampler.pause(paused, &counts),
        }
    }

    /// All counters, once what they have come to so far is sampled.
    fn seen_until_now(&mut self) -> Counts {
        self.look_at_deadlines(Retired::default());
        self.fuse = -1;
        self.counts()
    }

    /// Moves overflows out, oldest first.
    pub fn take_overflows(&mut self, f: impl FnMut(Overflow)) {
        self.sampler.take(f);
    }

    /// Moves ticks out, oldest first.
    pub fn take_ticks(&mut self, f: impl FnMut(Tick)) {
        if let Some(series) = &mut self.series {
            series.take(f);
        }
    }

    /// Takes what is due and ends the interval under way; then the ticks add up
    /// to the counts.
    pub(crate) fn finish(&mut self) {
        self.look_at_deadlines(Retired::default());
        let (now_ns, counts) = (self.time_ns(), self.counts());
        if let Some(series) = &mut self.series {
            series.finish(now_ns, &counts);
        }
    }

    /// Tags of all lines of the private caches, as the shared cache knows them; a line in both comes
    /// twice.
    pub(crate) fn tags_held(&self) -> impl Iterator<Item = u64> + '_ {
        let held = self.first.l1d.lines().chain(self.l2.lines());
        held.map(|word| tag_in(word) | self.space_bits)
    }

    /// Tags of all dirty lines of the private caches, as the shared cache knows
    /// them; a line dirty in both comes twice.
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

/// Whether an access of a kind makes its lines dirty.
#[inline(always)]
fn stores(kind: AccessKind) -> bool {
    matches!(kind, AccessKind::Store | AccessKind::Modify)
}
