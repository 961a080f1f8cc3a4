//! Programs in another PID namespace, with another user, stack or limits, or with ignored signals.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Recorded, memgauge, needs, report, run_denied, said, totals_of};
use serde_json::Value;

/// Reads kilobytes byte by byte in a child process for which it waits. Four threads do so one after
/// the other.
const WORKS: &str = "#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static volatile char block[1 << 20];
static void *reads(void *count) {
    for (long i = 0; i < (long)count; i++)
        block[i % (1 << 20)];
    return 0;
}
static long deep(int left) {
    volatile char own[1024];
    own[0] = left;
    return left ? deep(left - 1) + own[0] : 0;
}
int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[2], \"deep\"))
        return deep(200000) & 0;
    if (argc > 2 && !strcmp(argv[2], \"by descriptor\")) {
        char *args[] = {argv[0], argv[1], 0};
        fexecve(open(argv[0], O_RDONLY | O_CLOEXEC), args, environ);
        return 9;
    }
    if (!fork()) {
        for (int i = 0; i < 4; i++) {
            pthread_t one;
            pthread_create(&one, 0, reads, (void *)(atol(argv[1]) * 1000));
            pthread_join(one, 0);
        }
        _exit(0);
    }
    int status;
    wait(&status);
    return status != 0;
}
";

fn compile(folder: &Path, source: &str) -> PathBuf {
    let program = memgauge_testing::compiled(folder, "p.c", source, &["-O1", "-pthread"])
        .expect("gcc is installed");
    PathBuf::from(program)
}

fn loads(recorded: &Recorded) -> i64 {
    totals_of(&recorded.manifest()["totals"])["loads"]
}

fn losses(report: &Value) -> &[Value] {
    report["losses"].as_array().expect("losses are a list")
}

#[test]
fn programs_in_another_pid_namespace_are_recorded_whole() {
    if !needs(&["gcc", "unshare", "root"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), WORKS);
    let program = program.to_str().expect("text");
    let here = Recorded::new(&["-I", "100us"], &[program, "500"]);
    for options in [&["-p", "-f"][..], &["-m", "-p", "-f", "--mount-proc"]] {
        let command = [&["unshare"], options, &[program, "500"]].concat();
        let there = Recorded::new(&["-I", "100us"], &command);
        assert_eq!(there.code(), Some(0), "{}", there.said());
        let report = there.report();
        assert!(losses(&report).is_empty(), "{report:#}");
        let more = loads(&there) - loads(&here);
        assert!((0..400_000).contains(&more), "{command:?}: {more} more");
        // The threads ran one after the other, and are distinguished.
        let threads = report["threads"].as_array().expect("a list");
        let mut spans: Vec<(i64, i64, i64)> = threads
            .iter()
            .map(|row| {
                let ns = |key: &str| row[key].as_i64().unwrap_or(0);
                (ns("start_ns"), ns("end_ns"), ns("tid"))
            })
            .collect();
        spans.sort_unstable();
        let workers: Vec<_> = spans.iter().rev().take(4).rev().collect();
        assert!(
            workers
                .windows(2)
                .all(|two| two[0].1 <= two[1].0 && two[0].2 != two[1].2),
            "{spans:?}"
        );
        let end = spans.iter().map(|span| span.1).max();
        assert_eq!(
            spans.first().map(|span| span.1),
            end,
            "the first waits: {spans:?}"
        );
    }
}

/// Runs a command whose PID is the first argument.
const WITH_PID: &str = "echo $(($1 - 1)) >/proc/sys/kernel/ns_last_pid; shift; \"$@\" & wait $!";

