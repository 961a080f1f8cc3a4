//! How fast overflow traces are taken in and shown; the figures of
//! `docs/experiments/bandwidth.md`. `make bench-bandwidth`.
//!
//! **Chain**: a producer writes records into a ring in memory, the consumer takes the
//! time out of each, packs blocks and writes them to disk. Records are times, as the
//! first document put differences into its ring, or PEBS-like records of 200 bytes. The
//! producer writes the time stamp of the latter (the other fields are there already),
//! so that one line per record goes between the processors. First the producer waits
//! for room: this tells which rate the chain sustains. Then it offers a fixed rate and
//! drops records without room, as a processor would. One part alone: `chain` or `hour`.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgauge_analyze::NoSymbols;
use memgauge_analyze::bandwidth::{BandwidthSettings, Correction, LossModel, extent, read};
use memgauge_recording::{Recording, Writer};
use memgauge_report::{Style, bandwidth::text};
use memgauge_trace::{EventId, Manifest, OverflowBlock, Pid, Thread, Tid};

/// 200 bytes of a Skylake record, in words; the last is its time stamp.
const PEBS_WORDS: usize = 25;
/// Words of a record and records of a ring. They are 3.2 MB of PEBS records (the
/// document's buffer), and rings of 32 and 52 MB, for the moments in which a part is
/// closed and synchronised.
const RINGS: [(usize, usize); 4] = [
    (1, 1 << 14),
    (1, 1 << 22),
    (PEBS_WORDS, 1 << 14),
    (PEBS_WORDS, 1 << 18),
];
const EVENT: EventId = EventId(12);

struct Ring {
    words: Vec<AtomicU64>,
    record_words: usize,
    records: usize,
    head: AtomicU64,
    tail: AtomicU64,
    ended: AtomicU64,
}

