//! Bits and speed of pco on overflow times: `pco_codec TIMES…`, each a file of
//! 64-bit little-endian numbers as `trace_codecs --dump` writes them.
//!
//! It codes differences of first order by itself; blocks of 65 536 times as in a
//! recording. Speeds are the best of several rounds.

use std::time::Instant;

use pco::ChunkConfig;
use pco::standalone::{simple_compress, simple_decompress};

const ROUNDS: usize = 7;
const BLOCK: usize = 1 << 16;
const AT_LEAST: usize = 1_000_000;

fn encode(times: &[u64], config: &ChunkConfig) -> Vec<Vec<u8>> {
    let blocks = times.chunks(BLOCK);
    blocks
        .map(|block| simple_compress(block, config).expect("numbers"))
        .collect()
}

fn decode(blocks: &[Vec<u8>]) -> Vec<u64> {
    let decoded = blocks.iter().map(|b| simple_decompress::<u64>(b));
    decoded
        .flat_map(|times| times.expect("what was encoded"))
        .collect()
}

fn best(mut work: impl FnMut(), events: usize) -> f64 {
    let turns = AT_LEAST.div_ceil(events);
    let round = |_| {
        let start = Instant::now();
        (0..turns).for_each(|_| work());
        (turns * events) as f64 / start.elapsed().as_secs_f64() / 1e6
    };
    (0..ROUNDS).map(round).fold(0.0, f64::max)
}

fn main() {
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).expect("a file of times");
        let times: Vec<u64> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| u64::from_le_bytes(*b))
            .collect();
        if times.is_empty() {
            println!("{path}: no times");
            continue;
        }
        let config = ChunkConfig::default();
        let blocks = encode(&times, &config);
        assert_eq!(decode(&blocks), times);
        let size: usize = blocks.iter().map(Vec::len).sum();
        let into = best(
            || drop(std::hint::black_box(encode(&times, &config))),
            times.len(),
        );
        let out = best(|| drop(std::hint::black_box(decode(&blocks))), times.len());
        println!(
            "  pco  {path}: {:.2} bits  {into:.0} M/s in  {out:.0} M/s out",
            size as f64 * 8.0 / times.len() as f64
        );
    }
}
