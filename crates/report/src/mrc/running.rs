//! Memory that running processes need: fault rates by size, working sets and unused memory.

use std::fmt::Write as _;

use memgauge_mrc::{EpochInterval, Footprint, HeatRow, PageUse, RegionUse, SizeFor};
use serde_json::{Value, json};

use super::{LABEL, ROWS, axis, chart, plot, printable};
use crate::page::Page;
use crate::style::Style;
use crate::units::{bytes, capacity, count, plural, share};

/// Listed fault rates per second.
const LISTED_RATES: [f64; 3] = [1.0, 10.0, 100.0];

/// Listed window lengths of working sets in seconds, besides the longest one.
const LISTED_AGES_S: [f64; 2] = [1.0, 10.0];

/// Share of resident memory in huge pages from which on no curve is shown. A huge page counts as
/// used as a whole, so the curve would be that of a memory in units of 2 MiB.
const MAX_HUGE_SHARE: f64 = 0.1;

/// Regions with rows of their own. The others share a row.
const LISTED_REGIONS: usize = 8;

/// Processes whose unused memory is listed, and regions of each.
const LISTED_PROCESSES: usize = 8;
const REGIONS_OF_PROCESS: usize = 3;

/// Columns of the name in a row of the heat map, and of all in front of its cells.
const MAP_NAME: usize = 16;
const MAP_LABEL: usize = 12 + 2 + MAP_NAME + 1;

/// Lowest rate of the logarithmic drawing, per second.
const LOWEST_DRAWN_RATE: f64 = 1.0;

/// Memory of one process.
#[derive(Clone, Debug)]
pub struct ProcessMemory {
    /// Process ID.
    pub pid: u32,
    /// Name of its command.
    pub command: String,
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// Footprint, if there was a reading.
    pub footprint: Option<Footprint>,
    /// Use of its pages one by one, if the source can list them.
    pub pages: Option<PageUse>,
}

/// Cost of the observation.
#[derive(Clone, Copy, Debug, Default)]
pub struct ObservationCost {
    /// Seconds observed.
    pub elapsed_s: f64,
    /// Processor time of memgauge in seconds.
    pub own_cpu_s: f64,
    /// Number of clears.
    pub clears: usize,
    /// Time for all clears in seconds.
    pub clear_s: f64,
    /// Number of readings.
    pub reads: usize,
    /// Time for all readings in seconds.
    pub read_s: f64,
}

/// Memory of running processes, together.
#[derive(Clone, Debug)]
pub struct RunningView {
    /// Name of the process, group or list of processes.
    pub title: String,
    /// Limitations of these numbers, as sentences.
    pub notes: Vec<String>,
    /// Method by which the accessed bits were read.
    pub source: &'static str,
    /// Footprint of all processes together.
    pub footprint: Footprint,
    /// Bytes in a page.
    pub page_bytes: u64,
    /// Bytes in memory at the end.
    pub resident_bytes: u64,
    /// Part of them in huge pages.
    pub huge_bytes: u64,
    /// Part of them that several processes map.
    pub shared_bytes: u64,
    /// Bytes paged out.
    pub swapped_bytes: u64,
    /// Bytes in pages of hugetlbfs, which no other number includes.
    pub hugetlb_bytes: u64,
    /// Memory limit of the control group.
    pub limit_bytes: Option<u64>,
    /// Use of the pages one by one, of a single process whose source can list them.
    pub pages: Option<PageUse>,
    /// Each process, if there are several.
    pub processes: Vec<ProcessMemory>,
    /// Cost of the observation.
    pub cost: ObservationCost,
}

impl ObservationCost {
    /// Last line of a report.
    pub(super) fn text(&self) -> String {
        format!(
            "  {} clears and {} readings took {:.2} % of a processor\n",
            self.clears,
            self.reads,
            100.0 * self.own_cpu_s / self.elapsed_s.max(f64::MIN_POSITIVE)
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "elapsed_s": self.elapsed_s,
            "own_cpu_s": self.own_cpu_s,
            "clears": self.clears,
            "clear_s": self.clear_s,
            "reads": self.reads,
            "read_s": self.read_s,
        })
    }
}

/// Returns true if huge pages prevent a curve.
pub fn has_too_many_huge_pages(huge_bytes: u64, resident_bytes: u64) -> bool {
    huge_bytes as f64 > MAX_HUGE_SHARE * resident_bytes as f64
}

