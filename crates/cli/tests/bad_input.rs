//! Errors: a single clear message with a remedy, the documented exit code, no panic, and no lost data.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use memgauge_testing::{Need, skipped};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use harness::{PROGRAM, Recorded, check_line, folder, memgauge, needs, report, said, workloads};
use tempfile::TempDir;

const USAGE: i32 = 2;
const FAILED: i32 = 125;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

#[test]
fn a_word_that_is_no_verb_gets_the_near_one_and_the_way_to_run_a_program() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).output().expect("memgauge runs")
    };
    let typo = ["`rpeort`; did you mean `report`?", "`memgauge -- rpeort`"];
    check_line(&run(&["rpeort", "x.mg"]), USAGE, &typo);
    let with_program = run(&["recrod", "--", "ls"]);
    check_line(
        &with_program,
        USAGE,
        &["unknown subcommand `recrod`; did you mean `record`?"],
    );
    let program = run(&["./prog"]);
    check_line(
        &program,
        USAGE,
        &["unknown subcommand `./prog`; to run a program"],
    );
    let quiet = run(&["-q", "record", "-o", "x.mg"]);
    check_line(
        &quiet,
        USAGE,
        &["after the subcommand: `memgauge record -q -o x.mg`"],
    );
}

#[test]
fn missing_program_is_reported_with_the_usage() {
    for (verb, options) in [("record", ["-I", "1ms"]), ("stat", ["-e", "page-faults"])] {
        let mut command = Command::new(PROGRAM);
        let out = command.arg(verb).args(options).output();
        let told = format!("no program given; use `memgauge {verb} -- PROGRAM`");
        check_line(&out.expect("memgauge runs"), USAGE, &[&told]);
    }
}

#[test]
fn a_machine_file_without_end_is_refused() {
    let mut command = Command::new(PROGRAM);
    command.args(["record", "-o", "/tmp/never.mg", "--machine", "/dev/zero"]);
    let output = command
        .args(["--", "true"])
        .output()
        .expect("memgauge runs");
    check_line(
        &output,
        FAILED,
        &["machine file `/dev/zero`", "more than 1 MiB"],
    );
}

#[test]
fn a_full_standard_output_is_named() {
    for arguments in [&["list", "--json"][..], &["--help"], &["--version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .stdout(full.expect("a device that is full"));
        let output = command.output().expect("memgauge runs");
        check_line(&output, 125, &["failed to write to the standard output"]);
    }
}

#[test]
fn a_closed_standard_output_is_named() {
    let list = |redirection: &str| {
        let line = format!("exec {PROGRAM} list --json {redirection}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).output().expect("a shell runs")
    };
    let words = ["failed to write to the standard output: it is closed"];
    check_line(&list(">&-"), FAILED, &words);
    // Output can be discarded in each of these ways.
    for nowhere in [">/dev/null", ">>/dev/null", "1<>/dev/null"] {
        let output = list(nowhere);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{nowhere}: {}",
            said(&output)
        );
    }
}

#[test]
fn curves_have_no_machine_and_say_so() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).output().expect("memgauge runs")
    };
    for machine in [&["--machine", "zen4"][..], &["--machine=zen4"]] {
        let output = run(&[&["mrc"], machine, &["--", "true"]].concat());
        check_line(
            &output,
            USAGE,
            &["--machine does not apply to mrc", "`--sizes"],
        );
    }
    // No option becomes a program behind `--`.
    let output = run(&["mrc", "--nosuch", "--", "true"]);
    assert_eq!(output.status.code(), Some(USAGE));
    let said = said(&output);
    assert!(
        said.contains("--nosuch") && !said.contains("-- --nosuch"),
        "{said}"
    );
}

/// Records `program`, which cannot run. Nothing may be left behind.
fn check_program(program: &str, code: i32, words: &[&str]) {
    let recorded = Recorded::new(&[], &[program]);
    check_line(&recorded.output, code, words);
    assert!(!recorded.path().exists(), "a recording of nothing is left");
}

