//! `memgauge calibrate`, and the storage of its results.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use memgauge_analyze::bandwidth::{LossModel, LossPoint};
use memgauge_emulate::geometry;
use memgauge_machine::{Config, Delivery};
use memgauge_recording::Writer;
use memgauge_trace::{MachineFacts, Manifest, OverflowBlock, Pid, Tid, catalogue};
use serde::{Deserialize, Serialize};

use super::args::Calibrate;
use super::loops::{Loop, Measured, measure};
use crate::outcome::{Exit, usage};
use crate::terminal;
use crate::units::DeliveryName;
use crate::whole_file;

/// Default periods.
const PERIODS: [u64; 16] = [
    10, 20, 50, 100, 200, 300, 360, 400, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
];
/// Version of the file format.
const VERSION: u32 = 2;

/// A calibration as stored in a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Calibration {
    /// Version of the file's format.
    pub(crate) version: u32,
    /// The machine that it applies to.
    pub(crate) machine: MachineFacts,
    /// Name of the delivery.
    pub(crate) delivery: String,
    /// The event.
    pub(crate) event: String,
    /// Losses by period and density.
    pub(crate) points: Vec<LossPoint>,
}

/// Measures losses, prints them and stores them.
pub(crate) fn calibrate(args: &Calibrate) -> anyhow::Result<Exit> {
    if args.delivery.0 == Delivery::Ideal {
        return Err(usage(
            "failed to calibrate: ideal delivery loses nothing; name another with --delivery",
        ));
    }
    let config = geometry::machine(&args.machine)?;
    let periods = match args.periods.is_empty() {
        true => PERIODS.to_vec(),
        false => args.periods.clone(),
    };
    let mut model = Vec::new();
    let mut others = Vec::new();
    for &period in &periods {
        let one = |what| {
            measure(
                &config,
                args.delivery.0,
                args.event.event,
                period,
                what,
                args.repeat,
            )
        };
        for what in Loop::DENSITIES {
            model.extend(one(what)?);
        }
        for what in [Loop::Sweep, Loop::Split] {
            others.extend(one(what)?);
        }
    }
    let kept = Calibration {
        version: VERSION,
        machine: config.to_facts(),
        delivery: args.delivery.name().to_owned(),
        event: catalogue::name(args.event.event).unwrap_or("?").to_owned(),
        points: model.iter().map(|m| m.point.clone()).collect(),
    };
    let prefetched = prefetchers(&config, args)?;
    let stored = stored_a_second()?;
    let path = match args.dry_run {
        true => None,
        false => Some(kept.store()?),
    };
    let all: Vec<&Measured> = model.iter().chain(&others).collect();
    let text = match args.json {
        true => {
            let value = serde_json::json!({
                "schema_version": 1, "provenance": "modelled", "calibration": kept,
                "measured": all, "seen_with_prefetchers": prefetched,
                "stored_a_second": stored,
            });
            format!("{value:#}\n")
        }
        false => text(&kept, &all, prefetched, stored, path.as_ref()),
    };
    terminal::print(&text)?;
    Ok(Exit::Success)
}

/// Minimum share of memory's lines that the event must count with all prefetchers.
fn prefetchers(config: &Config, args: &Calibrate) -> anyhow::Result<f64> {
    let mut with = config.clone();
    with.prefetch.next_line = true;
    with.prefetch.stride = true;
    let pmu = memgauge_machine::PmuConfig {
        samples: vec![memgauge_machine::SampleSpec {
            event: args.event.event,
            period: 1000,
        }],
        ..Default::default()
    };
    let ran = super::loops::run(&with, &pmu, Loop::Linear { instructions: 4 }, 200_000, 0)?;
    Ok(ran.counted as f64 / ran.lines.max(1) as f64)
}

