//! `memgauge record -e` as a user runs it, with events that every Linux has: page faults, breakpoints,
//! timers.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use memgauge_testing::{Need, skipped};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::{PROGRAM, folder, memgauge, needs, perf_works, said, workloads};
use memgauge_recording::{Recording, Row, Selection};
use memgauge_trace::{Derivation, Pid, Sample, SampleRegister, Thread};

fn record(path: &Path, options: &[&str], program: &[&str]) -> Output {
    let mut command = memgauge();
    command.arg("record").args(options).arg("-o").arg(path);
    command.arg("--").args(program);
    command.output().expect("memgauge runs")
}

fn recorded(path: &Path, options: &[&str], program: &[&str]) -> Recording {
    let output = record(path, options, program);
    assert!(output.status.success(), "{}", said(&output));
    Recording::open(path).expect("a recording")
}

fn rows<R: Row>(recording: &Recording) -> Vec<R> {
    let batches = recording.rows::<R>(&Selection::all());
    batches.flat_map(|batch| batch.expect("sound")).collect()
}

/// A fact of a sampled event, named `event.NAME.FACT`.
fn total(recording: &Recording, name: &str) -> u64 {
    let named = name.strip_prefix("event.").and_then(|n| n.rsplit_once('.'));
    let (event, fact) = named.expect("event.NAME.FACT");
    harness::sampled(recording.manifest(), event, fact)
}

/// A C program, not at a random address.
fn compiled(folder: &Path, source: &str) -> PathBuf {
    let program =
        memgauge_testing::compiled(folder, "p.c", source, &["-no-pie", "-O1", "-pthread"])
            .expect("gcc is installed");
    PathBuf::from(program)
}

/// The address that the program prints for an argument.
fn address(program: &Path) -> String {
    let output = Command::new(program)
        .arg("where")
        .output()
        .expect("it runs");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

const WRITER: &str = r#"
#include <pthread.h>
#include <stdio.h>
volatile long watched[8];
void *more(void *none) { for (int i = 0; i < 500; i++) watched[0]++; return 0; }
int main(int n, char **words) {
    pthread_t thread;
    if (n > 1) return printf("%p\n", (void *)watched) < 0;
    for (int i = 0; i < 300; i++) watched[0]++;
    pthread_create(&thread, 0, more, 0);
    pthread_join(thread, 0);
    return 0;
}
"#;

#[test]
fn every_write_to_a_watched_address_is_a_sample() {
    if !needs(&["gcc"]) || !perf_works() {
        return;
    }
    let folder = folder();
    let program = compiled(folder.path(), WRITER);
    let watched = address(&program);
    let event = format!("mem:{watched}/8:w:u");
    let path = folder.path().join("w.mg");
    let output = record(
        &path,
        &["-e", &event, "-c", "1"],
        &[program.to_str().unwrap()],
    );
    if said(&output).contains("debug registers") || said(&output).contains("cannot sample") {
        return skipped(Need::Kernel, said(&output));
    }
    assert!(output.status.success(), "{}", said(&output));
    let recording = Recording::open(&path).expect("a recording");
    let samples: Vec<Sample> = rows(&recording);
    // By construction: 300 writes of the main thread and 500 of the other.
    assert_eq!(samples.len(), 800);
    let watched = u64::from_str_radix(watched.trim_start_matches("0x"), 16).unwrap();
    let right = |s: &Sample| s.addr.is_some_and(|a| a.0 == watched) && s.size_bytes == 8;
    assert!(samples.iter().all(right));
    assert!(
        samples
            .iter()
            .all(|s| s.kind == memgauge_trace::AccessKind::Store)
    );
    let mut by_thread = BTreeMap::new();
    for s in &samples {
        *by_thread.entry(s.tid).or_insert(0) += 1;
    }
    let mut counts: Vec<i32> = by_thread.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [300, 500]);
    assert!(samples.is_sorted_by_key(|s| s.time_ns));
}

