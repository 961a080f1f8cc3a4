//! Cache lines that threads share: programs with known sharing, each with a twin that has the same
//! threads and no shared line.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{PATH, Recorded, drawn, memgauge, needs, report, report_text};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each thread works on data of its own. `APART` gives the data separate lines.
const SHAPES: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#ifdef APART
#define OWN __attribute__((aligned(64)))
#else
#define OWN
#endif
#define SHAPE(n) (SHAPE_NUMBER == n)
#if SHAPE(0)
static struct { OWN volatile long count; } counters[THREADS] __attribute__((aligned(64)));
static void work(long me) { counters[me].count++; }
static void begin(void) {}
#elif SHAPE(1)
struct OWN sums { volatile double sum; };
static struct sums *sums;
static void begin(void) { sums = aligned_alloc(64, THREADS * 64); }
static void work(long me) { sums[me].sum = sums[me].sum + 1.5; }
#elif SHAPE(2)
static OWN volatile int first = 1;
static OWN volatile int second = 1;
static OWN volatile int third = 1;
static OWN volatile int fourth = 1;
static volatile int *const each[] = { &first, &second, &third, &fourth };
static void begin(void) {}
static void work(long me) { *each[me] += 3; }
#elif SHAPE(3)
static struct { OWN long count; } counters[THREADS] __attribute__((aligned(64)));
static void begin(void) {}
static void work(long me) { __atomic_fetch_add(&counters[me].count, 1, __ATOMIC_SEQ_CST); }
#else
// One field is read by all, another is written by one.
static struct { volatile long limit; OWN volatile long done; } job __attribute__((aligned(64))) = { 1L << 40, 0 };
static volatile long kept[THREADS * 8] __attribute__((aligned(64)));
static void begin(void) {}
static void work(long me) { if (me == 0) job.done++; else kept[8 * me] += job.limit; }
#endif
static void *run(void *me) { for (long i = 0; i < ROUNDS; i++) work((long)me); return 0; }
int main(void) {
    pthread_t threads[THREADS];
    begin();
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, (void *)i);
    for (long i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
}
"#;

/// Content of the shared line of each shape.
const NAMES: [&str; 5] = ["counters", "begin at", "(program)", "counters", "job"];

/// Two threads alternate: one stores a message, the other loads it. Pipes determine whose turn it
/// is.
const MESSAGES: &str = r#"
#include <pthread.h>
#include <unistd.h>
static struct { volatile long words[8]; } message __attribute__((aligned(64)));
static int there[2], back[2];
static char byte;
__attribute__((noinline)) static void post(long i) { message.words[MESSAGE] = i; }
__attribute__((noinline)) static long take(void) { return message.words[MESSAGE]; }
static void *reader(void *sum) {
    for (int i = 0; i < ROUNDS; i++) {
        read(there[0], &byte, 1);
        *(long *)sum += take();
        write(back[1], &byte, 1);
    }
    return 0;
}
int main(void) {
    long sum = 0;
    char other;
    pthread_t thread;
    pipe(there);
    pipe(back);
    pthread_create(&thread, 0, reader, &sum);
    for (int i = 0; i < ROUNDS; i++) {
        post(i);
        write(there[1], &other, 1);
        read(back[0], &other, 1);
    }
    pthread_join(thread, 0);
    return sum != (long)ROUNDS * (ROUNDS - 1) / 2;
}
"#;

/// Threads add to one counter.
const SHARED_COUNTER: &str = r#"
#include <pthread.h>
static long counter;
static void *run(void *unused) { for (int i = 0; i < ROUNDS; i++) __atomic_fetch_add(&counter, 1, __ATOMIC_SEQ_CST); return 0; }
int main(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return counter != (long)THREADS * ROUNDS;
}
"#;

fn compiled(folder: &Path, source: &str, definitions: &[(&str, u64)], is_apart: bool) -> String {
    let definitions = definitions.iter();
    let definitions = definitions.map(|(name, value)| format!("-D{name}={value}"));
    let definitions: Vec<String> = definitions.collect();
    let mut flags = vec!["-O1", "-g", "-pthread", "-w"];
    flags.extend(definitions.iter().map(String::as_str));
    flags.extend(is_apart.then_some("-DAPART"));
    memgauge_testing::compiled(folder, "program.c", source, &flags).expect("gcc is installed")
}

fn recorded(program: &str) -> Recorded {
    let run = Recorded::new(&["--machine", "zen4"], &[program]);
    assert_eq!(run.code(), Some(0), "{}", run.said());
    run
}

