//! Finds what limits the run. Each cause contains the figure that it follows from and the threshold
//! of that figure. The strongest comes first.
//!
//! A cause is a share of the run's time where the timing is known (on modelled machines). Otherwise
//! it is a rate that is high by experience. The thresholds are the constants below; docs/metrics.md
//! lists them.

use std::collections::BTreeSet;

use crate::bandwidth::dram::{BandwidthCurve, Dram};
use crate::cause::{Cause, CauseKind};
use crate::code::hotspots::{HotRow, HotTable};
use crate::code::miss_order::{AccessOrder, order};
use crate::counting::Counting;
use crate::counts::Counts;
use crate::data::sharing::SharedLines;
use crate::resolve::file_name;
use crate::samples::SamplingResults;
use crate::summary::RunFacts;
use crate::threads::ThreadRow;
use memgauge_trace::{MachineFacts, Manifest};

/// A run with fewer instructions is mostly startup.
const TINY_INSTRUCTIONS: u64 = 1_000_000;
/// Minimum share of the cycles in the dynamic loader from which startup hides the rest, in a run of
/// at most [`SHORT_INSTRUCTIONS`]. A dynamically linked `true` takes about a million instructions,
/// and C++ programs that do nothing 3 to 4 million.
const LOADER_SHARE: f64 = 0.25;
const SHORT_INSTRUCTIONS: u64 = 30_000_000;
/// The same limit in time. It applies to runs without counted instructions, and to the busy time of
/// modelled runs.
const TINY_NS: u64 = 5_000_000;
/// A run that sleeps this long is dominated by waiting, however short it is.
const LONG_SLEEP_NS: u64 = 50_000_000;
/// With fewer samples, a share of one half is uncertain by more than a tenth.
const FEW_SAMPLES: u64 = 100;
/// Minimum share of the run without a running thread.
const IDLE_SHARE: f64 = 0.5;
/// Minimum share of the memory bandwidth. Beyond two thirds, queues grow quickly.
const BANDWIDTH_SHARE: f64 = 0.6;
/// Minimum share of the run that bandwidth must limit if it does not limit the whole run.
const FULL_TIME_SHARE: f64 = 0.2;
/// Minimum share of stalled time to blame caches, memory or TLBs.
const STALL_SHARE: f64 = 0.2;
/// Minimum share of conflicts among the first level's misses to blame its sets.
const CONFLICT_SHARE: f64 = 0.5;
/// Minimum share of the accesses that cross a cache line. Unaligned data of 8 bytes read in order
/// crosses one at every eighth access.
const SPLIT_SHARE: f64 = 0.1;
/// Minimum share of the time in which threads wait for each other's lines. A line that moves
/// between cores does so at every store, so this time grows with the number of threads.
const SHARING_SHARE: f64 = 0.05;
/// Other stalls come first if they are this many times as long. Separating the lines of threads is
/// an easier change than another layout, so equal times are not enough.
const MINOR_SHARING: f64 = 2.0;
/// Minimum share of this time at which true sharing comes before the finding that memory does not
/// limit the run.
const MAIN_TRUE_SHARING: f64 = 0.1;
/// Minimum number of samples with HITM to name sharing as a cause.
const HITM_SAMPLES: u64 = 10;
/// Minimum number of page faults per second of CPU time. At about 0.5 µs each, they take a
/// twentieth of it.
const FAULTS_PER_S: f64 = 100_000.0;
/// Approximate time of a page fault in the kernel, in seconds, unless it was measured.
const FAULT_S: f64 = 0.5e-6;
/// Minimum number of page faults of an emulated program without those of the emulator.
const EMULATED_FAULTS: u64 = 20_000;
/// Number of page faults that the emulator makes for each program that a process executes.
const EMULATOR_FAULTS: u64 = 1500;
/// Minimum time of an emulated program's page faults as a share of this time and the modelled one.
const FAULT_SHARE: f64 = 0.2;
/// Minimum share of page faults in the time to be the main cost, whatever the model shows for the
/// rest. They still are if each fault takes only a third of [`FAULT_S`].
const MAIN_FAULT_SHARE: f64 = 0.75;
/// Minimum time for which an emulated program waits for files. Shorter waits are of any program that
/// is not in the host's page cache.
const FILE_WAIT_S: f64 = 0.02;
/// Minimum time of these waits as a share of this time and the modelled one.
const FILE_SHARE: f64 = 0.2;
/// The share from which these waits are the main cost.
const MAIN_FILE_SHARE: f64 = 0.5;
/// Misses of the last-level cache per 1000 instructions.
const LLC_MPKI: f64 = 5.0;
/// Minimum standard deviation of the traffic's rate relative to its mean. It is 0 for a steady run,
/// and 1 for a run that moves all its bytes in half of the time.
const PHASE_VARIATION: f64 = 0.5;
/// Maximum share of the run in which half of the traffic falls. A short burst at the start makes a
/// steady run vary, too.
const PHASE_TIME: f64 = 0.3;
/// Minimum share of the cycles that wait for memory for its phases to matter.
const PHASE_STALLS: f64 = 0.1;

