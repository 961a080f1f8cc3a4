//! Look-ups, hits and misses of each level, from a recording's totals.

use serde::Serialize;

use crate::counts::{Counts, ratio};

/// A cache or TLB level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LevelName {
    /// First-level data cache.
    L1d,
    /// Second-level cache.
    L2,
    /// Last-level cache.
    Llc,
    /// First-level data TLB.
    Dtlb,
    /// Second-level TLB.
    Stlb,
}

/// Counts of one level. `None` if the recording lacks the event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// The level.
    pub name: LevelName,
    /// Demand look-ups: hits + misses. No source counts hits of the first-level data TLB. Its
    /// look-ups are the accesses: look-ups of the first-level data cache minus the second line of
    /// each split access.
    pub lookups: Option<u64>,
    /// Look-ups that hit.
    pub hits: Option<u64>,
    /// Look-ups that missed.
    pub misses: Option<u64>,
    /// `misses / lookups` of this level, in 0..=1.
    pub miss_ratio: Option<f64>,
    /// Misses per thousand instructions.
    pub mpki: Option<f64>,
}

/// The five levels, nearest first, caches before TLBs. Without `has_l2` there are four, since the
/// second level would repeat the counts of its placeholder.
///
/// `totals` are sums over the whole run by event name.
pub fn levels(totals: &Counts, has_l2: bool) -> Vec<Level> {
    let get = |name: &str| totals.get(name).copied();
    let level = |name, hits, misses| Level::of(name, hits, misses, get("instructions"));
    let mut levels = vec![
        level(LevelName::L1d, get("l1d.hit"), get("l1d.miss")),
        level(LevelName::L2, get("l2.hit"), get("l2.miss")),
        level(LevelName::Llc, get("llc.hit"), get("llc.miss")),
        level(LevelName::Dtlb, dtlb_hits(totals), get("dtlb.miss")),
        level(LevelName::Stlb, get("stlb.hit"), get("dtlb.walk")),
    ];
    levels.retain(|level| has_l2 || level.name != LevelName::L2);
    levels
}

impl Level {
    fn of(
        name: LevelName,
        hits: Option<u64>,
        misses: Option<u64>,
        instructions: Option<u64>,
    ) -> Self {
        let lookups = hits.zip(misses).map(|(h, m)| h.saturating_add(m));
        Level {
            name,
            lookups,
            hits,
            misses,
            miss_ratio: misses.zip(lookups).and_then(|(m, l)| ratio(m, l)),
            mpki: misses.zip(instructions).and_then(|(m, i)| mpki(m, i)),
        }
    }
}

fn mpki(misses: u64, instructions: u64) -> Option<f64> {
    ratio(misses, instructions).map(|per_instruction| per_instruction * 1000.0)
}

fn dtlb_hits(totals: &Counts) -> Option<u64> {
    let get = |name: &str| totals.get(name).copied();
    let operands = || {
        let both = get("loads")?.saturating_add(get("stores")?);
        Some(both.saturating_sub(get("modifies")?))
    };
    let lines = || {
        let lines = get("l1d.hit")?.saturating_add(get("l1d.miss")?);
        Some(lines.saturating_sub(get("splits").unwrap_or(0)))
    };
    let hits = || Some(operands().or_else(lines)?.saturating_sub(get("dtlb.miss")?));
    get("dtlb.hit").or_else(hits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(pairs: &[(&str, u64)]) -> Counts {
        pairs.iter().map(|&(n, v)| (n.to_owned(), v)).collect()
    }

    #[test]
    fn ratio_is_per_look_up_and_mpki_per_thousand_instructions() {
        let levels = levels(
            &totals(&[
                ("instructions", 10_000),
                ("l1d.hit", 900),
                ("l1d.miss", 100),
                ("l2.hit", 75),
                ("l2.miss", 25),
            ]),
            true,
        );
        assert_eq!(levels[0].lookups, Some(1000));
        assert_eq!(levels[0].miss_ratio, Some(0.1));
        assert_eq!(levels[0].mpki, Some(10.0));
        assert_eq!(levels[1].lookups, Some(100));
        assert_eq!(levels[1].miss_ratio, Some(0.25));
        assert_eq!(levels[1].mpki, Some(2.5));
    }

    #[test]
    fn first_level_tlb_is_looked_up_by_accesses_that_bypass_the_caches() {
        let levels = levels(
            &totals(&[
                ("loads", 60),
                ("stores", 50),
                ("modifies", 10),
                ("l1d.hit", 20),
                ("l1d.miss", 10),
                ("dtlb.miss", 5),
            ]),
            true,
        );
        assert_eq!(levels[3].lookups, Some(100));
    }

    #[test]
    fn first_level_tlb_is_looked_up_once_an_access() {
        let levels = levels(
            &totals(&[
                ("l1d.hit", 90),
                ("l1d.miss", 20),
                ("splits", 10),
                ("dtlb.miss", 5),
                ("stlb.hit", 4),
                ("dtlb.walk", 1),
            ]),
            true,
        );
        assert_eq!(levels[3].lookups, Some(100));
        assert_eq!(levels[3].miss_ratio, Some(0.05));
        assert_eq!(levels[4].lookups, Some(5));
        assert_eq!(levels[4].miss_ratio, Some(0.2));
        assert_eq!(levels[4].mpki, None);
    }

    #[test]
    fn a_machine_of_two_levels_has_no_second_one() {
        let names = |has_l2| {
            levels(&totals(&[("l2.hit", 1)]), has_l2)
                .iter()
                .map(|l| l.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(true)[..3],
            [LevelName::L1d, LevelName::L2, LevelName::Llc]
        );
        assert_eq!(names(false)[..2], [LevelName::L1d, LevelName::Llc]);
    }

    #[test]
    fn missing_events_and_idle_levels_have_no_ratio() {
        let levels = levels(&totals(&[("l2.hit", 0), ("l2.miss", 0)]), true);
        assert_eq!((levels[0].lookups, levels[0].miss_ratio), (None, None));
        assert_eq!((levels[1].lookups, levels[1].miss_ratio), (Some(0), None));
        assert_eq!(levels[3].lookups, None);
    }
}
