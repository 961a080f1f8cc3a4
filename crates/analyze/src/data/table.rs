//! Cost of data: misses and stalls by allocation, variable and mapping, and how much memory
//! was allocated where.
//!
//! The sums are exact, since their source sees every access. Memory from the same call path is one
//! row, whichever process allocated it, and so is a variable of a file.
//!
//! Memory: 150 bytes for each allocating call path, variable and mapping of each process.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};

use memgauge_trace::{AllocationRow, DataRow, EventId, FrameId, GeneratedCode, Pid, catalogue};
use serde::Serialize;

use crate::Analysis;
use crate::code::address_spaces::{AddressSpaces, CodeLocation, is_file};
use crate::code::hotspots::{module_of, place_symbol};
use crate::code::library_names::{is_standard_library, without_return_type};
use crate::code::stacks::Frames;
use crate::counts::{Counts, EventNames, EventSums};
use crate::data::heap_history::{HeapHistograms, HeapHistory, HeapOverTime};
use crate::data::regions::{DataLocation, RegionExtent, SampledRegions, locate};
use crate::resolve::Resolve;

const NO_SYMBOLS: &str = "[no symbols]";
/// Default maximum number of rows of data, and of allocations.
pub(crate) const MAX_ROWS: usize = 100;

/// Sums of the accesses to data. Merge only analyses that use the same [`AddressSpaces`].
#[derive(Clone, Debug)]
pub struct DataSums<'a> {
    spaces: &'a AddressSpaces,
    by_site: BTreeMap<(Pid, u32), EventSums>,
    by_place: BTreeMap<(Pid, DataLocation), EventSums>,
}

impl<'a> DataSums<'a> {
    /// Starts empty. `spaces` names data outside of allocations.
    pub fn new(spaces: &'a AddressSpaces) -> Self {
        DataSums {
            spaces,
            by_site: BTreeMap::new(),
            by_place: BTreeMap::new(),
        }
    }
}

impl<'a> Analysis for DataSums<'a> {
    type Row = DataRow;
    type Output = DataSums<'a>;

    fn observe(&mut self, batch: &[DataRow]) {
        for row in batch {
            let tally = match (row.site, row.addr) {
                (Some(site), _) => self.by_site.entry((row.pid, site)).or_default(),
                (None, Some(addr)) => {
                    let place = locate(self.spaces, row.pid, addr.0, row.time_ns);
                    self.by_place.entry((row.pid, place)).or_default()
                }
                (None, None) => self
                    .by_place
                    .entry((row.pid, DataLocation::Unknown))
                    .or_default(),
            };
            for (event, count) in row.counts() {
                tally.add(event, count);
            }
        }
    }

    fn merge(&mut self, other: Self) {
        for (key, tally) in other.by_site {
            self.by_site.entry(key).or_default().add_all(&tally);
        }
        for (key, tally) in other.by_place {
            self.by_place.entry(key).or_default().add_all(&tally);
        }
    }

    fn finish(self) -> Self {
        self
    }
}

/// Allocations by call path.
#[derive(Clone, Debug, Default)]
pub struct Allocations(BTreeMap<(Pid, u32), AllocationRow>);

impl Analysis for Allocations {
    type Row = AllocationRow;
    type Output = Allocations;

    fn observe(&mut self, batch: &[AllocationRow]) {
        for row in batch {
            let sums = self.0.entry((row.pid, row.site)).or_default();
            *sums = AllocationRow {
                allocations: sums.allocations + row.allocations,
                bytes: sums.bytes + row.bytes,
                frees: sums.frees + row.frees,
                freed_bytes: sums.freed_bytes + row.freed_bytes,
                lifetime_ns: sums.lifetime_ns + row.lifetime_ns,
                temporary: sums.temporary + row.temporary,
                allocations_variance: sums.allocations_variance + row.allocations_variance,
                bytes_variance: sums.bytes_variance + row.bytes_variance,
                ..row.clone()
            };
        }
    }

