//! Measures what the counters of a series cost each thread or process that starts.
//!
//! At each start the kernel copies every counter to the new task, and at each exit it writes the
//! counters' last values and adds them to the parent's. A program that starts many short threads
//! spends more time on this than on ticks. The cost grows with the number of counters and CPUs,
//! so it is measured with the run's own counters, opened on this thread, while short threads start
//! and end.
//!
//! Rejected: a constant cost per counter. It differs by a factor of three between machines, and
//! it is not proportional to the number of counters.

use std::hint::black_box;
use std::thread;

use memgauge_trace::TaskCostFacts;

use super::grouping::PlannedGroup;
use super::open::{CounterOpener, OpenCounters};
use crate::events::Event;
use crate::sys::perf;
use crate::target::{OpenTarget, Target};

/// Minimum interval of the timers during the measurement. Shorter ones would add ticks, whose cost
/// is measured separately. Much longer ones would cost less than those of the run: scheduling a
/// thread in programs the CPU's timer only if the interval ends before the kernel's own tick, and
/// on a virtual machine that is the larger part of the cost.
const MIN_INTERVAL_NS: u64 = 1_000_000;

/// Holds the records of one round for some tens of counters. Smaller than a run's rings, since
/// an unprivileged user may lock only 129 pages per CPU.
const RING_PAGES: usize = 32;

/// With 24 threads in a round the result varied by 40 % on a busy machine of two CPUs, with 100
/// by 15 %.
const THREADS_PER_ROUND: usize = 100;
const MAX_ROUNDS: usize = 9;

/// No further round starts after this CPU time. With counters on hundreds of CPUs a single round
/// takes longer. Wall time would end the measurement after one round on a busy machine, which is
/// where one round says the least.
const MAX_CPU_TIME_NS: u64 = 150_000_000;

/// Work of a thread, about 15 µs. If a thread did nothing, it would often end before its parent
/// waits for it. That would save two context switches, at which counters cost time as well.
const STEPS_PER_THREAD: u64 = 15_000;

/// Threads without and with the counters, in nanoseconds of CPU time per thread.
#[derive(Clone, Copy, Debug)]
struct TaskRound {
    native_ns: f64,
    cpu_ns: f64,
    /// The part of `cpu_ns` that the timers counted.
    counted_ns: f64,
}

/// Measures the cost for the counters that `opener` would open. Returns `None` if threads do not
/// inherit them, or if they cannot be opened on this thread.
pub(super) fn measure(
    opener: &CounterOpener<'_>,
    events: &[Event],
    planned: &[PlannedGroup],
) -> Option<TaskCostFacts> {
    let interval_ns = opener.interval_ns.filter(|_| opener.target.per_task)?;
    let own_thread = OpenTarget::open(&Target::Threads(vec![perf::own_tid()]), None).ok()?;
    // Counters outside the cores belong to no task.
    let inherited: Vec<PlannedGroup> = planned
        .iter()
        .filter(|group| group.cpus.is_none())
        .cloned()
        .collect();
    let opener = CounterOpener {
        target: &own_thread,
        interval_ns: Some(interval_ns.max(MIN_INTERVAL_NS)),
        ring_pages: RING_PAGES,
        on_exec: false,
        ..*opener
    };
    let began_ns = perf::process_cpu_time_ns();
    let mut rounds = Vec::new();
    while rounds.len() < MAX_ROUNDS
        && (rounds.is_empty() || perf::process_cpu_time_ns() - began_ns < MAX_CPU_TIME_NS)
    {
        let native_ns = cpu_ns_per_thread()?;
        // Opened anew for each round, so that the next threads without counters do not inherit any.
        let open = opener.open(events, &inherited).ok()?;
        if open.new_threads.is_some() {
            return None;
        }
        rounds.push(measure_round(native_ns, &open)?);
    }
    from_rounds(&rounds)
}

fn measure_round(native_ns: f64, open: &OpenCounters) -> Option<TaskRound> {
    for counters in &open.counters {
        perf::enable(counters.leader()).ok()?;
    }
    let counted_before = counted_ns(open)?;
    let cpu_ns = cpu_ns_per_thread()?;
    let counted_ns = counted_ns(open)?.saturating_sub(counted_before);
    Some(TaskRound {
        native_ns,
        cpu_ns,
        counted_ns: counted_ns as f64 / THREADS_PER_ROUND as f64,
    })
}

/// Time that the timers of the first group have counted so far, in this thread and in those that
/// have ended.
fn counted_ns(open: &OpenCounters) -> Option<u64> {
    let mut sum = 0;
    for (counters, &group) in open.counters.iter().zip(&open.group_of) {
        if group == 0 {
            sum += counters.read().ok()?.values.first()?;
        }
    }
    Some(sum)
}

/// CPU time of this process for a short thread, its start and end included.
fn cpu_ns_per_thread() -> Option<f64> {
    let before_ns = perf::process_cpu_time_ns();
    for _ in 0..THREADS_PER_ROUND {
        thread::Builder::new().spawn(work).ok()?.join().ok()?;
    }
    let cpu_ns = perf::process_cpu_time_ns().saturating_sub(before_ns);
    Some(cpu_ns as f64 / THREADS_PER_ROUND as f64)
}

fn work() {
    let mut state = 1u64;
    for _ in 0..STEPS_PER_THREAD {
        state = black_box(state.wrapping_mul(0xd129_0e65_4d2b_35a5) | 1);
    }
}

fn from_rounds(rounds: &[TaskRound]) -> Option<TaskCostFacts> {
    let added_ns = rounds.iter().map(|round| round.cpu_ns - round.native_ns);
    let uncounted_ns = rounds.iter().map(|round| round.cpu_ns - round.counted_ns);
    Some(TaskCostFacts {
        added_ns: median(added_ns)?.max(0.0),
        uncounted_ns: median(uncounted_ns)?.max(0.0),
    })
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
