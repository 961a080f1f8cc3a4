//! `memgauge serve` and `memgauge ctl`, as clients and users meet them.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use memgauge_testing::{Need, skipped};
use serde_json::Value;
use tempfile::TempDir;

use harness::{PROGRAM, needs};

/// Longer than anything takes that comes at all.
const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    /// One that computes.
    fn busy() -> Running {
        Running::of(Command::new("sh").args(["-c", "while :; do :; done"]))
    }

    fn of(command: &mut Command) -> Running {
        Running(command.spawn().expect("it runs"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service with a socket in a folder of its own.
struct Service {
    process: Running,
    socket: PathBuf,
    metrics: String,
    _folder: TempDir,
}

impl Service {
    /// `None` where this machine lets nobody sample.
    fn start() -> Option<Service> {
        Service::with(&[])
    }

    fn with(options: &[&str]) -> Option<Service> {
        if !Path::new("/proc/sys/kernel/perf_event_paranoid").exists() {
            skipped(Need::Kernel, "this kernel has no perf events");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Another user's client passes through.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), all).expect("it is ours");
        let socket = folder.path().join("s.sock");
        let (process, said) = serve_with(&socket, options);
        let metrics = said.iter().find_map(|line| line.split_once("http://"));
        let metrics = metrics.expect("it names its metrics").1;
        Some(Service {
            metrics: metrics.trim_end_matches("/metrics").to_owned(),
            process,
            socket,
            _folder: folder,
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg("ctl")
            .arg("--socket")
            .arg(&self.socket)
            .args(arguments);
        command
    }

    /// What `memgauge ctl` prints; it must succeed.
    fn ctl(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("it runs");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {complaint}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let all = [&["--json"], arguments].concat();
        serde_json::from_str(&self.ctl(&all)).expect("JSON")
    }

    /// Makes a profiler; its number.
    fn new_profiler(&self, options: &[&str]) -> String {
        let all = [&["new"], options].concat();
        self.ctl(&all).trim().to_owned()
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream
    }

    /// The whole answer to bytes, until the service closes the connection.
    fn answer(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // It may close before it has read all that is too much.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.process.pid());
        std::fs::read_dir(folder).expect("it runs").count()
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.metrics).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        body.to_owned()
    }

    /// A metric, summed over its labels.
    fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let labelled = rest.starts_with('{') || rest.starts_with(' ');
            labelled.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        values.sum()
    }
}

/// Starts a service; what it says until it listens.
fn serve(socket: &Path) -> (Running, Vec<String>) {
    serve_with(socket, &[])
}

fn serve_with(socket: &Path, options: &[&str]) -> (Running, Vec<String>) {
    let child = Command::new(PROGRAM)
        .args(["serve", "--metrics", "0", "--socket"])
        .arg(socket)
        .args(options)
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("it runs");
    let errors = child.stderr.take().expect("it is a pipe");
    let mut said = Vec::new();
    for line in BufReader::new(errors).lines() {
        said.push(line.expect("text"));
        if said.last().is_some_and(|line| line.contains("serving at")) {
            break;
        }
    }
    (Running(child), said)
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success(), "it succeeded: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_process_is_sampled_from_new_to_delete() {
    let Some(service) = Service::start() else {
        return;
    };
    let target = Running::busy();
    let (id, pid) = (service.new_profiler(&["--name", "mine"]), target.pid());
    assert_eq!(
        service.ctl(&["attach", &id, "-p", &pid]),
        format!("1 threads of process {pid}\n")
    );
    let lines = service.ctl(&["--json", "read", &id, "-n", "5", "--wait", "30s"]);
    let samples: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).expect("JSON"))
        .collect();
    assert!((1..=5).contains(&samples.len()), "{lines}");
    assert!(
        samples
            .iter()
            .all(|s| s["pid"] == target.0.id() && s["stands_for"] != 0),
        "{lines}"
    );
    let stats = service.json(&["stats", &id, &pid]);
    let period = stats["period"].as_u64().expect("a number");
    service.ctl(&["period", &id, &pid, &(2 * period).to_string()]);
    service.ctl(&["stop", &id, &pid]);
    let stopped = service.json(&["stats", &id, &pid]);
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["period"], 2 * period);
    // More than one answer holds.
    service.ctl(&["read", &id, "-n", "25000"]);
    let t = service.json(&["stats", &id, &pid]);
    let of = |name: &str| t[name].as_u64().expect("a number");
    assert_eq!(
        of("samples"),
        of("delivered") + of("overwritten") + of("refused"),
        "{t}"
    );
    assert_eq!(of("waiting"), 0, "{t}");
    assert_eq!(stopped["samples"], t["samples"], "it is stopped");
    service.ctl(&["start", &id, &pid]);
    until("a sample after the start", || {
        service.json(&["stats", &id, &pid])["samples"] != t["samples"]
    });
    let list = service.ctl(&["list"]);
    assert!(
        list.lines()
            .any(|l| l.contains("clock") && l.ends_with("mine")),
        "{list}"
    );
    service.ctl(&["delete", &id]);
    assert_eq!(
        service.json(&["list"])["profilers"],
        Value::Array(Vec::new())
    );
    // What was counted stays in the sums.
    assert!(service.metric("memgauge_samples_total") >= of("samples") as f64);
}

#[test]
fn a_stream_sends_samples_until_the_profiler_is_deleted() {
    let Some(service) = Service::start() else {
        return;
    };
    let target = Running::busy();
    let id = service.new_profiler(&[]);
    service.ctl(&["attach", &id, "-p", &target.pid()]);
    let mut follow = service.command(&["--json", "read", &id, "--follow"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = follow.stdout.take().expect("it is a pipe");
    let mut lines = BufReader::new(lines).lines();
    for _ in 0..20 {
        let line = lines.next().expect("a line").expect("text");
        let sample: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(sample["pid"].to_string(), target.pid());
    }
    service.ctl(&["delete", &id]);
    assert!(lines.all(|line| line.is_ok_and(|line| line.starts_with('{'))));
    assert!(follow.wait().expect("it ends").success());
}

#[test]
fn a_user_profiles_own_processes_alone() {
    if !needs(&["root", "setpriv"]) {
        return;
    }
    let Some(service) = Service::start() else {
        return;
    };
    let as_nobody = |program: &Command| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(program.get_program()).args(program.get_args());
        command
    };
    // The program lies where this user may not look.
    let copy = service.socket.with_file_name("memgauge");
    std::fs::copy(PROGRAM, &copy).expect("room for a copy");
    let ctl = |arguments: &[&str]| {
        let mut command = Command::new(&copy);
        command
            .arg("ctl")
            .arg("--socket")
            .arg(&service.socket)
            .args(arguments);
        as_nobody(&command).output().expect("it runs")
    };
    let foreign = Running::busy();
    let own = Running::of(&mut as_nobody(
        Command::new("sh").args(["-c", "while :; do :; done"]),
    ));
    let status = format!("/proc/{}/status", own.pid());
    until("another user", || {
        std::fs::read_to_string(&status).is_ok_and(|s| s.contains("Uid:\t65534\t65534"))
    });
    let roots = service.new_profiler(&[]);
    let made = ctl(&["new"]);
    assert!(made.status.success(), "{made:?}");
    let id = String::from_utf8(made.stdout)
        .expect("text")
        .trim()
        .to_owned();
    let refused = complaint(&ctl(&["attach", &id, "-p", &foreign.pid()]));
    assert!(refused.contains("belongs to another user"), "{refused}");
    let refused = complaint(&ctl(&["attach", &id, "-t", &foreign.pid()]));
    assert!(refused.contains("belongs to another user"), "{refused}");
    let refused = complaint(&ctl(&["new", "--kernel"]));
    assert!(refused.contains("samples of the kernel"), "{refused}");
    let refused = complaint(&ctl(&["stats", &roots]));
    assert!(refused.contains("another user"), "{refused}");
    let attached = ctl(&["attach", &id, "-p", &own.pid()]);
    assert!(attached.status.success(), "{attached:?}");
    let samples = ctl(&["--json", "read", &id, "--wait", "30s"]);
    let samples = String::from_utf8(samples.stdout).expect("text");
    assert!(samples.lines().count() > 0);
    assert!(
        samples
            .lines()
            .all(|line| line.contains(&format!("\"pid\":{},", own.pid())))
    );
    let seen: Value = serde_json::from_slice(&ctl(&["--json", "list"]).stdout).expect("JSON");
    assert_eq!(
        seen["profilers"].as_array().map(Vec::len),
        Some(1),
        "{seen}"
    );
    // Root uses everybody's.
    assert_eq!(
        service.json(&["list"])["profilers"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    service.ctl(&["delete", &id]);
}

#[test]
fn a_second_service_is_refused_and_one_that_was_killed_is_replaced() {
    let Some(mut service) = Service::start() else {
        return;
    };
    let second = Command::new(PROGRAM)
        .args(["serve", "--socket"])
        .arg(&service.socket)
        .output();
    let second = complaint(&second.expect("it runs"));
    assert!(second.contains("another memgauge serve"), "{second}");
    service.ctl(&["list"]);
    service.process.0.kill().expect("it is ours");
    service.process.0.wait().expect("it is ours");
    let gone = complaint(&service.command(&["list"]).output().expect("it runs"));
    assert!(gone.contains("start `memgauge serve` again"), "{gone}");
    let (third, _) = serve(&service.socket);
    service.process = third;
    service.ctl(&["list"]);
    Command::new("kill")
        .arg(service.process.pid())
        .status()
        .expect("kill runs");
    let status = service.process.0.wait().expect("it ends");
    assert!(status.success(), "{status}");
    assert!(!service.socket.exists(), "its socket is removed");
    let gone = complaint(&service.command(&["list"]).output().expect("it runs"));
    assert!(gone.contains("no such socket"), "{gone}");
}

#[test]
fn bad_requests_are_answered_and_good_ones_still_are() {
    let Some(service) = Service::start() else {
        return;
    };
    let post = |body: &str| {
        format!(
            "POST /v1/profilers HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let requests = [
        (
            "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            "404",
        ),
        (
            "PUT /v1 HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            "405",
        ),
        ("GET /v1/none HTTP/1.0\r\n\r\n".to_owned(), "404"),
        ("GET /v1 HTTP/2.0\r\n\r\n".to_owned(), "505"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        ("\0\0\0\0\r\n\r\n".to_owned(), "400"),
        (post("{"), "400"),
        (post("[]"), "400"),
        (post(r#"{"event":"no-such-event"}"#), "400"),
        (post(r#"{"unknown":1}"#), "400"),
        (post(&" ".repeat(70_000)), "413"),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000)),
            "431",
        ),
        (
            "GET /v1/profilers/7/samples HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            "404",
        ),
    ];
    for (request, status) in requests {
        let answer = service.answer(request.as_bytes());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request:.60}: {answer}"
        );
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert!(
            body["error"]["message"]
                .as_str()
                .is_some_and(|m| m.starts_with("failed to"))
        );
    }
    let about = service.answer(b"GET /v1 HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!(about.contains("may_profile"), "{about}");
    let described = service.answer(b"GET /v1/openapi.json HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!(described.contains("\"openapi\": \"3.1.0\""));
}

/// Clients and targets that die at every moment leave nothing behind.
#[test]
fn neither_clients_nor_targets_leave_descriptors() {
    let Some(service) = Service::start() else {
        return;
    };
    let busy = Running::busy();
    // What a first round opens for good belongs to the start.
    let round = |service: &Service| {
        let id = service.new_profiler(&[]);
        service.ctl(&["attach", &id, "-p", &busy.pid()]);
        let mut short = Running::of(Command::new("sleep").arg("1000"));
        service.ctl(&["attach", &id, "-p", &short.pid()]);
        let path = format!("/v1/profilers/{id}/stream");
        let mut streams: Vec<UnixStream> = (0..3).map(|_| service.connect()).collect();
        for stream in &mut streams {
            let request = format!("GET {path} HTTP/1.1\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("it reads");
            stream.read_exact(&mut [0; 15]).expect("it answers");
        }
        short.0.kill().expect("it is ours");
        // Half a request, and a profiler that lives as long as its connection.
        service
            .connect()
            .write_all(b"POST /v1/prof")
            .expect("it reads");
        let body = r#"{"lifetime":"connection"}"#;
        let mut holds = service.connect();
        let request = format!(
            "POST /v1/profilers HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        holds.write_all(request.as_bytes()).expect("it reads");
        holds.read_exact(&mut [0; 12]).expect("it answers");
        drop((streams, holds));
        service.ctl(&["delete", &id]);
    };
    round(&service);
    until("the first round's end", || {
        service.json(&["list"])["profilers"] == Value::Array(Vec::new())
    });
    until("the first round's connections", || {
        service.metric("memgauge_connections") <= 1.0
    });
    let before = service.descriptors();
    for _ in 0..10 {
        round(&service);
    }
    until("the end of all profilers", || {
        service.json(&["list"])["profilers"] == Value::Array(Vec::new())
    });
    until("as few descriptors as before", || {
        service.descriptors() <= before
    });
}

#[test]
fn a_client_that_stops_reading_is_dropped_and_the_others_are_served() {
    let Some(service) = Service::start() else {
        return;
    };
    let target = Running::busy();
    let id = service.new_profiler(&["-c", "100000", "--buffer", "64"]);
    service.ctl(&["attach", &id, "-p", &target.pid()]);
    let mut deaf = service.connect();
    let request = format!("GET /v1/profilers/{id}/stream HTTP/1.1\r\n\r\n");
    deaf.write_all(request.as_bytes()).expect("it reads");
    until("the end of the client that does not read", || {
        assert!(
            !service.ctl(&["list"]).is_empty(),
            "others are served meanwhile"
        );
        service.metric("memgauge_dropped_connections_total") >= 1.0
    });
    let t = service.json(&["stats", &id, &target.pid()]);
    assert!(
        t["overwritten"].as_u64() > Some(0),
        "the oldest were overwritten, and counted: {t}"
    );
}

#[test]
fn prometheus_reads_the_metrics() {
    let Some(service) = Service::start() else {
        return;
    };
    let python = |code: &str| {
        let mut python = Command::new("python3");
        python
            .args(["-c", code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        python.spawn().expect("python3 runs")
    };
    if !python("import prometheus_client")
        .wait()
        .expect("it ends")
        .success()
    {
        return skipped(Need::Tool, "needs python3-prometheus-client");
    }
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
    let mut parser = python(names);
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

/// The value of the first sample whose line has all these.
fn sample(text: &str, parts: &[&str]) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| parts.iter().all(|part| line.contains(part)))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Witness: the bytes that `dd` was told to write past the cache.
#[test]
fn bytes_of_io_are_in_the_metrics_by_command_and_device() {
    const BYTES: f64 = (48 << 20) as f64;
    if !harness::is_root() {
        return skipped(Need::Root, "needs root");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let file = folder.path().join("data");
    let write = || {
        let mut dd = Command::new("dd");
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
            &["memgauge_io_bytes_total{command=\"dd\"", "\"out\""],
        )
        .is_some_and(|bytes| bytes >= BYTES - (1 << 20) as f64)
    });
    let out = sample(
        &text,
        &["memgauge_io_bytes_total{command=\"dd\"", "\"out\""],
    );
    assert!(out.expect("it was there") <= BYTES * 1.02, "{text}");
    let line = text.lines().find(|line| line.contains("command=\"dd\""));
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

/// What a collector is sent: the request's head and body.
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

/// A service that pushes to this address is ended: it sends its metrics a last time. What it
/// says then.
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
assert sources == ['clock', 'pmu'], sources
assert all(0 < p.start_time_unix_nano <= p.time_unix_nano for p in samples.data_points)
[memory] = metrics['process.resident_memory_bytes'].gauge.data_points
assert memory.as_int > 1e6 and metrics['process.resident_memory_bytes'].unit == 'By'
";
    let module = ["-c", "import opentelemetry.proto.collector.metrics.v1"];
    let has_decoder = Command::new("python3")
        .args(module)
        .stderr(Stdio::null())
        .status();
    if !has_decoder.is_ok_and(|status| status.success()) {
        return skipped(Need::Tool, "needs Python's package opentelemetry-proto");
    }
    let mut python = Command::new("python3");
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
    let (mut service, mut errors) = end_of_pushing(&address);
    take_request(&listener, "503 Service Unavailable");
    let mut said = String::new();
    errors.read_to_string(&mut said).expect("text");
    let expected = format!("memgauge: failed to send metrics to http://{address}/v1/metrics: ");
    assert!(
        said.starts_with(&expected) && said.contains("503"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(service.0.wait().expect("it ends").success());
    drop(listener);
    let (mut service, mut errors) = end_of_pushing(&address);
    let mut said = String::new();
    errors.read_to_string(&mut said).expect("text");
    assert!(said.starts_with(&expected), "{said}");
    assert!(service.0.wait().expect("it ends").success());
}

#[test]
fn scrapers_of_http_1_0_and_heads_are_answered() {
    let Some(service) = Service::start() else {
        return;
    };
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(&service.metrics).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("it answers and closes");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        body.to_owned()
    };
    let old = ask("GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
    assert!(old.ends_with("# EOF\n"), "{old}");
    let close = "Host: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(ask(&format!("HEAD /metrics HTTP/1.1\r\n{close}")), "");
    let id: u64 = service.new_profiler(&[]).parse().expect("a number");
    let stream = format!("GET /v1/profilers/{id}/stream HTTP/1.0\r\n\r\n");
    let refused = service.answer(stream.as_bytes());
    assert!(refused.starts_with("HTTP/1.1 505 "), "{refused}");
}

#[test]
fn what_is_refused_takes_no_number_and_is_told_in_words_of_ctl() {
    let Some(service) = Service::start() else {
        return;
    };
    let fails = |arguments: &[&str]| {
        let output = service.command(arguments).output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let unknown = fails(&["new", "-e", "nosuch"]);
    assert!(!unknown.contains("near it"), "{unknown}");
    let missing = fails(&["stats", "9"]);
    assert!(missing.contains("no profiler has this number"), "{missing}");
    assert!(!missing.contains("GET"), "{missing}");
    let [first, second] = [(); 2].map(|()| {
        let id = service.new_profiler(&[]);
        fails(&["new", "-e", "nosuch"]);
        id.parse::<u64>().expect("a number")
    });
    assert_eq!((first, second), (1, 2));
}

#[test]
fn a_thousand_targets_that_vanish_are_no_trouble() {
    let Some(service) = Service::start() else {
        return;
    };
    let mut client = memgauge_serve::Client::connect(&service.socket).expect("it listens");
    // Answered, so that its connection is among the descriptors.
    client.ask("GET", "/v1", None::<&()>).expect("it answers");
    let before = service.descriptors();
    let path = "/v1/profilers";
    let made = client.ask("POST", path, Some(&serde_json::json!({ "buffer": 64 })));
    let path = format!("{path}/{}", made.expect("a profiler")["id"]);
    let mut vanished = 0;
    for round in 0..1000 {
        let mut target = Command::new("true").spawn().expect("true runs");
        if round % 2 == 0 {
            target.wait().expect("it is ours");
        }
        let body = serde_json::json!({ "pid": target.id() });
        match client.ask("POST", &format!("{path}/processes"), Some(&body)) {
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.kind(), memgauge_host::ErrorKind::NoSuchTask, "{e}");
                vanished += 1;
            }
        }
        target.wait().expect("it is ours");
    }
    assert!(vanished >= 500, "half of them had ended before: {vanished}");
    client
        .ask("DELETE", &path, None::<&()>)
        .expect("it is there");
    until("as few descriptors as before", || {
        service.descriptors() <= before
    });
}

/// The soak test of `bench/`, for some seconds.
#[test]
fn random_clients_and_targets_leave_memory_and_descriptors_as_they_were() {
    if !needs(&["python3"]) || Service::start().is_none() {
        return;
    }
    let soak = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/serve-soak");
    let output = Command::new(soak)
        .args(["--memgauge", PROGRAM, "--seconds", "10"])
        .output();
    let output = output.expect("python3 runs it");
    assert!(output.status.success(), "{output:?}");
}

fn file_of_dist(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../dist")
        .join(name);
    std::fs::read_to_string(path).expect("it is there")
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

/// Checks that the dashboard's queries of these metrics find them; how many there are.
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
            // A rate is of what only grows.
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

#[test]
fn systemd_knows_all_that_the_unit_says() {
    if !needs(&["systemd-analyze"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prefix = folder.path().join("usr");
    std::fs::create_dir_all(prefix.join("bin")).expect("a folder");
    std::os::unix::fs::symlink(PROGRAM, prefix.join("bin/memgauge")).expect("a link");
    let unit = file_of_dist("memgauge.service").replace("@PREFIX@", &prefix.to_string_lossy());
    let path = folder.path().join("memgauge.service");
    std::fs::write(&path, unit).expect("a file");
    let output = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let of_ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("memgauge"))
        .collect();
    assert!(of_ours.is_empty() && output.status.success(), "{said}");
}
