//! Cache lines shared between threads, from recordings of `perf c2c record` and `perf mem record`.
//!
//! The samples are drawn at random and written byte by byte. The results are compared with `perf
//! c2c report` on the same bytes, and with a division of each HITM by all samples of its line.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;
use std::process::Command;

use memgauge_import::convert;
use memgauge_recording::{Recording, Selection};

use memgauge_testing::{Need, Random, skipped};
use memgauge_trace::SharingRow;

/// IP, TID, TIME, ADDR, ID, CPU, PERIOD, DATA_SRC, WEIGHT_STRUCT.
const SAMPLE_TYPE: u64 = 0x1 | 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 1 << 15 | 1 << 24;
const PID: u32 = 4000;
const DATA: u64 = 0x7f00_0000_0000;
const CODE: u64 = 0x40_0000;

const LOAD: u64 = 2;
const STORE: u64 = 4;
const HIT: u64 = 2 << 5;
const L1: u64 = 8 << 5;
const L3: u64 = 0x40 << 5;
const HITM: u64 = 0x10 << 19;
const LOCKED: u64 = 2 << 24;

/// Data sources of loads as the kernel encodes them: old and new levels, both of them, remote
/// nodes, and those of Zen and Arm.
const LOADS: [(u64, Transfer); 12] = [
    (LOAD | HIT | L1 | 2 << 19, Transfer::None),
    (LOAD | HIT | 0x10 << 5, Transfer::None),
    (LOAD | HIT | 0x20 << 5 | 2 << 33, Transfer::None),
    (LOAD | HIT | L3 | 4 << 19 | 3 << 33, Transfer::None),
    (LOAD | HIT | L3 | HITM, Transfer::Local),
    (LOAD | HIT | L3 | HITM | 3 << 33, Transfer::Local),
    (LOAD | HIT | 0x80 << 5 | HITM, Transfer::None),
    (LOAD | HIT | 0x80 << 5 | 4 << 19, Transfer::None),
    (LOAD | HIT | 0x400 << 5 | HITM, Transfer::Remote),
    (
        LOAD | HIT | 0x400 << 5 | HITM | 11 << 33 | 1 << 37,
        Transfer::Remote,
    ),
    (LOAD | HIT | 0x400 << 5 | 4 << 19, Transfer::None),
    (LOAD | HIT | L3 | HITM | LOCKED, Transfer::Local),
];
/// Stores that hit and miss the first level.
const STORES: [u64; 2] = [STORE | HIT | L1, STORE | 4 << 5 | L1];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    None,
    Local,
    Remote,
}

#[derive(Clone, Copy, Debug)]
struct Access {
    tid: u32,
    ip: u64,
    address: u64,
    source: u64,
    transfer: Transfer,
    period: u64,
    latency: u64,
}

impl Access {
    fn line(&self) -> u64 {
        self.address & !63
    }

    fn stores(&self) -> bool {
        self.source & (STORE | LOCKED) != 0
    }
}

/// Threads that access a few lines. In each line a thread uses the same byte as all others, or one
/// of its own.
fn drawn_accesses(draw: &mut Random) -> Vec<Access> {
    let (threads, lines) = (2 + draw.below(5), 1 + draw.below(8));
    let common: Vec<u64> = (0..lines).map(|_| draw.below(3)).collect();
    let with_stores: Vec<bool> = (0..lines).map(|_| draw.below(4) > 0).collect();
    (0..200 + draw.below(800))
        .map(|_| {
            let (thread, line) = (draw.below(threads), draw.below(lines));
            let is_common = draw.below(2) < common[line as usize];
            let offset = if is_common { 56 } else { 8 * thread };
            let stores = with_stores[line as usize] && draw.below(3) == 0;
            let (source, transfer) = match stores {
                true => (STORES[draw.below(2) as usize], Transfer::None),
                false => LOADS[draw.below(LOADS.len() as u64) as usize],
            };
            Access {
                tid: PID + thread as u32,
                ip: CODE + 0x100 * draw.below(3) + thread,
                address: DATA + 64 * line + offset,
                source,
                transfer,
                period: 1 + draw.below(5000),
                latency: 30 + draw.below(500),
            }
        })
        .collect()
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = 8 + body.len() as u16;
    [
        &kind.to_le_bytes()[..],
        &misc.to_le_bytes(),
        &size.to_le_bytes(),
        body,
    ]
    .concat()
}

fn padded(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(text.len() / 8 * 8 + 8, 0);
    bytes
}

