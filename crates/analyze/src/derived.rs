//! Figures derived from the totals of counters: ratios of events that were counted in the same run.
//!
//! Each has a formula that names its events. A figure is left out if its events were not counted or
//! its denominator is zero. `docs/metrics.md` lists them.
//! counted, or whose denominator is zero, is left out. `docs/metrics.md` has the
//! list.

use memgauge_trace::LINE_BYTES;
use serde::Serialize;

/// A figure from counters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Derived {
    /// Name of the figure.
    pub name: &'static str,
    /// Its value in `unit`.
    pub value: f64,
    /// Unit, including the denominator.
    pub unit: &'static str,
    /// Formula with the names of its events.
    pub formula: &'static str,
}

/// Name, unit, formula, numerator, denominator, factor.
type Ratio = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    f64,
);

const RATIOS: &[Ratio] = &[
    (
        "IPC",
        "instructions a cycle",
        "instructions / cycles",
        "instructions",
        "cycles",
        1.0,
    ),
    (
        "frequency",
        "GHz while running",
        "cycles / task-clock",
        "cycles",
        "task-clock",
        1.0,
    ),
    (
        "LLC MPKI",
        "misses per 1000 instructions",
        "1000 × cache-misses / instructions",
        "cache-misses",
        "instructions",
        1e3,
    ),
    (
        "LLC miss ratio",
        "of look-ups",
        "cache-misses / cache-references",
        "cache-misses",
        "cache-references",
        1.0,
    ),
    (
        "LLC load miss ratio",
        "of loads that reach it",
        "LLC-load-misses / LLC-loads",
        "LLC-load-misses",
        "LLC-loads",
        1.0,
    ),
    (
        "L1D load MPKI",
        "misses per 1000 instructions",
        "1000 × L1-dcache-load-misses / instructions",
        "L1-dcache-load-misses",
        "instructions",
        1e3,
    ),
    (
        "L1D load miss ratio",
        "of loads",
        "L1-dcache-load-misses / L1-dcache-loads",
        "L1-dcache-load-misses",
        "L1-dcache-loads",
        1.0,
    ),
    (
        "DTLB load MPKI",
        "misses per 1000 instructions",
        "1000 × dTLB-load-misses / instructions",
        "dTLB-load-misses",
        "instructions",
        1e3,
    ),
    (
        "DTLB load miss ratio",
        "of loads",
        "dTLB-load-misses / dTLB-loads",
        "dTLB-load-misses",
        "dTLB-loads",
        1.0,
    ),
    (
        "branch miss ratio",
        "of branches",
        "branch-misses / branches",
        "branch-misses",
        "branches",
        1.0,
    ),
    // Events of the modelled machine.
    (
        "L1D miss ratio",
        "of look-ups",
        "l1d.miss / (l1d.hit + l1d.miss)",
        "l1d.miss",
        "l1d.hit",
        1.0,
    ),
    (
        "LLC MPKI",
        "misses per 1000 instructions",
        "1000 × llc.miss / instructions",
        "llc.miss",
        "instructions",
        1e3,
    ),
    (
        "DTLB MPKI",
        "misses per 1000 instructions",
        "1000 × dtlb.miss / instructions",
        "dtlb.miss",
        "instructions",
        1e3,
    ),
];

/// Figures from totals by event name over `seconds`. With `whole_machine`, clocks also advance on
/// idle CPUs and say nothing about CPU use.
///
/// A name matches without its modifiers (`cycles:u` is `cycles`) if all events of a formula have
/// the same modifiers.
pub fn derived(totals: &[(String, f64)], seconds: f64, whole_machine: bool) -> Vec<Derived> {
    let mut all: Vec<Derived> = RATIOS.iter().filter_map(|r| ratio(r, totals)).collect();
    if !whole_machine {
        all.extend(utilisation(totals, seconds));
        all.extend(fault_rate(totals));
    }
    all.extend(bandwidth(totals, seconds));
    all
}

fn base(name: &str) -> (&str, &str) {
    name.rsplit_once(':').unwrap_or((name, ""))
}

