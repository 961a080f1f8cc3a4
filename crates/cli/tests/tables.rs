//! The tables of a recording for other programs: questions in SQL, names without the original files, and
//! the number of files.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use harness::{Recorded, memgauge, needs, report};
use memgauge_testing::python_with;
use serde_json::Value;

/// Misses of the last-level cache by function, as the report has them.
fn misses(report: &Value) -> BTreeMap<String, u64> {
    let rows = report["hot"]["functions"]["rows"].as_array().expect("rows");
    let mut misses = BTreeMap::new();
    for row in rows {
        let function = row["function"].as_str().expect("a name").to_owned();
        *misses.entry(function).or_default() += row["counts"]["llc.miss"].as_u64().unwrap_or(0);
    }
    misses
}

/// The query for functions in docs/format.md.
fn documented_query() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format.md");
    let page = fs::read_to_string(page).expect("it is there");
    let blocks = page.split("```sql\n").skip(1);
    let mut queries = blocks.map(|block| block.split("```").next().unwrap_or_default());
    let query = queries.find(|query| query.contains("llc.miss"));
    query.expect("a query").to_owned()
}

#[test]
fn sql_finds_the_functions_with_most_misses() {
    const ASK: &str = "import duckdb, os, sys
os.chdir(sys.argv[1])
for function, module, misses in duckdb.sql(sys.argv[2]).fetchall():
    print(misses, function or os.path.basename(module) + ' [no symbols]', sep='|')
";
    if !needs(&[]) {
        return;
    }
    let Some(mut python) = python_with("duckdb") else {
        return;
    };
    let recorded = Recorded::new(&["--machine", "i5-6600k"], &["/bin/ls", "-l", "/usr/bin"]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let output = python
        .args(["-c", ASK])
        .arg(recorded.folder.path())
        .arg(documented_query())
        .output()
        .expect("Python");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let found: Vec<(u64, &str)> = text
        .lines()
        .map(|line| line.split_once('|').expect("two columns"))
        .map(|(misses, function)| (misses.parse().expect("a count"), function))
        .collect();
    let mut shown = memgauge();
    let shown = shown.args(["report", "--json", "--rows", "100000"]);
    let shown = shown.arg(recorded.path()).output().expect("memgauge runs");
    let expected = misses(&serde_json::from_slice(&shown.stdout).expect("JSON"));
    assert_eq!(found.len(), 10);
    assert!(found[0].0 > 10, "{text}");
    let most = expected.values().copied().max();
    assert_eq!(most, Some(found[0].0), "{text}");
    // The report has the dynamic loader's functions in one row.
    let mut startup = 0;
    for (misses, function) in &found {
        match expected.get(*function) {
            Some(expected) => assert_eq!(expected, misses, "{function} in {text}"),
            None => startup += misses,
        }
    }
    let folded = expected.get("[dynamic loader and startup]");
    assert!(startup <= folded.copied().unwrap_or(0), "{text}");
}

const PROGRAM: &str = r#"
#include <stdlib.h>
static long sum;
static inline __attribute__((always_inline)) void add(long *all, long i) { sum += all[i]; }
__attribute__((noinline)) void walk(long *all, long n) { for (long i = 0; i < n; i += 8) add(all, i); }
int main(void) { long *all = calloc(1 << 18, 8); walk(all, 1 << 18); return sum != 0; }
"#;

/// A recording of a program that is removed afterwards, with all copies of it.
fn of_a_program_that_is_gone() -> (Recorded, Value) {
    let sources = tempfile::tempdir().expect("a temporary folder");
    let [source, program] = ["walk.c", "walk"].map(|name| sources.path().join(name));
    fs::write(&source, PROGRAM).expect("a file");
    let mut gcc = Command::new("gcc");
    let built = gcc
        .args(["-O1", "-g", "-o"])
        .args([&program, &source])
        .status();
    assert!(built.expect("gcc runs").success());
    let options = ["--machine", "i5-6600k"];
    let recorded = Recorded::new(&options, &[program.to_str().expect("text")]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let before = recorded.report();
    fs::remove_dir_all(recorded.path().join("files")).expect("a copy");
    (recorded, before)
}

#[test]
fn a_report_on_another_machine_has_the_names_and_lines_of_code() {
    if !needs(&["gcc"]) {
        return;
    }
    let (recorded, before) = of_a_program_that_is_gone();
    let after = recorded.report();
    let functions = misses(&after);
    assert!(
        functions.contains_key("walk") || functions.contains_key("add"),
        "{functions:?}"
    );
    for table in ["functions", "lines", "instructions"] {
        assert_eq!(before["hot"][table], after["hot"][table], "{table}");
    }
}

#[test]
fn copies_are_in_the_users_cache_and_not_in_the_recording() {
    if !needs(&[]) {
        return;
    }
    let cache = tempfile::tempdir().expect("a temporary folder");
    let program = cache.path().join("program");
    fs::copy("/bin/true", &program).expect("true is installed");
    let arguments = [program.to_str().expect("text")];
    let recorded = Recorded::with(&["--machine", "i5-6600k"], &arguments, |command| {
        command.env("XDG_CACHE_HOME", cache.path());
    });
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    assert!(!recorded.path().join("files").exists());
    let copies = fs::read_dir(cache.path().join("memgauge/files")).expect("a cache");
    let copies: Vec<_> = copies.map(|copy| copy.expect("a copy").path()).collect();
    assert_eq!(copies.len(), 1, "{copies:?}");
    assert!(fs::read(&copies[0]).expect("a copy") == fs::read("/bin/true").expect("a program"));
}

#[test]
fn a_run_of_some_seconds_has_one_file_for_each_table() {
    if !needs(&[]) {
        return;
    }
    // Parts are closed at an age of two seconds.
    let script = "for i in 1 2 3 4 5; do sleep 1; /bin/true; done";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run.mg");
    let mut command = memgauge();
    command
        .args(["record", "-q", "--source", "clock", "-o"])
        .arg(&path);
    let output = command.args(["--", "sh", "-c", script]).output();
    assert!(output.expect("memgauge runs").status.success());
    for table in fs::read_dir(&path).expect("a recording") {
        let table = table.expect("a table").path();
        if table.is_dir() && !table.ends_with("files") {
            assert_eq!(
                fs::read_dir(&table).expect("parts").count(),
                1,
                "{}",
                table.display()
            );
        }
    }
    assert!(report(&path).status.success());
}
