//! `--what-if`: the same run on other machines and with other layouts of types, with the counts of
//! recordings on these machines and of programs with these layouts.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::Path;
use std::process::{Output, Stdio};

use harness::{Recorded, drawn, memgauge, report_text, totals_of, workloads, write_machine};
use serde_json::Value;

fn what_if<'a>(report: &'a Value, name: &str) -> &'a Value {
    let machines = report["what_if"].as_array().expect("other machines");
    let found = machines.iter().find(|machine| machine["name"] == name);
    found.unwrap_or_else(|| panic!("{name} in {machines:?}"))
}

/// The workload program with these arguments.
fn workload(arguments: &str) -> Vec<String> {
    let arguments = arguments.split_whitespace().map(str::to_owned);
    std::iter::once(workloads().to_owned())
        .chain(arguments)
        .collect()
}

#[test]
fn a_changed_machine_counts_as_a_run_on_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let machine = |name: &str, caches| {
        let path = folder.path().join(name);
        write_machine(&path, caches);
        path.to_str().expect("temporary paths are text").to_owned()
    };
    let levels = |l2: u64, llc: u64| [(32, 8), (l2, 8), (llc, 16)];
    let small = machine("small.json", levels(256, 1024));
    let steps = drawn("steps", 200_000, 300_000);
    let program = workload(&format!("rand --bytes 4MiB --steps {steps}"));
    let changed = Recorded::new(
        &["--machine", &small, "--what-if", "llc=4x,l2=2x"],
        &program,
    );
    let report = changed.report();
    for (name, caches) in [("llc=4x", levels(256, 4096)), ("l2=2x", levels(512, 1024))] {
        let other = machine("other.json", caches);
        let run = Recorded::new(&["--machine", &other], &program);
        let found = totals_of(&what_if(&report, name)["totals"]);
        let expected = run.totals();
        for (event, count) in found {
            assert_eq!(count, expected[&event], "{name}, {event}");
        }
    }
    // The recorded machine counts as if nothing else was modelled.
    let alone = Recorded::new(&["--machine", &small], &program);
    assert_eq!(changed.totals(), alone.totals());
    assert_eq!(
        changed.report()["hot"]["functions"]["rows"],
        alone.report()["hot"]["functions"]["rows"]
    );
}

#[test]
fn huge_pages_need_a_walk_for_each_two_mebibytes() {
    let steps = drawn("steps", 200_000, 300_000);
    let program = workload(&format!("rand --bytes 64MiB --steps {steps}"));
    let run = Recorded::new(&["--machine", "zen4", "--what-if", "all"], &program);
    let report = run.report();
    let huge = what_if(&report, "huge-pages");
    let walks = totals_of(&huge["totals"])["dtlb.walk"];
    // 32 pages of the memory; program, libraries and stack have some more.
    assert!((32..80).contains(&walks), "{walks}");
    assert!(run.totals()["dtlb.walk"] > 10_000);
    assert!(huge["relative"].as_f64() < Some(-0.05), "{huge}");
    let text = report_text(&run.path());
    let difference = huge["relative"].as_f64().expect("a number") * 100.0;
    let row = format!("{difference:+.1} %");
    let line = text.lines().find(|line| line.contains("pages of 2 MiB"));
    assert!(line.is_some_and(|line| line.contains(&row)), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Modelled change of the time: "), "{text}");
}

/// Random reads of 64 MiB, of which the program advises a part, and children, marks and new
/// mappings.
const ADVISES: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HUGE (2ul << 20)
#define BYTES (32 * HUGE)

int main(int count, char **arguments)
{
    const char *how = arguments[1];
    int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    unsigned long x = 88172645463325252ul, advised = atol(arguments[3]) * HUGE;
    char *all = mmap(0, BYTES + HUGE, protection, flags, -1, 0);
    char *memory = (char *)(((unsigned long)all + HUGE - 1) & ~(HUGE - 1));
    /* Half a page less has as many whole ones. */
    madvise(memory, advised + HUGE / 2, MADV_HUGEPAGE);
    if (strcmp(how, "not") == 0)
        madvise(memory, BYTES, MADV_NOHUGEPAGE);
    if (strcmp(how, "again") == 0) {
        munmap(memory, BYTES);
        mmap(memory, BYTES, protection, flags | MAP_FIXED, -1, 0);
    }
    if (strcmp(how, "child") == 0 && fork() != 0)
        return wait(0) < 0;
    for (long n = atol(arguments[2]); n > 0; n--) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        ((volatile char *)memory)[x % BYTES];
    }
    return 0;
}
"#;