/// Results in which causes are searched.
pub(crate) struct Evidence<'a> {
    pub(crate) manifest: &'a Manifest,
    pub(crate) totals: &'a Counts,
    pub(crate) run: &'a RunFacts,
    pub(crate) dram: &'a Dram,
    pub(crate) bandwidth: &'a BandwidthCurve,
    pub(crate) counting: Option<&'a Counting>,
    pub(crate) sampling: Option<&'a SamplingResults>,
    pub(crate) threads: &'a [ThreadRow],
    pub(crate) functions: &'a HotTable,
    pub(crate) sharing: Option<&'a SharedLines>,
}

/// The causes, the most important one first.
pub(crate) fn causes(evidence: &Evidence) -> Vec<Cause> {
    let idle = idle(evidence);
    // A program that sleeps for a long time does little because it waits.
    let sleeps = idle.is_some() && evidence.run.duration_ns >= LONG_SLEEP_NS;
    let (main_faults, other_faults) = match unmodelled_faults(evidence) {
        Some(faults) if faults.are_main => (Some(faults.cause()), None),
        faults => (None, faults.map(|faults| faults.cause())),
    };
    let (main_files, other_files) = match file_waits(evidence) {
        Some(waits) if waits.value >= MAIN_FILE_SHARE => (Some(waits), None),
        waits => (None, waits),
    };
    let is_measured = main_faults.is_some() || main_files.is_some();
    let found = [
        tiny(evidence).filter(|_| !sleeps && !is_measured),
        few_samples(evidence).filter(|_| !sleeps),
        main_files,
        idle,
        page_faults(evidence),
        main_faults,
    ];
    let mut causes: Vec<Cause> = found.into_iter().flatten().collect();
    // A run that is too short has no other causes.
    if causes
        .first()
        .is_some_and(|first| first.kind == CauseKind::Tiny)
    {
        return causes;
    }
    match evidence.manifest.machine.as_ref() {
        Some(machine) => causes.extend(of_model(evidence, machine)),
        None => {
            causes.extend(sampled_sharing(evidence));
            causes.extend(llc_misses(evidence));
        }
    }
    causes.extend(other_files);
    causes.extend(other_faults);
    causes.extend(phases(evidence));
    causes
}

fn cause(kind: CauseKind, value: f64, threshold: f64) -> Cause {
    Cause {
        kind,
        value,
        threshold,
        other: None,
    }
}

fn tiny(evidence: &Evidence) -> Option<Cause> {
    let by_time = || {
        let ns = evidence.run.duration_ns;
        (ns > 0 && ns < TINY_NS)
            .then(|| cause(CauseKind::Tiny, ns as f64 / 1e9, TINY_NS as f64 / 1e9))
    };
    match evidence.run.instructions {
        // Gigabytes may be copied by a single instruction.
        Some(n) if evidence.manifest.machine.is_some() => {
            let ran_long = busy_ns(evidence).is_some_and(|busy| busy >= TINY_NS);
            let loader = loader_share(evidence);
            if n < TINY_INSTRUCTIONS && !ran_long {
                Some(cause(CauseKind::Tiny, n as f64, TINY_INSTRUCTIONS as f64))
            } else if n < SHORT_INSTRUCTIONS && loader >= LOADER_SHARE {
                Some(Cause {
                    other: Some(loader),
                    ..cause(CauseKind::Tiny, n as f64, LOADER_SHARE)
                })
            } else {
                None
            }
        }
        _ => by_time(),
    }
}

/// Share of the cycles in the dynamic loader.
fn loader_share(evidence: &Evidence) -> f64 {
    let is_loader = |row: &&HotRow| {
        let name = file_name(&row.module);
        name.starts_with("ld-") && name.contains(".so")
    };
    let loader = evidence.functions.rows.iter().filter(is_loader);
    let cycles: u64 = loader.filter_map(|row| row.counts.get("cycles")).sum();
    let all = total(evidence, "cycles").unwrap_or(0.0);
    cycles as f64 / all.max(1.0)
}

/// Native samples are the only data about the code, so few of them mean little. A model counts
/// every event and has no such cause.
fn few_samples(evidence: &Evidence) -> Option<Cause> {
    let sampling = evidence.sampling?;
    let samples: u64 = sampling.events.iter().map(|e| e.samples).sum();
    let native = evidence.manifest.machine.is_none();
    (native && samples < FEW_SAMPLES)
        .then(|| cause(CauseKind::FewSamples, samples as f64, FEW_SAMPLES as f64))
}

/// The share of the run in which no thread ran, if it is at least [`IDLE_SHARE`]. The times of
/// parallel threads are summed, so a thread that waits for another does not count as idle.
fn idle(evidence: &Evidence) -> Option<Cause> {
    // A program of a few instructions rounds to no time at all.
    let mut threads = evidence.threads.iter();
    if busy_ns(evidence).is_some() && threads.all(|thread| thread.idle_ns == Some(0)) {
        return None;
    }
    let share = match busy_ns(evidence) {
        Some(busy) => 1.0 - busy as f64 / (evidence.run.duration_ns as f64).max(1.0),
        None => 1.0 - figure(evidence, "processors used")?,
    };
    (share >= IDLE_SHARE).then(|| cause(CauseKind::Idle, share, IDLE_SHARE))
}

/// Sum of the threads' running time. `None` if their waiting time is unknown.
fn busy_ns(evidence: &Evidence) -> Option<u64> {
    let end = evidence.run.duration_ns;
    let busy = evidence.threads.iter().map(|thread| {
        let lived = thread.end_ns.unwrap_or(end);
        let lived = lived.saturating_sub(thread.start_ns.unwrap_or(0));
        thread.idle_ns.map(|idle| lived.saturating_sub(idle))
    });
    let busy: Option<u64> = busy.sum();
    busy.filter(|_| !evidence.threads.is_empty() && end > 0)
}

