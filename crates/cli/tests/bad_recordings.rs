//! Files that are not recordings, and truncated or damaged recordings: the damage is named and the rest is shown.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::fs;
use std::path::{Path, PathBuf};

use harness::{Recorded, check_line, memgauge, needs, report, said, workloads};

const DAMAGED: i32 = 3;
const FAILED: i32 = 125;

/// A sound recording to spoil.
fn sound() -> Recorded {
    let recorded = Recorded::new(&["-e", "l1d.miss:7"], &["/bin/true"]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    recorded
}

#[test]
fn input_that_is_not_a_recording_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("file");
    let folder_name = folder.path().to_str().expect("temporary paths are text");
    check_line(
        &report(&folder.path().join("nowhere.mg")),
        FAILED,
        &["nowhere.mg"],
    );
    check_line(
        &report(folder.path()),
        FAILED,
        &[folder_name, "memgauge record"],
    );
    fs::write(&file, "PAR1").expect("a file can be written");
    check_line(&report(&file), FAILED, &["file"]);
    check_line(
        &report(folder.path()),
        FAILED,
        &[folder_name, "memgauge record"],
    );
}

fn spoil(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("the file is there");
    change(&mut bytes);
    fs::write(path, bytes).expect("the file can be written");
}

#[test]
fn a_manifest_that_is_cut_off_or_newer_is_refused() {
    if !needs(&[]) {
        return;
    }
    let recorded = sound();
    let manifest = recorded.path().join("manifest.json");
    spoil(&manifest, |bytes| {
        let text = String::from_utf8_lossy(bytes)
            .replace("\"format_version\": 1", "\"format_version\": 99");
        *bytes = text.into_bytes();
    });
    check_line(&report(&recorded.path()), FAILED, &["99", "version"]);
    spoil(&manifest, |bytes| bytes.truncate(bytes.len() / 2));
    check_line(&report(&recorded.path()), FAILED, &["manifest.json"]);
    spoil(&manifest, Vec::clear);
    check_line(&report(&recorded.path()), FAILED, &["manifest.json"]);
}

/// The first part of a table.
fn part(recorded: &Recorded, table: &str) -> PathBuf {
    recorded.path().join(table).join("part-000000.parquet")
}

/// Reports on a recording with damaged samples. The report names them and shows the rest.
fn check_spoilt(change: impl FnOnce(&mut Vec<u8>)) {
    let recorded = sound();
    spoil(&part(&recorded, "samples"), change);
    let output = report(&recorded.path());
    check_line(&output, DAMAGED, &["samples/part-000000.parquet"]);
    let shown: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("the report is JSON");
    assert_eq!(shown["totals"], recorded.manifest()["totals"]);
    assert_eq!(
        shown["problems"].as_array().map(Vec::len),
        Some(1),
        "{}",
        shown["problems"]
    );
}

#[test]
fn a_spoilt_part_is_named_and_the_rest_is_shown() {
    if !needs(&[]) {
        return;
    }
    check_spoilt(|bytes| bytes.truncate(bytes.len() / 2));
    check_spoilt(Vec::clear);
    check_spoilt(|bytes| {
        let at = bytes.len() - 100;
        bytes[at] ^= 1;
    });
    check_spoilt(|bytes| bytes[100] ^= 1);
}

#[test]
fn curves_of_spoilt_samples_do_not_blame_the_source() {
    if !needs(&[]) {
        return;
    }
    let recorded = sound();
    spoil(&part(&recorded, "samples"), |bytes| bytes.truncate(100));
    let output = memgauge().arg("mrc").arg(recorded.path()).output();
    let output = output.expect("memgauge runs");
    assert_eq!(output.status.code(), Some(FAILED));
    let said = said(&output);
    assert!(said.contains("samples/part-000000.parquet"), "{said}");
    assert!(
        said.contains("no remaining sample has an address"),
        "{said}"
    );
    assert!(!said.contains("source"), "{said}");
}

#[test]
fn an_export_to_perf_names_missing_parts() {
    if !needs(&[]) {
        return;
    }
    let recorded = sound();
    std::fs::remove_file(part(&recorded, "modules")).expect("the part is there");
    let made = recorded.path().with_extension("data");
    let mut command = memgauge();
    command.arg("export").arg(recorded.path());
    let output = command.args(["-f", "perf", "-o"]).arg(made).output();
    let output = output.expect("memgauge runs");
    check_line(
        &output,
        DAMAGED,
        &["modules", "part-000000.parquet is missing"],
    );
}

#[test]
fn an_export_of_places_takes_samples_where_the_exact_sums_are_missing() {
    if !needs(&[]) {
        return;
    }
    let recorded = Recorded::new(
        &["-e", "loads:100", "--machine", "i5-6600k"],
        &[workloads(), "rand", "--bytes", "1MiB", "--steps", "100k"],
    );
    std::fs::remove_dir_all(recorded.path().join("sites")).expect("the table is there");
    for format in ["folded", "pprof", "callgrind"] {
        let mut command = memgauge();
        command.arg("export").arg(recorded.path());
        let output = command.args(["-f", format, "-o", "-"]).output();
        let output = output.expect("memgauge runs");
        assert_eq!(
            output.status.code(),
            Some(DAMAGED),
            "{format}: {}",
            said(&output)
        );
        assert!(said(&output).contains("sites"), "{}", said(&output));
        assert!(!output.stdout.is_empty(), "{format}");
        if format == "folded" {
            // The loop of the workload makes nearly all loads, and each sample represents 100
            // loads.
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let counts = text.lines().filter_map(|line| line.rsplit_once(' '));
            let counts: Vec<u64> = counts.filter_map(|(_, n)| n.parse().ok()).collect();
            let loads = recorded.totals()["loads"] as u64;
            let found: u64 = counts.iter().sum();
            assert!(found.abs_diff(loads) <= loads / 100, "{found} of {loads}");
            assert!(text.contains("rand"), "functions have names: {text}");
        }
    }
}
