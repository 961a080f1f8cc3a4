//! Maximum number of bytes that a process had in use, and the bytes in use over time.
//!
//! Threads run ahead of each other on the host, and are read in turns. In this order, two blocks
//! that were in use at the same time can seem to follow one another. Four emulated threads with 3
//! MiB each had peaks from 6 to 12 MiB in equal runs. Changes therefore wait here, sorted by time,
//! until `MAX_PENDING` later ones have been read. A single thread is read in the order of its time,
//! and its changes in the order in which they were made.
//!
//! The history has at most `MAX_INTERVALS` intervals. When a run exceeds them, their length is
//! doubled. A site has an entry for each interval in which its bytes changed. When all sites together
//! have more than `MAX_POINTS` entries, the length is doubled, too.

use std::collections::VecDeque;
use std::ops::AddAssign;

use memgauge_trace::{HeapUseRow, Pid};

/// Maximum number of changes that wait for earlier ones, 2 MiB. In virtual time, threads are at
/// most a few turns apart, which have far fewer allocations.
const MAX_PENDING: usize = 1 << 16;

/// Maximum number of intervals of the history: a few for each column of a terminal.
const MAX_INTERVALS: u64 = 512;

/// Initial length of an interval: 1 µs, a history of half a millisecond.
const MIN_INTERVAL_NS: u64 = 1 << 10;

/// Maximum number of entries of all sites, 16 MiB. It is exceeded if the number of sites alone
/// exceeds half of it.
const MAX_POINTS: usize = 1 << 20;

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
struct SiteChange {
    time_ns: u64,
    site: u32,
    amount: HeapAmount,
}

/// Bytes in use from an interval on.
#[derive(Clone, Copy, Debug)]
struct IntervalBytes {
    interval: u64,
    bytes: i64,
}

/// Bytes in use in an interval with changes, of all sites.
#[derive(Clone, Copy, Debug)]
struct TotalPoint {
    interval: u64,
    /// Maximum in the interval, which begins with the bytes that were in use before.
    most: i64,
    /// Bytes in use at its end.
    last: i64,
}

/// Bytes of a site.
#[derive(Clone, Copy, Debug, Default)]
struct SiteUse {
    in_use: HeapAmount,
    at_peak: HeapAmount,
    /// Number of the peak that `at_peak` belongs to.
    peak: u64,
}

/// Bytes in use over time.
#[derive(Clone, Debug)]
struct History {
    start_ns: Option<u64>,
    interval_ns: u64,
    total: Vec<TotalPoint>,
    sites: Vec<Vec<IntervalBytes>>,
    /// Number of entries of `sites`.
    points: usize,
}

impl Default for History {
    fn default() -> History {
        History {
            start_ns: None,
            interval_ns: MIN_INTERVAL_NS,
            total: Vec::new(),
            sites: Vec::new(),
            points: 0,
        }
    }
}

impl History {
    /// Adds the bytes in use after a change.
    fn add(&mut self, change: &SiteChange, of_site: i64, before: i64, after: i64) {
        let interval = self.interval_of(change.time_ns);
        let number = change.site as usize;
        if number >= self.sites.len() {
            self.sites.resize_with(number + 1, Vec::new);
        }
        let site = &mut self.sites[number];
        match site.last_mut() {
            Some(last) if last.interval == interval => last.bytes = of_site,
            _ => {
                site.push(IntervalBytes {
                    interval,
                    bytes: of_site,
                });
                self.points += 1;
            }
        }
        match self.total.last_mut() {
            Some(last) if last.interval == interval => {
                last.most = last.most.max(after);
                last.last = after;
            }
            _ => self.total.push(TotalPoint {
                interval,
                most: before.max(after),
                last: after,
            }),
        }
    }

