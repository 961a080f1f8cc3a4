//! How many references a second the miss-rate-curve engines take, and how far
//! sampled curves are off.
//!
//! `make bench-mrc`, or `cargo run --release -p memgauge --example mrc_speed --
//! [REFERENCES [TRACE…]]`: five traces (`uniform` over a million lines, `zipf` 0.9
//! over ten million, `scan` of a million in turn, `mixed` phases over pages, and
//! the `matrix` product of 400³), on one thread. In each round the engines run
//! in turn, so that other work on the machine meets all of them; medians of three
//! rounds, and of the ratio to the baseline in one round. The baseline is what is
//! usually written: a hash map of last times and a Fenwick tree. Then two threads
//! against one, until there were enough rounds in which two processors were free.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Instant;

use memgauge_analyze::mrc::{Curve, Distances, Exact, Parallel, Sampled, Sampling, Settings};
use memgauge_collect::sys::advice::large_pages;

const ROUNDS: usize = 3;
/// Rounds of two threads against one: so many with both processors free, or these.
const FREE_ROUNDS: usize = 7;
const MOST_ROUNDS: usize = 15;
/// Both processors are free when two engines that share nothing take in so many times
/// what one does.
const FREE: f64 = 1.9;
/// Samples by which the estimator was chosen have lower numbers.
const SALTS: std::ops::RangeInclusive<u64> = 101..=105;
const BASE: u64 = 0x7f00_0000_0000;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// In 0..1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

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
    Settings {
        advise: Some(large_pages),
        ..Settings::default()
    }
}

fn exact(addresses: &[u64], block: u64) -> (Distances, usize) {
    let mut engine = Exact::new(block, settings());
    engine.feed(addresses).expect("memory is not limited");
    let bytes = engine.memory_bytes();
    (engine.finish().expect("memory is not limited"), bytes)
}

fn two_threads(addresses: &[u64], block: u64) -> Distances {
    let mut engine = Parallel::new(block, 2, settings());
    engine.feed(addresses).expect("memory is not limited");
    engine.finish().expect("memory is not limited")
}

/// An engine on each of two processors that share nothing, over the same references.
fn two_apart(addresses: &[u64], block: u64) {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| exact(addresses, block));
        exact(addresses, block);
        other.join().expect("the engine does not panic");
    });
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

/// Clock ticks of all processors, of those idle ones and ones the host took, and
/// ticks that this process ran.
fn ticks() -> [f64; 4] {
    let numbers = |path: &str, from: usize| -> Vec<f64> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let words = text.lines().next().unwrap_or_default().split_whitespace();
        words.skip(from).map_while(|w| w.parse().ok()).collect()
    };
    // user nice system idle iowait irq softirq steal …; the process's 14th and 15th.
    let (all, own) = (numbers("/proc/stat", 1), numbers("/proc/self/stat", 13));
    let at = |at: usize| all.get(at).copied().unwrap_or(0.0);
    let own = own.iter().take(2).sum();
    [all.iter().take(8).sum(), at(3) + at(4), at(7), own]
}

/// Runs something and adds to `others` the ticks it took on all processors, those
/// that went to other programs and those that went to the host.
fn watched<T>(others: &mut [f64; 3], f: impl FnOnce() -> T) -> T {
    let before = ticks();
    let result = f();
    let after = ticks();
    let [all, idle, stolen, own] = std::array::from_fn(|at| after[at] - before[at]);
    let each = [all, (all - idle - stolen - own).max(0.0), stolen];
    others.iter_mut().zip(each).for_each(|(sum, n)| *sum += n);
    result
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn speed(name: &str, block: u64, addresses: &[u64]) -> Distances {
    let millions = addresses.len() as f64 / 1e6;
    let mut columns: [Vec<f64>; 5] = Default::default();
    let mut found = None;
    for _ in 0..ROUNDS {
        let (base, expected) = seconds(|| baseline(addresses, block.trailing_zeros()));
        let (own, (distances, bytes)) = seconds(|| exact(addresses, block));
        assert!(distances == expected, "both are exact");
        let (hundredth, _) = seconds(|| sampled(addresses, block, 0.01, 1));
        let each = bytes as f64 / distances.compulsory as f64;
        let values = [
            millions / base,
            millions / own,
            base / own,
            each,
            millions / hundredth,
        ];
        columns.iter_mut().zip(values).for_each(|(c, v)| c.push(v));
        found = Some(distances);
    }
    let [base, own, ratio, each, hundredth] = columns.map(median);
    println!("{name:8}  {base:8.1}  {own:8.1}  {ratio:6.1} ×  {each:8.1}  {hundredth:10.0}");
    found.expect("there are rounds")
}

/// Two threads against one, between two runs of two engines that share nothing, between
/// two of one: of one the quicker run counts, of two engines the slower, so that
/// processors count as free that were so all the while.
fn scaling(name: &str, block: u64, addresses: &[u64], expected: &Distances) {
    let mut columns: [Vec<f64>; 4] = Default::default();
    let (mut others, mut quickest) = ([0.0; 3], [f64::INFINITY; 2]);
    while columns[0].len() < FREE_ROUNDS && columns[1].len() < MOST_ROUNDS {
        let (one, _) = seconds(|| exact(addresses, block));
        let (before, ()) = seconds(|| two_apart(addresses, block));
        let (two, found) = watched(&mut others, || seconds(|| two_threads(addresses, block)));
        assert!(found == *expected, "both are exact");
        let (after, ()) = seconds(|| two_apart(addresses, block));
        let (again, _) = seconds(|| exact(addresses, block));
        let one = one.min(again);
        quickest = [quickest[0].min(one), quickest[1].min(two)];
        let apart = 2.0 * one / before.max(after);
        let values = [one / two, one / two, apart, (before + after) / (2.0 * two)];
        let from = usize::from(apart < FREE);
        columns
            .iter_mut()
            .zip(values)
            .skip(from)
            .for_each(|(c, v)| c.push(v));
    }
    let rounds = columns[1].len();
    let each = columns.each_ref().map(|values| quartiles(values));
    println!(
        "{name:8}  {:8.2}  {:2} of {rounds:2}  {}  {:6.1} %  {:6.1} %",
        quickest[0] / quickest[1],
        columns[0].len(),
        each.join("  "),
        100.0 * others[1] / others[0].max(1.0),
        100.0 * others[2] / others[0].max(1.0)
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
    let references = arguments
        .next()
        .map_or(50_000_000, |n| n.parse().expect("a number of references"));
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
        let distances = speed(name, block, &addresses);
        all.push((name, block, addresses, distances));
    }
    println!(
        "\ntwo threads / one: the quickest runs of each; medians (quartiles) of rounds with both processors\n\
         free (two engines that share nothing, each on a processor, took in {FREE} times what one did,\n\
         before and after), and of all; these two engines / one, their slower run and its quicker; two\n\
         threads / one of these two; while two threads ran, share of all processors that other programs\n\
         had, and the host\n\n\
         trace     quickest      free          two, both free             two, all            two apart               beside    others    stolen"
    );
    for (name, block, addresses, distances) in &all {
        scaling(name, *block, addresses, distances);
    }
    println!(
        "\nmean absolute error of the miss ratio over {} samples",
        SALTS.count()
    );
    println!("             1 %:      plain  ratio      0.1 %:      plain  ratio");
    for (name, block, addresses, distances) in &all {
        error(name, *block, addresses, distances);
    }
}
