//! Summaries with known numbers, for tests.

use std::collections::BTreeMap;

use memgauge_analyze::*;
use memgauge_trace::*;

use crate::Style;

/// A compressor with three threads in two processes. In a second of virtual time, traffic rises to
/// 6 GB/s and falls again. A quarter of it is writes in the second half.
pub(crate) fn full() -> Summary {
    let manifest = manifest();
    let spaces = spaces();
    let (curves, threads) = run(
        (
            Series::with_bins(1_000_000_000, 100),
            ThreadTotals::default(),
        ),
        &series(),
    );
    let parts = SummaryParts {
        curves,
        threads,
        known_threads: run(ThreadNames::default(), &threads_of()),
        sites: run(Sites::new(&spaces), &sites()),
        regions: run(Regions::new(&spaces), &samples()),
        losses: run(Losses::default(), &losses()),
        samples: run(SampleTotals::default(), &samples()),
        ..SummaryParts::nothing(&spaces)
    };
    assemble(&manifest, parts, &mut Fake, &Options::default())
}

/// The same run with a killed recorder: no totals, no end, a damaged part.
pub(crate) fn killed() -> Summary {
    let manifest = Manifest {
        complete: false,
        end: None,
        totals: BTreeMap::new(),
        own_cost: OwnCost::default(),
        ..manifest()
    };
    let unfinished = Thread {
        end_ns: None,
        ..threads_of()[0].clone()
    };
    let spaces = spaces();
    let (curves, threads) = run(
        (Series::growing(100), ThreadTotals::default()),
        &series()[..60],
    );
    let parts = SummaryParts {
        curves,
        threads,
        known_threads: run(ThreadNames::default(), &[unfinished]),
        sites: run(Sites::new(&spaces), &sites()[..2]),
        regions: run(Regions::new(&spaces), &samples()[..20]),
        problems: vec!["failed to read part `samples/000007.parquet`: footer missing".to_owned()],
        ..SummaryParts::nothing(&spaces)
    };
    assemble(&manifest, parts, &mut NoSymbols, &Options::default())
}

/// An empty recording.
pub(crate) fn empty() -> Summary {
    let spaces = AddressSpaces::default();
    let parts = SummaryParts::nothing(&spaces);
    let manifest = Manifest {
        complete: true,
        ..Manifest::default()
    };
    assemble(&manifest, parts, &mut NoSymbols, &Options::default())
}

/// An allocation site without allocations.
pub(crate) fn allocation_site() -> AllocationSite {
    AllocationSite {
        name: String::new(),
        function: "malloc".to_owned(),
        paths: 1,
        calls: Vec::new(),
        named_by: 0,
        allocations: 0,
        bytes: 0,
        frees: 0,
        at_peak_bytes: 0,
        live_bytes: 0,
        untouched_bytes: None,
        mean_lifetime_ns: None,
        temporary: 0,
        errors: None,
    }
}

/// A style without colours.
pub(crate) fn plain(width: usize, unicode: bool) -> Style {
    Style {
        width,
        line: width,
        unicode,
        colour: false,
        rows: Style::ROWS,
    }
}

/// Removes ANSI colour sequences.
pub(crate) fn without_escapes(text: &str) -> String {
    let mut pieces = text.split('\x1b');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| {
        text + piece.split_once('m').map_or("", |(_, rest)| rest)
    })
}

fn run<A: Analysis>(mut analysis: A, rows: &[A::Row]) -> A::Output {
    analysis.observe(rows);
    analysis.finish()
}

struct Fake;

impl Resolve for Fake {
    fn resolve(&mut self, module: &ModuleFile, offset: u64) -> Option<Symbol> {
        let name = match (module.path.as_str(), offset / 0x1000) {
            ("/usr/bin/xz", _) => return None,
            (_, 0) => "lzma_mf_bt4_find",
            (_, 1) => "lzma_lzma_optimum_normal",
            (_, 2) => "std::vector<std::pair<unsigned long, unsigned long>>::push_back",
            _ => "memcpy",
        };
        Some(Symbol {
            name: name.to_owned(),
            file: (offset < 0x2000)
                .then(|| "/build/xz-utils/src/liblzma/lz/lz_encoder_mf.c".to_owned()),
            line: Some(400 + (offset / 0x100) as u32),
            inlined_into: Vec::new(),
        })
    }

