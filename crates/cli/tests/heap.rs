//! `memgauge heap`: memory by allocating calls.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{drawn, memgauge, needs};
use memgauge_testing::compiled;

/// Allocates blocks of 128 bytes that stay, one of a MiB in the middle of the run, and short-lived
/// ones.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
static void *kept[KEPT];
static __attribute__((noinline)) void keep(int i) { kept[i] = malloc(128); }
static __attribute__((noinline)) char *buffer(void) { return calloc(1 << 20, 1); }
static __attribute__((noinline)) void scratch(void) { char *t = malloc(64); memset(t, 1, 64); __asm__ volatile("" : : "r"(t) : "memory"); free(t); }
int main(void) {
    for (int i = 0; i < KEPT / 2; i++) keep(i);
    char *b = buffer();
    for (int i = 0; i < SHORT; i++) scratch();
    free(b);
    for (int i = KEPT / 2; i < KEPT; i++) keep(i);
    return b == kept[0];
}
"#;

/// Lines of the text without its column of shares.
fn row<'a>(text: &'a str, ending: &str) -> Option<Vec<&'a str>> {
    let line = text
        .lines()
        .find(|line| line.trim_end().ends_with(ending))?;
    Some(line.split_whitespace().collect())
}

#[test]
fn calls_that_allocate_are_a_tree_with_known_bytes() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let kept = drawn("kept", 1000, 4000) / 2 * 2;
    let short = drawn("short-lived", 5000, 9000);
    let source = folder.path().join("prog.c");
    std::fs::write(&source, PROGRAM).expect("the source can be written");
    let program = folder.path().join("prog");
    let status = std::process::Command::new("gcc")
        .args(["-O1", "-g", "-o"])
        .args([&program, &source])
        .args([format!("-DKEPT={kept}"), format!("-DSHORT={short}")])
        .status();
    assert!(status.expect("gcc runs").success());
    let recording = folder.path().join("x.mg");
    let recorded = memgauge()
        .args(["heap", "-q", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program)
        .output()
        .expect("memgauge runs");
    let text = String::from_utf8_lossy(&recorded.stderr).into_owned();
    assert!(recorded.status.success(), "{text}");
    let peak = kept / 2 * 128 + (1 << 20) + 64;
    let title = format!(
        "Heap: {:.2} MiB in use at the peak",
        peak as f64 / f64::from(1 << 20)
    );
    assert!(text.contains(&title), "{title}\n{text}");
    assert!(
        text.contains(&format!("{} allocations", kept + 1 + short)),
        "{text}"
    );

    let by = |number: &str| {
        let shown = memgauge()
            .args(["heap", "--by", number])
            .arg(&recording)
            .output()
            .expect("memgauge runs");
        assert!(shown.status.success());
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        text.split("Calls by").last().unwrap_or_default().to_owned()
    };
    let unfreed = by("unfreed");
    let share = row(&unfreed, "keep (prog.c:5)").expect("the call that keeps memory");
    // It is called from two lines, half of the times each.
    assert_eq!(share[0], "50.0", "{unfreed}");
    assert!(
        !unfreed.contains("buffer") && !unfreed.contains("scratch"),
        "{unfreed}"
    );
    let allocations = by("allocations");
    let of_scratch = row(&allocations, "scratch (prog.c:7)").expect("the short-lived blocks");
    let expected = format!("{:.1}", 100.0 * short as f64 / (kept + 1 + short) as f64);
    assert_eq!(of_scratch[0], expected, "{allocations}");
    assert!(allocations.contains("main (prog.c:"), "{allocations}");
    assert!(!allocations.contains("_start"), "{allocations}");
}

#[test]
fn a_recording_without_allocations_gets_a_way_out() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("x.mg");
    memgauge()
        .args(["record", "-q", "--no-data", "-o"])
        .arg(&recording)
        .args(["--", "true"])
        .assert()
        .success();
    let shown = memgauge()
        .arg("heap")
        .arg(&recording)
        .output()
        .expect("memgauge runs");
    let text = String::from_utf8_lossy(&shown.stderr);
    assert_eq!(shown.status.code(), Some(2), "{text}");
    assert!(
        text.contains("it has no allocations") && text.contains("--no-data"),
        "{text}"
    );
}

