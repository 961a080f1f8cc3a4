//! Call stacks are compared with those of a program with known calls and with perf's.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use memgauge_recording::{Recording, Row, Selection};
use memgauge_testing::{Need, skipped};
use memgauge_trace::{Frame, FrameId, Module, Sample};
use serde_json::Value;
use tempfile::TempDir;

use harness::{memgauge, needs, said};

/// The program of `calls/calls.c`, in a folder that goes with the first value.
fn program() -> Option<(TempDir, PathBuf)> {
    compiled(&["-O0", "-fno-omit-frame-pointer"])
}

/// The same program without frame pointers, as compilers build programs by default.
fn optimised() -> Option<(TempDir, PathBuf)> {
    compiled(&["-O2", "-fomit-frame-pointer", "-DTURNS=20000"])
}

fn compiled(options: &[&str]) -> Option<(TempDir, PathBuf)> {
    if !needs(&["cc"]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("room");
    let program = folder.path().join("calls");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls/calls.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-g", "-Wall", "-Werror"]).args(options);
    let status = compiler.arg(source).arg("-o").arg(&program).status();
    assert!(status.expect("cc runs").success());
    Some((folder, program))
}

/// A recording of the program with its stacks. `None` if timers cannot sample here.
fn recorded(folder: &Path, options: &[&str], program: &Path) -> Option<PathBuf> {
    let mut command = Command::new(program);
    recorded_command(folder, options, &mut command)
}

fn recorded_command(folder: &Path, options: &[&str], run: &mut Command) -> Option<PathBuf> {
    let path = folder.join("run.mg");
    let mut command = memgauge();
    command.arg("record").args(options).arg("-fqo").arg(&path);
    command.arg("--").arg(run.get_program());
    let output = command.args(run.get_args()).output();
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
    // One path has twice the work of the other. A busy machine disturbs both.
    let ratio = deep as f64 / direct as f64;
    assert!((1.2..4.0).contains(&ratio), "{ratio}");
    let own: u64 = chains.values().sum();
    assert_eq!(own, all);
    // The folded export and the text have the same sums.
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

/// The chain of each sample as perf dumps it: the address of the sample, then the return addresses.
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
        // The largest words are markers of the kernel (PERF_CONTEXT_MAX). It may end a chain with 0.
        // Other impossible addresses come from code that uses the frame pointer for data.
        words
            .filter(|&word| word != 0 && word < u64::MAX - 4094)
            .collect()
    });
    Some(chains.collect())
}

fn rows<R: Row>(path: &Path) -> Vec<R> {
    let recording = Recording::open(path).expect("it opens");
    let batches = recording.rows::<R>(&Selection::all());
    batches.flat_map(|batch| batch.expect("sound")).collect()
}

/// The chain of each sample of a recording: its address, then those of the calls.
fn recorded_chains(path: &Path) -> Vec<Vec<u64>> {
    let frames = rows::<Frame>(path);
    let samples = rows::<Sample>(path).into_iter();
    samples
        .map(|sample| {
            let mut chain = vec![sample.ip.0];
            let mut at = sample.caller;
            while let Some(FrameId(id)) = at {
                let frame = &frames[id as usize];
                assert_eq!(frame.id.0, id);
                chain.push(frame.ip.0);
                at = frame.caller;
            }
            chain
        })
        .collect()
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
    let mut found: Vec<Vec<u64>> = recorded_chains(&path);
    for chain in &mut found {
        // perf prints return addresses.
        chain.iter_mut().skip(1).for_each(|call| *call += 1);
    }
    assert!(found.len() > 100, "{} samples", found.len());
    assert_eq!(found.len(), expected.len());
    found.sort();
    expected.sort();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
}

