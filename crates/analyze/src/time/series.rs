//! Curves over time from interval rows.
//!
//! A row states that a counter gained `value` between `time - interval` and `time`. The value is
//! spread evenly over the interval and cut at the borders of bins. The part before a border is
//! `floor(value * elapsed / interval)`, so the last bin gets the remainder, and the bins of a curve
//! always sum to its rows. Cutting at every border from the row's start (not bin by bin) makes a
//! wide bin exactly the sum of the narrow bins in it. A curve of unknown length can therefore grow:
//! when it is full, neighbouring bins are added and the width doubles, with the same result as
//! binning at the final width from the start.
//!
//! Memory: curves × `max_bins` × 8 bytes. There is a curve for each observed event, or for each
//! event and thread.

use std::collections::BTreeMap;

use memgauge_trace::{EventId, Manifest, Pid, SeriesRow, Tid};
use serde::{Deserialize, Serialize};

use crate::Analysis;

const NS_PER_S: f64 = 1e9;

/// Initial bin width of a curve of unknown length, shorter than any timer interval in use.
pub(crate) const FIRST_WIDTH_NS: u64 = 1000;

type SeriesKey = (EventId, Option<(Pid, Tid)>);

/// Bins series rows into curves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Series {
    width_ns: u64,
    max_bins: u64,
    per_thread: bool,
    only: Option<Vec<EventId>>,
    end_ns: u64,
    bins: BTreeMap<SeriesKey, Vec<u64>>,
}

impl Series {
    /// Curves of unknown length in at most `max_bins` bins. The bin width starts at a microsecond
    /// and doubles as needed.
    pub fn growing(max_bins: usize) -> Self {
        Series::with_width(FIRST_WIDTH_NS, max_bins)
    }

    /// Curves over `duration_ns` in about `bins` bins. Rows beyond the duration double the width.
    pub fn with_bins(duration_ns: u64, bins: usize) -> Self {
        let width = duration_ns.div_ceil(bins.max(1) as u64);
        Series::with_width(width, bins)
    }

    /// Curves in at most `max_bins` bins that are no finer than the intervals of a modelled machine,
    /// as a report has them.
    pub fn of_recording(manifest: &Manifest, max_bins: usize) -> Self {
        Series::with_width(finest_bin_ns(manifest), max_bins)
    }

    /// Curves with bins of `width_ns`, which doubles past `max_bins`.
    pub(crate) fn with_width(width_ns: u64, max_bins: usize) -> Self {
        Series {
            width_ns: width_ns.max(1),
            max_bins: max_bins.max(1) as u64,
            per_thread: false,
            only: None,
            end_ns: 0,
            bins: BTreeMap::new(),
        }
    }

    /// Keeps a curve for each thread instead of one for all.
    pub fn per_thread(mut self) -> Self {
        self.per_thread = true;
        self
    }

    /// Keeps only curves of these events. The others still count for the duration.
    pub fn only(mut self, events: &[EventId]) -> Self {
        self.only = Some(events.to_vec());
        self
    }

    fn wants(&self, event: EventId) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&event))
    }

    fn observe_row(&mut self, row: &SeriesRow) {
        let end = row.time_ns.max(1);
        let start = end.saturating_sub(row.interval_ns.max(1));
        self.fit(end);
        if self.wants(row.event) {
            let thread = self.per_thread.then_some((row.pid, row.tid));
            self.add_span((row.event, thread), start, end, row.value);
        }
    }

    /// Widens the bins until one contains `end_ns`.
    fn fit(&mut self, end_ns: u64) {
        self.end_ns = self.end_ns.max(end_ns);
        while self.end_ns.div_ceil(self.width_ns) > self.max_bins {
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        for bins in self.bins.values_mut() {
            let pairs = bins.chunks(2).map(saturating_sum);
            *bins = pairs.collect();
        }
    }

    /// Adds `value` spread evenly over `start..end`, which is not empty and
    /// fits.
    fn add_span(&mut self, key: SeriesKey, start: u64, end: u64, value: u64) {
        let width = self.width_ns;
        let last = ((end - 1) / width) as usize;
        let bins = self.bins.entry(key).or_default();
        if bins.len() <= last {
            bins.resize(last + 1, 0);
        }
        let mut given = 0;
        for (i, bin) in bins.iter_mut().enumerate().skip((start / width) as usize) {
            let border = width.saturating_mul(i as u64 + 1).min(end);
            let until = portion(value, border - start, end - start);
            *bin = bin.saturating_add(until - given);
            given = until;
            if border == end {
                break;
            }
        }
    }
}

