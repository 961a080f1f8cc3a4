//! Summaries of recordings on disk agree with their rows.

use std::fs;
use std::path::Path;

use memgauge_analyze::{NoSymbols, Options, Summary, TotalsFrom, summarise};
use memgauge_recording::{Recording, Result, Writer};
use memgauge_trace::catalogue::{DRAM_READ_BYTES, INSTRUCTIONS, LLC_MISS};
use memgauge_trace::{
    DataSource, EventId, Loss, LossKind, Manifest, Module, Pid, Sample, SeriesRow, SiteCount,
    Thread, Tid, VirtAddr,
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
        ..SiteCount::default()
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
    let read = summary.bandwidth.read_bytes.clone().unwrap();
    assert_eq!(read.iter().sum::<u64>(), 3520);
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
    // The exact sums are lost. The result comes from the one sample and is marked as such.
    assert_eq!(summary.hot.functions.samples, Some(1));
    assert_eq!(summary.run.instructions, Some(10_000));
}

/// A native recording has no exact sums by location. Functions, lines, instructions, threads,
/// sources and the heat map come from its samples.
#[test]
fn a_native_recordings_samples_reach_the_summary() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n.mg");
    let manifest = Manifest {
        clock: "monotonic".to_owned(),
        ..Manifest::default()
    };
    let mut writer = Writer::create(&path, manifest).unwrap();
    writer
        .push(Module {
            pid: Pid(1),
            start: VirtAddr(0x1000),
            end: VirtAddr(0x2000),
            path: "/bin/p".to_owned(),
            executable: true,
            ..Module::default()
        })
        .unwrap();
    // Three samples at one instruction, one in the kernel.
    for (i, ip) in [0x1010, 0x1010, 0x1010, u64::MAX - 7]
        .into_iter()
        .enumerate()
    {
        let sample = Sample {
            time_ns: i as u64,
            pid: Pid(1),
            tid: Tid(1 + i as u32 / 2),
            event: EventId(256),
            ip: VirtAddr(ip),
            addr: (i == 0).then_some(VirtAddr(0x5000)),
            source: DataSource::L2,
            period: 10,
            ..Sample::default()
        };
        writer.push(sample).unwrap();
    }
    writer.finish(|_| {}).unwrap();
    let summary = summary(&path).unwrap();
    let rows: Vec<_> = summary
        .hot
        .functions
        .rows
        .iter()
        .map(|r| (r.function.as_str(), r.value, r.samples))
        .collect();
    assert_eq!(
        rows,
        [("p [no symbols]", 30, Some(3)), ("[kernel]", 10, Some(1))]
    );
    assert_eq!(summary.hot.functions.rows[0].share, Some(0.75));
    assert_eq!(summary.hot.instructions.rows[0].offset, Some(0x10));
    assert_eq!(summary.heat.unwrap().lines[0].start.0, 0x5000);
    let sampling = summary.sampling.unwrap();
    assert_eq!(
        (sampling.events[0].samples, sampling.events[0].with_address),
        (4, 1)
    );
    assert_eq!(
        (
            sampling.sources[0].source.as_str(),
            sampling.sources[0].samples
        ),
        ("L2", 4)
    );
    let threads: Vec<_> = summary
        .threads
        .iter()
        .map(|t| (t.tid.0, t.samples))
        .collect();
    assert_eq!(threads, [(1, 2), (2, 2)]);
    assert_eq!(summary.threads[0].counts["event-256"], 20);
}
