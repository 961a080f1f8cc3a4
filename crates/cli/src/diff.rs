//! `memgauge diff`: two runs, or two groups of them, compared, and gates on the differences.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use memgauge_analyze::{EventNames, Limits, Options, Rank, summarise};
use memgauge_recording::Recording;
use memgauge_report::{Comparison, Measured};
use memgauge_symbols::Symbols;

use crate::gate::Gate;
use crate::outcome::{Exit, take_in_damage, usage};
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// First run: a recording, or a file of `report --baseline`
    #[arg(value_name = "BEFORE", required_unless_present = "runs_before")]
    before: Option<PathBuf>,
    /// Second run, as the first
    #[arg(value_name = "AFTER", required_unless_present = "runs_before")]
    after: Option<PathBuf>,
    /// Repeated runs before, two or more: differences get confidence intervals
    #[arg(
        long = "before", value_name = "RUN", num_args = 1..,
        requires = "runs_after", conflicts_with_all = ["before", "after"]
    )]
    runs_before: Vec<PathBuf>,
    /// Repeated runs after, two or more
    #[arg(long = "after", value_name = "RUN", num_args = 1.., requires = "runs_before")]
    runs_after: Vec<PathBuf>,
    /// Event that ranks functions and lines (default: docs/diff.md)
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// End with 1 if this holds, as in 'dram.read_bytes > +5%', 'llc.miss > +1k' (both compare
    /// with BEFORE) or 'llc.mpki > 2' (AFTER alone); may be repeated
    #[arg(long, value_name = "GATE")]
    fail_if: Vec<Gate>,
    /// Print JSON (docs/diff.md describes it)
    #[arg(long)]
    json: bool,
    /// Functions to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    rows: usize,
}

/// Compares two runs.
pub(crate) fn diff(args: &Diff) -> anyhow::Result<Exit> {
    let [before, after] = groups(args)?;
    let event = args.event.as_deref();
    if let Some(event) = event {
        check_event(event, &before, &after)?;
    }
    let comparison = Comparison::of(&before, &after, event);
    let failed = failed_gates(&comparison, &args.fail_if)?;
    let text = if args.json {
        format!("{:#}\n", comparison.json())
    } else {
        let style = terminal::style(terminal::stdout_is_terminal());
        comparison.text(args.rows, &style)
    };
    terminal::print(&text)?;
    for line in &failed {
        eprintln!("memgauge: {line}");
    }
    Ok(if failed.is_empty() {
        Exit::Success
    } else {
        Exit::GateFailed
    })
}

/// The runs to compare: two, or two groups.
fn groups(args: &Diff) -> anyhow::Result<[Vec<Measured>; 2]> {
    let [before, after] = match (&args.before, &args.after) {
        (Some(before), Some(after)) => [vec![before.clone()], vec![after.clone()]],
        _ => [args.runs_before.clone(), args.runs_after.clone()],
    };
    for run in before.iter().chain(&after) {
        check_pattern(run)?;
    }
    for (option, runs) in [("--before", &before), ("--after", &after)] {
        if args.before.is_none() && runs.len() < 2 {
            return Err(usage(format!(
                "failed to compare groups: {option} has one run, which has no spread: name two \
                 or more"
            )));
        }
    }
    if args.before.is_none() {
        check_distinct(before.iter().chain(&after))?;
    }
    let event = args.event.as_deref();
    let read = |runs: Vec<PathBuf>| -> anyhow::Result<Vec<Measured>> {
        runs.iter().map(|path| measured(path, event)).collect()
    };
    let groups = [read(before)?, read(after)?];
    for group in &groups {
        let of = |run: &Measured| {
            let (machine, regions) = (run.machine.clone(), run.only_regions.clone());
            (machine, run.estimated_from, regions)
        };
        let first = group.first().map(of);
        let is_other = |run: &Measured| Some(of(run)) != first;
        if group.iter().any(is_other) {
            return Err(usage(
                "failed to compare groups: the runs of a group modelled different machines, parts of \
                 their cache sets or regions: record them with the same --machine, --sets and \
                 --region",
            ));
        }
    }
    Ok(groups)
}

/// A shell passes on a pattern that no file matches as it is.
fn check_pattern(run: &Path) -> anyhow::Result<()> {
    let name = run.display().to_string();
    match name.contains(['*', '?', '[']) && !run.exists() {
        true => Err(usage(format!(
            "failed to open recording `{name}`: no file matches the pattern"
        ))),
        false => Ok(()),
    }
}

/// One run twice looks like two that agree: the interval of the groups would be too narrow.
fn check_distinct<'a>(runs: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    for run in runs {
        let path = run.canonicalize().unwrap_or_else(|_| run.clone());
        if !seen.insert(path) {
            return Err(usage(format!(
                "failed to compare groups: `{}` is named twice: name each run once, in one group",
                run.display()
            )));
        }
    }
    Ok(())
}

