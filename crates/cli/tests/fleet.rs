//! `memgauge fleet` with real and synthetic recordings, compared with other readers of the dataset.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;
#[path = "../../fleet/tests/synthetic/mod.rs"]
mod synthetic;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use harness::{Recorded, memgauge, needs};
use memgauge_testing::python_with;
use serde_json::Value;
use synthetic::{Fleet, Known};

fn run(folder: &Path, words: &[&str]) -> Output {
    let mut memgauge = memgauge();
    memgauge
        .current_dir(folder)
        .args(words)
        .output()
        .expect("memgauge runs")
}

/// Runs a verb that must succeed, and returns its JSON.
fn json(folder: &Path, words: &[&str]) -> Value {
    let output = run(folder, words);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Sums of an event by function, from the report of each recording.
fn brute_force(folder: &Path, recordings: &[&str], event: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for recording in recordings {
        let report = json(
            folder,
            &["report", recording, "--json", "--rows", "1000000"],
        );
        let rows = report["hot"]["functions"]["rows"]
            .as_array()
            .expect("rows")
            .clone();
        assert!(!rows.is_empty());
        for row in rows {
            let count = row["counts"][event].as_f64().unwrap_or(0.0);
            *sums
                .entry(row["function"].as_str().expect("a name").to_owned())
                .or_default() += count;
        }
    }
    sums
}

const PROGRAM: &str = r#"
#include <stdlib.h>
static long sum;
__attribute__((noinline)) void walk(long *all, long n) { for (long i = 0; i < n; i += 8) sum += all[i]; }
__attribute__((noinline)) void fill(long *all, long n) { for (long i = 0; i < n; i++) all[i] = i; }
int main(int argc, char **argv) {
    long n = 1 << 15; long *all = malloc(n * 8);
    fill(all, n);
    for (int i = 0; i < atoi(argv[1]); i++) walk(all, n);
    return sum == 1;
}
"#;

/// Recordings of two versions of a program in a folder: of the new one, the walk is longer.
fn two_versions(folder: &Path) -> [Vec<String>; 2] {
    std::fs::write(folder.join("walk.c"), PROGRAM).expect("a file");
    let mut gcc = Command::new("gcc");
    let built = gcc
        .current_dir(folder)
        .args(["-O1", "-g", "-static", "-o", "walk", "walk.c"])
        .status();
    assert!(built.expect("gcc runs").success());
    let record = |commit: &str, turns: usize| {
        let name = format!("{commit}-{turns}.mg");
        let label = format!("commit={commit}");
        let words = [
            "record",
            "-q",
            "--machine",
            "i5-6600k",
            "--label",
            "service=walker",
            "--label",
            &label,
            "-o",
            &name,
            "--",
            "./walk",
            &turns.to_string(),
        ];
        let output = run(folder, &words);
        assert!(output.status.success(), "{output:?}");
        name
    };
    let old = [3, 4].map(|turns| record("old", turns)).to_vec();
    let new = [8, 9].map(|turns| record("new", turns)).to_vec();
    [old, new]
}

#[test]
fn top_and_diff_equal_the_reports_of_the_recordings() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let [old, new] = two_versions(folder);
    let indexed = run(folder, &["fleet", "index", ".", "--to", "fleet"]);
    let said = String::from_utf8_lossy(&indexed.stderr);
    assert!(
        indexed.status.success() && said.contains("added 4 recordings"),
        "{said}"
    );
    let all: Vec<&str> = old.iter().chain(&new).map(String::as_str).collect();
    for event in ["cycles", "l1d.miss", "stall.dram"] {
        let top = json(
            folder,
            &[
                "fleet", "top", "fleet", "--by", event, "--json", "--rows", "100000",
            ],
        );
        let rows = top["rows"].as_array().expect("rows");
        let mut found: BTreeMap<String, f64> = BTreeMap::new();
        for row in rows {
            let name = row["name"].as_str().expect("a function").to_owned();
            *found.entry(name).or_default() += row["value"].as_f64().expect("a number");
        }
        let expected = brute_force(folder, &all, event);
        // The report has the dynamic loader and startup in one row.
        for name in ["walk", "fill"] {
            // A count of 0 has no row.
            let of = |sums: &BTreeMap<String, f64>| sums.get(name).copied().unwrap_or(0.0);
            assert_eq!(of(&found), of(&expected), "{name} by {event}");
        }
        let sum = |of: &BTreeMap<String, f64>| of.values().sum::<f64>();
        assert_eq!(sum(&found), sum(&expected), "{event}");
        assert_eq!(top["total"].as_f64(), Some(sum(&expected)));
        assert_eq!(top["facts"]["recordings"], 4);
    }
    let words = [
        "fleet",
        "diff",
        "fleet",
        "--label",
        "commit=old",
        "--label",
        "commit=new",
        "--json",
    ];
    let found = json(folder, &words);
    let mut words = vec!["diff", "--json", "--before"];
    words.extend(old.iter().map(String::as_str));
    words.push("--after");
    words.extend(new.iter().map(String::as_str));
    let expected = json(folder, &words);
    for part in ["functions", "lines", "heap", "metrics", "headline"] {
        assert_eq!(found[part], expected[part], "{part}");
    }
    let gate = [
        "fleet",
        "diff",
        "fleet",
        "--before",
        "commit=old",
        "--after",
        "commit=new",
        "--fail-if",
    ];
    let fails = |limit| {
        run(folder, &[gate.as_slice(), &[limit]].concat())
            .status
            .code()
    };
    assert_eq!(
        (fails("instructions > +1%"), fails("instructions > +10000%")),
        (Some(1), Some(0))
    );
}

