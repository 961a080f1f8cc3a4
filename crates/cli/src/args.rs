//! What the command line says to the verbs that record, show and account I/O.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use memgauge_emulate::{SetSample, geometry};
use memgauge_host::unwind::{MOST_STACK_BYTES, STACK_BYTES};
use memgauge_machine::Config;

use crate::target::Targets;
use crate::units::{DeliveryName, Duration, Percent, pages, recording, sets};

/// Where events come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// The best source that works on this machine
    #[default]
    Auto,
    /// Run the program under QEMU and model a machine
    Emulate,
    /// Sample by a timer; data addresses are rebuilt from registers and code
    Clock,
    /// Sample events of the processor and the kernel (-e)
    Pmu,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Settings {
    /// Directory to write the recording to
    #[arg(short, long, value_name = "DIR", default_value = "memgauge.mg", value_parser = recording)]
    pub(crate) output: PathBuf,
    /// Replace a recording that exists, instead of keeping it as DIR.old
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Where events come from
    #[arg(long, value_enum, default_value_t)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) modelled: Modelled,
    /// Sample these events: NAME or NAME:PERIOD of the modelled machine
    /// (llc.miss:127,l1d.miss:4099 unless given), or of this one as in perf
    /// (page-faults, cpu/mem-loads,ldlat=30/P, ibs_op//, mem:ADDR/LEN:rw)
    #[arg(short, long = "event", value_name = "EVENTS")]
    pub(crate) events: Vec<String>,
    /// Period (events between two samples) of events that name none
    #[arg(short = 'c', long = "count", value_name = "PERIOD", conflicts_with = "frequency",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) period: Option<u64>,
    /// Follow one in so many of the cache sets and estimate all from them, in 0.3 to 0.9 of the
    /// processor time: 1/8 (1/2 to 1/16; 1/8:SEED for another choice of sets)
    #[arg(long, value_name = "PART", value_parser = sets)]
    pub(crate) sets: Option<SetSample>,
    /// How the modelled PMU turns overflows into samples; sets their cost and losses: ideal,
    /// precise, precise-linux, interrupt, tagged (docs/machine-model.md)
    #[arg(long, value_name = "WAY", default_value = "ideal")]
    pub(crate) delivery: DeliveryName,
    /// Record only inside these regions of interest, by name (docs/regions.md)
    #[arg(long = "region", value_name = "NAMES", value_delimiter = ',')]
    pub(crate) regions: Vec<String>,
    /// Make regions of interest of these functions: symbols, or patterns as in 'sort*'
    #[arg(long = "function", value_name = "SYMBOLS", value_delimiter = ',')]
    pub(crate) functions: Vec<String>,
    /// Interval of the time series, in virtual time (100us, 1ms; a bare number is milliseconds)
    #[arg(short = 'I', long, value_name = "TIME", default_value = "1ms")]
    pub(crate) interval: Duration,
    /// Samples per second (default for source clock: 1000)
    #[arg(short = 'F', long, value_name = "HZ",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) frequency: Option<u64>,
    /// Limit the share of processor time that live sampling takes, as in 2%; memgauge
    /// measures the cost and changes periods to keep to it
    #[arg(long, value_name = "PERCENT", conflicts_with = "frequency")]
    pub(crate) overhead: Option<Percent>,
    /// Record general registers with live samples, and derive missing data addresses from them
    #[arg(long)]
    pub(crate) registers: bool,
    /// Record physical addresses of the data of samples, where the source has them (root)
    #[arg(long)]
    pub(crate) physical: bool,
    /// Record the calls that led to each sample: exact under emulate, by frame pointers live
    #[arg(short = 'g')]
    pub(crate) stacks: bool,
    /// How live samples find their calls: fp follows frame pointers, which programs have
    /// that were compiled with -fno-omit-frame-pointer; dwarf copies the stack with each
    /// sample (8192 bytes; dwarf,BYTES: up to 65528) and unwinds it
    #[arg(long, value_name = "WAY", value_parser = call_graph)]
    pub(crate) call_graph: Option<CallGraph>,
    /// Calls of a live sample at most (the kernel bears 127 unless
    /// kernel.perf_event_max_stack is higher)
    #[arg(long, value_name = "N", default_value_t = MAX_STACK,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_stack: u16,
    /// Pages in the ring buffer of each processor, a power of two (live sources: 128, or 512
    /// for copies of stacks)
    #[arg(long, value_name = "PAGES", value_parser = pages)]
    pub(crate) ring: Option<usize>,
    /// Print no progress and no closing line
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// As many as the kernel records where nothing is set.
pub(crate) const MAX_STACK: u16 = 127;

/// How call stacks are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallGraph {
    /// Frame pointers.
    Fp,
    /// Copies of so many bytes of the stack.
    Dwarf(u32),
}

