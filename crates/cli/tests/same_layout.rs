//! Counts do not depend on what surrounds a program: its environment and the length of its
//! arguments.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{Recorded, needs};

/// A working set that just fits the first-level cache: a buffer on the stack beside a table. Where
/// the stack lies decides how many lines of the two collide.
const COLLIDES: &str = r#"
#include <stdio.h>
#include <string.h>
static unsigned char table[2560] __attribute__((aligned(4096)));
__attribute__((noinline)) static long work(unsigned char *buffer, int size) {
    long sum = 0;
    for (int round = 0; round < 400; round++) {
        for (int i = 0; i < size; i += 64) sum += buffer[i];
        for (int i = 0; i < 2560; i += 64) sum += table[i];
    }
    return sum;
}
int main(void) {
    unsigned char buffer[30720];
    memset(buffer, 1, sizeof buffer);
    memset(table, 2, sizeof table);
    printf("%p %ld\n", (void *)buffer, work(buffer, sizeof buffer));
}
"#;

#[test]
fn environment_and_arguments_do_not_move_the_stack() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("collides.c");
    std::fs::write(&source, COLLIDES).expect("the source can be written");
    let program = folder.path().join("collides");
    let mut gcc = std::process::Command::new("gcc");
    let gcc = gcc.args(["-O1", "-o"]).arg(&program).arg(&source);
    assert!(gcc.status().expect("gcc runs").success());
    let program = program.to_str().expect("temporary paths are text");
    // Lengths differ from run to run of the test, by multiples of neither a line nor a page.
    let odd = 1 + std::process::id() as usize % 4000;
    let run = |value: usize, argument: usize| {
        let argument = "x".repeat(argument);
        let options = ["--machine", "i5-6600k"];
        let recorded = Recorded::with(&options, &[program, &argument], |command| {
            command.env("BRANCH", "b".repeat(value));
        });
        let output = String::from_utf8_lossy(&recorded.output.stdout).into_owned();
        (output, recorded.totals()["l1d.miss"])
    };
    let (output, misses) = run(1, 1);
    assert!(misses > 1000, "{misses}");
    for (value, argument) in [(600, 1), (odd, 1), (1, odd), (30_000, odd)] {
        let (moved, now) = run(value, argument);
        let sizes = format!("{value} bytes of environment, {argument} of arguments");
        assert_eq!(moved, output, "{sizes}");
        // Who reads the environment touches its lines.
        let allowed = misses / 1000 + (value + argument) as i64 / 64 * 4;
        assert!(
            misses.abs_diff(now) <= allowed as u64,
            "{sizes}: {misses}, {now}"
        );
    }
}
