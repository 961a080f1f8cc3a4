//! Command lines of `record`, `report` and `io`. The doc comments are the help text.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use memgauge_console::Source;
use memgauge_console::quantities::{Duration, Percent, length, seed, size, task_id};
use memgauge_console::target::Targets;
use memgauge_emulate::{Allocator, AllocatorEffect, SetSample, geometry};
use memgauge_host::unwind::{MAX_STACK_BYTES, STACK_BYTES};
use memgauge_machine::Config;

use crate::units::{Changes, DeliveryName, Label, changes, pages, recording, sets};

#[derive(Clone, Debug, Args)]
pub(crate) struct RecordingSettings {
    /// Directory to write the recording to
    #[arg(short, long, value_name = "DIR", default_value = "memgauge.mg", value_parser = recording)]
    pub(crate) output: PathBuf,
    /// Replace an existing recording instead of keeping it as DIR.old
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Whether the program's standard output goes nowhere
    #[arg(skip)]
    pub(crate) discards_output: bool,
    /// Where events come from
    #[arg(long, value_enum, default_value_t)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) modelled: Modelled,
    /// Events to sample: NAME or NAME:PERIOD of the modelled machine
    /// [default: llc.miss:127,l1d.miss:4099, with -g also cycles:20011], or an event of this machine as in perf
    /// (page-faults, cpu/mem-loads,ldlat=30/P, ibs_op//, mem:ADDR/LEN:rw)
    #[arg(short, long = "event", value_name = "EVENTS")]
    pub(crate) events: Vec<String>,
    /// Period (events between two samples) of events without one; for source malloc, mean number of
    /// allocated bytes between two samples [default: 65536], and 1 records every allocation
    #[arg(short = 'c', long = "count", value_name = "PERIOD", conflicts_with = "frequency",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) period: Option<u64>,
    /// Model only this fraction of the cache sets, 1/2 to 1/16, and extrapolate (1/8:SEED picks
    /// other sets). Takes 30 to 90 % of the processor time
    #[arg(long, value_name = "FRACTION", value_parser = sets)]
    pub(crate) sets: Option<SetSample>,
    /// Also feed other machines, and report what they make of the program: huge-pages, prefetch,
    /// l2=2x, llc=2x, machine=NAME, or all for the first four. Or other layouts of a type of C, C++
    /// or Rust: pad=TYPE, pad=TYPE.MEMBER+MEMBER (on lines of their own), split=TYPE.MEMBER (into an
    /// array of their own), reorder=TYPE.MEMBER (first), pad=VARIABLE (or each of its elements on a
    /// line of its own). Each takes the time of a replay
    #[arg(long = "what-if", value_name = "CHANGES", value_parser = changes)]
    pub(crate) what_if: Vec<Changes>,
    /// How the modelled PMU turns overflows into samples, with which cost and losses: ideal,
    /// precise, precise-linux, interrupt, tagged (docs/machine-model.md)
    #[arg(long, value_name = "WAY", default_value = "ideal")]
    pub(crate) delivery: DeliveryName,
    /// Record only inside these regions of interest, by name (docs/regions.md)
    #[arg(long = "region", value_name = "NAMES", value_delimiter = ',')]
    pub(crate) regions: Vec<String>,
    /// Treat these functions as regions of interest: symbols, or patterns like 'sort*'
    #[arg(long = "function", value_name = "SYMBOLS", value_delimiter = ',')]
    pub(crate) functions: Vec<String>,
    /// Interval of the time series, in virtual time (100us, 1ms; a bare number is milliseconds)
    #[arg(short = 'I', long, value_name = "TIME", default_value = "1ms")]
    pub(crate) interval: Duration,
    /// Samples per second [default for source clock: 1000]
    #[arg(short = 'F', long, value_name = "HZ",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) frequency: Option<u64>,
    /// Maximum share of processor time for live sampling, for example 2%. memgauge measures the
    /// cost and adapts the periods
    #[arg(long, value_name = "PERCENT", conflicts_with = "frequency")]
    pub(crate) overhead: Option<Percent>,
    /// Record the general registers of live samples and compute missing data addresses from them
    #[arg(long)]
    pub(crate) registers: bool,
    /// Record physical data addresses if the source provides them (needs root)
    #[arg(long)]
    pub(crate) physical: bool,
    /// Record the call stack of each sample: exact under emulate, by frame pointers live
    #[arg(short = 'g')]
    pub(crate) stacks: bool,
    /// Do not charge misses and stalls to data (allocations, variables, mappings), and record no
    /// allocations
    #[arg(long)]
    pub(crate) no_data: bool,
    /// Count loads and stores by data, too, not only misses and stalls. Takes about a fifth more
    /// processor time
    #[arg(long, conflicts_with_all = ["no_data", "sets"])]
    pub(crate) data_accesses: bool,
    /// Treat a function of the program as one that allocates, for example pool_get:size=arg1 or
    /// grow:size=arg1*arg2,old=arg0 (arguments count from arg0), or
    /// arena_get:size=arg1,arena=arg0 for memory that --reset frees
    #[arg(long = "alloc", value_name = "FUNCTION:size=ARG", value_parser = allocator, conflicts_with = "no_data")]
    pub(crate) allocators: Vec<Allocator>,
    /// Treat a function of the program as one that frees memory, for example pool_put:arg0
    #[arg(long = "free", value_name = "FUNCTION:ARG", value_parser = deallocator, conflicts_with = "no_data")]
    pub(crate) deallocators: Vec<Allocator>,
    /// Treat a function of the program as one that frees everything in an arena, for example
    /// arena_clear:arg0
    #[arg(long = "reset", value_name = "FUNCTION:ARG", value_parser = reset, conflicts_with = "no_data",
          requires = "allocators")]
    pub(crate) resets: Vec<Allocator>,
    /// Make Java and Node name the code that they compile: sets JAVA_TOOL_OPTIONS, for which a JVM
    /// prints a line on standard error, and NODE_OPTIONS for the program
    #[arg(long)]
    pub(crate) jit_names: bool,
    /// How to find the callers of live samples: fp follows frame pointers (compile with
    /// -fno-omit-frame-pointer); dwarf copies the stack with each sample (8192 bytes;
    /// dwarf,BYTES: up to 65528) and unwinds it
    #[arg(long, value_name = "WAY", value_parser = call_graph)]
    pub(crate) call_graph: Option<CallGraphMethod>,
    /// Maximum stack depth of a live sample (kernel limit: 127, see
    /// kernel.perf_event_max_stack)
    #[arg(long, value_name = "N", default_value_t = MAX_STACK,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_stack: u16,
    /// Pages in the ring buffer of each processor, a power of two [default: 128, or 512 with
    /// copied stacks]
    #[arg(long, value_name = "PAGES", value_parser = pages)]
    pub(crate) ring: Option<usize>,
    /// Label of the recording, for example service=checkout or commit=abc, by which `memgauge fleet`
    /// selects; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub(crate) labels: Vec<Label>,
    /// Print no progress and no closing line
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// The kernel's default of `kernel.perf_event_max_stack`.
pub(crate) const MAX_STACK: u16 = 127;

