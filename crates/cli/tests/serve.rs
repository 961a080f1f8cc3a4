//! `memgauge serve` and `memgauge ctl` for clients and users.

#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod service;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use harness::{PROGRAM, needs};
use service::{PATIENCE, Running, Service, complaint, file_of_dist, serve, until};

#[test]
fn a_process_is_sampled_from_new_to_delete() {
    let Some(service) = Service::start() else {
        return;
    };
    let target = Running::busy();
    let (id, pid) = (service.new_profiler(&["--name", "mine"]), target.pid());
    assert_eq!(
        service.ctl(&["attach", &id, "-p", &pid]),
        format!("1 thread of process {pid}\n")
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
    // Earlier counts stay in the sums.
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
    // Samples in a stream are delivered, whoever reads by batches or does not.
    let sums = || service.json(&["list"])["profilers"][0]["totals"].clone();
    until("samples that are delivered", || {
        sums()["delivered"].as_u64() >= Some(20)
    });
    assert!(service.metric("memgauge_delivered_samples_total") >= 20.0);
    service.ctl(&["delete", &id]);
    assert!(lines.all(|line| line.is_ok_and(|line| line.starts_with('{'))));
    assert!(follow.wait().expect("it ends").success());
}

/// A stream as for `curl -N`, from a profiler with small buffers and without a reader of batches.
#[test]
fn samples_of_a_healthy_stream_are_neither_unread_nor_overwritten() {
    let Some(service) = Service::start() else {
        return;
    };
    for when_full in ["overwrite", "refuse"] {
        let options = ["-c", "1000000", "--buffer", "512", "--when-full", when_full];
        let id = service.new_profiler(&options);
        let mut stream = service.connect();
        let request = format!("GET /v1/profilers/{id}/stream HTTP/1.1\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let target = Running::busy();
        service.ctl(&["attach", &id, "-p", &target.pid()]);
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(stream).lines().map_while(Result::ok);
            lines.filter(|line| line.contains("\"stands_for\"")).count() as u64
        });
        // Waits for twice as many samples as a buffer holds.
        until("samples", || {
            service.json(&["stats", &id, &target.pid()])["samples"].as_u64() >= Some(1024)
        });
        drop(target);
        until("the end of the thread", || {
            service.json(&["list"])["profilers"][0]["threads"] == 0
        });
        let totals = || service.json(&["list"])["profilers"][0]["totals"].clone();
        let of = |t: &Value, name: &str| t[name].as_u64().expect("a number");
        until("all samples read", || {
            of(&totals(), "delivered") == of(&totals(), "samples")
        });
        let t = totals();
        for none in ["overwritten", "refused", "discarded"] {
            assert_eq!(of(&t, none), 0, "{when_full}: {t}");
        }
        service.ctl(&["delete", &id]);
        assert_eq!(
            reader.join().expect("it ends"),
            of(&t, "delivered"),
            "{when_full}: {t}"
        );
    }
}

/// Lines about lost samples do not count as samples.
#[test]
fn a_stream_ends_after_the_requested_number_of_samples() {
    let Some(service) = Service::start() else {
        return;
    };
    let id = service.new_profiler(&["-c", "1000000", "--buffer", "512"]);
    let target = Running::busy();
    service.ctl(&["attach", &id, "-p", &target.pid()]);
    until("samples that nobody read", || {
        service.json(&["stats", &id, &target.pid()])["overwritten"].as_u64() > Some(0)
    });
    let mut read = service.command(&["read", &id, "--follow", "-n", "3500"]);
    let read = read.output().expect("it runs");
    let message = String::from_utf8_lossy(&read.stderr);
    assert!(message.contains("overwritten"), "{message}");
    let lines = String::from_utf8(read.stdout).expect("text");
    assert_eq!(lines.lines().count(), 1 + 3500);
}

