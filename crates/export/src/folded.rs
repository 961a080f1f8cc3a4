//! Folded stacks: `outer;inner COUNT`, as flame graphs want them: the calls that led to
//! an event where stacks were recorded, else the module and the functions inlined there.

use std::io::Write;

use memgauge_analyze::{CallTree, HotRow, Summary};

use super::places::{events, file_name, with_rest};
use super::{Error, NOT_LISTED};

pub(crate) fn write(
    summary: &Summary,
    event: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    if let Some(tree) = tree(summary, event) {
        return write_calls(tree, out);
    }
    let table = &summary.hot.functions;
    let known = events(table)?;
    let unknown = event.filter(|&event| !known.iter().any(|name| name == event));
    if let Some(event) = unknown {
        return Err(Error::NoEvent(event.to_owned(), known));
    }
    for (row, counts) in with_rest(table) {
        let count = match (event, row) {
            (Some(event), _) => counts.get(event).copied().unwrap_or(0),
            (None, Some(row)) => row.value,
            (None, None) => table.others.value,
        };
        if count > 0 {
            writeln!(out, "{} {count}", row.map_or(NOT_LISTED.to_owned(), stack))?;
        }
    }
    Ok(())
}

/// Module, then the functions from the outermost in.
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

/// The calls that led to an event; of the first where none is named.
fn tree<'a>(summary: &'a Summary, event: Option<&str>) -> Option<&'a CallTree> {
    let mut trees = summary.calls.iter();
    match event {
        Some(event) => trees.find(|tree| tree.event == event),
        None => trees.next(),
    }
}

fn write_calls(tree: &CallTree, out: &mut dyn Write) -> Result<(), Error> {
    for node in tree.nodes.iter().filter(|node| node.own_events > 0) {
        let callers = tree.callers(node);
        let names = callers.into_iter().rev().chain([node.function.as_str()]);
        writeln!(out, "{} {}", folded(names), node.own_events)?;
    }
    Ok(())
}

fn folded<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let frame = |name: &str| name.replace(';', ":").replace(['\n', '\r'], " ");
    names.map(frame).collect::<Vec<_>>().join(";")
}
