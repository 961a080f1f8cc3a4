//! Metrics of `memgauge serve`, read by Prometheus and a collector of OpenTelemetry.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod service;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use memgauge_testing::{Need, python_with, skipped};
use serde_json::Value;

use harness::PROGRAM;
use service::{PATIENCE, Running, Service, file_of_dist, until};

#[test]
fn prometheus_reads_the_metrics() {
    let Some(service) = Service::start() else {
        return;
    };
    let Some(mut python) = python_with("prometheus_client") else {
        return;
    };
    let target = Running::busy();
    let id = service.new_profiler(&[]);
    service.ctl(&["attach", &id, "-p", &target.pid()]);
    service.ctl(&["read", &id, "--wait", "30s"]);
    let names = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
families = list(parse(sys.stdin.read()))
names = [f.name for f in families]
assert len(set(names)) == len(names), names
for f in families:
    assert f.documentation and f.samples, f.name
    for s in f.samples:
        print(s.name, sorted(s.labels.items()), s.value)
";
    let mut parser = python
        .args(["-c", names])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let text = service.metrics();
    parser
        .stdin
        .take()
        .expect("a pipe")
        .write_all(text.as_bytes())
        .expect("it reads");
    let output = parser.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{text}");
    let read = String::from_utf8(output.stdout).expect("text");
    let value = |name: &str, label: &str| {
        let line = read
            .lines()
            .find(|l| l.starts_with(&format!("{name} ")) && l.contains(label));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .unwrap_or(-1.0)
    };
    assert!(value("memgauge_samples_total", "clock") >= 1.0, "{read}");
    assert_eq!(value("memgauge_samples_total", "pmu"), 0.0, "{read}");
    assert_eq!(value("memgauge_processes", ""), 1.0, "{read}");
    assert_eq!(value("memgauge_threads", "started"), 1.0, "{read}");
    assert!(value("process_resident_memory_bytes", "") > 1e6, "{read}");
    // Nothing here measures bandwidth: it is absent, not zero.
    assert!(!read.contains("bandwidth"), "{read}");
}

/// Value of the first sample with all these parts in its line.
fn sample(text: &str, parts: &[&str]) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| parts.iter().all(|part| line.contains(part)))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The expected number is that of the bytes that `dd` was told to write past the cache.
#[test]
fn bytes_of_io_are_in_the_metrics_by_command_and_device() {
    const BYTES: f64 = (48 << 20) as f64;
    if !harness::is_root() {
        return skipped(Need::Root, "needs root");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let file = folder.path().join("data");
    // The program has its own name, because other tests use dd at the same time.
    let program = folder.path().join("dd-of-metrics");
    std::os::unix::fs::symlink("/bin/dd", &program).expect("a link");
    let write = || {
        let mut dd = Command::new(&program);
        dd.args(["if=/dev/zero", "bs=1M", "count=48", "oflag=direct"]);
        let of = format!("of={}", file.display());
        dd.arg(of).stderr(Stdio::null()).status().expect("dd runs")
    };
    if !write().success() {
        return skipped(Need::Kernel, "this file system has no direct writes");
    }
    let Some(service) = Service::with(&["--io"]) else {
        return;
    };
    assert!(write().success());
    let mut text = String::new();
    until("the account of dd", || {
        text = service.metrics();
        sample(
            &text,
            &[
                "memgauge_io_bytes_total{command=\"dd-of-metrics\"",
                "\"out\"",
            ],
        )
        .is_some_and(|bytes| bytes >= BYTES - (1 << 20) as f64)
    });
    let out = sample(
        &text,
        &[
            "memgauge_io_bytes_total{command=\"dd-of-metrics\"",
            "\"out\"",
        ],
    );
    assert!(out.expect("it was there") <= BYTES * 1.02, "{text}");
    let line = text
        .lines()
        .find(|line| line.contains("command=\"dd-of-metrics\""));
    let device = line.and_then(|line| line.split("device=\"").nth(1)?.split('"').next());
    let device = format!(
        "memgauge_io_device_bytes_total{{device=\"{}\"",
        device.expect("a device")
    );
    let counted = sample(&text, &[&device, "\"out\""]).expect("the device counts");
    assert!(counted >= BYTES, "{text}");
    assert_eq!(
        sample(&text, &["memgauge_io_failures_total"]),
        Some(0.0),
        "{text}"
    );
}

/// Receives a request to a collector: its head and body.
fn take_request(listener: &std::net::TcpListener, status: &str) -> (String, Vec<u8>) {
    let (mut stream, _) = listener.accept().expect("it is sent to");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).expect("text") > 0, "{head}");
    }
    let head = head.to_lowercase();
    let length = head.split("content-length: ").nth(1).expect("a length");
    let length: usize = length
        .lines()
        .next()
        .expect("a line")
        .parse()
        .expect("a number");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).expect("it reads");
    (head, body)
}