/// Number of overflows that one thread of this machine packs and stores per second: the fastest of
/// three measurements, with times as irregular as a program's.
fn stored_a_second() -> anyhow::Result<f64> {
    const BLOCKS: u64 = 100;
    let most = OverflowBlock::MAX_OVERFLOWS as u64;
    let folder = tempfile::tempdir().context("failed to make a temporary folder")?;
    let mut best = 0.0f64;
    for round in 0..3 {
        let path = folder.path().join(round.to_string());
        let mut writer = Writer::create(&path, Manifest::default())?;
        let start = Instant::now();
        for block in 0..BLOCKS {
            let irregular = |n: u64| n * 700 + (n.wrapping_mul(0x9e37_79b9) >> 12) % 400;
            let times: Vec<u64> = (block * most..(block + 1) * most).map(irregular).collect();
            pack(&times, &mut writer)?;
        }
        writer.flush()?;
        best = best.max((BLOCKS * most) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn pack(mut times: &[u64], writer: &mut Writer) -> anyhow::Result<()> {
    let (pid, tid, step) = (Pid(1), Tid(1), OverflowBlock::RESOLUTION_NS);
    while let Some(block) =
        OverflowBlock::from_times(&mut times, pid, tid, catalogue::LLC_MISS, 10, step)
    {
        writer.push(block)?;
    }
    Ok(())
}

fn text(
    kept: &Calibration,
    all: &[&Measured],
    prefetched: f64,
    stored: f64,
    path: Option<&PathBuf>,
) -> String {
    let mut text = format!(
        "CALIBRATION  {} by {} on {}; modelled\n\n",
        kept.event, kept.delivery, kept.machine.name
    );
    text += "  lost: events lost with each record (v/a - t). recorded, counted: share of memory's lines\n  \
             that records stand for, and that the reference counter shows.\n\n";
    text +=
        "  period  loop        apart ns     lost  error  recorded  counted  record ns  slowdown\n";
    for m in all {
        text += &format!(
            "  {:>6}  {:<10}  {:>8.1}  {:>7.2}  {:>5.2}  {:>7.1}%  {:>6.1}%  {:>9.0}  {:>8.2}\n",
            m.point.period,
            m.point.name,
            m.point.spacing_ns,
            m.point.lost,
            m.point.error,
            m.recorded * 100.0,
            m.counted * 100.0,
            m.point.record_ns,
            m.slowdown
        );
    }
    text += &format!(
        "\n  With both prefetchers the event counts {:.1} % of memory's lines on linear/4.\n",
        prefetched * 100.0
    );
    text += &format!(
        "  One thread of this machine packs and stores {:.0} million overflows a second (measured).\n",
        stored / 1e6
    );
    if let Some(path) = path {
        text += &format!(
            "  Kept in {}; `memgauge bandwidth` uses it.\n",
            path.display()
        );
    }
    text
}

/// Folder of calibrations, if this user has one.
fn folder() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("memgauge").join("calibration"))
}

fn file_name(machine: &str, delivery: &str, event: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let name = format!("{machine}-{delivery}-{event}")
        .chars()
        .map(plain)
        .collect::<String>();
    format!("{name}.json")
}

impl Calibration {
    fn store(&self) -> anyhow::Result<PathBuf> {
        let folder = folder().context(
            "failed to find a place for calibrations: neither XDG_CONFIG_HOME nor HOME is set",
        )?;
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("failed to make `{}`", folder.display()))?;
        let path = folder.join(file_name(&self.machine.name, &self.delivery, &self.event));
        let text = serde_json::to_string_pretty(self)?;
        whole_file::write(&path, text.as_bytes())
            .with_context(|| format!("failed to write `{}`", path.display()))?;
        Ok(path)
    }

    /// Calibration of a machine with exactly this geometry, if there is one.
    pub(crate) fn find(
        machine: &MachineFacts,
        delivery: &str,
        event: &str,
    ) -> anyhow::Result<Option<Calibration>> {
        let Some(folder) = folder() else {
            return Ok(None);
        };
        let path = folder.join(file_name(&machine.name, delivery, event));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context(format!("failed to read `{}`", path.display())),
        };
        let kept: Calibration = serde_json::from_str(&text).with_context(|| {
            format!(
                "failed to understand calibrations in `{}`: make them again with `memgauge \
                calibrate`",
                path.display()
            )
        })?;
        let same = without_prefetchers(&kept.machine) == without_prefetchers(machine);
        Ok((kept.version == VERSION && same).then_some(kept))
    }

    /// Loss model that corrects bandwidth.
    pub(crate) fn model(&self) -> LossModel {
        LossModel::new(self.points.iter().cloned())
    }
}

/// A machine as stored in a calibration, which applies with and without prefetchers.
fn without_prefetchers(machine: &MachineFacts) -> MachineFacts {
    let mut facts = machine.clone();
    facts.prefetchers.clear();
    if let Some(model) = facts.model.as_mut().and_then(|model| model.as_object_mut()) {
        model.remove("prefetch");
    }
    facts
}

/// Name of a delivery in a recording's manifest.
pub(crate) fn recorded_delivery(settings: &std::collections::BTreeMap<String, String>) -> String {
    let ideal = DeliveryName(Delivery::Ideal).name().to_owned();
    settings.get("delivery").cloned().unwrap_or(ideal)
}
