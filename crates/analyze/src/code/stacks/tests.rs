use super::times::BINS;
use super::*;
use crate::code::address_spaces::tests::{code, spaces};
use memgauge_trace::{Pid, VirtAddr};

/// Each file is a function: `/a` at 0x1000, `/b` at 0x2000 and so on.
fn functions() -> AddressSpaces {
    let file = |n: u64, name: &str| code(0, n << 12, (n + 1) << 12, name);
    spaces(&[file(1, "/a"), file(2, "/b"), file(3, "/c"), file(4, "/d")])
}

fn frame(id: u32, caller: Option<u32>, ip: u64) -> Frame {
    Frame {
        id: FrameId(id),
        caller: caller.map(FrameId),
        pid: Pid(1),
        ip: VirtAddr(ip),
        ..Frame::default()
    }
}

fn sample(caller: Option<u32>, ip: u64, period: u64) -> Sample {
    Sample {
        pid: Pid(1),
        event: EventId(300),
        ip: VirtAddr(ip),
        caller: caller.map(FrameId),
        period,
        ..Sample::default()
    }
}

fn tree(frames: &[Frame], samples: &[Sample]) -> CallTree {
    let spaces = functions();
    let mut calls = Frames::new(&spaces);
    calls.observe(frames);
    let mut first = SampledStacks::new(&spaces);
    let mut second = first.clone();
    let (a, b) = samples.split_at(samples.len() / 2);
    first.observe(a);
    second.observe(b);
    first.merge(second);
    let names = EventNames::of(&memgauge_trace::Manifest::default());
    let mut symbols = crate::resolve::NoSymbols;
    call_trees(&calls.finish(), &first.finish(), &mut symbols, &names).remove(0)
}

/// Name, number of callers above, events including callees, and own events of each node.
fn shown(tree: &CallTree) -> Vec<(String, usize, u64, u64)> {
    let node = |node: &CallNode| {
        let name = node.function.trim_end_matches(" [no symbols]").to_owned();
        (name, tree.callers(node).len(), node.events, node.own_events)
    };
    tree.nodes.iter().map(node).collect()
}

#[test]
fn sums_go_up_to_the_callers_and_the_largest_comes_first() {
    let frames = [
        frame(0, None, 0x1010),
        frame(1, Some(0), 0x2010),
        frame(2, Some(0), 0x2020), // another call in the same function
        frame(3, Some(0), 0x3010),
    ];
    let samples = [
        sample(Some(1), 0x4000, 5),
        sample(Some(2), 0x4444, 6),
        sample(Some(3), 0x4000, 20),
        sample(Some(0), 0x2000, 1),
        sample(None, 0x1000, 2),
    ];
    let tree = tree(&frames, &samples);
    let row = |name: &str, level, events, own| (name.to_owned(), level, events, own);
    let expected = [
        row("a", 0, 34, 2),
        row("c", 1, 20, 0),
        row("d", 2, 20, 20),
        row("b", 1, 12, 1),
        row("d", 2, 11, 11),
    ];
    assert_eq!(shown(&tree), expected);
    assert_eq!((tree.samples, tree.events), (5, 34));
    let hottest = tree.hottest(1);
    assert_eq!(hottest[0].share, ratio(31, 34));
    let path = |names: &[&str], events| {
        let names = names.iter().map(|name| format!("{name} [no symbols]"));
        (ratio(events, 34), names.collect::<Vec<_>>())
    };
    let paths: Vec<_> = hottest[0]
        .paths
        .iter()
        .map(|(share, names)| (*share, names.iter().map(|n| (*n).to_owned()).collect()))
        .collect();
    assert_eq!(paths, [path(&["c", "a"], 20), path(&["b", "a"], 11)]);
}

#[test]
fn small_nodes_are_summed_and_nothing_is_lost() {
    let frames = [frame(0, None, 0x1010)];
    // Two functions that call each other more often than nodes are kept.
    let deep: Vec<Frame> = (1..=2 * MAX_NODES as u32)
        .map(|n| frame(n, Some(n - 1), 0x2000 + u64::from(n % 2) * 0x1000))
        .collect();
    let frames: Vec<Frame> = frames.into_iter().chain(deep).collect();
    let last = frames.len() as u32 - 1;
    let samples = [sample(Some(last), 0x4000, 7), sample(Some(0), 0x4000, 9)];
    let tree = tree(&frames, &samples);
    assert!(tree.nodes.len() <= MAX_NODES + 2, "{}", tree.nodes.len());
    let own: u64 = tree.nodes.iter().map(|node| node.own_events).sum();
    assert_eq!((own, tree.events), (16, 16));
    // The innermost function of a deep recursion is in the tree, because users look for it.
    assert_eq!(tree.hottest(1)[0].function, "d [no symbols]");
    assert_eq!(tree.hottest(1)[0].share, Some(1.0));
    let deepest = tree.nodes.iter().map(|node| tree.callers(node).len());
    let most = (OUTERMOST + 1 + INNERMOST) as usize;
    assert_eq!(deepest.max(), Some(most));
    let hottest = tree.hottest(1);
    let path = &hottest[0]
        .paths
        .iter()
        .find(|(_, path)| path.len() > 1)
        .unwrap()
        .1;
    assert_eq!(path[INNERMOST as usize], OMITTED_CALLS);
    assert_eq!((path[0], path[1]), ("b [no symbols]", "c [no symbols]"));
    assert_eq!(path[most - 1], "a [no symbols]");
}

