//! `memgauge io` as a user runs it. Accounting needs root and a kernel that takes the
//! programs; each test says why it is skipped elsewhere.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use harness::PROGRAM;
use serde_json::Value;

/// Whether this machine lets memgauge account; says why not.
fn can_account() -> bool {
    let output = memgauge(&["io", "--duration", "1ms", "--json"]);
    if !output.status.success() {
        println!(
            "skipped: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    output.status.success()
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

#[test]
fn a_command_is_accounted_with_its_children_and_keeps_its_exit_code() {
    if !can_account() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
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
    // Beyond the file's own bytes: what the file system notes about it.
    assert!(
        (8 << 20..=(8 << 20) + (64 << 10)).contains(&written),
        "{written}"
    );
    assert_eq!(summary["filtered"], true);

    let recorded = folder.path().join("io.mg").display().to_string();
    let report = json(&memgauge(&["report", "--json", &recorded]).stdout);
    assert_eq!(
        report["lines"], summary["lines"],
        "the recording tells the same"
    );
    assert_eq!(report["devices"], summary["devices"]);
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
        println!("skipped: a BPF file system cannot be mounted");
        return;
    }
    let map = folder.path().join("io_rates");
    let seen = format!(
        "for i in 1 2 3 4 5 6 7 8 9; do test -e {} && echo pinned && exit; sleep 0.2; done",
        map.display()
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

fn check_refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = memgauge(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    check_refused(
        &["io", "-p", "4000000000"],
        125,
        &["4000000000", "none of that id"],
    );
    check_refused(&["io", "-p", "x"], 2, &["invalid value"]);
    check_refused(
        &["io", "-p", "1", "--", "true"],
        2,
        &["cannot be used with"],
    );
    check_refused(&["io", "-I", "0"], 2, &["1us"]);
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
fn without_rights_the_fix_is_named() {
    if !Path::new("/usr/bin/setpriv").exists() || !can_account() {
        println!("skipped: needs setpriv and root");
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

/// A terminal of its own, in which memgauge runs.
struct Terminal(String);

impl Terminal {
    fn start(command: &str) -> Terminal {
        let name = format!("memgauge-{}", std::process::id());
        let terminal = Terminal(name);
        terminal.tmux(&[
            "new-session",
            "-d",
            "-x",
            "100",
            "-y",
            "30",
            "-s",
            &terminal.0,
            command,
        ]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", "memgauge-test"])
            .args(arguments)
            .output();
        String::from_utf8_lossy(&output.expect("tmux runs").stdout).into_owned()
    }

    fn keys(&self, keys: &str) {
        self.tmux(&["send-keys", "-t", &self.0, keys]);
    }

    /// What is on the screen once it says this.
    fn screen_with(&self, text: &str) -> String {
        for _ in 0..100 {
            let screen = self.tmux(&["capture-pane", "-p", "-t", &self.0]);
            if screen.contains(text) {
                return screen;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!(
            "`{text}` did not come: {}",
            self.tmux(&["capture-pane", "-p", "-t", &self.0])
        );
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-session", "-t", &self.0]);
    }
}

#[test]
fn the_live_table_answers_keys_and_gives_the_terminal_back() {
    let tmux = ["/usr/bin/tmux", "/bin/tmux"]
        .iter()
        .any(|path| Path::new(path).exists());
    if !tmux || !can_account() {
        println!("skipped: needs tmux and root");
        return;
    }
    let terminal = Terminal::start(&format!(
        "sh -c '{PROGRAM} io; echo ended with $?; sleep 20'"
    ));
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
