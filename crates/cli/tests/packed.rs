//! `memgauge pack` writes a recording as one file, which every command reads.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use harness::{Recorded, check_line, memgauge, needs, report, said, workloads};

const DAMAGED: i32 = 3;
const FAILED: i32 = 125;

/// Packs a recording, to its name and `.tar`.
fn packed(recording: &Path) -> PathBuf {
    let output = memgauge().arg("pack").arg(recording).output();
    let output = output.expect("memgauge runs");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let mut path = recording.as_os_str().to_owned();
    path.push(".tar");
    path.into()
}

fn run(words: &[&str], recording: &Path) -> Output {
    let output = memgauge().args(words).arg(recording).output();
    output.expect("memgauge runs")
}

#[test]
fn every_command_says_the_same_of_the_archive() {
    if !needs(&["tar"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("program");
    fs::copy(workloads(), &program).expect("the program can be copied");
    let words = [program.to_str().expect("text"), "triad", "--bytes", "64KiB"];
    // Without a cache, the recording has the copy of the program.
    let recorded = Recorded::with(&["-e", "l1d.miss:7"], &words, |command| {
        command.env("XDG_CACHE_HOME", "/dev/null");
    });
    assert!(
        recorded.path().join("files").is_dir(),
        "{}",
        recorded.said()
    );
    fs::remove_file(&program).expect("the program can be removed");
    let archive = packed(&recorded.path());
    for words in [
        &["report", "--json"][..],
        &["report"],
        &["advise"],
        &["export", "-f", "folded"],
        &["export", "-f", "firefox"],
        &["export", "-f", "callgrind"],
        &["mrc", "--json"],
    ] {
        let [directory, file] = [recorded.path(), archive.clone()].map(|path| run(words, &path));
        assert_eq!(
            directory.status.code(),
            Some(0),
            "{words:?} {}",
            said(&directory)
        );
        let [directory, file] = [directory, file].map(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (text.replace("run.mg.tar", "run.mg"), output.status.code())
        });
        assert_eq!(directory, file, "{words:?}");
    }
    let names = String::from_utf8(report(&archive).stdout).expect("text");
    assert!(!names.contains("failed to name"), "{names}");
    let same = memgauge()
        .args(["diff", "--fail-if", "instructions > +0"])
        .args([recorded.path(), archive.clone()])
        .output()
        .expect("memgauge runs");
    assert_eq!(same.status.code(), Some(0), "{}", said(&same));

    // The folder that tar unpacks is the recording.
    let unpacked = recorded.folder.path().join("unpacked.mg");
    fs::create_dir(&unpacked).expect("a folder can be made");
    let tar = std::process::Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&unpacked)
        .status();
    assert!(tar.expect("tar runs").success());
    let listed = |path: &Path| {
        let output = std::process::Command::new("diff")
            .arg("-r")
            .args([path, &unpacked])
            .output();
        String::from_utf8(output.expect("diff runs").stdout).expect("text")
    };
    assert_eq!(listed(&recorded.path()), "");
}

#[test]
fn truncated_archive_is_named_and_its_rest_is_shown() {
    if !needs(&[]) {
        return;
    }
    let recorded = Recorded::new(&["-e", "l1d.miss:7"], &["/bin/true"]);
    let archive = packed(&recorded.path());
    let whole = fs::read(&archive).expect("the archive is there");
    let manifest = fs::metadata(recorded.path().join("manifest.json")).expect("there");
    let cut = |length: usize| fs::write(&archive, &whole[..length]).expect("it can be written");
    cut(whole.len() - 2048);
    check_line(
        &report(&archive),
        DAMAGED,
        &["truncated after", "copy it again"],
    );
    cut(manifest.len() as usize);
    check_line(&report(&archive), FAILED, &["run.mg.tar", "truncated"]);
    cut(0);
    check_line(&report(&archive), FAILED, &["run.mg.tar", "memgauge pack"]);
}

#[test]
fn pack_writes_to_the_standard_output_and_refuses_what_is_no_directory() {
    if !needs(&[]) {
        return;
    }
    let recorded = Recorded::new(&["-e", "l1d.miss:7"], &["/bin/true"]);
    let archive = packed(&recorded.path());
    let piped = run(&["pack", "-o", "-"], &recorded.path());
    assert_eq!(piped.stdout, fs::read(&archive).expect("there"));
    check_line(&run(&["pack"], &archive), FAILED, &["packed already"]);
    let nowhere = recorded.folder.path().join("nowhere.mg");
    check_line(&run(&["pack"], &nowhere), FAILED, &["nowhere.mg"]);
}
