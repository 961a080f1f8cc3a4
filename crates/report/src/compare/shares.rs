//! Shares of samples that changed.

use std::collections::BTreeSet;

use serde::Serialize;

use super::RunGroups;
use super::interval::{Interval, Proportion, contains_zero, newcombe, welch};
use super::measured::{Measured, Shares};

/// Locations whose share of an event's samples changed by more than chance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangedShares {
    /// Sampled event.
    pub event: String,
    /// Samples before and after, over all runs.
    pub samples: [u64; 2],
    /// Number of compared locations.
    pub compared: usize,
    /// Locations that changed, largest difference first.
    pub rows: Vec<ChangedShare>,
}

/// A location whose share changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChangedShare {
    /// Its name.
    pub name: String,
    /// Share of the samples before, in 0..=1. For groups, of the samples of all runs.
    pub before: f64,
    /// Share of the samples after.
    pub after: f64,
    /// `after - before`.
    pub difference: f64,
    /// Interval of the difference.
    pub interval: [f64; 2],
}

/// Compares functions. `None` if a run was not sampled, or by another event.
pub(super) fn functions(groups: RunGroups) -> Option<ChangedShares> {
    changed(groups, |run| run.sampled.as_ref())
}

/// Compares regions for the events that all runs have.
pub(super) fn regions(groups: RunGroups) -> Vec<ChangedShares> {
    let first = groups[0].first().map(|run| run.regions.as_slice());
    let events = first.unwrap_or_default().iter().map(|shares| &shares.event);
    let of = |event: &String| changed(groups, |run| run.regions.iter().find(|r| r.event == *event));
    events.filter_map(of).collect()
}

fn changed<'a>(
    groups: RunGroups<'a>,
    of: impl Fn(&'a Measured) -> Option<&'a Shares>,
) -> Option<ChangedShares> {
    let collect = |group: &'a [Measured]| group.iter().map(&of).collect::<Option<Vec<_>>>();
    let groups = [collect(groups[0])?, collect(groups[1])?];
    let event = &groups[0].first()?.event;
    if groups.iter().flatten().any(|shares| shares.event != *event) {
        return None;
    }
    let all = groups.iter().flatten();
    let names: BTreeSet<&String> = all.flat_map(|shares| shares.shares.keys()).collect();
    let compared = names.len();
    let row = |name: &String| {
        let [before, after] = [0, 1].map(|i: usize| pooled(&groups[i], name));
        let interval = interval(&groups, name, newcombe(before, after, compared)?);
        (!contains_zero(interval)).then(|| ChangedShare {
            name: name.clone(),
            before: before.share,
            after: after.share,
            difference: after.share - before.share,
            interval,
        })
    };
    let mut rows: Vec<ChangedShare> = names.into_iter().filter_map(row).collect();
    rows.sort_by(|a, b| b.difference.abs().total_cmp(&a.difference.abs()));
    Some(ChangedShares {
        event: event.clone(),
        samples: [0, 1].map(|i: usize| groups[i].iter().map(|shares| shares.samples).sum()),
        compared,
        rows,
    })
}

fn share(shares: &Shares, name: &String) -> f64 {
    shares.shares.get(name).copied().unwrap_or(0.0)
}

/// Returns the share in the samples of all runs together.
fn pooled(group: &[&Shares], name: &String) -> Proportion {
    let samples: u64 = group.iter().map(|shares| shares.samples).sum();
    let part = |shares: &&Shares| share(shares, name) * shares.samples as f64;
    Proportion {
        share: group.iter().map(part).sum::<f64>() / samples.max(1) as f64,
        samples,
    }
}

/// For groups, the wider interval of both methods: runs may differ by more than chance in their
/// samples, and few samples may be equal by chance.
fn interval(groups: &[Vec<&Shares>; 2], name: &String, of_samples: Interval) -> Interval {
    let [before, after] = groups.each_ref().map(|group| {
        group
            .iter()
            .map(|shares| share(shares, name))
            .collect::<Vec<_>>()
    });
    match welch(&before, &after) {
        None => of_samples,
        Some([low, high]) => [low.min(of_samples[0]), high.max(of_samples[1])],
    }
}