    fn merge(&mut self, other: Self) {
        let rows: Vec<_> = other.0.into_values().collect();
        self.observe(&rows);
    }

    fn finish(self) -> Self {
        self
    }
}

/// Other names of numbers of the heap.
const HEAP_NAMES: [(&str, &str); 3] = [
    ("heap.peak", "heap.peak_bytes"),
    ("heap.unfreed", "heap.unfreed_bytes"),
    ("heap.untouched", "heap.untouched_bytes"),
];

/// Name of a metric in recordings: `heap.peak` is short for `heap.peak_bytes`.
pub fn metric_name(name: &str) -> &str {
    let known = HEAP_NAMES.iter().find(|(short, _)| *short == name);
    known.map_or(name, |&(_, full)| full)
}

/// Kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// Memory that an allocation function returned.
    Allocated,
    /// A variable of a program or library, a stack, or another mapping.
    Mapped,
}

/// A call on the way to an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct AllocationCall {
    /// The function that calls.
    pub function: String,
    /// File or mapping of the function.
    pub module: String,
    /// Source file of the call, where known.
    pub file: Option<String>,
    /// Line of the call, where known.
    pub line: Option<u32>,
    /// Offset in the module of the call instruction's last byte. `None` if the line is known, and for
    /// code that is in no file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

impl AllocationCall {
    /// Where the call is: `walk.c:9`, or without debug information `walk+0x11d9`.
    pub fn place(&self) -> Option<String> {
        match (&self.file, self.line, self.offset) {
            (Some(file), Some(line), _) => Some(format!("{}:{line}", crate::file_name(file))),
            (_, _, Some(offset)) => Some(format!("{}+{offset:#x}", crate::file_name(&self.module))),
            _ => None,
        }
    }

    /// True if only the module of the function is known.
    pub fn is_unnamed(&self) -> bool {
        self.function.ends_with(NO_SYMBOLS)
    }
}

/// Half the width of the 95 % confidence interval of estimates from sampled allocations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeapErrors {
    /// Error of the number of allocations.
    pub allocations: u64,
    /// Error of the requested bytes.
    pub bytes: u64,
    /// Error of the bytes at the peak.
    pub at_peak_bytes: u64,
    /// Error of the bytes that were never freed.
    pub live_bytes: u64,
}

/// Half the width of a 95 % confidence interval in standard deviations.
const DEVIATIONS: f64 = 1.96;

impl HeapErrors {
    fn from_row(row: &AllocationRow) -> Option<HeapErrors> {
        let half_width = |variance: u64| (DEVIATIONS * (variance as f64).sqrt()).ceil() as u64;
        let errors = HeapErrors {
            allocations: half_width(row.allocations_variance),
            bytes: half_width(row.bytes_variance),
            at_peak_bytes: half_width(row.at_peak_variance),
            live_bytes: half_width(row.live_variance),
        };
        (errors != HeapErrors::default()).then_some(errors)
    }

    /// Returns the errors of a sum of independent estimates.
    fn of_sum(all: impl Iterator<Item = HeapErrors>) -> Option<HeapErrors> {
        all.reduce(|a, b| {
            let sum = |a: u64, b: u64| (a as f64).hypot(b as f64).ceil() as u64;
            HeapErrors {
                allocations: sum(a.allocations, b.allocations),
                bytes: sum(a.bytes, b.bytes),
                at_peak_bytes: sum(a.at_peak_bytes, b.at_peak_bytes),
                live_bytes: sum(a.live_bytes, b.live_bytes),
            }
        })
    }
}