fn write_program(path: &Path, content: &[u8], mode: u32) {
    fs::write(path, content).expect("the program can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the mode can be set");
}

/// The start of an ELF program for a word size (1: 32 bits, 2: 64) and processor.
fn elf(class: u8, machine: u8) -> [u8; 64] {
    let mut header = [0; 64];
    header[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
    (header[16], header[18], header[20]) = (2, machine, 1);
    header
}

#[test]
fn a_program_that_is_not_there_is_named() {
    check_program(
        "no-such-program-anywhere",
        NOT_FOUND,
        &["no-such-program-anywhere"],
    );
    check_program("/no/such/program", NOT_FOUND, &["/no/such/program"]);
}

/// As a program made for another C library.
#[test]
fn a_program_whose_loader_is_missing_is_refused() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (folder.path().join("p.c"), folder.path().join("p"));
    fs::write(&source, "int main(void) { return 0; }").expect("the source can be written");
    let mut cc = Command::new("cc");
    cc.arg("-Wl,--dynamic-linker=/no/loader.so").arg("-o");
    let status = cc.args([&program, &source]).status();
    assert!(status.expect("cc runs").success());
    let name = program.to_str().expect("temporary paths are text");
    check_program(name, NOT_FOUND, &["the loader", "/no/loader.so"]);
}

#[test]
fn a_program_that_cannot_run_is_refused_with_the_reason() {
    const AARCH64: u8 = 183;
    const I386: u8 = 3;
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    write_program(&path("plain"), b"#!/bin/sh\n", 0o644);
    write_program(&path("old"), &elf(1, I386), 0o755);
    write_program(&path("foreign"), &elf(2, AARCH64), 0o755);
    write_program(&path("data"), b"MZ\x90\0\x03", 0o755);
    check_program(
        text(&path("plain")),
        NOT_EXECUTABLE,
        &["plain", "not executable", "chmod +x"],
    );
    check_program(text(folder.path()), NOT_EXECUTABLE, &["directory"]);
    check_program(text(&path("old")), NOT_EXECUTABLE, &["32-bit", "x86-64"]);
    check_program(
        text(&path("foreign")),
        NOT_EXECUTABLE,
        &["another processor", "x86-64"],
    );
    check_program(
        text(&path("data")),
        NOT_EXECUTABLE,
        &["neither an ELF program nor a script"],
    );
}

/// As `execvp` does it, and so each shell, `env` and `perf`.
#[test]
fn text_without_an_interpreter_is_run_by_the_shell_whatever_the_source() {
    let folder = folder();
    let script = folder.path().join("script");
    write_program(&script, b"exit $(($1 + 2))\n", 0o755);
    let recording = folder.path().join("run.mg");
    let recording = text(&recording);
    for words in [
        &["record", "-q", "-f", "--source", "emulate", "-o", recording][..],
        &["record", "-q", "-f", "--source", "clock", "-o", recording],
        &["record", "-q", "-f", "-e", "page-faults", "-o", recording],
        &["stat", "-q"],
        &["mrc"],
    ] {
        let mut command = memgauge();
        let command = command.args(words).args(["--", text(&script), "5"]);
        let output = command.output().expect("memgauge runs");
        assert_eq!(output.status.code(), Some(7), "{words:?}: {output:?}");
    }
}

#[test]
fn a_script_whose_interpreter_is_not_there_names_script_and_interpreter() {
    let folder = folder();
    let script = folder.path().join("script");
    write_program(&script, b"#!/no/such/interpreter\n", 0o755);
    let of_dos = folder.path().join("of-dos");
    write_program(&of_dos, b"#!/bin/sh\r\necho\r\n", 0o755);
    check_program(text(&of_dos), NOT_FOUND, &["of-dos", "carriage return"]);
    check_program(
        text(&script),
        NOT_FOUND,
        &["/no/such/interpreter", text(&script)],
    );
}

