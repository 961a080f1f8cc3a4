//! Selects the event by which functions and lines are ranked.

use super::{ChangedPlace, Measured, PlaceKind, RunGroups, changed};

/// Ranks first if functions have it.
pub(super) const CYCLES: &str = "cycles";
/// Events with exact counts by function, and the approximate cost of each in cycles: what it adds
/// to an access that has reached its level. Without cycles, these costs decide which difference
/// matters most.
const COSTS: [(&str, f64); 6] = [
    ("llc.miss", 200.0),
    ("l2.miss", 30.0),
    ("l1d.miss", 10.0),
    ("dtlb.walk", 30.0),
    ("dtlb.miss", 7.0),
    ("instructions", 0.3),
];
/// Events without a cost of their own. They rank functions if no other event changed.
const LAST: [&str; 4] = ["loads", "stores", "dram.read_bytes", "dram.write_bytes"];

/// Returns the event that ranks changed functions, and the functions.
pub(super) fn ranked(
    groups: RunGroups,
    event: Option<&str>,
) -> Option<(String, Vec<ChangedPlace>)> {
    let functions = |event: &str| changed(groups, PlaceKind::Functions, event);
    if let Some(event) = event {
        return Some((event.to_owned(), functions(event)));
    }
    let all_runs = || groups.iter().copied().flatten();
    if all_runs().all(|run| has_by_function(run, CYCLES)) {
        let rows = functions(CYCLES);
        if difference(&rows) > 0 {
            return Some((CYCLES.to_owned(), rows));
        }
    }
    let comparable = COSTS.into_iter().filter(|(event, _)| have(groups, event));
    let costs = comparable.map(|(event, cycles)| {
        let rows = functions(event);
        let cost = difference(&rows) as f64 * cycles;
        (event, rows, cost)
    });
    let costs = costs.filter(|(.., cost)| *cost > 0.0);
    let dearest = costs.max_by(|a, b| a.2.total_cmp(&b.2));
    if let Some((event, rows, _)) = dearest {
        return Some((event.to_owned(), rows));
    }
    let rest = LAST.into_iter().filter(|event| have(groups, event));
    let mut rest = rest.map(|event| (event.to_owned(), functions(event)));
    rest.find(|(_, rows)| difference(rows) > 0)
}

/// With `--sets`, cycles are known for the run but not by function.
fn has_by_function(run: &Measured, event: &str) -> bool {
    run.functions
        .values()
        .any(|counts| counts.contains_key(event))
}

fn have(groups: RunGroups, event: &str) -> bool {
    groups.iter().copied().flatten().all(|run| has(run, event))
}

/// Returns true if the run has the event. Otherwise (no TLB is modelled with `--sets`), the counts
/// of its functions are unknown, not zero.
pub(super) fn has(run: &Measured, event: &str) -> bool {
    let mut counts = run.functions.values();
    run.metrics.contains_key(event) || counts.any(|counts| counts.contains_key(event))
}

/// Returns the sum of all functions' absolute differences, so that code that moves between
/// functions counts.
fn difference(rows: &[ChangedPlace]) -> u64 {
    rows.iter().map(|row| row.after.abs_diff(row.before)).sum()
}
