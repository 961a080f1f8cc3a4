//! One core: what a thread's instructions and accesses are fed to.

use memgauge_trace::{AccessKind, EventId, catalogue};

use crate::cache::{Cache, DIRTY, SPACE_SHIFT, tag_in, tag_of};
use crate::clock::Clock;
use crate::events::*;
use crate::hierarchy::Costs;
use crate::l1d::L1d;
use crate::pmu::{Access, Courier, Delivered, Sampler, Series, Stage};
use crate::streams::Streams;
use crate::tlb::{Dtlb, STAMP_STEP, Stlb};
use crate::{
    Config, Counts, LINE_BYTES, Outcome, Overflow, PAGE_BYTES, PmuConfig, Prefetch, Shared, Tick,
};

/// An address in the last page of the user's half, which Linux maps for nobody.
/// Touching it changes nothing, so that a feed may have an entry without access.
pub const NO_ACCESS: u64 = 0x7fff_ffff_f000;

/// The longest stretch of progress between two looks at the deadlines.
const LONGEST_FUSE: u64 = 1 << 40;

/// A core with its private caches, TLBs, clock and counters.
pub struct Core {
    pub(crate) l1d: L1d,
    pub(crate) dtlb: Dtlb,
    /// Grows with every use of a line or page; orders them by time of use.
    stamp: u64,
    retired: Retired,
    /// Progress (instructions + loads + stores, and what stalls are worth) that
    /// can surely be made before any deadline; looked at when used up.
    fuse: i64,
    /// Line look-ups beyond one an access.
    extra_lookups: u64,
    /// Millicycles since virtual time zero at which it started, and waits.
    base: u64,
    /// Millicycles it stood still for data.
    pub(crate) stalled: u64,
    /// When its way to memory is free again.
    pub(crate) pipe_free: u64,
    /// Events counted at accesses; the others' places stay 0.
    pub(crate) counts: [u64; catalogue::COUNT],
    pub(crate) l2: Cache,
    pub(crate) stlb: Stlb,
    pub(crate) streams: Streams,
    pub(crate) costs: Costs,
    pub(crate) prefetch: Prefetch,
    pub(crate) place: usize,
    /// Its address space, where a tag holds it.
    pub(crate) space_bits: u64,
    clock: Clock,
    sampler: Sampler,
    /// Where delivery is not ideal.
    courier: Option<Box<Courier>>,
    /// Whether a split may be an overflow.
    samples_splits: bool,
    series: Option<Series>,
}

/// Accesses that hit the first-level cache and TLB where their fronts know line
/// and page. Such an access changes nothing but their recency and, for a store,
/// makes the line dirty.
///
/// Apart from [`Core`] so that a loop of them keeps its clock in a register.
pub struct Touches<'a> {
    l1d: &'a mut L1d,
    dtlb: &'a mut Dtlb,
    stamp: &'a mut u64,
    now: u64,
}

impl Touches<'_> {
    /// Performs the access if it is such a hit: then it is completely accounted
    /// for. If not, nothing was done and it must go to [`Core::access`], hit or
    /// not.
    ///
    /// All bytes must lie in the line of `addr` (see [`Core::crosses_line`]); a
    /// read-modify-write is a store here. One call serves any number of accesses
    /// in a row to one line, as a store if one of them is.
    #[inline(always)]
    pub fn touch(&mut self, addr: u64, store: bool) -> bool {
        let (page, line) = (self.dtlb.front_slot(addr), self.l1d.front_place(addr));
        let now = self.now + STAMP_STEP;
        if !self.l1d.is_at(addr, line) || !self.dtlb.stamp(page, now) {
            return false;
        }
        self.now = now;
        self.l1d.use_place(line, store, now);
        true
    }
}

impl Drop for Touches<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.stamp = self.now;
    }
}