/// Returns the number of samples, of events that they represent, and of counted events.
fn faults(period: &str) -> (u64, u64, u64) {
    let folder = folder();
    let path = folder.path().join("f.mg");
    let program = [workloads(), "linear", "--bytes", "16MiB", "--passes", "1"];
    let options = ["-e", "page-faults:u", "-c", period, "--ring", "512"];
    let recording = recorded(&path, &options, &program);
    let get = |what: &str| total(&recording, &format!("event.page-faults:u.{what}"));
    assert_eq!(get("samples"), rows::<Sample>(&recording).len() as u64);
    assert_eq!(get("lost"), 0);
    (get("samples"), get("stood_for"), get("counted"))
}

#[test]
fn samples_stand_for_what_the_counter_counted() {
    if !perf_works() {
        return;
    }
    let (samples, stood_for, counted) = faults("1");
    assert_eq!((samples, stood_for), (counted, counted));
    let (samples, stood_for, counted) = faults("10");
    assert_eq!(stood_for, samples * 10);
    // Each processor's counter may hold up to nine that make no sample.
    let rest = counted - stood_for;
    assert!(rest < 10 * 64, "{stood_for} of {counted}");
    assert!(samples > 0 && samples <= counted / 10);
}

#[test]
fn registers_are_recorded_where_asked_for() {
    if !cfg!(target_arch = "x86_64") || !perf_works() {
        return;
    }
    let folder = folder();
    let program = [workloads(), "rand", "--bytes", "1MiB", "--steps", "30M"];
    let options = ["-e", "cpu-clock:u", "-c", "1000000", "--registers"];
    let recording = recorded(&folder.path().join("g.mg"), &options, &program);
    let (samples, registers): (Vec<Sample>, Vec<SampleRegister>) =
        (rows(&recording), rows(&recording));
    assert!(samples.len() > 10, "{}", samples.len());
    // AX to IP and R8 to R15; register 8 is the instruction pointer.
    assert_eq!(registers.len(), samples.len() * 17);
    let pointers = registers.iter().filter(|r| r.register == 8);
    let same = pointers
        .zip(&samples)
        .filter(|(r, s)| r.value == s.ip.0 && r.time_ns == s.time_ns);
    assert_eq!(same.count(), samples.len());
}

#[test]
fn children_and_their_names_are_followed() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let script = "ls / > /dev/null; cat /dev/null";
    let path = folder.path().join("c.mg");
    let options = ["-e", "page-faults:u", "-c", "1"];
    let recording = recorded(&path, &options, &["sh", "-c", script]);
    let threads: Vec<Thread> = rows(&recording);
    for name in ["sh", "ls", "cat"] {
        let thread = threads.iter().find(|t| t.program == name);
        let pid = thread
            .unwrap_or_else(|| panic!("{name} in {threads:?}"))
            .pid;
        let samples: Vec<Sample> = rows(&recording);
        assert!(samples.iter().any(|s| s.pid == pid), "{name}");
    }
}

#[test]
fn a_budget_is_measured_and_periods_follow() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("o.mg");
    let options = ["-e", "cpu-clock:u", "-c", "10000", "--overhead", "2%"];
    let program = [workloads(), "rand", "--bytes", "1MiB", "--steps", "100M"];
    let output = record(&path, &options, &program);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for words in [
        "2.00 % allowed",
        "a sample takes",
        "measured before the start",
    ] {
        assert!(text.contains(words), "`{words}` is not in {text}");
    }
    let recording = Recording::open(&path).expect("a recording");
    // A tick costs more than 200 ns anywhere, and 2 % of 10 us are 200 ns.
    let last = total(&recording, "event.cpu-clock:u.last_period");
    assert!(last > 10_000, "{last}");
}

