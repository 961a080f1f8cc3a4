//! `memgauge advise`: what limits a program, and what changes of the machine would gain.

use std::path::PathBuf;

use memgauge_analyze::{Options, summarise};
use memgauge_machine::WhatIf;
use memgauge_recording::Recording;
use memgauge_report::advice_text;
use memgauge_symbols::Symbols;

use crate::args::{Settings, Source};
use crate::outcome::{Exit, usage};
use crate::units::Changes;
use crate::{record, terminal};

/// Show what limits a program and what changes of the machine gain, as far as the model knows
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
        let style = terminal::style(terminal::stdout_is_terminal());
        let recording = Recording::open(&args.recording)?;
        terminal::print(&advice(&recording, &style)?)?;
        return Ok(Exit::Success);
    }
    let mut settings = args.settings.clone();
    let is_modelled = matches!(settings.source, Source::Auto | Source::Emulate);
    if settings.what_if.is_empty() && is_modelled {
        settings.what_if = vec![Changes(WhatIf::COMMON.to_vec())];
    }
    let end = record::run(&settings, &args.command, !settings.quiet)?;
    let recording = Recording::open(&settings.output)?;
    // Standard output is the program's.
    let style = terminal::style(terminal::stderr_is_terminal());
    eprint!("{}", advice(&recording, &style)?);
    if !settings.quiet {
        eprintln!("\nrecording: {}", settings.output.display());
    }
    Ok(Exit::of(&end))
}

fn advice(recording: &Recording, style: &memgauge_report::Style) -> anyhow::Result<String> {
    let mut symbols = Symbols::of(recording.path());
    let summary = summarise(recording, &mut symbols, &Options::default())?;
    Ok(advice_text(&summary, style))
}
