//! Callers of the hottest functions, and functions with all that they call.

use memgauge_analyze::{CallTree, CalledFrom, Summary, file_name};
use memgauge_trace::CallGraph;

use super::{has_every, of_samples, or_none, plural};
use crate::names::readable;
use crate::style::{Role, Style};
use crate::table::{ColumnKind, Table};
use crate::units;

/// Maximum number of functions, of paths to each, and of callers in a path.
const FUNCTIONS: usize = 5;
const PATHS: usize = 3;
const CALLERS: usize = 24;
/// Maximum number of functions with inclusive events.
const INCLUSIVE: usize = 10;
/// Minimum share of events without a caller to mention it. Leaf functions lose their callers even
/// with frame pointers.
const NO_CALLERS: f64 = 0.3;
/// Minimum share of a function's events for a further path.
const LEAST: f64 = 0.05;

/// Callers of the event with the most samples.
pub(super) fn callers(summary: &Summary, style: &Style) -> String {
    let Some(tree) = summary.calls.first() else {
        return no_caller(summary, style).unwrap_or_default();
    };
    let title = format!(
        "Callers of the hottest functions by {}",
        style.name(&tree.event)
    );
    let samples = of_samples(has_every(summary, &tree.event), tree.samples);
    let mut note = format!("{samples}; innermost caller first");
    if let Some(share) = tree.share_of_others() {
        note += &format!("; {} in merged call chains", units::share(share));
    }
    let mut table = Table::new(&[
        ("share", ColumnKind::Number),
        ("function", ColumnKind::Text),
    ]);
    for function in tree.hottest(FUNCTIONS) {
        rows(&function, &mut table, style);
    }
    let hint = without_callers(tree, summary, style).unwrap_or_default();
    style.heading(&title, &note) + &table.draw(style) + &hint + "\n" + &inclusive(tree, style)
}

/// Remedy if unwinding by frame pointers finds no callers.
const WAY_OUT: &str = "Programs without frame pointers need `record --call-graph dwarf`, or a \
                       build with -fno-omit-frame-pointer.";

/// Advice if stacks were recorded but none has a caller.
fn no_caller(summary: &Summary, style: &Style) -> Option<String> {
    let method = summary.recording.source.settings.call_graph?;
    let has_samples = summary.hot.functions.samples.is_some_and(|n| n > 0);
    has_samples.then(|| {
        let line = match method {
            CallGraph::FramePointers => format!("No sample has a known caller. {WAY_OUT}"),
            CallGraph::Dwarf => "No sample has a known caller.".to_owned(),
        };
        style.heading("Callers", "") + &style.wrap(&line, 2)
    })
}

/// Advice if the kernel found no callers of most samples. The emulator always knows them.
fn without_callers(tree: &CallTree, summary: &Summary, style: &Style) -> Option<String> {
    let alone = tree.nodes.iter().filter(|node| node.caller.is_none());
    let alone: u64 = alone.map(|node| node.own_events).sum();
    let share = alone as f64 / tree.events.max(1) as f64;
    let is_native = summary.recording.machine.is_none();
    (is_native && share >= NO_CALLERS).then(|| {
        let line = format!("{} have no known caller. {WAY_OUT}", units::share(share));
        style.wrap(&line, 2)
    })
}

/// Functions by events in them and in what they call.
fn inclusive(tree: &CallTree, style: &Style) -> String {
    let title = format!(
        "Functions with what they call, by {}",
        style.name(&tree.event)
    );
    let note = "one that calls itself counts once";
    let mut table = Table::new(&[
        ("with calls", ColumnKind::Number),
        ("alone", ColumnKind::Number),
        ("function", ColumnKind::Text),
        ("module", ColumnKind::Text),
    ]);
    for row in tree.inclusive(INCLUSIVE) {
        let share = |share| or_none(share, units::share, style);
        table.row(vec![
            share(row.share),
            share(row.own_share),
            style.name(&readable(row.function)),
            style.name(file_name(row.module)),
        ]);
    }
    style.heading(&title, note) + &table.draw(style)
}

fn rows(called: &CalledFrom, table: &mut Table, style: &Style) {
    let share = |share| or_none(share, units::share, style);
    table.row(vec![
        share(called.share),
        style.name(&readable(called.function)),
    ]);
    let least = called.share.unwrap_or(0.0) * LEAST;
    let large = called
        .paths
        .iter()
        .take_while(|(part, _)| part.unwrap_or(0.0) >= least);
    let shown = large.take(PATHS).count().max(1);
    for (part, path) in called.paths.iter().take(shown) {
        let callers = match path.is_empty() {
            true => "(no caller known)".to_owned(),
            false => chain(path, style),
        };
        let cells = vec![share(*part), format!("  {}", style.name(&callers))];
        table.painted_row(Role::Quiet, cells);
    }
    let hidden = called.paths.len().saturating_sub(shown);
    if hidden > 0 {
        let more = format!("  ({})", plural(hidden as u64, "other path"));
        let rest = called.paths[shown..].iter().filter_map(|(part, _)| *part);
        table.painted_row(Role::Quiet, vec![share(Some(rest.sum())), more]);
    }
}

/// Callers, innermost first. A recursive function appears once with a count.
fn chain(path: &[&str], style: &Style) -> String {
    let times = if style.unicode { "×" } else { "x" };
    let mut text = String::new();
    let mut calls = path.chunk_by(|a, b| a == b);
    for same in calls.by_ref().take(CALLERS) {
        text += &format!("< {} ", readable(same[0]));
        if same.len() > 1 {
            text += &format!("{times}{} ", same.len());
        }
    }
    match calls.map(<[_]>::len).sum() {
        0 => text.trim_end().to_owned(),
        more => format!("{text}< ({})", plural(more as u64, "more caller")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_analyze::CallNode;

    #[test]
    fn samples_without_callers_name_the_way_that_finds_them() {
        let node = |caller, own_events| CallNode {
            function: "touch".to_owned(),
            module: "prog".to_owned(),
            caller,
            samples: 1,
            events: own_events,
            own_events,
        };
        let mut summary = crate::fixture::empty();
        summary.recording.machine = None;
        let mut text = |alone: u64| {
            summary.calls = vec![CallTree {
                event: "cpu-clock".to_owned(),
                samples: 10,
                events: 10,
                nodes: vec![node(None, alone), node(Some(0), 10 - alone)],
                ..CallTree::default()
            }];
            callers(&summary, &crate::fixture::plain(80, true))
        };
        let most = text(7);
        assert!(most.contains("70.0 % have no known caller"), "{most}");
        assert!(most.contains("--call-graph dwarf"), "{most}");
        assert!(!text(2).contains("known caller. "));
    }

    #[test]
    fn stacks_of_which_none_has_a_caller_are_named() {
        let mut summary = crate::fixture::empty();
        let text = |summary: &Summary| callers(summary, &crate::fixture::plain(80, true));
        summary.hot.functions.samples = Some(14);
        assert_eq!(text(&summary), "", "nobody asked for stacks");
        let mut ask = |method: CallGraph| {
            summary.recording.source.settings.call_graph = Some(method);
            text(&summary)
        };
        assert!(ask(CallGraph::FramePointers).contains("`record --call-graph dwarf`"));
        let dwarf = ask(CallGraph::Dwarf);
        assert!(dwarf.contains("No sample has a known caller.") && !dwarf.contains("`record"));
    }
}
