//! Imports of text files of other tools have the sums that the tools' own readers print.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::{PATH, Recorded, memgauge, needs};
use memgauge_testing::{Need, Random, skipped};
use serde_json::Value;
use tempfile::TempDir;

/// Runs `ls` under a tool of valgrind; the file that the tool writes.
fn valgrind(folder: &TempDir, tool: &str, options: &[&str]) -> Option<PathBuf> {
    let file = folder.path().join(format!("{tool}.out"));
    let out = match tool {
        "lackey" => format!("--log-file={}", file.display()),
        tool => format!("--{tool}-out-file={}", file.display()),
    };
    let mut command = Command::new("valgrind");
    command
        .env_clear()
        .env("PATH", PATH)
        .arg(format!("--tool={tool}"));
    let output = command
        .arg(out)
        .args(options)
        .args(["/bin/ls", "/"])
        .output();
    let Ok(output) = output else {
        skipped(Need::Tool, "needs valgrind");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    Some(file)
}

fn import(file: &Path) -> (PathBuf, Output) {
    let recording = file.with_extension("mg");
    let mut command = memgauge();
    let output = command
        .arg("import")
        .arg(file)
        .arg("-o")
        .arg(&recording)
        .output();
    (recording, output.expect("memgauge runs"))
}

fn imported(file: &Path) -> Value {
    let (recording, output) = import(file);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    report(&recording)
}

/// With all rows.
fn report(recording: &Path) -> Value {
    let mut command = memgauge();
    command
        .arg("report")
        .arg(recording)
        .args(["--json", "--rows", "1000000"]);
    let output = command.output().expect("memgauge runs");
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// Returns the output of a reader.
fn reads(tool: &str, args: &[&str], file: &Path) -> String {
    let mut command = Command::new(tool);
    let output = command
        .env_clear()
        .env("PATH", PATH)
        .args(args)
        .arg(file)
        .output();
    let output = output.expect("a tool of valgrind");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The numbers at the beginning of a line, without shares; and what follows them.
fn numbers(line: &str, columns: usize) -> Option<(Vec<u64>, String)> {
    let mut rest = line.trim_start();
    let mut numbers = Vec::new();
    while numbers.len() < columns {
        let (word, after) = rest.split_once(char::is_whitespace)?;
        numbers.push(
            word.replace(',', "")
                .parse()
                .or_else(|e| match word {
                    "." => Ok(0),
                    _ => Err(e),
                })
                .ok()?,
        );
        rest = after.trim_start();
        if rest.starts_with('(') {
            rest = rest.split_once(')')?.1.trim_start();
        }
    }
    Some((numbers, rest.to_owned()))
}

/// The events that files of valgrind with caches have, as the recording names them.
const EVENTS: [(&str, &str); 9] = [
    ("Ir", "instructions"),
    ("Dr", "loads"),
    ("Dw", "stores"),
    ("D1mr", "l1d.load_miss"),
    ("D1mw", "l1d.store_miss"),
    ("I1mr", "I1mr"),
    ("ILmr", "ILmr"),
    ("DLmr", "DLmr"),
    ("DLmw", "DLmw"),
];

/// Checks totals against the file's, and instructions by function against what a tool printed.
/// `name` takes the function out of `FILE:FUNCTION`.
fn check(text: &str, file: &Path, report: &Value, name: impl Fn(&str) -> String) {
    let head = text
        .lines()
        .find_map(|line| line.strip_prefix("Events shown:"));
    let events: Vec<&str> = head.expect("events").split_whitespace().collect();
    assert!(events.len() >= 9, "{events:?}");
    let rows = text.lines().filter_map(|line| numbers(line, events.len()));
    let mut functions: BTreeMap<String, u64> = BTreeMap::new();
    for (costs, rest) in rows.filter(|(_, rest)| rest.contains(':')) {
        *functions.entry(name(&rest)).or_default() += costs[0];
    }
    // callgrind's `summary` has an instruction or two that no line has, its `totals` has not.
    let written = std::fs::read_to_string(file).expect("a text");
    let sums = |key: &str| {
        let line = written.lines().find_map(|line| line.strip_prefix(key));
        let words = line?.split_whitespace();
        words
            .map(|word| word.parse().ok())
            .collect::<Option<Vec<u64>>>()
    };
    let totals = sums("totals:").or_else(|| sums("summary:")).expect("sums");
    let events: Vec<&str> = (written
        .lines()
        .find_map(|line| line.strip_prefix("events:")))
    .expect("events")
    .split_whitespace()
    .collect();
    for (event, count) in events.iter().zip(&totals) {
        let known = EVENTS
            .iter()
            .find(|known| known.0 == *event)
            .expect("an event");
        assert_eq!(report["totals"][known.1], *count, "{event}");
    }
    let total = |names: [&str; 2]| -> u64 {
        let column = |name| {
            events
                .iter()
                .position(|event| *event == name)
                .expect("a column")
        };
        names.map(|name| totals[column(name)]).iter().sum()
    };
    assert_eq!(report["totals"]["l1d.miss"], total(["D1mr", "D1mw"]));
    assert_eq!(report["totals"]["llc.miss"], total(["DLmr", "DLmw"]));
    assert_eq!(report["levels"][0]["lookups"], total(["Dr", "Dw"]));
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for row in report["hot"]["functions"]["rows"].as_array().expect("rows") {
        let function = row["function"].as_str().expect("a name").to_owned();
        *found.entry(function).or_default() += row["counts"]["instructions"].as_u64().unwrap_or(0);
    }
    assert!(found.len() > 50, "{found:?}");
    // One row of several functions.
    found.remove("[dynamic loader and startup]");
    for (function, instructions) in &found {
        assert_eq!(
            functions.get(function),
            Some(instructions),
            "{function}: {functions:?}"
        );
    }
}

/// Returns the output of `cg_annotate` by function, with the file in each line. From valgrind 3.21 on it
/// prints the functions of a file below its name.
fn by_function(text: &str) -> String {
    let Some((head, rest)) = text.split_once("-- File:function summary") else {
        return text.to_owned();
    };
    let rows = rest.split_once("\n-- ").map_or(rest, |(rows, _)| rows);
    let of_function = |line: &str| match (line.strip_prefix("< "), line.rsplit_once("  ")) {
        (Some(file), _) if file.ends_with(':') => None,
        (Some(both), _) => Some(both.to_owned()),
        (None, Some((costs, function))) => Some(format!("{costs}  file:{function}")),
        (None, None) => None,
    };
    let rows: Vec<String> = rows.lines().filter_map(of_function).collect();
    format!("{head}\n{}", rows.join("\n"))
}

#[test]
fn cachegrinds_costs_are_those_of_cg_annotate() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(file) = valgrind(&folder, "cachegrind", &["--cache-sim=yes"]) else {
        return;
    };
    let report = imported(&file);
    let text = reads("cg_annotate", &["--auto=no", "--threshold=0"], &file);
    check(&by_function(&text), &file, &report, |place| {
        place
            .split_once(':')
            .expect("a place")
            .1
            .replace("???", "[unknown]")
    });
    let first = &report["hot"]["lines"]["rows"][0];
    assert!(first["line"].is_u64() || first["file"].is_null(), "{first}");
    let lacks = report["import"]["lacks"].to_string();
    assert!(lacks.contains("addresses of data"), "{lacks}");
    assert!(lacks.contains("names of modules"), "{lacks}");
}

#[test]
fn callgrinds_own_costs_are_those_of_callgrind_annotate() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // With and without addresses: positions are compressed in other ways.
    for options in [
        &["--cache-sim=yes"][..],
        &["--cache-sim=yes", "--dump-instr=yes", "--collect-jumps=yes"],
    ] {
        let Some(file) = valgrind(&folder, "callgrind", options) else {
            return;
        };
        std::fs::remove_dir_all(file.with_extension("mg")).ok();
        let report = imported(&file);
        let text = reads(
            "callgrind_annotate",
            &["--auto=no", "--threshold=100"],
            &file,
        );
        check(&text, &file, &report, |place| {
            let function = place.split_once(':').expect("a place").1;
            // The object file follows in brackets; a function may be `name'2`.
            let end = function.rfind(" [").unwrap_or(function.len());
            function[..end].to_owned()
        });
        let losses = report["losses"].to_string();
        assert!(
            losses.contains("calls and their inclusive costs"),
            "{losses}"
        );
        let modules = report["hot"]["functions"]["rows"].to_string();
        assert!(modules.contains("libc.so.6"), "{modules}");
        let lacks = report["import"]["lacks"].to_string();
        assert!(!lacks.contains("names of modules"), "{lacks}");
    }
}

/// An exported recording is imported again with its names of events, functions, files and lines.
#[test]
fn an_export_of_callgrinds_format_is_imported_as_it_was() {
    if !needs(&[]) {
        return;
    }
    let recorded = Recorded::new(&["--machine", "i5-6600k"], &["/bin/ls", "/"]);
    let file = recorded.folder.path().join("callgrind.out");
    let mut command = memgauge();
    command
        .arg("export")
        .arg(recorded.path())
        .args(["-f", "callgrind", "-o"]);
    assert!(
        command
            .arg(&file)
            .output()
            .expect("memgauge runs")
            .status
            .success()
    );
    let (before, after) = (report(&recorded.path()), imported(&file));
    let rows = |report: &Value| {
        let mut sums: BTreeMap<[String; 4], BTreeMap<String, u64>> = BTreeMap::new();
        for row in report["hot"]["lines"]["rows"].as_array().expect("rows") {
            // The format does not have the functions that a line is inlined into.
            let place = ["module", "function", "file", "line"].map(|key| row[key].to_string());
            let sums = sums.entry(place).or_default();
            for (event, count) in row["counts"].as_object().expect("counts") {
                *sums.entry(event.clone()).or_default() += count.as_u64().expect("a count");
            }
        }
        sums
    };
    let (before, after) = (rows(&before), rows(&after));
    assert!(before.len() > 20);
    // Lines without a number are one place of their function there, several here.
    for (place, counts) in before.iter().filter(|(place, _)| place[3] != "null") {
        assert_eq!(after.get(place), Some(counts), "{place:?}");
    }
}

#[test]
fn lackeys_accesses_are_counted_and_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(file) = valgrind(&folder, "lackey", &["--trace-mem=yes"]) else {
        return;
    };
    let report = imported(&file);
    let text = std::fs::read_to_string(&file).expect("a text");
    let lines = |head: &str| text.lines().filter(|line| line.starts_with(head)).count();
    let [instructions, loads, stores, modifies] = ["I  ", " L ", " S ", " M "].map(lines);
    assert!(instructions > 100_000 && modifies > 100);
    let expected = [
        ("instructions", instructions),
        ("loads", loads + modifies),
        ("stores", stores + modifies),
        ("modifies", modifies),
    ];
    for (event, count) in expected {
        assert_eq!(report["totals"][event], count, "{event}");
    }
    let sampled: BTreeMap<_, _> = (report["sampling"]["events"]
        .as_array()
        .expect("events")
        .iter())
    .map(|event| {
        (
            event["event"].as_str().expect("a name"),
            event["samples"].as_u64(),
        )
    })
    .collect();
    assert_eq!(
        sampled["loads"],
        Some((loads + modifies) as u64),
        "{sampled:?}"
    );
    assert_eq!(sampled["stores"], Some(stores as u64));
    assert_eq!(report["run"]["duration_ns"], instructions);
    let problems = |report: &Value| report["import"]["problems"].clone();
    assert_eq!(problems(&report), Value::Array(Vec::new()));
    let half = text.lines().take(text.lines().count() / 2);
    let half: String = half.map(|line| format!("{line}\n")).collect();
    // A file of its own: an import does not replace the recording of another one.
    let cut = folder.path().join("cut.out");
    std::fs::write(&cut, half).expect("a file");
    let (recording, output) = import(&cut);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let told = problems(&self::report(&recording)).to_string();
    assert!(told.contains("it may be truncated"), "{told}");
}

