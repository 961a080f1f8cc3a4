//! A recording on disk is summarised as its rows say.

use std::fs;
use std::path::Path;

use memgauge_analyze::{NoSymbols, Options, Summary, TotalsFrom, summarise};
use memgauge_recording::{Recording, Result, Writer};
use memgauge_trace::catalogue::{DRAM_READ_BYTES, INSTRUCTIONS, LLC_MISS};
use memgauge_trace::{
    EventId, Loss, LossKind, Manifest, Module, Pid, Sample, SeriesRow, SiteCount, Thread, Tid,
    VirtAddr,
};

fn series(time_ns: u64, event: EventId, value: u64) -> SeriesRow {
    SeriesRow {
        time_ns,
        pid: Pid(1),
        tid: Tid(1),
        event,
        value,
        interval_ns: 100_000,
        ..SeriesRow::default()
    }
}

fn write(path: &Path) -> Result<()> {
    let mut writer = Writer::create(path, Manifest::default())?;
    writer.push(Module {
        pid: Pid(1),
        start: VirtAddr(0x1000),
        end: VirtAddr(0x2000),
        path: "/bin/p".to_owned(),
        executable: true,
        ..Module::default()
    })?;
    writer.push(Module {
        pid: Pid(1),
        start: VirtAddr(0x10_0000),
        end: VirtAddr(0x30_0000),
        path: "[heap]".to_owned(),
        ..Module::default()
    })?;
    for i in 1..=10 {
        writer.push(series(i * 100_000, INSTRUCTIONS, 1000))?;
        writer.push(series(i * 100_000, DRAM_READ_BYTES, 64 * i))?;
    }
    writer.push(SiteCount {
        pid: Pid(1),
        ip: VirtAddr(0x1010),
        event: LLC_MISS,
        count: 55,
    })?;
    writer.push(Sample {
        time_ns: 5,
        pid: Pid(1),
        event: LLC_MISS,
        addr: Some(VirtAddr(0x10_0040)),
        period: 55,
        ..Sample::default()
    })?;
    writer.push(Thread {
        pid: Pid(1),
        tid: Tid(1),
        program: "/bin/p".to_owned(),
        end_ns: Some(1_000_000),
        ..Thread::default()
    })?;
    writer.push(Loss {
        kind: LossKind::BlockCut,
        count: 2,
        ..Loss::default()
    })?;
    writer.finish(|manifest| {
        manifest.totals.insert("instructions".to_owned(), 10_000);
    })
}

fn summary(path: &Path) -> Result<Summary> {
    let recording = Recording::open(path)?;
    summarise(&recording, &mut NoSymbols, &Options::default())
}

#[test]
fn every_table_reaches_the_summary() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.mg");
    write(&path).unwrap();
    let summary = summary(&path).unwrap();
    assert_eq!(summary.run.instructions, Some(10_000));
    assert_eq!(summary.totals_from, TotalsFrom::Both);
    assert_eq!(summary.run.duration_ns, 1_000_000);
    assert_eq!(summary.dram.read_bytes, Some(3520));
    assert_eq!(summary.bandwidth.read_bytes.iter().sum::<u64>(), 3520);
    assert_eq!(summary.hot.functions.rows[0].function, "p [no symbols]");
    assert_eq!(summary.hot.lines.rows[0].offset, Some(0x10));
    assert_eq!(summary.regions[0].rows[0].name, "[heap]");
    assert_eq!(summary.regions[0].rows[0].bytes, Some(0x20_0000));
    assert_eq!(summary.threads[0].program, "/bin/p");
    assert_eq!(summary.threads[0].run_ns, 1_000_000);
    assert_eq!(summary.losses[0].count, 2);
    assert_eq!(summary.problems, [""; 0]);
}

#[test]
fn damaged_part_is_a_named_problem_and_the_rest_is_summarised() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.mg");
    write(&path).unwrap();
    for part in fs::read_dir(path.join("sites")).unwrap() {
        fs::write(part.unwrap().path(), "not parquet").unwrap();
    }
    let summary = summary(&path).unwrap();
    assert_eq!(summary.problems.len(), 1);
    assert_eq!(summary.hot.functions.rows, []);
    assert_eq!(summary.run.instructions, Some(10_000));
}
