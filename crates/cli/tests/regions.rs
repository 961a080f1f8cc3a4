//! Regions of interest under the emulator are compared with closed forms and with callgrind's toggles.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use harness::{PATH, Recorded, memgauge, needs};
use memgauge_testing::python_with;

/// The program of `regions/regions.c`.
fn program() -> &'static str {
    static BUILT: OnceLock<(TempDir, String)> = OnceLock::new();
    let built = || {
        let folder = tempfile::tempdir().expect("room");
        let program = folder.path().join("regions");
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let status = Command::new("cc")
            .args([
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
                "-Wl,-z,now",
            ])
            .arg("-I")
            .arg(here.join("../capi/include"))
            .arg(here.join("tests/regions/regions.c"))
            .arg("-o")
            .arg(&program)
            .status();
        assert!(status.expect("cc runs").success());
        let path = program.display().to_string();
        (folder, path)
    };
    &BUILT.get_or_init(built).1
}

/// A region's row of the report.
struct Row {
    entries: u64,
    threads: u64,
    counts: BTreeMap<String, u64>,
}

impl Row {
    fn get(&self, event: &str) -> u64 {
        self.counts.get(event).copied().unwrap_or(0)
    }

    fn instructions_loads_stores(&self) -> [u64; 3] {
        ["instructions", "loads", "stores"].map(|event| self.get(event))
    }
}

fn rows(report: &Value) -> BTreeMap<String, Row> {
    let all = report["code_regions"]
        .as_array()
        .expect("there are regions");
    let row = |row: &Value| {
        let number = |value: &Value| value.as_u64().expect("a count");
        let counts = row["counts"].as_object().expect("counts");
        let counts = counts.iter().map(|(name, n)| (name.clone(), number(n)));
        Row {
            entries: number(&row["entries"]),
            threads: number(&row["threads"]),
            counts: counts.collect(),
        }
    };
    all.iter()
        .map(|r| (r["name"].as_str().expect("a name").to_owned(), row(r)))
        .collect()
}

fn recorded(options: &[&str], arguments: &[&str]) -> Recorded {
    let command: Vec<&str> = [program()].iter().chain(arguments).copied().collect();
    let run = Recorded::new(options, &command);
    assert_eq!(run.code(), Some(0), "{}", run.said());
    run
}

#[test]
fn marks_of_the_program_count_what_is_between_them_exactly() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&[], &["marked", "1000"]);
    let rows = rows(&run.report());
    let marked = &rows["marked"];
    assert_eq!((marked.entries, marked.threads), (2, 1));
    let each = 1 + 3 * 1000 + 2;
    assert_eq!(marked.instructions_loads_stores(), [2 * each, 2000, 0]);
}

#[test]
fn the_header_marks_regions_and_values_without_an_access() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&[], &["header", "1000"]);
    let report = run.report();
    let rows = rows(&report);
    let [once, twice] = ["once", "twice"].map(|name| rows[name].instructions_loads_stores());
    // The call and the return of leaf access the stack.
    assert_eq!((once[1], once[2]), (1001, 1));
    assert_eq!((twice[1] - once[1], twice[2] - once[2]), (1000, 0));
    assert!((3000..3016).contains(&once[0]), "{once:?}");
    assert!(
        (twice[0] - once[0]).abs_diff(3000) < 4,
        "{once:?} {twice:?}"
    );
    let turns = &report["code_values"][0];
    assert_eq!(turns["name"], "turns");
    assert_eq!(
        (&turns["n"], &turns["min"], &turns["max"]),
        (&2.into(), &1000.into(), &2000.into())
    );
    let losses = report["losses"].as_array().expect("losses");
    let ends = losses.iter().find(|loss| loss["kind"] == "region_end");
    assert_eq!(ends.map(|loss| &loss["count"]), Some(&1.into()));
}

