//! `memgauge fleet` with recordings and datasets in a bucket.

mod buckets;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;
#[allow(dead_code, reason = "each test file uses a part of it")]
#[path = "page/served.rs"]
mod served;
#[path = "../../fleet/tests/synthetic/mod.rs"]
mod synthetic;

use std::path::{Path, PathBuf};
use std::process::Output;

use buckets::Server;
use harness::memgauge;
use memgauge_storage::Store;
use serde_json::Value;
use served::Served;
use synthetic::Fleet;
use tempfile::TempDir;

/// Packed recordings in a folder, and the same in a bucket.
struct Recordings {
    folder: TempDir,
    server: Server,
}

impl Recordings {
    fn new(recordings: usize) -> Option<Recordings> {
        let server = Server::start()?;
        let folder = tempfile::tempdir().expect("a folder");
        let fleet = Fleet {
            recordings,
            damaged: 0,
            services: 1,
            hosts: 2,
            days: 2,
            samples: 50,
            functions: 5,
            ..Fleet::default()
        };
        let packed = folder.path().join("packed");
        std::fs::create_dir(&packed).expect("a folder");
        for known in fleet.write(folder.path()) {
            let name = known.path.file_stem().expect("a name").to_owned();
            let mut file =
                std::fs::File::create(packed.join(name).with_extension("mg.tar")).expect("a file");
            memgauge_recording::pack(&known.path, &mut file).expect("a packed recording");
        }
        Some(Recordings { folder, server })
    }