/// Four threads and a child that only compute, so that all time is in user space.
const CROWD: &str = r#"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
volatile long sink;
void *work(void *none) {
    long sum = 0;
    for (long i = 0; i < 150000000; i++) sum += i * i ^ sink;
    return (void *)sum;
}
int main(void) {
    pthread_t threads[4];
    pid_t child = fork();
    if (child == 0) return work(0) == (void *)1;
    for (int i = 0; i < 4; i++) pthread_create(threads + i, 0, work, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    return waitpid(child, 0, 0) != child;
}
"#;

/// Samples stand for the time that the kernel counted, however often the period changed.
fn check_weights(program: &Path, source: &[&str], event: &str, budget: &str) {
    let folder = folder();
    let path = folder.path().join("w.mg");
    let options = [source, &["--overhead", budget]].concat();
    let program = program.to_str().expect("temporary paths are text");
    let recording = recorded(&path, &options, &[program]);
    let samples: Vec<Sample> = rows(&recording);
    let get = |what: &str| total(&recording, &format!("event.{event}.{what}"));
    let stood_for: u64 = samples.iter().map(|s| s.period).sum();
    assert_eq!(get("stood_for"), stood_for);
    // No event is counted twice. Events after a thread's last sample on a CPU, and after the last
    // sample before its event is replaced, have no sample. They are up to a twentieth on an idle
    // machine, and more if other programs make periods longer.
    let counted = get("counted");
    let what = format!("{event} at {budget}, {} samples", samples.len());
    assert!(
        (counted / 2..=counted + counted / 50).contains(&stood_for),
        "{what}: {stood_for}, not {counted}"
    );
}

#[test]
fn a_timers_samples_stand_for_what_it_counted_whatever_the_period_became() {
    if !perf_works() || !needs(&["gcc"]) {
        return;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) < (Some(6), Some(13)) {
        return skipped(
            Need::Kernel,
            "the kernel tells what a timer counted from 6.13 on",
        );
    }
    let folder = folder();
    let program = compiled(folder.path(), CROWD);
    for budget in ["1%", "2%", "10%"] {
        check_weights(&program, &["-e", "cpu-clock:u"], "cpu-clock:u", budget);
    }
    check_weights(&program, &["-e", "task-clock"], "task-clock", "10%");
    check_weights(&program, &["--source", "clock"], "cpu-clock", "10%");
}

/// Source `clock` keeps to a budget as events do, and reports it.
#[test]
fn a_budget_holds_for_source_clock() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("c.mg");
    let options = ["--source", "clock", "--overhead", "0.1%"];
    let program = [workloads(), "rand", "--bytes", "1MiB", "--steps", "20M"];
    let output = record(&path, &options, &program);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("0.10 % allowed"),
        "{}",
        said(&output)
    );
    let recording = Recording::open(&path).expect("a recording");
    // A thousandth of the usual period is no tick's cost to the nanosecond.
    let last = total(&recording, "event.cpu-clock.last_period");
    assert_ne!(last, 1_000_000);
}

