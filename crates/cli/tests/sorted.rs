//! `report --sort` and `export --sort` order every table that has the column, over all rows.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::{Path, PathBuf};
use std::process::Output;

use harness::{drawn, folder, memgauge, said};
use serde_json::Value;

fn recording(name: &str) -> PathBuf {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/recordings");
    Path::new(fixtures).join(name)
}

fn run(arguments: &[&str], recording: &Path) -> Output {
    let mut command = memgauge();
    let output = command.args(arguments).arg(recording).output();
    output.expect("memgauge runs")
}

fn report(options: &[&str], recording: &Path) -> Value {
    let output = run(&[&["report", "--json"], options].concat(), recording);
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Columns of a recording, which the message about an unknown one lists.
fn columns(recording: &Path) -> Vec<String> {
    let output = run(&["report", "--sort", "no-such-column"], recording);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("failed to sort by column `no-such-column`"),
        "{said}"
    );
    let (_, names) = said.trim_end().rsplit_once("use one of ").expect("names");
    names.split(", ").map(str::to_owned).collect()
}

/// Number in a column of a row of the JSON.
fn number(row: &Value, column: &str) -> Option<f64> {
    let count = |name: &str| row["counts"][name].as_f64();
    let sum = |names: &[&str]| {
        names
            .iter()
            .filter_map(|name| count(name))
            .reduce(|a, b| a + b)
    };
    match column {
        "dram_bytes" => sum(&["dram.read_bytes", "dram.write_bytes"]),
        "events" if row.get("function").is_some() => {
            row["samples"].as_f64().and(row["value"].as_f64())
        }
        _ => row[column].as_f64().or_else(|| count(column)),
    }
}

/// Numbers of a table's rows; empty if they are texts.
fn numbers(table: &Value, column: &str) -> Vec<f64> {
    let rows = table.as_array().expect("rows").iter();
    rows.map(|row| number(row, column).unwrap_or(-1.0))
        .collect()
}

fn event_sums(rows: &Value, others: &Value, event: &str) -> u64 {
    let count = |counts: &Value| counts[event].as_u64().unwrap_or(0);
    let rows = rows.as_array().expect("rows").iter();
    rows.map(|row| count(&row["counts"])).sum::<u64>() + count(others)
}

#[test]
fn rows_that_are_cut_off_have_the_smallest_numbers_and_are_summed() {
    for name in ["emulate.mg", "sampled.mg", "clock.mg"] {
        let recording = recording(name);
        let all = report(&["--rows", "1000000"], &recording);
        let rows = drawn("rows", 1, 40);
        for column in columns(&recording) {
            let options = ["--sort", &column, "--rows", &rows.to_string()];
            let sorted = report(&options, &recording);
            assert_eq!(sorted["sorted_by"], column.as_str());
            let mut tables: Vec<(Value, Value)> = Vec::new();
            for table in ["functions", "lines", "instructions"] {
                let of = |report: &Value| report["hot"][table]["rows"].clone();
                tables.push((of(&all), of(&sorted)));
                for event in ["instructions", "l1d.miss", "cpu-clock"] {
                    let sum = |report: &Value| {
                        let table = &report["hot"][table];
                        event_sums(&table["rows"], &table["others"]["counts"], event)
                    };
                    assert_eq!(sum(&sorted), sum(&all), "{table} by {column}");
                }
                let value = |report: &Value| {
                    let table = &report["hot"][table];
                    let rows = table["rows"].as_array().expect("rows").iter();
                    let listed: u64 = rows.filter_map(|row| row["value"].as_u64()).sum();
                    listed + table["others"]["value"].as_u64().unwrap_or(0)
                };
                assert_eq!(value(&sorted), value(&all), "{table} by {column}");
            }
            let regions =
                |report: &Value| report["regions"].as_array().cloned().unwrap_or_default();
            for (all, sorted) in regions(&all).iter().zip(regions(&sorted)) {
                tables.push((all["rows"].clone(), sorted["rows"].clone()));
            }
            for (all, sorted) in tables {
                let mut expected = numbers(&all, &column);
                if expected.iter().all(|&number| number < 0.0) {
                    continue;
                }
                expected.sort_by(|a, b| b.total_cmp(a));
                expected.truncate(rows as usize);
                assert_eq!(numbers(&sorted, &column), expected, "{name} by {column}");
            }
        }
    }
}

#[test]
fn titles_of_the_text_are_columns_too() {
    let recording = recording("emulate.mg");
    for (title, key) in [
        ("L1D miss", "l1d.miss"),
        ("dram", "dram_bytes"),
        ("size", "bytes"),
    ] {
        assert_eq!(report(&["--sort", title], &recording)["sorted_by"], key);
    }
    let output = run(&["report", "--sort", "dtlb.walk"], &recording);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let functions = text
        .split("Functions by dtlb.walk")
        .nth(1)
        .expect("a table");
    let titles = functions.lines().nth(1).expect("titles");
    assert!(titles.contains("dtlb.walk"), "{titles}");
    // Texts are in alphabetical order.
    let sorted = report(&["--sort", "function", "--rows", "100000"], &recording);
    let rows = sorted["hot"]["functions"]["rows"].as_array().expect("rows");
    let names: Vec<&str> = rows
        .iter()
        .filter_map(|row| row["function"].as_str())
        .collect();
    assert!(names.len() > 100 && names.is_sorted(), "{names:?}");
}

#[test]
fn exported_tables_are_sorted_and_other_formats_refuse() {
    let (folder, recording) = (folder(), recording("emulate.mg"));
    let tables = folder.path().join("tables");
    let tables = tables.to_str().expect("text");
    let export = ["export", "-f", "csv", "-o", tables, "--sort", "llc.miss"];
    let output = run(&export, &recording);
    assert!(output.status.success(), "{}", said(&output));
    let text = std::fs::read_to_string(format!("{tables}/functions.csv")).expect("a table");
    let mut rows = text.lines().map(|row| row.split(',').collect::<Vec<_>>());
    let header = rows.next().expect("a header");
    let at = header
        .iter()
        .position(|title| *title == "llc.miss")
        .expect("a column");
    // From the end, since names may contain commas.
    let from_end = header.len() - at;
    let misses = rows.map(|row| row[row.len() - from_end].parse::<u64>().unwrap_or(0));
    let misses: Vec<u64> = misses.collect();
    assert!(
        misses.len() > 100 && misses.iter().rev().is_sorted(),
        "{misses:?}"
    );
    let output = run(
        &["export", "-f", "folded", "--sort", "llc.miss"],
        &recording,
    );
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("--sort is for arrow and csv"));
}
