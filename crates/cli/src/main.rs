//! The binary `memgauge`: how programs use memory.
//!
//! Each verb is one file. The verbs share the path from a source through a recording and its
//! analysis to a report, and the exit codes of [`outcome::Exit`].
#![forbid(unsafe_code)]

// Its macros for standard error replace those of the standard library.
#[macro_use]
extern crate memgauge_console;

mod advise;
mod args;
mod bandwidth;
mod collect;
mod ctl;
mod diff;
mod doctor;
mod export;
mod fetched;
mod fleet;
mod heap;
mod import;
mod io;
mod list;
mod malloc;
mod manual;
mod names;
mod pack;
mod page;
mod prepare;
mod progress;
mod record;
mod report;
mod sample;
mod serve;
mod stat;
mod type_layout;
mod units;
mod view;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use memgauge_console::outcome::Exit;
use memgauge_console::quantities::width;
use memgauge_console::{access, outcome, terminal};
use memgauge_curves as mrc;
use memgauge_host::sys::process;
use memgauge_top::{self as top, numa};

const EXAMPLES: &str = "\
Examples:
  memgauge -- xz -k file            record a program and show what its memory did
  memgauge record -o r.mg -- make   record only, children included
  memgauge report r.mg              show a recording
  memgauge advise -- ./prog         what limits a program, and what would help
  memgauge heap -- ./prog           which calls allocate the memory in use at the peak
  memgauge top                      busy processes, their code and data, live
  memgauge io                       bytes by process and device, live
  memgauge list                     list events and machines
  memgauge doctor                   check what works on this machine";

/// Shows how programs use memory: which cache levels serve their accesses, how
/// many bytes they move, and which code and data do it.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXAMPLES, args_conflicts_with_subcommands = true,
          subcommand_negates_reqs = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Shorten names in tables to fit N columns, at least 80 [default: the terminal's width or
    /// COLUMNS; output that is not a terminal is not shortened]
    #[arg(long, value_name = "N", global = true, value_parser = width)]
    width: Option<u16>,
    /// Let other users read the recording and other written files, within the umask [default:
    /// only the owner, which under sudo is the calling user]
    #[arg(long, global = true)]
    shared: bool,
    #[command(flatten)]
    record: args::Launch,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a program and record what its memory does
    Record(args::Record),
    /// Show a recording
    Report(args::Report),
    Advise(advise::Advise),
    Heap(heap::Heap),
    /// Show a recording in a browser, with any part of it in detail
    View(view::View),
    /// Compare runs with a first one, and fail if a limit is exceeded
    Diff(diff::Diff),
    Fleet(fleet::Fleet),
    /// Write a recording in the format of another tool: pprof, callgrind, Perfetto, CSV
    Export(export::Export),
    Pack(pack::Pack),
    Top(top::Top),
    Numa(numa::Numa),
    Serve(serve::Serve),
    Ctl(ctl::Ctl),
    /// Account I/O: bytes by process and device
    Io(args::Io),
    /// Convert a recording of perf or another tool
    Import(import::Import),
    /// Count events: totals, or a row every 100 us
    Stat(stat::Stat),
    /// Show bandwidth over time, from the times of counter overflows
    Bandwidth(bandwidth::Bandwidth),
    /// Measure the losses of overflow records at each period, for `bandwidth` to correct
    Calibrate(bandwidth::Calibrate),
    Mrc(Box<mrc::Mrc>),
    Partition(mrc::Partition),
    /// List events and modelled machines
    List(list::List),
    /// Check which sources work on this machine, and how to get the others
    Doctor(args::Json),
    /// Print a completion script for a shell
    Completions(manual::Completions),
    /// Write the manual pages
    #[command(hide = true)]
    Man(manual::Man),
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    terminal::set_width(cli.width.map(usize::from));
    access::set_shared(cli.shared);
    match cli.verb {
        Some(Verb::Record(args)) => record::record(&args),
        Some(Verb::Report(args)) => report::report(&args),
        Some(Verb::Advise(args)) => advise::advise(&args),
        Some(Verb::Heap(args)) => heap::heap(&args),
        Some(Verb::View(args)) => view::view(&args),
        Some(Verb::Diff(args)) => diff::diff(&args),
        Some(Verb::Fleet(args)) => fleet::fleet(&args),
        Some(Verb::Export(args)) => export::export(&args),
        Some(Verb::Pack(args)) => pack::pack(&args),
        Some(Verb::Top(args)) => top::top(&args),
        Some(Verb::Numa(args)) => numa::numa(&args),
        Some(Verb::Serve(args)) => serve::serve(&args),
        Some(Verb::Ctl(args)) => ctl::ctl(&args),
        Some(Verb::Io(args)) => io::io(&args),
        Some(Verb::Import(args)) => import::import(&args),
        Some(Verb::Stat(args)) => stat::stat(&args),
        Some(Verb::Bandwidth(args)) => bandwidth::bandwidth(&args),
        Some(Verb::Calibrate(args)) => bandwidth::calibrate(&args),
        Some(Verb::Mrc(args)) => mrc::mrc(&args),
        Some(Verb::Partition(args)) => mrc::partition(&args),
        Some(Verb::List(args)) => list::list(&args),
        Some(Verb::Doctor(args)) => doctor::doctor(&args),
        Some(Verb::Completions(args)) => manual::completions(&args, Cli::command()),
        Some(Verb::Man(args)) => manual::man(&args, Cli::command()),
        None => record::record_and_report(&cli.record),
    }
}