/// Returns `value * part / whole`, rounded down. `part` is at most `whole`, which is not 0.
fn portion(value: u64, part: u64, whole: u64) -> u64 {
    (u128::from(value) * u128::from(part) / u128::from(whole)) as u64
}

fn saturating_sum(values: &[u64]) -> u64 {
    values.iter().fold(0, |sum, &v| v.saturating_add(sum))
}

/// Width of the finest bins that the rows of a modelled machine allow. Only the sum over an
/// interval is known. If it were spread over finer bins, a bin could exceed what the machine can
/// move.
pub(crate) fn finest_bin_ns(manifest: &Manifest) -> u64 {
    let settings = manifest.machine.as_ref().map(|_| &manifest.source.settings);
    let interval_ns = settings.and_then(|settings| settings.interval_ns);
    let interval_ns = interval_ns.unwrap_or(0);
    FIRST_WIDTH_NS.max(interval_ns)
}

impl Analysis for Series {
    type Row = SeriesRow;
    type Output = Curves;

    fn observe(&mut self, batch: &[SeriesRow]) {
        for row in batch {
            self.observe_row(row);
        }
    }

    fn merge(&mut self, other: Self) {
        while self.width_ns < other.width_ns {
            self.widen();
        }
        self.fit(other.end_ns);
        for (key, bins) in other.bins {
            for (i, value) in bins.into_iter().enumerate() {
                let start = other.width_ns.saturating_mul(i as u64);
                let end = start.saturating_add(other.width_ns).min(other.end_ns);
                self.add_span(key, start, end, value);
            }
        }
    }

    fn finish(self) -> Curves {
        let count = self.end_ns.div_ceil(self.width_ns) as usize;
        let curves = self.bins.into_iter().map(|((event, thread), mut values)| {
            values.resize(count, 0);
            EventCurve {
                event,
                thread,
                bin_ns: self.width_ns,
                duration_ns: self.end_ns,
                values,
            }
        });
        Curves {
            duration_ns: self.end_ns,
            bin_ns: self.width_ns,
            curves: curves.collect(),
        }
    }
}

/// Curves of one recording, all with the same bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curves {
    /// End of the last row, nanoseconds since the recording began.
    pub duration_ns: u64,
    /// Width of every bin in nanoseconds.
    pub bin_ns: u64,
    /// The curves, ordered by event, then thread.
    pub curves: Vec<EventCurve>,
}

impl Curves {
    /// The event's curve over all threads, all zero if it has no row.
    pub fn event(&self, event: EventId) -> EventCurve {
        let found = self
            .curves
            .iter()
            .find(|c| c.event == event && c.thread.is_none());
        found.cloned().unwrap_or_else(|| self.flat(event))
    }

    /// True if the event has a row.
    pub fn has(&self, event: EventId) -> bool {
        self.curves.iter().any(|c| c.event == event)
    }

    fn flat(&self, event: EventId) -> EventCurve {
        let count = self.duration_ns.div_ceil(self.bin_ns.max(1)) as usize;
        EventCurve {
            event,
            thread: None,
            bin_ns: self.bin_ns,
            duration_ns: self.duration_ns,
            values: vec![0; count],
        }
    }
}

/// One event over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCurve {
    /// The event counted.
    pub event: EventId,
    /// The thread, or `None` for all threads together.
    pub thread: Option<(Pid, Tid)>,
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// End of the curve in nanoseconds. The last bin may extend beyond it.
    pub duration_ns: u64,
    /// Increment in each bin, in the event's unit.
    pub values: Vec<u64>,
}

/// The busiest bin of a curve.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Peak {
    /// Start of the bin, nanoseconds since the recording began.
    pub start_ns: u64,
    /// Length of the bin in nanoseconds.
    pub length_ns: u64,
    /// Increment per second in the bin, in the event's unit.
    pub per_s: f64,
}

impl EventCurve {
    /// Sum over all bins, in the event's unit.
    pub fn total(&self) -> u64 {
        saturating_sum(&self.values)
    }

