//! How often the bands of sampled miss-rate curves hold the exact curve.
//!
//! Run it with `make bench-mrc`, or `cargo run --release --manifest-path bench/Cargo.toml --bin mrc_coverage -- [REFERENCES [FILE…]]`. The inputs are traces made here (none where
//! REFERENCES is 0) and raw lists of addresses, as `mrc_streams` writes them of programs,
//! each with several rates and samples. Bands are checked at every size shown, four to a
//! doubling. *Far* are the sizes beyond those that are counted exactly. *Time* is the
//! sampled engine's by the exact one's, on one thread: medians, both in turn. *Only*
//! counts no small memories (`--sample-only`).

use std::time::Instant;

use memgauge_mrc::{Curve, Exact, Sampled, Sampling, Settings, sizes};

use memgauge_bench::random::Random;

const SALTS: std::ops::RangeInclusive<u64> = 201..=212;
/// Samples, and whether they count small memories beside.
const WAYS: [(Sampling, bool); 6] = [
    (Sampling::Rate(0.1), true),
    (Sampling::Rate(0.01), true),
    (Sampling::Rate(0.001), true),
    (Sampling::Size(2000), true),
    (Sampling::Rate(0.01), false),
    (Sampling::Rate(0.001), false),
];
/// Rounds of each engine that are timed.
const ROUNDS: usize = 5;
const BLOCK: u64 = 64;

/// Blocks by rank, whose chance falls with a power of the rank.
fn zipf(random: &mut Random, ranks: usize, power: f64, count: usize) -> Vec<u64> {
    let mut sums = Vec::with_capacity(ranks);
    let mut sum = 0.0;
    for rank in 1..=ranks {
        sum += (rank as f64).powf(-power);
        sums.push(sum);
    }
    let pick = |u: f64| sums.partition_point(|&s| s < u * sum) as u64;
    (0..count).map(|_| pick(random.unit())).collect()
}

/// The block at a stack distance that a power law gives, or a new one.
fn recency(random: &mut Random, power: f64, count: usize) -> Vec<u64> {
    let mut blocks: Vec<u64> = Vec::with_capacity(count);
    let mut fresh = 0;
    for _ in 0..count {
        let back = (random.unit().powf(-1.0 / power)) as usize;
        let block = match blocks.len().checked_sub(back) {
            Some(at) => blocks[at],
            None => {
                fresh += 1;
                fresh
            }
        };
        blocks.push(block);
    }
    blocks
}

/// Blocks far from one another, so that hashes are no neighbours'.
fn scattered(block: u64) -> u64 {
    Random(block).next() >> 24
}

fn phases(random: &mut Random, count: usize) -> Vec<u64> {
    let each = |at: usize| {
        let (phase, within) = (at / 250_000, (at % 250_000) as u64);
        let base = phase as u64 % 5 * 70_000;
        match phase % 4 {
            0 => base + random.below(30_000),
            1 => base + within % 60_000,
            2 => base + within % 300,
            _ => base + (random.unit().powi(5) * 120_000.0) as u64,
        }
    };
    (0..count).map(each).collect()
}

/// Traces as block numbers, by name.
fn traces(count: usize) -> Vec<(String, Vec<u64>)> {
    let random = &mut Random(7);
    let mut all: Vec<(String, Vec<u64>)> = Vec::new();
    for power in [0.6, 0.8, 0.9, 0.99, 1.2] {
        let blocks = zipf(random, 500_000, power, count);
        let placed = blocks.iter().map(|b| (b * 7_654_321 + 12_345) % 500_000);
        all.push((format!("zipf {power}"), placed.collect()));
        let placed = blocks.iter().map(|b| scattered(*b));
        all.push((format!("zipf {power} scattered"), placed.collect()));
    }
    for power in [0.5, 1.0, 1.5] {
        all.push((format!("recency {power}"), recency(random, power, count)));
        let apart = recency(random, power, count).into_iter().map(scattered);
        all.push((format!("recency {power} scattered"), apart.collect()));
    }
    let uniform = |random: &mut Random, blocks| (0..count).map(|_| random.below(blocks)).collect();
    all.push(("uniform 30k".to_owned(), uniform(random, 30_000)));
    all.push(("uniform 300k".to_owned(), uniform(random, 300_000)));
    let n = count as u64;
    all.push(("scan 50k".to_owned(), (0..n).map(|i| i % 50_000).collect()));
    all.push((
        "scan 200k".to_owned(),
        (0..n).map(|i| i % 200_000).collect(),
    ));
    let loops = (0..n).map(|i| scattered(i % 40_000));
    all.push(("loop scattered".to_owned(), loops.collect()));
    let hot = (0..count).map(|_| match random.below(5) {
        0 | 1 => 1 << 30 | random.below(20),
        _ => random.below(400_000),
    });
    all.push(("20 hot among uniform".to_owned(), hot.collect()));
    let hot = (0..n).map(|i| match i % 3 {
        0 => scattered(i / 3 % 70_000),
        1 => i / 3 % 20_000 + (1 << 40),
        _ => i % 100,
    });
    all.push(("loops with a hot set".to_owned(), hot.collect()));
    let rare = (0..count).map(|at| match at % 50 {
        0 => scattered(random.below(90_000)),
        _ => (1 << 41) + random.below(500),
    });
    all.push(("rare far".to_owned(), rare.collect()));
    // Few references go back, and to a small part of the old blocks.
    let mut fresh = 0;
    let growing = (0..count).map(|at| match at % 100 {
        0..30 => {
            fresh += u64::from(random.below(3) == 0);
            (1 << 42) + fresh
        }
        30 if at % 3000 < 300 => (1 << 42) + random.below(fresh + 1) / 50,
        _ => (1 << 41) + random.below(300),
    });
    all.push(("growing".to_owned(), growing.collect()));
    all.push(("phases".to_owned(), phases(random, count)));
    let apart = phases(random, count).into_iter().map(scattered);
    all.push(("phases scattered".to_owned(), apart.collect()));
    for (_, trace) in &mut all {
        trace.iter_mut().for_each(|block| *block *= BLOCK);
    }
    all
}