/// The lines are DynamoRIO's example of the view, with one of each kind more.
#[test]
fn drcachesims_view_is_read() {
    const VIEW: &str = "Output format:
<--record#-> <--instr#->: <---tid---> <record details>
------------------------------------------------------------
           1           0:     2765542 <marker: version 5>
       47444       37769:     2765543 ifetch       6 byte(s) @ 0x0000000000404a78 0f 84 5b 01 00 00    jz     $0x0000000000404bd9 (untaken)
       47445       37770:     2765543 ifetch       5 byte(s) @ 0x0000000000404a7e 48 8b 5c 24 08       mov    0x08(%rsp)[8byte] -> %rbx
       47446       37770:     2765543 read         8 byte(s) @ 0x00007fdf64e2adc8 by PC 0x0000000000404a7e
       47447       37771:     2765543 ifetch       5 byte(s) @ 0x0000000000404a83 be 18 00 00 00       mov    $0x00000018 -> %esi
       47448       37771:  W0.T2765544 write        8 byte(s) @ 0x00007fdf64e2adfc by PC 0x0000000000404a83
View tool results:
               3 : total instructions
";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("view.txt");
    std::fs::write(&file, VIEW).expect("a file");
    let report = imported(&file);
    for (event, count) in [
        ("instructions", 3),
        ("loads", 1),
        ("stores", 1),
        ("splits", 1),
    ] {
        assert_eq!(report["totals"][event], count, "{event}");
    }
    let tids: Vec<&Value> = (report["threads"].as_array().expect("threads").iter())
        .map(|thread| &thread["tid"])
        .collect();
    assert_eq!(tids, [2_765_543, 2_765_544]);
}

