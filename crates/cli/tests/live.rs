//! Live collection as a user runs it: `memgauge stat`, `record --source clock`
//! and `import`, on software events, which every Linux has.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use memgauge_testing::{Need, skipped};
use std::path::Path;
use std::process::{Command, Output};

use harness::{PROGRAM, folder, memgauge, perf_works, said, workloads};
use serde_json::Value;

fn stat(options: &[&str], program: &[&str]) -> Output {
    let mut command = memgauge();
    command.arg("stat").args(options).arg("--").args(program);
    command.output().expect("memgauge runs")
}

/// Rows and the closing summary of `stat --json`.
fn json(options: &[&str], program: &[&str]) -> (Vec<Value>, Value) {
    let output = stat(&[options, &["--json"]].concat(), program);
    assert!(output.status.success(), "{}", said(&output));
    let mut lines: Vec<Value> = said(&output)
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let summary = lines.pop().expect("a summary");
    (lines, summary)
}

fn total(summary: &Value, name: &str) -> u64 {
    let totals = summary["totals"].as_array().expect("totals");
    let found = totals.iter().find(|t| t["name"] == name);
    found.and_then(|t| t["value"].as_u64()).expect(name)
}

fn sum(rows: &[Value], name: &str) -> u64 {
    rows.iter()
        .filter_map(|row| row["counts"][name].as_u64())
        .sum()
}

#[test]
fn rows_sum_to_the_counters_totals() {
    if !perf_works() {
        return;
    }
    let script = "for i in 1 2 3 4 5 6; do (ls / >/dev/null; true) & done; wait";
    let events = ["-I", "100us", "-e", "page-faults,context-switches"];
    let (rows, summary) = json(&events, &["sh", "-c", script]);
    for name in ["page-faults", "context-switches"] {
        assert_eq!(sum(&rows, name), total(&summary, name), "{name}");
    }
    let running = summary["ticks"]["running_ns"].as_u64();
    assert_eq!(Some(sum(&rows, "cpu-clock")), running);
    let tids: std::collections::BTreeSet<u64> =
        rows.iter().filter_map(|row| row["tid"].as_u64()).collect();
    assert!(
        tids.len() >= 13,
        "shell, six shells, six programs: {tids:?}"
    );
}

/// The same programs run with a counter that is only read at the end. Their page faults vary with
/// address-space randomisation by less than a hundredth.
#[test]
fn totals_of_a_series_are_those_of_a_plain_counter() {
    if !perf_works() {
        return;
    }
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do ls / >/dev/null; done";
    let program = ["sh", "-c", script];
    let (_, series) = json(&["-I", "50us", "-e", "page-faults"], &program);
    let (_, plain) = json(&["-e", "page-faults"], &program);
    let (series, plain) = (total(&series, "page-faults"), total(&plain, "page-faults"));
    assert!(series.abs_diff(plain) * 50 <= plain, "{series} and {plain}");
}

#[test]
fn a_program_too_short_for_a_tick_has_its_one_row() {
    if !perf_works() {
        return;
    }
    let (rows, summary) = json(&["-I", "10s", "-e", "page-faults"], &["true"]);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(summary["ticks"]["seen"], 0);
    assert_eq!(sum(&rows, "page-faults"), total(&summary, "page-faults"));
    let (interval, wall) = (&rows[0]["interval_ns"], &summary["wall_ns"]);
    assert!(interval.as_u64() <= wall.as_u64(), "{interval} of {wall}");
}

#[test]
fn intervals_of_a_thread_follow_one_another() {
    if !perf_works() {
        return;
    }
    let program = [workloads(), "write", "--bytes", "16MiB", "--passes", "4"];
    let (rows, _) = json(&["-I", "100us", "-e", "page-faults"], &program);
    let field = |row: &Value, name: &str| row[name].as_u64().expect("a number");
    for pair in rows.windows(2) {
        let (before, after) = (field(&pair[0], "time_ns"), field(&pair[1], "time_ns"));
        assert_eq!(after - before, field(&pair[1], "interval_ns"));
    }
}

