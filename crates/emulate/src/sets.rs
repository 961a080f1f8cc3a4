//! Which cache sets are followed, and what they say of all.
//!
//! A level's misses are the sum over 64 classes of lines (`memgauge_machine::class_of`),
//! of which one in `one_in` is followed. The sum is estimated by the followed ones' times
//! `one_in`. How much these differ from one another says how far off that may be.

use std::collections::HashSet;

use memgauge_machine::{CLASSES, Config, LINE_BYTES, Outcome};
use memgauge_trace::groups::{student, variance_of_sum};
use memgauge_trace::{CrowdFacts, EstimatedFacts, SetsFacts, catalogue as events};

use crate::{Error, Result};

/// The part of the sets that is followed, one class in so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetSample {
    /// A power of two, at most [`SetSample::MOST`].
    pub one_in: u32,
    /// Which ones; each number gives another choice.
    pub seed: u64,
}

impl SetSample {
    /// With fewer than four classes, their spread says nothing.
    pub const MOST: u32 = 16;

    /// The classes followed, a bit each.
    ///
    /// One of each `one_in` neighbours, so that scans are met evenly, at distances
    /// that are random, so that strides are. Of each power of two up to `one_in`, all
    /// remainders come equally often.
    pub fn classes(self) -> u64 {
        let mut state = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut places: Vec<u32> = Vec::new();
        let mut classes = 0;
        for stratum in 0..CLASSES / self.one_in {
            if places.is_empty() {
                places = (0..self.one_in).collect();
                shuffle(&mut places, &mut state);
            }
            let place = places.pop().unwrap_or(0);
            classes |= 1u64 << (stratum * self.one_in + place);
        }
        classes
    }

    /// # Errors
    /// The machine's sets cannot be modelled apart.
    pub fn check(self, machine: &Config) -> Result<()> {
        match machine.needs_all_sets() {
            None => Ok(()),
            Some(why) if machine.prefetch.next_line || machine.prefetch.stride => {
                Err(Error::usage(format!(
                    "failed to sample sets of machine `{}`: {why}: leave out --sets or \
                     --prefetch",
                    machine.name
                )))
            }
            Some(why) => Err(Error::usage(format!(
                "failed to sample sets of machine `{}`: {why}: leave out --sets or choose \
                 another machine",
                machine.name
            ))),
        }
    }
}

impl std::fmt::Display for SetSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "1/{}", self.one_in)
    }
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn shuffle(places: &mut [u32], state: &mut u64) {
    for last in (1..places.len()).rev() {
        let other = next(state) % (last as u64 + 1);
        places.swap(last, other as usize);
    }
}

/// What is summed by class: misses of each level, and bytes.
const SUMMED: usize = 6;

/// The events of the sums.
const NAMES: [&str; SUMMED] = [
    "l1d.miss",
    "l2.miss",
    "llc.miss",
    "dram.read_bytes",
    "dram.write_bytes",
    "dram.bytes",
];

/// Sums over the classes followed.
#[derive(Clone, Debug)]
pub(super) struct ClassSums {
    pub(super) sample: SetSample,
    pub(super) classes: u64,
    pub(super) crowds: Crowds,
    sums: [[u64; SUMMED]; CLASSES as usize],
}

/// Classes that are counted apart, a bit each; none where all count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Groups(u64);

impl Groups {
    /// How many sums there are.
    pub(super) fn count(self) -> usize {
        self.0.count_ones().max(1) as usize
    }

    /// Which sum a followed class has.
    #[inline(always)]
    pub(super) fn sum_of(self, class: u32) -> usize {
        (self.0 & ((1u64 << class) - 1)).count_ones() as usize
    }

    /// The class of each sum, in order.
    pub(super) fn classes(self) -> impl Iterator<Item = Option<u8>> {
        let apart = (0..CLASSES as u8).filter(move |&class| self.0 >> class & 1 == 1);
        let all = (self.0 == 0).then_some(None);
        apart.map(Some).chain(all)
    }
}

