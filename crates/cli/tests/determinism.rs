//! A program with one thread that runs twice with equal arguments and environment has exactly equal
//! counts, virtual time, and lifetimes of allocations.
//!
//! The emulator places the program, its libraries and its stack at the same addresses in every run,
//! regardless of the kernel's address randomisation. Two things still differ between runs: random
//! numbers, which `--seed` fixes (`seed.rs`), and properties of the host that the program reads (clock,
//! process number, directory order). The accesses of these programs do not depend on them.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{Recorded, needs, workloads};

/// Records `program` twice on the host's machine. All totals must agree, including virtual time.
/// Input comes from files, because the number of bytes that a read of a pipe returns depends on the
/// writer.
fn check(program: &[&str]) {
    let run = || {
        Recorded::with(&[], program, |command| {
            command.env("PYTHONHASHSEED", "0");
        })
    };
    let (first_run, second_run) = (run(), run());
    let (first, second) = (first_run.totals(), second_run.totals());
    assert!(
        first["instructions"] > 50_000 && first["virtual_ns"] > 10_000,
        "{first:?}"
    );
    assert_eq!(first, second, "{program:?}");
    let heap = |run: &Recorded| run.report()["heap"].clone();
    assert_eq!(heap(&first_run), heap(&second_run), "{program:?}");
}

#[test]
fn a_program_with_one_thread_gives_the_same_counts_twice() {
    if !needs(&["sort", "xz"]) {
        return;
    }
    let numbers: String = (0_u64..20_000)
        .map(|i| format!("{}\n", i * 7919 % 20_011))
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("numbers");
    std::fs::write(&file, numbers).expect("the input can be written");
    let file = file.to_str().expect("temporary paths are text");
    check(&["/bin/true"]);
    // Without -S, sort computes its buffer from the memory that is free at that moment.
    check(&["sort", "-n", "-S", "8M", file]);
    check(&["xz", "-T1", "-3", "-k", "-c", file]);
    check(&[workloads(), "rand", "--bytes", "4MiB", "--steps", "100000"]);
}

#[test]
fn an_interpreter_gives_the_same_counts_twice() {
    if !needs(&["/usr/bin/python3"]) {
        return;
    }
    check(&[
        "/usr/bin/python3",
        "-S",
        "-c",
        "print(sum({i: i * i for i in range(20000)}.values()))",
    ]);
}
