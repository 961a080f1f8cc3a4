//! Checks the correction on random programs whose traffic is known.
//!
//! Each program runs bursts of accesses with computation between them on the modelled machine.
//! Its recording is corrected with a calibration, as a user's recording would be. The truth is
//! the final value of memory's own counter, which the correction does not read.
//!
//! The tests draw a fresh seed and print it. Their limits are counts of programs that a
//! correction as good as the measured one misses in fewer than one run in ten thousand
//! (docs/experiments/bandwidth.md has the measured shares).

use memgauge_analyze::NoSymbols;
use memgauge_analyze::bandwidth::{BandwidthSettings, Correction, LossModel, extent, read};
use memgauge_machine::{
    AccessKind, Config, Core, Delivery, Machine, PmuConfig, SampleSpec, SharedLevels,
};
use memgauge_recording::overflows::OverflowTrace;
use memgauge_recording::{Recording, Writer};
use memgauge_testing::Random;
use memgauge_trace::{
    DeliveryFacts, LINE_BYTES as LINE, Manifest, Pid, Provenance, Sample, SeriesRow, Thread, Tid,
    catalogue,
};

use crate::Settings as CalibrationSettings;
use crate::loops::{Loop, measure};

/// The accesses of a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BurstPattern {
    /// Loads of consecutive lines.
    Scan,
    /// Stores to consecutive lines.
    Fill,
    /// A load and a store of consecutive lines in turn.
    Copy,
    /// Loads of random lines.
    Random,
    /// Eight consecutive lines at a random place.
    Groups,
}

impl BurstPattern {
    const ALL: [BurstPattern; 5] = [
        BurstPattern::Scan,
        BurstPattern::Fill,
        BurstPattern::Copy,
        BurstPattern::Random,
        BurstPattern::Groups,
    ];
}

/// A program and how it is traced.
#[derive(Clone, Copy, Debug)]
struct Case {
    pattern: BurstPattern,
    /// Mean number of lines in a burst.
    burst: u64,
    /// Mean number of instructions between two bursts.
    gap: u64,
    /// Number of instructions per access.
    instructions: u64,
    period: u64,
    seed: u64,
}

impl Case {
    fn random(random: &mut Random) -> Case {
        Case {
            pattern: random.pick(&BurstPattern::ALL),
            burst: random.between(1.0, 100_000.0),
            gap: random.between(100.0, 100_000.0),
            instructions: random.between(1.0, 40.0),
            period: random.between(10.0, 2_000.0),
            seed: random.next_u64() | 1,
        }
    }

    /// A program with bursts that are often shorter than a period.
    fn with_short_bursts(random: &mut Random) -> Case {
        Case {
            pattern: random.pick(&[BurstPattern::Scan, BurstPattern::Copy, BurstPattern::Groups]),
            burst: random.between(8.0, 400.0),
            ..Case::random(random)
        }
    }
}

/// Runs a program's accesses and writes what a recorder would write.
struct SimulatedRun<'a> {
    core: &'a mut Core,
    shared: &'a mut SharedLevels,
    writer: Writer,
    trace: OverflowTrace,
}

const PID: Pid = Pid(1);
const TID: Tid = Tid(1);

