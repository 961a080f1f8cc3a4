//! Samples a second that the record parser takes from the image of a ring:
//! `cargo run --release --manifest-path bench/Cargo.toml --bin parse_speed`.
//!
//! The best of some rounds, on one core, over an image that fits into the cache,
//! as a ring does. Two kinds of sample: a timer's with two counters, and one with
//! address, latency and data source, as PEBS writes them.

use std::hint::black_box;
use std::time::Instant;

use memgauge_perf::abi::{Attr, flag, read, sample};
use memgauge_perf::record::{Layout, Record};
use memgauge_perf::ring::walk;

const IMAGE_BYTES: usize = 512 << 10;
const ROUNDS: usize = 40;

fn image(words: usize) -> (Vec<u8>, u64) {
    let size = 8 * (words + 1);
    let samples = IMAGE_BYTES / size;
    let mut bytes = Vec::with_capacity(IMAGE_BYTES);
    for i in 0..samples as u64 {
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(2u16.to_le_bytes());
        bytes.extend((size as u16).to_le_bytes());
        for word in 0..words as u64 {
            // The number of values of a reading stands in the fourth word.
            let value = if word == 3 { 3 } else { i * 64 + word };
            bytes.extend(value.to_le_bytes());
        }
    }
    (bytes, samples as u64)
}

fn measure(name: &str, attr: &Attr, words: usize) {
    let layout = Layout::new(attr);
    let (bytes, samples) = image(words);
    let mut scratch = Vec::new();
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let (mut parsed, mut sum) = (0u64, 0u64);
        let began = Instant::now();
        walk(&bytes, &[], &mut scratch, |header, body| {
            if let Some((Record::Sample(s), _)) = layout.record(header, body) {
                parsed += 1;
                sum = sum.wrapping_add(s.time_ns ^ s.addr ^ s.data_src);
                sum = sum.wrapping_add(s.reading.and_then(|r| r.value(2)).unwrap_or(0));
            }
        });
        best = best.min(began.elapsed().as_secs_f64());
        black_box(sum);
        assert_eq!(parsed, samples, "all samples are read");
    }
    println!(
        "{name}: {:.1} million samples a second",
        samples as f64 / best / 1e6
    );
}

fn main() {
    let mut timer = Attr::new(1, 0);
    timer.sample_type = sample::IDENTIFIER | sample::TID | sample::TIME | sample::READ;
    timer.read_format = read::GROUP | read::TIME_ENABLED | read::TIME_RUNNING;
    timer.flags = flag::SAMPLE_ID_ALL;
    measure("timer with two counters", &timer, 9);
    let mut precise = Attr::new(4, 0x1cd);
    precise.sample_type = sample::IP
        | sample::TID
        | sample::TIME
        | sample::ADDR
        | sample::ID
        | sample::CPU
        | sample::DATA_SRC
        | sample::WEIGHT_STRUCT;
    measure("address, latency and source", &precise, 8);
}
