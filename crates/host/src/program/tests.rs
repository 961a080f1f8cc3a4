//! Names that are kept: fixtures are bytes written out by hand after the formats'
//! descriptions.

use super::*;
use memgauge_recording::{Recording, Selection};
use memgauge_trace::{GeneratedCode, Manifest, Pid, VirtAddr};

fn names(rows: &[GeneratedCode]) -> Vec<(u64, u64, &str)> {
    let rows = rows.iter();
    rows.map(|r| (r.start.0, r.bytes, r.name.as_str()))
        .collect()
}

#[test]
fn lines_of_a_map_become_code_and_others_are_passed_over() {
    let map = b"3ef414c0 398 LazyCompile:~sum /a b.js:1:2\nnonsense\n0x10 20 f\n";
    let expected = [
        (0x3ef4_14c0, 0x398, "LazyCompile:~sum /a b.js:1:2"),
        (0x10, 0x20, "f"),
    ];
    assert_eq!(names(&parse_perf_map(7, map)), expected);
}

#[test]
fn names_of_a_running_process_come_and_grow() {
    let pid = std::process::id();
    let mut names = GeneratedNames::of(pid);
    names.refresh();
    assert_eq!(names.at(0x1010), None);
    let map = std::path::PathBuf::from(format!("/tmp/perf-{pid}.map"));
    std::fs::write(&map, "2000 10 later\n1000 20 first of all\n").expect("a map");
    names.refresh();
    let text = "2000 10 later\n1000 20 first of all\n3000 8 third\n";
    let found = [0xfff, 0x1000, 0x101f, 0x1020, 0x200f, 0x3000].map(|at| names.at(at));
    let first = Some("first of all");
    assert_eq!(found, [None, first, first, None, Some("later"), None]);
    std::fs::write(&map, text).expect("a map");
    names.refresh();
    std::fs::remove_file(&map).expect("it is ours");
    // Names that were read stay.
    names.refresh();
    assert_eq!((names.at(0x3007), names.at(0x1000)), (Some("third"), first));
}

/// A record of a dump: kind, length, time, body.
fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = 16 + body.len() as u32;
    [
        &kind.to_le_bytes()[..],
        &length.to_le_bytes(),
        &[0; 8],
        body,
    ]
    .concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

#[test]
fn loads_and_moves_of_a_dump_become_code() {
    let mut dump = [
        &0x4a69_5444u32.to_le_bytes()[..],
        &1u32.to_le_bytes(),
        &40u32.to_le_bytes(),
    ]
    .concat();
    dump.resize(40, 0);
    let load = [words(&[0, 0x1000, 0x1000, 0x40, 5]), b"hot\0code".to_vec()].concat();
    dump.extend(record(0, &load));
    dump.extend(record(2, b"debug information"));
    dump.extend(record(1, &words(&[0, 0x1000, 0x1000, 0x2000, 0x40, 5])));
    let all = parse_jitdump(7, &dump);
    assert_eq!(names(&all), [(0x1000, 0x40, "hot"), (0x2000, 0x40, "hot")]);
    for cut in 0..dump.len() {
        assert!(parse_jitdump(7, &dump[..cut]).len() <= 2);
    }
}

fn row(path: &str) -> Module {
    Module {
        pid: Pid(std::process::id()),
        start: VirtAddr(0x1000),
        end: VirtAddr(0x2000),
        path: path.to_owned(),
        executable: true,
        ..Module::default()
    }
}

/// Copies go to the recording.
fn without_cache() -> ProgramFiles {
    ProgramFiles {
        cache: None,
        ..ProgramFiles::new()
    }
}

/// Bytes of the copies in a recording, in order.
fn copies_in(recording: &Path) -> Vec<Vec<u8>> {
    let copies = fs::read_dir(recording.join(COPIES)).unwrap().flatten();
    let mut copies: Vec<_> = copies.map(|c| fs::read(c.path()).unwrap()).collect();
    copies.sort();
    copies
}