/// memgauge looks for its engine around itself, so it is moved away (linked: the file is
/// large).
#[test]
fn an_engine_that_is_not_there_says_how_to_get_it() {
    let far = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let place = far.path().join("a/b/c/d");
    fs::create_dir_all(&place).expect("folders can be made");
    fs::hard_link(PROGRAM, place.join("memgauge")).expect("the program can be linked");
    let output = Command::new(place.join("memgauge"))
        .args(["record", "-q", "--source", "emulate", "-o"])
        .arg(far.path().join("run.mg"))
        .args(["--", "/bin/true"])
        .env_clear()
        .env("PATH", harness::PATH)
        .output()
        .expect("memgauge runs");
    assert!(!far.path().join("run.mg").exists());
    check_line(
        &output,
        FAILED,
        &["memgauge-engine", "make engine", "MEMGAUGE_QEMU"],
    );
}

/// Checks memgauge's message if the emulator is a program that runs `script`.
fn check_emulator(script: &str, words: &[&str]) {
    let folder = folder();
    let emulator = folder.path().join("qemu");
    let script = format!("#!/bin/sh\n{script}\n");
    write_program(&emulator, script.as_bytes(), 0o755);
    let recorded = Recorded::with(&[], &["/bin/true"], |command| {
        command.env("MEMGAUGE_QEMU", &emulator);
    });
    check_line(&recorded.output, FAILED, words);
}

#[test]
fn an_emulator_without_a_recorder_is_refused() {
    let another = "echo 'qemu-x86_64 version 7.2.0 (Debian 1:7.2)'";
    check_emulator(
        another,
        &["memgauge's engine", "unset MEMGAUGE_QEMU", "make engine"],
    );
}

#[test]
fn an_engine_of_another_version_is_refused() {
    let older = "echo 'qemu-x86_64 version 10.0.13 (memgauge 1)'";
    check_emulator(older, &["another version of memgauge", "make engine"]);
}

/// Not the emulator's failure passed off as the program's.
#[test]
fn an_engine_that_records_nothing_is_a_failure_of_memgauge() {
    let wire = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../engine/src/stream.h"
    ));
    let version = wire
        .expect("the header is there")
        .lines()
        .find_map(|line| {
            line.strip_prefix("#define MG_WIRE_VERSION ")?
                .strip_suffix('u')
        })
        .expect("it has a version")
        .to_owned();
    let mute = format!("echo 'qemu-x86_64 version 10.0.13 (memgauge {version})'");
    check_emulator(&mute, &["failed to start the emulator", "make engine"]);
}

/// memgauge with a recording to write to `path`.
fn record_to(path: &Path) -> Output {
    let mut command = memgauge();
    command
        .args(["record", "-q", "--source", "emulate", "-o"])
        .arg(path)
        .args(["--", "/bin/true"]);
    command.output().expect("memgauge runs")
}

#[test]
fn output_that_is_not_a_recording_is_not_overwritten() {
    if !needs(&[]) {
        return;
    }
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "mine").expect("a file can be written");
    for path in [&file, folder.path()] {
        check_line(&record_to(path), FAILED, &["exists and is not a recording"]);
    }
    assert_eq!(fs::read(&file).expect("it is still there"), b"mine");
}

