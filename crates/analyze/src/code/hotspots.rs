//! Functions and source lines by the events they caused.
//!
//! Symbols are resolved for the hottest locations first, for at most
//! [`TableLimits::resolved_places`]. The other locations are summed, not dropped.

use std::collections::{BTreeMap, BTreeSet};

use memgauge_trace::{EventId, LINE_BYTES, Manifest, catalogue};
use serde::Serialize;

use crate::code::address_spaces::{
    AddressSpaces, CodeLocation, GeneratedName, JIT, UNKNOWN, is_file,
};
use crate::code::sites::{SampleCount, SiteTotals};
use crate::counts::{Counts, EventNames, EventSums, GroupSums, ratio};
use crate::listed;
use crate::resolve::{Caller, Resolve, Symbol};
use crate::sample_intervals::wilson_95;
use crate::set_groups::{EstimateInterval, FollowedGroups};

/// Sort order of a table: the sum of some events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Name of the order (`dram_bytes`, `llc.miss`).
    pub name: String,
    /// The events summed.
    pub events: Vec<EventId>,
}

/// Approximate cost in cycles of a first-level miss that the second level, the last level or memory
/// serves, as on the built-in machines. Only used to choose an order.
const MISS_CYCLES: [u64; 3] = [12, 40, 300];

impl Rank {
    /// Bytes moved between the last-level cache and memory, both ways.
    pub fn dram_bytes() -> Self {
        Rank {
            name: "dram_bytes".to_owned(),
            events: vec![catalogue::DRAM_READ_BYTES, catalogue::DRAM_WRITE_BYTES],
        }
    }

    /// A single event.
    pub fn event(id: EventId, names: &EventNames) -> Self {
        Rank {
            name: names.name(id),
            events: vec![id],
        }
    }

    /// The event of this name in the recording, or `dram_bytes`.
    ///
    /// # Errors
    /// The recording has no event of this name. The message lists the names that it has.
    pub fn named(name: &str, manifest: &Manifest) -> Result<Self, String> {
        if name == "dram_bytes" {
            return Ok(Rank::dram_bytes());
        }
        let found = manifest.events.iter().find(|def| def.name == name);
        found
            .map(|def| Rank::event(def.id, &EventNames::of(manifest)))
            .ok_or_else(|| {
                let known = manifest.events.iter().map(|def| def.name.as_str());
                let known = known.collect::<Vec<_>>().join(", ");
                format!(
                    "failed to rank by event `{name}`: the recording does not have it; use one of \
                     {known}"
                )
            })
    }

    /// The best available order: cycles if they are known by location. Otherwise the first of DRAM
    /// bytes, last-level misses, first-level misses and instructions that is not zero, or else the
    /// most-sampled event. First-level misses come first if those that a cache serves cost more
    /// than those that reach memory.
    pub(crate) fn best_of(sites: &SiteTotals, names: &EventNames) -> Self {
        let event = |id| Rank::event(id, names);
        if sites.totals.get(catalogue::CYCLES) > 0 {
            return event(catalogue::CYCLES);
        }
        let l1d = event(catalogue::L1D_MISS);
        let misses = [catalogue::L1D_MISS, catalogue::L2_MISS, catalogue::LLC_MISS];
        let [l1d_misses, l2_misses, llc_misses] = misses.map(|id| sites.totals.sum(&[id]));
        let cost = |served: u64, level: usize| served.saturating_mul(MISS_CYCLES[level]);
        let of_caches = cost(l1d_misses.saturating_sub(l2_misses), 0)
            .saturating_add(cost(l2_misses.saturating_sub(llc_misses), 1));
        // Written-back and prefetched lines cost no wait.
        let moved = sites.totals.sum(&Rank::dram_bytes().events) / LINE_BYTES;
        if of_caches > cost(llc_misses.max(moved), 2) {
            return l1d;
        }
        let known = [
            catalogue::LLC_MISS,
            catalogue::L1D_MISS,
            catalogue::INSTRUCTIONS,
        ];
        let most = sites.totals.iter().max_by_key(|&(_, count)| count);
        [Rank::dram_bytes()]
            .into_iter()
            .chain(known.map(event))
            .chain(most.map(|(id, _)| event(id)))
            .find(|rank| sites.totals.sum(&rank.events) > 0)
            .unwrap_or(l1d)
    }
}

/// Sums by which users can sort the page's tables of code. `web/src/sections/hot.ts` has a column
/// for each.
const SORT_SUMS: [&[EventId]; 6] = [
    &[catalogue::CYCLES],
    &catalogue::STALLS,
    &[catalogue::DRAM_READ_BYTES],
    &[catalogue::LLC_MISS],
    &[catalogue::L1D_MISS],
    &[catalogue::DTLB_WALK],
];

