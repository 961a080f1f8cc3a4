//! Heap memory by the calls that allocate it: the sections of `memgauge heap`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memgauge_analyze::{AllocationSite, HeapErrors, HeapUse, Summary, allocator_name};

use super::data::{HeapOrder, SiteOrder, resets, sites, untouched};
use super::heap_history;
use super::plural;
use crate::names::readable;
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// Minimum share of the total for a call to have a line of its own.
const MIN_SHARE: f64 = 0.01;

/// Maximum number of indented branches.
const MAX_INDENT: usize = 16;

impl HeapOrder {
    fn in_words(self) -> &'static str {
        match self {
            HeapOrder::Peak => "bytes in use at the peak",
            HeapOrder::Bytes => "requested bytes",
            HeapOrder::Allocations => "allocations",
            HeapOrder::Unfreed => "bytes not freed",
            HeapOrder::Untouched => "bytes never used",
        }
    }

    fn text(self, value: u64) -> String {
        match self {
            HeapOrder::Allocations => units::count(value),
            _ => units::bytes(value),
        }
    }
}

/// The allocation sites, and the tree of calls that lead to them. Empty without allocations.
pub(super) fn heap(summary: &Summary, order: HeapOrder, limit: usize, style: &Style) -> String {
    let Some(heap) = &summary.heap else {
        return String::new();
    };
    let title = format!(
        "Heap: {} in use at the peak",
        with_error(
            heap,
            heap.at_peak_bytes,
            |errors| errors.at_peak_bytes,
            style
        )
    );
    let note = format!(
        "{} of {}, {} not freed{}{}",
        plural(heap.allocations, "allocation"),
        with_error(heap, heap.bytes, |errors| errors.bytes, style),
        with_error(heap, heap.live_bytes, |errors| errors.live_bytes, style),
        untouched(heap),
        if heap.errors.is_some() {
            "; sampled"
        } else {
            ""
        },
    );
    let sites = sites(heap, SiteOrder::Number(order), limit, style).draw(style);
    let rates = heap_history::rates(heap, style);
    let resets = resets(summary, style);
    style.heading(&title, &note) + &rates + &sites + &resets + "\n" + &calls(heap, order, style)
}

/// Bytes, with half their 95 % confidence interval if they are estimated from samples.
fn with_error(heap: &HeapUse, bytes: u64, error: fn(&HeapErrors) -> u64, style: &Style) -> String {
    let Some(errors) = &heap.errors else {
        return units::bytes(bytes);
    };
    let sign = if style.unicode { "±" } else { "+-" };
    format!(
        "{} {sign} {}",
        units::bytes(bytes),
        units::bytes(error(errors))
    )
}

/// Calls that lead to allocations, outermost first.
fn calls(heap: &HeapUse, order: HeapOrder, style: &Style) -> String {
    let mut root = Call::default();
    for path in &heap.paths {
        root.add(path, order.value(path));
    }
    let title = format!("Calls by {}", order.in_words());
    if root.value == 0 {
        return style.heading(&title, "none");
    }
    let mut table = Table::new(&[
        ("share", ColumnKind::Number),
        (
            if order == HeapOrder::Allocations {
                "count"
            } else {
                "bytes"
            },
            ColumnKind::Number,
        ),
        ("function and the line of its call", ColumnKind::Text),
    ]);
    root.rows(1, root.value, order, &mut table, style);
    style.heading(&title, "outermost caller first; at most twelve calls") + &table.draw(style)
}

/// Returns true if a function only leads to `main`.
fn is_startup(function: &str) -> bool {
    let names = ["_start", "_dl_start", "__libc_start", "(below main)"];
    names.iter().any(|name| function.starts_with(name))
}

/// A function called along one path.
#[derive(Default)]
struct Call {
    value: u64,
    callees: BTreeMap<String, Call>,
}

impl Call {
    fn add(&mut self, path: &AllocationSite, value: u64) {
        self.value += value;
        let mut at = self;
        // The function `_start` of a program without symbols has another name.
        let startup = path
            .calls
            .iter()
            .position(|call| is_startup(&call.function));
        for call in path.calls[..startup.unwrap_or(path.calls.len())]
            .iter()
            .rev()
        {
            let name = match call.place() {
                Some(place) if call.is_unnamed() => place,
                Some(place) => format!("{} ({place})", readable(&call.function)),
                None => readable(&call.function),
            };
            at = at.callees.entry(name).or_default();
            at.value += value;
        }
        let allocator = allocator_name(&path.function).to_owned();
        at.callees.entry(allocator).or_default().value += value;
    }