#[test]
fn functions_are_regions_to_their_return_recursive_and_tail_calls_included() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&["--function", "leaf,de*,tail"], &["functions", "500"]);
    let rows = rows(&run.report());
    let leaf = 3 * 500 + 1;
    // It is called directly, and at the end of `tail`.
    assert_eq!(rows["leaf"].entries, 2);
    assert_eq!(
        rows["leaf"].instructions_loads_stores(),
        [2 * leaf, 1002, 0]
    );
    assert_eq!(rows["deep"].entries, 1);
    assert_eq!(
        rows["deep"].instructions_loads_stores(),
        [5 * 500 + 3, 501, 500]
    );
    assert_eq!(rows["tail"].entries, 1);
    assert_eq!(rows["tail"].instructions_loads_stores(), [2 + leaf, 501, 0]);
}

#[test]
fn a_long_jump_ends_the_functions_that_it_leaves() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&["--function", "jumper"], &["jump", "100000"]);
    let rows = rows(&run.report());
    let jumper = &rows["jumper"];
    assert_eq!(jumper.entries, 1);
    assert!((20..1000).contains(&jumper.get("instructions")));
}

#[test]
fn each_thread_has_its_own_regions_and_a_forked_child_begins_outside() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&["--function", "leaf"], &["threads", "20000"]);
    let by_thread = rows(&run.report());
    let leaf = &by_thread["leaf"];
    assert_eq!((leaf.entries, leaf.threads), (2, 2));
    assert_eq!(leaf.instructions_loads_stores(), [2 * 60001, 40002, 0]);
    assert_eq!(by_thread["main"].threads, 1);
    assert!(by_thread["main"].get("loads") < 20000);
    let run = recorded(&["--function", "leaf"], &["forks", "20000"]);
    let by_process = rows(&run.report());
    assert_eq!(by_process["leaf"].get("loads"), 20001);
    assert!(by_process["fork"].get("loads") < 20000);
}

#[test]
fn a_recording_of_regions_alone_has_what_they_have_in_a_whole_one() {
    if !needs(&["cc"]) {
        return;
    }
    let sorts = ["sort", "20000"];
    let whole = recorded(&["--function", "sorts"], &sorts);
    let expected = rows(&whole.report());
    let options = [
        "--function",
        "sorts",
        "--region",
        "sorts",
        "-e",
        "loads:1009",
    ];
    let part = recorded(&options, &sorts);
    let report = part.report();
    for (name, count) in &expected["sorts"].counts {
        assert_eq!(report["totals"][name], *count, "{name}");
        assert_eq!(rows(&report)["sorts"].counts[name], *count, "{name}");
    }
    // The tables have equal sums, so they contain nothing of the rest of the program.
    let loads = expected["sorts"].get("loads");
    let threads = &report["threads"][0]["counts"]["loads"];
    assert_eq!(threads.as_u64(), Some(loads));
    let functions = &report["hot"]["functions"];
    let names: Vec<&str> = functions["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(|row| row["function"].as_str())
        .collect();
    assert!(names.contains(&"sorts"), "{names:?}");
    assert!(!names.contains(&"main"), "{names:?}");
    // A counter that overflows every 1009 loads of the whole run does so inside by its share.
    let samples = report["sampling"]["events"][0]["samples"]
        .as_u64()
        .expect("samples");
    assert!(samples.abs_diff(loads / 1009) <= 2, "{samples} of {loads}");
}

#[test]
fn a_region_that_the_program_does_not_have_is_named_in_the_end() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&["--region", "nope"], &["marked", "10"]);
    assert!(run.said().contains("no region `nope`"), "{}", run.said());
    assert_eq!(run.totals()["instructions"], 0);
    let options = ["--region", "mark?", "--function", "nosuch*,leave"];
    let run = recorded(&options, &["marked", "10"]);
    let said = run.said();
    assert!(said.contains("no function `nosuch*`:"), "{said}");
    assert!(
        said.contains("no function `leave`; similar: leaf"),
        "{said}"
    );
    assert!(
        said.contains("no region `mark?`; similar: marked"),
        "{said}"
    );
}

#[test]
fn a_function_that_nobody_calls_is_named_in_the_end() {
    if !needs(&["cc"]) {
        return;
    }
    let not_called = |run: &Recorded| run.said().matches("was not called").count();
    let run = recorded(&["--function", "leaf,qsort"], &["functions", "10"]);
    assert!(
        run.said().contains("function `qsort` was not called"),
        "{}",
        run.said()
    );
    assert_eq!(not_called(&run), 1);
    let run = recorded(&["--function", "leaf"], &["functions", "10"]);
    assert_eq!(not_called(&run), 0);
}