/// Whether functions of all runs can be ranked by the event.
fn check_event(event: &str, before: &[Measured], after: &[Measured]) -> anyhow::Result<()> {
    let mut known: Option<BTreeSet<&str>> = None;
    for run in before.iter().chain(after) {
        let counted = run.functions.values().flat_map(|counts| counts.keys());
        let sampled = run.sampled.iter().map(|shares| &shares.event);
        let events: BTreeSet<&str> = counted.chain(sampled).map(String::as_str).collect();
        known = Some(match known {
            Some(known) => known.intersection(&events).copied().collect(),
            None => events,
        });
    }
    let known = known.unwrap_or_default();
    if known.contains(event) {
        return Ok(());
    }
    let fix = match known.is_empty() {
        true => "no event has functions in all runs: leave --event out".to_owned(),
        false => {
            let names: Vec<&str> = known.into_iter().collect();
            format!("take one of {}", names.join(", "))
        }
    };
    Err(usage(format!(
        "failed to rank functions by `{event}`: not all runs have counts of it: {fix}"
    )))
}

/// A baseline file is read as it is, a recording is summarised.
fn measured(path: &Path, event: Option<&str>) -> anyhow::Result<Measured> {
    if !path.is_file() {
        return measure(&Recording::open(path)?, event);
    }
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read `{name}`"))?;
    match Measured::parse(&text) {
        Ok(measured) => Ok(measured),
        Err(why) => bail!(
            "failed to read baseline `{name}`: {why}: write it with `memgauge report --baseline FILE`"
        ),
    }
}

/// What is compared of a recording. `event` is the one whose samples rank functions.
pub(crate) fn measure(recording: &Recording, event: Option<&str>) -> anyhow::Result<Measured> {
    if recording.manifest().source.name == "io" {
        let name = recording.path().display();
        return Err(usage(format!(
            "failed to compare `{name}`: recordings of `memgauge io` have no metrics of a program"
        )));
    }
    let limits = Limits {
        rows: usize::MAX,
        resolved_places: usize::MAX,
    };
    let events = &recording.manifest().events;
    let asked = events.iter().find(|def| Some(def.name.as_str()) == event);
    let names = EventNames::of(recording.manifest());
    let options = Options {
        limits,
        rank: asked.map(|def| Rank::event(def.id, &names)),
        regions: usize::MAX,
        ..Options::default()
    };
    let summary = summarise(recording, &mut Symbols::of(recording.path()), &options)?;
    take_in_damage(recording);
    for problem in &summary.problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(Measured::of(&summary))
}

/// A line for each gate that fails, with both values.
fn failed_gates(comparison: &Comparison, gates: &[Gate]) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for gate in gates {
        let metric = comparison.metrics.iter().find(|m| m.name == gate.metric);
        let Some(metric) = metric else {
            return Err(unknown(comparison, gate));
        };
        if let Some(unit) = gate.other_unit() {
            return Err(usage(format!(
                "failed to check gate `{}`: `{}` is {}: write the limit in that unit",
                gate.text,
                gate.metric,
                unit.words()
            )));
        }
        let said = |value: Option<f64>| value.map_or("none".to_owned(), |v| v.to_string());
        let values = format!(
            "before {}, after {}",
            said(metric.before),
            said(metric.after)
        );
        match gate.fails(metric) {
            Some(false) => {}
            Some(true) => lines.push(format!("gate `{}` failed: {values}", gate.text)),
            None if metric.is_incomparable() => bail!(
                "failed to check gate `{}`: one run's time is the model's, the other's was \
                 measured: record both with one source",
                gate.text
            ),
            None => bail!(
                "failed to check gate `{}`: a run lacks the metric: {values}",
                gate.text
            ),
        }
    }
    Ok(lines)
}

/// From which likeness on a name may have been meant.
const NEAR: f64 = 0.75;

fn unknown(comparison: &Comparison, gate: &Gate) -> anyhow::Error {
    let names = comparison.metrics.iter().map(|m| m.name.as_str());
    let mut near: Vec<&str> = names.collect();
    near.sort_by(|a, b| {
        let like = |name| strsim::jaro_winkler(name, &gate.metric);
        like(b).total_cmp(&like(a))
    });
    near.retain(|name| strsim::jaro_winkler(name, &gate.metric) >= NEAR);
    near.truncate(3);
    let near = match near.is_empty() {
        true => "`diff --json` lists them".to_owned(),
        false => format!("near names are {}", near.join(", ")),
    };
    usage(format!(
        "failed to check gate `{}`: neither run has metric `{}`: {near}",
        gate.text, gate.metric,
    ))
}
