//! Sampled counters and their overflows.

use memgauge_trace::{AccessKind, DataSource, EventId, catalogue};

use super::SampleSpec;
use crate::events::*;
use crate::{Counts, events};

/// A counter overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledOverflow {
    /// The event whose counter overflowed.
    pub event: EventId,
    /// Virtual time.
    pub time_ns: u64,
    /// Number of events that this overflow stands for.
    pub period: u64,
    /// First byte of the access that caused the overflow. `None` for events that are counted by
    /// block (instructions, cycles, loads, stores, modifies, first-level hits).
    pub addr: Option<u64>,
    /// Kind of the access. Unknown if `addr` is `None`.
    pub kind: AccessKind,
    /// Number of accessed bytes, or 0 if `addr` is `None`.
    pub size_bytes: u16,
    /// Latency of the data in cycles, or 0 if `addr` is `None`.
    pub latency_cycles: u32,
    /// Level that delivered the data. Unknown if `addr` is `None`.
    pub source: DataSource,
}

/// Fields of a record about the access that caused the overflow.
#[derive(Clone, Copy)]
pub(crate) struct SampledAccess {
    pub(crate) addr: u64,
    pub(crate) size: u32,
    pub(crate) kind: AccessKind,
    pub(crate) latency_cycles: u32,
    pub(crate) source: DataSource,
}

struct SamplingCounter {
    event: EventId,
    /// How much a second-level hit can add to it.
    step: L2HitStep,
    period: u64,
    /// Value at which it overflows next. [`NEVER`] while it is paused.
    next: u64,
    /// Number of events before the next overflow, while it is paused.
    left: Option<u64>,
}

/// How much a second-level hit can add to a counter.
#[derive(Clone, Copy)]
enum L2HitStep {
    Zero,
    One,
    Any,
}

impl L2HitStep {
    fn of(event: EventId) -> L2HitStep {
        match usize::from(event.0) {
            L1D_MISS | L1D_LOAD_MISS | L1D_STORE_MISS | L1D_WRITEBACK | L2_HIT => L2HitStep::One,
            L1D_CONFLICT => L2HitStep::Any,
            event if STALLS.contains(&event) => L2HitStep::Any,
            _ => L2HitStep::Zero,
        }
    }
}

/// Value that no counter reaches.
const NEVER: u64 = u64::MAX;

/// All sampled events of a core.
pub(crate) struct Sampler {
    by_access: Vec<SamplingCounter>,
    by_block: Vec<SamplingCounter>,
    pending: Vec<SampledOverflow>,
    /// Number of second-level hits before a counter of `by_access` may overflow. Too low until
    /// [`Sampler::is_due`] has been called.
    l2_hits_left: u64,
}

impl Sampler {
    pub(crate) fn new(specs: &[SampleSpec]) -> Self {
        let counter = |s: &SampleSpec| SamplingCounter {
            event: s.event,
            step: L2HitStep::of(s.event),
            period: s.period,
            next: s.period,
            left: None,
        };
        let (by_access, by_block) = specs
            .iter()
            .map(counter)
            .partition(|c| events::is_memory(c.event));
        Sampler {
            by_access,
            by_block,
            pending: Vec::new(),
            l2_hits_left: 0,
        }
    }

