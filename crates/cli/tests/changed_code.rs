//! Code that changes without a store to its address: through a second mapping, by a system call
//! that writes to its file, or by another process.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::Path;
use std::process::Command;

use harness::{Recorded, needs};

/// Path of the program made of `source`, in `folder`.
fn compiled(folder: &Path, source: &str) -> String {
    memgauge_testing::compiled(folder, "p.c", source, &["-O1", "-w", "-pthread"])
        .expect("gcc is installed")
}

#[test]
fn code_that_changes_behind_its_address_is_executed_as_it_is() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), include_str!("changed_code/views.c"));
    let native = Command::new(&program).output().expect("it runs").stdout;
    let native = String::from_utf8_lossy(&native).into_owned();
    assert!(
        native.lines().count() > 20 && native.lines().all(|line| line.ends_with(": 12345")),
        "{native}"
    );
    for options in [&[][..], &["--sets", "1/8"]] {
        let run = Recorded::new(options, &[program.as_str()]);
        assert_eq!(
            String::from_utf8_lossy(&run.output.stdout),
            native,
            "{options:?}: {}",
            run.said()
        );
    }
}

/// The checks of code that may change are no accesses of the program.
#[test]
fn code_that_may_change_counts_as_other_code_does() {
    if !needs(&["cc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compiled(folder.path(), include_str!("changed_code/rounds.c"));
    for options in [&[][..], &["--sets", "1/8"]] {
        let counts = |sharing: &str, rounds: &str| {
            let run = Recorded::new(options, &[&program, sharing, rounds]);
            let totals = run.totals();
            ["instructions", "loads", "stores"].map(|event| totals[event])
        };
        for sharing in ["s", "p"] {
            let (few, many) = (counts(sharing, "10000"), counts(sharing, "30000"));
            let gained: [i64; 3] = std::array::from_fn(|i| many[i] - few[i]);
            // Six instructions a round; `call` stores its return address and `ret` loads it.
            assert_eq!(gained, [120_000, 40_000, 40_000], "{sharing} {options:?}");
        }
    }
}