#[test]
fn patterns_choose_regions_and_broken_ones_are_refused_before_the_program_runs() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&["--region", "mark*"], &["marked", "1000"]);
    assert!(!run.said().contains("no region"), "{}", run.said());
    assert_eq!(run.totals()["loads"], 2000);
    for option in ["--function", "--region"] {
        let folder = tempfile::tempdir().expect("room");
        let output = memgauge()
            .args(["record", option, "sort[", "-o"])
            .arg(folder.path().join("run.mg"))
            .args(["--", program(), "marked", "10"])
            .output()
            .expect("memgauge runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains(&format!("pattern `sort[` of {option}")),
            "{said}"
        );
        assert!(!folder.path().join("run.mg").exists());
    }
}

#[test]
fn a_report_of_some_regions_says_so_and_divides_nothing_by_the_time_of_the_whole_run() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&["--region", "marked"], &["marked", "1000000"]);
    let text = harness::report_text(&run.path());
    let words: Vec<&str> = text.split_whitespace().collect();
    let words = words.join(" ");
    assert!(
        words.contains("recorded inside regions alone (marked)"),
        "{text}"
    );
    assert!(words.contains("what limits the run are left out"), "{text}");
    let report = run.report();
    assert_eq!(report["causes"], serde_json::json!([]));
    assert!(report["dram"]["mean_read_bytes_per_s"].is_null());
    assert!(report["dram"]["read_bytes"].is_u64());
    let mut page = memgauge();
    page.arg("report")
        .arg(run.path())
        .args(["--html", "-o", "-"]);
    let page = page.output().expect("memgauge runs");
    // Without the front end there are no pages.
    if page.status.success() {
        let page = String::from_utf8_lossy(&page.stdout);
        assert!(page.contains("recorded inside regions alone (marked)"));
    }
}

/// A stay as the exported table has it.
#[derive(Debug, PartialEq)]
struct Stay {
    region: String,
    tid: u64,
    start_ns: u64,
    end_ns: u64,
    inside_ns: u64,
    entries: u64,
}

fn export(recording: &Path, format: &str, to: &Path) {
    let mut command = memgauge();
    command.arg("export").arg(recording).args(["-f", format]);
    let output = command.arg("-o").arg(to).output().expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

fn stays(recording: &Path) -> Vec<Stay> {
    let folder = tempfile::tempdir().expect("room");
    let tables = folder.path().join("tables");
    export(recording, "csv", &tables);
    let text = std::fs::read_to_string(tables.join("region_spans.csv")).expect("a table");
    let mut lines = text.lines();
    let header = "code_region,pid,tid,start_ns,end_ns,inside_ns,entries";
    assert_eq!(lines.next(), Some(header));
    let stay = |line: &str| {
        let (region, numbers) = line.split_once(',').expect("cells");
        let numbers: Vec<u64> = numbers
            .split(',')
            .map(|n| n.parse().expect("a number"))
            .collect();
        Stay {
            region: region.to_owned(),
            tid: numbers[1],
            start_ns: numbers[2],
            end_ns: numbers[3],
            inside_ns: numbers[4],
            entries: numbers[5],
        }
    };
    lines.map(stay).collect()
}

/// Entries and time inside of the table add up to the sums that regions have.
fn check_sums(report: &Value, stays: &[Stay]) {
    for region in report["code_regions"].as_array().expect("regions") {
        let own = || {
            stays
                .iter()
                .filter(|stay| region["name"] == stay.region[..])
        };
        let entries: u64 = own().map(|stay| stay.entries).sum();
        let inside: u64 = own().map(|stay| stay.inside_ns).sum();
        assert_eq!(region["entries"], entries, "{region}");
        assert_eq!(region["time_ns"], inside, "{region}");
        let over = report["regions_over_time"]["rows"].as_array();
        let over = over.expect("rows").iter();
        let row = over.clone().find(|row| row["name"] == region["name"]);
        let bins = row.expect("a row")["inside_ns"].as_array().expect("bins");
        assert_eq!(bins.iter().filter_map(Value::as_u64).sum::<u64>(), inside);
    }
}

#[test]
fn stays_in_regions_lie_where_the_program_put_them() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&[], &["header", "1000"]);
    let all = stays(&run.path());
    check_sums(&run.report(), &all);
    let of = |name: &str| all.iter().find(|stay| stay.region == name).expect("a stay");
    let (once, twice) = (of("once"), of("twice"));
    assert!(once.end_ns <= twice.start_ns, "{once:?} {twice:?}");
    assert_eq!((once.entries, twice.entries), (1, 1));
    // It runs the same loop twice, without misses.
    let lengths = [once, twice].map(|stay| stay.end_ns - stay.start_ns);
    assert!(lengths[1].abs_diff(2 * lengths[0]) < 200, "{lengths:?}");
}

