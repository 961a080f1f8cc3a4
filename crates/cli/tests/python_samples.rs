//! Functions and lines of Python in native samples, for scripts that measure the time of their
//! functions themselves.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memgauge_testing::{Need, skipped};
use serde_json::Value;

use harness::{
    Recorded, drawn, interpreters, is_root, memgauge, needs, perf_works, report_text, run_denied,
    said,
};

/// Functions that print their CPU time. Those of a group do not call others.
const GROUPS: &str = r#"
import asyncio, gc, json, os, sys, threading, time
gc.disable()
spent = {}

def measured(group, run, *arguments):
    before = time.thread_time()
    run(*arguments)
    spent[group] = spent.get(group, 0) + time.thread_time() - before

def plain(n):
    total = 0
    for i in range(n):
        total ^= i * i

def native(n):
    return sum(range(n))

def yields(n):
    for i in range(n):
        yield i

def consumes(n):
    total = 0
    for i in yields(n):
        total ^= i

def deep(n):
    return deep(n - 1) + 1 if n else 0

def recurses(n):
    for _ in range(n // 50):
        deep(50)

def key(x):
    return x % 7

def sorts(n):
    sorted(range(n), key=key)

async def ticks(n):
    for i in range(n):
        await step(i)

async def step(i):
    return i * i

def awaits(n):
    asyncio.run(ticks(n))

def threaded(n):
    total = 0
    for i in range(n):
        total += i

def in_thread(n):
    thread = threading.Thread(target=measured, args=("threaded", threaded, n))
    thread.start()
    thread.join()

def in_child(n):
    child = os.fork()
    if child == 0:
        spent.clear()
        measured("forked", threaded_in_child, n)
        print(json.dumps(spent), flush=True)
        os._exit(0)
    os.waitpid(child, 0)

def threaded_in_child(n):
    total = 0
    for i in range(n):
        total -= i
"#;

/// Number of the system call `bpf` on x86-64.
const BPF_CALL: u32 = 321;

/// Groups, with the functions that their time belongs to.
const FUNCTIONS: [(&str, &[&str]); 7] = [
    ("plain", &["plain"]),
    ("native", &["native"]),
    ("consumes", &["consumes", "yields"]),
    ("recurses", &["recurses", "deep"]),
    ("sorts", &["sorts", "key"]),
    ("threaded", &["threaded"]),
    ("forked", &["threaded_in_child"]),
];

/// The interpreters, and a program with a built-in interpreter if there is one.
fn all_interpreters() -> BTreeMap<String, PathBuf> {
    let mut found = interpreters();
    let of_system = Path::new("/usr/bin/python3");
    if of_system.exists() {
        let resolved = of_system.canonicalize().expect("it exists");
        found.entry("of the system".to_owned()).or_insert(resolved);
    }
    found
}

fn cannot_run() -> bool {
    if !needs(&["python3"]) || !perf_works() {
        return true;
    }
    if !is_root() {
        skipped(Need::Root, "only root may load BPF programs");
        return true;
    }
    false
}

fn write(folder: &Path, name: &str, script: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, script).expect("room");
    file.to_string_lossy().into_owned()
}

/// Samples a script by the clock. Its output is the last element.
fn run(python: &Path, script: &str, options: &[&str]) -> (Recorded, String) {
    let folder = tempfile::tempdir().expect("room");
    let file = write(folder.path(), "script.py", script);
    let python = python.to_string_lossy();
    let recorded = Recorded::by("clock", options, &[&*python, "-S", "-E", &file], |_| ());
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let output = String::from_utf8_lossy(&recorded.output.stdout).into_owned();
    (recorded, output)
}

/// Sampled nanoseconds by function, or by line with `FUNCTION:LINE`, of the script.
fn sampled(report: &Value, table: &str) -> BTreeMap<String, f64> {
    let rows = report["python"][table].as_array();
    let rows = rows.unwrap_or_else(|| panic!("no Python: {}", report["sampling"]));
    let event = report["python"]["rank"].as_str().expect("a name");
    let mut sums = BTreeMap::new();
    for row in rows {
        if !row["file"].as_str().unwrap_or("").ends_with("/script.py") {
            continue;
        }
        let mut name = row["function"].as_str().expect("a name").to_owned();
        if let Some(line) = row["line"].as_u64() {
            name = format!("{name}:{line}");
        }
        *sums.entry(name).or_default() += row["counts"][event].as_f64().unwrap_or(0.0);
    }
    sums
}

/// Largest plausible error of a sampled time, in which each sample stands for a millisecond: five
/// standard deviations, plus the time of calls on the way to the function.
fn tolerance_ns(expected_ns: f64) -> f64 {
    5.0 * (expected_ns * 1e6).sqrt() + 0.05 * expected_ns + 5e6
}

