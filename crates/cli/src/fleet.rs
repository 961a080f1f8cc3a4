//! `memgauge fleet`: many recordings as one dataset, and questions about it.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use memgauge_console::access::OutputDirectory;
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::terminal;
use memgauge_fleet::{
    Dataset, ErrorKind, IndexOptions, Query, Scope, Skipped, TopOptions, compact, curve, diff,
    index, outliers, top,
};
use memgauge_report::{Compared, Gate, fleet::FleetCurve};

use crate::diff as gates;
use crate::report::DEFAULT_ROWS;
use crate::units::{Label, labels};

const EXAMPLES: &str = "\
Examples:
  memgauge record --label service=checkout --label commit=abc -o a.mg -- ./server
  memgauge fleet index recordings --to fleet       add what is new below a folder
  memgauge fleet top fleet --service checkout      worst functions, by stalled cycles
  memgauge fleet top fleet --by llc.miss --lines   worst source lines
  memgauge fleet diff fleet --label commit=abc --label commit=def
  memgauge fleet curve fleet --service checkout    a service's summed miss-ratio curve
  memgauge fleet outliers fleet                    hosts that differ from their peers
  memgauge view fleet                              a page of all of them in a browser
  memgauge fleet index s3://traces/web --to s3://traces/fleet";

/// Index many recordings as one dataset of Parquet files, and ask about all of them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Fleet {
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, Subcommand)]
enum Question {
    /// Add recordings to a dataset, which is made if it does not exist. Those that it has are left
    /// alone
    Index(IndexArgs),
    /// Make one file of the many files of each day, service and host. Readers are not disturbed
    Compact(CompactArgs),
    /// Show the worst functions, lines or data of the fleet
    Top(TopArgs),
    /// Compare two groups of recordings, such as two versions of a program
    Diff(DiffArgs),
    /// Show the miss-ratio curves of recordings, summed
    Curve(CurveArgs),
    /// Show hosts that differ from the other hosts of their service
    Outliers(OutliersArgs),
}

#[derive(Debug, Args)]
struct IndexArgs {
    /// Folders with recordings (NAME.mg and NAME.mg.tar, at any depth), or s3:// or gs://BUCKET/PREFIX of NAME.mg.tar
    #[arg(required = true, value_name = "DIR")]
    inputs: Vec<PathBuf>,
    /// Dataset: a folder, or s3:// or gs://BUCKET/PREFIX
    #[arg(long, value_name = "DATASET")]
    to: String,
    /// Label of recordings that have none of the name (service, host, commit, …); may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<Label>,
    /// Threads that read recordings [default: one for each processor]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Print no progress
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Args)]
struct CompactArgs {
    /// Dataset: a folder, or s3:// or gs://BUCKET/PREFIX
    dataset: String,
}

/// Which recordings, and in which form.
#[derive(Debug, Args)]
struct FleetSelection {
    /// Dataset: a folder, or s3:// or gs://BUCKET/PREFIX
    dataset: String,
    /// Only recordings of this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Only recordings from this day on (UTC)
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = day)]
    since: Option<String>,
    /// Only the newest N recordings
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,
    /// Only recordings with this label; service, host, day, machine and source count as labels. May be
    /// repeated
    #[arg(long, value_name = "NAME=VALUE")]
    only: Vec<Label>,
    /// Print JSON (docs/fleet.md describes it)
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct TopArgs {
    #[command(flatten)]
    selection: FleetSelection,
    /// Metric that ranks [default: stalled_cycles, or else cycles, or what most recordings have]
    #[arg(long, value_name = "METRIC")]
    by: Option<String>,
    /// Rank source lines
    #[arg(long, group = "scope")]
    lines: bool,
    /// Rank regions of memory, by samples
    #[arg(long, group = "scope")]
    regions: bool,
    /// Rank data: allocations, variables and files
    #[arg(long, group = "scope")]
    data: bool,
    /// Rank places that allocate, by their bytes at the peak
    #[arg(long, group = "scope")]
    heap: bool,
    /// Rank programs by the bytes that they moved through devices (recordings of `memgauge io`)
    #[arg(long, group = "scope")]
    processes: bool,
    /// Rank devices by their bytes (recordings of `memgauge io`)
    #[arg(long, group = "scope")]
    devices: bool,
    /// Rows to show
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROWS)]
    rows: usize,
}

