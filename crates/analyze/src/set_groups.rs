//! Intervals of numbers that were estimated from some groups of cache sets.
//!
//! A number's part in each group that was followed is known, scaled to stand for all. How
//! much these differ is how far off their sum may be. Rejected: the number of events alone,
//! as for samples. Misses of a place in the code come by lines, so their sets are
//! anything but independent.

use std::collections::BTreeMap;

use memgauge_trace::catalogue::L1D_MISS;
use memgauge_trace::groups::{GROUPS, student, variance_of_sum};
use memgauge_trace::{EventId, Pid, SetsFacts};
use serde::Serialize;

/// Two-sided 95 % quantile of the normal distribution.
pub(crate) const Z_95: f64 = 1.959_964;

/// A 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EstimateInterval {
    /// Lower end.
    pub low: u64,
    /// Upper end.
    pub high: u64,
}

/// Some groups of cache sets: one in `one_in` of [`GROUPS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FollowedGroups {
    one_in: u32,
    /// Of the events at hand, and of the first level's misses.
    crowded: Crowded,
    near: Crowded,
}

/// So many misses of lines that crowd in few groups may be missing, and so many may be too
/// many, of any place in code or data: where they are is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Crowded {
    missing: f64,
    too_many: f64,
}

impl FollowedGroups {
    /// `None` where all were followed, and nothing is estimated.
    pub(crate) fn of(sets: Option<&SetsFacts>) -> Option<FollowedGroups> {
        let sets = sets.filter(|sets| (2..GROUPS).contains(&sets.one_in))?;
        let crowded = |(least, most): (f64, f64)| Crowded {
            missing: most.max(0.0),
            too_many: (-least).max(0.0),
        };
        Some(FollowedGroups {
            one_in: sets.one_in,
            crowded: crowded(sets.far_crowds.missing(sets.one_in)),
            near: crowded(sets.looks.unlike(sets.one_in).unwrap_or_default()),
        })
    }

    /// For an event, with the crowds of its level.
    pub(crate) fn of_event(self, event: EventId) -> FollowedGroups {
        FollowedGroups {
            crowded: match event {
                L1D_MISS => self.near,
                _ => self.crowded,
            },
            ..self
        }
    }

    pub(crate) fn count(self) -> u32 {
        (GROUPS / self.one_in).max(2)
    }

    /// How many independent samples of equal weight tell as much of a share as those of
    /// lines in some groups do, where `alike` would if they were of all. `off` is, by
    /// process and group, how far the part is from its share of the group; `total` is what
    /// all samples stand for.
    ///
    /// The variance is of two stages: groups, then samples in them. Student's point takes
    /// the place of the normal one.
    pub(crate) fn alike(
        self,
        alike: u64,
        share: f64,
        total: f64,
        off: &BTreeMap<Pid, Vec<f64>>,
    ) -> u64 {
        let scale = f64::from(self.one_in);
        let of_process = |off: &Vec<f64>| {
            let seen = off.iter().map(|off| off / scale);
            variance_of_sum(seen, self.count())
        };
        let between: f64 = off.values().map(of_process).sum();
        let independent = share * (1.0 - share);
        let within = independent / (alike as f64).max(1.0) / scale;
        let variance = between / (total * total).max(1.0) + within;
        let wider = student(self.count()) / student(GROUPS);
        let alone = independent / variance / (wider * wider);
        // Of everything or nothing the variance is 0 by 0.
        match alone.is_finite() {
            true => alike.min(alone.round().max(1.0) as u64),
            false => alike,
        }
    }

    /// The true number over the estimate, at least, where nearly all of the estimate lies in one
    /// group: those that are not followed may have nothing. 1 elsewhere, where the spread between
    /// groups tells more. `samples` is how many told of the number.
    pub(crate) fn least(self, by_group: impl Iterator<Item = f64>, samples: u64) -> f64 {
        let (sum, squares) = by_group.fold((0.0, 0.0), |(sum, squares), part| {
            (sum + part, squares + part * part)
        });
        if sum * sum >= 2.0 * squares {
            return 1.0;
        }
        let error = Z_95 / (samples as f64).max(1.0).sqrt();
        (1.0 - error).max(0.0) / f64::from(self.one_in)
    }

    fn unfollowed(self) -> f64 {
        1.0 - 1.0 / f64::from(self.one_in)
    }