#[test]
fn memory_that_a_program_advises_has_huge_pages() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), ADVISES, &[]);
    let steps = drawn("steps", 100_000, 200_000).to_string();
    // With more, the second level holds the rest, and only first uses are left.
    let advised = drawn("advised", 4, 24);
    let walks = |how: &str, advised: u64| {
        let program = [program.as_str(), how, &steps, &advised.to_string()];
        let run = Recorded::new(&["--machine", "zen4"], &program);
        assert_eq!(run.code(), Some(0), "{}", run.said());
        run.totals()["dtlb.walk"]
    };
    let small = walks("not", 32);
    assert_eq!(walks("again", 32), small);
    for how in ["keep", "child"] {
        let all = walks(how, 32);
        assert!((32..200).contains(&all), "{how}: {all} of {small}");
    }
    // The second level holds some pages of the smaller rest, so it has fewer walks than its share.
    let rest = walks("keep", advised) as f64 / small as f64;
    let share = 1.0 - advised as f64 / 32.0;
    let held = 3072.0 / (share * 16384.0);
    let expected = share * (1.0 - held).max(0.0) / (1.0 - 3072.0 / 16384.0);
    assert!((rest - expected).abs() < 0.03, "{rest} for {expected}");
}

#[test]
fn threads_execute_the_same_on_every_machine() {
    let program = workload("threads --threads 3 --steps 50k");
    let run = Recorded::new(
        &["--machine", "zen4", "--what-if", "machine=i5-6600k"],
        &program,
    );
    if run.code() != Some(0) {
        panic!("{}", run.said());
    }
    let report = run.report();
    let other = totals_of(&what_if(&report, "machine=i5-6600k")["totals"]);
    let own = run.totals();
    for event in ["instructions", "loads", "stores", "modifies", "splits"] {
        assert_eq!(other[event], own[event], "{event}");
    }
    let look_ups = |of: &harness::Totals| of["l1d.hit"] + of["l1d.miss"];
    assert_eq!(look_ups(&other), look_ups(&own));
}

#[test]
fn changes_that_cannot_be_made_are_refused_with_those_that_can() {
    let refused = |options: &[&str], words: &str| {
        let output = memgauge()
            .arg("record")
            .args(options)
            .args(["--", "true"])
            .output()
            .expect("memgauge runs");
        let said = harness::said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    };
    refused(&["--what-if", "faster"], "huge-pages, prefetch, l2=2x");
    refused(&["--what-if", "faster"], "split=TYPE.MEMBER");
    refused(&["--what-if", "llc=1x"], "llc=2x");
    refused(&["--what-if", "machine=z80"], "zen4");
    refused(&["--what-if", "all", "--sets", "1/8"], "--sets");
    refused(
        &["--what-if", "all", "--source", "clock"],
        "source clock has no use for",
    );
}

#[test]
fn advise_runs_a_program_on_the_common_machines_or_reads_a_recording() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("advised.mg");
    let program = workload("rand --bytes 64MiB --steps 200k");
    let run = |arguments: &[&str]| {
        let mut command = memgauge();
        command.arg("advise").args(arguments);
        command.output().expect("memgauge runs")
    };
    let path = path.to_str().expect("temporary paths are text");
    let program: Vec<&str> = program.iter().map(String::as_str).collect();
    let advised = run(&[&["--machine", "zen4", "-o", path, "--"], &program[..]].concat());
    let said = harness::said(&advised);
    assert_eq!(advised.status.code(), Some(0), "{said}");
    for words in [
        "What if",
        "pages of 2 MiB",
        "LLC twice as large",
        "In short",
    ] {
        assert!(said.contains(words), "{words} in {said}");
    }
    let again = run(&[path]);
    let shown = String::from_utf8_lossy(&again.stdout).into_owned();
    assert_eq!(again.status.code(), Some(0));
    let advice = |text: &str| {
        text[text.find("What if").expect("advice")..]
            .trim_end()
            .to_owned()
    };
    let said = advice(&said);
    let said = said.split("\n\nrecording: ").next().expect("text");
    assert_eq!(advice(&shown), said);
    let late = run(&["--what-if", "all", path]);
    assert_eq!(late.status.code(), Some(2), "{}", harness::said(&late));
}

