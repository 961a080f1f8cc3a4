//! Recordings as one file: equal to the directory, whatever is damaged, and harmless.

#![allow(clippy::unwrap_used)] // in the helpers; the tests may anyway

mod rows;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use memgauge_recording::{Copies, ErrorKind, Recording, Selection, is_recording, pack};
use memgauge_testing::Random;
use memgauge_trace::*;
use rows::{place, read, record, ticking};

const BLOCK_BYTES: usize = 512;

/// A recording of two parts of samples with a copy of a file.
fn recorded() -> (tempfile::TempDir, PathBuf) {
    let (folder, path) = place();
    let rows: Vec<Sample> = ticking(40).collect();
    record(&path, &[&rows[..20], &rows[20..]]);
    fs::create_dir(path.join("files")).unwrap();
    fs::write(path.join("files/00ff"), "content").unwrap();
    (folder, path)
}

fn packed(recording: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert_eq!(pack(recording, &mut bytes).unwrap(), Vec::<String>::new());
    bytes
}

/// Writes an archive beside the recording.
fn put(recording: &Path, bytes: &[u8]) -> PathBuf {
    let path = recording.with_extension("tar");
    fs::write(&path, bytes).unwrap();
    path
}

/// A member with this name, type and content. Its header claims `bytes`.
fn member(name: &str, kind: u8, content: &[u8], bytes: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..135].copy_from_slice(format!("{bytes:011o}").as_bytes());
    block[148..156].fill(b' ');
    block[156] = kind;
    // The target of a link.
    block[157..168].copy_from_slice(b"/etc/passwd");
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block.extend_from_slice(content);
    block.resize(block.len().next_multiple_of(BLOCK_BYTES), 0);
    block
}

#[test]
fn archive_has_the_rows_facts_and_copies_of_the_directory() {
    let (_folder, path) = recorded();
    let archive = put(&path, &packed(&path));
    assert!(is_recording(&path) && is_recording(&archive));
    let [from_directory, from_archive] =
        [&path, &archive].map(|path| Recording::open(path).unwrap());
    assert_eq!(from_archive.problems(), Vec::<String>::new());
    assert_eq!(from_archive.manifest(), from_directory.manifest());
    let selections = [Selection::all(), Selection::all().time(15..25)];
    for selection in selections {
        let rows = read::<Sample>(&from_archive, &selection);
        assert!(!rows.is_empty());
        assert_eq!(rows, read::<Sample>(&from_directory, &selection));
    }
    let copy = Copies::of(&archive).find("00ff");
    assert_eq!(fs::read_to_string(&copy.path).unwrap(), "content");
    assert_eq!(copy.name, archive.join("files/00ff"));
    assert!(!Copies::of(&archive).find("00fe").path.exists());
}

#[test]
fn equal_recordings_give_equal_archives() {
    let ((_a, one), (_b, other)) = (recorded(), recorded());
    fs::copy(one.join("manifest.json"), other.join("manifest.json")).unwrap();
    // Other files are no part of a recording.
    fs::write(other.join("notes.txt"), "mine").unwrap();
    fs::write(other.join("samples/.part-000002.parquet.tmp"), "").unwrap();
    assert_eq!(packed(&one), packed(&other));
}

#[test]
fn links_are_not_packed() {
    let (_folder, path) = recorded();
    let whole = packed(&path);
    for name in ["files/link", "samples/part-000002.parquet"] {
        symlink("/etc/passwd", path.join(name)).unwrap();
    }
    let mut bytes = Vec::new();
    let left_out = pack(&path, &mut bytes).unwrap();
    assert_eq!(bytes, whole);
    assert_eq!(left_out.len(), 2, "{left_out:?}");
}

#[test]
fn archive_and_other_files_are_not_packed() {
    let (_folder, path) = recorded();
    let archive = put(&path, &packed(&path));
    for path in [
        archive.as_path(),
        &path.join("manifest.json"),
        Path::new("/nowhere"),
    ] {
        let error = pack(path, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotARecording, "{error}");
    }
}

