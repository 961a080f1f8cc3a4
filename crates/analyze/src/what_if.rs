//! Results of `--what-if`: the same run on other machines, or with other layouts of types.

use memgauge_trace::Manifest;
use serde::Serialize;

use crate::counts::Counts;
use crate::data::layout::LayoutChange;
use crate::time::time_use::{TimePart, TimeUse, time_parts};

/// The same instructions and accesses on another machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// The change as given to `--what-if`: `huge-pages`, `llc=2x`, `machine=zen4`, `pad=node`.
    pub name: String,
    /// The change in words: `LLC twice as large`.
    pub change: String,
    /// The changed part.
    pub changes: Changed,
    /// Name of the machine.
    pub machine: String,
    /// Total nanoseconds in which its threads executed, without waits.
    pub busy_ns: f64,
    /// Relative change of `busy_ns` from the recorded machine. Negative if this machine is faster.
    pub relative: f64,
    /// Cycles by what they were spent on.
    pub time: Vec<TimePart>,
    /// Counts of all its threads by event.
    pub totals: Counts,
    /// Number of accesses to objects of a type that went elsewhere, with another layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_accesses: Option<u64>,
    /// Misses in lines of these objects by code whose accesses have no known type. They stayed,
    /// so that the layout may gain less or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses_of_others: Option<u64>,
}

/// The part of the run that a change concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Changed {
    /// The program, or the size of its pages: something that its users can change.
    Program,
    /// The machine.
    Machine,
}

impl WhatIf {
    /// Returns the part of the time that differs most from the run's, and the difference in
    /// nanoseconds. `None` without cycles.
    pub fn largest_change(&self, run: &[TimePart], run_hz: f64) -> Option<(TimeUse, f64)> {
        let own_hz = self
            .totals
            .get("cycles")
            .map(|&n| n as f64 * 1e9 / self.busy_ns)?;
        let changes = self.time.iter().filter_map(|part| {
            let before = run.iter().find(|before| before.on == part.on)?;
            let ns = part.cycles as f64 / own_hz - before.cycles as f64 / run_hz;
            Some((part.on, ns * 1e9))
        });
        changes.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))
    }
}

/// Compares the other machines of a recording with its own, in the order of the command line.
pub(crate) fn what_ifs(manifest: &Manifest, totals: &Counts) -> Vec<WhatIf> {
    let Some(machine) = &manifest.machine else {
        return Vec::new();
    };
    let busy_ns = |totals: &Counts, hz: u64| {
        let cycles = *totals.get("cycles")? as f64;
        (cycles > 0.0 && hz > 0).then(|| cycles / hz as f64 * 1e9)
    };
    let Some(own_ns) = busy_ns(totals, machine.frequency_hz) else {
        return Vec::new();
    };
    let others = manifest.what_if.iter().filter_map(|facts| {
        let ns = busy_ns(&facts.totals, facts.machine.frequency_hz)?;
        Some(WhatIf {
            name: facts.name.clone(),
            change: in_words(&facts.name),
            changes: match facts.name == "huge-pages" || facts.name.parse::<LayoutChange>().is_ok()
            {
                true => Changed::Program,
                false => Changed::Machine,
            },
            machine: facts.machine.name.clone(),
            busy_ns: ns,
            relative: ns / own_ns - 1.0,
            time: time_parts(&facts.totals),
            totals: facts.totals.clone(),
            moved_accesses: facts.moved_accesses,
            misses_of_others: facts.misses_of_others,
        })
    });
    others.collect()
}

fn in_words(name: &str) -> String {
    if let Ok(layout) = name.parse::<LayoutChange>() {
        return layout.in_words();
    }
    match name.split_once('=') {
        None if name == "huge-pages" => "all memory in pages of 2 MiB".to_owned(),
        None => "next-line and stride prefetchers".to_owned(),
        Some(("machine", machine)) => format!("machine {machine}"),
        Some((cache, times)) => {
            let times = match times.trim_end_matches('x') {
                "2" => "twice".to_owned(),
                n => format!("{n} times"),
            };
            format!("{} {times} as large", cache.to_uppercase())
        }
    }
}

#[cfg(test)]
mod tests {
    use memgauge_trace::{MachineFacts, WhatIfFacts};

    use super::*;

    #[test]
    fn machines_of_other_clocks_are_compared_by_time() {
        let machine = |hz| MachineFacts {
            frequency_hz: hz,
            ..MachineFacts::default()
        };
        let totals = |cycles| Counts::from([("cycles".to_owned(), cycles)]);
        let manifest = Manifest {
            machine: Some(machine(1_000_000_000)),
            what_if: vec![WhatIfFacts {
                name: "machine=fast".to_owned(),
                machine: machine(2_000_000_000),
                totals: totals(3000),
                ..WhatIfFacts::default()
            }],
            ..Manifest::default()
        };
        let found = what_ifs(&manifest, &totals(2000));
        assert_eq!(found[0].busy_ns, 1500.0);
        assert_eq!(found[0].relative, -0.25);
        assert_eq!(found[0].change, "machine fast");
        assert_eq!(found[0].changes, Changed::Machine);
        assert_eq!(what_ifs(&manifest, &totals(0)), []);
    }
}
