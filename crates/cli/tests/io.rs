//! `memgauge io` as a user runs it. Accounting needs root and kernel support; other tests print why they
//! are skipped.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

mod tmux;

use memgauge_testing::{Need, skipped};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use harness::{PROGRAM, run_denied};
use serde_json::Value;
use tmux::Terminal;

/// Returns whether memgauge can account on this machine, and prints why not. It is tried once: the kernel
/// checks the programs for about a second.
fn can_account() -> bool {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let refused = REFUSED.get_or_init(|| {
        let output = memgauge(&["io", "--duration", "1ms", "--json"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (!output.status.success()).then_some(said)
    });
    if let Some(why) = refused {
        skipped(Need::Kernel, why.trim());
    }
    refused.is_none()
}

fn memgauge(arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .output()
        .expect("memgauge runs")
}

fn json(text: &[u8]) -> Value {
    serde_json::from_slice(text).expect("JSON")
}

fn lines_of<'a>(summary: &'a Value, command: &str) -> Vec<&'a Value> {
    let lines = summary["lines"].as_array().expect("lines");
    lines
        .iter()
        .filter(|line| line["command"] == command)
        .collect()
}

const WRITE: &str = "dd if=/dev/zero of=data bs=1M count=8 conv=fsync 2>/dev/null; rm data; exit 3";

fn bytes_written_to_devices() -> u64 {
    let stats = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let sectors = |line: &str| line.split_whitespace().nth(9)?.parse::<u64>().ok();
    stats.lines().filter_map(sectors).sum::<u64>() * 512
}

/// Returns true if bytes written there go to a device. Bytes that stay in memory are in no account.
fn lies_on_a_device(folder: &std::path::Path) -> bool {
    let before = bytes_written_to_devices();
    let mut write = Command::new("sh");
    let status = write.current_dir(folder).args(["-c", WRITE]).status();
    assert_eq!(status.expect("sh runs").code(), Some(3));
    let reached = bytes_written_to_devices() - before >= 8 << 20;
    if !reached {
        skipped(
            Need::Kernel,
            format!("{} is on no device", folder.display()),
        );
    }
    reached
}

#[test]
fn a_command_is_accounted_with_its_children_and_keeps_its_exit_code() {
    if !can_account() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    if !lies_on_a_device(folder.path()) {
        return;
    }
    let output = Command::new(PROGRAM)
        .current_dir(folder.path())
        .args(["io", "--json", "-o", "io.mg", "--", "sh", "-c", WRITE])
        .output()
        .expect("memgauge runs");
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.is_empty(), "standard output is the command's");
    let summary = json(&output.stderr);
    let written: u64 = lines_of(&summary, "dd")
        .iter()
        .filter_map(|l| l["out"]["bytes"].as_u64())
        .sum();
    // The file system also writes its own data about the file.
    assert!(
        (8 << 20..=(8 << 20) + (64 << 10)).contains(&written),
        "{written}"
    );
    assert_eq!(summary["filtered"], true);

    let recorded = folder.path().join("io.mg").display().to_string();
    let report = json(&memgauge(&["report", "--json", &recorded]).stdout);
    assert_eq!(
        report["io"]["lines"], summary["lines"],
        "the recording tells the same"
    );
    assert_eq!(report["io"]["devices"], summary["devices"]);
}