fn figure(evidence: &Evidence, name: &str) -> Option<f64> {
    let derived = &evidence.counting?.derived;
    derived.iter().find(|d| d.name == name).map(|d| d.value)
}

fn page_faults(evidence: &Evidence) -> Option<Cause> {
    let counting = evidence.counting?;
    let of = |name: &str| {
        let counter = counting.totals.iter().find(|c| c.facts.name == name);
        counter.map(|c| c.facts.value as f64)
    };
    let faults = of("page-faults").or_else(|| of("minor-faults"))?;
    let ticked = counting.ticks.as_ref().map(|t| t.facts.running_ns as f64);
    let ran_s = of("task-clock").or_else(|| of("cpu-clock")).or(ticked)? / 1e9;
    let rate = faults / ran_s;
    (ran_s > 0.0 && rate >= FAULTS_PER_S).then(|| Cause {
        other: Some((rate * fault_s(evidence)).min(1.0)),
        ..cause(CauseKind::PageFaults, rate, FAULTS_PER_S)
    })
}

/// Seconds of processor time of a page fault.
fn fault_s(evidence: &Evidence) -> f64 {
    match evidence.manifest.own_cost.page_fault_ns {
        0.0 => FAULT_S,
        ns => ns / 1e9,
    }
}

/// Page faults of an emulated program. They are measured, and the model does not time them.
struct UnmodelledFaults {
    faults: u64,
    /// Their time / (their time + the modelled time).
    share: f64,
    /// True if they come before everything that the model shows.
    are_main: bool,
}

impl UnmodelledFaults {
    fn cause(&self) -> Cause {
        Cause {
            other: Some(self.faults as f64),
            ..cause(CauseKind::UnmodelledFaults, self.share, FAULT_SHARE)
        }
    }
}

fn unmodelled_faults(evidence: &Evidence) -> Option<UnmodelledFaults> {
    evidence.manifest.machine.as_ref()?;
    let threads = evidence.threads.iter();
    let programs: BTreeSet<_> = threads.map(|row| (row.pid, &row.program)).collect();
    let own_faults = EMULATOR_FAULTS * programs.len() as u64;
    let faults = evidence.manifest.own_cost.program_page_faults;
    let faults = faults.saturating_sub(own_faults);
    let busy_s = busy_ns(evidence)? as f64 / 1e9;
    let share_at = |fault_s: f64| {
        let faults_s = faults as f64 * fault_s;
        faults_s / (faults_s + busy_s)
    };
    let fault_s = fault_s(evidence);
    let share = share_at(fault_s);
    (faults >= EMULATED_FAULTS && share >= FAULT_SHARE).then(|| UnmodelledFaults {
        faults,
        share,
        // A virtual machine's page faults can take four times as long as those of the machine that is
        // modelled.
        are_main: share_at(fault_s.min(FAULT_S)) >= MAIN_FAULT_SHARE,
    })
}

/// Waits of an emulated program for files. They are measured on the host, and the model does not
/// time them. Its value is their time / (their time + the modelled time).
fn file_waits(evidence: &Evidence) -> Option<Cause> {
    evidence.manifest.machine.as_ref()?;
    let waited_s = evidence.manifest.own_cost.program_file_wait_s;
    let share = waited_s / (waited_s + evidence.run.duration_ns as f64 / 1e9);
    (waited_s >= FILE_WAIT_S && share >= FILE_SHARE).then(|| Cause {
        other: Some(waited_s),
        ..cause(CauseKind::FileWaits, share, FILE_SHARE)
    })
}

fn llc_misses(evidence: &Evidence) -> Option<Cause> {
    let mpki = figure(evidence, "LLC MPKI")?;
    (mpki >= LLC_MPKI).then(|| cause(CauseKind::CacheMisses, mpki, LLC_MPKI))
}

/// Shares of a modelled run's cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stalls {
    /// Waiting for lines from caches and memory.
    data: f64,
    /// Waiting for address translation.
    translation: f64,
}

