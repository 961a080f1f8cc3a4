//! Regions of interest over time.

use memgauge_trace::{Pid, RegionSpan, RegionSpans, Tid};
use serde::Serialize;

use crate::Analysis;

/// Maximum number of spans, about 150 bytes each. Further ones are merged with their neighbours.
const MAX_SPANS: usize = 20_000;
/// Number of bins of the whole run.
const BINS: u64 = 48;

/// Collects the time spans of regions of interest.
#[derive(Clone, Debug, Default)]
pub struct RegionTimes(Vec<RegionSpan>);

impl RegionTimes {
    /// Sorted by name, thread and time, at most [`MAX_SPANS`], but at least one for each thread and
    /// region.
    fn joined(mut self) -> Vec<RegionSpan> {
        let key = |span: &RegionSpan| (span.name.clone(), span.pid, span.tid);
        self.0
            .sort_by_cached_key(|span| (key(span), span.time_ns, span.duration_ns));
        let mut spans: RegionSpans<(String, Pid, Tid)> = RegionSpans::at_most(MAX_SPANS);
        for span in &self.0 {
            spans.add_row(key(span), span);
        }
        spans.rows(|(name, pid, tid)| (name.clone(), *pid, *tid))
    }

    fn shrink(&mut self) {
        if self.0.len() > 4 * MAX_SPANS {
            self.0 = std::mem::take(self).joined();
        }
    }
}

impl Analysis for RegionTimes {
    type Row = RegionSpan;
    type Output = Vec<RegionSpan>;

    fn observe(&mut self, batch: &[RegionSpan]) {
        self.0.extend_from_slice(batch);
        self.shrink();
    }

    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
        self.shrink();
    }

    fn finish(self) -> Vec<RegionSpan> {
        self.joined()
    }
}

/// Time inside regions of interest, in bins of the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RegionsOverTime {
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// Regions by falling time.
    pub rows: Vec<RegionOverTime>,
}

/// Time inside a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RegionOverTime {
    /// Name of the region.
    pub name: String,
    /// Nanoseconds inside in each bin, summed over threads. Merged spans are spread evenly from the
    /// first entry to the last exit.
    pub inside_ns: Vec<u64>,
}

/// Time spans of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimedRegion {
    /// Name of the region.
    pub name: String,
    /// Spans by thread and time.
    pub spans: Vec<TimedSpan>,
}

/// One span, or several that were merged: `[time_ns, duration_ns, inside_ns, entries, pid, tid]`,
/// as in the table `region_spans`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimedSpan(pub u64, pub u64, pub u64, pub u64, pub Pid, pub Tid);

impl TimedSpan {
    /// Name of the region. For merged spans, with their number and time.
    pub fn label(&self, region: &str) -> String {
        let &TimedSpan(_, duration_ns, inside_ns, entries, ..) = self;
        let share = inside_ns as f64 * 100.0 / duration_ns.max(1) as f64;
        match entries {
            0 | 1 => region.to_owned(),
            _ => format!("{region}: {entries} entries, inside {share:.0} %"),
        }
    }
}

/// Groups spans by region, by falling time.
pub(crate) fn by_region(spans: &[RegionSpan]) -> Vec<TimedRegion> {
    let mut regions: Vec<TimedRegion> = Vec::new();
    for of_region in spans.chunk_by(|a, b| a.name == b.name) {
        let timed = |s: &RegionSpan| {
            TimedSpan(
                s.time_ns,
                s.duration_ns,
                s.inside_ns,
                s.entries,
                s.pid,
                s.tid,
            )
        };
        regions.push(TimedRegion {
            name: of_region[0].name.clone(),
            spans: of_region.iter().map(timed).collect(),
        });
    }
    let inside_ns =
        |region: &TimedRegion| -> u128 { region.spans.iter().map(|span| u128::from(span.2)).sum() };
    regions.sort_by_key(|region| std::cmp::Reverse(inside_ns(region)));
    regions
}

