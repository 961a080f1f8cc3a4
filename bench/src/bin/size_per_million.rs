//! Measures the size of a recording: bytes per million rows on disk, and the writer's
//! memory with every table full. The figures of `docs/format.md` are this program's;
//! `cargo run --release --manifest-path bench/Cargo.toml --bin size_per_million` makes them
//! again, and keeps the recordings if it is given a directory.

use memgauge_recording::{Recording, Result, Row, Selection, Writer};
use memgauge_trace::*;
use std::path::{Path, PathBuf};
use std::time::Instant;

const ROWS: u64 = 1_000_000;

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

/// Samples of four threads at 200 instructions, each of which sweeps or
/// scatters over one of five regions of 1 to 256 MiB.
struct Samples {
    dice: Dice,
    time_ns: u64,
    sweeps: Vec<u64>,
}

impl Samples {
    fn new() -> Self {
        Samples {
            dice: Dice(88_172_645_463_325_252),
            time_ns: 0,
            sweeps: vec![0; 200],
        }
    }

    fn next(&mut self) -> Sample {
        // A skewed choice: few instructions cause most of the misses.
        let site = self
            .dice
            .below(200)
            .min(self.dice.below(200))
            .min(self.dice.below(200));
        self.time_ns += 400 + self.dice.below(3_000);
        let level = self.dice.below(10);
        Sample {
            time_ns: self.time_ns,
            cpu: None,
            pid: Pid(4_242),
            tid: Tid(4_242 + self.dice.below(4) as u32),
            event: EventId([12, 12, 12, 6][self.dice.below(4) as usize]),
            ip: VirtAddr(0x5555_5555_4000 + site * 23),
            addr: Some(VirtAddr(self.address(site))),
            phys: None,
            kind: if site.is_multiple_of(3) {
                AccessKind::Store
            } else {
                AccessKind::Load
            },
            size_bytes: [8, 4, 16, 32][site as usize % 4],
            latency_cycles: if level < 7 { 230 } else { 42 },
            source: if level < 7 {
                DataSource::Dram
            } else {
                DataSource::Llc
            },
            period: 1_000,
            ..Sample::default()
        }
    }

    fn address(&mut self, site: u64) -> u64 {
        let region = site % 5;
        let bytes = (1 << 20) << (2 * region);
        let start = 0x7f00_0000_0000 + (region << 32);
        if site.is_multiple_of(2) {
            return start + self.dice.below(bytes / 8) * 8;
        }
        self.sweeps[site as usize] += 64 * (1 + self.dice.below(40));
        start + self.sweeps[site as usize] % bytes
    }

    /// As a machine with a PMU would record it.
    fn next_measured(&mut self) -> Sample {
        let sample = self.next();
        Sample {
            cpu: Some(Cpu(sample.tid.0 % 8)),
            phys: sample
                .addr
                .map(|addr| PhysAddr((addr.0 & 0xfff) + (self.dice.below(1 << 22) << 12))),
            latency_cycles: 200 + (self.dice.below(120) * self.dice.below(120) / 60) as u32,
            period: 1_000 + self.dice.below(64),
            ..sample
        }
    }
}

fn series(i: u64, dice: &mut Dice) -> SeriesRow {
    SeriesRow {
        time_ns: (1 + i / 24) * 100_000 + dice.below(900),
        pid: Pid(4_242),
        tid: Tid(4_242),
        event: EventId((i % 24) as u16),
        value: if i % 24 < 12 {
            20_000 + dice.below(30_000)
        } else {
            dice.below(40)
        },
        interval_ns: 100_000 + dice.below(900),
        ..SeriesRow::default()
    }
}

