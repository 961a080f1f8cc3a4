//! Wrong command lines: exit code 2 and the right form.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::fs;
use std::path::Path;
use std::process::Output;

use harness::{Recorded, check_line, folder, memgauge, said, write_machine};

const USAGE: i32 = 2;
const FAILED: i32 = 125;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

fn record_with(options: &[&str]) -> Output {
    let recorded = Recorded::new(options, &["/bin/true"]);
    assert!(!recorded.path().exists(), "a recording was begun");
    recorded.output
}

/// A mistake on the command line: the line names the fix, and usage may follow.
fn check_usage(options: &[&str], words: &[&str]) {
    let output = record_with(options);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(USAGE), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn usage_errors_name_what_would_be_right() {
    check_usage(
        &["-e", "llc.mis"],
        &["`llc.mis`", "llc.miss", "memgauge list"],
    );
    check_usage(&["-e", "llc.miss:0"], &["period", "positive"]);
    check_usage(&["-I", "999ns"], &["1us"]);
    check_usage(&["-I", "0"], &["1us"]);
    check_usage(&["-I", "5parsecs"], &["parsecs", "ns, us, ms, s or min"]);
    check_usage(&["-c", "0"], &["1"]);
}

#[test]
fn an_unknown_machine_lists_those_there_are() {
    check_line(
        &record_with(&["--machine", "cray-1"]),
        USAGE,
        &["cray-1", "zen5", "i5-6600k", "JSON"],
    );
}

#[test]
fn a_machine_file_that_makes_no_sense_is_named() {
    let folder = folder();
    let path = folder.path().join("machine.json");
    let options = ["--machine", text(&path)];
    fs::write(&path, "{ not JSON").expect("the file can be written");
    check_line(&record_with(&options), FAILED, &["machine.json"]);
    fs::write(&path, "{}").expect("the file can be written");
    check_line(
        &record_with(&options),
        FAILED,
        &["machine.json", "missing field"],
    );
    write_machine(&path, [(32, 7), (256, 8), (1024, 16)]);
    check_line(&record_with(&options), FAILED, &["l1d"]);
    write_machine(&path, [(32, 0), (256, 8), (1024, 16)]);
    check_line(&record_with(&options), FAILED, &["l1d"]);
    check_line(
        &record_with(&["--machine", text(folder.path())]),
        FAILED,
        &[text(folder.path())],
    );
}

/// Asserts that these arguments are a usage error of one line that contains all of `words`.
fn check_verb(arguments: &[&str], words: &[&str]) {
    let folder = folder();
    let mut command = memgauge();
    command.args(arguments).current_dir(folder.path());
    check_line(&command.output().expect("memgauge runs"), USAGE, words);
    let left = fs::read_dir(folder.path()).expect("the folder is there");
    assert_eq!(left.count(), 0, "{arguments:?} left something behind");
}

#[test]
fn every_usage_error_ends_with_2() {
    let record = |options: &[&'static str], words: &[&str]| {
        check_verb(&[&["record"], options, &["--", "true"]].concat(), words);
    };
    check_verb(
        &["record", "--source", "emulate", "-p", "1"],
        &["source emulate", "--source clock"],
    );
    record(&["--source", "pmu"], &["name an event"]);
    record(&["--machine", "nosuch"], &["`nosuch`", "zen5"]);
    check_verb(&["calibrate", "--delivery", "ideal"], &["--delivery"]);
    check_verb(
        &["stat", "--source", "emulate", "-p", "1"],
        &["source emulate"],
    );
    check_verb(
        &["stat", "--source", "emulate", "-e", "nosuch", "--", "true"],
        &["`nosuch`"],
    );
    check_verb(
        &[
            "bandwidth",
            "-e",
            "page-faults,minor-faults",
            "--source",
            "pmu",
            "--delivery",
            "interrupt",
            "--",
            "true",
        ],
        &["name one event"],
    );
}

#[test]
fn curves_that_are_to_be_recorded_are_told_how_they_are_written() {
    check_verb(
        &["mrc", "-o", "c.json", "--", "true"],
        &["-o c.json", "--json=c.json", "--html=c.json"],
    );
}

#[test]
fn an_event_of_the_kernel_among_modelled_ones_is_told_from_an_unknown_one() {
    check_verb(
        &["record", "-e", "page-faults:5,nosuch", "--", "true"],
        &["`page-faults` is counted by the kernel", "-c"],
    );
}

#[test]
fn an_option_that_would_be_ignored_beside_another_is_refused() {
    let stat = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/recordings/stat.mg"
    );
    for arguments in [
        &["report", stat, "--json", "--curves", "c.json"][..],
        &["report", stat, "--baseline", "b", "-o", "f"],
        &[
            "mrc",
            "--by",
            "module",
            "--phase-size",
            "1MiB",
            "--",
            "true",
        ],
        &["mrc", "--per-thread", "--phase-window", "5", "--", "true"],
        &["bandwidth", "--against", stat, "--", "true"],
    ] {
        let mut command = memgauge();
        let output = command.args(arguments).output().expect("memgauge runs");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(USAGE), "{arguments:?}: {said}");
        assert!(
            said.contains("cannot be used with"),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn an_option_that_a_source_would_ignore_is_refused() {
    let check = |options: &[&'static str], option: &str| {
        let all = [&["record"], options, &["--", "true"]].concat();
        check_verb(&all, &["has no use for", option]);
    };
    check(&["--overhead", "2%"], "--overhead");
    check(&["--source", "emulate", "--registers"], "--registers");
    check(&["--source", "emulate", "-F", "100"], "-F");
    check(&["--source", "clock", "-e", "page-faults"], "-e");
    check(&["--source", "clock", "-c", "100"], "-c");
    check(&["--source", "clock", "--machine", "zen4"], "--machine");
    check(
        &["-e", "page-faults", "--delivery", "precise"],
        "--delivery",
    );
}
