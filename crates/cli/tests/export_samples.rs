//! Exports of single samples and of OpenTelemetry are read with the tools of their formats. Sums equal
//! those of the recording's rows.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use harness::{PATH, Recorded, drawn, memgauge, needs};
use memgauge_recording::{Recording, Selection};
use memgauge_testing::{Need, node_file, python_with, skipped};
use memgauge_trace::Sample;
use serde_json::Value;

/// `ls` with call stacks, its misses of two levels sampled.
fn recorded() -> Option<Recorded> {
    needs(&[]).then(|| {
        let options = [
            "--machine",
            "i5-6600k",
            "-g",
            "-e",
            "llc.miss:13,l1d.miss:31",
        ];
        let recorded = Recorded::new(&options, &["/bin/ls", "-l", "/usr/bin"]);
        assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
        recorded
    })
}

fn export(recording: &Path, format: &str, more: &[&str]) -> PathBuf {
    let path = recording.with_extension(format);
    let mut command = memgauge();
    command.arg("export").arg(recording);
    command.args(["-f", format]).args(more).arg("-o").arg(&path);
    let output = command.output().expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "");
    path
}

/// Returns the output of a tool, or `None` if it is not installed.
fn reads(command: &mut Command, needed: &str) -> Option<String> {
    let Ok(output) = command.output() else {
        skipped(Need::Tool, format!("needs {needed}"));
        return None;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{needed}: {said}");
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn samples(path: &Path) -> Vec<Sample> {
    let recording = Recording::open(path).expect("a recording");
    let batches = recording.rows::<Sample>(&Selection::all());
    let rows: Vec<Sample> = batches.flat_map(|batch| batch.expect("rows")).collect();
    assert!(rows.len() > 100, "{}", rows.len());
    rows
}

/// Samples and the events that they stand for, by event.
fn sums(recorded: &Recorded) -> BTreeMap<String, (u64, u64)> {
    let manifest = recorded.manifest();
    let name = |id: u16| {
        let mut events = manifest["events"].as_array().expect("events").iter();
        let def = events.find(|def| def["id"] == id).expect("a definition");
        def["name"].as_str().expect("a name").to_owned()
    };
    let mut sums = BTreeMap::new();
    for row in samples(&recorded.path()) {
        let sum: &mut (u64, u64) = sums.entry(name(row.event.0)).or_default();
        sum.0 += 1;
        sum.1 += row.period;
    }
    assert_eq!(sums.len(), 2);
    sums
}

fn numbers(column: &Value) -> Vec<f64> {
    let column = column.as_array().expect("a column").iter();
    column.map(|n| n.as_f64().expect("a number")).collect()
}

/// Each column of a table has its length.
fn check_table(name: &str, table: &Value) -> usize {
    let length = table["length"].as_u64().expect("a length") as usize;
    for (column, values) in table.as_object().expect("a table") {
        if let Some(values) = values.as_array() {
            assert_eq!(values.len(), length, "{name}.{column}");
        }
    }
    length
}

/// Checks that each number of a column is an index of a table with this many rows, or stands for no
/// row.
fn check_indices(name: &str, column: &Value, rows: usize) {
    for index in column.as_array().expect("a column") {
        let is_none = index.is_null() || index == -1;
        let is_index = index.as_u64().is_some_and(|index| (index as usize) < rows);
        assert!(is_none || is_index, "{name}: {index} of {rows}");
    }
}

fn check_shared(profile: &Value) -> usize {
    let shared = &profile["shared"];
    let rows = |name: &str| check_table(name, &shared[name]);
    let [stacks, frames, functions, resources, sources] = [
        "stackTable",
        "frameTable",
        "funcTable",
        "resourceTable",
        "sources",
    ]
    .map(rows);
    let strings = shared["stringArray"].as_array().expect("strings").len();
    let libraries = profile["libs"].as_array().expect("libraries").len();
    for (table, column, rows) in [
        ("stackTable", "frame", frames),
        ("stackTable", "prefix", stacks),
        ("frameTable", "func", functions),
        ("funcTable", "name", strings),
        ("funcTable", "resource", resources),
        ("funcTable", "source", sources),
        ("resourceTable", "lib", libraries),
        ("resourceTable", "name", strings),
        ("sources", "filename", strings),
    ] {
        check_indices(&format!("{table}.{column}"), &shared[table][column], rows);
    }
    let prefixes = shared["stackTable"]["prefix"].as_array().expect("prefixes");
    for (stack, prefix) in prefixes.iter().enumerate() {
        let is_earlier = prefix
            .as_u64()
            .is_none_or(|prefix| (prefix as usize) < stack);
        assert!(is_earlier, "stack {stack} before its caller {prefix}");
    }
    stacks
}

#[test]
fn a_profile_of_firefox_is_whole_and_sums_up() {
    let Some(recorded) = recorded() else { return };
    let text = std::fs::read(export(&recorded.path(), "firefox", &[])).expect("a file");
    let profile: Value = serde_json::from_slice(&text).expect("JSON");
    let stacks = check_shared(&profile);
    let mut read = BTreeMap::new();
    for thread in profile["threads"].as_array().expect("threads") {
        check_table("samples", &thread["samples"]);
        check_table("markers", &thread["markers"]);
        check_indices("samples.stack", &thread["samples"]["stack"], stacks);
        let times = numbers(&thread["samples"]["time"]);
        assert!(times.is_sorted(), "{times:?}");
        let name = thread["name"].as_str().expect("a name");
        let event = name.split(": ").nth(1).expect("an event").to_owned();
        let weights = numbers(&thread["samples"]["weight"]);
        let sum: &mut (u64, u64) = read.entry(event).or_default();
        sum.0 += weights.len() as u64;
        sum.1 += weights.iter().sum::<f64>() as u64;
    }
    assert_eq!(read, sums(&recorded));
    let totals = recorded.totals();
    let counters = profile["counters"].as_array().expect("counters");
    // Some totals have no curve, because no thread caused them.
    assert!(counters.len() >= 20, "{}", counters.len());
    for counter in counters {
        check_table("counter", &counter["samples"]);
        // Counters of this category are shown as network traffic, with its emissions.
        assert_ne!(counter["category"], "Bandwidth");
        let tooltip = counter["display"]["tooltipRows"].as_array();
        assert!(tooltip.is_some_and(|rows| !rows.is_empty()), "{counter}");
        assert!(numbers(&counter["samples"]["time"]).is_sorted());
        let sum: f64 = numbers(&counter["samples"]["count"]).iter().sum();
        assert_eq!(
            sum as i64,
            totals[counter["name"].as_str().expect("a name")]
        );
    }
}

/// The samples of one event equal those of a recording of only this event.
#[test]
fn the_samples_of_one_event_are_written_alone() {
    let Some(recorded) = recorded() else { return };
    let path = export(&recorded.path(), "firefox", &["-e", "llc.miss"]);
    let profile: Value =
        serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
    let threads = profile["threads"].as_array().expect("threads");
    assert_eq!(threads.len(), 1);
    let length = threads[0]["samples"]["length"].as_u64();
    assert_eq!(length, Some(sums(&recorded)["llc.miss"].0));
    let mut command = memgauge();
    command.arg("export").arg(recorded.path());
    let output = command
        .args(["-f", "perf", "-e", "nosuch", "-o", "-"])
        .output();
    let output = output.expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("`nosuch`") && said.contains("llc.miss"),
        "{said}"
    );
}

/// The profiler's command line with one profile loaded. Its `load` gives the daemon half a
/// second to start, too little on a busy machine, so the daemon is started here.
struct ProfilerSession {
    client: PathBuf,
    folder: PathBuf,
    daemon: Child,
}

impl ProfilerSession {
    fn start(client: PathBuf, folder: PathBuf, profile: &Path) -> Self {
        let mut command = Command::new("node");
        command.arg(&client).arg("--daemon").arg(profile);
        command.args(["--session", "test"]);
        command.env("PROFILER_CLI_SESSION_DIR", &folder);
        command.env("PROFILER_CLI_NO_SYMBOLICATE", "1");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = command.spawn().expect("node runs");
        let mut session = Self {
            client,
            folder,
            daemon,
        };
        // A client that asks before the daemon listens removes the session.
        let log = session.folder.join("test.log");
        let is_loaded = || {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            log.contains("Profile loaded")
        };
        while !is_loaded() {
            let ended = session.daemon.try_wait().expect("a child process");
            assert!(ended.is_none(), "the daemon ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        session
    }

    fn output(&self, args: &[&str]) -> Output {
        let mut command = Command::new("node");
        command.arg(&self.client).args(args);
        command.args(["--session", "test"]);
        command.env("PROFILER_CLI_SESSION_DIR", &self.folder);
        command.output().expect("node runs")
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.output(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

impl Drop for ProfilerSession {
    fn drop(&mut self) {
        drop(self.daemon.kill());
        drop(self.daemon.wait());
    }
}

#[test]
fn firefox_profilers_own_reader_finds_the_samples() {
    let Some(client) = node_file("@firefox-devtools/profiler-cli/dist/profiler-cli.js") else {
        return;
    };
    let Some(recorded) = recorded() else { return };
    let profile = recorded.folder.path().join("profile.json");
    std::fs::rename(export(&recorded.path(), "firefox", &[]), &profile).expect("a file");
    let folder = recorded.folder.path().join("sessions");
    let session = ProfilerSession::start(client, folder, &profile);
    let info = session.json(&["profile", "info", "--all", "--json"]);
    let mut read = BTreeMap::new();
    for thread in info["processes"][0]["threads"].as_array().expect("threads") {
        let handle = thread["threadHandle"].as_str().expect("a handle");
        let samples = session.json(&["thread", "samples", "--json", "--thread", handle]);
        let name = thread["name"].as_str().expect("a name");
        let event = name.split(": ").nth(1).expect("an event").to_owned();
        read.insert(event, samples["categoryBreakdown"]["totalSamples"].as_u64());
        let functions = samples["topFunctionsByTotal"].to_string();
        assert!(functions.contains("libc.so.6!"), "{functions}");
    }
    let expected = sums(&recorded).into_iter();
    let expected: BTreeMap<_, _> = expected.map(|(name, sum)| (name, Some(sum.1))).collect();
    assert_eq!(read, expected);
}

/// By OpenTelemetry's own definitions: the last point of each sum is the total.
#[test]
fn opentelemetry_reads_the_totals() {
    const READ: &str = "import sys
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
r = ExportMetricsServiceRequest()
r.ParseFromString(open(sys.argv[1], 'rb').read())
assert r.SerializeToString() == open(sys.argv[1], 'rb').read()
[resource] = r.resource_metrics
print({a.key: a.value.string_value for a in resource.resource.attributes}['memgauge.clock'])
[scope] = resource.scope_metrics
for m in scope.metrics:
    if m.name == 'memgauge.run.duration': print(m.name, round(m.gauge.data_points[0].as_double * 1e9))
    if not m.HasField('sum') or m.name == 'memgauge.losses': continue
    assert m.sum.aggregation_temporality == 2 and m.sum.is_monotonic
    points = m.sum.data_points
    assert all(a.time_unix_nano < b.time_unix_nano and a.as_int <= b.as_int
               for a, b in zip(points, points[1:]))
    event = {a.key: a.value.string_value for a in points[0].attributes}['memgauge.event']
    assert all(p.start_time_unix_nano == points[0].start_time_unix_nano for p in points)
    print(event, m.unit, points[-1].as_int)
";
    let Some(recorded) = recorded() else { return };
    let Some(mut python) = python_with("opentelemetry.proto.collector.metrics.v1") else {
        return;
    };
    let path = export(&recorded.path(), "otlp", &[]);
    let text = reads(python.args(["-c", READ]).arg(path), "python3");
    let text = text.expect("Python");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("virtual"));
    let (mut read, mut duration) = (BTreeMap::new(), None);
    for line in lines {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [_, ns] => duration = Some(ns.to_owned()),
            [event, unit, count] => {
                let is_bytes = event.ends_with("_bytes");
                assert_eq!(unit == "By", is_bytes, "{line}");
                read.insert(event.to_owned(), count.parse::<i64>().expect("a count"));
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!(read, recorded.totals());
    let expected = recorded.report()["run"]["duration_ns"].to_string();
    assert_eq!(duration, Some(expected));
}
/// By OpenTelemetry's own definitions: each function has the counts of the report, in a dictionary
/// that keeps the rules of its definition. Prints a line for each profile, and one for each of its
/// functions.
#[test]
fn opentelemetry_reads_the_profiles() {
    const READ: &str = "import sys, collections
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
content = open(sys.argv[1], 'rb').read()
r = ExportProfilesServiceRequest()
r.ParseFromString(content)
assert r.SerializeToString() == content
d = r.dictionary
tables = ['mapping', 'location', 'function', 'link', 'attribute', 'stack']
for name in tables:
    rows = [row.SerializeToString() for row in getattr(d, name + '_table')]
    assert rows[0] == b'' and len(set(rows)) == len(rows), rows
assert d.string_table[0] == '' and len(set(d.string_table)) == len(d.string_table)
used = collections.defaultdict(set)
def use(name, index):
    assert index >= 0
    used[name].add(index)
    return getattr(d, name + '_table')[index]
def text(index): return use('string', index)
def attributes(of): return {text(a.key_strindex): a.value.string_value
                            for a in [use('attribute', index) for index in of.attribute_indices]}
[resource] = r.resource_profiles
assert {a.key: a.value.string_value for a in resource.resource.attributes}['memgauge.clock'] == 'virtual'
[scope] = resource.scope_profiles
for profile in scope.profiles:
    assert profile.time_unix_nano > 0 and profile.duration_nano > 0
    print('profile', text(profile.sample_type.type_strindex), text(profile.sample_type.unit_strindex),
          attributes(profile)['memgauge.provenance'], sep='|')
    stacks = [s.stack_index for s in profile.samples]
    assert 0 not in stacks and len(set(stacks)) == len(stacks)
    sums = collections.Counter()
    for s in profile.samples:
        [value] = s.values
        locations = [use('location', index) for index in use('stack', s.stack_index).location_indices]
        for location in locations:
            mapping = use('mapping', location.mapping_index)
            assert location.address <= mapping.memory_limit, location
            attributes(location)
            for line in location.lines:
                function = use('function', line.function_index)
                text(function.filename_strindex), text(function.name_strindex)
        function = d.function_table[locations[0].lines[0].function_index]
        module = d.mapping_table[locations[0].mapping_index]
        sums[text(module.filename_strindex), text(function.name_strindex)] += value
    for (module, name), value in sums.items(): print('function', module, name, value, sep='|')
for name in tables + ['string']:
    assert used[name] | {0} == set(range(len(getattr(d, name + '_table')))), name
";
    if !needs(&[]) {
        return;
    }
    let Some(mut python) = python_with("opentelemetry.proto.collector.profiles.v1development")
    else {
        return;
    };
    let sampled = format!("llc.miss:{}", drawn("period", 5, 40));
    let recorded = Recorded::new(&["-g", "-e", &sampled], &["/bin/ls", "-l", "/usr/bin"]);
    let report = recorded.report();
    let path = export(&recorded.path(), "otlp-profiles", &[]);
    let text = reads(python.args(["-c", READ]).arg(path), "python3").expect("Python");
    // Counts by provenance, event and function.
    let mut profiles: Vec<[String; 3]> = Vec::new();
    let mut read: BTreeMap<(String, String), BTreeMap<(String, String), i64>> = BTreeMap::new();
    for line in text.lines() {
        match line.split('|').collect::<Vec<_>>()[..] {
            ["profile", event, unit, provenance] => {
                profiles.push([event, unit, provenance].map(str::to_owned));
            }
            ["function", module, function, count] => {
                let [event, _, provenance] = profiles.last().expect("a profile");
                let functions = read.entry((event.clone(), provenance.clone())).or_default();
                let function = (module.to_owned(), function.to_owned());
                functions.insert(function, count.parse().expect("a count"));
            }
            _ => panic!("{line}"),
        }
    }
    // Viewers show the first profile.
    assert_eq!(profiles[0], ["llc.miss", "count", "sampled, by callers"]);
    assert_eq!(profiles[1][0], report["hot"]["instructions"]["rank"]);
    let unit = |event: &str| match event {
        event if event == "cycles" || event.starts_with("stall.") => "cycles",
        event if event.ends_with("_bytes") => "bytes",
        _ => "count",
    };
    for [event, read, _] in &profiles {
        assert_eq!(read, unit(event), "{event}");
    }
    let functions = &report["hot"]["functions"];
    let rows = functions["rows"].as_array().expect("rows");
    assert!(rows.len() > 5, "{functions}");
    for [event, _, provenance] in &profiles[1..] {
        assert_eq!(provenance, "modelled", "{event}");
        let sums = &read[&(event.clone(), provenance.clone())];
        let mut listed = 0;
        for row in rows {
            let text = |name: &str| row[name].as_str().expect("a text").to_owned();
            let count = row["counts"][event].as_i64().unwrap_or(0);
            let key = (text("module"), text("function"));
            // The report folds functions of the dynamic loader into one row.
            if key.1 != "[dynamic loader and startup]" {
                let sum = sums.get(&key).copied().unwrap_or(0);
                assert_eq!(sum, count, "{event}: {key:?}");
            }
            listed += count;
        }
        let others = functions["others"]["counts"][event].as_i64().unwrap_or(0);
        assert_eq!(sums.values().sum::<i64>(), listed + others, "{event}");
    }
    let tree = &report["calls"][0];
    let by_callers = &read[&("llc.miss".to_owned(), "sampled, by callers".to_owned())];
    assert_eq!(by_callers.values().sum::<i64>(), tree["events"]);
}

fn perf() -> Command {
    let mut command = Command::new("perf");
    command.env_clear().env("PATH", PATH);
    // perf keeps copies of files it names otherwise.
    command.env("HOME", "/nonexistent");
    command
}

#[test]
fn perf_script_prints_each_sample() {
    let Some(recorded) = recorded() else { return };
    let path = export(&recorded.path(), "perf", &[]);
    let mut command = perf();
    command.args([
        "script",
        "-G",
        "-F",
        "event,period,tid,time,ip,addr,weight,data_src",
        "--ns",
    ]);
    let Some(text) = reads(command.arg("-i").arg(path), "perf") else {
        return;
    };
    let mut rows = samples(&recorded.path());
    rows.sort_by_key(|row| row.time_ns);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), rows.len(), "{text}");
    let mut expected: Vec<String> = Vec::new();
    for row in &rows {
        let addr = row.addr.map_or(0, |addr| addr.0);
        let words = [
            row.tid.0.to_string(),
            format!(
                "{}.{:09}:",
                row.time_ns / 1_000_000_000,
                row.time_ns % 1_000_000_000
            ),
            row.period.to_string(),
            format!("{addr:x}"),
            row.latency_cycles.to_string(),
            format!("{:x}", row.ip.0),
        ];
        expected.push(words.join(" "));
    }
    let found = lines.iter().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Thread, time, period, event, address, data source (its words are more), weight, place.
        let end = words.len();
        [
            words[0],
            words[1],
            words[2],
            words[4],
            words[end - 2],
            words[end - 1],
        ]
        .join(" ")
    });
    let mut found: Vec<String> = found.collect();
    // Samples of one moment are in any order.
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    // The word for memory depends on perf's version.
    let memory = ["Local RAM", "LVL RAM hit"];
    assert!(
        text.contains("OP LOAD") && memory.iter().any(|words| text.contains(words)),
        "{text}"
    );
}

#[test]
fn perf_report_sums_what_the_samples_do() {
    let Some(recorded) = recorded() else { return };
    let path = export(&recorded.path(), "perf", &[]);
    let mut command = perf();
    command.args([
        "report",
        "--stdio",
        "--no-children",
        "-g",
        "none",
        "-F",
        "period,sym",
    ]);
    command.args(["-t", "|"]);
    let Some(text) = reads(command.arg("-i").arg(path), "perf") else {
        return;
    };
    let mut read: BTreeMap<String, u64> = BTreeMap::new();
    let mut event = "";
    for line in text.lines() {
        let head = line.strip_prefix("# Samples: ");
        if let Some((_, name)) = head.and_then(|head| head.split_once(" of event '")) {
            event = name.trim_end_matches('\'');
        } else if let Some((period, _)) = line.split_once('|').filter(|_| !line.starts_with('#')) {
            let period: u64 = period.trim().parse().expect("a period");
            *read.entry(event.to_owned()).or_default() += period;
        }
    }
    let expected = sums(&recorded).into_iter();
    let expected: BTreeMap<_, _> = expected.map(|(name, sum)| (name, sum.1)).collect();
    assert_eq!(read, expected, "{text}");
    assert!(
        text.contains("_dl_relocate_object") || text.contains("do_lookup_x"),
        "{text}"
    );
}

/// Importing an exported file gives the same recording. The import is a second reader of the file.
#[test]
fn an_import_of_the_export_has_the_same_samples_and_calls() {
    let Some(recorded) = recorded() else { return };
    let path = export(&recorded.path(), "perf", &[]);
    let again = recorded.folder.path().join("again.mg");
    let mut command = memgauge();
    let output = command
        .arg("import")
        .arg(path)
        .arg("-o")
        .arg(&again)
        .output();
    let output = output.expect("memgauge runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let rows = |path: &Path| {
        let mut rows = samples(path);
        let first = rows.iter().map(|row| row.time_ns).min().unwrap_or(0);
        for row in &mut rows {
            row.time_ns -= first;
            // Each recording has its own numbers of events and frames. perf has no sizes.
            (row.event, row.size_bytes, row.derivation) = Default::default();
            row.caller = row.caller.map(|_| Default::default());
        }
        let key = |row: &Sample| (row.time_ns, row.tid.0, row.ip.0, row.period);
        rows.sort_by_key(key);
        rows
    };
    let with_cpu = |mut rows: Vec<Sample>, cpu| {
        rows.iter_mut().for_each(|row| row.cpu = cpu);
        rows
    };
    assert_eq!(
        with_cpu(rows(&again), None),
        with_cpu(rows(&recorded.path()), None)
    );
    let calls = |path: &Path| {
        let report = harness::report(path);
        let report: Value = serde_json::from_slice(&report.stdout).expect("JSON");
        let trees = report["calls"].as_array().expect("calls").iter();
        let tree = |tree: &Value| (tree["event"].to_string(), tree["nodes"].clone());
        trees.map(tree).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(calls(&again), calls(&recorded.path()));
}
