//! Before a recording: the options that its source takes, its events, and room for it.

use std::path::Path;

use anyhow::{Context, bail};
use memgauge_host::unwind;
use memgauge_live::sampling::StackRequest;
use memgauge_live::stat::RING_PAGES;
use memgauge_live::target::Target;
use memgauge_machine::Delivery;

use crate::access::OutputDirectory;
use crate::args::{CallGraph, MAX_STACK, Settings, Source};
use crate::outcome::usage;
use crate::units::EventSpec;

/// The machine that is modelled where none is named.
const HOST: &str = "host";

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
        || settings.modelled.seed.is_some()
        || settings.delivery.0 != Delivery::Ideal
        || !settings.what_if.is_empty()
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
            "--machine, --prefetch, --seed, --what-if, --delivery and --sets",
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
        max_frames: settings.max_stack,
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

/// Makes room for a recording. One that is there is kept as `DIR.old`, in place of an earlier
/// one, as perf keeps `perf.data.old`; `replace` removes it.
///
/// The recording gets its rights when the result is dropped.
pub(crate) fn make_room(path: &Path, replace: bool) -> anyhow::Result<OutputDirectory> {
    clear(path, replace)?;
    Ok(OutputDirectory::new(path))
}

fn clear(path: &Path, replace: bool) -> anyhow::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    if !is_recording(path) && is_empty(path) {
        return Ok(());
    }
    if !is_recording(path) {
        bail!(
            "failed to write `{}`: it exists and is not a recording",
            path.display()
        );
    }
    if replace {
        return remove(path);
    }
    let Some(name) = path.file_name() else {
        bail!(
            "failed to keep the previous recording `{}`: the path ends without a name",
            path.display()
        );
    };
    let mut old = name.to_owned();
    old.push(".old");
    let old = path.with_file_name(old);
    if is_recording(&old) {
        remove(&old)?;
    } else if old.exists() && !is_empty(&old) {
        bail!(
            "failed to keep the previous recording as `{}`: this exists and is not a recording; \
             move it, or use --force to replace the previous recording",
            old.display()
        );
    }
    std::fs::rename(path, &old).with_context(|| {
        let (path, old) = (path.display(), old.display());
        format!("failed to keep the previous recording `{path}` as `{old}`")
    })?;
    eprintln!(
        "memgauge: kept the previous recording as `{}`",
        old.display()
    );
    Ok(())
}

fn is_recording(path: &Path) -> bool {
    path.join("manifest.json").exists()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut list| list.next().is_none())
}

fn remove(recording: &Path) -> anyhow::Result<()> {
    std::fs::remove_dir_all(recording)
        .with_context(|| format!("failed to remove `{}`", recording.display()))
}