    /// The interval of a number whose parts by group are these, each scaled by `one_in`.
    /// An event is `unit` of it, such as the bytes of a line.
    ///
    /// The variance is that of a sum from a sample without replacement, and no less than
    /// that of events that fall into random groups. Three events may have been missed.
    /// The true sum is no less than what was seen. Crowded lines may all be this number's.
    pub(crate) fn interval(self, parts: &BTreeMap<u8, u64>, unit: u64) -> EstimateInterval {
        let scale = f64::from(self.one_in);
        let value: f64 = parts.values().map(|&part| part as f64).sum();
        let seen = parts.values().map(|&part| part as f64 / scale);
        let unit = unit as f64;
        let random = scale * self.unfollowed() * unit * value;
        let variance = variance_of_sum(seen, self.count()).max(random);
        let half = student(self.count()) * variance.sqrt();
        let low = value - half - self.crowded.too_many * unit;
        let high = value + half.max(3.0 * unit * scale) + self.crowded.missing * unit;
        EstimateInterval {
            low: low.max(value / scale).round() as u64,
            high: high.round() as u64,
        }
    }

    /// The interval of the share that `parts` have of `whole`, both by group, as the
    /// variance of a ratio (Cochran, Sampling Techniques, 1977, chapter 6). Both ends are
    /// shares, 0..=1.
    pub(crate) fn share(
        self,
        parts: &BTreeMap<u8, u64>,
        whole: &BTreeMap<u8, u64>,
        unit: u64,
    ) -> Option<(f64, f64)> {
        let sum = |of: &BTreeMap<u8, u64>| of.values().map(|&part| part as f64).sum::<f64>();
        let (value, total) = (sum(parts), sum(whole));
        if total <= 0.0 {
            return None;
        }
        let share = value / total;
        let scale = f64::from(self.one_in);
        let off = whole.iter().map(|(group, &all)| {
            let part = parts.get(group).copied().unwrap_or(0);
            (part as f64 - share * all as f64) / scale
        });
        let unit = unit as f64;
        let random = scale * self.unfollowed() * unit * value * (1.0 - share);
        let variance = variance_of_sum(off, self.count()).max(random);
        let half = student(self.count()) * variance.sqrt() / total;
        let missed = 3.0 * unit * scale / total;
        let low = (share - half).max(0.0);
        let high = (share + half.max(missed * (1.0 - share))).min(1.0);
        Some(self.with_crowds((low, high), total, unit))
    }
}