#[test]
fn recorder_in_another_pid_namespace_keeps_its_memory_when_another_recording_begins() {
    if !needs(&["unshare", "root"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    // The processes after `go` need the shared memory.
    let script = ": >started; while [ ! -e go ]; do :; done; (:); (:); (:); :";
    let mut child = Command::new("true").spawn().expect("`true` runs");
    child.wait().expect("it is a child of this process");
    let free_pid = child.id().to_string();
    let recorder = memgauge().get_program().to_owned();
    let mut foreign = Command::new("unshare")
        .args(["-p", "-f", "--mount-proc", "sh", "-c", WITH_PID, "sh"])
        .arg(free_pid)
        .arg(recorder)
        .args([
            "record",
            "-q",
            "-o",
            &path("foreign.mg"),
            "--",
            "sh",
            "-c",
            script,
        ])
        .current_dir(folder.path())
        .spawn()
        .expect("unshare runs");
    while !Path::new(&path("started")).exists() {
        let status = foreign.try_wait().expect("it is a child of this process");
        assert_eq!(status, None, "the recorder ended before its program");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let other = Recorded::new(&[], &["true"]);
    std::fs::write(path("go"), "").expect("a file");
    let status = foreign.wait().expect("it is a child of this process");
    assert!(other.output.status.success(), "{}", other.said());
    assert!(status.success(), "{status}");
    let shown = report(&folder.path().join("foreign.mg"));
    let report: Value = serde_json::from_slice(&shown.stdout).expect("the report is JSON");
    assert!(losses(&report).is_empty(), "{report:#}");
    let threads = report["threads"].as_array().expect("a list");
    assert_eq!(threads.len(), 4, "{threads:#?}");
}

#[test]
fn a_program_that_changes_its_user_runs_and_is_named_as_lost() {
    if !needs(&["gcc", "setpriv", "chmod", "root"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), WORKS);
    let mut open = Command::new("chmod");
    let opened = open.arg("a+rx").arg(folder.path()).status();
    assert!(opened.expect("chmod runs").success());
    let program = program.to_str().expect("text");
    let user = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let recorded = Recorded::new(&[], &[&user[..], &[program, "10"]].concat());
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let report = recorded.report();
    let lost = losses(&report);
    let detail = lost.first().and_then(|loss| loss["detail"].as_str());
    let detail = detail.unwrap_or_default();
    assert!(
        lost.len() == 1 && detail.contains(program) && detail.contains("change of user"),
        "{report:#}"
    );
}

#[test]
fn a_stack_may_be_unlimited_or_enlarged_and_files_limited_by_the_program() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), WORKS);
    let program = program.to_str().expect("text");
    for limit in ["ulimit -s unlimited", "ulimit -s 524288"] {
        let script = format!("{limit}; exec {program} 0 deep");
        let recorded = Recorded::new(&[], &["sh", "-c", &script]);
        assert_eq!(recorded.code(), Some(0), "{limit}: {}", recorded.said());
    }
    let limited = format!("ulimit -f 2048; {program} 10");
    let recorded = Recorded::new(&[], &["sh", "-c", &limited]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let report = recorded.report();
    let detail = losses(&report)
        .iter()
        .map(|loss| loss["detail"].to_string());
    let detail: String = detail.collect();
    assert!(detail.contains("ulimit -f"), "{report:#}");
}

#[test]
fn a_program_begun_by_a_descriptor_that_exec_closes_is_followed() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), WORKS);
    let program = program.to_str().expect("text");
    let plain = loads(&Recorded::new(&[], &[program, "100"]));
    let recorded = Recorded::new(&[], &[program, "100", "by descriptor"]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let more = loads(&recorded) - plain;
    assert!((0..400_000).contains(&more), "{more} more");
}

#[test]
fn signals_that_were_ignored_are_the_programs_and_hold_up_nobody() {
    if !needs(&["env", "sh"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let to = folder.path().join("r.mg");
    let shown = "grep SigIgn /proc/self/status >&2; exit 5";
    for verb in [
        &["record", "-q", "-o", to.to_str().expect("text")][..],
        &[
            "record",
            "-q",
            "-f",
            "--source",
            "clock",
            "-o",
            to.to_str().expect("text"),
        ],
        &["stat"],
    ] {
        // SIGPIPE is 13, SIGCHLD 17.
        let mut command = Command::new("env");
        command.args(["--ignore-signal=PIPE", "--ignore-signal=CHLD"]);
        command.arg(memgauge().get_program()).args(verb);
        let output = command.args(["--", "sh", "-c", shown]).output();
        let output = output.expect("env runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{verb:?}: {said}");
        let bits = said.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let bits = bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        assert_eq!(bits.map(|bits| bits >> 12 & 1), Some(1), "{verb:?}: {said}");
    }
}

/// A coroutine reads a thousand bytes and returns to `main`, ten times. In between, `main` reads
/// more.
const COROUTINE: &str = "#include <stdlib.h>
#include <ucontext.h>
static ucontext_t outer, inner;
static volatile char block[1 << 16];
static void touch(int count) {
    for (int i = 0; i < count; i++)
        block[i];
}
__attribute__((noinline)) void generates(void) {
    for (int i = 0; i < 10; i++) {
        touch(1000);
        swapcontext(&inner, &outer);
    }
}
__attribute__((noinline)) void other(void) { touch(50000); }
int main(void) {
    getcontext(&inner);
    inner.uc_stack.ss_sp = malloc(1 << 16);
    inner.uc_stack.ss_size = 1 << 16;
    inner.uc_link = &outer;
    makecontext(&inner, generates, 0);
    for (int i = 0; i < 10; i++) {
        swapcontext(&outer, &inner);
        other();
    }
}
";

#[test]
fn a_function_ends_where_its_thread_goes_on_in_another_stack() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile(folder.path(), COROUTINE);
    let program = program.to_str().expect("text");
    let recorded = Recorded::new(&["--function", "generates,other"], &[program]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let report = recorded.report();
    let rows = report["code_regions"].as_array().expect("a list");
    let loads = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.and_then(|row| row["counts"]["loads"].as_u64())
    };
    let (generates, other) = (loads("generates"), loads("other"));
    assert!(
        generates.is_some_and(|n| (1000..=12_000).contains(&n)),
        "{rows:?}"
    );
    assert!(
        other.is_some_and(|n| (500_000..502_000).contains(&n)),
        "{rows:?}"
    );
}

/// The standard library assumes that it can sleep and query a terminal, and panics if it cannot.
#[test]
fn a_filter_that_denies_what_all_programs_need_is_named_in_one_line() {
    if !needs(&["python3"]) || !cfg!(target_arch = "x86_64") {
        return;
    }
    const IOCTL: u32 = 16;
    const CLOCK_NANOSLEEP: u32 = 230;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("r.mg");
    let recording = recording.to_str().expect("a path of letters");
    for call in [IOCTL, CLOCK_NANOSLEEP] {
        let output = run_denied(call, &["record", "-fo", recording, "--", "true"]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(125), "{said}");
        let (named, panics) = (said.matches("seccomp)").count(), said.matches("panicked"));
        assert_eq!((named, panics.count()), (1, 0), "{said}");
    }
}
