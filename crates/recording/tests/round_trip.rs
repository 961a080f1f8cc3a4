//! Every row written to a recording is read from it.

#![allow(clippy::unwrap_used)] // in the helpers; the tests may anyway

mod rows;

use memgauge_recording::{ErrorKind, Recording, Row, Selection, Writer};
use memgauge_trace::*;
use proptest::collection::vec;
use proptest::prelude::*;
use rows::{
    code_region, code_value, generated_code, io, io_device, io_owner, loss, module, overflow,
    place, python_line, read, region_span, register, sample, series, site, symbol, thread, ticking,
};
use std::fmt::Debug;
use std::time::Duration;

fn check<R: Row + PartialEq + Debug>(rows: &[R], cut: usize) {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer
        .extend(rows[..cut.min(rows.len())].iter().cloned())
        .unwrap();
    writer.flush().unwrap();
    for row in &rows[cut.min(rows.len())..] {
        writer.push(row.clone()).unwrap();
    }
    writer.finish(|_| {}).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.problems(), Vec::<String>::new());
    assert_eq!(read::<R>(&recording, &Selection::all()), rows);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn samples_come_back_as_they_were(rows in vec(sample(), 0..200), cut in 0usize..200) {
        check(&rows, cut);
    }

    #[test]
    fn series_come_back_as_they_were(rows in vec(series(), 0..200), cut in 0usize..200) {
        check(&rows, cut);
    }

    #[test]
    fn overflows_come_back_as_they_were(rows in vec(overflow(), 0..200), cut in 0usize..200) {
        check(&rows, cut);
    }

    #[test]
    fn registers_come_back_as_they_were(rows in vec(register(), 0..200), cut in 0usize..200) {
        check(&rows, cut);
    }

    #[test]
    fn generated_code_comes_back_as_it_was(
        rows in vec(generated_code(), 0..200), cut in 0usize..200,
    ) {
        check(&rows, cut);
    }

    #[test]
    fn lines_of_python_come_back_as_they_were(
        rows in vec(python_line(), 0..200), cut in 0usize..200,
    ) {
        check(&rows, cut);
    }

    #[test]
    fn regions_of_interest_come_back_as_they_were(
        rows in vec(code_region(), 0..200), cut in 0usize..200,
    ) {
        check(&rows, cut);
    }

    #[test]
    fn values_come_back_as_they_were(
        rows in vec(code_value(), 0..200), cut in 0usize..200,
    ) {
        check(&rows, cut);
    }

    #[test]
    fn stays_in_regions_come_back_as_they_were(
        rows in vec(region_span(), 0..200), cut in 0usize..200,
    ) {
        check(&rows, cut);
    }

    #[test]
    fn symbols_come_back_as_they_were(rows in vec(symbol(), 0..200), cut in 0usize..200) {
        check(&rows, cut);
    }

    #[test]
    fn sites_come_back_as_they_were(rows in vec(site(), 0..200), cut in 0usize..200) {
        check(&rows, cut);
    }

    #[test]
    fn threads_come_back_as_they_were(rows in vec(thread(), 0..60), cut in 0usize..60) {
        check(&rows, cut);
    }

    #[test]
    fn modules_come_back_as_they_were(rows in vec(module(), 0..60), cut in 0usize..60) {
        check(&rows, cut);
    }

    #[test]
    fn losses_come_back_as_they_were(rows in vec(loss(), 0..60), cut in 0usize..60) {
        check(&rows, cut);
    }

    #[test]
    fn io_comes_back_as_it_was(rows in vec(io(), 0..200), cut in 0usize..200) {
        check(&rows, cut);
    }

    #[test]
    fn io_owners_come_back_as_they_were(rows in vec(io_owner(), 0..60), cut in 0usize..60) {
        check(&rows, cut);
    }

    #[test]
    fn io_devices_come_back_as_they_were(rows in vec(io_device(), 0..60), cut in 0usize..60) {
        check(&rows, cut);
    }

    #[test]
    fn a_time_range_selects_what_a_filter_would(
        rows in vec(sample(), 1..150),
        cuts in (0usize..150, 0usize..150),
    ) {
        let (_dir, path) = place();
        let (a, b) = (cuts.0.min(rows.len()), cuts.1.min(rows.len()));
        let (a, b) = (a.min(b), a.max(b));
        rows::record(&path, &[&rows[..a], &rows[a..b], &rows[b..]]);
        let range = rows[a.min(rows.len() - 1)].time_ns..rows[b.min(rows.len() - 1)].time_ns;
        let expected: Vec<_> =
            rows.iter().filter(|row| range.contains(&row.time_ns)).cloned().collect();
        let recording = Recording::open(&path).unwrap();
        prop_assert_eq!(read::<Sample>(&recording, &Selection::all().time(range)), expected);
    }

    #[test]
    fn unselected_columns_hold_the_default(rows in vec(sample(), 1..100), limit in any::<u64>()) {
        let (_dir, path) = place();
        rows::record(&path, &[&rows]);
        let selection = Selection::all().time(0..limit).columns(&["phys", "event"]);
        let expected: Vec<_> = rows
            .iter()
            .filter(|row| row.time_ns < limit)
            .map(|row| Sample { phys: row.phys, event: row.event, ..Sample::default() })
            .collect();
        let recording = Recording::open(&path).unwrap();
        prop_assert_eq!(read::<Sample>(&recording, &selection), expected);
    }
}