impl FollowedGroups {
    /// The interval of a share of `total`, in events of `unit`, with crowded lines: those
    /// missing may all be of the part or all of the rest, and so may those too many.
    pub(crate) fn with_crowds(self, (low, high): (f64, f64), total: f64, unit: f64) -> (f64, f64) {
        let (missing, too_many) = (self.crowded.missing * unit, self.crowded.too_many * unit);
        if missing + too_many == 0.0 {
            return (low, high);
        }
        let (more, less) = (
            total + missing,
            (total - too_many).max(total / f64::from(self.one_in)),
        );
        let least = (low * total / more).min(1.0 - (1.0 - low) * total / less);
        let most = ((high * total + missing) / more).max(high * total / less);
        (least.max(0.0), most.min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_trace::LookFacts;
    use memgauge_trace::catalogue::LLC_MISS;

    const EIGHT: FollowedGroups = FollowedGroups {
        one_in: 8,
        crowded: NONE,
        near: NONE,
    };
    const NONE: Crowded = Crowded {
        missing: 0.0,
        too_many: 0.0,
    };

    fn one_in(one_in: u32) -> Option<FollowedGroups> {
        FollowedGroups::of(Some(&SetsFacts {
            one_in,
            ..SetsFacts::default()
        }))
    }

    #[test]
    fn crowded_lines_may_be_of_any_part() {
        let crowds = |misses, followed| {
            FollowedGroups::of(Some(&SetsFacts {
                one_in: 8,
                looks: LookFacts {
                    looks: 20,
                    misses,
                    followed,
                    error: 100,
                },
                ..SetsFacts::default()
            }))
        };
        let missing = crowds(900, 0).unwrap().of_event(L1D_MISS);
        let even: BTreeMap<u8, u64> = (0..8).map(|group| (group, 125)).collect();
        let found = missing.interval(&even, 1);
        let alone = EIGHT.interval(&even, 1);
        assert_eq!((found.low, found.high), (alone.low, alone.high + 1000));
        // Half of 1000 may be 1500 of 2000, or 500 of them.
        assert_eq!(missing.with_crowds((0.5, 0.5), 1000.0, 1.0), (0.25, 0.75));
        // 300 too many, or 400: half of 1000 may be 100 of 600, or 500 of them.
        let too_many = crowds(100, 50).unwrap();
        let even_below = too_many.of_event(LLC_MISS).interval(&even, 1);
        assert_eq!(even_below, alone, "the last level has room");
        let too_many = too_many.of_event(L1D_MISS);
        let (low, high) = too_many.with_crowds((0.5, 0.5), 1000.0, 1.0);
        assert!((low - 1.0 / 6.0).abs() < 1e-12 && (high - 5.0 / 6.0).abs() < 1e-12);
        assert_eq!(too_many.interval(&even, 1).low, alone.low - 400);
        assert_eq!(EIGHT.with_crowds((0.2, 0.3), 1000.0, 64.0), (0.2, 0.3));
    }

    fn groups(parts: [u64; 8]) -> BTreeMap<u8, u64> {
        (0..).zip(parts).collect()
    }

    #[test]
    fn all_groups_leave_nothing_to_estimate() {
        assert_eq!(one_in(1), None);
        assert_eq!(one_in(0), None);
        assert_eq!(one_in(16).unwrap().count(), 4);
    }

    /// By hand: in each group 1000 or 1200 events, of which 125 or 150 were seen. The mean
    /// is 137.5, each deviation 12.5, so the variance of the sum is
    /// 64² · 7/8 · (8 · 12.5² / 7) / 8 and half the interval 2.365 times its root.
    #[test]
    fn an_interval_is_the_spread_between_groups() {
        let parts = groups([1000, 1200, 1000, 1200, 1000, 1200, 1000, 1200]);
        let half = 2.365 * (4096.0f64 * 0.875 * (8.0 * 12.5 * 12.5 / 7.0) / 8.0).sqrt();
        let interval = EIGHT.interval(&parts, 1);
        assert_eq!(interval.low, (8800.0 - half).round() as u64);
        assert_eq!(interval.high, (8800.0 + half).round() as u64);
    }

    #[test]
    fn equal_groups_still_may_differ_by_chance() {
        let interval = EIGHT.interval(&groups([800; 8]), 1);
        let half = 2.365 * (8.0f64 * 0.875 * 6400.0).sqrt();
        assert_eq!(interval.high, (6400.0 + half).round() as u64);
        let lines = EIGHT.interval(&groups([64 * 800; 8]), 64);
        assert_eq!(lines.high, (64.0 * (6400.0 + half)).round() as u64);
    }

    #[test]
    fn what_was_seen_is_the_least_there_was() {
        let interval = EIGHT.interval(&BTreeMap::from([(3, 80)]), 1);
        assert_eq!(interval.low, 10);
        let none = EIGHT.interval(&BTreeMap::new(), 1);
        assert_eq!((none.low, none.high), (0, 24));
    }

    /// A place with a tenth of each group's events has a tenth of all, however much the
    /// groups differ; one that has them in one group alone may have anything.
    #[test]
    fn a_share_is_as_sure_as_it_is_alike_in_all_groups() {
        let whole = groups([1, 2, 3, 4, 5, 6, 7, 8].map(|n| n * 1_000_000));
        let tenth = groups([1, 2, 3, 4, 5, 6, 7, 8].map(|n| n * 100_000));
        let (low, high) = EIGHT.share(&tenth, &whole, 1).unwrap();
        assert!(high - low < 0.01 && low < 0.1 && 0.1 < high, "{low} {high}");
        let one = BTreeMap::from([(7, 3_600_000)]);
        let (low, high) = EIGHT.share(&one, &whole, 1).unwrap();
        assert!(low == 0.0 && high > 0.25, "{low} {high}");
        assert_eq!(EIGHT.share(&one, &BTreeMap::new(), 1), None);
    }

    /// An array read in one set has all its misses there: of eight groups followed in 64, the one
    /// with it may be the only one.
    #[test]
    fn what_lies_in_one_group_may_lie_in_no_other() {
        let one = [0.0, 40.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        let least = EIGHT.least(one.into_iter(), 400);
        assert!((least - 0.902 / 8.0).abs() < 1e-3, "{least}");
        assert_eq!(EIGHT.least(one.into_iter(), 1), 0.0);
        let two = [0.0, 40.0, 0.0, 40.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(EIGHT.least(two.into_iter(), 400), 1.0);
        assert_eq!(EIGHT.least([0.0; 8].into_iter(), 0), 1.0);
    }

    /// Each group has 100 samples that stand for 8 events each. Where half of each group's
    /// are in a region they tell a little less than independent ones; where those of four
    /// groups are, they tell no more than eight things do.
    #[test]
    fn samples_of_few_groups_tell_less_than_independent_ones() {
        let off = |parts: [f64; 8]| {
            let off = parts.iter().map(|part| part - 400.0).collect();
            BTreeMap::from([(Pid(1), off)])
        };
        let even = EIGHT.alike(800, 0.5, 6400.0, &off([400.0; 8]));
        assert_eq!(even, 800, "chance alone");
        let few = off([800.0, 0.0, 800.0, 0.0, 800.0, 0.0, 800.0, 0.0]);
        let few = EIGHT.alike(800, 0.5, 6400.0, &few);
        assert!((4..=7).contains(&few), "{few}");
        assert_eq!(EIGHT.alike(800, 1.0, 6400.0, &off([400.0; 8])), 800);
    }
}