fn measure<R: Row>(dir: &Path, name: &str, mut row: impl FnMut(u64) -> R) {
    let path = dir.join(name).with_extension("mg");
    let mut writer = Writer::create(&path, Manifest::default()).expect("the place is new");
    let rows: Vec<R> = (0..ROWS).map(&mut row).collect();
    let begin = Instant::now();
    writer.extend(rows).expect("there is room");
    writer.flush().expect("there is room");
    let wrote = begin.elapsed();
    let bytes = writer.bytes_written();
    writer.finish(|_| {}).expect("there is room");
    let recording = Recording::open(&path).expect("it was just written");
    let begin = Instant::now();
    let read: usize = recording
        .rows::<R>(&Selection::all())
        .map(|rows| rows.map_or(0, |r| r.len()))
        .sum();
    assert_eq!(read as u64, ROWS);
    println!(
        "{name:<24} {:>6.2} MB per million rows, written in {:.2} s, read in {:.2} s",
        bytes as f64 / 1e6,
        wrote.as_secs_f64(),
        begin.elapsed().as_secs_f64()
    );
}

/// Largest resident memory of this process so far in MiB, the kernel's `VmHWM`.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0)
        >> 10
}

/// Rows that no encoding makes smaller, in all tables, up to just before their
/// parts close.
fn fill_all_tables(dir: &Path) {
    let mut writer =
        Writer::create(&dir.join("memory"), Manifest::default()).expect("the place is new");
    let mut dice = Dice(3);
    for _ in 0..ROWS - 1 {
        fill_one_row(&mut writer, &mut || dice.below(u64::MAX)).expect("there is room");
    }
}

fn fill_one_row(writer: &mut Writer, any: &mut dyn FnMut() -> u64) -> Result<()> {
    let text = format!("/usr/lib/{:016x}", any());
    let (time_ns, ip) = (any(), VirtAddr(any()));
    let sample = Sample {
        time_ns,
        ip,
        addr: Some(VirtAddr(any())),
        period: any(),
        ..Sample::default()
    };
    writer.push(Sample {
        pid: Pid(any() as u32),
        phys: Some(PhysAddr(any())),
        ..sample
    })?;
    writer.push(SeriesRow {
        time_ns,
        value: any(),
        interval_ns: any(),
        ..SeriesRow::default()
    })?;
    writer.push(Overflow {
        time_ns,
        tid: Tid(any() as u32),
        ..Overflow::default()
    })?;
    writer.push(SiteCount {
        ip,
        count: any(),
        ..SiteCount::default()
    })?;
    writer.push(Thread {
        program: text.clone(),
        start_ns: any(),
        ..Thread::default()
    })?;
    writer.push(Module {
        path: text.clone(),
        start: ip,
        ..Module::default()
    })?;
    writer.push(Loss {
        time_ns,
        count: any(),
        detail: text,
        ..Loss::default()
    })
}

fn main() {
    let scratch = tempfile::tempdir().expect("a temporary directory can be made");
    let dir = std::env::args()
        .nth(1)
        .map_or(scratch.path().to_owned(), PathBuf::from);
    let before = resident_mib();
    fill_all_tables(&dir);
    println!(
        "writer, all tables full: {} MiB of resident memory at most",
        resident_mib() - before
    );
    let mut samples = Samples::new();
    measure(&dir, "samples, emulated", |_| samples.next());
    let mut samples = Samples::new();
    measure(&dir, "samples, measured", |_| samples.next_measured());
    let mut dice = Dice(7);
    measure(&dir, "series", |i| series(i, &mut dice));
    let mut samples = Samples::new();
    measure(&dir, "overflows", |_| {
        let Sample {
            time_ns,
            tid,
            event,
            ..
        } = samples.next();
        Overflow {
            time_ns,
            tid,
            event,
        }
    });
    let mut dice = Dice(7);
    measure(&dir, "sites", |i| {
        let magnitude = dice.below(30);
        SiteCount {
            pid: Pid(4_242),
            ip: VirtAddr(0x5555_5555_4000 + i / 8 * 4),
            event: EventId((i % 8) as u16),
            count: dice.below(1 << magnitude),
            set_group: None,
            code_ns: None,
        }
    });
}
