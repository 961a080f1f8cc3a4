//! A series whose timer the kernel stops because it exceeds `kernel.perf_event_max_sample_rate`.
//!
//! The test lowers this setting for about half a second, because timers cannot exceed the usual value. It
//! could also stop events of other tests, so `tests/run` runs this program alone.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::fs::File;
use std::process::Output;

use harness::memgauge;
use memgauge_testing::{Need, skipped};
use serde_json::Value;

const RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

const PYTHON: &str = "/usr/bin/python3";

/// Lowers the rate. The previous rate is restored at the end. Copies of the test wait for one
/// another.
struct Lowered {
    usual: String,
    _lock: File,
}

impl Lowered {
    fn to(rate: &str) -> Option<Lowered> {
        let lock = File::create(std::env::temp_dir().join("memgauge-test-sample-rate")).ok()?;
        lock.lock().ok()?;
        let usual = std::fs::read_to_string(RATE).ok()?;
        let lowered = Lowered { usual, _lock: lock };
        std::fs::write(RATE, rate).ok().map(|()| lowered)
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        std::fs::write(RATE, &self.usual).expect("the usual rate can be put back");
    }
}

/// Touches 40 000 pages and prints the kernel's own count of its page faults.
const FAULTS: &str = "
import mmap, resource
memory = mmap.mmap(-1, 40000 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, 40000 * 4096, 4096):
    memory[at] = 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
";

/// Returns true if the kernel stops the group of a timer together with it
/// (`throttles_whole_group` in crates/live).
fn stops_groups() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map_while(|n| n.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(16))
}

fn series(options: &[&str]) -> Output {
    let mut command = memgauge();
    command.args(["stat", "-I", "250us", "-e", "page-faults"]);
    command.args(options).args(["--", PYTHON, "-c", FAULTS]);
    command.output().expect("memgauge runs")
}

#[test]
fn counts_of_a_stopped_timer_are_estimated_and_the_stopped_time_is_a_loss() {
    // A wrapper would have page faults of its own.
    if !std::path::Path::new(PYTHON).exists() {
        skipped(Need::Tool, format!("there is no `{PYTHON}`"));
        return;
    }
    let Some(lowered) = Lowered::to("2000") else {
        skipped(Need::Root, format!("`{RATE}` cannot be written"));
        return;
    };
    let output = series(&["--json"]);
    let shown = series(&[]);
    drop(lowered);

    let shown = String::from_utf8_lossy(&shown.stderr);
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let faults: u64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .expect("a number");
    // The warning before the start is on a separate line.
    let mut lines: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let summary = lines.pop().expect("a summary");
    let total = &summary["totals"][0];
    let number = |value: &Value| value.as_f64().expect("a number");
    let (value, counted) = (number(&total["value"]), number(&total["counted"]));
    let stopped_ns = number(&summary["ticks"]["stopped_ns"]);
    let running_ns = number(&summary["ticks"]["running_ns"]);
    println!("{faults} page faults, {counted} counted, {value} shown");

    let rows: u64 = lines
        .iter()
        .filter_map(|row| row["counts"]["page-faults"].as_u64())
        .sum();
    assert_eq!(rows as f64, value);
    assert!(number(&summary["ticks"]["throttled"]) >= 5.0, "{summary}");
    let program_ns = 1e9 * number(&summary["own_cost"]["program_cpu_s"]);
    assert!(
        (0.75..1.25).contains(&(running_ns / program_ns)),
        "{running_ns} {program_ns}"
    );
    let losses = summary["losses"].as_array().expect("losses");
    let lost = losses.iter().find(|loss| loss["kind"] == "stopped_ns");
    if stops_groups() {
        // From 6.16 on events are lost: a kernel's tick of 4 ms has room for 8 ticks of 250 us.
        assert!(counted < 0.9 * faults as f64, "{counted} of {faults}");
        assert_eq!(
            lost.map(|loss| number(&loss["count"])),
            Some(stopped_ns),
            "{losses:?}"
        );
        let share = 1.0 - stopped_ns / running_ns;
        assert!(
            (number(&total["share_counted"]) - share).abs() < 0.01,
            "{total}"
        );
        for words in [
            "scaled, ",
            "the kernel stopped timer and counters",
            "stopped the counters",
        ] {
            assert!(shown.contains(words), "`{words}` is not in {shown}");
        }
    } else {
        assert_eq!((lost, value), (None, counted));
    }
    assert!(
        (0.75..1.25).contains(&(value / faults as f64)),
        "{value} of {faults}"
    );
    assert!(
        shown.contains("the kernel allows 2000 ticks per second"),
        "{shown}"
    );
}
