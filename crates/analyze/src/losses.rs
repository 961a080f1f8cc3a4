//! Losses: data that is missing from the recording.

use std::collections::BTreeMap;

use memgauge_trace::{Loss, LossKind};
use serde::Serialize;

use crate::Analysis;

/// Maximum number of distinct details of each kind. Further ones are summed under
/// [`OTHER_DETAILS`], so that memory stays bounded if each failure has a new text.
const MAX_DETAILS: usize = 1000;

const OTHER_DETAILS: &str = "(other details)";

/// Total of a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LossRow {
    /// Kind, as in the format's description (`ring_full`).
    pub kind: String,
    /// Meaning of the loss.
    pub meaning: String,
    /// Details, or empty.
    pub detail: String,
    /// Amount.
    pub count: u64,
}

impl LossRow {
    pub(crate) fn is(&self, kind: LossKind) -> bool {
        self.kind == sentence(kind).0
    }
}

/// Sums losses by kind and detail, sorted by kind, then falling count, then detail.
#[derive(Clone, Debug, Default)]
pub struct Losses(BTreeMap<LossKind, BTreeMap<String, u64>>);

impl Losses {
    fn add(&mut self, kind: LossKind, detail: &str, count: u64) {
        let details = self.0.entry(kind).or_default();
        let full = details.len() >= MAX_DETAILS && !details.contains_key(detail);
        let detail = if full { OTHER_DETAILS } else { detail };
        let sum = details.entry(detail.to_owned()).or_default();
        *sum = sum.saturating_add(count);
    }
}

impl Analysis for Losses {
    type Row = Loss;
    type Output = Vec<LossRow>;

    fn observe(&mut self, batch: &[Loss]) {
        for loss in batch {
            self.add(loss.kind, &loss.detail, loss.count);
        }
    }

    fn merge(&mut self, other: Self) {
        for (kind, details) in other.0 {
            for (detail, count) in details {
                self.add(kind, &detail, count);
            }
        }
    }

    fn finish(self) -> Vec<LossRow> {
        let by_kind = self.0.into_iter();
        by_kind.flat_map(|(kind, d)| rows(kind, d)).collect()
    }
}

fn rows(kind: LossKind, details: BTreeMap<String, u64>) -> Vec<LossRow> {
    let (name, meaning) = sentence(kind);
    let mut rows: Vec<LossRow> = details
        .into_iter()
        .map(|(detail, count)| LossRow {
            kind: name.to_owned(),
            meaning: meaning.to_owned(),
            detail,
            count,
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

/// Name of a kind for programs, and its meaning.
pub fn sentence(kind: LossKind) -> (&'static str, &'static str) {
    match kind {
        LossKind::Unknown => ("unknown", "losses of a kind this version does not know"),
        LossKind::RingFull => ("ring_full", "records dropped because the ring was full"),
        LossKind::Throttled => ("throttled", "throttled by the kernel"),
        LossKind::ProgramNotFollowed => (
            "program_not_followed",
            "programs started by exec and not followed",
        ),
        LossKind::ThreadNotRecorded => ("thread_not_recorded", "threads or processes not recorded"),
        LossKind::StillRunning => (
            "still_running",
            "processes still running when the recording ended",
        ),
        LossKind::BlockCut => (
            "block_cut",
            "runs of accesses cut short (by faults, or code that writes to itself)",
        ),
        LossKind::StrayAccess => ("stray_access", "accesses without their instruction"),
        LossKind::PartNotWritten => ("part_not_written", "not written to the recording"),
        LossKind::ActivationDelay => (
            "activation_delay",
            "events between an overflow and its record, in no record (known from the model)",
        ),
        LossKind::MachineClear => (
            "machine_clear",
            "misses that no counter saw: records aborted their loads, which then hit (known from \
            the model)",
        ),
        LossKind::BufferFull => (
            "buffer_full",
            "records dropped because the processor's buffer was full",
        ),
        LossKind::RegionEnd => (
            "region_end",
            "ends of regions of interest that had not begun in their thread",
        ),
        LossKind::SharingNotAttributed => (
            "sharing_not_attributed",
            "of sharing between threads that could not be attributed",
        ),
        LossKind::StoppedTime => (
            "stopped_ns",
            "nanoseconds of running time in which the kernel had stopped the counters",
        ),
        LossKind::NotObserved => (
            "not_observed_ns",
            "nanoseconds between the end of the previous recording of the collection and this one",
        ),
        LossKind::RecordingDropped => (
            "recording_dropped",
            "recordings of the collection dropped because they could not be uploaded in time",
        ),
        LossKind::IoNotAttributed => (
            "io_not_attributed",
            "I/O that could not be attributed to a process",
        ),
        LossKind::Undecoded => (
            "undecoded",
            "instructions in the code that are not recorded",
        ),
        LossKind::NotKept => (
            "not_kept",
            "parts of records that a recording does not keep",
        ),
        LossKind::Unreadable => ("unreadable", "unreadable parts of the input"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(kind: LossKind, detail: &str, count: u64) -> Loss {
        Loss {
            kind,
            detail: detail.to_owned(),
            count,
            ..Loss::default()
        }
    }

    #[test]
    fn losses_sum_by_kind_and_detail_largest_first() {
        let mut losses = Losses::default();
        losses.observe(&[
            loss(LossKind::Throttled, "", 1),
            loss(LossKind::RingFull, "a", 2),
            loss(LossKind::RingFull, "b", 3),
        ]);
        let mut other = Losses::default();
        other.observe(&[loss(LossKind::RingFull, "b", 4)]);
        losses.merge(other);
        let rows = losses.finish();
        let seen: Vec<_> = rows
            .iter()
            .map(|r| (r.kind.as_str(), r.detail.as_str(), r.count))
            .collect();
        assert_eq!(
            seen,
            [
                ("ring_full", "b", 7),
                ("ring_full", "a", 2),
                ("throttled", "", 1)
            ]
        );
    }

    #[test]
    fn endless_new_details_are_summed_without_losing_any() {
        let mut losses = Losses::default();
        for i in 0..5000 {
            losses.observe(&[loss(LossKind::Undecoded, &i.to_string(), 1)]);
        }
        let rows = losses.finish();
        assert_eq!(rows.len(), MAX_DETAILS + 1);
        assert_eq!(rows[0].detail, OTHER_DETAILS);
        assert_eq!(rows.iter().map(|r| r.count).sum::<u64>(), 5000);
    }
}
