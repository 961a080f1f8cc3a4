//! Events that are counted or sampled.

use serde::{Deserialize, Serialize};

use crate::LINE_BYTES;

/// An event of a recording. The manifest defines its events.
///
/// IDs below [`catalogue::FIRST_FREE`] are the events of [`catalogue`]; sources number their own
/// events from there.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct EventId(pub u16);

/// How a number was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// Hardware or the kernel counted every event.
    Counted,
    /// Scaled up from samples.
    Sampled,
    /// Estimated by a rule that has an error.
    Estimated,
    /// Counted in a modelled machine: exact for the model, not a measurement.
    Modelled,
}

impl Provenance {
    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Provenance::Counted => "counted",
            Provenance::Sampled => "sampled",
            Provenance::Estimated => "estimated",
            Provenance::Modelled => "modelled",
        }
    }
}

impl Unit {
    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Count => "count",
            Unit::Bytes => "bytes",
            Unit::Cycles => "cycles",
        }
    }

    /// Returns the unit of an event that is known by its name only. Sources name their own events
    /// in bytes like those of the catalogue: `dram.read_bytes`.
    pub fn of_event(name: &str) -> Unit {
        match catalogue::by_name(name) {
            Some(id) => catalogue::ALL[usize::from(id.0)].2,
            None if name.ends_with("bytes") => Unit::Bytes,
            None => Unit::Count,
        }
    }

    /// Returns what an event of this unit adds at once: events in bytes count whole lines.
    pub fn step(self) -> u64 {
        match self {
            Unit::Bytes => LINE_BYTES,
            Unit::Count | Unit::Cycles => 1,
        }
    }
}

/// The kernel's second names of events, and the first.
const ALIASES: [(&str, &str); 7] = [
    ("branch-instructions", "branches"),
    ("cpu-cycles", "cycles"),
    ("cs", "context-switches"),
    ("faults", "page-faults"),
    ("idle-cycles-backend", "stalled-cycles-backend"),
    ("idle-cycles-frontend", "stalled-cycles-frontend"),
    ("migrations", "cpu-migrations"),
];

/// Returns the name of an event without modifiers (`:u`) and terms (`/freq=500/`), and the kernel's
/// first name if it has two.
pub fn event_meaning(name: &str) -> &str {
    let plain = name.split([':', '/']).next().unwrap_or(name);
    let alias = ALIASES.iter().find(|(second, _)| *second == plain);
    alias.map_or(plain, |(_, first)| first)
}

/// Returns whether events of this name are page faults: each moves a page, not a line.
pub fn is_page_fault(name: &str) -> bool {
    matches!(
        event_meaning(name),
        "page-faults" | "minor-faults" | "major-faults"
    )
}

/// Unit of an event's count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Number of occurrences.
    Count,
    /// Bytes.
    Bytes,
    /// CPU cycles.
    Cycles,
}

/// Definition of an event in the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventDef {
    /// ID used in the tables.
    pub id: EventId,
    /// Name as typed on the command line.
    pub name: String,
    /// Unit of a count.
    pub unit: Unit,
    /// How the counts were obtained.
    pub provenance: Provenance,
    /// Definition in one sentence.
    pub description: String,
}

/// Events with the same meaning in every source.
pub mod catalogue {
    use super::{EventDef, EventId, Provenance, Unit};

