//! `memgauge bandwidth` and `memgauge calibrate` end to end.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{memgauge, needs, workloads};
use memgauge_testing::{Need, skipped};
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
fn a_recording_of_samples_is_no_trace_of_overflows() {
    if !needs(&[]) {
        return;
    }
    let recorded = harness::Recorded::new(&["-e", "llc.miss:97"], &["ls", "/usr/bin"]);
    let output = memgauge()
        .args(["bandwidth", "-i"])
        .arg(recorded.folder.path().join("run.mg"))
        .output();
    let output = output.expect("memgauge runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("no trace of overflows"), "{text}");
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
fn impossible_requests_are_refused_in_one_line_with_the_right_code() {
    let check = |args: &[&str], code: i32, says: &str| {
        let (found, text) = stderr_of(args);
        assert_eq!(found, Some(code), "{args:?}: {text}");
        assert!(text.contains(says), "{args:?}: {text}");
    };
    let no_pmu = !std::path::Path::new("/sys/bus/event_source/devices/cpu").exists();
    if no_pmu {
        check(&["bandwidth", "-a"], 125, "no PMU");
        check(&["bandwidth", "-p", "1"], 125, "no PMU");
    }
    let live = ["bandwidth", "-e", "page-faults", "-p", "4194304"];
    check(&live, 125, "4194304");
    check(&["bandwidth", "-e", "pigeons", "--", "true"], 2, "pigeons");
    let coarse = ["bandwidth", "--resolution", "1s", "--", "true"];
    check(&coarse, 2, "expected `exact` or a time");
    check(&["bandwidth", "--repeat", "0", "--", "true"], 2, "repeat");
    check(&["bandwidth", "-i", "/nowhere.mg"], 125, "/nowhere.mg");
    check(&["bandwidth"], 2, "required");
    check(
        &["bandwidth", "--delivery", "pigeon", "--", "true"],
        2,
        "unknown delivery",
    );
    check(
        &["bandwidth", "--correct", "-3", "--", "true"],
        2,
        "expected",
    );
    check(
        &["bandwidth", "--bin", "10ns", "--", "true"],
        2,
        "at least 1us",
    );
    check(&["calibrate", "--delivery", "ideal"], 2, "loses nothing");
}

/// The JSON of a trace of live page faults of a program, if this machine lets us trace
/// them. How many there are differs a little from run to run.
fn faults(options: &[&str]) -> Option<Value> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = memgauge();
    command.args(["bandwidth", "-e", "page-faults:u", "-q", "--json", "-o"]);
    command.arg(dir.path().join("live.mg")).args(options);
    command.args([
        "--",
        "dd",
        "if=/dev/zero",
        "of=/dev/null",
        "bs=4M",
        "count=1",
    ]);
    let output = command.output().expect("memgauge runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let Some(at) = text.find("{\n").filter(|_| output.status.success()) else {
        skipped(Need::Kernel, text);
        return None;
    };
    let end = text.rfind("\n}").map_or(text.len(), |end| end + 2);
    Some(serde_json::from_str(&text[at..end]).expect("JSON"))
}

#[test]
fn live_faults_are_pages_each_and_periods_add_up() {
    let Some(each) = faults(&["-c", "1", "--resolution", "exact"]) else {
        return;
    };
    let pages = each["overflows"].as_f64().expect("a number");
    assert!(pages >= 40.0, "even the loader takes more: {pages}");
    assert_eq!(each["bytes"].as_f64(), Some(pages * 4096.0));
    assert_eq!(each["resolution_ns"].as_u64(), Some(1));
    let some = faults(&["-c", "10", "--bytes", "100"]).expect("as before");
    let total = some["bytes"].as_f64().expect("a number");
    // The counters' remainder is after the last overflow.
    assert!((total / 100.0 / pages - 1.0).abs() < 0.2, "{total} {pages}");
}

#[test]
fn controllers_counters_are_the_reference_and_repeated_runs_have_an_error() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let count = "0.000001 0 uncore_imc_0/event=0x4,umask=0x3/ 1000\n";
    std::fs::write(file.path(), format!("platform skylake-sp\n{count}")).expect("written");
    let path = file.path().to_str().expect("a path");
    let Some(shown) = faults(&["-c", "1", "--counters", path, "--repeat", "3"]) else {
        return;
    };
    assert_eq!(
        shown["reference"]["event"].as_str(),
        Some("dram.read_bytes")
    );
    assert_eq!(shown["runs"]["bytes"].as_array().map(Vec::len), Some(3));
    let mean = shown["runs"]["mean"].as_f64().expect("a mean");
    assert!((mean / shown["bytes"].as_f64().expect("bytes") - 1.0).abs() < 0.2);
    assert!(shown["runs"]["error"].as_f64().is_some_and(|e| e >= 0.0));
}

#[test]
fn faults_are_neither_corrected_by_memorys_counter_nor_by_the_size_of_its_counts() {
    let dir = tempfile::tempdir().expect("a directory");
    // Traffic in many intervals, then one count of 3e11 lines in a single interval.
    let mut counts = "platform skylake-sp\n".to_owned();
    for n in 1..=40 {
        let lines: u64 = if n < 40 { 3_000 } else { 300_000_000_000 };
        counts += &format!(
            "{:.6} 0 uncore_imc_0/event=0x4,umask=0x3/ {lines}\n",
            1e-4 * f64::from(n)
        );
    }
    let counters = dir.path().join("counters");
    std::fs::write(&counters, counts).expect("written");
    let recording = dir.path().join("live.mg");
    let recorded = memgauge()
        .args([
            "bandwidth",
            "-e",
            "page-faults:u",
            "-c",
            "1",
            "-q",
            "--counters",
        ])
        .arg(&counters)
        .arg("-o")
        .arg(&recording)
        .args([
            "--",
            "sh",
            "-c",
            // The counters cover the first 4 ms. A fast machine needs less than that for dd.
            "sleep 0.1; exec dd if=/dev/zero of=/dev/null bs=4M count=1",
        ])
        .output()
        .expect("memgauge runs");
    if !recorded.status.success() {
        skipped(Need::Kernel, String::from_utf8_lossy(&recorded.stderr));
        return;
    }
    // A list of all overflows of this many lines would take terabytes.
    let shown = std::process::Command::new("sh")
        .args([
            "-c",
            "ulimit -v 8000000; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_memgauge"),
        ])
        .args(["bandwidth", "--json", "-i"])
        .arg(&recording)
        .output()
        .expect("sh runs");
    let text = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success(), "{text}");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert!(
        shown["reference"]["bytes"]
            .as_f64()
            .is_some_and(|b| b > 1e13)
    );
    assert!(shown["correction"].is_null(), "{shown}");
    let pages = shown["overflows"].as_f64().expect("a number");
    assert_eq!(shown["bytes"].as_f64(), Some(pages * 4096.0));
}
