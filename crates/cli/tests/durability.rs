//! Recordings with an irregular end: memgauge, the emulator or the program are killed at random times,
//! or memgauge is interrupted once or three times. Each recording must open, and its totals must be the
//! sums of its series.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use harness::{PATH, PROGRAM, Totals, needs, report, totals_of, workloads};
use memgauge_recording::{Recording, Selection};
use memgauge_testing::Random;
use memgauge_trace::{SeriesRow, catalogue};
use serde_json::Value;
use tempfile::TempDir;

/// Kills of each kind: 15 in all.
const KILLS: u64 = 5;
/// Parts are closed every two seconds, so some kills come before the first part
/// and some after.
const LATEST_KILL_MS: u64 = 2_800;
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for a clean end: two seconds of grace for the program, and the writing.
const CLEAN_END: Duration = Duration::from_secs(15);

/// A running recording. Its emulators do not outlive the test.
struct Running {
    memgauge: Child,
    folder: TempDir,
}

impl Running {
    fn start(program: &[&str]) -> Running {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new(PROGRAM);
        command
            .args(["record", "-q", "--source", "emulate", "-o"])
            .arg(folder.path().join("run.mg"))
            .arg("--");
        command.args(program).env_clear().env("PATH", PATH);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(folder.path().join("said")).expect("a file can be made"));
        // In a process group of its own, so that no signal reaches the test.
        let memgauge = command.process_group(0).spawn().expect("memgauge runs");
        Running { memgauge, folder }
    }

    fn recording(&self) -> PathBuf {
        self.folder.path().join("run.mg")
    }

    /// Output of memgauge and the program.
    fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("said")).expect("the file is there")
    }

    /// The emulators of this recording that run.
    fn emulators(&self) -> Vec<u32> {
        let session = format!("memgauge-{}-", self.memgauge.id());
        numbers_in_proc()
            .filter(|&pid| names_session(pid, &session))
            .collect()
    }

    /// Waits for the command's own emulator to begin, which is memgauge's child. Its number
    /// need not be the lowest: numbers of processes begin again.
    fn first_emulator(&self) -> u32 {
        let parent = format!("PPid:\t{}\n", self.memgauge.id());
        let is_own = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|status| status.contains(&parent))
        };
        wait_for("the emulator starts", || {
            self.emulators().into_iter().find(is_own)
        })
    }

    fn signal(&self, signal: &str) {
        kill(signal, &self.memgauge.id().to_string());
    }

    /// Waits for memgauge to end.
    fn end(&mut self) -> ExitStatus {
        wait_for("memgauge ends", || {
            self.memgauge
                .try_wait()
                .expect("memgauge can be waited for")
        })
    }

    /// Waits for the program to end by itself.
    fn wait_for_the_program(&self) {
        wait_for("the program ends by itself", || {
            self.emulators().is_empty().then_some(())
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.memgauge.kill();
        let _waited = self.memgauge.wait();
        // One that was being forked, or was in the middle of an exec, is seen a moment later.
        for _look in 0..2 {
            let mut left = self.emulators();
            while !left.is_empty() {
                left.iter().for_each(|pid| {
                    kill("KILL", &pid.to_string());
                });
                left = self.emulators();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn numbers_in_proc() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns true if the process is an emulator with this session. A zombie has no arguments.
fn names_session(pid: u32, session: &str) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments = String::from_utf8_lossy(&arguments);
    arguments.contains("session=") && arguments.contains(session)
}

/// Sends a signal to a process, or to a group when `target` is negative.
fn kill(signal: &str, target: &str) -> bool {
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!("kill -{signal} {target} 2>/dev/null"))
        .status();
    status.is_ok_and(|status| status.success())
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "waited {PATIENCE:?} in vain: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sums of the series of all parts there are, by event.
fn series_sums(path: &Path) -> Totals {
    let recording = Recording::open(path).expect("the recording opens");
    assert_eq!(recording.problems(), Vec::<String>::new());
    let rows = recording
        .rows::<SeriesRow>(&Selection::all())
        .flat_map(|batch| batch.expect("a closed part is sound"));
    rows.fold(BTreeMap::new(), |mut sums, row| {
        let name = catalogue::name(row.event).expect("events of the catalogue");
        *sums.entry(name.to_owned()).or_default() += row.value as i64;
        sums
    })
}

/// The report of a recording, after a check of its totals against its series.
fn check_opens(path: &Path) -> Value {
    let output = report(path);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), &*said),
        (Some(0), ""),
        "the report fails"
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("the report is JSON");
    let sums = series_sums(path);
    let no_series = [
        "virtual_ns",
        "idle_ns",
        "outside_wait_ns",
        "dram.unattributed_write_bytes",
    ];
    for (event, total) in totals_of(&report["totals"]) {
        if !no_series.contains(&event.as_str()) && !event.starts_with("heap.") {
            assert_eq!(total, sums.get(&event).copied().unwrap_or(0), "{event}");
        }
    }
    let missing = sums
        .keys()
        .find(|event| report["totals"].get(event.as_str()).is_none());
    assert_eq!(missing, None, "in the series and not in the totals");
    report
}

/// Two busy processes in a process group of their own, into which `timeout` puts them. `timeout`
/// ends them after twenty seconds, later than any kill. If a kill also ends `timeout`, they end by
/// themselves some seconds later without a recorder.
fn group_of_two() -> Vec<String> {
    let busy = format!("{} linear --bytes 1MiB --passes 20000", workloads());
    let both = format!("{busy} & {busy}; wait");
    ["timeout", "20", "sh", "-c", &both]
        .map(str::to_owned)
        .to_vec()
}

/// Starts a recording, lets it run for a random time, and hands it to `kill`.
fn kill_often(kill: impl Fn(&mut Running)) {
    if !needs(&["timeout"]) {
        return;
    }
    let mut random = Random::of_test("kills");
    let program = group_of_two();
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    for number in 0..KILLS {
        let wait = Duration::from_millis(random.below(LATEST_KILL_MS));
        println!("kill {number} after {wait:?}");
        let mut running = Running::start(&program);
        std::thread::sleep(wait);
        kill(&mut running);
    }
}

#[test]
fn a_killed_recorder_leaves_a_recording_that_opens() {
    kill_often(|running| {
        running.memgauge.kill().expect("memgauge can be killed");
        running.end();
        if running.recording().join("manifest.json").exists() {
            let report = check_opens(&running.recording());
            assert_eq!(report["recording"]["complete"], false);
        }
    });
}

#[test]
fn a_program_goes_on_to_its_end_without_its_recorder() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let done = folder.path().join("done");
    let script = format!(
        "{} linear --bytes 1MiB --passes 400 > {}",
        workloads(),
        done.display()
    );
    let mut running = Running::start(&["sh", "-c", &script]);
    running.first_emulator();
    std::thread::sleep(Duration::from_millis(400));
    running.memgauge.kill().expect("memgauge can be killed");
    running.end();
    running.wait_for_the_program();
    assert_eq!(
        fs::read_to_string(done).expect("the program wrote"),
        "checksum 0000000000000000\n"
    );
}

#[test]
fn a_killed_emulator_ends_the_recording_in_good_order() {
    kill_often(|running| {
        assert!(kill("KILL", &running.first_emulator().to_string()));
        check_killed(running);
    });
}

#[test]
fn a_killed_process_group_ends_the_recording_in_good_order() {
    kill_often(|running| {
        let leader = running.first_emulator();
        wait_for("the group is there", || {
            kill("KILL", &format!("-{leader}")).then_some(())
        });
        check_killed(running);
        assert_eq!(running.emulators(), [0; 0], "the group outlives its kill");
    });
}

/// Checks that memgauge reports that its program was killed, keeps everything, and does not wait
/// for processes that the program left behind, however busy they are.
fn check_killed(running: &mut Running) {
    let killed = Instant::now();
    let status = running.end();
    assert!(killed.elapsed() < CLEAN_END, "took {:?}", killed.elapsed());
    assert_eq!(status.code(), Some(128 + 9), "{status}: {}", running.said());
    let report = check_opens(&running.recording());
    assert_eq!(report["recording"]["complete"], true);
    assert_eq!(report["recording"]["end"]["signalled"], 9);
}

#[test]
fn the_next_recording_clears_up_after_a_killed_one() {
    if !needs(&[]) {
        return;
    }
    let mut running = Running::start(&["sleep", "1"]);
    running.first_emulator();
    running.memgauge.kill().expect("memgauge can be killed");
    running.end();
    let name = format!("memgauge-{}-0", running.memgauge.id());
    let left = || {
        [Path::new("/dev/shm"), &std::env::temp_dir()]
            .map(|base| base.join(&name))
            .into_iter()
            .any(|path| path.exists())
    };
    assert_eq!(harness::Recorded::new(&[], &["/bin/true"]).code(), Some(0));
    assert!(!left(), "{name} is still there");
    running.wait_for_the_program();
}

/// Interrupts a recording once. It must end soon, completely, and with its program.
fn interrupt_once(signal: &str, program: &[&str]) {
    let mut running = Running::start(program);
    running.first_emulator();
    std::thread::sleep(Duration::from_millis(700));
    let started = Instant::now();
    running.signal(signal);
    let status = running.end();
    assert!(
        started.elapsed() < CLEAN_END,
        "{signal}: took {:?}",
        started.elapsed()
    );
    assert_eq!(
        status.code(),
        Some(if signal == "INT" { 130 } else { 143 }),
        "{signal}: {status}: {}",
        running.said()
    );
    let report = check_opens(&running.recording());
    assert_eq!(report["recording"]["complete"], true);
    assert_eq!(report["recording"]["end"], "interrupted");
    assert!(
        report["totals"]["loads"].as_u64() > Some(10_000),
        "{}",
        report["totals"]
    );
    wait_for("the program is gone", || {
        running.emulators().is_empty().then_some(())
    });
}

#[test]
fn one_interrupt_ends_the_recording_in_good_order() {
    if !needs(&[]) {
        return;
    }
    let busy = [
        workloads(),
        "linear",
        "--bytes",
        "1MiB",
        "--passes",
        "1000000",
    ];
    interrupt_once("INT", &busy);
    interrupt_once("TERM", &busy);
}

/// The second interrupt sends SIGTERM, the third SIGKILL. Even a program that ignores signals ends,
/// and the recording is complete.
#[test]
fn three_interrupts_end_a_program_that_ignores_them() {
    if !needs(&[]) {
        return;
    }
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ready = folder.path().join("ready");
        let stubborn = format!("trap '' TERM INT; : > {}; sleep 60", ready.display());
        let mut running = Running::start(&["sh", "-c", &stubborn]);
        wait_for("the program ignores them", || ready.exists().then_some(()));
        for said in [
            "memgauge waits for its end",
            "sent SIGTERM",
            "killed the program",
        ] {
            running.signal(signal);
            wait_for(said, || running.said().contains(said).then_some(()));
            // Signals that follow one another within 100 ms are one interrupt.
            std::thread::sleep(Duration::from_millis(150));
        }
        let status = running.end();
        assert_eq!(status.code(), Some(code), "{signal}: {}", running.said());
        let report = check_opens(&running.recording());
        assert_eq!(report["recording"]["complete"], true);
        assert_eq!(report["recording"]["end"], "interrupted");
        wait_for("the program is gone", || {
            running.emulators().is_empty().then_some(())
        });
    }
}