/// Ends a service that pushes to this address, which then sends its metrics a last time. Returns
/// the ended service and its messages.
fn end_of_pushing(endpoint: &str) -> (Running, std::process::ChildStderr) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut child = Command::new(PROGRAM)
        .args(["serve", "--otlp", endpoint, "--socket"])
        .arg(folder.path().join("s.sock"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut errors = BufReader::new(child.stderr.take().expect("it is a pipe"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("text");
    assert!(line.contains("serving at"), "{line}");
    let pid = child.id().to_string();
    Command::new("kill").arg(&pid).status().expect("kill runs");
    (Running(child), errors.into_inner())
}

#[test]
fn metrics_are_pushed_to_a_collector() {
    if !Path::new("/proc/sys/kernel/perf_event_paranoid").exists() {
        return skipped(Need::Kernel, "this kernel has no perf events");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let (mut service, mut errors) = end_of_pushing(&endpoint);
    let (head, body) = take_request(&listener, "200 OK");
    assert!(head.starts_with("post /v1/metrics http/1.1\r\n"), "{head}");
    assert!(
        head.contains("content-type: application/x-protobuf"),
        "{head}"
    );
    assert!(service.0.wait().expect("it ends").success());
    let mut said = String::new();
    errors.read_to_string(&mut said).expect("text");
    assert_eq!(said, "");
    let has = |name: &str| {
        body.windows(name.len())
            .any(|bytes| bytes == name.as_bytes())
    };
    for name in [
        "memgauge.samples",
        "process.cpu_seconds",
        "service.name",
        "clock",
    ] {
        assert!(has(name), "{name}");
    }
    let decode = "
import sys
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
request = ExportMetricsServiceRequest.FromString(sys.stdin.buffer.read())
[resource] = request.resource_metrics
[scope] = resource.scope_metrics
metrics = {m.name: m for m in scope.metrics}
samples = metrics['memgauge.samples'].sum
assert samples.is_monotonic and samples.aggregation_temporality == 2
sources = [p.attributes[0].value.string_value for p in samples.data_points]
assert sources == ['clock', 'pmu', 'emulate'], sources
assert all(0 < p.start_time_unix_nano <= p.time_unix_nano for p in samples.data_points)
[memory] = metrics['process.resident_memory_bytes'].gauge.data_points
assert memory.as_int > 1e6 and metrics['process.resident_memory_bytes'].unit == 'By'
";
    let Some(mut python) = python_with("opentelemetry.proto.collector.metrics.v1") else {
        return;
    };
    let mut python = python
        .args(["-c", decode])
        .stdin(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let written = python.stdin.take().expect("a pipe").write_all(&body);
    written.expect("it reads");
    assert!(python.wait().expect("it ends").success());
}

#[test]
fn a_collector_that_refuses_or_is_absent_is_told_once() {
    if !Path::new("/proc/sys/kernel/perf_event_paranoid").exists() {
        return skipped(Need::Kernel, "this kernel has no perf events");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let expected = format!("memgauge: failed to send metrics to http://{address}/v1/metrics: ");
    // A request that is sent elsewhere would arrive there without its body.
    for answer in ["503 Service Unavailable", "302 Found\r\nLocation: /login"] {
        let (mut service, mut errors) = end_of_pushing(&address);
        take_request(&listener, answer);
        let mut said = String::new();
        errors.read_to_string(&mut said).expect("text");
        let told = said.starts_with(&expected) && said.contains(&answer[..3]);
        assert!(told && said.lines().count() == 1, "{said}");
        assert!(service.0.wait().expect("it ends").success());
    }
    drop(listener);
    let (mut service, mut errors) = end_of_pushing(&address);
    let mut said = String::new();
    errors.read_to_string(&mut said).expect("text");
    assert!(said.starts_with(&expected), "{said}");
    assert!(service.0.wait().expect("it ends").success());
}

/// Words of a query that are names of metrics.
fn metrics_of(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("memgauge_") || word.starts_with("process_"))
}

/// Checks that the page for users names each metric.
fn names_are_documented(text: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve.md");
    let page = std::fs::read_to_string(page).expect("it is there");
    let names = text.lines().filter(|line| !line.starts_with('#'));
    let names = names.filter_map(|line| line.split(['{', ' ']).next());
    for name in names {
        assert!(
            page.contains(&format!("`{name}`")),
            "docs/serve.md does not name `{name}`"
        );
    }
}

/// Checks that the dashboard's queries of these metrics find them. Returns the number of queries.
fn check_queries(text: &str, wanted: impl Fn(&str) -> bool) -> usize {
    let dashboard: Value =
        serde_json::from_str(&file_of_dist("grafana-dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let mut asked = 0;
    for target in targets {
        let query = target["expr"].as_str().expect("a query");
        let legend = target["legendFormat"].as_str().expect("a legend");
        let labels: Vec<&str> = legend
            .split("{{")
            .skip(1)
            .filter_map(|l| l.split_once("}}"))
            .map(|l| l.0)
            .collect();
        for name in metrics_of(query).filter(|name| wanted(name)) {
            let sample = text.lines().find(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            let sample = sample.unwrap_or_else(|| panic!("`{name}` of `{query}` is no metric"));
            for label in &labels {
                assert!(
                    sample.contains(&format!("{label}=\"")),
                    "`{label}` is no label of `{name}`"
                );
            }
            // Only increasing values have a rate.
            assert_eq!(query.contains("rate("), name.ends_with("_total"), "{query}");
            asked += 1;
        }
    }
    asked
}

#[test]
fn the_dashboard_asks_for_metrics_and_labels_that_there_are() {
    let Some(service) = Service::start() else {
        return;
    };
    let text = service.metrics();
    let asked = check_queries(&text, |name| !name.starts_with("memgauge_io_"));
    assert_eq!(asked, 17, "a query was added, or is not read");
    names_are_documented(&text);
}
