//! Allocations of a process, by call path.
//!
//! Events of several threads are applied in the order of their times. The library writes the record
//! of an allocation before the program gets the memory, and that of a free before the memory is
//! released. So a free that was read belongs to an allocation that was read before, if both are
//! applied only after a whole round over all rings.

use ahash::HashMap;
use memgauge_host::heap_classes::HeapClasses;
use memgauge_host::heap_peak::{HeapAmount, HeapPeak};
use memgauge_trace::{AllocationRow, FrameId, HeapClassRow, HeapUseRow, Pid};

use crate::wire::FUNCTIONS;

/// An allocation or free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapEvent {
    pub(crate) time_ns: u64,
    pub(crate) address: u64,
    pub(crate) kind: EventKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum EventKind {
    Allocated { site: u32, bytes: u64 },
    Freed { is_temporary: bool },
}

/// Number of allocations that a sampled one stands for, and how good the estimate is.
///
/// A source that samples each allocation with probability `p` estimates a sum over all allocations
/// by the sum of `x / p` over the sampled ones (Horvitz and Thompson). The variance of the sum is
/// estimated by the sum of `x² (1 - p) / p²`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SampleWeight {
    /// `1 / p`.
    factor: f64,
    /// `(1 - p) / p²`.
    variance: f64,
}

impl SampleWeight {
    /// Weight of a sampled allocation, with `period` bytes between two samples on average.
    pub(crate) fn new(bytes: u64, period: u64) -> SampleWeight {
        if period <= 1 {
            return SampleWeight {
                factor: 1.0,
                variance: 0.0,
            };
        }
        let expected = bytes.max(1) as f64 / period as f64;
        let probability = -(-expected).exp_m1();
        SampleWeight {
            factor: 1.0 / probability,
            variance: (-expected).exp() / (probability * probability),
        }
    }

    fn amount(&self, bytes: u64) -> HeapAmount {
        let bytes = bytes as f64;
        HeapAmount {
            bytes: (bytes * self.factor).round() as i64,
            variance: (bytes * bytes * self.variance).round() as i64,
        }
    }
}

/// Sums of a call path. Estimates are added as they are and rounded when they are written.
#[derive(Clone, Debug, Default)]
struct SiteSums {
    allocations: f64,
    allocations_variance: f64,
    bytes: f64,
    bytes_variance: f64,
    frees: f64,
    freed_bytes: f64,
    lifetime_ns: f64,
    temporary: f64,
    live: HeapAmount,
}

#[derive(Clone, Copy, Debug)]
struct LiveAllocation {
    site: u32,
    bytes: u64,
    start_ns: u64,
}

/// Totals of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeapTotals {
    pub(crate) allocations: f64,
    pub(crate) live_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) unknown_frees: u64,
    pub(crate) late_changes: u64,
}

impl HeapTotals {
    /// Sum of several processes, each with its own peak.
    pub(crate) fn add(&mut self, other: &HeapTotals) {
        self.allocations += other.allocations;
        self.live_bytes += other.live_bytes;
        self.peak_bytes += other.peak_bytes;
        self.unknown_frees += other.unknown_frees;
        self.late_changes += other.late_changes;
    }
}

/// Allocations of a process.
#[derive(Debug, Default)]
pub(crate) struct ProcessHeap {
    period: u64,
    sites: Vec<SiteSums>,
    origins: Vec<(u8, Option<FrameId>)>,
    by_origin: HashMap<(u8, Option<FrameId>), u32>,
    objects: HashMap<u64, LiveAllocation>,
    /// Objects whose memory was allocated again before their free was read, which is the case for
    /// `realloc`: the number of frees to ignore, by address.
    replaced: HashMap<u64, u32>,
    classes: HeapClasses,
    peak: HeapPeak,
    unknown_frees: u64,
}

impl ProcessHeap {
    pub(crate) fn new(period: u64) -> ProcessHeap {
        ProcessHeap {
            period,
            ..ProcessHeap::default()
        }
    }

