//! Delivery of overflow records with cost and loss.
//!
//! The courier models the hardware between counters and records: it observes the counters and stops
//! the core to write a record. Events that are aborted or that pass during a stop are lost. Losses
//! are not a parameter. They follow from the instructions that the program executes around an
//! overflow. A loop of loads that all miss therefore loses most, and a pointer chase hardly any.
//!
//! **Position.** Delays are counted in instructions. The model receives instructions by block, but
//! accesses that may miss one by one. The position of an access is the number of instructions
//! retired so far, and at least one more than that of the previous access.
//!
//! **A stop.** Loads in flight are aborted and repeated, and then hit, because their lines arrive
//! in the meantime. The model has already performed such a load when it learns of the abort, so it
//! subtracts the load's demand events but not those of memory. A load that stalled for most of its
//! latency waited for another one's data and had not begun. The program's time advances during a
//! stop, but no event counts it, because it belongs to microcode or the kernel.

use memgauge_trace::{AccessKind, DataSource, EventId, catalogue};

use super::delivery::{Delivered, Delivery, Pipeline, Precise, Tagged};
use super::sampling::SampledAccess;
use super::{PmuConfig, SampledOverflow};
use crate::clock::Clock;
use crate::events::*;
use crate::{AccessOutcome, Counts};

/// The parts of a core that its courier reads and changes.
pub(crate) struct CourierCore<'a> {
    pub(crate) counts: &'a mut [u64; catalogue::COUNT],
    /// Millicycles that the core stalled.
    pub(crate) stalled: &'a mut u64,
    /// Stalled millicycles by cause, in the order of [`STALLS`].
    pub(crate) stalled_by_cause: &'a mut [u64; STALLS.len()],
    /// Time at which the path to memory is free.
    pub(crate) pipe_free: &'a mut u64,
    /// Start of the core in millicycles since virtual time zero, plus its waits and stops.
    pub(crate) base: &'a mut u64,
    /// Millicycles of its instructions.
    pub(crate) moving: u64,
    pub(crate) clock: Clock,
    pub(crate) pending: &'a mut Vec<SampledOverflow>,
}

impl CourierCore<'_> {
    fn now(&self) -> u64 {
        *self.base + self.moving + *self.stalled
    }
}

/// State of a counter between two records.
#[derive(Clone, Copy)]
enum CounterState {
    Counting,
    /// It has overflowed. The next event fires.
    Armed,
    /// It has fired. The core stops at the first access beyond a position and a time in
    /// millicycles.
    Firing {
        beyond: u64,
        from: u64,
        access: SampledAccess,
    },
    /// As `Firing`, for events that retire in sums. The number of events that will still pass.
    Passing {
        left: u64,
    },
}

struct CourierCounter {
    event: EventId,
    period: u64,
    by_access: bool,
    /// Count of the event at the last check.
    seen: u64,
    /// Events since the last record.
    value: u64,
    state: CounterState,
    /// Position of the next tag.
    tag: u64,
    /// Period at its last overflow, for the record.
    overflowed: u64,
    /// True while events are not counted.
    paused: bool,
}

/// Loads in flight when the core was stopped.
#[derive(Default)]
struct LoadsInFlight {
    lines: u32,
    until: u64,
    /// Millicycles of the stop during which their lines arrive.
    hidden: u64,
}

/// Records in the buffer.
#[derive(Default)]
struct RecordBuffer {
    records: u32,
    /// Time at which the interrupt handler begins, in millicycles.
    due: Option<u64>,
    /// Time at which the other buffer has been read.
    other_free: u64,
}

/// Delivers the overflows of a core.
pub(crate) struct Courier {
    delivery: Delivery,
    pipeline: Pipeline,
    counters: Vec<CourierCounter>,
    in_flight: LoadsInFlight,
    buffer: RecordBuffer,
    place: u64,
    /// Stalls of the core by cause at the last check.
    stalled_by_cause: [u64; STALLS.len()],
    /// Instructions at the last check of the sums.
    summed: u64,
    /// Long misses since the last stop.
    misses: u64,
    /// True if the last access missed, so that retirement waits for it.
    behind_miss: bool,
    /// Remainder of the last delay in thousandths of an instruction.
    carry: u64,
    random: u64,
    done: Delivered,
}

