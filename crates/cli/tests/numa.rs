//! `memgauge numa` as a user runs it. `make test-kernels` runs this file on an emulated machine with two
//! nodes.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use memgauge_testing::{Need, compiled, skipped};
use serde_json::Value;

use harness::PROGRAM;

fn numa(arguments: &[&str]) -> Output {
    let output = Command::new(PROGRAM)
        .arg("numa")
        .args(arguments)
        .env("LC_ALL", "C")
        .output();
    output.expect("memgauge runs")
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn has_nodes() -> bool {
    Path::new("/sys/devices/system/node/node1/meminfo").exists()
}

#[test]
fn one_node_has_nothing_to_move() {
    if has_nodes() {
        return;
    }
    let own = std::process::id().to_string();
    let output = numa(&["-p", &own, "--apply"]);
    let (text, error) = said(&output);
    assert!(output.status.success(), "{error}");
    assert!(text.contains("one memory node"), "{text}");
    let output = numa(&["-p", &own, "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["nodes"].as_array().map(Vec::len), Some(1));
    assert!(json["nodes"][0]["memory_bytes"].as_u64() > Some(1 << 20));
    // The keys that docs/numa.md has, of a look at which nothing was sampled.
    assert_eq!(json["source"], Value::Null);
    for count in ["samples", "without_address", "lost"] {
        assert_eq!(json[count], 0, "{json}");
    }
    assert!(json["kernel_moves_pages"].is_boolean() && json["seconds"] == 0.0);
}

#[test]
fn an_event_that_this_machine_lacks_is_refused_on_any_number_of_nodes() {
    let own = std::process::id().to_string();
    for options in [&[][..], &["--json"]] {
        let output = numa(&[&["-p", &own, "-e", "nosuch"], options].concat());
        let (text, error) = said(&output);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains("`nosuch`") && text.is_empty(),
            "{text}{error}"
        );
    }
}

#[test]
fn a_process_that_is_not_there_is_named() {
    let output = numa(&["-p", "2147483000"]);
    let (_, error) = said(&output);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        error.contains("failed to look at process `2147483000`: no such process"),
        "{error}"
    );
    let output = numa(&[]);
    assert_eq!(output.status.code(), Some(2));
}

/// Fills memory on the first CPU and then reads it on the second one.
const FAR: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
static void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}
int main(void) {
    long bytes = 16 << 20, sum = 0;
    run_on(0);
    // Neighbours that may not be touched: the kernel joins mappings of one kind.
    char *all = mmap(0, bytes + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *far = all + 4096;
    mprotect(far, bytes, PROT_READ | PROT_WRITE);
    for (long i = 0; i < bytes; i += 4096) far[i] = 1;
    run_on(1);
    printf("%p\n", far);
    fflush(stdout);
    for (;;)
        for (long i = 0; i < bytes; i += 64) sum += *(volatile char *)(far + i);
}
"#;

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pages of the mapping at this address by node, from the kernel itself.
fn numa_maps(pid: &str, start: &str) -> [u64; 2] {
    let text = std::fs::read_to_string(format!("/proc/{pid}/numa_maps")).expect("readable");
    let start = start.trim_start_matches("0x");
    let line = text.lines().find(|line| line.starts_with(start));
    let line = line.unwrap_or_else(|| panic!("no {start} in {text}"));
    [0, 1].map(|node| {
        let key = format!("N{node}=");
        let value = line.split(' ').find_map(|field| field.strip_prefix(&key));
        value.map_or(0, |v| v.parse().expect("a number"))
    })
}

#[test]
fn memory_on_a_far_node_is_found_and_moved() {
    if !has_nodes() {
        skipped(Need::Nodes, "this machine has one memory node");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled(folder.path(), "far.c", FAR, &["-O1"]).expect("gcc is installed");
    let child = Command::new(&program).stdout(Stdio::piped()).spawn();
    let mut running = Running(child.expect("the program runs"));
    let mut line = String::new();
    let output = running.0.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
    let (pid, start) = (running.0.id().to_string(), line.trim());
    let pages = 4096;
    assert_eq!(numa_maps(&pid, start), [pages, 0]);

    let sampled = [
        "-p",
        &pid,
        "--source",
        "clock",
        "--duration",
        "4s",
        "--json",
    ];
    let dry = numa(&sampled);
    let (text, error) = said(&dry);
    assert!(dry.status.success(), "{error}");
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let first = u64::from_str_radix(start.trim_start_matches("0x"), 16).expect("an address");
    let ranges = json["processes"][0]["placement"]["ranges"]
        .as_array()
        .expect("ranges");
    let within = |range: &&Value| {
        let at = range["start"].as_u64().expect("a number");
        (first..first + (pages << 12)).contains(&at)
    };
    let range = ranges
        .iter()
        .find(within)
        .unwrap_or_else(|| panic!("{text}"));
    assert_eq!(range["advice"]["kind"], "move", "{text}");
    assert_eq!(range["advice"]["to"], 1);
    assert_eq!(range["remote"], 1.0);
    assert_eq!(
        numa_maps(&pid, start),
        [pages, 0],
        "nothing is moved unless told"
    );

    let applied = numa(&[&sampled[..], &["--apply"]].concat());
    let (text, error) = said(&applied);
    assert!(applied.status.success(), "{error}");
    let [stayed, came] = numa_maps(&pid, start);
    // Pages at the ends without a sample are no part of the range.
    assert!(
        stayed + came == pages && stayed < pages / 20,
        "{stayed} {came}: {text}"
    );
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let moved = &json["processes"][0]["moved"][0];
    assert_eq!(moved["pages_left"], 0, "{text}");

    // The memory is now on the node that uses it.
    let (text, _) = said(&numa(&[
        "-p",
        &pid,
        "--source",
        "clock",
        "--duration",
        "4s",
    ]));
    assert!(text.contains("No move would lower that"), "{text}");
}