const MRC_MACHINE: &str = "--machine does not apply to mrc: the curve covers every cache size; \
                           use --block for the block size, `--sizes 32KiB,1MiB` to list sizes";

/// Returns the command that was probably meant, for mistakes that clap explains badly: a missing
/// program, a program without `--`, and options before the subcommand.
fn hint(error: &clap::Error, words: &[String]) -> Option<String> {
    if error.kind() == ErrorKind::InvalidUtf8 {
        let word = words.iter().find(|word| word.contains('\u{fffd}'))?;
        return Some(format!(
            "failed to read `{word}`: arguments must be UTF-8; rename the recording, or let a shell \
             insert the program's argument, for example `memgauge -- sh -c 'cat caf?.txt'`"
        ));
    }
    if let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::MissingRequiredArgument
        && missing.iter().any(|name| name.starts_with("<CMD>"))
        && let Some(verb) = words
            .first()
            .filter(|verb| ["record", "stat"].contains(&verb.as_str()))
    {
        return Some(format!(
            "no program given; use `memgauge {verb} -- PROGRAM`, or `-p PID` for a running one \
             (memgauge {verb} --help)"
        ));
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let has_program = words.iter().any(|word| word == "--");
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let command = Cli::command();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let verbs: Vec<&str> = verbs.map(clap::Command::get_name).collect();
    let verb = words.iter().position(|word| verbs.contains(&word.as_str()));
    match verb {
        Some(at) if words[at] == "mrc" && word.starts_with("--machine") => {
            Some(MRC_MACHINE.to_owned())
        }
        Some(at) if at > 0 && words[at] == *word && !has_program => {
            let (before, behind) = (words[..at].join(" "), words[at + 1..].join(" "));
            let line = format!("memgauge {word} {before} {behind}");
            Some(format!(
                "options go after the subcommand: `{}`",
                line.trim_end()
            ))
        }
        Some(_) => None,
        None if words.iter().find(|word| !word.starts_with('-')) != Some(word) => None,
        None => {
            let alike = |verb: &&str| (strsim::jaro_winkler(verb, word) * 1000.0) as u64;
            let near = verbs.iter().copied().max_by_key(alike);
            let near = near.filter(|verb| alike(verb) >= 800);
            let near = near.map_or(String::new(), |verb| format!("; did you mean `{verb}`?"));
            let program = match has_program {
                true => String::new(),
                false => format!("; to run a program, put `--` before it: `memgauge -- {word}`"),
            };
            Some(format!("unknown subcommand `{word}`{near}{program}"))
        }
    }
}

/// Prints help, the version, or clap's message about the command line.
fn print_clap(words: &clap::Error) -> ExitCode {
    let printed = words.print().and_then(|()| std::io::stdout().flush());
    match printed {
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => outcome::explain(
            &anyhow::Error::new(why).context("failed to write to the standard output"),
        ),
        _ => ExitCode::from(words.exit_code() as u8),
    }
}

/// Minimum stack of the first thread, and the stack of the thread that replaces it if `ulimit -s`
/// allows less.
const MIN_STACK_BYTES: u64 = 1 << 20;
const STACK_BYTES: usize = 8 << 20;

/// Minimum of `ulimit -d`. With less, memgauge could not even allocate an error message.
const MIN_DATA_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    outcome::explain_panics();
    std::panic::catch_unwind(start).unwrap_or_else(|_| outcome::failed())
}

fn start() -> ExitCode {
    memgauge_host::sys::signals::wait_for_children();
    // Every verb writes files, or to a standard output that may be a file.
    if let Err(why) = memgauge_host::sys::signals::outlive_file_limit() {
        return outcome::explain(&anyhow::Error::new(why).context("failed to handle a signal"));
    }
    if process::data_limit().is_some_and(|bytes| bytes < MIN_DATA_BYTES) {
        return outcome::explain(&anyhow::anyhow!(
            "failed to start: the limit of the data segment is below {} MiB; raise it with `ulimit -d \
             unlimited`",
            MIN_DATA_BYTES >> 20
        ));
    }
    let limit = process::stack_limit();
    if limit.is_none_or(|bytes| bytes >= MIN_STACK_BYTES) {
        return begin();
    }
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    match thread.spawn(begin).map(std::thread::JoinHandle::join) {
        Ok(ended) => ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(why) => outcome::explain(&anyhow::Error::new(why).context("failed to start a thread")),
    }
}

fn begin() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            // clap suggests to move an unknown option behind `--`, which would run it as a program.
            if error.kind() == ErrorKind::UnknownArgument {
                error.remove(ContextKind::Suggested);
            }
            let words: Vec<OsString> = std::env::args_os().skip(1).collect();
            let words: Vec<_> = words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            return match hint(&error, &words) {
                Some(hint) => outcome::explain(&outcome::usage(hint)),
                None => print_clap(&error),
            };
        }
    };
    match run(cli) {
        Ok(exit) => exit.code(),
        Err(error) => outcome::explain(&error),
    }
}
