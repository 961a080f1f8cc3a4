//! Datasets of synthetic recordings, whose sums are known.

mod synthetic;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use memgauge_fleet::{
    Dataset, ErrorKind, IndexOptions, Indexed, OverviewOptions, Query, Scope, Skipped, TopOptions,
    compact, diff, index, outliers, overview, top,
};
use memgauge_recording::amend;
use memgauge_report::fleet::FleetOutlier;
use memgauge_report::{Comparison, Measured, mean_difference_interval};
use synthetic::{Fleet, Known};
use tempfile::TempDir;

struct Indexing {
    folder: TempDir,
    known: Vec<Known>,
}

impl Indexing {
    fn new(fleet: Fleet) -> Indexing {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("dataset")).expect("a folder");
        let recordings = folder.path().join("recordings");
        std::fs::create_dir(&recordings).expect("a folder");
        Indexing {
            known: fleet.write(&recordings),
            folder,
        }
    }

    fn recordings(&self) -> PathBuf {
        self.folder.path().join("recordings")
    }

    fn dataset_path(&self) -> PathBuf {
        self.folder.path().join("dataset")
    }

    fn dataset(&self) -> Dataset {
        Dataset::open(self.dataset_path().to_str().expect("text")).expect("a dataset")
    }

    fn index(&self) -> Indexed {
        self.index_folder(&self.recordings())
    }

    fn index_folder(&self, folder: &Path) -> Indexed {
        let inputs = [folder.to_owned()];
        let options = IndexOptions::default();
        index(&self.dataset(), &inputs, &options, &mut |_, _| ()).expect("an index")
    }

    fn top(&self, metric: &str) -> BTreeMap<String, f64> {
        top_of(&self.dataset(), &Query::default(), metric)
    }

    fn intact(&self) -> impl Iterator<Item = &Known> {
        self.known.iter().filter(|known| !known.is_damaged)
    }
}

fn top_of(dataset: &Dataset, query: &Query, metric: &str) -> BTreeMap<String, f64> {
    let options = TopOptions {
        scope: Some(Scope::Function),
        metric: Some(metric.to_owned()),
        rows: usize::MAX,
    };
    let top = top(dataset, query, &options).expect("functions");
    let mut sums = BTreeMap::new();
    // Several services have functions with the same name in different modules.
    for row in top.rows {
        *sums.entry(row.name.expect("a function")).or_default() += row.value;
    }
    sums
}

/// Sums of an event by function.
fn sums<'a>(known: impl Iterator<Item = &'a Known>, event: &str) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for (function, counts) in known.flat_map(|known| &known.functions) {
        let count = match event {
            "stalled_cycles" => counts["stall.dram"] + counts["stall.llc"],
            event => counts[event],
        };
        *sums.entry(function.clone()).or_default() += count as f64;
    }
    sums
}

fn small(recordings: usize) -> Fleet {
    Fleet {
        recordings,
        damaged: 0,
        functions: 5,
        samples: 10,
        ..Fleet::default()
    }
}

#[test]
fn two_hundred_recordings_are_summed_and_the_three_damaged_ones_are_named() {
    let indexing = Indexing::new(Fleet::default());
    let indexed = indexing.index();
    assert_eq!((indexed.added, indexed.known), (197, 0));
    let named: Vec<&str> = indexed.skipped.iter().map(Skipped::message).collect();
    for known in indexing.known.iter().filter(|known| known.is_damaged) {
        let name = known.path.to_str().expect("text");
        assert!(
            named.iter().any(|line| line.contains(name)),
            "{name} in {named:?}"
        );
    }
    assert_eq!(named.len(), 3);
    assert!(
        indexed
            .skipped
            .iter()
            .all(|skipped| matches!(skipped, Skipped::Unreadable(_)))
    );
    for event in ["llc.miss", "stall.dram", "stalled_cycles"] {
        assert_eq!(
            indexing.top(event),
            sums(indexing.intact(), event),
            "{event}"
        );
    }
}

