//! `memgauge import`: converts recordings of other tools.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use memgauge_analyze::{Summary, summarise_end};
use memgauge_console::outcome::Exit;
use memgauge_console::quantities::spoken_bytes;
use memgauge_console::terminal;
use memgauge_import::{self as import, Input, TextInput};
use memgauge_recording::Recording;
use memgauge_report::{as_typed, import_json, import_text};

use crate::units::recording;
use crate::{names, record};

const EXAMPLES: &str = "\
Examples:
  memgauge import perf.data                  to memgauge.mg
  memgauge import perf.data -o run.mg && memgauge report run.mg
  perf record -o - -- ./prog | memgauge import - -o run.mg
  memgauge import callgrind.out.123          also cachegrind's; lackey's and drcachesim's traces";

/// Convert a recording of another tool to a recording of memgauge
///
/// perf's, profiles of valgrind's callgrind and cachegrind, and traces of accesses as text:
/// valgrind's lackey (--trace-mem=yes) and the view of drcachesim.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Import {
    /// Output of `perf record`: a file, a directory (`--threads`), a pipe, or `-` for standard
    /// input; or a text file of another tool. Files and pipes may be compressed by gzip, bzip2, xz
    /// or zstd
    #[arg(value_name = "FILE", default_value = "perf.data")]
    input: PathBuf,
    /// Directory to write the recording to
    #[arg(short, long, value_name = "DIR", default_value = "memgauge.mg", value_parser = recording)]
    output: PathBuf,
    /// Look for programs and libraries below this directory, which has the file system of the
    /// machine that was recorded
    #[arg(long, value_name = "DIR")]
    symfs: Option<PathBuf>,
    /// Replace a recording that exists, instead of keeping it as DIR.old
    #[arg(short, long)]
    force: bool,
    /// Print what was imported as JSON
    #[arg(long)]
    json: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

/// Imports and prints a summary.
pub(crate) fn import(args: &Import) -> anyhow::Result<Exit> {
    import_into(args).with_context(|| format!("failed to import `{}`", args.input.display()))?;
    let summary = summarise_end(&Recording::open(&args.output)?)?;
    let problems = summary.import.iter().flat_map(|import| &import.problems);
    for problem in problems.clone() {
        eprintln!(
            "memgauge: {}: {problem}; the records before it are imported",
            args.input.display()
        );
    }
    if !args.quiet {
        terminal::print(&match args.json {
            true => import_json(&summary),
            false => summary_text(args, &summary),
        })?;
    }
    Ok(Exit::after_reading(problems.count() > 0))
}

fn import_into(args: &Import) -> anyhow::Result<()> {
    let folder = args.output.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    if !args.input.is_file() && !args.input.is_dir() {
        // A pipe ends with perf, which also receives an interrupt from the keyboard.
        terminal::catch_interrupts()?;
    }
    // Read before making room, so that a failed import replaces nothing.
    let folder = folder.unwrap_or(Path::new("."));
    if let Some(text) = TextInput::open(&args.input, folder)? {
        let _output = record::make_room(&args.output, args.force)?;
        text.import(&args.output)?;
        names::add(&args.output);
        return Ok(());
    }
    let mut input = Input::open(&args.input, folder)?;
    input.symfs.clone_from(&args.symfs);
    import::check(&mut input).map_err(or_of_no_tool)?;
    let _output = record::make_room(&args.output, args.force)?;
    import::import(&mut input, &args.output)?;
    names::add(&args.output);
    Ok(())
}

/// Error for input that is neither perf's nor another tool's.
fn or_of_no_tool(why: memgauge_import::Error) -> anyhow::Error {
    let text = why.to_string();
    match text.contains("is not perf data") {
        true => anyhow::anyhow!(
            "{text}, nor is it a text of callgrind, cachegrind, lackey or drcachesim"
        ),
        false => why.into(),
    }
}

fn summary_text(args: &Import, summary: &Summary) -> String {
    let style = terminal::style(terminal::stdout_is_terminal());
    format!(
        "{}\nRecording: {} ({}); show it with `memgauge report {}`\n",
        import_text(summary, &style),
        args.output.display(),
        spoken_bytes(summary.own_cost.recording_bytes),
        as_typed([&*args.output.to_string_lossy()])
    )
}
