//! `memgauge mrc -p`: page-fault curves of running programs with known working sets.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use memgauge_testing::{Need, compiled, skipped};
use serde_json::Value;
use tempfile::TempDir;

use harness::{PROGRAM, check_line, is_root};

/// Uses pages of twice the memory that it then works on, at a fixed rate. Each line of its output is
/// its number of references and its seconds. Mode `t` also maps 2 TiB and uses a page in each GiB. Mode
/// `m` shares the memory with two children that do the same.
const TARGET: &str = r#"
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static uint64_t state = 88172645463325252ull;
static double unit(void) {
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return (state >> 11) * 0x1p-53;
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
int main(int argc, char **argv) {
    char mode = argv[1][0];
    long pages = atol(argv[2]), next = 0;
    double rate = atof(argv[3]), *sums = malloc(pages * sizeof(double)), sum = 0;
    size_t bytes = 2 * pages * 4096, huge = 2 << 20;
    int sharing = mode == 'm' ? MAP_SHARED : MAP_PRIVATE;
    char *memory = mmap(0, bytes + huge, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
    memory = (char *)(((uintptr_t)memory + huge - 1) & ~(huge - 1));
    madvise(memory, bytes, mode == 'h' ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(memory, 1, bytes);
    if (mode == 't') {
        int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        char *wide = mmap(0, 2ul << 40, PROT_READ | PROT_WRITE, kind, -1, 0);
        if (wide == MAP_FAILED) return 1;
        for (size_t at = 0; at < 2ul << 40; at += 1ul << 30) wide[at] = 1;
    }
    for (long i = 0; i < pages; i++) sums[i] = sum += pow(i + 1, -0.8);
    setvbuf(stdout, 0, _IOLBF, 0);
    int is_child = 0;
    for (int i = 0; mode == 'm' && i < 2 && !is_child; i++) {
        is_child = fork() == 0;
        if (is_child) { prctl(PR_SET_PDEATHSIG, SIGKILL); state += 7919 * (i + 1); }
    }
    double start = now();
    for (long done = 0;; done += 32) {
        for (int i = 0; i < 32; i++) {
            long page;
            if (mode == 's') page = next = (next + 1) % pages;
            else if (mode == 'z') {
                double wanted = unit() * sum;
                long low = 0, high = pages - 1;
                while (low < high) {
                    long middle = (low + high) / 2;
                    if (sums[middle] < wanted) low = middle + 1; else high = middle;
                }
                page = low;
            } else page = unit() * pages;
            ((volatile char *)memory)[page * 4096]++;
        }
        double ahead = start + done / rate - now();
        if (ahead > 0.0005) usleep(ahead * 1e6);
        if (done % 1024 == 0 && !is_child) printf("%ld %.6f\n", done, now() - start);
    }
}
"#;

/// A program that ends with the test.
struct Running {
    child: Child,
    output: PathBuf,
    _folder: TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts the program above and waits until it works. `None` where nothing can be compiled.
    fn start(mode: &str, pages: u32, rate: u32) -> Option<Running> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = compiled(folder.path(), "target.c", TARGET, &["-O1", "-lm"])?;
        let output = folder.path().join("output");
        let child = Command::new(&program)
            .args([mode, &pages.to_string(), &rate.to_string()])
            .stdout(File::create(&output).expect("the folder can be written"))
            .spawn()
            .expect("it runs");
        let running = Running {
            child,
            output,
            _folder: folder,
        };
        wait_for(|| running.progress().is_some_and(|(done, _)| done > 0.0));
        Some(running)
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// References so far, and seconds.
    fn progress(&self) -> Option<(f64, f64)> {
        let text = std::fs::read_to_string(&self.output).ok()?;
        // The last line may be incomplete.
        let end = text.rfind('\n')?;
        let line = text[..end].lines().next_back()?;
        let (done, seconds) = line.split_once(' ')?;
        Some((done.parse().ok()?, seconds.parse().ok()?))
    }

    /// Observes it. Returns the report and the references per second meanwhile.
    fn observe(&self) -> (Value, f64) {
        self.observe_by("auto")
    }

    fn observe_by(&self, source: &str) -> (Value, f64) {
        let (first_done, first_s) = self.progress().expect("it works");
        let pid = self.pid();
        let observed = ["-p", &pid, "--pages-source", source, "--json"];
        let times = ["--seconds", "12", "--window", "4"];
        let output = mrc(&[&observed[..], &times].concat());
        assert!(output.status.success(), "{}", harness::said(&output));
        let (done, seconds) = self.progress().expect("it works");
        let report = serde_json::from_slice(&output.stdout).expect("JSON");
        (report, (done - first_done) / (seconds - first_s))
    }
}

fn wait_for(condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nothing happened for a minute");
}

fn mrc(arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command
        .arg("mrc")
        .args(arguments)
        .env_remove("RUST_BACKTRACE");
    command.output().expect("memgauge runs")
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is no number"))
}

const PAGES: u32 = 8192;
const RATE: u32 = 20_000;

/// Two measurements at a time would disturb each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Asserts that the curve falls to `faults_s` at a memory of this share of the working set, beside
/// the pages of the program's code and of the C library, which are used all the time.
fn assert_falls_at(report: &Value, faults_s: f64, part: f64) {
    let working = f64::from(PAGES) * 4096.0;
    let windows = report["working_sets"].as_array().and_then(|all| all.last());
    let longest = number(&windows.expect("windows")["bytes"]["value"]);
    let beside = (longest - working).clamp(0.0, 0.1 * working);
    let points = report["points"].as_array().expect("points");
    let falls = |point: &&Value| number(&point["faults_per_s"]["value"]) <= faults_s;
    let found = points.iter().find(falls).expect("the rate is on the curve");
    let found = (number(&found["bytes"]) - beside) / working;
    assert!(
        (found - part).abs() <= 0.1,
        "{faults_s:.0} faults/s at {found:.3} of the working set instead of {part}"
    );
}

fn assert_near(what: &str, value: f64, expected: f64, tolerance: f64) {
    let deviation = value / expected - 1.0;
    assert!(
        deviation.abs() <= tolerance,
        "{what}: {value} instead of {expected} ({:+.1} %)",
        100.0 * deviation
    );
}

/// The working set is half of the resident memory, whatever the machine's load.
fn assert_half_is_unused(report: &Value) {
    let working = f64::from(PAGES) * 4096.0;
    let longest = report["working_sets"]
        .as_array()
        .and_then(|all| all.last())
        .expect("windows");
    assert_near(
        "working set",
        number(&longest["bytes"]["value"]),
        working,
        0.1,
    );
    assert_near("unused", number(&report["unused_bytes"]), working, 0.1);
    assert_near(
        "resident",
        number(&report["resident_bytes"]),
        2.0 * working,
        0.1,
    );
}

/// Uniform references at r per second to n pages: a memory of m pages has r(1 − m/n) faults/s.
#[test]
fn uniform_references_have_the_curve_of_their_closed_form() {
    let _alone = ONE_AT_A_TIME.lock();
    let Some(running) = Running::start("u", PAGES, RATE) else {
        return;
    };
    let (report, rate) = running.observe();
    assert_half_is_unused(&report);
    for part in [0.25, 0.5, 0.75] {
        assert_falls_at(&report, rate * (1.0 - part), part);
    }
}

/// Returns true if page tables can be read here. Prints the reason if not.
fn can_walk() -> bool {
    let sleeper = Command::new("sleep").arg("600").spawn();
    let mut sleeper = sleeper.expect("it runs");
    let pid = sleeper.id().to_string();
    let times = ["--seconds", "1", "--pages-source", "page-tables"];
    let output = mrc(&[&["-p", &pid], &times[..]].concat());
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    let said = harness::said(&output);
    let can = !said.contains("failed to read page tables");
    if !can {
        skipped(Need::Kernel, said.trim());
    }
    can
}

/// A cyclic scan of n pages uses all of them and no other memory of the program.
#[test]
fn both_sources_find_the_working_set_of_a_scan() {
    if !can_walk() {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock();
    let Some(running) = Running::start("s", PAGES, RATE) else {
        return;
    };
    let reports = [("page-tables", "page_tables"), ("clear-refs", "clear_refs")];
    let [walked, summed] = reports.map(|(option, name)| {
        let (report, _) = running.observe_by(option);
        assert_eq!(report["source"], name);
        assert_half_is_unused(&report);
        report
    });
    // Only page tables show pages one by one. The unused half of the memory is in nameless mappings.
    assert!(summed["regions"].is_null() && summed["heat_map"].is_null());
    let unused = walked["regions"].as_array().expect("regions").iter();
    let unused = unused.map(|region| number(&region["unused"][0]["bytes"]));
    let anonymous = walked["regions"].as_array().expect("regions").iter();
    let anonymous = anonymous.filter(|region| region["name"] == "[anon]");
    let anonymous = anonymous.map(|region| number(&region["unused"][0]["bytes"]));
    let half = f64::from(PAGES) * 4096.0;
    assert_near("unused [anon]", anonymous.sum(), half, 0.05);
    assert_near("unused", unused.sum(), half, 0.1);
    let rows = walked["heat_map"]["rows"].as_array().expect("rows");
    let shares = |part: usize| {
        let row = rows.iter().filter(|row| row["name"] == "[anon]");
        let row = row.map(|row| number(&row["used"][0])).collect::<Vec<f64>>();
        row.iter()
            .skip(part * row.len() / 2)
            .take(row.len() / 2)
            .sum::<f64>()
            / (row.len() / 2) as f64
    };
    // The program uses the first half by address.
    assert!(shares(0) > 0.8 && shares(1) < 0.2, "{rows:?}");
    for sum in ["resident_bytes", "shared_bytes", "huge_bytes"] {
        let (walked, summed) = (number(&walked[sum]), number(&summed[sum]));
        assert!(
            (walked - summed).abs() <= 65536.0,
            "{sum}: {walked}, {summed}"
        );
    }
}

/// The pages of the scan, as many unused pages, and one page in each GiB of the wide mapping.
#[test]
fn page_tables_of_a_mapping_of_2_tib_are_walked_past_its_holes() {
    if !can_walk() {
        return;
    }
    let Some(running) = Running::start("t", 1024, 10_000) else {
        return;
    };
    let report = |source: &str| {
        let pid = running.pid();
        let times = ["--seconds", "4", "--window", "1", "--json"];
        let output = mrc(&[&["-p", &pid, "--pages-source", source], &times[..]].concat());
        assert!(output.status.success(), "{}", harness::said(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report
    };
    let resident = |report: &Value| number(&report["resident_bytes"]) / 4096.0;
    let (walked, summed) = (report("page-tables"), report("clear-refs"));
    assert!(resident(&walked) >= 2.0 * 1024.0 + 2048.0, "{walked}");
    assert!(
        (resident(&walked) - resident(&summed)).abs() <= 16.0,
        "{walked} {summed}"
    );
    let notes = walked["notes"].to_string();
    assert!(!notes.contains("could not be read"), "{notes}");
}

/// Page k has the probability p(k) ~ k^-0.8. With independent references W(T) is the sum of
/// 1 − exp(−r p(k) T), and its derivative the fault rate.
#[test]
fn zipf_references_have_the_curve_of_their_closed_form() {
    let _alone = ONE_AT_A_TIME.lock();
    let Some(running) = Running::start("z", PAGES, RATE) else {
        return;
    };
    let (report, rate) = running.observe();
    let weights: Vec<f64> = (1..=PAGES).map(|k| f64::from(k).powf(-0.8)).collect();
    let sum: f64 = weights.iter().sum();
    let footprint = |age: f64| {
        let unused = weights.iter().map(|w| (-rate * w / sum * age).exp());
        f64::from(PAGES) - unused.sum::<f64>()
    };
    for part in [0.25, 0.5, 0.75] {
        let (mut low, mut high) = (0.0, 1000.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            match footprint(middle) < part * f64::from(PAGES) {
                true => low = middle,
                false => high = middle,
            }
        }
        let growth = weights.iter().map(|w| {
            let each = rate * w / sum;
            each * (-each * low).exp()
        });
        assert_falls_at(&report, growth.sum(), part);
    }
}

/// A cyclic scan uses its oldest page next, so every reference faults until all pages fit.
#[test]
fn cyclic_scan_faults_at_its_full_rate_up_to_its_size() {
    let _alone = ONE_AT_A_TIME.lock();
    let Some(running) = Running::start("s", PAGES, RATE) else {
        return;
    };
    let (report, rate) = running.observe();
    assert_half_is_unused(&report);
    assert_falls_at(&report, 0.5 * rate, 1.0);
}

#[test]
fn huge_pages_have_working_sets_and_no_fault_rates() {
    let enabled = "/sys/kernel/mm/transparent_hugepage/enabled";
    let enabled = std::fs::read_to_string(enabled).unwrap_or_default();
    if !enabled.contains("[always]") && !enabled.contains("[madvise]") {
        return skipped(Need::Kernel, "transparent huge pages are off");
    }
    let Some(running) = Running::start("h", PAGES, RATE) else {
        return;
    };
    let output = mrc(&["-p", &running.pid(), "--seconds", "4"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("No fault rates"), "{text}");
    assert!(text.contains("working set"), "{text}");
    assert!(!text.contains("faults/s by size"), "{text}");
}

#[test]
fn report_says_what_it_estimates_from_and_what_it_does_not_see() {
    let Some(running) = Running::start("u", PAGES, RATE) else {
        return;
    };
    let output = mrc(&["-p", &running.pid(), "--seconds", "4"]);
    let text = String::from_utf8_lossy(&output.stdout);
    for words in [
        "estimated from accessed bits",
        "faults/s by size of memory",
        "half of the highest",
        "was not used for",
        "read() are not seen",
        "of a processor",
    ] {
        assert!(text.contains(words), "`{words}` is not in: {text}");
    }
    let times = ["--seconds", "4", "--html", "-"];
    let output = mrc(&[&["-p", &running.pid()], &times[..]].concat());
    if harness::said(&output).contains("without the front end") {
        return;
    }
    let page = String::from_utf8_lossy(&output.stdout);
    let (_, data) = page.split_once("id=\"data\">").expect("data");
    let data = data.split_once("</script>").expect("its end").0;
    let data: Value = serde_json::from_str(data).expect("JSON");
    let points = data["memory"]["points"].as_array();
    assert!(points.is_some_and(|points| points.len() > 10), "{data}");
    assert!(!data["overview"].as_array().expect("sentences").is_empty());
}

#[test]
fn second_run_on_the_same_process_is_refused() {
    let Some(running) = Running::start("u", 1000, 1000) else {
        return;
    };
    let pid = running.pid();
    let mut first = Command::new(PROGRAM)
        .args(["mrc", "-p", &pid, "--seconds", "600"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let clears = |pid: u32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        let links = open
            .flatten()
            .filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.into_iter().any(|link| link.ends_with("smaps_rollup"))
    };
    wait_for(|| clears(first.id()));
    let second = mrc(&["-p", &pid, "--seconds", "1"]);
    first.kill().unwrap();
    first.wait().unwrap();
    check_line(&second, 125, &[&pid, "another memgauge"]);
    // The lock goes with its owner.
    assert!(mrc(&["-p", &pid, "--seconds", "1"]).status.success());
}

/// The lock keeps only memgauge away from a process. The note shows that its bits were cleared by
/// others, in the kernel or not.
#[test]
fn bits_that_something_else_clears_are_noticed() {
    let Some(running) = Running::start("u", 4096, 20_000) else {
        return skipped(Need::Packages, "no C compiler");
    };
    let pid = running.pid();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::write(format!("/proc/{pid}/clear_refs"), "1").expect("it may be written");
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        let output = mrc(&["-p", &pid, "--seconds", "8", "--window", "2", "--json"]);
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        output
    });
    assert!(output.status.success(), "{}", harness::said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let notes = report["notes"].as_array().expect("notes");
    let is_noticed = |note: &Value| {
        let text = note.as_str().unwrap_or_default();
        text.starts_with("something else also cleared accessed bits in ")
    };
    assert!(notes.iter().any(is_noticed), "{notes:?}");
}

#[test]
fn process_that_ends_or_executes_another_program_keeps_earlier_numbers() {
    let check = |script: &str, words: &str| {
        let mut shell = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let output = mrc(&[
            "-p",
            &shell.id().to_string(),
            "--seconds",
            "600",
            "--window",
            "1",
        ]);
        let _ = shell.kill();
        shell.wait().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(words), "{text}{}", harness::said(&output));
        assert!(text.contains("the numbers are from before"), "{text}");
    };
    check("sleep 4; exit", "ended");
    check("sleep 4; exec sleep 600", "executed another program");
}

#[test]
fn stopped_process_is_named_with_the_command_that_continues_it() {
    let mut sleeper = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = sleeper.id().to_string();
    Command::new("kill").args(["-STOP", &pid]).status().unwrap();
    let stat = format!("/proc/{pid}/stat");
    wait_for(|| std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
    let output = mrc(&["-p", &pid]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    check_line(&output, 125, &[&pid, "stopped", "kill -CONT"]);
}

#[test]
fn processes_that_cannot_be_observed_are_refused_in_one_line() {
    check_line(
        &mrc(&["-p", "4194305"]),
        125,
        &["4194305", "no such process"],
    );
    let no_threads = mrc(&["-t", "1"]);
    check_line(&no_threads, 2, &["-p PID"]);
    let longer = mrc(&["-p", "1", "--seconds", "2", "--window", "3"]);
    check_line(&longer, 2, &["--seconds"]);
}

#[test]
fn process_of_another_user_is_refused_with_the_way_out() {
    if !is_root() {
        return skipped(Need::Root, "needs root to become another user");
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("memgauge");
    std::fs::copy(PROGRAM, &program).unwrap();
    let open = |path: &Path| {
        let rights = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, rights).unwrap();
    };
    open(folder.path());
    open(&program);
    let own = std::process::id().to_string();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["mrc", "-p", &own])
        .output()
        .unwrap();
    check_line(&output, 125, &[&own, "permission denied", "run as root"]);
}

/// Two processes with working sets of one and two units, each beside as much unused memory.
#[test]
fn several_processes_are_added_up_and_listed() {
    let (Some(small), Some(large)) = (
        Running::start("u", PAGES / 2, RATE / 2),
        Running::start("u", PAGES, RATE),
    ) else {
        return;
    };
    let pids = format!("{},{}", small.pid(), large.pid());
    let output = mrc(&["-p", &pids, "--seconds", "8", "--window", "4", "--json"]);
    assert!(output.status.success(), "{}", harness::said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let pages = |value: &Value| number(value) / 4096.0;
    let longest = report["working_sets"].as_array().unwrap().last().unwrap();
    // Each process also uses pages of its code and of the C library.
    let assert_pages = |value: &Value, expected: f64, processes: f64| {
        let (found, most) = (pages(value), 1.05 * expected + 1000.0 * processes);
        assert!(
            (0.95 * expected..=most).contains(&found),
            "{found} pages, not {expected}"
        );
    };
    let all = f64::from(PAGES);
    assert_pages(&longest["bytes"]["value"], 1.5 * all, 2.0);
    let processes = report["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 2);
    for (running, part) in [(&small, 0.5), (&large, 1.0)] {
        let is_it = |process: &&Value| process["pid"] == running.child.id();
        let process = processes.iter().find(is_it).unwrap();
        assert_pages(&process["working_set_bytes"], part * all, 1.0);
    }
}

/// The kernel maps shared memory in each process, and it is in memory once.
#[test]
fn memory_that_processes_share_counts_once() {
    if !can_walk() {
        return;
    }
    let Some(running) = Running::start("m", PAGES, RATE) else {
        return;
    };
    let own = running.pid();
    let children = format!("/proc/{own}/task/{own}/children");
    let pids = || {
        let children = std::fs::read_to_string(&children).unwrap_or_default();
        let pids = [own.clone()]
            .into_iter()
            .chain(children.split_whitespace().map(str::to_owned));
        pids.collect::<Vec<_>>()
    };
    wait_for(|| pids().len() == 3);
    let pids = pids().join(",");
    let times = ["--seconds", "8", "--window", "4"];
    let output = mrc(&[
        &["-p", &pids, "--pages-source", "page-tables", "--json"][..],
        &times,
    ]
    .concat());
    assert!(output.status.success(), "{}", harness::said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let longest = report["working_sets"].as_array().unwrap().last().unwrap();
    let pages = |value: &Value| number(value) / 4096.0;
    let expected = f64::from(PAGES);
    // Each process also uses pages of its stack, its code and the C library.
    let range = 0.95 * expected..=1.05 * expected + 1000.0;
    let all = pages(&longest["bytes"]["value"]);
    assert!(range.contains(&all), "{all} pages, not {expected}");
    let resident = pages(&report["resident_bytes"]);
    let range = 2.0 * expected..=2.0 * expected + 2000.0;
    assert!(
        range.contains(&resident),
        "{resident} resident pages, not {}",
        2.0 * expected
    );
    for process in report["processes"].as_array().unwrap() {
        let own = pages(&process["working_set_bytes"]);
        assert!(
            own >= 0.95 * expected,
            "{own} pages of one process, not {expected}"
        );
    }
}

/// Uniform references at r per second to n pages have r(1 − m/n) faults/s in m pages. The program with
/// more references per page therefore gets all of its pages first.
#[test]
fn memory_is_divided_by_references_per_page() {
    let _alone = ONE_AT_A_TIME.lock();
    let (Some(dense), Some(sparse)) = (
        Running::start("u", PAGES / 2, RATE),
        Running::start("u", PAGES, RATE / 4),
    ) else {
        return;
    };
    let part = harness::drawn("share", 30, 60) as f64 / 100.0;
    let page_bytes = 4096.0;
    let (dense_bytes, sparse_bytes) = (
        f64::from(PAGES / 2) * page_bytes,
        f64::from(PAGES) * page_bytes,
    );
    let total = (dense_bytes + part * sparse_bytes) as u64;
    let divided = |pids: &str, total: u64| {
        let mut command = Command::new(PROGRAM);
        command.args(["partition", "-p", pids, "--total", &total.to_string()]);
        command.args(["--seconds", "16", "--window", "8", "--json"]);
        command.output().expect("memgauge runs")
    };
    let pids = format!("{},{}", dense.pid(), sparse.pid());
    let output = divided(&pids, total);
    assert!(output.status.success(), "{}", harness::said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let programs = report["programs"].as_array().unwrap();
    let share = |program: usize| number(&programs[program]["bytes"]["value"]);
    assert_near("dense", share(0), dense_bytes, 0.1);
    assert_near("sparse", share(1) / sparse_bytes, part, 0.2);
    let given = share(0) + share(1) + number(&report["spare_bytes"]);
    assert_near("total", given, total as f64, 1e-6);
    let (all, equal) = (&report["faults_per_s"], &report["equal_shares"]);
    assert!(
        number(&all["value"]) < number(&equal["faults_per_s"]),
        "{report}"
    );
    for (program, running) in programs.iter().zip([&dense, &sparse]) {
        assert_eq!(program["pids"][0], running.child.id());
    }
    let output = divided(&pids, 4096);
    check_line(
        &output,
        2,
        &["failed to divide 4 KiB", "shortest windows", "--total"],
    );
    let twice = format!("{0},{0}", dense.pid());
    check_line(&divided(&twice, total), 2, &[&dense.pid(), "named twice"]);
    check_line(
        &divided(&dense.pid(), total),
        2,
        &["only one program", "mrc -p"],
    );
}
