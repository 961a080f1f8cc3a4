//! Prefetch instructions of the program.
//!
//! A prefetch translates its address, which no time is charged for, and fills its line into the
//! second level and the last-level cache. A line that the first or second level holds stays where it
//! is. A line that comes from farther away arrives after the latency of its level and its wait in the
//! queue to memory, and a load that needs it earlier stalls for the rest, at most as long as without
//! the prefetch.
//!
//! Real processors fill prefetched lines into the first level, too. Here the first use of the line is
//! a first-level miss and a second-level hit, which takes no time once the line has arrived. Filling
//! the first level would evict lines from it while it [runs ahead](crate::first_level) of the others.
//! `prefetcht1`, `prefetcht2` and `prefetchnta` fill the same levels as `prefetcht0`, and `prefetchw`
//! takes the line from no other core.

use memgauge_trace::{AccessKind, DataSource};

use crate::cache::{EMPTY, Found, PREFETCHED, Portable, tag_of};
use crate::events::*;
use crate::{Core, Missed, Outcome, Shared};

/// Number of prefetches whose arrival is known. Older ones have arrived: the core stalls when more
/// lines are queued for memory than it may have misses in flight.
const ARRIVALS: usize = 64;

/// Lines of the latest prefetches.
#[derive(Clone)]
pub(crate) struct Arrivals {
    latest: [Arrival; ARRIVALS],
    next: usize,
}

/// A line that a prefetch requested from below the second level.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    tag: u64,
    pub(crate) source: DataSource,
    /// Virtual time in millicycles.
    pub(crate) at: u64,
}

impl Arrivals {
    pub(crate) fn new() -> Arrivals {
        let never = Arrival {
            tag: EMPTY,
            source: DataSource::Unknown,
            at: 0,
        };
        Arrivals {
            latest: [never; ARRIVALS],
            next: 0,
        }
    }

    fn add(&mut self, arrival: Arrival) {
        self.latest[self.next % ARRIVALS] = arrival;
        self.next += 1;
    }

    /// Returns the latest arrival of a line.
    pub(crate) fn of(&self, tag: u64) -> Option<Arrival> {
        if self.next == 0 {
            return None;
        }
        let before = self.next % ARRIVALS;
        let oldest_first = self.latest[before..].iter().chain(&self.latest[..before]);
        oldest_first
            .rev()
            .find(|arrival| arrival.tag == tag)
            .copied()
    }
}

impl Core {
    /// Looks up the page and line of a prefetch in the first level, which receives the page. Unless
    /// [nothing is missing](Missed::is_nothing), [`Core::prefetch`] must follow as
    /// [`Core::supply`] follows the miss of an access.
    pub fn look_up_prefetch(&mut self, addr: u64) -> Missed {
        let page = self.first.page_of(addr);
        let stamp = self.first.next_stamp();
        let missed = self.look_up_prefetch_line(addr);
        match self.first.dtlb.take::<Portable>(page, stamp) {
            true => missed,
            false => missed.with_page(),
        }
    }

    /// As [`Core::look_up_prefetch`], without the page.
    pub fn look_up_prefetch_line(&mut self, addr: u64) -> Missed {
        match self.first.l1d.has(tag_of(addr)) {
            true => Missed::NOTHING,
            false => Missed::of_line(EMPTY),
        }
    }

    /// Prefetches the line of `addr`.
    pub fn prefetch(&mut self, shared: &mut Shared, missed: Missed, addr: u64) -> Outcome {
        let mut out = self.outcome_past_caches();
        if missed.page() {
            // As for a store, which does not stall either.
            self.translate_below(addr, AccessKind::Store, &mut out);
        }
        let tag = tag_of(addr);
        if missed.line().is_some() && !self.l2.holds(tag) {
            self.request(shared, tag, &mut out);
        }
        self.sample(addr, 1, AccessKind::Load, &mut out);
        out
    }

    fn request(&mut self, shared: &mut Shared, tag: u64, out: &mut Outcome) {
        self.counts[PREFETCHES] += 1;
        if let Found::Miss(left) = self.l2.take(tag, PREFETCHED, 0) {
            self.leave_l2(shared, left, out);
        }
        let now = self.now();
        let (source, waited) = if self.fill_llc(shared, tag, 0, out) {
            (DataSource::Llc, 0)
        } else {
            self.read_dram(out);
            (DataSource::Dram, self.transfer_posted(shared, out))
        };
        let latency = u64::from(self.costs.latency[source as usize]) * 1000;
        self.arrivals.add(Arrival {
            tag,
            source,
            at: now + waited + latency,
        });
    }
}
