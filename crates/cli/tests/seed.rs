//! `--seed` fixes the random numbers of a program, and therefore counts that depend on them.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeSet;
use std::path::Path;

use harness::{Recorded, check_line, memgauge, needs, report_text, said};
use serde_json::Value;

/// Prints random numbers of each source, a line each: in the main thread, in two others, in two
/// forked children, and after an exec. Each is `SOURCE OF-WHOM NUMBER`.
const DRAWS: &str = r#"
#define _GNU_SOURCE
#include <cpuid.h>
#include <fcntl.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(const char *source, const char *whom, unsigned long long number) {
    printf("%s %s %016llx\n", source, whom, number);
    fflush(stdout);
}

__attribute__((target("rdrnd,rdseed"))) static void draw(const char *whom) {
    unsigned long long n = 0, parts[2] = { 0, 0 };
    if (getrandom(&n, sizeof n, 0) != sizeof n) exit(3);
    tell("getrandom", whom, n);
    const char *devices[] = { "/dev/urandom", "/dev/random" };
    for (int i = 0; i < 2; i++) {
        int fd = open(devices[i], O_RDONLY);
        if (read(fd, &n, sizeof n) != sizeof n) exit(3);
        tell(devices[i], whom, n);
        struct iovec into[2] = { { parts, 8 }, { parts + 1, 8 } };
        int copy = dup(fd);
        if (readv(copy, into, 2) != 16) exit(3);
        tell("readv-first", whom, parts[0]);
        tell("readv-second", whom, parts[1]);
        close(fd), close(copy);
    }
    if (!_rdrand64_step(&n)) exit(3);
    tell("rdrand", whom, n);
    if (!_rdseed64_step(&n)) exit(3);
    tell("rdseed", whom, n);
}

static void *thread(void *whom) { draw(whom); return NULL; }

int main(int argc, char **argv) {
    unsigned long long start;
    memcpy(&start, (void *)getauxval(AT_RANDOM), sizeof start);
    const char *names[] = { "thread-1", "thread-2", "child-1", "child-2" };
    if (argc > 1) {
        tell("AT_RANDOM", "after-exec", start);
        draw("after-exec");
        return 0;
    }
    tell("AT_RANDOM", "main", start);
    draw("main");
    for (int i = 0; i < 2; i++) {
        pthread_t other;
        pthread_create(&other, NULL, thread, (void *)names[i]);
        pthread_join(other, NULL);
    }
    for (int i = 2; i < 4; i++) {
        pid_t child = fork();
        if (child == 0) { draw(names[i]); _exit(0); }
        waitpid(child, NULL, 0);
    }
    execl("/proc/self/exe", argv[0], "again", NULL);
    return 4;
}
"#;

fn compiled(folder: &Path, source: &str) -> String {
    memgauge_testing::compiled(folder, "program.c", source, &["-O1", "-pthread"])
        .expect("gcc is installed")
}

fn output(recorded: &Recorded) -> String {
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    String::from_utf8_lossy(&recorded.output.stdout).into_owned()
}

/// Lines that occur in both outputs.
fn common(one: &str, other: &str) -> Vec<String> {
    let lines: BTreeSet<&str> = other.lines().collect();
    let common = one.lines().filter(|line| lines.contains(line));
    common.map(str::to_owned).collect()
}

#[test]
fn a_seed_fixes_the_numbers_of_every_source_and_no_two_are_alike() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), DRAWS);
    let seed = std::process::id().to_string();
    let run = |options: &[&str]| output(&Recorded::new(options, &[&program]));
    let seeded = run(&["--seed", &seed]);
    assert_eq!(seeded.lines().count(), 2 + 6 * 9, "{seeded}");
    let numbers = seeded.lines().filter_map(|line| line.split(' ').nth(2));
    let different: BTreeSet<&str> = numbers.collect();
    assert_eq!(different.len(), seeded.lines().count(), "{seeded}");

    assert_eq!(run(&["--seed", &seed]), seeded, "seed {seed}");
    let none: [String; 0] = [];
    assert_eq!(
        common(&seeded, &run(&["--seed", "18446744073709551615"])),
        none
    );
    assert_eq!(common(&seeded, &run(&[])), none);
}

