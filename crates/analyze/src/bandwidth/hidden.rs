//! Estimate of the misses that no counter shows because a record's stop aborted their loads.
//!
//! A stop aborts the loads in flight. Their lines still arrive, so the loads hit when they execute
//! again, and the counter of misses never sees them. A stop hides the *independent* load misses
//! among the next few hundred instructions (the *reach* of a stop), limited by the number of fill
//! buffers. Stores, and loads that wait for another load's data, have not started and are not
//! hidden.
//!
//! The estimate is made per window of a thread's counters and per length of the gap between
//! two overflows:
//!
//! 1. *Load misses in a gap*: from samples of overflows after gaps of about that length. The
//!    first level's misses of loads and stores set limits.
//! 2. *Independent load misses*: from the cycles that the window stalled for regular and for
//!    irregular load misses.
//! 3. *Instructions in a gap*: there are two readings. [By rate](Mechanism::by_rate),
//!    instructions run evenly in the window's time. This is right where misses come evenly and
//!    too low for a burst between computation. [By stalls](Mechanism::by_stalls), the
//!    window's stalls are shared evenly among its load misses and instructions run in the rest
//!    of each gap. This is right for bursts and too high where few of many loads wait long.
//!    Stalls are trusted as far as the window's misses are independent loads.
//! 4. *Hidden lines*: the density of independent load misses in instructions gives the lines
//!    that a stop hides.
//!
//! Both readings space the misses of a gap evenly, since no counter shows how close together they
//! are. Bursts shorter than a period hide more. Their length is unknown, so the estimate contains a
//! fifth of the maximum that they can hide. In every gap that has room for a burst, the interval
//! reaches from nothing to the whole maximum.
//!
//! The calibration's loops give the constants of a processor: time per instruction, stall of an
//! independent and of a dependent load miss, and hidden lines by density.
//!
//! Estimates that contain the mean over all burst lengths were tried. They halve the error of
//! short bursts, but at period 10 real programs came out 15 % too high on average.
//! docs/experiments/bandwidth.md has the numbers.

use std::collections::BTreeMap;

use memgauge_trace::{EventId, SeriesRow, Tid, catalogue};

use super::LossPoint;

/// Number of fixed-point iterations. Hidden lines raise the density that they are computed from,
/// which has converged after these.
const ROUNDS: usize = 24;
/// Bisection steps that find the stall of a load miss.
const BISECTION_STEPS: usize = 20;
/// Exponents for the weight of the reading by stalls: of the share of independent loads among the
/// loads, and of the share of loads among the misses. Chosen on fifteen programs and validated on
/// others (docs/experiments/bandwidth.md).
const TRUST: (f64, f64) = (1.5, 3.0);
/// Factor by which independent loads may be more frequent where a stop strikes than in the
/// whole gap. It is two in a copy, where each stop finds loads although half of the misses are
/// stores.
const CLUSTERED_SHARE: f64 = 2.0;
/// Bursts shorter than a period can hide lines. The estimate contains this share of them, as far as
/// stalls are trusted. The true share is anywhere between 0 and 1. A larger share lowers the error
/// of short bursts and raises that of evenly spaced misses, which are more frequent in real
/// programs.
const EXPECTED_BURSTS: f64 = 0.2;
/// Half width of the interval for evenly spaced misses, as a share of the hidden lines. Stops
/// in a loop strike the same few places, which hide up to a tenth more or less than the mean
/// over all places.
const PHASE_ERROR: f64 = 0.1;
/// Half octaves of a gap's own time.
const CLASSES: usize = 128;
/// Maximum number of counter windows. Beyond it, only the lengths of gaps are used.
const MAX_WINDOWS: usize = 1 << 21;

/// Lines hidden by the records of one processor, from its calibration at one period.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mechanism {
    /// Time of an instruction that does not stall, in nanoseconds.
    issue_ns: f64,
    /// Stall of an independent load miss, in nanoseconds.
    overlapped_ns: f64,
    /// Stall of a load miss whose address comes from another load, in nanoseconds.
    alone_ns: f64,
    /// Time that a record takes, in nanoseconds.
    pub(super) record_ns: f64,
    /// Independent load misses per instruction, and lines hidden with each record.
    knots: Vec<(f64, f64)>,
    reach: Reach,
    /// Mean standard error of the hidden lines.
    pub(super) error: f64,
}

