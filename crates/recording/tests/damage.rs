//! Damaged recordings: intact parts are read, and the damaged ones are named.

#![allow(clippy::unwrap_used)] // in the helpers; the tests may anyway

mod rows;

use memgauge_recording::{ErrorKind, Recording, Selection, Writer};
use memgauge_testing::{Need, skipped};
use memgauge_trace::*;
use rows::{place, read, record, ticking};
use std::fs;
use std::path::{Path, PathBuf};

const PART_1: &str = "samples/part-000001.parquet";

/// A recording of three parts of samples, 0..20, 20..40 and 40..60.
fn three_parts() -> (tempfile::TempDir, PathBuf) {
    let (dir, path) = place();
    let rows: Vec<Sample> = ticking(60).collect();
    record(&path, &[&rows[..20], &rows[20..40], &rows[40..]]);
    (dir, path)
}

fn outer_parts() -> Vec<Sample> {
    ticking(60)
        .filter(|row| !(20..40).contains(&row.time_ns))
        .collect()
}

/// Returns all rows and the number of errors between them.
fn read_around(recording: &Recording) -> (Vec<Sample>, usize) {
    let mut errors = 0;
    let mut rows = Vec::new();
    for batch in recording.rows::<Sample>(&Selection::all()) {
        match batch {
            Ok(batch) => rows.extend(batch),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                errors += 1;
            }
        }
    }
    (rows, errors)
}

#[test]
fn truncated_part_keeps_the_others() {
    let (_dir, path) = three_parts();
    let whole = fs::read(path.join(PART_1)).unwrap();
    let step = (whole.len() / 250).max(1);
    for length in (0..whole.len())
        .step_by(step)
        .chain(whole.len() - 20..whole.len())
    {
        fs::write(path.join(PART_1), &whole[..length]).unwrap();
        let recording = Recording::open(&path).unwrap();
        let problems = recording.problems();
        assert_eq!(problems.len(), 1, "cut at {length}");
        assert!(problems[0].starts_with(PART_1), "{}", problems[0]);
        assert_eq!(read::<Sample>(&recording, &Selection::all()), outer_parts());
    }
}

#[test]
fn every_flipped_byte_is_noticed_and_the_other_parts_are_read() {
    let (_dir, path) = three_parts();
    let whole = fs::read(path.join(PART_1)).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(path.join(PART_1), &flipped).unwrap();
        let recording = Recording::open(&path).unwrap();
        let (rows, errors) = read_around(&recording);
        assert_eq!(recording.problems().len() + errors, 1, "flipped at {at}");
        assert_eq!(rows, outer_parts());
    }
}

#[test]
fn a_missing_part_is_named() {
    let (_dir, path) = three_parts();
    fs::remove_file(path.join(PART_1)).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(
        recording.problems(),
        ["samples: part-000001.parquet is missing"]
    );
    assert_eq!(read::<Sample>(&recording, &Selection::all()), outer_parts());
}

#[test]
fn a_part_that_is_a_directory_is_named() {
    let (_dir, path) = three_parts();
    fs::remove_file(path.join(PART_1)).unwrap();
    fs::create_dir(path.join(PART_1)).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(
        recording.problems(),
        [format!("{PART_1}: cannot be read (not a regular file)")]
    );
    assert_eq!(read::<Sample>(&recording, &Selection::all()), outer_parts());
}

#[test]
fn a_part_of_another_table_is_an_error_not_rows() {
    let (_dir, path) = three_parts();
    fs::create_dir(path.join("overflows")).unwrap();
    fs::create_dir(path.join("sites")).unwrap();
    fs::copy(path.join(PART_1), path.join("sites/part-000000.parquet")).unwrap();
    let recording = Recording::open(&path).unwrap();
    let sites: Vec<_> = recording.rows::<SiteCount>(&Selection::all()).collect();
    assert_eq!(sites.len(), 1);
    assert!(
        sites[0]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("no column `count`")
    );
}

#[test]
fn a_killed_writer_leaves_its_closed_parts() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.extend(ticking(20)).unwrap();
    writer.flush().unwrap();
    writer.extend(ticking(9_000)).unwrap();
    // A killed process runs no destructors.
    std::mem::forget(writer);
    assert!(path.join("samples/.part-000001.parquet.tmp").exists());
    let recording = Recording::open(&path).unwrap();
    assert!(!recording.manifest().complete);
    assert_eq!(recording.problems(), Vec::<String>::new());
    assert_eq!(
        read::<Sample>(&recording, &Selection::all()),
        ticking(20).collect::<Vec<_>>()
    );
}

#[test]
fn a_dropped_writer_leaves_its_closed_parts_and_no_temporary_file() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.extend(ticking(20)).unwrap();
    writer.flush().unwrap();
    writer.extend(ticking(9_000)).unwrap();
    drop(writer);
    assert_eq!(fs::read_dir(path.join("samples")).unwrap().count(), 1);
    let recording = Recording::open(&path).unwrap();
    assert_eq!(read::<Sample>(&recording, &Selection::all()).len(), 20);
}

fn refusal(path: &Path) -> (ErrorKind, String) {
    let error = Recording::open(path).unwrap_err();
    (error.kind(), error.to_string())
}

