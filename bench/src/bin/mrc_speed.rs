//! How many references a second the miss-rate-curve engines take, and how far
//! sampled curves are off.
//!
//! Run it with `make bench-mrc`, or `cargo run --release --manifest-path bench/Cargo.toml --bin mrc_speed -- [REFERENCES [TRACE…]]`. There are five traces on one thread: `uniform`
//! over a million lines, `zipf` 0.9 over ten million, `scan` of a million in turn,
//! `mixed` phases over pages, and the `matrix` product of 400³. In each round the
//! engines run in turn, so that other work on the machine affects all of them. Figures
//! are medians of three rounds, and of the ratio to the baseline in one round. The
//! baseline is what is usually written: a hash map of last times and a Fenwick tree.
//! Then two threads against one, until there were enough rounds in which two processors
//! were free. Last comes the whole process, `memgauge mrc FILE`, against the engine: it
//! takes more for start, reading and the report.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use memgauge_host::sys::advice::large_pages;
use memgauge_mrc::{Curve, Distances, Exact, Parallel, Sampled, Sampling, Settings};

use memgauge_bench::random::Random;

const ROUNDS: usize = 3;
/// Runs in each round of what takes a tenth of a second.
const SHORT_RUNS: usize = 5;
/// Time that one thread takes for a piece of a trace; one and two threads take pieces
/// in turn. It is about as long as a virtual machine's processors keep their speed.
const PIECE_SECONDS: f64 = 0.025;
/// Passes over a trace: each piece is measured this often with both processors free, or
/// the second number of times at most. Before a piece, freedom is looked for the third
/// number of times.
const FREE_PASSES: usize = 3;
const MOST_PASSES: usize = 15;
const PATIENCE: usize = 40;
/// Two processors count as free when two threads that share nothing do this many times
/// the work of one. If they do more, the single thread was held up.
const FREE: std::ops::RangeInclusive<f64> = 1.9..=2.1;
/// Samples by which the estimator was chosen have lower numbers.
const SALTS: std::ops::RangeInclusive<u64> = 101..=105;
const BASE: u64 = 0x7f00_0000_0000;

/// Ranks whose chance falls with a power of the rank, by rejection-inversion
/// (W. Hörmann and G. Derflinger, 1996).
struct Zipf {
    ranks: f64,
    power: f64,
    first: f64,
    last: f64,
    near: f64,
}

impl Zipf {
    fn new(ranks: u64, power: f64) -> Zipf {
        let mut zipf = Zipf {
            ranks: ranks as f64,
            power,
            first: 0.0,
            last: 0.0,
            near: 0.0,
        };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(ranks as f64 + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-power));
        zipf
    }

    fn integral(&self, x: f64) -> f64 {
        (x.powf(1.0 - self.power) - 1.0) / (1.0 - self.power)
    }

    fn inverse(&self, x: f64) -> f64 {
        (1.0 + x * (1.0 - self.power)).powf(1.0 / (1.0 - self.power))
    }

    /// From 0 on.
    fn sample(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.last + random.unit() * (self.first - self.last);
            let x = self.inverse(u);
            let rank = (x + 0.5).floor().clamp(1.0, self.ranks);
            let under = u >= self.integral(rank + 0.5) - rank.powf(-self.power);
            if rank - x <= self.near || under {
                return rank as u64 - 1;
            }
        }
    }
}

const TRACES: [(&str, u64); 5] = [
    ("uniform", 64),
    ("zipf", 64),
    ("scan", 64),
    ("mixed", 4096),
    ("matrix", 64),
];

fn trace(name: &str, references: usize) -> Vec<u64> {
    let mut random = Random(42);
    let count = 0..references as u64;
    match name {
        "uniform" => count.map(|_| BASE + 64 * random.below(1_000_000)).collect(),
        "scan" => count.map(|i| BASE + 64 * (i % 1_000_000)).collect(),
        "zipf" => {
            let zipf = Zipf::new(10_000_000, 0.9);
            let place = |rank: u64| (rank * 7_654_321 + 12_345) % 10_000_000;
            count
                .map(|_| BASE + 64 * place(zipf.sample(&mut random)))
                .collect()
        }
        "mixed" => mixed(&mut random, references),
        _ => matrix().take(references).collect(),
    }
}

/// Phases of a million references: a small set, a scan, skewed, a loop, a falling
/// exponential.
fn mixed(random: &mut Random, references: usize) -> Vec<u64> {
    let zipf = Zipf::new(4_000_000, 0.8);
    let mut scanned = 0;
    let page = |i: u64| {
        let (phase, within) = (i / 1_000_000, i % 1_000_000);
        let base = phase % 7 * 300_000;
        match phase % 5 {
            0 => base + random.below(20_000),
            1 => {
                scanned += 1;
                scanned % 3_000_000
            }
            2 => (zipf.sample(random) * 1_234_567 + 99) % 4_000_000,
            3 => base + within % 200_000,
            _ => base + ((1.0 - random.unit()).ln() * -3000.0) as u64,
        }
    };
    (0..references as u64)
        .map(page)
        .map(|page| BASE + 4096 * page)
        .collect()
}

