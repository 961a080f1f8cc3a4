//! The loops of a calibration on the modelled machine.
//!
//! These are the loops of `memgauge-workloads`, passed directly to a core: without an emulator, and
//! as dense as a compiler would unroll them.

use memgauge_analyze::bandwidth::LossPoint;
use memgauge_machine::{
    AccessKind, Config, Core, Delivered, Delivery, Machine, PmuConfig, SampleSpec, SharedLevels,
};
use memgauge_trace::{EventId, LINE_BYTES as LINE, catalogue};

use crate::Settings;

const BASE: u64 = 0x7f00_0000_0000;

/// A loop of loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loop {
    /// Consecutive lines, with this number of instructions per load.
    Linear { instructions: u32 },
    /// Consecutive lines, each load across two of them.
    Split,
    /// Working sets of all powers of two in turn.
    Sweep,
    /// Each load's address comes from the previous load.
    Chase,
}

impl Loop {
    /// Loops for the loss model, from the densest to the sparsest.
    pub(crate) const DENSITIES: [Loop; 7] = [
        Loop::Linear { instructions: 1 },
        Loop::Linear { instructions: 4 },
        Loop::Linear { instructions: 8 },
        Loop::Linear { instructions: 16 },
        Loop::Linear { instructions: 48 },
        Loop::Linear { instructions: 150 },
        Loop::Chase,
    ];

    /// Number of instructions per load.
    fn instructions(self) -> f64 {
        match self {
            Loop::Linear { instructions } => f64::from(instructions),
            Loop::Split | Loop::Sweep | Loop::Chase => 4.0,
        }
    }

    /// Display name.
    pub(crate) fn name(self) -> String {
        match self {
            Loop::Linear { instructions: 1 } => "linear".to_owned(),
            Loop::Linear { instructions } => format!("linear/{instructions}"),
            Loop::Split => "split".to_owned(),
            Loop::Sweep => "sweep".to_owned(),
            Loop::Chase => "chase".to_owned(),
        }
    }
}

/// Result of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoopRun {
    /// Number of lines that memory delivered up to the last record.
    pub(crate) lines: u64,
    /// Final value of the event's counter.
    pub(crate) counted: u64,
    pub(crate) records: u64,
    /// Time of the last record, or of the end without records.
    pub(crate) time_ns: u64,
    /// Time of the end.
    pub(crate) end_ns: u64,
    pub(crate) delivered: Delivered,
}

struct Feeder<'a> {
    core: &'a mut Core,
    shared: &'a mut SharedLevels,
    event: EventId,
    ran: LoopRun,
}

impl Feeder<'_> {
    fn load(&mut self, instructions: u32, addr: u64) {
        let mut due = self.core.retire(instructions, 1, 0, 0);
        if Core::crosses_line(addr, 8) || !self.core.touch(addr, false) {
            due |= self
                .core
                .access(self.shared, addr, 8, AccessKind::Load)
                .overflow;
        }
        if due {
            self.note();
        }
    }

    fn note(&mut self) {
        let before = self.ran.records;
        self.core.take_overflows(|_| self.ran.records += 1);
        if self.ran.records > before {
            self.mark();
        }
    }

    fn mark(&mut self) {
        let counts = self.core.counts();
        self.ran.lines = counts.get(catalogue::DRAM_READ_BYTES) / LINE;
        self.ran.counted = counts.get(self.event);
        self.ran.time_ns = self.core.time_ns();
    }

    fn run(&mut self, what: Loop, lines: u64, seed: u64) {
        let base = BASE + seed * 37 * LINE;
        match what {
            Loop::Linear { instructions } => {
                // A run may start anywhere between two overflows.
                self.load(instructions, base);
                (0..lines + seed * 61).for_each(|n| self.load(instructions, base + n * LINE));
            }
            Loop::Split => (0..lines).for_each(|n| self.load(4, base + 60 + n * LINE)),
            Loop::Sweep => self.sweep(lines, base),
            Loop::Chase => {
                let mut at = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for _ in 0..lines {
                    at ^= at << 13;
                    at ^= at >> 7;
                    at ^= at << 17;
                    self.load(4, base + (at >> 32) * LINE);
                }
            }
        }
    }

    fn sweep(&mut self, lines: u64, base: u64) {
        let each = lines / 12;
        for power in 8..20 {
            let set = 1u64 << power;
            (0..each).for_each(|n| self.load(4, base + (n % set) * LINE));
        }
    }
}

