//! Threads and processes, if there are several.

use std::collections::BTreeSet;

use memgauge_analyze::{Counts, ProcessRow, SortColumn, Summary, ThreadRow, file_name};

use super::{event_title, has_all, of_samples, plural, provenance, sorted};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

pub(super) fn threads(summary: &Summary, style: &Style) -> String {
    if summary.threads.len() < 2 {
        return String::new();
    }
    if summary.threads.iter().any(|t| t.samples > 0) {
        return sampled_threads(summary, style);
    }
    if !summary.threads.iter().any(|t| tells(&t.counts)) {
        return String::new();
    }
    let ids = [("pid", ColumnKind::Number), ("tid", ColumnKind::Number)];
    let waits = summary.threads.iter().any(|t| t.idle_ns.is_some());
    let sort = sorted::column(summary, &summary.threads);
    let shown = ThreadColumns {
        waits,
        extra: sorted::unless_shown(sort, &KEYS),
    };
    let mut table = table(&ids, shown, style);
    for thread in summary.threads.iter().take(style.rows) {
        table.row(thread_row(thread, shown, style));
    }
    let rest = summary.threads.get(style.rows..).unwrap_or_default();
    let sums = rest.iter().map(|t| (t.run_ns, t.idle_ns, &t.counts));
    add_remainder(&mut table, sums, rest.len(), "thread", shown, style);
    let title = plural(summary.threads.len() as u64, "thread");
    let title = sorted::title(&title, sort, style);
    style.heading(&title, &provenance(summary)) + &table.fit(&SPARE, style).draw(style)
}

pub(super) fn processes(summary: &Summary, style: &Style) -> String {
    if summary.processes.len() < 2 {
        return String::new();
    }
    if summary.processes.iter().any(|p| p.samples > 0) {
        return sampled_processes(summary, style);
    }
    if !summary.processes.iter().any(|p| tells(&p.counts)) {
        return String::new();
    }
    let ids = [("pid", ColumnKind::Number), ("threads", ColumnKind::Number)];
    let waits = summary.processes.iter().any(|p| p.idle_ns.is_some());
    let sort = sorted::column(summary, &summary.processes);
    let shown = ThreadColumns {
        waits,
        extra: sorted::unless_shown(sort, &KEYS),
    };
    let mut table = table(&ids, shown, style);
    for process in summary.processes.iter().take(style.rows) {
        table.row(process_row(process, shown, style));
    }
    let rest = summary.processes.get(style.rows..).unwrap_or_default();
    let sums = rest.iter().map(|p| (p.run_ns, p.idle_ns, &p.counts));
    add_remainder(&mut table, sums, rest.len(), "process", shown, style);
    let title = format!(
        "{} processes",
        units::things(summary.processes.len() as u64)
    );
    let title = sorted::title(&title, sort, style);
    style.heading(&title, &provenance(summary)) + &table.fit(&SPARE, style).draw(style)
}

/// Samples by thread, since native sources know little else about threads.
fn sampled_threads(summary: &Summary, style: &Style) -> String {
    let ids = [("pid", ColumnKind::Number), ("tid", ColumnKind::Number)];
    let rows = summary.threads.iter().filter(|t| t.samples > 0);
    let rows = rows.map(|t| {
        let ids = [t.pid.0.to_string(), t.tid.0.to_string()];
        (ids, t.samples, &t.counts, t.program.as_str())
    });
    let heading = SampledHeading {
        title: plural(summary.threads.len() as u64, "thread"),
        every: has_all(summary),
        sort: sorted::column(summary, &summary.threads),
    };
    sampled(&heading, &ids, &rows.collect::<Vec<_>>(), style)
}

