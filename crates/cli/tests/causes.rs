//! Programs with a known limit: the report names it first.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{Recorded, needs, report_text, workloads, write_machine};
use serde_json::Value;
use tempfile::TempDir;

/// Returns the kinds of causes of a run on a small machine (L1D 32 KiB, L2 256 KiB, LLC 1 MiB) with
/// a memory bandwidth of `dram_bytes_per_s`.
fn causes(dram_bytes_per_s: u64, program: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("machine.json");
    write_machine(&path, [(32, 8), (256, 8), (1024, 16)]);
    let text = std::fs::read(&path).expect("the machine");
    let mut machine: Value = serde_json::from_slice(&text).expect("JSON");
    machine["timing"]["dram_bytes_per_s"] = dram_bytes_per_s.into();
    std::fs::write(&path, machine.to_string()).expect("the machine file can be written");
    let machine = path.to_str().expect("temporary paths are text");
    let recorded = Recorded::new(&["--machine", machine], program);
    let report = recorded.report();
    let kinds = report["causes"].as_array().expect("causes").iter();
    let kinds = kinds.map(|cause| cause["kind"].as_str().expect("a kind").to_owned());
    kinds.collect()
}

fn first(dram_bytes_per_s: u64, arguments: &str) -> String {
    let program: Vec<&str> = std::iter::once(workloads())
        .chain(arguments.split_whitespace())
        .collect();
    let causes = causes(dram_bytes_per_s, &program);
    causes.first().cloned().unwrap_or_default()
}

const FAST: u64 = 20_000_000_000;
const SLOW: u64 = 5_000_000_000;

#[test]
fn the_known_limit_of_a_program_is_named_first() {
    if !needs(&[]) {
        return;
    }
    for (dram, arguments, expected) in [
        // Each load waits for the one before it.
        (FAST, "chase --bytes 16MiB --steps 1M", "latency_bound"),
        // Loads in order, from a memory slower than the misses in flight could be served.
        (SLOW, "linear --bytes 32MiB", "bandwidth_bound"),
        // The same from a faster memory: all eight words of each line are used, in order.
        (FAST, "linear --bytes 32MiB", "stream_bound"),
        (FAST, "write --bytes 32MiB", "stream_bound"),
        (FAST, "triad --bytes 8MiB", "stream_bound"),
        (FAST, "bigarray --bytes 16MiB --passes 2", "stream_bound"),
        // One word of each line, and of each third line.
        (
            FAST,
            "linear --bytes 64MiB --stride 64 --passes 2",
            "stride_bound",
        ),
        (
            FAST,
            "linear --bytes 64MiB --stride 192 --passes 5",
            "stride_bound",
        ),
        // Words at random addresses.
        (FAST, "rand --bytes 64MiB --steps 500k", "latency_bound"),
        // One word of each page, as for a column of a matrix.
        (
            FAST,
            "linear --bytes 64MiB --stride 4160 --passes 80",
            "latency_bound",
        ),
        (SLOW, "triad --bytes 8MiB", "bandwidth_bound"),
        // 3000 pages, which exceed both TLBs, with a line each. L2 holds the lines.
        (
            FAST,
            "linear --bytes 12480000 --stride 4160 --passes 400",
            "tlb_bound",
        ),
        (FAST, "linear --bytes 16KiB --passes 4000", "l1_bound"),
        (FAST, "idle --for 100ms", "idle"),
        (FAST, "linear --bytes 4KiB", "tiny"),
    ] {
        assert_eq!(first(dram, arguments), expected, "{arguments}");
    }
}