#[test]
fn selections_are_by_service_day_label_and_age() {
    let indexing = Indexing::new(small(96));
    indexing.index();
    let dataset = indexing.dataset();
    let check = |query: Query, selects: &dyn Fn(usize, &Known) -> bool| {
        let known = indexing
            .known
            .iter()
            .enumerate()
            .filter(|(at, known)| selects(*at, known));
        let expected = sums(known.map(|(_, known)| known), "cycles");
        assert_eq!(top_of(&dataset, &query, "cycles"), expected, "{query:?}");
    };
    let all = Query::default;
    let service = Some("service-1".to_owned());
    check(Query { service, ..all() }, &|_, known| {
        known.service == "service-1"
    });
    let since = Some("2026-11-21".to_owned());
    check(Query { since, ..all() }, &|_, known| {
        known.day == "2026-11-21"
    });
    let labels = vec![
        ("commit".to_owned(), "new".to_owned()),
        ("host".to_owned(), "host-2".to_owned()),
    ];
    let is_selected = |known: &Known| known.commit == "new" && known.host == "host-2";
    check(Query { labels, ..all() }, &|_, known| is_selected(known));
    // Later recordings of a day have later starts. The second day has every other dozen.
    let last = Some(5);
    check(Query { last, ..all() }, &|at, _| at >= 91);
    let nothing = Query {
        service: Some("none".to_owned()),
        ..all()
    };
    let options = TopOptions {
        scope: Some(Scope::Function),
        metric: None,
        rows: 1,
    };
    let error = top(&dataset, &nothing, &options).expect_err("nothing is selected");
    assert_eq!(error.kind(), ErrorKind::Question);
}

#[test]
fn indexing_again_adds_only_what_is_new() {
    let indexing = Indexing::new(small(20));
    assert_eq!(indexing.index().added, 20);
    let before = indexing.top("cycles");
    let again = indexing.index();
    assert_eq!((again.added, again.known), (0, 20));
    assert_eq!(indexing.top("cycles"), before);
    // A copy of a recording under another name counts once.
    let copied = indexing.recordings().join("copy.mg");
    copy_folder(&indexing.known[0].path, &copied);
    assert_eq!(indexing.index().known, 21);
    assert_eq!(indexing.top("cycles"), before);
    let more = indexing.folder.path().join("more");
    let known = Fleet {
        seed: 2,
        ..small(23)
    };
    // The first twenty have the starts, hosts and commands of the indexed recordings.
    let known = known.write(&more);
    let added = indexing.index_folder(&more);
    assert_eq!((added.added, added.known), (3, 20));
    let all = indexing.known.iter().chain(&known[20..]);
    assert_eq!(indexing.top("cycles"), sums(all, "cycles"));
}

#[test]
fn packed_recordings_are_those_that_were_packed() {
    let indexing = Indexing::new(small(6));
    for known in &indexing.known {
        let packed = known.path.with_extension("mg.tar");
        let mut file = std::fs::File::create(&packed).expect("a file");
        memgauge_recording::pack(&known.path, &mut file).expect("the recording is packed");
        std::fs::remove_dir_all(&known.path).expect("the folder is removed");
    }
    let link = indexing.recordings().join("link.mg.tar");
    std::os::unix::fs::symlink("/etc/passwd", link).expect("a link");
    let indexed = indexing.index();
    assert_eq!(
        (indexed.added, indexed.skipped.len()),
        (6, 0),
        "{indexed:?}"
    );
    assert_eq!(
        indexing.top("cycles"),
        sums(indexing.known.iter(), "cycles")
    );
    // An unpacked recording is the same recording.
    let unpacked = indexing.recordings().join("unpacked.mg");
    std::fs::create_dir(&unpacked).expect("a folder");
    let first = indexing.known[0].path.with_extension("mg.tar");
    let tar = std::process::Command::new("tar")
        .arg("-xf")
        .arg(&first)
        .arg("-C")
        .arg(&unpacked)
        .status();
    assert!(tar.expect("tar runs").success());
    assert_eq!(indexing.index().known, 7);
    assert_eq!(indexing.index_folder(&first).known, 1);
}

