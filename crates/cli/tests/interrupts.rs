//! Interrupts as a terminal and `kill` send them: the program ends in its own way, everything is
//! recorded, and repeated interrupts end the program.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{PATH, PROGRAM, needs, report};
use memgauge_testing::{Need, skipped};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(100);

/// Handles the interrupt, works for longer than memgauge used to wait, and ends well.
const FINISHES: &str = "trap 'got=1' INT TERM; echo ready; until [ \"$got\" ]; do sleep 0.05; done; \
                        sleep 4; echo done > finished; exit 3";
const IGNORES_INT: &str = "trap '' INT; echo ready; while :; do sleep 0.05; done";
const IGNORES_ALL: &str = "trap '' INT TERM; echo ready; while :; do sleep 0.05; done";

/// Each source's way to record to `r.mg`.
const EMULATE: &[&str] = &["record", "-q", "--source", "emulate", "-o", "r.mg", "--"];
const CLOCK: &[&str] = &["record", "-q", "--source", "clock", "-o", "r.mg", "--"];
const SAMPLES: &[&str] = &["record", "-q", "-e", "page-faults", "-o", "r.mg", "--"];
const STAT: &[&str] = &[
    "stat",
    "-q",
    "-I",
    "10ms",
    "-e",
    "page-faults",
    "-o",
    "r.mg",
    "--",
];
const IO: &[&str] = &["io", "-o", "r.mg", "--"];

fn works(options: &[&str]) -> bool {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(PROGRAM);
    let output = command.args(options).arg("true").current_dir(folder.path());
    let output = output.output().expect("memgauge runs");
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        skipped(Need::Kernel, why.trim());
    }
    output.status.success()
}

/// memgauge under way, as the foreground of a terminal or by itself.
struct Running {
    child: Child,
    folder: TempDir,
}

