//! Limits of the kernel when events and tracepoints are opened: too many open files, locked memory,
//! processes that end meanwhile, and periods below the minimum.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use memgauge_testing::{Need, skipped};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use harness::{PROGRAM, is_root, memgauge, needs, said};
use memgauge_recording::Recording;
use tempfile::TempDir;

/// A folder in which anybody may write, with a copy of the program that anybody
/// may run.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everybody).expect("the mode can be set");
    std::fs::copy(PROGRAM, folder.path().join("memgauge")).expect("the program can be copied");
    folder
}

/// Memory that a user has locked counts against all rings of that user: one test at a
/// time.
static TURN: Mutex<()> = Mutex::new(());

/// Runs memgauge as an ordinary user under these limits.
fn limited(folder: &Path, limits: &[&str], arguments: &[&str]) -> Output {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut words = vec!["prlimit"];
    words.extend(limits);
    if is_root() {
        words.extend([
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ]);
    }
    words.push("./memgauge");
    words.extend(arguments);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder);
    command.output().expect("prlimit runs")
}

/// Returns whether an ordinary user may count here, and prints why not.
fn users_may_count(folder: &Path) -> bool {
    if !needs(&["prlimit", "setpriv"]) {
        return false;
    }
    let output = limited(folder, &[], &["stat", "-e", "page-faults:u", "--", "true"]);
    let may = output.status.success();
    if !may {
        skipped(Need::Kernel, said(&output));
    }
    may
}

const STAT: &[&str] = &["stat", "-I", "1ms", "-e", "page-faults:u,minor-faults:u"];
const RECORD: &[&str] = &[
    "record",
    "-f",
    "-o",
    "r.mg",
    "-c",
    "1",
    "-e",
    "page-faults:u,minor-faults:u",
];

fn with_program<'a>(arguments: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [arguments, more, &["--", "ls", "/"]].concat()
}

