//! Checks and preparations before a recording: options of the source, events, output directory.

use std::path::Path;

use anyhow::{Context, bail};
use memgauge_console::Source;
use memgauge_console::access::OutputDirectory;
use memgauge_console::outcome::usage;
use memgauge_host::unwind;
use memgauge_live::sampling::StackRequest;
use memgauge_live::stat::RING_PAGES;
use memgauge_live::target::Target;
use memgauge_machine::Delivery;

use crate::args::{CallGraphMethod, MAX_STACK, RecordingSettings};
use crate::units::EventSpec;

/// Default machine.
const HOST: &str = "host";

/// Default sampled events of the modelled machine: those that a report needs, rare enough to cost
/// little.
const MODELLED: &str = "llc.miss:127,l1d.miss:4099";
/// The same with cycles, because stacks also show the callers of the code that takes time.
const MODELLED_WITH_CALLS: &str = "cycles:20011,llc.miss:127,l1d.miss:4099";

/// Refuses options without effect on the source, since a user who sets one expects an effect.
pub(crate) fn refuse_unused(settings: &RecordingSettings, source: Source) -> anyhow::Result<()> {
    let emulate = source == Source::Emulate;
    let clock = source == Source::Clock;
    let malloc = source == Source::Malloc;
    let is_modelled = !settings.modelled.prefetch.is_empty()
        || settings.modelled.machine != HOST
        || settings.modelled.seed.is_some()
        || settings.delivery.0 != Delivery::Ideal
        || !settings.what_if.is_empty()
        || settings.data_accesses
        || settings.sets.is_some();
    let all = [
        (
            "--overhead",
            (emulate || malloc) && settings.overhead.is_some(),
        ),
        ("-F", (emulate || malloc) && settings.frequency.is_some()),
        ("--registers", (emulate || malloc) && settings.registers),
        (
            "--physical",
            (emulate || clock || malloc) && settings.physical,
        ),
        (
            "--call-graph",
            (emulate || malloc) && settings.call_graph.is_some(),
        ),
        (
            "--max-stack",
            (emulate || malloc) && settings.max_stack != MAX_STACK,
        ),
        ("--function", !emulate && !settings.functions.is_empty()),
        ("-e", (clock || malloc) && !settings.events.is_empty()),
        ("-c", clock && settings.period.is_some()),
        ("-g", malloc && settings.stacks),
        ("--ring", malloc && settings.ring.is_some()),
        ("--region", malloc && !settings.regions.is_empty()),
        (
            "--no-data, --alloc, --free and --reset",
            malloc
                && (settings.no_data
                    || !settings.allocators.is_empty()
                    || !settings.deallocators.is_empty()),
        ),
        (
            "--machine, --prefetch, --seed, --what-if, --data-accesses, --delivery and --sets",
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
        Source::Malloc => (
            "malloc",
            "it records calls of malloc and free with their callers; set the bytes between two \
            samples with -c",
        ),
        Source::Clock => ("clock", "it samples by a timer: set its frequency with -F"),
        Source::Auto | Source::Pmu => ("pmu", "they are for source emulate: leave them out"),
    };
    Err(usage(format!(
        "failed to record: source {name} has no use for {}: {instead}",
        unused.join(", ")
    )))
}

/// Options for call stacks, if requested.
pub(crate) fn stacks(settings: &RecordingSettings) -> Option<StackRequest> {
    let way = settings
        .call_graph
        .or(settings.stacks.then_some(CallGraphMethod::Fp));
    way.map(|way| StackRequest {
        max_frames: settings.max_stack,
        copied_bytes: match way {
            CallGraphMethod::Fp => None,
            CallGraphMethod::Dwarf(bytes) => Some(bytes),
        },
    })
}

/// Ring pages for copied stacks: room for 250 copies of 8 KiB, which a CPU produces in a quarter of
/// a second at 1000 Hz.
const COPIES_RING_PAGES: usize = 512;

/// Pages of each ring buffer, as requested or by the size of samples.
pub(crate) fn ring_pages(settings: &RecordingSettings) -> usize {
    let usual = match settings.call_graph {
        Some(CallGraphMethod::Dwarf(_)) => COPIES_RING_PAGES,
        _ => RING_PAGES,
    };
    settings.ring.unwrap_or(usual)
}

/// Refuses to unwind stacks on machines that do not support it.
pub(crate) fn refuse_stacks(settings: &RecordingSettings) -> anyhow::Result<()> {
    let is_dwarf = matches!(settings.call_graph, Some(CallGraphMethod::Dwarf(_)));
    match is_dwarf && !unwind::is_possible() {
        true => Err(usage(
            "failed to record call stacks: memgauge unwinds those of x86-64 and ARM64 only: use \
            --call-graph fp",
        )),
        false => Ok(()),
    }
}

/// Refuses regions of running programs: only a program that memgauge starts reports them.
pub(crate) fn refuse_regions_of_running(
    settings: &RecordingSettings,
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

/// The requested events as events of the modelled machine.
pub(crate) fn modelled(settings: &RecordingSettings) -> Result<Vec<EventSpec>, String> {
    let text = match settings.events.is_empty() {
        true if settings.stacks => MODELLED_WITH_CALLS.to_owned(),
        true => MODELLED.to_owned(),
        false => settings.events.join(","),
    };
    text.split(',').map(str::parse).collect()
}

/// Makes room for a recording. An existing one is renamed to `DIR.old` and replaces an earlier one
/// there, as perf does with `perf.data.old`. `replace` deletes it instead.
///
/// The recording gets its permissions when the result is dropped.
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