/// Rows with this many distinct values, in narrow, wide and optional columns. The first 10 000
/// rows, more than the encoder gets at once, have one value.
fn of_distinct_values(distinct: u64) -> Vec<Sample> {
    let row = |time_ns: u64| {
        let number = match time_ns < 10_000 {
            true => 0,
            false => time_ns * time_ns % distinct,
        };
        Sample {
            time_ns,
            cpu: (distinct.is_multiple_of(2) || !time_ns.is_multiple_of(500))
                .then_some(Cpu(number as u32)),
            tid: Tid(number as u32 + 7),
            event: EventId(number as u16),
            ip: VirtAddr(u64::MAX - number),
            latency_cycles: u32::MAX - number as u32,
            period: number << 40,
            ..Sample::default()
        }
    };
    (0..140_000).map(row).collect()
}

#[test]
fn columns_of_any_number_of_distinct_values_come_back() {
    // Squares modulo the last two, which are prime: half as many plus one values.
    for distinct in [1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 65_521, 131_071] {
        let rows = of_distinct_values(distinct);
        let (_dir, path) = place();
        let mut writer = Writer::create(&path, Manifest::default()).unwrap();
        rows.chunks(3000)
            .for_each(|rows| writer.append(rows).unwrap());
        writer.finish(|_| {}).unwrap();
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.problems(), Vec::<String>::new(), "{distinct}");
        assert!(
            read::<Sample>(&recording, &Selection::all()) == rows,
            "{distinct}"
        );
    }
}

#[test]
fn a_table_taken_out_is_written_elsewhere_and_put_back() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    let rows = of_distinct_values(3);
    writer.append(&rows[..10]).unwrap();
    let mut table = writer.take::<Sample>();
    // The writer of this time has no such table, and reports that.
    assert!(writer.append(&rows[..10]).is_err());
    let part = rows[10..].to_vec();
    let thread = std::thread::spawn(move || {
        table.append(&part).unwrap();
        table
    });
    writer.put_back(thread.join().unwrap());
    assert_eq!(writer.lost_rows(), 10);
    writer.finish(|_| {}).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert!(!recording.manifest().complete);
    assert!(read::<Sample>(&recording, &Selection::all()) == rows);
}

#[test]
fn a_million_rows_close_a_part_and_batches_stay_small() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.extend(ticking(1_000_001)).unwrap();
    assert!(path.join("samples/part-000000.parquet").exists());
    writer.finish(|_| {}).unwrap();
    let recording = Recording::open(&path).unwrap();
    let mut next = 0;
    for batch in recording.rows::<Sample>(&Selection::all()) {
        let batch = batch.unwrap();
        assert!(batch.len() <= 65_536);
        batch.iter().for_each(|row| {
            assert_eq!(row.time_ns, next);
            next += 1;
        });
    }
    assert_eq!(next, 1_000_001);
    let range = 500_000..500_010;
    let some = read::<Sample>(&recording, &Selection::all().time(range.clone()));
    assert_eq!(some, ticking(range.end).skip(500_000).collect::<Vec<_>>());
}

#[test]
fn a_part_is_due_two_seconds_after_its_first_row() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.extend(ticking(3)).unwrap();
    writer.flush_due().unwrap();
    assert!(!path.join("samples").exists());
    std::thread::sleep(Duration::from_millis(2_050));
    writer.flush_due().unwrap();
    assert!(path.join("samples/part-000000.parquet").exists());
}

