//! A `memgauge serve` with a socket of its own, and targets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use memgauge_testing::{Need, skipped};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::PROGRAM;

/// Time limit for things that should happen. It is longer than any of them takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// One that computes.
    pub(crate) fn busy() -> Running {
        Running::of(Command::new("sh").args(["-c", "while :; do :; done"]))
    }

    pub(crate) fn of(command: &mut Command) -> Running {
        Running(command.spawn().expect("it runs"))
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Stops the process, which then does nothing.
    pub(crate) fn stop(&self) {
        let stopped = Command::new("kill").args(["-STOP", &self.pid()]).status();
        assert!(stopped.expect("kill runs").success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A service with a socket in a folder of its own.
pub(crate) struct Service {
    pub(crate) process: Running,
    pub(crate) socket: PathBuf,
    pub(crate) metrics: String,
    _folder: TempDir,
}

impl Service {
    /// Returns `None` if this machine does not allow sampling.
    pub(crate) fn start() -> Option<Service> {
        Service::with(&[])
    }

    pub(crate) fn with(options: &[&str]) -> Option<Service> {
        Service::of(Command::new(PROGRAM), options)
    }

    /// A service with this limit of open files.
    pub(crate) fn with_open_files(most: u64) -> Option<Service> {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {most}; exec {PROGRAM} \"$@\"");
        command.args(["-c", &script, "sh"]);
        Service::of(command, &[])
    }

    fn of(program: Command, options: &[&str]) -> Option<Service> {
        if !Path::new("/proc/sys/kernel/perf_event_paranoid").exists() {
            skipped(Need::Kernel, "this kernel has no perf events");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Another user's client passes through.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), all).expect("it is ours");
        let socket = folder.path().join("s.sock");
        let (process, said) = serve_of(program, &socket, options);
        let metrics = said.iter().find_map(|line| line.split_once("http://"));
        let metrics = metrics.expect("it names its metrics").1;
        Some(Service {
            metrics: metrics.trim_end_matches("/metrics").to_owned(),
            process,
            socket,
            _folder: folder,
        })
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg("ctl")
            .arg("--socket")
            .arg(&self.socket)
            .args(arguments);
        command
    }

    /// Returns the output of `memgauge ctl`, which must succeed.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("it runs");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {complaint}");
        String::from_utf8(output.stdout).expect("text")
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let all = [&["--json"], arguments].concat();
        serde_json::from_str(&self.ctl(&all)).expect("JSON")
    }

    /// Creates a profiler and returns its number.
    pub(crate) fn new_profiler(&self, options: &[&str]) -> String {
        let all = [&["new"], options].concat();
        self.ctl(&all).trim().to_owned()
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream
    }

    /// The whole answer to bytes, until the service closes the connection.
    pub(crate) fn answer(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The service may close the connection before it has read the part that exceeds the limit.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.process.pid());
        std::fs::read_dir(folder).expect("it runs").count()
    }

    pub(crate) fn metrics(&self) -> String {
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
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.metrics();
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let labelled = rest.starts_with('{') || rest.starts_with(' ');
            labelled.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        values.sum()
    }
}

/// Starts a service and returns its output until it listens.
pub(crate) fn serve(socket: &Path) -> (Running, Vec<String>) {
    serve_of(Command::new(PROGRAM), socket, &[])
}

fn serve_of(mut program: Command, socket: &Path, options: &[&str]) -> (Running, Vec<String>) {
    let child = program
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

pub(crate) fn complaint(output: &Output) -> String {
    assert!(!output.status.success(), "it succeeded: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file that installing puts beside the program.
pub(crate) fn file_of_dist(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../dist")
        .join(name);
    std::fs::read_to_string(path).expect("it is there")
}
