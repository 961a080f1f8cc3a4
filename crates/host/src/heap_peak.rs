//! The most bytes of allocations that a process had in use, and those over time.
//!
//! Threads run ahead of each other on the host, and are read in turns. Taken in the order in which
//! they are read, two blocks that were in use at the same time can miss each other: four emulated
//! threads with 3 MiB each had peaks from 6 to 12 MiB in equal runs. So changes wait here, sorted by
//! time, until `MAX_PENDING` later ones have been read. A single thread is read in the order of its
//! time, and its changes in the order in which they were made.
//!
//! The history has at most `MAX_INTERVALS` intervals. When a run exceeds them, their length is
//! doubled. A site has an entry for each interval in which its bytes changed.

use std::collections::VecDeque;
use std::ops::AddAssign;

use memgauge_trace::{HeapUseRow, Pid};

/// Changes that wait for earlier ones: 2 MiB. Threads are at most a few turns apart in virtual
/// time, which is far less than so many allocations.
const MAX_PENDING: usize = 1 << 16;

/// Maximum number of intervals of the history: a few for each column of a terminal.
const MAX_INTERVALS: u64 = 512;

/// Initial length of an interval: 1 µs, a history of half a millisecond.
const MIN_INTERVAL_NS: u64 = 1 << 10;

/// Bytes of allocations. If they are an estimate from samples, it has a variance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapAmount {
    /// Bytes.
    pub bytes: i64,
    /// Variance of the estimate, in bytes squared.
    pub variance: i64,
}

impl HeapAmount {
    /// An exact number of bytes.
    pub fn exact(bytes: i64) -> HeapAmount {
        HeapAmount { bytes, variance: 0 }
    }
}

impl AddAssign for HeapAmount {
    fn add_assign(&mut self, other: HeapAmount) {
        self.bytes += other.bytes;
        self.variance = self.variance.saturating_add(other.variance);
    }
}

/// A change of the bytes that a site has in use.
#[derive(Clone, Copy, Debug)]
struct Change {
    time_ns: u64,
    site: u32,
    amount: HeapAmount,
}

/// Bytes in use from an interval on.
#[derive(Clone, Copy, Debug)]
struct Point {
    interval: u64,
    bytes: i64,
}

/// Bytes of a site.
#[derive(Clone, Debug, Default)]
struct SiteUse {
    in_use: HeapAmount,
    at_peak: HeapAmount,
    /// Number of the peak that `at_peak` belongs to.
    peak: u64,
    history: Vec<Point>,
}

/// Bytes in use, and the most that were.
#[derive(Clone, Debug)]
pub struct HeapPeak {
    /// By time; those of the same time in the order in which they were read.
    pending: VecDeque<Change>,
    applied_ns: u64,
    in_use: i64,
    peak: i64,
    /// How often the bytes in use were more than ever.
    peaks: u64,
    sites: Vec<SiteUse>,
    late: u64,
    /// True if the history is kept.
    has_history: bool,
    /// Start of the history.
    start_ns: Option<u64>,
    interval_ns: u64,
    /// The maximum in each interval with changes.
    history: Vec<Point>,
}

impl Default for HeapPeak {
    fn default() -> HeapPeak {
        HeapPeak {
            pending: VecDeque::new(),
            applied_ns: 0,
            in_use: 0,
            peak: 0,
            peaks: 0,
            sites: Vec::new(),
            late: 0,
            has_history: false,
            start_ns: None,
            interval_ns: MIN_INTERVAL_NS,
            history: Vec::new(),
        }
    }
}

impl HeapPeak {
    /// Creates one that also keeps the history.
    pub fn with_history() -> HeapPeak {
        HeapPeak {
            has_history: true,
            ..HeapPeak::default()
        }
    }

    /// A site has more bytes in use from a time on, or fewer.
    pub fn add(&mut self, time_ns: u64, site: u32, amount: HeapAmount) {
        if amount == HeapAmount::default() {
            return;
        }
        self.late += u64::from(time_ns < self.applied_ns);
        let time_ns = time_ns.max(self.applied_ns);
        let change = Change {
            time_ns,
            site,
            amount,
        };
        match self.pending.back() {
            Some(last) if last.time_ns > time_ns => {
                let at = self.pending.partition_point(|c| c.time_ns <= time_ns);
                self.pending.insert(at, change);
            }
            _ => self.pending.push_back(change),
        }
        if self.pending.len() > MAX_PENDING
            && let Some(first) = self.pending.pop_front()
        {
            self.apply(first);
        }
    }

