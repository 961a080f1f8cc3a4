//! Bits and speed of ways to store overflow times, on recorded traces:
//! `cargo run --release --manifest-path bench/Cargo.toml --bin trace_codecs REC.mg…`
//! makes the figures of `docs/experiments/bandwidth.md`. Without recordings it
//! takes made-up gaps between 500 and 1500 ns. `--dump DIR` writes the times there
//! instead, for `bench/codecs`; recordings made with `--resolution exact` have all
//! there is to code.
//!
//! Speeds are the best of several rounds over one trace, repeated to a few million
//! overflows. Bits are those of the trace itself, in blocks as a recording has them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use memgauge_recording::{Recording, Selection};
use memgauge_trace::{EventId, OverflowBlock, Pid, Tid};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::WriterProperties;

const ROUNDS: usize = 9;
const AT_LEAST: usize = 1_000_000;

type Encode = fn(&[u64]) -> Vec<u8>;
type Decode = fn(&[u8], &mut Vec<u64>);

/// Times of every thread of a recording, one after the other.
fn of_recording(path: &str) -> Vec<Vec<u64>> {
    let recording = Recording::open(path.as_ref()).expect("a recording");
    let mut threads = std::collections::BTreeMap::<u32, Vec<u64>>::new();
    for blocks in recording.rows::<OverflowBlock>(&Selection::all()) {
        for block in blocks.expect("whole parts") {
            assert!(block.unpack(threads.entry(block.tid.0).or_default()));
        }
    }
    threads.into_values().filter(|t| t.len() > 1000).collect()
}

fn made_up() -> Vec<Vec<u64>> {
    let (mut random, mut time) = (1u64, 0);
    let times = (0..AT_LEAST).map(|_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        time += 500 + random % 1000;
        time
    });
    vec![times.collect()]
}

fn gaps(times: &[u64]) -> impl Iterator<Item = u64> + '_ {
    std::iter::once(0).chain(times.windows(2).map(|w| w[1] - w[0]))
}

/// The first document's words of 16 bits.
fn words(times: &[u64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(times.len() * 2 + 16);
    for gap in gaps(times) {
        let gap = u32::try_from(gap).unwrap_or(u32::MAX);
        match gap {
            0..=0x7fff => out.extend((gap as u16).to_le_bytes()),
            0x8000..=0x7fff_fffe => {
                out.extend(((gap >> 16) as u16 | 0x8000).to_le_bytes());
                out.extend((gap as u16).to_le_bytes());
            }
            _ => {
                out.extend([0xff; 4]);
                out.extend(((gap >> 16) as u16).to_le_bytes());
                out.extend((gap as u16).to_le_bytes());
            }
        }
    }
    out
}

fn unwords(bytes: &[u8], out: &mut Vec<u64>) {
    let mut word = bytes
        .chunks_exact(2)
        .map(|b| u32::from(b[0]) | u32::from(b[1]) << 8);
    let mut time = 0u64;
    while let Some(first) = word.next() {
        let mut next = || word.next().unwrap_or(0);
        let gap = match first {
            0..=0x7fff => first,
            0xffff => {
                next();
                next() << 16 | next()
            }
            _ => (first & 0x7fff) << 16 | next(),
        };
        time += u64::from(gap);
        out.push(time);
    }
}

fn exact(times: &[u64]) -> Vec<u8> {
    blocks(times, 1)
}

fn rounded(times: &[u64]) -> Vec<u8> {
    blocks(times, OverflowBlock::RESOLUTION_NS)
}

fn blocks(times: &[u64], resolution_ns: u64) -> Vec<u8> {
    let mut left = times;
    let mut out = Vec::with_capacity(times.len() * 2);
    let (pid, tid, event) = (Pid(1), Tid(1), EventId(12));
    while let Some(b) = OverflowBlock::from_times(&mut left, pid, tid, event, 100, resolution_ns) {
        out.extend(b.time_ns.to_le_bytes());
        out.extend(b.last_ns.to_le_bytes());
        out.extend(b.count.to_le_bytes());
        out.extend((b.packed.len() as u32).to_le_bytes());
        out.extend(&b.packed);
    }
    out
}

fn unblocks(mut bytes: &[u8], out: &mut Vec<u64>) {
    let number = |b: &[u8]| {
        b.iter()
            .rev()
            .fold(0u64, |n, &byte| n << 8 | u64::from(byte))
    };
    let mut block = OverflowBlock::default();
    while bytes.len() >= 24 {
        let size = number(&bytes[20..24]) as usize;
        block.time_ns = number(&bytes[..8]);
        block.last_ns = number(&bytes[8..16]);
        block.count = number(&bytes[16..20]) as u32;
        block.packed.clear();
        block.packed.extend_from_slice(&bytes[24..24 + size]);
        assert!(block.unpack(out));
        bytes = &bytes[24 + size..];
    }
}

fn parquet_delta(times: &[u64]) -> Vec<u8> {
    let column: ArrayRef = Arc::new(UInt64Array::from(times.to_vec()));
    let batch = RecordBatch::try_from_iter([("time_ns", column)]).expect("one column");
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).expect("a level")))
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BINARY_PACKED)
        .build();
    let mut out = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut out, batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).expect("a batch");
    writer.close().expect("a footer");
    out
}