/// The report of the program that is recorded with these options.
fn history(source: &[&str], kept: u64, short: u64) -> serde_json::Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, program) = (folder.path().join("prog.c"), folder.path().join("prog"));
    std::fs::write(&code, PROGRAM).expect("the source can be written");
    let status = std::process::Command::new("gcc")
        .args(["-O1", "-g", "-o"])
        .args([&program, &code])
        .args([format!("-DKEPT={kept}"), format!("-DSHORT={short}")])
        .status();
    assert!(status.expect("gcc runs").success());
    heap_of(source, &program)
}

/// The heap of a program that is recorded with these options.
fn heap_of(source: &[&str], program: &Path) -> serde_json::Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("x.mg");
    memgauge()
        .args(["record", "-q"])
        .args(source)
        .arg("-o")
        .arg(&recording)
        .arg("--")
        .arg(program)
        .assert()
        .success();
    let report = memgauge()
        .args(["report", "--json"])
        .arg(&recording)
        .output()
        .expect("memgauge runs");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    report["heap"].clone()
}

fn numbers(value: &serde_json::Value) -> Vec<u64> {
    let all = value.as_array().into_iter().flatten();
    all.filter_map(serde_json::Value::as_u64).collect()
}

/// Checks the history of the program, whichever source recorded it.
fn check_history(heap: &serde_json::Value, kept: u64, short: u64) {
    let history = &heap["over_time"];
    let in_use = numbers(&history["in_use"]);
    let peak = kept / 2 * 128 + (1 << 20) + 64;
    assert_eq!(in_use.iter().max(), Some(&peak), "{history}");
    assert_eq!(heap["at_peak_bytes"], peak, "{heap}");
    let (bin_ns, peak_ns) = (&history["bin_ns"], &history["peak_ns"]);
    let bin = peak_ns.as_u64().unwrap_or(0) / bin_ns.as_u64().unwrap_or(1);
    assert_eq!(in_use.get(bin as usize), Some(&peak), "{history}");
    assert_eq!(in_use.last(), Some(&(kept * 128)), "{history}");
    let curve = |function: &str| {
        let mut sites = history["sites"].as_array().into_iter().flatten();
        let site = sites.find(|site| {
            let name = site["name"].as_str().unwrap_or_default();
            name.starts_with(&format!("{function} "))
        });
        numbers(&site.unwrap_or_else(|| panic!("no {function}: {history}"))["bytes"])
    };
    let keep = curve("keep");
    assert!(keep.is_sorted(), "{keep:?}");
    assert_eq!(keep.last(), Some(&(kept * 128)), "{keep:?}");
    assert_eq!(curve("buffer").iter().max(), Some(&(1 << 20)), "{history}");
    assert_eq!(curve("buffer").last(), Some(&0), "{history}");
    assert_eq!(numbers(&history["other_bytes"]).iter().max(), Some(&0));

    assert_eq!(heap["temporary"], short, "{heap}");
    let histograms = &heap["histograms"];
    let class = |classes: &serde_json::Value, min: u64| {
        let mut classes = classes.as_array().into_iter().flatten();
        let class = classes.find(|class| class["min"] == min);
        class.map_or(0, |class| class["allocations"].as_u64().unwrap_or(0))
    };
    let sizes = &histograms["sizes"];
    assert_eq!(class(sizes, 64), short, "{histograms}");
    assert_eq!(class(sizes, 128), kept, "{histograms}");
    assert_eq!(class(sizes, 1 << 20), 1, "{histograms}");
    assert_eq!(histograms["unfreed"], kept, "{histograms}");
    let lifetimes = histograms["lifetimes"].as_array().into_iter().flatten();
    let freed: u64 = lifetimes
        .map(|class| class["allocations"].as_u64().unwrap_or(0))
        .sum();
    assert_eq!(freed, short + 1, "{histograms}");
}