    fn packed(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path().join("packed")).expect("a folder");
        let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
        paths.sort();
        paths
    }

    /// Uploads with Python's `boto3`, an implementation of its own.
    fn upload(&self, prefix: &str, files: &[PathBuf]) {
        let key = |path: &PathBuf| {
            let name = path.file_name().expect("a name").to_string_lossy();
            (format!("{prefix}/{name}"), path.clone())
        };
        self.put_all(files.iter().map(key));
    }

    fn put(&self, key: &str, path: &Path) {
        self.put_all([(key.to_owned(), path.to_owned())]);
    }

    fn put_all(&self, objects: impl IntoIterator<Item = (String, PathBuf)>) {
        let script = "import boto3, sys\n\
            bucket = boto3.resource('s3').Bucket('fleet')\n\
            for key, path in zip(sys.argv[1::2], sys.argv[2::2]): bucket.upload_file(path, key)";
        let mut python = memgauge_testing::python_with("boto3").expect("boto3 beside moto");
        let words = objects.into_iter();
        let status = python
            .args(["-c", script])
            .args(words.flat_map(|(key, path)| [key.into(), path.into_os_string()]))
            .envs(self.server.environment())
            .status();
        assert!(status.expect("Python runs").success());
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut memgauge = memgauge();
        memgauge
            .current_dir(self.folder.path())
            .envs(self.server.environment())
            .args(words)
            .output()
            .expect("memgauge runs")
    }

    fn succeeds(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Message of a command that must fail.
    fn fails(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(!output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }
}

const QUESTIONS: [&[&str]; 4] = [
    &["top", "--by", "llc.miss", "--rows", "1000"],
    &["top", "--lines", "--rows", "1000"],
    &["outliers"],
    &[
        "diff",
        "--service",
        "service-0",
        "--label",
        "commit=old",
        "--label",
        "commit=new",
    ],
];

#[test]
fn a_bucket_gives_the_answers_of_a_folder() {
    bucket_gives_the_answers_of_a_folder("s3");
}

#[test]
fn a_bucket_of_google_gives_the_answers_of_a_folder() {
    bucket_gives_the_answers_of_a_folder("gs");
}

fn bucket_gives_the_answers_of_a_folder(scheme: &str) {
    let Some(all) = Recordings::new(24) else {
        return;
    };
    all.upload("runs/web", &all.packed());
    let added = all.succeeds(&["fleet", "index", "packed", "--to", "local"]);
    assert!(added.contains("added 24"), "{added}");
    let bucket = format!("{scheme}://fleet");
    let remote = &format!("{bucket}/data/set");
    let runs = format!("{bucket}/runs");
    let added = all.succeeds(&["fleet", "index", &runs, "--to", remote]);
    assert!(added.contains("added 24"), "{added}");
    let again = all.succeeds(&["fleet", "index", &format!("{runs}/"), "--to", remote]);
    assert!(
        again.contains("added 0") && again.contains("24 were there"),
        "{again}"
    );
    let folder = all.folder.path().join("local");
    let urls = ["file://", "file:"].map(|scheme| format!("{scheme}{}", folder.display()));
    for question in QUESTIONS {
        let ask = |dataset: &str| {
            let mut words = vec!["fleet", question[0], dataset, "--json"];
            words.extend(&question[1..]);
            all.json(&words)
        };
        let local = ask("local");
        assert_eq!(ask(remote), local, "{question:?}");
        for url in &urls {
            assert_eq!(ask(url), local, "{question:?}");
        }
    }
    // A second file of each partition, and then one again.
    let first = all.packed()[0].clone();
    all.put("one/first.mg.tar", &first);
    let known = all.succeeds(&[
        "fleet",
        "index",
        &format!("{bucket}/one/first.mg.tar"),
        "--to",
        remote,
    ]);
    assert!(known.contains("added 0"), "{known}");
    let local = all.json(&["fleet", "top", "local", "--json"]);
    all.succeeds(&["fleet", "compact", remote]);
    assert_eq!(all.json(&["fleet", "top", remote, "--json"]), local);
}

#[test]
fn two_indexes_at_the_same_time_lose_no_recording() {
    let Some(all) = Recordings::new(24) else {
        return;
    };
    let packed = all.packed();
    all.upload(
        "even",
        &packed.iter().step_by(2).cloned().collect::<Vec<_>>(),
    );
    all.upload(
        "odd",
        &packed
            .iter()
            .skip(1)
            .step_by(2)
            .cloned()
            .collect::<Vec<_>>(),
    );
    std::thread::scope(|scope| {
        for half in ["s3://fleet/even", "s3://fleet/odd"] {
            let all = &all;
            scope.spawn(move || all.succeeds(&["fleet", "index", half, "--to", "s3://fleet/set"]));
        }
    });
    all.succeeds(&["fleet", "index", "packed", "--to", "local"]);
    let top = |dataset| all.json(&["fleet", "top", dataset, "--by", "cycles", "--json"]);
    assert_eq!(top("s3://fleet/set"), top("local"));
}

#[test]
fn one_of_two_writers_creates_an_object() {
    let Some(server) = Server::start() else {
        return;
    };
    for bucket in ["s3://fleet/x", "gs://fleet/y"] {
        one_of_two_writers_to(bucket, &server);
    }
}

fn one_of_two_writers_to(bucket: &str, server: &Server) {
    let open = || Store::open_in(bucket, server.environment().map(owned)).expect("a store");
    let puts = |own: &'static str| {
        let store = open();
        move || -> Vec<bool> {
            let put = |number| store.put_if_absent(&format!("{number}"), own.into());
            (0..50)
                .map(|number| put(number).expect("an answer"))
                .collect()
        }
    };
    let (first, second) = (puts("first"), puts("second"));
    let second = std::thread::spawn(second);
    let first = first();
    let second = second.join().expect("a writer");
    let store = open();
    for (number, (first, second)) in first.into_iter().zip(second).enumerate() {
        assert!(first != second, "{number}: {first} {second}");
        let winner = if first { "first" } else { "second" };
        let found = store.get(&number.to_string()).expect("an answer");
        assert_eq!(found.as_deref(), Some(winner.as_bytes()), "{number}");
    }
}

fn owned((name, value): (&str, String)) -> (String, String) {
    (name.to_owned(), value)
}

