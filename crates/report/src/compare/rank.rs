//! Which event's differences functions and lines are ranked by.

use super::{Changed, Groups, Measured, Places, changed};

/// What counts if functions have it.
pub(super) const CYCLES: &str = "cycles";
/// Events that functions have exact counts of, with the approximate cost of one in cycles: what it
/// adds to an access that has come as far. Without cycles they decide which difference matters
/// more.
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

/// With `--sets`, cycles are known of the run and not by function.
fn has_by_function(run: &Measured, event: &str) -> bool {
    run.functions
        .values()
        .any(|counts| counts.contains_key(event))
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
