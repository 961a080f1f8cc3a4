//! Placement of modelled processes on modelled nodes: the answer is known by construction.

use proptest::prelude::*;

use super::*;

const PAGE: u64 = 4096;

/// Nodes of pages by a rule.
struct Rule<F: Fn(u64) -> Option<u32>>(F);

impl<F: Fn(u64) -> Option<u32>> PageNodes for Rule<F> {
    fn nodes_of(&mut self, pages: &[u64]) -> Vec<Option<u32>> {
        pages.iter().map(|&page| (self.0)(page)).collect()
    }
}

/// A reproducible sequence of numbers (xorshift).
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    }
}

fn region(name: &str, start: u64, bytes: u64) -> MemoryRegion {
    MemoryRegion {
        name: name.to_owned(),
        start,
        end: start + bytes,
    }
}

/// `samples` at random places of a region, each from the node that `from` names.
fn used(
    usage: &mut PageUseByNode,
    at: &MemoryRegion,
    samples: u64,
    from: impl Fn(u64, u64) -> u32,
) {
    let mut random = random(samples + at.start);
    for _ in 0..samples {
        let addr = at.start + random(at.end - at.start);
        let chance = random(100);
        usage.take(addr, from(addr, chance));
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn memory_that_another_node_uses_is_moved_there() {
    let heap = region("[heap]", 16 * MIB, 64 * MIB);
    let mut usage = PageUseByNode::new(PAGE);
    // Node 1 makes 95 % of the accesses, but all pages are on node 0.
    used(&mut usage, &heap, 20_000, |_, chance| {
        u32::from(chance >= 5)
    });
    let found = placement(&usage, &[heap], &mut Rule(|_| Some(0)));
    assert_eq!(found.ranges.len(), 1);
    let range = &found.ranges[0];
    assert_eq!(range.advice, Advice::Move { to: 1 });
    // 20 000 samples at random leave at most some pages at each end without one.
    assert!(range.pages > 64 * 256 - 20 && range.bytes_to_move == range.pages * PAGE);
    let expected = 0.95;
    let (low, high) = found.remote_interval.unwrap();
    assert!(low <= expected && expected <= high, "{low} {high}");
    let after = found.remote_after.unwrap() + found.remote.unwrap();
    assert!((after - 1.0).abs() < 1e-12, "{after}");
}

#[test]
fn halves_that_two_nodes_use_are_told_apart() {
    let data = region("anon", 1 << 30, 32 * MIB);
    let middle = data.start + 16 * MIB;
    let mut usage = PageUseByNode::new(PAGE);
    used(&mut usage, &data, 8000, |addr, _| u32::from(addr >= middle));
    // The first half is on the node that uses it, the second half is not.
    let found = placement(&usage, &[data], &mut Rule(|_| Some(0)));
    let advice: Vec<Advice> = found.ranges.iter().map(|r| r.advice).collect();
    // One chunk may hold samples of both halves.
    let outer = [advice[0], *advice.last().unwrap()];
    assert_eq!(outer, [Advice::Keep, Advice::Move { to: 1 }]);
    assert!(advice.len() <= 3, "{:?}", found.ranges);
    let chunk = 2 * CHUNK_SAMPLES * 32 * 256 / 8000;
    let border = found.ranges.last().unwrap().start;
    assert!(border.abs_diff(middle) <= chunk * PAGE, "{border:#x}");
    assert!(found.remote_after.unwrap() < 0.01);
}

#[test]
fn memory_that_all_use_alike_stays() {
    let data = region("shared", 1 << 30, 32 * MIB);
    let mut usage = PageUseByNode::new(PAGE);
    used(&mut usage, &data, 30_000, |_, chance| (chance % 2) as u32);
    let found = placement(&usage, &[data], &mut Rule(|_| Some(1)));
    assert_eq!(found.ranges.len(), 1, "{:?}", found.ranges);
    assert_eq!(found.ranges[0].advice, Advice::Shared);
    assert_eq!(found.remote, found.remote_after);
}

#[test]
fn few_samples_give_no_advice() {
    let data = region("anon", 1 << 30, 4 * MIB);
    let mut usage = PageUseByNode::new(PAGE);
    used(&mut usage, &data, CHUNK_SAMPLES - 1, |_, _| 1);
    let found = placement(&usage, std::slice::from_ref(&data), &mut Rule(|_| Some(0)));
    assert_eq!(found.ranges[0].advice, Advice::TooFewSamples);
    usage.take(data.start, 1);
    let found = placement(&usage, &[data], &mut Rule(|_| Some(0)));
    assert_eq!(found.ranges[0].advice, Advice::Move { to: 1 });
}

#[test]
fn memory_between_clusters_that_nobody_uses_is_no_part_of_a_range() {
    // A reservation of 1 TiB with two used parts, as runtimes make.
    let heap = region("anon", 1 << 40, 1 << 40);
    let places = [heap.start + (1 << 30), heap.start + (700 << 30)];
    let mut usage = PageUseByNode::new(PAGE);
    for place in places {
        used(&mut usage, &region("", place, 8 * MIB), 2000, |_, _| 1);
    }
    let mut asked = 0;
    struct Counting<'a>(&'a mut u64);
    impl PageNodes for Counting<'_> {
        fn nodes_of(&mut self, pages: &[u64]) -> Vec<Option<u32>> {
            *self.0 += pages.len() as u64;
            vec![Some(0); pages.len()]
        }
    }
    let found = placement(&usage, &[heap], &mut Counting(&mut asked));
    assert_eq!(found.ranges.len(), 2);
    for (range, place) in found.ranges.iter().zip(places) {
        assert!(
            range.start >= place && range.end <= place + 8 * MIB,
            "{range:?}"
        );
        assert_eq!(range.advice, Advice::Move { to: 1 });
    }
    assert!(asked < 10_000, "{asked}");
}

