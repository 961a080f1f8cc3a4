//! Heap memory over time, and allocations by size and lifetime.

use memgauge_analyze::{HeapClass, HeapOverTime, HeapUse, Summary};

use super::{clock, plural};
use crate::plot::{self, ColumnMark, Panel};
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

const ROW_RANGE: &str = "up to the next row";

/// Columns of the longest bar of a histogram.
const BAR: u64 = 30;

/// The bytes in use over time with their peak. Empty if the recording has no history.
pub(super) fn over_time(summary: &Summary, style: &Style) -> String {
    let heap = summary.heap.as_ref();
    let Some(history) = heap.and_then(|heap| heap.over_time.as_ref()) else {
        return String::new();
    };
    let most = history.in_use.iter().copied().max().unwrap_or(0);
    if most == 0 || history.duration_ns == 0 {
        return String::new();
    }
    let resident = history.resident.as_deref();
    let most = resident.into_iter().flatten().copied().fold(most, u64::max);
    let (unit_bytes, unit) = byte_unit(most);
    let columns = plot::columns(style);
    let columns_of = |bins: &[u64]| -> Vec<f64> {
        let values = maxima(history, bins, columns).into_iter();
        values
            .map(|bytes| bytes as f64 / unit_bytes as f64)
            .collect()
    };
    let values = columns_of(&history.in_use);
    let of_resident = resident.map(columns_of);
    // The label of a panel has seven columns.
    let resident_name = format!("RSS {unit}");
    let peak = units::nanoseconds(history.peak_ns, style);
    let mut panels = vec![Panel {
        name: unit,
        role: Role::Read,
        values: &values,
        mark: Some(ColumnMark {
            column: column_of(history.peak_ns, history.duration_ns, columns),
            label: format!("peak at {peak}"),
        }),
    }];
    panels.extend(of_resident.as_ref().map(|values| Panel {
        name: &resident_name,
        role: Role::Write,
        values,
        mark: None,
    }));
    let column_ns = (history.duration_ns / columns as u64).max(history.bin_ns);
    let note = format!(
        "a column is the maximum of {}",
        units::nanoseconds(column_ns, style)
    );
    let what = match resident {
        Some(_) => "Allocated and resident memory",
        None => "Allocated memory",
    };
    let title = format!("{what} over {}", clock(summary));
    style.heading(&title, &note) + &plot::draw(&panels, history.duration_ns, style)
}

/// Unit of bytes in which a number has at most four digits.
fn byte_unit(most: u64) -> (u64, &'static str) {
    match most {
        0..0x400 => (1, "B"),
        0x400..0x10_0000 => (1 << 10, "KiB"),
        0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    }
}

fn column_of(time_ns: u64, duration_ns: u64, columns: usize) -> usize {
    let column = u128::from(time_ns) * columns as u128 / u128::from(duration_ns.max(1));
    (column as usize).min(columns - 1)
}

/// Maximum of the bins of each column. A column without the start of a bin has the bin before it.
fn maxima(history: &HeapOverTime, bins: &[u64], columns: usize) -> Vec<u64> {
    let mut values: Vec<Option<u64>> = vec![None; columns];
    for (&bytes, number) in bins.iter().zip(0..) {
        let column = column_of(number * history.bin_ns, history.duration_ns, columns);
        values[column] = values[column].max(Some(bytes));
    }
    let mut last = 0;
    let filled = values.into_iter().map(|value| {
        last = value.unwrap_or(last);
        last
    });
    filled.collect()
}

/// Rate of allocations, and how many are temporary.
pub(super) fn rates(heap: &HeapUse, style: &Style) -> String {
    let mut text = String::new();
    if let Some(rate) = heap.allocations_per_s {
        text += &format!(
            "{} allocations per second",
            units::count(rate.round() as u64)
        );
    }
    if heap.temporary > 0 && heap.allocations > 0 {
        let share = heap.temporary as f64 / heap.allocations as f64;
        let sep = if text.is_empty() { "" } else { "; " };
        text += &format!(
            "{sep}{} temporary ({}): the same thread freed them before it allocated again",
            units::count(heap.temporary),
            units::share(share)
        );
    }
    match text.is_empty() {
        true => text,
        false => style.wrap(&text, 2),
    }
}

/// Allocations by size, and by lifetime. Empty if the recording has none of them.
pub(super) fn histograms(heap: &HeapUse, style: &Style) -> String {
    let Some(histograms) = &heap.histograms else {
        return String::new();
    };
    let sizes = histogram("size from", &histograms.sizes, units::bytes, style);
    let lifetime = |ns| units::nanoseconds(ns, style);
    let lifetimes = histogram("lifetime from", &histograms.lifetimes, lifetime, style);
    let mut text = style.heading("Allocations by size", ROW_RANGE) + &sizes.draw(style);
    if !histograms.lifetimes.is_empty() {
        let note = match histograms.unfreed {
            0 => ROW_RANGE.to_owned(),
            unfreed => format!("{ROW_RANGE}; {} not freed", plural(unfreed, "allocation")),
        };
        text += "\n";
        text += &style.heading("Allocations by lifetime", &note);
        text += &lifetimes.draw(style);
    }
    text
}