/// Lines of `c[i][j] += a[i][k] * b[k][j]` over matrices of 400², again and again.
fn matrix() -> impl Iterator<Item = u64> {
    let n = 400;
    let each = move |at: u64| {
        let (i, j, k) = (at / (n * n) % n, at / n % n, at % n);
        let a = BASE + 8 * (i * n + k);
        let b = BASE + (1 << 24) + 8 * (k * n + j);
        let c = BASE + (2 << 24) + 8 * (i * n + j);
        [a & !63, b & !63, c & !63]
    };
    (0u64..).flat_map(each)
}

/// The fast hash that such a baseline is written with.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

/// A hash map and a Fenwick tree over a window of times, renumbered when full.
fn baseline(addresses: &[u64], shift: u32) -> Distances {
    let mut last: HashMap<u64, usize, BuildHasherDefault<Multiply>> = HashMap::default();
    let (mut tree, mut now) = (vec![0i32; (1 << 20) + 1], 0);
    let mut counts = vec![0u64];
    for address in addresses {
        if now + 1 == tree.len() {
            let mut order: Vec<(usize, u64)> = last.iter().map(|(&b, &t)| (t, b)).collect();
            order.sort_unstable();
            tree = vec![0; 2 * order.len() + (1 << 20) + 1];
            for (at, (_, block)) in order.iter().enumerate() {
                last.insert(*block, at);
                add(&mut tree, at, 1);
            }
            now = order.len();
        }
        match last.insert(address >> shift, now) {
            Some(before) => {
                let older = sum(&tree, before);
                counts[last.len() - older as usize] += 1;
                add(&mut tree, before, -1);
            }
            None => counts.push(0),
        }
        add(&mut tree, now, 1);
        now += 1;
    }
    let counts = counts.iter().enumerate().filter(|c| *c.1 > 0);
    Distances {
        counts: counts.map(|(d, &n)| (d as u64, n)).collect(),
        compulsory: last.len() as u64,
    }
}

fn add(tree: &mut [i32], at: usize, value: i32) {
    let mut at = at + 1;
    while at < tree.len() {
        tree[at] += value;
        at += at & at.wrapping_neg();
    }
}

/// Up to and with `at`.
fn sum(tree: &[i32], at: usize) -> i32 {
    let (mut at, mut sum) = (at + 1, 0);
    while at > 0 {
        sum += tree[at];
        at &= at - 1;
    }
    sum
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.advise = Some(large_pages);
    settings
}

fn exact(addresses: &[u64], block: u64) -> (Distances, usize) {
    let mut engine = Exact::new(block, settings());
    engine.feed(addresses).expect("memory is not limited");
    let bytes = engine.memory_bytes();
    (engine.finish().expect("memory is not limited"), bytes)
}

/// Whether two threads that share nothing do twice what one does now.
fn both_are_free() -> bool {
    let (one, ()) = seconds(spin);
    let (two, ()) = seconds(|| {
        std::thread::scope(|scope| {
            scope.spawn(spin);
            spin();
        });
    });
    FREE.contains(&(2.0 * one / two))
}

/// Some milliseconds of arithmetic, with the same code for every caller.
#[inline(never)]
fn spin() {
    let mut random = Random(1);
    let sum = (0..8_000_000).fold(0, |sum, _| sum ^ random.next());
    std::hint::black_box(sum);
}

/// A curve of a hundredth of the blocks, and of no small memories.
fn sample_only(addresses: &[u64], block: u64) -> Curve {
    let engine = Sampled::new(block, Sampling::Rate(0.01), 1, settings());
    let mut engine = engine.without_small_memories();
    engine.feed(addresses).expect("memory is not limited");
    engine.finish().expect("memory is not limited").curve
}

fn sampled(addresses: &[u64], block: u64, rate: f64, salt: u64) -> Curve {
    let mut engine = Sampled::new(block, Sampling::Rate(rate), salt, settings());
    engine.feed(addresses).expect("memory is not limited");
    engine.finish().expect("memory is not limited").curve
}

/// The plain estimate: distances and counts divided by the rate; miss ratios at
/// sizes in blocks.
fn plain(addresses: &[u64], block: u64, rate: f64, salt: u64, sizes: &[u64]) -> Vec<f64> {
    let limit = (rate * u64::MAX as f64) as u64;
    let kept = |block: &u64| Random(block ^ salt << 48).next() < limit;
    let blocks = addresses.iter().map(|a| a / block);
    let sample: Vec<u64> = blocks.filter(kept).collect();
    let curve = Curve::exact(&exact(&sample, 1).0, 1);
    let ratio =
        |&size: &u64| curve.misses((size as f64 * rate) as u64) / sample.len().max(1) as f64;
    sizes.iter().map(ratio).collect()
}

