//! `memgauge report` prints from a recording, as text and as JSON, all that the recording verb printed. Of
//! a damaged recording it shows the good parts and names the bad ones.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use memgauge_testing::{Need, skipped};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use harness::{folder, memgauge, needs, perf_works, said, workloads};
use serde_json::Value;

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs memgauge in a folder, off a terminal and without a width in the environment.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = memgauge();
    command
        .env_remove("COLUMNS")
        .current_dir(folder)
        .args(arguments);
    command.output().expect("memgauge runs")
}

fn succeeds(folder: &Path, arguments: &[&str]) -> Output {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    output
}

fn report(folder: &Path, recording: &str) -> String {
    printed(&succeeds(folder, &["report", recording]))
}

fn report_json(folder: &Path, recording: &str) -> Value {
    let output = succeeds(folder, &["report", "--json", recording]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_report_goes_to_the_file_that_output_names() {
    let folder = folder();
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/recordings/stat.mg"
    );
    for options in [&["report", recording][..], &["report", "--json", recording]] {
        let expected = printed(&succeeds(folder.path(), options));
        let with_file = [options, &["-o", "written"]].concat();
        assert_eq!(
            printed(&succeeds(folder.path(), &with_file)),
            "",
            "{options:?}"
        );
        let written = std::fs::read_to_string(folder.path().join("written"));
        assert_eq!(written.expect("a report"), expected, "{options:?}");
        let to_output = [options, &["-o", "-"]].concat();
        assert_eq!(printed(&succeeds(folder.path(), &to_output)), expected);
        let nowhere = [options, &["-o", "/no/such/folder/x"]].concat();
        let output = run(folder.path(), &nowhere);
        assert_eq!(output.status.code(), Some(125), "{}", said(&output));
        assert!(said(&output).contains("failed to write `/no/such/folder/x`"));
    }
}

/// Every line of `part` is one of `whole`.
fn check_contained(part: &str, whole: &str) {
    let lines: Vec<&str> = whole.lines().collect();
    for line in part.lines() {
        assert!(lines.contains(&line), "`{line}` is not in:\n{whole}");
    }
}

#[test]
fn a_report_has_every_line_that_stat_printed() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    for options in [
        &["-e", "page-faults,context-switches"][..],
        &["-e", "page-faults", "-I", "1ms", "--timer-cost"][..],
    ] {
        let program = ["--", workloads(), "write", "--bytes", "16MiB"];
        let stat = [&["stat", "-f", "-o", "s.mg"], options, &program].concat();
        let said = said(&succeeds(folder.path(), &stat));
        let (counted, _) = said.rsplit_once("\nrecording: ").expect("the closing line");
        assert!(counted.contains("page-faults"), "{counted}");
        check_contained(counted, &report(folder.path(), "s.mg"));
        assert_eq!(
            report_json(folder.path(), "s.mg")["bandwidth"]["read_bytes"],
            Value::Null
        );
    }
}

#[test]
fn a_report_has_in_json_what_stat_had() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let stat = [
        "stat",
        "-I",
        "1ms",
        "-e",
        "page-faults",
        "--json=rows",
        "-o",
        "s.mg",
        "--",
    ];
    let program = [workloads(), "write", "--bytes", "16MiB"];
    succeeds(folder.path(), &[&stat[..], &program].concat());
    let rows = std::fs::read_to_string(folder.path().join("rows")).expect("rows");
    let mut last: Value =
        serde_json::from_str(rows.lines().last().expect("a summary")).expect("JSON");
    let report = report_json(folder.path(), "s.mg");
    let object = last.as_object_mut().expect("an object");
    for (key, place) in [
        ("losses", "/losses"),
        ("end", "/recording/end"),
        ("own_cost", "/own_cost"),
    ] {
        assert_eq!(object.remove(key).as_ref(), report.pointer(place), "{key}");
    }
    assert_eq!(last, report["counting"]);
    let faults = &last["totals"][0];
    let bins = faults["over_time"]["values"].as_array().expect("a curve");
    let sum: u64 = bins.iter().filter_map(Value::as_u64).sum();
    assert_eq!(Some(sum), faults["value"].as_u64());
}

