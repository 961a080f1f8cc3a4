//! `memgauge numa`: which NUMA node uses which memory of a process, and what to move.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use memgauge_analyze::{Advice, PageNodes, PageUseByNode, PlacedRange, Placement, placement};
use memgauge_console::Source;
use memgauge_console::outcome::Exit;
use memgauge_console::progress;
use memgauge_console::quantities::{Duration as Time, Percent, number_of, overhead, spoken_bytes};
use memgauge_console::terminal;
use memgauge_host::numa::NumaNodes;
use memgauge_host::sys::pages::{move_pages, nodes_of_pages, page_bytes};
use memgauge_host::sys::process::effective_ids;
use memgauge_host::sys::signals::interrupts;
use memgauge_online::{Clean, Reader, Sample, Sharing};
use memgauge_report::placement_text;
use serde_json::{Value, json};

use crate::mappings::ProcessMappings;
use crate::sampler::{SamplingRequest, in_words, is_clock};

const EXAMPLES: &str = "\
Examples:
  memgauge numa -p 4711                  ten seconds of samples, then advice
  memgauge numa -p 4711 --apply          the same, and move the pages
  memgauge numa -p 4711 --json           for scripts";

/// Show which NUMA node uses which memory of a process, and what to move
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Numa {
    /// Watch these processes and those that they start
    #[arg(
        short,
        long,
        value_name = "PIDS",
        value_delimiter = ',',
        required = true
    )]
    pid: Vec<u32>,
    /// Move pages as recommended. Without it, nothing is changed
    #[arg(long)]
    apply: bool,
    /// Sample for this time, or until interrupted
    #[arg(long, value_name = "TIME", default_value = "10s")]
    duration: Time,
    /// Sample this event, as with `memgauge record -e` [default: IBS or PEBS if available, else a
    /// timer]
    #[arg(short, long, value_name = "EVENT")]
    event: Option<String>,
    /// Source of samples
    #[arg(long, value_enum, default_value_t, conflicts_with = "event")]
    source: Source,
    /// Number of events between two samples, or nanoseconds for a timer
    #[arg(short = 'c', long = "count", value_name = "PERIOD", conflicts_with = "overhead",
          value_parser = clap::value_parser!(u64).range(1..))]
    period: Option<u64>,
    /// Limit the share of each thread's CPU time that sampling takes: 0.01% to 50%
    #[arg(long, value_name = "PERCENT", value_parser = overhead)]
    overhead: Option<Percent>,
    /// Maximum number of ranges shown for each process
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// Print JSON (docs/numa.md describes it)
    #[arg(long)]
    json: bool,
}

/// Samples, then prints or follows the recommendations.
pub fn numa(args: &Numa) -> anyhow::Result<Exit> {
    let clock = is_clock(args.source)?;
    for &pid in &args.pid {
        if ProcessMappings::of(pid).is_empty() {
            return Err(no_memory(pid));
        }
    }
    let request = SamplingRequest {
        event: args.event.clone(),
        clock,
        period: args.period,
        overhead: args.overhead.map(|percent| percent.0 / 100.0),
        regions: false,
    };
    // Also check if nothing will be sampled, so that misspelled events are reported.
    request.check_event()?;
    let nodes = NumaNodes::read();
    if nodes.with_memory().count() < 2 {
        return say_one_node(&nodes, args.json);
    }
    let sampled = sample(&request, args, &nodes)?;
    let mut processes = Vec::new();
    for (&pid, usage) in &sampled.usage {
        processes.push(PlacedProcess::place(pid, usage));
    }
    if args.apply {
        for process in &mut processes {
            process.move_pages()?;
        }
    }
    match args.json {
        true => terminal::print(&format!("{:#}\n", as_json(&nodes, &sampled, &processes)))?,
        false => terminal::print(&as_text(args, &sampled, &processes))?,
    }
    Ok(Exit::Success)
}

