//! Callers of hot code that users do not change themselves: functions of libraries, and lines of
//! installed packages of Python.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

use memgauge_analyze::{
    CallNode, CallTree, HotRow, LibraryFunction, PythonRow, Summary, file_name, is_library_code,
    is_startup_code,
};

use crate::names::{NAMED_SHARE, without_arguments};
use crate::units;

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

/// The user's function that calls a function of a library most, directly or not.
pub(crate) struct OwnCaller<'a> {
    pub(crate) function: &'a str,
    pub(crate) module: &'a str,
    /// Its share of the library function's events.
    pub(crate) share: f64,
}

/// Finds that function in the recorded calls.
fn recorded_caller<'a>(row: &HotRow, event: &str, summary: &'a Summary) -> Option<OwnCaller<'a>> {
    let tree = calls_by(event, summary)?;
    let mut all = 0;
    let mut by_caller: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let inside = tree.nodes.iter().filter(|node| {
        node.own_events > 0 && (&node.function, &node.module) == (&row.function, &row.module)
    });
    for node in inside {
        all += node.own_events;
        let mut at = node;
        while let Some(next) = at.caller.and_then(|index| tree.nodes.get(index as usize)) {
            if !is_library_code(&next.module, &next.function) {
                let name = (next.function.as_str(), next.module.as_str());
                *by_caller.entry(name).or_default() += node.own_events;
                break;
            }
            at = next;
        }
    }
    let ((function, module), events) = by_caller.into_iter().max_by_key(|&(_, events)| events)?;
    (!is_startup_code(module, function)).then(|| OwnCaller {
        function,
        module,
        share: events as f64 / all.max(1) as f64,
    })
}

/// Share of a library function's events from which they count as those of its caller.
const MAIN_CALLER: f64 = 0.9;
/// The same for calls. A few that are not found may take all of the time, but such calls come from
/// code that runs before and after the program's own.
const ONLY_CALLER: f64 = 0.95;
/// Minimum share of the calls whose callers are known for these to be named.
const KNOWN_CALLS: f64 = 0.5;

/// The user's function whose time that of a library function is: by recorded calls, or because no
/// other function of the user calls it.
///
/// Rejected: the function that makes 90 % of many short calls. In 7 of 48 programs, a function that
/// made few calls with longer or colder data had nearly all of the time.
pub(crate) fn main_caller<'a>(
    row: &HotRow,
    event: &str,
    summary: &'a Summary,
) -> Option<OwnCaller<'a>> {
    if !is_library_code(&row.module, &row.function) {
        return None;
    }
    if calls_by(event, summary).is_some() {
        let caller = recorded_caller(row, event, summary)?;
        return (caller.share >= MAIN_CALLER).then_some(caller);
    }
    match counted_calls(row, summary)?.callers.as_slice() {
        [only] if only.share >= ONLY_CALLER => Some(OwnCaller {
            function: &only.function,
            module: &only.module,
            share: only.share,
        }),
        _ => None,
    }
}

/// Counted calls of a library function.
fn counted_calls<'a>(row: &HotRow, summary: &'a Summary) -> Option<&'a LibraryFunction> {
    let mut all = summary.library_functions.iter();
    all.find(|known| (&known.function, &known.module) == (&row.function, &row.module))
}

/// Maximum number of callers in a sentence.
const NAMED_CALLERS: usize = 3;

/// Names the user's functions that call a function of a library, directly or not.
pub(crate) fn callers(row: &HotRow, event: &str, summary: &Summary) -> Option<String> {
    if !is_library_code(&row.module, &row.function) {
        return None;
    }
    let function = without_arguments(&row.function);
    if let Some(caller) = recorded_caller(row, event, summary) {
        return (caller.share >= NAMED_SHARE).then(|| {
            format!(
                " {function} is called by {} ({} of its samples).",
                without_arguments(caller.function),
                units::share(caller.share)
            )
        });
    }
    let callers = &counted_calls(row, summary)?.callers;
    let known: f64 = callers.iter().map(|caller| caller.share).sum();
    if known < KNOWN_CALLS {
        return Some(format!(" Most calls of {function} go through pointers."));
    }
    // Without their shares of the calls, which say nothing about their shares of the time.
    let named = callers.iter().take(NAMED_CALLERS);
    let mut names: Vec<String> = named.map(|c| without_arguments(&c.function)).collect();
    if callers.len() > NAMED_CALLERS {
        names.push(format!("{} more", callers.len() - NAMED_CALLERS));
    }
    if known < ONLY_CALLER {
        names.push("through pointers".to_owned());
    }
    let last = names.pop()?;
    Some(match names.is_empty() {
        true => format!(" {function} is called by {last}."),
        false => format!(
            " {function} is called by {} and {last}; `record -g` shows the time of each.",
            names.join(", ")
        ),
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
