//! Runs memgauge for the end-to-end tests with a fixed environment, also on small modelled machines,
//! and reads totals and reports.

use memgauge_testing::{Need, Random, skipped};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;
use std::time::Duration;

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_memgauge");

/// Search path of programs. Fixed, because programs that read their environment execute other code in
/// another one.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Longer than any run takes, so that only a run that hangs exceeds it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Environment variable with the path of another emulator.
const EMULATOR: &str = "MEMGAUGE_QEMU";

/// Event totals, signed so that they can be subtracted.
pub(crate) type Totals = BTreeMap<String, i64>;

/// Number of runs of which one must succeed. A busy host may delay sleepers or cut sleeps short.
const BUSY_HOST_RUNS: usize = 4;

/// Runs until a result is right. Panics with all results if none of them is.
pub(crate) fn one_is_right<T: std::fmt::Debug>(
    what: &str,
    run: impl Fn() -> T,
    right: impl Fn(&T) -> bool,
) {
    let mut found = Vec::new();
    while !found.last().is_some_and(&right) {
        assert!(found.len() < BUSY_HOST_RUNS, "{what}: {found:?}");
        found.push(run());
    }
}

/// Returns a number in `from..to` that differs between runs, and prints it.
pub(crate) fn drawn(name: &str, from: u64, to: u64) -> u64 {
    let number = from + Random::of_test(name).below(to - from);
    println!("{name}: {number}");
    number
}

/// The interpreters of different versions of CPython that are here and supported.
pub(crate) fn interpreters() -> BTreeMap<String, PathBuf> {
    let names = ["python3".to_owned()].into_iter();
    let names = names.chain((9..=13).map(|minor| format!("python3.{minor}")));
    let mut found = BTreeMap::new();
    for name in names {
        let which = "import sys; print(sys.executable, *sys.version_info[:2])";
        let output = std::process::Command::new(&name)
            .args(["-c", which])
            .output();
        let Ok(output) = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        else {
            continue;
        };
        if let [path, "3", minor] = output.split_whitespace().collect::<Vec<_>>()[..]
            && matches!(minor.parse(), Ok(9..=13))
        {
            found.entry(minor.to_owned()).or_insert(path.into());
        }
    }
    found
}

/// A seccomp filter that refuses a system call, as in containers (linux/filter.h, linux/seccomp.h).
const DENY: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
code = b"".join(struct.pack("HBBI", *each) for each in [
    (0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)])
program = ctypes.create_string_buffer(code)
filter = struct.pack("HxxxxxxQ", 4, ctypes.addressof(program))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// Runs memgauge without permission for a system call, given by its number on x86-64.
pub(crate) fn run_denied(call: u32, arguments: &[&str]) -> Output {
    let mut command = std::process::Command::new("python3");
    command
        .args(["-c", DENY, &call.to_string(), PROGRAM])
        .args(arguments);
    command
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("python3 runs")
}

/// A folder that is removed at the end of the test.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Returns whether perf events can be opened. Otherwise prints why the test is skipped.
pub(crate) fn perf_works() -> bool {
    let mut stat = memgauge();
    stat.args(["stat", "-e", "cpu-clock:u", "--", "true"]);
    let output = stat.output().expect("memgauge runs");
    let works = output.status.success();
    if !works {
        skipped(Need::Kernel, said(&output));
    }
    works
}

/// Standard error of a run.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts the exit code, and that standard error is a single message that
/// contains all of `words`.
pub(crate) fn check_line(output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("memgauge: "), "{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

/// Returns whether `tools` (programs, `root`, `libc.a`) and the emulator are available. Otherwise prints
/// why the test is skipped.
pub(crate) fn needs(tools: &[&str]) -> bool {
    let missing = ["emulator"].iter().chain(tools).find(|tool| !is_here(tool));
    if let Some(tool) = missing {
        skipped(Need::Tool, format!("needs {tool}"));
    }
    missing.is_none()
}

fn is_here(tool: &str) -> bool {
    match tool {
        "emulator" => engine().is_file(),
        "root" => is_root(),
        "libc.a" => Path::new("/usr/lib/x86_64-linux-gnu/libc.a").is_file(),
        program => std::env::split_paths(PATH).any(|folder| folder.join(program).is_file()),
    }
}

/// Path of the engine in the target folder, or of the one that the environment names.
pub(crate) fn engine() -> PathBuf {
    let built = || {
        let profile = Path::new(PROGRAM)
            .parent()
            .expect("the program lies in a folder");
        profile
            .parent()
            .expect("profiles lie in the target folder")
            .join("engine/memgauge-engine")
    };
    std::env::var_os(EMULATOR).map_or_else(built, PathBuf::from)
}

/// Returns whether this user is root.
pub(crate) fn is_root() -> bool {
    let output = std::process::Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout == b"0\n")
}

/// Path of the workload program, built in the profile of the program under test.
pub(crate) fn workloads() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(build_workloads)
}