#[test]
fn a_program_that_is_gone_or_will_be_built_again_is_copied_and_an_installed_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let originals = ["/bin/true", "/bin/false"];
    let [gone, own] = originals.map(|original| {
        let path = folder.path().join(&original[5..]);
        fs::copy(original, &path).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let mut files = without_cache();
    let mut first = row(&gone);
    files.identify(&mut first);
    files.identify(&mut row(&own));
    files.identify(&mut row("/bin/sh"));
    assert_eq!(
        first.file_bytes,
        Some(fs::metadata("/bin/true").unwrap().len())
    );
    assert_ne!(first.modified_ns, None);
    fs::remove_file(&gone).unwrap();
    let output = folder.path().join("r.mg");
    let mut writer = Writer::create(&output, Manifest::default()).unwrap();
    let copied = files.finish(&output, &mut writer).unwrap();
    writer.finish(|_| {}).unwrap();
    let mut expected = originals.map(|original| fs::read(original).unwrap());
    expected.sort();
    assert_eq!(
        copied as usize,
        expected.iter().map(Vec::len).sum::<usize>()
    );
    assert!(
        copies_in(&output) == expected,
        "the copies are not the files"
    );
    let recording = Recording::open(&output).unwrap();
    assert_eq!(recording.problems(), Vec::<String>::new());
    let losses = recording.rows::<Loss>(&Selection::all());
    assert_eq!(losses.count(), 0);
}

#[test]
fn the_newest_files_are_copied_as_far_as_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    fs::copy("/bin/true", &large).unwrap();
    // Holes: the file takes no room on the disk.
    let file = fs::OpenOptions::new().write(true).open(&large).unwrap();
    file.set_len(MAX_PRECAUTIONARY_BYTES).unwrap();
    let small = folder.path().join("small");
    fs::copy("/bin/false", &small).unwrap();
    let newest = SystemTime::now() + std::time::Duration::from_secs(9);
    File::open(&small).unwrap().set_modified(newest).unwrap();
    let mut files = without_cache();
    for path in [&large, &small] {
        files.identify(&mut row(path.to_str().unwrap()));
    }
    let output = folder.path().join("r.mg");
    let mut writer = Writer::create(&output, Manifest::default()).unwrap();
    files.finish(&output, &mut writer).unwrap();
    writer.finish(|_| {}).unwrap();
    assert!(copies_in(&output) == [fs::read("/bin/false").unwrap()]);
}

#[test]
fn a_file_written_to_is_not_copied_under_the_old_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    fs::copy("/bin/true", &path).unwrap();
    let mut files = without_cache();
    files.identify(&mut row(path.to_str().unwrap()));
    let mut other = fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut other, b"x").unwrap();
    fs::remove_file(&path).unwrap();
    let output = folder.path().join("r.mg");
    let mut writer = Writer::create(&output, Manifest::default()).unwrap();
    assert_eq!(files.finish(&output, &mut writer).unwrap(), 0);
    writer.finish(|_| {}).unwrap();
    let recording = Recording::open(&output).unwrap();
    let losses: Vec<Loss> = recording
        .rows(&Selection::all())
        .flat_map(|r| r.unwrap())
        .collect();
    assert_eq!(losses.len(), 1);
    assert_eq!(losses[0].kind, LossKind::NotKept);
}

#[test]
fn a_child_has_its_parents_mappings_once_and_those_of_no_other() {
    let mut mappings = Mappings::default();
    let mut parent = row("/bin/p");
    parent.pid = Pid(1);
    mappings.mapped(&parent);
    mappings.forked(2, 1, 50);
    let mut own = row("/lib/late.so");
    own.pid = Pid(1);
    own.start = VirtAddr(0x5000);
    own.end = VirtAddr(0x6000);
    mappings.mapped(&own);
    let rows = mappings.inherited(2);
    let expected = Module {
        pid: Pid(2),
        time_ns: 50,
        ..parent
    };
    assert_eq!(rows, [expected]);
    assert_eq!(mappings.inherited(2), []);
    mappings.forked(3, 1, 60);
    mappings.replaced(3);
    assert_eq!(mappings.inherited(3), []);
}

#[test]
fn copies_by_build_id_are_kept_in_the_cache_once_for_all_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    fs::copy("/bin/true", &program).unwrap();
    let build_id = identity(&program).unwrap().build_id;
    assert_ne!(build_id, "");
    let cache = folder.path().join("memgauge/files");
    for name in ["first.mg", "second.mg"] {
        let mut files = ProgramFiles {
            cache: Some(cache.clone()),
            ..ProgramFiles::new()
        };
        files.identify(&mut row(program.to_str().unwrap()));
        let output = folder.path().join(name);
        let mut writer = Writer::create(&output, Manifest::default()).unwrap();
        assert_eq!(files.finish(&output, &mut writer).unwrap(), 0);
        writer.finish(|_| {}).unwrap();
        assert!(!output.join(COPIES).exists());
    }
    let kept: Vec<_> = fs::read_dir(&cache).unwrap().flatten().collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].file_name().to_str(), Some(build_id.as_str()));
    assert!(fs::read(kept[0].path()).unwrap() == fs::read("/bin/true").unwrap());
}