/// A recording of one process that wrote `bytes` to a disk that a RAID is layered on.
fn recording_of_writes(path: &Path, bytes: u64) {
    let manifest = memgauge_trace::Manifest {
        command: vec!["./writer".to_owned(), bytes.to_string()],
        clock: "monotonic".to_owned(),
        source: memgauge_trace::SourceFacts {
            kind: memgauge_trace::SourceKind::Io,
            settings: memgauge_trace::SourceSettings {
                no_counters: Some("none here".to_owned()),
                ..memgauge_trace::SourceSettings::default()
            },
        },
        ..memgauge_trace::Manifest::default()
    };
    let device = |number, name: &str, below: &str| memgauge_trace::IoDevice {
        device: memgauge_trace::DeviceId { netns: 0, number },
        name: name.to_owned(),
        below: below.to_owned(),
        ..memgauge_trace::IoDevice::default()
    };
    let devices = [device(8 << 20, "sda", ""), device(9 << 20, "md0", "sda")];
    let owner = memgauge_trace::Owner(7 << 32);
    let row = |owner, number, time_ns| memgauge_trace::IoRow {
        time_ns,
        interval_ns: 1_000_000,
        owner,
        device: memgauge_trace::DeviceId { netns: 0, number },
        direction: memgauge_trace::Direction::Out,
        bytes,
        operations: 1,
        ..memgauge_trace::IoRow::default()
    };
    let rows = (1..=2).flat_map(|n| {
        let owners = [owner, memgauge_trace::Owner::DEVICE];
        let at = |owner| [8 << 20, 9 << 20].map(|number| row(owner, number, n * 1_000_000));
        owners.into_iter().flat_map(at).collect::<Vec<_>>()
    });
    let mut writer = memgauge_recording::Writer::create(path, manifest).expect("a recording");
    writer.extend(devices).expect("devices");
    let known = memgauge_trace::IoOwner {
        owner,
        command: "writer".to_owned(),
        ..memgauge_trace::IoOwner::default()
    };
    writer.extend([known]).expect("owners");
    writer.extend(rows).expect("rows");
    writer.finish(|_| {}).expect("a whole recording");
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn a_fleet_sums_recorded_io_by_program_and_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let least = harness::drawn("bytes", 1000, 1_000_000);
    let runs = [least, least * 2, least * 3];
    std::fs::create_dir(folder.path().join("runs")).expect("a folder");
    for (number, bytes) in runs.iter().enumerate() {
        recording_of_writes(&folder.path().join(format!("runs/{number}.mg")), *bytes);
    }
    let fleet = path("fleet");
    let label = "service=writer";
    let indexed = memgauge(&[
        "fleet",
        "index",
        &path("runs"),
        "--to",
        &fleet,
        "--label",
        label,
    ]);
    assert!(text(&indexed).contains("added 3"), "{}", text(&indexed));
    // Each recording has two rows of its bytes, at the RAID and at the disk below it.
    let written = 2 * (runs.iter().sum::<u64>());
    let top = |words: &[&str]| {
        let answered = memgauge(&[&["fleet", "top", &fleet, "--json"], words].concat());
        json(&answered.stdout)
    };
    for (words, expected) in [
        (
            ["--processes", "--by", "io.bytes"],
            [("writer", Some("md0")), ("writer", Some("sda"))],
        ),
        (
            ["--processes", "--by", "io.out_bytes"],
            [("writer", Some("md0")), ("writer", Some("sda"))],
        ),
        (
            ["--devices", "--by", "io.bytes"],
            [("md0", None), ("sda", None)],
        ),
    ] {
        let found = top(&words);
        assert_eq!(found["units"], serde_json::json!(["bytes"]));
        let rows = found["rows"].as_array().expect("rows");
        let names = rows.iter().map(|row| {
            let name = |what: &str| row[what].as_str();
            (name("name").expect("a name"), name("module"))
        });
        assert_eq!(names.collect::<Vec<_>>(), expected, "{words:?}");
        assert!(rows.iter().all(|row| row["value"].as_u64() == Some(written)
            || row["value"].as_f64() == Some(written as f64)));
    }
    // Bytes that a device passes on to another one are in the totals once, as in a report.
    let outliers = memgauge(&["fleet", "outliers", &fleet, "--by", "io.bytes", "--json"]);
    assert_eq!(json(&outliers.stdout)["facts"]["recordings"], 3);
    // Without functions, programs are ranked.
    let [usual, processes] = [&[][..], &["--processes"]].map(top);
    assert_eq!(usual, processes);
    let shown = text(&memgauge(&["fleet", "top", &fleet, "--processes"]));
    assert!(
        shown.contains("Worst programs by io.bytes") && shown.contains("device"),
        "{shown}"
    );
}