/// Causes of a modelled run in their order. What the model does not time comes from [`causes`].
fn of_model(evidence: &Evidence, machine: &MachineFacts) -> Vec<Cause> {
    let mut found = Vec::new();
    let used = mean_bandwidth(evidence, machine);
    let bandwidth = bandwidth(evidence, machine);
    let is_full = bandwidth
        .as_ref()
        .is_some_and(|cause| cause.other.is_none());
    // A part of the run at full bandwidth comes first if most cycles that wait for data wait for
    // memory rather than for a cache.
    let (most, part) = match bandwidth {
        Some(cause) if is_full || waits_for_memory(evidence) => (Some(cause), None),
        part => (None, part),
    };
    found.extend(most);
    let Some(stalls) = stalls(evidence) else {
        found.extend(part);
        return found;
    };
    let sharing = sharing(evidence);
    // Waiting for other cores is no reason to change the order of data.
    let stalls = Stalls {
        data: stalls.data - sharing.as_ref().map_or(0.0, |cause| cause.value),
        ..stalls
    };
    let shares = sharing.is_some();
    let (sharing, minor_sharing) = match sharing {
        Some(cause) if MINOR_SHARING * cause.value < stalls.data => (None, Some(cause)),
        main => (main, None),
    };
    found.extend(sharing);
    let order = order(evidence.totals, evidence.functions);
    if let Some(order) = order.filter(|_| !is_full && stalls.data >= STALL_SHARE) {
        // Lines that threads pass to and fro miss in few sets, too.
        let conflicts = conflicts(evidence).filter(|_| !shares);
        let kind = match order {
            _ if conflicts.is_some() => CauseKind::CacheConflicts,
            AccessOrder::Scattered => CauseKind::LatencyBound,
            AccessOrder::Stream => CauseKind::StreamBound,
            AccessOrder::Stride => CauseKind::StrideBound,
        };
        found.push(Cause {
            other: conflicts.or(Some(used)),
            ..cause(kind, stalls.data, STALL_SHARE)
        });
    }
    found.extend(minor_sharing);
    if stalls.translation >= STALL_SHARE {
        let first = stalls.translation > stalls.data && !is_full;
        let at = if first { 0 } else { found.len() };
        let tlb = cause(CauseKind::TlbBound, stalls.translation, STALL_SHARE);
        found.insert(at, tlb);
    }
    found.extend(part);
    // Below a tenth of the cycles, the work of the threads matters more than what they share,
    // except that padding easily avoids false sharing.
    let small_sharing = match found.as_slice() {
        [only] if only.kind == CauseKind::TrueSharing && only.value < MAIN_TRUE_SHARING => {
            found.pop()
        }
        _ => None,
    };
    let nothing_waits = found.is_empty();
    found.extend(splits(evidence));
    if nothing_waits {
        let shared = small_sharing.as_ref().map_or(0.0, |cause| cause.value);
        let stalled = stalls.data + stalls.translation + shared;
        found.extend(l1_bound(evidence, stalled));
    }
    found.extend(small_sharing);
    found
}

/// Accesses that cross a cache line.
fn splits(evidence: &Evidence) -> Option<Cause> {
    let accesses = total(evidence, "loads")? + total(evidence, "stores")?;
    let share = total(evidence, "splits")? / accesses.max(1.0);
    (share >= SPLIT_SHARE).then(|| cause(CauseKind::SplitAccesses, share, SPLIT_SHARE))
}

/// Share of the first level's misses that are conflicts, if it is at least [`CONFLICT_SHARE`].
fn conflicts(evidence: &Evidence) -> Option<f64> {
    let misses = total(evidence, "l1d.miss").filter(|&misses| misses > 0.0)?;
    let share = total(evidence, "l1d.conflict")? / misses;
    (share >= CONFLICT_SHARE).then_some(share)
}

/// Mean traffic of the run as a share of the memory bandwidth.
fn mean_bandwidth(evidence: &Evidence, machine: &MachineFacts) -> f64 {
    let mean = evidence.dram.mean_read_bytes_per_s.unwrap_or(0.0)
        + evidence.dram.mean_write_bytes_per_s.unwrap_or(0.0);
    mean / (machine.dram_bytes_per_s as f64).max(1.0)
}

/// Memory bandwidth as the limit of the run, or of the part in which most of the bytes move. A
/// program that fills its data before its threads start has a low mean.
fn bandwidth(evidence: &Evidence, machine: &MachineFacts) -> Option<Cause> {
    let used = mean_bandwidth(evidence, machine);
    if used >= BANDWIDTH_SHARE {
        return Some(cause(CauseKind::BandwidthBound, used, BANDWIDTH_SHARE));
    }
    let curve = evidence.bandwidth;
    let limit = machine.dram_bytes_per_s as f64 * curve.bin_ns as f64 / 1e9;
    let bytes = bytes_by_bin(curve);
    if limit <= 0.0 || bytes.is_empty() {
        return None;
    }
    let full: Vec<f64> = bytes
        .iter()
        .copied()
        .filter(|&bytes| bytes >= BANDWIDTH_SHARE * limit)
        .collect();
    let moved: f64 = full.iter().sum();
    let time = full.len() as f64 / bytes.len() as f64;
    let moves_most = moved >= 0.5 * bytes.iter().sum::<f64>();
    (time >= FULL_TIME_SHARE && moves_most).then(|| Cause {
        other: Some(time),
        ..cause(
            CauseKind::BandwidthBound,
            moved / (full.len() as f64 * limit),
            BANDWIDTH_SHARE,
        )
    })
}

/// Returns true if memory causes more stalled cycles than the second level and the last level
/// together.
fn waits_for_memory(evidence: &Evidence) -> bool {
    let sum = |events: &[&str]| -> f64 {
        let counts = events.iter().filter_map(|event| total(evidence, event));
        counts.sum()
    };
    let memory = sum(&["stall.dram", "stall.queue", "stall.stores"]);
    memory > sum(&["stall.l2", "stall.llc"])
}

/// Bytes read and written in each bin.
fn bytes_by_bin(curve: &BandwidthCurve) -> Vec<f64> {
    let none = Vec::new();
    let read = curve.read_bytes.as_ref().unwrap_or(&none);
    let write = curve.write_bytes.as_ref().unwrap_or(&none);
    let at = |values: &[u64], i: usize| values.get(i).copied().unwrap_or(0) as f64;
    let bins = read.len().max(write.len());
    (0..bins).map(|i| at(read, i) + at(write, i)).collect()
}

