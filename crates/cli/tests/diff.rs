//! `memgauge diff`, its gates and baselines, end to end.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::Path;
use std::process::{Command, Output};

use harness::{Recorded, memgauge, needs, said};
use memgauge_testing::{Need, skipped};

/// `extra` passes over an array of 1 MiB are in a function of their own.
const SOURCE: &str = r"
#include <stdlib.h>
static volatile long array[1 << 17];
__attribute__((noinline)) void fill(void) { for (int i = 0; i < 1 << 17; i++) array[i] = i; }
__attribute__((noinline)) void added_pass(int n) {
    while (n-- > 0) for (int i = 0; i < 1 << 17; i++) array[i] += 1;
}
int main(int argc, char **argv) { fill(); added_pass(atoi(argv[1])); return argc != 2; }
";

fn program(folder: &Path) -> String {
    let source = folder.join("passes.c");
    let program = folder.join("passes");
    std::fs::write(&source, SOURCE).expect("the source can be written");
    let status = Command::new("gcc")
        .args(["-O1", "-g", "-o"])
        .args([&program, &source])
        .status()
        .expect("gcc runs");
    assert!(status.success());
    program
        .to_str()
        .expect("temporary paths are text")
        .to_owned()
}

fn record(program: &str, passes: &str) -> Recorded {
    Recorded::new(&["--machine", "i5-6600k"], &[program, passes])
}