#[test]
fn bytes_over_time_and_classes_are_known_in_an_emulated_run() {
    if !needs(&["gcc"]) {
        return;
    }
    let kept = drawn("kept", 1000, 4000) / 2 * 2;
    let short = drawn("short-lived", 5000, 9000);
    check_history(&history(&["--source", "emulate"], kept, short), kept, short);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn bytes_over_time_and_classes_are_known_in_a_native_run() {
    if !needs(&["gcc"]) {
        return;
    }
    let kept = drawn("kept", 1000, 4000) / 2 * 2;
    let short = drawn("short-lived", 5000, 9000);
    let source = ["--source", "malloc", "-c", "1"];
    check_history(&history(&source, kept, short), kept, short);
}

/// A list whose nodes have several sizes and of which a third are freed at once.
const LIST: &str = r#"
#include <cstdlib>
struct Node { Node *next; char bytes[40]; };
int main() {
    Node *head = 0;
    for (int i = 0; i < COUNT; i++) {
        Node *node = (Node *)malloc(sizeof(Node) + i % 50);
        node->next = head;
        head = node;
        if (i % 3 == 0) { head = node->next; free(node); }
    }
    void *volatile large = calloc(300, 1000);
    free(large);
    while (head) { Node *next = head->next; free(head); head = next; }
}
"#;

const CONTAINERS: &str = r#"
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
int main() {
    std::map<int, std::string> tree;
    for (int i = 0; i < COUNT; i++) tree[i * 7919 % 10007] = std::string(i % 60, 'x');
    std::unordered_map<std::string, int> table;
    for (int i = 0; i < COUNT; i++) table[std::to_string(i) + "abcdefghijklmnopqrstuv"] = i;
    std::vector<std::shared_ptr<std::vector<int>>> vectors;
    for (int i = 0; i < 500; i++) vectors.push_back(std::make_shared<std::vector<int>>(i));
    tree.clear();
    vectors.resize(100);
    return table.empty();
}
"#;

const GROWTH: &str = r#"
#include <cstdlib>
int main() {
    char *volatile one = 0;
    for (size_t bytes = 16; bytes < ((size_t)COUNT << 10); bytes *= 2) { one = (char *)realloc(one, bytes); one[bytes - 1] = 1; }
    one = (char *)realloc(one, 1000);
    void *volatile many[50];
    for (int i = 0; i < 50; i++) many[i] = malloc(100);
    for (int round = 0; round < 20; round++) for (int i = 0; i < 50; i++) many[i] = realloc(many[i], 100 + round * 10);
    for (int i = 0; i < 25; i++) free(many[i]);
}
"#;

/// Runs a program under a tool of valgrind that leaves what libraries free at the end.
fn valgrind(tool: &[&str], program: &Path) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out");
    let status = std::process::Command::new("valgrind")
        .args(["-q", "--run-libc-freeres=no", "--run-cxx-freeres=no"])
        .args(tool)
        .arg(format!(
            "--{}-out-file={}",
            &tool[0]["--tool=".len()..],
            out.display()
        ))
        .arg(program)
        .status();
    assert!(status.expect("valgrind runs").success());
    std::fs::read_to_string(out).expect("a profile")
}

