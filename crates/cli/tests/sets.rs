//! `--sets` models some cache sets and estimates all of them.
//!
//! Exact numbers are compared with those of a complete recording. Estimates are compared with streams of
//! known misses and with exact runs.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;

use harness::{Recorded, compiled, memgauge, needs, report_text, workloads};
use serde_json::Value;

/// Events that a run with some sets does not have, and those that depend on them: times, and
/// therefore the queue to memory.
const NOT_MODELLED: [&str; 29] = [
    "heap.allocations",
    "heap.functions",
    "heap.late_changes",
    "heap.peak_bytes",
    "heap.unfreed_bytes",
    "heap.untouched_bytes",
    "heap.unknown_frees",
    "dtlb.miss",
    "stlb.hit",
    "dtlb.walk",
    "stall.tlb",
    "stall.sharing",
    "coherence.hitm",
    "coherence.upgrade",
    "coherence.invalidation",
    "coherence.true_sharing",
    "coherence.false_sharing",
    "l1d.conflict",
    "stall.irregular",
    "stall.regular",
    "stall.writebacks",
    "stall.stores",
    "stall.l2",
    "stall.llc",
    "stall.dram",
    "stall.queue",
    "cycles",
    "virtual_ns",
    "idle_ns",
];

/// Counted in full however few sets are followed.
const EXACT: [&str; 4] = ["instructions", "loads", "stores", "modifies"];

fn record(program: &[&str], options: &[&str]) -> Recorded {
    let options = [&["--machine", "skylake-sp"], options].concat();
    Recorded::with(&options, program, |command| {
        command.env("PYTHONHASHSEED", "0");
    })
}

fn all_sets_equal_exact(program: &[&str]) {
    let both = || (record(program, &[]), record(program, &["--sets", "1/1"]));
    let instructions = |recorded: &Recorded| recorded.totals().get("instructions").copied();
    // A shell executes about 40 instructions more if its child ends before it waits for it.
    let did_the_same =
        |(exact, all): &(Recorded, Recorded)| instructions(exact) == instructions(all);
    let pair = std::iter::repeat_with(both).take(6).find(did_the_same);
    let (exact, all) = pair.expect("one pair of six executed equally much");
    let (mut expected, seen) = (exact.totals(), all.totals());
    expected.retain(|name, _| !NOT_MODELLED.contains(&name.as_str()));
    for (name, count) in &expected {
        assert_eq!(seen.get(name), Some(count), "{name} of {program:?}");
    }
    for absent in ["dtlb.miss", "coherence.false_sharing"] {
        assert!(!seen.contains_key(absent), "{absent} in {seen:?}");
    }
    assert_eq!(
        functions(&exact),
        functions(&all),
        "functions of {program:?}"
    );
}

