//! Misses that nothing counted: those of loads that a record's stop aborted.
//!
//! A reference counter shows the events between an overflow and its record. It does not
//! show the loads under way at the stop: made again, they hit. How many those are is no
//! property of the period alone. They are the *independent* load misses among the next
//! few hundred instructions, as far as there are fill buffers:
//!
//! - **how dense** misses are in instructions follows from the time since the previous
//!   overflow (less its record's time), and from how many instructions the counters saw
//!   in such time in the window around;
//! - **which are loads** follows from samples of overflows after gaps of about that
//!   length, within the limits of the first level's misses of loads and stores;
//! - **which depend on another** follows from time: a load that waits for another's
//!   data stalls for memory's whole latency, others share it.
//!
//! The calibration's loops give the amount of each: instructions a nanosecond, standing
//! still for an independent and a dependent load, lines hidden by density. A window
//! does not tell when its instructions ran, so there are two readings. By
//! [*rate*](Mechanism::by_rate) they ran evenly in the window's own time. That is right
//! where misses come evenly, and far too low for a dense burst with computing around
//! it. By [*stalls*](Mechanism::by_stalls) the window's stalled time is shared out
//! evenly among its load misses, and instructions run in the remainder of each gap.
//! That is right for bursts, and too high where a few loads wait long among many that
//! do not. Stalls are trusted as far as the window's loads wait for no other load and
//! can be told from stores. The readings' distance is most of the stated uncertainty.
//!
//! Checked on programs whose memory traffic is known (docs/experiments/bandwidth.md).

use std::collections::BTreeMap;

use memgauge_trace::{EventId, SeriesRow, Tid, catalogue};

use super::LossPoint;

/// Rounds after which densities, which hidden misses are part of, have settled.
const ROUNDS: usize = 24;
/// Halvings that find how long a load miss stands still.
const HALVINGS: usize = 20;
/// Powers with which the share of loads that wait for no other, and the share of
/// loads, make stalls be trusted.
const TRUST: (f64, f64) = (1.5, 3.0);
/// Three shares: how much less of the readings' distance is doubted where stalls are
/// trusted whole, the part of the hidden lines that is doubted, and the part of a
/// record's largest loss that bursts shorter than a long period may hide unseen. They
/// and the powers above were chosen on fifteen programs and checked on others
/// (docs/experiments/bandwidth.md).
const DOUBT: (f64, f64, f64) = (0.6, 0.2, 0.5);
/// Events between two records after which half of all bursts go unseen.
const BURST: f64 = 100.0;
/// Half octaves of a gap's own time.
const CLASSES: usize = 128;
/// Windows of counters kept at most; beyond, only gaps correct.
const MOST_WINDOWS: usize = 1 << 21;

/// Lines that one processor's records hide, from its calibration at one period.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mechanism {
    /// Time an instruction takes that waits for nothing, nanoseconds.
    issue_ns: f64,
    /// Time that an independent load that misses stands still.
    overlapped_ns: f64,
    /// The same of a load whose address another load brought.
    alone_ns: f64,
    /// Time a record takes.
    pub(super) record_ns: f64,
    /// Independent load misses an instruction, and lines hidden with a record.
    knots: Vec<(f64, f64)>,
    /// Lines hidden with a record where misses are sparse, more of them for each miss
    /// an instruction, and at most.
    reach: (f64, f64, f64),
    /// Mean standard error of the lines hidden.
    pub(super) error: f64,
}

/// Lines hidden, and half of the interval around them that holds the truth 19 times
/// in 20.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Lines {
    pub(super) hidden: f64,
    pub(super) doubt: f64,
}

