//! Cache lines that threads share, and the code that accesses them.

use memgauge_analyze::{
    ByteRange, SharedAccess, SharedLine, SharedLines, SharingCounts, Summary, file_name,
};

use super::{plural, provenance};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// Lines that are listed, and accesses of each.
const LINES: usize = 4;
const ACCESSES: usize = 6;
/// Minimum number of misses to show the section. Locks and thread starts always cause some.
const FEW_MISSES: u64 = 1000;
/// Minimum share of the misses of a listed line.
const LEAST_SHARE: f64 = 0.01;

pub(super) fn sharing(summary: &Summary, style: &Style) -> String {
    let Some(sharing) = &summary.sharing else {
        return String::new();
    };
    let totals = &sharing.totals;
    let title = "Cache lines shared between threads";
    if totals.is_estimate() {
        let note = format!("estimated from samples, n = {}", totals.hitm_samples);
        let table = table(sharing, style).draw(style);
        return style.heading(title, &note) + &table + &estimate_note(totals, style);
    }
    if misses(totals) < FEW_MISSES {
        return String::new();
    }
    style.heading(title, &provenance(summary)) + &table(sharing, style).draw(style)
}

/// Says how the numbers of samples were obtained.
fn estimate_note(totals: &SharingCounts, style: &Style) -> String {
    let mut note = "Each HITM sample stands for its period. Others' sampled stores decide between \
                    false and true."
        .to_owned();
    if totals.remote_hitm > 0 {
        let share = totals.remote_hitm as f64 / totals.hitm.max(1) as f64;
        note += &format!(" {} came from another node.", units::share(share));
    }
    if totals.unclassified() > 0 {
        let share = totals.unclassified() as f64 / totals.hitm.max(1) as f64;
        note += &format!(
            " {} could be either: no store of another thread was sampled.",
            units::share(share)
        );
    }
    style.wrap(&note, 2)
}

fn misses(counts: &SharingCounts) -> u64 {
    counts.hitm.max(counts.true_sharing + counts.false_sharing)
}

fn table(sharing: &SharedLines, style: &Style) -> Table {
    let is_estimate = sharing.totals.is_estimate();
    let mut table = Table::new(&[
        (
            if is_estimate { "latency" } else { "stalled" },
            ColumnKind::Number,
        ),
        ("HITM", ColumnKind::Number),
        ("false", ColumnKind::Number),
        ("true", ColumnKind::Number),
        ("threads", ColumnKind::Number),
        ("loads", ColumnKind::Number),
        ("stores", ColumnKind::Number),
        ("line, and code that accesses it", ColumnKind::Text),
    ]);
    let least = misses(&sharing.totals) as f64 * LEAST_SHARE;
    let least_samples = sharing.totals.samples as f64 * LEAST_SHARE;
    let is_large = |counts: &SharingCounts| match is_estimate {
        // A thread that only stores has no HITM but causes those of other threads.
        true => misses(counts) as f64 >= least || counts.samples as f64 >= least_samples,
        false => misses(counts) as f64 >= least,
    };
    let lines = sharing.lines.iter();
    let lines = lines.take_while(|line| is_large(&line.counts));
    let shown = lines.take(style.rows_or(LINES)).count();
    for line in &sharing.lines[..shown] {
        let mut cells = numbers(&line.counts);
        cells.push(line.threads.to_string());
        cells.extend([String::new(), String::new(), style.name(&line_name(line))]);
        table.row(cells);
        let accesses = line.accesses.iter();
        let accesses = accesses.filter(|access| is_large(&access.counts));
        for access in accesses.take(ACCESSES) {
            let mut cells = numbers(&access.counts);
            cells.push(access.threads.to_string());
            cells.extend([bytes(&access.loaded), bytes(&access.stored)]);
            cells.push(style.name(&format!("  {}", code(access))));
            table.painted_row(Role::Quiet, cells);
        }
    }
    let hidden = sharing.lines.get(shown..).unwrap_or_default();
    let others = sharing.other_lines + hidden.len() as u64;
    if others > 0 {
        let mut sum = sharing.other_counts;
        for line in hidden {
            sum.hitm += line.counts.hitm;
            sum.true_sharing += line.counts.true_sharing;
            sum.false_sharing += line.counts.false_sharing;
            sum.stall_cycles += line.counts.stall_cycles;
        }
        let mut cells = numbers(&sum);
        cells.extend([String::new(), String::new(), String::new()]);
        cells.push(plural(others, "other line"));
        table.painted_row(Role::Quiet, cells);
    }
    table
}

fn numbers(counts: &SharingCounts) -> Vec<String> {
    [
        counts.stall_cycles,
        counts.hitm,
        counts.false_sharing,
        counts.true_sharing,
    ]
    .map(units::count)
    .to_vec()
}

fn line_name(line: &SharedLine) -> String {
    format!("{} at {:#x}", line.name, line.address)
}

/// `0-7 16-23`: bytes of the line.
fn bytes(ranges: &[ByteRange]) -> String {
    let words = ranges.iter().map(|range| match range {
        ByteRange { first, last } if first == last => first.to_string(),
        ByteRange { first, last } => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn code(access: &SharedAccess) -> String {
    let function = match &access.function {
        Some(function) => crate::names::without_arguments(function).to_owned(),
        None => format!("{} [no symbols]", file_name(&access.module)),
    };
    let code = match (&access.file, access.line) {
        (Some(file), Some(line)) => format!("{function} {}:{line}", file_name(file)),
        _ => function,
    };
    match &access.member {
        Some(member) => format!("{code}, {member}"),
        None => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_ranges() {
        let range = |first, last| ByteRange { first, last };
        assert_eq!(bytes(&[range(0, 7), range(16, 16)]), "0-7 16");
        assert_eq!(bytes(&[]), "");
    }
}