/// Returns the samples of both paths to the work, and those of all samples with callers.
fn ways(path: &Path) -> (u64, u64, u64) {
    let report = json(path);
    let tree = &report["calls"][0];
    // If no sample has a caller, there is no tree.
    let chains = if tree.is_null() {
        BTreeMap::new()
    } else {
        chains(tree)
    };
    let sum = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|&n| n.to_owned()).collect();
        chains.get(&names).copied().unwrap_or(0)
    };
    let deep = sum(&["main", "deep", "deep", "deep", "deep", "work"]);
    let direct = sum(&["main", "direct", "work"]);
    (deep, direct, tree["events"].as_u64().unwrap_or(0))
}

#[test]
fn copied_stacks_need_no_frame_pointers() {
    let Some((folder, program)) = optimised() else {
        return;
    };
    let clock = ["--source", "clock", "-F", "2000", "--call-graph"];
    let options = |way: &'static str| [&clock[..], &[way]].concat();
    // Also in a child that has its mappings from before its fork.
    let mut command = Command::new(&program);
    command.arg("fork");
    let Some(path) = recorded_command(folder.path(), &options("dwarf"), &mut command) else {
        return;
    };
    let (deep, direct, all) = ways(&path);
    assert!(deep + direct > all / 100 * 97, "{deep} + {direct} of {all}");
    let ratio = deep as f64 / direct as f64;
    assert!((1.2..4.0).contains(&ratio), "{ratio}");
    // Frame pointers do not help, because the program has none.
    let path = recorded(folder.path(), &options("fp"), &program).expect("as before");
    let (deep, direct, _) = ways(&path);
    assert!(deep + direct < all / 10, "{deep} + {direct} of {all}");
    // This copy is so short that it only contains the innermost frames. The report counts such
    // samples.
    let path = recorded(folder.path(), &options("dwarf,256"), &program).expect("as before");
    let report = json(&path);
    let losses = report["losses"].as_array().expect("losses");
    let short = |loss: &&Value| {
        loss["detail"]
            .as_str()
            .is_some_and(|d| d.contains("longer than"))
    };
    let lost = losses.iter().find(short).expect("counted")["count"].as_u64();
    let (deep, direct, _) = ways(&path);
    assert_eq!(deep, 0);
    // There is a sample every 500 µs. A third of them have direct calls, which are inside the copy.
    assert!(lost > Some(direct / 500_000), "{lost:?} of {direct} ns");
}

#[test]
fn imported_copies_are_unwound_as_by_perf() {
    let Some((folder, program)) = optimised() else {
        return;
    };
    let file = folder.path().join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock:u", "-F", "1000"]);
    perf.args(["--call-graph", "dwarf", "-o"]).arg(&file);
    let status = perf.arg(&program).arg("fork").output();
    if !status.is_ok_and(|output| output.status.success()) {
        return skipped(Need::Tool, "needs perf, and events that it can sample");
    }
    let mut script = Command::new("perf");
    script
        .args(["script", "--no-inline", "-F", "ip", "-i"])
        .arg(&file);
    let output = script.output().expect("perf reads it");
    let text = String::from_utf8_lossy(&output.stdout);
    // Some versions print return addresses, others the byte before.
    let chain = |sample: &str| -> Vec<u64> {
        let words = sample
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        words
            .filter_map(|word| u64::from_str_radix(word, 16).ok())
            .collect()
    };
    let expected = text.split("\n\n").map(chain).filter(|c| !c.is_empty());
    let mut expected: Vec<Vec<u64>> = expected.collect();
    let path = folder.path().join("imported.mg");
    let mut command = memgauge();
    command.args(["import", "-o"]).arg(&path).arg(&file);
    let output = command.output().expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    // Some versions print places in files, others addresses.
    let modules = rows::<Module>(&path);
    let in_file = |address: &u64| {
        let holds = |m: &&Module| m.executable && (m.start.0..m.end.0).contains(address);
        let module = modules.iter().find(holds).expect("mapped");
        address - module.start.0 + module.file_offset
    };
    let mut found = recorded_chains(&path);
    let addresses: BTreeSet<u64> = found.iter().map(|chain| chain[0]).collect();
    if !expected.iter().any(|chain| addresses.contains(&chain[0])) {
        found
            .iter_mut()
            .flatten()
            .for_each(|address| *address = in_file(address));
    }
    assert!(found.len() > 100, "{} samples", found.len());
    assert_eq!(found.len(), expected.len());
    found.sort();
    expected.sort();
    let same = |(a, b): (&Vec<u64>, &Vec<u64>)| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| b - a <= 1)
    };
    let equal = found
        .iter()
        .zip(&expected)
        .filter(|&pair| same(pair))
        .count();
    let differing = found.iter().zip(&expected).find(|&pair| !same(pair));
    assert_eq!(equal, found.len(), "{differing:x?}");
}

