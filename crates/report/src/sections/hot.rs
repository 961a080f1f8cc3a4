//! The hottest functions and source lines.

use std::collections::BTreeSet;

use memgauge_analyze::{Counts, HotRow, HotTable, SortColumn, Summary, TimeUse, file_name};
use memgauge_trace::{Unit, catalogue};

use super::{event_title, has_every, of_samples, or_none, plural, provenance, sorted};
use crate::names::{chain, readable};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

const READ: &str = "dram.read_bytes";
const WRITE: &str = "dram.write_bytes";
const LLC: &str = "llc.miss";
const L1D: &str = "l1d.miss";
const CYCLES: &str = "cycles";

pub(super) fn functions(summary: &Summary, style: &Style) -> String {
    let table = CodeTable {
        title: "functions",
        what: "function",
        names: [("function", ColumnKind::Text), ("module", ColumnKind::Text)],
        name: |row, style| [style.name(&function(row)), style.name(module(row))],
    };
    table.draw(&summary.hot.functions, summary, style)
}

pub(super) fn lines(summary: &Summary, style: &Style) -> String {
    let table = CodeTable {
        title: "source lines",
        what: "line",
        names: [("line", ColumnKind::Path), ("function", ColumnKind::Text)],
        name: |row, style| [style.name(&location(row)), style.name(&function(row))],
    };
    table.draw(&summary.hot.lines, summary, style)
}

/// For samples only, since exact sums by instruction would repeat the lines.
pub(super) fn instructions(summary: &Summary, style: &Style) -> String {
    let hot = &summary.hot.instructions;
    if hot.samples.is_none() {
        return String::new();
    }
    let table = CodeTable {
        title: "instructions",
        what: "instruction",
        names: [
            ("place", ColumnKind::Path),
            ("function and line", ColumnKind::Text),
        ],
        name: |row, style| [style.name(&place(row)), style.name(&function_and_line(row))],
    };
    table.draw(hot, summary, style)
}

fn place(row: &HotRow) -> String {
    let module = file_name(&row.module);
    row.offset.map_or_else(
        || module.to_owned(),
        |offset| format!("{module}+{offset:#x}"),
    )
}

fn function_and_line(row: &HotRow) -> String {
    match (&row.file, row.line) {
        (Some(file), Some(line)) => {
            format!("{}, {}:{line}", readable(&row.function), file_name(file))
        }
        _ => readable(&row.function),
    }
}

fn function(row: &HotRow) -> String {
    chain(&row.function, &row.inlined_into)
}

/// File name of the module, unless the function column already has it.
fn module(row: &HotRow) -> &str {
    let named = row.function != row.module;
    if named { file_name(&row.module) } else { "" }
}

fn location(row: &HotRow) -> String {
    match (&row.file, row.line, row.offset) {
        (Some(file), Some(line), _) => format!("{file}:{line}"),
        (Some(file), None, _) => file.clone(),
        (None, _, Some(offset)) => format!("{}+{offset:#x}", file_name(&row.module)),
        (None, _, None) => file_name(&row.module).to_owned(),
    }
}