#[test]
#[cfg(target_arch = "x86_64")]
fn peaks_and_bytes_over_time_are_those_of_dhat_and_massif() {
    if !needs(&["g++", "valgrind"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let count = format!("-DCOUNT={}", drawn("count", 1000, 5000));
    let flags = ["-O1", "-g", "-w", "-fno-builtin", &count];
    for source in [LIST, CONTAINERS, GROWTH] {
        let program = compiled(folder.path(), "prog.cpp", source, &flags);
        let program = PathBuf::from(program.expect("g++ is installed"));
        let dhat: serde_json::Value =
            serde_json::from_str(&valgrind(&["--tool=dhat"], &program)).expect("JSON");
        let sum = |field: &str| -> u64 {
            let points = dhat["pps"].as_array().into_iter().flatten();
            points.filter_map(|point| point[field].as_u64()).sum()
        };
        let exact = ["--tool=massif", "--heap-admin=0", "--peak-inaccuracy=0.0"];
        let massif = valgrind(&exact, &program);
        let in_use = massif.lines().filter_map(|line| {
            let bytes = line.strip_prefix("mem_heap_B=")?;
            bytes.parse::<u64>().ok()
        });
        let massif_peak = in_use.max().expect("a snapshot");
        for options in [
            &["--source", "emulate"][..],
            &["--source", "malloc", "-c", "1"],
        ] {
            let heap = heap_of(options, &program);
            let found = ["allocations", "bytes", "at_peak_bytes", "live_bytes"];
            let found = found.map(|field| heap[field].as_u64().unwrap_or(0));
            assert_eq!(found, ["tbk", "tb", "gb", "eb"].map(sum), "{source}");
            let over_time = numbers(&heap["over_time"]["in_use"]);
            assert_eq!(over_time.into_iter().max(), Some(massif_peak), "{source}");
        }
    }
}

#[test]
fn more_memory_at_the_peak_or_not_freed_fails_a_gate() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, program) = (folder.path().join("prog.c"), folder.path().join("prog"));
    let kept = drawn("kept", 1000, 4000) / 2 * 2;
    let recordings = [kept, 2 * kept].map(|kept| {
        std::fs::write(&code, PROGRAM).expect("the source can be written");
        let status = std::process::Command::new("gcc")
            .args(["-O1", "-g", "-o"])
            .args([&program, &code])
            .args([format!("-DKEPT={kept}"), "-DSHORT=5".to_owned()])
            .status();
        assert!(status.expect("gcc runs").success());
        let recording = folder.path().join(format!("{kept}.mg"));
        memgauge()
            .args(["record", "-q", "-o"])
            .arg(&recording)
            .arg("--")
            .arg(&program)
            .assert()
            .success();
        recording
    });
    let [less, more] = &recordings;
    let passes = |before: &Path, after: &Path, gate: &str| {
        let compared = memgauge()
            .arg("diff")
            .args([before, after])
            .args(["--fail-if", gate])
            .output()
            .expect("memgauge runs");
        let code = compared.status.code();
        assert!(code == Some(0) || code == Some(1), "{compared:?}");
        code == Some(0)
    };
    let unfreed = 128 * kept;
    for (before, after, gate, expected) in [
        (less, less, "heap.peak_bytes > +0".to_owned(), true),
        (less, more, "heap.peak > +1%".to_owned(), false),
        (more, less, "heap.peak > +1%".to_owned(), true),
        (more, less, format!("heap.unfreed > {unfreed}"), true),
        (less, more, format!("heap.unfreed > {unfreed}"), false),
        (less, more, "heap.peak_bytes > +1%".to_owned(), false),
        (more, less, "heap.peak_bytes > +1%".to_owned(), true),
        (more, less, format!("heap.unfreed_bytes > {unfreed}"), true),
        (less, more, format!("heap.unfreed_bytes > {unfreed}"), false),
        (more, less, "heap.unfreed_bytes > 0".to_owned(), false),
    ] {
        assert_eq!(passes(before, after, &gate), expected, "{gate}");
    }
}

/// Allocates memory of which it uses a part, and prints its resident memory, once before the use and
/// once after it.
const RESIDENT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void resident(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (fscanf(f, "%*s %ld", &pages) != 1) exit(1);
    fclose(f);
    printf("%ld\n", pages * sysconf(_SC_PAGESIZE));
    fflush(stdout);
    sleep(2);
}
int main(void) {
    char *volatile memory = malloc(SIZE);
    resident();
    memset(memory, 1, USED);
    resident();
    free(memory);
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn resident_memory_is_that_which_the_program_reads_itself() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, program) = (folder.path().join("prog.c"), folder.path().join("prog"));
    std::fs::write(&code, RESIDENT).expect("the source can be written");
    let used = drawn("used", 20, 60) << 20;
    let size = used + (drawn("unused", 20, 60) << 20);
    let status = std::process::Command::new("gcc")
        .args(["-O1", "-g", "-fno-builtin", "-o"])
        .args([&program, &code])
        .args([format!("-DSIZE={size}"), format!("-DUSED={used}")])
        .status();
    assert!(status.expect("gcc runs").success());
    let recording = folder.path().join("x.mg");
    let recorded = memgauge()
        .args(["heap", "-q", "--source", "malloc", "-c", "1", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program)
        .output()
        .expect("memgauge runs");
    let text = String::from_utf8_lossy(&recorded.stderr).into_owned();
    assert!(recorded.status.success(), "{text}");
    assert!(text.contains("Allocated and resident memory"), "{text}");
    assert!(text.contains("RSS MiB"), "{text}");
    let printed = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let own: Vec<u64> = printed
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    let [before, after] = own[..] else {
        panic!("two numbers: {printed}");
    };
    assert!(after - before >= used && after < size, "{printed}");
    let report = memgauge()
        .args(["report", "--json"])
        .arg(&recording)
        .output()
        .expect("memgauge runs");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let history = &report["heap"]["over_time"];
    let resident = numbers(&history["resident"]);
    let in_use = numbers(&history["in_use"]);
    assert_eq!(resident.len(), in_use.len(), "{history}");
    assert!(in_use.iter().max() >= Some(&size), "{history}");
    // Pages of libraries that the program uses between the two readings.
    let near = |own: u64| move |&&bytes: &&u64| bytes.abs_diff(own) <= 1 << 20;
    assert_eq!(
        resident.iter().max(),
        resident.iter().filter(near(after)).max(),
        "{history}"
    );
    // Each of the two lasts at least 2 s.
    for own in [before, after] {
        assert!(
            resident.iter().filter(near(own)).count() > 2,
            "{own}: {history}"
        );
    }
}

