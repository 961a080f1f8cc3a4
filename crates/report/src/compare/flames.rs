//! Two flame graphs of a comparison, one over the shape of each run.
//!
//! Width is a box's share of the events of its run, so a function that vanished is still seen in
//! the graph of the run before. Colour is the change of the events in a box, relative to all
//! events of the larger run: red for more, blue for fewer.

use std::collections::HashMap;
use std::fmt::Write as _;

use memgauge_analyze::{CallTree, file_name};

use super::curves::RunCurves;
use super::html::text;
use crate::names::readable;
use crate::units;

/// Size of a graph and of its boxes, in the drawing's own units.
const WIDE: f64 = 1000.0;
const ROW: f64 = 18.0;
/// Narrower boxes are not drawn.
const NARROWEST: f64 = 1.0;
/// Width of a letter, at most.
const LETTER: f64 = 7.2;
/// Deeper calls are not drawn.
const DEEPEST: usize = 64;
/// Changes below this share of all events are no change.
const UNCHANGED: f64 = 0.001;
/// Number of shades of a colour. The last one means a change of at least [`FULL`] of all events.
const STEPS: f64 = 5.0;
const FULL: f64 = 0.2;

/// A call path of either run.
#[derive(Default)]
struct FlameNode {
    function: String,
    module: String,
    /// Events before and after.
    events: [u64; 2],
    called: Vec<usize>,
}

/// Call paths of two runs.
struct Merged {
    nodes: Vec<FlameNode>,
    tops: Vec<usize>,
    /// All events before and after.
    events: [u64; 2],
}

/// Flame graphs of the first run before and the first run after. Empty if one of them lacks call
/// stacks.
pub(super) fn flames(runs: &[RunCurves]) -> String {
    let of_group = |group: usize| runs.iter().find(|run| run.group == group)?.calls.as_ref();
    let (Some(before), Some(after)) = (of_group(0), of_group(1)) else {
        return String::new();
    };
    if before.event != after.event || before.events == 0 || after.events == 0 {
        return String::new();
    }
    let merged = merge([before, after]);
    let mut page = format!("<h2>Call paths, by {}</h2>\n", text(&after.event));
    page += "<p>Width is a share of the run's events. Red: more events than before, blue: fewer; \
             the stronger, the larger the change.</p>\n";
    for (side, title) in [(1, "After"), (0, "Before")] {
        page += &graph(&merged, side, title);
    }
    page
}

fn merge(trees: [&CallTree; 2]) -> Merged {
    let mut merged = Merged {
        nodes: Vec::new(),
        tops: Vec::new(),
        events: trees.map(|tree| tree.events),
    };
    let mut known: HashMap<(Option<usize>, &str, &str), usize> = HashMap::new();
    for (side, tree) in trees.into_iter().enumerate() {
        // In the list of nodes, callers come before their callees.
        let mut numbers: Vec<usize> = Vec::new();
        for node in &tree.nodes {
            let caller = node
                .caller
                .and_then(|caller| numbers.get(caller as usize))
                .copied();
            let key = (caller, node.function.as_str(), node.module.as_str());
            let number = *known.entry(key).or_insert_with(|| {
                let number = merged.nodes.len();
                merged.nodes.push(FlameNode {
                    function: node.function.clone(),
                    module: node.module.clone(),
                    ..FlameNode::default()
                });
                match caller {
                    Some(caller) => merged.nodes[caller].called.push(number),
                    None => merged.tops.push(number),
                }
                number
            });
            merged.nodes[number].events[side] += node.events;
            numbers.push(number);
        }
    }
    merged
}

/// A box of a graph.
struct FlameBox {
    node: usize,
    x: f64,
    width: f64,
    row: usize,
}

fn graph(merged: &Merged, side: usize, title: &str) -> String {
    let scale = WIDE / merged.events[side] as f64;
    let mut boxes: Vec<FlameBox> = Vec::new();
    let mut waiting = vec![(merged.tops.as_slice(), 0.0, 0)];
    while let Some((nodes, from, row)) = waiting.pop() {
        let mut x = from;
        for &node in nodes {
            let width = merged.nodes[node].events[side] as f64 * scale;
            if width >= NARROWEST && row < DEEPEST {
                boxes.push(FlameBox {
                    node,
                    x,
                    width,
                    row,
                });
                waiting.push((&merged.nodes[node].called, x, row + 1));
            }
            x += width;
        }
    }
    let rows = boxes.iter().map(|drawn| drawn.row + 1).max().unwrap_or(0);
    let mut page = format!(
        "<figure class=\"flames\">\n<figcaption>{title}</figcaption>\n\
         <svg viewBox=\"0 0 {WIDE} {}\" role=\"img\" aria-label=\"Flame graph, {}\">\n",
        rows as f64 * ROW,
        title.to_lowercase()
    );
    for drawn in &boxes {
        page += &drawn_box(drawn, merged);
    }
    page + "</svg>\n</figure>\n"
}