/// Options for showing a table of code.
struct CodeTable {
    title: &'static str,
    what: &'static str,
    names: [(&'static str, ColumnKind); 2],
    name: fn(&HotRow, &Style) -> [String; 2],
}

impl CodeTable {
    fn draw(&self, hot: &HotTable, summary: &Summary, style: &Style) -> String {
        let rank = style.name(&sorted::rank_name(&hot.rank));
        let sort = sorted::column(summary, &hot.rows);
        let title = match sort {
            Some(column) => format!(
                "{} by {}",
                capitalised(self.title),
                sorted::name(column, style)
            ),
            None => format!("Hottest {} by {rank}", self.title),
        };
        // The share may be of another event than the sorted one.
        let of_rank = match sort {
            Some(_) => format!("share of {rank}; "),
            None => String::new(),
        };
        if let Some(n) = hot.samples {
            let every = has_every(summary, &hot.rank);
            let is_of = if every { "counted" } else { "estimated" };
            let note = format!("{of_rank}{}; {is_of}", of_samples(every, n));
            return style.heading(&title, &note)
                + &self.sampled(hot, every, sort, style).draw(style);
        }
        let heading = style.heading(&title, &format!("{of_rank}{}", provenance(summary)));
        if hot.total == 0 {
            return format!("{heading}  no {rank} at any place in the code\n");
        }
        heading + &self.table(hot, &rank, sort, style).draw(style)
    }

    fn table(&self, hot: &HotTable, rank: &str, sort: Option<&SortColumn>, style: &Style) -> Table {
        let own_column = !["dram_bytes", LLC, L1D, CYCLES].contains(&hot.rank.as_str());
        let own = |value| own_column.then_some(value);
        let mut columns = CodeColumn::known_in(hot);
        let sorted_by = sort.and_then(|column| CodeColumn::sorted_by(column.key(), hot));
        columns.extend(sorted_by.filter(|column| !columns.contains(column)));
        let is_estimated = hot.rows.iter().any(|row| row.share_low.is_some());
        let ends = |ends: String| is_estimated.then_some(ends);
        let mut table = self.titles(own_column.then_some(rank), is_estimated, &columns);
        for row in shown_rows(hot, sort, style) {
            let mut cells = vec![or_none(row.share, units::share, style)];
            cells.extend(ends(interval(row.share_low, row.share_high, style)));
            cells.extend(numbers(own(row.value), &row.counts, &columns));
            cells.extend((self.name)(row, style));
            table.row(cells);
        }
        let rest = HiddenRows::of(hot, style);
        if rest.is_shown(sort) {
            let mut cells = vec![or_none(rest.share, units::share, style)];
            cells.extend(ends(String::new()));
            cells.extend(own(rest.value).map(|_| or_none(rest.share, units::share, style)));
            let totals = totals(hot);
            cells.extend(
                columns
                    .iter()
                    .map(|column| column.share(&rest.counts, &totals)),
            );
            cells.extend([rest.words(self.what), String::new()]);
            table.painted_row(Role::Quiet, cells);
        }
        table
    }

    /// Estimates with their intervals, then the other events. If every event was recorded, nothing
    /// is estimated, and the number of samples equals that of events.
    fn sampled(
        &self,
        hot: &HotTable,
        every: bool,
        sort: Option<&SortColumn>,
        style: &Style,
    ) -> Table {
        let others = other_events(hot, sort);
        let titles: Vec<String> = others.iter().map(|name| event_title(name, style)).collect();
        let mut columns = vec![("share", ColumnKind::Number)];
        if !every {
            columns.extend([
                ("95 % interval", ColumnKind::Number),
                ("n", ColumnKind::Number),
            ]);
        }
        columns.push((events_title(&hot.rank), ColumnKind::Number));
        columns.extend(
            titles
                .iter()
                .map(|title| (title.as_str(), ColumnKind::Number)),
        );
        columns.extend(self.names);
        let mut table = Table::new(&columns);
        for row in shown_rows(hot, sort, style) {
            let mut cells = vec![or_none(row.share, units::share, style)];
            if !every {
                cells.push(interval(row.share_low, row.share_high, style));
                cells.push(or_none(row.samples, units::count, style));
            }
            cells.push(units::events(&hot.rank, row.value, style));
            cells.extend(others.iter().map(|name| estimate(&row.counts, name, style)));
            cells.extend((self.name)(row, style));
            table.row(cells);
        }
        let rest = HiddenRows::of(hot, style);
        if rest.is_shown(sort) {
            let mut cells = vec![or_none(rest.share, units::share, style)];
            if !every {
                cells.extend([String::new(), String::new()]);
            }
            cells.push(or_none(rest.share, units::share, style));
            let totals = totals(hot);
            let share = |name| or_none(part_of(&rest.counts, &totals, name), units::share, style);
            cells.extend(others.iter().map(|name| share(name)));
            cells.extend([rest.words(self.what), String::new()]);
            table.painted_row(Role::Quiet, cells);
        }
        table
    }

    fn titles(&self, rank: Option<&str>, is_estimated: bool, columns: &[CodeColumn<'_>]) -> Table {
        let mut titles = vec![("share", ColumnKind::Number)];
        titles.extend(is_estimated.then_some(("95 % interval", ColumnKind::Number)));
        titles.extend(rank.map(|rank| (rank, ColumnKind::Number)));
        titles.extend(
            columns
                .iter()
                .map(|column| (column.title(), ColumnKind::Number)),
        );
        titles.extend(self.names);
        Table::new(&titles)
    }
}

/// Rows to show. Rows that lack the table's own event are left out, unless the table has another
/// order.
fn shown_rows<'a>(
    hot: &'a HotTable,
    sort: Option<&SortColumn>,
    style: &Style,
) -> impl Iterator<Item = &'a HotRow> {
    let is_sorted = sort.is_some();
    let rows = hot.rows.iter().take(style.rows);
    rows.filter(move |row| is_sorted || row.value > 0)
}

fn capitalised(title: &str) -> String {
    let (first, rest) = title.split_at(1);
    first.to_uppercase() + rest
}

/// A column besides the sort order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CodeColumn<'a> {
    Cycles,
    /// Share of the cycles that stalled.
    Stalled,
    /// Main reason of the stalled cycles.
    WaitsFor,
    Dram,
    Llc,
    L1d,
    /// Another event, by which the table is sorted.
    Event(&'a str),
}

impl<'a> CodeColumn<'a> {
    /// Columns for which the table has counts. An import may lack some.
    fn known_in(hot: &HotTable) -> Vec<CodeColumn<'a>> {
        let rows = hot.rows.iter().map(|row| &row.counts);
        let all: Vec<&Counts> = rows.chain([&hot.others.counts]).collect();
        // If time is known, its use matters more than the bytes moved.
        let mut columns = match hot.rank == CYCLES {
            true => vec![
                CodeColumn::Cycles,
                CodeColumn::Stalled,
                CodeColumn::WaitsFor,
                CodeColumn::L1d,
                CodeColumn::Llc,
            ],
            false => vec![CodeColumn::Dram, CodeColumn::Llc, CodeColumn::L1d],
        };
        columns.retain(|column| all.iter().any(|counts| column.of(counts).is_some()));
        columns
    }

