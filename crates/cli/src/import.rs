//! `memgauge import`: recordings that others made.

use std::path::PathBuf;

use clap::Args;
use memgauge_analyze::sentence;
use memgauge_import::{self as import, Imported, Options};
use serde_json::{Value, json};

use crate::outcome::Exit;
use crate::{record, terminal};

const EXAMPLES: &str = "\
Examples:
  memgauge import perf.data                  to memgauge.mg
  memgauge import perf.data -o run.mg && memgauge report run.mg";

/// Make a recording of what perf recorded
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Import {
    /// The file that `perf record` wrote, compressed or not, or its stream
    #[arg(value_name = "FILE", default_value = "perf.data")]
    input: PathBuf,
    /// Directory to write the recording to
    #[arg(short, long, value_name = "DIR", default_value = "memgauge.mg")]
    output: PathBuf,
    /// Replace the recording if it exists
    #[arg(short, long)]
    force: bool,
    /// Print what was imported as JSON
    #[arg(long)]
    json: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

/// Imports, and says what there was.
pub(crate) fn import(args: &Import) -> anyhow::Result<Exit> {
    import::check(&args.input)?;
    record::make_room(&args.output, args.force)?;
    let options = Options {
        input: args.input.clone(),
        output: args.output.clone(),
    };
    let imported = import::import(&options)?;
    for problem in &imported.problems {
        eprintln!(
            "memgauge: {}: {problem}; imported what comes before",
            args.input.display()
        );
    }
    if !args.quiet {
        let text = if args.json {
            as_json(&imported)
        } else {
            as_text(args, &imported)
        };
        terminal::print(&text)?;
    }
    Ok(Exit::Success)
}

fn as_text(args: &Import, imported: &Imported) -> String {
    let mut text = String::from("Samples\n");
    for (name, count) in &imported.samples {
        text += &format!("  {count:>10}  {}\n", plain(name));
    }
    let with = imported.with_address;
    text += &format!("  {with:>10}  of them with a data address\n");
    if imported.series_rows > 0 {
        text += &format!("  {:>10}  counters' values in them\n", imported.series_rows);
    }
    if !imported.sources.is_empty() {
        text += "Where data came from    mean latency (cycles)\n";
        let mut sources: Vec<_> = imported.sources.iter().collect();
        sources.sort_by_key(|(words, (count, _))| (std::cmp::Reverse(*count), (*words).clone()));
        for (words, (count, cycles)) in sources {
            let mean = *cycles as f64 / *count as f64;
            text += &format!("  {count:>10}  {mean:>8.1}  {words}\n");
        }
    }
    text += "Losses\n";
    if imported.losses.is_empty() {
        text += "  none\n";
    }
    for loss in &imported.losses {
        let (_, meaning) = sentence(loss.kind);
        text += &format!("  {:>10}  {} ({meaning})\n", loss.count, loss.detail);
    }
    text + &format!(
        "Recording: {} ({:.1} KiB); show it with `memgauge report {}`\n",
        args.output.display(),
        imported.recording_bytes as f64 / 1024.0,
        args.output.display()
    )
}

/// Without what a terminal would obey.
fn plain(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

fn as_json(imported: &Imported) -> String {
    let samples: Vec<Value> = imported
        .samples
        .iter()
        .map(|(name, count)| json!({"event": name, "samples": count}))
        .collect();
    let sources: Vec<Value> = imported
        .sources
        .iter()
        .map(
            |(words, (n, cycles))| json!({"source": words, "samples": n, "latency_cycles": cycles}),
        )
        .collect();
    let losses: Vec<Value> = imported
        .losses
        .iter()
        .map(|l| json!({"kind": sentence(l.kind).0, "count": l.count, "detail": l.detail}))
        .collect();
    let value = json!({
        "samples": samples, "with_address": imported.with_address,
        "series_rows": imported.series_rows, "records": imported.records,
        "sources": sources, "losses": losses, "problems": imported.problems,
        "recording_bytes": imported.recording_bytes,
    });
    format!("{value:#}\n")
}
