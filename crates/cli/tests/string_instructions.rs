//! Iterations of `rep movs` and `rep stos`. The engine executes iterations that stay in their pages
//! in a helper. With 32-bit addresses, it executes each iteration in its block. Two programs that
//! differ only in the address-size prefix must give the same recordings. The program itself
//! compares each result, and registers at faults, with those of single elements.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use harness::{Recorded, drawn, exact_curves, needs};

/// Compiles the program with a prefix before each string instruction.
fn program(folder: &Path, name: &str, prefix: &str, seed: u64) -> String {
    let source = folder.join("random.c");
    std::fs::write(&source, include_str!("string_instructions/random.c"))
        .expect("the source can be written");
    let program = folder.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-no-pie", "-o"])
        .args([&program, &source])
        .arg(format!("-DPREFIX=\"{prefix}\""))
        .arg(format!("-DSEED={seed}"));
    assert!(cc.status().expect("cc runs").success());
    program
        .to_str()
        .expect("temporary paths are text")
        .to_owned()
}

/// All totals of a recording with these options, and the misses by variable and mapping. Times by place
/// are left out: they are rounded whenever a part is written.
fn recorded(options: &[&str], program: &str) -> BTreeMap<String, i64> {
    let run = Recorded::new(options, &[program]);
    assert_eq!(run.code(), Some(0), "{}", run.said());
    let mut counts = run.totals();
    let report = run.report();
    assert_eq!(report["losses"].as_array().map(Vec::len), Some(0));
    let name = Path::new(program).file_name().expect("a file's path");
    let name = name.to_str().expect("as above");
    for row in report["data"]["rows"].as_array().into_iter().flatten() {
        let place = row["name"].as_str().expect("a name").replace(name, "NAME");
        let events = row["counts"].as_object().expect("counts");
        let events = events
            .iter()
            .filter(|(event, _)| *event != "cycles" && !event.starts_with("stall."));
        for (event, count) in events {
            counts.insert(
                format!("{place}: {event}"),
                count.as_i64().expect("a count"),
            );
        }
    }
    counts
}

#[test]
fn iterations_executed_at_once_are_recorded_one_by_one() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let seed = drawn("seed", 0, 1 << 31);
    let once = program(folder.path(), "fast_strings", "0x3e", seed);
    let each = program(folder.path(), "slow_strings", "0x67", seed);
    for options in [
        &["--machine", "skylake-sp"][..],
        &["--machine", "i5-6600k", "-c", "11"],
        &["--machine", "zen4", "--sets", "1/8"],
        &["--machine", "zen4", "--sets", "1/2", "--seed", "1"],
    ] {
        let (of_once, of_each) = (recorded(options, &once), recorded(options, &each));
        assert!(of_once["stores"] > 1_000_000, "{of_once:?}");
        assert_eq!(of_once, of_each, "{options:?}");
    }
}

#[test]
fn iterations_executed_at_once_have_the_same_curve() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let seed = drawn("seed", 0, 1 << 31);
    let curve =
        |name: &str, prefix: &str| exact_curves(&program(folder.path(), name, prefix, seed));
    assert_eq!(curve("fast_strings", "0x3e"), curve("slow_strings", "0x67"));
}