impl Mechanism {
    /// From the loops measured at the periods around; `None` where a calibration
    /// has not what it takes.
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
        // In proportion to the period: the backlog of waiting loads grows by so many
        // lines an event.
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
            reach: reach(&knots),
            knots,
        };
        let sound = issue_ns > 0.0 && mechanism.alone_ns > 2.0 * mechanism.overlapped_ns;
        (sound && mechanism.knots.len() > 2).then_some(mechanism)
    }

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

    /// Lines hidden in a window with these counts and gaps.
    fn hidden(&self, window: &Counted, period: f64, gaps: &[Gaps]) -> Lines {
        let records: f64 = gaps.iter().map(|g| g.count).sum();
        if records < 1.0 || window.own_ns <= 0.0 || window.counted <= 0.0 {
            return Lines::default();
        }
        let seen = (window.counted / records).clamp(period, 2.0 * period);
        let rate = self.by_rate(window, seen, gaps);
        let stalls = self.by_stalls(window, seen, gaps);
        let told = gaps.iter().map(|g| g.count * g.loads).sum::<f64>() / records;
        let loads = told.max(window.loads(0.0).0);
        let trust = self.independent(window, loads).powf(TRUST.0) * loads.powf(TRUST.1);
        let hidden = rate + (stalls - rate) * trust;
        let apart = (stalls - rate).abs();
        let unseen = self.reach.2 * period / (period + BURST);
        let doubt = (1.0 - DOUBT.0 * trust) * apart
            + DOUBT.1 * hidden
            + (DOUBT.2 * unseen + self.error) * records;
        Lines { hidden, doubt }
    }

    /// Lines hidden if instructions ran evenly in the window's own time.
    fn by_rate(&self, window: &Counted, seen: f64, gaps: &[Gaps]) -> f64 {
        let records: f64 = gaps.iter().map(|g| g.count).sum();
        let rate = window.instructions / window.own_ns;
        let mut each = vec![0.0; gaps.len()];
        for _ in 0..ROUNDS {
            let (least, most) = window.loads(sum(gaps, &each));
            let loads = |g: &Gaps| g.loads.clamp(least, most);
            let mean = gaps.iter().map(|g| g.count * loads(g)).sum::<f64>() / records;
            let independent = self.independent(window, mean);
            for (gaps, hidden) in gaps.iter().zip(&mut each) {
                let loads = loads(gaps);
                let overlapped = loads * independent;
                let part = overlapped / (overlapped + 1.0 - loads).max(f64::MIN_POSITIVE);
                let instructions = (rate * gaps.own_ns).max(1.0);
                let still = (gaps.own_ns - instructions * self.issue_ns).max(0.0) / seen;
                let short = self.overlapped_ns * part;
                let waiting = ((still - short) / (self.alone_ns - short)).clamp(0.0, 1.0);
                let density = (1.0 - waiting) * part * (seen + *hidden) / instructions;
                // Half way, so that it settles instead of swinging.
                *hidden = (*hidden + self.at(density)) / 2.0;
            }
        }
        sum(gaps, &each)
    }

    /// Lines hidden if each load miss stood still for as long as any other, but none
    /// longer than its gap allows.
    fn by_stalls(&self, window: &Counted, seen: f64, gaps: &[Gaps]) -> f64 {
        let still = self.still(window);
        let mut each = vec![0.0; gaps.len()];
        for _ in 0..ROUNDS / 2 {
            let (least, most) = window.loads(sum(gaps, &each));
            let loads = shifted(gaps, least, most);
            // Loads among the misses that were seen: those hidden are loads.
            let visible = |(load, hidden): (&f64, &f64)| {
                seen * ((load * (seen + hidden) - hidden) / seen).clamp(0.0, 1.0)
            };
            let visible: Vec<f64> = loads.iter().zip(&each).map(visible).collect();
            let level = self.level(still, seen, gaps, &visible);
            for (((gaps, hidden), load), visible) in
                gaps.iter().zip(&mut each).zip(&loads).zip(&visible)
            {
                let stood = (level * visible).min(self.room(gaps, seen));
                let instructions = ((gaps.own_ns - stood) / self.issue_ns).max(1.0);
                let alone = stood / visible.max(f64::MIN_POSITIVE) - self.overlapped_ns;
                let waiting = (alone / (self.alone_ns - self.overlapped_ns)).clamp(0.0, 1.0);
                let share = load * (1.0 - waiting);
                let (first, more, most) = self.reach;
                let density = share * (seen + *hidden) / instructions;
                let found = (share * first + more * density).min(most);
                *hidden = (*hidden + found) / 2.0;
            }
        }
        sum(gaps, &each)
    }

    /// How long a load miss stood still, so that all together did for `still`.
    fn level(&self, still: f64, seen: f64, gaps: &[Gaps], visible: &[f64]) -> f64 {
        let (mut low, mut high) = (0.0, 3.0 * self.alone_ns);
        for _ in 0..HALVINGS {
            let level = (low + high) / 2.0;
            let stood = |(g, v): (&Gaps, &f64)| g.count * (level * v).min(self.room(g, seen));
            let all: f64 = gaps.iter().zip(visible).map(stood).sum();
            match all < still {
                true => low = level,
                false => high = level,
            }
        }
        (low + high) / 2.0
    }

    /// Time that a gap can have stood still: an instruction a miss ran at least.
    fn room(&self, gaps: &Gaps, seen: f64) -> f64 {
        (gaps.own_ns - seen * self.issue_ns).max(0.0)
    }

    /// Time that a window stood still.
    fn still(&self, window: &Counted) -> f64 {
        (window.own_ns - window.instructions * self.issue_ns).max(0.0)
    }

    /// Share of load misses that wait for no other, by how long they stand still.
    fn independent(&self, window: &Counted, loads: f64) -> f64 {
        let each = self.still(window) / (window.counted * loads).max(f64::MIN_POSITIVE);
        ((self.alone_ns - each) / (self.alone_ns - self.overlapped_ns)).clamp(0.0, 1.0)
    }
}