#[test]
fn recorded_io_is_reported_exported_and_gated_as_any_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    recording_of_writes(&folder.path().join("less.mg"), 1000);
    recording_of_writes(&folder.path().join("more.mg"), 1500);
    let report = json(&memgauge(&["report", "--json", &path("less.mg")]).stdout);
    // The RAID passes its bytes on to the disk.
    assert_eq!(report["totals"]["io.bytes"], 2000);
    assert_eq!(report["io"]["lines"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["run"]["duration_ns"], 2_000_000);
    let shown = text(&memgauge(&["report", &path("less.mg")]));
    assert!(
        shown.contains("./writer") && shown.contains("Devices"),
        "{shown}"
    );
    assert!(
        !shown.contains("L1D") && !shown.contains("Functions"),
        "{shown}"
    );

    let written = memgauge(&[
        "export",
        "-f",
        "csv",
        "-o",
        &path("tables"),
        &path("less.mg"),
    ]);
    assert!(written.status.success(), "{}", text(&written));
    let table = std::fs::read_to_string(path("tables/io.csv")).expect("a table");
    assert!(table.contains("7,writer,,,sda,0,2000,0,2"), "{table}");
    let metrics = memgauge(&["export", "-f", "openmetrics", &path("less.mg")]);
    let line = "event=\"io.out_bytes\",unit=\"bytes\",provenance=\"counted\"} 2000";
    assert!(text(&metrics).contains(line), "{}", text(&metrics));
    let refused = memgauge(&["export", "-f", "pprof", "-o", &path("p"), &path("less.mg")]);
    assert!(text(&refused).contains("has no code"), "{}", text(&refused));

    let runs = [path("less.mg"), path("more.mg")];
    let gate = |rule| memgauge(&["diff", "--fail-if", rule, &runs[0], &runs[1]]);
    let failed = gate("io.out_bytes > +5%");
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(text(&failed).contains("writer (sda)"), "{}", text(&failed));
    assert!(gate("io.sda.out_bytes > +60%").status.success());
    let baseline = path("less.json");
    memgauge(&["report", "--baseline", &baseline, &runs[0]]);
    let against = memgauge(&["diff", "--fail-if", "io.bytes > +5%", &baseline, &runs[1]]);
    assert_eq!(against.status.code(), Some(1), "{}", text(&against));
}

#[test]
fn rates_are_in_the_pinned_map_while_memgauge_runs() {
    if !can_account() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().display().to_string();
    let mounted = Command::new("mount")
        .args(["-t", "bpf", "bpf", &place])
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        skipped(Need::Rights, "a BPF file system cannot be mounted");
        return;
    }
    let map = folder.path().join("io_rates");
    let seen = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do test -e {map} && break; sleep 0.2; done
         {PROGRAM} io --pin {place} --duration 1ms 2>/dev/null; test $? = 125 -a -e {map} && echo pinned",
        map = map.display()
    );
    let output = memgauge(&["io", "--pin", &place, "--", "sh", "-c", &seen]);
    let left = map.exists();
    let _ = Command::new("umount").arg(&place).status();
    assert_eq!(
        output.stdout,
        b"pinned\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!left, "nothing is left behind");
}

/// Counters of a Zen 4 machine for ten minutes: every 100 ms, its fabric counts 64 kB
/// read by devices and 640 kB written. Its memory moves more.
fn counters(folder: &Path) -> std::path::PathBuf {
    let mut text = "# made up\nplatform zen4\n".to_owned();
    for tick in 1..6000 {
        let time = f64::from(tick) / 10.0;
        for (event, count) in [
            ("amd_umc_0/event=0x0a,rdwrmask=1/", 100_000),
            ("amd_umc_0/event=0x0a,rdwrmask=2/", 100_000),
            ("amd_df/event=0x81f,umask=0x7fe/", 1000),
            ("amd_df/event=0x81f,umask=0x7ff/", 10_000),
        ] {
            text += &format!("{time} 0 {event} {count}\n");
        }
    }
    let path = folder.join("counters");
    std::fs::write(&path, text).expect("a file");
    path
}

