//! Cost of data: misses and stalls by allocation, variable and mapping, and how much memory
//! was allocated where.
//!
//! The sums are exact, since their source sees every access. Memory from the same call path is one
//! row, whichever process allocated it, and so is a variable of a file.
//!
//! Memory: 150 bytes for each allocating call path, variable and mapping of each process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use memgauge_trace::{AllocationRow, DataRow, EventId, FrameId, GeneratedCode, Pid, catalogue};
use serde::{Serialize, Serializer};

use crate::Analysis;
use crate::code::address_spaces::{AddressSpaces, CodeLocation, is_file};
use crate::code::hotspots::{module_of, place_symbol};
use crate::code::library_names::{is_standard_library, without_return_type};
use crate::code::stacks::Frames;
use crate::counts::{Counts, EventNames, EventSums};
use crate::data::heap_history::{HeapHistograms, HeapHistory, HeapOverTime, SiteNames};
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
            // One row in three repeats a site. Keep the memory of its name.
            let mut function = std::mem::take(&mut sums.function);
            function.clone_from(&row.function);
            *sums = AllocationRow {
                function,
                allocations: sums.allocations + row.allocations,
                bytes: sums.bytes + row.bytes,
                frees: sums.frees + row.frees,
                freed_bytes: sums.freed_bytes + row.freed_bytes,
                lifetime_ns: sums.lifetime_ns + row.lifetime_ns,
                temporary: sums.temporary + row.temporary,
                allocations_variance: sums.allocations_variance + row.allocations_variance,
                bytes_variance: sums.bytes_variance + row.bytes_variance,
                ..*row
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
    #[serde(serialize_with = "serialize_calls")]
    pub calls: Vec<Arc<AllocationCall>>,
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

/// Paths share the calls that they have in common.
fn serialize_calls<S: Serializer>(
    calls: &[Arc<AllocationCall>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(calls.iter().map(Arc::as_ref))
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
    /// Every call path separately, for flame graphs, if requested. Not part of the JSON.
    #[serde(skip)]
    pub paths: Vec<AllocationSite>,
}

/// Costs of data, and the heap.
pub(crate) struct DataResults {
    pub(crate) table: Option<DataTable>,
    pub(crate) heap: Option<HeapUse>,
}

/// Tables of a recording about the heap over time.
pub(crate) struct HeapTables<'a> {
    pub(crate) allocations: &'a Allocations,
    pub(crate) history: &'a HeapHistory,
    pub(crate) histograms: Option<HeapHistograms>,
    pub(crate) duration_ns: u64,
    /// Maximum number of rows of data, and of allocations.
    pub(crate) max_rows: usize,
    /// Also list every call path.
    pub(crate) with_paths: bool,
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
    let NamedSites {
        sites: named,
        paths,
        names: site_names,
    } = named_sites(sums, &tables, frames, symbols);
    let has_allocations = !named.is_empty();
    let heap = heap(named.iter().map(|(site, _)| site), paths, tables.max_rows);
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
    for (site, tally) in missed.filter(|(_, tally)| *tally != EventSums::default()) {
        let name = site.name.clone();
        let row = row(name, DataKind::Allocated, &tally, Some(site));
        rows.push((tally, row));
    }
    for (name, tally) in mapped {
        let row = row(name, DataKind::Mapped, &tally, None);
        rows.push((tally, row));
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

/// Sites with their names.
struct NamedSites {
    /// Sorted by name, with the sums of their accesses.
    sites: Vec<(AllocationSite, EventSums)>,
    /// Every call path separately, if requested.
    paths: Vec<AllocationSite>,
    /// Names by process and number of the site.
    names: SiteNames,
}

/// A call path of one process, before its calls are named.
struct NumberedPath<'a> {
    number: (Pid, u32),
    row: &'a AllocationRow,
    calls: Vec<CodeLocation>,
}

impl NumberedPath<'_> {
    /// The allocation function and the calls that led to it, which are equal in all processes.
    fn key(&self) -> (&str, &[CodeLocation]) {
        (&self.row.function, &self.calls)
    }
}

/// Names the sites, with the code of all processes merged, and sums those of the same name.
fn named_sites(
    sums: &DataSums,
    tables: &HeapTables,
    frames: &Frames,
    symbols: &mut dyn Resolve,
) -> NamedSites {
    let numbered = tables.allocations.0.iter();
    let mut numbered: Vec<NumberedPath> = numbered
        .map(|(&number, row)| NumberedPath {
            number,
            row,
            calls: path_of(frames, row.caller),
        })
        .collect();
    numbered.sort_by(|a, b| a.key().cmp(&b.key()));
    let mut call_names = CallNames::new(symbols, frames.spaces());
    let mut by_name: HashMap<Rc<str>, SiteOfPaths> = HashMap::new();
    let (mut paths, mut names) = (Vec::new(), SiteNames::new());
    for same in numbered.chunk_by(|a, b| a.key() == b.key()) {
        let mut sum = AllocationRow::default();
        let mut tally = EventSums::default();
        for path in same {
            sum = sum_of_processes(&sum, path.row);
            if let Some(of_site) = sums.by_site.get(&path.number) {
                tally.add_all(of_site);
            }
        }
        let (function, calls) = same[0].key();
        let site = call_names.site(function, calls, &sum);
        if tables.with_paths {
            paths.push(site.clone());
        }
        let name = match by_name.get_key_value(site.name.as_str()) {
            Some((name, _)) => Rc::clone(name),
            None => Rc::from(site.name.as_str()),
        };
        names.extend(same.iter().map(|path| (path.number, Rc::clone(&name))));
        match by_name.get_mut(&name) {
            None => {
                let largest_path = site.at_peak_bytes;
                let of_paths = SiteOfPaths {
                    site,
                    tally,
                    largest_path,
                };
                by_name.insert(name, of_paths);
            }
            Some(of_paths) => of_paths.add(site, &tally),
        }
    }
    let sites = by_name.into_values();
    let mut sites: Vec<_> = sites.map(|all| (all.site, all.tally)).collect();
    sites.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    NamedSites {
        sites,
        paths,
        names,
    }
}

/// Sum of the paths with the same name.
struct SiteOfPaths {
    site: AllocationSite,
    tally: EventSums,
    /// Bytes at the peak of the path whose calls the site has.
    largest_path: u64,
}

impl SiteOfPaths {
    fn add(&mut self, path: AllocationSite, tally: &EventSums) {
        if path.at_peak_bytes > self.largest_path {
            self.largest_path = path.at_peak_bytes;
            (self.site.calls, self.site.named_by) = (path.calls.clone(), path.named_by);
        }
        self.site.add(&path);
        self.tally.add_all(tally);
    }
}

/// Sum of the allocations of two processes by the same calls.
fn sum_of_processes(a: &AllocationRow, b: &AllocationRow) -> AllocationRow {
    AllocationRow {
        function: String::new(),
        allocations: a.allocations + b.allocations,
        bytes: a.bytes + b.bytes,
        frees: a.frees + b.frees,
        lifetime_ns: a.lifetime_ns + b.lifetime_ns,
        live_bytes: a.live_bytes + b.live_bytes,
        at_peak_bytes: a.at_peak_bytes + b.at_peak_bytes,
        temporary: a.temporary + b.temporary,
        allocations_variance: a.allocations_variance + b.allocations_variance,
        bytes_variance: a.bytes_variance + b.bytes_variance,
        live_variance: a.live_variance + b.live_variance,
        at_peak_variance: a.at_peak_variance + b.at_peak_variance,
        untouched_bytes: sum_known(a.untouched_bytes, b.untouched_bytes),
        ..*b
    }
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
    let mut names = CallNames::new(symbols, frames.spaces());
    Some(names.site(&row.function, &path, row).name)
}

/// Locations of a path's calls, innermost first.
pub(crate) fn path_of(frames: &Frames, innermost: Option<FrameId>) -> Vec<CodeLocation> {
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

/// Names the calls of paths that lead to allocations or waits. Paths have most of their calls in
/// common, so each location is named once.
pub(crate) struct CallNames<'a> {
    symbols: &'a mut dyn Resolve,
    spaces: &'a AddressSpaces,
    known: HashMap<CodeLocation, Rc<[NamedCall]>>,
}

/// A call and what its name tells.
#[derive(Clone)]
pub(crate) struct NamedCall {
    pub(crate) call: Arc<AllocationCall>,
    /// False if users would not look for an allocation there.
    is_own: bool,
    /// True if the name tells users where the call is.
    pub(crate) has_name: bool,
    is_interpreter: bool,
}

/// The calls of a path, innermost first.
pub(crate) struct NamedPath {
    pub(crate) calls: Vec<NamedCall>,
    /// Index of the innermost frame of Python, if there is one.
    pub(crate) innermost_python: Option<usize>,
}

impl NamedCall {
    fn new(call: AllocationCall) -> NamedCall {
        let function = &call.function;
        NamedCall {
            is_own: !allocates_for_others(function),
            has_name: has_name(function),
            is_interpreter: is_interpreter(function),
            call: Arc::new(call),
        }
    }
}

impl<'a> CallNames<'a> {
    pub(crate) fn new(symbols: &'a mut dyn Resolve, spaces: &'a AddressSpaces) -> CallNames<'a> {
        CallNames {
            symbols,
            spaces,
            known: HashMap::new(),
        }
    }

    /// The function at a location, and those that it was inlined into.
    fn at(&mut self, place: CodeLocation) -> Rc<[NamedCall]> {
        if let Some(known) = self.known.get(&place) {
            return Rc::clone(known);
        }
        let calls = calls_at(self.symbols, self.spaces, place).into_iter();
        let calls: Rc<[NamedCall]> = calls.map(NamedCall::new).collect();
        self.known.insert(place, Rc::clone(&calls));
        calls
    }

    /// The calls of a path, those inlined into them included.
    pub(crate) fn path(&mut self, path: &[CodeLocation]) -> NamedPath {
        let mut calls: Vec<NamedCall> = Vec::new();
        // Frames of Python follow the native calls that they led to.
        let python = path.iter().position(|&place| is_python(self.spaces, place));
        let mut innermost_python = None;
        for (index, &place) in path.iter().enumerate() {
            if python == Some(index) {
                // The interpreter, what it was called by, and its frames are the same calls.
                let interpreter = calls.iter().position(|call| call.is_interpreter);
                calls.truncate(interpreter.unwrap_or(calls.len()));
                innermost_python = Some(calls.len());
            }
            calls.extend_from_slice(&self.at(place));
        }
        NamedPath {
            calls,
            innermost_python,
        }
    }

    /// The site of the allocations in `row` by one function and call path.
    fn site(
        &mut self,
        function: &str,
        path: &[CodeLocation],
        row: &AllocationRow,
    ) -> AllocationSite {
        let NamedPath {
            calls,
            innermost_python,
        } = self.path(path);
        let named_by = calls.iter().position(|call| call.is_own && call.has_name);
        let named_by = named_by.or_else(|| calls.iter().position(|call| call.is_own));
        let named_by = innermost_python.or(named_by).unwrap_or(0);
        let allocator = match innermost_python {
            // One line uses several functions of the interpreter: for objects, their items, and so on.
            Some(_) => PYTHON_ALLOCATOR,
            None => function,
        };
        let namer = calls.get(named_by).map(|named| named.call.as_ref());
        AllocationSite {
            name: site_name(allocator, namer),
            function: function.to_owned(),
            paths: 1,
            calls: calls.into_iter().map(|named| named.call).collect(),
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
}

/// The function at a location, and those that it was inlined into.
fn calls_at(
    symbols: &mut dyn Resolve,
    spaces: &AddressSpaces,
    place: CodeLocation,
) -> Vec<AllocationCall> {
    let module = module_of(spaces, place).to_owned();
    let offset = is_file(spaces.path(place.0)).then_some(place.1);
    let Some(symbol) = place_symbol(symbols, spaces, place) else {
        return vec![AllocationCall {
            function: format!("{} {NO_SYMBOLS}", crate::file_name(&module)),
            module,
            offset,
            ..AllocationCall::default()
        }];
    };
    let innermost = AllocationCall {
        function: symbol.name,
        module: module.clone(),
        offset: offset.filter(|_| symbol.line.is_none()),
        file: symbol.file,
        line: symbol.line,
    };
    let callers = symbol.inlined_into.into_iter();
    let callers = callers.map(|caller| AllocationCall {
        function: caller.function,
        module: module.clone(),
        file: caller.file,
        line: caller.line,
        offset: None,
    });
    std::iter::once(innermost).chain(callers).collect()
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
    /// Adds the numbers of another path of the same name.
    fn add(&mut self, other: &AllocationSite) {
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
    use memgauge_trace::{Frame, VirtAddr};

    use super::*;
    use crate::code::address_spaces::tests::{code, spaces};
    use crate::resolve::{ModuleFile, Symbol};

    /// Names every instruction by its offset, and counts how often it was asked.
    struct CountingNames(usize);

    impl Resolve for CountingNames {
        fn resolve(&mut self, _: &ModuleFile, offset: u64) -> Option<Symbol> {
            self.0 += 1;
            Some(Symbol {
                name: format!("f{offset:x}"),
                ..Symbol::default()
            })
        }

        fn resolve_data(&mut self, _: &ModuleFile, _: u64) -> Option<String> {
            None
        }
    }

    #[test]
    fn calls_that_paths_share_are_named_once() {
        let spaces = spaces(&[code(0, 0x1000, 0x2000, "/bin/p")]);
        let mut frames = Frames::new(&spaces).traced(true);
        let mut allocations = Allocations::default();
        // Two functions that call each other eight deep, and allocate at each depth.
        for n in 0..8 {
            frames.observe(&[Frame {
                id: FrameId(n),
                caller: n.checked_sub(1).map(FrameId),
                pid: Pid(1),
                ip: VirtAddr(0x1010 + 0x10 * u64::from(n % 2)),
                ..Frame::default()
            }]);
            allocations.observe(&[AllocationRow {
                pid: Pid(1),
                site: n,
                function: "malloc".to_owned(),
                caller: Some(FrameId(n)),
                allocations: 1,
                at_peak_bytes: u64::from(n),
                ..AllocationRow::default()
            }]);
        }
        let tables = HeapTables {
            allocations: &allocations,
            history: &HeapHistory::default(),
            histograms: None,
            duration_ns: 0,
            max_rows: MAX_ROWS,
            with_paths: true,
        };
        let mut symbols = CountingNames(0);
        let named = named_sites(&DataSums::new(&spaces), &tables, &frames, &mut symbols);
        assert_eq!(symbols.0, 2);
        assert_eq!((named.paths.len(), named.names.len()), (8, 8));
        let sites = named.sites.iter().map(|(site, _)| {
            let sums = (site.paths, site.at_peak_bytes);
            (site.name.as_str(), sums, site.calls.len())
        });
        assert_eq!(
            sites.collect::<Vec<_>>(),
            [
                ("f10 at p+0x10 (malloc)", (4, 2 + 4 + 6), 7),
                ("f20 at p+0x20 (malloc)", (4, 1 + 3 + 5 + 7), 8),
            ]
        );
        assert_eq!(&*named.names[&(Pid(1), 3)], "f20 at p+0x20 (malloc)");
    }

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