    macro_rules! events {
        ($($(#[doc = $doc:literal])+ $ident:ident = $id:literal, $name:literal, $unit:ident;)+) => {
            $( $(#[doc = $doc])+ pub const $ident: EventId = EventId($id); )+

            /// All events: ID, name, unit, definition.
            pub const ALL: &[(EventId, &str, Unit, &str)] = &[
                $( (EventId($id), $name, Unit::$unit, concat!($($doc),+)), )+
            ];
        };
    }

    events! {
        /// Instructions executed; a `rep` string instruction is one.
        INSTRUCTIONS = 0, "instructions", Count;
        /// Cycles of the thread's core.
        CYCLES = 1, "cycles", Cycles;
        /// Operands read from memory by instructions, of any size; a vector load is one, each element of a `rep` string instruction is one.
        LOADS = 2, "loads", Count;
        /// Operands written to memory by instructions; counted as loads are.
        STORES = 3, "stores", Count;
        /// Loads and stores whose bytes lie in two cache lines.
        SPLITS = 4, "splits", Count;
        /// Line look-ups by loads and stores that found the line in the first-level data cache.
        L1D_HIT = 5, "l1d.hit", Count;
        /// Line look-ups by loads and stores that missed the first-level data cache.
        L1D_MISS = 6, "l1d.miss", Count;
        /// The part of l1d.miss that loads (and read-modify-writes) caused.
        L1D_LOAD_MISS = 7, "l1d.load_miss", Count;
        /// The part of l1d.miss that stores caused.
        L1D_STORE_MISS = 8, "l1d.store_miss", Count;
        /// Demand misses of the first-level data cache found in the second level.
        L2_HIT = 9, "l2.hit", Count;
        /// Demand misses of the first-level data cache that missed the second level too.
        L2_MISS = 10, "l2.miss", Count;
        /// Demand misses of the second level found in the last-level cache.
        LLC_HIT = 11, "llc.hit", Count;
        /// Demand misses of the last-level cache: lines a load or store had to wait for from memory.
        LLC_MISS = 12, "llc.miss", Count;
        /// Page look-ups by loads and stores that missed the first-level data TLB.
        DTLB_MISS = 13, "dtlb.miss", Count;
        /// Misses of the first-level data TLB found in the second-level TLB.
        STLB_HIT = 14, "stlb.hit", Count;
        /// Page-table walks: misses of both TLB levels.
        DTLB_WALK = 15, "dtlb.walk", Count;
        /// Dirty lines the first-level data cache evicted.
        L1D_WRITEBACK = 16, "l1d.writeback", Count;
        /// Dirty lines the second level evicted.
        L2_WRITEBACK = 17, "l2.writeback", Count;
        /// Dirty lines the last-level cache wrote to memory.
        LLC_WRITEBACK = 18, "llc.writeback", Count;
        /// Lines that prefetchers and prefetch instructions brought in from memory or a lower level.
        PREFETCHES = 19, "prefetches", Count;
        /// Prefetched lines a load or store used before they were evicted.
        PREFETCH_HITS = 20, "prefetch.hits", Count;
        /// Bytes read from memory: demand misses and prefetches, whole lines.
        DRAM_READ_BYTES = 21, "dram.read_bytes", Bytes;
        /// Bytes written to memory: dirty lines evicted from the last-level cache.
        DRAM_WRITE_BYTES = 22, "dram.write_bytes", Bytes;
        /// Instructions that read and write the same operand (also counted once in loads and once in stores).
        MODIFIES = 23, "modifies", Count;
        /// Cycles that the core waited for lines that missed the first level away from earlier misses: latency of loads that out-of-order execution hardly hides, or the queue to memory.
        STALL_IRREGULAR = 24, "stall.irregular", Cycles;
        /// Cycles that the core waited for lines that missed the first level close to the miss before them in their page: latency of loads divided by the misses in flight, or the queue to memory.
        STALL_REGULAR = 25, "stall.regular", Cycles;
        /// Cycles that the core waited because lines written to memory filled its way there.
        STALL_WRITEBACKS = 26, "stall.writebacks", Cycles;
        /// Cycles that loads waited for the second-level TLB or a page-table walk.
        STALL_TLB = 27, "stall.tlb", Cycles;
        /// Cycles that loads waited for the latency of the second-level cache.
        STALL_L2 = 28, "stall.l2", Cycles;
        /// Cycles that loads waited for the latency of the last-level cache.
        STALL_LLC = 29, "stall.llc", Cycles;
        /// Cycles that loads waited for the latency of memory.
        STALL_DRAM = 30, "stall.dram", Cycles;
        /// Cycles that loads waited in the queue to memory, beyond its latency.
        STALL_QUEUE = 31, "stall.queue", Cycles;
        /// Cycles that the core waited because stores and lines written to memory filled its way there.
        STALL_STORES = 32, "stall.stores", Cycles;
        /// Cycles that loads waited for a line that another core's private caches held modified.
        STALL_SHARING = 33, "stall.sharing", Cycles;
        /// Misses of the first-level data cache whose line another core's private caches held modified.
        COHERENCE_HITM = 34, "coherence.hitm", Count;
        /// Stores to a line that the core's private caches held and that others held too.
        COHERENCE_UPGRADE = 35, "coherence.upgrade", Count;
        /// Copies of lines that left other cores' private caches because this core stored to the line.
        COHERENCE_INVALIDATION = 36, "coherence.invalidation", Count;
        /// Misses of a line that the core lost to another core's store, with an access to bytes that others have stored since.
        COHERENCE_TRUE_SHARING = 37, "coherence.true_sharing", Count;
        /// Misses of a line that the core lost to another core's store, with an access to none of the bytes that others have stored since.
        COHERENCE_FALSE_SHARING = 38, "coherence.false_sharing", Count;
        /// Misses of the first-level data cache that repeat in at most an eighth of its sets.
        L1D_CONFLICT = 39, "l1d.conflict", Count;
    }

    /// Number of events; IDs are `0..COUNT`.
    pub const COUNT: usize = ALL.len();

    /// Events that divide all stalled cycles by what the thread waits for.
    pub const STALLS: [EventId; 7] = [
        STALL_L2,
        STALL_LLC,
        STALL_DRAM,
        STALL_QUEUE,
        STALL_TLB,
        STALL_STORES,
        STALL_SHARING,
    ];

    /// First ID that a source may use for its own events.
    pub const FIRST_FREE: u16 = 256;

    /// Returns the definitions of all events with the given provenance.
    pub fn definitions(provenance: Provenance) -> Vec<EventDef> {
        ALL.iter()
            .map(|&(id, name, unit, description)| EventDef {
                id,
                name: name.to_owned(),
                unit,
                provenance,
                description: description.trim().to_owned(),
            })
            .collect()
    }

    /// Returns the event with this name.
    pub fn by_name(name: &str) -> Option<EventId> {
        ALL.iter().find(|e| e.1 == name).map(|e| e.0)
    }

    /// Returns the name of an event.
    pub fn name(id: EventId) -> Option<&'static str> {
        ALL.get(usize::from(id.0)).map(|e| e.1)
    }
}