/// Lines that a stop hides, by the density of independent load misses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reach {
    /// Lines hidden if misses are far apart.
    sparse_lines: f64,
    /// Further lines per miss per instruction, which is the number of instructions in flight.
    instructions: f64,
    /// Maximum number of lines, limited by the fill buffers.
    max_lines: f64,
}

/// Contents of the gap before an overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct GapContents {
    /// Share of loads among the misses that the counter saw.
    loads: f64,
    /// Independent load misses that the counter saw.
    independent: f64,
    instructions: f64,
}

/// Hidden lines, and half the width of their 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct HiddenLines {
    pub(super) hidden: f64,
    pub(super) half_width: f64,
}

impl Mechanism {
    /// Builds the mechanism from the loops measured at the nearest periods. `None` if the
    /// calibration lacks the necessary data.
    pub(super) fn of(curves: &[(u64, Vec<LossPoint>)], period: u64) -> Option<Mechanism> {
        let dense = |p: &&LossPoint| p.dense && p.instructions > 0.0;
        let sparsest = curves.last()?;
        let least = |points: &[LossPoint], sign: f64| {
            let points = points.iter().filter(dense);
            points
                .min_by(|a, b| (sign * a.instructions).total_cmp(&(sign * b.instructions)))
                .cloned()
        };
        let (short, long) = (least(&sparsest.1, 1.0)?, least(&sparsest.1, -1.0)?);
        let chase = sparsest
            .1
            .iter()
            .find(|p| !p.dense && p.instructions > 0.0)?;
        let apart = long.instructions - short.instructions;
        let issue_ns = (long.spacing_ns - short.spacing_ns) / apart.max(1.0);
        let after = curves.partition_point(|c| c.0 < period);
        let high = curves.get(after).or(curves.last())?;
        let low = curves.get(after.saturating_sub(1))?;
        // Proportional to the period, since the backlog of waiting loads grows by this many lines
        // per event.
        let span = high.0.saturating_sub(low.0) as f64;
        let share = match span > 0.0 {
            true => (period.saturating_sub(low.0) as f64 / span).clamp(0.0, 1.0),
            false => 1.0,
        };
        let mixed = |a: f64, b: f64| a + (b - a) * share;
        let mut knots = vec![(0.0, 0.0)];
        let (mut errors, mut record_ns) = (0.0, chase.record_ns);
        for point in low.1.iter().filter(dense) {
            let same = high
                .1
                .iter()
                .find(|p| p.name == point.name)
                .unwrap_or(point);
            let hidden = mixed(point.hidden, same.hidden);
            knots.push((1.0 / point.instructions, hidden));
            errors += mixed(point.error, same.error);
            record_ns = mixed(point.record_ns, same.record_ns);
        }
        knots.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mechanism = Mechanism {
            issue_ns,
            overlapped_ns: short.spacing_ns - short.instructions * issue_ns,
            alone_ns: chase.spacing_ns - chase.instructions * issue_ns,
            record_ns,
            error: errors / (knots.len() - 1) as f64,
            reach: Reach::from_knots(&knots),
            knots,
        };
        let sound = issue_ns > 0.0 && mechanism.alone_ns > 2.0 * mechanism.overlapped_ns;
        (sound && mechanism.knots.len() > 2).then_some(mechanism)
    }

    /// Lines hidden at a density of independent load misses.
    fn at(&self, density: f64) -> f64 {
        let after = self.knots.partition_point(|k| k.0 < density);
        match (self.knots.get(after), after.checked_sub(1)) {
            (Some(high), Some(low)) => {
                let low = self.knots[low];
                low.1 + (high.1 - low.1) * (density - low.0) / (high.0 - low.0)
            }
            (Some(first), None) => first.1,
            (None, _) => self.knots.last().map_or(0.0, |k| k.1),
        }
    }