/// Size limits of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// Maximum number of rows. The others are summed.
    pub rows: usize,
    /// Also list the first `rows` by each other number of the table, for readers who can sort it:
    /// by each of `SORT_SUMS` in tables of code, by samples and size in tables of regions.
    pub every_order: bool,
    /// Maximum number of code locations for which symbols are resolved, hottest first.
    pub resolved_places: usize,
    /// Charge code that was inlined from a library's header to the user's function and line around
    /// it. Otherwise it has a row of its own.
    pub user_code: bool,
    /// Sum the dynamic loader and startup in one row unless they matter.
    pub fold_startup: bool,
    /// List instructions. They are most of the rows if there is no limit.
    pub instructions: bool,
}

impl Default for TableLimits {
    fn default() -> Self {
        TableLimits {
            rows: 100,
            every_order: false,
            resolved_places: 50_000,
            user_code: true,
            fold_startup: true,
            instructions: true,
        }
    }
}

/// A function or a source line.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HotRow {
    /// Function, or the module if it has no symbols. For inlined code, the innermost function that
    /// does not come from a library's header: `lookups` rather than
    /// `std::_Hashtable<…>::_M_find_node`, which was inlined into it.
    pub function: String,
    /// Functions that `function` was inlined into, innermost first. In the table of lines, with the
    /// lines of the calls.
    pub inlined_into: Vec<Caller>,
    /// Path of the file that contains the code.
    pub module: String,
    /// Source file, in the table of lines.
    pub file: Option<String>,
    /// Line in the source file, in the table of lines.
    pub line: Option<u32>,
    /// Byte offset in the module: in the table of instructions, and in the table of lines if the
    /// line is unknown.
    pub offset: Option<u64>,
    /// Count of every event by name, in the event's unit.
    pub counts: Counts,
    /// Value of the table's sort order.
    pub value: u64,
    /// Lower end of the value's 95 % interval with `--sets`.
    pub value_low: Option<u64>,
    /// Upper end of that interval.
    pub value_high: Option<u64>,
    /// 95 % intervals of `counts` that `--sets` estimated.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<String, EstimateInterval>,
    /// `value` / the table's total, in 0..=1.
    pub share: Option<f64>,
    /// Number of samples behind the row. `None` if every event was counted.
    pub samples: Option<u64>,
    /// Samples with a data address; `None` where every event was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_with_address: Option<u64>,
    /// Lower end of the share's 95 % interval. `None` if the share is exact.
    pub share_low: Option<f64>,
    /// Upper end of that interval.
    pub share_high: Option<f64>,
}

/// Sums of the rows that a table does not list.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OtherRows {
    /// Number of rows.
    pub rows: u64,
    /// Number of code locations (instructions) without resolved symbols.
    pub unresolved_places: u64,
    /// Count of every event by name.
    pub counts: Counts,
    /// Value of the table's sort order.
    pub value: u64,
    /// `value` / the table's total, in 0..=1.
    pub share: Option<f64>,
}

/// Rows by falling sort order, ties by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HotTable {
    /// Name of the sort order.
    pub rank: String,
    /// Value of the sort order over all locations, listed or not.
    pub total: u64,
    /// Number of samples behind the table. `None` if every event was counted.
    pub samples: Option<u64>,
    /// The hottest.
    pub rows: Vec<HotRow>,
    /// Number of leading rows that are complete for each number of the table, if
    /// [`TableLimits::every_order`] is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_by_each: Option<u64>,
    /// The rows that are not listed.
    pub others: OtherRows,
}

/// Tables from one pass over the symbols.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HotTables {
    /// By function.
    pub functions: HotTable,
    /// By source line, or by offset where no line is known.
    pub lines: HotTable,
    /// By instruction.
    pub instructions: HotTable,
}

impl HotTables {
    /// Removes the intervals from shares of events that were all recorded.
    pub(crate) fn remove_intervals(&mut self, has_every: impl Fn(&str) -> bool) {
        for table in [&mut self.functions, &mut self.lines, &mut self.instructions] {
            if has_every(&table.rank) {
                for row in &mut table.rows {
                    (row.share_low, row.share_high) = (None, None);
                }
            }
        }
    }
}