#[test]
fn a_damaged_copy_does_not_hide_an_intact_one() {
    let indexing = Indexing::new(small(3));
    let first = &indexing.known[0].path;
    // The names sort before and after the intact recording. A third copy is cut off after its
    // manifest.
    for name in ["0", "z"] {
        let copy = indexing.recordings().join(name).with_extension("mg");
        copy_folder(first, &copy);
        std::fs::write(copy.join("sites/part-000000.parquet"), "damaged").expect("a file");
    }
    let packed = indexing.recordings().join("1.mg.tar");
    let mut file = std::fs::File::create(&packed).expect("a file");
    memgauge_recording::pack(first, &mut file).expect("the recording is packed");
    let bytes = file.metadata().expect("a size").len();
    file.set_len(bytes / 2).expect("a shorter file");
    let indexed = indexing.index();
    assert_eq!((indexed.added, indexed.known), (3, 1), "{indexed:?}");
    let skipped: Vec<_> = indexed.skipped.iter().map(Skipped::message).collect();
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(
        skipped[0].contains("/0.mg`") && skipped[1].contains("/1.mg.tar`"),
        "{skipped:?}"
    );
    assert_eq!(
        indexing.top("cycles"),
        sums(indexing.known.iter(), "cycles")
    );
}

#[test]
fn files_in_a_folder_that_others_can_read_are_private() {
    let indexing = Indexing::new(small(2));
    let dataset = indexing.dataset_path();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&dataset, open).expect("rights");
    indexing.index();
    let files = files_below(&dataset);
    assert!(files.len() > 1, "{files:?}");
    for file in files {
        let mode = file.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} {mode:o}", file.display());
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

#[test]
fn unfinished_recordings_wait_and_newer_formats_are_named() {
    let indexing = Indexing::new(small(4));
    let [unfinished, newer, empty] = [0, 1, 2].map(|number| &indexing.known[number].path);
    amend(unfinished, |manifest| manifest.complete = false).expect("a manifest");
    amend(newer, |manifest| manifest.format_version += 1).expect("a manifest");
    let manifest = empty.join("manifest.json");
    std::fs::rename(&manifest, empty.join("later")).expect("a file");
    let indexed = indexing.index();
    assert_eq!(indexed.added, 1);
    let is =
        |path: &Path, skipped: &Skipped| skipped.message().contains(path.to_str().expect("text"));
    let of = |path: &Path| indexed.skipped.iter().find(|skipped| is(path, skipped));
    assert!(
        matches!(of(unfinished), Some(Skipped::Unfinished(_))),
        "{indexed:?}"
    );
    assert!(
        matches!(of(empty), Some(Skipped::Unfinished(_))),
        "{indexed:?}"
    );
    let of_newer = of(newer).expect("it is named");
    assert!(matches!(of_newer, Skipped::Unreadable(_)) && of_newer.message().contains("version"));
    amend(unfinished, |manifest| manifest.complete = true).expect("a manifest");
    std::fs::rename(empty.join("later"), &manifest).expect("a file");
    assert_eq!(indexing.index().added, 2);
    let intact = indexing.known.iter().filter(|known| known.path != *newer);
    assert_eq!(indexing.top("cycles"), sums(intact, "cycles"));
}

/// One label would lead out of the dataset, another to a separate folder for each recording.
#[test]
fn labels_neither_escape_the_dataset_nor_make_partitions() {
    let indexing = Indexing::new(small(12));
    for (number, known) in indexing.known.iter().enumerate() {
        let amended = amend(&known.path, |manifest| {
            let labels = [
                ("service", "../../../escaped/a=b".to_owned()),
                ("request", format!("{number}")),
            ];
            manifest.labels = labels.map(|(name, value)| (name.to_owned(), value)).into();
            manifest.host.name = "..".to_owned();
            manifest.command = vec!["$(touch escaped)".to_owned()];
        });
        amended.expect("a manifest");
    }
    assert_eq!(indexing.index().added, 12);
    let entries = std::fs::read_dir(indexing.folder.path()).expect("a folder");
    assert_eq!(entries.count(), 2, "the recordings and the dataset");
    let files = files_below(&indexing.dataset_path().join("measurements"));
    assert_eq!(files.len(), 1, "{files:?}");
    let query = Query {
        service: Some("../../../escaped/a=b".to_owned()),
        ..Query::default()
    };
    assert_eq!(top_of(&indexing.dataset(), &query, "cycles").len(), 5);
}