    /// Estimates the lines hidden in a window.
    fn hidden(&self, window: &WindowCounts, period: f64, gaps: &[Gaps]) -> HiddenLines {
        let records: f64 = gaps.iter().map(|g| g.count).sum();
        if records < 1.0 || window.own_ns <= 0.0 || window.counted <= 0.0 {
            return HiddenLines::default();
        }
        let seen = (window.counted / records).clamp(period, 2.0 * period);
        let contents = self.gap_contents(window, seen, gaps);
        let loads = gaps.iter().zip(&contents).map(|(g, c)| g.count * c.loads);
        let loads = loads.sum::<f64>() / records;
        let trust = self.independent(window).powf(TRUST.0) * loads.powf(TRUST.1);
        let mut lines = HiddenLines::default();
        for (gaps, contents) in gaps.iter().zip(&contents) {
            let rate = self.by_rate(window, seen, gaps, contents);
            let stalls = self.by_stalls(seen, contents);
            // There is no room for a burst in a gap that a stop covers completely.
            let room = 1.0 - (self.reach.instructions / contents.instructions).min(1.0);
            let share = CLUSTERED_SHARE * (contents.independent + stalls) / (seen + stalls);
            let burst = room * (share.min(1.0) * self.reach.max_lines - stalls).max(0.0);
            let hidden = rate + (stalls - rate + EXPECTED_BURSTS * burst) * trust;
            let max_hidden = self.max_hidden(window, seen, contents);
            let most = (rate.max(stalls) + burst).max(max_hidden);
            let apart = (most - hidden).max(hidden - rate.min(stalls));
            lines.hidden += gaps.count * hidden;
            lines.half_width += gaps.count * (apart + PHASE_ERROR * hidden + self.error);
        }
        lines
    }

    /// Lines that the stop after a gap hides if instructions run evenly in the window's time.
    fn by_rate(
        &self,
        window: &WindowCounts,
        seen: f64,
        gaps: &Gaps,
        contents: &GapContents,
    ) -> f64 {
        let instructions = (window.instructions / window.own_ns * gaps.own_ns).max(1.0);
        let overlapped = contents.loads * self.independent(window);
        let part = overlapped / (overlapped + 1.0 - contents.loads).max(f64::MIN_POSITIVE);
        let stalled = (gaps.own_ns - instructions * self.issue_ns).max(0.0) / seen;
        let short = self.overlapped_ns * part;
        let waiting = ((stalled - short) / (self.alone_ns - short)).clamp(0.0, 1.0);
        let mut hidden = 0.0;
        for _ in 0..ROUNDS {
            let density = (1.0 - waiting) * part * (seen + hidden) / instructions;
            // Move only half way, so that the iteration converges instead of oscillating.
            hidden = (hidden + self.at(density)) / 2.0;
        }
        hidden
    }

    /// Lines that the stop after a gap hides if instructions run when nothing stalls.
    fn by_stalls(&self, seen: f64, contents: &GapContents) -> f64 {
        let mut hidden = 0.0;
        for _ in 0..ROUNDS {
            let independent = contents.independent + hidden;
            let found = independent / (seen + hidden) * self.reach.sparse_lines
                + self.reach.instructions * independent / contents.instructions;
            hidden = (hidden + found.min(self.reach.max_lines)) / 2.0;
        }
        hidden
    }

    /// Maximum number of lines hidden in a gap that a stop covers completely. All loads between two
    /// stops may be hidden, as in a copy that looks like a stream of stores.
    fn max_hidden(&self, window: &WindowCounts, seen: f64, contents: &GapContents) -> f64 {
        if contents.instructions > self.reach.instructions || window.instructions <= 0.0 {
            return 0.0;
        }
        let loads = window.loads / window.instructions * contents.instructions;
        (loads - contents.loads * seen).clamp(0.0, self.reach.max_lines)
    }

    /// Distributes a window's stalls and independent load misses over its gaps.
    fn gap_contents(&self, window: &WindowCounts, seen: f64, gaps: &[Gaps]) -> Vec<GapContents> {
        let (least, most) = window.load_share();
        let loads: Vec<f64> = shift_mean(gaps, least, most)
            .into_iter()
            .map(|share| share * seen)
            .collect();
        let stall_ns = self.stall_per_load(self.stalled(window), seen, gaps, &loads);
        let of_gap = |(gaps, loads): (&Gaps, &f64)| {
            let stalled = (stall_ns * loads).min(self.room(gaps, seen));
            let dependent = (stalled / loads.max(f64::MIN_POSITIVE) - self.overlapped_ns)
                / (self.alone_ns - self.overlapped_ns);
            GapContents {
                loads: loads / seen,
                independent: loads * (1.0 - dependent.clamp(0.0, 1.0)),
                instructions: ((gaps.own_ns - stalled) / self.issue_ns).max(1.0),
            }
        };
        let mut contents: Vec<GapContents> = gaps.iter().zip(&loads).map(of_gap).collect();
        // Times show which gaps have independent loads, and the counters show how many there are.
        let independent: Vec<f64> = contents.iter().map(|c| c.independent).collect();
        let counted = sum(gaps, &loads) * self.independent(window);
        let factor = counted / sum(gaps, &independent).max(f64::MIN_POSITIVE);
        for (contents, loads) in contents.iter_mut().zip(&loads) {
            contents.independent = (contents.independent * factor).min(*loads);
        }
        contents
    }