fn build_workloads() -> String {
    let release = Path::new(PROGRAM)
        .parent()
        .is_some_and(|folder| folder.ends_with("release"));
    let output = std::process::Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--package",
            "memgauge-workloads",
            "--message-format",
            "json",
        ])
        .args(release.then_some("--release"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let messages = String::from_utf8_lossy(&output.stdout);
    let built = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut paths = built.filter_map(|message| Some(message["executable"].as_str()?.to_owned()));
    paths.next_back().expect("cargo builds the workloads")
}

/// Compiles a program of `tests/virtual_time`. The program stays until the next build of the
/// tests.
pub(crate) fn compiled(name: &str) -> String {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/virtual_time");
    let status = std::process::Command::new("gcc")
        .args(["-O1", "-pthread", "-o"])
        .arg(&path)
        .arg(sources.join(name).with_extension("c"))
        .status()
        .expect("gcc runs");
    assert!(status.success(), "the program compiles");
    path.to_str().expect("the path is text").to_owned()
}

/// Returns a command that runs memgauge with the fixed environment and without input. `MEMGAUGE_QEMU` is
/// passed on.
pub(crate) fn memgauge() -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .env_clear()
        .envs(std::env::var_os(EMULATOR).map(|path| (EMULATOR, path)))
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .timeout(PATIENCE);
    command
}

/// A recording in its own folder, and the output of its run.
pub(crate) struct Recorded {
    pub(crate) folder: TempDir,
    pub(crate) output: Output,
}

impl Recorded {
    /// Records `program` with `options` of memgauge.
    pub(crate) fn new<S: AsRef<str>>(options: &[&str], program: &[S]) -> Recorded {
        Recorded::with(options, program, |_| ())
    }

    /// Records `program` on a known machine with a series, which has its virtual time.
    pub(crate) fn once_in_time(program: &[&str]) -> Recorded {
        Recorded::new(&["--machine", "i5-6600k", "-I", "100us"], program)
    }

    /// As [`Recorded::once_in_time`]. Repeats the run if a busy host cut a sleep short, because its
    /// length is then unknown.
    pub(crate) fn in_time(program: &[&str]) -> Recorded {
        const TRIES: usize = 4;
        for _ in 1..TRIES {
            let recorded = Recorded::once_in_time(program);
            if !totals_of(&recorded.manifest()["totals"]).contains_key("cut_sleeps") {
                return recorded;
            }
        }
        Recorded::once_in_time(program)
    }

    /// As [`Recorded::new`], with a change of the command (input, environment).
    pub(crate) fn with<S: AsRef<str>>(
        options: &[&str],
        program: &[S],
        configure: impl FnOnce(&mut Command),
    ) -> Recorded {
        Recorded::by("emulate", options, program, configure)
    }

    /// As [`Recorded::with`], with another source.
    pub(crate) fn by<S: AsRef<str>>(
        source: &str,
        options: &[&str],
        program: &[S],
        configure: impl FnOnce(&mut Command),
    ) -> Recorded {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = memgauge();
        command
            .args(["record", "--quiet", "--source", source, "--output"])
            .arg(folder.path().join("run.mg"));
        command
            .args(options)
            .arg("--")
            .args(program.iter().map(S::as_ref));
        configure(&mut command);
        let output = command.output().expect("memgauge runs");
        Recorded { folder, output }
    }

    /// The recording's directory.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("run.mg")
    }

    /// Exit code of memgauge.
    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// Standard error of program and memgauge.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The manifest.
    pub(crate) fn manifest(&self) -> Value {
        let path = self.path().join("manifest.json");
        let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{error}: {}", self.said()));
        serde_json::from_slice(&text).expect("the manifest is JSON")
    }

    /// Totals of the manifest of a run that went well.
    pub(crate) fn totals(&self) -> Totals {
        assert!(
            self.output.status.success(),
            "{:?}: {}",
            self.output.status,
            self.said()
        );
        totals_of(&self.manifest()["totals"])
    }

    /// Result of `memgauge report --json` for this recording.
    pub(crate) fn report(&self) -> Value {
        let output = report(&self.path());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).expect("the report is JSON")
    }
}

/// A JSON object of numbers as totals.
pub(crate) fn totals_of(object: &Value) -> Totals {
    let entries = object.as_object().expect("totals are an object").iter();
    entries
        .map(|(name, value)| (name.clone(), value.as_i64().expect("totals are counts")))
        .collect()
}

/// Shows a recording as JSON.
pub(crate) fn report(path: &Path) -> Output {
    memgauge()
        .args(["report", "--json"])
        .arg(path)
        .output()
        .expect("memgauge runs")
}

/// Shows a recording as text.
pub(crate) fn report_text(path: &Path) -> String {
    let shown = memgauge().arg("report").arg(path).output();
    String::from_utf8_lossy(&shown.expect("memgauge runs").stdout).into_owned()
}