/// Ranks functions and lines.
pub fn hot_tables(
    sites: &SiteTotals,
    symbols: &mut dyn Resolve,
    names: &EventNames,
    rank: &Rank,
    limits: TableLimits,
) -> HotTables {
    let mut hottest: Vec<_> = sites.rows.iter().collect();
    // If the sort order is zero everywhere, resolve the most active locations first.
    let busy = [catalogue::INSTRUCTIONS, catalogue::LOADS, catalogue::STORES];
    hottest.sort_by_cached_key(|(place, tally, _)| {
        let heat = (tally.sum(&rank.events), tally.sum(&busy));
        (std::cmp::Reverse(heat), *place)
    });
    let (asked, unasked) = hottest.split_at(limits.resolved_places.min(hottest.len()));
    let mut groups: [GroupedRows; 3] = Default::default();
    for (place, tally, samples) in asked {
        let names = match limits.user_code {
            true => user_place_names(symbols, sites.spaces, *place),
            false => place_names(symbols, sites.spaces, *place),
        };
        let by_set = sites.by_group.get(place);
        let tables = if limits.instructions { 3 } else { 2 };
        for (group, name) in groups.iter_mut().zip(names).take(tables) {
            group.add(name, tally, *samples, by_set);
        }
        let unlisted = groups.iter_mut().skip(tables);
        unlisted.for_each(|group| group.skip(tally));
    }
    for (_, tally, _) in unasked {
        groups.iter_mut().for_each(|group| group.skip(tally));
    }
    let mut by_set = GroupSums::default();
    let sums = sites.by_group.values();
    sums.for_each(|sums| by_set.add_all(sums));
    let all = sites.followed.map(|followed| (followed, by_set));
    let table = |mut group: GroupedRows| {
        if limits.fold_startup {
            group.fold_startup(rank, sites);
        }
        group.table(names, rank, sites, all.as_ref(), limits)
    };
    let [functions, lines, instructions] = groups.map(table);
    HotTables {
        functions,
        lines,
        instructions,
    }
}

/// Names of a row. Ties are ordered by the fields in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) function: String,
    pub(crate) module: String,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) offset: Option<u64>,
    pub(crate) inlined_into: Vec<Caller>,
}

/// Names of a location in the tables of functions, lines and instructions.
pub(crate) fn place_names(
    symbols: &mut dyn Resolve,
    spaces: &AddressSpaces,
    place: CodeLocation,
) -> [Name; 3] {
    let symbol = place_symbol(symbols, spaces, place);
    let [function, line] = code_names(symbol, spaces, place);
    let instruction = Name {
        offset: known_offset(spaces, place),
        ..line.clone()
    };
    [function, line, instruction]
}

/// As [`place_names`], but inlined library code gets the function and line of the user's code
/// around it. The instruction keeps its own name.
pub(crate) fn user_place_names(
    symbols: &mut dyn Resolve,
    spaces: &AddressSpaces,
    place: CodeLocation,
) -> [Name; 3] {
    let symbol = place_symbol(symbols, spaces, place);
    let [_, line] = code_names(symbol.clone(), spaces, place);
    let instruction = Name {
        offset: known_offset(spaces, place),
        ..line
    };
    let [function, line] = code_names(symbol.map(in_user_code), spaces, place);
    [function, line, instruction]
}

fn code_names(symbol: Option<Symbol>, spaces: &AddressSpaces, place: CodeLocation) -> [Name; 2] {
    let function = match &symbol {
        Some(symbol) => symbol.name.clone(),
        None => without_symbol(spaces.path(place.0)),
    };
    let callers = symbol.iter().flat_map(|s| &s.inlined_into);
    let function = Name {
        function,
        module: module_of(spaces, place).to_owned(),
        inlined_into: callers
            .map(|caller| Caller {
                function: caller.function.clone(),
                ..Caller::default()
            })
            .collect(),
        ..Name::default()
    };
    let line = line_name(function.clone(), symbol, known_offset(spaces, place));
    [function, line]
}

/// Offset of a location in its file. JIT-compiled code has none, since its number identifies a
/// name.
fn known_offset(spaces: &AddressSpaces, (id, offset): CodeLocation) -> Option<u64> {
    (!is_one_place(spaces.path(id))).then_some(offset)
}

/// The innermost inlined frame that does not come from a library's header. If all frames do, the
/// outermost one, since the user's code calls it.
pub(crate) fn in_user_code(mut symbol: Symbol) -> Symbol {
    let files = std::iter::once(&symbol.file).chain(symbol.inlined_into.iter().map(|c| &c.file));
    let is_user = |file: &Option<String>| !file.as_deref().is_some_and(is_library_source);
    let frame = files.clone().position(is_user);
    let skipped = frame.unwrap_or(symbol.inlined_into.len());
    if let Some(caller) = symbol.inlined_into.drain(..skipped).next_back() {
        (symbol.name, symbol.file, symbol.line) = (caller.function, caller.file, caller.line);
    }
    symbol
}

