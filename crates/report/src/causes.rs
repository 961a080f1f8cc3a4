//! Causes that limit a run, in sentences: the figure, the threshold that it exceeds, and the next step.

use memgauge_analyze::{
    BandwidthCurve, Cause, CauseKind, Counts, DataKind, HotMembers, HotRow, LossRow, MemberRow,
    SharedAccess, Summary, TypeRow, WhatIf, falsely_shared_variables, file_name, is_library_code,
    sentence,
};
use memgauge_trace::{EventId, FileUse, LossKind, catalogue};
use serde::Serialize;

use crate::callers::{callers, calls_by, is_python_library, main_caller, own_caller};
use crate::names::{NAMED_SHARE, readable, without_arguments};
use crate::style::Style;
use crate::units;

/// Maximum number of findings, so that the first one is not buried.
pub(crate) const FINDINGS: usize = 3;

/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;
/// Event by which time is sampled in a modelled machine.
const CYCLES: &str = "cycles";

/// Style of numbers in sentences.
const SENTENCES: Style = Style {
    width: usize::MAX,
    line: usize::MAX,
    colour: false,
    unicode: true,
    rows: Style::ROWS,
};

/// Distinguishes sequential access from strides.
const LINE_USE: &str = "at least 1.5 accesses per miss";

/// A sentence of the overview.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// `cause`, `caution` or `fact`.
    pub kind: &'static str,
    /// The finding.
    pub text: String,
    /// The rule behind it, or empty for facts.
    pub rule: String,
    /// The next step, or empty.
    pub next: String,
}

/// The model has no coherence between processes.
const SEPARATE_PROCESSES: &str = " Lines of memory that several processes share are modelled as if \
     each process had its own, so passing them to and fro costs nothing here.";

/// Next step for a run that is too short. It may have been longer than the recording.
fn longer_run(summary: &Summary) -> &'static str {
    let lack = |loss: &LossRow| {
        loss.kind == sentence(LossKind::ThreadNotRecorded).0 || loss.detail == LossKind::NO_ROOM
    };
    match summary.losses.iter().any(lack) {
        true => "Much of it may not have been recorded (see Losses). Fix that first.",
        false => "Record a longer run: a larger input, or more repetitions.",
    }
}

/// Share of first-level hits below which the cause of short waits needs a word.
const MANY_HITS: f64 = 0.9;

/// Cost of a page fault that the shares of page faults are computed with.
fn fault_cost(summary: &Summary) -> String {
    match summary.own_cost.page_fault_ns {
        0.0 => "0.5 µs each".to_owned(),
        ns => format!(
            "{} each (measured on this machine)",
            units::seconds(ns / 1e9, &SENTENCES)
        ),
    }
}

/// Returns the use of files that a program waits for most.
fn slowest_file_use(summary: &Summary) -> FileUse {
    let cost = &summary.own_cost;
    let (writes, syncs) = (
        cost.program_file_write_wait_s,
        cost.program_file_sync_wait_s,
    );
    let reads = cost.program_file_wait_s - writes - syncs;
    if syncs >= reads.max(writes) {
        FileUse::Sync
    } else if writes >= reads {
        FileUse::Write
    } else {
        FileUse::Read
    }
}

fn file_calls(file_use: FileUse) -> &'static str {
    match file_use {
        FileUse::Read => "reads",
        FileUse::Write => "writes",
        FileUse::Sync => "fsync, fdatasync and the like",
    }
}

fn file_advice(file_use: FileUse) -> &'static str {
    match file_use {
        FileUse::Read => {
            "Read larger pieces, in order, or ahead of their use (posix_fadvise with \
             POSIX_FADV_WILLNEED, another thread), and keep what is read again. `memgauge io -- \
             CMD` shows how many bytes each process reads."
        }
        FileUse::Write => {
            "Write less or in larger pieces, or let another thread write. O_SYNC and O_DIRECT \
             make each write wait. `memgauge io -- CMD` shows how many bytes each process \
             writes."
        }
        FileUse::Sync => {
            "Sync less often: once for several records (group commit), or in another thread. \
             fdatasync waits less than fsync if only the contents matter."
        }
    }
}

/// Names the place with the longest waits of this kind, which the advice is about.
fn slowest_file_calls(file_use: FileUse, summary: &Summary) -> Option<String> {
    let mut places = summary.file_waits.iter();
    let first = places.find(|place| place.file_use == file_use)?;
    if first.share < NAMED_SHARE || first.call.is_unnamed() {
        return None;
    }
    let place = first.call.place();
    Some(format!(
        "{} of the waits are in calls by {}{}.",
        units::share(first.share),
        without_arguments(&first.call.function),
        place.map_or(String::new(), |place| format!(" at {place}"))
    ))
}