#[test]
fn advise_models_no_other_machine_where_it_cannot() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("some-sets.mg");
    let program = workload("rand --bytes 1MiB --steps 20k");
    let mut command = memgauge();
    command.args(["advise", "--machine", "zen4", "--sets", "1/8", "-o"]);
    let output = command.arg(&path).arg("--").args(&program).output();
    let output = output.expect("memgauge runs");
    let said = harness::said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("In short") && !said.contains("What if"),
        "{said}"
    );

    let io =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recordings/io.mg");
    let refused = memgauge()
        .arg("advise")
        .arg(io)
        .output()
        .expect("memgauge runs");
    harness::check_line(&refused, 2, &["recording of I/O", "memgauge report"]);
}

/// Records of which one member is read in order, with a prefetch, and at random. `SPLIT` has the
/// others elsewhere.
const RECORDS: &str = r#"
#include <stdlib.h>
struct rest { char name[NAME]; long x; };
#ifdef SPLIT
struct rec { long key; };
#define REST(i) rests[i]
#else
struct rec { long key; struct rest rest; };
#define REST(i) recs[i].rest
#endif
int main(void) {
    long sum = 0, at = 0;
    struct rec *recs = calloc(COUNT, sizeof *recs);
#ifdef SPLIT
    struct rest *rests = calloc(COUNT, sizeof *rests);
#endif
    for (long i = 0; i < COUNT; i++) { recs[i].key = i * 7919 % COUNT; REST(i).x = i; REST(i).name[i % NAME] = i; }
    for (int k = 0; k < PASSES; k++) for (long i = 0; i < COUNT; i++) { __builtin_prefetch(&recs[i + 16].key); sum += recs[i].key; }
    for (long i = 0; i < 300000; i++) { at = recs[at].key; sum += at; }
    return sum == 1;
}
"#;

/// Each thread adds to a member of its own. `APART` gives the members separate lines.
const COUNTERS: &str = r#"
#include <pthread.h>
#ifdef APART
#define OWN __attribute__((aligned(64)))
#else
#define OWN
#endif
struct counters { volatile long a OWN; volatile long b OWN; volatile long c OWN; };
static struct counters counters __attribute__((aligned(64)));
#define ADDS(member) static void *add_##member(void *unused) { for (int i = 0; i < ROUNDS; i++) counters.member++; return 0; }
ADDS(a) ADDS(b) ADDS(c)
int main(void) {
    void *(*adds[])(void *) = { add_a, add_b, add_c };
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, adds[i], 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    return 0;
}
"#;

fn compiled(folder: &Path, source: &str, definitions: &[String]) -> String {
    let mut flags = vec!["-O1", "-g", "-pthread"];
    flags.extend(definitions.iter().map(String::as_str));
    memgauge_testing::compiled(folder, "program.c", source, &flags).expect("gcc is installed")
}

/// Totals of a program with a modelled layout, and of a program that really has this layout.
fn modelled_and_real(
    source: &str,
    definitions: &[String],
    change: &str,
    real: &str,
) -> (Recorded, harness::Totals, harness::Totals) {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
    let program = compiled(folders[0].path(), source, definitions);
    let options = ["--machine", "zen4", "--what-if", change];
    let run = Recorded::new(&options, &[&program]);
    assert_eq!(run.code(), Some(0), "{}", run.said());
    let modelled = totals_of(&what_if(&run.report(), change)["totals"]);
    let changed = [definitions, &[real.to_owned()]].concat();
    let program = compiled(folders[1].path(), source, &changed);
    let real = Recorded::new(&["--machine", "zen4"], &[&program]).totals();
    (run, modelled, real)
}

fn is_near(a: i64, b: i64, share: f64) -> bool {
    a.abs_diff(b) as f64 <= b as f64 * share
}

/// Runs `advise` on a program that reads its input.
fn advised(folder: &Path, options: &[&str], program: &str, input: impl Into<Stdio>) -> Output {
    let given = memgauge();
    let mut command = std::process::Command::new(given.get_program());
    command.env_clear();
    let environment = given.get_envs();
    command.envs(environment.filter_map(|(name, value)| Some((name, value?))));
    command.args(["advise", "--machine", "zen4", "-o"]);
    command.arg(folder.join("advised.mg")).args(options);
    let output = command.args(["--", program]).stdin(input).output();
    output.expect("memgauge runs")
}

