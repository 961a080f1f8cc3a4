//! `--source clock`: timer samples whose data addresses are rebuilt.

use anyhow::Context;
use memgauge_analyze::{Analysis, Heat, HeatMap};
use memgauge_collect::clock::{self, Options};
use memgauge_collect::pmu::target::Target;
use memgauge_collect::sys;
use memgauge_report::{Share, Style, heat_text};
use memgauge_trace::recording::{Recording, Selection};
use memgauge_trace::{CommandEnd, Manifest, Module, Sample};

use crate::args::{Settings, Source};
use crate::{record, sample};

/// Samples a second where nothing else is said.
const DEFAULT_HERTZ: u64 = 1000;

/// Samples a command, or whoever runs already.
pub(crate) fn run(
    settings: &Settings,
    (target, while_running): (Target, Option<Vec<String>>),
    talk: bool,
) -> anyhow::Result<CommandEnd> {
    record::refuse_unused(settings, Source::Clock)?;
    let options = Options {
        target,
        while_running,
        output: settings.output.clone(),
        period_ns: 1_000_000_000 / settings.frequency.unwrap_or(DEFAULT_HERTZ),
        ring_pages: settings.ring,
        keep_registers: settings.registers,
        overhead: settings.overhead.map(|percent| percent.0 / 100.0),
    };
    record::make_room(&settings.output, settings.force)?;
    sys::process::catch_interrupts().context("failed to catch interrupts")?;
    let outcome = clock::record(&options)?;
    if talk {
        sample::say(&outcome);
    }
    // Of processes that were attached to, none is ours to report the end of.
    Ok(outcome.end.unwrap_or(CommandEnd::Exited(0)))
}

/// Where the addresses of live samples lie, for a recording that has any.
pub(crate) fn section(recording: &Recording, style: &Style) -> anyhow::Result<Option<String>> {
    let manifest = recording.manifest();
    let shares = shares(manifest);
    let with_address = |name: &str| name.starts_with("event.") && name.ends_with(".with_address");
    let sampled: u64 = manifest
        .totals
        .iter()
        .filter_map(|(name, count)| with_address(name).then_some(*count))
        .sum();
    if shares.is_empty() && sampled == 0 {
        return Ok(None);
    }
    let modules = modules(recording)?;
    let describe = |ip: u64| place(&modules, ip);
    Ok(Some(heat_text(
        &heat(recording)?,
        &shares,
        &describe,
        style,
    )))
}

fn heat(recording: &Recording) -> anyhow::Result<HeatMap> {
    let mut heat = Heat::default();
    for batch in recording.rows::<Sample>(&Selection::all().columns(&["time_ns", "ip", "addr"])) {
        heat.observe(&batch?);
    }
    Ok(heat.finish())
}

fn shares(manifest: &Manifest) -> Vec<Share> {
    let names = [
        (
            "samples.exact",
            "exact: an operand of the sampled instruction",
        ),
        (
            "samples.previous",
            "previous: an operand of the instruction before",
        ),
        ("samples.next", "next: an operand of an instruction ahead"),
        ("samples.no_operand", "none: no operand in memory near"),
        (
            "samples.no_registers",
            "none: registers overwritten or not known",
        ),
        (
            "samples.no_base",
            "none: relative to FS or GS, whose bases samples lack",
        ),
        ("samples.no_code", "none: code could not be read"),
    ];
    let known = names
        .iter()
        .filter_map(|(key, name)| Some((*name, *manifest.totals.get(*key)?)));
    known.collect()
}

fn modules(recording: &Recording) -> anyhow::Result<Vec<Module>> {
    let mut all = Vec::new();
    for batch in recording.rows::<Module>(&Selection::all()) {
        all.extend(batch?.into_iter().filter(|m| m.executable));
    }
    Ok(all)
}

/// File and offset of an instruction.
fn place(modules: &[Module], ip: u64) -> String {
    let inside = |m: &&Module| (m.start.0..m.end.0).contains(&ip);
    let Some(module) = modules.iter().rev().find(inside) else {
        return "[unknown]".to_owned();
    };
    let file = module.path.rsplit('/').next().unwrap_or(&module.path);
    format!("{file}+{:#x}", ip - module.start.0 + module.file_offset)
}
