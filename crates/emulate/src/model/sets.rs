//! Selection of the modelled cache sets, and estimates for all sets.
//!
//! A level's misses are the sum over 64 classes of lines (`memgauge_machine::class_of`), of which
//! one in `one_in` is modelled. The estimate is the sum over the modelled classes times `one_in`.
//! The variance between them gives its error.

use memgauge_machine::{AccessOutcome, CLASSES, CacheConfig, Config};
use memgauge_trace::groups::{student, variance_of_sum};
use memgauge_trace::{CrowdFacts, EstimatedFacts, LookFacts, SetsFacts, Unit, catalogue as events};

use crate::{Error, Result};

/// The share of the sets that is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetSample {
    /// One class in this many, a power of two of at most [`SetSample::MAX_ONE_IN`].
    pub one_in: u32,
    /// Selects the classes. Each number gives another selection.
    pub seed: u64,
}

impl SetSample {
    /// With fewer than four classes, their variance is meaningless.
    pub const MAX_ONE_IN: u32 = 16;

    /// Bit mask of the modelled classes.
    ///
    /// One of every `one_in` neighbours is selected, so that scans are covered evenly, at random
    /// distances, so that strides are. For each power of two up to `one_in`, all remainders are
    /// equally frequent.
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
    /// The machine's sets cannot be modelled separately.
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

/// Number of quantities summed by class: misses of each level, and bytes.
const SUMMED: usize = 6;

/// Events of the sums.
const NAMES: [&str; SUMMED] = [
    "l1d.miss",
    "l2.miss",
    "llc.miss",
    "dram.read_bytes",
    "dram.write_bytes",
    "dram.bytes",
];

/// Sums over the modelled classes.
#[derive(Clone, Debug)]
pub(crate) struct ClassSums {
    pub(crate) sample: SetSample,
    pub(crate) classes: u64,
    pub(crate) first_level: CacheConfig,
    pub(crate) looks: Looks,
    sums: [[u64; SUMMED]; CLASSES as usize],
}

/// Bit mask of the classes with separate counts, or 0 if all share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassMask(u64);

impl ClassMask {
    /// Number of sums.
    pub(crate) fn count(self) -> usize {
        self.0.count_ones().max(1) as usize
    }

    /// Index of the sum of a modelled class.
    #[inline(always)]
    pub(crate) fn sum_of(self, class: u32) -> usize {
        (self.0 & ((1u64 << class) - 1)).count_ones() as usize
    }

    /// Class of each sum, in order.
    pub(crate) fn classes(self) -> impl Iterator<Item = Option<u8>> {
        let apart = (0..CLASSES as u8).filter(move |&class| self.0 >> class & 1 == 1);
        let all = (self.0 == 0).then_some(None);
        apart.map(Some).chain(all)
    }
}

/// First-level misses of a class in one look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClassLook {
    misses: u32,
    /// Number of distinct lines that missed.
    lines: u32,
}

/// A first-level cache that is only updated during looks.
///
/// It keeps its lines between two looks. They differ from those in the program's cache by then, but
/// a set with too many lines misses in both. If these lines recur more slowly than a look lasts,
/// some old ones are still present, and the difference between sets is underestimated. Replacement
/// is LRU on every machine. [`memgauge_machine`]'s first level is designed for long runs, and its
/// 128 KiB would be cold in each look.
struct LineCache {
    sets: u64,
    ways: usize,
    /// Line numbers by set, most recently used first. `u64::MAX` is an empty entry.
    lines: Vec<u64>,
}

impl LineCache {
    fn new(config: &CacheConfig) -> LineCache {
        let (sets, ways) = (config.sets(), config.ways as usize);
        LineCache {
            sets,
            ways,
            lines: vec![u64::MAX; sets as usize * ways],
        }
    }