#[test]
fn advise_models_layouts_of_the_types_that_the_program_waits_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let definitions = [
        format!("-DCOUNT={}", drawn("count", 60_000, 120_000)),
        "-DNAME=48".to_owned(),
        "-DPASSES=5".to_owned(),
    ];
    // Prints its input, so that a second run that reads nothing or prints is noticed.
    let source = RECORDS.replacen(
        "int main(void) {",
        "#include <stdio.h>\nint main(void) { int c; while ((c = getchar()) != EOF) putchar(c); \
         fflush(stdout); if (ftell(stdin) >= 0 && ftell(stdin) != 6) return 7;",
        1,
    );
    let program = compiled(folder.path(), &source, &definitions);
    let input = folder.path().join("input");
    std::fs::write(&input, "word\n\n").expect("the folder is writable");
    let opened = || std::fs::File::open(&input).expect("it was written");

    let found = advised(folder.path(), &[], &program, opened());
    let said = harness::said(&found);
    assert_eq!(found.status.code(), Some(0), "{said}");
    assert_eq!(found.stdout, b"word\n\n", "the second run prints nothing");
    for words in [
        "running the program again, without its output, to model split=rec.key",
        "key of rec in an array of their own",
        "LLC twice as large",
    ] {
        assert!(said.contains(words), "{words} in {said}");
    }
    let shown = harness::report(&folder.path().join("advised.mg"));
    let report: Value = serde_json::from_slice(&shown.stdout).expect("the report is JSON");
    let split = what_if(&report, "split=rec.key");
    assert!(split["relative"].as_f64() < Some(-0.05), "{split}");
    assert_eq!(split["changes"], "program");
    assert_eq!(what_if(&report, "llc=2x")["changes"], "machine");
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .collect();
    let is_recording = |name: &str| name.starts_with("advised.mg");
    let names: Vec<String> = left
        .iter()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| is_recording(name))
        .collect();
    assert_eq!(names, ["advised.mg"], "the first run is replaced");

    let once = advised(folder.path(), &["--once"], &program, opened());
    let said = harness::said(&once);
    let words = "not run again with other layouts of its types (--once): to model them, use \
                 `memgauge advise --what-if ";
    assert!(said.contains(words), "{said}");
    assert!(!said.contains("in an array of their own"), "{said}");

    // The second run finds the file of the first one.
    let marker = folder.path().join("marker");
    let fails = source.replacen("int c;", "int c; if (!fopen(ONCE, \"wx\")) return 9;", 1);
    let flags = [
        &definitions[..],
        &[format!("-DONCE=\"{}\"", marker.display())],
    ]
    .concat();
    let failing = compiled(folder.path(), &fails, &flags);
    let kept = advised(folder.path(), &["-f"], &failing, opened());
    let said = harness::said(&kept);
    assert_eq!(kept.status.code(), Some(0), "{said}");
    let words = "the second run ended otherwise than the first one";
    assert!(
        said.contains(words) && said.contains("LLC twice as large"),
        "{said}"
    );
    let program = compiled(folder.path(), &source, &definitions);

    let mut writer = std::process::Command::new("cat");
    let mut writer = writer.arg(&input).stdout(Stdio::piped()).spawn().unwrap();
    let piped = advised(folder.path(), &[], &program, writer.stdout.take().unwrap());
    writer.wait().unwrap();
    let said = harness::said(&piped);
    assert!(said.contains("its input cannot be read again"), "{said}");
}

#[test]
fn split_members_miss_as_in_a_program_that_was_split_by_hand() {
    let definitions = [
        format!("-DCOUNT={}", drawn("count", 60_000, 120_000)),
        format!("-DNAME={}", 8 * drawn("words of the name", 4, 8)),
        "-DPASSES=5".to_owned(),
    ];
    let (run, modelled, real) =
        modelled_and_real(RECORDS, &definitions, "split=rec.key", "-DSPLIT");
    // Few lines are prefetched, and none that the second level still holds.
    for (event, tolerance) in [
        ("l1d.miss", 0.01),
        ("l2.miss", 0.01),
        ("llc.miss", 0.01),
        ("prefetches", 0.1),
        ("prefetch.hits", 0.1),
    ] {
        let (modelled, real) = (modelled[event], real[event]);
        assert!(
            is_near(modelled, real, tolerance),
            "{event}: {modelled} and {real}"
        );
    }
    assert!(run.totals()["l1d.miss"] > 2 * modelled["l1d.miss"]);
    let text = report_text(&run.path());
    assert!(
        text.contains("key of rec in an array of their own"),
        "{text}"
    );
    assert!(!text.contains("stayed at the old places"), "{text}");
}

