//! How many accesses per second the model takes, by where they end up.
//!
//! `cargo run --release --manifest-path bench/Cargo.toml --bin model_speed [PRESET [WORD]]` prints the
//! median of five runs of each stream (of those whose name contains WORD), on the
//! processor it runs on.

use std::hint::black_box;
use std::time::Instant;

use memgauge_machine::{AccessKind, Config, Core, Machine, PmuConfig, SampleSpec, SharedLevels};
use memgauge_trace::catalogue;

const STACK: u64 = 0x7fff_ffff_0000;
const HEAP: u64 = 0x5555_0000_0000;
/// Accesses of a stream; small enough that reading them costs the host little.
const ACCESSES: u64 = 1 << 16;
/// Times a stream is fed in one run.
const REPEATS: u64 = 40;

/// A stream: address and whether it stores, and by what the addresses of heap
/// move with each repetition (within a mask).
struct Stream {
    name: &'static str,
    accesses: Vec<(u64, bool)>,
    step: u64,
    mask: u64,
}

/// A reproducible sequence of 64-bit numbers (xorshift).
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(seed), |&x| {
        let x = x ^ (x << 13);
        let x = x ^ (x >> 7);
        Some(x ^ (x << 17))
    })
}

/// A loop that reads an array in turn and uses the stack.
fn mix(name: &'static str) -> Stream {
    let access = |n: u64| match n % 3 {
        0 => (HEAP + n / 3 * 4 % (16 << 10), false),
        1 => (STACK + 8 * (n / 3 % 4), n.is_multiple_of(2)),
        _ => (STACK + 64, true),
    };
    Stream {
        name,
        accesses: (0..ACCESSES).map(access).collect(),
        step: 0,
        mask: 0,
    }
}

/// Uniform random words of a region whose size is a power of two.
fn random(name: &'static str, bytes: u64) -> Stream {
    let words = numbers(88_172_645_463_325_252).map(|x| (HEAP + x % bytes / 8 * 8, false));
    let accesses = words.take(ACCESSES as usize).collect();
    let step = if bytes > 64 * ACCESSES {
        0x9e37_79b9_7f4a_7c15
    } else {
        0
    };
    Stream {
        name,
        accesses,
        step,
        mask: bytes - 64,
    }
}

/// Every line of a region in turn.
fn lines(name: &'static str, bytes: u64) -> Stream {
    let accesses = (0..ACCESSES)
        .map(|n| (HEAP + n * 64 % bytes, false))
        .collect();
    let long = bytes > 64 * ACCESSES;
    Stream {
        name,
        accesses,
        step: 64 * ACCESSES,
        mask: if long { bytes - 64 } else { 0 },
    }
}

fn feed(core: &mut Core, shared: &mut SharedLevels, stream: &Stream) -> u64 {
    let mut seen = 0;
    for repeat in 0..REPEATS {
        let moved = stream.step.wrapping_mul(repeat) & stream.mask;
        for block in stream.accesses.chunks_exact(4) {
            if core.retire(8, 4, 0, 0) {
                core.take_ticks(|tick| seen += tick.interval_ns);
                core.take_overflows(|overflow| seen += overflow.time_ns);
            }
            for &(addr, store) in block {
                let addr = addr ^ moved;
                if !core.touch(addr, store) {
                    let kind = if store {
                        AccessKind::Store
                    } else {
                        AccessKind::Load
                    };
                    seen += u64::from(core.access(shared, addr, 8, kind).l1d_misses);
                }
            }
        }
    }
    seen
}

/// Millions of accesses per second, median of five runs.
fn rate(config: &Config, pmu: &PmuConfig, stream: &Stream) -> f64 {
    let mut machine = Machine::new(config.clone(), pmu.clone()).expect("SANITY: presets are valid");
    let id = machine.add_core(0);
    let mut run = || {
        let (core, shared) = machine.core_mut(id);
        let start = Instant::now();
        black_box(feed(core, shared, stream));
        (ACCESSES * REPEATS) as f64 / start.elapsed().as_secs_f64() / 1e6
    };
    run();
    let mut rates: Vec<f64> = (0..5).map(|_| run()).collect();
    rates.sort_by(f64::total_cmp);
    rates[2]
}

fn main() {
    let name = std::env::args().nth(1).unwrap_or_else(|| "zen5".to_owned());
    let config = Config::preset(&name).expect("SANITY: the name of a preset");
    let plain = PmuConfig::default();
    let sampled = PmuConfig {
        samples: vec![SampleSpec {
            event: catalogue::LLC_MISS,
            period: 1000,
        }],
        interval_ns: Some(100_000),
        ..PmuConfig::default()
    };
    let streams = [
        mix("stack and array, mostly latest line"),
        lines("first-level hits, in turn over 24 KiB", 24 << 10),
        random("first-level hits, random over 32 KiB", 32 << 10),
        lines("second-level hits, in turn over 256 KiB", 256 << 10),
        random("second-level hits, random over 256 KiB", 256 << 10),
        lines("last-level hits, in turn over 4 MiB", 4 << 20),
        lines("memory, in turn over 1 GiB", 1 << 30),
        random("memory, random over 256 MiB", 256 << 20),
    ];
    println!("{name}: million accesses per second (counting / sampling and a series)");
    let wanted = std::env::args().nth(2).unwrap_or_default();
    for stream in streams.iter().filter(|s| s.name.contains(&wanted)) {
        let (counted, series) = (
            rate(&config, &plain, stream),
            rate(&config, &sampled, stream),
        );
        println!("{:42} {counted:8.1} {series:8.1}", stream.name);
    }
}