#[test]
fn a_label_with_a_value_for_each_recording_adds_no_files() {
    let with_requests = Fleet {
        has_requests: true,
        ..small(48)
    };
    let [labelled, plain] = [with_requests, small(48)].map(|fleet| {
        let indexing = Indexing::new(fleet);
        assert_eq!(indexing.index().added, 48);
        indexing
    });
    let files = |indexing: &Indexing| files_below(&indexing.dataset_path()).len();
    assert_eq!(files(&labelled), files(&plain));
    assert_eq!(labelled.top("cycles"), plain.top("cycles"));
    let of_request = Query {
        labels: vec![("request".to_owned(), synthetic::request(31))],
        ..Query::default()
    };
    assert_eq!(
        top_of(&labelled.dataset(), &of_request, "cycles"),
        sums(std::iter::once(&labelled.known[31]), "cycles")
    );
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files
}

/// Files that an index leaves behind when it is killed before its commit belong to no version.
#[test]
fn files_without_a_commit_are_not_counted() {
    let indexing = Indexing::new(small(6));
    indexing.index();
    let before = indexing.top("cycles");
    std::fs::remove_dir_all(indexing.dataset_path().join("recordings")).expect("versions");
    assert_eq!(indexing.index().added, 6);
    assert_eq!(indexing.top("cycles"), before);
}

/// All writers find the same recordings, and each commits a part of them first.
#[test]
fn concurrent_writers_add_each_recording_once() {
    let indexing = Indexing::new(small(40));
    let added: usize = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| indexing.index().added))
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().expect("no panic"))
            .sum()
    });
    assert_eq!(added, 40);
    assert_eq!(
        indexing.top("cycles"),
        sums(indexing.known.iter(), "cycles")
    );
}

#[test]
fn several_threads_read_one_partition_and_write_the_same_file() {
    let indexing = Indexing::new(Fleet {
        damaged: 3,
        services: 1,
        hosts: 1,
        days: 1,
        ..small(20)
    });
    let with_threads = |threads: usize| {
        let folder = indexing.folder.path().join(format!("dataset-{threads}"));
        std::fs::create_dir(&folder).expect("a folder");
        let dataset = Dataset::open(folder.to_str().expect("text")).expect("a dataset");
        let options = IndexOptions {
            threads,
            ..IndexOptions::default()
        };
        let inputs = [indexing.recordings()];
        let indexed = index(&dataset, &inputs, &options, &mut |_, _| ()).expect("an index");
        let files = files_below(&folder.join("measurements")).len();
        let answers =
            ["cycles", "llc.miss"].map(|metric| top_of(&dataset, &Query::default(), metric));
        (indexed, files, answers)
    };
    let one = with_threads(1);
    assert_eq!((one.0.added, one.0.skipped.len(), one.1), (17, 3, 1));
    assert_eq!(with_threads(4), one);
}

#[test]
fn compaction_changes_no_answer_and_disturbs_no_reader() {
    let indexing = Indexing::new(small(48));
    // Indexing one at a time writes a file for each recording.
    for known in &indexing.known {
        indexing.index_folder(&known.path);
    }
    let expected = sums(indexing.known.iter(), "cycles");
    let dataset = indexing.dataset();
    let is_done = AtomicBool::new(false);
    let compacted = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !is_done.load(Ordering::Relaxed) || reads == 0 {
                assert_eq!(top_of(&dataset, &Query::default(), "cycles"), expected);
                reads += 1;
            }
        });
        let compacted = compact(&indexing.dataset()).expect("a compaction");
        is_done.store(true, Ordering::Relaxed);
        reader.join().expect("no panic");
        compacted
    });
    assert_eq!(
        (compacted.replaced, compacted.written, compacted.removed),
        (48, 24, 0)
    );
    assert_eq!(indexing.top("cycles"), expected);
    let again = compact(&dataset).expect("a compaction");
    assert_eq!((again.replaced, again.written), (0, 0));
}

#[test]
fn old_files_are_removed_when_no_reader_can_need_them() {
    // All in one partition.
    let indexing = Indexing::new(Fleet {
        services: 1,
        hosts: 1,
        days: 1,
        ..small(5)
    });
    let (last, first) = indexing.known.split_last().expect("five");
    for known in first {
        indexing.index_folder(&known.path);
    }
    let dataset = indexing.dataset();
    let compacted = compact(&dataset).expect("a compaction");
    // A reader may still use the four.
    assert_eq!(
        (compacted.replaced, compacted.written, compacted.removed),
        (4, 1, 0)
    );
    let measurements = indexing.dataset_path().join("measurements");
    assert_eq!(files_below(&measurements).len(), 5);
    // Two hours pass for the files.
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    for path in files_below(&indexing.dataset_path()) {
        let file = std::fs::File::options()
            .append(true)
            .open(path)
            .expect("a file");
        file.set_modified(old).expect("a time");
    }
    indexing.index_folder(&last.path);
    let compacted = compact(&dataset).expect("a compaction");
    assert_eq!(
        (compacted.replaced, compacted.written, compacted.removed),
        (2, 1, 4)
    );
    // The newest, and the two that it replaced just now.
    assert_eq!(files_below(&measurements).len(), 3);
    assert_eq!(
        indexing.top("cycles"),
        sums(indexing.known.iter(), "cycles")
    );
}