/// Allocates memory again and again, of which the program uses a part. Small blocks use the same memory
/// each time, which the caches hold. What comes after `USED` bytes is never used.
const PARTLY_USED: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static char *volatile place;
static __attribute__((noinline)) void some(void) {
    place = aligned_alloc(64, SIZE); memset(place, 1, USED); free(place);
}
static __attribute__((noinline)) void all(void) {
    place = aligned_alloc(64, SIZE); memset(place, 1, SIZE); free(place);
}
static __attribute__((noinline)) void large(void) {
    place = aligned_alloc(4096, LARGE);
    for (long i = 0; i < LARGE / 3; i += 8) *(volatile long *)(place + i) = i;
}
static __attribute__((noinline)) void grown(void) {
    place = malloc(1000); memset(place, 1, 1000);
    place = realloc(place, 1000 + 100 * 64);
    free(place);
}
static void *other(void *memory) { for (int i = 0; i < USED; i++) ((volatile char *)memory)[i]; return 0; }
static __attribute__((noinline)) void passed(void) {
    place = aligned_alloc(64, SIZE);
    pthread_t thread;
    pthread_create(&thread, 0, other, place);
    pthread_join(thread, 0);
}
int main(void) {
    for (int i = 0; i < COUNT; i++) { all(); some(); all(); }
    large();
    grown();
    for (int i = 0; i < 5; i++) { all(); passed(); }
}
"#;

