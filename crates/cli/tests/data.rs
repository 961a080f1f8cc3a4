//! Misses by data and memory by allocation are exact for programs with known accesses, and agree with DHAT.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{PATH, Recorded, drawn, memgauge, needs, report_text};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A function for each way to get memory. Arguments: a number of blocks and their size.
const WAYS: &str = r#"
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>
#define APART __attribute__((noinline))
static int n;
static size_t size;
static void *volatile sink;
struct Pair { long a, b; };
extern "C" {
struct Pool { char *at; };
APART void *pool_get(Pool *pool, size_t bytes) { void *p = pool->at; pool->at += bytes; sink = malloc(16); free(sink); return p; }
APART void pool_put(Pool *pool, void *p) { sink = p; }
}
APART static void keep_all(void **all) { for (int i = 0; i < n; i++) all[i] = malloc(size); }
APART static void drop_all(void **all) { for (int i = 0; i < n; i++) free(all[i]); }
APART static void zeroed() { for (int i = 0; i < n; i++) sink = calloc(size, 2); }
APART static void grow() {
    char *p = NULL;
    for (int i = 1; i <= n; i++) p = (char *)realloc(p, i * size);
    free(p);
}
APART static void aligned() {
    for (int i = 0; i < n; i++) {
        void *p;
        if (posix_memalign(&p, 64, size) == 0) sink = p;
        free(p);
        sink = aligned_alloc(64, 64);
        free(sink);
    }
}
APART static void objects() { for (int i = 0; i < n; i++) { Pair *p = new Pair; sink = p; delete p; } }
APART static void arrays() { for (int i = 0; i < n; i++) { Pair *p = new Pair[3]; sink = p; delete[] p; } }
APART static void fill_vector() {
    std::vector<long> all;
    for (int i = 0; i < 1024; i++) all.push_back(i);
    sink = all.data();
}
APART static void fail_and_go_on() {
    volatile size_t huge = (size_t)1 << 60;
    try { sink = ::operator new(huge); } catch (std::bad_alloc &) { sink = 0; }
    for (int i = 0; i < n; i++) { void *p = malloc(size + 1); sink = p; free(p); }
}
APART static void jump_and_go_on() {
    jmp_buf back;
    if (!setjmp(back)) { sink = malloc(size + 2); free(sink); longjmp(back, 1); }
    for (int i = 0; i < n; i++) { void *p = malloc(size + 2); sink = p; free(p); }
}
APART static void *in_thread(void *) { for (int i = 0; i < n; i++) { void *p = malloc(size + 3); sink = p; free(p); } return 0; }
APART static void in_child() { for (int i = 0; i < n; i++) sink = malloc(size + 4); }
APART static void from_pool() {
    static char memory[1 << 20];
    Pool pool = { memory };
    for (int i = 0; i < n; i++) pool_put(&pool, pool_get(&pool, 32));
}
int main(int argc, char **argv) {
    n = atoi(argv[1]);
    size = atoi(argv[2]);
    bool alone = argc > 3;
    void **all = (void **)malloc(n * sizeof *all);
    keep_all(all);
    drop_all(all);
    zeroed();
    aligned();
    objects();
    arrays();
    fill_vector();
    if (alone) return 0;
    grow();
    fail_and_go_on();
    jump_and_go_on();
    from_pool();
    pthread_t thread[3];
    for (auto &t : thread) pthread_create(&t, 0, in_thread, 0);
    for (auto &t : thread) pthread_join(t, 0);
    if (fork() == 0) { in_child(); _exit(0); }
    wait(0);
    return 0;
}
"#;

fn compiled(folder: &Path, source: &str, flags: &[&str]) -> String {
    memgauge_testing::compiled(
        folder,
        "program.cpp",
        source,
        &[&["-g", "-pthread", "-w"], flags].concat(),
    )
    .expect("gcc is installed")
}

/// Sums over the allocation sites that a function names.
#[derive(Debug, Default, PartialEq, Eq)]
struct Site {
    allocations: u64,
    bytes: u64,
    frees: u64,
    live: u64,
}

