//! `memgauge record` and `memgauge -- CMD`.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use memgauge_analyze::LayoutChange;
use memgauge_console::Source;
use memgauge_console::emulated::{missing_names, warn_about_rights};
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::quantities::{spoken_bytes, spoken_seconds};
use memgauge_console::terminal;
use memgauge_emulate::{self as emulate, Emulator, Options, OtherMachine, SharedLayout};
use memgauge_live::events::{self, Pmus};
use memgauge_live::target::Target;
use memgauge_machine::{Config, PmuConfig, SampleSpec};
use memgauge_recording::Recording;
use memgauge_report::{Style, as_typed};
use memgauge_trace::{CommandEnd, catalogue};

use crate::args::{Launch, Record, RecordingSettings};
use crate::prepare::{modelled, refuse_unused};
use crate::sample::SampledSource;
use crate::type_layout::{TypeLayout, VariableLayout};
use crate::units::{WhatIfChange, labels};
use crate::{collect, malloc, names, page, progress, report, sample};

pub(crate) use crate::prepare::make_room;

/// Runs the command and writes the recording.
pub(crate) fn record(args: &Record) -> anyhow::Result<Exit> {
    set_up(&args.settings);
    let attached = args.target.are_any();
    if attached && args.settings.jit_names {
        return Err(usage(
            "failed to set up --jit-names: it sets the environment of a program that memgauge \
             starts; a running JVM writes names with `jcmd PID Compiler.perfmap`",
        ));
    }
    let verbose = !args.settings.quiet;
    if let Some(target) = &args.collect.to {
        let end = collect::run(args, target)?;
        print_signal(&end);
        return Ok(Exit::of(&end));
    }
    let end = if sample::is_wanted(args) {
        SampledSource::Events.run(&args.settings, args.target.with(&args.command)?, verbose)?
    } else if args.settings.source == Source::Clock || attached {
        attach(args)?
    } else {
        run(&args.settings, &args.command, verbose)?
    };
    if verbose {
        closing_line(&args.settings.output)?;
    }
    print_signal(&end);
    Ok(Exit::of(&end))
}

/// Records the command and prints the report to standard error, since standard output belongs to
/// the program.
pub(crate) fn record_and_report(args: &Launch) -> anyhow::Result<Exit> {
    let verbose = !args.settings.quiet && !args.json;
    let html = args.html.as_deref();
    html.map(|_| page::check()).transpose()?;
    let end = run(&args.settings, &args.command, verbose)?;
    let recording = Recording::open(&args.settings.output)?;
    let style = terminal::style(terminal::stderr_is_terminal());
    let contents = report::TableContents {
        rows: report::DEFAULT_ROWS,
        rank: None,
        sort: None,
    };
    eprint!(
        "{}",
        report::render(&recording, style, args.json, contents)?
    );
    if verbose {
        eprintln!("\nrecording: {}", args.settings.output.display());
    }
    html.map(|path| page::write_recording(&recording, path))
        .transpose()?;
    Ok(Exit::of(&end))
}

/// Shows a recording on standard output.
pub(crate) fn show(
    path: &Path,
    text: impl Fn(&Recording, &Style) -> anyhow::Result<String>,
) -> anyhow::Result<Exit> {
    let style = terminal::style(terminal::stdout_is_terminal());
    let recording = Recording::open(path)?;
    terminal::print(&text(&recording, &style)?)?;
    Ok(Exit::after_reading(recording.is_damaged()))
}

/// Records a program and shows the recording on standard error, because standard output is the
/// program's.
pub(crate) fn run_and_show(
    settings: &RecordingSettings,
    command: &[String],
    text: impl Fn(&Recording, &Style) -> anyhow::Result<String>,
) -> anyhow::Result<Exit> {
    let end = run(settings, command, !settings.quiet)?;
    show_after(settings, end, text)
}

/// Shows the recording of a program that has ended on standard error.
pub(crate) fn show_after(
    settings: &RecordingSettings,
    end: CommandEnd,
    text: impl Fn(&Recording, &Style) -> anyhow::Result<String>,
) -> anyhow::Result<Exit> {
    let style = terminal::style(terminal::stderr_is_terminal());
    eprint!("{}", text(&Recording::open(&settings.output)?, &style)?);
    if !settings.quiet {
        eprintln!("\nrecording: {}", settings.output.display());
    }
    Ok(Exit::of(&end))
}