/// The same command as user 65534 with these groups.
fn as_nobody(groups: &str, program: &Command) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", groups]);
    command.arg(program.get_program()).args(program.get_args());
    command
}

/// The permissions are those of the caller, not those of the profiler's creator.
#[test]
fn a_profiler_of_the_group_is_of_no_use_to_the_same_user_without_it() {
    if !needs(&["root", "setpriv"]) {
        return;
    }
    let Some(service) = Service::with(&["--group", "65533"]) else {
        return;
    };
    // The program is in a folder that this user may not read.
    let copy = service.socket.with_file_name("memgauge");
    std::fs::copy(PROGRAM, &copy).expect("room for a copy");
    let ctl = |groups: &str, arguments: &[&str]| {
        let mut command = Command::new(&copy);
        command.arg("ctl").arg("--socket").arg(&service.socket);
        command.args(arguments);
        as_nobody(groups, &command).output().expect("it runs")
    };
    let roots = Running::busy();
    let made = ctl("--groups=65533", &["new"]);
    let id = String::from_utf8(made.stdout).expect("text");
    let (id, pid) = (id.trim(), roots.pid());
    for arguments in [
        &["attach", id, "-p", &pid][..],
        &["attach", id, "-t", &pid],
        &["read", id],
        &["read", id, "--follow"],
        &["stats", id],
        &["stop", id],
    ] {
        let output = ctl("--clear-groups", arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let refused = complaint(&output);
        assert!(refused.contains("the service's group"), "{refused}");
    }
    let attached = ctl("--groups=65533", &["attach", id, "-p", &pid]);
    assert!(attached.status.success(), "{attached:?}");
    let deleted = ctl("--clear-groups", &["delete", id]);
    assert!(deleted.status.success(), "{deleted:?}");
}

#[test]
fn a_user_profiles_own_processes_alone() {
    if !needs(&["root", "setpriv"]) {
        return;
    }
    let Some(service) = Service::start() else {
        return;
    };
    let as_nobody = |program: &Command| as_nobody("--clear-groups", program);
    // The program is in a folder that this user may not read.
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

/// Clients and targets that end at any moment leave nothing behind.
#[test]
fn neither_clients_nor_targets_leave_descriptors() {
    let Some(service) = Service::start() else {
        return;
    };
    let busy = Running::busy();
    // Files that a first round opens for good belong to the start.
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
        // Sends half a request, and creates a profiler with the lifetime of its connection.
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
    // A slow service overwrites samples, too, but delivers others.
    let (mut before, mut in_a_row) = ((0, 0), 0);
    until(
        "samples that are overwritten, and none is delivered",
        || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            let stats = service.json(&["stats", &id, &target.pid()]);
            let count = |key: &str| stats[key].as_u64().expect("a count");
            let now = (count("delivered"), count("overwritten"));
            let stands = now.0 == before.0 && now.1 > before.1;
            in_a_row = if stands { in_a_row + 1 } else { 0 };
            before = now;
            in_a_row == 3
        },
    );
    // The samples that wait for the client are enough: the others need the processor.
    target.stop();
    until("the end of the client that does not read", || {
        // Each question starts a program, which is more work than the service has.
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(
            !service.ctl(&["list"]).is_empty(),
            "others are served meanwhile"
        );
        service.metric("memgauge_dropped_connections_total") >= 1.0
    });
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
fn refused_profilers_take_no_number_and_get_messages_in_words_of_ctl() {
    let Some(service) = Service::start() else {
        return;
    };
    let fails = |arguments: &[&str]| {
        let output = service.command(arguments).output().expect("it runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let unknown = fails(&["new", "-e", "nosuch"]);
    assert!(!unknown.contains("similar:"), "{unknown}");
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

/// A process with more threads than the service has descriptors for.
#[test]
fn a_process_that_is_too_large_is_refused_and_clients_are_served() {
    let Some(service) = Service::with_open_files(64) else {
        return;
    };
    let id = service.new_profiler(&[]);
    let threads: Vec<_> = (0..100)
        .map(|_| {
            let (stay, until) = std::sync::mpsc::channel::<()>();
            (stay, std::thread::spawn(move || until.recv().is_err()))
        })
        .collect();
    let own = std::process::id().to_string();
    let attach = service.command(&["attach", &id, "-p", &own]).output();
    let refused = complaint(&attach.expect("it runs"));
    assert!(refused.contains("too many open files"), "{refused}");
    // As many clients as it keeps descriptors for are served at once.
    let clients: Vec<UnixStream> = (0..8).map(|_| service.connect()).collect();
    assert_eq!(service.json(&["list"])["profilers"][0]["threads"], 0);
    drop(clients);
    for (stay, thread) in threads {
        drop(stay);
        assert!(thread.join().expect("it ends"));
    }
    let small = Running::busy();
    let attached = service.ctl(&["attach", &id, "-p", &small.pid()]);
    assert!(attached.starts_with("1 thread of process"), "{attached}");
}

#[test]
fn a_new_profiler_has_the_period_and_the_event_that_it_samples() {
    let Some(service) = Service::start() else {
        return;
    };
    service.new_profiler(&["-e", "cpu-clock", "-c", "1"]);
    let target = Running::busy();
    service.ctl(&["attach", "1", "-p", &target.pid()]);
    let listed = service.json(&["list"])["profilers"][0]["period"].clone();
    let in_force = service.json(&["stats", "1", &target.pid()])["period"].clone();
    assert_eq!(listed, in_force);
    // Either this machine has the event, or the request is refused before any thread is attached.
    let made = service.command(&["new", "-e", "cycles"]).output();
    let made = made.expect("it runs");
    match made.status.success() {
        true => drop(service.ctl(&["attach", "2", "-p", &target.pid()])),
        false => assert!(complaint(&made).contains("PMU"), "{made:?}"),
    }
}

#[test]
fn a_request_that_is_refused_prints_no_table_and_a_cause_stands_before_its_remedy() {
    let Some(service) = Service::start() else {
        return;
    };
    let follow = service.command(&["read", "99", "--follow"]).output();
    let follow = follow.expect("it runs");
    assert!(follow.stdout.is_empty(), "{follow:?}");
    assert!(complaint(&follow).contains("no profiler has this number"));
    let mut second = Command::new(PROGRAM);
    second.args(["serve", "--metrics", &service.metrics, "--socket"]);
    let second = second.arg(service.socket.with_file_name("t.sock")).output();
    let taken = complaint(&second.expect("it runs"));
    assert!(
        taken.ends_with("in use: try another port with --metrics\n"),
        "{taken}"
    );
}

#[test]
fn a_thousand_targets_that_vanish_are_no_trouble() {
    let Some(service) = Service::start() else {
        return;
    };
    let mut client = memgauge_serve::Client::connect(&service.socket).expect("it listens");
    // Answered, so that its connection is among the descriptors.
    client
        .request("GET", "/v1", None::<&()>)
        .expect("it answers");
    let before = service.descriptors();
    let path = "/v1/profilers";
    let made = client.request("POST", path, Some(&serde_json::json!({ "buffer": 64 })));
    let path = format!("{path}/{}", made.expect("a profiler")["id"]);
    let mut vanished = 0;
    for round in 0..1000 {
        let mut target = Command::new("true").spawn().expect("true runs");
        if round % 2 == 0 {
            target.wait().expect("it is ours");
        }
        let body = serde_json::json!({ "pid": target.id() });
        match client.request("POST", &format!("{path}/processes"), Some(&body)) {
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
        .request("DELETE", &path, None::<&()>)
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
        .args(["--memgauge", PROGRAM, "--seconds", "3"])
        .output();
    let output = output.expect("python3 runs it");
    assert!(output.status.success(), "{output:?}");
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
