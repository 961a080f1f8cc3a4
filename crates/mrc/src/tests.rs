//! The engine against the definition, in every variant.

use proptest::prelude::*;

use super::last_times::hash_crowd;
use super::table_part::TablePart;
use super::{
    Curve, Distances, Estimate, Exact, Parallel, Sampled, Sampling, Settings, Vectors, sizes,
};
use crate::oracle::distances;

fn exact(addresses: &[u64], block_bytes: u64, vectors: Vectors, chunk: usize) -> Distances {
    let settings = Settings {
        vectors,
        ..Settings::default()
    };
    let mut engine = Exact::new(block_bytes, settings);
    for addresses in addresses.chunks(chunk) {
        engine.feed(addresses).unwrap();
    }
    engine.finish().unwrap()
}

/// Checks every instruction set against the definition.
fn check(addresses: &[u64], block_bytes: u64) {
    let expected = distances(addresses, block_bytes);
    for &vectors in Vectors::available() {
        for chunk in [1, 97, usize::MAX] {
            let found = exact(addresses, block_bytes, vectors, chunk);
            assert!(found == expected, "{vectors:?}, {chunk} at a time");
        }
    }
}

/// Pseudorandom numbers (splitmix64).
pub(super) fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    (1u64..).map(move |n| {
        let mut z = (seed.wrapping_add(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    })
}

#[test]
fn empty_single_and_highest_addresses_have_correct_distances() {
    check(&[], 64);
    check(&[0], 64);
    check(&[u64::MAX], 1);
    check(&[u64::MAX; 1000], 1);
    check(&[u64::MAX, 0, u64::MAX, 0, 1, u64::MAX - 1, 0], 1);
    check(&[5; 300], 1 << 63);
}

#[test]
fn scan_has_the_distance_of_its_length() {
    let scan: Vec<u64> = (0..40_000).map(|i| i % 1000 * 64).collect();
    let expected = Distances {
        counts: vec![(999, 39_000)],
        compulsory: 1000,
    };
    assert_eq!(exact(&scan, 64, Vectors::best(), 7), expected);
}

#[test]
fn windows_are_renumbered_and_tables_grow_without_a_trace() {
    // More references and blocks than the first window and table have room for.
    let random: Vec<u64> = numbers(1).take(130_000).map(|n| n % 3000 * 64).collect();
    let expected = distances(&random, 64);
    for &vectors in Vectors::available() {
        assert!(
            exact(&random, 64, vectors, 1 << 12) == expected,
            "{vectors:?}"
        );
    }
}

#[test]
fn many_blocks_have_the_distances_of_a_scan_back_and_forth() {
    // Back and forth over n blocks: distance 0 at each turn, then 1, 2, … n - 1.
    let n = 150_000u64;
    let way = || (0..n).map(|i| i * 4096);
    let all: Vec<u64> = way().chain(way().rev()).chain(way()).collect();
    let found = exact(&all, 4096, Vectors::best(), 1 << 14);
    let expected: Vec<(u64, u64)> = (0..n).map(|d| (d, 2)).collect();
    assert_eq!(found.compulsory, n);
    assert!(found.counts == expected);
}

#[test]
fn wide_and_colliding_block_numbers_are_distinguished() {
    let wide: Vec<u64> = numbers(2).take(5000).collect();
    let again: Vec<u64> = [&wide[..], &wide[..2500], &wide[..]].concat();
    check(&again, 1);
    // Hashes chosen to collide in one line of the narrow table.
    let crowd: Vec<u64> = hash_crowd(2000).collect();
    let again: Vec<u64> = [&crowd[..], &crowd[..]].concat();
    check(&again, 1);
    // Start with narrow block numbers, then wide ones.
    let mixed: Vec<u64> = (0..3000).chain(wide).chain(0..3000).collect();
    check(&mixed, 1);
}

#[test]
fn partial_distances_add_up_to_the_total() {
    let few = numbers(3).take(20_000).map(|n| n % 700 * 64);
    let many = (0..9000).map(|n| n * 64);
    let stream: Vec<u64> = few.chain(many.clone()).chain(many).collect();
    let mut engine = Exact::new(64, Settings::default());
    let mut sum = Distances::default();
    for part in stream.chunks(3333) {
        engine.feed(part).unwrap();
        sum.merge(&engine.take_distances().unwrap());
    }
    assert!(sum == distances(&stream, 64));
}

#[test]
fn engine_uses_less_than_32_bytes_per_block_and_respects_its_limit() {
    let mut engine = Exact::new(64, Settings::default());
    let blocks: Vec<u64> = (0..1 << 20).map(|n| n * 64).collect();
    for (at, part) in blocks.chunks(1 << 12).enumerate() {
        engine.feed(part).unwrap();
        let most = 32 * ((at + 1) << 12) + (400 << 10);
        assert!(engine.memory_bytes() < most, "{at}");
    }
    let settings = Settings {
        memory_bytes: 4 << 20,
        ..Settings::default()
    };
    let mut small = Exact::new(64, settings);
    let full = blocks.chunks(4096).find_map(|part| small.feed(part).err());
    let blocks = full.expect("more blocks than fit").blocks;
    assert!((100_000..200_000).contains(&blocks), "{blocks}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_stream_matches_the_definition(
        seed in any::<u64>(),
        length in 0usize..3000,
        blocks in prop_oneof![1u64..12, 12u64..900],
        shift in 0u32..13,
        base in prop_oneof![Just(0u64), Just(0x7f00_0000_0000), Just(1 << 63), any::<u64>()],
        skew in 1u32..4,
    ) {
        let stream: Vec<u64> = numbers(seed).take(length).map(|n| {
            let unit = (n >> 11) as f64 / (1u64 << 53) as f64;
            let block = (unit.powi(skew as i32) * blocks as f64) as u64;
            base.wrapping_add(block << shift)
        }).collect();
        check(&stream, 1 << shift);
        check_threads(&stream, 1 << shift, 1 + seed as usize % 5000);
    }
}

fn estimate(addresses: &[u64], sampling: Sampling, salt: u64) -> Estimate {
    let mut engine = Sampled::new(64, sampling, salt, Settings::default());
    addresses
        .chunks(777)
        .for_each(|part| engine.feed(part).unwrap());
    engine.finish().unwrap()
}

#[test]
fn sample_of_everything_equals_the_exact_curve() {
    let stream: Vec<u64> = numbers(4).take(30_000).map(|n| n % 500 * 64).collect();
    let exact = Curve::exact(&distances(&stream, 64), 64);
    for sampling in [Sampling::Rate(1.0), Sampling::Size(1000)] {
        let sampled = estimate(&stream, sampling, 1);
        assert_eq!(sampled.rate, 1.0);
        for blocks in 0..600 {
            assert!((sampled.curve.misses(blocks) - exact.misses(blocks)).abs() < 1e-6);
        }
    }
}

#[test]
fn sampled_scan_has_its_cliff_at_the_exact_size() {
    let scan: Vec<u64> = (0..400_000).map(|i| i % 50_000 * 64).collect();
    for sampling in [Sampling::Rate(0.01), Sampling::Size(1000)] {
        for salt in 0..5 {
            let sampled = estimate(&scan, sampling, salt).curve;
            let knee = sampled.knees()[0].blocks;
            assert!((49_999..=50_001).contains(&knee), "{sampling:?}: {knee}");
            assert!((sampled.compulsory - 50_000.0).abs() < 25.0);
        }
    }
}

#[test]
fn sample_does_not_exceed_its_size() {
    let stream: Vec<u64> = skewed(5, 100_000, 40_000.0, 3).collect();
    for salt in 0..8 {
        let sampled = estimate(&stream, Sampling::Size(2048), salt);
        assert!(sampled.sampled_blocks <= 2048);
    }
}

/// Addresses of `blocks` blocks; lower numbers are more frequent.
fn skewed(seed: u64, count: usize, blocks: f64, power: i32) -> impl Iterator<Item = u64> {
    let unit = |n: u64| (n >> 11) as f64 / (1u64 << 53) as f64;
    let block = move |n: u64| (unit(n).powi(power) * blocks) as u64;
    numbers(seed).take(count).map(move |n| block(n) * 64)
}

/// Blocks of which a few are referenced often, among many that are referenced rarely.
fn hot_among_uniform(count: usize) -> impl Iterator<Item = u64> {
    numbers(31).take(count).map(|n| match n % 5 {
        0 | 1 => 64 * (1 << 30 | n >> 8 & 15),
        _ => (n >> 8) % 90_000 * 64,
    })
}

/// References to a block that was referenced some time ago, with distances by a power law, and
/// occasionally to a new block.
fn recency(count: usize) -> Vec<u64> {
    let mut all: Vec<u64> = Vec::new();
    for n in numbers(32).take(count) {
        let unit = ((n >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let back = (1.0 / unit) as usize;
        let fresh = all.len() as u64 * 64;
        all.push(all.len().checked_sub(back).map_or(fresh, |at| all[at]));
    }
    all
}

#[test]
fn bands_contain_the_exact_curve_at_resolved_sizes() {
    let count = 400_000;
    let scan = (0..count as u64).map(|i| i % 60_000 * 64);
    let phases = (0..8).flat_map(|phase| {
        let base = phase % 4 * 30_000 * 64;
        skewed(phase, count / 8, 50_000.0, 1 + phase as i32 % 3).map(move |a| base + a)
    });
    let traces: [(&str, Vec<u64>); 6] = [
        ("skewed", skewed(5, count, 90_000.0, 3).collect()),
        ("uniform", skewed(6, count, 70_000.0, 1).collect()),
        ("hot among uniform", hot_among_uniform(count).collect()),
        ("recency", recency(count)),
        ("scan", scan.collect()),
        ("phases", phases.collect()),
    ];
    for (name, stream) in &traces {
        let exact = Curve::exact(&exact(stream, 64, Vectors::best(), 4096), 64);
        let samplings = [
            Sampling::Rate(0.05),
            Sampling::Rate(0.001),
            Sampling::Size(1000),
        ];
        for sampling in samplings {
            let (mut inside, mut all) = (0, 0);
            for salt in 0..6 {
                let found = estimate(stream, sampling, salt);
                let sizes = sizes(64, 64 * exact.enough_blocks(), 4).into_iter();
                for bytes in sizes.filter(|&bytes| found.resolves(bytes)) {
                    let ratio = |curve: &Curve| curve.miss_ratio(bytes).unwrap();
                    let off = (ratio(&found.curve) - ratio(&exact)).abs();
                    inside += usize::from(off <= found.half_band(bytes).unwrap() + 1e-9);
                    all += 1;
                }
            }
            let held = inside as f64 / all as f64;
            assert!(held >= 0.93, "{name}, {sampling:?}: {inside} of {all}");
        }
    }
}

/// Most references go to a few blocks or to new ones. Some go back to a small part of the old ones,
/// and a small sample has few or no references of this kind.
fn growing(count: usize) -> Vec<u64> {
    let mut fresh = 0;
    let block = |(at, n): (usize, u64)| match at % 100 {
        0..30 => {
            fresh += u64::from(n % 3 == 0);
            (1 << 42) + fresh
        }
        30 if at % 3000 < 300 => (1 << 42) + (n >> 20) % (fresh + 1) / 50,
        _ => (1 << 41) + n % 300,
    };
    let blocks = numbers(33).take(count).enumerate().map(block);
    blocks.map(|block| block * 64).collect()
}

#[test]
fn few_sampled_references_give_a_wide_band() {
    let stream = growing(400_000);
    let exact = Curve::exact(&exact(&stream, 64, Vectors::best(), 4096), 64);
    for rate in [0.01, 0.003, 0.001] {
        let (mut inside, mut all, mut bands) = (0, 0, 0.0);
        for salt in 0..20 {
            let engine = Sampled::new(64, Sampling::Rate(rate), salt, Settings::default());
            let mut engine = engine.without_small_memories();
            engine.feed(&stream).unwrap();
            let found = engine.finish().unwrap();
            let sizes = sizes(64, 64 * exact.enough_blocks(), 4).into_iter();
            for bytes in sizes.filter(|&bytes| found.resolves(bytes)) {
                let ratio = |curve: &Curve| curve.miss_ratio(bytes).unwrap();
                let band = found.half_band(bytes).unwrap();
                let off = (ratio(&found.curve) - ratio(&exact)).abs();
                inside += usize::from(off <= band + 1e-9);
                all += 1;
                bands += band;
            }
        }
        let held = inside as f64 / all as f64;
        assert!(held >= 0.93, "{rate}: {inside} of {all}");
        // The bands must not be trivially wide.
        assert!(bands / (all as f64) < 0.05, "{rate}: {bands} of {all}");
    }
}

#[test]
fn small_memories_are_exact_with_any_sample() {
    for stream in [hot_among_uniform(300_000).collect(), recency(300_000)] {
        let exact = Curve::exact(&exact(&stream, 64, Vectors::best(), 4096), 64);
        let found = estimate(&stream, Sampling::Rate(0.001), 1);
        for blocks in (0..600).chain([1000, 5000, 16_000]) {
            let off = found.curve.misses(blocks) - exact.misses(blocks);
            assert!(off.abs() < 1e-6, "{blocks}: {off}");
            assert_eq!(found.half_band(blocks * 64), Some(0.0));
        }
    }
}

#[test]
fn sample_without_short_distances_does_not_resolve_small_memories() {
    let stream: Vec<u64> = hot_among_uniform(400_000).collect();
    let exact = Curve::exact(&exact(&stream, 64, Vectors::best(), 4096), 64);
    let (mut inside, mut all) = (0, 0);
    for salt in 0..8 {
        let engine = Sampled::new(64, Sampling::Rate(0.01), salt, Settings::default());
        let mut engine = engine.without_small_memories();
        engine.feed(&stream).unwrap();
        let found = engine.finish().unwrap();
        assert!(!found.resolves(64 * 1000), "ten blocks of the sample");
        for blocks in (2000..80_000).step_by(3000) {
            let bytes = 64 * blocks;
            let off = found.curve.misses(blocks) - exact.misses(blocks);
            let band = found.half_band(bytes).unwrap();
            inside += usize::from(off.abs() / exact.references <= band);
            all += 1;
        }
    }
    assert!(inside * 100 >= all * 93, "{inside} of {all}");
}

#[test]
fn unresolved_sizes_have_no_estimate() {
    // At a rate of 1/10000, memories from 160 000 blocks are resolved. 16 384 are counted.
    let stream: Vec<u64> = (0..600_000).map(|i| i % 300_000 * 64).collect();
    let found = estimate(&stream, Sampling::Rate(0.0001), 1);
    assert_eq!(found.counted_blocks, 1 << 14);
    assert!((100_000..250_000).contains(&found.resolved_blocks));
    assert!(found.resolves(64 << 14) && !found.resolves(64 * 50_000));
    assert_eq!(found.half_band(64 * 50_000), None);
    assert!(found.resolves(64 * 280_000));
}

#[test]
fn filters_of_all_instruction_sets_keep_the_same_blocks() {
    let addresses: Vec<u64> = numbers(6).take(1003).collect();
    for rate in [1e-9, 0.01, 0.5, 1.0] {
        let curves: Vec<u64> = Vectors::available()
            .iter()
            .map(|&vectors| {
                let settings = Settings {
                    vectors,
                    ..Settings::default()
                };
                let mut engine = Sampled::new(64, Sampling::Rate(rate), 7, settings);
                engine.feed(&addresses).unwrap();
                engine.finish().unwrap().sampled_references
            })
            .collect();
        assert!(curves.iter().all(|&n| n == curves[0]), "{rate}: {curves:?}");
    }
}

#[test]
fn sample_has_its_share_of_any_regular_pattern() {
    for stride in [1u64, 50, 64, 4096, 1 << 20] {
        for salt in 0..4 {
            let addresses: Vec<u64> = (0..200_000).map(|i| i * stride * 64).collect();
            let mut engine = Sampled::new(64, Sampling::Rate(0.05), salt, Settings::default());
            engine.feed(&addresses).unwrap();
            let found = engine.finish().unwrap();
            // Five standard deviations of a random sample.
            let off = found.sampled_blocks as f64 - 10_000.0;
            assert!(off.abs() < 500.0, "stride {stride}, salt {salt}: {off}");
            assert!((found.curve.compulsory / 200_000.0 - 1.0).abs() < 0.03);
        }
    }
}

fn parallel(addresses: &[u64], block_bytes: u64, threads: usize, chunk: usize) -> Distances {
    let mut engine = Parallel::new(block_bytes, threads, Settings::default());
    let mut parts = addresses.chunks(chunk);
    parts.try_for_each(|part| engine.feed(part)).unwrap();
    engine.finish().unwrap()
}

/// Checks that any number of threads gives the distances of one.
fn check_threads(addresses: &[u64], block_bytes: u64, chunk: usize) {
    let expected = exact(addresses, block_bytes, Vectors::best(), 1 << 14);
    for threads in 1..5 {
        let found = parallel(addresses, block_bytes, threads, chunk);
        assert!(found == expected, "{threads} threads");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_distances() {
    let random = numbers(11).take(300_000).map(|n| n % 20_000 * 64);
    let stream: Vec<u64> = random.chain([u64::MAX, 0, u64::MAX]).collect();
    for length in [0, 1, 3, 64, 65, 8192, 8193, 50_000, stream.len()] {
        check_threads(&stream[..length], 64, 10_007);
    }
}

#[test]
fn threads_match_the_definition_with_every_instruction_set() {
    let stream: Vec<u64> = numbers(12).take(60_000).map(|n| n % 3000).collect();
    let expected = distances(&stream, 1);
    for &vectors in Vectors::available() {
        let settings = Settings {
            vectors,
            ..Settings::default()
        };
        let mut engine = Parallel::new(1, 2, settings);
        engine.feed(&stream).unwrap();
        assert!(engine.finish().unwrap() == expected, "{vectors:?}");
    }
}

#[test]
fn threads_keep_blocks_at_the_top_when_they_renumber() {
    // A block that is never evicted from the top, among more references than a window has slots.
    let many = numbers(13).take(700_000).map(|n| n % 90_000 + 1);
    let stream: Vec<u64> = many.flat_map(|block| [block, 0]).collect();
    check_threads(&stream, 1, usize::MAX);
}

#[test]
fn threads_distinguish_wide_and_colliding_block_numbers() {
    let wide = || numbers(14).take(40_000);
    let again: Vec<u64> = (0..3000)
        .chain(wide())
        .chain(wide())
        .chain(0..3000)
        .collect();
    check_threads(&again, 1, 999);
    let crowd: Vec<u64> = hash_crowd(2000).chain(hash_crowd(2000)).collect();
    check_threads(&crowd, 1, 999);
    // Nearly all blocks are in one part. Windows grow with it, the other tables do not.
    let part = TablePart::all(4).last().unwrap();
    let one_part = (0u64..).filter(|&block| part.contains(block));
    let crowded: Vec<u64> = one_part.take(200_000).collect();
    let few: Vec<u64> = (0..2000).map(|n| n * 4096).collect();
    let stream = [
        &few[..],
        &crowded,
        &few,
        &crowded,
        &crowded,
        &few,
        &crowded,
        &few,
    ];
    check_threads(&stream.concat().repeat(2), 1, usize::MAX);
}

#[test]
fn threads_use_less_than_32_bytes_per_block_and_respect_the_limit() {
    let blocks: Vec<u64> = (0..1 << 20).map(|n| n * 64).collect();
    let mut engine = Parallel::new(64, 2, Settings::default());
    engine.feed(&blocks).unwrap();
    assert!(engine.memory_bytes() < (32 << 20) + (3 << 20));
    drop(engine);
    let settings = Settings {
        memory_bytes: 6 << 20,
        ..Settings::default()
    };
    let mut small = Parallel::new(64, 2, settings);
    let full = blocks.chunks(4096).find_map(|part| small.feed(part).err());
    let blocks = full.expect("more blocks than fit").blocks;
    assert!((100_000..350_000).contains(&blocks), "{blocks}");
}

#[test]
fn sample_of_all_blocks_is_exact_for_short_streams() {
    for blocks in [1, 10, 100, 1000] {
        let scan: Vec<u64> = (0..2 * blocks).map(|n| n % blocks).collect();
        let mut engine = Sampled::new(1, Sampling::Rate(1.0), 1, Settings::default());
        engine.feed(&scan).unwrap();
        let curve = engine.finish().unwrap().curve;
        assert_eq!(curve.compulsory, blocks as f64);
        assert_eq!(curve.misses(blocks - 1), 2.0 * blocks as f64);
        assert_eq!(curve.misses(blocks), blocks as f64);
    }
}