    /// Number of the interval of a time. Doubles the length of all intervals if there are too many.
    fn interval_of(&mut self, time_ns: u64) -> u64 {
        let since_ns = time_ns - *self.start_ns.get_or_insert(time_ns);
        // Intervals are powers of two, and a division takes longer than all else here.
        let interval = |ns: u64| since_ns >> ns.trailing_zeros();
        while interval(self.interval_ns) >= MAX_INTERVALS
            || self.points > MAX_POINTS.max(2 * self.sites.len())
        {
            self.double_intervals();
        }
        interval(self.interval_ns)
    }

    /// Makes one interval of each two.
    fn double_intervals(&mut self) {
        self.interval_ns *= 2;
        for site in &mut self.sites {
            site.iter_mut().for_each(|point| point.interval /= 2);
            site.reverse();
            // Keeps the last one of each interval.
            site.dedup_by_key(|point| point.interval);
            site.reverse();
            site.shrink_to_fit();
        }
        self.points = self.sites.iter().map(Vec::len).sum();
        self.total.iter_mut().for_each(|point| point.interval /= 2);
        self.total.dedup_by(|next, point| {
            let is_same = next.interval == point.interval;
            if is_same {
                point.most = point.most.max(next.most);
                point.last = next.last;
            }
            is_same
        });
    }

    /// Returns the rows of all sites together and of each site. All memory is out of use from
    /// `end_ns` on.
    fn rows(&self, pid: Pid, end_ns: u64) -> Vec<HeapUseRow> {
        let start_ns = self.start_ns.unwrap_or(0);
        let row = |site, interval: u64, bytes: i64| HeapUseRow {
            pid,
            time_ns: start_ns + interval * self.interval_ns,
            site,
            bytes: bytes.max(0).unsigned_abs(),
            resident_bytes: None,
        };
        let mut rows = Vec::new();
        let next = self.total.iter().skip(1).map(|point| point.interval);
        let next = next.chain([u64::MAX]);
        for (point, next) in self.total.iter().zip(next) {
            rows.push(row(None, point.interval, point.most));
            // Or the maximum would also hold in the intervals without changes that follow.
            if point.last < point.most && point.interval + 1 < next {
                rows.push(row(None, point.interval + 1, point.last));
            }
        }
        rows.extend(end_row(&rows, end_ns));
        for (site, points) in (0..).zip(&self.sites) {
            let points = points.iter();
            let of_site: Vec<HeapUseRow> = points
                .map(|point| row(Some(site), point.interval, point.bytes))
                .collect();
            let end = end_row(&of_site, end_ns);
            rows.extend(of_site);
            rows.extend(end);
        }
        rows
    }
}

/// The row that ends a history, if it needs one.
fn end_row(rows: &[HeapUseRow], end_ns: u64) -> Option<HeapUseRow> {
    let last = rows.last().filter(|last| last.bytes > 0)?;
    Some(HeapUseRow {
        // The end may be in the interval of the last change.
        time_ns: end_ns.max(last.time_ns + 1),
        bytes: 0,
        ..last.clone()
    })
}

/// Bytes in use, and the most that were.
#[derive(Clone, Debug, Default)]
pub struct HeapPeak {
    /// Changes by time. Changes at the same time are in the order in which they were read.
    pending: VecDeque<SiteChange>,
    applied_ns: u64,
    bytes: BytesInUse,
    late: u64,
    history: History,
}

/// Bytes in use after the changes so far.
#[derive(Clone, Debug, Default)]
struct BytesInUse {
    in_use: i64,
    peak: i64,
    /// How often the bytes in use were more than ever.
    peaks: u64,
    sites: Vec<SiteUse>,
}

impl BytesInUse {
    fn apply(&mut self, change: &SiteChange) {
        let number = change.site as usize;
        if number >= self.sites.len() {
            self.sites.resize(number + 1, SiteUse::default());
        }
        let site = &mut self.sites[number];
        // Before they change: the bytes at the latest peak are known now.
        if site.peak < self.peaks {
            site.peak = self.peaks;
            site.at_peak = site.in_use;
        }
        site.in_use += change.amount;
        self.in_use += change.amount.bytes;
        if self.in_use > self.peak {
            self.peak = self.in_use;
            self.peaks += 1;
        }
    }
}