    /// The bin with the highest rate, the first among equals. The rate of the last bin refers to
    /// the part before the curve's end. A last bin of less than half the width is ignored, since
    /// rates of short times are high by chance.
    pub fn peak(&self) -> Option<Peak> {
        let bins = (0..self.values.len()).map(|i| self.bin(i));
        let bins = bins.filter(|bin| bin.start_ns == 0 || bin.length_ns >= self.bin_ns / 2);
        bins.fold(None, |best: Option<Peak>, bin| match best {
            Some(best) if best.per_s >= bin.per_s => Some(best),
            _ => Some(bin),
        })
    }

    fn bin(&self, i: usize) -> Peak {
        let start_ns = self.bin_ns.saturating_mul(i as u64);
        let length_ns = self.duration_ns.saturating_sub(start_ns).min(self.bin_ns);
        Peak {
            start_ns,
            length_ns,
            per_s: per_s(self.values[i], length_ns),
        }
    }

    /// Mean increment per second in each of `columns` equal parts of the duration, in the event's
    /// unit. A bin across a border is split in proportion.
    pub fn rates(&self, columns: usize) -> Vec<f64> {
        let border = |i: usize| portion(self.duration_ns, i as u64, columns as u64);
        let until = self.cumulated();
        (0..columns)
            .map(|i| {
                let (start, end) = (border(i), border(i + 1));
                let gain = self.until(&until, end) - self.until(&until, start);
                per_s(gain, end - start)
            })
            .collect()
    }

    /// Sum of the bins before each bin.
    fn cumulated(&self) -> Vec<u64> {
        let sums = self.values.iter().scan(0u64, |sum, &value| {
            let before = *sum;
            *sum = sum.saturating_add(value);
            Some(before)
        });
        sums.collect()
    }

    /// Sum of the curve before `time_ns`.
    fn until(&self, cumulated: &[u64], time_ns: u64) -> u64 {
        let i = (time_ns / self.bin_ns.max(1)) as usize;
        let Some(&before) = cumulated.get(i) else {
            return self.total();
        };
        let bin = self.bin(i);
        if bin.length_ns == 0 {
            return before;
        }
        let elapsed = (time_ns - bin.start_ns).min(bin.length_ns);
        before.saturating_add(portion(self.values[i], elapsed, bin.length_ns))
    }
}

