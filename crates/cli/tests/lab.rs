//! The scripts of the lab and of other kernels as far as possible without building or booting: usage
//! and wrong arguments.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the tree")
}

/// Runs a script of the tree. The folder for its builds and downloads is empty.
fn run(script: &str, arguments: &[&str], suites: &str) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(root().join(script))
        .args(arguments)
        .env("CARGO_TARGET_DIR", folder.path().join("target"))
        .env("MEMGAUGE_CACHE", folder.path().join("cache"))
        .env("LAB_SUITES", suites)
        .output()
        .expect("the script runs");
    let left = std::fs::read_dir(folder.path())
        .expect("the folder")
        .count();
    assert_eq!(left, 0, "{script} {arguments:?} built something");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_is_shown_on_standard_output() {
    for (script, word) in [
        ("lab/build", "qemu-system-x86_64"),
        ("lab/test", "LAB_SUITES"),
        ("tests/kernels/run", "--command COMMAND"),
    ] {
        for option in ["--help", "-h"] {
            let output = run(script, &[option], "");
            assert_eq!(output.status.code(), Some(0), "{script} {option}");
            let usage = text(&output.stdout);
            assert!(usage.contains(word), "`{word}` is not in {usage}");
            assert!(
                !usage.contains("SPDX") && !usage.contains("set -eu"),
                "{usage}"
            );
            assert_eq!(text(&output.stderr), "", "{script} {option}");
        }
    }
}

/// The error is one line that names the problem, and the exit code is 2.
fn refused(script: &str, arguments: &[&str], suites: &str, word: &str) {
    let output = run(script, arguments, suites);
    let said = text(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(2),
        "{script} {arguments:?}: {said}"
    );
    assert_eq!(said.lines().count(), 1, "{script} {arguments:?}: {said}");
    assert!(said.contains(word), "`{word}` is not in {said}");
    assert_eq!(text(&output.stdout), "", "{script} {arguments:?}");
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_built() {
    refused("lab/build", &["--fast"], "", "--fast");
    refused("lab/build", &["one", "two"], "", "one folder");
    refused("lab/test", &[], "", "folder");
    refused("lab/test", &["--kernel"], "", "--kernel");
    refused("lab/test", &["/nonexistent"], "", "/nonexistent/memgauge");
    let built = root().join("lab");
    let built = built.to_str().expect("a path in UTF-8");
    refused("lab/test", &[built], "suite-z80", "suite-z80");
    for (arguments, word) in [
        (&["--nodes"][..], "--nodes"),
        (&["--kernel"], "--kernel"),
        (&["--command"], "--command"),
        (&["--command", "ls", "-l"], "--command"),
        (&["--instructions", ""], "--instructions"),
        (&["--lab", "out"], "--lab"),
        (&["--lab", "", "ls"], "--lab"),
        (&["/nonexistent/test"], "/nonexistent/test"),
    ] {
        refused("tests/kernels/run", arguments, "", word);
    }
}