fn first_cause(report: &Value) -> &str {
    report["causes"][0]["kind"].as_str().unwrap_or("none")
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn false_sharing_is_the_first_cause_of_packed_data_and_none_of_padded() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (shape, name) in NAMES.iter().enumerate() {
        let definitions = [
            ("SHAPE_NUMBER", shape as u64),
            ("THREADS", drawn("threads", 2, 5)),
            ("ROUNDS", drawn("rounds", 600_000, 700_000)),
        ];
        let packed = recorded(&compiled(folder.path(), SHAPES, &definitions, false));
        let report = packed.report();
        assert_eq!(first_cause(&report), "false_sharing", "shape {shape}");
        let line = &report["sharing"]["lines"][0];
        let shown = line["name"].as_str().expect("a name");
        assert!(shown.contains(name), "shape {shape}: {shown}");
        assert!(
            number(line, "false_sharing") > 9 * number(line, "true_sharing"),
            "shape {shape}: {line}"
        );
        let text = report_text(&packed.path());
        assert!(text.contains("False sharing: "), "{text}");
        assert!(text.contains("Cache lines shared between threads"));

        let padded = recorded(&compiled(folder.path(), SHAPES, &definitions, true));
        let report = padded.report();
        assert_ne!(first_cause(&report), "false_sharing", "shape {shape}");
        let totals = padded.totals();
        assert!(
            totals["coherence.false_sharing"] < 100,
            "shape {shape}: {totals:?}"
        );
        assert!(!report_text(&padded.path()).contains("Cache lines shared"));
    }
}

#[test]
fn a_counter_that_all_threads_add_to_is_true_sharing() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let definitions = [
        ("THREADS", drawn("threads", 2, 5)),
        ("ROUNDS", drawn("rounds", 600_000, 700_000)),
    ];
    let run = recorded(&compiled(
        folder.path(),
        SHARED_COUNTER,
        &definitions,
        false,
    ));
    let report = run.report();
    assert_eq!(first_cause(&report), "true_sharing");
    let sharing = &report["sharing"];
    assert!(number(sharing, "true_sharing") > 100 * number(sharing, "false_sharing"));
    let access = &sharing["lines"][0]["accesses"][0];
    assert_eq!(access["function"], "run");
    assert_eq!(access["threads"].as_u64(), Some(definitions[0].1));
}

/// Each message is one miss of a modified line, of bytes that the other thread has stored, and
/// each answer takes the reader's copy.
#[test]
fn messages_between_threads_are_counted_one_by_one() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rounds = drawn("rounds", 500, 900);
    let word = drawn("word", 0, 8);
    let definitions = [("ROUNDS", rounds), ("MESSAGE", word)];
    let run = recorded(&compiled(folder.path(), MESSAGES, &definitions, false));
    let report = run.report();
    let lines = report["sharing"]["lines"].as_array().expect("lines");
    let holds_message = |line: &&Value| line["name"].as_str().unwrap_or("").contains("message");
    let line = lines
        .iter()
        .find(holds_message)
        .expect("the message's line");
    let accesses = line["accesses"].as_array().expect("accesses");
    let of = |function: &str| {
        let mut accesses = accesses.iter();
        let found = accesses.find(|access| access["function"] == function);
        found.unwrap_or_else(|| panic!("{function} in {line}"))
    };
    let (take, post) = (of("take"), of("post"));
    let bytes = serde_json::json!([{ "first": 8 * word, "last": 8 * word + 7 }]);
    assert_eq!((&take["loaded"], &post["stored"]), (&bytes, &bytes));
    assert_eq!(number(take, "hitm"), rounds);
    // Before the first message, no thread had lost the line. The bytes of the second message are
    // unknown.
    assert_eq!(number(take, "true_sharing"), rounds - 2);
    assert_eq!(number(line, "false_sharing"), 0);
    assert_eq!(number(post, "invalidating"), rounds - 2);
}

#[test]
fn stalls_for_other_cores_add_up_over_places_data_and_lines() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let definitions = [("SHAPE_NUMBER", 0), ("THREADS", 3), ("ROUNDS", 30_000)];
    let run = recorded(&compiled(folder.path(), SHAPES, &definitions, false));
    let report = run.report();
    let total = run.totals()["stall.sharing"] as u64;
    let near = |what: &str, sum: u64| {
        // Cores, places and lines each round down to cycles.
        assert!(sum.abs_diff(total) <= 8, "{what}: {sum} of {total}");
    };
    let functions = &report["hot"]["functions"];
    let rows = functions["rows"].as_array().expect("rows");
    let of_row = |row: &Value| row["counts"]["stall.sharing"].as_u64().unwrap_or(0);
    let others = functions["others"]["counts"]["stall.sharing"].as_u64();
    near(
        "functions",
        rows.iter().map(of_row).sum::<u64>() + others.unwrap_or(0),
    );
    near("data", number(&report["data"]["totals"], "stall.sharing"));
    near("lines", number(&report["sharing"], "stall_cycles"));
    let part = report["time"].as_array().expect("time").iter();
    let part = part.filter(|part| part["on"] == "sharing");
    near("time", part.map(|part| number(part, "cycles")).sum());
}

