//! Allocated bytes over time, and allocations by size and lifetime.
//!
//! Each process has a step function of its bytes in use, and so has each of its allocation sites.
//! They are read on a common grid of [`BINS`] bins and added up. In a bin, the bytes of all sites
//! are their maximum, so that no short peak is missed. The bytes of a single site are its bytes at
//! the end of the bin, so that curves of several sites can be stacked. In a bin with a short peak, the stack is
//! lower than the maximum.
//!
//! Memory: 48 bytes for each row.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use memgauge_trace::{HeapClassRow, HeapUseRow, Pid};
use serde::Serialize;

use crate::Analysis;

/// Number of bins of a run, equal to the number of intervals in a process's history.
const BINS: u64 = 512;

/// Maximum number of sites with curves.
const MAX_SITES: usize = 8;

/// Names of sites by process and number.
pub(crate) type SiteNames = HashMap<(Pid, u32), Rc<str>>;

/// Bytes in use from a time on.
#[derive(Clone, Copy, Debug)]
struct HeapStep {
    time_ns: u64,
    bytes: u64,
}

/// Steps of every process and site, and of each process's resident memory.
#[derive(Clone, Debug, Default)]
pub struct HeapHistory {
    /// Sorted by process, site and time when finished.
    in_use: Vec<(Pid, Option<u32>, HeapStep)>,
    resident: BTreeMap<Pid, Vec<HeapStep>>,
}

impl Analysis for HeapHistory {
    type Row = HeapUseRow;
    type Output = HeapHistory;

    fn observe(&mut self, batch: &[HeapUseRow]) {
        for row in batch {
            let step = |bytes| HeapStep {
                time_ns: row.time_ns,
                bytes,
            };
            self.in_use.push((row.pid, row.site, step(row.bytes)));
            if let Some(bytes) = row.resident_bytes {
                self.resident.entry(row.pid).or_default().push(step(bytes));
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.in_use.extend(other.in_use);
        for (pid, steps) in other.resident {
            self.resident.entry(pid).or_default().extend(steps);
        }
    }

    fn finish(mut self) -> HeapHistory {
        self.in_use
            .sort_by_key(|&(pid, site, step)| (pid, site, step.time_ns));
        for steps in self.resident.values_mut() {
            steps.sort_by_key(|step| step.time_ns);
        }
        self
    }
}

/// Allocated bytes over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeapOverTime {
    /// Length of a bin.
    pub bin_ns: u64,
    /// End of the last bin.
    pub duration_ns: u64,
    /// Start of the first bin with the maximum.
    pub peak_ns: u64,
    /// Maximum of the bytes in use in each bin.
    pub in_use: Vec<u64>,
    /// Resident memory of the processes: the maximum that was read in each bin, or before. Absent if
    /// nothing was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident: Option<Vec<u64>>,
    /// Sites with the most bytes at some time.
    pub sites: Vec<HeapCurve>,
    /// Bytes of all other sites at the end of each bin.
    pub other_bytes: Vec<u64>,
}

/// Bytes of a site over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeapCurve {
    /// Name of the site.
    pub name: String,
    /// Bytes in use at the end of each bin.
    pub bytes: Vec<u64>,
}

/// Bins of equal length, of which the run may cut the last.
#[derive(Clone, Copy)]
struct TimeBins {
    bin_ns: u64,
    duration_ns: u64,
}

impl TimeBins {
    /// True for the end of a process that ran to the end. That it has no bytes in use then is not of
    /// interest.
    fn is_exit(self, step: HeapStep) -> bool {
        step.time_ns >= self.duration_ns && step.bytes == 0
    }
}