#[test]
fn memory_that_is_never_used_is_counted_by_lines_at_each_site() {
    if !needs(&["gcc", "valgrind"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, program) = (folder.path().join("prog.c"), folder.path().join("prog"));
    std::fs::write(&code, PARTLY_USED).expect("the source can be written");
    let count = drawn("count", 10, 300);
    // DHAT counts the accesses to each byte of blocks of at most 1024 bytes.
    let size = drawn("lines", 4, 16) * 64;
    let used = drawn("used", 1, size - 64);
    let large = drawn("pages", 10, 3000) * 4096;
    let status = std::process::Command::new("gcc")
        .args(["-O1", "-g", "-pthread", "-fno-builtin", "-o"])
        .args([&program, &code])
        .arg(format!("-DCOUNT={count}"))
        .arg(format!("-DSIZE={size}"))
        .arg(format!("-DUSED={used}"))
        .arg(format!("-DLARGE={large}L"))
        .status();
    assert!(status.expect("gcc runs").success());
    let heap = heap_of(&["--source", "emulate"], &program);
    let untouched = |function: &str| -> u64 {
        let sites = heap["sites"].as_array().into_iter().flatten();
        let named = sites.filter(|site| {
            let name = site["name"].as_str().unwrap_or_default();
            name.starts_with(&format!("{function} "))
        });
        named
            .map(|site| site["untouched_bytes"].as_u64().expect("a number"))
            .sum()
    };
    let unused = (size - used) / 64 * 64;
    assert_eq!(untouched("some"), count * unused, "{heap}");
    assert_eq!(untouched("all"), 0, "{heap}");
    let written = (large / 3).next_multiple_of(8).next_multiple_of(64);
    assert_eq!(untouched("large"), large - written, "{heap}");
    assert!([99 * 64, 100 * 64].contains(&untouched("grown")), "{heap}");
    assert_eq!(untouched("passed"), 5 * unused, "{heap}");

    let dhat: serde_json::Value =
        serde_json::from_str(&valgrind(&["--tool=dhat"], &program)).expect("JSON");
    let of_dhat = |function: &str| -> u64 {
        let frames = dhat["ftbl"].as_array().expect("frames");
        let is_of = |point: &&serde_json::Value| {
            let calls = point["fs"].as_array().into_iter().flatten();
            let names = calls.filter_map(|call| frames.get(call.as_u64()? as usize)?.as_str());
            let name = format!(": {function} (");
            names.take(3).any(|call| call.contains(&name))
        };
        let points = dhat["pps"].as_array().expect("program points").iter();
        points
            .filter(is_of)
            .map(|point| {
                // A negative number is a count that repeats.
                let mut accesses: Vec<i64> = Vec::new();
                let mut entries = point["acc"].as_array().into_iter().flatten();
                while let Some(entry) = entries.next().and_then(|entry| entry.as_i64()) {
                    let times = if entry < 0 { -entry } else { 1 };
                    let value = match entry < 0 {
                        true => entries.next().and_then(|entry| entry.as_i64()).unwrap_or(0),
                        false => entry,
                    };
                    accesses.extend(std::iter::repeat_n(value, times as usize));
                }
                let lines = accesses.chunks_exact(64);
                let unused = lines.filter(|line| line.iter().all(|&count| count == 0));
                64 * unused.count() as u64 * point["tbk"].as_u64().expect("blocks")
            })
            .sum()
    };
    assert_eq!(untouched("some"), of_dhat("some"), "{dhat}");
    assert_eq!(untouched("all"), of_dhat("all"), "{dhat}");
    assert_eq!(untouched("passed"), of_dhat("passed"), "{dhat}");
}

#[test]
fn the_sites_of_an_executed_program_are_not_those_of_the_one_before() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, program) = (folder.path().join("prog.c"), folder.path().join("prog"));
    let source = r#"
#include <stdlib.h>
#include <unistd.h>
static void *volatile place;
static __attribute__((noinline)) void first(void) { place = malloc(1000); }
static __attribute__((noinline)) void second(void) { place = malloc(30); }
int main(int argc, char **argv) {
    for (int i = 0; i < COUNT; i++) if (argc > 1) first(); else second();
    return argc > 1 ? execl(argv[0], argv[0], (char *)0) : 0;
}
"#;
    std::fs::write(&code, source).expect("the source can be written");
    let count = drawn("count", 50, 500);
    let status = std::process::Command::new("gcc")
        .args(["-O1", "-g", "-o"])
        .args([&program, &code])
        .arg(format!("-DCOUNT={count}"))
        .status();
    assert!(status.expect("gcc runs").success());
    let recording = folder.path().join("x.mg");
    memgauge()
        .args(["record", "-q", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program)
        .arg("again")
        .assert()
        .success();
    let report = memgauge()
        .args(["report", "--json"])
        .arg(&recording)
        .output()
        .expect("memgauge runs");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    for (function, bytes) in [("first", 1000), ("second", 30)] {
        let sites = report["heap"]["sites"].as_array().into_iter().flatten();
        let found: Vec<_> = sites
            .filter(|site| {
                let name = site["name"].as_str().unwrap_or_default();
                name.starts_with(&format!("{function} "))
            })
            .map(|site| (site["allocations"].as_u64(), site["bytes"].as_u64()))
            .collect();
        assert_eq!(found, [(Some(count), Some(count * bytes))], "{report}");
    }
    // The memory of the first program is gone when the second runs.
    let in_use = numbers(&report["heap"]["over_time"]["in_use"]);
    assert_eq!(in_use.iter().max(), Some(&(count * 1000)));
    assert_eq!(in_use.last(), Some(&(count * 30)));
}