/// Functions with the counts of the events that are modelled in both.
fn functions(recorded: &Recorded) -> Vec<(String, Vec<(String, i64)>)> {
    let mut command = memgauge();
    command.arg("report").arg(recorded.path());
    // By default they are ranked by cycles, which are not known by function with --sets.
    let output = command.args(["--json", "--event", "l1d.miss"]).output();
    let output = output.expect("memgauge runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = report["hot"]["functions"]["rows"].as_array();
    let rows = rows.expect("rows").iter().map(|row: &Value| {
        let events = row["counts"].as_object().expect("counts");
        let counts = events
            .iter()
            .filter(|(name, _)| !NOT_MODELLED.contains(&name.as_str()))
            .map(|(name, n)| (name.clone(), n.as_i64().unwrap_or(0)));
        (row["function"].to_string(), counts.collect())
    });
    let mut all: Vec<_> = rows.collect();
    all.sort();
    all
}

#[test]
fn all_sets_followed_are_an_exact_run_to_the_last_count() {
    if !needs(&["sort", "gzip", "/usr/bin/python3"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("numbers");
    let numbers: String = (0_u64..10_000)
        .map(|i| format!("{}\n", i * 7919 % 10_007))
        .collect();
    std::fs::write(&file, numbers).expect("the input can be written");
    let file = file.to_str().expect("temporary paths are text");
    all_sets_equal_exact(&["/bin/true"]);
    all_sets_equal_exact(&["sort", "-n", "-S", "8M", file]);
    all_sets_equal_exact(&["gzip", "-c", file]);
    all_sets_equal_exact(&["sh", "-c", &format!("wc {file}; ls /; (true)")]);
    all_sets_equal_exact(&["/usr/bin/python3", "-S", "-c", "print(sum(range(20000)))"]);
}

/// An array of 24 MiB read once: each line misses all levels, whichever sets are looked at.
#[test]
fn a_scan_is_estimated_without_doubt() {
    if !needs(&[]) {
        return;
    }
    let of = |bytes| {
        let program = [workloads(), "linear", "--bytes", bytes, "--passes", "1"];
        record(&program, &["--sets", "1/8"])
    };
    let (large, small) = (of("24MiB"), of("1MiB"));
    let difference = large.totals()["llc.miss"] - small.totals()["llc.miss"];
    let lines = 23 * 1024 * 1024 / 64;
    assert!((difference - lines).abs() < lines / 100, "{difference}");
    let sets = &large.report()["sets"];
    assert_eq!(sets["one_in"], 8);
    let estimate = &sets["estimates"]["llc.miss"];
    let width = estimate["high"].as_i64().unwrap() - estimate["low"].as_i64().unwrap();
    assert!(width < lines / 50, "{estimate}");
}

#[test]
fn intervals_of_several_choices_of_sets_contain_the_exact_counts() {
    if !needs(&["sort"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("numbers");
    let numbers: String = (0_u64..30_000)
        .map(|i| format!("{}\n", i * 7919 % 30_011))
        .collect();
    std::fs::write(&file, numbers).expect("the input can be written");
    // Without a size of its buffer, sort asks how much memory is free.
    let file = file.to_str().expect("temporary paths are text");
    let program = ["sort", "-n", "--parallel=1", "-S", "8M", file];
    let exact = record(&program, &[]);
    let in_code = places(&exact.report());
    let exact = exact.totals();
    let (mut within, mut all) = (0, 0);
    let (mut within_code, mut all_code) = (0, 0);
    for seed in 0..6 {
        let some = record(&program, &["--sets", &format!("1/4:{seed}")]);
        let totals = some.totals();
        for name in EXACT {
            assert_eq!(totals[name], exact[name], "{name}");
        }
        for name in ["l1d.miss", "l2.miss", "llc.miss", "dram.read_bytes"] {
            let estimate = &some.report()["sets"]["estimates"][name];
            let [low, high] = ["low", "high"].map(|end| estimate[end].as_i64().unwrap());
            assert_eq!(estimate["value"], totals[name], "{name}");
            within += i32::from((low..=high).contains(&exact[name]));
            all += 1;
        }
        for (place, estimate) in places(&some.report()) {
            let Some(exact) = in_code.get(&place) else {
                continue;
            };
            for (event, ends) in estimate["intervals"].as_object().expect("intervals") {
                let [low, high] = ["low", "high"].map(|end| ends[end].as_i64().unwrap());
                let exact = exact["counts"][event].as_i64().unwrap_or(0);
                within_code += i32::from((low..=high).contains(&exact));
                all_code += 1;
            }
            let ends = ["value_low", "value_high"].map(|end| estimate[end].as_i64().unwrap());
            let value = estimate["value"].as_i64().unwrap();
            assert!((ends[0]..=ends[1]).contains(&value), "{estimate}");
        }
    }
    assert!(within * 10 >= all * 8, "{within} of {all}");
    assert!(all_code > 60, "{all_code}");
    assert!(
        within_code * 10 >= all_code * 9,
        "{within_code} of {all_code}"
    );
}

/// The hottest functions and lines of a report, by their names.
fn places(report: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for table in ["functions", "lines"] {
        let rows = report["hot"][table]["rows"].as_array().expect("rows");
        for row in rows.iter().take(20) {
            let name = ["function", "module", "file", "line", "offset"].map(|key| &row[key]);
            all.insert(format!("{table} {name:?}"), row.clone());
        }
    }
    all
}

/// An array is scanned: each group of sets has as much of it.
#[test]
fn shares_of_code_and_regions_have_intervals_where_some_sets_are_followed() {
    if !needs(&[]) {
        return;
    }
    let program = [workloads(), "linear", "--bytes", "32MiB", "--passes", "1"];
    let some = record(&program, &["--sets", "1/8"]);
    let report = some.report();
    let row = &report["hot"]["functions"]["rows"][0];
    let share = |row: &Value, end: &str| row[end].as_f64().expect(end);
    for row in [row, &report["regions"][0]["rows"][0]] {
        let of = share(row, "share");
        assert!(of > 0.5, "{row}");
        let (low, high) = (share(row, "share_low"), share(row, "share_high"));
        assert!(low <= of && of <= high && high - low < 0.1, "{row}");
    }
    let text = report_text(&some.path());
    let heading = text.find("Hottest functions").expect("the section");
    let titles = text[heading..].lines().nth(1).expect("titles");
    assert!(titles.contains("95 % interval"), "{titles}");
    let exact = record(&program, &[]);
    let row = &exact.report()["hot"]["functions"]["rows"][0];
    assert!(
        row["share_low"].is_null() && row["intervals"].is_null(),
        "{row}"
    );
}

/// Eight threads scan 1 MiB each five times, and 6 MiB have room for six of them. All are equally
/// fast, so the first access to each line misses. A thread that is read for longer than its turn
/// would hit lines that the others would have evicted.
#[test]
fn threads_whose_memory_has_no_room_together_displace_each_others_lines() {
    if !needs(&["gcc"]) {
        return;
    }
    let program = compiled("order");
    let misses = |mode: &str, sets: &[&str]| {
        let options = [&["--machine", "i5-6600k"], sets].concat();
        Recorded::with(&options, &[program.as_str(), mode], |_| {}).totals()["llc.miss"]
    };
    let lines = 8 * 5 * (1 << 20) / 64;
    // With some sets, time and so the turns are rougher: 29 to 94 % on a busy machine. A fifth
    // misses in any case, the first of five scans.
    for (sets, least) in [(&[][..], 85), (&["--sets", "1/8"], 22)] {
        // With nothing to do, the program fills the memory and no more.
        let found = misses("share", sets) - misses("work", sets);
        assert!(
            (lines * least / 100..lines * 101 / 100).contains(&found),
            "{sets:?}: {found} of {lines}"
        );
    }
}

/// A stride of 4 KiB accesses only one group of sets. Whether this group is modelled or not, the
/// interval contains the true number, and the report explains the problem.
#[test]
fn lines_that_crowd_in_few_sets_are_told() {
    if !needs(&[]) {
        return;
    }
    let program = [workloads(), "linear", "--bytes", "4MiB", "--passes", "160"];
    let program = [&program[..], &["--stride", "4KiB"]].concat();
    let exact = record(&program, &[]).totals()["l1d.miss"];
    assert!(exact > 160 * 1024, "{exact}");
    let mut far_off = 0;
    for seed in 0..5 {
        let some = record(&program, &["--sets", &format!("1/8:{seed}")]);
        let estimate = &some.report()["sets"]["estimates"]["l1d.miss"];
        let [low, value, high] =
            ["low", "value", "high"].map(|end| estimate[end].as_i64().expect("a count"));
        assert!(
            (low..=high).contains(&exact),
            "{seed}: {estimate} of {exact}"
        );
        if (value - exact).abs() > exact / 5 {
            far_off += 1;
            let text = text(&some);
            assert!(text.contains("l1d.miss: at least"), "{text}");
            let warnings = some.report()["warnings"].to_string();
            assert!(warnings.contains("not like the others"), "{warnings}");
        }
    }
    assert_eq!(far_off, 5);
}

#[test]
fn a_crowd_among_other_accesses_is_seen() {
    if !needs(&["gcc"]) {
        return;
    }
    let program = compiled("crowd");
    let run = |sets: &[&str]| {
        let options = [&["--machine", "i5-6600k"], sets].concat();
        Recorded::with(&options, &[&program], |_| {})
    };
    let exact = run(&[]).totals();
    for seed in 0..3 {
        let some = run(&["--sets", &format!("1/8:{seed}")]).report();
        assert_ne!(some["warnings"], serde_json::json!([]), "{seed}");
        for event in ["l1d.miss", "llc.miss"] {
            let estimate = &some["sets"]["estimates"][event];
            let [low, high] = ["low", "high"].map(|end| estimate[end].as_i64().expect("a count"));
            assert!(
                (low..=high).contains(&exact[event]),
                "{seed}: {event} {estimate}"
            );
        }
    }
}

/// Estimates of a compiled program by the first choices of one set in eight, with their warnings, and
/// the exact count of an event.
fn choices(program: &str, seeds: u64, event: &str) -> (i64, Vec<(Value, Value)>) {
    let program = compiled(program);
    let exact = record(&[&program], &[]).totals()[event];
    let choice = |seed| {
        let some = record(&[&program], &["--sets", &format!("1/8:{seed}")]).report();
        (
            some["sets"]["estimates"][event].clone(),
            some["warnings"].clone(),
        )
    };
    (exact, (0..seeds).map(choice).collect())
}

/// Four sets of 64 have nearly all misses. A selection of eight contains none or one of them, and
/// rarely more. The estimate is therefore far off, which only looks at all sets show.
#[test]
fn few_sets_with_most_of_the_misses_are_warned_of() {
    if !needs(&["gcc"]) {
        return;
    }
    let (exact, choices) = choices("few_sets", 8, "l1d.miss");
    assert!(exact > 1500 * 36, "{exact}");
    let mut far_off = 0;
    for (seed, (estimate, warnings)) in choices.iter().enumerate() {
        let [low, value, high] =
            ["low", "value", "high"].map(|end| estimate[end].as_i64().expect("a count"));
        let is_inside = (low..=high).contains(&exact);
        let is_far_off = (value - exact).abs() > exact / 4;
        let is_warned = warnings.to_string().contains("record without --sets");
        assert!(is_inside || is_warned, "{seed}: {estimate} of {exact}");
        assert!(is_warned || !is_far_off, "{seed}: {warnings}");
        far_off += i32::from(is_far_off);
    }
    assert!(far_off > 4, "{choices:?}");
}

#[test]
fn sets_that_miss_alike_are_not_warned_of() {
    if !needs(&["gcc"]) {
        return;
    }
    let (exact, choices) = choices("even_sets", 8, "l1d.miss");
    for (seed, (estimate, warnings)) in choices.iter().enumerate() {
        assert_eq!(*warnings, serde_json::json!([]), "{seed}");
        let value = estimate["value"].as_i64().expect("a count");
        assert!(
            (value - exact).abs() < exact / 20,
            "{seed}: {estimate} of {exact}"
        );
    }
}

fn text(recorded: &Recorded) -> String {
    let mut command = memgauge();
    let output = command.arg("report").arg(recorded.path()).output();
    let text = output.expect("memgauge runs").stdout;
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn reports_say_what_is_estimated() {
    if !needs(&[]) {
        return;
    }
    let program = [workloads(), "linear", "--bytes", "4MiB", "--passes", "2"];
    let some = record(&program, &["--sets", "1/8"]);
    let shown = text(&some);
    assert!(
        shown.contains("estimated from 1/8 of the cache sets"),
        "{shown}"
    );
    assert!(shown.contains("+-"), "{shown}");
    let summary = some.report();
    let events = summary["events"].as_array().expect("events");
    let provenance = |name: &str| {
        let event = events.iter().find(|event| event["name"] == name);
        event.expect(name)["provenance"].clone()
    };
    assert_eq!(provenance("llc.miss"), "estimated");
    assert_eq!(provenance("loads"), "modelled");
    assert!(events.iter().all(|event| event["name"] != "dtlb.miss"));
    let exact = record(&program, &[]);
    assert!(!text(&exact).contains("estimated"));
    // Totals that are sums of other events follow from those.
    let mut export = memgauge();
    export
        .args(["export", "-f", "openmetrics", "-o", "-"])
        .arg(some.path());
    let metrics = export.output().expect("memgauge runs").stdout;
    let metrics = String::from_utf8_lossy(&metrics);
    for (event, provenance) in [("instructions", "modelled"), ("virtual_ns", "estimated")] {
        let begins = format!("memgauge_events_total{{event=\"{event}\"");
        let line = metrics.lines().find(|line| line.starts_with(&begins));
        let line = line.expect("the event");
        assert!(
            line.contains(&format!("provenance=\"{provenance}\"")),
            "{line}"
        );
    }
}

fn refused(arguments: &[&str], why: &str) {
    let output = memgauge().args(arguments).output().expect("memgauge runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments:?}");
    assert!(error.contains(why), "{arguments:?}: {error}");
}

#[test]
fn events_that_sets_cannot_estimate_are_refused_in_one_line() {
    refused(&["record", "--sets", "1/3", "--", "true"], "1/16");
    refused(&["mrc", "--sets", "1/8", "--", "true"], "--sample 0.01");
    if !needs(&[]) {
        return;
    }
    let with = |more: &[&str], why| {
        let mut all = vec!["record", "--source", "emulate", "--sets", "1/8"];
        all.extend(["-o", "/tmp/not-written.mg"]);
        all.extend(more);
        all.extend(["--", "true"]);
        refused(&all, why);
    };
    with(&["--machine", "core2-x5355"], "its L2 has 1 sets");
    with(
        &["--machine", "zen5", "--prefetch", "stride"],
        "prefetchers",
    );
    with(
        &["--machine", "zen5", "--delivery", "precise"],
        "--delivery",
    );
    with(
        &["--machine", "zen5", "-e", "dtlb.miss"],
        "address translation",
    );
}
