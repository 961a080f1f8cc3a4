//! Callers of hot code that users do not change themselves: functions of libraries, and lines of
//! installed packages of Python.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

use memgauge_analyze::{CallNode, CallTree, PythonRow, Summary, file_name};

use crate::names::{NAMED_SHARE, without_arguments};
use crate::units;

/// Returns whether a module is a shared library.
pub(crate) fn is_library(module: &str) -> bool {
    let file = file_name(module);
    file.ends_with(".so") || file.contains(".so.")
}

/// Returns whether a file of Python belongs to the interpreter or to an installed package.
pub(crate) fn is_python_library(file: &str) -> bool {
    let parts = [
        "/site-packages/",
        "/dist-packages/",
        "/lib/python",
        "<frozen ",
    ];
    parts.iter().any(|part| file.contains(part))
}

/// Call paths of the samples of an event.
pub(crate) fn calls_by<'a>(event: &str, summary: &'a Summary) -> Option<&'a CallTree> {
    summary.calls.iter().find(|tree| tree.event == event)
}

/// Names the function outside of libraries that calls a function of a library most, directly or
/// not.
pub(crate) fn caller(function: &str, event: &str, summary: &Summary) -> Option<String> {
    let tree = calls_by(event, summary)?;
    let mut all = 0;
    let mut by_caller: BTreeMap<&str, u64> = BTreeMap::new();
    let inside = tree.nodes.iter().filter(|node| node.function == function);
    for node in inside.filter(|node| node.own_events > 0) {
        all += node.own_events;
        let mut at = node;
        while let Some(next) = at.caller.and_then(|index| tree.nodes.get(index as usize)) {
            if !is_library(&next.module) {
                *by_caller.entry(&next.function).or_default() += node.own_events;
                break;
            }
            at = next;
        }
    }
    let (name, events) = by_caller.into_iter().max_by_key(|&(_, events)| events)?;
    let share = events as f64 / all.max(1) as f64;
    (share >= NAMED_SHARE).then(|| {
        format!(
            " {} of that is called by {}.",
            units::share(share),
            without_arguments(name)
        )
    })
}

/// Names the function of the user's own Python that leads to a line of a library most, with the line
/// of its call.
pub(crate) fn own_caller(line: &PythonRow, summary: &Summary) -> Option<String> {
    if !is_python_library(&line.file) {
        return None;
    }
    let python = summary.python.as_ref()?;
    let tree = calls_by(&python.rank, summary)?;
    let own = python.functions.iter().chain(&python.lines);
    let own = own.filter(|row| !is_python_library(&row.file));
    // Frames are named `FUNCTION (FILE:LINE)`.
    let beginning = |row: &PythonRow| format!("{} ({}:", row.function, file_name(&row.file));
    let own: BTreeSet<String> = own.map(beginning).collect();
    let is_own = |frame: &str| {
        let begins = frame.rfind(':').map(|colon| &frame[..=colon]);
        begins.is_some_and(|begins| own.contains(begins))
    };
    let line_name = format!("{}{})", beginning(line), line.line?);
    let mut all = 0;
    let mut by_caller: BTreeMap<&str, u64> = BTreeMap::new();
    for node in tree.nodes.iter().filter(|node| node.function == line_name) {
        let above = |at: &CallNode| tree.nodes.get(at.caller? as usize);
        let callers: Vec<&CallNode> = successors(above(node), |at| above(at)).collect();
        // The events of a recursive call are among those of the outer one.
        if callers.iter().any(|at| at.function == line_name) {
            continue;
        }
        all += node.events;
        if let Some(own) = callers.iter().find(|at| is_own(&at.function)) {
            *by_caller.entry(&own.function).or_default() += node.events;
        }
    }
    let (name, events) = by_caller.into_iter().max_by_key(|&(_, events)| events)?;
    let share = events as f64 / all.max(1) as f64;
    (share >= NAMED_SHARE).then(|| format!(" {} of that is called by {name}.", units::share(share)))
}