/// Describes a cause.
pub(crate) fn of_cause(cause: &Cause, summary: &Summary) -> Statement {
    let percent = units::share;
    let value = cause.value;
    let other = cause.other.unwrap_or(0.0);
    let threshold = match cause.kind {
        CauseKind::Tiny if value < 1.0 => format!("{:.0} ms", cause.threshold * 1e3),
        CauseKind::Tiny if cause.other.is_some() => percent(cause.threshold),
        CauseKind::Tiny | CauseKind::FewSamples => units::count(cause.threshold as u64),
        CauseKind::PageFaults => units::count(cause.threshold as u64),
        CauseKind::CacheMisses => units::rate(cause.threshold),
        _ => format!("{:.0} %", cause.threshold * 100.0),
    };
    let limit = summary.recording.machine.as_ref();
    let limit = limit.map_or(0.0, |m| m.dram_bytes_per_s as f64);
    let limit = units::few_gigabytes(limit);
    let rate = match core_limit(summary) {
        Some(core) if core.share >= CORE_LIMIT_SHARE => format!(
            "{} of the {} GB/s that one core can move ({} misses in flight; memory has {limit} GB/s)",
            percent(core.share.min(1.0)),
            units::few_gigabytes(core.bytes_per_s),
            core.misses_in_flight,
        ),
        _ => format!("{} of memory's {limit} GB/s", percent(other)),
    };
    let is_caution = matches!(cause.kind, CauseKind::Tiny | CauseKind::FewSamples);
    let (text, rule, next) = match cause.kind {
        CauseKind::Tiny if value < 1.0 => (
            format!("The run is too short to judge: {:.1} ms.", value * 1e3),
            format!("shorter than {threshold}"),
            longer_run(summary),
        ),
        CauseKind::Tiny if cause.other.is_some() => (
            format!(
                "The run is too short to judge: the dynamic loader takes {} of its cycles as it \
                 starts.",
                percent(other)
            ),
            format!("at least {threshold} of the cycles, in fewer than 30M instructions"),
            longer_run(summary),
        ),
        CauseKind::Tiny => (
            format!(
                "The run is too short to judge: startup is a large part of its {} instructions.",
                units::count(value as u64)
            ),
            format!("fewer than {threshold} instructions"),
            longer_run(summary),
        ),
        CauseKind::FewSamples if value == 0.0 => (
            "There are no samples, so nothing is known about the code.".to_owned(),
            format!("fewer than {threshold} samples"),
            "Record with a shorter period (-c), a higher frequency (-F), or for longer.",
        ),
        CauseKind::FewSamples => (
            format!(
                "Only {}: shares are rough.{}",
                units::plural(value as u64, "sample"),
                mostly_waited(summary).unwrap_or_default()
            ),
            format!("fewer than {threshold} samples"),
            "Record with a shorter period (-c), a higher frequency (-F), or for longer.",
        ),
        // Counters show which threads ran, but not why others waited.
        CauseKind::Idle if summary.counting.is_some() => (
            format!(
                "It ran for at most {} of the time. Otherwise it waited, or other programs had the \
                 processors.",
                percent(1.0 - value)
            ),
            format!("on no processor for at least {threshold} of the time"),
            "On an otherwise idle machine it waited: `memgauge io -- CMD` shows disks and \
             networks. On a busy one, repeat the run.",
        ),
        CauseKind::Idle => (
            format!(
                "It mostly waits: its threads sleep for {} of their time.",
                percent(value)
            ),
            format!("threads sleep for at least {threshold} of the time"),
            "Find what it waits for: `memgauge io -- CMD` shows disks and networks, and the table \
             of threads shows which ones sleep. A thread that only polls and sleeps, as one of Go's \
             runtime does, can make virtual time longer than a real run.",
        ),
        CauseKind::BandwidthBound => (
            match cause.other {
                Some(time) => format!(
                    "Memory bandwidth limits {} of the run: there it uses {} of memory's {limit} GB/s.",
                    percent(time),
                    percent(value)
                ),
                None => format!(
                    "Memory bandwidth is the limit: it uses {} of memory's {limit} GB/s.",
                    percent(value)
                ),
            },
            match cause.other {
                Some(_) => format!("at least {threshold} of the bandwidth where most bytes move"),
                None => format!("at least {threshold} of the bandwidth on average"),
            },
            "Move fewer bytes: work in blocks that fit a cache, use smaller types, join loops \
             over the same data. Start with the hottest functions.",
        ),
        CauseKind::LatencyBound | CauseKind::StreamBound | CauseKind::StrideBound
            if waits_for_stores(summary) =>
        {
            (
                format!(
                    "It writes more than memory takes: {} of its cycles wait for caches and memory, \
                     most of them for stores, at {rate}.",
                    percent(value)
                ),
                format!("at least {threshold} of the cycles stalled, most of these on stores"),
                if writes_past_caches(summary) {
                    "Write fewer bytes: use smaller types, do not clear memory that is written \
                     again, and work in blocks that fit a cache. Most of its writes are \
                     non-temporal stores, which do not read their lines first."
                } else {
                    "Write fewer lines: use smaller types, do not clear memory that is written \
                     again, and work in blocks that fit a cache. A store to a line that is in no \
                     cache reads it first and writes it back later: for large blocks that are not \
                     read soon, non-temporal stores (`_mm_stream_si128`) save the read. If it \
                     writes to scattered addresses, place data that is written together in the \
                     same lines."
                },
            )
        }
        CauseKind::LatencyBound => (
            format!(
                "It waits for single cache lines: {} of its cycles wait for caches and memory, {}.",
                percent(value),
                slowest_level(summary, &rate)
            ),
            format!("at least {threshold} of the cycles stalled, below 60 % of the bandwidth"),
            "If the order of the accesses is free, follow the order in memory: swap the loops over \
             a matrix that is read by columns, and pad rows that are a large power of two apart. If \
             each load needs the one before (list, tree, hash chain), shorten the chain. Otherwise \
             use more of each line: make the data smaller, and keep together what is used together.",
        ),
        CauseKind::CacheConflicts => (
            format!(
                "Its data competes for few cache sets: {} of the L1D misses repeat in at most an \
                 eighth of the sets, and {} of its cycles wait for caches and memory.",
                percent(other),
                percent(value)
            ),
            format!(
                "at least {threshold} of the cycles stalled, at least half of the L1D misses \
                 conflicts"
            ),
            "Lines at a multiple of the same power of two apart share a set, such as a column of a \
             matrix, or nodes at the start of pages. Access the data in the order in memory (swap \
             loops, or work in blocks), or make each row longer by a cache line.",
        ),
        CauseKind::StreamBound => (
            format!(
                "It streams: it reads data in order, and {} of its cycles wait for the lines, {}.",
                percent(value),
                slowest_level(summary, &rate)
            ),
            format!("at least {threshold} of the cycles stalled, most misses in order, {LINE_USE}"),
            "Load each line fewer times: join loops over the same data, work in blocks that fit a \
             cache, use smaller types. If loops skip bytes (one field of large structures), use an \
             array per field.",
        ),
        CauseKind::StrideBound => (
            format!(
                "It reads data in order with about one access per line, and {} of its cycles wait \
                 for the lines, {}.",
                percent(value),
                slowest_level(summary, &rate)
            ),
            format!(
                "at least {threshold} of the cycles stalled, most misses in order, but not {LINE_USE}"
            ),
            "If accesses are a few bytes wide, use more of each line: keep together what is used \
             together (an array per field), or swap loops. If vectors load whole lines, pass over \
             the data fewer times, in blocks that fit a cache.",
        ),
        CauseKind::FalseSharing => (
            format!(
                "False sharing: {} {} for cache lines in which another thread has just written \
                 other bytes.",
                percent(value),
                sharing_time(summary)[0],
            ),
            format!(
                "at least {threshold} of the {}, most such misses of other bytes",
                sharing_time(summary)[1]
            ),
            "Give each thread's data cache lines of its own: align it to 64 bytes, or let each \
             thread work in local variables and store the result once. The table of shared lines \
             shows which bytes each thread uses.",
        ),
        CauseKind::TrueSharing => (
            format!(
                "Threads pass data to and fro: {} {} for cache lines of which another thread has \
                 just written the same bytes.",
                percent(value),
                sharing_time(summary)[0],
            ),
            format!(
                "at least {threshold} of the {}, most such misses of the same bytes",
                sharing_time(summary)[1]
            ),
            "Share less often: let each thread work on data of its own and combine results at the \
             end, hand over larger pieces, or split a lock or counter into one for each thread.",
        ),
        CauseKind::TlbBound => (
            format!(
                "{} of its cycles wait for address translation.",
                percent(value)
            ),
            format!("at least {threshold} of the cycles"),
            "Use huge pages (madvise with MADV_HUGEPAGE), or touch fewer pages at a time.",
        ),
        CauseKind::PageFaults => (
            format!(
                "Page faults: {} a second of processor time, which takes about {} of it at \
                 {}.",
                units::count(value as u64),
                percent(other),
                fault_cost(summary)
            ),
            format!("at least {threshold} a second of processor time"),
            "Reuse memory instead of returning it; use huge pages for large \
             arrays. `memgauge record -e page-faults -c 1 -- CMD` shows where they happen.",
        ),
        CauseKind::UnmodelledFaults => (
            format!(
                "Page faults, which the model does not time: about {} (measured, without 1500 of \
                 the emulator for each program). At {}, they would take {} of the run.",
                units::count(other as u64),
                fault_cost(summary),
                percent(value)
            ),
            format!("at least {threshold} of the time of the run with its page faults"),
            "Reuse memory instead of returning it: each page of new memory or of a mapped file costs \
             a fault when it is first touched. For large arrays, use huge pages; for files, read() \
             into one buffer or MAP_POPULATE. `memgauge stat -- CMD` counts faults without the \
             emulator.",
        ),
        CauseKind::FileWaits => {
            let slowest = slowest_file_use(summary);
            let place = slowest_file_calls(slowest, summary);
            (
                format!(
                    "It waits for files, which the model does not time: {} without a running \
                     thread (measured on this machine), {} of that and the modelled time. Most of \
                     it is in {}.{}",
                    units::seconds(other, &SENTENCES),
                    percent(value),
                    file_calls(slowest),
                    place.map_or(String::new(), |place| format!(" {place}"))
                ),
                format!("at least {threshold} of the time of the run with these waits"),
                file_advice(slowest),
            )
        }
        CauseKind::CacheMisses => (
            format!(
                "It misses the last-level cache {} times per 1000 instructions.",
                units::rate(value)
            ),
            format!("at least {threshold} per 1000 instructions"),
            "`memgauge mrc -- CMD` shows how much cache it needs, `memgauge -- CMD` which code \
             and data miss.",
        ),
        CauseKind::SplitAccesses => (
            format!(
                "{} of its loads and stores cross a cache line. The model counts them and does not \
                 time them: a processor accesses both lines.",
                percent(value)
            ),
            format!("at least {threshold} of the loads and stores"),
            "Align data to its size: do not pack structures, and start arrays of vectors at a \
             multiple of 32 or 64 bytes (aligned_alloc, alignas). `-e splits:1009` samples the \
             code.",
        ),
        CauseKind::L1Bound => (
            format!(
                "{}: {} of its cycles wait for caches, memory and address translation. The \
                 first-level cache serves {} of its look-ups{}.",
                match value < cause.threshold {
                    true => "Memory does not limit it",
                    false => "Memory is not its main limit",
                },
                percent(value),
                percent(other),
                match other < MANY_HITS {
                    true => ", and most waits for the others are short or overlap",
                    false => "",
                }
            ),
            format!("less than {threshold} of the cycles stalled for data, and for translation"),
            match summary.threads.len() {
                _ if allocation(summary).is_some() => {
                    "Allocate less: reuse buffers, reserve the size that a container will have, and \
                     borrow or move instead of copying. The table of the heap has the calls."
                }
                _ if few_threads_run(summary).is_some() && is_pipeline(summary) => {
                    "If more processes should run, find which one the others wait for: the table of \
                     processes shows how long each one ran and waited."
                }
                _ if few_threads_run(summary).is_some() => {
                    "If more threads should run, find what they wait for: a lock that all of them \
                     take, or work that one thread does alone. The table of threads shows how long \
                     each one waits."
                }
                threads if threads <= 1 || models_sharing(summary) => {
                    "Look for fewer instructions and accesses: a better algorithm, values kept in \
                     registers, vector instructions."
                }
                // The model has no coherence, so false sharing costs nothing here and may be the
                // real cause.
                _ => {
                    "Several threads run, and sharing of lines between them is not modelled: check \
                     it with `perf c2c` on a machine with a PMU. Otherwise look for fewer \
                     instructions and accesses."
                }
            },
        ),
        CauseKind::Phases => (
            match busy_stretch(&summary.bandwidth) {
                Some(stretch) if stretch.is_short(summary.run.duration_ns) => {
                    stretch.in_words(summary.run.duration_ns)
                }
                _ => format!(
                    "Its memory traffic comes in bursts: half of it falls into {} of the time.",
                    percent(other)
                ),
            },
            format!(
                "the rate of the traffic has a standard deviation of {} of its mean, at least \
                 {threshold}",
                percent(value)
            ),
            "Select a busy stretch in the plot of bandwidth (`report --html` makes a page that has it): \
             the tables then show it alone.",
        ),
    };
    let is_compute = cause.kind == CauseKind::L1Bound;
    let allocation = allocation(summary).filter(|_| is_compute);
    let python = python_line(cause.kind, summary);
    let function = hottest_function(cause.kind, summary).filter(|_| allocation.is_none());
    let members = hot_members(cause.kind, summary);
    let next = match cause.kind {
        CauseKind::LatencyBound if !waits_for_stores(summary) => order_advice(summary, next),
        _ => next.to_owned(),
    };
    let sentences = [
        python.as_ref().map(|python| python.text.clone()),
        allocation,
        shared_line(cause.kind, summary),
        function.as_ref().map(|function| function.text.clone()),
        few_threads_run(summary).filter(|_| is_compute),
        members.as_ref().map(hot_members_in_words),
    ];
    let text = sentences
        .into_iter()
        .flatten()
        .fold(text, |text, sentence| format!("{text} {sentence}"));
    let callers = python
        .or(function)
        .and_then(|function| function.how_to_find_calls(summary));
    Statement {
        kind: if is_caution { "caution" } else { "cause" },
        text,
        rule,
        next: format!(
            "{next}{}{}{}{}{}",
            size_of_data(cause.kind, summary).unwrap_or_default(),
            callers.unwrap_or_default(),
            match is_compute && summary.processes.len() > 1 {
                true => SEPARATE_PROCESSES,
                false => "",
            },
            effect_of_layout(cause.kind, members.as_ref(), summary),
            modelled_effect(cause.kind, summary)
        ),
    }
}