    /// Accesses a line. Returns true on a hit.
    fn read(&mut self, line: u64) -> bool {
        let start = (line % self.sets) as usize * self.ways;
        let set = &mut self.lines[start..start + self.ways];
        if set[0] == line {
            return true;
        }
        let held = set.iter().position(|&held| held == line);
        set[..=held.unwrap_or(self.ways - 1)].rotate_right(1);
        set[0] = line;
        held.is_some()
    }
}

/// Accesses of a thread to all sets during a short look.
#[derive(Default)]
pub(crate) struct Look {
    /// `None` before the first look.
    cache: Option<LineCache>,
    /// Class and line of each miss.
    misses: Vec<(u8, u64)>,
}

impl Look {
    /// Adds a run that starts in a line.
    pub(crate) fn read(&mut self, first_level: &CacheConfig, class: u32, line: u64) {
        let cache = self
            .cache
            .get_or_insert_with(|| LineCache::new(first_level));
        if !cache.read(line) {
            self.misses.push((class as u8, line));
        }
    }

    /// Ends a look and returns the misses of each class.
    pub(crate) fn end(&mut self) -> [ClassLook; CLASSES as usize] {
        let mut classes = [ClassLook::default(); CLASSES as usize];
        self.misses.sort_unstable();
        let mut last = None;
        for miss in self.misses.drain(..) {
            let class = &mut classes[usize::from(miss.0)];
            class.misses += 1;
            class.lines += u32::from(last != Some(miss));
            last = Some(miss);
        }
        classes
    }
}

/// Misses in looks, scaled to the run.
#[derive(Clone, Copy, Debug, Default)]
struct LookSums {
    /// In all classes, and in the modelled ones.
    all: f64,
    followed: f64,
    /// Sum of the squares of `all - one_in * followed` over all looks.
    squares: f64,
}

/// Comparison of the modelled sets with the others, from looks.
///
/// Most first-level misses may come from a few sets: with a stride by a large power of two, or with
/// a buffer as large as the cache that shares some sets with the stack. The modelled classes may
/// contain all of these sets or none, which their variance does not show. The engine therefore
/// records the accesses to all sets now and then, and a first level that is only updated in these
/// looks gives the misses of each class. At the start of a look it lacks lines that the program's
/// cache has, equally in all sets, so the difference between all misses and `one_in` times the
/// modelled ones is unbiased. Its variance between looks gives the error.
///
/// The other levels change too slowly for that. There, a class is crowded in a look if it misses on
/// many more distinct lines than the others on average.
///
/// Counting lines that do not fit into a set within a look was rejected. It misses sets whose lines
/// recur more slowly, such as those of a buffer as large as the cache.
#[derive(Clone, Debug)]
pub(crate) struct Looks {
    sample: SetSample,
    /// Sums of the first level, and of the lower levels.
    near: LookSums,
    far: LookSums,
    looks: u32,
}

impl LookSums {
    fn add(&mut self, one_in: u32, all: f64, followed: f64) {
        let off = all - f64::from(one_in) * followed;
        self.all += all;
        self.followed += followed;
        self.squares += off * off;
    }

    /// Half the width of the 95 % interval of `all - one_in * followed`.
    fn error(&self, one_in: u32, looks: u32) -> f64 {
        let off = self.all - f64::from(one_in) * self.followed;
        let n = f64::from(looks);
        let variance = match looks >= 2 {
            true => (self.squares - off * off / n) * n / (n - 1.0),
            false => self.squares,
        };
        student(looks) * variance.max(0.0).sqrt()
    }
}

impl Looks {
    /// A class is crowded if it has [`Self::TIMES`] the mean number of lines plus [`Self::MORE`].
    const TIMES: f64 = 3.0;
    const MORE: f64 = 8.0;

    fn new(sample: SetSample) -> Looks {
        Looks {
            sample,
            near: LookSums::default(),
            far: LookSums::default(),
            looks: 0,
        }
    }

