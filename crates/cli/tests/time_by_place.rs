//! Cycles and stalls by code location add up to those of the run and belong to the waiting code.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{Recorded, needs, report_text};
use serde_json::Value;

/// Fills an array, reads it at random so that each read determines the next, and computes without
/// memory. Each phase has a function; `reads` and `rounds` decide which one takes most of the time.
const PHASES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define SIZE (16 << 20)
__attribute__((noinline)) void fill(unsigned char *bytes) {
    for (size_t i = 0; i < SIZE; i++) bytes[i] = i;
}
__attribute__((noinline)) unsigned long look_up(unsigned char *bytes, unsigned long x, size_t n) {
    unsigned long sum = 0;
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005UL + bytes[x >> 40];
        sum += x;
    }
    return sum;
}
__attribute__((noinline)) unsigned long compute(unsigned long x, size_t n) {
    for (size_t i = 0; i < n; i++) x = x * 6364136223846793005UL + 1442695040888963407UL;
    return x;
}
int main(int argc, char **argv) {
    unsigned char *bytes = malloc(SIZE);
    fill(bytes);
    unsigned long seed = atol(argv[1]);
    printf("%lu\n", look_up(bytes, seed, atol(argv[2])) + compute(seed, atol(argv[3])));
    return 0;
}
"#;

const STALLS: [&str; 6] = [
    "stall.l2",
    "stall.llc",
    "stall.dram",
    "stall.queue",
    "stall.tlb",
    "stall.stores",
];

/// Records [`PHASES`] with this number of random reads and of rounds of computing.
fn recorded(reads: &str, rounds: &str) -> Recorded {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("phases.c");
    std::fs::write(&source, PHASES).expect("the source can be written");
    let program = folder.path().join("phases");
    let mut gcc = std::process::Command::new("gcc");
    let gcc = gcc.args(["-O1", "-g", "-o"]).arg(&program).arg(&source);
    assert!(gcc.status().expect("gcc runs").success());
    let program = program.to_str().expect("temporary paths are text");
    let seed = std::process::id().to_string();
    let recorded = Recorded::new(&["--machine", "i5-6600k"], &[program, &seed, reads, rounds]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    recorded
}

fn count(counts: &Value, event: &str) -> u64 {
    counts[event].as_u64().unwrap_or(0)
}

/// Sum of an event over a table, listed or not.
fn sum(table: &Value, event: &str) -> u64 {
    let rows = table["rows"].as_array().expect("rows").iter();
    let rows = rows.map(|row| count(&row["counts"], event));
    rows.sum::<u64>() + count(&table["others"]["counts"], event)
}

fn stalled(counts: &Value) -> u64 {
    STALLS.iter().map(|event| count(counts, event)).sum()
}

#[test]
fn places_add_up_to_the_cycles_and_stalls_of_the_run() {
    if !needs(&["gcc"]) {
        return;
    }
    let report = recorded("100000", "100000").report();
    let totals = &report["totals"];
    for table in ["functions", "lines", "instructions"] {
        let table = &report["hot"][table];
        for event in STALLS.iter().chain(&["cycles"]) {
            // A process and a thread each round down to a cycle.
            let (places, total) = (sum(table, event), count(totals, event));
            assert!(places.abs_diff(total) <= 2, "{event}: {places} of {total}");
        }
    }
    let parts = report["time"].as_array().expect("parts").iter();
    let cycles: u64 = parts.map(|part| part["cycles"].as_u64().unwrap_or(0)).sum();
    assert_eq!(cycles, count(totals, "cycles"));
}

#[test]
fn the_function_that_takes_the_time_comes_first_whatever_moves_most_bytes() {
    if !needs(&["gcc"]) {
        return;
    }
    // `fill` moves the most bytes in both runs.
    let waiting = recorded("500000", "1000");
    let report = waiting.report();
    assert_eq!(report["hot"]["functions"]["rank"], "cycles");
    let first = &report["hot"]["functions"]["rows"][0];
    assert_eq!(first["function"], "look_up");
    let (waited, cycles) = (stalled(&first["counts"]), count(&first["counts"], "cycles"));
    assert!(waited * 10 > cycles * 9, "{waited} of {cycles}");
    let text = report_text(&waiting.path());
    let is_row = |line: &str| line.contains("look_up") && line.contains("DRAM");
    assert!(text.lines().any(is_row), "{text}");
    assert!(text.contains("Main finding"), "{text}");
    assert!(text.contains("Where the time goes"), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("of that time is in look_up (most at phases.c:"),
        "{text}"
    );

    let report = recorded("1000", "50000000").report();
    let first = &report["hot"]["functions"]["rows"][0];
    assert_eq!(first["function"], "compute");
    assert_eq!(stalled(&first["counts"]), 0, "{first}");
}

#[test]
fn stat_of_a_modelled_run_begins_with_where_the_time_goes() {
    if !needs(&[]) {
        return;
    }
    let folder = harness::folder();
    let recording = folder.path().join("stat.mg");
    let lines = harness::drawn("lines", 100, 5000).to_string();
    let stat = harness::memgauge()
        .args(["stat", "--source", "emulate", "-o"])
        .arg(&recording)
        .args(["--", "seq", &lines])
        .output()
        .expect("memgauge runs");
    let said = harness::said(&stat);
    let time_use = |text: &str| {
        let section = text.split_once("Where the time goes").expect("a section").1;
        section.split("\n\n").next().unwrap_or_default().to_owned()
    };
    // The report of the recording has the same lines.
    assert_eq!(
        time_use(&said),
        time_use(&report_text(&recording)),
        "{said}"
    );
    assert!(
        said.find("Where the time goes") < said.find("Counters"),
        "{said}"
    );
}
