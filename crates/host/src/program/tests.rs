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
    assert_eq!(names(&perf_map(7, map)), expected);
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
    let all = jitdump(7, &dump);
    assert_eq!(names(&all), [(0x1000, 0x40, "hot"), (0x2000, 0x40, "hot")]);
    for cut in 0..dump.len() {
        assert!(jitdump(7, &dump[..cut]).len() <= 2);
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

#[test]
fn a_program_that_is_deleted_is_copied_and_one_that_stays_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let own = Path::new("/bin/true");
    let [gone, stays] = ["gone", "stays"].map(|name| {
        let path = folder.path().join(name);
        fs::copy(own, &path).unwrap();
        path.to_str().unwrap().to_owned()
    });
    let mut files = ProgramFiles::new();
    let (mut first, mut second) = (row(&gone), row(&stays));
    files.identify(&mut first);
    files.identify(&mut second);
    assert_eq!(first.build_id, second.build_id);
    assert_eq!(first.file_bytes, Some(fs::metadata(own).unwrap().len()));
    assert_ne!(first.modified_ns, None);
    fs::remove_file(&gone).unwrap();
    let output = folder.path().join("r.mg");
    let mut writer = Writer::create(&output, Manifest::default()).unwrap();
    let copied = files.finish(&output, &mut writer).unwrap();
    writer.finish(|_| {}).unwrap();
    assert_eq!(Some(copied), first.file_bytes);
    let copies: Vec<_> = fs::read_dir(output.join(COPIES))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(copies.len(), 1);
    let same = fs::read(copies[0].path()).unwrap() == fs::read(own).unwrap();
    assert!(same, "the copy differs from the file");
    let recording = Recording::open(&output).unwrap();
    assert_eq!(recording.problems(), Vec::<String>::new());
    let losses = recording.rows::<Loss>(&Selection::all());
    assert_eq!(losses.count(), 0);
}

#[test]
fn a_file_written_to_is_not_copied_under_the_old_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    fs::copy("/bin/true", &path).unwrap();
    let mut files = ProgramFiles::new();
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
