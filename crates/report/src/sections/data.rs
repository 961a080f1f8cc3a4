//! Data that the program waited for, and memory by allocation site.

use std::cmp::Reverse;

use memgauge_analyze::{
    AllocationSite, DataKind, DataPlace, DataTable, HeapUse, SortColumn, Summary,
};

use super::hot::waits_for;
use super::{or_none, plural, provenance, sorted};
use crate::names::readable;
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

const CYCLES: &str = "cycles";
const LLC: &str = "llc.miss";
const ACCESSES: [&str; 2] = ["loads", "stores"];
/// Maximum number of allocation sites.
const SITES: usize = 5;

pub(super) fn data(summary: &Summary, style: &Style) -> String {
    let Some(data) = &summary.data else {
        return String::new();
    };
    let sort = sorted::column(summary, &data.rows);
    let title = match sort {
        Some(column) => format!("Data by {}", sorted::name(column, style)),
        None => "Data by stalled cycles".to_owned(),
    };
    let heading = style.heading(&title, &provenance(summary));
    heading + &table(data, sort, style).draw(style)
}

/// Keys of the columns of [`table`].
const DATA_KEYS: [&str; 6] = [
    "share",
    CYCLES,
    "stalled_cycles",
    LLC,
    "at_peak_bytes",
    "name",
];

fn table(data: &DataTable, sort: Option<&SortColumn>, style: &Style) -> Table {
    // Accesses are counted only if the recording was told to.
    let accesses: &[&str] = match data.totals.contains_key("loads") {
        true => &ACCESSES,
        false => &[],
    };
    let shown: Vec<&str> = DATA_KEYS.iter().chain(accesses).copied().collect();
    let extra = sorted::unless_shown(sort, &shown);
    let mut columns = vec![
        ("share", ColumnKind::Number),
        ("stalled", ColumnKind::Number),
        ("on", ColumnKind::Number),
        ("LLC miss", ColumnKind::Number),
    ];
    columns.extend(accesses.iter().map(|&name| (name, ColumnKind::Number)));
    columns.push(("in use", ColumnKind::Number));
    let title = extra.map(|column| sorted::name(column, style));
    columns.extend(
        title
            .iter()
            .map(|title| (title.as_str(), ColumnKind::Number)),
    );
    columns.push(("data", ColumnKind::Text));
    let mut table = Table::new(&columns);
    for row in data.rows.iter().take(style.rows) {
        let mut cells = vec![or_none(row.share, units::share, style)];
        cells.extend(numbers(accesses, |event| row.counts.get(event).copied()));
        cells.insert(2, waits_for(&row.counts).unwrap_or_default().to_owned());
        cells.push(in_use(row));
        cells.extend(extra.map(|column| sorted::cell(column, row, style)));
        cells.push(style.name(&readable(&row.name)));
        table.row(cells);
    }
    let hidden = data.rows.get(style.rows..).unwrap_or_default();
    let others = data.other_rows + hidden.len() as u64;
    if others > 0 {
        let get = |event: &str| {
            let hidden = hidden.iter().filter_map(|row| row.counts.get(event));
            let others = data.other_counts.get(event);
            Some(hidden.chain(others).sum())
        };
        let share = hidden.iter().filter_map(|row| row.share).sum::<f64>();
        let all = data.totals.get(CYCLES).copied().filter(|&all| all > 0);
        let rest = data.other_counts.get(CYCLES).copied().unwrap_or(0);
        let share = all.map(|all| share + rest as f64 / all as f64);
        let mut cells = vec![or_none(share, units::share, style)];
        cells.extend(numbers(accesses, get));
        cells.insert(2, String::new());
        cells.push(String::new());
        cells.extend(extra.map(|_| String::new()));
        cells.push(format!("{} of other data", plural(others, "piece")));
        table.painted_row(Role::Quiet, cells);
    }
    table
}

fn numbers(accesses: &[&str], get: impl Fn(&str) -> Option<u64>) -> Vec<String> {
    let events = [CYCLES, LLC].into_iter().chain(accesses.iter().copied());
    events
        .map(|event| units::count(get(event).unwrap_or(0)))
        .collect()
}

/// Memory of an allocation site in use at the peak.
fn in_use(row: &DataPlace) -> String {
    let allocation = row.allocation.as_ref();
    let allocation = allocation.filter(|_| row.kind == DataKind::Allocated);
    allocation.map_or_else(String::new, |site| units::bytes(site.at_peak_bytes))
}

pub(super) fn heap(summary: &Summary, style: &Style) -> String {
    let Some(heap) = &summary.heap else {
        return without_functions(summary, style);
    };
    let note = format!(
        "{}, {} not freed{}",
        plural(heap.allocations, "allocation"),
        units::bytes(heap.live_bytes),
        untouched(heap),
    );
    let title = format!(
        "Heap: {} in use at the peak",
        units::bytes(heap.at_peak_bytes)
    );
    let sort = sorted::column(summary, &heap.sites);
    let title = sorted::title(&title, sort, style);
    let order = match sort {
        Some(column) => SiteOrder::Column(column),
        None => SiteOrder::Number(HeapOrder::Peak),
    };
    let sites = sites(heap, order, style.rows_or(SITES), style).draw(style);
    style.heading(&title, &note) + &sites + &resets(summary, style)
}