/// Memory allocated by one place in the code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AllocationSite {
    /// Function, place of the call and allocation function: `main at walk.c:9 (malloc)`, or without
    /// debug information `main at walk+0x11d9 (malloc)`.
    pub name: String,
    /// The allocation function: `malloc`, `_Znwm`.
    pub function: String,
    /// Call paths that lead there.
    pub paths: u64,
    /// Calls that led to the allocation, innermost first: at most twelve, plus those inlined into
    /// them. For several paths, those of the path with the most bytes at the peak.
    pub calls: Vec<AllocationCall>,
    /// Index of the call in `calls` that names the site: the innermost one with a symbol that is
    /// neither a container of a standard library nor a wrapper of `malloc`.
    pub named_by: usize,
    /// Allocations.
    pub allocations: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Allocations that were freed.
    pub frees: u64,
    /// Bytes in use at each process's peak.
    pub at_peak_bytes: u64,
    /// Bytes that were never freed.
    pub live_bytes: u64,
    /// Bytes of whole cache lines that no access reached; `None` if the source does not see accesses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untouched_bytes: Option<u64>,
    /// Mean time from allocation to free; `None` if none was freed.
    pub mean_lifetime_ns: Option<f64>,
    /// Allocations that the same thread freed before it allocated again.
    pub temporary: u64,
    /// How good the numbers are; `None` if all allocations were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<HeapErrors>,
}

/// Data and the cost of its accesses.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataPlace {
    /// Allocation site, or variable and file, `[stack]`, or `anon` with its start address.
    pub name: String,
    /// Kind of data.
    pub kind: DataKind,
    /// Misses, bytes and stalled cycles by event name.
    pub counts: Counts,
    /// Its stalled cycles / those of all data, in 0..=1. `None` if nothing stalled.
    pub share: Option<f64>,
    /// How it was allocated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationSite>,
}

/// Data by falling stalled cycles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataTable {
    /// Sums over all data by event name. `cycles` are stalled cycles.
    pub totals: Counts,
    /// The rows with the highest costs.
    pub rows: Vec<DataPlace>,
    /// Number of rows that are not listed.
    pub other_rows: u64,
    /// Sums of those rows.
    pub other_counts: Counts,
}

/// Memory that the program allocated.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeapUse {
    /// Allocations.
    pub allocations: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Allocations that were freed.
    pub frees: u64,
    /// Bytes in use at each process's peak, summed over processes.
    pub at_peak_bytes: u64,
    /// Bytes that were never freed.
    pub live_bytes: u64,
    /// Bytes of whole cache lines that no access reached; `None` if the source does not see accesses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untouched_bytes: Option<u64>,
    /// Allocations that the same thread freed before it allocated again.
    pub temporary: u64,
    /// Allocations per second of the run.
    pub allocations_per_s: Option<f64>,
    /// Bytes in use over time. `None` if the recording has no history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over_time: Option<HeapOverTime>,
    /// Allocations by size and lifetime. `None` if the recording has none of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histograms: Option<HeapHistograms>,
    /// How good the numbers are; `None` if all allocations were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<HeapErrors>,
    /// Allocating call paths by falling `at_peak_bytes`.
    pub sites: Vec<AllocationSite>,
    /// Number of call paths that are not listed.
    pub other_sites: u64,
    /// Their bytes at the peak.
    pub other_at_peak_bytes: u64,
    /// Every call path separately, for flame graphs. Not part of the JSON.
    #[serde(skip)]
    pub paths: Vec<AllocationSite>,
}

/// Costs of data, and the heap.
pub(crate) struct DataResults {
    pub(crate) table: Option<DataTable>,
    pub(crate) heap: Option<HeapUse>,
}

/// An allocation function and the calls that led to it, before they are named.
type SiteKey = (String, Vec<CodeLocation>);

#[derive(Default)]
struct SiteGroup {
    /// Processes with their numbers of the site.
    numbers: Vec<(Pid, u32)>,
    row: AllocationRow,
    tally: EventSums,
}

/// Tables of a recording about the heap over time.
pub(crate) struct HeapTables<'a> {
    pub(crate) allocations: &'a Allocations,
    pub(crate) history: &'a HeapHistory,
    pub(crate) histograms: Option<HeapHistograms>,
    pub(crate) duration_ns: u64,
    /// Maximum number of rows of data, and of allocations.
    pub(crate) max_rows: usize,
}

