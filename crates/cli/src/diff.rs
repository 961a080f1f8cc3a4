//! `memgauge diff`: runs, or two groups of them, compared, and gates on the differences.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use memgauge_analyze::{Options, Rank, Summary, summarise};
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::{terminal, whole_file};
use memgauge_recording::{Recording, is_recording};
use memgauge_report::{
    Compared, Comparison, Gate, GateError, Measured, RunCurves, check_event, check_group,
};
use memgauge_symbols::Symbols;

use crate::fetched::fetch;

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// Runs, each a recording or a file of `report --baseline`: the second and further ones are
    /// compared with the first
    #[arg(value_name = "RUN", num_args = 2.., required_unless_present = "runs_before")]
    runs: Vec<PathBuf>,
    /// Repeated runs before, two or more: differences get confidence intervals
    #[arg(
        long = "before", value_name = "RUN", num_args = 1..,
        requires = "runs_after", conflicts_with = "runs"
    )]
    runs_before: Vec<PathBuf>,
    /// Repeated runs after, two or more
    #[arg(long = "after", value_name = "RUN", num_args = 1.., requires = "runs_before")]
    runs_after: Vec<PathBuf>,
    /// Event that ranks functions and lines [default: cycles, if all runs have them]
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// End with 1 if this holds of any run but the first: 'dram.read_bytes > +5%' and
    /// 'llc.miss > +1k' compare with the first, 'llc.mpki > 2' does not; may be repeated
    #[arg(long, value_name = "GATE")]
    fail_if: Vec<Gate>,
    /// Print JSON (docs/diff.md describes it)
    #[arg(long)]
    json: bool,
    /// Write a page that opens in a browser, off line: tables, and curves laid over each other
    #[arg(long, conflicts_with = "json")]
    html: bool,
    /// File of the page; `-` is standard output
    #[arg(
        short,
        long,
        value_name = "FILE",
        requires = "html",
        default_value = "diff.html"
    )]
    output: PathBuf,
    /// Functions to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    rows: usize,
}

/// Compares runs.
pub(crate) fn diff(args: &Diff) -> anyhow::Result<Exit> {
    let runs = match args.runs.is_empty() {
        true => of_groups(args)?,
        false => of_runs(args)?,
    };
    let failed = failed_gates(&runs, &args.fail_if)?;
    if args.html {
        write_page(&runs.html(args.rows), &args.output)?;
    } else {
        let style = terminal::style(terminal::stdout_is_terminal());
        terminal::print(&match args.json {
            true => format!("{:#}\n", runs.json()),
            false => runs.text(args.rows, &style),
        })?;
    }
    for line in &failed {
        eprintln!("memgauge: {line}");
    }
    let mut compared = runs.comparisons.iter();
    Ok(match failed.is_empty() {
        true => Exit::after_reading(compared.any(|runs| runs.damaged.contains(&true))),
        false => Exit::GateFailed,
    })
}

fn write_page(page: &str, path: &Path) -> anyhow::Result<()> {
    if path == Path::new("-") {
        return terminal::print(page);
    }
    let name = path.display();
    whole_file::write(path, page.as_bytes())
        .with_context(|| format!("failed to write `{name}`"))?;
    eprintln!("memgauge: wrote {name}");
    Ok(())
}

/// Runs, each compared with the first.
fn of_runs(args: &Diff) -> anyhow::Result<Compared> {
    let event = args.event.as_deref();
    let (mut runs, mut curves) = (Vec::new(), Vec::new());
    for (number, path) in args.runs.iter().enumerate() {
        check_pattern(path)?;
        let name = path.display().to_string();
        let (measured, over_time) = measured(path, event, (&name, number))?;
        runs.push((name, measured));
        curves.push(over_time);
    }
    if let Some(event) = event {
        let measured: Vec<&Measured> = runs.iter().map(|run| &run.1).collect();
        check_event(event, &measured).map_err(usage)?;
    }
    Ok(Compared::of(&runs, event, curves))
}

/// Two groups of runs.
fn of_groups(args: &Diff) -> anyhow::Result<Compared> {
    let event = args.event.as_deref();
    let named = [
        ("--before", &args.runs_before),
        ("--after", &args.runs_after),
    ];
    let mut groups = [Vec::new(), Vec::new()];
    let mut curves = Vec::new();
    named
        .iter()
        .flat_map(|group| group.1)
        .try_for_each(|run| check_pattern(run))?;
    for (option, paths) in named {
        if paths.len() < 2 {
            return Err(usage(format!(
                "failed to compare groups: {option} has one run, which has no spread: name two \
                 or more"
            )));
        }
    }
    check_distinct(named.iter().flat_map(|group| group.1))?;
    for (number, (_, paths)) in named.into_iter().enumerate() {
        for path in paths {
            let name = path.display().to_string();
            let (measured, over_time) = measured(path, event, (&name, number))?;
            groups[number].push(measured);
            curves.push(over_time);
        }
        check_group(&groups[number]).map_err(usage)?;
    }
    let [before, after] = groups;
    if let Some(event) = event {
        let measured: Vec<&Measured> = before.iter().chain(&after).collect();
        check_event(event, &measured).map_err(usage)?;
    }
    Ok(Compared::of_groups(
        Comparison::of(&before, &after, event),
        curves,
    ))
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

/// A baseline file is read as it is, a recording is summarised. A baseline contains nothing over
/// time.
fn measured(
    path: &Path,
    event: Option<&str>,
    (name, group): (&str, usize),
) -> anyhow::Result<(Measured, RunCurves)> {
    let fetched = fetch(path)?;
    let path = fetched.path();
    if !path.is_file() || is_recording(path) {
        let recording = Recording::open(path)?;
        let summary = summary(&recording, event)?;
        let measured = Measured {
            is_damaged: recording.is_damaged(),
            ..Measured::of(&summary)
        };
        return Ok((measured, RunCurves::of(name, group, &summary)));
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read `{name}`"))?;
    match Measured::parse(&text) {
        Ok(measured) => Ok((measured, RunCurves::none(name, group))),
        Err(why) => bail!(
            "failed to read baseline `{name}`: {why}: write it with `memgauge report --baseline FILE`"
        ),
    }
}

/// Reads the numbers of a recording that are compared. `event` is the one whose samples rank functions.
pub(crate) fn measure(recording: &Recording, event: Option<&str>) -> anyhow::Result<Measured> {
    Ok(Measured::of(&summary(recording, event)?))
}

fn summary(recording: &Recording, event: Option<&str>) -> anyhow::Result<Summary> {
    let rank = event.and_then(|event| Rank::named(event, recording.manifest()).ok());
    let options = Options::every_place(rank);
    let summary = summarise(recording, &mut Symbols::of(recording.path()), &options)?;
    for problem in &summary.problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(summary)
}

/// A line for each gate that fails, with both values, and a line about what kind of change it is.
pub(crate) fn failed_gates(runs: &Compared, gates: &[Gate]) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for (name, comparison) in runs.runs() {
        // With two runs it is clear which one is meant.
        let of = match runs.comparisons.len() {
            1 => String::new(),
            _ => format!("{name}: "),
        };
        let failures = comparison
            .failed_gates(gates)
            .map_err(|error| match error {
                GateError::Usage(why) => usage(why),
                GateError::Incomparable(why) => anyhow!(why),
            })?;
        lines.extend(failures.iter().map(|line| format!("{of}{line}")));
    }
    Ok(lines)
}