/// Threads that wait for lines from each other.
fn sharing(evidence: &Evidence) -> Option<Cause> {
    let cycles = total(evidence, "cycles").filter(|&c| c > 0.0)?;
    let share = total(evidence, "stall.sharing")? / cycles;
    let kind = match evidence.sharing?.totals.is_mostly_false() {
        true => CauseKind::FalseSharing,
        false => CauseKind::TrueSharing,
    };
    (share >= SHARING_SHARE).then(|| cause(kind, share, SHARING_SHARE))
}

/// Sharing in samples. The share is that of the latency.
fn sampled_sharing(evidence: &Evidence) -> Option<Cause> {
    let sharing = evidence.sharing?;
    let share = sharing.latency_share?;
    let counts = &sharing.totals;
    let classified = counts.true_sharing.saturating_add(counts.false_sharing);
    let kind = match counts.is_mostly_false() {
        true => CauseKind::FalseSharing,
        false => CauseKind::TrueSharing,
    };
    (counts.hitm_samples >= HITM_SAMPLES
        && classified > counts.unclassified()
        && share >= SHARING_SHARE)
        .then(|| cause(kind, share, SHARING_SHARE))
}

fn total(evidence: &Evidence, name: &str) -> Option<f64> {
    evidence.totals.get(name).map(|&n| n as f64)
}

/// Shares of a modelled run's cycles that are stalled, or `None` if the recording does not count
/// stalls by cause.
fn stalls(evidence: &Evidence) -> Option<Stalls> {
    let cycles = total(evidence, "cycles").filter(|&c| c > 0.0)?;
    let share = |event: &str| Some(total(evidence, event)? / cycles);
    // With `--sets`, translation is not modelled and takes no time.
    let translation = share("stall.tlb").unwrap_or(0.0);
    let data = share("stall.irregular")? + share("stall.regular")? + share("stall.writebacks")?;
    Some(Stalls { data, translation })
}

/// A run that memory does not limit: neither data nor translation stalls a fifth of its cycles, and
/// sharing less than a tenth. `stalled` is their sum.
fn l1_bound(evidence: &Evidence, stalled: f64) -> Option<Cause> {
    let (hits, misses) = (total(evidence, "l1d.hit")?, total(evidence, "l1d.miss")?);
    Some(Cause {
        other: Some(hits / (hits + misses).max(1.0)),
        ..cause(CauseKind::L1Bound, stalled, STALL_SHARE)
    })
}

/// Returns a cause if the traffic's rate varies strongly between bins.
fn phases(evidence: &Evidence) -> Option<Cause> {
    let both = bytes_by_bin(evidence.bandwidth);
    let bins = both.len();
    let all: f64 = both.iter().sum();
    // Little traffic has no phases of interest.
    if all < 4e6 || bins < 40 {
        return None;
    }
    let mean = all / bins as f64;
    let time = time_of_half(&both);
    if time > PHASE_TIME || memory_stalls(evidence).is_some_and(|share| share < PHASE_STALLS) {
        return None;
    }
    let squares: f64 = both.iter().map(|bytes| (bytes - mean).powi(2)).sum();
    let variation = (squares / bins as f64).sqrt() / mean;
    (variation >= PHASE_VARIATION).then(|| Cause {
        other: Some(time),
        ..cause(CauseKind::Phases, variation, PHASE_VARIATION)
    })
}

/// Smallest share of the bins that have half of the bytes.
fn time_of_half(bytes_by_bin: &[f64]) -> f64 {
    let mut falling = bytes_by_bin.to_vec();
    falling.sort_by(|a, b| b.total_cmp(a));
    let half = falling.iter().sum::<f64>() / 2.0;
    let sums = falling.iter().scan(0.0, |sum, bytes| {
        *sum += bytes;
        Some(*sum)
    });
    let needed = 1 + sums.take_while(|sum| *sum < half).count();
    needed as f64 / bytes_by_bin.len().max(1) as f64
}