/// What blocks bring.
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
        start_ns: u64,
        place: usize,
        space: u32,
    ) -> Self {
        let clock = Clock::new(config.frequency_hz);
        let base = clock.millicycles(start_ns);
        let courier = Courier::new(pmu);
        Core {
            l1d: L1d::new(&config.l1d),
            dtlb: Dtlb::new(&config.dtlb),
            stamp: 0,
            retired: Retired::default(),
            fuse: -1,
            extra_lookups: 0,
            base,
            stalled: 0,
            pipe_free: 0,
            counts: [0; catalogue::COUNT],
            l2: Cache::new(&config.l2),
            stlb: Stlb::new(&config.stlb),
            streams: Streams::new(),
            costs: Costs::new(config),
            prefetch: config.prefetch,
            place,
            space_bits: u64::from(space) << SPACE_SHIFT,
            clock,
            sampler: match &courier {
                Some(_) => Sampler::attentive(),
                None => Sampler::new(&pmu.samples),
            },
            courier,
            samples_splits: pmu.samples.iter().any(|s| usize::from(s.event.0) == SPLITS),
            series: pmu.interval_ns.map(|ns| Series::new(ns, start_ns)),
        }
    }

    /// Counts a block: its instructions, the operands they load and store, and
    /// how many of those are one operand both loaded and stored (counted in both
    /// too). Moves the clock. `true` if overflows or ticks wait to be taken, those
    /// of accesses since the last call included; it may not be said again.
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

    /// The fast path of [`Core::access`], for as many accesses as it can serve.
    #[inline(always)]
    pub fn touches(&mut self) -> Touches<'_> {
        Touches {
            now: self.stamp,
            l1d: &mut self.l1d,
            dtlb: &mut self.dtlb,
            stamp: &mut self.stamp,
        }
    }

    /// To be called when a [touch](Touches::touch) of [`NO_ACCESS`] says `false`;
    /// [`Core::access`] is not for it.
    pub fn show_no_access(&mut self) {
        self.l1d.show_no_access();
        self.dtlb.show_no_access();
    }

    /// One [`Touches::touch`].
    #[inline(always)]
    pub fn touch(&mut self, addr: u64, store: bool) -> bool {
        self.touches().touch(addr, store)
    }

    /// The same for an access of `size` bytes that lies in two lines, which is a
    /// [split](catalogue::SPLITS): both must hit so.
    pub fn touch_split(&mut self, addr: u64, size: u32, store: bool) -> bool {
        let last = addr.wrapping_add(u64::from(size) - 1);
        if self.samples_splits || !self.touch(addr, store) || !self.touch(last, store) {
            return false;
        }
        self.counts[SPLITS] += 1;
        self.extra_lookups += 1;
        self.fuse -= 1;
        true
    }

    #[inline(always)]
    pub(crate) fn next_stamp(&mut self) -> u64 {
        self.stamp += STAMP_STEP;
        self.stamp
    }

    /// Whether an access of `size` bytes reaches beyond the line of `addr`.
    #[inline(always)]
    pub fn crosses_line(addr: u64, size: u32) -> bool {
        (addr % u64::from(LINE_BYTES)) + u64::from(size) > u64::from(LINE_BYTES)
    }

    /// One access, in full: translation, every line, what leaves the caches for
    /// it, time and sampling. An access of 0 bytes counts as one of 1; an unknown
    /// kind as a load.
    // Inlined so that the outcome is written where the caller reads it: copying
    // it costs the host a tenth of a second-level hit.
    #[inline(always)]
    pub fn access(
        &mut self,
        shared: &mut Shared,
        addr: u64,
        size: u32,
        kind: AccessKind,
    ) -> Outcome {
        let mut out = self.costs.plain_hit;
        self.access_into(shared, addr, size, kind, &mut out);
        out
    }

    #[inline(never)]
    fn access_into(
        &mut self,
        shared: &mut Shared,
        addr: u64,
        size: u32,
        kind: AccessKind,
        out: &mut Outcome,
    ) {
        let (slot, stamp) = (self.dtlb.front_slot(addr), self.next_stamp());
        if Self::crosses_line(addr, size) || !self.dtlb.stamp(slot, stamp) {
            self.access_in_full(shared, addr, size, kind, out);
        } else if !self.l1d.reuse(tag_of(addr), stores(kind), stamp) {
            self.access_missing(shared, addr, size, kind, out);
        }
    }

    /// An access to one line the first level does not hold.
    #[inline(never)]
    fn access_missing(
        &mut self,
        shared: &mut Shared,
        addr: u64,
        size: u32,
        kind: AccessKind,
        out: &mut Outcome,
    ) {
        let tag = tag_of(addr);
        let left = self.l1d.fill(tag, stores(kind), self.stamp);
        self.miss(shared, tag, left, kind, out);
        self.sample(addr, size, kind, out);
    }

    #[inline(never)]
    fn access_in_full(
        &mut self,
        shared: &mut Shared,
        addr: u64,
        size: u32,
        kind: AccessKind,
        out: &mut Outcome,
    ) {
        shared.llc.expect(tag_of(addr) | self.space_bits);
        let last = addr.wrapping_add(u64::from(size.max(1) - 1));
        let translation_cycles = self.translate_all(addr, last, kind, out);
        self.take_all(shared, addr, last, kind, out);
        out.latency_cycles += translation_cycles;
        self.sample(addr, size, kind, out);
    }

    fn translate_all(&mut self, addr: u64, last: u64, kind: AccessKind, out: &mut Outcome) -> u32 {
        let pages = (last / PAGE_BYTES).wrapping_sub(addr / PAGE_BYTES) & (u64::MAX / PAGE_BYTES);
        let mut cycles = 0;
        for page in 0..=pages {
            cycles += self.translate(addr.wrapping_add(page * PAGE_BYTES), kind, out);
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
            let tag = tag_of(addr.wrapping_add(line * line_bytes));
            let stamp = self.next_stamp();
            if !self.l1d.reuse(tag, store, stamp) {
                let left = self.l1d.fill(tag, store, stamp);
                self.miss(shared, tag, left, kind, out);
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
            pipe_free: &mut self.pipe_free,
            clock: self.clock,
            pending: self.sampler.pending_mut(),
        }
    }

    /// What delivery cost and lost, where it is not ideal.
    pub fn delivered(&self) -> Option<&Delivered> {
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
    /// that waits; a time that has passed changes nothing.
    pub fn wait_until(&mut self, time_ns: u64) {
        self.base += self.clock.millicycles(time_ns).saturating_sub(self.now());
        self.fuse = -1;
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
        let lookups = retired.loads + retired.stores + self.extra_lookups;
        counts[L1D_HIT] = lookups.saturating_sub(retired.modifies + counts[L1D_MISS]);
        Counts(counts)
    }

    /// Takes what is due once `block` has retired; whether anything waits.
    ///
    /// Hits and series are read before the block is added: the block's accesses
    /// may be fed before or after it, and only so can neither run ahead of them.
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
            CYCLES => (distance.saturating_sub(1) * 1000) / self.costs.instruction,
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

    /// Stands still for so many millicycles.
    pub(crate) fn stall(&mut self, millicycles: u64) {
        self.stalled += millicycles;
        // At least as much as the instructions that would have taken this long.
        self.fuse -= (millicycles >> self.costs.instruction_shift) as i64 + 1;
    }

    fn is_pending(&self) -> bool {
        self.sampler.is_pending() || self.series.as_ref().is_some_and(Series::is_pending)
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

    /// Tags of all dirty lines of the private caches, as the shared cache knows
    /// them; a line dirty in both comes twice.
    pub(crate) fn dirty_tags(&self) -> impl Iterator<Item = u64> + '_ {
        let dirty = self
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