#[test]
fn a_gate_on_false_sharing_fails_for_packed_data_alone() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let definitions = [("SHAPE_NUMBER", 1), ("THREADS", 2), ("ROUNDS", 300_000)];
    let run = |is_apart| recorded(&compiled(folder.path(), SHAPES, &definitions, is_apart));
    let (packed, padded) = (run(false), run(true));
    let gated = |before: &Recorded, after: &Recorded| {
        let mut command = Command::new(harness::PROGRAM);
        command.arg("diff").arg(before.path()).arg(after.path());
        command.args(["--fail-if", "coherence.false_sharing > +1000"]);
        command.env("PATH", PATH);
        command.output().expect("memgauge runs").status.code()
    };
    assert_eq!(gated(&packed, &padded), Some(0));
    assert_eq!(gated(&padded, &packed), Some(1));
}

/// Samples of a run as perf.data, imported again.
fn sampled(program: &str, period: u64) -> (Recorded, PathBuf) {
    let event = format!("l1d.miss:{period}");
    let run = Recorded::new(&["--machine", "zen4", "-e", &event], &[program]);
    assert_eq!(run.code(), Some(0), "{}", run.said());
    let (file, imported) = (
        run.folder.path().join("perf.data"),
        run.folder.path().join("samples.mg"),
    );
    let did = |arguments: &[&str], paths: [&Path; 2]| {
        let mut command = memgauge();
        command
            .args(arguments)
            .arg(paths[0])
            .arg("-o")
            .arg(paths[1]);
        let output = command.output().expect("memgauge runs");
        assert!(output.status.success(), "{}", harness::said(&output));
    };
    did(&["export", "-f", "perf"], [&run.path(), &file]);
    did(&["import"], [&file, &imported]);
    (run, imported)
}

fn json(recording: &Path) -> Value {
    let output = report(recording);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", harness::said(&output)))
}

/// The model knows each transfer. Its samples are analysed in the same way as those of hardware.
#[test]
fn samples_estimate_the_sharing_of_the_model() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    // In the last shape one thread only stores, and no store misses.
    let shape = drawn("shape", 0, NAMES.len() as u64 - 1);
    let period = drawn("period", 31, 97);
    let definitions = [
        ("SHAPE_NUMBER", shape),
        ("THREADS", drawn("threads", 2, 5)),
        ("ROUNDS", drawn("rounds", 600_000, 700_000)),
    ];
    for (source, name) in [(SHAPES, NAMES[shape as usize]), (SHARED_COUNTER, "counter")] {
        let program = compiled(folder.path(), source, &definitions, false);
        let (run, imported) = sampled(&program, period);
        let (exact, estimate) = (&run.report()["sharing"], &json(&imported)["sharing"]);
        let (hitm, samples) = (
            number(exact, "hitm") as f64,
            number(estimate, "hitm_samples"),
        );
        let error = 6.0 * period as f64 * (hitm / period as f64).sqrt();
        let found = number(estimate, "hitm");
        assert_eq!(found, samples * period);
        assert!((found as f64 - hitm).abs() < error, "{found} for {hitm}");
        let line = &estimate["lines"][0];
        let shown = line["name"].as_str().expect("a name");
        // perf's format has no allocations.
        let name = if name == "begin at" { "[heap]" } else { name };
        assert!(shown.contains(name), "{shown} for {name}");
        assert_eq!(line["address"], exact["lines"][0]["address"]);
        let divided = ["false_sharing", "true_sharing"].map(|name| number(line, name));
        let (most, least) = match source == SHAPES {
            true => (divided[0], divided[1]),
            false => (divided[1], divided[0]),
        };
        assert!(most > 9 * least && most > 0, "{line}");
        let text = report_text(&imported);
        assert!(text.contains("estimated from samples, n = "), "{text}");
        let mut gate = memgauge();
        gate.arg("diff").args([&imported, &imported]);
        gate.args(["--fail-if", "coherence.hitm > 0"]);
        let code = gate.output().expect("memgauge runs").status.code();
        assert_eq!(code, Some(1));
    }
    let padded = compiled(folder.path(), SHAPES, &definitions, true);
    let (_run, imported) = sampled(&padded, period);
    let sharing = &json(&imported)["sharing"];
    let few = sharing["hitm_samples"].as_u64().unwrap_or(0);
    assert!(few < 20, "{sharing}");
}

