//! `--source malloc`: allocations of a program that runs natively.

use memgauge_console::Source;
use memgauge_console::outcome::usage;
use memgauge_console::terminal;
use memgauge_emulate::{resolve, would_gain_rights};
use memgauge_heap::{DEFAULT_PERIOD, Options, check_program, record};
use memgauge_trace::CommandEnd;

use crate::args::RecordingSettings;
use crate::{names, prepare, sample};

/// Records the allocations of a command.
pub(crate) fn run(
    settings: &RecordingSettings,
    command: &[String],
    verbose: bool,
) -> anyhow::Result<CommandEnd> {
    prepare::refuse_unused(settings, Source::Malloc)?;
    // Check before replacing anything, so that a command that cannot run costs no recording.
    let (program, _) = resolve(command)?;
    check_program(&program)?;
    if would_gain_rights(&program) {
        return Err(usage(format!(
            "failed to record the heap of `{}`: it is set-user-ID or has capabilities, and such \
             programs ignore preloaded libraries; run it as its owner, or use source emulate",
            program.display()
        )));
    }
    let options = Options {
        command: command.to_vec(),
        output: settings.output.clone(),
        period: settings.period.unwrap_or(DEFAULT_PERIOD),
    };
    let _output = prepare::make_room(&settings.output, settings.force)?;
    terminal::catch_interrupts()?;
    let outcome = record(&options)?;
    names::add(&settings.output);
    for note in &outcome.notes {
        eprintln!("memgauge: {note}");
    }
    if verbose {
        sample::print_notes(&settings.output)?;
    }
    Ok(outcome.end)
}
