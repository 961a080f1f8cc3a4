//! `memgauge bandwidth` and `memgauge calibrate`.

mod args;
mod calibrate;
mod loops;

use std::path::Path;

use anyhow::{Context, bail};
use memgauge_analyze::bandwidth::{self, Correction, Extent, LossModel, MOST_WINDOWS, Settings};
use memgauge_collect::emulate;
use memgauge_machine::{PmuConfig, SampleSpec};
use memgauge_report::bandwidth::{against_text, csv, json, text};
use memgauge_trace::CommandEnd;
use memgauge_trace::recording::Recording;

use crate::outcome::Exit;
use crate::symbols::Symbols;
use crate::{record, terminal};
pub(crate) use args::{Bandwidth, Calibrate, Way};
pub(crate) use calibrate::calibrate;

use args::{Correct, TraceSource};
use calibrate::{Calibration, recorded_delivery};

/// Shows bandwidth over time.
pub(crate) fn bandwidth(args: &Bandwidth) -> anyhow::Result<Exit> {
    if let Some(input) = &args.input {
        let style = terminal::style(terminal::stdout_is_terminal());
        let shown = match &args.against {
            Some(other) => against(args, input, other)?,
            None => shown(args, &Recording::open(input)?, style)?,
        };
        terminal::print(&shown)?;
        return Ok(Exit::Success);
    }
    if args.source == TraceSource::Pmu || args.target.are_any() {
        bail!("failed to trace overflows: {}", without_pmu());
    }
    let end = run(args)?;
    let style = terminal::style(terminal::stderr_is_terminal());
    let recording = Recording::open(&args.output)?;
    eprint!("{}", shown(args, &recording, style)?);
    if !args.quiet && !args.json && !args.csv {
        eprintln!("\nrecording: {}", args.output.display());
    }
    Ok(Exit::of(&end))
}

/// Why hardware cannot be asked.
fn without_pmu() -> &'static str {
    match Path::new("/sys/bus/event_source/devices/cpu").exists() {
        true => {
            "this version does not record overflows of the processor's own counters; \
             `memgauge bandwidth -- CMD` runs a program on the modelled machine"
        }
        false => {
            "this machine shows no counters of its processor (no PMU); \
             `memgauge bandwidth -- CMD` runs a program on the modelled machine"
        }
    }
}

/// Runs the program on the modelled machine.
fn run(args: &Bandwidth) -> anyhow::Result<CommandEnd> {
    emulate::resolve(&args.command)?;
    let options = emulate::Options {
        command: args.command.clone(),
        output: args.output.clone(),
        machine: args.modelled.config()?,
        pmu: PmuConfig {
            samples: vec![SampleSpec {
                event: args.event.event,
                period: args.event.period.unwrap_or(args.period),
            }],
            interval_ns: Some(args.interval.ns),
            delivery: args.delivery.0,
        },
        traces: true,
    };
    let talk = !args.quiet && !args.json && !args.csv;
    let why = "this version traces no hardware counters";
    let why = (args.source == TraceSource::Auto).then_some(why);
    record::emulated(&options, args.force, talk, why)
}

fn settings(args: &Bandwidth) -> Settings {
    Settings {
        from_ns: args.from.unwrap_or(0),
        to_ns: args.to,
        bin_ns: args.bin.ns,
        rows: args.rows,
    }
}

fn read(args: &Bandwidth, recording: &Recording) -> anyhow::Result<bandwidth::Bandwidth> {
    let extent = bandwidth::extent(recording)?;
    check(args, recording, &extent)?;
    let correction = correction(args, recording)?;
    let symbols = &mut Symbols::new();
    let read = bandwidth::read(recording, &extent, &settings(args), &correction, symbols)?;
    for problem in &read.problems {
        eprintln!("memgauge: {problem}");
    }
    Ok(read)
}