/// Nodes whose first and last bytes are in two lines, each from a call of `malloc` or in an array.
const NODES: &str = r#"
#include <stdlib.h>
#ifdef SPLIT
struct hot { long key; long next; };
struct node { char name[40]; long more; };
#define HOT(i) (&hots[i])
#elif defined REORDERED
struct node { long next; long key; char name[40]; long more; };
#define HOT NODE
#else
struct node { long key; char name[40]; long next; long more; };
#define HOT NODE
#endif
#ifdef FILLED
#define IS_FILLED 1
__attribute__((noinline)) static void fill(unsigned long *words, long n) { for (long i = 0; i < n; i++) words[i] = i; }
#else
#define IS_FILLED 0
#endif
int main(void) {
    unsigned long sum = 0, x = 88172645463325252ul;
#ifdef SPLIT
    struct hot *hots = malloc(COUNT * sizeof *hots);
#endif
#ifdef EACH
#define NODE(i) nodes[i]
    struct node **nodes = malloc(COUNT * sizeof *nodes);
    for (long i = 0; i < COUNT; i++) nodes[i] = malloc(sizeof *nodes[i]);
#else
#define NODE(i) (&nodes[i])
    struct node *nodes = malloc(COUNT * sizeof *nodes);
#endif
#ifdef FILLED
    fill((unsigned long *)nodes, COUNT * sizeof *nodes / sizeof(long));
#endif
    for (long i = 0; i < COUNT && !IS_FILLED; i++) {
        NODE(i)->name[0] = i; NODE(i)->more = i; HOT(i)->key = i; HOT(i)->next = i;
    }
    for (long n = 0; n < STEPS; n++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        sum += HOT(x % COUNT)->key + HOT(x % COUNT)->next;
    }
    return sum == 1;
}
"#;

/// Compares a modelled layout of the nodes with a program that really has it.
fn check_nodes(definitions: &[String], change: &str, real: &str) {
    let definitions = [definitions, &["-DSTEPS=200000".to_owned()]].concat();
    let (_, modelled, real) = modelled_and_real(NODES, &definitions, change, real);
    for event in ["l1d.miss", "l2.miss", "llc.miss"] {
        let (modelled, real) = (modelled[event], real[event]);
        assert!(
            is_near(modelled, real, 0.01),
            "{change}, {event}: {modelled} and {real}"
        );
    }
}

#[test]
fn objects_move_if_all_their_accesses_are_in_two_lines() {
    let count = format!("-DCOUNT={}", drawn("count", 60_000, 120_000));
    check_nodes(&[count], "split=node.key+next", "-DSPLIT");
}

#[test]
fn objects_that_code_of_unknown_type_filled_make_the_result_doubtful() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let count = format!("-DCOUNT={}", drawn("count", 60_000, 120_000));
    for (filled, is_doubtful) in [("-DFILLED", true), ("-DTYPED", false)] {
        let definitions = [&count, "-DSTEPS=200000", filled].map(str::to_owned);
        let program = compiled(folder.path(), NODES, &definitions);
        let run = Recorded::new(&["--machine", "zen4", "--what-if", "pad=node"], &[&program]);
        let text = report_text(&run.path());
        assert_eq!(
            text.contains("stayed at the old places"),
            is_doubtful,
            "{text}"
        );
    }
}

/// The hot lines fit in the second level, but not into half of its sets.
#[test]
fn reordered_objects_stay_where_malloc_placed_them() {
    let count = format!("-DCOUNT={}", drawn("count", 8_000, 12_000));
    let definitions = [count, "-DEACH".to_owned()];
    check_nodes(&definitions, "reorder=node.next+key", "-DREORDERED");
}

#[test]
fn padded_members_are_no_longer_shared_falsely() {
    let definitions = [format!("-DROUNDS={}", drawn("rounds", 100_000, 200_000))];
    let (run, modelled, real) =
        modelled_and_real(COUNTERS, &definitions, "pad=counters.*", "-DAPART");
    let (own, modelled, real) = (
        run.totals()["stall.sharing"],
        modelled["stall.sharing"],
        real["stall.sharing"],
    );
    assert!(
        own > 20 * modelled.max(real),
        "{own}, {modelled} and {real}"
    );
    let text = report_text(&run.path());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words
            .contains("Modelled change of the time: each member of counters on lines of their own"),
        "{text}"
    );
}