fn raw(path: &str) -> Vec<u64> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| {
        eprintln!("failed to read addresses from `{path}`: {error}");
        std::process::exit(2)
    });
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|w| u64::from_le_bytes(*w)).collect()
}

/// Sizes shown, those of them whose band holds the exact curve, and the mean band and
/// error at far ones.
#[derive(Clone, Copy, Default)]
struct Held {
    all: [usize; 2],
    far: [usize; 2],
    band: f64,
    error: f64,
}

fn sampled(way: (Sampling, bool), salt: u64) -> Sampled {
    let engine = Sampled::new(BLOCK, way.0, salt, Settings::default());
    match way.1 {
        true => engine,
        false => engine.without_small_memories(),
    }
}

fn held(addresses: &[u64], way: (Sampling, bool), exact: &Curve) -> Held {
    let mut held = Held::default();
    let all = sizes(BLOCK, exact.enough_blocks() * BLOCK, 4);
    for salt in SALTS {
        let mut engine = sampled(way, salt);
        engine.feed(addresses).expect("memory is not limited");
        let found = engine.finish().expect("memory is not limited");
        for &bytes in all.iter().filter(|&&bytes| found.resolves(bytes)) {
            let ratio = |curve: &Curve| curve.miss_ratio(bytes).unwrap_or(0.0);
            let off = (ratio(&found.curve) - ratio(exact)).abs();
            let band = found.half_band(bytes).unwrap_or(0.0);
            let inside = off <= band + 1e-9;
            held.all = [held.all[0] + 1, held.all[1] + usize::from(inside)];
            if bytes / BLOCK > found.counted_blocks {
                held.far = [held.far[0] + 1, held.far[1] + usize::from(inside)];
                held.band += band;
                held.error += off;
            }
        }
    }
    held
}

/// Seconds that the sampled engine takes, by those of the exact one: medians of rounds
/// in which both run in turn.
fn time(addresses: &[u64], way: (Sampling, bool)) -> f64 {
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            let mut engine = Exact::new(BLOCK, Settings::default());
            engine.feed(addresses).expect("memory is not limited");
            engine.finish().expect("memory is not limited");
            let exact = started.elapsed();
            let started = Instant::now();
            let mut engine = sampled(way, 1);
            engine.feed(addresses).expect("memory is not limited");
            engine.finish().expect("memory is not limited");
            started.elapsed().as_secs_f64() / exact.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ROUNDS / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(2_000_000, |n| {
        n.parse().unwrap_or_else(|error| {
            eprintln!("failed to read the number of references `{n}`: {error}");
            std::process::exit(2)
        })
    });
    let mut all = match count {
        0 => Vec::new(),
        count => traces(count),
    };
    all.extend(arguments.map(|path| (path.clone(), raw(&path))));
    println!(
        "{:26}  {:>11}  {:>7}  {:>7}  {:>9}  {:>9}  {:>6}",
        "trace", "sample", "held", "far", "band", "error", "time"
    );
    for (name, addresses) in &all {
        let mut engine = Exact::new(BLOCK, Settings::default());
        engine.feed(addresses).expect("memory is not limited");
        let distances = engine.finish().expect("memory is not limited");
        let exact = Curve::exact(&distances, BLOCK);
        for way in WAYS {
            let held = held(addresses, way, &exact);
            let share = |n: [usize; 2]| match n[0] {
                0 => "-".to_owned(),
                all => format!("{:.3}", n[1] as f64 / all as f64),
            };
            let mean = |sum: f64| sum / held.far[0].max(1) as f64;
            println!(
                "{:26}  {:>11}  {:>7}  {:>7}  {:9.5}  {:9.5}  {:6.3}",
                name.rsplit('/').next().unwrap_or(name),
                match way {
                    (Sampling::Rate(rate), true) => rate.to_string(),
                    (Sampling::Rate(rate), false) => format!("{rate} only"),
                    (Sampling::Size(size), _) => format!("{size} blocks"),
                },
                share(held.all),
                share(held.far),
                mean(held.band),
                mean(held.error),
                time(addresses, way),
            );
        }
    }
}