#[test]
fn a_size_that_the_kernel_does_not_take_is_refused() {
    for size in ["dwarf,7", "dwarf,65536", "dwarf,x", "lbr"] {
        let mut command = memgauge();
        command.args(["record", "--source", "clock", "--call-graph", size]);
        let output = command
            .args(["--", "true"])
            .output()
            .expect("memgauge runs");
        assert_eq!(output.status.code(), Some(2), "{size}");
        let said = said(&output);
        assert!(said.contains("--call-graph"), "{said}");
    }
}

/// One path reads twice as many lines as the other, so the shares of the misses are known.
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
    // On average, a turn reads 3584 and 1792 lines, in 1000 turns. The first level holds 512 lines.
    let deep = sum(&["main", "deep", "deep", "deep", "deep", "work"]);
    let direct = sum(&["main", "direct", "work"]);
    for (found, expected) in [(deep, 3_584_000.0), (direct, 1_792_000.0)] {
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

/// Under the emulator, with its samples' chains of calls.
fn emulated(folder: &Path, options: &[&str], program: &Path) -> Value {
    let path = folder.join("emulated.mg");
    let mut command = memgauge();
    command.args(["record", "--source", "emulate", "-g", "-qo"]);
    command.arg(&path).args(options).arg("--").arg(program);
    let output = command.output().expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    json(&path)
}

/// Computes in registers alone: nine tenths for one caller.
const COMPUTES: &str = "
__attribute__((noinline)) long spin(long n) {
    for (long i = 0; i < n; i++)
        __asm__ volatile (\"\" : \"+r\"(i));
    return n;
}
__attribute__((noinline)) long often(long n) { return spin(9 * n) + 1; }
__attribute__((noinline)) long rarely(long n) { return spin(n) + 2; }
int main(void) {
    long sum = 0;
    for (int turn = 0; turn < 40; turn++)
        sum += often(100000) + rarely(100000);
    return sum == 0;
}
";

#[test]
fn callers_of_code_without_misses_are_known_by_cycles() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let flags = ["-O1", "-g", "-fno-optimize-sibling-calls"];
    let program = memgauge_testing::compiled(folder.path(), "p.c", COMPUTES, &flags);
    let program = PathBuf::from(program.expect("gcc is installed"));
    let report = emulated(folder.path(), &[], &program);
    let tree = &report["calls"][0];
    assert_eq!(tree["event"], "cycles");
    let chains = chains(tree);
    let cycles_of = |caller: &str| {
        let names = ["main", caller, "spin"].map(str::to_owned).to_vec();
        chains.get(&names).copied().unwrap_or(0) as f64
    };
    let share = cycles_of("often") / (cycles_of("often") + cycles_of("rarely"));
    assert!((0.88..0.92).contains(&share), "{share} in {chains:?}");
}

/// A function that was left by a jump, an exception, another stack or a handler's end is no caller.
#[test]
fn functions_that_were_left_call_nothing() {
    if !needs(&["c++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let program = folder.path().join("stacks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls/stacks.cpp");
    let mut compiler = Command::new("c++");
    compiler.args(["-O1", "-g", "-o"]).arg(&program).arg(source);
    assert!(compiler.status().expect("c++ runs").success());
    let report = emulated(folder.path(), &["-e", "llc.miss:1"], &program);
    let chains = chains(&report["calls"][0]);
    let by_touch: BTreeMap<String, u64> = chains
        .iter()
        .filter(|(names, _)| names.last().is_some_and(|name| name.starts_with("touch")))
        .map(|(names, misses)| {
            let names: Vec<&str> = names.iter().filter_map(|n| n.split('(').next()).collect();
            (names.join(" "), *misses)
        })
        .collect();
    let expected = [
        ("main jumps touch", 200 * 10),
        ("main throws touch", 200 * 15),
        ("coroutine_one inner_one touch", 100 * 20),
        ("coroutine_two inner_two touch", 100 * 25),
        ("main coroutines touch", 500),
        ("handler touch", 100 * 30),
        ("main signals touch", 100 * 35),
        ("main rooms fill touch", 100 * 20),
        ("main rooms touch", 1000),
        ("main forks child touch", 3000),
    ];
    for (names, lines) in expected {
        let found = by_touch.get(names).copied().unwrap_or(0);
        // The variable that counts them misses now and then, too.
        assert!(
            (lines..=lines + lines / 100 + 3).contains(&found),
            "{names}: {found} of {lines} in {by_touch:?}"
        );
    }
    assert_eq!(by_touch.len(), expected.len(), "{by_touch:?}");
}

/// However far the parent has been read when the child begins.
#[test]
fn a_forked_child_goes_on_in_the_calls_of_the_fork() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let program = folder.path().join("forks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls/forks.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-fno-optimize-sibling-calls", "-o"]);
    let built = compiler.arg(&program).arg(source).status();
    assert!(built.expect("cc runs").success());
    let report = emulated(folder.path(), &["-e", "loads:97"], &program);
    let chains = chains(&report["calls"][0]);
    for calls in [
        &["outer"][..],
        &["outer", "middle"],
        &["outer", "middle", "inner"],
    ] {
        let expected: Vec<String> = [&["main"], calls, &["touch"]]
            .concat()
            .iter()
            .map(|&name| name.to_owned())
            .collect();
        let events = chains.get(&expected).copied().unwrap_or(0);
        // 16384 lines, and for each a load of the sum and of the pointer.
        assert!(
            (32_000..50_000).contains(&events),
            "{events} {expected:?} {chains:?}"
        );
    }
}

#[test]
fn goroutines_keep_their_callers() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("room");
    let program = folder.path().join("goroutines");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls/goroutines.go");
    let mut go = Command::new("go");
    match go.args(["build", "-o"]).arg(&program).arg(source).status() {
        Err(_) => return skipped(Need::Tool, "needs go"),
        Ok(status) => assert!(status.success()),
    }
    let report = emulated(folder.path(), &["-e", "loads:1009"], &program);
    let chains = chains(&report["calls"][0]);
    let sum = |caller: Option<&str>| -> u64 {
        let of_work = chains.iter().filter(|(names, _)| {
            names.last().is_some_and(|name| name == "main.work")
                && caller.is_none_or(|caller| names.iter().any(|name| name == caller))
        });
        of_work.map(|(_, events)| events).sum()
    };
    let [all, short, long] = [None, Some("main.short"), Some("main.long")].map(sum);
    let share = |part: u64| part as f64 / all as f64;
    assert!(
        (share(short) - 0.25).abs() < 0.02,
        "{short} of {all}: {chains:?}"
    );
    assert!(
        (share(long) - 0.75).abs() < 0.02,
        "{long} of {all}: {chains:?}"
    );
}

#[test]
fn the_emulator_refuses_what_it_does_not_need_in_a_line() {
    let refused: [(&[&str], &str); 4] = [
        (&["--call-graph=fp"], "record them with -g"),
        (&["--call-graph=dwarf"], "record them with -g"),
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
