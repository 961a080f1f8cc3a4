//! Tracks the regions of interest (ROIs) that each thread is in, from the marks that a native
//! program writes (`roi_marks`).
//!
//! Samples arrive in the order of time. So before each sample the marks up to its time are
//! applied, and the sample counts for the regions that its thread is in at that point.
//!
//! Rejected: uprobes, which need root and cost a microsecond each.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use memgauge_host::roi::{MAX_SPANS, OpenRegion, OpenRegions, RegionEnd, RequestedNames, rows};
use memgauge_recording::Writer;
use memgauge_trace::{CodeRegion, CodeValue, EventId, Pid, RegionSpans, Tid};

use super::roi_marks::{MarkFile, RoiMark, RoiMarkKind};
use crate::Result;

#[derive(Debug, Default)]
struct RoiSums {
    entries: u64,
    time_ns: u64,
    events: BTreeMap<EventId, u64>,
}

/// Open regions, sums and time spans of all threads.
#[derive(Debug, Default)]
pub(super) struct RoiTracker {
    file: Option<MarkFile>,
    /// How far the events' clock is behind the marks' clock.
    clock_offset_ns: u64,
    start_ns: u64,
    /// Record only samples in these regions. Empty records all.
    requested: RequestedNames,
    waiting_marks: VecDeque<RoiMark>,
    /// Regions that each thread is in, with the time of entry, by process and thread.
    open: HashMap<(u32, u32), OpenRegions<String, u64>>,
    sums: BTreeMap<(Pid, Tid, String), RoiSums>,
    spans: BTreeMap<(Pid, Tid), RegionSpans<String>>,
    /// Names of all regions that any thread has entered.
    entered: BTreeSet<String>,
    values: Vec<CodeValue>,
    /// Number of region ends without a begin.
    pub(super) unmatched_ends: u64,
    /// Number of marks whose thread was killed while it wrote them.
    pub(super) lost_marks: u64,
    /// Number of marks for which the program found no room.
    pub(super) refused_marks: u64,
    latest_ns: u64,
}

impl RoiTracker {
    pub(super) fn new(file: Option<MarkFile>, requested: RequestedNames) -> RoiTracker {
        RoiTracker {
            file,
            requested,
            ..RoiTracker::default()
        }
    }

    /// Requested names of regions that no thread has entered.
    pub(super) fn never_entered(&self) -> Vec<String> {
        self.requested
            .unmatched(self.entered.iter().map(String::as_str))
    }

    /// Sets the start of the recording on the events' clock.
    pub(super) fn begin(&mut self, start_ns: u64, clock_offset_ns: u64) {
        (self.start_ns, self.clock_offset_ns) = (start_ns, clock_offset_ns);
    }

    /// Reads the marks that programs have written.
    pub(super) fn read(&mut self, last: bool) {
        let Some(file) = &mut self.file else {
            return;
        };
        let waiting = &mut self.waiting_marks;
        self.lost_marks += file.drain(last, |mark| waiting.push_back(mark));
        if last {
            self.refused_marks = file.refused();
        }
        // A thread takes the mark's number before it reads the clock, so marks of two threads can
        // be out of order.
        let sorted = self.waiting_marks.make_contiguous();
        sorted.sort_by_key(|mark| mark.time_ns);
    }

    /// Applies the marks up to a time of the events' clock.
    #[inline]
    pub(super) fn advance(&mut self, to_ns: u64) {
        if !self.waiting_marks.is_empty() {
            self.apply_until(to_ns);
        }
    }

    fn apply_until(&mut self, to_ns: u64) {
        let clock_offset_ns = self.clock_offset_ns;
        let is_due = |mark: &RoiMark| mark.time_ns.saturating_sub(clock_offset_ns) <= to_ns;
        while self.waiting_marks.front().is_some_and(is_due) {
            if let Some(mark) = self.waiting_marks.pop_front() {
                self.apply(mark);
            }
        }
    }

    fn apply(&mut self, mark: RoiMark) {
        let at_ns = mark
            .time_ns
            .saturating_sub(self.clock_offset_ns + self.start_ns);
        self.latest_ns = self.latest_ns.max(at_ns);
        let ids = (Pid(mark.pid), Tid(mark.tid));
        let open = self.open.entry((mark.pid, mark.tid)).or_default();
        match mark.kind {
            RoiMarkKind::Value => self.values.push(CodeValue {
                time_ns: at_ns,
                pid: ids.0,
                tid: ids.1,
                name: mark.name,
                value: mark.value,
            }),
            RoiMarkKind::Begin => {
                if open.begin(mark.name.clone(), at_ns) {
                    if !self.entered.contains(&mark.name) {
                        self.entered.insert(mark.name.clone());
                    }
                    let key = (ids.0, ids.1, mark.name);
                    self.sums.entry(key).or_default().entries += 1;
                }
            }
            RoiMarkKind::End => match open.end(&mark.name) {
                RegionEnd::Left(region) => self.leave(ids, region, at_ns),
                RegionEnd::Within => {}
                RegionEnd::Unmatched => self.unmatched_ends += 1,
            },
        }
    }