fn sampled_processes(summary: &Summary, style: &Style) -> String {
    let ids = [("pid", ColumnKind::Number), ("threads", ColumnKind::Number)];
    let rows = summary.processes.iter().filter(|p| p.samples > 0);
    let rows = rows.map(|p| {
        let ids = [p.pid.0.to_string(), p.threads.to_string()];
        (ids, p.samples, &p.counts, p.program.as_str())
    });
    let title = format!(
        "{} processes",
        units::things(summary.processes.len() as u64)
    );
    let heading = SampledHeading {
        title,
        every: has_all(summary),
        sort: sorted::column(summary, &summary.processes),
    };
    sampled(&heading, &ids, &rows.collect::<Vec<_>>(), style)
}

/// IDs, samples, counts, program.
type SampledThreadRow<'a> = ([String; 2], u64, &'a Counts, &'a str);

/// Maximum number of events with a column.
const EVENTS: usize = 3;

/// Heading of a table of samples.
struct SampledHeading<'a> {
    title: String,
    /// True if every event has a sample.
    every: bool,
    sort: Option<&'a SortColumn>,
}

fn sampled(
    heading: &SampledHeading<'_>,
    ids: &[(&str, ColumnKind)],
    rows: &[SampledThreadRow<'_>],
    style: &Style,
) -> String {
    let all: u64 = rows.iter().map(|row| row.1).sum();
    let names = rows.iter().flat_map(|row| row.2.keys());
    let names: BTreeSet<&String> = names.collect();
    let is_sorted = |name: &String| heading.sort.is_some_and(|column| column.key() == name);
    let mut names: Vec<&String> = names.into_iter().collect();
    // The sort is stable, so only the event by which rows are sorted moves to the front.
    names.sort_by_key(|name| !is_sorted(name));
    names.truncate(EVENTS);
    let titles: Vec<String> = names.iter().map(|name| event_title(name, style)).collect();
    let mut columns = ids.to_vec();
    columns.extend([("share", ColumnKind::Number), ("n", ColumnKind::Number)]);
    columns.extend(
        titles
            .iter()
            .map(|title| (title.as_str(), ColumnKind::Number)),
    );
    columns.push(("program", ColumnKind::Text));
    let mut table = Table::new(&columns);
    for (ids, n, counts, program) in rows.iter().take(style.rows) {
        let mut cells = ids.to_vec();
        cells.extend([units::share(*n as f64 / all as f64), units::count(*n)]);
        let of =
            |name: &&String| units::events(name, counts.get(*name).copied().unwrap_or(0), style);
        cells.extend(names.iter().map(of));
        cells.push(style.name(file_name(program)));
        table.row(cells);
    }
    let rest = rows.get(style.rows..).unwrap_or_default();
    if !rest.is_empty() {
        let n: u64 = rest.iter().map(|row| row.1).sum();
        let mut cells = vec![String::new(); ids.len()];
        cells.extend([units::share(n as f64 / all as f64), units::count(n)]);
        cells.extend(names.iter().map(|_| String::new()));
        cells.push(format!("({} more)", rest.len()));
        table.painted_row(Role::Quiet, cells);
    }
    let title = sorted::title(&heading.title, heading.sort, style);
    style.heading(&title, &of_samples(heading.every, all)) + &table.draw(style)
}

/// Events with a column.
const COLUMNS: [&str; 5] = [
    "instructions",
    "l1d.miss",
    "llc.miss",
    "dram.read_bytes",
    "dram.write_bytes",
];

/// Columns to omit on a narrow screen.
const SPARE: [&[&str]; 1] = [&["instr."]];

/// Returns true if some count has a column. A thread that only has samples has none.
fn tells(counts: &Counts) -> bool {
    let mut columns = COLUMNS.iter();
    columns.any(|&event| counts.get(event).is_some_and(|&n| n > 0))
}

/// Keys of the columns.
const KEYS: [&str; 10] = [
    "pid",
    "tid",
    "threads",
    "run_ns",
    "idle_ns",
    "instructions",
    "l1d.miss",
    "llc.miss",
    "dram_bytes",
    "program",
];

/// Columns that not every table has.
#[derive(Clone, Copy)]
struct ThreadColumns<'a> {
    /// True if the waiting time is known.
    waits: bool,
    /// A further column by which rows are sorted.
    extra: Option<&'a SortColumn>,
}