#[derive(Debug, Args)]
struct DiffArgs {
    #[command(flatten)]
    selection: FleetSelection,
    /// Label of the recordings before, then of those after: --label commit=A --label commit=B
    #[arg(long = "label", value_name = "NAME=VALUE", conflicts_with_all = ["before", "after"])]
    labels: Vec<Label>,
    /// Label of the recordings before; may be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "after")]
    before: Vec<Label>,
    /// Label of the recordings after; may be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "before")]
    after: Vec<Label>,
    /// Event that ranks functions and lines [default: cycles, if all runs have them]
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// End with 1 if this holds, for example 'llc.mpki > +5%'; may be repeated
    #[arg(long, value_name = "GATE")]
    fail_if: Vec<Gate>,
    /// Functions to show
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROWS)]
    rows: usize,
}

#[derive(Debug, Args)]
struct CurveArgs {
    #[command(flatten)]
    selection: FleetSelection,
}

#[derive(Debug, Args)]
struct OutliersArgs {
    #[command(flatten)]
    selection: FleetSelection,
    /// Compare by this metric of whole runs alone [default: all]
    #[arg(long, value_name = "METRIC")]
    by: Option<String>,
    /// Rows to show
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROWS)]
    rows: usize,
}

fn day(text: &str) -> Result<String, String> {
    let is_digits =
        |part: &str, digits| part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = text.split('-').collect();
    match parts.as_slice() {
        [year, month, day] if is_digits(year, 4) && is_digits(month, 2) && is_digits(day, 2) => {
            Ok(text.to_owned())
        }
        _ => Err("use a day such as 2026-11-28".to_owned()),
    }
}

/// Indexes recordings, or answers a question.
pub(crate) fn fleet(args: &Fleet) -> anyhow::Result<Exit> {
    match &args.question {
        Question::Index(args) => add(args),
        Question::Compact(args) => {
            let done = compact(&open(&args.dataset)?).map_err(explained)?;
            eprintln!(
                "memgauge: replaced {} files by {}; removed {} that no reader needs",
                done.replaced, done.written, done.removed
            );
            Ok(Exit::Success)
        }
        Question::Top(args) => worst(args),
        Question::Diff(args) => compare(args),
        Question::Curve(args) => {
            let dataset = open(&args.selection.dataset)?;
            let curves = curve(&dataset, &args.selection.query()).map_err(explained)?;
            let style = terminal::style(terminal::stdout_is_terminal());
            let texts = || {
                curves
                    .iter()
                    .map(|curve| curve.text(&style))
                    .collect::<Vec<_>>()
            };
            print(match args.selection.json {
                true => FleetCurve::all_json(&curves),
                false => texts().join("\n"),
            })
        }
        Question::Outliers(args) => {
            let dataset = open(&args.selection.dataset)?;
            let query = args.selection.query();
            let found = outliers(&dataset, &query, args.by.as_deref()).map_err(explained)?;
            let style = terminal::style(terminal::stdout_is_terminal());
            print(match args.selection.json {
                true => found.json(),
                false => found.text(args.rows, &style),
            })
        }
    }
}

fn print(text: String) -> anyhow::Result<Exit> {
    terminal::print(&text)?;
    Ok(Exit::Success)
}

pub(crate) fn open(dataset: &str) -> anyhow::Result<Dataset> {
    Dataset::open(dataset).map_err(explained)
}

/// A question that the dataset cannot answer is a mistake of the command line.
pub(crate) fn explained(error: memgauge_fleet::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::Question => usage(error.to_string()),
        _ => error.into(),
    }
}