    /// Stall of one load miss, if all are equal and those of a window add up to `stalled_ns`.
    fn stall_per_load(&self, stalled_ns: f64, seen: f64, gaps: &[Gaps], loads: &[f64]) -> f64 {
        let (mut low, mut high) = (0.0, 3.0 * self.alone_ns);
        for _ in 0..BISECTION_STEPS {
            let middle = (low + high) / 2.0;
            let stalled = |(g, v): (&Gaps, &f64)| g.count * (middle * v).min(self.room(g, seen));
            let all: f64 = gaps.iter().zip(loads).map(stalled).sum();
            match all < stalled_ns {
                true => low = middle,
                false => high = middle,
            }
        }
        (low + high) / 2.0
    }

    /// Maximum time for which a gap can have stalled, since each miss took at least one
    /// instruction.
    fn room(&self, gaps: &Gaps, seen: f64) -> f64 {
        (gaps.own_ns - seen * self.issue_ns).max(0.0)
    }

    /// Stall time of a window.
    fn stalled(&self, window: &WindowCounts) -> f64 {
        (window.own_ns - window.instructions * self.issue_ns).max(0.0)
    }

    /// Share of a window's load misses that wait for no other load, by its stalls.
    fn independent(&self, window: &WindowCounts) -> f64 {
        let regular = window.regular_ns / self.overlapped_ns.max(f64::MIN_POSITIVE);
        let irregular = window.irregular_ns / self.alone_ns;
        regular / (regular + irregular).max(f64::MIN_POSITIVE)
    }
}

impl Reach {
    /// Builds the curve from knots, the sparsest loop first: independent load misses per
    /// instruction, and lines hidden with each record. Loops with equal distances hide whole lines
    /// only, which is half a line less than the mean over unequal distances.
    fn from_knots(knots: &[(f64, f64)]) -> Reach {
        let max_lines = knots.iter().map(|k| k.1).fold(0.0, f64::max);
        let (Some(a), Some(b)) = (knots.get(1), knots.get(2)) else {
            return Reach {
                sparse_lines: max_lines,
                instructions: 0.0,
                max_lines,
            };
        };
        let instructions = (b.1 - a.1) / (b.0 - a.0).max(f64::MIN_POSITIVE);
        Reach {
            sparse_lines: (a.1 - instructions * a.0 + 0.5).clamp(0.0, max_lines),
            instructions: instructions.max(0.0),
            max_lines,
        }
    }
}

/// Lines hidden with all records.
fn sum(gaps: &[Gaps], each: &[f64]) -> f64 {
    gaps.iter().zip(each).map(|(g, h)| g.count * h).sum()
}

/// Shares of loads by gap, shifted to a mean between `least` and `most`.
fn shift_mean(gaps: &[Gaps], least: f64, most: f64) -> Vec<f64> {
    let records: f64 = gaps.iter().map(|g| g.count).sum();
    let mean = gaps.iter().map(|g| g.count * g.loads).sum::<f64>() / records;
    let shift = |g: &Gaps| {
        if mean > most {
            g.loads * most / mean
        } else if mean < least {
            1.0 - (1.0 - g.loads) * (1.0 - least) / (1.0 - mean)
        } else {
            g.loads
        }
    };
    gaps.iter().map(shift).collect()
}

/// Overflows of one window after gaps of about one length.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    count: f64,
    /// Mean length without the time of the previous record.
    own_ns: f64,
    /// Share of loads among overflows after such gaps.
    loads: f64,
}

/// Increments of a thread's counters in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WindowCounts {
    instructions: f64,
    own_ns: f64,
    /// Count of the event itself.
    counted: f64,
    /// Retired loads, hits and misses.
    loads: f64,
    load_misses: f64,
    store_misses: f64,
    /// Stalls for load misses close to the previous one, whose latencies overlap.
    regular_ns: f64,
    /// Stalls for other load misses.
    irregular_ns: f64,
}

impl WindowCounts {
    /// Minimum and maximum share of loads among the misses, from the first level's misses: the
    /// minimum assumes that no load missed only in a lower level.
    fn load_share(&self) -> (f64, f64) {
        let all = self.counted.max(1.0);
        let least = (1.0 - self.store_misses / all).clamp(0.0, 1.0);
        let most = (self.load_misses / all).clamp(0.0, 1.0);
        (least, most.max(least))
    }
}