    /// Adds rows for the calls of a function. Only the branches of a path are indented, so that long
    /// chains of single calls fit.
    fn rows(&self, depth: usize, all: u64, order: HeapOrder, table: &mut Table, style: &Style) {
        let mut callees: Vec<_> = self.callees.iter().collect();
        callees.sort_by_key(|(_, call)| Reverse(call.value));
        let share = |value: u64| value as f64 / all as f64;
        let large = callees
            .iter()
            .take_while(|(_, call)| share(call.value) >= MIN_SHARE);
        let shown = large.count();
        let hidden: Vec<u64> = callees[shown..]
            .iter()
            .map(|(_, call)| call.value)
            .collect();
        let hidden_value: u64 = hidden.iter().sum();
        let is_branch = shown > 1 || share(hidden_value) >= MIN_SHARE;
        let depth = depth + usize::from(is_branch && depth + 1 < MAX_INDENT);
        let indent = "  ".repeat(depth.saturating_sub(1));
        // The only call of the function in the row above.
        let mark = match (is_branch || self.value == all && depth == 1, style.unicode) {
            (true, _) => "",
            (false, true) => "└ ",
            (false, false) => "> ",
        };
        for (name, call) in &callees[..shown] {
            table.row(vec![
                units::share(share(call.value)),
                order.text(call.value),
                format!("{indent}{mark}{}", style.name(name)),
            ]);
            call.rows(depth, all, order, table, style);
        }
        // A tiny rest of a chain is not worth a line.
        if is_branch && hidden_value > 0 {
            let calls = plural(hidden.len() as u64, "smaller call");
            let cells = vec![
                units::share(share(hidden_value)),
                order.text(hidden_value),
                format!("{indent}({calls})"),
            ];
            table.painted_row(Role::Quiet, cells);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memgauge_analyze::AllocationCall;

    use super::*;

    fn path(calls: &[&str], at_peak_bytes: u64, allocations: u64) -> AllocationSite {
        let call = |name: &&str| AllocationCall {
            function: (*name).to_owned(),
            module: "prog".to_owned(),
            ..AllocationCall::default()
        };
        AllocationSite {
            name: String::new(),
            function: "malloc".to_owned(),
            paths: 1,
            calls: calls.iter().map(call).map(Arc::new).collect(),
            named_by: 0,
            allocations,
            bytes: at_peak_bytes,
            frees: 0,
            at_peak_bytes,
            live_bytes: 0,
            untouched_bytes: None,
            mean_lifetime_ns: None,
            temporary: 0,
            errors: None,
        }
    }

    #[test]
    fn calls_are_a_tree_from_the_outermost_with_small_ones_summed() {
        let mut summary = crate::fixture::empty();
        summary.heap = Some(HeapUse {
            allocations: 1000,
            bytes: 1024,
            at_peak_bytes: 1024,
            paths: vec![
                path(
                    &["leaf", "main", "__libc_start_call_main", "_start"],
                    512,
                    1,
                ),
                path(&["other", "main"], 504, 998),
                path(&["tiny", "main"], 8, 1),
            ],
            ..HeapUse::default()
        });
        let shown = |order| {
            let text = heap(&summary, order, 10, &crate::fixture::plain(80, false));
            let tree = text.split("Calls by").last().unwrap_or_default().to_owned();
            tree.lines()
                .skip(2)
                .map(|line| line.trim_end().to_owned())
                .collect::<Vec<_>>()
        };
        let by_peak = shown(HeapOrder::Peak);
        assert!(
            by_peak[0].ends_with("main") && by_peak[0].contains("1.00 KiB"),
            "{by_peak:?}"
        );
        assert!(
            by_peak[1].contains("50.0 %") && by_peak[1].ends_with("  leaf"),
            "{by_peak:?}"
        );
        assert!(by_peak[2].ends_with("> malloc"), "{by_peak:?}");
        assert!(
            by_peak[5].contains("8 B") && by_peak[5].ends_with("(1 smaller call)"),
            "{by_peak:?}"
        );
        let by_count = shown(HeapOrder::Allocations);
        assert!(
            by_count[1].contains("99.8 %") && by_count[1].ends_with("other"),
            "{by_count:?}"
        );
        assert_eq!(shown(HeapOrder::Unfreed), Vec::<String>::new());
    }
}