/// `value` per second over `length_ns`. 0 for an empty interval.
fn per_s(value: u64, length_ns: u64) -> f64 {
    if length_ns == 0 {
        return 0.0;
    }
    value as f64 * NS_PER_S / length_ns as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle;
    use memgauge_trace::catalogue::{DRAM_READ_BYTES, LLC_MISS};
    use proptest::prelude::*;

    fn row(time_ns: u64, interval_ns: u64, value: u64) -> SeriesRow {
        SeriesRow {
            time_ns,
            interval_ns,
            value,
            event: LLC_MISS,
            ..SeriesRow::default()
        }
    }

    fn bin(mut series: Series, rows: &[SeriesRow]) -> Curves {
        series.observe(rows);
        series.finish()
    }

    fn check(series: Series, rows: &[SeriesRow], expected: &[u64]) {
        assert_eq!(bin(series, rows).event(LLC_MISS).values, expected);
    }

    #[test]
    fn row_inside_one_bin_stays_whole() {
        check(
            Series::with_bins(100, 10),
            &[row(15, 5, 7), row(100, 1, 1)],
            &[0, 7, 0, 0, 0, 0, 0, 0, 0, 1],
        );
    }

    #[test]
    fn row_over_several_bins_is_cut_and_the_rest_goes_last() {
        check(Series::with_bins(30, 3), &[row(30, 30, 10)], &[3, 3, 4]);
        check(Series::with_bins(30, 3), &[row(25, 20, 100)], &[25, 50, 25]);
    }

    #[test]
    fn row_without_length_falls_into_the_bin_it_ends() {
        check(
            Series::with_bins(20, 2),
            &[row(10, 0, 4), row(20, 0, 5)],
            &[4, 5],
        );
        check(
            Series::with_bins(20, 2),
            &[row(0, 0, 4), row(20, 0, 5)],
            &[4, 5],
        );
    }

    #[test]
    fn rows_beyond_the_duration_double_the_width() {
        let curves = bin(Series::with_bins(40, 4), &[row(40, 40, 8), row(70, 10, 3)]);
        assert_eq!(curves.bin_ns, 20);
        assert_eq!(curves.event(LLC_MISS).values, [4, 4, 0, 3]);
    }

    #[test]
    fn extreme_times_neither_overflow_nor_hang() {
        let rows = [row(u64::MAX, u64::MAX, u64::MAX), row(u64::MAX, 1, 1)];
        let curves = bin(Series::growing(1), &rows);
        assert_eq!(curves.event(LLC_MISS).values, [u64::MAX]);
    }

    #[test]
    fn threads_can_be_kept_apart() {
        let mut rows = [row(10, 10, 1), row(10, 10, 2)];
        rows[1].tid = Tid(9);
        let curves = bin(Series::with_bins(10, 1).per_thread(), &rows);
        let values: Vec<_> = curves.curves.iter().map(|c| c.values[0]).collect();
        assert_eq!(values, [1, 2]);
    }

    #[test]
    fn events_not_asked_for_still_count_for_the_duration() {
        let series = Series::with_bins(10, 1).only(&[DRAM_READ_BYTES]);
        let curves = bin(series, &[row(10, 10, 1)]);
        assert_eq!(curves.duration_ns, 10);
        assert!(curves.curves.is_empty());
        assert_eq!(curves.event(DRAM_READ_BYTES).values, [0]);
    }

    #[test]
    fn peak_counts_only_the_covered_part_of_the_last_bin() {
        let rows = [row(100, 100, 100), row(150, 50, 100)];
        let peak = bin(Series::with_width(100, 10), &rows)
            .event(LLC_MISS)
            .peak()
            .unwrap();
        assert_eq!((peak.start_ns, peak.length_ns), (100, 50));
        assert_eq!(peak.per_s, 2e9);
    }

    #[test]
    fn empty_series_has_no_peak_and_no_rate() {
        let curve = bin(Series::growing(100), &[]).event(LLC_MISS);
        assert_eq!(curve.peak(), None);
        assert_eq!(curve.rates(3), [0.0, 0.0, 0.0]);
    }

    #[test]
    fn columns_share_bins_in_proportion() {
        let rows = [row(10, 10, 30), row(20, 10, 60)];
        let rates = bin(Series::with_width(10, 2), &rows)
            .event(LLC_MISS)
            .rates(4);
        assert_eq!(rates, [3e9, 3e9, 6e9, 6e9]);
    }

    fn rows() -> impl Strategy<Value = Vec<SeriesRow>> {
        let one = (1u64..50_000, 0u64..60_000, 0u64..1_000_000);
        prop::collection::vec(one.prop_map(|(t, i, v)| row(t, i, v)), 1..40)
    }

    proptest! {
        #[test]
        fn bins_sum_to_the_rows(rows in rows(), max in 1usize..50) {
            let total: u64 = rows.iter().map(|r| r.value).sum();
            prop_assert_eq!(bin(Series::growing(max), &rows).event(LLC_MISS).total(), total);
        }

        #[test]
        fn growing_curve_equals_the_oracle_at_its_final_width(rows in rows(), max in 1usize..50) {
            let curves = bin(Series::growing(max), &rows);
            let expected = oracle::bins(&rows, curves.bin_ns);
            prop_assert_eq!(curves.event(LLC_MISS).values, expected);
        }

        #[test]
        fn merging_equals_observing_in_one(rows in rows(), cut in 0usize..40, max in 1usize..50) {
            let cut = cut.min(rows.len());
            let (mut left, mut right) = (Series::growing(max), Series::growing(max));
            left.observe(&rows[..cut]);
            right.observe(&rows[cut..]);
            left.merge(right);
            prop_assert_eq!(left.finish(), bin(Series::growing(max), &rows));
        }

        #[test]
        fn columns_sum_to_the_curve(rows in rows(), columns in 1usize..90) {
            let curve = bin(Series::growing(64), &rows).event(LLC_MISS);
            let border = |i| portion(curve.duration_ns, i as u64, columns as u64);
            let gain = |(i, rate): (usize, f64)| rate * (border(i + 1) - border(i)) as f64;
            let gains = curve.rates(columns).into_iter().enumerate().map(gain);
            let sum = gains.sum::<f64>() / NS_PER_S;
            prop_assert!((sum - curve.total() as f64).abs() < 1e-6 * (1.0 + sum));
        }
    }
}
