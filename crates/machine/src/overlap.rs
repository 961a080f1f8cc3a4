//! Loads that wait for their lines at the same time.
//!
//! An out-of-order core begins a load as soon as its address is known and there is room for its
//! instruction. While the core waits for a line, it therefore begins the later loads that do not
//! need that line, and hides their latency behind its own. This is the interval model of Karkhanis
//! and Smith ("A First-Order Superscalar Processor Model", ISCA 2004), load by load.

use crate::Core;

/// Maximum number of loads in flight that are remembered.
const MAX_LOADS: u32 = 256;

/// Identifies a load to the [`LoadOrder`] of a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadId {
    /// Its number, in an order of the caller's choice.
    pub number: u64,
    /// Number of the line that it loads.
    pub line: u64,
}

/// A load that missed, which later loads may overlap.
#[derive(Clone, Copy, Debug)]
pub struct LoadInFlight {
    /// Its identification by [`LoadOrder::id`].
    pub id: LoadId,
    /// Number of instructions that the core had retired.
    instruction: u64,
    /// Millicycles that the core had stalled before it.
    stalled_before: u64,
    /// Time at which its data arrive.
    arrives: u64,
}

/// When a load can begin, apart from the room for its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStart {
    /// It needs none of the loads in flight.
    AtOnce,
    /// It needs the data of the load in flight with this index.
    After(usize),
    /// It begins after everything before it.
    InOrder,
}

/// Knows what the address of a load depends on.
pub trait LoadOrder {
    /// Identifies the load.
    fn id(&self) -> LoadId;

    /// Returns when the load can begin. `in_flight` has the earlier loads that missed, oldest
    /// first, at least one.
    fn start(&mut self, in_flight: &[LoadInFlight]) -> LoadStart;
}

/// Each load begins after everything before it. For callers that know no dependences.
#[derive(Clone, Copy, Debug)]
pub struct ProgramOrder;

impl LoadOrder for ProgramOrder {
    fn id(&self) -> LoadId {
        LoadId {
            number: u64::MAX,
            line: u64::MAX,
        }
    }

    fn start(&mut self, _: &[LoadInFlight]) -> LoadStart {
        LoadStart::InOrder
    }
}

/// The latest loads that missed.
pub(crate) struct LoadsInFlight {
    /// Oldest first.
    loads: Vec<LoadInFlight>,
    /// Number of loads at the front that are over.
    over: usize,
    /// Maximum number that the core has in flight at a time.
    limit: usize,
}

impl LoadsInFlight {
    pub(crate) fn new(limit: u32) -> LoadsInFlight {
        LoadsInFlight {
            loads: Vec::new(),
            over: 0,
            limit: limit.min(MAX_LOADS) as usize,
        }
    }

    /// All loads are over.
    pub(crate) fn clear(&mut self) {
        self.loads.clear();
        self.over = 0;
    }

    fn add(&mut self, load: LoadInFlight) {
        if self.loads.len() - self.over == self.limit {
            self.over += 1;
        }
        // Moves the rest of the vector rarely.
        if self.over >= 2 * self.limit {
            self.loads.drain(..self.over);
            self.over = 0;
        }
        self.loads.push(load);
    }

    /// Returns the loads whose instructions are at most `window` before the instruction `now`.
    fn within(&mut self, now: u64, window: u64) -> &[LoadInFlight] {
        while let Some(load) = self.loads.get(self.over)
            && load.instruction + window < now
        {
            self.over += 1;
        }
        &self.loads[self.over..]
    }
}

impl Core {
    /// Forgets the loads in flight: their data have arrived.
    pub fn end_loads(&mut self) {
        self.in_flight.clear();
    }

    /// Returns the time at which a load begins, at most now.
    ///
    /// The clock stands where the core has waited for all earlier loads. Without these waits, the
    /// load would have begun earlier, at most as far as there is room for instructions in flight.
    #[inline(never)]
    pub(crate) fn start_of_load(&mut self, order: &mut impl LoadOrder) -> u64 {
        let now = self.now();
        let instruction = self.instructions_retired();
        let limit = self.in_flight.limit;
        let in_flight = self.in_flight.within(instruction, self.costs.window);
        let Some(oldest) = in_flight.first() else {
            return now;
        };
        let mut start = now.saturating_sub(self.stalled - oldest.stalled_before);
        match order.start(in_flight) {
            LoadStart::InOrder => return now,
            LoadStart::After(needed) => {
                let needed = in_flight.get(needed);
                start = start.max(needed.map_or(now, |load| load.arrives));
            }
            LoadStart::AtOnce => {}
        }
        // As many loads as possible are in flight, so this one takes the place of the oldest.
        if in_flight.len() == limit {
            start = start.max(oldest.arrives);
        }
        start.min(now)
    }

    /// Notes a load that missed. `stalled_before` is the time that the core had stalled before it.
    pub(crate) fn note_load(&mut self, id: LoadId, stalled_before: u64, arrives: u64) {
        let instruction = self.instructions_retired();
        self.in_flight.add(LoadInFlight {
            id,
            instruction,
            stalled_before,
            arrives,
        });
    }
}
