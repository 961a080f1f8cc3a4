//! `memgauge bandwidth` and `memgauge calibrate` end to end.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{memgauge, needs, workloads};
use serde_json::Value;

fn stderr_of(args: &[&str]) -> (Option<i32>, String) {
    let output = memgauge().args(args).output().expect("memgauge runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn total_bytes_are_those_of_memory_within_a_per_cent_once_corrected() {
    if !needs(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let calibrated = memgauge()
        .env("XDG_CONFIG_HOME", dir.path())
        .args([
            "calibrate",
            "--machine",
            "i5-6600k",
            "-c",
            "100,200,500,1000",
            "--repeat",
            "1",
            "--json",
        ])
        .output()
        .expect("memgauge runs");
    let calibration: Value = serde_json::from_slice(&calibrated.stdout).expect("JSON");
    assert!(
        calibration["measured"]
            .as_array()
            .is_some_and(|m| m.len() == 36)
    );
    for period in ["100", "300", "1000"] {
        let recording = dir.path().join(format!("{period}.mg"));
        let output = memgauge()
            .env("XDG_CONFIG_HOME", dir.path())
            .args([
                "bandwidth",
                "--machine",
                "i5-6600k",
                "--json",
                "-c",
                period,
                "-o",
            ])
            .arg(&recording)
            .args([
                "--",
                workloads(),
                "linear",
                "--bytes",
                "32MiB",
                "--stride",
                "64",
            ])
            .output()
            .expect("memgauge runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let shown: Value = serde_json::from_str(&text).expect(&text);
        let bytes = shown["bytes"].as_f64().expect("bytes");
        let truth = shown["reference"]["bytes"].as_f64().expect("a reference");
        let raw = shown["raw_bytes"].as_f64().expect("raw bytes");
        assert!(
            (bytes / truth - 1.0).abs() < 0.01,
            "{period}: {bytes} of {truth}"
        );
        assert!(
            raw / truth < 0.98,
            "{period}: nothing was lost: {raw} of {truth}"
        );
        let error = shown["reference"]["mean_error"].as_f64().expect("an error");
        assert!(error < 0.05, "{period}: {error}");
        let calibration = shown["correction"].as_str().unwrap_or_default();
        assert!(
            calibration.contains("calibration of i5-6600k"),
            "{calibration}"
        );
    }
    let recording = dir.path().join("300.mg");
    let csv = memgauge()
        .args([
            "bandwidth",
            "--csv",
            "--bin",
            "10us",
            "--from",
            "1ms",
            "--to",
            "2ms",
            "-i",
        ])
        .arg(&recording)
        .output()
        .expect("memgauge runs");
    let lines = String::from_utf8_lossy(&csv.stdout).lines().count();
    let said = String::from_utf8_lossy(&csv.stderr);
    assert_eq!(lines, 1 + 100, "{said}");
}

#[test]
fn a_period_longer_than_the_run_says_so() {
    if !needs(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let output = memgauge()
        .args([
            "bandwidth",
            "--machine",
            "i5-6600k",
            "-q",
            "-c",
            "1000000000",
            "-o",
        ])
        .arg(dir.path().join("r.mg"))
        .args(["--", "true"])
        .output()
        .expect("memgauge runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(
        text.contains("no counter overflowed") && text.contains("-c"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_is_one_line_and_the_right_code() {
    let check = |args: &[&str], code: i32, says: &str| {
        let (found, text) = stderr_of(args);
        assert_eq!(found, Some(code), "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
    };
    check(&["bandwidth", "-a"], 125, "failed to trace overflows");
    check(&["bandwidth", "-p", "1"], 125, "failed to trace overflows");
    check(&["bandwidth", "-i", "/nowhere.mg"], 125, "/nowhere.mg");
    check(&["bandwidth"], 2, "required");
    check(
        &["bandwidth", "--delivery", "pigeon", "--", "true"],
        2,
        "there is no delivery",
    );
    check(
        &["bandwidth", "--correct", "-3", "--", "true"],
        2,
        "expected",
    );
    check(&["bandwidth", "--bin", "10ns", "--", "true"], 2, "shortest");
    check(&["calibrate", "--delivery", "ideal"], 125, "loses nothing");
}