/// Counters of all threads in windows of one width.
#[derive(Debug, Default)]
pub(super) struct WindowCounters {
    event: EventId,
    from_ns: u64,
    end_ns: u64,
    pub(super) width_ns: u64,
    ns_per_cycle: f64,
    windows: BTreeMap<(u32, usize), WindowCounts>,
    too_many: bool,
}

impl WindowCounters {
    pub(super) fn new(
        event: EventId,
        (from_ns, end_ns): (u64, u64),
        width_ns: u64,
    ) -> WindowCounters {
        WindowCounters {
            event,
            from_ns,
            end_ns,
            width_ns,
            ..WindowCounters::default()
        }
    }

    /// Sets the frequency to convert cycles of the series to nanoseconds.
    pub(super) fn clock(&mut self, frequency_hz: u64) {
        self.ns_per_cycle = 1e9 / frequency_hz.max(1) as f64;
    }

    pub(super) fn observe(&mut self, row: &SeriesRow) {
        let of = |e: EventId| -> Option<fn(&mut WindowCounts) -> &mut f64> {
            match e {
                catalogue::INSTRUCTIONS => Some(|c| &mut c.instructions),
                catalogue::CYCLES => Some(|c| &mut c.own_ns),
                catalogue::LOADS => Some(|c| &mut c.loads),
                catalogue::STALL_REGULAR => Some(|c| &mut c.regular_ns),
                catalogue::STALL_IRREGULAR => Some(|c| &mut c.irregular_ns),
                catalogue::L1D_LOAD_MISS => Some(|c| &mut c.load_misses),
                catalogue::L1D_STORE_MISS => Some(|c| &mut c.store_misses),
                e if e == self.event => Some(|c| &mut c.counted),
                _ => None,
            }
        };
        let Some(field) = of(row.event) else {
            return;
        };
        let start = row.time_ns.saturating_sub(row.interval_ns);
        let scale = match row.event {
            catalogue::CYCLES | catalogue::STALL_REGULAR | catalogue::STALL_IRREGULAR => {
                self.ns_per_cycle
            }
            _ => 1.0,
        };
        let rate = row.value as f64 * scale / row.interval_ns.max(1) as f64;
        let (mut at, end) = (start.max(self.from_ns), row.time_ns.min(self.end_ns));
        while at < end {
            let index = (at - self.from_ns) / self.width_ns;
            let next = end.min(self.from_ns + (index + 1) * self.width_ns);
            if self.windows.len() >= MAX_WINDOWS {
                self.too_many = true;
                return;
            }
            let window = self.windows.entry((row.tid.0, index as usize)).or_default();
            *field(window) += rate * (next - at) as f64;
            at = next;
        }
    }

    /// True if the series contains the counters that the mechanism needs.
    pub(super) fn are_recorded(&self) -> bool {
        let told = |c: &WindowCounts| c.counted > 0.0 && c.instructions > 0.0 && c.own_ns > 0.0;
        !self.too_many && self.windows.values().any(told)
    }

    fn window(&self, time_ns: u64) -> usize {
        (time_ns.saturating_sub(self.from_ns) / self.width_ns) as usize
    }
}

/// Samples of overflows by the length of the gap before.
#[derive(Debug)]
pub(super) struct LoadSamples {
    /// Times of each thread's samples in order, and whether each was a load.
    waiting: BTreeMap<Tid, (usize, Vec<(u64, bool)>)>,
    /// Number of loads, and of all samples.
    classes: Vec<(f64, f64)>,
}

impl LoadSamples {
    pub(super) fn new(mut samples: BTreeMap<Tid, Vec<(u64, bool)>>) -> LoadSamples {
        samples.values_mut().for_each(|s| s.sort_unstable());
        LoadSamples {
            waiting: samples.into_iter().map(|(t, s)| (t, (0, s))).collect(),
            classes: vec![(0.0, 0.0); CLASSES],
        }
    }

    /// Counts a thread's samples before `time_ns`. They belong to the previous overflow, which came
    /// after a gap of this class. Times in a trace may be rounded down, those of samples are not.
    pub(super) fn until(&mut self, tid: Tid, time_ns: u64, class: usize) {
        let Some((next, samples)) = self.waiting.get_mut(&tid) else {
            return;
        };
        while let Some((_, load)) = samples.get(*next).filter(|s| s.0 < time_ns) {
            self.classes[class].0 += f64::from(u8::from(*load));
            self.classes[class].1 += 1.0;
            *next += 1;
        }
    }