#[test]
fn the_bytes_written_are_those_on_disk() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.extend(ticking(10_000)).unwrap();
    writer
        .push(Overflow {
            time_ns: 3,
            ..Overflow::default()
        })
        .unwrap();
    writer.flush().unwrap();
    let size = |name: &str| std::fs::metadata(path.join(name)).unwrap().len();
    let parts = [
        "samples/part-000000.parquet",
        "overflows/part-000000.parquet",
    ];
    let expected: u64 = parts.iter().map(|name| size(name)).sum::<u64>() + size("manifest.json");
    assert_eq!(writer.bytes_written(), expected);
    assert_eq!(writer.lost_rows(), 0);
}

#[test]
fn modules_and_threads_come_whole_whatever_the_time_range() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer
        .push(Module {
            time_ns: 5,
            ..Module::default()
        })
        .unwrap();
    writer
        .push(Thread {
            start_ns: 5,
            ..Thread::default()
        })
        .unwrap();
    writer
        .push(Loss {
            time_ns: 5,
            ..Loss::default()
        })
        .unwrap();
    writer.finish(|_| {}).unwrap();
    let recording = Recording::open(&path).unwrap();
    let late = Selection::all().time(100..200);
    assert_eq!(read::<Module>(&recording, &late).len(), 1);
    assert_eq!(read::<Thread>(&recording, &late).len(), 1);
    assert_eq!(read::<Loss>(&recording, &late).len(), 0);
}

#[test]
fn a_column_the_table_has_not_is_an_error_that_names_those_it_has() {
    let (_dir, path) = place();
    rows::record(&path, &[&ticking(1).collect::<Vec<_>>()]);
    let recording = Recording::open(&path).unwrap();
    let mut batches = recording.rows::<Overflow>(&Selection::all().columns(&["adr"]));
    let error = batches.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownColumn);
    assert_eq!(
        error.to_string(),
        "failed to read column `adr` of table `overflows`: it has time_ns, tid, event"
    );
    assert!(batches.next().is_none());
}

#[test]
fn no_column_at_all_still_counts_the_rows() {
    let (_dir, path) = place();
    rows::record(&path, &[&ticking(9).collect::<Vec<_>>()]);
    let recording = Recording::open(&path).unwrap();
    let rows = read::<Sample>(&recording, &Selection::all().columns(&[]));
    assert_eq!(rows, vec![Sample::default(); 9]);
}

#[test]
fn the_manifest_comes_back_as_it_was() {
    let (_dir, path) = place();
    let manifest = Manifest {
        recorder: "memgauge 0.1.0".into(),
        command: vec!["a b".into(), "\u{1f41c}".into()],
        end: Some(CommandEnd::Signalled(9)),
        machine: Some(MachineFacts {
            frequency_hz: 2_660_000_000,
            ..MachineFacts::default()
        }),
        events: catalogue::definitions(Provenance::Modelled),
        totals: [("loads".to_owned(), u64::MAX)].into(),
        own_cost: OwnCost {
            wall_s: 0.1,
            cpu_s: f64::NAN,
            ..OwnCost::default()
        },
        ..Manifest::default()
    };
    let writer = Writer::create(&path, manifest.clone()).unwrap();
    assert!(!Recording::open(&path).unwrap().manifest().complete);
    writer
        .finish(|manifest| manifest.own_cost.recording_bytes = 77)
        .unwrap();
    let mut expected = Manifest {
        complete: true,
        format_version: 1,
        tables: [("events".to_owned(), TableFacts { parts: 1 })].into(),
        ..manifest
    };
    expected.own_cost.recording_bytes = 77;
    expected.own_cost.cpu_s = 0.0;
    assert_eq!(*Recording::open(&path).unwrap().manifest(), expected);
    let recording = Recording::open(&path).unwrap();
    let events = read::<EventRow>(&recording, &Selection::all());
    let names = expected.events.iter().map(|def| def.name.as_str());
    assert!(events.iter().map(|row| row.name.as_str()).eq(names));
    let loads = events.iter().find(|row| row.id == catalogue::LOADS);
    let loads = loads.map(|row| (row.unit.as_str(), row.provenance.as_str(), row.total));
    assert_eq!(loads, Some(("count", "modelled", Some(u64::MAX))));
}
