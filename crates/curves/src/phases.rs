//! `memgauge mrc --phases`: windows, and the engines that see them.

use std::path::Path;
use std::time::{Duration, Instant};

use memgauge_console::terminal;
use memgauge_emulate::{StreamOptions, Streamed, geometry, stream};
use memgauge_host::sys::advice::large_pages;
use memgauge_mrc::{Curve, Distances, Exact, Full, Monitor, Phase, Phases, Settings, feed_blocks};
use memgauge_report::mrc::{CollectionCost, MeasuredCurve, PhaseSpan};

use super::args::{Mrc, PhaseCurves, PhaseRate};
use super::engine::too_many;
use super::feed::{lost, references_of};
use super::{memory, usage};

/// Number of windows collected after a change.
const COLLECTED: u64 = 10;
/// Number of blocks of the memory that detects phases, if no cache has such blocks. It is the
/// number of entries of the second-level TLBs in published studies.
const TLB_BLOCKS: u64 = 256;

/// A phase's curve, and the part of the run that it covers.
pub(super) struct Made {
    pub(super) span: PhaseSpan,
    pub(super) measured: MeasuredCurve,
    pub(super) instructions: Option<u64>,
}

/// All phases of a run and what their curves cost.
pub(super) struct PhaseRun {
    pub(super) made: Vec<Made>,
    pub(super) collection: CollectionCost,
    pub(super) note: Option<String>,
    /// Number of references that each one represents.
    pub(super) weight: f64,
    /// True if a part of the input could not be read.
    pub(super) is_damaged: bool,
}

/// Engines that observe windows, and their results.
struct PhaseWatch {
    block: u64,
    size_bytes: u64,
    window: u64,
    by: PhaseRate,
    /// True if the length of windows is in instructions, false if it is in references.
    of_instructions: bool,
    settings: Settings,
    exact: Option<Box<Exact>>,
    monitor: Option<Box<Monitor>>,
    /// Number of windows still to collect after a change, if not all are collected.
    to_collect: u64,
    phases: Phases,
    from: u64,
    now: u64,
    references: u64,
    cost: PhaseCost,
}

#[derive(Default)]
struct PhaseCost {
    references: u64,
    collected: u64,
    collecting: Duration,
    monitoring: Duration,
}

/// Refuses options that conflict with phases.
pub(super) fn check(args: &Mrc) -> anyhow::Result<()> {
    if args.making.block.len() > 1 {
        return Err(usage(
            "failed to find phases: several block sizes are given: name one with --block",
        ));
    }
    if args.making.threads > 1 {
        return Err(usage(
            "failed to find phases with --threads: windows need one thread: leave --threads out",
        ));
    }
    if args.phases_by == PhaseRate::References && args.command.is_empty() {
        return Err(usage(
            "failed to find phases by instructions: a list of addresses has no instructions",
        ));
    }
    if args.inputs.len() > 1 {
        return Err(usage(
            "failed to find phases: several inputs are given: name one",
        ));
    }
    Ok(())
}

impl PhaseWatch {
    fn new(args: &Mrc, of_instructions: bool) -> PhaseWatch {
        let block = args.making.block[0];
        let mut settings = Settings::default();
        settings.memory_bytes = memory::limit(&args.making);
        settings.advise = Some(large_pages);
        let on_change = args.phases == Some(PhaseCurves::OnChange);
        PhaseWatch {
            block,
            size_bytes: args.phase_size.unwrap_or_else(|| usual_size(block)),
            window: args.phase_window,
            by: args.phases_by,
            of_instructions,
            settings,
            exact: Some(Box::new(Exact::new(block, settings))),
            monitor: on_change.then(|| Box::new(Monitor::new(block, settings))),
            to_collect: COLLECTED,
            phases: Phases::default(),
            from: 0,
            now: 0,
            references: 0,
            cost: PhaseCost::default(),
        }
    }

    fn feed(
        &mut self,
        addresses: &[u64],
        sizes: &[(usize, u32)],
        instructions: u64,
    ) -> anyhow::Result<()> {
        self.feed_engines(addresses, sizes)
            .map_err(|full| too_many(full, self.block))?;
        let references = addresses.len() as u64;
        self.references += references;
        self.now += match self.of_instructions {
            true => instructions,
            false => references,
        };
        match self.now - self.from >= self.window {
            true => self.end_window(),
            false => Ok(()),
        }
    }

    fn feed_engines(&mut self, addresses: &[u64], sizes: &[(usize, u32)]) -> Result<(), Full> {
        self.cost.references += addresses.len() as u64;
        let started = Instant::now();
        if let Some(monitor) = &mut self.monitor {
            feed_blocks(self.block, addresses, sizes, &mut |a| monitor.feed(a))?;
            self.cost.monitoring += started.elapsed();
        }
        let started = Instant::now();
        if let Some(exact) = &mut self.exact {
            feed_blocks(self.block, addresses, sizes, &mut |a| exact.feed(a))?;
            self.cost.collected += addresses.len() as u64;
            self.cost.collecting += started.elapsed();
        }
        Ok(())
    }