fn diff(before: &Path, after: &Path, options: &[&str]) -> Output {
    let mut command = memgauge();
    command.arg("diff").args([before, after]).args(options);
    command.output().expect("memgauge runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_added_pass_is_named_first_gates_say_what_failed_and_equal_runs_are_equal() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = program(folder.path());
    let (one, same, two) = (
        record(&program, "0"),
        record(&program, "0"),
        record(&program, "1"),
    );

    let baseline = folder.path().join("baseline.json");
    let written = memgauge()
        .arg("report")
        .arg(one.path())
        .arg("--baseline")
        .arg(&baseline)
        .output()
        .expect("memgauge runs");
    assert!(written.status.success(), "{}", said(&written));

    for before in [&one.path(), &baseline] {
        let equal = diff(before, &same.path(), &["--fail-if", "l1d.miss > +0%"]);
        assert_eq!(
            (out(&equal).as_str(), equal.status.code()),
            ("Nothing changed.\n", Some(0))
        );

        let json = out(&diff(before, &two.path(), &["--json"]));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(
            json["functions"][0]["function"], "added_pass (passes)",
            "{json:#}"
        );
        // The pass loads and stores each of 2¹⁷ words once.
        let metrics = json["metrics"].as_array().expect("metrics");
        let stores = metrics
            .iter()
            .find(|m| m["name"] == "stores")
            .expect("stores");
        let more = stores["difference"].as_f64().expect("a number");
        assert!((131_072.0..131_172.0).contains(&more), "{more}");
    }

    let gates = ["--fail-if", "stores > +5%", "--fail-if", "stores > 1 G"];
    let failed = diff(&baseline, &two.path(), &gates);
    assert_eq!(failed.status.code(), Some(1));
    // One line says which gate failed, another one why.
    assert_eq!(said(&failed).lines().count(), 2, "{}", said(&failed));
    assert!(
        said(&failed).contains("the program did other work: instructions +"),
        "{}",
        said(&failed)
    );
    assert!(
        said(&failed).contains("gate `stores > +5%` failed: before ")
            && said(&failed).contains(" %)"),
        "{}",
        said(&failed)
    );
    assert!(
        out(&failed).lines().all(|line| line.chars().count() <= 80),
        "{}",
        out(&failed)
    );

    let bytes = diff(&baseline, &two.path(), &["--fail-if", "stores > 5 MiB"]);
    assert_eq!(bytes.status.code(), Some(2));
    assert!(
        said(&bytes).contains("`stores` is a count"),
        "{}",
        said(&bytes)
    );

    let pattern = folder.path().join("nosuch-*.mg");
    let unmatched = memgauge()
        .args(["diff", "--before"])
        .arg(&pattern)
        .arg("--after")
        .args([one.path(), two.path()])
        .output()
        .expect("memgauge runs");
    assert_eq!(unmatched.status.code(), Some(2));
    assert!(said(&unmatched).contains("no file matches the pattern"));

    let unknown = diff(&baseline, &two.path(), &["--fail-if", "dram.reads > +5%"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        said(&unknown).contains("dram.read_bytes"),
        "{}",
        said(&unknown)
    );
}

/// A file without names is no damage of the recording.
#[test]
fn damage_is_said_and_a_program_built_anew_is_none() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = program(folder.path());
    let [one, two] = [(); 2].map(|()| record(&program, "0"));
    std::fs::write(&program, "another program").expect("it can be written");
    let compared = || out(&diff(&one.path(), &two.path(), &[]));
    assert!(!compared().contains("Damaged recordings"), "{}", compared());

    let parts = std::fs::read_dir(two.path().join("samples")).expect("a table");
    let part = parts.flatten().next().expect("a part").path();
    std::fs::write(&part, "no Parquet").expect("it can be written");
    let text = compared();
    assert!(text.contains("Damaged recordings (after): "), "{text}");
}

fn groups(before: &[&Recorded], after: &[&Recorded], options: &[&str]) -> Output {
    let mut command = memgauge();
    command.arg("diff").arg("--before");
    command.args(before.iter().map(|run| run.path()));
    command
        .arg("--after")
        .args(after.iter().map(|run| run.path()));
    command.args(options).output().expect("memgauge runs")
}

#[test]
fn groups_of_runs_have_intervals_and_name_functions_and_lines() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = program(folder.path());
    let before = [record(&program, "0"), record(&program, "0")];
    let before = [&before[0], &before[1]];
    let again = [record(&program, "0"), record(&program, "0")];
    let again = [&again[0], &again[1]];
    for twice in [[&before, &before], [&[again[0]; 2], &before]] {
        let refused = groups(twice[0], twice[1], &[]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            said(&refused).contains("is named twice"),
            "{}",
            said(&refused)
        );
    }
    let equal = groups(&before, &again, &["--fail-if", "stores > +0%"]);
    assert_eq!(equal.status.code(), Some(0), "{}", said(&equal));
    assert!(
        out(&equal).ends_with("Nothing changed.\n"),
        "{}",
        out(&equal)
    );

    let after = [record(&program, "1"), record(&program, "1")];
    let after = [&after[0], &after[1]];
    let compared = groups(&before, &after, &["--json", "-e", "stores"]);
    let json: serde_json::Value = serde_json::from_str(&out(&compared)).expect("JSON");
    assert_eq!(json["ranked_by"], "stores");
    assert_eq!(json["functions"][0]["function"], "added_pass (passes)");
    let line = json["lines"][0]["function"].as_str().expect("a line");
    assert!(
        line.starts_with("passes.c:") && line.ends_with(" added_pass"),
        "{line}"
    );
    // Deterministic runs have no spread: the interval is the difference, 2¹⁷ stores.
    assert_eq!(
        json["functions"][0]["interval"],
        serde_json::json!([131_072.0, 131_072.0])
    );
    let gated = groups(
        &before,
        &after,
        &["--width", "80", "--fail-if", "stores > +5%"],
    );
    assert_eq!(gated.status.code(), Some(1), "{}", out(&gated));
    assert!(
        out(&gated).lines().all(|line| line.chars().count() <= 80),
        "{}",
        out(&gated)
    );

    let refused = |output: Output, why: &str| {
        let text = said(&output);
        assert_eq!(
            (output.status.code(), text.lines().count()),
            (Some(2), 1),
            "{text}"
        );
        assert!(text.contains(why), "{text}");
    };
    refused(groups(&before[..1], &after, &[]), "--before has one run");
    let other = Recorded::new(&["--machine", "zen4"], &[&program, "0"]);
    refused(
        groups(&[before[0], &other], &after, &[]),
        "different machines",
    );
    refused(groups(&before, &after, &["-e", "nosuch"]), "use one of");
}