#[test]
fn truncated_archive_keeps_whole_members_and_says_so_once() {
    let (_folder, path) = recorded();
    let whole = packed(&path);
    let manifest_bytes = fs::metadata(path.join("manifest.json")).unwrap().len() as usize;
    let end_of_parts = whole.len() - 4 * BLOCK_BYTES;
    for length in (0..whole.len() - 2 * BLOCK_BYTES).step_by(37) {
        let archive = put(&path, &whole[..length]);
        match Recording::open(&archive) {
            Err(error) => {
                assert!(length < BLOCK_BYTES + manifest_bytes, "{length}: {error}");
                assert_eq!(error.kind(), ErrorKind::NotARecording);
            }
            Ok(recording) => {
                let problems = recording.problems();
                assert_eq!(problems.len(), 1, "{length}: {problems:?}");
                assert!(problems[0].contains("truncated"), "{problems:?}");
                assert!(recording.is_damaged());
                let rows = read::<Sample>(&recording, &Selection::all());
                let expected = if length < end_of_parts {
                    rows.len()
                } else {
                    40
                };
                assert!(
                    [0, 20, 40].contains(&expected),
                    "{expected} rows at {length}"
                );
                assert_eq!(rows, ticking(40).take(expected).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn members_that_do_not_belong_to_a_recording_are_passed_over() {
    let (folder, path) = recorded();
    let whole = packed(&path);
    let end = whole.len() - 2 * BLOCK_BYTES;
    let before: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    let strange = [
        ("../escaped", b'0'),
        ("/tmp/memgauge-escaped", b'0'),
        ("files/../../escaped", b'0'),
        ("files/link", b'2'),
        ("samples/part-000002.parquet", b'1'),
        ("samples/part-2.parquet", b'0'),
        ("unknown/part-000000.parquet", b'0'),
        ("pipe", b'6'),
    ];
    for (name, kind) in strange {
        let mut bytes = whole[..end].to_vec();
        bytes.extend(member(name, kind, b"", 0));
        bytes.extend_from_slice(&whole[end..]);
        let archive = put(&path, &bytes);
        let recording = Recording::open(&archive).unwrap();
        assert_eq!(recording.problems(), Vec::<String>::new(), "{name}");
        assert_eq!(read::<Sample>(&recording, &Selection::all()).len(), 40);
        assert!(!Copies::of(&archive).find("link").path.exists());
        assert!(!Copies::of(&archive).find("../../escaped").path.exists());
        fs::remove_file(archive).unwrap();
    }
    let after: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(before.len(), after.len());
}

#[test]
fn lying_headers_are_refused_without_large_allocations() {
    let (_folder, path) = recorded();
    let whole = packed(&path);
    let end = whole.len() - 2 * BLOCK_BYTES;
    // The largest size of a header, in a file of a few kilobytes.
    let huge = member("samples/part-000002.parquet", b'0', b"", (1 << 33) - 1);
    let twice = member("manifest.json", b'0', b"{}", 2);
    for (added, word) in [(huge, "truncated"), (twice, "twice")] {
        let bytes = [&whole[..end], &added, &whole[end..]].concat();
        let recording = Recording::open(&put(&path, &bytes)).unwrap();
        let problems = recording.problems();
        assert!(
            problems.len() == 1 && problems[0].contains(word),
            "{problems:?}"
        );
        assert_eq!(recording.manifest().format_version, 1);
    }
    for first in [
        member("manifest.json", b'2', b"", 0),
        member("manifest.json", b'0', b"", (1 << 33) - 1),
        member("other", b'0', b"", 0),
        b"PAR1".repeat(1000),
        Vec::new(),
    ] {
        let error = Recording::open(&put(&path, &first)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotARecording, "{error}");
    }
}

#[test]
fn changed_bytes_never_give_other_rows() {
    let (_folder, path) = recorded();
    let whole = packed(&path);
    let mut random = Random::of_test("changes");
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            let at = random.index(bytes.len());
            bytes[at] = random.below(256) as u8;
        }
        let Ok(recording) = Recording::open(&put(&path, &bytes)) else {
            continue;
        };
        let read = recording.rows::<Sample>(&Selection::all());
        let (good, bad): (Vec<_>, Vec<_>) = read.partition(Result::is_ok);
        let rows: Vec<Sample> = good.into_iter().flatten().flatten().collect();
        let known: Vec<Sample> = ticking(40).collect();
        assert!(rows.iter().all(|row| known.contains(row)));
        let is_noticed = !bad.is_empty() || recording.is_damaged();
        assert!(rows.len() == known.len() || is_noticed);
    }
}
