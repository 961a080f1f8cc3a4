//! Recordings of programs that start other programs. memgauge does not change their output, exit code
//! and signals.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use harness::{Recorded, needs, totals_of};
use serde_json::Value;

/// The text of `field` in each row of a table of the report.
fn texts<'a>(report: &'a Value, table: &str, field: &str) -> Vec<&'a str> {
    let rows = report[table].as_array().expect("the table is a list");
    rows.iter()
        .map(|row| row[field].as_str().expect("the field is text"))
        .collect()
}

/// Last parts of the paths of all programs that ran.
fn programs(report: &Value) -> BTreeSet<&str> {
    let paths = texts(report, "threads", "program").into_iter();
    paths
        .map(|path| path.rsplit('/').next().unwrap_or(path))
        .collect()
}

/// Records `program` and expects the exit code `code`. No started process may be lost, and the
/// accesses of the processes must add up to the totals.
fn record(program: &[&str], code: i32) -> Recorded {
    let recorded = Recorded::new(&["-I", "100us"], program);
    assert_eq!(
        recorded.code(),
        Some(code),
        "{program:?}: {}",
        recorded.said()
    );
    let report = recorded.report();
    let totals = totals_of(&recorded.manifest()["totals"]);
    for event in [
        "instructions",
        "loads",
        "stores",
        "llc.miss",
        "dram.read_bytes",
    ] {
        let processes = report["processes"]
            .as_array()
            .expect("processes are a list")
            .iter();
        let sum: i64 = processes
            .map(|row| row["counts"][event].as_i64().unwrap_or(0))
            .sum();
        assert_eq!(sum, totals[event], "{program:?}: {event} of all processes");
    }
    let lost = texts(&report, "losses", "kind");
    assert!(
        !lost.iter().any(|kind| kind.contains("not")),
        "{program:?}: {}",
        report["losses"]
    );
    recorded
}

fn check_programs(program: &[&str], expected: &[&str]) {
    let report = record(program, 0).report();
    assert_eq!(
        programs(&report),
        expected.iter().copied().collect(),
        "{program:?}"
    );
}

#[test]
fn programs_of_a_shell_pipeline_are_followed() {
    if needs(&[]) {
        check_programs(
            &["sh", "-c", "ls | wc -l; /bin/true"],
            &["sh", "ls", "wc", "true"],
        );
    }
}

#[test]
fn a_subprocess_of_an_interpreter_is_followed() {
    if needs(&["/usr/bin/python3"]) {
        let script = "import subprocess; subprocess.run(['/bin/echo', 'hi'], check=True)";
        check_programs(
            &["/usr/bin/python3", "-S", "-c", script],
            &["python3", "echo"],
        );
    }
}

#[test]
fn a_fork_without_exec_is_a_process_of_its_own() {
    if !needs(&["/usr/bin/python3"]) {
        return;
    }
    let script = "import os\nchild = os.fork()\nif child == 0: os._exit(sum(range(100000)) % 3)\nos._exit(os.waitpid(child, 0)[1] >> 8)";
    let report = record(&["/usr/bin/python3", "-S", "-c", script], 0).report();
    let rows = report["processes"]
        .as_array()
        .expect("processes are a list");
    let parents: BTreeSet<_> = rows
        .iter()
        .map(|row| row["parent_pid"].as_u64().expect("a number"))
        .collect();
    let pids: BTreeSet<_> = rows
        .iter()
        .map(|row| row["pid"].as_u64().expect("a number"))
        .collect();
    assert_eq!((rows.len(), pids.len()), (2, 2), "{rows:?}");
    assert!(
        parents.contains(&0) && parents.intersection(&pids).count() == 1,
        "{rows:?}"
    );
}

