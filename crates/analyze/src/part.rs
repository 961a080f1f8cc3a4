//! A range of time of a recording in fine bins, for a viewer in which the user selected it. Reads
//! only those row groups of the large tables that overlap the range.

use std::ops::Range;

use memgauge_recording::{Recording, Result, Selection};
use memgauge_trace::{Sample, SeriesRow};

use crate::Analysis;
use crate::code::address_spaces::address_spaces;
use crate::counts::EventNames;
use crate::resolve::Resolve;
use crate::time::series::Series;
use crate::time::series::finest_bin_ns;
use crate::time::timeline::{FINEST_BINS, SampleTimes, Timeline};

/// Timeline of a range of time, and messages about parts that could not be read.
pub fn summarise_part(
    recording: &Recording,
    symbols: &mut dyn Resolve,
    time_ns: Range<u64>,
) -> Result<(Timeline, Vec<String>)> {
    let mut problems = recording.problems();
    let spaces = address_spaces(recording, &mut problems)?;
    let mut samples = SampleTimes::from(&spaces, time_ns.start);
    let of_time = Selection::all().time(time_ns.clone());
    recording.for_each_intact_batch(&of_time, &mut problems, |rows: &[Sample]| {
        samples.observe(rows)
    })?;
    let mut series = Series::with_width(finest_bin_ns(recording.manifest()), FINEST_BINS);
    // A row has the time of its end, so an interval that starts in the range can end later.
    let until = time_ns.end.saturating_add(longest_interval(recording));
    let of_time = Selection::all().time(time_ns.start.saturating_add(1)..until);
    recording.for_each_intact_batch(&of_time, &mut problems, |rows: &[SeriesRow]| {
        let inside: Vec<SeriesRow> = rows.iter().filter_map(|r| cut(r, &time_ns)).collect();
        series.observe(&inside);
    })?;
    let names = EventNames::of(recording.manifest());
    let timeline = Timeline::of(samples.finish(), &series.finish(), symbols, &names);
    problems.extend(symbols.problems());
    Ok((timeline, problems))
}

/// Maximum time after a range at which a row that starts in it may end.
fn longest_interval(recording: &Recording) -> u64 {
    let ticks = recording.manifest().counting.as_ref();
    let ticks = ticks.and_then(|c| c.ticks.as_ref());
    let interval_ns = ticks.map_or(0, |ticks| ticks.interval_ns);
    // Ticks are late. In practice an interval is at most twice as long.
    finest_bin_ns(recording.manifest()).max(interval_ns.saturating_mul(2))
}

/// The part of a row inside the range, with its time relative to the start.
fn cut(row: &SeriesRow, time_ns: &Range<u64>) -> Option<SeriesRow> {
    let length = row.interval_ns.max(1);
    let start = row.time_ns.saturating_sub(length).max(time_ns.start);
    let end = row.time_ns.min(time_ns.end);
    let inside = end.checked_sub(start).filter(|&ns| ns > 0)?;
    let value = u128::from(row.value) * u128::from(inside) / u128::from(length);
    Some(SeriesRow {
        time_ns: end - time_ns.start,
        interval_ns: inside,
        value: value as u64,
        ..row.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_at_both_ends_in_proportion() {
        let row = SeriesRow {
            time_ns: 200,
            interval_ns: 100,
            value: 1000,
            ..SeriesRow::default()
        };
        let cut = |time| cut(&row, &time).map(|r| (r.time_ns, r.interval_ns, r.value));
        assert_eq!(cut(0..1000), Some((200, 100, 1000)));
        assert_eq!(cut(150..1000), Some((50, 50, 500)));
        assert_eq!(cut(120..130), Some((10, 10, 100)));
        assert_eq!(cut(200..300), None);
        assert_eq!(cut(0..100), None);
    }
}