#[test]
fn functions_have_the_time_that_they_measure_themselves() {
    if cannot_run() {
        return;
    }
    let mut script = GROUPS.to_owned();
    for (group, n) in [
        ("plain", 1_000_000),
        ("native", 4_000_000),
        ("consumes", 1_000_000),
        ("recurses", 1_000_000),
        ("sorts", 800_000),
    ] {
        let n = n + drawn(group, 0, n);
        script += &format!("measured('{group}', {group}, {n})\n");
    }
    let n = drawn("threaded", 1_000_000, 3_000_000);
    script += &format!("in_thread({n})\nprint(json.dumps(spent), flush=True)\nin_child({n})\n");
    for (version, python) in all_interpreters() {
        for options in [&[][..], &["--call-graph", "dwarf"]] {
            let (recorded, output) = run(&python, &script, options);
            let mut spent: BTreeMap<String, f64> = BTreeMap::new();
            for line in output.lines() {
                let times: BTreeMap<String, f64> = serde_json::from_str(line).expect("times");
                spent.extend(times);
            }
            let report = recorded.report();
            let found = sampled(&report, "functions");
            for (group, functions) in FUNCTIONS {
                let expected = 1e9 * spent[group];
                let times = functions
                    .iter()
                    .map(|&name| found.get(name).unwrap_or(&0.0));
                let time: f64 = times.sum();
                assert!(
                    (time - expected).abs() < tolerance_ns(expected),
                    "{version} {options:?}: {group} took {expected} ns, sampled {time} ns"
                );
            }
        }
    }
}

#[test]
fn lines_have_their_share_of_the_time_of_c_code() {
    if cannot_run() {
        return;
    }
    let unit = drawn("unit", 40_000, 80_000);
    let factor = drawn("factor", 2, 5);
    let script = format!(
        "
def work():
    for _ in range(300):
        sum(range({unit}))
        pass
        sum(range({unit} * {factor}))

work()
"
    );
    for (version, python) in all_interpreters() {
        let (recorded, _) = run(&python, &script, &[]);
        let found = sampled(&recorded.report(), "lines");
        let [short, long] = ["work:4", "work:6"].map(|line| found[line]);
        let part = long / (short + long);
        let expected = factor as f64 / (factor + 1) as f64;
        let samples = (short + long) / 1e6;
        let deviation = (expected * (1.0 - expected) / samples).sqrt();
        assert!(
            (part - expected).abs() < 5.0 * deviation + 0.03,
            "{version}: {part} of {samples} samples, expected {expected}"
        );
    }
}