#[test]
fn of_many_functions_those_with_most_events_are_kept() {
    // More calls than are kept, each of another function with one event, and a hot one.
    let calls = 2 * MAX_NODES as u32;
    let file = |n: u64, name: &str| code(0, n << 12, (n + 1) << 12, name);
    let mut files: Vec<_> = (0..u64::from(calls))
        .map(|n| file(n + 16, &format!("/f{n}")))
        .collect();
    files.push(file(1, "/a"));
    let spaces = spaces(&files);
    let mut frames = Frames::new(&spaces);
    let mut sampled = SampledStacks::new(&spaces);
    for n in 0..calls {
        frames.observe(&[frame(n, None, (u64::from(n) + 16) << 12)]);
        sampled.observe(&[sample(Some(n), 0x1000, 1 + u64::from(n == 7) * 9)]);
    }
    let names = EventNames::of(&memgauge_trace::Manifest::default());
    let mut symbols = crate::resolve::NoSymbols;
    let tree = call_trees(&frames, &sampled, &mut symbols, &names).remove(0);
    // The function itself stands below the others.
    assert!(tree.nodes.len() <= MAX_NODES + 2);
    let hottest = &tree.hottest(1)[0];
    assert_eq!(hottest.paths[0].1, ["f7 [no symbols]"]);
    assert_eq!(hottest.share, Some(1.0));
    let others = u64::from(calls) - MAX_NODES as u64 / 2;
    let share = others as f64 / tree.events as f64;
    assert_eq!(tree.share_of_others(), Some(share));
    let own: u64 = tree.nodes.iter().map(|node| node.own_events).sum();
    assert_eq!(own, tree.events);
}

#[test]
fn trees_of_several_events_do_not_depend_on_the_order_of_hashes() {
    // Two events in the same functions, but the calls of the second one are in reverse order.
    let calls = MAX_NODES as u32 * 3 / 4;
    let files: Vec<_> = (0..u64::from(calls))
        .map(|n| code(0, (n + 16) << 12, (n + 17) << 12, &format!("/f{n}")))
        .collect();
    let spaces = spaces(&files);
    let mut frames = Frames::new(&spaces);
    let order = (0..calls).chain((0..calls).rev());
    for (id, function) in (0..).zip(order) {
        frames.observe(&[frame(id, None, (u64::from(function) + 16) << 12)]);
    }
    let names = EventNames::of(&memgauge_trace::Manifest::default());
    let trees = || {
        // Each hash map has another order.
        let mut sampled = SampledStacks::new(&spaces);
        for id in 0..2 * calls {
            let event = EventId(300 + u16::from(id >= calls));
            sampled.observe(&[Sample {
                event,
                ..sample(Some(id), 0x1000, 1)
            }]);
        }
        call_trees(&frames, &sampled, &mut crate::resolve::NoSymbols, &names)
    };
    let first = trees();
    assert!(first.iter().all(|tree| tree.share_of_others().is_some()));
    for _ in 0..5 {
        assert_eq!(trees(), first);
    }
}

#[test]
fn what_a_function_calls_counts_in_it_once() {
    let frames = [
        frame(0, None, 0x1010),
        frame(1, Some(0), 0x2010),
        frame(2, Some(1), 0x2010),
        frame(3, None, 0x3010),
    ];
    let samples = [sample(Some(2), 0x4000, 6), sample(Some(3), 0x2000, 2)];
    let tree = tree(&frames, &samples);
    let shown = |name: &'static str, events, own| (name, ratio(events, 8), ratio(own, 8));
    let found = tree.inclusive(3);
    let found: Vec<_> = found
        .iter()
        .map(|row| {
            let name = row.function.trim_end_matches(" [no symbols]");
            (name, row.share, row.own_share)
        })
        .collect();
    assert_eq!(
        found,
        [shown("b", 8, 2), shown("a", 6, 0), shown("d", 6, 6)]
    );
}

