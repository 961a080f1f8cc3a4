//! Virtual time keeps the order that the kernel guarantees: births, the last end of a pipe, the last
//! thread at a barrier.
//!
//! The time of each program follows from the memory that it scans and the time that it sleeps.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::sync::OnceLock;

use harness::{Recorded, assert_near, compiled, needs, one_is_right, totals_of};

fn order() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("order"))
}

fn virtual_ns(arguments: &[&str]) -> i64 {
    Recorded::in_time(&[&[order()], arguments].concat()).totals()["virtual_ns"]
}

/// 30 threads or processes one after another, each of which begins to work when the host has
/// made it. Beside them a thread sleeps a millisecond at a time.
#[test]
fn sleeper_beside_short_threads_wakes_once_per_millisecond_of_their_time() {
    if !needs(&["gcc"]) {
        return;
    }
    let start = virtual_ns(&["work", "0"]);
    for what in ["threads", "processes"] {
        let alone = virtual_ns(&["births", what]) - start;
        let expected = alone / 1_000_000;
        let sleeps_and_time = || {
            let recorded = Recorded::in_time(&[order(), "births", what, "beside"]);
            let said = String::from_utf8_lossy(&recorded.output.stdout);
            let ticks: i64 = said.trim().parse().expect("the program counts its sleeps");
            (ticks, recorded.totals()["virtual_ns"] - start)
        };
        let holds = |&(ticks, beside): &(i64, i64)| {
            (expected - expected / 10..=expected + expected / 10).contains(&ticks)
                && (alone - alone / 100..alone + alone / 10).contains(&beside)
        };
        one_is_right(&format!("{what}, {alone} ns alone"), sleeps_and_time, holds);
    }
}

/// Between the end of a program and the start of the next one, no program executes anything.
#[test]
fn a_shell_that_sleeps_beside_one_that_starts_programs_sleeps_no_longer_than_those_take() {
    if !needs(&["gcc", "sleep", "true"]) {
        return;
    }
    let line = "i=0; (while [ $i -lt 30 ]; do /bin/true; i=$((i+1)); done) & \
                while kill -0 $! 2>/dev/null; do sleep 0.02; done";
    let totals = Recorded::in_time(&["sh", "-c", line]).totals();
    // The programs take some milliseconds. The current sleep is not cut when they end, unless the
    // host takes more than a second for them. A busy host adds some sleeps. Without start marks
    // there would be a dozen.
    let least = match totals.contains_key("cut_sleeps") {
        true => 1_000_000,
        false => 20_000_000,
    };
    let found = totals["virtual_ns"];
    assert!((least..120_000_000).contains(&found), "{totals:?}");
}

/// The thread that arrives last on the host is the first that would arrive on the modelled
/// machine.
#[test]
fn each_round_of_a_barrier_takes_as_long_as_its_slowest_thread() {
    if !needs(&["gcc"]) {
        return;
    }
    let expected = virtual_ns(&["no-barrier"]);
    let found = virtual_ns(&["barrier"]);
    assert_near("20 rounds", found, expected, 0.05);
}

/// A child writes nothing, and its parent reads until no process can write any more. Then the
/// parent works for the same time.
#[test]
fn the_end_of_a_pipe_or_socket_comes_when_its_last_writer_is_gone() {
    if !needs(&["gcc", "sleep"]) {
        return;
    }
    let expected = virtual_ns(&["work", "48"]);
    let pipes = [
        "pipe exit",
        "pipe close",
        "pipe exec",
        "pipe killed",
        "pipe stopped",
    ];
    for how in pipes.into_iter().chain(["socket close", "socket killed"]) {
        assert_near(how, virtual_ns(&["end", how]), expected, 0.03);
    }
}

#[test]
fn a_socket_that_times_out_has_waited_for_as_long_as_it_was_told_to() {
    if !needs(&["gcc"]) {
        return;
    }
    let start = virtual_ns(&["work", "0"]);
    for how in ["recv", "read", "send", "write"] {
        let waited = virtual_ns(&["timeout", how]) - start;
        assert_near(how, waited, 200_000_000, 0.01);
    }
}

/// The event comes first, as if the host had kept the order. If the host takes more than a second
/// for the work, the wait is cut, and the recording states that.
#[test]
fn a_wait_is_not_over_before_a_sleep_that_ends_earlier() {
    if !needs(&["gcc"]) {
        return;
    }
    let expected = virtual_ns(&["work", "60"]) + 100_000_000;
    let code_and_totals = || {
        let recorded = Recorded::in_time(&[order(), "event"]);
        let totals = totals_of(&recorded.manifest()["totals"]);
        assert!(
            recorded.code() == Some(0) || totals.contains_key("cut_sleeps"),
            "{totals:?}"
        );
        (recorded.code(), totals)
    };
    one_is_right("event", code_and_totals, |(code, totals)| {
        let off = (totals["virtual_ns"] - expected).abs();
        *code == Some(0) && off <= expected / 100
    });
}

#[test]
fn a_program_begins_when_what_its_process_was_before_has_waited() {
    if !needs(&["sh", "sleep", "cat"]) {
        return;
    }
    for _ in 0..4 {
        let line = "(sleep 0.06; echo a) | (sleep 0.02; cat; exec sleep 0.04)";
        let found = Recorded::in_time(&["sh", "-c", line]).totals()["virtual_ns"];
        assert_near(line, found, 100_000_000, 0.02);
    }
}

/// A child takes the lock, and it ends with the file of its parent.
#[test]
fn a_lock_that_a_child_took_ends_with_its_parents_file() {
    if !needs(&["bash", "flock", "sleep"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let line = format!(
        "for i in 1 2 3; do (flock 9; sleep 0.05; :) 9>{}/lock & done; wait",
        folder.path().display()
    );
    let found = Recorded::in_time(&["bash", "-c", &line]).totals()["virtual_ns"];
    assert_near(&line, found, 150_000_000, 0.05);
}

/// The sleep was over on the host a second before, while another thread worked on.
#[test]
fn a_sleep_that_is_cut_is_counted_and_the_report_says_so() {
    if !needs(&["gcc"]) {
        return;
    }
    let recorded = Recorded::once_in_time(&[order(), "cut"]);
    let totals = recorded.totals();
    assert!(totals["virtual_ns"] < 1_000_000_000, "{totals:?}");
    assert_eq!(totals["cut_sleeps"], 1, "{totals:?}");
    let text = harness::memgauge()
        .arg("report")
        .arg(recorded.path())
        .output()
        .expect("memgauge runs");
    let text = String::from_utf8_lossy(&text.stdout);
    let words: Vec<&str> = text.split_whitespace().collect();
    let sentence = "1 sleep is shown shorter than the program asked for";
    assert!(words.join(" ").contains(sentence), "{text}");
    assert!(
        !Recorded::in_time(&[order(), "work", "0"])
            .totals()
            .contains_key("cut_sleeps")
    );
}
