//! Figures derived from the totals of counters: ratios of events that were counted in the same run.
//!
//! Each has a formula that names its events. A figure is left out if its events were not counted or
//! its denominator is zero. `docs/metrics.md` lists them.

use memgauge_trace::{LINE_BYTES, event_meaning};
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

/// A figure that is the ratio of two events.
struct Ratio {
    name: &'static str,
    unit: &'static str,
    formula: &'static str,
    numerator: &'static str,
    denominator: Denominator,
    factor: f64,
}

/// Divisor of the numerator.
enum Denominator {
    /// The other event.
    Event(&'static str),
    /// The sum of both events, for example misses and hits.
    SumWith(&'static str),
}

const RATIOS: &[Ratio] = &[
    Ratio {
        name: "IPC",
        unit: "instructions a cycle",
        formula: "instructions / cycles",
        numerator: "instructions",
        denominator: Denominator::Event("cycles"),
        factor: 1.0,
    },
    Ratio {
        name: "frequency",
        unit: "GHz while running",
        formula: "cycles / task-clock",
        numerator: "cycles",
        denominator: Denominator::Event("task-clock"),
        factor: 1.0,
    },
    Ratio {
        name: "LLC MPKI",
        unit: "misses per 1000 instructions",
        formula: "1000 × cache-misses / instructions",
        numerator: "cache-misses",
        denominator: Denominator::Event("instructions"),
        factor: 1e3,
    },
    Ratio {
        name: "LLC miss ratio",
        unit: "of look-ups",
        formula: "cache-misses / cache-references",
        numerator: "cache-misses",
        denominator: Denominator::Event("cache-references"),
        factor: 1.0,
    },
    Ratio {
        name: "LLC load miss ratio",
        unit: "of loads that reach it",
        formula: "LLC-load-misses / LLC-loads",
        numerator: "LLC-load-misses",
        denominator: Denominator::Event("LLC-loads"),
        factor: 1.0,
    },
    Ratio {
        name: "L1D load MPKI",
        unit: "misses per 1000 instructions",
        formula: "1000 × L1-dcache-load-misses / instructions",
        numerator: "L1-dcache-load-misses",
        denominator: Denominator::Event("instructions"),
        factor: 1e3,
    },
    Ratio {
        name: "L1D load miss ratio",
        unit: "of loads",
        formula: "L1-dcache-load-misses / L1-dcache-loads",
        numerator: "L1-dcache-load-misses",
        denominator: Denominator::Event("L1-dcache-loads"),
        factor: 1.0,
    },
    Ratio {
        name: "DTLB load MPKI",
        unit: "misses per 1000 instructions",
        formula: "1000 × dTLB-load-misses / instructions",
        numerator: "dTLB-load-misses",
        denominator: Denominator::Event("instructions"),
        factor: 1e3,
    },
    Ratio {
        name: "DTLB load miss ratio",
        unit: "of loads",
        formula: "dTLB-load-misses / dTLB-loads",
        numerator: "dTLB-load-misses",
        denominator: Denominator::Event("dTLB-loads"),
        factor: 1.0,
    },
    Ratio {
        name: "branch miss ratio",
        unit: "of branches",
        formula: "branch-misses / branches",
        numerator: "branch-misses",
        denominator: Denominator::Event("branches"),
        factor: 1.0,
    },
    // Events of the modelled machine.
    Ratio {
        name: "L1D miss ratio",
        unit: "of look-ups",
        formula: "l1d.miss / (l1d.hit + l1d.miss)",
        numerator: "l1d.miss",
        denominator: Denominator::SumWith("l1d.hit"),
        factor: 1.0,
    },
    Ratio {
        name: "LLC MPKI",
        unit: "misses per 1000 instructions",
        formula: "1000 × llc.miss / instructions",
        numerator: "llc.miss",
        denominator: Denominator::Event("instructions"),
        factor: 1e3,
    },
    Ratio {
        name: "DTLB MPKI",
        unit: "misses per 1000 instructions",
        formula: "1000 × dtlb.miss / instructions",
        numerator: "dtlb.miss",
        denominator: Denominator::Event("instructions"),
        factor: 1e3,
    },
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

/// Name and modifiers.
fn parts(name: &str) -> (&str, &str) {
    let (_, modifiers) = name.rsplit_once(':').unwrap_or((name, ""));
    (event_meaning(name), modifiers)
}

fn ratio(ratio: &Ratio, totals: &[(String, f64)]) -> Option<Derived> {
    let numerator = totals.iter().find(|t| parts(&t.0).0 == ratio.numerator)?;
    let (Denominator::Event(other) | Denominator::SumWith(other)) = ratio.denominator;
    let same = |t: &&(String, f64)| parts(&t.0) == (other, parts(&numerator.0).1);
    let software = |t: &&(String, f64)| other == "task-clock" && parts(&t.0).0 == other;
    let other = totals.iter().find(|t| same(t) || software(t))?.1;
    let denominator = match ratio.denominator {
        Denominator::Event(_) => other,
        Denominator::SumWith(_) => other + numerator.1,
    };
    (denominator > 0.0).then(|| Derived {
        name: ratio.name,
        value: ratio.factor * numerator.1 / denominator,
        unit: ratio.unit,
        formula: ratio.formula,
    })
}

fn total(totals: &[(String, f64)], name: &str) -> Option<f64> {
    totals.iter().find(|t| parts(&t.0).0 == name).map(|t| t.1)
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
            &[("instructions", 300.0), ("cpu-cycles", 200.0)],
            &[("IPC", 1.5)],
        );
        check(
            &[("cache-misses", 5.0), ("instructions", 2500.0)],
            &[("LLC MPKI", 2.0)],
        );
        check(&[("task-clock", 1e9)], &[("processors used", 0.5)]);
        check(
            &[("faults", 50.0), ("cpu-clock", 5e8)],
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