#[test]
fn a_machine_that_idles_uses_no_processors() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let stat = [
        "stat", "-a", "-I", "10ms", "-o", "a.mg", "--", "sleep", "0.1",
    ];
    let output = run(folder.path(), &stat);
    if !output.status.success() {
        return skipped(Need::Kernel, said(&output));
    }
    assert!(
        !said(&output).contains("processors used"),
        "{}",
        said(&output)
    );
    assert!(report(folder.path(), "a.mg").contains("all processors"));
}

/// Faults once a page in one function, of a name that no table has room for.
const LONG: &str = "a_function_whose_name_is_longer_than_any_column_of_a_table_of_eighty";

fn compiled(folder: &Path) -> PathBuf {
    let source = format!(
        "#include <stdlib.h>\n\
         __attribute__((noinline)) void {LONG}(volatile char *p) {{\n\
         for (long i = 0; i < 64 << 20; i += 4096)\n\
         p[i] = 1;\n\
         }}\n\
         int main(void) {{ {LONG}(malloc(64 << 20)); return 0; }}\n"
    );
    let program = memgauge_testing::compiled(folder, "p.c", &source, &["-g", "-O1"]);
    PathBuf::from(program.expect("gcc is installed"))
}

/// Page faults of the program, each a sample.
fn faults(folder: &Path, name: &str) {
    let program = compiled(folder);
    let program = program.to_str().expect("temporary paths are text");
    let ring = ["--ring", "512", "-q", "-o", name, "--", program];
    let record = [&["record", "-e", "page-faults:u", "-c", "1"], &ring[..]].concat();
    succeeds(folder, &record);
}

#[test]
fn samples_are_reported_by_function_line_and_instruction() {
    if !needs(&["gcc"]) || !perf_works() {
        return;
    }
    let folder = folder();
    faults(folder.path(), "f.mg");
    let json = report_json(folder.path(), "f.mg");
    let first = |table: &str| json["hot"][table]["rows"][0].clone();
    for table in ["functions", "lines", "instructions"] {
        assert_eq!(first(table)["function"], LONG, "{table}");
        // By construction: 16 384 pages of some 16 500 faults.
        let samples = first(table)["samples"].as_u64();
        assert!(
            samples.is_some_and(|n| (16_000..=16_400).contains(&n)),
            "{samples:?}"
        );
        // At period 1 every fault is there, so the share has no interval.
        assert!(first(table)["share_low"].is_null(), "{table}");
        let share = first(table)["share"].as_f64().expect("a share");
        assert!((0.95..=1.0).contains(&share), "{table}: {share}");
    }
    assert_eq!(first("lines")["line"], 4);
    assert!(first("instructions")["offset"].is_u64());
    let sampled = &json["sampling"]["events"][0];
    assert_eq!(sampled["event"], "page-faults:u");
    assert_eq!(sampled["counted"], sampled["samples"]);
    assert_eq!(json["heat"]["samples"], sampled["with_address"]);
    let text = report(folder.path(), "f.mg");
    for words in ["Samples", "Hottest instructions", "Heat map", "p.c:4", LONG] {
        assert!(text.contains(words), "`{words}` is not in {text}");
    }
}

#[test]
fn tables_have_as_many_rows_as_asked_for() {
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recordings");
    for rows in [1, 7, 10, 30] {
        let output = succeeds(
            &recordings,
            &["report", "--rows", &rows.to_string(), "faults.mg"],
        );
        let text = printed(&output);
        let table = text.split("Hottest functions").nth(1).expect("a table");
        let table = table.split("\n\n").next().expect("a table");
        // Below the title are the names of the columns, and last the sum of the others.
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert!(
            lines.last().is_some_and(|line| line.contains("other")),
            "{table}"
        );
        assert_eq!(lines.len() - 1, rows, "{table}");
    }
}

#[test]
fn nothing_is_cut_off_a_terminal_unless_a_width_is_named() {
    if !needs(&["gcc"]) || !perf_works() {
        return;
    }
    let folder = folder();
    faults(folder.path(), "w.mg");
    assert!(report(folder.path(), "w.mg").contains(LONG));
    let longest = |output: Output| {
        let widths = printed(&output)
            .lines()
            .map(|line| line.chars().count())
            .max();
        widths.expect("lines")
    };
    let asked = succeeds(folder.path(), &["report", "--width", "90", "w.mg"]);
    let text = printed(&asked);
    let table = text.split("Hottest functions").nth(1).expect("a table");
    let table = table.split("\n\n").next().expect("a table");
    assert!(!table.contains(LONG), "{table}");
    assert!(longest(asked) <= 90);
    let mut command = memgauge();
    command.args(["report", "w.mg"]).current_dir(folder.path());
    let told = command
        .env("COLUMNS", "100")
        .output()
        .expect("memgauge runs");
    assert!(longest(told) <= 100);
}