/// A function that is called more often than rows are kept.
#[test]
fn very_many_stays_are_joined_and_add_up() {
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&["--function", "compare"], &["sort", "3000"]);
    let all = stays(&run.path());
    let report = run.report();
    check_sums(&report, &all);
    assert!(rows(&report)["compare"].entries > 20_000);
    assert!(all.len() <= 8192, "{}", all.len());
    for pair in all.windows(2) {
        assert!(pair[0].end_ns <= pair[1].start_ns, "{pair:?}");
    }
}

#[test]
fn a_timers_regions_lie_at_the_times_of_their_marks() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let path = folder.path().join("run.mg");
    let report = timed_at(&path, &[]);
    let all = stays(&path);
    check_sums(&report, &all);
    assert_eq!(all.len(), 20);
    assert!(all.iter().all(|stay| stay.entries == 1));
    let run_ns = report["run"]["duration_ns"].as_u64().expect("a time");
    assert!(
        all.iter().all(|stay| stay.end_ns <= run_ns),
        "{run_ns} {all:?}"
    );
    let modules = serde_json::to_string(&report["problems"]).expect("JSON");
    assert!(!modules.contains("memgauge-regions"), "{modules}");
}

#[test]
fn other_tools_show_regions_over_time() {
    const SLICES: &str = "import sys
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
trace, open_at = Trace(), {}
trace.ParseFromString(open(sys.argv[1], 'rb').read())
for p in trace.packet:
    e = p.track_event
    if e.type == TrackEvent.TYPE_SLICE_BEGIN: open_at[e.track_uuid] = (e.name, p.timestamp)
    if e.type == TrackEvent.TYPE_SLICE_END: print(*open_at.pop(e.track_uuid), p.timestamp)
assert not open_at
";
    if !needs(&["cc"]) {
        return;
    }
    let run = recorded(&[], &["header", "1000"]);
    let folder = tempfile::tempdir().expect("room");
    let expected: BTreeSet<String> = stays(&run.path())
        .iter()
        .map(|stay| format!("{} {} {}", stay.region, stay.start_ns, stay.end_ns))
        .collect();
    let profile = folder.path().join("profile.json");
    export(&run.path(), "firefox", &profile);
    let text = std::fs::read_to_string(&profile).expect("a profile");
    let profile: Value = serde_json::from_str(&text).expect("JSON");
    let mut found = BTreeSet::new();
    for thread in profile["threads"].as_array().expect("threads") {
        let markers = &thread["markers"];
        for row in 0..markers["length"].as_u64().expect("a length") as usize {
            if markers["data"][row]["type"] == "region" {
                let name = markers["name"][row].as_u64().expect("a name") as usize;
                let name = profile["shared"]["stringArray"][name].as_str();
                let at = |key: &str| (markers[key][row].as_f64().expect("ms") * 1e6).round();
                let [start, end] = ["startTime", "endTime"].map(at);
                found.insert(format!("{} {start} {end}", name.expect("text")));
            }
        }
    }
    assert_eq!(found, expected);
    let trace = folder.path().join("trace");
    export(&run.path(), "perfetto", &trace);
    let Some(mut python) = python_with("perfetto.protos") else {
        return;
    };
    let read = python.args(["-c", SLICES]).arg(&trace).output();
    let read = read.expect("Python");
    assert!(read.status.success(), "{read:?}");
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert_eq!(
        text.lines().map(str::to_owned).collect::<BTreeSet<_>>(),
        expected
    );
}