impl Running {
    /// In a terminal of its own, to whose keyboard the standard input leads.
    fn in_terminal(options: &[&str], script: &str) -> Running {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("script"), script).expect("it can be written");
        // The shell itself must not be there to get the interrupt.
        let line = format!("exec {PROGRAM} {} sh script", options.join(" "));
        let mut command = Command::new("script");
        command.args(["-q", "-e", "-c", &line, "/dev/null"]);
        Running::spawn(command, folder)
    }

    fn alone(options: &[&str], script: &str) -> Running {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("script"), script).expect("it can be written");
        let mut command = Command::new(PROGRAM);
        command.args(options).args(["sh", "script"]);
        Running::spawn(command, folder)
    }

    fn spawn(mut command: Command, folder: TempDir) -> Running {
        let seen = std::fs::File::create(folder.path().join("seen")).expect("it can be made");
        command
            .env_clear()
            .env("PATH", PATH)
            .env("SHELL", "/bin/sh");
        command.current_dir(folder.path()).stdin(Stdio::piped());
        command
            .stderr(seen.try_clone().expect("a descriptor"))
            .stdout(seen);
        let child = command.spawn().expect("it runs");
        let running = Running { child, folder };
        running.wait_for("ready");
        running
    }

    fn seen(&self) -> String {
        let mut text = Vec::new();
        let mut file = std::fs::File::open(self.folder.path().join("seen")).expect("it is there");
        file.read_to_end(&mut text).expect("it can be read");
        String::from_utf8_lossy(&text).into_owned()
    }

    fn wait_for(&self, words: &str) {
        let started = Instant::now();
        while !self.seen().contains(words) {
            assert!(
                started.elapsed() < PATIENCE,
                "no `{words}` in {}",
                self.seen()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn press_ctrl_c(&mut self) {
        let keyboard = self.child.stdin.as_mut().expect("a pipe");
        keyboard.write_all(b"\x03").expect("the terminal is there");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.expect("kill runs").success());
    }

    fn code(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status.code();
            }
            assert!(started.elapsed() < PATIENCE, "no end: {}", self.seen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The report of the recording, which is complete.
    fn recording(&self) -> Value {
        let path = self.folder.path().join("r.mg");
        let manifest = std::fs::read(path.join("manifest.json")).expect("a manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        assert_eq!(manifest["complete"], true, "{}", self.seen());
        let shown = report(&path);
        assert!(shown.status.success(), "{}", self.seen());
        manifest
    }

    fn has(&self, name: &str) -> bool {
        Path::new(&self.folder.path().join(name)).exists()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

fn finishes_after_ctrl_c(options: &[&str]) {
    if !needs(&["script"]) || !works(options) {
        return;
    }
    let mut running = Running::in_terminal(options, FINISHES);
    running.press_ctrl_c();
    assert_eq!(running.code(), Some(3), "{}", running.seen());
    assert!(running.has("finished"), "{}", running.seen());
    assert_eq!(running.recording()["end"]["exited"], 3);
    // It took its time, and the user heard what memgauge does meanwhile.
    assert!(
        running.seen().contains("a second interrupt ends it"),
        "{}",
        running.seen()
    );
}

#[test]
fn emulate_records_a_program_that_handles_ctrl_c_to_its_end() {
    finishes_after_ctrl_c(EMULATE);
}

#[test]
fn clock_records_a_program_that_handles_ctrl_c_to_its_end() {
    finishes_after_ctrl_c(CLOCK);
}

#[test]
fn samples_are_taken_of_a_program_that_handles_ctrl_c_to_its_end() {
    finishes_after_ctrl_c(SAMPLES);
}

#[test]
fn stat_counts_a_program_that_handles_ctrl_c_to_its_end() {
    finishes_after_ctrl_c(STAT);
}

#[test]
fn io_accounts_a_program_that_handles_ctrl_c_to_its_end() {
    finishes_after_ctrl_c(IO);
}

#[test]
fn a_curve_is_made_of_a_program_that_handles_ctrl_c_to_its_end() {
    if !needs(&["script"]) {
        return;
    }
    let mut running = Running::in_terminal(&["mrc", "--json=c.json", "--"], FINISHES);
    running.press_ctrl_c();
    assert_eq!(running.code(), Some(3), "{}", running.seen());
    assert!(
        running.has("finished") && running.has("c.json"),
        "{}",
        running.seen()
    );
}

#[test]
fn a_second_ctrl_c_ends_a_program_that_ignores_it() {
    for options in [EMULATE, STAT] {
        if !needs(&["script"]) || !works(options) {
            return;
        }
        let mut running = Running::in_terminal(options, IGNORES_INT);
        running.press_ctrl_c();
        running.wait_for("a second interrupt ends it");
        running.press_ctrl_c();
        assert_eq!(running.code(), Some(130), "{}", running.seen());
        assert_eq!(running.recording()["end"], "interrupted");
        assert!(
            running.seen().contains("sent SIGTERM"),
            "{}",
            running.seen()
        );
    }
}

#[test]
fn a_third_ctrl_c_kills_a_program_that_ignores_all() {
    for options in [EMULATE, CLOCK] {
        if !needs(&["script"]) || !works(options) {
            return;
        }
        let mut running = Running::in_terminal(options, IGNORES_ALL);
        running.press_ctrl_c();
        running.wait_for("a second interrupt ends it");
        running.press_ctrl_c();
        running.wait_for("sent SIGTERM");
        // Two in a row within 100 ms are one; the message comes at once.
        std::thread::sleep(Duration::from_millis(200));
        running.press_ctrl_c();
        assert_eq!(running.code(), Some(130), "{}", running.seen());
        assert_eq!(running.recording()["end"], "interrupted");
    }
}

#[test]
fn a_signal_to_memgauge_alone_is_passed_on_once() {
    let counts = "n=0; trap 'n=$((n+1)); echo got' TERM INT; echo ready; \
                  until [ $n -gt 0 ]; do sleep 0.05; done; sleep 3; echo $n > times; exit 7";
    let passed_on = |options, signal| {
        let mut running = Running::alone(options, counts);
        running.signal(signal);
        assert_eq!(running.code(), Some(7), "{}", running.seen());
        let times = std::fs::read_to_string(running.folder.path().join("times"));
        assert_eq!(times.expect("it ended well"), "1\n", "{}", running.seen());
        assert_eq!(running.recording()["end"]["exited"], 7);
    };
    let ended = |options| {
        let mut plain = Running::alone(options, "echo ready; while :; do sleep 0.05; done");
        plain.signal("TERM");
        assert_eq!(plain.code(), Some(143), "{}", plain.seen());
        assert_eq!(plain.recording()["end"], "interrupted");
    };
    // At once: they wait most of the time.
    std::thread::scope(|scope| {
        for options in [EMULATE, CLOCK, STAT] {
            if needs(&[]) && works(options) {
                scope.spawn(move || passed_on(options, "TERM"));
                scope.spawn(move || passed_on(options, "INT"));
                scope.spawn(move || ended(options));
            }
        }
    });
}

#[test]
fn a_hangup_leaves_a_run_under_nohup_alone() {
    if !needs(&["nohup"]) || !works(STAT) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = "echo ready; until [ -e go ]; do sleep 0.05; done; exit 4";
    std::fs::write(folder.path().join("script"), script).expect("it can be written");
    let mut command = Command::new("nohup");
    command.arg(PROGRAM).args(STAT).args(["sh", "script"]);
    let mut running = Running::spawn(command, folder);
    running.signal("HUP");
    std::fs::write(running.folder.path().join("go"), "").expect("it can be written");
    assert_eq!(running.code(), Some(4), "{}", running.seen());
}