/// Runs a loop over about this number of lines.
pub(crate) fn run(
    config: &Config,
    pmu: &PmuConfig,
    what: Loop,
    lines: u64,
    seed: u64,
) -> anyhow::Result<LoopRun> {
    let mut machine = Machine::new(config.clone(), pmu.clone())?;
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    let event = pmu.samples.first().map_or(catalogue::LLC_MISS, |s| s.event);
    let ran = LoopRun::default();
    let mut feeder = Feeder {
        core,
        shared,
        event,
        ran,
    };
    feeder.run(what, lines, seed);
    if feeder.ran.records == 0 {
        feeder.mark();
    }
    feeder.ran.end_ns = feeder.core.time_ns();
    feeder.ran.delivered = feeder.core.delivered().unwrap_or_default();
    Ok(feeder.ran)
}

/// Measurements of one loop at one period.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct MeasuredLoop {
    /// Losses and density.
    #[serde(flatten)]
    pub(crate) point: LossPoint,
    /// Share of memory's lines that records represent.
    pub(crate) recorded: f64,
    /// Share of memory's lines that the reference counter counted.
    pub(crate) counted: f64,
    /// Number of records in the first run.
    pub(crate) records: u64,
    /// Run time relative to a run without records.
    pub(crate) slowdown: f64,
}

/// Measures a loop at a period in repeated runs. `None` if there are no records.
pub(crate) fn measure(
    settings: &Settings,
    period: u64,
    what: Loop,
) -> anyhow::Result<Option<MeasuredLoop>> {
    let config = &settings.machine;
    let pmu = |delivery| PmuConfig {
        samples: vec![SampleSpec {
            event: settings.event,
            period,
        }],
        delivery,
        ..PmuConfig::default()
    };
    let lines = (period * 20).max(200_000);
    let runs: anyhow::Result<Vec<LoopRun>> = (0..settings.repeat)
        .map(|n| run(config, &pmu(settings.delivery), what, lines, u64::from(n)))
        .collect();
    let runs = runs?;
    let volumes: Vec<_> = runs
        .iter()
        .map(|r| (r.lines as f64, r.records as f64))
        .collect();
    let Some((lost, error)) = memgauge_analyze::bandwidth::fitted(period, &volumes) else {
        return Ok(None);
    };
    let plain = run(config, &pmu(Delivery::Ideal), what, lines, 0)?;
    let first = runs.first().copied().unwrap_or_default();
    let records = first.records.max(1) as f64;
    let cost_cycles = first.delivered.millicycles as f64 / 1000.0;
    let record_ns = cost_cycles / records * 1e9 / config.frequency_hz as f64;
    Ok(Some(MeasuredLoop {
        point: LossPoint {
            name: what.name(),
            period,
            spacing_ns: first.time_ns as f64 / records / period as f64,
            lost,
            error,
            instructions: what.instructions(),
            hidden: first.lines.saturating_sub(first.counted) as f64 / records,
            record_ns,
            dense: matches!(what, Loop::Linear { .. }),
        },
        recorded: records * period as f64 / first.lines.max(1) as f64,
        counted: first.counted as f64 / first.lines.max(1) as f64,
        records: first.records,
        slowdown: first.end_ns as f64 / plain.end_ns.max(1) as f64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(repeat: u32) -> Settings {
        Settings {
            machine: Config::preset("i5-6600k").unwrap(),
            delivery: Delivery::by_name("precise").unwrap(),
            delivery_name: "precise".to_owned(),
            event: catalogue::LLC_MISS,
            periods: Vec::new(),
            repeat,
        }
    }

    #[test]
    fn the_correction_of_the_worst_case_is_within_a_per_cent_at_every_period() {
        let settings = settings(2);
        let dense = Loop::Linear { instructions: 1 };
        let point = |period| measure(&settings, period, dense).unwrap().unwrap();
        let points = [10, 100, 1000, 10_000].map(point);
        let model =
            memgauge_analyze::bandwidth::LossModel::new(points.iter().map(|m| m.point.clone()));
        for period in [10, 20, 50, 100, 300, 1000, 3000, 10_000] {
            // Other lengths and places than those calibrated by.
            let pmu = PmuConfig {
                samples: vec![SampleSpec {
                    event: catalogue::LLC_MISS,
                    period,
                }],
                delivery: settings.delivery,
                ..PmuConfig::default()
            };
            let ran = run(&settings.machine, &pmu, dense, 300_000, 9).unwrap();
            let spacing = ran.time_ns as f64 / ran.records as f64 / period as f64;
            let lost = model.at(period).lost(spacing).0;
            let total = ran.records as f64 * (period as f64 + lost);
            let error = total / ran.lines as f64 - 1.0;
            let limit = if [10, 100, 1000, 10_000].contains(&period) {
                0.01
            } else {
                0.04
            };
            assert!(error.abs() < limit, "{period}: {error}");
        }
    }

    #[test]
    fn split_loads_are_counted_by_line_here_and_a_chase_loses_little() {
        let settings = settings(1);
        let lost = |what| {
            let m = measure(&settings, 100, what);
            m.unwrap().unwrap().point.lost
        };
        assert!(lost(Loop::Chase) < 3.0 && lost(Loop::Split) > 10.0);
    }
}