#[test]
fn memory_traffic_is_estimated_from_counters_of_a_file_and_recorded() {
    if !can_account() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let file = counters(folder.path()).display().to_string();
    let output = Command::new(PROGRAM)
        .current_dir(folder.path())
        .args([
            "io",
            "--json",
            "-o",
            "io.mg",
            "--counters",
            &file,
            "--",
            "sh",
            "-c",
        ])
        .arg("dd if=/dev/zero of=data bs=1M count=4 conv=fsync 2>/dev/null; sleep 0.3")
        .output()
        .expect("memgauge runs");
    assert!(output.status.success());
    let summary = json(&output.stderr);
    let memory = &summary["memory"];
    let (input, out) = (memory["in_bytes"].as_u64(), memory["out_bytes"].as_u64());
    let (input, out) = (input.expect("in"), out.expect("out"));
    assert!(out >= 3 * 64_000 && input == 10 * out, "{memory}");
    assert_eq!(out % 64_000, 0);
    assert_eq!(memory["source"], "zen4, replayed from a file");
    let hardware = |line: &Value| line["memory_bytes_at_most"].as_u64() > Some(0);
    let written: Vec<&Value> = lines_of(&summary, "dd")
        .into_iter()
        .filter(|l| hardware(l))
        .collect();
    for line in &written {
        let bytes = line["memory_bytes"].as_u64().expect("an estimate");
        assert!(bytes <= input + out, "{line}");
    }
    let missing = summary["missing"].to_string();
    assert!(
        missing.contains("counts of the file lie beyond the end"),
        "{missing}"
    );

    let recorded = folder.path().join("io.mg").display().to_string();
    let report = json(&memgauge(&["report", "--json", &recorded]).stdout);
    assert_eq!(
        report["io"]["memory"], summary["memory"],
        "the recording tells the same"
    );
    let text = String::from_utf8(memgauge(&["report", &recorded]).stdout).expect("text");
    assert!(text.contains("min(device_reads, memory_reads)"), "{text}");
}

#[test]
fn lines_are_summed_up_by_program_and_threads_are_told_apart() {
    if !can_account() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    if !lies_on_a_device(folder.path()) {
        return;
    }
    let run = |options: &[&str]| {
        let output = Command::new(PROGRAM)
            .current_dir(folder.path())
            .args(["io", "--json"])
            .args(options)
            .args(["--", "sh", "-c"])
            .arg("for i in 1 2; do dd if=/dev/zero of=$i bs=1M count=2 oflag=direct 2>/dev/null; done")
            .output()
            .expect("memgauge runs");
        assert!(output.status.success());
        json(&output.stderr)
    };
    let grouped = run(&["--by", "command"]);
    let of_dd = lines_of(&grouped, "dd");
    assert!(of_dd.iter().any(|l| l["processes"] == 2), "{of_dd:?}");
    assert!(of_dd.iter().all(|l| l["pid"] == 0 && l["tid"].is_null()));
    let threads = run(&["--threads"]);
    let of_dd = lines_of(&threads, "dd");
    assert!(
        !of_dd.is_empty() && of_dd.iter().all(|l| l["tid"] == l["pid"]),
        "{of_dd:?}"
    );
}

#[test]
fn leftovers_of_a_killed_run_are_removed_by_the_next() {
    if !can_account() {
        return;
    }
    let (mut killed, mut lines, group) = in_a_group("exec sleep 1");
    killed.kill().expect("memgauge can be killed");
    killed.wait().expect("it ends");
    // The command continues to its end.
    std::io::Read::read_to_string(&mut lines, &mut String::new()).expect("its output ends");
    // Its last process leaves the group a moment after it has ended. Other runs beside this test
    // may also remove the group.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !groups_named(&group).is_empty() {
        assert!(
            std::time::Instant::now() < deadline,
            "`{group}` is still there"
        );
        assert!(memgauge(&["io", "--", "true"]).status.success());
    }
}

type Lines = std::io::BufReader<std::process::ChildStdout>;

/// Starts a run and waits until its command has begun. Returns the run, the lines of its command,
/// and the name of its group.
fn in_a_group(then: &str) -> (std::process::Child, Lines, String) {
    let mut run = Command::new(PROGRAM)
        .args(["io", "--", "sh", "-c"])
        .arg(format!(
            "sed -n s/^0::.*memgauge-/memgauge-/p /proc/self/cgroup; {then}"
        ))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("memgauge runs");
    let mut lines = std::io::BufReader::new(run.stdout.take().expect("a pipe"));
    let mut group = String::new();
    std::io::BufRead::read_line(&mut lines, &mut group).expect("a line");
    let group = group.trim().to_owned();
    assert!(
        group.starts_with(&format!("memgauge-{}-", run.id())),
        "the command is not in a group of its own: `{group}`"
    );
    (run, lines, group)
}

/// Paths of the control groups of that name.
fn groups_named(name: &str) -> String {
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-name", name])
        .output();
    String::from_utf8_lossy(&found.expect("find runs").stdout).into_owned()
}

