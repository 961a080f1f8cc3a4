//! Call stacks: against a program whose calls are known, and against perf.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use memgauge_recording::{Recording, Selection};
use memgauge_testing::{Need, skipped};
use memgauge_trace::{Frame, FrameId, Sample};
use serde_json::Value;
use tempfile::TempDir;

use harness::{memgauge, needs};

/// The program of `calls/calls.c`, in a folder that goes with the first value.
fn program() -> Option<(TempDir, PathBuf)> {
    if !needs(&["cc"]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("room");
    let program = folder.path().join("calls");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls/calls.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O0", "-g", "-fno-omit-frame-pointer", "-Wall", "-Werror"]);
    let status = compiler.arg(source).arg("-o").arg(&program).status();
    assert!(status.expect("cc runs").success());
    Some((folder, program))
}

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A recording of the program with its stacks; `None` where timers cannot sample.
fn recorded(folder: &Path, options: &[&str], program: &Path) -> Option<PathBuf> {
    let path = folder.join("run.mg");
    let mut command = memgauge();
    command.arg("record").args(options).arg("-qo").arg(&path);
    let output = command.arg("--").arg(program).output();
    let output = output.expect("memgauge runs");
    if output.status.code() == Some(125) {
        skipped(Need::Kernel, said(&output));
        return None;
    }
    assert!(output.status.success(), "{}", said(&output));
    Some(path)
}

fn json(path: &Path) -> Value {
    let mut command = memgauge();
    let output = command.args(["report", "--json"]).arg(path).output();
    let output = output.expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(path: &Path, verb: &[&str]) -> String {
    let mut command = memgauge();
    let output = command
        .args(verb)
        .arg(path)
        .output()
        .expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Functions from `main` on, outermost first, with the events of each chain.
fn chains(tree: &Value) -> BTreeMap<Vec<String>, u64> {
    let nodes = tree["nodes"].as_array().expect("nodes");
    let mut chains = BTreeMap::new();
    for node in nodes.iter().filter(|n| n["own_events"].as_u64() > Some(0)) {
        let mut names = Vec::new();
        let mut at = Some(node);
        while let Some(node) = at {
            names.push(node["function"].as_str().expect("a name").to_owned());
            at = node["caller"]
                .as_u64()
                .map(|caller| &nodes[caller as usize]);
        }
        names.reverse();
        let main = names.iter().position(|name| name == "main");
        let names = names.split_off(main.unwrap_or(0));
        *chains.entry(names).or_default() += node["own_events"].as_u64().expect("a count");
    }
    chains
}

#[test]
fn a_timers_samples_have_the_programs_calls() {
    let Some((folder, program)) = program() else {
        return;
    };
    let options = ["--source", "clock", "-F", "4000", "--call-graph", "fp"];
    let Some(path) = recorded(folder.path(), &options, &program) else {
        return;
    };
    let report = json(&path);
    let tree = &report["calls"][0];
    let chains = chains(tree);
    let sum = |names: &[&str]| chains.get(&names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>());
    let deep = sum(&["main", "deep", "deep", "deep", "deep", "work"]).copied();
    let direct = sum(&["main", "direct", "work"]).copied();
    let (deep, direct) = (deep.expect("deep"), direct.expect("direct"));
    let all = tree["events"].as_u64().expect("a count");
    // All but the start, and the moments in which a function makes its frame.
    assert!(deep + direct > all / 10 * 9, "{deep} + {direct} of {all}");
    // One way has twice the work of the other.
    let ratio = deep as f64 / direct as f64;
    assert!((1.6..2.5).contains(&ratio), "{ratio}");
    let own: u64 = chains.values().sum();
    assert_eq!(own, all);
    // The same sums in a folded export and in the text.
    let folded = text(&path, &["export", "-f", "folded"]);
    let folded: u64 = folded
        .lines()
        .map(|line| {
            line.rsplit(' ')
                .next()
                .and_then(|n| n.parse::<u64>().ok())
                .expect("a count")
        })
        .sum();
    assert_eq!(folded, all);
    let shown = text(&path, &["report"]);
    assert!(
        shown.contains("< deep ×4 < main") || shown.contains("< deep x4 < main"),
        "{shown}"
    );
    assert!(shown.contains("< direct < main"), "{shown}");
}

#[test]
fn go_reads_the_chains_of_a_profile() {
    let Some((folder, program)) = program() else {
        return;
    };
    let options = ["-e", "task-clock", "-g"];
    let Some(path) = recorded(folder.path(), &options, &program) else {
        return;
    };
    let profile = folder.path().join("pprof");
    let mut command = memgauge();
    command.args(["export", "-f", "pprof", "-o"]).arg(&profile);
    assert!(
        command
            .arg(&path)
            .output()
            .expect("memgauge runs")
            .status
            .success()
    );
    let mut go = Command::new("go");
    go.args(["tool", "pprof", "-traces"]).arg(&profile);
    let Ok(output) = go.output() else {
        return skipped(Need::Tool, "needs go");
    };
    assert!(output.status.success(), "{}", said(&output));
    let traces = String::from_utf8_lossy(&output.stdout);
    let words: Vec<&str> = traces.split_whitespace().collect();
    let chain = ["work", "deep", "deep", "deep", "deep", "main"];
    assert!(words.windows(chain.len()).any(|w| w == chain), "{traces}");
}

/// The chain of each sample as perf dumps it: the address of the sample, then where calls
/// return to.
fn by_perf(file: &Path) -> Option<Vec<Vec<u64>>> {
    let mut perf = Command::new("perf");
    perf.args(["script", "-D", "-i"]).arg(file);
    let output = perf.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let word = |line: &str| {
        let (number, word) = line.strip_prefix("..... ")?.split_once(": ")?;
        number.trim().parse::<u64>().ok()?;
        u64::from_str_radix(word.trim(), 16).ok()
    };
    let chains = text.split("... FP chain").skip(1).map(|chain| {
        let words = chain.lines().skip(1).map_while(word);
        // Others say whose addresses follow.
        words.filter(|&word| word < 1 << 48).collect()
    });
    Some(chains.collect())
}

#[test]
fn imported_stacks_are_perfs() {
    let Some((folder, program)) = program() else {
        return;
    };
    let file = folder.path().join("perf.data");
    let mut perf = Command::new("perf");
    perf.args([
        "record",
        "-q",
        "-e",
        "cpu-clock:u",
        "-F",
        "2000",
        "--call-graph",
        "fp",
        "-o",
    ]);
    let status = perf.arg(&file).arg(&program).output();
    if !status.is_ok_and(|output| output.status.success()) {
        return skipped(Need::Tool, "needs perf, and events that it can sample");
    }
    let mut expected = by_perf(&file).expect("perf reads it");
    let path = folder.path().join("imported.mg");
    let mut command = memgauge();
    command.args(["import", "-o"]).arg(&path).arg(&file);
    assert!(command.output().expect("memgauge runs").status.success());
    let recording = Recording::open(&path).expect("it opens");
    let frames: Vec<Frame> = recording
        .rows::<Frame>(&Selection::all())
        .flat_map(|batch| batch.expect("sound"))
        .collect();
    let samples = recording
        .rows::<Sample>(&Selection::all())
        .flat_map(|batch| batch.expect("sound"));
    let mut found: Vec<Vec<u64>> = samples
        .map(|sample| {
            let mut chain = vec![sample.ip.0];
            let mut at = sample.caller;
            while let Some(FrameId(id)) = at {
                let frame = &frames[id as usize];
                assert_eq!(frame.id.0, id);
                // perf prints where the call returns to.
                chain.push(frame.ip.0 + 1);
                at = frame.caller;
            }
            chain
        })
        .collect();
    assert!(found.len() > 100, "{} samples", found.len());
    assert_eq!(found.len(), expected.len());
    found.sort();
    expected.sort();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
}

/// Half of the lines of what one way reads: shares of the misses are known.
#[test]
fn the_emulator_knows_all_calls() {
    let Some((folder, program)) = program() else {
        return;
    };
    if !needs(&[]) {
        return;
    }
    let path = folder.path().join("emulated.mg");
    let mut command = memgauge();
    command.args([
        "record",
        "--source",
        "emulate",
        "--machine",
        "i5-6600k",
        "-g",
    ]);
    command.args(["-e", "l1d.miss:1009", "-qo"]).arg(&path);
    let output = command.arg("--").arg(&program).output();
    let output = output.expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    let report = json(&path);
    let tree = &report["calls"][0];
    assert_eq!(tree["event"], "l1d.miss");
    let chains = chains(tree);
    let sum = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        *chains
            .get(&names)
            .unwrap_or_else(|| panic!("no {names:?} in {chains:?}")) as f64
    };
    // 4096 and 2048 lines a turn, 1000 turns, of which the first level holds 512.
    let deep = sum(&["main", "deep", "deep", "deep", "deep", "work"]);
    let direct = sum(&["main", "direct", "work"]);
    for (found, expected) in [(deep, 4_096_000.0), (direct, 2_048_000.0)] {
        assert!(
            (found / expected - 1.0).abs() < 0.01,
            "{found} of {expected}"
        );
    }
    // Not one sample of the program's own functions is anywhere else.
    let known = [
        vec!["main", "deep", "deep", "deep", "deep", "work"],
        vec!["main", "direct", "work"],
    ];
    for chain in chains
        .keys()
        .filter(|chain| chain.iter().any(|name| name == "work"))
    {
        assert!(known.iter().any(|names| names == chain), "{chain:?}");
    }
}

#[test]
fn the_emulator_refuses_what_it_does_not_need_in_a_line() {
    let refused: [(&[&str], &str); 3] = [
        (&["--call-graph=fp"], "record them with -g"),
        (&["-g", "--max-stack", "9"], "no use for --max-stack"),
        (&["-g", "--sets", "1/8"], "leave out --sets or -g"),
    ];
    for (options, fix) in refused {
        let mut command = memgauge();
        command
            .args(["record", "--source", "emulate"])
            .args(options);
        let output = command.args(["-qo", "/dev/null/no", "--", "true"]).output();
        let output = output.expect("memgauge runs");
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(fix), "{}", said(&output));
    }
}
