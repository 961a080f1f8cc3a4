//! `memgauge advise`: what limits a program, and what other layouts of its types and other machines
//! would gain.
//!
//! A layout can only be modelled by name, and which types a program waits for is known when it has
//! run. A program is therefore run again if it has such types. The user sees that before it starts.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Seek, SeekFrom, stdin};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use memgauge_analyze::{Options, Summary, layouts_to_try, summarise};
use memgauge_console::Source;
use memgauge_console::outcome::{Exit, usage};
use memgauge_recording::Recording;
use memgauge_report::{advice_text, as_typed};
use memgauge_symbols::Symbols;
use memgauge_trace::CommandEnd;

use crate::args::RecordingSettings;
use crate::units::{Changes, changes};
use crate::{record, sample};

/// Show what limits a program and what other layouts of its types and other machines would gain
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
    settings: RecordingSettings,
    /// Run the program only once: name the layouts of types that are worth modelling, but model none
    #[arg(long, requires = "command")]
    once: bool,
    /// Record this program with `--what-if all`, and again with other layouts of the types that it
    /// waits for, without its output. With --what-if: once, with these changes
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
    if args.settings.what_if.is_empty() && models_whole_run(&args.settings) {
        return choose_and_show(args);
    }
    record::run_and_show(&args.settings, &args.command, advice)
}

/// Records a program with the common changes, and again with the layouts that may gain something.
fn choose_and_show(args: &Advise) -> anyhow::Result<Exit> {
    let mut settings = args.settings.clone();
    settings.what_if = vec![Changes::common()];
    let input = ProgramInput::here();
    let end = record::run(&settings, &args.command, !settings.quiet)?;
    let layouts = layouts_to_try(&summary_of(&Recording::open(&settings.output)?)?);
    let chosen = changes(&layouts.join(","))
        .ok()
        .filter(|_| !layouts.is_empty());
    if let Some(chosen) = chosen {
        let listed = layouts.join(",");
        let obstacle = match (args.once, &end, &input) {
            (true, ..) => Some("--once"),
            (_, CommandEnd::Exited(0), ProgramInput::Lost) => {
                Some("its input cannot be read again")
            }
            (_, CommandEnd::Exited(0), _) => None,
            _ => Some("it failed"),
        };
        if let Some(why) = obstacle {
            let command = args.command.iter().map(String::as_str);
            let again = ["memgauge", "advise", "--what-if", &listed, "--"];
            eprintln!(
                "memgauge: the program is not run again with other layouts of its types ({why}): to \
                 model them, use `{}`",
                as_typed(again.into_iter().chain(command))
            );
        } else {
            eprintln!("memgauge: running the program again, without its output, to model {listed}");
            settings.what_if.push(chosen);
            record_again(&settings, &args.command, &input)?;
        }
    }
    record::show_after(&settings, end, advice)
}

/// Replaces the recording by one of another run, if that ends as the first one did.
fn record_again(
    settings: &RecordingSettings,
    command: &[String],
    input: &ProgramInput,
) -> anyhow::Result<()> {
    input.rewind()?;
    let mut again = settings.clone();
    again.output = beside(&settings.output);
    again.force = true;
    again.discards_output = true;
    let end = record::run(&again, command, !settings.quiet)?;
    if end != CommandEnd::Exited(0) {
        eprintln!(
            "memgauge: the second run ended otherwise than the first one, so its layouts are not shown; \
             its recording is `{}`",
            again.output.display()
        );
        return Ok(());
    }
    let replaced = std::fs::remove_dir_all(&settings.output)
        .and_then(|()| std::fs::rename(&again.output, &settings.output));
    replaced.with_context(|| {
        format!(
            "failed to move the recording `{}` to `{}`",
            again.output.display(),
            settings.output.display()
        )
    })
}

/// `x.mg` becomes `x.mg.again`.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".again");
    PathBuf::from(name)
}

/// Standard input of a program that may run twice.
enum ProgramInput {
    /// A file, and the offset at which the program starts to read.
    File(File, u64),
    /// A terminal, which the program is not expected to read to its end.
    Terminal,
    /// A pipe or a socket. Input that the program has read is gone.
    Lost,
}

impl ProgramInput {
    fn here() -> ProgramInput {
        if stdin().is_terminal() {
            return ProgramInput::Terminal;
        }
        let Ok(copy) = stdin().as_fd().try_clone_to_owned() else {
            return ProgramInput::Terminal;
        };
        let mut file = File::from(copy);
        match file.stream_position() {
            Ok(offset) => ProgramInput::File(file, offset),
            Err(_) => ProgramInput::Lost,
        }
    }

    fn rewind(&self) -> anyhow::Result<()> {
        let ProgramInput::File(file, offset) = self else {
            return Ok(());
        };
        // Copies of a descriptor share the offset.
        let mut file: &File = file;
        file.seek(SeekFrom::Start(*offset))
            .context("failed to rewind standard input")?;
        Ok(())
    }
}

/// Whether other machines can be fed the run: only the emulator sees every access, and `--sets`,
/// `--region` and `--function` leave some out.
fn models_whole_run(settings: &RecordingSettings) -> bool {
    let is_emulated = match settings.source {
        Source::Auto => !sample::is_live(settings),
        source => source == Source::Emulate,
    };
    is_emulated
        && settings.sets.is_none()
        && settings.regions.is_empty()
        && settings.functions.is_empty()
}

fn summary_of(recording: &Recording) -> anyhow::Result<Summary> {
    let mut symbols = Symbols::of(recording.path());
    Ok(summarise(recording, &mut symbols, &Options::default())?)
}

fn advice(recording: &Recording, style: &memgauge_report::Style) -> anyhow::Result<String> {
    let summary = summary_of(recording)?;
    if summary.io.is_some() {
        return Err(usage(format!(
            "failed to advise on `{}`: it is a recording of I/O, without memory accesses; use \
             `memgauge report` for it",
            recording.path().display()
        )));
    }
    Ok(advice_text(&summary, style))
}