/// Share of the cycles that wait for memory. `None` if the recording does not count them.
fn memory_stalls(evidence: &Evidence) -> Option<f64> {
    let cycles = total(evidence, "cycles").filter(|&c| c > 0.0)?;
    let dram = total(evidence, "stall.dram")?;
    let others = ["stall.queue", "stall.stores"].map(|event| total(evidence, event));
    Some((dram + others.into_iter().flatten().sum::<f64>()) / cycles)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sharing::SharingCounts;

    fn machine() -> MachineFacts {
        MachineFacts {
            dram_bytes_per_s: 10_000_000_000,
            ..MachineFacts::default()
        }
    }

    /// The causes of a modelled run of 100 M instructions with these totals, and the
    /// part of the bandwidth that it uses.
    fn kinds(totals: &[(&str, u64)], used: f64) -> Vec<CauseKind> {
        kinds_of_threads(totals, used, None)
    }

    fn kinds_of_threads(
        totals: &[(&str, u64)],
        used: f64,
        sharing: Option<&SharedLines>,
    ) -> Vec<CauseKind> {
        let mut all: Counts = [
            ("instructions", 100_000_000),
            ("loads", 30_000_000),
            ("stores", 10_000_000),
            ("stall.irregular", 0),
            ("stall.regular", 0),
            ("stall.writebacks", 0),
            ("stall.tlb", 0),
        ]
        .map(|(n, v)| (n.to_owned(), v))
        .into();
        all.extend(totals.iter().map(|&(n, v)| (n.to_owned(), v)));
        let manifest = Manifest {
            machine: Some(machine()),
            ..Manifest::default()
        };
        let run = RunFacts::of(&all, 1_000_000_000, 1.0);
        let dram = Dram {
            mean_read_bytes_per_s: Some(used * 1e10),
            mean_write_bytes_per_s: Some(0.0),
            ..Dram::default()
        };
        let causes = causes(&Evidence {
            manifest: &manifest,
            totals: &all,
            run: &run,
            dram: &dram,
            bandwidth: &BandwidthCurve::default(),
            counting: None,
            sampling: None,
            threads: &[],
            functions: &HotTable::default(),
            sharing,
        });
        causes.into_iter().map(|c| c.kind).collect()
    }

    fn lines_with(true_sharing: u64, false_sharing: u64) -> SharedLines {
        SharedLines {
            totals: SharingCounts {
                hitm: true_sharing + false_sharing,
                true_sharing,
                false_sharing,
                ..SharingCounts::default()
            },
            ..SharedLines::default()
        }
    }

    #[test]
    fn sharing_comes_first_unless_other_stalls_take_more_than_twice_as_long() {
        let lines = lines_with(0, 10);
        for (other, expected) in [
            (
                119_000_000,
                [CauseKind::FalseSharing, CauseKind::LatencyBound],
            ),
            (
                121_000_000,
                [CauseKind::LatencyBound, CauseKind::FalseSharing],
            ),
        ] {
            let totals = [
                ("cycles", 300_000_000),
                ("stall.sharing", 60_000_000),
                ("stall.irregular", other + 60_000_000),
            ];
            assert_eq!(kinds_of_threads(&totals, 0.2, Some(&lines)), expected);
        }
    }

    #[test]
    fn true_sharing_below_a_tenth_of_the_cycles_comes_after_the_work() {
        let true_lines = lines_with(10, 0);
        let false_lines = lines_with(0, 10);
        let causes = |lines, shared, others| {
            let totals = [
                ("cycles", 300_000_000),
                ("l1d.hit", 39_000_000),
                ("l1d.miss", 1_000_000),
                ("stall.sharing", shared),
                ("stall.irregular", shared + others),
            ];
            kinds_of_threads(&totals, 0.1, Some(lines))
        };
        let small = [CauseKind::L1Bound, CauseKind::TrueSharing];
        assert_eq!(causes(&true_lines, 20_000_000, 25_000_000), small);
        assert_eq!(causes(&true_lines, 29_000_000, 0), small);
        assert_eq!(causes(&true_lines, 31_000_000, 0), [CauseKind::TrueSharing]);
        let padding_helps = [CauseKind::FalseSharing];
        assert_eq!(causes(&false_lines, 20_000_000, 25_000_000), padding_helps);
        assert_eq!(causes(&false_lines, 16_000_000, 0), padding_helps);
        // Beside a cause, the larger one comes first, as above.
        for (lines, kind) in [
            (&true_lines, CauseKind::TrueSharing),
            (&false_lines, CauseKind::FalseSharing),
        ] {
            assert_eq!(
                causes(lines, 20_000_000, 70_000_000),
                [CauseKind::LatencyBound, kind]
            );
            assert_eq!(causes(lines, 14_000_000, 0), [CauseKind::L1Bound]);
        }
    }

    #[test]
    fn stalls_of_irregular_loads_without_traffic_are_latency() {
        let totals = [("cycles", 300_000_000), ("stall.irregular", 61_000_000)];
        assert_eq!(kinds(&totals, 0.2), [CauseKind::LatencyBound]);
        let totals = [("cycles", 300_000_000), ("stall.irregular", 59_000_000)];
        assert_eq!(kinds(&totals, 0.2), []);
    }

    #[test]
    fn traffic_near_the_limit_is_bandwidth() {
        let totals = [("cycles", 300_000_000), ("stall.regular", 200_000_000)];
        assert_eq!(kinds(&totals, 0.9), [CauseKind::BandwidthBound]);
    }

    /// An array is filled in order by stores, then read in random order. Few of the lines are
    /// fetched by loads, but the loads stall.
    #[test]
    fn many_compulsory_store_misses_do_not_hide_irregular_loads() {
        let totals = [
            ("cycles", 300_000_000),
            ("l1d.store_miss", 10_000_000),
            ("l1d.load_miss", 500_000),
            ("stall.irregular", 150_000_000),
            ("stall.regular", 1_000_000),
            ("stall.writebacks", 10_000_000),
        ];
        assert_eq!(kinds(&totals, 0.2), [CauseKind::LatencyBound]);
    }

    /// One thread fills memory slowly, then many read it.
    #[test]
    fn a_part_of_the_run_at_full_bandwidth_is_found() {
        let found = |bytes_by_bin: &[u64]| {
            let curve = BandwidthCurve {
                bin_ns: 1000,
                duration_ns: 1000 * bytes_by_bin.len() as u64,
                read_bytes: Some(bytes_by_bin.to_vec()),
                write_bytes: None,
            };
            let totals = Counts::default();
            bandwidth(
                &Evidence {
                    manifest: &Manifest::default(),
                    totals: &totals,
                    run: &RunFacts::of(&totals, 1000, 1.0),
                    dram: &Dram::default(),
                    bandwidth: &curve,
                    counting: None,
                    sampling: None,
                    threads: &[],
                    functions: &HotTable::default(),
                    sharing: None,
                },
                &machine(),
            )
            .map(|cause| (cause.value, cause.other))
        };
        // A bin has room for 10 000 bytes.
        assert_eq!(found(&[100, 100, 9000, 8000]), Some((0.85, Some(0.5))));
        assert_eq!(found(&[100, 100, 100, 100, 100, 9000]), None);
        assert_eq!(found(&[5900, 5900, 5900, 6100]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn stalls_of_lines_in_few_sets_are_conflicts() {
        let totals = [
            ("cycles", 300_000_000),
            ("stall.irregular", 90_000_000),
            ("l1d.miss", 1000),
            ("l1d.conflict", 500),
        ];
        assert_eq!(kinds(&totals, 0.0), [CauseKind::CacheConflicts]);
        let fewer = [&totals[..3], &[("l1d.conflict", 499)]].concat();
        assert_eq!(kinds(&fewer, 0.0), [CauseKind::LatencyBound]);
    }

    #[test]
    fn walks_that_take_most_stalls_come_first() {
        let totals = [
            ("cycles", 300_000_000),
            ("stall.tlb", 100_000_000),
            ("stall.irregular", 90_000_000),
        ];
        let both = [CauseKind::TlbBound, CauseKind::LatencyBound];
        assert_eq!(kinds(&totals, 0.0), both);
        let few = [
            ("cycles", 300_000_000),
            ("stall.tlb", 10_000_000),
            ("stall.irregular", 90_000_000),
        ];
        assert_eq!(kinds(&few, 0.0), [CauseKind::LatencyBound]);
    }

    #[test]
    fn a_run_with_few_stalls_is_not_limited_by_memory() {
        let totals = [
            ("cycles", 31_000_000),
            ("l1d.hit", 40_000_000),
            ("l1d.miss", 100),
        ];
        assert_eq!(kinds(&totals, 0.0), [CauseKind::L1Bound]);
    }

    #[test]
    fn many_accesses_across_lines_come_after_what_waits_and_before_what_does_not() {
        let totals = |splits, irregular| {
            [
                ("cycles", 100_000_000),
                ("l1d.hit", 40_000_000),
                ("l1d.miss", 100),
                ("loads", 30_000_000),
                ("stores", 10_000_000),
                ("splits", splits),
                ("stall.irregular", irregular),
            ]
        };
        let (few, many) = (3_999_999, 4_000_000);
        assert_eq!(kinds(&totals(few, 0), 0.0), [CauseKind::L1Bound]);
        let split = CauseKind::SplitAccesses;
        assert_eq!(kinds(&totals(many, 0), 0.0), [split, CauseKind::L1Bound]);
        let waits = [CauseKind::LatencyBound, split];
        assert_eq!(kinds(&totals(many, 50_000_000), 0.0), waits);
    }

    #[test]
    fn page_faults_and_waits_for_files_that_take_longer_than_the_modelled_time_come_first() {
        let found_at = |fault_ns: f64, faults: u64, file_wait_s: f64| -> Vec<CauseKind> {
            let mut manifest = Manifest {
                machine: Some(machine()),
                ..Manifest::default()
            };
            manifest.own_cost.program_page_faults = faults;
            manifest.own_cost.page_fault_ns = fault_ns;
            manifest.own_cost.program_file_wait_s = file_wait_s;
            let totals = Counts::from(
                [
                    ("instructions", 100_000_000),
                    ("cycles", 10_000_000),
                    ("l1d.hit", 1000),
                    ("l1d.miss", 0),
                    ("stall.irregular", 0),
                    ("stall.regular", 0),
                    ("stall.writebacks", 0),
                ]
                .map(|(name, n)| (name.to_owned(), n)),
            );
            // At 0.5 µs each, 120 000 faults take three times as long as this thread.
            let thread = ThreadRow {
                start_ns: Some(0),
                end_ns: Some(20_000_000),
                idle_ns: Some(0),
                ..ThreadRow::default()
            };
            let causes = causes(&Evidence {
                manifest: &manifest,
                totals: &totals,
                run: &RunFacts::of(&totals, 20_000_000, 1.0),
                dram: &Dram::default(),
                bandwidth: &BandwidthCurve::default(),
                counting: None,
                sampling: None,
                threads: &[thread],
                functions: &HotTable::default(),
                sharing: None,
            });
            causes.iter().map(|cause| cause.kind).collect()
        };
        let found = |faults, file_wait_s| found_at(0.0, faults, file_wait_s);
        let faults = CauseKind::UnmodelledFaults;
        // The emulator makes 1500 faults for a program.
        assert_eq!(found(122_500, 0.0)[0], faults);
        assert_eq!(found(120_500, 0.0), [CauseKind::L1Bound, faults]);
        assert_eq!(found(21_500, 0.0), [CauseKind::L1Bound, faults]);
        assert_eq!(found(21_499, 0.0), [CauseKind::L1Bound]);
        // Slower ones are found, but do not come before what the model shows.
        assert_eq!(found_at(200.0, 27_000, 0.0), [CauseKind::L1Bound, faults]);
        assert_eq!(found_at(200.0, 21_500, 0.0), [CauseKind::L1Bound]);
        assert_eq!(found_at(2000.0, 31_600, 0.0), [CauseKind::L1Bound, faults]);
        assert_eq!(found_at(2000.0, 122_500, 0.0)[0], faults);
        let files = CauseKind::FileWaits;
        assert_eq!(found(0, 0.021), [files, CauseKind::L1Bound]);
        assert_eq!(found(0, 0.019), [CauseKind::L1Bound]);
        assert_eq!(found(122_500, 1.0)[..2], [files, faults]);
    }

    #[test]
    fn a_run_of_few_instructions_is_too_short_to_judge() {
        let totals = [("instructions", 1000), ("cycles", 300_000)];
        assert_eq!(kinds(&totals, 0.0)[0], CauseKind::Tiny);
    }

    #[test]
    fn a_run_that_the_loader_fills_is_startup() {
        let of = |cycles_of_loader: u64, instructions: u64| {
            let counts = |cycles: u64| Counts::from([("cycles".to_owned(), cycles)]);
            let row = |module: &str, cycles: u64| HotRow {
                module: module.to_owned(),
                counts: counts(cycles),
                ..HotRow::default()
            };
            let functions = HotTable {
                rows: vec![
                    row("/lib64/ld-linux-x86-64.so.2", cycles_of_loader),
                    row("/usr/bin/ld-new", 100 - cycles_of_loader),
                ],
                ..HotTable::default()
            };
            let mut totals = counts(100);
            totals.insert("instructions".to_owned(), instructions);
            let manifest = Manifest {
                machine: Some(machine()),
                ..Manifest::default()
            };
            tiny(&Evidence {
                manifest: &manifest,
                totals: &totals,
                run: &RunFacts::of(&totals, 1_000_000, 1.0),
                dram: &Dram::default(),
                bandwidth: &BandwidthCurve::default(),
                counting: None,
                sampling: None,
                threads: &[],
                functions: &functions,
                sharing: None,
            })
        };
        assert_eq!(of(25, 4_000_000).and_then(|c| c.other), Some(0.25));
        assert_eq!(of(24, 4_000_000), None);
        assert_eq!(of(90, 30_000_000), None);
    }

    #[test]
    fn waiting_threads_are_idle() {
        let thread = |idle| ThreadRow {
            start_ns: Some(0),
            end_ns: Some(100),
            idle_ns: Some(idle),
            ..ThreadRow::default()
        };
        let share = |idle: [u64; 2]| {
            let threads = idle.map(thread);
            let found = idle_of(&threads);
            found.map(|c| c.value)
        };
        // In 100 ns two threads ran for 50 and for nothing, or one of them all the time.
        assert_eq!(share([50, 100]), Some(0.5));
        assert_eq!(share([0, 100]), None);
        // Threads that live for less than a nanosecond did not sleep.
        let gone = ThreadRow {
            end_ns: Some(0),
            ..thread(0)
        };
        assert_eq!(idle_of(&[gone]), None);
        assert_eq!(share([100, 100]), Some(1.0));
    }

    fn idle_of(threads: &[ThreadRow]) -> Option<Cause> {
        let run = RunFacts {
            duration_ns: 100,
            ..RunFacts::default()
        };
        idle(&Evidence {
            manifest: &Manifest::default(),
            totals: &Counts::new(),
            run: &run,
            dram: &Dram::default(),
            bandwidth: &BandwidthCurve::default(),
            counting: None,
            sampling: None,
            threads,
            functions: &HotTable::default(),
            sharing: None,
        })
    }

    /// Returns true if traffic with these bytes in 100 bins has phases. Memory stalls the share
    /// `stalled` of the cycles.
    fn has_phases(bytes_by_bin: impl Fn(u64) -> u64, stalled: f64) -> bool {
        let curve = BandwidthCurve {
            bin_ns: 1000,
            duration_ns: 100_000,
            read_bytes: Some((0..100).map(bytes_by_bin).collect()),
            write_bytes: None,
        };
        let stalled = (stalled * 1e6) as u64;
        let totals = [("cycles", 1_000_000), ("stall.dram", stalled)];
        let totals = totals.map(|(event, n)| (event.to_owned(), n)).into();
        let found = phases(&Evidence {
            manifest: &Manifest::default(),
            totals: &totals,
            run: &RunFacts::default(),
            dram: &Dram::default(),
            bandwidth: &curve,
            counting: None,
            sampling: None,
            threads: &[],
            functions: &HotTable::default(),
            sharing: None,
        });
        found.is_some()
    }

    #[test]
    fn bursts_are_phases_and_a_steady_run_with_a_burst_at_its_start_is_not() {
        let bursts = |bin: u64| {
            if bin.is_multiple_of(10) {
                1_000_000
            } else {
                1000
            }
        };
        assert!(has_phases(bursts, 0.11));
        assert!(!has_phases(bursts, 0.09));
        // The burst has 28 % of the bytes.
        let filled_first = |bin: u64| if bin < 2 { 1_900_000 } else { 100_000 };
        assert!(!has_phases(filled_first, 0.5));
    }

    #[test]
    fn nothing_recorded_has_no_cause() {
        let manifest = Manifest::default();
        let found = causes(&Evidence {
            manifest: &manifest,
            totals: &Counts::new(),
            run: &RunFacts::default(),
            dram: &Dram::default(),
            bandwidth: &BandwidthCurve::default(),
            counting: None,
            sampling: None,
            threads: &[],
            functions: &HotTable::default(),
            sharing: None,
        });
        assert_eq!(found, []);
    }
}