    /// The column of the sort key. `None` if the table always shows it.
    fn sorted_by(key: &'a str, hot: &HotTable) -> Option<CodeColumn<'a>> {
        Some(match key {
            "stalled_cycles" => CodeColumn::Stalled,
            "dram_bytes" => CodeColumn::Dram,
            CYCLES => CodeColumn::Cycles,
            LLC => CodeColumn::Llc,
            L1D => CodeColumn::L1d,
            // The table's order has a column already.
            event if event == hot.rank => return None,
            event => {
                let mut rows = hot.rows.iter();
                rows.find(|row| row.counts.contains_key(event))?;
                CodeColumn::Event(event)
            }
        })
    }

    fn title(self) -> &'a str {
        match self {
            CodeColumn::Cycles => "cycles",
            CodeColumn::Stalled => "stalled",
            CodeColumn::WaitsFor => "on",
            CodeColumn::Dram => "DRAM",
            CodeColumn::Llc => "LLC miss",
            CodeColumn::L1d => "L1D miss",
            CodeColumn::Event(event) => event,
        }
    }

    fn of(self, counts: &Counts) -> Option<u64> {
        let get = |name: &str| counts.get(name).copied();
        match self {
            CodeColumn::Dram => match (get(READ), get(WRITE)) {
                (None, None) => None,
                (read, write) => Some(read.unwrap_or(0).saturating_add(write.unwrap_or(0))),
            },
            CodeColumn::Cycles => get(CYCLES),
            CodeColumn::Stalled | CodeColumn::WaitsFor => get(CYCLES).and(stalled(counts)),
            CodeColumn::Llc => get(LLC),
            CodeColumn::L1d => get(L1D),
            CodeColumn::Event(event) => get(event),
        }
    }

    /// Share of the column's total. A column without a sum shows the row's own text.
    fn share(self, counts: &Counts, totals: &Counts) -> String {
        match (self, self.of(totals)) {
            (CodeColumn::Stalled | CodeColumn::WaitsFor, _) => self.cell(counts),
            (_, Some(total)) if total > 0 => {
                units::share(self.of(counts).unwrap_or(0) as f64 / total as f64)
            }
            _ => String::new(),
        }
    }

    fn cell(self, counts: &Counts) -> String {
        let value = self.of(counts).unwrap_or(0);
        match self {
            CodeColumn::Dram => units::bytes(value),
            CodeColumn::Stalled => match counts.get(CYCLES) {
                Some(&cycles) if cycles > 0 => units::share(value as f64 / cycles as f64),
                _ => String::new(),
            },
            CodeColumn::WaitsFor => waits_for(counts).unwrap_or_default().to_owned(),
            CodeColumn::Event(event) if Unit::of_event(event) == Unit::Bytes => units::bytes(value),
            CodeColumn::Cycles | CodeColumn::Llc | CodeColumn::L1d | CodeColumn::Event(_) => {
                units::count(value)
            }
        }
    }
}

/// Count of every event over all rows of a table.
fn totals(hot: &HotTable) -> Counts {
    let mut totals = hot.others.counts.clone();
    for (event, n) in hot.rows.iter().flat_map(|row| &row.counts) {
        let sum = totals.entry(event.clone()).or_default();
        *sum = sum.saturating_add(*n);
    }
    totals
}