/// A view with random loads and stores, and the same accesses as lackey prints them.
fn random_accesses() -> (String, String) {
    let mut random = Random::of_test("accesses");
    let (mut view, mut lackey) = (String::from("Output format:\n"), String::new());
    for record in 1..3000 {
        let tid = 7 + random.below(2);
        // Some lie in two lines.
        let (address, bytes) = (0x7f00_0000 + random.below(1 << 13), 1 << random.below(4));
        let (name, mark) = [("read ", 'L'), ("write", 'S')][random.index(3) / 2];
        view += &format!(
            "{record:12} {record:12}: W0.T{tid} {name} {bytes:8} byte(s) @ {address:#018x} by PC \
             0x0000000000404a7e\n"
        );
        lackey += &format!(" {mark} {address:x},{bytes}\n");
    }
    (view, lackey)
}

/// All loads and stores of a view are references, as they are of the same list.
#[test]
fn a_curve_of_an_imported_view_is_that_of_its_accesses() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (view, lackey) = random_accesses();
    let file = folder.path().join("view.txt");
    std::fs::write(&file, view).expect("a view");
    let list = folder.path().join("list");
    std::fs::write(&list, lackey).expect("a list");
    let (recording, output) = import(&file);
    assert!(output.status.success(), "{output:?}");
    let curve = |input: &Path| {
        let mut command = memgauge();
        let output = command
            .args(["mrc", "--json", "--full"])
            .arg(input)
            .output()
            .expect("memgauge runs");
        assert!(output.status.success(), "{output:?}");
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let curve = &json["curves"][0];
        assert_eq!(curve["note"], Value::Null);
        assert_eq!(curve["provenance"], "exact");
        (curve["references"].clone(), curve["points"].clone())
    };
    assert_eq!(curve(&recording), curve(&list));
}

#[test]
fn text_that_is_cut_off_or_of_no_tool_says_so() {
    const PROFILE: &str = "events: Ir\nfl=a.c\nfn=f\n1 10\n2 x\n3 5\n";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("a file");
        let (_, output) = import(&file);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, text) = said("cut", PROFILE);
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("truncated") && text.contains("line 5"),
        "{text}"
    );
    let (code, text) = said("sums", &format!("{PROFILE}summary: 16\n"));
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("differ from the totals in the file"),
        "{text}"
    );
    let (code, text) = said("empty", "events: Ir\nsummary: 0\n");
    assert_eq!(code, Some(125), "{text}");
    assert!(
        text.contains("has no costs") && text.lines().count() == 1,
        "{text}"
    );
    let (code, text) = said("none", "Hello, world\n");
    assert_eq!(code, Some(125), "{text}");
    assert!(
        text.contains("failed to import") && text.contains("callgrind"),
        "{text}"
    );
    let (code, text) = said("wide", &format!("events: Ir\nfn={}\n", "x".repeat(2 << 20)));
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("line 2 is longer"), "{text}");
}
