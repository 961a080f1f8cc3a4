//! The command lines of `mrc` and `partition`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::addresses::Format;
use crate::units::size;

/// Options that exclude curves by phase. Options that need `--phases` list them as conflicts, too,
/// because clap ignores `requires` if the required option conflicts with another one.
const WITHOUT_PHASES: [&str; 6] = [
    "sample",
    "sample_size",
    "per_thread",
    "by",
    "functions",
    "against",
];

const MRC_EXAMPLES: &str = "\
Examples:
  memgauge mrc -- xz -k file                 curve of a program's cache lines
  memgauge mrc --block 64,4096 -- ./prog     of lines and of pages, in one run
  memgauge mrc --sample 0.01 addresses.raw   from a hundredth of the blocks
  valgrind --tool=lackey --trace-mem=yes --log-fd=1 ./prog | memgauge mrc -
  memgauge mrc --phases -- ./prog            a curve for each phase
  memgauge mrc --json=c.json -- ./prog       the curve in a file, beside the program's output
  memgauge mrc --by region -- ./prog         of heap, stack and each mapped file too
  memgauge mrc --function parse -- ./prog    of what runs inside the function parse too
  memgauge mrc run1.mg run2.mg run3.mg       the curve of all runs together
  memgauge mrc a.raw --against b.raw         two curves and how they differ";

/// Vertical axis of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Axis {
    /// Misses / references
    Ratio,
    /// Misses
    Misses,
    /// Misses per 1000 instructions
    Mpki,
}

/// Windows that the curve of a phase covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PhaseCurves {
    /// Curves of the whole of each phase
    All,
    /// Curves of some windows after each change of phase; a 64th of the blocks shows the changes
    OnChange,
}

/// Rate that separates phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Misses of a cache of --phase-size per 1000 instructions (for a list: references)
    Mpki,
    /// First references to a block per 1000 of them
    NewBlocks,
    /// References per 1000 instructions
    References,
}

/// Parts of a program that have curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The program and each library, by the code that refers
    Module,
    /// Heap, stacks, files and nameless mappings, by the data referred to
    Region,
    /// Regions of interest: what the program marks (docs/regions.md), and --function
    Interest,
}

/// How curves are made.
#[derive(Clone, Debug, Args)]
pub(crate) struct CurveOptions {
    /// Bytes in a block, a power of two; several at once with commas: 64 is a cache line, 4096 a page
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "64", value_parser = block)]
    pub(crate) block: Vec<u64>,
    /// Use every reference (the default)
    #[arg(long, conflicts_with_all = ["sample", "sample_size"])]
    pub(crate) exact: bool,
    /// Sample this share of the blocks, above 0 and at most 1
    #[arg(long, value_name = "RATE", conflicts_with = "sample_size", value_parser = rate)]
    pub(crate) sample: Option<f64>,
    /// Sample at most this number of blocks (64 or more); memory use is bounded
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u64).range(64..1 << 31))]
    pub(crate) sample_size: Option<u64>,
    /// Use the sample alone: several times faster, but without numbers for sizes below 16 sampled
    /// blocks
    #[arg(long)]
    pub(crate) sample_only: bool,
    /// Seed of the sample; samples with different seeds are independent
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) salt: u64,
    /// Threads for each exact curve, up to 4; the result is the same
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) threads: u8,
    /// Maximum memory for the curves [default: three quarters of the free memory]; a run that
    /// needs more fails
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Format of the list: raw, text, hex, lackey, csv:COLUMN, parquet:COLUMN [default: detected]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
}