#[test]
fn of_a_large_range_one_page_in_so_many_is_asked_for() {
    let heap = region("anon", 1 << 40, 64 << 30);
    let mut usage = PageUseByNode::new(PAGE);
    used(&mut usage, &heap, 50_000, |_, _| 1);
    // Three pages in four lie elsewhere.
    let rule = |addr: u64| Some(u32::from(addr / PAGE * 2_654_435_761 % 1000 >= 750));
    let found = placement(&usage, &[heap], &mut Rule(rule));
    let range = &found.ranges[0];
    assert!(range.asked_pages <= MAX_QUERIED_PAGES && range.pages > 16 * MAX_QUERIED_PAGES / 2);
    let part = range.bytes_to_move as f64 / (range.pages * PAGE) as f64;
    assert!((0.74..0.76).contains(&part), "{part}");
}

#[test]
fn samples_outside_regions_and_of_absent_pages_are_counted() {
    let data = region("anon", 1 << 30, MIB);
    let mut usage = PageUseByNode::new(PAGE);
    used(&mut usage, &data, 1000, |_, _| 0);
    (0..7).for_each(|_| usage.take(12 * PAGE, 0));
    let found = placement(&usage, &[data], &mut Rule(|_| None));
    assert_eq!((found.samples, found.unmapped, found.placed), (1007, 7, 0));
    assert_eq!(found.remote, None);
    assert_eq!(
        found.ranges[0].advice,
        Advice::Keep,
        "nothing of it is in memory"
    );
    assert_eq!(found.ranges[0].remote, None);
}

#[test]
fn what_is_not_kept_is_counted() {
    let mut usage = PageUseByNode::new(PAGE);
    usage.most = 3;
    for page in 0..5 {
        usage.take(page * PAGE, 0);
        usage.take(page * PAGE, 0);
    }
    let found = placement(&usage, &[region("", 0, MIB)], &mut Rule(|_| Some(0)));
    assert_eq!((found.samples, found.not_kept), (10, 4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every sample is in one range, whatever was sampled.
    #[test]
    fn ranges_hold_each_sample_once(
        samples in prop::collection::vec((0u64..1 << 28, 0u32..3), 0..600),
        nodes in 1u64..4,
    ) {
        let mut usage = PageUseByNode::new(PAGE);
        samples.iter().for_each(|&(addr, node)| usage.take(addr, node));
        let regions = [region("a", 0, 1 << 27), region("b", 1 << 27, 1 << 27)];
        let mut rule = Rule(|addr| Some((addr / PAGE % nodes) as u32));
        let found = placement(&usage, &regions, &mut rule);
        let in_ranges: u64 = found.ranges.iter().map(|r| r.samples).sum();
        prop_assert_eq!(in_ranges, samples.len() as u64);
        prop_assert_eq!(found.placed, samples.len() as u64);
        // Brute force: each sample against its page's node.
        let remote = samples.iter().filter(|(addr, node)| u64::from(*node) != addr / PAGE % nodes);
        let expected = ratio(remote.count() as u64, samples.len() as u64);
        prop_assert_eq!(found.remote, expected);
        for pair in found.ranges.windows(2) {
            prop_assert!(pair[0].end <= pair[1].start);
        }
        for &(addr, _) in &samples {
            let holding = found.ranges.iter().filter(|r| r.start <= addr && addr < r.end);
            prop_assert_eq!(holding.count(), 1);
        }
    }
}