fn side_band(kind: u32, misc: u16, body: &[u8], time_ns: u64) -> Vec<u8> {
    let trailer = words(&[pair(PID, PID), time_ns, 100, 0]);
    record(kind, misc, &[body, &trailer].concat())
}

fn mapping(start: u64, bytes: u64, protection: u32, name: &str) -> Vec<u8> {
    let head = [
        pair(PID, PID),
        start,
        bytes,
        0,
        0,
        0,
        0,
        pair(protection, 2),
    ];
    let misc = if protection & 4 == 0 { 2 | 1 << 13 } else { 2 };
    side_band(10, misc, &[words(&head), padded(name)].concat(), 1000)
}

/// A file with one event, as `perf c2c record` writes it. It has the nodes that `perf c2c report`
/// requires.
fn file(accesses: &[Access]) -> Vec<u8> {
    let mut data = side_band(
        3,
        2,
        &[words(&[pair(PID, PID)]), padded("drawn")].concat(),
        990,
    );
    data.extend(mapping(CODE, 0x10000, 5, "/drawn/program"));
    data.extend(mapping(DATA, 0x10000, 3, "//anon"));
    for (time_ns, access) in (2000..).zip(accesses) {
        let fields = [
            access.ip,
            pair(PID, access.tid),
            time_ns,
            access.address,
            100,
            0,
            access.period,
            access.latency,
            access.source,
        ];
        data.extend(record(9, 2, &words(&fields)));
    }
    let mut attribute = vec![0u8; 128];
    attribute[4..8].copy_from_slice(&128u32.to_le_bytes());
    attribute[24..32].copy_from_slice(&SAMPLE_TYPE.to_le_bytes());
    attribute[40..48].copy_from_slice(&(1u64 << 18).to_le_bytes());
    let entry = [attribute, words(&[104, 8])].concat();
    let data_at = 112 + entry.len() as u64;
    let head = [
        104,
        144,
        112,
        144,
        data_at,
        data.len() as u64,
        0,
        0,
        1 << 7 | 1 << 14 | 1 << 22,
        0,
        0,
        0,
    ];
    let cpus = b"0\0\0\0";
    let node = [
        &1u32.to_le_bytes()[..],
        &0u32.to_le_bytes(),
        &words(&[1 << 20, 1 << 19]),
        &4u32.to_le_bytes(),
        cpus,
    ];
    let node = node.concat();
    // One node with one block of 1 GiB.
    let memory = words(&[1, 1 << 30, 1, 0, 1, 1, 1]);
    let (cpus, cpus_at) = (words(&[pair(1, 1)]), data_at + data.len() as u64 + 48);
    let (node_at, node_bytes) = (cpus_at + 8, node.len() as u64);
    let memory_place = [node_at + node_bytes, memory.len() as u64];
    let features = words(&[
        cpus_at,
        8,
        node_at,
        node_bytes,
        memory_place[0],
        memory_place[1],
    ]);
    [
        b"PERFILE2",
        &words(&head)[..],
        &words(&[100]),
        &entry,
        &data,
        &features,
        &cpus,
        &node,
        &memory,
    ]
    .concat()
}

fn rows(bytes: &[u8]) -> Vec<SharingRow> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.mg");
    convert(Cursor::new(bytes), &path).unwrap();
    let recording = Recording::open(&path).unwrap();
    let batches = recording.rows::<SharingRow>(&Selection::all());
    batches.flat_map(|batch| batch.unwrap()).collect()
}

/// Samples with HITM of this node and of others, and all samples, by line.
type Counts = BTreeMap<u64, [u64; 3]>;

fn counts(accesses: &[Access]) -> Counts {
    let mut lines = Counts::new();
    for access in accesses {
        let [local, remote, all] = lines.entry(access.line()).or_default();
        *local += u64::from(access.transfer == Transfer::Local);
        *remote += u64::from(access.transfer == Transfer::Remote);
        *all += 1;
    }
    lines.retain(|_, [local, remote, _]| *local + *remote > 0);
    lines
}

