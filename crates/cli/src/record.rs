//! `memgauge record` and `memgauge -- CMD`.

use std::path::Path;

use anyhow::{Context, bail};
use memgauge_emulate::{self as emulate, Emulator, Options};
use memgauge_host::sys;
use memgauge_live::events::{self, Pmus};
use memgauge_live::target::Target;
use memgauge_machine::{Config, Delivery, PmuConfig, SampleSpec};
use memgauge_recording::Recording;
use memgauge_trace::{CommandEnd, catalogue};

use crate::args::{Launch, Record, Settings, Source};
use crate::outcome::{Exit, usage};
use crate::units::EventSpec;
use crate::{clock, page, progress, report, sample, terminal};

/// The machine that is modelled where none is named.
const HOST: &str = "host";

/// Name of a recording that the user did not name; the next one replaces it.
const DEFAULT_OUTPUT: &str = "memgauge.mg";

/// Runs the command and writes the recording.
pub(crate) fn record(args: &Record) -> anyhow::Result<Exit> {
    let attached = args.target.are_any();
    let talk = !args.settings.quiet;
    let end = if sample::is_wanted(args) {
        sample::run(&args.settings, args.target.with(&args.command)?, talk)?
    } else if args.settings.source == Source::Clock || attached {
        attach(args)?
    } else {
        run(&args.settings, &args.command, talk)?
    };
    if talk {
        closing_line(&args.settings.output)?;
    }
    tell_signal(&end);
    Ok(Exit::of(&end))
}

/// The same, then the report on standard error: standard output is the program's.
pub(crate) fn record_and_report(args: &Launch) -> anyhow::Result<Exit> {
    let talk = !args.settings.quiet && !args.json;
    let html = args.html.as_deref();
    html.map(|_| page::check()).transpose()?;
    let end = run(&args.settings, &args.command, talk)?;
    let recording = Recording::open(&args.settings.output)?;
    let style = terminal::style(terminal::stderr_is_terminal());
    let limits = report::DEFAULT_ROWS;
    eprint!("{}", report::render(&recording, style, args.json, limits)?);
    if talk {
        eprintln!("\nrecording: {}", args.settings.output.display());
    }
    html.map(|path| page::write_recording(&recording, path))
        .transpose()?;
    Ok(Exit::of(&end))
}

/// Source clock, which observes what runs already and needs no events.
fn attach(args: &Record) -> anyhow::Result<CommandEnd> {
    if args.settings.source == Source::Emulate {
        return Err(usage(
            "failed to attach: source emulate only records programs that it starts: use --source \
            clock or -e for a running one",
        ));
    }
    let talk = !args.settings.quiet;
    clock::run(&args.settings, args.target.with(&args.command)?, talk)
}

fn run(settings: &Settings, command: &[String], talk: bool) -> anyhow::Result<CommandEnd> {
    if settings.source == Source::Clock {
        return clock::run(settings, (Target::Command(command.to_vec()), None), talk);
    }
    if settings.source == Source::Pmu
        || settings.source == Source::Auto && sample::is_live(settings)
    {
        return sample::run(settings, (Target::Command(command.to_vec()), None), talk);
    }
    if settings.source == Source::Auto
        && settings.events.is_empty()
        && let Err(missing) = Emulator::find()
    {
        // Before anything is replaced: a command that cannot run costs no recording.
        emulate::resolve(command)?;
        eprintln!(
            "memgauge: using source clock (timer samples of this machine), as source emulate \
            does not work here: {missing}"
        );
        return clock::run(settings, (Target::Command(command.to_vec()), None), talk);
    }
    refuse_unused(settings, Source::Emulate)?;
    // Before anything is replaced: a command that cannot run costs no recording.
    emulate::resolve(command)?;
    let options = Options {
        command: command.to_vec(),
        output: settings.output.clone(),
        machine: settings.modelled.config()?,
        pmu: pmu(settings)?,
        traces: None,
    };
    let why = "to sample this machine, use -e or --source clock";
    let why = (settings.source == Source::Auto).then_some(why);
    emulated(&options, settings.force, talk, why)
}

/// Runs a command on the modelled machine; `chosen` says why, where the user did not
/// ask for it.
pub(crate) fn emulated(
    options: &Options,
    force: bool,
    talk: bool,
    chosen: Option<&str>,
) -> anyhow::Result<CommandEnd> {
    make_room(&options.output, force)?;
    if let Some(why) = chosen.filter(|_| talk) {
        announce(&options.machine, why);
    }
    say_rights(&options.command);
    sys::process::catch_interrupts().context(
        "failed to install the handler of interrupts \
    (SIGINT, SIGTERM)",
    )?;
    let mut line = progress::Line::new(terminal::stderr_is_terminal() && talk);
    let outcome = emulate::record(options, &mut |p| line.show(p));
    line.clear();
    let outcome = outcome?;
    for note in &outcome.notes {
        eprintln!("memgauge: {note}");
    }
    Ok(outcome.end)
}