impl HeapPeak {
    /// A site has more bytes in use from a time on, or fewer.
    pub fn add(&mut self, time_ns: u64, site: u32, amount: HeapAmount) {
        if amount == HeapAmount::default() {
            return;
        }
        self.late += u64::from(time_ns < self.applied_ns);
        let time_ns = time_ns.max(self.applied_ns);
        let change = SiteChange {
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

    fn apply(&mut self, change: SiteChange) {
        self.applied_ns = change.time_ns;
        let before = self.bytes.in_use;
        self.bytes.apply(&change);
        let of_site = self.bytes.sites[change.site as usize].in_use.bytes;
        self.history
            .add(&change, of_site, before, self.bytes.in_use);
    }

    /// The most bytes in use.
    pub fn bytes(&self) -> u64 {
        let (mut in_use, mut peak) = (self.bytes.in_use, self.bytes.peak);
        for change in &self.pending {
            in_use += change.amount.bytes;
            peak = peak.max(in_use);
        }
        peak.max(0).unsigned_abs()
    }

    /// Returns the bytes that each of `sites` sites had in use when the process had most.
    pub fn by_site(&self, sites: usize) -> Vec<HeapAmount> {
        // Includes all waiting changes, because no earlier change will come.
        let mut all = self.bytes.clone();
        self.pending.iter().for_each(|change| all.apply(change));
        let at_peak = |site: &SiteUse| match site.peak < all.peaks {
            true => site.in_use,
            false => site.at_peak,
        };
        let mut at_peak: Vec<HeapAmount> = all.sites.iter().map(at_peak).collect();
        at_peak.resize(sites, HeapAmount::default());
        at_peak
    }

    /// Returns the history of a process that ended at `end_ns`, for all sites together and for each.
    pub fn history(mut self, pid: Pid, end_ns: u64) -> Vec<HeapUseRow> {
        while let Some(change) = self.pending.pop_front() {
            self.apply(change);
        }
        self.history.rows(pid, end_ns)
    }

    /// Changes that were read too late to be put in order.
    pub fn late(&self) -> u64 {
        self.late
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
    fn late_changes_are_counted() {
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
            let mut peak = HeapPeak::default();
            let mut time_ns = 7;
            let mut changes = Vec::new();
            for (gap_ns, bytes, site) in steps {
                time_ns += gap_ns;
                let bytes = if bytes % 3 == 0 { -bytes } else { bytes };
                changes.push((time_ns, site, bytes));
                peak.add(time_ns, site, HeapAmount::exact(bytes));
            }
            let start_ns = changes[0].0;
            let mut all = peak.clone();
            let pending = std::mem::take(&mut all.pending);
            pending.into_iter().for_each(|change| all.apply(change));
            let interval_ns = all.history.interval_ns;
            prop_assert!((time_ns - start_ns) / interval_ns < MAX_INTERVALS);
            let after_ns = time_ns + 10 * interval_ns;
            let rows = peak.history(Pid(1), after_ns);
            let at = |at_ns: u64| {
                let total = rows.iter().filter(|row| row.site.is_none());
                total.rev().find(|row| row.time_ns <= at_ns).map_or(0, |row| row.bytes as i64)
            };
            // Between changes, the last maximum does not hold.
            for number in 0..(after_ns - start_ns).div_ceil(interval_ns) {
                let interval = start_ns + number * interval_ns;
                let interval = interval..(interval + interval_ns).min(after_ns);
                let until = |until_ns: u64| -> i64 {
                    changes.iter().filter(|c| c.0 <= until_ns).map(|c| c.2).sum()
                };
                let inside = changes.iter().map(|c| c.0).filter(|at| interval.contains(at));
                let most = inside.map(until).fold(until(interval.start - 1), i64::max);
                prop_assert_eq!(at(interval.end - 1), most.max(0));
            }
            prop_assert_eq!(at(after_ns), 0);
            for row in rows.into_iter().filter(|row| row.time_ns < after_ns) {
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
