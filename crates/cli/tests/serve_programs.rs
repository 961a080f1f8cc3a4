//! Programs that `memgauge serve` starts on the modelled machine. Their accesses are known, so samples
//! are compared with them, and counts with each other.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod service;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use harness::{PROGRAM, needs};
use service::{Service, complaint, until};

/// Loads once from each of 4000 lines of new memory. Prints their addresses, the value of a
/// variable, and its working directory.
const LINES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void)
{
    char folder[4096];
    volatile char *memory = mmap(0, 4000 * 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FILE *told = fopen("told", "w");
    fprintf(told, "%p\n%s\n%s\n", (void *)memory, getenv("WORD"), getcwd(folder, sizeof folder));
    fclose(told);
    puts("its own words");
    fputs("its complaint\n", stderr);
    for (long line = 0; line < 4000; line++)
        memory[line * 64];
    return getchar() == EOF ? 5 : 6;
}
"#;

/// Loads from all over 8 MiB until it is killed.
const FOR_EVER: &str = r#"
#include <stdlib.h>
int main(void)
{
    volatile char *memory = malloc(8 << 20);
    for (;;)
        for (long at = 0; at < 8 << 20; at += 64)
            memory[at];
}
"#;

fn compiled(folder: &Path, source: &str) -> PathBuf {
    let program = memgauge_testing::compiled(folder, "program.c", source, &["-O1"])
        .expect("gcc is installed");
    PathBuf::from(program)
}

fn profiler(service: &Service, id: &str) -> Value {
    let all = service.json(&["list"]);
    let all = all["profilers"].as_array().expect("a list");
    let id: u64 = id.parse().expect("a number");
    let mine = all.iter().find(|p| p["id"] == id);
    mine.expect("it is there").clone()
}

fn samples(service: &Service, id: &str) -> Vec<Value> {
    let lines = service.ctl(&["--json", "read", id, "-n", "1000000"]);
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn address(text: &Value) -> u64 {
    let text = text.as_str().expect("an address");
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal")
}

/// A process that is killed with the test.
struct Killed(String);

impl Killed {
    fn lives(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // One that has ended needs no end.
        let _ = Command::new("kill").args(["-9", &self.0]).output();
    }
}

#[test]
fn each_line_that_a_program_loads_once_is_one_miss() {
    if !needs(&["cc"]) {
        return;
    }
    let Some(service) = Service::with(&["--programs"]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("room");
    compiled(folder.path(), LINES);
    // The path of the program, the path of its output, its folder and a variable come from the
    // client.
    let run = service
        .command(&["run", "-c", "1", "--buffer", "65536", "--name", "lines"])
        .args(["--output", "said", "--", "./program"])
        .current_dir(folder.path())
        .env("WORD", "a word")
        .output();
    let run = run.expect("it runs");
    assert!(run.status.success(), "{run:?}");
    let id = String::from_utf8(run.stdout).expect("text");
    let id = id.trim();
    until("the program's end", || {
        profiler(&service, id)["program"]["ended"] == true
    });
    let shown = profiler(&service, id);
    assert_eq!(shown["program"]["exit_code"], 5, "{shown}");
    assert_eq!(shown["source"], "emulate");
    assert_eq!(
        (&shown["event"], &shown["period"]),
        (&"llc.miss".into(), &1.into())
    );
    let list = service.ctl(&["list"]);
    assert!(
        list.contains("exited 5") && list.contains("lines"),
        "{list}"
    );
    let read = |name| std::fs::read_to_string(folder.path().join(name)).expect("a file");
    assert_eq!(read("said"), "its complaint\nits own words\n");
    let told = read("told");
    let told: Vec<&str> = told.lines().collect();
    let here = std::fs::canonicalize(folder.path()).expect("it is there");
    assert_eq!(told[1..], ["a word", here.to_str().expect("a plain name")]);
    // Every line is one miss, and every miss of the program one sample.
    let samples = samples(&service, id);
    let start = address(&Value::from(told[0]));
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in &samples {
        assert_eq!(
            (&sample["period"], &sample["stands_for"]),
            (&1.into(), &1.into())
        );
        assert_eq!(sample["pid"], shown["program"]["pid"]);
        let addr = address(&sample["addr"]);
        if (start..start + 4000 * 64).contains(&addr) {
            *seen.entry((addr - start) / 64).or_default() += 1;
        }
    }
    assert_eq!(seen.len(), 4000);
    assert!(seen.values().all(|&misses| misses == 1));
    let thread = &service.json(&["stats", id])["threads"][0];
    for counted in ["counted", "samples", "delivered", "stands_for"] {
        assert_eq!(thread[counted], samples.len(), "{thread}");
    }
    assert_eq!(thread["state"], "ended");
    assert_eq!(
        service.metric("memgauge_samples_total"),
        samples.len() as f64
    );
    service.ctl(&["delete", id]);
    assert_eq!(
        service.metric("memgauge_samples_total"),
        samples.len() as f64
    );
}

#[test]
fn a_running_program_is_stopped_started_given_periods_and_goes_on_by_itself() {
    if !needs(&["cc"]) {
        return;
    }
    let Some(mut service) = Service::with(&["--programs"]) else {
        return;
    };
    let folder = tempfile::tempdir().expect("room");
    let program = compiled(folder.path(), FOR_EVER);
    let program = program.to_str().expect("a plain name");
    let run = |options: &[&str]| {
        let id = service.ctl(&[&["run"], options, &["--", program]].concat());
        let id = id.trim().to_owned();
        let pid = profiler(&service, &id)["program"]["pid"].to_string();
        (id, Killed(pid))
    };
    let (id, first) = run(&["-e", "l1d.miss", "-c", "1000"]);
    let pid = first.0.as_str();
    let stats = || service.json(&["stats", &id, pid]);
    let number = |counts: &Value, name: &str| counts[name].as_u64().expect("a number");
    let samples_of = |counts: &Value| number(counts, "samples");
    until("samples", || {
        service.json(&["stats", &id])["threads"][0]["samples"].as_u64() > Some(20)
    });
    service.ctl(&["stop", &id, pid]);
    let stopped = stats();
    samples(&service, &id);
    service.ctl(&["period", &id, pid, "777"]);
    std::thread::sleep(std::time::Duration::from_millis(50));
    let still = stats();
    assert_eq!(
        (samples_of(&still), number(&still, "counted")),
        (samples_of(&stopped), number(&stopped, "counted"))
    );
    service.ctl(&["start", &id, pid]);
    until("samples of the new period", || {
        samples_of(&stats()) > samples_of(&stopped) + 20
    });
    service.ctl(&["stop", &id, pid]);
    let after = stats();
    let events = number(&after, "counted") - number(&stopped, "counted");
    assert_eq!(samples_of(&after) - samples_of(&stopped), events / 777);
    assert_eq!(
        samples_of(&after),
        number(&after, "delivered") + number(&after, "overwritten") + number(&after, "waiting"),
        "{after}"
    );
    let new = samples(&service, &id);
    assert!(!new.is_empty() && new.iter().all(|s| s["period"] == 777));
    // The profiler samples one program, which continues without the profiler.
    let refused = service.command(&["attach", &id, "-p", "1"]).output();
    let refused = complaint(&refused.expect("it runs"));
    assert!(refused.contains("samples one program"), "{refused}");
    service.ctl(&["delete", &id]);
    assert!(first.lives());
    drop(first);
    // The program also continues without the service, because no signal of its end reaches it.
    let (_, second) = run(&[]);
    let stop = Command::new("kill").arg(service.process.pid()).status();
    assert!(stop.is_ok_and(|status| status.success()));
    let end = service.process.0.wait().expect("it ends");
    assert!(end.success(), "{end}");
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(second.lives());
}

#[test]
fn programs_that_cannot_or_may_not_be_started_are_refused_with_the_reason() {
    if !needs(&[]) {
        return;
    }
    let Some(service) = Service::with(&["--programs"]) else {
        return;
    };
    let refused = |service: &Service, arguments: &[&str]| {
        let output = service.command(arguments).output();
        complaint(&output.expect("it runs"))
    };
    for (arguments, says) in [
        (&["run", "--", "/no/such/program"][..], "no such file"),
        (&["run", "--", "/etc"], "directory"),
        (&["run", "-e", "no.such", "--", "true"], "memgauge list"),
        (&["run", "-c", "0", "--", "true"], "period"),
    ] {
        let said = refused(&service, arguments);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    let post = |body: &str| {
        let request = format!(
            "POST /v1/profilers HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        service.answer(request.as_bytes())
    };
    for (body, says) in [
        (r#"{"program":{"command":[]}}"#, "is empty"),
        (r#"{"program":{"command":["./true"]}}"#, "absolute path"),
        (
            r#"{"program":{"command":["true"],"folder":"/no/such"}}"#,
            "/no/such",
        ),
        (
            r#"{"program":{"command":["true"]},"overhead":0.01}"#,
            "overhead",
        ),
        (r#"{"source":"emulate"}"#, "a program to start"),
    ] {
        let answer = post(body);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{body}: {answer}");
        assert!(answer.contains(says), "{body}: {answer}");
    }
    assert_eq!(service.json(&["list"])["profilers"], Value::Array(vec![]));
    let none = Service::start().expect("another one has started");
    let said = refused(&none, &["run", "--", "true"]);
    assert!(said.contains("--programs"), "{said}");
    if !needs(&["root", "setpriv"]) {
        return;
    }
    // The program is in a folder that this user may not read.
    let copy = service.socket.with_file_name("memgauge");
    std::fs::copy(PROGRAM, &copy).expect("room for a copy");
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    nobody.arg(&copy).args(["ctl", "--socket"]);
    nobody.arg(&service.socket).args(["run", "--", "true"]);
    let said = complaint(&nobody.current_dir("/").output().expect("it runs"));
    assert!(said.contains("user 65534"), "{said}");
}
