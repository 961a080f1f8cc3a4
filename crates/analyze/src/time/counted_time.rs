//! Where the time goes, from counters of a processor.
//!
//! Three sets of events show it, the most detailed first. Without any of them there is no answer:
//!
//! - Intel's `CYCLE_ACTIVITY` counts cycles in which no instruction was executed while a load
//!   missed a level. Each level includes the next one, so differences are the parts, as on the
//!   modelled machine.
//! - The four `topdown-…` events of Linux are the first level of top-down analysis: shares of the
//!   slots in which an instruction could have been issued. `topdown-mem-bound` divides the last.
//! - `stalled-cycles-frontend` and `-backend` count cycles. Both may occur in one cycle, so the rest
//!   is not work.
//!
//! There is no answer either if counts contradict each other. Counters that took turns are
//! estimates and may do so.

use serde::Serialize;

/// Where the time goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CountedTime {
    /// Unit of the whole: `cycles` or `slots`.
    pub of: &'static str,
    /// True if the parts may overlap. Otherwise they add up to 1.
    pub may_overlap: bool,
    /// The parts.
    pub parts: Vec<CountedPart>,
}

/// A use of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CountedPart {
    /// Activity of the processor.
    pub name: &'static str,
    /// Share of the time, in 0..=1.
    pub share: f64,
    /// Formula with the names of its events.
    pub formula: &'static str,
}

/// Maximum difference between the slots and the sum of their uses, as a share. The processor reports
/// uses in 255ths.
const SLOTS_ERROR: f64 = 0.02;

/// Where the time goes, from totals by event name.
pub(crate) fn counted_time(totals: &[(String, f64)]) -> Option<CountedTime> {
    let totals = NamedTotals(totals);
    let found = by_level(&totals).or_else(|| by_slot(&totals));
    found.or_else(|| by_end(&totals))
}

/// Totals by event name.
struct NamedTotals<'a>(&'a [(String, f64)]);

impl NamedTotals<'_> {
    /// Counts of events with the same modifiers. `None` if one was not counted.
    fn of<const N: usize>(&self, events: [&str; N]) -> Option<[f64; N]> {
        let with = |modifiers: &str| {
            let mut values = [0.0; N];
            for (value, event) in values.iter_mut().zip(events) {
                let same = |total: &&(String, f64)| {
                    modifiers_of(&total.0, event).as_deref() == Some(modifiers)
                };
                *value = self.0.iter().find(same)?.1;
            }
            Some(values)
        };
        let mut modifiers = self.0.iter().filter_map(|t| modifiers_of(&t.0, events[0]));
        modifiers.find_map(|modifiers| with(&modifiers))
    }
}

/// Modifiers of an event if it has this name. Names have several spellings:
/// `cpu/topdown-retiring/u`, `skl::CYCLE_ACTIVITY:STALLS_L3_MISS:u`.
fn modifiers_of(spelling: &str, event: &str) -> Option<String> {
    let lower = spelling.to_ascii_lowercase();
    let name = lower
        .split_once("::")
        .map_or(lower.as_str(), |(_, name)| name);
    let name = name.strip_prefix("cpu/").unwrap_or(name);
    let name = name.replacen("cycle_activity:", "cycle_activity.", 1);
    let rest = name.strip_prefix(event)?;
    match rest.chars().next() {
        None => Some(String::new()),
        Some(':' | '/') => Some(rest.trim_matches([':', '/']).to_owned()),
        Some(_) => None,
    }
}

fn by_level(totals: &NamedTotals<'_>) -> Option<CountedTime> {
    let [cycles, l1d, l2, l3] = totals.of([
        "cycles",
        "cycle_activity.stalls_l1d_miss",
        "cycle_activity.stalls_l2_miss",
        "cycle_activity.stalls_l3_miss",
    ])?;
    if cycles <= 0.0 || l1d > cycles || l2 > l1d || l3 > l2 {
        return None;
    }
    let part = |name, cycles_of, formula| CountedPart {
        name,
        share: cycles_of / cycles,
        formula,
    };
    Some(CountedTime {
        of: "cycles",
        may_overlap: false,
        parts: vec![
            part(
                "work and other stalls",
                cycles - l1d,
                "(cycles - stalls_l1d_miss) / cycles",
            ),
            part(
                "waiting for L2",
                l1d - l2,
                "(stalls_l1d_miss - stalls_l2_miss) / cycles",
            ),
            part(
                "waiting for the LLC",
                l2 - l3,
                "(stalls_l2_miss - stalls_l3_miss) / cycles",
            ),
            part("waiting for DRAM", l3, "stalls_l3_miss / cycles"),
        ],
    })
}

