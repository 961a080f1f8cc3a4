//! Time spans of threads in regions of interest. Neighbouring spans are joined if there are too
//! many, so a function called a billion times needs no more memory than one called some thousand
//! times.

use std::collections::BTreeMap;

use crate::{Pid, RegionSpan, Tid};

/// Smallest gap over which neighbours are joined.
const FIRST_GAP_NS: u64 = 1 << 10;

/// Spans in regions, keyed by `N`. The number of entries and the time inside stay exact when spans
/// are joined.
#[derive(Clone, Debug)]
pub struct RegionSpans<N> {
    max: usize,
    /// Neighbours with at most this gap are joined; 0 if none are joined.
    gap_ns: u64,
    count: usize,
    by_name: BTreeMap<N, Vec<Span>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start_ns: u64,
    end_ns: u64,
    inside_ns: u64,
    entries: u64,
}

impl<N: Ord> RegionSpans<N> {
    /// Creates an empty set that keeps about `max` spans, but at least one per region.
    pub fn at_most(max: usize) -> RegionSpans<N> {
        RegionSpans {
            max,
            gap_ns: 0,
            count: 0,
            by_name: BTreeMap::new(),
        }
    }

    /// Adds a span of a thread in a region. Spans in a region must be in time order and not
    /// overlap.
    pub fn add(&mut self, name: N, start_ns: u64, end_ns: u64) {
        let inside_ns = end_ns.saturating_sub(start_ns);
        self.push(
            name,
            Span {
                start_ns,
                end_ns,
                inside_ns,
                entries: 1,
            },
        );
    }

    /// Adds a row of a recording, which may already consist of joined spans.
    pub fn add_row(&mut self, name: N, row: &RegionSpan) {
        self.push(
            name,
            Span {
                start_ns: row.time_ns,
                end_ns: row.time_ns.saturating_add(row.duration_ns),
                inside_ns: row.inside_ns,
                entries: row.entries,
            },
        );
    }

    fn push(&mut self, name: N, span: Span) {
        let spans = self.by_name.entry(name).or_default();
        let before = spans.len();
        join_or_push(spans, span, self.gap_ns);
        self.count += spans.len() - before;
        while self.count > self.max && self.count > self.by_name.len() {
            self.widen();
        }
    }

    /// Joins over a wider gap until half of the space is free.
    fn widen(&mut self) {
        self.gap_ns = self.gap_ns.saturating_mul(2).max(FIRST_GAP_NS);
        self.count = 0;
        for spans in self.by_name.values_mut() {
            let all = std::mem::take(spans);
            for span in all {
                join_or_push(spans, span, self.gap_ns);
            }
            self.count += spans.len();
        }
        if self.count > self.max / 2 && self.count > self.by_name.len() {
            self.widen();
        }
    }

    /// Returns the spans as rows in order of `N` and time. `of` returns the region's name and
    /// thread.
    pub fn rows(&self, of: impl Fn(&N) -> (String, Pid, Tid)) -> Vec<RegionSpan> {
        let mut rows = Vec::with_capacity(self.count);
        for (key, spans) in &self.by_name {
            let (name, pid, tid) = of(key);
            rows.extend(spans.iter().map(|span| RegionSpan {
                time_ns: span.start_ns,
                pid,
                tid,
                name: name.clone(),
                duration_ns: span.end_ns.saturating_sub(span.start_ns),
                inside_ns: span.inside_ns,
                entries: span.entries,
            }));
        }
        rows
    }
}

fn join_or_push(spans: &mut Vec<Span>, span: Span, gap_ns: u64) {
    match spans.last_mut() {
        Some(last) if gap_ns > 0 && span.start_ns.saturating_sub(last.end_ns) <= gap_ns => {
            last.end_ns = last.end_ns.max(span.end_ns);
            last.inside_ns = last.inside_ns.saturating_add(span.inside_ns);
            last.entries = last.entries.saturating_add(span.entries);
        }
        _ => spans.push(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(spans: &RegionSpans<u32>) -> Vec<(String, u64, u64, u64, u64)> {
        let rows = spans.rows(|name| (format!("r{name}"), Pid(1), Tid(2)));
        let row = |r: RegionSpan| (r.name, r.time_ns, r.duration_ns, r.inside_ns, r.entries);
        rows.into_iter().map(row).collect()
    }

    #[test]
    fn few_stays_are_kept_as_they_are() {
        let mut spans = RegionSpans::at_most(4);
        spans.add(1, 10, 20);
        spans.add(1, 20, 25);
        spans.add(2, 5, 30);
        let expected = [
            ("r1".to_owned(), 10, 10, 10, 1),
            ("r1".to_owned(), 20, 5, 5, 1),
            ("r2".to_owned(), 5, 25, 25, 1),
        ];
        assert_eq!(rows(&spans), expected);
    }

    /// Stays of 1 µs begin every 2 µs in bursts of ten, with one burst per millisecond.
    #[test]
    fn many_are_joined_over_the_smallest_gap_that_makes_room() {
        let mut spans = RegionSpans::at_most(100);
        for burst in 0..40u64 {
            for n in 0..10 {
                let start = burst * 1_000_000 + n * 2000;
                spans.add(1, start, start + 1000);
            }
        }
        let rows = rows(&spans);
        assert!(rows.len() <= 100 && rows.len() >= 40, "{}", rows.len());
        assert_eq!(rows[0], ("r1".to_owned(), 0, 19_000, 10_000, 10));
        let sum = |get: fn(&(String, u64, u64, u64, u64)) -> u64| rows.iter().map(get).sum::<u64>();
        assert_eq!((sum(|r| r.3), sum(|r| r.4)), (400_000, 400));
    }

    #[test]
    fn more_regions_than_room_have_one_each() {
        let mut spans = RegionSpans::at_most(2);
        for name in 0..5 {
            for n in 0..3 {
                spans.add(name, n * 1_000_000_000, n * 1_000_000_000 + 1);
            }
        }
        let rows = rows(&spans);
        assert_eq!(rows.len(), 5);
        assert!(rows.iter().all(|r| (r.3, r.4) == (3, 3)));
    }

    #[test]
    fn rows_of_a_recording_keep_their_entries() {
        let mut spans = RegionSpans::at_most(8);
        let row = RegionSpan {
            time_ns: 7,
            duration_ns: 100,
            inside_ns: 60,
            entries: 5,
            ..RegionSpan::default()
        };
        spans.add_row(1, &row);
        assert_eq!(rows(&spans), [("r1".to_owned(), 7, 100, 60, 5)]);
    }
}