/// Lines of a class in a look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Touched {
    /// Different ones.
    lines: u32,
    /// How often it was another one than the last time.
    touches: u32,
    last: u64,
}

/// What a look at all lines shows.
#[derive(Debug)]
pub(super) struct Seen {
    lines: HashSet<u64>,
    pub(super) classes: [Touched; CLASSES as usize],
}

impl Default for Seen {
    fn default() -> Seen {
        Seen {
            lines: HashSet::new(),
            classes: [Touched::default(); CLASSES as usize],
        }
    }
}

impl Seen {
    pub(super) fn touch(&mut self, class: u32, line: u64) {
        let of = &mut self.classes[class as usize];
        if of.last != line {
            of.last = line;
            of.touches += 1;
            of.lines += u32::from(self.lines.insert(line));
        }
    }
}

/// Touches of crowded lines.
#[derive(Clone, Copy, Debug, Default)]
struct CrowdSums {
    /// In all classes, and in those followed.
    all: f64,
    followed: f64,
    /// The squares of how far each look says that the followed classes are off.
    squares: f64,
}

/// Lines that crowd in few classes, as those of a stride by a large power of two do. The
/// classes followed may hold all of them or none, which their spread does not tell. So the
/// engine tells the lines of all classes now and then, for some runs of accesses. A class
/// is crowded in such a look if its sets of the first level have no room for its lines, and
/// it has more of them than lines that fall anywhere would have. Other levels have more room
/// than a look shows: there it has much more lines than the others have on average.
#[derive(Clone, Debug)]
pub(super) struct Crowds {
    sample: SetSample,
    /// Lines of a class that the first level has room for.
    room: f64,
    /// Of the first level, and of those below.
    near: CrowdSums,
    far: CrowdSums,
    looks: f64,
}

impl CrowdSums {
    fn add(&mut self, one_in: u32, all: f64, followed: f64) {
        let off = all - f64::from(one_in) * followed;
        self.all += all;
        self.followed += followed;
        self.squares += off * off;
    }

    /// With the error that the followed classes' part of them has in 95 of 100 runs, as the looks
    /// differ.
    fn facts(&self, one_in: u32, looks: f64) -> CrowdFacts {
        let off = self.all - f64::from(one_in) * self.followed;
        let variance = match looks >= 2.0 {
            true => (self.squares - off * off / looks) * looks / (looks - 1.0),
            false => self.squares,
        };
        let error = student(looks as u32) * variance.max(0.0).sqrt();
        CrowdFacts {
            lines: self.all.round() as u64,
            followed: self.followed.round() as u64,
            error: error.round() as u64,
        }
    }
}

impl Crowds {
    /// So many standard deviations of lines that fall anywhere are no accident.
    const DEVIATIONS: f64 = 4.0;
    /// So many times the average of all classes, and some lines more, are a crowd in all levels.
    const TIMES: f64 = 3.0;
    const MORE: f64 = 8.0;

    /// None so far, under a first level of so many lines.
    fn new(sample: SetSample, lines: u64) -> Crowds {
        Crowds {
            sample,
            room: lines as f64 / f64::from(CLASSES),
            near: CrowdSums::default(),
            far: CrowdSums::default(),
            looks: 0.0,
        }
    }