fn by_slot(totals: &NamedTotals<'_>) -> Option<CountedTime> {
    let [slots, retiring, bad, front, back] = totals.of([
        "slots",
        "topdown-retiring",
        "topdown-bad-spec",
        "topdown-fe-bound",
        "topdown-be-bound",
    ])?;
    let sum = retiring + bad + front + back;
    if slots <= 0.0 || (sum / slots - 1.0).abs() > SLOTS_ERROR {
        return None;
    }
    let part = |name, slots_of, formula| CountedPart {
        name,
        share: slots_of / sum,
        formula,
    };
    let mut parts = vec![
        part(
            "instructions that counted",
            retiring,
            "topdown-retiring / slots",
        ),
        part("wrong predictions", bad, "topdown-bad-spec / slots"),
        part(
            "waiting for instructions",
            front,
            "topdown-fe-bound / slots",
        ),
    ];
    match totals.of(["topdown-be-bound", "topdown-mem-bound"]) {
        Some([_, memory]) if memory <= back => parts.extend([
            part("waiting for memory", memory, "topdown-mem-bound / slots"),
            part(
                "waiting for other units",
                back - memory,
                "(topdown-be-bound - topdown-mem-bound) / slots",
            ),
        ]),
        _ => parts.push(part(
            "waiting for data or units",
            back,
            "topdown-be-bound / slots",
        )),
    }
    Some(CountedTime {
        of: "slots",
        may_overlap: false,
        parts,
    })
}

fn by_end(totals: &NamedTotals<'_>) -> Option<CountedTime> {
    let part = |name, event, formula| {
        let [cycles, stalled] = totals.of(["cycles", event])?;
        (cycles > 0.0 && stalled <= cycles).then(|| CountedPart {
            name,
            share: stalled / cycles,
            formula,
        })
    };
    let parts = [
        part(
            "waiting for data or units",
            "stalled-cycles-backend",
            "stalled-cycles-backend / cycles",
        ),
        part(
            "waiting for instructions",
            "stalled-cycles-frontend",
            "stalled-cycles-frontend / cycles",
        ),
    ];
    let parts: Vec<CountedPart> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then_some(CountedTime {
        of: "cycles",
        may_overlap: true,
        parts,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(totals: &[(&str, f64)]) -> Option<CountedTime> {
        let totals: Vec<(String, f64)> = totals.iter().map(|t| (t.0.to_owned(), t.1)).collect();
        counted_time(&totals)
    }

    fn shares(time: &CountedTime) -> Vec<f64> {
        time.parts.iter().map(|part| part.share).collect()
    }

    proptest! {
        #[test]
        fn levels_are_the_differences_of_nested_stalls_and_add_up(
            // Cycles of each part, by construction.
            parts in [1..1u64 << 40, 0..1 << 40, 0..1 << 40, 0..1 << 40],
        ) {
            let parts = parts.map(|cycles| cycles as f64);
            let [work, l2, llc, dram] = parts;
            let cycles = work + l2 + llc + dram;
            let time = time(&[
                ("cycles:u", cycles),
                ("CYCLE_ACTIVITY:STALLS_L1D_MISS:u", l2 + llc + dram),
                ("skl::CYCLE_ACTIVITY:STALLS_L2_MISS:u", llc + dram),
                ("cycle_activity.stalls_l3_miss:u", dram),
            ]);
            let time = time.expect("all events were counted");
            for (share, part) in shares(&time).iter().zip(parts) {
                prop_assert!((share - part / cycles).abs() < 1e-9, "{:?}", time);
            }
            prop_assert!(!time.may_overlap);
        }
    }

    #[test]
    fn slots_have_the_parts_of_top_down_analysis() {
        let events = [
            ("slots", 1000.0),
            ("cpu/topdown-retiring/", 250.0),
            ("topdown-bad-spec", 50.0),
            ("topdown-fe-bound", 100.0),
            ("topdown-be-bound", 600.0),
        ];
        let time_of_slots = time(&events).expect("slots");
        assert_eq!(shares(&time_of_slots), [0.25, 0.05, 0.1, 0.6]);
        let with_memory = [&events[..], &[("topdown-mem-bound", 500.0)]].concat();
        assert_eq!(shares(&time(&with_memory).unwrap())[3..], [0.5, 0.1]);
        // The four were counted at other times than the slots.
        let contradicting = [&[("slots", 2000.0)], &events[1..]].concat();
        assert_eq!(time(&contradicting), None);
    }

    #[test]
    fn stalls_of_both_ends_may_overlap() {
        let time_of_ends = time(&[
            ("cycles", 100.0),
            ("stalled-cycles-frontend", 70.0),
            ("stalled-cycles-backend", 60.0),
        ]);
        let time_of_ends = time_of_ends.expect("stalls");
        assert_eq!(shares(&time_of_ends), [0.6, 0.7]);
        assert!(time_of_ends.may_overlap);
    }

    #[test]
    fn events_that_do_not_belong_together_say_nothing() {
        assert_eq!(time(&[]), None);
        assert_eq!(time(&[("cycles", 100.0), ("instructions", 50.0)]), None);
        assert_eq!(
            time(&[("cycles:u", 9.0), ("stalled-cycles-backend", 5.0)]),
            None
        );
        assert_eq!(
            time(&[("cycles", 4.0), ("stalled-cycles-backend", 5.0)]),
            None
        );
        assert_eq!(
            time(&[("cycles", 0.0), ("stalled-cycles-backend", 0.0)]),
            None
        );
    }
}