/// Each thread adds to an element of an array and to a variable of its own. `APART` gives all of
/// them separate lines.
const SUMS: &str = r#"
#include <pthread.h>
#ifdef APART
#define OWN __attribute__((aligned(64)))
struct sum { volatile long n OWN; };
#define SUM(i) sums[i].n
#else
#define OWN
#define SUM(i) sums[i]
typedef volatile long sum_t;
#endif
#ifdef APART
static struct sum sums[THREADS];
#else
static sum_t sums[THREADS] __attribute__((aligned(64)));
#endif
static void *add(void *number) {
    volatile long *own = &SUM((long)number);
    for (int i = 0; i < ROUNDS; i++) ++*own;
    return 0;
}
int main(void) {
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, add, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return SUM(0) != ROUNDS;
}
"#;

#[test]
fn padded_elements_of_a_variable_are_no_longer_shared_falsely() {
    let definitions = [
        format!("-DROUNDS={}", drawn("rounds", 100_000, 200_000)),
        format!("-DTHREADS={}", drawn("threads", 2, 6)),
    ];
    let (run, modelled, real) = modelled_and_real(SUMS, &definitions, "pad=sums[]", "-DAPART");
    let (own, modelled, real) = (
        run.totals()["stall.sharing"],
        modelled["stall.sharing"],
        real["stall.sharing"],
    );
    assert!(
        own > 20 * modelled.max(real),
        "{own}, {modelled} and {real}"
    );
    let text = report_text(&run.path());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("Modelled change of the time: each element of sums on lines of its own"),
        "{text}"
    );
}

#[test]
fn advise_pads_variables_that_threads_share_falsely() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let definitions = ["-DROUNDS=100000", "-DTHREADS=3"].map(str::to_owned);
    let program = compiled(folder.path(), SUMS, &definitions);
    let said = harness::said(&advised(folder.path(), &[], &program, Stdio::null()));
    assert!(said.contains("to model pad=sums\n"), "{said}");
    assert!(
        said.contains("each element of sums on lines of its own"),
        "{said}"
    );
}

#[test]
fn variables_that_cannot_be_padded_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let definitions = ["-DROUNDS=10", "-DTHREADS=2"].map(str::to_owned);
    let program = compiled(folder.path(), SUMS, &definitions);
    let run = Recorded::new(&["--what-if", "pad=totals[]"], &[&program]);
    let words = "no program or library that ran has a variable `totals`";
    assert!(run.said().contains(words), "{}", run.said());
    let stripped = [&definitions[..], &["-g0".to_owned()]].concat();
    let program = compiled(folder.path(), SUMS, &stripped);
    let run = Recorded::new(&["--what-if", "pad=sums"], &[&program]);
    assert_eq!(run.code(), Some(2));
    assert!(run.said().contains("compile it with -g"), "{}", run.said());
    let run = Recorded::new(&["--what-if", "split=sums[].n"], &[&program]);
    assert_eq!(run.code(), Some(2), "{}", run.said());
}

#[test]
fn reports_name_a_layout_to_model() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let told = |source: &str, definitions: &[&str], words: &str| {
        let definitions: Vec<String> = definitions.iter().map(|&text| text.to_owned()).collect();
        let program = compiled(folder.path(), source, &definitions);
        let run = Recorded::new(&["--machine", "zen4"], &[&program]);
        let text = report_text(&run.path());
        let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(words), "{words} in {text}");
    };
    told(
        COUNTERS,
        &["-DROUNDS=200000"],
        "--what-if 'pad=counters.*' -- CMD",
    );
    // Each member is stored once, and then two are read.
    told(
        NODES,
        &["-DCOUNT=300000", "-DSTEPS=1000000"],
        "--what-if 'split=node.key+next' -- CMD",
    );
}

#[test]
fn layouts_of_unknown_types_and_members_are_explained() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), COUNTERS, &["-DROUNDS=100".to_owned()]);
    let refused = memgauge()
        .args(["record", "--what-if", "pad=counters.d", "--", &program])
        .output()
        .expect("memgauge runs");
    harness::check_line(&refused, 2, &["`counters` has no member `d`", "a, b, c"]);
    let unknown = Recorded::new(&["--what-if", "pad=nothing"], &[&program]);
    assert_eq!(unknown.code(), Some(0));
    assert!(
        unknown.said().contains("access `nothing`"),
        "{}",
        unknown.said()
    );
    let text = report_text(&unknown.path());
    assert!(text.contains("nothing moved"), "{text}");
}
