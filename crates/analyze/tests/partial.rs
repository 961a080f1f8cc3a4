//! Shares of a recording, read apart and merged, give the summary of the whole.
#![allow(clippy::unwrap_used, reason = "a test that fails here fails")]

use std::path::Path;

use memgauge_analyze::{NoSymbols, Options, PartialSummary, Summary, summarise};
use memgauge_recording::{Recording, Share, Writer};
use memgauge_trace::catalogue::{DRAM_READ_BYTES, DRAM_WRITE_BYTES, L1D_MISS, LLC_MISS};
use memgauge_trace::{
    AccessKind, DataSource, Frame, FrameId, Manifest, Module, Pid, Sample, SeriesRow, Thread, Tid,
    VirtAddr,
};
use proptest::prelude::*;

const PARTS: usize = 7;

fn module(pid: u32, start: u64, path: &str, executable: bool) -> Module {
    Module {
        pid: Pid(pid),
        start: VirtAddr(start),
        end: VirtAddr(start + 0x10_0000),
        path: path.to_owned(),
        executable,
        ..Module::default()
    }
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let event = prop_oneof![Just(LLC_MISS), Just(L1D_MISS)];
    let addr = prop::option::of((0u64..3, 0u64..0x10_0000));
    let place = (1u32..3, 0u64..0x4000, prop::option::of(0u32..4));
    (0u64..5_000_000, event, addr, place, 1u64..1000).prop_map(
        |(time_ns, event, addr, (pid, ip, caller), period)| Sample {
            time_ns,
            pid: Pid(pid),
            tid: Tid(pid + (ip % 3) as u32),
            event,
            ip: VirtAddr(0x40_0000 + ip),
            addr: addr.map(|(region, at)| VirtAddr(0x1000_0000 + region * 0x80_0000 + at)),
            kind: AccessKind::Load,
            latency_cycles: (ip % 300) as u32,
            source: DataSource::Dram,
            period,
            caller: caller.map(FrameId),
            ..Sample::default()
        },
    )
}

fn any_row() -> impl Strategy<Value = SeriesRow> {
    let event = prop_oneof![Just(DRAM_READ_BYTES), Just(DRAM_WRITE_BYTES)];
    (1u64..5_000_000, event, 1u32..3, 0u64..100_000, 1u64..20_000).prop_map(
        |(time_ns, event, pid, value, interval_ns)| SeriesRow {
            time_ns,
            pid: Pid(pid),
            tid: Tid(pid),
            event,
            value,
            interval_ns,
            ..SeriesRow::default()
        },
    )
}

/// Writes a recording with a few parts of samples and of series.
fn write(path: &Path, samples: &[Sample], rows: &[SeriesRow]) {
    let manifest = Manifest {
        clock: "monotonic".to_owned(),
        ..Manifest::default()
    };
    let mut writer = Writer::create(path, manifest).unwrap();
    for pid in 1..3 {
        writer
            .extend([
                module(pid, 0x40_0000, "/bin/p", true),
                module(pid, 0x1000_0000, "[heap]", false),
                module(pid, 0x1080_0000, "[anon]", false),
            ])
            .unwrap();
        writer
            .push(Thread {
                pid: Pid(pid),
                tid: Tid(pid),
                program: "/bin/p".to_owned(),
                ..Thread::default()
            })
            .unwrap();
    }
    for id in 0..4 {
        writer
            .push(Frame {
                id: FrameId(id),
                caller: id.checked_sub(1).map(FrameId),
                pid: Pid(1),
                time_ns: 0,
                ip: VirtAddr(0x40_0100 + u64::from(id) * 0x40),
            })
            .unwrap();
    }
    for part in 0..PARTS {
        let range = |n: usize| n * part / PARTS..n * (part + 1) / PARTS;
        writer
            .extend(samples[range(samples.len())].to_vec())
            .unwrap();
        writer.extend(rows[range(rows.len())].to_vec()).unwrap();
        writer.flush().unwrap();
    }
    writer.finish(|_| ()).unwrap();
}