    fn apply(&mut self, change: Change) {
        self.applied_ns = change.time_ns;
        let interval = match self.has_history {
            true => Some(self.interval_of(change.time_ns)),
            false => None,
        };
        let number = change.site as usize;
        if number >= self.sites.len() {
            self.sites.resize_with(number + 1, SiteUse::default);
        }
        let site = &mut self.sites[number];
        // Before they change: the bytes at the latest peak are known now.
        if site.peak < self.peaks {
            site.peak = self.peaks;
            site.at_peak = site.in_use;
        }
        site.in_use += change.amount;
        let before = self.in_use;
        self.in_use += change.amount.bytes;
        if let Some(interval) = interval {
            note(&mut site.history, interval, site.in_use.bytes, |_, new| new);
            // The interval begins with the bytes that were in use before.
            note(
                &mut self.history,
                interval,
                before.max(self.in_use),
                i64::max,
            );
        }
        if self.in_use > self.peak {
            self.peak = self.in_use;
            self.peaks += 1;
        }
    }

    /// Number of the interval of a time. Doubles the length of all intervals if there are too many.
    fn interval_of(&mut self, time_ns: u64) -> u64 {
        let since_ns = time_ns - *self.start_ns.get_or_insert(time_ns);
        while since_ns / self.interval_ns >= MAX_INTERVALS {
            self.interval_ns *= 2;
            halve(&mut self.history, i64::max);
            for site in &mut self.sites {
                halve(&mut site.history, |_, new| new);
            }
        }
        since_ns / self.interval_ns
    }

    /// The same with all that waits: no earlier change is to come.
    fn applied(&self) -> HeapPeak {
        let mut all = HeapPeak {
            pending: VecDeque::new(),
            sites: self.sites.clone(),
            history: self.history.clone(),
            ..*self
        };
        self.pending.iter().for_each(|&change| all.apply(change));
        all
    }

    /// The most bytes in use.
    pub fn bytes(&self) -> u64 {
        let (mut in_use, mut peak) = (self.in_use, self.peak);
        for change in &self.pending {
            in_use += change.amount.bytes;
            peak = peak.max(in_use);
        }
        peak.max(0).unsigned_abs()
    }

    /// What each of `sites` sites had in use when the process had most.
    pub fn by_site(&self, sites: usize) -> Vec<HeapAmount> {
        let all = self.applied();
        let at_peak = |site: &SiteUse| match site.peak < all.peaks {
            true => site.in_use,
            false => site.at_peak,
        };
        let mut at_peak: Vec<HeapAmount> = all.sites.iter().map(at_peak).collect();
        at_peak.resize(sites, HeapAmount::default());
        at_peak
    }

    /// Returns the history, for all sites together and for each. Empty unless it is kept.
    pub fn history(&self, pid: Pid) -> Vec<HeapUseRow> {
        let all = self.applied();
        let start_ns = all.start_ns.unwrap_or(0);
        let row = |site: Option<u32>, point: &Point| HeapUseRow {
            pid,
            time_ns: start_ns + point.interval * all.interval_ns,
            site,
            bytes: point.bytes.max(0).unsigned_abs(),
        };
        let total = all.history.iter().map(|point| row(None, point));
        let sites = (0..).zip(&all.sites).flat_map(|(number, site)| {
            let points = site.history.iter();
            points.map(move |point| row(Some(number), point))
        });
        total.chain(sites).collect()
    }

    /// Changes that were read too late to be put in order.
    pub fn late(&self) -> u64 {
        self.late
    }
}

/// Adds bytes of an interval, combined with those that it has.
fn note(history: &mut Vec<Point>, interval: u64, bytes: i64, combine: fn(i64, i64) -> i64) {
    match history.last_mut() {
        Some(last) if last.interval == interval => last.bytes = combine(last.bytes, bytes),
        _ => history.push(Point { interval, bytes }),
    }
}

