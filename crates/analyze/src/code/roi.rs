//! Regions of interest: counts while threads were inside, and values that the program reported.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_trace::{CodeRegion, CodeValue, Pid, Tid};
use serde::Serialize;

use crate::Analysis;
use crate::counts::{Counts, EventNames, EventSums};

/// A region of interest, over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CodeRegionRow {
    /// Name of the region.
    pub name: String,
    /// Number of entries from outside.
    pub entries: u64,
    /// Number of threads that entered it.
    pub threads: u64,
    /// Time inside on the recording's clock, including waits, summed over threads, in nanoseconds.
    pub time_ns: u64,
    /// Sum of every event inside by name, in the event's unit.
    pub counts: Counts,
}

/// Values that the program reported under one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CodeValueRow {
    /// Name of the values.
    pub name: String,
    /// Number of values.
    pub n: u64,
    /// Minimum.
    pub min: u64,
    /// Mean.
    pub mean: f64,
    /// Maximum.
    pub max: u64,
}

#[derive(Clone, Debug, Default)]
struct RoiTotals {
    entries: u64,
    threads: BTreeSet<(Pid, Tid)>,
    time_ns: u64,
    events: EventSums,
}

/// Sums regions by name.
#[derive(Clone, Debug, Default)]
pub struct CodeRegions(BTreeMap<String, RoiTotals>);

impl Analysis for CodeRegions {
    type Row = CodeRegion;
    type Output = CodeRegions;

    fn observe(&mut self, batch: &[CodeRegion]) {
        for row in batch {
            if !self.0.contains_key(&row.name) {
                self.0.insert(row.name.clone(), RoiTotals::default());
            }
            let Some(sums) = self.0.get_mut(&row.name) else {
                continue;
            };
            sums.entries = sums.entries.saturating_add(row.entries);
            sums.time_ns = sums.time_ns.saturating_add(row.time_ns);
            sums.threads.insert((row.pid, row.tid));
            if let Some(event) = row.event {
                sums.events.add(event, row.count);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (name, theirs) in other.0 {
            let mine = self.0.entry(name).or_default();
            mine.entries = mine.entries.saturating_add(theirs.entries);
            mine.time_ns = mine.time_ns.saturating_add(theirs.time_ns);
            mine.threads.extend(theirs.threads);
            mine.events.add_all(&theirs.events);
        }
    }

    fn finish(self) -> CodeRegions {
        self
    }
}

impl CodeRegions {
    /// Rows by falling time, then by name.
    pub(crate) fn rows(self, names: &EventNames) -> Vec<CodeRegionRow> {
        let rows = self.0.into_iter().map(|(name, sums)| CodeRegionRow {
            name,
            entries: sums.entries,
            threads: sums.threads.len() as u64,
            time_ns: sums.time_ns,
            counts: sums.events.named(names),
        });
        let mut rows: Vec<CodeRegionRow> = rows.collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.time_ns));
        rows
    }
}

/// Sums values by name.
#[derive(Clone, Debug, Default)]
pub struct CodeValues(BTreeMap<String, ValueSums>);

#[derive(Clone, Debug)]
struct ValueSums {
    n: u64,
    min: u64,
    max: u64,
    sum: u128,
}

impl ValueSums {
    fn add(&mut self, other: &ValueSums) {
        self.n += other.n;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }
}

impl CodeValues {
    fn add(&mut self, name: &str, sums: &ValueSums) {
        match self.0.get_mut(name) {
            Some(mine) => mine.add(sums),
            None => drop(self.0.insert(name.to_owned(), sums.clone())),
        }
    }
}

impl Analysis for CodeValues {
    type Row = CodeValue;
    type Output = Vec<CodeValueRow>;

    fn observe(&mut self, batch: &[CodeValue]) {
        for row in batch {
            let one = ValueSums {
                n: 1,
                min: row.value,
                max: row.value,
                sum: u128::from(row.value),
            };
            self.add(&row.name, &one);
        }
    }

    fn merge(&mut self, other: Self) {
        for (name, sums) in &other.0 {
            self.add(name, sums);
        }
    }

    fn finish(self) -> Vec<CodeValueRow> {
        let rows = self.0.into_iter().map(|(name, sums)| CodeValueRow {
            name,
            n: sums.n,
            min: sums.min,
            mean: sums.sum as f64 / sums.n as f64,
            max: sums.max,
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::catalogue::{INSTRUCTIONS, LOADS};
    use memgauge_trace::{EventId, Manifest};

    fn row(name: &str, tid: u32, event: Option<EventId>, count: u64) -> CodeRegion {
        CodeRegion {
            name: name.to_owned(),
            tid: Tid(tid),
            entries: u64::from(event.is_none()),
            time_ns: if event.is_none() { count } else { 0 },
            event,
            count: if event.is_none() { 0 } else { count },
            ..CodeRegion::default()
        }
    }

    #[test]
    fn regions_sum_over_threads_and_the_longest_comes_first() {
        let mut some = CodeRegions::default();
        some.observe(&[
            row("a", 1, None, 10),
            row("a", 1, Some(INSTRUCTIONS), 100),
            row("b", 1, None, 50),
        ]);
        let mut more = CodeRegions::default();
        more.observe(&[row("a", 2, None, 5), row("a", 2, Some(LOADS), 7)]);
        some.merge(more);
        let manifest = Manifest {
            events: memgauge_trace::catalogue::definitions(memgauge_trace::Provenance::Modelled),
            ..Manifest::default()
        };
        let rows = some.finish().rows(&EventNames::of(&manifest));
        assert_eq!(
            rows.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(),
            ["b", "a"]
        );
        let a = &rows[1];
        assert_eq!((a.entries, a.threads, a.time_ns), (2, 2, 15));
        let expected = [("instructions".to_owned(), 100), ("loads".to_owned(), 7)];
        assert_eq!(a.counts, Counts::from(expected));
    }

    #[test]
    fn values_have_their_extremes_and_mean() {
        let value = |value| CodeValue {
            name: "depth".to_owned(),
            value,
            ..CodeValue::default()
        };
        let mut some = CodeValues::default();
        some.observe(&[value(3), value(8)]);
        let mut more = CodeValues::default();
        more.observe(&[value(u64::MAX), value(1)]);
        more.merge(some);
        let rows = more.finish();
        assert_eq!((rows[0].n, rows[0].min, rows[0].max), (4, 1, u64::MAX));
        assert_eq!(rows[0].mean, (u64::MAX as f64 + 12.0) / 4.0);
    }
}