#[track_caller]
fn check_refused(path: &Path, kind: ErrorKind, part: &str) {
    let (found, message) = refusal(path);
    assert_eq!(found, kind, "{message}");
    assert!(message.contains(part), "{message}");
    assert!(message.contains(path.to_str().unwrap()), "{message}");
}

#[test]
fn input_that_is_not_a_recording_is_refused_with_the_reason() {
    let (dir, path) = place();
    check_refused(&path, ErrorKind::NotARecording, "no such directory");
    fs::create_dir(&path).unwrap();
    check_refused(&path, ErrorKind::NotARecording, "no manifest.json");
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    check_refused(&file, ErrorKind::NotARecording, "memgauge pack");
    check_refused(&file.join("below"), ErrorKind::Io, "Not a directory");
}

#[test]
fn a_manifest_that_cannot_be_trusted_is_corrupt() {
    let (_dir, path) = place();
    fs::create_dir(&path).unwrap();
    let nested = "[".repeat(100_000);
    let cases = [
        ("", "not JSON"),
        ("\0\0\0", "not JSON"),
        ("{\"format_version\":1", "not JSON"),
        (nested.as_str(), "not JSON"),
        ("[]", "no format version"),
        ("{}", "no format version"),
        ("{\"format_version\":0}", "no format version"),
        ("{\"format_version\":1,\"events\":7}", "expected a sequence"),
    ];
    for (text, why) in cases {
        fs::write(path.join("manifest.json"), text).unwrap();
        check_refused(&path, ErrorKind::Corrupt, why);
    }
}

#[test]
fn a_newer_version_asks_for_an_update() {
    let (_dir, path) = place();
    fs::create_dir(&path).unwrap();
    fs::write(
        path.join("manifest.json"),
        r#"{"format_version":2,"events":"other"}"#,
    )
    .unwrap();
    check_refused(&path, ErrorKind::NewerVersion, "format version 2");
}

#[test]
fn a_manifest_of_few_fields_and_unknown_ones_opens() {
    let (_dir, path) = place();
    fs::create_dir(&path).unwrap();
    fs::write(
        path.join("manifest.json"),
        r#"{"format_version":1,"later":[1]}"#,
    )
    .unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!(
        *recording.manifest(),
        Manifest {
            format_version: 1,
            ..Manifest::default()
        }
    );
}

fn creation_refusal(path: &Path) -> String {
    Writer::create(path, Manifest::default())
        .err()
        .unwrap()
        .to_string()
}

#[test]
fn a_recording_is_not_begun_where_something_is() {
    let (dir, path) = three_parts();
    assert!(creation_refusal(&path).contains("not empty; remove it or choose another name"));
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(creation_refusal(&file).contains("a file of that name exists"));
    let orphan = dir.path().join("a/b.mg");
    assert!(creation_refusal(&orphan).contains("create it first (mkdir -p"));
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(Writer::create(&empty, Manifest::default()).is_ok());
}

/// Changes the manifest's text, like an editor or a failing disk.
fn alter_manifest(path: &Path, from: &str, to: &str) {
    let file = path.join("manifest.json");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn one_altered_digit_of_the_manifest_is_noticed_and_its_counts_not_used() {
    let (_dir, path) = place();
    let mut writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.push(SeriesRow::default()).unwrap();
    writer
        .finish(|m| m.totals.extend([("llc.miss".to_owned(), 1234)]))
        .unwrap();
    let sound = Recording::open(&path).unwrap();
    assert_eq!(sound.problems(), Vec::<String>::new());
    assert_eq!(sound.manifest().totals["llc.miss"], 1234);
    alter_manifest(&path, "1234", "9234");
    let altered = Recording::open(&path).unwrap();
    assert!(altered.problems()[0].contains("checksum"), "{altered:?}");
    assert!(altered.manifest().totals.is_empty());
}

#[test]
fn the_manifests_checksum_is_what_any_crc32_says() {
    let (_dir, path) = place();
    let writer = Writer::create(&path, Manifest::default()).unwrap();
    writer.finish(|_| {}).unwrap();
    let script = "import json, re, sys, zlib\n\
         raw = open(sys.argv[1], 'rb').read()\n\
         told = json.loads(raw)['checksum']\n\
         blank = raw[:-12] + b'0' * 8 + raw[-4:]\n\
         assert int(told, 16) == zlib.crc32(blank), (told, zlib.crc32(blank))\n";
    let checked = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(path.join("manifest.json"))
        .output();
    match checked {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(e) => skipped(Need::Tool, format!("no python3: {e}")),
    }
}

#[test]
fn a_table_whose_only_or_last_part_is_gone_is_noticed() {
    let (_dir, path) = three_parts();
    let table = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|entry| entry.join("part-000002.parquet").exists())
        .unwrap();
    fs::remove_file(table.join("part-000002.parquet")).unwrap();
    let problems = Recording::open(&path).unwrap().problems();
    assert!(
        problems[0].contains("part-000002.parquet is missing"),
        "{problems:?}"
    );
    fs::remove_dir_all(&table).unwrap();
    let problems = Recording::open(&path).unwrap().problems();
    assert!(
        problems[0].contains("part-000000.parquet to part-000002.parquet are missing"),
        "{problems:?}"
    );
}