    /// Number of the site of a function and its caller.
    pub(crate) fn site(&mut self, function: u8, caller: Option<FrameId>) -> u32 {
        let ProcessHeap {
            sites,
            origins,
            by_origin,
            ..
        } = self;
        *by_origin.entry((function, caller)).or_insert_with(|| {
            sites.push(SiteSums::default());
            origins.push((function, caller));
            (sites.len() - 1) as u32
        })
    }

    pub(crate) fn apply(&mut self, event: &HeapEvent) {
        match event.kind {
            EventKind::Allocated { site, bytes } => self.allocate(event, site, bytes),
            EventKind::Freed { is_temporary } => self.free(event, is_temporary),
        }
    }

    fn allocate(&mut self, event: &HeapEvent, site: u32, bytes: u64) {
        let object = LiveAllocation {
            site,
            bytes,
            start_ns: event.time_ns,
        };
        if let Some(old) = self.objects.insert(event.address, object) {
            *self.replaced.entry(event.address).or_default() += 1;
            self.end(&old, event.time_ns, false);
        }
        let weight = SampleWeight::new(bytes, self.period);
        let amount = weight.amount(bytes);
        let sums = &mut self.sites[site as usize];
        sums.allocations += weight.factor;
        sums.allocations_variance += weight.variance;
        sums.bytes += bytes as f64 * weight.factor;
        sums.bytes_variance += amount.variance as f64;
        sums.live += amount;
        self.peak.add(event.time_ns, site, amount);
    }

    fn free(&mut self, event: &HeapEvent, is_temporary: bool) {
        match self.objects.get(&event.address).copied() {
            Some(object) if object.start_ns <= event.time_ns => {
                self.objects.remove(&event.address);
                self.end(&object, event.time_ns, is_temporary);
            }
            _ => match self.replaced.get_mut(&event.address) {
                Some(count) if *count > 0 => *count -= 1,
                _ => self.unknown_frees += 1,
            },
        }
    }

    fn end(&mut self, object: &LiveAllocation, time_ns: u64, is_temporary: bool) {
        let weight = SampleWeight::new(object.bytes, self.period);
        let amount = weight.amount(object.bytes);
        let removed = HeapAmount {
            bytes: -amount.bytes,
            variance: -amount.variance,
        };
        let lifetime_ns = time_ns.saturating_sub(object.start_ns);
        let sums = &mut self.sites[object.site as usize];
        sums.frees += weight.factor;
        sums.freed_bytes += object.bytes as f64 * weight.factor;
        sums.lifetime_ns += lifetime_ns as f64 * weight.factor;
        sums.temporary += if is_temporary { weight.factor } else { 0.0 };
        sums.live += removed;
        self.classes
            .add(object.bytes, Some(lifetime_ns), weight.factor);
        self.peak.add(time_ns, object.site, removed);
    }

    pub(crate) fn totals(&self) -> HeapTotals {
        let live: i64 = self.sites.iter().map(|site| site.live.bytes).sum();
        HeapTotals {
            allocations: self.sites.iter().map(|site| site.allocations).sum(),
            live_bytes: live.max(0).unsigned_abs(),
            peak_bytes: self.peak.bytes(),
            unknown_frees: self.unknown_frees,
            late_changes: self.peak.late(),
        }
    }

    /// Bytes in use over time of a process that ended at `end_ns`.
    pub(crate) fn history(&self, pid: Pid, end_ns: u64) -> Vec<HeapUseRow> {
        self.peak.clone().history(pid, end_ns)
    }

