//! Stays in regions of interest: joined with their neighbours where there are too many,
//! so that a function that is called a billion times takes as much memory as one that is
//! called some thousand times.

use std::collections::BTreeMap;

use crate::{Pid, RegionSpan, Tid};

/// The first gap over which neighbours are joined.
const FIRST_GAP_NS: u64 = 1 << 10;

/// Stays in regions `N`. Entries and time inside are exact, however many are
/// joined.
#[derive(Clone, Debug)]
pub struct RegionSpans<N> {
    most: usize,
    /// Neighbours with a gap of no more than this are one; 0: none are joined.
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
    /// Keeps about this many; a region has one at least.
    pub fn at_most(most: usize) -> RegionSpans<N> {
        RegionSpans {
            most,
            gap_ns: 0,
            count: 0,
            by_name: BTreeMap::new(),
        }
    }

    /// The thread was in a region from `start_ns` to `end_ns`. Stays in a region come in
    /// order of time and do not overlap.
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

    /// Adds a row of a recording, in which stays may be joined already.
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
        while self.count > self.most && self.count > self.by_name.len() {
            self.widen();
        }
    }

    /// Joins over a wider gap, until half of the room is free.
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
        if self.count > self.most / 2 && self.count > self.by_name.len() {
            self.widen();
        }
    }

    /// The stays as rows, in order of `N` and of time; `of` gives a region's name and its
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

    /// Stays of 1 µs, one every 2 µs in bursts of ten; a burst each millisecond.
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