/// Sets what the manifests of this process's recordings and its started program have in common.
fn set_up(settings: &RecordingSettings) {
    memgauge_host::set_labels(labels(&settings.labels));
    if settings.jit_names {
        memgauge_host::request_jit_names();
    }
}

/// Source clock on running programs, which needs no events.
fn attach(args: &Record) -> anyhow::Result<CommandEnd> {
    if args.settings.source == Source::Emulate {
        return Err(usage(
            "failed to attach: source emulate only records programs that it starts: use --source \
            clock or -e for a running one",
        ));
    }
    if args.settings.source == Source::Malloc {
        return Err(usage(
            "failed to attach: source malloc preloads a library, so it only records programs that \
            it starts",
        ));
    }
    let verbose = !args.settings.quiet;
    SampledSource::Clock.run(&args.settings, args.target.with(&args.command)?, verbose)
}

pub(crate) fn run(
    settings: &RecordingSettings,
    command: &[String],
    verbose: bool,
) -> anyhow::Result<CommandEnd> {
    set_up(settings);
    if settings.source == Source::Malloc {
        return malloc::run(settings, command, verbose);
    }
    if settings.source == Source::Clock {
        return SampledSource::Clock.run(
            settings,
            (Target::Command(command.to_vec()), None),
            verbose,
        );
    }
    if settings.source == Source::Pmu
        || settings.source == Source::Auto && sample::is_live(settings)
    {
        return SampledSource::Events.run(
            settings,
            (Target::Command(command.to_vec()), None),
            verbose,
        );
    }
    if settings.source == Source::Auto
        && settings.events.is_empty()
        && let Err(missing) = Emulator::find()
    {
        // Check before replacing anything, so that a command that cannot run costs no recording.
        emulate::resolve(command)?;
        eprintln!(
            "memgauge: using source clock (timer samples of this machine), as source emulate \
            does not work here: {}",
            missing.in_full()
        );
        return SampledSource::Clock.run(
            settings,
            (Target::Command(command.to_vec()), None),
            verbose,
        );
    }
    refuse_unused(settings, Source::Emulate)?;
    // Check before replacing anything, so that a command that cannot run costs no recording.
    emulate::resolve(command)?;
    let machine = settings.modelled.config()?;
    let others = other_machines(settings, &machine, command)?;
    let options = Options {
        command: command.to_vec(),
        output: settings.output.clone(),
        discards_output: settings.discards_output,
        what_if: others.machines,
        machine,
        pmu: pmu(settings)?,
        traces: None,
        sets: settings.sets,
        seed: settings.modelled.seed,
        stacks: settings.stacks,
        data: (!settings.no_data).then(|| {
            // The user's settings come last, since the engine uses the last one of each name.
            let mut all = emulate::known_allocators();
            all.extend(
                settings
                    .allocators
                    .iter()
                    .chain(&settings.deallocators)
                    .chain(&settings.resets)
                    .cloned(),
            );
            all
        }),
        counts_accesses: settings.data_accesses,
        functions: settings.functions.clone(),
        regions: settings.regions.clone(),
    };
    let why = match settings.events.is_empty() {
        true => "to sample this machine, use -e or --source clock",
        false => "to sample this machine's events of these names, add --source pmu",
    };
    let why = (settings.source == Source::Auto).then_some(why);
    let end = emulated(&options, settings.force, verbose, why)?;
    for problem in others.problems.iter().filter_map(|problem| problem()) {
        eprintln!("memgauge: {problem}");
    }
    Ok(end)
}