/// References of each curve of a run by name, and misses at the smallest size.
fn curves(options: &[&str], arguments: &[&str]) -> BTreeMap<String, (u64, u64)> {
    let folder = tempfile::tempdir().expect("room");
    let to = folder.path().join("curves.json");
    let mut command = memgauge();
    command.arg("mrc").args(options);
    command.arg(format!("--json={}", to.display()));
    command.args(["--", program()]).args(arguments);
    let output = command.output().expect("memgauge runs");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&to).expect("curves");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let curve = |curve: &Value| {
        let title = curve["title"].as_str().expect("a title");
        let of = title.split(", ").nth(1).unwrap_or("").to_owned();
        let number = |key: &str| curve[key].as_f64().expect("a number") as u64;
        (of, (number("references"), number("compulsory")))
    };
    all["curves"]
        .as_array()
        .expect("curves")
        .iter()
        .map(curve)
        .collect()
}

/// Each region has the references that a recording counts inside.
#[test]
fn curves_of_regions_have_their_references() {
    if !needs(&["cc"]) {
        return;
    }
    let functions = ["--function", "sorts,compare"];
    let sorted = curves(&functions, &["sort", "3000"]);
    let rows = rows(&recorded(&functions, &["sort", "3000"]).report());
    for name in ["sorts", "compare"] {
        let [_, loads, stores] = rows[name].instructions_loads_stores();
        assert_eq!(
            sorted[&format!("inside {name}")].0,
            loads + stores,
            "{name}"
        );
    }
    assert!(sorted["inside compare"].0 < sorted["inside sorts"].0);
    // Two reads of one line, 1000 times each.
    let marked = curves(&["--by", "interest"], &["marked", "1000"]);
    assert_eq!(marked["inside marked"], (2000, 1));
}