/// Says that a program will not get the rights which it would have natively.
pub(crate) fn say_rights(command: &[String]) {
    if let Ok((program, _)) = emulate::resolve(command)
        && emulate::would_gain_rights(&program)
    {
        eprintln!(
            "memgauge: `{}` is set-user-ID or has capabilities: under the emulator it runs \
             with your own rights",
            program.display()
        );
    }
}

/// Events of the modelled machine that are sampled where none is named: those that
/// a report needs, rarely enough not to matter.
const MODELLED: &str = "llc.miss:127,l1d.miss:4099";
/// Period of a modelled event that was named without one.
const MODELLED_PERIOD: u64 = 1009;

/// Refuses options that a source would have no use for: who names one expects something
/// of it.
pub(crate) fn refuse_unused(settings: &Settings, source: Source) -> anyhow::Result<()> {
    let emulate = source == Source::Emulate;
    let clock = source == Source::Clock;
    let is_modelled = !settings.modelled.prefetch.is_empty()
        || settings.modelled.machine != HOST
        || settings.delivery.0 != Delivery::Ideal;
    let all = [
        ("--overhead", emulate && settings.overhead.is_some()),
        ("-F", emulate && settings.frequency.is_some()),
        ("--registers", emulate && settings.registers),
        ("-e", clock && !settings.events.is_empty()),
        ("-c", clock && settings.period.is_some()),
        (
            "--machine, --prefetch and --delivery",
            !emulate && is_modelled,
        ),
    ];
    let unused: Vec<&str> = all.iter().filter(|o| o.1).map(|o| o.0).collect();
    if unused.is_empty() {
        return Ok(());
    }
    let (name, instead) = match source {
        Source::Emulate => (
            "emulate",
            "it runs the program on a modelled machine: use --source clock or -e to sample this \
            machine",
        ),
        Source::Clock => ("clock", "it samples by a timer: set its frequency with -F"),
        Source::Auto | Source::Pmu => (
            "pmu",
            "they describe the machine of source emulate: leave them out",
        ),
    };
    Err(usage(format!(
        "failed to record: source {name} has no use for {}: {instead}",
        unused.join(", ")
    )))
}

/// The events named, as those of the modelled machine.
pub(crate) fn modelled(settings: &Settings) -> Result<Vec<EventSpec>, String> {
    let text = match settings.events.is_empty() {
        true => MODELLED.to_owned(),
        false => settings.events.join(","),
    };
    text.split(',').map(str::parse).collect()
}

fn pmu(settings: &Settings) -> anyhow::Result<PmuConfig> {
    let events = modelled(settings).map_err(|why| no_such_events(settings, &why))?;
    let samples = events.iter().map(|e| SampleSpec {
        event: e.event,
        period: e.period.or(settings.period).unwrap_or(MODELLED_PERIOD),
    });
    Ok(PmuConfig {
        samples: samples.collect(),
        interval_ns: Some(settings.interval.ns),
        delivery: settings.delivery.0,
    })
}

/// Events that are not all the modelled machine's: what is wrong with them, as
/// events of this machine where any is one.
fn no_such_events(settings: &Settings, why: &str) -> anyhow::Error {
    let text = settings.events.join(",");
    let pmus = Pmus::default();
    let is_live = |item: &str| events::parse(item, &pmus).is_ok();
    // A modelled event has a period behind its colon, a tracepoint its name.
    let is_traced = |item: &str| {
        item.split_once(':').is_some_and(|(name, behind)| {
            behind.parse::<u64>().is_err() && catalogue::by_name(name).is_none()
        })
    };
    let spelled_so = text.contains(['/', '{']) || text.split(',').any(is_traced);
    let live = settings.source != Source::Emulate && (spelled_so || text.split(',').any(is_live));
    match events::parse(&text, &pmus).err().filter(|_| live) {
        Some(error) => error.into(),
        None => usage(format!("failed to read events `{text}`: {why}")),
    }
}

/// Says which source was chosen, why, and what it costs.
fn announce(machine: &Config, why: &str) {
    eprintln!(
        "memgauge: source emulate ({why}): modelled on {}, 10 to 60 times slower than native",
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