    /// Adds a look. `weight` is the part of the run that it represents, in looks.
    pub(crate) fn add(&mut self, look: &[ClassLook; CLASSES as usize], weight: f64) {
        let lines: u32 = look.iter().map(|class| class.lines).sum();
        let crowd = Self::TIMES * f64::from(lines) / f64::from(CLASSES) + Self::MORE;
        let classes = self.sample.classes();
        for (sums, least) in [(&mut self.near, 0.0), (&mut self.far, crowd)] {
            let (mut all, mut followed) = (0.0, 0.0);
            for (number, class) in look.iter().enumerate() {
                if f64::from(class.lines) > least {
                    let misses = weight * f64::from(class.misses);
                    all += misses;
                    followed += misses * (classes >> number & 1) as f64;
                }
            }
            sums.add(self.sample.one_in, all, followed);
        }
        self.looks += 1;
    }

    fn facts(&self) -> LookFacts {
        LookFacts {
            looks: u64::from(self.looks),
            misses: self.near.all.round() as u64,
            followed: self.near.followed.round() as u64,
            error: self.near.error(self.sample.one_in, self.looks).round() as u64,
        }
    }

    fn far_crowds(&self) -> CrowdFacts {
        CrowdFacts {
            lines: self.far.all.round() as u64,
            followed: self.far.followed.round() as u64,
            error: self.far.error(self.sample.one_in, self.looks).round() as u64,
        }
    }
}

/// `a / b`, or 0 if `b` is 0.
pub(crate) fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

impl ClassSums {
    /// Starts with sums of 0 on a machine with this first level.
    pub(crate) fn new(sample: SetSample, first_level: CacheConfig) -> ClassSums {
        ClassSums {
            sample,
            classes: sample.classes(),
            first_level,
            looks: Looks::new(sample),
            sums: [[0; SUMMED]; CLASSES as usize],
        }
    }

    /// The classes with separate counts by code location: the modelled ones. If all classes are
    /// modelled, nothing is estimated and they share one count.
    pub(crate) fn groups(&self) -> ClassMask {
        ClassMask(match self.sample.one_in {
            1 => 0,
            _ => self.classes,
        })
    }