/// Syncs a file 300 times: in `main`, or with a second argument in a thread while `main` computes.
/// Prints how often it has waited.
const SYNCS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>
static volatile int is_over;
static volatile long sink;
static const char *path;
static void *write_log(void *unused) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 300; i++)
        if (write(fd, &i, sizeof i) < 0 || fsync(fd)) exit(1);
    is_over = 1;
    return unused;
}
int main(int argc, char **argv) {
    path = argv[1];
    if (argc > 2) {
        pthread_t thread;
        pthread_create(&thread, 0, write_log, 0);
        while (!is_over) sink++;
        pthread_join(thread, 0);
    } else {
        write_log(0);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%ld\n", usage.ru_nvcsw);
}
"#;

#[test]
fn waits_for_files_are_measured_while_no_thread_runs() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = memgauge_testing::compiled(folder.path(), "program.c", SYNCS, &["-pthread"]);
    let program = program.expect("gcc is installed");
    let log = folder.path().join("log");
    let log = log.to_str().expect("temporary paths are text");
    let native = std::process::Command::new(&program).arg(log).output();
    let waits = String::from_utf8(native.expect("it runs").stdout).expect("a number");
    if waits.trim().parse::<u64>().expect("a number") < 200 {
        eprintln!(
            "skipped: fsync does not wait in {}",
            folder.path().display()
        );
        return;
    }
    let waited_s = |report: &Value, name: &str| report["own_cost"][name].as_f64().expect(name);
    let run = Recorded::new(&["--machine", "zen4"], &[&program, log]);
    let alone = run.report();
    let all_s = waited_s(&alone, "program_file_wait_s");
    assert!(all_s > 0.0);
    assert!(waited_s(&alone, "program_file_sync_wait_s") > 0.8 * all_s);
    let place = &alone["file_waits"][0];
    assert_eq!(place["function"], "write_log", "{place}");
    assert_eq!(place["file_use"], "sync", "{place}");
    let share = place["share"].as_f64().expect("a share");
    assert!(share > 0.8, "{place}");
    let wait_s = place["wait_s"].as_f64().expect("seconds");
    assert!((wait_s - share * all_s).abs() < 1e-9, "{place}");
    if all_s >= 0.02 {
        assert_eq!(alone["causes"][0]["kind"], "file_waits");
        let text = report_text(&run.path());
        assert!(text.contains("write_log"), "{text}");
    }
    let beside = [&*program, log, "beside"];
    let beside = Recorded::new(&["--machine", "zen4"], &beside).report();
    let beside_s = waited_s(&beside, "program_file_wait_s");
    assert!(beside_s < 0.3 * all_s, "{beside_s} of {all_s}");
}

#[test]
fn phases_are_named() {
    if !needs(&[]) {
        return;
    }
    let program = [workloads(), "phases", "--bytes", "16MiB", "--cycles", "3"];
    let causes = causes(FAST, &program);
    assert!(causes.iter().any(|kind| kind == "phases"), "{causes:?}");
}

/// Compiles a program in a folder and returns its path.
fn compiled_in(folder: &TempDir, name: &str, source: &str) -> String {
    let file = format!("{name}.c");
    memgauge_testing::compiled(folder.path(), &file, source, &["-O1"]).expect("gcc is installed")
}

/// Transposes a matrix of 512 rows and columns several times. Argument: elements from row to row.
const TRANSPOSE: &str = r#"
#include <stdlib.h>
enum { N = 512 };
int main(int argc, char **argv) {
    size_t pitch = atol(argv[argc - 1]);
    double *from = calloc(N * pitch, 8), *to = calloc(N * pitch, 8);
    for (int pass = 0; pass < 6; pass++)
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < N; j++) to[i * pitch + j] = from[j * pitch + i];
    return to[7] != 0;
}
"#;

/// The rows that it writes are in order between the columns that it reads.
#[test]
fn columns_of_rows_a_power_of_two_apart_conflict_also_beside_data_in_order() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled_in(&folder, "transpose", TRANSPOSE);
    let of_pitch = |pitch| causes(FAST, &[&program, pitch]);
    assert_eq!(of_pitch("512")[0], "cache_conflicts");
    let padded = of_pitch("520");
    assert!(
        !padded.contains(&"cache_conflicts".to_owned()),
        "{padded:?}"
    );
}

/// Fills 16 MiB in order, then reads 64-byte lines of it: `random` of them in no order, each of which
/// determines the next, and all of them in order `passes` times.
const FILL_THEN_READ: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    size_t n = 16 << 20, random = atol(argv[1]), passes = atol(argv[2]);
    unsigned char *bytes = malloc(n);
    for (size_t i = 0; i < n; i++) bytes[i] = i;
    unsigned long x = atol(argv[3]), sum = argc;
    for (size_t i = 0; i < random; i++) {
        x = x * 6364136223846793005UL + bytes[x >> 40] + 1;
        sum += x;
    }
    for (size_t pass = 0; pass < passes; pass++)
        for (size_t i = 0; i < n; i += 8) sum += *(unsigned long *)(bytes + i);
    printf("%lu\n", sum);
    return 0;
}
"#;

#[test]
fn filling_memory_does_not_hide_how_it_is_read() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled_in(&folder, "fill", FILL_THEN_READ);
    let seed = format!("{}", std::process::id());
    for (random, passes, expected) in [
        // A fifth of the lines, read in no order, against all that were filled in order.
        ("200000", "0", "latency_bound"),
        ("0", "8", "stream_bound"),
        // 200 000 irregular misses stall longer than 262 144 regular ones.
        ("200000", "1", "latency_bound"),
    ] {
        let found = causes(FAST, &[&program, random, passes, &seed]);
        assert_eq!(
            found.first().map(String::as_str),
            Some(expected),
            "{random} random reads, {passes} passes, seed {seed}: {found:?}"
        );
    }
}

