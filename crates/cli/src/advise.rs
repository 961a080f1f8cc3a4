//! `memgauge advise`: what limits a program, and what changes of the machine would gain.

use std::path::PathBuf;

use memgauge_analyze::{Options, summarise};
use memgauge_console::Source;
use memgauge_console::outcome::{Exit, usage};
use memgauge_recording::Recording;
use memgauge_report::advice_text;
use memgauge_symbols::Symbols;

use crate::args::Settings;
use crate::units::Changes;
use crate::{record, sample};

/// Show what limits a program and what another machine would gain
#[derive(Debug, clap::Args)]
pub(crate) struct Advise {
    /// Recording to advise on
    #[arg(
        value_name = "DIR",
        default_value = "memgauge.mg",
        conflicts_with = "command"
    )]
    recording: PathBuf,
    #[command(flatten)]
    settings: Settings,
    /// Record this program with `--what-if all`, unless other changes are given
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(crate) fn advise(args: &Advise) -> anyhow::Result<Exit> {
    if args.command.is_empty() {
        if !args.settings.what_if.is_empty() {
            return Err(usage(
                "failed to model other machines: they are fed while a program runs: use `memgauge \
                 advise --what-if … -- CMD`",
            ));
        }
        return record::show(&args.recording, advice);
    }
    let mut settings = args.settings.clone();
    if settings.what_if.is_empty() && models_whole_run(&settings) {
        settings.what_if = vec![Changes::common()];
    }
    record::run_and_show(&settings, &args.command, advice)
}

/// Whether other machines can be fed the run: only the emulator sees every access, and `--sets`,
/// `--region` and `--function` leave some out.
fn models_whole_run(settings: &Settings) -> bool {
    let is_emulated = match settings.source {
        Source::Auto => !sample::is_live(settings),
        source => source == Source::Emulate,
    };
    is_emulated
        && settings.sets.is_none()
        && settings.regions.is_empty()
        && settings.functions.is_empty()
}

fn advice(recording: &Recording, style: &memgauge_report::Style) -> anyhow::Result<String> {
    let mut symbols = Symbols::of(recording.path());
    let summary = summarise(recording, &mut symbols, &Options::default())?;
    if summary.io.is_some() {
        return Err(usage(format!(
            "failed to advise on `{}`: it is a recording of I/O, without memory accesses; use \
             `memgauge report` for it",
            recording.path().display()
        )));
    }
    Ok(advice_text(&summary, style))
}
