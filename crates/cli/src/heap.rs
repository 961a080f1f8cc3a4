//! `memgauge heap`: memory by the calls that allocate it.

use std::path::PathBuf;

use clap::ValueEnum;
use memgauge_analyze::{Options, summarise};
use memgauge_console::Source;
use memgauge_console::outcome::{Exit, usage};
use memgauge_emulate::Emulator;
use memgauge_recording::Recording;
use memgauge_report::{HeapOrder, Style, heap_text};
use memgauge_symbols::Symbols;

use crate::args::RecordingSettings;
use crate::record;

/// Show which calls allocate memory: bytes in use at the peak, not freed, lifetimes
#[derive(Debug, clap::Args)]
pub(crate) struct Heap {
    /// Recording to show
    #[arg(
        value_name = "DIR",
        default_value = "memgauge.mg",
        conflicts_with = "command"
    )]
    recording: PathBuf,
    /// Sort by this number
    #[arg(long, value_name = "NUMBER", default_value = "peak")]
    by: AllocationOrder,
    /// Maximum number of allocation sites
    #[arg(long, value_name = "N", default_value_t = 20)]
    sites: usize,
    #[command(flatten)]
    settings: RecordingSettings,
    /// Record this program first
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Number by which allocations are sorted.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AllocationOrder {
    /// Bytes in use at the peak
    Peak,
    /// Requested bytes
    Bytes,
    /// Number of allocations
    Allocations,
    /// Bytes that were never freed
    Unfreed,
    /// Bytes that the program never loaded or stored, under emulation
    Untouched,
}

impl AllocationOrder {
    fn order(self) -> HeapOrder {
        match self {
            AllocationOrder::Peak => HeapOrder::Peak,
            AllocationOrder::Bytes => HeapOrder::Bytes,
            AllocationOrder::Allocations => HeapOrder::Allocations,
            AllocationOrder::Unfreed => HeapOrder::Unfreed,
            AllocationOrder::Untouched => HeapOrder::Untouched,
        }
    }
}

pub(crate) fn heap(args: &Heap) -> anyhow::Result<Exit> {
    let text = |recording: &Recording, style: &Style| shown(args, recording, style);
    if args.command.is_empty() {
        return record::show(&args.recording, text);
    }
    let mut settings = args.settings.clone();
    if settings.source == Source::Auto
        && settings.events.is_empty()
        && let Err(missing) = Emulator::find()
    {
        eprintln!(
            "memgauge: using source malloc, as source emulate does not work here: {}",
            missing.in_full()
        );
        settings.source = Source::Malloc;
    }
    let exit = record::run_and_show(&settings, &args.command, text)?;
    if !args.settings.quiet {
        let output = args.settings.output.display();
        eprintln!("for flame graphs: `memgauge export {output} -f folded -e heap.peak_bytes`");
    }
    Ok(exit)
}

fn shown(args: &Heap, recording: &Recording, style: &Style) -> anyhow::Result<String> {
    let mut symbols = Symbols::of(recording.path());
    let options = Options {
        allocation_paths: true,
        ..Options::default()
    };
    let summary = summarise(recording, &mut symbols, &options)?;
    heap_text(&summary, args.by.order(), args.sites, style).ok_or_else(|| {
        usage(format!(
            "failed to show the heap of `{}`: it has no allocations; record the program with \
             `memgauge heap -- CMD`, without --sets, --no-data or a source other than emulate or \
             malloc; if it has an allocator of its own, name it with --alloc and --free",
            recording.path().display()
        ))
    })
}
