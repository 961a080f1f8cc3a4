//! `memgauge heap`: memory by the calls that allocate it.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{drawn, memgauge, needs};

/// Allocates blocks of 128 bytes that stay, one of a MiB in the middle of the run, and short-lived
/// ones.
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <string.h>
static void *kept[KEPT];
static __attribute__((noinline)) void keep(int i) { kept[i] = malloc(128); }
static __attribute__((noinline)) char *buffer(void) { return calloc(1 << 20, 1); }
static __attribute__((noinline)) void scratch(void) { char *t = malloc(64); memset(t, 1, 64); __asm__ volatile("" : : "r"(t) : "memory"); free(t); }
int main(void) {
    for (int i = 0; i < KEPT / 2; i++) keep(i);
    char *b = buffer();
    for (int i = 0; i < SHORT; i++) scratch();
    free(b);
    for (int i = KEPT / 2; i < KEPT; i++) keep(i);
    return b == kept[0];
}
"#;

/// Lines of the text without its column of shares.
fn row<'a>(text: &'a str, ending: &str) -> Option<Vec<&'a str>> {
    let line = text
        .lines()
        .find(|line| line.trim_end().ends_with(ending))?;
    Some(line.split_whitespace().collect())
}

#[test]
fn calls_that_allocate_are_a_tree_with_known_bytes() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let kept = drawn("kept", 1000, 4000) / 2 * 2;
    let short = drawn("short-lived", 5000, 9000);
    let source = folder.path().join("prog.c");
    std::fs::write(&source, PROGRAM).expect("the source can be written");
    let program = folder.path().join("prog");
    let status = std::process::Command::new("gcc")
        .args(["-O1", "-g", "-o"])
        .args([&program, &source])
        .args([format!("-DKEPT={kept}"), format!("-DSHORT={short}")])
        .status();
    assert!(status.expect("gcc runs").success());
    let recording = folder.path().join("x.mg");
    let recorded = memgauge()
        .args(["heap", "-q", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program)
        .output()
        .expect("memgauge runs");
    let text = String::from_utf8_lossy(&recorded.stderr).into_owned();
    assert!(recorded.status.success(), "{text}");
    let peak = kept / 2 * 128 + (1 << 20) + 64;
    let title = format!(
        "Heap: {:.2} MiB in use at the peak",
        peak as f64 / f64::from(1 << 20)
    );
    assert!(text.contains(&title), "{title}\n{text}");
    assert!(
        text.contains(&format!("{} allocations", kept + 1 + short)),
        "{text}"
    );

    let by = |number: &str| {
        let shown = memgauge()
            .args(["heap", "--by", number])
            .arg(&recording)
            .output()
            .expect("memgauge runs");
        assert!(shown.status.success());
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        text.split("Calls by").last().unwrap_or_default().to_owned()
    };
    let unfreed = by("unfreed");
    let share = row(&unfreed, "keep (prog.c:5)").expect("the call that keeps memory");
    // It is called from two lines, half of the times each.
    assert_eq!(share[0], "50.0", "{unfreed}");
    assert!(
        !unfreed.contains("buffer") && !unfreed.contains("scratch"),
        "{unfreed}"
    );
    let allocations = by("allocations");
    let of_scratch = row(&allocations, "scratch (prog.c:7)").expect("the short-lived blocks");
    let expected = format!("{:.1}", 100.0 * short as f64 / (kept + 1 + short) as f64);
    assert_eq!(of_scratch[0], expected, "{allocations}");
    assert!(allocations.contains("main (prog.c:"), "{allocations}");
    assert!(!allocations.contains("_start"), "{allocations}");
}

#[test]
fn a_recording_without_allocations_gets_a_way_out() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("x.mg");
    memgauge()
        .args(["record", "-q", "--no-data", "-o"])
        .arg(&recording)
        .args(["--", "true"])
        .assert()
        .success();
    let shown = memgauge()
        .arg("heap")
        .arg(&recording)
        .output()
        .expect("memgauge runs");
    let text = String::from_utf8_lossy(&shown.stderr);
    assert_eq!(shown.status.code(), Some(2), "{text}");
    assert!(
        text.contains("it has no allocations") && text.contains("--no-data"),
        "{text}"
    );
}
