//! Loads that wait for their lines at the same time.
//!
//! An out-of-order core begins a load as soon as its address is known and there is room for its
//! instruction. While the core waits for a line, it therefore begins the later loads that do not
//! need that line, and hides their latency behind its own. This is the interval model of Karkhanis
//! and Smith ("A First-Order Superscalar Processor Model", ISCA 2004), load by load.

use crate::Core;

/// Maximum number of loads that are remembered: more than miss within the instructions in flight.
const MAX_LOADS: usize = 256;

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
    /// Identifies the load. `None` if no later load overlaps it.
    fn id(&self) -> Option<LoadId>;

    /// Returns when the load can begin. `in_flight` has the earlier loads that missed, oldest
    /// first, at least one.
    fn start(&mut self, in_flight: &[LoadInFlight]) -> LoadStart;
}

/// Each load begins after everything before it. For callers that know no dependences.
#[derive(Clone, Copy, Debug)]
pub struct ProgramOrder;

impl LoadOrder for ProgramOrder {
    fn id(&self) -> Option<LoadId> {
        None
    }

    fn start(&mut self, _: &[LoadInFlight]) -> LoadStart {
        LoadStart::InOrder
    }
}

/// The latest loads that missed.
#[derive(Default)]
pub(crate) struct LoadsInFlight {
    /// Oldest first.
    loads: Vec<LoadInFlight>,
    /// Number of loads at the front that are too old.
    over: usize,
}

impl LoadsInFlight {
    /// All loads are over.
    pub(crate) fn clear(&mut self) {
        self.loads.clear();
        self.over = 0;
    }

    fn add(&mut self, load: LoadInFlight) {
        if self.loads.len() == 2 * MAX_LOADS {
            self.loads.drain(..self.over.max(MAX_LOADS));
            self.over = 0;
        }
        self.loads.push(load);
    }

    /// Returns the loads of the last call of [`LoadsInFlight::within`].
    fn in_window(&self) -> &[LoadInFlight] {
        &self.loads[self.over..]
    }

    /// Returns the loads whose instructions are at most `window` before the instruction `now`.
    fn within(&mut self, now: u64, window: u64) -> &[LoadInFlight] {
        while let Some(load) = self.loads.get(self.over)
            && load.instruction + window < now
        {
            self.over += 1;
        }
        self.in_window()
    }
}

/// Page-table walks of loads.
pub(crate) struct PageWalks {
    /// Time at which each walker ends its latest walk.
    ends: Box<[u64]>,
    /// The walker that has been free for longest.
    next: usize,
}

impl PageWalks {
    pub(crate) fn new(walkers: u32) -> PageWalks {
        PageWalks {
            ends: vec![0; walkers as usize].into(),
            next: 0,
        }
    }

    /// Returns the end of a walk that takes `time` and begins at the earliest at `begins`.
    pub(crate) fn end_of(&mut self, begins: u64, time: u64) -> u64 {
        let end = &mut self.ends[self.next];
        *end = (*end).max(begins) + time;
        let ends_at = *end;
        self.next = (self.next + 1) % self.ends.len();
        ends_at
    }
}

impl Core {
    /// Forgets the loads in flight: their data have arrived.
    pub fn end_loads(&mut self) {
        self.in_flight.clear();
    }

    /// Returns the time at which the current instruction got its place among those in flight.
    ///
    /// The clock stands where the core has waited for all earlier loads. It fetched the instruction
    /// before it waited for the loads that are in flight together with it.
    pub(crate) fn dispatched(&mut self) -> u64 {
        let now = self.now();
        let instruction = self.instructions_retired();
        let in_flight = self.in_flight.within(instruction, self.costs.window);
        let oldest = in_flight.first();
        // The delivery of a sample may take back a part of a stall.
        oldest.map_or(now, |oldest| {
            now.saturating_sub(self.stalled.saturating_sub(oldest.stalled_before))
        })
    }

    /// Returns the time at which a load begins, at most now.
    #[inline(never)]
    pub(crate) fn start_of_load(&mut self, order: &mut impl LoadOrder) -> u64 {
        let now = self.now();
        let mut start = self.dispatched();
        let limit = self.costs.in_flight;
        let in_flight = self.in_flight.in_window();
        if in_flight.is_empty() {
            return now;
        }
        match order.start(in_flight) {
            LoadStart::InOrder => return now,
            LoadStart::After(needed) => {
                let needed = in_flight.get(needed);
                start = start.max(needed.map_or(now, |load| load.arrives));
            }
            LoadStart::AtOnce => {}
        }
        // A load takes the buffer of one that has arrived.
        if let Some(place) = in_flight.len().checked_sub(limit) {
            start = start.max(in_flight[place].arrives);
        }
        start.min(now)
    }

    /// Notes a load that missed. `stalled_before` is the time that the core had stalled before it.
    pub(crate) fn note_load(&mut self, id: LoadId, stalled_before: u64, arrives: u64) {
        if self.costs.window == 0 {
            return;
        }
        let instruction = self.instructions_retired();
        self.in_flight.add(LoadInFlight {
            id,
            instruction,
            stalled_before,
            arrives,
        });
    }
}