/// A table of threads or processes.
fn table(ids: &[(&str, ColumnKind); 2], shown: ThreadColumns<'_>, style: &Style) -> Table {
    let numbers = ["instr.", "L1D miss", "LLC miss", "DRAM"];
    let mut columns = ids.to_vec();
    columns.push(("run time", ColumnKind::Number));
    if shown.waits {
        columns.push(("idle", ColumnKind::Number));
    }
    columns.extend(numbers.map(|title| (title, ColumnKind::Number)));
    let title = shown.extra.map(|column| sorted::name(column, style));
    columns.extend(
        title
            .iter()
            .map(|title| (title.as_str(), ColumnKind::Number)),
    );
    columns.push(("program", ColumnKind::Text));
    Table::new(&columns)
}

fn thread_row(thread: &ThreadRow, shown: ThreadColumns<'_>, style: &Style) -> Vec<String> {
    let mut cells = vec![thread.pid.0.to_string(), thread.tid.0.to_string()];
    cells.extend(numbers(
        thread.run_ns,
        idle(thread.idle_ns, shown),
        &thread.counts,
        style,
    ));
    cells.extend(
        shown
            .extra
            .map(|column| sorted::cell(column, thread, style)),
    );
    cells.push(style.name(file_name(&thread.program)));
    cells
}

fn process_row(process: &ProcessRow, shown: ThreadColumns<'_>, style: &Style) -> Vec<String> {
    let mut cells = vec![process.pid.0.to_string(), process.threads.to_string()];
    cells.extend(numbers(
        process.run_ns,
        idle(process.idle_ns, shown),
        &process.counts,
        style,
    ));
    cells.extend(
        shown
            .extra
            .map(|column| sorted::cell(column, process, style)),
    );
    cells.push(style.name(file_name(&process.program)));
    cells
}

/// Cell of the waiting time, if the column exists.
fn idle(idle_ns: Option<u64>, shown: ThreadColumns<'_>) -> Option<u64> {
    shown.waits.then(|| idle_ns.unwrap_or(0))
}

fn numbers(run_ns: u64, idle_ns: Option<u64>, counts: &Counts, style: &Style) -> Vec<String> {
    let get = |name: &str| counts.get(name).copied().unwrap_or(0);
    let dram = get("dram.read_bytes").saturating_add(get("dram.write_bytes"));
    let mut cells = vec![units::nanoseconds(run_ns, style)];
    cells.extend(idle_ns.map(|ns| units::nanoseconds(ns, style)));
    cells.extend([
        units::count(get("instructions")),
        units::count(get("l1d.miss")),
        units::count(get("llc.miss")),
        units::bytes(dram),
    ]);
    cells
}

fn add_remainder<'a>(
    table: &mut Table,
    sums: impl Iterator<Item = (u64, Option<u64>, &'a Counts)>,
    rows: usize,
    what: &str,
    shown: ThreadColumns<'_>,
    style: &Style,
) {
    if rows == 0 {
        return;
    }
    let (mut run_ns, mut idle_ns) = (0u64, 0u64);
    let mut counts = Counts::new();
    for (run, waited, others) in sums {
        run_ns = run_ns.saturating_add(run);
        idle_ns = idle_ns.saturating_add(waited.unwrap_or(0));
        for (event, n) in others {
            let sum = counts.entry(event.clone()).or_default();
            *sum = sum.saturating_add(*n);
        }
    }
    let mut cells = vec![String::new(), String::new()];
    cells.extend(numbers(run_ns, idle(Some(idle_ns), shown), &counts, style));
    cells.extend(shown.extra.map(|_| String::new()));
    cells.push(format!("({rows} more, a {what} each)"));
    table.painted_row(Role::Quiet, cells);
}