fn ratio(ratio: &Ratio, totals: &[(String, f64)]) -> Option<Derived> {
    let &(name, unit, formula, above, below, factor) = ratio;
    let numerator = totals.iter().find(|t| base(&t.0).0 == above)?;
    let same = |t: &&(String, f64)| base(&t.0) == (below, base(&numerator.0).1);
    let software = |t: &&(String, f64)| below == "task-clock" && base(&t.0).0 == below;
    let denominator = totals.iter().find(|t| same(t) || software(t))?.1;
    let both = formula.contains('+');
    let denominator = denominator + if both { numerator.1 } else { 0.0 };
    (denominator > 0.0).then(|| Derived {
        name,
        value: factor * numerator.1 / denominator,
        unit,
        formula,
    })
}

fn total(totals: &[(String, f64)], name: &str) -> Option<f64> {
    totals.iter().find(|t| base(&t.0).0 == name).map(|t| t.1)
}

fn utilisation(totals: &[(String, f64)], seconds: f64) -> Option<Derived> {
    let task_ns = total(totals, "task-clock").or_else(|| total(totals, "cpu-clock"))?;
    (seconds > 0.0).then(|| Derived {
        name: "processors used",
        value: task_ns / 1e9 / seconds,
        unit: "on average",
        formula: "task-clock (or cpu-clock) / time",
    })
}

fn fault_rate(totals: &[(String, f64)]) -> Option<Derived> {
    let faults = total(totals, "page-faults")?;
    let task_ns = total(totals, "task-clock").or_else(|| total(totals, "cpu-clock"))?;
    (task_ns > 0.0).then(|| Derived {
        name: "page faults",
        value: faults * 1e9 / task_ns,
        unit: "a second of running",
        formula: "page-faults / task-clock (or cpu-clock)",
    })
}

/// Memory controllers count lines. The kernel's aliases for their events end in these words.
fn bandwidth(totals: &[(String, f64)], seconds: f64) -> Vec<Derived> {
    let sum = |words: [&str; 2]| {
        let of_controller = |name: &str| words.iter().any(|w| name.contains(w));
        let counts = totals.iter().filter(|t| of_controller(&t.0)).map(|t| t.1);
        counts.fold(0.0, |a, b| a + b)
    };
    let rows = [
        ("memory read", sum(["cas_count_read", "umc_cas_cmd.rd"])),
        ("memory written", sum(["cas_count_write", "umc_cas_cmd.wr"])),
    ];
    let counted = rows.into_iter().filter(|row| row.1 > 0.0 && seconds > 0.0);
    counted
        .map(|(name, lines)| Derived {
            name,
            value: lines * LINE_BYTES as f64 / seconds / 1e9,
            unit: "GB/s, whole machine",
            formula: "64 bytes × the controllers' counts / time",
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(totals: &[(&str, f64)], expected: &[(&str, f64)]) {
        let totals: Vec<(String, f64)> = totals.iter().map(|t| (t.0.to_owned(), t.1)).collect();
        let seen: Vec<(&str, f64)> = derived(&totals, 2.0, false)
            .into_iter()
            .map(|d| (d.name, d.value))
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn figures_follow_their_formulas() {
        check(
            &[("instructions", 300.0), ("cycles", 200.0)],
            &[("IPC", 1.5)],
        );
        check(
            &[("cache-misses", 5.0), ("instructions", 2500.0)],
            &[("LLC MPKI", 2.0)],
        );
        check(&[("task-clock", 1e9)], &[("processors used", 0.5)]);
        check(
            &[("page-faults", 50.0), ("cpu-clock", 5e8)],
            &[("processors used", 0.25), ("page faults", 100.0)],
        );
        check(
            &[("l1d.hit", 75.0), ("l1d.miss", 25.0)],
            &[("L1D miss ratio", 0.25)],
        );
    }

    #[test]
    fn memory_controllers_of_all_channels_add_up() {
        let channel = |n| format!("uncore_imc_{n}/cas_count_read/");
        let totals = [(channel(0), 1e9), (channel(1), 1e9)];
        let all = derived(&totals, 2.0, true);
        assert_eq!((all[0].name, all[0].value), ("memory read", 64.0));
    }

    #[test]
    fn events_of_other_modes_are_not_divided_by_one_another() {
        check(&[("instructions:u", 300.0), ("cycles", 200.0)], &[]);
        check(
            &[("instructions:u", 300.0), ("cycles:u", 200.0)],
            &[("IPC", 1.5)],
        );
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        check(&[("instructions", 300.0), ("cycles", 0.0)], &[]);
        check(&[], &[]);
    }
}
