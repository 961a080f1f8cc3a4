//! The command lines of `mrc` and `partition`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use memgauge_console::quantities::{seed, size, task_id};
use memgauge_console::target::Targets;
use memgauge_import::addresses::AddressFormat;
use memgauge_mrc::Policy;

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
  memgauge mrc a.raw --against b.raw         two curves and how they differ
  memgauge mrc t.oracleGeneral.zst --policy lru,s3-fifo,belady   policies over a cache trace
  memgauge mrc t.csv --format csv:time=1,key=2,size=3 --policy lru,sieve
  memgauge mrc --policy lru,belady -- ./prog policies over a program's references
  memgauge mrc -p 4711                       page faults of a running process by size of memory
  memgauge mrc -G system.slice/db.service --seconds 300   of all processes of a control group";

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
pub(crate) enum PhaseRate {
    /// Misses of a cache of --phase-size per 1000 instructions (for a list: references)
    Mpki,
    /// First references to a block per 1000 of them
    NewBlocks,
    /// References per 1000 instructions
    References,
}

/// Parts of a program that have curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartKind {
    /// The program and each library, by the code that refers
    Module,
    /// Heap, stacks, files and nameless mappings, by the data referred to
    Region,
    /// Regions of interest: what the program marks (docs/regions.md), and --function
    Interest,
    /// Tenants of a cache trace: its tenant column, or clients, use cases or disks
    Tenant,
}

/// Effect of a write in a cache trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Writes {
    /// Look the object up and insert it, like a read
    #[default]
    Allocate,
    /// Look the object up, but do not insert it
    Around,
    /// Remove the object; writes are not references
    Invalidate,
    /// Nothing; writes are not references
    Ignore,
}

/// Requests at the start that fill caches without being counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WarmUp {
    Share(f64),
    Requests(u64),
}

/// How a cache trace is simulated.
#[derive(Clone, Debug, Args)]
pub(crate) struct TraceOptions {
    /// Eviction policies to simulate: lru, fifo, clock, lfu, arc, lirs, 2q, s3-fifo, sieve,
    /// w-tinylfu, random, belady. Others are compared with the first [default: lru]
    #[arg(long = "policy", value_name = "POLICIES", value_delimiter = ',', value_parser = policy)]
    pub(crate) policies: Vec<Policy>,
    /// Effect of writes in a cache trace [default: allocate]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) writes: Option<Writes>,
    /// Seconds after which objects expire that a cache trace gives no time to live
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ttl: Option<u64>,
    /// Requests at the start that fill the caches and are not counted: a number or a share (20%)
    #[arg(long, value_name = "N|PERCENT", value_parser = warm_up)]
    pub(crate) warmup: Option<WarmUp>,
    /// Count objects instead of bytes: every object of a cache trace has the same size
    #[arg(long)]
    pub(crate) ignore_sizes: bool,
    /// Delimiter of a table [default: detected]
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub(crate) delimiter: Option<u8>,
    /// Whether the first row of a table is a heading [default: detected]
    #[arg(long, value_name = "YES|NO", value_parser = yes_or_no)]
    pub(crate) header: Option<bool>,
}

impl TraceOptions {
    /// Whether an option was given that only simulations have.
    pub(crate) fn ask_for_simulation(&self) -> bool {
        !self.policies.is_empty()
            || self.writes.is_some()
            || self.ttl.is_some()
            || self.warmup.is_some()
            || self.ignore_sizes
    }
}

fn policy(text: &str) -> Result<Policy, String> {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
    let found = Policy::ALL
        .into_iter()
        .find(|p| plain(p.id()) == plain(text));
    found.ok_or_else(|| {
        let names = Policy::ALL.map(Policy::id);
        format!("unknown policy, use {}", names.join(", "))
    })
}

fn warm_up(text: &str) -> Result<WarmUp, String> {
    let parsed = match text.strip_suffix('%') {
        Some(percent) => percent
            .trim()
            .parse()
            .ok()
            .map(|p: f64| WarmUp::Share(p / 100.0)),
        None => text.parse().ok().map(WarmUp::Requests),
    };
    match parsed {
        Some(WarmUp::Share(share)) if !(0.0..1.0).contains(&share) => {
            Err("the share must be below 100%".to_owned())
        }
        Some(warm_up) => Ok(warm_up),
        None => Err("expected a number of requests or a share, for example 20%".to_owned()),
    }
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text {
        "tab" | "\\t" => Ok(b'\t'),
        "space" => Ok(b' '),
        _ if text.len() == 1 && text != "\n" && text != "\"" => Ok(text.as_bytes()[0]),
        _ => Err("expected one character, tab or space".to_owned()),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("expected yes or no".to_owned()),
    }
}

/// How curves are made.
#[derive(Clone, Debug, Args)]
pub(crate) struct CurveOptions {
    /// Bytes in a block, a power of two; several at once with commas: 64 is a cache line, 4096 a page
    /// [default: 64; 4096 for block traces]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = block)]
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
    /// Format of the list: raw, text, hex, lackey, csv:COLUMN, parquet:COLUMN; of a cache trace:
    /// oracleGeneral, lcs, vscsi, msr, ibm-cos, twitter, meta, wikipedia, or columns as in
    /// csv:time=1,key=2,size=3,op=4,ttl=5,tenant=6 [default: detected]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<AddressFormat>,
}

/// Where the accessed bits of running processes are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PagesSource {
    /// Page tables where the kernel allows it, else smaps_rollup
    #[default]
    Auto,
    /// The page tables, by a BPF program: 30 times cheaper (x86-64, Linux 6.1 with BTF, root)
    PageTables,
    /// /proc/PID/smaps_rollup
    ClearRefs,
}

