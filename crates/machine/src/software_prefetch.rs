//! Prefetch instructions of the program.
//!
//! A prefetch fills its line into the second level and the last-level cache, and its page into the
//! TLBs. A line that the first or second level holds stays where it is. A line that comes from farther
//! away arrives after the latency of its level and its wait in the queue to memory. A load that needs
//! it earlier stalls for the rest, at most as long as without the prefetch. Events of look-ups count
//! loads and stores only, so a prefetch counts in none of them.
//!
//! Real processors fill prefetched lines into the first level, too. Here the first use of the line is
//! a first-level miss and a second-level hit, which takes no time once the line has arrived. Filling
//! the first level would evict lines from it while it [runs ahead](crate::first_level) of the others.
//! `prefetcht1`, `prefetcht2` and `prefetchnta` fill the same levels as `prefetcht0`, and `prefetchw`
//! takes the line from no other core.

use memgauge_trace::{AccessKind, DataSource};

use crate::cache::{EMPTY, LookupResult, PREFETCHED, Portable, tag_of};
use crate::events::*;
use crate::{AccessOutcome, Core, Missed, Prefetch, SharedLevels};

/// Number of requested lines whose arrival is known. Lines that were requested before them have
/// arrived: the core stalls when more lines are queued for memory than it may have misses in flight.
const KNOWN_LINES: usize = 64;

/// Lines that the latest prefetches requested.
#[derive(Clone)]
pub(crate) struct RequestedLines {
    latest: [RequestedLine; KNOWN_LINES],
    count: usize,
}

/// A line that a prefetch requested from below the second level.
#[derive(Clone, Copy)]
pub(crate) struct RequestedLine {
    tag: u64,
    pub(crate) source: DataSource,
    /// Virtual time in millicycles.
    pub(crate) arrives_at: u64,
}

impl RequestedLine {
    /// A line that arrived long ago.
    const ARRIVED: RequestedLine = RequestedLine {
        tag: EMPTY,
        source: DataSource::L2,
        arrives_at: 0,
    };
}

impl RequestedLines {
    pub(crate) fn new() -> RequestedLines {
        RequestedLines {
            latest: [RequestedLine::ARRIVED; KNOWN_LINES],
            count: 0,
        }
    }

    fn add(&mut self, line: RequestedLine) {
        self.latest[self.count % KNOWN_LINES] = line;
        self.count += 1;
    }

    fn find(&self, tag: u64) -> Option<RequestedLine> {
        let oldest = self.count % KNOWN_LINES;
        let oldest_first = self.latest[oldest..].iter().chain(&self.latest[..oldest]);
        oldest_first.rev().find(|line| line.tag == tag).copied()
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
    pub fn prefetch(
        &mut self,
        shared: &mut SharedLevels,
        missed: Missed,
        addr: u64,
    ) -> AccessOutcome {
        let mut out = self.outcome_past_caches();
        if missed.page() {
            self.stlb.take(self.first.page_of(addr));
        }
        let tag = tag_of(addr);
        if missed.line().is_some() && !self.l2.holds(tag) {
            self.request(shared, tag, &mut out);
        }
        self.sample(addr, 1, AccessKind::Load, &mut out);
        out
    }

    fn request(&mut self, shared: &mut SharedLevels, tag: u64, out: &mut AccessOutcome) {
        self.counts[PREFETCHES] += 1;
        if let LookupResult::Miss(left) = self.l2.take(tag, PREFETCHED, 0) {
            self.leave_l2(shared, left, out);
        }
        let now = self.now();
        let (source, waited) = if self.fill_llc(shared, tag, 0, out) {
            (DataSource::Llc, 0)
        } else {
            self.read_dram(out);
            (DataSource::Dram, self.transfer_prefetched(shared, out))
        };
        let latency = u64::from(self.costs.latency[source as usize]) * 1000;
        self.requested.add(RequestedLine {
            tag,
            source,
            arrives_at: now + waited + latency,
        });
    }

    /// Returns the prefetch of a prefetched line that the second level holds. `None` if a prefetcher
    /// may have fetched it.
    pub(crate) fn prefetch_of(&self, tag: u64) -> Option<RequestedLine> {
        if self.requested.count == 0 {
            return None;
        }
        let has_prefetchers = self.prefetch != Prefetch::default();
        let arrived = (!has_prefetchers).then_some(RequestedLine::ARRIVED);
        self.requested.find(tag).or(arrived)
    }
}