impl Ring {
    fn new(records: usize, record_words: usize) -> Ring {
        Ring {
            record_words,
            records,
            words: (0..records * record_words)
                .map(|n| AtomicU64::new(n as u64))
                .collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    fn stamp(&self, record: u64) -> &AtomicU64 {
        &self.words[(record as usize % self.records) * self.record_words + self.record_words - 1]
    }
}

/// Writes records until `total` are written or dropped; how many were dropped.
/// Without a rate it waits for room.
fn produce(ring: &Ring, total: u64, rate: Option<f64>) -> u64 {
    const BATCH: u64 = 1024;
    let (start, mut time, mut dropped, mut head) = (Instant::now(), 0u64, 0, 0u64);
    let mut offered = 0;
    while offered < total {
        if let Some(rate) = rate {
            while (offered as f64) > start.elapsed().as_secs_f64() * rate {
                std::hint::spin_loop();
            }
        }
        offered += BATCH;
        while head + BATCH > ring.tail.load(Ordering::Acquire) + ring.records as u64 {
            if rate.is_some() {
                break;
            }
            std::thread::yield_now();
        }
        if head + BATCH > ring.tail.load(Ordering::Acquire) + ring.records as u64 {
            dropped += BATCH;
            continue;
        }
        for record in head..head + BATCH {
            time += 500 + ((record * 0x9e37_79b9) >> 12) % 400;
            ring.stamp(record).store(time, Ordering::Relaxed);
        }
        head += BATCH;
        ring.head.store(head, Ordering::Release);
    }
    ring.ended.store(1, Ordering::Release);
    dropped
}

/// Takes records until there are no more; how many.
fn consume(ring: &Ring, writer: &mut Writer) -> u64 {
    let mut tail = 0;
    let mut times = Vec::with_capacity(OverflowBlock::MAX_OVERFLOWS);
    loop {
        let ended = ring.ended.load(Ordering::Acquire) > 0;
        let head = ring.head.load(Ordering::Acquire);
        if head == tail && ended {
            break;
        }
        let some = (OverflowBlock::MAX_OVERFLOWS - times.len()).min((head - tail) as usize) as u64;
        times.extend((tail..tail + some).map(|r| ring.stamp(r).load(Ordering::Relaxed)));
        tail += some;
        ring.tail.store(tail, Ordering::Release);
        if some == 0 {
            std::thread::yield_now();
        }
        if times.len() == OverflowBlock::MAX_OVERFLOWS {
            store(&mut times, writer);
        }
    }
    store(&mut times, writer);
    tail
}

fn store(times: &mut Vec<u64>, writer: &mut Writer) {
    let mut left = times.as_slice();
    while let Some(block) = OverflowBlock::from_times(
        &mut left,
        Pid(1),
        Tid(1),
        EVENT,
        10,
        OverflowBlock::RESOLUTION_NS,
    ) {
        writer.push(block).expect("room on the disk");
    }
    times.clear();
}

fn chain(dir: &Path, ring: &Ring, total: u64, rate: Option<f64>) {
    let path = dir.join(format!("chain-{}.mg", rate.unwrap_or(0.0)));
    let mut writer = Writer::create(&path, Manifest::default()).expect("a recording");
    let start = Instant::now();
    let (dropped, taken) = std::thread::scope(|scope| {
        let producer = scope.spawn(|| produce(ring, total, rate));
        let taken = consume(ring, &mut writer);
        (producer.join().expect("a producer that ends"), taken)
    });
    writer.flush().expect("room on the disk");
    let (seconds, bytes) = (start.elapsed().as_secs_f64(), writer.bytes_written());
    writer.finish(|_| {}).expect("room on the disk");
    let offered = rate.map_or("all it takes".to_owned(), |r| format!("{:.0} M/s", r / 1e6));
    println!(
        "  {:>3} bytes a record, ring of {:>6}, offered {offered:>12}: {:.1} M records/s to disk, {:.2} % dropped, {:.2} bits a record, {:.0} MB/s written",
        ring.record_words * 8,
        ring.records,
        taken as f64 / seconds / 1e6,
        dropped as f64 * 100.0 / (taken + dropped) as f64,
        bytes as f64 * 8.0 / taken as f64,
        bytes as f64 / seconds / 1e6
    );
    // Best effort: the folder goes with the program anyway.
    let _ = std::fs::remove_dir_all(path);
}

fn hour(dir: &Path, per_second: u64) {
    let path = dir.join(format!("hour-{per_second}.mg"));
    let mut writer = Writer::create(&path, Manifest::default()).expect("a recording");
    let (mut times, mut time) = (Vec::with_capacity(OverflowBlock::MAX_OVERFLOWS), 0u64);
    let gap = 1_000_000_000 / per_second;
    while time < 3_600_000_000_000 {
        time += gap / 2 + (time.wrapping_mul(0x9e37_79b9) >> 20) % gap;
        times.push(time);
        if times.len() == OverflowBlock::MAX_OVERFLOWS {
            store(&mut times, &mut writer);
        }
    }
    store(&mut times, &mut writer);
    let thread = Thread {
        pid: Pid(1),
        tid: Tid(1),
        end_ns: Some(time),
        ..Thread::default()
    };
    writer.push(thread).expect("room on the disk");
    writer.finish(|_| {}).expect("room on the disk");
    let start = Instant::now();
    let recording = Recording::open(&path).expect("a recording");
    let extent = extent(&recording).expect("blocks");
    let settings = BandwidthSettings {
        bin_ns: 100_000,
        rows: 10,
        ..BandwidthSettings::default()
    };
    let correction = Correction::Model("a constant".to_owned(), LossModel::constant(20.0));
    let shown = read(&recording, &extent, &settings, &correction, &mut NoSymbols).expect("blocks");
    let style = Style {
        width: 100,
        line: 100,
        colour: false,
        unicode: true,
        rows: Style::ROWS,
    };
    let text = text(&shown, recording.manifest(), &style);
    println!(
        "  an hour, {:.1} M overflows: opened and plotted in {:.2} s ({} windows, {} lines)",
        shown.overflows as f64 / 1e6,
        start.elapsed().as_secs_f64(),
        shown.curve.map_or(0, |c| c.values.len()),
        text.lines().count()
    );
    // Best effort: the folder goes with the program anyway.
    let _ = std::fs::remove_dir_all(path);
}

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    let dir = tempfile::tempdir().expect("a temporary directory");
    if wanted("chain") {
        chains(dir.path());
    }
    if wanted("hour") {
        println!("windows of 100 us over an hour");
        for per_second in [1_000, 16_000] {
            (0..3).for_each(|_| hour(dir.path(), per_second));
        }
    }
}

fn chains(dir: &Path) {
    println!("chain: ring, decoding, packing, storage");
    for (words, records) in RINGS {
        let ring = || Ring::new(records, words);
        for _ in 0..3 {
            chain(dir, &ring(), 200_000_000, None);
        }
        for rate in [63e6, 30e6] {
            std::thread::sleep(Duration::from_millis(200));
            chain(dir, &ring(), (rate * 2.0) as u64, Some(rate));
        }
    }
}