/// Names data and sums rows with the same name.
pub(crate) fn data_results(
    sums: &DataSums,
    tables: HeapTables,
    frames: &Frames,
    regions: &SampledRegions,
    symbols: &mut dyn Resolve,
    names: &EventNames,
) -> DataResults {
    let mut paths = Vec::new();
    let mut site_names: BTreeMap<(Pid, u32), String> = BTreeMap::new();
    let mut named: BTreeMap<String, (AllocationSite, EventSums)> = BTreeMap::new();
    for ((_, path), sums) in sites(sums, tables.allocations, frames) {
        let site = allocation_site(symbols, frames.spaces(), &path, &sums.row);
        let numbers = sums.numbers.iter();
        site_names.extend(numbers.map(|&number| (number, site.name.clone())));
        paths.push(site.clone());
        match named.entry(site.name.clone()) {
            Entry::Vacant(new) => {
                new.insert((site, sums.tally));
            }
            Entry::Occupied(mut known) => {
                let (all, tally) = known.get_mut();
                all.add(site);
                tally.add_all(&sums.tally);
            }
        }
    }
    let has_allocations = !paths.is_empty();
    let heap = heap(named.values().map(|(site, _)| site), paths, tables.max_rows);
    let duration_s = tables.duration_ns as f64 / 1e9;
    let heap = heap.map(|heap| HeapUse {
        allocations_per_s: (duration_s > 0.0).then(|| heap.allocations as f64 / duration_s),
        over_time: tables.history.over_time(tables.duration_ns, &site_names),
        histograms: tables.histograms,
        ..heap
    });
    let mut totals = EventSums::default();
    let all = sums.by_site.values().chain(sums.by_place.values());
    all.for_each(|tally| totals.add_all(tally));
    let mut mapped: BTreeMap<String, EventSums> = BTreeMap::new();
    for (&(pid, place), tally) in &sums.by_place {
        let (mut name, _): (String, RegionExtent) = regions.describe_line(symbols, pid, place);
        if name == "[heap]" && has_allocations {
            name += " outside of allocations";
        }
        mapped.entry(name).or_default().add_all(tally);
    }
    let stalled = totals.get(catalogue::CYCLES);
    let mut rows: Vec<(EventSums, DataPlace)> = Vec::new();
    let row = |name, kind, tally: &EventSums, allocation| DataPlace {
        name,
        kind,
        counts: counts(tally, names),
        share: (stalled > 0).then(|| tally.get(catalogue::CYCLES) as f64 / stalled as f64),
        allocation,
    };
    let missed = named.into_iter();
    for (name, (site, tally)) in missed.filter(|(_, (_, tally))| *tally != EventSums::default()) {
        rows.push((
            tally.clone(),
            row(name, DataKind::Allocated, &tally, Some(site)),
        ));
    }
    for (name, tally) in mapped {
        rows.push((tally.clone(), row(name, DataKind::Mapped, &tally, None)));
    }
    let cost = |tally: &EventSums| {
        let get = |event: EventId| tally.get(event);
        (get(catalogue::CYCLES), get(catalogue::L1D_MISS))
    };
    rows.sort_by_cached_key(|(tally, row)| (Reverse(cost(tally)), row.name.clone()));
    let others = rows.split_off(rows.len().min(tables.max_rows));
    let mut other = EventSums::default();
    others.iter().for_each(|(tally, _)| other.add_all(tally));
    let table = (!rows.is_empty()).then(|| DataTable {
        totals: counts(&totals, names),
        rows: rows.into_iter().map(|(_, row)| row).collect(),
        other_rows: others.len() as u64,
        other_counts: counts(&other, names),
    });
    DataResults { table, heap }
}

/// Sum of the known ones.
fn sum_known(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).reduce(|a, b| a + b)
}

