//! Makes a large recording of made-up rows, to measure readers with: ten million samples
//! and an hour of a series every 100 µs.
//!
//!     cargo run --release --manifest-path bench/Cargo.toml --bin large_recording -- DIR

use memgauge_recording::{Result, Writer};
use memgauge_trace::*;
use std::path::Path;

const SAMPLES: u64 = 10_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;
const INTERVAL_NS: u64 = 100_000;
/// Rows handed over at once.
const BATCH: u64 = 1 << 16;

/// Xorshift64 (Marsaglia 2003): the same rows in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn main() -> Result<()> {
    let folder = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "large.mg".to_owned());
    let mut manifest = Manifest {
        command: vec!["large".to_owned()],
        ..Manifest::default()
    };
    manifest.source.kind = SourceKind::Pmu;
    manifest.clock = "monotonic".to_owned();
    manifest.events = catalogue::definitions(Provenance::Sampled);
    let mut writer = Writer::create(Path::new(&folder), manifest)?;
    writer.push(Module {
        pid: Pid(7),
        start: VirtAddr(0x5555_5555_4000),
        end: VirtAddr(0x5555_5565_4000),
        path: "/nonexistent/program".to_owned(),
        executable: true,
        ..Module::default()
    })?;
    let mut dice = Dice(88_172_645_463_325_252);
    for first in (0..SAMPLES).step_by(BATCH as usize) {
        let rows = first..(first + BATCH).min(SAMPLES);
        let rows: Vec<Sample> = rows.map(|i| sample(i, &mut dice)).collect();
        writer.append(&rows)?;
    }
    for first in (0..HOUR_NS / INTERVAL_NS).step_by(BATCH as usize) {
        let rows = first..(first + BATCH).min(HOUR_NS / INTERVAL_NS);
        let rows: Vec<SeriesRow> = rows.map(|i| series_row(i, &mut dice)).collect();
        writer.append(&rows)?;
    }
    writer.finish(|manifest| manifest.complete = true)
}

fn sample(number: u64, dice: &mut Dice) -> Sample {
    // Few of 5000 instructions cause most of the misses.
    let site = (0..3).map(|_| dice.below(5_000)).min().unwrap_or(0);
    let region = 0x7f00_0000_0000 + ((site % 5) << 32);
    Sample {
        time_ns: number * (HOUR_NS / SAMPLES) + dice.below(1000),
        pid: Pid(7),
        tid: Tid(7 + dice.below(8) as u32),
        event: [catalogue::LLC_MISS, catalogue::L1D_MISS][number.is_multiple_of(4) as usize],
        ip: VirtAddr(0x5555_5555_4000 + site * 23),
        addr: Some(VirtAddr(region + dice.below(64 << 20))),
        kind: AccessKind::Load,
        latency_cycles: 200,
        source: DataSource::Dram,
        period: 1_000,
        ..Sample::default()
    }
}

fn series_row(number: u64, dice: &mut Dice) -> SeriesRow {
    SeriesRow {
        time_ns: (number + 1) * INTERVAL_NS,
        pid: Pid(7),
        tid: Tid(7),
        event: catalogue::DRAM_READ_BYTES,
        value: 64 * dice.below(20_000),
        interval_ns: INTERVAL_NS,
        ..SeriesRow::default()
    }
}