/// One child starts at once and one later. The parent prints the kernel's own count for all three.
const GENERATIONS: &str = "
import mmap, os, resource, time
memory = mmap.mmap(-1, 1 << 20)
def fault(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for at in range(0, 1 << 20, 4096):
            memory[at] = 1
        memory.madvise(mmap.MADV_DONTNEED)
early = os.fork()
fault(1.0)
late = early and os.fork()
fault(1.0)
if early and late:
    os.waitpid(early, 0), os.waitpid(late, 0)
    all = [resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN]
    print(sum(resource.getrusage(who).ru_minflt for who in all))
";

/// Within a part of the other.
fn check_near(what: &str, seen: u64, expected: u64, part: f64) {
    let off = seen.abs_diff(expected) as f64 / expected as f64;
    assert!(off <= part, "{what}: {seen}, not {expected}");
}

#[test]
fn a_budget_reaches_children_of_any_age_and_all_are_counted() {
    if !perf_works() || !needs(&["/usr/bin/python3"]) {
        return;
    }
    let folder = folder();
    let path = folder.path().join("f.mg");
    let options = ["-e", "page-faults", "-c", "1", "--overhead", "2%"];
    let program = ["/usr/bin/python3", "-S", "-c", GENERATIONS];
    let output = record(&path, &options, &program);
    assert!(output.status.success(), "{}", said(&output));
    let recording = Recording::open(&path).expect("a recording");
    let samples: Vec<Sample> = rows(&recording);
    let mut periods: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for s in &samples {
        periods.entry(s.pid.0).or_default().push(s.period);
    }
    assert_eq!(periods.len(), 3);
    // Some hundred thousand faults a second: each sampled would take all the time.
    let youngest = periods
        .keys()
        .max_by_key(|&&pid| first_of(&samples, Pid(pid)));
    let born_at = youngest.map_or(0, |pid| periods[pid][0]);
    assert!(born_at > 1, "the last child was born at period {born_at}");
    // All end within a window of the budget or two, each of which changes the period by
    // any factor. One that the budget had not reached would end at 1.
    let ends: Vec<u64> = periods.values().filter_map(|p| p.last().copied()).collect();
    let (least, most) = (ends.iter().min(), ends.iter().max());
    assert!(
        least > Some(&1) && most <= least.map(|l| 32 * l).as_ref(),
        "{ends:?}"
    );

    let get = |what: &str| total(&recording, &format!("event.page-faults.{what}"));
    assert_eq!(get("samples"), samples.len() as u64);
    let stood_for = samples.iter().map(|s| s.period).sum::<u64>();
    assert_eq!(get("stood_for"), stood_for);
    if said(&output).contains("user space only") {
        return println!("the kernel's count is of both spaces: not compared");
    }
    let by_kernel = String::from_utf8_lossy(&output.stdout);
    let by_kernel = by_kernel.trim().parse().expect("a number");
    // Nothing is counted while events are reopened, and the unfinished part of a period then has no
    // sample. At the start, with period 1, samples are lost because the ring is full.
    check_near("counted", get("counted"), by_kernel, 0.1);
    check_near("stood for", stood_for + get("lost"), get("counted"), 0.2);
}

/// When a process had its first sample.
fn first_of(samples: &[Sample], pid: Pid) -> u64 {
    let of = samples.iter().filter(|s| s.pid == pid);
    of.map(|s| s.time_ns).min().unwrap_or(0)
}

#[test]
fn a_report_shows_the_samples() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("r.mg");
    recorded(&path, &["-e", "page-faults", "-c", "1"], &["ls", "/"]);
    let report = |more: &[&str]| {
        let output = memgauge().arg("report").arg(&path).args(more).output();
        String::from_utf8(output.expect("memgauge runs").stdout).expect("text")
    };
    let text = report(&[]);
    for words in [
        "Samples",
        "stand for",
        "page-faults",
        "Heat map",
        "Hottest memory regions",
    ] {
        assert!(text.contains(words), "`{words}` is not in {text}");
    }
    let json: serde_json::Value = serde_json::from_str(&report(&["--json"])).expect("JSON");
    assert_eq!(json["schema_version"], 2);
}