/// Share of an event's total. `None` if nothing was counted.
fn part_of(counts: &Counts, totals: &Counts, event: &str) -> Option<f64> {
    let total = totals.get(event).copied().filter(|&total| total > 0)?;
    Some(counts.get(event).copied().unwrap_or(0) as f64 / total as f64)
}

/// Stalled cycles of a row.
fn stalled(counts: &Counts) -> Option<u64> {
    stalls(counts)
        .map(|(_, cycles)| cycles)
        .reduce(u64::saturating_add)
}

/// Main reason of a row's stalled cycles, if these are at least 1 % of its cycles.
pub(super) fn waits_for(counts: &Counts) -> Option<&'static str> {
    let cycles = *counts.get(CYCLES)?;
    stalled(counts).filter(|stalled| stalled * 100 >= cycles)?;
    let (reason, _) = stalls(counts).max_by_key(|&(_, cycles)| cycles)?;
    Some(match reason {
        TimeUse::Work => "work",
        TimeUse::L2 => "L2",
        TimeUse::Llc => "LLC",
        TimeUse::Dram => "DRAM",
        TimeUse::Queue => "queue",
        TimeUse::Tlb => "TLB",
        TimeUse::Stores => "stores",
        TimeUse::Sharing => "sharing",
    })
}

/// Stalled cycles by what the thread waits for.
fn stalls(counts: &Counts) -> impl Iterator<Item = (TimeUse, u64)> {
    catalogue::STALLS.into_iter().filter_map(|event| {
        let cycles = counts.get(catalogue::name(event)?)?;
        Some((TimeUse::of_stall(event)?, *cycles))
    })
}

/// Maximum number of further events with columns.
const OTHERS: usize = 2;

fn other_events(hot: &HotTable, sort: Option<&SortColumn>) -> Vec<String> {
    let counts = hot.rows.iter().map(|row| &row.counts);
    let names = counts.chain([&hot.others.counts]).flat_map(|c| c.keys());
    let others: BTreeSet<&String> = names.filter(|name| **name != hot.rank).collect();
    let is_sorted = |name: &&&String| sort.is_some_and(|column| column.key() == name.as_str());
    let sorted = others.iter().find(is_sorted).copied();
    let rest = others.iter().copied().filter(|name| Some(*name) != sorted);
    sorted
        .into_iter()
        .chain(rest)
        .take(OTHERS)
        .cloned()
        .collect()
}

fn estimate(counts: &Counts, name: &str, style: &Style) -> String {
    units::events(name, counts.get(name).copied().unwrap_or(0), style)
}

/// Column title for the sums of an event.
pub(super) fn events_title(event: &str) -> &'static str {
    if units::is_clock(event) {
        "time"
    } else {
        "events"
    }
}

fn interval(low: Option<f64>, high: Option<f64>, style: &Style) -> String {
    let percent = |ratio: f64| format!("{:.1}", ratio * 100.0);
    match low.zip(high) {
        Some((low, high)) => format!("{}{}{} %", percent(low), style.dash(), percent(high)),
        None => style.none().to_owned(),
    }
}

fn numbers(value: Option<u64>, counts: &Counts, columns: &[CodeColumn<'_>]) -> Vec<String> {
    let mut cells: Vec<String> = value.map(units::count).into_iter().collect();
    cells.extend(columns.iter().map(|column| column.cell(counts)));
    cells
}

/// Sums of the rows that are not shown.
struct HiddenRows {
    rows: u64,
    places: u64,
    value: u64,
    share: Option<f64>,
    counts: Counts,
}

impl HiddenRows {
    fn of(hot: &HotTable, style: &Style) -> Self {
        let hidden = hot.rows.get(style.rows..).unwrap_or_default();
        let mut counts = hot.others.counts.clone();
        for (event, n) in hidden.iter().flat_map(|row| &row.counts) {
            let sum = counts.entry(event.clone()).or_default();
            *sum = sum.saturating_add(*n);
        }
        let hidden_value: u64 = hidden.iter().map(|row| row.value).sum();
        let value = hidden_value.saturating_add(hot.others.value);
        HiddenRows {
            rows: hot.others.rows + hidden.len() as u64,
            places: hot.others.unresolved_places,
            value,
            share: (hot.total > 0).then(|| value as f64 / hot.total as f64),
            counts,
        }
    }

    fn is_shown(&self, sort: Option<&SortColumn>) -> bool {
        self.value > 0 || sort.is_some() && self.rows + self.places > 0
    }

    fn words(&self, what: &str) -> String {
        let rows = plural(self.rows, &format!("other {what}"));
        match self.places {
            0 => format!("({rows})"),
            n => format!("({rows}, {} not looked up)", plural(n, "place")),
        }
    }
}