fn seconds<T>(f: impl FnOnce() -> T) -> (f64, T) {
    let started = Instant::now();
    let result = f();
    (started.elapsed().as_secs_f64(), result)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Shows how fast engines on one thread are; the distances, and references a second of the
/// exact engine.
fn speed(name: &str, block: u64, addresses: &[u64]) -> (Distances, f64) {
    let millions = addresses.len() as f64 / 1e6;
    let mut columns: [Vec<f64>; 5] = Default::default();
    let mut found = None;
    for _ in 0..ROUNDS {
        let (base, expected) = seconds(|| baseline(addresses, block.trailing_zeros()));
        let (own, (distances, bytes)) = seconds(|| exact(addresses, block));
        assert!(distances == expected, "both are exact");
        let hundredth = (0..SHORT_RUNS).map(|_| seconds(|| sample_only(addresses, block)).0);
        let each = bytes as f64 / distances.compulsory as f64;
        let values = [
            millions / base,
            millions / own,
            base / own,
            each,
            millions / median(hundredth.collect()),
        ];
        columns.iter_mut().zip(values).for_each(|(c, v)| c.push(v));
        found = Some(distances);
    }
    let [base, own, ratio, each, hundredth] = columns.map(median);
    println!("{name:8}  {base:8.1}  {own:8.1}  {ratio:6.1} ×  {each:8.1}  {hundredth:10.0}");
    (found.expect("there are rounds"), own * 1e6)
}

/// Seconds that one thread and two took for a piece, in each pass.
#[derive(Clone, Default)]
struct Both {
    one: Vec<f64>,
    two: Vec<f64>,
}

/// Two threads against one over all pieces that were measured, each by its medians.
fn ratio(pieces: &[Both]) -> String {
    let known = || pieces.iter().filter(|piece| !piece.one.is_empty());
    if known().next().is_none() {
        return "-".to_owned();
    }
    let one: f64 = known().map(|piece| median(piece.one.clone())).sum();
    let two: f64 = known().map(|piece| median(piece.two.clone())).sum();
    format!("{:.2}", one / two)
}

/// Two threads against one: each has an engine, and pieces of the trace in turn, so that
/// both meet the same moments of the machine. A piece counts as taken with both
/// processors free if they were so before it, which is waited for, and after it. The few
/// thousand references that two threads have on their way when a piece ends are counted
/// in the next.
fn scaling(name: &str, block: u64, addresses: &[u64], expected: &(Distances, f64)) {
    let piece = (expected.1 * PIECE_SECONDS) as usize;
    let pieces = addresses.len().div_ceil(piece);
    let (mut free, mut all) = (vec![Both::default(); pieces], vec![Both::default(); pieces]);
    let mut passes = 0;
    while passes < MOST_PASSES && free.iter().any(|piece| piece.one.len() < FREE_PASSES) {
        let mut one = Exact::new(block, settings());
        let mut two = Parallel::new(block, 2, settings());
        for (at, piece) in addresses.chunks(piece).enumerate() {
            let before = (0..PATIENCE).any(|_| both_are_free());
            let mut feed_one = || seconds(|| one.feed(piece).expect("memory is not limited")).0;
            let mut feed_two = || seconds(|| two.feed(piece).expect("memory is not limited")).0;
            let (by_one, by_two);
            if (at + passes) % 2 == 0 {
                by_one = feed_one();
                by_two = feed_two();
            } else {
                by_two = feed_two();
                by_one = feed_one();
            }
            let is_free = before && both_are_free();
            for found in [&mut all].into_iter().chain(is_free.then_some(&mut free)) {
                found[at].one.push(by_one);
                found[at].two.push(by_two);
            }
        }
        for found in [one.finish(), two.finish()] {
            assert!(
                found.expect("memory is not limited") == expected.0,
                "both are exact"
            );
        }
        passes += 1;
    }
    let often = free.iter().map(|piece| piece.one.len());
    let each = free
        .iter()
        .flat_map(|p| p.one.iter().zip(&p.two).map(|(one, two)| one / two));
    println!(
        "{name:8}  {:3} of {pieces:3}  {:4} of {:4}  {:>5}  {}  {:>5}",
        often.clone().filter(|&passes| passes > 0).count(),
        often.sum::<usize>(),
        passes * pieces,
        ratio(&free),
        quartiles(&each.collect::<Vec<f64>>()),
        ratio(&all),
    );
}

/// Median and quartiles, in a column.
fn quartiles(values: &[f64]) -> String {
    let mut values = values.to_vec();
    if values.is_empty() {
        return format!("{:>20}", "-");
    }
    values.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = (values.len() - 1) as f64 * part;
        let (low, high) = (
            values[place.floor() as usize],
            values[place.ceil() as usize],
        );
        low + (high - low) * place.fract()
    };
    format!("{:6.2} ({:4.2} to {:4.2})", at(0.5), at(0.25), at(0.75))
}