fn parquet_undelta(bytes: &[u8], out: &mut Vec<u64>) {
    // The reader wants a file.
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("room");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("a footer");
    for batch in reader.with_batch_size(65_536).build().expect("a reader") {
        let batch = batch.expect("a batch");
        let column = batch
            .column(0)
            .as_any()
            .downcast_ref::<UInt64Array>()
            .expect("numbers");
        out.extend_from_slice(column.values());
    }
}

fn measure(name: &str, traces: &[Vec<u64>], encode: Encode, decode: Decode) {
    let events: usize = traces.iter().map(Vec::len).sum();
    let bytes: usize = traces.iter().map(|t| encode(t).len()).sum();
    let turns = AT_LEAST.div_ceil(events);
    let encoded: Vec<Vec<u8>> = traces.iter().map(|t| encode(t)).collect();
    let mut out = Vec::with_capacity(events);
    let (mut fastest_in, mut fastest_out) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..turns {
            traces
                .iter()
                .for_each(|t| drop(std::hint::black_box(encode(t))));
        }
        fastest_in = fastest_in.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for _ in 0..turns {
            out.clear();
            encoded.iter().for_each(|e| decode(e, &mut out));
            std::hint::black_box(&out);
        }
        fastest_out = fastest_out.min(start.elapsed().as_secs_f64());
    }
    assert_eq!(out.len(), events, "{name}");
    let rate = |s: f64| (turns * events) as f64 / s / 1e6;
    println!(
        "  {name:<22} {:>6.2} bits  {:>6.0} M/s in  {:>6.0} M/s out",
        bytes as f64 * 8.0 / events as f64,
        rate(fastest_in),
        rate(fastest_out)
    );
}

/// Writes the times of each set, thread after thread, as 64-bit numbers.
fn dump(folder: &Path, sets: &[(String, Vec<Vec<u64>>)]) {
    for (name, traces) in sets {
        let times = traces.iter().flatten().flat_map(|t| t.to_le_bytes());
        let name = Path::new(name).with_extension("times");
        let path = folder.join(name.file_name().expect("a name"));
        std::fs::write(path, times.collect::<Vec<u8>>()).expect("room on the disk");
    }
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = match arguments.first().map(String::as_str) {
        Some("--dump") => {
            let two: Vec<String> = arguments.drain(..2).collect();
            Some(PathBuf::from(&two[1]))
        }
        _ => None,
    };
    let mut sets: Vec<(String, Vec<Vec<u64>>)> = arguments
        .into_iter()
        .map(|path| (path.clone(), of_recording(&path)))
        .collect();
    if sets.is_empty() {
        sets.push(("made up".to_owned(), made_up()));
    }
    if let Some(folder) = folder {
        return dump(&folder, &sets);
    }
    for (name, traces) in sets {
        let events: usize = traces.iter().map(Vec::len).sum();
        println!("{name}: {events} overflows");
        if events == 0 {
            continue;
        }
        measure("16-bit words", &traces, words, unwords);
        measure(
            "parquet delta + zstd",
            &traces,
            parquet_delta,
            parquet_undelta,
        );
        measure("blocks, exact", &traces, exact, unblocks);
        measure("blocks, rounded", &traces, rounded, unblocks);
        measure(
            "rounded + zstd 1",
            &traces,
            |t| zstd::bulk::compress(&rounded(t), 1).expect("zstd"),
            |b, out| {
                let plain = zstd::bulk::decompress(b, 1 << 28).expect("zstd");
                unblocks(&plain, out);
            },
        );
    }
}