impl Courier {
    /// Returns `None` if delivery is ideal.
    pub(crate) fn new(pmu: &PmuConfig) -> Option<Box<Courier>> {
        let pipeline = *pmu.delivery.pipeline()?;
        let counter = |spec: &super::SampleSpec| CourierCounter {
            event: spec.event,
            period: spec.period,
            by_access: is_memory(spec.event),
            seen: 0,
            value: 0,
            state: CounterState::Counting,
            tag: spec.period,
            overflowed: spec.period,
            paused: false,
        };
        Some(Box::new(Courier {
            delivery: pmu.delivery,
            pipeline,
            counters: pmu.samples.iter().map(counter).collect(),
            in_flight: LoadsInFlight::default(),
            buffer: RecordBuffer::default(),
            place: 0,
            stalled_by_cause: [0; STALLS.len()],
            summed: 0,
            misses: 0,
            behind_miss: false,
            carry: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            done: Delivered::default(),
        }))
    }

    pub(crate) fn done(&self) -> Delivered {
        let counting = |c: &&CourierCounter| !matches!(c.state, CounterState::Passing { .. });
        Delivered {
            rest: self.counters.iter().filter(counting).map(|c| c.value).sum(),
            ..self.done
        }
    }

    /// Changes the period of an event, starting with a whole one. A record in flight keeps the
    /// period at which it overflowed.
    pub(crate) fn set_period(&mut self, event: EventId, period: u64) {
        let place = self.place;
        for counter in self.counters.iter_mut().filter(|c| c.event == event) {
            counter.period = period;
            counter.tag = place.saturating_add(period);
            if matches!(counter.state, CounterState::Counting) {
                counter.value = 0;
            }
        }
    }

    /// Pauses or resumes counters. A record in flight is lost, as on hardware.
    pub(crate) fn pause(&mut self, paused: bool) {
        let place = self.place;
        for counter in &mut self.counters {
            if paused && !matches!(counter.state, CounterState::Counting) {
                self.done.passed += counter.value;
                (counter.state, counter.value) = (CounterState::Counting, 0);
            }
            if counter.paused && !paused {
                // Nothing was tagged during the pause.
                counter.tag = counter.tag.max(place.saturating_add(counter.period));
            }
            counter.paused = paused;
        }
    }

    /// Handles an access that was not a plain hit.
    pub(crate) fn access(
        &mut self,
        core: &mut CourierCore<'_>,
        instructions: u64,
        access: &SampledAccess,
        out: &mut AccessOutcome,
    ) {
        self.place = instructions.max(self.place + 1);
        self.hand_over(core);
        if self.is_due(core.now()) {
            self.stop(core);
        }
        self.make_again(core, access.kind, out);
        self.behind_miss = out.l2_misses > 0;
        self.misses += u64::from(out.l2_misses);
        for at in 0..self.counters.len() {
            if self.counters[at].by_access {
                self.count(at, core, access);
            }
        }
        self.stalled_by_cause = *core.stalled_by_cause;
    }

    /// Handles retired instructions, including loads and stores.
    pub(crate) fn sums(&mut self, core: &mut CourierCore<'_>, after: &Counts) {
        let instructions = after[INSTRUCTIONS] - self.summed;
        self.summed = after[INSTRUCTIONS];
        self.place = self.place.max(self.summed);
        for at in 0..self.counters.len() {
            if !self.counters[at].by_access {
                self.count_sum(at, core, after, instructions);
            }
        }
        self.stalled_by_cause = *core.stalled_by_cause;
    }