impl SimulatedRun<'_> {
    fn compute(&mut self, mut instructions: u64) {
        while instructions > 0 {
            let some = instructions.min(200);
            if self.core.retire(some as u32, 0, 0, 0) {
                self.note();
            }
            instructions -= some;
        }
    }

    fn access(&mut self, instructions: u64, addr: u64, kind: AccessKind) {
        let store = kind == AccessKind::Store;
        let (loads, stores) = (u32::from(!store), u32::from(store));
        let mut due = self.core.retire(instructions as u32, loads, stores, 0);
        if !self.core.touch(addr, store) {
            due |= self.core.access(self.shared, addr, 8, kind).overflow;
        }
        if due {
            self.note();
        }
    }

    fn note(&mut self) {
        let (trace, writer) = (&mut self.trace, &mut self.writer);
        self.core.take_overflows(|o| {
            let Some(period) = trace.push(o.event, o.period, o.time_ns) else {
                return;
            };
            let sample = Sample {
                time_ns: o.time_ns,
                pid: PID,
                tid: TID,
                event: o.event,
                kind: o.kind,
                period,
                ..Sample::default()
            };
            writer.push(sample).unwrap();
        });
        self.ticks();
    }

    fn ticks(&mut self) {
        let writer = &mut self.writer;
        self.core.take_ticks(|tick| {
            for (event, ..) in catalogue::ALL {
                let value = tick.deltas.get(*event);
                if value > 0 {
                    let row = SeriesRow {
                        time_ns: tick.time_ns,
                        interval_ns: tick.interval_ns,
                        pid: PID,
                        tid: TID,
                        event: *event,
                        value,
                        ..SeriesRow::default()
                    };
                    writer.push(row).unwrap();
                }
            }
        });
    }

    fn program(&mut self, case: &Case) {
        let mut random = Random::from_seed(case.seed);
        let (from, to) = (0x7f00_0000_0000u64, 0x7e00_0000_0000u64);
        let (mut line, mut group) = (0, 0);
        // At least 300 records if that is quick, and three bursts.
        let lines = (300 * case.period)
            .clamp(30_000, 200_000)
            .max(3 * case.burst);
        while line < lines {
            let varied = |random: &mut Random, mean: u64| mean * 3 / 4 + random.below(mean / 2 + 1);
            let end = line + varied(&mut random, case.burst).max(1);
            while line < end {
                if line % 8 == 0 {
                    group = random.below(1 << 27) * 8;
                }
                let at = match case.pattern {
                    BurstPattern::Random => random.below(1 << 30),
                    BurstPattern::Groups => group + line % 8,
                    BurstPattern::Scan | BurstPattern::Fill | BurstPattern::Copy => line,
                };
                let kind = match case.pattern {
                    BurstPattern::Fill => AccessKind::Store,
                    _ => AccessKind::Load,
                };
                self.access(case.instructions, from + at * LINE, kind);
                if case.pattern == BurstPattern::Copy {
                    self.access(case.instructions, to + at * LINE, AccessKind::Store);
                }
                line += 1;
            }
            let gap = varied(&mut random, case.gap);
            self.compute(gap);
        }
    }
}

/// Corrected total of a run, and the true total.
#[derive(Clone, Copy, Debug)]
struct Corrected {
    truth: f64,
    raw: f64,
    bytes: f64,
    half: f64,
}

impl Corrected {
    fn error(&self) -> f64 {
        (self.bytes / self.truth - 1.0).abs()
    }

    fn half(&self) -> f64 {
        self.half / self.truth
    }

    /// Allows for one line, because the total is a sum of rounded shares.
    fn is_held(&self) -> bool {
        (self.bytes - self.truth).abs() <= self.half + LINE as f64
    }
}

fn corrected(config: &Config, delivery: Delivery, case: &Case, model: &LossModel) -> Corrected {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.mg");
    let pmu = PmuConfig {
        samples: vec![SampleSpec {
            event: catalogue::LLC_MISS,
            period: case.period,
        }],
        interval_ns: Some(100_000),
        delivery,
    };
    let mut machine = Machine::new(config.clone(), pmu).unwrap();
    let id = machine.add_core(0);
    let (core, shared) = machine.core_mut(id);
    let manifest = Manifest {
        events: catalogue::definitions(Provenance::Modelled),
        machine: Some(config.to_facts()),
        ..Manifest::default()
    };
    let mut run = SimulatedRun {
        core,
        shared,
        writer: Writer::create(&path, manifest).unwrap(),
        trace: OverflowTrace::new(1024),
    };
    run.program(case);
    let SimulatedRun {
        mut writer,
        mut trace,
        ..
    } = run;
    machine.finish_core(id);
    let (core, shared) = machine.core_mut(id);
    let truth = core.counts().get(catalogue::DRAM_READ_BYTES) as f64;
    let (delivered, end_ns) = (core.delivered().unwrap_or_default(), core.time_ns());
    trace.write(PID, TID, true, &mut writer).unwrap();
    let mut rest = SimulatedRun {
        core,
        shared,
        writer,
        trace,
    };
    rest.ticks();
    let mut writer = rest.writer;
    let thread = Thread {
        pid: PID,
        tid: TID,
        end_ns: Some(end_ns),
        ..Thread::default()
    };
    writer.push(thread).unwrap();
    let facts = DeliveryFacts {
        rest: delivered.rest,
        records: delivered.records,
        ..DeliveryFacts::default()
    };
    writer
        .finish(|manifest| manifest.delivery = Some(facts))
        .unwrap();
    let recording = Recording::open(&path).unwrap();
    let correction = Correction::Model("calibration".to_owned(), model.clone());
    let settings = BandwidthSettings {
        bin_ns: 100_000,
        rows: 8,
        ..BandwidthSettings::default()
    };
    let extent = extent(&recording).unwrap();
    if extent.overflows.is_empty() {
        return Corrected {
            truth,
            raw: 0.0,
            bytes: truth,
            half: 0.0,
        };
    }
    let shown = read(&recording, &extent, &settings, &correction, &mut NoSymbols).unwrap();
    Corrected {
        truth,
        raw: shown.raw_bytes,
        bytes: shown.bytes,
        half: shown.error_bytes,
    }
}