impl RunningView {
    /// Returns true if huge pages prevent a curve.
    fn is_refused(&self) -> bool {
        has_too_many_huge_pages(self.huge_bytes, self.resident_bytes)
    }

    fn has_curve(&self) -> bool {
        !self.is_refused() && !self.footprint.curve().is_empty()
    }

    /// Returns the fault rates to list: round ones, and half of the highest.
    fn rates(&self) -> Vec<(f64, String)> {
        let half = self.footprint.highest_rate() / 2.0;
        let mut rates: Vec<(f64, String)> = LISTED_RATES
            .into_iter()
            .map(|rate| (rate, faults(rate)))
            .collect();
        rates.push((half, format!("{} (half of the highest)", faults(half))));
        rates
    }

    /// Returns the window lengths of the working sets to list.
    fn ages(&self) -> Vec<f64> {
        let longest = self.footprint.max_age_s();
        let mut ages: Vec<f64> = LISTED_AGES_S.into_iter().filter(|&a| a < longest).collect();
        ages.push(longest);
        ages
    }

    /// Returns the resident bytes that were not used in the longest window, and its length.
    fn unused(&self) -> Option<(f64, f64)> {
        let age_s = self.footprint.max_age_s();
        let used = self.footprint.working_set(age_s)?.value;
        Some(((self.footprint.resident_bytes() - used).max(0.0), age_s))
    }

    /// Returns the text, ending in a newline.
    pub fn text(&self, style: &Style) -> String {
        style.shown(self.whole_text(&style.at_least(80)))
    }

    fn whole_text(&self, style: &Style) -> String {
        let mut text = format!("{}\n", printable(&self.title));
        let _ = writeln!(
            text,
            "  estimated from accessed bits ({}) in {:.0} s, {}; pages of {}",
            self.source,
            self.cost.elapsed_s,
            plural(self.footprint.epochs() as u64, "epoch"),
            capacity(self.page_bytes)
        );
        let _ = write!(text, "  {} in memory", bytes(self.resident_bytes));
        if let Some((unused, age_s)) = self.unused() {
            let of_it = unused / self.footprint.resident_bytes().max(1.0);
            let _ = write!(
                text,
                "; {} of it ({}) was not used for {}",
                bytes(unused as u64),
                share(of_it),
                window(age_s)
            );
        }
        text.push('\n');
        if self.has_curve() {
            let _ = write!(
                text,
                "\n{}\n{}",
                self.drawing(style),
                self.size_table(style)
            );
        }
        let _ = write!(text, "\n{}", self.window_table(style));
        if let Some(pages) = self.known_pages() {
            let _ = write!(
                text,
                "\n{}\n{}",
                region_table(pages),
                heat_map(pages, style)
            );
        }
        if !self.processes.is_empty() {
            let _ = write!(text, "\n{}", self.process_table(style));
            text += &self.unused_by_process();
        }
        text.push('\n');
        for sentence in self.advice().iter().chain(&self.notes) {
            text += &style.wrap(&printable(sentence), 2);
        }
        text + &self.cost.text()
    }

    /// Use of the pages, if any were listed.
    fn known_pages(&self) -> Option<&PageUse> {
        let pages = self.pages.as_ref();
        pages.filter(|pages| !pages.columns.is_empty() && !pages.regions.is_empty())
    }

    fn drawing(&self, style: &Style) -> String {
        let columns = style.width - LABEL - 4;
        let curve = self.footprint.curve();
        let (Some(first), Some(last)) = (curve.first(), curve.last()) else {
            return String::new();
        };
        let (low, high) = (first.bytes, last.bytes.max(2.0 * first.bytes));
        let size = |column: usize| low * (high / low).powf(column as f64 / (columns - 1) as f64);
        let height = |rate: f64| (rate.max(LOWEST_DRAWN_RATE) / LOWEST_DRAWN_RATE).log10();
        let values: Vec<Option<f64>> = (0..columns)
            .map(|column| Some(height(self.footprint.rate(size(column))?.faults_s.value)))
            .collect();
        let top = height(self.footprint.highest_rate()).max(1.0);
        let mut drawn = vec![vec![' '; columns]; ROWS + 1];
        plot(
            &mut drawn,
            &values,
            top,
            if style.unicode { '•' } else { '*' },
        );
        let label = |part: f64| faults(LOWEST_DRAWN_RATE * 10f64.powf(top * part));
        let title = "faults/s by size of memory (logarithmic)";
        let column = |bytes: u64| {
            let at = (bytes as f64 / low).ln() / (high / low).ln();
            (0.0..=1.0)
                .contains(&at)
                .then(|| (at * (columns - 1) as f64).round() as usize)
        };
        let limit = self.limit_bytes.map(|limit| ("limit".to_owned(), limit));
        let marks: Vec<(String, u64)> = limit.into_iter().collect();
        // Ticks at powers of two.
        let ends = ((low as u64).next_power_of_two(), high as u64);
        chart(&drawn, title, style, label) + &axis(ends, &marks, columns, column)
    }