/// Comparing the recordings themselves, without a dataset, is the second witness.
#[test]
fn a_comparison_equals_that_of_the_recordings() {
    let indexing = Indexing::new(Fleet {
        services: 1,
        ..small(32)
    });
    indexing.index();
    let label = |value: &str| vec![("commit".to_owned(), value.to_owned())];
    let groups = [label("old"), label("new")];
    let groups = [groups[0].as_slice(), groups[1].as_slice()];
    let found = diff(&indexing.dataset(), &Query::default(), groups, None).expect("a comparison");
    let measured = |commit: &str| -> Vec<Measured> {
        let known = indexing.known.iter().filter(|known| known.commit == commit);
        let mut known: Vec<&Known> = known.collect();
        // In the order of their starts, in which the dataset adds up.
        known.sort_by_key(|known| (known.day, &known.path));
        known
            .into_iter()
            .map(|known| measured(&known.path))
            .collect()
    };
    let expected = Comparison::of(&measured("old"), &measured("new"), None);
    assert_eq!(found.functions, expected.functions);
    assert_eq!(found.lines, expected.lines);
    assert_eq!(found.metrics, expected.metrics);
    assert_eq!(found.headline, expected.headline);
    let stalls = diff(
        &indexing.dataset(),
        &Query::default(),
        groups,
        Some("stall.dram"),
    );
    let worst = &stalls.expect("a comparison").functions[0];
    assert!(worst.function.starts_with("parse "), "{worst:?}");
    let [low, high] = worst.interval.expect("of groups");
    let fifth = worst.before as f64 / 5.0;
    assert!(low < fifth && fifth < high, "{worst:?}");
}

fn measured(path: &Path) -> Measured {
    let recording = memgauge_recording::Recording::open(path).expect("a recording");
    let options = memgauge_analyze::Options::every_place(None);
    let mut symbols = memgauge_symbols::Symbols::recorded(&recording);
    let summary = memgauge_analyze::summarise(&recording, &mut symbols, &options);
    Measured::of(&summary.expect("a summary"))
}

#[test]
fn groups_that_cannot_be_compared_are_refused() {
    let indexing = Indexing::new(small(12));
    indexing.index();
    let dataset = indexing.dataset();
    let host = |value: &str| vec![("host".to_owned(), value.to_owned())];
    let fails = |groups: [Vec<(String, String)>; 2]| {
        let groups = [groups[0].as_slice(), groups[1].as_slice()];
        let error = diff(&dataset, &Query::default(), groups, None).expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Question);
        error.to_string()
    };
    assert!(fails([host("host-0"), host("host-1")]).contains("differ in service"));
    let of_service = |host_name: &str| {
        let mut labels = host(host_name);
        labels.push(("service".to_owned(), "service-0".to_owned()));
        labels
    };
    assert!(fails([of_service("host-0"), of_service("host-1")]).contains("no spread"));
}

#[test]
fn a_refusal_names_the_first_of_many_services() {
    let indexing = Indexing::new(Fleet {
        services: 24,
        ..small(48)
    });
    indexing.index();
    let host = |number: u32| vec![("host".to_owned(), format!("host-{number}"))];
    let groups = [host(0), host(1)];
    let error = diff(
        &indexing.dataset(),
        &Query::default(),
        [&groups[0], &groups[1]],
        None,
    );
    let message = error.expect_err("it is refused").to_string();
    let named = "(service-0, service-1, service-10, service-11, service-12 and 19 more)";
    assert!(message.contains(named), "{message}");
}