/// Explains why a process's memory is unknown.
fn no_memory(pid: u32) -> anyhow::Error {
    let why = match std::fs::read(format!("/proc/{pid}/maps")) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let owner = std::fs::metadata(format!("/proc/{pid}")).map(|m| m.uid());
            let own = effective_ids().0;
            refused_memory(own, owner.ok())
        }
        Err(_) => "no such process",
        Ok(_) => "it has no memory of its own: it is a thread of the kernel, or has ended",
    };
    anyhow::anyhow!("failed to look at process `{pid}`: {why}")
}

/// Explains why this user may not inspect a process of another one.
fn refused_memory(own: u32, owner: Option<u32>) -> &'static str {
    match owner {
        Some(owner) if own != 0 && own != owner => {
            "permission denied: it belongs to another user; run memgauge as that user or as root"
        }
        // In a container, root lacks CAP_SYS_PTRACE. Some processes are not dumpable, either.
        _ => {
            "permission denied: reading its memory needs CAP_SYS_PTRACE (in a container, in the \
             container's user namespace)"
        }
    }
}

fn say_one_node(nodes: &NumaNodes, json: bool) -> anyhow::Result<Exit> {
    let text = match json {
        true => format!("{:#}\n", as_json(nodes, &SampledProcesses::default(), &[])),
        false => "This machine has one memory node: all memory is equally near to every \
                  processor, and there is nothing to move.\n"
            .to_owned(),
    };
    terminal::print(&text)?;
    Ok(Exit::Success)
}

fn in_json(nodes: &NumaNodes) -> Value {
    let node = |n: &memgauge_host::numa::NumaNode| {
        json!({
            "node": n.id,
            "cpus": n.cpus,
            "memory_bytes": n.memory_bytes,
            "free_bytes": n.free_bytes,
        })
    };
    nodes.all().iter().map(node).collect()
}

/// Samples of all processes.
#[derive(Default)]
struct SampledProcesses {
    /// Description of the source, or empty if nothing was sampled.
    source: String,
    seconds: f64,
    usage: BTreeMap<u32, PageUseByNode>,
    samples: u64,
    /// Samples without a data address.
    without_address: u64,
    lost: u64,
    notes: Vec<String>,
}

/// Interval at which the buffers are read.
const LISTEN: Duration = Duration::from_millis(50);
/// Number of samples per read.
const AT_ONCE: usize = 4096;

fn sample(
    request: &SamplingRequest,
    args: &Numa,
    nodes: &NumaNodes,
) -> anyhow::Result<SampledProcesses> {
    let (source, profiler) = request.profiler()?;
    let mut reader = profiler.reader(Sharing::Each)?;
    for added in profiler.add_processes(&args.pid) {
        added?;
    }
    terminal::catch_interrupts()?;
    let mut sampled = SampledProcesses {
        source: in_words(&source),
        seconds: 0.0,
        usage: BTreeMap::new(),
        samples: 0,
        without_address: 0,
        lost: 0,
        notes: Vec::new(),
    };
    let bar = progress::spinner(terminal::stderr_is_terminal());
    let began = Instant::now();
    let wanted = Duration::from_nanos(args.duration.ns);
    while began.elapsed() < wanted && interrupts() == 0 {
        std::thread::sleep(LISTEN.min(wanted.saturating_sub(began.elapsed())));
        sampled.read(&mut reader, nodes);
        bar.set_message(format!(
            "memgauge numa: {:.1} of {:.1} s, {} samples",
            began.elapsed().as_secs_f64(),
            wanted.as_secs_f64(),
            sampled.samples
        ));
        bar.tick();
        // All processes have ended.
        if args
            .pid
            .iter()
            .all(|pid| ProcessMappings::of(*pid).is_empty())
        {
            break;
        }
    }
    bar.finish_and_clear();
    profiler.off();
    sampled.read(&mut reader, nodes);
    sampled.seconds = began.elapsed().as_secs_f64();
    let statistics = profiler.all_statistics();
    sampled.lost = statistics
        .iter()
        .map(|s| s.lost + s.account.overwritten + s.refused)
        .sum();
    sampled.notes = profiler.notes();
    profiler.clean(Clean::All);
    Ok(sampled)
}