fn counts(tally: &EventSums, names: &EventNames) -> Counts {
    let all = tally.iter().filter(|&(_, count)| count > 0);
    all.map(|(event, count)| (names.name(event), count))
        .collect()
}

/// Sites by function and path, with the code of all processes merged.
fn sites(
    sums: &DataSums,
    allocations: &Allocations,
    frames: &Frames,
) -> BTreeMap<SiteKey, SiteGroup> {
    let mut sites: BTreeMap<SiteKey, SiteGroup> = BTreeMap::new();
    for (key, row) in &allocations.0 {
        let path = path_of(frames, row.caller);
        let site = sites.entry((row.function.clone(), path)).or_default();
        site.numbers.push(*key);
        site.row = AllocationRow {
            allocations: site.row.allocations + row.allocations,
            bytes: site.row.bytes + row.bytes,
            frees: site.row.frees + row.frees,
            lifetime_ns: site.row.lifetime_ns + row.lifetime_ns,
            live_bytes: site.row.live_bytes + row.live_bytes,
            at_peak_bytes: site.row.at_peak_bytes + row.at_peak_bytes,
            temporary: site.row.temporary + row.temporary,
            allocations_variance: site.row.allocations_variance + row.allocations_variance,
            bytes_variance: site.row.bytes_variance + row.bytes_variance,
            live_variance: site.row.live_variance + row.live_variance,
            at_peak_variance: site.row.at_peak_variance + row.at_peak_variance,
            untouched_bytes: sum_known(site.row.untouched_bytes, row.untouched_bytes),
            ..row.clone()
        };
        if let Some(tally) = sums.by_site.get(key) {
            site.tally.add_all(tally);
        }
    }
    sites
}

/// The name of an allocation site of a process.
pub(crate) fn allocation_name(
    symbols: &mut dyn Resolve,
    allocations: &Allocations,
    frames: &Frames,
    site: (Pid, u32),
) -> Option<String> {
    let row = allocations.0.get(&site)?;
    let path = path_of(frames, row.caller);
    Some(allocation_site(symbols, frames.spaces(), &path, row).name)
}

/// Locations of a path's calls, innermost first.
fn path_of(frames: &Frames, innermost: Option<FrameId>) -> Vec<CodeLocation> {
    let mut path = Vec::new();
    let mut next = innermost;
    // Calls under emulation were traced, so all of them are valid.
    let ran = HashSet::new();
    while let Some((caller, place)) = next.and_then(|id| frames.call(id, &ran)) {
        path.push(place);
        next = caller;
    }
    path
}