#[test]
fn damaged_recordings_are_named_and_the_exit_code_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let fleet = Fleet {
        recordings: 8,
        ..Fleet::default()
    };
    fleet.write(&folder.path().join("recordings"));
    let output = run(
        folder.path(),
        &["fleet", "index", "recordings", "--to", "fleet"],
    );
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("skipped `recordings/").count(), 3, "{said}");
    assert!(
        said.contains("added 5 recordings to fleet; 0 were there already or are copies, 3 skipped"),
        "{said}"
    );
    let shown = run(folder.path(), &["fleet", "top", "fleet"]);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(
        text.contains("stalled cycles") && text.contains("parse"),
        "{text}"
    );
    let asked = run(folder.path(), &["fleet", "top", "fleet", "--by", "llc.mis"]);
    assert_eq!(asked.status.code(), Some(2), "{asked:?}");
    let empty = run(folder.path(), &["fleet", "top", "recordings"]);
    assert_eq!(empty.status.code(), Some(125), "{empty:?}");
}

/// The SQL of docs/fleet.md, as statements.
fn documented_sql() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md");
    let page = std::fs::read_to_string(page).expect("it is there");
    let blocks = page.split("```sql\n").skip(1);
    blocks
        .map(|block| block.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

/// Runs each statement and prints the rows of the last one as JSON.
const ASK: &str = "import duckdb, json, sys
connection = duckdb.connect()
answers = []
for block in json.loads(sys.argv[1]):
    result = connection.execute(block)
    names = [column[0] for column in result.description]
    answers.append([dict(zip(names, row)) for row in result.fetchall()])
print(json.dumps(answers, default=str))
";

fn ask(folder: &Path, blocks: &[String]) -> Option<Vec<Value>> {
    let mut python = python_with("duckdb")?;
    let blocks = serde_json::to_string(blocks).expect("JSON");
    let python = python.current_dir(folder).args(["-c", ASK, &blocks]);
    let output = python.output().expect("Python");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// A curve as `memgauge mrc --json` writes it: all misses fall at one size.
fn add_curve(known: &Known, enough: u64) {
    let point = |bytes: u64, misses: f64| serde_json::json!({ "bytes": bytes, "misses": misses });
    let points = [point(64, 900.0), point(enough, 100.0)];
    let curve = serde_json::json!({ "block_bytes": 64, "references": 1000.0, "points": points });
    let file = serde_json::json!({ "schema_version": 1, "curves": [curve] });
    std::fs::write(known.path.join("curves.json"), file.to_string()).expect("a file");
}

#[test]
fn documented_sql_gives_the_answers_of_the_verbs() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let fleet = Fleet {
        damaged: 0,
        ..Fleet::default()
    };
    let known = fleet.write(&folder.join("recordings"));
    for (number, known) in known
        .iter()
        .enumerate()
        .filter(|(number, _)| number % 6 == 0)
    {
        add_curve(known, 1 << (12 + number % 4));
    }
    // In two steps and compacted, so that there are files that no longer count.
    for path in ["recordings/service-0", "recordings"] {
        let output = run(folder, &["fleet", "index", path, "--to", "fleet", "-q"]);
        assert!(output.status.success(), "{output:?}");
    }
    assert!(run(folder, &["fleet", "compact", "fleet"]).status.success());
    let blocks = documented_sql();
    assert_eq!(blocks.len(), 6, "views and five questions");
    let Some(answers) = ask(folder, &blocks) else {
        return;
    };
    let near = |a: &Value, b: &Value| {
        let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
        assert!((a - b).abs() <= 1e-9 * b.abs(), "{a} {b}");
    };
    let top = json(folder, &["fleet", "top", "fleet", "--json"]);
    let rows = top["rows"].as_array().expect("rows");
    assert_eq!(answers[1].as_array().map(Vec::len), Some(10));
    for (sql, row) in answers[1].as_array().expect("rows").iter().zip(rows) {
        assert_eq!(
            (&sql["name"], &sql["module"]),
            (&row["name"], &row["module"])
        );
        assert_eq!(sql["recordings"], row["recordings"]);
        for (column, field) in [("stalled", "value"), ("share", "share"), ("mean", "mean")] {
            near(&sql[column], &row[field]);
        }
        let [low, high] = [0, 1].map(|end| row["interval"][end].as_f64().expect("a number"));
        let half = sql["half_interval"].as_f64().expect("a number");
        // 1.96 instead of Student's t of 199 degrees of freedom, 1.972.
        assert!(
            ((high - low) / 2.0 / half - 1.972 / 1.96).abs() < 1e-3,
            "{row} {sql}"
        );
    }
    let words = [
        "fleet",
        "diff",
        "fleet",
        "--service",
        "service-0",
        "--label",
        "commit=old",
        "--label",
        "commit=new",
        "--event",
        "stalled_cycles",
        "--json",
    ];
    let diff = json(folder, &words);
    let worst = &answers[2][0];
    assert_eq!(worst["name"], "parse");
    assert_eq!(diff["functions"][0]["function"], "parse (service-0)");
    for side in ["before", "after"] {
        let exact = worst[side].as_f64().expect("a number");
        assert_eq!(diff["functions"][0][side].as_f64(), Some(exact.round()));
    }
    let found = json(
        folder,
        &["fleet", "outliers", "fleet", "--by", "llc.mpki", "--json"],
    );
    let more = |rows: &Value, part: &str| -> Vec<(String, String)> {
        let rows = rows.as_array().expect("rows").iter();
        let text = |row: &Value, name: &str| row[name].as_str().expect("text").to_owned();
        let rows = rows.filter(|row| row[part].as_f64() > Some(0.0));
        let mut rows: Vec<_> = rows
            .map(|row| (text(row, "service"), text(row, "host")))
            .collect();
        rows.sort();
        rows
    };
    let expected: Vec<_> = (0..3)
        .map(|n| (format!("service-{n}"), "host-1".to_owned()))
        .collect();
    assert_eq!(more(&found["rows"], "relative"), expected);
    assert_eq!(more(&answers[3], "relative"), expected);
    let curve = json(
        folder,
        &[
            "fleet",
            "curve",
            "fleet",
            "--service",
            "service-0",
            "--json",
        ],
    );
    let points = curve["curves"][0]["points"].as_array().expect("points");
    assert_eq!(curve["curves"][0]["references"], 34_000.0);
    assert!(points.len() > 20);
    for (sql, point) in answers[4].as_array().expect("rows").iter().zip(points) {
        assert_eq!(sql["bytes"], point["bytes"]);
        near(&sql["miss_ratio"], &point["miss_ratio"]);
    }
    let ratio_at = |bytes: u64| {
        let point = points
            .iter()
            .rev()
            .find(|point| point["bytes"].as_u64() <= Some(bytes));
        point.map(|point| point["miss_ratio"].as_f64())
    };
    assert_eq!(
        (ratio_at(64), ratio_at(1 << 20)),
        (Some(Some(0.9)), Some(Some(0.1)))
    );
    assert_eq!(
        answers[5].as_array().map(Vec::len),
        Some(0),
        "synthetic runs read no DRAM"
    );
}

#[test]
fn pandas_reads_the_dataset_as_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fleet.md");
    let page = std::fs::read_to_string(page).expect("it is there");
    let code = page
        .split("```python\n")
        .nth(1)
        .and_then(|block| block.split("```").next());
    let code = format!(
        "{}print(float(misses.value.sum()))\n",
        code.expect("Python")
    );
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let fleet = Fleet {
        recordings: 24,
        damaged: 0,
        ..Fleet::default()
    };
    let known = fleet.write(&folder.join("recordings"));
    for path in ["recordings/service-0", "recordings"] {
        assert!(
            run(folder, &["fleet", "index", path, "--to", "fleet", "-q"])
                .status
                .success()
        );
    }
    assert!(run(folder, &["fleet", "compact", "fleet"]).status.success());
    let Some(mut python) = python_with("pandas") else {
        return;
    };
    let output = python
        .current_dir(folder)
        .args(["-c", &code])
        .output()
        .expect("Python");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let sum: u64 = known
        .iter()
        .flat_map(|k| k.functions.values())
        .map(|counts| counts["llc.miss"])
        .sum();
    let last = text
        .lines()
        .last()
        .and_then(|line| line.parse::<f64>().ok());
    assert_eq!(last, Some(sum as f64), "{text}");
}

/// Without labels, the program's file name is the service.
#[test]
fn a_recording_without_labels_has_its_program_as_service() {
    if !needs(&[]) {
        return;
    }
    let recorded = Recorded::new(&["--machine", "i5-6600k"], &["/bin/true"]);
    let folder = recorded.folder.path();
    let name = recorded.path();
    let name = name.to_str().expect("text");
    let output = run(
        folder,
        &[
            "fleet", "index", name, "--to", "fleet", "--label", "commit=x",
        ],
    );
    assert!(output.status.success(), "{output:?}");
    let words = [
        "fleet",
        "top",
        "fleet",
        "--service",
        "true",
        "--only",
        "commit=x",
        "--json",
    ];
    assert_eq!(json(folder, &words)["facts"]["recordings"], 1);
}