/// Two threads and a child that each live for some milliseconds.
const BIRTHS: &str = r#"
import os, threading
def work():
    for i in range(400):
        memory = bytearray(1 << 20)
threads = [threading.Thread(target=work) for _ in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
child = os.fork()
work()
if child:
    os.wait()
"#;

#[test]
fn threads_born_later_are_followed_without_inheritance_too() {
    if !perf_works() || !harness::needs(&["python3"]) {
        return;
    }
    let python = ["python3", "-c", BIRTHS];
    let options = ["-I", "1ms", "-e", "page-faults"];
    let inherited = json(&options, &python);
    let (rows, summary) = json(&[&options[..], &["--no-inherit"]].concat(), &python);
    let threads = |rows: &[Value]| {
        let all: std::collections::BTreeSet<u64> =
            rows.iter().filter_map(|row| row["tid"].as_u64()).collect();
        all.len()
    };
    assert_eq!((threads(&inherited.0), threads(&rows)), (4, 4));
    let notes = summary["notes"].to_string();
    assert!(notes.contains("on each new thread"), "{notes}");
    assert_eq!(sum(&rows, "page-faults"), total(&summary, "page-faults"));
    let (all, followed) = (
        total(&inherited.1, "page-faults") as f64,
        total(&summary, "page-faults") as f64,
    );
    println!("{followed} of {all} page faults");
    assert!(followed > 0.5 * all, "{followed} of {all}");
}

#[test]
fn a_recording_of_a_series_has_the_rows_and_totals() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("s.mg");
    let path = path.to_str().expect("temporary paths are text");
    let program = [workloads(), "write", "--bytes", "8MiB"];
    let options = ["-I", "100us", "-e", "page-faults", "-o", path];
    let (rows, summary) = json(&options, &program);
    let recording = memgauge_recording::Recording::open(Path::new(path)).expect("a recording");
    let selection = memgauge_recording::Selection::all();
    let series = recording.rows::<memgauge_trace::SeriesRow>(&selection);
    let series: Vec<_> = series.flat_map(|batch| batch.expect("sound")).collect();
    // The timer's row and the event's for each.
    assert_eq!(series.len(), 2 * rows.len());
    let faults = recording.manifest().totals["page-faults"];
    assert_eq!(faults, total(&summary, "page-faults"));
    assert!(recording.manifest().complete);
}