impl HeapHistory {
    /// Returns the curves of a run of this duration. `names` has the names of sites; those of equal
    /// names are added up. `None` if the recording has no history.
    pub(crate) fn over_time(&self, duration_ns: u64, names: &SiteNames) -> Option<HeapOverTime> {
        if self.in_use.is_empty() {
            return None;
        }
        let bin_ns = duration_ns.div_ceil(BINS).max(1);
        let time_bins = TimeBins {
            bin_ns,
            duration_ns,
        };
        let bins = duration_ns.div_ceil(bin_ns).max(1) as usize;
        let mut in_use = vec![0; bins];
        let mut all_sites = vec![0; bins];
        let mut by_name: HashMap<&str, Vec<BinChange>> = HashMap::new();
        let same = |a: &(Pid, _, _), b: &(Pid, _, _)| (a.0, a.1) == (b.0, b.1);
        for rows in self.in_use.chunk_by(same) {
            let (pid, site, _) = rows[0];
            let steps = rows.iter().map(|&(_, _, step)| step);
            let Some(site) = site else {
                add_maxima(&mut in_use, steps, time_bins);
                continue;
            };
            let changes: Vec<BinChange> = changes(steps, time_bins, bins).collect();
            add_changes(&mut all_sites, &changes);
            if let Some(name) = names.get(&(pid, site)) {
                by_name.entry(name).or_default().extend(changes);
            }
        }
        sum_up(&mut all_sites);
        let mut resident = (!self.resident.is_empty()).then(|| vec![0; bins]);
        if let Some(curve) = &mut resident {
            for steps in self.resident.values() {
                add_maxima(curve, steps.iter().copied(), time_bins);
            }
        }
        let highest = |curve: &[u64]| curve.iter().copied().max().unwrap_or(0);
        let curve = |changes: &[BinChange]| {
            let mut curve = vec![0; bins];
            add_changes(&mut curve, changes);
            sum_up(&mut curve);
            curve
        };
        let mut sites: Vec<(&str, Vec<BinChange>)> = by_name.into_iter().collect();
        sites.sort_by_cached_key(|(name, changes)| (Reverse(highest(&curve(changes))), *name));
        let sites = sites.iter().take(MAX_SITES);
        let curves: Vec<_> = sites
            .map(|(name, changes)| (*name, curve(changes)))
            .collect();
        for (_, bytes) in &curves {
            let both = all_sites.iter_mut().zip(bytes);
            both.for_each(|(others, of_site)| *others -= of_site);
        }
        let most = highest(&in_use);
        let peak = in_use.iter().position(|&bytes| bytes == most).unwrap_or(0);
        let site = |(name, bytes): (&str, Vec<u64>)| HeapCurve {
            name: name.to_owned(),
            bytes,
        };
        Some(HeapOverTime {
            bin_ns,
            duration_ns,
            peak_ns: peak as u64 * bin_ns,
            in_use,
            resident,
            sites: curves.into_iter().map(site).collect(),
            other_bytes: all_sites,
        })
    }
}

/// Adds the maximum of a step function in each bin. Steps after the last bin count in the last one.
fn add_maxima(bins: &mut [u64], steps: impl Iterator<Item = HeapStep>, time_bins: TimeBins) {
    let mut steps = steps.peekable();
    let mut bytes = 0;
    let last = bins.len() - 1;
    for (number, bin) in bins.iter_mut().enumerate() {
        let end_ns = (number as u64 + 1).saturating_mul(time_bins.bin_ns);
        let end_ns = end_ns.min(time_bins.duration_ns);
        let mut most = bytes;
        while let Some(step) = steps.next_if(|step| step.time_ns < end_ns || number == last) {
            if time_bins.is_exit(step) {
                continue;
            }
            bytes = step.bytes;
            most = most.max(bytes);
        }
        *bin += most;
    }
}

/// Change of the bytes in use within a bin: its number, and the difference. A negative difference has
/// wrapped.
type BinChange = (usize, u64);

/// The changes of a step function. Most sites have one or two, far fewer than there are bins.
fn changes(
    steps: impl Iterator<Item = HeapStep>,
    time_bins: TimeBins,
    bins: usize,
) -> impl Iterator<Item = BinChange> {
    let mut bytes = 0u64;
    let steps = steps.filter(move |&step| !time_bins.is_exit(step));
    steps.map(move |step| {
        let bin = (step.time_ns / time_bins.bin_ns).min(bins as u64 - 1);
        let change = step.bytes.wrapping_sub(bytes);
        bytes = step.bytes;
        (bin as usize, change)
    })
}