/// Names the level that most of the stalls on data wait for. `rate` is the use of memory, which
/// says nothing about the caches.
fn slowest_level(summary: &Summary, rate: &str) -> String {
    let total = |event: &str| summary.totals.get(event).copied().unwrap_or(0);
    let levels = [
        ("L2", total("stall.l2")),
        ("the LLC", total("stall.llc")),
        ("DRAM", total("stall.dram") + total("stall.queue")),
    ];
    let all: u64 = levels.iter().map(|level| level.1).sum();
    let slowest = levels.into_iter().max_by_key(|level| level.1);
    let Some((level, stalled)) = slowest.filter(|_| all > 0) else {
        return format!("at {rate}");
    };
    let most = match stalled * 2 > all {
        true => "most of them for",
        false => "the largest part for",
    };
    match level {
        "DRAM" => format!("{most} DRAM, at {rate}"),
        _ => format!("{most} {level}"),
    }
}

/// Compares the size of the data that stalls most with the caches, if it was allocated.
fn size_of_data(kind: CauseKind, summary: &Summary) -> Option<String> {
    let causes = [CauseKind::LatencyBound, CauseKind::StreamBound];
    if !causes.contains(&kind) {
        return None;
    }
    let first = summary.data.as_ref()?.rows.first()?;
    if first.share? < NAMED_SHARE {
        return None;
    }
    let bytes = first.allocation.as_ref()?.at_peak_bytes;
    let model = summary.recording.machine.as_ref()?.model.as_ref()?;
    let capacity = |level: &str| model.get(level)?.get("size_bytes")?.as_u64();
    let levels = [("L1D", "l1d"), ("L2", "l2"), ("the LLC", "llc")];
    let largest = levels.into_iter().rev().find_map(|(name, level)| {
        let capacity = capacity(level).filter(|&capacity| 0 < capacity && capacity < bytes)?;
        Some((name, capacity))
    })?;
    let (name, capacity) = largest;
    Some(format!(
        " The data that it waits for most takes {}; {name} has {}.",
        units::bytes(bytes),
        units::bytes(capacity)
    ))
}

/// Names the line of Python that costs most.
fn python_line(kind: CauseKind, summary: &Summary) -> Option<NamedFunction> {
    let (measure, of) = measure(kind)?;
    summary.recording.machine.as_ref()?;
    let lines = summary.python.as_ref()?.lines.iter();
    let first = lines.max_by_key(|row| measure(&row.counts))?;
    let all = measure(&summary.totals);
    let share = measure(&first.counts) as f64 / all.max(1) as f64;
    if share < NAMED_SHARE {
        return None;
    }
    let line = first.line.map_or(String::new(), |line| format!(":{line}"));
    Some(NamedFunction {
        text: format!(
            "{} {of} in {} at {}{line} (Python).{}",
            units::share(share),
            first.function,
            file_name(&first.file),
            own_caller(first, summary).unwrap_or_default()
        ),
        name: first.function.clone(),
        is_library: is_python_library(&first.file),
    })
}

/// Returns true for the program or library of CPython.
fn is_interpreter(module: &str) -> bool {
    let name = file_name(module);
    name.starts_with("python3") || name.starts_with("libpython3")
}

/// Advice on single cache lines that fits the data: objects, plain values, or arrays of numpy.
fn order_advice(summary: &Summary, general: &str) -> String {
    let measure: Measure = stalls_on_data;
    let functions = summary.hot.functions.rows.iter();
    let hottest = functions.max_by_key(|row| measure(&row.counts));
    if hottest.is_some_and(|row| file_name(&row.module).starts_with("_multiarray_umath")) {
        return "Follow the order in memory: numpy stores rows one after the other, unless an array \
                was made otherwise. Work along rows, use a copy in the order of the access \
                (np.asfortranarray), or sort the indices that select elements."
            .to_owned();
    }
    if hottest.is_some_and(|row| is_interpreter(&row.module)) {
        return "These are objects of the interpreter, which lie apart in memory. Make fewer of them: \
                arrays (numpy, array) or columns instead of rows of objects, and functions that \
                work on all elements instead of loops."
            .to_owned();
    }
    let types = summary.types.as_ref().map(|types| types.rows.as_slice());
    let first = types.and_then(<[TypeRow]>::first);
    let Some(first) = first.filter(|row| row.share.is_some_and(|share| share >= NAMED_SHARE))
    else {
        return match has_no_use_for_prefetches(summary) {
            true => general.to_owned(),
            false => format!(
                "{general} Addresses that are known some steps ahead can be prefetched \
                 (`__builtin_prefetch` in C; another recording shows an upper bound of the gain)."
            ),
        };
    };
    match first.members.len() {
        0 => {
            let order = "If the order of the accesses is free, follow the order in memory: swap the \
                loops over a matrix that is read by columns, and pad rows that are a large power of \
                two apart. If each look-up gives the place of the next one (a chain of indices), \
                shorten the chain. Otherwise make the table smaller (narrower types, fewer unused \
                entries)";
            match has_no_use_for_prefetches(summary) {
                true => format!("{order}."),
                false => format!(
                    "{order}, or prefetch the entries of several look-ups before the first is needed \
                     (`__builtin_prefetch` in C; another recording shows an upper bound of the gain)."
                ),
            }
        }
        _ => format!(
            "If each {0} is reached through the one before (list, tree, hash chain), shorten the \
             chain, or allocate neighbours next to each other. Otherwise make {0} smaller, keep \
             together what is used together, and visit them in the order of their addresses{1}.",
            readable(&first.name),
            match has_no_use_for_prefetches(summary) {
                true => "",
                false => {
                    ", or prefetch them some steps ahead (`__builtin_prefetch` in C; another \
                     recording shows an upper bound of the gain)"
                }
            }
        ),
    }
}

/// Returns true if prefetches are no advice: they already bring in a part of the lines, or the
/// language of the hottest code has none. A few come from the C library's copies of large blocks.
fn has_no_use_for_prefetches(summary: &Summary) -> bool {
    let total = |event| summary.totals.get(event).copied().unwrap_or(0);
    total("prefetches") > total("l2.miss") / 10 || !has_prefetches(summary)
}

/// Endings of source files in languages without prefetches.
const WITHOUT_PREFETCHES: [&str; 8] = ["go", "java", "kt", "scala", "js", "mjs", "ts", "py"];

fn has_prefetches(summary: &Summary) -> bool {
    let is_python = summary
        .python
        .as_ref()
        .is_some_and(|table| !table.lines.is_empty());
    let function = summary.hot.functions.rows.first();
    let is_generated = function.is_some_and(|row| row.module == "[jit]");
    let line = summary.hot.lines.rows.first();
    let file = line.and_then(|row| row.file.as_deref()).unwrap_or_default();
    let ending = file.rsplit_once('.').map_or("", |(_, ending)| ending);
    !is_python && !is_generated && !WITHOUT_PREFETCHES.contains(&ending)
}

/// Function names of the C library's allocator and of C++.
const ALLOCATOR: [&str; 10] = [
    "malloc",
    "malloc_consolidate",
    "free_merge_chunk",
    "calloc",
    "realloc",
    "free",
    "cfree",
    "unlink_chunk",
    "operator new",
    "operator delete",
];