#[test]
fn the_exit_code_is_the_programs_and_its_output_untouched() {
    if !perf_works() {
        return;
    }
    let output = stat(&["-I", "1ms"], &["sh", "-c", "echo out; exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"out\n");
}

#[test]
fn processes_that_run_already_are_observed_until_they_end() {
    if !perf_works() {
        return;
    }
    let mut running = Command::new("sleep").arg("3").spawn().expect("sleep runs");
    let pid = running.id().to_string();
    let output = memgauge()
        .args([
            "stat",
            "--json",
            "-I",
            "10ms",
            "-e",
            "context-switches",
            "-p",
            &pid,
        ])
        .output()
        .expect("memgauge runs");
    running.wait().expect("sleep ends");
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("context-switches"));
}

/// Children that start one after another, so that some start while the recording begins.
const CHILDREN: &str = "j=0; while [ $j -lt 40 ]; do j=$((j+1)); \
    sh -c 'i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done'; done";

#[test]
fn code_of_processes_that_start_while_the_recording_begins_is_known() {
    if !perf_works() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut running = Command::new("sh")
        .args(["-c", CHILDREN])
        .spawn()
        .expect("sh runs");
    let pid = running.id().to_string();
    let recorded = memgauge()
        .current_dir(folder.path())
        .args(["record", "--source", "clock", "-p", &pid, "-o", "x.mg"])
        .output()
        .expect("memgauge runs");
    running.wait().expect("sh ends");
    assert!(recorded.status.success(), "{}", said(&recorded));
    let report = memgauge()
        .current_dir(folder.path())
        .args(["report", "x.mg", "--json", "--rows", "1000"])
        .output()
        .expect("memgauge runs");
    let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let functions = &report["hot"]["functions"];
    let rows = functions["rows"].as_array().expect("rows");
    let samples = |rows: &[&Value]| {
        let samples = rows
            .iter()
            .map(|row| row["samples"].as_u64().expect("a count"));
        samples.sum::<u64>()
    };
    let is_unknown = |row: &&Value| row["function"] == "[unknown]";
    let all: Vec<&Value> = rows.iter().collect();
    let unknown: Vec<&Value> = rows.iter().filter(is_unknown).collect();
    let (all, unknown) = (samples(&all), samples(&unknown));
    assert!(all > 100 && unknown * 100 <= all, "{unknown} of {all}");
}

fn check_refusal(arguments: &[&str], code: i32, words: &[&str]) {
    let output = memgauge().args(arguments).output().expect("memgauge runs");
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn events_that_cannot_be_counted_are_refused_in_one_line() {
    let stat = |rest: &[&'static str]| [&["stat"], rest].concat();
    check_refusal(
        &stat(&["-e", "page-fault", "--", "true"]),
        2,
        &["page-faults"],
    );
    check_refusal(&stat(&["-e", "{faults", "--", "true"]), 2, &["not closed"]);
    check_refusal(&stat(&["-I", "9us", "--", "true"]), 2, &["10us"]);
    check_refusal(&stat(&["-p", "4194305"]), 125, &["4194305"]);
    check_refusal(&stat(&["-C", "9999", "--", "true"]), 2, &["9999"]);
    check_refusal(
        &stat(&["-G", "no/such/group", "--", "true"]),
        2,
        &["no/such/group"],
    );
    check_refusal(
        &stat(&["--container", "deadbeefdead", "--", "true"]),
        2,
        &["deadbeefdead"],
    );
    check_refusal(&stat(&["--ring", "3", "--", "true"]), 2, &["power of two"]);
    check_refusal(&["import", "/nonexistent"], 125, &["/nonexistent"]);
    check_refusal(
        &["import", "/etc/passwd"],
        125,
        &["/etc/passwd", "PERFILE2"],
    );
    check_refusal(&["import", "/usr"], 125, &["`/usr`", "directory"]);
    check_refusal(&["import", "/dev/null"], 125, &["`/dev/null`", "PERFILE2"]);
    check_refusal(&["list", "-g", "NONE"], 2, &["NONE", "TLB"]);
    check_refusal(&stat(&["-e", "faults:q", "--", "true"]), 2, &["`q`"]);
    check_refusal(&["record", "-p", "4194305"], 125, &["4194305"]);
    if perf_works() {
        check_refusal(&stat(&["--", "/nonexistent"]), 127, &["/nonexistent"]);
        check_refusal(&stat(&["--", "/etc/passwd"]), 126, &["/etc/passwd"]);
    }
}

#[test]
fn a_closed_standard_error_leaves_the_programs_exit_code() {
    if !perf_works() {
        return;
    }
    // The output is a pipe without a reader.
    let run = format!("sleep 0.2; {PROGRAM} stat -- sh -c 'exit 7'; echo $? >&3");
    let script = format!("{{ {{ {run}; }} 2>&1 | :; }} 3>&1");
    let output = Command::new("sh").args(["-c", &script]).output();
    let output = output.expect("sh runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "7");
}

/// Sends a signal to `memgauge stat` once its program is ready.
fn signalled(signal: &str, script: &str) -> Option<i32> {
    use std::io::{BufRead, BufReader};
    let mut running = Command::new(PROGRAM)
        .args(["stat", "-q", "-e", "task-clock", "--", "sh", "-c", script])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("memgauge runs");
    let mut line = String::new();
    let output = running.stdout.take().expect("a pipe");
    let ready = BufReader::new(output).read_line(&mut line);
    assert_eq!((ready.ok(), line.as_str()), (Some(6), "ready\n"));
    let pid = running.id().to_string();
    let sent = Command::new("kill").args(["-s", signal, &pid]).status();
    assert!(sent.expect("kill runs").success());
    running.wait().expect("it can be waited for").code()
}

#[test]
fn an_interrupted_run_ends_as_its_program_did_or_as_it_was_interrupted() {
    if !perf_works() {
        return;
    }
    let ends_well = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let plain = "echo ready; while :; do sleep 0.01; done";
    assert_eq!(signalled("TERM", ends_well), Some(7));
    assert_eq!(signalled("TERM", plain), Some(143));
    assert_eq!(signalled("INT", plain), Some(130));
}

#[test]
fn the_cost_of_ticks_is_estimated_and_too_short_an_interval_warned_of() {
    if !perf_works() {
        return;
    }
    let program = [workloads(), "rand", "--bytes", "1MiB", "--steps", "1M"];
    let events = ["-e", "page-faults", "-I"];
    let output = stat(&[&events[..], &["10us"]].concat(), &program);
    let text = said(&output);
    assert!(text.contains("slowdown estimated"), "{text}");
    let (_, summary) = json(&[&events[..], &["10us"]].concat(), &program);
    let ticks = &summary["ticks"];
    let get = |name: &str| ticks[name].as_f64().expect(name);
    // By definition, and never all of the time. The program starts no thread.
    let share = get("tick_ns") * (get("seen") + get("lost")) / get("running_ns");
    assert_eq!(ticks["tasks_started"], 0, "{ticks}");
    assert!(
        (get("share_taken") - share.min(1.0)).abs() < 1e-6,
        "{ticks}"
    );
    // A tick costs at least 2 µs on any machine, which is a fifth of 10 µs. The warning comes
    // before the report.
    if get("tick_ns") > 2_100.0 {
        let warned = summary["notes"].to_string();
        assert!(warned.contains("slow the program down"), "{warned}");
    }
}

#[test]
fn slowdown_includes_the_counters_of_started_processes() {
    if !perf_works() {
        return;
    }
    let script = "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done";
    let options = ["-e", "page-faults", "-I", "10ms"];
    let (_, summary) = json(&options, &["sh", "-c", script]);
    let ticks = &summary["ticks"];
    if ticks["task_cost"].is_null() {
        return skipped(Need::Kernel, "counters are inherited from Linux 6.13 on");
    }
    assert_eq!(ticks["tasks_started"], 200, "{ticks}");
    let get = |value: &Value| value.as_f64().expect("a number");
    let (added_ns, uncounted_ns) = (
        get(&ticks["task_cost"]["added_ns"]),
        get(&ticks["task_cost"]["uncounted_ns"]),
    );
    assert!(added_ns > 0.0, "copying counters takes time: {ticks}");
    let cpu_ns = get(&ticks["running_ns"]) + 200.0 * uncounted_ns;
    let started = get(&ticks["share_of_started_tasks"]);
    let expected = (200.0 * added_ns / cpu_ns).min(1.0);
    assert!((started - expected).abs() < 1e-6, "{ticks}");
    assert!(get(&ticks["share_taken"]) >= started, "{ticks}");
}

#[test]
fn a_pinned_event_in_a_series_is_refused_with_the_reason() {
    let output = stat(&["-I", "1ms", "-e", "page-faults:D"], &["true"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    for words in ["`page-faults:D`", "timer", "leave them out"] {
        assert!(said(&output).contains(words), "{}", said(&output));
    }
}

/// Runs as `nobody`, to whom `perf_event_paranoid` applies.
#[test]
fn an_ordinary_user_counts_and_samples_own_programs() {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let level: i32 = level.ok().and_then(|s| s.trim().parse().ok()).unwrap_or(9);
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|o| o.stdout == b"0\n");
    if !is_root || level > 2 || !perf_works() {
        skipped(
            Need::Root,
            "needs root to become nobody, and perf_event_paranoid <= 2",
        );
        return;
    }
    let folder = folder();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everybody).expect("the mode can be set");
    let program = folder.path().join("memgauge");
    std::fs::copy(PROGRAM, &program).expect("the program can be copied");
    let as_nobody = |arguments: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .expect("setpriv runs")
    };
    let output = as_nobody(&[
        "stat",
        "-I",
        "100us",
        "-e",
        "page-faults",
        "--",
        "ls",
        "/usr/bin",
    ]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        level < 2 || said(&output).contains("in user space only"),
        "{}",
        said(&output)
    );
    let output = as_nobody(&[
        "record", "--source", "clock", "-o", "c.mg", "--", "ls", "/usr/bin",
    ]);
    assert!(output.status.success(), "{}", said(&output));
    if level >= 1 {
        let output = as_nobody(&["stat", "-a", "-e", "task-clock", "--", "true"]);
        assert_eq!(output.status.code(), Some(125));
        let text = said(&output);
        assert!(text.contains("perf_event_paranoid=0"), "{text}");
    }
    // More rights would not give this machine a PMU.
    if !Path::new("/sys/bus/event_source/devices/cpu").exists() {
        let output = as_nobody(&["stat", "-e", "cycles,task-clock", "--", "true"]);
        let text = said(&output);
        let line = text.lines().find(|line| line.contains("cycles"));
        assert!(
            line.is_some_and(|line| !line.contains("paranoid")),
            "{text}"
        );
        assert!(text.contains("no PMU"), "{text}");
    }
}

/// Every access of the loop lies in the array, so every address that is rebuilt
/// in it must. Start and end of the program take a few samples of a hundred.
fn check_addresses(arguments: &[&str], bytes: u64) {
    let folder = folder();
    let path = folder.path().join("c.mg");
    let program = [&[workloads()], arguments].concat();
    let output = memgauge()
        .args(["record", "-q", "--source", "clock", "-F", "2000", "-o"])
        .arg(&path)
        .arg("--")
        .args(&program)
        .output()
        .expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    let recording = memgauge_recording::Recording::open(&path).expect("a recording");
    let selection = memgauge_recording::Selection::all();
    let maps = recording.rows::<memgauge_trace::Module>(&selection);
    let array = maps
        .flat_map(|batch| batch.expect("sound"))
        .filter(|m| m.path == "[anon]" && m.end.0 - m.start.0 >= bytes)
        .map(|m| (m.start.0, m.end.0))
        .last()
        .expect("the array is mapped");
    let samples = recording.rows::<memgauge_trace::Sample>(&selection);
    let samples: Vec<_> = samples.flat_map(|batch| batch.expect("sound")).collect();
    let rebuilt: Vec<u64> = samples.iter().filter_map(|s| Some(s.addr?.0)).collect();
    let inside = rebuilt
        .iter()
        .filter(|&&a| (array.0..array.1).contains(&a))
        .count();
    println!(
        "{arguments:?}: {} samples, {} with address, {inside} right",
        samples.len(),
        rebuilt.len()
    );
    assert!(samples.len() >= 50, "{} samples", samples.len());
    // The position within a short loop at which the timer interrupts depends on the processor.
    assert!(
        rebuilt.len() * 10 >= samples.len() * 3,
        "{} of {}",
        rebuilt.len(),
        samples.len()
    );
    assert!(
        inside * 100 >= rebuilt.len() * 90,
        "{inside} of {}",
        rebuilt.len()
    );
}

#[test]
fn addresses_from_the_clock_lie_where_the_program_accesses() {
    if !perf_works() {
        return;
    }
    const MIB: u64 = 1 << 20;
    check_addresses(&["rand", "--bytes", "64MiB", "--steps", "20M"], 64 * MIB);
    check_addresses(&["linear", "--bytes", "64MiB", "--passes", "200"], 64 * MIB);
    check_addresses(
        &["bigarray", "--bytes", "64MiB", "--passes", "200"],
        64 * MIB,
    );
}

#[test]
fn a_report_of_clock_samples_shows_where_and_how() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let output = memgauge()
        .args(["--source", "clock", "-o", "c.mg", "--", workloads()])
        .args(["rand", "--bytes", "16MiB", "--steps", "10M"])
        .current_dir(folder.path())
        .output()
        .expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    for words in [
        "Data addresses",
        "previous: an operand",
        "Heat map",
        "Hottest memory regions",
    ] {
        assert!(
            said(&output).contains(words),
            "`{words}` is not in {}",
            said(&output)
        );
    }
}