fn add_changes(bins: &mut [u64], changes: &[BinChange]) {
    for &(bin, change) in changes {
        bins[bin] = bins[bin].wrapping_add(change);
    }
}

/// Replaces changes by their sums so far.
fn sum_up(changes: &mut [u64]) {
    let mut sum = 0u64;
    for change in changes {
        sum = sum.wrapping_add(*change);
        *change = sum;
    }
}

/// Allocations with sizes or lifetimes in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeapClass {
    /// Minimum size in bytes, or lifetime in nanoseconds.
    pub min: u64,
    /// Maximum.
    pub max: u64,
    /// Allocations.
    pub allocations: u64,
}

/// Allocations by size and by lifetime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapHistograms {
    /// By size in bytes, from the smallest class with allocations to the largest.
    pub sizes: Vec<HeapClass>,
    /// By nanoseconds from allocation to free.
    pub lifetimes: Vec<HeapClass>,
    /// Allocations that were not freed.
    pub unfreed: u64,
}

/// Sums of classes.
#[derive(Clone, Debug, Default)]
pub struct HeapClassSums {
    by_size: BTreeMap<u8, u64>,
    by_lifetime: BTreeMap<u8, u64>,
    unfreed: u64,
}

impl Analysis for HeapClassSums {
    type Row = HeapClassRow;
    type Output = Option<HeapHistograms>;

