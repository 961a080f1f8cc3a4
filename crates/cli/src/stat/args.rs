//! The command line of `memgauge stat`. The doc comments are the help text.

use std::path::PathBuf;

use clap::Args;
use memgauge_console::quantities::{Duration, seed};
use memgauge_console::target::Targets;

use crate::units::{pages, recording};

const EXAMPLES: &str = "\
Examples:
  memgauge stat -- ./prog                      totals
  memgauge stat -I 100us -o s.mg -- ./prog     a row every 100 µs, recorded
  memgauge stat -I 10 --csv=s.csv -p 1234      a running process, as CSV
  memgauge stat -e '{cycles,instructions}' -a -- sleep 5
  memgauge stat -e mem:0x601040/8:w -- ./prog  how often 8 bytes are written";

/// Count events of a program, of processes, processors or control groups
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Stat {
    /// Events as in perf: names, {groups}, pmu/terms/, rHEX, mem:ADDR/LEN:rwx,
    /// system:tracepoint, with modifiers (:u :k :p); `memgauge list` has names
    #[arg(short, long = "event", value_name = "EVENTS")]
    pub(crate) events: Vec<String>,
    /// Print a row every TIME (100us, 1ms; a bare number is milliseconds), at least 10us
    #[arg(short = 'I', long, value_name = "TIME", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
    /// Directory to record totals and, with -I, the series to
    #[arg(short, long, value_name = "DIR", value_parser = recording)]
    pub(crate) output: Option<PathBuf>,
    /// Replace an existing recording instead of keeping it as DIR.old
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Write CSV, to standard error or to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) csv: Option<PathBuf>,
    /// Write JSON, to standard error or to FILE; with -I one line per row
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) target: Targets,
    /// Where counts come from
    #[arg(long, value_enum, default_value_t)]
    pub(crate) source: StatSource,
    /// With source emulate, seed of the program's random numbers, as in `memgauge record`
    /// [default: random]
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Pages in the ring buffer of each processor, a power of two
    #[arg(long, value_name = "PAGES", default_value_t = memgauge_live::stat::RING_PAGES, value_parser = pages)]
    pub(crate) ring: usize,
    /// Follow new threads one by one, as on kernels before 6.13, which cannot
    /// inherit counters that are read with samples
    #[arg(long, requires = "interval", hide = true)]
    pub(crate) no_inherit: bool,
    /// Measure the cost of the timer alone at the end (takes a quarter of a second)
    #[arg(long, requires = "interval")]
    pub(crate) timer_cost: bool,
    /// Print no report
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Program to run. With -p, -a and similar, counting ends when it does
    #[arg(
        trailing_var_arg = true,
        value_name = "CMD",
        required_unless_present = "target"
    )]
    pub(crate) command: Vec<String>,
}

/// Source of the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StatSource {
    /// Counters of the kernel and of the processor's PMU, if there is one
    #[default]
    Pmu,
    /// The modelled machine, in virtual time
    Emulate,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval: Duration = text.parse()?;
    match interval.ns >= memgauge_live::stat::MIN_INTERVAL_NS {
        true => Ok(interval),
        false => {
            Err("the interval must be at least 10us, the minimum of the kernel's timer".to_owned())
        }
    }
}
