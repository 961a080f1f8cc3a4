//! The command line of `memgauge bandwidth` and `memgauge calibrate`. The doc
//! comments are the help text.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use memgauge_console::quantities::{Duration, nanoseconds};
use memgauge_console::target::Targets;
use memgauge_trace::OverflowBlock;

use crate::args::Modelled;
use crate::units::{DeliveryName, EventSpec, recording};

const EXAMPLES: &str = "\
Examples:
  memgauge bandwidth -- ./prog                     run it and show its curve
  memgauge bandwidth -c 100 --delivery interrupt -- ./prog
  memgauge bandwidth -e page-faults -c 1 -- ./prog page faults of any program
  memgauge bandwidth --source pmu -c 1000 -p 4711  misses of a running process (with a PMU)
  memgauge bandwidth -i bandwidth.mg --from 10ms --to 12ms --bin 10us
  memgauge bandwidth -i a.mg --against b.mg        two runs, by instructions executed
  memgauge bandwidth -i bandwidth.mg --csv > curve.csv
  memgauge calibrate                               measure the losses, for the correction";

/// Maximum step to which times may be rounded, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resolution(pub(crate) u64);

impl FromStr for Resolution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("expected `exact` or a time from 1ns to 1024ns, not `{text}`");
        let ns = match text {
            "exact" => 1,
            _ => {
                let number = text.strip_suffix("ns").ok_or_else(refused)?;
                number.parse().map_err(|_| refused())?
            }
        };
        match ns {
            1..=OverflowBlock::RESOLUTION_NS => Ok(Resolution(ns)),
            _ => Err(refused()),
        }
    }
}

/// How losses are corrected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Correct {
    /// Use the machine's calibration, or else the memory counter, or else no correction.
    Auto,
    None,
    Calibration,
    Reference,
    /// Each record loses this number of events.
    Lost(f64),
}

impl FromStr for Correct {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Correct::Auto),
            "none" => Ok(Correct::None),
            "calibration" => Ok(Correct::Calibration),
            "reference" => Ok(Correct::Reference),
            number => match number.parse::<f64>() {
                Ok(lost) if lost.is_finite() && lost >= 0.0 => Ok(Correct::Lost(lost)),
                _ => Err("expected auto, none, calibration, reference or a number".to_owned()),
            },
        }
    }
}

/// Source of the overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceSource {
    /// The best source that works on this machine
    #[default]
    Auto,
    /// The modelled machine
    Emulate,
    /// Events of this machine: its processor's, or the kernel's
    Pmu,
}

/// Show bandwidth over time, from the times of counter overflows
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bandwidth {
    /// Recording to show, instead of running a program
    #[arg(short, long, value_name = "DIR", conflicts_with_all = ["command", "target"])]
    pub(crate) input: Option<PathBuf>,
    /// Directory to write the recording to
    #[arg(short, long, value_name = "DIR", default_value = "memgauge.mg", value_parser = recording)]
    pub(crate) output: PathBuf,
    /// Replace an existing recording instead of keeping it as DIR.old
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Source of overflows
    #[arg(long, value_enum, default_value_t)]
    pub(crate) source: TraceSource,
    /// How overflows become records: precise, precise-linux, interrupt, tagged, ideal
    /// (docs/machine-model.md)
    #[arg(long, value_name = "WAY", default_value = "precise")]
    pub(crate) delivery: DeliveryName,
    /// Event whose overflows are traced, of the modelled machine or as in perf [default: misses of
    /// the last-level cache]
    #[arg(short, long, value_name = "EVENT")]
    pub(crate) event: Option<String>,
    /// Bytes that one live event moves [default: a page for faults, else a cache line]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) bytes: Option<u64>,
    /// Read the counters of memory traffic from this file instead of this machine (docs/io.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) counters: Option<PathBuf>,
    /// Events between two overflows
    #[arg(short = 'c', long = "count", value_name = "PERIOD", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) period: u64,
    /// Interval at which reference counters are read (100us; a bare number is milliseconds)
    #[arg(short = 'I', long, value_name = "TIME", default_value = "100us")]
    pub(crate) interval: Duration,
    /// Precision of overflow times: `exact`, or a step to round down to. The step used is at most
    /// 1/32 of the usual distance between overflows
    #[arg(long, value_name = "exact|TIME", default_value = "1024ns")]
    pub(crate) resolution: Resolution,
    #[command(flatten)]
    pub(crate) modelled: Modelled,
    /// Correction of losses: auto, none, calibration, reference, or the events lost per record
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(crate) correct: Correct,
    /// Show only times from this one on (10ms; a bare number is milliseconds)
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    pub(crate) from: Option<u64>,
    /// Show only times before this one
    #[arg(long, value_name = "TIME", value_parser = nanoseconds)]
    pub(crate) to: Option<u64>,
    /// Width of the curve's windows, from 1us (100us; a bare number is milliseconds)
    #[arg(long, value_name = "TIME", default_value = "100us")]
    pub(crate) bin: Duration,
    /// Run the program N times, which gives totals a standard error. Keeps the last recording
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["input", "target"],
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,
    /// Compare with a second recording of the program, by instructions executed, not by time
    #[arg(long, value_name = "DIR", requires = "input",
          conflicts_with_all = ["command", "target"])]
    pub(crate) against: Option<PathBuf>,
    /// Rows in each table
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) rows: usize,
    /// Print the curve as CSV, one line per window
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print JSON (docs/metrics.md describes it)
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress and no closing line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) target: Targets,
    /// Program to run, after `--`
    #[arg(last = true, value_name = "CMD", required_unless_present_any = ["input", "target"])]
    pub(crate) command: Vec<String>,
}

/// Measure the losses of overflow records at each period; `bandwidth` corrects by them
#[derive(Debug, Args)]
pub(crate) struct Calibrate {
    /// Machine to model: `host`, a name from `memgauge list`, or a JSON file
    #[arg(long, value_name = "NAME|FILE", default_value = "host")]
    pub(crate) machine: String,
    /// How overflows become records: precise, precise-linux, interrupt, tagged
    #[arg(long, value_name = "WAY", default_value = "precise")]
    pub(crate) delivery: DeliveryName,
    /// Event to measure
    #[arg(short, long, value_name = "EVENT", default_value = "llc.miss")]
    pub(crate) event: EventSpec,
    /// Periods [default: 10 to 100 000]
    #[arg(short = 'c', long = "count", value_name = "PERIODS", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) periods: Vec<u64>,
    /// Number of runs of each loop. Their variance gives the error
    #[arg(short, long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Measure and print, but do not store the calibration
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrections_and_ways_are_named() {
        assert_eq!("17.5".parse(), Ok(Correct::Lost(17.5)));
        assert_eq!("none".parse(), Ok(Correct::None));
        for text in ["-1", "inf", "perhaps", ""] {
            assert!(text.parse::<Correct>().is_err(), "{text}");
        }
        assert_eq!(
            "interrupt".parse::<DeliveryName>().unwrap().name(),
            "interrupt"
        );
        assert!(
            "pigeon"
                .parse::<DeliveryName>()
                .unwrap_err()
                .contains("precise-linux")
        );
    }

    #[test]
    fn a_resolution_is_exact_or_finer_than_a_window() {
        let of = |text: &str| text.parse::<Resolution>().map(|r| r.0).ok();
        let texts = [
            "exact", "64ns", "1024ns", "0ns", "2000ns", "64", "coarse", "",
        ];
        let found = texts.map(of);
        let none = [None; 5];
        assert_eq!(found[..3], [Some(1), Some(64), Some(1_024)]);
        assert_eq!(found[3..], none);
    }
}