/// The regions in bins of a run of this length. `None` without regions.
pub(crate) fn over_time(regions: &[TimedRegion], duration_ns: u64) -> Option<RegionsOverTime> {
    let spans = regions.iter().flat_map(|region| &region.spans);
    let last_ns = spans.map(|span| span.0.saturating_add(span.1)).max()?;
    let bin_ns = last_ns.max(duration_ns).max(1).div_ceil(BINS);
    let row = |region: &TimedRegion| {
        let mut inside_ns = vec![0; BINS as usize];
        for span in &region.spans {
            spread(span, bin_ns, &mut inside_ns);
        }
        RegionOverTime {
            name: region.name.clone(),
            inside_ns,
        }
    };
    Some(RegionsOverTime {
        bin_ns,
        rows: regions.iter().map(row).collect(),
    })
}

/// Spreads a span's time over the bins that it covers. The sum stays exact.
fn spread(&TimedSpan(start, duration, inside, ..): &TimedSpan, bin_ns: u64, bins: &mut [u64]) {
    let until =
        |ns: u64| (u128::from(inside) * u128::from(ns) / u128::from(duration.max(1))) as u64;
    let last = bins.len().saturating_sub(1);
    let mut from = 0;
    let mut bin = ((start / bin_ns) as usize).min(last);
    loop {
        let ends = (bin as u64 + 1).saturating_mul(bin_ns);
        let to = match bin < last {
            true => ends.saturating_sub(start).min(duration),
            false => duration,
        };
        bins[bin] = bins[bin].saturating_add(until(to).saturating_sub(until(from)));
        if to == duration {
            break;
        }
        (from, bin) = (to, bin + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(name: &str, tid: u32, time_ns: u64, duration_ns: u64) -> RegionSpan {
        RegionSpan {
            time_ns,
            pid: Pid(1),
            tid: Tid(tid),
            name: name.to_owned(),
            duration_ns,
            inside_ns: duration_ns,
            entries: 1,
        }
    }

    #[test]
    fn the_longest_comes_first_and_lies_in_the_bins_of_its_time() {
        let mut times = RegionTimes::default();
        times.observe(&[span("a", 1, 0, 100), span("b", 1, 2350, 2450)]);
        let mut more = RegionTimes::default();
        more.observe(&[span("a", 2, 50, 100)]);
        times.merge(more);
        let regions = by_region(&times.finish());
        assert_eq!(regions[0].name, "b");
        assert_eq!(regions[1].spans.len(), 2);
        let over = over_time(&regions, 4800).unwrap();
        assert_eq!((over.bin_ns, over.rows[0].inside_ns.len()), (100, 48));
        assert_eq!(over.rows[0].inside_ns[22..26], [0, 50, 100, 100]);
        assert_eq!(over.rows[1].inside_ns[..3], [150, 50, 0]);
        assert_eq!(over_time(&[], 4800), None);
    }

    #[test]
    fn millions_of_stays_are_joined_and_keep_their_sums() {
        let mut times = RegionTimes::default();
        for n in 0..100u64 {
            let rows: Vec<RegionSpan> = (0..2000)
                .map(|i| span("a", 1, (n * 2000 + i) * 1000, 300))
                .collect();
            times.observe(&rows);
        }
        let spans = times.finish();
        assert!(spans.len() <= MAX_SPANS, "{}", spans.len());
        assert_eq!(spans.iter().map(|s| s.entries).sum::<u64>(), 200_000);
        assert_eq!(spans.iter().map(|s| s.inside_ns).sum::<u64>(), 60_000_000);
    }

    proptest! {
        /// Twin: nanosecond by nanosecond.
        #[test]
        fn bins_hold_the_time_inside(
            drawn in prop::collection::vec((0u64..900, 0u64..300), 1..20), bin_ns in 1u64..40
        ) {
            let mut bins = vec![0; (1200 / bin_ns + 1) as usize];
            let mut expected = bins.clone();
            for &(start, duration) in &drawn {
                let whole = TimedSpan(start, duration, duration, 1, Pid(1), Tid(1));
                spread(&whole, bin_ns, &mut bins);
                (start..start + duration).for_each(|ns| expected[(ns / bin_ns) as usize] += 1);
            }
            prop_assert_eq!(bins, expected);
        }
    }
}