fn allocation_site(
    symbols: &mut dyn Resolve,
    spaces: &AddressSpaces,
    path: &[CodeLocation],
    row: &AllocationRow,
) -> AllocationSite {
    let mut calls: Vec<AllocationCall> = Vec::new();
    // Frames of Python follow the native calls that they led to.
    let python = path.iter().position(|&place| is_python(spaces, place));
    let mut innermost_python = None;
    for (index, &place) in path.iter().enumerate() {
        if python == Some(index) {
            // The interpreter, what it was called by, and its frames are the same calls.
            let interpreter = calls.iter().position(|call| is_interpreter(&call.function));
            calls.truncate(interpreter.unwrap_or(calls.len()));
            innermost_python = Some(calls.len());
        }
        let module = module_of(spaces, place).to_owned();
        let offset = is_file(spaces.path(place.0)).then_some(place.1);
        let Some(symbol) = place_symbol(symbols, spaces, place) else {
            calls.push(AllocationCall {
                function: format!("{} {NO_SYMBOLS}", crate::file_name(&module)),
                module,
                offset,
                ..AllocationCall::default()
            });
            continue;
        };
        calls.push(AllocationCall {
            function: symbol.name,
            module: module.clone(),
            offset: offset.filter(|_| symbol.line.is_none()),
            file: symbol.file,
            line: symbol.line,
        });
        calls.extend(
            symbol
                .inlined_into
                .into_iter()
                .map(|caller| AllocationCall {
                    function: caller.function,
                    module: module.clone(),
                    file: caller.file,
                    line: caller.line,
                    offset: None,
                }),
        );
    }
    let is_own = |call: &&AllocationCall| !allocates_for_others(&call.function);
    let named_by = calls
        .iter()
        .position(|call| is_own(&call) && has_name(&call.function));
    let named_by = named_by.or_else(|| calls.iter().position(|call| is_own(&call)));
    let named_by = innermost_python.or(named_by).unwrap_or(0);
    let allocator = match innermost_python {
        // One line uses several functions of the interpreter: for objects, their items, and so on.
        Some(_) => PYTHON_ALLOCATOR,
        None => &row.function,
    };
    AllocationSite {
        name: site_name(allocator, calls.get(named_by)),
        function: row.function.clone(),
        paths: 1,
        calls,
        named_by,
        allocations: row.allocations,
        bytes: row.bytes,
        frees: row.frees,
        at_peak_bytes: row.at_peak_bytes,
        live_bytes: row.live_bytes,
        untouched_bytes: row.untouched_bytes,
        mean_lifetime_ns: (row.frees > 0).then(|| row.lifetime_ns as f64 / row.frees as f64),
        temporary: row.temporary,
        errors: HeapErrors::from_row(row),
    }
}

/// Name for all allocation functions that a line of Python uses.
const PYTHON_ALLOCATOR: &str = "Python";

/// True for addresses that stand for lines of Python.
fn is_python(spaces: &AddressSpaces, (id, offset): CodeLocation) -> bool {
    let generated = spaces.generated_name(id, offset);
    generated.is_some_and(|code| code.module == GeneratedCode::PYTHON)
}

/// True for the function of CPython that executes frames, also for parts that a compiler split off.
fn is_interpreter(function: &str) -> bool {
    function.starts_with("_PyEval_EvalFrameDefault")
}

/// Name of an allocation function for users: `new` for `_Znwm`.
pub fn allocator_name(function: &str) -> &str {
    match function {
        name if name.starts_with("_Znw") => "new",
        name if name.starts_with("_Zna") => "new[]",
        name => name,
    }
}

fn site_name(allocator: &str, call: Option<&AllocationCall>) -> String {
    let allocator = allocator_name(allocator);
    let Some(call) = call else {
        return format!("unknown caller ({allocator})");
    };
    let function = &call.function;
    match call.place() {
        Some(place) if call.is_unnamed() => format!("{place} ({allocator})"),
        Some(place) => format!("{function} at {place} ({allocator})"),
        None => format!("{function} ({allocator})"),
    }
}

/// True if a call tells users where the allocation happens: not for code without symbols, and not
/// for the functions that start programs and threads.
fn has_name(function: &str) -> bool {
    const STARTS: [&str; 5] = [
        "_start",
        "start_thread",
        "clone",
        "clone3",
        "_dl_start_user",
    ];
    !function.ends_with(NO_SYMBOLS)
        && !function.starts_with("__libc_start")
        && !STARTS.contains(&function)
}

/// True if a function allocates on behalf of its caller, so that users would not look there:
/// containers of standard libraries, and wrappers of malloc such as `xmalloc`, `g_strdup` and
/// `sqlite3DbMallocRaw`.
fn allocates_for_others(function: &str) -> bool {
    const ENDINGS: [&str; 8] = [
        "alloc",
        "alloc0",
        "allocraw",
        "alloczero",
        "alloczeroed",
        "allocarray",
        "strdup",
        "strndup",
    ];
    let name = without_return_type(function);
    let (plain, _) = name.split_once(['(', '<']).unwrap_or((name, ""));
    let plain = plain.to_ascii_lowercase().replace('_', "");
    name.starts_with("operator new")
        || is_standard_library(name)
        || ENDINGS.iter().any(|ending| plain.ends_with(ending))
}