/// The machines of `--what-if`.
fn other_machines(
    settings: &RecordingSettings,
    machine: &Config,
    command: &[String],
) -> anyhow::Result<OtherMachines> {
    let mut others = OtherMachines::default();
    for change in settings.what_if.iter().flat_map(|changes| &changes.0) {
        let (name, config, layout) = match change {
            WhatIfChange::Machine(change) => {
                let config = change.apply(machine);
                let config =
                    config.map_err(|e| usage(format!("failed to change the machine: {e}")))?;
                (change.to_string(), config, None)
            }
            WhatIfChange::Layout(change) => {
                let (name, layout) = others.layout(change, command)?;
                (name, machine.clone(), Some(layout))
            }
        };
        if others.machines.iter().any(|known| known.name == name) {
            continue;
        }
        others.machines.push(OtherMachine {
            name,
            config,
            layout,
        });
    }
    let is_part =
        settings.sets.is_some() || !settings.regions.is_empty() || !settings.functions.is_empty();
    if is_part && !others.machines.is_empty() {
        return Err(usage(
            "failed to set up --what-if: it compares whole runs: leave out --sets, --region and \
             --function",
        ));
    }
    Ok(others)
}

/// The machines of `--what-if`.
#[derive(Default)]
struct OtherMachines {
    machines: Vec<OtherMachine>,
    /// After the run: why a layout moved nothing.
    problems: Vec<Box<dyn Fn() -> Option<String>>>,
}

impl OtherMachines {
    /// The name of a change and its layout, of a variable of the program or else of a type.
    fn layout(
        &mut self,
        change: &LayoutChange,
        command: &[String],
    ) -> anyhow::Result<(String, SharedLayout)> {
        if let Some((change, layout)) = VariableLayout::of_program(change, command)? {
            let layout = Rc::new(RefCell::new(layout));
            let shared = SharedLayout(Rc::clone(&layout) as _);
            self.problems
                .push(Box::new(move || layout.borrow().problem()));
            return Ok((change.to_string(), shared));
        }
        let layout = Rc::new(RefCell::new(TypeLayout::new(change, command)?));
        let shared = SharedLayout(Rc::clone(&layout) as _);
        self.problems
            .push(Box::new(move || layout.borrow().problem()));
        Ok((change.to_string(), shared))
    }
}

/// Runs a command on the modelled machine. `chosen` explains why, if the user did not request it.
pub(crate) fn emulated(
    options: &Options,
    force: bool,
    verbose: bool,
    chosen: Option<&str>,
) -> anyhow::Result<CommandEnd> {
    let _output = make_room(&options.output, force)?;
    if let Some(why) = chosen.filter(|_| verbose) {
        announce(&options.machine, why);
    }
    warn_about_rights(&options.command);
    terminal::catch_interrupts()?;
    let mut line = progress::ProgressLine::new(terminal::stderr_is_terminal() && verbose);
    let outcome = emulate::record(options, &mut |p| line.show(p));
    line.clear();
    let outcome = outcome?;
    names::add(&options.output);
    let missing = missing_names(&outcome.missing, &options.command);
    for note in outcome.notes.iter().chain(&missing) {
        eprintln!("memgauge: {note}");
    }
    Ok(outcome.end)
}

/// Default period of a modelled event.
const MODELLED_PERIOD: u64 = 1009;

fn pmu(settings: &RecordingSettings) -> anyhow::Result<PmuConfig> {
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

/// Error for events that are not all events of the modelled machine. Explains the problem for
/// events of this machine if there are any.
fn no_such_events(settings: &RecordingSettings, why: &str) -> anyhow::Error {
    let text = settings.events.join(",");
    let pmus = Pmus::default();
    let is_live = |item: &str| events::parse(item, &pmus).is_ok();
    // A modelled event has a period after its colon, a tracepoint its name.
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

/// Prints which source was chosen, why, and its cost.
fn announce(machine: &Config, why: &str) {
    eprintln!(
        "memgauge: source emulate ({why}): modelled on {}, mostly 10 to 60 times slower than native",
        machine.name
    );
}

fn closing_line(path: &Path) -> anyhow::Result<()> {
    let recording = Recording::open(path)?;
    let cost = &recording.manifest().own_cost;
    eprintln!(
        "memgauge: recorded {} to {} ({}); show it with `memgauge report {}`",
        spoken_seconds(cost.wall_s),
        path.display(),
        spoken_bytes(cost.recording_bytes),
        as_typed([&*path.to_string_lossy()])
    );
    Ok(())
}

fn print_signal(end: &CommandEnd) {
    if let CommandEnd::Signalled(signal) = end {
        eprintln!("memgauge: the program was killed by signal {signal}");
    }
}
