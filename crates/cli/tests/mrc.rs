//! Miss-ratio curves of running programs are compared with closed forms. Address lists may be valid or
//! damaged.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use harness::{Recorded, memgauge, needs, record_workload, workloads, write_machine};
use serde_json::Value;

const PAGE: u64 = 4096;

/// Runs `mrc` with these arguments and JSON into a file.
fn json_of<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("curve.json");
    let output = memgauge()
        .args(["mrc", &format!("--json={}", file.display())])
        .args(arguments)
        .output()
        .expect("memgauge runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = std::fs::read_to_string(&file).expect(&error);
    serde_json::from_str(&text).expect(&error)
}

/// Misses at each of `pages` of a workload's run, references and blocks.
fn misses(workload: &str, pages: &[u64]) -> Vec<f64> {
    let sizes: Vec<String> = pages.iter().map(|p| (p * PAGE).to_string()).collect();
    let sizes = sizes.join(",");
    let options = ["--block", "4096", "--sizes", &sizes, "--", workloads()];
    let json = json_of(options.into_iter().chain(workload.split(' ')));
    let points = json["curves"][0]["points"]
        .as_array()
        .expect("points")
        .clone();
    points
        .iter()
        .map(|p| p["misses"].as_f64().expect("a number"))
        .collect()
}

/// Checks the misses that the measured loop adds, at each size, against a closed form.
/// The difference is at most `slack`, for pages of the rest of the program that the
/// loop pushes out.
fn check(with: &str, without: &str, pages: &[u64], slack: f64, form: impl Fn(u64) -> f64) {
    let (with_loop, alone) = (misses(with, pages), misses(without, pages));
    for (at, &size) in pages.iter().enumerate() {
        let (found, expected) = (with_loop[at] - alone[at], form(size));
        assert!(
            (found - expected).abs() <= slack,
            "{with}: {found} at {size} pages, not {expected}"
        );
    }
}

#[test]
fn sequential_passes_miss_everything_until_the_array_fits() {
    if !needs(&[]) {
        return;
    }
    let form = |pages: u64| if pages < 256 { 10.0 * 256.0 } else { 256.0 };
    let pages = [1, 2, 3, 10, 100, 200, 255, 290, 400, 1000];
    check(
        "bigarray --bytes 1MiB --passes 10",
        "bigarray --bytes 1MiB --passes 00",
        &pages,
        40.0,
        form,
    );
}

#[test]
fn random_increments_make_a_straight_line() {
    if !needs(&[]) {
        return;
    }
    // The standard deviation of the count is at most 512. Until the memory is full, there are up to
    // 256 misses more.
    let steps = 1 << 20;
    let form = |pages: u64| f64::from(steps) * (1.0 - pages.min(256) as f64 / 256.0);
    let pages = [2, 16, 64, 128, 192, 240, 300];
    check(
        "rand --bytes 1MiB --steps 1048576",
        "rand --bytes 1MiB --steps 0000000",
        &pages,
        2100.0,
        form,
    );
}

#[test]
fn a_matrix_times_a_vector_steps_where_the_vector_fits_and_where_all_does() {
    if !needs(&[]) {
        return;
    }
    // 8 rows of 128 pages alternate with a vector of 128 pages, in 5 passes.
    let form = |pages: u64| match pages {
        2..256 => 5.0 * 8.0 * 256.0,
        256..1152 => 128.0 + 5.0 * 1024.0,
        _ => 1152.0,
    };
    let pages = [3, 10, 100, 250, 262, 500, 1000, 1148, 1190, 5000];
    let with = "randmatmult --rows 8 --columns 65536 --passes 5";
    let without = "randmatmult --rows 8 --columns 65536 --passes 0";
    check(with, without, &pages, 90.0, form);
}

#[test]
fn every_load_and_store_is_a_reference() {
    if !needs(&[]) {
        return;
    }
    for workload in ["triad --bytes 64KiB", "rand --bytes 1MiB --steps 10000"] {
        let totals = record_workload(workload);
        // No access crosses a border of blocks this large.
        let options = ["--block", "1T", "--", workloads()];
        let json = json_of(options.into_iter().chain(workload.split(' ')));
        let references = json["curves"][0]["references"].as_f64().unwrap() as i64;
        let expected = totals["loads"] + totals["stores"] - totals["modifies"];
        assert_eq!(references, expected, "{workload}");
    }
}

