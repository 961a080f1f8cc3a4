//! Before a recording: the options that its source takes, its events, and room for it.

use std::path::Path;

use anyhow::{Context, bail};
use memgauge_host::unwind;
use memgauge_live::sample::StackRequest;
use memgauge_live::stat::RING_PAGES;
use memgauge_live::target::Target;
use memgauge_machine::Delivery;

use crate::access::OutputDirectory;
use crate::args::{CallGraph, MAX_STACK, Settings, Source};
use crate::outcome::usage;
use crate::units::EventSpec;

/// The machine that is modelled where none is named.
const HOST: &str = "host";

/// Name of a recording that the user did not name; the next one replaces it.
const DEFAULT_OUTPUT: &str = "memgauge.mg";

/// Events of the modelled machine that are sampled where none is named: those that
/// a report needs, rarely enough not to matter.
const MODELLED: &str = "llc.miss:127,l1d.miss:4099";

/// Refuses options that a source would have no use for: who names one expects something
/// of it.
pub(crate) fn refuse_unused(settings: &Settings, source: Source) -> anyhow::Result<()> {
    let emulate = source == Source::Emulate;
    let clock = source == Source::Clock;
    let is_modelled = !settings.modelled.prefetch.is_empty()
        || settings.modelled.machine != HOST
        || settings.delivery.0 != Delivery::Ideal
        || settings.sets.is_some();
    let all = [
        ("--overhead", emulate && settings.overhead.is_some()),
        ("-F", emulate && settings.frequency.is_some()),
        ("--registers", emulate && settings.registers),
        ("--physical", (emulate || clock) && settings.physical),
        ("--call-graph", emulate && settings.call_graph.is_some()),
        ("--max-stack", emulate && settings.max_stack != MAX_STACK),
        ("--function", !emulate && !settings.functions.is_empty()),
        ("-e", clock && !settings.events.is_empty()),
        ("-c", clock && settings.period.is_some()),
        (
            "--machine, --prefetch, --delivery and --sets",
            !emulate && is_modelled,
        ),
    ];
    let unused: Vec<&str> = all.iter().filter(|o| o.1).map(|o| o.0).collect();
    if unused.is_empty() {
        return Ok(());
    }
    let (name, instead) = match source {
        Source::Clock | Source::Auto | Source::Pmu if unused.contains(&"--function") => (
            if clock { "clock" } else { "pmu" },
            "only source emulate knows functions as regions: mark them in the program \
            (docs/regions.md)",
        ),
        Source::Emulate if unused.contains(&"--call-graph") => {
            ("emulate", "it knows all calls: record them with -g")
        }
        Source::Emulate => (
            "emulate",
            "it runs the program on a modelled machine: use --source clock or -e to sample this \
            machine",
        ),
        Source::Clock => ("clock", "it samples by a timer: set its frequency with -F"),
        Source::Auto | Source::Pmu => ("pmu", "they are for source emulate: leave them out"),
    };
    Err(usage(format!(
        "failed to record: source {name} has no use for {}: {instead}",
        unused.join(", ")
    )))
}

/// Call stacks, where they are wanted.
pub(crate) fn stacks(settings: &Settings) -> Option<StackRequest> {
    let way = settings
        .call_graph
        .or(settings.stacks.then_some(CallGraph::Fp));
    way.map(|way| StackRequest {
        frames: settings.max_stack,
        copied_bytes: match way {
            CallGraph::Fp => None,
            CallGraph::Dwarf(bytes) => Some(bytes),
        },
    })
}

/// Pages of a ring that copies of stacks need: room for 250 of 8 KiB, which a processor takes in
/// a quarter of a second at 1000 Hz.
const COPIES_RING_PAGES: usize = 512;

/// Pages of each ring: as said, else by the size of samples.
pub(crate) fn ring_pages(settings: &Settings) -> usize {
    let usual = match settings.call_graph {
        Some(CallGraph::Dwarf(_)) => COPIES_RING_PAGES,
        _ => RING_PAGES,
    };
    settings.ring.unwrap_or(usual)
}

/// Refuses to unwind stacks where this cannot be done.
pub(crate) fn refuse_stacks(settings: &Settings) -> anyhow::Result<()> {
    let is_dwarf = matches!(settings.call_graph, Some(CallGraph::Dwarf(_)));
    match is_dwarf && !unwind::is_possible() {
        true => Err(usage(
            "failed to record call stacks: memgauge unwinds those of x86-64 and ARM64 only: use \
            --call-graph fp",
        )),
        false => Ok(()),
    }
}

/// Refuses regions of programs that run already: only one that memgauge starts tells them.
pub(crate) fn refuse_regions_of_running(
    settings: &Settings,
    target: &Target,
) -> anyhow::Result<()> {
    if settings.regions.is_empty() || matches!(target, Target::Command(_)) {
        return Ok(());
    }
    Err(usage(
        "failed to record regions of a running program: only one that memgauge starts tells them: \
        start it with `memgauge record --region NAME -- CMD`",
    ))
}

/// The events named, as those of the modelled machine.
pub(crate) fn modelled(settings: &Settings) -> Result<Vec<EventSpec>, String> {
    let text = match settings.events.is_empty() {
        true => MODELLED.to_owned(),
        false => settings.events.join(","),
    };
    text.split(',').map(str::parse).collect()
}

/// Moves the last unnamed recording aside, as perf does; refuses to touch a
/// named one without `--force`.
///
/// The recording gets its rights when the result is dropped.
pub(crate) fn make_room(path: &Path, force: bool) -> anyhow::Result<OutputDirectory> {
    replace(path, force)?;
    Ok(OutputDirectory::new(path))
}

fn replace(path: &Path, force: bool) -> anyhow::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let recording = path.join("manifest.json").exists();
    if !recording && std::fs::read_dir(path).is_ok_and(|mut list| list.next().is_none()) {
        return Ok(());
    }
    if !recording {
        bail!(
            "failed to write `{}`: it exists and is not a recording",
            path.display()
        );
    }
    if path == Path::new(DEFAULT_OUTPUT) {
        let old = path.with_extension("mg.old");
        if old.join("manifest.json").exists() {
            std::fs::remove_dir_all(&old)
                .with_context(|| format!("failed to remove `{}`", old.display()))?;
        }
        return std::fs::rename(path, &old)
            .with_context(|| format!("failed to move `{}` aside", path.display()));
    }
    if !force {
        bail!(
            "failed to write `{}`: it exists (use --force to replace it)",
            path.display()
        );
    }
    std::fs::remove_dir_all(path).with_context(|| format!("failed to remove `{}`", path.display()))
}