/// Fills 64-byte lines of 32 MiB completely: 500 000 in no order, or all of them in order.
const FILL_LINES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct line { volatile long field[8]; };
int main(int argc, char **argv) {
    size_t n = 32 << 20 >> 6, in_order = strcmp(argv[1], "in-order") == 0;
    struct line *lines = aligned_alloc(64, n * sizeof *lines);
    unsigned long x = atol(argv[2]);
    for (size_t i = 0; i < 500000; i++) {
        x = x * 6364136223846793005UL + 1442695040888963407UL;
        struct line *line = &lines[in_order ? i : x >> 45];
        for (int field = 0; field < 8; field++) line->field[field] = i;
    }
    printf("%ld\n", lines[5].field[1] + argc);
    return 0;
}
"#;

#[test]
fn stores_to_whole_lines_in_no_order_are_no_stream() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled_in(&folder, "lines", FILL_LINES);
    let seed = format!("{}", std::process::id());
    for (order, expected) in [("random", "latency_bound"), ("in-order", "stream_bound")] {
        let found = causes(FAST, &[&program, order, &seed]);
        let first = found.first().map(String::as_str);
        assert_eq!(first, Some(expected), "{order}, seed {seed}: {found:?}");
    }
}

/// A sample of the corpus of `make test-long`, with sizes, machines and seeds drawn anew.
#[test]
fn first_findings_of_a_drawn_sample_of_the_corpus_are_right() {
    if !needs(&["gcc", "python3"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/long/causes");
    let run = std::process::Command::new(script)
        .args([
            "--memgauge",
            harness::PROGRAM,
            "--sample",
            "10",
            "--least-right",
            "0.9",
        ])
        .arg("--folder")
        .arg(folder.path())
        .output()
        .expect("python3 runs");
    let text = String::from_utf8_lossy(&run.stdout);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{text}\n{errors}");
    println!("{text}");
}

/// Looks up keys of a hash table that no cache holds, and copies blocks.
const LIBRARY_CALLS: &str = r#"
#include <cstdio>
#include <cstring>
#include <unordered_map>
#include <vector>
using Table = std::unordered_map<unsigned long, unsigned long>;
static unsigned long next(unsigned long x) { return x * 6364136223846793005UL + 1442695040888963407UL; }
__attribute__((noinline)) void fill(Table &table, unsigned long n) {
    for (unsigned long i = 0, x = 1; i < n; i++) table[x = next(x)] = i;
}
__attribute__((noinline)) unsigned long lookups(const Table &table, unsigned long n) {
    unsigned long sum = 0;
    for (int pass = 0; pass < 4; pass++)
        for (unsigned long i = 0, x = 1; i < n; i++) {
            x = next(x);
            auto found = table.find(x), other = table.find(x + 1), third = table.find(x + 2);
            sum += (found != table.end() ? found->second : 0) + (other != third);
        }
    return sum;
}
__attribute__((noinline)) void shift(std::vector<char> &to, std::vector<char> &from, int n) {
    for (int i = 0; i < n; i++) {
        memcpy(to.data(), from.data(), to.size());
        from[i] = to[i + 1];
    }
}
int main(int argc, char **argv) {
    unsigned long sum = 0;
    if (argv[1][0] == 'l') {
        Table table;
        fill(table, 30000);
        sum = lookups(table, 30000);
    } else {
        std::vector<char> to(4 << 20), from(4 << 20, argc);
        shift(to, from, 20);
        sum = to[7];
    }
    printf("%lu\n", sum);
}
"#;

/// The program has no debug information, and no stacks are recorded.
#[test]
fn code_of_libraries_counts_for_the_function_that_calls_it() {
    if !needs(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = "library_calls.cc";
    let program = memgauge_testing::compiled(folder.path(), file, LIBRARY_CALLS, &["-O2"]);
    let program = program.expect("g++ is installed");
    let finding = |work: &str| {
        let recorded = Recorded::new(&["--machine", "i5-6600k"], &[&program, work]);
        let text = harness::report_text(&recorded.path());
        text.split_whitespace().collect::<Vec<&str>>().join(" ")
    };
    let lookups = finding("lookups");
    assert!(
        lookups.contains("in lookups() (most in std::_Hashtable<>::"),
        "{lookups}"
    );
    // Without the C library's symbols, only its name is known.
    let copies = finding("copies");
    assert!(
        copies.contains("in shift() (most in __mem") || copies.contains("libc.so.6 [no symbols]"),
        "{copies}"
    );
}