#[test]
fn edges_of_a_recursion_count_its_events_once() {
    // a calls b, b calls b, b calls c, which calls b again.
    let frames = [
        frame(0, None, 0x1010),
        frame(1, Some(0), 0x2010),
        frame(2, Some(1), 0x2010),
        frame(3, Some(2), 0x3010),
        frame(4, Some(3), 0x2010),
        frame(5, Some(4), 0x2010),
    ];
    let samples = [sample(Some(5), 0x4000, 7), sample(Some(0), 0x2000, 1)];
    let tree = tree(&frames, &samples);
    let name = |node: &CallNode| node.function.trim_end_matches(" [no symbols]").to_owned();
    let mut edges: Vec<(String, String, u64)> = tree
        .edges()
        .iter()
        .map(|edge| (name(edge.caller), name(edge.callee), edge.callee.events))
        .collect();
    edges.sort();
    // The inner b to b and is inside the outer one.
    let expected = [
        ("a", "b", 8),
        ("b", "b", 7),
        ("b", "c", 7),
        ("b", "d", 7),
        ("c", "b", 7),
    ];
    let expected = expected.map(|(caller, callee, n)| (caller.to_owned(), callee.to_owned(), n));
    assert_eq!(edges, expected);
}

#[test]
fn calls_from_memory_in_which_nothing_ever_ran_are_unknown() {
    use crate::code::address_spaces::tests::module;
    let heap = module(0, 0x5000, 0x6000, "[heap]");
    let made = module(0, 0x7000, 0x8000, "");
    let spaces = spaces(&[code(0, 0x1000, 0x2000, "/a"), heap, made]);
    let frames = [frame(0, None, 0x5010), frame(1, Some(0), 0x7010)];
    let samples = [sample(Some(1), 0x1000, 5), sample(None, 0x7777, 1)];
    let chain = |are_traced| {
        let mut calls = Frames::new(&spaces).traced(are_traced);
        calls.observe(&frames);
        let mut sampled = SampledStacks::new(&spaces);
        sampled.observe(&samples);
        let names = EventNames::of(&memgauge_trace::Manifest::default());
        let mut symbols = crate::resolve::NoSymbols;
        let tree = call_trees(&calls, &sampled, &mut symbols, &names).remove(0);
        let a = tree
            .nodes
            .iter()
            .find(|node| node.function.starts_with('a'));
        let names = tree.callers(a.unwrap()).into_iter().map(str::to_owned);
        names.collect::<Vec<_>>()
    };
    // A program that the kernel seems to call.
    let odd = [frame(0, None, 1 << 63), frame(1, Some(0), 0x1010)];
    let mut calls = Frames::new(&spaces);
    calls.observe(&odd);
    assert_eq!(calls.calls[0].1, spaces.unknown());
    // A sample ran in 0x7000, so code was generated there.
    assert_eq!(chain(false), ["[jit]", "[unknown]"]);
    assert_eq!(chain(true), ["[jit]"]);
}

#[test]
fn calls_of_a_part_that_is_missing_lead_nowhere() {
    let frames = [frame(5, Some(4), 0x2010), frame(6, Some(9), 0x3010)];
    let samples = [
        sample(Some(5), 0x4000, 1),
        sample(Some(6), 0x4000, 1),
        sample(Some(99), 0x4000, 1),
    ];
    let tree = tree(&frames, &samples);
    assert_eq!(tree.events, 3);
}

/// Compares with sums over samples. The bins of a node add up to its events in the whole run, and
/// the nodes of a bin to the events of its samples.
#[test]
fn nodes_over_time_add_up_to_themselves() {
    let spaces = functions();
    let mut calls = Frames::new(&spaces);
    calls.observe(&[frame(0, None, 0x1010), frame(1, Some(0), 0x2010)]);
    let sampled = |n: u64| Sample {
        time_ns: n * 7919,
        ..sample(
            [None, Some(0), Some(1)][n as usize % 3],
            0x1000 * (1 + n % 4),
            1 + n,
        )
    };
    let samples: Vec<Sample> = (0..500).map(sampled).collect();
    let mut first = SampledStacks::new(&spaces).timed();
    let mut second = first.clone();
    first.observe(&samples[..200]);
    second.observe(&samples[200..]);
    first.merge(second);
    let names = EventNames::of(&memgauge_trace::Manifest::default());
    let mut symbols = crate::resolve::NoSymbols;
    let tree = call_trees(&calls.finish(), &first.finish(), &mut symbols, &names).remove(0);
    let timed = tree.timed.as_ref().unwrap();
    assert!(499 * 7919 / timed.bin_ns < BINS && timed.own.len() == tree.nodes.len());
    for (node, bins) in tree.nodes.iter().zip(&timed.own) {
        assert_eq!(
            bins.iter().map(|bin| bin.2).sum::<u64>(),
            node.own_events,
            "{node:?}"
        );
    }
    for bin in 0..BINS as u32 {
        let of_time = samples
            .iter()
            .filter(|s| s.time_ns / timed.bin_ns == u64::from(bin));
        let found = timed.own.iter().flatten().filter(|cell| cell.0 == bin);
        let found = found.fold((0, 0), |sum, cell| (sum.0 + cell.1, sum.1 + cell.2));
        let expected = of_time.fold((0, 0), |sum, s| (sum.0 + 1, sum.1 + s.period));
        assert_eq!(found, expected, "{bin}");
    }
}