/// A process moves itself out of its group. Only the lock shows that the empty group belongs to a
/// live run. The second run has another PID namespace, as containers have.
#[test]
fn two_runs_beside_each_other_keep_their_groups() {
    if !can_account() {
        return;
    }
    let (mut first, lines, group) = in_a_group("read line; exit 7");
    let path = groups_named(&group).trim().to_owned();
    let parent = Path::new(&path).parent().expect("a parent").to_owned();
    // Every process leaves the group, as a service manager may demand.
    let procs = std::fs::read_to_string(format!("{path}/cgroup.procs")).expect("processes");
    for pid in procs.lines() {
        std::fs::write(parent.join("cgroup.procs"), pid).expect("it leaves");
    }
    let second = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", PROGRAM])
        .args(["io", "--json", "--", "true"])
        .output()
        .expect("unshare runs");
    assert!(second.status.success(), "{second:?}");
    assert!(Path::new(&path).exists(), "a live run's group was removed");
    drop(first.stdin.take());
    assert_eq!(first.wait().expect("it ends").code(), Some(7));
    drop(lines);
    assert!(!Path::new(&path).exists(), "a run leaves its group");
}

/// The command may print anything, but the file has only JSON.
#[test]
fn json_goes_to_a_file_and_a_descriptor_tells_when_accounting_has_begun() {
    if !can_account() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new("sh")
        .current_dir(folder.path())
        .arg("-c")
        // The command sees that the line was written before it began.
        .arg(format!(
            "{PROGRAM} io --json=io.json --ready-fd 3 -- sh -c 'cat ready; echo noise >&2' 3>ready"
        ))
        .output()
        .expect("sh runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"ready\n");
    assert_eq!(output.stderr, b"noise\n");
    let written = std::fs::read(folder.path().join("io.json")).expect("a file");
    assert_eq!(json(&written)["filtered"], true);
}

#[test]
fn a_descriptor_or_file_that_cannot_be_written_is_told_before_anything_runs() {
    let refused = |options: &[&str], code, word: &str| {
        let output = Command::new(PROGRAM)
            .arg("io")
            .args(options)
            .args(["--", "echo", "ran"])
            .output()
            .expect("memgauge runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(word) && output.stdout.is_empty(), "{said}");
    };
    refused(&["--ready-fd", "77"], 2, "file descriptor 77");
    refused(&["--ready-fd", "none"], 2, "--ready-fd");
    refused(
        &["--json=/nonexistent/io.json"],
        125,
        "/nonexistent/io.json",
    );
}

/// Runs memgauge after a shell command in a mount namespace of its own.
fn behind(prepare: &str, arguments: &str) -> Output {
    Command::new("unshare")
        .args([
            "-m",
            "sh",
            "-c",
            &format!("{prepare} && exec {PROGRAM} {arguments}"),
        ])
        .output()
        .expect("unshare runs")
}

#[test]
fn a_kernel_without_types_is_told() {
    if !can_account() {
        return;
    }
    let output = behind("mount -t tmpfs none /sys/kernel/btf", "io --duration 1ms");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("CONFIG_DEBUG_INFO_BTF") && said.lines().count() == 1,
        "{said}"
    );
}

/// The kernel's type information lacks a tracepoint. Its stand-ins are used, or the missing numbers
/// are named.
#[test]
fn a_kernel_without_a_hook_is_accounted_without_it() {
    if !can_account() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let types = folder.path().join("vmlinux").display().to_string();
    let hide = format!(
        "export LC_ALL=C; sed s/btf_trace_sock_recv_length/btf_trace_sock_recv_absent/ /sys/kernel/btf/vmlinux > {types} \
         && sed -i s/btf_trace_tcp_destroy_sock/btf_trace_tcp_destroy_none/ {types} \
         && mount --bind {types} /sys/kernel/btf/vmlinux"
    );
    let output = behind(&hide, "io --json --duration 1ms");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let missing = json(&output.stdout)["missing"].to_string();
    let lost = "the last packets of a TCP connection are not attributed";
    assert!(missing.contains(lost), "{missing}");
}

#[test]
fn a_filter_of_system_calls_is_named() {
    if !can_account() || !cfg!(target_arch = "x86_64") {
        skipped(Need::Root, "needs root on x86-64");
        return;
    }
    const BPF: u32 = 321;
    let output = run_denied(BPF, &["io", "--duration", "1ms"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("seccomp") && said.lines().count() == 1,
        "{said}"
    );
}

/// A kernel stays locked down until it is booted again: tests/kernels/run does that to its
/// guest.
#[test]
fn a_kernel_that_is_locked_down_is_named() {
    let state = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if !state.contains("[confidentiality]") {
        skipped(Need::Kernel, "the kernel is not locked down");
        return;
    }
    check_refused(
        &["io", "--duration", "1ms"],
        125,
        &["locked down", "lockdown=integrity"],
    );
}

fn check_refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = memgauge(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

#[test]
fn senseless_targets_are_refused_in_one_line() {
    check_refused(
        &["io", "-p", "4000000000"],
        125,
        &["4000000000", "no such process"],
    );
    check_refused(
        &["io", "-G", "/no/such/group"],
        125,
        &["/no/such/group", "nearest one is `/`"],
    );
    check_refused(
        &["io", "-G", "/", "--", "true"],
        2,
        &["cannot be used with"],
    );
    check_refused(&["io", "-p", "x"], 2, &["invalid value"]);
    check_refused(
        &["io", "-p", "1", "--", "true"],
        2,
        &["cannot be used with"],
    );
    check_refused(&["io", "-I", "0"], 2, &["1us"]);
    check_refused(
        &["io", "--threads", "--pin", "/x"],
        2,
        &["cannot be used with"],
    );
    check_refused(
        &["io", "--counters", "/no/file"],
        125,
        &["/no/file", "No such file"],
    );
    check_refused(
        &["io", "--counters", "/etc/passwd"],
        125,
        &["/etc/passwd", "line 1", "platform NAME"],
    );
    if can_account() {
        check_refused(
            &["io", "--", "/no/such/program"],
            127,
            &["/no/such/program"],
        );
        check_refused(&["io", "--", "/etc/hostname"], 126, &["/etc/hostname"]);
        check_refused(
            &["io", "--pin", "/proc", "--duration", "1ms"],
            125,
            &["BPF file system"],
        );
    }
}

#[test]
fn too_few_descriptors_are_named_with_the_fix() {
    if !can_account() {
        skipped(Need::Root, "needs root");
        return;
    }
    for limit in [14, 22] {
        let line = format!("ulimit -n {limit}; exec {PROGRAM} io -- true");
        let output = Command::new("sh").args(["-c", &line]).output();
        let output = output.expect("sh runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{said}");
        let words = format!("only {limit} files may be open at once: allow more (ulimit -n");
        assert!(said.contains(&words) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn without_rights_the_fix_is_named() {
    if !Path::new("/usr/bin/setpriv").exists() || !can_account() {
        skipped(Need::Root, "needs setpriv and root");
        return;
    }
    let copy = tempfile::tempdir_in("/tmp").expect("a folder");
    let program = copy.path().join("memgauge");
    std::fs::copy(PROGRAM, &program).expect("a copy that anyone may run");
    for path in [copy.path(), &program] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, mode).expect("modes can be set");
    }
    let output = Command::new("setpriv")
        .args([
            "--reuid",
            "65534",
            "--clear-groups",
            "--bounding-set=-all",
            "--",
        ])
        .arg(&program)
        .args(["io", "--duration", "1ms"])
        .output()
        .expect("setpriv runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("CAP_BPF") && said.contains("sudo") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn the_live_table_answers_keys_and_gives_the_terminal_back() {
    if !tmux::is_here() || !can_account() {
        skipped(Need::Root, "needs tmux and root");
        return;
    }
    let command = format!("sh -c '{PROGRAM} io; echo ended with $?; sleep 20'");
    let terminal = Terminal::start(&command, (100, 30));
    let screen = terminal.screen_with("I/O by process and device");
    assert!(screen.contains("last second"), "{screen}");
    terminal.keys("s");
    terminal.screen_with("since start");
    terminal.keys("/");
    terminal.keys("no-such-program");
    terminal.screen_with("show lines with: no-such-program");
    terminal.keys("Enter");
    let screen = terminal.screen_with("only `no-such-program`");
    assert!(screen.contains("nothing moved"), "{screen}");
    terminal.keys("q");
    let screen = terminal.screen_with("ended with 0");
    assert!(
        !screen.contains("I/O by process"),
        "the table is gone: {screen}"
    );
}
