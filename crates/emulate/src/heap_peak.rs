//! The most bytes of allocations that a process had in use, in virtual time.
//!
//! Threads run ahead of each other on the host, and are read in turns. Taken in the order in which
//! they are read, two blocks that were in use at the same virtual time can miss each other: four
//! threads with 3 MiB each had peaks from 6 to 12 MiB in equal runs. So changes wait here, sorted by
//! time, until [`MAX_PENDING`] later ones have been read. A single thread is read in the order of its
//! time, and its changes in the order in which they were made.

use std::collections::VecDeque;

/// Changes that wait for earlier ones: 1.5 MiB. Threads are at most a few turns apart in virtual
/// time, which is far less than so many allocations.
const MAX_PENDING: usize = 1 << 16;

/// A change of the bytes that a site has in use.
#[derive(Clone, Copy, Debug)]
struct Change {
    time_ns: u64,
    site: u32,
    bytes: i64,
}

/// Bytes of a site.
#[derive(Clone, Copy, Debug, Default)]
struct SiteUse {
    in_use: i64,
    at_peak: i64,
    /// Number of the peak that `at_peak` belongs to.
    peak: u64,
}

/// Bytes in use, and the most that were.
#[derive(Clone, Debug, Default)]
pub(super) struct HeapPeak {
    /// By time; those of the same time in the order in which they were read.
    pending: VecDeque<Change>,
    applied_ns: u64,
    in_use: i64,
    peak: i64,
    /// How often the bytes in use were more than ever.
    peaks: u64,
    sites: Vec<SiteUse>,
    late: u64,
}

impl HeapPeak {
    /// A site has more bytes in use from a time on, or fewer.
    pub(super) fn add(&mut self, time_ns: u64, site: u32, bytes: i64) {
        if bytes == 0 {
            return;
        }
        self.late += u64::from(time_ns < self.applied_ns);
        let time_ns = time_ns.max(self.applied_ns);
        let change = Change {
            time_ns,
            site,
            bytes,
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
        site.in_use += change.bytes;
        self.in_use += change.bytes;
        if self.in_use > self.peak {
            self.peak = self.in_use;
            self.peaks += 1;
        }
    }

    /// The same with all that waits: no earlier change is to come.
    fn applied(&self) -> HeapPeak {
        let mut all = HeapPeak {
            pending: VecDeque::new(),
            sites: self.sites.clone(),
            ..*self
        };
        self.pending.iter().for_each(|&change| all.apply(change));
        all
    }

    /// The most bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        let (mut in_use, mut peak) = (self.in_use, self.peak);
        for change in &self.pending {
            in_use += change.bytes;
            peak = peak.max(in_use);
        }
        peak.max(0).unsigned_abs()
    }

    /// Bytes of each of `sites` sites when most were in use.
    pub(super) fn by_site(&self, sites: usize) -> Vec<u64> {
        let all = self.applied();
        let at_peak = |site: &SiteUse| match site.peak < all.peaks {
            true => site.in_use,
            false => site.at_peak,
        };
        let mut at_peak: Vec<u64> = all
            .sites
            .iter()
            .map(|site| at_peak(site).max(0).unsigned_abs())
            .collect();
        at_peak.resize(sites, 0);
        at_peak
    }

    /// Changes that were read too late to be put in order.
    pub(super) fn late(&self) -> u64 {
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
                peak.add(time_ns, site, bytes);
            }
            prop_assert_eq!(peak.bytes(), most as u64);
            let by_site = peak.by_site(3);
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
            peak.add(1000 + time_ns, 0, 1);
        }
        peak.add(10, 1, 5);
        peak.add(20, 1, -5);
        assert_eq!(peak.late(), 2);
        assert_eq!(peak.bytes(), MAX_PENDING as u64 + 1);
    }
}
