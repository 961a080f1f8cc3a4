//! Iterations of `rep movs` and `rep stos`. The engine executes those that stay in their pages in a
//! helper; it executes each one in its block if addresses have 32 bits. Two programs that differ in
//! the prefix for that alone must give the same recordings. The program itself compares each result, and
//! registers at faults, with what single elements give.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::Path;
use std::process::Command;

use harness::{Recorded, memgauge, needs};

/// Compiles the program with a prefix before each string instruction.
fn program(folder: &Path, name: &str, prefix: &str) -> String {
    let source = folder.join("random.c");
    std::fs::write(&source, include_str!("string_instructions/random.c"))
        .expect("the source can be written");
    let program = folder.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-no-pie", "-o"])
        .args([&program, &source])
        .arg(format!("-DPREFIX=\"{prefix}\""));
    assert!(cc.status().expect("cc runs").success());
    program
        .to_str()
        .expect("temporary paths are text")
        .to_owned()
}

/// Removes what differs between two runs of a program.
fn forget_run(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(fields) => {
            fields.retain(|name, _| {
                !["recording", "run", "own_cost", "pid", "tid"].contains(&name.as_str())
            });
            fields.values_mut().for_each(forget_run);
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(forget_run),
        _ => {}
    }
}

/// The report of a recording with these options, without what differs between two runs.
fn recorded(options: &[&str], program: &str) -> serde_json::Value {
    let run = Recorded::new(options, &[program]);
    assert_eq!(run.code(), Some(0), "{}", run.said());
    let name = Path::new(program).file_name().expect("a file's path");
    let name = name.to_str().expect("as above");
    let text = run.report().to_string().replace(program, "PROGRAM");
    let mut report = serde_json::from_str(&text.replace(name, "NAME")).expect("JSON");
    forget_run(&mut report);
    report
}

#[test]
fn iterations_executed_at_once_are_recorded_one_by_one() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let once = program(folder.path(), "fast_strings", "0x3e");
    let each = program(folder.path(), "slow_strings", "0x67");
    for options in [
        &["--machine", "skylake-sp"][..],
        &["--machine", "i5-6600k", "-c", "11"],
        &["--machine", "zen4", "--sets", "1/8"],
        &["--machine", "zen4", "--sets", "1/2", "--seed", "1"],
    ] {
        let (of_once, of_each) = (recorded(options, &once), recorded(options, &each));
        assert!(
            of_once["totals"]["stores"].as_i64() > Some(1_000_000),
            "{of_once}"
        );
        assert_eq!(of_once, of_each, "{options:?}");
    }
}

#[test]
fn iterations_executed_at_once_have_the_same_curve() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let curve = |name: &str, prefix: &str| {
        let program = program(folder.path(), name, prefix);
        let json = folder.path().join("curve.json");
        let mut command = memgauge();
        command
            .args(["mrc", "--exact", "--block", "64,4096"])
            .arg(format!("--json={}", json.display()))
            .args(["--", &program]);
        let output = command.output().expect("memgauge runs");
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&json).expect("a curve");
        let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        shown["curves"].to_string().replace(&program, "PROGRAM")
    };
    assert_eq!(curve("fast_strings", "0x3e"), curve("slow_strings", "0x67"));
}
