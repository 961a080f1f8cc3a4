//! Regions of interest of a program that runs natively, from the marks that it writes
//! (`marks`). Samples come in order of time, so each finds the regions that its thread
//! was in.
//!
//! Rejected: uprobes, which take root and a microsecond each.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use memgauge_host::regions::{End, MOST_SPANS, Open, OpenRegions, RequestedNames, rows};
use memgauge_recording::Writer;
use memgauge_trace::{CodeValue, EventId, Pid, RegionSpans, Tid};

use super::marks::{Mark, MarkFile, MarkKind};
use crate::Result;

#[derive(Debug, Default)]
struct Sums {
    entries: u64,
    time_ns: u64,
    events: BTreeMap<EventId, u64>,
}

/// Who was in which region when.
#[derive(Debug, Default)]
pub(super) struct Regions {
    file: Option<MarkFile>,
    /// The events' clock is so far behind the marks'.
    behind_ns: u64,
    start_ns: u64,
    /// Only samples in these are recorded; empty: all.
    wanted: RequestedNames,
    waiting: VecDeque<Mark>,
    /// Which each thread is in, and since when.
    inside: HashMap<(u32, u32), OpenRegions<String, u64>>,
    sums: BTreeMap<(Pid, Tid, String), Sums>,
    spans: BTreeMap<(Pid, Tid), RegionSpans<String>>,
    /// Names of all regions that a thread has been in.
    entered: BTreeSet<String>,
    values: Vec<CodeValue>,
    /// Ends of regions that had not begun, marks of threads that were killed as they made
    /// them, marks without room, samples outside of what is wanted.
    pub(super) unmatched: u64,
    pub(super) lost: u64,
    pub(super) refused: u64,
    pub(super) outside: u64,
    latest_ns: u64,
}

impl Regions {
    pub(super) fn new(file: Option<MarkFile>, wanted: RequestedNames) -> Regions {
        Regions {
            file,
            wanted,
            ..Regions::default()
        }
    }

    /// Names that were asked for and that no thread has been in.
    pub(super) fn absent(&self) -> Vec<String> {
        self.wanted.absent(self.entered.iter().map(String::as_str))
    }

    /// Recording began, on the events' clock.
    pub(super) fn begin(&mut self, start_ns: u64, behind_ns: u64) {
        (self.start_ns, self.behind_ns) = (start_ns, behind_ns);
    }

    /// Reads the marks that programs have written.
    pub(super) fn read(&mut self, last: bool) {
        let Some(file) = &mut self.file else {
            return;
        };
        let waiting = &mut self.waiting;
        self.lost += file.take(last, |mark| waiting.push_back(mark));
        if last {
            self.refused = file.refused();
        }
        // Threads take a number before they read the clock.
        let sorted = self.waiting.make_contiguous();
        sorted.sort_by_key(|mark| mark.time_ns);
    }

    /// Takes the marks up to a time of the events' clock.
    #[inline]
    pub(super) fn advance(&mut self, to_ns: u64) {
        if !self.waiting.is_empty() {
            self.take_until(to_ns);
        }
    }

    fn take_until(&mut self, to_ns: u64) {
        let behind_ns = self.behind_ns;
        let is_due = |mark: &Mark| mark.time_ns.saturating_sub(behind_ns) <= to_ns;
        while self.waiting.front().is_some_and(is_due) {
            if let Some(mark) = self.waiting.pop_front() {
                self.take(mark);
            }
        }
    }

    fn take(&mut self, mark: Mark) {
        let at_ns = mark.time_ns.saturating_sub(self.behind_ns + self.start_ns);
        self.latest_ns = self.latest_ns.max(at_ns);
        let ids = (Pid(mark.pid), Tid(mark.tid));
        let inside = self.inside.entry((mark.pid, mark.tid)).or_default();
        match mark.kind {
            MarkKind::Value => self.values.push(CodeValue {
                time_ns: at_ns,
                pid: ids.0,
                tid: ids.1,
                name: mark.name,
                value: mark.value,
            }),
            MarkKind::Begin => {
                if inside.begin(mark.name.clone(), at_ns) {
                    if !self.entered.contains(&mark.name) {
                        self.entered.insert(mark.name.clone());
                    }
                    let key = (ids.0, ids.1, mark.name);
                    self.sums.entry(key).or_default().entries += 1;
                }
            }
            MarkKind::End => match inside.end(&mark.name) {
                End::Left(left) => self.leave(ids, left, at_ns),
                End::Within => {}
                End::Unmatched => self.unmatched += 1,
            },
        }
    }

