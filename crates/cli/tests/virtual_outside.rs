//! Waits for something outside of the session take as long as on the host.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Recorded, Totals, compiled, needs, one_is_right};
use serde_json::Value;

fn outside() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("outside"))
}

const PAUSE: Duration = Duration::from_millis(300);

/// A client that is not followed. It sends after a pause, and ends after another one.
enum Client {
    Standard(ChildStdin),
    Tcp(TcpStream),
    Unix(UnixStream),
    Udp(UdpSocket),
}

impl Client {
    /// Creates a client of a program that serves at `port`, or reads its standard input.
    fn new(mode: &str, port: u32, input: ChildStdin) -> Client {
        let here = ("127.0.0.1", port as u16);
        match mode {
            "tcp" => Client::Tcp(TcpStream::connect(here).expect("it listens")),
            "unix" => {
                let name = format!("{port:05x}");
                let address = SocketAddr::from_abstract_name(name).expect("a name");
                Client::Unix(UnixStream::connect_addr(&address).expect("it listens"))
            }
            "udp" => {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
                socket.connect(here).expect("an address");
                Client::Udp(socket)
            }
            _ => Client::Standard(input),
        }
    }

    fn send(&mut self, what: &[u8]) {
        match self {
            Client::Standard(input) => input.write_all(what).expect("it reads"),
            Client::Tcp(stream) => stream.write_all(what).expect("it reads"),
            Client::Unix(stream) => stream.write_all(what).expect("it reads"),
            Client::Udp(socket) => assert_eq!(socket.send(what).expect("it reads"), what.len()),
        }
    }
}

/// memgauge, which ends with its program if a test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        }
    }
}

/// Totals of a program that waits three times for a client: until it connects, sends and ends, with
/// a pause before each. Also returns the total time.
fn served(mode: &str) -> (Totals, i64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("run.mg");
    let started = Instant::now();
    let run = Command::new(harness::PROGRAM)
        .args([
            "record",
            "-q",
            "--source",
            "emulate",
            "--machine",
            "i5-6600k",
            "-o",
        ])
        .arg(&file)
        .args(["--", outside(), mode])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("memgauge runs");
    let mut run = Running(run);
    let mut port = String::new();
    let said = run.0.stdout.take().expect("a pipe");
    BufReader::new(said)
        .read_line(&mut port)
        .expect("the program says that it waits");
    // This sleep is the pause that the test measures.
    sleep(PAUSE);
    let input = run.0.stdin.take().expect("a pipe");
    let mut client = Client::new(mode, port.trim().parse().expect("a port"), input);
    sleep(PAUSE);
    client.send(b"data");
    sleep(PAUSE);
    if let Client::Udp(_) = client {
        client.send(b"");
    }
    drop(client);
    assert!(run.0.wait().expect("memgauge ends").success(), "{mode}");
    let most = started.elapsed().as_nanos() as i64;
    let text = std::fs::read(file.join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&text).expect("JSON");
    (harness::totals_of(&manifest["totals"]), most)
}

#[test]
fn a_wait_for_who_is_not_followed_lasts_as_long_as_on_the_host() {
    if !needs(&["gcc"]) {
        return;
    }
    for mode in [
        "read",
        "poll",
        "epoll",
        "select",
        "tcp",
        "unix",
        "udp",
        "handed-on",
        "seen",
    ] {
        let (totals, most) = served(mode);
        let (found, outside) = (totals["virtual_ns"], totals["outside_wait_ns"]);
        // The program may reach its first wait late. In mode `seen`, it does not wait for the end.
        let pauses = if mode == "seen" { 1 } else { 2 };
        let least = pauses * PAUSE.as_nanos() as i64;
        assert!(
            (least..most).contains(&found),
            "{mode}: {found} of {most} ns"
        );
        assert!(
            (found - 5_000_000..=found).contains(&outside),
            "{mode}: {outside} of {found} ns"
        );
    }
}

/// The worker is many times slower than on the modelled machine.
#[test]
fn while_others_work_the_hosts_clock_says_nothing() {
    if !needs(&["gcc"]) {
        return;
    }
    let right = |(totals, most): &(Totals, i64)| {
        let outside = totals.get("outside_wait_ns").map_or(0, |&ns| ns);
        outside < most / 10 && totals["virtual_ns"] < most / 2
    };
    one_is_right("beside", || served("beside"), right);
}

#[test]
fn followed_processes_do_not_count_as_outside() {
    if !needs(&["gcc"]) {
        return;
    }
    let waits = compiled("waits");
    for program in [
        [&waits, "pipes"],
        [&waits, "sockets"],
        [&waits, "events"],
        [outside(), "half-closed"],
        [outside(), "terminal"],
    ] {
        let runs: Vec<Totals> = (0..3)
            .map(|_| Recorded::in_time(&program).totals())
            .collect();
        for totals in &runs {
            assert!(
                !totals.contains_key("outside_wait_ns"),
                "{program:?}: {totals:?}"
            );
            let (found, first) = (totals["virtual_ns"], runs[0]["virtual_ns"]);
            harness::assert_near("virtual time in ns", found, first, 0.001);
        }
    }
}
