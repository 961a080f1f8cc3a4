//! The calls that led to the hottest functions, and functions with all that they call.

use memgauge_analyze::{CallTree, CalledFrom, Summary};

use super::{has_every, of_samples, or_none, plural};
use crate::style::{Role, Style};
use crate::table::{Kind, Table};
use crate::units;

/// Functions, paths to each, and callers of each path that are shown.
const FUNCTIONS: usize = 5;
const PATHS: usize = 3;
const CALLERS: usize = 24;
/// Functions that are shown with what they call.
const INCLUSIVE: usize = 10;
/// Part of a function's events that a further path must have.
const LEAST: f64 = 0.05;

/// Of the event with most samples.
pub(super) fn callers(summary: &Summary, style: &Style) -> String {
    let Some(tree) = summary.calls.first() else {
        return String::new();
    };
    let title = format!(
        "Callers of the hottest functions by {}",
        style.name(&tree.event)
    );
    let samples = of_samples(has_every(summary, &tree.event), tree.samples);
    let mut note = format!("{samples}; innermost caller first");
    if let Some(share) = tree.share_of_others() {
        note += &format!("; {} by chains not told apart", units::share(share));
    }
    let mut table = Table::new(&[("share", Kind::Number), ("function", Kind::Text)]);
    for function in tree.hottest(FUNCTIONS) {
        rows(&function, &mut table, style);
    }
    style.heading(&title, &note) + &table.draw(style) + "\n" + &inclusive(tree, style)
}

/// Functions, by events in them and in what they call.
fn inclusive(tree: &CallTree, style: &Style) -> String {
    let title = format!(
        "Functions with what they call, by {}",
        style.name(&tree.event)
    );
    let note = "one that calls itself counts once";
    let mut table = Table::new(&[
        ("with calls", Kind::Number),
        ("alone", Kind::Number),
        ("function", Kind::Text),
    ]);
    for (function, all, alone) in tree.inclusive(INCLUSIVE) {
        let share = |share| or_none(share, units::share, style);
        table.row(vec![share(all), share(alone), style.name(function)]);
    }
    style.heading(&title, note) + &table.draw(style)
}

fn rows(called: &CalledFrom, table: &mut Table, style: &Style) {
    let share = |share| or_none(share, units::share, style);
    table.row(vec![share(called.share), style.name(called.function)]);
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

/// Callers, innermost first; how often one that calls itself.
fn chain(path: &[&str], style: &Style) -> String {
    let times = if style.unicode { "×" } else { "x" };
    let mut text = String::new();
    let mut calls = path.chunk_by(|a, b| a == b);
    for same in calls.by_ref().take(CALLERS) {
        text += &format!("< {} ", same[0]);
        if same.len() > 1 {
            text += &format!("{times}{} ", same.len());
        }
    }
    match calls.map(<[_]>::len).sum() {
        0 => text.trim_end().to_owned(),
        more => format!("{text}< ({})", plural(more as u64, "more caller")),
    }
}
