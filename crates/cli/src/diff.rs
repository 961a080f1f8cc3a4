//! `memgauge diff`: two runs compared, and gates on the differences.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use memgauge_analyze::{Limits, Options, summarise};
use memgauge_recording::Recording;
use memgauge_report::{Comparison, Measured};
use memgauge_symbols::Symbols;

use crate::gate::Gate;
use crate::outcome::{Exit, take_in_damage, usage};
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// First run: a recording, or a file of `report --baseline`
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Second run, as the first
    #[arg(value_name = "AFTER")]
    after: PathBuf,
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
    let comparison = Comparison::of(&measured(&args.before)?, &measured(&args.after)?);
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

/// A baseline file is read as it is, a recording is summarised.
fn measured(path: &Path) -> anyhow::Result<Measured> {
    if !path.is_file() {
        return measure(&Recording::open(path)?);
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

/// What is compared of a recording.
pub(crate) fn measure(recording: &Recording) -> anyhow::Result<Measured> {
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
    let options = Options {
        limits,
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
        let said = |value: Option<f64>| value.map_or("none".to_owned(), |v| v.to_string());
        let values = format!(
            "before {}, after {}",
            said(metric.before),
            said(metric.after)
        );
        match gate.fails(metric) {
            Some(false) => {}
            Some(true) => lines.push(format!("gate `{}` failed: {values}", gate.text)),
            None => bail!(
                "failed to check gate `{}`: a run lacks the metric: {values}",
                gate.text
            ),
        }
    }
    Ok(lines)
}

fn unknown(comparison: &Comparison, gate: &Gate) -> anyhow::Error {
    let names = comparison.metrics.iter().map(|m| m.name.as_str());
    let mut near: Vec<&str> = names.collect();
    near.sort_by(|a, b| {
        let like = |name| strsim::jaro_winkler(name, &gate.metric);
        like(b).total_cmp(&like(a))
    });
    near.truncate(3);
    usage(format!(
        "failed to check gate `{}`: neither run has metric `{}`: near names are {}",
        gate.text,
        gate.metric,
        near.join(", ")
    ))
}