fn site(report: &Value, function: &str) -> Site {
    let sites = report["heap"]["sites"].as_array().expect("sites").iter();
    let named = |site: &&Value| {
        let by = site["named_by"].as_u64().expect("a number") as usize;
        let name = site["calls"][by]["function"].as_str().unwrap_or("");
        name == function || name.starts_with(&format!("{function}("))
    };
    let mut sum = Site::default();
    for site in sites.filter(named) {
        let get = |field: &str| site[field].as_u64().expect("a number");
        sum.allocations += get("allocations");
        sum.bytes += get("bytes");
        sum.frees += get("frees");
        sum.live += get("live_bytes");
    }
    sum
}

#[test]
fn allocations_of_every_kind_are_counted_where_they_are_made() {
    if !needs(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (n, size) = (drawn("blocks", 100, 600), drawn("bytes", 40, 3000));
    for (flags, is_static) in [(&["-O1"][..], false), (&["-O2", "-static"], true)] {
        let program = compiled(folder.path(), WAYS, flags);
        let options = ["--alloc", "pool_get:size=arg1", "--free", "pool_put:arg1"];
        let recorded = Recorded::new(&options, &[program, n.to_string(), size.to_string()]);
        assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
        let report = recorded.report();
        assert_eq!(report["losses"], serde_json::json!([]));
        let freed = |allocations: u64, bytes: u64| Site {
            allocations,
            bytes,
            frees: allocations,
            live: 0,
        };
        let check = |function: &str, expected: Site| {
            assert_eq!(
                site(&report, function),
                expected,
                "{function}, static: {is_static}"
            );
        };
        check("keep_all", freed(n, n * size));
        check(
            "zeroed",
            Site {
                allocations: n,
                bytes: 2 * n * size,
                frees: 0,
                live: 2 * n * size,
            },
        );
        check("aligned", freed(2 * n, n * size + 64 * n));
        check("objects", freed(n, 16 * n));
        check("arrays", freed(n, 48 * n));
        // 1, 2, 4, … 1024 elements.
        check("fill_vector", freed(11, 8 * 2047));
        check("grow", freed(n, size * n * (n + 1) / 2));
        check("fail_and_go_on", freed(n, n * (size + 1)));
        check("jump_and_go_on", freed(n + 1, (n + 1) * (size + 2)));
        check("in_thread", freed(3 * n, 3 * n * (size + 3)));
        let child = site(&report, "in_child");
        assert_eq!((child.allocations, child.live), (n, n * (size + 4)));
        // Memory that the pool itself allocates is part of the pool.
        check("from_pool", freed(n, 32 * n));
        let folded = folded(&recorded.path(), "heap.bytes");
        let of_pool = folded.lines().filter(|line| line.contains(";from_pool"));
        let bytes = of_pool.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()));
        assert_eq!(bytes.sum::<Option<u64>>(), Some(32 * n), "{folded}");
        assert!(
            folded
                .lines()
                .any(|line| line.contains("main;from_pool") && line.contains(";pool_get "))
        );
    }
}

/// A pool that hands out pieces of memory from malloc, and functions named as in C++. Arguments: a
/// number of pieces and their size.
const POOL: &str = r#"
#include <cstdlib>
#include <cstring>
#define APART __attribute__((noinline))
namespace eng {
template <class T> struct Pool {
    char *at;
    APART void *get(size_t bytes) { void *p = at; at += bytes; return p; }
    APART void put(void *p) { *(volatile char *)p = 0; }
};
}
static eng::Pool<int> pool;
APART static void fill(int n, size_t size) {
    for (int i = 0; i < n; i++) memset(pool.get(size), 1, size);
}
int main(int argc, char **argv) {
    int n = atoi(argv[1]);
    size_t size = atoi(argv[2]);
    char *arena = (char *)malloc(16 << 20);
    pool.at = arena;
    fill(n, size);
    pool.put(arena);
    free(arena);
    return 0;
}
"#;