#[test]
fn the_limit_of_open_files_is_raised_as_far_as_allowed() {
    let folder = folder();
    if !users_may_count(folder.path()) {
        return;
    }
    for arguments in [STAT, RECORD] {
        let output = limited(
            folder.path(),
            &["--nofile=8:1024"],
            &with_program(arguments, &[]),
        );
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn open_files_that_run_out_are_named_with_the_remedy() {
    let folder = folder();
    if !users_may_count(folder.path()) {
        return;
    }
    // Few are too few for the events, still fewer for the program's start.
    for limit in ["--nofile=12:12", "--nofile=7:7"] {
        for arguments in [STAT, RECORD] {
            let output = limited(folder.path(), &[limit], &with_program(arguments, &[]));
            let text = said(&output);
            assert_eq!(output.status.code(), Some(125), "{limit}: {text}");
            assert!(text.contains("too many open files"), "{limit}: {text}");
            assert!(text.contains("ulimit -n"), "{limit}: {text}");
            assert_eq!(text.lines().count(), 1, "{limit}: {text}");
        }
    }
}

#[test]
fn rings_are_smaller_where_memory_may_not_be_locked() {
    let folder = folder();
    if !users_may_count(folder.path()) {
        return;
    }
    for arguments in [STAT, RECORD] {
        let output = limited(
            folder.path(),
            &["--memlock=0:0"],
            &with_program(arguments, &["--ring", "8192"]),
        );
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("instead of 8192"), "{text}");
        assert!(text.contains("perf_event_mlock_kb"), "{text}");
    }
    let recording = Recording::open(&folder.path().join("r.mg")).expect("a recording");
    let fact = |name| harness::sampled(recording.manifest(), "page-faults:u", name);
    let samples = fact("samples");
    assert_eq!(samples, fact("counted"));
    assert!(samples > 20, "{samples}");
}

#[test]
fn a_process_that_dies_while_attaching_ends_the_run_in_a_line() {
    let folder = folder();
    let path = folder.path().join("d.mg");
    for delay_us in (0..20).map(|i| i * 150) {
        for verb in [
            &["stat", "-I", "1ms", "-e", "page-faults"][..],
            &["record", "-f", "-q", "-e", "page-faults", "-o"][..],
        ] {
            let mut short = Command::new("true").spawn().expect("true runs");
            std::thread::sleep(Duration::from_micros(delay_us));
            let mut command = Command::new(PROGRAM);
            command.args(verb);
            if verb[0] == "record" {
                command.arg(&path);
            }
            let pid = short.id().to_string();
            command.args(["-p", &pid]).stdout(Stdio::null());
            let attached = command.stderr(Stdio::piped()).spawn().expect("it runs");
            // Its number is free from here on.
            short.wait().expect("true ends");
            let output = attached.wait_with_output().expect("it ends");
            let text = said(&output);
            assert!(matches!(output.status.code(), Some(0 | 125)), "{text}");
            assert!(!text.contains("panicked"), "{text}");
            if output.status.code() == Some(125) {
                assert!(text.contains(&pid) || text.contains("has ended"), "{text}");
                assert_eq!(text.lines().count(), 1, "{text}");
            }
        }
    }
}

#[test]
fn a_period_below_the_shortest_becomes_the_shortest() {
    let folder = folder();
    let path = folder.path().join("p.mg");
    let mut command = memgauge();
    command.args(["record", "-e", "cpu-clock:u", "-c", "5", "-o"]);
    let output = command.arg(&path).args(["--", "true"]).output();
    let output = output.expect("memgauge runs");
    if output.status.code() == Some(125) {
        return skipped(Need::Kernel, said(&output));
    }
    let text = said(&output);
    assert!(text.contains("period 10000 ns instead of 5"), "{text}");
    let recording = Recording::open(&path).expect("a recording");
    let last = harness::sampled(recording.manifest(), "cpu-clock:u", "last_period");
    assert_eq!(last, 10_000);
}

const CALLER: &str = r#"
#include <sys/syscall.h>
#include <unistd.h>
int main(void) { for (int i = 0; i < 1000; i++) syscall(SYS_getppid); usleep(1000); return 0; }
"#;

fn records_tracepoints() -> bool {
    let there = Path::new("/sys/kernel/tracing/events/syscalls/sys_enter_getppid/id").exists();
    if !there {
        skipped(
            Need::Kernel,
            "tracepoints cannot be read (root, tracefs, CONFIG_FTRACE_SYSCALLS)",
        );
    }
    there && needs(&["gcc"])
}

#[test]
fn tracepoints_are_sampled_and_counted() {
    if !records_tracepoints() {
        return;
    }
    let folder = folder();
    let (source, program) = (folder.path().join("c.c"), folder.path().join("c"));
    std::fs::write(&source, CALLER).expect("the source can be written");
    let status = Command::new("gcc")
        .arg("-o")
        .args([&program, &source])
        .status();
    assert!(status.expect("gcc runs").success());
    let events = "syscalls:sys_enter_getppid,sched:sched_switch";
    let path = folder.path().join("t.mg");
    let mut command = memgauge();
    command.args(["record", "-e", events, "-c", "1", "-o"]);
    let output = command.arg(&path).arg("--").arg(&program).output();
    let output = output.expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    let recording = Recording::open(&path).expect("a recording");
    let total = |event: &str, what: &str| harness::sampled(recording.manifest(), event, what);
    // By construction.
    assert_eq!(total("syscalls:sys_enter_getppid", "samples"), 1000);
    let switches = total("sched:sched_switch", "samples");
    assert_eq!(switches, total("sched:sched_switch", "counted"));
    assert!(switches > 0, "a program that sleeps leaves its processor");
}

#[test]
fn a_tracepoint_that_does_not_exist_has_neighbours() {
    if !records_tracepoints() {
        return;
    }
    for verb in ["stat", "record"] {
        let mut command = memgauge();
        let output = command.args([verb, "-e", "sched:sched_swich", "--", "true"]);
        let output = output.output().expect("memgauge runs");
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("sched:sched_switch"), "{text}");
    }
}