/// Folders in which compilers and package managers of C, C++, Rust and Go keep library sources.
const LIBRARY_SOURCES: [&str; 12] = [
    "/usr/include/",
    "/usr/local/include/",
    "/usr/lib/",
    "/usr/src/",
    "/rustc/",
    "/rust/deps/",
    "/usr/local/go/src/",
    "/.cargo/registry/",
    "/.cargo/git/",
    "/.rustup/toolchains/",
    "/go/pkg/mod/",
    "/lib/rustlib/src/",
];

pub(crate) fn is_library_source(file: &str) -> bool {
    LIBRARY_SOURCES.iter().any(|folder| match folder {
        // Below any home folder.
        folder if folder.starts_with("/.") || *folder == "/go/pkg/mod/" => file.contains(folder),
        folder => file.starts_with(folder),
    })
}

/// Minimum share of the sort order, in per cent, for which the dynamic loader and startup get rows
/// of their own. Below it, these rows would only displace the program's code.
pub const STARTUP_MATTERS_PERCENT: u64 = 10;

/// Name of the row for the dynamic loader and startup.
pub const STARTUP: &str = "[dynamic loader and startup]";

fn is_startup(name: &Name) -> bool {
    is_startup_code(&name.module, &name.function)
}

/// True for code that runs before `main`: glibc's dynamic loader and the callers of `main`, also in
/// Go.
pub fn is_startup_code(module: &str, function: &str) -> bool {
    let module = crate::file_name(module);
    // musl's dynamic loader is its libc, so it does not count as startup.
    let is_loader = module.starts_with("ld-linux")
        || module
            .strip_prefix("ld-")
            .is_some_and(|rest| rest.starts_with("2."));
    is_loader
        || function.starts_with("_rt0_")
        || matches!(
            function,
            "_start"
                | "_init"
                | "call_init"
                | "frame_dummy"
                | "__libc_start_main"
                | "__libc_start_main_impl"
                | "__libc_start_call_main"
                | "__libc_csu_init"
                | "__libc_early_init"
        )
}

/// Symbol of a location.
pub(crate) fn place_symbol(
    symbols: &mut dyn Resolve,
    spaces: &AddressSpaces,
    (id, offset): CodeLocation,
) -> Option<Symbol> {
    let known = is_file(spaces.path(id)).then(|| symbols.resolve(spaces.file(id), offset));
    let generated = || spaces.generated_name(id, offset).map(of_generated);
    known.flatten().or_else(generated)
}

/// Path of the file that contains a location.
pub(crate) fn module_of(spaces: &AddressSpaces, (id, offset): CodeLocation) -> &str {
    let generated = spaces.generated_name(id, offset);
    let module = generated.map_or("", |known| known.module.as_str());
    if module.is_empty() {
        spaces.path(id)
    } else {
        module
    }
}

/// True if all code of a module counts as one location.
fn is_one_place(module: &str) -> bool {
    module == JIT || module == UNKNOWN
}

/// Converts the name of JIT-compiled code to a symbol.
fn of_generated(known: &GeneratedName) -> Symbol {
    Symbol {
        name: known.name.clone(),
        file: Some(known.file.clone()).filter(|file| !file.is_empty()),
        line: known.line,
        ..Symbol::default()
    }
}

fn line_name(function: Name, symbol: Option<Symbol>, offset: Option<u64>) -> Name {
    let symbol = symbol.unwrap_or_default();
    let (file, line) = (symbol.file, symbol.line);
    let offset = offset.filter(|_| file.is_none());
    Name {
        line: line.filter(|_| file.is_some()),
        file,
        offset,
        inlined_into: symbol.inlined_into,
        ..function
    }
}

/// Name of code without a symbol.
pub(crate) fn without_symbol(path: &str) -> String {
    match is_file(path) {
        true => format!("{} [no symbols]", crate::file_name(path)),
        false => path.to_owned(),
    }
}

#[derive(Default)]
struct RowSums {
    tally: EventSums,
    samples: SampleCount,
    /// Values by group of cache sets with `--sets`.
    by_set: GroupSums,
}

#[derive(Default)]
struct GroupedRows {
    rows: BTreeMap<Name, RowSums>,
    skipped: EventSums,
    skipped_places: u64,
}

impl GroupedRows {
    fn add(
        &mut self,
        name: Name,
        tally: &EventSums,
        samples: SampleCount,
        by_set: Option<&GroupSums>,
    ) {
        let row = self.rows.entry(name).or_default();
        row.tally.add_all(tally);
        row.samples.add(samples);
        if let Some(by_set) = by_set {
            row.by_set.add_all(by_set);
        }
    }

    fn skip(&mut self, tally: &EventSums) {
        self.skipped.add_all(tally);
        self.skipped_places += 1;
    }