fn check_refusal(options: &[&str], code: i32, words: &[&str]) {
    let folder = folder();
    let output = record(&folder.path().join("x.mg"), options, &["true"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(code), "{options:?}: {text}");
    for word in words {
        assert!(
            text.contains(word),
            "{options:?}: `{word}` is not in {text}"
        );
    }
    assert!(!text.contains("panicked"), "{text}");
    assert!(
        !folder.path().join("x.mg").exists(),
        "{options:?} left a recording"
    );
}

#[test]
fn events_that_cannot_be_sampled_are_refused_in_one_line() {
    check_refusal(&["-e", "pagefaults"], 2, &["`pagefaults`", "page-faults"]);
    check_refusal(&["-e", "page-faults,nonsense"], 2, &["`nonsense`"]);
    check_refusal(&["-e", "nosuch/thing=1/"], 2, &["there is no PMU `nosuch`"]);
    check_refusal(&["-e", "mem:12/3"], 2, &["1, 2, 4 or 8"]);
    check_refusal(&["-e", "page-faults", "-c", "0"], 2, &["0"]);
    check_refusal(
        &["-e", "page-faults", "--overhead", "200%"],
        2,
        &["percentage"],
    );
    check_refusal(
        &["-e", "page-faults", "-c", "1", "-F", "1"],
        2,
        &["cannot be used"],
    );
    check_refusal(&["-e", "page-faults", "--ring", "3"], 2, &["power of two"]);
    check_refusal(&["--source", "pmu"], 2, &["name an event"]);
    check_refusal(
        &["-e", "page-faults", "-G", "no/such/group"],
        2,
        &["control group"],
    );
    let hardware = Path::new("/sys/bus/event_source/devices/cpu").exists();
    if !hardware {
        check_refusal(&["-e", "cycles:pp"], 125, &["no PMU", "--source clock"]);
    }
}

#[test]
fn a_process_that_does_not_exist_is_named() {
    let folder = folder();
    let output = memgauge()
        .args(["record", "-e", "page-faults", "-p", "2147483000", "-o"])
        .arg(folder.path().join("p.mg"))
        .output()
        .expect("memgauge runs");
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(said(&output).contains("2147483000"), "{}", said(&output));
}

#[test]
fn a_program_that_does_not_run_has_the_shells_exit_code() {
    let folder = folder();
    let output = record(
        &folder.path().join("n.mg"),
        &["-e", "page-faults"],
        &["/no/such"],
    );
    assert_eq!(output.status.code(), Some(127), "{}", said(&output));
}

#[test]
fn an_ordinary_user_samples_own_programs_in_user_space() {
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let level: i32 = level.ok().and_then(|s| s.trim().parse().ok()).unwrap_or(9);
    let is_root = Command::new("id").arg("-u").output();
    if !is_root.is_ok_and(|o| o.stdout == b"0\n") || level != 2 || !perf_works() {
        return skipped(
            Need::Root,
            "needs root to become nobody, and perf_event_paranoid 2",
        );
    }
    let folder = folder();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everybody).expect("the mode can be set");
    let program = folder.path().join("memgauge");
    std::fs::copy(PROGRAM, &program).expect("the program can be copied");
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args([
            "record",
            "-e",
            "page-faults",
            "-c",
            "1",
            "--physical",
            "-o",
            "u.mg",
            "--",
            "ls",
            "/",
        ])
        .current_dir(folder.path())
        .output()
        .expect("setpriv runs");
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("in user space only") && text.contains("physical"),
        "{text}"
    );
    let recording = Recording::open(&folder.path().join("u.mg")).expect("a recording");
    assert!(rows::<Sample>(&recording).iter().all(|s| s.ip.0 >> 63 == 0));
    assert!(total(&recording, "event.page-faults.samples") > 20);
}

/// Sixteen increments, the k-th of elements k modulo 16, each followed by the step of
/// the pointer. An address from a stale or missing step is off by one.
const STEPS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
extern char kernel[];
static void run(long *from, long *to) {
    __asm__ volatile(
        ".p2align 6\n.globl kernel\nkernel:\n"
        ".rept 16\naddq $1, (%0)\naddq $8, %0\n.endr\n"
        "cmpq %1, %0\njne kernel\n"
        : "+r"(from) : "r"(to) : "memory", "cc");
}
int main(int n, char **words) {
    long elements = 8 << 20, *array;
    if (n > 1) return printf("%p\n", (void *)kernel) < 0;
    array = aligned_alloc(4096, elements * 8);
    for (int i = 0; i < 60; i++) run(array, array + elements);
    return 0;
}
"#;

/// Bytes of the two instructions: each has four.
const STEP_BYTES: u64 = 8;

/// Returns true if the address is that of an element that the instruction accesses.
fn names_its_element(sample: &Sample, kernel: u64) -> bool {
    let (number, within) = (
        (sample.ip.0 - kernel) / STEP_BYTES,
        (sample.ip.0 - kernel) % STEP_BYTES,
    );
    let accessing = match (sample.derivation, within) {
        (Some(Derivation::Exact), 0) | (Some(Derivation::Previous), 4) => number,
        (Some(Derivation::Next), 4) => number + 1,
        _ => return false,
    };
    sample.addr.is_some_and(|a| a.0 / 8 % 16 == accessing % 16)
}