#[test]
fn functions_without_a_curve_are_named_and_other_parts_refused() {
    if !needs(&["cc"]) {
        return;
    }
    let run = |options: &[&str]| {
        let mut command = memgauge();
        command.arg("mrc").args(options);
        let output = command.args(["--", program(), "marked", "10"]).output();
        let output = output.expect("memgauge runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = run(&["--function", "sort"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("there is no function `sort`; similar: sorts"),
        "{said}"
    );
    let (code, said) = run(&["--function", "sorts", "--by", "module"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--by interest"), "{said}");
    let mut unmarked = memgauge();
    unmarked.args(["mrc", "--by", "interest", "--", "/bin/true"]);
    let output = unmarked.output().expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("in no region of interest"),
        "{said}"
    );
}

/// A recording of the two halves by a timer, and its report.
fn timed(options: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("room");
    timed_at(&folder.path().join("run.mg"), options)
}

fn timed_at(path: &Path, options: &[&str]) -> Value {
    timed_of(path, &["halves", "20000000"], options)
}

fn timed_of(path: &Path, arguments: &[&str], options: &[&str]) -> Value {
    let output = memgauge()
        .args(["record", "--quiet", "--source", "clock", "--output"])
        .arg(path)
        .args(options)
        .args(["--", program()])
        .args(arguments)
        .output()
        .expect("memgauge runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report = harness::report(path);
    serde_json::from_slice(&report.stdout).expect("the report is JSON")
}

#[test]
fn a_timers_regions_end_with_their_threads_and_a_killed_mark_holds_up_no_other() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let path = folder.path().join("run.mg");
    let report = timed_of(&path, &["ends", "200000000"], &[]);
    let all = rows(&report);
    assert_eq!((all["open"].entries, all["open"].threads), (2, 2));
    let [open, closed] = ["open", "closed"].map(|name| all[name].get("cpu-clock") as f64);
    // Each runs the same number of turns. Beside other programs, one may take one and a half times
    // as long.
    assert!(
        open > 0.5 * closed && open < 2.0 * closed,
        "{open} {closed}"
    );
    let stays = stays(&path);
    let closed = stays.iter().find(|stay| stay.region == "closed");
    let begin_ns = closed.expect("it was entered").start_ns;
    let open: Vec<_> = stays.iter().filter(|stay| stay.region == "open").collect();
    assert_eq!(open.len(), 2);
    assert!(open.iter().all(|stay| stay.end_ns <= begin_ns), "{open:?}");
    let losses = report["losses"].to_string();
    assert!(
        losses.contains("marks of regions whose thread was killed"),
        "{losses}"
    );
}

/// Samples of each function.
fn by_function(report: &Value) -> BTreeMap<String, u64> {
    let rows = report["hot"]["functions"]["rows"].as_array().expect("rows");
    let row = |row: &Value| {
        let name = row["function"].as_str()?.to_owned();
        Some((name, row["counts"]["cpu-clock"].as_u64()?))
    };
    rows.iter().filter_map(row).collect()
}

#[test]
fn a_timers_samples_belong_to_the_region_at_their_time() {
    if !needs(&["cc"]) {
        return;
    }
    let report = timed(&[]);
    let all = rows(&report);
    let half = &all["half"];
    assert_eq!((half.entries, half.threads), (20, 1));
    let functions = by_function(&report);
    let (leaf, other) = (functions["leaf"], functions["other"]);
    // All of leaf is inside, nothing of other.
    let inside = half.get("cpu-clock");
    assert!(inside >= leaf, "{inside} {functions:?}");
    assert!(inside < leaf + other / 2, "{inside} {functions:?}");
    assert_eq!(report["code_values"][0]["n"].as_u64(), Some(20));
    assert_eq!(report["code_values"][0]["max"].as_u64(), Some(19));
    let part = timed(&["--region", "half"]);
    let functions = by_function(&part);
    assert!(functions["leaf"] > 0, "{functions:?}");
    assert!(!functions.contains_key("other"), "{functions:?}");
}

#[test]
fn regions_that_a_live_source_cannot_know_are_refused() {
    let refused = |arguments: &[&str], why: &str| {
        let mut command = memgauge();
        let output = command.arg("record").args(arguments).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{said}");
    };
    let function = ["--source", "clock", "--function", "a", "--", "true"];
    refused(&function, "only source emulate knows functions");
    let running = ["--source", "clock", "--region", "a", "-p", "1"];
    refused(&running, "regions of a running program");
}

/// Instructions and references that callgrind counts in a function.
fn callgrind(function: &str, arguments: &[&str]) -> (u64, u64) {
    let folder = tempfile::tempdir().expect("room");
    let out = folder.path().join("out");
    let output = Command::new("valgrind")
        .env_clear()
        .env("PATH", PATH)
        .args(["--tool=callgrind", "--cache-sim=yes", "--vgdb=no"])
        .arg(format!("--toggle-collect={function}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program())
        .args(arguments)
        .output()
        .expect("valgrind runs");
    assert!(output.status.success());
    let text = std::fs::read_to_string(out).expect("callgrind writes its file");
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        let words = found.unwrap_or_else(|| panic!("no {name} in {text}"));
        words
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (events, totals) = (line("events:"), line("totals:"));
    let of = |event: &str| {
        let at = events
            .iter()
            .position(|e| e == event)
            .expect("callgrind counts it");
        // The output omits zeros at the end.
        let total = totals.get(at).map_or("0", String::as_str);
        total.parse::<u64>().expect("a number")
    };
    (of("Ir"), of("Dr") + of("Dw"))
}

#[test]
fn callgrind_counts_the_same_in_a_function() {
    if !needs(&["cc", "valgrind"]) {
        return;
    }
    for (function, arguments) in [("leaf", ["marked", "300"]), ("sorts", ["sort", "3000"])] {
        let run = recorded(&["--function", function], &arguments);
        let row = &rows(&run.report())[function];
        let [instructions, loads, stores] = row.instructions_loads_stores();
        let references = loads + stores - row.get("modifies");
        let theirs = callgrind(function, &arguments);
        assert_eq!((instructions, references), theirs, "{function}");
    }
}