impl FleetSelection {
    fn query(&self) -> Query {
        Query {
            service: self.service.clone(),
            since: self.since.clone(),
            last: self.last.map(|last| last as usize),
            labels: pairs(&self.only),
        }
    }
}

fn pairs(labels: &[Label]) -> Vec<(String, String)> {
    let pair = |label: &Label| (label.name.clone(), label.value.clone());
    labels.iter().map(pair).collect()
}

fn add(args: &IndexArgs) -> anyhow::Result<Exit> {
    let folder = memgauge_storage::local_path(&args.to)?;
    let _rights = folder.as_deref().map(OutputDirectory::new);
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        memgauge_recording::private::create_dir(&folder)
            .with_context(|| format!("failed to make dataset `{}`", args.to))?;
    }
    let options = IndexOptions {
        labels: labels(&args.labels),
        threads: args.threads,
        share: None,
    };
    let shows_progress = !args.quiet && terminal::stderr_is_terminal();
    let mut progress = |read: usize, all: usize| {
        if shows_progress {
            eprint!("\r{read} of {all} recordings");
        }
    };
    let indexed = index(&open(&args.to)?, &args.inputs, &options, &mut progress);
    if shows_progress {
        eprint!("\r\x1b[K");
    }
    let indexed = indexed.map_err(explained)?;
    for skipped in &indexed.skipped {
        eprintln!("memgauge: {}", skipped.message());
    }
    if !args.quiet {
        eprintln!(
            "memgauge: added {} recording{} to {}; {} were there already or are copies, {} skipped",
            indexed.added,
            if indexed.added == 1 { "" } else { "s" },
            args.to,
            indexed.known,
            indexed.skipped.len()
        );
    }
    let is_unreadable = |skipped: &Skipped| matches!(skipped, Skipped::Unreadable(_));
    Ok(Exit::after_reading(
        indexed.skipped.iter().any(is_unreadable),
    ))
}

fn worst(args: &TopArgs) -> anyhow::Result<Exit> {
    let scopes = [
        (args.lines, Scope::Line),
        (args.regions, Scope::Region),
        (args.data, Scope::Data),
        (args.heap, Scope::Allocation),
        (args.processes, Scope::Process),
        (args.devices, Scope::Device),
    ];
    let scope = scopes.into_iter().find(|(is_asked, _)| *is_asked);
    let options = TopOptions {
        scope: scope.map(|(_, scope)| scope),
        metric: args.by.clone(),
        rows: args.rows,
    };
    let dataset = open(&args.selection.dataset)?;
    let found = top(&dataset, &args.selection.query(), &options).map_err(explained)?;
    let style = terminal::style(terminal::stdout_is_terminal());
    print(match args.selection.json {
        true => found.json(),
        false => found.text(&style),
    })
}

fn compare(args: &DiffArgs) -> anyhow::Result<Exit> {
    let groups = match args.labels.as_slice() {
        [] if !args.before.is_empty() => [pairs(&args.before), pairs(&args.after)],
        [before, after] => [before, after].map(|label| pairs(std::slice::from_ref(label))),
        _ => {
            return Err(usage(
                "failed to compare groups: name two, with --label commit=A --label commit=B or with \
                 --before and --after",
            ));
        }
    };
    let dataset = open(&args.selection.dataset)?;
    let event = args.event.as_deref();
    let groups = [groups[0].as_slice(), groups[1].as_slice()];
    let compared = diff(&dataset, &args.selection.query(), groups, event).map_err(explained)?;
    let compared = Compared::of_groups(compared, Vec::new());
    let failed = gates::failed_gates(&compared, &args.fail_if)?;
    let style = terminal::style(terminal::stdout_is_terminal());
    terminal::print(&match args.selection.json {
        true => format!("{:#}\n", compared.json()),
        false => compared.text(args.rows, &style),
    })?;
    for line in &failed {
        eprintln!("memgauge: {line}");
    }
    Ok(match failed.is_empty() {
        true => Exit::Success,
        false => Exit::GateFailed,
    })
}
