//! `memgauge record --to` packs and uploads a recording every second.

mod buckets;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use buckets::Server;
use memgauge_recording::{Recording, Selection};
use memgauge_storage::Store;
use memgauge_trace::{Loss, LossKind};
use tempfile::TempDir;

/// A collection that runs, of a program that never ends.
struct Collector {
    process: Group,
    folder: TempDir,
}

/// A process and those that it starts. They are killed when this is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let mut kill = Command::new("kill");
        let _ = kill
            .args(["-KILL", "--", &group])
            .stderr(Stdio::null())
            .status();
        let _ = self.0.wait();
    }
}

impl Collector {
    fn start(target: &str, options: &[&str], environment: &[(&'static str, String)]) -> Collector {
        let folder = tempfile::tempdir().expect("a folder");
        let errors = std::fs::File::create(folder.path().join("errors")).expect("a file");
        let process = Command::new(env!("CARGO_BIN_EXE_memgauge"))
            .current_dir(folder.path())
            .envs(environment.iter().cloned())
            .args([
                "record", "--source", "clock", "--to", target, "--every", "1s",
            ])
            .args([
                "--label",
                "service=web",
                "--label",
                "host=h1",
                "--label",
                "commit=abc",
            ])
            .args(options)
            .args(["--", "sh", "-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .stderr(errors)
            .process_group(0)
            .spawn()
            .expect("memgauge runs");
        Collector {
            process: Group(process),
            folder,
        }
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("errors")).expect("text")
    }

    /// Waits until a condition holds. A collection that ends instead has failed.
    fn wait_for(&mut self, what: &str, mut holds: impl FnMut(&Collector) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let ended = self.process.0.try_wait().expect("a state");
            let errors = self.errors();
            assert!(ended.is_none(), "{ended:?} before {what}: {errors}");
            assert!(
                begun.elapsed() < Duration::from_secs(240),
                "no {what}: {errors}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Presses Ctrl-C and waits for the end. Returns the output of the collection.
    fn interrupt(mut self) -> (String, TempDir) {
        let pid = self.process.0.id().to_string();
        let kill = Command::new("kill").args(["-INT", &pid]).status();
        assert!(kill.expect("kill runs").success());
        self.process.0.wait().expect("the collection ends");
        (self.errors(), self.folder)
    }
}

/// Recordings in a spool.
fn spooled(folder: &Path) -> Vec<PathBuf> {
    let mut found = files(folder);
    found.retain(|path| !path.ends_with("lock"));
    found
}

/// Files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn losses(recording: &Recording) -> Vec<Loss> {
    let batches = recording.rows::<Loss>(&Selection::all());
    batches.flat_map(|batch| batch.expect("rows")).collect()
}

/// Checks the properties that each recording must have. Returns its losses.
fn check(path: &Path) -> Vec<Loss> {
    let recording = Recording::open(path).expect("a recording");
    assert!(
        recording.problems().is_empty(),
        "{:?}",
        recording.problems()
    );
    let manifest = recording.manifest();
    assert!(manifest.complete, "{}", path.display());
    assert_eq!(manifest.labels["commit"], "abc");
    // A busy host may give the program no time in an interval.
    let has = |table| manifest.tables.contains_key(table);
    assert!(has("symbols") || !has("samples"), "{}", path.display());
    losses(&recording)
}

#[test]
fn each_interval_is_a_recording_and_old_ones_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("target");
    let own = target.join("service=web/host=h1");
    let other = target.join("service=other/host=h1");
    std::fs::create_dir_all(&own).expect("a folder");
    std::fs::create_dir_all(&other).expect("a folder");
    let old = "20200101T000000Z-0123456789abcdef.mg.tar";
    let kept = [other.join(old), own.join("notes.mg.tar")];
    for path in &kept {
        std::fs::write(path, "").expect("a file");
    }
    std::fs::write(own.join(old), "").expect("a file");
    let target = target.to_str().expect("text");
    let mut collector = Collector::start(target, &["--keep", "3s"], &[]);
    let mut seen = BTreeSet::new();
    collector.wait_for("six recordings", |_| {
        seen.extend(files(&own));
        seen.len() >= 8
    });
    let (said, own_folder) = collector.interrupt();
    let left: Vec<PathBuf> = files(&own)
        .into_iter()
        .filter(|path| !kept.contains(path))
        .collect();
    assert!(kept.iter().all(|path| path.exists()), "{left:?}");
    assert!(said.contains("that are older than --keep"), "{said}");
    assert!(
        !left.is_empty() && left.len() < seen.len() - 2,
        "{left:?} {said}"
    );
    for path in &left {
        let gaps = check(path)
            .into_iter()
            .filter(|loss| loss.kind == LossKind::NotObserved);
        assert_eq!(gaps.count(), 1, "{}", path.display());
    }
    assert_eq!(
        spooled(&own_folder.path().join("memgauge.spool")),
        Vec::<PathBuf>::new()
    );
    println!("{said}");
}

/// Names that follow words in messages.
fn named(said: &str, words: &str) -> BTreeSet<String> {
    let rest = said.lines().filter_map(|line| line.split_once(words));
    rest.filter_map(|(_, rest)| Some(rest.split_once('`')?.0.to_owned()))
        .collect()
}

#[test]
fn an_outage_delays_recordings_and_drops_the_oldest_beyond_the_bound() {
    let Some(server) = Server::start() else {
        return;
    };
    let environment = server.environment();
    let port = server.port;
    let owned = |(name, value): (&str, String)| (name.to_owned(), value);
    let store = Store::open_in("s3://fleet/live", environment.clone().map(owned)).expect("a store");
    let target = "s3://fleet/live";
    let mut collector = Collector::start(target, &["--spool", "300KiB"], &environment);
    let uploaded = || {
        store
            .list("service=web/host=h1")
            .map_or(0, |objects| objects.len())
    };
    collector.wait_for("two uploads", |_| uploaded() >= 2);
    drop(server);
    collector.wait_for("a dropped recording", |collector| {
        collector.errors().contains("dropped recording")
    });
    let _server = Server::start_at(port).expect("moto");
    // The server has forgotten what it had.
    collector.wait_for("uploads after the outage", |_| uploaded() >= 3);
    let (said, folder) = collector.interrupt();
    let mut stated = BTreeSet::new();
    for object in store.list("").expect("a listing") {
        let copy = store.download(&object.path, None).expect("an object");
        let copy = copy.expect("an object");
        let dropped = check(copy.path())
            .into_iter()
            .filter(|l| l.kind == LossKind::RecordingDropped);
        stated.extend(dropped.map(|loss| loss.detail));
    }
    let dropped = named(&said, "dropped recording `");
    // One that was dropped while the last recording was written.
    stated.extend(named(&said, "lost: recording `"));
    assert!(!dropped.is_empty(), "{said}");
    assert_eq!(stated, dropped, "{said}");
    assert!(
        said.contains("recordings wait until it works again"),
        "{said}"
    );
    assert_eq!(
        spooled(&folder.path().join("memgauge.spool")),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn recordings_that_could_not_be_uploaded_wait_for_the_next_collection() {
    let Some(server) = Server::start() else {
        return;
    };
    let environment = server.environment();
    let port = server.port;
    drop(server);
    let target = "s3://fleet/live";
    let spool = tempfile::tempdir().expect("a folder");
    let output = spool.path().join("x.mg");
    let output = output.to_str().expect("text");
    let mut collector = Collector::start(target, &["-o", output], &environment);
    collector.wait_for("a failed upload", |collector| {
        collector.errors().contains("recordings wait")
    });
    let (said, _) = collector.interrupt();
    let waiting = spooled(&spool.path().join("x.spool"));
    assert!(
        !waiting.is_empty() && said.contains("could not be uploaded and wait in"),
        "{said}"
    );
    let _server = Server::start_at(port).expect("moto");
    let collector = Collector::start(target, &["-o", output], &environment);
    let store = environment.map(|(name, value)| (name.to_owned(), value));
    let store = Store::open_in(target, store).expect("a store");
    let names = || -> BTreeSet<String> {
        let objects = store
            .list("service=web/host=h1")
            .unwrap_or_default()
            .into_iter();
        objects
            .filter_map(|object| Some(object.path.rsplit('/').next()?.to_owned()))
            .collect()
    };
    let mut collector = collector;
    let wanted = waiting.iter().map(|path| {
        path.file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned()
    });
    let wanted: BTreeSet<String> = wanted.collect();
    collector.wait_for("what waited", |_| names().is_superset(&wanted));
    collector.interrupt();
}

#[test]
fn a_file_of_several_parts_arrives_whole() {
    let Some(server) = Server::start() else {
        return;
    };
    let environment = server.environment();
    let environment = environment.map(|(name, value)| (name.to_owned(), value));
    let store = Store::open_in("s3://fleet", environment).expect("a store");
    // Two parts of 16 MiB and a rest.
    let bytes: Vec<u8> = (0..(33_u32 << 20)).map(|at| (at / 7) as u8).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large");
    std::fs::write(&path, &bytes).expect("a file");
    let mut file = std::fs::File::open(&path).expect("a file");
    store.upload("large", &mut file).expect("an upload");
    assert!(store.get("large").expect("an answer").expect("an object") == bytes);
}
