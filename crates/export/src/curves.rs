//! Helpers for formats with curves over time.

use memgauge_analyze::{Summary, Timeline};

/// Returns the timeline if it has curves.
pub(crate) fn curves(summary: &Summary) -> Option<&Timeline> {
    let timeline = summary.timeline.as_ref();
    timeline.filter(|timeline| !timeline.curves.is_empty() && timeline.bin_ns > 0)
}

/// Returns the end of the bin that starts at `start_ns`. The last bin ends with the run.
pub(crate) fn bin_end(timeline: &Timeline, start_ns: u64) -> u64 {
    let end = start_ns + timeline.bin_ns;
    let run_end = timeline.start_ns + timeline.duration_ns;
    // A value of the clock's last tick can be after the end.
    if run_end > start_ns {
        end.min(run_end)
    } else {
        end
    }
}