    fn end_window(&mut self) -> anyhow::Result<()> {
        let full = |full| too_many(full, self.block);
        let distances = match &mut self.exact {
            Some(exact) => Some(exact.take_distances().map_err(full)?),
            None => None,
        };
        let blocks = self.size_bytes / self.block;
        let (misses, new) = match &mut self.monitor {
            Some(monitor) => {
                let misses = monitor.take_misses(blocks).map_err(full)?;
                (misses.total, misses.compulsory)
            }
            None => exact_misses(distances.as_ref(), self.block, blocks),
        };
        let events = match self.by {
            PhaseRate::Mpki => misses,
            PhaseRate::NewBlocks => new,
            PhaseRate::References => self.references as f64,
        };
        let length = self.now - self.from;
        let mut window = Phase::window(self.from, self.now, 1000.0 * events / length as f64);
        window.references = std::mem::take(&mut self.references);
        let collected = if distances.is_some() { length } else { 0 };
        window.instructions = self.of_instructions.then_some(collected);
        window.distances = distances.unwrap_or_default();
        self.from = self.now;
        let changed = self.phases.push(window);
        if self.monitor.is_some() {
            self.collect_after(changed);
        }
        Ok(())
    }

    /// Begins to collect when a phase has begun, ends when it has enough.
    fn collect_after(&mut self, changed: bool) {
        self.to_collect = match changed {
            true => COLLECTED,
            false => self.to_collect.saturating_sub(1),
        };
        match (self.to_collect, &self.exact) {
            (0, _) => self.exact = None,
            (_, None) => self.exact = Some(Box::new(Exact::new(self.block, self.settings))),
            _ => {}
        }
    }

    fn finish(mut self, note: Option<String>, weight: f64) -> anyhow::Result<PhaseRun> {
        if self.references > 0 && self.now > self.from {
            self.end_window()?;
        }
        let phases = self.phases.finish();
        let span = |(at, phase): (usize, &Phase)| PhaseSpan {
            number: at + 1,
            of: phases.len(),
            from: phase.from,
            to: phase.to,
            unit: if self.of_instructions {
                "instructions"
            } else {
                "references"
            },
            rate: phase.rate,
            event: event(self.by, self.of_instructions, self.size_bytes),
            collected: phase.distances.references() as f64 / phase.references.max(1) as f64,
        };
        let made = phases.iter().enumerate().map(|(at, phase)| Made {
            span: span((at, phase)),
            measured: weighted(Curve::exact(&phase.distances, self.block), weight),
            instructions: phase.instructions,
        });
        Ok(PhaseRun {
            made: made.collect(),
            note,
            weight,
            is_damaged: false,
            collection: CollectionCost {
                references: self.cost.references,
                collected: self.cost.collected,
                collecting_s: self.cost.collecting.as_secs_f64(),
                monitoring_s: self.cost.monitoring.as_secs_f64(),
            },
        })
    }
}

fn weighted(mut curve: Curve, weight: f64) -> MeasuredCurve {
    curve.scale(weight);
    MeasuredCurve::Exact(curve)
}

fn exact_misses(distances: Option<&Distances>, block: u64, blocks: u64) -> (f64, f64) {
    distances.map_or((0.0, 0.0), |distances| {
        let curve = Curve::exact(distances, block);
        (curve.misses(blocks), curve.compulsory)
    })
}

fn usual_size(block: u64) -> u64 {
    match block {
        ..4096 => geometry::host().l2.size_bytes,
        _ => TLB_BLOCKS.saturating_mul(block),
    }
}

/// A cache's size in the largest unit that it is a whole number of.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units
        .iter()
        .find(|unit| bytes >> unit.1 << unit.1 == bytes && bytes > 0);
    whole.map_or_else(
        || format!("{bytes} B"),
        |&(unit, shift)| format!("{} {unit}", bytes >> shift),
    )
}

/// The event that a phase's rate counts, in words.
fn event(by: PhaseRate, of_instructions: bool, size_bytes: u64) -> String {
    let per = if of_instructions {
        "instructions"
    } else {
        "references"
    };
    match by {
        PhaseRate::Mpki => format!("misses of {} per 1000 {per}", size(size_bytes)),
        PhaseRate::NewBlocks => format!("new blocks per 1000 {per}"),
        PhaseRate::References => format!("references per 1000 {per}"),
    }
}

/// Phases of a list of addresses.
pub(super) fn of_input(args: &Mrc, input: &Path) -> anyhow::Result<PhaseRun> {
    let mut watch = PhaseWatch::new(args, false);
    let format = args.making.format.as_ref();
    let read = references_of(input, format, &mut |a, sizes| watch.feed(a, sizes, 0))?;
    Ok(PhaseRun {
        is_damaged: read.is_damaged,
        ..watch.finish(read.note, read.weight)?
    })
}

/// Phases of a command that runs under the emulator.
pub(super) fn of_command(args: &Mrc) -> anyhow::Result<(PhaseRun, Streamed)> {
    let mut watch = PhaseWatch::new(args, true);
    let wanted = StreamOptions {
        granule: watch.block,
        parts: None,
        ips: false,
        functions: Vec::new(),
        seed: args.seed,
    };
    terminal::catch_interrupts()?;
    let run = stream(&args.command, wanted, &mut |batch| {
        watch.feed(batch.addresses, batch.crossing, batch.instructions)
    })?;
    Ok((watch.finish(lost(&run), 1.0)?, run))
}
