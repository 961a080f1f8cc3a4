//! Recordings of the first version are still read, and say the same.
//!
//! The report of memgauge 0.1.0 for each is kept beside it as JSON: every number there
//! must come out again at the same place (`tests/fixtures/format-1/README.md`).

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Numbers that are right to have changed since, by the beginning of their path.
const CHANGED: &[&str] = &[
    // `rest` became `others`.
    ".schema_version",
    // Names come from files that may be others by now; sampled places are reported since.
    ".hot",
    // Memory is no longer charged to the library that was mapped before it.
    ".regions",
    // Bins are no finer than the intervals of the series.
    ".bandwidth",
    ".dram.peak",
    ".findings",
    // Typed facts of the manifest took the place of composed names.
    ".totals.event.",
    ".totals.delivery.",
    ".totals.samples.",
    ".totals.source.",
    ".totals.pebs.",
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1")
}

/// Every number of a JSON value with its path.
fn numbers(value: &Value, path: &str, out: &mut Vec<(String, f64)>) {
    match value {
        Value::Number(n) => out.push((path.to_owned(), n.as_f64().unwrap_or(f64::NAN))),
        Value::Array(list) => {
            for (at, item) in list.iter().enumerate() {
                // Threads and processes are told by their ids: their order may change.
                let at = match (&item["pid"], &item["tid"], &item["parent_pid"]) {
                    (Value::Number(pid), Value::Number(tid), _) => format!("{pid}/{tid}"),
                    (Value::Number(pid), _, Value::Number(_)) => pid.to_string(),
                    _ => at.to_string(),
                };
                numbers(item, &format!("{path}[{at}]"), out);
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                numbers(item, &format!("{path}.{key}"), out);
            }
        }
        _ => {}
    }
}

/// Facts of the old report that the new one lacks, a line each.
fn differences(name: &str) -> Vec<String> {
    let path = fixtures().join(name);
    let then = std::fs::read_to_string(path.with_extension("json")).expect("what was said");
    let then: Value = serde_json::from_str(&then).expect("JSON");
    let output = Command::new(env!("CARGO_BIN_EXE_memgauge"))
        .args(["report", "--json"])
        .arg(&path)
        .output()
        .expect("memgauge runs");
    assert!(output.status.success(), "{name}: {output:?}");
    let now: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let (mut old, mut new) = (Vec::new(), Vec::new());
    numbers(&then, "", &mut old);
    numbers(&now, "", &mut new);
    let new: std::collections::HashMap<String, f64> = new.into_iter().collect();
    old.into_iter()
        .filter(|(path, _)| !CHANGED.iter().any(|changed| path.starts_with(changed)))
        .filter(|(path, number)| new.get(path) != Some(number))
        .map(|(path, number)| format!("{name}: {path} was {number}, is {:?}", new.get(&path)))
        .collect()
}

#[test]
fn recordings_of_the_first_version_say_what_they_said_then() {
    let mut names: Vec<String> = std::fs::read_dir(fixtures())
        .expect("the fixtures")
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".mg"))
        .collect();
    names.sort();
    assert_eq!(names.len(), 8, "{names:?}");
    let differences: Vec<String> = names.iter().flat_map(|n| differences(n)).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn recordings_of_the_first_version_have_a_text_report() {
    for name in [
        "emulate.mg",
        "stat.mg",
        "clock.mg",
        "faults.mg",
        "import.mg",
        "io.mg",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_memgauge"))
            .arg("report")
            .arg(fixtures().join(name))
            .output()
            .expect("memgauge runs");
        assert!(output.status.success(), "{name}: {output:?}");
        assert!(output.stdout.len() > 300, "{name}: {output:?}");
    }
}