/// How call stacks are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallGraphMethod {
    /// Frame pointers.
    Fp,
    /// Copies of the stack, of this number of bytes.
    Dwarf(u32),
}

/// Number of an argument that is written as arg0 to arg5.
fn argument(text: &str) -> Result<u8, String> {
    let number = text.strip_prefix("arg").and_then(|n| n.parse().ok());
    let number = number.filter(|&n| n < 6);
    number.ok_or_else(|| format!("`{text}` is not an argument: use arg0 to arg5"))
}

/// `FUNCTION:size=ARG`, `FUNCTION:size=ARG*ARG`, with `,old=ARG` one that reallocates, and with
/// `,arena=ARG` one that allocates from an arena.
fn allocator(text: &str) -> Result<Allocator, String> {
    const USAGE: &str =
        "use FUNCTION:size=arg0, size=arg0*arg1, size=arg1,old=arg0, or size=arg1,arena=arg0";
    let (name, rest) = text.rsplit_once(':').ok_or(USAGE)?;
    let (mut size, mut old, mut arena) = (None, None, None);
    for part in rest.split(',') {
        match part.split_once('=') {
            Some(("size", value)) => size = Some(value),
            Some(("old", value)) => old = Some(argument(value)?),
            Some(("arena", value)) => arena = Some(argument(value)?),
            _ => return Err(USAGE.to_owned()),
        }
    }
    let size = size.ok_or(USAGE)?;
    let effect = match (size.split_once('*'), old) {
        (None, None) => AllocatorEffect::Allocates {
            bytes: argument(size)?,
        },
        (None, Some(memory)) => AllocatorEffect::Reallocates {
            memory,
            bytes: argument(size)?,
        },
        (Some((count, bytes)), None) => AllocatorEffect::AllocatesArray {
            count: argument(count)?,
            bytes: argument(bytes)?,
        },
        (Some((count, "arg2")), Some(memory)) => AllocatorEffect::ReallocatesArray {
            memory,
            count: argument(count)?,
        },
        (Some(_), Some(_)) => return Err("with old=, use size=ARG*arg2".to_owned()),
    };
    let named = Allocator::named(name, effect);
    Ok(match arena {
        Some(arena) => named.in_arena(arena),
        None => named,
    })
}

