//! Bandwidth of traces written for the test: sound ones and strange ones.
#![allow(clippy::unwrap_used, reason = "a test that fails here fails")]

use std::path::Path;

use memgauge_analyze::NoSymbols;
use memgauge_analyze::bandwidth::{
    Bandwidth, BandwidthSettings, Correction, LossModel, LossPoint, extent, read,
};
use memgauge_recording::{Recording, Writer};
use memgauge_trace::catalogue::{DRAM_READ_BYTES, LLC_MISS};
use memgauge_trace::{Manifest, OverflowBlock, Pid, Provenance, SeriesRow, Thread, Tid, catalogue};

const PERIOD: u64 = 100;

/// A recording of threads' overflow times, in as many blocks as they take.
fn record(path: &Path, threads: &[(u32, &[u64])]) -> Recording {
    record_with(path, threads, None)
}

/// The same with a further row of the series.
fn record_with(path: &Path, threads: &[(u32, &[u64])], row: Option<SeriesRow>) -> Recording {
    let manifest = Manifest {
        events: catalogue::definitions(Provenance::Modelled),
        ..Manifest::default()
    };
    let mut writer = Writer::create(path, manifest).unwrap();
    for &(tid, times) in threads {
        let mut left = times;
        while let Some(block) =
            OverflowBlock::from_times(&mut left, Pid(1), Tid(tid), LLC_MISS, PERIOD, 1)
        {
            writer.push(block).unwrap();
        }
        let end_ns = times.iter().max().copied();
        let thread = Thread {
            pid: Pid(1),
            tid: Tid(tid),
            end_ns,
            ..Thread::default()
        };
        writer.push(thread).unwrap();
    }
    let last = threads.iter().flat_map(|t| t.1).max().copied().unwrap_or(0);
    let counted = SeriesRow {
        time_ns: last,
        interval_ns: last,
        event: DRAM_READ_BYTES,
        value: 120 * 64 * threads.iter().map(|t| t.1.len() as u64).sum::<u64>(),
        ..SeriesRow::default()
    };
    writer.push(counted).unwrap();
    writer.extend(row).unwrap();
    writer.finish(|_| {}).unwrap();
    Recording::open(path).unwrap()
}

fn settings(bin_ns: u64) -> BandwidthSettings {
    BandwidthSettings {
        bin_ns,
        rows: 10,
        ..BandwidthSettings::default()
    }
}

fn show(recording: &Recording, settings: &BandwidthSettings, correction: &Correction) -> Bandwidth {
    let extent = extent(recording).unwrap();
    read(recording, &extent, settings, correction, &mut NoSymbols).unwrap()
}

/// An overflow a microsecond for ten milliseconds.
fn steady() -> Vec<u64> {
    (1..=10_000).map(|n| n * 1_000).collect()
}

#[test]
fn an_overflow_stands_for_its_period_and_what_its_record_lost() {
    let dir = tempfile::tempdir().unwrap();
    let recording = record(&dir.path().join("r.mg"), &[(1, &steady())]);
    let raw = show(&recording, &settings(100_000), &Correction::None);
    assert_eq!(
        (raw.overflows, raw.raw_bytes),
        (10_000, 10_000.0 * 100.0 * 64.0)
    );
    assert_eq!(
        raw.bytes - raw.raw_bytes,
        50.0 * 64.0,
        "half a period behind the last"
    );
    let model = Correction::Model("a test".to_owned(), LossModel::constant(20.0));
    for correction in [model, Correction::Reference] {
        let whole = show(&recording, &settings(100_000), &correction);
        // A total taken from the reference is no check of itself.
        let from_reference = correction == Correction::Reference;
        assert_eq!(whole.from_reference, from_reference);
        assert!((whole.bytes - 50.0 * 64.0 - 1.2 * raw.raw_bytes).abs() < 1.0);
        assert!((whole.lost.0 - 20.0).abs() < 1e-9);
        assert!(whole.reference.unwrap().mean_error.unwrap() < 1e-3);
        let curve = whole.curve.unwrap();
        assert!(
            curve.values[..99]
                .iter()
                .all(|b| (b - 120.0 * 64.0 * 100.0).abs() < 1.0)
        );
    }
}

