//! Writes folded stacks for flame graphs: `outer;inner COUNT`. These are the call chains of an
//! event if stacks were recorded, otherwise the module and the inlined functions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use memgauge_analyze::{
    AllocationSite, CallNode, CallTree, HotRow, HotTable, Summary, file_name, metric_name,
};

use super::places::{events, with_rest};
use super::{Error, NOT_LISTED};

/// Bytes to and from memory: the sum of two events, by which reports may be ranked.
const DRAM_BYTES: &str = "dram_bytes";

pub(crate) fn write(
    summary: &Summary,
    event: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    if let Some((event, bytes)) = event.and_then(of_heap) {
        return write_allocations(summary, event, bytes, out);
    }
    if let Some(tree) = tree(summary, event) {
        return write_calls(tree, out);
    }
    let table = &summary.hot.functions;
    let mut known = events(summary, table)?;
    // Totals, which have no place in the code but an allocation's.
    known.retain(|event| of_heap(event).is_none());
    if summary.heap.is_some() {
        known.extend(OF_HEAP.map(|(name, _)| name.to_owned()));
    }
    write_functions(table, &known, event, out)
}

/// The number of an allocation that an event of the heap stands for.
type OfAllocation = fn(&AllocationSite) -> u64;

const OF_HEAP: [(&str, OfAllocation); 5] = [
    ("heap.peak_bytes", |site| site.at_peak_bytes),
    ("heap.unfreed_bytes", |site| site.live_bytes),
    ("heap.untouched_bytes", |site| {
        site.untouched_bytes.unwrap_or(0)
    }),
    ("heap.bytes", |site| site.bytes),
    ("heap.allocations", |site| site.allocations),
];

fn of_heap(event: &str) -> Option<(&'static str, OfAllocation)> {
    let event = metric_name(event);
    OF_HEAP.into_iter().find(|(name, _)| *name == event)
}

/// The call paths of allocations, with the function that allocates as the innermost.
fn write_allocations(
    summary: &Summary,
    event: &str,
    of: OfAllocation,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let paths = summary.heap.iter().flat_map(|heap| &heap.paths);
    let mut paths = paths.filter(|path| of(path) > 0).peekable();
    if paths.peek().is_none() {
        return Err(Error::NoCounts(event.to_owned()));
    }
    for path in paths {
        let callers = path.calls.iter().rev().map(|call| call.function.as_str());
        let names = callers.chain([allocator(&path.function)]);
        writeln!(out, "{} {}", folded(names), of(path))?;
    }
    Ok(())
}

/// The name of an allocation function as people write it.
fn allocator(symbol: &str) -> &str {
    match symbol {
        _ if symbol.starts_with("_Znw") => "operator new",
        _ if symbol.starts_with("_Zna") => "operator new[]",
        _ => symbol,
    }
}

fn write_functions(
    table: &HotTable,
    known: &[String],
    event: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    // The event that orders the table can be a sum, which is not among the counts of a row.
    let event = event.filter(|&event| event != table.rank);
    let is_known = |event: &str| event == DRAM_BYTES || known.iter().any(|name| name == event);
    let unknown = event.filter(|event| !is_known(event));
    if let Some(event) = unknown {
        return Err(Error::NoEvent(event.to_owned(), known.to_vec()));
    }
    let mut is_empty = true;
    for (row, counts) in with_rest(table) {
        let count = match (event, row) {
            (Some(DRAM_BYTES), _) => {
                let directions = ["dram.read_bytes", "dram.write_bytes"];
                directions.iter().filter_map(|name| counts.get(*name)).sum()
            }
            (Some(event), _) => counts.get(event).copied().unwrap_or(0),
            (None, Some(row)) => row.value,
            (None, None) => table.others.value,
        };
        if count > 0 {
            is_empty = false;
            writeln!(out, "{} {count}", row.map_or(NOT_LISTED.to_owned(), stack))?;
        }
    }
    match is_empty {
        true => Err(Error::NoCounts(event.unwrap_or(&table.rank).to_owned())),
        false => Ok(()),
    }
}

