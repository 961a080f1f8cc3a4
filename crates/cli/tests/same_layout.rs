//! Counts do not depend on the surroundings of a program: its environment, the length of its arguments
//! and path, its working directory, and its stack limit.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::{Path, PathBuf};

use harness::{PROGRAM, Recorded, needs};

/// A working set that just fits into the first-level cache: a buffer on the stack and a table. The
/// address of the stack determines how many of their lines collide.
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

fn compiled(folder: &Path) -> PathBuf {
    let program = memgauge_testing::compiled(folder, "collides.c", COLLIDES, &["-O1"]);
    PathBuf::from(program.expect("gcc is installed"))
}

#[test]
fn environment_and_arguments_do_not_move_the_stack() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path());
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
        // Programs that read the environment access its lines.
        let allowed = misses / 1000 + (value + argument) as i64 / 64 * 4;
        assert!(
            misses.abs_diff(now) <= allowed as u64,
            "{sizes}: {misses}, {now}"
        );
    }
}

#[test]
fn path_folder_and_stack_limit_do_not_move_the_stack() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path());
    let odd = 1 + std::process::id() as usize % 200;
    let deep = folder.path().join("d".repeat(odd));
    std::fs::create_dir(&deep).expect("the folder can be made");
    let moved = deep.join("a-longer-name-of-the-same-program");
    std::fs::copy(&program, &moved).expect("the program can be copied");
    let run = |program: &Path, folder: &Path, stack_kib: &str| {
        let recording = folder.join("run.mg");
        let output = std::process::Command::new("bash")
            .args(["-c", "ulimit -S -s $0 && exec \"$@\"", stack_kib, PROGRAM])
            .args(["record", "--quiet", "--force", "--source", "emulate"])
            .args(["--machine", "i5-6600k", "--seed", "1", "-o"])
            .arg(&recording)
            .arg("--")
            .arg(program)
            .env_clear()
            .env("PATH", harness::PATH)
            .current_dir(folder)
            .output()
            .expect("bash runs");
        let (printed, said) = (output.stdout, String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}");
        let manifest = std::fs::read(recording.join("manifest.json")).expect("it is recorded");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("it is JSON");
        let misses = manifest["totals"]["l1d.miss"]
            .as_u64()
            .expect("it has misses");
        (String::from_utf8_lossy(&printed).into_owned(), misses)
    };
    let (printed, misses) = run(&program, folder.path(), "8192");
    for (program, folder, stack_kib) in [
        (&program, &deep, "8192"),
        (&moved, &deep, "8192"),
        (&program, &deep, "16384"),
        (&program, &deep, "1024"),
    ] {
        let (now_printed, now) = run(program, folder, stack_kib);
        assert_eq!(now_printed, printed, "{program:?} {stack_kib}");
        assert!(misses.abs_diff(now) <= misses / 1000, "{misses}, {now}");
    }
}