/// Names what allocates, if much of the time is in the allocator.
fn allocation(summary: &Summary) -> Option<String> {
    let is_allocator = |name: &str| {
        let name = name.trim_start_matches("__GI_").trim_start_matches('_');
        let name = ["libc_", "int_"]
            .iter()
            .fold(name, |name, prefix| name.trim_start_matches(prefix));
        let starts = |known: &&str| {
            let rest = name.strip_prefix(*known);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        ALLOCATOR.iter().any(starts)
    };
    let cycles = |counts: &Counts| counts.get("cycles").copied().unwrap_or(0);
    let rows = summary.hot.functions.rows.iter().filter(|row| {
        let callers = row.inlined_into.iter().map(|caller| &caller.function);
        callers
            .chain([&row.function])
            .any(|name| is_allocator(name))
    });
    let inside: u64 = rows.map(|row| cycles(&row.counts)).sum();
    let share = inside as f64 / cycles(&summary.totals).max(1) as f64;
    let heap = summary.heap.as_ref().filter(|_| share >= NAMED_SHARE)?;
    let site = heap.sites.iter().max_by_key(|site| site.allocations)?;
    Some(format!(
        "{} of its cycles allocate and free memory: {} of its {} allocations are by {}.",
        units::share(share),
        units::count(site.allocations),
        units::count(heap.allocations),
        without_arguments(&site.name)
    ))
}

/// Returns true if each process has one thread.
fn is_pipeline(summary: &Summary) -> bool {
    summary.processes.len() > 1 && summary.processes.len() == summary.threads.len()
}

/// Below this share of a processor, a program waited more than it ran.
const MOSTLY_IDLE: f64 = 0.5;

/// Minimum number of threads for a sentence about how many run at a time.
const SEVERAL_THREADS: usize = 3;

/// How many threads run at a time, if most of them wait.
fn few_threads_run(summary: &Summary) -> Option<String> {
    let threads = &summary.threads;
    let end_ns = summary.run.duration_ns;
    if threads.len() < SEVERAL_THREADS || end_ns == 0 {
        return None;
    }
    let times = threads.iter().map(|thread| {
        let lived = thread.end_ns.unwrap_or(end_ns);
        let lived = lived.saturating_sub(thread.start_ns.unwrap_or(0));
        Some((lived, lived.saturating_sub(thread.idle_ns?)))
    });
    let times: Option<Vec<(u64, u64)>> = times.collect();
    let times = times?;
    let sum = |of: fn(&(u64, u64)) -> u64| times.iter().map(of).sum::<u64>() as f64;
    let (lived, ran) = (sum(|time| time.0), sum(|time| time.1));
    // Runtimes such as Java's and Node.js's have threads that hardly ever run.
    let mut longest: Vec<u64> = times.iter().map(|time| time.1).collect();
    longest.sort_unstable_by(|a, b| b.cmp(a));
    if longest[1] < longest[0] / 4 {
        return None;
    }
    // A thread that starts the others and waits for them counts as waiting.
    let others = (lived - end_ns as f64).max(0.0);
    (ran < 0.75 * others).then(|| {
        let what = match is_pipeline(summary) {
            true => "processes",
            false => "threads",
        };
        format!(
            "Of {:.1} {what} that exist at a time, {:.1} run; the others wait.",
            lived / end_ns as f64,
            ran / end_ns as f64
        )
    })
}

/// A program that memgauge started and that waited most of the time.
pub(crate) fn mostly_waited(summary: &Summary) -> Option<String> {
    let length_s = summary.run.duration_ns as f64 / 1e9;
    let busy = summary.own_cost.program_cpu_s / length_s;
    (0.0 < busy && busy < MOSTLY_IDLE).then(|| {
        format!(
            " But it used a processor in only {} of the time. Samples do not show what it waited \
             for: a processor, a device, a lock.",
            units::share(busy)
        )
    })
}

/// Smallest difference in time that is worth a word.
const LEAST_EFFECT: f64 = 0.005;

/// Returns the modelled effect of changes of the machine that concern this cause, or how to model it.
fn modelled_effect(kind: CauseKind, summary: &Summary) -> String {
    let changes: &[&str] = match kind {
        CauseKind::TlbBound => &["huge-pages"],
        CauseKind::LatencyBound => &["huge-pages", "prefetch", "l2", "llc"],
        CauseKind::StreamBound | CauseKind::StrideBound => &["prefetch", "l2", "llc"],
        CauseKind::BandwidthBound => &["l2", "llc"],
        _ => return String::new(),
    };
    if summary.what_if.is_empty() {
        let all = match changes {
            [only] => only,
            _ => "all",
        };
        return match models_sharing(summary) {
            true => format!(
                " `memgauge record --what-if {all} -- CMD` models what such a machine gains."
            ),
            false => String::new(),
        };
    }
    let concerns = |row: &&WhatIf| {
        let name = row
            .name
            .split_once('=')
            .map_or(row.name.as_str(), |(name, _)| name);
        changes.contains(&name)
    };
    let mut rows: Vec<&WhatIf> = summary.what_if.iter().filter(concerns).collect();
    rows.sort_by(|a, b| a.relative.total_cmp(&b.relative));
    let effects = rows.iter().filter(|row| row.relative <= -LEAST_EFFECT);
    let effects =
        effects.map(|row| format!("{} {}", row.change, units::signed_percent(row.relative)));
    let effects: Vec<String> = effects.collect();
    match (effects.is_empty(), rows.is_empty()) {
        (false, _) => {
            let gains = |row: &&WhatIf| row.name == "huge-pages" && row.relative <= -LEAST_EFFECT;
            // The model lets each load wait for its whole walk.
            let bound = match rows.iter().any(gains) {
                true => {
                    " Huge pages gain less where loads do not depend on each other, because \
                     processors overlap their page walks."
                }
                false => "",
            };
            format!(
                " Modelled change of the time: {}.{bound}",
                effects.join(", ")
            )
        }
        (true, false) => {
            let names = rows.iter().map(|row| row.change.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            format!(" Modelled: no gain from {names}.")
        }
        (true, true) => String::new(),
    }
}

/// Returns the modelled effect of another layout of the type or variable that this cause is about, or how
/// to model it.
fn effect_of_layout(kind: CauseKind, hot: Option<&HotMembers<'_>>, summary: &Summary) -> String {
    let variables = falsely_shared_variables(summary);
    let (change, name) = match (kind, hot) {
        (CauseKind::FalseSharing, _) => match (shared_type(summary), variables.first()) {
            (Some(of), _) => (format!("pad={}.*", of.name), &of.name),
            (None, Some(name)) => (format!("pad={name}"), name),
            (None, None) => return String::new(),
        },
        (_, Some(hot)) => match hot.split() {
            Some(change) => (change, &hot.of.name),
            None => return String::new(),
        },
        _ => return String::new(),
    };
    let is_of_type = |row: &&WhatIf| {
        let layout = row.name.split_once('=');
        layout.is_some_and(|(kind, rest)| {
            ["pad", "split"].contains(&kind)
                && rest
                    .strip_prefix(name.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    };
    let rows = summary.what_if.iter().filter(is_of_type);
    let best = rows.min_by(|a, b| a.relative.total_cmp(&b.relative));
    match best {
        Some(row) => format!(
            " Modelled change of the time: {} {}.",
            row.change,
            units::signed_percent(row.relative)
        ),
        None if models_sharing(summary) => format!(
            " `memgauge record --what-if '{change}' -- CMD` models what another layout gains."
        ),
        None => String::new(),
    }
}

/// The type whose accesses wait most for lines that other threads write.
fn shared_type(summary: &Summary) -> Option<&TypeRow> {
    let types = summary.types.as_ref()?;
    let stalled = |counts: &Counts| counts.get("stall.sharing").copied().unwrap_or(0);
    let worst = types.rows.iter().max_by_key(|row| stalled(&row.counts))?;
    let is_most = stalled(&worst.counts) * 2 > stalled(&types.totals);
    (is_most && worst.members.len() > 1).then_some(worst)
}

/// Minimum share of a core's own bandwidth to name it as the limit.
const CORE_LIMIT_SHARE: f64 = 0.8;

/// Maximum rate at which one core moves data to and from memory.
struct CoreLimit {
    bytes_per_s: f64,
    misses_in_flight: u64,
    /// Share that the threads used while they ran.
    share: f64,
}

/// Returns the bandwidth of the misses that a core has in flight, each for the latency of memory
/// (docs/machine-model.md). `None` without a model, if memory itself has less, or if it is unknown
/// how long the threads ran.
fn core_limit(summary: &Summary) -> Option<CoreLimit> {
    let machine = summary.recording.machine.as_ref()?;
    let timing = machine.model.as_ref()?.get("timing")?;
    let misses_in_flight = timing.get("misses_in_flight")?.as_u64()?;
    let latency_ns = timing
        .get("dram_latency_ns")?
        .as_u64()
        .filter(|&ns| ns > 0)?;
    let bytes_per_s = (misses_in_flight * LINE_BYTES) as f64 * 1e9 / latency_ns as f64;
    let dram = &summary.dram;
    let mean = dram.mean_read_bytes_per_s? + dram.mean_write_bytes_per_s?;
    let end_ns = summary.run.duration_ns;
    let ran = summary.threads.iter().map(|thread| {
        let lived = thread.end_ns.unwrap_or(end_ns);
        let lived = lived.saturating_sub(thread.start_ns.unwrap_or(0));
        Some(lived.saturating_sub(thread.idle_ns?))
    });
    let ran_ns = ran.sum::<Option<u64>>().filter(|&ns| ns > 0)?;
    let share = mean * end_ns as f64 / ran_ns as f64 / bytes_per_s;
    (bytes_per_s < machine.dram_bytes_per_s as f64).then_some(CoreLimit {
        bytes_per_s,
        misses_in_flight,
        share,
    })
}

/// Returns whether stores have more of the stalled cycles than loads.
fn waits_for_stores(summary: &Summary) -> bool {
    let total = |event: &str| summary.totals.get(event).copied().unwrap_or(0);
    let loads = ["stall.l2", "stall.llc", "stall.dram", "stall.queue"];
    let loads: u64 = loads.iter().map(|event| total(event)).sum();
    total("stall.stores") > loads
}

/// Returns whether most lines that were written to memory were those of non-temporal stores.
fn writes_past_caches(summary: &Summary) -> bool {
    let total = |event: &str| summary.totals.get(event).copied();
    let (written, back) = (total("dram.write_bytes"), total("llc.writeback"));
    written
        .zip(back)
        .is_some_and(|(bytes, lines)| bytes > 2 * 64 * lines)
}

/// Returns true if lines move between the cores of the model.
fn models_sharing(summary: &Summary) -> bool {
    summary.recording.source.settings.is_coherent
}

/// Returns the whole that the share of sharing is a part of, in a sentence and in a rule.
fn sharing_time(summary: &Summary) -> [&'static str; 2] {
    let sharing = summary.sharing.as_ref();
    match sharing.is_some_and(|sharing| sharing.totals.is_estimate()) {
        true => ["of the sampled latency is", "sampled latency"],
        false => ["of its cycles wait", "cycles"],
    }
}

/// Share of the time of all shared lines below which the first one is only an example.
const ONE_OF_MANY: f64 = 0.02;

/// Names the line that threads contend for most, and the code that does.
fn shared_line(kind: CauseKind, summary: &Summary) -> Option<String> {
    if !matches!(kind, CauseKind::FalseSharing | CauseKind::TrueSharing) {
        return None;
    }
    let sharing = summary.sharing.as_ref()?;
    let line = sharing.lines.first()?;
    let share = line.counts.stall_cycles as f64 / sharing.totals.stall_cycles.max(1) as f64;
    let mut places: Vec<String> = Vec::new();
    let matters =
        |access: &&SharedAccess| access.counts.stall_cycles * 20 >= line.counts.stall_cycles;
    for access in line.accesses.iter().filter(matters) {
        let function = access.function.as_deref().map(without_arguments);
        let place = match (&access.file, access.line, function) {
            (Some(file), Some(line), Some(function)) => {
                format!("{function} at {}:{line}", file_name(file))
            }
            (_, _, Some(function)) => function,
            _ => continue,
        };
        if places.len() < 2 && !places.contains(&place) {
            places.push(place);
        }
    }
    let code = match places.as_slice() {
        [] => String::new(),
        places => format!(", in {}", places.join(" and ")),
    };
    let data = match line.kind {
        DataKind::Allocated => {
            format!("memory allocated by {}", without_arguments(&line.name))
        }
        DataKind::Mapped => mapped(&line.name),
    };
    Some(match share < ONE_OF_MANY {
        true => format!("It is spread over many lines, such as one of {data}{code}."),
        false => format!(
            "{} of that is for one line of {data}{code}.",
            units::share(share)
        ),
    })
}

/// Sum of the counts that a cause is about.
type Measure = fn(&Counts) -> u64;

fn sum_of(counts: &Counts, is_of_cause: fn(EventId) -> bool) -> u64 {
    let events = catalogue::STALLS.into_iter();
    events
        .filter(|&event| is_of_cause(event))
        .filter_map(|event| counts.get(catalogue::name(event)?))
        .sum()
}

fn stalls_on_data(counts: &Counts) -> u64 {
    sum_of(counts, |event| {
        !matches!(event, catalogue::STALL_TLB | catalogue::STALL_SHARING)
    })
}

/// Returns the events that measure this cause at a place, and how a sentence relates a share of them.
fn measure(kind: CauseKind) -> Option<(Measure, &'static str)> {
    Some(match kind {
        CauseKind::LatencyBound
        | CauseKind::StreamBound
        | CauseKind::StrideBound
        | CauseKind::CacheConflicts => (stalls_on_data, "of that time is"),
        CauseKind::BandwidthBound => (stalls_on_data, "of the stalled cycles are"),
        CauseKind::TlbBound => (
            |counts| sum_of(counts, |event| event == catalogue::STALL_TLB),
            "of that time is",
        ),
        CauseKind::L1Bound => (
            |counts| counts.get("cycles").copied().unwrap_or(0),
            "of its cycles are",
        ),
        _ => return None,
    })
}

/// The function in a finding.
struct NamedFunction {
    text: String,
    name: String,
    is_library: bool,
}

impl NamedFunction {
    /// How to find the calls of a function of a library.
    fn how_to_find_calls(&self, summary: &Summary) -> Option<String> {
        let is_named = self.is_library && !self.name.ends_with("[no symbols]");
        (is_named && calls_by(CYCLES, summary).is_none()).then(|| {
            format!(
                " `memgauge record -g -- CMD` shows which calls lead to {}.",
                self.name
            )
        })
    }
}

/// A function with the library functions whose time is its own.
struct OwnTime<'a> {
    function: &'a str,
    module: &'a str,
    events: u64,
    /// The function's row or one of a library, with most events.
    hottest: &'a HotRow,
}

/// The function that costs most for this cause. Functions of libraries count for the user's function
/// that calls them, if only one does.
fn most_costly<'a>(summary: &'a Summary, stalled: Measure) -> Option<OwnTime<'a>> {
    let mut found: Vec<OwnTime> = Vec::new();
    for row in &summary.hot.functions.rows {
        let events = stalled(&row.counts);
        let caller = match events {
            0 => None,
            _ => main_caller(row, CYCLES, summary),
        };
        let (function, module) = caller.map_or((&*row.function, &*row.module), |caller| {
            (caller.function, caller.module)
        });
        let known = found
            .iter_mut()
            .find(|own| (own.function, own.module) == (function, module));
        match known {
            Some(own) => {
                own.events += events;
                if events > stalled(&own.hottest.counts) {
                    own.hottest = row;
                }
            }
            None => found.push(OwnTime {
                function,
                module,
                events,
                hottest: row,
            }),
        }
    }
    found.into_iter().max_by_key(|own| own.events)
}

/// Names the function that costs most for this cause, with its hottest line.
fn hottest_function(kind: CauseKind, summary: &Summary) -> Option<NamedFunction> {
    let (stalled, of) = measure(kind)?;
    let is_compute = kind == CauseKind::L1Bound;
    let first = most_costly(summary, stalled)?;
    let all = stalled(&summary.totals);
    let share = first.events as f64 / all.max(1) as f64;
    if share < NAMED_SHARE {
        return None;
    }
    let row = first.hottest;
    let lines = summary.hot.lines.rows.iter();
    let lines = lines.filter(|line| (&line.function, &line.module) == (&row.function, &row.module));
    let line = lines.max_by_key(|row| stalled(&row.counts));
    let line = line.and_then(|row| Some((row.file.as_deref()?, row.line?)));
    let at_line = line.map(|(file, line)| format!(" at {}:{line}", file_name(file)));
    let is_called = (first.function, first.module) != (&*row.function, &*row.module);
    let place = match (is_called, at_line) {
        (true, at_line) => format!(
            " (most in {}{})",
            without_arguments(&row.function),
            at_line.unwrap_or_default()
        ),
        (false, Some(at_line)) => format!(" (most{at_line})"),
        (false, None) => String::new(),
    };
    let share = units::share(share);
    let function = without_arguments(first.function);
    let data = match is_compute {
        true => String::new(),
        false => data(summary, &stalled),
    };
    let is_library = is_library_code(first.module, first.function);
    let called_by = match is_library {
        true => callers(row, CYCLES, summary).unwrap_or_default(),
        false => String::new(),
    };
    Some(NamedFunction {
        text: format!("{share} {of} in {function}{place}{data}.{called_by}"),
        name: function,
        is_library,
    })
}

/// Names the data that most of these stalls waited for, if a single piece has enough of them.
fn data(summary: &Summary, stalled: &dyn Fn(&Counts) -> u64) -> String {
    let Some(table) = &summary.data else {
        return String::new();
    };
    let rows = table.rows.iter();
    let Some(first) = rows.max_by_key(|row| stalled(&row.counts)) else {
        return String::new();
    };
    let share = stalled(&first.counts) as f64 / stalled(&table.totals).max(1) as f64;
    if share < NAMED_SHARE {
        return String::new();
    }
    let of = match first.kind {
        DataKind::Allocated => {
            format!("memory allocated by {}", without_arguments(&first.name))
        }
        DataKind::Mapped => mapped(&first.name),
    };
    format!(", and {} is for {of}", units::share(share))
}

/// Data that was not allocated, in a sentence.
pub(crate) fn mapped(name: &str) -> String {
    match name.strip_prefix("anon ") {
        Some(address) => format!("anonymous memory at {address}"),
        None => name.to_owned(),
    }
}

/// The type with the most stalls, if it has enough of them and half of its bytes are hardly
/// accessed.
fn hot_members(kind: CauseKind, summary: &Summary) -> Option<HotMembers<'_>> {
    if !matches!(
        kind,
        CauseKind::LatencyBound | CauseKind::StreamBound | CauseKind::StrideBound
    ) {
        return None;
    }
    let types = summary.types.as_ref()?;
    let of = types.rows.iter().find(|row| !row.members.is_empty())?;
    if of.share? < NAMED_SHARE {
        return None;
    }
    HotMembers::new(of)
}

fn hot_members_in_words(found: &HotMembers<'_>) -> String {
    let share = |member: &MemberRow| member.miss_share.unwrap_or(0.0);
    let members = found.of.members.iter();
    let hottest = members.max_by(|a, b| share(a).total_cmp(&share(b)));
    let (name, share) = hottest.map_or(("", 0.0), |member| (&*member.name, share(member)));
    format!(
        "Of each {} ({}), {} has {} of the misses, and {} are hardly accessed.",
        readable(&found.of.name),
        units::bytes(found.of.bytes),
        readable(name),
        units::share(share),
        units::bytes(found.cold_bytes),
    )
}

/// A range of a run and its share of the memory traffic.
#[derive(Debug, PartialEq)]
struct BusyStretch {
    start_ns: u64,
    end_ns: u64,
    share: f64,
}

impl BusyStretch {
    /// True if it takes at most 30 % of the run, as the bursts of the cause do.
    fn is_short(&self, duration_ns: u64) -> bool {
        let end_ns = self.end_ns.min(duration_ns);
        let length_ns = end_ns.saturating_sub(self.start_ns);
        length_ns as f64 <= 0.3 * duration_ns as f64
    }

    fn in_words(&self, duration_ns: u64) -> String {
        let time = |ns| units::nanoseconds(ns, &SENTENCES);
        let end_ns = self.end_ns.min(duration_ns);
        format!(
            "{} of the memory traffic falls into {} of the run's {}, from {} to {}.",
            units::share(self.share),
            time(end_ns.saturating_sub(self.start_ns)),
            time(duration_ns),
            time(self.start_ns),
            time(end_ns),
        )
    }
}

/// The shortest range with at least half of the bytes.
fn busy_stretch(curve: &BandwidthCurve) -> Option<BusyStretch> {
    let directions = [&curve.read_bytes, &curve.write_bytes];
    let directions: Vec<&Vec<u64>> = directions.into_iter().flatten().collect();
    let bins = directions.iter().map(|values| values.len()).max()?;
    let of_bin = |bin: usize| -> u64 {
        let values = directions.iter().filter_map(|values| values.get(bin));
        values.sum()
    };
    let bytes: Vec<u64> = (0..bins).map(of_bin).collect();
    let all: u64 = bytes.iter().sum();
    let (mut start, mut inside) = (0, 0u64);
    let mut shortest: Option<(usize, usize, u64)> = None;
    for (end, &gained) in bytes.iter().enumerate() {
        inside += gained;
        while inside.saturating_sub(bytes[start]) * 2 >= all && start < end {
            inside -= bytes[start];
            start += 1;
        }
        let is_shorter = shortest.is_none_or(|(from, to, _)| end - start < to - from);
        if inside > 0 && inside.saturating_mul(2) >= all && is_shorter {
            shortest = Some((start, end, inside));
        }
    }
    shortest.map(|(from, to, inside)| BusyStretch {
        start_ns: from as u64 * curve.bin_ns,
        end_ns: (to as u64 + 1) * curve.bin_ns,
        share: inside as f64 / all as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_analyze::{
        AllocationCall, AllocationSite, CallNode, CallTree, Counting, FileWaitPlace, HeapUse,
        LibraryCaller, LibraryFunction, ProcessRow, PythonRow, PythonTable, ThreadRow, TypeRow,
        TypeTable,
    };
    use memgauge_trace::MachineFacts;

    fn stated(kind: CauseKind, value: f64, summary: &Summary) -> Statement {
        let cause = Cause {
            kind,
            value,
            threshold: 100_000.0,
            other: Some(0.25),
        };
        of_cause(&cause, summary)
    }

    fn said(kind: CauseKind, value: f64, summary: &Summary) -> String {
        stated(kind, value, summary).text
    }

    fn counts<const N: usize>(pairs: [(&str, u64); N]) -> Counts {
        pairs.map(|(event, n)| (event.to_owned(), n)).into()
    }

    fn function(name: &str, module: &str, cycles: u64) -> HotRow {
        HotRow {
            function: name.to_owned(),
            module: module.to_owned(),
            counts: counts([("cycles", cycles), ("stall.llc", cycles / 2)]),
            ..HotRow::default()
        }
    }

    /// A run of 1000 cycles, of which half wait for the LLC, in these functions.
    fn in_functions(rows: Vec<HotRow>) -> Summary {
        let mut summary = crate::fixture::empty();
        summary.recording.machine = Some(MachineFacts::default());
        summary.totals = counts([("cycles", 1000), ("stall.llc", 500)]);
        summary.hot.functions.rows = rows;
        summary
    }

    #[test]
    fn waits_for_files_name_the_place_with_most_of_them() {
        let mut summary = crate::fixture::empty();
        summary.own_cost.program_file_wait_s = 2.0;
        summary.own_cost.program_file_sync_wait_s = 1.5;
        let found = stated(CauseKind::FileWaits, 0.9, &summary);
        let calls = "Most of it is in fsync, fdatasync and the like.";
        assert!(found.text.ends_with(calls), "{}", found.text);

        summary.file_waits = vec![FileWaitPlace {
            file_use: FileUse::Sync,
            call: AllocationCall {
                function: "commit(int)".to_owned(),
                module: "/bin/store".to_owned(),
                file: Some("/src/store.c".to_owned()),
                line: Some(12),
                offset: None,
            },
            wait_s: 1.4,
            share: 0.7,
        }];
        let found = stated(CauseKind::FileWaits, 0.9, &summary);
        let place = format!("{calls} 70.0 % of the waits are in calls by commit() at store.c:12.");
        assert!(found.text.ends_with(&place), "{}", found.text);
        assert!(found.next.contains("group commit"), "{}", found.next);

        // Longer waits of another kind are not what the advice is about.
        summary.file_waits.insert(
            0,
            FileWaitPlace {
                file_use: FileUse::Read,
                share: 0.9,
                ..summary.file_waits[0].clone()
            },
        );
        let found = stated(CauseKind::FileWaits, 0.9, &summary);
        assert!(found.text.ends_with(&place), "{}", found.text);

        summary.file_waits[1].share = NAMED_SHARE / 2.0;
        let found = stated(CauseKind::FileWaits, 0.9, &summary);
        assert!(found.text.ends_with(calls), "{}", found.text);
    }

    #[test]
    fn a_run_that_does_not_wait_names_the_function_that_takes_its_cycles() {
        let mut summary = in_functions(vec![function("primes", "/bin/divide", 900)]);
        summary.hot.lines.rows = vec![HotRow {
            file: Some("/src/divide.c".to_owned()),
            line: Some(5),
            ..function("primes", "/bin/divide", 900)
        }];
        let found = stated(CauseKind::L1Bound, 0.01, &summary);
        let expected = "90.0 % of its cycles are in primes (most at divide.c:5).";
        assert!(found.text.ends_with(expected), "{}", found.text);
        assert!(!found.next.contains("record -g"), "{}", found.next);
    }

    #[test]
    fn how_to_find_the_calls_of_a_library_function_is_said() {
        let of_library = in_functions(vec![function("strlen", "/lib/libc.so.6", 900)]);
        let next = stated(CauseKind::StreamBound, 0.5, &of_library).next;
        let hint = "`memgauge record -g -- CMD` shows which calls lead to strlen.";
        assert!(next.contains(hint), "{next}");
    }

    #[test]
    fn the_function_that_calls_a_library_is_named_if_calls_are_recorded() {
        let node = |function: &str, module: &str, caller, own_events| CallNode {
            function: function.to_owned(),
            module: module.to_owned(),
            caller,
            samples: own_events,
            events: own_events,
            own_events,
        };
        let libc = "/lib/libc.so.6";
        let mut summary = in_functions(vec![function("strlen", libc, 900)]);
        summary.calls = vec![CallTree {
            event: "cycles".to_owned(),
            nodes: vec![
                node("main", "/bin/upper", None, 10),
                node("upper", "/bin/upper", Some(0), 0),
                node("puts", libc, Some(1), 0),
                node("strlen", libc, Some(2), 50),
                node("strlen", libc, Some(1), 25),
                node("strlen", libc, Some(0), 25),
            ],
            ..CallTree::default()
        }];
        let found = stated(CauseKind::L1Bound, 0.01, &summary);
        let expected = "90.0 % of its cycles are in strlen. strlen is called by upper (75.0 % of its samples).";
        assert!(found.text.ends_with(expected), "{}", found.text);
        assert!(!found.next.contains("record -g"), "{}", found.next);
    }

    /// A run in these functions, the second one of which is called by others.
    fn in_library(callers: &[(&str, f64)]) -> Summary {
        const FIND: &str = "std::_Hashtable<int>::find(int const&)";
        let mut summary = in_functions(vec![
            function("other", "/bin/p", 350),
            function(FIND, "/bin/p", 300),
            function("lookups", "/bin/p", 200),
        ]);
        summary.library_functions = vec![LibraryFunction {
            function: FIND.to_owned(),
            module: "/bin/p".to_owned(),
            callers: callers
                .iter()
                .map(|&(function, share)| LibraryCaller {
                    function: function.to_owned(),
                    module: "/bin/p".to_owned(),
                    share,
                })
                .collect(),
        }];
        summary
    }

    #[test]
    fn few_hits_in_a_run_that_memory_does_not_limit_are_explained() {
        let text = |hit_ratio: f64| {
            let cause = Cause {
                kind: CauseKind::L1Bound,
                value: 0.01,
                threshold: 0.1,
                other: Some(hit_ratio),
            };
            of_cause(&cause, &in_functions(Vec::new())).text
        };
        let few =
            "serves 35.0 % of its look-ups, and most waits for the others are short or overlap.";
        assert!(text(0.35).contains(few), "{}", text(0.35));
        assert!(
            text(0.95).contains("serves 95.0 % of its look-ups."),
            "{}",
            text(0.95)
        );
    }

    #[test]
    fn library_code_counts_for_the_only_function_that_calls_it() {
        let expected = "50.0 % of its cycles are in lookups (most in std::_Hashtable<>::find()).";
        let found = said(CauseKind::L1Bound, 0.01, &in_library(&[("lookups", 0.99)]));
        assert!(found.ends_with(expected), "{found}");
        // The one that makes few of the calls may have most of the time.
        let callers = [("lookups", 0.95), ("fill", 0.05)];
        let found = stated(CauseKind::L1Bound, 0.01, &in_library(&callers));
        let expected = "are in other.";
        assert!(found.text.ends_with(expected), "{}", found.text);
        let without_other = |callers: &[(&str, f64)]| {
            let mut summary = in_library(callers);
            summary.hot.functions.rows.remove(0);
            stated(CauseKind::L1Bound, 0.01, &summary)
        };
        let found = without_other(&callers);
        let expected = "30.0 % of its cycles are in std::_Hashtable<>::find(). \
                        std::_Hashtable<>::find() is called by lookups and fill; `record -g` shows \
                        the time of each.";
        assert!(found.text.ends_with(expected), "{}", found.text);
        let hint =
            "`memgauge record -g -- CMD` shows which calls lead to std::_Hashtable<>::find().";
        assert!(found.next.contains(hint), "{}", found.next);
        let found = without_other(&[("report", 0.01)]);
        let expected = "Most calls of std::_Hashtable<>::find() go through pointers.";
        assert!(found.text.ends_with(expected), "{}", found.text);
        let found = without_other(&[("lookups", 0.6)]);
        let expected = "find() is called by lookups and through pointers; `record -g` shows the time \
                        of each.";
        assert!(found.text.ends_with(expected), "{}", found.text);
    }

    #[test]
    fn library_code_counts_for_the_caller_in_recorded_calls() {
        let mut summary = in_library(&[]);
        summary.library_functions.clear();
        let node = |function: &str, caller, own_events| CallNode {
            function: function.to_owned(),
            module: "/bin/p".to_owned(),
            caller,
            samples: own_events,
            events: own_events,
            own_events,
        };
        summary.calls = vec![CallTree {
            event: "cycles".to_owned(),
            nodes: vec![
                node("main", None, 10),
                node("lookups", Some(0), 20),
                node("std::_Hashtable<int>::find(int const&)", Some(1), 30),
            ],
            ..CallTree::default()
        }];
        let found = said(CauseKind::L1Bound, 0.01, &summary);
        let expected = "50.0 % of its cycles are in lookups (most in std::_Hashtable<>::find()).";
        assert!(found.ends_with(expected), "{found}");
    }

    #[test]
    fn time_in_the_allocator_is_that_of_the_calls_that_allocate() {
        let site = |name: &str, allocations| AllocationSite {
            name: name.to_owned(),
            allocations,
            ..crate::fixture::allocation_site()
        };
        let mut summary = in_functions(vec![
            function("_int_malloc", "/lib/libc.so.6", 200),
            function("__GI___libc_free", "/lib/libc.so.6", 110),
            function("freeze", "/bin/rows", 300),
            function("malloc_statistics", "/bin/rows", 300),
        ]);
        summary.heap = Some(HeapUse {
            allocations: 100,
            sites: vec![site("load at a.c:1", 20), site("copy at a.c:9", 80)],
            ..HeapUse::default()
        });
        let found = stated(CauseKind::L1Bound, 0.01, &summary);
        let expected = "31.0 % of its cycles allocate and free memory: 80 of its 100 allocations \
                        are by copy at a.c:9.";
        assert!(found.text.ends_with(expected), "{}", found.text);
        assert!(found.next.starts_with("Allocate less"), "{}", found.next);
        summary.hot.functions.rows.truncate(1);
        summary.hot.functions.rows[0].counts = counts([("cycles", 199)]);
        let less = said(CauseKind::L1Bound, 0.01, &summary);
        assert!(!less.contains("allocate"), "{less}");
    }

    #[test]
    fn threads_that_wait_for_a_lock_are_named_and_a_thread_that_joins_them_is_not() {
        let threads = |idle: [u64; 3]| -> Vec<ThreadRow> {
            let thread = |idle| ThreadRow {
                start_ns: Some(0),
                end_ns: Some(1000),
                idle_ns: Some(idle),
                ..ThreadRow::default()
            };
            idle.map(thread).into()
        };
        let mut summary = in_functions(vec![]);
        summary.run.duration_ns = 1000;
        summary.threads = threads([1000, 500, 600]);
        let text = said(CauseKind::L1Bound, 0.01, &summary);
        let expected = "Of 3.0 threads that exist at a time, 0.9 run; the others wait.";
        assert!(text.ends_with(expected), "{text}");
        summary.threads = threads([1000, 100, 100]);
        let text = said(CauseKind::L1Bound, 0.01, &summary);
        assert!(!text.contains("threads"), "{text}");
    }

    #[test]
    fn the_line_of_python_that_waits_comes_before_the_native_function() {
        let umath = "/np/_multiarray_umath.cpython-311-x86_64-linux-gnu.so";
        let mut summary = in_functions(vec![function("take", umath, 800)]);
        let row = |file: &str, cycles| PythonRow {
            function: "pick".to_owned(),
            file: file.to_owned(),
            line: Some(5),
            share: None,
            stalled_cycles: 0,
            counts: counts([("cycles", cycles), ("stall.llc", cycles / 2)]),
        };
        let mut table = PythonTable {
            rank: "cycles".to_owned(),
            share: Some(1.0),
            lines: vec![row("/me/gather.py", 700)],
            other_lines: 0,
            functions: vec![],
        };
        summary.python = Some(table.clone());
        let found = stated(CauseKind::LatencyBound, 0.5, &summary);
        let expected = "70.0 % of that time is in pick at gather.py:5 (Python). 80.0 % of that \
                        time is in take.";
        assert!(found.text.ends_with(expected), "{}", found.text);
        assert!(found.next.contains("numpy"), "{}", found.next);
        assert!(!found.next.contains("record -g"), "{}", found.next);
        table.lines = vec![row("/usr/lib/python3.11/json/decoder.py", 700)];
        summary.python = Some(table.clone());
        let next = stated(CauseKind::LatencyBound, 0.5, &summary).next;
        assert!(next.contains("which calls lead to pick"), "{next}");
        table.lines = vec![row("/me/gather.py", 190)];
        summary.python = Some(table);
        let text = said(CauseKind::LatencyBound, 0.5, &summary);
        assert!(!text.contains("Python"), "{text}");
    }

    #[test]
    fn the_level_that_it_waits_for_is_named_and_memory_is_used_only_by_waiting_for_it() {
        let mut summary = in_functions(vec![]);
        let llc = said(CauseKind::LatencyBound, 0.5, &summary);
        assert!(llc.ends_with("memory, most of them for the LLC."), "{llc}");
        summary
            .totals
            .extend(counts([("stall.dram", 400), ("stall.l2", 200)]));
        let llc = said(CauseKind::LatencyBound, 0.5, &summary);
        assert!(
            llc.ends_with("memory, the largest part for the LLC."),
            "{llc}"
        );
        summary.totals.extend(counts([("stall.queue", 200)]));
        let dram = said(CauseKind::StreamBound, 0.5, &summary);
        assert!(
            dram.contains("the largest part for DRAM, at 25.0 % of memory's"),
            "{dram}"
        );
    }

    #[test]
    fn advice_on_single_lines_fits_the_language() {
        let next = |module: &str, file: Option<&str>| {
            let mut summary = in_functions(vec![function("visit", module, 800)]);
            summary.hot.lines.rows = vec![HotRow {
                file: file.map(str::to_owned),
                ..function("visit", module, 800)
            }];
            stated(CauseKind::LatencyBound, 0.5, &summary).next
        };
        let c = next("/bin/walk", Some("/src/walk.c"));
        assert!(c.contains("__builtin_prefetch"), "{c}");
        for (module, file) in [("/bin/walk", Some("walk.go")), ("[jit]", None)] {
            let other = next(module, file);
            assert!(!other.contains("prefetch"), "{other}");
        }
        let python = next("/usr/bin/python3.11", None);
        assert!(python.contains("objects of the interpreter"), "{python}");
    }

    #[test]
    fn advice_on_single_lines_fits_the_type_of_the_data() {
        let next = |members: Vec<MemberRow>, share| {
            let mut summary = in_functions(vec![]);
            summary.types = Some(TypeTable {
                totals: Counts::new(),
                rows: vec![TypeRow {
                    name: "node".to_owned(),
                    bytes: 64,
                    counts: Counts::new(),
                    share: Some(share),
                    members,
                    holes: Vec::new(),
                }],
                other_rows: 0,
                other_counts: Counts::new(),
                untyped: Vec::new(),
            });
            stated(CauseKind::LatencyBound, 0.5, &summary).next
        };
        let member = MemberRow {
            name: "next".to_owned(),
            type_name: "node *".to_owned(),
            offset: 0,
            bytes: 8,
            count: 1,
            counts: counts([("loads", 1)]),
            share: Some(1.0),
            miss_share: Some(1.0),
        };
        let object = next(vec![member], 0.5);
        assert!(object.contains("make node smaller"), "{object}");
        assert!(!object.contains("matrix"), "{object}");
        let value = next(vec![], 0.5);
        assert!(
            value.contains("matrix") && !value.contains("list"),
            "{value}"
        );
        let unknown = next(vec![], 0.1);
        assert!(
            unknown.contains("matrix") && unknown.contains("list"),
            "{unknown}"
        );
    }

    #[test]
    fn processes_that_share_memory_are_said_to_be_modelled_apart() {
        let mut summary = in_functions(vec![]);
        let alone = stated(CauseKind::L1Bound, 0.01, &summary).next;
        summary.processes = vec![ProcessRow::default(), ProcessRow::default()];
        let next = stated(CauseKind::L1Bound, 0.01, &summary).next;
        assert_eq!(next, alone + SEPARATE_PROCESSES);
    }

    #[test]
    fn numbers_of_samples_and_faults_are_readable() {
        let summary = crate::fixture::empty();
        let samples = |n| said(CauseKind::FewSamples, n, &summary);
        assert_eq!(samples(1.0), "Only 1 sample: shares are rough.");
        assert_eq!(samples(2.0), "Only 2 samples: shares are rough.");
        assert!(samples(0.0).contains("no samples"));
        let faults = said(CauseKind::PageFaults, 506_694.5, &summary);
        assert!(faults.contains(" 507k a second"), "{faults}");
    }

    #[test]
    fn the_busy_stretch_is_the_shortest_with_half_of_the_traffic() {
        let curve = |read: &[u64], write: &[u64]| BandwidthCurve {
            bin_ns: 1000,
            read_bytes: Some(read.to_vec()),
            write_bytes: Some(write.to_vec()),
            ..BandwidthCurve::default()
        };
        let stretch = busy_stretch(&curve(&[1, 0, 20, 9, 1, 9], &[0, 0, 0, 20, 0, 0]));
        let expected = BusyStretch {
            start_ns: 2000,
            end_ns: 4000,
            share: 49.0 / 60.0,
        };
        assert_eq!(stretch, Some(expected));
        let words = stretch.map(|s| s.in_words(6000)).unwrap_or_default();
        assert!(words.contains("from 2.00 µs to 4.00 µs"), "{words}");
        assert_eq!(busy_stretch(&curve(&[0, 0], &[0, 0])), None);
        assert_eq!(busy_stretch(&BandwidthCurve::default()), None);
    }

    /// A machine whose memory has 400 GB/s, and whose cores have 12 misses of 50 ns in flight.
    fn on_a_fast_machine(moved_bytes_per_s: f64, stalls: [(&str, u64); 2]) -> Summary {
        let mut summary = crate::fixture::empty();
        let timing = serde_json::json!({"misses_in_flight": 12, "dram_latency_ns": 50});
        summary.recording.machine = Some(MachineFacts {
            dram_bytes_per_s: 400_000_000_000,
            model: Some(serde_json::json!({ "timing": timing })),
            ..MachineFacts::default()
        });
        summary.run.duration_ns = 1000;
        summary.dram.mean_read_bytes_per_s = Some(moved_bytes_per_s);
        summary.dram.mean_write_bytes_per_s = Some(0.0);
        // It ran for half of the time.
        summary.threads = vec![ThreadRow {
            start_ns: Some(0),
            end_ns: Some(1000),
            idle_ns: Some(500),
            ..ThreadRow::default()
        }];
        let stalls = stalls.map(|(event, cycles)| (event.to_owned(), cycles));
        summary.totals.extend(stalls);
        summary
    }

    #[test]
    fn the_hot_member_and_the_cold_bytes_of_a_type_are_named() {
        let counts = |loads| Counts::from([("loads".to_owned(), loads)]);
        let member = |n: u64, loads, miss_share| MemberRow {
            name: format!("m{n}"),
            type_name: "long".to_owned(),
            offset: 8 * n,
            bytes: 8,
            count: 1,
            counts: counts(loads),
            share: Some(miss_share),
            miss_share: Some(miss_share),
        };
        let with_stores = |cold_loads, initial_stores| {
            let mut members = vec![member(0, 1000, 0.95)];
            members.extend((1..8).map(|n| member(n, cold_loads, 0.05 / 7.0)));
            for member in &mut members {
                member.counts.insert("stores".to_owned(), initial_stores);
            }
            let mut summary = crate::fixture::empty();
            summary.types = Some(TypeTable {
                totals: Counts::new(),
                rows: vec![TypeRow {
                    name: "fields".to_owned(),
                    bytes: 64,
                    counts: counts(1000 + 7 * cold_loads),
                    share: Some(0.5),
                    members,
                    holes: Vec::new(),
                }],
                other_rows: 0,
                other_counts: Counts::new(),
                untyped: Vec::new(),
            });
            said(CauseKind::LatencyBound, 0.5, &summary)
        };
        let with = |cold_loads| with_stores(cold_loads, 0);
        let sentence =
            "Of each fields (64 B), m0 has 95.0 % of the misses, and 56 B are hardly accessed.";
        // Filling the objects does not make members hot.
        for text in [with(1), with_stores(1, 300), with_stores(0, 900)] {
            assert!(text.ends_with(sentence), "{text}");
        }
        assert!(!with(500).contains("Of each"), "every field is used");
        assert!(!with_stores(500, 300).contains("Of each"));
        assert!(
            !with_stores(0, 5000).contains("Of each"),
            "objects are mostly filled"
        );
    }

    #[test]
    fn a_core_at_its_own_limit_is_compared_with_that() {
        let loads = [("stall.dram", 100), ("stall.stores", 10)];
        // 64 B * 12 / 50 ns are 15.36 GB/s.
        let full = on_a_fast_machine(7.6e9, loads);
        let text = said(CauseKind::StreamBound, 0.5, &full);
        let limit = "at 99.0 % of the 15.4 GB/s that one core can move (12 misses in flight";
        assert!(text.contains(limit), "{text}");
        let text = said(CauseKind::LatencyBound, 0.5, &on_a_fast_machine(1e9, loads));
        assert!(text.contains("at 25.0 % of memory's 400 GB/s"), "{text}");
    }

    #[test]
    fn a_run_that_waits_for_stores_is_not_told_to_load_less() {
        for kind in [CauseKind::StreamBound, CauseKind::LatencyBound] {
            let stores = [("stall.dram", 10), ("stall.stores", 100)];
            let text = said(kind, 0.5, &on_a_fast_machine(1e9, stores));
            assert!(text.starts_with("It writes"), "{text}");
            assert!(!text.contains("reads data"), "{text}");
        }
    }

    #[test]
    fn prefetches_are_advised_unless_the_program_uses_them() {
        let mut summary = on_a_fast_machine(1e9, [("stall.dram", 100), ("l2.miss", 1000)]);
        for (prefetched, is_advised) in [(0, true), (20, true), (500, false)] {
            summary.totals.insert("prefetches".to_owned(), prefetched);
            let next = stated(CauseKind::LatencyBound, 0.5, &summary).next;
            assert_eq!(next.contains("__builtin_prefetch"), is_advised, "{next}");
        }
    }

    #[test]
    fn non_temporal_stores_are_advised_unless_the_program_uses_them() {
        let mut summary = on_a_fast_machine(1e9, [("stall.dram", 10), ("stall.stores", 100)]);
        for (lines_back, is_advised) in [(1000, true), (10, false)] {
            let totals = [("dram.write_bytes", 64_000), ("llc.writeback", lines_back)];
            summary
                .totals
                .extend(totals.map(|(event, n)| (event.to_owned(), n)));
            let text = stated(CauseKind::StreamBound, 0.5, &summary).next;
            assert_eq!(text.contains("_mm_stream_si128"), is_advised, "{text}");
        }
    }

    /// Counters cannot distinguish a program that waits from one that waits for a processor.
    #[test]
    fn a_counted_run_with_idle_processors_need_not_have_waited() {
        let mut summary = crate::fixture::empty();
        summary.counting = None;
        let waits = said(CauseKind::Idle, 0.6, &summary);
        assert!(waits.contains("mostly waits"), "{waits}");
        summary.counting = Some(Counting::default());
        let counted = said(CauseKind::Idle, 0.6, &summary);
        assert!(counted.contains("40.0 %"), "{counted}");
        assert!(counted.contains("other programs"), "{counted}");
    }
}