/// The recorder's first level sees runs of accesses, the curve every single one.
#[test]
fn a_modelled_cache_of_one_set_misses_what_the_curve_says() {
    if !needs(&["sort"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (machine, numbers) = (
        folder.path().join("small.json"),
        folder.path().join("numbers"),
    );
    let [machine_path, numbers_path] = [&machine, &numbers].map(|path| path.to_str().unwrap());
    write_machine(&machine, [(1, 16), (256, 8), (1024, 16)]);
    let lines = (1..3000u64).map(|n| format!("{}\n", n * n % 7919));
    std::fs::write(&numbers, lines.collect::<String>()).unwrap();
    let program = [
        "sort",
        "-n",
        "--parallel=1",
        "-S",
        "1M",
        "-o",
        "/dev/null",
        numbers_path,
    ];
    let totals = Recorded::new(&["--machine", machine_path], &program).totals();
    let options = ["--sizes", "1024", "--"].into_iter();
    let curve = json_of(options.chain(program));
    let curve = &curve["curves"][0];
    assert!(totals["splits"] > 0, "some accesses lie in two lines");
    // The C library asks the processor for its caches when it starts, and does a few instructions
    // more or less for other ones: only a modelled machine has these.
    let near = |found: &Value, expected: i64| {
        let found = found.as_f64().unwrap();
        assert!(
            (found - expected as f64).abs() <= 20.0,
            "{found} of {expected}"
        );
    };
    near(&curve["points"][0]["misses"], totals["l1d.miss"]);
    near(&curve["references"], totals["l1d.miss"] + totals["l1d.hit"]);
}

#[test]
fn a_program_keeps_its_output_and_its_exit_code() {
    if !needs(&[]) {
        return;
    }
    let output = memgauge()
        .args(["mrc", "--", "sh", "-c", "echo kept; exit 7"])
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"kept\n");
    assert_eq!(output.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&output.stderr).contains("distinct blocks"));
    let missing = memgauge()
        .args(["mrc", "--", "no-such-program"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn curves_of_threads_have_the_references_of_the_whole() {
    if !needs(&[]) {
        return;
    }
    let threads = ["threads", "--threads", "2", "--steps", "20000"];
    let json = json_of(
        ["--per-thread", "--", workloads()]
            .into_iter()
            .chain(threads),
    );
    let curves = json["curves"].as_array().unwrap();
    let references = curves.iter().map(|c| c["references"].as_f64().unwrap());
    let references: Vec<f64> = references.collect();
    assert!(references.len() >= 3, "{references:?}");
    assert_eq!(references[0], references[1..].iter().sum::<f64>());
}

/// Curves by part of a program of two passes over an array: titles and references.
fn parts_of_passes(part: &str) -> Vec<(String, f64)> {
    let passes = ["bigarray", "--bytes", "1MiB", "--passes", "2"];
    let json = json_of(["--by", part, "--", workloads()].into_iter().chain(passes));
    let of = |curve: &Value| {
        let title = curve["title"].as_str().expect("a title").to_owned();
        (title, curve["references"].as_f64().expect("a number"))
    };
    json["curves"]
        .as_array()
        .expect("curves")
        .iter()
        .map(of)
        .collect()
}

#[test]
fn curves_of_modules_and_of_regions_have_the_references_of_the_whole() {
    if !needs(&[]) {
        return;
    }
    // Each of 2^17 words is read and written in each pass.
    let passes = f64::from(2 << 17);
    for (part, name) in [("module", "memgauge-workloads"), ("region", "[anon]")] {
        let parts = parts_of_passes(part);
        let sum: f64 = parts[1..].iter().map(|part| part.1).sum();
        assert_eq!(parts[0].1, sum, "{parts:?}");
        let largest = parts[1..].iter().find(|part| part.0.ends_with(name));
        assert!(largest.is_some_and(|part| part.1 >= passes), "{parts:?}");
    }
    let regions = parts_of_passes("region");
    assert!(
        regions
            .iter()
            .any(|part| part.0.ends_with("data in [stack]"))
    );
}

#[test]
fn the_curve_of_several_lists_has_the_misses_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let list = |name: &str, blocks: u64| {
        let path = folder.path().join(name);
        let scan = (0..2 * blocks).map(|n| format!("{}\n", n % blocks * 64));
        std::fs::write(&path, scan.collect::<String>()).unwrap();
        path
    };
    let (short, long) = (list("short", 10), list("long", 100));
    for sampling in [&[][..], &["--sample", "1"]] {
        let output = memgauge()
            .args(["mrc", "--json", "--sizes", "512,640,6400"])
            .args(sampling)
            .args([&short, &long])
            .output()
            .unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let points = json["curves"][0]["points"].as_array().unwrap();
        let misses = points.iter().map(|p| p["misses"].as_f64().unwrap());
        assert_eq!(misses.collect::<Vec<_>>(), [220.0, 210.0, 110.0]);
    }
    let phases = memgauge()
        .args(["mrc", "--phases", "all"])
        .args([&short, &long])
        .output()
        .unwrap();
    assert_eq!(phases.status.code(), Some(2));
}

#[test]
fn more_blocks_than_memory_end_with_a_way_out_and_a_sample_of_them_does_not() {
    let scan: Vec<u8> = (0..300_000u64)
        .flat_map(|n| (64 * n).to_le_bytes())
        .collect();
    for threads in ["1", "2"] {
        let arguments = format!("--format raw --memory 2MiB --threads {threads}");
        let (text, error, code) = of_list(&arguments, scan.clone());
        assert_eq!((text.as_str(), code), ("", Some(125)), "{error}");
        assert!(error.contains("--sample-size 100000"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let (text, error, code) = of_list("--format raw --memory 2MiB --sample-size 1000", scan);
    assert_eq!(code, Some(0), "{error}");
    assert!(text.contains("of about 300"), "{text}");
}

/// Runs `mrc -` with this input. Returns its standard output, its standard error and its exit code.
fn of_list(arguments: &str, input: impl Into<Vec<u8>>) -> (String, String, Option<i32>) {
    let output = memgauge()
        .args(["mrc", "-"])
        .args(arguments.split_whitespace())
        .write_stdin(input)
        .output()
        .expect("memgauge runs");
    let [out, err] =
        [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    (out, err, output.status.code())
}

#[test]
fn a_list_s_curve_is_that_of_its_distances() {
    // 100 lines in turn, 50 times.
    let list: Vec<u8> = (0..5000u64)
        .flat_map(|i| (i % 100 * 64).to_le_bytes())
        .collect();
    let (csv, _, code) = of_list("--csv --sizes 6336,6400", list.clone());
    assert_eq!(code, Some(0));
    assert_eq!(
        csv,
        "curve,block_bytes,bytes,misses,miss_ratio,mpki,half_band_95,against_misses,against_miss_ratio\n\
         \"standard input\",64,6336,5000,1,,,,\n\"standard input\",64,6400,100,0.02,,,,\n"
    );
}

/// A hundred lines in turn for a while, then ten thousand.
fn two_phases() -> Vec<u8> {
    let few = (0..400_000u64).map(|i| i % 100);
    let many = (0..400_000u64).map(|i| 1000 + i % 10_000);
    few.chain(many)
        .flat_map(|line| (line * 64).to_le_bytes())
        .collect()
}

#[test]
fn a_list_of_two_phases_has_a_curve_for_each() {
    let (json, error, code) = of_list(
        "--phases --phase-size 64KiB --phase-window 50000 --sizes 64KiB --json",
        two_phases(),
    );
    assert_eq!(code, Some(0), "{error}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let curves = json["curves"].as_array().unwrap();
    // The first window accesses the hundred lines for the first time, so it is a phase of its own.
    assert_eq!(curves.len(), 3);
    let references: f64 = curves
        .iter()
        .map(|c| c["references"].as_f64().unwrap())
        .sum();
    assert_eq!(references, 800_000.0);
    // Windows end with batches of 65 536 references.
    let border = curves[2]["span"]["from"].as_u64().unwrap();
    assert!(border.abs_diff(400_000) <= 65_536, "{border}");
    let ratio = |at: usize| curves[at]["points"][0]["miss_ratio"].as_f64().unwrap();
    assert!(
        ratio(1) < 0.01 && ratio(2) > 0.8,
        "{} {}",
        ratio(1),
        ratio(2)
    );
}

#[test]
fn collecting_on_change_takes_a_part_and_says_which() {
    let (json, error, code) = of_list(
        "--phases on-change --phase-size 64KiB --phase-window 1 --sizes 64KiB --json",
        [two_phases(), two_phases(), two_phases(), two_phases()]
            .concat()
            .repeat(2),
    );
    assert_eq!(code, Some(0), "{error}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let cost = &json["collection"];
    let [all, some] = ["references", "collected"].map(|f| cost[f].as_u64().unwrap());
    assert_eq!(all, 6_400_000);
    assert!(0 < some && some <= all, "{some}");
    let curves = json["curves"].as_array().unwrap();
    let collected: f64 = curves
        .iter()
        .map(|c| c["references"].as_f64().unwrap())
        .sum();
    assert_eq!(collected, some as f64);
}

#[test]
fn a_curve_by_thread_has_the_misses_per_instruction_of_the_thread() {
    if !needs(&[]) {
        return;
    }
    let threads = [workloads(), "threads", "--threads", "2", "--steps", "20000"];
    let json = json_of(
        ["--per-thread", "--y", "mpki", "--"]
            .into_iter()
            .chain(threads),
    );
    let curves = json["curves"].as_array().unwrap();
    let instructions: Vec<f64> = curves
        .iter()
        .map(|c| c["instructions"].as_f64().unwrap())
        .collect();
    assert_eq!(instructions[0], instructions[1..].iter().sum::<f64>());
    assert!(
        instructions[1..].iter().all(|&n| n > 0.0),
        "{instructions:?}"
    );
}

#[test]
fn addresses_of_a_recording_s_table_are_a_parquet_column() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("r.mg");
    let recorded = memgauge()
        .args(["record", "-e", "dtlb.miss", "-c", "100", "-o"])
        .arg(&recording)
        .args([
            "--",
            workloads(),
            "rand",
            "--bytes",
            "4MiB",
            "--steps",
            "200000",
        ])
        .output()
        .unwrap();
    assert!(recorded.status.success(), "{recorded:?}");
    let part = std::fs::read_dir(recording.join("samples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|e| e == "parquet"))
        .expect("a part");
    let run = |column: &str| {
        let output = memgauge()
            .args(["mrc", "--json", "--format", column])
            .arg(&part)
            .output()
            .unwrap();
        let [out, err] =
            [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        (out, err, output.status.code())
    };
    let (json, _, code) = run("parquet:addr");
    assert_eq!(code, Some(0));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["curves"][0]["references"].as_f64().unwrap() > 100.0);
    let (_, error, code) = run("parquet:nothing");
    assert_eq!(code, Some(125));
    assert!(
        error.contains("`nothing`") && error.contains("addr"),
        "{error}"
    );
}

#[test]
fn bad_lists_and_options_end_with_one_clear_line() {
    let check = |arguments: &str, input: &str, code: i32, says: &str| {
        let (_, error, found) = of_list(arguments, input);
        assert_eq!(found, Some(code), "{arguments} {input}: {error}");
        assert!(error.contains(says), "{arguments} {input}: {error}");
    };
    check("", "", 125, "it is empty");
    check(
        "",
        "no\naddress\n",
        125,
        "2 lines without an address, the first is line 1: no",
    );
    check("--block 63", "1\n", 2, "power of two");
    check("--sample 0", "1\n", 2, "above 0 and at most 1");
    check("--sample 1.5", "1\n", 2, "above 0 and at most 1");
    check("--sample-size 1", "1\n", 2, "64");
    check(
        "--format csv:x",
        "a,b\n1,2\n",
        125,
        "failed to find column `x`",
    );
    check("--y mpki", "1\n", 2, "--instructions");
    check("", "PAR1", 125, "--format parquet:COLUMN");
    check("--format parquet:a", "1\n", 125, "not a Parquet file");
    check("--format csv:", "1\n", 2, "csv:COLUMN");
    check("--phases --block 64,4096", "1\n", 2, "one with --block");
    check("--phases --threads 2", "1\n", 2, "one thread");
    check(
        "--phases --phases-by references",
        "1\n",
        2,
        "no instructions",
    );
    check("--phases --phase-window 0", "1\n", 2, "0");
    check("--phases --sample 0.1", "1\n", 2, "cannot be used with");
    check("--phase-window 5", "1\n", 2, "--phases");
    check("--by module", "1\n", 2, "name a command");
    check("--per-thread", "1\n", 2, "name a command");
    check("--memory 0", "1\n", 2, "above 0");
    check("", "\u{1}\u{2}\n", 125, "it has no addresses");
    check("--full --sizes 1K", "1\n", 2, "cannot be used with");
    let (text, _, code) = of_list("", "7\n");
    assert_eq!(code, Some(0));
    assert!(
        text.contains("every reference is the first to its block"),
        "{text}"
    );
    let (text, _, code) = of_list("", "7\n".repeat(10));
    assert_eq!(code, Some(0));
    assert!(text.contains("10 references, 1 distinct blocks"), "{text}");
    let (text, _, code) = of_list("--format raw", [1u8; 19]);
    assert_eq!(code, Some(0));
    assert!(
        text.contains("3 bytes after the last whole address"),
        "{text}"
    );
    let (text, _, code) = of_list(
        "--block 1",
        "18446744073709551615\n0\njunk\n18446744073709551615\n",
    );
    assert_eq!(code, Some(0));
    assert!(text.contains("3 references, 2 distinct blocks"), "{text}");
    assert!(text.contains("the first is line 3: junk"), "{text}");
}

#[test]
fn a_recording_without_addresses_says_so() {
    let run = Recorded::new(&["--region", "nope"], &["/bin/true"]);
    let out = memgauge().arg("mrc").arg(run.path()).output();
    let out = out.expect("memgauge runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(125), "{said}");
    let why = "no sample of this recording of source emulate has one";
    assert!(said.contains(why), "{said}");
}

#[test]
fn json_of_a_program_needs_a_file_and_leaves_the_program_its_output() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("curve");
    let run = |how: &str, program: &str| {
        let output = memgauge()
            .args(["mrc", how, "--", "sh", "-c", program])
            .output()
            .unwrap();
        let [out, err] =
            [output.stdout, output.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
        (out, err, output.status.code())
    };
    for how in ["--json", "--csv"] {
        let (out, err, code) = run(how, "echo not run");
        assert_eq!((out.as_str(), code), ("", Some(2)), "{err}");
        assert!(err.contains("--json=curve.json"), "{err}");
        let to_file = format!("{how}={}", file.display());
        let (out, err, code) = run(&to_file, "echo out; echo err >&2; exit 3");
        assert_eq!(
            (out.as_str(), err.as_str(), code),
            ("out\n", "err\n", Some(3))
        );
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(written.starts_with(if how == "--json" { "{" } else { "curve," }));
    }
    // JSON and CSV can be written to two files, but not both to standard output.
    let csv = folder.path().join("curve.csv");
    let both = memgauge()
        .args(["mrc", "--block", "64"])
        .arg(format!("--json={}", file.display()))
        .arg(format!("--csv={}", csv.display()))
        .args(["--", "true"])
        .output()
        .unwrap();
    assert_eq!(both.status.code(), Some(0), "{both:?}");
    let written = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    assert!(written(&file).starts_with('{') && written(&csv).starts_with("curve,"));
    let printed = memgauge()
        .args(["mrc", "--json", "--csv", "-"])
        .output()
        .unwrap();
    assert_eq!(printed.status.code(), Some(2), "{printed:?}");
    let (_, err, code) = run("--json=/no/such/folder/c.json", "echo not run");
    assert_eq!(code, Some(125));
    assert!(
        err.contains("failed to write `/no/such/folder/c.json`"),
        "{err}"
    );
}

#[test]
fn the_full_curve_has_each_size_from_which_on_there_are_fewer_misses() {
    // Lines 0 1 … n - 1 and back: distances 0 to n - 2, each twice but the last.
    let n = 300u64;
    let list: Vec<u8> = (0..n)
        .chain((0..n).rev())
        .chain(0..n)
        .flat_map(|i| (64 * i).to_le_bytes())
        .collect();
    let (json, error, code) = of_list("--json --full --format raw", list.clone());
    assert_eq!(code, Some(0), "{error}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let points = json["curves"][0]["points"].as_array().unwrap();
    let sizes: Vec<u64> = points
        .iter()
        .map(|p| p["bytes"].as_u64().unwrap())
        .collect();
    let expected: Vec<u64> = (0..=n).map(|blocks| 64 * blocks).collect();
    assert_eq!(sizes, expected);
    let (csv, _, _) = of_list("--csv --full --format raw", list);
    assert_eq!(csv.lines().count() as u64, n + 2);
}

#[test]
fn a_table_says_what_was_passed_over_on_standard_error() {
    let (csv, error, code) = of_list("--csv --sizes 1K", "7\njunk\n7\n");
    assert_eq!(code, Some(0));
    assert!(
        error.contains("1 lines without an address, the first is line 2: junk"),
        "{error}"
    );
    assert_eq!(csv.lines().count(), 2, "{csv}");
}

#[test]
fn sizes_and_blocks_are_read_as_people_write_them() {
    let (json, error, code) = of_list("--json --block 4K --sizes 1.5MiB,64kB", "7\n9000\n");
    assert_eq!(code, Some(0), "{error}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let curve = &json["curves"][0];
    assert_eq!(curve["block_bytes"], 4096);
    assert_eq!(curve["points"][0]["bytes"], 3 << 19);
    assert_eq!(curve["points"][1]["bytes"], 64_000);
}

/// Misses do not depend on how many events a sample stands for.
#[test]
fn curves_of_a_recording_are_scaled_to_what_was_counted() {
    if !needs(&[]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut found = Vec::new();
    for period in ["1", "10"] {
        let recording = folder.path().join(period);
        let recorded = memgauge()
            .args(["record", "-q", "--machine", "i5-6600k"])
            .args(["-e", "dtlb.miss", "-c", period, "-o"])
            .arg(&recording)
            .args([
                "--",
                workloads(),
                "rand",
                "--bytes",
                "4MiB",
                "--steps",
                "300000",
            ])
            .output()
            .unwrap();
        assert!(recorded.status.success(), "{recorded:?}");
        let output = memgauge()
            .args(["mrc", "--json", "--block", "4K", "--sizes", "1MiB"])
            .arg(&recording)
            .output()
            .unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let manifest = std::fs::read_to_string(recording.join("manifest.json")).unwrap();
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        let counted = manifest["totals"]["dtlb.miss"].as_f64().unwrap();
        let curve = json["curves"][0].clone();
        let references = curve["references"].as_f64().unwrap();
        assert!(
            (references / counted - 1.0).abs() < 1e-9,
            "{references} {counted}"
        );
        let note = curve["note"].as_str().unwrap().to_owned();
        assert!(note.contains(" counted"), "{note}");
        if period != "1" {
            assert_eq!(curve["provenance"], "sampled");
        }
        found.push((references, curve["points"][0]["misses"].as_f64().unwrap()));
    }
    // A sample of random pages is random as well, so its curve has the same shape. It differs by
    // the pages that the TLB holds. Misses never access these pages, but a tenth of the samples
    // may.
    let [(all, exact), (_, tenth)] = found[..] else {
        panic!("two periods");
    };
    assert!((exact - tenth).abs() < 0.06 * all, "{found:?}");
}

#[test]
fn partition_shows_where_greedy_fails() {
    let folder = tempfile::tempdir().unwrap();
    // One curve has hits only if 60 lines fit. The other one improves a little with each line.
    let scan: String = (0..6000).map(|i| format!("{}\n", i % 60 * 64)).collect();
    let slope: String = (0..100_000u64)
        .map(|i| format!("{}\n", i * i * 31 % 101 * 64))
        .collect();
    let [a, b] = [("a", scan), ("b", slope)].map(|(name, list)| {
        let path = folder.path().join(name);
        std::fs::write(&path, list).unwrap();
        path
    });
    let output = memgauge()
        .args(["partition", "--total", "6400", "--json"])
        .args([a, b])
        .output()
        .unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let misses = |at: usize| json["divisions"][at]["misses"].as_f64().unwrap();
    assert!(misses(2) <= misses(1) && misses(1) <= misses(0));
    for bad in [
        ["--total", "6400", "--block", "64,4K"],
        ["--total", "10", "--block", "64"],
    ] {
        let output = memgauge()
            .arg("partition")
            .args(bad)
            .arg("/dev/null")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}
