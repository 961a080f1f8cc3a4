//! Losses of overflow records, measured on the modelled machine, by which bandwidth is corrected.
//!
//! Loops with known accesses run at many periods. The difference between the accesses and what the
//! records stand for is what each record lost. A [`Calibration`] is stored for each machine,
//! delivery and event.
#![forbid(unsafe_code)]

mod loops;
#[cfg(test)]
mod sweep;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use memgauge_analyze::bandwidth::{LossModel, LossPoint};
use memgauge_console::whole_file;
use memgauge_machine::{Config, Delivery};
use memgauge_recording::Writer;
use memgauge_trace::{
    EventId, MachineFacts, Manifest, OverflowBlock, Pid, SourceSettings, Tid, catalogue,
};
use serde::{Deserialize, Serialize};

use loops::{Loop, MeasuredLoop, measure, run};

/// Default periods.
pub const PERIODS: [u64; 16] = [
    10, 20, 50, 100, 200, 300, 360, 400, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
];
/// Version of the file format.
const VERSION: u32 = 2;

/// A calibration as stored in a file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of the file's format.
    pub version: u32,
    /// The machine that it applies to.
    pub machine: MachineFacts,
    /// Name of the delivery.
    pub delivery: String,
    /// The event.
    pub event: String,
    /// Losses by period and density.
    pub points: Vec<LossPoint>,
}

/// Settings of a measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The modelled machine.
    pub machine: Config,
    /// How overflows become records.
    pub delivery: Delivery,
    /// Name of the delivery.
    pub delivery_name: String,
    /// Event that overflows.
    pub event: EventId,
    /// Periods. All of [`PERIODS`] if there are none.
    pub periods: Vec<u64>,
    /// Runs of each loop.
    pub repeat: u32,
}

/// Losses by period and loop.
#[derive(Clone, Debug)]
pub struct MeasuredLosses {
    /// The losses that correct a recording.
    pub calibration: Calibration,
    measured: Vec<MeasuredLoop>,
    /// Share of memory's lines that the event counts with all prefetchers.
    seen_with_prefetchers: f64,
    /// Overflows that one thread of this machine packs and stores per second.
    stored_per_s: f64,
}

impl MeasuredLosses {
    /// Measures the losses.
    ///
    /// # Errors
    /// The machine has no such event, or there is no room for temporary files.
    pub fn measure(settings: &Settings) -> anyhow::Result<MeasuredLosses> {
        let periods = match &settings.periods[..] {
            [] => &PERIODS[..],
            named => named,
        };
        let mut model = Vec::new();
        let mut others = Vec::new();
        for &period in periods {
            for accesses in Loop::DENSITIES {
                model.extend(measure(settings, period, accesses)?);
            }
            for accesses in [Loop::Sweep, Loop::Split] {
                others.extend(measure(settings, period, accesses)?);
            }
        }
        let calibration = Calibration {
            version: VERSION,
            machine: settings.machine.to_facts(),
            delivery: settings.delivery_name.clone(),
            event: catalogue::name(settings.event).unwrap_or("?").to_owned(),
            points: model.iter().map(|m| m.point.clone()).collect(),
        };
        model.extend(others);
        Ok(MeasuredLosses {
            calibration,
            measured: model,
            seen_with_prefetchers: seen_with_prefetchers(settings)?,
            stored_per_s: stored_per_s()?,
        })
    }

    /// The losses as JSON (docs/bandwidth.md).
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "schema_version": 1, "provenance": "modelled", "calibration": self.calibration,
            "measured": self.measured, "seen_with_prefetchers": self.seen_with_prefetchers,
            "stored_a_second": self.stored_per_s,
        })
    }

    /// The losses as a table. `path` is where the calibration was stored.
    pub fn text(&self, path: Option<&Path>) -> String {
        let kept = &self.calibration;
        let mut text = format!(
            "CALIBRATION  {} by {} on {}; modelled\n\n",
            kept.event, kept.delivery, kept.machine.name
        );
        text += "  lost: events lost with each record (v/a - t). recorded, counted: share of memory's lines\n  \
                 that records stand for, and that the reference counter shows.\n\n";
        text += "  period  loop        apart ns     lost  error  recorded  counted  record ns  slowdown\n";
        for m in &self.measured {
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
            self.seen_with_prefetchers * 100.0
        );
        text += &format!(
            "  One thread of this machine packs and stores {:.0} million overflows a second (measured).\n",
            self.stored_per_s / 1e6
        );
        if let Some(path) = path {
            text += &format!(
                "  Kept in {}; `memgauge bandwidth` uses it.\n",
                path.display()
            );
        }
        text
    }
}

/// Minimum share of memory's lines that the event must count with all prefetchers.
fn seen_with_prefetchers(settings: &Settings) -> anyhow::Result<f64> {
    let mut with = settings.machine.clone();
    with.prefetch.next_line = true;
    with.prefetch.stride = true;
    let pmu = memgauge_machine::PmuConfig {
        samples: vec![memgauge_machine::SampleSpec {
            event: settings.event,
            period: 1000,
        }],
        ..Default::default()
    };
    let ran = run(&with, &pmu, Loop::Linear { instructions: 4 }, 200_000, 0)?;
    Ok(ran.counted as f64 / ran.lines.max(1) as f64)
}

/// Number of overflows that one thread of this machine packs and stores per second: the fastest of
/// three measurements, with times as irregular as a program's.
fn stored_per_s() -> anyhow::Result<f64> {
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
    /// Stores it for [`find`](Calibration::find), and returns the file.
    ///
    /// # Errors
    /// There is no home folder, or writing failed.
    pub fn store(&self) -> anyhow::Result<PathBuf> {
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
    ///
    /// # Errors
    /// The stored file cannot be read or makes no sense.
    pub fn find(
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
    pub fn model(&self) -> LossModel {
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

/// Name of the delivery of a recording.
pub fn recorded_delivery(settings: &SourceSettings) -> String {
    let delivery = settings.delivery.as_deref();
    delivery.unwrap_or("ideal").to_owned()
}