#[test]
fn a_pool_and_the_memory_that_it_is_made_of_are_both_counted() {
    if !needs(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), POOL, &["-O1"]);
    let (n, size) = (drawn("pieces", 100, 600), 8 * drawn("words", 20, 500));
    let get = ["--alloc", "eng::Pool<int>::get:size=arg1"];
    let put = ["--free", "eng::Pool<int>::put:arg1"];
    let missing = [
        "--alloc",
        "eng::none::get:size=arg0",
        "--free",
        "nosuch:arg0",
    ];
    let options = [get, put, [missing[0], missing[1]], [missing[2], missing[3]]].concat();
    let recorded = Recorded::new(&options, &[program, n.to_string(), size.to_string()]);
    let report = recorded.report();
    let at_peak = |function: &str| {
        let sites = report["heap"]["sites"].as_array().expect("sites").iter();
        let mut sites = sites.filter(|site| {
            let name = site["name"].as_str().unwrap_or_default();
            name.starts_with(&format!("{function} at "))
        });
        sites.next().and_then(|site| site["at_peak_bytes"].as_u64())
    };
    assert_eq!(at_peak("main"), Some(16 << 20));
    assert_eq!(at_peak("fill"), Some(n * size));
    let fill = site(&report, "fill");
    assert_eq!((fill.allocations, fill.frees, fill.live), (n, n, 0));
    assert_eq!(site(&report, "main").frees, 1);
    assert_eq!(report["totals"].get("heap.unknown_frees"), None);
    let named = report["heap"].to_string().contains("(eng::Pool<int>::get)");
    assert!(named, "{}", report["heap"]);
    for name in ["eng::none::get", "nosuch"] {
        let message = format!("there is no function `{name}`");
        assert!(recorded.said().contains(&message), "{}", recorded.said());
    }
}

/// Two arenas of blocks from `malloc`, cleared after each of several rounds. Arguments: rounds, pieces
/// of a round, and their size. Every fourth piece is freed by itself.
const ARENAS: &str = r#"
#include <cstdlib>
#include <cstring>
#define APART __attribute__((noinline))
struct arena { char *block, *at; };
extern "C" {
APART void *arena_get(arena *a, size_t bytes) { void *p = a->at; a->at += bytes; return p; }
APART void arena_put(void *p) { *(volatile char *)p = 0; }
APART void arena_clear(arena *a) { a->at = a->block; }
APART void arena_end(arena *a) { free(a->block); a->block = a->at = 0; }
}
APART static void begin(arena *a) { a->block = a->at = (char *)malloc(8 << 20); }
APART static void short_lived(arena *a, int n, size_t size) {
    for (int i = 0; i < n; i++) {
        void *p = memset(arena_get(a, size), 1, size);
        if (i % 4 == 3) arena_put(p);
    }
}
APART static void long_lived(arena *a, int n, size_t size) {
    for (int i = 0; i < n; i++) memset(arena_get(a, 2 * size), 1, 2 * size);
}
int main(int argc, char **argv) {
    int rounds = atoi(argv[1]), n = atoi(argv[2]);
    size_t size = atoi(argv[3]);
    static arena few, many;
    begin(&few);
    begin(&many);
    for (int i = 0; i < rounds; i++) {
        long_lived(&many, n, size);
        short_lived(&few, n, size);
        arena_clear(&few);
    }
    arena_end(&few);
    return 0;
}
"#;

#[test]
fn a_reset_frees_what_its_arena_still_holds() {
    if !needs(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), ARENAS, &["-O1"]);
    let (rounds, n) = (drawn("rounds", 3, 9), 4 * drawn("fours", 5, 60));
    let size = 8 * drawn("words", 2, 100);
    let options = [
        ["--alloc", "arena_get:size=arg1,arena=arg0"],
        ["--free", "arena_put:arg0"],
        ["--reset", "arena_clear:arg0"],
        ["--reset", "arena_end:arena=arg0"],
    ];
    let arguments = [rounds, n, size].map(|number| number.to_string());
    let command = [&[program][..], &arguments].concat();
    let recorded = Recorded::new(&options.concat(), &command);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let report = recorded.report();
    let pieces = rounds * n;
    let short = site(&report, "short_lived");
    assert_eq!(
        (short.allocations, short.frees, short.live),
        (pieces, pieces, 0)
    );
    let long = site(&report, "long_lived");
    assert_eq!(
        (long.allocations, long.frees, long.live),
        (pieces, 0, 2 * size * pieces)
    );
    // `arena_end` frees one block.
    let blocks = site(&report, "begin");
    assert_eq!((blocks.allocations, blocks.frees), (2, 1));
    assert_eq!(report["totals"].get("heap.unknown_frees"), None);
    let sites = report["heap"]["sites"].as_array().expect("sites").iter();
    let at_peak = |function: &str| {
        let mut sites = sites.clone().filter(|site| {
            let name = site["name"].as_str().unwrap_or_default();
            name.starts_with(&format!("{function} at "))
        });
        sites.next().and_then(|site| site["at_peak_bytes"].as_u64())
    };
    // The last round, before its fourth pieces are put back or its last piece is.
    assert_eq!(at_peak("long_lived"), Some(2 * size * pieces));
    let kept = (n / 4 - 1) * 3 * size + 4 * size;
    assert_eq!(at_peak("short_lived"), Some(kept));
    let text = report_text(&recorded.path());
    let words: Vec<&str> = text.split_whitespace().collect();
    let label = "is freed by arena_clear, arena_end: lifetimes end there.";
    assert!(words.join(" ").contains(label), "{text}");
    // A reset of memory that nothing allocates from is a mistake.
    let alone = Recorded::new(&["--reset", "arena_clear:arg0"], &command);
    assert_eq!(alone.code(), Some(2), "{}", alone.said());
}