/// Runs every subcommand that writes a recording twice with the same name.
#[test]
fn a_previous_recording_is_kept_as_old() {
    let folder = folder();
    let profile = folder.path().join("callgrind.out.1");
    let text = "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\nevents: Ir\n\
                fn=main\n1 100\ntotals: 100\n";
    fs::write(&profile, text).expect("a profile can be written");
    let run = |arguments: &[&str]| {
        let mut command = memgauge();
        command.current_dir(folder.path()).args(arguments);
        command.output().expect("memgauge runs")
    };
    let perf_works = run(&["stat", "-e", "task-clock", "--", "true"])
        .status
        .success();
    let mut verbs: Vec<(&str, Vec<&str>)> = vec![
        (
            "import.mg",
            vec!["import", "callgrind.out.1", "-o", "import.mg"],
        ),
        ("memgauge.mg", vec!["import", "callgrind.out.1"]),
    ];
    if needs(&[]) {
        verbs.push((
            "emulated",
            vec!["record", "--source", "emulate", "-o", "emulated"],
        ));
    }
    match perf_works {
        true => verbs.extend([
            ("stat.mg", vec!["stat", "-e", "task-clock", "-o", "stat.mg"]),
            (
                "clock.mg",
                vec!["record", "--source", "clock", "-o", "clock.mg/"],
            ),
            (
                "faults.mg",
                vec!["record", "-e", "page-faults", "-o", "faults.mg"],
            ),
        ]),
        false => skipped(Need::Kernel, "perf events cannot be opened"),
    }
    for (name, mut arguments) in verbs {
        if arguments[0] != "import" {
            arguments.extend(["-q", "--", "true"]);
        }
        let manifest = |name: &str| {
            let path = folder.path().join(name).join("manifest.json");
            fs::read(path).expect("a manifest")
        };
        let old = format!("{name}.old");
        assert!(run(&arguments).status.success(), "{arguments:?}");
        // Only this test writes this file, so it identifies the recording.
        let mark = folder.path().join(name).join("mark");
        fs::write(&mark, "first").expect("a recording can be written to");
        let first = manifest(name);
        let output = run(&arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        let told = format!("kept the previous recording as `{old}`");
        assert!(
            said(&output).contains(&told),
            "{arguments:?}: {}",
            said(&output)
        );
        assert_eq!(manifest(&old), first, "{arguments:?}");
        assert!(!mark.exists(), "{arguments:?}");
        // `--force` keeps the recording that was kept before.
        arguments.insert(1, "--force");
        let output = run(&arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        assert!(
            folder.path().join(&old).join("mark").exists(),
            "{arguments:?}"
        );
        // Other files with the name of an old one are not touched.
        arguments.remove(1);
        fs::remove_dir_all(folder.path().join(&old)).expect("it can be removed");
        fs::write(folder.path().join(&old), "mine").expect("a file can be written");
        check_line(
            &run(&arguments),
            FAILED,
            &[&old, "is not a recording", "--force"],
        );
        assert!(folder.path().join(name).join("manifest.json").exists());
    }
}

#[test]
fn an_output_that_cannot_be_made_is_named() {
    if !needs(&[]) {
        return;
    }
    let folder = folder();
    check_line(
        &record_to(&folder.path().join("no/such/run.mg")),
        FAILED,
        &["no/such/run.mg"],
    );
    check_line(
        &record_to(Path::new("/proc/run.mg")),
        FAILED,
        &["/proc/run.mg"],
    );
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file can be written");
    check_line(&record_to(&file.join("run.mg")), FAILED, &["file/run.mg"]);
}

/// A mounted file system of `bytes`, unmounted when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(bytes: u64) -> Option<SmallDisk> {
        let folder = folder();
        let mut mount = Command::new("mount");
        mount
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={bytes}"),
                "memgauge-test",
            ])
            .arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| SmallDisk(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _best_effort = Command::new("umount").arg(self.0.path()).status();
    }
}