impl SampledProcesses {
    fn read(&mut self, reader: &mut Reader, nodes: &NumaNodes) {
        let mut batch: Vec<Sample> = Vec::new();
        loop {
            batch.clear();
            let n = reader.read(&mut batch, AT_ONCE);
            for sample in &batch {
                self.samples += 1;
                let node = nodes.nearest_to_cpu(sample.cpu.0);
                let (Some(addr), Some(node), false) = (sample.addr, node, sample.in_kernel) else {
                    self.without_address += 1;
                    continue;
                };
                let usage = self.usage.entry(sample.pid.0);
                let usage = usage.or_insert_with(|| PageUseByNode::new(page_bytes()));
                usage.take(addr.0, node);
            }
            if n < AT_ONCE {
                return;
            }
        }
    }
}

/// Asks the kernel for nodes, and keeps the reason if it refuses.
struct NodeQuery {
    pid: u32,
    refused: Option<std::io::Error>,
}

impl PageNodes for NodeQuery {
    fn nodes_of(&mut self, pages: &[u64]) -> Vec<Option<u32>> {
        match nodes_of_pages(self.pid, pages) {
            Ok(nodes) => nodes.into_iter().map(Result::ok).collect(),
            Err(why) => {
                self.refused = Some(why);
                vec![None; pages.len()]
            }
        }
    }
}

/// A process with its placement and the moves made.
struct PlacedProcess {
    pid: u32,
    command: String,
    placement: Placement,
    /// Why its pages are unknown.
    unknown: Option<String>,
    moved: Vec<MovedRange>,
}

/// A range of pages that was moved.
struct MovedRange {
    region: String,
    start: u64,
    to: u32,
    /// Number of pages on other nodes before and after the move.
    before: u64,
    left: u64,
    why: Option<String>,
}

impl PlacedProcess {
    fn place(pid: u32, usage: &PageUseByNode) -> PlacedProcess {
        let regions = ProcessMappings::of(pid).regions();
        let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let mut query = NodeQuery { pid, refused: None };
        let placement = placement(usage, &regions, &mut query);
        let unknown = match query.refused {
            _ if regions.is_empty() => Some("it has ended".to_owned()),
            Some(why) if why.kind() == std::io::ErrorKind::PermissionDenied => Some(
                "the kernel does not tell this user where its pages lie: run memgauge as root"
                    .to_owned(),
            ),
            why => why.map(|e| e.to_string()),
        };
        PlacedProcess {
            pid,
            command: command.trim_end().to_owned(),
            placement,
            unknown,
            moved: Vec::new(),
        }
    }

    /// Moves pages as recommended.
    fn move_pages(&mut self) -> anyhow::Result<()> {
        for range in &self.placement.ranges {
            if let Advice::Move { to } = range.advice {
                let moved = move_range(self.pid, range, to).with_context(|| {
                    format!(
                        "failed to move pages of process `{}` at {:#x}",
                        self.pid, range.start
                    )
                })?;
                self.moved.push(moved);
            }
        }
        Ok(())
    }
}

/// Number of pages that are queried and moved at a time.
const PAGES_AT_ONCE: u64 = 1 << 16;

fn move_range(pid: u32, range: &PlacedRange, to: u32) -> std::io::Result<MovedRange> {
    let page = page_bytes();
    let mut moved = MovedRange {
        region: range.region.clone(),
        start: range.start,
        to,
        before: 0,
        left: 0,
        why: None,
    };
    let mut start = range.start;
    while start < range.end && interrupts() == 0 {
        let end = range.end.min(start + PAGES_AT_ONCE * page);
        let all: Vec<u64> = (start..end).step_by(page as usize).collect();
        let elsewhere = elsewhere(pid, &all, to)?;
        moved.before += elsewhere.len() as u64;
        // A full node ends the call early. Query afterwards how many pages moved.
        if let Err(why) = move_pages(pid, &elsewhere, to) {
            moved.why.get_or_insert(why.to_string());
        }
        moved.left += self::elsewhere(pid, &elsewhere, to)?.len() as u64;
        start = end;
    }
    Ok(moved)
}

