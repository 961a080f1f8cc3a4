//! Curves over time, as two formats show them.

use memgauge_analyze::{Summary, Timeline};

/// The curves over time, where there are any.
pub(crate) fn curves(summary: &Summary) -> Option<&Timeline> {
    let timeline = summary.timeline.as_ref();
    timeline.filter(|timeline| !timeline.curves.is_empty() && timeline.bin_ns > 0)
}

/// End of the bin that starts at `start_ns`: the last one ends with the run.
pub(crate) fn bin_end(timeline: &Timeline, start_ns: u64) -> u64 {
    let end = start_ns + timeline.bin_ns;
    let run_end = timeline.start_ns + timeline.duration_ns;
    // A value of a clock's last tick may lie beyond the end.
    if run_end > start_ns {
        end.min(run_end)
    } else {
        end
    }
}