fn heap<'a>(
    sites: impl Iterator<Item = &'a AllocationSite>,
    paths: Vec<AllocationSite>,
    max_rows: usize,
) -> Option<HeapUse> {
    let mut sites: Vec<AllocationSite> = sites.cloned().collect();
    if sites.is_empty() {
        return None;
    }
    let sum = |of: fn(&AllocationSite) -> u64| sites.iter().map(of).sum();
    let heap = HeapUse {
        allocations: sum(|site| site.allocations),
        bytes: sum(|site| site.bytes),
        frees: sum(|site| site.frees),
        at_peak_bytes: sum(|site| site.at_peak_bytes),
        live_bytes: sum(|site| site.live_bytes),
        untouched_bytes: sites
            .iter()
            .fold(None, |all, site| sum_known(all, site.untouched_bytes)),
        temporary: sum(|site| site.temporary),
        errors: HeapErrors::of_sum(sites.iter().filter_map(|site| site.errors)),
        paths,
        ..HeapUse::default()
    };
    sites.sort_by_cached_key(|site| {
        (
            Reverse(site.at_peak_bytes),
            Reverse(site.bytes),
            site.name.clone(),
        )
    });
    let others = sites.split_off(sites.len().min(max_rows));
    Some(HeapUse {
        sites,
        other_sites: others.len() as u64,
        other_at_peak_bytes: others.iter().map(|site| site.at_peak_bytes).sum(),
        ..heap
    })
}

impl AllocationSite {
    /// Adds another path of the same name.
    fn add(&mut self, other: AllocationSite) {
        if other.at_peak_bytes > self.at_peak_bytes {
            (self.calls, self.named_by) = (other.calls, other.named_by);
        }
        let sum = |site: Option<f64>, frees: u64| site.unwrap_or(0.0) * frees as f64;
        let lifetimes =
            sum(self.mean_lifetime_ns, self.frees) + sum(other.mean_lifetime_ns, other.frees);
        self.errors = HeapErrors::of_sum(self.errors.into_iter().chain(other.errors));
        self.temporary += other.temporary;
        self.paths += other.paths;
        self.allocations += other.allocations;
        self.bytes += other.bytes;
        self.frees += other.frees;
        self.at_peak_bytes += other.at_peak_bytes;
        self.live_bytes += other.live_bytes;
        self.untouched_bytes = sum_known(self.untouched_bytes, other.untouched_bytes);
        self.mean_lifetime_ns = (self.frees > 0).then(|| lifetimes / self.frees as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_and_wrappers_do_not_name_a_site() {
        for function in [
            "operator new(unsigned long)",
            "std::__cxx11::basic_string<char>::_M_create(unsigned long&, unsigned long)",
            "void std::vector<int, std::allocator<int> >::_M_realloc_insert<int>(int&&)",
            "alloc::raw_vec::finish_grow",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "<i32 as alloc::string::SpecToString>::spec_to_string",
            "<T as alloc::vec::spec_from_elem::SpecFromElem>::from_elem",
            "<&mut alloc::string::String as core::fmt::Write::write_fmt::SpecWriteFmt>::spec_write_fmt",
            "<&dyn core::ops::function::Fn<(), Output = i32> + core::marker::Sync>::call",
            "xmalloc",
            "sqlite3DbMallocRaw",
            "Arena::Alloc(unsigned long)",
            "__rust_alloc_zeroed",
            "__strndup",
        ] {
            assert!(allocates_for_others(function), "{function}");
        }
        for function in [
            "main",
            "std::vector<int> build<int>(std::size_t)",
            "parse(std::string const&)",
            "my::operator_new",
            "alloc_buffers",
            "<my::Tree as core::clone::Clone>::clone",
            "void reallocate_all<int>(int)",
        ] {
            assert!(!allocates_for_others(function), "{function}");
        }
    }
}
