//! `memgauge stat`: totals and series of counters.

mod args;
mod emulated;
mod live;
mod rows;

use anyhow::Context;
use memgauge_analyze::{Analysis, Series, ThreadTotals, summarise_counting};
use memgauge_console::outcome::{self, Exit};
use memgauge_console::terminal;
use memgauge_live::events::{self, EventGroup, Pmus};
use memgauge_live::stat::{self, StatOptions, StatOutcome, Update};
use memgauge_report::counting_text;

pub(crate) use args::Stat;

use args::StatSource;

use crate::record;

/// Default events: those of every machine, then those of a PMU.
const DEFAULT_EVENTS: &str = "task-clock,context-switches,cpu-migrations,page-faults,\
    cycles,instructions,branches,branch-misses,cache-references,cache-misses,\
    L1-dcache-loads,L1-dcache-load-misses,dTLB-loads,dTLB-load-misses";
/// Number of bins of the events' curves, as in a report of the recording.
const BINS: usize = 480;
/// Default events of a series, where each event costs a word per tick.
const DEFAULT_SERIES: &str = "page-faults,context-switches,instructions,cycles,cache-misses";

/// Runs, counts, and prints the counts.
pub(crate) fn stat(args: &Stat) -> anyhow::Result<Exit> {
    // Check before replacing anything, so that unknown events cost no recording.
    if args.seed.is_some() && args.source != StatSource::Emulate {
        return Err(memgauge_console::outcome::usage(
            "--seed has no effect on source pmu, which counts the program as it runs: add --source \
             emulate",
        ));
    }
    let options = match args.source {
        StatSource::Emulate => None,
        StatSource::Pmu => Some(options(args)?),
    };
    let output = args.output.as_deref();
    let output = output.map(|path| record::make_room(path, args.force));
    let _output = output.transpose()?;
    terminal::catch_interrupts()?;
    let mut outputs = rows::RowOutputs::open(args)?;
    let speaks = !args.quiet && !outputs.take_stderr();
    let mut series = (Series::growing(BINS), ThreadTotals::default());
    let mut outcome = observe(args, options.as_ref(), (&mut outputs, &mut series, speaks))?;
    // Show what was counted, whether or not the recording could be written.
    outcome.manifest.complete |= outcome.unwritten.is_some();
    let summary = summarise_counting(
        &outcome.manifest,
        series.finish(),
        &outcome.threads,
        &outcome.losses,
    );
    outputs.finish(&summary)?;
    if speaks {
        let style = terminal::style(terminal::stderr_is_terminal());
        eprint!("\n{}", counting_text(&summary, &style));
        if let Some(path) = &args.output {
            eprintln!("\nrecording: {}", path.display());
        }
    }
    let end = outcome.manifest.end.as_ref();
    if let Some(unwritten) = &outcome.unwritten {
        return Err(outcome::lacking(unwritten, end));
    }
    Ok(end.map_or(Exit::Success, Exit::of))
}

/// Destinations of rows: files, the summary's analyses, and the terminal.
type RowSinks<'a> = (
    &'a mut rows::RowOutputs,
    &'a mut (Series, ThreadTotals),
    bool,
);

fn observe(
    args: &Stat,
    options: Option<&StatOptions>,
    (outputs, series, speaks): RowSinks<'_>,
) -> anyhow::Result<StatOutcome> {
    let shows = speaks && terminal::stderr_is_terminal() && args.interval.is_some();
    let mut live = live::LiveTable::new(shows);
    let mut failed = None;
    let mut tell = |update: Update<'_>| {
        match &update {
            Update::Series(rows) => series.observe(rows),
            Update::Sums(sums) => live.show(sums),
            Update::Warning(text) if speaks => eprintln!("memgauge: {text}"),
            Update::Columns(_) | Update::Rows(_) | Update::Warning(_) => {}
        }
        failed = failed.take().or(outputs.write(&update).err());
    };
    let outcome = match options {
        Some(options) => stat::run(options, &mut tell).map_err(anyhow::Error::from),
        None => emulated::run(args, &mut tell),
    };
    live.clear();
    let outcome = outcome?;
    failed.map_or(Ok(()), Err).context("failed to write rows")?;
    Ok(outcome)
}

fn options(args: &Stat) -> anyhow::Result<StatOptions> {
    let (target, while_running) = args.target.with(&args.command)?;
    Ok(StatOptions {
        target,
        while_running,
        groups: groups(args)?,
        interval_ns: args.interval.map(|interval| interval.ns),
        output: args.output.clone(),
        ring_pages: args.ring,
        inherit: !args.no_inherit,
        measure_timer: args.timer_cost,
    })
}

fn groups(args: &Stat) -> anyhow::Result<Vec<EventGroup>> {
    let default = match args.interval {
        Some(_) => DEFAULT_SERIES,
        None => DEFAULT_EVENTS,
    };
    let text = match args.events.is_empty() {
        true => default.to_owned(),
        false => args.events.join(","),
    };
    Ok(events::parse(&text, &Pmus::default())?)
}