/// Allocations of known sites, sizes and numbers in threads, forked children, an executed program,
/// and code that leaves by `longjmp` or runs in a signal handler.
const NATIVE: &str = r#"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define SITE static __attribute__((noinline)) void *
static void *volatile place;
static jmp_buf back;
SITE keep(void) { return place = malloc(128); }
SITE large(void) { return place = calloc(1 << 20, 1); }
SITE scratch(void) { place = malloc(64); free(place); return 0; }
SITE of_thread(void) { return place = malloc(200); }
SITE of_child(void) { place = malloc(5000); free(place); return 0; }
SITE of_program(void) { return place = malloc(700); }
SITE jump(void) { place = malloc(300); longjmp(back, 1); }
static void handler(int signal) { (void)signal; place = malloc(500); }
static void *thread(void *given) { for (int i = 0; i < COUNT; i++) of_thread(); free(given); return 0; }
SITE grow(void) { char *memory = 0; for (int bytes = 16; bytes <= 4096; bytes *= 2) memory = realloc(memory, bytes); free(memory); return 0; }
SITE aligned(void) { void *memory; if (posix_memalign(&memory, 64, 900)) abort(); place = memory; return aligned_alloc(64, 640); }
int main(int argc, char **argv) {
    if (argc > 1) { for (int i = 0; i < COUNT; i++) of_program(); return 0; }
    for (int i = 0; i < COUNT; i++) keep();
    void *b = large();
    for (int i = 0; i < COUNT; i++) scratch();
    free(b);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, thread, malloc(1000));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    for (volatile int i = 0; i < COUNT; i++) if (!setjmp(back)) jump();
    signal(SIGUSR1, handler);
    for (int i = 0; i < COUNT; i++) raise(SIGUSR1);
    grow();
    aligned();
    for (int i = 0; i < 200; i++) if (!fork()) { of_child(); _exit(0); }
    while (wait(0) > 0) { }
    if (!fork()) execl(argv[0], argv[0], "again", (char *)0);
    wait(0);
    return 0;
}
"#;

/// Allocations, requested bytes, bytes at the peak and unfreed bytes of the sites in a function,
/// with half of the width of their intervals.
struct NativeSite {
    allocations: u64,
    bytes: u64,
    at_peak_bytes: u64,
    live_bytes: u64,
    errors: serde_json::Value,
}

fn native_site(report: &serde_json::Value, function: &str) -> NativeSite {
    let sites = report["heap"]["sites"].as_array().expect("sites");
    let is_in = |site: &&serde_json::Value| {
        let name = site["name"].as_str().unwrap_or_default();
        name.starts_with(&format!("{function} "))
    };
    let sum = |key: &str| -> u64 {
        let values = sites.iter().filter(is_in).map(|site| site[key].as_u64());
        values.map(Option::unwrap_or_default).sum()
    };
    NativeSite {
        allocations: sum("allocations"),
        bytes: sum("bytes"),
        at_peak_bytes: sum("at_peak_bytes"),
        live_bytes: sum("live_bytes"),
        errors: sites
            .iter()
            .find(is_in)
            .map_or(serde_json::Value::Null, |site| site["errors"].clone()),
    }
}

/// Compiles a program, records it with source `malloc`, and returns the report.
fn native(compiler: &str, source: &str, count: u64, options: &[&str]) -> serde_json::Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (text, program) = (folder.path().join("prog.c"), folder.path().join("prog"));
    std::fs::write(&text, source).expect("the source can be written");
    let mut compile = Command::new(compiler);
    compile.args(["-O1", "-g", "-pthread", "-fno-builtin-malloc"]);
    // A compiler for musl itself adds this table, without which call stacks end in the program.
    compile.args(["-Wl,--eh-frame-hdr", &format!("-DCOUNT={count}"), "-o"]);
    compile.args([&program, &text]);
    assert!(compile.status().expect("the compiler runs").success());
    let recording = folder.path().join("x.mg");
    memgauge()
        .args(["record", "--source", "malloc", "-q"])
        .args(options)
        .arg("-o")
        .args([&recording, &program])
        .assert()
        .success();
    let report = memgauge()
        .args(["report", "--json"])
        .arg(&recording)
        .output()
        .expect("memgauge runs");
    serde_json::from_slice(&report.stdout).expect("JSON")
}

