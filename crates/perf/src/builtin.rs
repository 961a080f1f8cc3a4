//! Names that every kernel knows (`tools/perf/Documentation/perf-list.txt` and
//! the enumerations of `perf_event.h`).

use crate::abi::kind;

/// An event by name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedEvent {
    /// As typed.
    pub name: String,
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// Description of the event.
    pub description: String,
    /// Topic: MEM, CACHE, TLB, CPU, BRANCH or OS.
    pub topic: &'static str,
}

type BuiltinRow = (&'static str, u64, &'static str, &'static str);

const HARDWARE: &[BuiltinRow] = &[
    ("cycles", 0, "Cycles of the processor", "CPU"),
    ("cpu-cycles", 0, "Cycles of the processor", "CPU"),
    ("instructions", 1, "Instructions retired", "CPU"),
    (
        "cache-references",
        2,
        "Look-ups in the last-level cache, as the processor defines them",
        "CACHE",
    ),
    (
        "cache-misses",
        3,
        "Misses of the last-level cache, as the processor defines them",
        "CACHE",
    ),
    ("branches", 4, "Branch instructions retired", "BRANCH"),
    (
        "branch-instructions",
        4,
        "Branch instructions retired",
        "BRANCH",
    ),
    ("branch-misses", 5, "Branches mispredicted", "BRANCH"),
    ("bus-cycles", 6, "Cycles of the bus", "CPU"),
    (
        "stalled-cycles-frontend",
        7,
        "Cycles in which no instruction could be issued",
        "CPU",
    ),
    (
        "stalled-cycles-backend",
        8,
        "Cycles in which nothing could be executed",
        "CPU",
    ),
    ("ref-cycles", 9, "Cycles at the nominal frequency", "CPU"),
];

const SOFTWARE: &[BuiltinRow] = &[
    (
        "cpu-clock",
        0,
        "Time on a processor by its timer, in nanoseconds",
        "OS",
    ),
    ("task-clock", 1, "Time the task ran, in nanoseconds", "OS"),
    ("page-faults", 2, "Page faults", "MEM"),
    ("faults", 2, "Page faults", "MEM"),
    ("context-switches", 3, "Context switches", "OS"),
    ("cs", 3, "Context switches", "OS"),
    ("cpu-migrations", 4, "Moves to another processor", "OS"),
    ("migrations", 4, "Moves to another processor", "OS"),
    (
        "minor-faults",
        5,
        "Page faults served without input or output",
        "MEM",
    ),
    ("major-faults", 6, "Page faults that had to read", "MEM"),
    (
        "alignment-faults",
        7,
        "Unaligned accesses the kernel had to complete",
        "MEM",
    ),
    (
        "emulation-faults",
        8,
        "Instructions the kernel had to emulate",
        "CPU",
    ),
    ("dummy", 9, "Nothing", "OS"),
    ("bpf-output", 10, "Records that BPF programs write", "OS"),
    (
        "cgroup-switches",
        11,
        "Context switches between control groups",
        "OS",
    ),
];

/// `PERF_COUNT_HW_CACHE_*`: the names of a cache, and its topic.
const CACHES: &[(&[&str], &str, &str)] = &[
    (
        &["L1-dcache", "l1-d", "l1d", "L1-data"],
        "first-level data cache",
        "CACHE",
    ),
    (
        &["L1-icache", "l1-i", "l1i", "L1-instruction"],
        "first-level instruction cache",
        "CACHE",
    ),
    (&["LLC", "L2"], "last-level cache", "CACHE"),
    (&["dTLB", "d-tlb", "Data-TLB"], "data TLB", "TLB"),
    (
        &["iTLB", "i-tlb", "Instruction-TLB"],
        "instruction TLB",
        "TLB",
    ),
    (
        &["branch", "bpu", "btb", "bpc"],
        "branch predictor",
        "BRANCH",
    ),
    (&["node"], "memory of a node", "MEM"),
];

/// Suffix, operation (0 load, 1 store, 2 prefetch), result (0 access, 1 miss).
const OPERATIONS: &[(&str, u64, u64)] = &[
    ("loads", 0, 0),
    ("load-misses", 0, 1),
    ("stores", 1, 0),
    ("store-misses", 1, 1),
    ("prefetches", 2, 0),
    ("prefetch-misses", 2, 1),
];

/// The event of that name.
pub fn find(name: &str) -> Option<NamedEvent> {
    let row = |kind, rows: &[BuiltinRow]| rows.iter().find(|r| r.0 == name).map(|r| plain(kind, r));
    row(kind::HARDWARE, HARDWARE)
        .or_else(|| row(kind::SOFTWARE, SOFTWARE))
        .or_else(|| cache(name))
}

fn plain(kind: u32, row: &BuiltinRow) -> NamedEvent {
    NamedEvent {
        name: row.0.to_owned(),
        kind,
        config: row.1,
        description: row.2.to_owned(),
        topic: row.3,
    }
}

fn cache(name: &str) -> Option<NamedEvent> {
    let found = CACHES.iter().enumerate().find_map(|(number, cache)| {
        let rest = cache.0.iter().find_map(|alias| {
            let head = name.get(..alias.len())?;
            let same = head.eq_ignore_ascii_case(alias);
            same.then(|| name[alias.len()..].strip_prefix('-'))
                .flatten()
        })?;
        let operation = OPERATIONS.iter().find(|o| o.0 == rest)?;
        Some((number, operation))
    });
    found.map(|(number, operation)| of_cache(number, operation))
}

fn of_cache(number: usize, &(suffix, operation, result): &(&str, u64, u64)) -> NamedEvent {
    let (names, what, topic) = CACHES[number];
    let verb = ["Loads from", "Stores to", "Prefetches into"][operation as usize];
    let missed = if result == 1 { " that missed" } else { "" };
    NamedEvent {
        name: format!("{}-{suffix}", names[0]),
        kind: kind::HW_CACHE,
        config: number as u64 | operation << 8 | result << 16,
        description: format!("{verb} the {what}{missed}"),
        topic,
    }
}

/// All of them, the aliases of caches left out.
pub fn all() -> Vec<NamedEvent> {
    let hardware = HARDWARE.iter().map(|row| plain(kind::HARDWARE, row));
    let software = SOFTWARE.iter().map(|row| plain(kind::SOFTWARE, row));
    let caches =
        (0..CACHES.len()).flat_map(|cache| OPERATIONS.iter().map(move |op| of_cache(cache, op)));
    hardware.chain(software).chain(caches).collect()
}
