//! Runs a workload: maps its memory, runs its loop, and returns its checksum.
//!
//! A mapping is one line longer than needed, so it is never empty. The checksum reads its first
//! word for every N, so set-up makes the same accesses for N = 0.

use anyhow::{Context, Result};
use std::time::{Duration, Instant};

use crate::closed_form::{LINE, WORD, steps_in};
use crate::command::{Command, Cycles, Matrix, Phases, Sharing, Sweep, Walk};
use crate::kernels::{self, Memory};

/// Value that `write` stores.
const PATTERN: u64 = 0x0123_4567_89ab_cdef;

/// k of `triad`, as in STREAM.
const TRIAD_FACTOR: u64 = 3;

/// Page size in bytes to which layouts are rounded. On other page sizes, only the spacing is
/// affected.
const PAGE: u64 = 4096;

/// Times the measured loop, when asked to; reads no clock otherwise.
pub(crate) struct Stopwatch {
    wanted: bool,
    elapsed: Option<Duration>,
}

impl Stopwatch {
    pub(crate) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            elapsed: None,
        }
    }

    /// Time of the measured loop, when it was asked for.
    pub(crate) fn elapsed(&self) -> Option<Duration> {
        self.elapsed
    }

    fn measure<T>(&mut self, work: impl FnOnce() -> T) -> T {
        if !self.wanted {
            return work();
        }
        let start = Instant::now();
        let value = work();
        self.elapsed = Some(start.elapsed());
        value
    }
}

/// Runs `command`. Returns the checksum of the words that it read or wrote.
pub(crate) fn run(command: &Command, stopwatch: &mut Stopwatch) -> Result<u64> {
    match command {
        Command::Linear(walk) => linear(walk, stopwatch),
        Command::Write(walk) => write(walk, stopwatch),
        Command::Triad { bytes, passes } => triad(*bytes, *passes, stopwatch),
        Command::Rand { bytes, steps } => rand(*bytes, *steps, stopwatch),
        Command::Bigarray { bytes, passes } => bigarray(*bytes, *passes, stopwatch),
        Command::Randmatmult(matrix) => randmatmult(matrix, stopwatch),
        Command::Chase(cycles) => chase(cycles, stopwatch),
        Command::Sweep(range) => sweep(range, stopwatch),
        Command::Phases(plan) => phases(plan, stopwatch),
        Command::Threads {
            threads: number,
            steps,
            sharing,
        } => threads(*number, *steps, *sharing, stopwatch),
        Command::Idle { duration } => {
            stopwatch.measure(|| std::thread::sleep(*duration));
            Ok(0)
        }
    }
}

fn memory(bytes: u64) -> Result<Memory> {
    let bytes = bytes + LINE;
    Memory::zeroed(bytes).with_context(|| format!("failed to map `{bytes}` bytes of memory"))
}

fn linear(walk: &Walk, stopwatch: &mut Stopwatch) -> Result<u64> {
    let memory = memory(walk.span())?;
    Ok(stopwatch.measure(|| memory.read(walk.align, walk.words(), walk.stride, walk.passes)))
}

fn write(walk: &Walk, stopwatch: &mut Stopwatch) -> Result<u64> {
    let mut memory = memory(walk.span())?;
    stopwatch.measure(|| {
        memory.write(walk.align, walk.words(), walk.stride, walk.passes, PATTERN);
    });
    Ok(memory.word(walk.align))
}

fn triad(bytes: u64, passes: u64, stopwatch: &mut Stopwatch) -> Result<u64> {
    let gap = bytes.next_multiple_of(PAGE) + 4 * LINE;
    let mut memory = memory(3 * gap)?;
    stopwatch.measure(|| memory.triad(bytes / WORD, gap, TRIAD_FACTOR, passes));
    Ok(memory.word(0))
}

fn rand(bytes: u64, steps: u64, stopwatch: &mut Stopwatch) -> Result<u64> {
    let words = bytes / WORD;
    let mut memory = memory(bytes)?;
    let steps = steps_in(words, steps);
    stopwatch.measure(|| memory.increment_random(words, steps));
    Ok(memory.word(0))
}

fn bigarray(bytes: u64, passes: u64, stopwatch: &mut Stopwatch) -> Result<u64> {
    let mut memory = memory(bytes)?;
    stopwatch.measure(|| memory.increment(bytes / WORD, passes));
    Ok(memory.word(0))
}

fn randmatmult(matrix: &Matrix, stopwatch: &mut Stopwatch) -> Result<u64> {
    let layout = kernels::MatrixLayout::new(matrix.rows, matrix.columns, PAGE)
        .with_context(|| format!("failed to lay out `{matrix:?}`: too large"))?;
    let mut memory = memory(layout.bytes)?;
    stopwatch.measure(|| memory.multiply(&layout, matrix.passes));
    Ok(memory.word(layout.result_offset))
}

fn chase(cycles: &Cycles, stopwatch: &mut Stopwatch) -> Result<u64> {
    let cycle = memory(cycles.bytes)?.into_cycle(cycles.nodes());
    let steps = steps_in(cycles.nodes(), cycles.steps);
    Ok(stopwatch.measure(|| cycle.follow(steps)))
}

fn sweep(range: &Sweep, stopwatch: &mut Stopwatch) -> Result<u64> {
    let memory = memory(range.to)?;
    Ok(stopwatch.measure(|| {
        range.working_sets().fold(0, |sum: u64, set| {
            sum.wrapping_add(memory.read(0, set / WORD, WORD, range.total / set))
        })
    }))
}

fn phases(plan: &Phases, stopwatch: &mut Stopwatch) -> Result<u64> {
    let memory = memory(plan.bytes)?;
    let (words, lines) = (plan.words(), plan.lines());
    Ok(stopwatch.measure(|| memory.alternate(words, lines, plan.spins, plan.cycles)))
}

fn threads(number: u16, steps: u64, sharing: Sharing, stopwatch: &mut Stopwatch) -> Result<u64> {
    let spacing = match sharing {
        Sharing::Private => PAGE,
        Sharing::Shared => 0,
        Sharing::False => WORD,
    };
    let memory = memory(u64::from(number) * PAGE)?;
    stopwatch.measure(|| {
        std::thread::scope(|scope| {
            for index in 0..u64::from(number) {
                let counter = memory.counter(index * spacing);
                scope.spawn(move || match sharing {
                    Sharing::Shared => kernels::increment_locked(counter, steps),
                    Sharing::Private | Sharing::False => kernels::increment_own(counter, steps),
                });
            }
        });
    });
    Ok(memory.word(0))
}