/// Call stacks of the recording, outermost call first, with the events that they stand for.
fn folded(recorded: &Recorded) -> String {
    let mut export = memgauge();
    let export = export.args(["export", "-f", "folded"]);
    let output = export.arg(recorded.path()).output().expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn calls_of_python_are_between_the_native_calls_that_run_them() {
    if cannot_run() {
        return;
    }
    let script = "
def key(x):
    return sum(range(2000))

def sorts(n):
    return sorted(range(n), key=key)

def outer(n):
    return sorts(n)

outer(20000)
";
    for (version, python) in all_interpreters() {
        for with_native in [false, true] {
            let options: &[&str] = if with_native {
                &["--call-graph", "dwarf"]
            } else {
                &[]
            };
            let (recorded, _) = run(&python, script, options);
            let folded = folded(&recorded);
            let inner = folded
                .lines()
                .find(|line| line.contains(";key (script.py:3);"));
            let inner = inner.unwrap_or_else(|| panic!("{version}: {folded}"));
            let (outer, _) = inner.split_once(";key ").expect("found above");
            let outer: Vec<&str> = outer.split(';').collect();
            let at = |name| {
                let at = outer.iter().position(|&frame| frame == name);
                at.unwrap_or_else(|| panic!("{version}: {inner}"))
            };
            let (module, calls) = (at("<module> (script.py:11)"), at("outer (script.py:9)"));
            let sorts = at("sorts (script.py:6)");
            assert!(module < calls && calls < sorts, "{version}: {inner}");
            // `sorted` is native code between `sorts` and `key`.
            let native = outer.len() - 1 - sorts;
            assert_eq!(native > 1, with_native, "{version}: {inner}");
        }
    }
}

/// Spends its time in the standard library, called from line 6.
const PARSES: &str = "\
import json
def parse(times):
    text = json.dumps(list(range(50)))
    total = 0
    for i in range(times):
        total += sum(json.loads(text))
    return total
print(parse(60000))
";

#[test]
fn main_finding_names_the_own_code_that_calls_a_library() {
    if cannot_run() {
        return;
    }
    let (_, python) = all_interpreters().pop_last().expect("needs found one");
    let (recorded, _) = run(&python, PARSES, &[]);
    let text = report_text(&recorded.path());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let finding = "raw_decode at decoder.py:";
    assert!(text.contains(finding), "{text}");
    assert!(text.contains("is called by parse (script.py:6)."), "{text}");
}

#[test]
fn processes_that_start_during_the_recording_have_lines() {
    if cannot_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let script = "
def work(n):
    total = 0
    for i in range(n):
        total += i

work(8000000)
";
    let file = write(folder.path(), "script.py", script);
    let mut commands = String::new();
    let all = all_interpreters();
    for python in all.values() {
        commands += &format!("{} -S -E {file}; ", python.display());
    }
    let recorded = Recorded::by("clock", &[], &["sh", "-c", &commands], |_| ());
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let report = recorded.report();
    let found = sampled(&report, "functions");
    let rank = report["python"]["rank"].as_str().expect("a name");
    let total = report["totals"][rank].as_f64().expect("a count");
    assert!(found["work"] > 0.5 * total, "{found:?} of {total}");
}

#[test]
fn running_process_has_lines_and_its_threads_have_their_own() {
    if cannot_run() {
        return;
    }
    let script = "
import sys, threading

def first():
    while running:
        sum(range(1000))

def second():
    while running:
        sum(range(1000))

running = True
threads = [threading.Thread(target=f) for f in (first, second)]
for thread in threads:
    thread.start()
print('started', flush=True)
sys.stdin.read()
running = False
";
    for (version, python) in all_interpreters() {
        let folder = tempfile::tempdir().expect("room");
        let file = write(folder.path(), "script.py", script);
        let mut program = Command::new(&python)
            .args(["-S", "-E", &file])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python runs");
        let mut started = [0; 8];
        let mut output = program.stdout.take().expect("a pipe");
        std::io::Read::read_exact(&mut output, &mut started).expect("it starts");
        let path = folder.path().join("run.mg");
        let mut record = memgauge();
        record.args(["record", "--quiet", "--source", "clock", "-p"]);
        record.arg(program.id().to_string()).arg("-o").arg(&path);
        let output = record.args(["--", "sleep", "1"]).output();
        drop(program.stdin.take());
        program.wait().expect("it ends");
        let output = output.expect("memgauge runs");
        assert!(output.status.success(), "{}", said(&output));
        let report = harness::report(&path);
        let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
        let found = sampled(&report, "functions");
        let all: f64 = found.values().sum();
        let part = found["first"] / all;
        // They alternate.
        assert!((0.2..0.8).contains(&part), "{version}: {found:?}");
        let python_share = report["python"]["share"].as_f64().expect("a share");
        assert!(python_share > 0.9, "{version}: {python_share}");
    }
}

#[test]
fn recording_says_why_lines_of_python_are_missing() {
    if cannot_run() {
        return;
    }
    let mut older = Command::new("python3.8");
    let older = older
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    let older = older.map(|output| output.stdout).unwrap_or_default();
    let older = String::from_utf8_lossy(&older).trim().to_owned();
    if older.is_empty() {
        return;
    }
    let (recorded, _) = run(Path::new(&older), "sum(range(10000000))", &[]);
    let report = recorded.report();
    let notes = report["sampling"]["notes"].to_string();
    assert!(notes.contains("no lines of Python"), "{notes}");
    assert!(notes.contains("3.9 to 3.13"), "{notes}");
}

#[test]
fn recording_without_bpf_says_why_lines_of_python_are_missing() {
    if cannot_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let file = write(folder.path(), "script.py", "sum(range(20000000))");
    let path = folder.path().join("run.mg");
    let recording = path.to_string_lossy();
    let arguments = [
        "record",
        "--source",
        "clock",
        "-o",
        &*recording,
        "--",
        "python3",
        &file,
    ];
    let output = run_denied(BPF_CALL, &arguments);
    assert!(output.status.success(), "{}", said(&output));
    let lines = said(&output);
    let lines: Vec<&str> = lines
        .lines()
        .filter(|line| line.contains("lines of Python"))
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("BPF"), "{lines:?}");
    let report = String::from_utf8_lossy(&harness::report(&path).stdout).into_owned();
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["python_without_lines"]["is_sampled"], true);
    let text = harness::report_text(&path);
    assert!(text.contains("Record as root"), "{text}");
    // Programs without Python get no such line.
    let arguments = [
        "record",
        "--source",
        "clock",
        "-o",
        &*recording,
        "--",
        "true",
    ];
    let output = run_denied(BPF_CALL, &arguments);
    assert!(!said(&output).contains("Python"), "{}", said(&output));
}