/// Takes knots with the sparsest loops first. Returns the lines hidden where misses are
/// far apart, how many more there are with density, and the most. Loops at even
/// distances hide whole lines only, half a line less than the mean over uneven ones.
fn reach(knots: &[(f64, f64)]) -> (f64, f64, f64) {
    let most = knots.iter().map(|k| k.1).fold(0.0, f64::max);
    let (Some(a), Some(b)) = (knots.get(1), knots.get(2)) else {
        return (most, 0.0, most);
    };
    let more = (b.1 - a.1) / (b.0 - a.0).max(f64::MIN_POSITIVE);
    (
        (a.1 - more * a.0 + 0.5).clamp(0.0, most),
        more.max(0.0),
        most,
    )
}

/// Lines hidden with all records.
fn sum(gaps: &[Gaps], each: &[f64]) -> f64 {
    gaps.iter().zip(each).map(|(g, h)| g.count * h).sum()
}

/// Shares of loads by gap, brought to a mean between `least` and `most`.
fn shifted(gaps: &[Gaps], least: f64, most: f64) -> Vec<f64> {
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
    /// Mean length, less the time of the previous record.
    own_ns: f64,
    /// Share of loads among such.
    loads: f64,
}

/// Increments of a thread's counters in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    instructions: f64,
    own_ns: f64,
    /// Count of the event itself.
    counted: f64,
    load_misses: f64,
    store_misses: f64,
}

impl Counted {
    /// Least and most share of loads among the misses, by those of the first level:
    /// none of them missed only further down.
    fn loads(&self, hidden: f64) -> (f64, f64) {
        let all = (self.counted + hidden).max(1.0);
        let least = (1.0 - self.store_misses / all).clamp(0.0, 1.0);
        let most = ((self.load_misses + hidden) / all).clamp(0.0, 1.0);
        (least, most.max(least))
    }
}

/// Counters of all threads in windows of one width.
#[derive(Debug, Default)]
pub(super) struct Counters {
    event: EventId,
    from_ns: u64,
    end_ns: u64,
    pub(super) width_ns: u64,
    ns_per_cycle: f64,
    windows: BTreeMap<(u32, usize), Counted>,
    too_many: bool,
}

impl Counters {
    pub(super) fn new(event: EventId, (from_ns, end_ns): (u64, u64), width_ns: u64) -> Counters {
        Counters {
            event,
            from_ns,
            end_ns,
            width_ns,
            ..Counters::default()
        }
    }

    /// Cycles are in the series; a nanosecond has so many.
    pub(super) fn clock(&mut self, frequency_hz: u64) {
        self.ns_per_cycle = 1e9 / frequency_hz.max(1) as f64;
    }