    /// Returns the distance to the next deadline of each event that retires in sums.
    pub(crate) fn distances(&self) -> impl Iterator<Item = (EventId, u64)> + '_ {
        let sums = self.counters.iter().filter(|c| !c.by_access);
        sums.map(|c| match c.state {
            CounterState::Passing { left } => (c.event, left),
            _ => (c.event, c.period.saturating_sub(c.value)),
        })
    }

    fn is_due(&self, now: u64) -> bool {
        self.counters.iter().any(|c| c.is_due(self.place, now))
    }

    /// Writes the records that are due, which stops the core.
    fn stop(&mut self, core: &mut CourierCore<'_>) {
        let now = core.now();
        self.stall(core);
        for at in 0..self.counters.len() {
            if self.counters[at].is_due(self.place, now) {
                self.write(at, core);
            }
        }
    }

    fn stall(&mut self, core: &mut CourierCore<'_>) {
        let cycles = match &self.delivery {
            Delivery::Ideal => 0,
            Delivery::Precise(p) => p.assist_cycles,
            Delivery::Interrupt(p) => p.handler_cycles,
            Delivery::Tagged(p) => p.handler_cycles,
        };
        self.done.stops += 1;
        self.wait(core, u64::from(cycles) * 1000);
        let p = &self.pipeline;
        let grown = self.misses / u64::from(p.backlog_misses);
        let backlog = grown.min(u64::from(p.backlog_lines)) as u32;
        self.in_flight = LoadsInFlight {
            lines: p.fill_buffers + backlog,
            until: self.place + u64::from(p.reorder_window),
            hidden: u64::from(cycles) * 1000,
        };
        self.misses = 0;
    }

    fn wait(&mut self, core: &mut CourierCore<'_>, millicycles: u64) {
        *core.base += millicycles;
        self.done.millicycles += millicycles;
    }

    /// Writes the record of a counter that has fired.
    fn write(&mut self, at: usize, core: &mut CourierCore<'_>) {
        let counter = &mut self.counters[at];
        let access = match counter.state {
            CounterState::Firing { access, .. } => Some(access),
            _ => None,
        };
        counter.state = CounterState::Counting;
        let records = match self.delivery {
            Delivery::Interrupt(_) => counter.value / counter.overflowed,
            _ => 1,
        };
        match self.delivery {
            Delivery::Interrupt(_) => counter.value %= counter.overflowed,
            _ => counter.value = 0,
        }
        let record = record(counter, access, core.clock.ns(core.now()));
        for _ in 0..records {
            if self.has_room(core.now()) {
                self.done.records += 1;
                core.pending.push(record);
            } else {
                self.done.full += 1;
            }
        }
    }

    /// Reserves an entry of the buffer, if there is one.
    fn has_room(&mut self, now: u64) -> bool {
        let Delivery::Precise(precise) = &self.delivery else {
            return true;
        };
        if self.buffer.records == precise.buffer_records {
            return false;
        }
        self.buffer.records += 1;
        if self.buffer.records >= precise.threshold_records && self.buffer.due.is_none() {
            self.buffer.due = Some(now + u64::from(precise.latency_cycles) * 1000);
        }
        true
    }

    /// Runs the handler that reads a full buffer when it is due.
    fn hand_over(&mut self, core: &mut CourierCore<'_>) {
        let Delivery::Precise(precise) = self.delivery else {
            return;
        };
        if self.buffer.due.is_none_or(|due| core.now() < due) {
            return;
        }
        self.done.swaps += 1;
        let drain = u64::from(precise.drain_cycles) * u64::from(self.buffer.records) * 1000;
        let mut cost = u64::from(precise.swap_cycles) * 1000;
        if precise.drained_elsewhere {
            // The handler waits for the other buffer, because losing it would be worse.
            cost += self.buffer.other_free.saturating_sub(core.now());
            self.buffer.other_free = core.now() + cost + drain;
        } else {
            cost += drain;
        }
        self.wait(core, cost);
        self.buffer.records = 0;
        self.buffer.due = None;
    }

    /// Subtracts the counts of a load that was aborted and repeated.
    fn make_again(
        &mut self,
        core: &mut CourierCore<'_>,
        kind: AccessKind,
        out: &mut AccessOutcome,
    ) {
        if self.place > self.in_flight.until || kind == AccessKind::Store {
            return;
        }
        let mut stalls = *core.stalled_by_cause;
        for (stall, before) in stalls.iter_mut().zip(self.stalled_by_cause) {
            *stall -= before;
        }
        let stall: u64 = stalls[..STALL_CAUSES].iter().sum();
        let alone = stall * 2 > u64::from(out.latency_cycles) * 1000;
        if alone || (out.l1d_misses > 0 && self.in_flight.lines == 0) {
            return;
        }
        self.in_flight.lines = self
            .in_flight
            .lines
            .saturating_sub(u32::from(out.l1d_misses));
        self.done.cleared_lines += u64::from(out.l1d_misses);
        self.done.cleared_pages += u64::from(out.dtlb_misses);
        take_back(core.counts, out);
        let hidden = stall.min(self.in_flight.hidden);
        self.in_flight.hidden -= hidden;
        *core.stalled -= hidden;
        *core.pipe_free -= hidden.min(*core.pipe_free);
        let mut left = hidden;
        let mut take_stall = |event: usize, left: &mut u64| {
            let part = stalls[event].min(*left);
            *left -= part;
            let sum = &mut core.stalled_by_cause[event];
            *sum -= part;
            // Zero unless stalls are sampled.
            let count = &mut core.counts[STALLS[event]];
            *count = (*count).min(*sum / 1000);
        };
        (0..STALL_CAUSES - 1).for_each(|event| take_stall(event, &mut left));
        // The rest belongs to translation, which is in both groups.
        let mut of_lines = hidden - left;
        take_stall(STALL_CAUSES - 1, &mut left);
        (STALL_CAUSES..STALLS.len()).for_each(|event| take_stall(event, &mut of_lines));
        out.stalled.take_back(hidden);
    }

    /// Advances a counter of accesses.
    fn count(&mut self, at: usize, core: &CourierCore<'_>, access: &SampledAccess) {
        let counter = &mut self.counters[at];
        let now = core.counts[usize::from(counter.event.0) % catalogue::COUNT];
        let gained = now - counter.seen;
        counter.seen = now;
        if counter.paused {
            return;
        }
        match self.delivery {
            Delivery::Ideal => {}
            Delivery::Precise(precise) => self.count_precise(at, gained, access, &precise),
            Delivery::Interrupt(interrupt) => {
                let from = core.now() + u64::from(interrupt.skid_cycles) * 1000;
                self.count_through(at, gained, access, from);
            }
            Delivery::Tagged(tagged) => self.tag(at, gained, access, &tagged),
        }
    }

    /// Advances a counter that restarts with each record. Events in between are lost.
    fn count_precise(&mut self, at: usize, gained: u64, access: &SampledAccess, precise: &Precise) {
        let counter = &mut self.counters[at];
        match counter.state {
            CounterState::Counting => {
                counter.value += gained;
                if counter.value >= counter.period {
                    self.done.passed += counter.value - counter.period;
                    counter.overflowed = counter.period;
                    counter.state = CounterState::Armed;
                }
            }
            CounterState::Armed if gained > 0 => {
                self.done.passed += gained;
                let beyond = self.place + self.delay(precise);
                self.counters[at].state = CounterState::Firing {
                    beyond,
                    from: 0,
                    access: *access,
                };
            }
            CounterState::Firing { .. } => self.done.passed += gained,
            CounterState::Armed | CounterState::Passing { .. } => {}
        }
    }

    /// Advances a counter that continues until the interrupt arrives.
    fn count_through(&mut self, at: usize, gained: u64, access: &SampledAccess, from: u64) {
        let counter = &mut self.counters[at];
        counter.value += gained;
        if counter.value >= counter.period && matches!(counter.state, CounterState::Counting) {
            counter.overflowed = counter.period;
            counter.state = CounterState::Firing {
                beyond: self.place,
                from,
                access: *access,
            };
        }
    }

    /// Reports the tagged operation if it caused the event, otherwise drops it.
    fn tag(&mut self, at: usize, gained: u64, access: &SampledAccess, tagged: &Tagged) {
        let place = self.place;
        let counter = &mut self.counters[at];
        if counter.tag == place && gained > 0 && matches!(counter.state, CounterState::Counting) {
            counter.overflowed = counter.period;
            counter.state = CounterState::Firing {
                beyond: place,
                from: 0,
                access: *access,
            };
        }
        while self.counters[at].tag <= place {
            let jitter = u64::from(tagged.jitter);
            let wander = self.next_random() % (2 * jitter + 1);
            let counter = &mut self.counters[at];
            counter.tag += (counter.period + wander).saturating_sub(jitter).max(1);
        }
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Returns the instructions that retire between the event that fires and the assist.
    /// Instructions that waited for a miss retire together, others one by one.
    fn delay(&mut self, precise: &Precise) -> u64 {
        self.carry += self.delay_milli(precise);
        let whole = self.carry / 1000;
        self.carry %= 1000;
        whole
    }

    fn delay_milli(&self, precise: &Precise) -> u64 {
        let rate = match self.behind_miss {
            true => self.pipeline.retire_width,
            false => self.pipeline.load_ports,
        };
        u64::from(precise.delay_millicycles) * u64::from(rate)
    }

    /// Advances a counter of sums through all overflows in the sum.
    fn count_sum(
        &mut self,
        at: usize,
        core: &mut CourierCore<'_>,
        after: &Counts,
        instructions: u64,
    ) {
        let counter = &mut self.counters[at];
        let now = after.get(counter.event);
        let gained = now - counter.seen;
        counter.seen = now;
        if counter.paused {
            return;
        }
        let mut left = Some(gained);
        while let Some(some) = left {
            if let CounterState::Passing { .. } = self.counters[at].state {
                left = self.let_pass(at, some);
                if left.is_some() {
                    self.hand_over(core);
                    self.stall(core);
                    self.write(at, core);
                }
                continue;
            }
            left = self.next_overflow(at, some);
            if left.is_some() {
                let passing = self.passing(gained, instructions);
                self.counters[at].overflowed = self.counters[at].period;
                self.counters[at].state = CounterState::Passing { left: passing };
            }
        }
    }

    /// Counts up to the next overflow and returns the remainder of the sum.
    fn next_overflow(&mut self, at: usize, left: u64) -> Option<u64> {
        let counter = &mut self.counters[at];
        let need = counter.period - counter.value;
        counter.value += left.min(need);
        left.checked_sub(need)
    }

    /// Returns the number of events that pass between an overflow and the assist, in code with
    /// `events` per `instructions`.
    fn passing(&mut self, events: u64, instructions: u64) -> u64 {
        let Delivery::Precise(precise) = self.delivery else {
            return 0;
        };
        let milli = self.carry + self.delay_milli(&precise) * events / instructions.max(1);
        self.carry = milli % 1000;
        1 + milli / 1000
    }

    /// Drops the events before the assist and returns the remainder of the sum.
    fn let_pass(&mut self, at: usize, gained: u64) -> Option<u64> {
        let CounterState::Passing { left } = self.counters[at].state else {
            return Some(gained);
        };
        let lost = gained.min(left);
        self.done.passed += lost;
        self.counters[at].state = CounterState::Passing { left: left - lost };
        (lost == left).then_some(gained - lost)
    }
}