#[test]
fn the_host_that_misses_more_is_an_outlier_and_no_other_is() {
    let indexing = Indexing::new(small(120));
    indexing.index();
    let found = outliers(&indexing.dataset(), &Query::default(), None).expect("outliers");
    assert!(!found.rows.is_empty());
    // Each other host differs from peers among which is host-1, but the other way round.
    let more = found.rows.iter().filter(|row| row.mean > row.peer_mean);
    let metrics: Vec<(&str, &str)> = more.map(|row| (&*row.host, &*row.metric)).collect();
    assert!(metrics.contains(&("host-1", "llc.miss")), "{metrics:?}");
    assert!(
        metrics.iter().all(|(host, _)| *host == "host-1"),
        "{metrics:?}"
    );
    let row = found
        .rows
        .iter()
        .find(|row| row.metric == "llc.miss")
        .expect("a row");
    assert_eq!((row.recordings, row.peer_recordings), (10, 30));
    let relative = row.relative.expect("peers miss too");
    assert!((0.45..0.55).contains(&relative), "{row:?}");
}

/// Each host is compared with the values of all others, which this test copies for each host.
#[test]
fn outliers_have_the_intervals_of_their_values() {
    let indexing = Indexing::new(Fleet {
        services: 1,
        hosts: 50,
        ..small(200)
    });
    indexing.index();
    let found = outliers(&indexing.dataset(), &Query::default(), Some("llc.miss")).expect("hosts");
    assert_eq!((found.comparisons, found.not_compared), (50, 0));
    let misses = |known: &Known| -> f64 {
        let counts = known.functions.values().map(|counts| counts["llc.miss"]);
        counts.sum::<u64>() as f64
    };
    let mut expected = BTreeMap::new();
    for host in (0..50).map(|number| format!("host-{number}")) {
        let (own, peers): (Vec<&Known>, Vec<&Known>) =
            indexing.known.iter().partition(|known| known.host == host);
        let [own, peers] =
            [own, peers].map(|group| group.into_iter().map(misses).collect::<Vec<_>>());
        let interval = mean_difference_interval(&peers, &own, 50).expect("two values each");
        if interval[0] > 0.0 || interval[1] < 0.0 {
            expected.insert(host, interval);
        }
    }
    assert!(expected.contains_key("host-1"));
    assert_eq!(found.rows.len(), expected.len());
    for row in &found.rows {
        for (end, expected) in row.interval.iter().zip(expected[&row.host]) {
            assert!((end / expected - 1.0).abs() < 1e-9, "{row:?} {expected}");
        }
    }
}

#[test]
fn hosts_are_compared_within_a_modelled_machine() {
    let indexing = Indexing::new(small(120));
    for known in indexing.known.iter().filter(|known| known.host == "host-1") {
        let amended = amend(&known.path, |manifest| {
            let machine = manifest.machine.as_mut().expect("a machine");
            machine.name = "skylake-sp".to_owned();
        });
        amended.expect("a manifest");
    }
    indexing.index();
    let dataset = indexing.dataset();
    let found = outliers(&dataset, &Query::default(), Some("llc.miss")).expect("outliers");
    // One comparison in twenty may differ by chance, but not by much.
    let large = |row: &&FleetOutlier| {
        row.host == "host-1" || row.relative.is_none_or(|part| part.abs() > 0.02)
    };
    assert_eq!(found.rows.iter().find(large), None);
    assert_eq!(found.facts.machines, ["skylake-sp", "zen4"]);
    assert!(found.not_compared > 0 && found.comparisons > 0, "{found:?}");
}

#[test]
fn versions_of_different_modelled_machines_are_not_compared() {
    let indexing = Indexing::new(small(120));
    let of_one = indexing
        .known
        .iter()
        .filter(|known| known.service == "service-0");
    for known in of_one.filter(|known| known.commit == "new") {
        let amended = amend(&known.path, |manifest| {
            let machine = manifest.machine.as_mut().expect("a machine");
            machine.name = "skylake-sp".to_owned();
        });
        amended.expect("a manifest");
    }
    indexing.index();
    let options = OverviewOptions {
        metric: Some("llc.miss".to_owned()),
        functions: 1,
        recordings: 1,
    };
    let shown = overview(&indexing.dataset(), &Query::default(), &options).expect("an overview");
    assert!(shown.histories.len() > 1, "{shown:?}");
    for history in shown.histories {
        let change = &history.versions[1].change;
        let is_mixed = history.service == "service-0";
        assert_eq!(change.is_none(), is_mixed, "{} {change:?}", history.service);
    }
}