#[test]
fn failures_are_explained() {
    let Some(all) = Recordings::new(2) else {
        return;
    };
    let missing = all.fails(&["fleet", "index", "s3://nowhere/runs", "--to", "local"]);
    assert!(
        missing.contains("there is no such bucket; create it"),
        "{missing}"
    );
    let missing = all.fails(&["fleet", "top", "s3://nowhere/set"]);
    assert!(
        missing.contains("there is no such bucket; create it"),
        "{missing}"
    );
    let empty = all.fails(&["fleet", "index", "s3://fleet/runs", "--to", "local"]);
    assert!(empty.contains("there is no packed recording"), "{empty}");
    let empty = all.fails(&["fleet", "top", "s3://fleet/set"]);
    assert!(
        empty.contains("it has no recordings; add some with"),
        "{empty}"
    );
    for (url, why) in [
        (
            "ftp://host/x",
            "use a path, `file:///PATH`, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`",
        ),
        ("s3://", "it names no bucket; use `s3://BUCKET/PREFIX`"),
        ("gs:///x", "it names no bucket; use `gs://BUCKET/PREFIX`"),
    ] {
        let message = all.fails(&["fleet", "top", url]);
        assert!(message.contains(why), "{message}");
    }
    let nobody = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1")];
    let mut memgauge = memgauge();
    let output = memgauge
        .envs(all.server.environment())
        .envs(nobody)
        .args(["fleet", "top", "s3://fleet/set"])
        .output()
        .expect("memgauge runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("cannot reach the server") && message.contains("AWS_ENDPOINT_URL"),
        "{message}"
    );
}