#[test]
#[cfg(target_arch = "x86_64")]
fn natively_recorded_allocations_have_known_numbers_in_threads_children_and_programs() {
    if needs(&["gcc"]) {
        check_native("gcc");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn natively_recorded_allocations_have_known_numbers_with_musl() {
    if needs(&["musl-gcc"]) {
        check_native("musl-gcc");
    }
}

fn check_native(compiler: &str) {
    let count = drawn("count", 50, 500);
    let report = native(compiler, NATIVE, count, &["-c", "1"]);
    let expected = [
        // function, allocations, bytes, at the peak, not freed
        ("keep", count, count * 128, count * 128, count * 128),
        ("large", 1, 1 << 20, 1 << 20, 0),
        ("scratch", count, count * 64, 64, 0),
        ("of_thread", 4 * count, 4 * count * 200, 0, 4 * count * 200),
        ("jump", count, count * 300, 0, count * 300),
        ("handler", count, count * 500, 0, count * 500),
        ("grow", 9, 8176, 0, 0),
        ("aligned", 2, 1540, 0, 1540),
        // The sum over several processes, each at its own peak.
        ("of_child", 200, 200 * 5000, 200 * 5000, 0),
        ("of_program", count, count * 700, count * 700, count * 700),
    ];
    for (function, allocations, bytes, at_peak, live) in expected {
        let site = native_site(&report, function);
        let found = (
            site.allocations,
            site.bytes,
            site.at_peak_bytes,
            site.live_bytes,
        );
        assert_eq!(found, (allocations, bytes, at_peak, live), "{function}");
    }
    assert_eq!(report["heap"]["errors"], serde_json::Value::Null);
    assert_eq!(report["losses"].as_array().map(Vec::len), Some(0));
    assert_eq!(
        report["totals"]["heap.unknown_frees"],
        serde_json::Value::Null
    );
}

/// Small, middle-sized and large blocks, some of which another thread frees.
const SAMPLED: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#define SITE static __attribute__((noinline)) void *
static void *kept[COUNT];
SITE small(void) { return malloc(48); }
SITE middle(void) { return malloc(3000); }
SITE large(void) { return malloc(300000); }
static void *release(void *unused) { for (int i = 0; i < COUNT; i += 2) free(kept[i]); return unused; }
int main(void) {
    for (int i = 0; i < COUNT; i++) kept[i] = middle();
    pthread_t thread;
    pthread_create(&thread, 0, release, 0);
    pthread_join(thread, 0);
    for (int i = 0; i < 10 * COUNT; i++) small();
    for (int i = 0; i < 20; i++) large();
    return 0;
}
"#;

#[test]
#[cfg(target_arch = "x86_64")]
fn sampled_allocations_are_within_their_intervals() {
    if !needs(&["gcc"]) {
        return;
    }
    let count = drawn("count", 20_000, 40_000);
    let report = native("gcc", SAMPLED, count, &[]);
    let expected = [
        ("small", 10 * count, 10 * count * 48, 10 * count * 48),
        ("middle", count, count * 3000, count / 2 * 3000),
        ("large", 20, 20 * 300_000, 20 * 300_000),
    ];
    for (function, allocations, bytes, live) in expected {
        let site = native_site(&report, function);
        let found = [site.allocations, site.bytes, site.live_bytes];
        let names = ["allocations", "bytes", "live_bytes"];
        let wanted = [allocations, bytes, live];
        for ((found, wanted), name) in found.into_iter().zip(wanted).zip(names) {
            // An interval of 95 % has 1.96 standard deviations on each side. Six of them are missed
            // once in 500 million runs.
            let error = site.errors[name].as_f64().unwrap_or(0.0) / 1.96 * 6.0;
            let distance = (found as f64 - wanted as f64).abs();
            assert!(
                distance <= error.max(1.0),
                "{name} of {function}: {found} for {wanted}, within {error}"
            );
            assert!(error < 0.8 * wanted as f64, "{name} of {function}: {error}");
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_static_program_is_refused_before_the_recording_is_replaced() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, program) = (folder.path().join("prog.c"), folder.path().join("prog"));
    std::fs::write(&code, "int main(void) { return 0; }").expect("the source can be written");
    let compiled = std::process::Command::new("gcc")
        .args(["-static", "-o"])
        .args([&program, &code])
        .status();
    if !compiled.expect("gcc runs").success() {
        return;
    }
    let recording = folder.path().join("x.mg");
    let refused = memgauge()
        .args(["heap", "--source", "malloc", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program)
        .output()
        .expect("memgauge runs");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && text.contains("linked statically"),
        "{text}"
    );
    assert!(!recording.exists());
}