/// Four threads. Each has a block of its own for most of its life.
const BLOCKS: &str = r#"
#include <cstdlib>
#include <pthread.h>
static const size_t size = 3 << 20;
static void *work(void *) {
    volatile char *block = (char *)malloc(size);
    for (int pass = 0; pass < 4; pass++)
        for (size_t i = 0; i < size; i += 64) block[i]++;
    free((void *)block);
    return 0;
}
int main() {
    pthread_t thread[4];
    for (auto &t : thread) pthread_create(&t, 0, work, 0);
    for (auto &t : thread) pthread_join(t, 0);
    return 0;
}
"#;

/// The threads start within a microsecond of virtual time. On the host one may end before the next
/// one begins. A busy host may delay a thread's start in virtual time, too, so the blocks of one run
/// of several must all overlap.
#[test]
fn blocks_that_are_in_use_at_the_same_virtual_time_add_up_to_the_peak() {
    if !needs(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), BLOCKS, &["-O1"]);
    let mut peaks = Vec::new();
    while !peaks.iter().any(|peak| (12 << 20..13 << 20).contains(peak)) {
        assert!(peaks.len() < 12, "{peaks:?}");
        let recorded = Recorded::new(&["--machine", "zen4"], &[program.as_str()]);
        let report = recorded.report();
        let peak = count(&report["totals"], "heap.peak_bytes");
        assert!((3 << 20..13 << 20).contains(&peak), "{peak}");
        assert_eq!(report["heap"]["at_peak_bytes"], peak);
        assert_eq!(count(&report["totals"], "heap.late_changes"), 0);
        peaks.push(peak);
    }
}

#[test]
fn a_stripped_static_program_is_told_why_it_has_no_heap() {
    if !needs(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), BLOCKS, &["-O1", "-static", "-s"]);
    let recorded = Recorded::new(&[], &[program.as_str()]);
    let text = report_text(&recorded.path());
    assert!(text.contains("Heap: unknown"), "{text}");
    assert!(
        text.contains("no file of the program has the symbol"),
        "{text}"
    );
}