    /// Sums the rows of the dynamic loader and startup unless they matter.
    fn fold_startup(&mut self, rank: &Rank, sites: &SiteTotals) {
        let rows = self.rows.iter().filter(|(name, _)| is_startup(name));
        let value: u64 = rows.map(|(_, row)| row.tally.sum(&rank.events)).sum();
        let total = sites.totals.sum(&rank.events);
        if total == 0 || value.saturating_mul(100) >= total.saturating_mul(STARTUP_MATTERS_PERCENT)
        {
            return;
        }
        let folded: Vec<Name> = self
            .rows
            .keys()
            .filter(|n| is_startup(n))
            .cloned()
            .collect();
        if folded.len() < 2 {
            return;
        }
        let mut startup = RowSums::default();
        for row in folded.iter().filter_map(|name| self.rows.remove(name)) {
            startup.tally.add_all(&row.tally);
            startup.samples.add(row.samples);
            startup.by_set.add_all(&row.by_set);
        }
        let name = Name {
            function: STARTUP.to_owned(),
            ..Name::default()
        };
        self.rows.insert(name, startup);
    }

    /// Builds a table. `all` has the modelled groups of cache sets and their sums over all
    /// locations.
    fn table(
        self,
        names: &EventNames,
        rank: &Rank,
        sites: &SiteTotals,
        all: Option<&(FollowedGroups, GroupSums)>,
        limits: TableLimits,
    ) -> HotTable {
        let total = sites.totals.sum(&rank.events);
        let value = |tally: &EventSums| tally.sum(&rank.events);
        let mut rows: Vec<_> = self.rows.into_iter().collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(value(&row.tally)));
        let sums = SORT_SUMS.map(|events| move |(_, row): &(Name, RowSums)| row.tally.sum(events));
        let numbers = sums.each_ref().map(|sum| sum as &dyn Fn(&_) -> u64);
        let numbers = if limits.every_order {
            &numbers[..]
        } else {
            &[]
        };
        let rows = listed::split(rows, limits.rows, numbers);
        let mut rest = self.skipped;
        rows.others
            .iter()
            .for_each(|(_, row)| rest.add_all(&row.tally));
        HotTable {
            rank: rank.name.clone(),
            total,
            samples: sites.sampled,
            others: OtherRows {
                rows: rows.others.len() as u64,
                unresolved_places: self.skipped_places,
                counts: rest.named(names),
                value: value(&rest),
                share: ratio(value(&rest), total),
            },
            first_by_each: limits.every_order.then_some(limits.rows as u64),
            rows: rows
                .listed
                .into_iter()
                .map(|(name, sums)| {
                    let row = row(name, &sums.tally, value(&sums.tally), total, names);
                    match (sites.sampled, all) {
                        (Some(_), _) => estimated(row, sums.samples, sites.effective_samples),
                        (None, Some(all)) => of_some_sets(row, &sums.by_set, all, rank, names),
                        (None, None) => row,
                    }
                })
                .collect(),
        }
    }
}

fn row(name: Name, tally: &EventSums, value: u64, total: u64, names: &EventNames) -> HotRow {
    HotRow {
        function: name.function,
        inlined_into: name.inlined_into,
        module: name.module,
        file: name.file,
        line: name.line,
        offset: name.offset,
        counts: tally.named(names),
        value,
        value_low: None,
        value_high: None,
        intervals: BTreeMap::new(),
        share: ratio(value, total),
        samples: None,
        samples_with_address: None,
        share_low: None,
        share_high: None,
    }
}

/// Adds intervals to a row that was estimated from some groups of cache sets. Only events of cache
/// lines are estimated. An event without parts by group was counted exactly.
fn of_some_sets(
    row: HotRow,
    by_set: &GroupSums,
    (followed, all): &(FollowedGroups, GroupSums),
    rank: &Rank,
    names: &EventNames,
) -> HotRow {
    let events: BTreeSet<EventId> = by_set.iter().map(|((event, _), _)| event).collect();
    let interval = |event: EventId| {
        let parts = by_set.by_group(&[event]);
        let interval = followed.of_event(event).interval(&parts, unit_of(event));
        (names.name(event), interval)
    };
    let whole = all.by_group(&rank.events);
    let first = rank.events.first();
    let unit = first.map_or(1, |&event| unit_of(event));
    let parts = by_set.by_group(&rank.events);
    let followed = first.map_or(*followed, |&event| followed.of_event(event));
    let is_estimated = !whole.is_empty();
    let value = is_estimated.then(|| followed.interval(&parts, unit));
    let share = followed.share(&parts, &whole, unit);
    HotRow {
        value_low: value.map(|interval| interval.low),
        value_high: value.map(|interval| interval.high),
        intervals: events.into_iter().map(interval).collect(),
        share_low: share.map(|ends| ends.0),
        share_high: share.map(|ends| ends.1),
        ..row
    }
}

