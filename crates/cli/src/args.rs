//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::units::{Duration, EventSpec};

const EXAMPLES: &str = "\
Examples:
  memgauge -- xz -k file            record a program and show what its memory did
  memgauge record -o r.mg -- make   record only, children included
  memgauge report r.mg              show a recording
  memgauge list                     the events and machines there are
  memgauge doctor                   what this machine offers";

/// Shows how programs use memory: which cache levels serve their accesses, how
/// many bytes they move, and which code and data do it.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXAMPLES, args_conflicts_with_subcommands = true,
          subcommand_negates_reqs = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,
    #[command(flatten)]
    pub(crate) record: Launch,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a program and record what its memory does
    Record(Record),
    /// Show a recording
    Report(Report),
    /// Show how many misses a memory of any size would have: a miss-rate curve
    Mrc(crate::mrc::Mrc),
    /// Divide memory between programs by their miss-rate curves
    Partition(crate::mrc::Partition),
    /// List events and modelled machines
    List(Json),
    /// Tell what this machine offers, and how to get what is missing
    Doctor(Json),
}

/// Where events come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// The best there is on this machine
    #[default]
    Auto,
    /// Run the program under QEMU and model a machine
    Emulate,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Settings {
    /// Directory to write the recording to
    #[arg(short, long, value_name = "DIR", default_value = "memgauge.mg")]
    pub(crate) output: PathBuf,
    /// Replace the recording if it exists
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Where events come from
    #[arg(long, value_enum, default_value_t)]
    pub(crate) source: Source,
    /// Machine to model: `host`, a name from `memgauge list`, or a JSON file
    #[arg(long, value_name = "NAME|FILE", default_value = "host")]
    pub(crate) machine: String,
    /// Hardware prefetchers to model: next-line, stride (none by default)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) prefetch: Vec<Prefetcher>,
    /// Sample these events: NAME or NAME:PERIOD
    #[arg(
        short,
        long = "event",
        value_name = "EVENTS",
        value_delimiter = ',',
        default_value = "llc.miss:127,l1d.miss:4099"
    )]
    pub(crate) events: Vec<EventSpec>,
    /// Period of events named without one
    #[arg(short = 'c', long = "count", value_name = "PERIOD", default_value_t = 1009,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) period: u64,
    /// Length of a series interval in virtual time (100us, 1ms; a bare number is milliseconds)
    #[arg(short = 'I', long, value_name = "TIME", default_value = "1ms")]
    pub(crate) interval: Duration,
    /// No progress and no closing line
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Prefetcher {
    /// The line after one that missed
    NextLine,
    /// Along a distance seen twice in a page
    Stride,
}

/// `memgauge -- CMD`: record and summarise.
#[derive(Debug, Args)]
pub(crate) struct Launch {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Program to run, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Record {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Program to run and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Recording to show
    #[arg(
        value_name = "DIR",
        default_value = "memgauge.mg",
        conflicts_with = "input"
    )]
    pub(crate) recording: PathBuf,
    /// The same, as perf spells it
    #[arg(short, long, value_name = "DIR")]
    pub(crate) input: Option<PathBuf>,
    /// Print JSON (docs/metrics.md describes it)
    #[arg(long)]
    pub(crate) json: bool,
    /// Rows in each table
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) rows: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
