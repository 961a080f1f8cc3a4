//! Tests of the loops: known results, and the assembly against `portable`.

use super::*;
use proptest::prelude::*;

const BYTES: u64 = 64 * 1024;

fn filled() -> Memory {
    let mut memory = Memory::zeroed(BYTES).expect("a small mapping");
    memory.increment_random(BYTES / 8, 20_000);
    memory
}

fn contents(memory: &Memory) -> Vec<u64> {
    (0..BYTES / 8).map(|at| memory.word(at * 8)).collect()
}

/// Runs one loop in both versions on equal memory and compares what they leave.
fn check<T: PartialEq + std::fmt::Debug>(run: impl Fn(*mut u8, bool) -> T) {
    let (left, right) = (filled(), filled());
    let native = run(left.range(0, BYTES), true);
    let portable = run(right.range(0, BYTES), false);
    assert_eq!(native, portable);
    assert_eq!(contents(&left), contents(&right));
}

macro_rules! both {
    ($native:expr, $name:ident($($argument:expr),*)) => {
        // SAFETY: the arguments of every test stay inside the mapping of `check`.
        unsafe {
            if $native { loops::$name($($argument),*) } else { portable::$name($($argument),*) }
        }
    };
}

proptest! {
    #[test]
    fn reads_sum_what_the_portable_loop_sums(
        count in 0..200u64, stride in 1..300u64, passes in 0..4u64, offset in 0..128usize,
    ) {
        check(|start, native| {
            both!(native, read(start.wrapping_add(offset), count, stride, passes))
        });
    }

    #[test]
    fn writes_leave_what_the_portable_loop_leaves(
        count in 0..200u64, stride in 1..300u64, passes in 0..4u64, offset in 0..128usize,
    ) {
        check(|start, native| {
            both!(native, write(start.wrapping_add(offset), count, stride, passes, 77))
        });
    }

    #[test]
    fn triads_leave_what_the_portable_loop_leaves(
        count in 0..2000u64, factor: u64, passes in 0..4u64,
    ) {
        check(|start, native| {
            let (b, c) = (start.wrapping_add(16_384), start.wrapping_add(32_768));
            both!(native, triad(start, b, c, count, factor, passes))
        });
    }

    #[test]
    fn increments_leave_what_the_portable_loop_leaves(
        count in 1..2000u64, passes in 0..4u64, steps in 0..500u64, seed in 1u64..,
    ) {
        check(|start, native| both!(native, increment(start, count, passes)));
        check(|start, native| both!(native, increment_random(start, count, steps, seed)));
        check(|start, native| both!(native, increment_own(start.cast(), steps)));
        check(|start, native| both!(native, increment_locked(start.cast(), steps)));
    }

    #[test]
    fn products_leave_what_the_portable_loop_leaves(
        rows in 0..20u64, columns in 0..100u64, passes in 0..3u64,
    ) {
        check(|start, native| {
            let (vector, result) = (start.wrapping_add(16_384), start.wrapping_add(32_768));
            both!(native, multiply(start, vector, result, rows, columns, passes))
        });
    }

    #[test]
    fn alternating_reads_sum_what_the_portable_loop_sums(
        words in 0..2000u64, lines in 0..300u64, spins in 0..5u64, cycles in 0..4u64,
    ) {
        check(|start, native| both!(native, alternate(start, words, lines, spins, cycles)));
    }

    #[test]
    fn cycles_lead_where_the_portable_loop_leads(
        nodes in 1..1000u64, steps in 0..2000u64, seed in 1u64..,
    ) {
        let memory = filled();
        let start = memory.range(0, BYTES);
        both!(true, link_cycle(start, nodes, seed));
        let native = both!(true, follow(start, steps));
        both!(false, link_cycle(start, nodes, seed));
        prop_assert_eq!(native, both!(false, follow(start, steps)));
    }
}

#[test]
fn a_cycle_passes_every_node_once_before_it_returns() {
    let nodes = 777;
    let cycle = filled().into_cycle(nodes);
    let mut seen: Vec<u64> = (0..nodes).map(|steps| cycle.follow(steps)).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..nodes).collect::<Vec<_>>());
    assert_eq!(cycle.follow(nodes), 0);
}

#[test]
fn an_empty_cycle_stays_where_it_is() {
    assert_eq!(filled().into_cycle(0).follow(0), 0);
}

#[test]
fn random_increments_add_up_to_their_number() {
    let memory = filled();
    assert_eq!(contents(&memory).iter().sum::<u64>(), 20_000);
}

#[test]
fn the_documents_matrix_takes_1024_128_and_1_pages() {
    let layout = MatrixLayout::new(8, 65_536, 4096).expect("a small layout");
    assert_eq!(layout.vector_offset / 4096, 1024);
    assert_eq!((layout.result_offset - layout.vector_offset) / 4096, 128);
    assert_eq!((layout.bytes - layout.result_offset) / 4096, 1);
    assert!(MatrixLayout::new(1 << 40, 1 << 40, 4096).is_none());
}

#[test]
#[should_panic(expected = "inside its mapping")]
fn a_loop_that_would_leave_its_mapping_is_refused() {
    filled().read(BYTES - 8, 2, 8, 1);
}

#[test]
fn a_mapping_that_cannot_be_made_is_an_error() {
    assert!(Memory::zeroed(1 << 60).is_err());
}