    /// Leaves all regions of a thread that has ended or called `exec`.
    pub(super) fn end_thread(&mut self, (pid, tid): (u32, u32), time_ns: u64) {
        self.advance(time_ns);
        let at_ns = time_ns.saturating_sub(self.start_ns);
        if let Some(mut open) = self.open.remove(&(pid, tid)) {
            for region in open.end_all() {
                self.leave((Pid(pid), Tid(tid)), region, at_ns);
            }
        }
    }

    fn leave(&mut self, (pid, tid): (Pid, Tid), region: OpenRegion<String, u64>, at_ns: u64) {
        let spans = self.spans.entry((pid, tid));
        let spans = spans.or_insert_with(|| RegionSpans::at_most(MAX_SPANS));
        spans.add(region.name.clone(), region.since, at_ns);
        let sums = self.sums.entry((pid, tid, region.name)).or_default();
        sums.time_ns += at_ns.saturating_sub(region.since);
    }

    /// Counts a sample for the regions that its thread is in. Returns false if the sample is
    /// outside the requested regions and must not be recorded.
    #[inline]
    pub(super) fn count_sample(&mut self, pid: u32, tid: u32, event: EventId, period: u64) -> bool {
        (self.open.is_empty() && self.requested.is_empty())
            || self.count_sample_in_regions(pid, tid, event, period)
    }

    fn count_sample_in_regions(&mut self, pid: u32, tid: u32, event: EventId, period: u64) -> bool {
        let mut regions = self
            .open
            .get(&(pid, tid))
            .into_iter()
            .flat_map(OpenRegions::iter);
        let is_requested = |region: &OpenRegion<String, u64>| self.requested.holds(&region.name);
        if !self.requested.is_empty() && !regions.clone().any(is_requested) {
            return false;
        }
        for region in &mut regions {
            let key = (Pid(pid), Tid(tid), region.name.clone());
            let sums = self.sums.entry(key).or_default();
            let sum = sums.events.entry(event).or_default();
            *sum = sum.saturating_add(period);
        }
        true
    }

    /// Writes the values that the program has marked so far.
    pub(super) fn write_values(&mut self, writer: &mut Writer) -> Result<()> {
        Ok(writer.extend(self.values.drain(..))?)
    }

    /// Leaves all open regions and writes sums and spans.
    pub(super) fn finish(&mut self, end_ns: u64, writer: &mut Writer) -> Result<()> {
        self.advance(u64::MAX);
        let end_ns = end_ns.max(self.latest_ns);
        for ((pid, tid), mut open) in std::mem::take(&mut self.open) {
            for region in open.end_all() {
                self.leave((Pid(pid), Tid(tid)), region, end_ns);
            }
        }
        self.write_values(writer)?;
        for ((pid, tid, name), sums) in std::mem::take(&mut self.sums) {
            let row = CodeRegion {
                pid,
                tid,
                name,
                entries: sums.entries,
                time_ns: sums.time_ns,
                ..CodeRegion::default()
            };
            writer.extend(rows(row, sums.events))?;
        }
        for ((pid, tid), spans) in std::mem::take(&mut self.spans) {
            writer.extend(spans.rows(|name| (name.clone(), pid, tid)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(time_ns: u64, kind: RoiMarkKind, name: &str) -> RoiMark {
        RoiMark {
            time_ns,
            pid: 1,
            tid: 2,
            value: 0,
            kind,
            name: name.to_owned(),
        }
    }

    #[test]
    fn sample_counts_for_the_regions_of_its_thread_at_its_time() {
        use RoiMarkKind::{Begin, End};
        let mut rois = RoiTracker::new(
            None,
            RequestedNames::new("--region", &["a".to_owned()]).unwrap(),
        );
        rois.begin(100, 0);
        rois.waiting_marks.extend([
            mark(110, Begin, "a"),
            mark(120, Begin, "b"),
            mark(130, End, "a"),
            mark(140, End, "b"),
            mark(150, End, "b"),
        ]);
        let event = EventId(7);
        let mut sampled = |time_ns: u64, tid| {
            rois.advance(time_ns);
            rois.count_sample(1, tid, event, 10)
        };
        assert!(!sampled(105, 2));
        assert!(sampled(115, 2) && !sampled(115, 3));
        assert!(sampled(125, 2));
        assert!(!sampled(135, 2));
        rois.advance(u64::MAX);
        assert_eq!(rois.unmatched_ends, 1);
        let sums = rois.sums.iter().map(|((_, _, name), s)| {
            (
                name.as_str(),
                s.entries,
                s.time_ns,
                s.events.get(&event).copied(),
            )
        });
        let sums: Vec<_> = sums.collect();
        assert_eq!(sums, [("a", 1, 20, Some(20)), ("b", 1, 20, Some(10))]);
    }
}