/// A global with a drawn layout. Each thread adds to a member of its own element, at an address that
/// the program prints.
const MEMBERS: &str = r#"
#include <pthread.h>
#include <stdio.h>
struct point { char before[BEFORE]; struct { int x; long y; } inner[2]; };
struct counter { short pad[PAD]; int hits; union { long all; int half[2]; } sum; struct point at; };
struct counter counters[7] __attribute__((aligned(64)));
static void *one(void *me) { for (int i = 0; i < 400000; i++) __atomic_fetch_add(&counters[FIRST].hits, 1, __ATOMIC_SEQ_CST); return 0; }
static void *two(void *me) { for (int i = 0; i < 400000; i++) __atomic_fetch_add(&counters[SECOND].at.inner[INNER].y, 1, __ATOMIC_SEQ_CST); return 0; }
int main(void) {
    printf("%p %p\n", &counters[FIRST].hits, &counters[SECOND].at.inner[INNER].y);
    fflush(stdout);
    void *(*const work[])(void *) = { one, one, two, two };
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work[i], 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
}
"#;

#[test]
fn accesses_to_globals_name_the_element_and_the_member() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (first, second) = (drawn("first", 0, 7), drawn("second", 0, 7));
    let inner = drawn("inner", 0, 2);
    let definitions = [
        ("BEFORE", drawn("before", 1, 40)),
        ("PAD", drawn("pad", 1, 30)),
        ("FIRST", first),
        ("SECOND", second),
        ("INNER", inner),
    ];
    let run = recorded(&compiled(folder.path(), MEMBERS, &definitions, false));
    let printed = String::from_utf8_lossy(&run.output.stdout).into_owned();
    let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
    let addresses: Vec<u64> = printed
        .split_whitespace()
        .map_while(|text| address(text).ok())
        .collect();
    let report = run.report();
    let lines = report["sharing"]["lines"].as_array().expect("lines");
    let names = [
        ("one", format!("counters[{first}].hits")),
        ("two", format!("counters[{second}].at.inner[{inner}].y")),
    ];
    for ((function, name), address) in names.iter().zip(addresses) {
        let mut accesses = lines.iter().flat_map(|line| {
            let start = number(line, "address");
            let accesses = line["accesses"].as_array().expect("accesses").iter();
            accesses.map(move |access| (start, access))
        });
        let found = accesses.find(|(start, access)| {
            let byte = access["stored"][0]["first"].as_u64();
            access["function"] == *function && byte.is_some_and(|byte| start + byte == address)
        });
        let (_, access) = found.unwrap_or_else(|| panic!("{function} at {address:#x}: {lines:?}"));
        assert_eq!(access["member"], name.as_str(), "{access}");
    }
    let text = report_text(&run.path());
    assert!(text.contains(&names[0].1), "{text}");
}

/// Allocated memory with a drawn layout. Threads add to two of its members.
const ALLOCATED: &str = r#"
#include <pthread.h>
#include <stdlib.h>
struct worker { char pad[PAD]; long done; int bytes[2]; };
static void *one(void *p) { struct worker *w = p; for (int i = 0; i < 400000; i++) __atomic_fetch_add(&w->done, 1, __ATOMIC_SEQ_CST); return 0; }
static void *two(void *p) { struct worker *w = p; for (int i = 0; i < 400000; i++) __atomic_fetch_add(&w->bytes[1], 1, __ATOMIC_SEQ_CST); return 0; }
int main(void) {
    struct worker *w = aligned_alloc(64, 64);
    void *(*const work[])(void *) = { one, one, two, two };
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work[i], w);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
}
"#;

#[test]
fn accesses_to_allocated_memory_name_the_type_and_the_member() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let definitions = [("PAD", drawn("pad", 1, 32))];
    let run = recorded(&compiled(folder.path(), ALLOCATED, &definitions, false));
    let report = run.report();
    let lines = report["sharing"]["lines"].as_array().expect("lines");
    let accesses = || {
        lines
            .iter()
            .flat_map(|line| line["accesses"].as_array().into_iter().flatten())
    };
    for (function, member) in [("one", "worker.done"), ("two", "worker.bytes[]")] {
        let found = accesses().find(|access| access["function"] == function);
        let access = found.unwrap_or_else(|| panic!("{function}: {lines:?}"));
        assert_eq!(access["member"], member, "{access}");
    }
}