/// Returns the exact curves of a program as JSON, without its path.
pub(crate) fn exact_curves(program: &str) -> String {
    let folder = folder();
    let json = folder.path().join("curve.json");
    let mut command = memgauge();
    command
        .args(["mrc", "--exact", "--block", "64,4096"])
        .arg(format!("--json={}", json.display()))
        .args(["--", program]);
    let output = command.output().expect("memgauge runs");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&json).expect("a curve");
    let curve: Value = serde_json::from_str(&text).expect("JSON");
    curve["curves"].to_string().replace(program, "PROGRAM")
}

/// A machine without prefetchers and with exact LRU in all caches. L1D, L2 and LLC have the given
/// sizes (in KiB) and ways.
pub(crate) fn write_machine(path: &Path, caches: [(u64, u64); 3]) {
    let cache = |level: usize, cycles: u64| {
        let (kib, ways) = caches[level];
        json!({"size_bytes": kib * 1024, "ways": ways, "replacement": "lru", "latency_cycles": cycles})
    };
    let machine = json!({
        "name": "small",
        "frequency_hz": 3_000_000_000_u64,
        "line_bytes": 64,
        "l1d": cache(0, 4),
        "l2": cache(1, 14),
        "llc": cache(2, 40),
        "dtlb": {"entries": 64, "ways": 4},
        "stlb": {"entries": 1536, "ways": 12},
        "inclusive_llc": false,
        "prefetch": {"next_line": false, "stride": false},
        "timing": {
            "cycles_per_1000_instructions": 300,
            "exposed_percent": 50,
            "misses_in_flight": 8,
            "stlb_cycles": 7,
            "walk_cycles": 30,
            "dram_latency_ns": 80,
            "dram_bytes_per_s": 20_000_000_000_u64,
        },
    });
    std::fs::write(path, machine.to_string()).expect("the machine file can be written");
}

/// Records a workload on the small machine: L1D 32 KiB, L2 256 KiB, LLC 1 MiB.
pub(crate) fn record_workload(arguments: &str) -> Totals {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let machine = folder.path().join("small.json");
    write_machine(&machine, [(32, 8), (256, 8), (1024, 16)]);
    let program: Vec<&str> = std::iter::once(workloads())
        .chain(arguments.split_whitespace())
        .collect();
    Recorded::new(
        &[
            "--machine",
            machine.to_str().expect("temporary paths are text"),
        ],
        &program,
    )
    .totals()
}

/// Counts of the run `with` minus those of the run `without`. Their command lines must be equally
/// long, so that their stacks have the same contents.
pub(crate) fn beyond(with: &str, without: &str) -> Totals {
    assert_eq!(with.len(), without.len(), "`{with}` and `{without}`");
    let without = record_usual(without);
    record_usual(with)
        .into_iter()
        .map(|(name, count)| (name.clone(), count - without[&name]))
        .collect()
}

/// Totals of most runs of a workload. On a busy machine, a run sometimes makes one more load while
/// it starts, under any tool. Therefore returns the first totals on which two runs agree, comparing
/// only those that the code alone determines.
fn record_usual(arguments: &str) -> Totals {
    let mut seen: Vec<Totals> = Vec::new();
    loop {
        let totals = record_workload(arguments);
        let same = |other: &&Totals| {
            let by_code = ["instructions", "loads", "stores"];
            by_code.iter().all(|&event| other[event] == totals[event])
        };
        if let Some(first) = seen.iter().find(same) {
            return first.clone();
        }
        assert!(
            seen.len() < 5,
            "`{arguments}` never runs the same: {seen:?}"
        );
        seen.push(totals);
    }
}

/// Loads, stores and splits of the loop according to the workload itself.
pub(crate) fn expectation(arguments: &str) -> [i64; 3] {
    let output = std::process::Command::new(workloads())
        .arg("--expect")
        .args(arguments.split_whitespace())
        .output()
        .expect("the workload runs");
    let text = String::from_utf8(output.stdout).expect("the expectation is text");
    let number = |label: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(label));
        line.and_then(|rest| rest.trim().parse().ok()).expect(label)
    };
    [number("loads"), number("stores"), number("splits")]
}

/// Asserts that `value` lies within `part` of `expected`.
pub(crate) fn assert_near(what: &str, value: i64, expected: i64, part: f64) {
    let off = (value - expected).abs() as f64 / expected as f64;
    assert!(
        off <= part,
        "{what}: {value} instead of {expected}, off by {:.3} %",
        100.0 * off
    );
}

/// A number that a recording's manifest has of a sampled event.
pub(crate) fn sampled(manifest: &memgauge_trace::Manifest, event: &str, fact: &str) -> u64 {
    let id = manifest.events.iter().find(|e| e.name == event);
    let id = id.unwrap_or_else(|| panic!("no event {event}")).id;
    let sampling = manifest.sampling.as_ref().expect("facts about samples");
    let facts = sampling.events.iter().find(|e| e.event == id);
    let facts = serde_json::to_value(facts.expect(event)).expect("facts have a JSON form");
    facts[fact]
        .as_u64()
        .unwrap_or_else(|| panic!("{fact} in {facts}"))
}