/// `FUNCTION:ARG`, or `FUNCTION:arena=ARG`.
fn reset(text: &str) -> Result<Allocator, String> {
    let (name, arena) = text
        .rsplit_once(':')
        .ok_or("use FUNCTION:arg0, with the argument that points to the arena")?;
    let arena = argument(arena.strip_prefix("arena=").unwrap_or(arena))?;
    Ok(Allocator::named(name, AllocatorEffect::Resets { arena }))
}

/// `FUNCTION:ARG`.
fn deallocator(text: &str) -> Result<Allocator, String> {
    let (name, memory) = text
        .rsplit_once(':')
        .ok_or("use FUNCTION:arg0, with the argument that points to the memory")?;
    let effect = AllocatorEffect::Frees {
        memory: argument(memory)?,
    };
    Ok(Allocator::named(name, effect))
}

/// `fp`, `dwarf` or `dwarf,BYTES`.
fn call_graph(text: &str) -> Result<CallGraphMethod, String> {
    let (way, bytes) = text.split_once(',').unwrap_or((text, ""));
    let bytes = match (way, bytes) {
        ("fp", "") => return Ok(CallGraphMethod::Fp),
        ("dwarf", "") => return Ok(CallGraphMethod::Dwarf(STACK_BYTES)),
        ("dwarf", bytes) => bytes.parse().ok(),
        _ => return Err("use fp, dwarf, or dwarf,BYTES".to_owned()),
    };
    // The kernel copies whole words.
    let fits = |bytes: &u32| (8..=MAX_STACK_BYTES).contains(bytes) && bytes.is_multiple_of(8);
    let bytes = bytes.filter(fits).map(CallGraphMethod::Dwarf);
    bytes.ok_or_else(|| {
        format!("the number of stack bytes must be a multiple of 8 from 8 to {MAX_STACK_BYTES}")
    })
}

/// The machine that source emulate models.
#[derive(Clone, Debug, Args)]
pub(crate) struct Modelled {
    /// Machine to model: `host`, a name from `memgauge list`, or a JSON file
    #[arg(long, value_name = "NAME|FILE", default_value = "host")]
    pub(crate) machine: String,
    /// Hardware prefetchers to model: next-line, stride (none by default)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) prefetch: Vec<Prefetcher>,
    /// Seed of the program's random numbers (getrandom, /dev/urandom, rdrand), so that counts of
    /// programs with random hash tables repeat [default: random, as without memgauge]
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
}

impl Modelled {
    /// Its geometry.
    ///
    /// # Errors
    /// The name is no machine's, or the file no machine.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let mut config = geometry::machine(&self.machine)?;
        config.prefetch.next_line |= self.prefetch.contains(&Prefetcher::NextLine);
        config.prefetch.stride |= self.prefetch.contains(&Prefetcher::Stride);
        Ok(config)
    }
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
    pub(crate) settings: RecordingSettings,
    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write the report as a page that opens in a browser, offline
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Program to run, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Record {
    #[command(flatten)]
    pub(crate) settings: RecordingSettings,
    #[command(flatten)]
    pub(crate) target: Targets,
    #[command(flatten)]
    pub(crate) collect: Collect,
    /// Program to run with its arguments. With -p, -a and similar, recording ends when it does
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "target",
        value_name = "CMD"
    )]
    pub(crate) command: Vec<String>,
}