/// Returns the module, then the functions from the outermost to the innermost.
fn stack(row: &HotRow) -> String {
    let outer = row
        .inlined_into
        .iter()
        .rev()
        .map(|caller| caller.function.as_str());
    let names = [file_name(&row.module)]
        .into_iter()
        .chain(outer)
        .chain([row.function.as_str()]);
    folded(names)
}

/// Returns the call tree of an event, or the first tree if no event is given.
fn tree<'a>(summary: &'a Summary, event: Option<&str>) -> Option<&'a CallTree> {
    let mut trees = summary.calls.iter();
    match event {
        Some(event) => trees.find(|tree| tree.event == event),
        None => trees.next(),
    }
}

fn write_calls(tree: &CallTree, out: &mut dyn Write) -> Result<(), Error> {
    let nodes = || tree.nodes.iter().filter(|node| node.own_events > 0);
    if nodes().next().is_none() {
        return Err(Error::NoCounts(tree.event.clone()));
    }
    let modules = modules_by_function(tree);
    for node in nodes() {
        let mut chain = vec![frame_name(node, &modules)];
        let mut caller = node.caller;
        while let Some(outer) = caller.and_then(|at| tree.nodes.get(at as usize)) {
            chain.push(frame_name(outer, &modules));
            caller = outer.caller;
        }
        let names = chain.iter().rev().map(String::as_str);
        writeln!(out, "{} {}", folded(names), node.own_events)?;
    }
    Ok(())
}

/// The modules that have a function of a name.
fn modules_by_function(tree: &CallTree) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut modules: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for node in &tree.nodes {
        modules
            .entry(&node.function)
            .or_default()
            .insert(&node.module);
    }
    modules
}

/// The function's name, with its module if functions of other modules have the same name. The
/// program and the dynamic loader both have a `_start`, and tools add up frames with equal names.
fn frame_name(node: &CallNode, modules: &BTreeMap<&str, BTreeSet<&str>>) -> String {
    let is_ambiguous = modules
        .get(node.function.as_str())
        .is_some_and(|m| m.len() > 1);
    match is_ambiguous && !node.module.is_empty() {
        true => format!("{} [{}]", node.function, file_name(&node.module)),
        false => node.function.clone(),
    }
}

fn folded<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let frame = |name: &str| name.replace(';', ":").replace(['\n', '\r'], " ");
    names.map(frame).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_without_counts_is_refused() {
        let mut table = HotTable {
            rank: "llc.miss".to_owned(),
            ..HotTable::default()
        };
        let known = ["llc.miss", "loads"].map(str::to_owned);
        table.others.counts = known.iter().map(|name| (name.clone(), 0)).collect();
        for event in [None, Some("loads")] {
            let refused = write_functions(&table, &known, event, &mut Vec::new());
            assert!(matches!(refused, Err(Error::NoCounts(_))), "{refused:?}");
        }
        table.others.counts.insert("loads".to_owned(), 7);
        let mut text = Vec::new();
        write_functions(&table, &known, Some("loads"), &mut text).unwrap();
        assert_eq!(text, b"[not listed] 7\n");
    }

    #[test]
    fn call_tree_without_counts_is_refused_with_the_same_message() {
        let node = |own_events| CallNode {
            function: "touch".to_owned(),
            module: "prog".to_owned(),
            caller: None,
            samples: 1,
            events: own_events,
            own_events,
        };
        let tree = |own_events| CallTree {
            event: "loads".to_owned(),
            nodes: vec![node(own_events)],
            ..CallTree::default()
        };
        let refused = write_calls(&tree(0), &mut Vec::new()).expect_err("nothing to write");
        assert_eq!(
            refused.to_string(),
            Error::NoCounts("loads".to_owned()).to_string()
        );
        let mut text = Vec::new();
        write_calls(&tree(7), &mut text).unwrap();
        assert_eq!(text, b"touch 7\n");
    }
}
