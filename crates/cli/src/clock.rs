//! `--source clock`: timer samples with data addresses from registers.

use memgauge_live::clock::{self, Options};
use memgauge_live::sampling::{Interval, Outcome};
use memgauge_live::target::Target;
use memgauge_trace::CommandEnd;

use crate::args::{Settings, Source};
use crate::{names, prepare, sample, terminal};

/// Default number of samples per second.
const DEFAULT_HERTZ: u64 = 1000;

/// Samples a command, or running processes.
pub(crate) fn run(
    settings: &Settings,
    (target, while_running): (Target, Option<Vec<String>>),
    verbose: bool,
) -> anyhow::Result<CommandEnd> {
    let options = options(settings, target, while_running)?;
    let _output = prepare::make_room(&settings.output, settings.force)?;
    terminal::catch_interrupts()?;
    let outcome = clock::record(&options)?;
    names::add(&settings.output);
    if verbose {
        sample::print_notes(&settings.output)?;
    }
    sample::ended(outcome)
}

/// Samples for one interval of a continuous collection.
pub(crate) fn record_interval(
    settings: &Settings,
    target: Target,
    interval: Interval,
) -> anyhow::Result<Outcome> {
    let mut options = options(settings, target, None)?;
    options.interval = Some(interval);
    Ok(clock::record(&options)?)
}

fn options(
    settings: &Settings,
    target: Target,
    while_running: Option<Vec<String>>,
) -> anyhow::Result<Options> {
    prepare::refuse_unused(settings, Source::Clock)?;
    prepare::refuse_regions_of_running(settings, &target)?;
    prepare::refuse_stacks(settings)?;
    Ok(Options {
        target,
        while_running,
        output: settings.output.clone(),
        period_ns: 1_000_000_000 / settings.frequency.unwrap_or(DEFAULT_HERTZ),
        ring_pages: prepare::ring_pages(settings),
        keep_registers: settings.registers,
        stacks: prepare::stacks(settings),
        overhead: settings.overhead.map(|percent| percent.0 / 100.0),
        regions: settings.regions.clone(),
        interval: None,
    })
}
