//! Conditions for a comparison of runs.

use std::collections::BTreeSet;

use super::Measured;

/// Checks that the runs of a group were recorded alike: the differences between them must be chance.
///
/// # Errors
/// They modelled different machines, parts of the cache sets, or regions. The message says so.
pub fn check_group(group: &[Measured]) -> Result<(), String> {
    let recorded_as = |run: &Measured| {
        let (machine, regions) = (run.machine.clone(), run.only_regions.clone());
        (machine, run.estimated_from, regions)
    };
    let first = group.first().map(recorded_as);
    if group.iter().any(|run| Some(recorded_as(run)) != first) {
        return Err(
            "failed to compare groups: the runs of a group modelled different machines, parts of \
             their cache sets or regions: record them with the same --machine, --sets and --region"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks that functions of all runs can be ranked by an event.
///
/// # Errors
/// A run has no counts of it. The message lists the events that all of them have.
pub fn check_event(event: &str, runs: &[&Measured]) -> Result<(), String> {
    let mut known: Option<BTreeSet<&str>> = None;
    for run in runs {
        let counted = run.functions.values().flat_map(|counts| counts.keys());
        let sampled = run.sampled.iter().map(|shares| &shares.event);
        let events: BTreeSet<&str> = counted.chain(sampled).map(String::as_str).collect();
        known = Some(match known {
            Some(known) => known.intersection(&events).copied().collect(),
            None => events,
        });
    }
    let known = known.unwrap_or_default();
    if known.contains(event) {
        return Ok(());
    }
    let fix = match known.is_empty() {
        true => "no event has functions in all runs: leave the event out".to_owned(),
        false => {
            let names: Vec<&str> = known.into_iter().collect();
            format!("use one of {}", names.join(", "))
        }
    };
    Err(format!(
        "failed to rank functions by `{event}`: not all runs have counts of it: {fix}"
    ))
}