    fn resolve_data(&mut self, _: &ModuleFile, _: u64) -> Option<String> {
        Some("lzma_crc32_table".to_owned())
    }
}

fn manifest() -> Manifest {
    let totals = [
        ("instructions", 4_120_000_000),
        ("loads", 1_220_000_000),
        ("stores", 410_000_000),
        ("splits", 1_020_000),
        ("l1d.hit", 1_585_820_000),
        ("l1d.miss", 45_200_000),
        ("l2.hit", 33_100_000),
        ("l2.miss", 12_100_000),
        ("llc.hit", 10_900_000),
        ("llc.miss", 1_200_000),
        ("dtlb.miss", 3_010_000),
        ("stlb.hit", 2_908_000),
        ("dtlb.walk", 102_000),
        ("dram.read_bytes", 3_000_000_000),
        ("dram.write_bytes", 375_000_000),
    ];
    let words = ["xz", "-3", "-T2", "-k", "my data.txt"];
    Manifest {
        format_version: 1,
        recorder: "memgauge 0.1.0".to_owned(),
        command: words.map(String::from).into(),
        started_unix_s: 1_700_000_000,
        started_unix_ns: 1_700_000_000_000_000_000,
        clock: "virtual".to_owned(),
        complete: true,
        end: Some(CommandEnd::Exited(0)),
        source: SourceFacts {
            kind: SourceKind::Emulate,
            settings: BTreeMap::from([("period.llc.miss".to_owned(), "1000".to_owned())]).into(),
        },
        host: HostFacts {
            name: "box".to_owned(),
            kernel: "6.1.0".to_owned(),
            cpu: "Some CPU".to_owned(),
            cpus: 2,
            memory_bytes: 8 << 30,
        },
        machine: Some(machine()),
        events: catalogue::definitions(Provenance::Modelled),
        totals: totals.map(|(n, v)| (n.to_owned(), v)).into(),
        own_cost: OwnCost {
            wall_s: 5.1,
            cpu_s: 3.2,
            peak_memory_bytes: 48 << 20,
            program_cpu_s: 6.4,
            program_page_faults: 9000,
            page_fault_ns: 0.0,
            program_file_wait_s: 0.0,
            program_file_write_wait_s: 0.0,
            program_file_sync_wait_s: 0.0,
            recording_bytes: 3_300_000,
        },
        ..Manifest::default()
    }
}

fn machine() -> MachineFacts {
    let cache = |size_bytes, ways| CacheGeometry {
        size_bytes,
        ways,
        line_bytes: 64,
    };
    MachineFacts {
        name: "i5-6600K".to_owned(),
        frequency_hz: 3_500_000_000,
        l1d: cache(32 << 10, 8),
        l2: cache(256 << 10, 4),
        llc: cache(6 << 20, 12),
        dtlb: TlbGeometry {
            entries: 64,
            ways: 4,
        },
        stlb: TlbGeometry {
            entries: 1536,
            ways: 12,
        },
        prefetchers: Vec::new(),
        dram_bytes_per_s: 20_000_000_000,
        ..MachineFacts::default()
    }
}

/// 100 intervals of 10 ms. Thread 11 reads 0 to 60 MB and back. Thread 12 writes a quarter of that
/// in the second half. All execute instructions.
fn series() -> Vec<SeriesRow> {
    let mut rows = Vec::new();
    for i in 0..100u64 {
        let row = |pid, tid, event, value| SeriesRow {
            time_ns: (i + 1) * 10_000_000,
            pid: Pid(pid),
            tid: Tid(tid),
            event,
            value,
            interval_ns: 10_000_000,
            ..SeriesRow::default()
        };
        let read = i.min(100 - i) * 1_200_000;
        rows.push(row(10, 11, catalogue::DRAM_READ_BYTES, read));
        rows.push(row(10, 11, catalogue::INSTRUCTIONS, 30_000_000));
        rows.push(row(10, 10, catalogue::INSTRUCTIONS, 1_000));
        rows.push(row(20, 20, catalogue::INSTRUCTIONS, 10_000_000));
        if i >= 50 {
            rows.push(row(20, 20, catalogue::DRAM_WRITE_BYTES, read / 4));
        }
    }
    rows
}