/// Makes one interval of each two.
fn halve(history: &mut Vec<Point>, combine: fn(i64, i64) -> i64) {
    let old = std::mem::take(history);
    for point in old {
        note(history, point.interval / 2, point.bytes, combine);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against sums over all changes by time, whatever order the threads are read in.
        #[test]
        fn the_peak_is_that_of_virtual_time_whatever_is_read_first(
            blocks in proptest::collection::vec((0u64..100, 1u64..100, 1i64..50, 0u32..3), 1..40),
            order in any::<u64>(),
        ) {
            let mut changes = Vec::new();
            for &(start, length, bytes, site) in &blocks {
                changes.push((start * 2, site, bytes));
                changes.push(((start + length) * 2 + 1, site, -bytes));
            }
            let in_use = |until: u64, of: Option<u32>| -> i64 {
                let all = changes.iter().filter(|c| c.0 <= until && of.is_none_or(|s| s == c.1));
                all.map(|c| c.2).sum()
            };
            let most = changes.iter().map(|c| in_use(c.0, None)).max().unwrap_or(0);
            let mut shuffled: Vec<_> = changes.iter().zip(0u64..).collect();
            shuffled.sort_by_key(|&(_, n)| (n + 1).wrapping_mul(order | 1));
            let mut peak = HeapPeak::default();
            for (&(time_ns, site, bytes), _) in shuffled {
                peak.add(time_ns, site, HeapAmount::exact(bytes));
            }
            prop_assert_eq!(peak.bytes(), most as u64);
            let by_site: Vec<u64> =
                peak.by_site(3).iter().map(|of| of.bytes.max(0) as u64).collect();
            prop_assert_eq!(by_site.iter().sum::<u64>(), most as u64);
            let first = changes.iter().map(|c| c.0).filter(|&at| in_use(at, None) == most).min();
            let at = first.unwrap_or(0);
            for (site, bytes) in (0..).zip(by_site) {
                prop_assert_eq!(bytes as i64, in_use(at, Some(site)));
            }
            prop_assert_eq!(peak.late(), 0);
        }
    }

    #[test]
    fn what_comes_too_late_is_counted() {
        let mut peak = HeapPeak::default();
        for time_ns in 0..=MAX_PENDING as u64 {
            peak.add(1000 + time_ns, 0, HeapAmount::exact(1));
        }
        peak.add(10, 1, HeapAmount::exact(5));
        peak.add(20, 1, HeapAmount::exact(-5));
        assert_eq!(peak.late(), 2);
        assert_eq!(peak.bytes(), MAX_PENDING as u64 + 1);
    }

    proptest! {
        /// At every start of an interval, against sums over all earlier changes.
        #[test]
        fn the_history_has_each_sites_bytes_and_the_maximum_of_all(
            steps in proptest::collection::vec((1u64..5000, 1i64..100, 0u32..3), 1..300),
        ) {
            let mut peak = HeapPeak::with_history();
            let mut time_ns = 7;
            let mut changes = Vec::new();
            for (gap_ns, bytes, site) in steps {
                time_ns += gap_ns;
                let bytes = if bytes % 3 == 0 { -bytes } else { bytes };
                changes.push((time_ns, site, bytes));
                peak.add(time_ns, site, HeapAmount::exact(bytes));
            }
            let start_ns = changes[0].0;
            let interval_ns = peak.applied().interval_ns;
            prop_assert!((time_ns - start_ns) / interval_ns < MAX_INTERVALS);
            for row in peak.history(Pid(1)) {
                let end_ns = row.time_ns + interval_ns;
                let in_use = |until_ns: u64, of: Option<u32>| -> i64 {
                    let all = changes.iter().filter(|c| c.0 <= until_ns);
                    all.filter(|c| of.is_none_or(|site| site == c.1)).map(|c| c.2).sum()
                };
                let expected = match row.site {
                    Some(site) => in_use(end_ns - 1, Some(site)),
                    None => {
                        let inside = changes.iter().map(|c| c.0);
                        let inside = inside.filter(|&at| row.time_ns <= at && at < end_ns);
                        let most = inside.map(|at| in_use(at, None)).max().unwrap_or(0);
                        most.max(in_use(row.time_ns.saturating_sub(1), None))
                    }
                };
                prop_assert_eq!(row.bytes as i64, expected.max(0));
            }
        }
    }
}