/// Pages in memory that are not on this node.
fn elsewhere(pid: u32, pages: &[u64], node: u32) -> std::io::Result<Vec<u64>> {
    let nodes = nodes_of_pages(pid, pages)?;
    let pages = pages.iter().zip(nodes);
    let elsewhere = pages.filter(|(_, lies_on)| lies_on.is_ok_and(|n| n != node));
    Ok(elsewhere.map(|(page, _)| *page).collect())
}

/// True if the kernel itself moves pages to the nodes that use them.
fn kernel_moves_pages() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/kernel/numa_balancing");
    setting.is_ok_and(|setting| setting.trim() != "0")
}

fn as_text(args: &Numa, sampled: &SampledProcesses, processes: &[PlacedProcess]) -> String {
    let style = terminal::style(false);
    let mut text = format!(
        "{} samples in {:.1} s; {}\n",
        sampled.samples, sampled.seconds, sampled.source
    );
    let losses = [
        (
            sampled.without_address,
            "without an address or in the kernel",
        ),
        (sampled.lost, "lost"),
    ];
    for (samples, what) in losses {
        if samples > 0 {
            text += &format!("  {} {what}\n", number_of(samples, "sample", "s"));
        }
    }
    for note in &sampled.notes {
        text += &format!("  {note}\n");
    }
    if kernel_moves_pages() {
        text += "  the kernel moves pages, too (kernel.numa_balancing)\n";
    }
    for process in processes {
        text += &format!(
            "\nPROCESS {} ({})\n",
            process.pid,
            style.name(&process.command)
        );
        if let Some(why) = &process.unknown {
            text += &format!("  nothing is known of its pages: {why}\n");
            continue;
        }
        text += &placement_text(&process.placement, args.rows, &style);
        text += &moved_text(args, process);
    }
    if processes.is_empty() {
        text += "No sample with an address: was the process idle? A longer --duration or a \
                 smaller -c gives more.\n";
    }
    text
}

fn moved_text(args: &Numa, process: &PlacedProcess) -> String {
    let ranges = &process.placement.ranges;
    let advised = ranges
        .iter()
        .any(|r| matches!(r.advice, Advice::Move { .. }));
    if !args.apply {
        return match advised {
            true => "  Nothing was moved: --apply does so.\n".to_owned(),
            false => String::new(),
        };
    }
    let mut text = String::new();
    for moved in &process.moved {
        let bytes = |pages: u64| spoken_bytes(pages * page_bytes());
        let left = match (moved.left, &moved.why) {
            (0, _) => String::new(),
            (left, Some(why)) => format!("; {} stayed: {why}", bytes(left)),
            (left, None) => format!(
                "; {} stayed: pages that other processes share, that are busy, or for which \
                 the node has no room",
                bytes(left)
            ),
        };
        text += &format!(
            "  moved {} of {} at {:#x} to node {}{left}\n",
            bytes(moved.before - moved.left),
            moved.region,
            moved.start,
            moved.to
        );
    }
    text
}

fn as_json(nodes: &NumaNodes, sampled: &SampledProcesses, processes: &[PlacedProcess]) -> Value {
    let moved = |m: &MovedRange| {
        json!({
            "region": m.region,
            "start": m.start,
            "to": m.to,
            "pages": m.before,
            "pages_left": m.left,
            "why": m.why,
        })
    };
    let process = |p: &PlacedProcess| {
        json!({
            "pid": p.pid,
            "command": p.command,
            "unknown": p.unknown,
            "placement": p.placement,
            "moved": p.moved.iter().map(moved).collect::<Vec<_>>(),
        })
    };
    json!({
        "nodes": in_json(nodes),
        "source": (!sampled.source.is_empty()).then_some(&sampled.source),
        "seconds": sampled.seconds,
        "samples": sampled.samples,
        "without_address": sampled.without_address,
        "lost": sampled.lost,
        "kernel_moves_pages": kernel_moves_pages(),
        "processes": processes.iter().map(process).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_become_root() {
        assert!(refused_memory(1000, Some(0)).contains("or as root"));
        for (own, owner) in [(0, Some(0)), (0, Some(1000)), (1000, Some(1000)), (0, None)] {
            let why = refused_memory(own, owner);
            assert!(
                why.contains("CAP_SYS_PTRACE") && !why.contains("as root"),
                "{why}"
            );
        }
    }
}
