//! Recordings of a fleet that nobody ran, with known sums.
//!
//! Services run on hosts in two versions. Each recording has functions with exact counts, a few
//! thousand samples that give it a realistic size, and the labels `service` and `commit`. Three effects
//! are built in: version `new` of each service stalls a fifth longer in `parse`, `host-1` misses the
//! last-level cache half as often again as the others, and everything else is noise of a few per cent.
#![allow(dead_code, reason = "each user needs a part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memgauge_recording::{FORMAT_VERSION, Writer};
use memgauge_trace::{
    AccessKind, CacheGeometry, DataSource, EventId, HostFacts, MachineFacts, Manifest, Module, Pid,
    Provenance, Sample, SiteCount, SourceFacts, SourceKind, SymbolRow, Tid, VirtAddr, catalogue,
};

/// Settings of the generated recordings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    /// Recordings, damaged ones included.
    pub(crate) recordings: usize,
    /// How many of them are damaged, each in another way: at most three.
    pub(crate) damaged: usize,
    /// Services.
    pub(crate) services: usize,
    /// Hosts of each service.
    pub(crate) hosts: usize,
    /// Days over which the recordings are spread.
    pub(crate) days: usize,
    /// Functions of each program.
    pub(crate) functions: usize,
    /// Samples of each recording, of about 10 bytes each.
    pub(crate) samples: usize,
    /// Whether each recording has a label `request` with a value of its own.
    pub(crate) has_requests: bool,
    /// Seed of the noise.
    pub(crate) seed: u64,
}

impl Default for Fleet {
    fn default() -> Fleet {
        Fleet {
            recordings: 200,
            damaged: 3,
            services: 3,
            hosts: 4,
            days: 2,
            functions: 40,
            samples: 500,
            has_requests: false,
            seed: 1,
        }
    }
}

/// A recording that was generated.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) path: PathBuf,
    pub(crate) is_damaged: bool,
    pub(crate) service: String,
    pub(crate) host: String,
    pub(crate) commit: &'static str,
    pub(crate) day: &'static str,
    /// Counts by function and event.
    pub(crate) functions: BTreeMap<String, BTreeMap<&'static str, u64>>,
}

/// Days of the recordings, and their seconds since 1970.
const DAYS: [(&str, u64); 4] = [
    ("2026-11-20", 1_795_132_800),
    ("2026-11-21", 1_795_219_200),
    ("2026-11-22", 1_795_305_600),
    ("2026-11-23", 1_795_392_000),
];

/// Events of functions.
pub(crate) const EVENTS: [(&str, EventId); 6] = [
    ("instructions", catalogue::INSTRUCTIONS),
    ("cycles", catalogue::CYCLES),
    ("l1d.miss", catalogue::L1D_MISS),
    ("llc.miss", catalogue::LLC_MISS),
    ("stall.dram", catalogue::STALL_DRAM),
    ("stall.llc", catalogue::STALL_LLC),
];

/// Instructions of a function that have counts.
const PLACES: u64 = 3;
const CODE: u64 = 0x40_0000;

/// SplitMix64 (G. L. Steele and others, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end`, exclusive.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Name of a function. The first one is `parse`.
pub(crate) fn function(number: usize) -> String {
    match number {
        0 => "parse".to_owned(),
        number => format!("step_{number:03}"),
    }
}

/// Value of the label `request`: random hexadecimal digits, which compress badly.
pub(crate) fn request(number: usize) -> String {
    let mut random = Random(number as u64);
    format!("{:016x}{:016x}", random.next(), random.next())
}

impl Fleet {
    /// Writes all recordings below a folder.
    pub(crate) fn write(&self, folder: &Path) -> Vec<Known> {
        (0..self.recordings)
            .map(|number| self.write_one(folder, number))
            .collect()
    }