/// How running processes are observed.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunningOptions {
    /// Seconds to observe running processes
    #[arg(long, value_name = "N", default_value_t = 60, requires = "target",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: u64,
    /// Longest window in seconds in which the used pages of a running process are counted
    /// [default: a quarter of --seconds, at most 30]
    #[arg(long, value_name = "N", requires = "target", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) window: Option<u64>,
    /// Where the accessed bits of a running process are read
    #[arg(
        long,
        value_enum,
        value_name = "SOURCE",
        default_value = "auto",
        requires = "target"
    )]
    pub(crate) pages_source: PagesSource,
}

/// Show the miss-ratio curve: the misses of a cache of every size
#[derive(Clone, Debug, Args)]
#[command(after_help = MRC_EXAMPLES)]
pub struct Mrc {
    /// List of addresses, `-` for standard input, a cache trace, or a recording with data
    /// addresses. Each of several inputs has its own cache; their curves are added up
    #[arg(value_name = "FILE|DIR", required_unless_present_any = ["command", "target"],
          conflicts_with = "target")]
    pub(crate) inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) target: Targets,
    #[command(flatten)]
    pub(crate) running: RunningOptions,
    #[arg(long, hide = true, value_name = "PART")]
    pub(crate) sets: Option<String>,
    #[arg(short, long, hide = true, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) making: CurveOptions,
    #[command(flatten)]
    pub(crate) trace: TraceOptions,
    /// Add a curve for each thread, as if it had its own cache
    #[arg(long)]
    pub(crate) per_thread: bool,
    /// Add a curve for each module (by code), region (by data), region of interest, or tenant of a
    /// cache trace, as if each had its own cache
    #[arg(long, value_enum, value_name = "PART", conflicts_with = "per_thread")]
    pub(crate) by: Option<PartKind>,
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
    /// Seed of the program's random numbers, as in `memgauge record` [default: random]
    #[arg(long, value_name = "N", requires = "command", value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Show a curve for each phase of the run; `on-change` reads only the start of each
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, default_missing_value = "all",
          conflicts_with_all = WITHOUT_PHASES)]
    pub(crate) phases: Option<PhaseCurves>,
    /// Rate whose change begins a new phase
    #[arg(long, value_enum, default_value = "mpki", requires = "phases",
          conflicts_with_all = WITHOUT_PHASES)]
    pub(crate) phases_by: PhaseRate,
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
    #[arg(last = true, value_name = "CMD", conflicts_with_all = ["inputs", "target"])]
    pub(crate) command: Vec<String>,
}

const PARTITION_EXAMPLES: &str = "\
Examples:
  memgauge partition a.raw b.raw --total 8MiB          by miss-ratio curves of two lists
  memgauge partition -p 4711,4712 --total 8GiB         between running processes, by page faults
  memgauge partition -G system.slice/db.service,system.slice/web.service --total 8GiB";

/// Running programs between which memory is divided.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "target", multiple = false)]
pub(crate) struct Sharers {
    /// Divide memory between these running processes
    #[arg(short, long, value_name = "PIDS", value_delimiter = ',', value_parser = task_id)]
    pub(crate) pid: Vec<u32>,
    /// Divide memory between these control groups; the paths start below the root of the hierarchy
    #[arg(short = 'G', long, value_name = "CGROUPS", value_delimiter = ',')]
    pub(crate) cgroup: Vec<String>,
    /// Divide memory between these containers, by name or id (Docker, Podman, containerd)
    #[arg(long, value_name = "NAMES|IDS", value_delimiter = ',')]
    pub(crate) container: Vec<String>,
}

/// Divide memory between programs by their miss-ratio curves
#[derive(Clone, Debug, Args)]
#[command(after_help = PARTITION_EXAMPLES)]
pub struct Partition {
    /// Lists of addresses or recordings, one per program
    #[arg(value_name = "FILE|DIR", required_unless_present = "target", num_args = 1..=16,
          conflicts_with = "target")]
    pub(crate) inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) sharers: Sharers,
    #[command(flatten)]
    pub(crate) running: RunningOptions,
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

impl Sharers {
    /// Whether any is named.
    pub(crate) fn are_any(&self) -> bool {
        !(self.pid.is_empty() && self.cgroup.is_empty() && self.container.is_empty())
    }
}

impl CurveOptions {
    /// The same with the default block sizes where none were given.
    pub(crate) fn with_default_block(&self, block: u64) -> CurveOptions {
        let mut making = self.clone();
        if making.block.is_empty() {
            making.block.push(block);
        }
        making
    }
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
    fn policies_warm_ups_and_delimiters_are_parsed() {
        for policy in Policy::ALL {
            assert_eq!(super::policy(policy.id()), Ok(policy));
            assert_eq!(super::policy(policy.name()), Ok(policy));
        }
        assert_eq!(policy("s3fifo"), Ok(Policy::S3Fifo));
        assert!(policy("opt").unwrap_err().contains("w-tinylfu"));
        assert_eq!(warm_up("20%"), Ok(WarmUp::Share(0.2)));
        assert_eq!(warm_up("1000"), Ok(WarmUp::Requests(1000)));
        assert!(
            ["100%", "-1%", "x", "-3"]
                .iter()
                .all(|w| warm_up(w).is_err())
        );
        assert_eq!((delimiter("tab"), delimiter(";")), (Ok(b'\t'), Ok(b';')));
        assert!(delimiter("ab").is_err() && delimiter("\n").is_err());
    }

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