/// `fp`, `dwarf` or `dwarf,BYTES`.
fn call_graph(text: &str) -> Result<CallGraph, String> {
    let (way, bytes) = text.split_once(',').unwrap_or((text, ""));
    let bytes = match (way, bytes) {
        ("fp", "") => return Ok(CallGraph::Fp),
        ("dwarf", "") => return Ok(CallGraph::Dwarf(STACK_BYTES)),
        ("dwarf", bytes) => bytes.parse().ok(),
        _ => return Err("use fp, dwarf, or dwarf,BYTES".to_owned()),
    };
    // The kernel wants whole words.
    let fits = |bytes: &u32| (8..=MOST_STACK_BYTES).contains(bytes) && bytes.is_multiple_of(8);
    let bytes = bytes.filter(fits).map(CallGraph::Dwarf);
    bytes.ok_or_else(|| format!("bytes of stack are a multiple of 8, from 8 to {MOST_STACK_BYTES}"))
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
    pub(crate) settings: Settings,
    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report as a page too, which opens in a browser, off line
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Program to run, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Record {
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(flatten)]
    pub(crate) target: Targets,
    /// Program to run and its arguments; with -p, -a and the like, recording lasts as long as it
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "target",
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
    /// Recording to show, in perf's spelling of the option
    #[arg(short, long, value_name = "DIR")]
    pub(crate) input: Option<PathBuf>,
    /// Print JSON (docs/metrics.md describes it)
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page that opens in a browser, off line
    #[arg(long, conflicts_with = "json")]
    pub(crate) html: bool,
    /// Write to FILE; `-` is standard output [default: standard output; with --html the
    /// recording's name and `.html`]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Show these miss-rate curves on the page: a file of `mrc --json=FILE`
    // clap drops a requirement that conflicts with another option: say this one, too.
    #[arg(long, value_name = "FILE", requires = "html", conflicts_with = "json")]
    pub(crate) curves: Option<PathBuf>,
    /// Write a baseline: a small sorted file to commit, which `diff` compares with
    #[arg(long, value_name = "FILE", conflicts_with_all = ["html", "json", "output"])]
    pub(crate) baseline: Option<PathBuf>,
    /// Rank functions, lines and instructions by this event (default: bytes to and from memory,
    /// or the misses that cost most)
    #[arg(short, long, value_name = "EVENT", conflicts_with = "baseline")]
    pub(crate) event: Option<String>,
    /// Rows in each table (of a page: 100 unless given)
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
  memgauge io                          live table; q ends it
  memgauge io -- make                  a command and all its children
  memgauge io -p 4711 --duration 10s   one process, for ten seconds
  memgauge io --json --duration 1s     everything, as JSON
  memgauge io --json=io.json -- make   a command; JSON to a file
  memgauge io -o io.mg --duration 1m   with a recording; `memgauge report io.mg` shows it";

/// How lines are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
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

/// What lines are summed up by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// No sum: each process has its own lines
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
        conflicts_with = "command"
    )]
    pub(crate) pid: Vec<u32>,
    /// All processes (the default without -p, -G and CMD)
    #[arg(short, long, conflicts_with_all = ["pid", "cgroup", "command"])]
    pub(crate) all: bool,
    /// Only this control group (version 2) and those below it, as in /system.slice
    #[arg(short = 'G', long, value_name = "PATH", conflicts_with = "command")]
    pub(crate) cgroup: Option<String>,
    /// Account only these devices, as in vda,eth0
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) device: Vec<String>,
    /// End after this time (10s, 500ms)
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Interval of the recording's rows
    #[arg(short = 'I', long, value_name = "TIME", default_value = "100ms")]
    pub(crate) interval: Duration,
    /// Read counters of memory traffic from this file, not from this machine (docs/io.md)
    #[arg(long, value_name = "FILE", conflicts_with = "device")]
    pub(crate) counters: Option<PathBuf>,
    /// Account each thread by itself
    #[arg(long, conflicts_with = "pin")]
    pub(crate) threads: bool,
    /// Sum lines by command, user or control group
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: By,
    /// Order of lines
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: Order,
    /// Lines in the table of processes
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) rows: usize,
    /// Print JSON (docs/metrics.md describes it), or write it to FILE. With a command and
    /// without FILE, JSON goes to standard error, between the lines of the command
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) json: Option<Option<PathBuf>>,
    /// Write the line `ready` to this file descriptor once accounting has begun
    #[arg(long, value_name = "N")]
    pub(crate) ready_fd: Option<u32>,
    /// Directory to write a recording to
    #[arg(short, long, value_name = "DIR", value_parser = recording)]
    pub(crate) output: Option<PathBuf>,
    /// Replace a recording that exists, instead of keeping it as DIR.old
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Keep the rates of every process in a map in this directory of a BPF file system
    /// (docs/io-map.md)
    #[arg(long, value_name = "DIR")]
    pub(crate) pin: Option<PathBuf>,
    /// Program to run and account with its children, after `--`
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}