/// Amount that one event of a line adds.
fn unit_of(event: EventId) -> u64 {
    match Rank::dram_bytes().events.contains(&event) {
        true => LINE_BYTES,
        false => 1,
    }
}

/// Adds an interval to a row with `samples` samples that are as precise as `effective_samples` independent
/// ones.
fn estimated(row: HotRow, samples: SampleCount, effective_samples: u64) -> HotRow {
    let interval = row
        .share
        .and_then(|share| wilson_95(share, effective_samples));
    HotRow {
        samples: Some(samples.samples),
        samples_with_address: Some(samples.with_address),
        share_low: interval.map(|i| i.0),
        share_high: interval.map(|i| i.1),
        ..row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Analysis;
    use crate::code::address_spaces::AddressSpaces;
    use crate::code::address_spaces::tests::{code, spaces};
    use crate::code::sites::Sites;
    use crate::resolve::ModuleFile;
    use memgauge_trace::catalogue::{
        CYCLES, DRAM_READ_BYTES, DRAM_WRITE_BYTES, INSTRUCTIONS, L1D_MISS, LLC_MISS,
    };
    use memgauge_trace::{Pid, SetsFacts, SiteCount, VirtAddr};

    fn followed(one_in: u32) -> SetsFacts {
        SetsFacts {
            one_in,
            ..SetsFacts::default()
        }
    }

    /// Every 0x100 bytes of `/bin/p` is a function, every 0x10 a line.
    struct Fake(u64);

    impl Resolve for Fake {
        fn resolve(&mut self, module: &ModuleFile, offset: u64) -> Option<Symbol> {
            self.0 += 1;
            (module.path == "/bin/p").then(|| Symbol {
                name: format!("f{}", offset / 0x100),
                file: (offset < 0x200).then(|| "/src/p.c".to_owned()),
                line: Some((offset / 0x10) as u32),
                inlined_into: Vec::new(),
            })
        }

        fn resolve_data(&mut self, _: &ModuleFile, _: u64) -> Option<String> {
            None
        }
    }

    fn mapped() -> AddressSpaces {
        spaces(&[
            code(0, 0x1000, 0x2000, "/bin/p"),
            code(0, 0x5000, 0x6000, "/lib/libz.so.1"),
            code(0, 0x8000, 0x9000, "[anon]"),
        ])
    }

    fn site(ip: u64, event: EventId, count: u64) -> SiteCount {
        SiteCount {
            pid: Pid(1),
            ip: VirtAddr(ip),
            event,
            count,
            set_group: None,
            code_ns: None,
        }
    }

    fn tables(sites: &[SiteCount], rank: &Rank, limits: TableLimits) -> (HotTables, u64) {
        let mapped = mapped();
        let mut analysis = Sites::new(&mapped);
        analysis.observe(sites);
        let mut symbols = Fake(0);
        let names = EventNames::default();
        let tables = hot_tables(&analysis.finish(), &mut symbols, &names, rank, limits);
        (tables, symbols.0)
    }

    fn misses() -> Rank {
        Rank::event(LLC_MISS, &EventNames::default())
    }

    fn inlined(frames: &[(&str, &str)]) -> Symbol {
        let mut frames = frames.iter().map(|&(function, file)| Caller {
            function: function.to_owned(),
            file: Some(file.to_owned()),
            line: Some(file.len() as u32),
        });
        let first = frames.next().expect("a frame");
        Symbol {
            name: first.function,
            file: first.file,
            line: first.line,
            inlined_into: frames.collect(),
        }
    }

    #[test]
    fn inlined_library_code_counts_for_the_code_that_uses_it() {
        const MAP: &str = "/usr/include/c++/12/bits/hashtable.h";
        const CORE: &str = "/rustc/9fc6b431/library/core/src/slice/mod.rs";
        const CRATE: &str = "/home/u/.cargo/registry/src/index.crates.io-6f17/hash-1.0/src/lib.rs";
        const GO: &str = "/usr/local/go/src/sort/sort.go";
        for library in [MAP, CORE, CRATE, GO] {
            let symbol = inlined(&[
                ("probe", library),
                ("find", library),
                ("lookups", "/p.cc"),
                ("main", "/p.cc"),
            ]);
            let user = in_user_code(symbol);
            assert_eq!(
                (user.name.as_str(), user.file.as_deref()),
                ("lookups", Some("/p.cc"))
            );
            assert_eq!(user.inlined_into.len(), 1, "{library}");
            // Not inlined into the user's code: the function that it calls.
            let user = in_user_code(inlined(&[("fill", library), ("resize", library)]));
            assert_eq!((user.name.as_str(), user.inlined_into.len()), ("resize", 0));
        }
        // Code of the user's own headers keeps its place.
        let symbol = inlined(&[("dot", "/home/u/p/vec.h"), ("main", "/home/u/p/p.cc")]);
        assert_eq!(in_user_code(symbol.clone()), symbol);
    }

    /// Rows of the loader with these many misses, beside a function of the program.
    fn with_startup(loader: [u64; 2], program: u64) -> Vec<(String, u64)> {
        let name = |function: &str, module: &str| Name {
            function: function.to_owned(),
            module: module.to_owned(),
            ..Name::default()
        };
        let mapped = mapped();
        let mut analysis = Sites::new(&mapped);
        let total = loader.iter().sum::<u64>() + program;
        analysis.observe(&[site(0x1000, LLC_MISS, total)]);
        let sites = analysis.finish();
        let mut groups = GroupedRows::default();
        for (name, misses) in [
            (
                name("do_lookup_x", "/lib64/ld-linux-x86-64.so.2"),
                loader[0],
            ),
            (name("_start", "/bin/p"), loader[1]),
            (name("work", "/bin/p"), program),
        ] {
            let mut tally = EventSums::default();
            tally.add(LLC_MISS, misses);
            groups.add(name, &tally, SampleCount::default(), None);
        }
        groups.fold_startup(&misses(), &sites);
        let limits = TableLimits::default();
        let table = groups.table(&EventNames::default(), &misses(), &sites, None, limits);
        let rows = table.rows.into_iter();
        rows.map(|row| (row.function, row.value)).collect()
    }

    #[test]
    fn startup_is_one_row_unless_it_matters() {
        let row = |name: &str, value| (name.to_owned(), value);
        assert_eq!(
            with_startup([50, 49], 901),
            [row("work", 901), row(STARTUP, 99)]
        );
        assert_eq!(
            with_startup([51, 49], 900),
            [row("work", 900), row("do_lookup_x", 51), row("_start", 49)]
        );
    }

    fn functions(table: &HotTable) -> Vec<(&str, u64)> {
        let rows = table.rows.iter();
        rows.map(|r| (r.function.as_str(), r.value)).collect()
    }

    const SITES: &[(u64, u64)] = &[
        (0x1010, 10),
        (0x1018, 5),
        (0x1020, 7),
        (0x1100, 22),
        (0x1210, 3),
        (0x5004, 30),
        (0x5008, 1),
        (0x8000, 4),
        (0x8800, 4),
        (0xf000, 2),
    ];

    fn sites() -> Vec<SiteCount> {
        let rows = SITES.iter();
        rows.map(|&(ip, n)| site(ip, LLC_MISS, n)).collect()
    }

    /// In each group, the function at 0x1000 has a ninth of the misses of the one at 0x1100. The
    /// one at 0x1200 has misses in one group only. Instructions were counted completely.
    #[test]
    fn rows_of_some_sets_have_the_interval_of_their_groups() {
        let mapped = mapped();
        let mut analysis = Sites::new(&mapped);
        let mut other = Sites::new(&mapped);
        for group in (3..64).step_by(8) {
            let of = |ip, count| SiteCount {
                set_group: Some(group),
                ..site(ip, LLC_MISS, count)
            };
            analysis.observe(&[of(0x1010, 50_000), of(0x1020, 50_000)]);
            other.observe(&[of(0x1100, 900_000)]);
            let of_one = if group == 11 { 800_000 } else { 0 };
            other.observe(&[of(0x1210, of_one)]);
        }
        analysis.observe(&[site(0x1010, INSTRUCTIONS, 77)]);
        analysis.merge(other);
        let names = EventNames::default();
        let sites = analysis.finish().with_sets(Some(&followed(8)));
        let limits = TableLimits::default();
        let tables = hot_tables(&sites, &mut Fake(0), &names, &misses(), limits);
        let row = |name: &str| {
            let mut rows = tables.functions.rows.iter();
            rows.find(|row| row.function == name).unwrap()
        };
        let (even, one) = (row("f0"), row("f2"));
        assert_eq!((row("f0").value, row("f1").value), (800_000, 7_200_000));
        assert_eq!(one.value, 800_000);
        let width = |row: &HotRow| row.value_high.unwrap() - row.value_low.unwrap();
        assert!(width(even) < 20_000, "{even:?}");
        assert_eq!(one.value_low, Some(100_000), "what was seen");
        assert!(one.value_high.unwrap() > 2_000_000, "{one:?}");
        let ends = |row: &HotRow| row.share_low.unwrap()..row.share_high.unwrap();
        assert!(ends(even).contains(&(1.0 / 11.0)), "{even:?}");
        assert!(ends(one).end > 0.2, "{one:?}");
        let intervals: Vec<&str> = even.intervals.keys().map(String::as_str).collect();
        assert_eq!(intervals, ["llc.miss"], "instructions are exact");
        let interval = even.intervals["llc.miss"];
        assert_eq!(Some(interval.low), even.value_low);
        let by_instructions = Rank::event(INSTRUCTIONS, &names);
        let tables = hot_tables(&sites, &mut Fake(0), &names, &by_instructions, limits);
        let row = &tables.functions.rows[0];
        assert_eq!((row.value_low, row.share_low), (None, None));
        let all = sites.with_sets(Some(&followed(1)));
        let tables = hot_tables(&all, &mut Fake(0), &names, &misses(), limits);
        assert_eq!(tables.functions.rows[0].share_low, None);
    }

    #[test]
    fn functions_sum_their_instructions_and_fall_by_rank_then_name() {
        let (tables, _) = tables(&sites(), &misses(), TableLimits::default());
        assert_eq!(
            functions(&tables.functions),
            [
                ("libz.so.1 [no symbols]", 31),
                ("f0", 22),
                ("f1", 22),
                ("[jit]", 8),
                ("f2", 3),
                ("[unknown]", 2),
            ]
        );
        assert_eq!(tables.functions.total, 88);
        assert_eq!(tables.functions.rows[1].share, Some(0.25));
    }

    #[test]
    fn lines_are_by_source_line_else_by_offset() {
        let (tables, _) = tables(&sites(), &misses(), TableLimits::default());
        let seen: Vec<_> = tables
            .lines
            .rows
            .iter()
            .map(|r| (r.file.as_deref(), r.line, r.offset, r.value))
            .collect();
        assert_eq!(
            seen,
            [
                (None, None, Some(4), 30),
                (Some("/src/p.c"), Some(16), None, 22),
                (Some("/src/p.c"), Some(1), None, 15),
                (None, None, None, 8),
                (Some("/src/p.c"), Some(2), None, 7),
                (None, None, Some(0x210), 3),
                (None, None, None, 2),
                (None, None, Some(8), 1),
            ]
        );
    }

    #[test]
    fn rows_not_listed_are_summed_in_the_rest() {
        let limits = TableLimits {
            rows: 2,
            ..TableLimits::default()
        };
        let (tables, _) = tables(&sites(), &misses(), limits);
        assert_eq!(tables.functions.rows.len(), 2);
        assert_eq!(tables.functions.others.rows, 4);
        assert_eq!(tables.functions.others.value, 35);
        assert_eq!(tables.functions.others.counts["llc.miss"], 35);
    }

    #[test]
    fn symbols_are_asked_for_the_hottest_places_only() {
        let limits = TableLimits {
            resolved_places: 2,
            ..TableLimits::default()
        };
        let (tables, asked) = tables(&sites(), &misses(), limits);
        assert_eq!(asked, 2);
        assert_eq!(
            functions(&tables.functions),
            [("libz.so.1 [no symbols]", 30), ("f1", 22)]
        );
        assert_eq!(tables.functions.others.unresolved_places, 7);
        assert_eq!(tables.functions.others.value, 36);
    }

    #[test]
    fn dram_rank_sums_both_directions_and_keeps_every_event() {
        let sites = [
            site(0x1010, DRAM_READ_BYTES, 64),
            site(0x1014, DRAM_WRITE_BYTES, 128),
            site(0x1010, L1D_MISS, 5),
        ];
        let (tables, _) = tables(&sites, &Rank::dram_bytes(), TableLimits::default());
        let row = &tables.functions.rows[0];
        assert_eq!((row.value, row.share), (192, Some(1.0)));
        assert_eq!(row.counts["l1d.miss"], 5);
    }

    #[test]
    fn default_rank_is_the_first_that_happened() {
        let mapped = mapped();
        let names = EventNames::default();
        let rank = |sites: &[SiteCount]| {
            let mut analysis = Sites::new(&mapped);
            analysis.observe(sites);
            Rank::best_of(&analysis.finish(), &names).name
        };
        assert_eq!(rank(&[]), "l1d.miss");
        assert_eq!(rank(&[site(0x1000, LLC_MISS, 1)]), "llc.miss");
        assert_eq!(rank(&[site(0x1000, DRAM_WRITE_BYTES, 64)]), "dram_bytes");
        let cycles = [site(0x1000, DRAM_WRITE_BYTES, 64), site(0x1000, CYCLES, 1)];
        assert_eq!(rank(&cycles), "cycles");
    }

    #[test]
    fn no_sites_give_empty_tables_without_shares() {
        let (tables, _) = tables(&[], &misses(), TableLimits::default());
        assert_eq!(tables.functions.rows, []);
        assert_eq!(tables.functions.others.share, None);
    }
}