#[derive(Debug, Args)]
#[command(after_help = MRC_EXAMPLES)]
pub(crate) struct Mrc {
    /// List of addresses, `-` for standard input, or a recording with data addresses. Each of
    /// several inputs has its own cache; their curves are added up
    #[arg(value_name = "FILE|DIR", required_unless_present = "command")]
    pub(crate) inputs: Vec<PathBuf>,
    #[arg(long, hide = true, value_name = "PART")]
    pub(crate) sets: Option<String>,
    #[arg(short, long, hide = true, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) making: CurveOptions,
    /// Add a curve for each thread, as if it had its own cache
    #[arg(long)]
    pub(crate) per_thread: bool,
    /// Add a curve for each module (by code), region (by data) or region of interest, as if each
    /// had its own cache
    #[arg(
        long,
        value_enum,
        value_name = "PART",
        requires = "command",
        conflicts_with = "per_thread"
    )]
    pub(crate) by: Option<Part>,
    /// Add a curve for each of these functions with their callees, as regions of interest:
    /// symbols, or patterns like 'sort*'
    #[arg(
        long = "function",
        value_name = "SYMBOLS",
        value_delimiter = ',',
        requires = "command",
        conflicts_with = "per_thread"
    )]
    pub(crate) functions: Vec<String>,
    /// Show a curve for each phase of the run; `on-change` reads only the start of each
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, default_missing_value = "all",
          conflicts_with_all = WITHOUT_PHASES)]
    pub(crate) phases: Option<PhaseCurves>,
    /// Rate whose change begins a new phase
    #[arg(long, value_enum, default_value = "mpki", requires = "phases",
          conflicts_with_all = WITHOUT_PHASES)]
    pub(crate) phases_by: By,
    /// Cache size for `--phases-by mpki` [default: the L2 cache for lines, 256 blocks for larger blocks]
    #[arg(long, value_name = "SIZE", requires = "phases", value_parser = size,
          conflicts_with_all = WITHOUT_PHASES)]
    pub(crate) phase_size: Option<u64>,
    /// Minimum number of instructions in a window (references for a list)
    #[arg(long, value_name = "N", default_value_t = 1_000_000, requires = "phases",
          conflicts_with_all = WITHOUT_PHASES, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) phase_window: u64,
    /// Sizes to list, for example 32KiB,1MiB [default: a selection]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    pub(crate) sizes: Vec<u64>,
    /// Number to show for each size
    #[arg(long, value_enum, default_value = "ratio")]
    pub(crate) y: Axis,
    /// Number of instructions behind a list of addresses, to compute MPKI
    #[arg(long, value_name = "N")]
    pub(crate) instructions: Option<u64>,
    /// Exclude first references to a block from the misses
    #[arg(long)]
    pub(crate) no_compulsory: bool,
    /// Another list to compare with
    #[arg(long, value_name = "FILE|DIR")]
    pub(crate) against: Option<PathBuf>,
    /// Print JSON (docs/mrc.md), or write it to FILE (required when a program runs)
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Print CSV with one row per size, or write it to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) csv: Option<PathBuf>,
    /// Write a page with the curves that opens in a browser, offline
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write every size at which the misses change to JSON and CSV, instead of a selection
    #[arg(long, conflicts_with = "sizes")]
    pub(crate) full: bool,
    /// Program to run, after `--`
    #[arg(last = true, value_name = "CMD", conflicts_with = "inputs")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Partition {
    /// Lists of addresses or recordings, one per program
    #[arg(value_name = "FILE|DIR", required = true, num_args = 1..=16)]
    pub(crate) inputs: Vec<PathBuf>,
    #[arg(long, hide = true, value_name = "PART")]
    pub(crate) sets: Option<String>,
    /// Memory to divide (16MiB)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) total: u64,
    #[command(flatten)]
    pub(crate) making: CurveOptions,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn block(text: &str) -> Result<u64, String> {
    match size(text) {
        Ok(bytes) if bytes.is_power_of_two() => Ok(bytes),
        _ => Err("the block size must be a power of two, for example 64 or 4K".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let parsed = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().map(|percent: f64| percent / 100.0),
        None => text.parse(),
    };
    match parsed {
        Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(rate),
        _ => Err("the rate must be above 0 and at most 1, for example 0.01 or 1%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_rates_that_make_no_sense_are_refused() {
        assert!(block("64").is_ok() && block("1").is_ok());
        assert_eq!(block("4K"), Ok(4096));
        assert!(["0", "63", "-64", "x"].iter().all(|b| block(b).is_err()));
        assert_eq!(rate("1%"), Ok(0.01));
        assert!(rate("101%").is_err() && rate("%").is_err());
        assert!(rate("1").is_ok() && rate("0.001").is_ok());
        assert!(
            ["0", "1.1", "-1", "NaN", "x"]
                .iter()
                .all(|r| rate(r).is_err())
        );
    }
}
