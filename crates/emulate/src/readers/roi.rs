//! Regions of interest: what a thread's core counted between marks (`engine/src/region.c`).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use memgauge_host::roi::{MAX_SPANS, OpenRegion, OpenRegions, RegionEnd, rows};
use memgauge_machine::Counts;
use memgauge_trace::{CodeRegion, Pid, RegionSpan, RegionSpans, Tid};

use crate::engine::wire;
use crate::engine::words::load;

/// A region mark in a thread's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionMark {
    /// Number of the name.
    pub(crate) name: u32,
    pub(crate) kind: RegionMarkKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionMarkKind {
    Begin,
    End,
    Value(u64),
    /// A mark of an unknown kind.
    Nothing,
}

/// Number of the name in a mark's first word, and the kind. Values have kind 0.
pub(crate) fn mark_of(word: u64) -> (u32, RegionMarkKind) {
    let carried = word & wire::ADDRESS;
    let kind = match carried >> wire::REGION_KIND_SHIFT {
        wire::REGION_BEGIN => RegionMarkKind::Begin,
        wire::REGION_END => RegionMarkKind::End,
        wire::REGION_VALUE => RegionMarkKind::Value(0),
        _ => RegionMarkKind::Nothing,
    };
    (carried as u32, kind)
}

impl RegionMark {
    /// Reads the mark at `at`, if there is one. Returns it with its number of words.
    pub(crate) fn at(words: &[AtomicU64], at: usize) -> Option<(RegionMark, usize)> {
        let word = load(words, at).filter(|&word| wire::mark(word) == wire::MARK_REGION)?;
        let (name, kind) = mark_of(word);
        let half = |n: usize, mark: u64| {
            load(words, at + n)
                .filter(|&word| wire::mark(word) == mark)
                .map(|word| word & u64::from(u32::MAX))
        };
        let (kind, length) = match kind {
            RegionMarkKind::Value(_) => {
                let halves = half(1, wire::MARK_VALUE_HIGH).zip(half(2, wire::MARK_VALUE_LOW));
                match halves {
                    Some((high, low)) => (RegionMarkKind::Value(high << 32 | low), 3),
                    None => (RegionMarkKind::Nothing, 1),
                }
            }
            kind => (kind, 1),
        };
        Some((RegionMark { name, kind }, length))
    }
}

/// Counters and clock of a core at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CoreReading {
    pub(crate) counts: Counts,
    pub(crate) time_ns: u64,
}

/// Limits a thread's recording to the time inside some regions.
#[derive(Debug, Default)]
pub(crate) struct RegionGate {
    /// Number of wanted regions that the thread is in.
    within: u32,
    /// Counts at entry.
    entered: Counts,
    /// Counts inside before that.
    inside: Counts,
    /// Total of all intervals so far, and the part of it inside.
    ticked: Counts,
    reported: Counts,
}

impl RegionGate {
    pub(crate) fn is_inside(&self) -> bool {
        self.within > 0
    }

    fn enter(&mut self, now: &Counts) {
        self.within += 1;
        if self.within == 1 {
            self.entered = *now;
        }
    }

    fn leave(&mut self, now: &Counts) {
        self.within -= 1;
        if self.within == 0 {
            self.inside.add_since(now, &self.entered);
        }
    }

    /// Counts inside, if the thread's counts are these.
    pub(crate) fn inside(&self, now: &Counts) -> Counts {
        let mut all = self.inside;
        if self.is_inside() {
            all.add_since(now, &self.entered);
        }
        all
    }

    /// The part of an interval's counts that is inside.
    pub(crate) fn tick(&mut self, deltas: &Counts) -> Counts {
        self.ticked.add(deltas);
        let inside = self.inside(&self.ticked);
        let mut gained = Counts::default();
        gained.add_since(&inside, &self.reported);
        self.reported.add(&gained);
        gained
    }
}

/// Sums of one region in one thread.
#[derive(Debug, Default)]
struct ThreadRegionSums {
    entries: u64,
    time_ns: u64,
    counts: Counts,
}