/// Without a handler the kernel would end memgauge by SIGXFSZ, and the emulator later.
#[test]
fn a_limit_of_file_sizes_is_named_and_ends_nothing_by_a_signal() {
    if !needs(&["prlimit"]) {
        return;
    }
    for limit in ["--fsize=4096", "--fsize=40000000"] {
        check_refused_under(limit, "ulimit -f");
    }
}

/// Every verb that writes: to a recording, to a file, or to a standard output that is one.
#[test]
fn every_verb_says_how_to_raise_a_limit_of_file_sizes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let stat = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/recordings/stat.mg"
    );
    let profile = "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\nevents: Ir\n\
                   fn=main\n1 100\ntotals: 100\n";
    std::fs::write(folder.path().join("callgrind.out.1"), profile).expect("a profile");
    let words = (0..4096u64).flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    std::fs::write(folder.path().join("list.raw"), words).expect("a list");
    let busy = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
    let mut commands = vec![
        vec!["report", "--json", stat, "-o", "report.json"],
        vec!["report", "--json", stat],
        vec!["export", "-f", "csv", stat, "-o", "tables"],
        vec!["import", "callgrind.out.1", "-o", "i.mg"],
        vec!["mrc", "list.raw", "--json"],
    ];
    let mut counts = memgauge();
    counts.args(["stat", "-q", "-e", "task-clock", "--", "true"]);
    if counts.output().is_ok_and(|output| output.status.success()) {
        let of_clock = [
            "record", "-q", "--source", "clock", "-o", "c.mg", "--", "sh", "-c", busy,
        ];
        let of_event = [
            "record",
            "-q",
            "-e",
            "page-faults",
            "-o",
            "e.mg",
            "--",
            "sh",
            "-c",
            busy,
        ];
        let of_stat = [
            "stat", "-q", "-I", "1ms", "-o", "s.mg", "--", "sh", "-c", busy,
        ];
        commands.extend([of_clock.to_vec(), of_event.to_vec(), of_stat.to_vec()]);
    }
    for command in commands {
        let out = std::fs::File::create(folder.path().join("out")).expect("a file");
        let output = Command::new("sh")
            // Blocks of 512 or 1024 bytes, whichever shell it is: less than any of these write.
            .args([
                "-c",
                "ulimit -f 1; exec \"$@\"",
                "sh",
                env!("CARGO_BIN_EXE_memgauge"),
            ])
            .args(&command)
            .current_dir(folder.path())
            .stdout(out)
            .stderr(std::process::Stdio::piped())
            .output()
            .expect("sh runs");
        let text = said(&output);
        assert_eq!(output.status.code(), Some(125), "{command:?}: {text}");
        assert!(text.contains("ulimit -f"), "{command:?}: {text}");
    }
}

/// Otherwise the stack would overflow, and the program would continue without a recorder.
#[test]
fn a_stack_too_small_for_the_model_is_named_before_the_program_starts() {
    if needs(&["prlimit"]) {
        for limit in ["--stack=524288", "--stack=32768"] {
            check_refused_under(limit, "ulimit -s");
        }
    }
}

#[test]
fn a_limit_of_data_too_small_for_the_engine_is_named() {
    if needs(&["prlimit"]) {
        check_refused_under("--data=100000000", "ulimit -d");
        // Too little for memgauge itself, which panicked or hung.
        check_refused_under("--data=8000000", "ulimit -d");
    }
}

fn check_refused_under(limit: &str, fix: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new("prlimit")
        .arg(limit)
        .arg(env!("CARGO_BIN_EXE_memgauge"))
        .args(["record", "-q", "--source", "emulate", "-o", "f.mg", "--"])
        .args(["touch", "began"])
        .current_dir(folder.path())
        .output()
        .expect("prlimit runs");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(125), "{limit}: {text}");
    assert!(text.contains(fix), "{limit}: {text}");
    for file in ["f.mg", "began"] {
        assert!(!folder.path().join(file).exists(), "{limit}: {file}");
    }
}