/// True sharing, false sharing, and the rest of the HITMs, weighted by periods.
fn divided(accesses: &[Access]) -> BTreeMap<u64, [f64; 3]> {
    let mut lines = BTreeMap::<u64, [f64; 3]>::new();
    for access in accesses
        .iter()
        .filter(|access| access.transfer != Transfer::None)
    {
        let others = accesses
            .iter()
            .filter(|a| a.line() == access.line() && a.tid != access.tid);
        let (mut stores, mut stores_here, mut seen, mut seen_here) = (0.0, 0.0, 0, 0);
        for other in others {
            let here = other.address == access.address;
            seen += 1;
            seen_here += u64::from(here);
            if other.stores() {
                stores += other.period as f64;
                stores_here += if here { other.period as f64 } else { 0.0 };
            }
        }
        let hitm = access.period as f64;
        let shares = match stores > 0.0 {
            true => [
                hitm * stores_here / stores,
                hitm * (1.0 - stores_here / stores),
                0.0,
            ],
            false if seen > 0 && seen_here == 0 => [0.0, hitm, 0.0],
            false => [0.0, 0.0, hitm],
        };
        let line = lines.entry(access.line()).or_default();
        line.iter_mut()
            .zip(shares)
            .for_each(|(sum, share)| *sum += share);
    }
    lines
}

/// Checks rows with the accesses that they were made of.
fn check(accesses: &[Access], rows: &[SharingRow]) {
    let (mut found, mut estimates) = (Counts::new(), BTreeMap::<u64, ([f64; 3], f64)>::new());
    for row in rows {
        let [local, _, all] = found.entry(row.line.0).or_default();
        *local += row.hitm_samples;
        *all += row.samples;
        let (sums, places) = estimates.entry(row.line.0).or_default();
        let rest = row.hitm - row.true_sharing - row.false_sharing;
        let parts = [row.true_sharing, row.false_sharing, rest];
        sums.iter_mut()
            .zip(parts)
            .for_each(|(sum, part)| *sum += part as f64);
        *places += 1.0;
    }
    let expected = counts(accesses);
    let both = |[local, remote, all]: [u64; 3]| [local + remote, 0, all];
    let expected: Counts = expected
        .into_iter()
        .map(|(line, of)| (line, both(of)))
        .collect();
    assert_eq!(found, expected);
    let sum = |of: fn(&Access) -> u64, wanted: fn(Transfer) -> bool| -> u64 {
        accesses.iter().filter(|a| wanted(a.transfer)).map(of).sum()
    };
    let total = |of: fn(&SharingRow) -> u64| -> u64 { rows.iter().map(of).sum() };
    let is_any = |transfer| transfer != Transfer::None;
    assert_eq!(total(|row| row.hitm), sum(|a| a.period, is_any));
    assert_eq!(
        total(|row| row.remote_hitm),
        sum(|a| a.period, |t| t == Transfer::Remote)
    );
    assert_eq!(
        total(|row| row.stall_cycles),
        sum(|a| a.period * a.latency, is_any)
    );
    for (line, expected) in divided(accesses) {
        let (found, places) = estimates[&line];
        // Each row is rounded.
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= places,
                "{line:#x}: {found} and {expected}"
            );
        }
    }
}

/// Lines of `perf c2c report`, or `None` if perf cannot read the file.
fn of_perf(path: &Path) -> Option<Counts> {
    let mut perf = Command::new("perf");
    perf.args(["c2c", "report", "--stdio", "--no-source", "-i"])
        .arg(path);
    perf.env("HOME", "/nonexistent");
    let output = perf.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let table = text.split("Shared Data Cache Line Table").nth(1)?;
    let table = table.split("Pareto").next()?;
    let lines = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let address = u64::from_str_radix(cells.get(1)?.strip_prefix("0x")?, 16).ok()?;
        // Index, address, node, count of physical addresses, share; HITM: all, local, remote;
        // records.
        let number = |at: usize| cells.get(at)?.parse::<u64>().ok();
        Some((address, [number(6)?, number(7)?, number(8)?]))
    });
    Some(lines.collect())
}

#[test]
fn lines_are_those_of_perf_c2c() {
    let mut draw = Random::of_test("lines_are_those_of_perf_c2c");
    for _ in 0..20 {
        let accesses = drawn_accesses(&mut draw);
        let bytes = file(&accesses);
        check(&accesses, &rows(&bytes));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("perf.data");
        std::fs::write(&path, &bytes).unwrap();
        let Some(lines) = of_perf(&path) else {
            skipped(Need::Tool, "perf c2c report does not read the file");
            continue;
        };
        // perf leaves out lines with fewer than 0.05 % of all HITMs.
        let mut expected = counts(&accesses);
        // perf's table counts loads with the bit for remote levels as cache and as memory.
        for twice in accesses
            .iter()
            .filter(|access| access.source >> 37 & 1 == 1)
        {
            if let Some([_, _, records]) = expected.get_mut(&twice.line()) {
                *records += 1;
            }
        }
        assert_eq!(lines, expected);
    }
}