    /// A thread has ended, or has become another program, and with it its regions.
    pub(super) fn end_thread(&mut self, (pid, tid): (u32, u32), time_ns: u64) {
        self.advance(time_ns);
        let at_ns = time_ns.saturating_sub(self.start_ns);
        let inside = self.inside.remove(&(pid, tid));
        for left in inside.into_iter().flat_map(|mut all| all.end_all()) {
            self.leave((Pid(pid), Tid(tid)), left, at_ns);
        }
    }

    fn leave(&mut self, (pid, tid): (Pid, Tid), left: Open<String, u64>, at_ns: u64) {
        let spans = self.spans.entry((pid, tid));
        let spans = spans.or_insert_with(|| RegionSpans::at_most(MOST_SPANS));
        spans.add(left.name.clone(), left.since, at_ns);
        let sums = self.sums.entry((pid, tid, left.name)).or_default();
        sums.time_ns += at_ns.saturating_sub(left.since);
    }

    /// Counts a sample at a thread's regions; whether it is to be recorded.
    #[inline]
    pub(super) fn sample(&mut self, pid: u32, tid: u32, event: EventId, period: u64) -> bool {
        (self.inside.is_empty() && self.wanted.is_empty())
            || self.sample_inside(pid, tid, event, period)
    }

    fn sample_inside(&mut self, pid: u32, tid: u32, event: EventId, period: u64) -> bool {
        let inside = self.inside.get(&(pid, tid));
        let mut open = inside.into_iter().flat_map(OpenRegions::iter);
        if !self.wanted.is_empty() && !open.any(|open| self.wanted.holds(&open.name)) {
            self.outside += 1;
            return false;
        }
        for open in inside.into_iter().flat_map(OpenRegions::iter) {
            let key = (Pid(pid), Tid(tid), open.name.clone());
            let sums = self.sums.entry(key).or_default();
            let sum = sums.events.entry(event).or_default();
            *sum = sum.saturating_add(period);
        }
        true
    }

    /// Writes the values so far.
    pub(super) fn write_values(&mut self, writer: &mut Writer) -> Result<()> {
        Ok(writer.extend(self.values.drain(..))?)
    }

    /// Ends what is open and writes the sums.
    pub(super) fn finish(&mut self, end_ns: u64, writer: &mut Writer) -> Result<()> {
        self.advance(u64::MAX);
        let end_ns = end_ns.max(self.latest_ns);
        for ((pid, tid), mut all) in std::mem::take(&mut self.inside) {
            for left in all.end_all() {
                self.leave((Pid(pid), Tid(tid)), left, end_ns);
            }
        }
        self.write_values(writer)?;
        for ((pid, tid, name), sums) in std::mem::take(&mut self.sums) {
            let entered = (sums.entries, sums.time_ns);
            writer.extend(rows((pid, tid), name, entered, sums.events))?;
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

    fn at(time_ns: u64, kind: MarkKind, name: &str) -> Mark {
        Mark {
            time_ns,
            pid: 1,
            tid: 2,
            value: 0,
            kind,
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_sample_belongs_to_the_regions_of_its_thread_at_its_time() {
        use MarkKind::{Begin, End};
        let mut regions = Regions::new(
            None,
            RequestedNames::new("--region", &["a".to_owned()]).unwrap(),
        );
        regions.begin(100, 0);
        regions.waiting.extend([
            at(110, Begin, "a"),
            at(120, Begin, "b"),
            at(130, End, "a"),
            at(140, End, "b"),
            at(150, End, "b"),
        ]);
        let event = EventId(7);
        let mut sampled = |time_ns: u64, tid| {
            regions.advance(time_ns);
            regions.sample(1, tid, event, 10)
        };
        assert!(!sampled(105, 2));
        assert!(sampled(115, 2) && !sampled(115, 3));
        assert!(sampled(125, 2));
        assert!(!sampled(135, 2));
        regions.advance(u64::MAX);
        assert_eq!((regions.unmatched, regions.outside), (1, 3));
        let sums = regions.sums.iter().map(|((_, _, name), s)| {
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
