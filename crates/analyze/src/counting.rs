//! Results of native counters: totals, curves over time, and derived values.
//!
//! The totals come from the recorder's [`CountingFacts`]. Without them (the recorder was killed, or
//! the values were in perf's samples), they are the sums of the rows.

use memgauge_trace::{
    CounterFacts, CountingFacts, EventDef, EventId, Manifest, TickFacts, UnsupportedFacts,
};
use serde::Serialize;

use crate::derived::{Derived, derived};
use crate::time::counted_time::{CountedTime, counted_time};
use crate::time::series::{Curves, EventCurve};

/// Total and curve of an event.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EventCounter {
    /// Total of the event.
    #[serde(flatten)]
    pub facts: CounterFacts,
    /// Increment in each bin. `None` without a series.
    pub over_time: Option<CounterCurve>,
}

/// Increments of a counter over time, all threads together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CounterCurve {
    /// Width of a bin in nanoseconds.
    pub bin_ns: u64,
    /// End of the curve, nanoseconds since the recording began.
    pub duration_ns: u64,
    /// Increment in each bin.
    pub values: Vec<u64>,
}

impl CounterCurve {
    /// Mean rate per second in each of `columns` equal parts of the time.
    pub fn rates(&self, columns: usize) -> Vec<f64> {
        let curve = EventCurve {
            event: EventId::default(),
            thread: None,
            bin_ns: self.bin_ns,
            duration_ns: self.duration_ns,
            values: self.values.clone(),
        };
        curve.rates(columns)
    }
}

/// Timer of a series: its precision, and its ticks over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ticking {
    /// Ticks and gaps.
    #[serde(flatten)]
    pub facts: TickFacts,
    /// [`TickFacts::share_taken`].
    pub share_taken: Option<f64>,
    /// [`TickFacts::share_of_started_tasks`].
    pub share_of_started_tasks: Option<f64>,
    /// [`TickFacts::slowdown`].
    pub slowdown: Option<f64>,
    /// Nanoseconds of timer ticks in each bin.
    pub over_time: Option<CounterCurve>,
}

/// Results of counting.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counting {
    /// Observed time in nanoseconds.
    pub wall_ns: u64,
    /// The events in the order of the command line.
    pub totals: Vec<EventCounter>,
    /// Values derived from the totals.
    pub derived: Vec<Derived>,
    /// Where the time goes, if the counted events show it.
    pub time: Option<CountedTime>,
    /// Events that were not counted.
    pub unsupported: Vec<UnsupportedFacts>,
    /// Events that were counted in user space only, for lack of permission.
    pub user_only: Vec<String>,
    /// Precision of a series' timer.
    pub ticks: Option<Ticking>,
    /// Number of rows of the series: one for each thread or CPU and tick. `None` if the recorder
    /// was killed.
    pub rows: Option<u64>,
    /// Number of processes and threads. `None` if the recorder was killed.
    pub threads: Option<u64>,
    /// Sentences about how the events were counted.
    pub notes: Vec<String>,
    /// CPU time of memgauge in user mode in seconds.
    pub own_user_s: Option<f64>,
    /// CPU time of memgauge in the kernel in seconds.
    pub own_system_s: Option<f64>,
}

/// Counts from the manifest, and curves. `None` if nothing was counted.
pub(crate) fn counting(manifest: &Manifest, curves: &Curves, duration_ns: u64) -> Option<Counting> {
    match &manifest.counting {
        Some(facts) => Some(of_facts(facts, curves)),
        None if manifest.machine.is_some() => None,
        None => of_rows(manifest, curves, duration_ns),
    }
}

fn of_facts(facts: &CountingFacts, curves: &Curves) -> Counting {
    let counter = |c: &CounterFacts| EventCounter {
        facts: c.clone(),
        over_time: curve(curves, c.event),
    };
    let timer = facts.ticks.as_ref().map(|t| ("cpu-clock", t.running_ns));
    // An event that was never counted has no value, and neither have figures derived from it.
    let counted = facts.counters.iter().filter(|c| c.share_counted > 0.0);
    let counted = counted.map(|c| (c.name.as_str(), c.value));
    let totals: Vec<(String, f64)> = counted
        .chain(timer)
        .map(|(name, value)| (name.to_owned(), value as f64))
        .collect();
    let seconds = facts.wall_ns as f64 / 1e9;
    Counting {
        wall_ns: facts.wall_ns,
        totals: facts.counters.iter().map(counter).collect(),
        derived: derived(&totals, seconds, facts.whole_machine),
        time: counted_time(&totals),
        unsupported: facts.unsupported.clone(),
        user_only: facts.user_only.clone(),
        ticks: facts.ticks.clone().map(|facts| Ticking {
            over_time: curve(curves, facts.event),
            share_taken: facts.share_taken(),
            share_of_started_tasks: facts.share_of_started_tasks(),
            slowdown: facts.slowdown(),
            facts,
        }),
        rows: Some(facts.rows),
        threads: Some(facts.threads),
        notes: facts.notes.clone(),
        own_user_s: Some(facts.own_user_s),
        own_system_s: Some(facts.own_system_s),
    }
}