    pub(crate) fn follows(&self, class: u32) -> bool {
        self.classes >> class & 1 == 1
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, class: u32, outcome: &AccessOutcome) {
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
    pub(crate) fn facts(&self) -> SetsFacts {
        let of_class = |event: usize| {
            let followed = (0..CLASSES).filter(|&class| self.follows(class));
            followed.map(move |class| self.sums[class as usize][event])
        };
        let (looks, far) = (self.looks.facts(), self.looks.far_crowds());
        SetsFacts {
            looks,
            far_crowds: far,
            one_in: self.sample.one_in,
            seed: self.sample.seed,
            estimates: NAMES
                .iter()
                .enumerate()
                .map(|(event, name)| {
                    let sums: Vec<u64> = of_class(event).collect();
                    let unit = Unit::of_event(name).step();
                    let estimate = estimate(&sums, unit);
                    let seen = sums.iter().sum();
                    let of = if *name == "l1d.miss" {
                        let unlike = looks.unlike(self.sample.one_in);
                        unlike.map_or(estimate, |missing| reaching(estimate, seen, missing))
                    } else {
                        let (least, most) = far.missing(self.sample.one_in);
                        let unit = unit as f64;
                        widened(estimate, seen, least * unit, most * unit)
                    };
                    ((*name).to_owned(), of)
                })
                .collect(),
        }
    }
}

/// Up to this number of events, their variance is unknown.
const FEW: f64 = 30.0;

/// Up to this number of events, equal numbers in all modelled classes may be chance.
const SOME: f64 = 1000.0;

/// Estimates the sum over all classes from some of them, with a 95 % interval.
///
/// The variance is the jackknife's for the sum of a simple random sample without replacement. A
/// small number of events, of `unit` each, does not show its variance. It is then at least that of
/// events in random classes (a quarter of that for medium numbers), and three more events may have
/// been missed if there are very few. The true sum is at least what was seen.
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

/// Extends the interval to the number that looks show: between `least` and `most` more than the
/// estimate.
fn reaching(estimate: EstimatedFacts, seen: u64, (least, most): (f64, f64)) -> EstimatedFacts {
    let value = estimate.value as f64;
    let low = (value + least).max(seen as f64).round() as u64;
    let high = (value + most).max(seen as f64).round() as u64;
    EstimatedFacts {
        low: estimate.low.min(low),
        high: estimate.high.max(high),
        ..estimate
    }
}

/// Widens the interval for crowded lines. The modelled classes contain between `least` and `most`
/// too few of these lines (negative: too many), and an access to one may or may not miss.
fn widened(estimate: EstimatedFacts, seen: u64, least: f64, most: f64) -> EstimatedFacts {
    let (low, high) = (estimate.low as f64, estimate.high as f64);
    EstimatedFacts {
        low: (low + least.min(0.0)).max(seen as f64).round() as u64,
        high: (high + most.max(0.0)).round() as u64,
        ..estimate
    }
}

/// Weight of an event. These events are counted exactly. All others are those of lines.
pub(crate) fn weight_of(event: memgauge_trace::EventId, one_in: u32) -> u64 {
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

/// Period within the modelled sets that corresponds to this period among all sets: the largest
/// prime number not above its share, or 1. A loop over three arrays misses on each in turn, and a
/// period divisible by three would only sample one of them.
pub(crate) fn period_of(event: memgauge_trace::EventId, period: u64, one_in: u32) -> u64 {
    let weight = weight_of(event, one_in);
    // Loops are too short for larger divisors to matter.
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
        let sums = ClassSums::new(with(8, 5), first_level());
        let groups = sums.groups();
        let classes: Vec<u32> = groups.classes().flatten().map(u32::from).collect();
        assert_eq!((groups.count(), classes.len()), (8, 8));
        for (number, &class) in classes.iter().enumerate() {
            assert!(sums.follows(class));
            assert_eq!(groups.sum_of(class), number);
        }
        let all = ClassSums::new(with(1, 5), first_level()).groups();
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

    fn first_level() -> CacheConfig {
        Config::preset("skylake-sp").expect("a preset").l1d
    }

    /// A look with `misses` in each class and `more` in one of them, all in different lines.
    fn look(misses: u32, one: u32, more: u32) -> [ClassLook; CLASSES as usize] {
        let mut look = Look::default();
        for class in 0..CLASSES {
            let more = if class == one { more } else { 0 };
            for line in 0..misses + more {
                let line = u64::from(CLASSES * line + class);
                look.read(&first_level(), class, line);
            }
        }
        look.end()
    }

    #[test]
    fn a_look_misses_where_a_set_has_no_room() {
        let mut look = Look::default();
        let mut misses = |lines: u64| {
            for i in 0..10 * lines {
                look.read(&first_level(), 5, 5 + u64::from(CLASSES) * (i % lines));
            }
            let class = look.end()[5];
            (class.misses, class.lines)
        };
        assert_eq!(misses(8), (8, 8));
        assert_eq!(misses(8), (0, 0), "the lines are still there");
        assert_eq!(misses(9), (82, 9), "eight lines are still there");
    }

    #[test]
    fn misses_of_sets_that_are_not_followed_widen_the_interval() {
        let mut sums = ClassSums::new(with(8, 0), first_level());
        let outside = (0..CLASSES).find(|&class| !sums.follows(class)).unwrap();
        for _ in 0..3 {
            sums.looks.add(&look(4, outside, 0), 10.0);
        }
        let facts = sums.facts();
        assert_eq!((facts.looks.misses, facts.looks.followed), (7680, 960));
        assert_eq!(facts.looks.unlike(8), None, "all sets are alike");
        let alone = facts.estimates["l1d.miss"];
        for more in [30, 30, 36] {
            sums.looks.add(&look(4, outside, more), 10.0);
        }
        let facts = sums.facts();
        assert_eq!(facts.looks.missing(8), 960.0);
        // By hand: looks of 0, 0, 0, 300, 300, 360 have a variance of 6 · 156 000 / 5.
        assert_eq!(
            facts.looks.error,
            (2.5706 * 187_200f64.sqrt()).round() as u64
        );
        assert_eq!(facts.looks.unlike(8), None, "they may be alike");
        for _ in 0..18 {
            sums.looks.add(&look(4, outside, 32), 10.0);
        }
        let facts = sums.facts();
        let (least, most) = facts.looks.unlike(8).expect("a difference");
        assert!(least < 6720.0 && 6720.0 < most, "{least} {most}");
        let estimate = facts.estimates["l1d.miss"];
        assert_eq!((estimate.low, estimate.high), (alone.low, most as u64));
    }

    #[test]
    fn an_interval_reaches_to_the_number_of_the_looks() {
        let estimate = EstimatedFacts {
            value: 80_000,
            low: 79_000,
            high: 81_000,
            largest_share: 0.3,
        };
        let ends = |missing| {
            let of = reaching(estimate, 10_000, missing);
            (of.low, of.high)
        };
        assert_eq!(ends((-31_200.0, -100.0)), (48_800, 81_000));
        assert_eq!(ends((20_000.0, 30_000.0)), (79_000, 110_000));
        assert_eq!(ends((-90_000.0, -75_000.0)), (10_000, 81_000));
    }

    /// Misses in random sets do not count as a difference between sets, however many looks there
    /// are.
    #[test]
    fn random_misses_seldom_look_like_a_difference() {
        let mut state = 7;
        let mut unlike = 0;
        for run in 0..1000 {
            let mut looks = Looks::new(with(8, run));
            for _ in 0..20 {
                let mut look = Look::default();
                for _ in 0..1 + next(&mut state) % 1000 {
                    let line = next(&mut state);
                    look.read(&first_level(), (line % u64::from(CLASSES)) as u32, line);
                }
                looks.add(&look.end(), 1.0 + (next(&mut state) % 100) as f64);
            }
            unlike += u32::from(looks.facts().unlike(8).is_some());
            assert_eq!(looks.far_crowds().lines, 0, "{run}");
        }
        assert!(unlike < 80, "{unlike} of 1000");
    }

    #[test]
    fn a_crowd_of_lines_widens_the_intervals_of_the_other_levels() {
        let sample = with(8, 0);
        let mut sums = ClassSums::new(sample, first_level());
        let outside = (0..CLASSES).find(|&class| !sums.follows(class)).unwrap();
        sums.looks.add(&look(4, outside, 0), 10.0);
        sums.looks.add(&look(4, outside, 12), 10.0);
        assert_eq!(sums.facts().far_crowds.lines, 0, "sixteen lines have room");
        sums.looks.add(&look(4, outside, 256), 10.0);
        let facts = sums.facts();
        let crowds = facts.far_crowds;
        assert_eq!((crowds.lines, crowds.followed), (2600, 0));
        // One look of three: by hand, the variance of their sum is 3 · (2600² − 2600² / 3) / 2.
        let error = (4.3027f64 * 2600.0).round() as u64;
        assert_eq!(crowds.error, error);
        assert_eq!(facts.estimates["llc.miss"].high, 2600 + error + 3 * 8);
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

    #[test]
    fn events_that_were_not_seen_may_have_been() {
        let none = estimate(&[0; 8], 64);
        assert_eq!((none.low, none.value, none.high), (0, 0, 3 * 8 * 64));
        let one = estimate(&[64, 0, 0, 0, 0, 0, 0, 0], 64);
        assert_eq!((one.low, one.value), (64, 512));
        assert!(one.high >= 512 + 3 * 8 * 64, "{one:?}");
        assert_eq!(estimate(&[0; 64], 64).high, 0, "all were seen");
    }

    /// The classes of the sums are drawn at random. In many draws, 95 % of the intervals contain
    /// the sum over all.
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