impl CourierCounter {
    fn is_due(&self, place: u64, now: u64) -> bool {
        matches!(self.state, CounterState::Firing { beyond, from, .. } if beyond < place && from <= now)
    }
}

fn take_back(counts: &mut [u64; catalogue::COUNT], out: &mut AccessOutcome) {
    let lines = [out.l1d_misses, out.l2_misses, out.llc_misses].map(u64::from);
    let pages = [out.dtlb_misses, out.walks].map(u64::from);
    counts[L1D_MISS] -= lines[0];
    counts[L1D_LOAD_MISS] -= lines[0];
    counts[L2_HIT] -= lines[0] - lines[1];
    counts[L2_MISS] -= lines[1];
    counts[LLC_HIT] -= lines[1] - lines[2];
    counts[LLC_MISS] -= lines[2];
    counts[DTLB_MISS] -= pages[0];
    counts[STLB_HIT] -= pages[0] - pages[1];
    counts[DTLB_WALK] -= pages[1];
    out.l1d_misses = 0;
    out.l2_misses = 0;
    out.llc_misses = 0;
    out.dtlb_misses = 0;
    out.walks = 0;
    out.source = DataSource::L1d;
}

fn record(
    counter: &CourierCounter,
    access: Option<SampledAccess>,
    time_ns: u64,
) -> SampledOverflow {
    SampledOverflow {
        event: counter.event,
        time_ns,
        period: counter.overflowed,
        addr: access.map(|a| a.addr),
        kind: access.map_or(AccessKind::Unknown, |a| a.kind),
        size_bytes: access.map_or(0, |a| u16::try_from(a.size).unwrap_or(u16::MAX)),
        latency_cycles: access.map_or(0, |a| a.latency_cycles),
        source: access.map_or(DataSource::Unknown, |a| a.source),
    }
}