/// The functions that free arenas, if the user named any.
pub(super) fn resets(summary: &Summary, style: &Style) -> String {
    match &summary.recording.source.settings.resets {
        Some(functions) => style.wrap(
            &format!(
                "What was allocated in an arena is freed by {functions}: lifetimes end there."
            ),
            2,
        ),
        None => String::new(),
    }
}

/// Says how many bytes the program never used, if any.
pub(super) fn untouched(heap: &HeapUse) -> String {
    let bytes = heap.untouched_bytes.filter(|&bytes| bytes > 0);
    bytes.map_or_else(String::new, |bytes| {
        format!(", {} never used", units::bytes(bytes))
    })
}

/// Says why there are no allocations, if no function that allocates was found.
fn without_functions(summary: &Summary, style: &Style) -> String {
    match summary.totals.get("heap.functions") {
        Some(0) => style.heading("Heap: unknown", NO_FUNCTIONS),
        _ => String::new(),
    }
}

/// Such a program has its own allocator or is linked statically.
const NO_FUNCTIONS: &str = "no file of the program has the symbol of a function that allocates, as in \
                            a static program that was stripped; --alloc and --free name others";

/// Number by which allocations are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapOrder {
    /// Bytes in use at the peak.
    Peak,
    /// Requested bytes.
    Bytes,
    /// Number of allocations.
    Allocations,
    /// Bytes that were never freed.
    Unfreed,
    /// Bytes that no access reached.
    Untouched,
}

impl HeapOrder {
    pub(super) fn value(self, site: &AllocationSite) -> u64 {
        match self {
            HeapOrder::Peak => site.at_peak_bytes,
            HeapOrder::Bytes => site.bytes,
            HeapOrder::Allocations => site.allocations,
            HeapOrder::Unfreed => site.live_bytes,
            HeapOrder::Untouched => site.untouched_bytes.unwrap_or(0),
        }
    }
}

/// Order of allocation sites.
#[derive(Clone, Copy)]
pub(super) enum SiteOrder<'a> {
    /// By a number of `memgauge heap`.
    Number(HeapOrder),
    /// By a column. The summary's sites are already in this order.
    Column(&'a SortColumn),
}

/// Keys of the columns of [`sites`].
const SITE_KEYS: [&str; 7] = [
    "at_peak_bytes",
    "live_bytes",
    "untouched_bytes",
    "allocations",
    "bytes",
    "mean_lifetime_ns",
    "name",
];

/// Table of at most `limit` allocation sites.
pub(super) fn sites(heap: &HeapUse, order: SiteOrder<'_>, limit: usize, style: &Style) -> Table {
    let sort = match order {
        SiteOrder::Number(_) => None,
        SiteOrder::Column(column) => Some(column),
    };
    let extra = sorted::unless_shown(sort, &SITE_KEYS);
    let knows_untouched = heap.untouched_bytes.is_some();
    let mut columns = vec![
        ("at peak", ColumnKind::Number),
        ("not freed", ColumnKind::Number),
        ("allocations", ColumnKind::Number),
        ("bytes", ColumnKind::Number),
        ("lifetime", ColumnKind::Number),
    ];
    let title = extra.map(|column| sorted::name(column, style));
    columns.extend(
        title
            .iter()
            .map(|title| (title.as_str(), ColumnKind::Number)),
    );
    columns.push(("allocated by", ColumnKind::Text));
    let is_sampled = heap.errors.is_some();
    if knows_untouched {
        columns.insert(2, ("not used", ColumnKind::Number));
    }
    if is_sampled {
        columns.insert(
            1,
            (if style.unicode { "±" } else { "+-" }, ColumnKind::Number),
        );
    }
    let mut table = Table::new(&columns);
    let lifetime = |site: &AllocationSite| {
        site.mean_lifetime_ns
            .map(|ns| units::nanoseconds(ns as u64, style))
    };
    let mut sites: Vec<&AllocationSite> = heap.sites.iter().collect();
    if let SiteOrder::Number(order) = order {
        // Stable, so that equal sites keep their order by the peak.
        sites.sort_by_key(|site| Reverse(order.value(site)));
    }
    let hidden = sites.split_off(limit.min(sites.len()));
    for site in sites {
        let mut cells = vec![
            units::bytes(site.at_peak_bytes),
            units::bytes(site.live_bytes),
            units::count(site.allocations),
            units::bytes(site.bytes),
            lifetime(site).unwrap_or_else(|| style.none().to_owned()),
        ];
        cells.extend(extra.map(|column| sorted::cell(column, site, style)));
        cells.push(style.name(&readable(&site.name)));
        if knows_untouched {
            let untouched = site.untouched_bytes.map(units::bytes);
            cells.insert(2, untouched.unwrap_or_else(|| style.none().to_owned()));
        }
        if is_sampled {
            let error = site.errors.unwrap_or_default().at_peak_bytes;
            cells.insert(1, units::bytes(error));
        }
        table.row(cells);
    }
    let others = heap.other_sites + hidden.len() as u64;
    if others > 0 {
        let at_peak: u64 = hidden.iter().map(|site| site.at_peak_bytes).sum();
        let mut cells = vec![units::bytes(at_peak + heap.other_at_peak_bytes)];
        cells.extend(std::iter::repeat_n(String::new(), columns.len() - 2));
        cells.push(plural(others, "other place"));
        table.painted_row(Role::Quiet, cells);
    }
    table
}