    /// Share of loads after gaps of each class. Classes with few samples lean towards the share of
    /// all gaps.
    pub(super) fn shares(&self) -> Vec<f64> {
        /// Weight of the share of all gaps, in samples.
        const PRIOR: f64 = 2.0;
        let all = self
            .classes
            .iter()
            .fold((0.0, 0.0), |a, c| (a.0 + c.0, a.1 + c.1));
        let usual = if all.1 > 0.0 { all.0 / all.1 } else { 1.0 };
        let share = |c: &(f64, f64)| (c.0 + PRIOR * usual) / (c.1 + PRIOR);
        self.classes.iter().map(share).collect()
    }
}

/// Class of a gap: its own time in half octaves.
pub(super) fn class(own_ns: f64) -> usize {
    let own = own_ns.max(2.0) as u64;
    let octave = own.ilog2() as usize;
    2 * octave + (own >> (octave - 1) & 1) as usize
}

/// Overflows of a thread in one window, and the lines that their records have hidden so far.
#[derive(Debug)]
pub(super) struct WindowOverflows {
    window: usize,
    classes: Vec<(f64, f64)>,
    /// Classes with overflows.
    used: Vec<usize>,
}

impl Default for WindowOverflows {
    fn default() -> WindowOverflows {
        WindowOverflows {
            window: 0,
            classes: vec![(0.0, 0.0); CLASSES],
            used: Vec::new(),
        }
    }
}

/// Estimates the hidden lines of a trace.
#[derive(Debug, Default)]
pub(super) struct Finder {
    pub(super) mechanism: Mechanism,
    pub(super) counters: WindowCounters,
    period: f64,
    /// Share of loads by class of gap.
    pub(super) loads: Vec<f64>,
    /// Lines hidden by thread and window.
    hidden: BTreeMap<(u32, usize), HiddenLines>,
}

impl Finder {
    pub(super) fn new(mechanism: Mechanism, counters: WindowCounters, period: u64) -> Finder {
        Finder {
            mechanism,
            counters,
            period: period as f64,
            ..Finder::default()
        }
    }

    /// Length of a gap without the time of the record.
    pub(super) fn own_ns(&self, gap_ns: u64) -> f64 {
        (gap_ns as f64 - self.mechanism.record_ns).max(1.0)
    }

    /// Adds an overflow. Overflows of a thread must come in order.
    pub(super) fn take(
        &mut self,
        tid: u32,
        overflows_of_window: &mut WindowOverflows,
        time_ns: u64,
        gap_ns: u64,
    ) {
        let window = self.counters.window(time_ns);
        if window != overflows_of_window.window {
            self.finish_window(tid, overflows_of_window);
            overflows_of_window.window = window;
        }
        let own_ns = self.own_ns(gap_ns);
        let class = class(own_ns);
        let some = &mut overflows_of_window.classes[class];
        if some.0 == 0.0 {
            overflows_of_window.used.push(class);
        }
        some.0 += 1.0;
        some.1 += own_ns;
    }

    /// Estimates the lines hidden in the collected window.
    pub(super) fn finish_window(&mut self, tid: u32, overflows_of_window: &mut WindowOverflows) {
        let key = (tid, overflows_of_window.window);
        let gaps = |class: &usize| {
            let (count, own_ns) = std::mem::take(&mut overflows_of_window.classes[*class]);
            Gaps {
                count,
                own_ns: own_ns / count,
                loads: self.loads.get(*class).copied().unwrap_or(1.0),
            }
        };
        let gaps: Vec<Gaps> = overflows_of_window.used.iter().map(gaps).collect();
        overflows_of_window.used.clear();
        if let Some(window) = self.counters.windows.get(&key) {
            let hidden = self.mechanism.hidden(window, self.period, &gaps);
            let sum = self.hidden.entry(key).or_default();
            sum.hidden += hidden.hidden;
            sum.half_width += hidden.half_width;
        }
    }