#[test]
fn the_clock_names_the_very_element_that_an_instruction_accesses() {
    if !cfg!(target_arch = "x86_64") || !needs(&["gcc"]) || !perf_works() {
        return;
    }
    let folder = folder();
    let program = compiled(folder.path(), STEPS);
    let kernel = address(&program);
    let kernel = u64::from_str_radix(kernel.trim_start_matches("0x"), 16).unwrap();
    let path = folder.path().join("e.mg");
    let options = ["--source", "clock", "-F", "2000"];
    let recording = recorded(&path, &options, &[program.to_str().unwrap()]);
    let samples: Vec<Sample> = rows(&recording);
    let inside = |s: &&Sample| (kernel..kernel + 16 * STEP_BYTES).contains(&s.ip.0);
    let inside: Vec<&Sample> = samples.iter().filter(inside).collect();
    let named: Vec<&&Sample> = inside.iter().filter(|s| s.addr.is_some()).collect();
    let right = named
        .iter()
        .filter(|s| names_its_element(s, kernel))
        .count();
    println!(
        "{} samples in the loop, {} with an address, {right} name an element their instruction accesses",
        inside.len(),
        named.len()
    );
    assert!(named.len() >= 100, "{} of {}", named.len(), samples.len());
    assert!(
        right * 100 >= named.len() * 99,
        "{right} of {}",
        named.len()
    );
}

const LOOKUPS: &str = r#"
#include <stdlib.h>
#include <unistd.h>
enum { ENTRIES = 1 << 22 };
static unsigned long state = 1;
static unsigned next(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % ENTRIES;
}
__attribute__((noinline)) static long lookups(const long *table, int times)
{
    long sum = 0;
    while (times--) sum += table[next()]; /* the hottest line */
    return sum;
}
__attribute__((noinline)) static void fill(long *table, int times)
{
    for (int i = 0; i < times; i++)
        table[next()] = i;
}
int main(int count, char **words)
{
    long *table = calloc(ENTRIES, sizeof *table);
    int times = atoi(words[1]);
    fill(table, times / 8);
    long sum = lookups(table, times);
    usleep(atoi(words[2]) * 1000);
    return sum == 1;
}
"#;

#[test]
fn the_main_finding_of_samples_of_time_is_where_most_of_it_is() {
    if !needs(&["gcc"]) || !perf_works() {
        return;
    }
    let folder = folder();
    let program = memgauge_testing::compiled(folder.path(), "p.c", LOOKUPS, &["-O1", "-g"]);
    let program = program.expect("gcc is installed");
    let line = LOOKUPS
        .lines()
        .position(|line| line.contains("hottest line"));
    let line = format!("p.c:{}", 1 + line.expect("it is marked"));
    let finding = |options: &[&str], sleep_ms: &str| {
        let path = folder
            .path()
            .join(format!("{}{sleep_ms}.mg", options.len()));
        let run = record(&path, options, &[&program, "20000000", sleep_ms]);
        assert!(run.status.success(), "{}", said(&run));
        // Line breaks depend on the width.
        let text = harness::report_text(&path);
        let (_, text) = text.split_once("Main finding").expect("a finding");
        let text = text.split_once("\n\n").map_or(text, |(text, _)| text);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let busy = finding(&["--source", "clock"], "0");
    for part in ["of the processor time is in lookups", &line, "(32.0 MiB)"] {
        assert!(busy.contains(part), "{part}: {busy}");
    }
    let idle = finding(&["--source", "clock"], "3000");
    assert!(idle.contains("used a processor in only"), "{idle}");
    let faults = finding(&["-e", "page-faults", "-c", "1"], "0");
    assert!(
        faults.contains("the events page-faults is in fill"),
        "{faults}"
    );
}