    pub(super) fn observe(&mut self, row: &SeriesRow) {
        let of = |e: EventId| -> Option<fn(&mut Counted) -> &mut f64> {
            match e {
                catalogue::INSTRUCTIONS => Some(|c| &mut c.instructions),
                catalogue::CYCLES => Some(|c| &mut c.own_ns),
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
        let scale = match row.event == catalogue::CYCLES {
            true => self.ns_per_cycle,
            false => 1.0,
        };
        let rate = row.value as f64 * scale / row.interval_ns.max(1) as f64;
        let (mut at, end) = (start.max(self.from_ns), row.time_ns.min(self.end_ns));
        while at < end {
            let index = (at - self.from_ns) / self.width_ns;
            let next = end.min(self.from_ns + (index + 1) * self.width_ns);
            if self.windows.len() >= MOST_WINDOWS {
                self.too_many = true;
                return;
            }
            let window = self.windows.entry((row.tid.0, index as usize)).or_default();
            *field(window) += rate * (next - at) as f64;
            at = next;
        }
    }

    /// Whether there is what the mechanism asks for.
    pub(super) fn are_there(&self) -> bool {
        let told = |c: &Counted| c.counted > 0.0 && c.instructions > 0.0 && c.own_ns > 0.0;
        !self.too_many && self.windows.values().any(told)
    }

    fn window(&self, time_ns: u64) -> usize {
        (time_ns.saturating_sub(self.from_ns) / self.width_ns) as usize
    }
}

/// Samples of overflows by the length of the gap before.
#[derive(Debug)]
pub(super) struct Kinds {
    /// Times of each thread's overflows in order, and whether each was a load.
    waiting: BTreeMap<Tid, (usize, Vec<(u64, bool)>)>,
    /// Loads, and all.
    classes: Vec<(f64, f64)>,
}

impl Kinds {
    pub(super) fn new(mut samples: BTreeMap<Tid, Vec<(u64, bool)>>) -> Kinds {
        samples.values_mut().for_each(|s| s.sort_unstable());
        Kinds {
            waiting: samples.into_iter().map(|(t, s)| (t, (0, s))).collect(),
            classes: vec![(0.0, 0.0); CLASSES],
        }
    }

    /// Counts a thread's samples from before `time_ns`: they belong to the previous
    /// overflow, which came after a gap of `class`. Times of a trace may be rounded
    /// down, those of samples are not.
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

    /// Share of loads after gaps of each class; where there are few, that of all.
    pub(super) fn shares(&self) -> Vec<f64> {
        /// Samples for which those of all gaps stand in.
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

/// The half octave of a gap of so much own time.
pub(super) fn class(own_ns: f64) -> usize {
    let own = own_ns.max(2.0) as u64;
    let octave = own.ilog2() as usize;
    2 * octave + (own >> (octave - 1) & 1) as usize
}

/// A thread's overflows of one window, and what their records have hidden so far.
#[derive(Debug)]
pub(super) struct Gathered {
    window: usize,
    classes: Vec<(f64, f64)>,
    /// Classes that are not empty.
    used: Vec<usize>,
}

impl Default for Gathered {
    fn default() -> Gathered {
        Gathered {
            window: 0,
            classes: vec![(0.0, 0.0); CLASSES],
            used: Vec::new(),
        }
    }
}

/// Finds what records hid.
#[derive(Debug, Default)]
pub(super) struct Finder {
    pub(super) mechanism: Mechanism,
    pub(super) counters: Counters,
    period: f64,
    /// Share of loads by class of gap.
    pub(super) loads: Vec<f64>,
    /// Lines hidden by thread and window.
    hidden: BTreeMap<(u32, usize), Lines>,
}

impl Finder {
    pub(super) fn new(mechanism: Mechanism, counters: Counters, period: u64) -> Finder {
        Finder {
            mechanism,
            counters,
            period: period as f64,
            ..Finder::default()
        }
    }

    /// A gap's own time.
    pub(super) fn own_ns(&self, gap_ns: u64) -> f64 {
        (gap_ns as f64 - self.mechanism.record_ns).max(1.0)
    }

    /// Takes an overflow of a thread in its turn.
    pub(super) fn take(&mut self, tid: u32, gathered: &mut Gathered, time_ns: u64, gap_ns: u64) {
        let window = self.counters.window(time_ns);
        if window != gathered.window {
            self.settle(tid, gathered);
            gathered.window = window;
        }
        let own_ns = self.own_ns(gap_ns);
        let class = class(own_ns);
        let some = &mut gathered.classes[class];
        if some.0 == 0.0 {
            gathered.used.push(class);
        }
        some.0 += 1.0;
        some.1 += own_ns;
    }

    /// Finds what the overflows gathered hid.
    pub(super) fn settle(&mut self, tid: u32, gathered: &mut Gathered) {
        let key = (tid, gathered.window);
        let gaps = |class: &usize| {
            let (count, own_ns) = std::mem::take(&mut gathered.classes[*class]);
            Gaps {
                count,
                own_ns: own_ns / count,
                loads: self.loads.get(*class).copied().unwrap_or(1.0),
            }
        };
        let gaps: Vec<Gaps> = gathered.used.iter().map(gaps).collect();
        gathered.used.clear();
        if let Some(window) = self.counters.windows.get(&key) {
            let hidden = self.mechanism.hidden(window, self.period, &gaps);
            let sum = self.hidden.entry(key).or_default();
            sum.hidden += hidden.hidden;
            sum.doubt += hidden.doubt;
        }
    }

    /// Events of each thread and window: counted and hidden.
    pub(super) fn events(&self) -> impl Iterator<Item = (u32, usize, f64)> + '_ {
        self.counters.windows.iter().map(|(key, counted)| {
            let lines = self.hidden.get(key).copied().unwrap_or_default();
            (key.0, key.1, counted.counted + lines.hidden)
        })
    }

    /// Half of the interval around all events. Errors of windows are of one kind, so
    /// that they add up.
    pub(super) fn doubt(&self) -> f64 {
        self.hidden.values().map(|lines| lines.doubt).sum()
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

    /// A window of records at period 10, each after as many nanoseconds of its own.
    fn hidden(window: Counted, own_ns: f64, loads: f64) -> f64 {
        let gaps = Gaps {
            count: 100.0,
            own_ns,
            loads,
        };
        mechanism(10).unwrap().hidden(&window, 10.0, &[gaps]).hidden
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
        let most = |period| mechanism(period).unwrap().at(1.0);
        assert_eq!((most(10), most(1000), most(5_000)), (12.0, 30.0, 30.0));
        assert!((most(505) - 21.0).abs() < 1e-9);
    }

    #[test]
    fn independent_loads_are_hidden_as_far_as_there_are_buffers() {
        let window = Counted {
            instructions: 1_400.0,
            own_ns: 10_000.0,
            counted: 1_400.0,
            load_misses: 1_400.0,
            store_misses: 0.0,
        };
        assert!((hidden(window, 100.0, 1.0) - 1_200.0).abs() < 1.0);
        // A miss seen in a hundred instructions, with those hidden one in some 80: of
        // the 224 under way three at most hold one.
        let sparse = Counted {
            instructions: 140_000.0,
            own_ns: 24_000.0,
            ..window
        };
        let found = hidden(sparse, 240.0, 1.0);
        assert!((100.0..300.0).contains(&found), "{found}");
    }

    #[test]
    fn loads_that_wait_for_others_and_stores_are_not_hidden() {
        let chase = Counted {
            instructions: 4_400.0,
            own_ns: 77_440.0,
            counted: 1_100.0,
            load_misses: 1_100.0,
            store_misses: 0.0,
        };
        assert!(hidden(chase, 774.4, 1.0) < 1.0);
        let stores = Counted {
            instructions: 1_100.0,
            own_ns: 110.0,
            counted: 1_100.0,
            load_misses: 0.0,
            store_misses: 1_100.0,
        };
        // The first level's counts say that there are no loads, whatever samples say.
        assert!(hidden(stores, 1.1, 0.5) < 1.0);
    }

    #[test]
    fn a_burst_in_a_window_of_computing_is_told_by_its_stalls() {
        // 20 records of a scan with a load in 20 instructions, which hides 11 lines
        // each, and 80 000 ns of computing around them.
        let (own_ns, instructions) = (118.0, 420.0);
        let window = Counted {
            instructions: 20.0 * instructions + 800_000.0,
            own_ns: 20.0 * own_ns + 80_000.0,
            counted: 220.0,
            load_misses: 220.0,
            store_misses: 0.0,
        };
        let of = |count, own_ns| Gaps {
            count,
            own_ns,
            loads: 1.0,
        };
        let gaps = [of(19.0, own_ns), of(1.0, 80_000.0)];
        let mechanism = mechanism(10).unwrap();
        let rate = mechanism.by_rate(&window, 11.0, &gaps);
        let found = mechanism.hidden(&window, 10.0, &gaps);
        let truth = 19.0 * 11.0 + 1.0;
        assert!(rate < 0.5 * truth, "{rate}");
        assert!((found.hidden / truth - 1.0).abs() < 0.1, "{found:?}");
        assert!((found.hidden - truth).abs() < found.doubt, "{found:?}");
    }

    #[test]
    fn shares_of_loads_are_moved_together_and_stay_shares() {
        let of = |count, loads| Gaps {
            count,
            own_ns: 10.0,
            loads,
        };
        let gaps = [of(3.0, 0.0), of(1.0, 1.0)];
        assert_eq!(shifted(&gaps, 0.1, 0.4), [0.0, 1.0]);
        assert_eq!(shifted(&gaps, 0.0, 0.125), [0.0, 0.5]);
        assert_eq!(shifted(&gaps, 0.625, 1.0), [0.5, 1.0]);
    }

    #[test]
    fn samples_are_of_the_overflow_at_or_before_them() {
        let tid = Tid(1);
        let samples = vec![(105, true), (210, false), (999, true)];
        let mut kinds = Kinds::new(BTreeMap::from([(tid, samples)]));
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