fn folded(recording: &Path, event: &str) -> String {
    let mut export = memgauge();
    export.arg("export").arg(recording);
    let output = export.args(["-f", "folded", "-e", event]).output();
    let output = output.expect("memgauge runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn bytes_and_blocks_are_those_that_dhat_counts() {
    if !needs(&["g++", "valgrind"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (n, size) = (drawn("blocks", 100, 600), drawn("bytes", 40, 3000));
    let program = compiled(folder.path(), WAYS, &["-O1"]);
    let arguments = [n.to_string(), size.to_string(), "alone".to_owned()];
    let out = folder.path().join("dhat.json");
    let mut dhat = Command::new("valgrind");
    let as_it_ends = ["--run-libc-freeres=no", "--run-cxx-freeres=no"];
    dhat.args(["-q", "--tool=dhat"]).args(as_it_ends);
    dhat.arg(format!("--dhat-out-file={}", out.display()));
    dhat.arg(&program)
        .args(&arguments)
        .env_clear()
        .env("PATH", PATH);
    assert!(dhat.output().expect("valgrind runs").status.success());
    let dhat = std::fs::read(out).expect("a profile");
    let dhat: Value = serde_json::from_slice(&dhat).expect("it is JSON");
    let sum = |field: &str| -> u64 {
        let points = dhat["pps"].as_array().expect("program points").iter();
        points.filter_map(|point| point[field].as_u64()).sum()
    };
    let mut command = vec![program];
    command.extend(arguments);
    let report = Recorded::new(&[], &command).report();
    let heap = |field: &str| report["heap"][field].as_u64().expect("a number");
    assert_eq!(heap("allocations"), sum("tbk"));
    assert_eq!(heap("bytes"), sum("tb"));
    assert_eq!(heap("at_peak_bytes"), sum("gb"));
    assert_eq!(heap("live_bytes"), sum("eb"));
}

/// Three arrays, one of which is read at random so that each read determines the next, a variable,
/// and a stack that causes no stalls.
const ARRAYS: &str = r#"
#include <cstdlib>
#include <cstdio>
static long table[1 << 20];
__attribute__((noinline)) static long *cold() { return (long *)malloc(8 << 20); }
__attribute__((noinline)) static long *hot() { return (long *)malloc(8 << 20); }
int main(int argc, char **argv) {
    size_t n = 1 << 20, reads = atol(argv[2]), of_table = atol(argv[3]);
    long *a = cold(), *b = hot(), *c = cold(), sum = 0;
    for (size_t i = 0; i < n; i++) { a[i] = i; b[i] = i; c[i] = i; table[i] = i; }
    unsigned long x = atol(argv[1]);
    for (size_t i = 0; i < reads; i++) {
        x = x * 6364136223846793005UL + 1442695040888963407UL + b[(x >> 40) % n];
        sum += x >> 40;
    }
    for (size_t i = 0; i < of_table; i++) {
        x = x * 6364136223846793005UL + 1442695040888963407UL + table[(x >> 40) % n];
        sum += x >> 40;
    }
    printf("%ld\n", sum);
    return 0;
}
"#;

fn count(counts: &Value, event: &str) -> u64 {
    counts[event].as_u64().unwrap_or(0)
}

#[test]
fn the_array_that_is_waited_for_comes_first_and_all_data_adds_up() {
    if !needs(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), ARRAYS, &["-O1"]);
    let seed = drawn("seed", 1, 1 << 40).to_string();
    let machine = ["--machine", "i5-6600k"];
    for (reads, of_table, first) in [
        ("300000", "1000", "hot at program.cpp:6 (malloc)"),
        ("1000", "300000", "table (program)"),
    ] {
        let recorded = Recorded::new(&machine, &[program.as_str(), &seed, reads, of_table]);
        let report = recorded.report();
        let (data, totals) = (&report["data"], &report["totals"]);
        assert_eq!(data["rows"][0]["name"], first);
        let share = data["rows"][0]["share"].as_f64().expect("a share");
        assert!(share > 0.5, "{share}");
        let text = report_text(&recorded.path());
        assert!(text.contains("Data by stalled cycles"), "{text}");
        assert!(text.contains(first), "{text}");
        for event in [
            "l1d.miss",
            "l2.miss",
            "llc.miss",
            "dtlb.miss",
            "dram.read_bytes",
        ] {
            assert_eq!(
                count(&data["totals"], event),
                count(totals, event),
                "{event}"
            );
        }
        for event in ["stall.llc", "stall.dram", "stall.tlb", "stall.stores"] {
            let (data, all) = (count(&data["totals"], event), count(totals, event));
            assert!(data.abs_diff(all) <= 2, "{event}: {data} of {all}");
        }
    }
}

/// Loads and stores each element of blocks from different functions a known number of times.
const COUNTED: &str = r#"
#include <stdlib.h>
#include <string.h>
#define APART __attribute__((noinline))
static volatile long table[512] __attribute__((aligned(64)));
APART static volatile long *make_loaded(long n) { return (long *)malloc(8 * n); }
APART static volatile long *make_stored(long n) { return (long *)malloc(8 * n); }
APART static volatile long *make_both(long n) { return (long *)malloc(8 * n); }
APART static char *make_source(long n) { return (char *)malloc(n); }
APART static char *make_copy(long n) { return (char *)malloc(n); }
APART static volatile long *make_early() { return (long *)malloc(24); }
APART static volatile long *make_late() { return (long *)malloc(24); }
int main(int argc, char **argv) {
    long n = atol(argv[1]);
    volatile long *loaded = make_loaded(n), *stored = make_stored(n), *both = make_both(n);
    for (long i = 0; i < n; i++) loaded[i];
    for (long i = 0; i < n; i++) stored[i] = i;
    for (long i = 0; i < n; i++) asm volatile("addq $1, (%0)" : : "r"(both + i) : "memory");
    for (long i = 0; i < n; i++) asm volatile("addq $1, (%0)" : : "r"(table + i % 512) : "memory");
    char *from = make_source(n), *to = make_copy(n);
    long left = n;
    asm volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(left) : : "memory");
    for (long i = 0; i < n; i++) {
        volatile long *early = make_early();
        early[2] = i;
        early[2];
        free((void *)early);
        volatile long *late = make_late();
        late[1];
        late[1];
        late[2];
        free((void *)late);
    }
    return 0;
}
"#;

#[test]
fn loads_and_stores_are_counted_by_data_if_that_is_wanted() {
    if !needs(&["g++"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), COUNTED, &["-O1"]);
    let n = drawn("elements", 1000, 30_000);
    let command = [program.as_str(), &n.to_string()];
    let recorded = Recorded::new(&["--data-accesses"], &command);
    let report = recorded.report();
    let rows = report["data"]["rows"].as_array().expect("rows");
    let of = |name: &str| {
        let mut named = rows.iter().filter(|row| {
            let full = row["name"].as_str().expect("a name");
            full.starts_with(name)
        });
        let counts = &named.next().unwrap_or_else(|| panic!("no {name}"))["counts"];
        assert!(named.next().is_none(), "{name} twice");
        (count(counts, "loads"), count(counts, "stores"))
    };
    assert_eq!(of("make_loaded"), (n, 0));
    assert_eq!(of("make_stored"), (0, n));
    assert_eq!(of("make_both"), (n, n));
    assert_eq!(of("table"), (n, n));
    assert_eq!(of("make_source"), (n, 0));
    assert_eq!(of("make_copy"), (0, n));
    assert_eq!(of("make_early"), (n, n));
    assert_eq!(of("make_late"), (3 * n, 0));
    for event in ["loads", "stores", "l1d.miss"] {
        let (data, all) = (&report["data"]["totals"], &report["totals"]);
        assert_eq!(count(data, event), count(all, event), "{event}");
    }
    let text = report_text(&recorded.path());
    assert!(text.contains("LLC miss  loads  stores"), "{text}");
    let plain = Recorded::new(&[], &command).report();
    assert_eq!(plain["data"]["totals"]["loads"], Value::Null);
}

/// Each of two threads visits the lines of its own copy of a variable, and `main` those of three arrays.
const COPIES: &str = r#"
#include <pthread.h>
#include <stdlib.h>
struct line { long visits, rest[7]; };
static __thread __attribute__((aligned(64))) struct line own[LINES];
static __thread volatile long single;
static struct line first[LARGE], second[LARGE], third[LARGE];
static int rounds;
static void visit(struct line *all, int lines) { for (int i = 0; i < lines; i++) all[i].visits++; }
static void *in_thread(void *) {
    for (int round = 0; round < rounds; round++) visit(own, LINES);
    single++;
    return 0;
}
int main(int argc, char **argv) {
    rounds = atoi(argv[1]);
    visit(first, LARGE); visit(second, LARGE); visit(third, LARGE);
    pthread_t thread[2];
    for (auto &t : thread) pthread_create(&t, 0, in_thread, 0);
    for (auto &t : thread) pthread_join(t, 0);
    return 0;
}
"#;

#[test]
fn thread_local_and_large_variables_are_named_and_have_their_own_misses() {
    if !needs(&["g++"]) {
        return;
    }
    // Both exceed the first level, and the large ones exceed what is charged by line.
    let lines = drawn("lines", 2000, 4000);
    let large = drawn("large", 120_000, 140_000);
    let rounds = drawn("rounds", 3, 6);
    let defines = [format!("-DLINES={lines}"), format!("-DLARGE={large}")];
    for link in [&[][..], &["-static"], &["-no-pie"]] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let flags = [&["-O1", &*defines[0], &*defines[1]], link].concat();
        let program = compiled(folder.path(), COPIES, &flags);
        let recorded = Recorded::new(
            &["--machine", "i5-6600k"],
            &[&*program, &rounds.to_string()],
        );
        let report = recorded.report();
        let misses = |name: &str| {
            let mut rows = report["data"]["rows"].as_array().expect("rows").iter();
            let named = |row: &&Value| row["name"] == format!("{name} (program)");
            let row = rows.find(named);
            let row = row.unwrap_or_else(|| panic!("{link:?}: no {name}: {}", report["data"]));
            count(&row["counts"], "l1d.miss")
        };
        for name in ["first", "second", "third"] {
            // A page with the end of one array and the start of the next counts for the first.
            assert!(
                misses(name).abs_diff(large) <= 64,
                "{link:?} {name}: {} of {large}",
                misses(name)
            );
        }
        let visits = 2 * rounds * lines;
        // Before that, the C library clears the three copies, and it writes control blocks after
        // them.
        let cleared = 3 * (lines + 256);
        let found = misses("own");
        assert!(
            (visits..=visits + cleared).contains(&found),
            "{link:?}: {found} of {visits}"
        );
        let mut types = report["types"]["rows"].as_array().expect("rows").iter();
        let line = types.find(|row| row["name"] == "line").expect("a type");
        let loads = 3 * large + visits;
        assert_eq!(count(&line["counts"], "loads"), loads, "{link:?}");
    }
}

