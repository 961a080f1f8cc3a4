//! Exports are read with the tools of their formats. Sums equal those of the report.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Recorded, memgauge, needs};
use memgauge_testing::{Need, python_with, skipped};
use serde_json::Value;

fn recorded() -> Option<Recorded> {
    needs(&[]).then(|| {
        let recorded = Recorded::new(&["--machine", "i5-6600k"], &["/bin/ls", "-l", "/usr/bin"]);
        assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
        recorded
    })
}

/// Writes the recording in a format and returns the file or folder.
fn export(recorded: &Recorded, format: &str) -> PathBuf {
    let path = recorded.folder.path().join(format);
    let mut command = memgauge();
    command
        .arg("export")
        .arg(recorded.path())
        .args(["-f", format, "-o"])
        .arg(&path);
    let output = command.output().expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    path
}

/// Returns the output of a tool, or `None` if it is not installed.
fn reads(mut tool: Command, args: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = tool.args(args).arg(file).output() else {
        let name = tool.get_program().to_string_lossy();
        skipped(Need::Tool, format!("needs {name}"));
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{tool:?}: {said}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sums of all functions by event, as the report has them.
fn sums(report: &Value) -> BTreeMap<String, u64> {
    let table = &report["hot"]["functions"];
    let rows = table["rows"].as_array().expect("rows").iter();
    let mut sums = BTreeMap::new();
    for counts in rows
        .map(|row| &row["counts"])
        .chain([&table["others"]["counts"]])
    {
        for (event, count) in counts.as_object().into_iter().flatten() {
            *sums.entry(event.clone()).or_default() += count.as_u64().expect("a count");
        }
    }
    assert!(sums.values().any(|&sum| sum > 1000), "{sums:?}");
    sums
}

#[test]
fn callgrind_annotate_sums_what_the_report_does() {
    let Some(recorded) = recorded() else { return };
    let file = export(&recorded, "callgrind");
    let Some(text) = reads(
        Command::new("callgrind_annotate"),
        &["--threshold=100"],
        &file,
    ) else {
        return;
    };
    let sums = sums(&recorded.report());
    let totals = text.lines().find(|line| line.ends_with("PROGRAM TOTALS"));
    let totals = totals.unwrap_or_else(|| panic!("no totals: {text}"));
    let numbers = totals
        .split_whitespace()
        .filter_map(|word| word.replace(',', "").parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    let shown: Vec<u64> = sums.values().copied().collect();
    assert_eq!(numbers, shown, "{totals}");
    assert!(
        text.contains("llc_miss") && text.contains("do_lookup_x"),
        "{text}"
    );
}

/// Every miss is a sample, so a function's inclusive cost is exactly its nodes' events.
#[test]
fn callgrind_annotate_finds_what_a_function_and_its_callees_miss() {
    if !needs(&[]) {
        return;
    }
    let options = ["--machine", "i5-6600k", "-g", "-e", "llc.miss:1"];
    let recorded = Recorded::new(&options, &["/bin/ls", "-l", "/usr/bin"]);
    let file = export(&recorded, "callgrind");
    let annotate = Command::new("callgrind_annotate");
    let options = ["--inclusive=yes", "--threshold=100", "--show=llc_miss"];
    let Some(text) = reads(annotate, &options, &file) else {
        return;
    };
    let report = recorded.report();
    let tree = &report["calls"][0];
    assert_eq!(tree["event"], "llc.miss");
    let nodes = tree["nodes"].as_array().expect("nodes");
    for function in ["dl_main", "_dl_relocate_object", "_dl_sysdep_start"] {
        let of_function = nodes.iter().filter(|node| node["function"] == function);
        let expected: u64 = of_function
            .map(|node| node["events"].as_u64().unwrap())
            .sum();
        let name = format!(":{function} ");
        let line = text.lines().find(|line| line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("no {function}: {text}"));
        let shown = line
            .split_whitespace()
            .next()
            .expect("a number")
            .replace(',', "");
        assert_eq!(shown.parse(), Ok(expected), "{line}");
        assert!(expected > 10, "{line}");
    }
}

#[test]
fn pprof_sums_what_the_report_does() {
    let Some(recorded) = recorded() else { return };
    let file = export(&recorded, "pprof");
    let Some(text) = reads(Command::new("go"), &["tool", "pprof", "-raw"], &file) else {
        return;
    };
    assert_eq!(raw_sums(&text), sums(&recorded.report()));
    assert!(text.contains("do_lookup_x"), "{text}");
    let mut mappings = text.lines().skip_while(|line| *line != "Mappings");
    let first = mappings.nth(1).unwrap_or_default();
    assert!(first.contains("/ls "), "{first}");
}

/// Sums of a profile by sample type, as `pprof -raw` lists it.
fn raw_sums(text: &str) -> BTreeMap<String, u64> {
    let mut lines = text.lines().skip_while(|line| *line != "Samples:").skip(1);
    let header = lines.next().expect("sample types");
    let events: Vec<&str> = header
        .split_whitespace()
        .map(|t| t.split('/').next().unwrap_or(t))
        .collect();
    let mut totals = vec![0u64; events.len()];
    for line in lines.take_while(|line| *line != "Locations") {
        let Some((values, _)) = line.split_once(':') else {
            continue;
        };
        for (total, value) in totals.iter_mut().zip(values.split_whitespace()) {
            *total += value.parse::<u64>().expect("a value");
        }
    }
    let events = events.iter().map(|event| event.replace("[dflt]", ""));
    events.zip(totals).collect()
}

#[test]
fn a_profile_with_callers_keeps_the_exact_counts_of_all_events() {
    if !needs(&[]) {
        return;
    }
    let recorded = Recorded::new(&["-g", "-e", "llc.miss:11"], &["/bin/ls", "-l", "/usr/bin"]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let file = export(&recorded, "pprof");
    let Some(text) = reads(Command::new("go"), &["tool", "pprof", "-raw"], &file) else {
        return;
    };
    let mut read = raw_sums(&text);
    let of_calls = read.remove("llc.miss.calls").expect("a type for callers");
    let exact = sums(&recorded.report());
    assert_eq!(read, exact);
    // Eleven misses a sample: the last of a thread may not be full.
    assert!(
        of_calls > 0 && exact["llc.miss"].abs_diff(of_calls) <= 11 * 8,
        "{of_calls}"
    );
    assert!(text.contains("llc.miss.calls: sampled"), "{text}");
    assert!(text.contains("llc.miss: modelled"), "{text}");
}

#[test]
fn totals_have_the_unit_and_the_provenance_that_they_are_of() {
    let Some(recorded) = recorded() else { return };
    let file = export(&recorded, "openmetrics");
    let text = std::fs::read_to_string(file).expect("text");
    for (event, unit) in [
        ("idle_ns", "nanoseconds"),
        ("virtual_ns", "nanoseconds"),
        ("dram.unattributed_write_bytes", "bytes"),
        ("dram.read_bytes", "bytes"),
        ("cycles", "cycles"),
        ("loads", "count"),
    ] {
        let sample = format!(
            "memgauge_events_total{{event=\"{event}\",unit=\"{unit}\",provenance=\"modelled\"}}"
        );
        assert!(text.contains(&sample), "{sample}: {text}");
    }
    let path = recorded.folder.path().join("clock.mg");
    let mut clock = memgauge();
    clock
        .args(["record", "-q", "--source", "clock", "-o"])
        .arg(&path);
    let clock = clock.args([
        "--",
        "sh",
        "-c",
        "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done",
    ]);
    if !clock.output().expect("memgauge runs").status.success() {
        return skipped(Need::Tool, "needs a timer of perf_event_open");
    }
    let mut export = memgauge();
    export.arg("export").arg(&path).args(["-f", "openmetrics"]);
    let text = String::from_utf8(export.output().expect("memgauge runs").stdout).expect("UTF-8");
    let sample = "event=\"cpu-clock\",unit=\"nanoseconds\"";
    assert!(text.contains(sample), "{text}");
}

#[test]
fn folded_stacks_are_one_line_each_and_sum_up() {
    let Some(recorded) = recorded() else { return };
    let mut command = memgauge();
    command
        .arg("export")
        .arg(recorded.path())
        .args(["-f", "folded", "-e", "l1d.miss"]);
    let output = command.output().expect("memgauge runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let counts = text.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').expect("a stack and a count");
        assert!(stack.split(';').all(|frame| !frame.is_empty()), "{line}");
        count.parse::<u64>().expect("a count")
    });
    assert_eq!(counts.sum::<u64>(), sums(&recorded.report())["l1d.miss"]);
}

/// Each format by its own parser, which must know the type. Amounts of memory are gauges.
#[test]
fn prometheus_reads_the_totals_as_counters_and_gauges() {
    let Some(recorded) = recorded() else { return };
    check_counters(
        &recorded,
        "openmetrics",
        "prometheus_client.openmetrics.parser",
    );
    check_counters(&recorded, "prometheus", "prometheus_client.parser");
}

fn check_counters(recorded: &Recorded, format: &str, parser: &str) {
    let read = format!(
        "import sys
from {parser} import text_string_to_metric_families as parse
for family in parse(open(sys.argv[1]).read()):
    for s in family.samples:
        if s.name == 'memgauge_events_total' and family.type == 'counter' and family.documentation:
            print(s.labels['event'], int(s.value))
        if s.name == 'memgauge_heap_bytes' and family.type == 'gauge' and family.documentation:
            print('heap.' + s.labels['state'] + '_bytes', int(s.value))
"
    );
    let file = export(recorded, format);
    let text = std::fs::read_to_string(&file).expect("text");
    assert_eq!(format == "openmetrics", text.ends_with("# EOF\n"), "{text}");
    let Some(python) = python_with("prometheus_client") else {
        return;
    };
    let text = reads(python, &["-c", &read], &file).expect("Python");
    let read = text.lines().map(|line| {
        let (event, count) = line.split_once(' ').expect("an event and a count");
        (event.to_owned(), count.parse().expect("a count"))
    });
    let read: BTreeMap<String, u64> = read.collect();
    let totals = recorded.report()["totals"].clone();
    let totals: BTreeMap<String, u64> = serde_json::from_value(totals).expect("totals");
    assert_eq!(read, totals);
}

#[test]
fn tables_have_their_sums_and_a_trace_its_curves() {
    const READ: &str = "import csv, sys, os
d = sys.argv[1]
rows = list(csv.DictReader(open(os.path.join(d, 'lines.csv'))))
print(sum(int(r['llc.miss']) for r in rows))
rows = list(csv.DictReader(open(os.path.join(d, 'series.csv'))))
print(sum(int(r['dram.read_bytes']) for r in rows))
";
    let Some(recorded) = recorded() else { return };
    let folder = export(&recorded, "csv");
    let report = recorded.report();
    if let Some(text) = reads(Command::new("python3"), &["-c", READ], &folder) {
        let expected = format!(
            "{}\n{}\n",
            sums(&report)["llc.miss"],
            report["totals"]["dram.read_bytes"]
        );
        assert_eq!(text, expected);
    }
}

#[test]
fn pyarrow_reads_the_tables() {
    const READ: &str = "import sys, os, pyarrow as pa
d = sys.argv[1]
read = lambda name: pa.ipc.open_file(os.path.join(d, name)).read_all()
lines = read('lines.arrow')
assert lines.schema.field('llc.miss').type == pa.uint64()
assert lines.schema.field('function').type == pa.string()
totals = {r['event']: r['count'] for r in read('totals.arrow').to_pylist()}
print(sum(lines['llc.miss'].to_pylist()), totals['loads'], *sorted(os.listdir(d)))
";
    let Some(recorded) = recorded() else { return };
    let folder = export(&recorded, "arrow");
    let Some(python) = python_with("pyarrow") else {
        return;
    };
    let text = reads(python, &["-c", READ], &folder).expect("Python");
    let report = recorded.report();
    let expected = format!(
        "{} {} data.arrow functions.arrow heap.arrow instructions.arrow lines.arrow regions.arrow \
         series.arrow threads.arrow totals.arrow\n",
        sums(&report)["llc.miss"],
        report["totals"]["loads"]
    );
    assert_eq!(text, expected);
}

/// By Perfetto's own schema: each counter's sum of rate × time until the next value.
#[test]
fn perfetto_reads_rates_that_sum_up_to_the_totals() {
    const READ: &str = "import sys
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
trace, tracks, last, sums = Trace(), {}, {}, {}
trace.ParseFromString(open(sys.argv[1], 'rb').read())
for p in trace.packet:
    if p.HasField('track_descriptor'):
        d = p.track_descriptor
        tracks[d.uuid] = (d.name, d.counter.unit_name)
    else:
        e = p.track_event
        assert e.type == TrackEvent.TYPE_COUNTER
        if e.track_uuid in last:
            at, rate = last[e.track_uuid]
            sums[e.track_uuid] = sums.get(e.track_uuid, 0) + rate * (p.timestamp - at) / 1e9
        last[e.track_uuid] = (p.timestamp, e.double_counter_value)
print(max(at for at, _ in last.values()))
for uuid, (name, unit) in tracks.items(): print(name, unit, round(sums[uuid]), sep='|')
";
    let Some(recorded) = recorded() else { return };
    let trace = export(&recorded, "perfetto");
    let Some(python) = python_with("perfetto.protos") else {
        return;
    };
    let text = reads(python, &["-c", READ], &trace).expect("Python");
    let report = recorded.report();
    let total = &report["totals"]["dram.read_bytes"];
    let expected = format!("dram.read_bytes (modelled)|bytes/s|{total}");
    assert!(
        text.lines().any(|line| line == expected),
        "{expected} in {text}"
    );
    // The curve ends with the run, not with a whole bin.
    let end = text.lines().next().expect("an end");
    assert_eq!(end, report["run"]["duration_ns"].to_string());
}

#[test]
fn an_export_that_cannot_be_says_why() {
    let Some(recorded) = recorded() else { return };
    let said = |args: &[&str]| {
        let output = memgauge()
            .arg("export")
            .arg(recorded.path())
            .args(args)
            .output();
        let output = output.expect("memgauge runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, text) = said(&["-f", "folded", "-e", "nosuch"]);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("`nosuch`") && text.contains("llc.miss"),
        "{text}"
    );
    // Reports may be ranked by it, although it is a sum of two events.
    let ranked = said(&["-f", "folded", "-e", "dram_bytes"]);
    assert_eq!(ranked, (Some(0), String::new()));
    assert_eq!(said(&["-f", "csv"]).0, Some(2));
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("old.csv"), "").expect("a file");
    for (target, why) in [
        (folder.path().to_str().expect("text"), "is not empty"),
        ("/etc/passwd", "`/etc/passwd` is not a folder"),
    ] {
        let (code, text) = said(&["-f", "csv", "-o", target]);
        assert_eq!((code, text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.contains(why) && text.contains("use a new"), "{text}");
    }
    let (code, text) = said(&["-f", "csv", "-o", "/proc/new"]);
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("failed to write `/proc/new`: "), "{text}");
    assert_eq!(said(&["-f", "pprof"]).0, Some(2));
    assert_eq!(said(&["-f", "callgrind", "-e", "loads"]).0, Some(2));
    let (code, text) = said(&["-f", "pprof", "-o", "/nonexistent/x"]);
    assert_eq!(code, Some(125));
    assert!(text.contains("`/nonexistent/x`"), "{text}");
    // Counters without samples name no code.
    let counted = recorded.folder.path().join("s.mg");
    let output = memgauge()
        .args(["stat", "-e", "page-faults:u", "-o"])
        .arg(&counted)
        .args(["--", "/bin/true"])
        .output()
        .expect("memgauge runs");
    if !output.status.success() {
        skipped(Need::Kernel, String::from_utf8_lossy(&output.stderr));
        return;
    }
    let output = memgauge()
        .arg("export")
        .arg(&counted)
        .args(["-f", "folded"])
        .output();
    let output = output.expect("memgauge runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(
        text.contains("has no code; use another format: arrow, csv"),
        "{text}"
    );
}
