//! `memgauge record -e EVENT` and `--source clock`: samples of events that the processor or the
//! kernel counts, and of a timer.

use std::path::Path;

use memgauge_analyze::summarise_end;
use memgauge_console::Source;
use memgauge_console::outcome::{lacking, usage};
use memgauge_console::terminal;
use memgauge_live::clock;
use memgauge_live::events::{self, Event, Pmus};
use memgauge_live::sampling::{
    self, RunInterval, SamplingOptions, SamplingOutcome, SamplingRate, default_rate,
};
use memgauge_live::target::Target;
use memgauge_recording::Recording;
use memgauge_report::{loss_sentences, sampling_notes};
use memgauge_trace::{CommandEnd, SourceKind};

use crate::args::{Record, RecordingSettings};
use crate::{names, prepare};

/// Default number of timer samples per second.
const DEFAULT_CLOCK_HERTZ: u64 = 1000;

/// True if the command line requests live events.
pub(crate) fn is_wanted(args: &Record) -> bool {
    match args.settings.source {
        Source::Pmu => true,
        Source::Auto => {
            let attached = !args.target.pid.is_empty() && has_events(args);
            args.target.are_wide() || is_live(&args.settings) || attached
        }
        Source::Emulate | Source::Clock | Source::Malloc => false,
    }
}

fn has_events(args: &Record) -> bool {
    !args.settings.events.is_empty()
}

/// True if the events are not those of the modelled machine but of this one.
pub(crate) fn is_live(settings: &RecordingSettings) -> bool {
    let text = settings.events.join(",");
    !text.is_empty()
        && prepare::modelled(settings).is_err()
        && events::parse(&text, &Pmus::default()).is_ok()
}

/// A native source that samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampledSource {
    /// Timer samples with data addresses from registers.
    Clock,
    /// Events that the processor or the kernel counts.
    Events,
}

impl SampledSource {
    /// Samples a command, or running processes.
    pub(crate) fn run(
        self,
        settings: &RecordingSettings,
        (target, while_running): (Target, Option<Vec<String>>),
        verbose: bool,
    ) -> anyhow::Result<CommandEnd> {
        let options = self.options(settings, target, while_running, None)?;
        let _output = prepare::make_room(&settings.output, settings.force)?;
        terminal::catch_interrupts()?;
        let outcome = options.record()?;
        names::add(&settings.output);
        if verbose {
            print_notes(&settings.output)?;
        }
        ended(outcome)
    }

    /// Samples for one interval of a continuous collection.
    pub(crate) fn record_interval(
        self,
        settings: &RecordingSettings,
        target: Target,
        interval: RunInterval,
    ) -> anyhow::Result<SamplingOutcome> {
        let options = self.options(settings, target, None, Some(interval))?;
        Ok(options.record()?)
    }

    fn options(
        self,
        settings: &RecordingSettings,
        target: Target,
        while_running: Option<Vec<String>>,
        interval: Option<RunInterval>,
    ) -> anyhow::Result<SourceOptions> {
        let source = match self {
            SampledSource::Clock => Source::Clock,
            SampledSource::Events => Source::Pmu,
        };
        prepare::refuse_unused(settings, source)?;
        prepare::refuse_regions_of_running(settings, &target)?;
        prepare::refuse_stacks(settings)?;
        let output = settings.output.clone();
        let ring_pages = prepare::ring_pages(settings);
        let stacks = prepare::stacks(settings);
        let overhead = settings.overhead.map(|percent| percent.0 / 100.0);
        let regions = settings.regions.clone();
        Ok(match self {
            SampledSource::Clock => SourceOptions::Clock(clock::ClockOptions {
                target,
                while_running,
                output,
                period_ns: 1_000_000_000 / settings.frequency.unwrap_or(DEFAULT_CLOCK_HERTZ),
                ring_pages,
                keep_registers: settings.registers,
                stacks,
                overhead,
                regions,
                interval,
            }),
            SampledSource::Events => SourceOptions::Events(SamplingOptions {
                target,
                while_running,
                events: chosen(settings)?,
                output,
                ring_pages,
                registers: settings.registers,
                keep_registers: settings.registers,
                physical: settings.physical,
                stacks,
                overhead,
                whole_processors: false,
                tracing: None,
                regions,
                source: SourceKind::Pmu,
                interval,
            }),
        })
    }
}

/// Options of the source that samples.
enum SourceOptions {
    Clock(clock::ClockOptions),
    Events(SamplingOptions),
}

impl SourceOptions {
    fn record(&self) -> memgauge_live::Result<SamplingOutcome> {
        match self {
            SourceOptions::Clock(options) => clock::record(options),
            SourceOptions::Events(options) => sampling::record(options),
        }
    }
}

fn chosen(settings: &RecordingSettings) -> anyhow::Result<Vec<(Event, SamplingRate)>> {
    if settings.events.is_empty() {
        return Err(usage(
            "failed to sample: name an event with -e, as in -e page-faults or -e cpu/mem-loads/P \
             (`memgauge list` has names, `memgauge doctor` says what works here)",
        ));
    }
    let groups = events::parse(&settings.events.join(","), &Pmus::default())?;
    let rate = |event: &Event| match (settings.period, settings.frequency) {
        (Some(period), _) => SamplingRate::Period(period),
        (None, Some(hertz)) => SamplingRate::Frequency(hertz),
        (None, None) => default_rate(event),
    };
    let all = groups.into_iter().flat_map(|group| group.events);
    Ok(all.map(|event| (event.clone(), rate(&event))).collect())
}

/// How the program ended. memgauge does not report the end of programs that it attached to.
///
/// # Errors
/// The recording could not be written in full.
pub(crate) fn ended(outcome: sampling::SamplingOutcome) -> anyhow::Result<CommandEnd> {
    match &outcome.unwritten {
        Some(unwritten) => Err(lacking(unwritten, outcome.end.as_ref())),
        None => Ok(outcome.end.unwrap_or(CommandEnd::Exited(0))),
    }
}

/// Prints the report's notes that the user should see at once.
pub(crate) fn print_notes(output: &Path) -> anyhow::Result<()> {
    let summary = summarise_end(&Recording::open(output)?)?;
    for note in sampling_notes(&summary) {
        eprintln!("memgauge: {note}");
    }
    for loss in loss_sentences(&summary) {
        eprintln!("memgauge: lost or left out: {loss}");
    }
    Ok(())
}