fn histogram(
    title: &str,
    classes: &[HeapClass],
    text: impl Fn(u64) -> String,
    style: &Style,
) -> Table {
    let classes = in_pairs(classes);
    let mut table = Table::new(&[
        (title, ColumnKind::Number),
        ("allocations", ColumnKind::Number),
        ("share", ColumnKind::Number),
        ("", ColumnKind::Label),
    ]);
    let all: u64 = classes.iter().map(|class| class.allocations).sum();
    let most = classes.iter().map(|class| class.allocations).max();
    let most = most.unwrap_or(0).max(1);
    let mark = if style.unicode { "█" } else { "#" };
    for class in &classes {
        let share = class.allocations as f64 / all.max(1) as f64;
        let length = (class.allocations as f64 / most as f64 * BAR as f64).round() as usize;
        let length = length.max(usize::from(class.allocations > 0));
        table.row(vec![
            text(class.min),
            units::count(class.allocations),
            units::share(share),
            mark.repeat(length),
        ]);
    }
    table
}

/// Joins two classes each, so that all sizes fit a screen: 16 to 63, 64 to 255.
fn in_pairs(classes: &[HeapClass]) -> Vec<HeapClass> {
    let mut joined: Vec<HeapClass> = Vec::new();
    for class in classes {
        // Classes begin at powers of two. An even exponent begins a pair, and so does 0.
        let begins = class.min == 0 || class.min.trailing_zeros().is_multiple_of(2);
        match joined.last_mut().filter(|_| !begins) {
            Some(last) => {
                last.max = class.max;
                last.allocations += class.allocations;
            }
            None => joined.push(*class),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use memgauge_analyze::HeapHistograms;

    use super::*;

    fn class(bits: u32, allocations: u64) -> HeapClass {
        HeapClass {
            min: 1 << (bits - 1),
            max: (1 << bits) - 1,
            allocations,
        }
    }

    #[test]
    fn the_plot_marks_the_peak_of_a_short_and_high_use() {
        let mut in_use = vec![1 << 20; 512];
        in_use[256] = 6 << 20;
        let mut summary = crate::fixture::empty();
        summary.heap = Some(HeapUse {
            over_time: Some(HeapOverTime {
                bin_ns: 1_000_000,
                duration_ns: 512_000_000,
                peak_ns: 256_000_000,
                resident: None,
                in_use,
                sites: Vec::new(),
                other_bytes: Vec::new(),
            }),
            ..HeapUse::default()
        });
        let text = over_time(&summary, &crate::fixture::plain(80, false));
        let lines: Vec<&str> = text.lines().collect();
        let named = lines.iter().position(|line| line.contains("peak at 256"));
        let named = named.expect("a mark");
        let mark = lines[named].find('v').expect("a mark");
        assert!(lines[named].trim_start().starts_with("MiB"), "{text}");
        for line in &lines[named + 1..named + 6] {
            assert_eq!(line.find('#'), Some(mark), "{text}");
            assert_eq!(line.matches('#').count(), 1, "{text}");
        }
        assert!(lines[named + 6].matches('#').count() > 60, "{text}");
    }

    #[test]
    fn histograms_have_a_bar_for_each_four_times_larger_class() {
        let heap = HeapUse {
            histograms: Some(HeapHistograms {
                sizes: vec![class(4, 10), class(5, 20), class(6, 40), class(7, 0)],
                lifetimes: vec![class(11, 1)],
                unfreed: 69,
            }),
            ..HeapUse::default()
        };
        let text = histograms(&heap, &crate::fixture::plain(80, false));
        let row = |start: &str| {
            let line = text
                .lines()
                .find(|line| line.trim().starts_with(start))
                .unwrap_or_else(|| panic!("no {start}: {text}"));
            let words: Vec<&str> = line.split_whitespace().skip(2).collect();
            words.join(" ")
        };
        assert_eq!(row("8 B"), format!("10 14.3 % {}", "#".repeat(5)));
        assert_eq!(row("16 B"), format!("60 85.7 % {}", "#".repeat(30)));
        assert_eq!(row("64 B"), "0 0 %");
        assert!(text.contains("69 allocations not freed"), "{text}");
        assert_eq!(row("1.02 us"), format!("1 100 % {}", "#".repeat(30)));
    }
}