/// Refuses what has nothing to show or too much, and says why.
fn check(args: &Bandwidth, recording: &Recording, extent: &Extent) -> anyhow::Result<()> {
    if extent.overflows.is_empty() {
        let manifest = recording.manifest();
        let periods = manifest
            .source
            .settings
            .iter()
            .filter(|s| s.0.starts_with("period."));
        let told: Vec<String> = periods
            .map(|(key, period)| {
                let event = key.trim_start_matches("period.");
                let total = manifest.totals.get(event).copied().unwrap_or(0);
                format!("{event} happened {total} times, the period is {period}")
            })
            .collect();
        let why = match told.is_empty() {
            true => {
                "it holds no trace of overflows (`memgauge bandwidth -- CMD` makes one)".to_owned()
            }
            false => format!(
                "no counter overflowed ({}; choose a smaller one with -c)",
                told.join(", ")
            ),
        };
        bail!(
            "failed to show the bandwidth of `{}`: {why}",
            recording.path().display()
        );
    }
    let from = args.from.unwrap_or(0).max(extent.start_ns);
    let to = args.to.unwrap_or(u64::MAX).min(extent.end_ns);
    if from >= to {
        bail!(
            "failed to show `{}`: nothing from {from} ns to {to} ns; it has {} to {} ns",
            recording.path().display(),
            extent.start_ns,
            extent.end_ns
        );
    }
    let windows = (to - from) / args.bin.ns;
    if windows > MOST_WINDOWS {
        bail!(
            "failed to show {windows} windows, {MOST_WINDOWS} at most: choose a wider --bin or a \
             shorter time with --from and --to"
        );
    }
    Ok(())
}

fn correction(args: &Bandwidth, recording: &Recording) -> anyhow::Result<Correction> {
    let manifest = recording.manifest();
    let delivery = recorded_delivery(&manifest.source.settings);
    let event = manifest
        .source
        .settings
        .keys()
        .find_map(|k| k.strip_prefix("period."));
    let found = || match (&manifest.machine, event) {
        (Some(machine), Some(event)) => Calibration::find(machine, &delivery, event),
        _ => Ok(None),
    };
    let named = |kept: Calibration| {
        let name = format!("calibration of {} by {}", kept.machine.name, kept.delivery);
        Correction::Model(name, kept.model())
    };
    Ok(match args.correct {
        Correct::None => Correction::None,
        Correct::Lost(lost) => {
            let name = format!("{lost} events with each record, as given");
            Correction::Model(name, LossModel::constant(lost))
        }
        Correct::Reference => Correction::Reference,
        Correct::Auto if delivery == "ideal" => Correction::None,
        Correct::Auto => found()?.map_or(Correction::Reference, named),
        Correct::Calibration => named(found()?.context(
            "failed to correct: there is no calibration for this recording's machine, delivery and \
             event; `memgauge calibrate` makes one",
        )?),
    })
}

fn shown(
    args: &Bandwidth,
    recording: &Recording,
    style: memgauge_report::Style,
) -> anyhow::Result<String> {
    let result = read(args, recording)?;
    Ok(match (args.json, args.csv) {
        (true, _) => json(&result),
        (_, true) => csv(&result),
        _ => text(&result, recording.manifest(), &style),
    })
}

/// Two recordings over each other, by work done.
fn against(args: &Bandwidth, one: &Path, other: &Path) -> anyhow::Result<String> {
    let style = terminal::style(terminal::stdout_is_terminal());
    let both = [one, other].map(|path| -> anyhow::Result<_> {
        let recording = Recording::open(path)?;
        let result = read(args, &recording)?;
        let curve = result
            .curve
            .as_ref()
            .context("SANITY: a read result has a curve")?;
        let work = bandwidth::work(&recording, curve)?;
        if work.total() <= 0.0 {
            bail!(
                "failed to compare `{}`: it has no series of instructions to tell work by",
                path.display()
            );
        }
        Ok((path.display().to_string(), result, work))
    });
    let [one, other] = both;
    Ok(against_text(&[one?, other?], args.json, &style))
}