/// Options of a continuous collection.
#[derive(Debug, Args)]
pub(crate) struct Collect {
    /// Record continuously: close the recording every now and then, pack it and put it into a
    /// folder or a bucket (s3:// or gs://BUCKET/PREFIX). Needs -e or source clock (docs/live.md)
    #[arg(long, value_name = "TARGET", conflicts_with = "force")]
    pub(crate) to: Option<String>,
    /// With --to: length of a recording (10m, 30s)
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = length, requires = "to")]
    pub(crate) every: std::time::Duration,
    /// With --to: remove recordings of this service and host from the target when they are older
    /// (24h, 7d) [default: keep all]
    #[arg(long, value_name = "TIME", value_parser = length, requires = "to")]
    pub(crate) keep: Option<std::time::Duration>,
    /// With --to: the most bytes that wait on this machine while the target cannot be reached. Above
    /// it the oldest recording is dropped, and the next one says so
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size, requires = "to")]
    pub(crate) spool: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Recording to show; also the URL of a packed one in a bucket, s3:// or gs://BUCKET/NAME.mg.tar
    #[arg(
        value_name = "DIR",
        default_value = "memgauge.mg",
        conflicts_with = "input"
    )]
    pub(crate) recording: PathBuf,
    /// Recording to show (as in perf)
    #[arg(short, long, value_name = "DIR")]
    pub(crate) input: Option<PathBuf>,
    /// Print JSON (docs/metrics.md describes it)
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page that opens in a browser, offline
    #[arg(long, conflicts_with = "json")]
    pub(crate) html: bool,
    /// Write to FILE; `-` is standard output [default: standard output; with --html the
    /// recording's name and `.html`]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Show these miss-ratio curves on the page: a file written by `mrc --json=FILE`
    // clap ignores `requires` if the required option conflicts with another one that is given.
    #[arg(long, value_name = "FILE", requires = "html", conflicts_with = "json")]
    pub(crate) curves: Option<PathBuf>,
    /// Write a baseline: a small sorted file to commit, for `diff` to compare with
    #[arg(long, value_name = "FILE", conflicts_with_all = ["html", "json", "output"])]
    pub(crate) baseline: Option<PathBuf>,
    /// Rank functions, lines and instructions by this event [default: cycles; without
    /// them bytes to and from memory, or the misses that cost most]
    #[arg(short, long, value_name = "EVENT", conflicts_with = "baseline")]
    pub(crate) event: Option<String>,
    /// Sort every table that has this column by it, over all rows: a title of the table, a key of
    /// the JSON or an event (samples, L1D miss, at_peak_bytes, run_ns, function). An unknown name
    /// lists those of the recording
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["html", "baseline"])]
    pub(crate) sort: Option<String>,
    /// Rows in each table (on a page: 100 by default)
    #[arg(long, value_name = "N")]
    pub(crate) rows: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const IO_EXAMPLES: &str = "\
Examples:
  memgauge io                          live table; press q to quit
  memgauge io -- make                  a command and all its children
  memgauge io -p 4711 --duration 10s   one process, for ten seconds
  memgauge io --json --duration 1s     everything, as JSON
  memgauge io --json=io.json -- make   a command; JSON to a file
  memgauge io -o io.mg --duration 1m   with a recording; `memgauge report io.mg` shows it";

/// Sort order of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortOrder {
    /// Bytes in and out together
    #[default]
    Total,
    /// Bytes read or received
    In,
    /// Bytes written or sent
    Out,
    /// Process id
    Pid,
}

/// How processes are grouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GroupBy {
    /// One line per process
    #[default]
    Process,
    /// Name of the program
    Command,
    /// User
    User,
    /// Control group
    Cgroup,
}

#[derive(Debug, Args)]
#[command(after_help = IO_EXAMPLES)]
pub(crate) struct Io {
    /// Account only these processes
    #[arg(
        short,
        long,
        value_name = "PIDS",
        value_delimiter = ',',
        value_parser = task_id,
        conflicts_with = "command"
    )]
    pub(crate) pid: Vec<u32>,
    /// All processes (the default without -p, -G and CMD)
    #[arg(short, long, conflicts_with_all = ["pid", "cgroup", "command"])]
    pub(crate) all: bool,
    /// Only this control group (version 2) and its children, for example /system.slice
    #[arg(short = 'G', long, value_name = "PATH", conflicts_with = "command")]
    pub(crate) cgroup: Option<String>,
    /// Account only these devices, for example vda,eth0
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) device: Vec<String>,
    /// Stop after this time (10s, 500ms)
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Interval of the recording's rows
    #[arg(short = 'I', long, value_name = "TIME", default_value = "100ms")]
    pub(crate) interval: Duration,
    /// Read the counters of memory traffic from this file instead of this machine (docs/io.md)
    #[arg(long, value_name = "FILE", conflicts_with = "device")]
    pub(crate) counters: Option<PathBuf>,
    /// Account each thread separately
    #[arg(long, conflicts_with = "pin")]
    pub(crate) threads: bool,
    /// Group by command, user or control group
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: GroupBy,
    /// Sort order
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: SortOrder,
    /// Lines in the table of processes
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) rows: usize,
    /// Print JSON (docs/metrics.md describes it), or write it to FILE. With a command and no
    /// FILE, JSON goes to standard error, mixed with the command's own lines
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write the line `ready` to this file descriptor when accounting has started
    #[arg(long, value_name = "N")]
    pub(crate) ready_fd: Option<u32>,
    /// Directory to write a recording to
    #[arg(short, long, value_name = "DIR", value_parser = recording)]
    pub(crate) output: Option<PathBuf>,
    /// Replace an existing recording instead of keeping it as DIR.old
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Keep the rates of every process in a map in this directory of a BPF file system
    /// (docs/io-map.md)
    #[arg(long, value_name = "DIR")]
    pub(crate) pin: Option<PathBuf>,
    /// Program to run, after `--`; its children are included
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}