fn drawn_box(drawn: &FlameBox, merged: &Merged) -> String {
    let node = &merged.nodes[drawn.node];
    let [before, after] = node.events;
    let most = merged.events[0].max(merged.events[1]) as f64;
    let change = (after as f64 - before as f64) / most;
    let words = format!(
        "{} of {}: {} before, {} after ({:+.1} % of all)",
        node.function,
        file_name(&node.module),
        units::count(before),
        units::count(after),
        change * 100.0
    );
    let y = drawn.row as f64 * ROW;
    let mut out = format!(
        "<g><title>{}</title><rect class=\"{}\" x=\"{:.1}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"{:.0}\"/>",
        text(&words),
        class(change),
        drawn.x,
        (drawn.width - 1.0).max(0.5),
        ROW - 1.0
    );
    let letters = (drawn.width / LETTER) as usize;
    if letters >= 4 {
        let label: String = readable(&node.function).chars().take(letters).collect();
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.0}\">{}</text>",
            drawn.x + 3.0,
            y + 13.0,
            text(&label)
        );
    }
    out + "</g>\n"
}

/// Class of the colour of a change, as a share of all events.
fn class(change: f64) -> String {
    if change.abs() < UNCHANGED {
        return "same".to_owned();
    }
    let step = (change.abs() / FULL * STEPS).ceil().clamp(1.0, STEPS);
    let direction = if change > 0.0 { "more" } else { "less" };
    format!("{direction} s{step}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use memgauge_analyze::CallNode;

    fn tree(nodes: &[(&str, Option<u32>, u64)]) -> CallTree {
        let node = |&(function, caller, events): &(&str, Option<u32>, u64)| CallNode {
            function: function.to_owned(),
            module: "/bin/p".to_owned(),
            caller,
            samples: 1,
            events,
            own_events: 0,
        };
        CallTree {
            event: "l1d.miss".to_owned(),
            samples: 1,
            events: nodes[0].2,
            nodes: nodes.iter().map(node).collect(),
            timed: None,
        }
    }

    fn run(group: usize, calls: CallTree) -> RunCurves {
        let mut run = RunCurves::none("run", group);
        run.calls = Some(calls);
        run
    }

    #[test]
    fn a_box_has_the_colour_of_its_change_and_the_width_of_its_share() {
        let before = tree(&[
            ("main", None, 1000),
            ("parse", Some(0), 600),
            ("gone", Some(0), 400),
        ]);
        let after = tree(&[
            ("main", None, 700),
            ("parse", Some(0), 600),
            ("new<&>", Some(0), 100),
        ]);
        let page = flames(&[run(0, before), run(1, after)]);
        let (_, graphs) = page.split_once(">After<").expect("the run after");
        let (after, before) = graphs.split_once(">Before<").expect("the run before");
        let line = |graph: &str, name: &str| {
            let line = graph.lines().find(|line| line.contains(name));
            line.unwrap_or_default().to_owned()
        };
        let parse = line(after, "<title>parse");
        assert!(
            parse.contains("class=\"same\"") && parse.contains("width=\"856.1\""),
            "{parse}"
        );
        assert!(
            line(after, "<title>new&lt;&amp;&gt;").contains("class=\"more s3\""),
            "{after}"
        );
        assert_eq!(line(after, "<title>gone"), "");
        let gone = line(before, "<title>gone");
        assert!(
            gone.contains("400 before, 0 after (-40.0 % of all)"),
            "{gone}"
        );
        assert!(gone.contains("class=\"less s5\""), "{gone}");
    }

    #[test]
    fn runs_without_call_stacks_have_no_graph() {
        let with = || run(1, tree(&[("main", None, 1)]));
        assert_eq!(flames(&[RunCurves::none("a", 0), with()]), "");
        assert_eq!(flames(&[run(0, tree(&[("main", None, 0)])), with()]), "");
    }
}