#[test]
fn recordings_without_data_have_no_tables_of_it() {
    if !needs(&["ls"]) {
        return;
    }
    let recorded = Recorded::new(&["--no-data"], &["ls", "/"]);
    let report = recorded.report();
    assert_eq!(
        (&report["data"], &report["heap"]),
        (&Value::Null, &Value::Null)
    );
    assert!(report_text(&recorded.path()).contains("Hottest memory regions"));
}

/// Three arrays from one function.
const THREE: &str = r#"
#include <cstdio>
#include <cstdlib>
int main(int, char **arguments) {
    long n = atol(arguments[1]);
    char *first = (char *)malloc(n);
    char *second = (char *)malloc(2 * n);
    char *third = (char *)malloc(3 * n);
    for (long i = 0; i < n; i += 64) first[i] = second[i] = third[i] = 1;
    printf("%p %p %p\n", first, second, third);
    return 0;
}
"#;

#[test]
fn calls_without_lines_have_offsets_that_lead_to_their_lines() {
    if !needs(&["g++", "addr2line"]) {
        return;
    }
    let [described, plain, stripped] = [&["-O1"][..], &["-O1", "-g0"], &["-O1", "-g0", "-s"]]
        .map(|flags| (tempfile::tempdir().expect("a temporary folder"), flags));
    let described = (
        compiled(described.0.path(), THREE, described.1),
        described.0,
    );
    let bytes = drawn("bytes", 10_000, 1_000_000);
    let expected = [(1, 6), (2, 7), (3, 8)].map(|(times, line)| (times * bytes, line));
    for (folder, flags) in [plain, stripped] {
        let program = compiled(folder.path(), THREE, flags);
        let recorded = Recorded::new(&[], &[&program, &bytes.to_string()]);
        let report = recorded.report();
        let sites = report["heap"]["sites"].as_array().expect("sites");
        let mut found: Vec<(u64, u64)> = Vec::new();
        for site in sites {
            let (name, call) = (site["name"].as_str().expect("a name"), &site["calls"][0]);
            if call["module"].as_str() != Some(&program) {
                continue;
            }
            let offset = call["offset"].as_u64().expect("an offset");
            let place = format!("program+{offset:#x} (malloc)");
            let of_function = format!("main at {place}");
            let is_stripped = flags.contains(&"-s");
            assert_eq!(name, if is_stripped { &place } else { &of_function });
            let mut addr2line = Command::new("addr2line");
            addr2line.args(["-e", &described.0, &format!("{offset:#x}")]);
            let output = addr2line.output().expect("addr2line runs");
            let line = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = line
                .trim()
                .rsplit(':')
                .next()
                .and_then(|line| line.parse().ok());
            found.push((
                site["bytes"].as_u64().expect("bytes"),
                line.expect("a line"),
            ));
        }
        found.sort_unstable();
        assert_eq!(found, expected, "{flags:?}: {sites:?}");
    }
}