fn of_rows(manifest: &Manifest, curves: &Curves, duration_ns: u64) -> Option<Counting> {
    let counter = |definition: &EventDef| {
        let over_time = curve(curves, definition.id)?;
        let sum = over_time
            .values
            .iter()
            .fold(0u64, |a, &b| a.saturating_add(b));
        Some(EventCounter {
            facts: CounterFacts {
                event: definition.id,
                name: definition.name.clone(),
                value: sum,
                counted: sum,
                share_counted: 1.0,
                scale: 1.0,
                ..CounterFacts::default()
            },
            over_time: Some(over_time),
        })
    };
    let totals: Vec<EventCounter> = manifest.events.iter().filter_map(counter).collect();
    let named = |c: &EventCounter| (c.facts.name.clone(), c.facts.value as f64);
    let sums: Vec<(String, f64)> = totals.iter().map(named).collect();
    // It is unknown whether whole CPUs were counted. Omit the figures that depend on it.
    (!totals.is_empty()).then(|| Counting {
        wall_ns: duration_ns,
        derived: derived(&sums, duration_ns as f64 / 1e9, true),
        time: counted_time(&sums),
        totals,
        ..Counting::default()
    })
}

fn curve(curves: &Curves, event: EventId) -> Option<CounterCurve> {
    curves.has(event).then(|| CounterCurve {
        bin_ns: curves.bin_ns,
        duration_ns: curves.duration_ns,
        values: curves.event(event).values,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Analysis, Series};
    use memgauge_trace::{Provenance, SeriesRow, Unit};

    fn curves(rows: &[(u64, u16, u64)]) -> Curves {
        let mut series = Series::growing(16);
        let rows: Vec<SeriesRow> = rows
            .iter()
            .map(|&(time_ns, event, value)| SeriesRow {
                time_ns,
                interval_ns: 1000,
                event: EventId(event),
                value,
                ..SeriesRow::default()
            })
            .collect();
        series.observe(&rows);
        series.finish()
    }

    fn facts(whole_machine: bool) -> CountingFacts {
        CountingFacts {
            wall_ns: 1_000_000_000,
            whole_machine,
            ticks: Some(TickFacts {
                running_ns: 2_000_000_000,
                ..TickFacts::default()
            }),
            ..CountingFacts::default()
        }
    }

    #[test]
    fn figures_of_events_that_were_never_counted_are_left_out() {
        let counter = |name: &str, value, share_counted| CounterFacts {
            name: name.to_owned(),
            value,
            share_counted,
            ..CounterFacts::default()
        };
        let facts = CountingFacts {
            counters: vec![
                counter("instructions", 1000, 1.0),
                counter("cycles", 500, 0.4),
                counter("dTLB-load-misses", 0, 0.0),
            ],
            ..facts(true)
        };
        let found = of_facts(&facts, &curves(&[])).derived;
        let names: Vec<&str> = found.iter().map(|d| d.name).collect();
        assert_eq!(names, ["IPC"]);
    }

    /// A timer of a whole processor runs while it is idle: two idle processors are not
    /// two processors used.
    #[test]
    fn processors_that_idle_are_not_processors_used() {
        let used = |whole_machine| {
            let manifest = Manifest {
                counting: Some(facts(whole_machine)),
                ..Manifest::default()
            };
            let counting = counting(&manifest, &curves(&[]), 0).expect("counted");
            let used = counting
                .derived
                .into_iter()
                .find(|d| d.name == "processors used");
            used.map(|d| d.value)
        };
        assert_eq!(used(false), Some(2.0));
        assert_eq!(used(true), None);
    }

    #[test]
    fn a_killed_recorders_totals_are_the_sums_of_its_rows() {
        let manifest = Manifest {
            events: vec![EventDef {
                id: EventId(300),
                name: "page-faults".to_owned(),
                unit: Unit::Count,
                provenance: Provenance::Counted,
                description: String::new(),
            }],
            ..Manifest::default()
        };
        let curves = curves(&[(1000, 300, 5), (2000, 300, 6)]);
        let counting = counting(&manifest, &curves, 2000).expect("counted");
        assert_eq!(counting.totals[0].facts.value, 11);
        let curve = counting.totals[0].over_time.as_ref().expect("a curve");
        assert_eq!(curve.values, [5, 6]);
        assert_eq!((counting.wall_ns, counting.rows), (2000, None));
    }
}