#[test]
fn the_rules_of_a_makefile_are_followed() {
    if !needs(&["make", "sort", "cat"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rules = "all: a b\n\tcat a b; true\na:\n\tseq 100 > a\nb: a\n\tsort -rn a > b; true\n";
    std::fs::write(folder.path().join("Makefile"), rules).expect("the rules can be written");
    let command = [
        "make",
        "--silent",
        "-C",
        folder.path().to_str().expect("temporary paths are text"),
    ];
    check_programs(&command, &["make", "sh", "seq", "sort", "cat"]);
}

#[test]
fn threads_appear_under_their_process() {
    if !needs(&["xz"]) {
        return;
    }
    let input: String = (0..60_000).map(|number| format!("{number}\n")).collect();
    let recorded = Recorded::with(
        &[],
        &["xz", "-T2", "--block-size=100KiB", "-c"],
        |command| {
            command.write_stdin(input);
        },
    );
    let report = recorded.report();
    let threads = report["threads"].as_array().expect("threads are a list");
    let tids: BTreeSet<_> = threads.iter().map(|row| row["tid"].as_u64()).collect();
    let pids: BTreeSet<_> = threads.iter().map(|row| row["pid"].as_u64()).collect();
    assert_eq!((tids.len(), pids.len()), (3, 1), "{threads:?}");
    assert!(
        threads
            .iter()
            .all(|row| row["counts"]["loads"].as_u64() > Some(10_000)),
        "{threads:?}"
    );
}

#[test]
fn a_program_handles_its_signals() {
    if needs(&[]) {
        let script = "trap 'echo caught' USR1; kill -USR1 $$; exit 7";
        assert_eq!(record(&["sh", "-c", script], 7).output.stdout, b"caught\n");
    }
}

#[test]
fn a_static_program_is_followed() {
    if !needs(&["cc", "libc.a"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (folder.path().join("five.c"), folder.path().join("five"));
    std::fs::write(&source, "int main(void) { return 5; }\n").expect("the source can be written");
    let built = Command::new("cc")
        .arg("-static")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status();
    assert!(built.expect("cc runs").success());
    let path = program.to_str().expect("temporary paths are text");
    assert_eq!(programs(&record(&[path], 5).report()), ["five"].into());
    let report = record(&["sh", "-c", &format!("{path}; true")], 0).report();
    assert_eq!(programs(&report), ["sh", "five"].into());
}

/// It runs outside of the emulator and is named, because inside it would lose its privileges.
#[test]
fn a_set_uid_program_runs_and_is_counted_as_not_followed() {
    if !needs(&["root"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("raised");
    std::fs::copy("/bin/true", &program).expect("the program can be copied");
    std::os::unix::fs::chown(&program, Some(65_534), None).expect("root gives files away");
    set_mode(&program, 0o4755);
    let script = format!("{} && echo ran", program.display());
    let recorded = Recorded::new(&[], &["sh", "-c", &script]);
    assert_eq!(
        (recorded.code(), &recorded.output.stdout[..]),
        (Some(0), &b"ran\n"[..])
    );
    let losses = recorded.report()["losses"].clone();
    assert_eq!(losses[0]["kind"], "program_not_followed", "{losses}");
    assert_eq!(
        losses[0]["detail"],
        format!("{}: set-uid or with capabilities", program.display())
    );
    let itself = Recorded::new(&[], &[program.to_str().expect("temporary paths are text")]);
    assert_eq!(itself.code(), Some(0));
    assert!(
        itself.said().contains("with your own rights"),
        "{}",
        itself.said()
    );
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .expect("the mode can be set");
}

#[test]
fn the_exit_code_is_the_programs() {
    if needs(&[]) {
        for code in [0, 1, 2, 125, 126, 127, 255] {
            record(&["sh", "-c", &format!("exit {code}")], code);
        }
    }
}

#[test]
fn a_crash_is_reported_with_its_signal_and_its_data() {
    if !needs(&[]) {
        return;
    }
    for (name, number) in [("SEGV", 11), ("ABRT", 6), ("KILL", 9), ("40", 40)] {
        let recorded = record(&["sh", "-c", &format!("kill -{name} $$")], 128 + number);
        assert_eq!(recorded.manifest()["end"]["signalled"], number);
        assert_eq!(recorded.manifest()["complete"], true);
        assert!(
            recorded
                .said()
                .contains(&format!("killed by signal {number}")),
            "{}",
            recorded.said()
        );
    }
}

/// The kernel gives a program the same results under memgauge as natively.
#[test]
fn children_memory_and_faults_are_as_without_memgauge() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, program) = (folder.path().join("kernel.c"), folder.path().join("kernel"));
    std::fs::write(&source, include_str!("followed/kernel.c")).expect("the source can be written");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O0", "-w", "-o"]).args([&program, &source]);
    assert!(gcc.status().expect("gcc runs").success());
    let native = Command::new(&program).output().expect("it runs").stdout;
    let native = String::from_utf8_lossy(&native).into_owned();
    assert!(native.ends_with("overflow 1\n"), "{native}");
    let run = Recorded::new(&[], &[program.display().to_string()]);
    assert_eq!(String::from_utf8_lossy(&run.output.stdout), native);
}

#[test]
fn input_and_output_pass_byte_for_byte() {
    if !needs(&["cat", "tee"]) {
        return;
    }
    let bytes: Vec<u8> = (0..1_000_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for (program, to_stderr) in [(["cat", "-"], false), (["tee", "/dev/stderr"], true)] {
        let recorded = Recorded::with(&[], &program, |command| {
            command.write_stdin(bytes.clone());
        });
        assert!(
            recorded.output.stdout == bytes,
            "{program:?}: standard output differs"
        );
        let expected = if to_stderr { &bytes[..] } else { &[] };
        assert!(
            recorded.output.stderr == expected,
            "{program:?}: standard error differs"
        );
        assert_eq!(recorded.code(), Some(0));
    }
}

/// By `ps`, `pgrep` and by itself.
#[test]
fn a_program_has_its_own_name_in_the_kernel() {
    if !needs(&["cat"]) {
        return;
    }
    let line = "cat /proc/self/comm /proc/$$/comm; (cat /proc/self/comm)";
    let recorded = record(&["sh", "-c", line], 0);
    assert_eq!(
        String::from_utf8_lossy(&recorded.output.stdout),
        "cat\nsh\ncat\n"
    );
}

/// Without a verb the report goes to standard error, after the program's own.
#[test]
fn the_summary_leaves_standard_output_to_the_program() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = harness::memgauge();
    command
        .current_dir(folder.path())
        .args(["--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    let output = command.output().expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(3), &b"out\n"[..])
    );
    assert!(
        said.contains("\nerr\n") || said.starts_with("err\n"),
        "{said}"
    );
    assert!(said.contains("memgauge.mg"), "{said}");
}