#[test]
fn objects_that_are_no_recordings_are_named_and_do_nothing() {
    let Some(all) = Recordings::new(3) else {
        return;
    };
    let packed = all.packed();
    all.upload("runs", &packed[1..]);
    let bytes = std::fs::read(&packed[0]).expect("a file");
    let file = |name: &str, bytes: &[u8]| {
        let path = all.folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    all.put("runs/cut.mg.tar", &file("cut", &bytes[..bytes.len() / 2]));
    all.put(
        "runs/text.mg.tar",
        &file("text", b"#!/bin/sh\ntouch /tmp/ran\n"),
    );
    all.put("runs/empty.mg.tar", &file("empty", b""));
    // Names that would lead out of a folder if they were paths.
    all.put(
        "runs/%2e%2e%2fescaped.mg.tar",
        &file("copy", &std::fs::read(&packed[1]).expect("a file")),
    );
    let before = std::fs::read_dir(all.folder.path())
        .expect("a folder")
        .count();
    let output = all.run(&[
        "fleet",
        "index",
        "s3://fleet/runs",
        "--to",
        "s3://fleet/set",
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    for (name, why) in [
        ("cut", "truncated"),
        ("text", "memgauge pack"),
        ("empty", "memgauge pack"),
    ] {
        let line = said
            .lines()
            .find(|line| line.contains(&format!("/{name}.mg.tar`")));
        let line = line.unwrap_or_else(|| panic!("{name} in {said}"));
        assert!(line.contains(why) && !line.contains("/tmp"), "{line}");
    }
    assert!(said.contains("added 2 recordings"), "{said}");
    let after = std::fs::read_dir(all.folder.path())
        .expect("a folder")
        .count();
    assert_eq!(after, before);
}

#[test]
fn the_page_of_a_bucket_opens_recordings_of_the_bucket() {
    let Some(all) = Recordings::new(8) else {
        return;
    };
    all.upload("runs/web", &all.packed());
    all.succeeds(&[
        "fleet",
        "index",
        "s3://fleet/runs",
        "--to",
        "s3://fleet/data",
    ]);
    all.succeeds(&["fleet", "index", "packed", "--to", "local"]);
    let environment = all.server.environment();
    let remote = Served::with(Path::new("s3://fleet/data"), environment.clone());
    let local = Served::with(&all.folder.path().join("local"), environment);
    let [found, expected] = [&remote, &local].map(|served| served.data("&metric=llc.miss"));
    for part in ["histories", "top", "outliers", "facts"] {
        assert_eq!(found["fleet"][part], expected["fleet"][part], "{part}");
    }
    let id = found["fleet"]["recordings"][0]["recording"].as_str();
    let recording = format!("&recording={}", id.expect("an ID"));
    let [own, same] = [&remote, &local].map(|served| served.data(&recording));
    assert_eq!(own["summary"]["hot"], same["summary"]["hot"]);
    let part = format!(
        "/part?from=0&to=1000000&token={}{recording}",
        remote.token()
    );
    let (status, body) = remote.get(&part, "127.0.0.1");
    assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
}

#[test]
fn a_packed_recording_is_read_by_its_url() {
    let Some(all) = Recordings::new(2) else {
        return;
    };
    let packed = all.packed();
    all.upload("runs", &packed);
    let names: Vec<&str> = packed
        .iter()
        .map(|path| path.file_name().expect("a name").to_str().expect("text"))
        .collect();
    let urls: Vec<String> = names
        .iter()
        .map(|n| format!("s3://fleet/runs/{n}"))
        .collect();
    let files: Vec<String> = names.iter().map(|n| format!("packed/{n}")).collect();
    let [found, expected] = [&urls, &files].map(|names| {
        let report = all.json(&["report", "--json", &names[0]]);
        let compared = all.json(&["diff", "--json", &names[0], &names[1]]);
        let exported = all.run(&["export", "-f", "folded", &names[0]]);
        assert!(!exported.stdout.is_empty(), "{exported:?}");
        (
            report["hot"].clone(),
            compared["metrics"].clone(),
            exported.stdout,
        )
    });
    assert_eq!(found, expected);
    let environment = all.server.environment();
    let remote = Served::with(Path::new(&urls[0]), environment.clone());
    let local = Served::with(&packed[0], environment);
    let [found, expected] = [&remote, &local].map(|served| served.data(""));
    assert_eq!(found["summary"]["hot"], expected["summary"]["hot"]);
    let missing = all.fails(&["report", "s3://fleet/runs/none.mg.tar"]);
    assert!(missing.contains("there is no such object"), "{missing}");
}

#[test]
fn a_recording_to_which_access_is_denied_does_not_stop_an_index() {
    let Some(all) = Recordings::new(3) else {
        return;
    };
    let packed = all.packed();
    all.upload("runs", &packed[..2]);
    // A name that is no path, and one that the server below refuses.
    all.put("runs//empty.mg.tar", &packed[2]);
    all.put("runs/denied.mg.tar", &packed[2]);
    all.put("runs/gone.mg.tar", &packed[2]);
    all.put("only/denied.mg.tar", &packed[2]);
    let gate = all.server.gate();
    let index = |prefix: &str| {
        let mut memgauge = memgauge();
        let indexed = memgauge
            .current_dir(all.folder.path())
            .envs(all.server.environment())
            .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{gate}"))
            .args([
                "fleet",
                "index",
                &format!("s3://fleet/{prefix}"),
                "--to",
                "set",
            ])
            .output()
            .expect("memgauge runs");
        let said = String::from_utf8_lossy(&indexed.stderr).into_owned();
        (indexed.status.code(), said)
    };
    let (code, said) = index("runs");
    assert_eq!(code, Some(3), "{said}");
    for why in [
        "skipped `s3://fleet/runs/denied.mg.tar`: failed to read",
        "access denied",
        "skipped `s3://fleet/runs/gone.mg.tar`: it was removed meanwhile",
        "skipped \"s3://fleet/runs//empty.mg.tar\": its name has an empty part",
        "added 2 recordings to set",
    ] {
        assert!(said.contains(why), "{why}: {said}");
    }
    // Nothing can be read: the settings are wrong.
    let (code, said) = index("only");
    assert_eq!(code, Some(125), "{said}");
    assert!(
        !said.contains("skipped") && said.contains("check AWS_ACCESS_KEY_ID"),
        "{said}"
    );
}
