//! Which event's differences functions and lines are ranked by.

use super::{Changed, Groups, Measured, Places, changed};

/// Events that functions have exact counts of, with the cycles that one costs a processor
/// of today, about: what it adds to an access that has come as far. They only say which
/// difference matters more, so that no model's timing is needed.
const COSTS: [(&str, f64); 6] = [
    ("llc.miss", 200.0),
    ("l2.miss", 30.0),
    ("l1d.miss", 10.0),
    ("dtlb.walk", 30.0),
    ("dtlb.miss", 7.0),
    ("instructions", 0.3),
];
/// Events that cost nothing by themselves: they rank where no other changed.
const LAST: [&str; 4] = ["loads", "stores", "dram.read_bytes", "dram.write_bytes"];

/// The event that ranks changed functions, and these.
pub(super) fn ranked(groups: Groups, event: Option<&str>) -> Option<(String, Vec<Changed>)> {
    let functions = |event: &str| changed(groups, Places::Functions, event);
    if let Some(event) = event {
        return Some((event.to_owned(), functions(event)));
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

fn have(groups: Groups, event: &str) -> bool {
    groups.iter().copied().flatten().all(|run| has(run, event))
}

/// Whether the run knows the event. Where it does not (no TLB is modelled with `--sets`),
/// its functions have no count, which is not zero.
pub(super) fn has(run: &Measured, event: &str) -> bool {
    let mut counts = run.functions.values();
    run.metrics.contains_key(event) || counts.any(|counts| counts.contains_key(event))
}

/// The sum of all functions' absolute differences: code that moves from one to another
/// counts.
fn difference(rows: &[Changed]) -> u64 {
    rows.iter().map(|row| row.after.abs_diff(row.before)).sum()
}