    /// Creates a sampler that is always due and records nothing itself, for a courier, which must
    /// see every access that is not a plain hit. A core without a courier therefore pays nothing
    /// for the check.
    pub(crate) fn attentive() -> Self {
        let always = SamplingCounter {
            event: catalogue::INSTRUCTIONS,
            step: L2HitStep::Any,
            period: u64::MAX,
            next: 0,
            left: None,
        };
        Sampler {
            by_access: vec![always],
            by_block: Vec::new(),
            pending: Vec::new(),
            l2_hits_left: 0,
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut SamplingCounter> {
        self.by_access.iter_mut().chain(&mut self.by_block)
    }

    /// Changes the period of an event. The next overflow is one new period away.
    pub(crate) fn set_period(&mut self, event: EventId, period: u64, counts: &Counts) {
        self.l2_hits_left = 0;
        for counter in self.all().filter(|c| c.event == event) {
            counter.period = period;
            match &mut counter.left {
                Some(left) => *left = period,
                None => counter.next = counts.get(event).saturating_add(period),
            }
        }
    }

    /// Pauses or resumes counters.
    pub(crate) fn pause(&mut self, paused: bool, counts: &Counts) {
        self.l2_hits_left = 0;
        for counter in self.all() {
            let now = counts.get(counter.event);
            match (paused, counter.left) {
                (true, None) => {
                    counter.left = Some(counter.next.saturating_sub(now));
                    counter.next = NEVER;
                }
                (false, Some(left)) => {
                    counter.left = None;
                    counter.next = now.saturating_add(left);
                }
                _ => {}
            }
        }
    }

    /// Returns the pending records, to add further ones.
    pub(crate) fn pending_mut(&mut self) -> &mut Vec<SampledOverflow> {
        &mut self.pending
    }

    /// Returns true if an event that is counted by access has reached its period.
    #[inline(always)]
    pub(crate) fn is_due(&mut self, counts: &[u64; catalogue::COUNT]) -> bool {
        let left = self.by_access.iter().map(|c| c.l2_hits_left(counts));
        self.l2_hits_left = left.fold(NEVER, |least, hits| hits.min(least));
        self.by_access.iter().any(|c| c.is_due(counts))
    }

    /// Returns true if another second-level hit causes no overflow.
    #[inline(always)]
    pub(crate) fn ignores_l2_hit(&self) -> bool {
        self.l2_hits_left > 0
    }

    /// Notes a second-level hit that causes no overflow.
    #[inline(always)]
    pub(crate) fn ignore_l2_hit(&mut self) {
        self.l2_hits_left -= 1;
    }

    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Records the overflows that an access caused.
    pub(crate) fn check_access(
        &mut self,
        counts: &[u64; catalogue::COUNT],
        access: &SampledAccess,
        now_ns: u64,
    ) {
        for counter in &mut self.by_access {
            counter.advance(counts, &mut self.pending, |event, period| SampledOverflow {
                event,
                time_ns: now_ns,
                period,
                addr: Some(access.addr),
                kind: access.kind,
                size_bytes: u16::try_from(access.size).unwrap_or(u16::MAX),
                latency_cycles: access.latency_cycles,
                source: access.source,
            });
        }
    }

    /// Records the overflows of events that are counted by block.
    pub(crate) fn check_block(&mut self, counts: &Counts, now_ns: u64) {
        for counter in &mut self.by_block {
            counter.advance(counts, &mut self.pending, |event, period| SampledOverflow {
                event,
                time_ns: now_ns,
                period,
                addr: None,
                kind: AccessKind::Unknown,
                size_bytes: 0,
                latency_cycles: 0,
                source: DataSource::Unknown,
            });
        }
    }

    /// Returns the distance to the next overflow of each event that is counted by block.
    pub(crate) fn block_distances<'a>(
        &'a self,
        counts: &'a Counts,
    ) -> impl Iterator<Item = (EventId, u64)> + 'a {
        self.by_block
            .iter()
            .map(|c| (c.event, c.next.saturating_sub(counts.get(c.event))))
    }

    /// Removes and returns the records, oldest first.
    pub(crate) fn take(&mut self, f: impl FnMut(SampledOverflow)) {
        self.pending.drain(..).for_each(f);
    }
}

impl SamplingCounter {
    #[inline(always)]
    fn is_due(&self, counts: &[u64; catalogue::COUNT]) -> bool {
        counts[usize::from(self.event.0) % catalogue::COUNT] >= self.next
    }

    /// Returns the number of second-level hits before it may overflow.
    #[inline(always)]
    fn l2_hits_left(&self, counts: &[u64; catalogue::COUNT]) -> u64 {
        let count = counts[usize::from(self.event.0) % catalogue::COUNT];
        match self.step {
            L2HitStep::Zero => NEVER,
            L2HitStep::One => self.next.saturating_sub(count).saturating_sub(1),
            L2HitStep::Any => 0,
        }
    }

    fn advance(
        &mut self,
        counts: &[u64; catalogue::COUNT],
        pending: &mut Vec<SampledOverflow>,
        record: impl Fn(EventId, u64) -> SampledOverflow,
    ) {
        while self.is_due(counts) {
            self.next = self.next.saturating_add(self.period);
            pending.push(record(self.event, self.period));
        }
    }
}