/// Returns the output of a program with a seed, under a command that is not `record`, and
/// the JSON that the command writes.
fn seeded(command: &[&str], seed: &str, program: &[&str]) -> (String, Value) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("counts.json");
    let json = format!("--json={}", file.display());
    let output = memgauge()
        .args(command)
        .args(["--seed", seed, &json, "--"])
        .args(program)
        .output()
        .expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    let counts = std::fs::read(file).expect("the command writes the file");
    let counts = serde_json::from_slice(&counts).expect("it is JSON");
    (String::from_utf8_lossy(&output.stdout).into_owned(), counts)
}

const OTHER_COMMANDS: [&[&str]; 3] = [
    &["mrc"],
    &["mrc", "--phases"],
    &["stat", "--source", "emulate"],
];

#[test]
fn a_seed_means_the_same_for_every_command() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), DRAWS);
    let seed = std::process::id().to_string();
    let recorded = output(&Recorded::new(&["--seed", &seed], &[&program]));
    for command in OTHER_COMMANDS {
        assert_eq!(
            seeded(command, &seed, &[&program]).0,
            recorded,
            "{command:?}"
        );
    }
}

#[test]
fn counts_of_other_commands_repeat_with_a_seed() {
    if !needs(&["/usr/bin/python3"]) {
        return;
    }
    let script = "print(sum(hash('word%d' % (i % 999)) & 7 for i in range(9000)))";
    let program = ["/usr/bin/python3", "-S", "-c", script];
    let seed = std::process::id().to_string();
    for command in [OTHER_COMMANDS[0], OTHER_COMMANDS[2]] {
        let counts = |seed: &str| {
            let (output, counts) = seeded(command, seed, &program);
            // `stat` also prints its cost on the host.
            match command[0] {
                "stat" => (output, counts["totals"].clone()),
                _ => (output, counts),
            }
        };
        let first = counts(&seed);
        assert_eq!(counts(&seed), first, "{command:?} --seed {seed}");
        assert_ne!(counts("0").1, first.1, "{command:?}");
    }
}

#[test]
fn a_seed_of_a_program_that_is_not_emulated_is_refused() {
    let output = memgauge()
        .args(["stat", "--seed", "1", "--", "/bin/true"])
        .output()
        .expect("memgauge runs");
    check_line(&output, 2, &["--seed", "--source emulate"]);
}

#[test]
fn a_seed_makes_counts_of_random_hash_tables_repeat() {
    if !needs(&["/usr/bin/python3"]) {
        return;
    }
    let script = "print(sum(hash('word%d' % (i % 999)) & 7 for i in range(9000)), \
                  *list({str(i) for i in range(50)}))";
    let program = ["/usr/bin/python3", "-S", "-c", script];
    let seed = std::process::id().to_string();
    let run = |seed: &str| {
        let recorded = Recorded::new(&["--seed", seed], &program);
        (output(&recorded), recorded.totals())
    };
    let first = run(&seed);
    assert_eq!(run(&seed), first, "seed {seed}");
    assert_ne!(run("0").0, first.0);
}

#[test]
fn the_recording_and_its_report_name_the_seed() {
    let seeded = Recorded::new(&["--seed", "4711"], &["true"]);
    assert_eq!(seeded.manifest()["source"]["settings"]["seed"], "4711");
    let line = "random numbers of the program: fixed by seed 4711";
    let text = report_text(&seeded.path());
    assert!(text.contains(line), "{text}");

    let random = Recorded::new(&[], &["true"]);
    assert!(random.manifest()["source"]["settings"]["seed"].is_null());
    let text = report_text(&random.path());
    assert!(!text.contains("random numbers"), "{text}");
}

#[test]
fn sources_that_run_programs_natively_refuse_a_seed() {
    let output = harness::memgauge()
        .args(["record", "--source", "clock", "--seed", "1", "--", "true"])
        .output()
        .expect("memgauge runs");
    harness::check_line(&output, 2, &["clock", "--seed"]);
}
