//! `memgauge mrc` on cache traces: formats, policies and unreadable files.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::{Path, PathBuf};

use harness::{drawn, memgauge};
use serde_json::Value;

/// Files of one test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }
}

fn run(file: &Path, options: &[&str]) -> std::process::Output {
    let command = memgauge().arg("mrc").arg(file).args(options).output();
    command.expect("memgauge runs")
}

fn curves_of(file: &Path, options: &[&str]) -> Vec<Value> {
    let output = run(file, &[options, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let json: Value = serde_json::from_slice(&output.stdout).expect(&error);
    json["curves"].as_array().expect("curves").clone()
}

fn curve_of(file: &Path, options: &[&str]) -> Value {
    let mut curves = curves_of(file, options);
    assert_eq!(curves.len(), 1);
    curves.remove(0)
}

fn error_of(file: &Path, options: &[&str]) -> String {
    let output = run(file, options);
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Misses of each capacity of a policy.
fn misses(curve: &Value, policy: usize) -> Vec<u64> {
    let points = curve["policies"][policy]["points"]
        .as_array()
        .expect("points");
    let misses = points
        .iter()
        .map(|point| point["misses"].as_u64().expect("a number"));
    misses.collect()
}

/// Numbers that look random (splitmix64), from a seed that is printed.
fn noise() -> impl Iterator<Item = u64> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = now.expect("a clock").as_nanos() as u64;
    println!("seed {seed}");
    (1u64..).map(move |n| {
        let z = seed.wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ z >> 31
    })
}

/// Object and size of random requests.
fn requests(length: usize) -> Vec<(u64, u32)> {
    let request = |n: u64| {
        let key = (n >> 8) % (1 + (n >> 40) % 300);
        (key, 1 + (key as u32 * 37) % 100)
    };
    noise().take(length).map(request).collect()
}

fn oracle_general(requests: &[(u64, u32)]) -> Vec<u8> {
    let record = |(at, &(key, bytes)): (usize, &(u64, u32))| {
        let later = requests[at + 1..].iter().position(|later| later.0 == key);
        let next = later.map_or(-1, |ahead| (at + ahead + 2) as i64);
        let mut record = ((at / 10) as u32).to_le_bytes().to_vec();
        record.extend(key.to_le_bytes());
        record.extend(bytes.to_le_bytes());
        record.extend(next.to_le_bytes());
        record
    };
    requests.iter().enumerate().flat_map(record).collect()
}

#[test]
fn a_trace_of_libcachesim_is_recognised_and_has_one_reference_per_request() {
    let folder = Folder::new();
    let requests = requests(3000);
    let trace = oracle_general(&requests);
    let plain = folder.write("t.bin", &trace);
    let packed = folder.write("t.zst", zstd::encode_all(&trace[..], 1).expect("zstd"));
    let options = ["--policy", "lru,s3-fifo,belady", "--sizes", "1000,5000"];
    let curve = curve_of(&plain, &options);
    assert_eq!(curve["references"], 3000);
    assert_eq!(curve["capacity_unit"], "bytes");
    let names: Vec<&str> = curve["policies"]
        .as_array()
        .expect("policies")
        .iter()
        .map(|policy| policy["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, ["LRU", "S3-FIFO", "Belady"]);
    assert_eq!(misses(&curve_of(&packed, &options), 1), misses(&curve, 1));
    // LRU by its definition: a list of the cached objects, the newest last.
    for (at, capacity) in [1000, 5000].into_iter().enumerate() {
        let mut cached: Vec<(u64, u32)> = Vec::new();
        let mut expected = 0;
        for &(key, bytes) in &requests {
            if let Some(at) = cached.iter().position(|entry| entry.0 == key) {
                let entry = cached.remove(at);
                cached.push(entry);
                continue;
            }
            expected += 1;
            while cached.iter().map(|entry| entry.1).sum::<u32>() + bytes > capacity {
                cached.remove(0);
            }
            cached.push((key, bytes));
        }
        assert_eq!(misses(&curve, 0)[at], expected);
    }
}

#[test]
fn text_and_csv_compare_policies_and_say_what_a_better_one_is_worth() {
    let folder = Folder::new();
    // Scans that LRU keeps and better policies do not.
    let looped = (0..40_000u64).map(|at| match at % 4 {
        0 => (at / 4 % 50, 1),
        _ => (1000 + at % 5000, 1),
    });
    let looped: Vec<(u64, u32)> = looped.collect();
    let table = looped
        .iter()
        .map(|(key, _)| format!("{key}\n"))
        .collect::<String>();
    let file = folder.write("t.csv", table);
    let options = [
        "--format",
        "csv:id=1",
        "--policy",
        "lru,s3-fifo,sieve,w-tinylfu",
    ];
    let text = String::from_utf8(run(&file, &options).stdout).expect("text");
    assert!(text.contains("objects of equal size"), "{text}");
    assert!(
        text.contains("less memory than LRU for a miss ratio of"),
        "{text}"
    );
    let csv = run(
        &file,
        &[&options[..], &["--csv", "--sizes", "100,200"]].concat(),
    );
    let csv = String::from_utf8(csv.stdout).expect("text");
    assert_eq!(csv.lines().count(), 1 + 4 * 2, "{csv}");
    assert!(csv.contains(",sieve,objects,200,"), "{csv}");
}

#[test]
fn a_request_of_a_block_trace_refers_to_each_block_it_touches() {
    let folder = Folder::new();
    let line = |n: u64| {
        let operation = if n.is_multiple_of(3) { "Write" } else { "Read" };
        let (offset, bytes) = (n % 500 * 512, 512 * (1 + n / 1000 % 20));
        format!(
            "128166372003061629,hm,{},{operation},{offset},{bytes},9\n",
            n % 2
        )
    };
    let table = noise().take(2000).map(|n| line(n >> 5)).collect::<String>();
    let file = folder.write("t.csv", table);
    let sizes = ["--sizes", "16KiB,64KiB,200KiB,1MiB"];
    let exact = curve_of(&file, &sizes);
    assert_eq!(exact["block_bytes"], 4096);
    let note = exact["note"].as_str().expect("a note");
    assert!(note.contains("unverified"), "{note}");
    let simulated = curve_of(&file, &[&sizes[..], &["--policy", "lru"]].concat());
    let expected: Vec<u64> = exact["points"]
        .as_array()
        .expect("points")
        .iter()
        .map(|point| point["misses"].as_f64().expect("a number") as u64)
        .collect();
    assert_eq!(misses(&simulated, 0), expected);
    assert_eq!(
        simulated["references"].as_f64(),
        exact["references"].as_f64()
    );
}

#[test]
fn writes_expiry_and_warm_up_change_what_is_counted() {
    let folder = Folder::new();
    let table =
        "time;key;op\n0;a;set\n1;a;get\n2;b;set\n3;b;get\n50;a;get\n51;a;delete\n52;a;get\n";
    let file = folder.write("t.csv", table);
    let with = |options: &[&str]| {
        let format = ["--format", "csv:time=time,key=key,op=op", "--sizes", "10"];
        let curve = curve_of(&file, &[&format[..], options].concat());
        (
            curve["references"].as_u64().expect("a number"),
            misses(&curve, 0)[0],
        )
    };
    assert_eq!(with(&[]), (6, 3));
    assert_eq!(with(&["--writes", "around"]), (6, 5));
    assert_eq!(with(&["--writes", "invalidate"]), (4, 3));
    assert_eq!(with(&["--writes", "ignore"]), (4, 3));
    assert_eq!(with(&["--ttl", "10"]), (6, 4));
    assert_eq!(with(&["--warmup", "2"]), (4, 2));
}

/// A warm-up ends at a record of the trace: whatever a write does, however many blocks a request
/// touches, for each tenant, and in a sample.
#[test]
fn warm_up_ends_at_the_same_record_for_all() {
    let folder = Folder::new();
    let length = drawn("number of requests", 3000, 5000) as usize;
    let warm_up = drawn("requests of the warm-up", 1, length as u64 - 1) as usize;
    // One object has most of the early requests, so samples and tenants differ in time.
    let rows: Vec<(u64, bool, usize)> = noise()
        .take(length)
        .enumerate()
        .map(|(at, n)| {
            let is_popular = at < length / 2 && n % 4 != 0;
            let key = if is_popular { 0 } else { (n >> 8) % 2000 };
            (key, (n >> 32) % 3 == 0, usize::from((n >> 40) % 4 == 0))
        })
        .collect();
    let table: String = rows
        .iter()
        .map(|&(key, is_write, tenant)| {
            let op = if is_write { "set" } else { "get" };
            format!("{key},{op},{}\n", ["red", "blue"][tenant])
        })
        .collect();
    let file = folder.write("t.csv", table);
    // With room for everything, only first references miss.
    let expected = |counts: &dyn Fn(bool, usize) -> bool| {
        let mut seen = std::collections::HashSet::new();
        let (mut references, mut misses) = (0, 0);
        for (at, &(key, is_write, tenant)) in rows.iter().enumerate() {
            if counts(is_write, tenant) {
                let is_miss = u64::from(seen.insert(key));
                references += u64::from(at >= warm_up);
                misses += if at >= warm_up { is_miss } else { 0 };
            }
        }
        (references, misses)
    };
    let counts = |curve: &Value| {
        (
            curve["references"].as_u64().expect("a number"),
            misses(curve, 0)[0],
        )
    };
    let warm_up_option = warm_up.to_string();
    let with = |options: &[&str]| {
        let common = ["--format", "csv:id=1,op=2,tenant=3", "--warmup"];
        let common = [&common[..], &[&warm_up_option, "--sizes", "100000"]].concat();
        curves_of(&file, &[&common[..], options].concat())
    };
    let curves = with(&["--by", "tenant"]);
    assert_eq!(counts(&curves[0]), expected(&|_, _| true));
    for (at, curve) in curves[1..].iter().enumerate() {
        let title = curve["title"].as_str().expect("text");
        let name = ["red", "blue"][at];
        let curve = match title.ends_with(name) {
            true => curve,
            false => &curves[2 - at],
        };
        assert_eq!(counts(curve), expected(&|_, tenant| tenant == at));
    }
    // Notes are about the whole trace.
    assert!(
        curves[0]["note"]
            .as_str()
            .is_some_and(|note| note.contains(" reads, "))
    );
    assert!(curves[1..].iter().all(|curve| curve["note"].is_null()));
    let ignored = with(&["--writes", "ignore"]);
    assert_eq!(counts(&ignored[0]), expected(&|is_write, _| !is_write));
    let (references, missed) = expected(&|_, _| true);
    let sampled = &with(&["--sample", "1"])[0];
    assert_eq!(sampled["references"].as_u64(), Some(references));
    let ratio = sampled["policies"][0]["points"][0]["miss_ratio"].as_f64();
    let exact = missed as f64 / references as f64;
    assert!(
        ratio.is_some_and(|r| (r - exact).abs() < 1e-9),
        "{ratio:?} {exact}"
    );

    let ranges: String = rows
        .iter()
        .map(|&(key, ..)| format!("10,host,0,Read,{},8192,1\n", key * 8192))
        .collect();
    let file = folder.write("ranges.csv", ranges);
    let options = [
        "--format",
        "msr",
        "--sizes",
        "1GiB",
        "--warmup",
        &warm_up_option,
    ];
    let (references, missed) = expected(&|_, _| true);
    assert_eq!(
        counts(&curve_of(&file, &options)),
        (2 * references, 2 * missed)
    );

    let all = length.to_string();
    let error = error_of(&file, &["--format", "msr", "--warmup", &all]);
    assert!(
        error.contains(&format!("the trace has {all} requests")),
        "{error}"
    );
}

#[test]
fn each_tenant_has_a_curve_as_if_it_had_its_own_cache() {
    let folder = Folder::new();
    let rows = requests(2000).into_iter().enumerate();
    let rows = rows.map(|(at, (key, _))| format!("{},{key}\n", ["red", "blue"][at % 2]));
    let file = folder.write("t.csv", rows.collect::<String>());
    let format = [
        "--format",
        "csv:tenant=1,id=2",
        "--policy",
        "fifo",
        "--sizes",
        "20,100",
    ];
    let curves = curves_of(&file, &[&format[..], &["--by", "tenant"]].concat());
    let titles: Vec<&str> = curves
        .iter()
        .map(|c| c["title"].as_str().expect("text"))
        .collect();
    assert!(titles[1].ends_with(", tenant red") && titles[2].ends_with(", tenant blue"));
    let only = std::fs::read_to_string(&file).expect("text");
    let only: String = only
        .lines()
        .filter(|l| l.starts_with("blue"))
        .map(|l| format!("{l}\n"))
        .collect();
    let alone = folder.write("blue.csv", only);
    assert_eq!(misses(&curve_of(&alone, &format), 0), misses(&curves[2], 0));
    // Inputs that each have a cache: their misses add up.
    let both = run(
        &file,
        &[&[alone.to_str().expect("text")], &format[..], &["--json"]].concat(),
    );
    let both: Value = serde_json::from_slice(&both.stdout).expect("JSON");
    let sum = misses(&curves[0], 0)[1] + misses(&curves[2], 0)[1];
    assert_eq!(misses(&both["curves"][0], 0)[1], sum);
}

#[test]
fn a_sample_of_the_objects_gives_ratios_with_intervals() {
    let folder = Folder::new();
    let table: String = noise()
        .take(60_000)
        .map(|n| format!("{}\n", (n >> 8) % (1 + (n >> 40) % 20_000)))
        .collect();
    let file = folder.write("t.csv", table);
    let options = [
        "--format",
        "csv:id=1",
        "--policy",
        "lru,fifo",
        "--sizes",
        "5,4000,10000",
    ];
    let exact = curve_of(&file, &options);
    let sampled = curve_of(&file, &[&options[..], &["--sample", "0.5"]].concat());
    assert_eq!(sampled["provenance"], "sampled");
    for policy in 0..2 {
        let point = |curve: &Value, at: usize| curve["policies"][policy]["points"][at].clone();
        assert!(point(&sampled, 0)["miss_ratio"].is_null());
        for at in [1, 2] {
            let found = point(&sampled, at)["miss_ratio"].as_f64().expect("a ratio");
            let expected = point(&exact, at)["miss_ratio"].as_f64().expect("a ratio");
            assert!((found - expected).abs() < 0.05, "{found} {expected}");
            assert!(
                point(&sampled, at)["half_band_95"]
                    .as_f64()
                    .is_some_and(|b| b > 0.0)
            );
        }
    }
}

#[test]
fn traces_that_cannot_be_simulated_are_refused_with_the_reason() {
    let folder = Folder::new();
    let list = folder.write("list", "1\n2\n3\n");
    for (options, what) in [
        (&["--policy", "opt"][..], "unknown policy"),
        (&["--policy", "fifo", "--y", "misses"], "--y"),
        (
            &["--policy", "fifo", "--sizes", "10"],
            "less than a block of 64 bytes",
        ),
        (
            &["--policy", "fifo", "--writes", "around"],
            "a list of addresses has none",
        ),
        (&["--by", "tenant"], "a list of addresses has none"),
        (&["--by", "region"], "name a command"),
        (&["--format", "oracleGenral"], "oracleGeneral"),
        (&["--format", "csv:size=1"], "a column for `id` or `key`"),
        (&["--format", "lcs"], "header"),
    ] {
        let error = error_of(&list, options);
        assert!(error.contains(what), "{options:?}: {error}");
    }
    let trace = folder.write("trace", oracle_general(&requests(500)));
    let partition = memgauge()
        .args(["partition", "--total", "1MiB"])
        .arg(&trace)
        .output();
    let error = String::from_utf8(partition.expect("it runs").stderr).expect("text");
    assert!(error.contains("cache trace (oracleGeneral)"), "{error}");
    let empty = folder.write("empty", "");
    let error = error_of(&empty, &["--format", "twitter"]);
    assert!(error.contains("it has no requests: it is empty"), "{error}");
    let table = folder.write("table", "time;key;bytes\n0;a;100\n");
    let error = error_of(&table, &[]);
    assert!(
        error.contains("--format csv:time=1,key=2,size=3"),
        "{error}"
    );
    let colons = folder.write("colons", "a:1\nb:2\n");
    let error = error_of(&colons, &["--format", "csv:id=2"]);
    assert!(
        error.contains("has 1 column: `a:1`; name the delimiter with --delimiter"),
        "{error}"
    );
    let semicolons = folder.write("semicolons", "time;key\n1;2\n");
    let error = error_of(&semicolons, &["--format", "csv:id=object"]);
    assert!(error.contains("the heading is `time;key`"), "{error}");
    let wrong = folder.write("wrong", "a,b\nc,d\n");
    let error = error_of(&wrong, &["--format", "twitter"]);
    assert!(error.contains("2 lines, the first is line 1"), "{error}");
}

#[test]
fn lists_of_addresses_have_policies_too() {
    let folder = Folder::new();
    let words: Vec<u8> = requests(4000)
        .iter()
        .flat_map(|(key, _)| (key * 32).to_le_bytes())
        .collect();
    let doubtful = folder.write("t.bin", &words);
    let note = |file: &Path, options: &[&str]| curve_of(file, options)["note"].to_string();
    assert!(note(&doubtful, &[]).contains("read as 64-bit addresses"));
    assert_eq!(note(&doubtful, &["--format", "raw"]), "null");
    let file = folder.write("t.raw", words);
    assert_eq!(note(&file, &[]), "null");
    let sizes = ["--sizes", "640,2KiB,6400"];
    let exact = curve_of(&file, &sizes);
    let simulated = curve_of(&file, &[&sizes[..], &["--policy", "lru,belady"]].concat());
    for at in 0..3 {
        let expected = exact["points"][at]["misses"].as_f64().expect("a number") as u64;
        assert_eq!(misses(&simulated, 0)[at], expected);
        assert!(misses(&simulated, 1)[at] <= expected);
    }
}

#[test]
fn references_of_a_program_have_policies_too() {
    let folder = Folder::new();
    let length = drawn("numbers to sort", 200, 2000).to_string();
    let made = |name: &str, options: &[&str]| -> Value {
        let file = folder.0.path().join(name);
        let output = memgauge()
            .args(["mrc", "--seed", "1", "--sizes", "1KiB,8KiB,64KiB,1GiB"])
            .arg(format!("--json={}", file.display()))
            .args(options)
            .args(["--", "seq", &length])
            .output()
            .expect("memgauge runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        // Standard output belongs to the program.
        assert_eq!(
            output
                .stdout
                .iter()
                .filter(|&&b| b == b'\n')
                .count()
                .to_string(),
            length
        );
        let text = std::fs::read(file).expect("a file");
        let json: Value = serde_json::from_slice(&text).expect("JSON");
        json["curves"][0].clone()
    };
    let exact = made("exact", &[]);
    let simulated = made("simulated", &["--policy", "lru,fifo,belady"]);
    let number = |value: &Value| value.as_f64().expect("a number") as u64;
    assert_eq!(
        number(&simulated["references"]),
        number(&exact["references"])
    );
    assert_eq!(simulated["title"], exact["title"]);
    let [lru, fifo, belady] = [0, 1, 2].map(|policy| misses(&simulated, policy));
    for at in 0..4 {
        assert_eq!(lru[at], number(&exact["points"][at]["misses"]));
        assert!(belady[at] <= lru[at] && belady[at] <= fifo[at]);
    }
    assert_eq!(fifo[3], number(&exact["compulsory"]));
    let warm = made("warm", &["--policy", "lru", "--warmup", "1000"]);
    // Some of the first references touch two blocks.
    let left_out = number(&exact["references"]) - number(&warm["references"]);
    assert!((1000..1100).contains(&left_out), "{left_out}");

    for (options, what) in [
        (
            &["--policy", "fifo", "--writes", "around"][..],
            "a program has none",
        ),
        (&["--by", "tenant"], "a program has none"),
        (&["--policy", "fifo", "--per-thread"], "--per-thread"),
    ] {
        let output = memgauge()
            .arg("mrc")
            .args(options)
            .args(["--", "true"])
            .output();
        let output = output.expect("memgauge runs");
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(what), "{error}");
    }
}

/// A reader of RFC 4180 takes the rows up to the next quote for a cell.
#[test]
fn stray_quote_in_a_key_loses_no_other_row() {
    let folder = Folder::new();
    let length = drawn("rows", 100, 1000);
    let stray = drawn("row with the quote", 1, length - 1);
    let rows = |columns: &dyn Fn(u64, &str) -> String| -> String {
        let quote = |at| if at == stray { "\"" } else { "" };
        (0..length).map(|at| columns(at, quote(at))).collect()
    };
    let table = rows(&|at, quote| format!("{at},{quote}k{},100\n", at % 50));
    let table = folder.write("t.csv", table);
    let options = ["--format", "csv:time=1,key=2,size=3", "--sizes", "1MiB"];
    let curve = curve_of(&table, &options);
    assert_eq!(curve["references"].as_u64(), Some(length));
    let twitter = rows(&|at, quote| format!("{at},{quote}k{},10,90,1,get,0\n", at % 50));
    let twitter = folder.write("t.twitter", twitter);
    let curve = curve_of(&twitter, &["--format", "twitter"]);
    assert_eq!(curve["references"].as_u64(), Some(length));
    let curve = curve_of(&table, &["--format", "csv:1"]);
    assert_eq!(curve["references"].as_f64(), Some(length as f64));
}
