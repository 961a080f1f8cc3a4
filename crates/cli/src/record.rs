//! `memgauge record` and `memgauge -- CMD`.

use std::path::Path;

use anyhow::{Context, bail};
use memgauge_collect::emulate::{self, Options};
use memgauge_collect::{geometry, sys};
use memgauge_machine::{Config, PmuConfig, SampleSpec};
use memgauge_trace::CommandEnd;
use memgauge_trace::recording::Recording;

use crate::args::{Launch, Prefetcher, Record, Settings, Source};
use crate::outcome::Exit;
use crate::{clock, progress, report, terminal};

/// What is kept of the last recording where nobody named this one.
const DEFAULT_OUTPUT: &str = "memgauge.mg";

/// Runs the command and writes the recording.
pub(crate) fn record(args: &Record) -> anyhow::Result<Exit> {
    let clock = args.settings.source == Source::Clock || !args.pid.is_empty();
    let end = match clock {
        true => attach(args)?,
        false => run(&args.settings, &args.command, !args.settings.quiet)?,
    };
    if !args.settings.quiet {
        closing_line(&args.settings.output)?;
    }
    tell_signal(&end);
    Ok(Exit::of(&end))
}

/// The same, then the report on standard error: standard output is the program's.
pub(crate) fn record_and_report(args: &Launch) -> anyhow::Result<Exit> {
    let talk = !args.settings.quiet && !args.json;
    let end = run(&args.settings, &args.command, talk)?;
    let recording = Recording::open(&args.settings.output)?;
    let style = terminal::style(terminal::stderr_is_terminal());
    let limits = report::DEFAULT_ROWS;
    eprint!("{}", report::render(&recording, style, args.json, limits)?);
    if talk {
        eprintln!("\nrecording: {}", args.settings.output.display());
    }
    Ok(Exit::of(&end))
}

/// Source clock, which alone can observe what runs already.
fn attach(args: &Record) -> anyhow::Result<CommandEnd> {
    if args.settings.source == Source::Emulate {
        bail!("failed to attach: source emulate only records programs that it starts");
    }
    clock::run(&args.settings, &args.command, &args.pid)
}

fn run(settings: &Settings, command: &[String], talk: bool) -> anyhow::Result<CommandEnd> {
    if settings.source == Source::Clock {
        return clock::run(settings, command, &[]);
    }
    // Before anything is replaced: a command that cannot run costs no recording.
    emulate::resolve(command)?;
    let options = Options {
        command: command.to_vec(),
        output: settings.output.clone(),
        machine: machine(settings)?,
        pmu: pmu(settings),
    };
    make_room(&settings.output, settings.force)?;
    if talk && settings.source == Source::Auto {
        announce(&options.machine);
    }
    sys::process::catch_interrupts().context("failed to catch interrupts")?;
    let mut line = progress::Line::new(terminal::stderr_is_terminal() && talk);
    let end = emulate::record(&options, &mut |p| line.show(p));
    line.clear();
    Ok(end?)
}

fn machine(settings: &Settings) -> anyhow::Result<Config> {
    let mut config = geometry::machine(&settings.machine)?;
    config.prefetch.next_line |= settings.prefetch.contains(&Prefetcher::NextLine);
    config.prefetch.stride |= settings.prefetch.contains(&Prefetcher::Stride);
    Ok(config)
}

fn pmu(settings: &Settings) -> PmuConfig {
    let samples = settings.events.iter().map(|e| SampleSpec {
        event: e.event,
        period: e.period.unwrap_or(settings.period),
    });
    PmuConfig {
        samples: samples.collect(),
        interval_ns: Some(settings.interval.ns),
        ..PmuConfig::default()
    }
}

/// Says which source was chosen, why, and what it costs.
fn announce(machine: &Config) {
    eprintln!(
        "memgauge: source emulate (this version has no other for a program it starts): \
         modelled on {}, 10 to 40 times slower than native",
        machine.name
    );
}

/// Moves the last unnamed recording aside, as perf does; refuses to touch a
/// named one without `--force`.
pub(crate) fn make_room(path: &Path, force: bool) -> anyhow::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let recording = path.join("manifest.json").exists();
    if !recording && std::fs::read_dir(path).is_ok_and(|mut list| list.next().is_none()) {
        return Ok(());
    }
    if !recording {
        bail!(
            "failed to write `{}`: it exists and is not a recording",
            path.display()
        );
    }
    if path == Path::new(DEFAULT_OUTPUT) {
        let old = path.with_extension("mg.old");
        if old.join("manifest.json").exists() {
            std::fs::remove_dir_all(&old)
                .with_context(|| format!("failed to remove `{}`", old.display()))?;
        }
        return std::fs::rename(path, &old)
            .with_context(|| format!("failed to move `{}` aside", path.display()));
    }
    if !force {
        bail!(
            "failed to write `{}`: it exists (use --force to replace it)",
            path.display()
        );
    }
    std::fs::remove_dir_all(path).with_context(|| format!("failed to remove `{}`", path.display()))
}

fn closing_line(path: &Path) -> anyhow::Result<()> {
    let recording = Recording::open(path)?;
    let cost = &recording.manifest().own_cost;
    eprintln!(
        "memgauge: recorded {:.1} s to {} ({:.1} MiB); show it with `memgauge report {}`",
        cost.wall_s,
        path.display(),
        cost.recording_bytes as f64 / f64::from(1 << 20),
        path.display()
    );
    Ok(())
}

fn tell_signal(end: &CommandEnd) {
    if let CommandEnd::Signalled(signal) = end {
        eprintln!("memgauge: the program was killed by signal {signal}");
    }
}