#[test]
fn sampled_functions_are_compared_with_intervals() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = program(folder.path());
    let sampled = |name: &str, passes: &str| {
        let path = folder.path().join(name);
        let output = memgauge()
            .args([
                "record",
                "--quiet",
                "-e",
                "cpu-clock:u",
                "-c",
                "20000",
                "-o",
            ])
            .arg(&path)
            .args(["--", &program, passes])
            .output()
            .expect("memgauge runs");
        match output.status.success() {
            true => Some(path),
            false => {
                skipped(Need::Kernel, said(&output));
                None
            }
        }
    };
    let (Some(one), Some(two)) = (sampled("one.mg", "3"), sampled("two.mg", "600")) else {
        return;
    };
    let same = out(&diff(&one, &one, &[]));
    assert_eq!(same, "Nothing changed.\n");
    let json = out(&diff(&one, &two, &["--json", "-e", "cpu-clock:u"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    // A busy machine leaves the short run few samples: the order is chance.
    let rows = json["sampled"]["rows"].as_array().expect("rows").iter();
    let mut rows = rows.filter(|row| row["name"] == "added_pass (passes)");
    let first = rows.next().unwrap_or_else(|| panic!("{json:#}"));
    let end = |end: usize| first["interval"][end].as_f64().expect("a number");
    let difference = first["difference"].as_f64().expect("a number");
    assert!(
        0.0 < end(0) && end(0) < difference && difference < end(1),
        "{first}"
    );
}

/// Several runs, each compared with the first: as text, JSON, a page, and by gates.
#[test]
fn several_runs_are_each_compared_with_the_first() {
    if !needs(&["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = program(folder.path());
    let runs = ["0", "0", "1", "3"].map(|passes| record(&program, passes));
    let paths = [0, 1, 2, 3].map(|run: usize| runs[run].path());
    let diff = |options: &[&str]| {
        let mut command = memgauge();
        command
            .arg("diff")
            .args(&paths)
            .args(options)
            .current_dir(folder.path());
        command.output().expect("memgauge runs")
    };
    let output = diff(&["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let json: serde_json::Value = serde_json::from_str(&out(&output)).expect("JSON");
    let comparisons = json["comparisons"].as_array().expect("comparisons");
    let changed: Vec<bool> = comparisons
        .iter()
        .map(|run| run["changed"] == true)
        .collect();
    assert_eq!(changed, [false, true, true]);
    let misses = |run: usize| runs[run].totals()["l1d.miss"];
    for (run, comparison) in (1..).zip(comparisons) {
        let metrics = comparison["metrics"].as_array().expect("metrics");
        let metric = metrics.iter().find(|metric| metric["name"] == "l1d.miss");
        let difference = metric.expect("a metric")["difference"].as_f64();
        assert_eq!(difference, Some((misses(run) - misses(0)) as f64));
    }
    let added = &comparisons[2]["functions"][0];
    assert_eq!(
        (&added["function"], &added["only"]),
        (&"added_pass (passes)".into(), &serde_json::Value::Null)
    );

    let text = out(&diff(&[]));
    let row = text
        .lines()
        .find(|line| line.contains("added_pass (passes)"));
    let cells: Vec<&str> = row.expect("a row").split_whitespace().collect();
    // The name, the first run, and the second one, which is as the first.
    assert_eq!(cells[3], "=", "{text}");
    assert!(text.starts_with("A  ") && text.contains("D  "), "{text}");
    assert!(text.contains("dram.read_bytes over time"), "{text}");

    let output = diff(&["--fail-if", "l1d.miss > +5%"]);
    let failed = said(&output);
    assert_eq!(output.status.code(), Some(1), "{failed}");
    let named: Vec<bool> = (paths.iter())
        .map(|path| failed.contains(&format!("{}: gate", path.display())))
        .collect();
    assert_eq!(named, [false, false, true, true], "{failed}");

    let output = diff(&["--html"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let page = std::fs::read_to_string(folder.path().join("diff.html")).expect("a page");
    assert!(page.contains("<bdi>added_pass (passes)</bdi>"), "{page}");
    let curves = page.matches("<path class=\"curve r").count();
    // These are the curves that were read. Nothing is written back. Four runs, each with its curve and its key.
    assert_eq!(curves, 4 * 2);
    let one = memgauge()
        .arg("diff")
        .arg(&paths[0])
        .output()
        .expect("memgauge runs");
    assert_eq!(one.status.code(), Some(2), "{}", said(&one));
}