fn threads_of() -> Vec<Thread> {
    let thread = |pid, tid, parent, program: &str| Thread {
        pid: Pid(pid),
        tid: Tid(tid),
        parent_pid: Pid(parent),
        program: program.to_owned(),
        start_ns: 0,
        end_ns: Some(1_000_000_000),
        idle_ns: None,
    };
    vec![
        thread(10, 10, 1, "/usr/bin/xz"),
        thread(10, 11, 1, "/usr/bin/xz"),
        thread(20, 20, 10, "/usr/bin/a-program-with-a-long-name"),
    ]
}

const LIB: u64 = 0x7f00_0000_0000;

fn spaces() -> AddressSpaces {
    let module = |start, end, path: &str, executable| Module {
        pid: Pid(10),
        start: VirtAddr(start),
        end: VirtAddr(end),
        path: path.to_owned(),
        executable,
        ..Module::default()
    };
    let modules = [
        module(0x40_0000, 0x41_0000, "/usr/bin/xz", true),
        module(LIB, LIB + 0x10000, "/usr/lib/liblzma.so.5", true),
        module(LIB + 0x10000, LIB + 0x12000, "/usr/lib/liblzma.so.5", false),
        module(0x7e00_0000_0000, 0x7e00_0600_0000, "[anon]", false),
        module(0x7e00_1000_0000, 0x7e00_1080_0000, "[anon]", false),
        module(0x60_0000, 0x80_0000, "[heap]", false),
    ];
    run(Modules::default(), &modules)
}

fn sites() -> Vec<SiteCount> {
    use catalogue::*;
    let site = |ip, event, count| SiteCount {
        pid: Pid(10),
        ip: VirtAddr(ip),
        event,
        count,
        ..SiteCount::default()
    };
    let mut rows = vec![
        site(LIB + 0x120, DRAM_READ_BYTES, 2_000_000_000),
        site(LIB + 0x120, LLC_MISS, 734_000),
        site(LIB + 0x120, L1D_MISS, 20_100_000),
        site(LIB + 0x480, DRAM_READ_BYTES, 400_000_000),
        site(LIB + 0x480, DRAM_WRITE_BYTES, 100_000_000),
        site(LIB + 0x480, L1D_MISS, 5_000_000),
        site(LIB + 0x1100, DRAM_READ_BYTES, 350_000_000),
        site(LIB + 0x1100, LLC_MISS, 120_000),
        site(LIB + 0x2000, DRAM_READ_BYTES, 200_000_000),
        site(LIB + 0x3000, DRAM_WRITE_BYTES, 275_000_000),
        site(0x40_0010, DRAM_READ_BYTES, 49_999_360),
        site(0xdead_0000, DRAM_READ_BYTES, 640),
    ];
    let cold = (0..12).map(|i| site(LIB + 0x500 + i * 0x100, L1D_MISS, 100));
    rows.extend(cold);
    let warm = (0..8).map(|i| site(0x40_1000 + i * 0x10, DRAM_READ_BYTES, 6_400));
    rows.extend(warm);
    rows
}

fn samples() -> Vec<Sample> {
    let hot: [(u64, u64); 5] = [
        (0x7e00_0000_0000, 734),
        (0x7e00_1000_0000, 300),
        (0x60_0000, 120),
        (LIB + 0x10000, 40),
        (0x1000, 6),
    ];
    let sample = |addr| Sample {
        time_ns: 500_000_000,
        pid: Pid(10),
        tid: Tid(11),
        event: catalogue::LLC_MISS,
        addr: Some(VirtAddr(addr)),
        period: 1000,
        ..Sample::default()
    };
    let all = hot
        .into_iter()
        .flat_map(|(addr, n)| (0..n).map(move |_| sample(addr)));
    all.collect()
}

fn losses() -> Vec<Loss> {
    let loss = |kind, count, detail: &str| Loss {
        kind,
        count,
        detail: detail.to_owned(),
        ..Loss::default()
    };
    vec![
        loss(LossKind::ProgramNotFollowed, 3, "/usr/bin/sudo (set-uid)"),
        loss(LossKind::BlockCut, 1200, ""),
    ]
}