    /// What was seen in a look that stands for so many like it.
    pub(super) fn add(&mut self, seen: &[Touched; CLASSES as usize], weight: f64) {
        let lines: u32 = seen.iter().map(|class| class.lines).sum();
        let mean = f64::from(lines) / f64::from(CLASSES);
        let near = self.room.max(mean + Self::DEVIATIONS * mean.sqrt());
        let far = Self::TIMES * mean + Self::MORE;
        let classes = self.sample.classes();
        let beyond = |most: f64| {
            let crowded = |class: &Touched| f64::from(class.lines) > most;
            let all = seen.iter().enumerate().filter(|(_, class)| crowded(class));
            all.fold((0.0, 0.0), |(all, followed), (number, class)| {
                let touches = weight * f64::from(class.touches);
                let is_followed = (classes >> number & 1) as f64;
                (all + touches, followed + touches * is_followed)
            })
        };
        for (sums, most) in [(&mut self.near, near), (&mut self.far, far)] {
            let (all, followed) = beyond(most);
            sums.add(self.sample.one_in, all, followed);
        }
        self.looks += 1.0;
    }

    /// Those of the first level, and of those below.
    fn facts(&self) -> [CrowdFacts; 2] {
        [self.near, self.far].map(|sums| sums.facts(self.sample.one_in, self.looks))
    }
}

/// `a / b`, and 0 by 0.
pub(super) fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

impl ClassSums {
    /// Nothing so far, under a first level of so many lines.
    pub(super) fn new(sample: SetSample, lines: u64) -> ClassSums {
        ClassSums {
            sample,
            classes: sample.classes(),
            crowds: Crowds::new(sample, lines),
            sums: [[0; SUMMED]; CLASSES as usize],
        }
    }

    /// The classes that counts by place in the code are kept apart for: those followed.
    /// Where all are, nothing is estimated and all count as one.
    pub(super) fn groups(&self) -> Groups {
        Groups(match self.sample.one_in {
            1 => 0,
            _ => self.classes,
        })
    }

    pub(super) fn follows(&self, class: u32) -> bool {
        self.classes >> class & 1 == 1
    }

    #[inline(always)]
    pub(super) fn add(&mut self, class: u32, outcome: &Outcome) {
        let (read, written) = (outcome.dram_read_bytes, outcome.dram_write_bytes);
        let all = [
            u64::from(outcome.l1d_misses),
            u64::from(outcome.l2_misses),
            u64::from(outcome.llc_misses),
            u64::from(read),
            u64::from(written),
            u64::from(read) + u64::from(written),
        ];
        let sums = &mut self.sums[class as usize];
        sums.iter_mut().zip(all).for_each(|(sum, n)| *sum += n);
    }

    /// Facts for the manifest.
    pub(super) fn facts(&self) -> SetsFacts {
        let of_class = |event: usize| {
            let followed = (0..CLASSES).filter(|&class| self.follows(class));
            followed.map(move |class| self.sums[class as usize][event])
        };
        let [near, far] = self.crowds.facts();
        SetsFacts {
            crowds: near,
            far_crowds: far,
            one_in: self.sample.one_in,
            seed: self.sample.seed,
            estimates: NAMES
                .iter()
                .enumerate()
                .map(|(event, name)| {
                    let sums: Vec<u64> = of_class(event).collect();
                    let unit = if name.ends_with("bytes") {
                        LINE_BYTES
                    } else {
                        1
                    };
                    let estimate = estimate(&sums, u64::from(unit));
                    let seen = sums.iter().sum();
                    let crowds = if *name == "l1d.miss" { near } else { far };
                    let (least, most) = crowds.missing(self.sample.one_in);
                    let unit = f64::from(unit);
                    let of = widened(estimate, seen, least * unit, most * unit);
                    ((*name).to_owned(), of)
                })
                .collect(),
        }
    }
}

/// So few events leave their spread in the dark.
const FEW: f64 = 30.0;

/// So few can be the same number in all classes that are followed, by accident.
const SOME: f64 = 1000.0;