#[test]
fn a_damaged_part_of_samples_is_named_and_the_rest_shown() {
    if !needs(&["gcc"]) || !perf_works() {
        return;
    }
    let folder = folder();
    faults(folder.path(), "d.mg");
    let part = folder.path().join("d.mg/samples/part-000000.parquet");
    let mut bytes = std::fs::read(&part).expect("a part");
    bytes[100] ^= 1;
    std::fs::write(&part, bytes).expect("it can be written");
    let output = run(folder.path(), &["report", "d.mg"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(
        said(&output).contains("part-000000.parquet"),
        "{}",
        said(&output)
    );
    let text = printed(&output);
    assert!(
        text.contains("damaged") && text.contains("Cost of recording"),
        "{text}"
    );
    let json = run(folder.path(), &["report", "--json", "d.mg"]);
    assert_eq!(json.status.code(), Some(3), "{}", said(&json));
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let problems = json["problems"].clone();
    assert_eq!(problems.as_array().map(Vec::len), Some(1), "{problems}");
    let curve = run(folder.path(), &["mrc", "d.mg"]);
    // No sample is left that could be read.
    assert_eq!(curve.status.code(), Some(125), "{}", said(&curve));
    assert!(
        said(&curve).contains("part-000000.parquet"),
        "{}",
        said(&curve)
    );
    assert_eq!(
        said(&curve).matches("damaged").count(),
        1,
        "{}",
        said(&curve)
    );
}

/// A recording with a damaged table, which is not the one that is shown.
#[test]
fn a_curve_and_a_bandwidth_of_a_damaged_recording_end_with_3() {
    if !needs(&[]) {
        return;
    }
    let folder = folder();
    let program = [workloads(), "rand", "--bytes", "1MiB", "--steps", "100k"];
    let traced = [
        &["bandwidth", "-q", "-c", "10", "-o", "b.mg", "--"],
        &program[..],
    ]
    .concat();
    succeeds(folder.path(), &traced);
    let sampled = [
        &["record", "-q", "--source", "emulate", "-e", "loads:100"],
        &["-o", "m.mg", "--"][..],
        &program[..],
    ]
    .concat();
    succeeds(folder.path(), &sampled);
    for (recording, show) in [
        ("b.mg", &["bandwidth", "-i", "b.mg"][..]),
        ("m.mg", &["report", "m.mg"]),
    ] {
        succeeds(folder.path(), show);
        let part = folder
            .path()
            .join(recording)
            .join("sites/part-000000.parquet");
        std::fs::write(&part, "no part").expect("it can be written");
        let output = run(folder.path(), show);
        assert_eq!(output.status.code(), Some(3), "{show:?}: {}", said(&output));
        assert!(
            said(&output).contains("sites/part-000000.parquet"),
            "{}",
            said(&output)
        );
        assert!(!output.stdout.is_empty(), "{show:?}");
    }
}

#[test]
fn losses_of_a_killed_recorder_are_not_called_none() {
    if !perf_works() {
        return;
    }
    let folder = folder();
    let mut recorder = Command::new(harness::PROGRAM)
        .args([
            "stat",
            "-I",
            "1ms",
            "-e",
            "page-faults",
            "-o",
            "k.mg",
            "--",
            "sleep",
            "60",
        ])
        .current_dir(folder.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("memgauge runs");
    let manifest = folder.path().join("k.mg/manifest.json");
    while !manifest.exists() {
        assert!(
            recorder.try_wait().expect("it is ours").is_none(),
            "it ended"
        );
        std::thread::yield_now();
    }
    recorder.kill().expect("it runs");
    recorder.wait().expect("it ends");
    let text = report(folder.path(), "k.mg");
    assert!(!text.contains("Losses: none"), "{text}");
    assert!(text.contains("the losses are not known"), "{text}");
}

/// Number of samples that perf itself counts in its recording.
fn samples_by_perf(folder: &Path, input: &str) -> Option<usize> {
    let mut perf = Command::new("perf");
    perf.args(["script", "-F", "ip", "-i", input])
        .current_dir(folder);
    let output = perf.stderr(Stdio::null()).output().ok()?;
    let lines = printed(&output);
    output.status.success().then(|| lines.lines().count())
}

fn perf_record(folder: &Path, options: &[&str]) -> bool {
    let mut perf = Command::new("perf");
    perf.args(["record", "-e", "page-faults:u", "-c", "1"])
        .args(options);
    perf.args(["--", workloads(), "write", "--bytes", "4MiB"]);
    let output = perf.current_dir(folder).output();
    let works = output.as_ref().is_ok_and(|output| output.status.success());
    if !works {
        skipped(Need::Tool, format!("perf: {output:?}"));
    }
    works
}

#[test]
fn a_directory_of_perfs_threads_is_imported_whole_and_reported_as_printed() {
    let folder = folder();
    if !perf_record(folder.path(), &["--threads", "-o", "t"]) {
        return;
    }
    let imported = printed(&succeeds(folder.path(), &["import", "t", "-o", "t.mg"]));
    let (shown, _) = imported
        .rsplit_once("\nRecording: ")
        .expect("the closing line");
    check_contained(shown, &report(folder.path(), "t.mg"));
    let samples = report_json(folder.path(), "t.mg")["sampling"]["events"][0]["samples"].clone();
    let by_perf = samples_by_perf(folder.path(), "t").expect("perf script");
    assert_eq!(samples.as_u64(), Some(by_perf as u64));
    // Naming the file inside the folder has the same effect.
    let within = succeeds(folder.path(), &["import", "t/data", "--json", "-o", "u.mg"]);
    let within: Value = serde_json::from_slice(&within.stdout).expect("JSON");
    assert_eq!(within["samples"][0]["samples"], samples);
}

#[test]
fn a_pipe_from_perf_is_imported() {
    let folder = folder();
    if !perf_record(folder.path(), &["-o", "file"]) {
        return;
    }
    let perf = "perf record -e page-faults:u -c 1 -o - -- ";
    let script = format!(
        "{perf} {} write --bytes 4MiB 2>/dev/null | {} import - -q -o p.mg",
        workloads(),
        harness::PROGRAM
    );
    let mut shell = Command::new("sh");
    let output = shell
        .args(["-c", &script])
        .current_dir(folder.path())
        .output();
    let output = output.expect("sh runs");
    assert!(output.status.success(), "{}", said(&output));
    succeeds(folder.path(), &["import", "file", "-q", "-o", "f.mg"]);
    let samples = |name| {
        let events = report_json(folder.path(), name)["sampling"]["events"].clone();
        events[0]["samples"].as_u64().expect("samples")
    };
    // The two runs differ by the address of the loader.
    assert!(samples("p.mg").abs_diff(samples("f.mg")) < 50);
    assert!(samples("p.mg") > 20);
    let nothing = std::fs::read_dir(folder.path()).expect("the folder");
    let mut left: Vec<_> = nothing.map(|e| e.expect("an entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["f.mg", "file", "p.mg"]);
}

#[test]
fn completions_and_the_manual_name_every_verb() {
    let place = folder();
    let help = printed(&succeeds(place.path(), &["--help"]));
    let commands = help.split("Commands:").nth(1).expect("a list of commands");
    let commands = commands.split("\n\n").next().expect("its lines");
    let verbs: Vec<&str> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|verb| !verb.is_empty() && *verb != "help")
        .collect();
    assert!(verbs.len() > 10, "{help}");
    let shells = ["bash", "zsh", "fish"];
    let scripts = shells.map(|shell| printed(&succeeds(place.path(), &["completions", shell])));
    succeeds(place.path(), &["man", "man1"]);
    for verb in verbs {
        for script in &scripts {
            assert!(script.contains(verb), "no {verb} in:\n{script}");
        }
        let page = place.path().join(format!("man1/memgauge-{verb}.1"));
        let page = std::fs::read_to_string(&page).expect("a page of the manual");
        assert!(
            page.contains(".SH OPTIONS") && page.contains(".SH SYNOPSIS"),
            "{page}"
        );
    }
    let refused = run(place.path(), &["man", "/proc/man1"]);
    assert!(
        said(&refused).contains("`/proc/man1`"),
        "{}",
        said(&refused)
    );
}