    fn write_one(&self, folder: &Path, number: usize) -> Known {
        let mut random = Random(self.seed ^ (number as u64) << 20);
        let service = number % self.services;
        let host = number / self.services % self.hosts;
        let (day, day_s) = DAYS[number / (self.services * self.hosts) % self.days.min(DAYS.len())];
        let commit = ["old", "new"][number / (self.services * self.hosts * self.days) % 2];
        let service = format!("service-{service}");
        let host_name = format!("host-{host}");
        let path = folder.join(&service).join(format!("{number:05}.mg"));
        std::fs::create_dir_all(folder.join(&service)).expect("a folder");
        let functions: Vec<[u64; EVENTS.len()]> = (0..self.functions)
            .map(|function| {
                let size = 1_000_000 / (function as u64 + 1);
                let noise = |random: &mut Random| 980 + random.below(41);
                let mut counts =
                    [4, 6, 1, 1, 2, 1].map(|part| size * part * noise(&mut random) / 1000);
                counts[2] /= 50;
                counts[3] /= 100;
                if function == 0 && commit == "new" {
                    counts[4] = counts[4] * 6 / 5;
                }
                if host == 1 {
                    counts[3] = counts[3] * 3 / 2;
                }
                counts
            })
            .collect();
        let mut totals: BTreeMap<String, u64> = BTreeMap::new();
        for counts in &functions {
            for ((event, _), count) in EVENTS.iter().zip(counts) {
                *totals.entry((*event).to_owned()).or_default() += count;
            }
        }
        let program = format!("/srv/{service}/bin/{service}");
        let mut labels = BTreeMap::from([
            ("service".to_owned(), service.clone()),
            ("commit".to_owned(), commit.to_owned()),
        ]);
        if self.has_requests {
            labels.insert("request".to_owned(), request(number));
        }
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            recorder: "synthetic".to_owned(),
            command: vec![program.clone(), "--run".to_owned()],
            labels,
            started_unix_s: day_s + number as u64,
            started_unix_ns: (day_s + number as u64) * 1_000_000_000,
            clock: "virtual".to_owned(),
            source: SourceFacts {
                kind: SourceKind::Emulate,
                ..SourceFacts::default()
            },
            host: HostFacts {
                name: host_name.clone(),
                cpu: "synthetic".to_owned(),
                cpus: 8,
                ..HostFacts::default()
            },
            machine: Some(MachineFacts {
                name: "zen4".to_owned(),
                frequency_hz: 4_000_000_000,
                l2: CacheGeometry {
                    size_bytes: 1 << 20,
                    ways: 8,
                    line_bytes: 64,
                },
                ..MachineFacts::default()
            }),
            events: catalogue::definitions(Provenance::Modelled),
            ..Manifest::default()
        };
        self.write_tables(&path, manifest, &functions, totals, &mut random);
        let is_damaged = number < self.damaged;
        if is_damaged {
            damage(&path, number);
        }
        let known = |(number, counts): (usize, &[u64; EVENTS.len()])| {
            let counts = EVENTS
                .iter()
                .zip(counts)
                .map(|((event, _), count)| (*event, *count));
            (function(number), counts.collect())
        };
        Known {
            path,
            is_damaged,
            service,
            host: host_name,
            commit,
            day,
            functions: functions.iter().enumerate().map(known).collect(),
        }
    }

    fn write_tables(
        &self,
        path: &Path,
        manifest: Manifest,
        functions: &[[u64; EVENTS.len()]],
        totals: BTreeMap<String, u64>,
        random: &mut Random,
    ) {
        let program = manifest.command[0].clone();
        let build_id = format!("{:032x}", u128::from(self.seed));
        let mut writer = Writer::create(path, manifest).expect("a recording");
        let module = Module {
            pid: Pid(1),
            start: VirtAddr(CODE),
            end: VirtAddr(CODE + 0x10_0000),
            path: program.clone(),
            executable: true,
            build_id: build_id.clone(),
            ..Module::default()
        };
        writer.push(module).expect("a row");
        for (number, counts) in functions.iter().enumerate() {
            for place in 0..PLACES {
                let offset = number as u64 * 0x100 + place * 8;
                let symbol = SymbolRow {
                    pid: Pid(1),
                    ip: VirtAddr(CODE + offset),
                    module: program.clone(),
                    build_id: build_id.clone(),
                    offset: Some(offset),
                    function: function(number),
                    file: "/build/main.c".to_owned(),
                    line: Some(10 * number as u32 + place as u32 + 1),
                    ..SymbolRow::default()
                };
                writer.push(symbol).expect("a row");
                for (&(_, event), &count) in EVENTS.iter().zip(counts) {
                    // The first instruction has the rest.
                    let part = count / PLACES;
                    let count = if place == 0 {
                        count - part * (PLACES - 1)
                    } else {
                        part
                    };
                    let site = SiteCount {
                        pid: Pid(1),
                        ip: VirtAddr(CODE + offset),
                        event,
                        count,
                        set_group: None,
                        code_ns: Some(0),
                    };
                    writer.push(site).expect("a row");
                }
            }
        }
        for number in 0..self.samples as u64 {
            let function = random.below(functions.len() as u64);
            let sample = Sample {
                time_ns: number * 10_000 + random.below(5000),
                pid: Pid(1),
                tid: Tid(1),
                event: catalogue::LLC_MISS,
                ip: VirtAddr(CODE + function * 0x100),
                addr: Some(VirtAddr(0x7f00_0000_0000 + random.below(1 << 28))),
                kind: AccessKind::Load,
                size_bytes: 8,
                source: DataSource::Dram,
                period: 127,
                ..Sample::default()
            };
            writer.push(sample).expect("a row");
        }
        let finished = writer.finish(|manifest| {
            manifest.totals = totals;
            manifest.own_cost.wall_s = 1.0;
        });
        finished.expect("a whole recording");
    }
}

/// Damages a recording in one of three ways.
fn damage(path: &Path, way: usize) {
    let part = |table: &str| path.join(table).join("part-000000.parquet");
    match way % 3 {
        0 => {
            let manifest = path.join("manifest.json");
            let text = std::fs::read(&manifest).expect("a manifest");
            std::fs::write(&manifest, &text[..text.len() / 2]).expect("half a manifest");
        }
        1 => {
            let bytes = std::fs::read(part("sites")).expect("a part");
            std::fs::write(part("sites"), &bytes[..bytes.len() - 100]).expect("a shorter part");
        }
        _ => std::fs::remove_file(part("sites")).expect("a part"),
    }
}