/// The regions of one thread.
#[derive(Debug)]
pub(crate) struct ThreadRegions {
    /// Open regions, whether they are recorded, and the counts at entry.
    inside: OpenRegions<u32, (bool, CoreReading)>,
    sums: BTreeMap<u32, ThreadRegionSums>,
    spans: RegionSpans<u32>,
    /// Set if the recording is limited to some regions.
    pub(crate) gate: Option<RegionGate>,
}

impl Default for ThreadRegions {
    fn default() -> ThreadRegions {
        ThreadRegions {
            inside: OpenRegions::default(),
            sums: BTreeMap::new(),
            spans: RegionSpans::at_most(MAX_SPANS),
            gate: None,
        }
    }
}

impl ThreadRegions {
    /// Regions of a thread of which only the time inside wanted regions is recorded.
    pub(crate) fn gated() -> ThreadRegions {
        ThreadRegions {
            gate: Some(RegionGate::default()),
            ..ThreadRegions::default()
        }
    }

    /// True if the thread's current activity is not recorded.
    pub(crate) fn is_outside(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| !gate.is_inside())
    }

    /// The recorded part of a thread's counts.
    pub(crate) fn recorded(&self, counts: &Counts) -> Counts {
        let gate = self.gate.as_ref();
        gate.map_or(*counts, |gate| gate.inside(counts))
    }

    /// Begins a region. `wanted` is true if it is recorded.
    pub(crate) fn begin(&mut self, name: u32, wanted: bool, now: CoreReading) {
        if !self.inside.begin(name, (wanted, now)) {
            return;
        }
        self.sums.entry(name).or_default().entries += 1;
        if let Some(gate) = self.gate.as_mut().filter(|_| wanted) {
            gate.enter(&now.counts);
        }
    }

    /// Ends a region. Returns false if the thread was not in it.
    pub(crate) fn end(&mut self, name: u32, now: &CoreReading) -> bool {
        match self.inside.end(&name) {
            RegionEnd::Left(left) => self.leave(&left, now),
            RegionEnd::Within => {}
            RegionEnd::Unmatched => return false,
        }
        true
    }

    /// Ends all open regions.
    pub(crate) fn end_all(&mut self, now: &CoreReading) {
        for left in self.inside.end_all() {
            self.leave(&left, now);
        }
    }

    fn leave(&mut self, left: &OpenRegion<u32, (bool, CoreReading)>, now: &CoreReading) {
        let (wanted, since) = &left.since;
        if let Some(gate) = self.gate.as_mut().filter(|_| *wanted) {
            gate.leave(&now.counts);
        }
        let sums = self.sums.entry(left.name).or_default();
        sums.time_ns += now.time_ns.saturating_sub(since.time_ns);
        sums.counts.add_since(&now.counts, &since.counts);
        self.spans.add(left.name, since.time_ns, now.time_ns);
    }

    /// Rows of the sums. `names` has the names of regions.
    pub(crate) fn rows(
        &self,
        names: &BTreeMap<u32, String>,
        pid: Pid,
        tid: Tid,
    ) -> Vec<CodeRegion> {
        let mut all = Vec::new();
        for (number, sums) in &self.sums {
            let counted = sums.counts.iter().filter(|&(_, count)| count > 0);
            let row = CodeRegion {
                pid,
                tid,
                name: name_of(names, *number),
                entries: sums.entries,
                time_ns: sums.time_ns,
                ..CodeRegion::default()
            };
            all.extend(rows(row, counted));
        }
        all
    }

    /// Time spans inside regions. `names` has the names of regions.
    pub(crate) fn spans(
        &self,
        names: &BTreeMap<u32, String>,
        pid: Pid,
        tid: Tid,
    ) -> Vec<RegionSpan> {
        self.spans
            .rows(|&number| (name_of(names, number), pid, tid))
    }
}