/// The memgauge that the variable `MEMGAUGE` names, if it exists.
fn program() -> Option<PathBuf> {
    let program = PathBuf::from(std::env::var_os("MEMGAUGE")?);
    program.exists().then_some(program)
}

/// Shows what a whole process takes for a raw file of the trace, and what the engine does.
fn process(program: &Path, name: &str, block: u64, addresses: &[u64]) -> std::io::Result<()> {
    let file = std::env::temp_dir().join(format!("memgauge-mrc-{}.raw", std::process::id()));
    let bytes: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    std::fs::write(&file, bytes)?;
    let (mut engines, mut processes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        engines.push(seconds(|| exact(addresses, block)).0);
        let mut command = Command::new(program);
        command.args(["mrc", "--format", "raw", "--block", &block.to_string()]);
        command.arg(&file).stdout(Stdio::null());
        let (taken, status) = seconds(|| command.status());
        assert!(status?.success(), "{command:?}");
        processes.push(taken);
    }
    std::fs::remove_file(&file)?;
    let (engine, process) = (median(engines), median(processes));
    println!(
        "{name:8}  {process:8.2}  {engine:8.2}  {:6.2}",
        process / engine
    );
    Ok(())
}

/// Mean absolute errors of both estimates, over salts and a hundred sizes.
fn error(name: &str, block: u64, addresses: &[u64], distances: &Distances) {
    let exact = Curve::exact(distances, block);
    let sizes: Vec<u64> = (1..=100).map(|i| distances.compulsory * i / 100).collect();
    let truth: Vec<f64> = sizes
        .iter()
        .map(|&s| exact.misses(s) / exact.references)
        .collect();
    let off = |found: &[f64]| {
        let apart = found.iter().zip(&truth).map(|(a, b)| (a - b).abs());
        apart.sum::<f64>() / sizes.len() as f64
    };
    print!("{name:8}");
    for rate in [0.01, 0.001] {
        let (mut own, mut usual) = (0.0, 0.0);
        for salt in SALTS {
            let curve = sampled(addresses, block, rate, salt);
            let ratios: Vec<f64> = sizes
                .iter()
                .map(|&s| curve.misses(s) / curve.references)
                .collect();
            own += off(&ratios) / SALTS.count() as f64;
            usual += off(&plain(addresses, block, rate, salt, &sizes)) / SALTS.count() as f64;
        }
        print!("  {own:9.5}  {usual:9.5}  {:5.2}", own / usual);
    }
    println!();
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let references = arguments.next().map_or(50_000_000, |n| {
        let count = n.parse().map(NonZeroUsize::get);
        count.unwrap_or_else(|error| {
            eprintln!("failed to read the number of references `{n}`: {error}");
            std::process::exit(2)
        })
    });
    let chosen: Vec<String> = arguments.collect();
    let traces = TRACES
        .iter()
        .filter(|t| chosen.is_empty() || chosen.iter().any(|c| c == t.0));
    println!(
        "million references a second of {references}, one thread; bytes a distinct block\n\n\
         trace     baseline     exact     ratio     bytes  sample 1 %"
    );
    let mut all = Vec::new();
    for &(name, block) in traces {
        let addresses = trace(name, references);
        let found = speed(name, block, &addresses);
        all.push((name, block, addresses, found));
    }
    println!(
        "\ntwo threads / one, by pieces of some {PIECE_SECONDS} s of one: pieces taken with both processors free, and\n\
         how often of all passes; over these pieces, each by its median time, and medians (quartiles)\n\
         of single ones; over all, free or not\n\n\
         trace        pieces      passes  whole           single piece    all"
    );
    for (name, block, addresses, found) in &all {
        scaling(name, *block, addresses, found);
    }
    if let Some(program) = program() {
        println!(
            "\nseconds of `memgauge mrc FILE` and of its engine alone\n\n          process    engine   ratio"
        );
        for (name, block, addresses, _) in &all {
            process(&program, name, *block, addresses).expect("a file and a process");
        }
    }
    println!(
        "\nmean absolute error of the miss ratio over {} samples",
        SALTS.count()
    );
    println!("             1 %:      plain  ratio      0.1 %:      plain  ratio");
    for (name, block, addresses, found) in &all {
        error(name, *block, addresses, &found.0);
    }
}
