//! Main findings in a sentence or two, limited to what follows from the numbers.

use serde::Serialize;

use crate::bandwidth::dram::Dram;
use crate::counts::{Counts, ratio};
use crate::levels::LevelName;

/// A statement about the run with the numbers that support it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// Level that serves most of the first-level misses.
    ServedBy {
        /// The level. `None` is memory.
        level: Option<LevelName>,
        /// Its share of the first-level misses, in 0..=1.
        share: f64,
        /// Share of look-ups that the first level answers itself, in 0..=1.
        l1d_hit_ratio: f64,
    },
    /// Use of the memory bandwidth.
    DramUse {
        /// Mean traffic over the run as a share of the machine's bandwidth. It may exceed 1.
        mean_share: f64,
        /// Busiest bin / the machine's bandwidth. May exceed 1. `None` if the run has too few bins.
        peak_share: Option<f64>,
        /// Length of that bin in nanoseconds.
        peak_length_ns: Option<u64>,
        /// The machine's memory bandwidth in bytes per second.
        limit_bytes_per_s: u64,
    },
}

/// Findings from totals, traffic, and the modelled machine's memory bandwidth.
pub fn findings(
    totals: &Counts,
    has_l2: bool,
    dram: &Dram,
    limit_bytes_per_s: Option<u64>,
) -> Vec<Finding> {
    let use_of = |limit| dram_use(dram, limit);
    let found = [
        served_by(totals, has_l2),
        limit_bytes_per_s.and_then(use_of),
    ];
    found.into_iter().flatten().collect()
}

fn served_by(totals: &Counts, has_l2: bool) -> Option<Finding> {
    let get = |name: &str| totals.get(name).copied();
    let (hits, misses) = (get("l1d.hit")?, get("l1d.miss")?);
    let mut servers = vec![
        (Some(LevelName::L2), get("l2.hit")?),
        (Some(LevelName::Llc), get("llc.hit")?),
        (None, get("llc.miss")?),
    ];
    // A machine without this level has a placeholder, which serves nothing.
    servers.retain(|server| has_l2 || server.0 != Some(LevelName::L2));
    let served = servers.iter().fold(0u64, |sum, s| sum.saturating_add(s.1));
    let (level, most) = servers.into_iter().rev().max_by_key(|s| s.1)?;
    Some(Finding::ServedBy {
        level,
        share: ratio(most, served)?,
        l1d_hit_ratio: ratio(hits, hits.saturating_add(misses))?,
    })
}

fn dram_use(dram: &Dram, limit: u64) -> Option<Finding> {
    let mean = dram.mean_read_bytes_per_s? + dram.mean_write_bytes_per_s?;
    (limit > 0 && mean > 0.0).then(|| Finding::DramUse {
        mean_share: mean / limit as f64,
        peak_share: dram.peak.map(|peak| peak.per_s / limit as f64),
        peak_length_ns: dram.peak.map(|peak| peak.length_ns),
        limit_bytes_per_s: limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::series::Peak;

    fn totals(pairs: &[(&str, u64)]) -> Counts {
        pairs.iter().map(|&(n, v)| (n.to_owned(), v)).collect()
    }

    #[test]
    fn largest_server_of_misses_is_named() {
        let totals = totals(&[
            ("l1d.hit", 900),
            ("l1d.miss", 100),
            ("l2.hit", 20),
            ("llc.hit", 10),
            ("llc.miss", 70),
        ]);
        let found = findings(&totals, true, &Dram::default(), None);
        let expected = Finding::ServedBy {
            level: None,
            share: 0.7,
            l1d_hit_ratio: 0.9,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn traffic_is_held_against_the_machines_bandwidth() {
        let dram = Dram {
            mean_read_bytes_per_s: Some(1e9),
            mean_write_bytes_per_s: Some(1e9),
            peak: Some(Peak {
                start_ns: 0,
                length_ns: 5,
                per_s: 6e9,
            }),
            ..Dram::default()
        };
        let found = findings(&Counts::new(), true, &dram, Some(8_000_000_000));
        let expected = Finding::DramUse {
            mean_share: 0.25,
            peak_share: Some(0.75),
            peak_length_ns: Some(5),
            limit_bytes_per_s: 8_000_000_000,
        };
        assert_eq!(found, [expected]);
        assert_eq!(findings(&Counts::new(), true, &dram, Some(0)), []);
    }

    #[test]
    fn nothing_is_said_of_a_run_without_misses() {
        let totals = totals(&[
            ("l1d.hit", 9),
            ("l1d.miss", 0),
            ("l2.hit", 0),
            ("llc.hit", 0),
            ("llc.miss", 0),
        ]);
        assert_eq!(findings(&totals, true, &Dram::default(), None), []);
    }
}