/// Name of a number, which may be invalid in damaged shared memory.
pub(crate) fn name_of(names: &BTreeMap<u32, String>, number: u32) -> String {
    let known = names.get(&number).cloned();
    known.unwrap_or_else(|| format!("(region {number})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::catalogue::INSTRUCTIONS;

    fn reading(time_ns: u64) -> CoreReading {
        CoreReading {
            time_ns,
            ..CoreReading::default()
        }
    }

    /// Counts of a core that executed `n` instructions and nothing else.
    fn instructions(n: u64) -> Counts {
        let config = memgauge_machine::Config::preset("zen4").unwrap();
        let pmu = memgauge_machine::PmuConfig::default();
        let mut machine = memgauge_machine::Machine::new(config, pmu).unwrap();
        let id = machine.add_core(0);
        let (core, _) = machine.core_mut(id);
        for _ in 0..n {
            core.retire(1, 0, 0, 0);
        }
        core.counts()
    }

    fn sums(regions: &ThreadRegions) -> Vec<(String, u64, u64)> {
        let names = BTreeMap::from([(1, "a".to_owned()), (2, "b".to_owned())]);
        let rows = regions.rows(&names, Pid(1), Tid(2));
        let heads = rows.into_iter().filter(|row| row.event.is_none());
        heads
            .map(|row| (row.name, row.entries, row.time_ns))
            .collect()
    }

    #[test]
    fn a_region_within_itself_is_entered_once() {
        let mut regions = ThreadRegions::default();
        regions.begin(1, false, reading(10));
        regions.begin(1, false, reading(20));
        regions.end(1, &reading(30));
        regions.end(1, &reading(50));
        regions.begin(1, false, reading(60));
        regions.end(1, &reading(61));
        assert_eq!(sums(&regions), [("a".to_owned(), 2, 41)]);
    }

    #[test]
    fn regions_that_overlap_count_each_for_itself() {
        let mut regions = ThreadRegions::default();
        regions.begin(1, false, reading(10));
        regions.begin(2, false, reading(20));
        regions.end(1, &reading(30));
        regions.end_all(&reading(70));
        let expected = [("a".to_owned(), 1, 20), ("b".to_owned(), 1, 50)];
        assert_eq!(sums(&regions), expected);
    }

    #[test]
    fn a_gate_divides_intervals_by_what_was_inside() {
        let counts = instructions;
        let at = |n| CoreReading {
            counts: counts(n),
            ..CoreReading::default()
        };
        let mut regions = ThreadRegions::gated();
        assert!(regions.is_outside());
        regions.begin(1, true, at(10));
        regions.begin(2, false, at(20));
        assert!(!regions.is_outside());
        let tick = |regions: &mut ThreadRegions, n| {
            regions
                .gate
                .as_mut()
                .unwrap()
                .tick(&counts(n))
                .get(INSTRUCTIONS)
        };
        assert_eq!(tick(&mut regions, 50), 40);
        regions.end(1, &at(70));
        regions.begin(1, true, at(90));
        assert_eq!(tick(&mut regions, 50), 30);
        regions.end(1, &at(101));
        assert_eq!(tick(&mut regions, 50), 1);
        assert_eq!(regions.recorded(&counts(150)).get(INSTRUCTIONS), 71);
    }

    #[test]
    fn an_end_without_a_begin_is_unmatched() {
        let mut regions = ThreadRegions::default();
        let was_inside = regions.end(1, &reading(30));
        assert_eq!((was_inside, sums(&regions).len()), (false, 0));
    }

    #[test]
    fn marks_are_read_and_broken_ones_take_a_word() {
        let begin = wire::MARK_REGION | wire::REGION_BEGIN << wire::REGION_KIND_SHIFT | 7;
        let value = wire::MARK_REGION | wire::REGION_VALUE << wire::REGION_KIND_SHIFT | 8;
        let (high, low) = (wire::MARK_VALUE_HIGH | 1, wire::MARK_VALUE_LOW | 2);
        let words: Vec<AtomicU64> = [begin, value, high, low, value, low]
            .map(AtomicU64::new)
            .into();
        let at = |at| RegionMark::at(&words, at).map(|(mark, n)| (mark.name, mark.kind, n));
        assert_eq!(at(0), Some((7, RegionMarkKind::Begin, 1)));
        assert_eq!(at(1), Some((8, RegionMarkKind::Value(1 << 32 | 2), 3)));
        assert_eq!(at(2), None);
        assert_eq!(at(4), Some((8, RegionMarkKind::Nothing, 1)));
    }
}
