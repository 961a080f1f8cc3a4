//! Confidence intervals of numbers that were estimated from some groups of cache sets.
//!
//! The part of a number in each modelled group is known, scaled to represent all groups. The
//! variance between these parts determines the uncertainty of their sum. The number of events
//! alone, as for samples, was rejected: the misses of one code location come in consecutive lines,
//! so their sets are not independent.

use crate::sample_intervals::Z_95;
use std::collections::BTreeMap;

use memgauge_trace::catalogue::L1D_MISS;
use memgauge_trace::groups::{GROUPS, student, variance_of_sum};
use memgauge_trace::{EventId, Pid, SetsFacts};
use serde::Serialize;

/// A 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EstimateInterval {
    /// Lower end.
    pub low: u64,
    /// Upper end.
    pub high: u64,
}

/// Groups of cache sets that are modelled: one in `one_in` of [`GROUPS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FollowedGroups {
    one_in: u32,
    /// Crowding by the events at hand, and by the first level's misses.
    crowded: Crowded,
    near: Crowded,
}

/// Bounds on the misses of lines that are concentrated in few groups. So many may be missing or in
/// excess at any location of code or data, since their locations are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Crowded {
    missing: f64,
    too_many: f64,
}

impl FollowedGroups {
    /// `None` if all sets were modelled, so that nothing is estimated.
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

    /// The groups for an event, with the crowded lines of its cache level.
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

    /// Number of independent samples of equal weight that estimate a share as precisely as the
    /// samples of lines in some groups. `effective_samples` is this number if all groups were
    /// modelled. For each process and group, `off` has the deviation of the part from its share of
    /// the group. `total` is the number of events that all samples represent.
    ///
    /// The variance has two stages: groups, and samples within them. Student's quantile replaces
    /// the normal one.
    pub(crate) fn effective_samples(
        self,
        effective_samples: u64,
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
        let within = independent / (effective_samples as f64).max(1.0) / scale;
        let variance = between / (total * total).max(1.0) + within;
        let wider = student(self.count()) / student(GROUPS);
        let alone = independent / variance / (wider * wider);
        // A share of 0 or 1 has no variance.
        match alone.is_finite() {
            true => effective_samples.min(alone.round().max(1.0) as u64),
            false => effective_samples,
        }
    }

    /// Lower bound of the true number relative to the estimate if nearly all of it is in one group,
    /// since the other groups may have none. 1 elsewhere, where the variance between groups
    /// describes the uncertainty. `samples` is the number of samples that the number comes from.
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

    /// Interval of a number whose parts by group are `parts`, each scaled by `one_in`. An event
    /// counts `unit`, such as the bytes of a line.
    ///
    /// The variance is that of a sum from a sample without replacement, but at least that of events
    /// in random groups. Three events may have been missed. The true sum is at least what was seen.
    /// All crowded lines may belong to this number.
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

    /// Interval of `parts` as a share of `whole`, both by group. It follows from the variance of a
    /// ratio (Cochran, Sampling Techniques, 1977, chapter 6). Both ends are in 0..=1. `None` if
    /// `whole` is empty.
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
    /// Widens the interval of a share of `total`, in events of `unit`, by crowded lines. All
    /// missing lines may belong to the part or to the remainder, and the same holds for the excess.
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
    /// 64² · 7/8 · (8 · 12.5² / 7) / 8 and half the interval 2.3646 times its root.
    #[test]
    fn an_interval_is_the_spread_between_groups() {
        let parts = groups([1000, 1200, 1000, 1200, 1000, 1200, 1000, 1200]);
        let half = 2.3646 * (4096.0f64 * 0.875 * (8.0 * 12.5 * 12.5 / 7.0) / 8.0).sqrt();
        let interval = EIGHT.interval(&parts, 1);
        assert_eq!(interval.low, (8800.0 - half).round() as u64);
        assert_eq!(interval.high, (8800.0 + half).round() as u64);
    }

    #[test]
    fn equal_groups_still_may_differ_by_chance() {
        let interval = EIGHT.interval(&groups([800; 8]), 1);
        let half = 2.3646 * (8.0f64 * 0.875 * 6400.0).sqrt();
        assert_eq!(interval.high, (6400.0 + half).round() as u64);
        let lines = EIGHT.interval(&groups([64 * 800; 8]), 64);
        // The quantile has four digits here.
        assert!(lines.high.abs_diff((64.0 * (6400.0 + half)).round() as u64) <= 2);
    }

    #[test]
    fn what_was_seen_is_the_least_there_was() {
        let interval = EIGHT.interval(&BTreeMap::from([(3, 80)]), 1);
        assert_eq!(interval.low, 10);
        let none = EIGHT.interval(&BTreeMap::new(), 1);
        assert_eq!((none.low, none.high), (0, 24));
    }

    /// A location with a tenth of each group's events has a tenth of all, however much the groups
    /// differ. If its events are in one group only, its share may be anything.
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

    /// Each group has 100 samples that represent 8 events each. If half of the samples of each
    /// group are in a region, they are about as precise as independent ones. If all samples of four
    /// groups are, they are no more precise than eight observations.
    #[test]
    fn samples_of_few_groups_tell_less_than_independent_ones() {
        let off = |parts: [f64; 8]| {
            let off = parts.iter().map(|part| part - 400.0).collect();
            BTreeMap::from([(Pid(1), off)])
        };
        let even = EIGHT.effective_samples(800, 0.5, 6400.0, &off([400.0; 8]));
        assert_eq!(even, 800, "chance alone");
        let few = off([800.0, 0.0, 800.0, 0.0, 800.0, 0.0, 800.0, 0.0]);
        let few = EIGHT.effective_samples(800, 0.5, 6400.0, &few);
        assert!((4..=7).contains(&few), "{few}");
        assert_eq!(
            EIGHT.effective_samples(800, 1.0, 6400.0, &off([400.0; 8])),
            800
        );
    }
}