    /// Rows of all sites, numbered from `first_site` on.
    pub(crate) fn rows(&self, pid: Pid, first_site: u32) -> Vec<AllocationRow> {
        let rounded = |number: f64| number.round() as u64;
        // If variances were rounded to the nearest number, that of a few large blocks would be 0,
        // which means an exact count.
        let rounded_up = |number: f64| number.ceil() as u64;
        let positive = |number: i64| number.max(0).unsigned_abs();
        let at_peak = self.peak.by_site(self.sites.len());
        let sites = self.sites.iter().zip(&self.origins).zip(at_peak);
        sites
            .zip(first_site..)
            .map(
                |(((sums, &(function, caller)), at_peak), site)| AllocationRow {
                    pid,
                    site,
                    function: FUNCTIONS[usize::from(function)].to_owned(),
                    caller,
                    allocations: rounded(sums.allocations),
                    bytes: rounded(sums.bytes),
                    frees: rounded(sums.frees),
                    freed_bytes: rounded(sums.freed_bytes),
                    lifetime_ns: rounded(sums.lifetime_ns),
                    live_bytes: positive(sums.live.bytes),
                    at_peak_bytes: positive(at_peak.bytes),
                    temporary: rounded(sums.temporary),
                    allocations_variance: rounded_up(sums.allocations_variance),
                    bytes_variance: rounded_up(sums.bytes_variance),
                    live_variance: positive(sums.live.variance),
                    at_peak_variance: positive(at_peak.variance),
                    untouched_bytes: None,
                },
            )
            .collect()
    }

    /// Allocations by size and lifetime.
    pub(crate) fn classes(&self, pid: Pid) -> Vec<HeapClassRow> {
        let mut classes = self.classes.clone();
        for object in self.objects.values() {
            let weight = SampleWeight::new(object.bytes, self.period);
            classes.add(object.bytes, None, weight.factor);
        }
        classes.rows(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(time_ns: u64, address: u64, bytes: u64) -> HeapEvent {
        let kind = EventKind::Allocated { site: 0, bytes };
        HeapEvent {
            time_ns,
            address,
            kind,
        }
    }

    fn freed(time_ns: u64, address: u64) -> HeapEvent {
        let kind = EventKind::Freed { is_temporary: true };
        HeapEvent {
            time_ns,
            address,
            kind,
        }
    }

    /// The sum of estimates over many samples must be the true sum, and the variance that of the
    /// estimates. This is checked with the expectations of one allocation.
    #[test]
    fn weights_are_unbiased_and_their_variance_is_that_of_the_estimates() {
        for (bytes, period) in [(1u64, 64u64), (64, 64), (1 << 20, 1 << 16), (100, 1 << 16)] {
            let p = 1.0 - (-(bytes as f64) / period as f64).exp();
            let weight = SampleWeight::new(bytes, period);
            assert!((p * weight.factor - 1.0).abs() < 1e-9);
            // E[v] = p v, which must be Var[1/p if sampled] = 1/p - 1.
            assert!((p * weight.variance - (1.0 / p - 1.0)).abs() < 1e-6 / p);
        }
        let all = SampleWeight::new(7, 1);
        assert_eq!(all.amount(7), HeapAmount::exact(7));
    }

    #[test]
    fn memory_that_realloc_released_can_be_allocated_before_its_free_is_read() {
        let mut heap = ProcessHeap::new(1);
        heap.site(0, None);
        heap.apply(&allocated(10, 0x1000, 100));
        heap.apply(&allocated(30, 0x1000, 8));
        heap.apply(&freed(20, 0x1000));
        let row = &heap.rows(Pid(1), 5)[0];
        assert_eq!((row.site, row.allocations, row.frees), (5, 2, 1));
        assert_eq!((row.live_bytes, row.at_peak_bytes), (8, 100));
        assert_eq!(heap.totals().unknown_frees, 0);
        heap.apply(&freed(40, 0x1000));
        heap.apply(&freed(50, 0x1000));
        assert_eq!(heap.totals().unknown_frees, 1);
    }

    #[test]
    fn classes_have_each_allocation_by_size_and_lifetime() {
        let mut heap = ProcessHeap::new(1);
        heap.site(0, None);
        heap.apply(&allocated(10, 0x1000, 4));
        heap.apply(&allocated(10, 0x2000, 7));
        heap.apply(&freed(18, 0x1000));
        let rows = heap.classes(Pid(1));
        let rows: Vec<_> = rows
            .iter()
            .map(|r| (r.size_bits, r.lifetime_bits, r.allocations))
            .collect();
        assert_eq!(rows, [(3, None, 1), (3, Some(4), 1)]);
    }
}