#[test]
fn a_reference_outside_the_interval_contradicts_the_correction() {
    let dir = tempfile::tempdir().unwrap();
    let recording = record(&dir.path().join("r.mg"), &[(1, &steady())]);
    let contradicts = |recording, correction: &Correction| {
        let shown = show(recording, &settings(100_000), correction);
        shown.reference.unwrap().contradicts
    };
    let lost = |events| Correction::Model("a test".to_owned(), LossModel::constant(events));
    // The reference has 120 lines for each overflow.
    assert!(!contradicts(&recording, &lost(20.0)));
    for events in [0.0, 19.0, 21.0] {
        assert!(contradicts(&recording, &lost(events)), "{events}");
    }
    // A total without a correction claims nothing, and one from the reference is no check.
    assert!(!contradicts(&recording, &Correction::None));
    assert!(!contradicts(&recording, &Correction::Reference));

    // The reference also counts prefetched lines, which the event does not.
    let path = dir.path().join("prefetched.mg");
    let prefetched = SeriesRow {
        time_ns: 1_000,
        interval_ns: 1_000,
        event: catalogue::PREFETCHES,
        value: 1,
        ..SeriesRow::default()
    };
    let recording = record_with(&path, &[(1, &steady())], Some(prefetched));
    assert!(!contradicts(&recording, &lost(0.0)));
}

#[test]
fn a_part_of_the_time_has_its_part_of_the_overflows() {
    let dir = tempfile::tempdir().unwrap();
    let recording = record(&dir.path().join("r.mg"), &[(1, &steady()), (2, &steady())]);
    let part = BandwidthSettings {
        from_ns: 2_000_000,
        to_ns: Some(3_000_000),
        ..settings(1_000)
    };
    let part = show(&recording, &part, &Correction::None);
    assert_eq!((part.overflows, part.threads.len()), (2_000, 2));
    assert_eq!(part.curve.unwrap().values.len(), 1_000);
}

#[test]
fn a_clock_that_goes_back_is_told_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = steady();
    times[5_000..].iter_mut().for_each(|t| *t -= 700_000);
    let recording = record(&dir.path().join("r.mg"), &[(1, &times)]);
    let shown = show(&recording, &settings(100_000), &Correction::None);
    assert_eq!((shown.overflows, shown.irregular.clock_back), (10_000, 1));
}

#[test]
fn nothing_is_shown_in_a_pause() {
    let dir = tempfile::tempdir().unwrap();
    let mut times = steady();
    times[5_000..].iter_mut().for_each(|t| *t += 500_000_000);
    let recording = record(&dir.path().join("r.mg"), &[(1, &times)]);
    let shown = show(&recording, &settings(1_000_000), &Correction::None);
    assert_eq!(shown.irregular.pauses, 1);
    let quiet = &shown.curve.unwrap().values[6..504];
    assert!(quiet.iter().all(|bytes| *bytes == 0.0));
}

#[test]
fn drops_of_all_threads_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let gap = |t: &u64| !(4_000_000..4_300_000).contains(t);
    let one: Vec<u64> = steady().into_iter().filter(gap).collect();
    let two: Vec<u64> = one.iter().map(|t| t + 137).collect();
    let recording = record(&dir.path().join("r.mg"), &[(1, &one), (2, &two)]);
    let shown = show(&recording, &settings(100_000), &Correction::None);
    // Events are spread over the gap that they ended, so it is thin, not empty.
    assert_eq!(shown.drops.len(), 1, "{:?}", shown.drops);
    assert!((3_900_000..4_300_000).contains(&shown.drops[0].time_ns));
}

#[test]
fn an_empty_trace_has_no_extent() {
    let dir = tempfile::tempdir().unwrap();
    let recording = record(&dir.path().join("r.mg"), &[(1, &[])]);
    assert!(extent(&recording).unwrap().overflows.is_empty());
}

#[test]
fn blocks_that_lie_are_counted_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.mg");
    let times = steady();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    let good =
        OverflowBlock::from_times(&mut times.as_slice(), Pid(1), Tid(1), LLC_MISS, 100, 1).unwrap();
    let lies = [
        OverflowBlock {
            count: u32::MAX,
            ..good.clone()
        },
        OverflowBlock {
            count: good.count - 1,
            ..good.clone()
        },
        OverflowBlock {
            last_ns: 3,
            ..good.clone()
        },
        OverflowBlock {
            packed: vec![0xff; 9],
            ..good.clone()
        },
    ];
    writer.extend(lies).unwrap();
    writer.push(good).unwrap();
    writer.finish(|_| {}).unwrap();
    let recording = Recording::open(&path).unwrap();
    let shown = show(&recording, &settings(100_000), &Correction::None);
    assert_eq!((shown.overflows, shown.irregular.unreadable), (10_000, 4));
}