fn share(recording: &Recording, index: u32, of: u32) -> PartialSummary {
    let bins = Options::default().max_bins;
    PartialSummary::of_share(recording, Share { index, of }, bins).unwrap()
}

fn whole(recording: &Recording) -> Summary {
    summarise(recording, &mut NoSymbols, &Options::default()).unwrap()
}

fn merged(parts: Vec<PartialSummary>) -> PartialSummary {
    let through_bytes = |part: &PartialSummary| PartialSummary::from_bytes(&part.to_bytes());
    parts
        .into_iter()
        .map(|part| through_bytes(&part).unwrap())
        .reduce(|mut a, b| {
            a.merge(b).unwrap();
            a
        })
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn shares_in_any_number_and_order_give_the_summary_of_the_whole(
        samples in prop::collection::vec(any_sample(), 0..300),
        rows in prop::collection::vec(any_row(), 0..300),
        of in 1u32..10,
        order in any::<u64>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.mg");
        write(&path, &samples, &rows);
        let recording = Recording::open(&path).unwrap();
        let mut parts: Vec<PartialSummary> =
            (0..of).map(|index| share(&recording, index, of)).collect();
        // Merges random pairs until one is left.
        let mut state = order;
        while parts.len() > 1 {
            let left = parts.swap_remove(state as usize % parts.len());
            let right = parts.swap_remove((state >> 32) as usize % parts.len());
            parts.push(merged(vec![left, right]));
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
        let part = merged(parts);
        let found = part.finish(&recording, &mut NoSymbols, &Options::default()).unwrap();
        prop_assert_eq!(found, whole(&recording));
    }
}

/// A recording of 300 samples.
fn sampled(path: &Path, start_ns: u64) -> Recording {
    let samples: Vec<Sample> = (0..300)
        .map(|n| Sample {
            time_ns: start_ns + n,
            pid: Pid(1),
            event: LLC_MISS,
            ip: VirtAddr(0x40_0000 + n),
            period: 1,
            ..Sample::default()
        })
        .collect();
    write(path, &samples, &[]);
    Recording::open(path).unwrap()
}

#[test]
fn shares_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recording = sampled(&folder.path().join("a.mg"), 0);
    let refused = |a: &PartialSummary, b: PartialSummary, reason: &str| {
        let text = a.clone().merge(b).unwrap_err().to_string();
        assert!(text.contains(reason), "{text}");
    };
    let first = share(&recording, 0, 3);
    refused(&first, share(&recording, 0, 3), "there twice");
    refused(&first, share(&recording, 1, 4), "different recordings");

    let mut two = first.clone();
    two.merge(share(&recording, 2, 3)).unwrap();
    let error = two.finish(&recording, &mut NoSymbols, &Options::default());
    assert!(
        format!("{error:?}").contains("2 of 3 are there"),
        "{error:?}"
    );
}

#[test]
fn damaged_and_foreign_bytes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recording = sampled(&folder.path().join("a.mg"), 0);
    let bytes = share(&recording, 0, 1).to_bytes();
    for length in 0..bytes.len() {
        assert!(PartialSummary::from_bytes(&bytes[..length]).is_err());
    }
    let mut newer = bytes;
    newer[0] += 1;
    let error = PartialSummary::from_bytes(&newer).unwrap_err().to_string();
    assert!(error.contains("another version"), "{error}");
}

#[test]
fn a_damaged_part_is_named_once_whatever_the_shares() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mg");
    sampled(&path, 0);
    let mut parts: Vec<_> = std::fs::read_dir(path.join("samples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    parts.sort();
    for part in [&parts[1], &parts[4]] {
        let mut bytes = std::fs::read(part).unwrap();
        // Data, not the footer.
        bytes[8..40].fill(0xff);
        std::fs::write(part, bytes).unwrap();
    }
    let recording = Recording::open(&path).unwrap();
    let shares = (0..3).rev().map(|index| share(&recording, index, 3));
    let found = merged(shares.collect()).finish(&recording, &mut NoSymbols, &Options::default());
    let found = found.unwrap();
    assert_eq!(found.problems.len(), 2, "{:?}", found.problems);
    assert_eq!(found, whole(&Recording::open(&path).unwrap()));
}
