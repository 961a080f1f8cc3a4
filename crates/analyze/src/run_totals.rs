//! Totals of a run without its large tables.
//!
//! A recorder that ended in order wrote the totals into the manifest. They are complete if they
//! have every event that the manifest defines. Otherwise series and sites are summed, of which
//! only the columns of events and counts are read.

use memgauge_recording::{Recording, Result, Selection};
use memgauge_trace::{SeriesRow, SiteCount};

use crate::counts::{Counts, EventNames, EventSums};

/// Totals of a run: those of [`Summary::totals`](crate::Summary::totals).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunTotals {
    /// Sums over the run by event name, in the event's unit.
    pub totals: Counts,
    /// Parts that could not be read, in words.
    pub problems: Vec<String>,
}

/// Returns the totals of a run.
///
/// # Errors
/// The file system fails. Damaged parts are skipped and listed.
pub fn run_totals(recording: &Recording) -> Result<RunTotals> {
    let manifest = recording.manifest();
    let mut totals = manifest.totals.clone();
    let mut problems = recording.problems();
    let is_known = |name: &String| totals.contains_key(name);
    if !manifest.events.iter().all(|event| is_known(&event.name)) {
        let (mut series, mut sites) = (EventSums::default(), EventSums::default());
        let columns = Selection::all().columns(&["event", "value"]);
        recording.for_each_intact_batch::<SeriesRow>(&columns, &mut problems, |rows| {
            rows.iter().for_each(|row| series.add(row.event, row.value));
        })?;
        let columns = Selection::all().columns(&["event", "count"]);
        recording.for_each_intact_batch::<SiteCount>(&columns, &mut problems, |rows| {
            rows.iter().for_each(|row| sites.add(row.event, row.count));
        })?;
        let names = EventNames::of(manifest);
        for (event, sum) in series.iter().chain(sites.iter()) {
            totals.entry(names.name(event)).or_insert(sum);
        }
    }
    Ok(RunTotals { totals, problems })
}