/// The sum over all classes from some of them, with the interval that should contain it
/// in 95 of 100 runs.
///
/// The variance is the jackknife's, for a sum of a simple random sample without
/// replacement. A few events, of `unit` each, say little of their spread: then it is at
/// least as if each fell into a random class (a quarter of that, if they are not so few), and of
/// very few three more may have been missed. The true sum is no less than the part that was seen.
fn estimate(sums: &[u64], unit: u64) -> EstimatedFacts {
    let (n, all) = (sums.len() as f64, f64::from(CLASSES));
    let seen: u64 = sums.iter().sum();
    let mean = seen as f64 / n;
    let variance = variance_of_sum(sums.iter().map(|&s| s as f64), sums.len() as u32);
    let (weight, unit) = (all / n, unit as f64);
    let random = weight * weight * (1.0 - n / all) * unit * seen as f64;
    let (least, missed) = match seen as f64 / unit {
        _ if weight <= 1.0 => (0.0, 0.0),
        few if few < FEW => (random, 3.0 * unit * weight),
        some if some < SOME => (random / 4.0, 0.0),
        _ => (0.0, 0.0),
    };
    let variance = variance.max(least);
    let (value, half) = (mean * all, student(sums.len() as u32) * variance.sqrt());
    let largest = sums.iter().copied().max().unwrap_or(0);
    EstimatedFacts {
        value: value.round() as u64,
        low: (value - half).max(seen as f64).round() as u64,
        high: (value + half.max(missed)).round() as u64,
        largest_share: if seen > 0 {
            largest as f64 / seen as f64
        } else {
            0.0
        },
    }
}

/// An estimate whose followed classes miss between so much and so much of their part of the
/// crowded lines, or have too many where that is below zero: each touch of one may be a miss,
/// and need not be.
fn widened(estimate: EstimatedFacts, seen: u64, least: f64, most: f64) -> EstimatedFacts {
    let (low, high) = (estimate.low as f64, estimate.high as f64);
    EstimatedFacts {
        low: (low + least.min(0.0)).max(seen as f64).round() as u64,
        high: (high + most.max(0.0)).round() as u64,
        ..estimate
    }
}

/// Events whose rows are not scaled; all others are of lines.
pub(super) fn weight_of(event: memgauge_trace::EventId, one_in: u32) -> u64 {
    let exact = [
        events::INSTRUCTIONS,
        events::CYCLES,
        events::LOADS,
        events::STORES,
        events::MODIFIES,
        events::STALL_IRREGULAR,
        events::STALL_REGULAR,
        events::STALL_WRITEBACKS,
        events::STALL_TLB,
        events::STALL_L2,
        events::STALL_LLC,
        events::STALL_DRAM,
        events::STALL_QUEUE,
        events::STALL_STORES,
    ];
    match exact.contains(&event) {
        true => 1,
        false => u64::from(one_in),
    }
}