fn model(config: &Config, delivery: Delivery) -> LossModel {
    let settings = CalibrationSettings {
        machine: config.clone(),
        delivery,
        delivery_name: String::new(),
        event: catalogue::LLC_MISS,
        periods: Vec::new(),
        repeat: 1,
    };
    let mut points = Vec::new();
    for period in [10, 20, 50, 100, 200, 500, 1_000, 2_000] {
        for what in Loop::DENSITIES {
            let found = measure(&settings, period, what).unwrap();
            points.extend(found.map(|m| m.point));
        }
    }
    LossModel::new(points)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Results of a sweep.
struct Sweep {
    programs: Vec<(Case, Corrected)>,
}

impl Sweep {
    /// Corrects `count` programs, by each delivery in turn, and prints those whose interval
    /// does not contain the truth.
    fn run(count: usize, draw: fn(&mut Random) -> Case) -> Sweep {
        let config = Config::preset("i5-6600k").unwrap();
        let deliveries = ["precise", "interrupt"].map(|name| {
            let delivery = Delivery::by_name(name).unwrap();
            (name, delivery, model(&config, delivery))
        });
        let mut random = Random::of_test("programs");
        let mut programs = Vec::new();
        for number in 0..count {
            let case = draw(&mut random);
            let (name, delivery, model) = &deliveries[number % deliveries.len()];
            let found = corrected(&config, *delivery, &case, model);
            if !found.is_held() {
                let percent = |bytes| 100.0 * bytes / found.truth;
                println!(
                    "{name} {case:?}: records {:.2} %, corrected {:.2} ± {:.2} %",
                    percent(found.raw),
                    percent(found.bytes),
                    percent(found.half),
                );
            }
            programs.push((case, found));
        }
        let sweep = Sweep { programs };
        sweep.print("all", |_| true);
        sweep
    }

    fn held(&self) -> usize {
        let held = |program: &&(Case, Corrected)| program.1.is_held();
        self.programs.iter().filter(held).count()
    }

    /// Median share of the truth.
    fn median(&self, share: fn(&Corrected) -> f64) -> f64 {
        median(self.programs.iter().map(|p| share(&p.1)).collect())
    }

    /// Prints the results of some of the programs.
    fn print(&self, name: &str, is_included: impl Fn(&Case) -> bool) {
        let included = self.programs.iter().filter(|p| is_included(&p.0));
        let part = Sweep {
            programs: included.copied().collect(),
        };
        let errors = part.programs.iter().map(|p| p.1.error());
        println!(
            "{name}: {} of {} in the interval, error: median {:.2} %, mean {:.2} %, half of the \
             interval: median {:.2} %",
            part.held(),
            part.programs.len(),
            100.0 * part.median(Corrected::error),
            100.0 * errors.sum::<f64>() / part.programs.len() as f64,
            100.0 * part.median(Corrected::half),
        );
    }
}

/// A number from the environment, for repeating a test or making it longer.
fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap())
}

#[test]
fn intervals_of_random_programs_contain_the_truth() {
    let sweep = Sweep::run(60, Case::random);
    assert!(sweep.held() >= 50, "{} of 60", sweep.held());
    let error = sweep.median(Corrected::error);
    assert!(error < 0.015, "median error {error}");
    let half = sweep.median(Corrected::half);
    assert!(half < 0.08, "median half of the interval {half}");
}

#[test]
fn intervals_of_short_bursts_contain_the_truth() {
    let sweep = Sweep::run(60, Case::with_short_bursts);
    assert!(sweep.held() >= 48, "{} of 60", sweep.held());
    let error = sweep.median(Corrected::error);
    assert!(error < 0.08, "median error {error}");
}

#[test]
#[ignore = "prints the table of docs/experiments/bandwidth.md; takes minutes"]
fn coverage_by_pattern_and_period() {
    let count = from_environment("MEMGAUGE_TEST_PROGRAMS").unwrap_or(1_000) as usize;
    let sweep = Sweep::run(count, Case::random);
    for pattern in BurstPattern::ALL {
        sweep.print(&format!("{pattern:?}"), |case| case.pattern == pattern);
    }
    let is_sequential =
        |case: &Case| !matches!(case.pattern, BurstPattern::Fill | BurstPattern::Random);
    sweep.print(
        "short bursts (8 to 400 lines) of Scan, Copy, Groups",
        |case| is_sequential(case) && (8..=400).contains(&case.burst),
    );
    sweep.print("period up to 50", |case| case.period <= 50);
    sweep.print("Copy, period up to 30", |case| {
        case.pattern == BurstPattern::Copy && case.period <= 30
    });
}