    fn observe(&mut self, batch: &[HeapClassRow]) {
        for row in batch {
            *self.by_size.entry(row.size_bits).or_default() += row.allocations;
            match row.lifetime_bits {
                Some(bits) => *self.by_lifetime.entry(bits).or_default() += row.allocations,
                None => self.unfreed += row.allocations,
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (bits, allocations) in other.by_size {
            *self.by_size.entry(bits).or_default() += allocations;
        }
        for (bits, allocations) in other.by_lifetime {
            *self.by_lifetime.entry(bits).or_default() += allocations;
        }
        self.unfreed += other.unfreed;
    }

    fn finish(self) -> Option<HeapHistograms> {
        (!self.by_size.is_empty()).then(|| HeapHistograms {
            sizes: classes(&self.by_size),
            lifetimes: classes(&self.by_lifetime),
            unfreed: self.unfreed,
        })
    }
}

/// Classes from the smallest to the largest, with the empty ones between them.
fn classes(by_bits: &BTreeMap<u8, u64>) -> Vec<HeapClass> {
    let (first, last) = (by_bits.keys().next(), by_bits.keys().next_back());
    let (Some(&first), Some(&last)) = (first, last) else {
        return Vec::new();
    };
    // A file may have any number of bits.
    let limit = |bits: u8| u32::from(bits).min(u64::BITS);
    let class = |bits: u8| HeapClass {
        min: match limit(bits) {
            0 => 0,
            bits => 1 << (bits - 1),
        },
        max: u64::MAX.checked_shr(u64::BITS - limit(bits)).unwrap_or(0),
        allocations: by_bits.get(&bits).copied().unwrap_or(0),
    };
    (first..=last).map(class).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(pid: u32, time_ns: u64, site: Option<u32>, bytes: u64) -> HeapUseRow {
        HeapUseRow {
            pid: Pid(pid),
            time_ns,
            site,
            bytes,
            resident_bytes: site.is_none().then_some(3 * bytes),
        }
    }

    proptest! {
        /// Against the value of every nanosecond.
        #[test]
        fn bins_have_the_maximum_of_all_and_the_last_of_each_site(
            rows in proptest::collection::vec((1u32..3, 0u64..1500, 0u32..15, 0u64..100), 1..60),
            duration_ns in 1u64..1500,
        ) {
            let mut rows: Vec<HeapUseRow> = rows
                .into_iter()
                .filter(|&(_, time_ns, ..)| time_ns < duration_ns)
                .map(|(pid, time_ns, site, bytes)| row(pid, time_ns, site.checked_sub(1), bytes))
                .collect();
            rows.push(row(1, 0, None, 7));
            // A recording has one row for a time.
            rows.sort_by_key(|row| (row.time_ns, row.pid, row.site));
            rows.dedup_by_key(|row| (row.time_ns, row.pid, row.site));
            let mut history = HeapHistory::default();
            rows.chunks(5).for_each(|batch| history.observe(batch));
            let sites = rows.iter().filter_map(|row| Some((row.pid, row.site?)));
            let names: SiteNames =
                sites.map(|(pid, site)| ((pid, site), format!("s{site}").into())).collect();
            let found = history.finish().over_time(duration_ns, &names).expect("a history");
            let at = |pid: u32, site: Option<u32>, at_ns: u64| {
                let of = rows.iter().filter(|row| row.pid == Pid(pid) && row.site == site);
                of.rev().find(|row| row.time_ns <= at_ns).map_or(0, |row| row.bytes)
            };
            let tripled: Vec<u64> = found.in_use.iter().map(|bytes| 3 * bytes).collect();
            prop_assert_eq!(found.resident.as_ref(), Some(&tripled));
            prop_assert!(found.in_use.len() as u64 <= BINS && found.sites.len() <= MAX_SITES);
            for (bin, &in_use) in found.in_use.iter().enumerate() {
                let start_ns = bin as u64 * found.bin_ns;
                let end_ns = (start_ns + found.bin_ns).min(duration_ns);
                // With the bytes that the bin begins with.
                let within = start_ns.saturating_sub(1)..end_ns;
                let most = |pid| within.clone().map(|ns| at(pid, None, ns)).max().unwrap_or(0);
                prop_assert_eq!(in_use, most(1) + most(2));
                let of_site = |site| at(1, Some(site), end_ns - 1) + at(2, Some(site), end_ns - 1);
                let all: u64 = (0..14).map(of_site).sum();
                let mut shown = 0;
                for curve in &found.sites {
                    let site = curve.name[1..].parse().expect("a number");
                    prop_assert_eq!(curve.bytes[bin], of_site(site));
                    shown += curve.bytes[bin];
                }
                prop_assert_eq!(found.other_bytes[bin], all - shown);
            }
        }
    }

    #[test]
    fn the_end_of_a_process_at_the_end_of_the_run_hides_nothing() {
        let mut history = HeapHistory::default();
        let steps = [(0, 10), (90, 40), (100, 0)];
        let rows = steps.map(|(time_ns, bytes)| row(1, time_ns, None, bytes));
        history.observe(&rows);
        let found = history.finish().over_time(100, &SiteNames::new());
        let found = found.expect("a history");
        assert_eq!(found.in_use.last(), Some(&40));
        assert_eq!(found.peak_ns, 90);
    }

    #[test]
    fn classes_have_their_limits_and_empty_ones_between_them() {
        let mut sums = HeapClassSums::default();
        let row = |size_bits, lifetime_bits, allocations| HeapClassRow {
            pid: Pid(1),
            size_bits,
            lifetime_bits,
            allocations,
        };
        let rows = [row(0, Some(64), 1), row(3, None, 5), row(1, Some(255), 2)];
        sums.observe(&rows);
        let found = sums.finish().expect("histograms");
        let sizes: Vec<_> = found
            .sizes
            .iter()
            .map(|class| (class.min, class.max, class.allocations))
            .collect();
        assert_eq!(sizes, [(0, 0, 1), (1, 1, 2), (2, 3, 0), (4, 7, 5)]);
        assert_eq!(found.unfreed, 5);
        assert_eq!(found.lifetimes[0].min, 1 << 63);
        assert_eq!(found.lifetimes[0].max, u64::MAX);
        assert_eq!(HeapClassSums::default().finish(), None);
    }
}