    /// Events of each thread and window: counted and hidden.
    pub(super) fn events(&self) -> impl Iterator<Item = (u32, usize, f64)> + '_ {
        self.counters.windows.iter().map(|(key, counted)| {
            let lines = self.hidden.get(key).copied().unwrap_or_default();
            (key.0, key.1, counted.counted + lines.hidden)
        })
    }

    /// Half the width of the interval around all events. The errors of windows are systematic, so
    /// they add up. Hidden lines are also a count and vary like a Poisson variable.
    pub(super) fn half_width(&self) -> f64 {
        let hidden: f64 = self.hidden.values().map(|lines| lines.hidden).sum();
        let half_width: f64 = self.hidden.values().map(|lines| lines.half_width).sum();
        half_width + 1.96 * (hidden + 1.0).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(
        name: &str,
        period: u64,
        instructions: f64,
        spacing_ns: f64,
        hidden: f64,
    ) -> LossPoint {
        LossPoint {
            name: name.to_owned(),
            period,
            spacing_ns,
            instructions,
            hidden,
            record_ns: 250.0,
            dense: name != "chase",
            ..LossPoint::default()
        }
    }

    /// A processor that issues 10 instructions a nanosecond. It has fill buffers for 12
    /// lines at period 10 and 30 at 1000, and its loads stall for 7 or 70 ns.
    fn mechanism(period: u64) -> Option<Mechanism> {
        let at = |period, most: f64| {
            let points = vec![
                point("linear", period, 1.0, 7.1, most),
                point("linear/16", period, 16.0, 8.6, most.min(14.0)),
                point("linear/100", period, 100.0, 17.0, 2.0),
                point("chase", period, 4.0, 70.4, 0.0),
            ];
            (period, points)
        };
        Mechanism::of(&[at(10, 12.0), at(1000, 30.0)], period)
    }

    /// A window of records at period 10. Each record comes after its own number of nanoseconds.
    fn hidden(window: WindowCounts, own_ns: f64, loads: f64) -> HiddenLines {
        let gaps = Gaps {
            count: 100.0,
            own_ns,
            loads,
        };
        mechanism(10).unwrap().hidden(&window, 10.0, &[gaps])
    }

    #[test]
    fn calibration_tells_what_instructions_and_loads_take() {
        let found = mechanism(10).unwrap();
        let times = [found.issue_ns, found.overlapped_ns, found.alone_ns];
        for (got, expected) in times.into_iter().zip([0.1, 7.0, 70.0]) {
            assert!((got - expected).abs() < 1e-9, "{times:?}");
        }
        assert_eq!(Mechanism::of(&[], 10), None);
    }

    #[test]
    fn between_periods_the_lines_hidden_grow_with_the_events() {
        let most = |period| mechanism(period).unwrap().reach.max_lines;
        assert_eq!((most(10), most(1000), most(5_000)), (12.0, 30.0, 30.0));
        assert!((most(505) - 21.0).abs() < 1e-9);
    }

    #[test]
    fn independent_loads_are_hidden_as_far_as_there_are_buffers() {
        let window = WindowCounts {
            instructions: 1_400.0,
            own_ns: 10_000.0,
            counted: 1_400.0,
            load_misses: 1_400.0,
            regular_ns: 9_800.0,
            ..WindowCounts::default()
        };
        assert!((hidden(window, 100.0, 1.0).hidden - 1_200.0).abs() < 1.0);
        // With one miss in a hundred instructions, a stop finds two or three misses in flight if
        // they are evenly spaced, and about ten if they come in bursts.
        let sparse = WindowCounts {
            instructions: 140_000.0,
            own_ns: 24_000.0,
            ..window
        };
        let found = hidden(sparse, 240.0, 1.0);
        for each in [2.0, 3.0, 10.0] {
            let apart = (found.hidden - 100.0 * each).abs();
            assert!(apart < found.half_width, "{each}: {found:?}");
        }
        assert!((200.0..500.0).contains(&found.hidden), "{found:?}");
    }

    #[test]
    fn loads_that_wait_for_others_and_stores_are_not_hidden() {
        let chase = WindowCounts {
            instructions: 4_400.0,
            own_ns: 77_440.0,
            counted: 1_100.0,
            load_misses: 1_100.0,
            irregular_ns: 77_000.0,
            ..WindowCounts::default()
        };
        assert_eq!(hidden(chase, 774.4, 1.0), HiddenLines::default());
        let stores = WindowCounts {
            instructions: 1_100.0,
            own_ns: 110.0,
            counted: 1_100.0,
            store_misses: 1_100.0,
            ..WindowCounts::default()
        };
        // The first level counted no loads, whatever the samples show.
        assert_eq!(hidden(stores, 1.1, 0.5), HiddenLines::default());
    }

    #[test]
    fn a_copy_whose_loads_are_all_hidden_is_within_the_interval() {
        // 100 records of ten stores, before each of which a load was aborted.
        let copy = WindowCounts {
            instructions: 4_000.0,
            own_ns: 400.0,
            counted: 1_000.0,
            loads: 1_000.0,
            store_misses: 1_000.0,
            ..WindowCounts::default()
        };
        let found = hidden(copy, 4.0, 0.0);
        assert_eq!(found.hidden, 0.0);
        assert!((found.half_width - 1_000.0).abs() < 1e-6, "{found:?}");
        // Without loads there is nothing to hide.
        let fill = WindowCounts { loads: 0.0, ..copy };
        assert_eq!(hidden(fill, 4.0, 0.0), HiddenLines::default());
    }

    #[test]
    fn gaps_too_short_for_dependent_loads_have_the_independent_ones() {
        // 50 records of a scan of a load in 10 instructions, and 50 of a chase.
        let window = WindowCounts {
            instructions: 50.0 * 110.0 + 50.0 * 110.0,
            own_ns: 50.0 * 88.0 + 50.0 * 781.0,
            counted: 1_100.0,
            load_misses: 1_100.0,
            regular_ns: 550.0 * 7.0,
            irregular_ns: 550.0 * 70.0,
            ..WindowCounts::default()
        };
        let gaps = [88.0, 781.0].map(|own_ns| Gaps {
            count: 50.0,
            own_ns,
            loads: 1.0,
        });
        let contents = mechanism(10).unwrap().gap_contents(&window, 11.0, &gaps);
        assert!(contents[0].independent > 10.0, "{contents:?}");
        assert!(contents[1].independent < 1.0, "{contents:?}");
    }

    #[test]
    fn a_burst_in_a_window_of_computing_is_told_by_its_stalls() {
        // 20 records of a scan with a load in 20 instructions, which hides 11 lines
        // each, and 80 000 ns of computing around them.
        let (own_ns, instructions) = (118.0, 420.0);
        let window = WindowCounts {
            instructions: 20.0 * instructions + 800_000.0,
            own_ns: 20.0 * own_ns + 80_000.0,
            counted: 220.0,
            load_misses: 220.0,
            regular_ns: 220.0 * 7.0,
            ..WindowCounts::default()
        };
        let of = |count, own_ns| Gaps {
            count,
            own_ns,
            loads: 1.0,
        };
        let gaps = [of(19.0, own_ns), of(1.0, 80_000.0)];
        let mechanism = mechanism(10).unwrap();
        let found = mechanism.hidden(&window, 10.0, &gaps);
        let truth = 19.0 * 11.0 + 1.0;
        assert!((found.hidden / truth - 1.0).abs() < 0.1, "{found:?}");
        assert!((found.hidden - truth).abs() < found.half_width, "{found:?}");
    }

    #[test]
    fn shares_of_loads_are_moved_together_and_stay_shares() {
        let of = |count, loads| Gaps {
            count,
            own_ns: 10.0,
            loads,
        };
        let gaps = [of(3.0, 0.0), of(1.0, 1.0)];
        assert_eq!(shift_mean(&gaps, 0.1, 0.4), [0.0, 1.0]);
        assert_eq!(shift_mean(&gaps, 0.0, 0.125), [0.0, 0.5]);
        assert_eq!(shift_mean(&gaps, 0.625, 1.0), [0.5, 1.0]);
    }

    #[test]
    fn samples_are_of_the_overflow_at_or_before_them() {
        let tid = Tid(1);
        let samples = vec![(105, true), (210, false), (999, true)];
        let mut kinds = LoadSamples::new(BTreeMap::from([(tid, samples)]));
        // Overflows at 100, 200 and 300, rounded down, after gaps of three lengths.
        for (time, before) in [(100, 0), (200, 10), (300, 20), (u64::MAX, 30)] {
            kinds.until(tid, time, before);
        }
        let told: Vec<_> = [10, 20, 30].map(|c| kinds.classes[c]).into();
        assert_eq!(told, [(1.0, 1.0), (0.0, 1.0), (1.0, 1.0)]);
        let shares = kinds.shares();
        assert!(shares[20] < shares[0] && shares[0] < shares[10]);
    }

    #[test]
    fn classes_are_half_octaves() {
        let classes = [2.0, 3.0, 4.0, 6.0, 8.0, 1e9].map(class);
        assert_eq!(classes[..5], [2, 3, 4, 5, 6]);
        assert!(class(f64::MAX) < CLASSES && class(0.0) < CLASSES);
    }
}