/// Period among the events of the sets that are followed, for one of this length among all: the
/// largest prime number in its part, else 1. A loop over three arrays misses in turn on each, and a period
/// that three divides would sample one of them alone.
pub(super) fn period_of(event: memgauge_trace::EventId, period: u64, one_in: u32) -> u64 {
    let weight = weight_of(event, one_in);
    // No loop is of so many accesses that larger divisors matter.
    let is_prime = |n: &u64| {
        let mut divisors = (2..1 << 16).take_while(|d| d * d <= *n);
        divisors.all(|d| !n.is_multiple_of(d))
    };
    match weight {
        1 => period,
        _ => (2..=period / weight).rev().find(is_prime).unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_of_some_sets_are_prime() {
        let of = |period, one_in| period_of(events::LLC_MISS, period, one_in);
        assert_eq!([of(127, 2), of(127, 8), of(4_099, 8)], [61, 13, 509]);
        assert_eq!([of(8, 8), of(15, 8), of(16, 8), of(1, 16)], [1, 1, 2, 1]);
        assert_eq!(of(120, 1), 120);
        assert!(of(u64::MAX, 16) > u64::MAX / 17);
        assert_eq!(period_of(events::LOADS, 120, 8), 120);
    }

    fn with(one_in: u32, seed: u64) -> SetSample {
        SetSample { one_in, seed }
    }

    #[test]
    fn a_class_of_each_stratum_and_each_remainder_equally_often() {
        for one_in in [1, 2, 4, 8, 16] {
            for seed in 0..50 {
                let classes = with(one_in, seed).classes();
                assert_eq!(classes.count_ones(), CLASSES / one_in);
                for stratum in 0..CLASSES / one_in {
                    let bits = classes >> (stratum * one_in) & ((1u64 << (one_in - 1) << 1) - 1);
                    assert_eq!(bits.count_ones(), 1, "{one_in} {seed} {classes:#x}");
                }
            }
        }
        // A stride of eight lines meets an eighth of its own classes.
        let every_eighth = 0x0101_0101_0101_0101u64;
        for by in 0..8 {
            let met = with(8, 3).classes() & every_eighth << by;
            assert_eq!(met.count_ones(), 1);
        }
        assert_ne!(with(8, 1).classes(), with(8, 2).classes());
    }

    #[test]
    fn each_followed_class_has_a_sum_of_its_own_unless_all_are_followed() {
        let sums = ClassSums::new(with(8, 5), 512);
        let groups = sums.groups();
        let classes: Vec<u32> = groups.classes().flatten().map(u32::from).collect();
        assert_eq!((groups.count(), classes.len()), (8, 8));
        for (number, &class) in classes.iter().enumerate() {
            assert!(sums.follows(class));
            assert_eq!(groups.sum_of(class), number);
        }
        let all = ClassSums::new(with(1, 5), 512).groups();
        assert_eq!((all.count(), all.sum_of(63)), (1, 0));
        assert_eq!(all.classes().collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn many_in_equal_classes_leave_no_doubt_and_all_classes_neither() {
        let even = estimate(&[125; 8], 1);
        assert_eq!((even.low, even.value, even.high), (8000, 8000, 8000));
        // By hand: half a width of 3.182 · √(16² · 15/16 · 220 / 4).
        let by_accident = estimate(&[55; 4], 1);
        assert_eq!((by_accident.low, by_accident.high), (3154, 3886));
        let all: Vec<u64> = (0..64).collect();
        let exact = estimate(&all, 1);
        assert_eq!((exact.low, exact.value, exact.high), (2016, 2016, 2016));
    }

    /// By hand: mean 10, deviations of 2, variance of the sum 64² · (1 − 1/8) · 32/7 / 8,
    /// half a width of 2.365 times its root.
    #[test]
    fn the_interval_is_that_of_a_sample_without_replacement() {
        let of = estimate(&[8, 12, 8, 12, 8, 12, 8, 12], 1);
        let half = 2.365 * (4096.0f64 * 0.875 * 32.0 / 7.0 / 8.0).sqrt();
        assert_eq!(of.value, 640);
        assert_eq!(of.high, (640.0 + half).round() as u64);
        assert_eq!(of.low, (640.0 - half).round() as u64);
    }

    #[test]
    fn crowded_lines_that_are_not_followed_widen_the_interval() {
        let sample = with(8, 0);
        let mut sums = ClassSums::new(sample, 512);
        let outside = (0..CLASSES).find(|&class| !sums.follows(class)).unwrap();
        let inside = (0..CLASSES).find(|&class| sums.follows(class)).unwrap();
        // Four lines in each class, and more in one, twice each.
        let look = |crowded: Option<u32>, lines: u32| {
            let mut seen = Seen::default();
            for class in 0..CLASSES {
                let more = if crowded == Some(class) { lines } else { 0 };
                for line in (0..4 + more).chain(0..4 + more) {
                    seen.touch(class, u64::from(CLASSES * (line + 1) + class));
                }
            }
            seen.classes
        };
        sums.crowds.add(&look(None, 0), 10.0);
        sums.crowds.add(&look(Some(outside), 4), 10.0);
        assert_eq!(sums.facts().crowds.lines, 0, "eight lines have room");
        sums.crowds.add(&look(Some(outside), 256), 10.0);
        let facts = sums.facts();
        assert_eq!((facts.crowds.lines, facts.crowds.followed), (5200, 0));
        assert_eq!(facts.far_crowds, facts.crowds);
        // One look of three: by hand, the variance of their sum is 3 · (5200² − 5200² / 3) / 2.
        let error = (3.182f64 * 5200.0).round() as u64;
        assert_eq!(facts.crowds.error, error);
        assert_eq!(facts.estimates["llc.miss"].high, 5200 + error + 3 * 8);
        // As much within: eight times of it is too much.
        sums.crowds.add(&look(Some(inside), 256), 10.0);
        let facts = sums.facts();
        assert_eq!((facts.crowds.lines, facts.crowds.followed), (10_400, 5200));
        let estimate = EstimatedFacts {
            value: 80_000,
            low: 79_000,
            high: 81_000,
            largest_share: 0.3,
        };
        let wide = widened(estimate, 10_000, -31_200.0, -100.0);
        assert_eq!((wide.low, wide.high), (79_000 - 31_200, 81_000));
        let wide = widened(estimate, 70_000, -31_200.0, 200.0);
        assert_eq!((wide.low, wide.high), (70_000, 81_200));
    }

    /// Twelve lines and four more in a set of eight ways displace each other.
    #[test]
    fn a_few_lines_too_many_are_a_crowd_and_lines_that_fall_anywhere_are_none() {
        let mut crowds = Crowds::new(with(8, 0), 512);
        let mut seen = Seen::default();
        for class in 0..CLASSES {
            for line in 0..if class == 7 { 16 } else { 4 } {
                seen.touch(class, u64::from(CLASSES * (line + 1) + class));
            }
        }
        crowds.add(&seen.classes, 1.0);
        assert_eq!((crowds.near.all, crowds.far.all), (16.0, 0.0));
        let mut state = 7;
        let mut random = Crowds::new(with(8, 0), 512);
        for _ in 0..1000 {
            let mut seen = Seen::default();
            for _ in 0..1024 {
                let line = next(&mut state);
                seen.touch((line % u64::from(CLASSES)) as u32, line);
            }
            random.add(&seen.classes, 1.0);
        }
        assert!(random.near.all < 1e-3 * 1_024_000.0, "{random:?}");
    }

    #[test]
    fn events_that_were_not_seen_may_have_been() {
        let none = estimate(&[0; 8], 64);
        assert_eq!((none.low, none.value, none.high), (0, 0, 3 * 8 * 64));
        let one = estimate(&[64, 0, 0, 0, 0, 0, 0, 0], 64);
        assert_eq!((one.low, one.value), (64, 512));
        assert!(one.high >= 512 + 3 * 8 * 64, "{one:?}");
        assert_eq!(estimate(&[0; 64], 64).high, 0, "all were seen");
    }

    /// Sums whose classes are drawn at random: of many choices of classes, 95 % of the
    /// intervals contain the sum over all.
    #[test]
    fn intervals_contain_the_truth_as_often_as_they_say() {
        for one_in in [2, 4, 8, 16] {
            let mut state = 7;
            let (mut within, runs) = (0, 4000);
            for seed in 0..runs {
                let sums: Vec<u64> = (0..64)
                    .map(|_| 1000 + next(&mut state) % 1000 + next(&mut state) % 1000)
                    .collect();
                let classes = with(one_in, seed).classes();
                let followed = (0..64).filter(|class| classes >> class & 1 == 1);
                let some: Vec<u64> = followed.map(|class| sums[class]).collect();
                let of = estimate(&some, 1);
                let truth: u64 = sums.iter().sum();
                within += u64::from((of.low..=of.high).contains(&truth));
            }
            let share = within as f64 / runs as f64;
            assert!((0.935..0.965).contains(&share), "1/{one_in}: {share}");
        }
    }
}