    fn size_table(&self, style: &Style) -> String {
        let mut text = format!("{:>12}  {:>12}  95 % interval\n", "memory", "faults/s");
        for (rate, name) in self.rates() {
            let (size, interval) = match self.footprint.size_for(rate) {
                Some(SizeFor::Known(size)) => (bytes(size.value as u64), interval(&size, style)),
                Some(SizeFor::Below(size)) => {
                    (format!("below {}", bytes(size as u64)), String::new())
                }
                Some(SizeFor::Above(size)) => {
                    (format!("above {}", bytes(size as u64)), String::new())
                }
                None => continue,
            };
            let line = format!("{size:>12}  {name:>12}  {interval}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    fn window_table(&self, style: &Style) -> String {
        let mut text = format!("{:>12}  {:>12}  95 % interval\n", "working set", "window");
        for age_s in self.ages() {
            if let Some(used) = self.footprint.working_set(age_s) {
                let _ = writeln!(
                    text,
                    "{:>12}  {:>12}  {}",
                    bytes(used.value as u64),
                    window(age_s),
                    match self.footprint.epochs() {
                        1 => "one epoch".to_owned(),
                        _ => interval(&used, style),
                    }
                );
            }
        }
        text
    }

    fn process_table(&self, style: &Style) -> String {
        let longest = self.footprint.max_age_s();
        let mut text = format!(
            "{:>12}  {:>12}  {:>12}\n",
            "in memory", "working set", "process"
        );
        for process in &self.processes {
            let used = process
                .footprint
                .as_ref()
                .and_then(|footprint| footprint.working_set(longest.min(footprint.max_age_s())));
            let used = used.map_or(style.none().to_owned(), |used| bytes(used.value as u64));
            let _ = writeln!(
                text,
                "{:>12}  {used:>12}  {:>12}  {}",
                bytes(process.resident_bytes),
                process.pid,
                printable(&process.command)
            );
        }
        text
    }

    /// Returns the unused memory of the processes with the most of it, each with its regions.
    fn unused_by_process(&self) -> String {
        let mut processes: Vec<(&ProcessMemory, &PageUse)> = self
            .processes
            .iter()
            .filter_map(|process| Some((process, process.pages.as_ref()?)))
            .filter(|(_, pages)| !pages.regions.is_empty())
            .collect();
        let unused = |pages: &PageUse| -> u64 {
            let regions = pages.regions.iter();
            regions.map(|region| region.unused_bytes[0]).sum()
        };
        processes.sort_by_key(|(_, pages)| std::cmp::Reverse(unused(pages)));
        let Some((_, first)) = processes.first() else {
            return String::new();
        };
        let mut text = format!(
            "\n{:>12}  {:>14}  process, region\n",
            "in memory",
            format!("unused {}", window(first.unused_for_s(0).round()))
        );
        for (process, pages) in processes.iter().take(LISTED_PROCESSES) {
            let mut row = |resident: u64, unused: u64, name: &str| {
                let (resident, unused) = (bytes(resident), bytes(unused));
                let _ = writeln!(text, "{resident:>12}  {unused:>14}  {}", printable(name));
            };
            let name = format!("{} ({})", process.command, process.pid);
            row(process.resident_bytes, unused(pages), &name);
            let mut regions: Vec<&RegionUse> = pages.regions.iter().collect();
            regions.sort_by_key(|region| std::cmp::Reverse(region.unused_bytes[0]));
            for region in regions.iter().take(REGIONS_OF_PROCESS) {
                let name = format!("  {}", region.name);
                row(region.resident_bytes, region.unused_bytes[0], &name);
            }
        }
        if let Some(more @ 1..) = processes.len().checked_sub(LISTED_PROCESSES) {
            let _ = writeln!(text, "{:>12}  {:>14}  ({more} more)", "", "");
        }
        text
    }

    /// Returns a page with these numbers. `None` if memgauge was built without the front end.
    pub fn page(&self) -> Option<String> {
        let page = Page {
            title: self.title.clone(),
            memory: Some(self.json()),
            ..Page::default()
        };
        page.html()
    }

    /// Returns conclusions as sentences.
    fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        let limit = self.limit_bytes.map_or(String::new(), |limit| {
            format!("; the limit of the control group is {}", capacity(limit))
        });
        if self.is_refused() {
            return vec![format!(
                "No fault rates: {} of the memory is in huge pages ({}), and each has one accessed \
                 bit. Working sets are upper bounds. Disable them for a measurement: \
                 `echo never > /sys/kernel/mm/transparent_hugepage/enabled` before the start",
                share(self.huge_bytes as f64 / self.resident_bytes.max(1) as f64),
                bytes(self.huge_bytes)
            )];
        }
        advice.extend(self.known_pages().and_then(unused_regions));
        let longest = window(self.footprint.max_age_s());
        match self.footprint.size_for(1.0) {
            Some(SizeFor::Known(size)) => advice.push(format!(
                "{} is enough for less than 1 fault/s{limit}",
                bytes(size.value as u64)
            )),
            Some(SizeFor::Below(size)) => advice.push(format!(
                "less than {} is enough for less than 1 fault/s{limit}",
                bytes(size as u64)
            )),
            Some(SizeFor::Above(size)) => advice.push(format!(
                "{} would still have {} faults/s, and windows of {longest} show no larger size: \
                 use a longer --window{limit}",
                bytes(size as u64),
                faults(self.footprint.lowest_rate())
            )),
            None => advice.push(format!(
                "too few pages were used in {longest} for a curve{limit}"
            )),
        }
        advice
    }

    /// Returns the view as JSON.
    pub fn json(&self) -> Value {
        let interval = interval_json;
        let shown = self.has_curve();
        let curve = if shown { self.footprint.curve() } else { &[] };
        let points = curve.iter().map(|point| {
            json!({
                "bytes": point.bytes,
                "faults_per_s": interval(&point.faults_s),
                "censored": point.censored,
            })
        });
        let rates = if shown { self.rates() } else { Vec::new() };
        let sizes = rates.iter().map(|(rate, _)| {
            let (state, size) = match self.footprint.size_for(*rate) {
                Some(SizeFor::Known(size)) => ("known", interval(&size)),
                Some(SizeFor::Below(size)) => ("below", json!({ "value": size })),
                Some(SizeFor::Above(size)) => ("above", json!({ "value": size })),
                None => ("unknown", Value::Null),
            };
            json!({ "faults_per_s": rate, "state": state, "bytes": size })
        });
        let working_sets = self.footprint.windows().iter().filter_map(|&(age_s, _)| {
            let used = self.footprint.working_set(age_s)?;
            Some(json!({ "window_s": age_s, "bytes": interval(&used) }))
        });
        let processes = self.processes.iter().map(|process| {
            let footprint = process.footprint.as_ref();
            let used = footprint.and_then(|f| f.working_set(f.max_age_s()));
            json!({
                "pid": process.pid,
                "command": process.command,
                "resident_bytes": process.resident_bytes,
                "working_set_bytes": used.map(|used| used.value),
                "regions": process.pages.as_ref().map(regions_json),
                "heat_map": process.pages.as_ref().map(heat_map_json),
            })
        });
        let unused = self.unused();
        json!({
            "schema_version": 1,
            "title": self.title,
            "provenance": "estimated",
            "source": self.source,
            "epochs": self.footprint.epochs(),
            "page_bytes": self.page_bytes,
            "resident_bytes": self.resident_bytes,
            "huge_bytes": self.huge_bytes,
            "shared_bytes": self.shared_bytes,
            "swapped_bytes": self.swapped_bytes,
            "hugetlb_bytes": self.hugetlb_bytes,
            "limit_bytes": self.limit_bytes,
            "unused_bytes": unused.map(|(unused, _)| unused),
            "unused_for_s": unused.map(|(_, age_s)| age_s),
            "regions": self.pages.as_ref().map(regions_json),
            "heat_map": self.pages.as_ref().map(heat_map_json),
            "working_sets": working_sets.collect::<Vec<_>>(),
            "points": points.collect::<Vec<_>>(),
            "sizes": sizes.collect::<Vec<_>>(),
            "processes": processes.collect::<Vec<_>>(),
            "cost": self.cost.json(),
            "advice": self.advice(),
            "notes": self.notes,
        })
    }

    /// Returns the curve as CSV with a header.
    pub fn csv(&self) -> String {
        let mut text = "bytes,faults_per_s,low,high,censored\n".to_owned();
        let curve = match self.has_curve() {
            true => self.footprint.curve(),
            false => &[],
        };
        for point in curve {
            let rate = point.faults_s;
            let _ = writeln!(
                text,
                "{:.0},{},{},{},{}",
                point.bytes, rate.value, rate.low, rate.high, point.censored
            );
        }
        text
    }
}

/// Regions with their unused memory, since the start and since the middle of the run.
fn region_table(pages: &PageUse) -> String {
    let columns = [0, pages.columns.len() / 2];
    let shown = if columns[1] == 0 { 1 } else { 2 };
    let columns = &columns[..shown];
    let mut text = format!("{:>12}", "in memory");
    for &column in columns {
        let title = format!("unused {}", window(pages.unused_for_s(column).round()));
        let _ = write!(text, "  {title:>14}");
    }
    text += "  region\n";
    let row = |resident: u64, unused: &dyn Fn(usize) -> u64, name: &str| {
        let mut line = format!("{:>12}", bytes(resident));
        for &column in columns {
            let _ = write!(line, "  {:>14}", bytes(unused(column)));
        }
        format!("{line}  {}\n", printable(name))
    };
    let (listed, others) = pages
        .regions
        .split_at(pages.regions.len().min(LISTED_REGIONS));
    for region in listed {
        let unused = |column: usize| region.unused_bytes[column];
        text += &row(region.resident_bytes, &unused, &region.name);
    }
    if !others.is_empty() {
        let resident = others.iter().map(|region| region.resident_bytes).sum();
        let unused = |column: usize| {
            others
                .iter()
                .map(|region| region.unused_bytes[column])
                .sum()
        };
        let name = format!("({} more)", others.len());
        text += &row(resident, &unused, &name);
    }
    text
}

/// Shares of used memory by address and time.
fn heat_map(pages: &PageUse, style: &Style) -> String {
    // From unused to used as a whole.
    let shades: [char; 6] = match style.unicode {
        true => ['·', '░', '▒', '▓', '█', '█'],
        false => ['.', ':', '-', '=', '#', '#'],
    };
    let shade = |share: f64| shades[(share * 4.0).ceil() as usize];
    let mut text = format!(
        "use by address (rows) and time (columns, to {}): {} none, {} up to 1/4, {} all\n",
        window(pages.columns.last().map_or(0.0, |c| c.end_s.round())),
        shades[0],
        shades[1],
        shades[4]
    );
    let room = style.width.saturating_sub(MAP_LABEL).max(1);
    // Columns that share a character show the largest share.
    let group = pages.columns.len().div_ceil(room).max(1);
    for row in &pages.rows {
        let line: String = row
            .used
            .chunks(group)
            .map(|shares| shade(shares.iter().copied().fold(0.0, f64::max)))
            .collect();
        let _ = writeln!(
            text,
            "{:>12}  {:<MAP_NAME$} {line}",
            bytes(row.resident_bytes),
            shortened(&printable(&row.name))
        );
    }
    text
}

/// The last part of a path, cut to the width of its column.
fn shortened(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.chars().take(MAP_NAME).collect()
}

/// A sentence on the memory that was not used in the whole run.
fn unused_regions(pages: &PageUse) -> Option<String> {
    let resident: u64 = pages.regions.iter().map(|r| r.resident_bytes).sum();
    let unused: u64 = pages.regions.iter().map(|r| r.unused_bytes[0]).sum();
    let largest = pages.regions.iter().max_by_key(|r| r.unused_bytes[0])?;
    if unused == 0 {
        return None;
    }
    Some(format!(
        "{} of {} have not been used for {}, {} of it in {}",
        bytes(unused),
        bytes(resident),
        window(pages.unused_for_s(0).round()),
        share(largest.unused_bytes[0] as f64 / unused as f64),
        largest.name
    ))
}

fn regions_json(pages: &PageUse) -> Value {
    let regions = pages.regions.iter().map(|region| {
        let unused = region.unused_bytes.iter().enumerate();
        let unused = unused
            .map(|(column, bytes)| json!({ "for_s": pages.unused_for_s(column), "bytes": bytes }));
        json!({
            "name": region.name,
            "resident_bytes": region.resident_bytes,
            "unused": unused.collect::<Vec<_>>(),
        })
    });
    regions.collect()
}

fn heat_map_json(pages: &PageUse) -> Value {
    let columns = pages.columns.iter();
    let columns = columns.map(|c| json!({ "start_s": c.start_s, "end_s": c.end_s }));
    let row = |row: &HeatRow| {
        json!({
            "name": row.name,
            "start": row.start,
            "end": row.end,
            "resident_bytes": row.resident_bytes,
            "used": row.used,
        })
    };
    json!({
        "columns": columns.collect::<Vec<_>>(),
        "rows": pages.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

pub(super) fn interval_json(of: &EpochInterval) -> Value {
    json!({ "value": of.value, "low": of.low, "high": of.high })
}

pub(super) fn interval(of: &EpochInterval, style: &Style) -> String {
    format!(
        "{} {} {}",
        bytes(of.low as u64),
        style.until(),
        bytes(of.high as u64)
    )
}

pub(super) fn faults(rate: f64) -> String {
    match rate {
        rate if rate >= 1000.0 => count(rate.round() as u64),
        rate if rate >= 10.0 || rate.fract() == 0.0 => format!("{rate:.0}"),
        rate => format!("{rate:.2}"),
    }
}

pub(super) fn window(age_s: f64) -> String {
    match age_s {
        age if age >= 9.95 || age.fract() == 0.0 => format!("{age:.0} s"),
        age => format!("{age:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_mrc::{Epoch, WindowUse};

    const PAGE: f64 = 4096.0;

    /// 10 000 uniform references a second to 20 000 pages of 40 000.
    fn view(huge_bytes: u64) -> RunningView {
        let ages = (0..44).map(|n| 0.02 * 1.2f64.powi(n));
        let readings = ages.map(|age_s| WindowUse {
            age_s,
            used_bytes: PAGE * 20_000.0 * (1.0 - (-age_s / 2.0).exp()),
            resident_bytes: PAGE * 40_000.0,
        });
        let epoch = Epoch {
            readings: readings.collect(),
        };
        RunningView {
            title: "server (4711)".to_owned(),
            notes: vec!["a note".to_owned()],
            source: "clear_refs",
            footprint: Footprint::new(&[epoch.clone(), epoch], 4096).unwrap(),
            page_bytes: 4096,
            resident_bytes: 40_000 * 4096,
            huge_bytes,
            shared_bytes: 0,
            swapped_bytes: 0,
            hugetlb_bytes: 0,
            limit_bytes: Some(1 << 30),
            pages: None,
            processes: Vec::new(),
            cost: ObservationCost {
                elapsed_s: 40.0,
                own_cpu_s: 0.2,
                ..ObservationCost::default()
            },
        }
    }

    fn plain() -> Style {
        Style {
            width: 80,
            line: 80,
            colour: false,
            unicode: false,
            rows: Style::ROWS,
        }
    }

    #[test]
    fn report_leads_from_unused_memory_to_the_size_that_is_needed() {
        let text = view(0).text(&plain());
        assert!(text.contains("156 MiB in memory; 78."), "{text}");
        assert!(text.contains("was not used for 51 s"), "{text}");
        assert!(text.contains("is enough for less than 1 fault/s"), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains("the limit of the control group is 1 GiB"),
            "{text}"
        );
        assert!(text.contains("a note"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.is_ascii(), "{text}");
    }

    #[test]
    fn memory_that_was_not_used_is_named_with_its_region() {
        use memgauge_mrc::{HeatColumn, RegionUse};
        let column = |n: u32| HeatColumn {
            start_s: f64::from(n) * 20.0,
            end_s: f64::from(n + 1) * 20.0,
        };
        let region = |name: &str, mib: u64, unused: [u64; 3]| RegionUse {
            name: name.to_owned(),
            resident_bytes: mib << 20,
            unused_bytes: unused.map(|mib| mib << 20).to_vec(),
        };
        let row = HeatRow {
            name: "/usr/lib/a.so".to_owned(),
            start: 0,
            end: 1 << 27,
            resident_bytes: 128 << 20,
            used: vec![1.0, 0.2, 0.0],
        };
        let pages = PageUse {
            columns: (0..3).map(column).collect(),
            regions: vec![
                region("[heap]", 1024, [768, 800, 900]),
                region("/usr/lib/a.so", 512, [256, 300, 512]),
            ],
            rows: vec![row],
        };
        let view = RunningView {
            pages: Some(pages),
            ..view(0)
        };
        let text = view.text(&plain());
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for sentence in [
            "1.00 GiB of 1.50 GiB have not been used for 60 s, 75.0 % of it in [heap]",
            "in memory unused 60 s unused 40 s region",
            "1.00 GiB 768 MiB 800 MiB [heap]",
            "128 MiB a.so #:.",
        ] {
            assert!(words.contains(sentence), "`{sentence}` is not in: {text}");
        }
        let json = view.json();
        assert_eq!(json["regions"][1]["unused"][2]["for_s"], 20.0);
        assert_eq!(json["regions"][1]["unused"][2]["bytes"], 512 << 20);
        assert_eq!(json["heat_map"]["rows"][0]["used"][1], 0.2);
        assert_eq!(json["heat_map"]["columns"][2]["end_s"], 60.0);
    }

    #[test]
    fn unused_memory_of_several_processes_is_listed_by_process_then_region() {
        let pages = |unused: [u64; 2]| PageUse {
            columns: vec![memgauge_mrc::HeatColumn {
                start_s: 0.0,
                end_s: 60.0,
            }],
            regions: ["[heap]", "[anon]"]
                .iter()
                .zip(unused)
                .map(|(name, mib)| RegionUse {
                    name: (*name).to_owned(),
                    resident_bytes: (mib + 1) << 20,
                    unused_bytes: vec![mib << 20],
                })
                .collect(),
            rows: Vec::new(),
        };
        let process = |pid, unused| ProcessMemory {
            pid,
            command: "worker".to_owned(),
            resident_bytes: 64 << 20,
            footprint: None,
            pages: Some(pages(unused)),
        };
        let view = RunningView {
            processes: vec![process(11, [2, 3]), process(12, [16, 4])],
            ..view(0)
        };
        let text = view.text(&plain());
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let list = "in memory unused 60 s process, region 64.0 MiB 20.0 MiB worker (12) \
            17.0 MiB 16.0 MiB [heap] 5.00 MiB 4.00 MiB [anon] \
            64.0 MiB 5.00 MiB worker (11) 4.00 MiB 3.00 MiB [anon] 3.00 MiB 2.00 MiB [heap]";
        assert!(words.contains(list), "{text}");
        let json = view.json();
        let regions = &json["processes"][1]["regions"];
        assert_eq!(regions[0]["unused"][0]["bytes"], 16 << 20, "{json}");
    }

    #[test]
    fn huge_pages_leave_working_sets_and_no_curve() {
        let view = view(20_000 * 4096);
        let text = view.text(&plain());
        assert!(text.contains("No fault rates: 50.0 %"), "{text}");
        assert!(text.contains("working set"), "{text}");
        assert!(!text.contains("faults/s by size"), "{text}");
        assert_eq!(view.json()["points"], json!([]));
        assert_eq!(view.csv().lines().count(), 1);
    }

    #[test]
    fn json_has_the_size_for_each_rate_with_its_interval() {
        let json = view(0).json();
        let sizes = json["sizes"].as_array().unwrap();
        // r(1 - m/n) = 100 at m = 0.99 n, and half of the rate at n/2.
        let expected = [(100.0, 0.99), (5000.0, 0.5)];
        for (rate, part) in expected {
            let near =
                |size: &&Value| (size["faults_per_s"].as_f64().unwrap() / rate - 1.0).abs() < 0.02;
            let size = sizes.iter().find(near).unwrap();
            assert_eq!(size["state"], "known");
            let value = size["bytes"]["value"].as_f64().unwrap() / PAGE / 20_000.0;
            assert!((value - part).abs() < 0.02, "{rate}: {value}");
            assert!(size["bytes"]["low"].as_f64() <= size["bytes"]["value"].as_f64());
        }
        assert_eq!(json["provenance"], "estimated");
    }
}