#[test]
fn a_damaged_part_is_named_and_the_others_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.mg");
    let times = steady();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    for half in [&times[..5_000], &times[5_000..]] {
        let block =
            OverflowBlock::from_times(&mut &half[..], Pid(1), Tid(1), LLC_MISS, 100, 1).unwrap();
        writer.push(block).unwrap();
        writer.flush().unwrap();
    }
    writer.finish(|_| {}).unwrap();
    let part = path.join("overflow_blocks/part-000000.parquet");
    let bytes = std::fs::read(&part).unwrap();
    std::fs::write(&part, &bytes[..bytes.len() / 2]).unwrap();
    let recording = Recording::open(&path).unwrap();
    let shown = show(&recording, &settings(100_000), &Correction::None);
    assert_eq!(
        (shown.overflows, shown.problems.len()),
        (5_000, 1),
        "{:?}",
        shown.problems
    );
}

#[test]
fn what_counters_saw_beside_is_in_the_curve_where_they_saw_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.mg");
    let mut manifest = Manifest {
        events: catalogue::definitions(Provenance::Modelled),
        ..Manifest::default()
    };
    manifest.machine = Some(memgauge_trace::MachineFacts {
        frequency_hz: 1_000_000_000,
        ..Default::default()
    });
    let mut writer = Writer::create(&path, manifest).unwrap();
    // A chase: a miss each 70 ns, of which every record loses one in a hundred and one.
    let times: Vec<u64> = (1..=5_000).map(|n| n * 101 * 70).collect();
    let block = OverflowBlock::from_times(&mut &times[..], Pid(1), Tid(1), LLC_MISS, PERIOD, 1024);
    writer.push(block.unwrap()).unwrap();
    for end in (1..=350).map(|n| n * 100_000) {
        // Three in four of the misses are in the second half of the time.
        let misses = if end > 17_500_000 { 2_143 } else { 715 };
        let rows = [
            (catalogue::INSTRUCTIONS, 6_000),
            (catalogue::CYCLES, 100_000),
            (catalogue::STALL_IRREGULAR, misses * 66),
            (catalogue::L1D_LOAD_MISS, misses),
            (LLC_MISS, misses),
            (DRAM_READ_BYTES, misses * 64),
        ];
        writer
            .extend(rows.map(|(event, value)| SeriesRow {
                time_ns: end,
                interval_ns: 100_000,
                tid: Tid(1),
                event,
                value,
                ..SeriesRow::default()
            }))
            .unwrap();
    }
    writer.finish(|_| {}).unwrap();
    let point = |name: &str, dense, instructions, spacing_ns, hidden| LossPoint {
        name: name.to_owned(),
        period: PERIOD,
        dense,
        instructions,
        spacing_ns,
        hidden,
        lost: hidden + 1.0,
        ..LossPoint::default()
    };
    let model = LossModel::new([
        point("linear", true, 1.0, 7.1, 12.0),
        point("linear/100", true, 100.0, 17.0, 2.0),
        point("chase", false, 4.0, 70.4, 0.0),
    ]);
    let recording = Recording::open(&path).unwrap();
    let correction = Correction::Model("a test".to_owned(), model);
    let shown = show(&recording, &settings(100_000), &correction);
    let truth = (175 * (715 + 2_143) * 64) as f64;
    assert!(
        (shown.bytes / truth - 1.0).abs() < 0.02,
        "{} {truth}",
        shown.bytes
    );
    let reference = shown.reference.unwrap();
    assert!(reference.mean_error.unwrap() < 0.02);
    // The overflows alone come evenly and would not show the second half.
    assert!(reference.regression.unwrap().r2 > 0.99);
    assert!(shown.correction.unwrap().contains("reference counters"));
    assert!(shown.resolution_ns > 1 && shown.resolution_ns <= 1024);
}