/// A sample for every miss: a million rows close a part, and the third does not fit.
#[test]
fn a_full_disk_is_told_and_keeps_what_was_recorded() {
    if !needs(&["root"]) {
        return;
    }
    let Some(disk) = SmallDisk::mount(12 << 20) else {
        skipped(Need::Rights, "needs the right to mount a tmpfs");
        return;
    };
    let run = disk.0.path().join("run.mg");
    let mut command = memgauge();
    command
        .args([
            "record",
            "-q",
            "--source",
            "emulate",
            "-e",
            "l1d.miss:1",
            "-o",
        ])
        .arg(&run)
        .arg("--");
    command.args([
        workloads(),
        "rand",
        "--bytes",
        "256MiB",
        "--steps",
        "4000000",
    ]);
    let output = command.output().expect("memgauge runs");
    check_line(&output, FAILED, &["run.mg"]);
    let shown = report(&run);
    assert_eq!(shown.status.code(), Some(0), "{}", said(&shown));
    let shown: serde_json::Value =
        serde_json::from_slice(&shown.stdout).expect("the report is JSON");
    assert_eq!(shown["recording"]["complete"], false);
    assert!(
        shown["totals"]["loads"].as_u64() > Some(0),
        "{}",
        shown["totals"]
    );
}

#[test]
fn a_place_where_no_directory_can_be_made_gets_no_impossible_advice() {
    let check = |place: &str, words: &[&str]| {
        let output = memgauge()
            .args(["record", "-e", "page-faults", "-o", place, "--", "true"])
            .output()
            .expect("memgauge runs");
        check_line(&output, FAILED, words);
        let said = said(&output);
        assert!(
            !said.contains("mkdir") && !said.contains("os error"),
            "{said}"
        );
    };
    check("/proc/r.mg", &["/proc/r.mg", "another place"]);
    check("/etc/passwd/r.mg", &["not a directory"]);
}

/// Bytes that are not UTF-8, as a file name may contain.
#[test]
fn an_argument_that_is_no_text_does_not_panic() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = memgauge();
    command
        .args(["report", "--json"])
        .arg(OsStr::from_bytes(b"/tmp/\xff\xfe.mg"));
    let output = command.output().expect("memgauge runs");
    check_line(&output, FAILED, &["/tmp/"]);
    let mut command = memgauge();
    command.args(["record", "--", "cat"]);
    command.arg(OsStr::from_bytes(b"caf\xe9.txt"));
    let output = command.output().expect("memgauge runs");
    check_line(&output, USAGE, &["caf", "must be UTF-8", "sh -c"]);
}

#[test]
fn a_recording_is_not_written_to_standard_output() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let verbs: [&[&str]; 6] = [
        &["stat", "-o", "-", "--", "true"],
        &["record", "-o", "-", "--", "true"],
        &["bandwidth", "-o", "-", "--", "true"],
        &["io", "-o", "-", "--", "true"],
        &["import", "perf.data", "-o", "-"],
        &["-o", "-", "--", "true"],
    ];
    for verb in verbs {
        let output = memgauge().args(verb).current_dir(folder.path()).output();
        let output = output.expect("memgauge runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{verb:?}: {said}");
        assert!(
            said.contains("a recording is a directory"),
            "{verb:?}: {said}"
        );
        assert!(!folder.path().join("-").exists(), "{verb:?}");
    }
}

/// Every source must print the same words, with the remedy and without the system's error number.
#[test]
fn a_program_that_cannot_run_is_refused_alike_by_all_sources() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("plain");
    std::fs::write(&file, "text").expect("it can be written");
    let file = file.display().to_string();
    let sources: [&[&str]; 4] = [
        &["stat", "-e", "task-clock", "--"],
        &["record", "--source", "clock", "--"],
        &["record", "--source", "emulate", "--"],
        &["mrc", "--"],
    ];
    let programs = [
        ("/tmp", 126, "it is a directory: name a program"),
        (file.as_str(), 126, "chmod +x"),
        ("/no/such/program", 127, "no such file"),
        ("no-such-program", 127, "in no folder of PATH"),
    ];
    for source in sources {
        for (program, code, why) in programs {
            let mut command = memgauge();
            let output = command.args(source).arg(program).current_dir(folder.path());
            let output = output.output().expect("memgauge runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{source:?} {program}: {said}"
            );
            assert!(said.contains(why), "{source:?} {program}: {said}");
            assert!(!said.contains("os error"), "{source:?} {program}: {said}");
        }
    }
}
