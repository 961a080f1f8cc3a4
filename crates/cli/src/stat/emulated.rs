//! `memgauge stat --source emulate`: totals and rows from the modelled machine in virtual time.

use std::collections::BTreeMap;

use anyhow::Context;
use memgauge_console::outcome::usage;
use memgauge_emulate::{self as emulate, geometry};
use memgauge_live::events::near_it;
use memgauge_live::stat::{CounterRow, StatOutcome, Update};
use memgauge_machine::PmuConfig;
use memgauge_recording::{Recording, Selection, amend};
use memgauge_trace::{CounterFacts, CountingFacts, EventId, Loss, SeriesRow, Thread, catalogue};

use super::args::Stat;

/// Default events.
const DEFAULT: &str = "instructions,cycles,loads,stores,l1d.hit,l1d.miss,llc.miss,dtlb.miss";

/// Runs the program on the modelled machine. Reports rows in the same way as the kernel's source.
pub(super) fn run(args: &Stat, tell: &mut dyn FnMut(Update<'_>)) -> anyhow::Result<StatOutcome> {
    if args.command.is_empty() {
        return Err(usage(
            "failed to attach: source emulate only counts programs that it starts",
        ));
    }
    let events = events(args)?;
    emulate::resolve(&args.command)?;
    let scratch = tempfile::tempdir().context("failed to make a temporary directory")?;
    let output = args
        .output
        .clone()
        .unwrap_or_else(|| scratch.path().join("stat.mg"));
    let options = emulate::Options {
        command: args.command.clone(),
        output: output.clone(),
        discards_output: false,
        machine: geometry::machine("host")?,
        pmu: PmuConfig {
            samples: Vec::new(),
            interval_ns: args.interval.map(|interval| interval.ns),
            ..PmuConfig::default()
        },
        traces: None,
        sets: None,
        what_if: Vec::new(),
        seed: args.seed,
        stacks: false,
        data: None,
        counts_accesses: false,
        functions: Vec::new(),
        regions: Vec::new(),
    };
    let recorded = emulate::record(&options, &mut |_| {})?;
    let recording = Recording::open(&output)?;
    let mut problems = recording.problems();
    problems.extend(recorded.notes);
    let columns = std::iter::once("cpu-clock").chain(events.iter().map(|e| e.1));
    tell(Update::Columns(&[columns.map(str::to_owned).collect()]));
    let mut series = Vec::new();
    if args.interval.is_some() {
        recording.for_each_intact_batch(
            &Selection::all(),
            &mut problems,
            |rows: &[SeriesRow]| {
                series.extend_from_slice(rows);
            },
        )?;
        tell(Update::Series(&series));
    }
    let rows = rows(&series, &events);
    tell(Update::Rows(&rows));
    let outcome = outcome(&recording, &events, rows.len() as u64, &mut problems)?;
    if args.output.is_some() {
        amend(&output, |manifest| {
            manifest.counting.clone_from(&outcome.manifest.counting);
        })?;
    }
    for problem in problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(outcome)
}

fn events(args: &Stat) -> anyhow::Result<Vec<(EventId, &'static str)>> {
    let text = match args.events.is_empty() {
        true => DEFAULT.to_owned(),
        false => args.events.join(","),
    };
    let find = |name: &str| {
        let known = catalogue::ALL.iter().find(|event| event.1 == name);
        let names = || catalogue::ALL.iter().map(|event| event.1.to_owned());
        known.map(|event| (event.0, event.1)).ok_or_else(|| {
            let near = near_it(name, names());
            usage(format!(
                "failed to count `{name}`: the modelled machine has no such event{near}: \
                 `memgauge list` has them"
            ))
        })
    };
    text.split(',').map(|name| find(name.trim())).collect()
}

fn outcome(
    recording: &Recording,
    events: &[(EventId, &'static str)],
    rows: u64,
    problems: &mut Vec<String>,
) -> anyhow::Result<StatOutcome> {
    let (mut threads, mut losses) = (Vec::new(), Vec::new());
    let all = Selection::all();
    recording.for_each_intact_batch(&all, problems, |rows: &[Thread]| {
        threads.extend_from_slice(rows)
    })?;
    recording.for_each_intact_batch(&all, problems, |rows: &[Loss]| {
        losses.extend_from_slice(rows)
    })?;
    let mut manifest = recording.manifest().clone();
    let total = |&(event, name): &(EventId, &str)| {
        let value = manifest.totals.get(name).copied().unwrap_or(0);
        CounterFacts {
            event,
            name: name.to_owned(),
            counted: value,
            value,
            share_counted: 1.0,
            scale: 1.0,
            ..CounterFacts::default()
        }
    };
    manifest.counting = Some(CountingFacts {
        wall_ns: manifest.totals.get("virtual_ns").copied().unwrap_or(0),
        counters: events.iter().map(total).collect(),
        rows,
        threads: threads.len() as u64,
        notes: vec![format!(
            "modelled, not measured: machine {}, time is virtual",
            manifest.machine.as_ref().map_or("?", |m| m.name.as_str())
        )],
        own_user_s: manifest.own_cost.cpu_s,
        ..CountingFacts::default()
    });
    Ok(StatOutcome {
        manifest,
        threads,
        losses,
        unwritten: None,
    })
}

/// Rows of a series, combined from single events to one row for each thread and tick.
fn rows(series: &[SeriesRow], events: &[(EventId, &'static str)]) -> Vec<CounterRow> {
    let mut rows: BTreeMap<(u64, u32), CounterRow> = BTreeMap::new();
    for gained in series {
        let row = rows
            .entry((gained.time_ns, gained.tid.0))
            .or_insert_with(|| CounterRow {
                time_ns: gained.time_ns,
                interval_ns: gained.interval_ns,
                pid: gained.pid.0,
                tid: gained.tid.0,
                values: std::iter::once(gained.interval_ns)
                    .chain(events.iter().map(|_| 0))
                    .collect(),
                ..CounterRow::default()
            });
        if let Some(at) = events.iter().position(|e| e.0 == gained.event) {
            row.values[at + 1] += gained.value;
        }
    }
    rows.into_values().collect()
}
