//! Functions and lines of Python, for scripts that execute each of them a known number of times.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use harness::{Recorded, drawn, interpreters, memgauge, needs, said};

/// Functions that each repeat a different kind of work. Their integers stay below 2^30, because
/// CPython adds larger ones in another way.
const KINDS: &str = r#"
def plain_K(n):
    total = 0
    for i in range(n):
        total ^= i * i
    return total

def yields_K(n):
    for i in range(n):
        yield i

def consumes_K(n):
    total = 0
    for i in yields_K(n):
        total += i
    return total

def deep_K(n):
    if n:
        deep_K(n - 1)

def recurses_K(n):
    for _ in range(n // 50):
        deep_K(50)

def squares_K(n):
    return sum([i * i for i in range(n)])

def raises_K(n):
    raise ValueError(n)

def catches_K(n):
    for i in range(n):
        try:
            raises_K(i)
        except ValueError:
            pass

def key_K(x):
    return x % 7

def sorts_K(n):
    return sorted(range(n), key=key_K)

def threaded_K(n):
    total = 0
    for i in range(n):
        total += i
    return total

def starts_K(n):
    thread = threading.Thread(target=threaded_K, args=(n,))
    thread.start()
    thread.join()
"#;

/// Functions whose instructions are in proportion to their argument.
const PROPORTIONAL: [&str; 8] = [
    "plain", "yields", "consumes", "deep", "raises", "catches", "key", "threaded",
];

fn run(python: &Path, script: &str, options: &[&str]) -> Recorded {
    let folder = tempfile::tempdir().expect("room");
    let file = folder.path().join("script.py");
    std::fs::write(&file, script).expect("room");
    let python = python.to_string_lossy();
    let program = [&*python, "-S", "-E", &*file.to_string_lossy()];
    let recorded = Recorded::new(options, &program);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    recorded
}

/// A count of each function, or of each line with its number, in the script.
fn counts(report: &Value, table: &str, event: &str) -> BTreeMap<String, u64> {
    let rows = report["python"][table].as_array().expect("Python ran");
    let mut counts = BTreeMap::new();
    let of_script = |row: &&Value| row["file"].as_str().unwrap_or("").ends_with("/script.py");
    for row in rows.iter().filter(of_script) {
        let mut name = row["function"].as_str().unwrap_or("").to_owned();
        if let Some(line) = row["line"].as_u64() {
            write!(name, ":{line}").expect("room");
        }
        let count = row["counts"][event].as_u64().unwrap_or(0);
        *counts.entry(name).or_default() += count;
    }
    counts
}

/// Number of the first line that contains a text.
fn line_of(script: &str, text: &str) -> usize {
    let at = script.lines().position(|line| line.contains(text));
    1 + at.unwrap_or_else(|| panic!("no line has {text}"))
}

#[test]
fn twice_the_work_has_twice_the_instructions_in_functions_of_each_kind() {
    if !needs(&["python3"]) {
        return;
    }
    let n = 50 * drawn("n", 40, 80);
    let mut script = "import gc, threading\ngc.disable()\n".to_owned();
    for (suffix, times) in [("_1", 1), ("_2", 2)] {
        script += &KINDS.replace("_K", suffix);
        for kind in [
            "plain", "consumes", "recurses", "squares", "catches", "sorts", "starts",
        ] {
            // The interpreter specialises instructions as they warm up.
            writeln!(script, "{kind}{suffix}(100)").expect("room");
            writeln!(script, "{kind}{suffix}({})", n * times).expect("room");
        }
    }
    for (version, python) in interpreters() {
        let report = run(&python, &script, &[]).report();
        let found = counts(&report, "functions", "instructions");
        for kind in PROPORTIONAL {
            let [one, two] = ["_1", "_2"].map(|suffix| found[&format!("{kind}{suffix}")] as f64);
            // Both runs have the same warm-up.
            let expected = (2 * n + 100) as f64 / (n + 100) as f64;
            let off = (two / one / expected - 1.0).abs();
            // The allocator does not take the same time for every object.
            assert!(off < 0.06, "3.{version}: {kind}: {one} and {two}, n = {n}");
            assert!(one > (10 * n) as f64, "3.{version}: {kind}: {one}, n = {n}");
        }
        let lines = counts(&report, "lines", "instructions");
        let line = line_of(&script, "total ^= i * i");
        let loops = lines[&format!("plain_1:{line}")] + lines[&format!("plain_1:{}", line - 1)];
        let part = loops as f64 / found["plain_1"] as f64;
        assert!(
            part > 0.98,
            "3.{version}: {part} of plain_1 are in its loop"
        );
        let deep = lines[&format!("deep_1:{}", line_of(&script, "        deep_1(n - 1)"))];
        assert!(deep * 2 > found["deep_1"], "3.{version}: {lines:?}");
    }
}

/// Misses are in one line, calls into C in another one.
const WORK: &str = r#"
import gc
gc.disable()

def key(x):
    return x

def chase(order, items):
    total = 0
    for i in order:
        total += items[i][0]
    return total

def order_of(n):
    return [i * 7919 % n for i in range(n)]

def compare(texts):
    texts.sort(key=key)

def main():
    n = 40_009
    items = [[i] for i in range(n)]
    order = order_of(n)
    chase(order, items)
    chase(order, items)
    chase(order, items)
    compare(["x" * 500 + str(i * 31 % 211) for i in range(211)])

main()
"#;

#[test]
fn lines_have_the_misses_and_the_native_code_that_ran_for_them() {
    if !needs(&["python3"]) {
        return;
    }
    for (version, python) in interpreters() {
        let report = run(&python, WORK, &[]).report();
        let misses = counts(&report, "lines", "l1d.miss");
        let worst = format!("chase:{}", line_of(WORK, "items[i][0]"));
        let most = misses.iter().max_by_key(|&(_, count)| count);
        assert_eq!(
            most.map(|most| most.0),
            Some(&worst),
            "3.{version}: {misses:?}"
        );
        // Sorting calls the key first and then compares long texts, which is the caller's work.
        let functions = counts(&report, "functions", "l1d.miss");
        assert!(
            functions["compare"] > 100 * functions["key"],
            "3.{version}: {functions:?}"
        );
        let cycles: u64 = counts(&report, "lines", "cycles").values().sum();
        let all = report["totals"]["cycles"].as_u64().expect("a count");
        assert!(
            cycles * 2 > all && cycles < all,
            "3.{version}: {cycles} of {all}"
        );
    }
}

#[test]
fn end_of_the_interpreter_belongs_to_no_line() {
    if !needs(&["python3"]) {
        return;
    }
    let n = drawn("n", 20_000, 40_000);
    let script = format!("data = [[i] for i in range({n})]\nlast = 0\n");
    for (version, python) in interpreters() {
        let report = run(&python, &script, &[]).report();
        let lines = counts(&report, "lines", "instructions");
        let last = lines.get("<module>:2").copied().unwrap_or(0);
        // The interpreter frees the lists when it ends. Each takes tens of instructions.
        assert!(last < n, "3.{version}: {lines:?}");
        let of_lines: u64 = lines.values().sum();
        let all = report["totals"]["instructions"].as_u64().expect("a count");
        assert!(
            of_lines > 10 * n && of_lines + 10 * n < all,
            "3.{version}: {of_lines} of {all}"
        );
    }
}

#[test]
fn calls_of_python_are_between_the_native_ones() {
    if !needs(&["python3"]) {
        return;
    }
    let script = "
def key(x):
    return [x] * 4000

def sorts(n):
    return sorted(range(n), key=key)

sorts(500)
";
    for (version, python) in interpreters() {
        for with_native in [false, true] {
            let mut options = vec!["-e", "l1d.miss:97"];
            options.extend(with_native.then_some("-g"));
            let recorded = run(&python, script, &options);
            let mut export = memgauge();
            let export = export.args(["export", "-f", "folded"]);
            let output = export.arg(recorded.path()).output().expect("memgauge runs");
            assert!(output.status.success(), "{}", said(&output));
            let folded = String::from_utf8_lossy(&output.stdout).into_owned();
            let inner = folded
                .lines()
                .find(|line| line.contains(";key (script.py:3);"));
            let inner = inner.unwrap_or_else(|| panic!("3.{version}: {folded}"));
            let (outer, _) = inner.split_once(";key ").expect("found above");
            let outer: Vec<&str> = outer.split(';').collect();
            let at = |name| outer.iter().position(|&frame| frame == name);
            let module = at("<module> (script.py:8)").unwrap_or_else(|| panic!("{inner}"));
            let sorts = at("sorts (script.py:6)").unwrap_or_else(|| panic!("{inner}"));
            assert!(module < sorts, "3.{version}: {inner}");
            let native = outer.len() - 1 - sorts;
            assert_eq!(native > 0, with_native, "3.{version}: {inner}");
        }
    }
}

/// Whether the uncompressed file contains a text.
fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[test]
fn exports_of_stacks_have_the_calls_of_python() {
    if !needs(&["python3", "gzip"]) {
        return;
    }
    let script = "
def inner(n):
    return [0] * n

def outer():
    for i in range(60):
        inner(20000)

outer()
";
    for (version, python) in interpreters() {
        let recorded = run(&python, script, &["-g", "-e", "l1d.miss:97"]);
        let frames = [
            "<module> (script.py:9)",
            "outer (script.py:7)",
            "inner (script.py:3)",
        ];
        // Files and lines have columns of their own.
        let columns = ["\"outer\"", "\"inner\"", "/script.py\""];
        let formats = [("folded", frames), ("pprof", frames), ("firefox", columns)];
        for (format, texts) in formats {
            let path = recorded.folder.path().join(format);
            let mut export = memgauge();
            export.args(["export", "-f", format, "-o"]).arg(&path);
            let output = export.arg(recorded.path()).output().expect("memgauge runs");
            assert!(output.status.success(), "{}", said(&output));
            let mut bytes = std::fs::read(&path).expect("the export");
            if format == "pprof" {
                let unpacked = Command::new("gzip").arg("-dc").arg(&path).output();
                bytes = unpacked.expect("gzip runs").stdout;
            }
            for text in texts {
                assert!(contains(&bytes, text), "3.{version}: {format}: {text}");
            }
        }
    }
}

#[test]
fn report_says_why_lines_of_python_are_missing() {
    if !needs(&["python3"]) {
        return;
    }
    let script = "
import sys
total = 0
for i in range(int(sys.argv[1])):
    total += i
";
    let folder = tempfile::tempdir().expect("room");
    let file = folder.path().join("script.py");
    std::fs::write(&file, script).expect("room");
    let file = &*file.to_string_lossy();
    let program = ["python3", file, "400000"];
    let top_of = |recorded: &Recorded| {
        let output = memgauge().arg("report").arg(recorded.path()).output();
        let text = String::from_utf8_lossy(&output.expect("memgauge runs").stdout).into_owned();
        text.lines().take(20).collect::<Vec<_>>().join(" ")
    };
    let parts = Recorded::new(&["--sets", "1/2"], &program);
    let top = top_of(&parts);
    assert!(top.contains("Leave out --sets"), "{top}");

    let mut older = Command::new("python3.8");
    let older = older.args(["-c", "import sys; print(sys.executable)"]);
    let older = older
        .output()
        .map(|output| output.stdout)
        .unwrap_or_default();
    let older = String::from_utf8_lossy(&older).trim().to_owned();
    if !older.is_empty() {
        let recorded = Recorded::new(&[], &[&*older, file, program[2]]);
        let top = top_of(&recorded);
        assert!(top.contains("CPython 3.9 to 3.13"), "{top}");
    }

    let whole = Recorded::new(&[], &program);
    assert!(whole.report().get("python_without_lines").is_none());
}

#[test]
fn forked_child_has_lines_and_native_program_has_none() {
    if !needs(&["python3"]) {
        return;
    }
    let script = "
import os

def inside(n):
    total = 0
    for i in range(n):
        total += i
    return total

def forks():
    if os.fork() == 0:
        inside(20000)
        os._exit(0)
    os.wait()

forks()
";
    for (version, python) in interpreters() {
        let report = run(&python, script, &[]).report();
        let found = counts(&report, "functions", "instructions");
        assert!(found["inside"] > 200_000, "3.{version}: {found:?}");
    }
    let native = Recorded::new(&[], &["true"]).report();
    assert!(native.get("python").is_none());
}

/// Functions that keep memory, each on a line of its own that `# keeps KIND` marks. The amounts are
/// those of the arguments.
const ALLOCATES: &str = r#"
import gc, sys
gc.disable()
traced = sys.argv[1:] == ["traced"]
if traced:
    import tracemalloc
    tracemalloc.start()

def arrays(n, size):
    kept = []
    for _ in range(n):
        kept.append(bytearray(size))  # keeps arrays
    return kept

def lists(n, size):
    kept = [None] * n
    for i in range(n):
        kept[i] = [i] * size  # keeps lists
    return kept

def texts(n, size):
    kept = [None] * n
    for i in range(n):
        kept[i] = "x" * (size + i)  # keeps texts
    return kept

class Node:
    __slots__ = ("value", "next")

def nodes(n):
    first = None
    while n:
        node = Node()  # keeps nodes
        node.next = first
        first = node
        n -= 1
    return first

kept = [arrays(N, SIZE), lists(N, SIZE), texts(N, SIZE), nodes(20 * N)]
if traced:
    for line in tracemalloc.take_snapshot().statistics("lineno"):
        frame = line.traceback[0]
        if frame.filename == __file__:
            print(frame.lineno, line.size)
"#;

/// Bytes in use at the peak by line of the script.
fn peak_by_line(report: &Value) -> BTreeMap<usize, u64> {
    let sites = report["heap"]["sites"].as_array().expect("allocations");
    let mut bytes = BTreeMap::new();
    for site in sites {
        let call = &site["calls"][site["named_by"].as_u64().unwrap_or(0) as usize];
        if call["file"].as_str().unwrap_or("").ends_with("/script.py") {
            let line = call["line"].as_u64().expect("a line") as usize;
            *bytes.entry(line).or_default() += site["at_peak_bytes"].as_u64().unwrap_or(0);
        }
    }
    bytes
}

#[test]
fn memory_belongs_to_the_line_of_python_that_allocates_it() {
    if !needs(&["python3"]) {
        return;
    }
    let n = drawn("n", 50, 200);
    let size = drawn("size", 600, 3000);
    let script = ALLOCATES.replace("SIZE", &size.to_string());
    let script = script.replace("N)", &format!("{n})"));
    let script = script.replace("N,", &format!("{n},"));
    for (version, python) in interpreters() {
        let report = run(&python, &script, &[]).report();
        let found = peak_by_line(&report);
        let folder = tempfile::tempdir().expect("room");
        let file = folder.path().join("script.py");
        std::fs::write(&file, &script).expect("room");
        let mut traced = Command::new(&python);
        let traced = traced.args(["-S", "-E"]).arg(&file).arg("traced").output();
        let traced = String::from_utf8(traced.expect("Python runs").stdout).expect("text");
        let traced: BTreeMap<usize, u64> = traced
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(line, bytes)| (line.parse().expect("a line"), bytes.parse().expect("bytes")))
            .collect();
        for (kind, least) in [
            ("arrays", n * size),
            ("lists", n * size * 8),
            ("texts", n * size + n * (n - 1) / 2),
            ("nodes", 20 * n * 32),
        ] {
            let line = line_of(&script, &format!("# keeps {kind}"));
            let bytes = found.get(&line).copied().unwrap_or(0);
            let of_python = traced.get(&line).copied().unwrap_or(0);
            let what = format!("{kind} of {version}: {bytes} found, {of_python} traced");
            assert!(bytes >= least, "{what}, at least {least}");
            // CPython keeps some freed objects, which either side may count for another line.
            assert!(bytes.abs_diff(of_python) <= of_python / 50 + 2048, "{what}");
        }
        let sites = report["heap"]["sites"].as_array().expect("allocations");
        let arrays = sites.iter().find(|site| {
            let name = site["name"].as_str().unwrap_or("");
            name.starts_with("arrays at script.py:")
        });
        let arrays = arrays.unwrap_or_else(|| panic!("no arrays in {sites:?}"));
        let calls = arrays["calls"].as_array().expect("calls");
        let names: Vec<&str> = calls
            .iter()
            .filter_map(|call| call["function"].as_str())
            .collect();
        let at = names
            .iter()
            .position(|name| *name == "arrays")
            .expect("a call");
        // The caller in Python follows, and no interpreter is between.
        assert_eq!(names[at + 1..], ["<module>"], "{names:?}");
        assert!(
            names
                .iter()
                .all(|name| !name.starts_with("_PyEval_EvalFrame")),
            "{names:?}"
        );
    }
}
